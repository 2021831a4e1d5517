//! What a finished disk operation belongs to.

use units::{Instant, NodeId, VolumeNr};

/// What a finished disk operation belongs to. The first number is the device's index.
#[derive(Debug)]
pub(crate) enum Op {
    LocalWrite(u64),
    LocalRead(u64),
    LocalFlush(u64),
    PeerWrite(u64),
    PeerRead { connection: NodeId, device: VolumeNr, request: wire::BlockRequest, session: u64 },
    ResyncRead { connection: NodeId, device: VolumeNr, key: u64 },
    ResyncWrite { connection: NodeId, device: VolumeNr, key: u64 },
    ResyncDigest { connection: NodeId, device: VolumeNr, key: u64 },
    EpochFlush { connection: NodeId, device: VolumeNr, session: u64, mark: u64 },
    LossFlush { lost: NodeId, device: VolumeNr, since: Instant, mark: u64 },
    AlBlock(VolumeNr),
    BitmapPage(VolumeNr, u64),
    Superblock(VolumeNr),
    Attach(VolumeNr),
    LogReset(VolumeNr),
}

impl Op {
    /// Does its end, if it ended well, concern nobody but reads and writes?
    pub(crate) fn is_routine(&self) -> bool {
        matches!(
            self,
            Op::LocalWrite(_)
                | Op::LocalRead(_)
                | Op::LocalFlush(_)
                | Op::PeerWrite(_)
                | Op::PeerRead { .. }
                | Op::EpochFlush { .. }
        )
    }
}
