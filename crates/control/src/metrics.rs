//! Statuses as Prometheus text (text exposition format 0.0.4).

use std::fmt::{Display, Write};

use crate::latency::StageLatency;
use crate::matter::{Weight, matters};
use crate::query;
use crate::states::{ConnectionState, DiskState, ReplicationState, Role};
use crate::status::{ConnectionStatus, DeviceStatus, PeerDeviceStatus, ResourceStatus};

/// Which resources that are configured, or run, have a process: 1, else 0.
#[must_use]
pub fn running(resources: &[(String, bool)]) -> String {
    let mut page = Page { resources: &[], out: String::new() };
    page.head("urbd_resource_running", "gauge", "Whether a process runs the resource.");
    for (name, runs) in resources {
        page.sample("urbd_resource_running", &Labels::new(name), u8::from(*runs));
    }
    page.out
}

/// All metrics of these resources, each family once. `fine`: a bucket for each power of two from 4 us to 17 s, instead
/// of each power of four.
pub fn text(resources: &[ResourceStatus], fine: bool) -> String {
    let mut page = Page { resources, out: String::new() };
    page.resources();
    page.devices();
    page.latencies(if fine { 1 } else { 2 });
    page.connections();
    page.peer_devices();
    page.matters();
    page.out
}

struct Page<'a> {
    resources: &'a [ResourceStatus],
    out: String,
}

/// Labels of one sample, escaped.
struct Labels(String);

impl Labels {
    fn new(resource: &str) -> Labels {
        Labels(String::new()).and("resource", resource)
    }

    fn and(mut self, name: &str, value: impl Display) -> Labels {
        let value = value.to_string().replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
        let comma = if self.0.is_empty() { "" } else { "," };
        // Writing to a string cannot fail.
        let _ = write!(self.0, "{comma}{name}=\"{value}\"");
        self
    }
}

