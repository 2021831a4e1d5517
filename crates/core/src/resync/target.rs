//! The resync's target: which blocks to ask for, and what to do with the answers.

use super::controller::{BLOCK, Controller};
use crate::Resource;
use crate::api::{DiskOp, Effect, IoError, MAX_DISCARD, OpId, Segments};
use crate::decide::io_error::Failure;
use crate::decide::state::Replication;
use crate::node::Node;
use crate::op::Op;
use crate::peer_device::PeerDevice;
use crate::pings::PingNr;
use crate::resync::session::{Answer, RETRY, Step};
use units::{NodeId, Sector, SectorRange, VolumeNr};
use wire::{BlockAck, BlockData, BlockId, ChecksumRequest, Digest, Features, Packet, Socket};

/// Bits of the largest request, 1 MiB: a fraction of 8.4's extents of 16 MiB, which no request may cross (spec 7.14).
/// None does, as each is aligned to its size.
const MAX_BITS: u64 = 256;
/// Bytes of the largest request that nobody has asked for. What is read is sent, and what has come is written, while
/// a processor's cache still holds it: 5 to 10 % less CPU time on either node than with 1 MiB.
const SERVES: u64 = 256 << 10;

const RECEIVING: &[Replication] = &[Replication::SyncTarget, Replication::PausedSyncT];

impl Resource {
    pub(super) fn request_blocks(&mut self, peer: NodeId, volume: VolumeNr) {
        let now = self.node.now;
        let PeerDevice { resync: rs, link, .. } = &self.node.connections[peer].peer_devices[volume];
        if rs.finishing.is_some()
            || link.stragglers.hold_up()
            || rs.next_pass.is_some_and(|t| t > now)
            || !self.usable(volume)
        {
            return;
        }
        if self.node.devices[volume].generation_in_flight() {
            // The source forgets what we have acknowledged: that it differed must be on our disk before.
            return;
        }
        self.node.connections[peer].peer_devices[volume].resync.next_pass = None;
        let limit = self.largest_request(peer, volume) / BLOCK;
        let largest = match self.node.connections[peer].peer_devices[volume].resync.largest {
            0 => MAX_BITS,
            bits => bits,
        };
        loop {
            let work = self.work(peer, volume);
            let Some(controller) = &mut self.node.connections[peer].peer_devices[volume].resync.controller else {
                return;
            };
            let allowed = (controller.allowance(now, work) / BLOCK).min(limit).min(largest);
            if allowed == 0 {
                return;
            }
            let Some((from, to)) = self.next_run(peer, volume, allowed) else { break };
            let size = self.node.devices[volume].size;
            let range = SectorRange { start: Sector(from * 8), end: Sector((to * 8).min(size.0)) };
            self.node.connections[peer].peer_devices[volume].resync.position = to;
            if !self.resync_must_avoid(peer, volume, range) {
                self.request_block(peer, volume, range);
            }
        }
        // The end of a pass: what is left was in the way of something, or is still on its way.
        let rs = &mut self.node.connections[peer].peer_devices[volume].resync;
        rs.position = 0;
        rs.next_pass = Some(now + RETRY);
        rs.largest = if rs.largest < MAX_BITS / 2 { 2 * rs.largest } else { 0 };
        self.pass_ended9(peer, volume);
    }

    fn request_block(&mut self, peer: NodeId, volume: VolumeNr, range: SectorRange) {
        let csums = self.node.connections[peer].peer_devices[volume].resync.csums;
        let id = self.node.begin_block(peer, volume, range, if csums { Step::Comparing } else { Step::Requested });
        if let Some(controller) = &mut self.node.connections[peer].peer_devices[volume].resync.controller {
            controller.asked(range.len().0);
        }
        if csums {
            self.node.devices[volume].stats.read_bytes += range.len().0;
            let read = DiskOp::ReadNew { sector: range.start, len: range.len(), detect_zeroes: false };
            return self.resync_disk(peer, volume, id, false, read);
        }
        self.ask_for_block(peer, volume, id, range);
    }

