//! Comparison of two nodes' data generations, 9's rules (`docs/spec/connection-and-state.md` 5.8), and what the states
//! of the disks add to it (5.8.1, steps 2 to 4).
//!
//! It looks at what the nodes have told each other, on both sides at the packets: both come to the same conclusion.

use super::{DiskState, Reason};
use std::cmp::Ordering;
use std::fmt;
use units::{Generation, NodeId};
use wire::{UuidFlags, Uuids110};

/// The value of a slot that its owner does not know, or does not list.
pub const UNKNOWN: Generation = Generation(u64::MAX);

/// One node, as it has told of itself.
#[derive(Clone, Copy, Debug)]
pub struct Side<'a> {
    /// Which node.
    pub node: NodeId,
    /// Its generations.
    pub uuids: &'a Uuids110,
    /// Its disk; while that is Negotiating what the metadata say of it.
    pub disk: DiskState,
    /// Its position in the writes of a Primary that both have lost, if it has named one.
    pub lost_primary: Option<u64>,
}

/// What the comparison looks at.
#[derive(Clone, Copy, Debug)]
pub struct Input<'a> {
    /// This node.
    pub me: Side<'a>,
    /// The other one.
    pub peer: Side<'a>,
    /// The agreed protocol, 118 to 124.
    pub protocol: u32,
    /// Writes are completed before the peer has them on its disk (replication protocols A and B).
    pub early: bool,
    /// This node has the RESOLVE-CONFLICTS role.
    pub resolve_conflicts: bool,
    /// When what is marked in one generation is copied.
    pub gate: Gate,
}

/// Who reconciles two copies of one generation, of which something is marked (5.8.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gate {
    /// Who knows what a peer of either kind does. Else it follows the peer.
    Cautious,
    /// As 9.3.3: if the peer has named a lost Primary. `heard`: how much this node has of that one's writes.
    Released {
        /// In sectors.
        heard: u64,
    },
    /// As later releases: also if this node has named one, and one side has marked something.
    Later {
        /// In sectors.
        heard: u64,
    },
}

/// What is to become of the two copies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Strategy {
    /// They are the same.
    NoSync,
    /// This node is the source, if what decides is which of two crashes was the worse one.
    SourceIfBothFailed,
    /// This node is the source of what its bitmap says.
    SourceUseBitmap,
    /// This node is the source of everything.
    SourceSetBitmap,
    /// This node is the source of what its bitmap towards another node says.
    SourceCopyOtherBitmap(NodeId),
    /// As `SourceIfBothFailed`, the other way round.
    TargetIfBothFailed,
    /// This node is the target of what the bitmaps say.
    TargetUseBitmap,
    /// This node is the target of everything.
    TargetSetBitmap,
    /// This node is the target of what the peer's bitmap says.
    TargetClearBitmap,
    /// Both have moved on from what both bitmaps are about.
    SplitBrainAutoRecover,
    /// Both have moved on.
    SplitBrainDisconnect,
    /// They have nothing in common.
    Unrelated,
    /// Only a newer protocol can say.
    RequiresProtocol124,
    /// Try the handshake again.
    Retry,
}

/// Which way data would go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// From this node.
    Source,
    /// To this node.
    Target,
}

impl Strategy {
    /// Which way it has data go, if any.
    #[must_use]
    pub const fn direction(self) -> Option<Direction> {
        use Strategy as S;
        match self {
            S::SourceIfBothFailed | S::SourceUseBitmap | S::SourceSetBitmap | S::SourceCopyOtherBitmap(_) => {
                Some(Direction::Source)
            }
            S::TargetIfBothFailed | S::TargetUseBitmap | S::TargetSetBitmap | S::TargetClearBitmap => {
                Some(Direction::Target)
            }
            _ => None,
        }
    }

    /// The same the other way round, if there is such a one.
    #[must_use]
    pub const fn reverse(self) -> Option<Strategy> {
        use Strategy as S;
        Some(match self {
            S::SourceIfBothFailed => S::TargetIfBothFailed,
            S::TargetIfBothFailed => S::SourceIfBothFailed,
            S::SourceUseBitmap => S::TargetUseBitmap,
            S::TargetUseBitmap => S::SourceUseBitmap,
            S::SourceSetBitmap => S::TargetSetBitmap,
            S::TargetSetBitmap => S::SourceSetBitmap,
            _ => return None,
        })
    }

