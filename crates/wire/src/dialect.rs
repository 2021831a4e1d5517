//! What two nodes agreed to speak: protocol version and features.

use crate::violation::Violation;
use std::fmt;

/// A protocol version this crate speaks: 86 to 101 (DRBD 8.4), 118 to 124 (DRBD 9).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Version(u8);

impl Version {
    /// The oldest version spoken.
    pub const MIN: Version = Version(86);
    /// The newest version of 8.4's dialect.
    pub const MAX_84: Version = Version(101);
    /// The oldest version of 9's dialect.
    pub const MIN_9: Version = Version(118);
    /// The newest version spoken.
    pub const MAX: Version = Version(124);

    /// `None` if this crate does not speak `n`.
    #[must_use]
    pub const fn new(n: u32) -> Option<Version> {
        match n {
            86..=101 | 118..=124 => Some(Version(n as u8)),
            _ => None,
        }
    }

    /// Does it have node ids, two-phase commits and one bitmap for each peer?
    #[must_use]
    pub const fn is_9(self) -> bool {
        self.0 >= Self::MIN_9.0
    }

    /// The number, 86 to 101 or 118 to 124.
    #[must_use]
    pub const fn number(self) -> u32 {
        self.0 as u32
    }

    /// Largest block payload that may be sent in one packet, in bytes (`docs/spec/wire-protocol.md` 2.4).
    #[must_use]
    pub const fn max_block(self) -> u32 {
        match self.0 {
            ..95 => 32 << 10,
            95..100 => 128 << 10,
            _ => crate::MAX_BLOCK,
        }
    }

    /// Can a verify run be stopped at a sector (`docs/spec/wire-protocol.md` 14.1)?
    #[must_use]
    pub const fn has_verify_stop_sector(self) -> bool {
        self.0 >= 97 && self.0 != 100
    }

    /// Size of every header after the features packets, in bytes.
    #[must_use]
    pub const fn header_len(self) -> usize {
        if self.0 >= 100 { 16 } else { 8 }
    }
}

impl fmt::Debug for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "protocol {}", self.0)
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Feature bits of P_CONNECTION_FEATURES (`docs/spec/wire-protocol.md` 7.2).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Features(pub u32);

bitflags::bitflags! {
    impl Features: u32 {
        /// No feature.
        const NONE = 0;
        /// P_TRIM may be sent.
        const TRIM = 0x1;
        /// P_RS_THIN_REQ and P_RS_DEALLOCATED.
        const THIN_RESYNC = 0x2;
        /// Queue limits in P_SIZES; discards up to 128 MiB.
        const WRITE_SAME = 0x4;
        /// P_ZEROES; P_TRIM means a plain discard.
        const WRITE_ZEROES = 0x8;
        /// Requests of resync and verify name the write that they depend on.
        const RESYNC_DAGTAG = 0x10;
        /// Second layout of two-phase commits: flags, and the reachable nodes in P_TWOPC_COMMIT.
        const TWOPC_V2 = 0x20;
        /// Generations of a resync that is skipped are handled as 9.2.4 does.
        const RS_SKIP_UUID = 0x40;
        /// P_ENABLE_REPLICATION: a target of a resync need not get new writes meanwhile.
        const RESYNC_WITHOUT_REPLICATION = 0x80;
        /// P_SIZES tells how much a bit of the bitmap stands for. Needs `WRITE_SAME`.
        const BM_BLOCK_SHIFT = 0x100;
        /// P_PEER_DAGTAG within the handshake.
        const RECONCILE_RECONNECT = 0x200;
        /// All of 8.4's.
        const OF_84 = 0xf;
        /// All of DRBD's that this crate speaks.
        const ALL = 0x3ff;
        /// urbd's own: the sender decides by urbd's rules where its peer does so, too. No DRBD has this bit, and what
        /// is agreed on is what both offer: beside one it is never set.
        const URBD_RULES = 0x8000_0000;
        /// urbd's own: who hears that a Primary begins a data generation says that it has it when that is on its disk,
        /// and the Primary waits for the word of all that have this bit.
        const URBD_GENERATIONS = 0x4000_0000;
        /// All of urbd's own.
        const OF_URBD = 0xc000_0000;
    }
}

impl Features {
    /// What nobody may offer with a protocol version: only 9.2.0 to 9.2.2 have this mixture, and what they mean by it
    /// was never released again (`docs/spec/wire-protocol.md` 17.12).
    #[must_use]
    pub const fn never_with(version: u32) -> Features {
        if version == 121 { Features::RESYNC_DAGTAG } else { Features::NONE }
    }

    /// The features that both have.
    #[must_use]
    pub const fn and(self, other: Features) -> Features {
        Features(self.0 & other.0)
    }

    /// These without `other`'s.
    #[must_use]
    pub const fn without(self, other: Features) -> Features {
        Features(self.0 & !other.0)
    }
}

impl fmt::Debug for Features {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "features {:#x}", self.0)
    }
}

/// What both nodes of a connection speak, fixed by their P_CONNECTION_FEATURES packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dialect {
    /// The agreed protocol version.
    pub version: Version,
    /// The agreed features.
    pub features: Features,
}

impl Dialect {
    /// What is spoken before the features packets: enough to emit the packets of that phase.
    pub const HANDSHAKE: Dialect = Dialect { version: Version::MIN, features: Features::NONE };

    /// Is `feature` agreed?
    #[must_use]
    pub const fn has(&self, feature: Features) -> bool {
        self.features.contains(feature)
    }

    /// Largest range of one P_TRIM or P_ZEROES to send, in bytes (`docs/spec/wire-protocol.md` 5.1).
    #[must_use]
    pub const fn max_discard(&self) -> u32 {
        if self.has(Features::WRITE_SAME) { crate::MAX_DISCARD } else { 4 << 20 }
    }
}

/// Why two nodes cannot talk. Named separately from [`Violation`], which it converts into.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// Lowest version the peer speaks.
    pub peer_min: u32,
    /// Highest version the peer speaks.
    pub peer_max: u32,
}

impl From<Refusal> for Violation {
    fn from(r: Refusal) -> Violation {
        Violation::NoCommonVersion { peer_min: r.peer_min, peer_max: r.peer_max }
    }
}

/// The three layouts of a packet header (`docs/spec/wire-protocol.md` 2.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum HeaderFormat {
    /// 8 bytes, 16-bit length, no volume.
    H80,
    /// 8 bytes, 32-bit length, no volume.
    H95,
    /// 16 bytes with a volume number.
    H100,
}

impl HeaderFormat {
    /// The format that a sender uses for a packet of `length` bytes (`docs/spec/wire-protocol.md` 2.2).
    #[must_use]
    pub const fn choose(version: Version, length: u32) -> HeaderFormat {
        match version.number() {
            100.. => HeaderFormat::H100,
            95.. if length > 32768 => HeaderFormat::H95,
            _ => HeaderFormat::H80,
        }
    }

    /// Size of the header in bytes.
    #[must_use]
    pub const fn size(self) -> usize {
        match self {
            HeaderFormat::H80 | HeaderFormat::H95 => 8,
            HeaderFormat::H100 => 16,
        }
    }
}
