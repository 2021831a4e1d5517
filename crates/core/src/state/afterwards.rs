//! What follows on a change of the state.

use crate::decide::change::Change;
use units::{NodeId, VolumeNr};

/// What is to follow a change, when all that it has brought with it is carried out.
#[derive(Debug)]
pub(crate) enum Afterwards {
    /// A state of a resync, or on the way to one.
    EnterResync(NodeId, VolumeNr, Change),
    /// The disk is taken away by force: what it has not done counts as failed.
    AbortLocalIo(VolumeNr),
    /// The users of this node see the peer's disk only.
    BeginWithoutDisk(NodeId, VolumeNr),
}

/// A reason for frozen I/O that is over.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Lifted {
    NoData,
    /// This peer is fenced, or back.
    Fencing(NodeId),
    /// All, by the administrator.
    All,
}
