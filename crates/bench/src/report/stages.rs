//! Where the time of requests went, as all forms of a report show it.

use super::number::number;
use crate::pair::{PRIMARY, SECONDARY};
use crate::workload::StageTime;
use control::StageLatency;

/// A stage with the mean over all its requests, in microseconds.
pub(super) struct Share {
    /// E.g. `write: disk`.
    pub(super) name: String,
    pub(super) mean: f64,
    pub(super) p99: f64,
}

/// The stages of one contender at one job, in the order in which requests come through them: on the primary, and what
/// the peer says of the same writes.
pub(super) fn shares(stages: &[&StageTime]) -> Vec<Share> {
    let of = |role: &str, request: &str, stage: &str| {
        let is_it = |s: &&&StageTime| s.role == role && s.latency.request == request && s.latency.stage == stage;
        stages.iter().find(is_it).map(|s| &s.latency)
    };
    let us = |nanos: u64| nanos as f64 / 1e3;
    let share = |name: String, l: &StageLatency| Share { name, mean: us(l.mean_ns()), p99: us(l.percentile_ns(99.0)) };
    let mut found = Vec::new();
    for request in ["write", "read", "flush"] {
        for stage in ["queue", "activity-log", "disk", "send", "peer", "total"] {
            found.extend(of(PRIMARY, request, stage).map(|l| share(format!("{request}: {stage}"), l)));
            if (request, stage) == ("write", "peer") {
                for stage in ["queue", "disk"] {
                    let there = of(SECONDARY, "peer-write", stage);
                    found.extend(there.map(|l| share(format!("write: peer\u{2019}s {stage}"), l)));
                }
            }
        }
    }
    found
}

/// One line: the mean of each stage.
pub(super) fn line(stages: &[&StageTime]) -> Option<String> {
    let parts: Vec<String> = shares(stages).iter().map(|s| format!("{} {}", s.name, number(s.mean))).collect();
    (!parts.is_empty()).then(|| parts.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_peers_part_stands_behind_its_stage() {
        let time = |role: &str, request: &str, stage: &str, sum_ns| StageTime {
            role: role.into(),
            latency: StageLatency {
                request: request.into(),
                stage: stage.into(),
                sum_ns,
                buckets: vec![(4096, 1), (8192, 1)],
            },
        };
        let all = [
            time(SECONDARY, "peer-write", "disk", 2_000),
            time(SECONDARY, "write", "total", 0),
            time(PRIMARY, "write", "total", 9_000),
            time(PRIMARY, "write", "peer", 8_000),
        ];
        let line = line(&all.iter().collect::<Vec<_>>()).unwrap();
        assert_eq!(line, "write: peer 4.00, write: peer\u{2019}s disk 1.00, write: total 4.50");
        assert_eq!(super::line(&[]), None);
    }
}
