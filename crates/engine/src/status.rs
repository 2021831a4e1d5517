//! The core's snapshot as the control socket's status model.

use crate::fuse_server::FuseServer;
use crate::links::Links;
use crate::nbd_server::NbdServer;
use crate::volumes::Volumes;
use config::{LocalResource, LocalVolume};
use control::{
    Cause, ConnectionStatistics, ConnectionStatus, DeviceStatistics, DeviceStatus, IntentionalClient, PathStatus,
    PeerDeviceStatistics, PeerDeviceStatus, ResourceStatus, ResyncSuspended, SlowedBy, StageLatency, Suspended,
    SyncDetails, VerifyDetails, WhyEntry, WriteOrdering,
};
use std::collections::BTreeMap;
use units::{ByteLen, Generation, Histogram, Instant, NodeId, VolumeNr};
use urbd_core::{ConnectionSnapshot, ConnectionState, DeviceSnapshot, Notice, PeerDeviceSnapshot, Snapshot};

/// What the status needs besides the core's snapshot.
pub(crate) struct Surroundings<'a> {
    pub(crate) local: &'a LocalResource,
    pub(crate) minors: &'a BTreeMap<VolumeNr, u32>,
    pub(crate) volumes: &'a Volumes,
    pub(crate) nbd: &'a NbdServer,
    pub(crate) fuse: Option<&'a FuseServer>,
    pub(crate) links: &'a Links,
    pub(crate) causes: &'a Causes,
    pub(crate) now: Instant,
}

/// The latest decision about each object: a peer, a volume, both, or neither (the resource).
#[derive(Debug, Default)]
pub(crate) struct Causes(BTreeMap<(Option<NodeId>, Option<VolumeNr>), Cause>);

/// Notices of what follows from a decision.
const CONSEQUENCES: [&str; 3] = ["state-change", "new-generation", "size-changed"];

impl Causes {
    pub(crate) fn note(&mut self, notice: &Notice) {
        if !CONSEQUENCES.contains(&notice.reason) {
            let cause = Cause { code: notice.reason.to_owned(), text: notice.text.clone() };
            self.0.insert((notice.peer, notice.volume), cause);
        }
    }

    /// The connection to a peer is configured in a way that cannot be used.
    pub(crate) fn cannot_connect(&mut self, peer: NodeId, why: &str) {
        let cause = Cause { code: "connection-not-usable".to_owned(), text: why.to_owned() };
        self.0.insert((Some(peer), None), cause);
    }

    /// The link to a peer was lost; the engine knows more of it than the core.
    pub(crate) fn explain(&mut self, peer: NodeId, detail: &str) {
        let lost = self.0.get_mut(&(Some(peer), None)).filter(|cause| cause.code == "link-lost");
        if let Some(cause) = lost.filter(|_| !detail.is_empty()) {
            if detail.contains("none of which is spoken here") {
                cause.code = "incompatible-versions".to_owned();
                cause.text = detail.to_owned();
            } else {
                cause.text = format!("{} ({detail})", cause.text);
            }
        }
    }

    /// An administrator's command is the cause from now on.
    pub(crate) fn forget_peer(&mut self, peer: NodeId) {
        self.0.retain(|(about, _), _| *about != Some(peer));
    }

    /// The same, of the disk of this volume or of all.
    pub(crate) fn forget_disks(&mut self, which: Option<VolumeNr>) {
        self.0.retain(|about, _| !matches!(about, (None, Some(volume)) if which.is_none_or(|which| which == *volume)));
    }

    fn of(&self, peer: Option<NodeId>, volume: Option<VolumeNr>) -> Option<Cause> {
        self.0.get(&(peer, volume)).cloned()
    }
}

/// The status of the resource.
pub(crate) fn resource(s: &Snapshot, around: &Surroundings<'_>) -> ResourceStatus {
    ResourceStatus {
        name: s.name.clone(),
        node_id: Some(s.node.index() as u8),
        role: role(s.role),
        suspended: Suspended {
            user: s.suspended.user,
            no_data: s.suspended.no_data,
            fencing: s.suspended.fencing,
            quorum: false,
        },
        force_io_failures: false,
        write_ordering: write_ordering(s, around.local),
        program: env!("CARGO_PKG_VERSION").to_owned(),
        cause: around.causes.of(None, None),
        devices: s.devices.iter().map(|d| device(&s.name, d, around)).collect(),
        connections: s.connections.iter().map(|c| connection(c, around)).collect(),
        memory: None,
    }
}