    fn ask_for_block(&mut self, peer: NodeId, volume: VolumeNr, id: u64, range: SectorRange) {
        let block_id = self.node.connections[peer].name_of_request(id);
        let request = wire::BlockRequest { sector: range.start, block_id, size: range.len() };
        if self.node.connections[peer].speaks9() {
            let packet = self.request9(peer, volume, request, None);
            return self.send(peer, Socket::Data, volume, packet);
        }
        let thin =
            self.node.connections[peer].has(Features::THIN_RESYNC) && self.node.connections[peer].version() >= 95;
        let packet = if thin { Packet::RsThinReq(request) } else { Packet::RsDataRequest(request) };
        self.send(peer, Socket::Data, volume, packet);
    }

    /// Our own content of a block, for its checksum.
    pub(super) fn own_content_read(
        &mut self,
        peer: NodeId,
        volume: VolumeNr,
        id: u64,
        result: Result<(), IoError>,
        data: Segments,
    ) {
        let Some(block) = self.node.connections[peer].peer_devices[volume].block_mut(id) else {
            return self.out.release(data);
        };
        let range = block.range;
        if let Err(e) = result {
            self.out.release(data);
            self.data_error(volume, Failure::Read, "read for a checksum", range, e);
            // If the disk goes on: what cannot be read is copied, which may mend it.
            let Some(block) = self.node.connections[peer].peer_devices[volume].block_mut(id) else { return };
            block.step = Step::Requested;
            return self.ask_for_block(peer, volume, id, range);
        }
        block.step = Step::Summing(data.clone());
        let algorithm = self.node.connections[peer].peer_devices[volume].resync.algorithm.clone().unwrap_or_default();
        self.digest_block(peer, volume, id, algorithm, data, range.len().0);
    }

    /// Has each `piece` bytes of a block's content digested.
    pub(super) fn digest_block(
        &mut self,
        peer: NodeId,
        volume: VolumeNr,
        id: u64,
        algorithm: String,
        data: Segments,
        piece: u64,
    ) {
        let op = OpId(self.ops.insert(Op::ResyncDigest { connection: peer, device: volume, key: id }));
        self.out.emit(Effect::Digest { op, algorithm, data, piece });
    }

    pub(super) fn own_content_summed(&mut self, peer: NodeId, volume: VolumeNr, id: u64, digest: Digest) {
        let Some(block) = self.node.connections[peer].peer_devices[volume].block_mut(id) else { return };
        let range = block.range;
        if let Step::Summing(data) = std::mem::replace(&mut block.step, Step::Requested) {
            self.out.release(data);
        }
        let block_id = self.node.connections[peer].name_of_request(id);
        let block = wire::BlockRequest { sector: range.start, block_id, size: range.len() };
        if self.node.connections[peer].speaks9() {
            let packet = self.request9(peer, volume, block, Some(digest));
            return self.send(peer, Socket::Data, volume, packet);
        }
        self.send(peer, Socket::Data, volume, Packet::CsumRsRequest(ChecksumRequest { block, digest }));
    }

    pub(crate) fn resync_data(&mut self, peer: NodeId, volume: VolumeNr, reply: &BlockData, data: Segments) {
        let Some(id) = self.find_block(peer, volume, (reply.range(), reply.block_id), |s| matches!(s, Step::Requested))
        else {
            self.out.release(data);
            let text = format!("resync data for {} that was not asked for", reply.sector);
            return self.unwanted_answer(peer, volume, RECEIVING, text);
        };
        self.node.connections[peer].peer_devices[volume].count_answer(data.len());
        if self.drop_if_overtaken(peer, volume, id) {
            return self.out.release(data);
        }
        let pd = &mut self.node.connections[peer].peer_devices[volume];
        pd.link.io.received_bytes += data.len();
        pd.resync.blocks.get_mut(&id).expect("found").step = Step::Arrived(data);
        pd.resync.arrived.push(id);
    }

