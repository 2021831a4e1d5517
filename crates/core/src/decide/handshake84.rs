//! From the comparison of generations to what happens, 8.4 (`docs/spec/connection-and-state.md` 5.4, 5.6, 5.7).

use super::handler::Handler;
use super::split_brain::{self, Loser, Policies, Resolution, RrConflict, Side};
use super::state::Replication;
use super::uuid84::{Comparison, UuidSet, Verdict};
use super::{DiskState, Reason, Role};
use crate::decide::uuid84::Ancestor;
use std::fmt;
use units::Generation;

/// Why a comparison takes place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Occasion {
    /// A new connection, or a resync to be considered on an existing one.
    Connect,
    /// This node attaches while connected.
    OwnAttach,
    /// The peer attaches while connected.
    PeerAttach,
    /// The peer has attached while connected, without a comparison or in spite of it: both attached at the same time.
    PeerServes,
}

/// What the decision looks at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Input {
    /// The comparison's outcome.
    pub comparison: Comparison,
    /// Why it took place.
    pub occasion: Occasion,
    /// This node.
    pub me: Side,
    /// The peer.
    pub peer: Side,
    /// after-sb-*.
    pub policies: Policies,
    /// always-asbp.
    pub always_asbp: bool,
    /// rr-conflict.
    pub rr_conflict: RrConflict,
    /// This node or the peer connects tentatively.
    pub dry_run: bool,
    /// This node has the RESOLVE-CONFLICTS role.
    pub resolve_conflicts: bool,
    /// A demotion of this node, without waiting, would succeed now.
    pub demotable: bool,
    /// Writes of this node are on their way to the peer's disk alone.
    pub writes_elsewhere: bool,
    /// The peer's state says that it has decided to be the source.
    pub peer_is_source: bool,
    /// The last try ended as the peer, which has not crashed, took itself for the source in the same generation.
    pub survivor_insists: bool,
}

/// What to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Decision {
    /// Go to Connected: nothing to resync.
    NoSync,
    /// Go to WFBitMapS; `full`: set and write the whole bitmap first.
    Source {
        /// Set the whole bitmap first.
        full: bool,
    },
    /// Go to WFBitMapT; `full`: set and write the whole bitmap first.
    Target {
        /// Set the whole bitmap first.
        full: bool,
    },
    /// Give up the connection: Disconnecting, then StandAlone.
    Disconnect,
    /// Give up this attempt, try again in a second.
    Retry,
    /// The attach failed: own disk to Failed.
    FailOwnDisk,
    /// Go on as if the peer had no disk.
    TreatPeerAsDiskless,
}

impl fmt::Display for Decision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Decision::NoSync => "nothing to copy",
            Decision::Source { full: false } => "what differs is copied to the peer",
            Decision::Source { full: true } => "everything is copied to the peer",
            Decision::Target { full: false } => "what differs is copied from the peer",
            Decision::Target { full: true } => "everything is copied from the peer",
            Decision::Disconnect => "disconnecting",
            Decision::Retry => "trying again later",
            Decision::FailOwnDisk => "this node's disk is given up",
            Decision::TreatPeerAsDiskless => "going on without the peer's disk",
        })
    }
}

impl Decision {
    /// What goes on then; `None` if the connection is given up.
    #[must_use]
    pub const fn replication(self) -> Option<Replication> {
        match self {
            Decision::NoSync | Decision::FailOwnDisk | Decision::TreatPeerAsDiskless => Some(Replication::Established),
            Decision::Source { .. } => Some(Replication::WFBitMapS),
            Decision::Target { .. } => Some(Replication::WFBitMapT),
            Decision::Disconnect | Decision::Retry => None,
        }
    }
}

/// The outcome of [`decide`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// What to do.
    pub decision: Decision,
    /// The last rule that shaped the decision.
    pub reason: Reason,
    /// Handlers to call, in this order, before acting.
    pub handlers: Vec<Handler>,
    /// Demote this node first; if that fails after all, refuse and call `pri-lost-after-sb`.
    pub demote: bool,
}

