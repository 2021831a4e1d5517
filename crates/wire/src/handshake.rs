//! The packets by which two nodes get to know each other: features, options, sizes, generations.

use crate::command::Command;
use crate::dialect::{Dialect, Features, Refusal, Version};
use crate::fields::{Fields, Put};
use crate::inline::AlgName;
use crate::packet::Unsendable;
use crate::violation::Violation;
use std::fmt;
use units::{Generation, NodeId, Sector};

/// P_CONNECTION_FEATURES: what a node offers (`docs/spec/wire-protocol.md` 7.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectionFeatures {
    /// Lowest protocol version spoken.
    pub protocol_min: u32,
    /// Highest protocol version spoken; 0 (very old peers) means the same as `protocol_min`.
    pub protocol_max: u32,
    /// Features offered.
    pub features: Features,
    /// The sender's node id; 0 from 8.4.
    pub sender_node: u32,
    /// The node id the sender takes its peer for; 0 from 8.4.
    pub receiver_node: u32,
}

impl ConnectionFeatures {
    /// Everything of 8.4's dialect, without node ids.
    pub const OFFER: ConnectionFeatures = ConnectionFeatures {
        protocol_min: Version::MIN.number(),
        protocol_max: Version::MAX_84.number(),
        features: Features::OF_84,
        sender_node: 0,
        receiver_node: 0,
    };

    /// Everything this crate speaks, from node `own` to node `peer`.
    #[must_use]
    pub const fn of_9(own: NodeId, peer: NodeId) -> ConnectionFeatures {
        ConnectionFeatures {
            protocol_min: Version::MIN.number(),
            protocol_max: Version::MAX.number(),
            features: Features::ALL,
            sender_node: own.index() as u32,
            receiver_node: peer.index() as u32,
        }
    }

    /// What a node that offered `self` speaks with one that offered `peer`: the lower of both maxima, the common
    /// features. Errors if the ranges do not meet, or meet at a version that this crate does not speak.
    pub fn agree(&self, peer: &ConnectionFeatures) -> Result<Dialect, Refusal> {
        let top = |f: &ConnectionFeatures| {
            if f.protocol_max == 0 { f.protocol_min } else { f.protocol_max }
        };
        let refusal = Refusal { peer_min: peer.protocol_min, peer_max: top(peer) };
        if top(self) < peer.protocol_min || self.protocol_min > top(peer) {
            return Err(refusal);
        }
        let version = Version::new(top(self).min(top(peer))).ok_or(refusal)?;
        let features = self.features.and(peer.features);
        if features.and(Features::never_with(version.number())) != Features::NONE {
            return Err(refusal);
        }
        Ok(Dialect { version, features })
    }

    pub(crate) fn parse(f: &mut Fields<'_>) -> Result<ConnectionFeatures, Violation> {
        let (protocol_min, features, protocol_max) = (f.u32()?, Features(f.u32()?), f.u32()?);
        Ok(ConnectionFeatures { protocol_min, protocol_max, features, sender_node: f.u32()?, receiver_node: f.u32()? })
    }

    pub(crate) fn emit(&self, out: &mut Vec<u8>) {
        out.put32(self.protocol_min);
        out.put32(self.features.0);
        out.put32(self.protocol_max);
        out.put32(self.sender_node);
        out.put32(self.receiver_node);
        out.put_padded(&[], 52);
    }
}

/// When a write counts as replicated (`docs/spec/wire-protocol.md` 11.1).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ReplicationProtocol {
    /// When it is handed to the network.
    A = 1,
    /// When the peer received it.
    B = 2,
    /// When the peer wrote it.
    #[default]
    C = 3,
}