    /// P_RS_DEALLOCATED: the block is all zeroes at the source.
    pub(crate) fn resync_deallocated(
        &mut self,
        peer: NodeId,
        volume: VolumeNr,
        range: Option<SectorRange>,
        name: BlockId,
    ) {
        let Some(id) = self.find_block(peer, volume, (range, name), |s| matches!(s, Step::Requested)) else {
            let text = format!("resync answer for {range:?} that was not asked for");
            return self.unwanted_answer(peer, volume, RECEIVING, text);
        };
        self.node.connections[peer].peer_devices[volume].count_answer(range.map_or(0, |range| range.len().0));
        if self.drop_if_overtaken(peer, volume, id) {
            return;
        }
        let rs = &mut self.node.connections[peer].peer_devices[volume].resync;
        rs.blocks.get_mut(&id).expect("found").step = Step::Arrived(Segments::None);
        rs.arrived.push(id);
    }

    /// A third node's write is here, which the answer may lack: the block is asked for again.
    fn drop_if_overtaken(&mut self, peer: NodeId, volume: VolumeNr, id: u64) -> bool {
        if self.node.connections[peer].peer_devices[volume].block_mut(id).is_none_or(|block| !block.overtaken.written) {
            return false;
        }
        let block = self.node.take_block(peer, volume, id).expect("just seen");
        let (range, name, named) = (block.range, block.name, self.node.connections[peer].names_requests());
        // A short one is less likely to be overtaken again.
        let resync = &mut self.node.connections[peer].peer_devices[volume].resync;
        resync.largest = (range.len().0 / BLOCK / 4).max(1);
        self.send_ack(peer, volume, if named { Packet::RsNegAck } else { Packet::NegAck }, range, name);
        self.out.release(block.into_data());
        self.node.connections[peer].peer_devices[volume].resync.next_pass = Some(self.node.now + RETRY);
        true
    }

    /// Once a turn: writes what has arrived and is not in the way of an older application write. Neighbours that are
    /// all zeroes at the source are deallocated in one go.
    pub(super) fn write_arrived(&mut self, peer: NodeId, volume: VolumeNr) {
        let mut zeroes: Vec<(SectorRange, u64)> = Vec::new();
        for id in std::mem::take(&mut self.node.connections[peer].peer_devices[volume].resync.arrived) {
            if self.drop_if_overtaken(peer, volume, id) {
                continue;
            }
            let Some(block) = self.node.connections[peer].peer_devices[volume].resync.blocks.get_mut(&id) else {
                continue;
            };
            if self.node.devices[volume].queue.peer_writing.overlaps(block.range) {
                self.node.connections[peer].peer_devices[volume].resync.arrived.push(id);
                continue;
            }
            let range = block.range;
            let Step::Arrived(data) = std::mem::replace(&mut block.step, Step::Requested) else { continue };
            block.step = Step::Writing(data.clone());
            if !self.usable(volume) {
                self.resync_write_done(peer, volume, id, Err(IoError::Io));
            } else if data == Segments::None {
                zeroes.push((range, id));
            } else {
                self.node.devices[volume].stats.written_bytes += data.len();
                let write = DiskOp::Write { sector: range.start, data, fua: false };
                self.resync_disk(peer, volume, id, true, write);
            }
        }
        zeroes.sort_unstable_by_key(|(range, _)| range.start);
        let joins = |a: &(SectorRange, u64), b: &(SectorRange, u64)| {
            // Requests are aligned to their length, so that runs of them meet here.
            a.0.end == b.0.start && a.0.start.0 * 512 / MAX_DISCARD == b.0.start.0 * 512 / MAX_DISCARD
        };
        for run in zeroes.chunk_by(joins) {
            let (Some((first, id)), Some((last, _))) = (run.first(), run.last()) else { continue };
            let len = SectorRange { start: first.start, end: last.end }.len();
            if let Some(block) = self.node.connections[peer].peer_devices[volume].block_mut(*id) {
                block.with = run[1..].iter().map(|(_, id)| *id).collect();
            }
            let discard = DiskOp::Discard { sector: first.start, len, zeroes: true };
            self.resync_disk(peer, volume, *id, true, discard);
        }
    }

