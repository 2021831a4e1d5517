//! A place where the copies may differ until a write has been done again.

use units::{NodeId, SectorRange};

/// Blocks that one copy may have of a write that is done again, and another one may lack. From its first end to that of
/// its repetition it keeps the activity-log extents, so that a crash leaves them marked. When the link or the disk goes
/// the blocks are marked: the repetition may come to nothing.
#[derive(Clone, Debug)]
pub(crate) struct Repetition {
    pub(super) range: SectorRange,
    pub(super) al_held: bool,
    pub(super) behind: Behind,
}

/// What a write that is done again is behind.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Behind {
    Nothing,
    /// The other Primary's overlapping write, which may still be on its way: one of so many that this peer has sent
    /// since the link came up.
    Writes {
        peer: NodeId,
        count: u32,
    },
}

impl Repetition {
    /// Is it in the activity log?
    pub(crate) fn al_held(&self) -> bool {
        self.al_held
    }

    /// The disk is gone, and its log with it.
    pub(crate) fn forget_al(&mut self) {
        self.al_held = false;
    }
}
