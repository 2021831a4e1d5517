//! Comparison of two nodes' data generations, 8.4 rules (`docs/spec/connection-and-state.md` 5.7).

use super::Reason;
use crate::rows::hit;
use std::fmt;
use units::Generation;

/// Added to a bitmap UUID to derive the sync UUID (protocol 96 to 109; spec 1.9).
pub const NEW_BM_OFFSET: u64 = 0x0001_0000_0000_0000;

/// The generations that one node knows of one volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct UuidSet {
    /// The generation of the data.
    pub current: Generation,
    /// The generation since which the bitmap records differences; 0 = no bitmap in use.
    pub bitmap: Generation,
    /// Older generations, most recent first.
    pub history: [Generation; 2],
}

impl UuidSet {
    /// Closes the bitmap: its generation goes to the history (spec 7.11, "set bm(0)").
    pub fn retire_bitmap(&mut self) {
        if !self.bitmap.is_none() {
            self.push_history(self.bitmap);
            self.bitmap = Generation::NONE;
        }
    }

    /// Puts `generation` in front of the history; the oldest one falls out.
    pub fn push_history(&mut self, generation: Generation) {
        self.history = [generation, self.history[0]];
    }

    /// Starts a generation; `fresh` carries the role bit. The old one becomes the bitmap's, with its role bit, by which
    /// the after-sb policies tell who was Primary (spec 7.11, "new current", 6.3),
    /// or, if the bitmap belongs to a generation already (an interrupted resync), goes to the history behind the one
    /// that rule 71 looks at: a target that finished unnoticed is then recognised as older.
    pub fn start_generation(&mut self, fresh: Generation) {
        let old = self.current;
        if self.bitmap.is_none() {
            self.bitmap = old;
        } else if !old.is_fresh() && !old.same(self.bitmap) {
            self.history[1] = old;
        }
        self.current = fresh;
    }

    /// All bits are set for a peer whose generation is in the history: they count from that one. It stays the one that
    /// rule 71 looks at, however often the peer's disk goes before it learns of the resync, while this node begins more
    /// generations than the history has room for.
    pub fn count_from(&mut self, older: Generation) {
        let known = self.history.iter().copied().find(|h| h.same(older));
        self.retire_bitmap();
        self.bitmap = known.unwrap_or(older);
    }

    /// The source's set when a resync starts (spec 7.4): returns the sync UUID to send in P_SYNC_UUID.
    /// `random` is used if there is no generation to derive it from.
    pub fn start_sync_source(&mut self, random: Generation) -> Generation {
        let sync = if self.bitmap.is_fresh() { random } else { Generation(self.bitmap.0.wrapping_add(NEW_BM_OFFSET)) };
        self.retire_bitmap();
        self.bitmap = sync;
        sync
    }

    /// The target's set when P_SYNC_UUID arrives (spec 7.4): the history stays untouched.
    pub fn start_sync_target(&mut self, sync: Generation) {
        self.current = sync;
        self.bitmap = Generation::NONE;
    }

    /// The target's set when the resync ended; `source` is the set received in the handshake (spec 7.4).
    pub fn finish_sync_target(&mut self, source: &UuidSet) {
        let sync = self.current;
        self.history = source.history;
        self.bitmap = source.bitmap;
        self.retire_bitmap();
        self.push_history(sync);
        self.current = source.current;
    }

    fn undo_sync_start(&mut self) {
        self.bitmap = self.history[0];
        self.history[0] = self.history[1];
    }

    fn lost_sync_start(&self, other: &UuidSet, protocol: u32) -> bool {
        let moved_on = if protocol < 96 {
            other.history[0].same(self.history[1])
        } else {
            Generation(self.history[0].0.wrapping_add(NEW_BM_OFFSET)).same(self.bitmap)
        };
        other.current.same(self.history[0]) && moved_on
    }

    fn in_history(&self, generation: Generation) -> bool {
        self.history.iter().any(|h| h.same(generation))
    }
}

