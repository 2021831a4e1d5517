//! Which size a volume gets: what the disks can hold, and what the nodes tell each other
//! (`docs/spec/connection-and-state.md` 5.3).

use crate::Resource;
use crate::api::Severity;
use crate::connection::Connection;
use crate::decide::change::Set;
use crate::decide::sizes::Grown;
use crate::decide::state::Replication;
use crate::decide::topic::Topic;
use crate::decide::view::Kind;
use crate::decide::{Reason, sizes};
use crate::device::Device;
use crate::node::Node;
use units::{Generation, NodeId, Sector, VolumeNr};
use wire::{DiskState, Role};

impl Resource {
    /// The sizes do not go together.
    fn refuse_sizes(&mut self, i: NodeId, reason: Reason) {
        if self.node.connections[i].speaks9() {
            return self.refuse_sizes9(i, reason);
        }
        self.out.give_up(i, reason, reason.to_string());
    }

    pub(crate) fn sizes_received(&mut self, i: NodeId, d: VolumeNr, packet: &wire::Sizes) {
        self.node.connections[i].peer_devices[d].link.told.sizes = Some(*packet);
        let mut limits = self.size_limits(d);
        let dev = &self.node.devices[d];
        let fresh = dev.backing.as_ref().is_some_and(|b| b.md.current.same(Generation::JUST_CREATED));
        if fresh && self.in_mesh9() && self.node.state.replicates(i, d) {
            // Nobody has agreed on the size of a disk that never had data: it follows a peer that has found some.
            limits.last_agreed = Sector(0);
        }
        let input = sizes::SizesReceived {
            peer: sizes::PeerSizes { device: packet.disk_size, user: packet.user_size, current: packet.current_size },
            limits,
            current: dev.size,
            disk: self.node.state.disk(d),
            peer_disk: self.node.state.peer_disk(i, d),
            connected: self.node.state.replicates(i, d),
            role: self.node.state.role,
            no_resync: packet.flags.assume_clean,
        };
        match sizes::on_sizes(&input) {
            sizes::SizesVerdict::Refuse(reason) => {
                self.node.connections[i].peer_devices[d].lasting.peer_capacity = Sector(0);
                self.refuse_sizes(i, reason);
            }
            sizes::SizesVerdict::Keep(_) => {}
            sizes::SizesVerdict::Adopt(adopted)
                if adopted.size < self.node.devices[d].size && self.node.devices[d].in_use() =>
            {
                // Only an area that nobody uses may go (`docs/spec/data-path-and-resync.md` 11.1).
                self.refuse_sizes(i, Reason::PrimaryWouldShrink);
            }
            sizes::SizesVerdict::Adopt(adopted) => {
                self.node.connections[i].peer_devices[d].lasting.peer_capacity = adopted.peer;
                self.size_found(i, d, packet.current_size, &adopted);
            }
        }
    }

    /// Another size follows from what a peer has said.
    fn size_found(&mut self, i: NodeId, d: VolumeNr, theirs: Sector, adopted: &sizes::Adopted) {
        // Of a disk it is decided when the peer has said all.
        let has_disk = self.node.state.disk(d) >= DiskState::Negotiating;
        let is_attempt = has_disk && self.node.connections[i].speaks9() && !self.node.state.is_connected(i);
        if is_attempt || self.is_size_asked_for(d, i, theirs) {
            return;
        }
        let replicating = self.node.state.replicates(i, d);
        self.adopt_size(d, adopted.size, adopted.grown != Grown::Equal);
        // A peer that has attached a larger disk waits for this node to agree.
        if adopted.send_sizes && replicating && theirs != adopted.size {
            self.send_sizes(i, d);
        }
        if adopted.grown != Grown::Resynced {
            return;
        }
        if self.in_mesh9() && !self.node.state.has_primary(i, d) {
            // The peer has heard of the size from a third node, from which it may still get what is there.
            self.node.connections[i].peer_devices[d].lasting.keeps = crate::peer_device::Keeps::LostWrites;
        } else {
            self.resync_grown_area(i, d);
        }
    }

    /// Gives a device its size.
    pub(crate) fn adopt_size(&mut self, d: VolumeNr, size: Sector, grown_differs: bool) {
        let dev = &mut self.node.devices[d];
        let old = dev.size;
        if size == old && dev.backing.as_ref().is_none_or(|b| b.md.effective_size == size) {
            return;
        }
        dev.size = size;
        // A disk that is failing has no say in the size, and no room for it.
        let capacity = self.node.devices[d].capacity();
        let dev = &mut self.node.devices[d];
        let mut stored = size;
        if let Some(b) = &mut dev.backing
            && size <= capacity
        {
            b.resize_bitmap(size, grown_differs);
            stored = std::mem::replace(&mut b.md.effective_size, size);
        }
        self.write_bitmap(d);
        if stored.0 > 0 && stored != size && self.sizes_by_9() {
            // What is written to a new area must be known to lie there after a crash.
            self.generation_changed(d);
            self.node.peers_can_hold(d, size);
        } else {
            self.md_changed(d);
        }
        self.out.status_changed = true;
        if old != size {
            let text = format!("size {} KiB -> {} KiB", old.0 / 2, size.0 / 2);
            self.out.note(Severity::Info, Some(d), None, Topic::SizeChanged, text);
        }
    }

    fn resync_grown_area(&mut self, i: NodeId, d: VolumeNr) {
        let me = self.node.state.is_primary();
        let peer = self.node.state.pair(i, d).role == Role::Primary;
        if self.node.connections[i].speaks9() {
            let source = sizes::grown_area_source(me, peer, self.node.cfg.node < i);
            return self.begin_grown_area9(i, d, source);
        }
        if sizes::grown_area_source(me, peer, self.node.connections[i].resolve_conflicts()) {
            return self.begin_as_source(i, d);
        }
        if let Err(refusal) = self.make(Set::Replication(i, d, Replication::WFSyncUUID), Kind::Fact) {
            let text = format!("the grown area is not synced: {}", refusal.code);
            self.out.note(Severity::Warning, Some(d), Some(i), Topic::NoGrowResync, text);
        }
    }
}

impl Node {
    /// Connected peers have a size that was agreed on: what they told before was less than they have by now.
    fn peers_can_hold(&mut self, d: VolumeNr, size: Sector) {
        let told = self.connections.values_mut().filter_map(|c| c.peer_devices[d].link.told.sizes.as_mut());
        told.filter(|told| told.disk_size.0 > 0).for_each(|told| told.disk_size = told.disk_size.max(size));
    }
}

impl Node {
    pub(crate) fn size_limits(&self, d: VolumeNr) -> sizes::Limits {
        let dev = &self.devices[d];
        let nine = self.sizes_by_9();
        sizes::Limits {
            own: self.devices[d].capacity(),
            peer: if nine { self.capacity_within_reach(d, Sector(0)) } else { self.smallest_peer(d) },
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
    fn smallest_peer(&self, d: VolumeNr) -> Sector {
        let known =
            self.connections.values().map(|c| c.peer_devices[d].lasting.peer_capacity).filter(|size| size.0 > 0);
        known.min().unwrap_or(Sector(0))
    }

    /// The smallest capacity of the own disk and those that peers have told of since they connected (9's dialect).
    pub(crate) fn capacity_within_reach(&self, d: VolumeNr, own: Sector) -> Sector {
        let told =
            self.connections.values().filter_map(|c| c.peer_devices[d].link.told.sizes.as_ref()).map(|s| s.disk_size);
        told.chain([own]).filter(|size| size.0 > 0).min().unwrap_or(Sector(0))
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
