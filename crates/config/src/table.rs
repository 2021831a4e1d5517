//! Every option of every section, as data (`docs/spec/config-and-cli.md` 2).
//!
//! To say that urbd now honours an option, append `.honoured()` to its line.

use crate::choices::{
    AfterSb0Pri, AfterSb1Pri, AfterSb2Pri, Choice, Fencing, FrontEnd, OnCongestion, OnIoError, OnNoData, OnNoQuorum,
    OnSuspendedPrimaryOutdated, Protocol, ReadBalancing, ResyncController, RrConflict, UsageCount,
};

/// What an option belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Group {
    /// The `global` section.
    Global,
    /// A resource: `options { }`.
    Resource,
    /// A connection: `net { }`.
    Net,
    /// A backing disk: `disk { }`.
    Disk,
    /// The device of a volume: also written in `disk { }`.
    Device,
    /// A volume towards one peer: also written in `disk { }`.
    PeerDevice,
    /// The waiting verbs: `startup { }`.
    Startup,
    /// `handlers { }`.
    Handlers,
    /// `proxy { }`.
    Proxy,
    /// urbd's own: `urbd { }`.
    Urbd,
    /// What a resync shall achieve: `resync-goal { }` in `urbd { }`.
    ResyncGoal,
}

/// The unit of a number without a suffix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// A plain count.
    One,
    /// Bytes.
    Byte,
    /// KiB per second.
    KibPerSecond,
    /// Sectors of 512 bytes.
    Sector,
    /// Tenths of a second.
    Decisecond,
    /// Seconds.
    Second,
    /// Milliseconds.
    Millisecond,
    /// Microseconds; suffixes are us, ms.
    Microsecond,
    /// Seconds; suffixes are s, m, h, d (also `days`).
    TimeSpan,
    /// Hundredths, with or without `%`.
    Percent,
}

/// Which values an option takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A number; limits after conversion to the unit.
    Number {
        /// Default unit.
        unit: Unit,
        /// Default.
        default: u64,
        /// Least.
        min: u64,
        /// Greatest.
        max: u64,
    },
    /// A word, or a number without suffix.
    NumberOrWord {
        /// The words.
        words: &'static [&'static str],
        /// Default.
        default: &'static str,
        /// Least number.
        min: u64,
        /// Greatest number.
        max: u64,
    },
    /// One of a few words.
    Choice {
        /// The words.
        words: &'static [&'static str],
        /// Default.
        default: &'static str,
    },
    /// `yes`, `no`, nothing (= yes), or the name with `no-` in front.
    Bool {
        /// Default.
        default: bool,
    },
    /// Present or absent.
    Flag,
    /// Free text.
    Text {
        /// Default.
        default: &'static str,
        /// Greatest length in bytes.
        max: usize,
    },
    /// `RES` or `RES/VOL`.
    ResyncAfter {
        /// Greatest length in bytes.
        max: usize,
    },
    /// A shell command.
    Command,
}

/// One option.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OptionSpec {
    /// Its name in the language.
    pub name: &'static str,
    /// What it belongs to.
    pub group: Group,
    /// Its values.
    pub kind: Kind,
    /// The first drbd-utils that knows it, if later than 9.22.
    pub since: Option<&'static str>,
    /// Does an 8.4 configuration know it (perhaps in another section)?
    pub in_84: bool,
    /// Does a DRBD 9 configuration know it?
    pub in_9: bool,
    /// Does urbd act on it? Otherwise it is accepted with a warning.
    pub honoured: bool,
    /// Can it only be set when its object is made? Then `adjust` makes the object anew.
    pub immutable: bool,
    /// Is a number outside the limits moved to the nearest limit, with a warning, and not refused?
    pub limited: bool,
}

impl OptionSpec {
    const fn new(group: Group, name: &'static str, kind: Kind) -> OptionSpec {
        OptionSpec {
            name,
            group,
            kind,
            since: None,
            in_84: true,
            in_9: true,
            honoured: false,
            immutable: false,
            limited: false,
        }
    }

    const fn honoured(mut self) -> OptionSpec {
        self.honoured = true;
        self
    }

