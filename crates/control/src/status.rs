//! The status model: what a running resource says about itself. Sizes and positions are 512-byte sectors, as in the
//! kernel; the renderers convert to KiB where the tools do. `None` in a statistics field means "not known".

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::asker::Asker;
use crate::latency::StageLatency;
use crate::states::{ConnectionState, DiskState, ReplicationState, Role, WriteOrdering};

/// Why something is in its state (not part of the tools' output).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cause {
    /// A stable name of the reason, for programs.
    pub code: String,
    /// The reason in words.
    pub text: String,
}

/// How the latest try to reach a peer ended (not part of the tools' output).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Attempt {
    /// The peer's machine says that nobody listens there.
    Refused,
    /// No answer within `connect-int`.
    TimedOut,
    /// No route leads there.
    Unreachable,
    /// A route leads there, and the machine at its end, or on the way, finds nobody with that address.
    NobodyThere,
    /// Who answered there has ended the connections at once.
    Ended,
    /// Somebody else listens on our port.
    PortTaken,
    /// Our address is not one of this machine.
    NoSuchAddress,
    /// The kernel gave another error, in words.
    Failed(String),
}

/// In a few words, for the log.
impl fmt::Display for Attempt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Attempt::Refused => f.write_str("connection refused"),
            Attempt::TimedOut => f.write_str("no answer in time"),
            Attempt::Unreachable => f.write_str("no route"),
            Attempt::NobodyThere => f.write_str("nobody has that address: the machine, or the link to it, is off"),
            Attempt::Ended => f.write_str("the connections were ended at once"),
            Attempt::PortTaken => f.write_str("another program listens on our port"),
            Attempt::NoSuchAddress => f.write_str("our address is not one of this machine"),
            Attempt::Failed(error) => f.write_str(error),
        }
    }
}

/// What a resync or verify waits for most, as far as this node can tell (not part of the tools' output).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SlowedBy {
    /// A configured rate.
    Limit,
    /// Applications' I/O, which it makes way for.
    Application,
    /// This node's disk.
    Disk,
    /// The network: what is to be sent waits for it.
    Network,
    /// The peer's answers: its disk, or the network.
    Peer,
    /// The peer's next request: it asks for no more at present.
    Requests,
}

/// One resource of this node.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ResourceStatus {
    /// The name in the configuration.
    pub name: String,
    /// Our node id, 0-31; `None` if the resource has none (two-node dialect without ids).
    pub node_id: Option<u8>,
    /// Our role.
    pub role: Role,
    /// Why I/O is frozen, if it is.
    #[serde(default)]
    pub suspended: Suspended,
    /// Who has asked for `suspend-io` (not part of the tools' output).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub frozen_by: Option<Asker>,
    /// In how many seconds it goes on by itself (`suspend-io --lease`; not part of the tools' output).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub frozen_for: Option<std::num::NonZeroU32>,
    /// All I/O fails because `secondary --force` was asked for.
    #[serde(default)]
    pub force_io_failures: bool,
    /// What comes of opening a Secondary's device for writing (not part of the tools' output).
    #[serde(default)]
    pub opening: Opening,
    /// The write ordering in use.
    pub write_ordering: WriteOrdering,
    /// Version of the program that runs it (not part of the tools' output).
    #[serde(default)]
    pub program: String,
    /// What was decided last about the whole resource.
    #[serde(default)]
    pub cause: Option<Cause>,
    /// The volumes, by rising number.
    pub devices: Vec<DeviceStatus>,
    /// The connections, in the order of the configuration.
    pub connections: Vec<ConnectionStatus>,
    /// The process's memory; only in answers to [`Request::Status`](crate::Request::Status).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<MemoryStatus>,
}

/// What comes of opening the device of a Secondary for writing.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Opening {
    /// It is refused, or there is no device.
    #[default]
    Refused,
    /// The node becomes Primary (`auto-promote`).
    Promotes,
    /// The same, by the dialect alone: `auto-promote` is not written, and the process has spoken 8.4's before.
    PromotesByDialect,
}

/// The memory plan of a resource's process, in bytes (not part of the tools' output).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct MemoryStatus {
    /// Buffers that there are.
    pub buffers: u64,
    /// Buffers that are always there. They suffice to go on.
    pub buffers_least: u64,
    /// What the buffers may grow to (`max-buffers`).
    pub buffers_most: u64,
    /// Bitmaps of attached disks.
    pub bitmaps: u64,
    /// Locked: what the kernel cannot take away.
    pub locked: u64,
    /// How much may be locked; `None` if there is no limit.
    pub lockable: Option<u64>,
}

