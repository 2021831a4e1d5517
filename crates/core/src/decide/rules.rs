//! Which states and changes of state are legal (`docs/spec/connection-and-state.md` 2.3 and 2.8).
//!
//! One rule set for all peers. Most rules look at one volume and one peer ([`View`]); a row that is about what 8.4 can
//! and cannot do looks at the protocol that was agreed with that peer ([`PeerFacts::protocol`]).

use crate::config::{Fencing, OnNoData};
use crate::decide::change::{Change, Set};
use crate::decide::effects::Caused;
use crate::decide::quorum::{Standing, Verdict};
use crate::decide::state::{ConnectionState as N, SuspendReason};
use crate::decide::state::{PairState, Paused, Replication as R, State};
use crate::decide::view::{Facts, Kind, PeerFacts, Refusal, View, lacks_data, speaks9, towards};
use crate::decide::votes::count_votes;
use crate::decide::{DiskState as D, Role, StateChangeResult as Code, effects, lost};
use crate::rows::hit;
use meta::{DeviceFlags, PeerFlags};
use units::{NodeId, VolumeNr};

/// Every volume with every peer.
fn pairs(state: &State) -> impl Iterator<Item = (NodeId, VolumeNr)> + use<> {
    let volumes = state.volumes.ids();
    let members = state.peers.members();
    volumes.flat_map(move |volume| members.into_iter().map(move |peer| (peer, volume)))
}

/// A change that may take place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Judged {
    /// The state that follows.
    pub new: State,
    /// What it brings with it, in the order in which that is to be carried out.
    pub effects: Vec<Caused>,
}

/// Judges a change: the state that follows and what that brings with it, or why not.
///
/// # Errors
/// The rule that refuses it; `NothingToDo` if the state would stay the same.
pub fn judge(old: &State, change: &Change, kind: Kind, facts: &Facts) -> Result<Judged, Refusal> {
    let new = successor(old, change, kind, facts)?;
    let effects = effects::effects(old, &new, facts);
    Ok(Judged { new, effects })
}

/// The state that follows, or why the change is refused: as [`judge`], for who only asks.
///
/// # Errors
/// As of [`judge`].
pub fn successor(old: &State, change: &Change, kind: Kind, facts: &Facts) -> Result<State, Refusal> {
    let mut wanted = change.applied(old);
    if kind == Kind::WishIgnoringOutdate {
        for (volume, state) in old.volumes.iter() {
            if state.disk < D::Outdated && wanted.disk(volume) == D::Outdated {
                wanted.volumes[volume].disk = state.disk;
            }
        }
    }
    let outdates = |volume| kind == Kind::Wish && change.sets_disk(volume, D::Outdated);
    for (peer, volume) in pairs(old) {
        if outdates(volume) && wanted.is_connected(peer) && refuses_outdated(wanted.replication(peer, volume)) {
            return Err(Refusal { code: Code::ConnectedOutdates, volume: Some(volume) });
        }
    }
    let new = sanitise(old, &wanted, facts);
    let unconnected = change.sets().find_map(|set| unconnected(&wanted, set));
    if new == *old && unconnected.is_none() {
        return Err(Refusal { code: Code::NothingToDo, volume: None });
    }
    if let Some(refusal) = unconnected {
        return Err(refusal);
    }
    for volume in old.volumes.ids() {
        if kind != Kind::Fact && loses_quorum(old, &new, volume) {
            return Err(Refusal { code: Code::NoQuorum, volume: Some(volume) });
        }
        let shakes_hands = towards(old).any(|peer| shakes_hands(old, &new, peer, volume));
        for peer in towards(old) {
            let of = |state| View::of(state, peer, volume);
            let (before, wanted, after) = (of(old), of(&wanted), of(&new));
            let refused = |code| Refusal { code, volume: Some(volume) };
            // What is frozen because of another volume is no change of this one; nor are votes.
            let frozen = before.frozen.put(SuspendReason::User, after.frozen.because_of(SuspendReason::User));
            if before == (View { frozen, standing: before.standing, ..after }) {
                continue;
            }
            hard_rules(&before, &after).map_err(refused)?;
            if kind != Kind::Fact {
                let judge = Judge { state: &new, facts, peer, volume, shakes_hands };
                let earlier = Judge { state: old, ..judge };
                judge.wish(&earlier, [&before, &wanted, &after]).map_err(refused)?;
            }
        }
    }
    Ok(new)
}

