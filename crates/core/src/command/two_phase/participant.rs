//! A change in two phases that another node has begun (`docs/spec/connection-and-state.md` 3.2.5, 3.2.6).

use super::{PATIENCE, connects};
use crate::Resource;
use crate::api::ConnectionState;
use crate::command::transaction::Transaction;
use crate::command::two_phase::slot::{Answer, Masks, Matter, Part, TwoPhase};
use crate::config::Fencing;
use crate::decide::StateChangeResult as Code;
use crate::decide::change::{Change, Set};
use crate::decide::state::Replication;
use crate::decide::view::{Kind, Refusal};
use crate::node::Node;
use units::{NodeId, NodeMask, VolumeNr};
use wire::{ConnState, Decision, DiskState, Packet, Prepare, Role, Socket, StateChange, Vote, WireMask};

impl TwoPhase {
    /// What tells those that have asked.
    fn answer_with(&self, head: &wire::Transaction, answer: Answer) -> Packet {
        let Masks { reachable, primary, weak, .. } = self.masks;
        let vote = match &self.matter {
            Matter::State { .. } => Vote::on_change(head, reachable.into(), primary.into(), weak),
            Matter::Size(size) => Vote::on_resize(head, reachable.into(), primary.into(), size.most()),
        };
        let packet = match answer {
            Answer::Yes => Packet::TwopcYes,
            Answer::No => Packet::TwopcNo,
            Answer::Retry => Packet::TwopcRetry,
        };
        packet(Box::new(vote))
    }
}

impl Resource {
    /// P_TWOPC_PREPARE (3.2.5).
    pub(crate) fn prepare_received(&mut self, peer: NodeId, volume: VolumeNr, prepare: &Prepare) {
        if self.can_take_part(peer, volume, prepare.transaction) {
            self.accept_prepare(peer, volume, prepare);
        }
    }

    /// A peer asks: is it heard for the first time, and nothing else under way? If not, it gets its answer.
    pub(super) fn can_take_part(&mut self, peer: NodeId, volume: VolumeNr, head: wire::Transaction) -> bool {
        match self.transaction.get_mut() {
            None if !self.called_off.contains(&head) => {}
            Some(Transaction::TwoPhase(two)) if two.is(head.tid, head.initiator) => {
                // Over a redundant path.
                let Part::Participant { parents, answered, .. } = &mut two.part else { return false };
                parents.insert(peer);
                let answered = answered.map(|answer| two.answer_with(&head, answer));
                // It would not ask if it did not agree itself.
                two.waits_for.remove(peer);
                match answered {
                    Some(packet) => self.send(peer, Socket::Control, volume, packet),
                    None => self.transaction_went_on(),
                }
                return false;
            }
            Some(Transaction::TwoPhase(two))
                if two.is_ours() && head.initiator < self.node.cfg.node && !self.called_off.contains(&head) =>
            {
                self.give_up_transaction(Code::ConcurrentStateChange);
            }
            _ => {
                let reachable = self.neighbours9().with(self.node.cfg.node);
                let busy = Vote::on_change(&head, reachable.into(), WireMask::NONE, WireMask::NONE);
                self.send(peer, Socket::Control, volume, Packet::TwopcRetry(Box::new(busy)));
                return false;
            }
        }
        true
    }

