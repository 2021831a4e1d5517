//! The Primary's side of replication: sending writes and read requests, and what the answers mean
//! (`docs/spec/data-path-and-resync.md` 1.5 to 1.9, 1.12).

use crate::Resource;
use crate::api::{ConnectionState, Effect, Segments};
use crate::config::Protocol;
use crate::decide::state::Replication;
use crate::decide::topic::Topic;
use crate::device::{Device, PeersDisk};
use crate::latency::Stage;
use crate::node::Node;
use crate::repetition::place::Behind;
use crate::request::legs::{Acked, Wanted};
use crate::request::read::Tried;
use crate::request::under_way::Request;
use crate::request::write::{Local, Write, WriteKind};
use crate::rows::hit;
use units::{NodeId, NodeMask, SectorRange, VolumeNr};
use wire::{
    BarrierAck, BarrierNr, BlockAck, BlockData, BlockId, BlockRange, DpFlags, Features, Packet, Socket, WriteRange,
};

impl Resource {
    // -- the streams --------------------------------------------------------------------------------------------------

    /// Appends a packet about a volume, or about none, to a stream.
    pub(crate) fn send(&mut self, peer: NodeId, stream: Socket, volume: VolumeNr, packet: Packet) {
        if self.can_send(peer) {
            self.out.emit(Effect::Send { peer, stream, volume, packet, payload: Segments::None });
        }
    }

    /// Appends a packet to the data stream, and its payload.
    pub(crate) fn send_data(&mut self, peer: NodeId, volume: VolumeNr, packet: Packet, payload: Segments) {
        if self.can_send(peer) {
            self.out.emit(Effect::Send { peer, stream: Socket::Data, volume, packet, payload });
        }
    }

    /// Is there a link, which need not end?
    fn can_send(&self, peer: NodeId) -> bool {
        self.node.connections[peer].link.is_some() && !self.out.endings.concern(peer)
    }

    /// Appends a packet about the whole connection.
    pub(crate) fn send_connection(&mut self, peer: NodeId, stream: Socket, packet: Packet) {
        self.send(peer, stream, VolumeNr(0), packet);
    }

    // -- writes -------------------------------------------------------------------------------------------------------

    /// Sends a registered write to a peer and notes what must come back.
    pub(crate) fn send_write(&mut self, peer: NodeId, volume: VolumeNr, key: u64) {
        let Some(Request::Write(w)) = self.requests.get(key) else { return };
        let (range, kind, fua, data) = (w.range, w.kind, w.fua, w.data());
        let (epoch, position, sole) = (w.submitted.epoch, w.submitted.position, w.submitted.sole);
        self.enter_epoch(peer, epoch);
        self.announce_position(peer, position, range.len());
        let c = &mut self.node.connections[peer];
        c.log.sent(key, self.node.now);
        let protocol = if sole { Protocol::C } else { c.cfg.protocol };
        // What nobody else has must survive the peer's loss of power: nothing here could send it again.
        let durable = fua || sole;
        let flags = write_flags(c.version(), protocol, self.node.state.replication(peer, volume), durable);
        // Before protocol 95 a packet cannot say FUA, and a discard never can: durable on the peer is what a barrier
        // covers.
        let zeroes = c.has(Features::WRITE_ZEROES);
        let trim = kind != WriteKind::Data && !zeroes;
        let mut mute = (durable && (c.version() < 95 || trim)) || (sole && kind != WriteKind::Data);
        // Before 100 a packet cannot ask for another answer than the protocol's: with B it comes before the disk has
        // it.
        mute |= sole && c.version() < 100 && c.cfg.protocol == Protocol::B;
        let wanted = match protocol {
            Protocol::A => Wanted::Nothing,
            Protocol::C if mute => Wanted::Barrier,
            Protocol::B | Protocol::C => Wanted::Ack,
        };
        let pd = &mut c.peer_devices[volume];
        let seq = pd.link.io.next_seq();
        pd.link.io.sent_bytes += if kind == WriteKind::Data { range.len().0 } else { 0 };
        pd.link.io.sectors_in_flight += congestion_weight(kind, range);
        pd.link.io.pending += u32::from(wanted != Wanted::Nothing);
        if let Some(Request::Write(w)) = self.requests.get_mut(key) {
            w.legs.sent(peer, wanted);
        }
        let (sector, size, block_id) = (range.start, range.len(), BlockId(key));
        let ranged = |extra: DpFlags| WriteRange { sector, block_id, seq, flags: flags | extra, size };
        let packet = match kind {
            WriteKind::Data => {
                Packet::Data(wire::Write { sector, block_id, seq, flags, digest: wire::Digest::EMPTY, size })
            }
            WriteKind::Discard => Packet::Trim(ranged(DpFlags::DISCARD)),
            WriteKind::Zeroes { unmap } if zeroes => {
                Packet::Zeroes(ranged(if unmap { DpFlags::ZEROES | DpFlags::DISCARD } else { DpFlags::ZEROES }))
            }
            // Without P_ZEROES a P_TRIM must read back as zeroes, which is what is wanted.
            WriteKind::Zeroes { .. } => Packet::Trim(ranged(DpFlags::DISCARD)),
        };
        self.send_data(peer, volume, packet, data);
    }