    const fn is_if_both_failed(self) -> bool {
        matches!(self, Strategy::SourceIfBothFailed | Strategy::TargetIfBothFailed)
    }
}

impl fmt::Display for Strategy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        use Strategy as S;
        f.write_str(match self {
            S::NoSync => "no-sync",
            S::SourceIfBothFailed => "source-if-both-failed",
            S::SourceUseBitmap => "source-use-bitmap",
            S::SourceSetBitmap => "source-set-bitmap",
            S::SourceCopyOtherBitmap(node) => return write!(f, "source-copy-other-bitmap({})", node.index()),
            S::TargetIfBothFailed => "target-if-both-failed",
            S::TargetUseBitmap => "target-use-bitmap",
            S::TargetSetBitmap => "target-set-bitmap",
            S::TargetClearBitmap => "target-clear-bitmap",
            S::SplitBrainAutoRecover => "split-brain-auto-recover",
            S::SplitBrainDisconnect => "split-brain-disconnect",
            S::Unrelated => "unrelated-data",
            S::RequiresProtocol124 => "requires-proto-124",
            S::Retry => "retry-connect",
        })
    }
}

/// A conclusion and the rule that led to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Comparison {
    /// The rule; its name is that of DRBD's log.
    pub rule: Reason,
    /// The conclusion.
    pub strategy: Strategy,
}

const fn by(rule: Reason, strategy: Strategy) -> Comparison {
    Comparison { rule, strategy }
}

impl Side<'_> {
    fn has(&self, flag: UuidFlags) -> bool {
        self.uuids.flags.contains(flag)
    }

    /// What its slot for a node says.
    fn slot(&self, node: NodeId) -> Generation {
        self.uuids.bitmap(node).unwrap_or(UNKNOWN)
    }

    /// The node whose slot says that it is about `generation`; not one of `but`'s.
    fn slot_of(&self, generation: Generation, but: NodeId) -> Option<NodeId> {
        self.uuids.tracked.into_iter().find(|node| *node != but && same(self.slot(*node), generation))
    }

    /// Do its slots say that another node's data is older than its own?
    fn is_newer_than(&self, other: &Side<'_>) -> bool {
        let theirs = other.uuids.current;
        same(self.slot(other.node), theirs) || self.slot_of(theirs, other.node).is_some()
    }

    fn remembers(&self, generation: Generation) -> bool {
        self.uuids.history.iter().any(|past| same(*past, generation))
    }

    fn is_fresh(&self) -> bool {
        self.uuids.current.is_fresh()
    }
}

/// The same generation, and one at all.
fn same(a: Generation, b: Generation) -> bool {
    !a.is_none() && a != UNKNOWN && a.same(b)
}

/// The comparison: the first rule that matches.
#[must_use]
pub fn compare(input: &Input<'_>) -> Comparison {
    let Input { me, peer, .. } = input;
    match (me.is_fresh(), peer.is_fresh()) {
        (true, true) => by(Reason::JustCreatedBoth, Strategy::NoSync),
        (true, false) => by(Reason::JustCreatedSelf, Strategy::TargetSetBitmap),
        (false, true) => by(Reason::JustCreatedPeer, Strategy::SourceSetBitmap),
        (false, false) if me.uuids.current.same(peer.uuids.current) => same_generation(input),
        (false, false) => different_generations(me, peer),
    }
}