impl ResourceStatus {
    /// A Secondary without volumes and connections.
    pub fn new(name: &str) -> ResourceStatus {
        ResourceStatus {
            name: name.to_owned(),
            node_id: None,
            role: Role::Secondary,
            suspended: Suspended::default(),
            frozen_by: None,
            frozen_for: None,
            force_io_failures: false,
            opening: Opening::Refused,
            write_ordering: WriteOrdering::Flush,
            program: String::new(),
            cause: None,
            memory: None,
            devices: Vec::new(),
            connections: Vec::new(),
        }
    }

    /// The device with this volume number.
    pub fn device(&self, volume: u16) -> Option<&DeviceStatus> {
        self.devices.iter().find(|d| d.volume == volume)
    }

    /// The connection to a peer, by its name or its node id in decimal.
    pub fn connection(&self, peer: &str) -> Option<&ConnectionStatus> {
        let by_name = self.connections.iter().find(|c| c.name == peer);
        by_name.or_else(|| {
            let id: u8 = peer.parse().ok()?;
            self.connections.iter().find(|c| c.peer_node_id == Some(id))
        })
    }
}

/// Reasons why I/O of a resource is frozen (`suspended:`).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Suspended {
    /// `suspend-io`.
    pub user: bool,
    /// No access to good data, and on-no-data-accessible is suspend-io.
    pub no_data: bool,
    /// A fence-peer handler runs.
    pub fencing: bool,
    /// Quorum is lost, and on-no-quorum is suspend-io.
    pub quorum: bool,
}

impl Suspended {
    /// Whether any reason holds.
    pub fn any(self) -> bool {
        self.user || self.no_data || self.fencing || self.quorum
    }
}

/// `no`, or the reasons joined with commas.
impl fmt::Display for Suspended {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        joined(f, &[(self.user, "user"), (self.no_data, "no-data"), (self.fencing, "fencing"), (self.quorum, "quorum")])
    }
}

/// Whether a diskless node is so on purpose.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum IntentionalClient {
    /// Configured without a disk.
    Yes,
    /// Has, or should have, a disk.
    #[default]
    No,
    /// Not known.
    Unknown,
}

impl IntentionalClient {
    /// The word as the tools print it.
    pub const fn as_str(self) -> &'static str {
        match self {
            IntentionalClient::Yes => "yes",
            IntentionalClient::No => "no",
            IntentionalClient::Unknown => "unknown",
        }
    }
}

/// One volume of this node.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct DeviceStatus {
    /// Volume number.
    pub volume: u16,
    /// The minor number of the configuration.
    pub minor: u32,
    /// State of our disk.
    pub disk: DiskState,
    /// Whether we are diskless on purpose.
    #[serde(default)]
    pub client: IntentionalClient,
    /// Whether somebody has the device open; `None` if not known.
    #[serde(default)]
    pub open: Option<bool>,
    /// Whether this device has quorum (true if quorum is off).
    pub quorum: bool,
    /// Without quorum: who is in reach, and how many it takes (not part of the tools' output).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub votes: Option<String>,
    /// Its metadata are new: no data was written here yet, and no resync to here has ended (not part of the tools'
    /// output).
    #[serde(default)]
    pub fresh: bool,
    /// Path of the backing device.
    #[serde(default)]
    pub backing_dev: Option<String>,
    /// Counters; `None` before the device has any.
    #[serde(default)]
    pub statistics: Option<DeviceStatistics>,
    /// Path of the block device that applications open, if a front end made one.
    #[serde(default)]
    pub device_path: Option<String>,
    /// The NBD address of this volume, if it is exported.
    #[serde(default)]
    pub nbd_uri: Option<String>,
    /// What was decided last about its disk.
    #[serde(default)]
    pub cause: Option<Cause>,
    /// How long requests took, stage by stage; only in answers to [`Request::Status`](crate::Request::Status).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub latencies: Vec<StageLatency>,
}

impl DeviceStatus {
    /// A volume whose disk is in that state, with quorum.
    pub fn new(volume: u16, disk: DiskState) -> DeviceStatus {
        DeviceStatus {
            volume,
            minor: 0,
            disk,
            client: IntentionalClient::No,
            open: None,
            quorum: true,
            votes: None,
            fresh: false,
            backing_dev: None,
            statistics: None,
            device_path: None,
            nbd_uri: None,
            cause: None,
            latencies: Vec::new(),
        }
    }
}

