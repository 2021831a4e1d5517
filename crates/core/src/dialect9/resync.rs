//! What a resync has only in 9's dialect: requests that name a position in a stream of writes, the switch to
//! replication and the flush before its end, who is in sync, and the generations at its end
//! (`docs/spec/data-path-and-resync.md` 7.5, 7.10, 7.11, `docs/spec/connection-and-state.md` 7.4).

pub(crate) mod pass;

use crate::Resource;
use crate::api::ConnectionState;
use crate::connection::Connection;
use crate::decide::change::{Change, Set};
use crate::decide::state::{PairState, Replication, State};
use crate::decide::topic::Topic;
use crate::decide::{DiskState, uuid9};
use crate::dialect9::positions::record::Position;
use crate::dialect9::resync::pass::{FLUSHES, FlushAsked, Flushing, LastPass};
use crate::node::Node;
use crate::peer_device::Keeps;
use crate::peer_device::WhenBad;
use crate::resync::session::Want;
use meta::generations::SourceGenerations;
use units::{Generation, NodeId, NodeMask, SectorRange, VolumeNr};
use wire::{
    BlockAck, BlockId, BlockRequest, Dagtag, DagtagRequest, Digest, Features, FlushAnswer, Packet, Role, Socket,
    StateWord, Uuids110, VerifyOutcome, VerifyReply, VerifyResult, VerifyResultId,
};

/// From this version on a request has a name of its own.
const NAMES: u32 = 122;

impl Resource {
    /// The target asks for a block; `digest`: unless it has this one.
    pub(crate) fn request9(
        &self,
        peer: NodeId,
        volume: VolumeNr,
        block: BlockRequest,
        digest: Option<Digest>,
    ) -> Packet {
        let (node, dagtag) = self.position_to_wait_for();
        let granule = self.node.devices[volume].cfg.as_ref().map_or(0, |c| c.resync.discard_granularity);
        let thin = self.node.connections[peer].has(Features::THIN_RESYNC) && granule > 0;
        if !self.node.connections[peer].has(Features::RESYNC_DAGTAG) {
            return match digest {
                Some(digest) => Packet::CsumRsRequest(wire::ChecksumRequest { block, digest }),
                None if thin => Packet::RsThinReq(block),
                None => Packet::RsDataRequest(block),
            };
        }
        let with = |digest| Box::new(DagtagRequest { block, node, dagtag, digest });
        match digest {
            Some(digest) => Packet::RsCsumDagtagReq(with(digest)),
            None if thin => Packet::RsThinDagtagReq(with(Digest::EMPTY)),
            None => Packet::RsDagtagReq(with(Digest::EMPTY)),
        }
    }

    /// A verify asks for the digest of a block.
    pub(crate) fn verify_request(&self, peer: NodeId, block: BlockRequest) -> Packet {
        if !self.node.connections[peer].has(Features::RESYNC_DAGTAG) {
            return Packet::OvRequest(block);
        }
        let (node, dagtag) = self.position_to_wait_for();
        Packet::OvDagtagReq(Box::new(DagtagRequest { block, node, dagtag, digest: Digest::EMPTY }))
    }

    /// The answer to that.
    pub(crate) fn verify_reply(&self, peer: NodeId, block: BlockRequest, digest: Digest) -> Packet {
        if !self.node.connections[peer].has(Features::RESYNC_DAGTAG) {
            return Packet::OvReply(VerifyReply { block, digest });
        }
        let (node, dagtag) = self.position_to_wait_for();
        Packet::OvDagtagReply(Box::new(DagtagRequest { block, node, dagtag, digest }))
    }

