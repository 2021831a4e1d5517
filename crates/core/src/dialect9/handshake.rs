//! What the nodes tell each other while a transaction is to connect them, and what they conclude
//! (`docs/spec/connection-and-state.md` 4.2, 5.1 to 5.6, 5.8).

pub(crate) mod attempt;
mod conflict;
mod without_disk;

use crate::Resource;
use crate::api::{ConnectionState, Event, Severity};
use crate::config::Protocol;
use crate::connection::Connection;
use crate::decide::change::{Change, Set};
use crate::decide::private::{Decides, Private};
use crate::decide::split_brain::{RrConflict, Side};
use crate::decide::state::Replication;
use crate::decide::topic::Topic;
use crate::decide::uuid9::Strategy;
use crate::decide::view::Kind;
use crate::decide::{DiskState, Handler, Reason, direction9, handshake84, sizes, uuid9};
use crate::dialect9::handshake::attempt::{Attempt, Begins, Outcome, Part, Preparation, Told, Verdict, WithoutDisk};
use crate::dialect9::mesh::unsettled::LostPrimary;
use crate::dialect9::survivors::loss::PATIENCE;
use crate::node::Node;
use units::{Generation, Instant, NodeId, Sector, SectorRange, VolumeNr};
use wire::{PeerDagtag, Role, StateWord, UuidFlags, Uuids110};

impl Resource {
    /// Says everything about every volume: what the peer needs to decide (5.1).
    pub(crate) fn send_attempt(&mut self, peer: NodeId) {
        let volumes = self.node.devices.map(|_| Part::default());
        let verdict = if volumes.is_empty() { Verdict::Connect } else { Verdict::Open };
        if let Some(nine) = self.node.connections[peer].nine_mut() {
            nine.attempt = Some(Attempt { volumes, verdict, lost: [None; 2], speaks: None });
            nine.refused = None;
        }
        let lost = self.tell_lost_primary(peer);
        if let Some(attempt) = self.node.connections[peer].attempt_mut() {
            attempt.lost[0] = lost;
        }
        for volume in self.node.devices.ids() {
            self.node.connections[peer].peer_devices[volume].link.told.sizes = None;
            self.send_sync_param(peer, volume);
            let sent = self.uuids110(peer, volume, UuidFlags::NONE).map(|u| (u, self.disk_in_handshake(volume)));
            let exposed = self.node.devices[volume].seen.exposed;
            if let Some(part) = self.node.connections[peer].part_mut(volume) {
                part.exposed[0] = sent.is_none().then_some(exposed);
                part.sent = sent;
            }
            self.introduce(peer, volume);
        }
    }

    /// Whatever comes of it, it is over.
    pub(crate) fn forget_attempt(&mut self, peer: NodeId) {
        if let Some(nine) = self.node.connections[peer].nine_mut() {
            nine.attempt = None;
        }
        self.out.chores.mark();
        self.go_on_with_first_writes();
    }

    /// P_PEER_DAGTAG: the last write that the peer has of a node that it has lost.
    pub(crate) fn lost_primary_named(&mut self, peer: NodeId, named: &PeerDagtag) {
        if self.node.state.is_connected(peer) {
            return self.survivor_speaks(peer, LostPrimary { node: named.node, at: named.dagtag.0 });
        }
        if let Some(attempt) = self.node.connections[peer].attempt_mut() {
            attempt.lost[1] = Some(LostPrimary { node: named.node, at: named.dagtag.0 });
        }
    }

    /// The sizes do not fit.
    pub(crate) fn refuse_sizes9(&mut self, peer: NodeId, reason: Reason) {
        if self.node.state.is_connected(peer) {
            return self.out.protocol_error(peer, reason, reason.to_string());
        }
        self.judge_attempt(peer, Verdict::Disconnect(reason));
    }

    /// P_STATE while the nodes are not connected: the first one of an attempt decides, the others are about pauses.
    pub(crate) fn state_of_handshake(&mut self, peer: NodeId, volume: VolumeNr, theirs: &StateWord) {
        self.node.connections[peer].speaks_in_attempt(self.node.now);
        // Without an attempt it is left over from one that was given up.
        let Some(attempt) = self.node.connections[peer].attempt_mut() else { return };
        // A volume that was made since takes no part in it.
        let Some(part) = attempt.volumes.get_mut(volume) else { return };
        if let Some(outcome) = &mut part.outcome {
            let StateWord { aftr_isp, user_isp, quorum, .. } = *theirs;
            outcome.word = StateWord { aftr_isp, user_isp, quorum, ..outcome.word };
            return;
        }
        let verdict = match self.conclude(peer, volume, theirs) {
            Ok(outcome) => {
                let part = self.node.connections[peer].part_mut(volume);
                part.into_iter().for_each(|part| (part.outcome, part.missing) = (Some(outcome), false));
                Verdict::Connect
            }
            Err(verdict) => verdict,
        };
        self.judge_attempt(peer, verdict);
    }

    /// A volume of which the peer says nothing, while it speaks of others, it does not have: the nodes are connected
    /// without it.
    pub(crate) fn leave_out_missing(&mut self, peer: NodeId) {
        let Some(attempt) = self.node.connections[peer].attempt_mut() else { return };
        attempt.speaks = None;
        for part in attempt.volumes.values_mut() {
            part.missing = part.uuids.is_none() && part.outcome.is_none();
        }
        self.judge_attempt(peer, Verdict::Connect);
    }

