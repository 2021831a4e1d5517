//! Three nodes or more: what one of them must know of two others (`docs/spec/data-path-and-resync.md` 2.8, 2.10,
//! `docs/spec/connection-and-state.md` 7.7).
//!
//! Narrower than the reference, where that is safer and simpler: a node copies from one peer at a time, and is a good
//! copy only by one that is Primary or sees none (`docs/compatibility.md`).

pub(crate) mod unsettled;

use crate::Resource;
use crate::api::{ConnectionState, Severity};
use crate::config::Protocol;
use crate::connection::Connection;
use crate::decide::private::Private;
use crate::decide::state::{PairState, Replication, State};
use crate::decide::topic::Topic;
use crate::decide::{DiskState, Reason, Role};
use crate::dialect9::mesh::unsettled::{InLog, LostPrimary, Unsettled};
use crate::dialect9::resync::pass::FLUSHES;
use crate::node::Node;
use crate::peer_device::Keeps;
use units::{Generation, Instant, NodeId, NodeMask, SectorRange, VolumeNr};
use wire::{BlockRange, Dagtag, Features, Packet, PeerDagtag, Socket, UuidFlags, Uuids110};

/// While so much is not settled, nobody looks for each block through it.
const MOST_LOOKED_AT: usize = 4096;

impl Resource {
    // -- what a Primary's writes say of the others -------------------------------------------------------------------

    /// A write of a peer was refused, as the disk is given up: it is too old when it comes back, also if that peer is
    /// lost before it has begun a generation without it.
    pub(crate) fn lacks_peers_write(&mut self, volume: VolumeNr) {
        self.node.devices[volume].seen.lacks_peers_write |= self.in_mesh9() && !self.usable(volume);
    }

    /// Others are in need of the activity log.
    pub(crate) fn unsettled_leave_log(&mut self, volume: VolumeNr) {
        for peer in self.node.connections.ids() {
            let held = |write: &&mut Unsettled| write.volume == volume && write.log == InLog::Held;
            let mut left = Vec::new();
            for write in self.node.connections[peer].unsettled.iter_mut().filter(held) {
                write.log = InLog::Left;
                left.push(write.range);
            }
            for range in left {
                self.mark_for_others(peer, volume, range);
                self.node.devices[volume].release_al(range);
            }
        }
    }

    /// The disk's log is about to be emptied: what is not settled is marked.
    pub(crate) fn mark_all_unsettled(&mut self, volume: VolumeNr) {
        self.node.connections.ids().for_each(|other| self.mark_unsettled_for(other, volume));
    }

    /// What is not settled is marked for this peer, and for no other one: a mark of a block that was written in part
    /// does not go when all turn out to have it.
    pub(crate) fn mark_unsettled_for(&mut self, other: NodeId, volume: VolumeNr) {
        if !self.in_mesh9() {
            return;
        }
        let of_others = self.node.connections.iter().filter(|(peer, _)| *peer != other);
        let all = of_others.flat_map(|(_, c)| c.unsettled.iter());
        let open: Vec<_> = all.filter(|write| write.volume == volume).map(|write| write.range).collect();
        open.into_iter().for_each(|range| {
            self.mark_out_of_sync(other, volume, range);
        });
    }

    /// Something of another peer changes this disk, which the others may lack.
    pub(crate) fn mark_for_others(&mut self, peer: NodeId, volume: VolumeNr, range: SectorRange) {
        for other in self.node.connections.ids().filter(|other| *other != peer) {
            self.mark_out_of_sync(other, volume, range);
        }
    }

    /// Blocks are about to be read for a resync towards this peer: what is on the disk by now it gets, or it stays
    /// marked. It is not marked once more when a Primary says later that the peer lacks it.
    pub(crate) fn copies_unsettled(&mut self, peer: NodeId, volume: VolumeNr, range: SectorRange) {
        let mut copied = Vec::new();
        for c in self.node.connections.values_mut().filter(|c| c.unsettled.len() <= MOST_LOOKED_AT) {
            let on_disk = c.unsettled.iter_mut().filter(|write| write.volume == volume && write.log == InLog::Held);
            copied.extend(on_disk.filter_map(|write| write.is_read_for(peer, range)));
        }
        for range in copied {
            self.mark_out_of_sync(peer, volume, range);
        }
    }