    /// The newest write that this node has seen of a Primary: the source must have it, too, before it reads. It may
    /// hear of it later than this node does.
    fn position_to_wait_for(&self) -> (u32, Dagtag) {
        if self.node.state.is_primary() {
            return (self.node.cfg.node.index() as u32, Dagtag(self.positions.own()));
        }
        let heard = self.node.connections.iter().find_map(|(n, _)| {
            let primary = self.node.state.is_connected(n) && self.node.state.peers[n].role() == Role::Primary;
            Some((n, self.heard_of(n).filter(|_| primary)?))
        });
        heard.map_or((0, Dagtag(0)), |(n, at)| (n.index() as u32, Dagtag(at)))
    }

    /// A request that depends on a write of this node, or of one whose writes may come here behind the request. Of a
    /// node that is not heard here nothing comes.
    pub(crate) fn resync_requested9(&mut self, peer: NodeId, volume: VolumeNr, r: &DagtagRequest, want: Want) {
        let node = u8::try_from(r.node).ok().and_then(NodeId::new).filter(|_| r.dagtag.0 != 0);
        let after = node.filter(|node| *node != self.node.cfg.node).map(|node| Position { node, at: r.dagtag.0 });
        let unknown = r.dagtag.0 != 0 && node.is_none();
        match r.block.range().filter(|_| unknown || after.is_some_and(|after| !self.hears(after.node))) {
            Some(range) => self.send_ack(peer, volume, Packet::RsCancel, range, r.block.block_id),
            None => self.resync_requested_after(peer, volume, r.block, want, after),
        }
    }

    // -- beginning ---------------------------------------------------------------------------------------------------

    /// The generations of a target, when its resync begins. A copy that never was one has from now on part of what the
    /// source's bitmap counts from, so that it can go on from there.
    pub(crate) fn begin_target9(&mut self, peer: NodeId, volume: VolumeNr) {
        let own = self.node.cfg.node;
        let slot =
            self.node.connections[peer].peer_devices[volume].link.told.uuids110.as_ref().and_then(|u| u.bitmap(own));
        let Some(b) = &mut self.node.devices[volume].backing else { return };
        let parted = slot.filter(|g| !g.is_none() && b.md.current.same(Generation::JUST_CREATED));
        if let Some(parted) = parted {
            b.md.current = parted.base();
        }
        self.write_what_comes(peer, volume);
        // Who is away knows nothing of what comes.
        self.rotate_slots(volume, NodeMask::default());
        // What is to come is durable before it is asked for: the source forgets it with each answer, which a loss of
        // power may take from this disk's cache.
        self.generation_changed(volume);
    }

    /// The bitmap is about to be written: with all pages that this is about.
    fn write_what_comes(&mut self, peer: NodeId, volume: VolumeNr) {
        let Some(source) = self.node.devices[volume].slot(peer).filter(|_| self.in_mesh9()) else { return };
        let Some(b) = &mut self.node.devices[volume].backing else { return };
        let (area, mut from) = (b.area(), 0);
        let len = b.bitmaps[source].len();
        while let Some(start) = b.bitmaps[source].next_set(from..len) {
            from = b.bitmaps[source].next_clear(start..len).unwrap_or(len);
            b.dirty.note_set(area.pages_of(start..from));
        }
    }

    /// StartingSyncS or StartingSyncT: everything is to be copied. A target is given up, so that nobody has anything of
    /// it. The resync begins at the end of the turn, after the peers have heard that all have agreed.
    pub(crate) fn starting_sync9(&mut self, peer: NodeId, volume: VolumeNr) {
        let target = self.node.state.replication(peer, volume) == Replication::StartingSyncT;
        match &mut self.node.devices[volume].backing {
            Some(b) if target => {
                b.bitmaps.iter_mut().for_each(units::BitSet::set_all);
                b.dirty.note_all();
            }
            _ => self.mark_all(peer, volume),
        }
    }

    pub(crate) fn begin_if_starting9(&mut self, peer: NodeId, volume: VolumeNr) {
        if self.node.connections[peer].peer_devices[volume].before_resync.is_due() {
            return;
        }
        match self.node.state.replication(peer, volume) {
            Replication::StartingSyncS => self.begin_as_source(peer, volume),
            Replication::StartingSyncT => self.begin_as_target9(peer, volume),
            _ => {}
        }
    }

