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
use crate::decide::state::{State, SuspendReason};
use crate::decide::topic::{Named, Topic};
use crate::node::Node;
use crate::outbox::Outbox;
use crate::{Resource, dialect84};
use units::{Instant, NodeId, VolumeNr};
use wire::{DiskState, StateWord};

/// The state of a volume towards a peer. `detaching`: by a command, the disk has not failed.
#[must_use]
pub(crate) fn word(state: &State, peer: NodeId, volume: VolumeNr, detaching: bool) -> StateWord {
    let word = dialect84::word(state, Some(peer), volume);
    let quorum = state.standing(volume).is_quorate();
    let susp = word.susp || state.suspended().because_of(SuspendReason::Quorum);
    StateWord { quorum, susp, disk: told(word.disk, detaching), ..word }
}

/// What is told of this node's disk: one that a command gives up has not failed.
pub(crate) fn told(disk: DiskState, detaching: bool) -> DiskState {
    if detaching && disk == DiskState::Failed { DiskState::Detaching } else { disk }
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
                // While one of them had no disk it got nothing of what the other one did, and what was compared since,
                // but not carried out, is compared again.
                let disks = old.disk(volume).min(old.peer_disk(peer, volume));
                let compared = !old.replication(peer, volume).exchanges_bitmaps();
                pd.lasting.was_established |= lost && compared && disks >= DiskState::Inconsistent;
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
        // It was attached after the offer.
        let old = self.node.old_volume();
        old.into_iter().for_each(|volume| self.out.offer_again(peer, volume));
        old.is_none()
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
        if let Some(reason) = own.filter(|reason| reason.may_pass()) {
            return self.out.retry_later(peer, reason, reason.to_string());
        }
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

impl Outbox {
    /// What was offered does not hold with the metadata of a volume: the next offer is another.
    pub(crate) fn offer_again(&mut self, peer: NodeId, volume: VolumeNr) {
        let text = format!("volume {volume} has metadata of format v08: connecting anew in DRBD 8.4's dialect");
        self.drop_link(peer, ConnectionState::NetworkFailure, Topic::OldMetadata, text);
    }
}

impl Node {
    /// A volume with metadata of format v08: those have no place for what is spoken of in 9's dialect.
    fn old_volume(&self) -> Option<VolumeNr> {
        let old = |volume: &VolumeNr| {
            self.devices[*volume].backing.as_ref().is_some_and(|b| b.md.version() == meta::Version::V08)
        };
        self.devices.ids().find(old)
    }

    /// A disk is about to be attached: the peers with which a handshake in 9's dialect goes on that metadata of this
    /// format have no place for.
    ///
    /// # Errors
    /// In words: one is connected in it.
    pub(crate) fn out_of_place(&self, format: meta::Version) -> Result<Vec<NodeId>, String> {
        let of_9 = self.connections.iter().filter(|(_, c)| c.speaks9() && format == meta::Version::V08);
        let of_9: Vec<NodeId> = of_9.map(|(peer, _)| peer).collect();
        match of_9.iter().find(|peer| self.state.is_connected(**peer)) {
            Some(peer) => Err(format!(
                "DRBD 9's dialect is spoken with {}, which metadata of format v08 has no place for: convert it (create-md \
                 --format=v09), or disconnect, attach, and connect again",
                self.connections[*peer].cfg.peer_name
            )),
            None => Ok(of_9),
        }
    }

    /// The newest protocol version that a peer is offered: what is configured, but with metadata of format v08 none of
    /// 9's dialect.
    pub(crate) fn newest_offered(&self, c: &Connection) -> u32 {
        match self.old_volume() {
            Some(_) => c.cfg.max_version.min(wire::Version::MAX_84.number()),
            None => c.cfg.max_version,
        }
    }

    /// In words, behind what the peer offers.
    pub(crate) fn why_less_is_offered(&self) -> &'static str {
        let less = "; with the metadata of this node, which are of format v08, nothing above 101 is: convert them";
        self.old_volume().map_or("", |_| less)
    }

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
