//! What no seed below 2,000,000 has: metadata of DRBD 9, disks that do not discard or leave anything behind when they
//! do, `data-integrity-alg`, and counters that start near their wrap.
//!
//! Each is drawn from a random source of its own: what another one draws stays as it is.

use crate::plan::{Setup, pick};
use units::Rng;
use urbd_core::Counters;

/// The first seed of the range.
const FURTHER: u64 = 2_000_000;

/// Makes the cluster of this seed have what it draws.
pub(crate) fn draw(seed: u64, setup: &mut Setup) {
    if seed < FURTHER {
        return;
    }
    metadata(&mut source(seed, *b"v09 "), setup);
    discards(&mut source(seed, *b"trim"), setup);
    integrity(&mut source(seed, *b"hash"), setup);
    counters(&mut source(seed, *b"wrap"), setup);
}

/// What is drawn for one thing only.
pub(crate) fn source(seed: u64, of: [u8; 4]) -> Rng {
    Rng::new(seed ^ u64::from(u32::from_be_bytes(of)))
}

/// v09 metadata, on one node or both, with room for one peer or for many.
fn metadata(rng: &mut Rng, setup: &mut Setup) {
    let slots = [0, 1].map(|_| if rng.chance(1, 2) { *pick(rng, &[1, 2, 7, 31]) } else { 0 });
    setup.volumes.iter_mut().for_each(|volume| volume.slots = slots.to_vec());
}

/// What becomes of discarded sectors, if they can be discarded at all.
pub(crate) fn discards(rng: &mut Rng, setup: &mut Setup) {
    for node in &mut setup.drawn.nodes {
        node.discards = *pick(rng, &[(true, true), (true, false), (false, true)]);
        node.true_to_discards = true;
    }
}

/// `data-integrity-alg`, which older protocols do not have.
pub(crate) fn integrity(rng: &mut Rng, setup: &mut Setup) {
    setup.drawn.integrity = rng.chance(1, 3);
    if setup.drawn.integrity {
        setup.versions.iter_mut().for_each(|version| *version = (*version).max(87));
    }
}

/// Where counters begin: many of them a few steps before they are 0 again, or negative.
pub(crate) fn counters(rng: &mut Rng, setup: &mut Setup) {
    let edge = |rng: &mut Rng| {
        let edge = *pick(rng, &[0, 1 << 31]);
        if rng.chance(1, 2) { 0u32 } else { u32::wrapping_sub(edge, *pick(rng, &[1, 2, 10, 100])) }
    };
    let (sequence, epochs) = (edge(rng), [edge(rng), edge(rng)]);
    for (node, epoch) in setup.drawn.nodes.iter_mut().zip(epochs.into_iter().cycle()) {
        // The activity log is emptied at each attach: few plans fill many rounds of a ring.
        node.counters = Counters { epoch, sequence, log_rounds: *pick(rng, &[0, 1, 1, 2]) };
    }
}
