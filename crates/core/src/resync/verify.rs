//! Online verify, both sides (`docs/spec/data-path-and-resync.md` 9, `docs/spec/wire-protocol.md` 5.9).
//!
//! Both sides hold an interval on a block from before the first read until the result, so that both read the same
//! moment: writes of applications wait, and writes of the peer that came before its digest are on disk before ours is
//! taken. No block is skipped because it was written to.

pub(crate) mod run;

use super::controller::{BLOCK, Controller, MAX_REQUEST};
use crate::Resource;
use crate::api::{CommandError, DiskOp, IoError, Segments, Severity, failure};
use crate::command::disks::KEEPS_BITMAP;
use crate::decide::Handler;
use crate::decide::change::Set;
use crate::decide::io_error::Failure;
use crate::decide::state::Replication;
use crate::decide::topic::Topic;
use crate::device::Device;
use crate::node::Node;
use crate::peer_device::PeerDevice;
use crate::resync::marks::Marks;
use crate::resync::session::{Resync, Step, pieces};
use crate::resync::verify::run::{Chunk, Side, Verify, VerifyRange, name_of_piece};
use std::collections::VecDeque;
use units::{Duration, NodeId, Sector, SectorRange, VolumeNr};
use wire::{BlockAck, BlockRequest, Digest, Packet, Socket, VerifyOutcome, VerifyReply, VerifyResult};

/// A block that is busy is tried again after this time, and so often, then it is skipped.
const BUSY: Duration = Duration::from_millis(20);
const TRIES: u32 = 500;
/// Blocks of 4 KiB that one P_OUT_OF_SYNC names at most: 4 MiB.
const LONGEST_RUN: u64 = 1024;

impl Resource {
    /// VerifyS or VerifyT begins.
    pub(crate) fn start_verify(&mut self, peer: NodeId, volume: VolumeNr) {
        let bits = self.node.devices[volume].size.0.div_ceil(8);
        let (cfg, cap, now) =
            (self.node.devices[volume].resync_config(), self.node.connections[peer].resync_cap(), self.node.now);
        let algorithm = self.node.connections[peer].cfg.usable_verify().cloned();
        let pd = &mut self.node.connections[peer].peer_devices[volume];
        let source = self.node.state.replication(peer, volume) == Replication::VerifyS;
        let wish = if source { std::mem::take(&mut pd.resync.wish) } else { VerifyRange::default() };
        let start = match (source, wish.start) {
            (true, Some(s)) => (s.0 / 8).min(bits),
            (true, None) => pd.lasting.verify_from.min(bits),
            (false, _) => 0,
        };
        let end = wish.stop.map_or(bits, |s| s.0.div_ceil(8)).clamp(start, bits);
        let verify = Verify {
            side: if source { Side::Asks } else { Side::Waits },
            position: start,
            end,
            left: end - start,
            found: 0,
            skipped: 0,
            repair: wish.repair,
            later: VecDeque::new(),
        };
        pd.resync = Resync {
            total: verify.left,
            started: Some(now),
            controller: source.then(|| Controller::new(&cfg, cap, now)),
            marks: Marks::new(now, verify.left),
            blocks: std::mem::take(&mut pd.resync.blocks),
            verify: Some(verify),
            algorithm,
            ..Resync::default()
        };
        self.settle_answers(peer, volume);
        let role = if source { "asking" } else { "answering" };
        let text = format!("online verify ({role}) from sector {} to {}", start * 8, end * 8);
        self.out.note(Severity::Info, Some(volume), Some(peer), Topic::VerifyStart, text);
    }

    // -- the asking side ----------------------------------------------------------------------------------------------

