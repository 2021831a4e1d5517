//! Options as written ([`Settings`]) and as programs use them (one struct per kind of object).

use std::fmt;
use std::ops::Deref;

use units::{ByteLen, Duration, Sector};

use crate::choices::{
    AfterSb0Pri, AfterSb1Pri, AfterSb2Pri, Choice, Fencing, FrontEnd, OnCongestion, OnIoError, OnNoData, OnNoQuorum,
    OnSuspendedPrimaryOutdated, Protocol, ReadBalancing, ResyncController, RrConflict, UsageCount,
};
use crate::error::Span;
use crate::table::{Group, Kind, OptionSpec, Unit, option};
use crate::value::{BadValue, Value};

/// One option that was set in a file.
#[derive(Clone)]
pub struct Setting {
    /// Which option.
    pub spec: &'static OptionSpec,
    /// The value as written; booleans as `yes` or `no`.
    pub text: String,
    /// The value as understood.
    pub value: Value,
    /// Where it stands.
    pub span: Span,
    /// Did it come from an outer section in the last merge?
    inherited: bool,
}

/// A text that must not get into logs: its debug form hides it.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

/// Options that were set, in order, each at most once.
#[derive(Clone, Debug, Default)]
pub struct Settings(Vec<Setting>);

/// Two values for one option from equally near places.
pub(crate) struct Clash {
    pub(crate) here: Setting,
    pub(crate) there: Setting,
}

impl Setting {
    /// What `text` says for `spec`, given outside of a file, for example on a command line.
    ///
    /// # Errors
    /// As [`Value::parse`].
    pub fn parse(spec: &'static OptionSpec, text: &str) -> Result<Setting, BadValue> {
        Ok(Setting::new(spec, text.to_owned(), Value::parse(spec, text)?, Span::outside()))
    }

    /// The default of `spec`, said aloud.
    #[must_use]
    pub fn default_of(spec: &'static OptionSpec) -> Setting {
        let value = Value::default_of(spec);
        let text = match (&value, spec.kind) {
            // An empty name is no value of this one.
            (_, Kind::ResyncAfter { .. }) => "-1".to_owned(),
            (Value::Number(n), _) => n.to_string(),
            (Value::Word(word), _) => (*word).to_owned(),
            (Value::Bool(yes), _) => if *yes { "yes" } else { "no" }.to_owned(),
            (Value::Text(text), _) => text.clone(),
        };
        Setting::new(spec, text, value, Span::outside())
    }

    pub(crate) fn new(spec: &'static OptionSpec, text: String, value: Value, span: Span) -> Setting {
        Setting { spec, text, value, span, inherited: false }
    }

    /// The text for messages.
    pub(crate) fn shown(&self) -> &str {
        if self.spec.name == "shared-secret" { "(hidden)" } else { &self.text }
    }

    /// Has it the default value?
    #[must_use]
    pub fn is_default(&self) -> bool {
        self.value == Value::default_of(self.spec)
    }
}

impl Settings {
    /// The settings in order.
    pub fn iter(&self) -> std::slice::Iter<'_, Setting> {
        self.0.iter()
    }

    /// Is nothing set?
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The setting of that name.
    #[must_use]
    pub fn find(&self, name: &str) -> Option<&Setting> {
        self.0.iter().find(|s| s.spec.name == name)
    }

    /// Only the settings of one group.
    #[must_use]
    pub fn of(&self, group: Group) -> Settings {
        Settings(self.0.iter().filter(|s| s.spec.group == group).cloned().collect())
    }

    /// Adds one at the end; `Err` with the earlier one if that has another value.
    pub(crate) fn add(&mut self, setting: Setting) -> Result<(), Box<Clash>> {
        match self.find(setting.spec.name) {
            None => self.0.push(setting),
            Some(earlier) if earlier.value == setting.value => {}
            Some(earlier) => return Err(Box::new(Clash { here: earlier.clone(), there: setting })),
        }
        Ok(())
    }

    /// Marks everything as this section's own, before a round of [`Settings::inherit`].
    pub(crate) fn own_all(&mut self) {
        self.0.iter_mut().for_each(|s| s.inherited = false);
    }

    /// Fills in what is absent from an outer section. Something that came from another outer section with another
    /// value is a clash. New ones go to the front: the order is that of the real tool, visible in its command lines.
    pub(crate) fn inherit(&mut self, from: &Settings) -> Vec<Clash> {
        let mut clashes = Vec::new();
        for setting in from.iter() {
            match self.find(setting.spec.name) {
                None => self.0.insert(0, Setting { inherited: true, ..setting.clone() }),
                Some(mine) if mine.inherited && mine.value != setting.value => {
                    clashes.push(Clash { here: mine.clone(), there: setting.clone() });
                }
                Some(_) => {}
            }
        }
        clashes
    }

    /// Replaces or appends.
    pub(crate) fn put(&mut self, setting: Setting) {
        match self.0.iter_mut().find(|s| s.spec == setting.spec) {
            Some(slot) => *slot = setting,
            None => self.0.push(setting),
        }
    }

    /// Do both mean the same, defaults included?
    #[must_use]
    pub fn same_meaning(&self, other: &Settings) -> bool {
        let covered = |a: &Settings, b: &Settings| {
            a.iter().all(|s| match b.find(s.spec.name) {
                Some(o) => o.value == s.value,
                None => s.is_default(),
            })
        };
        covered(self, other) && covered(other, self)
    }
}