/// Counters of a device (`docs/spec/config-and-cli.md` 4.4).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct DeviceStatistics {
    /// Usable size in sectors.
    pub size_sectors: u64,
    /// Read from the backing device, in sectors.
    pub read_sectors: u64,
    /// Written to the backing device, in sectors.
    pub written_sectors: u64,
    /// Activity-log transactions.
    pub al_writes: u64,
    /// Bitmap pages written.
    pub bm_writes: u64,
    /// Application requests not completed.
    pub upper_pending: u32,
    /// Disk requests not completed.
    pub lower_pending: u32,
    /// The activity log is not updated.
    pub al_suspended: bool,
    /// Application requests are held back.
    pub upper_blocked: bool,
    /// The backing device is congested.
    pub lower_blocked: bool,
    /// Front end counters (not part of the tools' output).
    pub requests: u64,
}

/// One connection to a peer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ConnectionStatus {
    /// The peer's node id; `None` if not known.
    pub peer_node_id: Option<u8>,
    /// The peer's name; may be empty.
    pub name: String,
    /// State of the connection.
    pub connection: ConnectionState,
    /// The peer's role.
    pub peer_role: Role,
    /// Whether the streams are encrypted.
    #[serde(default)]
    pub tls: bool,
    /// Agreed protocol number once connected.
    #[serde(default)]
    pub protocol: Option<u32>,
    /// Tries in a row in which the nodes did not accept each other's secret (not part of the tools' output).
    #[serde(default)]
    pub failed_authentications: u32,
    /// Why the connection is in this state.
    #[serde(default)]
    pub cause: Option<Cause>,
    /// How the latest try to connect ended, if it did not succeed.
    #[serde(default)]
    pub attempt: Option<Attempt>,
    /// While it is not connected: the address of somebody who has connected to us within the last minute, and is not
    /// the peer (not part of the tools' output).
    #[serde(default)]
    pub stranger: Option<String>,
    /// It comes and goes (not part of the tools' output).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub losses: Option<LinkLosses>,
    /// Counters; `None` if not known.
    #[serde(default)]
    pub statistics: Option<ConnectionStatistics>,
    /// Its paths.
    #[serde(default)]
    pub paths: Vec<PathStatus>,
    /// Its peer devices, by rising volume number.
    pub peer_devices: Vec<PeerDeviceStatus>,
}

impl ConnectionStatus {
    /// A connection in that state to a peer of which nothing is known.
    pub fn new(name: &str, connection: ConnectionState) -> ConnectionStatus {
        ConnectionStatus {
            peer_node_id: None,
            name: name.to_owned(),
            connection,
            peer_role: Role::Unknown,
            tls: false,
            protocol: None,
            failed_authentications: 0,
            cause: None,
            attempt: None,
            stranger: None,
            losses: None,
            statistics: None,
            paths: Vec::new(),
            peer_devices: Vec::new(),
        }
    }

    /// The peer device with this volume number.
    pub fn peer_device(&self, volume: u16) -> Option<&PeerDeviceStatus> {
        self.peer_devices.iter().find(|p| p.volume == volume)
    }
}

/// How often the links to a peer were lost lately.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LinkLosses {
    /// So many of them.
    pub times: u32,
    /// Within so many seconds.
    pub seconds: u32,
    /// Each of them while data was on its way.
    pub with_data: bool,
    /// It is there again, for longer by far than it was between any of them.
    #[serde(default)]
    pub holds: bool,
    /// Why the last one was, in words.
    pub why: String,
}

/// Counters of a connection.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ConnectionStatistics {
    /// The send queue is congested.
    pub congested: bool,
    /// Application sectors sent and not acknowledged.
    pub ap_in_flight_sectors: u64,
    /// Resync sectors requested and not answered.
    pub rs_in_flight_sectors: u64,
}

/// One end of a path.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PathAddress {
    /// `ipv4`, `ipv6`, `ssocks`, `sdp`.
    pub family: String,
    /// The address without port; an IPv6 address without brackets.
    pub address: String,
    /// TCP port.
    pub port: u16,
}

/// As in `ipv4:10.1.1.1:7789` or `ipv6:[fe80::1]:7789`.
impl fmt::Display for PathAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.address.contains(':') {
            write!(f, "{}:[{}]:{}", self.family, self.address, self.port)
        } else {
            write!(f, "{}:{}:{}", self.family, self.address, self.port)
        }
    }
}

impl From<std::net::SocketAddr> for PathAddress {
    fn from(address: std::net::SocketAddr) -> Self {
        let family = if address.is_ipv4() { "ipv4" } else { "ipv6" };
        PathAddress { family: family.to_owned(), address: address.ip().to_string(), port: address.port() }
    }
}

