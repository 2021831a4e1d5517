//! What a Primary has still to say of who has the same.

use units::{Instant, SectorRange, VolumeNr};

/// What peers of a Primary may have marked for each other, as one of them was away, and all of them have by now.
#[derive(Debug, Default)]
pub(crate) struct Unsaid {
    /// A peer was connected while this node was Primary.
    pub(super) late: bool,
    /// What is to be said as soon as nobody is being brought up to date.
    pub(super) left: Vec<(VolumeNr, SectorRange)>,
    /// Of what was being written to it is said again, and not before then.
    pub(super) again: Instant,
}

impl Unsaid {
    /// There is no such volume any more.
    pub(crate) fn forget_volume(&mut self, volume: VolumeNr) {
        self.left.retain(|(of, _)| *of != volume);
    }
}
