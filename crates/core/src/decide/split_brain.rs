//! Who loses its changes after a split brain (`docs/spec/connection-and-state.md` 6.2 to 6.6).

use super::Reason;
use crate::rows::hit;
use wire::AfterSplitBrain;

/// What happens if a Primary would have to take over the peer's data (`rr-conflict`, spec 6.6).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[allow(missing_docs, reason = "the variants are the option words of the manual")]
pub enum RrConflict {
    #[default]
    Disconnect,
    CallPriLost,
    Violently,
    RetryConnect,
    AutoDiscard,
}

/// The three after-sb policies, by number of Primaries.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Policies {
    /// after-sb-0pri.
    pub none: AfterSplitBrain,
    /// after-sb-1pri.
    pub one: AfterSplitBrain,
    /// after-sb-2pri.
    pub two: AfterSplitBrain,
}

/// What the policies look at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Input {
    /// The configured policies.
    pub policies: Policies,
    /// This node is Primary.
    pub me_primary: bool,
    /// The peer is Primary.
    pub peer_primary: bool,
    /// Bit 0 of this node's bitmap UUID: it was Primary already when the generations parted.
    pub me_was_primary: bool,
    /// Bit 0 of the peer's bitmap UUID.
    pub peer_was_primary: bool,
    /// Bits set in this node's bitmap.
    pub me_changes: u64,
    /// Bits set in the peer's bitmap.
    pub peer_changes: u64,
    /// This node has the RESOLVE-CONFLICTS role.
    pub resolve_conflicts: bool,
    /// A demotion of this node, without waiting, would succeed now.
    pub demotable: bool,
}

/// Who loses its changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Loser {
    /// This node: it becomes sync target.
    Me,
    /// The peer: this node becomes sync source.
    Peer,
}

/// The outcome of [`resolve`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Resolution {
    /// `None`: the policies do not decide.
    pub loser: Option<Loser>,
    /// Why.
    pub reason: Reason,
    /// This node must be demoted before it becomes target.
    pub demote: bool,
    /// Call the handler `pri-lost-after-sb`.
    pub call_pri_lost: bool,
}

/// Applies the after-sb policy for the present number of Primaries.
#[must_use]
pub fn resolve(input: &Input) -> Resolution {
    let primaries = usize::from(input.me_primary) + usize::from(input.peer_primary);
    let Policies { none, one, two } = input.policies;
    hit("after-sb", || format!("{primaries}pri {}", [none, one, two][primaries].name()));
    match (input.me_primary, input.peer_primary) {
        (false, false) => plain(no_primary(input)),
        (true, true) => two_primaries(input),
        _ => one_primary(input),
    }
}

/// Who loses and why; no loser = undecided.
type Choice = (Option<Loser>, Reason);

fn plain((loser, reason): Choice) -> Resolution {
    Resolution { loser, reason, demote: false, call_pri_lost: false }
}

/// after-sb-0pri (spec 6.3).
fn no_primary(input: &Input) -> Choice {
    match input.policies.none {
        AfterSplitBrain::Disconnect => (None, Reason::NoSplitBrainPolicy),
        AfterSplitBrain::DiscardYoungerPrimary => match (input.me_was_primary, input.peer_was_primary) {
            (false, true) => (Some(Loser::Me), Reason::YoungerPrimaryLost),
            (true, false) => (Some(Loser::Peer), Reason::YoungerPrimaryLost),
            _ => older_primary(input),
        },
        AfterSplitBrain::DiscardOlderPrimary => older_primary(input),
        AfterSplitBrain::DiscardZeroChanges => zero_changes(input).unwrap_or((None, Reason::BothChanged)),
        AfterSplitBrain::DiscardLeastChanges => least_changes(input),
        AfterSplitBrain::DiscardLocal => (Some(Loser::Me), Reason::LocalLost),
        AfterSplitBrain::DiscardRemote => (Some(Loser::Peer), Reason::RemoteLost),
        _ => (None, Reason::PolicyNotValidHere),
    }
}

fn older_primary(input: &Input) -> Choice {
    match (input.me_was_primary, input.peer_was_primary) {
        (false, true) => (Some(Loser::Peer), Reason::OlderPrimaryLost),
        (true, false) => (Some(Loser::Me), Reason::OlderPrimaryLost),
        _ => zero_changes(input).unwrap_or_else(|| least_changes(input)),
    }
}

fn zero_changes(input: &Input) -> Option<Choice> {
    match (input.me_changes, input.peer_changes) {
        (0, 0) => Some(tie(input)),
        (_, 0) => Some((Some(Loser::Peer), Reason::NoChangesToLose)),
        (0, _) => Some((Some(Loser::Me), Reason::NoChangesToLose)),
        _ => None,
    }
}

fn least_changes(input: &Input) -> Choice {
    match input.me_changes.cmp(&input.peer_changes) {
        std::cmp::Ordering::Less => (Some(Loser::Me), Reason::FewerChangesLost),
        std::cmp::Ordering::Greater => (Some(Loser::Peer), Reason::FewerChangesLost),
        std::cmp::Ordering::Equal => tie(input),
    }
}

fn tie(input: &Input) -> Choice {
    (Some(if input.resolve_conflicts { Loser::Me } else { Loser::Peer }), Reason::TieBroken)
}

/// after-sb-1pri (spec 6.4).
fn one_primary(input: &Input) -> Resolution {
    let primary_loses = |loser| (loser == Loser::Me) == input.me_primary;
    match input.policies.one {
        AfterSplitBrain::Disconnect => plain((None, Reason::NoSplitBrainPolicy)),
        AfterSplitBrain::Consensus => plain(match no_primary(input) {
            (Some(loser), _) if primary_loses(loser) => (None, Reason::NoConsensus),
            choice => choice,
        }),
        AfterSplitBrain::ViolentlyAs0pri => plain(no_primary(input)),
        AfterSplitBrain::DiscardSecondary => {
            plain((Some(if input.me_primary { Loser::Peer } else { Loser::Me }), Reason::SecondaryLost))
        }
        AfterSplitBrain::CallPriLost => demote_loser(input),
        _ => plain((None, Reason::PolicyNotValidHere)),
    }
}

/// after-sb-2pri (spec 6.5).
fn two_primaries(input: &Input) -> Resolution {
    match input.policies.two {
        AfterSplitBrain::Disconnect => plain((None, Reason::NoSplitBrainPolicy)),
        AfterSplitBrain::ViolentlyAs0pri => plain(no_primary(input)),
        AfterSplitBrain::CallPriLost => demote_loser(input),
        _ => plain((None, Reason::PolicyNotValidHere)),
    }
}

/// call-pri-lost-after-sb: the zero-Primaries choice, but a Primary only loses if it can be demoted.
fn demote_loser(input: &Input) -> Resolution {
    let choice = no_primary(input);
    match choice.0 {
        Some(Loser::Me) if input.me_primary && input.demotable => Resolution { demote: true, ..plain(choice) },
        Some(Loser::Me) if input.me_primary => {
            Resolution { call_pri_lost: true, ..plain((None, Reason::CannotDemote)) }
        }
        _ => plain(choice),
    }
}