    /// The peer has said who has some of its writes.
    pub(super) fn note_peer_ack(&mut self, peer: NodeId, told: &[Unsettled], has: NodeMask) {
        for write in told {
            if !self.node.devices.contains(write.volume) {
                continue;
            }
            for other in self.node.connections.ids().filter(|other| *other != peer) {
                if has.contains(other) && has.contains(self.node.cfg.node) {
                    self.node.devices[write.volume].clear_out_of_sync(other, write.range);
                } else if !has.contains(other) && !write.copied_to.contains(other) {
                    self.mark_out_of_sync(other, write.volume, write.range);
                    self.tell_target(other, write);
                }
            }
            if write.log == InLog::Held {
                self.node.devices[write.volume].release_al(write.range);
            }
        }
        self.node.connections.ids().filter(|other| *other != peer).for_each(|other| self.mark_unlogged(other));
    }

    /// What is not settled and not in the log stays marked, whatever was said of other writes to the same blocks.
    pub(super) fn mark_unlogged(&mut self, other: NodeId) {
        let of_others = self.node.connections.iter().filter(|(peer, _)| *peer != other);
        let all = of_others.flat_map(|(_, c)| c.unsettled.iter().copied());
        for write in all.filter(|write| write.log == InLog::Left).collect::<Vec<_>>() {
            self.mark_out_of_sync(other, write.volume, write.range);
        }
    }

    /// A node that is brought up to date from here lacks a write of a third one.
    fn tell_target(&mut self, other: NodeId, write: &Unsettled) {
        if self.node.state.is_source_of(other, write.volume) && self.node.connections[other].speaks9() {
            self.mark_overtaken(other, write.volume, write.range);
            let notice = BlockRange { sector: write.range.start, size: write.range.len() };
            self.send(other, Socket::Data, write.volume, Packet::OutOfSync(notice));
        }
    }

    // -- equal copies ------------------------------------------------------------------------------------------------

    /// A resync has ended elsewhere: two good copies of one generation, both of which get what one Primary writes, are
    /// equal. Of two that do not, one may have got what the other one lacks, or have another generation now: they
    /// connect anew, and compare.
    pub(crate) fn follow_equal_copies(&mut self, old: &State) {
        if !self.in_mesh9() {
            return;
        }
        for volume in self.node.devices.ids() {
            for peer in self.node.connections.ids() {
                let good = |s: &State| s.worst_disk(peer, volume) == DiskState::UpToDate;
                let bad = |disk| matches!(disk, DiskState::Inconsistent | DiskState::Outdated);
                let was_bad = bad(old.disk(volume)) || bad(old.peer_disk(peer, volume));
                let rested = |r: Replication| {
                    matches!(r, Replication::Established | Replication::PausedSyncS | Replication::PausedSyncT)
                };
                let at_rest = self.node.state.replication(peer, volume) == Replication::Established
                    && rested(old.replication(peer, volume));
                if !at_rest || !good(&self.node.state) || !was_bad {
                    continue;
                }
                match (self.has_this_generation(peer, volume), self.share_primary(peer, volume)) {
                    (true, true) if !self.is_heard_out(peer) && self.node.keeps_bits(peer, volume) => {}
                    (true, true) => self.count_as_equal(peer, volume),
                    (true, false) => {
                        let until = self.node.now + self.node.connections[peer].cfg.ping_timeout;
                        let keeps =
                            if self.has_witness(peer, volume) { Keeps::Awaited(until) } else { Keeps::LostWrites };
                        self.node.connections[peer].peer_devices[volume].lasting.keeps = keeps;
                        self.out.chores.mark();
                    }
                    (false, false) if self.node.connections[peer].peer_devices[volume].has_told_of_data() => {
                        self.node.connections[peer].peer_devices[volume].link.told.parted = true
                    }
                    (false, _) => {}
                }
            }
        }
    }

