//! Changes that all nodes must agree to, in 9's dialect: one transaction at a time, in two phases
//! (`docs/spec/connection-and-state.md` 3.2, `docs/spec/wire-protocol.md` 8).
//!
//! The slot is the same as that of 8.4's requests, `Resource::transaction`: a node takes part in one of either kind.

pub(crate) mod called_off;
pub(crate) mod new_size;
mod participant;
mod size;
pub(crate) mod slot;

use crate::api::{ConnectionState, Severity};
use crate::command::caller::Caller;
use crate::command::transaction::Transaction;
use crate::command::two_phase::slot::{Answer, Masks, Matter, Origin, Part, Stage, TwoPhase};
use crate::connection::Connection;
use crate::decide::StateChangeResult as Code;
use crate::decide::change::{Change, Set};
use crate::decide::topic::Topic;
use crate::decide::view::{Kind, Refusal};
use crate::dialect9::handshake::attempt::Verdict;
use crate::node::Node;
use crate::{Resource, dialect84};
use units::{Duration, Instant, NodeId, NodeMask, VolumeNr};
use wire::{ConnState, Decision, DiskState, Packet, Role, Socket, StateChange, WireMask};

/// How long an initiator waits for answers, and a participant for the decision.
const PATIENCE: Duration = Duration::from_secs(30);
/// A connect that came to nothing because of another transaction is tried again after this.
const SOON: Duration = Duration::from_millis(50);
/// How often the time is doubled within which it is tried again.
const MOST_DOUBLED: u32 = 3;
/// One that the nodes do not want now, after this.
const LATER: Duration = Duration::from_secs(1);

impl Resource {
    /// Are changes made in two phases? Also while a transaction is under way that connects to the first neighbour: who
    /// has said yes to it has told what this node is, and is not to be anything else before it is decided.
    pub(super) fn changes_in_two_phases(&self) -> bool {
        !self.neighbours9().is_empty() || self.transaction.two_phase().is_some()
    }

    /// Begins a transaction. False: another one is under way.
    fn begin_two_phase(&mut self, origin: Origin, target: Option<NodeId>, volume: VolumeNr, matter: Matter) -> bool {
        if !self.transaction.is_free() {
            return false;
        }
        let tid = loop {
            match self.rng.next_u64() as u32 {
                0 => {}
                tid => break tid,
            }
        };
        let own = self.node.cfg.node;
        let asks = target.into_iter().fold(self.neighbours9(), NodeMask::with);
        let asked = matter.asked();
        let head = wire::Transaction {
            tid,
            initiator: own,
            target,
            nodes_to_reach: WireMask::all_but(asks.with(own)),
            has_reachable: matches!(matter, Matter::State { .. }),
            primary_incapable: false,
        };
        let masks = match &matter {
            Matter::State { asked, .. } => self.own_masks(asked, target, asks),
            Matter::Size(_) => self.masks_of_size(volume),
        };
        // A node that connects says its role; only one that is to be promoted asks first who is there.
        let pings = asked.role == Some(Role::Primary) && asked.conn.is_none();
        let pinged = pings.then(|| self.ping_all(asks)).filter(|pinged| !pinged.is_empty());
        let asks_at_once = pinged.is_none();
        let stage = pinged.map_or(Stage::Asking, Stage::Pinging);
        let until = self.node.now + PATIENCE;
        self.transaction.begin(Transaction::TwoPhase(Box::new(TwoPhase {
            head,
            volume,
            matter,
            part: Part::Initiator { origin, stage },
            connects: target.filter(|_| connects(volume, &asked)),
            waits_for: asks,
            answer: Answer::Yes,
            masks,
            until,
        })));
        if asks_at_once {
            self.send_prepare();
        }
        true
    }

    fn send_prepare(&mut self) {
        let Some(two) = self.transaction.two_phase_mut() else { return };
        if let Part::Initiator { stage, .. } = &mut two.part {
            *stage = Stage::Asking;
        }
        let request = two.request();
        let (volume, asks, connects) = (two.volume, two.waits_for, two.connects);
        for peer in asks {
            self.send(peer, Socket::Data, volume, request.clone());
            self.send_ping(peer);
        }
        connects.into_iter().for_each(|peer| self.send_attempt(peer));
    }