    /// A peer's copy has become good: perhaps on another disk, which can be read where the former one could not.
    pub(crate) fn follow_peers_disks(&mut self, old: &State) {
        for peer in self.node.connections.ids().filter(|_| self.in_mesh9()).collect::<Vec<_>>() {
            for volume in self.node.devices.ids() {
                let good = |s: &State| s.peer_disk(peer, volume) == DiskState::UpToDate;
                let at_rest = |s: &State| s.replication(peer, volume) == Replication::Established;
                if at_rest(old) && !good(old) && at_rest(&self.node.state) && good(&self.node.state) {
                    self.node.connections[peer].peer_devices[volume].resync.forget_failed();
                }
            }
        }
    }

    /// P_ENABLE_REPLICATION.
    pub(crate) fn replication_enabled(&mut self, peer: NodeId, volume: VolumeNr, on: bool) {
        let wants = &mut self.node.connections[peer].peer_devices[volume].link.told.when_bad;
        let before = std::mem::replace(wants, WhenBad::new(on));
        if on && before == WhenBad::Marks && self.node.state.replicates(peer, volume) {
            self.tell_position(peer);
        }
    }

    // -- the end -----------------------------------------------------------------------------------------------------

    /// The target has copied everything: may the resync end? If not, what is missing is asked for.
    pub(crate) fn last_pass_is_over(&mut self, peer: NodeId, volume: VolumeNr) -> bool {
        if !self.node.connections[peer].speaks9() {
            return true;
        }
        match self.node.connections[peer].peer_devices[volume].resync.last_pass {
            LastPass::Begun(_) if self.asks_once_more(peer, volume) => self.begin_last_pass(peer, volume),
            LastPass::Begun(_) => true,
            LastPass::Flushing(asked) => {
                let over = self.good_witnesses(asked.primary).and(asked.waits).is_empty();
                if over {
                    self.node.connections[peer].peer_devices[volume].resync.last_pass =
                        LastPass::Begun(Some(asked.primary));
                }
                over
            }
            LastPass::Ahead => self.begin_last_pass(peer, volume),
        }
    }

    /// The walk has come to the end of the device. What is left is less by half than the last time, or Primaries
    /// without disks write faster than is copied: from now on they send that here, too
    /// (`docs/spec/data-path-and-resync.md` 7.10). One with a disk is a source itself, and is asked in the last pass.
    pub(crate) fn pass_ended9(&mut self, peer: NodeId, volume: VolumeNr) {
        let left = self.node.devices[volume].bits_left(peer);
        let resync = &mut self.node.connections[peer].peer_devices[volume].resync;
        let before = std::mem::replace(&mut resync.left_by_pass, left);
        let ahead = resync.last_pass == LastPass::Ahead && before > 0;
        if ahead && left > 0 && left >= before / 2 && self.node.in_mesh9() {
            self.ask_for_writes(self.node.state.writers_without_disk(volume), volume);
        }
    }

    /// These are to send what they write here.
    fn ask_for_writes(&mut self, peers: NodeMask, volume: VolumeNr) {
        for n in peers {
            if self.node.connections[n].has(Features::RESYNC_WITHOUT_REPLICATION) {
                self.send(n, Socket::Data, volume, Packet::EnableReplication(true));
            }
        }
    }

