//! What a peer asks of our disk: its writes and their acknowledgements (`docs/spec/data-path-and-resync.md` 2).
//!
//! The data stream is processed strictly in order. Where the reference blocks its receiver, the packets behind wait in
//! `Connection::held`; the control stream goes on.

use crate::Resource;
use crate::api::{DiskOp, IoError, Segments};
use crate::connection::Connection;
use crate::device::Device;
use crate::latency::Stage;
use crate::mutant::{Mutant, mutant};
use crate::request::{Local, Request, Write};
use crate::resource::Op;
use crate::rows::hit;
use units::{Instant, NodeId, SectorRange, VolumeNr};
use wire::{BlockAck, BlockId, DiskState, DpFlags, Packet, Socket};

/// A packet of the data stream that waits for what is before it.
#[derive(Debug)]
pub(crate) struct HeldPacket {
    came: Instant,
    volume: VolumeNr,
    packet: Packet,
    payload: Segments,
}

/// A write of a peer from its packet to its acknowledgement.
#[derive(Debug)]
pub(crate) struct PeerWrite {
    pub(crate) connection: NodeId,
    pub(crate) device: VolumeNr,
    pub(crate) session: u64,
    pub(crate) epoch: u64,
    pub(crate) told: Told,
    pub(crate) action: PeerAction,
    pub(crate) range: SectorRange,
    pub(crate) data: Segments,
    pub(crate) block_id: BlockId,
    pub(crate) flags: DpFlags,
    pub(crate) interval: u64,
    /// In the peer's stream of writes (9).
    pub(crate) position: Option<u64>,
    pub(crate) al_held: bool,
    /// On stable storage when the disk has it.
    pub(crate) durable: bool,
    pub(crate) came: Instant,
    /// Taken up.
    pub(crate) started: Instant,
    pub(crate) submitted: Instant,
}

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
    /// Is it on stable storage when the disk has it?
    pub(crate) fn is_durable(&self) -> bool {
        self.durable && self.action == PeerAction::Write
    }
}

/// What a packet of the peer costs while it waits or is worked on, besides its payload.
pub(crate) const PACKET_COST: u64 = 256;

/// The blocks that a write, a discard or zeroes change, and its sequence number; `None` if it changes no data.
fn change_of(packet: &Packet) -> Option<(Option<SectorRange>, u32)> {
    match packet {
        Packet::Data(w) => Some((w.range(), w.seq)),
        Packet::Trim(w) | Packet::Zeroes(w) => Some((w.range(), w.seq)),
        _ => None,
    }
}

/// Does it change data?
fn changes_data(packet: &Packet) -> bool {
    change_of(packet).is_some()
}

impl HeldPacket {
    /// Memory that it takes, in bytes.
    pub(crate) fn cost(&self) -> u64 {
        cost(&self.packet, &self.payload)
    }
}

/// Memory that a held packet takes, in bytes.
fn cost(packet: &Packet, payload: &Segments) -> u64 {
    let inside = match packet {
        Packet::Bitmap(words) => 8 * words.len(),
        Packet::CompressedBitmap(code) => code.code_len(),
        _ => 0,
    };
    payload.len() + inside as u64 + PACKET_COST
}

impl Resource {
    /// A data-stream packet: processed now, or behind those that already wait.
    pub(crate) fn queue_data(&mut self, i: NodeId, volume: VolumeNr, packet: Packet, payload: Segments) {
        let c = &mut self.connections[i];
        c.held_bytes += cost(&packet, &payload);
        c.held.push_back(HeldPacket { came: self.now, volume, packet, payload });
        self.pump_peer(i);
    }

    /// Processes held packets as far as possible.
    pub(crate) fn pump_peer(&mut self, i: NodeId) {
        while self.connections[i].link.is_some() {
            let c = &mut self.connections[i];
            let Some(next) = c.held.pop_front() else { break };
            let blocked = self.blocked_by_epoch(i, &next.packet);
            if !blocked {
                self.begin_generation_for(next.volume, &next.packet);
            }
            if blocked || self.must_wait(i, next.volume, &next.packet) {
                let missing = self.number_is_missing(i, next.volume, &next.packet);
                let c = &mut self.connections[i];
                c.number_missing = missing.then(|| c.number_missing.unwrap_or(self.now));
                c.held.push_front(next);
                break;
            }
            let c = &mut self.connections[i];
            c.number_missing = None;
            c.held_bytes -= next.cost();
            c.packet_came = next.came;
            if let Some(d) = self.device_index(next.volume) {
                self.devices[d].recheck |= changes_data(&next.packet);
            }
            self.data_packet(i, next.volume, next.packet, next.payload);
        }
    }