    /// A peer is there.
    pub(crate) fn answered_for_transaction(&mut self, peer: NodeId) {
        let Some(two) = self.transaction.two_phase_mut() else { return };
        let Part::Initiator { stage: Stage::Pinging(waits), .. } = &mut two.part else { return };
        waits.settle(peer, |ping| self.node.connections[peer].pings.has_answered(ping));
        if waits.is_empty() {
            self.send_prepare();
        }
    }

    /// The node with the lower id connects the two.
    pub(crate) fn begin_connect(&mut self, peer: NodeId) {
        // Another one may have been connected since this one has shown who it is.
        if self.refuse_beside_other(peer) {
            return;
        }
        let change = Change::from(Set::Connection(peer, ConnectionState::Connected));
        let asked = StateChange {
            conn: Some(ConnState::WFReportParams),
            role: Some(self.node.state.role),
            ..StateChange::default()
        };
        let matter = Matter::State { asked, change };
        if self.opens_disks() || !self.begin_two_phase(Origin::Connect, Some(peer), VolumeNr::NONE, matter) {
            self.node.connections[peer].connect_later(SOON, self.node.now);
        }
    }

    /// Among several nodes those that came in each other's way shall not do so again. Four and more have so many pairs
    /// to connect that the ways of their packets may be too long for all of them: they leave each other the more room
    /// the more often that happens.
    fn connect_soon(&mut self, peer: NodeId) {
        let peers = self.node.connections.members().len();
        let collisions = self.node.connections[peer].nine_mut().map_or(0, |nine| {
            nine.collisions += 1;
            nine.collisions
        });
        let doubled = if peers > 2 { collisions.min(MOST_DOUBLED) } else { 0 };
        let turns = if peers > 1 { self.rng.next_u64() % (5 << doubled) } else { 0 };
        self.node.connections[peer].connect_later(Duration(SOON.0 * (1 + turns)), self.node.now);
    }

    /// P_TWOPC_YES, P_TWOPC_NO, P_TWOPC_RETRY.
    pub(crate) fn vote_received(&mut self, peer: NodeId, packet: &Packet) {
        let (answer, vote) = match packet {
            Packet::TwopcYes(vote) => (Answer::Yes, vote),
            Packet::TwopcNo(vote) => (Answer::No, vote),
            Packet::TwopcRetry(vote) => (Answer::Retry, vote),
            _ => return,
        };
        // Who is not connected is asked by nobody but the initiator that wants to connect to it.
        let asks = |two: &TwoPhase| two.is(vote.tid, vote.initiator) && two.connects == Some(peer);
        let ended = vote.initiator == self.node.cfg.node && !self.takes_part_in(vote.tid, vote.initiator);
        let asked = self.node.state.connection(peer) != ConnectionState::Connecting
            || ended
            || self.transaction.two_phase().is_some_and(asks);
        if !asked {
            // Two nodes at one address have come to this one at once: a stream of each is taken for those of one.
            let text = "an answer to what the peer was not asked: this stream is another node's at the same address";
            return self.out.drop_link(
                peer,
                ConnectionState::NetworkFailure,
                Topic::StreamOfAnotherNode,
                text.to_owned(),
            );
        }
        let Some(two) = self.transaction.two_phase_mut().filter(|two| two.is(vote.tid, vote.initiator)) else { return };
        if !two.waits_for.contains(peer) {
            return;
        }
        two.waits_for.remove(peer);
        two.answer = two.answer.max(answer);
        if answer == Answer::Yes {
            let of_target = two.is_ours() && two.head.target == Some(peer);
            let reached = vote.reachable_nodes.nodes();
            if of_target {
                two.masks.target_reachable = two.masks.target_reachable.or(reached);
            } else {
                two.masks.reachable = two.masks.reachable.or(reached);
            }
            two.masks.primary = two.masks.primary.or(vote.primary_nodes.nodes());
            match &mut two.matter {
                Matter::State { .. } => two.masks.weak.0 |= vote.weak_nodes().0,
                Matter::Size(size) => size.note_most(peer, vote.max_size()),
            }
        }
        self.wait_for_reasons(peer, answer);
        self.transaction_went_on();
    }

