//! From two open streams to a volume that replicates: features, authentication, parameters, sizes, generations, states
//! (`docs/spec/wire-protocol.md` 7, `docs/spec/connection-and-state.md` 4.6 and 5).

use crate::api::{ConnectionState, Effect, Event, LinkUp, Severity};
use crate::connection::{Connection, Link, Phase, Spoken};
use crate::decide::change::{Change, Set};
use crate::decide::handshake84::{Decision, Occasion, UuidsVerdict};
use crate::decide::private::Decides;
use crate::decide::split_brain::{Loser, Side};
use crate::decide::state::Replication;
use crate::decide::topic::Topic;
use crate::decide::uuid84::UuidSet;
use crate::decide::view::{Kind, Refusal};
use crate::decide::{Reason, handshake84, protocol, uuid84};
use crate::device::PeersDisk;
use crate::link_end::endings::LinkEnd;
use crate::node::Node;
use crate::{Resource, dialect84};
use units::{Duration, Instant, NodeId, VolumeNr};
use wire::{DiskState, Features, Packet, Role, Socket, StateWord, UuidFlags};

/// Tokens of [`Effect::Hmac`].
const OUR_RESPONSE: u32 = 1;
const EXPECTED: u32 = 2;

impl Resource {
    pub(crate) fn link_up(&mut self, peer: NodeId, link: LinkUp) {
        let now = self.node.now;
        let c = &mut self.node.connections[peer];
        if self.node.state.connection(peer) != crate::ConnectionState::Connecting || c.link.is_some() {
            return self.out.emit(Effect::CloseLink { peer });
        }
        c.session += 1;
        c.last_heard = now;
        c.pings.lost();
        c.link = Some(Link {
            peer_tentative: false,
            resolve_conflicts: link.resolve_conflicts,
            challenge: link.challenge,
            spoken: Spoken::Nothing,
            phase: Phase::Features,
            phase_since: now,
            answered: false,
            expected: None,
            response: None,
        });
        let c = &self.node.connections[peer];
        let offer = offer(self.node.cfg.node, &c.cfg, self.node.newest_offered(c));
        self.node.connections[peer].offered = offer;
        self.send_connection(peer, Socket::Data, Packet::ConnectionFeatures(offer));
    }

    /// When what waits for the comparison of a volume that the peer does not have goes on without.
    pub(crate) fn volumes_timer(&self, peer: NodeId, c: &Connection) -> Option<Instant> {
        match c.nine() {
            Some(_) => c.volumes_timer9(),
            None if !self.waits_for_comparison() => None,
            None => self
                .volumes_known_at(peer)
                .filter(|_| self.node.devices.ids().any(|volume| self.will_be_compared(peer, volume))),
        }
    }

    /// Does anything go on when it is known that a volume is not compared? An attach looks again with the next ping.
    #[inline]
    pub(crate) fn waits_for_comparison(&self) -> bool {
        let commands = self.again.is_some() || !self.pending.is_empty() || !self.begun.is_empty();
        commands || self.node.devices.values().any(|dev| dev.due.new_generation_pending)
    }

    pub(crate) fn volumes_are_known(&mut self, peer: NodeId) {
        if self.node.connections[peer].speaks9() {
            return self.leave_out_missing(peer);
        }
        self.out.chores.mark();
        self.node.devices.values_mut().for_each(|dev| dev.queue.recheck = true);
        self.settle_pending_generations();
    }

    fn enter(&mut self, peer: NodeId, phase: Phase) {
        let now = self.node.now;
        if let Some(link) = &mut self.node.connections[peer].link {
            link.phase = phase;
            link.phase_since = now;
        }
    }

    pub(crate) fn features_received(&mut self, peer: NodeId, theirs: &wire::ConnectionFeatures) {
        let c = &mut self.node.connections[peer];
        let dialect = match c.offered.agree(theirs) {
            Ok(dialect) => dialect,
            Err(refusal) => {
                let text = wire::Violation::from(refusal).to_string() + self.node.why_less_is_offered();
                return self.out.protocol_error(peer, Topic::IncompatibleVersions, text);
            }
        };
        let volumes = self.node.devices.len();
        let spoken = Spoken::new(dialect);
        c.link.as_mut().expect("a packet came").spoken = spoken;
        let integrity = c.cfg.integrity.clone();
        let auth = c.cfg.cram_hmac.is_some();
        self.out.emit(Effect::Dialect { peer, dialect, integrity });
        if volumes > 1 && dialect.version.number() < 100 {
            let text = format!("protocol version {} has only one volume", dialect.version);
            return self.out.refuse(peer, Topic::TooManyVolumes, &text);
        }
        if dialect.version.is_9() && !self.fits_dialect9(peer, theirs) {
            return;
        }
        if self.node.connections[peer].cfg.integrity.is_some() && dialect.version.number() < 87 {
            let text = "data-integrity-alg needs protocol version 87 or later; unset it for this peer";
            return self.out.refuse(peer, Topic::NoIntegrity, text);
        }
        if auth {
            let challenge = self.node.connections[peer].link.as_ref().expect("a packet came").challenge;
            let bytes = wire::AuthBytes::new(&challenge).expect("64 bytes fit");
            self.send_connection(peer, Socket::Data, Packet::AuthChallenge(Box::new(bytes)));
            self.enter(peer, Phase::Challenge);
        } else {
            self.send_parameters(peer);
        }
    }

