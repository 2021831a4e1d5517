//! The queue of a peer's data stream, which is processed strictly in order. Where the reference blocks its receiver,
//! the packets behind wait here; the control stream goes on (`docs/spec/data-path-and-resync.md` 2).
//!
//! Owns [`DataQueue`].

use super::PACKET_COST;
use crate::Resource;
use crate::api::Segments;
use crate::device::Device;
use std::collections::VecDeque;
use units::{Instant, NodeId, SectorRange, VolumeNr};
use wire::Packet;

/// A packet of the data stream that waits for what is before it.
#[derive(Debug)]
pub(crate) struct HeldPacket {
    came: Instant,
    volume: VolumeNr,
    packet: Packet,
    payload: Segments,
}

/// The packets of one peer's data stream that wait.
#[derive(Debug, Default)]
pub(crate) struct DataQueue {
    packets: VecDeque<HeldPacket>,
    bytes: u64,
    /// When the one that is worked on came.
    came: Instant,
    /// Since when the first of them waits for a sequence number before its own, of two Primaries' writes.
    number_missing: Option<Instant>,
}

impl DataQueue {
    fn push(&mut self, packet: HeldPacket) {
        self.bytes += packet.cost();
        self.packets.push_back(packet);
    }

    /// The first one, to be looked at: it [goes on](Self::goes_on), or [waits](Self::waits).
    fn take(&mut self) -> Option<HeldPacket> {
        self.packets.pop_front()
    }

    /// It must wait, and perhaps for a sequence number that is missing.
    fn waits(&mut self, packet: HeldPacket, number_missing: bool, now: Instant) {
        self.number_missing = number_missing.then(|| self.number_missing.unwrap_or(now));
        self.packets.push_front(packet);
    }

    fn goes_on(&mut self, packet: &HeldPacket) {
        self.number_missing = None;
        self.bytes -= packet.cost();
        self.came = packet.came;
    }

    /// The link is gone: what has waited on it.
    pub(super) fn link_lost(&mut self) -> impl Iterator<Item = Segments> + use<> {
        let packets = std::mem::take(self).packets;
        packets.into_iter().map(|packet| packet.payload)
    }

    /// The first one, if it is about this volume.
    pub(super) fn first_about(&self, volume: VolumeNr) -> Option<&Packet> {
        self.packets.front().filter(|first| first.volume == volume).map(|first| &first.packet)
    }

    /// The first one, and since when it waits for a number.
    pub(super) fn waiting_for_number(&self) -> Option<(VolumeNr, &Packet)> {
        self.packets.front().filter(|_| self.number_missing.is_some()).map(|first| (first.volume, &first.packet))
    }

    /// Since when the first one waits for a number.
    pub(crate) fn number_missing(&self) -> Option<Instant> {
        self.number_missing
    }

    /// When the one that is worked on came.
    pub(super) fn came(&self) -> Instant {
        self.came
    }

    /// Memory that they take.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Does the sum say what the packets are?
    pub(crate) fn adds_up(&self) -> bool {
        self.bytes == self.packets.iter().map(HeldPacket::cost).sum()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.packets.is_empty()
    }
}

/// The blocks that a write, a discard or zeroes change, and its sequence number; `None` if it changes no data.
pub(super) fn change_of(packet: &Packet) -> Option<(Option<SectorRange>, u32)> {
    match packet {
        Packet::Data(w) => Some((w.range(), w.seq)),
        Packet::Trim(w) | Packet::Zeroes(w) => Some((w.range(), w.seq)),
        _ => None,
    }
}

/// Does it change data?
fn changes_data(packet: &Packet) -> bool {
    change_of(packet).is_some()
}

impl HeldPacket {
    /// Memory that it takes, in bytes.
    fn cost(&self) -> u64 {
        let inside = match &self.packet {
            Packet::Bitmap(words) => 8 * words.len(),
            Packet::CompressedBitmap(code) => code.code_len(),
            _ => 0,
        };
        self.payload.len() + inside as u64 + PACKET_COST
    }
}