/// A Primary without quorum (spec 2.3, rule 15): nobody becomes that, or remains it, by a wish.
fn loses_quorum(old: &State, new: &State, volume: VolumeNr) -> bool {
    let had = !old.is_primary() || old.volumes[volume].standing.is_quorate();
    new.is_primary() && had && !new.volumes[volume].standing.is_quorate()
}

/// Is this a step of the volume's handshake with the peer?
fn shakes_hands(old: &State, new: &State, peer: Option<NodeId>, volume: VolumeNr) -> bool {
    let (old, new) = (View::of(old, peer, volume), View::of(new, peer, volume));
    let (was, is) = (old.connection, new.connection);
    (was == N::Connecting && is == N::Connected && !new.is_together())
        || (was == N::Connected && !old.is_together() && new.is_together())
}

/// Nothing goes on with a peer that is not connected.
fn unconnected(wanted: &State, set: Set) -> Option<Refusal> {
    let Set::Replication(peer, volume, replication) = set else { return None };
    let code = match wanted.connection(peer) {
        N::Connected => return None,
        N::StandAlone | N::Unconnected | N::Connecting => Code::NeedConnection,
        _ => Code::InTransientState,
    };
    (replication >= R::Established).then_some(Refusal { code, volume: Some(volume) })
}

/// Makes the parts of a wanted state fit each other (spec 2.8, "Sanitising").
#[must_use]
pub fn sanitise(old: &State, wanted: &State, facts: &Facts) -> State {
    let mut new = wanted.clone();
    let mut passed = Passed::of(&new);
    each_pair(&mut new, without_connection);
    passed.by(1, &new);
    each_pair(&mut new, |new, peer, volume| {
        let idle = new.connection(peer) == N::StandAlone && new.disk(volume) == D::Diskless;
        if idle && new.role == Role::Secondary {
            new.pair_mut(peer, volume).paused.by_dependency = false;
        }
    });
    passed.by(2, &new);
    each_pair(&mut new, |new, peer, volume| without_disks(old, new, peer, volume));
    passed.by(3, &new);
    negotiations_end(&mut new, facts);
    passed.by(4, &new);
    each_pair(&mut new, |new, peer, volume| match speaks9(facts, peer) {
        true => connected_is_good9(old, new, peer, volume, facts),
        false => connected_is_good(new, peer, volume),
    });
    passed.by(5, &new);
    each_pair(&mut new, |new, peer, volume| {
        let replication = new.replication(peer, volume);
        let nine = speaks9(facts, peer);
        let ((disk_min, disk_max), (peer_min, peer_max)) =
            if nine { disk_ranges9(replication) } else { disk_ranges(replication) };
        let disk = &mut new.volumes[volume].disk;
        *disk = (*disk).clamp(disk_min, disk_max);
        let disk = &mut new.pair_mut(peer, volume).disk;
        *disk = (*disk).clamp(peer_min, peer_max);
    });
    passed.by(6, &new);
    freeze_unfenced(old, &mut new, facts);
    passed.by(7, &new);
    for volume in old.volumes.ids() {
        let data = new.disk(volume) == D::UpToDate || new.good_peers(volume).next().is_some();
        new.volumes[volume].unused &= new.is_primary() && !data;
    }
    // I/O freezes when the condition begins, not as long as it lasts.
    let begins = |volume| lacks_data(&new, volume) && !lacks_data(old, volume);
    if facts.on_no_data == OnNoData::SuspendIo && old.volumes.ids().any(begins) {
        new.lasting = new.lasting.put(SuspendReason::NoData, true);
    }
    passed.by(8, &new);
    new.volumes.ids().for_each(|volume| choose_source(old, &mut new, volume, facts));
    each_pair(&mut new, pause);
    passed.by(9, &new);
    lost::survives_primary(old, &mut new, facts);
    passed.by(10, &new);
    votes(old, &mut new, facts);
    passed.by(11, &new);
    new
}