    pub(crate) fn challenge_received(&mut self, peer: NodeId, bytes: &wire::AuthBytes) {
        let c = &self.node.connections[peer];
        let Some(algorithm) = c.cfg.cram_hmac.clone() else {
            let text = "the peer wants authentication, but cram-hmac-alg is not configured here".to_owned();
            return self.out.protocol_error(peer, Topic::UnexpectedChallenge, text);
        };
        let own = c.link.as_ref().expect("a packet came").challenge;
        let theirs = bytes.as_slice();
        if theirs.len() < 64 || theirs[..64] == own {
            return self.out.refuse(peer, Topic::ReflectedChallenge, "the peer sent our own challenge back");
        }
        let message = theirs.to_vec();
        let [message, expected] = self.salted(peer, [message, own.to_vec()]);
        self.out.emit(Effect::Hmac { peer, token: OUR_RESPONSE, algorithm: algorithm.clone(), message });
        self.out.emit(Effect::Hmac { peer, token: EXPECTED, algorithm, message: expected });
    }

    pub(crate) fn response_received(&mut self, peer: NodeId, bytes: &wire::AuthBytes) {
        if let Some(link) = &mut self.node.connections[peer].link {
            link.response = Some(*bytes);
        }
        self.check_authentication(peer);
    }

    pub(crate) fn hmac_done(&mut self, peer: NodeId, token: u32, mac: Option<Vec<u8>>) {
        let Some(mac) = mac.and_then(|m| wire::AuthBytes::new(&m)) else {
            // Who starts with it is refused: they are being changed at this moment.
            return self.out.refuse(peer, Topic::NoHmac, "cram-hmac-alg or shared-secret cannot be used");
        };
        match token {
            OUR_RESPONSE => {
                self.send_connection(peer, Socket::Data, Packet::AuthResponse(Box::new(mac)));
                if let Some(link) = &mut self.node.connections[peer].link {
                    link.answered = true;
                }
            }
            _ => {
                if let Some(link) = &mut self.node.connections[peer].link {
                    link.expected = Some(mac);
                }
            }
        }
        self.check_authentication(peer);
    }

    fn check_authentication(&mut self, peer: NodeId) {
        let Some(link) = &self.node.connections[peer].link else { return };
        let (true, Some(expected), Some(response)) = (link.answered, link.expected, link.response) else { return };
        if link.phase >= Phase::Parameters {
            return;
        }
        // Both are short and of public length; no early exit on the first difference.
        let (a, b) = (expected.as_slice(), response.as_slice());
        let same = a.len() == b.len() && a.iter().zip(b).fold(0, |acc, (x, y)| acc | (x ^ y)) == 0;
        if same {
            self.node.connections[peer].refusals = 0;
            self.send_parameters(peer);
        } else {
            let text = "the peer does not know the shared secret; make shared-secret equal on both nodes";
            self.out.refuse(peer, Topic::AuthenticationFailed, text);
        }
    }

    /// P_PROTOCOL, then in 8.4's dialect each volume's parameters (`docs/spec/wire-protocol.md` 7.4). In 9's they are a
    /// part of the transaction by which the nodes connect.
    fn send_parameters(&mut self, peer: NodeId) {
        if self.refuse_beside_other(peer) {
            return;
        }
        let packet = self.node.connections[peer].own_protocol();
        self.send_connection(peer, Socket::Data, Packet::Protocol(Box::new(packet)));
        for pd in self.node.connections[peer].peer_devices.values_mut() {
            pd.begin_link(self.starts.sequence);
        }
        if self.node.connections[peer].speaks9() {
            return self.enter(peer, Phase::Parameters);
        }
        for volume in self.node.devices.ids() {
            self.send_sync_param(peer, volume);
            self.introduce(peer, volume);
        }
        self.enter(peer, Phase::Parameters);
        if let Err(refusal) = self.make(Set::Connection(peer, ConnectionState::Connected), Kind::Fact) {
            self.out.give_up(
                peer,
                Topic::HandshakeRefused,
                format!("the handshake is not possible now: {}", refusal.code),
            );
        }
    }