    /// A barrier between the writes sent last and those of another epoch.
    fn enter_epoch(&mut self, peer: NodeId, epoch: u32) {
        if let Some(old) = self.node.connections[peer].log.enter(epoch, self.node.now) {
            self.send_connection(peer, Socket::Data, Packet::Barrier(BarrierNr(old)));
        }
    }

    /// Sends the barriers of closed epochs that no further write has carried along in time.
    pub(crate) fn send_late_barriers(&mut self) {
        let pressed = |dev: &Device| dev.al_queue.is_starved();
        if self.epoch.barriers_due().is_some_and(|at| at <= self.node.now) || self.node.devices.values().any(pressed) {
            self.send_due_barriers();
        }
    }

    /// Sends the barriers of closed epochs.
    pub(crate) fn send_due_barriers(&mut self) {
        if self.epoch.barriers_done() {
            for peer in self.node.connections.ids() {
                if self.node.connections[peer].log.owes_barrier() {
                    self.enter_epoch(peer, self.epoch.number());
                }
            }
        }
    }

    /// Tells a peer that it lacks a write; only if it was not told before (spec 1.8).
    pub(crate) fn send_out_of_sync(&mut self, peer: NodeId, volume: VolumeNr, key: u64) {
        let Some(Request::Write(w)) = self.requests.get(key) else { return };
        let range = w.range;
        let new = self.mark_out_of_sync(peer, volume, range);
        // Where it is marked already, the peer has been told. A node without a disk marks nothing.
        if new == 0 && self.node.devices[volume].backing.is_some() {
            return;
        }
        self.enter_epoch(peer, self.epoch.number());
        let notice = BlockRange { sector: range.start, size: range.len() };
        self.send(peer, Socket::Data, volume, Packet::OutOfSync(notice));
    }

    // -- answers to writes --------------------------------------------------------------------------------------------

    /// P_RECV_ACK, P_WRITE_ACK, P_RS_WRITE_ACK of an application's write, P_SUPERSEDED.
    pub(crate) fn write_acked(&mut self, peer: NodeId, volume: VolumeNr, ack: &BlockAck, in_sync: bool) {
        let key = ack.block_id.0;
        let Some(Request::Write(w)) = self.requests.get_mut(key) else { return self.unknown_answer(peer, ack) };
        if w.device != volume || w.range.start != ack.sector {
            return self.unknown_answer(peer, ack);
        }
        let ends_wait = match w.legs.acked(peer, in_sync) {
            Acked::Unasked => return self.unknown_answer(peer, ack),
            Acked::TooLate => return,
            Acked::Counts { ends_wait } => ends_wait,
        };
        // Protocols A and B: it was completed before this was known.
        let late = in_sync && w.counts_for_bits();
        let (range, took, n) = (w.range, self.node.now.since(w.submitted.at), w.owners());
        self.node.devices[volume].stats.latencies.note(Stage::WritePeer, took, n);
        if late {
            self.node.devices[volume].clear_out_of_sync(peer, range);
        }
        self.node.connections[peer].peer_devices[volume].link.io.pending -= u32::from(ends_wait);
        self.try_finish(key);
    }

