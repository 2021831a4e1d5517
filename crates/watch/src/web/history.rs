//! What the page shows: the latest statuses, and figures of the last minutes for its plots.

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

use control::ResourceStatus;
use control::matter::matters;
use control::query;
use serde_json::{Value, json};

use crate::look::{Seen, Unseen};
use crate::rates::Rates;

/// Points that are kept of each resource: five minutes.
const MOST: usize = 300;

/// The latest look, and those before.
#[derive(Debug, Default)]
pub(super) struct History {
    seen: Vec<(Seen, Rates)>,
    points: BTreeMap<String, VecDeque<Value>>,
    begin: Option<Instant>,
    looked: Option<Instant>,
}

impl History {
    pub(super) fn look(&mut self, seen: Vec<Seen>, now: Instant) {
        let begin = *self.begin.get_or_insert(now);
        let time = self.looked.map_or(Duration::ZERO, |then| now.duration_since(then));
        self.looked = Some(now);
        let old = std::mem::take(&mut self.seen);
        for one in seen {
            let before = old.iter().find(|(s, _)| s.name == one.name).and_then(|(s, _)| s.status.as_ref().ok());
            let rates = one.status.as_ref().map(|now| Rates::between(before, now, time)).unwrap_or_default();
            if let Ok(status) = &one.status {
                let points = self.points.entry(one.name.clone()).or_default();
                points.push_back(point(now.duration_since(begin), status, &rates));
                if points.len() > MOST {
                    points.pop_front();
                }
            }
            self.seen.push((one, rates));
        }
        let seen = &self.seen;
        self.points.retain(|name, _| seen.iter().any(|(s, _)| s.name == *name));
    }

    pub(super) fn statuses(&self) -> Vec<ResourceStatus> {
        self.seen.iter().filter_map(|(s, _)| s.status.clone().ok()).collect()
    }

    /// All that were seen, and whether a process runs each.
    pub(super) fn running(&self) -> Vec<(String, bool)> {
        let runs = |seen: &Seen| !matches!(seen.status, Err(Unseen::NotRunning(_)));
        self.seen.iter().map(|(seen, _)| (seen.name.clone(), runs(seen))).collect()
    }

    /// For `/status`: all resources.
    pub(super) fn status(&self, host: &str) -> Value {
        let one = |(seen, rates): &(Seen, Rates)| match &seen.status {
            Err(Unseen::NotRunning(why)) => json!({"name": seen.name, "absent": why}),
            Err(Unseen::Silent(why)) => json!({"name": seen.name, "silent": why}),
            Ok(status) => resource(status, rates),
        };
        json!({"host": host, "resources": self.seen.iter().map(one).collect::<Vec<_>>()})
    }

    /// For `/history`: the points of one resource, oldest first.
    pub(super) fn points(&self, name: &str) -> Option<Value> {
        Some(self.points.get(name)?.iter().cloned().collect())
    }
}

fn resource(r: &ResourceStatus, rates: &Rates) -> Value {
    let devices = r.devices.iter().map(|d| {
        json!({
            "volume": d.volume,
            "disk": d.disk.as_str(),
            "open": d.open,
            "size": d.statistics.map_or(0, |s| s.size_sectors * 512),
            "path": d.device_path,
        })
    });
    let connections = r.connections.iter().map(|c| {
        let peer_devices = c.peer_devices.iter().map(|p| {
            let running = query::percent_done(r, p);
            json!({
                "volume": p.volume,
                "replication": p.replication.as_str(),
                "disk": p.peer_disk.as_str(),
                "differ": p.statistics.map_or(0, |s| s.out_of_sync_sectors * 512),
                "done": running,
                "progress": running.map(|_| query::progress_words(r, p)),
            })
        });
        json!({
            "name": c.name,
            "connection": c.connection.as_str(),
            "role": c.peer_role.as_str(),
            "address": c.paths.first().map(|p| p.peer.to_string()),
            "peer_devices": peer_devices.collect::<Vec<_>>(),
        })
    });
    json!({
        "name": r.name,
        "role": r.role.as_str(),
        "version": r.program,
        "suspended": r.suspended.any(),
        "devices": devices.collect::<Vec<_>>(),
        "connections": connections.collect::<Vec<_>>(),
        "matters": matters(r),
        "rates": {
            "writes": rates.writes,
            "reads": rates.reads,
            "disk_written": rates.disk_written,
            "disk_read": rates.disk_read,
            "sent": rates.sent,
            "received": rates.received,
        },
    })
}

/// `t`: seconds since the server began; latencies in microseconds.
fn point(t: Duration, r: &ResourceStatus, rates: &Rates) -> Value {
    let stages = rates
        .stages
        .iter()
        .filter(|s| s.count() > 0)
        .map(|s| (format!("{} {}", s.request, s.stage), json!([s.mean_ns() / 1000, s.percentile_ns(99.0) / 1000])));
    let running = r.connections.iter().flat_map(|c| &c.peer_devices);
    let running: Vec<_> =
        running.filter_map(|p| Some((query::percent_done(r, p)?, query::rate_mib_per_s(p)))).collect();
    json!({
        "t": t.as_secs_f64(),
        "writes": rates.writes,
        "reads": rates.reads,
        "disk": rates.disk_written + rates.disk_read,
        "net": rates.sent + rates.received,
        "stages": stages.collect::<serde_json::Map<_, _>>(),
        "done": running.iter().map(|(done, _)| *done).reduce(f64::min),
        "sync": running.iter().map(|(_, rate)| rate * 1_048_576.0).sum::<f64>(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn points_are_bounded_and_go_with_their_resource() {
        let mut history = History::default();
        let begin = Instant::now();
        let seen = |name: &str| Seen { name: name.into(), status: Ok(ResourceStatus::new(name)) };
        for second in 0..400 {
            history.look(vec![seen("r0"), seen("<b>")], begin + Duration::from_secs(second));
        }
        assert_eq!(history.points("r0").unwrap().as_array().unwrap().len(), MOST);
        assert_eq!(history.points("r0").unwrap()[MOST - 1]["t"], 399.0);
        assert_eq!(history.status("alpha")["resources"][1]["name"], "<b>");
        let silent = Seen { name: "r0".into(), status: Err(Unseen::Silent("no answer".into())) };
        history.look(vec![silent], begin + Duration::from_secs(400));
        assert!(history.points("<b>").is_none() && history.points("r0").is_some());
        assert_eq!(history.status("alpha")["resources"][0]["silent"], "no answer");
        assert!(history.statuses().is_empty());
        assert_eq!(history.running(), [("r0".to_owned(), true)]);
        let gone = Seen { name: "r0".into(), status: Err(Unseen::NotRunning("it was killed".into())) };
        history.look(vec![gone], begin + Duration::from_secs(401));
        assert_eq!(history.status("alpha")["resources"][0]["absent"], "it was killed");
        assert_eq!(history.running(), [("r0".to_owned(), false)]);
    }
}
