//! Resync: the target walks its bitmap and asks, the source reads and answers
//! (`docs/spec/data-path-and-resync.md` 7, towards 8.4 peers 7.14). Online verify uses the same machinery (9).

pub(crate) mod before;
mod controller;
mod dependency;
pub(crate) mod marks;
mod progress;
pub(crate) mod repair;
pub(crate) mod session;
mod source;
pub(crate) mod stragglers;
mod target;
pub(crate) mod verify;

use crate::Resource;
use crate::api::Severity;
use crate::config::ResyncConfig;
use crate::connection::Connection;
use crate::decide::state::Replication;
use crate::decide::topic::Topic;
use crate::device::Device;
use crate::node::Node;
use crate::op::Op;
use crate::peer_device::PeerDevice;
use crate::request::under_way::Request;
use crate::resync::marks::Marks;
use crate::resync::session::{Block, Overtaken, Resync, Step};
use crate::resync::stragglers::Stragglers;
use crate::resync::verify::run::Verify;
use controller::{Controller, SourceBrake, Work};
use units::{BitSet, ByteLen, Duration, Generation, Instant, NodeId, SectorRange, VolumeNr};
use wire::BlockId;

impl Resource {
    /// Begins: counters and walk start anew (spec 7.2).
    pub(crate) fn start_resync(&mut self, peer: NodeId, volume: VolumeNr) {
        let left = self.node.devices[volume].bits_left(peer);
        let csums = self.wants_checksums(peer, volume);
        let (cfg, cap, now) =
            (self.node.devices[volume].resync_config(), self.node.connections[peer].resync_cap(), self.node.now);
        let algorithm = self.node.connections[peer].cfg.usable_csums().cloned();
        let is_source = self.node.state.replication(peer, volume).is_source();
        let own_current = self.node.devices[volume].backing.as_ref().map_or(Generation::NONE, |b| b.md.current);
        let pd = &mut self.node.connections[peer].peer_devices[volume];
        let (rs, peer_current) = (&mut pd.resync, pd.link.told.uuids.as_ref().map(|u| u.current));
        *rs = Resync {
            total: left,
            started: Some(now),
            peer_current,
            own_current,
            controller: (!is_source).then(|| Controller::new(&cfg, cap, now)),
            brake: if is_source { SourceBrake::new(&cfg, now) } else { None },
            csums,
            algorithm,
            marks: Marks::new(now, left),
            blocks: std::mem::take(&mut rs.blocks),
            wish: std::mem::take(&mut rs.wish),
            ..Resync::default()
        };
        self.note_unstable(peer, volume);
        self.node.forget_last_passes(peer, volume);
        self.settle_answers(peer, volume);
        let role = if is_source { "source" } else { "target" };
        let how = if csums { ", by checksums" } else { "" };
        let text = format!("resync as {role} begins: {} KiB differ{how}", left * 4);
        self.out.note(Severity::Info, Some(volume), Some(peer), Topic::ResyncStart, text);
    }

    /// Answers on the control stream name a block, not the resync that asked: one that was held up while the target's
    /// disk went and came back would pass for an answer of now, clear a bit whose block was never copied, or let a
    /// write overtake the block. A ping comes back behind all of them; nothing new is asked or answered before.
    pub(crate) fn settle_answers(&mut self, peer: NodeId, volume: VolumeNr) {
        if !self.node.connections[peer].peer_devices[volume].link.stragglers.may_come() {
            return;
        }
        if let Some(ping) = self.send_ping(peer) {
            self.node.connections[peer].peer_devices[volume].link.stragglers = Stragglers::Before(ping);
        }
    }

    /// Options changed: running resyncs go on by them.
    pub(crate) fn reconfigure_resyncs(&mut self) {
        let now = self.node.now;
        for peer in self.node.connections.ids() {
            for volume in self.node.devices.ids() {
                let (cfg, cap) = (self.node.devices[volume].resync_config(), self.node.connections[peer].resync_cap());
                let repl = self.node.state.replication(peer, volume);
                let rs = &mut self.node.connections[peer].peer_devices[volume].resync;
                if let Some(c) = &mut rs.controller {
                    c.configure(&cfg, cap, now);
                }
                if repl.is_source() {
                    SourceBrake::configure(&mut rs.brake, &cfg, now);
                }
            }
        }
    }