    /// Marked blocks that the target of the resync has confirmed to have: the own disk is not done yet with the writes,
    /// or another peer is not.
    pub(crate) fn bits_confirmed(&self, peer: NodeId, volume: VolumeNr) -> u64 {
        let Some((b, slot)) = self.node.devices[volume].bitmap(peer) else { return 0 };
        let began = self.node.connections[peer].peer_devices[volume].resync.started;
        let confirmed = |w: &&Write| {
            let now = w.legs.is_in_sync(peer) && began.is_some_and(|began| w.submitted.at >= began);
            let open = match w.local() {
                Local::Pending => true,
                Local::Ok => w.is_open() && w.legs.awaits_others(peer),
                Local::None | Local::Failed(_) => false,
            };
            w.device == volume && open && now
        };
        let writes = self.requests.iter().filter_map(|(_, r)| if let Request::Write(w) = r { Some(w) } else { None });
        let bits = |w: &Write| b.bitmaps[slot].count_range(w.range.start.0.div_ceil(8), w.range.end.0 / 8);
        writes.filter(confirmed).map(bits).sum()
    }

    /// A write to these blocks is being submitted, and not sent to these peers: what they say of older ones does not
    /// count for their bits. Who gets it says itself what became of it, after that.
    pub(crate) fn supersede_unconfirmed(&mut self, volume: VolumeNr, range: SectorRange, data_to: NodeMask) {
        for (peer, c) in self.node.connections.iter() {
            if data_to.contains(peer) {
                continue;
            }
            for sent in c.log.unconfirmed() {
                if let Some(Request::Write(w)) = self.requests.get_mut(sent.request)
                    && w.device == volume
                    && w.range.overlaps(range)
                {
                    w.supersede();
                }
            }
        }
    }

    /// P_NEG_ACK of an application's write: the peer does not have it.
    pub(crate) fn write_refused(&mut self, peer: NodeId, volume: VolumeNr, ack: &BlockAck) {
        let key = ack.block_id.0;
        let asked = match self.requests.get(key) {
            Some(Request::Write(w)) if w.device == volume && w.range.start == ack.sector => {
                w.legs.was_asked(peer).map(|accounted| (accounted, w.range, !w.is_open()))
            }
            _ => None,
        };
        let Some((accounted, range, completed)) = asked else {
            // Protocols A and B: it may be finished already.
            if let Some(range) = ack.range() {
                self.mark_out_of_sync(peer, volume, range);
            }
            return self.note_refusal(volume, true);
        };
        if !accounted {
            self.mark_out_of_sync(peer, volume, range);
        }
        self.note_refusal(volume, completed);
        if self.peer_spared_its_disk(peer, volume, key) {
            let text = "the peer refused a write of when its copy was the better one: connecting again";
            return self.out.drop_link(peer, ConnectionState::NetworkFailure, Topic::PeerLacksWrite, text.to_owned());
        }
        if self.is_to_say_why(peer, volume, key) {
            self.node.connections[peer].peer_devices[volume].link.io.refuses.get_or_insert(self.node.now);
        }
        if let Some(Request::Write(w)) = self.requests.get_mut(key) {
            let ends_wait = w.legs.refused(peer);
            self.node.connections[peer].peer_devices[volume].link.io.pending -= u32::from(ends_wait);
        }
        self.try_finish(key);
    }

