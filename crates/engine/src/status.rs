//! The core's snapshot as the control socket's status model.

use crate::fuse_server::FuseServer;
use crate::links::Links;
use crate::nbd_server::NbdServer;
use crate::volumes::Volumes;
use config::{LocalPath, LocalResource, LocalVolume};
use control::{
    Asker, Cause, ConnectionStatistics, ConnectionStatus, DeviceStatistics, DeviceStatus, Event, IntentionalClient,
    Losses, Opening, PathStatus, PeerDeviceStatistics, PeerDeviceStatus, ResourceStatus, ResyncSuspended, Seen,
    SlowedBy, StageLatency, Suspended, SyncDetails, VerifyDetails, WhyEntry, WriteOrdering,
};
use std::collections::BTreeMap;
use std::num::NonZeroU32;
use units::{ByteLen, Generation, Histogram, Instant, NodeId, VolumeNr};
use urbd_core::decide::state::State;
use urbd_core::{
    ConnectionSnapshot, ConnectionState, DeviceSnapshot, Notice, PeerDeviceSnapshot, Snapshot, SuspendReason,
    SuspendReasons, dialect84,
};

/// What the status needs besides the core's snapshot.
pub(crate) struct Surroundings<'a> {
    pub(crate) local: &'a LocalResource,
    pub(crate) opening: Opening,
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
pub(crate) struct Causes {
    latest: BTreeMap<(Option<NodeId>, Option<VolumeNr>), Cause>,
    losses: Losses,
    /// Who has frozen I/O last, and when.
    froze: Option<(Asker, Instant)>,
    /// When I/O goes on, which is frozen until then.
    lease: Option<Instant>,
}

/// Notices of what follows from a decision.
const CONSEQUENCES: [&str; 3] = ["state-change", "new-generation", "size-changed"];

/// Why applications that have the device open are not served.
const NOT_PRIMARY: [&str; 2] = ["waits-to-be-primary", "replaced-meanwhile"];

impl Causes {
    pub(crate) fn note(&mut self, notice: &Notice) {
        if !CONSEQUENCES.contains(&notice.reason) {
            let cause = Cause { code: notice.reason.to_owned(), text: notice.text.clone() };
            self.latest.insert((notice.peer, notice.volume), cause);
        }
    }

    /// The connection to a peer is configured in a way that cannot be used.
    pub(crate) fn cannot_connect(&mut self, peer: NodeId, why: &str) {
        let cause = Cause { code: "connection-not-usable".to_owned(), text: why.to_owned() };
        self.latest.insert((Some(peer), None), cause);
    }

    /// The link to a peer was lost; the engine knows more of it than the core.
    pub(crate) fn explain(&mut self, peer: NodeId, detail: &str) {
        let lost = self.latest.get_mut(&(Some(peer), None)).filter(|cause| cause.code == "link-lost");
        if let Some(cause) = lost.filter(|_| !detail.is_empty()) {
            if detail.contains("none of which is spoken here") {
                cause.code = "incompatible-versions".to_owned();
                cause.text = detail.to_owned();
            } else {
                cause.text = format!("{} ({detail})", cause.text);
            }
        }
    }

    /// The state has changed: was a link lost?
    pub(crate) fn look(&mut self, s: &Snapshot, links: &Links, now: Instant) {
        // What kept this node from being Primary, or made it Secondary, is over.
        if s.role == wire::Role::Primary {
            self.latest.retain(|_, cause| !NOT_PRIMARY.contains(&cause.code.as_str()));
        }
        for c in &s.connections {
            let busy = c.peer_devices.iter().any(|p| p.replication > wire::ConnState::Connected);
            let seen = Seen { state: connection_state(c.state), busy, left: links.left_at_end(c.peer) };
            self.losses.look(c.peer.index() as u8, seen, self.latest.get(&(Some(c.peer), None)), since_start(now));
        }
    }

    /// Somebody is about to freeze I/O.
    pub(crate) fn freezes(&mut self, who: Option<Asker>, now: Instant) {
        self.froze = who.map(|who| (who, now));
    }

    /// I/O is frozen by a command until then, or until another one; by the last one that has asked for it.
    pub(crate) fn freezes_until(&mut self, until: Option<Instant>) {
        self.lease = until;
    }