/// Rule 11: who has quorum, and what freezes without (9: D1, D2, E3).
fn votes(old: &State, new: &mut State, facts: &Facts) {
    for volume in old.volumes.ids() {
        let verdict = facts.quorum.is_on().then(|| count_votes(old, new, volume, facts).verdict);
        let state = &mut new.volumes[volume];
        let keeps = state.standing == Standing::Keeps && state.disk == D::UpToDate;
        state.standing = match verdict {
            None => Standing::Unasked,
            Some(Verdict::Lacks) if keeps => Standing::Keeps,
            Some(Verdict::Lacks) => Standing::Lacks(facts.quorum.without()),
            Some(Verdict::Has | Verdict::ByTiebreaker) => Standing::Has,
        };
    }
}

/// Counts the rules of sanitising that change anything.
struct Passed(Option<State>);

impl Passed {
    fn of(state: &State) -> Passed {
        Passed(cfg!(feature = "rows").then(|| state.clone()))
    }

    fn by(&mut self, rule: u8, now: &State) {
        if let Some(before) = self.0.as_mut().filter(|before| *before != now) {
            before.clone_from(now);
            hit("sanitising", || rule.to_string());
        }
    }
}

fn each_pair(state: &mut State, mut f: impl FnMut(&mut State, NodeId, VolumeNr)) {
    pairs(state).for_each(|(peer, volume)| f(state, peer, volume));
}

/// Rule 1: nothing goes on, and little is known of a peer that is not connected.
fn without_connection(new: &mut State, peer: NodeId, volume: VolumeNr) {
    let connected = new.is_connected(peer);
    let pair = new.pair_mut(peer, volume);
    if !connected {
        pair.replication = R::Off;
    }
    if pair.replication == R::Off {
        pair.paused.by_peer = false;
        pair.role = Role::Unknown;
        pair.quorate = false;
        if pair.disk > D::DUnknown || pair.disk < D::Inconsistent {
            pair.disk = D::DUnknown;
        }
    }
}

/// Rule 3: no resync and no verify without two disks, no verify of a bad one.
fn without_disks(old: &State, new: &mut State, peer: NodeId, volume: VolumeNr) {
    let (pair, disk) = (*new.pair(peer, volume), new.disk(volume));
    if pair.replication > R::Established && (disk <= D::Failed || pair.disk <= D::Failed) {
        let (own, peers) = disk_ranges(pair.replication);
        let target = own == (D::Inconsistent, D::Outdated);
        let source = peers == (D::Inconsistent, D::Consistent);
        if source && matches!(pair.disk, D::Consistent | D::Outdated) {
            // The same seen from the source: the peer's copy is no better for its loss.
            new.pair_mut(peer, volume).disk = D::Inconsistent;
        }
        if target && matches!(disk, D::Consistent | D::Outdated) {
            // The source's disk is gone before the resync began. The reference calls this copy UpToDate then,
            // although it lacks what the source had written alone.
            new.volumes[volume].disk = D::Inconsistent;
        }
        new.pair_mut(peer, volume).replication = R::Established;
    }
    let verifies = old.replication(peer, volume).is_verifying() && new.replication(peer, volume).is_verifying();
    if verifies && (new.disk(volume) < D::UpToDate || new.peer_disk(peer, volume) < D::UpToDate) {
        // A disk that went bad ends it. The reference goes on, and calls the disk UpToDate.
        new.pair_mut(peer, volume).replication = R::Established;
    }
}

/// Rule 4: nobody is left who could say what a disk that is being attached is worth.
fn negotiations_end(new: &mut State, facts: &Facts) {
    for volume in new.volumes.ids() {
        if new.disk(volume) != D::Negotiating || new.replicates_anywhere(volume) {
            continue;
        }
        let known = facts.volumes[volume];
        let trusted = known.exposed_is_current;
        new.volumes[volume].disk = if trusted { known.at_attach } else { D::Diskless };
        for (peer, state) in facts.peers.iter() {
            let outdated = trusted && state.volumes[volume].outdated_at_attach;
            new.pair_mut(peer, volume).disk = if outdated { D::Outdated } else { D::DUnknown };
        }
    }
}

