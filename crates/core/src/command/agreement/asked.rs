//! A request of 8.4's dialect under way.

use crate::command::caller::Caller;
use crate::decide::change::Change;
use crate::decide::view::Refusal;
use units::{Instant, NodeId, VolumeNr};

/// A change that a peer was asked about.
#[derive(Debug)]
pub(crate) struct Agreement {
    /// The command that waits for it.
    pub(crate) command: Caller,
    pub(crate) participant: NodeId,
    /// When it was asked last.
    pub(crate) at: Instant,
    pub(super) change: Change,
    /// The volumes that the participant is asked about, in this order, each with the number of disks that it has had:
    /// the answer is about this one. None: about the connection.
    pub(super) volumes: Vec<(VolumeNr, u64)>,
    /// So many of them were answered with yes.
    pub(super) agreed: usize,
    /// Why it is off, whatever the peer answers: this node has agreed to something else meanwhile.
    pub(super) contradicted: Option<Refusal>,
}
