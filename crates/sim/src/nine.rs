//! What no seed below 4,000,000 has, beside what those from 2,000,000 on draw: two nodes that speak DRBD 9's dialect
//! (`docs/spec/wire-protocol.md` 17), at any of its versions, or one of which speaks 8.4's only.
//!
//! Each is drawn from a random source of its own: what another one draws stays as it is.

use crate::further::source;
use crate::plan::{Setup, pick};
use wire::Version;

/// The first seed of the range.
pub(crate) const NINE: u64 = 4_000_000;

/// The oldest version of the dialect.
const OLDEST: u32 = 118;

/// Makes the cluster of this seed have what it draws.
pub(crate) fn draw(seed: u64, setup: &mut Setup) {
    if seed < NINE {
        return;
    }
    let mut rng = source(seed, *b"nine");
    let newest = Version::MAX.number();
    setup.versions.iter_mut().for_each(|version| *version = newest - rng.below(u64::from(newest - OLDEST + 1)) as u32);
    if rng.chance(1, 16) {
        setup.versions[rng.below(2) as usize] = 101;
    }
    // The dialect needs a slot for each node.
    let slots = [0, 1].map(|_| *pick(&mut rng, &[1, 2, 7, 31]));
    setup.volumes.iter_mut().for_each(|volume| volume.slots = slots.to_vec());
}
