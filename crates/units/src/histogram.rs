//! How long things took: counts by duration, in fixed memory.

use crate::Duration;
use std::fmt;

/// Durations below this many bits of nanoseconds (256 ns) are one bucket.
const LEAST_BITS: usize = 8;
/// Durations of this many bits and more (69 s) are one bucket.
const MOST_BITS: usize = 36;
/// Buckets between two powers of two.
const PARTS: usize = 4;
/// Bits that name a part.
const PART_BITS: usize = 2;
const BUCKETS: usize = (MOST_BITS - LEAST_BITS) * PARTS + 2;

/// Counts of durations. Four buckets between two powers of two: what is told of a duration is too long by at most a
/// quarter. Recording is a few instructions and allocates nothing.
#[derive(Clone, PartialEq, Eq)]
pub struct Histogram {
    counts: [u64; BUCKETS],
    sum: u64,
}

impl Default for Histogram {
    fn default() -> Histogram {
        Histogram { counts: [0; BUCKETS], sum: 0 }
    }
}

impl Histogram {
    /// `times` more that took `took` each.
    pub fn record(&mut self, took: Duration, times: u64) {
        self.counts[bucket(took.0)] += times;
        self.sum = self.sum.saturating_add(took.0.saturating_mul(times));
    }

    /// How many were recorded.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// All durations together, exactly; at most 584 years.
    #[must_use]
    pub fn sum(&self) -> Duration {
        Duration(self.sum)
    }

    /// The buckets that are not empty: what is in one is shorter than the bucket's duration, and how many that are.
    /// Ascending; the last possible one is of [`Duration`]`(u64::MAX)`. Every power of two of nanoseconds from 256 to
    /// 2^36 is the end of a bucket.
    pub fn buckets(&self) -> impl Iterator<Item = (Duration, u64)> {
        self.counts.iter().enumerate().filter(|(_, n)| **n > 0).map(|(i, n)| (end(i), *n))
    }
}

/// Which bucket a duration in nanoseconds belongs to.
fn bucket(nanos: u64) -> usize {
    let bits = 63 - (nanos | 1).leading_zeros() as usize;
    if bits < LEAST_BITS {
        return 0;
    }
    let part = (nanos >> (bits - PART_BITS)) as usize & (PARTS - 1);
    ((bits - LEAST_BITS) * PARTS + part + 1).min(BUCKETS - 1)
}

/// The shortest duration that is too long for a bucket.
fn end(bucket: usize) -> Duration {
    match bucket {
        0 => Duration(1 << LEAST_BITS),
        b if b == BUCKETS - 1 => Duration(u64::MAX),
        b => {
            let (bits, part) = (LEAST_BITS + (b - 1) / PARTS, (b - 1) % PARTS);
            Duration(((PARTS + part + 1) as u64) << (bits - PART_BITS))
        }
    }
}

impl fmt::Debug for Histogram {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.buckets()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_duration_is_in_the_bucket_that_ends_behind_it() {
        let around = |n: u64| [n - 1, n, n + 1, n + n / 3];
        for nanos in (1..63).flat_map(|bits| around(1 << bits)).chain([0, u64::MAX]) {
            let b = bucket(nanos);
            assert!(b == BUCKETS - 1 || nanos < end(b).0, "{nanos} in {b}");
            assert!(b == 0 || nanos >= end(b - 1).0, "{nanos} in {b}");
            let exact = (1 << LEAST_BITS..1 << MOST_BITS).contains(&nanos);
            assert!(!exact || end(b).0 <= nanos + nanos / 4 + 1, "{nanos} in {b}");
        }
    }

    #[test]
    fn powers_of_two_end_buckets() {
        let ends: Vec<u64> = (0..BUCKETS).map(|b| end(b).0).collect();
        assert!(ends.is_sorted() && (LEAST_BITS..=MOST_BITS).all(|bits| ends.contains(&(1 << bits))));
    }

    #[test]
    fn counts_and_sums_are_exact() {
        let mut h = Histogram::default();
        h.record(Duration(1000), 3);
        h.record(Duration(70_000_000), 1);
        h.record(Duration(u64::MAX), 1);
        assert_eq!((h.count(), h.sum()), (5, Duration(u64::MAX)));
        let buckets: Vec<_> = h.buckets().collect();
        assert_eq!(buckets, [(Duration(1024), 3), (Duration(5 << 24), 1), (Duration(u64::MAX), 1)]);
    }
}
