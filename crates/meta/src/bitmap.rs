//! The bitmap area: which page of 4096 bytes holds which bits (`docs/spec/on-disk-format.md` 4).
//!
//! On disk the slots are interleaved by 32-bit little-endian words: word `b / 32 * slots + slot` holds bit `b` of
//! `slot`. In memory each slot is a [`BitSet`] over [`BitmapArea::bits`] bits.

use crate::activity_log::EXTENT_BYTES;
use crate::layout::Geometry;
use crate::{BLOCK_LEN, Block};
use std::ops::Range;
use units::{BitSet, Sector, SectorRange};

/// 32-bit words in a page.
const PAGE_WORDS: u64 = (BLOCK_LEN / 4) as u64;

/// A page without a bit that is set.
static ZEROES: Block = [0; BLOCK_LEN];

/// The mapping between bits and pages for one device size.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BitmapArea {
    geometry: Geometry,
    size: Sector,
}

/// Which pages must be written, and how urgently (`docs/spec/on-disk-format.md` 4.3).
#[derive(Clone, Debug)]
pub struct DirtyPages {
    /// Bits were set since the page was last written: must go out before the extent leaves the activity log.
    set: BitSet,
    /// Bits were only cleared: may go out at leisure.
    cleared: BitSet,
}

impl BitmapArea {
    /// The bitmap of a data device of `size` sectors.
    #[must_use]
    pub const fn new(geometry: Geometry, size: Sector) -> BitmapArea {
        BitmapArea { geometry, size }
    }

    /// Slots.
    #[must_use]
    pub const fn slots(&self) -> u32 {
        self.geometry.slots()
    }

    /// The device size that it is for.
    #[must_use]
    pub const fn size(&self) -> Sector {
        self.size
    }

    /// Valid bits of each slot.
    #[must_use]
    pub const fn bits(&self) -> u64 {
        self.geometry.bits(self.size)
    }

    /// Bytes that the bitmap needs on disk, whole pages.
    #[must_use]
    pub const fn bytes(&self) -> u64 {
        self.geometry.bitmap_bytes(self.size)
    }

    /// Pages that the bitmap needs on disk.
    #[must_use]
    pub const fn pages(&self) -> u64 {
        self.bytes() / BLOCK_LEN as u64
    }

    /// The bits that `sectors` touches, for "may differ from the peer"; clipped to the device.
    #[must_use]
    pub fn touched(&self, sectors: SectorRange) -> Range<u64> {
        let per_bit = self.geometry.sectors_per_bit();
        let end = sectors.end.0.div_ceil(per_bit).min(self.bits());
        (sectors.start.0 / per_bit).min(end)..if sectors.is_empty() { sectors.start.0 / per_bit } else { end }
    }

    /// The bits that `sectors` covers wholly, for "is in sync"; a last partial block counts if its end is the device's.
    #[must_use]
    pub fn covered(&self, sectors: SectorRange) -> Range<u64> {
        let per_bit = self.geometry.sectors_per_bit();
        let start = sectors.start.0.div_ceil(per_bit);
        let end = if sectors.end >= self.size { self.bits() } else { sectors.end.0 / per_bit };
        start..end.max(start)
    }

    /// The sectors that bits `bits` stand for, clipped to the device.
    #[must_use]
    pub fn sectors_of(&self, bits: Range<u64>) -> SectorRange {
        let per_bit = self.geometry.sectors_per_bit();
        let clip = |bit: u64| Sector(bit.saturating_mul(per_bit)).min(self.size);
        SectorRange { start: clip(bits.start), end: clip(bits.end) }
    }

    /// The bits of an activity log extent, clipped to the device (empty beyond it).
    #[must_use]
    pub fn extent_bits(&self, extent: u32) -> Range<u64> {
        let bits = self.extent_bits_unclipped(extent);
        bits.start.min(self.bits())..bits.end.min(self.bits())
    }

    /// The pages that hold `bits` of any slot.
    #[must_use]
    pub fn pages_of(&self, bits: Range<u64>) -> Range<u64> {
        if bits.is_empty() {
            return 0..0;
        }
        let slots = u64::from(self.slots());
        bits.start / 32 * slots / PAGE_WORDS..((bits.end - 1) / 32 * slots + slots - 1) / PAGE_WORDS + 1
    }