    pub(super) fn pump_verify_source(&mut self, peer: NodeId, volume: VolumeNr) {
        self.check_blocks(peer, volume);
        let now = self.node.now;
        let PeerDevice { resync: rs, link, .. } = &mut self.node.connections[peer].peer_devices[volume];
        if link.stragglers.hold_up() {
            return;
        }
        let patient = rs.next_pass.is_some_and(|t| t > now);
        if !patient {
            rs.next_pass = None;
        }
        loop {
            let work = self.work(peer, volume);
            let rs = &mut self.node.connections[peer].peer_devices[volume].resync;
            let (Some(controller), Some(v)) = (&mut rs.controller, &mut rs.verify) else { return };
            let allowed = controller.allowance(now, work).min(MAX_REQUEST) / BLOCK;
            if (v.position >= v.end && (v.later.is_empty() || patient)) || allowed == 0 {
                break;
            }
            if v.position < v.end {
                let bit = v.position;
                let blocks = self.free_run(peer, volume, bit, allowed);
                let v = self.node.connections[peer].peer_devices[volume].resync.verify.as_mut().expect("running");
                v.position += blocks.max(1);
                match blocks {
                    0 => v.later.push_back((bit, 1)),
                    _ => self.ask_digests(peer, volume, self.node.devices[volume].blocks_of(bit, blocks)),
                }
                continue;
            }
            let (bit, tries) = v.later.pop_front().expect("checked");
            if self.free_run(peer, volume, bit, 1) > 0 {
                self.ask_digests(peer, volume, self.node.devices[volume].blocks_of(bit, 1));
            } else if tries < TRIES {
                let rs = &mut self.node.connections[peer].peer_devices[volume].resync;
                rs.verify.as_mut().expect("running").later.push_back((bit, tries + 1));
                rs.next_pass = Some(now + BUSY);
                break;
            } else {
                self.verified(peer, volume, 1, VerifyOutcome::Skipped);
            }
        }
        self.check_verify_end(peer, volume);
    }

    /// How many blocks from `bit` on, at most `most` and none behind the end, are in nobody's way: a power-of-two
    /// fraction of them, or none.
    fn free_run(&self, peer: NodeId, volume: VolumeNr, bit: u64, most: u64) -> u64 {
        let end = self.node.connections[peer].peer_devices[volume].resync.verify.as_ref().map_or(0, |v| v.end);
        let mut blocks = most.min(end.saturating_sub(bit));
        while blocks > 0 && self.resync_must_avoid(peer, volume, self.node.devices[volume].blocks_of(bit, blocks)) {
            blocks /= 2;
        }
        blocks
    }

    fn ask_digests(&mut self, peer: NodeId, volume: VolumeNr, range: SectorRange) {
        let blocks = range.len().0.div_ceil(BLOCK) as usize;
        let id = self.node.begin_block(peer, volume, range, Step::Verifying(Chunk::new(blocks)));
        if let Some(c) = &mut self.node.connections[peer].peer_devices[volume].resync.controller {
            c.asked(range.len().0);
        }
        for (n, piece) in pieces(range, BLOCK).enumerate() {
            let block_id = self.node.connections[peer].name_of_request(name_of_piece(id, n));
            let request = BlockRequest { sector: piece.start, block_id, size: piece.len() };
            self.send(peer, Socket::Data, volume, self.verify_request(peer, request));
        }
    }

    /// The answer for one block of a chunk; `false` if it was not asked for.
    fn block_answered(
        &mut self,
        peer: NodeId,
        volume: VolumeNr,
        range: Option<SectorRange>,
        answer: Result<Digest, ()>,
    ) -> bool {
        let Some(id) = self.find_around(peer, volume, range, |s| matches!(s, Step::Verifying(_))) else { return false };
        let rs = &mut self.node.connections[peer].peer_devices[volume].resync;
        let block = rs.blocks.get_mut(&id).expect("found");
        let (Some(range), Step::Verifying(chunk)) = (range, &mut block.step) else { return false };
        let offset = range.start.0 - block.range.start.0;
        let whole = range.len().0 == BLOCK || range.end == block.range.end;
        if !offset.is_multiple_of(BLOCK / 512) || !whole || !chunk.answered((offset * 512 / BLOCK) as usize, answer) {
            return false;
        }
        if chunk.missing == 0 {
            rs.arrived.push(id);
        }
        if let Some(c) = &mut rs.controller {
            c.answered(range.len().0);
        }
        true
    }