    fn begin_last_pass(&mut self, peer: NodeId, volume: VolumeNr) -> bool {
        // This source, or another one.
        let mut sources = NodeMask::of(peer).into_iter().chain(self.node.state.sources_to_be(volume));
        let flushes = |n: &NodeId| self.node.connections[*n].version() >= FLUSHES;
        let primary = sources.find(|n| flushes(n) && self.node.state.peers[*n].role() == Role::Primary);
        let mut passes = self.node.connections.values().map(|c| c.peer_devices[volume].resync.last_pass);
        if primary.is_some() && passes.any(|pass| pass == LastPass::Begun(primary)) {
            // It was asked when another source had nothing more.
            self.node.connections[peer].peer_devices[volume].resync.last_pass = LastPass::Begun(primary);
            return true;
        }
        let all =
            self.node.connections.ids().filter(|n| *n == peer || self.node.state.replicates(*n, volume)).collect();
        self.ask_for_writes(all, volume);
        let waits = primary.map(|primary| self.good_witnesses(primary)).unwrap_or_default();
        let Some((primary, nine)) = primary.and_then(|n| Some((n, self.node.connections[n].nine_mut()?))) else {
            self.node.connections[peer].peer_devices[volume].resync.last_pass = LastPass::Begun(None);
            return true;
        };
        nine.flushes += 1;
        let asked = Flushing { sequence: nine.flushes, primary, waits };
        self.node.connections[peer].peer_devices[volume].resync.last_pass = LastPass::Flushing(asked);
        self.send_connection(primary, Socket::Data, Packet::FlushRequests(asked.sequence));
        false
    }

    /// P_FLUSH_REQUESTS_ACK: a node has been told who has a Primary's writes, and has passed on what it must.
    pub(crate) fn flush_answered(&mut self, peer: NodeId, answer: &FlushAnswer) {
        if !self.node.connections.members().contains(answer.node) {
            return;
        }
        for pd in self.node.connections.values_mut().flat_map(|c| c.peer_devices.values_mut()) {
            if let LastPass::Flushing(asked) = &mut pd.resync.last_pass
                && asked.primary == answer.node
                && asked.sequence <= answer.sequence
            {
                asked.waits.remove(peer);
            }
        }
        self.out.chores.mark();
    }

    /// P_FLUSH_REQUESTS.
    pub(crate) fn flush_asked(&mut self, peer: NodeId, sequence: u64) {
        let up_to = self.positions.own();
        let able =
            |other: &NodeId| self.node.state.is_connected(*other) && self.node.connections[*other].version() >= FLUSHES;
        let untold = self.node.connections.ids().filter(able).collect::<NodeMask>().with(peer);
        if let Some(nine) = self.node.connections[peer].nine_mut() {
            nine.flush_asked = Some(FlushAsked { sequence, up_to, untold });
        }
        self.answer_flush(peer);
    }

    /// Answers, once it is said of all writes up to then who has them; and each of the others is told when it was told
    /// that, so that it says so, too, behind what it was told.
    pub(crate) fn answer_flush(&mut self, peer: NodeId) {
        let Some(asked) = self.node.connections[peer].nine().and_then(|nine| nine.flush_asked) else { return };
        let told = asked.untold.into_iter().filter(|n| !self.positions.is_untold(*n, asked.up_to)).collect::<Vec<_>>();
        if told.is_empty() {
            return;
        }
        self.say_who_has_what();
        for n in told {
            if let Some(asked) = self.node.connections[peer].nine_mut().and_then(|nine| nine.flush_asked.as_mut()) {
                asked.untold.remove(n);
            }
            if n == peer {
                let answer = FlushAnswer { sequence: asked.sequence, node: self.node.cfg.node };
                self.send_connection(peer, Socket::Data, Packet::FlushRequestsAck(answer));
            } else if self.node.state.is_connected(n) {
                let forwarded = FlushAnswer { sequence: asked.sequence, node: peer };
                self.send_connection(n, Socket::Control, Packet::FlushForward(forwarded));
            }
        }
    }

    /// P_FLUSH_FORWARD: what a Primary said of its writes was heard here; the target that has asked is told.
    pub(crate) fn flush_forwarded(&mut self, peer: NodeId, asked: &FlushAnswer) {
        let answer = FlushAnswer { sequence: asked.sequence, node: peer };
        if self.node.connections.get(asked.node).is_some_and(|c| c.speaks9()) {
            self.send_connection(asked.node, Socket::Data, Packet::FlushRequestsAck(answer));
        }
    }