    /// Lets go of all blocks on their way; counters stay for display. What is being written keeps its place until it is
    /// on disk: nothing newer may overtake it there.
    pub(crate) fn abandon_resync(&mut self, peer: NodeId, volume: VolumeNr) {
        // Its generation, if the peer has not been told yet, is of no resync any more.
        self.node.connections[peer].peer_devices[volume].link.exchange.take_owed_sync_uuid();
        let pd = &mut self.node.connections[peer].peer_devices[volume];
        let rs = &mut pd.resync;
        pd.link.stragglers.given_up(rs.blocks.values().any(Block::is_awaited));
        rs.in_flight = 0;
        rs.waiting.clear();
        rs.arrived.clear();
        (rs.finishing, rs.next_pass, rs.controller, rs.brake) = (None, None, None, None);
        (rs.left_by_pass, rs.largest) = (0, 0);
        for (id, mut block) in std::mem::take(&mut rs.blocks) {
            if let Step::Writing(data) | Step::Abandoned(data) = block.step {
                block.step = Step::Abandoned(data);
                self.node.connections[peer].peer_devices[volume].resync.blocks.insert(id, block);
                continue;
            }
            self.node.devices[volume].queue.resyncing.remove(block.range.start, id);
            self.out.release(block.into_data());
        }
        self.node.devices[volume].queue.recheck = true;
    }

    /// The disk is closed: whatever was being written to it is nobody's business any more.
    pub(crate) fn resync_disk_closed(&mut self, volume: VolumeNr) {
        for peer in self.node.connections.ids() {
            self.abandon_resync(peer, volume);
            let blocks = std::mem::take(&mut self.node.connections[peer].peer_devices[volume].resync.blocks);
            for (id, block) in blocks {
                self.node.devices[volume].queue.resyncing.remove(block.range.start, id);
                self.out.release(block.into_data());
            }
        }
    }

    /// Once a turn: requests, late writes, waiting readers, the end.
    pub(crate) fn pump_resync(&mut self, peer: NodeId) {
        for volume in self.node.devices.ids() {
            match self.node.state.replication(peer, volume) {
                Replication::SyncTarget => {
                    self.write_arrived(peer, volume);
                    if self.source_begins(peer, volume) {
                        self.request_blocks(peer, volume);
                        self.check_resync_end(peer, volume);
                    }
                }
                Replication::PausedSyncT => self.write_arrived(peer, volume),
                Replication::VerifyS => self.pump_verify_source(peer, volume),
                Replication::StartingSyncS | Replication::StartingSyncT => self.begin_if_starting9(peer, volume),
                _ => {}
            }
            self.serve_waiting(peer, volume);
        }
    }

    /// Something unfinished of an application or the peer lies on these blocks.
    fn resync_must_avoid(&self, peer: NodeId, volume: VolumeNr, range: SectorRange) -> bool {
        let dev = &self.node.devices[volume];
        if dev.queue.writing.overlaps(range)
            || dev.queue.peer_writing.overlaps(range)
            || dev.queue.resyncing.overlaps(range)
        {
            return true;
        }
        // Our own writes must be on the source's disk: acknowledged is enough in protocol C only (spec 7.14).
        let c = &self.node.connections[peer];
        c.cfg.protocol != crate::Protocol::C
            && c.log.unconfirmed().any(|s| {
                matches!(self.requests.get(s.request), Some(Request::Write(w))
                    if w.device == volume && w.range.overlaps(range))
            })
    }