impl Page<'_> {
    fn head(&mut self, name: &str, kind: &str, help: &str) {
        let _ = writeln!(self.out, "# HELP {name} {help}\n# TYPE {name} {kind}");
    }

    fn sample(&mut self, name: &str, labels: &Labels, value: impl Display) {
        let _ = writeln!(self.out, "{name}{{{}}} {value}", labels.0);
    }

    fn each_resource<V: Display>(&mut self, name: &str, help: &str, value: impl Fn(&ResourceStatus) -> (Labels, V)) {
        self.head(name, "gauge", help);
        for r in self.resources {
            let (labels, value) = value(r);
            self.sample(name, &labels, value);
        }
    }

    /// A sample for each volume for which there is a value; `kind` is `gauge` or `counter`.
    fn each_device<V: Display>(
        &mut self,
        (name, kind, help): (&str, &str, &str),
        value: impl Fn(Labels, &DeviceStatus) -> Option<(Labels, V)>,
    ) {
        self.head(name, kind, help);
        for r in self.resources {
            for d in &r.devices {
                if let Some((labels, value)) = value(Labels::new(&r.name).and("volume", d.volume), d) {
                    self.sample(name, &labels, value);
                }
            }
        }
    }

    fn each_connection<V: Display>(
        &mut self,
        name: &str,
        help: &str,
        value: impl Fn(Labels, &ConnectionStatus) -> (Labels, V),
    ) {
        self.head(name, "gauge", help);
        for r in self.resources {
            for c in &r.connections {
                let (labels, value) = value(Labels::new(&r.name).and("peer", &c.name), c);
                self.sample(name, &labels, value);
            }
        }
    }

    fn each_peer_device<V: Display>(
        &mut self,
        (name, kind, help): (&str, &str, &str),
        value: impl Fn(Labels, &ResourceStatus, &PeerDeviceStatus) -> Option<(Labels, V)>,
    ) {
        self.head(name, kind, help);
        for r in self.resources {
            for c in &r.connections {
                for p in &c.peer_devices {
                    let labels = Labels::new(&r.name).and("peer", &c.name).and("volume", p.volume);
                    if let Some((labels, value)) = value(labels, r, p) {
                        self.sample(name, &labels, value);
                    }
                }
            }
        }
    }

    fn resources(&mut self) {
        self.each_resource("urbd_resource_info", "The version of the program that runs the resource.", |r| {
            (Labels::new(&r.name).and("version", &r.program), 1)
        });
        self.each_resource("urbd_resource_primary", "1 if this node is Primary.", |r| {
            (Labels::new(&r.name), u8::from(r.role == Role::Primary))
        });
        self.each_resource("urbd_resource_suspended", "1 if I/O is frozen.", |r| {
            (Labels::new(&r.name), u8::from(r.suspended.any()))
        });
        let name = "urbd_resource_suspended_reason";
        self.head(name, "gauge", "1 if I/O is frozen for this reason.");
        for r in self.resources {
            let s = r.suspended;
            let reasons = [("user", s.user), ("no-data", s.no_data), ("fencing", s.fencing), ("quorum", s.quorum)];
            for (reason, on) in reasons {
                self.sample(name, &Labels::new(&r.name).and("reason", reason), u8::from(on));
            }
        }
    }

    fn devices(&mut self) {
        self.each_device(("urbd_device_disk_state", "gauge", "1 for the state of the local disk."), |l, d| {
            Some((l.and("state", d.disk), 1))
        });
        self.each_device(("urbd_device_up_to_date", "gauge", "1 if the local disk is UpToDate."), |l, d| {
            Some((l, u8::from(d.disk == DiskState::UpToDate)))
        });
        self.each_device(("urbd_device_open", "gauge", "1 if somebody has the device open."), |l, d| {
            Some((l, u8::from(d.open?)))
        });
        self.each_device(("urbd_device_quorum", "gauge", "1 if the volume has quorum, or needs none."), |l, d| {
            Some((l, u8::from(d.quorum)))
        });
        type Value = fn(&crate::DeviceStatistics) -> u64;
        let table: [(&str, &str, &str, Value); 7] = [
            ("urbd_device_size_bytes", "gauge", "Usable size.", |s| s.size_sectors * 512),
            ("urbd_device_read_bytes_total", "counter", "Read from the local disk.", |s| s.read_sectors * 512),
            ("urbd_device_written_bytes_total", "counter", "Written to the local disk.", |s| s.written_sectors * 512),
            ("urbd_device_al_writes_total", "counter", "Activity log transactions.", |s| s.al_writes),
            ("urbd_device_bitmap_writes_total", "counter", "Bitmap blocks written.", |s| s.bm_writes),
            ("urbd_device_upper_pending", "gauge", "Applications' requests under way.", |s| s.upper_pending.into()),
            ("urbd_device_lower_pending", "gauge", "Disk requests under way.", |s| s.lower_pending.into()),
        ];
        for (name, kind, help, value) in table {
            self.each_device((name, kind, help), |l, d| Some((l, value(d.statistics.as_ref()?))));
        }
    }

    /// `step`: the logarithm of the distance of buckets.
    fn latencies(&mut self, step: usize) {
        let name = "urbd_request_duration_seconds";
        let help = "Time that requests (of applications; peer-write: of the peer) spent in a stage of their way.";
        self.head(name, "histogram", help);
        for r in self.resources {
            for d in &r.devices {
                for s in &d.latencies {
                    let labels = Labels::new(&r.name).and("volume", d.volume).and("request", &s.request);
                    self.histogram(name, &labels.and("stage", &s.stage), s, step);
                }
            }
        }
    }

    fn histogram(&mut self, name: &str, labels: &Labels, s: &StageLatency, step: usize) {
        let (labels, count) = (&labels.0, s.count());
        for nanos in (12u32..=34).rev().step_by(step).collect::<Vec<_>>().into_iter().rev().map(|bits| 1u64 << bits) {
            let (le, below) = (nanos as f64 / 1e9, s.count_below(nanos));
            let _ = writeln!(self.out, "{name}_bucket{{{labels},le=\"{le}\"}} {below}");
        }
        let sum = s.sum_ns as f64 / 1e9;
        let _ = writeln!(self.out, "{name}_bucket{{{labels},le=\"+Inf\"}} {count}");
        let _ = writeln!(self.out, "{name}_sum{{{labels}}} {sum}\n{name}_count{{{labels}}} {count}");
    }

    fn connections(&mut self) {
        self.each_connection("urbd_connection_state", "1 for the state of the connection.", |l, c| {
            (l.and("state", c.connection), 1)
        });
        self.each_connection("urbd_connection_connected", "1 if the peer is connected.", |l, c| {
            (l, u8::from(c.connection == ConnectionState::Connected))
        });
        self.each_connection("urbd_connection_peer_primary", "1 if the peer is Primary.", |l, c| {
            (l, u8::from(c.peer_role == Role::Primary))
        });
        let help = "Tries in a row in which the nodes did not accept each other's secret.";
        self.each_connection("urbd_connection_failed_authentications", help, |l, c| (l, c.failed_authentications));
        self.each_connection("urbd_connection_congested", "1 if data waits to be sent.", |l, c| {
            (l, u8::from(c.statistics.is_some_and(|s| s.congested)))
        });
    }

    fn peer_devices(&mut self) {
        let help = "1 for the state of replication.";
        self.each_peer_device(("urbd_peer_device_replication_state", "gauge", help), |l, _, p| {
            Some((l.and("state", p.replication), 1))
        });
        self.each_peer_device(
            ("urbd_peer_device_disk_state", "gauge", "1 for the state of the peer's disk."),
            |l, _, p| Some((l.and("state", p.peer_disk), 1)),
        );
        self.each_peer_device(
            ("urbd_peer_device_up_to_date", "gauge", "1 if the peer's disk is UpToDate."),
            |l, _, p| Some((l, u8::from(p.peer_disk == DiskState::UpToDate))),
        );
        type Value = fn(&crate::PeerDeviceStatistics) -> u64;
        let table: [(&str, &str, &str, Value); 5] = [
            ("urbd_peer_device_out_of_sync_bytes", "gauge", "Bytes that differ.", |s| s.out_of_sync_sectors * 512),
            ("urbd_peer_device_sent_bytes_total", "counter", "Data sent.", |s| s.sent_sectors * 512),
            ("urbd_peer_device_received_bytes_total", "counter", "Data received.", |s| s.received_sectors * 512),
            ("urbd_peer_device_pending", "gauge", "Requests the peer has not answered.", |s| s.pending.into()),
            ("urbd_peer_device_unacked", "gauge", "Requests of the peer not yet answered.", |s| s.unacked.into()),
        ];
        for (name, kind, help, value) in table {
            self.each_peer_device((name, kind, help), |l, _, p| Some((l, value(p.statistics.as_ref()?))));
        }
        let help = "How much of a running resync or verify is done, 0 to 1.";
        self.each_peer_device(("urbd_peer_device_sync_done_ratio", "gauge", help), |l, r, p| {
            Some((l, query::percent_done(r, p)? / 100.0))
        });
        let help = "Speed of a running resync or verify.";
        self.each_peer_device(("urbd_peer_device_sync_bytes_per_second", "gauge", help), |l, r, p| {
            query::percent_done(r, p)?;
            Some((l, (query::rate_mib_per_s(p) * 1_048_576.0).round()))
        });
        let help = "Time until a running resync or verify ends at its present speed.";
        self.each_peer_device(("urbd_peer_device_sync_eta_seconds", "gauge", help), |l, r, p| {
            query::percent_done(r, p)?;
            Some((l, query::seconds_left(p)?))
        });
        let paused = |p: &PeerDeviceStatus| {
            matches!(p.replication, ReplicationState::PausedSyncS | ReplicationState::PausedSyncT)
        };
        self.each_peer_device(("urbd_peer_device_resync_paused", "gauge", "1 if a resync is paused."), |l, _, p| {
            Some((l, u8::from(paused(p))))
        });
    }

    fn matters(&mut self) {
        let name = "urbd_matter";
        self.head(
            name,
            "gauge",
            "1 for each thing that is the matter, as in `urbd why`; weight is error, warning or running.",
        );
        for r in self.resources {
            for m in matters(r).iter().filter(|m| m.weight < Weight::Note) {
                let weight = match m.weight {
                    Weight::Error => "error",
                    Weight::Warning => "warning",
                    Weight::Running | Weight::Note => "running",
                };
                let labels = Labels::new(&r.name).and("object", &m.object).and("code", &m.code).and("weight", weight);
                self.sample(name, &labels, 1);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    fn resource(name: &str) -> ResourceStatus {
        let stage = |stage: &str| StageLatency {
            request: "write".into(),
            stage: stage.into(),
            sum_ns: 3_000_000,
            buckets: vec![(32_768, 1), (1 << 21, 2)],
        };
        let device = DeviceStatus {
            latencies: vec![stage("disk"), stage("total")],
            statistics: Some(crate::DeviceStatistics::default()),
            ..DeviceStatus::new(0, DiskState::UpToDate)
        };
        let sync = crate::SyncDetails { total_sectors: 4096, dt1_ms: 1000, db1_sectors: 1024, ..Default::default() };
        let statistics = crate::PeerDeviceStatistics { out_of_sync_sectors: 2048, ..Default::default() };
        let peer_device = PeerDeviceStatus {
            sync: Some(sync),
            statistics: Some(statistics),
            ..PeerDeviceStatus::new(0, ReplicationState::SyncSource, DiskState::Inconsistent)
        };
        let connection = ConnectionStatus {
            peer_devices: vec![peer_device],
            ..ConnectionStatus::new("br\"avo", ConnectionState::Connected)
        };
        ResourceStatus { devices: vec![device], connections: vec![connection], ..ResourceStatus::new(name) }
    }

    #[test]
    fn samples_of_one_metric_stand_together_and_are_unique() {
        let page = text(&[resource("r0"), resource("r1")], false);
        let (mut family, mut families, mut samples) = ("", BTreeSet::new(), BTreeSet::new());
        for line in page.lines() {
            if let Some(head) = line.strip_prefix("# HELP ") {
                family = head.split(' ').next().unwrap();
                assert!(families.insert(family), "{family} comes twice");
            } else if !line.starts_with('#') {
                assert!(line.starts_with(family), "{line} in {family}");
                assert!(samples.insert(line.rsplit_once(' ').unwrap().0), "{line} comes twice");
            }
        }
        assert!(page.contains("peer=\"br\\\"avo\""), "labels are escaped");
        assert!(
            page.contains("urbd_peer_device_sync_done_ratio{resource=\"r0\",peer=\"br\\\"avo\",volume=\"0\"} 0.5\n")
        );
        assert!(
            page.contains("urbd_peer_device_sync_eta_seconds{resource=\"r0\",peer=\"br\\\"avo\",volume=\"0\"} 2\n")
        );
        assert!(
            page.contains(
                "urbd_matter{resource=\"r1\",object=\"r1:br\\\"avo/0\",code=\"resync\",weight=\"running\"} 1"
            )
        );
    }

    #[test]
    fn buckets_are_fewer_unless_asked_for_and_count_the_same() {
        let buckets = |fine| {
            let page = text(&[resource("r0")], fine);
            let of_disk = page.lines().filter(|l| l.contains("_bucket{") && l.contains("stage=\"disk\""));
            of_disk.map(|l| l.rsplit_once(' ').unwrap().1.parse().unwrap()).collect::<Vec<u64>>()
        };
        assert_eq!(buckets(false), [0, 0, 1, 1, 1, 3, 3, 3, 3, 3, 3, 3, 3]);
        assert_eq!(buckets(true).len(), 24);
        assert!(buckets(true).is_sorted());
    }
}
