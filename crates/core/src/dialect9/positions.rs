//! Positions in a node's stream of writes, and who has which write (`docs/spec/wire-protocol.md` 13.1, 13.2).
//!
//! Owns [`Positions`], of this node's writes, and [`Heard`], of a peer's. A peer keeps what it needs to know of a write
//! until it is told by P_PEER_ACK who has it: it names exactly the position of a write that this peer got.

pub(crate) mod record;

use crate::Resource;
use crate::api::ConnectionState;
use crate::connection::Connection;
use crate::decide::routing::{ToPeer, write};
use crate::decide::state::State;
use crate::decide::topic::Topic;
use crate::dialect9::mesh::unsettled::{InLog, Unsettled};
use crate::dialect9::positions::record::Due;
use crate::peer_device::WhenBad;
use units::{ByteLen, NodeId, NodeMask, SectorRange, VolumeNr};
use wire::{Dagtag, DiskState, Packet, PeerAck, Socket};

/// More writes of a peer than this are never left without word of who has them.
const MOST_UNTOLD: usize = 1 << 18;

impl Resource {
    /// A write goes to a peer: its position is said if the peer cannot know it.
    pub(crate) fn announce_position(&mut self, peer: NodeId, at: u64, len: ByteLen) {
        let before = at - len.0 / 512;
        let Some(nine) = self.node.connections[peer].nine_mut() else { return };
        let known = nine.position_told.replace(at);
        if known != Some(before) {
            self.send_connection(peer, Socket::Data, Packet::Dagtag(Dagtag(before)));
        }
        self.positions.sent(peer, at);
    }

    /// Peers that get what is written from now on are told where that begins.
    pub(crate) fn tell_positions(&mut self, old: &State) {
        for peer in self.node.connections.ids() {
            let gets = |state: &State, volume| {
                let pair = state.pair(peer, volume);
                write(pair.replication, pair.disk, wire::Version::MAX.number()) == ToPeer::Data
            };
            let wants = |volume| self.node.connections[peer].peer_devices[volume].link.told.when_bad == WhenBad::Writes;
            let inconsistent =
                |state: &State, volume| state.peer_disk(peer, volume) == DiskState::Inconsistent && !wants(volume);
            let begins = |volume| {
                let now = gets(&self.node.state, volume) && !inconsistent(&self.node.state, volume);
                now && (!gets(old, volume) || inconsistent(old, volume))
            };
            if self.node.connections[peer].speaks9() && self.node.devices.ids().any(begins) {
                self.tell_position(peer);
            }
        }
    }

    /// From now on a peer gets what is written.
    pub(crate) fn tell_position(&mut self, peer: NodeId) {
        let own = self.positions.own();
        let told = self.node.connections[peer].nine_mut().map(|nine| nine.position_told.replace(own));
        if told.is_some_and(|told| told != Some(own)) {
            self.send_connection(peer, Socket::Data, Packet::Dagtag(Dagtag(own)));
        }
    }

    /// Nothing changes any more about who has a write.
    pub(crate) fn write_is_settled(&mut self, at: u64, has: NodeMask) {
        if !self.positions.settle(at, has) {
            return;
        }
        while let Some(due) = self.positions.next_due(self.node.now) {
            self.say(&due);
        }
        self.out.chores.mark();
        self.node.connections.ids().for_each(|peer| self.answer_flush(peer));
    }

    /// What can be said of the newest writes is said now.
    pub(crate) fn say_who_has_what(&mut self) {
        if let Some(due) = self.positions.take_due() {
            self.say(&due);
        }
    }

    /// P_PEER_ACK.
    fn say(&mut self, due: &Due) {
        let ack = PeerAck { nodes: due.has.into(), dagtag: Dagtag(due.at) };
        for peer in due.to {
            if self.node.connections.get(peer).is_some_and(|c| c.speaks9()) {
                self.send_connection(peer, Socket::Control, Packet::PeerAck(ack));
            }
        }
    }

    pub(crate) fn check_positions(&mut self) {
        if self.positions.timer().is_some_and(|at| self.node.now >= at) {
            self.say_who_has_what();
        }
    }

    // -- a peer's ----------------------------------------------------------------------------------------------------

    /// A write of a peer.
    pub(crate) fn peer_wrote(&mut self, peer: NodeId, volume: VolumeNr, range: SectorRange) {
        let Some(nine) = self.node.connections[peer].nine_mut() else { return };
        nine.heard.at = nine.heard.at.wrapping_add(range.len().0 / 512);
        let at = nine.heard.at;
        let c = &mut self.node.connections[peer];
        c.heard_at = Some(at);
        c.unsettled.push_back(Unsettled {
            at,
            volume,
            range,
            log: InLog::OfWrite,
            copied_to: NodeMask::default(),
            read_for: None,
        });
        if c.unsettled.len() > MOST_UNTOLD {
            let text = "the peer does not say which nodes have its writes".to_owned();
            self.out.protocol_error(peer, Topic::NoPeerAcks, text);
        }
    }

    /// P_PEER_ACK: who has the peer's writes up to one that this node got.
    pub(crate) fn peer_has_told(&mut self, peer: NodeId, ack: &PeerAck) {
        if !self.node.connections[peer].speaks9() {
            return;
        }
        let unsettled = &mut self.node.connections[peer].unsettled;
        match unsettled.iter().position(|write| write.at == ack.dagtag.0) {
            Some(n) => {
                let told: Vec<_> = unsettled.drain(..=n).collect();
                if !told.is_empty() && self.node.connections.members().len() > 1 {
                    self.note_peer_ack(peer, &told, ack.nodes.nodes());
                }
            }
            None => {
                let text = format!("the peer says who has a write that it has not sent (position {})", ack.dagtag.0);
                self.out.drop_link(peer, ConnectionState::NetworkFailure, Topic::UnknownPosition, text);
            }
        }
    }
}

impl Connection {
    /// P_DAGTAG.
    pub(crate) fn position_heard(&mut self, at: Dagtag) {
        if let Some(nine) = self.nine_mut() {
            (nine.heard.at, nine.heard.begun) = (at.0, true);
            self.heard_at = Some(at.0);
        }
    }
}
