//! How data generations move through a v09 superblock (`docs/spec/on-disk-format.md` 5.3). Towards 8.4 peers they move
//! by the rules of `core::decide::uuid84`, in either format.
//!
//! Pure changes of the model. *When* they happen, and that the superblock is durable before the first write of a new
//! generation, is the caller's. Random values come from the caller too.

use crate::superblock::{Superblock, Version};
use units::{Generation, NodeId, NodeMask};

/// Where a configured peer's data is, for [`Superblock::rotate_current`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PeerDisk {
    /// It never has a disk, and no bitmap here.
    DisklessWithoutBitmap,
    /// Its disk takes part: it gets the writes.
    Accessible,
    /// It does not get the writes from now on.
    NotAccessible,
}

/// The arguments of [`Superblock::rotate_current`] that [`Superblock::receive_new_current`] passes on.
#[derive(Clone, Copy, Debug)]
pub struct Rotation<'a> {
    /// Configured peers.
    pub configured: &'a [(NodeId, PeerDisk)],
    /// Nodes whose slot is shared with a configured peer.
    pub day0_shared: NodeMask,
    /// Write sequence position of the resource.
    pub dagtag: u64,
}

/// The generations of the source of a resync, for [`Superblock::finish_as_target`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SourceGenerations {
    /// Current.
    pub current: Generation,
    /// Bitmap UUIDs by node id.
    pub bitmaps: [Generation; NodeId::COUNT],
    /// History, youngest first.
    pub history: [Generation; 32],
}

/// Rotation in v09, as DRBD 9.2.19 and 9.3.3 do it.
impl Superblock {
    /// Puts `g` into the history, unless it is 0, "just created", the current one, or known already. `of` is the node
    /// whose bitmap UUID it was, which does not count as knowing it.
    pub fn push_history(&mut self, g: Generation, of: Option<NodeId>) {
        let g = g.base();
        if g.is_none() || g == Generation::JUST_CREATED || g.same(self.current) {
            return;
        }
        if self.history[0].is_none() {
            self.history[0] = g;
            return;
        }
        let others = self.peers.iter().enumerate().filter(|(i, _)| of.is_none_or(|of| of.index() != *i));
        let known = others.map(|(_, p)| p.bitmap_uuid).chain(self.history).any(|x| x.same(g));
        if !known {
            self.history.copy_within(0..31, 1);
            self.history[0] = g;
        }
    }

    /// This superblock with a note of a generation of which peers are to hear. It stands at the head of the history,
    /// and bit 0, which means nothing there, says that it is no past one yet. To DRBD it is one.
    #[must_use]
    pub fn with_note(&self, g: Generation) -> Superblock {
        let mut noted = self.clone();
        noted.history.copy_within(0..31, 1);
        noted.history[0] = g.with_primary_bit(true);
        noted
    }

    /// Takes that note out of the history, if there is one.
    pub fn take_note(&mut self) -> Option<Generation> {
        let noted = self.history[0];
        if self.version() != Version::V09 || noted == noted.base() {
            return None;
        }
        self.history.copy_within(1..32, 0);
        self.history[31] = Generation::NONE;
        Some(noted.base())
    }

    /// Sets a peer's bitmap UUID; the old one goes into the history.
    pub fn set_bitmap_uuid(&mut self, node: NodeId, g: Generation, dagtag: u64) {
        let old = self.peers[node.index()].bitmap_uuid;
        self.put_bitmap_uuid(node.index(), g, dagtag);
        self.push_history(old, Some(node));
    }

    /// The data is about to differ from that of peers that do not get the writes: they are known to have the current
    /// generation (or `fresh`, if that is "just created"). `configured` are the peers other than `own`; `weak` those
    /// that count as not accessible. `day0_shared` are nodes whose slot is shared with a configured peer. Returns the
    /// nodes with a slot that got a new bitmap UUID.
    pub fn rotate_current(
        &mut self,
        own: NodeId,
        configured: &[(NodeId, PeerDisk)],
        weak: NodeMask,
        day0_shared: NodeMask,
        fresh: Generation,
        dagtag: u64,
    ) -> NodeMask {
        let c = if self.current.same(Generation::JUST_CREATED) { fresh } else { self.current };
        let mut changed = NodeMask::default();
        for node in NodeId::all().filter(|&n| n != own) {
            let old = self.peers[node.index()].bitmap_uuid;
            if !old.is_none() && !old.same(c) {
                continue;
            }
            let peer = configured.iter().find(|(n, _)| *n == node);
            let gets_it = match peer {
                Some((_, PeerDisk::DisklessWithoutBitmap)) => false,
                Some((_, disk)) => *disk == PeerDisk::NotAccessible || weak.contains(node),
                None => !day0_shared.contains(node),
            };
            if gets_it {
                self.put_bitmap_uuid(node.index(), c, dagtag);
                if !old.same(c) && self.peers[node.index()].slot.is_some() {
                    changed.insert(node);
                }
            }
        }
        changed
    }

    /// Makes `random` the current generation after [`rotate_current`](Self::rotate_current) returned `rotated`. Nothing
    /// happens (false) if no peer got a new bitmap UUID, except in the day-0 state: a real current generation while all
    /// history and bitmap UUIDs were 0 before (`was_day0`).
    pub fn new_current(&mut self, random: u64, primary: bool, rotated: NodeMask, was_day0: bool) -> bool {
        if rotated == NodeMask::default() && !was_day0 {
            return false;
        }
        self.current = Generation(random).with_primary_bit(primary);
        true
    }

