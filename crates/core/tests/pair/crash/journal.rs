//! What a node did to its disk and its peer, in order: from this every state that a loss of power can leave is made.

use units::{ByteLen, Generation, Rng, Sector};
use urbd_core::{MetaOp, OpId};
use wire::BarrierNr;

/// Something that a crash may undo, or after which it may not.
#[derive(Clone, Debug)]
pub(crate) enum Event {
    /// Metadata are written or read.
    Meta(MetaOp),
    /// The oldest operation on metadata is complete.
    MetaDone,
    /// Data are written to the own disk, in this generation.
    Write { op: OpId, from: Sector, len: ByteLen, generation: Generation },
    /// The data disk is flushed.
    Flush(OpId),
    /// A write of data or a flush is complete.
    DiskDone(OpId),
    /// An application wants to write.
    Request(u64, Sector, ByteLen),
    /// An application's write is complete.
    Complete(u64),
    /// A write leaves for the peer.
    Sent(Sector, ByteLen),
    /// An epoch ends.
    Barrier(BarrierNr),
    /// All of that epoch is durable on the peer.
    BarrierAcked(BarrierNr),
    /// The peer says that it has what a resync brought.
    PeerHas(Sector, ByteLen),
    /// The peer is told so.
    Confirmed(Sector, ByteLen),
    /// The streams are there, or gone.
    Link(bool),
}

/// How long operations take. Those of one kind end in the order in which they began.
#[derive(Default)]
pub(crate) struct Pace {
    rng: Option<Rng>,
}

impl Pace {
    pub(crate) fn random(seed: u64) -> Pace {
        Pace { rng: Some(Rng::new(seed)) }
    }

    /// How many of those that wait end now.
    pub(crate) fn ready(&mut self, waiting: usize) -> usize {
        match &mut self.rng {
            Some(rng) if waiting > 0 => rng.below(waiting as u64 + 2).min(waiting as u64) as usize,
            _ => waiting,
        }
    }
}
