//! Changes that both nodes must agree to: one transaction at a time (`docs/spec/connection-and-state.md` 3.1).
//!
//! In 8.4's dialect a transaction has one participant, who is asked about volume after volume (or
//! about the connection) and whose last yes is the commit.

pub(crate) mod asked;

use crate::api::{ConnectionState, Severity};
use crate::command::agreement::asked::Agreement;
use crate::command::caller::Caller;
use crate::command::pending::Waiting;
use crate::command::transaction::Transaction;
use crate::decide::change::{Change, Set};
use crate::decide::state::Replication;
use crate::decide::topic::Topic;
use crate::decide::view::{Kind, Refusal};
use crate::decide::{StateChange, StateChangeResult as Code, rules};
use crate::{Resource, dialect84};
use units::{Instant, NodeId, VolumeNr};
use wire::{DiskState, Packet, Socket};

impl Resource {
    /// Judges a change here; if it concerns a peer, asks it first. `Ok(true)`: done. `Ok(false)`: the answer will come.
    ///
    /// # Errors
    /// The rule that refuses it; "in a transient state" while another change is being agreed on.
    pub(super) fn agree(&mut self, id: Caller, change: &Change) -> Result<bool, Refusal> {
        let new = match self.would_be(change, Kind::Wish) {
            Err(Refusal { code: Code::NothingToDo, .. }) => return Ok(true),
            other => other?,
        };
        if self.changes_in_two_phases() {
            return self.agree_in_two_phases(id, change);
        }
        let Some((peer, first)) = rules::to_be_asked(&self.node.state, &new).first().copied() else {
            return self.make(change.clone(), Kind::Wish).map(|()| true);
        };
        if !self.ask(id, peer, Some(&new), change.clone()) {
            return Err(Refusal { code: Code::InTransientState, volume: Some(first) });
        }
        Ok(false)
    }

    /// Begins a transaction about the volumes that become different from a peer's point of view, or (`None`) about the
    /// connection. False: another one is under way.
    pub(super) fn ask(
        &mut self,
        command: Caller,
        peer: NodeId,
        new: Option<&crate::decide::state::State>,
        change: Change,
    ) -> bool {
        if !self.transaction.is_free() {
            return false;
        }
        if self.node.connections[peer].speaks9() {
            return self.ask_in_two_phases(command, change);
        }
        let pairs = new.map(|new| rules::to_be_asked(&self.node.state, new)).unwrap_or_default();
        let ours = pairs.into_iter().filter(|(of, _)| *of == peer);
        let removed = change.sets().filter_map(|set| match set {
            Set::Removes(of, volume) => Some((of, volume)),
            _ => None,
        });
        let ours = ours.chain(removed);
        let volumes = ours.map(|(_, volume)| (volume, self.node.devices[volume].disk.disks_seen)).collect();
        let at = self.node.now;
        self.transaction.begin(Transaction::Request(Agreement {
            command,
            participant: peer,
            at,
            change,
            volumes,
            agreed: 0,
            contradicted: None,
        }));
        self.send_question();
        true
    }

    fn send_question(&mut self) {
        let Some(asked) = self.transaction.request() else { return };
        let peer = asked.participant;
        let about = asked.volumes.get(asked.agreed).map(|(volume, _)| *volume);
        let volume = about.unwrap_or(self.node.devices.first());
        let request = dialect84::request(&asked.change, peer, volume);
        let packet = match self.node.connections[peer].names(about, volume) {
            Some(_) => Packet::StateChgReq(request),
            None => Packet::ConnStChgReq(request),
        };
        self.send(peer, Socket::Data, volume, packet);
    }

    /// The participant's answer.
    pub(crate) fn peer_answered_change(&mut self, peer: NodeId, result: Code) {
        let Some(asked) = self.transaction.take_request(peer) else { return };
        // Of a volume that this node removes something is still under way there.
        let removes = asked.change.sets().any(|set| matches!(set, Set::Removes(..)));
        let later = removes && matches!(result, Code::InTransientState | Code::ConcurrentStateChange);
        let no = Refusal { code: if later { Code::ConcurrentStateChange } else { Code::FailedByPeer }, volume: None };
        if !result.is_success() {
            // It has agreed about the volumes before this one.
            asked.volumes[..asked.agreed].iter().for_each(|(volume, _)| self.send_state(peer, *volume));
            return self.answered(peer, asked.command, Err(no));
        }
        if asked.agreed + 1 < asked.volumes.len() {
            let next = Agreement { agreed: asked.agreed + 1, at: self.node.now, ..asked };
            self.transaction.begin(Transaction::Request(next));
            return self.send_question();
        }
        let outcome = self.commit(peer, &asked);
        self.answered(peer, asked.command, outcome);
    }

