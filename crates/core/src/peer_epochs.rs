//! Epochs of a peer's writes: what a barrier closes, what is flushed for it, and when it is acknowledged
//! (`docs/spec/data-path-and-resync.md` 2.6).
//!
//! Owns [`PeerEpochs`].

use crate::Resource;
use crate::api::{ConnectionState, DiskOp, IoError};
use crate::peer_write::{PeerAction, Told};
use crate::resource::Op;
use std::collections::VecDeque;
use units::{NodeId, VolumeNr};
use wire::{BarrierAck, BarrierNr, Packet, Socket};

/// A set of the peer's writes between two barriers.
#[derive(Debug)]
struct PeerEpoch {
    id: u64,
    /// Writes in it, for the barrier ack.
    size: u32,
    /// Of those, not yet on disk and acknowledged.
    active: u32,
    /// The barrier that closed it.
    barrier: Option<BarrierNr>,
    /// Of the active ones, those that the peer may have completed: it does not wait for our word, or has it.
    trusted: u32,
}

/// The epochs of one peer's writes that are not confirmed, the oldest first.
#[derive(Debug, Default)]
pub(crate) struct PeerEpochs {
    epochs: VecDeque<PeerEpoch>,
    /// Writes in the epoch that was closed last.
    last_size: u32,
    last_id: u64,
    /// Flushes for the oldest one that are still running.
    flushes: u32,
}

impl PeerEpochs {
    fn begin(&mut self, barrier: Option<BarrierNr>) {
        self.last_id += 1;
        self.epochs.push_back(PeerEpoch { id: self.last_id, size: 0, active: 0, barrier, trusted: 0 });
    }

    /// A write has come.
    fn join(&mut self, told: Told) -> u64 {
        if self.epochs.back().is_none_or(|e| e.barrier.is_some()) {
            self.begin(None);
        }
        let epoch = self.epochs.back_mut().expect("just made");
        epoch.trusted += u32::from(told == Told::Early);
        epoch.size += 1;
        epoch.active += 1;
        epoch.id
    }

    /// One is on disk and acknowledged.
    fn leave(&mut self, id: u64, told: Told) {
        if let Some(e) = self.epochs.iter_mut().find(|e| e.id == id) {
            e.active -= 1;
            e.trusted -= u32::from(told == Told::Early);
        }
    }

    /// A barrier has come. What follows belongs to a new epoch; its presence is what holds back the stream.
    fn close(&mut self, barrier: BarrierNr) {
        match self.epochs.back_mut() {
            Some(e) if e.barrier.is_none() => {
                e.barrier = Some(barrier);
                self.last_size = e.size;
            }
            // No write since the last barrier: an empty epoch, answered as such.
            _ => self.begin(Some(barrier)),
        }
        self.begin(None);
    }

    /// Is the oldest one closed, and written, and not being flushed?
    fn is_ready(&self) -> bool {
        let written = |e: &PeerEpoch| e.active == 0;
        self.flushes == 0 && self.epochs.front().is_some_and(|e| e.barrier.is_some() && written(e))
    }

    /// One of its flushes has ended. True: it was the last one.
    fn flush_ended(&mut self) -> bool {
        self.flushes -= 1;
        self.flushes == 0
    }

    /// The oldest one, if it is closed, is on stable storage.
    fn confirm(&mut self) -> Option<BarrierAck> {
        let barrier = self.epochs.front()?.barrier?;
        self.epochs.pop_front().map(|first| BarrierAck { barrier, set_size: first.size })
    }

    /// The link is gone, and nothing of it is answered.
    pub(crate) fn link_lost(&mut self) {
        self.epochs.clear();
        self.flushes = 0;
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.epochs.is_empty()
    }

    /// Is there one that is closed, and not confirmed?
    pub(crate) fn holds_back(&self) -> bool {
        self.epochs.len() > 1
    }

    /// Is a write under way that the peer may have completed?
    pub(crate) fn is_trusted(&self) -> bool {
        self.epochs.iter().any(|e| e.trusted > 0)
    }

    /// Was there no more than one write in the last one, and is none under way?
    pub(crate) fn come_singly(&self) -> bool {
        self.last_size <= 1 && self.epochs.iter().all(|e| e.active == 0)
    }

