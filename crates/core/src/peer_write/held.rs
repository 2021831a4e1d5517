//! Packets of a peer's data stream that wait for what came before them: [`DataQueue`], one per connection. None
//! overtakes another.

use crate::api::Segments;
use crate::peer_write::write::PACKET_COST;
use std::collections::VecDeque;
use units::{Instant, SectorRange, VolumeNr};
use wire::Packet;

/// A packet of the data stream that waits for what is before it.
#[derive(Debug)]
pub(crate) struct HeldPacket {
    pub(super) came: Instant,
    pub(super) volume: VolumeNr,
    pub(super) packet: Packet,
    pub(super) payload: Segments,
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
    /// One comes behind others. If there are none it is looked at as if it were [taken](Self::take).
    pub(super) fn push(&mut self, packet: HeldPacket) {
        self.bytes += packet.cost();
        self.packets.push_back(packet);
    }

    /// The first one, to be looked at: it [goes on](Self::goes_on), or [waits](Self::waits).
    pub(super) fn take(&mut self) -> Option<HeldPacket> {
        let first = self.packets.pop_front()?;
        self.bytes -= first.cost();
        Some(first)
    }

    /// It must wait, and perhaps for a sequence number that is missing.
    pub(super) fn waits(&mut self, packet: HeldPacket, number_missing: bool, now: Instant) {
        self.number_missing = number_missing.then(|| self.number_missing.unwrap_or(now));
        self.bytes += packet.cost();
        self.packets.push_front(packet);
    }

    pub(super) fn goes_on(&mut self, packet: &HeldPacket) {
        self.number_missing = None;
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
pub(crate) fn changes_data(packet: &Packet) -> bool {
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