    /// The participant has agreed to all of it: the change takes place here, too, if it still can.
    fn commit(&mut self, peer: NodeId, asked: &Agreement) -> Result<(), Refusal> {
        let Some((volume, _)) = asked.volumes.first().copied() else {
            return self.make(asked.change.clone(), Kind::Fact);
        };
        // By force meanwhile; what is being attached now is another matter.
        if asked.change.sets_disk(volume, DiskState::Failed) && !self.node.devices[volume].can_detach() {
            return Ok(());
        }
        let same_disks = asked.volumes.iter().all(|(volume, disk)| self.node.devices[*volume].disk.disks_seen == *disk);
        let outcome = if !same_disks {
            Err(Refusal { code: Code::InTransientState, volume: Some(volume) })
        } else {
            // Meanwhile something else may have been agreed that this would contradict (a second Primary).
            asked.contradicted.map_or(Ok(()), Err).and_then(|()| self.change_as_agreed(peer, asked))
        };
        if outcome.is_err() {
            asked.volumes.iter().for_each(|(volume, _)| self.peer_went_ahead(peer, *volume, &asked.change));
        }
        outcome
    }

    /// A change to which the peer has agreed.
    ///
    /// # Errors
    /// The rule that refuses it, or that a resync comes to nothing: the peer has lost its disk meanwhile.
    fn change_as_agreed(&mut self, peer: NodeId, asked: &Agreement) -> Result<(), Refusal> {
        if let Some((rise, forced)) = self.promotion_agreed(asked.command) {
            self.make(rise, Kind::Wish)?;
            self.promoted(&forced);
            return Ok(());
        }
        self.make(asked.change.clone(), Kind::Wish)?;
        for (volume, _) in &asked.volumes {
            let begins = [Replication::StartingSyncS, Replication::StartingSyncT];
            let begins = begins.into_iter().any(|to| asked.change.begins(peer, *volume, to));
            if begins && self.node.state.replication(peer, *volume) == Replication::Established {
                return Err(Refusal { code: Code::NoRemoteDisk, volume: Some(*volume) });
            }
        }
        Ok(())
    }

    /// The peer has made a change that cannot be made here any more: it is told so. Until it answers, a copy that it
    /// has given up to become a target is not one to rely on.
    fn peer_went_ahead(&mut self, peer: NodeId, volume: VolumeNr, change: &Change) {
        let peer_disk = self.node.state.peer_disk(peer, volume);
        if change.begins(peer, volume, Replication::StartingSyncS) && peer_disk > DiskState::Inconsistent {
            self.took_place(Set::PeerDisk(peer, volume, DiskState::Inconsistent));
        }
        if change.sets_disk(volume, DiskState::Failed)
            && self.node.state.replication(peer, volume) > Replication::Established
        {
            // It has ended the resync, which goes on here: only a comparison brings them together again.
            let text = "the peer ended the resync for a detach that is not possible any more".to_owned();
            return self.out.drop_link(peer, ConnectionState::NetworkFailure, Topic::DetachWithdrawn, text);
        }
        self.send_state(peer, volume);
    }

    /// The link went down before the answer.
    pub(crate) fn peer_gone_for_commands(&mut self, peer: NodeId) {
        if let Some(asked) = self.transaction.take_request(peer) {
            self.answered(peer, asked.command, Err(Refusal { code: Code::FailedByPeer, volume: None }));
        }
        self.peer_gone_for_transaction(peer);
    }

    /// What this node has just agreed to may be at odds with what it has asked for itself: then that is off. By the
    /// state alone it may look possible again when the answer comes: the peer's word from before it knew of the
    /// agreement may come in between, and two nodes would each be Primary by leave of the other.
    fn withdraw_contradicted(&mut self) {
        let asked = self.transaction.request().filter(|asked| !asked.volumes.is_empty());
        let Some(change) = asked.map(|asked| asked.change.clone()) else {
            return;
        };
        let judged = self.would_be(&change, Kind::Wish);
        let contradiction = judged.err().filter(|refusal| refusal.code != Code::NothingToDo);
        if let Some(asked) = self.transaction.request_mut() {
            asked.contradicted = asked.contradicted.or(contradiction);
        }
    }