/// Rule 5: of two that are connected, and between which no resync is wanted, both are good.
fn connected_is_good(new: &mut State, peer: NodeId, volume: VolumeNr) {
    let (pair, disk) = (*new.pair(peer, volume), new.disk(volume));
    if !(R::Established..R::Ahead).contains(&pair.replication) {
        return;
    }
    // That an Outdated disk is as good as the other one only a comparison can tell: there must be another one.
    let good = |disk: D, other: D| {
        let alone = pair.replication == R::Established && other < D::Inconsistent;
        disk == D::Consistent || (disk == D::Outdated && !alone)
    };
    if good(disk, pair.disk) {
        new.volumes[volume].disk = D::UpToDate;
    }
    if good(pair.disk, disk) {
        new.pair_mut(peer, volume).disk = D::UpToDate;
    }
}

/// Rule 5 of 9's dialect (C13 and C15): a copy that was behind only by hearsay is as good as the one that it is
/// connected to. What the peer's is worth the peer says. As long as a word of a lost Primary's writes is awaited, a
/// third node may have more of them (the hold of "may be up to date"): who is Consistent then asks when that has come.
fn connected_is_good9(old: &State, new: &mut State, peer: NodeId, volume: VolumeNr, facts: &Facts) {
    let (pair, disk) = (*new.pair(peer, volume), new.disk(volume));
    let connects = old.replication(peer, volume) < R::Established && pair.replication >= R::Established;
    if !connects {
        return;
    }
    match disk {
        D::Outdated if pair.replication == R::Established && matches!(pair.disk, D::Consistent | D::UpToDate) => {
            new.volumes[volume].disk = pair.disk;
        }
        D::Consistent if !facts.holds_back => new.volumes[volume].disk = D::UpToDate,
        _ => {}
    }
}

/// The disk states that go with what goes on in 9's dialect (C11).
const fn disk_ranges9(replication: R) -> ((D, D), (D, D)) {
    let any = (D::Inconsistent, D::UpToDate);
    match replication {
        R::WFBitMapT | R::StartingSyncT | R::WFSyncUUID | R::Behind => ((D::Inconsistent, D::Outdated), any),
        R::PausedSyncT | R::SyncTarget => ((D::Inconsistent, D::Inconsistent), any),
        R::WFBitMapS | R::PausedSyncS | R::StartingSyncS | R::Ahead => (any, (D::Inconsistent, D::Consistent)),
        R::SyncSource => (any, (D::Inconsistent, D::Inconsistent)),
        R::VerifyS | R::VerifyT => (any, any),
        R::Off | R::Established => disk_ranges(replication),
    }
}

/// The disk states that go with what goes on: own, then the peer's, each from worst to best.
const fn disk_ranges(replication: R) -> ((D, D), (D, D)) {
    let good = (D::UpToDate, D::UpToDate);
    match replication {
        R::WFBitMapT | R::PausedSyncT | R::StartingSyncT | R::WFSyncUUID | R::Behind => {
            ((D::Inconsistent, D::Outdated), good)
        }
        R::VerifyS | R::VerifyT => (good, good),
        R::Established => ((D::Diskless, D::UpToDate), (D::Diskless, D::UpToDate)),
        R::WFBitMapS | R::PausedSyncS | R::StartingSyncS | R::Ahead => (good, (D::Inconsistent, D::Consistent)),
        R::SyncTarget => ((D::Inconsistent, D::Inconsistent), good),
        R::SyncSource => (good, (D::Inconsistent, D::Inconsistent)),
        R::Off => ((D::Diskless, D::UpToDate), (D::Inconsistent, D::DUnknown)),
    }
}

/// Rule 7: I/O freezes until a peer that got out of reach is fenced.
fn freeze_unfenced(old: &State, new: &mut State, facts: &Facts) {
    if facts.fencing != Fencing::ResourceAndStonith {
        return;
    }
    let unfenced = |state: &State, peer, volume| {
        let pair = state.pair(peer, volume);
        state.is_primary() && pair.replication == R::Off && pair.disk > D::Outdated
    };
    each_pair(new, |new, peer, volume| {
        new.peers[peer].unfenced |= unfenced(new, peer, volume) && !unfenced(old, peer, volume);
    });
}