    pub(super) fn count_as_equal(&mut self, peer: NodeId, volume: VolumeNr) {
        if let Some((b, slot)) = self.node.devices[volume].bitmap_mut(peer) {
            b.fill(slot, false);
            self.write_bitmap(volume);
        }
        self.node.connections[peer].peer_devices[volume].lasting.keeps = Keeps::Nothing;
        self.retire_slot(peer, volume);
        self.mark_unlogged(peer);
    }

    // -- who may bring whom up to date -------------------------------------------------------------------------------

    /// A peer has part in a generation that a Primary has begun, which this node does not reach.
    pub(super) fn note_moved_on(&mut self, peer: NodeId, volume: VolumeNr, packet: &Uuids110) {
        let at_rest = self.node.state.replication(peer, volume) == Replication::Established;
        let depends = !packet.flags.contains(UuidFlags::STABLE) && !packet.flags.contains(UuidFlags::INCONSISTENT);
        if self.in_mesh9() && at_rest && depends && !self.has_this_generation(peer, volume) {
            self.outdate_beside(packet.nodes.nodes(), false);
        }
    }

    // -- a lost Primary ----------------------------------------------------------------------------------------------

    /// A link has gone: what its peer wrote, and did not say who has it, may be here alone.
    pub(crate) fn note_lost_writes(&mut self, peer: NodeId) {
        let mut left: Vec<_> = std::mem::take(&mut self.node.connections[peer].unsettled).into();
        left.retain(|write| self.node.devices.contains(write.volume));
        for other in self.node.connections.ids().filter(|other| *other != peer) {
            for write in &left {
                self.mark_out_of_sync(other, write.volume, write.range);
                self.tell_target(other, write);
                self.node.connections[other].peer_devices[write.volume].lasting.keeps = Keeps::LostWrites;
            }
        }
        for write in left.iter().filter(|write| write.log == InLog::Held) {
            self.node.devices[write.volume].release_al(write.range);
        }
    }

    /// Once a turn: two that differ in what a lost Primary wrote connect anew, and compare.
    pub(crate) fn reconcile(&mut self) {
        if !self.in_mesh9() {
            return;
        }
        for peer in self.node.connections.ids() {
            let differ = |volume| self.is_unreconciled(peer, volume) && self.node.witness_timer(peer, volume).is_none();
            if !self.awaits_survivor(peer) && self.node.devices.ids().any(differ) {
                let text =
                    "what a lost Primary wrote, or a third node had, is not on both nodes: connecting anew".to_owned();
                self.out.compare_anew(peer, Topic::Reconcile, text);
            }
        }
    }

    /// Names it in a handshake.
    pub(super) fn tell_lost_primary(&mut self, peer: NodeId) -> Option<LostPrimary> {
        let able = self.in_mesh9() && self.node.connections[peer].has(Features::RECONCILE_RECONNECT);
        let lost = self.lost_primary(peer).filter(|_| able)?;
        let packet = PeerDagtag { dagtag: Dagtag(lost.at), node: lost.node };
        self.send_connection(peer, Socket::Data, Packet::PeerDagtag(packet));
        Some(lost)
    }

    // -- a Primary's generations -------------------------------------------------------------------------------------

    /// Who has crashed as Primary, and knows by now that others have gone on, is the source of nobody for that. Not who
    /// is about to get what a survivor of its generation has.
    pub(super) fn follow_outdated(&mut self, old: &State) {
        for volume in self.node.devices.ids().filter(|_| self.in_mesh9()).collect::<Vec<_>>() {
            let from_survivor = |(peer, p): (NodeId, &PairState)| {
                p.replication == Replication::WFBitMapT && self.has_this_generation(peer, volume)
            };
            let gets = self.node.state.pairs(volume).any(from_survivor);
            if old.disk(volume) > DiskState::Outdated && self.node.state.disk(volume) == DiskState::Outdated && !gets {
                self.node.devices[volume].disk.crashed_primary = false;
            }
        }
    }