    /// The first write of a Primary without a disk: from now on this copy is newer than the one it had.
    fn begin_generation_for(&mut self, volume: VolumeNr, packet: &Packet) {
        let Some(d) = self.device_index(volume) else { return };
        if changes_data(packet) && self.devices[d].generation_with_first_write {
            self.new_generation(d);
            self.tell_uuids(d, wire::UuidFlags::NONE);
        }
    }

    /// A closed epoch that is not on stable storage yet holds back all that follows it (spec 2.6, methods flush and
    /// drain).
    ///
    /// But not writes on disks without a volatile cache, if what of an older epoch is not on our disk yet is not
    /// completed by the peer either ([`Told`]): then no later write depends on it.
    fn blocked_by_epoch(&self, i: NodeId, packet: &Packet) -> bool {
        let epochs = &self.connections[i].epochs;
        if epochs.len() <= 1 || mutant(Mutant::PeerWritesOverlap) {
            return false;
        }
        let write = changes_data(packet) || matches!(packet, Packet::Barrier(_));
        if !write {
            // A read must not overtake writes, nor the state before it.
            return !mutant(Mutant::ReadBeforeWrite);
        }
        self.devices.values().any(Device::needs_flushes) || epochs.iter().any(|e| e.trusted > 0)
    }

    /// Packets that need quiet: the range must not be written by something older.
    fn must_wait(&self, i: NodeId, volume: VolumeNr, packet: &Packet) -> bool {
        let Some(d) = self.device_index(volume) else { return false };
        let dev = &self.devices[d];
        let overlaps = |range: Option<SectorRange>| {
            range.is_some_and(|r| dev.peer_writing.overlapping(r).next().is_some() || self.resync_writing(d, r))
        };
        if self.peer_has_enough(i, packet) {
            return true;
        }
        // Data of a generation that is not on disk yet (a Primary without a disk leaves it to us to make one).
        let unsettled = dev.generation_in_flight();
        if let Some((range, seq)) = change_of(packet) {
            let blocked = overlaps(range) && !(matches!(packet, Packet::Data(_)) && mutant(Mutant::PeerWritesOverlap));
            return unsettled || blocked || self.must_wait_for_local(i, d, range, seq);
        }
        match packet {
            // An acknowledged write must be seen by a later read (spec 4.2), and must not clear what this sets (2.9).
            Packet::DataRequest(r) => overlaps(r.range()) && !mutant(Mutant::ReadBeforeWrite),
            Packet::OutOfSync(r) => overlaps(r.range()),
            Packet::Bitmap(_) | Packet::CompressedBitmap(_) => !dev.peer_writing.is_empty(),
            _ => false,
        }
    }

    /// What the peer has us do at once is bounded by `max-buffers`, as in the reference.
    fn peer_has_enough(&self, i: NodeId, packet: &Packet) -> bool {
        let more = match packet {
            Packet::Data(w) => w.size.0,
            Packet::DataRequest(r) => r.size.0,
            Packet::Trim(_) | Packet::Zeroes(_) => 0,
            _ => return false,
        };
        let c = &self.connections[i];
        c.working > 0 && c.working + more + PACKET_COST > u64::from(c.cfg.max_buffers) * 4096
    }

    /// Two Primaries, and this node resolves conflicts: is a number before this write's missing?
    fn number_is_missing(&self, i: NodeId, volume: VolumeNr, packet: &Packet) -> bool {
        let Some((_, seq)) = change_of(packet) else { return false };
        self.device_index(volume).is_some_and(|d| self.resolves_conflicts(i) && self.lacks_number_before(i, d, seq))
    }

    /// That number has not come for too long (`docs/spec/wire-protocol.md` 3.3).
    pub(crate) fn number_is_overdue(&self, i: NodeId) -> bool {
        let c = &self.connections[i];
        let late = c.number_missing.is_some_and(|since| self.now >= since + c.cfg.ping_timeout);
        let late = late && !mutant(Mutant::NumberAwaited);
        late && c.held.front().is_some_and(|next| self.number_is_missing(i, next.volume, &next.packet))
    }