    pub(super) fn judge_attempt(&mut self, peer: NodeId, verdict: Verdict) {
        let Some(attempt) = self.node.connections[peer].attempt_mut() else { return };
        let complete = attempt.volumes.values().all(|part| part.outcome.is_some() || part.missing);
        attempt.verdict = match (attempt.verdict, verdict) {
            (Verdict::Disconnect(reason), _) | (_, Verdict::Disconnect(reason)) => Verdict::Disconnect(reason),
            (Verdict::Retry(reason), _) | (_, Verdict::Retry(reason)) => Verdict::Retry(reason),
            _ if complete => Verdict::Connect,
            _ => Verdict::Open,
        };
        if let Verdict::Disconnect(reason) = attempt.verdict
            && let Some(nine) = self.node.connections[peer].nine_mut()
        {
            nine.refused = Some(reason);
        }
        self.handshake_went_on(peer);
    }

    /// What a volume becomes.
    fn conclude(&mut self, peer: NodeId, volume: VolumeNr, theirs: &StateWord) -> Result<Outcome, Verdict> {
        let part = self.node.connections[peer].part_mut(volume).cloned().unwrap_or_default();
        let (Some((sent, disk)), Some(uuids)) = (&part.sent, &part.uuids) else {
            return self.conclude_without_disk(peer, volume, &part, theirs);
        };
        if theirs.disk < DiskState::Negotiating {
            // It has lost its disk since it has told of it.
            return Err(Verdict::Retry(Reason::HandshakeChanged));
        }
        let peer_disk = handshake84::peer_disk_counts_as(theirs.disk, uuids.flags.contains(UuidFlags::INCONSISTENT));
        if self.has_changed_since(peer, volume, sent) {
            return Err(Verdict::Retry(Reason::HandshakeChanged));
        }
        let quorate = self.node.state.standing(volume).is_quorate();
        let own = Told { uuids: sent, disk: *disk, role: self.node.state.role, quorate };
        let other = Told { uuids, disk: peer_disk, role: theirs.role, quorate: theirs.quorum };
        let Begins { replication, bitmap } = self.compare9(peer, volume, [own, other])?;
        let grown = self.has_grown_alone(peer, volume, &part).filter(|_| replication == Replication::Established);
        if let Some(reason) = grown.and_then(|source| self.why_not_grown(peer, volume, source, uuids)) {
            return Err(Verdict::Retry(reason));
        }
        self.judge_two_primaries(peer, theirs.role)?;
        Ok(Outcome { bitmap, replication, disk: peer_disk, word: *theirs, without_disk: WithoutDisk::Nothing })
    }

    /// Two Primaries meet: may they?
    fn judge_two_primaries(&mut self, peer: NodeId, theirs: Role) -> Result<(), Verdict> {
        let both = [self.node.state.role, theirs] == [Role::Primary; 2];
        if !both || self.node.connections[peer].cfg.two_primaries {
            return Ok(());
        }
        if self.node.connections[peer].cfg.rr_conflict == RrConflict::RetryConnect {
            self.out.says_it_tries_again(peer, Reason::TwoPrimariesMeet);
            return Err(Verdict::Retry(Reason::TwoPrimariesMeet));
        }
        Err(Verdict::Disconnect(Reason::TwoPrimariesMeet))
    }

