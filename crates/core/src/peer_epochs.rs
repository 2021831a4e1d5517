//! Epochs of a peer's writes: what a barrier closes, what is flushed for it, and when it is acknowledged
//! (`docs/spec/data-path-and-resync.md` 2.6).

use crate::Resource;
use crate::api::{ConnectionState, DiskOp, IoError};
use crate::device::Device;
use crate::mutant::{Mutant, mutant};
use crate::peer_write::{PeerAction, Told};
use crate::resource::Op;
use units::{NodeId, VolumeNr};
use wire::{BarrierAck, BarrierNr, DpFlags, Packet, Socket};

/// A set of the peer's writes between two barriers.
#[derive(Debug)]
pub(crate) struct PeerEpoch {
    pub(crate) id: u64,
    /// Writes in it, for the barrier ack.
    pub(crate) size: u32,
    /// Of those, not yet on disk and acknowledged.
    pub(crate) active: u32,
    /// The barrier that closed it.
    pub(crate) barrier: Option<BarrierNr>,
    /// Of the active ones, those that the peer may have completed: it does not wait for our word, or has it.
    pub(crate) trusted: u32,
}

impl PeerEpoch {
    fn new(id: u64, barrier: Option<BarrierNr>) -> PeerEpoch {
        PeerEpoch { id, size: 0, active: 0, barrier, trusted: 0 }
    }
}

impl Resource {
    /// When the peer may complete a write with these flags. During a resync it asks for P_WRITE_ACK in any case.
    ///
    /// With protocol B it is told at once that a single write has come, but where there are several at a time it waits
    /// for the disk, as with protocol C: else each write that it completes would make the next one wait until all
    /// before that are on the disk, which then has nothing to do. A disk that is flushed at each barrier gains nothing.
    pub(crate) fn may_complete(&self, i: NodeId, flags: DpFlags) -> Told {
        let c = &self.connections[i];
        let asks = |flag| flags.contains(flag);
        let (received, written) = (asks(DpFlags::SEND_RECEIVE_ACK), asks(DpFlags::SEND_WRITE_ACK));
        let single = || c.last_epoch_size <= 1 && c.epochs.iter().all(|e| e.active == 0);
        let gains = || !single() && !self.devices.values().any(Device::needs_flushes);
        match c.cfg.protocol {
            _ if asks(DpFlags::MAY_SET_IN_SYNC) => Told::Early,
            crate::config::Protocol::C if written => Told::WhenWritten,
            crate::config::Protocol::B if received && !written && gains() => Told::ReceivedWhenWritten,
            _ => Told::Early,
        }
    }

    /// Is a write that the disk's cache would only hold until the next barrier likely to be the only one of its epoch,
    /// as the last epoch had one? To write it durably is one thing to do for the disk, and a flush another (spec 12.4
    /// #6).
    pub(crate) fn is_alone_in_epoch(&self, i: NodeId, d: VolumeNr, action: PeerAction) -> bool {
        let c = &self.connections[i];
        let first = c.epochs.back().is_some_and(|e| e.size == 1);
        first && c.last_epoch_size == 1 && action == PeerAction::Write && self.devices[d].needs_flushes()
    }

    pub(crate) fn join_epoch(&mut self, i: NodeId, told: Told) -> u64 {
        let c = &mut self.connections[i];
        if c.epochs.back().is_none_or(|e| e.barrier.is_some()) {
            c.next_epoch_id += 1;
            c.epochs.push_back(PeerEpoch::new(c.next_epoch_id, None));
        }
        let epoch = c.epochs.back_mut().expect("just made");
        epoch.trusted += u32::from(told == Told::Early);
        epoch.size += 1;
        epoch.active += 1;
        epoch.id
    }

    pub(crate) fn leave_epoch(&mut self, i: NodeId, id: u64, told: Told) {
        if let Some(e) = self.connections[i].epochs.iter_mut().find(|e| e.id == id) {
            e.active -= 1;
            e.trusted -= u32::from(told == Told::Early);
        }
        self.finish_epochs(i);
    }