    fn accept_prepare(&mut self, peer: NodeId, volume: VolumeNr, prepare: &Prepare) {
        let (head, own) = (prepare.transaction, self.node.cfg.node);
        let concerned = head.initiator == peer && head.target.is_none_or(|target| target == own);
        let connects = connects(volume, &prepare.change);
        let meets = connects && concerned;
        if meets && self.refuse_beside_other(peer) {
            return;
        }
        let change = concerned.then(|| self.change_of_peer(peer, volume, &prepare.change));
        let mut masks = Masks { reachable: self.neighbours9().with(own), ..Masks::default() };
        match prepare.change.conn {
            _ if connects => masks.reachable.insert(head.initiator),
            Some(ConnState::Disconnecting) => masks.reachable.remove(head.initiator),
            _ => {}
        }
        if self.node.state.is_primary() {
            masks.primary.insert(own);
            masks.weak = self.weak_beside(masks.reachable);
        }
        let removes = prepare.change.conn == Some(ConnState::WFReportParams) && !connects;
        let answer = match &change {
            None if self.is_beside_rising(&prepare.change) => Answer::No,
            _ if self.must_be_brought_up_first(head.initiator, &prepare.change) => Answer::Retry,
            None => Answer::Yes,
            Some(None) => Answer::No,
            Some(Some(_)) if connects && self.opens_disks() => Answer::Retry,
            Some(Some(_)) if connects => Answer::Yes,
            Some(Some(_)) if removes && self.writes_to(peer, volume) => Answer::Retry,
            // Nothing is to change.
            Some(Some(_)) if prepare.change == StateChange::default() => Answer::Yes,
            Some(Some(change)) => match self.would_be(change, Kind::WishIgnoringOutdate) {
                Ok(_) | Err(Refusal { code: Code::NothingToDo, .. }) => Answer::Yes,
                Err(Refusal { code: Code::InTransientState, .. }) => Answer::Retry,
                Err(_) => Answer::No,
            },
        };
        // What was not understood is not begun.
        let meets = Some(peer).filter(|_| connects && answer == Answer::Yes && concerned);
        let matter = Matter::State { asked: prepare.change, change: change.flatten().unwrap_or_default() };
        self.take_part(peer, head, (volume, matter), (answer, masks), meets);
    }

    /// The others that are to be reached are asked, too.
    pub(super) fn take_part(
        &mut self,
        peer: NodeId,
        head: wire::Transaction,
        (volume, matter): (VolumeNr, Matter),
        (answer, masks): (Answer, Masks),
        connects: Option<NodeId>,
    ) {
        let reach = head.nodes_to_reach.nodes();
        let children = if answer == Answer::Retry { NodeMask::default() } else { self.neighbours9().and(reach) };
        let children = children.without(NodeMask::of(peer));
        let nodes_to_reach = head.nodes_to_reach.without(children.with(self.node.cfg.node));
        let two = TwoPhase {
            head: wire::Transaction { nodes_to_reach, ..head },
            volume,
            matter,
            part: Part::Participant { parents: NodeMask::of(peer), children, answered: None },
            connects,
            waits_for: children,
            answer,
            masks,
            until: self.node.now + PATIENCE,
        };
        let request = two.request();
        self.transaction.begin(Transaction::TwoPhase(Box::new(two)));
        for child in children {
            self.send(child, Socket::Data, volume, request.clone());
            // Perhaps it is lost: that is known soon.
            self.send_ping(child);
        }
        connects.into_iter().for_each(|peer| self.send_attempt(peer));
        self.transaction_went_on();
    }

    pub(super) fn answer_transaction(&mut self, answer: Answer) {
        let Some(two) = self.transaction.two_phase_mut() else { return };
        let (volume, packet) = (two.volume, two.answer_with(&two.head, answer));
        let Part::Participant { parents, answered, .. } = &mut two.part else { return };
        *answered = Some(answer);
        for peer in *parents {
            self.send(peer, Socket::Control, volume, packet.clone());
        }
    }

    /// P_TWOPC_COMMIT and P_TWOPC_ABORT.
    pub(crate) fn decision_received(&mut self, peer: NodeId, volume: VolumeNr, decision: &Decision, commit: bool) {
        let head = decision.transaction;
        let ours = |two: &TwoPhase| two.is(head.tid, head.initiator) && !two.is_ours();
        if !self.transaction.two_phase().is_some_and(ours) {
            if !commit {
                self.called_off.note(&head);
            }
            return;
        }
        // Who has asked and has lost the initiator calls it off; what that decides it says here itself.
        let asked =
            |two: &TwoPhase| matches!(&two.part, Part::Participant { parents, .. } if parents.contains(head.initiator));
        if !commit && peer != head.initiator && self.transaction.two_phase().is_some_and(asked) {
            return;
        }
        let Some(two) = self.transaction.take_two_phase() else { return };
        if let (Matter::Size(size), true) = (&two.matter, commit) {
            // What follows for a third node must find it told.
            self.forward(peer, volume, decision, commit);
            return self.size_decided(two.volume, size, &two, decision);
        }
        if commit {
            self.carry_out_theirs(peer, &two);
            self.end_links();
            if let Some(reachable) = decision.reachable_nodes().filter(|_| self.node.knows_members()) {
                self.happened(Set::Members(reachable.nodes()));
            }
            let affected = head.initiator == peer && head.target.is_none_or(|target| target == self.node.cfg.node);
            if affected && !two.is_empty() || !head.primary_incapable {
                self.outdate_beside(decision.primary_nodes.nodes(), two.is_disconnect());
                self.outdates_itself(&two, decision.primary_nodes.nodes());
            }
        } else {
            self.called_off.note(&head);
            two.connects.into_iter().for_each(|peer| self.forget_attempt(peer));
        }
        self.forward(peer, volume, decision, commit);
    }