impl Resource {
    /// A data-stream packet: processed now, or behind those that already wait.
    pub(crate) fn queue_data(&mut self, i: NodeId, volume: VolumeNr, packet: Packet, payload: Segments) {
        let came = self.now;
        self.connections[i].held.push(HeldPacket { came, volume, packet, payload });
        self.pump_peer(i);
    }

    /// Processes held packets as far as possible.
    pub(crate) fn pump_peer(&mut self, i: NodeId) {
        while self.connections[i].link.is_some() {
            let Some(next) = self.connections[i].held.take() else { break };
            let blocked = self.blocked_by_epoch(i, &next.packet);
            if !blocked {
                self.begin_generation_for(next.volume, &next.packet);
            }
            if blocked || self.must_wait(i, next.volume, &next.packet) {
                let missing = self.number_is_missing(i, next.volume, &next.packet);
                self.connections[i].held.waits(next, missing, self.now);
                break;
            }
            self.connections[i].held.goes_on(&next);
            if let Some(d) = self.device_index(next.volume) {
                self.devices[d].recheck |= changes_data(&next.packet);
            }
            self.data_packet(i, next.volume, next.packet, next.payload);
        }
    }

    /// The first write of a Primary without a disk: from now on this copy is newer than the one it had.
    fn begin_generation_for(&mut self, volume: VolumeNr, packet: &Packet) {
        let Some(d) = self.device_index(volume) else { return };
        if changes_data(packet) && self.devices[d].generation_with_first_write {
            self.new_generation(d);
            self.tell_uuids(d, wire::UuidFlags::NONE);
        }
    }

    /// A closed epoch that is not on stable storage yet holds back all that follows it (spec 2.6, methods flush and
    /// drain).
    ///
    /// But not writes on disks without a volatile cache, if what of an older epoch is not on our disk yet is not
    /// completed by the peer either ([`Told`](super::Told)): then no later write depends on it.
    fn blocked_by_epoch(&self, i: NodeId, packet: &Packet) -> bool {
        let epochs = &self.connections[i].epochs;
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

    /// Packets that need quiet: the range must not be written by something older.
    fn must_wait(&self, i: NodeId, volume: VolumeNr, packet: &Packet) -> bool {
        let Some(d) = self.device_index(volume) else { return false };
        let dev = &self.devices[d];
        let overlaps = |range: Option<SectorRange>| {
            range.is_some_and(|r| dev.peer_writing.overlapping(r).next().is_some() || self.resync_writing(d, r))
        };
        if self.peer_has_enough(i, packet) {
            return true;
        }
        // Data of a generation that is not on disk yet (a Primary without a disk leaves it to us to make one).
        let unsettled = dev.generation_in_flight();
        if let Some((range, seq)) = change_of(packet) {
            return unsettled || overlaps(range) || self.must_wait_for_local(i, d, range, seq);
        }
        match packet {
            // An acknowledged write must be seen by a later read (spec 4.2), and must not clear what this sets (2.9).
            Packet::DataRequest(r) => overlaps(r.range()),
            Packet::OutOfSync(r) => overlaps(r.range()),
            Packet::Bitmap(_) | Packet::CompressedBitmap(_) => !dev.peer_writing.is_empty(),
            _ => false,
        }
    }

    /// What the peer has us do at once is bounded by `max-buffers`, as in the reference.
    fn peer_has_enough(&self, i: NodeId, packet: &Packet) -> bool {
        let more = match packet {
            Packet::Data(w) => w.size.0,
            Packet::DataRequest(r) => r.size.0,
            Packet::Trim(_) | Packet::Zeroes(_) => 0,
            _ => return false,
        };
        let c = &self.connections[i];
        c.working > 0 && c.working + more + PACKET_COST > u64::from(c.cfg.max_buffers) * 4096
    }
}