    pub(crate) fn protocol_received(&mut self, peer: NodeId, theirs: &wire::Protocol) {
        let own = self.node.connections[peer].own_protocol();
        match protocol::compare(&own, theirs, self.node.connections[peer].version()) {
            Ok(()) => {
                if let Some(link) = &mut self.node.connections[peer].link {
                    link.peer_tentative = theirs.dry_run;
                }
                self.enter(peer, Phase::Running);
                self.shake_hands9(peer);
            }
            Err(reason) => self.out.refuse_peer(peer, reason),
        }
    }

    pub(crate) fn sync_param_received(&mut self, peer: NodeId, volume: VolumeNr, p: &wire::SyncParam) {
        let cfg = &self.node.connections[peer].cfg;
        let own = cfg.csums.clone().unwrap_or_default();
        let handshake = self.node.state.replication(peer, volume) < Replication::Established;
        // Before protocol 89 the packet has no room for it, and nothing is resynced by checksums.
        let told = self.node.connections[peer].version() >= 89;
        if handshake && told && own != p.csums_alg.as_str() {
            let text = format!("csums-alg is \"{own}\" here and \"{}\" there; make them equal", p.csums_alg);
            return self.out.give_up(peer, Topic::CsumsAlgDiffers, text);
        }
        self.node.connections[peer].peer_verify = p.verify_alg;
    }

    // -- generations --------------------------------------------------------------------------------------------------

    pub(crate) fn uuids_received(&mut self, peer: NodeId, volume: VolumeNr, packet: &wire::Uuids) {
        if self.node.state.peer_disk(peer, volume) < DiskState::Inconsistent {
            self.note_unconfirmed_missing(peer, volume);
        }
        let judged = self.judge_uuids(peer, volume, packet);
        self.node.connections[peer].peer_devices[volume].link.told.uuids = Some(*packet);
        self.node.connections[peer].peer_devices[volume].link.told.uuids_stale = false;
        match judged {
            (UuidsVerdict::Store { expose }, _) => {
                if let Some(generation) = expose {
                    self.node.devices[volume].seen.exposed = generation;
                }
            }
            (UuidsVerdict::SkipInitialSync, reason) => {
                self.out.note(Severity::Info, Some(volume), Some(peer), reason, reason.to_string());
                self.accept_as_equal(peer, volume, packet);
            }
            (UuidsVerdict::Disconnect, reason) => self.out.refuse_peer(peer, reason),
        }
    }

    /// `new-current-uuid --clear-bitmap` of the peer: both copies count as equal from now on.
    fn accept_as_equal(&mut self, peer: NodeId, volume: VolumeNr, packet: &wire::Uuids) {
        if let Some((b, slot)) = self.node.devices[volume].bitmap_mut(peer) {
            b.fill(slot, false);
        }
        let mut set = self.node.devices[volume].uuids(peer);
        set.current = packet.current;
        set.bitmap = units::Generation::NONE;
        self.put_uuids(peer, volume, &set);
        self.write_bitmap(volume);
        let good = Change::from(Set::Disk(volume, DiskState::UpToDate));
        self.took_place(good.and(Set::PeerDisk(peer, volume, DiskState::UpToDate)));
    }

    // -- states -------------------------------------------------------------------------------------------------------