    /// A disk comes into use while several are connected: they compare at the next handshake, as it is there by then.
    pub(crate) fn leave_for_attach(&mut self, volume: VolumeNr) {
        for peer in self.node.connections.ids().filter(|peer| self.node.state.is_connected(*peer)).collect::<Vec<_>>() {
            self.out.note(
                Severity::Info,
                Some(volume),
                Some(peer),
                Topic::AttachReconnects,
                "connecting anew with the disk",
            );
            let text = "a disk comes into use: connecting anew".to_owned();
            self.out.compare_anew(peer, Topic::AttachReconnects, text);
            self.end_links();
        }
    }
}

impl Node {
    /// Two of several are equal by what a third node is to each of them, or says, and this one has marked something for
    /// the peer: that stays. The Primary that both see may be a process that followed on the one that the peer means,
    /// whose death the peer has not noticed. The Primary says itself who has what, or the two compare when it is gone.
    pub(super) fn keeps_bits(&mut self, peer: NodeId, volume: VolumeNr) -> bool {
        let keeps = self.in_mesh9() && self.devices[volume].bits_left(peer) > 0;
        let why = &mut self.connections[peer].peer_devices[volume].lasting.keeps;
        *why = if keeps { Keeps::Doubted.max(*why) } else { *why };
        keeps
    }

    /// Two of several connect, and are equal by what they told each other. Whose rules the peer has is known, or it is
    /// to say first what it has come to: it may have found that something is to be copied (5.8.2, "Follow").
    pub(super) fn keeps_bits_at_first(&mut self, peer: NodeId, volume: VolumeNr) -> bool {
        let c = &self.connections[peer];
        if c.decides_by(Private::ReconcileByMarks) {
            return self.keeps_bits(peer, volume);
        }
        let waits = self.in_mesh9() && c.decides_by(Private::Follow) && self.devices[volume].bits_left(peer) > 0;
        self.connections[peer].peer_devices[volume].lasting.keeps = if waits { Keeps::Unheard } else { Keeps::Nothing };
        waits
    }

    /// A generation has begun: who has no part in it is known by that, not by whose Primary has crashed.
    pub(super) fn crash_is_past(&mut self, volume: VolumeNr) {
        if self.in_mesh9() {
            self.devices[volume].disk.crashed_primary = false;
        }
    }

    /// The disk's log is gone.
    pub(crate) fn unsettled_forget_log(&mut self, volume: VolumeNr) {
        let all = self.connections.values_mut().flat_map(|c| c.unsettled.iter_mut());
        all.filter(|write| write.volume == volume).for_each(|write| write.log = InLog::OfWrite);
    }
}

impl Node {
    /// Are there several peers, of which some speak 9's dialect, or would, and none 8.4's? Beside one that does there
    /// is no other.
    #[must_use]
    pub fn in_mesh9(&self) -> bool {
        let of_84 = |c: &Connection| c.dialect().is_some_and(|dialect| !dialect.version.is_9());
        let several = self.connections.len() > 1;
        several && self.has_peers_of_9() && !self.connections.values().any(of_84)
    }

    /// Is a node Primary, as far as this one sees?
    pub(super) fn sees_primary(&self) -> bool {
        !self.primaries_in_sight().is_empty()
    }

    /// Nodes that are Primary, as far as this one sees; perhaps itself.
    fn primaries_in_sight(&self) -> NodeMask {
        let own = Some(self.cfg.node).filter(|_| self.state.is_primary());
        self.state.primary_peers().into_iter().chain(own).collect()
    }

    /// Is there a Primary whose writes both get, or is one of them that?
    fn share_primary(&self, peer: NodeId, volume: VolumeNr) -> bool {
        let sight = self.primaries_in_sight();
        let seen = self.connections[peer].peer_devices[volume].told_primaries();
        self.state.is_primary() || sight.contains(peer) || !sight.and(seen).is_empty()
    }

