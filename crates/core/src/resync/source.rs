//! The resync's source, and the answering side of a verify: reads and answers (spec 7.4, 9.2).

use crate::Resource;
use crate::api::{DiskOp, IoError, Segments};
use crate::decide::io_error::Failure;
use crate::decide::state::Replication;
use crate::decide::topic::Topic;
use crate::device::Device;
use crate::dialect9::positions::record::Position;
use crate::peer_device::PeerDevice;
use crate::resync::controller::{MAX_REQUEST, Serving, SourceBrake};
use crate::resync::session::{Ask, Block, Resync, Step, Want, pieces};
use units::{Instant, NodeId, SectorRange, VolumeNr};
use wire::{BlockAck, BlockData, BlockRange, BlockRequest, Digest, DiskState, Packet, Role, Socket};

/// More requests than any peer may have waiting (8.4's largest `max-buffers`).
const MOST_WAITING: usize = 131_072;

/// Bytes that may be served at the same time, however few buffers are configured.
const LEAST_CAP: u64 = 4 << 20;

const SENDING: &[Replication] = &[Replication::SyncSource, Replication::PausedSyncS];

impl Resync {
    /// Source: must the next request, of so many bytes, wait until others are acknowledged?
    fn is_full(&self, cap: u64, bytes: u64) -> bool {
        (self.in_flight > 0 && self.in_flight + bytes > cap.max(LEAST_CAP)) || self.blocks.len() >= MOST_WAITING
    }

    /// Source: when its brake may permit more. Time alone makes no room for the next request if it is not the brake
    /// that holds it.
    pub(super) fn source_timer(&self, cap: u64) -> Option<Instant> {
        let next = self.waiting.front()?;
        if self.is_full(cap, next.range().len().0) { None } else { self.brake.as_ref().and_then(SourceBrake::wake) }
    }
}

impl Resource {
    /// A resync request of the target, or a verify request.
    pub(crate) fn resync_requested(&mut self, peer: NodeId, volume: VolumeNr, block: BlockRequest, want: Want) {
        self.resync_requested_after(peer, volume, block, want, None);
    }

    /// The same, of what is there when this write of a peer is.
    pub(crate) fn resync_requested_after(
        &mut self,
        peer: NodeId,
        volume: VolumeNr,
        block: BlockRequest,
        want: Want,
        after: Option<Position>,
    ) {
        let ask = Ask { block, want, piece: block.size.0, names: vec![block.block_id], after };
        let range = ask.range();
        if !self.node.devices[volume].holds(range) || range.len().0 > self.node.connections[peer].max_answer() {
            let text = format!("resync request for {range} beyond the device or too long");
            return self.out.protocol_error(peer, Topic::ReadOutOfPlace, text);
        }
        let repl = self.node.state.replication(peer, volume);
        let early = matches!(repl, Replication::WFBitMapS | Replication::StartingSyncS | Replication::Ahead);
        // Asked before the peer knew that it is over (its disk goes). To serve it would have the block's
        // acknowledgement clear what writes have marked since.
        let over = !early && !SENDING.contains(&repl) && ask.want != Want::Verify;
        let name = self.node.connections[peer].name_of_request(ask.block.block_id.0);
        let nine = self.node.connections[peer].speaks9();
        let least = if nine { DiskState::Outdated } else { DiskState::UpToDate };
        let no_disk = self.node.state.disk(volume) < least || self.node.state.disk(volume) == DiskState::DUnknown;
        // In 9's dialect a disk that is gone cannot be read, and a verify skips its blocks.
        let cancels = match nine && no_disk && !early {
            true => ask.want == Want::Verify,
            false => (early || over) && self.node.connections[peer].version() >= 96,
        };
        if cancels {
            return self.send_ack(peer, volume, Packet::RsCancel, range, name);
        }
        if over || no_disk {
            return self.send_ack(peer, volume, Packet::NegRsDreply, range, name);
        }
        if ask.want == Want::Verify {
            self.node.verify_asked(peer, volume, range);
        }
        let now = self.node.now;
        let rs = &mut self.node.connections[peer].peer_devices[volume].resync;
        // A peer that goes on asking is alive, whatever it has not confirmed yet.
        rs.heard = now;
        if rs.waiting.len() >= MOST_WAITING {
            let text = "more resync requests than max-buffers can be".to_owned();
            return self.out.protocol_error(peer, Topic::TooManyRequests, text);
        }
        rs.waiting.push_back(ask);
    }