/// One node's part of the comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Node {
    /// Its generations, as sent in the UUIDs packet.
    pub uuids: UuidSet,
    /// It was Primary when it crashed and that has not been resolved since.
    pub crashed_primary: bool,
    /// It is Primary now.
    pub primary: bool,
}

/// What the comparison looks at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Input {
    /// This node.
    pub me: Node,
    /// The peer.
    pub peer: Node,
    /// The agreed protocol, 86 to 101.
    pub protocol: u32,
    /// The peer announced the feature WSAME (4), by which crashed-primary handling with a Primary is known to be sound.
    pub peer_wsame: bool,
    /// This node has the RESOLVE-CONFLICTS role (spec 4.6).
    pub resolve_conflicts: bool,
}

/// What is known of the generation that both sides of a split brain come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ancestor {
    /// The bitmaps of both start there: they tell the difference (+100).
    InBitmaps,
    /// It is in a history: everything is to be copied (−100).
    InHistory,
    /// The "common" history is nothing but empty slots (−100).
    Unknown,
}

/// What the two sets of generations say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Same data.
    NoSync,
    /// This node is newer. `full`: the bitmap does not tell the difference, set all of it.
    Source {
        /// Set the whole bitmap first.
        full: bool,
    },
    /// The peer is newer.
    Target {
        /// Set the whole bitmap first.
        full: bool,
    },
    /// Both moved on from a common ancestor.
    SplitBrain(Ancestor),
    /// No relation (−1000).
    Unrelated,
    /// Not decidable below this protocol.
    RequiresProtocol(u32),
    /// Not decidable with a peer that lacks feature WSAME.
    RequiresWsame,
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Verdict::NoSync => f.write_str("both have the same data"),
            Verdict::Source { full: false } => f.write_str("this node's data is newer"),
            Verdict::Source { full: true } => {
                f.write_str("this node's data is newer, and all of it counts as different")
            }
            Verdict::Target { full: false } => f.write_str("the peer's data is newer"),
            Verdict::Target { full: true } => {
                f.write_str("the peer's data is newer, and all of it counts as different")
            }
            Verdict::SplitBrain(_) => f.write_str("both have changed the data while they were apart"),
            Verdict::Unrelated => f.write_str("the data is not related"),
            Verdict::RequiresProtocol(version) => write!(f, "this needs protocol version {version}"),
            Verdict::RequiresWsame => f.write_str("this needs a newer peer"),
        }
    }
}

impl Verdict {
    /// The number by which DRBD logs print it: 0, ±1, ±2, ±100, −1000; `None` for the "requires" refusals.
    #[must_use]
    pub const fn number(self) -> Option<i32> {
        Some(match self {
            Verdict::NoSync => 0,
            Verdict::Source { full } => 1 + full as i32,
            Verdict::Target { full } => -1 - full as i32,
            Verdict::SplitBrain(Ancestor::InBitmaps) => 100,
            Verdict::SplitBrain(_) => -100,
            Verdict::Unrelated => -1000,
            Verdict::RequiresProtocol(_) | Verdict::RequiresWsame => return None,
        })
    }

    /// What the peer must conclude if this node concludes `self`.
    #[must_use]
    pub const fn mirrored(self) -> Verdict {
        match self {
            Verdict::Source { full } => Verdict::Target { full },
            Verdict::Target { full } => Verdict::Source { full },
            other => other,
        }
    }
}

/// The outcome of [`compare`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Comparison {
    /// The verdict.
    pub verdict: Verdict,
    /// The number of the rule that matched; 0 if none did (unrelated) or the two views contradict each other.
    pub rule: u8,
    /// Why.
    pub reason: Reason,
    /// This node's generations after the correction that rules 34 and 71 demand; to be persisted if changed.
    pub own: UuidSet,
    /// The copy of the peer's generations after the correction that rules 35 and 51 demand.
    pub peer: UuidSet,
}