    /// The target of a resync lacks a write to blocks that are on their way, perhaps.
    pub(crate) fn mark_overtaken(&mut self, peer: NodeId, volume: VolumeNr, range: SectorRange) {
        if !self.in_mesh9() {
            return;
        }
        let ids: Vec<u64> =
            self.node.devices[volume].queue.resyncing.overlapping(range).map(|(_, id, ())| id).collect();
        for id in ids {
            self.node.connections[peer].peer_devices[volume]
                .block_mut(id)
                .into_iter()
                .for_each(|block| block.overtaken.marked.push(range));
        }
    }

    /// A peer's write comes here: what another one sends of these blocks for a resync may lack it.
    pub(crate) fn overtake_answers(&mut self, writer: NodeId, volume: VolumeNr, range: SectorRange) {
        if !self.in_mesh9() || !self.node.devices[volume].queue.resyncing.overlaps(range) {
            return;
        }
        let ids: Vec<u64> =
            self.node.devices[volume].queue.resyncing.overlapping(range).map(|(_, id, ())| id).collect();
        let sources = self
            .node
            .connections
            .ids()
            .filter(|peer| *peer != writer && self.node.state.replication(*peer, volume).is_target());
        for peer in sources.collect::<Vec<_>>() {
            for id in &ids {
                self.node.connections[peer].peer_devices[volume]
                    .block_mut(*id)
                    .into_iter()
                    .for_each(|block| block.overtaken.written = true);
            }
        }
    }

    /// A block is the same on both nodes now, but for what has overtaken it.
    fn clear_block(&mut self, peer: NodeId, volume: VolumeNr, range: SectorRange, overtaken: &Overtaken) -> u64 {
        let bits = self.node.devices[volume].clear_out_of_sync(peer, range);
        bits - overtaken.marked.iter().map(|range| self.mark_out_of_sync(peer, volume, *range)).sum::<u64>().min(bits)
    }

    /// A disk operation of a block begins.
    fn resync_disk(&mut self, peer: NodeId, volume: VolumeNr, id: u64, write: bool, action: crate::DiskOp) {
        let now = self.node.now;
        if let Some(block) = self.node.connections[peer].peer_devices[volume].block_mut(id) {
            block.on_disk = Some(now);
        }
        if write && let Some(range) = action.changes().filter(|_| self.node.connections[peer].speaks9()) {
            self.mark_for_others(peer, volume, range);
        }
        let op = if write {
            Op::ResyncWrite { connection: peer, device: volume, key: id }
        } else {
            Op::ResyncRead { connection: peer, device: volume, key: id }
        };
        self.disk(volume, op, action);
    }

    /// The peer answered what was not (or is no longer) asked for. While a resync runs that is a violation, once
    /// nothing of an earlier one can come any more.
    fn unwanted_answer(&mut self, peer: NodeId, volume: VolumeNr, running: &[Replication], what: String) {
        let pd = &self.node.connections[peer].peer_devices[volume];
        if running.contains(&self.node.state.replication(peer, volume)) && !pd.link.stragglers.hold_up() {
            self.out.protocol_error(peer, Topic::UnknownAnswer, what);
        }
    }
}

impl Node {
    /// An application's request (or a peer's write) to this device ended: how long it took here.
    pub(crate) fn application_done(&mut self, volume: VolumeNr, started: Instant, bytes: ByteLen) {
        let now = self.now;
        for c in self.connections.values_mut() {
            let rs = &mut c.peer_devices[volume].resync;
            if let Some(controller) = &mut rs.controller {
                controller.application(now, now.since(started), bytes.0);
            }
            if let Some(brake) = &mut rs.brake {
                brake.application(now, now.since(started), bytes.0);
            }
        }
    }

    fn begin_block(&mut self, peer: NodeId, volume: VolumeNr, range: SectorRange, step: Step) -> u64 {
        let id = self.devices[volume].queue.interval_id();
        self.devices[volume].queue.resyncing.insert(range, id, ());
        let name = if let Step::Reading(ask) = &step { ask.block.block_id.0 } else { id };
        let (since, name) = (self.now, self.connections[peer].name_of_request(name));
        let rs = &mut self.connections[peer].peer_devices[volume].resync;
        rs.blocks.insert(
            id,
            Block { range, name, since, on_disk: None, with: Vec::new(), overtaken: Overtaken::default(), step },
        );
        rs.in_flight += range.len().0;
        id
    }

