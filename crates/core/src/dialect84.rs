//! How DRBD 8.4 says a state: one word per volume, with one number for connection and replication
//! (`docs/spec/wire-protocol.md` 6).

use crate::api::ConnectionState;
use crate::decide::change::{Change, Set};
use crate::decide::state::{Replication, State, SuspendReason};
use units::{NodeId, VolumeNr};
use wire::{ConnState, StateChange, StateWord};

/// The state of a volume towards a peer, or without one.
#[must_use]
pub fn word(state: &State, peer: Option<NodeId>, volume: VolumeNr) -> StateWord {
    let suspended = state.suspended();
    let (connection, pair) = match peer.and_then(|peer| state.peers.get(peer)) {
        Some(peer) => (peer.connection, peer.volumes[volume]),
        None => (ConnectionState::StandAlone, crate::decide::state::PairState::UNKNOWN),
    };
    StateWord {
        role: state.role,
        peer: pair.role,
        conn: conn_state(connection, pair.replication),
        disk: state.disk(volume),
        pdsk: pair.disk,
        susp: suspended.because_of(SuspendReason::User),
        aftr_isp: pair.paused.by_dependency || pair.paused.by_other,
        peer_isp: pair.paused.by_peer,
        user_isp: pair.paused.by_user,
        susp_nod: suspended.because_of(SuspendReason::NoData),
        susp_fen: suspended.because_of(SuspendReason::Fencing),
        quorum: false,
    }
}

/// 8.4's number for both.
#[must_use]
pub fn conn_state(connection: ConnectionState, replication: Replication) -> ConnState {
    use Replication as R;
    match (connection, replication) {
        (ConnectionState::StandAlone, _) => ConnState::StandAlone,
        (ConnectionState::Disconnecting, _) => ConnState::Disconnecting,
        (ConnectionState::Unconnected, _) => ConnState::Unconnected,
        (ConnectionState::Timeout, _) => ConnState::Timeout,
        (ConnectionState::BrokenPipe, _) => ConnState::BrokenPipe,
        (ConnectionState::NetworkFailure, _) => ConnState::NetworkFailure,
        (ConnectionState::ProtocolError, _) => ConnState::ProtocolError,
        (ConnectionState::TearDown, _) => ConnState::TearDown,
        (ConnectionState::Connecting, _) => ConnState::WFConnection,
        (ConnectionState::Connected, R::Off) => ConnState::WFReportParams,
        (ConnectionState::Connected, R::Established) => ConnState::Connected,
        (ConnectionState::Connected, R::StartingSyncS) => ConnState::StartingSyncS,
        (ConnectionState::Connected, R::StartingSyncT) => ConnState::StartingSyncT,
        (ConnectionState::Connected, R::WFBitMapS) => ConnState::WFBitMapS,
        (ConnectionState::Connected, R::WFBitMapT) => ConnState::WFBitMapT,
        (ConnectionState::Connected, R::WFSyncUUID) => ConnState::WFSyncUUID,
        (ConnectionState::Connected, R::SyncSource) => ConnState::SyncSource,
        (ConnectionState::Connected, R::SyncTarget) => ConnState::SyncTarget,
        (ConnectionState::Connected, R::VerifyS) => ConnState::VerifyS,
        (ConnectionState::Connected, R::VerifyT) => ConnState::VerifyT,
        (ConnectionState::Connected, R::PausedSyncS) => ConnState::PausedSyncS,
        (ConnectionState::Connected, R::PausedSyncT) => ConnState::PausedSyncT,
        (ConnectionState::Connected, R::Ahead) => ConnState::Ahead,
        (ConnectionState::Connected, R::Behind) => ConnState::Behind,
    }
}