    pub(crate) fn state_received(&mut self, peer: NodeId, volume: VolumeNr, theirs: &StateWord) {
        if self.node.state.connection(peer) < ConnectionState::Connecting {
            return;
        }
        if self.node.connections[peer].speaks9() {
            return self.state9_received(peer, volume, theirs);
        }
        let (_, their_replication) = dialect84::connection_and_replication(theirs.conn);
        let flags =
            self.node.connections[peer].peer_devices[volume].link.told.uuids.map_or(UuidFlags::NONE, |u| u.flags);
        let peer_disk = handshake84::peer_disk_counts_as(theirs.disk, flags.contains(UuidFlags::INCONSISTENT));
        self.node.connections[peer].peer_devices[volume].link.told.attaching = theirs.disk == DiskState::Negotiating;
        if let Some(reason) = self.why_peers_disk_is_refused(peer, volume, theirs) {
            return self.out.refuse_peer(peer, reason);
        }
        if both_are_source(self.node.state.replication(peer, volume), their_replication) {
            return self.two_sources(peer, volume, theirs);
        }
        if self.peer_finished_resync(peer, volume, theirs, peer_disk) {
            return;
        }
        if self.node.state.replication(peer, volume) == Replication::VerifyT
            && their_replication == Replication::Established
        {
            self.verify_ended_by_peer(peer, volume);
        }
        let (disk, first) = (self.node.state.disk(volume), !self.node.state.replicates(peer, volume));
        let both = disk.min(theirs.disk) >= DiskState::Negotiating;
        if first && both && !self.peer_uuids_known(peer, volume) {
            // It was made on one of the two when it had a disk on the other one, and got one before they knew.
            let text = "the peer has this volume now, too, and both have a disk: connecting anew".to_owned();
            return self.out.drop_link(peer, ConnectionState::NetworkFailure, Topic::VolumeCame, text);
        }
        let occasion = self.occasion_to_compare(peer, volume, theirs.disk, their_replication);
        let mut replication = self.node.state.replication(peer, volume).max(Replication::Established);
        // While a disk is attached here that is a word of before: who has no disk is not run ahead of.
        if their_replication == Replication::Ahead && disk != DiskState::Negotiating {
            replication = Replication::Behind;
        }
        let mut change = Change::from(Set::PeerRole(peer, volume, theirs.role));
        change.push(Set::PausedByPeer(peer, volume, theirs.aftr_isp || theirs.user_isp));
        if theirs.disk != DiskState::Negotiating {
            change.push(Set::PeerDisk(peer, volume, peer_disk));
        }
        if let Some(occasion) = occasion {
            let Some(decided) = self.decide_sync(peer, volume, occasion, theirs, peer_disk, &mut change) else {
                return;
            };
            replication = decided;
            let equal = replication == Replication::Established;
            if equal && self.lacks_peers_writes(peer, volume, theirs) {
                return self.out.connect_for_peers_writes(peer);
            }
        } else if disk == DiskState::Negotiating && (first || theirs.disk < DiskState::Negotiating) {
            if self.lacks_peers_writes(peer, volume, theirs) {
                return self.out.connect_for_peers_writes(peer);
            }
            // There is no second disk to compare with. One that lacks what the peer's had until now is of no use.
            let stale = self.node.state.is_primary()
                && (self.node.devices[volume].disk_lags_behind_users() || self.writes_elsewhere(peer, volume));
            let worth = if stale { DiskState::Failed } else { self.node.devices[volume].disk.attach_state };
            change.push(Set::Disk(volume, worth));
        }
        let begins = replication > Replication::Established;
        if theirs.disk == DiskState::Negotiating && (begins || disk < DiskState::Negotiating) {
            // As the kernel does: the resync begins with the decision, its bitmap follows before the peer's next state;
            // and without an own disk there is nothing to negotiate.
            change.push(Set::PeerDisk(peer, volume, peer_disk));
        }
        if replication.is_source() && peer_disk > DiskState::Inconsistent {
            // From before it was told of the resync: it says no word when it becomes the target.
            change.push(Set::PeerDisk(peer, volume, DiskState::Inconsistent));
        }
        change.push(Set::Replication(peer, volume, replication));
        let kind = if first { Kind::Wish } else { Kind::Fact };
        if let Err(Refusal { code, .. }) = self.make(change, kind) {
            let text = format!("the peer's state is not acceptable: {code}");
            // What the peer is may change; what is configured does not by itself.
            return if code.is_about_configured_roles() {
                self.out.give_up(peer, Topic::PeerStateRefused, text)
            } else {
                self.out.retry_later(peer, Topic::PeerStateRefused, text)
            };
        }
        if first && self.node.devices.ids().all(|volume| self.node.state.replicates(peer, volume)) {
            self.node.connections[peer].discard_my_data = false;
            self.node.connections[peer].survivor_insists = false;
        }
        let undecided = begins && their_replication <= Replication::Established;
        let pd = &mut self.node.connections[peer].peer_devices[volume];
        pd.link.compared.undecided = undecided && !first && (occasion.is_some() || pd.link.compared.undecided);
        if !first {
            self.help_peer_decide(peer, volume, theirs.disk == DiskState::Negotiating, occasion.is_some(), undecided);
        }
    }

