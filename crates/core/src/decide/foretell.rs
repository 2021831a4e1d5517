//! What two nodes would decide if they were started now and connected, by their metadata alone: for tools that look at
//! disks (`urbd inspect`). Nothing that acts calls it.
//!
//! Purpose: give the rules that a node decides by, [`attach84`], [`sizes`], [`uuid84`] with [`handshake84`], and
//! [`uuid9`] with [`direction9`], what a process that has just attached its disk would give them. Both nodes are
//! Secondary, and both processes are new: none knows more than its disk.
//!
//! Must never: have a rule of its own. What it cannot know (options of the configuration, other nodes that are
//! connected by then) is taken to be as by default, and [`Meeting`] says where that matters.

use super::attach84::{self, ActivityLog, Bitmap};
use super::split_brain::{Policies, RrConflict, Side};
use super::uuid9::{Direction, Gate, Strategy};
use super::{DiskState, Reason, Role, direction9, handshake84, sizes, uuid9, uuid84};
use crate::config::Fencing;
use meta::{PeerFlags, PeerRecord, Superblock, Version};
use units::{Generation, NodeId, NodeMask, Sector};
use wire::{UuidFlags, Uuids110, WireMask};

/// A disk, as it was read.
#[derive(Clone, Copy, Debug)]
pub struct Copy<'a> {
    /// Its superblock.
    pub superblock: &'a Superblock,
    /// The node that it belongs to. With metadata of format v08 any will do that is not the other one's.
    pub node: NodeId,
    /// Bits that are set in the bitmap, by slot; a slot that is not listed has none.
    pub marked: &'a [u64],
    /// The same when what is hot in the activity log is set, too; `None` if the log does not tell what is.
    pub with_log: Option<&'a [u64]>,
    /// The most that the disk and its metadata can hold; `None` if that is not known.
    pub capacity: Option<Sector>,
}

/// What a disk is worth when it is attached.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Attached {
    decided: Result<attach84::Attach, Reason>,
    /// Bits that are set by then, by slot.
    pub marked: Vec<u64>,
}

impl Attached {
    /// Its state.
    #[must_use]
    pub fn disk(&self) -> DiskState {
        self.decided.map_or(DiskState::Failed, |attach| attach.disk)
    }

    /// Why.
    #[must_use]
    pub fn reason(&self) -> Reason {
        self.decided.map_or_else(|refusal| refusal, |attach| attach.reason)
    }

    /// Does it count as that of a Primary that has crashed?
    #[must_use]
    pub fn is_of_crashed_primary(&self) -> bool {
        self.decided.is_ok_and(|attach| attach.crashed_primary)
    }
}

/// In which dialect two nodes compare their generations.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Dialect {
    /// That of DRBD 8.4: one of them has metadata of format v08.
    V84,
    /// That of DRBD 9.
    V9,
}

/// How much is copied.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Extent {
    /// What the bitmaps of the two say.
    Marked,
    /// What the source has marked for this third node.
    MarkedFor(NodeId),
    /// All of it.
    Everything,
}

/// What becomes of two copies.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// They count as equal.
    Equal,
    /// The first one is copied to the second one.
    FromFirst(Extent),
    /// The second one is copied to the first one.
    FromSecond(Extent),
    /// What the bitmaps say is copied to the one that has accepted the connection, or from it.
    ByChance,
    /// They stay apart: both have moved on from a generation that both had.
    SplitBrain,
    /// They stay apart: they have no generation in common.
    Unrelated,
    /// They stay apart for another reason, which [`Meeting::reason`] is.
    Refused,
}

/// A connection of two nodes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Meeting {
    /// How they compare.
    pub dialect: Dialect,
    /// The rule of the comparison.
    pub rule: Reason,
    /// What it is called in a kernel's log: the number of 8.4's verdict, or the strategy of 9.
    pub verdict: String,
    /// What comes of it, as long as no option says otherwise.
    pub outcome: Outcome,
    /// Why: the rule, or what was looked at after it.
    pub reason: Reason,
}