macro_rules! policies {
    ($($(#[$doc:meta])* $name:ident = $number:literal, $config:literal;)*) => {
        /// A split-brain policy, as numbered in P_PROTOCOL (`docs/spec/wire-protocol.md` 5.11).
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
        pub enum AfterSplitBrain {
            $($(#[$doc])* $name = $number,)*
        }

        impl AfterSplitBrain {
            /// Every policy.
            pub const ALL: &'static [AfterSplitBrain] = &[$(AfterSplitBrain::$name),*];

            /// The word in the configuration.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self {
                    $(AfterSplitBrain::$name => $config,)*
                }
            }
        }
    };
}

policies! {
    /// Do not resolve; drop the connection.
    #[default]
    Disconnect = 0, "disconnect";
    /// Keep the data of the node that was Primary before the split.
    DiscardYoungerPrimary = 1, "discard-younger-primary";
    /// Keep the data of the node that became Primary later.
    DiscardOlderPrimary = 2, "discard-older-primary";
    /// Keep the data of the only node that wrote.
    DiscardZeroChanges = 3, "discard-zero-changes";
    /// Keep the data of the node that wrote more.
    DiscardLeastChanges = 4, "discard-least-changes";
    /// Discard the sender's data.
    DiscardLocal = 5, "discard-local";
    /// Discard the receiver's data.
    DiscardRemote = 6, "discard-remote";
    /// Follow after-sb-0pri if that discards the Secondary's data.
    Consensus = 7, "consensus";
    /// Discard the Secondary's data.
    DiscardSecondary = 8, "discard-secondary";
    /// Follow after-sb-0pri; call the pri-lost-after-sb handler if that discards the Primary's data.
    CallPriLost = 9, "call-pri-lost-after-sb";
    /// Follow after-sb-0pri even if that discards the Primary's data.
    ViolentlyAs0pri = 10, "violently-as0p";
}

impl AfterSplitBrain {
    /// The same policy in the other node's words: local and remote change places.
    #[must_use]
    pub const fn from_peers_view(self) -> AfterSplitBrain {
        match self {
            AfterSplitBrain::DiscardLocal => AfterSplitBrain::DiscardRemote,
            AfterSplitBrain::DiscardRemote => AfterSplitBrain::DiscardLocal,
            other => other,
        }
    }
}

/// P_PROTOCOL and P_PROTOCOL_UPDATE: the options that both nodes must share (`docs/spec/wire-protocol.md` 5.11).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Protocol {
    /// A, B or C.
    pub protocol: ReplicationProtocol,
    /// Split brain with no Primary.
    pub after_sb_0pri: AfterSplitBrain,
    /// Split brain with one Primary.
    pub after_sb_1pri: AfterSplitBrain,
    /// Split brain with two Primaries.
    pub after_sb_2pri: AfterSplitBrain,
    /// The sender was told to discard its data.
    pub discard_my_data: bool,
    /// The sender only wants to know what would happen (from version 92 on).
    pub dry_run: bool,
    /// Two Primaries are allowed.
    pub two_primaries: bool,
    /// Digest before each payload; none before version 87.
    pub integrity_alg: AlgName,
}

impl Protocol {
    pub(crate) fn parse(f: &mut Fields<'_>, dialect: &Dialect) -> Result<Protocol, Violation> {
        let command = f.command();
        let unknown = |field, value: u32| Violation::UnknownValue { command, field, value: value.into() };
        let protocol = match f.u32()? {
            1 => ReplicationProtocol::A,
            2 => ReplicationProtocol::B,
            3 => ReplicationProtocol::C,
            n => return Err(unknown("protocol", n)),
        };
        let policy = |field, n: u32| {
            let known = usize::try_from(n).ok().and_then(|n| AfterSplitBrain::ALL.get(n).copied());
            known.ok_or(unknown(field, n))
        };
        let after_sb_0pri = policy("after-sb-0pri", f.u32()?)?;
        let after_sb_1pri = policy("after-sb-1pri", f.u32()?)?;
        let after_sb_2pri = policy("after-sb-2pri", f.u32()?)?;
        let flags = f.u32()?;
        let two_primaries = match f.u32()? {
            0 => false,
            1 => true,
            n => return Err(unknown("two-primaries", n)),
        };
        let named = dialect.version.number() >= 87;
        let integrity_alg = if named { AlgName::parse(f.rest(), command)? } else { AlgName::NONE };
        let (discard_my_data, dry_run) = (flags & 1 != 0, flags & 2 != 0);
        Ok(Protocol {
            protocol,
            after_sb_0pri,
            after_sb_1pri,
            after_sb_2pri,
            discard_my_data,
            dry_run,
            two_primaries,
            integrity_alg,
        })
    }

    pub(crate) fn emit(&self, dialect: &Dialect, out: &mut Vec<u8>) -> Result<(), Unsendable> {
        out.put32(self.protocol as u32);
        out.put32(self.after_sb_0pri as u32);
        out.put32(self.after_sb_1pri as u32);
        out.put32(self.after_sb_2pri as u32);
        out.put32(u32::from(self.discard_my_data) | u32::from(self.dry_run) << 1);
        out.put32(self.two_primaries.into());
        if dialect.version.number() >= 87 {
            out.extend_from_slice(self.integrity_alg.as_str().as_bytes());
            out.put8(0);
        } else if !self.integrity_alg.is_none() {
            return Err(Unsendable::NoIntegrityAlg);
        }
        Ok(())
    }
}

/// The resync controller's settings in P_SYNC_PARAM89 (`docs/spec/wire-protocol.md` 5.12).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ResyncController {
    /// c-plan-ahead, in 0.1 s; 0 switches the controller off.
    pub plan_ahead: u32,
    /// c-delay-target, in 0.1 s.
    pub delay_target: u32,
    /// c-fill-target, in sectors.
    pub fill_target: u32,
    /// c-max-rate, in KiB/s.
    pub max_rate: u32,
}

