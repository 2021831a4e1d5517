//! Disjoint sector ranges, for "which parts are busy" questions.

use crate::{Sector, SectorRange};
use std::collections::VecDeque;

/// Ranges that may overlap each other, each with a value, found by overlap.
///
/// Look-ups cost O(log n + longest range's neighbours): the longest range ever held bounds how far back a search looks.
/// One sorted ring: a change moves the shorter side, which for the few hundred ranges of requests in flight, and for a
/// resync's long row that grows at one end and shrinks at the other, is cheaper than a tree; and nothing is allocated
/// once it has grown to its largest size.
#[derive(Clone, Debug)]
pub struct IntervalSet<T> {
    /// By start, then id.
    sorted: VecDeque<Interval<T>>,
    longest: u64,
}

#[derive(Clone, Debug)]
struct Interval<T> {
    start: Sector,
    id: u64,
    end: Sector,
    value: T,
}

impl<T> Default for IntervalSet<T> {
    fn default() -> Self {
        IntervalSet { sorted: VecDeque::new(), longest: 0 }
    }
}

impl<T> IntervalSet<T> {
    /// An empty set.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds `range` under the caller's `id`, unique among ranges with the same start. Panics if it is not.
    pub fn insert(&mut self, range: SectorRange, id: u64, value: T) {
        self.longest = self.longest.max(range.end.0 - range.start.0);
        let at = self.position(range.start, id);
        let taken = self.sorted.get(at).is_some_and(|i| (i.start, i.id) == (range.start, id));
        assert!(!taken, "interval {range:?} id {id} inserted twice");
        self.sorted.insert(at, Interval { start: range.start, id, end: range.end, value });
    }

    /// Removes the range inserted with this start and id.
    pub fn remove(&mut self, start: Sector, id: u64) -> Option<T> {
        let at = self.position(start, id);
        if self.sorted.get(at).is_none_or(|i| (i.start, i.id) != (start, id)) {
            return None;
        }
        let value = self.sorted.remove(at)?.value;
        if self.sorted.is_empty() {
            self.longest = 0;
        }
        Some(value)
    }

    /// All entries that share a sector with `range`, in order of start, then id.
    pub fn overlapping(&self, range: SectorRange) -> impl Iterator<Item = (SectorRange, u64, &T)> {
        let from = self.position(Sector(range.start.0.saturating_sub(self.longest)), 0);
        let end = if range.is_empty() { Sector(0) } else { range.end };
        self.sorted
            .range(from..)
            .take_while(move |i| i.start < end)
            .map(|i| (SectorRange { start: i.start, end: i.end }, i.id, &i.value))
            .filter(move |(r, _, _)| r.overlaps(range))
    }

    /// Does any share a sector with `range`?
    #[must_use]
    #[inline]
    pub fn overlaps(&self, range: SectorRange) -> bool {
        // Mostly there are none at all, and that is soon said.
        !self.is_empty() && self.any_overlaps(range)
    }

    fn any_overlaps(&self, range: SectorRange) -> bool {
        let mut at = self.position(Sector(range.start.0.saturating_sub(self.longest)), 0);
        while let Some(there) = self.sorted.get(at).filter(|there| there.start < range.end && !range.is_empty()) {
            if there.end > range.start && there.start < there.end {
                return true;
            }
            at += 1;
        }
        false
    }

    fn position(&self, start: Sector, id: u64) -> usize {
        // By the start alone, which takes half as long: few have the same.
        let mut at = self.sorted.partition_point(|i| i.start < start);
        while self.sorted.get(at).is_some_and(|i| i.start == start && i.id < id) {
            at += 1;
        }
        at
    }

    /// How many ranges it holds.
    #[must_use]
    #[inline]
    pub fn len(&self) -> usize {
        self.sorted.len()
    }

    /// Does it hold none?
    #[must_use]
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.sorted.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn finds_exactly_the_overlapping(
            ranges in proptest::collection::vec((0u64..200, 1u64..30), 0..30), q in (0u64..200, 1u64..30),
        ) {
            let mut set = IntervalSet::new();
            let range = |(s, l): (u64, u64)| SectorRange { start: Sector(s), end: Sector(s + l) };
            for (id, &r) in ranges.iter().enumerate() {
                set.insert(range(r), id as u64, id);
            }
            let mut found: Vec<usize> = set.overlapping(range(q)).map(|(_, _, &v)| v).collect();
            found.sort_unstable();
            let want: Vec<usize> = (0..ranges.len()).filter(|&i| range(ranges[i]).overlaps(range(q))).collect();
            prop_assert_eq!(set.overlaps(range(q)), !want.is_empty());
            prop_assert_eq!(found, want);
            for (id, &(s, _)) in ranges.iter().enumerate() {
                prop_assert_eq!(set.remove(Sector(s), id as u64), Some(id));
            }
            prop_assert!(set.is_empty());
        }
    }
}