    /// Has a target that ends its resync waited until the peer had heard from their Primary who has what? Then the peer
    /// means the same process as this node.
    fn is_heard_out(&self, peer: NodeId) -> bool {
        let asked = |n: NodeId| n == self.cfg.node || self.connections[n].version() >= FLUSHES;
        asked(peer) && self.primaries_in_sight().into_iter().all(asked)
    }

    pub(super) fn has_this_generation(&self, peer: NodeId, volume: VolumeNr) -> bool {
        let theirs = self.connections[peer].peer_devices[volume].told_current();
        self.devices[volume].backing.as_ref().zip(theirs).is_some_and(|(b, theirs)| b.md.current.same(theirs))
    }

    /// Which connected peers have the generation that a resync brought.
    pub(super) fn nodes_with(&self, volume: VolumeNr, current: Generation) -> NodeMask {
        let has = |peer: &NodeId| {
            self.connections[*peer].peer_devices[volume].told_current().is_some_and(|theirs| theirs.same(current))
        };
        self.connections.ids().filter(|peer| self.state.replicates(*peer, volume) && has(peer)).collect()
    }

    /// Are bits kept for a lost Primary's writes among them?
    pub(super) fn keeps_lost_writes(&self, peer: NodeId, volume: VolumeNr) -> bool {
        matches!(self.connections[peer].peer_devices[volume].lasting.keeps, Keeps::LostWrites | Keeps::Awaited(_))
            && self.devices[volume].bits_left(peer) > 0
    }

    /// Must no resync between this node and a peer begin? A Primary is brought up to date by nobody, and of a node that
    /// reaches one that one is the first source. Who copies from a node that depends on a Primary is not up to date by
    /// that (see [`is_unstable`](Resource::is_unstable)).
    pub(super) fn why_no_resync(
        &self,
        peer: NodeId,
        volume: VolumeNr,
        source: bool,
        theirs: &Uuids110,
    ) -> Option<Reason> {
        self.why_not_from(peer, volume, source, theirs, |sight, _| {
            if source { sight.and(NodeMask::of(peer)) } else { sight.without(NodeMask::of(peer)) }
        })
    }

    /// The same where what is added to a device is to be copied: not from who depends on a Primary, unless that one
    /// brings the target up to date.
    pub(super) fn why_not_grown(
        &self,
        peer: NodeId,
        volume: VolumeNr,
        source: bool,
        theirs: &Uuids110,
    ) -> Option<Reason> {
        let own = NodeMask::of(self.cfg.node);
        self.why_not_from(peer, volume, source, theirs, |sight, told| {
            if source { sight.without(own).without(told) } else { sight.without(NodeMask::of(peer)).or(told) }
        })
    }

    /// `comes_first`: the Primaries that must be a target's sources first, of those that this node sees and those that
    /// the peer has told of.
    fn why_not_from(
        &self,
        peer: NodeId,
        volume: VolumeNr,
        source: bool,
        theirs: &Uuids110,
        comes_first: impl Fn(NodeMask, NodeMask) -> NodeMask,
    ) -> Option<Reason> {
        if !self.in_mesh9() {
            return None;
        }
        let mut others = self.connections.ids().filter(|other| *other != peer);
        if !source && others.any(|other| self.devices.ids().any(|volume| self.state.is_source_of(other, volume))) {
            return Some(Reason::SourceOfAnother);
        }
        // A further source of a target waits.
        if theirs.flags.contains(UuidFlags::SYNC_TARGET) || !source && self.active_source_of_any(peer) {
            return None;
        }
        let first = comes_first(self.primaries_in_sight(), theirs.primaries());
        let others = self.state.sources_to_be(volume).or(self.state.writers_without_disk(volume));
        let first = if source { first } else { first.without(others) };
        (!first.is_empty()).then_some(Reason::SourceDependsOnPrimary)
    }