    /// Ends a block; its data, if it has any, is the caller's to release.
    fn take_block(&mut self, peer: NodeId, volume: VolumeNr, id: u64) -> Option<Block> {
        let now = self.now;
        let rs = &mut self.connections[peer].peer_devices[volume].resync;
        let block = rs.blocks.remove(&id)?;
        rs.arrived.retain(|a| *a != id);
        if !matches!(block.step, Step::Abandoned(_) | Step::Freed) {
            rs.in_flight = rs.in_flight.saturating_sub(block.range.len().0);
        }
        rs.heard = now;
        self.devices[volume].queue.resyncing.remove(block.range.start, id);
        self.devices[volume].queue.recheck = true;
        Some(block)
    }

    fn block_failed(&mut self, peer: NodeId, volume: VolumeNr, range: SectorRange) {
        let Some((b, slot)) = self.devices[volume].bitmap(peer) else { return };
        let bits = b.bitmaps[slot].len();
        let touched = b.area().touched(range);
        let failed = self.connections[peer].peer_devices[volume].resync.failed.get_or_insert_with(|| BitSet::new(bits));
        if failed.len() == bits {
            failed.set_range(touched.start, touched.end.min(bits));
        }
    }
}

impl Node {
    /// Set bits that could not be copied.
    pub(crate) fn bits_failed(&self, peer: NodeId, volume: VolumeNr) -> u64 {
        let Some(failed) = &self.connections[peer].peer_devices[volume].resync.failed else { return 0 };
        let Some((b, slot)) = self.devices[volume].bitmap(peer) else { return 0 };
        // A write of an application may have repaired some of them, and the device may be smaller by now.
        let bits = &b.bitmaps[slot];
        let mut count = 0;
        let mut from = 0;
        while let Some(bit) = failed.next_set(from..bits.len()) {
            count += u64::from(bits.contains(bit));
            from = bit + 1;
        }
        count
    }

    /// Is a resync write to these blocks under way, or a read that must see the present moment of the stream?
    /// A block may be that of any peer: what another peer writes must not overtake it either.
    pub(crate) fn resync_writing(&self, volume: VolumeNr, range: SectorRange) -> bool {
        let block = |id: u64| self.connections.values().find_map(|c| c.peer_devices[volume].resync.blocks.get(&id));
        self.devices[volume].queue.resyncing.overlapping(range).any(|(_, id, ())| {
            matches!(block(id).map(|b| &b.step), Some(Step::Writing(_) | Step::Abandoned(_) | Step::Checking(_)))
        })
    }

    /// Are blocks of a resync that was abandoned still on their way to the disk?
    pub(crate) fn abandoned_resync_lingers(&self, volume: VolumeNr) -> bool {
        let mut blocks = self.connections.values().flat_map(|c| c.peer_devices[volume].resync.blocks.values());
        blocks.any(|b| matches!(b.step, Step::Abandoned(_)))
    }

    /// The block that an answer of the peer is about.
    fn find_block(
        &self,
        peer: NodeId,
        volume: VolumeNr,
        (range, name): (Option<SectorRange>, BlockId),
        wanted: fn(&Step) -> bool,
    ) -> Option<u64> {
        let range = range?;
        let name = self.connections[peer].name_of_request(name.0);
        let blocks = &self.connections[peer].peer_devices[volume].resync.blocks;
        let fits = |b: &Block| b.range == range && b.name == name && wanted(&b.step);
        let mut there = self.devices[volume].queue.resyncing.overlapping(range);
        there.find(|(_, id, ())| blocks.get(id).is_some_and(fits)).map(|(_, id, ())| id)
    }