/// One source at a time (spec 2.2, "select the active sync source"): the present one, else the Primary, else a good
/// one, of those one that depends on no Primary, else any.
fn choose_source(old: &State, new: &mut State, volume: VolumeNr, facts: &Facts) {
    let is_target = |peer: NodeId| new.replication(peer, volume).is_target() && speaks9(facts, peer);
    let peers: Vec<NodeId> = new.peers.members().into_iter().collect();
    let may = |peer: &NodeId| {
        let paused = Paused { by_other: false, ..new.pair(*peer, volume).paused };
        is_target(*peer) && !paused.any()
    };
    let present = |peer: &NodeId| old.replication(*peer, volume) == R::SyncTarget;
    let primary = |peer: &NodeId| new.peers[*peer].role() == Role::Primary;
    let able = || peers.iter().copied().filter(may);
    let good = |peer: &NodeId| new.peer_disk(*peer, volume) == D::UpToDate;
    let serves = |peer: &NodeId| good(peer) && facts.peers[*peer].volumes[volume].serves;
    let among = |which: &dyn Fn(&NodeId) -> bool| able().find(|peer| which(peer));
    let best = || among(&primary).or_else(|| among(&serves)).or_else(|| among(&good)).or_else(|| able().next());
    let chosen = able().find(|peer| present(peer) && (good(peer) || !able().any(|other| good(&other)))).or_else(best);
    let waiting: Vec<bool> = peers.iter().map(|peer| chosen.is_some_and(|chosen| *peer != chosen)).collect();
    for (peer, waits) in peers.into_iter().zip(waiting) {
        new.pair_mut(peer, volume).paused.by_other = waits;
    }
}

/// Rule 9.
fn pause(new: &mut State, peer: NodeId, volume: VolumeNr) {
    let pair = new.pair_mut(peer, volume);
    pair.replication = match (pair.replication, pair.paused.any()) {
        (R::SyncSource, true) => R::PausedSyncS,
        (R::SyncTarget, true) => R::PausedSyncT,
        (R::PausedSyncS, false) => R::SyncSource,
        (R::PausedSyncT, false) => R::SyncTarget,
        (replication, _) => replication,
    };
    match pair.replication {
        R::SyncSource => pair.disk = D::Inconsistent,
        R::SyncTarget => new.volumes[volume].disk = D::Inconsistent,
        _ => {}
    }
}

/// What not even a fact may do (spec 2.3).
///
/// # Errors
/// The code of the rule.
pub fn hard_rules(old: &View, new: &View) -> Result<(), Code> {
    let lost = |connection| (N::Timeout..=N::TearDown).contains(&connection);
    if old.connection != new.connection {
        match (old.connection, new.connection) {
            (N::StandAlone, N::Unconnected) => {}
            (N::StandAlone, N::Disconnecting) => return Err(Code::AlreadyStandAlone),
            (N::StandAlone, _) => return Err(Code::NeedConnection),
            (N::Disconnecting, N::StandAlone) => {}
            (N::Disconnecting, _) => return Err(Code::InTransientState),
            (from, N::Unconnected | N::Disconnecting) if lost(from) => {}
            (from, _) if lost(from) => return Err(Code::InTransientState),
            _ => {}
        }
    }
    if old.disk == D::Diskless && matches!(new.disk, D::Failed | D::Detaching) {
        return Err(Code::IsDiskless);
    }
    let let_go_of = matches!(new.disk, D::Failed | D::Diskless);
    // Its log and its marks are being made empty: it cannot become a disk again (not in the specification).
    if old.disk == D::Failed && !let_go_of {
        return Err(Code::InTransientState);
    }
    Ok(())
}

/// Connected to a peer whose data is not better: sanitising would make an outdated disk UpToDate at once, and end a
/// verify on this node only.
fn refuses_outdated(replication: R) -> bool {
    matches!(replication, R::Established | R::WFBitMapS | R::SyncSource | R::PausedSyncS) || replication.is_verifying()
}

