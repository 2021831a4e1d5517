//! What follows on a change of the state.

use crate::decide::change::Change;
use crate::decide::rules::Judged;
use crate::decide::state::State;
use units::{NodeId, VolumeNr};

/// What a change has brought with it, and what follows from that: to be carried out in this order.
#[derive(Debug)]
pub(crate) enum ToSettle {
    /// A change was stored.
    Stored(Box<Stored>),
    /// A state of a resync, or on the way to one.
    EnterResync(NodeId, Change),
    /// The users of this node see the peer's disk only.
    BeginWithoutDisk(NodeId, VolumeNr),
    /// A node without a disk trusts a copy that it did not trust before.
    PeerIsGood(NodeId, VolumeNr),
    /// One that counted as good has been followed by another copy.
    PeerIsBehind(NodeId, VolumeNr),
}

/// A change that was judged and stored.
#[derive(Debug)]
pub(crate) struct Stored {
    pub(super) old: State,
    pub(super) judged: Judged,
}
