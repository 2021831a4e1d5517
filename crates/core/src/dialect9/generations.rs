//! Data generations in 9's dialect: what this node says of its own, and what a peer's mean outside of a handshake
//! (`docs/spec/connection-and-state.md` 5.4, 7.2, 7.3).

use crate::Resource;
use crate::decide::change::{Change, Set};
use crate::decide::private::Private;
use crate::decide::state::{PairState, Replication, State};
use crate::decide::topic::Topic;
use crate::decide::uuid9;
use crate::device::{Backing, Device};
use crate::node::Node;
use crate::peer_device::PeerDevice;
use meta::generations::{PeerDisk, Rotation};
use meta::{DeviceFlags, PeerFlags};
use units::{Generation, NodeId, NodeMask, Sector, VolumeNr};
use wire::{DiskState, Packet, Socket, UuidFlags, Uuids110, WireMask};

/// Primaries that a node sees, which is none itself: on those its data depends.
fn primaries_seen(state: &State) -> NodeMask {
    if state.is_primary() { NodeMask::default() } else { state.primary_peers() }
}

impl Resource {
    pub(crate) fn send_uuids110(&mut self, peer: NodeId, volume: VolumeNr, extra: UuidFlags) {
        if let Some(packet) = self.uuids110(peer, volume, extra) {
            self.node.connections[peer].peer_devices[volume].link.told.changes_told = packet.dirty_bits;
            self.send(peer, Socket::Data, volume, Packet::Uuids110(Box::new(packet)));
        }
    }

    /// What is said of a generation that began with a promotion by force: who hears of it, but not that writes follow.
    pub(crate) fn send_forced_uuids(&mut self, peer: NodeId, volume: VolumeNr) {
        if let Some(mut packet) = self.uuids110(peer, volume, UuidFlags::NEW_DATAGEN) {
            packet.flags = UuidFlags(packet.flags.0 & !UuidFlags::NEW_DATAGEN.0);
            self.send(peer, Socket::Data, volume, Packet::Uuids110(Box::new(packet)));
        }
    }

    /// The own data depends on a Primary from now on, or does no more: the peers are told, before anything else of that
    /// change.
    pub(crate) fn tell_stability(&mut self, old: &State) {
        let seen = [old, &self.node.state].map(primaries_seen);
        if seen[0] == seen[1] {
            return;
        }
        for peer in self.node.connections.ids() {
            for volume in self.node.devices.ids() {
                if self.node.connections[peer].speaks9() && self.node.state.replicates(peer, volume) {
                    self.send_uuids110(peer, volume, UuidFlags::NONE);
                    // Who was that Primary knows.
                    if seen[1].is_empty()
                        && !seen[0].contains(peer)
                        && self.node.state.disk(volume) >= DiskState::Outdated
                    {
                        self.send_uuids110(peer, volume, UuidFlags::GOT_STABLE);
                    }
                }
            }
        }
    }

    /// A peer's data depends on no Primary any more, nor does this node's: it is told that they may be compared, and
    /// both do so (5.4, step 11).
    fn answer_stability(&mut self, peer: NodeId, volume: VolumeNr, packet: &Uuids110) {
        let at_rest = self.node.state.replication(peer, volume) == Replication::Established;
        let stable =
            primaries_seen(&self.node.state).is_empty() && self.node.state.disk(volume) >= DiskState::Inconsistent;
        // Who is brought up to date by another one has its turn when that has ended.
        let copies = packet.flags.contains(UuidFlags::SYNC_TARGET) || self.source_of_target(peer).is_some();
        if !at_rest || !stable || self.in_mesh9() && copies {
            return;
        }
        if packet.flags.contains(UuidFlags::GOT_STABLE) {
            self.send_uuids110(peer, volume, UuidFlags::RESYNC);
            self.compare_when_stable(peer, volume);
        } else if packet.flags.contains(UuidFlags::RESYNC) {
            self.compare_when_stable(peer, volume);
        }
    }

