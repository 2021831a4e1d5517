//! A peer that is not known to decide by urbd's rules has compared as well, and says what it has come to with its first
//! state after the connect (`docs/spec/connection-and-state.md` 5.8.2, "Follow").

use crate::Resource;
use crate::decide::DiskState;
use crate::decide::change::{Change, Set};
use crate::decide::private::Private;
use crate::decide::state::Replication;
use crate::decide::topic::Topic;
use crate::decide::view::Kind;
use crate::node::Node;
use crate::peer_device::Keeps;
use crate::peer_device::PeerDevice;
use units::{NodeId, VolumeNr};
use wire::StateWord;

/// A resync is about to begin.
fn is_beginning(replication: Replication) -> bool {
    matches!(replication, Replication::WFBitMapS | Replication::WFBitMapT)
}

impl Resource {
    /// A resync is to begin with the connect: whether the peer has come to that as well it says at once, or it is gone.
    /// Applications wait for that no longer than for the answer to a ping.
    pub(super) fn awaits_conclusion(&mut self, peer: NodeId) {
        let waits = self.node.devices.ids().any(|volume| self.awaits_target(volume));
        if waits && self.node.state.is_primary() {
            self.send_ping(peer);
        }
    }

    /// The first state of a peer since it was connected, `said`: what it has said before that. Of one generation that
    /// both have it decides what this node leaves open, or has decided otherwise. True: that is all that follows.
    pub(super) fn follow_conclusion(
        &mut self,
        peer: NodeId,
        volume: VolumeNr,
        [said, says]: [Replication; 2],
        theirs: &StateWord,
    ) -> bool {
        let first = said == Replication::Off && says != Replication::Off;
        if !first || !self.may_differ(peer) {
            return false;
        }
        let own = self.node.state.replication(peer, volume);
        match (own, says) {
            (Replication::Established, Replication::Established) => {
                if self.node.connections[peer].peer_devices[volume].lasting.keeps == Keeps::Unheard {
                    self.count_as_equal(peer, volume);
                }
                return false;
            }
            (Replication::Established, begins) if is_beginning(begins) => self.mirror(peer, volume, begins, theirs),
            (begins, Replication::Established) if is_beginning(begins) => self.copy_nothing(peer, volume, theirs),
            // The peer's bitmap may come before its word: the resync has begun here.
            (own, says) if own.gives() && says.gives() || own.takes() && says.takes() => {
                self.out.decides_otherwise(peer)
            }
            _ => return false,
        }
        true
    }

    /// The peer has decided that something is to be copied.
    fn mirror(&mut self, peer: NodeId, volume: VolumeNr, begins: Replication, theirs: &StateWord) {
        let mine = if begins == Replication::WFBitMapS { Replication::WFBitMapT } else { Replication::WFBitMapS };
        let overwritten = mine == Replication::WFBitMapT && self.node.state.is_primary();
        if overwritten || !self.has_this_generation(peer, volume) {
            return self.out.decides_otherwise(peer);
        }
        self.node.connections[peer].peer_devices[volume].lasting.keeps = Keeps::LostWrites;
        let text = format!("the peer says {begins}: {mine}");
        self.out.note(crate::api::Severity::Info, Some(volume), Some(peer), Topic::PeerDecides, text);
        let change = [
            Set::PeerRole(peer, volume, theirs.role),
            Set::PeerDisk(peer, volume, theirs.disk),
            Set::Replication(peer, volume, mine),
        ];
        self.take_as_fact(peer, volume, change.into_iter().collect());
        self.node.connections[peer].awaits_bitmap(self.node.now);
    }

    /// The peer has decided that nothing is to be copied. Its copy and this one count as before the connect.
    fn copy_nothing(&mut self, peer: NodeId, volume: VolumeNr, theirs: &StateWord) {
        if theirs.disk != DiskState::UpToDate || !self.has_this_generation(peer, volume) {
            return self.out.decides_otherwise(peer);
        }
        let text = "the peer finds nothing to copy between two copies of one generation: nor does this node";
        self.out.note(crate::api::Severity::Info, Some(volume), Some(peer), Topic::PeerDecides, text);
        let outdated = self.node.state.replication(peer, volume) == Replication::WFBitMapT;
        let own = outdated.then_some(Set::Disk(volume, DiskState::UpToDate));
        let change = [
            Set::PeerRole(peer, volume, theirs.role),
            Set::PeerDisk(peer, volume, theirs.disk),
            Set::Replication(peer, volume, Replication::Established),
        ];
        self.take_as_fact(peer, volume, change.into_iter().chain(own).collect());
        if self.node.state.replication(peer, volume) == Replication::Established {
            self.count_as_equal(peer, volume);
        }
    }

    fn take_as_fact(&mut self, peer: NodeId, volume: VolumeNr, change: Change) {
        if let Err(refusal) = self.change(change, Kind::Fact) {
            let text = format!("volume {volume}: what the peer has decided cannot be followed: {}", refusal.code);
            self.out.compare_anew(peer, Topic::PeerDecidesOtherwise, text);
        }
    }
}

impl Node {
    /// May the peer have come to something else than this node?
    fn may_differ(&self, peer: NodeId) -> bool {
        let c = &self.connections[peer];
        self.in_mesh9() && c.decides_by(Private::Follow) && !c.decides_by(Private::ReconcileByMarks)
    }

    /// Has the peer, which may have come to something else, not said yet what it has come to? A resync that both must
    /// agree to would meet the one that the peer begins.
    pub(crate) fn is_unheard(&self, peer: NodeId, volume: VolumeNr) -> bool {
        let says = self.connections[peer].peer_devices[volume].link.told.says;
        says == Replication::Off && self.may_differ(peer)
    }

    /// Is it not known yet whether a peer lets itself be brought up to date by this node? If it does not, it counts
    /// itself as good, and must get what is written.
    pub(crate) fn awaits_target(&self, volume: VolumeNr) -> bool {
        let unheard = |says| matches!(says, Replication::Off | Replication::Established);
        self.connections.iter().any(|(peer, c)| {
            self.state.replication(peer, volume) == Replication::WFBitMapS
                && c.speaks9()
                && !c.decides_by(Private::ReconcileByMarks)
                && c.decides_by(Private::Follow)
                && unheard(c.peer_devices[volume].link.told.says)
        })
    }
}

impl PeerDevice {
    /// A resync begins otherwise than with the connect. Both have agreed to it, perhaps before the peer's word of what
    /// it has made of that has come: that says nothing of the resync.
    pub(crate) fn note_begun(&mut self, [old, new]: [Replication; 2]) {
        let says = &mut self.link.told.says;
        let begins = Replication::StartingSyncS..=Replication::WFBitMapT;
        if old == Replication::Established && begins.contains(&new) && *says == Replication::Off {
            *says = Replication::Established;
        }
    }
}