    fn takes_part_in(&self, tid: u32, initiator: NodeId) -> bool {
        self.transaction.two_phase().is_some_and(|two| two.is(tid, initiator))
    }

    /// Who does not want to be connected says so on the one stream, and what this node can tell by why on the other.
    fn wait_for_reasons(&mut self, peer: NodeId, answer: Answer) {
        let until = self.node.now + self.node.connections[peer].cfg.ping_timeout;
        if let Some(two) = self.transaction.two_phase_mut()
            && answer == Answer::No
            && two.is_ours()
            && two.connects == Some(peer)
        {
            two.until = two.until.min(until);
        }
    }

    /// The handshake that a transaction is about has come further.
    pub(crate) fn handshake_went_on(&mut self, peer: NodeId) {
        if self.transaction.two_phase().is_some_and(|two| two.connects == Some(peer)) {
            self.transaction_went_on();
        }
    }

    /// Decides, or answers, when everything is there that it takes.
    fn transaction_went_on(&mut self) {
        let Some(two) = self.transaction.two_phase() else { return };
        let verdict = match two.connects {
            Some(peer) => self.node.connections[peer].verdict(),
            None => Verdict::Connect,
        };
        let all = two.waits_for.is_empty();
        let refused = two.answer == Answer::No;
        let over = self.node.now >= two.until;
        match &two.part {
            Part::Initiator { stage: Stage::Pinging(_), .. } => {}
            Part::Initiator { .. } if two.answer == Answer::Retry => {
                self.give_up_transaction(Code::ConcurrentStateChange)
            }
            Part::Initiator { .. } => match verdict {
                Verdict::Open if !refused || !over => {}
                Verdict::Retry(_) => self.give_up_transaction(Code::InTransientState),
                Verdict::Disconnect(_) => self.give_up_transaction(Code::NotSupported),
                _ if refused => self.give_up_transaction(Code::FailedByPeer),
                _ if all => self.commit_transaction(),
                _ => {}
            },
            Part::Participant { answered: Some(_), .. } => {}
            Part::Participant { .. } if two.answer == Answer::Retry => self.answer_transaction(Answer::Retry),
            Part::Participant { .. } => {
                let answer = match verdict {
                    Verdict::Open => return,
                    Verdict::Retry(_) => Answer::Retry,
                    Verdict::Disconnect(_) => Answer::No,
                    Verdict::Connect => two.answer,
                };
                if all || answer != Answer::Yes {
                    self.answer_transaction(answer);
                }
            }
        }
    }

    fn commit_transaction(&mut self) {
        let Some(two) = self.transaction.two_phase() else { return };
        if matches!(two.matter, Matter::Size(_)) {
            return self.commit_size();
        }
        // Nothing else was agreed to meanwhile, but a disk or a peer may be lost.
        let judged = match &two.part {
            Part::Initiator { origin: Origin::Connect | Origin::Settle, .. } => Ok(()),
            Part::Initiator { origin: Origin::Attach(volume), .. } if self.node.devices[*volume].asks_to_attach() => {
                Ok(())
            }
            Part::Initiator { origin: Origin::Attach(_), .. } => Err(Refusal { code: Code::IsDiskless, volume: None }),
            _ => self.would_be(&two.change(), Kind::Wish).map(drop),
        };
        if let Err(refusal) = judged
            && refusal.code != Code::NothingToDo
        {
            return self.give_up_transaction(refusal.code);
        }
        if self.makes_second_primary() {
            return self.give_up_transaction(Code::TwoPrimaries);
        }
        let Some(two) = self.transaction.take_two_phase() else { return };
        let mut masks = two.masks;
        if !two.is_disconnect() || !masks.reachable.and(masks.target_reachable).is_empty() {
            masks.reachable = masks.reachable.or(masks.target_reachable);
            masks.target_reachable = masks.reachable;
        }
        let incapable = !masks.primary.is_empty() && masks.weak == WireMask::NONE;
        let (all, head) = self.told_of(&two);
        let head = wire::Transaction { primary_incapable: incapable, ..head };
        let members = Set::Members(masks.reachable);
        let (primary, reachable) = (masks.primary.into(), masks.target_reachable.into());
        let decision = Decision::of_change(head, primary, reachable, &two.asked());
        let before = two.happens_before_commit();
        let parts = two.is_disconnect();
        if two.is_empty() {
            let seen = if incapable { NodeMask::default() } else { masks.primary };
            self.settle_agreed(self.out_of_reach(seen));
        } else if before {
            self.carry_out_own(&two);
            self.end_links();
        }
        for peer in all {
            self.send(peer, Socket::Data, two.volume, Packet::TwopcCommit(Box::new(decision)));
        }
        if !before {
            self.carry_out_own(&two);
            self.end_links();
        }
        self.happened(members);
        if two.connects.is_some() || parts || two.is_empty() && !incapable {
            self.outdate_beside(decision.primary_nodes.nodes(), parts);
        }
    }