    /// Is what has just come the first write of its epoch, and the last epoch had one?
    fn begins_like_a_single(&self) -> bool {
        self.last_size == 1 && self.epochs.back().is_some_and(|e| e.size == 1)
    }

    /// Is there a write of which the peer has not been told that it is for good?
    fn has_writes(&self) -> bool {
        self.epochs.iter().any(|e| e.size > 0)
    }
}

impl Resource {
    /// Is a write that the disk's cache would only hold until the next barrier likely to be the only one of its epoch,
    /// as the last epoch had one? To write it durably is one thing to do for the disk, and a flush another (spec 12.4
    /// #6).
    pub(crate) fn is_alone_in_epoch(&self, i: NodeId, d: VolumeNr, action: PeerAction) -> bool {
        let single = self.connections[i].epochs.begins_like_a_single();
        single && action == PeerAction::Write && self.devices[d].needs_flushes()
    }

    pub(crate) fn join_epoch(&mut self, i: NodeId, told: Told) -> u64 {
        self.connections[i].epochs.join(told)
    }

    pub(crate) fn leave_epoch(&mut self, i: NodeId, id: u64, told: Told) {
        self.connections[i].epochs.leave(id, told);
        self.finish_epochs(i);
    }

    pub(crate) fn peer_barrier(&mut self, i: NodeId, barrier: BarrierNr) {
        self.connections[i].epochs.close(barrier);
        self.finish_epochs(i);
    }

    /// Confirms the oldest epochs that are closed, written, and flushed.
    fn finish_epochs(&mut self, i: NodeId) {
        while self.connections[i].epochs.is_ready() && !self.start_epoch_flush(i) {
            self.confirm_epoch(i);
        }
    }

    fn confirm_epoch(&mut self, i: NodeId) {
        if let Some(ack) = self.connections[i].epochs.confirm() {
            self.send_connection(i, Socket::Control, Packet::BarrierAck(ack));
        }
    }

    /// Flushes the disks that were written to. False if none needs it (write ordering, `docs/spec/...` 1.11).
    fn start_epoch_flush(&mut self, i: NodeId) -> bool {
        let session = self.connections[i].session;
        let flush = |device, mark| Op::EpochFlush { connection: i, device, session, mark };
        let flushes = self.flush_all(flush);
        self.connections[i].epochs.flushes = flushes;
        flushes > 0
    }

    /// Flushes the disks whose caches may hold something. Returns how many.
    pub(crate) fn flush_all(&mut self, op: impl Fn(VolumeNr, u64) -> Op) -> u32 {
        let mut flushes = 0;
        for d in self.devices.ids() {
            let dev = &mut self.devices[d];
            // Also a disk that is being given up.
            let wanted = dev.needs_flushes();
            let Some(b) = &mut dev.backing else { continue };
            if wanted && b.flushing.is_needed() {
                let mark = b.flushing.mark();
                flushes += 1;
                self.disk(d, op(d, mark), DiskOp::Flush);
            }
        }
        flushes
    }

    pub(crate) fn epoch_flush_done(&mut self, i: NodeId, d: VolumeNr, session: u64, result: Result<(), IoError>) {
        if result.is_err() {
            self.flush_error(d);
        }
        if self.connections[i].session != session {
            return;
        }
        if result.is_err() {
            // What was written since the last flush may be lost: the peer must count it as missing here.
            let text = "writes of the peer cannot be made durable, its disk here is given up".to_owned();
            return self.drop_link(i, ConnectionState::NetworkFailure, "not-durable", text);
        }
        if self.connections[i].epochs.flush_ended() {
            self.confirm_epoch(i);
            self.finish_epochs(i);
        }
    }

    /// A disk is let go of without a last flush: what the peer wrote to it, and was told, may be lost.
    pub(crate) fn disown_open_epochs(&mut self, d: VolumeNr) {
        let unsure = self.devices[d].backing.as_ref().is_some_and(|b| b.flushing.is_needed());
        for i in self.connections.ids() {
            if unsure && self.connections[i].epochs.has_writes() {
                let text = "writes of the peer cannot be made durable, its disk here is given up".to_owned();
                self.drop_link(i, ConnectionState::NetworkFailure, "not-durable", text);
            }
        }
    }
}
