//! A value for every sector of a device, stored as runs.

use std::collections::BTreeMap;
use units::{Sector, SectorRange};

/// Which value each sector of `0..len` has. Equal neighbours written together are one run.
#[derive(Debug)]
pub(crate) struct Ranges<V> {
    runs: BTreeMap<u64, (u64, V)>,
    changed: Changed,
}

/// More places than this are no fewer than all.
const MOST_PARTS: usize = 256;

/// Where values were set since somebody asked.
#[derive(Debug)]
pub(crate) enum Changed {
    /// Anywhere.
    All,
    /// Here at most.
    Parts(Vec<SectorRange>),
}

impl Changed {
    pub(crate) fn and(self, other: Changed) -> Changed {
        match (self, other) {
            (Changed::Parts(mut a), Changed::Parts(b)) => {
                a.extend(b);
                Changed::Parts(a)
            }
            _ => Changed::All,
        }
    }
}

impl<V: Clone> Clone for Ranges<V> {
    /// Whoever gets the copy has something else than before.
    fn clone(&self) -> Ranges<V> {
        Ranges { runs: self.runs.clone(), changed: Changed::All }
    }
}

impl<V: Clone + PartialEq> Ranges<V> {
    /// `len` sectors that all have `value`.
    pub(crate) fn new(len: u64, value: V) -> Ranges<V> {
        Ranges { runs: BTreeMap::from([(0, (len, value))]), changed: Changed::All }
    }

    /// These runs, which follow each other without a gap.
    pub(crate) fn of_runs(runs: impl Iterator<Item = (SectorRange, V)>) -> Ranges<V> {
        let mut joined: Vec<(u64, (u64, V))> = Vec::new();
        for (range, value) in runs {
            match joined.last_mut() {
                Some((_, (end, last))) if *last == value => *end = range.end.0,
                _ => joined.push((range.start.0, (range.end.0, value))),
            }
        }
        Ranges { runs: BTreeMap::from_iter(joined), changed: Changed::All }
    }

    /// So many sectors there are.
    pub(crate) fn len(&self) -> u64 {
        self.runs.last_key_value().map_or(0, |(_, (end, _))| *end)
    }

    /// Where values were set since this was asked last.
    pub(crate) fn take_changed(&mut self) -> Changed {
        std::mem::replace(&mut self.changed, Changed::Parts(Vec::new()))
    }

    fn note_change(&mut self, range: SectorRange) {
        if let Changed::Parts(parts) = &mut self.changed {
            if parts.len() < MOST_PARTS {
                parts.push(range);
            } else {
                self.changed = Changed::All;
            }
        }
    }

    /// The runs that share a sector with `range`, clipped to it.
    pub(crate) fn runs(&self, range: SectorRange) -> impl Iterator<Item = (SectorRange, &V)> {
        let from = self.runs.range(..=range.start.0).next_back().map_or(0, |(s, _)| *s);
        self.runs.range(from..range.end.0.max(from)).filter_map(move |(start, (end, value))| {
            let (start, end) = ((*start).max(range.start.0), (*end).min(range.end.0));
            (start < end).then_some((sectors(start, end), value))
        })
    }

    /// All runs.
    pub(crate) fn all(&self) -> impl Iterator<Item = (SectorRange, &V)> {
        self.runs.iter().map(|(start, (end, value))| (sectors(*start, *end), value))
    }

    /// Gives every sector of `range` the same value.
    pub(crate) fn set(&mut self, range: SectorRange, value: V) {
        if range.is_empty() {
            return;
        }
        self.note_change(range);
        self.cut(range.start.0);
        self.cut(range.end.0);
        let inside: Vec<u64> = self.runs.range(range.start.0..range.end.0).map(|(s, _)| *s).collect();
        for start in inside {
            self.runs.remove(&start);
        }
        let (mut start, mut end) = (range.start.0, range.end.0);
        if let Some((s, (e, v))) = self.runs.range(..start).next_back()
            && *e == start
            && *v == value
        {
            start = *s;
        }
        if let Some((e, v)) = self.runs.get(&end)
            && *v == value
        {
            let beyond = *e;
            self.runs.remove(&end);
            end = beyond;
        }
        self.runs.insert(start, (end, value));
    }

    /// Changes the values of a range in place.
    pub(crate) fn update(&mut self, range: SectorRange, mut change: impl FnMut(&mut V)) {
        if range.is_empty() {
            return;
        }
        self.note_change(range);
        self.cut(range.start.0);
        self.cut(range.end.0);
        for (_, (_, value)) in self.runs.range_mut(range.start.0..range.end.0) {
            change(value);
        }
    }

    fn cut(&mut self, at: u64) {
        if let Some((_, (end, value))) = self.runs.range_mut(..at).next_back()
            && *end > at
        {
            let rest = (*end, value.clone());
            *end = at;
            self.runs.insert(at, rest);
        }
    }
}

/// `start..end` in sectors.
pub(crate) fn sectors(start: u64, end: u64) -> SectorRange {
    SectorRange { start: Sector(start), end: Sector(end) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn behaves_as_an_array() {
        let mut rng = units::Rng::new(7);
        let mut array = [0u8; 64];
        let mut ranges = Ranges::new(64, 0u8);
        for _ in 0..2000 {
            let (a, b) = (rng.below(65), rng.below(65));
            let (a, b) = (a.min(b), a.max(b));
            let v = rng.below(4) as u8;
            if rng.chance(1, 3) {
                array[a as usize..b as usize].iter_mut().for_each(|x| *x ^= v);
                ranges.update(sectors(a, b), |x| *x ^= v);
            } else {
                array[a as usize..b as usize].fill(v);
                ranges.set(sectors(a, b), v);
            }
            let mut copy = Vec::new();
            for (r, v) in ranges.runs(sectors(a, b)) {
                copy.extend(std::iter::repeat_n(*v, (r.end.0 - r.start.0) as usize));
            }
            assert_eq!(copy, array[a as usize..b as usize]);
        }
    }
}