/// What the metadata of a disk say that it is worth.
#[must_use]
pub fn attach(copy: &Copy<'_>, several: bool) -> Attached {
    let sb = copy.superblock;
    let peers = flags_of_peers(sb);
    let decided = attach84::decide(&attach84::Input {
        flags: sb.flags,
        peers,
        al_clean: sb.is_clean(),
        current: sb.current,
        exposed: Generation::NONE,
        outrun: false,
        role: Role::Secondary,
        peer_primary: false,
        connected: false,
        peer_disk: DiskState::DUnknown,
        fencing: if peers.contains(PeerFlags::FENCING) { Fencing::ResourceOnly } else { Fencing::DontCare },
    });
    let marked = decided.map_or_else(|_| copy.marked.to_vec(), |attach| marks(copy, &attach, several));
    Attached { decided, marked }
}

/// A process takes all configured peers together: one that was connected counts, that one is Outdated only if all are.
fn flags_of_peers(sb: &Superblock) -> PeerFlags {
    if sb.version() == Version::V08 {
        return sb.v08_peer().flags;
    }
    let mut all = sb.peers.iter().filter(|peer| peer.slot.is_some()).map(|peer| peer.flags);
    let first = all.next().unwrap_or_default();
    all.fold(first, |flags, other| {
        let either = PeerFlags(flags.0 | other.0);
        either.with(PeerFlags::OUTDATED, flags.contains(PeerFlags::OUTDATED) && other.contains(PeerFlags::OUTDATED))
    })
}

/// What is marked when the activity log has been dealt with.
fn marks(copy: &Copy<'_>, attach: &attach84::Attach, several: bool) -> Vec<u64> {
    let sb = copy.superblock;
    let slots = sb.geometry.slots() as usize;
    let bits = sb.geometry.bits(sb.effective_size);
    let marked = |slot: usize| copy.marked.get(slot).copied().unwrap_or_default();
    let logged = |slot: usize| copy.with_log.map_or(bits, |log| log.get(slot).copied().unwrap_or_default());
    // A Secondary's peer knows what it has sent; nobody else does.
    let was_here = |p: &PeerRecord| p.flags.contains(PeerFlags::CONNECTED) && !several;
    let sent_by = |slot: usize| sb.peers.iter().any(|p| p.slot.map(usize::from) == Some(slot) && was_here(p));
    let of_slot = |slot: usize| match (attach.bitmap, attach.activity_log) {
        (Bitmap::SetAll, _) => bits,
        (Bitmap::Load, ActivityLog::Apply) => logged(slot),
        (Bitmap::Load, ActivityLog::Discard) if slots > 1 && !sent_by(slot) => logged(slot),
        (Bitmap::Load, _) => marked(slot),
    };
    (0..slots).map(of_slot).collect()
}

/// What two nodes would decide. `several`: the resource has more than two.
#[must_use]
pub fn meet(first: &Copy<'_>, second: &Copy<'_>, several: bool) -> Meeting {
    let nine = [first, second].iter().all(|copy| copy.superblock.version() == Version::V09);
    let decide = if nine { meet9 } else { meet84 };
    // Who accepts the connection has this role.
    let [one, other] = [true, false].map(|conflicts| {
        let own = decide([first, second], several, conflicts);
        let theirs = decide([second, first], several, !conflicts);
        // Who would be the source looks at its own disk, and the other one does not: one refusal is enough.
        let refused = theirs.outcome == Outcome::Refused && own.outcome != Outcome::Refused;
        if refused { Meeting { outcome: theirs.outcome, reason: theirs.reason, ..own } } else { own }
    });
    let meeting = if one.outcome == other.outcome { one } else { Meeting { outcome: Outcome::ByChance, ..one } };
    let ends = ends([first, second], several);
    match refused_by_size(&ends[0], &ends[1]).or_else(|| refused_by_size(&ends[1], &ends[0])) {
        Some(reason) => Meeting { outcome: Outcome::Refused, reason, ..meeting },
        None => meeting,
    }
}