/// The strongest ordering that every attached disk allows: without `disk-flushes`, ended writes are only waited
/// for.
fn write_ordering(s: &Snapshot, local: &LocalResource) -> WriteOrdering {
    let attached = |v: &&LocalVolume| s.devices.iter().any(|d| d.volume == v.nr && d.disk > wire::DiskState::Diskless);
    let all_flush = local.volumes.iter().filter(attached).all(|v| v.disk.disk_flushes);
    if all_flush { WriteOrdering::Flush } else { WriteOrdering::Drain }
}

/// The last decisions with their reasons, oldest first.
pub(crate) fn why(s: &Snapshot) -> Vec<WhyEntry> {
    let name = |peer| s.connections.iter().find(|c| Some(c.peer) == peer).map(|c| c.peer_name.as_str());
    let entry = |(_, notice): &(Instant, Notice)| {
        let peer = name(notice.peer).map(|p| format!(":{p}")).unwrap_or_default();
        let volume = notice.volume.map(|v| format!("/{}", v.0)).unwrap_or_default();
        WhyEntry {
            object: format!("{}{peer}{volume}", s.name),
            state: state_word(s, notice),
            code: notice.reason.to_owned(),
            text: notice.text.clone(),
        }
    };
    s.decisions.iter().map(entry).collect()
}

/// The present state of what a notice is about.
fn state_word(s: &Snapshot, notice: &Notice) -> String {
    let connection = s.connections.iter().find(|c| Some(c.peer) == notice.peer);
    match (connection, notice.volume) {
        (Some(c), Some(volume)) => match c.peer_devices.iter().find(|p| p.volume == volume) {
            Some(p) => format!("replication:{}", replication(c, p)),
            None => String::new(),
        },
        (Some(c), None) => format!("connection:{}", connection_state(c.state)),
        (None, Some(volume)) => match s.devices.iter().find(|d| d.volume == volume) {
            Some(d) => format!("disk:{}", disk(d.disk)),
            None => String::new(),
        },
        (None, None) => format!("role:{}", role(s.role)),
    }
}

/// How long requests of a kind spent in one of their stages.
pub(crate) fn latency((request, stage): (&str, &str), histogram: &Histogram) -> StageLatency {
    StageLatency {
        request: request.to_owned(),
        stage: stage.to_owned(),
        sum_ns: histogram.sum().0,
        buckets: histogram.buckets().map(|(end, count)| (end.0, count)).collect(),
    }
}

fn device(resource: &str, d: &DeviceSnapshot, around: &Surroundings<'_>) -> DeviceStatus {
    let path = around.volumes.path(d.volume).map(|p| p.data.display().to_string());
    let uri = |socket: &std::path::Path| format!("nbd+unix:///{resource}/{}?socket={}", d.volume, socket.display());
    DeviceStatus {
        volume: d.volume.0,
        minor: around.minors.get(&d.volume).copied().unwrap_or_default(),
        disk: disk(d.disk),
        client: if path.is_none() { IntentionalClient::Yes } else { IntentionalClient::No },
        open: Some(around.nbd.is_open(d.volume) || around.fuse.is_some_and(|f| f.is_open(d.volume))),
        quorum: true,
        fresh: d.generations[0].same(Generation::JUST_CREATED),
        backing_dev: path,
        statistics: Some(DeviceStatistics {
            size_sectors: sectors(d.size),
            read_sectors: sectors(d.read),
            written_sectors: sectors(d.written),
            al_writes: d.al_writes,
            bm_writes: d.bm_writes,
            upper_pending: d.upper_pending,
            lower_pending: d.lower_pending,
            al_suspended: d.al_suspended,
            ..DeviceStatistics::default()
        }),
        device_path: around.fuse.and_then(|f| f.device_path(d.volume)).map(|p| p.display().to_string()),
        nbd_uri: around.nbd.path(d.volume).map(uri),
        cause: around.causes.of(None, Some(d.volume)),
        latencies: Vec::new(),
    }
}

fn connection(c: &ConnectionSnapshot, around: &Surroundings<'_>) -> ConnectionStatus {
    let connected = c.state == ConnectionState::Connected;
    let path = PathStatus { local: c.addresses.0.into(), peer: c.addresses.1.into(), established: connected };
    ConnectionStatus {
        peer_node_id: Some(c.peer.index() as u8),
        name: c.peer_name.clone(),
        connection: connection_state(c.state),
        peer_role: role(c.role),
        tls: false,
        protocol: c.version,
        failed_authentications: c.refusals,
        cause: around.causes.of(Some(c.peer), None).filter(|_| !connected),
        attempt: around.links.attempt(c.peer).cloned(),
        stranger: around.links.stranger(c.peer, around.now).map(|from| from.to_string()),
        statistics: Some(ConnectionStatistics::default()),
        paths: vec![path],
        peer_devices: c.peer_devices.iter().map(|p| peer_device(c, p, around)).collect(),
    }
}