    fn lacks_number_before(&self, i: NodeId, d: VolumeNr, seq: u32) -> bool {
        let seen = self.connections[i].peer_devices[d].peer_seq;
        (seq.wrapping_sub(1).wrapping_sub(seen) as i32) > 0
    }

    /// Two Primaries, and this node resolves conflicts.
    fn resolves_conflicts(&self, i: NodeId) -> bool {
        let c = &self.connections[i];
        c.cfg.two_primaries && self.state.is_primary() && c.resolve_conflicts()
    }

    /// With two Primaries, the node that resolves conflicts first sees all that the peer sent before this write (an
    /// acknowledgement on the other stream may say that one of ours is settled), and lets its own disk have what it
    /// will say is the later write; the other node lets its own write settle
    /// (`docs/spec/data-path-and-resync.md` 3.1, 3.2).
    fn must_wait_for_local(&self, i: NodeId, d: VolumeNr, range: Option<SectorRange>, seq: u32) -> bool {
        let c = &self.connections[i];
        let both = c.cfg.two_primaries && self.state.is_primary();
        if !both || c.resolve_conflicts() {
            // Also what was begun before a demotion, and hangs: the disk may carry out the two in any order.
            let unwritten = |w: &Write| w.local() == Local::Pending && !mutant(Mutant::SupersededEarly);
            let lacks_number = both && self.lacks_number_before(i, d, seq);
            let unwritten = range.is_some_and(|r| self.own_writes(d, r).any(unwritten));
            if both && (lacks_number || unwritten) {
                hit("conflicts", || (if unwritten { "waits: own disk" } else { "waits: number" }).to_owned());
            }
            return lacks_number || unwritten;
        }
        let unsettled = range.is_some_and(|r| self.devices[d].writing.overlapping(r).next().is_some());
        if unsettled {
            hit("conflicts", || "waits: own writes".to_owned());
        }
        unsettled
    }

    /// The other Primary's next write waits until ours to the same blocks are settled here. Ours that have not begun
    /// follow it: else it would wait for as long as there is something to write here.
    pub(crate) fn follows_waiting(&self, d: VolumeNr, range: SectorRange) -> bool {
        let waits = |c: &Connection| {
            if !c.cfg.two_primaries || c.resolve_conflicts() {
                return false;
            }
            let next = c.held.front().filter(|next| next.volume == self.devices[d].volume);
            let theirs = next.and_then(|next| change_of(&next.packet)?.0);
            theirs.is_some_and(|r| r.overlaps(range))
        };
        let follows = self.connections.values().any(waits);
        if follows {
            hit("conflicts", || "waits: the other's".to_owned());
        }
        follows
    }

    /// Own writes to this range that have begun and are not complete.
    fn own_writes(&self, d: VolumeNr, range: SectorRange) -> impl Iterator<Item = &Write> {
        let some = self.devices[d].writing.overlapping(range).next().map(|_| self.requests.iter());
        some.into_iter().flatten().filter_map(move |(_, r)| match r {
            Request::Write(w) if w.device == d && w.is_open() && w.range.overlaps(range) => Some(w),
            _ => None,
        })
    }

    /// A write of the other Primary that overlaps one of ours which is not settled: ours counts as the later one. A
    /// contained write is dropped, any other is to be repeated after ours. One that has not begun follows the peer's.
    /// A durable one is repeated unless ours is durable as well, and any if our own disk has refused ours.
    fn lost_conflict(
        &self,
        i: NodeId,
        d: VolumeNr,
        action: PeerAction,
        range: SectorRange,
        flags: DpFlags,
    ) -> Option<fn(BlockAck) -> Packet> {
        if !self.resolves_conflicts(i) {
            return None;
        }
        // What the peer has answered is older than what it has sent since, and may be waiting for a barrier only.
        // What is frozen is sent again when that ends, on this connection for the first time.
        let kept = |w: &Write| w.legs.is_kept(i) && w.legs.awaits(i) && mutant(Mutant::FrozenInTheWay);
        let open = |w: &Write| w.legs.is_unanswered(i) || kept(w);
        let mut ours = self.own_writes(d, range).filter(|w| open(w)).peekable();
        ours.peek()?;
        let durable = flags.contains(DpFlags::FUA) && !mutant(Mutant::DurableSuperseded);
        let refused = |w: &Write| matches!(w.local(), Local::Failed(_)) && !mutant(Mutant::RefusedSupersedes);
        let contained = ours.any(|w| w.range.contains(range) && (w.fua || !durable) && !refused(w));
        self.note_conflict(d, action, range, contained);
        Some(if contained { Packet::Superseded } else { Packet::RetryWrite })
    }