    /// The disk operation of a block (and of its neighbours) ended.
    pub(crate) fn resync_write_done(&mut self, peer: NodeId, volume: VolumeNr, id: u64, result: Result<(), IoError>) {
        let with = self.node.connections[peer].peer_devices[volume]
            .block_mut(id)
            .map(|b| std::mem::take(&mut b.with))
            .unwrap_or_default();
        self.block_written(peer, volume, id, result);
        for id in with {
            self.block_written(peer, volume, id, result);
        }
    }

    fn block_written(&mut self, peer: NodeId, volume: VolumeNr, id: u64, result: Result<(), IoError>) {
        let Some(block) = self.node.take_block(peer, volume, id) else { return };
        let (range, since, name, overtaken) = (block.range, block.since, block.name, block.overtaken.clone());
        let abandoned = matches!(block.step, Step::Abandoned(_));
        self.out.release(block.into_data());
        if abandoned {
            if let Err(e) = result {
                self.data_error(volume, Failure::Write, "resync write", range, e);
            }
            return;
        }
        match result {
            Ok(()) => {
                let now = self.node.now;
                if let Some(c) = &mut self.node.connections[peer].peer_devices[volume].resync.controller {
                    c.completed(now, since);
                }
                self.clear_block(peer, volume, range, &overtaken);
                self.send_ack(peer, volume, Packet::RsWriteAck, range, name);
                self.note_in_sync(peer, volume, range);
            }
            Err(e) => {
                self.node.block_failed(peer, volume, range);
                let named = self.node.connections[peer].names_requests();
                self.send_ack(peer, volume, if named { Packet::RsNegAck } else { Packet::NegAck }, range, name);
                self.data_error(volume, Failure::Write, "resync write", range, e);
            }
        }
        self.note_progress(peer, volume);
    }

    /// P_RS_IS_IN_SYNC, P_NEG_RS_DREPLY, P_RS_CANCEL: the request ends without data.
    pub(crate) fn resync_answered(&mut self, peer: NodeId, volume: VolumeNr, ack: &BlockAck, answer: Answer) {
        if self.node.state.replication(peer, volume) == Replication::VerifyS {
            return self.verify_refused(peer, volume, ack);
        }
        let Some(id) = self.find_block(peer, volume, (ack.range(), ack.block_id), |s| matches!(s, Step::Requested))
        else {
            let text = format!("resync answer for {} that was not asked for", ack.sector);
            return self.unwanted_answer(peer, volume, RECEIVING, text);
        };
        self.node.connections[peer].peer_devices[volume].count_answer(ack.size.0);
        let block = self.node.take_block(peer, volume, id).expect("found");
        let now = self.node.now;
        match answer {
            Answer::InSync => {
                let bits = match block.overtaken.written {
                    true => 0,
                    false => self.clear_block(peer, volume, block.range, &block.overtaken),
                };
                let rs = &mut self.node.connections[peer].peer_devices[volume].resync;
                rs.same += bits;
                if let Some(Controller::Adaptive(c)) = &mut rs.controller {
                    c.completed(now, block.since);
                }
            }
            Answer::Failed => self.node.block_failed(peer, volume, block.range),
            Answer::Cancelled => {
                // Not now: the walk comes by again.
                self.node.connections[peer].peer_devices[volume].resync.next_pass = Some(now + RETRY);
            }
        }
        self.note_progress(peer, volume);
    }

