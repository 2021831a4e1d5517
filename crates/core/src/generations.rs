//! Data generations of this node's disks: when a new one begins, and where they are kept
//! (`docs/spec/connection-and-state.md` 7).

use crate::Resource;
use crate::api::Severity;
use crate::decide::state::Replication;
use crate::decide::topic::Topic;
use crate::decide::uuid84::UuidSet;
use crate::device::{Backing, Device};
use crate::dialect9::first_write::due::FirstWrite;
use crate::node::Node;
use meta::{PeerRecord, Superblock};
use units::{Generation, NodeId, VolumeNr};
use wire::{DiskState, Role, UuidFlags};

impl Resource {
    /// I/O of all volumes goes on together: what was frozen ends when each has begun its generation.
    pub(crate) fn settle_pending_generations(&mut self) {
        self.node.devices.ids().for_each(|volume| self.settle_pending_generation(volume));
    }

    /// A generation was put off while I/O was frozen: is it still due? Not if a peer with data came back meanwhile, as
    /// nothing was written without it; but if that is to become a target, what is written from now on is.
    fn settle_pending_generation(&mut self, volume: VolumeNr) {
        if self.generation_undecided(volume) {
            return;
        }
        let view = self.view(volume);
        let all = !self.in_mesh9() || self.all_together(volume);
        let together = view.is_together() && view.peer_disk >= DiskState::Inconsistent && all;
        let parts = view.replication == Replication::WFBitMapS;
        if (together && !parts) || view.disk != DiskState::UpToDate {
            self.node.devices[volume].due.new_generation_pending = false;
        }
        self.create_pending_generation(volume);
    }

    // -- data generations ---------------------------------------------------------------------------------------------

    /// Stores them; writes wait until they are on disk.
    pub(crate) fn put_uuids(&mut self, peer: impl Into<Option<NodeId>>, volume: VolumeNr, set: &UuidSet) {
        let owner = self.node.devices[volume].slot_owner(peer);
        let Some(b) = &mut self.node.devices[volume].backing else { return };
        b.md.current = set.current;
        b.md.peers[owner].bitmap_uuid = set.bitmap;
        let moved = b.md.history[0] != set.history[0];
        if moved && b.md.version() == meta::Version::V09 {
            b.md.history.rotate_right(1);
        }
        let stored = |g: Generation| if b.md.version() == meta::Version::V09 { g.base() } else { g };
        (b.md.history[0], b.md.history[1]) = (stored(set.history[0]), stored(set.history[1]));
        self.generation_changed(volume);
        self.out.status_changed = true;
    }

    /// A new current generation: the old one becomes what the bitmap is about.
    pub(crate) fn new_generation(&mut self, volume: VolumeNr) {
        let fresh = self.draw_generation();
        self.move_sets(volume, |_, set| set.start_generation(fresh));
        let bitmap = self.node.devices[volume].uuids(self.node.connections.ids().next()).bitmap;
        self.node.devices[volume].seen.exposed = fresh;
        self.node.devices[volume].due.new_generation_pending = false;
        self.node.devices[volume].due.generation_with_first_write = false;
        self.node.devices[volume].due.first_write = FirstWrite::Nothing;
        // A peer that attaches a disk meanwhile is told of the generation before: what was compared is of the past.
        for c in self.node.connections.values_mut() {
            c.peer_devices[volume].link.compared.done = false;
        }
        let text = format!("new data generation {fresh}, the bitmap counts from {bitmap}");
        self.out.note(Severity::Info, Some(volume), None, Topic::NewGeneration, text);
    }

    /// The sets of all nodes make the same step, from the same generation.
    pub(crate) fn move_sets(&mut self, volume: VolumeNr, step: impl Fn(Option<NodeId>, &mut UuidSet)) {
        let old = self.node.devices[volume].uuids(None).current;
        for peer in self.peers_or_none() {
            // What one peer's part pushes into the history, which all share, the next one's keeps.
            let mut set = UuidSet { current: old, ..self.node.devices[volume].uuids(peer) };
            step(peer, &mut set);
            self.put_uuids(peer, volume, &set);
        }
    }

    /// The peer is, or will be, the target of a resync, and gets the generation with that: what was compared stays so.
    pub(crate) fn new_generation_beside_target(&mut self, peer: NodeId, volume: VolumeNr) {
        let compared = self.node.connections[peer].peer_devices[volume].link.compared.done;
        self.new_generation(volume);
        self.node.connections[peer].peer_devices[volume].link.compared.done = compared;
        self.send_uuids(peer, volume, UuidFlags::NONE);
    }