    /// Once a turn: reads for the requests that wait, as far as applications' writes, memory and the brake permit.
    pub(super) fn serve_waiting(&mut self, peer: NodeId, volume: VolumeNr) {
        let now = self.node.now;
        let peer_primary = self.node.state.peers[peer].role() == Role::Primary;
        let PeerDevice { resync: rs, link, .. } = &self.node.connections[peer].peer_devices[volume];
        if link.stragglers.hold_up() || (rs.waiting.is_empty() && rs.brake.is_none()) {
            return;
        }
        let (cap, busy) = (self.node.connections[peer].resync_cap(), self.node.devices[volume].application_busy());
        let left = self.work(peer, volume).left;
        let serving = |in_service| Serving { in_service, left, peer_primary, busy };
        let rs = &mut self.node.connections[peer].peer_devices[volume].resync;
        let in_service = rs.in_flight;
        rs.brake.iter_mut().for_each(|b| b.see(now, serving(in_service)));
        let mut later = Vec::new();
        while let Some(ask) = self.node.connections[peer].peer_devices[volume].resync.waiting.pop_front() {
            let range = ask.range();
            let rs = &mut self.node.connections[peer].peer_devices[volume].resync;
            let work = serving(rs.in_flight);
            let full = rs.is_full(cap, range.len().0);
            let held = !full && rs.brake.as_mut().is_some_and(|b| !b.permits(now, work, range.len().0));
            if full || held {
                rs.waiting.push_front(ask);
                break;
            }
            if ask.after.is_some_and(|after| !self.hears(after.node)) {
                // Who has that write is gone: it does not come.
                self.send_ack(
                    peer,
                    volume,
                    Packet::RsCancel,
                    range,
                    self.node.connections[peer].name_of_request(ask.block.block_id.0),
                );
                continue;
            }
            if self.is_yet_to_come(ask.after) || self.node.devices[volume].occupied(range) {
                later.push(ask);
                continue;
            }
            let ask = if ask.want == Want::Verify { self.with_neighbours(peer, volume, ask) } else { ask };
            self.serve(peer, volume, ask);
        }
        let rs = &mut self.node.connections[peer].peer_devices[volume].resync;
        later.into_iter().rev().for_each(|ask| rs.waiting.push_front(ask));
    }

    /// Verify requests for one block after the other are read and digested in one go.
    fn with_neighbours(&mut self, peer: NodeId, volume: VolumeNr, first: Ask) -> Ask {
        let mut ask = first;
        while let Some(next) = self.node.connections[peer].peer_devices[volume].resync.waiting.front() {
            let range = next.range();
            let (all, last) = (ask.block.size.0 + next.block.size.0, next.block.size.0);
            let fits = next.want == Want::Verify && range.start == ask.range().end && all <= MAX_REQUEST;
            // A shorter one can only be the last: the pieces are told apart by their length.
            let busy = self.node.devices[volume].occupied(range) || self.is_yet_to_come(next.after);
            if !fits || last > ask.piece || !ask.block.size.0.is_multiple_of(ask.piece) || busy {
                break;
            }
            ask.block.size.0 = all;
            let next = self.node.connections[peer].peer_devices[volume].resync.waiting.pop_front();
            ask.names.extend(next.into_iter().flat_map(|next| next.names));
        }
        ask
    }