    /// All blocks are here.
    pub(crate) fn resync_finished_as_target9(&mut self, peer: NodeId, volume: VolumeNr, failed: u64) {
        self.tell_last_copied(peer, volume);
        if failed == 0 && self.lets_primary_end(peer, volume) {
            self.report_end(peer, volume, failed);
            return self.took_place(Set::Replication(peer, volume, Replication::Established));
        }
        if failed == 0 && self.asks_once_more(peer, volume) {
            // It has become Primary within the last pass.
            return self.out.chores.mark();
        }
        if failed == 0 && self.is_unstable(peer, volume) {
            self.report_end(peer, volume, failed);
            return self.end_unstable(peer, volume);
        }
        if failed == 0 {
            self.leave_unlike_sources(peer, volume);
        }
        let mut change = Change::from(Set::Replication(peer, volume, Replication::Established));
        if failed == 0 {
            self.node.connections[peer].peer_devices[volume].lasting.keeps = Keeps::Nothing;
            self.node.has_survivors_writes(peer);
            // What it has written itself is what its source has of it.
            self.node.devices[volume].disk.crashed_primary = self.has_got_from_crashed(peer, volume);
            self.take_over_generations9(peer, volume);
            change.push(Set::Disk(volume, self.node.state.peer_disk(peer, volume)));
            // Other sources of the same data have nothing more for it: what they lack of each other they compare.
            let others = self.node.state.pairs(volume).filter(|(n, pair)| *n != peer && pair.replication.is_target());
            others.for_each(|(n, _)| change.push(Set::Replication(n, volume, Replication::Established)));
        } else {
            change.push(Set::Disk(volume, DiskState::Inconsistent));
            change.push(Set::PeerDisk(peer, volume, DiskState::UpToDate));
        }
        self.report_end(peer, volume, failed);
        self.took_place(change);
    }

    /// Another source has newer data, or older, than the one that has copied all: with that one it is compared anew.
    fn leave_unlike_sources(&mut self, peer: NodeId, volume: VolumeNr) {
        let (current, good) = (
            self.node.connections[peer].peer_devices[volume].told_current(),
            self.node.state.peer_disk(peer, volume) == DiskState::UpToDate,
        );
        let like = |n| {
            good && self.node.connections[n].peer_devices[volume]
                .told_current()
                .zip(current)
                .is_some_and(|(a, b)| a.same(b))
        };
        let others = self.node.state.pairs(volume).filter(|(n, pair)| *n != peer && pair.replication.is_target());
        let unlike: Vec<_> = others.map(|(n, _)| n).filter(|n| !like(*n)).collect();
        for n in unlike {
            let text = "a source with other data has copied all: connecting anew".to_owned();
            self.out.compare_anew(n, Topic::SourcesDiffer, text);
            self.end_links();
        }
    }

    /// A target that is none any more tells its generations, before it tells its state (2.7, row 3).
    pub(crate) fn tell_end_of_resync(&mut self, old: &State) {
        let receives = |r: Replication| matches!(r, Replication::SyncTarget | Replication::PausedSyncT);
        for volume in self.node.devices.ids() {
            let ended = |peer| {
                receives(old.replication(peer, volume))
                    && self.node.state.replication(peer, volume) == Replication::Established
            };
            if !self.node.connections.ids().any(ended) {
                continue;
            }
            for peer in
                self.node.connections.ids().filter(|peer| self.node.connections[*peer].speaks9()).collect::<Vec<_>>()
            {
                self.send_uuids(peer, volume, wire::UuidFlags::NONE);
            }
        }
    }

