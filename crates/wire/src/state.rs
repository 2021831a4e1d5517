//! The state word that P_STATE carries, and its enumerations (`docs/spec/wire-protocol.md` 6).

use crate::dialect::Version;
use std::fmt;

macro_rules! numbered {
    ($(#[$doc:meta])* $name:ident { $($(#[$vdoc:meta])* $variant:ident = $number:literal,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[repr(u8)]
        pub enum $name {
            $($(#[$vdoc])* $variant = $number,)*
        }

        impl $name {
            /// Every value.
            pub const ALL: &'static [$name] = &[$($name::$variant),*];

            /// DRBD's name of the value.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self {
                    $($name::$variant => stringify!($variant),)*
                }
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(self.name())
            }
        }
    };
}

numbered! {
    /// A node's role. The numbers are the wire's.
    Role {
        /// Not known (the peer's role before it said so).
        Unknown = 0,
        /// May write.
        Primary = 1,
        /// May not.
        Secondary = 2,
    }
}

numbered! {
    /// Connection and replication state in one enumeration, as 8.4 numbers it (`docs/spec/wire-protocol.md` 6.2).
    /// Ordered as the numbers.
    ConnState {
        /// No network configuration in use.
        StandAlone = 0,
        /// Going to StandAlone.
        Disconnecting = 1,
        /// About to connect.
        Unconnected = 2,
        /// Lost: the peer did not answer in time.
        Timeout = 3,
        /// Lost: a stream broke.
        BrokenPipe = 4,
        /// Lost: the network failed.
        NetworkFailure = 5,
        /// Lost: the peer broke the protocol.
        ProtocolError = 6,
        /// The peer is closing the connection.
        TearDown = 7,
        /// Waiting for the peer's connection.
        WFConnection = 8,
        /// Connected, waiting for the peer's state of this volume.
        WFReportParams = 9,
        /// Replicating, in sync.
        Connected = 10,
        /// A full resync is about to start here as source.
        StartingSyncS = 11,
        /// A full resync is about to start here as target.
        StartingSyncT = 12,
        /// Exchanging bitmaps, will be source.
        WFBitMapS = 13,
        /// Exchanging bitmaps, will be target.
        WFBitMapT = 14,
        /// Target, waiting for the source's sync UUID.
        WFSyncUUID = 15,
        /// Resync is running, source.
        SyncSource = 16,
        /// Resync is running, target.
        SyncTarget = 17,
        /// Verify is running, source.
        VerifyS = 18,
        /// Verify is running, target.
        VerifyT = 19,
        /// Resync is paused, source.
        PausedSyncS = 20,
        /// Resync is paused, target.
        PausedSyncT = 21,
        /// Not replicating, because of congestion; the peer is Behind.
        Ahead = 22,
        /// Not replicated to, because of congestion; the peer is Ahead.
        Behind = 23,
    }
}

numbered! {
    /// State of a disk, ordered from worst to best. The numbers are those of protocol 110 and later; older versions
    /// number them without `Detaching` (see [`DiskNumbering`]).
    #[derive(Default)]
    DiskState {
        /// No disk attached.
        #[default]
        Diskless = 0,
        /// Reading metadata.
        Attaching = 1,
        /// Being detached by the administrator (not before protocol 110).
        Detaching = 2,
        /// Failed, being detached.
        Failed = 3,
        /// Attached, talking with the peer about what it is.
        Negotiating = 4,
        /// Not usable: a resync is needed.
        Inconsistent = 5,
        /// Consistent, but known to be old.
        Outdated = 6,
        /// Unknown (the peer's disk without a connection).
        DUnknown = 7,
        /// Consistent; whether it is current is decided at the next connect.
        Consistent = 8,
        /// Current.
        UpToDate = 9,
    }
}

/// How disk states are numbered on the wire (`docs/spec/wire-protocol.md` 6.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DiskNumbering {
    /// Up to protocol 109: `UpToDate` is 8.
    Classic,
    /// From protocol 110 on: `UpToDate` is 9.
    WithDetaching,
}

impl DiskNumbering {
    /// The numbering of a protocol version.
    #[must_use]
    pub const fn of(version: Version) -> DiskNumbering {
        if version.number() < 110 { DiskNumbering::Classic } else { DiskNumbering::WithDetaching }
    }
}

impl Role {
    /// `None` if the number means nothing.
    #[must_use]
    pub fn from_number(n: u8) -> Option<Role> {
        Role::ALL.get(usize::from(n)).copied()
    }

    /// The number on the wire.
    #[must_use]
    pub const fn number(self) -> u8 {
        self as u8
    }
}

impl ConnState {
    /// `None` if the number means nothing.
    #[must_use]
    pub fn from_number(n: u8) -> Option<ConnState> {
        ConnState::ALL.get(usize::from(n)).copied()
    }

    /// The number on the wire.
    #[must_use]
    pub const fn number(self) -> u8 {
        self as u8
    }
}

impl DiskState {
    /// `None` if the number means nothing in that numbering.
    #[must_use]
    pub fn from_number(n: u8, numbering: DiskNumbering) -> Option<DiskState> {
        let shift = u8::from(numbering == DiskNumbering::Classic && n >= 2);
        DiskState::ALL.get(usize::from(n) + usize::from(shift)).copied()
    }