    /// Would there be two Primaries within reach of each other (3.2.4)? The pair's own rules see only who is connected.
    fn makes_second_primary(&self) -> bool {
        let Some(two) = self.transaction.two_phase() else { return false };
        let concerned = two.connects.is_some() || two.asked().role == Some(Role::Primary);
        let allowed = self.node.connections.values().any(|c| c.cfg.two_primaries);
        concerned && !allowed && self.node.connections.members().len() > 1 && two.masks.primary.len() > 1
    }

    /// Some node is Primary that this one does not reach, and others do, or did until it `parts` with that (3.2.6):
    /// this copy does not get what is written.
    pub(crate) fn outdate_beside(&mut self, primaries: NodeMask, parts: bool) {
        if self.out_of_reach(primaries).is_empty() || self.neighbours9().is_empty() && !parts {
            return;
        }
        for volume in self.node.devices.ids() {
            if matches!(self.node.state.disk(volume), DiskState::Consistent | DiskState::UpToDate) {
                let text = "a node is Primary that this one does not reach: this disk is outdated";
                self.out.note(Severity::Warning, Some(volume), None, Topic::PrimaryOutOfReach, text);
                self.took_place(Set::Disk(volume, DiskState::Outdated));
            }
        }
    }

    /// All have agreed to what this node has asked for.
    fn carry_out_own(&mut self, two: &TwoPhase) {
        let Part::Initiator { origin, .. } = two.part else { return };
        match origin {
            Origin::Connect => two.connects.into_iter().for_each(|peer| self.carry_out_attempt(peer)),
            Origin::Attach(volume) => self.attach_agreed(volume),
            Origin::Resize(_) | Origin::Settle => {}
            Origin::Command(id) => {
                let outcome = self.commit_for_command(id, two);
                let peer = two.head.target.or_else(|| self.node.connections.ids().next());
                peer.into_iter().for_each(|peer| self.answered(peer, id, outcome));
            }
        }
    }

    fn commit_for_command(&mut self, id: Caller, two: &TwoPhase) -> Result<(), Refusal> {
        if two.is_disconnect() {
            return self.make(two.change(), Kind::Fact);
        }
        if let Some((rise, forced)) = self.promotion_agreed(id) {
            self.make(rise, Kind::Wish)?;
            self.promoted(&forced);
            return Ok(());
        }
        self.make(two.change(), Kind::Wish)?;
        if two.asked().role == Some(Role::Secondary) {
            self.has_become_secondary();
        }
        Ok(())
    }

    /// It comes to nothing.
    fn give_up_transaction(&mut self, code: Code) {
        let Some(two) = self.call_off() else { return };
        let Part::Initiator { origin, .. } = two.part else { return };
        match origin {
            Origin::Connect => {
                two.connects.into_iter().for_each(|peer| self.connect_failed(peer, code, two.masks.primary));
            }
            Origin::Attach(volume) => self.attach_not_agreed(volume, two.answer == Answer::No),
            Origin::Resize(id) => self.resize_answered(id, Err(self.resize_failed(two.volume, code))),
            Origin::Settle => self.settle_again(),
            Origin::Command(id) => {
                let peer = two.head.target.or_else(|| self.node.connections.ids().next());
                peer.into_iter().for_each(|peer| self.answered(peer, id, Err(Refusal { code, volume: None })));
            }
        }
    }

