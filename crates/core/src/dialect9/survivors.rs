//! What is left of a Primary's writes when it is lost: its peers tell each other the last one that each has, and who
//! has more is the source of the other one (`docs/spec/connection-and-state.md` 4.7 step 11, 7.7).

pub(crate) mod loss;

use crate::Resource;
use crate::api::{IoError, Severity};
use crate::connection::Connection;
use crate::decide::state::{Replication, State};
use crate::decide::topic::Topic;
use crate::decide::{DiskState, Role};
use crate::dialect9::mesh::unsettled::LostPrimary;
use crate::dialect9::survivors::loss::{Loss, PATIENCE, Survivor};
use crate::node::Node;
use crate::op::Op;
use crate::peer_write::write::PeerWrite;
use std::cmp::Ordering;
use units::{Instant, NodeId, VolumeNr};
use wire::{CurrentUuid, Dagtag, Packet, PeerDagtag, Socket};

impl Resource {
    /// Once a turn: of Primaries that were lost the others are told how much of it this node has, after they have heard
    /// what became of its disk, and when all of that is durable: they may forget what they have marked.
    pub(crate) fn tell_of_lost_primaries(&mut self) {
        for lost in self.node.connections.ids() {
            if self.node.connections[lost].loss == Loss::Told {
                continue;
            }
            let due = !self.node.state.is_connected(lost) && self.in_mesh9();
            if due && !self.has_lost_writes(lost) {
                continue;
            }
            self.node.connections[lost].loss = Loss::Told;
            if due {
                self.tell_survivors(lost);
            }
        }
    }

    /// Are writes of a peer that is gone still on their way to a disk?
    fn writes_lost_ones(&self, lost: NodeId) -> bool {
        let session = self.node.connections[lost].session;
        let over = |w: &PeerWrite| w.connection == lost && w.session != session;
        self.peer_writes.iter().any(|(_, w)| over(w) && self.usable(w.device))
    }

    /// Is all durable that this node has got from a peer that is gone?
    fn has_lost_writes(&mut self, lost: NodeId) -> bool {
        if matches!(self.node.connections[lost].loss, Loss::Writing(_)) && !self.writes_lost_ones(lost) {
            let since = self.node.now;
            let left = self.flush_all(|device, mark| Op::LossFlush { lost, device, since, mark });
            self.node.connections[lost].loss = Loss::Flushing(left, since);
        }
        matches!(self.node.connections[lost].loss, Loss::Flushing(0, _))
    }

    /// One of these flushes has ended.
    pub(crate) fn lost_writes_flushed(
        &mut self,
        lost: NodeId,
        volume: VolumeNr,
        since: Instant,
        result: Result<(), IoError>,
    ) {
        if result.is_err() {
            self.flush_error(volume);
        }
        match &mut self.node.connections[lost].loss {
            Loss::Flushing(left, begun) if *begun == since => *left -= 1,
            _ => {}
        }
    }

    fn tell_survivors(&mut self, lost: NodeId) {
        let at = self.node.connections[lost].heard_at.unwrap_or(0);
        let others: Vec<_> =
            self.node.connections.ids().filter(|peer| *peer != lost && self.node.state.is_connected(*peer)).collect();
        for peer in others {
            let both = |volume| self.node.state.worst_disk(peer, volume) >= DiskState::Inconsistent;
            let volumes: Vec<_> = self
                .node
                .devices
                .ids()
                .filter(|volume| self.node.state.replicates(peer, *volume) && both(*volume))
                .collect();
            for volume in volumes.iter().copied() {
                self.send_current_uuid(peer, volume);
            }
            if !volumes.is_empty() {
                let packet = PeerDagtag { dagtag: Dagtag(at), node: lost };
                self.send_connection(peer, Socket::Data, Packet::PeerDagtag(packet));
                let survivor = &mut self.node.connections[peer].survivor;
                (survivor.told, survivor.until) =
                    (Some(LostPrimary { node: lost, at }), Some(self.node.now + PATIENCE));
                self.compare_survivors(peer);
            }
        }
    }

    fn send_current_uuid(&mut self, peer: NodeId, volume: VolumeNr) {
        let weak_nodes = self.weak_nodes(volume);
        let Some(current) = self.node.devices[volume].backing.as_ref().map(|b| b.md.current) else { return };
        self.send(peer, Socket::Data, volume, Packet::CurrentUuid(CurrentUuid { current, weak_nodes }));
    }

    /// P_PEER_DAGTAG of a connected peer: the last write that it has of a node that it has lost.
    pub(super) fn survivor_speaks(&mut self, peer: NodeId, named: LostPrimary) {
        self.node.connections[peer].survivor.named = Some(named);
        if named.node == peer || !self.node.connections.members().contains(named.node) {
            self.node.connections[peer].survivor.named = None;
        } else if self.node.state.is_connected(named.node) {
            // Perhaps it is lost here, too, and this node does not know yet.
            self.send_ping(named.node);
        } else {
            self.compare_survivors(peer);
        }
    }