    /// What follows from what two nodes have told each other.
    fn compare9(&mut self, peer: NodeId, volume: VolumeNr, [own, other]: [Told<'_>; 2]) -> Result<Begins, Verdict> {
        let c = &self.node.connections[peer];
        let (a, b) = (own.uuids, other.uuids);
        let ([mine, theirs], gate) = self.lost_primaries_named(peer);
        let side = |node, uuids, disk, lost_primary| uuid9::Side { node, uuids, disk, lost_primary };
        let found = uuid9::with_disks(&uuid9::Input {
            me: side(self.node.cfg.node, a, own.disk, mine),
            peer: side(peer, b, other.disk, theirs),
            protocol: c.version(),
            early: c.cfg.protocol != Protocol::C,
            resolve_conflicts: c.resolve_conflicts(),
            gate,
        });
        let found = self.by_own_rules(peer, found, [own, other]).unwrap_or(found);
        let found = self.missed_finish_without_bits(peer, volume, found, own.role);
        let text = format!("generations compared: {}: {}", found.rule, found.strategy);
        self.out.tell(Severity::Info, Some(volume), Some(peer), found.rule, Event::Compared9(found.strategy), text);
        if self.in_mesh9() && has_parted(found.strategy) && (is_target(own.uuids) || is_target(other.uuids)) {
            // It has its source's generation soon.
            return Err(Verdict::Retry(Reason::TargetOfAnother));
        }
        let waits = self.node.connections[peer].decides_by(Private::CrashedComesFirst);
        if waits && found.rule == Reason::ReconcileBitmap && self.node.lets_crashed_come_first(peer, [own, other]) {
            return Err(Verdict::Retry(Reason::CrashedPrimaryAway));
        }
        let (strategy, reason) = self.direction(peer, volume, found, [own, other]);
        let sides = ([own, other], self.in_mesh9());
        if self.node.begins_before_overwritten(peer, volume, (strategy, reason), sides) {
            self.node.devices[volume].first_write_begins();
            self.begin_among_peers9(volume);
            if self.node.devices[volume].generation_in_flight() {
                return Err(Verdict::Retry(Reason::HandshakeChanged));
            }
        }
        let begins = self.node.begins_by(peer, strategy, reason, sides);
        let policy = self.node.connections[peer].cfg.rr_conflict;
        self.out.says_primary_is_lost(policy, (peer, volume), &begins);
        if let Err(Verdict::Retry(reason @ Reason::FrozenGivesIn)) = begins {
            self.out.note(Severity::Warning, Some(volume), Some(peer), reason, reason.to_string());
            self.gives_in(volume);
        }
        // What begins, not what was found: a Primary is the source of who crashed as one.
        let source = match begins {
            Ok(Replication::WFBitMapS) => Some(true),
            Ok(Replication::WFBitMapT) => Some(false),
            _ => None,
        };
        let wanted = in_step([own, other]) && !self.node.connections[peer].decides_by(Private::InStep);
        let reason = source.and_then(|source| self.why_no_resync(peer, volume, source, b));
        // Two that both get what one Primary writes: who has no such rule insists on it, and they would never connect.
        if let Some(reason) = reason.filter(|reason| !wanted || *reason != Reason::SourceDependsOnPrimary) {
            return Err(Verdict::Retry(reason));
        }
        if let Ok(begins) = begins {
            self.beside_another_source((peer, volume), begins, [own, other]).map_err(Verdict::Retry)?;
        }
        if begins.is_err() && has_parted(strategy) && !self.node.looks_on(peer, volume) {
            self.note_split_brain(peer, volume, other.uuids.dirty_bits);
            self.out.handler(Handler::SplitBrain, Some(volume), Some(peer));
        }
        Ok(Begins { replication: begins?, bitmap: Preparation::of(strategy) })
    }

    /// A resync has ended, its source did not hear of that, and nothing is marked: the source forgets what its slot
    /// counts from, and the next attempt finds both equal (7.5). Only a Primary must not go on until then (5.8.1, step
    /// 2).
    fn missed_finish_without_bits(
        &mut self,
        peer: NodeId,
        volume: VolumeNr,
        found: uuid9::Comparison,
        role: Role,
    ) -> uuid9::Comparison {
        match found.strategy {
            Strategy::Retry if found.rule == Reason::SourceMissedFinish => {
                self.retire_slot(peer, volume);
                found
            }
            Strategy::RequiresProtocol124 if role != Role::Primary => {
                uuid9::Comparison { strategy: Strategy::TargetUseBitmap, ..found }
            }
            _ => found,
        }
    }

    /// A connected peer's state, when the generations are to be compared anew: what it comes to is added to `change`.
    pub(super) fn reconsider9(
        &mut self,
        peer: NodeId,
        volume: VolumeNr,
        theirs: &StateWord,
        change: &mut Change,
    ) -> bool {
        let Some(sent) = self.uuids110(peer, volume, UuidFlags::NONE) else { return true };
        let Some(uuids) = self.node.connections[peer].peer_devices[volume].link.told.uuids110.clone() else {
            return true;
        };
        let bad = uuids.flags.contains(UuidFlags::INCONSISTENT);
        let quorate = self.node.state.standing(volume).is_quorate();
        // What a Primary attaches its users do not see: nothing of theirs is lost if it is brought up to date.
        let unseen = self.node.state.is_primary() && self.node.state.disk(volume) == DiskState::Negotiating;
        let most = if unseen { DiskState::Outdated } else { DiskState::UpToDate };
        let disk = self.disk_in_handshake(volume).min(most);
        let own = Told { uuids: &sent, disk, role: self.node.state.role, quorate };
        let peer_disk = handshake84::peer_disk_counts_as(theirs.disk, bad);
        let other = Told { uuids: &uuids, disk: peer_disk, role: theirs.role, quorate: theirs.quorum };
        match self.compare9(peer, volume, [own, other]) {
            Ok(Begins { replication, bitmap }) => {
                self.prepare_bitmap(peer, volume, bitmap);
                let good =
                    replication == Replication::Established && self.disk_in_handshake(volume) == DiskState::UpToDate;
                if theirs.disk != DiskState::Negotiating {
                    change.push(Set::PeerDisk(peer, volume, peer_disk));
                } else if good {
                    change.push(Set::PeerDisk(peer, volume, DiskState::UpToDate));
                }
                change.push(Set::Replication(peer, volume, replication));
                if self.node.state.disk(volume) == DiskState::Negotiating && replication != Replication::WFBitMapT {
                    change.push(Set::Disk(volume, self.disk_in_handshake(volume)));
                }
            }
            // Who attaches decides what that means.
            Err(Verdict::Disconnect(_)) if theirs.disk == DiskState::Negotiating => {}
            Err(Verdict::Disconnect(reason)) if self.node.state.disk(volume) == DiskState::Negotiating => {
                let text = format!("this disk cannot be used beside the peer's: {reason}");
                self.out.note(Severity::Error, Some(volume), Some(peer), Topic::AttachRefused, text);
                self.took_place(Set::Disk(volume, DiskState::Failed));
                return false;
            }
            Err(Verdict::Disconnect(reason)) => {
                self.out.refuse_peer(peer, reason);
                return false;
            }
            // `rr-conflict retry-connect`: connected nodes part, and try again each second.
            Err(Verdict::Retry(reason @ (Reason::PrimaryWouldBeTarget | Reason::FrozenGivesIn))) => {
                self.out.retry_later(peer, reason, reason.to_string());
                return false;
            }
            Err(_) => {}
        }
        true
    }

    /// Two connected nodes of which no Primary can have written more to the one than to the other any more: their
    /// generations are compared anew (5.9).
    pub(super) fn compare_when_stable(&mut self, peer: NodeId, volume: VolumeNr) {
        let Some(uuids) = self.node.connections[peer].peer_devices[volume].link.told.uuids110.clone() else { return };
        let Some(sent) = self.uuids110(peer, volume, UuidFlags::NONE) else { return };
        let (disk, peer_disk) = (self.node.state.disk(volume), self.node.state.peer_disk(peer, volume));
        if !self.in_mesh9() || disk.min(peer_disk) < DiskState::Inconsistent || sent.current.same(uuids.current) {
            return;
        }
        let (quorate, said) =
            (self.node.state.standing(volume).is_quorate(), self.node.state.pair(peer, volume).quorate);
        let own = Told { uuids: &sent, disk, role: self.node.state.role, quorate };
        let role = self.node.state.peers[peer].role();
        let other = Told { uuids: &uuids, disk: peer_disk, role, quorate: said };
        let Ok(Begins { replication, bitmap }) = self.compare9(peer, volume, [own, other]) else { return };
        if replication == Replication::Established {
            return;
        }
        self.prepare_bitmap(peer, volume, bitmap);
        self.node.connections[peer].awaits_bitmap(self.node.now);
        self.begin_resync9(peer, volume, replication);
    }

    /// Connected nodes have found out that one lacks something.
    pub(super) fn begin_resync9(&mut self, peer: NodeId, volume: VolumeNr, replication: Replication) {
        if let Err(refusal) = self.make(Set::Replication(peer, volume, replication), Kind::Fact) {
            let text = format!("a resync cannot begin: {}", refusal.code);
            self.out.note(Severity::Warning, Some(volume), Some(peer), Topic::ResyncRefused, text);
        }
    }

    /// What people want of it: after a split brain, and of a node that is to discard its data.
    fn direction(
        &mut self,
        peer: NodeId,
        volume: VolumeNr,
        found: uuid9::Comparison,
        [own, other]: [Told<'_>; 2],
    ) -> (Strategy, Reason) {
        let several = self.in_mesh9() && self.node.connections[peer].decides_by(Private::OneChangeAtLeast);
        let side = |told: Told<'_>, peer: NodeId| Side {
            role: told.role,
            disk: told.disk,
            discard_my_data: told.uuids.flags.contains(UuidFlags::DISCARD_MY_DATA),
            was_primary: told.uuids.bitmap(peer).unwrap_or_default().0 & 1 != 0,
            // Among several nodes what is marked for the peer is not all that would be lost: the peer may have got it
            // in a resync that broke off, and have been overwritten by a third node since. Who has begun a generation
            // has written.
            changes: told.uuids.dirty_bits.max(u64::from(several)),
        };
        let parted = matches!(found.strategy, Strategy::SplitBrainAutoRecover | Strategy::SplitBrainDisconnect);
        // A Primary that attaches had its writes on the peer alone so far: no policy may choose its old disk.
        let attaches = |disk: DiskState, role: Role| disk == DiskState::Negotiating && role == Role::Primary;
        let own_attaches = attaches(self.node.state.disk(volume), own.role);
        let old = parted && (own_attaches || attaches(self.node.state.peer_disk(peer, volume), other.role));
        let c = &self.node.connections[peer];
        let (strategy, reason) = direction9::wanted(&direction9::Input {
            found: if old { Strategy::SplitBrainDisconnect } else { found.strategy },
            rule: found.rule,
            protocol: c.version(),
            me: side(own, peer),
            peer: side(other, self.node.cfg.node),
            policies: c.cfg.after_sb,
            always_asbp: c.cfg.always_asbp,
            resolve_conflicts: c.resolve_conflicts(),
            quorate: self.node.cfg.quorum.is_on().then_some((own.quorate, other.quorate)),
        });
        if parted && !self.node.looks_on(peer, volume) {
            self.out.handler(Handler::InitialSplitBrain, Some(volume), Some(peer));
        }
        if strategy != found.strategy {
            let text = format!("{reason}: {strategy}");
            self.out.note(Severity::Info, Some(volume), Some(peer), reason, text);
        }
        (strategy, reason)
    }

    /// The nodes are connected: what the attempt came to takes place, of all volumes at once.
    pub(crate) fn carry_out_attempt(&mut self, peer: NodeId) {
        let Some(attempt) = self.node.connections[peer].nine_mut().and_then(|nine| nine.attempt.take()) else { return };
        if attempt.volumes.iter().any(|(volume, part)| self.has_moved_since(peer, volume, part)) {
            let reason = Reason::HandshakeChanged;
            let text = format!("{reason}: connecting anew");
            self.out.drop_link(peer, ConnectionState::NetworkFailure, reason, text);
            return self.go_on_with_first_writes();
        }
        let mut change = Change::from(Set::Connection(peer, ConnectionState::Connected));
        change.push(Set::Members(self.node.state.may_be_online().with(peer)));
        let mut grown = Vec::new();
        for (volume, part) in attempt.volumes.iter() {
            let Some(outcome) = part.outcome else { continue };
            if self.has_become_target(peer, volume, part) {
                self.send_uuids110(peer, volume, UuidFlags::NONE);
            }
            self.forget_equal_bits(peer, volume, part, outcome);
            self.carry_out_without_disk(peer, volume, (outcome.without_disk, part.exposed[1]), &mut change);
            self.prepare_bitmap(peer, volume, outcome.bitmap);
            self.lacks_what_comes(peer, volume, outcome.replication);
            let alone = self.follow_size(peer, volume, part);
            grown.extend(
                alone.filter(|_| outcome.replication == Replication::Established).map(|source| (volume, source)),
            );
            change.push(Set::PeerRole(peer, volume, outcome.word.role));
            change.push(Set::PeerQuorate(peer, volume, outcome.word.quorum));
            change.push(Set::PeerDisk(peer, volume, self.disk_when_connected(volume, part, outcome)));
            change.push(Set::PausedByPeer(peer, volume, outcome.word.aftr_isp || outcome.word.user_isp));
            change.push(Set::Replication(peer, volume, outcome.replication));
        }
        let c = &mut self.node.connections[peer];
        (c.discard_my_data, c.survivor_insists, c.crashed_until) = (false, false, None);
        c.peer_devices.values_mut().for_each(|pd| {
            pd.link.compared.done = true;
            pd.link.told.forget_words_before_connect();
            pd.resync.ended = None;
        });
        if let Err(refusal) = self.make(change, Kind::Fact) {
            let text = format!("what was agreed on cannot take place: {}", refusal.code);
            return self.out.protocol_error(peer, Topic::HandshakeRefused, text);
        }
        self.note_let_in();
        // Those that were made since it began.
        for volume in self.node.devices.ids().filter(|volume| !attempt.volumes.contains(*volume)) {
            self.send_sync_param(peer, volume);
            self.introduce(peer, volume);
        }
        self.awaits_conclusion(peer);
        for (volume, source) in grown {
            self.begin_grown_area9(peer, volume, source);
            self.settle();
        }
        self.go_on_with_first_writes();
    }

    /// The device gets the size that the nodes have in common; what one of them lacks is marked. Returns whether that
    /// is the peer.
    fn follow_size(&mut self, peer: NodeId, volume: VolumeNr, part: &Part) -> Option<bool> {
        let [size, theirs] = self.size_when_connected(peer, volume, part)?;
        let (own, alone) = (self.node.devices[volume].size, self.has_grown_alone(peer, volume, part));
        if alone == Some(true) {
            self.mark_out_of_sync(peer, volume, SectorRange { start: theirs, end: own });
            self.write_bitmap(volume);
        }
        if size != own {
            self.adopt_size(volume, size, true);
            let connected =
                self.node.connections.ids().filter(|n| *n != peer && self.node.state.replicates(*n, volume));
            for n in connected.collect::<Vec<_>>() {
                self.send_sizes(n, volume);
                if size > own && !self.node.state.has_primary(n, volume) {
                    self.node.connections[n].peer_devices[volume].lasting.keeps = crate::peer_device::Keeps::LostWrites;
                }
            }
        }
        alone
    }

    fn prepare_bitmap(&mut self, peer: NodeId, volume: VolumeNr, what: Preparation) {
        if let Some((b, slot)) = self.node.devices[volume].bitmap_mut(peer).filter(|_| what != Preparation::AsIs) {
            b.fill(slot, true);
            self.write_bitmap(volume);
        }
        if what == Preparation::SetForTarget {
            self.counts_from_target(peer, volume);
        }
    }

    /// All is copied to a peer: from now on this node knows of each block whether the peer has it, so that a resync
    /// that is interrupted goes on, and does not begin anew (5.8.1, step 15). Only of a generation that is older than
    /// this node's anyhow: of one that has parted from it, and is given up at the peer, a third node may have a good
    /// copy.
    fn counts_from_target(&mut self, peer: NodeId, volume: VolumeNr) {
        let (Some(theirs), position) =
            (self.node.connections[peer].peer_devices[volume].told_current(), self.positions.own())
        else {
            return;
        };
        let Some(b) = &mut self.node.devices[volume].backing else { return };
        let Some(node) = NodeId::new(b.md.owner(peer) as u8) else { return };
        let mut past = b.md.history.iter().copied().chain(b.md.peers.iter().map(|record| record.bitmap_uuid));
        let older = !theirs.is_none() && !theirs.same(b.md.current) && past.any(|g| g.same(theirs));
        if older {
            b.md.set_bitmap_uuid(node, theirs.base(), position);
            self.generation_changed(volume);
        }
    }

    /// A further source of a target: what is still to come from the first one is not here either.
    fn lacks_what_comes(&mut self, peer: NodeId, volume: VolumeNr, replication: Replication) {
        let first = self.active_source(volume, peer).filter(|_| replication == Replication::WFBitMapT);
        let first = first.and_then(|first| self.node.devices[volume].slot(first));
        if let Some((first, (b, slot))) = first.zip(self.node.devices[volume].bitmap_mut(peer)) {
            b.add_marks(slot, first);
            self.write_bitmap(volume);
        }
    }

    /// Two good copies of one generation: no bitmap is needed (2.7, row 2). What a write that failed has marked stays:
    /// the peer may have it, and `consider_repair` has it copied; a kernel forgets that, too.
    fn forget_equal_bits(&mut self, peer: NodeId, volume: VolumeNr, part: &Part, outcome: Outcome) {
        let (Some((sent, disk)), Some(theirs)) = (&part.sent, &part.uuids) else { return };
        let good = (*disk).min(outcome.disk) >= DiskState::Outdated && sent.current.same(theirs.current);
        let failed = self.node.connections[peer].peer_devices[volume].lasting.write_failed;
        let equal = good && outcome.replication == Replication::Established;
        if !equal || self.node.keeps_bits_at_first(peer, volume) {
            return;
        }
        if self.node.devices[volume].backing.is_none() {
            return;
        }
        let marked =
            self.node.devices[volume].bitmap_mut(peer).filter(|(b, slot)| !failed && b.bitmaps[*slot].count() > 0);
        if let Some((b, slot)) = marked {
            b.fill(slot, false);
            self.write_bitmap(volume);
        }
        self.mark_unlogged(peer);
        self.retire_slot(peer, volume);
    }
}

impl Node {
    /// Two that have marked something for each other, and of which none knows any more how much it has of what a lost
    /// Primary has completed: their processes are new. That one has all of it, and is the source of both if it comes
    /// back first, for which they wait a while.
    fn lets_crashed_come_first(&mut self, peer: NodeId, sides: [Told<'_>; 2]) -> bool {
        let known = UuidFlags::RECONNECT | UuidFlags::CRASHED_PRIMARY;
        let forgot = |told: Told<'_>| told.uuids.flags.0 & known.0 == 0 && told.uuids.dirty_bits > 0;
        let unnamed = |c: &Connection| c.attempt().is_some_and(|attempt| attempt.lost.iter().all(Option::is_none));
        let primary = sides.iter().any(|told| told.role == Role::Primary);
        let early = self.connections.values().any(|c| c.cfg.protocol != Protocol::C);
        let away = self.connections.ids().any(|n| n != peer && !self.state.is_connected(n));
        if !sides.into_iter().all(forgot) || !unnamed(&self.connections[peer]) || primary || !early || !away {
            return false;
        }
        let until = self.now + PATIENCE;
        self.now < *self.connections[peer].crashed_until.get_or_insert(until)
    }
}

impl Node {
    /// The own disk; while it is being negotiated what its metadata say.
    fn disk_in_handshake(&self, volume: VolumeNr) -> DiskState {
        let disk = self.state.disk(volume);
        if disk == DiskState::Negotiating { self.devices[volume].disk.attach_state } else { disk }
    }