    /// P_UUIDS110. Within a handshake it is kept for the comparison.
    pub(crate) fn uuids110_received(&mut self, peer: NodeId, volume: VolumeNr, packet: Uuids110) {
        self.note_nodes(volume, packet.tracked, packet.flags.unallocated());
        self.node.connections[peer].peer_devices[volume].link.told.uuids =
            Some(in_words_of_84(&packet, self.node.cfg.node));
        self.node.connections[peer].peer_devices[volume].link.told.uuids_stale = false;
        self.node.connections[peer].peer_devices[volume].link.told.uuids110 = Some(Box::new(packet.clone()));
        if !self.node.state.is_connected(peer) {
            return self.node.connections[peer].uuids_of_handshake(volume, packet);
        }
        if !self.node.state.replicates(peer, volume) {
            return;
        }
        let good = self.node.state.disk(volume) >= DiskState::Consistent
            && self.node.state.replication(peer, volume) == Replication::Established;
        let marked = good && packet.dirty_bits > 0;
        self.node.connections[peer].peer_devices[volume].link.told.marked_by_peer = marked.then_some(Sector(0));
        let primaries = packet.primaries();
        // What it has said of an earlier loss of one of them is of the past.
        self.node.connections[peer].survivor.named.take_if(|named| primaries.contains(named.node));
        self.node.witness_sees(peer, primaries);
        self.note_unstable(peer, volume);
        self.choose_source_anew(volume);
        self.generation_confirmed9(peer, volume, packet.current);
        self.follow_slots_without_disk9(peer, volume);
        self.note_moved_on(peer, volume, &packet);
        if !packet.flags.contains(UuidFlags::SYNC_TARGET) {
            self.retire_slot_if_equal(peer, volume, packet.current);
            self.note_brought_up_elsewhere(peer, volume, &packet);
        }
        let fresh = self.node.devices[volume].uuids(peer).current.same(Generation::JUST_CREATED);
        if packet.flags.contains(UuidFlags::SKIP_INITIAL_SYNC) && fresh {
            let reason = crate::decide::Reason::SkipInitialSync;
            self.out.note(crate::api::Severity::Info, Some(volume), Some(peer), reason, reason.to_string());
            return self.accept_as_equal9(peer, volume, packet.current);
        }
        if packet.flags.contains(UuidFlags::NEW_DATAGEN) {
            self.hear_of_generation(peer, volume, &packet);
        }
        self.answer_stability(peer, volume, &packet);
    }

    /// Nodes that a peer lists exist.
    pub(super) fn note_nodes(&mut self, volume: VolumeNr, listed: NodeMask, unallocated: Option<NodeId>) {
        let Some(b) = &mut self.node.devices[volume].backing else { return };
        let mut changed = false;
        for node in listed.into_iter().filter(|node| Some(*node) != unallocated) {
            let record = &mut b.md.peers[node.index()];
            if record.slot.is_none() && !record.flags.contains(PeerFlags::NODE_EXISTS) {
                record.flags.insert(PeerFlags::NODE_EXISTS);
                changed = true;
            }
        }
        if changed {
            self.md_changed(volume);
        }
    }

    /// `new-current-uuid --clear-bitmap` on this node, with peers whose metadata are as fresh (12.8). Those that are
    /// not here lack whatever is written from the first day on.
    pub(crate) fn begin_equal9(&mut self, volume: VolumeNr) {
        self.rotate_slots(volume, NodeMask::default());
        let fresh = self.draw_generation();
        let Some(b) = &mut self.node.devices[volume].backing else { return };
        let here = self.node.connections.ids().filter(|peer| self.node.state.replicates(*peer, volume));
        here.for_each(|peer| b.md.peer_mut(peer).bitmap_uuid = Generation::NONE);
        b.bitmaps.iter_mut().for_each(units::BitSet::clear_all);
        b.dirty.note_all();
        b.md.current = fresh;
        self.write_bitmap(volume);
        self.generation_changed(volume);
        self.out.status_changed = true;
    }

    /// `new-current-uuid --clear-bitmap` of a peer: all copies count as equal from now on.
    fn accept_as_equal9(&mut self, peer: NodeId, volume: VolumeNr, current: Generation) {
        if let Some(b) = &mut self.node.devices[volume].backing {
            b.bitmaps.iter_mut().for_each(units::BitSet::clear_all);
            b.dirty.note_all();
            b.md.current = current.with_primary_bit(false);
            b.md.peer_mut(peer).bitmap_uuid = Generation::NONE;
        }
        self.write_bitmap(volume);
        self.generation_changed(volume);
        let good = Change::from(Set::Disk(volume, DiskState::UpToDate));
        self.took_place(good.and(Set::PeerDisk(peer, volume, DiskState::UpToDate)));
    }

