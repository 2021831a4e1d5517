//! What only DRBD 9's dialect has, protocol 118 to 124: what a link keeps that speaks it, its state word, and the way
//! from P_PROTOCOL to a transaction that connects the nodes (`docs/spec/wire-protocol.md` 7.5).
//!
//! Owns [`Nine`]. The fork between the dialects is [`Spoken`](crate::connection::Spoken): what is common to both is
//! in the rooms that it has always been in.

mod diskless;
pub(crate) mod first_write;
mod follow;
mod generations;
pub(crate) mod handshake;
pub(crate) mod in_sync;
pub(crate) mod mesh;
pub(crate) mod nine;
pub(crate) mod positions;
pub(crate) mod resync;
pub(crate) mod settle;
mod sources;
mod stream;
pub(crate) mod survivors;

use crate::api::{ConnectionState, Event, Severity};
use crate::config::Fencing;
use crate::connection::Connection;
use crate::decide::Handler;
use crate::decide::state::State;
use crate::decide::topic::{Named, Topic};
use crate::node::Node;
use crate::{Resource, dialect84};
use units::{Instant, NodeId, VolumeNr};
use wire::{DiskState, StateWord};

/// The state of a volume towards a peer. `detaching`: by a command, the disk has not failed.
#[must_use]
pub(crate) fn word(state: &State, peer: NodeId, volume: VolumeNr, detaching: bool) -> StateWord {
    let word = dialect84::word(state, Some(peer), volume);
    let disk = if detaching && word.disk == DiskState::Failed { DiskState::Detaching } else { word.disk };
    // Without `quorum` every node has it.
    StateWord { quorum: true, disk, ..word }
}

/// This node's role, and nothing else: what is said of a demotion before the volumes' states.
pub(crate) const fn role_word(role: wire::Role) -> StateWord {
    use wire::{ConnState, Role};
    StateWord::undisturbed(role, Role::Unknown, ConnState::StandAlone, DiskState::Diskless, DiskState::Diskless)
}

impl Resource {
    /// What every change brings with it in 9's dialect, before anything else that it does.
    pub(crate) fn follow_change9(&mut self, old: &State) {
        for peer in self.node.connections.ids() {
            for volume in self.node.devices.ids() {
                let lost = old.replicates(peer, volume) && !self.node.state.replicates(peer, volume);
                let source = old.replication(peer, volume).is_source();
                let pd = &mut self.node.connections[peer].peer_devices[volume];
                pd.lasting.was_established |= lost;
                let comes = old.disk(volume) < DiskState::Inconsistent
                    && self.node.state.disk(volume) >= DiskState::Inconsistent;
                if lost || self.node.state.replicates(peer, volume) {
                    pd.lasting.end_heard = !(lost && source);
                } else if comes {
                    // Of what ended while the disk was not in use it knows nothing.
                    pd.lasting.end_heard = false;
                }
            }
        }
        self.node.note_lost_primaries(old);
        self.note_survival(old);
        self.follow_role(old);
        self.follow_own_disks(old);
        self.follow_outdated(old);
        self.node.follow_resync9(old);
        self.follow_peers_disks(old);
        self.follow_equal_copies(old);
        self.follow_lost_disks(old);
        self.unfence_equals(old);
        self.tell_stability(old);
        self.tell_end_of_resync(old);
        self.tell_positions(old);
    }

    /// A peer may have been fenced, and has become as good as this node in each volume: `unfence-peer` (2.7, row 33).
    fn unfence_equals(&mut self, old: &State) {
        if self.fencing_policy() == Fencing::DontCare {
            return;
        }
        let good =
            |s: &State, peer, volume| s.worst_disk(peer, volume) == DiskState::UpToDate && s.replicates(peer, volume);
        for peer in
            self.node.connections.ids().filter(|peer| self.node.connections[*peer].speaks9()).collect::<Vec<_>>()
        {
            let all = self.node.devices.ids().all(|volume| good(&self.node.state, peer, volume));
            let worse = self.node.devices.ids().any(|volume| old.peer_disk(peer, volume) != DiskState::UpToDate);
            if all && worse {
                self.out.handler(Handler::UnfencePeer, None, Some(peer));
            }
        }
    }

