//! The configuration that the core works by: plain values with DRBD's defaults, already validated by the `config`
//! crate.

use crate::decide::Handler;
use crate::decide::private::Decides;
use std::net::SocketAddr;
use units::{ByteLen, Duration, NodeId, VolumeNr};

pub use crate::decide::quorum::{OnNoQuorum, Part, QuorumConfig, Threshold};
pub use crate::decide::split_brain::{Policies, RrConflict};
pub use wire::ReplicationProtocol as Protocol;

/// A resource as one node sees it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ResourceConfig {
    /// Resource name.
    pub name: String,
    /// This node.
    pub node: NodeId,
    /// What happens to I/O when no UpToDate copy is reachable.
    pub on_no_data: OnNoData,
    /// `quorum` and what belongs to it; only 9's dialect has it.
    pub quorum: QuorumConfig,
    /// What a Primary does whose I/O is frozen, and whose data is older than a peer's.
    pub on_suspended_outdated: OnSuspendedOutdated,
    /// Which of [`Handler::WAITED_FOR`] are configured. A resync to or from this node waits for the end of its own.
    pub handlers: Vec<Handler>,
    /// Volumes, ascending.
    pub volumes: Vec<VolumeConfig>,
    /// Peers.
    pub connections: Vec<ConnectionConfig>,
}

/// `on-no-data-accessible`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum OnNoData {
    /// Fail requests.
    #[default]
    IoError,
    /// Freeze them.
    SuspendIo,
}

/// `on-suspended-primary-outdated`; only 9's dialect has it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum OnSuspendedOutdated {
    /// It stays Primary, and the nodes stay apart.
    #[default]
    Disconnect,
    /// It becomes Secondary: what waits here fails, and its copy is brought up to date.
    ForceSecondary,
}

/// One volume of a resource, on this node.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct VolumeConfig {
    /// Its number.
    pub volume: VolumeNr,
    /// Has this node a disk for it?
    pub disk: Option<DiskConfig>,
}

/// Options of a backing disk (`docs/spec/config-and-cli.md` 2.3).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DiskConfig {
    /// Where the metadata lies.
    pub meta: meta::MetaDisk,
    /// `size`: use only so much; `None` = all.
    pub size: Option<ByteLen>,
    /// `on-io-error`.
    pub on_io_error: OnIoError,
    /// `fencing` (8.4 has it in the disk section).
    pub fencing: Fencing,
    /// `disk-flushes`.
    pub disk_flushes: bool,
    /// `disk-drain`.
    pub disk_drain: bool,
    /// `md-flushes`.
    pub md_flushes: bool,
    /// `al-extents`, 67 to 65534.
    pub al_extents: u32,
    /// `al-updates`.
    pub al_updates: bool,
    /// `discard-zeroes-if-aligned`.
    pub discard_zeroes_if_aligned: bool,
    /// `disk-timeout`; zero = never.
    pub disk_timeout: Duration,
    /// Resync speed.
    pub resync: ResyncConfig,
}

/// Options of the resync controller (`docs/spec/data-path-and-resync.md` 8.1). Rates are KiB/s.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ResyncConfig {
    /// `resync-rate`, used when `plan_ahead` is zero.
    pub rate: u32,
    /// `c-plan-ahead` in units of 0.1 s.
    pub plan_ahead: u32,
    /// `c-delay-target` in units of 0.1 s.
    pub delay_target: u32,
    /// `c-fill-target` in sectors.
    pub fill_target: u32,
    /// `c-max-rate`.
    pub max_rate: u32,
    /// `c-min-rate`.
    pub min_rate: u32,
    /// `resync-after`: wait for this volume of the same resource. Those of others come with `Resource::on_dependency`.
    pub after: Option<VolumeNr>,
    /// `resync-controller`; `plan_ahead` 0 means fixed, whatever this says.
    pub controller: ResyncController,
    /// The adaptive controller's goal: finish within this time from the start, at the applications' expense if need be.
    pub finish_within: Option<Duration>,
    /// The adaptive controller's other goal: how many percent longer applications' requests may take during a resync.
    pub latency_budget: u32,
    /// `rs-discard-granularity` in bytes; 0 = not set.
    pub discard_granularity: u32,
}

/// What decides on the speed of a resync.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum ResyncController {
    /// Always `resync-rate`.
    Fixed,
    /// The planner that DRBD has.
    Drbd,
    /// By measured delays.
    #[default]
    Adaptive,
}

/// `on-congestion` (`docs/spec/data-path-and-resync.md` 6.5).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum OnCongestion {
    /// Applications wait.
    #[default]
    Block,
    /// Run ahead of the peer.
    PullAhead,
    /// Drop the connection.
    Disconnect,
}

/// `on-io-error`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum OnIoError {
    /// Report it, the disk becomes Inconsistent.
    PassOn,
    /// Let go of the disk.
    #[default]
    Detach,
    /// Run `local-io-error`, then let go of the disk.
    CallHandler,
}

/// `fencing`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub enum Fencing {
    /// No fencing.
    #[default]
    DontCare,
    /// Outdate the peer before going on alone, without freezing.
    ResourceOnly,
    /// Freeze I/O until the peer is fenced.
    ResourceAndStonith,
}