    /// A Primary says that it has begun a generation. Who has connected, and was brought up to date, while that was on
    /// its way to its disk has it already.
    fn hear_of_generation(&mut self, peer: NodeId, volume: VolumeNr, packet: &Uuids110) {
        if self.has_this_generation(peer, volume) {
            self.tell_uuids(volume, UuidFlags::NONE);
        } else {
            self.generation_begun_by(peer, volume, packet.current, packet.nodes.nodes());
            if self.node.connections[peer].decides_by(Private::LearnsPast) {
                self.node.devices[volume].learn_past(packet);
            }
        }
    }

    /// A Primary begins a generation: this copy has part in it, unless it is a target or behind (7.3), or left out.
    pub(crate) fn generation_begun_by(&mut self, peer: NodeId, volume: VolumeNr, current: Generation, weak: NodeMask) {
        let behind = self
            .node
            .state
            .pairs(volume)
            .any(|(_, pair)| pair.replication.is_target() || pair.replication == Replication::Behind);
        if behind {
            // A source that counts this node in sends it, or marks for it, all that it writes in that generation.
            if !weak.contains(self.node.cfg.node) {
                self.node.connections[peer].peer_devices[volume].resync.peer_current = Some(current);
            }
            return;
        }
        let fresh = current.with_primary_bit(false);
        if self.node.state.disk(volume) < DiskState::Inconsistent {
            // A disk that is being given up gets none of the writes that follow.
            self.node.devices[volume].seen.exposed = fresh;
            return;
        }
        if self.in_mesh9() && weak.contains(self.node.cfg.node) {
            return self.left_out(peer, volume);
        }
        let configured = self.configured_disks(volume);
        let (day0_shared, dagtag) = (NodeMask::default(), self.positions.own());
        let rotation = Rotation { configured: &configured, day0_shared, dagtag };
        let rotate = Some(rotation).filter(|_| self.node.state.disk(volume) == DiskState::UpToDate);
        let own = self.node.cfg.node;
        let Some(b) = &mut self.node.devices[volume].backing else { return };
        b.md.receive_new_current(own, fresh, weak, rotate);
        self.node.devices[volume].seen.exposed = fresh;
        self.node.crash_is_past(volume);
        self.generation_changed(volume);
        self.out.status_changed = true;
        let text = format!("the peer begins the data generation {fresh}");
        self.out.note(crate::api::Severity::Info, Some(volume), Some(peer), Topic::NewGeneration, text);
        let waits = self.node.connections[peer].decides_by(Private::SaysWhenDurable);
        match self.node.devices[volume].backing.as_mut().filter(|_| waits) {
            Some(b) => b.writer.generation_heard(),
            None => self.tell_uuids(volume, UuidFlags::NONE),
        }
    }

    /// A Primary begins a generation, and does not count this copy in: what it writes from now on does not come here. A
    /// copy of what came before does not pass for one of that generation.
    fn left_out(&mut self, peer: NodeId, volume: VolumeNr) {
        let good = self.node.state.disk(volume) > DiskState::Outdated;
        let (severity, end) = match good {
            true => (crate::api::Severity::Warning, ": this disk is outdated"),
            false => (crate::api::Severity::Info, ", which is old"),
        };
        let text = format!("the Primary begins a data generation without this copy{end}");
        self.out.note(severity, Some(volume), Some(peer), Topic::LeftOut, text);
        if good {
            self.took_place(Set::Disk(volume, DiskState::Outdated));
        }
    }

    /// Slots of nodes that do not hear of the generation that follows count from the present one (7.2, steps 2 and 3).
    /// Returns the nodes whose slots do so from now on.
    pub(crate) fn rotate_slots(&mut self, volume: VolumeNr, weak: NodeMask) -> NodeMask {
        let configured = self.configured_disks(volume);
        let (own, random, position) = (self.node.cfg.node, self.draw_generation().base(), self.positions.own());
        let Some(b) = &mut self.node.devices[volume].backing else { return NodeMask::default() };
        let before = b.md.peers.map(|record| record.bitmap_uuid);
        let rotated = b.md.rotate_current(own, &configured, weak, NodeMask::default(), random, position);
        // A node that is not configured may get one of the slots that are vacant, which track since ever.
        let vacant = b.bitmaps.len() - b.md.peers.iter().filter(|record| record.slot.is_some()).count();
        let moved = |n: &NodeId| b.md.peers[n.index()].bitmap_uuid != before[n.index()];
        let homeless = |n: &NodeId| b.md.peers[n.index()].slot.is_none() && moved(n);
        let gets = NodeId::all().filter(homeless).take(vacant);
        gets.fold(rotated, NodeMask::with)
    }
}