    /// The target has the source's data, and with that its past.
    fn take_over_generations9(&mut self, peer: NodeId, volume: VolumeNr) {
        let (own, position) = (self.node.cfg.node, self.positions.own());
        let Some(told) = self.node.connections[peer].peer_devices[volume].link.told.uuids110.clone() else { return };
        let at_start = self.node.connections[peer].peer_devices[volume].resync.own_current;
        let same = self.nodes_with(volume, told.current).with(peer);
        let Some(b) = &mut self.node.devices[volume].backing else { return };
        let mut source =
            SourceGenerations { current: told.current, bitmaps: Default::default(), history: b.md.history };
        for (n, slot) in source.history.iter_mut().enumerate() {
            *slot = told.history.get(n).copied().unwrap_or_default();
        }
        let known = told.tracked.into_iter().zip(&told.bitmaps).filter(|(_, counted)| **counted != uuid9::UNKNOWN);
        for (node, counted) in known {
            source.bitmaps[node.index()] = *counted;
        }
        b.md.finish_as_target(own, &source, same, at_start, self.node.state.is_primary(), position);
        self.node.devices[volume].seen.exposed = told.current;
        self.generation_changed(volume);
        self.out.status_changed = true;
    }

    /// The source hears from the target that it is done.
    pub(crate) fn target_is_done(&mut self, peer: NodeId, volume: VolumeNr, theirs: &StateWord) {
        let failed = self.bits_failed(peer, volume);
        let elsewhere = self.in_mesh9() && self.node.state.replication(peer, volume) == Replication::PausedSyncS;
        let left = self.node.devices[volume].bits_left(peer).saturating_sub(self.bits_confirmed(peer, volume));
        // What a Primary has marked for it nobody else knows of better.
        let lacks = theirs.disk == DiskState::UpToDate && self.node.state.is_primary() && left > 0;
        if elsewhere && !lacks {
            // It was brought up to date by another one.
            return self.took_place(target_rests(peer, volume, theirs));
        }
        if theirs.disk == DiskState::UpToDate && left > 0 {
            let text = format!("the peer has ended a resync, and {} KiB are still marked here", left * 4);
            return self.out.drop_link(peer, ConnectionState::NetworkFailure, Topic::ResyncIncomplete, text);
        }
        if left == 0 {
            self.node.connections[peer].peer_devices[volume].lasting.keeps = Keeps::Nothing;
        }
        self.report_end(peer, volume, failed);
        self.took_place(target_rests(peer, volume, theirs));
        if failed == 0 {
            self.tell_of_target(peer, volume);
        }
    }

    /// Both have the same generation: what this node's slot counts from is of the past (7.5). The others hear of it.
    pub(crate) fn retire_slot_if_equal(&mut self, peer: NodeId, volume: VolumeNr, theirs: Generation) {
        let equal = self.node.devices[volume].backing.as_ref().is_some_and(|b| b.md.current.same(theirs));
        if equal && self.retire_slot(peer, volume) {
            self.pass_on_generations(peer, volume);
        }
    }

    /// What was learned from one peer is told to the others.
    fn pass_on_generations(&mut self, peer: NodeId, volume: VolumeNr) {
        let others =
            self.node.connections.ids().filter(|n| {
                *n != peer && self.node.connections[*n].speaks9() && self.node.state.replicates(*n, volume)
            });
        for n in others.collect::<Vec<_>>() {
            self.send_uuids(n, volume, wire::UuidFlags::NONE);
        }
    }

