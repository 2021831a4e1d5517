//! Which way data goes after the comparison of 9's dialect, by what people want: after a split brain, and of a node
//! that was told to discard its data (`docs/spec/connection-and-state.md` 5.8.1, steps 7 to 10).

use super::split_brain::{Loser, Policies, RrConflict, Side};
use super::uuid9::{Direction, Strategy};
use super::{DiskState, Reason, Role, split_brain};
use wire::AfterSplitBrain;

/// What else is looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Input {
    /// What the comparison came to.
    pub found: Strategy,
    /// The rule that led to it.
    pub rule: Reason,
    /// The agreed protocol.
    pub protocol: u32,
    /// This node.
    pub me: Side,
    /// The peer.
    pub peer: Side,
    /// after-sb-*.
    pub policies: Policies,
    /// always-asbp.
    pub always_asbp: bool,
    /// This node has the RESOLVE-CONFLICTS role.
    pub resolve_conflicts: bool,
    /// Whether this node and the peer have quorum, where that is asked for.
    pub quorate: Option<(bool, bool)>,
}

/// The strategy after that, and why.
#[must_use]
pub fn wanted(input: &Input) -> (Strategy, Reason) {
    match input.found {
        found if worthless_source(input, found) => (against(found), Reason::DiskStateDecides),
        Strategy::SplitBrainAutoRecover | Strategy::SplitBrainDisconnect => after_split_brain(input),
        Strategy::NoSync => (input.found, input.rule),
        found if input.protocol >= 121 => reverted(input, found),
        found => (found, input.rule),
    }
}

/// Would an Inconsistent disk, however new its generation, overwrite the good one of a Primary? That was promoted by
/// force, as no copy was good, and there may have been no slot by which to begin a generation.
fn worthless_source(input: &Input, found: Strategy) -> bool {
    let (source, target) = match found.direction() {
        Some(Direction::Source) => (input.me, input.peer),
        Some(Direction::Target) => (input.peer, input.me),
        None => return false,
    };
    source.disk == DiskState::Inconsistent && target.disk == DiskState::UpToDate && target.is_primary()
}

/// All of it is copied the other way.
fn against(found: Strategy) -> Strategy {
    match found.direction() {
        Some(Direction::Source) => Strategy::TargetSetBitmap,
        Some(Direction::Target) => Strategy::SourceSetBitmap,
        None => found,
    }
}

/// What is to become of a Primary with good data that would be the target (5.8.1, step 11).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Conflict {
    /// The nodes are not connected until a person decides.
    Parted,
    /// The nodes try again each second.
    TriesAgain,
    /// It takes over the peer's data.
    Overwritten,
    /// The peer takes over this node's data.
    IsSource,
}

/// What `rr-conflict` says of a Primary that would be the target by this rule and strategy (5.8.1, step 11).
#[must_use]
pub fn conflict(policy: RrConflict, rule: Reason, strategy: Strategy) -> Conflict {
    match policy {
        // The handler `pri-lost`, if it is called, comes first.
        RrConflict::Disconnect | RrConflict::CallPriLost => Conflict::Parted,
        RrConflict::RetryConnect => Conflict::TriesAgain,
        RrConflict::AutoDiscard if (rule, strategy) == (Reason::CrashedPrimary, Strategy::TargetUseBitmap) => {
            Conflict::IsSource
        }
        RrConflict::Violently | RrConflict::AutoDiscard => Conflict::Overwritten,
    }
}

/// Does the source, which has crashed as Primary, give in to a Primary, as that does not give in to it (5.8.1, step
/// 12)? `role`, `disk`: the peer's.
#[must_use]
pub fn gives_in(policy: RrConflict, rule: Reason, strategy: Strategy, role: Role, disk: DiskState) -> bool {
    let by_crash = (rule, strategy) == (Reason::CrashedPrimary, Strategy::SourceUseBitmap);
    policy == RrConflict::AutoDiscard && by_crash && role == Role::Primary && disk >= DiskState::Consistent
}

fn after_split_brain(input: &Input) -> (Strategy, Reason) {
    let by_bitmap = input.found == Strategy::SplitBrainAutoRecover;
    let towards = |loser| match (loser, by_bitmap) {
        (Loser::Me, true) => Strategy::TargetUseBitmap,
        (Loser::Me, false) => Strategy::TargetSetBitmap,
        (Loser::Peer, true) => Strategy::SourceUseBitmap,
        (Loser::Peer, false) => Strategy::SourceSetBitmap,
    };
    let mut undecided = input.rule;
    let automatic = by_bitmap || input.always_asbp;
    match input.quorate.filter(|_| automatic && input.protocol >= 113) {
        Some((true, false)) => return (towards(Loser::Peer), Reason::QuorumWins),
        Some((false, true)) => return (towards(Loser::Me), Reason::QuorumWins),
        _ => {}
    }
    if automatic {
        // A Primary that would have to be demoted first is left to people.
        let (resolution, reason) = split_brain::resolve(&split_brain::Input {
            policies: input.policies,
            me: input.me,
            peer: input.peer,
            resolve_conflicts: input.resolve_conflicts,
            demotable: false,
        });
        match resolution.loser() {
            Some(loser) if worse_disk_wins(input, loser) => undecided = Reason::OutdatedWouldWin,
            Some(Loser::Peer) if peer_cannot_demote(input) => undecided = Reason::CannotDemote,
            Some(loser) => return (towards(loser), reason),
            None => {}
        }
    }
    match (input.me.discard_my_data, input.peer.discard_my_data) {
        (true, false) => (towards(Loser::Me), Reason::DiscardMyData),
        (false, true) => (towards(Loser::Peer), Reason::DiscardMyData),
        _ => (Strategy::SplitBrainDisconnect, undecided),
    }
}

/// A Primary that is to be demoted first leaves it to people (`call-pri-lost-after-sb`), and the data that one of them
/// wants discarded is: both nodes must come to that.
fn peer_cannot_demote(input: &Input) -> bool {
    let Policies { one, two, .. } = input.policies;
    let policy = if input.me.is_primary() { two } else { one };
    let told = input.me.discard_my_data != input.peer.discard_my_data;
    input.peer.is_primary() && policy == AfterSplitBrain::CallPriLost && told
}

/// A policy knows who changed more, or was Primary first, not what a disk is worth. One that is known to lack something
/// does not overwrite a better one, unless a person says so; a kernel's does.
fn worse_disk_wins(input: &Input, loser: Loser) -> bool {
    let (winner, loser) = match loser {
        Loser::Me => (input.peer.disk, input.me.disk),
        Loser::Peer => (input.me.disk, input.peer.disk),
    };
    winner <= DiskState::Outdated && winner < loser
}

/// Only one side was to discard its data, and it is not the one that would lose it.
fn reverted(input: &Input, found: Strategy) -> (Strategy, Reason) {
    let (me, peer) = (input.me, input.peer);
    let against = match found.direction() {
        Some(Direction::Source) if me.discard_my_data && !peer.discard_my_data => peer.disk,
        Some(Direction::Target) if peer.discard_my_data && !me.discard_my_data => me.disk,
        _ => return (found, input.rule),
    };
    match found.reverse().filter(|_| against > DiskState::Inconsistent) {
        Some(other) => (other, Reason::DiscardMyData),
        None => (found, input.rule),
    }
}
