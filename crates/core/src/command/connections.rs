//! Connecting and disconnecting on command (`docs/spec/connection-and-state.md` 3.1).

use crate::Resource;
use crate::api::{ConnectionState, failure};
use crate::command::caller::Caller;
use crate::command::pending::{AfterParting, Leave, Pending, Progress, Waiting};
use crate::config::Fencing;
use crate::decide::StateChangeResult as Code;
use crate::decide::change::{Change, Set};
use crate::decide::quorum::Part;
use crate::decide::rules::DisconnectStep;
use crate::decide::view::{Kind, Refusal};
use crate::node::Node;
use crate::outbox::Outbox;
use units::{Duration, NodeId, VolumeNr};
use wire::{DiskState, Role};

impl Resource {
    pub(super) fn connect(&mut self, id: Caller, peer: NodeId, discard_my_data: bool, tentative: bool) {
        if discard_my_data && self.node.state.is_primary() {
            let text = "a Primary cannot discard its data: make it Secondary first";
            return self.end(Some(id), Err(failure(123, text)));
        }
        if self.node.state.connection(peer) != ConnectionState::StandAlone {
            self.forget_refusals(peer);
            if discard_my_data && !self.node.state.is_connected(peer) {
                self.node.connections[peer].discard_my_data = true;
                return self.end(Some(id), Ok(()));
            }
            if discard_my_data {
                let text = "already connected: disconnect first, then connect --discard-my-data";
                return self.end(Some(id), Err(failure(125, text)));
            }
            return self.end(Some(id), Ok(()));
        }
        // A peer that was made after a disk was attached has a slot of its bitmap from now on (7.13).
        let with_disk = self.node.connections[peer].cfg.part == Part::Disk;
        let lacks = |volume: &VolumeNr| with_disk && self.node.devices[*volume].lacks_room_for(peer);
        if let Some(volume) = self.node.devices.ids().find(lacks) {
            let text = format!(
                "the metadata of volume {volume} have no bitmap slot for another peer: forget one that is gone, or \
                 create the metadata anew for more"
            );
            return self.end(Some(id), Err(failure(162, text)));
        }
        for volume in self.node.devices.ids() {
            if self.node.devices[volume].gives_slot_to(peer) {
                self.md_changed(volume);
            }
        }
        self.leave_stand_alone(peer, discard_my_data, tentative);
        self.end(Some(id), Ok(()));
    }

    /// An attempt that an administrator has asked for, and what it was to be like: nothing of an earlier one's counts.
    fn leave_stand_alone(&mut self, peer: NodeId, discard_my_data: bool, tentative: bool) {
        let c = &mut self.node.connections[peer];
        (c.discard_my_data, c.tentative) = (discard_my_data, tentative);
        self.took_place(Set::Connection(peer, ConnectionState::Unconnected));
        self.begin_to_connect(peer, Duration(0), false);
    }

    /// Disconnects as an administrator does, and connects again.
    pub(crate) fn reconnect(&mut self, peer: NodeId) {
        self.wait_for(
            Caller::Reconnecting(peer),
            Waiting::Reconnect { peer, step: DisconnectStep::Plain, sent: false },
        );
    }

    pub(super) fn step_reconnect(&mut self, id: Caller, peer: NodeId, step: DisconnectStep, sent: bool) -> Progress {
        if !self.node.state.is_connected(peer) {
            // It was lost, and is connecting again by itself, or somebody wants it to be disconnected.
            return Progress::Left;
        }
        let again = self.step_disconnect(id, peer, step, sent);
        self.come_back(peer, again)
    }

    /// Disconnected: connects. Or the next step towards it. If the peer does not let go, all stays as it is.
    pub(super) fn come_back(&mut self, peer: NodeId, again: Progress) -> Progress {
        match again {
            Progress::Waits(Waiting::Disconnect { peer, step, sent }) => {
                Progress::Waits(Waiting::Reconnect { peer, step, sent })
            }
            Progress::Waits(Waiting::Parting { peer, .. }) => {
                Progress::Waits(Waiting::Parting { peer, then: AfterParting::Connect })
            }
            _ => {
                if self.node.state.connection(peer) == ConnectionState::StandAlone {
                    self.leave_stand_alone(peer, false, false);
                }
                Progress::Left
            }
        }
    }

    pub(super) fn disconnect(&mut self, id: Caller, peer: NodeId, force: bool) {
        if self.node.state.connection(peer) == ConnectionState::StandAlone {
            return self.end(Some(id), Ok(()));
        }
        let step = if force { DisconnectStep::Forced } else { DisconnectStep::Plain };
        self.wait_for(id, Waiting::Disconnect { peer, step, sent: false });
    }

