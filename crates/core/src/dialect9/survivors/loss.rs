//! A Primary that was lost.

use crate::dialect9::mesh::unsettled::LostPrimary;
use units::{Duration, Instant, NodeId};

/// So long a node waits for the other one's word before they connect anew to compare.
pub(in crate::dialect9) const PATIENCE: Duration = Duration::from_secs(2);

/// What two nodes that may both have lost a Primary have told each other of it.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Survivor {
    /// This node's word.
    pub(super) told: Option<LostPrimary>,
    /// The peer's word.
    pub(in crate::dialect9) named: Option<LostPrimary>,
    /// Its word is awaited until then, or what follows from both.
    pub(super) until: Option<Instant>,
    /// When the resync that follows from it is over, this node has as much.
    pub(super) gets: Option<LostPrimary>,
}

/// A peer that was Primary, and was lost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Loss {
    /// There is none, or the others have been told how much of its writes this node has.
    #[default]
    Told,
    /// Some of them are on their way to a disk, perhaps, since then.
    Writing(Instant),
    /// So many disks are still to make them durable, since then.
    Flushing(u32, Instant),
}

impl Loss {
    /// So long others, and what this node's own copy is worth, wait for its word of it.
    pub(super) fn is_owed_until(self) -> Option<Instant> {
        match self {
            Loss::Told => None,
            Loss::Writing(since) | Loss::Flushing(_, since) => Some(since + PATIENCE),
        }
    }
}

impl Survivor {
    /// There is no such peer any more: nothing follows from what was said of its writes.
    pub(crate) fn forget(&mut self, peer: NodeId) {
        for known in [&mut self.told, &mut self.named, &mut self.gets] {
            known.take_if(|lost| lost.node == peer);
        }
    }
}