    /// The pages that hold `bits` of one slot.
    pub fn pages_of_slot(&self, slot: u32, bits: Range<u64>) -> impl Iterator<Item = u64> + use<> {
        // Neighbouring words of a slot are `slots` (< 1024) words apart: no page between the first and the last is free
        // of them.
        let slots = u64::from(self.slots());
        let page = |bit: u64| (bit / 32 * slots + u64::from(slot)) / PAGE_WORDS;
        if bits.is_empty() { 0..0 } else { page(bits.start)..page(bits.end - 1) + 1 }
    }

    /// Fills `page` from the bits of all slots; bits past the device are 0. `bits` has one set per slot, each over
    /// [`bits`](Self::bits) bits.
    pub fn store(&self, page: u64, bits: &[BitSet], out: &mut Block) {
        self.store_with(page, bits, None, out);
    }

    /// The same, but all slots get what is set in this one, too.
    pub fn store_with(&self, page: u64, bits: &[BitSet], coming: Option<usize>, out: &mut Block) {
        assert_eq!(bits.len() as u64, u64::from(self.slots()), "one bit set for each slot");
        if let [only] = bits {
            let words = only.words();
            let first = (page * PAGE_WORDS / 2) as usize;
            for (i, chunk) in out.chunks_exact_mut(8).enumerate() {
                chunk.copy_from_slice(&words.get(first + i).copied().unwrap_or(0).to_le_bytes());
            }
            return;
        }
        let mut at = self.first_word(page);
        for chunk in out.chunks_exact_mut(4) {
            let word =
                |slot: usize| bits[slot].words().get(at.half / 2).map_or(0, |w| (w >> (at.half % 2 * 32)) as u32);
            let word = word(at.slot) | coming.map_or(0, word);
            chunk.copy_from_slice(&word.to_le_bytes());
            at.step(bits.len());
        }
    }

    /// Takes the bits of all slots from `page`, replacing what they held; bits past the device are ignored.
    pub fn load(&self, page: u64, data: &Block, bits: &mut [BitSet]) {
        self.merge(page, data, bits, |_, new| new);
    }

    /// As [`load`](Self::load), but only sets bits: what is set in memory stays set.
    pub fn load_or(&self, page: u64, data: &Block, bits: &mut [BitSet]) {
        // Most pages of a large volume are such.
        if *data != ZEROES {
            self.merge(page, data, bits, |old, new| old | new);
        }
    }

    fn merge(&self, page: u64, data: &Block, bits: &mut [BitSet], f: impl Fn(u32, u32) -> u32) {
        assert_eq!(bits.len() as u64, u64::from(self.slots()), "one bit set for each slot");
        let mut at = self.first_word(page);
        for chunk in data.chunks_exact(4) {
            let set = &mut bits[at.slot];
            if let Some(&old) = set.words().get(at.half / 2) {
                let shift = at.half % 2 * 32;
                let new = u32::from_le_bytes([chunk[0], chunk[1], chunk[2], chunk[3]]);
                let new = u64::from(f((old >> shift) as u32, new)) << shift;
                let word = old & !(0xFFFF_FFFF << shift) | new;
                if word != old {
                    set.put_word(at.half / 2, word);
                }
            }
            at.step(bits.len());
        }
    }

    /// Sets, in every slot, the bits of an extent in the bytes of `page` as they are on disk, which is what replaying
    /// the activity log does (`docs/spec/on-disk-format.md` 3.10). Whole extents, also past the device's last bit.
    /// Returns how many bits became set.
    pub fn mark_extent_on_page(&self, extent: u32, page: u64, data: &mut Block) -> u64 {
        let slots = u64::from(self.slots());
        let bits = self.extent_bits_unclipped(extent);
        let words = bits.start / 32 * slots..((bits.end - 1) / 32 + 1) * slots;
        let mask = if bits.end - bits.start < 32 {
            ((1u32 << (bits.end - bits.start)) - 1) << (bits.start % 32)
        } else {
            u32::MAX
        };
        let from = words.start.clamp(page * PAGE_WORDS, (page + 1) * PAGE_WORDS) - page * PAGE_WORDS;
        let to = words.end.clamp(page * PAGE_WORDS, (page + 1) * PAGE_WORDS) - page * PAGE_WORDS;
        let mut newly = 0;
        for chunk in data[from as usize * 4..to as usize * 4].chunks_exact_mut(4) {
            let old = u32::from_le_bytes([chunk[0], chunk[1], chunk[2], chunk[3]]);
            newly += u64::from((mask & !old).count_ones());
            chunk.copy_from_slice(&(old | mask).to_le_bytes());
        }
        newly
    }

