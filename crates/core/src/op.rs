//! What a finished disk operation belongs to.

use crate::peer_write::write::PeerWrite;
use crate::api::{
    BlockRequest, Command, DiskDone, DiskError, DiskOp, Effect, HandlerCall, IoError, LinkDown, LinkUp, MetaDone,
    MetaOp, Notice, OpId, OpenedDisk, Openers, Segments,
};
use crate::command::{Again, Pending, Transaction};
use crate::config::ResourceConfig;
use crate::connection::Connection;
use crate::decide::state::State;
use crate::device::Device;
use crate::dialect9::Positions;
use crate::housekeeping::Chores;
use crate::members::{Peers, Volumes};
use crate::slab::Slab;
use crate::state::Afterwards;
use crate::transfer_log::OwnEpoch;
use std::collections::{BTreeMap, VecDeque};
use units::{Generation, Instant, NodeId, Rng, VolumeNr};
use wire::{Packet, Socket};

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