    /// The Primary announced a new current generation, and we are not the target of a resync. `rotate` is given if our
    /// disk is UpToDate.
    pub fn receive_new_current(&mut self, own: NodeId, new: Generation, weak: NodeMask, rotate: Option<Rotation<'_>>) {
        let old = self.current;
        if let Some(Rotation { configured, day0_shared, dagtag }) = rotate {
            self.rotate_current(own, configured, weak, day0_shared, new, dagtag);
        }
        for node in NodeId::all().filter(|node| !weak.contains(*node)) {
            let peer = &mut self.peers[node.index()];
            if peer.slot.is_some() && !peer.bitmap_uuid.is_none() {
                let past = std::mem::replace(&mut peer.bitmap_uuid, new);
                self.push_history(past, Some(node));
            }
        }
        self.current = new;
        self.push_history(old, None);
    }

    /// A resync to here from `source` is done. `source_peers` are the source's bitmap UUIDs by node id, `same_current`
    /// the nodes known to share the source's current generation, `at_start` our current generation when the resync
    /// began. Peers that the source misses something of are missed by us since then.
    pub fn finish_as_target(
        &mut self,
        own: NodeId,
        source: &SourceGenerations,
        same_current: NodeMask,
        at_start: Generation,
        primary: bool,
        dagtag: u64,
    ) {
        for g in source.history.iter().rev().chain(&source.bitmaps) {
            self.push_history(*g, None);
        }
        for i in 0..NodeId::COUNT {
            if i == own.index() || self.peers[i].slot.is_none() {
                continue;
            }
            let same = NodeId::new(i as u8).is_some_and(|n| same_current.contains(n));
            let missed = !source.bitmaps[i].is_none() && !same;
            let Some(node) = NodeId::new(i as u8) else { continue };
            self.set_bitmap_uuid(node, if missed { at_start } else { Generation::NONE }, dagtag);
        }
        // Kernels do not put the target's own generation into its history, unless its source knows it.
        self.current = source.current.with_primary_bit(primary);
    }

    /// A real current generation, and no other known?
    #[must_use]
    pub fn is_day0(&self) -> bool {
        let real = !self.current.is_none() && !self.current.same(Generation::JUST_CREATED);
        real && self.history.iter().chain(self.peers.iter().map(|p| &p.bitmap_uuid)).all(|g| g.is_none())
    }

    /// Lowest bitmap slot that no peer has (`docs/spec/on-disk-format.md` 2.7).
    #[must_use]
    pub fn free_slot(&self) -> Option<u8> {
        (0..self.geometry.slots() as u8).find(|s| self.peers.iter().all(|p| p.slot != Some(*s)))
    }

    /// The lowest slot that belongs to no node.
    #[must_use]
    pub fn vacant_slot(&self) -> Option<u8> {
        let used: Vec<u8> = self.peers.iter().filter_map(|p| p.slot).collect();
        (0..self.geometry.slots() as u8).find(|slot| !used.contains(slot))
    }

    /// Forgets a peer: its record becomes that of an unused node. Its slot's bits are the caller's to replace: by those
    /// of an unassigned slot, or all ones.
    pub fn forget_peer(&mut self, node: NodeId) {
        let unused = self.peers.iter().enumerate().filter(|(i, p)| {
            let is_own = self.node_id.is_some_and(|own| own.index() == *i);
            *i != node.index() && !is_own && p.slot.is_none() && p.flags.0 == 0
        });
        let day0 = unused.map(|(_, p)| (p.bitmap_uuid, p.bitmap_dagtag)).next_back().unwrap_or_default();
        let record = &mut self.peers[node.index()];
        *record = Default::default();
        (record.bitmap_uuid, record.bitmap_dagtag) = day0;
    }

    fn put_bitmap_uuid(&mut self, node: usize, g: Generation, dagtag: u64) {
        let record = &mut self.peers[node];
        record.bitmap_uuid = g;
        record.bitmap_dagtag = if g.0 == 0 { 0 } else { dagtag };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{AlShape, Geometry, Layout, MetaDisk};
    use units::ByteLen;

    /// A note is at the head of the history on disk, as one that DRBD takes for a past one, and not in memory.
    #[test]
    fn a_note_is_written_and_taken_out_again() {
        let g = |n: u64| Generation(n << 4);
        let geometry = Geometry::new(3, 4096, AlShape::DEFAULT).expect("a geometry");
        let layout = Layout::new(MetaDisk::Internal, geometry, ByteLen(64 << 20)).expect("there is room");
        let mut sb = Superblock::fresh(Version::V09, &layout);
        sb.current = g(9);
        (1..=32).for_each(|n| sb.push_history(g(100 + n), None));
        let noted = sb.with_note(g(10).with_primary_bit(true));
        assert_eq!(noted.history[0], g(10).with_primary_bit(true));
        assert_eq!(noted.history[1], sb.history[0]);
        let mut back = Superblock::parse(&noted.emit()).expect("it is a superblock");
        assert_eq!(back.take_note(), Some(g(10)));
        assert_eq!(back.history[..31], sb.history[..31]);
        assert_eq!(back.take_note(), None);
        let mut plain = Superblock::parse(&sb.emit()).expect("it is a superblock");
        assert_eq!(plain.take_note(), None);
        assert_eq!(plain.history, sb.history);
    }
}