impl Comparison {
    /// Where a resource has more than two nodes, both may have been connected to a third one in the generation that
    /// they share, one after the other: the bitmaps of both are in use, and DRBD 8.4 has no rule for that (40: the
    /// same data). What each has told of its bitmap decides. `changed`: has this node changed something that the peer
    /// may lack, and has the peer? Both nodes come to mirrored verdicts.
    #[must_use]
    pub fn beside_third_nodes(self, changed: [bool; 2]) -> Comparison {
        let both_count = !self.own.bitmap.is_none() && !self.peer.bitmap.is_none();
        if !matches!(self.rule, 40 | 41) || !both_count {
            return self;
        }
        let (verdict, reason) = match changed {
            [false, false] => return self,
            [true, false] => (SOURCE, Reason::BitmapSelf),
            [false, true] => (TARGET, Reason::BitmapPeer),
            [true, true] => (Verdict::SplitBrain(Ancestor::InBitmaps), Reason::BitmapBoth),
        };
        Comparison { verdict, reason, ..self }
    }
}

/// Compares the generations of two nodes (spec 5.7). First matching rule wins; bit 0 of every UUID is ignored.
///
/// Differs from DRBD in three places (`docs/compatibility.md`): who was promoted by force in the middle of a resync is
/// no stranger to its source, two empty current UUIDs need no sync, and generations
/// whose order is circular (each node would call itself the older one) are an ambiguous split brain.
#[must_use]
pub fn compare(input: &Input) -> Comparison {
    let mine = one_view(input);
    let peers = one_view(&Input {
        me: input.peer,
        peer: input.me,
        peer_wsame: true,
        resolve_conflicts: !input.resolve_conflicts,
        ..*input
    });
    if mine.verdict != Verdict::RequiresWsame && mine.verdict.mirrored() != peers.verdict {
        hit("generations", || "0".to_owned());
        return Comparison {
            verdict: Verdict::SplitBrain(Ancestor::InHistory),
            rule: 0,
            reason: Reason::CircularGenerations,
            own: input.me.uuids,
            peer: input.peer.uuids,
        };
    }
    hit("generations", || mine.rule.to_string());
    mine
}

fn one_view(input: &Input) -> Comparison {
    let (own, peer) = (input.me.uuids, input.peer.uuids);
    let found = |(rule, verdict, reason)| Comparison { verdict, rule, reason, own, peer };
    if let Some(decided) = fresh(&own, &peer) {
        found(decided)
    } else if own.current.same(peer.current) {
        same_current(input)
    } else {
        different_current(input)
    }
}

type Decided = (u8, Verdict, Reason);

const SOURCE: Verdict = Verdict::Source { full: false };
const TARGET: Verdict = Verdict::Target { full: false };

fn fresh(own: &UuidSet, peer: &UuidSet) -> Option<Decided> {
    let just_created = |u: &UuidSet| u.current.same(Generation::JUST_CREATED);
    let no_data = |u: &UuidSet| u.current.is_none() || just_created(u);
    if (just_created(own) && just_created(peer)) || (own.current.is_none() && peer.current.is_none()) {
        Some((10, Verdict::NoSync, Reason::JustCreatedBoth))
    } else if no_data(own) && !just_created(peer) {
        Some((20, Verdict::Target { full: true }, Reason::JustCreatedSelf))
    } else if !just_created(own) && no_data(peer) {
        Some((30, Verdict::Source { full: true }, Reason::JustCreatedPeer))
    } else {
        None
    }
}