    fn serve(&mut self, peer: NodeId, volume: VolumeNr, ask: Ask) {
        let (range, detect_zeroes) = (ask.range(), ask.want == Want::Thin);
        if ask.want != Want::Verify {
            self.copies_unsettled(peer, volume, range);
        }
        let id = self.node.begin_block(peer, volume, range, Step::Reading(ask));
        if let Some(b) = &mut self.node.connections[peer].peer_devices[volume].resync.brake {
            b.serving(range.len().0);
        }
        self.node.devices[volume].stats.read_bytes += range.len().0;
        let read = DiskOp::ReadNew { sector: range.start, len: range.len(), detect_zeroes };
        self.resync_disk(peer, volume, id, false, read);
    }

    /// A block that a resync or verify reads is here.
    pub(crate) fn resync_read_done(
        &mut self,
        peer: NodeId,
        volume: VolumeNr,
        id: u64,
        result: Result<(), IoError>,
        (data, zeroes): (Segments, bool),
    ) {
        let Some(block) = self.node.connections[peer].peer_devices[volume].block_mut(id) else {
            return self.out.release(data);
        };
        let ask = match &block.step {
            Step::Reading(ask) => ask.clone(),
            Step::Comparing => return self.own_content_read(peer, volume, id, result, data),
            Step::Checking(_) => return self.verify_read_done(peer, volume, id, result, data),
            _ => return self.out.release(data),
        };
        if let Err(e) = result {
            self.out.release(data);
            return self.read_for_peer_failed(peer, volume, id, e);
        }
        let algorithm = match ask.want {
            Want::Unless(_) | Want::Verify => self.node.connections[peer].peer_devices[volume].resync.algorithm.clone(),
            Want::Data | Want::Thin => None,
        };
        match algorithm {
            Some(algorithm) => {
                let block = self.node.connections[peer].peer_devices[volume].block_mut(id).expect("just seen");
                let piece = ask.piece;
                block.step = Step::Digesting(ask, data.clone());
                self.digest_block(peer, volume, id, algorithm, data, piece);
            }
            None if ask.want == Want::Verify => {
                self.out.release(data);
                self.node.take_block(peer, volume, id);
                self.refuse_digests(peer, volume, &ask);
            }
            None if zeroes && ask.want == Want::Thin => {
                self.out.release(data);
                self.node.connections[peer].peer_devices[volume].block_mut(id).expect("just seen").step = Step::Freed;
                let rs = &mut self.node.connections[peer].peer_devices[volume].resync;
                rs.in_flight = rs.in_flight.saturating_sub(ask.block.size.0);
                let BlockRequest { sector, size, block_id } = ask.block;
                let packet = if self.node.connections[peer].names_requests() {
                    Packet::RsDeallocatedId(BlockAck { sector, block_id, size, seq: 0 })
                } else {
                    Packet::RsDeallocated(BlockRange { sector, size })
                };
                self.send(peer, Socket::Data, volume, packet);
            }
            // Without csums-alg here the digests count as different (`docs/spec/wire-protocol.md` 5.7).
            None => self.send_block(peer, volume, id, data),
        }
    }

    fn read_for_peer_failed(&mut self, peer: NodeId, volume: VolumeNr, id: u64, e: IoError) {
        let block = self.node.take_block(peer, volume, id).expect("being read");
        let range = block.range;
        match block.step {
            Step::Reading(ask) if ask.want == Want::Verify => self.refuse_digests(peer, volume, &ask),
            _ => {
                self.node.block_failed(peer, volume, range);
                self.send_ack(peer, volume, Packet::NegRsDreply, range, block.name);
            }
        }
        self.data_error(volume, Failure::Read, "resync read", range, e);
    }

    /// What a verify asks for cannot be said.
    fn refuse_digests(&mut self, peer: NodeId, volume: VolumeNr, ask: &Ask) {
        let packet = if self.node.connections[peer].speaks9() { Packet::RsCancel } else { Packet::NegRsDreply };
        for (range, name) in pieces(ask.range(), ask.piece).zip(&ask.names) {
            self.send_ack(peer, volume, packet, range, self.node.connections[peer].name_of_request(name.0));
        }
    }

