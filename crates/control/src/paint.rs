//! Colours of state words (`docs/spec/config-and-cli.md` 4.1, last table).

use crate::states::{ConnectionState, DiskState, ReplicationState, Role};
use crate::status::IntentionalClient;

/// What a colour says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Hue {
    Plain,
    Primary,
    Good,
    Bad,
    Transitional,
}

/// Whose state is painted: ours is bold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Side {
    Local,
    Peer,
}

/// `word` with escape codes around it if it has a colour and `color` is wanted.
pub(crate) fn paint(color: bool, side: Side, hue: Hue, word: &str) -> String {
    let code = match (hue, side) {
        (Hue::Plain, _) | (Hue::Transitional, Side::Peer) => None,
        (Hue::Primary, Side::Local) => Some("1;36"),
        (Hue::Good, Side::Local) => Some("1;32"),
        (Hue::Bad, Side::Local) => Some("1;31"),
        (Hue::Transitional, Side::Local) => Some("1"),
        (Hue::Primary, Side::Peer) => Some("36"),
        (Hue::Good, Side::Peer) => Some("32"),
        (Hue::Bad, Side::Peer) => Some("31"),
    };
    match code {
        Some(code) if color => format!("\x1b[{code}m{word}\x1b[0m"),
        _ => word.to_owned(),
    }
}

pub(crate) fn role(role: Role) -> Hue {
    match role {
        Role::Primary => Hue::Primary,
        Role::Secondary => Hue::Plain,
        Role::Unknown => Hue::Transitional,
    }
}

pub(crate) fn connection(state: ConnectionState) -> Hue {
    match state {
        ConnectionState::StandAlone | ConnectionState::Connecting => Hue::Bad,
        ConnectionState::Connected => Hue::Plain,
        _ => Hue::Transitional,
    }
}

pub(crate) fn replication(state: ReplicationState) -> (Side, Hue) {
    use ReplicationState::*;
    match state {
        SyncSource => (Side::Peer, Hue::Bad),
        SyncTarget | PausedSyncT => (Side::Local, Hue::Bad),
        Established | VerifyS | VerifyT | PausedSyncS | Ahead => (Side::Peer, Hue::Plain),
        Behind => (Side::Local, Hue::Transitional),
        _ => (Side::Peer, Hue::Transitional),
    }
}

pub(crate) fn disk(state: DiskState, client: IntentionalClient) -> Hue {
    match state {
        DiskState::UpToDate => Hue::Good,
        DiskState::Diskless if client == IntentionalClient::Yes => Hue::Good,
        DiskState::Diskless | DiskState::Inconsistent | DiskState::Outdated => Hue::Bad,
        _ => Hue::Transitional,
    }
}
