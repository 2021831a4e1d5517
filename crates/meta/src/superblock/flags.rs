//! Flag words (`docs/spec/on-disk-format.md` 2.3, 2.4). Unknown bits are kept.

use std::fmt;

/// Flags of a device. In v08 three more bits (0x04, 0x08, 0x20) speak of the peer; the model keeps those with the peer.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub struct DeviceFlags(pub u32);

/// Flags of a peer.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub struct PeerFlags(pub u32);

macro_rules! flag_word {
    ($name:ident) => {
        impl $name {
            /// With or without the bits of `f`.
            #[must_use]
            pub const fn with(self, f: $name, on: bool) -> $name {
                $name(if on { self.0 | f.0 } else { self.0 & !f.0 })
            }

            /// The bits of `f` become as they are in `other`.
            pub const fn follow(&mut self, f: $name, other: $name) {
                self.0 = self.0 & !f.0 | other.0 & f.0;
            }

            /// Sets or clears the bits of `f`.
            pub fn put(&mut self, f: $name, on: bool) {
                self.set(f, on);
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!(stringify!($name), "({:#x})"), self.0)
            }
        }
    };
}

flag_word!(DeviceFlags);
flag_word!(PeerFlags);

bitflags::bitflags! {
    impl DeviceFlags: u32 {
        /// The local disk is better than Inconsistent.
        const CONSISTENT = 0x001;
        /// Primary here (v09: or at any peer): after a crash the activity log must be replayed.
        const PRIMARY_IND = 0x002;
        /// The local disk is better than Outdated.
        const WAS_UP_TO_DATE = 0x010;
        /// Crashed as Primary and not in sync with the peer since (v09: set while Primary).
        const CRASHED_PRIMARY = 0x040;
        /// The activity log has been applied and re-initialised.
        const AL_CLEAN = 0x080;
        /// Activity log updates are not written.
        const AL_DISABLED = 0x100;
        /// v09: was Primary when quorum was lost.
        const PRIMARY_LOST_QUORUM = 0x200;
        /// v09: had quorum at the last state change.
        const HAVE_QUORUM = 0x400;
    }
}

bitflags::bitflags! {
    impl PeerFlags: u32 {
        /// Replication was established.
        const CONNECTED = 0x1;
        /// The peer's disk is known to be Outdated or worse.
        const OUTDATED = 0x2;
        /// v09: a fencing policy was in force.
        const FENCING = 0x4;
        /// All bits of the peer's slot count as set.
        const FULL_SYNC = 0x8;
        /// v09: the peer had a disk at least once.
        const DEVICE_SEEN = 0x10;
        /// v09: a node with this id exists.
        const NODE_EXISTS = 0x10000;
        /// v09, in memory only: ignored when reading, never written.
        const HAVE_BITMAP = 0x8000_0000;
    }
}