/// Decides what follows from a comparison (spec 5.7, "After the comparison").
///
/// Differs from DRBD 8.4 in seven places (`docs/compatibility.md`): a Primary that attaches wins no split brain, nor is
/// its disk good while writes are on their way that it will lack; no policy has an Outdated disk win over a better one;
/// a node that crashed follows a peer that insists on being the source; one without usable bitmap is never resolved by
/// a bitmap resync, never automatically if no common generation is known, and a Primary that lost it but cannot be
/// demoted refuses whatever discard-my-data says.
#[must_use]
pub fn decide(input: &Input) -> Outcome {
    let mut out =
        Outcome { decision: Decision::NoSync, reason: input.comparison.reason, handlers: Vec::new(), demote: false };
    out.decision = direction(input, &mut out)
        .and_then(|decision| checked(input, decision, &mut out))
        .unwrap_or_else(|refusal| refused(input.occasion, refusal));
    out
}

/// Who was told to discard its data, and gives it to the other node all the same: generations, disks or a policy have
/// decided before that was looked at.
#[must_use]
pub fn keeps_what_it_was_to_discard(input: &Input, decision: Decision) -> Option<Loser> {
    match (input.me.discard_my_data, input.peer.discard_my_data, decision) {
        (true, false, Decision::Source { .. }) => Some(Loser::Me),
        (false, true, Decision::Target { .. }) => Some(Loser::Peer),
        _ => None,
    }
}

/// This node's generations, which are `own` now, when the decision is carried out (all bits are set then, if it says
/// so); to be persisted if changed.
#[must_use]
pub fn generations_after(comparison: &Comparison, own: UuidSet, occasion: Occasion, out: &Outcome) -> UuidSet {
    let (decision, reason) = (out.decision, out.reason);
    // Who attaches compares by what it is told after this, and would find nothing to correct: no resync, and this node
    // would wait for its bitmap for ever. The beginning of the resync corrects it.
    let told_later = occasion != Occasion::Connect && comparison.rule == 34;
    if told_later && matches!(decision, Decision::Source { .. }) {
        return own;
    }
    let mut own = comparison.own;
    let by_history = decision == Decision::Source { full: true } && reason == Reason::HistorySelf;
    if by_history {
        own.count_from(comparison.peer.current);
    }
    own
}

/// A refusal, before the occasion is looked at.
#[derive(Clone, Copy)]
enum Refusal {
    Final,
    Retry,
}

fn refused(occasion: Occasion, refusal: Refusal) -> Decision {
    match (refusal, occasion) {
        (Refusal::Retry, _) => Decision::Retry,
        (Refusal::Final, Occasion::Connect | Occasion::PeerServes) => Decision::Disconnect,
        (Refusal::Final, Occasion::OwnAttach) => Decision::FailOwnDisk,
        (Refusal::Final, Occasion::PeerAttach) => Decision::TreatPeerAsDiskless,
    }
}

/// Steps 1 to 6: who would be the source.
fn direction(input: &Input, out: &mut Outcome) -> Result<Decision, Refusal> {
    let verdict = input.comparison.verdict;
    if matches!(verdict, Verdict::Unrelated | Verdict::RequiresProtocol(_) | Verdict::RequiresWsame) {
        return Err(Refusal::Final);
    }
    if outdated_primary(input) {
        out.reason = Reason::PrimaryIsOutdated;
        return Err(Refusal::Final);
    }
    if let Some(decision) = by_disk(input, verdict) {
        if !same_direction(verdict, decision) {
            out.reason = Reason::DiskStateDecides;
        }
        return Ok(decision);
    }
    match verdict {
        // DRBD 9 (rule A10), where its process has lived on: it has all that was acknowledged here.
        Verdict::Source { .. } if input.comparison.reason == Reason::CrashedPrimary && input.survivor_insists => {
            out.reason = Reason::SurvivorInsists;
            Ok(Decision::Target { full: false })
        }
        Verdict::Source { full } => Ok(Decision::Source { full }),
        Verdict::Target { full } => Ok(Decision::Target { full }),
        Verdict::SplitBrain(ancestor) => split_brain(input, ancestor, out),
        // It corrects its generations by what it has compared (rule 34), and only then tells who attaches of them. By
        // these there is nothing to do, but it is the source by now, and this disk lacks what it has written since.
        _ if input.occasion == Occasion::OwnAttach && input.peer_is_source => {
            out.reason = Reason::TargetPeerMissedFinish;
            Ok(Decision::Target { full: false })
        }
        _ => Ok(Decision::NoSync),
    }
}