    pub(super) fn step_disconnect(&mut self, id: Caller, peer: NodeId, step: DisconnectStep, sent: bool) -> Progress {
        if self.node.state.connection(peer) == ConnectionState::StandAlone {
            return Progress::Ended(Ok(()));
        }
        if sent {
            return Progress::Waits(Waiting::Disconnect { peer, step, sent });
        }
        if step == DisconnectStep::Forced {
            return parts(&mut self.out, peer);
        }
        let mut change = Change::from(Set::Connection(peer, ConnectionState::Disconnecting));
        for volume in self.node.devices.ids() {
            match step {
                DisconnectStep::OutdatePeer => change.push(Set::PeerDisk(peer, volume, DiskState::Outdated)),
                DisconnectStep::OutdateSelf => change.push(Set::Disk(volume, DiskState::Outdated)),
                _ => self.node.outdated_by_parting(peer, volume).into_iter().for_each(|set| change.push(set)),
            }
        }
        if let Err(Refusal { code, .. }) = self.would_be(&change, Kind::Wish)
            && code != Code::NothingToDo
        {
            // The handshake, or the step of another change, ends by itself or with the link.
            if code == Code::InTransientState {
                return Progress::Waits(Waiting::Disconnect { peer, step, sent });
            }
            return match self.disconnect_result(peer, step, Err(code)) {
                // At once: nothing else may ever come in. Once only, lest two steps lead to each other.
                Progress::Waits(Waiting::Disconnect { step: next, .. })
                    if step == DisconnectStep::Plain || next == DisconnectStep::Forced =>
                {
                    self.step_disconnect(id, peer, next, false)
                }
                result => result,
            };
        }
        if !self.node.state.is_connected(peer) {
            return parts(&mut self.out, peer);
        }
        let asked = self.ask(id, peer, None, change);
        Progress::Waits(Waiting::Disconnect { peer, step, sent: asked })
    }

    /// The link to a peer has ended as commands wanted it: they go on.
    pub(crate) fn has_parted(&mut self, peer: NodeId) {
        let parts = |p: &Pending| matches!(p.what, Waiting::Parting { peer: of, .. } if of == peer);
        while let Some(at) = self.pending.iter().position(parts) {
            let Pending { id, what, .. } = self.pending.remove(at);
            match what {
                Waiting::Parting { then: AfterParting::Connect, .. } => self.leave_stand_alone(peer, false, false),
                Waiting::Parting { then: AfterParting::Down { force }, .. } => {
                    self.pending.insert(at, Pending::new(id, Waiting::Down { force, leave: Leave::WISH }));
                }
                _ => self.end(Some(id), Ok(())),
            }
        }
    }

    pub(super) fn disconnect_result(
        &mut self,
        peer: NodeId,
        step: DisconnectStep,
        outcome: Result<(), Code>,
    ) -> Progress {
        if outcome.is_ok() {
            return parts(&mut self.out, peer);
        }
        let code = outcome.err().unwrap_or(Code::Success);
        if code == Code::FailedByPeer && !self.node.state.is_connected(peer) {
            // The link is lost: nobody is left to refuse.
            return Progress::Waits(Waiting::Disconnect { peer, step: DisconnectStep::Plain, sent: false });
        }
        match crate::decide::rules::next_disconnect_step(step, code, self.node.state.connection(peer)) {
            DisconnectStep::Done => Progress::Ended(Ok(())),
            DisconnectStep::Failed => Progress::Ended(Err(self.refusal(self.node.devices.first(), code))),
            next => Progress::Waits(Waiting::Disconnect { peer, step: next, sent: false }),
        }
    }
}

/// The link ends, and then the command goes on.
fn parts(out: &mut Outbox, peer: NodeId) -> Progress {
    out.part(peer);
    Progress::Waits(Waiting::Parting { peer, then: AfterParting::End })
}

impl Node {
    /// Whose copy of the volume becomes Outdated when this node leaves the peer in order (4.5): the Secondary's of the
    /// two, so that it need not be fenced, and costs the Primary no quorum. In 9's dialect only; 8.4's nodes find out
    /// step by step.
    fn outdated_by_parting(&self, peer: NodeId, volume: VolumeNr) -> Option<Set> {
        let asked = self.fencing_policy() != Fencing::DontCare || self.cfg.quorum.is_on();
        if !asked || !self.neighbours9().contains(peer) || !self.state.replicates(peer, volume) {
            return None;
        }
        let better = |disk: DiskState| disk > DiskState::Outdated;
        let alone = !self.connections.ids().any(|other| other != peer && self.state.replicates(other, volume));
        match (self.state.role, self.state.pair(peer, volume).role) {
            (Role::Primary, Role::Secondary) if better(self.state.peer_disk(peer, volume)) => {
                Some(Set::PeerDisk(peer, volume, DiskState::Outdated))
            }
            // Beside another node it hears that a Primary is out of reach with the end of the transaction (3.2.7).
            (Role::Secondary, Role::Primary) if alone && better(self.state.disk(volume)) => {
                Some(Set::Disk(volume, DiskState::Outdated))
            }
            _ => None,
        }
    }

    /// Would a disconnect wait for the end of another change, as a handshake is?
    pub(super) fn leaving_would_wait(&self, peer: NodeId) -> bool {
        let leaves = Change::from(Set::Connection(peer, ConnectionState::Disconnecting));
        self.would_be(&leaves, Kind::Wish).is_err_and(|refusal| refusal.code == Code::InTransientState)
    }
}