    /// The peer refused a write that was sent while the disk here had no good data, as a sync target's. The peer's was
    /// the only good copy then, which stays one in spite of an error (`on-io-error pass-on`). By now this copy is good
    /// and has the write: the other one, without it, must not count as good beside it, and the peer may not know.
    fn peer_spared_its_disk(&self, peer: NodeId, volume: VolumeNr, key: u64) -> bool {
        let Some(Request::Write(w)) = self.requests.get(key) else { return false };
        let both_good = self.node.state.disk(volume) == wire::DiskState::UpToDate
            && self.node.state.peer_disk(peer, volume) == wire::DiskState::UpToDate;
        w.submitted.sole && w.is_open() && w.local() != Local::None && both_good
    }

    /// Is a peer's word of its disk, which is bad since, still on its way on the other stream? Until then it counts as
    /// good, and has the generation that this node has.
    fn is_to_say_why(&self, peer: NodeId, volume: VolumeNr, key: u64) -> bool {
        // A discard that fails is marked, and the disk stays good.
        let says = |w: &Write| !w.submitted.sole && w.kind == WriteKind::Data;
        let says = matches!(self.requests.get(key), Some(Request::Write(w)) if says(w));
        let good = self.node.state.worst_disk(peer, volume) == wire::DiskState::UpToDate;
        says && good
            && self.node.connections[peer].speaks9()
            && self.node.state.replication(peer, volume) == Replication::Established
    }

    /// That has come, or does not any more.
    pub(crate) fn heard_why_refused(&mut self, peer: NodeId, volume: VolumeNr) {
        let good = self.node.state.worst_disk(peer, volume) == wire::DiskState::UpToDate;
        if good && self.node.state.replicates(peer, volume) {
            return;
        }
        if self.node.connections[peer].peer_devices[volume].link.io.refuses.take().is_some() {
            self.finish_held();
        }
    }

    /// Are writes on their way to the peer that the disk here did not get?
    pub(crate) fn writes_elsewhere(&self, peer: NodeId, volume: VolumeNr) -> bool {
        let mut sent = self.node.connections[peer].log.unconfirmed().map(|sent| self.requests.get(sent.request));
        let lacked = |local| matches!(local, Local::None | Local::Failed(_));
        sent.any(|r| matches!(r, Some(Request::Write(w)) if w.device == volume && w.is_open() && lacked(w.local())))
    }

    /// The bitmaps are about to be exchanged: what the peer has not confirmed may be missing there, although it is
    /// still connected (its disk is another one by now). The answers travel on the other stream, and may come too late.
    /// So may what is kept frozen for it: I/O thaws when all volumes are connected, which may be after this.
    pub(crate) fn account_for_sent(&mut self, peer: NodeId, volume: VolumeNr) {
        let mut open = Vec::new();
        let c = &self.node.connections[peer];
        let kept = c.log.kept();
        for key in c.log.unconfirmed().map(|sent| sent.request).chain(kept) {
            if let Some(Request::Write(w)) = self.requests.get_mut(key)
                && w.device == volume
            {
                w.legs.account(peer);
                open.push(w.range);
            }
        }
        for range in open {
            self.mark_out_of_sync(peer, volume, range);
        }
    }

    /// The peer has refused a write: as [`Resource::note_missing_on_peer`], now or when the own disk goes.
    fn note_refusal(&mut self, volume: VolumeNr, completed: bool) {
        self.node.note_missing_on_peer(volume, completed);
        let peers = &mut self.node.devices[volume].seen.peers_disk;
        if self.node.state.disk(volume) == wire::DiskState::UpToDate && *peers == PeersDisk::Current {
            *peers = PeersDisk::Refused;
        }
    }

