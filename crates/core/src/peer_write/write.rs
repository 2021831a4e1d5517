//! A peer's write under way here.

use crate::api::Segments;
use units::{Instant, NodeId, SectorRange, VolumeNr};
use wire::{BlockId, DpFlags};

/// A write of a peer from its packet to its acknowledgement.
#[derive(Debug)]
pub(crate) struct PeerWrite {
    pub(crate) connection: NodeId,
    pub(crate) device: VolumeNr,
    pub(crate) session: u64,
    pub(super) epoch: u64,
    pub(super) told: Told,
    pub(super) action: PeerAction,
    pub(super) range: SectorRange,
    pub(super) data: Segments,
    pub(super) block_id: BlockId,
    pub(super) flags: DpFlags,
    pub(super) interval: u64,
    /// In the peer's stream of writes (9).
    pub(super) position: Option<u64>,
    pub(super) al_held: bool,
    /// On stable storage when the disk has it.
    pub(super) durable: bool,
    pub(super) came: Instant,
    /// Taken up.
    pub(super) started: Instant,
    pub(super) submitted: Instant,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum PeerAction {
    Write,
    /// P_DATA without data, as old senders say flush (`docs/spec/wire-protocol.md` 17.10).
    Flush,
    Discard {
        zeroes: bool,
    },
    Zeroes {
        unmap: bool,
    },
}

impl PeerWrite {
    /// Memory that it takes, in bytes.
    pub(crate) fn cost(&self) -> u64 {
        self.data.len() + PACKET_COST
    }

    /// Is it in the activity log?
    pub(crate) fn holds_al(&self) -> bool {
        self.al_held
    }

    /// The disk's activity log is gone.
    pub(crate) fn forget_al(&mut self) {
        self.al_held = false;
    }

    /// Is it on stable storage when the disk has it?
    pub(crate) fn is_durable(&self) -> bool {
        self.durable && self.action == PeerAction::Write
    }
}

/// What a packet of the peer costs while it waits or is worked on, besides its payload.
pub(crate) const PACKET_COST: u64 = 256;

/// When the peer may complete its write, as far as that is up to us.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Told {
    /// When the write is on our disk.
    WhenWritten,
    /// The same, although it only asks whether we have received it: P_RECV_ACK is held back until then.
    ReceivedWhenWritten,
    /// Before: it does not wait for us, or is told at once.
    Early,
}