    /// The number on the wire. `Detaching` is told to an old peer as `Failed`.
    #[must_use]
    pub const fn number(self, numbering: DiskNumbering) -> u8 {
        let n = self as u8;
        match numbering {
            DiskNumbering::Classic if n > 2 => n - 1,
            _ => n,
        }
    }
}

/// The state of a volume as one node sees it (`docs/spec/wire-protocol.md` 6.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct StateWord {
    /// The node's role.
    pub role: Role,
    /// The role of its peer.
    pub peer: Role,
    /// Connection and replication state.
    pub conn: ConnState,
    /// The node's disk.
    pub disk: DiskState,
    /// The peer's disk.
    pub pdsk: DiskState,
    /// I/O is suspended by the administrator.
    pub susp: bool,
    /// Resync is paused by a dependency.
    pub aftr_isp: bool,
    /// Resync is paused by the peer.
    pub peer_isp: bool,
    /// Resync is paused by the administrator here.
    pub user_isp: bool,
    /// I/O is suspended for lack of accessible data.
    pub susp_nod: bool,
    /// I/O is suspended until the peer is fenced.
    pub susp_fen: bool,
    /// The node has quorum (not before protocol 110).
    pub quorum: bool,
}

impl StateWord {
    /// The word with these states in which nothing is suspended or paused, and no quorum is told of.
    #[must_use]
    pub const fn undisturbed(role: Role, peer: Role, conn: ConnState, disk: DiskState, pdsk: DiskState) -> StateWord {
        StateWord {
            role,
            peer,
            conn,
            disk,
            pdsk,
            susp: false,
            aftr_isp: false,
            peer_isp: false,
            user_isp: false,
            susp_nod: false,
            susp_fen: false,
            quorum: false,
        }
    }
}

/// Where the fields of the state word are: (name, shift, width in bits).
pub(crate) mod place {
    pub(crate) const ROLE: (u32, u32) = (0, 2);
    pub(crate) const PEER: (u32, u32) = (2, 2);
    pub(crate) const CONN: (u32, u32) = (4, 5);
    pub(crate) const DISK: (u32, u32) = (9, 4);
    pub(crate) const PDSK: (u32, u32) = (13, 4);
    pub(crate) const SUSP: u32 = 17;
    pub(crate) const AFTR_ISP: u32 = 18;
    pub(crate) const PEER_ISP: u32 = 19;
    pub(crate) const USER_ISP: u32 = 20;
    pub(crate) const SUSP_NOD: u32 = 21;
    pub(crate) const SUSP_FEN: u32 = 22;
    pub(crate) const QUORUM: u32 = 23;

    /// The field's value in `word`.
    pub(crate) fn of(word: u32, (shift, width): (u32, u32)) -> u8 {
        (word >> shift & ((1 << width) - 1)) as u8
    }
}

impl StateWord {
    /// Reads a state word. Errors: name and number of the field that means nothing.
    pub fn from_bits(word: u32, numbering: DiskNumbering) -> Result<StateWord, (&'static str, u8)> {
        let role = |field, name| {
            let n = place::of(word, field);
            Role::from_number(n).ok_or((name, n))
        };
        let disk = |field, name| {
            let n = place::of(word, field);
            DiskState::from_number(n, numbering).ok_or((name, n))
        };
        let conn = place::of(word, place::CONN);
        let bit = |n: u32| word >> n & 1 == 1;
        Ok(StateWord {
            role: role(place::ROLE, "role")?,
            peer: role(place::PEER, "peer role")?,
            conn: ConnState::from_number(conn).ok_or(("connection state", conn))?,
            disk: disk(place::DISK, "disk state")?,
            pdsk: disk(place::PDSK, "peer disk state")?,
            susp: bit(place::SUSP),
            aftr_isp: bit(place::AFTR_ISP),
            peer_isp: bit(place::PEER_ISP),
            user_isp: bit(place::USER_ISP),
            susp_nod: bit(place::SUSP_NOD),
            susp_fen: bit(place::SUSP_FEN),
            quorum: bit(place::QUORUM),
        })
    }

    /// The word as sent.
    #[must_use]
    pub fn to_bits(&self, numbering: DiskNumbering) -> u32 {
        let put = |n: u8, (shift, _): (u32, u32)| u32::from(n) << shift;
        let bit = |on: bool, n: u32| u32::from(on) << n;
        put(self.role.number(), place::ROLE)
            | put(self.peer.number(), place::PEER)
            | put(self.conn.number(), place::CONN)
            | put(self.disk.number(numbering), place::DISK)
            | put(self.pdsk.number(numbering), place::PDSK)
            | bit(self.susp, place::SUSP)
            | bit(self.aftr_isp, place::AFTR_ISP)
            | bit(self.peer_isp, place::PEER_ISP)
            | bit(self.user_isp, place::USER_ISP)
            | bit(self.susp_nod, place::SUSP_NOD)
            | bit(self.susp_fen, place::SUSP_FEN)
            | bit(self.quorum, place::QUORUM)
    }
}

impl fmt::Display for StateWord {
    /// As DRBD's tools put it: `cs:Connected ro:Primary/Secondary ds:UpToDate/UpToDate`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let StateWord { role, peer, conn, disk, pdsk, .. } = self;
        write!(f, "cs:{conn} ro:{role}/{peer} ds:{disk}/{pdsk}")
    }
}