    /// A node that this one, which is Primary, does not reach has asked who is that: it has outdated itself now
    /// (3.2.6).
    fn outdates_itself(&mut self, two: &TwoPhase, primaries: NodeMask) {
        let initiator = two.head.initiator;
        let told = two.is_empty() && two.volume == VolumeNr::NONE && self.node.state.is_primary();
        let away = self.node.connections.members().contains(initiator) && !self.node.state.is_connected(initiator);
        if told && away && primaries.contains(self.node.cfg.node) {
            let unknown = |volume: &VolumeNr| self.node.state.peer_disk(initiator, *volume) == DiskState::DUnknown;
            let volumes = self.node.devices.ids().filter(unknown);
            self.took_place(
                volumes.map(|volume| Set::PeerDisk(initiator, volume, DiskState::Outdated)).collect::<Change>(),
            );
        }
    }

    /// Tells the others that are to be reached, not who has told this node.
    fn forward(&mut self, peer: NodeId, volume: VolumeNr, decision: &Decision, commit: bool) {
        let head = decision.transaction;
        let left = self.neighbours9().and(head.nodes_to_reach.nodes()).without(NodeMask::of(peer));
        let mut forwarded = *decision;
        forwarded.transaction.nodes_to_reach = head.nodes_to_reach.without(left.with(self.node.cfg.node));
        let packet = if commit { Packet::TwopcCommit } else { Packet::TwopcAbort };
        for node in left {
            self.send(node, Socket::Data, volume, packet(Box::new(forwarded)));
        }
    }

    /// Nobody is left who could tell what becomes of it: those that this node has asked are told that it is off.
    pub(super) fn abandon_theirs(&mut self) {
        let Some(two) = self.transaction.take_two_phase() else { return };
        two.connects.into_iter().for_each(|peer| self.forget_attempt(peer));
        let abort = Decision::abort(wire::Transaction { nodes_to_reach: WireMask::ALL, ..two.head });
        for peer in self.neighbours9() {
            self.send(peer, Socket::Data, two.volume, Packet::TwopcAbort(Box::new(abort)));
        }
    }

    fn carry_out_theirs(&mut self, peer: NodeId, two: &TwoPhase) {
        if let Some(peer) = two.connects {
            return self.carry_out_attempt(peer);
        }
        let kind = if two.is_disconnect() { Kind::WishIgnoringOutdate } else { Kind::Fact };
        if self.make(two.change(), kind).is_err() {
            self.took_place(two.change());
        }
        if two.is_disconnect() && two.head.target == Some(self.node.cfg.node) {
            self.out.peer_has_parted(peer);
        }
    }

    /// The peer wants to disconnect, and nothing else, and this node has said yes.
    pub(crate) fn has_agreed_to_part(&self, peer: NodeId) -> bool {
        let asked = |two: &TwoPhase| two.is_disconnect() && two.head.target == Some(self.node.cfg.node);
        let Some(two) = self.transaction.two_phase().filter(|two| asked(two)) else { return false };
        let Part::Participant { parents, answered: Some(Answer::Yes), .. } = &two.part else { return false };
        let alone = two.asked().disk.is_none() && two.asked().pdsk.is_none();
        alone && two.answer == Answer::Yes && parents.contains(peer)
    }
}

impl Node {
    /// Is a node to be Primary, while another one brings this one up to date, or this one differs from its peers?
    fn must_be_brought_up_first(&self, initiator: NodeId, asked: &StateChange) -> bool {
        let rises = asked.role == Some(Role::Primary) && asked.conn.is_none();
        let target = self.in_mesh9() && self.source_of_target(initiator).is_some();
        rises && (target || self.reconciles() || self.holds_back())
    }

