//! What no seed below 3,000,000 has, beside what those from 2,000,000 on draw: payload that is damaged on its way
//! (`damage.rs`), and two Primaries whose disks and links are unlike, which write to the same places.
//!
//! Each is drawn from a random source of its own: what another one draws stays as it is.

use crate::plan::Setup;
use units::Rng;

/// The first seed of the range.
pub(crate) const UNLIKE: u64 = 3_000_000;

/// Makes the cluster of this seed have what it draws.
pub(crate) fn draw(seed: u64, setup: &mut Setup) {
    if seed < UNLIKE {
        return;
    }
    damage(&mut source(seed, *b"bits"), setup);
}

fn source(seed: u64, of: [u8; 4]) -> Rng {
    Rng::new(seed ^ u64::from(u32::from_be_bytes(of)))
}

/// `data-integrity-alg`, and a network that makes it needed.
fn damage(rng: &mut Rng, setup: &mut Setup) {
    if !setup.drawn.integrity && rng.chance(1, 2) {
        setup.drawn.integrity = true;
        setup.versions = setup.versions.map(|version| version.max(87));
    }
    if setup.drawn.integrity {
        setup.drawn.damage = *pick(rng, &[0, 30, 300, 3000]);
    }
}

fn pick<'a, T>(rng: &mut Rng, choices: &'a [T]) -> &'a T {
    &choices[rng.below(choices.len() as u64) as usize]
}