    /// The peer attaches a disk: what it has not confirmed was sent to the one that it had before, and the answers, on
    /// the other stream, may come too late to say what this one lacks.
    pub(crate) fn note_unconfirmed_missing(&mut self, peer: NodeId, volume: VolumeNr) {
        let unsure = self.node.connections[peer].log.unconfirmed().any(|sent| {
            matches!(self.requests.get(sent.request), Some(Request::Write(w))
                if w.device == volume && !w.is_open() && !w.submitted.sole)
        });
        self.node.note_missing_on_peer(volume, unsure);
    }

    /// P_RETRY_WRITE: with two Primaries the peer's write overlaps ours and comes first; ours is done again after it.
    pub(crate) fn write_to_repeat(&mut self, peer: NodeId, volume: VolumeNr, ack: &BlockAck) {
        let key = ack.block_id.0;
        let behind = self.writes_before(peer, volume, ack.seq);
        let asked = match self.requests.get_mut(key) {
            Some(Request::Write(w)) if w.device == volume && w.range.start == ack.sector => {
                w.legs.waits_no_longer(peer)
            }
            _ => false,
        };
        if !asked {
            return self.unknown_answer(peer, ack);
        }
        if let Some(Request::Write(w)) = self.requests.get_mut(key) {
            w.repeat(behind);
        }
        hit("conflicts", || "lost: repeated".to_owned());
        self.node.connections[peer].peer_devices[volume].link.io.pending -= 1;
        self.try_finish(key);
    }

    fn unknown_answer(&mut self, peer: NodeId, ack: &BlockAck) {
        let text = format!("answer to an unknown request (sector {}, id {:#x})", ack.sector, ack.block_id.0);
        self.out.protocol_error(peer, Topic::UnknownAnswer, text);
    }

    /// P_BARRIER_ACK (spec 1.9, strict).
    pub(crate) fn barrier_acked(&mut self, peer: NodeId, ack: &BarrierAck) {
        let epoch = ack.barrier.0;
        let count = match self.node.connections[peer].log.acknowledged(epoch, ack.set_size) {
            Ok(count) => count,
            Err(expected) => {
                let text = format!("barrier ack for epoch {epoch} with {} writes, expected {expected}", ack.set_size);
                return self.out.protocol_error(peer, Topic::BarrierAckMismatch, text);
            }
        };
        for _ in 0..count {
            let key = self.node.connections[peer].log.take_oldest().expect("counted");
            if let Some(Request::Write(w)) = self.requests.get_mut(key) {
                let (volume, weight) = (w.device, congestion_weight(w.kind, w.range));
                let ends_wait = w.legs.confirmed(peer, w.submitted.sole);
                let pd = &mut self.node.connections[peer].peer_devices[volume];
                pd.link.io.sectors_in_flight = pd.link.io.sectors_in_flight.saturating_sub(weight);
                pd.link.io.pending -= u32::from(ends_wait);
                self.node.note_drained(peer, volume);
                self.try_finish(key);
            }
        }
        self.flushes_confirmed(peer, Some(epoch));
    }

    // -- reads from the peer ------------------------------------------------------------------------------------------

    pub(crate) fn send_read_request(&mut self, peer: NodeId, volume: VolumeNr, key: u64, range: SectorRange) {
        self.enter_epoch(peer, self.epoch.number());
        self.node.connections[peer].peer_devices[volume].link.io.pending += 1;
        let request = wire::BlockRequest { sector: range.start, block_id: BlockId(key), size: range.len() };
        self.send(peer, Socket::Data, volume, Packet::DataRequest(request));
    }

    pub(crate) fn read_answered(&mut self, peer: NodeId, volume: VolumeNr, reply: &BlockData, data: Segments) {
        let key = reply.block_id.0;
        let fits = matches!(self.requests.get(key), Some(Request::Read(r))
            if r.device == volume && r.remote == Some(peer) && Some(r.range) == reply.range());
        if !fits {
            self.out.release(data);
            return self.out.protocol_error(
                peer,
                Topic::UnknownAnswer,
                format!("data for an unknown read at {}", reply.sector),
            );
        }
        let Some(Request::Read(r)) = self.requests.remove(key) else { unreachable!("just seen") };
        let pd = &mut self.node.connections[peer].peer_devices[volume];
        pd.link.io.pending -= 1;
        pd.link.io.received_bytes += r.range.len().0;
        self.out.emit(Effect::Deliver { from: data, to: r.data });
        self.end_read(volume, r.tag, (r.came, r.started), Stage::ReadPeer);
    }