fn same_current(input: &Input) -> Comparison {
    let (mut own, mut peer) = (input.me.uuids, input.peer.uuids);
    let (rule, verdict, reason) = match (own.bitmap.is_none(), peer.bitmap.is_none()) {
        (false, true) if own.bitmap.same(peer.history[0]) && own.history[0].same(peer.history[1]) => {
            (34, SOURCE, Reason::SourceMissedFinish)
        }
        (false, true) => (36, SOURCE, Reason::SourcePeerMissedFinish),
        (true, false) if own.history[0].same(peer.bitmap) && own.history[1].same(peer.history[0]) => {
            (35, TARGET, Reason::TargetPeerMissedFinish)
        }
        (true, false) => (37, TARGET, Reason::TargetMissedFinish),
        _ => crashed(input),
    };
    let verdict = needs_91(input, rule, verdict);
    if verdict == SOURCE && rule == 34 {
        own.retire_bitmap();
    }
    if verdict == TARGET && rule == 35 {
        peer.retire_bitmap();
    }
    Comparison { verdict, rule, reason, own, peer }
}

/// Rules 40 and 41: equal generations, only a crash can make a difference.
fn crashed(input: &Input) -> Decided {
    let (me, peer) = (&input.me, &input.peer);
    if !me.crashed_primary && !peer.crashed_primary {
        return (40, Verdict::NoSync, Reason::SameGeneration);
    }
    if me.primary || peer.primary {
        let verdict = match (me.primary, peer.primary) {
            _ if !input.peer_wsame => {
                return (41, Verdict::RequiresWsame, Reason::RequiresNewerPeer);
            }
            (true, true) => Verdict::SplitBrain(Ancestor::InHistory),
            (true, false) => SOURCE,
            (false, _) => TARGET,
        };
        return (41, verdict, Reason::CrashedPrimaryBesidePrimary);
    }
    let source = match (me.crashed_primary, peer.crashed_primary) {
        (true, true) => !input.resolve_conflicts,
        (mine, _) => mine,
    };
    (40, if source { SOURCE } else { TARGET }, Reason::CrashedPrimary)
}

fn different_current(input: &Input) -> Comparison {
    let (mut own, mut peer) = (input.me.uuids, input.peer.uuids);
    let (full_target, full_source) = (Verdict::Target { full: true }, Verdict::Source { full: true });
    let (rule, verdict, reason) = if own.current.same(peer.bitmap) {
        (50, TARGET, Reason::BitmapPeer)
    } else if peer.lost_sync_start(&own, input.protocol) {
        (51, TARGET, Reason::TargetMissedStart)
    } else if peer.in_history(own.current) {
        (60, full_target, Reason::HistoryPeer)
    } else if own.bitmap.same(peer.current) {
        (70, SOURCE, Reason::BitmapSelf)
    } else if own.lost_sync_start(&peer, input.protocol) {
        (71, SOURCE, Reason::SourceMissedStart)
    } else if own.in_history(peer.current) {
        (80, full_source, Reason::HistorySelf)
    } else if own.bitmap.same(peer.bitmap) && !own.bitmap.is_none() {
        (90, Verdict::SplitBrain(Ancestor::InBitmaps), Reason::BitmapBoth)
    } else {
        no_order(&own, &peer)
    };
    let verdict = needs_91(input, rule, verdict);
    if verdict == TARGET && rule == 51 {
        peer.undo_sync_start();
    }
    if verdict == SOURCE && rule == 71 {
        own.undo_sync_start();
    }
    Comparison { verdict, rule, reason, own, peer }
}

/// Rule 100 and the end of the list. Empty history slots count as common ones.
///
/// A sync target that was promoted by force has begun a generation upon the resync's: its bitmap counts from that one,
/// which the source has in its history by now. No rule of 8.4 looks at it.
fn no_order(own: &UuidSet, peer: &UuidSet) -> Decided {
    let parted = |one: &UuidSet, other: &UuidSet| !one.bitmap.is_none() && other.in_history(one.bitmap);
    let forced = parted(own, peer) || parted(peer, own);
    let known = own.history.iter().any(|h| !h.is_none() && peer.in_history(*h));
    let empty = own.in_history(Generation::NONE) && peer.in_history(Generation::NONE);
    if known {
        (100, Verdict::SplitBrain(Ancestor::InHistory), Reason::HistoryBoth)
    } else if forced {
        (100, Verdict::SplitBrain(Ancestor::InHistory), Reason::BitmapInHistory)
    } else if empty {
        (100, Verdict::SplitBrain(Ancestor::Unknown), Reason::EmptyHistoryBoth)
    } else {
        (0, Verdict::Unrelated, Reason::UnrelatedData)
    }
}