impl Device {
    /// What is past for a Primary is so for who has its generation: a third node may have one of these alone, which the
    /// Primary has noted, and lost before it was its own (7.2).
    fn learn_past(&mut self, packet: &Uuids110) {
        if let Some(b) = self.backing.as_mut().filter(|b| b.md.current.same(packet.current)) {
            packet.history.iter().rev().for_each(|past| b.md.push_history(*past, None));
        }
    }
}

impl Node {
    /// What this node says of its generations to a peer.
    pub(crate) fn uuids110(&self, peer: NodeId, volume: VolumeNr, extra: UuidFlags) -> Option<Uuids110> {
        let dev = &self.devices[volume];
        let said = |b: &&Backing| self.state.disk(volume) >= DiskState::Negotiating || b.writer.is_untold();
        let b = dev.backing.as_ref().filter(said)?;
        let seen = primaries_seen(&self.state);
        let in_handshake = !self.state.is_connected(peer);
        let mut flags = extra;
        let mut put = |on: bool, flag: UuidFlags| flags = if on { flags | flag } else { flags };
        put(self.connections[peer].discard_my_data, UuidFlags::DISCARD_MY_DATA);
        put(self.counts_as_crashed(peer, volume), UuidFlags::CRASHED_PRIMARY);
        put(b.md.flags.contains(DeviceFlags::PRIMARY_LOST_QUORUM), UuidFlags::PRIMARY_LOST_QUORUM);
        let disk = self.state.disk(volume);
        let consistent = b.md.flags.contains(DeviceFlags::CONSISTENT);
        let bad = if disk >= DiskState::Inconsistent { disk == DiskState::Inconsistent } else { !consistent };
        put(bad, UuidFlags::INCONSISTENT);
        put(seen.is_empty(), UuidFlags::STABLE);
        put(self.connections[peer].peer_devices[volume].lasting.was_established, UuidFlags::RECONNECT);
        let nodes = if !seen.is_empty() {
            WireMask::from(seen)
        } else if self.state.is_primary() && (in_handshake || extra.contains(UuidFlags::NEW_DATAGEN)) {
            self.weak_nodes(volume)
        } else {
            WireMask::NONE
        };
        let mut tracked = self.devices[volume].nodes_told_of();
        if let Some(node) = self.vacant_slot(peer, volume, tracked) {
            tracked.insert(node);
            flags |= UuidFlags::of_unallocated(node);
        }
        let of_source = self
            .active_source(volume, peer)
            .and_then(|source| self.connections[source].peer_devices[volume].told_current());
        if of_source.is_some() {
            flags |= UuidFlags::SYNC_TARGET;
        }
        Some(Uuids110 {
            current: of_source.unwrap_or(b.md.current),
            dirty_bits: self.devices[volume].bits_left(peer),
            flags,
            nodes,
            tracked,
            bitmaps: tracked.into_iter().map(|node| self.slot_as_told(peer, node, volume)).collect(),
            history: b.md.history.to_vec(),
        })
    }

    /// Is a peer told that this node has crashed as Primary? Who may take it for the source by that is told as long as
    /// a kernel would say so (2.6, row 7): not any more beside another good copy.
    fn counts_as_crashed(&self, peer: NodeId, volume: VolumeNr) -> bool {
        let mut others =
            self.state.pairs(volume).filter(|(other, _)| *other != peer && self.state.is_connected(*other));
        let good =
            |pair: &PairState| pair.disk == DiskState::UpToDate && self.state.disk(volume) == DiskState::UpToDate;
        let past = !self.connections[peer].decides_by(Private::StaysCrashed) && others.any(|(_, pair)| good(pair));
        self.devices[volume].disk.crashed_primary && !(past && self.in_mesh9())
    }

    /// What a node's slot counts from, as a peer is told. That of a source of this node, which has another generation,
    /// nobody knows. Nor is said of a third node that it lacks nothing, where a lost Primary's writes are marked for
    /// it.
    fn slot_as_told(&self, peer: NodeId, node: NodeId, volume: VolumeNr) -> Generation {
        let Some(b) = &self.devices[volume].backing else { return Generation::NONE };
        let slot = b.md.peers[node.index()].bitmap_uuid;
        if !slot.is_none() || !self.in_mesh9() || !self.connections.members().contains(node) {
            return slot;
        }
        let target = self.state.replication(node, volume).is_target();
        let differs = target
            && self.connections[node].peer_devices[volume]
                .told_current()
                .is_some_and(|theirs| !theirs.same(b.md.current));
        let marked = node != peer && self.keeps_lost_writes(node, volume);
        if differs || marked { uuid9::UNKNOWN } else { slot }
    }