/// What 8.4's number says of the connection, and of the volume.
#[must_use]
pub fn connection_and_replication(conn: ConnState) -> (ConnectionState, Replication) {
    use Replication as R;
    let connected = |replication| (ConnectionState::Connected, replication);
    let off = |connection| (connection, R::Off);
    match conn {
        ConnState::StandAlone => off(ConnectionState::StandAlone),
        ConnState::Disconnecting => off(ConnectionState::Disconnecting),
        ConnState::Unconnected => off(ConnectionState::Unconnected),
        ConnState::Timeout => off(ConnectionState::Timeout),
        ConnState::BrokenPipe => off(ConnectionState::BrokenPipe),
        ConnState::NetworkFailure => off(ConnectionState::NetworkFailure),
        ConnState::ProtocolError => off(ConnectionState::ProtocolError),
        ConnState::TearDown => off(ConnectionState::TearDown),
        ConnState::WFConnection => off(ConnectionState::Connecting),
        ConnState::WFReportParams => connected(R::Off),
        ConnState::Connected => connected(R::Established),
        ConnState::StartingSyncS => connected(R::StartingSyncS),
        ConnState::StartingSyncT => connected(R::StartingSyncT),
        ConnState::WFBitMapS => connected(R::WFBitMapS),
        ConnState::WFBitMapT => connected(R::WFBitMapT),
        ConnState::WFSyncUUID => connected(R::WFSyncUUID),
        ConnState::SyncSource => connected(R::SyncSource),
        ConnState::SyncTarget => connected(R::SyncTarget),
        ConnState::VerifyS => connected(R::VerifyS),
        ConnState::VerifyT => connected(R::VerifyT),
        ConnState::PausedSyncS => connected(R::PausedSyncS),
        ConnState::PausedSyncT => connected(R::PausedSyncT),
        ConnState::Ahead => connected(R::Ahead),
        ConnState::Behind => connected(R::Behind),
    }
}

/// What a peer is asked for when both nodes are to make a change, as far as one volume is concerned.
#[must_use]
pub fn request(change: &Change, peer: NodeId, volume: VolumeNr) -> StateChange {
    let mut out = StateChange::default();
    for set in change.sets() {
        match set {
            Set::Role(role) => out.role = Some(role),
            Set::Disk(v, disk) if v == volume => out.disk = Some(disk),
            Set::PeerDisk(p, v, disk) if (p, v) == (peer, volume) => out.pdsk = Some(disk),
            Set::Connection(p, connection) if p == peer => out.conn = Some(conn_state(connection, Replication::Off)),
            Set::Removes(p, v) if (p, v) == (peer, volume) => out.conn = Some(ConnState::WFReportParams),
            Set::Replication(p, v, replication) if (p, v) == (peer, volume) => {
                out.conn = Some(conn_state(ConnectionState::Connected, replication));
            }
            _ => {}
        }
    }
    out
}

/// What a peer asks for, about a volume, or about all (`None`), in this node's view. `None`: that is not up to a peer.
/// It speaks of its own role and disk; of ours it can only say that the data is outdated
/// (`docs/spec/connection-and-state.md` 3.1).
#[must_use]
pub fn asked(
    asked: &StateChange,
    peer: NodeId,
    volume: Option<VolumeNr>,
    all: impl Iterator<Item = VolumeNr>,
) -> Option<Change> {
    use ConnState::{StartingSyncS, StartingSyncT, TearDown, VerifyS, VerifyT, WFReportParams};
    let wish = asked.from_peers_view();
    let conn =
        matches!(wish.conn, None | Some(TearDown | StartingSyncS | StartingSyncT | VerifyS | VerifyT | WFReportParams));
    let disk = matches!(wish.disk, None | Some(wire::DiskState::Outdated));
    let ours = [wish.susp, wish.susp_nod, wish.susp_fen, wish.aftr_isp, wish.user_isp];
    if !conn || !disk || wish.role.is_some() || ours.iter().any(Option::is_some) {
        return None;
    }
    let mut change = Change::default();
    if wish.conn == Some(TearDown) {
        change.push(Set::Connection(peer, ConnectionState::TearDown));
    }
    for v in all.filter(|v| volume.is_none_or(|volume| volume == *v)) {
        let (_, replication) = wish.conn.map(connection_and_replication).unzip();
        let parts = [
            wish.peer.map(|role| Set::PeerRole(peer, v, role)),
            replication.filter(|_| wish.conn != Some(TearDown)).map(|r| Set::Replication(peer, v, r)),
            wish.disk.map(|disk| Set::Disk(v, disk)),
            wish.pdsk.map(|disk| Set::PeerDisk(peer, v, disk)),
            wish.peer_isp.map(|on| Set::PausedByPeer(peer, v, on)),
        ];
        parts.into_iter().flatten().for_each(|set| change.push(set));
    }
    Some(change)
}
