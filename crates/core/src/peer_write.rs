//! A peer's writes, from their packets to the end of the disk's work for them (`docs/spec/data-path-and-resync.md` 2).

mod answers;
mod conflicts;
pub(crate) mod held;
mod queue;
pub(crate) mod write;

use crate::Resource;
use crate::al::queue::AlJob;
use crate::api::{DiskOp, IoError, Segments};
use crate::connection::Connection;
use crate::decide::io_error::Failure;
use crate::decide::topic::Topic;
use crate::device::Device;
use crate::latency::Stage;
use crate::node::Node;
use crate::op::Op;
use crate::peer_write::write::{PeerAction, PeerWrite, Told};
use units::{Instant, NodeId, SectorRange, VolumeNr};
use wire::{BlockId, DiskState, DpFlags, Packet};

impl Resource {
    pub(crate) fn peer_data(&mut self, peer: NodeId, volume: VolumeNr, w: &wire::Write, data: Segments) {
        let range = w.range().expect("the decoder checks ranges");
        let action = if range.is_empty() { PeerAction::Flush } else { PeerAction::Write };
        self.peer_write(peer, volume, action, range, (w.block_id, w.flags, w.seq), data);
    }

    pub(crate) fn peer_trim(&mut self, peer: NodeId, volume: VolumeNr, w: &wire::WriteRange) {
        let range = w.range().expect("the decoder checks ranges");
        let plain = self.node.connections[peer].has(wire::Features::WRITE_ZEROES);
        let action = PeerAction::Discard { zeroes: !plain || self.node.devices[volume].zeroes_on_discard() };
        self.peer_write(peer, volume, action, range, (w.block_id, w.flags, w.seq), Segments::None);
    }

    pub(crate) fn peer_zeroes(&mut self, peer: NodeId, volume: VolumeNr, w: &wire::WriteRange) {
        let range = w.range().expect("the decoder checks ranges");
        let action = PeerAction::Zeroes { unmap: w.flags.contains(DpFlags::DISCARD) };
        self.peer_write(peer, volume, action, range, (w.block_id, w.flags, w.seq), Segments::None);
    }

    fn peer_write(
        &mut self,
        peer: NodeId,
        volume: VolumeNr,
        action: PeerAction,
        range: SectorRange,
        (block_id, mut flags, seq): (BlockId, DpFlags, u32),
        data: Segments,
    ) {
        if let Err((reason, text)) = self.may_be_written(peer, volume, range) {
            self.out.release(data);
            return self.out.protocol_error(peer, reason, text);
        }
        let node = &mut self.node;
        let c = &mut node.connections[peer];
        flags |= c.unsaid_flags();
        let pd = &mut c.peer_devices[volume];
        pd.link.io.saw_seq(seq);
        pd.link.io.count_write();
        pd.link.io.received_bytes += data.len();
        let told = c.may_complete(flags, || node.devices.values().any(Device::needs_flushes));
        let epoch = c.epochs.join(told);
        node.devices[volume].note_peers_write();
        if let Some(answer) = self.lost_conflict(peer, volume, action, range, flags) {
            self.out.release(data);
            self.send_ack(peer, volume, answer, range, block_id);
            return self.leave_epoch(peer, epoch, told);
        }
        if !self.usable(volume) {
            self.out.release(data);
            self.refuse_peer_write(peer, volume, range, block_id);
            return self.leave_epoch(peer, epoch, told);
        }
        let early = told == Told::Early;
        if flags.contains(DpFlags::SEND_RECEIVE_ACK) && early {
            self.send_ack(peer, volume, Packet::RecvAck, range, block_id);
        }
        let durable = flags.contains(DpFlags::FUA) || self.is_alone_in_epoch(peer, volume, action);
        let in_mesh = self.node.in_mesh9();
        let node = &mut self.node;
        let c = &mut node.connections[peer];
        c.peer_devices[volume].link.io.unacked += 1;
        let queue = &mut node.devices[volume].queue;
        let write = PeerWrite {
            connection: peer,
            device: volume,
            session: c.session,
            epoch,
            told,
            action,
            range,
            data,
            block_id,
            flags,
            interval: queue.interval_id(),
            position: c.heard_at.filter(|_| in_mesh),
            al_held: false,
            durable,
            came: c.held.came(),
            started: node.now,
            submitted: node.now,
        };
        c.working += write.cost();
        queue.peer_writing.insert(range, write.interval, ());
        let logged = in_mesh && c.speaks9() && !range.is_empty();
        self.overtake_answers(peer, volume, range);
        let key = self.peer_writes.insert(write);
        self.begin_peer_write(peer, volume, (key, range), logged);
    }

    /// Takes a write of the peer up: to the disk, by way of the activity log if the bitmap is ours to keep.
    fn begin_peer_write(&mut self, peer: NodeId, volume: VolumeNr, (key, range): (u64, SectorRange), logged: bool) {
        // A writer without a disk keeps no bitmap: we do (spec 2.3).
        let keeps_bitmap = self.node.state.peer_disk(peer, volume) < DiskState::Inconsistent;
        if keeps_bitmap && !range.is_empty() {
            self.mark_out_of_sync(peer, volume, range);
        }
        if (keeps_bitmap || logged || self.knows_strangers(volume)) && !range.is_empty() {
            self.take_al_for(volume, AlJob::Peer(key, range));
        } else {
            self.peer_write_granted(key, false);
        }
    }

