//! What the peers know of this node's stream of writes, and this node of theirs.

use std::collections::VecDeque;
use units::{Instant, NodeId, NodeMask};

/// This node's writes, as far as peers have not been told who has them.
#[derive(Debug, Default)]
pub(crate) struct Positions {
    /// Sectors written as Primary.
    pub(super) own: u64,
    /// In ascending order.
    pub(super) open: VecDeque<Open>,
    /// What is to be said next.
    pub(super) due: Option<Due>,
}

/// A write that was sent to peers.
#[derive(Debug)]
pub(super) struct Open {
    pub(super) at: u64,
    pub(super) to: NodeMask,
    /// Who has it, when nothing can change about that any more.
    pub(super) has: Option<NodeMask>,
}

/// Writes up to a position that are all on the same nodes.
#[derive(Debug)]
pub(super) struct Due {
    pub(super) from: u64,
    pub(super) at: u64,
    pub(super) to: NodeMask,
    pub(super) has: NodeMask,
    pub(super) since: Instant,
}

/// A place in a node's stream of writes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Position {
    pub(crate) node: NodeId,
    pub(crate) at: u64,
}

/// A peer's writes.
#[derive(Debug, Default)]
pub(crate) struct Heard {
    /// The position of the last one.
    pub(super) at: u64,
    /// The peer has said where its writes begin.
    pub(super) begun: bool,
}

impl Heard {
    /// The position of the last one, if the peer has said on this link where they begin.
    pub(in crate::dialect9) fn told(&self) -> Option<u64> {
        self.begun.then_some(self.at)
    }
}