impl Deref for Secret {
    type Target = str;

    fn deref(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("(hidden)")
    }
}

impl fmt::Debug for Setting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}={} at {}", self.spec.name, self.shown(), self.span)
    }
}

impl FromIterator<Setting> for Settings {
    fn from_iter<I: IntoIterator<Item = Setting>>(iter: I) -> Settings {
        Settings(iter.into_iter().collect())
    }
}

/// How a field of an option struct is made from a value.
trait Field: Sized {
    fn from_value(spec: &OptionSpec, value: &Value) -> Self;
}

fn numeric(value: &Value) -> u64 {
    match value {
        Value::Number(n) => *n,
        other => unreachable!("the option table gives a number field {other:?}"),
    }
}

fn unit(spec: &OptionSpec) -> Unit {
    match spec.kind {
        Kind::Number { unit, .. } => unit,
        _ => Unit::One,
    }
}

impl Field for u32 {
    fn from_value(_: &OptionSpec, value: &Value) -> u32 {
        u32::try_from(numeric(value)).unwrap_or(u32::MAX)
    }
}

impl Field for ByteLen {
    fn from_value(spec: &OptionSpec, value: &Value) -> ByteLen {
        ByteLen(numeric(value).saturating_mul(unit(spec).factor()))
    }
}

impl Field for Sector {
    fn from_value(_: &OptionSpec, value: &Value) -> Sector {
        Sector(numeric(value))
    }
}

impl Field for Duration {
    fn from_value(spec: &OptionSpec, value: &Value) -> Duration {
        let micros = match unit(spec) {
            Unit::Microsecond => 1,
            Unit::Decisecond => 100_000,
            Unit::Second | Unit::TimeSpan => 1_000_000,
            _ => 1000,
        };
        Duration(numeric(value).saturating_mul(micros).saturating_mul(1000))
    }
}

impl Field for bool {
    fn from_value(_: &OptionSpec, value: &Value) -> bool {
        *value == Value::Bool(true)
    }
}

/// Text that is absent when empty.
impl Field for Option<String> {
    fn from_value(_: &OptionSpec, value: &Value) -> Option<String> {
        match value {
            Value::Text(text) if !text.is_empty() => Some(text.clone()),
            _ => None,
        }
    }
}

/// A secret that is absent when empty.
impl Field for Option<Secret> {
    fn from_value(spec: &OptionSpec, value: &Value) -> Option<Secret> {
        Option::<String>::from_value(spec, value).map(Secret)
    }
}

impl<C: Choice> Field for C {
    fn from_value(spec: &OptionSpec, value: &Value) -> C {
        match value {
            Value::Word(word) => {
                C::from_word(word).unwrap_or_else(|| unreachable!("{} has the word {word}", spec.name))
            }
            other => unreachable!("the option table gives a word field {other:?}"),
        }
    }
}

/// A number of nodes that a partition needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Quorum {
    /// No requirement.
    Off,
    /// More than half.
    Majority,
    /// Every one.
    All,
    /// At least so many, 1 to 32.
    AtLeast(u8),
}

impl Field for Quorum {
    fn from_value(_: &OptionSpec, value: &Value) -> Quorum {
        match value {
            Value::Word("majority") => Quorum::Majority,
            Value::Word("all") => Quorum::All,
            Value::Number(n) => Quorum::AtLeast(u8::try_from(*n).unwrap_or(32)),
            _ => Quorum::Off,
        }
    }
}