    /// Those who were asked are told that it comes to nothing.
    fn call_off(&mut self) -> Option<Box<TwoPhase>> {
        let two = self.transaction.take_two_phase()?;
        let (all, head) = self.told_of(&two);
        let abort = Decision::abort(head);
        for peer in all {
            self.send(peer, Socket::Data, two.volume, Packet::TwopcAbort(Box::new(abort)));
        }
        Some(two)
    }

    /// What follows a transaction that did not connect the nodes (4.3).
    fn connect_failed(&mut self, peer: NodeId, code: Code, primaries: NodeMask) {
        if self.node.connections[peer].link.is_none() {
            return;
        }
        let verdict = self.node.connections[peer].verdict();
        self.forget_attempt(peer);
        match (verdict, code) {
            (Verdict::Disconnect(reason), _) => {
                if !reason.may_pass() {
                    self.send_connection(peer, Socket::Data, Packet::Disconnect);
                }
                self.out.refuse_peer(peer, reason);
            }
            (Verdict::Retry(_), _) => self.node.connections[peer].connect_later(LATER, self.node.now),
            (_, Code::ConcurrentStateChange) => self.connect_soon(peer),
            (_, Code::FailedByPeer | Code::TwoPrimaries)
                if self.node.connections[peer].cfg.rr_conflict == crate::RrConflict::RetryConnect =>
            {
                if code == Code::TwoPrimaries {
                    let text = self.node.two_would_be_primary(primaries);
                    let text = format!("{text}; trying again each second (rr-conflict retry-connect)");
                    self.out.note(Severity::Warning, None, Some(peer), Topic::SecondPrimary, text);
                }
                self.node.connections[peer].connect_later(LATER, self.node.now);
            }
            (_, Code::TwoPrimaries) => {
                self.send_connection(peer, Socket::Data, Packet::Disconnect);
                self.out.give_up(peer, Topic::SecondPrimary, self.node.two_would_be_primary(primaries));
            }
            _ => {
                self.send_connection(peer, Socket::Data, Packet::Disconnect);
                self.out.give_up(peer, Topic::ConnectRefused, "the peer refuses to be connected".to_owned());
            }
        }
    }

    /// A link went down.
    pub(super) fn peer_gone_for_transaction(&mut self, peer: NodeId) {
        let Some(two) = self.transaction.two_phase_mut() else { return };
        let target = two.head.target == Some(peer);
        match &mut two.part {
            // What is known of a Primary that is lost since, others would believe.
            Part::Initiator { .. } if two.waits_for.contains(peer) || two.masks.primary.contains(peer) || target => {
                two.waits_for.remove(peer);
                // As long as others are there it is worth another try; a size may be changed without them, and who is
                // to be connected has not refused.
                let resizes = matches!(two.matter, Matter::Size(_));
                let connects = two.connects.is_some();
                let tries_again = !target && (resizes || connects || !self.neighbours9().is_empty());
                self.give_up_transaction(if tries_again { Code::ConcurrentStateChange } else { Code::FailedByPeer });
            }
            Part::Initiator { .. } => {}
            Part::Participant { parents, .. } => {
                parents.remove(peer);
                if parents.is_empty() {
                    return self.abandon_theirs();
                }
                if two.waits_for.contains(peer) || two.masks.primary.contains(peer) {
                    two.waits_for.remove(peer);
                    two.answer = Answer::Retry;
                    if let Part::Participant { answered: None, .. } = two.part {
                        self.answer_transaction(Answer::Retry);
                    }
                }
            }
        }
    }

    /// When a transaction is too old.
    pub(crate) fn transaction_timer(&self) -> Option<Instant> {
        self.transaction.two_phase().map(|two| two.until)
    }