/// A policy knows who changed more, or was Primary first, not what a disk is worth. An Outdated one is known to lack
/// newer data, perhaps writes of its own users that only the other one has: a person may choose it, no policy does.
fn outdated_would_win(input: &Input, loser: Option<Loser>) -> bool {
    let (source, target) = match loser {
        Some(Loser::Me) => (&input.peer, &input.me),
        Some(Loser::Peer) => (&input.me, &input.peer),
        None => return false,
    };
    source.disk == DiskState::Outdated && target.disk > DiskState::Outdated
}

/// Rule 41 takes the Primary for the one that went on. With an Outdated disk it did not, and one that attaches worked
/// on the crashed node's disk: its users may have seen what its own lacks. When it is demoted, rule 40 has the crashed
/// node win.
fn outdated_primary(input: &Input) -> bool {
    if input.comparison.reason != Reason::CrashedPrimaryBesidePrimary {
        return false;
    }
    let (source, target) = match input.comparison.verdict {
        Verdict::Source { .. } => (&input.me, &input.peer),
        Verdict::Target { .. } => (&input.peer, &input.me),
        _ => return false,
    };
    a_primary_attaches(input) || (source.disk == DiskState::Outdated && target.disk > DiskState::Outdated)
}

/// Is the disk that is being attached a Primary's, who had only the other one so far?
fn a_primary_attaches(input: &Input) -> bool {
    match input.occasion {
        Occasion::OwnAttach => input.me.is_primary(),
        Occasion::PeerAttach | Occasion::PeerServes => input.peer.is_primary(),
        Occasion::Connect => false,
    }
}

/// Step 2: an Inconsistent disk never wins against a better one.
fn by_disk(input: &Input, verdict: Verdict) -> Option<Decision> {
    let full = matches!(
        verdict,
        Verdict::SplitBrain(Ancestor::InHistory | Ancestor::Unknown)
            | Verdict::Source { full: true }
            | Verdict::Target { full: true }
    );
    let (mine, peers) = (input.me.disk, input.peer.disk);
    match (mine == DiskState::Inconsistent, peers == DiskState::Inconsistent) {
        (true, false) if peers > DiskState::Inconsistent => Some(Decision::Target { full }),
        (false, true) if mine > DiskState::Inconsistent => Some(Decision::Source { full }),
        _ => None,
    }
}

fn same_direction(verdict: Verdict, decision: Decision) -> bool {
    matches!(
        (verdict, decision),
        (Verdict::Source { .. }, Decision::Source { .. }) | (Verdict::Target { .. }, Decision::Target { .. })
    )
}

/// Steps 3 to 6.
fn split_brain(input: &Input, ancestor: Ancestor, out: &mut Outcome) -> Result<Decision, Refusal> {
    out.handlers.push(Handler::InitialSplitBrain);
    let mut loser = None;
    let mut stuck = false;
    // A Primary that attaches had its writes on the peer alone so far: no policy may choose its old disk.
    if a_primary_attaches(input) {
        out.handlers.push(Handler::SplitBrain);
        return Err(Refusal::Final);
    }
    if ancestor == Ancestor::InBitmaps || (input.always_asbp && ancestor == Ancestor::InHistory) {
        let (mut resolution, reason) = split_brain::resolve(&policy_input(input));
        out.reason = reason;
        if outdated_would_win(input, resolution.loser()) {
            // The loser is not demoted for it either.
            (resolution, out.reason) = (Resolution::Undecided, Reason::OutdatedWouldWin);
        }
        loser = resolution.loser();
        out.demote = resolution == Resolution::Demoted;
        stuck = resolution == Resolution::PrimaryLost;
        if stuck {
            out.handlers.push(Handler::PriLostAfterSb);
        }
    } else if input.always_asbp {
        out.reason = Reason::EmptyHistoryNotAutomatic;
    }
    // The peer knows nothing of a failed demotion here: to go on with discard-my-data could make both nodes source.
    if loser.is_none() && !stuck && input.me.discard_my_data != input.peer.discard_my_data {
        out.reason = Reason::DiscardMyData;
        loser = Some(if input.me.discard_my_data { Loser::Me } else { Loser::Peer });
    }
    let full = ancestor != Ancestor::InBitmaps;
    match loser {
        Some(Loser::Me) => Ok(Decision::Target { full }),
        Some(Loser::Peer) => Ok(Decision::Source { full }),
        None => {
            out.handlers.push(Handler::SplitBrain);
            Err(Refusal::Final)
        }
    }
}