    /// Counts what was decided, and why.
    fn note_conflict(&self, d: VolumeNr, action: PeerAction, range: SectorRange, superseded: bool) {
        let verdict = if superseded { "superseded" } else { "repeat" };
        hit("conflicts", || {
            let kind = format!("{action:?}");
            format!("{verdict} {}", kind.split(' ').next().unwrap_or_default())
        });
        if superseded {
            return;
        }
        hit("conflicts", || {
            let refused = |w: &Write| matches!(w.local(), Local::Failed(_));
            let why = match self.own_writes(d, range).filter(|w| w.range.contains(range)).map(refused).min() {
                None => "in part",
                Some(false) => "durable",
                Some(true) => "refused",
            };
            format!("repeat: {why}")
        });
    }

    // -- writes ------------------------------------------------------------------------------------------------------

    pub(crate) fn peer_data(&mut self, i: NodeId, d: VolumeNr, w: &wire::Write, data: Segments) {
        let range = w.range().expect("the decoder checks ranges");
        let action = if range.is_empty() { PeerAction::Flush } else { PeerAction::Write };
        self.peer_write(i, d, action, range, (w.block_id, w.flags, w.seq), data);
    }

    pub(crate) fn peer_trim(&mut self, i: NodeId, d: VolumeNr, w: &wire::WriteRange) {
        let range = w.range().expect("the decoder checks ranges");
        let plain = self.connections[i].has(wire::Features::WRITE_ZEROES);
        let action = PeerAction::Discard { zeroes: !plain || self.zeroes_on_discard(d) };
        self.peer_write(i, d, action, range, (w.block_id, w.flags, w.seq), Segments::None);
    }

    pub(crate) fn peer_zeroes(&mut self, i: NodeId, d: VolumeNr, w: &wire::WriteRange) {
        let range = w.range().expect("the decoder checks ranges");
        let action = PeerAction::Zeroes { unmap: w.flags.contains(DpFlags::DISCARD) };
        self.peer_write(i, d, action, range, (w.block_id, w.flags, w.seq), Segments::None);
    }

    /// A discard must read the same on all nodes: where the disk promises nothing, zeroes are written (spec 5.3).
    fn zeroes_on_discard(&self, d: VolumeNr) -> bool {
        let dev = &self.devices[d];
        let reliable = dev.backing.as_ref().is_some_and(|b| b.opened.can_discard && b.opened.discard_zeroes);
        !(reliable && dev.cfg.as_ref().is_some_and(|c| c.discard_zeroes_if_aligned))
    }

    fn peer_write(
        &mut self,
        i: NodeId,
        d: VolumeNr,
        action: PeerAction,
        range: SectorRange,
        (block_id, mut flags, seq): (BlockId, DpFlags, u32),
        data: Segments,
    ) {
        if let Err((reason, text)) = self.may_be_written(i, d, range) {
            self.release(data);
            return self.protocol_error(i, reason, text);
        }
        flags = flags | self.unsaid_flags(i);
        self.saw_seq(i, d, seq);
        self.count_peer_write(i, d);
        let told = self.may_complete(i, flags);
        let epoch = self.join_epoch(i, told);
        self.connections[i].peer_devices[d].received_bytes += range.len().0;
        if let Some(answer) = self.lost_conflict(i, d, action, range, flags) {
            self.release(data);
            self.send_ack(i, d, answer, range, block_id);
            return self.leave_epoch(i, epoch, told);
        }
        if !self.usable(d) {
            self.release(data);
            self.refuse_peer_write(i, d, range, block_id);
            return self.leave_epoch(i, epoch, told);
        }
        let early = told == Told::Early || mutant(Mutant::AckNotHeldBack);
        if flags.contains(DpFlags::SEND_RECEIVE_ACK) && early {
            self.send_ack(i, d, Packet::RecvAck, range, block_id);
        }
        if mutant(Mutant::AckOnReceive) && flags.contains(DpFlags::SEND_WRITE_ACK) {
            self.send_ack(i, d, Packet::WriteAck, range, block_id);
            flags = DpFlags::NONE;
        }
        let interval = self.devices[d].interval_id();
        let durable = flags.contains(DpFlags::FUA) || self.is_alone_in_epoch(i, d, action);
        self.begin_peer_write(PeerWrite {
            connection: i,
            device: d,
            session: self.connections[i].session,
            epoch,
            told,
            action,
            range,
            data,
            block_id,
            flags,
            interval,
            position: self.connections[i].heard_at.filter(|_| self.in_mesh9()),
            al_held: false,
            durable,
            came: self.connections[i].packet_came,
            started: self.now,
            submitted: self.now,
        });
    }