    /// Is the peer who it is taken for, and can this node do what the dialect asks for? If not, the link has ended.
    pub(crate) fn fits_dialect9(&mut self, peer: NodeId, theirs: &wire::ConnectionFeatures) -> bool {
        let (own, other) = (self.node.cfg.node.index() as u32, peer.index() as u32);
        if (theirs.sender_node, theirs.receiver_node) != (other, own) {
            let text = format!(
                "the peer is node {} and takes this one for node {}; make node-id equal on both nodes",
                theirs.sender_node, theirs.receiver_node
            );
            self.out.drop_link(peer, ConnectionState::NetworkFailure, Topic::WrongNodeId, text);
            return false;
        }
        let backing = |volume: &VolumeNr| self.node.devices[*volume].backing.as_ref();
        let old = self
            .node
            .devices
            .ids()
            .find(|volume| backing(volume).is_some_and(|b| b.md.version() == meta::Version::V08));
        if let Some(volume) = old {
            let text = format!("DRBD 9's dialect needs metadata of format v09, volume {volume} has v08; convert it");
            self.out.give_up(peer, Topic::OldMetadata, text);
            return false;
        }
        true
    }

    /// Both P_PROTOCOL are there: who has the lower node id begins to connect.
    pub(crate) fn shake_hands9(&mut self, peer: NodeId) {
        if self.node.connections[peer].speaks9() && self.node.cfg.node < peer {
            self.begin_connect(peer);
        }
    }

    /// The last attempt to connect came to nothing: the next one.
    pub(crate) fn connect_again(&mut self, peer: NodeId) {
        if let Some(nine) = self.node.connections[peer].nine_mut() {
            nine.again = None;
            self.begin_connect(peer);
        }
    }

    /// P_DISCONNECT: the peer's comparison says that the nodes must not be connected; so does this node's, if it has
    /// come so far.
    pub(crate) fn peer_refuses(&mut self, peer: NodeId) {
        let own = self.node.connections[peer].nine_mut().and_then(|nine| nine.refused.take());
        let (name, text) = match own {
            Some(reason) => (Named::from(reason), reason.to_string()),
            None => (
                Topic::HandshakeRefused.into(),
                "the peer's comparison says that the nodes must not be connected".to_owned(),
            ),
        };
        let text = format!("{text}; not connecting any more");
        self.out.tell(Severity::Error, None, Some(peer), name, Event::GaveUp, text);
        self.out.part(peer);
    }
}

impl Node {
    /// What is hashed of two challenges: that of the peer, which this node answers, and the own one. 9 adds who answers
    /// (`docs/spec/wire-protocol.md` 7.3).
    pub(crate) fn salted(&self, peer: NodeId, [theirs, own]: [Vec<u8>; 2]) -> [Vec<u8>; 2] {
        if !self.connections[peer].speaks9() {
            return [theirs, own];
        }
        let salted = |mut challenge: Vec<u8>, node: NodeId| {
            challenge.extend((node.index() as u32).to_be_bytes());
            challenge
        };
        [salted(theirs, self.cfg.node), salted(own, peer)]
    }

    /// Until when the handshake of a link must get further.
    pub(crate) fn handshake9_timer(&self, peer: NodeId) -> Option<Instant> {
        let c = &self.connections[peer];
        let link = c.link.as_ref().filter(|_| c.speaks9() && !self.state.is_connected(peer))?;
        Some(c.last_heard.max(link.phase_since) + self.connections[peer].handshake9_patience())
    }
}

impl Connection {
    fn handshake9_patience(&self) -> units::Duration {
        units::Duration(self.cfg.ping_timeout.0.saturating_mul(10))
    }
}