    /// The pages that replaying `extent` changes, clipped to the bitmap (empty if the extent is wholly beyond it).
    #[must_use]
    pub fn pages_of_extent(&self, extent: u32) -> Range<u64> {
        let pages = self.pages_of(self.extent_bits_unclipped(extent));
        pages.start.min(self.pages())..pages.end.min(self.pages())
    }

    /// The extents that may have bits on `page`.
    #[must_use]
    pub fn extents_on_page(&self, page: u64) -> Range<u32> {
        let per_extent = EXTENT_BYTES / u64::from(self.geometry.bytes_per_bit());
        let slots = u64::from(self.slots());
        let first_bit = page * PAGE_WORDS / slots * 32;
        let end_bit = ((page + 1) * PAGE_WORDS).div_ceil(slots) * 32;
        let clip = |extent: u64| u32::try_from(extent).unwrap_or(u32::MAX);
        clip(first_bit / per_extent)..clip(end_bit.div_ceil(per_extent))
    }

    fn extent_bits_unclipped(&self, extent: u32) -> Range<u64> {
        let per_extent = EXTENT_BYTES / u64::from(self.geometry.bytes_per_bit());
        u64::from(extent) * per_extent..(u64::from(extent) + 1) * per_extent
    }

    fn first_word(&self, page: u64) -> WordAt {
        let word = page * PAGE_WORDS;
        let slots = u64::from(self.slots());
        WordAt { slot: (word % slots) as usize, half: (word / slots) as usize }
    }
}

/// A walk over the 32-bit words of a page: slot, and number of the 32-bit word in that slot.
struct WordAt {
    slot: usize,
    half: usize,
}

impl WordAt {
    fn step(&mut self, slots: usize) {
        self.slot += 1;
        if self.slot == slots {
            self.slot = 0;
            self.half += 1;
        }
    }
}

impl DirtyPages {
    /// All pages clean.
    #[must_use]
    pub fn new(pages: u64) -> DirtyPages {
        DirtyPages { set: BitSet::new(pages), cleared: BitSet::new(pages) }
    }

    /// Bits were set on these pages.
    pub fn note_set(&mut self, pages: Range<u64>) {
        self.set.set_range(pages.start, pages.end);
    }

    /// Bits were cleared on these pages.
    pub fn note_cleared(&mut self, pages: Range<u64>) {
        self.cleared.set_range(pages.start, pages.end);
    }

    /// Were bits of this page cleared since it was last taken?
    #[must_use]
    pub fn is_cleared(&self, page: u64) -> bool {
        self.cleared.contains(page)
    }

    /// Some page that [`take_any`](Self::take_any) would take has bits that were cleared.
    #[must_use]
    pub fn next_cleared(&self) -> Option<u64> {
        self.cleared.next_set(0..self.cleared.len())
    }

    /// Every page must be written.
    pub fn note_all(&mut self) {
        self.set.set_all();
    }

    /// Takes the next page at or after `from`, below `to`, that must be written because bits were set on it. The page
    /// is clean from now on: the caller emits it now, and notes it again if writing it fails.
    pub fn take_set(&mut self, from: u64, to: u64) -> Option<u64> {
        let page = self.set.next_set(from..to)?;
        self.clean(page);
        Some(page)
    }

    /// As [`take_set`](Self::take_set), for pages changed in any way, in the whole bitmap.
    pub fn take_any(&mut self, from: u64) -> Option<u64> {
        let page = match (self.set.next_set(from..u64::MAX), self.cleared.next_set(from..u64::MAX)) {
            (Some(a), Some(b)) => a.min(b),
            (a, b) => a.or(b)?,
        };
        self.clean(page);
        Some(page)
    }

    /// Must page `page` be written before its extents leave the activity log?
    #[must_use]
    pub fn is_set(&self, page: u64) -> bool {
        self.set.contains(page)
    }

    /// Is there a page on which bits were set, and that was not taken since?
    #[must_use]
    pub fn any_set(&self) -> bool {
        !self.set.is_empty()
    }

    /// Pages changed in any way.
    #[must_use]
    pub fn count(&self) -> u64 {
        let both = self.set.words().iter().zip(self.cleared.words());
        both.map(|(a, b)| u64::from((a | b).count_ones())).sum()
    }

    /// Is every page clean?
    #[must_use]
    pub fn is_clean(&self) -> bool {
        self.set.is_empty() && self.cleared.is_empty()
    }

    /// Changes the number of pages; new ones are clean.
    pub fn resize(&mut self, pages: u64) {
        self.set.resize(pages, false);
        self.cleared.resize(pages, false);
    }