fn same_generation(input: &Input<'_>) -> Comparison {
    use Strategy as S;
    let Input { me, peer, .. } = input;
    if let Some(missed) = missed_finish(input) {
        return missed;
    }
    let both = |flag| (me.has(flag), peer.has(flag));
    let reconnect = both(UuidFlags::RECONNECT);
    let crashed = both(UuidFlags::CRASHED_PRIMARY);
    let conflicts = input.resolve_conflicts;
    if reconnect == (true, true) && input.protocol >= 120 {
        return by(Reason::Reconnected, S::NoSync);
    }
    if input.protocol >= 121 && input.early && crashed.0 != crashed.1 {
        return by(Reason::CrashedPrimary, if crashed.0 { S::SourceUseBitmap } else { S::TargetUseBitmap });
    }
    match both(UuidFlags::PRIMARY_LOST_QUORUM) {
        (false, true) => return by(Reason::LostQuorum, S::TargetIfBothFailed),
        (true, false) => return by(Reason::LostQuorum, S::SourceIfBothFailed),
        (true, true) if conflicts => return by(Reason::LostQuorum, S::SourceIfBothFailed),
        (true, true) => return by(Reason::LostQuorum, S::TargetIfBothFailed),
        (false, false) => {}
    }
    if reconnect == (true, true) {
        return by(Reason::Reconnected, S::NoSync);
    }
    // The name is whichever the kernel assigned last.
    let rule = if input.protocol >= 120 { Reason::LostQuorum } else { Reason::Reconnected };
    match (reconnect, crashed) {
        ((true, _), (_, true)) => by(rule, S::SourceIfBothFailed),
        ((_, true), (true, _)) => by(rule, S::TargetIfBothFailed),
        ((true, _) | (_, true), _) => by(rule, S::NoSync),
        (_, (true, true)) if conflicts => by(Reason::BothOff, S::TargetIfBothFailed),
        (_, (true, _)) => by(Reason::BothOff, S::SourceIfBothFailed),
        (_, (false, true)) => by(Reason::BothOff, S::TargetIfBothFailed),
        (_, (false, false)) => by(Reason::BothOff, S::NoSync),
    }
}

/// A resync between the two has ended, and one of them does not know (7.5).
fn missed_finish(input: &Input<'_>) -> Option<Comparison> {
    let Input { me, peer, .. } = input;
    if me.has(UuidFlags::SYNC_TARGET) || peer.has(UuidFlags::SYNC_TARGET) || !has_bits(input) && input.protocol >= 124 {
        return None;
    }
    let (mine, theirs) = (me.slot(peer.node), peer.slot(me.node));
    let open = |slot: Generation| !slot.is_none() && !slot.same(peer.uuids.current);
    if mine.is_none() && open(theirs) {
        return Some(by(Reason::TargetPeerMissedFinish, Strategy::TargetUseBitmap));
    }
    (theirs.is_none() && open(mine)).then_some(by(Reason::SourceMissedFinish, Strategy::SourceUseBitmap))
}

fn has_bits(input: &Input<'_>) -> bool {
    input.me.uuids.dirty_bits > 0 || input.peer.uuids.dirty_bits > 0
}

fn different_generations(me: &Side<'_>, peer: &Side<'_>) -> Comparison {
    use Strategy as S;
    let (mine, theirs) = (me.uuids.current, peer.uuids.current);
    if me.is_newer_than(peer) && peer.is_newer_than(me) {
        // By the rules that follow each would be the target of the other one.
        return by(Reason::CircularGenerations, S::SplitBrainDisconnect);
    }
    if same(peer.slot(me.node), mine) {
        return by(Reason::BitmapPeer, S::TargetUseBitmap);
    }
    if peer.slot_of(mine, me.node).is_some() {
        return by(Reason::BitmapPeerOther, S::TargetClearBitmap);
    }
    if same(me.slot(peer.node), theirs) {
        return by(Reason::BitmapSelf, S::SourceUseBitmap);
    }
    if let Some(node) = me.slot_of(theirs, me.node) {
        return by(Reason::BitmapSelfOther, S::SourceCopyOtherBitmap(node));
    }
    match (peer.remembers(mine), me.remembers(theirs)) {
        (true, false) => return by(Reason::HistoryPeer, S::TargetSetBitmap),
        (false, true) => return by(Reason::HistorySelf, S::SourceSetBitmap),
        _ => {}
    }
    if same(me.slot(peer.node), peer.slot(me.node)) {
        return by(Reason::BitmapBoth, S::SplitBrainAutoRecover);
    }
    let common = me.uuids.history.iter().any(|past| peer.remembers(*past));
    by(Reason::HistoryBoth, if common { S::SplitBrainDisconnect } else { S::Unrelated })
}

/// What the disks add, at a connect (5.8.1, steps 2 to 4).
#[must_use]
pub fn with_disks(input: &Input<'_>) -> Comparison {
    let found = compare(input);
    let unneeded = input.protocol < 124 && !has_bits(input);
    match (found.rule, found.strategy) {
        (Reason::SourceMissedFinish, Strategy::SourceUseBitmap) if unneeded => {
            return by(found.rule, Strategy::Retry);
        }
        (Reason::TargetPeerMissedFinish, Strategy::TargetUseBitmap) if unneeded => {
            return by(found.rule, Strategy::RequiresProtocol124);
        }
        _ => {}
    }
    let decided = by_disks(input, found);
    if decided.strategy == Strategy::NoSync { reconciled(input).unwrap_or(decided) } else { decided }
}

