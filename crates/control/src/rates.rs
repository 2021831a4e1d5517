//! Percentages, rates and remaining times (`docs/spec/config-and-cli.md` 4.2, "Definitions").

use crate::states::ReplicationState;
use crate::status::{PeerDeviceStatus, SyncDetails};

const SECTORS_PER_MIB: f64 = 2048.0;

/// What is known of the progress of a resync or verify.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Progress {
    details: SyncDetails,
    left_sectors: u64,
}

impl Progress {
    /// `None` unless the total is known and not zero.
    pub(crate) fn of(peer_device: &PeerDeviceStatus) -> Option<Progress> {
        let details = peer_device.sync.filter(|sync| sync.total_sectors > 0)?;
        let out_of_sync = peer_device.statistics.map_or(0, |s| s.out_of_sync_sectors);
        let left_sectors = match details.verify {
            Some(verify) => verify.left_sectors,
            None => out_of_sync.saturating_sub(details.failed_sectors),
        };
        Some(Progress { details, left_sectors })
    }

    /// 0 to 100.
    pub(crate) fn percent_done(self) -> f64 {
        percent(self.details.total_sectors.saturating_sub(self.left_sectors), self.details.total_sectors)
    }

    /// MiB/s since the latest mark; 0 if unknown.
    pub(crate) fn recent_rate(self) -> f64 {
        mib_per_s(self.details.db0_sectors, self.details.dt0_ms)
    }

    /// MiB/s over the whole window of marks; 0 if unknown.
    pub(crate) fn window_rate(self) -> f64 {
        mib_per_s(self.details.db1_sectors, self.details.dt1_ms)
    }

    /// MiB/s since the start, without pauses; 0 if unknown.
    pub(crate) fn average_rate(self) -> f64 {
        let done = self.details.total_sectors.saturating_sub(self.left_sectors);
        mib_per_s(done, self.details.since_start_ms.saturating_sub(self.details.paused_ms))
    }

    /// Seconds that are left at the rate of the window; `None` if the rate is 0.
    pub(crate) fn seconds_left(self) -> Option<u64> {
        let rate = self.window_rate();
        (rate > 0.0).then(|| (self.left_sectors as f64 / SECTORS_PER_MIB / rate).round() as u64)
    }

    pub(crate) fn details(self) -> SyncDetails {
        self.details
    }
}

/// The value of `done:`, with or without details: 0 to 100; `None` if nothing is in progress.
pub(crate) fn percent_done(peer_device: &PeerDeviceStatus, size_sectors: Option<u64>) -> Option<f64> {
    use ReplicationState::*;
    let syncing =
        matches!(peer_device.replication, SyncSource | SyncTarget | PausedSyncS | PausedSyncT | VerifyS | VerifyT);
    if !syncing {
        return None;
    }
    Progress::of(peer_device).map(Progress::percent_done).or_else(|| percent_in_sync(peer_device, size_sectors?))
}

/// How much of the volume is in sync, 0 to 100; `None` without counters.
pub(crate) fn percent_in_sync(peer_device: &PeerDeviceStatus, size_sectors: u64) -> Option<f64> {
    let out_of_sync = peer_device.statistics?.out_of_sync_sectors;
    Some(percent(size_sectors.saturating_sub(out_of_sync), size_sectors))
}

fn percent(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { 100.0 * part as f64 / whole as f64 }
}

fn mib_per_s(sectors: u64, ms: u64) -> f64 {
    if ms == 0 { 0.0 } else { sectors as f64 / SECTORS_PER_MIB / (ms as f64 / 1000.0) }
}