macro_rules! option_structs {
    ($($(#[$doc:meta])* $name:ident from $group:ident {
        $($(#[$fdoc:meta])* $field:ident: $type:ty = $option:literal,)+
    })+) => { $(
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, Eq)]
        pub struct $name { $($(#[$fdoc])* pub $field: $type,)+ }

        impl $name {
            /// The options of the table that have a field here.
            pub const NAMES: &'static [&'static str] = &[$($option),+];
        }

        impl From<&Settings> for $name {
            fn from(settings: &Settings) -> $name {
                $name { $($field: field(settings, Group::$group, $option),)+ }
            }
        }

        impl Default for $name {
            fn default() -> $name {
                $name::from(&Settings::default())
            }
        }
    )+ };
}

fn field<F: Field>(settings: &Settings, group: Group, name: &str) -> F {
    let spec = option(&[group], name).unwrap_or_else(|| unreachable!("the option table lacks {name}"));
    match settings.iter().find(|s| s.spec == spec) {
        Some(setting) => F::from_value(spec, &setting.value),
        None => F::from_value(spec, &Value::default_of(spec)),
    }
}

option_structs! {
    /// Options of a connection (`docs/spec/config-and-cli.md` 2.2).
    NetOptions from Net {
        /// `None` means tcp.
        transport: Option<String> = "transport",
        /// When a write counts as done.
        protocol: Protocol = "protocol",
        /// A peer that does not answer for this long is dropped; 0.1 s to 60 s, default 6 s.
        timeout: Duration = "timeout",
        /// Most writes between two barriers, 1 to 20000, default 2048.
        max_epoch_size: u32 = "max-epoch-size",
        /// Pause between connection attempts; 1 s to 120 s, default 10 s.
        connect_int: Duration = "connect-int",
        /// Idle time before a keep-alive; 1 s to 120 s, default 10 s.
        ping_int: Duration = "ping-int",
        /// Socket send buffer in bytes; 0 = the kernel's choice.
        sndbuf_size: ByteLen = "sndbuf-size",
        /// Socket receive buffer in bytes; 0 = the kernel's choice.
        rcvbuf_size: ByteLen = "rcvbuf-size",
        /// A write slower than `timeout` × this gets the peer expelled; 0 = never; default 7.
        ko_count: u32 = "ko-count",
        /// May both nodes be primary? Needs protocol C.
        allow_two_primaries: bool = "allow-two-primaries",
        /// Digest for peer authentication; `None` = no authentication.
        cram_hmac_alg: Option<String> = "cram-hmac-alg",
        /// The secret of the peer authentication.
        shared_secret: Option<Secret> = "shared-secret",
        /// Split brain without a primary.
        after_sb_0pri: AfterSb0Pri = "after-sb-0pri",
        /// Split brain with one primary.
        after_sb_1pri: AfterSb1Pri = "after-sb-1pri",
        /// Split brain with two primaries.
        after_sb_2pri: AfterSb2Pri = "after-sb-2pri",
        /// Apply the split-brain policies also when more generations lie between.
        always_asbp: bool = "always-asbp",
        /// A resync direction that contradicts the roles.
        rr_conflict: RrConflict = "rr-conflict",
        /// Wait for a keep-alive answer; 0.1 s to 30 s, default 0.5 s.
        ping_timeout: Duration = "ping-timeout",
        /// Digest over every write sent; `None` = none.
        data_integrity_alg: Option<String> = "data-integrity-alg",
        /// Collect small packets.
        tcp_cork: bool = "tcp-cork",
        /// The connection cannot take more data.
        on_congestion: OnCongestion = "on-congestion",
        /// Unsent data that counts as congestion, in sectors; 0 = off.
        congestion_fill: Sector = "congestion-fill",
        /// Active extents that count as congestion, 67 to 65534.
        congestion_extents: u32 = "congestion-extents",
        /// Digest of the digest-based resync; `None` = not digest-based.
        csums_alg: Option<String> = "csums-alg",
        /// Digest-based resync only after a crash of a primary.
        csums_after_crash_only: bool = "csums-after-crash-only",
        /// Digest of online verify; `None` = verify is not possible.
        verify_alg: Option<String> = "verify-alg",
        /// Compress bitmaps.
        use_rle: bool = "use-rle",
        /// How long to check a newly accepted socket; 0 = as `ping_timeout`.
        socket_check_timeout: Duration = "socket-check-timeout",
        /// What a primary does when it loses the peer.
        fencing: Fencing = "fencing",
        /// Buffer pages of 4 KiB for writes and resync, 32 to 131072, default 2048.
        max_buffers: u32 = "max-buffers",
        /// Accepted from 8.4 files, no effect.
        unplug_watermark: u32 = "unplug-watermark",
        /// May a node without good data read from the peer?
        allow_remote_read: bool = "allow-remote-read",
        /// Use all paths at once.
        load_balance_paths: bool = "load-balance-paths",
        /// RDMA control receive buffer, bytes; no effect.
        rdma_ctrl_rcvbuf_size: ByteLen = "rdma-ctrl-rcvbuf-size",
        /// RDMA control send buffer, bytes; no effect.
        rdma_ctrl_sndbuf_size: ByteLen = "rdma-ctrl-sndbuf-size",
        /// Encrypt the connection.
        tls: bool = "tls",
        /// Name of the kernel keyring with the keys.
        tls_keyring: Option<String> = "tls-keyring",
        /// Name of the private key.
        tls_privkey: Option<String> = "tls-privkey",
        /// Name of the certificate.
        tls_certificate: Option<String> = "tls-certificate",
        /// The peer's name, only in running configurations.
        name: Option<String> = "_name",
    }

    /// Options of a backing disk (`docs/spec/config-and-cli.md` 2.3).
    DiskOptions from Disk {
        /// Limits the device to this size, in sectors; 0 = what fits.
        size: Sector = "size",
        /// Accepted from 8.4 files, no effect.
        max_bio_bvecs: u32 = "max-bio-bvecs",
        /// Reaction to an error of the backing disk.
        on_io_error: OnIoError = "on-io-error",
        /// Order epochs by barriers.
        disk_barrier: bool = "disk-barrier",
        /// Order epochs by flushes.
        disk_flushes: bool = "disk-flushes",
        /// Order epochs by waiting.
        disk_drain: bool = "disk-drain",
        /// Flush after metadata writes.
        md_flushes: bool = "md-flushes",
        /// `RES` or `RES/VOL` whose resync comes first.
        resync_after: Option<String> = "resync-after",
        /// Active 4 MiB extents of the activity log, 67 to 65534, default 1237.
        al_extents: u32 = "al-extents",
        /// Keep the activity log?
        al_updates: bool = "al-updates",
        /// Treat a discard as zeroing even if the disk does not promise it.
        discard_zeroes_if_aligned: bool = "discard-zeroes-if-aligned",
        /// Never use WRITE SAME.
        disable_write_same: bool = "disable-write-same",
        /// A slower disk request counts as failed; 0 = never.
        disk_timeout: Duration = "disk-timeout",
        /// Who serves reads.
        read_balancing: ReadBalancing = "read-balancing",
        /// Resync zero ranges of this size as discards, bytes; 0 = off.
        rs_discard_granularity: ByteLen = "rs-discard-granularity",
        /// Keep a bitmap on this disk at all?
        bitmap: bool = "bitmap",
    }

    /// Options of the device of a volume, written in `disk` (`docs/spec/config-and-cli.md` 2.3).
    DeviceOptions from Device {
        /// Largest request that the device accepts, bytes, default 1 MiB.
        max_bio_size: ByteLen = "max-bio-size",
        /// Logical block size shown, bytes, default 512.
        block_size: ByteLen = "block-size",
        /// Discard granularity shown, bytes; 4294967295 = automatic.
        discard_granularity: ByteLen = "discard-granularity",
        /// Has this node no disk on purpose? Derived from `disk none`.
        diskless: bool = "diskless",
    }

    /// Options of a volume towards one peer, written in `disk` (`docs/spec/config-and-cli.md` 2.4).
    PeerDeviceOptions from PeerDevice {
        /// Resync speed without controller, bytes per second, default 250 KiB/s.
        resync_rate: ByteLen = "resync-rate",
        /// Planning horizon of the controller; 0 = fixed rate; default 2 s.
        c_plan_ahead: Duration = "c-plan-ahead",
        /// Wanted round trip when `c_fill_target` is 0; default 1 s.
        c_delay_target: Duration = "c-delay-target",
        /// Wanted amount in flight, in sectors, default 100.
        c_fill_target: Sector = "c-fill-target",
        /// Ceiling of the controller, bytes per second, default 100 MiB/s.
        c_max_rate: ByteLen = "c-max-rate",
        /// Application I/O may slow the resync down to this, bytes per second; 0 = not at all; default 250 KiB/s.
        c_min_rate: ByteLen = "c-min-rate",
        /// Keep a bitmap for this peer? No = the peer is diskless on purpose.
        bitmap: bool = "bitmap",
        /// Resync although nothing is replicated.
        resync_without_replication: bool = "resync-without-replication",
        /// Does the peer count for quorum?
        peer_tiebreaker: bool = "peer-tiebreaker",
    }

    /// Options of a resource (`docs/spec/config-and-cli.md` 2.5).
    ResourceOptions from Resource {
        /// CPUs for the event loop, a hexadecimal mask.
        cpu_mask: Option<String> = "cpu-mask",
        /// No replica can be reached.
        on_no_data_accessible: OnNoData = "on-no-data-accessible",
        /// Opening for writing promotes.
        auto_promote: bool = "auto-promote",
        /// Data after which a primary says what is everywhere, in sectors.
        peer_ack_window: Sector = "peer-ack-window",
        /// Or this much idle time.
        peer_ack_delay: Duration = "peer-ack-delay",
        /// Limit of a cluster-wide state change; 5 s to 60 s.
        twopc_timeout: Duration = "twopc-timeout",
        /// Pause before it is tried again; 0.1 s to 5 s.
        twopc_retry_timeout: Duration = "twopc-retry-timeout",
        /// How long an open waits for a promotion; default 2 s.
        auto_promote_timeout: Duration = "auto-promote-timeout",
        /// Requests in flight, at least 4, default 8000.
        max_io_depth: u32 = "max-io-depth",
        /// Nodes that a partition needs for writing.
        quorum: Quorum = "quorum",
        /// A partition below the quorum.
        on_no_quorum: OnNoQuorum = "on-no-quorum",
        /// Up-to-date disks that a partition needs for writing.
        quorum_minimum_redundancy: Quorum = "quorum-minimum-redundancy",
        /// A frozen primary meets a newer one.
        on_suspended_primary_outdated: OnSuspendedPrimaryOutdated = "on-suspended-primary-outdated",
        /// Answer 8.4 tools.
        drbd8_api_compatibility: bool = "drbd8-api-compatibility",
    }

    /// Options of the waiting verbs (`docs/spec/config-and-cli.md` 2.6).
    StartupOptions from Startup {
        /// How long to wait for the connection; 0 = for ever.
        wfc_timeout: Duration = "wfc-timeout",
        /// The same when this node was alone before the reboot.
        degr_wfc_timeout: Duration = "degr-wfc-timeout",
        /// The same when the peer was outdated.
        outdated_wfc_timeout: Duration = "outdated-wfc-timeout",
        /// Go on waiting after split brain.
        wait_after_sb: bool = "wait-after-sb",
        /// Accepted, no effect.
        stacked_timeouts: bool = "stacked-timeouts",
        /// Accepted, no effect.
        become_primary_on: Option<String> = "become-primary-on",
    }

    /// The `global` section (`docs/spec/config-and-cli.md` 2.1).
    GlobalOptions from Global {
        /// Do not check that this host's addresses are local.
        disable_ip_verification: bool = "disable-ip-verification",
        /// A hint for a module parameter; no effect.
        minor_count: u32 = "minor-count",
        /// How often the waiting text is redrawn; 0 = never.
        dialog_refresh: Duration = "dialog-refresh",
        /// Accepted; urbd never counts installations.
        usage_count: UsageCount = "usage-count",
        /// By-resource links of implicit volumes carry the volume number.
        udev_always_use_vnr: bool = "udev-always-use-vnr",
        /// Limit for quick commands.
        cmd_timeout_short: Duration = "cmd-timeout-short",
        /// Limit for attach, detach, roles.
        cmd_timeout_medium: Duration = "cmd-timeout-medium",
        /// Limit for metadata commands; 0 = none.
        cmd_timeout_long: Duration = "cmd-timeout-long",
    }

    /// urbd's own section, `urbd { }` in `common` or a resource.
    UrbdOptions from Urbd {
        /// How the block device is presented.
        front_end: FrontEnd = "front-end",
        /// Use FUSE over io_uring where the kernel offers it: no system calls for requests, but the device does not
        /// outlive the process.
        fuse_io_uring: bool = "fuse-io-uring",
        /// Let the block device outlive the process: a keeper holds it until the next one takes over.
        hand_over: bool = "hand-over",
        /// Keep the names of devices that DRBD would give, but of minors that the kernel's DRBD has.
        drbd_names: bool = "drbd-names",
        /// What decides on the speed of a resync.
        resync_controller: ResyncController = "resync-controller",
        /// How long a wait for the next event stays awake at most, 0 to 1 ms; 0 = it sleeps at once. Default 100 us.
        busy_poll: Duration = "busy-poll",
        /// Newest protocol version that is offered to peers: 86 to 101 is DRBD 8.4's dialect, 118 to 124 DRBD 9's.
        /// Default 101 for two hosts without node ids and sections of connections, else 124.
        protocol_version_max: u32 = "protocol-version-max",
        /// Members of this group may look at the resource, as root may; default: nobody but root.
        status_group: Option<String> = "status-group",
        /// The program that is called at events, as `PROGRAM HANDLER RES`; `disabled`: none. Default: our own drbdadm.
        usermode_helper: Option<String> = "usermode-helper",
    }

    /// What the adaptive controller shall achieve: `resync-goal { }` in the `urbd` section.
    ResyncGoal from ResyncGoal {
        /// A resync shall be finished so long after its start; 0 = no goal.
        finish_within: Duration = "finish-within",
        /// Percent that applications' requests may take longer during a resync, 1 to 1000, default 20.
        latency_budget: u32 = "latency-budget",
    }
}

/// The commands to run on events (`docs/spec/config-and-cli.md` 6).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Handlers(Vec<(&'static str, String)>);

impl Handlers {
    /// The shell command for an event such as `split-brain`; `None` if nothing is to be run. `fence-peer` also finds
    /// the old name `outdate-peer`.
    #[must_use]
    pub fn command(&self, event: &str) -> Option<&str> {
        let find = |name: &str| self.0.iter().find(|(n, _)| *n == name).map(|(_, c)| c.as_str());
        find(event)
            .or_else(|| if event == "fence-peer" { find("outdate-peer") } else { None })
            .filter(|c| !c.is_empty())
    }

    /// All of them, in order.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, &str)> {
        self.0.iter().map(|(name, command)| (*name, command.as_str()))
    }
}

impl From<&Settings> for Handlers {
    fn from(settings: &Settings) -> Handlers {
        Handlers(settings.of(Group::Handlers).iter().map(|s| (s.spec.name, s.text.clone())).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::options;

    /// Every option of the table has a field, and the defaults can be built (so every field's type fits its option).
    #[test]
    fn table_and_structs_agree() {
        let groups: &[(Group, &[&str])] = &[
            (Group::Net, NetOptions::NAMES),
            (Group::Disk, DiskOptions::NAMES),
            (Group::Device, DeviceOptions::NAMES),
            (Group::PeerDevice, PeerDeviceOptions::NAMES),
            (Group::Resource, ResourceOptions::NAMES),
            (Group::Startup, StartupOptions::NAMES),
            (Group::Global, GlobalOptions::NAMES),
            (Group::Urbd, UrbdOptions::NAMES),
            (Group::ResyncGoal, ResyncGoal::NAMES),
        ];
        for (group, names) in groups {
            let table: Vec<&str> = options().filter(|o| o.group == *group).map(|o| o.name).collect();
            assert_eq!(&table, names);
        }
        let net = NetOptions::default();
        assert_eq!((net.protocol, net.timeout, net.transport), (Protocol::C, Duration::from_secs(6), None));
        assert_eq!(DiskOptions::default().al_extents, 1237);
        assert_eq!(DeviceOptions::default().block_size, ByteLen(512));
        assert_eq!(PeerDeviceOptions::default().c_max_rate, ByteLen(100 << 20));
        assert_eq!(ResourceOptions::default().quorum, Quorum::Off);
        assert_eq!(GlobalOptions::default().usage_count, UsageCount::Ask);
        assert_eq!(UrbdOptions::default().front_end, FrontEnd::Auto);
        assert_eq!(ResyncGoal::default().latency_budget, 20);
        assert!(!StartupOptions::default().wait_after_sb);
    }
}
