//! Options that take one of a few words: one enum each, and the words of the language from the same list.

use std::fmt;

/// An option value that is one of a list of words.
pub trait Choice: Sized + Copy + 'static {
    /// The words of the configuration language, in the order of the reference.
    const WORDS: &'static [&'static str];

    /// The value for a word of [`Choice::WORDS`].
    fn from_word(word: &str) -> Option<Self>;

    /// The word for this value.
    fn word(self) -> &'static str;
}

macro_rules! choices {
    ($($(#[$doc:meta])* $name:ident { $($(#[$vdoc:meta])* $variant:ident = $word:literal),+ $(,)? })+) => { $(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum $name { $($(#[$vdoc])* #[doc = concat!("`", $word, "`")] $variant),+ }

        impl Choice for $name {
            const WORDS: &'static [&'static str] = &[$($word),+];

            fn from_word(word: &str) -> Option<Self> {
                match word { $($word => Some($name::$variant),)+ _ => None }
            }

            fn word(self) -> &'static str {
                match self { $($name::$variant => $word),+ }
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(self.word())
            }
        }
    )+ };
}

choices! {
    /// When a write counts as done (`docs/spec/config-and-cli.md` 2.2).
    Protocol {
        /// Local disk and send buffer.
        A = "A",
        /// And the peer has received it.
        B = "B",
        /// And the peer has written it.
        C = "C",
    }
    /// Split brain while no node is primary.
    AfterSb0Pri {
        Disconnect = "disconnect",
        DiscardYoungerPrimary = "discard-younger-primary",
        DiscardOlderPrimary = "discard-older-primary",
        DiscardZeroChanges = "discard-zero-changes",
        DiscardLeastChanges = "discard-least-changes",
        DiscardLocal = "discard-local",
        DiscardRemote = "discard-remote",
    }
    /// Split brain while one node is primary.
    AfterSb1Pri {
        Disconnect = "disconnect",
        Consensus = "consensus",
        DiscardSecondary = "discard-secondary",
        CallPriLostAfterSb = "call-pri-lost-after-sb",
        ViolentlyAs0p = "violently-as0p",
    }
    /// Split brain while both nodes are primary.
    AfterSb2Pri {
        Disconnect = "disconnect",
        CallPriLostAfterSb = "call-pri-lost-after-sb",
        ViolentlyAs0p = "violently-as0p",
    }
    /// A resync whose direction contradicts the roles.
    RrConflict {
        Disconnect = "disconnect",
        CallPriLost = "call-pri-lost",
        Violently = "violently",
        RetryConnect = "retry-connect",
        AutoDiscard = "auto-discard",
    }
    /// What a primary does when it loses a peer.
    Fencing {
        DontCare = "dont-care",
        /// Calls the handler and goes on.
        ResourceOnly = "resource-only",
        /// Freezes I/O until the handler has answered.
        ResourceAndStonith = "resource-and-stonith",
    }
    /// What to do when the connection cannot take more data.
    OnCongestion {
        Block = "block",
        /// Needs protocol A.
        PullAhead = "pull-ahead",
        Disconnect = "disconnect",
    }
    /// Reaction to an error of the backing disk.
    OnIoError {
        PassOn = "pass_on",
        CallLocalIoError = "call-local-io-error",
        Detach = "detach",
    }
    /// Who serves the reads of a primary.
    ReadBalancing {
        PreferLocal = "prefer-local",
        PreferRemote = "prefer-remote",
        RoundRobin = "round-robin",
        LeastPending = "least-pending",
        WhenCongestedRemote = "when-congested-remote",
        Striping32K = "32K-striping",
        Striping64K = "64K-striping",
        Striping128K = "128K-striping",
        Striping256K = "256K-striping",
        Striping512K = "512K-striping",
        Striping1M = "1M-striping",
    }
    /// No up-to-date data can be reached.
    OnNoData {
        IoError = "io-error",
        SuspendIo = "suspend-io",
    }
    /// The partition is below the quorum.
    OnNoQuorum {
        IoError = "io-error",
        SuspendIo = "suspend-io",
    }
    /// A frozen primary meets a newer one.
    OnSuspendedPrimaryOutdated {
        Disconnect = "disconnect",
        ForceSecondary = "force-secondary",
    }
    /// Whether the installation would be counted; urbd never counts.
    UsageCount {
        Yes = "yes",
        No = "no",
        Ask = "ask",
    }
    /// How the block device is presented (urbd's own option).
    FrontEnd {
        /// ublk, else kernel NBD, else FUSE with a loop device; and always the NBD socket.
        Auto = "auto",
        /// The kernel's NBD client on our NBD server.
        Nbd = "nbd",
        /// A FUSE file with a loop device.
        Fuse = "fuse",
        /// The kernel's ublk driver.
        Ublk = "ublk",
        /// Only the NBD socket.
        None = "none",
    }
    /// What decides on the speed of a resync (urbd's own option).
    ResyncController {
        /// Always `resync-rate`.
        Fixed = "fixed",
        /// The `c-*` controller as DRBD has it.
        Drbd = "drbd",
        /// By the latency that applications see.
        Adaptive = "adaptive",
    }
}