impl Default for ResyncController {
    /// What a node without a disk sends.
    fn default() -> ResyncController {
        ResyncController { plan_ahead: 20, delay_target: 10, fill_target: 100, max_rate: 102_400 }
    }
}

/// P_SYNC_PARAM (to version 88) and P_SYNC_PARAM89: resync and verify options (`docs/spec/wire-protocol.md` 5.12).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SyncParam {
    /// resync-rate, in KiB/s.
    pub resync_rate: u32,
    /// verify-alg; none before version 88.
    pub verify_alg: AlgName,
    /// csums-alg; none before version 89.
    pub csums_alg: AlgName,
    /// The controller's settings; the defaults before version 95.
    pub controller: ResyncController,
}

impl SyncParam {
    pub(crate) const fn command(dialect: &Dialect) -> Command {
        if dialect.version.number() >= 89 { Command::SyncParam89 } else { Command::SyncParam }
    }

    pub(crate) fn parse(f: &mut Fields<'_>, dialect: &Dialect) -> Result<SyncParam, Violation> {
        let (command, version) = (f.command(), dialect.version.number());
        let mut p = SyncParam {
            resync_rate: f.u32()?,
            verify_alg: AlgName::NONE,
            csums_alg: AlgName::NONE,
            controller: ResyncController::default(),
        };
        if version == 88 {
            p.verify_alg = AlgName::parse(f.rest(), command)?;
        }
        if version >= 89 {
            p.verify_alg = AlgName::parse(f.bytes(64)?, command)?;
            p.csums_alg = AlgName::parse(f.bytes(64)?, command)?;
        }
        if version >= 95 {
            let (plan_ahead, delay_target, fill_target, max_rate) = (f.u32()?, f.u32()?, f.u32()?, f.u32()?);
            p.controller = ResyncController { plan_ahead, delay_target, fill_target, max_rate };
        }
        Ok(p)
    }

    /// Leaves out what the version has no place for.
    pub(crate) fn emit(&self, dialect: &Dialect, out: &mut Vec<u8>) {
        let version = dialect.version.number();
        out.put32(self.resync_rate);
        if version == 88 {
            out.extend_from_slice(self.verify_alg.as_str().as_bytes());
            out.put8(0);
        }
        if version >= 89 {
            out.put_padded(self.verify_alg.as_str().as_bytes(), 64);
            out.put_padded(self.csums_alg.as_str().as_bytes(), 64);
        }
        if version >= 95 {
            let c = &self.controller;
            [c.plan_ahead, c.delay_target, c.fill_target, c.max_rate].into_iter().for_each(|n| out.put32(n));
        }
    }
}

/// How a change of size is meant (`docs/spec/wire-protocol.md` 5.13, dds_flags).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct ResizeFlags {
    /// Assume that an absent peer has the space.
    pub forced: bool,
    /// Do not resync what was added.
    pub assume_clean: bool,
}

impl ResizeFlags {
    pub(crate) const fn from_bits(flags: u16) -> ResizeFlags {
        ResizeFlags { forced: flags & 1 != 0, assume_clean: flags & 2 != 0 }
    }

    pub(crate) const fn to_bits(self) -> u16 {
        self.forced as u16 | (self.assume_clean as u16) << 1
    }
}

