//! How many bits of each slot are set, page by page: for who looks at a bitmap and does not keep it.

use crate::bitmap::BitmapArea;
use crate::dump::Run;
use crate::{BLOCK_LEN, Block};

/// 32-bit words in a page.
const PAGE_WORDS: u64 = (BLOCK_LEN / 4) as u64;

/// Counts set bits of the slots of a bitmap. Bits past the device's last one do not count.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Tally {
    area: BitmapArea,
    slots: Vec<u64>,
}

impl Tally {
    /// Nothing is counted yet.
    #[must_use]
    pub fn new(area: BitmapArea) -> Tally {
        Tally { area, slots: vec![0; area.slots() as usize] }
    }

    /// Adds what is set on a page. One past the bitmap's end has nothing that counts.
    pub fn add(&mut self, page: u64, data: &Block) {
        if data.iter().all(|byte| *byte == 0) {
            return;
        }
        let slots = self.slots.len() as u64;
        let word = page.saturating_mul(PAGE_WORDS);
        let (mut slot, mut half) = ((word % slots) as usize, word / slots);
        for chunk in data.as_chunks::<4>().0 {
            let bits = u32::from_le_bytes(*chunk);
            if bits != 0 {
                self.slots[slot] += u64::from((bits & self.valid(half)).count_ones());
            }
            slot += 1;
            if slot == self.slots.len() {
                (slot, half) = (0, half + 1);
            }
        }
    }

    /// Which bits of the 32 of a slot's word there are.
    fn valid(&self, half: u64) -> u32 {
        match self.area.bits().saturating_sub(half.saturating_mul(32)) {
            0 => 0,
            left @ 1..32 => (1 << left) - 1,
            _ => u32::MAX,
        }
    }

    /// Bits that are set, by slot.
    #[must_use]
    pub fn by_slot(&self) -> &[u64] {
        &self.slots
    }
}

/// Bits that are set in a slot of a dump, of the first `bits`.
#[must_use]
pub fn of_runs(runs: &[Run], bits: u64) -> u64 {
    let (mut at, mut set) = (0u64, 0u64);
    for run in runs {
        let whole = run.count.min(bits.saturating_sub(at) / 64);
        set += whole * u64::from(run.value.count_ones());
        at += whole * 64;
        if whole < run.count {
            // The last 64 are only partly there.
            let left = bits - at;
            return set + u64::from((run.value & ((1u64 << left) - 1)).count_ones());
        }
    }
    set
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::{AlShape, Geometry};
    use proptest::prelude::*;
    use units::{BitSet, Sector};

    proptest! {
        /// What is counted is what is loaded, whatever is on the pages.
        #[test]
        fn counts_what_a_bitmap_holds(
            slots in 1u32..=31, size in 1u64..2_000_000, seed in any::<u64>(), zeroes in any::<bool>(),
        ) {
            let area = BitmapArea::new(Geometry::new(slots, 4096, AlShape::DEFAULT).unwrap(), Sector(size));
            let mut sets = vec![BitSet::new(area.bits()); slots as usize];
            let mut tally = Tally::new(area);
            for page in 0..area.pages() {
                let mut random = seed ^ page.wrapping_mul(0x9E37_79B9_7F4A_7C15);
                let mut data = [0u8; BLOCK_LEN];
                for byte in data.iter_mut().skip(if zeroes { BLOCK_LEN - 9 } else { 0 }) {
                    random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                    *byte = (random >> 56) as u8;
                }
                tally.add(page, &data);
                area.load_or(page, &data, &mut sets);
            }
            let loaded: Vec<u64> = sets.iter().map(BitSet::count).collect();
            prop_assert_eq!(tally.by_slot(), loaded);
        }

        #[test]
        fn runs_count_up_to_the_last_bit(
            counts in proptest::collection::vec((1u64..5, any::<u64>()), 0..6), bits in 0u64..1500,
        ) {
            let runs: Vec<Run> = counts.iter().map(|&(count, value)| Run { count, value }).collect();
            let words = runs.iter().flat_map(|run| std::iter::repeat_n(run.value, run.count as usize));
            let set = words.flat_map(|word| (0..64).map(move |bit| word >> bit & 1)).take(bits as usize).sum::<u64>();
            prop_assert_eq!(of_runs(&runs, bits), set);
        }
    }

    #[test]
    fn a_run_that_never_ends_is_counted_at_once() {
        let runs = [Run { count: u64::MAX, value: u64::MAX }, Run { count: u64::MAX, value: 1 }];
        assert_eq!(of_runs(&runs, u64::MAX), u64::MAX);
        assert_eq!(of_runs(&runs, 65), 65);
    }
}