    /// May a resync or verify by command begin between this node and a peer? The Primary must be one of both, and the
    /// source, unless it has no disk that a copy could be taken from; and the target none of another one.
    pub(crate) fn may_copy(&self, peer: NodeId, volume: VolumeNr, replication: Replication) -> bool {
        if !self.in_mesh9() {
            return true;
        }
        let own = self.cfg.node;
        let sources = match replication {
            Replication::StartingSyncS | Replication::WFBitMapS => NodeMask::of(own),
            Replication::StartingSyncT | Replication::WFBitMapT => NodeMask::of(peer),
            _ => NodeMask::of(own).with(peer),
        };
        let verifies = matches!(replication, Replication::VerifyS | Replication::VerifyT);
        let disk = |n: NodeId| if n == own { self.state.disk(volume) } else { self.state.peer_disk(n, volume) };
        let counts = |primary: &NodeId| verifies || disk(*primary) != DiskState::Diskless;
        let primaries: NodeMask = self.primaries_in_sight().into_iter().filter(counts).collect();
        primaries.without(sources).is_empty() && self.source_of_target(peer).is_none()
    }

    fn active_source_of_any(&self, peer: NodeId) -> bool {
        self.devices.ids().any(|volume| self.active_source(volume, peer).is_some())
    }

    /// Is a resync going on here that a promotion would come in the way of: a node that is brought up to date must have
    /// all that is written, and from whom it gets that too.
    pub(crate) fn is_target9(&self) -> bool {
        self.in_mesh9() && self.source_of_target(self.cfg.node).is_some()
    }

    /// Is there a third node that has the same as this one, and says of whom it has brought up to date that it has it,
    /// too? Beside a kernel, which does not say so, nobody waits for it.
    fn has_witness(&self, peer: NodeId, volume: VolumeNr) -> bool {
        let equal = |n: NodeId| {
            self.state.replication(n, volume) == Replication::Established
                && self.state.worst_disk(n, volume) == DiskState::UpToDate
                && self.has_this_generation(n, volume)
                && self.devices[volume].bits_left(n) == 0
        };
        let says = |c: &Connection| c.decides_by(Private::SaysWhoHasAll);
        self.connections.iter().any(|(n, c)| n != peer && says(c) && equal(n))
    }

    fn witness_timer(&self, peer: NodeId, volume: VolumeNr) -> Option<Instant> {
        match self.connections[peer].peer_devices[volume].lasting.keeps {
            Keeps::Awaited(until) if self.now < until && self.is_unreconciled(peer, volume) => Some(until),
            _ => None,
        }
    }

    /// When the first two compare, of which nobody has said that they are equal.
    pub(crate) fn witnesses_timer(&self) -> Option<Instant> {
        // Of two nobody is a witness.
        if self.connections.len() < 2 {
            return None;
        }
        let all = self.connections.ids().flat_map(|peer| self.devices.ids().map(move |volume| (peer, volume)));
        all.filter_map(|(peer, volume)| self.witness_timer(peer, volume)).min()
    }

    /// Do the two differ in what a lost Primary wrote, or a third node had, and does nobody write by now?
    pub(crate) fn is_unreconciled(&self, peer: NodeId, volume: VolumeNr) -> bool {
        let pd = &self.connections[peer].peer_devices[volume];
        let told = pd.link.told.uuids110.as_ref().is_some_and(|u| u.flags.contains(UuidFlags::STABLE));
        let good = self.state.worst_disk(peer, volume) == DiskState::UpToDate;
        let differ = pd.lasting.keeps >= Keeps::Doubted && self.devices[volume].bits_left(peer) > 0
            || pd.link.told.parted && !self.has_this_generation(peer, volume);
        differ
            && told
            && good
            && self.state.replication(peer, volume) == Replication::Established
            && self.primaries_in_sight().is_empty()
    }

    /// Does this node differ from a connected one in what a lost Primary wrote?
    pub(crate) fn reconciles(&self) -> bool {
        let pair = |peer: NodeId| self.devices.ids().any(|volume| self.is_unreconciled(peer, volume));
        self.in_mesh9() && self.connections.ids().any(pair)
    }

