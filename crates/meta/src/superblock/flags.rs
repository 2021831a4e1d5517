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
            /// Are all bits of `f` set?
            #[must_use]
            pub const fn contains(self, f: $name) -> bool {
                self.0 & f.0 == f.0
            }

            /// Sets the bits of `f`.
            pub const fn insert(&mut self, f: $name) {
                self.0 |= f.0;
            }

            /// Clears the bits of `f`.
            pub const fn remove(&mut self, f: $name) {
                self.0 &= !f.0;
            }

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
            pub const fn put(&mut self, f: $name, on: bool) {
                if on { self.insert(f) } else { self.remove(f) }
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!(stringify!($name), "({:#x})"), self.0)
            }
        }

        impl std::ops::BitOr for $name {
            type Output = $name;
            fn bitor(self, o: $name) -> $name {
                $name(self.0 | o.0)
            }
        }
    };
}

flag_word!(DeviceFlags);
flag_word!(PeerFlags);

impl DeviceFlags {
    /// The local disk is better than Inconsistent.
    pub const CONSISTENT: DeviceFlags = DeviceFlags(0x001);
    /// Primary here (v09: or at any peer): after a crash the activity log must be replayed.
    pub const PRIMARY_IND: DeviceFlags = DeviceFlags(0x002);
    /// The local disk is better than Outdated.
    pub const WAS_UP_TO_DATE: DeviceFlags = DeviceFlags(0x010);
    /// Crashed as Primary and not in sync with the peer since (v09: set while Primary).
    pub const CRASHED_PRIMARY: DeviceFlags = DeviceFlags(0x040);
    /// The activity log has been applied and re-initialised.
    pub const AL_CLEAN: DeviceFlags = DeviceFlags(0x080);
    /// Activity log updates are not written.
    pub const AL_DISABLED: DeviceFlags = DeviceFlags(0x100);
    /// v09: was Primary when quorum was lost.
    pub const PRIMARY_LOST_QUORUM: DeviceFlags = DeviceFlags(0x200);
    /// v09: had quorum at the last state change.
    pub const HAVE_QUORUM: DeviceFlags = DeviceFlags(0x400);
}

impl PeerFlags {
    /// Replication was established.
    pub const CONNECTED: PeerFlags = PeerFlags(0x1);
    /// The peer's disk is known to be Outdated or worse.
    pub const OUTDATED: PeerFlags = PeerFlags(0x2);
    /// v09: a fencing policy was in force.
    pub const FENCING: PeerFlags = PeerFlags(0x4);
    /// All bits of the peer's slot count as set.
    pub const FULL_SYNC: PeerFlags = PeerFlags(0x8);
    /// v09: the peer had a disk at least once.
    pub const DEVICE_SEEN: PeerFlags = PeerFlags(0x10);
    /// v09: a node with this id exists.
    pub const NODE_EXISTS: PeerFlags = PeerFlags(0x10000);
    /// v09, in memory only: ignored when reading, never written.
    pub const HAVE_BITMAP: PeerFlags = PeerFlags(0x8000_0000);
}