    /// In how many seconds that is.
    fn frozen_for(&self, now: Instant) -> Option<NonZeroU32> {
        let seconds = self.lease?.since(now).as_millis().div_ceil(1000);
        NonZeroU32::new(u32::try_from(seconds).ok()?)
    }

    /// When a freeze ends by itself.
    pub(crate) fn lease(&self) -> Option<Instant> {
        self.lease
    }

    fn froze(&self, now: Instant) -> Option<Asker> {
        let (who, then) = self.froze.as_ref()?;
        Some(Asker { seconds: now.since(*then).as_millis() / 1000, ..who.clone() })
    }

    /// An administrator's command is the cause from now on.
    pub(crate) fn forget_peer(&mut self, peer: NodeId) {
        self.latest.retain(|(about, _), _| *about != Some(peer));
        self.losses.forget(peer.index() as u8);
    }

    /// The same, of the disk of this volume or of all.
    pub(crate) fn forget_disks(&mut self, which: Option<VolumeNr>) {
        self.latest
            .retain(|about, _| !matches!(about, (None, Some(volume)) if which.is_none_or(|which| which == *volume)));
    }

    fn of(&self, peer: Option<NodeId>, volume: Option<VolumeNr>) -> Option<Cause> {
        self.latest.get(&(peer, volume)).cloned()
    }
}

/// What has happened since listeners of events were told last, in its order.
#[derive(Debug, Default)]
pub(crate) struct Untold {
    happened: Vec<Happened>,
    changed: bool,
}

#[derive(Debug)]
pub(crate) enum Happened {
    State(Box<State>),
    Event(Box<Event>),
}

impl Untold {
    /// Is the status no longer what it was? Also if nothing has happened.
    pub(crate) fn touch(&mut self, news: bool) {
        self.changed |= news;
    }

    pub(crate) fn is_news(&self) -> bool {
        self.changed
    }

    pub(crate) fn note(&mut self, happened: Happened) {
        self.changed = true;
        self.happened.push(happened);
    }

    /// All of it, and then how things are now. States that were passed through come with the counters of now.
    pub(crate) fn up_to(self, now: ResourceStatus) -> Vec<Event> {
        let told = |happened| match happened {
            Happened::State(state) => Event::Status(with_states(&now, &state)),
            Happened::Event(event) => *event,
        };
        let mut all: Vec<Event> = self.happened.into_iter().map(told).collect();
        all.push(Event::Status(now));
        all
    }
}

/// The status of the resource.
pub(crate) fn resource(s: &Snapshot, around: &Surroundings<'_>) -> ResourceStatus {
    ResourceStatus {
        name: s.name.clone(),
        node_id: Some(s.node.index() as u8),
        role: role(s.role),
        suspended: suspended(s.suspended),
        frozen_by: around.causes.froze(around.now).filter(|_| s.suspended.because_of(SuspendReason::User)),
        frozen_for: around.causes.frozen_for(around.now).filter(|_| s.suspended.because_of(SuspendReason::User)),
        force_io_failures: false,
        opening: around.opening,
        write_ordering: write_ordering(s, around.local),
        program: env!("CARGO_PKG_VERSION").to_owned(),
        cause: around.causes.of(None, None),
        devices: s.devices.iter().map(|d| device(&s.name, d, around)).collect(),
        connections: s.connections.iter().map(|c| connection(c, around)).collect(),
        memory: None,
    }
}

/// The same status with the states that were passed through before it, without what came after them.
pub(crate) fn with_states(status: &ResourceStatus, passed: &State) -> ResourceStatus {
    let mut status = status.clone();
    (status.role, status.suspended) = (role(passed.role), suspended(passed.suspended()));
    status.devices.retain(|d| passed.volumes.contains(VolumeNr(d.volume)));
    for d in &mut status.devices {
        d.disk = disk(passed.disk(VolumeNr(d.volume)));
    }
    let peer = |c: &ConnectionStatus| c.peer_node_id.and_then(NodeId::new).filter(|peer| passed.peers.contains(*peer));
    status.connections.retain(|c| peer(c).is_some());
    for c in &mut status.connections {
        let Some(there) = peer(c).and_then(|peer| passed.peers.get(peer)) else { continue };
        c.peer_devices.retain(|p| there.volumes.contains(VolumeNr(p.volume)));
        (c.connection, c.peer_role) = (connection_state(there.connection), role(there.role()));
        let connected = there.connection == ConnectionState::Connected;
        c.paths.iter_mut().take(1).for_each(|path| path.established = connected);
        for p in &mut c.peer_devices {
            let pair = there.volumes[VolumeNr(p.volume)];
            p.replication = replication(there.connection, dialect84::conn_state(there.connection, pair.replication));
            p.peer_disk = disk(pair.disk);
            p.resync_suspended = ResyncSuspended {
                user: pair.paused.by_user,
                peer: pair.paused.by_peer,
                dependency: pair.paused.by_dependency || pair.paused.by_other && pair.replication.is_working(),
                max_parallel: false,
            };
        }
    }
    status
}