    pub(crate) fn check_transaction(&mut self) {
        if self.transaction_timer().is_none_or(|until| self.node.now < until) {
            return;
        }
        self.tell_who_is_silent();
        if let Some(two) = self.transaction.two_phase().filter(|two| two.is_ours()) {
            let refused = two.answer == Answer::No;
            let code = if refused { Code::FailedByPeer } else { Code::ConcurrentStateChange };
            return self.give_up_transaction(code);
        }
        let connects = self.transaction.take_two_phase().and_then(|two| two.connects);
        connects.into_iter().for_each(|peer| self.forget_attempt(peer));
    }

    /// A transaction has lasted too long: whose answer has it waited for?
    fn tell_who_is_silent(&mut self) {
        let Some(two) = self.transaction.two_phase().filter(|two| two.answer != Answer::No) else { return };
        let silent: Vec<_> = two.waits_for.into_iter().map(|n| self.name_of(n)).collect();
        let text = match &two.part {
            Part::Participant { answered: Some(_), .. } => {
                let initiator = self.name_of(two.head.initiator);
                format!("{initiator} does not say what becomes of a change that it has asked all nodes for")
            }
            _ if silent.is_empty() => "a connection is given up: the peer does not say what data it has".to_owned(),
            _ => format!("a change that all nodes must agree to is given up: no answer of {}", silent.join(", ")),
        };
        self.out.note(Severity::Warning, None, None, Topic::TwopcTimeout, text);
    }

    /// Asks all for a change that was judged here. `Ok(true)`: it has been made, as nobody had to be asked.
    /// `Ok(false)`: the answer will come.
    ///
    /// # Errors
    /// "In a transient state" while another transaction is under way; what this dialect does not do yet is refused.
    pub(super) fn agree_in_two_phases(&mut self, id: Caller, change: &Change) -> Result<bool, Refusal> {
        let asks = |set| matches!(set, Set::Role(_) | Set::Disk(_, DiskState::Failed) | Set::Replication(..));
        let copies = |set| match set {
            Set::Replication(peer, volume, r) => self.may_copy(peer, volume, r),
            _ => true,
        };
        if !change.sets().all(copies) {
            return Err(Refusal { code: Code::NotSupported, volume: None });
        }
        if !change.sets().any(asks) {
            return self.make(change.clone(), Kind::Wish).map(|()| true);
        }
        if !self.ask_in_two_phases(id, change.clone()) {
            return Err(Refusal { code: Code::InTransientState, volume: None });
        }
        Ok(false)
    }

    /// False: another transaction is under way.
    pub(super) fn ask_in_two_phases(&mut self, command: Caller, change: Change) -> bool {
        let (target, asked, volume) = asked_of_all(&change);
        self.begin_two_phase(Origin::Command(command), target, volume, Matter::State { asked, change })
    }

    /// Asks all who is there, and who is Primary: nothing else changes by that.
    pub(crate) fn ask_who_is_primary(&mut self) -> bool {
        let matter = Matter::State { asked: StateChange::default(), change: Change::default() };
        self.begin_two_phase(Origin::Settle, None, VolumeNr::NONE, matter)
    }

    /// Asks all whether a disk may come into use. False: another transaction is under way.
    pub(crate) fn ask_to_attach(&mut self, volume: VolumeNr) -> bool {
        let change = Change::from(Set::Disk(volume, DiskState::Negotiating));
        let asked = StateChange { disk: Some(DiskState::Negotiating), ..StateChange::default() };
        self.begin_two_phase(Origin::Attach(volume), None, volume, Matter::State { asked, change })
    }
}

impl Node {
    fn two_would_be_primary(&self, primaries: NodeMask) -> String {
        let own = self.cfg.node;
        let name = |node: NodeId| if node == own { "this node".to_owned() } else { self.name_of(node) };
        let names: Vec<_> = primaries.into_iter().map(name).collect();
        format!(
            "{} would reach each other, and are Primary, which allow-two-primaries does not allow",
            names.join(" and ")
        )
    }

    /// Nodes that are connected, and speak 9's dialect.
    pub(crate) fn neighbours9(&self) -> NodeMask {
        self.connected().filter(|(_, c)| c.speaks9()).map(|(peer, _)| peer).collect()
    }