    /// Both nodes have decided to be the source. If only this one has crashed as Primary, in the generation that the
    /// peer has, too, that is for ever: DRBD 9.3.3 at protocol 101 takes who has lived on for the source. With B
    /// and C it has what was acknowledged here, and is followed.
    fn two_sources(&mut self, peer: NodeId, volume: VolumeNr, theirs: &StateWord) {
        let own = self.node.devices[volume].uuids(peer).current;
        let flags = self.node.connections[peer].peer_devices[volume].link.told.uuids.filter(|u| u.current.same(own));
        let survived = flags.is_some_and(|u| !u.flags.contains(UuidFlags::CRASHED_PRIMARY));
        let secondaries = !self.node.state.is_primary() && theirs.role == Role::Secondary;
        if self.node.devices[volume].disk.crashed_primary && survived && secondaries {
            if self.node.connections[peer].cfg.protocol == crate::Protocol::A {
                let reason = Reason::SurvivorInsists;
                let text = format!(
                    "{reason}: with protocol A it may lack writes that were acknowledged here. To give these up, \
                     `connect --discard-my-data` here; to keep them, invalidate the peer's disk there, then connect"
                );
                return self.out.end_link(peer, LinkEnd::SurvivorInsists, reason, text);
            }
            self.node.connections[peer].survivor_insists = true;
        }
        let text = "both nodes have decided to be the source: connecting again".to_owned();
        self.out.drop_link(peer, ConnectionState::NetworkFailure, Topic::TwoSources, text);
    }

    /// What makes this state a reason to compare generations, if anything.
    fn occasion_to_compare(
        &mut self,
        peer: NodeId,
        volume: VolumeNr,
        peer_disk: DiskState,
        theirs: Replication,
    ) -> Option<Occasion> {
        let peer_uuids_known = self.peer_uuids_known(peer, volume);
        let pd = &mut self.node.connections[peer].peer_devices[volume];
        handshake84::occasion(&handshake84::StateReceived {
            peer_uuids_known,
            replication: self.node.state.replication(peer, volume),
            peer_replication: theirs,
            disk: self.node.state.disk(volume),
            peer_disk,
            consider_resync: std::mem::take(&mut pd.link.compared.again),
            compared: pd.link.compared.done,
        })
    }

    /// The peer does not know of the resync yet, or waits with its disk: help it to the same conclusion.
    fn help_peer_decide(&mut self, peer: NodeId, volume: VolumeNr, waits: bool, compared: bool, undecided: bool) {
        if waits || (compared && undecided) {
            if compared {
                self.send_uuids(peer, volume, UuidFlags::NONE);
            }
            self.send_state(peer, volume);
        }
    }

