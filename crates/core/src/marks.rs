//! The bits of a peer: which blocks may differ from its copy.

use crate::Resource;
use crate::device::Device;
use crate::peer_device::Keeps;
use units::{NodeId, SectorRange, VolumeNr};

impl Resource {
    /// The peer wrote what it did not send.
    pub(crate) fn peer_out_of_sync(&mut self, peer: NodeId, volume: VolumeNr, r: wire::BlockRange) {
        let Some(range) = r.range() else { return };
        let size = self.node.devices[volume].size;
        if range.start >= size {
            return;
        }
        let clipped = SectorRange { start: range.start, end: range.end.min(size) };
        self.mark_out_of_sync(peer, volume, clipped);
        self.mark_overtaken(peer, volume, clipped);
    }

    /// Bits for this peer: something of the range may differ.
    pub(crate) fn mark_out_of_sync(&mut self, peer: NodeId, volume: VolumeNr, range: SectorRange) -> u64 {
        let n = self.node.devices[volume].bitmap_mut(peer).map_or(0, |(b, slot)| b.set_out_of_sync(slot, range));
        self.out.status_changed |= n > 0;
        if n > 0 && self.node.connections[peer].peer_devices[volume].lasting.keeps == Keeps::Unheard {
            // The peer will not have meant this.
            self.node.connections[peer].peer_devices[volume].lasting.keeps = Keeps::Doubted;
        }
        n
    }
}

impl Device {
    /// Bits for this peer: the fully covered blocks of the range are equal.
    pub(crate) fn clear_out_of_sync(&mut self, peer: NodeId, range: SectorRange) -> u64 {
        self.bitmap_mut(peer).map_or(0, |(b, slot)| b.set_in_sync(slot, range))
    }
}
