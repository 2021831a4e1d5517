//! What a link keeps that speaks 9's dialect.

use crate::dialect9::handshake::attempt::Attempt;
use crate::dialect9::positions::record::Heard;
use crate::dialect9::resync::pass::FlushAsked;
use units::Instant;

/// What a link keeps that speaks 9's dialect.
#[derive(Debug, Default)]
pub(crate) struct Nine {
    /// What the transaction that is to connect the nodes has brought so far.
    pub(crate) attempt: Option<Attempt>,
    /// When the next such transaction begins, if the last one came to nothing.
    pub(crate) again: Option<Instant>,
    /// How often such a transaction came in another one's way.
    pub(crate) collisions: u32,
    /// Why the nodes must not be connected, when this node is the one to say so.
    pub(crate) refused: Option<crate::decide::Reason>,
    /// The position in this node's stream of writes that the peer knows.
    pub(crate) position_told: Option<u64>,
    /// The peer's.
    pub(super) heard: Heard,
    /// How often a Primary was asked which nodes have its writes.
    pub(super) flushes: u64,
    /// The peer has asked that.
    pub(super) flush_asked: Option<FlushAsked>,
}

impl Nine {
    /// How often a Primary was asked, on this link, which nodes have its writes.
    pub(crate) fn flushes(&self) -> u64 {
        self.flushes
    }
}