    /// Both nodes have lost a Primary, and have told each other how much of it they have: both come to the same
    /// conclusion. Of one that only the other node has lost nothing follows.
    fn compare_survivors(&mut self, peer: NodeId) {
        let Survivor { told: Some(mine), named: Some(named), .. } = self.node.connections[peer].survivor else {
            return;
        };
        if mine.node != named.node || self.node.state.is_connected(named.node) {
            return;
        }
        let idle = |volume: VolumeNr| {
            let good = self.node.state.worst_disk(peer, volume) >= DiskState::Consistent;
            good && self.node.state.replication(peer, volume) == Replication::Established
        };
        if !self.node.devices.ids().all(idle) {
            // A resync that has begun, or whose bitmap is awaited, is not over with this.
            let survivor = &mut self.node.connections[peer].survivor;
            (survivor.told, survivor.named) = (None, None);
            return;
        }
        self.node.connections[peer].survivor = Survivor::default();
        self.heard_survivor();
        if !self.in_mesh9() || self.sees_primary() {
            return;
        }
        for volume in self.node.devices.ids() {
            if self.has_this_generation(peer, volume) {
                self.compare_last_writes(peer, volume, mine.at, named);
            } else {
                self.compare_when_stable(peer, volume);
            }
        }
    }

    /// Of one generation: by the last write.
    fn compare_last_writes(&mut self, peer: NodeId, volume: VolumeNr, mine: u64, named: LostPrimary) {
        let (replication, text) = match mine.cmp(&named.at) {
            Ordering::Equal => {
                return self.count_as_equal(peer, volume);
            }
            Ordering::Greater => (Replication::WFBitMapS, "this node has more of a lost Primary's writes"),
            Ordering::Less => (Replication::WFBitMapT, "the peer has more of a lost Primary's writes"),
        };
        self.out.note(Severity::Info, Some(volume), Some(peer), Topic::ReconcileLostPrimary, text);
        self.node.connections[peer].awaits_bitmap(self.node.now);
        if replication == Replication::WFBitMapT {
            self.node.connections[peer].survivor.gets = Some(named);
        }
        self.begin_resync9(peer, volume, replication);
    }

    /// Who has waited in vain compares in a handshake.
    pub(crate) fn check_survivors(&mut self) {
        for peer in self.node.connections.ids() {
            if self.node.connections[peer].survivor.until.is_none_or(|at| self.node.now < at) {
                continue;
            }
            self.node.connections[peer].survivor.until = None;
            let waits = |volume| {
                matches!(self.node.state.replication(peer, volume), Replication::WFBitMapS | Replication::WFBitMapT)
            };
            if self.node.devices.ids().any(waits) {
                let text = "the peer does not come to the same conclusion: connecting anew".to_owned();
                self.out.compare_anew(peer, Topic::ReconcileUnanswered, text);
            }
        }
    }
}

impl Node {
    /// Which peers are lost with this change that were Primary.
    pub(crate) fn note_lost_primaries(&mut self, old: &State) {
        for peer in self.connections.ids() {
            let primary = old.is_connected(peer) && old.peers[peer].role() == Role::Primary;
            if primary && !self.state.is_connected(peer) && self.connections[peer].speaks9() {
                self.connections[peer].loss = Loss::Writing(self.now);
                // What was said of an earlier loss is not about this one.
                for c in self.connections.values_mut() {
                    c.survivor.told.take_if(|told| told.node == peer);
                }
            }
        }
    }

    /// A resync has ended well, and this node has what its source has.
    pub(super) fn has_survivors_writes(&mut self, peer: NodeId) {
        if let Some(got) = self.connections[peer].survivor.gets.take()
            && let Some(lost) = self.connections.get_mut(got.node)
        {
            lost.heard_at = Some(got.at);
        }
    }
}

impl Node {
    /// Is the peer about to say how much it has of a lost Primary's writes, or this node? Or does what follows from
    /// that begin, and has the peer not come to the same yet?
    pub(super) fn awaits_survivor(&self, peer: NodeId) -> bool {
        let mut losses = self.connections.values().map(|c| c.loss);
        let survivor = &self.connections[peer].survivor;
        let begins =
            |volume| matches!(self.state.replication(peer, volume), Replication::WFBitMapS | Replication::WFBitMapT);
        let open = survivor.told.is_some() || self.devices.ids().any(begins);
        survivor.until.is_some() && open || losses.any(|loss| loss != Loss::Told)
    }

    /// Does it follow from a word that is awaited, or owed, what this node's copy is worth? Not for long: a node whose
    /// disk hangs does not keep others from going on. Who has compared knows it: a target's copy is Outdated.
    pub(crate) fn holds_back(&self) -> bool {
        self.connections.values().any(|c| {
            let waits = c.survivor.told.is_some() && c.survivor.until.is_some();
            waits || c.loss.is_owed_until().is_some_and(|until| self.now < until)
        })
    }

    /// Does this node wait for such a word, or owe one?
    pub(crate) fn awaits_survivors(&self) -> bool {
        self.connections.values().any(|c| c.loss != Loss::Told || c.survivor.until.is_some())
    }

    /// When a node has waited long enough for such a word.
    pub(crate) fn survivors_timer(&self) -> Option<Instant> {
        let owed = |c: &Connection| c.loss.is_owed_until().filter(|until| self.now < *until);
        self.connections.values().flat_map(|c| c.survivor.until.into_iter().chain(owed(c))).min()
    }
}

impl Connection {
    /// A resync is to begin: the peer comes to the same conclusion, or they connect anew after a while.
    pub(super) fn awaits_bitmap(&mut self, now: Instant) {
        self.survivor.until = Some(now + PATIENCE);
    }
}