    /// Compares generations and fills in what the decision changes. `None`: the connection is being given up, or the
    /// attach failed.
    fn decide_sync(
        &mut self,
        peer: NodeId,
        volume: VolumeNr,
        occasion: Occasion,
        theirs: &StateWord,
        peer_disk: DiskState,
        change: &mut Change,
    ) -> Option<Replication> {
        let theirs_uuids = self.node.connections[peer].peer_devices[volume].link.told.uuids?;
        let comparison = self.compare_generations(peer, volume, &theirs_uuids, theirs.role);
        let c = &self.node.connections[peer];
        let dev = &self.node.devices[volume];
        let own = self.node.state.disk(volume);
        let my_disk = if own == DiskState::Negotiating { dev.disk.attach_state } else { own };
        let told = c.peer_devices[volume].link.told.changes_told;
        let input = handshake84::Input {
            comparison,
            occasion,
            me: Side {
                role: self.node.state.role,
                disk: my_disk,
                discard_my_data: c.discard_my_data,
                was_primary: comparison.own.bitmap.primary_bit(),
                changes: told,
            },
            peer: Side {
                role: theirs.role,
                disk: peer_disk,
                discard_my_data: theirs_uuids.flags.contains(UuidFlags::DISCARD_MY_DATA),
                was_primary: comparison.peer.bitmap.primary_bit(),
                changes: theirs_uuids.dirty_bits,
            },
            policies: c.cfg.after_sb,
            always_asbp: c.cfg.always_asbp,
            rr_conflict: c.cfg.rr_conflict,
            dry_run: c.tentative || c.link.as_ref().is_some_and(|l| l.peer_tentative),
            resolve_conflicts: c.resolve_conflicts(),
            demotable: self.demotable(),
            writes_elsewhere: self.writes_elsewhere(peer, volume),
            peer_is_source: theirs.conn == wire::ConnState::WFBitMapS,
            survivor_insists: c.survivor_insists
                && occasion == Occasion::Connect
                && (c.cfg.protocol != crate::Protocol::A || c.discard_my_data),
        };
        let mut outcome = handshake84::decide(&input);
        let split = matches!(comparison.verdict, uuid84::Verdict::SplitBrain(_));
        let lost = split && !c.discard_my_data && matches!(outcome.decision, Decision::Target { .. });
        if lost && occasion == Occasion::Connect && self.node.devices[volume].bits_left(peer) > told {
            // Users went on writing while the nodes decided by what they had told each other.
            outcome.decision = Decision::Retry;
        }
        let text = format!(
            "generations compared (rule {}): {}; {}: {}",
            comparison.rule, comparison.verdict, outcome.decision, outcome.reason
        );
        let event = Event::Compared(outcome.decision);
        self.out.tell(Severity::Info, Some(volume), Some(peer), outcome.reason, event, text);
        if split && outcome.decision == Decision::Disconnect {
            self.note_split_brain(peer, volume, theirs_uuids.dirty_bits);
        }
        if let Some(node) = handshake84::keeps_what_it_was_to_discard(&input, outcome.decision) {
            let (whose, other) = if node == Loser::Me { ("this node", "the peer") } else { ("the peer", "this node") };
            let text = format!(
                "{whose} was to discard its data, but keeps it, and {other} gets it: what decides before that is: {}. To \
                 discard it all the same, make {whose} Secondary and invalidate its disk",
                outcome.reason
            );
            self.out.note(Severity::Warning, Some(volume), Some(peer), Topic::DiscardMyDataOverridden, text);
        }
        for handler in &outcome.handlers {
            self.out.handler(*handler, Some(volume), Some(peer));
        }
        if self.may_lack_acknowledged(peer, volume, outcome.decision, occasion, peer_disk) {
            self.new_generation(volume);
            let text = "the peer may have rebooted while I/O was frozen, and lack what it had acknowledged: \
                        connecting again for a resync";
            self.out.drop_link(peer, ConnectionState::ProtocolError, Topic::RebootedWhileFrozen, text.to_owned());
            return None;
        }
        self.node.connections[peer].peer_devices[volume].link.compared.done =
            outcome.decision != Decision::TreatPeerAsDiskless;
        let own =
            handshake84::generations_after(&comparison, self.node.devices[volume].uuids(peer), occasion, &outcome);
        if own != self.node.devices[volume].uuids(peer) {
            self.put_uuids(peer, volume, &own);
        }
        if let Some(u) = &mut self.node.connections[peer].peer_devices[volume].link.told.uuids {
            (u.current, u.bitmap, u.history) =
                (comparison.peer.current, comparison.peer.bitmap, comparison.peer.history);
        }
        if outcome.demote {
            change.push(Set::Role(Role::Secondary));
        }
        if outcome.decision == Decision::NoSync && self.node.devices[volume].seen.outrun {
            return self.fetch_own_writes(peer, volume, change);
        }
        self.apply_decision(peer, volume, outcome.decision, outcome.reason, change)
    }

    /// The own disk lacks writes that this node's users had completed by the peer, and the generations are equal all
    /// the same: the peer has begun none for them (DRBD 9.3.3 at protocol 101). Only a full resync makes sure that they
    /// come: this disk calls itself new, which every peer understands, and the nodes connect again. A Primary goes on
    /// with the peer's disk alone.
    fn fetch_own_writes(&mut self, peer: NodeId, volume: VolumeNr, change: &mut Change) -> Option<Replication> {
        let reason = Reason::LacksOwnWrites;
        if self.node.state.is_primary() {
            return self.apply_decision(peer, volume, Decision::FailOwnDisk, reason, change);
        }
        let fresh = UuidSet { current: units::Generation::JUST_CREATED, ..UuidSet::default() };
        self.put_uuids(peer, volume, &fresh);
        self.mark_all(peer, volume);
        if self.node.state.disk(volume) == DiskState::Negotiating {
            self.node.devices[volume].disk.attach_state = DiskState::Inconsistent;
        } else {
            self.took_place(Set::Disk(volume, DiskState::Inconsistent));
        }
        let text = format!("{reason}, and the generations do not tell: connecting again for a full resync");
        self.out.drop_link(peer, ConnectionState::NetworkFailure, reason, text);
        None
    }

    fn may_lack_acknowledged(
        &self,
        peer: NodeId,
        volume: VolumeNr,
        decision: Decision,
        occasion: Occasion,
        peer_disk: DiskState,
    ) -> bool {
        let frozen = self.node.state.is_frozen() && self.node.state.is_primary();
        let pending =
            self.node.devices[volume].due.new_generation_pending && self.node.state.disk(volume) == DiskState::UpToDate;
        let unconfirmed = self.acknowledged_before(peer, volume);
        handshake84::rebooted_while_suspended(decision, occasion, peer_disk, unconfirmed, frozen, pending)
    }

