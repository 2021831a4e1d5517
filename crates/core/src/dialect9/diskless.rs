//! A Primary without a good disk, connected to a node with one: nothing that it writes may be taken for part of the
//! generation that its own disk has (`docs/spec/connection-and-state.md` 7.8). What such a node trusts of its peers'
//! copies (2.2, C19).

use crate::Resource;
use crate::api::Severity;
use crate::decide::change::Set;
use crate::decide::quorum::Part;
use crate::decide::state::State;
use crate::decide::topic::Topic;
use crate::dialect9::first_write::due::FirstWrite;
use crate::node::Node;
use crate::peer_device::PeerDevice;
use crate::state::to_settle::ToSettle;
use units::{Generation, NodeId, NodeMask, VolumeNr};
use wire::{CurrentUuid, DiskState, Packet, Role, Socket, Uuids110};

/// Do the users of this node see the peer's copy only?
fn lives_on_peer(state: &State, peer: NodeId, volume: VolumeNr) -> bool {
    let good = state.peer_disk(peer, volume) == DiskState::UpToDate && state.replicates(peer, volume);
    good && state.is_primary() && state.disk(volume) < DiskState::Inconsistent
}

impl Resource {
    /// A Primary has no disk any more, or a peer has one again: a generation begins that the own disk has no part in.
    pub(crate) fn follow_lost_disks(&mut self, old: &State) {
        for volume in self.node.devices.ids() {
            self.trust_anew(volume);
            self.forget_unconfirmed9(volume);
            let writers = self.node.state.writers_without_disk(volume);
            self.note_unstable_for(writers.without(old.writers_without_disk(volume)), volume);
            let own = Some(self.node.cfg.node).filter(|_| self.node.state.disk(volume) >= DiskState::Inconsistent);
            let gets: NodeMask = self.node.state.serving_peers(volume).chain(own).collect();
            let seen = &mut self.node.devices[volume].seen;
            seen.left_out = seen.left_out.without(gets);
        }
        for peer in self.node.connections.ids() {
            for volume in self.node.devices.ids() {
                let [was, is] = [old, &self.node.state].map(|s| lives_on_peer(s, peer, volume));
                if self.in_mesh9() {
                    if was != is && self.node.needs_generation_without_disk(volume) {
                        self.node.devices[volume].due.first_write.put_due(true);
                    }
                } else if is && !was && self.node.connections[peer].speaks9() {
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
        self.begin_at_peers9(volume);
    }

    /// The same among several peers, before a write that follows: does a node that is not here, or whose disk is gone,
    /// count as equal to those that get it?
    pub(crate) fn begin_among_without_disk9(&mut self, volume: VolumeNr) {
        if self.node.needs_generation_without_disk(volume) {
            self.begin_at_peers9(volume);
            self.node.devices[volume].due.first_write = FirstWrite::Writing { due: false };
            return self.end_confirmed9(volume);
        }
        // Writes that a lost peer may lack have waited for it.
        self.finish_held();
    }

    /// Nothing is written in a generation, and nothing completed that a peer lacks, before it is on the disks of all
    /// good copies: one that has lost its power would count as equal to who was not here.
    fn end_confirmed9(&mut self, volume: VolumeNr) {
        let dev = &mut self.node.devices[volume];
        if dev.seen.unconfirmed.is_empty() {
            dev.first_write_settled();
            self.finish_held();
        }
    }

    /// A peer has told of its generations: it is on its disk.
    pub(crate) fn generation_confirmed9(&mut self, peer: NodeId, volume: VolumeNr, told: Generation) {
        let seen = &mut self.node.devices[volume].seen;
        if seen.unconfirmed.contains(peer) && told.same(seen.exposed) {
            seen.unconfirmed.remove(peer);
            seen.confirmed.insert(peer);
            self.end_confirmed9(volume);
        }
    }

    /// A copy of the generation before the one that this node has begun, and of which nobody has said that it has it:
    /// nothing is written in that. Users go on with what there was before; the peer is told so at the next attempt.
    /// The own disk is such a copy, too, and may have writes that were completed here and that no peer has got.
    pub(crate) fn goes_back9(&mut self, volume: VolumeNr, theirs: Generation) -> bool {
        let seen = &mut self.node.devices[volume].seen;
        let may = seen.confirmed.is_empty();
        if seen.predecessor.take_if(|before| may && before.same(theirs)).is_none() {
            return false;
        }
        seen.exposed = theirs.with_primary_bit(false);
        (seen.left_out, seen.unconfirmed) = Default::default();
        self.node.devices[volume].due.first_write.put_due(true);
        self.end_confirmed9(volume);
        true
    }

    /// Who is gone, or is no good copy any more, confirms nothing.
    fn forget_unconfirmed9(&mut self, volume: VolumeNr) {
        if self.node.devices[volume].seen.unconfirmed.is_empty() {
            return;
        }
        let good: NodeMask = self.node.state.serving_peers(volume).collect();
        let seen = &mut self.node.devices[volume].seen;
        seen.unconfirmed = seen.unconfirmed.and(good);
        self.end_confirmed9(volume);
    }

    /// All good copies that are within reach have part in a new generation.
    fn begin_at_peers9(&mut self, volume: VolumeNr) {
        let current = self.draw_generation().with_primary_bit(true);
        self.close_epoch();
        let lacking = self.node.lack_what_follows(volume);
        let dev = &mut self.node.devices[volume];
        dev.seen.predecessor = Some(dev.seen.exposed).filter(|before| !before.is_none());
        dev.seen.exposed = current;
        dev.seen.left_out = lacking;
        (dev.seen.unconfirmed, dev.seen.confirmed) = Default::default();
        let packet = CurrentUuid { current, weak_nodes: self.weak_nodes(volume) };
        for peer in self.node.connections.ids() {
            if !self.node.state.replicates(peer, volume) || !self.node.connections[peer].speaks9() {
                continue;
            }
            if self.node.state.peer_disk(peer, volume) == DiskState::UpToDate {
                self.node.connections[peer].peer_devices[volume].generation_of_peer(current);
                self.node.devices[volume].seen.unconfirmed.insert(peer);
            }
            self.send(peer, Socket::Data, volume, Packet::CurrentUuid(packet));
        }
        self.out.status_changed = true;
        let text = format!("new data generation {current}, of the peers' disks");
        self.out.note(Severity::Info, Some(volume), None, Topic::NewGeneration, text);
    }

    /// A peer has told of its generations. Is a node by now equal to it that gets nothing of what is written here? Is
    /// its copy the one by now that users here have seen (5.4, step 9)?
    pub(crate) fn follow_slots_without_disk9(&mut self, peer: NodeId, volume: VolumeNr) {
        self.trust_anew(volume);
        let lives = self.in_mesh9() && lives_on_peer(&self.node.state, peer, volume);
        if lives && self.node.needs_generation_without_disk(volume) {
            self.node.devices[volume].due.first_write.put_due(true);
        }
    }

    /// Copies that a node without a disk did not trust are judged again: others have told of theirs, or are gone.
    fn trust_anew(&mut self, volume: VolumeNr) {
        for peer in self.node.connections.ids() {
            let says = self.node.connections[peer].peer_devices[volume].link.told.says_disk;
            let doubted = self.node.state.peer_disk(peer, volume) == DiskState::Consistent;
            let without = self.node.state.disk(volume) < DiskState::Inconsistent;
            let good = self.node.state.peer_disk(peer, volume) == DiskState::UpToDate;
            if without && good && !self.node.state.is_primary() && self.node.has_parted_from_another(peer, volume) {
                self.to_settle.push_back(ToSettle::PeerIsBehind(peer, volume));
            }
            if says == Some(DiskState::UpToDate) && doubted && without && self.node.state.replicates(peer, volume) {
                let disk = self.node.trusted_without_disk9(peer, volume, DiskState::UpToDate);
                if disk != DiskState::Consistent {
                    self.to_settle.push_back(ToSettle::PeerIsGood(peer, volume));
                }
            }
        }
    }

    /// A good copy has been followed by another one, or has parted from it, as this node without users has heard.
    pub(crate) fn peer_is_behind9(&mut self, peer: NodeId, volume: VolumeNr) {
        let good = self.node.state.peer_disk(peer, volume) == DiskState::UpToDate;
        let parted = !self.node.state.is_primary() && self.node.has_parted_from_another(peer, volume);
        if good && self.node.state.replicates(peer, volume) && parted {
            self.happened(Set::PeerDisk(peer, volume, DiskState::Consistent));
        }
    }

    /// A copy that was not trusted is good for this node.
    pub(crate) fn peer_is_good9(&mut self, peer: NodeId, volume: VolumeNr) {
        let doubted = self.node.state.peer_disk(peer, volume) == DiskState::Consistent;
        if doubted && self.node.state.replicates(peer, volume) {
            self.happened(Set::PeerDisk(peer, volume, DiskState::UpToDate));
        }
    }

    /// P_CURRENT_UUID: within a handshake it is said by a node without a disk; later a Primary begins with it a
    /// generation of this disk (7.3).
    pub(crate) fn current_uuid_received(&mut self, peer: NodeId, volume: VolumeNr, packet: CurrentUuid) {
        // Its vote counts, also if the metadata have no bitmap for it (7.13, 9.1).
        self.note_nodes(volume, NodeMask::of(peer), None);
        if !self.node.state.is_connected(peer) {
            return self.node.connections[peer].exposed_in_handshake(volume, packet.current);
        }
        self.node.connections[peer].peer_devices[volume].lasting.exposed_before = Some(packet.current);
        let primary = self.node.state.peers[peer].role() == Role::Primary;
        if !primary
            || !self.node.state.replicates(peer, volume)
            || self.node.state.disk(volume) != DiskState::UpToDate && !self.in_mesh9()
        {
            return;
        }
        let CurrentUuid { current, weak_nodes } = packet;
        if current.is_fresh() {
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
    /// Who gets nothing of what a node without a disk writes from now on, and may have the generation of those that
    /// do: nodes that are not here, or not good, and this one, if it has a disk that is not attached.
    fn lack_what_follows(&self, volume: VolumeNr) -> NodeMask {
        let gets: NodeMask = self.state.serving_peers(volume).collect();
        let with_disk = |peer: &NodeId| self.connections[*peer].cfg.part == Part::Disk;
        let own = Some(self.cfg.node).filter(|_| self.devices[volume].cfg.is_some());
        self.connections.ids().filter(with_disk).filter(|peer| !gets.contains(*peer)).chain(own).collect()
    }

    /// Would some node be taken for equal that lacks what is written from now on (7.8)? Not if the present generation
    /// began without it, and no good copy says that it is equal since.
    fn needs_generation_without_disk(&self, volume: VolumeNr) -> bool {
        let lacking = self.lack_what_follows(volume);
        let mut told = self
            .state
            .serving_peers(volume)
            .filter_map(|peer| self.connections[peer].peer_devices[volume].link.told.uuids110.as_deref());
        let says_equal = |u: &Uuids110| {
            let slot = |n: NodeId| u.bitmap(n).unwrap_or_default();
            lacking.into_iter().any(|n| slot(n).is_none())
        };
        let left_out = self.devices[volume].seen.left_out;
        !lacking.without(left_out).is_empty() || !lacking.is_empty() && told.any(says_equal)
    }

    /// What a peer's copy is to a node without a disk, to which the peer says that it is UpToDate. What is not what
    /// users here have seen is not good for them (2.2, C19). Without users it is what they will see, unless another
    /// good copy has followed it.
    pub(crate) fn trusted_without_disk9(&mut self, peer: NodeId, volume: VolumeNr, said: DiskState) -> DiskState {
        let told = self.connections[peer].peer_devices[volume].told_current();
        let without = self.state.disk(volume) < DiskState::Inconsistent && said == DiskState::UpToDate;
        let Some(current) = told.filter(|g| without && !g.is_fresh()) else { return said };
        let exposed = self.devices[volume].seen.exposed;
        if self.state.is_primary() && !exposed.is_none() {
            let was_good = self.state.peer_disk(peer, volume) == DiskState::UpToDate;
            return if was_good || current.same(exposed) { said } else { DiskState::Consistent };
        }
        if self.has_parted_from_another(peer, volume) {
            return DiskState::Consistent;
        }
        self.devices[volume].seen.exposed = current.with_primary_bit(false);
        said
    }

    /// Has a good copy, of another peer, a slot that counts from this generation of the peer's, or has it followed it?
    pub(crate) fn is_behind_another(&self, peer: NodeId, volume: VolumeNr, current: Generation) -> bool {
        let others = self.state.serving_peers(volume).filter(|n| *n != peer);
        let mut told = others.filter_map(|n| self.connections[n].peer_devices[volume].link.told.uuids110.as_deref());
        told.any(|u| {
            let slot = u.bitmap(peer).filter(|slot| !slot.is_none());
            !u.current.same(current) && slot.into_iter().chain(u.history.iter().copied()).any(|g| g.same(current))
        })
    }

    /// Has the peer's copy followed this generation?
    fn has_followed(&self, peer: NodeId, volume: VolumeNr, past: Generation) -> bool {
        let told = self.connections[peer].peer_devices[volume].link.told.uuids110.as_deref();
        told.is_some_and(|u| u.bitmaps.iter().chain(&u.history).any(|g| g.same(past)))
    }

    /// Is this copy not the one that users here would see: has a good one followed it, or has it gone its own way
    /// beside one? Of two that have parted the one that users have seen counts.
    fn has_parted_from_another(&self, peer: NodeId, volume: VolumeNr) -> bool {
        let told = |n: NodeId| self.connections[n].peer_devices[volume].told_current().filter(|g| !g.is_fresh());
        let Some(current) = told(peer) else { return false };
        let seen = current.same(self.devices[volume].seen.exposed);
        let mut others = self.state.serving_peers(volume).filter(|n| *n != peer).filter_map(told);
        let beside = !seen && others.any(|other| !other.same(current) && !self.has_followed(peer, volume, other));
        beside || self.is_behind_another(peer, volume, current)
    }

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
