//! Epochs of a peer's writes: what a barrier closes, what is flushed for it, and when it is acknowledged
//! (`docs/spec/data-path-and-resync.md` 2.6).
//!
//! Owns [`PeerEpochs`].

use crate::Resource;
use crate::api::{ConnectionState, DiskOp, IoError};
use crate::decide::topic::Topic;
use crate::node::Node;
use crate::op::Op;
use crate::peer_write::write::{PeerAction, Told};
use units::{NodeId, VolumeNr};
use wire::{BarrierNr, Packet, Socket};

impl Resource {
    pub(crate) fn leave_epoch(&mut self, peer: NodeId, id: u64, told: Told) {
        self.node.connections[peer].epochs.leave(id, told);
        self.finish_epochs(peer);
    }

    pub(crate) fn peer_barrier(&mut self, peer: NodeId, barrier: BarrierNr) {
        self.node.connections[peer].epochs.close(barrier);
        self.finish_epochs(peer);
    }

    /// Confirms the oldest epochs that are closed, written, and flushed.
    fn finish_epochs(&mut self, peer: NodeId) {
        while self.node.connections[peer].epochs.is_ready() && !self.start_epoch_flush(peer) {
            self.confirm_epoch(peer);
        }
    }

    fn confirm_epoch(&mut self, peer: NodeId) {
        if let Some(ack) = self.node.connections[peer].epochs.confirm() {
            self.send_connection(peer, Socket::Control, Packet::BarrierAck(ack));
        }
    }

    /// Flushes the disks that were written to. False if none needs it (write ordering, `docs/spec/...` 1.11).
    fn start_epoch_flush(&mut self, peer: NodeId) -> bool {
        let session = self.node.connections[peer].session;
        let flush = |device, mark| Op::EpochFlush { connection: peer, device, session, mark };
        let flushes = self.flush_all(flush);
        self.node.connections[peer].epochs.flushes = flushes;
        flushes > 0
    }

    /// Flushes the disks whose caches may hold something. Returns how many.
    pub(crate) fn flush_all(&mut self, op: impl Fn(VolumeNr, u64) -> Op) -> u32 {
        let mut flushes = 0;
        for volume in self.node.devices.ids() {
            let dev = &mut self.node.devices[volume];
            // Also a disk that is being given up.
            let wanted = dev.needs_flushes();
            let Some(b) = &mut dev.backing else { continue };
            if wanted && b.flushing.is_needed() {
                let mark = b.flushing.mark();
                flushes += 1;
                self.disk(volume, op(volume, mark), DiskOp::Flush);
            }
        }
        flushes
    }

    pub(crate) fn epoch_flush_done(
        &mut self,
        peer: NodeId,
        volume: VolumeNr,
        session: u64,
        result: Result<(), IoError>,
    ) {
        if result.is_err() {
            self.flush_error(volume);
        }
        if self.node.connections[peer].session != session {
            return;
        }
        if result.is_err() {
            // What was written since the last flush may be lost: the peer must count it as missing here.
            let text = "writes of the peer cannot be made durable, its disk here is given up".to_owned();
            return self.out.drop_link(peer, ConnectionState::NetworkFailure, Topic::NotDurable, text);
        }
        if self.node.connections[peer].epochs.flush_ended() {
            self.confirm_epoch(peer);
            self.finish_epochs(peer);
        }
    }

    /// A disk is let go of without a last flush: what the peer wrote to it, and was told, may be lost.
    pub(crate) fn disown_open_epochs(&mut self, volume: VolumeNr) {
        let unsure = self.node.devices[volume].backing.as_ref().is_some_and(|b| b.flushing.is_needed());
        for peer in self.node.connections.ids() {
            if unsure && self.node.connections[peer].epochs.has_writes() {
                let text = "writes of the peer cannot be made durable, its disk here is given up".to_owned();
                self.out.drop_link(peer, ConnectionState::NetworkFailure, Topic::NotDurable, text);
            }
        }
    }
}

impl Node {
    /// Is a write that the disk's cache would only hold until the next barrier likely to be the only one of its epoch,
    /// as the last epoch had one? To write it durably is one thing to do for the disk, and a flush another (spec 12.4
    /// #6).
    pub(crate) fn is_alone_in_epoch(&self, peer: NodeId, volume: VolumeNr, action: PeerAction) -> bool {
        let single = self.connections[peer].epochs.begins_like_a_single();
        single && action == PeerAction::Write && self.devices[volume].needs_flushes()
    }
}
