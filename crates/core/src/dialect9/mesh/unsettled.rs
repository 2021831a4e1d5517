//! Writes of which nobody has said who has them.

use std::collections::VecDeque;
use units::{NodeId, NodeMask, SectorRange, VolumeNr};

/// A write of a peer, of which it has not said who has it. Until then the activity log keeps its extents: after a crash
/// it counts as missing on all other nodes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Unsettled {
    pub(crate) at: u64,
    pub(crate) volume: VolumeNr,
    pub(crate) range: SectorRange,
    pub(crate) log: InLog,
    /// It was on the disk, and marked, when a resync towards these began, or read it: they get it by that, or it
    /// stays marked.
    pub(crate) copied_to: NodeMask,
}

/// Who sees to it that it is known after a crash.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum InLog {
    /// The write, as it is not on the disk yet, or nobody: no log is kept.
    OfWrite,
    /// It holds the extents itself.
    Held,
    /// It has left the log to others that were in need, and is marked instead.
    Left,
}

/// Those of one peer, in the order in which they came.
pub(crate) type AllUnsettled = VecDeque<Unsettled>;

/// The last write of a lost Primary that a node has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct LostPrimary {
    pub(crate) node: NodeId,
    pub(crate) at: u64,
}