    /// What this node contributes to a transaction of its own.
    fn own_masks(&self, asked: &StateChange, target: Option<NodeId>, asks: NodeMask) -> Masks {
        let own = self.cfg.node;
        let mut reachable = asks.with(own);
        if let (Some(ConnState::Disconnecting), Some(target)) = (asked.conn, target) {
            // The target's side is another one from now on.
            reachable.remove(target);
        }
        let mut masks = Masks { reachable, ..Masks::default() };
        if asked.role.unwrap_or(self.state.role) == Role::Primary {
            masks.primary.insert(own);
            masks.weak = self.weak_beside(reachable);
        }
        masks
    }

    /// A Primary's: who does not get what it writes, if good data of some volume is within reach.
    fn weak_beside(&self, reachable: NodeMask) -> WireMask {
        let good =
            |volume| self.state.disk(volume) == DiskState::UpToDate || self.state.good_peers(volume).next().is_some();
        if self.devices.ids().any(good) { WireMask::all_but(reachable) } else { WireMask::NONE }
    }

    /// Who is told what becomes of it, and the header of that.
    fn told_of(&self, two: &TwoPhase) -> (NodeMask, wire::Transaction) {
        let all = two.head.target.into_iter().fold(self.neighbours9(), NodeMask::with);
        (all, wire::Transaction { nodes_to_reach: WireMask::all_but(all.with(self.cfg.node)), ..two.head })
    }

    /// Is some disk about to be there? What would be said of it now is about to be wrong.
    fn opens_disks(&self) -> bool {
        self.devices.ids().any(|volume| self.devices[volume].is_opening())
    }

    /// Those of these nodes that this one is not connected to.
    fn out_of_reach(&self, nodes: NodeMask) -> NodeMask {
        nodes.without(self.connected().map(|(peer, _)| peer).collect()).without(NodeMask::of(self.cfg.node))
    }

    /// Does taking this disk into use concern peers? One that has none does not take part in what becomes of it.
    pub(crate) fn attach_needs_consent(&self, volume: VolumeNr) -> bool {
        let concerned = |peer: NodeId| {
            self.state.replicates(peer, volume) && self.state.peer_disk(peer, volume) > DiskState::Diskless
        };
        self.connected().any(|(peer, c)| c.speaks9() && concerned(peer))
    }
}

/// Are nodes to be connected by this? Of a volume the same says that one of them removes it.
fn connects(volume: VolumeNr, asked: &StateChange) -> bool {
    asked.conn == Some(ConnState::WFReportParams) && volume == VolumeNr::NONE
}

/// Who is to be asked for what, and about which volume, when this change is to be made (3.2.1).
fn asked_of_all(change: &Change) -> (Option<NodeId>, StateChange, VolumeNr) {
    let mut asked = StateChange::default();
    let (mut target, mut volume) = (None, VolumeNr::NONE);
    for set in change.sets() {
        match set {
            Set::Role(role) => asked.role = Some(role),
            Set::Disk(of, DiskState::Failed) => (asked.disk, volume) = (Some(DiskState::Detaching), of),
            Set::Disk(_, disk) => asked.disk = Some(disk),
            Set::Connection(peer, ConnectionState::Disconnecting) => {
                (target, asked.conn) = (Some(peer), Some(ConnState::Disconnecting));
            }
            Set::Removes(peer, of) => {
                (target, volume, asked.conn) = (Some(peer), of, Some(ConnState::WFReportParams));
            }
            Set::Replication(peer, of, replication) => {
                (target, volume) = (Some(peer), of);
                asked.conn = Some(dialect84::conn_state(ConnectionState::Connected, replication));
            }
            Set::PeerDisk(_, _, DiskState::Outdated) => asked.pdsk = Some(DiskState::Outdated),
            _ => {}
        }
    }
    (target, asked, volume)
}

impl Connection {
    fn connect_later(&mut self, wait: Duration, now: Instant) {
        let at = now + wait;
        if let Some(nine) = self.nine_mut() {
            nine.again = Some(at);
        }
    }
}