    /// Have two nodes decided to connect, which they have not done yet?
    pub(super) fn is_about_to_connect(&self) -> bool {
        self.connections.ids().any(|peer| self.connections[peer].verdict() == Verdict::Connect)
    }

    /// What the device has when the nodes are connected, and what the peer's has now.
    fn size_when_connected(&self, peer: NodeId, volume: VolumeNr, part: &Part) -> Option<[Sector; 2]> {
        let theirs = self.connections[peer].peer_devices[volume].link.told.sizes.as_ref()?.current_size;
        let current = [self.devices[volume].size, theirs];
        let fresh = [&part.sent.as_ref()?.0, part.uuids.as_ref()?].map(|u| u.current.same(Generation::JUST_CREATED));
        let agreed = [0, 1].map(|n| Some(current[n]).filter(|size| !fresh[n] && size.0 > 0));
        Some([sizes::when_connected(&self.size_limits(volume), agreed, current), theirs])
    }

    /// The nodes agree on their data, but on a size while this one or the peer was away: who has what the other one
    /// lacks? `Some(true)`: this node.
    fn has_grown_alone(&self, peer: NodeId, volume: VolumeNr, part: &Part) -> Option<bool> {
        let ([size, theirs], own) = (self.size_when_connected(peer, volume, part)?, self.devices[volume].size);
        (own != theirs && size == own.max(theirs)).then_some(own > theirs)
    }