fn policy_input(input: &Input) -> split_brain::Input {
    split_brain::Input {
        policies: input.policies,
        me: input.me,
        peer: input.peer,
        resolve_conflicts: input.resolve_conflicts,
        demotable: input.demotable,
    }
}

/// Steps 7 to 9: may the direction be taken?
fn checked(input: &Input, decision: Decision, out: &mut Outcome) -> Result<Decision, Refusal> {
    let worthless = input.me.disk <= DiskState::Inconsistent;
    if matches!(decision, Decision::Source { .. }) && worthless {
        out.reason = Reason::SourceIsInconsistent;
        return Err(Refusal::Final);
    }
    if input.occasion == Occasion::OwnAttach && input.writes_elsewhere && !matches!(decision, Decision::Target { .. }) {
        // The peer's disk may come to have them, and they be complete then.
        out.reason = Reason::LacksOwnWrites;
        return Err(Refusal::Final);
    }
    // A Primary that attaches works on its peer's disk already: it has no good data of its own to lose.
    let primary = input.me.is_primary() && !out.demote && input.occasion != Occasion::OwnAttach;
    if matches!(decision, Decision::Target { .. }) && primary && input.me.disk >= DiskState::Consistent {
        rr_conflict(input.rr_conflict, out)?;
    }
    if input.dry_run {
        out.reason = Reason::DryRun;
        return Err(Refusal::Final);
    }
    Ok(decision)
}

fn rr_conflict(policy: RrConflict, out: &mut Outcome) -> Result<(), Refusal> {
    out.reason = Reason::PrimaryWouldBeTarget;
    match policy {
        RrConflict::Violently => {
            out.reason = Reason::PrimaryOverwritten;
            Ok(())
        }
        RrConflict::RetryConnect => Err(Refusal::Retry),
        RrConflict::CallPriLost => {
            out.handlers.push(Handler::PriLost);
            Err(Refusal::Final)
        }
        RrConflict::Disconnect | RrConflict::AutoDiscard => Err(Refusal::Final),
    }
}

/// A peer's disk that is Negotiating counts as what its UUID flags say (spec 5.6).
#[must_use]
pub fn peer_disk_counts_as(disk: DiskState, uuid_flag_inconsistent: bool) -> DiskState {
    match (disk, uuid_flag_inconsistent) {
        (DiskState::Negotiating, true) => DiskState::Inconsistent,
        (DiskState::Negotiating, false) => DiskState::Consistent,
        _ => disk,
    }
}

/// What [`occasion`] looks at when a STATE packet arrives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StateReceived {
    /// The peer's UUIDs are known.
    pub peer_uuids_known: bool,
    /// What goes on with the peer now.
    pub replication: Replication,
    /// The same in the packet, as the peer sees it.
    pub peer_replication: Replication,
    /// Own disk.
    pub disk: DiskState,
    /// The peer's disk in the packet.
    pub peer_disk: DiskState,
    /// The "consider resync" mark: the peer was forced to Primary.
    pub consider_resync: bool,
    /// The generations were compared since the peer has its disk, and its data was not refused.
    pub compared: bool,
}

/// Must the generations be compared now, and as what (spec 5.6)?
#[must_use]
pub fn occasion(state: &StateReceived) -> Option<Occasion> {
    let both_disks = state.disk >= DiskState::Negotiating && state.peer_disk >= DiskState::Negotiating;
    if !both_disks || !state.peer_uuids_known {
        return None;
    }
    let rest = state.replication == Replication::Established;
    let peer_starts =
        state.peer_replication >= Replication::StartingSyncS && state.peer_replication <= Replication::WFBitMapT;
    // What was agreed is not compared anew while its bitmaps are on their way: they are sent once.
    let agreed = matches!(
        state.replication,
        Replication::WFBitMapS
            | Replication::WFBitMapT
            | Replication::WFSyncUUID
            | Replication::SyncSource
            | Replication::SyncTarget
            | Replication::PausedSyncS
            | Replication::PausedSyncT
    );
    if state.replication < Replication::Established || (state.consider_resync && !agreed) {
        Some(Occasion::Connect)
    } else if rest && state.disk == DiskState::Negotiating {
        Some(Occasion::OwnAttach)
    } else if rest && state.peer_disk == DiskState::Negotiating {
        Some(Occasion::PeerAttach)
    } else if rest && !state.compared {
        // No disk is trusted that was not compared, or found to be of other data.
        Some(Occasion::PeerServes)
    } else if rest && peer_starts {
        Some(Occasion::Connect)
    } else {
        None
    }
}