/// The corrections of missed packets (rules 34 to 37, 51, 71) are only defined from protocol 91 on.
fn needs_91(input: &Input, rule: u8, verdict: Verdict) -> Verdict {
    if input.protocol < 91 && matches!(rule, 34..=37 | 51 | 71) { Verdict::RequiresProtocol(91) } else { verdict }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The trace of two real 8.4.11 nodes (`docs/spec/on-disk-format.md` 5.2): a was Primary all the time.
    #[test]
    fn generations_of_a_real_pair() {
        let g = Generation;
        let created = UuidSet { current: Generation::JUST_CREATED, ..UuidSet::default() };
        let (mut a, mut b) = (created, created);
        a.start_generation(g(0x6f77_96da_9d3c_7faf));
        let at_handshake = a;
        let sync = a.start_sync_source(g(0xda70_a168_add4_264d));
        assert_eq!((sync, a.bitmap, a.history[0]), (g(0xda70_a168_add4_264d), sync, g(4)));
        b.start_sync_target(sync.with_primary_bit(false));
        assert_eq!((b.current, b.bitmap), (g(0xda70_a168_add4_264c), g(0)));
        a.retire_bitmap();
        b.finish_sync_target(&at_handshake);
        assert_eq!(a.history, [g(0xda70_a168_add4_264d), g(4)]);
        assert_eq!((b.current.base(), b.history), (a.current.base(), [g(0xda70_a168_add4_264c), g(4)]));
        a.start_generation(g(0x38cc_9735_3263_d7f7));
        assert_eq!(a.bitmap, g(0x6f77_96da_9d3c_7faf), "with its bit: it says who was Primary when they parted");
        let sync = a.start_sync_source(g(1));
        assert_eq!(sync, g(0x6f78_96da_9d3c_7faf));
        a.retire_bitmap();
        assert_eq!(a.history, [g(0x6f78_96da_9d3c_7faf), g(0x6f77_96da_9d3c_7faf)]);
    }

    /// Equal generations, both bitmaps in use: what each has changed decides, and both come to the same.
    #[test]
    fn who_wrote_beside_a_third_node_is_not_the_same() {
        let set = |bitmap| UuidSet { current: Generation(0x10), bitmap: Generation(bitmap), ..UuidSet::default() };
        let compared = |mine, peers, changed: [bool; 2], crashed| {
            let me = Node { uuids: set(mine), crashed_primary: crashed, primary: false };
            let peer = Node { uuids: set(peers), ..Node::default() };
            let input = Input { me, peer, protocol: 101, peer_wsame: true, resolve_conflicts: true };
            let mirrored = Input { me: input.peer, peer: input.me, resolve_conflicts: false, ..input };
            let own = compare(&input).beside_third_nodes(changed).verdict;
            assert_eq!(compare(&mirrored).beside_third_nodes([changed[1], changed[0]]).verdict, own.mirrored());
            own
        };
        let split = Verdict::SplitBrain(Ancestor::InBitmaps);
        for crashed in [false, true] {
            assert_eq!(compared(0x10, 0x20, [true, true], crashed), split);
            assert_eq!(compared(0x10, 0x20, [true, false], crashed), SOURCE);
            assert_eq!(compared(0x10, 0x20, [false, true], crashed), TARGET);
        }
        assert_eq!(compared(0x10, 0x20, [false, false], false), Verdict::NoSync);
        assert_eq!(compared(0x10, 0, [true, true], false), SOURCE, "rule 36: only one of them has written");
    }
}
