//! What changed between two looks.

use std::time::Duration;

use control::{DeviceStatus, PeerDeviceStatus, ResourceStatus, StageLatency};

/// Of one resource, per second.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Rates {
    /// Applications' writes that were completed.
    pub writes: f64,
    /// Applications' reads that were completed.
    pub reads: f64,
    /// Bytes written to the own disks, resync included.
    pub disk_written: f64,
    /// Bytes read from the own disks, resync included.
    pub disk_read: f64,
    /// Bytes sent to the peers.
    pub sent: f64,
    /// Bytes received from the peers.
    pub received: f64,
    /// How long requests took in each stage, over all volumes, since the look before.
    pub stages: Vec<StageLatency>,
}

impl Rates {
    /// Of the time between two looks at the same resource. All is 0 if there is no earlier one, or the process is a new
    /// one and counts anew.
    pub fn between(before: Option<&ResourceStatus>, now: &ResourceStatus, time: Duration) -> Rates {
        let Some(before) = before else { return Rates::default() };
        let seconds = time.as_secs_f64().max(1e-3);
        let per_second = |count: fn(&ResourceStatus) -> u64| count(now).saturating_sub(count(before)) as f64 / seconds;
        let stages = stages(before, now);
        let completed = |request: &str| {
            let of = stages.iter().filter(|s| s.request == request && s.stage == "total");
            of.map(StageLatency::count).sum::<u64>() as f64 / seconds
        };
        Rates {
            writes: completed("write"),
            reads: completed("read"),
            disk_written: per_second(|r| devices(r).map(|s| s.written_sectors * 512).sum()),
            disk_read: per_second(|r| devices(r).map(|s| s.read_sectors * 512).sum()),
            sent: per_second(|r| peers(r).filter_map(|p| p.statistics).map(|s| s.sent_sectors * 512).sum()),
            received: per_second(|r| peers(r).filter_map(|p| p.statistics).map(|s| s.received_sectors * 512).sum()),
            stages,
        }
    }

    /// The 99th percentile of one stage in nanoseconds; `None` if no request was in it.
    pub fn p99_ns(&self, request: &str, stage: &str) -> Option<u64> {
        let of = self.stages.iter().find(|s| s.request == request && s.stage == stage)?;
        (of.count() > 0).then(|| of.percentile_ns(99.0))
    }
}

fn devices(r: &ResourceStatus) -> impl Iterator<Item = control::DeviceStatistics> {
    r.devices.iter().filter_map(|d| d.statistics)
}

fn peers(r: &ResourceStatus) -> impl Iterator<Item = &PeerDeviceStatus> {
    r.connections.iter().flat_map(|c| &c.peer_devices)
}

/// Each stage's new durations, of all volumes together.
fn stages(before: &ResourceStatus, now: &ResourceStatus) -> Vec<StageLatency> {
    let mut sum: Vec<StageLatency> = Vec::new();
    for device in &now.devices {
        for stage in &device.latencies {
            let earlier = before.device(device.volume).and_then(|d| find(d, stage));
            let new = earlier.map_or_else(|| stage.clone(), |earlier| stage.since(earlier));
            match sum.iter_mut().find(|s| s.request == stage.request && s.stage == stage.stage) {
                Some(all) => all.add(&new),
                None => sum.push(new),
            }
        }
    }
    sum
}

fn find<'a>(device: &'a DeviceStatus, stage: &StageLatency) -> Option<&'a StageLatency> {
    device.latencies.iter().find(|s| s.request == stage.request && s.stage == stage.stage)
}

/// Bytes with a binary suffix, in at most six columns: `0`, `640`, `1.2K`, `45.1M`.
pub fn bytes(n: f64) -> String {
    let mut n = n.max(0.0);
    for suffix in ["", "K", "M", "G", "T"] {
        if n < 1000.0 {
            return if suffix.is_empty() || n >= 100.0 { format!("{n:.0}{suffix}") } else { format!("{n:.1}{suffix}") };
        }
        n /= 1024.0;
    }
    format!("{n:.1}P")
}

/// A duration of nanoseconds in at most six columns: `80us`, `1.2ms`, `3.4s`.
pub fn duration(ns: u64) -> String {
    match ns {
        0..=999_999 => format!("{}us", ns / 1000),
        1_000_000..=999_999_999 => format!("{:.1}ms", ns as f64 / 1e6),
        _ => format!("{:.1}s", ns as f64 / 1e9),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use control::{ConnectionState, ConnectionStatus, DiskState, PeerDeviceStatistics, ReplicationState};

    fn status(sectors: u64, writes: u64) -> ResourceStatus {
        let total = StageLatency {
            request: "write".into(),
            stage: "total".into(),
            sum_ns: writes * 1000,
            buckets: vec![(1024, writes)],
        };
        let statistics = control::DeviceStatistics { written_sectors: sectors, ..Default::default() };
        let device = DeviceStatus {
            latencies: vec![total],
            statistics: Some(statistics),
            ..DeviceStatus::new(0, DiskState::UpToDate)
        };
        let statistics = PeerDeviceStatistics { sent_sectors: 2 * sectors, ..Default::default() };
        let peer = PeerDeviceStatus {
            statistics: Some(statistics),
            ..PeerDeviceStatus::new(0, ReplicationState::Established, DiskState::UpToDate)
        };
        let connection =
            ConnectionStatus { peer_devices: vec![peer], ..ConnectionStatus::new("bravo", ConnectionState::Connected) };
        ResourceStatus { devices: vec![device], connections: vec![connection], ..ResourceStatus::new("r0") }
    }

    #[test]
    fn rates_are_differences_per_second() {
        let rates = Rates::between(Some(&status(100, 10)), &status(300, 14), Duration::from_secs(2));
        assert_eq!((rates.disk_written, rates.sent), (51_200.0, 102_400.0));
        assert_eq!((rates.writes, rates.p99_ns("write", "total")), (2.0, Some(1024)));
        assert_eq!(rates.p99_ns("write", "disk"), None);
        assert_eq!(Rates::between(None, &status(1, 1), Duration::from_secs(1)), Rates::default());
        let restarted = Rates::between(Some(&status(300, 14)), &status(1, 1), Duration::from_secs(1));
        assert_eq!((restarted.disk_written, restarted.writes), (0.0, 0.0));
    }

    #[test]
    fn figures_are_short() {
        assert_eq!([0.0, 640.0, 1234.0, 47_290_000.0, 1e15].map(bytes), ["0", "640", "1.2K", "45.1M", "909T"]);
        assert_eq!([0, 80_000, 1_200_000, 3_400_000_000].map(duration), ["0us", "80us", "1.2ms", "3.4s"]);
        assert!([999.4, 999.6, 1023.0, 102_300.0, 1e18].iter().all(|n| bytes(*n).len() <= 6));
    }
}