    /// May the peer write there now? If not: the reason, and what to tell.
    fn may_be_written(&self, i: NodeId, d: VolumeNr, range: SectorRange) -> Result<(), (&'static str, String)> {
        if !self.devices[d].holds(range) || !self.state.replicates(i, d) {
            let text = format!("write of {range} beyond the device or outside replication");
            return Err(("write-out-of-place", text));
        }
        if self.state.is_primary() && self.state.peers[i].role() != wire::Role::Primary {
            let text = "a Secondary peer wrote to the data that is in use here".to_owned();
            return Err(("write-by-secondary", text));
        }
        Ok(())
    }

    /// Before protocol 100 a write does not say which answer it wants: the configured protocol does.
    fn unsaid_flags(&self, i: NodeId) -> DpFlags {
        let c = &self.connections[i];
        match c.cfg.protocol {
            _ if c.version() >= 100 => DpFlags::NONE,
            crate::config::Protocol::A => DpFlags::NONE,
            crate::config::Protocol::B => DpFlags::SEND_RECEIVE_ACK,
            crate::config::Protocol::C => DpFlags::SEND_WRITE_ACK,
        }
    }

    /// Takes a write of the peer up: to the disk, by way of the activity log if the bitmap is ours to keep.
    fn begin_peer_write(&mut self, write: PeerWrite) {
        let (i, d, range) = (write.connection, write.device, write.range);
        self.devices[d].peer_writing.insert(range, write.interval, ());
        self.connections[i].peer_devices[d].unacked += 1;
        self.connections[i].working += write.data.len() + PACKET_COST;
        let key = self.peer_writes.insert(write);
        let in_mesh = self.in_mesh9() && self.connections[i].nine().is_some() && !range.is_empty();
        // A writer without a disk keeps no bitmap: we do (spec 2.3).
        let keeps_bitmap =
            self.state.peer_disk(i, d) < DiskState::Inconsistent && !mutant(Mutant::DisklessWithoutBitmap);
        if keeps_bitmap && !range.is_empty() {
            self.mark_out_of_sync(i, d, range);
            self.take_al_for_peer(d, key, range);
        } else if (self.knows_strangers(d) || in_mesh) && !range.is_empty() {
            self.take_al_for_peer(d, key, range);
        } else {
            self.peer_write_granted(key, false);
        }
    }

    /// The activity log agrees (or is not needed): to the disk.
    pub(crate) fn peer_write_granted(&mut self, key: u64, al_held: bool) {
        let Some(w) = self.peer_writes.get_mut(key) else { return };
        w.al_held = al_held;
        w.submitted = self.now;
        let (d, sector, len) = (w.device, w.range.start, w.range.len());
        let fua = w.durable;
        let action = match w.action {
            PeerAction::Write => DiskOp::Write { sector, data: w.data.clone(), fua },
            PeerAction::Flush => DiskOp::Flush,
            PeerAction::Discard { zeroes } => DiskOp::Discard { sector, len, zeroes },
            PeerAction::Zeroes { unmap } => DiskOp::WriteZeroes { sector, len, unmap, fua },
        };
        if !self.usable(d) {
            return self.peer_write_done(key, Err(IoError::Io));
        }
        let dev = &mut self.devices[d];
        dev.written_bytes += len.0;
        self.disk(d, Op::PeerWrite(key), action);
    }