    fn apply_decision(
        &mut self,
        peer: NodeId,
        volume: VolumeNr,
        decision: Decision,
        reason: Reason,
        change: &mut Change,
    ) -> Option<Replication> {
        let negotiating = self.node.state.disk(volume) == DiskState::Negotiating;
        match decision {
            Decision::Disconnect => {
                self.out.refuse_peer(peer, reason);
                return None;
            }
            Decision::Retry => {
                self.out.retry_later(peer, reason, reason.to_string());
                return None;
            }
            Decision::FailOwnDisk => {
                self.took_place(Set::Disk(volume, DiskState::Failed));
                return None;
            }
            Decision::TreatPeerAsDiskless => change.push(Set::PeerDisk(peer, volume, DiskState::Diskless)),
            Decision::Source { full } | Decision::Target { full } => {
                if full {
                    self.mark_all(peer, volume);
                }
                if negotiating && matches!(decision, Decision::Source { .. }) {
                    change.push(Set::Disk(volume, self.node.devices[volume].disk.attach_state));
                }
            }
            Decision::NoSync => {}
        }
        if negotiating && matches!(decision, Decision::NoSync | Decision::TreatPeerAsDiskless) {
            change.push(Set::Disk(volume, self.node.devices[volume].disk.attach_state));
        }
        decision.replication()
    }

    /// Everything differs: said by a flag first, so that a crash in between cannot hide it
    /// (`docs/spec/on-disk-format.md` 4.3).
    pub(crate) fn mark_all(&mut self, peer: NodeId, volume: VolumeNr) {
        let Some(slot) = self.node.devices[volume].slot(peer) else { return };
        let Some(b) = &mut self.node.devices[volume].backing else { return };
        b.md.peer_mut(peer).flags.insert(meta::PeerFlags::FULL_SYNC);
        b.fill(slot, true);
        b.full_sync = true;
        self.md_changed(volume);
        self.write_bitmap(volume);
    }

    /// Would a demotion succeed now?
    pub(crate) fn demotable(&self) -> bool {
        self.node.devices.values().all(|dev| dev.openers.writers + dev.openers.readers == 0)
            && !self.requests_under_way()
    }
}

impl Node {
    /// Is a volume to be compared with a peer, as the link is up? Not one of which nothing comes: the peer has no such
    /// volume.
    pub(crate) fn will_be_compared(&self, peer: NodeId, volume: VolumeNr) -> bool {
        let c = &self.connections[peer];
        let Some(link) = c.link.as_ref().filter(|_| !self.state.replicates(peer, volume)) else { return false };
        match c.nine() {
            // What comes later begins a handshake of its own.
            Some(_) => !self.state.is_connected(peer),
            None => link.phase < Phase::Running || self.volumes_known_at(peer).is_none_or(|at| self.now < at),
        }
    }

    /// 8.4's dialect: when it is known which volumes the peer has. It speaks of all at once.
    fn volumes_known_at(&self, peer: NodeId) -> Option<Instant> {
        let c = &self.connections[peer];
        let link = c.link.as_ref().filter(|_| self.devices.ids().any(|volume| self.state.replicates(peer, volume)))?;
        Some(link.phase_since + Duration(c.cfg.ping_timeout.0.saturating_mul(4)))
    }

    /// What the generations that a peer tells of mean as things are now.
    fn judge_uuids(&self, peer: NodeId, volume: VolumeNr, packet: &wire::Uuids) -> (UuidsVerdict, Reason) {
        let (dev, c) = (&self.devices[volume], &self.connections[peer]);
        let pd = &c.peer_devices[volume];
        // A resync that was to bring it up to date may have been agreed to already, and ended with the own disk.
        let attaching = pd.link.told.attaching && self.state.peer_disk(peer, volume) < DiskState::UpToDate;
        handshake84::on_uuids(&handshake84::UuidsReceived {
            role: self.state.role,
            disk: self.state.disk(volume),
            replication: self.state.replication(peer, volume),
            peer_attaching: attaching || self.state.peer_disk(peer, volume) < DiskState::Inconsistent,
            protocol: c.version(),
            own_current: self.devices[volume].uuids(peer).current,
            exposed: dev.seen.exposed,
            peer_current: packet.current,
            peer_outrun: dev.seen.peers_disk == PeersDisk::Stale,
            skip_initial_sync: packet.flags.contains(UuidFlags::SKIP_INITIAL_SYNC),
        })
    }

