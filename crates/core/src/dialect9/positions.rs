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
use crate::decide::view::View;
use crate::dialect9::mesh::unsettled::{InLog, Unsettled};
use crate::dialect9::positions::record::{Due, Open};
use units::{ByteLen, Duration, Instant, NodeId, NodeMask, SectorRange, VolumeNr};
use wire::{Dagtag, DiskState, Packet, PeerAck, Socket};

/// `peer-ack-delay`: who has the newest writes is said after so much time without a further one.
const DELAY: Duration = Duration::from_millis(100);
/// `peer-ack-window`: or when so many sectors are to be told of.
const WINDOW: u64 = 4096;
/// More writes of a peer than this are never left without word of who has them.
const MOST_UNTOLD: usize = 1 << 18;

impl Resource {
    /// The position of this node's last write.
    pub(super) fn own_position(&self) -> u64 {
        self.positions.own
    }

    /// Is there a write of this node, up to a position, of which the peer has not been told who has it?
    pub(super) fn is_untold(&self, i: NodeId, up_to: u64) -> bool {
        self.positions.open.iter().any(|open| open.at <= up_to && open.to.contains(i))
    }

    /// The position of a write that is sent now.
    pub(crate) fn next_position(&mut self, len: ByteLen) -> u64 {
        self.positions.own += len.0 / 512;
        self.positions.own
    }

    /// A write goes to a peer: its position is said if the peer cannot know it.
    pub(crate) fn announce_position(&mut self, i: NodeId, at: u64, len: ByteLen) {
        let before = at - len.0 / 512;
        let Some(nine) = self.connections[i].nine_mut() else { return };
        let known = nine.position_told.replace(at);
        if known != Some(before) {
            self.send_connection(i, Socket::Data, Packet::Dagtag(Dagtag(before)));
        }
        match self.positions.open.back_mut().filter(|open| open.at == at) {
            Some(open) => open.to.insert(i),
            None => self.positions.open.push_back(Open { at, to: NodeMask::of(i), has: None }),
        }
    }

    /// Peers that get what is written from now on are told where that begins.
    pub(crate) fn tell_positions(&mut self, old: &State) {
        for i in self.connections.ids() {
            let gets =
                |state: &State, d| write(&View::of(state, Some(i), d), wire::Version::MAX.number()) == ToPeer::Data;
            let wants = |d| self.connections[i].peer_devices[d].wants_writes_when_bad;
            let inconsistent = |state: &State, d| state.peer_disk(i, d) == DiskState::Inconsistent && !wants(d);
            let begins = |d| {
                let now = gets(&self.state, d) && !inconsistent(&self.state, d);
                now && (!gets(old, d) || inconsistent(old, d))
            };
            if self.connections[i].nine().is_some() && self.devices.ids().any(begins) {
                self.tell_position(i);
            }
        }
    }

    /// From now on a peer gets what is written.
    pub(crate) fn tell_position(&mut self, i: NodeId) {
        let own = self.positions.own;
        let told = self.connections[i].nine_mut().map(|nine| nine.position_told.replace(own));
        if told.is_some_and(|told| told != Some(own)) {
            self.send_connection(i, Socket::Data, Packet::Dagtag(Dagtag(own)));
        }
    }

    /// Nothing changes any more about who has a write.
    pub(crate) fn write_is_settled(&mut self, at: u64, has: NodeMask) {
        let found = self.positions.open.binary_search_by_key(&at, |open| open.at);
        let Ok(n) = found else { return };
        self.positions.open[n].has = Some(has);
        while let Some(Open { at, to, has: Some(has) }) = self.positions.open.front() {
            let (at, to, has) = (*at, *to, *has);
            self.positions.open.pop_front();
            self.note_due(at, to, has);
        }
        self.connections.ids().for_each(|i| self.answer_flush(i));
    }

    fn note_due(&mut self, at: u64, to: NodeMask, has: NodeMask) {
        let since = self.now;
        match &mut self.positions.due {
            Some(due) if (due.to, due.has) == (to, has) => (due.at, due.since) = (at, since),
            _ => {
                self.say_who_has_what();
                self.positions.due = Some(Due { from: at, at, to, has, since });
            }
        }
        if self.positions.due.as_ref().is_some_and(|due| due.at - due.from >= WINDOW) {
            self.say_who_has_what();
        }
        self.chores.mark();
    }

    /// P_PEER_ACK.
    pub(crate) fn say_who_has_what(&mut self) {
        let Some(due) = self.positions.due.take() else { return };
        let ack = PeerAck { nodes: due.has.into(), dagtag: Dagtag(due.at) };
        for i in due.to {
            if self.connections.get(i).is_some_and(|c| c.nine().is_some()) {
                self.send_connection(i, Socket::Control, Packet::PeerAck(ack));
            }
        }
    }

    /// When that is due.
    pub(crate) fn positions_timer(&self) -> Option<Instant> {
        self.positions.due.as_ref().map(|due| due.since + DELAY)
    }

    pub(crate) fn check_positions(&mut self) {
        if self.positions_timer().is_some_and(|at| self.now >= at) {
            self.say_who_has_what();
        }
    }

    /// A link went down: on the next one the peer knows nothing of what was sent on this.
    pub(crate) fn forget_positions_of(&mut self, i: NodeId) {
        self.positions.open.iter_mut().for_each(|open| open.to.remove(i));
        if let Some(due) = &mut self.positions.due {
            due.to.remove(i);
        }
    }

    // -- a peer's ----------------------------------------------------------------------------------------------------

    /// A write of a peer.
    pub(crate) fn peer_wrote(&mut self, i: NodeId, d: VolumeNr, range: SectorRange) {
        let Some(nine) = self.connections[i].nine_mut() else { return };
        nine.heard.at = nine.heard.at.wrapping_add(range.len().0 / 512);
        let at = nine.heard.at;
        let c = &mut self.connections[i];
        c.heard_at = Some(at);
        c.unsettled.push_back(Unsettled { at, volume: d, range, log: InLog::OfWrite });
        if c.unsettled.len() > MOST_UNTOLD {
            let text = "the peer does not say which nodes have its writes".to_owned();
            self.protocol_error(i, "no-peer-acks", text);
        }
    }

    /// P_PEER_ACK: who has the peer's writes up to one that this node got.
    pub(crate) fn peer_has_told(&mut self, i: NodeId, ack: &PeerAck) {
        if self.connections[i].nine().is_none() {
            return;
        }
        let unsettled = &mut self.connections[i].unsettled;
        match unsettled.iter().position(|write| write.at == ack.dagtag.0) {
            Some(n) => {
                let told: Vec<_> = unsettled.drain(..=n).collect();
                if !told.is_empty() && self.connections.members().len() > 1 {
                    self.settle(i, &told, ack.nodes.nodes());
                }
            }
            None => {
                let text = format!("the peer says who has a write that it has not sent (position {})", ack.dagtag.0);
                self.drop_link(i, ConnectionState::NetworkFailure, "unknown-position", text);
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