/// A state, and the volume and peer in it that are judged.
#[derive(Clone, Copy)]
struct Judge<'a> {
    state: &'a State,
    facts: &'a Facts,
    peer: Option<NodeId>,
    volume: VolumeNr,
    /// The change is a step of the volume's handshake, with this peer or another one.
    shakes_hands: bool,
}

/// Is this a state to be in, as far as the volume and the peer are concerned (spec 2.8, "State validity")?
///
/// # Errors
/// The code of the first matching row.
pub fn valid(state: &State, peer: Option<NodeId>, volume: VolumeNr, facts: &Facts) -> Result<(), Code> {
    Judge { state, facts, peer, volume, shakes_hands: false }.valid()
}

impl Judge<'_> {
    fn wish(&self, earlier: &Judge<'_>, [old, wanted, new]: [&View; 3]) -> Result<(), Code> {
        // Without disks sanitising makes Established of it: no wish ends a handshake that is not over.
        let wished = wanted.replication.is_verifying() || wanted.replication.is_starting();
        let ends_handshake = !old.is_together() && new.replication == R::Established;
        if wished && ends_handshake {
            return Err(Code::NeedConnection);
        }
        // A state may be as bad as the one before, as that of a target of an Outdated source is in 9's dialect: that
        // lets nobody become Primary.
        let rises = new.role == Role::Primary && old.role != Role::Primary;
        // In 9's dialect a target stays connected to a source that went bad (`on-io-error pass_on`), and waits.
        let nine = self.about_peer(|p| p.protocol).is_some_and(|version| version >= 110);
        let source_went_bad = old.replication == R::SyncTarget && old.peer_disk == D::UpToDate;
        let waits = nine && source_went_bad && new.replication == R::PausedSyncT && new.role == Role::Secondary;
        match self.valid() {
            Err(Code::NoUpToDateDisk) if waits => self.soft(old, new),
            Err(code) if earlier.valid() != Err(code) => Err(code),
            Err(_) if rises && lacks_data(self.state, self.volume) => Err(Code::NoUpToDateDisk),
            _ => self.soft(old, new),
        }
    }

    fn about_peer<T>(&self, f: impl FnOnce(&PeerFacts) -> T) -> Option<T> {
        self.peer.and_then(|peer| self.facts.peers.get(peer)).map(f)
    }

    /// In 9's dialect: is this node's copy about to be replaced, beside peers that only look on?
    fn gives_up(&self) -> bool {
        let begins = |pair: &PairState| matches!(pair.replication, R::StartingSyncT | R::WFBitMapT);
        let nine = self.about_peer(|p| p.protocol).is_some_and(|version| version >= 110);
        nine && self.state.pairs(self.volume).any(|(_, pair)| begins(pair))
    }

    fn valid(&self) -> Result<(), Code> {
        let s = &View::of(self.state, self.peer, self.volume);
        let facts = self.facts;
        let primary = s.role == Role::Primary;
        let needs_data = primary && !self.state.volumes[self.volume].unused;
        let two_primaries = self.about_peer(|p| p.two_primaries).unwrap_or(false);
        let peer_primary = self.peer.is_some_and(|peer| self.state.peers[peer].role() == Role::Primary);
        let protocol = self.about_peer(|p| p.protocol);
        let (connected, beyond) = (s.is_together(), s.is_beyond());
        // In 9's dialect a survivor that has not agreed with the others yet is a source.
        let good = if protocol.is_some_and(|version| version >= 110) { D::Consistent } else { D::UpToDate };
        let no_good_disk = s.disk < good && s.peer_disk < good;
        let (no_good_copy, nothing_elsewhere) = (s.disk < D::UpToDate && !s.good_elsewhere, !s.good_elsewhere);
        let (verify, replication) = (s.replication.is_verifying(), s.replication);
        let unfenced = facts.fencing >= Fencing::ResourceOnly && !connected && s.peer_disk >= D::DUnknown;
        let worthless = s.disk <= D::Inconsistent && s.peer_disk <= D::Inconsistent && nothing_elsewhere;
        let rows = [
            (!two_primaries && primary && s.peer == Role::Primary, Code::TwoPrimaries),
            (!two_primaries && primary && peer_primary, Code::OtherVolumePeerPrimary),
            (s.role == Role::Secondary && facts.volumes[self.volume].open, Code::DeviceInUse),
            (needs_data && !connected && no_good_copy, Code::NoUpToDateDisk),
            (unfenced && primary && self.peer.is_some(), Code::PrimaryNop),
            (needs_data && worthless, Code::NoUpToDateDisk),
            (beyond && s.disk < D::Inconsistent, Code::NoLocalDisk),
            (beyond && s.peer_disk < D::Inconsistent, Code::NoRemoteDisk),
            (beyond && no_good_disk, Code::NoUpToDateDisk),
            (
                refuses_outdated(replication)
                    && s.disk == D::Outdated
                    && s.peer_disk >= D::Inconsistent
                    && !self.gives_up(),
                Code::ConnectedOutdates,
            ),
            (verify && !self.about_peer(|p| p.verify_alg).unwrap_or(false), Code::NoVerifyAlg),
            (verify && protocol.is_some_and(|version| version < 88), Code::NotSupported),
            (needs_data && no_good_copy, Code::NoUpToDateDisk),
            (replication.is_starting() && s.peer_disk == D::DUnknown, Code::NeedConnection),
            (connected && s.peer_disk == D::DUnknown, Code::ConnectedOutdates),
        ];
        decided("validity", rows.iter().position(|(matches, _)| *matches), &rows)
    }

    /// Is this change allowed as a wish (spec 2.8, "Soft transitions")? The last matching row decides.
    fn soft(&self, old: &View, new: &View) -> Result<(), Code> {
        let (was, is) = (old.connection, new.connection);
        let moved = new.moved_from(old);
        let rising_half_synced = new.role == Role::Primary
            && old.role != Role::Primary
            && new.peer_disk == D::UpToDate
            && !matches!(new.disk, D::UpToDate | D::Diskless)
            && (new.replication <= R::WFSyncUUID || moved);
        let below_outdated = old.disk < D::Outdated && old.disk != D::Attaching;
        let becomes_starting = new.replication.is_starting() && moved;
        let becomes_verifying = new.replication.is_verifying() && moved;
        let becomes_syncing = matches!(new.replication, R::SyncTarget | R::SyncSource);
        // Sanitising makes both disks UpToDate for a verify, and the source's for a resync: not one that has no good
        // data.
        let bad = |disk: D, other: D| disk <= D::Inconsistent && other == D::UpToDate;
        let worthless = old.disk == D::Inconsistent && old.peer_disk == D::Inconsistent;
        let (own_bad, peer_bad) = (bad(old.disk, old.peer_disk), bad(old.peer_disk, old.disk));
        let spoils = (becomes_verifying && (worthless || own_bad || peer_bad))
            || (new.comes_to(old, R::StartingSyncS) && own_bad)
            || (new.comes_to(old, R::StartingSyncT) && peer_bad);
        let outdates_absent =
            is == N::Disconnecting && new.peer_disk == D::Outdated && !old.is_together() && old.peer_disk > D::Outdated;
        // With its role it would begin a generation, and compare by that one. The reference lets it.
        let peer_rises = new.peer == Role::Primary && old.peer != Role::Primary;
        let undecided = self.about_peer(|p| p.volumes[self.volume].undecided).unwrap_or(false);
        let rows = [
            (becomes_starting && old.is_beyond(), Code::ResyncRunning),
            (was == N::StandAlone && is == N::Disconnecting, Code::AlreadyStandAlone),
            (old.disk == D::Diskless && new.disk > D::Attaching, Code::IsDiskless),
            (is == N::Connecting && was < N::Unconnected, Code::NoNetConfig),
            (new.disk == D::Outdated && below_outdated, Code::LowerThanOutdated),
            (was == N::Unconnected && is == N::Disconnecting, Code::InTransientState),
            (self.facts.state_sent && !self.shakes_hands, Code::InTransientState),
            (rising_half_synced, Code::InTransientState),
            (becomes_verifying && !old.is_together(), Code::NeedConnection),
            (becomes_verifying && old.is_beyond(), Code::ResyncRunning),
            (becomes_starting && !old.is_together(), Code::NeedConnection),
            (becomes_syncing && was != N::Connected, Code::NeedConnection),
            (spoils && old.replication == R::Established, Code::NoUpToDateDisk),
            (outdates_absent, Code::OutdateWithoutConnection),
            (undecided && peer_rises, Code::InTransientState),
        ];
        decided("soft", rows.iter().rposition(|(matches, _)| *matches), &rows)
    }
}