    /// A command may have dropped the link that another one waits for an answer on.
    pub(super) fn end_unanswerable(&mut self) {
        let asked = self.transaction.command();
        let lost = self.pending.iter().filter(|p| p.what.awaits_answer() && asked != Some(p.id));
        for (id, peer) in lost.map(|p| (p.id, p.what.participant())).collect::<Vec<_>>() {
            let peer = peer.or_else(|| self.node.connections.ids().next());
            if let Some(peer) = peer {
                self.answered(peer, id, Err(Refusal { code: Code::FailedByPeer, volume: None }));
            }
        }
    }

    // -- what the peer asks for --------------------------------------------------------------------------------------

    /// The peer wants to change the state of both nodes.
    pub(crate) fn peer_asks_change(&mut self, peer: NodeId, volume: Option<VolumeNr>, asked: &StateChange) {
        let ours = self.transaction.request().is_some_and(|ours| ours.participant == peer);
        if ours && self.node.connections[peer].resolve_conflicts() {
            return self.refuse_change(peer, volume, Code::ConcurrentStateChange);
        }
        let removed = volume.filter(|_| asked.from_peers_view().conn == Some(wire::ConnState::WFReportParams));
        if removed.is_some_and(|volume| self.writes_to(peer, volume)) {
            return self.refuse_change(peer, volume, Code::InTransientState);
        }
        let understood = dialect84::asked(asked, peer, volume, self.node.devices.ids());
        let Some(change) = removed.map(|volume| self.removed_by(peer, volume)).or(understood) else {
            let text = "the peer asked for a change that only this node can make";
            self.out.note(Severity::Warning, volume, Some(peer), Topic::ChangeRefused, text);
            return self.refuse_change(peer, volume, Code::NotSupported);
        };
        let without_data = |volume| self.node.state.is_primary() && self.node.state.disk(volume) < DiskState::UpToDate;
        let forced =
            |volume: &VolumeNr| change.sets_peer_disk(peer, *volume, DiskState::UpToDate) && without_data(*volume);
        if volume.is_some_and(|volume| forced(&volume)) {
            // That copy was not good: by force it counts for those who have seen no better one.
            let text = "the peer's copy shall count by force, but users here have seen another: make this node \
                        Secondary first";
            self.out.note(Severity::Warning, volume, Some(peer), Topic::ChangeRefused, text.to_owned());
            return self.refuse_change(peer, volume, Code::NoUpToDateDisk);
        }
        let target = volume.filter(|volume| change.begins(peer, *volume, Replication::StartingSyncT));
        if let Some(volume) = target.filter(|volume| !self.peer_has_all(*volume)) {
            self.node.connections[peer].asked_later = Some((volume, *asked));
            return;
        }
        // What a disk that is being attached is worth, and the peer's beside it, comes out when they were compared.
        let of_peer = |set: &Set| matches!(set, Set::PeerDisk(..));
        let judges = change.sets().any(|set| matches!(set, Set::Disk(..)) || of_peer(&set));
        let undecided = |volume: VolumeNr| {
            self.node.devices[volume].disk.attaching.is_some() || self.node.state.disk(volume) == DiskState::Negotiating
        };
        let waits = volume.map_or_else(|| self.node.devices.ids().any(undecided), undecided);
        let leaves = change.sets().any(|set| set == Set::Connection(peer, ConnectionState::TearDown));
        let result = match volume {
            _ if judges && waits => Err(Code::InTransientState),
            Some(_) => self.make(change, Kind::Wish).map_err(|r| r.code),
            None => self.make(change, Kind::WishIgnoringOutdate).map_err(|r| r.code),
        };
        // Its disk may be gone since it asked: then no resync has begun.
        let begun = target.is_none_or(|volume| self.node.state.replication(peer, volume) > Replication::Established);
        let code = match result {
            Ok(()) if !begun => Code::NoUpToDateDisk,
            Ok(()) => {
                self.withdraw_contradicted();
                Code::Success
            }
            Err(code) => code,
        };
        self.refuse_change(peer, volume, code);
        if leaves && code.is_success() {
            let text = "the peer disconnected".to_owned();
            self.out.drop_link(peer, ConnectionState::TearDown, Topic::PeerDisconnected, text);
        }
    }
}

impl Waiting {
    /// Who was asked, where that is part of what waits.
    fn participant(&self) -> Option<NodeId> {
        match self {
            Waiting::Disconnect { peer, .. } | Waiting::Reconnect { peer, .. } | Waiting::Verify { peer, .. } => {
                Some(*peer)
            }
            _ => None,
        }
    }
}

impl Resource {
    /// Since when this peer owes an answer.
    pub(crate) fn asked_since(&self, peer: NodeId) -> Option<Instant> {
        self.transaction.request().filter(|asked| asked.participant == peer).map(|asked| asked.at)
    }
}