    pub(super) fn check_resync_end(&mut self, peer: NodeId, volume: VolumeNr) {
        let rs = &self.node.connections[peer].peer_devices[volume].resync;
        let copied =
            rs.blocks.is_empty() && self.node.devices[volume].bits_left(peer) <= self.bits_failed(peer, volume);
        if rs.finishing.is_some() || !copied || self.end_must_wait(peer, volume) {
            return;
        }
        if !self.last_pass_is_over(peer, volume) {
            return;
        }
        if self.in_mesh9() {
            // Only the source of a resync passes it on to third nodes. This node would have marks towards those.
            self.tell_last_copied(peer, volume);
        }
        // The acknowledgements travel on the other stream: a ping behind them shows that the source has seen them.
        self.node.connections[peer].peer_devices[volume].resync.finishing = self.send_ping(peer);
    }

    /// A ping was answered: whatever was sent on the control stream before it has been seen.
    pub(crate) fn answered_for_resync(&mut self, peer: NodeId) {
        for volume in self.node.devices.ids() {
            let c = &mut self.node.connections[peer];
            let pd = &mut c.peer_devices[volume];
            let answered = |ping: PingNr| c.pings.has_answered(ping);
            pd.link.stragglers.answered(answered);
            if pd.resync.finishing.take_if(|ping| answered(*ping)).is_none() {
                continue;
            }
            let target = self.node.state.replication(peer, volume) == Replication::SyncTarget;
            let copied = self.node.devices[volume].bits_left(peer) <= self.bits_failed(peer, volume);
            if target && copied && !self.end_must_wait(peer, volume) {
                self.resync_finished_as_target(peer, volume);
            }
        }
    }
}

impl Node {
    /// Spec 7.8.
    pub(super) fn wants_checksums(&self, peer: NodeId, volume: VolumeNr) -> bool {
        let c = &self.connections[peer];
        let target = self.state.replication(peer, volume).is_target();
        let occasion = !c.cfg.csums_after_crash_only || self.devices[volume].disk.crashed_primary;
        target && c.cfg.usable_csums().is_some() && c.version() >= 89 && occasion
    }

    /// What the peer takes, what `rs-discard-granularity` allows (spec 5.4), and what serves well, in bytes.
    fn largest_request(&self, peer: NodeId, volume: VolumeNr) -> u64 {
        let most = self.connections[peer].max_data(volume);
        let granule = self.devices[volume].cfg.as_ref().map_or(0, |c| u64::from(c.resync.discard_granularity));
        most.min(if granule == 0 { SERVES } else { granule.max(BLOCK) })
    }

    /// The next run of set bits at or after the position, at most `limit` bits, aligned to their size.
    fn next_run(&self, peer: NodeId, volume: VolumeNr, limit: u64) -> Option<(u64, u64)> {
        let (b, slot) = self.devices[volume].bitmap(peer)?;
        let bits = &b.bitmaps[slot];
        let rs = &self.connections[peer].peer_devices[volume].resync;
        let failed = |bit| rs.failed.as_ref().is_some_and(|f| f.contains(bit));
        let mut from = bits.next_set(rs.position..bits.len())?;
        while failed(from) {
            from = bits.next_set(from + 1..bits.len())?;
        }
        let natural = if from == 0 { MAX_BITS } else { 1 << from.trailing_zeros().min(8) };
        let most = (from + limit.min(natural)).min(bits.len());
        let mut to = bits.next_clear(from..most).unwrap_or(most);
        if let Some(f) = &rs.failed {
            to = f.next_set(from..to).unwrap_or(to);
        }
        Some((from, to))
    }

    /// Has the source of 9's dialect begun this resync, or does it refuse what it is asked before it has? Where no
    /// bitmaps are exchanged, as after a growth, it is still Established then, and may answer: it would begin when all
    /// is over here, and from then on only mark what it writes (spec 11.1, step 3).
    pub(super) fn source_begins(&self, peer: NodeId, volume: VolumeNr) -> bool {
        let says = self.connections[peer].peer_devices[volume].link.told.says;
        !self.connections[peer].speaks9() || says.gives()
    }
}

impl PeerDevice {
    fn count_answer(&mut self, bytes: u64) {
        if let Some(c) = &mut self.resync.controller {
            c.answered(bytes);
        }
    }
}
