//! The queue of a peer's data stream, which is processed strictly in order. Where the reference blocks its receiver,
//! the packets behind wait here; the control stream goes on (`docs/spec/data-path-and-resync.md` 2).
//!
//! Owns [`DataQueue`].

use crate::Resource;
use crate::api::Segments;
use crate::connection::Connection;
use crate::device::Device;
use crate::node::Node;
use crate::peer_write::held::{HeldPacket, change_of, changes_data};
use crate::peer_write::write::PACKET_COST;
use units::{NodeId, SectorRange, VolumeNr};
use wire::Packet;

impl Resource {
    /// A data-stream packet: processed now, or behind those that already wait.
    pub(crate) fn queue_data(&mut self, peer: NodeId, volume: VolumeNr, packet: Packet, payload: Segments) {
        let next = HeldPacket { came: self.node.now, volume, packet, payload };
        let c = &mut self.node.connections[peer];
        if c.link.is_none() || !c.held.is_empty() {
            c.held.push(next);
            self.pump_peer(peer);
        } else if self.need_not_wait(peer, &next) {
            self.data_packet(peer, next.volume, next.packet, next.payload);
            self.end_links();
        } else {
            let missing = self.number_is_missing(peer, next.volume, &next.packet);
            self.node.connections[peer].held.waits(next, missing, self.node.now);
        }
    }

    /// Processes held packets as far as possible.
    pub(crate) fn pump_peer(&mut self, peer: NodeId) {
        while self.node.connections[peer].link.is_some() {
            let Some(next) = self.node.connections[peer].held.take() else { break };
            if !self.need_not_wait(peer, &next) {
                let missing = self.number_is_missing(peer, next.volume, &next.packet);
                return self.node.connections[peer].held.waits(next, missing, self.node.now);
            }
            self.data_packet(peer, next.volume, next.packet, next.payload);
            self.end_links();
        }
    }

    /// May the first packet be processed now? Else it must wait.
    fn need_not_wait(&mut self, peer: NodeId, next: &HeldPacket) -> bool {
        let blocked = self.blocked_by_epoch(peer, &next.packet);
        if !blocked {
            self.begin_generation_for(next.volume, &next.packet);
        }
        if blocked || self.must_wait(peer, next.volume, &next.packet) {
            return false;
        }
        self.node.connections[peer].held.goes_on(next);
        if let Some(dev) = self.node.devices.get_mut(next.volume) {
            dev.queue.recheck |= changes_data(&next.packet);
        }
        true
    }

    /// The first write of a Primary without a disk: from now on this copy is newer than the one it had.
    fn begin_generation_for(&mut self, volume: VolumeNr, packet: &Packet) {
        let begins = self.node.devices.get(volume).is_some_and(|dev| dev.due.generation_with_first_write);
        if begins && changes_data(packet) {
            self.new_generation(volume);
            self.tell_uuids(volume, wire::UuidFlags::NONE);
        }
    }

    /// Packets that need quiet: the range must not be written by something older.
    fn must_wait(&self, peer: NodeId, volume: VolumeNr, packet: &Packet) -> bool {
        let Some(dev) = self.node.devices.get(volume) else { return false };
        let overlaps = |range: Option<SectorRange>| {
            let resyncing = |r| !dev.queue.resyncing.is_empty() && self.resync_writing(volume, r);
            range.is_some_and(|r| dev.queue.peer_writing.overlaps(r) || resyncing(r))
        };
        let c = &self.node.connections[peer];
        if c.peer_has_enough(packet) {
            return true;
        }
        // Data of a generation that is not on disk yet (a Primary without a disk leaves it to us to make one).
        let unsettled = dev.generation_in_flight();
        if let Some((range, seq)) = change_of(packet) {
            let may_meet_own = !dev.queue.writing.is_empty() || c.cfg.two_primaries;
            return unsettled || overlaps(range) || may_meet_own && self.must_wait_for_local(peer, volume, range, seq);
        }
        match packet {
            // An acknowledged write must be seen by a later read (spec 4.2), and must not clear what this sets (2.9).
            Packet::DataRequest(r) => overlaps(r.range()),
            Packet::OutOfSync(r) => overlaps(r.range()),
            Packet::Bitmap(_) | Packet::CompressedBitmap(_) => !dev.queue.peer_writing.is_empty(),
            _ => false,
        }
    }
}

impl Node {
    /// A closed epoch that is not on stable storage yet holds back all that follows it (spec 2.6, methods flush and
    /// drain).
    ///
    /// But not writes on disks without a volatile cache, if what of an older epoch is not on our disk yet is not
    /// completed by the peer either ([`Told`](super::Told)): then no later write depends on it.
    fn blocked_by_epoch(&self, peer: NodeId, packet: &Packet) -> bool {
        let epochs = &self.connections[peer].epochs;
        if !epochs.holds_back() {
            return false;
        }
        let write = changes_data(packet) || matches!(packet, Packet::Barrier(_));
        if !write {
            // A read must not overtake writes, nor the state before it.
            return true;
        }
        self.devices.values().any(Device::needs_flushes) || epochs.is_trusted()
    }
}

impl Connection {
    /// What the peer has us do at once is bounded by `max-buffers`, as in the reference.
    fn peer_has_enough(&self, packet: &Packet) -> bool {
        let more = match packet {
            Packet::Data(w) => w.size.0,
            Packet::DataRequest(r) => r.size.0,
            Packet::Trim(_) | Packet::Zeroes(_) => 0,
            _ => return false,
        };
        self.working > 0 && self.working + more + PACKET_COST > u64::from(self.cfg.max_buffers) * 4096
    }
}