    /// P_OV_REPLY.
    pub(crate) fn verify_answered(&mut self, peer: NodeId, volume: VolumeNr, reply: &VerifyReply) {
        if !self.block_answered(peer, volume, reply.block.range(), Ok(reply.digest.clone())) {
            let text = format!("digest for {} that was not asked for", reply.block.sector);
            self.unwanted_answer(peer, volume, &[Replication::VerifyS], text);
        }
    }

    /// Once a turn: reads our own content where the peer's digests are here and its older writes are on disk.
    fn check_blocks(&mut self, peer: NodeId, volume: VolumeNr) {
        for id in std::mem::take(&mut self.node.connections[peer].peer_devices[volume].resync.arrived) {
            let Some(block) = self.node.connections[peer].peer_devices[volume].resync.blocks.get_mut(&id) else {
                continue;
            };
            if self.node.devices[volume].queue.peer_writing.overlaps(block.range) {
                self.node.connections[peer].peer_devices[volume].resync.arrived.push(id);
                continue;
            }
            let range = block.range;
            match std::mem::replace(&mut block.step, Step::Requested) {
                Step::Verifying(chunk) => block.step = Step::Checking(chunk),
                other => {
                    block.step = other;
                    continue;
                }
            }
            self.node.devices[volume].stats.read_bytes += range.len().0;
            let read = DiskOp::ReadNew { sector: range.start, len: range.len(), detect_zeroes: false };
            self.resync_disk(peer, volume, id, false, read);
        }
    }

    pub(super) fn verify_read_done(
        &mut self,
        peer: NodeId,
        volume: VolumeNr,
        id: u64,
        result: Result<(), IoError>,
        data: Segments,
    ) {
        let algorithm = self.node.connections[peer].peer_devices[volume].resync.algorithm.clone().unwrap_or_default();
        let Some(block) = self.node.connections[peer].peer_devices[volume].block_mut(id) else {
            return self.out.release(data);
        };
        let range = block.range;
        let Step::Checking(chunk) = std::mem::replace(&mut block.step, Step::Requested) else {
            return self.out.release(data);
        };
        if let Err(e) = result {
            self.out.release(data);
            self.verify_compared(peer, volume, id, &chunk, &[]);
            return self.data_error(volume, Failure::Read, "read for verify", range, e);
        }
        block.step = Step::CheckSumming(chunk, data.clone());
        self.digest_block(peer, volume, id, algorithm, data, BLOCK);
    }

    /// Our own digests are here; what is missing could not be read.
    pub(super) fn verify_compared(&mut self, peer: NodeId, volume: VolumeNr, id: u64, chunk: &Chunk, ours: &[Digest]) {
        let Some(block) = self.node.take_block(peer, volume, id) else { return };
        let (range, since, now) = (block.range, block.since, self.node.now);
        if let Some(c) = &mut self.node.connections[peer].peer_devices[volume].resync.controller {
            c.completed(now, since);
        }
        for (n, piece) in pieces(range, BLOCK).enumerate() {
            let Some(Some(Ok(theirs))) = chunk.theirs.get(n) else {
                self.verified(peer, volume, 1, VerifyOutcome::Skipped);
                continue;
            };
            let equal = ours.get(n).is_some_and(|own| own == theirs);
            let outcome = if equal { VerifyOutcome::InSync } else { VerifyOutcome::OutOfSync };
            if !equal {
                self.mark_out_of_sync(peer, volume, piece);
            }
            let result = self.node.verify_outcome(peer, volume, piece, (name_of_piece(id, n), outcome));
            self.send(peer, Socket::Control, volume, result);
            self.verified(peer, volume, 1, outcome);
        }
    }

    /// The peer cannot give a digest.
    pub(super) fn verify_refused(&mut self, peer: NodeId, volume: VolumeNr, ack: &BlockAck) {
        if !self.block_answered(peer, volume, ack.range(), Err(())) {
            let text = format!("answer for {} that was not asked for", ack.sector);
            self.unwanted_answer(peer, volume, &[Replication::VerifyS], text);
        }
    }

    // -- the answering side -------------------------------------------------------------------------------------------