    pub(crate) fn read_refused(&mut self, peer: NodeId, volume: VolumeNr, ack: &BlockAck) {
        let key = ack.block_id.0;
        let fits =
            matches!(self.requests.get(key), Some(Request::Read(r)) if r.device == volume && r.remote == Some(peer));
        if !fits {
            return self.unknown_answer(peer, ack);
        }
        let Some(Request::Read(r)) = self.requests.remove(key) else { unreachable!("just seen") };
        self.node.connections[peer].peer_devices[volume].link.io.pending -= 1;
        let mut tried = Tried { times: r.tried.times + 1, ..r.tried };
        tried.refused.insert(peer);
        self.retry_read(tried, r);
    }

    // -- losing the peer ----------------------------------------------------------------------------------------------

    /// Every request that waits for this peer goes on without it, unless I/O is frozen: then B and C writes keep
    /// waiting for it to come back (spec 1.12, 1.13).
    pub(crate) fn requests_lost_peer(&mut self, peer: NodeId) {
        let frozen = self.node.state.is_frozen();
        let fails: Vec<_> = self.node.devices.ids().filter(|volume| self.node.fails_without_quorum(*volume)).collect();
        let waits_for_peer = self.node.connections[peer].cfg.protocol != Protocol::A;
        self.node.devices.ids().for_each(|volume| self.repetitions_lost_peer(peer, volume));
        let log = self.node.connections[peer].log.link_lost();
        for pd in self.node.connections[peer].peer_devices.values_mut() {
            pd.link.io.pending = 0;
            pd.link.io.sectors_in_flight = 0;
            pd.link.io.caught_up = None;
        }
        for sent in log {
            let Some(Request::Write(w)) = self.requests.get(sent.request) else { continue };
            // If it lost its power it may lack this, and the disk here that had it may be gone.
            let (volume, unsure) = (w.device, !w.is_open() && !w.submitted.sole);
            self.node.note_missing_on_peer(volume, unsure);
            let Some(Request::Write(w)) = self.requests.get_mut(sent.request) else { continue };
            // What it had acknowledged needs no second sending when it returns.
            if frozen && w.legs.kept(peer, waits_for_peer) {
                self.node.connections[peer].log.keep(sent.request);
                continue;
            }
            // It is not completed by the loss of the peer that quorum goes with: done again it fails.
            if fails.contains(&volume) && w.legs.awaits(peer) {
                w.repeat(Behind::Nothing);
            }
            self.lost_on_peer(peer, sent.request);
        }
        self.flushes_confirmed(peer, None);
        let reads: Vec<u64> = self
            .requests
            .iter()
            .filter(|(_, r)| matches!(r, Request::Read(r) if r.remote == Some(peer)))
            .map(|(k, _)| k)
            .collect();
        for key in reads {
            if let Some(Request::Read(r)) = self.requests.remove(key) {
                self.retry_read(Tried::default(), r);
            }
        }
    }

    /// Does the transfer log keep writes that the peer, on the connection before, had acknowledged, and no barrier
    /// acknowledgement has confirmed? They are not sent again.
    pub(crate) fn acknowledged_before(&self, peer: NodeId, volume: VolumeNr) -> bool {
        let mut kept = self.node.connections[peer].log.kept().map(|key| self.requests.get(key));
        kept.any(|r| matches!(r, Some(Request::Write(w)) if w.device == volume && !w.legs.awaits(peer)))
    }