fn suspended(why: SuspendReasons) -> Suspended {
    Suspended {
        user: why.because_of(SuspendReason::User),
        no_data: why.because_of(SuspendReason::NoData),
        fencing: why.because_of(SuspendReason::Fencing),
        quorum: why.because_of(SuspendReason::Quorum),
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
pub(crate) fn why(s: &Snapshot, now: Instant) -> Vec<WhyEntry> {
    let name = |peer| s.connections.iter().find(|c| Some(c.peer) == peer).map(|c| c.peer_name.as_str());
    let entry = |(then, notice): &(Instant, Notice)| {
        let peer = name(notice.peer).map(|p| format!(":{p}")).unwrap_or_default();
        let volume = notice.volume.map(|v| format!("/{}", v.0)).unwrap_or_default();
        WhyEntry {
            object: format!("{}{peer}{volume}", s.name),
            state: state_word(s, notice),
            code: notice.reason.to_owned(),
            text: notice.text.clone(),
            ago_ms: Some(now.since(*then).as_millis()),
        }
    };
    s.decisions.iter().map(entry).collect()
}

/// The present state of what a notice is about.
fn state_word(s: &Snapshot, notice: &Notice) -> String {
    let connection = s.connections.iter().find(|c| Some(c.peer) == notice.peer);
    match (connection, notice.volume) {
        (Some(c), Some(volume)) => match c.peer_devices.iter().find(|p| p.volume == volume) {
            Some(p) => format!("replication:{}", replication(c.state, p.replication)),
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
        quorum: d.no_quorum.is_none(),
        votes: d.no_quorum.clone(),
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
    let told = around.local.peers.iter().find(|p| p.peer_node_id == c.peer).map_or(&[][..], |p| &p.paths);
    // The first one is used, with the interface of its addresses.
    let path = |(at, path): (usize, &LocalPath)| match at {
        0 => PathStatus { local: c.addresses.0.into(), peer: c.addresses.1.into(), established: connected },
        _ => {
            let (local, peer) = (path.local.socket_addr().into(), path.remote.socket_addr().into());
            PathStatus { local, peer, established: false }
        }
    };
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
        losses: around.causes.losses.of(c.peer.index() as u8, since_start(around.now)),
        stranger: around.links.stranger(c.peer, around.now).map(|from| from.to_string()),
        statistics: Some(ConnectionStatistics::default()),
        paths: told.iter().filter(|path| !path.proxied).enumerate().map(path).collect(),
        peer_devices: c.peer_devices.iter().map(|p| peer_device(c, p, around)).collect(),
    }
}

fn peer_device(c: &ConnectionSnapshot, p: &PeerDeviceSnapshot, around: &Surroundings<'_>) -> PeerDeviceStatus {
    let backed_up = around.links.is_backed_up(c.peer);
    let told = around.local.peers.iter().filter(|peer| peer.peer_node_id == c.peer).flat_map(|peer| &peer.peer_devices);
    let client = told.clone().any(|told| told.volume == p.volume && !told.options.bitmap);
    PeerDeviceStatus {
        volume: p.volume.0,
        replication: replication(c.state, p.replication),
        peer_disk: disk(p.peer_disk),
        peer_client: if client { IntentionalClient::Yes } else { IntentionalClient::No },
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

fn since_start(now: Instant) -> std::time::Duration {
    std::time::Duration::from_nanos(now.0)
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

fn replication(connection: ConnectionState, word: wire::ConnState) -> control::ReplicationState {
    match word {
        _ if connection != ConnectionState::Connected => control::ReplicationState::Off,
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
