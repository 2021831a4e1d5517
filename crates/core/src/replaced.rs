//! Whose copy a command replaces, and how much of it (`docs/spec/connection-and-state.md` 12.7).

use units::NodeId;

/// Whose copy is replaced by another's.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Replaced {
    /// This node's, by that of this peer (`None`: the Primary's, else that of a peer with a good one).
    Own {
        /// Which peer.
        source: Option<NodeId>,
    },
    /// This peer's, by this node's.
    Peer(NodeId),
}

impl Replaced {
    /// The other node that it is about, if one was named.
    pub(crate) fn peer(self) -> Option<NodeId> {
        match self {
            Replaced::Own { source } => source,
            Replaced::Peer(peer) => Some(peer),
        }
    }
}

/// How much of a copy is replaced.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Copied {
    /// Everything.
    All,
    /// What is marked as different (9's dialect).
    Marked,
}
