//! The state words of `docs/spec/config-and-cli.md` 4: one enum per kind, spelled as the tools print them.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

macro_rules! state_words {
    ($(#[$doc:meta])* $name:ident { $($(#[$vdoc:meta])* $variant:ident = $word:literal,)+ }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        pub enum $name {
            $($(#[$vdoc])* #[serde(rename = $word)] $variant,)+
        }

        impl $name {
            /// All values, in the order of their numbers.
            pub const ALL: &'static [$name] = &[$($name::$variant,)+];

            /// The word as the tools print it.
            pub const fn as_str(self) -> &'static str {
                match self { $($name::$variant => $word,)+ }
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(self.as_str())
            }
        }

        impl FromStr for $name {
            type Err = UnknownWord;
            fn from_str(word: &str) -> Result<Self, UnknownWord> {
                Self::ALL.iter().copied().find(|s| s.as_str() == word).ok_or_else(|| UnknownWord(word.to_owned()))
            }
        }
    };
}

/// A word that names no state of the wanted kind.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnknownWord(pub String);

impl fmt::Display for UnknownWord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`{}` is not a state word", self.0)
    }
}

impl std::error::Error for UnknownWord {}

state_words! {
    /// The role of a node in a resource.
    Role {
        /// Not known: the peer is not connected.
        Unknown = "Unknown",
        /// May be opened for writing.
        Primary = "Primary",
        /// Only receives.
        Secondary = "Secondary",
    }
}

state_words! {
    /// The state of a connection.
    ConnectionState {
        /// Not trying to connect.
        StandAlone = "StandAlone",
        /// On the way down, asked for by the administrator.
        Disconnecting = "Disconnecting",
        /// Between two attempts.
        Unconnected = "Unconnected",
        /// The peer did not answer in time.
        Timeout = "Timeout",
        /// The stream was closed.
        BrokenPipe = "BrokenPipe",
        /// The stream failed.
        NetworkFailure = "NetworkFailure",
        /// The peer broke the protocol.
        ProtocolError = "ProtocolError",
        /// The peer is disconnecting.
        TearDown = "TearDown",
        /// Waiting for the peer to appear.
        Connecting = "Connecting",
        /// Usable.
        Connected = "Connected",
    }
}

state_words! {
    /// The state of replication of one volume to one peer.
    ReplicationState {
        /// Not connected.
        Off = "Off",
        /// Writes are mirrored; nothing to resynchronise.
        Established = "Established",
        /// A full resync that an administrator started here, source side.
        StartingSyncS = "StartingSyncS",
        /// A full resync that an administrator started here, target side.
        StartingSyncT = "StartingSyncT",
        /// Bitmap exchange, source side.
        WFBitMapS = "WFBitMapS",
        /// Bitmap exchange, target side.
        WFBitMapT = "WFBitMapT",
        /// Waiting for the generation identifier of the resync.
        WFSyncUUID = "WFSyncUUID",
        /// Sending a resync.
        SyncSource = "SyncSource",
        /// Receiving a resync.
        SyncTarget = "SyncTarget",
        /// Online verify, the side that asks.
        VerifyS = "VerifyS",
        /// Online verify, the side that answers.
        VerifyT = "VerifyT",
        /// Source of a resync that is paused.
        PausedSyncS = "PausedSyncS",
        /// Target of a resync that is paused.
        PausedSyncT = "PausedSyncT",
        /// Stopped mirroring because of congestion.
        Ahead = "Ahead",
        /// The peer stopped mirroring to us.
        Behind = "Behind",
    }
}

state_words! {
    /// The state of a disk, ours or a peer's.
    DiskState {
        /// No disk.
        Diskless = "Diskless",
        /// Reading the metadata.
        Attaching = "Attaching",
        /// On the way to Diskless.
        Detaching = "Detaching",
        /// Had an I/O error.
        Failed = "Failed",
        /// Waiting for the peer before the state is known.
        Negotiating = "Negotiating",
        /// The data is a mixture.
        Inconsistent = "Inconsistent",
        /// Consistent, but old.
        Outdated = "Outdated",
        /// A peer's disk of which nothing is known.
        DUnknown = "DUnknown",
        /// Consistent; perhaps old.
        Consistent = "Consistent",
        /// Current.
        UpToDate = "UpToDate",
    }
}

state_words! {
    /// How writes of one epoch are kept before those of the next.
    WriteOrdering {
        /// Not at all.
        None = "none",
        /// By waiting for completion.
        Drain = "drain",
        /// By waiting for completion and a flush.
        Flush = "flush",
        /// By barrier requests.
        Barrier = "barrier",
    }
}
