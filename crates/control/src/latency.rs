//! How long requests took, stage by stage: not part of the tools' schema.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

/// The time that requests of one kind spent in one stage of their way (`docs/performance.md` says which there are).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StageLatency {
    /// The kind of request: `write`, `read`, `flush`, `peer-write`.
    pub request: String,
    /// The stage: `queue`, `disk`, …, `total`.
    pub stage: String,
    /// All durations together, in nanoseconds.
    pub sum_ns: u64,
    /// Pairs of nanoseconds and how many requests took less than that, but not less than the pair before: ascending,
    /// without those of no request. Powers of two end a bucket.
    pub buckets: Vec<(u64, u64)>,
}

impl StageLatency {
    /// Requests that were in this stage.
    pub fn count(&self) -> u64 {
        self.buckets.iter().map(|(_, count)| count).sum()
    }

    /// Requests that took less than `nanos`, a power of two from 256 on.
    pub fn count_below(&self, nanos: u64) -> u64 {
        self.buckets.iter().take_while(|(end, _)| *end <= nanos).map(|(_, count)| count).sum()
    }

    /// Mean in nanoseconds; 0 if there was none.
    pub fn mean_ns(&self) -> u64 {
        self.sum_ns / self.count().max(1)
    }

    /// Nanoseconds that `percent` of the requests did not exceed, at most a quarter too many; 0 if there was none.
    pub fn percentile_ns(&self, percent: f64) -> u64 {
        let wanted = (self.count() as f64 * percent / 100.0).ceil() as u64;
        let mut seen = 0;
        let reached = self.buckets.iter().find(|(_, count)| {
            seen += count;
            seen >= wanted
        });
        reached.map_or(0, |(end, _)| *end)
    }

    /// Those of `other`, the same stage elsewhere or at another time, too.
    pub fn add(&mut self, other: &StageLatency) {
        self.sum_ns += other.sum_ns;
        for (end, count) in &other.buckets {
            match self.buckets.binary_search_by_key(end, |(e, _)| *e) {
                Ok(at) => self.buckets[at].1 += count,
                Err(at) => self.buckets.insert(at, (*end, *count)),
            }
        }
    }

    /// What came to it since `earlier`, an older state of the same stage.
    #[must_use]
    pub fn since(&self, earlier: &StageLatency) -> StageLatency {
        let before = |end| earlier.buckets.iter().find(|(e, _)| *e == end).map_or(0, |(_, count)| *count);
        let new = self.buckets.iter().map(|(end, count)| (*end, count.saturating_sub(before(*end))));
        let buckets = new.filter(|(_, count)| *count > 0).collect();
        StageLatency { sum_ns: self.sum_ns.saturating_sub(earlier.sum_ns), buckets, ..self.clone() }
    }
}

/// An object per kind of request with an object per stage, in microseconds.
pub(crate) fn json(stages: &[StageLatency]) -> Value {
    let mut all = Map::new();
    for s in stages {
        let us = |nanos: u64| nanos as f64 / 1e3;
        let stage = json!({
            "count": s.count(),
            "sum-us": us(s.sum_ns),
            "mean-us": us(s.mean_ns()),
            "p50-us": us(s.percentile_ns(50.0)),
            "p99-us": us(s.percentile_ns(99.0)),
            "max-us": us(s.percentile_ns(100.0)),
        });
        let request = all.entry(&s.request).or_insert_with(|| json!({}));
        if let Value::Object(request) = request {
            request.insert(s.stage.clone(), stage);
        }
    }
    Value::Object(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn disk(sum_ns: u64, buckets: &[(u64, u64)]) -> StageLatency {
        StageLatency { request: "write".into(), stage: "disk".into(), sum_ns, buckets: buckets.to_vec() }
    }

    #[test]
    fn percentiles_are_ends_of_buckets() {
        let s = disk(99_000, &[(512, 50), (1024, 49), (8192, 1)]);
        assert_eq!((s.count(), s.mean_ns()), (100, 990));
        assert_eq!([1.0, 50.0, 51.0, 99.0, 100.0].map(|p| s.percentile_ns(p)), [512, 512, 1024, 1024, 8192]);
        assert_eq!([256, 512, 2048, 1 << 40].map(|n| s.count_below(n)), [0, 50, 99, 100]);
        assert_eq!(disk(0, &[]).percentile_ns(99.0), 0);
        assert_eq!(disk(0, &[]).mean_ns(), 0);
    }

    #[test]
    fn what_is_new_is_the_difference() {
        let (before, after) = (disk(100, &[(512, 2)]), disk(900, &[(512, 2), (1024, 3)]));
        assert_eq!(after.since(&before), disk(800, &[(1024, 3)]));
        assert_eq!(after.since(&after).count(), 0);
        let mut sum = before.clone();
        sum.add(&after.since(&before));
        assert_eq!(sum, after);
    }

    #[test]
    fn requests_have_their_stages() {
        let total = StageLatency { stage: "total".into(), ..disk(2_000, &[(2048, 1)]) };
        let got = json(&[disk(1_500, &[(2048, 1)]), total]);
        assert_eq!(got["write"]["disk"]["mean-us"], 1.5);
        assert_eq!(got["write"]["total"]["p99-us"], 2.048);
    }
}