/// The queue limits part of P_SIZES. Sizes in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueLimits {
    /// Physical block size.
    pub physical_block_size: u32,
    /// Logical block size.
    pub logical_block_size: u32,
    /// Alignment offset.
    pub alignment_offset: u32,
    /// Smallest efficient I/O.
    pub io_min: u32,
    /// Best I/O size; 0 for none.
    pub io_opt: u32,
    /// Does the disk take discards?
    pub discard_enabled: bool,
    /// Does a discarded block read as zeroes?
    pub discard_zeroes_data: bool,
    /// Does the disk take WRITE SAME?
    pub write_same_capable: bool,
    /// A bit of the sender's bitmap stands for 4 KiB times two to the power of this, 0 to 8. Travels only with
    /// `Features::BM_BLOCK_SHIFT`, and is 0 without it.
    pub bitmap_block_shift: u8,
}

impl Default for QueueLimits {
    /// A plain disk with 512-byte sectors.
    fn default() -> QueueLimits {
        QueueLimits {
            physical_block_size: 512,
            logical_block_size: 512,
            alignment_offset: 0,
            io_min: 512,
            io_opt: 0,
            discard_enabled: false,
            discard_zeroes_data: false,
            write_same_capable: false,
            bitmap_block_shift: 0,
        }
    }
}

/// P_SIZES (`docs/spec/wire-protocol.md` 5.13).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sizes {
    /// What the sender's disk could offer at most; 0 without a disk.
    pub disk_size: Sector,
    /// The configured size; 0 for none.
    pub user_size: Sector,
    /// The device's present size; 0 if not known, or to make the peer answer.
    pub current_size: Sector,
    /// Largest write the sender takes, in bytes.
    pub max_bio_size: u32,
    /// Always 0.
    pub queue_order_type: u16,
    /// How a change of size is meant.
    pub flags: ResizeFlags,
    /// Present exactly if `Features::WRITE_SAME` is agreed.
    pub limits: Option<QueueLimits>,
}

impl Sizes {
    pub(crate) fn parse(f: &mut Fields<'_>, dialect: &Dialect) -> Result<Sizes, Violation> {
        let (disk_size, user_size, current_size) = (size(f)?, size(f)?, size(f)?);
        let (max_bio_size, queue_order_type, flags) = (f.u32()?, f.u16()?, f.u16()?);
        let flags = ResizeFlags::from_bits(flags);
        let limits = if dialect.has(Features::WRITE_SAME) { Some(QueueLimits::parse(f, dialect)?) } else { None };
        Ok(Sizes { disk_size, user_size, current_size, max_bio_size, queue_order_type, flags, limits })
    }

    pub(crate) fn emit(&self, dialect: &Dialect, out: &mut Vec<u8>) -> Result<(), Unsendable> {
        out.put64(self.disk_size.0);
        out.put64(self.user_size.0);
        out.put64(self.current_size.0);
        out.put32(self.max_bio_size);
        out.put16(self.queue_order_type);
        out.put16(self.flags.to_bits());
        match &self.limits {
            Some(limits) if dialect.has(Features::WRITE_SAME) => limits.emit(dialect, out),
            None if dialect.has(Features::WRITE_SAME) => return Err(Unsendable::NoQueueLimits),
            _ => {}
        }
        Ok(())
    }
}

impl QueueLimits {
    fn parse(f: &mut Fields<'_>, dialect: &Dialect) -> Result<QueueLimits, Violation> {
        let mut limits = QueueLimits {
            physical_block_size: f.u32()?,
            logical_block_size: f.u32()?,
            alignment_offset: f.u32()?,
            io_min: f.u32()?,
            io_opt: f.u32()?,
            discard_enabled: f.u8()? != 0,
            discard_zeroes_data: f.u8()? != 0,
            write_same_capable: f.u8()? != 0,
            bitmap_block_shift: 0,
        };
        let shift = f.u8()?;
        if dialect.has(Features::BM_BLOCK_SHIFT) {
            if shift > 8 {
                let (command, value) = (f.command(), shift.into());
                return Err(Violation::UnknownValue { command, field: "bitmap block size", value });
            }
            limits.bitmap_block_shift = shift;
        }
        Ok(limits)
    }

