//! How long requests took: a histogram with two significant digits or better, that can be added up and stored.

use hdrhistogram::Histogram;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// An hour: what takes longer counts as that.
const LONGEST: u64 = 3_600_000_000_000;

/// Latencies in nanoseconds. Stored as pairs of value and count.
#[derive(Clone, PartialEq, Debug)]
pub struct Latencies(Histogram<u64>);

impl Default for Latencies {
    fn default() -> Latencies {
        Latencies(Histogram::new_with_bounds(1, LONGEST, 2).expect("these bounds are allowed"))
    }
}

impl Latencies {
    /// One more.
    pub fn record(&mut self, nanos: u64) {
        self.0.saturating_record(nanos.max(1));
    }

    /// Those of `other` too.
    pub fn add(&mut self, other: &Latencies) {
        self.0.add(&other.0).expect("all have the same bounds");
    }

    /// Microseconds that `percent` of all requests did not exceed.
    #[must_use]
    pub fn percentile(&self, percent: f64) -> f64 {
        self.0.value_at_percentile(percent) as f64 / 1e3
    }

    /// Mean in microseconds.
    #[must_use]
    pub fn mean(&self) -> f64 {
        self.0.mean() / 1e3
    }

    /// Number of requests.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.0.len()
    }

    /// Pairs of nanoseconds and count, ascending.
    #[must_use]
    pub fn buckets(&self) -> Vec<(u64, u64)> {
        self.0.iter_recorded().map(|v| (v.value_iterated_to(), v.count_at_value())).collect()
    }

    /// The same with a few buckets only: enough for the percentiles that are shown, and little to store.
    #[must_use]
    pub fn thinned(&self) -> Latencies {
        const PERCENTS: [f64; 14] =
            [1.0, 5.0, 10.0, 25.0, 50.0, 75.0, 90.0, 95.0, 99.0, 99.5, 99.9, 99.95, 99.99, 100.0];
        let buckets = percentiles(&PERCENTS, self.count(), |percent| self.0.value_at_percentile(percent));
        Latencies::from_buckets(&buckets)
    }

    /// From pairs of nanoseconds and count.
    #[must_use]
    pub fn from_buckets(buckets: &[(u64, u64)]) -> Latencies {
        let mut latencies = Latencies::default();
        buckets.iter().for_each(|(value, count)| latencies.0.saturating_record_n(*value, *count));
        latencies
    }
}

/// The buckets of a distribution of `count` requests at a few percents (ascending, the last is 100), pairs of value and
/// count: it has the same values there.
pub(crate) fn percentiles(percents: &[f64], count: u64, value: impl Fn(f64) -> u64) -> Vec<(u64, u64)> {
    let mut buckets: Vec<(u64, u64)> = Vec::new();
    let mut before = 0;
    for percent in percents {
        let up_to = (count as f64 * percent / 100.0).ceil() as u64;
        let (value, more) = (value(*percent), up_to - before);
        before = up_to;
        match buckets.last_mut() {
            Some(last) if last.0 == value => last.1 += more,
            _ if more == 0 => {}
            _ => buckets.push((value, more)),
        }
    }
    buckets
}

impl Serialize for Latencies {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.buckets().serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Latencies {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Latencies, D::Error> {
        Ok(Latencies::from_buckets(&Vec::deserialize(deserializer)?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_within_a_percent() {
        let mut l = Latencies::default();
        (1..=1000).for_each(|i| l.record(i * 1000));
        for (percent, want) in [(50.0, 500.0), (99.0, 990.0), (99.9, 999.0), (100.0, 1000.0)] {
            let got = l.percentile(percent);
            assert!((got - want).abs() <= want * 0.01, "{percent}: {got} instead of {want}");
        }
        assert_eq!(l.count(), 1000);
    }

    #[test]
    fn thinned_ones_have_the_same_percentiles() {
        let mut l = Latencies::default();
        (1..=20_000).for_each(|i| l.record(i * 1000));
        let thin = l.thinned();
        assert!(thin.buckets().len() <= 14 && thin.count() == l.count());
        for percent in [50.0, 90.0, 99.0, 99.9, 99.99] {
            assert_eq!(thin.percentile(percent), l.percentile(percent), "{percent}");
        }
        assert_eq!(Latencies::default().thinned().count(), 0);
    }

    #[test]
    fn they_survive_being_stored_and_added() {
        let mut l = Latencies::default();
        [5_000, 7_000, 1_000_000, 3_000_000_000].into_iter().for_each(|v| l.record(v));
        let text = serde_json::to_string(&l).unwrap();
        let back: Latencies = serde_json::from_str(&text).unwrap();
        assert_eq!(back.buckets(), l.buckets());
        let mut sum = back.clone();
        sum.add(&l);
        assert_eq!(sum.count(), 8);
        assert_eq!(sum.percentile(50.0), l.percentile(50.0));
    }
}