/// Options of a connection (`docs/spec/config-and-cli.md` 2.2).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ConnectionConfig {
    /// The peer.
    pub peer: NodeId,
    /// Its host name.
    pub peer_name: String,
    /// Our and the peer's address.
    pub addresses: (SocketAddr, SocketAddr),
    /// `protocol`.
    pub protocol: Protocol,
    /// Highest protocol version to offer: 86 to 101, or 118 to 124 for a peer that may speak DRBD 9's dialect. That is
    /// not complete (no volume without a disk), so that nothing offers it without being told to.
    pub max_version: u32,
    /// `cram-hmac-alg` (with `shared-secret` in the engine).
    pub cram_hmac: Option<String>,
    /// `data-integrity-alg`.
    pub integrity: Option<String>,
    /// `allow-two-primaries`.
    pub two_primaries: bool,
    /// `timeout`.
    pub timeout: Duration,
    /// `ping-int`.
    pub ping_int: Duration,
    /// `ping-timeout`.
    pub ping_timeout: Duration,
    /// `connect-int`.
    pub connect_int: Duration,
    /// `ko-count`; 0 = never.
    pub ko_count: u32,
    /// `max-epoch-size`, writes.
    pub max_epoch_size: u32,
    /// `max-buffers`, pages of 4 KiB: bounds what the peer may have in flight here.
    pub max_buffers: u32,
    /// `after-sb-0pri`, `after-sb-1pri`, `after-sb-2pri`.
    pub after_sb: Policies,
    /// `rr-conflict`.
    pub rr_conflict: RrConflict,
    /// `always-asbp`.
    pub always_asbp: bool,
    /// `use-rle`.
    pub use_rle: bool,
    /// `csums-alg`.
    pub csums: Option<String>,
    /// `csums-after-crash-only`.
    pub csums_after_crash_only: bool,
    /// `on-congestion`.
    pub on_congestion: OnCongestion,
    /// `congestion-fill`, sectors; 0 = off.
    pub congestion_fill: u64,
    /// `congestion-extents`.
    pub congestion_extents: u32,
    /// `verify-alg`.
    pub verify: Option<String>,
    /// Is the peer to have a disk (`bitmap`, `peer-tiebreaker`)?
    pub part: Part,
    /// Which rules this node decides by towards the peer: urbd's. Only tests have others.
    pub decides: Decides,
    /// Can the caller compute `csums`? If not the peer is told the name all the same, as it may end a connection where
    /// they differ, and all is copied.
    pub computes_csums: bool,
    /// Can the caller compute `verify`? If not the peer is told the name as well, and nothing is verified.
    pub computes_verify: bool,
}

impl Default for DiskConfig {
    fn default() -> Self {
        DiskConfig {
            meta: meta::MetaDisk::Internal,
            size: None,
            on_io_error: OnIoError::default(),
            fencing: Fencing::default(),
            disk_flushes: true,
            disk_drain: true,
            md_flushes: true,
            al_extents: 1237,
            al_updates: true,
            discard_zeroes_if_aligned: true,
            disk_timeout: Duration(0),
            resync: ResyncConfig::default(),
        }
    }
}

impl Default for ResyncConfig {
    fn default() -> Self {
        ResyncConfig {
            rate: 250,
            plan_ahead: 20,
            delay_target: 10,
            fill_target: 100,
            max_rate: 102_400,
            min_rate: 250,
            after: None,
            controller: ResyncController::default(),
            finish_within: None,
            latency_budget: 20,
            discard_granularity: 0,
        }
    }
}

impl ConnectionConfig {
    /// DRBD's defaults towards `peer` at the given addresses.
    #[must_use]
    pub fn new(peer: NodeId, peer_name: &str, addresses: (SocketAddr, SocketAddr)) -> ConnectionConfig {
        ConnectionConfig {
            peer,
            peer_name: peer_name.to_owned(),
            addresses,
            protocol: Protocol::C,
            max_version: 101,
            cram_hmac: None,
            integrity: None,
            two_primaries: false,
            timeout: Duration::from_secs(6),
            ping_int: Duration::from_secs(10),
            ping_timeout: Duration::from_millis(500),
            connect_int: Duration::from_secs(10),
            ko_count: 7,
            max_epoch_size: 2048,
            max_buffers: 2048,
            after_sb: Policies::default(),
            rr_conflict: RrConflict::default(),
            always_asbp: false,
            use_rle: true,
            csums: None,
            csums_after_crash_only: false,
            on_congestion: OnCongestion::default(),
            congestion_fill: 0,
            congestion_extents: 1237,
            verify: None,
            part: Part::Disk,
            decides: Decides::default(),
            computes_csums: true,
            computes_verify: true,
        }
    }

    /// `csums-alg`, if it can be computed.
    pub(crate) fn usable_csums(&self) -> Option<&String> {
        self.csums.as_ref().filter(|_| self.computes_csums)
    }

    /// `verify-alg`, if it can be computed.
    pub(crate) fn usable_verify(&self) -> Option<&String> {
        self.verify.as_ref().filter(|_| self.computes_verify)
    }
}
