//! Which size a volume gets: what the disks can hold, and what the nodes tell each other
//! (`docs/spec/connection-and-state.md` 5.3).

use crate::Resource;
use crate::api::{OpenedDisk, Severity};
use crate::connection::Connection;
use crate::decide::change::Set;
use crate::decide::sizes::Grown;
use crate::decide::state::Replication;
use crate::decide::topic::Topic;
use crate::decide::view::Kind;
use crate::decide::{Reason, sizes};
use crate::device::{Backing, Device};
use crate::node::Node;
use units::{Generation, NodeId, Sector, VolumeNr};
use wire::{DiskState, Role};

impl Resource {
    /// The sizes do not go together.
    fn refuse_sizes(&mut self, peer: NodeId, reason: Reason) {
        if self.node.connections[peer].speaks9() {
            return self.refuse_sizes9(peer, reason);
        }
        self.out.refuse_peer(peer, reason);
    }

    pub(crate) fn sizes_received(&mut self, peer: NodeId, volume: VolumeNr, packet: &wire::Sizes) {
        self.node.connections[peer].peer_devices[volume].link.told.sizes = Some(*packet);
        let mut limits = self.size_limits(volume);
        let dev = &self.node.devices[volume];
        let fresh = dev.backing.as_ref().is_some_and(|b| b.md.current.same(Generation::JUST_CREATED));
        if fresh && self.in_mesh9() && self.node.state.replicates(peer, volume) {
            // Nobody has agreed on the size of a disk that never had data: it follows a peer that has found some.
            limits.last_agreed = Sector(0);
        }
        let input = sizes::SizesReceived {
            peer: sizes::PeerSizes { device: packet.disk_size, user: packet.user_size, current: packet.current_size },
            limits,
            current: dev.size,
            disk: self.node.state.disk(volume),
            peer_disk: self.node.state.peer_disk(peer, volume),
            connected: self.node.state.replicates(peer, volume),
            role: self.node.state.role,
            no_resync: packet.flags.assume_clean,
        };
        match sizes::on_sizes(&input) {
            sizes::SizesVerdict::Refuse(reason) => {
                self.node.connections[peer].peer_devices[volume].lasting.peer_capacity = Sector(0);
                self.refuse_sizes(peer, reason);
            }
            sizes::SizesVerdict::Keep(_) => {}
            sizes::SizesVerdict::Adopt(adopted)
                if adopted.size < self.node.devices[volume].size && self.node.devices[volume].in_use() =>
            {
                // Only an area that nobody uses may go (`docs/spec/data-path-and-resync.md` 11.1).
                self.refuse_sizes(peer, Reason::PrimaryWouldShrink);
            }
            sizes::SizesVerdict::Adopt(adopted) => {
                self.node.connections[peer].peer_devices[volume].lasting.peer_capacity = adopted.peer;
                self.size_found(peer, volume, packet.current_size, &adopted);
            }
        }
        let pair = &mut self.node.connections[peer].peer_devices[volume];
        if pair.link.exchange.peer_grew(packet.current_size)
            && self.node.state.replication(peer, volume) == Replication::Established
        {
            self.resync_grown_area(peer, volume);
        }
    }

    /// Another size follows from what a peer has said.
    fn size_found(&mut self, peer: NodeId, volume: VolumeNr, theirs: Sector, adopted: &sizes::Adopted) {
        // Of a disk it is decided when the peer has said all.
        let has_disk = self.node.state.disk(volume) >= DiskState::Negotiating;
        let is_attempt = has_disk && self.node.connections[peer].speaks9() && !self.node.state.is_connected(peer);
        if is_attempt || self.is_size_asked_for(volume, peer, theirs) {
            return;
        }
        let replicating = self.node.state.replicates(peer, volume);
        if replicating
            && !self.sizes_by_9()
            && let Some(cfg) = &mut self.node.devices[volume].cfg
        {
            // A limit that a connected peer has given up, or has set, is this node's, too (5.3).
            cfg.size = Some(adopted.user.to_bytes()).filter(|size| size.0 > 0);
        }
        self.adopt_size(volume, adopted.size, adopted.grown != Grown::Equal);
        // A peer that has attached a larger disk waits for this node to agree.
        // So does one of 8.4 that says 0 (`docs/spec/wire-protocol.md` 5.13).
        let asked = theirs == Sector(0) && !self.sizes_by_9();
        if (adopted.send_sizes || asked) && replicating && theirs != adopted.size {
            self.send_sizes(peer, volume);
        }
        if adopted.grown != Grown::Resynced {
            return;
        }
        if self.in_mesh9() && !self.node.state.has_primary(peer, volume) {
            // The peer has heard of the size from a third node, from which it may still get what is there.
            self.node.connections[peer].peer_devices[volume].lasting.keeps = crate::peer_device::Keeps::LostWrites;
        } else {
            self.resync_grown_area(peer, volume);
        }
    }