    /// A bitmap that belongs to no node, and counts from a generation: by which node id a peer is told of it (7.13).
    fn vacant_slot(&self, peer: NodeId, volume: VolumeNr, told: NodeMask) -> Option<NodeId> {
        let b = self.devices[volume].backing.as_ref()?;
        let used = b.md.peers.iter().filter(|record| record.slot.is_some()).count();
        let ids = NodeId::all();
        let mut free = ids.filter(|node| *node != self.cfg.node && *node != peer && !told.contains(*node));
        free.find(|node| !b.md.peers[node.index()].bitmap_uuid.is_none()).filter(|_| used < b.bitmaps.len())
    }

    /// Nodes that do not hear of a generation that begins now (7.2).
    pub(crate) fn weak_nodes(&self, volume: VolumeNr) -> WireMask {
        let without_disk = self.state.disk(volume) < DiskState::Inconsistent;
        let good = |(peer, pair): &(NodeId, &PairState)| {
            let doubted = without_disk && pair.disk == DiskState::Consistent;
            let bad = doubted || matches!(pair.disk, DiskState::DUnknown | DiskState::Outdated);
            self.state.is_connected(*peer) && pair.disk > DiskState::Failed && !bad
        };
        let own = Some(self.cfg.node).filter(|_| self.state.disk(volume) == DiskState::UpToDate);
        let hear: NodeMask = self.state.pairs(volume).filter(good).map(|(peer, _)| peer).chain(own).collect();
        WireMask::all_but(hear)
    }

    /// Where the peers' data is.
    fn configured_disks(&self, volume: VolumeNr) -> Vec<(NodeId, PeerDisk)> {
        let Some(b) = &self.devices[volume].backing else { return Vec::new() };
        let of = |(peer, pair): (NodeId, &PairState)| {
            let disk = match pair.disk {
                DiskState::Diskless if b.md.peers[peer.index()].slot.is_none() => PeerDisk::DisklessWithoutBitmap,
                DiskState::Negotiating => PeerDisk::Accessible,
                disk if disk <= DiskState::DUnknown => PeerDisk::NotAccessible,
                _ => PeerDisk::Accessible,
            };
            (peer, disk)
        };
        self.state.pairs(volume).map(of).collect()
    }
}

impl Device {
    /// Nodes that have a bitmap here, or are known to exist.
    fn nodes_told_of(&self) -> NodeMask {
        let Some(b) = &self.backing else { return NodeMask::default() };
        let known = |node: &NodeId| {
            let record = &b.md.peers[node.index()];
            record.slot.is_some() || record.flags.contains(PeerFlags::NODE_EXISTS)
        };
        NodeId::all().filter(known).collect()
    }
}

impl PeerDevice {
    /// The generation that the peer has told last, if it has that itself: not the one of its source.
    pub(super) fn told_current(&self) -> Option<Generation> {
        self.link.told.uuids110.as_ref().filter(|u| !u.flags.contains(UuidFlags::SYNC_TARGET)).map(|u| u.current)
    }

    /// Has the peer named a generation? Who adopts the first one of all does not say so to all.
    pub(super) fn has_told_of_data(&self) -> bool {
        self.link.told.uuids110.as_ref().is_some_and(|u| !u.current.is_fresh())
    }

    /// The Primaries that the peer's data depends on, as it has told.
    pub(super) fn told_primaries(&self) -> NodeMask {
        self.link.told.uuids110.as_ref().map(|u| u.primaries()).unwrap_or_default()
    }
}

/// The part of it that 8.4's packet has: what is common to both dialects looks at that.
fn in_words_of_84(packet: &Uuids110, own: NodeId) -> wire::Uuids {
    let past = |n: usize| packet.history.get(n).copied().unwrap_or_default();
    wire::Uuids {
        current: packet.current,
        bitmap: packet.bitmap(own).unwrap_or_default(),
        history: [past(0), past(1)],
        dirty_bits: packet.dirty_bits,
        flags: packet.flags,
    }
}