    /// The peer says that it has a disk. Why is that none for the users here? Its generations may have come while the
    /// own disk was still there, and did not matter to them.
    pub(crate) fn why_peers_disk_is_refused(
        &self,
        peer: NodeId,
        volume: VolumeNr,
        theirs: &StateWord,
    ) -> Option<Reason> {
        let uuids = self.connections[peer].peer_devices[volume]
            .link
            .told
            .uuids
            .as_ref()
            .filter(|_| theirs.disk >= DiskState::Negotiating);
        let (verdict, reason) = self.judge_uuids(peer, volume, uuids?);
        (verdict == UuidsVerdict::Disconnect).then_some(reason)
    }

    /// Is a disk being attached that no resync will bring what was refused here while there was none? The peer may have
    /// completed it (protocols A and B), and what it has sent since may depend on it. Unless I/O is frozen there, it
    /// has begun a generation, and there is a resync.
    fn lacks_peers_writes(&self, peer: NodeId, volume: VolumeNr, theirs: &StateWord) -> bool {
        let refused = self.connections[peer].peer_devices[volume].link.io.refused_writes;
        self.state.disk(volume) == DiskState::Negotiating && theirs.role == Role::Primary && refused
    }

    /// While a disk is attached here, only what the peer says in answer to that counts: it may have begun a generation
    /// because the disk had gone.
    fn peer_uuids_known(&self, peer: NodeId, volume: VolumeNr) -> bool {
        let pd = &self.connections[peer].peer_devices[volume];
        pd.link.told.uuids.is_some() && !(pd.link.told.uuids_stale && self.state.disk(volume) == DiskState::Negotiating)
    }

    fn compare_generations(
        &self,
        peer: NodeId,
        volume: VolumeNr,
        theirs: &wire::Uuids,
        role: Role,
    ) -> uuid84::Comparison {
        let c = &self.connections[peer];
        let dev = &self.devices[volume];
        let comparison = uuid84::compare(&uuid84::Input {
            me: uuid84::Node {
                uuids: self.devices[volume].uuids(peer),
                crashed_primary: dev.disk.crashed_primary,
                primary: self.state.is_primary(),
            },
            peer: uuid84::Node {
                uuids: UuidSet { current: theirs.current, bitmap: theirs.bitmap, history: theirs.history },
                crashed_primary: theirs.flags.contains(UuidFlags::CRASHED_PRIMARY),
                primary: role == Role::Primary,
            },
            protocol: c.version(),
            peer_wsame: c.has(Features::WRITE_SAME),
            resolve_conflicts: c.resolve_conflicts(),
        });
        if self.connections.members().len() < 2 {
            return comparison;
        }
        comparison
            .beside_third_nodes([c.peer_devices[volume].link.told.changes_told, theirs.dirty_bits].map(|bits| bits > 0))
    }
}

impl Connection {
    /// What both nodes must share.
    fn own_protocol(&self) -> wire::Protocol {
        wire::Protocol {
            protocol: self.cfg.protocol,
            after_sb_0pri: self.cfg.after_sb.none,
            after_sb_1pri: self.cfg.after_sb.one,
            after_sb_2pri: self.cfg.after_sb.two,
            discard_my_data: self.discard_my_data,
            dry_run: self.tentative,
            two_primaries: self.cfg.two_primaries,
            integrity_alg: self.cfg.integrity.as_deref().and_then(wire::AlgName::new).unwrap_or_default(),
        }
    }
}

/// Both wait for the other's bitmap, or copy what the other one copies. Each has decided by words of the other from
/// before that one had decided: two disks that are attached at the same time.
fn both_are_source(own: Replication, theirs: Replication) -> bool {
    (own == Replication::WFBitMapS || own.is_source()) && theirs == Replication::WFBitMapS
}

/// What this node offers a peer to speak, up to a version.
fn offer(own: NodeId, cfg: &crate::ConnectionConfig, newest: u32) -> wire::ConnectionFeatures {
    let nine = newest >= wire::Version::MIN_9.number();
    let all = if nine { wire::ConnectionFeatures::of_9(own, cfg.peer) } else { wire::ConnectionFeatures::OFFER };
    // The reference mishandles P_ZEROES with integrity (`docs/spec/wire-protocol.md` 17.1).
    let zeroes = if cfg.integrity.is_some() { Features::WRITE_ZEROES } else { Features::NONE };
    let left_out = zeroes | Features::never_with(newest);
    let own_rules = if nine && cfg.decides == Decides::AsUrbd { Features::OF_URBD } else { Features::NONE };
    let features = all.features.without(left_out) | own_rules;
    wire::ConnectionFeatures { protocol_max: newest, features, ..all }
}