    /// The peer, other than this one, that was lost: if it is exactly one of which writes were heard (7.7).
    pub(super) fn lost_primary(&self, peer: NodeId) -> Option<LostPrimary> {
        let away = |(other, _): &(NodeId, _)| *other != peer && !self.state.is_connected(*other);
        let mut lost = self
            .connections
            .iter()
            .filter(away)
            .filter_map(|(node, c)| Some(LostPrimary { node, at: c.heard_at.filter(|at| *at > 0)? }));
        let first = lost.next()?;
        lost.next().is_none().then_some(first)
    }

    /// Are all peers there that have, or may have, data?
    pub(crate) fn all_together(&self, volume: VolumeNr) -> bool {
        let there = |(peer, pair): (NodeId, &PairState)| {
            self.devices[volume].slot(peer).is_none()
                || pair.replication >= Replication::Established && pair.disk >= DiskState::Inconsistent
        };
        self.state.pairs(volume).all(there)
    }

    /// May this node, which has crashed as Primary, have completed what others lack, as one of them is not here? With
    /// protocol C a write is complete when all have it that were there.
    pub(crate) fn has_writes_for_others(&self, volume: VolumeNr) -> bool {
        let early = self.connections.values().any(|c| c.cfg.protocol != Protocol::C);
        let good = |(peer, pair): (NodeId, &PairState)| {
            self.devices[volume].slot(peer).is_none()
                || self.state.is_connected(peer) && pair.disk == DiskState::UpToDate
        };
        early && self.in_mesh9() && !self.state.pairs(volume).all(good)
    }

    /// Has a target got what its source, which has crashed as Primary, has completed, and what others may lack? It is
    /// the source of those, too, as the mark travels with the data. Nor does one that has crashed so itself forget that
    /// by what it gets from a survivor: that is what is left of what it has completed, and who was away lacks it still.
    /// A Primary goes on with what it has.
    pub(super) fn has_got_from_crashed(&self, peer: NodeId, volume: VolumeNr) -> bool {
        let told = self.connections[peer].peer_devices[volume].link.told.uuids110.as_ref();
        let source = told.is_some_and(|u| u.flags.contains(UuidFlags::CRASHED_PRIMARY));
        let own = self.devices[volume].disk.crashed_primary && self.state.peers[peer].role() != Role::Primary;
        (source || own) && self.has_writes_for_others(volume)
    }

    /// A node whose disk is bad does not write beside several copies: who has what of that nobody would know. One
    /// without a disk writes on those of its peers.
    pub(crate) fn lacks_own_copy9(&self, volume: VolumeNr) -> bool {
        let disk = self.state.disk(volume);
        self.in_mesh9() && disk >= DiskState::Inconsistent && (!self.usable(volume) || disk != DiskState::UpToDate)
    }

    /// Is there a peer that this node has left for that, and has not met again yet? Who is promoted meanwhile would do
    /// so without asking it, and may lack what it has, or what a Primary writes there.
    pub(crate) fn awaits_who_was_left(&self) -> bool {
        let left = |c: &Connection| c.left_until.is_some_and(|until| self.now < until);
        let trying = ConnectionState::Unconnected..=ConnectionState::Connecting;
        let tries = |peer| trying.contains(&self.state.connection(peer));
        self.connections.iter().any(|(peer, c)| left(c) && tries(peer))
    }
}

impl Connection {
    /// A write of a peer is on the disk, or was refused: true if its extents are kept until the peer has said who has
    /// it.
    pub(crate) fn keeps_in_log(&mut self, at: Option<u64>) -> bool {
        let unsettled = self.unsettled.iter_mut().rev().find(|write| Some(write.at) == at);
        match unsettled.filter(|write| write.log == InLog::OfWrite) {
            Some(write) => {
                write.log = InLog::Held;
                true
            }
            None => false,
        }
    }
}