    /// A peer of the same generation says that another node lacks nothing of it: it was brought up to date elsewhere
    /// (7.5). A Primary knows itself who has its writes; that one who is not here lacks nothing it hears only of the
    /// time before its first one. A target, also one whose resync has broken off, has blocks of another generation.
    pub(super) fn note_brought_up_elsewhere(&mut self, peer: NodeId, volume: VolumeNr, packet: &Uuids110) {
        let mixed = self.node.state.disk(volume) <= DiskState::Inconsistent;
        if mixed || !self.has_this_generation(peer, volume) {
            return;
        }
        let writes = self.node.state.is_primary();
        let unwritten = self.node.devices[volume].due.first_write.may_begin();
        let hears = |n: &NodeId| {
            !writes || unwritten && !self.node.state.is_connected(*n) && self.node.devices[volume].bits_left(*n) == 0
        };
        let lacks_nothing = |n: &NodeId| packet.bitmap(*n).is_some_and(|g| g.is_none()) && hears(n);
        let mut retired = false;
        for n in self.node.connections.ids().filter(|n| *n != peer).filter(lacks_nothing).collect::<Vec<_>>() {
            let counts =
                self.node.devices[volume].backing.as_ref().is_some_and(|b| !b.md.peer(n).bitmap_uuid.is_none());
            if counts && self.node.state.replication(n, volume) <= Replication::Established {
                // It did not know of what a Primary has written since, which may be marked here.
                match self.node.keeps_bits(n, volume) {
                    true => drop(self.retire_slot(n, volume)),
                    false => self.count_as_equal(n, volume),
                }
                retired = true;
            }
        }
        if retired {
            self.pass_on_generations(peer, volume);
        }
    }

    /// What this node's slot counts from is of the past. False: it counts from nothing.
    pub(super) fn retire_slot(&mut self, peer: NodeId, volume: VolumeNr) -> bool {
        let Some(b) = &mut self.node.devices[volume].backing else { return false };
        let past = std::mem::take(&mut b.md.peer_mut(peer).bitmap_uuid);
        if !past.is_none() {
            b.md.push_history(past, None);
            self.generation_changed(volume);
        }
        !past.is_none()
    }
}

impl Node {
    /// What came of the comparison.
    pub(crate) fn verify_outcome(
        &mut self,
        peer: NodeId,
        volume: VolumeNr,
        range: SectorRange,
        by: (u64, VerifyOutcome),
    ) -> Packet {
        let (sector, size) = (range.start, range.len());
        let seq = self.connections[peer].peer_devices[volume].link.io.next_seq();
        let (name, outcome) = by;
        if !self.connections[peer].names_requests() {
            return Packet::OvResult(VerifyResult { sector, size, seq, outcome });
        }
        let block = BlockAck { sector, block_id: BlockId(name), size, seq };
        Packet::OvResultId(Box::new(VerifyResultId { block, outcome }))
    }

    /// What a peer wants to be sent while its disk is bad begins anew with each resync.
    pub(crate) fn follow_resync9(&mut self, old: &State) {
        for peer in self.connections.ids() {
            for volume in self.devices.ids() {
                let bad = |s: &State| {
                    s.peer_disk(peer, volume) == DiskState::Inconsistent || s.replication(peer, volume).is_source()
                };
                if bad(&self.state) && !bad(old) {
                    let pd = &mut self.connections[peer].peer_devices[volume];
                    pd.link.told.when_bad = pd.link.told.when_bad_next;
                }
            }
        }
    }

    /// A resync begins: what this peer has said before, or who was a source before, is of the past.
    pub(crate) fn forget_last_passes(&mut self, peer: NodeId, volume: VolumeNr) {
        let goes_on = self.state.pairs(volume).any(|(n, pair)| n != peer && pair.replication.is_target());
        for c in self.connections.values_mut() {
            let pass = &mut c.peer_devices[volume].resync.last_pass;
            if !goes_on || *pass == LastPass::Begun(Some(peer)) {
                *pass = LastPass::Ahead;
            }
        }
    }

    /// A peer depends on these Primaries, and hears of none of the others: it has marked what it does not know to be
    /// here, and is waited for no more.
    pub(super) fn witness_sees(&mut self, peer: NodeId, primaries: NodeMask) {
        for c in self.connections.values_mut() {
            for pd in c.peer_devices.values_mut() {
                if let LastPass::Flushing(asked) = &mut pd.resync.last_pass
                    && asked.primary != peer
                    && !primaries.contains(asked.primary)
                {
                    asked.waits.remove(peer);
                }
            }
        }
    }
}