/// The code of the row that decides.
fn decided(table: &'static str, row: Option<usize>, rows: &[(bool, Code)]) -> Result<(), Code> {
    let Some(row) = row else { return Ok(()) };
    hit(table, || (row + 1).to_string());
    Err(rows[row].1)
}

/// The flags to write when a volume's state towards a peer becomes `s` (spec 2.8, "Metadata flags"); `crashed_primary`
/// is the mark kept in memory.
#[must_use]
pub fn metadata_flags(s: &View, crashed_primary: bool) -> (DeviceFlags, PeerFlags) {
    let through_here = s.peer_disk < D::Inconsistent && s.peer == Role::Primary;
    let own = DeviceFlags::default()
        .with(DeviceFlags::CONSISTENT, s.disk > D::Inconsistent)
        .with(DeviceFlags::PRIMARY_IND, s.role == Role::Primary || through_here)
        .with(DeviceFlags::WAS_UP_TO_DATE, s.disk > D::Outdated)
        .with(DeviceFlags::CRASHED_PRIMARY, crashed_primary);
    let peers = PeerFlags::default()
        .with(PeerFlags::CONNECTED, s.is_together())
        .with(PeerFlags::OUTDATED, (D::Inconsistent..=D::Outdated).contains(&s.peer_disk));
    (own, peers)
}