    /// Nodes that are not here lack what is written now, and may have the present generation: DRBD 8.4 does not take
    /// one that begins while it is connected, so none can begin for that. Their bitmaps count from the present one. Of
    /// two nodes in one generation, who has such a bitmap is the source (rule 36). One that counts from another
    /// generation says so already.
    pub(crate) fn count_for_absent(&mut self, volume: VolumeNr) {
        let written =
            self.node.state.is_primary() || self.node.state.pairs(volume).any(|(_, pair)| pair.role == Role::Primary);
        if !written || !self.node.state.replicates_anywhere(volume) || !self.knows_strangers(volume) {
            return;
        }
        // In 9's dialect the Primary begins one, of which all hear that are there.
        if self.in_mesh9() && self.connected().any(|(_, c)| c.speaks9()) {
            return;
        }
        let Some(b) = &self.node.devices[volume].backing else { return };
        let current = b.md.current;
        if current.is_fresh() || b.md.version() == meta::Version::V08 {
            return;
        }
        let uncounted = |p: &PeerRecord| self.is_absent(volume, p) && p.bitmap_uuid.is_none();
        let owners: Vec<usize> = (0..b.md.peers.len()).filter(|owner| uncounted(&b.md.peers[*owner])).collect();
        if let (false, Some(b)) = (owners.is_empty(), &mut self.node.devices[volume].backing) {
            owners.into_iter().for_each(|owner| b.md.peers[owner].bitmap_uuid = current);
            self.generation_changed(volume);
        }
    }

    pub(crate) fn create_pending_generation(&mut self, volume: VolumeNr) {
        if !self.generation_undecided(volume)
            && std::mem::take(&mut self.node.devices[volume].due.new_generation_pending)
        {
            if self.in_mesh9() {
                return self.begin_among_peers9(volume);
            }
            self.new_generation(volume);
            // A peer may be behind, and will catch up with this generation.
            let told: Vec<_> =
                self.node.connections.ids().filter(|peer| self.node.state.replicates(*peer, volume)).collect();
            told.into_iter().for_each(|peer| self.send_uuids(peer, volume, UuidFlags::NONE));
        }
    }
}

impl Node {
    /// A generation was put off, and the peer is just told of the present one: whether it is still due shows when the
    /// handshake is over. Until then nothing may be written.
    #[inline]
    pub(crate) fn generation_undecided(&self, volume: VolumeNr) -> bool {
        self.devices[volume].due.new_generation_pending
            && self.connected().any(|(peer, _)| self.will_be_compared(peer, volume))
    }

    /// Does a node that is not here, other than the peer, lack what this copy has, perhaps in the present generation?
    pub(crate) fn absent_lacks_something(&self, peer: NodeId, volume: VolumeNr) -> bool {
        let its = self.devices[volume].slot(peer);
        let mut peers = self.devices[volume].backing.iter().flat_map(|b| &b.md.peers);
        peers.any(|p| self.is_absent(volume, p) && p.slot.map(usize::from) != its && !p.bitmap_uuid.is_fresh())
    }

    /// Has the node a bitmap, and is it not one of those that get what is written?
    fn is_absent(&self, volume: VolumeNr, peer: &PeerRecord) -> bool {
        peer.slot.is_some_and(|slot| !self.is_slot_of_connected(volume, usize::from(slot)))
    }
}

impl Device {
    /// The generations of an attached volume towards a peer, as 8.4 knows them.
    pub(crate) fn uuids(&self, peer: impl Into<Option<NodeId>>) -> UuidSet {
        let Some(b) = &self.backing else { return UuidSet::default() };
        UuidSet {
            current: b.md.current,
            bitmap: b.md.peers[self.slot_owner(peer)].bitmap_uuid,
            history: [b.md.history[0], b.md.history[1]],
        }
    }

    /// Index of a peer's record in the superblock.
    fn slot_owner(&self, peer: impl Into<Option<NodeId>>) -> usize {
        peer.into().zip(self.backing.as_ref()).map_or(Superblock::V08_PEER, |(peer, b)| b.md.owner(peer))
    }

    /// A peer's bitmap slot.
    pub(crate) fn slot(&self, peer: NodeId) -> Option<usize> {
        self.bitmap(peer).map(|(_, slot)| slot)
    }

    /// A peer's bitmap.
    pub(crate) fn bitmap(&self, peer: NodeId) -> Option<(&Backing, usize)> {
        let b = self.backing.as_ref()?;
        let slot = b.md.peer(peer).slot.map(usize::from).filter(|slot| *slot < b.bitmaps.len())?;
        Some((b, slot))
    }

    /// The same, to be changed.
    pub(crate) fn bitmap_mut(&mut self, peer: NodeId) -> Option<(&mut Backing, usize)> {
        let slot = self.slot(peer)?;
        Some((self.backing.as_mut()?, slot))
    }

    /// Blocks that are marked for a peer.
    pub(crate) fn bits_left(&self, peer: NodeId) -> u64 {
        self.bitmap(peer).map_or(0, |(b, slot)| b.bitmaps[slot].count())
    }
}