    /// Gives a device its size.
    pub(crate) fn adopt_size(&mut self, volume: VolumeNr, size: Sector, grown_differs: bool) {
        let dev = &mut self.node.devices[volume];
        let old = dev.size;
        if size == old && dev.backing.as_ref().is_none_or(|b| b.md.effective_size == size) {
            return;
        }
        dev.size = size;
        // A disk that is failing has no say in the size, and no room for it.
        let capacity = self.node.devices[volume].capacity();
        let dev = &mut self.node.devices[volume];
        let mut stored = size;
        if let Some(b) = &mut dev.backing
            && size <= capacity
        {
            b.resize_bitmap(size, grown_differs);
            stored = std::mem::replace(&mut b.md.effective_size, size);
        }
        self.write_bitmap(volume);
        if stored.0 > 0 && stored != size && self.sizes_by_9() {
            // What is written to a new area must be known to lie there after a crash.
            self.generation_changed(volume);
            self.node.peers_can_hold(volume, size);
        } else {
            self.md_changed(volume);
        }
        self.out.status_changed = true;
        if old != size {
            let text = format!("size {} KiB -> {} KiB", old.0 / 2, size.0 / 2);
            self.out.note(Severity::Info, Some(volume), None, Topic::SizeChanged, text);
        }
    }

    fn resync_grown_area(&mut self, peer: NodeId, volume: VolumeNr) {
        let me = self.node.state.is_primary();
        let theirs = self.node.state.pair(peer, volume).role == Role::Primary;
        if self.node.connections[peer].speaks9() {
            let source = sizes::grown_area_source(me, theirs, self.node.cfg.node < peer);
            return self.begin_grown_area9(peer, volume, source);
        }
        if sizes::grown_area_source(me, theirs, self.node.connections[peer].resolve_conflicts()) {
            return self.begin_as_source(peer, volume);
        }
        if let Err(refusal) = self.make(Set::Replication(peer, volume, Replication::WFSyncUUID), Kind::Fact) {
            let text = format!("the grown area is not synced: {}", refusal.code);
            self.out.note(Severity::Warning, Some(volume), Some(peer), Topic::NoGrowResync, text);
        }
    }
}

impl Node {
    /// Connected peers have a size that was agreed on: what they told before was less than they have by now.
    fn peers_can_hold(&mut self, volume: VolumeNr, size: Sector) {
        let told = self.connections.values_mut().filter_map(|c| c.peer_devices[volume].link.told.sizes.as_mut());
        told.filter(|told| told.disk_size.0 > 0).for_each(|told| told.disk_size = told.disk_size.max(size));
    }
}

impl Node {
    pub(crate) fn size_limits(&self, volume: VolumeNr) -> sizes::Limits {
        let dev = &self.devices[volume];
        let nine = self.sizes_by_9();
        sizes::Limits {
            own: self.devices[volume].capacity(),
            peer: if nine { self.capacity_within_reach(volume, Sector(0)) } else { self.smallest_peer(volume) },
            // Only a transaction asks all that there are.
            known: if nine { sizes::Known::NotAll } else { sizes::Known::One },
            last_agreed: dev.backing.as_ref().map_or(Sector(0), |b| b.md.effective_size),
            user: dev.cfg.as_ref().and_then(|c| c.size).unwrap_or_default().to_sectors_floor(),
            assume_peer_has_space: false,
        }
    }

    /// Do nodes of 9's dialect agree on sizes, as none of 8.4's is there?
    pub(crate) fn sizes_by_9(&self) -> bool {
        let of_84 = |c: &Connection| c.dialect().is_some_and(|dialect| !dialect.version.is_9());
        self.has_peers_of_9() && !self.connections.values().any(of_84)
    }

    /// The smallest capacity of the peers that have, or had, a disk; 0: none ever had.
    fn smallest_peer(&self, volume: VolumeNr) -> Sector {
        let known =
            self.connections.values().map(|c| c.peer_devices[volume].lasting.peer_capacity).filter(|size| size.0 > 0);
        known.min().unwrap_or(Sector(0))
    }

    /// The smallest capacity of the own disk and those that peers have told of since they connected (9's dialect).
    pub(crate) fn capacity_within_reach(&self, volume: VolumeNr, own: Sector) -> Sector {
        let told = self
            .connections
            .values()
            .filter_map(|c| c.peer_devices[volume].link.told.sizes.as_ref())
            .map(|s| s.disk_size);
        told.chain([own]).filter(|size| size.0 > 0).min().unwrap_or(Sector(0))
    }
}

impl Backing {
    /// The disk is that large now, and its metadata lie where they do on one of that size.
    pub(crate) fn grew(&mut self, opened: OpenedDisk) {
        if let Ok(layout) = meta::Layout::new(self.layout.kind(), self.md.geometry, opened.meta_device) {
            self.md.place(&layout);
            (self.layout, self.opened) = (layout, opened);
        }
    }
}

impl Device {
    /// The most that disk and metadata can hold.
    pub(crate) fn capacity(&self) -> Sector {
        let Some(b) = &self.backing else { return Sector(0) };
        match b.layout.kind() {
            meta::MetaDisk::Internal => b.layout.capacity(),
            _ => b.layout.capacity().min(b.opened.backing.to_sectors_floor()),
        }
    }

    /// Is the device open, or being written to?
    pub(crate) fn in_use(&self) -> bool {
        self.openers.writers + self.openers.readers > 0 || self.disk.upper_pending > 0
    }
}