/// Is this a rebooted peer that must not be resent old requests? Then: create the pending generation, and end the
/// connection with ProtocolError (spec 5.6, rule 4). A peer whose disk counts as UpToDate may have rebooted as well:
/// `unconfirmed` says that it had acknowledged writes for which no barrier acknowledgement came.
#[must_use]
pub fn rebooted_while_suspended(
    decision: Decision,
    occasion: Occasion,
    peer_disk: DiskState,
    unconfirmed: bool,
    io_suspended: bool,
    generation_pending: bool,
) -> bool {
    occasion == Occasion::Connect
        && decision == Decision::NoSync
        && (peer_disk == DiskState::Consistent || unconfirmed)
        && io_suspended
        && generation_pending
}

/// What [`on_uuids`] looks at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UuidsReceived {
    /// This node's role.
    pub role: Role,
    /// Own disk.
    pub disk: DiskState,
    /// What goes on with the peer.
    pub replication: Replication,
    /// The peer is attaching a disk.
    pub peer_attaching: bool,
    /// The agreed protocol.
    pub protocol: u32,
    /// Own generation on disk (0 if diskless).
    pub own_current: Generation,
    /// The generation that this node's users have seen (spec 7.9); 0 = none.
    pub exposed: Generation,
    /// The peer's generation.
    pub peer_current: Generation,
    /// Users of this node had writes completed that the peer may not have.
    pub peer_outrun: bool,
    /// The packet has the flag SKIP_INITIAL_SYNC.
    pub skip_initial_sync: bool,
}

/// What follows from a UUIDs packet (spec 5.4).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UuidsVerdict {
    /// Remember the peer's set; `expose`: the generation that users of this node, which is without a disk, or behind
    /// the peer, see from now on.
    Store {
        /// The new exposed generation.
        expose: Option<Generation>,
    },
    /// Remember the set, clear the bitmap, current := the peer's, bitmap UUID := 0, both disks UpToDate.
    SkipInitialSync,
    /// Disconnecting: a diskless Primary accepts only the generation it has exposed, with all of its writes.
    Disconnect,
}

/// Judges a UUIDs packet (spec 5.4, 8.4 part).
#[must_use]
pub fn on_uuids(input: &UuidsReceived) -> (UuidsVerdict, Reason) {
    let diskless = input.disk < DiskState::Inconsistent;
    let connected = input.replication >= Replication::Established;
    let differs = !input.exposed.is_none() && !input.exposed.same(input.peer_current);
    // Also one whose disk is older than what they have seen: a resync was interrupted, or is about to begin.
    let primary = input.role == Role::Primary;
    let protects = primary && input.disk <= DiskState::Outdated;
    if protects && (!connected || input.peer_attaching) && (differs || input.peer_outrun) {
        let reason = if differs { Reason::ExposedDataDiffers } else { Reason::PeerLacksOwnWrites };
        return (UuidsVerdict::Disconnect, reason);
    }
    let fresh = input.own_current.same(Generation::JUST_CREATED);
    if !diskless && connected && input.protocol >= 90 && fresh && input.skip_initial_sync {
        return (UuidsVerdict::SkipInitialSync, Reason::SkipInitialSync);
    }
    let behind = input.replication > Replication::Established && input.disk <= DiskState::Outdated;
    let elsewhere = (diskless && (connected || primary)) || behind;
    let expose = elsewhere && !input.peer_current.same(Generation::JUST_CREATED);
    (UuidsVerdict::Store { expose: expose.then_some(input.peer_current) }, Reason::UuidsStored)
}