/// The peers and volumes about which a peer must be asked before this change (spec 3.1).
#[must_use]
pub fn to_be_asked(old: &State, new: &State) -> Vec<(NodeId, VolumeNr)> {
    let asked = |(peer, volume): &(NodeId, VolumeNr)| {
        let of = |state| View::of(state, Some(*peer), *volume);
        is_cluster_wide(&of(old), &of(new))
    };
    pairs(old).filter(asked).collect()
}

/// Must the peer be asked before this change (spec 3.1)?
#[must_use]
pub fn is_cluster_wide(old: &View, new: &View) -> bool {
    let to = |replication| new.comes_to(old, replication);
    old.is_together()
        && new.connection == N::Connected
        && ((new.role == Role::Primary && old.role == Role::Secondary)
            || to(R::StartingSyncT)
            || to(R::StartingSyncS)
            || (new.disk == D::Failed && old.disk != D::Failed)
            || (old.replication == R::Established && matches!(new.replication, R::VerifyS | R::Off)))
}

/// What an administrative disconnect does next (spec 3.1, "Disconnect fallbacks").
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DisconnectStep {
    /// Request plain Disconnecting.
    Plain,
    /// Request Disconnecting and the peer's disk Outdated.
    OutdatePeer,
    /// Request Disconnecting and own disk Outdated.
    OutdateSelf,
    /// Hard change.
    Forced,
    /// Over, successfully.
    Done,
    /// Over: report the code.
    Failed,
}

/// The step after `step` ended with `result`.
#[must_use]
pub fn next_disconnect_step(step: DisconnectStep, result: Code, connection: N) -> DisconnectStep {
    use DisconnectStep as S;
    match (step, result) {
        (_, r) if r.is_success() || r == Code::AlreadyStandAlone => S::Done,
        (S::Plain, Code::PrimaryNop) => S::OutdatePeer,
        (S::Plain, Code::FailedByPeer) if connection != N::Connected => S::Plain,
        (S::Plain, Code::FailedByPeer) => S::OutdateSelf,
        (S::OutdatePeer, Code::OutdateWithoutConnection) => S::Plain,
        (S::OutdateSelf, Code::IsDiskless | Code::LowerThanOutdated) => S::Forced,
        _ => S::Failed,
    }
}