/// Step 3: the better disk is the source.
fn by_disks(input: &Input<'_>, found: Comparison) -> Comparison {
    let (mine, theirs) = (input.me.disk, input.peer.disk);
    let bad = |disk| disk == DiskState::Inconsistent;
    let one_is_bad = bad(mine) != bad(theirs);
    let differ = mine != theirs && mine.min(theirs) >= DiskState::Inconsistent && theirs != DiskState::DUnknown;
    let decides = if input.protocol >= 119 {
        let crash = matches!(found.rule, Reason::Reconnected | Reason::LostQuorum | Reason::BothOff);
        differ && (crash && found.strategy.is_if_both_failed() || found.strategy == Strategy::NoSync && one_is_bad)
    } else {
        (found.rule == Reason::BothOff || found.strategy == Strategy::NoSync) && one_is_bad && differ
    };
    if !decides {
        return found;
    }
    let strategy = if mine > theirs { as_source(&input.me, &input.peer) } else { as_target(&input.me, &input.peer) };
    by(Reason::DiskStateDecides, strategy)
}

fn as_source(me: &Side<'_>, peer: &Side<'_>) -> Strategy {
    if !peer.has(UuidFlags::SYNC_TARGET) {
        return Strategy::SourceUseBitmap;
    }
    let about = peer.slot(me.node);
    let current = same(about, peer.uuids.current) && same(about, me.uuids.current);
    if current || same(me.slot(peer.node), about) {
        return Strategy::SourceUseBitmap;
    }
    me.slot_of(about, me.node).map_or(Strategy::SourceSetBitmap, Strategy::SourceCopyOtherBitmap)
}

fn as_target(me: &Side<'_>, peer: &Side<'_>) -> Strategy {
    match as_source(peer, me) {
        Strategy::SourceUseBitmap => Strategy::TargetUseBitmap,
        Strategy::SourceCopyOtherBitmap(_) => Strategy::TargetClearBitmap,
        _ => Strategy::TargetSetBitmap,
    }
}

/// Step 4: both were left by a Primary whose last writes one of them may lack. Where this node cannot know what the
/// peer will decide it does not, and follows (5.8.2).
fn reconciled(input: &Input<'_>) -> Option<Comparison> {
    use Strategy as S;
    let Input { me, peer, .. } = input;
    let flawed = |side: &Side<'_>| side.has(UuidFlags::CRASHED_PRIMARY) || side.has(UuidFlags::PRIMARY_LOST_QUORUM);
    let good = me.disk == DiskState::UpToDate && peer.disk == DiskState::UpToDate;
    if !good || !has_bits(input) || flawed(me) || flawed(peer) {
        return None;
    }
    let bits = (me.uuids.dirty_bits > 0, peer.uuids.dirty_bits > 0);
    let (named, one_sided) = ((me.lost_primary, peer.lost_primary), bits.0 != bits.1);
    let positions = match (input.gate, named) {
        (Gate::Cautious, (Some(mine), Some(theirs))) => (mine, theirs),
        (Gate::Cautious, (Some(_), None)) if one_sided => (0, 0),
        (Gate::Released { heard } | Gate::Later { heard }, (_, Some(theirs))) => (heard, theirs),
        (Gate::Later { .. }, (Some(_), None)) if one_sided => (0, 0),
        _ => return None,
    };
    Some(match (bits, positions.0.cmp(&positions.1)) {
        ((true, false), _) => by(Reason::ReconcileBitmap, S::SourceUseBitmap),
        ((false, _), _) => by(Reason::ReconcileBitmap, S::TargetUseBitmap),
        (_, Ordering::Greater) => by(Reason::ReconcileDagtag, S::SourceUseBitmap),
        (_, Ordering::Less) => by(Reason::ReconcileDagtag, S::TargetUseBitmap),
        (_, Ordering::Equal) if me.node < peer.node => by(Reason::ReconcileBitmap, S::SourceUseBitmap),
        (_, Ordering::Equal) => by(Reason::ReconcileBitmap, S::TargetUseBitmap),
    })
}