    /// Does a node that is not connected to this one, which is Primary, want to be that as well?
    fn is_beside_rising(&self, asked: &StateChange) -> bool {
        let allowed = self.connections.values().any(|c| c.cfg.two_primaries);
        asked.role == Some(Role::Primary) && asked.conn.is_none() && self.state.is_primary() && !allowed
    }

    /// What a peer wants, in this node's view. `None`: that is not understood, or not up to it.
    fn change_of_peer(&self, peer: NodeId, volume: VolumeNr, asked: &StateChange) -> Option<Change> {
        let mut change = Change::default();
        let volumes = self.devices.ids().filter(|of| volume == VolumeNr::NONE || *of == volume);
        match asked.conn {
            None => {}
            Some(ConnState::Disconnecting) => {
                change.push(Set::Connection(peer, ConnectionState::TearDown));
                self.outdated_by_leaving(peer).for_each(|volume| {
                    change.push(Set::PeerDisk(peer, volume, DiskState::Outdated));
                });
            }
            Some(ConnState::WFReportParams) if volume != VolumeNr::NONE => {
                return Some(self.removed_by(peer, volume));
            }
            Some(ConnState::WFReportParams) => {
                change.push(Set::Connection(peer, ConnectionState::Connected));
                return (!self.state.is_connected(peer)).then_some(change);
            }
            Some(conn) => return self.resync_of_peer(peer, volume, conn),
        }
        if !self.state.is_connected(peer) || asked.peer.is_some() {
            return None;
        }
        for volume in volumes {
            asked.role.into_iter().for_each(|role| change.push(Set::PeerRole(peer, volume, role)));
            asked.disk.into_iter().for_each(|disk| change.push(Set::PeerDisk(peer, volume, disk)));
            match asked.pdsk {
                None => {}
                Some(DiskState::Outdated) => change.push(Set::Disk(volume, DiskState::Outdated)),
                Some(_) => return None,
            }
        }
        Some(change)
    }

    /// Is something under way about a volume that the peer is to do here, or this node there?
    pub(in crate::command) fn writes_to(&self, peer: NodeId, volume: VolumeNr) -> bool {
        self.devices.contains(volume) && {
            let io = &self.connections[peer].peer_devices[volume].link.io;
            io.pending > 0 || io.unacked > 0 || io.sectors_in_flight > 0
        }
    }

    /// A peer removes a volume, which it has no disk for. It need not be fenced.
    pub(in crate::command) fn removed_by(&self, peer: NodeId, volume: VolumeNr) -> Change {
        if !self.devices.contains(volume) || !self.state.replicates(peer, volume) {
            return Change::default();
        }
        let change = Change::from(Set::Replication(peer, volume, Replication::Off));
        match self.fencing_policy() {
            Fencing::DontCare => change,
            _ => change.and(Set::PeerDisk(peer, volume, DiskState::Outdated)),
        }
    }

    /// The volumes whose copies a Secondary outdates that leaves this Primary in order (4.5): it need not be fenced.
    fn outdated_by_leaving(&self, peer: NodeId) -> impl Iterator<Item = VolumeNr> {
        let asked = self.fencing_policy() != Fencing::DontCare || self.cfg.quorum.is_on();
        let fences = asked && self.state.is_primary();
        let secondary = self.state.peers[peer].role() == Role::Secondary;
        let outdates =
            move |volume: &VolumeNr| fences && secondary && self.state.peer_disk(peer, *volume) > DiskState::Outdated;
        self.devices.ids().filter(outdates)
    }

    /// A resync or verify that a peer wants, seen from here.
    fn resync_of_peer(&self, peer: NodeId, volume: VolumeNr, conn: ConnState) -> Option<Change> {
        let own = match conn {
            ConnState::StartingSyncS => Replication::StartingSyncT,
            ConnState::StartingSyncT => Replication::StartingSyncS,
            ConnState::WFBitMapS => Replication::WFBitMapT,
            ConnState::WFBitMapT => Replication::WFBitMapS,
            ConnState::VerifyS => Replication::VerifyT,
            _ => return None,
        };
        let volume = self.devices.ids().find(|of| *of == volume)?;
        let may = self.state.replicates(peer, volume) && self.may_copy(peer, volume, own);
        may.then(|| Set::Replication(peer, volume, own).into())
    }
}