    /// P_OV_RESULT.
    pub(crate) fn verify_result(&mut self, peer: NodeId, volume: VolumeNr, result: &VerifyResult) {
        let Some(range) = result.range().filter(|r| self.node.devices[volume].holds(*r)) else { return };
        if result.outcome == VerifyOutcome::OutOfSync {
            self.mark_out_of_sync(peer, volume, range);
        }
        let Some(id) = self.find_around(peer, volume, Some(range), |s| matches!(s, Step::ResultsAwaited(_))) else {
            return;
        };
        let now = self.node.now;
        let rs = &mut self.node.connections[peer].peer_devices[volume].resync;
        rs.heard = now;
        if let Some(Step::ResultsAwaited(bytes)) = rs.blocks.get_mut(&id).map(|b| &mut b.step) {
            *bytes = bytes.saturating_sub(range.len().0);
            if *bytes == 0 {
                self.node.take_block(peer, volume, id);
            }
        }
        // What is asked for outside a verify is answered, too, but nowhere counted.
        if self.node.state.replication(peer, volume) == Replication::VerifyT {
            self.verified(peer, volume, range.len().0.div_ceil(BLOCK), result.outcome);
            self.check_verify_end(peer, volume);
        }
    }

    // -- the end ------------------------------------------------------------------------------------------------------

    fn verified(&mut self, peer: NodeId, volume: VolumeNr, bits: u64, outcome: VerifyOutcome) {
        let Some(v) = &mut self.node.connections[peer].peer_devices[volume].resync.verify else { return };
        v.left = v.left.saturating_sub(bits);
        match outcome {
            VerifyOutcome::InSync => {}
            VerifyOutcome::OutOfSync => v.found += bits,
            VerifyOutcome::Skipped => v.skipped += bits,
        }
        self.note_progress(peer, volume);
    }

    fn check_verify_end(&mut self, peer: NodeId, volume: VolumeNr) {
        let rs = &self.node.connections[peer].peer_devices[volume].resync;
        if rs.verify.as_ref().is_some_and(|v| v.left == 0 && v.side != Side::Waits) {
            self.end_verify(peer, volume);
        }
    }

    /// The asking side says that it is done (with a stop sector it ends early).
    pub(crate) fn verify_ended_by_peer(&mut self, peer: NodeId, volume: VolumeNr) -> bool {
        let rs = &self.node.connections[peer].peer_devices[volume].resync;
        let ours = rs.verify.as_ref().is_some_and(|v| v.side == Side::Answers);
        if ours {
            self.end_verify(peer, volume);
        }
        ours
    }

    fn end_verify(&mut self, peer: NodeId, volume: VolumeNr) {
        let Some(v) = self.node.connections[peer].peer_devices[volume].resync.verify.take() else { return };
        self.node.connections[peer].peer_devices[volume].lasting.verify_from = 0;
        let severity = if v.found > 0 { Severity::Error } else { Severity::Info };
        let mut text = format!("online verify done: {} KiB differ, {} KiB skipped", v.found * 4, v.skipped * 4);
        if v.found > 0 && !v.repair {
            // In 9's dialect a connect forgets what is marked where nobody has written since (`reconnected`, 5.8).
            text.push_str(match self.node.connections[peer].version() {
                KEEPS_BITMAP.. => "; `invalidate --reset-bitmap=no` on the node with the worse copy replaces them",
                118.. => "; `invalidate` on the node with the worse copy replaces all of it",
                _ => "; `disconnect` and `connect` copy them from the better side",
            });
        }
        self.out.note(severity, Some(volume), Some(peer), Topic::VerifyDone, text);
        self.took_place(Set::Replication(peer, volume, Replication::Established));
        let version = self.node.connections[peer].version();
        if v.side == Side::Asks && version >= 97 && version != 100 {
            self.send_state(peer, volume);
        }
        if self.node.devices[volume].bits_left(peer) > 0 {
            self.out.handler(Handler::OutOfSync, Some(volume), Some(peer));
        }
        let now = self.node.now;
        let repair = &mut self.node.connections[peer].peer_devices[volume].repair;
        if v.found > 0 {
            repair.found_differences();
        }
        if v.repair && v.found > 0 {
            // Not at once: 8.4 is still busy with the end of the verify.
            repair.wanted(now);
        }
    }

