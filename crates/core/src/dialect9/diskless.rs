//! A Primary without a good disk, connected to a node with one: nothing that it writes may be taken for part of the
//! generation that its own disk has (`docs/spec/connection-and-state.md` 7.8). Of two nodes only, and not of one that
//! connects without a disk.

use crate::Resource;
use crate::api::Severity;
use crate::decide::Reason;
use crate::decide::state::State;
use crate::decide::topic::Topic;
use crate::dialect9::handshake::attempt::Verdict;
use crate::node::Node;
use crate::peer_device::PeerDevice;
use crate::state::to_settle::ToSettle;
use units::{Generation, NodeId, VolumeNr};
use wire::{CurrentUuid, DiskState, Packet, Role, Socket};

/// Do the users of this node see the peer's copy only?
fn lives_on_peer(state: &State, peer: NodeId, volume: VolumeNr) -> bool {
    let good = state.peer_disk(peer, volume) == DiskState::UpToDate && state.replicates(peer, volume);
    good && state.is_primary() && state.disk(volume) < DiskState::Inconsistent
}

impl Resource {
    /// A Primary has no disk any more, or a peer has one again: a generation begins that the own disk has no part in.
    pub(crate) fn follow_lost_disks(&mut self, old: &State) {
        for peer in self.node.connections.ids() {
            for volume in self.node.devices.ids() {
                let begins = lives_on_peer(&self.node.state, peer, volume) && !lives_on_peer(old, peer, volume);
                if begins && !self.in_mesh9() && self.node.connections[peer].speaks9() {
                    self.to_settle.push_back(ToSettle::BeginWithoutDisk(peer, volume));
                }
            }
        }
    }

    /// The peer is told of the generation before any write that belongs to it, and makes it durable.
    pub(crate) fn begin_without_disk9(&mut self, peer: NodeId, volume: VolumeNr) {
        if !lives_on_peer(&self.node.state, peer, volume) {
            return;
        }
        let current = self.draw_generation().with_primary_bit(true);
        self.close_epoch();
        let dev = &mut self.node.devices[volume];
        dev.seen.exposed = current;
        self.node.connections[peer].peer_devices[volume].generation_of_peer(current);
        let packet = CurrentUuid { current, weak_nodes: self.weak_nodes(volume) };
        self.send(peer, Socket::Data, volume, Packet::CurrentUuid(packet));
        self.out.status_changed = true;
        let text = format!("new data generation {current}, of the peer's disk");
        self.out.note(Severity::Info, Some(volume), Some(peer), Topic::NewGeneration, text);
    }

    /// P_CURRENT_UUID: within a handshake it is said by a node without a disk; later a Primary begins with it a
    /// generation of this disk (7.3).
    pub(crate) fn current_uuid_received(&mut self, peer: NodeId, volume: VolumeNr, packet: CurrentUuid) {
        if !self.node.state.is_connected(peer) {
            // A node without a disk shakes hands.
            return self.judge_attempt(peer, Verdict::Disconnect(Reason::DisklessUnspoken));
        }
        let primary = self.node.state.peers[peer].role() == Role::Primary;
        if !primary
            || self.in_mesh9()
            || !self.node.state.replicates(peer, volume)
            || self.node.state.disk(volume) != DiskState::UpToDate
        {
            return;
        }
        let CurrentUuid { current, weak_nodes } = packet;
        if current.is_none() || current.same(Generation::JUST_CREATED) {
            return;
        }
        self.node.connections[peer].peer_devices[volume].generation_of_peer(current);
        if self.node.devices[volume].uuids(peer).current == current {
            return;
        }
        self.generation_begun_by(peer, volume, current, weak_nodes.nodes().with(peer));
    }
}

impl Node {
    /// Is the peer a Primary that speaks 9's dialect, beside this node, which is none?
    pub(crate) fn writer_of_9(&self, peer: NodeId) -> bool {
        let primary = self.state.is_connected(peer) && self.state.peers[peer].role() == Role::Primary;
        primary && !self.state.is_primary() && self.connections[peer].speaks9()
    }
}

impl PeerDevice {
    /// The peer's disk has this generation from now on, whatever it has said.
    fn generation_of_peer(&mut self, current: Generation) {
        self.link.told.uuids.iter_mut().for_each(|theirs| theirs.current = current);
        self.link.told.uuids110.iter_mut().for_each(|theirs| theirs.current = current);
    }
}
