//! Requests to change the state of both nodes together, and their answers (`docs/spec/wire-protocol.md` 5.17).

use crate::state::{ConnState, DiskNumbering, DiskState, Role, place};
use crate::violation::Violation;
use std::fmt;

/// Which fields of the state word are to become what, in the sender's view; `None` leaves a field alone.
/// On the wire: a mask and a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Hash)]
pub struct StateChange {
    /// The sender's role.
    pub role: Option<Role>,
    /// The receiver's role.
    pub peer: Option<Role>,
    /// Connection and replication state.
    pub conn: Option<ConnState>,
    /// The sender's disk.
    pub disk: Option<DiskState>,
    /// The receiver's disk.
    pub pdsk: Option<DiskState>,
    /// I/O suspended by the administrator.
    pub susp: Option<bool>,
    /// Resync paused by a dependency.
    pub aftr_isp: Option<bool>,
    /// Resync paused by the peer.
    pub peer_isp: Option<bool>,
    /// Resync paused by the administrator.
    pub user_isp: Option<bool>,
    /// I/O suspended for lack of data.
    pub susp_nod: Option<bool>,
    /// I/O suspended for fencing.
    pub susp_fen: Option<bool>,
}

impl StateChange {
    /// Reads mask and value. Value bits outside the mask are ignored.
    ///
    /// Errors: `PartialMask`, or a field with a number that means nothing as (name, number).
    pub fn from_bits(mask: u32, val: u32, numbering: DiskNumbering) -> Result<StateChange, StateChangeError> {
        let field = |name, at: (u32, u32)| match place::of(mask, at) {
            0 => Ok(None),
            m if u32::from(m) == (1 << at.1) - 1 => Ok(Some((name, place::of(val, at)))),
            _ => Err(StateChangeError::PartialMask(name)),
        };
        let bit = |n: u32| (mask >> n & 1 == 1).then_some(val >> n & 1 == 1);
        // DRBD 9 does not convert the numbers in a request to an old peer (`docs/spec/wire-protocol.md` 17.7). All but
        // its UpToDate mean something else to an 8.4 node, which takes them for that.
        let disk = |n| match (n, numbering) {
            (9, DiskNumbering::Classic) => Some(DiskState::UpToDate),
            _ => DiskState::from_number(n, numbering),
        };
        Ok(StateChange {
            role: known(field("role", place::ROLE)?, Role::from_number)?,
            peer: known(field("peer role", place::PEER)?, Role::from_number)?,
            conn: known(field("connection state", place::CONN)?, ConnState::from_number)?,
            disk: known(field("disk state", place::DISK)?, disk)?,
            pdsk: known(field("peer disk state", place::PDSK)?, disk)?,
            susp: bit(place::SUSP),
            aftr_isp: bit(place::AFTR_ISP),
            peer_isp: bit(place::PEER_ISP),
            user_isp: bit(place::USER_ISP),
            susp_nod: bit(place::SUSP_NOD),
            susp_fen: bit(place::SUSP_FEN),
        })
    }

    /// Mask and value.
    #[must_use]
    pub fn to_bits(&self, numbering: DiskNumbering) -> (u32, u32) {
        let mut bits = (0, 0);
        let mut put = |value: Option<u8>, (shift, width): (u32, u32)| {
            if let Some(n) = value {
                bits.0 |= ((1 << width) - 1) << shift;
                bits.1 |= u32::from(n) << shift;
            }
        };
        put(self.role.map(Role::number), place::ROLE);
        put(self.peer.map(Role::number), place::PEER);
        put(self.conn.map(ConnState::number), place::CONN);
        put(self.disk.map(|d| d.number(numbering)), place::DISK);
        put(self.pdsk.map(|d| d.number(numbering)), place::PDSK);
        put(self.susp.map(u8::from), (place::SUSP, 1));
        put(self.aftr_isp.map(u8::from), (place::AFTR_ISP, 1));
        put(self.peer_isp.map(u8::from), (place::PEER_ISP, 1));
        put(self.user_isp.map(u8::from), (place::USER_ISP, 1));
        put(self.susp_nod.map(u8::from), (place::SUSP_NOD, 1));
        put(self.susp_fen.map(u8::from), (place::SUSP_FEN, 1));
        bits
    }

