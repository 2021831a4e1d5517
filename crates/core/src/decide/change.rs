//! A change of the state: what is wished for, or has happened.

use super::quorum::Standing;
use super::state::{ConnectionState, Replication, State, SuspendReason};
use super::{DiskState, Role};
use units::{NodeId, NodeMask, VolumeNr};

/// New values of some parts of the state. Each names the peer and the volume that it is about.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Change(Vec<Set>);

/// One part of the state, and its new value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Set {
    /// This node's role.
    Role(Role),
    /// I/O is frozen by the administrator, or for lack of data, or not any more.
    Frozen(SuspendReason, bool),
    /// I/O is frozen as a peer is not fenced, or not any more.
    Unfenced(NodeId, bool),
    /// Nodes that may be online ([`State::may_be_online`]).
    Members(NodeMask),
    /// A disk is the only one that had quorum ([`Standing::Keeps`]).
    KeepsQuorum(VolumeNr),
    /// A disk of this node.
    Disk(VolumeNr, DiskState),
    /// Nobody uses a volume of this Primary yet ([`super::state::VolumeState::unused`]).
    Unused(VolumeNr),
    /// The connection to a peer.
    Connection(NodeId, ConnectionState),
    /// This node removes a volume: nothing goes on about it with the peer any more. Here it stays as it is until then.
    Removes(NodeId, VolumeNr),
    /// What goes on between this node and a peer.
    Replication(NodeId, VolumeNr, Replication),
    /// A disk of a peer.
    PeerDisk(NodeId, VolumeNr, DiskState),
    /// A peer's role, as told with a volume.
    PeerRole(NodeId, VolumeNr, Role),
    /// A peer says whether it has quorum.
    PeerQuorate(NodeId, VolumeNr, bool),
    /// The administrator pauses a resync, or not.
    PausedByUser(NodeId, VolumeNr, bool),
    /// A peer pauses a resync, or not.
    PausedByPeer(NodeId, VolumeNr, bool),
    /// `resync-after` pauses a resync, or not.
    PausedByDependency(NodeId, VolumeNr, bool),
}

impl Set {
    fn apply(self, state: &mut State) {
        match self {
            Set::Role(role) => state.role = role,
            Set::Frozen(reason, on) => state.lasting = state.lasting.put(reason, on),
            Set::Unfenced(peer, on) => state.peers[peer].unfenced = on,
            Set::Members(members) => state.members = members,
            Set::KeepsQuorum(volume) => state.volumes[volume].standing = Standing::Keeps,
            Set::Disk(volume, disk) => state.volumes[volume].disk = disk,
            Set::Unused(volume) => state.volumes[volume].unused = true,
            Set::Removes(..) => {}
            Set::Connection(peer, connection) => state.peers[peer].connection = connection,
            Set::Replication(peer, volume, replication) => state.pair_mut(peer, volume).replication = replication,
            Set::PeerDisk(peer, volume, disk) => state.pair_mut(peer, volume).disk = disk,
            Set::PeerRole(peer, volume, role) => state.pair_mut(peer, volume).role = role,
            Set::PeerQuorate(peer, volume, on) => state.pair_mut(peer, volume).quorate = on,
            Set::PausedByUser(peer, volume, on) => state.pair_mut(peer, volume).paused.by_user = on,
            Set::PausedByPeer(peer, volume, on) => state.pair_mut(peer, volume).paused.by_peer = on,
            Set::PausedByDependency(peer, volume, on) => state.pair_mut(peer, volume).paused.by_dependency = on,
        }
    }
}

impl From<Set> for Change {
    fn from(set: Set) -> Change {
        Change(vec![set])
    }
}

impl FromIterator<Set> for Change {
    fn from_iter<I: IntoIterator<Item = Set>>(sets: I) -> Change {
        Change(sets.into_iter().collect())
    }
}

impl Change {
    /// The same, and this.
    #[must_use]
    pub fn and(mut self, set: Set) -> Change {
        self.0.push(set);
        self
    }

    /// Adds this.
    pub fn push(&mut self, set: Set) {
        self.0.push(set);
    }

    /// What it sets, in order.
    pub fn sets(&self) -> impl Iterator<Item = Set> {
        self.0.iter().copied()
    }

    /// `state` with these parts replaced.
    #[must_use]
    pub fn applied(&self, state: &State) -> State {
        let mut new = state.clone();
        self.sets().for_each(|set| set.apply(&mut new));
        new
    }

    /// Does it set the volume's disk on this node to `disk`?
    #[must_use]
    pub fn sets_disk(&self, volume: VolumeNr, disk: DiskState) -> bool {
        self.0.contains(&Set::Disk(volume, disk))
    }

    /// Does it set the volume's disk on a peer to `disk`?
    #[must_use]
    pub fn sets_peer_disk(&self, peer: NodeId, volume: VolumeNr, disk: DiskState) -> bool {
        self.0.contains(&Set::PeerDisk(peer, volume, disk))
    }

    /// Does it begin a full resync, as source or as target, with this peer?
    #[must_use]
    pub fn begins(&self, peer: NodeId, volume: VolumeNr, replication: Replication) -> bool {
        self.0.contains(&Set::Replication(peer, volume, replication))
    }
}