    /// The activity log agrees (or is not needed): to the disk.
    pub(crate) fn peer_write_granted(&mut self, key: u64, al_held: bool) {
        let Some(w) = self.peer_writes.get_mut(key) else { return };
        w.al_held = al_held;
        w.submitted = self.node.now;
        let (volume, sector, len) = (w.device, w.range.start, w.range.len());
        let fua = w.durable;
        let action = match w.action {
            PeerAction::Write => DiskOp::Write { sector, data: w.data.clone(), fua },
            PeerAction::Flush => DiskOp::Flush,
            PeerAction::Discard { zeroes } => DiskOp::Discard { sector, len, zeroes },
            PeerAction::Zeroes { unmap } => DiskOp::WriteZeroes { sector, len, unmap, fua },
        };
        let disk = self.node.state.disk(volume);
        let dev = &mut self.node.devices[volume];
        if !dev.is_usable(disk) {
            return self.peer_write_done(key, Err(IoError::Io));
        }
        dev.stats.written_bytes += len.0;
        self.disk(volume, Op::PeerWrite(key), action);
    }

    pub(crate) fn peer_write_done(&mut self, key: u64, result: Result<(), IoError>) {
        if result.is_err()
            && let Some(w) = self.peer_writes.get_mut(key)
            && matches!(w.action, PeerAction::Discard { .. })
            && self.node.usable(w.device)
        {
            // Both copies must read the same afterwards: what cannot be given back is overwritten.
            w.action = PeerAction::Zeroes { unmap: false };
            let held = w.al_held;
            return self.peer_write_granted(key, held);
        }
        let Some(mut w) = self.peer_writes.remove(key) else { return };
        let (peer, volume) = (w.connection, w.device);
        let c = &mut self.node.connections[peer];
        c.working -= w.cost();
        let here = c.session == w.session && c.link.is_some();
        c.peer_devices[volume].link.io.unacked -= u32::from(here);
        self.node.application_done(volume, w.started, w.range.len());
        let dev = &mut self.node.devices[volume];
        dev.note_peer_write(&w, self.node.now);
        dev.queue.peer_writing.remove(w.range.start, w.interval);
        dev.queue.recheck = true;
        self.out.release(std::mem::take(&mut w.data));
        if let Err(e) = result {
            self.mark_out_of_sync(peer, volume, w.range);
            self.data_error(volume, Failure::Write, "write", w.range, e);
            self.lacks_peers_write(volume);
        }
        if here {
            if result.is_ok() && w.told == Told::ReceivedWhenWritten {
                self.send_ack(peer, volume, Packet::RecvAck, w.range, w.block_id);
            }
            self.final_ack(peer, volume, &w, result.is_ok());
        }
        if w.al_held && !(here && self.node.connections[peer].keeps_in_log(w.position)) {
            self.node.devices[volume].release_al(w.range);
        }
        if here {
            self.leave_epoch(peer, w.epoch, w.told);
        }
    }

    /// The link is gone: nothing of it is answered any more; writes in progress end on their own (spec 2.7).
    pub(crate) fn drop_peer_work(&mut self, peer: NodeId) {
        self.node.connections[peer].held.link_lost().for_each(|payload| self.out.release(payload));
        let c = &mut self.node.connections[peer];
        c.epochs.link_lost();
        for pd in c.peer_devices.values_mut() {
            pd.link.io.unacked = 0;
        }
    }

    /// Is something of a link that has ended still on its way to a disk (spec 2.7)?
    pub(crate) fn peers_work_lingers(&self) -> bool {
        let usable = |volume: VolumeNr| self.usable(volume);
        let over = |w: &PeerWrite| self.node.connections[w.connection].session != w.session;
        self.peer_writes.iter().any(|(_, w)| usable(w.device) && over(w))
            || self.node.devices.ids().any(|volume| usable(volume) && self.abandoned_resync_lingers(volume))
    }
}

impl Device {
    fn note_peer_write(&mut self, w: &PeerWrite, now: Instant) {
        self.stats.latencies.note(Stage::PeerWriteQueue, w.submitted.since(w.came), 1);
        self.stats.latencies.note(Stage::PeerWriteDisk, now.since(w.submitted), 1);
        self.stats.latencies.note(Stage::PeerWriteTotal, now.since(w.came), 1);
    }
}

impl Node {
    /// May the peer write there now? If not: the reason, and what to tell.
    fn may_be_written(&self, peer: NodeId, volume: VolumeNr, range: SectorRange) -> Result<(), (Topic, String)> {
        if !self.devices[volume].holds(range) || !self.state.replicates(peer, volume) {
            let text = format!("write of {range} beyond the device or outside replication");
            return Err((Topic::WriteOutOfPlace, text));
        }
        if self.state.is_primary() && self.state.peers[peer].role() != wire::Role::Primary {
            let text = "a Secondary peer wrote to the data that is in use here".to_owned();
            return Err((Topic::WriteBySecondary, text));
        }
        Ok(())
    }
}

impl Device {
    /// A discard must read the same on all nodes: where the disk promises nothing, zeroes are written (spec 5.3).
    fn zeroes_on_discard(&self) -> bool {
        let reliable = self.backing.as_ref().is_some_and(|b| b.opened.can_discard && b.opened.discard_zeroes);
        !(reliable && self.cfg.as_ref().is_some_and(|c| c.discard_zeroes_if_aligned))
    }
}

impl Connection {
    /// A write that is refused, as nothing is written where it is for, belongs to its epoch all the same.
    pub(crate) fn joins_refused(&mut self) -> (u64, Told) {
        (self.epochs.join(Told::Early), Told::Early)
    }
}