    fn send_block(&mut self, peer: NodeId, volume: VolumeNr, id: u64, data: Segments) {
        let block = self.node.connections[peer].peer_devices[volume].block_mut(id).expect("being served");
        block.step = Step::Sent;
        let (range, name) = (block.range, block.name);
        let reply = BlockData { sector: range.start, block_id: name, digest: Digest::EMPTY, size: range.len() };
        self.node.connections[peer].peer_devices[volume].link.io.sent_bytes += range.len().0;
        self.send_data(peer, volume, Packet::RsDataReply(reply), data.clone());
        self.out.release(data);
    }

    /// The digests of any block are here.
    pub(crate) fn resync_digested(&mut self, peer: NodeId, volume: VolumeNr, id: u64, digests: &[Digest]) {
        let Some(block) = self.node.connections[peer].peer_devices[volume].block_mut(id) else { return };
        let digest = digests.first().cloned().unwrap_or(Digest::EMPTY);
        match std::mem::replace(&mut block.step, Step::Sent) {
            Step::Summing(data) => {
                block.step = Step::Summing(data);
                self.own_content_summed(peer, volume, id, digest);
            }
            Step::CheckSumming(chunk, data) => {
                self.out.release(data);
                self.verify_compared(peer, volume, id, &chunk, digests);
            }
            Step::Digesting(ask, data) if ask.want == Want::Verify => {
                block.step = Step::ResultsAwaited(ask.block.size.0);
                self.out.release(data);
                for ((range, digest), name) in pieces(ask.range(), ask.piece).zip(digests).zip(&ask.names) {
                    let block_id = self.node.connections[peer].name_of_request(name.0);
                    let block = BlockRequest { sector: range.start, block_id, size: range.len() };
                    let reply = self.verify_reply(peer, block, digest.clone());
                    self.send(peer, Socket::Data, volume, reply);
                }
            }
            Step::Digesting(ask, data) if ask.want == Want::Unless(digest) => {
                self.out.release(data);
                let Block { range, name, overtaken, .. } = self.node.take_block(peer, volume, id).expect("just seen");
                let bits = self.clear_block(peer, volume, range, &overtaken);
                let rs = &mut self.node.connections[peer].peer_devices[volume].resync;
                rs.same += bits;
                rs.known |= bits > 0;
                self.send_ack(peer, volume, Packet::RsIsInSync, range, name);
                self.note_progress(peer, volume);
            }
            Step::Digesting(_, data) => self.send_block(peer, volume, id, data),
            other => self.node.connections[peer].peer_devices[volume].block_mut(id).expect("just seen").step = other,
        }
    }

    /// The target wrote (or failed to write) a block.
    pub(crate) fn resync_acked(&mut self, peer: NodeId, volume: VolumeNr, ack: &BlockAck, ok: bool) {
        let Some(id) =
            self.find_block(peer, volume, (ack.range(), ack.block_id), |s| matches!(s, Step::Sent | Step::Freed))
        else {
            let text = format!("resync acknowledgement for {} that was not sent", ack.sector);
            return self.unwanted_answer(peer, volume, SENDING, text);
        };
        let Block { range, since, overtaken, .. } = self.node.take_block(peer, volume, id).expect("found");
        let now = self.node.now;
        if let Some(b) = &mut self.node.connections[peer].peer_devices[volume].resync.brake {
            b.acknowledged(now, since);
        }
        if ok {
            let bits = self.clear_block(peer, volume, range, &overtaken);
            self.node.connections[peer].peer_devices[volume].resync.known |= bits > 0;
        } else {
            self.node.block_failed(peer, volume, range);
        }
        self.note_progress(peer, volume);
    }
}

impl Device {
    /// Something unfinished lies on these blocks.
    fn occupied(&self, range: SectorRange) -> bool {
        self.queue.writing.overlaps(range)
            || self.queue.peer_writing.overlaps(range)
            || self.queue.resyncing.overlaps(range)
    }
}