    fn emit(&self, dialect: &Dialect, out: &mut Vec<u8>) {
        let numbers =
            [self.physical_block_size, self.logical_block_size, self.alignment_offset, self.io_min, self.io_opt];
        numbers.into_iter().for_each(|n| out.put32(n));
        let abilities = [self.discard_enabled, self.discard_zeroes_data, self.write_same_capable];
        abilities.into_iter().for_each(|b| out.put8(b.into()));
        out.put8(if dialect.has(Features::BM_BLOCK_SHIFT) { self.bitmap_block_shift } else { 0 });
    }
}

pub(crate) fn size(f: &mut Fields<'_>) -> Result<Sector, Violation> {
    let sector = f.u64()?;
    if sector > 1 << 54 {
        return Err(Violation::SectorBeyondAnyDevice { command: f.command(), sector });
    }
    Ok(Sector(sector))
}

/// `uuid_flags` of P_UUIDS and P_UUIDS110 (`docs/spec/wire-protocol.md` 5.14); P_UUIDS has the first four.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct UuidFlags(pub u64);

bitflags::bitflags! {
    impl UuidFlags: u64 {
        /// No flag.
        const NONE = 0;
        /// The sender was told to discard its data.
        const DISCARD_MY_DATA = 0x1;
        /// The sender was Primary when it went down.
        const CRASHED_PRIMARY = 0x2;
        /// The sender's data is inconsistent.
        const INCONSISTENT = 0x4;
        /// Take the data as equal and clear the bitmap (from version 90 on).
        const SKIP_INITIAL_SYNC = 0x8;
        /// The sender begins a generation.
        const NEW_DATAGEN = 0x10;
        /// The sender's data does not depend on another node.
        const STABLE = 0x20;
        /// The sender has just become stable: the receiver looks again whether a resync is due.
        const GOT_STABLE = 0x40;
        /// The receiver is to look whether a resync is due.
        const RESYNC = 0x80;
        /// The connection had been up before.
        const RECONNECT = 0x100;
        /// The sender speaks for a Primary without a disk.
        const DISKLESS_PRIMARY = 0x200;
        /// The sender was Primary and lost quorum.
        const PRIMARY_LOST_QUORUM = 0x400;
        /// The sender is the target of a resync from a third node; its current generation is that node's.
        const SYNC_TARGET = 0x800;
        /// One bitmap generation is that of a slot without a node (from version 116 on).
        const HAS_UNALLOCATED = 0x1000;
    }
}

impl UuidFlags {
    /// `HAS_UNALLOCATED`, with the node id under which the generation of a slot without a node is listed.
    #[must_use]
    pub const fn of_unallocated(node: NodeId) -> UuidFlags {
        UuidFlags(UuidFlags::HAS_UNALLOCATED.0 | (node.index() as u64) << 56)
    }

    /// The node id under which the generation of a slot without a node is listed; `None` without such a slot.
    #[must_use]
    pub fn unallocated(self) -> Option<NodeId> {
        let named = NodeId::new((self.0 >> 56) as u8);
        named.filter(|_| self.contains(UuidFlags::HAS_UNALLOCATED))
    }
}

impl fmt::Debug for UuidFlags {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}

/// P_UUIDS: the generations of the sender's data (`docs/spec/wire-protocol.md` 5.14).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Uuids {
    /// The current generation.
    pub current: Generation,
    /// The generation that the bitmap is about.
    pub bitmap: Generation,
    /// Earlier generations, newest first.
    pub history: [Generation; 2],
    /// Bits out of sync.
    pub dirty_bits: u64,
    /// Flags.
    pub flags: UuidFlags,
}

impl Uuids {
    pub(crate) fn parse(f: &mut Fields<'_>) -> Result<Uuids, Violation> {
        let (current, bitmap) = (Generation(f.u64()?), Generation(f.u64()?));
        let history = [Generation(f.u64()?), Generation(f.u64()?)];
        Ok(Uuids { current, bitmap, history, dirty_bits: f.u64()?, flags: UuidFlags(f.u64()?) })
    }

    pub(crate) fn emit(&self, out: &mut Vec<u8>) {
        [self.current, self.bitmap, self.history[0], self.history[1]].into_iter().for_each(|g| out.put64(g.0));
        out.put64(self.dirty_bits);
        out.put64(self.flags.0);
    }
}