    /// Not known to 8.4.
    const fn nine(mut self) -> OptionSpec {
        self.in_84 = false;
        self
    }

    /// Not known to DRBD 9.
    const fn eight(mut self) -> OptionSpec {
        self.in_9 = false;
        self
    }

    const fn since(mut self, version: &'static str) -> OptionSpec {
        self.since = Some(version);
        self.in_84 = false;
        self
    }

    const fn limited(mut self) -> OptionSpec {
        self.limited = true;
        self
    }

    const fn immutable(mut self) -> OptionSpec {
        self.immutable = true;
        self
    }
}

impl Unit {
    /// Bytes in one unit, 1 for counts and times.
    #[must_use]
    pub fn factor(self) -> u64 {
        match self {
            Unit::KibPerSecond => 1024,
            Unit::Sector => 512,
            _ => 1,
        }
    }

    /// For messages: blank and unit, or nothing.
    pub(crate) fn label(self) -> &'static str {
        match self {
            Unit::One => "",
            Unit::Byte => " bytes",
            Unit::KibPerSecond => " KiB/s",
            Unit::Sector => " sectors",
            Unit::Decisecond => " tenths of a second",
            Unit::Second => " seconds",
            Unit::Millisecond => " milliseconds",
            Unit::Microsecond => " microseconds",
            Unit::TimeSpan => " seconds",
            Unit::Percent => " %",
        }
    }
}

/// All options.
pub fn options() -> impl Iterator<Item = &'static OptionSpec> {
    TABLE.iter()
}

/// The option of that name in the first of `groups` that has it.
#[must_use]
pub fn option(groups: &[Group], name: &str) -> Option<&'static OptionSpec> {
    groups.iter().find_map(|g| TABLE.iter().find(|o| o.group == *g && o.name == name))
}

const fn number(unit: Unit, default: u64, min: u64, max: u64) -> Kind {
    Kind::Number { unit, default, min, max }
}

const fn choice<C: Choice>(default: &'static str) -> Kind {
    Kind::Choice { words: C::WORDS, default }
}

const YES: Kind = Kind::Bool { default: true };
const NO: Kind = Kind::Bool { default: false };
const NAME: Kind = Kind::Text { default: "", max: 63 };
const QUORUM: Kind = Kind::NumberOrWord { words: &["off", "majority", "all"], default: "off", min: 1, max: 32 };
const SOCKET_BUFFER: Kind = number(Unit::Byte, 0, 0, 134_217_728);
const WAIT: Kind = number(Unit::Second, 0, 0, 300_000);
const COMMAND_TIMEOUT_MAX: u64 = 900;

macro_rules! table {
    ($($group:ident { $($name:literal: $kind:expr $(, $flag:ident($($arg:literal)?))*;)* })*) => {
        static TABLE: &[OptionSpec] = &[
            $($(OptionSpec::new(Group::$group, $name, $kind)$(.$flag($($arg)?))*,)*)*
        ];
    };
}