    /// The positions in a lost Primary's writes that this node and the peer have told each other, if it is the same one
    /// (5.8.1, step 4), and who reconciles by that. Between two that both have urbd's rules nobody does: theirs decide.
    fn lost_primaries_named(&self, peer: NodeId) -> ([Option<u64>; 2], uuid9::Gate) {
        let c = &self.connections[peer];
        let named = c.attempt().map_or([None; 2], |attempt| attempt.lost);
        let heard = named[1].and_then(|theirs| self.connections.get(theirs.node)?.heard_at).unwrap_or(0);
        let gate = match c.cfg.decides {
            Decides::AsUrbd | Decides::AsOlderUrbd => uuid9::Gate::Cautious,
            Decides::AsDrbd93 => uuid9::Gate::Released { heard },
            Decides::AsLaterDrbd => uuid9::Gate::Later { heard },
        };
        let other = matches!(named, [Some(mine), Some(theirs)] if mine.node != theirs.node);
        if other || c.decides_by(Private::ReconcileByMarks) {
            return ([None; 2], gate);
        }
        (named.map(|lost| lost.map(|lost| lost.at)), gate)
    }

    /// What urbd's own rules make of it among several nodes, where the peer has them as well.
    fn by_own_rules(&self, peer: NodeId, found: uuid9::Comparison, sides: [Told<'_>; 2]) -> Option<uuid9::Comparison> {
        let has = |rule| self.in_mesh9() && self.connections[peer].decides_by(rule);
        let equal = || Some(uuid9::Comparison { strategy: Strategy::NoSync, ..found });
        match found.strategy {
            _ if has(Private::InStep) && in_step(sides) => equal(),
            _ if has(Private::NothingToTake) && nothing_to_take(found.rule, sides) => equal(),
            Strategy::NoSync if has(Private::ReconcileByMarks) => self.reconciled(peer, sides),
            Strategy::NoSync => None,
            _ if has(Private::OvertakenByPrimary) => overtaken_by_primary(found, sides),
            _ => None,
        }
    }

    /// Two copies of one generation, of which one at least has marked something for the other one: who is the source
    /// of that (5.8.1, step 4)? Both come to the same conclusion, by what they told each other. With protocol C any
    /// will do, as each has all that was completed; but not against one that is Primary by now, or good where the other
    /// one is not. Both have what a Primary has that both see.
    fn reconciled(&self, peer: NodeId, [own, other]: [Told<'_>; 2]) -> Option<uuid9::Comparison> {
        let sides = [own, other];
        let primary = sides.map(|told| told.role == Role::Primary);
        let marked = sides.map(|told| told.uuids.dirty_bits > 0);
        let good = own.disk.min(other.disk) >= DiskState::Outdated && own.uuids.current.same(other.uuids.current);
        if self.state.is_connected(peer) || !good || marked == [false; 2] || primary == [true; 2] || in_step(sides) {
            return None;
        }
        let attempt = self.connections[peer].attempt()?;
        let by_position = match attempt.lost {
            [Some(mine), Some(theirs)] if mine.node == theirs.node && mine.at != theirs.at => Some(mine.at > theirs.at),
            [Some(_), None] => Some(!goes_on(&other)),
            [None, Some(_)] => Some(goes_on(&own)),
            _ => None,
        };
        // Whose process is a new one knows nothing of what was completed without it.
        let lives_on = Some(goes_on(&own)).filter(|own| *own != goes_on(&other));
        // Who has crashed as Primary may have completed what nobody else has, also if the two were connected since.
        let crashed = sides.map(|told| told.uuids.flags.contains(UuidFlags::CRASHED_PRIMARY));
        let crashed = [0, 1].map(|n| crashed[n] && sides[n].disk > DiskState::Outdated);
        let (rule, source) = match (marked, by_position) {
            _ if primary != [false; 2] => (Reason::ReconcileBitmap, primary[0]),
            _ if crashed[0] != crashed[1] => (Reason::CrashedPrimary, crashed[0]),
            _ if own.disk != other.disk => (Reason::ReconcileBitmap, own.disk > other.disk),
            ([true, false], _) => (Reason::ReconcileBitmap, true),
            ([false, true], _) => (Reason::ReconcileBitmap, false),
            (_, Some(source)) => (Reason::ReconcileDagtag, source),
            (_, None) => (Reason::ReconcileBitmap, lives_on.unwrap_or(self.cfg.node < peer)),
        };
        let strategy = if source { Strategy::SourceUseBitmap } else { Strategy::TargetUseBitmap };
        Some(uuid9::Comparison { rule, strategy })
    }

    /// Is this node's word from the beginning of the attempt no more what it would say (5.5)?
    fn has_changed_since(&self, peer: NodeId, volume: VolumeNr, sent: &Uuids110) -> bool {
        let Some(now) = self.uuids110(peer, volume, UuidFlags::NONE) else { return true };
        // What a Primary writes meanwhile is its own to tell of.
        // What a target copies meanwhile it marks for the others.
        let copies = sent.flags.contains(UuidFlags::SYNC_TARGET);
        let writes = self.in_mesh9() && (copies || !sent.flags.contains(UuidFlags::STABLE));
        let bits = |u: &Uuids110| if writes { 0 } else { u.dirty_bits };
        // Nor is it news to a peer that it exists, which is noted when that is heard.
        let slot = |u: &Uuids110| u.bitmap(peer).filter(|from| !from.is_none());
        let of = |u: &Uuids110| (u.current, slot(u), u.flags.0 & !UuidFlags::INCONSISTENT.0, bits(u));
        of(&now) != of(sent)
    }

    /// Has this node another generation than it has told, or ceased to be a target? A further source is told if it has
    /// become one.
    fn has_moved_since(&self, peer: NodeId, volume: VolumeNr, part: &Part) -> bool {
        let Some(outcome) = part.outcome else { return false };
        let Some((sent, _)) = &part.sent else {
            let told = part.exposed[0].is_some_and(|exposed| exposed.same(self.devices[volume].seen.exposed));
            return !told || self.uuids110(peer, volume, UuidFlags::NONE).is_some();
        };
        if self.has_become_target(peer, volume, part) && outcome.replication == Replication::WFBitMapT {
            return self.devices[volume].backing.as_ref().is_none_or(|b| b.md.current != sent.current);
        }
        let of = |u: &Uuids110| (u.current, is_target(u));
        self.uuids110(peer, volume, UuidFlags::NONE).as_ref().map(of) != Some(of(sent))
    }

    /// Has a resync begun since this node has said what it has?
    fn has_become_target(&self, peer: NodeId, volume: VolumeNr, part: &Part) -> bool {
        let was = part.sent.as_ref().is_some_and(|(sent, _)| is_target(sent));
        !was && self.uuids110(peer, volume, UuidFlags::NONE).as_ref().is_some_and(is_target)
    }

    /// A copy that was behind only by hearsay is good with this change (C13). Among several peers this is known at
    /// once: a write that follows must reach it.
    fn disk_when_connected(&self, volume: VolumeNr, part: &Part, outcome: Outcome) -> DiskState {
        let (Some((sent, DiskState::UpToDate)), Some(theirs)) = (&part.sent, &part.uuids) else { return outcome.disk };
        let hearsay = matches!(outcome.disk, DiskState::Outdated | DiskState::Consistent);
        let equal = outcome.replication == Replication::Established && sent.current.same(theirs.current);
        if self.in_mesh9() && hearsay && equal && self.state.disk(volume) == DiskState::UpToDate {
            DiskState::UpToDate
        } else {
            outcome.disk
        }
    }
}

impl Connection {
    /// What the transaction has brought that is to connect the nodes.
    fn attempt(&self) -> Option<&Attempt> {
        self.nine()?.attempt.as_ref()
    }

    fn attempt_mut(&mut self) -> Option<&mut Attempt> {
        self.nine_mut()?.attempt.as_mut()
    }

    /// This volume's part in it.
    fn part_mut(&mut self, volume: VolumeNr) -> Option<&mut Part> {
        self.attempt_mut()?.volumes.get_mut(volume)
    }

    /// How far the attempt is. Without one: open.
    pub(crate) fn verdict(&self) -> Verdict {
        self.attempt().map_or(Verdict::Open, |attempt| attempt.verdict)
    }

    /// When it is known which volumes the peer has.
    pub(crate) fn volumes_timer9(&self) -> Option<Instant> {
        let attempt = self.attempt().filter(|attempt| attempt.verdict == Verdict::Open)?;
        attempt.speaks.map(|since| since + self.cfg.ping_timeout + self.cfg.ping_timeout)
    }
}

fn is_target(told: &Uuids110) -> bool {
    told.flags.contains(UuidFlags::SYNC_TARGET)
}

/// Two good copies of one generation that both get what one Primary writes: what one of them has marked, or not heard
/// of, or that it was Primary once, is of the past.
fn in_step(sides: [Told<'_>; 2]) -> bool {
    let good = |told: &Told<'_>| told.disk == DiskState::UpToDate && !told.uuids.flags.contains(UuidFlags::STABLE);
    let [mine, theirs] = sides.map(|told| told.uuids.nodes.nodes());
    let same = sides[0].uuids.current.same(sides[1].uuids.current);
    same && sides.iter().all(good) && !mine.and(theirs).is_empty()
}

/// Does a node that names no lost Primary know what it says? Its process is the one that was connected to the other one
/// before: it has met the Primary again, and has what that has.
fn goes_on(told: &Told<'_>) -> bool {
    told.uuids.flags.contains(UuidFlags::RECONNECT)
}

/// A node was away while another one had written, and has got that from a third since: it is Primary by now. What the
/// other one has marked for it is no reason to copy to it: its users go on with its copy, which is of the same
/// generation, and the other way round the marks say as well what may differ.
fn overtaken_by_primary(found: uuid9::Comparison, [own, other]: [Told<'_>; 2]) -> Option<uuid9::Comparison> {
    let serves = |told: Told<'_>| told.role == Role::Primary && told.disk == DiskState::UpToDate;
    let strategy = match (found.strategy, found.rule) {
        (Strategy::TargetUseBitmap, Reason::TargetPeerMissedFinish) if serves(own) => Strategy::SourceUseBitmap,
        (Strategy::SourceUseBitmap, Reason::SourceMissedFinish) if serves(other) => Strategy::TargetUseBitmap,
        _ => return None,
    };
    (own.role != other.role).then_some(uuid9::Comparison { strategy, ..found })
}

/// Would two nodes stay apart by this?
fn has_parted(strategy: Strategy) -> bool {
    matches!(strategy, Strategy::SplitBrainAutoRecover | Strategy::SplitBrainDisconnect | Strategy::Unrelated)
}

/// Would a Primary be the target of nothing, as the other one has crashed as Primary, but neither has marked anything?
fn nothing_to_take(rule: Reason, sides: [Told<'_>; 2]) -> bool {
    let one_is = sides.iter().any(|told| told.role == Role::Primary);
    let clean = |told: &Told<'_>| told.uuids.dirty_bits == 0 && told.disk == DiskState::UpToDate;
    rule == Reason::CrashedPrimary && one_is && sides.iter().all(clean)
}

impl Connection {
    /// P_UUIDS110. What the peer had said in a former attempt may have been heard in this one. If it says otherwise
    /// now, nothing follows from that.
    pub(crate) fn uuids_of_handshake(&mut self, volume: VolumeNr, packet: Uuids110) {
        let Some(part) = self.part_mut(volume) else { return };
        if part.uuids.replace(packet).is_some_and(|before| part.uuids != Some(before)) {
            part.outcome = None;
        }
    }

    /// P_CURRENT_UUID within a handshake: the peer has no disk.
    pub(crate) fn exposed_in_handshake(&mut self, volume: VolumeNr, current: Generation) {
        let Some(part) = self.part_mut(volume) else { return };
        (part.uuids, part.exposed[1]) = (None, Some(current));
    }

    /// The peer has said all of a volume, perhaps of one that this node does not have.
    pub(crate) fn speaks_in_attempt(&mut self, now: Instant) {
        if let Some(attempt) = self.attempt_mut() {
            attempt.speaks.get_or_insert(now);
        }
    }
}