    /// The block that contains what an answer of the peer is about.
    fn find_around(
        &self,
        peer: NodeId,
        volume: VolumeNr,
        range: Option<SectorRange>,
        wanted: fn(&Step) -> bool,
    ) -> Option<u64> {
        let range = range?;
        let blocks = &self.connections[peer].peer_devices[volume].resync.blocks;
        let fits = |r: SectorRange, id: u64| r.contains(range) && blocks.get(&id).is_some_and(|b| wanted(&b.step));
        self.devices[volume].queue.resyncing.overlapping(range).find(|(r, id, ())| fits(*r, *id)).map(|(_, id, ())| id)
    }

    /// Has the disk kept a resync's operation for `limit`?
    pub(crate) fn resync_stuck_on_disk(&self, volume: VolumeNr, limit: Duration) -> bool {
        let blocks = self.connections.values().flat_map(|c| c.peer_devices[volume].resync.blocks.values());
        let on_disk = |b: &Block| match b.step {
            Step::Comparing | Step::Writing(_) | Step::Abandoned(_) | Step::Reading(_) | Step::Checking(_) => b.on_disk,
            _ => None,
        };
        blocks.filter_map(on_disk).any(|since| self.now.since(since) >= limit)
    }

    fn work(&self, peer: NodeId, volume: VolumeNr) -> Work {
        let rs = &self.connections[peer].peer_devices[volume].resync;
        let bits = match &rs.verify {
            Some(v) => v.left(),
            None => self.devices[volume].bits_left(peer),
        };
        Work { in_flight: rs.in_flight, left: bits * 4096, busy: self.devices[volume].application_busy() }
    }

    /// When a resync of this connection wants to be looked at again.
    pub(crate) fn resync_timer(&self, peer: NodeId) -> Option<Instant> {
        let cap = self.connections[peer].resync_cap();
        let timer = |volume: VolumeNr, PeerDevice { resync: rs, link, .. }: &PeerDevice, repl: Replication| match repl {
            // A ping must be answered first.
            _ if link.stragglers.hold_up() => None,
            // Nothing to do before the last answers are here.
            Replication::SyncTarget if rs.finishing.is_some() || !self.source_begins(peer, volume) => None,
            Replication::VerifyS if rs.verify.as_ref().is_none_or(Verify::all_asked) => None,
            Replication::SyncTarget | Replication::VerifyS => match rs.next_pass {
                Some(at) => Some(at),
                None => rs.controller.as_ref().and_then(Controller::wake),
            },
            Replication::SyncSource => rs.source_timer(cap),
            _ => None,
        };
        let soon = Instant(self.now.0 + 1);
        let pds = self.connections[peer].peer_devices.iter();
        let usable = pds.filter(|(volume, _)| self.usable(*volume) && !self.devices[*volume].generation_in_flight());
        usable
            .filter_map(|(volume, p)| timer(volume, p, self.state.replication(peer, volume)))
            .map(|at| at.max(soon))
            .min()
    }
}

impl PeerDevice {
    fn block_mut(&mut self, id: u64) -> Option<&mut Block> {
        self.resync.blocks.get_mut(&id)
    }
}

impl Connection {
    /// Most bytes in flight: the buffers that `max-buffers` grants.
    fn resync_cap(&self) -> u64 {
        u64::from(self.cfg.max_buffers) * 4096
    }

    /// When a peer that answers pings, but nothing else, has been silent for too long; `None` while nothing of it is
    /// awaited.
    pub(crate) fn resync_deadline(&self, patience: Duration) -> Option<Instant> {
        let oldest = |rs: &Resync| rs.blocks.values().filter(|b| b.is_awaited()).map(|b| b.since.max(rs.heard)).min();
        let pds = self.peer_devices.values();
        pds.filter_map(|p| oldest(&p.resync)).min().map(|since| since + patience)
    }
}

impl Device {
    /// Is an application's request, or a peer's write, being worked on?
    fn application_busy(&self) -> bool {
        self.disk.local_pending > 0 || !self.queue.writing.is_empty() || !self.queue.peer_writing.is_empty()
    }

    fn resync_config(&self) -> ResyncConfig {
        self.cfg.as_ref().map(|c| c.resync.clone()).unwrap_or_default()
    }
}