fn peer_device(c: &ConnectionSnapshot, p: &PeerDeviceSnapshot, around: &Surroundings<'_>) -> PeerDeviceStatus {
    let backed_up = around.links.is_backed_up(c.peer);
    PeerDeviceStatus {
        volume: p.volume.0,
        replication: replication(c, p),
        peer_disk: disk(p.peer_disk),
        peer_client: IntentionalClient::No,
        resync_suspended: ResyncSuspended {
            user: p.paused.0,
            peer: p.paused.1,
            dependency: p.paused.2,
            max_parallel: false,
        },
        cause: around.causes.of(Some(c.peer), Some(p.volume)),
        statistics: Some(PeerDeviceStatistics {
            received_sectors: sectors(p.received),
            sent_sectors: sectors(p.sent),
            out_of_sync_sectors: sectors(p.out_of_sync),
            pending: p.pending,
            unacked: p.unacked,
        }),
        sync: p.sync_started.map(|start| sync(p, start, around.now, backed_up)),
    }
}

fn sync(p: &PeerDeviceSnapshot, start: Instant, now: Instant, backed_up: bool) -> SyncDetails {
    let since_start_ms = now.since(start).as_millis();
    let [(dt0, db0), (dt1, db1)] = p.sync_marks;
    SyncDetails {
        total_sectors: sectors(p.sync_total),
        since_start_ms,
        paused_ms: p.sync_paused.as_millis(),
        dt0_ms: dt0.as_millis(),
        db0_sectors: sectors(db0),
        dt1_ms: dt1.as_millis(),
        db1_sectors: sectors(db1),
        failed_sectors: sectors(p.sync_failed),
        same_csum_sectors: sectors(p.sync_same),
        want_kib_per_s: p.sync_rate,
        slowed_by: p.sync_slowed.map(|by| match by {
            urbd_core::SlowedBy::Limit => SlowedBy::Limit,
            urbd_core::SlowedBy::Application => SlowedBy::Application,
            urbd_core::SlowedBy::Disk => SlowedBy::Disk,
            urbd_core::SlowedBy::Peer if backed_up => SlowedBy::Network,
            urbd_core::SlowedBy::Peer => SlowedBy::Peer,
            urbd_core::SlowedBy::Requests => SlowedBy::Requests,
        }),
        verify: p.verify.map(|(position, stop)| VerifyDetails {
            start_sector: stop.0.saturating_sub(sectors(p.sync_total)),
            stop_sector: stop.0,
            position_sector: position.0,
            left_sectors: sectors(p.sync_left),
            skipped_sectors: 0,
        }),
    }
}

fn sectors(bytes: ByteLen) -> u64 {
    bytes.to_sectors_floor().0
}

fn role(role: wire::Role) -> control::Role {
    match role {
        wire::Role::Unknown => control::Role::Unknown,
        wire::Role::Primary => control::Role::Primary,
        wire::Role::Secondary => control::Role::Secondary,
    }
}

fn disk(disk: wire::DiskState) -> control::DiskState {
    disk.name().parse().unwrap_or(control::DiskState::DUnknown)
}

fn connection_state(state: ConnectionState) -> control::ConnectionState {
    match state {
        ConnectionState::StandAlone => control::ConnectionState::StandAlone,
        ConnectionState::Disconnecting => control::ConnectionState::Disconnecting,
        ConnectionState::Unconnected => control::ConnectionState::Unconnected,
        ConnectionState::Timeout => control::ConnectionState::Timeout,
        ConnectionState::BrokenPipe => control::ConnectionState::BrokenPipe,
        ConnectionState::NetworkFailure => control::ConnectionState::NetworkFailure,
        ConnectionState::ProtocolError => control::ConnectionState::ProtocolError,
        ConnectionState::TearDown => control::ConnectionState::TearDown,
        ConnectionState::Connecting => control::ConnectionState::Connecting,
        ConnectionState::Connected => control::ConnectionState::Connected,
    }
}

fn replication(c: &ConnectionSnapshot, p: &PeerDeviceSnapshot) -> control::ReplicationState {
    match p.replication {
        _ if c.state != ConnectionState::Connected => control::ReplicationState::Off,
        wire::ConnState::Connected => control::ReplicationState::Established,
        other => other.name().parse().unwrap_or(control::ReplicationState::Off),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_state_of_the_core_has_its_word() {
        for state in wire::DiskState::ALL {
            assert_eq!(disk(*state).as_str(), state.name());
        }
        for state in wire::ConnState::ALL.iter().filter(|s| **s > wire::ConnState::Connected) {
            assert!(state.name().parse::<control::ReplicationState>().is_ok(), "{state}");
        }
    }
}