    /// Tells the peer of every block that is marked here: it may know of none of them.
    pub(crate) fn send_marks(&mut self, peer: NodeId, volume: VolumeNr) {
        let mut from = 0;
        while let Some(range) = self.marked_run(peer, volume, from) {
            from = range.end.0.div_ceil(8);
            let notice = wire::BlockRange { sector: range.start, size: range.len() };
            self.send(peer, Socket::Data, volume, Packet::OutOfSync(notice));
        }
    }

    /// Verify stopped before its end: the next one goes on there.
    pub(crate) fn verify_interrupted(&mut self, peer: NodeId, volume: VolumeNr) {
        let pd = &mut self.node.connections[peer].peer_devices[volume];
        let Some(v) = pd.resync.verify.take().filter(|v| v.side == Side::Asks) else { return };
        let unfinished = pd.resync.blocks.values().map(|b| b.range.start.0 / 8);
        let from = unfinished.chain(v.later.iter().map(|l| l.0)).min().unwrap_or(v.position).min(v.position);
        pd.lasting.verify_from = from;
        let text = format!("online verify was interrupted at sector {}; the next one goes on there", from * 8);
        self.out.note(Severity::Warning, Some(volume), Some(peer), Topic::VerifyInterrupted, text);
    }
}

impl Node {
    /// What is to be verified when the peer has agreed.
    ///
    /// # Errors
    /// If the nodes' algorithms do not fit.
    pub(crate) fn wish_verify(
        &mut self,
        peer: NodeId,
        volume: VolumeNr,
        wish: VerifyRange,
    ) -> Result<(), CommandError> {
        let c = &mut self.connections[peer];
        let own = c.cfg.verify.clone().unwrap_or_default();
        if !own.is_empty() && !c.cfg.computes_verify {
            let text =
                format!("verify-alg is \"{own}\", which this node cannot compute: set another one on both nodes");
            return Err(failure(-14, text));
        }
        if own.is_empty() || (self.state.is_connected(peer) && c.peer_verify.as_str() != own) {
            let text = format!(
                "verify-alg is \"{own}\" here and \"{}\" on the peer: set the same one on both nodes",
                c.peer_verify
            );
            return Err(failure(-14, text));
        }
        c.peer_devices[volume].resync.wish = wish;
        Ok(())
    }

    /// The first request tells where it starts.
    pub(super) fn verify_asked(&mut self, peer: NodeId, volume: VolumeNr, range: SectorRange) {
        let now = self.now;
        let rs = &mut self.connections[peer].peer_devices[volume].resync;
        let Some(v) = rs.verify.as_mut().filter(|v| v.side != Side::Asks) else { return };
        if v.side == Side::Waits {
            v.side = Side::Answers;
            v.left = v.end.saturating_sub(range.start.0 / 8);
            rs.total = v.left;
            rs.marks = Marks::new(now, v.left);
        }
        v.position = v.position.max(range.end.0.div_ceil(8));
    }
}

impl Node {
    /// The next run of marked blocks, at most as long as one packet may say.
    fn marked_run(&self, peer: NodeId, volume: VolumeNr, from: u64) -> Option<SectorRange> {
        let (b, slot) = self.devices[volume].bitmap(peer)?;
        let bits = &b.bitmaps[slot];
        let start = bits.next_set(from..bits.len())?;
        let most = (start + LONGEST_RUN).min(bits.len());
        let end = bits.next_clear(start..most).unwrap_or(most);
        let size = self.devices[volume].size;
        let range = SectorRange { start: Sector(start * 8), end: Sector(end * 8).min(size) };
        (range.start < range.end).then_some(range)
    }
}

impl PeerDevice {
    /// Where a running verify is, and where it stops.
    pub(crate) fn verify_position(&self) -> Option<(Sector, Sector)> {
        let v = self.resync.verify.as_ref()?;
        Some((Sector(v.position * 8), Sector(v.end * 8)))
    }
}

impl Device {
    fn blocks_of(&self, bit: u64, blocks: u64) -> SectorRange {
        SectorRange { start: Sector(bit * 8), end: Sector(((bit + blocks) * 8).min(self.size.0)) }
    }
}