/// One path of a connection.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PathStatus {
    /// Our end.
    pub local: PathAddress,
    /// The peer's end.
    pub peer: PathAddress,
    /// Whether the streams run over it.
    pub established: bool,
}

/// One volume as seen at one peer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PeerDeviceStatus {
    /// Volume number.
    pub volume: u16,
    /// Replication state.
    pub replication: ReplicationState,
    /// State of the peer's disk.
    pub peer_disk: DiskState,
    /// Whether the peer is diskless on purpose.
    #[serde(default)]
    pub peer_client: IntentionalClient,
    /// Why a resync is paused, if it is.
    #[serde(default)]
    pub resync_suspended: ResyncSuspended,
    /// What was decided last about this volume and this peer.
    #[serde(default)]
    pub cause: Option<Cause>,
    /// Counters; `None` if not known.
    #[serde(default)]
    pub statistics: Option<PeerDeviceStatistics>,
    /// Progress of the running resync or verify.
    #[serde(default)]
    pub sync: Option<SyncDetails>,
}

impl PeerDeviceStatus {
    /// A volume at a peer, in that state.
    pub fn new(volume: u16, replication: ReplicationState, peer_disk: DiskState) -> PeerDeviceStatus {
        PeerDeviceStatus {
            volume,
            replication,
            peer_disk,
            peer_client: IntentionalClient::No,
            resync_suspended: ResyncSuspended::default(),
            cause: None,
            statistics: None,
            sync: None,
        }
    }
}

/// Reasons why a resync is paused (`resync-suspended:`).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ResyncSuspended {
    /// `pause-sync` here.
    pub user: bool,
    /// Paused by the peer.
    pub peer: bool,
    /// resync-after another device.
    pub dependency: bool,
    /// Too many resyncs run already.
    pub max_parallel: bool,
}

impl ResyncSuspended {
    /// Whether any reason holds.
    pub fn any(self) -> bool {
        self.user || self.peer || self.dependency || self.max_parallel
    }
}

/// `no`, or the reasons joined with commas.
impl fmt::Display for ResyncSuspended {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        joined(
            f,
            &[
                (self.user, "user"),
                (self.peer, "peer"),
                (self.dependency, "dependency"),
                (self.max_parallel, "max-parallel"),
            ],
        )
    }
}

/// Counters of a peer device.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct PeerDeviceStatistics {
    /// Received data, in sectors.
    pub received_sectors: u64,
    /// Sent data, in sectors.
    pub sent_sectors: u64,
    /// Marked in the bitmap, in sectors.
    pub out_of_sync_sectors: u64,
    /// Requests sent and not answered.
    pub pending: u32,
    /// Requests received and not answered.
    pub unacked: u32,
}

/// Progress of a resync or verify. Durations in milliseconds, amounts in sectors.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct SyncDetails {
    /// What there was to do at the start.
    pub total_sectors: u64,
    /// Since the start, pauses included.
    pub since_start_ms: u64,
    /// Time spent paused.
    pub paused_ms: u64,
    /// Since the latest progress mark.
    pub dt0_ms: u64,
    /// Done since the latest progress mark.
    pub db0_sectors: u64,
    /// Since the oldest progress mark.
    pub dt1_ms: u64,
    /// Done since the oldest progress mark.
    pub db1_sectors: u64,
    /// Could not be read or written.
    pub failed_sectors: u64,
    /// Skipped because the checksums were the same.
    pub same_csum_sectors: u64,
    /// The rate that the controller aims at, in KiB/s.
    pub want_kib_per_s: u64,
    /// What it waits for most.
    pub slowed_by: Option<SlowedBy>,
    /// Only for a verify.
    pub verify: Option<VerifyDetails>,
}

/// Progress of a verify, in sectors.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct VerifyDetails {
    /// First sector of the range.
    pub start_sector: u64,
    /// End of the range; `u64::MAX` means the end of the device.
    pub stop_sector: u64,
    /// Next sector to check.
    pub position_sector: u64,
    /// Not checked yet.
    pub left_sectors: u64,
    /// Left out.
    pub skipped_sectors: u64,
}

fn joined(f: &mut fmt::Formatter<'_>, reasons: &[(bool, &str)]) -> fmt::Result {
    let words: Vec<&str> = reasons.iter().filter(|(on, _)| *on).map(|(_, word)| *word).collect();
    f.write_str(&if words.is_empty() { "no".to_owned() } else { words.join(",") })
}
