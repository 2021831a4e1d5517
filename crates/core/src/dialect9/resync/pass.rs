//! The last pass of a resync, and flushes that were asked for.

use units::{NodeId, NodeMask};

/// From this version on a Primary is asked for what it has not announced.
pub(in crate::dialect9) const FLUSHES: u32 = 123;

/// How far a target is that has copied everything.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum LastPass {
    /// Peers only mark what is written meanwhile, and blocks are left, or were just now.
    #[default]
    Ahead,
    /// A Primary was asked to say of all its writes who has them.
    Flushing(Flushing),
    /// What is written is sent, and this Primary has said of all its writes who has them. When nothing is left now the
    /// resync is over.
    Begun(Option<NodeId>),
}

impl LastPass {
    /// Is, or was, this Primary asked?
    pub(in crate::dialect9) fn asks(self, peer: NodeId) -> bool {
        match self {
            LastPass::Ahead => false,
            LastPass::Flushing(asked) => asked.primary == peer,
            LastPass::Begun(primary) => primary == Some(peer),
        }
    }

    /// The link to a peer has ended, and what it was to answer comes no more: it is asked anew when it is back, or has
    /// marked what it does not know to be here.
    pub(crate) fn link_ended(&mut self, peer: NodeId) {
        match self {
            LastPass::Flushing(asked) if asked.primary == peer => *self = LastPass::Ahead,
            LastPass::Flushing(asked) => asked.waits.remove(peer),
            LastPass::Ahead | LastPass::Begun(_) => {}
        }
    }

    /// Who was asked, and is asked for more than this number of flushes?
    pub(crate) fn asks_beyond(self, flushes: impl Fn(NodeId) -> Option<u64>) -> Option<NodeId> {
        let LastPass::Flushing(asked) = self else { return None };
        flushes(asked.primary).filter(|flushes| asked.sequence > *flushes).map(|_| asked.primary)
    }
}

/// What a target waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Flushing {
    /// What it has asked with.
    pub(super) sequence: u64,
    pub(super) primary: NodeId,
    /// Nodes that have not said yet that they were told: the Primary itself, and those with a good copy, which else
    /// would mark what this one has by then.
    pub(super) waits: NodeMask,
}

/// A peer has asked which nodes have this node's writes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FlushAsked {
    pub(super) sequence: u64,
    /// Up to this position.
    pub(super) up_to: u64,
    /// Nodes that have not been told all of that.
    pub(super) untold: NodeMask,
}