    /// A peer that is gone does not count as having a write. Its bits are set at once: bitmaps may be exchanged before
    /// the own disk has answered.
    fn lost_on_peer(&mut self, peer: NodeId, key: u64) {
        let Some(Request::Write(w)) = self.requests.get_mut(key) else { return };
        let accounted = w.legs.lost(peer);
        let (volume, range) = (w.device, w.range);
        // Where no generation begins for it, as I/O was frozen, nothing but the marks tells of it.
        self.node.connections[peer].peer_devices[volume].lasting.write_failed |= !w.is_open();
        if !accounted {
            self.mark_out_of_sync(peer, volume, range);
        }
        self.try_finish(key);
    }

    /// I/O thaws: what was kept while it was frozen, and is not complete, goes again to wherever the state says by now
    /// (spec 1.13).
    pub(crate) fn restart_frozen(&mut self, peer: NodeId) {
        for key in self.node.connections[peer].log.take_kept() {
            let Some(Request::Write(w)) = self.requests.get_mut(key) else { continue };
            w.repeat(Behind::Nothing);
            self.lost_on_peer(peer, key);
        }
    }

    /// I/O goes on without the peer: what was kept for it counts as lost.
    pub(crate) fn give_up_frozen(&mut self, peer: NodeId) {
        for key in self.node.connections[peer].log.take_kept() {
            self.lost_on_peer(peer, key);
        }
    }
}

impl Node {
    /// The peer does not have a write, and if that was completed by the own disk alone (protocols A and B), which is
    /// not there any more, users have seen more than any copy within reach has.
    fn note_missing_on_peer(&mut self, volume: VolumeNr, completed: bool) {
        let bad = self.state.disk(volume) < wire::DiskState::UpToDate;
        if completed && bad {
            self.devices[volume].seen.peers_disk = PeersDisk::Stale;
        }
    }

    /// The own disk goes. What the peer has refused before is on that disk alone, and the peer's word of its own disk,
    /// on the other stream, may not have come yet. The same goes for what was written without a peer: one that has
    /// ended a resync unnoticed has this generation, too.
    pub(crate) fn note_disk_lost(&mut self, volume: VolumeNr, alone: bool) {
        let marked = self.connections.ids().any(|peer| self.devices[volume].bits_left(peer) > 0);
        let dev = &mut self.devices[volume];
        let refused = dev.seen.peers_disk == PeersDisk::Refused;
        if marked && (refused || alone) {
            dev.seen.peers_disk = PeersDisk::Stale;
        } else if refused {
            dev.seen.peers_disk = PeersDisk::Current;
        }
    }
}

impl Node {
    /// What is completed that a peer has refused must not be of a generation in which that one counts as good after a
    /// crash of both: it waits for the peer's word, with which another one begins.
    pub(crate) fn awaits_why_refused(&self, volume: VolumeNr) -> bool {
        self.connections.values().any(|c| c.peer_devices[volume].link.io.refuses.is_some())
    }
}

/// What a write counts for congestion, in sectors (`docs/spec/data-path-and-resync.md` 5.2).
fn congestion_weight(kind: WriteKind, range: SectorRange) -> u64 {
    if kind == WriteKind::Data { range.len().0 / 512 } else { 1 }
}

/// The flags of a data packet (`docs/spec/wire-protocol.md` 3.4, 11.1).
fn write_flags(version: u32, protocol: Protocol, repl: Replication, fua: bool) -> DpFlags {
    let mut flags = DpFlags::NONE;
    if version >= 100 {
        match protocol {
            Protocol::A => {}
            Protocol::B => flags |= DpFlags::SEND_RECEIVE_ACK,
            Protocol::C => flags |= DpFlags::SEND_WRITE_ACK,
        }
    }
    if repl.is_working() {
        flags |= DpFlags::MAY_SET_IN_SYNC;
        if version >= 100 {
            flags |= DpFlags::SEND_WRITE_ACK;
        }
    }
    if fua && version >= 95 {
        flags |= DpFlags::FUA;
    }
    flags
}