    /// The same change as the other node sees it (`docs/spec/wire-protocol.md` 6.5). A connection state that has no
    /// counterpart becomes StandAlone, as in 8.4.
    #[must_use]
    pub fn from_peers_view(&self) -> StateChange {
        let paused = match (self.aftr_isp, self.user_isp) {
            (None, None) => None,
            (a, u) => Some(a.unwrap_or(false) || u.unwrap_or(false)),
        };
        StateChange {
            role: self.peer,
            peer: self.role,
            conn: self.conn.map(counterpart),
            disk: self.pdsk,
            pdsk: self.disk,
            peer_isp: paused,
            ..*self
        }
    }
}

/// What the peer of a node in this connection state is in.
fn counterpart(conn: ConnState) -> ConnState {
    use ConnState as C;
    match conn {
        C::WFReportParams | C::Connected => conn,
        C::StartingSyncS => C::StartingSyncT,
        C::StartingSyncT => C::StartingSyncS,
        C::Disconnecting => C::TearDown,
        C::VerifyS => C::VerifyT,
        _ => C::StandAlone,
    }
}

/// Why mask and value are no state change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StateChangeError {
    /// The mask covers only a part of the named field.
    PartialMask(&'static str),
    /// The named field has a number that means nothing.
    UnknownValue(&'static str, u8),
}

impl StateChangeError {
    pub(crate) fn into_violation(self, command: crate::Command, mask: u32) -> Violation {
        match self {
            StateChangeError::PartialMask(field) => Violation::PartialMask { field, mask },
            StateChangeError::UnknownValue(field, n) => Violation::UnknownValue { command, field, value: n.into() },
        }
    }
}

fn known<T>(
    field: Option<(&'static str, u8)>,
    from_number: impl Fn(u8) -> Option<T>,
) -> Result<Option<T>, StateChangeError> {
    field.map(|(name, n)| from_number(n).ok_or(StateChangeError::UnknownValue(name, n))).transpose()
}

macro_rules! results {
    ($(#[doc = $doc:literal] $name:ident = $code:literal,)*) => {
        /// The answer to a state change request (`docs/spec/wire-protocol.md` 6.6). Codes of 1 and above are success.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum StateChangeResult {
            $(#[doc = $doc] $name,)*
            /// A code that the specification does not list.
            Unlisted(i32),
        }

        impl StateChangeResult {
            /// Every listed result.
            pub const ALL: &'static [StateChangeResult] = &[$(StateChangeResult::$name),*];

            /// The result with this code.
            #[must_use]
            pub const fn from_code(code: i32) -> StateChangeResult {
                match code {
                    $($code => StateChangeResult::$name,)*
                    _ => StateChangeResult::Unlisted(code),
                }
            }

            /// The code on the wire.
            #[must_use]
            pub const fn code(self) -> i32 {
                match self {
                    $(StateChangeResult::$name => $code,)*
                    StateChangeResult::Unlisted(code) => code,
                }
            }
        }

        impl fmt::Display for StateChangeResult {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                match self {
                    $(StateChangeResult::$name => f.write_str($doc.trim().trim_end_matches('.')),)*
                    StateChangeResult::Unlisted(code) => write!(f, "code {code}, which is not known here"),
                }
            }
        }
    };
}

results! {
    /// No cluster-wide change is needed.
    ClusterWideNotNeeded = 4,
    /// The cluster-wide change succeeded.
    ClusterWideSuccess = 3,
    /// Nothing to do.
    NothingToDo = 2,
    /// Success.
    Success = 1,
    /// Not decided.
    UnknownError = 0,
    /// Two primaries are not allowed.
    TwoPrimaries = -1,
    /// There would be no UpToDate disk.
    NoUpToDateDisk = -2,
    /// There is no local disk.
    NoLocalDisk = -4,
    /// There is no remote disk.
    NoRemoteDisk = -5,
    /// The disk would become outdated while connected.
    ConnectedOutdates = -6,
    /// A Primary cannot do that.
    PrimaryNop = -7,
    /// A resync is running.
    ResyncRunning = -8,
    /// Already StandAlone.
    AlreadyStandAlone = -9,
    /// The peer refused.
    FailedByPeer = -10,
    /// The node is diskless.
    IsDiskless = -11,
    /// The device is in use.
    DeviceInUse = -12,
    /// There is no network configuration.
    NoNetConfig = -13,
    /// There is no verify-alg.
    NoVerifyAlg = -14,
    /// A connection is needed.
    NeedConnection = -15,
    /// The disk is below Outdated.
    LowerThanOutdated = -16,
    /// Not supported.
    NotSupported = -17,
    /// In a transient state.
    InTransientState = -18,
    /// Another cluster-wide change is going on.
    ConcurrentStateChange = -19,
    /// The peer is Primary in another volume.
    OtherVolumePeerPrimary = -20,
    /// Would outdate without a connection (8.4); interrupted (9).
    OutdateWithoutConnection = -21,
    /// The device is open read-only.
    PrimaryReader = -22,
    /// Not answered in time (9).
    Timeout = -23,
    /// The peer is connected to somebody that this node is not (9).
    WeaklyConnected = -24,
    /// There is no quorum (9).
    NoQuorum = -25,
    /// No bitmap slot is free (9).
    AttachNoBitmap = -26,
    /// The handshake has shown that the nodes must not be connected (9).
    HandshakeDisconnect = -27,
    /// The handshake is to be tried again (9).
    HandshakeRetry = -28,
}

impl StateChangeResult {
    /// Did the peer agree?
    #[must_use]
    pub const fn is_success(self) -> bool {
        self.code() >= 1
    }

    /// Is it refused for the roles that are configured (`allow-two-primaries`), not for what a node is at present?
    #[must_use]
    pub const fn is_about_configured_roles(self) -> bool {
        matches!(self, StateChangeResult::TwoPrimaries | StateChangeResult::OtherVolumePeerPrimary)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connection_states_from_the_peers_view() {
        use ConnState as C;
        let kept = [
            (C::WFReportParams, C::WFReportParams),
            (C::Connected, C::Connected),
            (C::StartingSyncS, C::StartingSyncT),
            (C::StartingSyncT, C::StartingSyncS),
            (C::Disconnecting, C::TearDown),
            (C::VerifyS, C::VerifyT),
        ];
        for &conn in C::ALL {
            let seen = StateChange { conn: Some(conn), ..StateChange::default() }.from_peers_view().conn;
            let expected = kept.iter().find(|(from, _)| *from == conn).map_or(C::StandAlone, |(_, to)| *to);
            assert_eq!(seen, Some(expected), "{conn}");
        }
        assert_eq!(StateChange::default().from_peers_view(), StateChange::default());
    }

    #[test]
    fn a_pause_of_the_peer_is_seen_as_the_peers() {
        for (aftr_isp, user_isp, peer_isp) in [
            (Some(true), None, Some(true)),
            (None, Some(true), Some(true)),
            (Some(false), Some(true), Some(true)),
            (Some(false), None, Some(false)),
            (None, None, None),
        ] {
            let change = StateChange { aftr_isp, user_isp, ..StateChange::default() };
            assert_eq!(change.from_peers_view().peer_isp, peer_isp);
        }
    }

    #[test]
    fn requests_as_recorded() {
        use DiskNumbering::Classic;
        let promote = StateChange { role: Some(Role::Primary), ..StateChange::default() };
        assert_eq!(promote.to_bits(Classic), (0x3, 0x1));
        assert_eq!(StateChange { disk: Some(DiskState::UpToDate), ..promote }.to_bits(Classic), (0x1e03, 0x1001));
        let disconnect = StateChange { conn: Some(ConnState::Disconnecting), ..StateChange::default() };
        assert_eq!(disconnect.to_bits(Classic), (0x1f0, 0x10));
        let detach = StateChange { disk: Some(DiskState::Failed), ..StateChange::default() };
        assert_eq!(detach.to_bits(Classic), (0x1e00, 0x400));
        // What 9.3.3 asks of an 8.4 node for a forced promotion (`vectors/wire9/32`).
        let forced = StateChange { disk: Some(DiskState::UpToDate), ..promote };
        assert_eq!(StateChange::from_bits(0x1e03, 0x1201, Classic), Ok(forced));
    }

    #[test]
    fn codes() {
        for result in StateChangeResult::ALL {
            assert_eq!(StateChangeResult::from_code(result.code()), *result);
            assert_eq!(result.is_success(), result.code() >= 1);
        }
        assert_eq!(StateChangeResult::from_code(-3), StateChangeResult::Unlisted(-3));
        assert_eq!(StateChangeResult::Unlisted(-3).code(), -3);
    }
}