    pub(crate) fn peer_write_done(&mut self, key: u64, result: Result<(), IoError>) {
        let usable = self.peer_writes.get(key).is_some_and(|w| self.usable(w.device));
        if let (Err(_), Some(w)) = (result, self.peer_writes.get_mut(key))
            && matches!(w.action, PeerAction::Discard { .. })
            && usable
        {
            // Both copies must read the same afterwards: what cannot be given back is overwritten.
            w.action = PeerAction::Zeroes { unmap: false };
            let held = w.al_held;
            return self.peer_write_granted(key, held);
        }
        let Some(mut w) = self.peer_writes.remove(key) else { return };
        let (i, d) = (w.connection, w.device);
        self.connections[i].working -= w.data.len() + PACKET_COST;
        self.application_done(d, w.started, w.range.len());
        self.note_peer_write(&w);
        self.devices[d].peer_writing.remove(w.range.start, w.interval);
        self.devices[d].recheck = true;
        self.release(std::mem::take(&mut w.data));
        let here = self.connections[i].session == w.session && self.connections[i].link.is_some();
        if let Err(e) = result {
            self.mark_out_of_sync(i, d, w.range);
            self.data_error(d, "write", w.range, e);
        }
        if here {
            self.connections[i].peer_devices[d].unacked -= 1;
            if result.is_ok() && w.told == Told::ReceivedWhenWritten && !mutant(Mutant::AckNotHeldBack) {
                self.send_ack(i, d, Packet::RecvAck, w.range, w.block_id);
            }
            self.final_ack(i, d, &w, result.is_ok());
        }
        if w.al_held && !(here && self.keeps_in_log(i, w.position)) {
            self.release_al(d, w.range);
        }
        if here {
            self.leave_epoch(i, w.epoch, w.told);
        }
    }

    fn note_peer_write(&mut self, w: &PeerWrite) {
        let latencies = &mut self.devices[w.device].latencies;
        latencies.note(Stage::PeerWriteQueue, w.submitted.since(w.came), 1);
        latencies.note(Stage::PeerWriteDisk, self.now.since(w.submitted), 1);
        latencies.note(Stage::PeerWriteTotal, self.now.since(w.came), 1);
    }

    /// Which answer a finished write gets (`docs/spec/wire-protocol.md` 11.2).
    fn final_ack(&mut self, i: NodeId, d: VolumeNr, w: &PeerWrite, ok: bool) {
        if !ok || self.stands_for_nothing(i, d) {
            return self.refuse_peer_write(i, d, w.range, w.block_id);
        }
        if !w.flags.contains(DpFlags::SEND_WRITE_ACK) {
            return;
        }
        let pair = self.state.pair(i, d);
        let may_clear = w.flags.contains(DpFlags::MAY_SET_IN_SYNC) && pair.disk >= DiskState::Inconsistent;
        if pair.replication.is_working() && may_clear {
            self.clear_out_of_sync(i, d, w.range);
            let named = self.names_requests(i);
            self.send_ack(i, d, if named { Packet::WriteAckInSync } else { Packet::RsWriteAck }, w.range, w.block_id);
        } else {
            self.send_ack(i, d, Packet::WriteAck, w.range, w.block_id);
        }
    }

    fn refuse_peer_write(&mut self, i: NodeId, d: VolumeNr, range: SectorRange, block_id: BlockId) {
        self.connections[i].peer_devices[d].refused_writes = true;
        self.send_ack(i, d, Packet::NegAck, range, block_id);
    }

    pub(crate) fn send_ack(
        &mut self,
        i: NodeId,
        d: VolumeNr,
        packet: fn(BlockAck) -> Packet,
        range: SectorRange,
        block_id: BlockId,
    ) {
        let seq = self.connections[i].peer_devices[d].next_seq();
        let ack = BlockAck { sector: range.start, block_id, size: range.len(), seq };
        self.send(i, Socket::Control, d, packet(ack), Segments::None);
    }

    /// The link is gone: nothing of it is answered any more; writes in progress end on their own (spec 2.7).
    pub(crate) fn drop_peer_work(&mut self, i: NodeId) {
        let held = std::mem::take(&mut self.connections[i].held);
        for packet in held {
            self.release(packet.payload);
        }
        let c = &mut self.connections[i];
        c.held_bytes = 0;
        c.number_missing = None;
        c.epochs.clear();
        c.epoch_flushing = false;
        c.epoch_flushes = 0;
        for pd in c.peer_devices.values_mut() {
            pd.unacked = 0;
        }
    }

    /// Is something of a link that has ended still on its way to a disk (spec 2.7)?
    pub(crate) fn peers_work_lingers(&self) -> bool {
        let usable = |d: VolumeNr| self.usable(d);
        let over = |w: &PeerWrite| self.connections[w.connection].session != w.session;
        self.peer_writes.iter().any(|(_, w)| usable(w.device) && over(w))
            || self.devices.ids().any(|d| usable(d) && self.abandoned_resync_lingers(d))
    }
}