fn meet84(copies: [&Copy<'_>; 2], several: bool, resolve_conflicts: bool) -> Meeting {
    let ends = ends(copies, several);
    let node = |end: &End| uuid84::Node {
        uuids: uuid84::UuidSet {
            current: end.sb.current,
            bitmap: end.record().bitmap_uuid,
            history: [end.sb.history[0], end.sb.history[1]],
        },
        crashed_primary: end.attached.is_of_crashed_primary(),
        primary: false,
    };
    let [me, peer] = [node(&ends[0]), node(&ends[1])];
    let input = uuid84::Input { me, peer, protocol: 101, peer_wsame: true, resolve_conflicts };
    let mut comparison = uuid84::compare(&input);
    if several {
        comparison = comparison.beside_third_nodes([&ends[0], &ends[1]].map(|end| end.marked() > 0));
    }
    let decided = handshake84::decide(&handshake84::Input {
        comparison,
        occasion: handshake84::Occasion::Connect,
        me: ends[0].side(comparison.own.bitmap.primary_bit()),
        peer: ends[1].side(comparison.peer.bitmap.primary_bit()),
        policies: Policies::default(),
        always_asbp: false,
        rr_conflict: RrConflict::default(),
        dry_run: false,
        resolve_conflicts,
        demotable: true,
        writes_elsewhere: false,
        peer_is_source: false,
        survivor_insists: false,
    });
    let extent = |full| if full { Extent::Everything } else { Extent::Marked };
    let outcome = match (decided.decision, comparison.verdict) {
        (handshake84::Decision::NoSync, _) => Outcome::Equal,
        (handshake84::Decision::Source { full }, _) => Outcome::FromFirst(extent(full)),
        (handshake84::Decision::Target { full }, _) => Outcome::FromSecond(extent(full)),
        (_, uuid84::Verdict::SplitBrain(_)) => Outcome::SplitBrain,
        (_, uuid84::Verdict::Unrelated) => Outcome::Unrelated,
        _ => Outcome::Refused,
    };
    let number = comparison.verdict.number().map_or_else(|| "none".to_owned(), |number| number.to_string());
    Meeting {
        dialect: Dialect::V84,
        rule: comparison.reason,
        verdict: format!("{number} by rule {}", comparison.rule),
        outcome,
        reason: if outcome == Outcome::SplitBrain { comparison.reason } else { decided.reason },
    }
}

fn meet9(copies: [&Copy<'_>; 2], several: bool, resolve_conflicts: bool) -> Meeting {
    let ends = ends(copies, several);
    let told = [ends[0].told(), ends[1].told()];
    let side = |n: usize| uuid9::Side {
        node: ends[n].own,
        uuids: &told[n],
        disk: ends[n].attached.disk(),
        lost_primary: None,
    };
    let protocol = wire::Version::MAX.number();
    let found = uuid9::with_disks(&uuid9::Input {
        me: side(0),
        peer: side(1),
        protocol,
        early: false,
        resolve_conflicts,
        gate: Gate::Cautious,
    });
    let was_primary = [0, 1].map(|n| told[n].bitmap(ends[n].other).unwrap_or_default().primary_bit());
    let (strategy, reason) = direction9::wanted(&direction9::Input {
        found: found.strategy,
        rule: found.rule,
        protocol,
        me: ends[0].side(was_primary[0]),
        peer: ends[1].side(was_primary[1]),
        policies: Policies::default(),
        always_asbp: false,
        resolve_conflicts,
        quorate: None,
    });
    let outcome = match (strategy, strategy.direction()) {
        (_, Some(Direction::Source)) => Outcome::FromFirst(extent9(strategy, &told[0], &told[1], &ends[0])),
        (_, Some(Direction::Target)) => Outcome::FromSecond(extent9(strategy, &told[1], &told[0], &ends[1])),
        (Strategy::NoSync, _) => Outcome::Equal,
        (Strategy::SplitBrainAutoRecover | Strategy::SplitBrainDisconnect, _) => Outcome::SplitBrain,
        (Strategy::Unrelated, _) => Outcome::Unrelated,
        _ => Outcome::Refused,
    };
    let reason = if outcome == Outcome::Unrelated { Reason::UnrelatedData } else { reason };
    Meeting { dialect: Dialect::V9, rule: found.rule, verdict: found.strategy.to_string(), outcome, reason }
}

/// Sizes are looked at before generations.
fn refused_by_size(own: &End, other: &End) -> Option<Reason> {
    let nine = [own, other].iter().all(|end| end.sb.version() == Version::V09);
    let known = if nine { sizes::Known::NotAll } else { sizes::Known::One };
    let limits = |end: &End| sizes::Limits {
        own: end.capacity.unwrap_or(meta::layout::MAX_CAPACITY),
        known,
        last_agreed: end.sb.effective_size,
        ..sizes::Limits::default()
    };
    let size = |end: &End| sizes::usable(&limits(end));
    let verdict = sizes::on_sizes(&sizes::SizesReceived {
        peer: sizes::PeerSizes { device: other.capacity?, user: Sector(0), current: size(other) },
        limits: limits(own),
        current: size(own),
        disk: own.attached.disk(),
        peer_disk: DiskState::DUnknown,
        connected: false,
        role: Role::Secondary,
        no_resync: false,
    });
    match verdict {
        sizes::SizesVerdict::Refuse(reason) => Some(reason),
        _ => None,
    }
}

/// What `source` copies. By which third node's slot a target knows of its source alone.
fn extent9(strategy: Strategy, source: &Uuids110, target: &Uuids110, end: &End) -> Extent {
    match strategy {
        Strategy::SourceSetBitmap | Strategy::TargetSetBitmap => Extent::Everything,
        Strategy::SourceCopyOtherBitmap(node) => Extent::MarkedFor(node),
        Strategy::TargetClearBitmap => {
            let is = |node: &NodeId| *node != end.other && source.bitmap(*node).is_some_and(|g| g.same(target.current));
            source.tracked.into_iter().find(is).map_or(Extent::Marked, Extent::MarkedFor)
        }
        _ => Extent::Marked,
    }
}

/// One end of a connection, its disk attached.
struct End {
    sb: Superblock,
    own: NodeId,
    other: NodeId,
    attached: Attached,
    capacity: Option<Sector>,
}

fn ends([first, second]: [&Copy<'_>; 2], several: bool) -> [End; 2] {
    let end = |own: &Copy<'_>, other: NodeId| {
        let mut sb = own.superblock.clone();
        sb.take_note();
        if sb.version() == Version::V09 && sb.peer(other).slot.is_none() {
            sb.peer_mut(other).slot = sb.vacant_slot();
        }
        End { sb, own: own.node, other, attached: attach(own, several), capacity: own.capacity }
    };
    [end(first, second.node), end(second, first.node)]
}

impl End {
    fn record(&self) -> &PeerRecord {
        self.sb.peer(self.other)
    }

    /// Bits that are set for the other one.
    fn marked(&self) -> u64 {
        let slot = self.record().slot.map(usize::from);
        slot.and_then(|slot| self.attached.marked.get(slot)).copied().unwrap_or_default()
    }

    fn side(&self, was_primary: bool) -> Side {
        Side {
            role: Role::Secondary,
            disk: self.attached.disk(),
            discard_my_data: false,
            was_primary,
            changes: self.marked(),
        }
    }

    /// P_UUIDS110, as a process that has just started says it.
    fn told(&self) -> Uuids110 {
        let sb = &self.sb;
        let mut flags = UuidFlags::STABLE;
        for (is, flag) in [
            (self.attached.is_of_crashed_primary(), UuidFlags::CRASHED_PRIMARY),
            (sb.flags.contains(meta::DeviceFlags::PRIMARY_LOST_QUORUM), UuidFlags::PRIMARY_LOST_QUORUM),
            (self.attached.disk() == DiskState::Inconsistent, UuidFlags::INCONSISTENT),
        ] {
            flags = if is { flags | flag } else { flags };
        }
        let known = |node: &NodeId| {
            let record = &sb.peers[node.index()];
            record.slot.is_some() || record.flags.contains(PeerFlags::NODE_EXISTS)
        };
        let mut tracked: NodeMask = NodeId::all().filter(known).collect();
        let free = |node: &NodeId| *node != self.own && *node != self.other && !tracked.contains(*node);
        let vacant = NodeId::all().filter(free).find(|node| !sb.peers[node.index()].bitmap_uuid.is_none());
        if let Some(node) = vacant.filter(|_| sb.vacant_slot().is_some()) {
            tracked.insert(node);
            flags |= UuidFlags::of_unallocated(node);
        }
        Uuids110 {
            current: sb.current,
            dirty_bits: self.marked(),
            flags,
            nodes: WireMask::NONE,
            tracked,
            bitmaps: tracked.into_iter().map(|node| sb.peers[node.index()].bitmap_uuid).collect(),
            history: sb.history.to_vec(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use meta::{AlShape, DeviceFlags, Geometry, Layout, MetaDisk};
    use units::{ByteLen, Rng};

    /// A superblock with a few generations, so that they meet often.
    fn drawn(random: &mut Rng, version: Version, node: u8) -> Superblock {
        let slots = if version == Version::V08 { 1 } else { 1 + random.below(3) as u32 };
        let geometry = Geometry::new(slots, 4096, AlShape::DEFAULT).expect("a geometry");
        let layout = Layout::new(MetaDisk::Internal, geometry, ByteLen(1 << 20)).expect("there is room");
        let mut sb = Superblock::fresh(version, &layout);
        let draw = |random: &mut Rng| Generation([0, 4, 0x10, 0x21, 0x30, 0x41][random.below(6) as usize]);
        sb.effective_size = Sector(1000);
        sb.current = draw(random);
        sb.flags = DeviceFlags(random.next_u64() as u32 & 0x3D3);
        (0..3).for_each(|n| sb.history[n] = draw(random));
        for peer in 0..3 {
            sb.peers[peer].bitmap_uuid = draw(random);
            sb.peers[peer].flags = PeerFlags(random.below(32) as u32);
        }
        if version == Version::V09 {
            sb.node_id = NodeId::new(node);
            let other = usize::from(1 - node);
            sb.peers[other].slot = random.chance(9, 10).then_some(0);
        }
        sb
    }

    fn mirrored(outcome: Outcome) -> Outcome {
        match outcome {
            Outcome::FromFirst(extent) => Outcome::FromSecond(extent),
            Outcome::FromSecond(extent) => Outcome::FromFirst(extent),
            other => other,
        }
    }

    /// Whoever is asked first: one is the source exactly if the other one is the target.
    #[test]
    fn both_ends_are_told_the_same() {
        let mut random = Rng::new(7);
        let mut seen = std::collections::BTreeMap::new();
        for _ in 0..40_000 {
            let version = |random: &mut Rng| if random.chance(1, 3) { Version::V08 } else { Version::V09 };
            let [a, b] = [0, 1].map(|node| {
                let version = version(&mut random);
                drawn(&mut random, version, node)
            });
            let bits: Vec<u64> = (0..4).map(|_| random.below(2) * random.below(100)).collect();
            let copy = |sb, node, at: usize| Copy {
                superblock: sb,
                node: NodeId::new(node).expect("a node id"),
                marked: &bits[at..=at],
                with_log: Some(&bits[at + 1..=at + 1]),
                capacity: [Some(Sector(1000)), None, Some(Sector(900))][at],
            };
            let several = random.chance(1, 2);
            let (first, second) = (copy(&a, 0, 0), copy(&b, 1, 2));
            let (one, other) = (meet(&first, &second, several), meet(&second, &first, several));
            assert_eq!(one.dialect, other.dialect);
            assert_eq!(one.outcome, mirrored(other.outcome), "{one:?} {other:?}\n{a:?}\n{b:?}");
            *seen.entry(format!("{:?} {:?}", one.dialect, one.outcome)).or_insert(0) += 1;
        }
        assert!(seen.len() > 12, "little was drawn: {seen:?}");
    }

    #[test]
    fn a_log_that_tells_nothing_marks_everything_of_a_primary() {
        let mut random = Rng::new(1);
        let mut sb = drawn(&mut random, Version::V08, 0);
        sb.flags = DeviceFlags::CONSISTENT | DeviceFlags::WAS_UP_TO_DATE | DeviceFlags::PRIMARY_IND;
        sb.peers[0].flags = PeerFlags::default();
        let node = NodeId::all().next().expect("there are some");
        let marked = |sb: &Superblock, with_log| {
            attach(&Copy { superblock: sb, node, marked: &[3], with_log, capacity: None }, false)
        };
        assert_eq!(marked(&sb, None).marked, [125]);
        assert_eq!(marked(&sb, Some(&[7])).marked, [7]);
        assert!(marked(&sb, None).is_of_crashed_primary());
        sb.flags.remove(DeviceFlags::PRIMARY_IND);
        assert_eq!(marked(&sb, None).marked, [3], "of a Secondary the peer knows");
        assert_eq!(marked(&sb, None).disk(), DiskState::UpToDate);
    }
}