impl Node {
    /// Is this peer there, and has it said on this link where its writes begin?
    pub(crate) fn hears(&self, node: NodeId) -> bool {
        self.heard_of(node).is_some() && self.state.is_connected(node)
    }

    /// How far the stream of writes of a peer has come here, if it has said on this link where that begins.
    fn heard_of(&self, node: NodeId) -> Option<u64> {
        self.connections.get(node)?.nine()?.heard.told()
    }

    /// Is a write still to come here that must be there before something is read?
    pub(crate) fn is_yet_to_come(&self, after: Option<Position>) -> bool {
        after.is_some_and(|after| self.heard_of(after.node).unwrap_or(0) < after.at)
    }

    /// What a target is still to get it may get at any moment, and the others lack that, perhaps: on its disk it is
    /// marked for all of them until it is here, and then they are told who has it. Nobody else would know what of it
    /// this copy has if its process ends.
    pub(crate) fn slot_of_source(&self, volume: VolumeNr) -> Option<usize> {
        let target = |active: bool| {
            let fits = move |pair: &PairState| pair.replication.is_target() && pair.paused.by_other != active;
            self.state.pairs(volume).find_map(|(peer, pair)| self.devices[volume].slot(peer).filter(|_| fits(pair)))
        };
        target(true).or_else(|| target(false)).filter(|_| self.in_mesh9())
    }

    /// Who must have been told what a Primary has written: itself, and connected nodes with a good copy that hear of
    /// it.
    fn good_witnesses(&self, primary: NodeId) -> NodeMask {
        let good = |peer| self.devices.ids().any(|volume| self.state.peer_disk(peer, volume) == DiskState::UpToDate);
        let answers = |peer| self.state.is_connected(peer) && self.connections[peer].version() >= FLUSHES;
        if !answers(primary) {
            return NodeMask::default();
        }
        let hears = |peer: &NodeId| self.connections[*peer].sees(primary);
        let hear = self.connections.ids().filter(|peer| answers(*peer) && good(*peer) && hears(peer));
        hear.collect::<NodeMask>().with(primary)
    }

    /// All of a source is here, but a Primary is a source as well: what it has written meanwhile it knows itself.
    pub(super) fn lets_primary_end(&self, peer: NodeId, volume: VolumeNr) -> bool {
        let primary = |n: NodeId| self.state.peers[n].role() == Role::Primary;
        let mut others = self.state.pairs(volume).filter(|(n, pair)| *n != peer && pair.replication.is_target());
        self.in_mesh9() && !primary(peer) && others.any(|(n, _)| primary(n))
    }
}

impl Connection {
    /// Do requests of a resync have names, and their answers packets of their own?
    pub(crate) fn names_requests(&self) -> bool {
        self.version() >= NAMES
    }

    /// What a request is called in packets, if its answers are to name it.
    pub(crate) fn name_of_request(&self, name: u64) -> BlockId {
        if self.names_requests() { BlockId(name) } else { BlockId::SYNCER }
    }

    /// Has the peer said that it sees this Primary?
    fn sees(&self, primary: NodeId) -> bool {
        self.peer_devices.values().any(|pd| pd.told_primaries().contains(primary))
    }
}

/// What a source hears of a target that is none any more.
fn target_rests(peer: NodeId, volume: VolumeNr, theirs: &StateWord) -> Change {
    let sets = [
        Set::Replication(peer, volume, Replication::Established),
        Set::PeerRole(peer, volume, theirs.role),
        Set::PeerDisk(peer, volume, theirs.disk),
        Set::PausedByPeer(peer, volume, theirs.aftr_isp || theirs.user_isp),
    ];
    sets.into_iter().collect()
}
