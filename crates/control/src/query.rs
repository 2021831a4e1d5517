//! One-word queries (`docs/spec/config-and-cli.md` 4.7) and what `wait-connect` and `wait-sync` wait for (4.6).

use crate::states::{ConnectionState, ReplicationState};
use crate::status::{ConnectionStatus, PeerDeviceStatus, ResourceStatus};

/// `dstate`: our disk, then each peer's, as in `UpToDate/DUnknown/Outdated`; `None` if there is no such volume.
pub fn disk_states(resource: &ResourceStatus, volume: u16) -> Option<String> {
    let own = resource.device(volume)?.disk.as_str();
    let peers = resource.connections.iter().filter_map(|c| c.peer_device(volume)).map(|p| p.peer_disk.as_str());
    Some(std::iter::once(own).chain(peers).collect::<Vec<_>>().join("/"))
}

/// Whether it can be opened for writing now, and a number that says how good a choice this node is
/// (4.3, "may_promote and promotion_score").
pub fn promotion(resource: &ResourceStatus) -> (bool, u32) {
    use crate::states::{DiskState, Role};
    let devices = &resource.devices;
    if devices.is_empty() || resource.force_io_failures || devices.iter().any(|d| !d.quorum) {
        return (false, 0);
    }
    let up_to_date = |volume: u16| {
        let local = resource.device(volume).is_some_and(|d| d.disk == DiskState::UpToDate);
        let peers = resource.connections.iter().filter_map(|c| c.peer_device(volume));
        u32::from(local) + peers.filter(|p| p.peer_disk == DiskState::UpToDate).count() as u32
    };
    let fewest = devices.iter().map(|d| up_to_date(d.volume)).min().unwrap_or(0).min(99);
    if fewest == 0 {
        return (false, 0);
    }
    let has_disks = devices.iter().all(|d| d.disk >= DiskState::Inconsistent);
    let local = devices.iter().filter(|d| d.disk == DiskState::UpToDate).count().min(99) as u32;
    let score = if has_disks { 10_000 } else { 0 } + 100 * local + fewest;
    let somebody_is_primary =
        resource.role == Role::Primary || resource.connections.iter().any(|c| c.peer_role == Role::Primary);
    (!somebody_is_primary, score)
}

/// What a `wait-*` verb waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WaitFor {
    /// At least Established.
    Connect,
    /// Exactly Established.
    Sync,
}

/// How far one peer device is on its way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Progress {
    /// Arrived.
    Done,
    /// Not yet.
    Waiting,
    /// Will not arrive: the connection gave up.
    GivenUp,
}

/// Looks at one peer device. A connection that is StandAlone (or below Unconnected) counts as given up, unless
/// `after_split_brain`.
pub fn wait_progress(
    connection: &ConnectionStatus,
    peer_device: &PeerDeviceStatus,
    wait_for: WaitFor,
    after_split_brain: bool,
) -> Progress {
    let arrived = match wait_for {
        WaitFor::Connect => peer_device.replication >= ReplicationState::Established,
        WaitFor::Sync => peer_device.replication == ReplicationState::Established,
    };
    if arrived {
        Progress::Done
    } else if connection.connection < ConnectionState::Unconnected && !after_split_brain {
        Progress::GivenUp
    } else {
        Progress::Waiting
    }
}

/// Seconds until a resync or verify ends at the speed of the last seconds; `None` if nothing runs or nothing moves.
pub fn seconds_left(peer_device: &PeerDeviceStatus) -> Option<u64> {
    crate::rates::Progress::of(peer_device)?.seconds_left()
}

/// MiB per second of a running resync or verify over the last seconds; 0 if nothing runs or nothing moves.
pub fn rate_mib_per_s(peer_device: &PeerDeviceStatus) -> f64 {
    crate::rates::Progress::of(peer_device).map_or(0.0, crate::rates::Progress::window_rate)
}

/// Seconds as `H:MM:SS`.
pub fn clock(seconds: u64) -> String {
    format!("{}:{:02}:{:02}", seconds / 3600, seconds / 60 % 60, seconds % 60)
}

pub use crate::matter::{progress_words, slowed_words};

/// Percent done of a running resync or verify, 0 to 100.
pub fn percent_done(resource: &ResourceStatus, peer_device: &PeerDeviceStatus) -> Option<f64> {
    let size = resource.device(peer_device.volume).and_then(|d| d.statistics).map(|s| s.size_sectors);
    crate::rates::percent_done(peer_device, size)
}