table! {
    Global {
        "disable-ip-verification": Kind::Flag, honoured();
        "minor-count": number(Unit::One, 32, 1, 255), honoured();
        "dialog-refresh": number(Unit::Second, 1, 0, 600), honoured();
        "usage-count": choice::<UsageCount>("ask"), honoured();
        "udev-always-use-vnr": Kind::Flag, honoured();
        "cmd-timeout-short": number(Unit::Second, 5, 0, COMMAND_TIMEOUT_MAX), honoured();
        "cmd-timeout-medium": number(Unit::Second, 600, 0, COMMAND_TIMEOUT_MAX), honoured();
        "cmd-timeout-long": number(Unit::Second, 0, 0, COMMAND_TIMEOUT_MAX), honoured();
    }
    Resource {
        "cpu-mask": Kind::Text { default: "", max: 255 };
        "on-no-data-accessible": choice::<OnNoData>("io-error"), honoured();
        "auto-promote": YES, nine(), honoured();
        "peer-ack-window": number(Unit::Sector, 4096, 2048, 204_800), nine();
        "peer-ack-delay": number(Unit::Millisecond, 100, 1, 10_000), nine();
        "twopc-timeout": number(Unit::Decisecond, 300, 50, 600), nine();
        "twopc-retry-timeout": number(Unit::Decisecond, 1, 1, 50), nine();
        "auto-promote-timeout": number(Unit::Decisecond, 20, 0, 600), nine(), honoured();
        "max-io-depth": number(Unit::One, 8000, 4, 4_294_967_295), nine();
        "quorum": QUORUM, nine(), honoured();
        "on-no-quorum": choice::<OnNoQuorum>("suspend-io"), nine(), honoured();
        "quorum-minimum-redundancy": QUORUM, nine(), honoured();
        "on-suspended-primary-outdated": choice::<OnSuspendedPrimaryOutdated>("disconnect"), nine(), honoured();
        "drbd8-api-compatibility": NO, since("9.33");
    }
    Net {
        "transport": NAME, nine(), immutable();
        "protocol": choice::<Protocol>("C"), honoured();
        "timeout": number(Unit::Decisecond, 60, 1, 600), honoured();
        "max-epoch-size": number(Unit::One, 2048, 1, 20_000), honoured();
        "connect-int": number(Unit::Second, 10, 1, 120), honoured();
        "ping-int": number(Unit::Second, 10, 1, 120), honoured();
        "sndbuf-size": SOCKET_BUFFER, honoured();
        "rcvbuf-size": SOCKET_BUFFER, honoured();
        "ko-count": number(Unit::One, 7, 0, 200), honoured();
        "allow-two-primaries": NO, honoured();
        "cram-hmac-alg": NAME, honoured();
        "shared-secret": NAME, honoured();
        "after-sb-0pri": choice::<AfterSb0Pri>("disconnect"), honoured();
        "after-sb-1pri": choice::<AfterSb1Pri>("disconnect"), honoured();
        "after-sb-2pri": choice::<AfterSb2Pri>("disconnect"), honoured();
        "always-asbp": NO, honoured();
        "rr-conflict": choice::<RrConflict>("disconnect"), honoured();
        "ping-timeout": number(Unit::Decisecond, 5, 1, 300), honoured();
        "data-integrity-alg": NAME, honoured();
        "tcp-cork": YES;
        "on-congestion": choice::<OnCongestion>("block"), honoured();
        "congestion-fill": number(Unit::Sector, 0, 0, 20_971_520), honoured();
        "congestion-extents": number(Unit::One, 1237, 67, 65_534), honoured();
        "csums-alg": NAME, honoured();
        "csums-after-crash-only": NO, honoured();
        "verify-alg": NAME, honoured();
        "use-rle": YES, honoured();
        "socket-check-timeout": number(Unit::Decisecond, 0, 0, 300), honoured();
        "fencing": choice::<Fencing>("dont-care"), honoured();
        "max-buffers": number(Unit::One, 2048, 32, 131_072), honoured();
        "unplug-watermark": number(Unit::One, 128, 1, 131_072), eight();
        "allow-remote-read": YES, nine();
        "load-balance-paths": NO, since("9.26"), immutable();
        "rdma-ctrl-rcvbuf-size": number(Unit::Byte, 0, 0, 10_485_760), since("9.26");
        "rdma-ctrl-sndbuf-size": number(Unit::Byte, 0, 0, 10_485_760), since("9.26");
        "tls": NO, since("9.26");
        "tls-keyring": NAME, since("9.26");
        "tls-privkey": NAME, since("9.26");
        "tls-certificate": NAME, since("9.26");
        "_name": NAME, nine(), honoured();
    }
    Disk {
        "size": number(Unit::Sector, 0, 0, 1 << 41), honoured();
        "max-bio-bvecs": number(Unit::One, 0, 0, 128), eight();
        "on-io-error": choice::<OnIoError>("detach"), honoured();
        "disk-barrier": NO;
        "disk-flushes": YES, honoured();
        "disk-drain": YES, honoured();
        "md-flushes": YES, honoured();
        "resync-after": Kind::ResyncAfter { max: 134 }, honoured();
        "al-extents": number(Unit::One, 1237, 67, 65_534), honoured(), limited();
        "al-updates": YES, honoured();
        "discard-zeroes-if-aligned": YES, honoured();
        "disable-write-same": NO;
        "disk-timeout": number(Unit::Decisecond, 0, 0, 6000), honoured();
        "read-balancing": choice::<ReadBalancing>("prefer-local");
        "rs-discard-granularity": number(Unit::Byte, 0, 0, 1_048_576), honoured();
        // Until 9.32 a peer-device option also in a resource or volume; the meaning is the same.
        "bitmap": YES, since("9.33"), immutable();
    }
    Device {
        "max-bio-size": number(Unit::Byte, 1_048_576, 512, 1_048_576), since("9.24");
        "block-size": number(Unit::Byte, 512, 512, 4096), since("9.24");
        "discard-granularity": number(Unit::Byte, 4_294_967_295, 0, 134_217_728), since("9.34");
        "diskless": NO, nine(), honoured();
    }
    PeerDevice {
        "resync-rate": number(Unit::KibPerSecond, 250, 1, 8_388_608), honoured();
        "c-plan-ahead": number(Unit::Decisecond, 20, 0, 300), honoured();
        "c-delay-target": number(Unit::Decisecond, 10, 1, 100), honoured();
        "c-fill-target": number(Unit::Sector, 100, 0, 1_048_576), honoured();
        "c-max-rate": number(Unit::KibPerSecond, 102_400, 0, 4_194_304), honoured();
        "c-min-rate": number(Unit::KibPerSecond, 250, 0, 4_194_304), honoured();
        "bitmap": YES, nine();
        "resync-without-replication": YES, since("9.32");
        "peer-tiebreaker": YES, since("9.34"), honoured();
    }
    Startup {
        "wfc-timeout": WAIT, honoured();
        "degr-wfc-timeout": WAIT, honoured();
        "outdated-wfc-timeout": WAIT, honoured();
        "wait-after-sb": NO, honoured();
        "stacked-timeouts": Kind::Flag;
        "become-primary-on": Kind::Text { default: "", max: 255 };
    }
    Handlers {
        "pri-on-incon-degr": Kind::Command, honoured();
        "pri-lost-after-sb": Kind::Command, honoured();
        "pri-lost": Kind::Command, honoured();
        "initial-split-brain": Kind::Command, honoured();
        "split-brain": Kind::Command, honoured();
        "fence-peer": Kind::Command, honoured();
        "outdate-peer": Kind::Command, honoured();
        "unfence-peer": Kind::Command, honoured();
        "local-io-error": Kind::Command, honoured();
        "before-resync-target": Kind::Command, honoured();
        "after-resync-target": Kind::Command, honoured();
        "before-resync-source": Kind::Command, honoured();
        "out-of-sync": Kind::Command, honoured();
        "quorum-lost": Kind::Command, nine(), honoured();
        "disconnected": Kind::Command, nine(), honoured();
    }
    Proxy {
        "memlimit": number(Unit::Byte, 16 << 20, 0, u64::MAX);
        "read-loops": number(Unit::One, 16, 0, u64::MAX);
        "compression": number(Unit::One, 0, 0, u64::MAX);
        "bwlimit": number(Unit::One, 0, 0, u64::MAX);
        "sndbuf-size": number(Unit::Byte, 0, 0, u64::MAX);
        "rcvbuf-size": number(Unit::Byte, 0, 0, u64::MAX);
        "ping-timeout": number(Unit::Decisecond, 100, 0, u64::MAX);
    }
    Urbd {
        "front-end": choice::<FrontEnd>("auto"), honoured();
        "fuse-io-uring": NO, honoured();
        "hand-over": YES, honoured();
        "drbd-names": YES, honoured();
        "resync-controller": choice::<ResyncController>("adaptive"), honoured();
        "busy-poll": number(Unit::Microsecond, 100, 0, 1000), honoured();
        "protocol-version-max": number(Unit::One, 101, 86, 124), honoured();
        "status-group": NAME, honoured();
        "usermode-helper": Kind::Text { default: "", max: 255 }, honoured();
    }
    ResyncGoal {
        "finish-within": number(Unit::TimeSpan, 0, 0, 31_536_000), honoured();
        "latency-budget": number(Unit::Percent, 20, 1, 1000), honoured();
    }
}