    pub(crate) fn peer_barrier(&mut self, i: NodeId, barrier: BarrierNr) {
        let c = &mut self.connections[i];
        match c.epochs.back_mut() {
            Some(e) if e.barrier.is_none() => {
                e.barrier = Some(barrier);
                c.last_epoch_size = e.size;
            }
            _ => {
                // No write since the last barrier: an empty epoch, answered as such.
                c.next_epoch_id += 1;
                let id = c.next_epoch_id;
                c.epochs.push_back(PeerEpoch::new(id, Some(barrier)));
            }
        }
        // What follows belongs to a new epoch; its presence is what holds back the stream.
        c.next_epoch_id += 1;
        let id = c.next_epoch_id;
        c.epochs.push_back(PeerEpoch::new(id, None));
        self.finish_epochs(i);
    }

    /// Confirms the oldest epochs that are closed, written, and flushed.
    fn finish_epochs(&mut self, i: NodeId) {
        loop {
            let c = &self.connections[i];
            let Some(first) = c.epochs.front() else { return };
            let Some(barrier) = first.barrier else { return };
            if (first.active > 0 && !mutant(Mutant::BarrierBeforeWrites)) || c.epoch_flushing {
                return;
            }
            if self.start_epoch_flush(i) {
                return;
            }
            self.confirm_epoch(i, barrier);
        }
    }

    fn confirm_epoch(&mut self, i: NodeId, barrier: BarrierNr) {
        let first = self.connections[i].epochs.pop_front().expect("there is one");
        let ack = Packet::BarrierAck(BarrierAck { barrier, set_size: first.size });
        self.send_connection(i, Socket::Control, ack);
    }

    /// Flushes the disks that were written to. False if none needs it (write ordering, `docs/spec/...` 1.11).
    fn start_epoch_flush(&mut self, i: NodeId) -> bool {
        let session = self.connections[i].session;
        let mut flushes = 0;
        for d in self.devices.ids() {
            let dev = &mut self.devices[d];
            // Also a disk that is being given up.
            let wanted = dev.needs_flushes() && !mutant(Mutant::BarrierBeforeFlush);
            let Some(b) = &mut dev.backing else { continue };
            if wanted && b.flushing.is_needed() {
                let mark = b.flushing.mark();
                flushes += 1;
                self.disk(d, Op::EpochFlush { connection: i, device: d, session, mark }, DiskOp::Flush);
            }
        }
        let c = &mut self.connections[i];
        c.epoch_flushes = flushes;
        c.epoch_flushing = flushes > 0;
        flushes > 0
    }

    pub(crate) fn epoch_flush_done(&mut self, i: NodeId, d: VolumeNr, session: u64, result: Result<(), IoError>) {
        if result.is_err() {
            self.flush_error(d);
        }
        let c = &mut self.connections[i];
        if c.session != session {
            return;
        }
        if result.is_err() {
            // What was written since the last flush may be lost: the peer must count it as missing here.
            let text = "writes of the peer cannot be made durable, its disk here is given up".to_owned();
            return self.drop_link(i, ConnectionState::NetworkFailure, "not-durable", text);
        }
        let c = &mut self.connections[i];
        c.epoch_flushes -= 1;
        if c.epoch_flushes > 0 {
            return;
        }
        c.epoch_flushing = false;
        if let Some(barrier) = c.epochs.front().and_then(|e| e.barrier) {
            self.confirm_epoch(i, barrier);
        }
        self.finish_epochs(i);
    }

    /// A disk is let go of without a last flush: what the peer wrote to it, and was told, may be lost.
    pub(crate) fn disown_open_epochs(&mut self, d: VolumeNr) {
        let unsure = self.devices[d].backing.as_ref().is_some_and(|b| b.flushing.is_needed());
        for i in self.connections.ids() {
            if unsure && self.connections[i].epochs.iter().any(|e| e.size > 0) {
                let text = "writes of the peer cannot be made durable, its disk here is given up".to_owned();
                self.drop_link(i, ConnectionState::NetworkFailure, "not-durable", text);
            }
        }
    }
}