    /// Takes this page.
    pub fn take(&mut self, page: u64) {
        self.clean(page);
    }

    fn clean(&mut self, page: u64) {
        self.set.clear_range(page, page + 1);
        self.cleared.clear_range(page, page + 1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::AlShape;
    use proptest::prelude::*;
    use units::ByteLen;

    fn area(slots: u32, bytes_per_bit: u32, sectors: u64) -> BitmapArea {
        BitmapArea::new(Geometry::new(slots, bytes_per_bit, AlShape::DEFAULT).unwrap(), Sector(sectors))
    }

    fn sectors(start: u64, n: u64) -> SectorRange {
        SectorRange::new(Sector(start), ByteLen(n * 512)).unwrap()
    }

    #[test]
    fn bits_of_sectors() {
        let a = area(1, 4096, 103);
        assert_eq!(a.bits(), 13);
        assert_eq!((a.touched(sectors(7, 2)), a.covered(sectors(7, 2))), (0..2, 1..1));
        assert_eq!((a.touched(sectors(8, 16)), a.covered(sectors(8, 16))), (1..3, 1..3));
        assert_eq!((a.touched(sectors(96, 7)), a.covered(sectors(96, 7))), (12..13, 12..13));
        assert_eq!(a.covered(sectors(97, 6)), 13..13, "the last block is only covered from its start");
        assert!(a.touched(sectors(9, 0)).is_empty() && a.touched(sectors(500, 8)).is_empty());
        assert_eq!(a.sectors_of(12..13), sectors(96, 7));
    }

    #[test]
    fn pages_and_extents() {
        let a = area(3, 4096, 2096888);
        assert_eq!(a.pages(), 24);
        // 1024 words of a page over 3 slots: 341 words, so 10912 bits, and a third.
        assert_eq!(a.pages_of(0..10912), 0..1);
        assert_eq!(a.pages_of(10912..10913), 0..2);
        assert_eq!(a.pages_of_slot(0, 10912..10913).collect::<Vec<_>>(), [0]);
        assert_eq!(a.pages_of_slot(1, 10912..10913).collect::<Vec<_>>(), [1]);
        assert_eq!(a.extent_bits(255), 261120..262111);
        assert!(a.extent_bits(256).is_empty() && a.pages_of_extent(300).is_empty());
        assert_eq!(a.pages_of_extent(255), 23..24);
    }

    #[test]
    fn dirty_pages() {
        let mut d = DirtyPages::new(10);
        d.note_cleared(2..4);
        d.note_set(3..6);
        assert_eq!((d.count(), d.is_set(2), d.is_set(3)), (4, false, true));
        assert_eq!(d.take_set(0, 4), Some(3));
        assert_eq!(d.take_set(0, 4), None);
        assert_eq!(d.take_any(0), Some(2));
        assert_eq!((d.take_any(3), d.take_any(5), d.take_any(0)), (Some(4), Some(5), None));
        assert!(d.is_clean());
        d.note_all();
        d.resize(12);
        assert_eq!((d.count(), d.is_set(11)), (10, false));
    }

    proptest! {
        /// Storing puts each bit where the formula says; loading brings it back; pages named are the pages changed.
        #[test]
        fn pages_hold_the_bits(
            slots in 1u32..=31, shift in 12u32..=20, size in 1u64..4_000_000, from in any::<u64>(), len in 1u64..3000,
            slot in any::<u32>(),
        ) {
            let a = area(slots, 1 << shift, size);
            let from = from % a.bits();
            let to = (from + len).min(a.bits());
            let slot = slot % slots;
            let mut sets = vec![BitSet::new(a.bits()); slots as usize];
            sets[slot as usize].set_range(from, to);
            let mut again = vec![BitSet::new(a.bits()); slots as usize];
            let named: Vec<u64> = a.pages_of_slot(slot, from..to).collect();
            let all = a.pages_of(from..to);
            prop_assert!(all.end <= a.pages() && named.iter().all(|p| all.contains(p)));
            let mut set = 0;
            for page in 0..a.pages() {
                let mut out = [0xAA; BLOCK_LEN];
                a.store(page, &sets, &mut out);
                let ones: u32 = out.iter().map(|b| b.count_ones()).sum();
                prop_assert!(ones == 0 || named.contains(&page));
                set += u64::from(ones);
                a.load_or(page, &out, &mut again);
            }
            prop_assert_eq!(set, to - from);
            prop_assert!(again == sets);
        }
    }
}
