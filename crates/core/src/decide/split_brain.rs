//! Who loses its changes after a split brain (`docs/spec/connection-and-state.md` 6.2 to 6.6).

use super::{DiskState, Reason, Role};
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

/// One node, as far as it matters which way data goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Side {
    /// Its role.
    pub role: Role,
    /// Its disk. With 8.4's dialect, this node's while Negotiating: the state stored at attach; the peer's: see
    /// [`peer_disk_counts_as`](super::handshake84::peer_disk_counts_as).
    pub disk: DiskState,
    /// It was told to discard its data.
    pub discard_my_data: bool,
    /// Bit 0 of its bitmap UUID: it was Primary already when the generations parted.
    pub was_primary: bool,
    /// Bits set in its bitmap.
    pub changes: u64,
}

impl Side {
    /// Is it Primary?
    #[must_use]
    pub fn is_primary(&self) -> bool {
        self.role == Role::Primary
    }
}

/// What the policies look at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Input {
    /// The configured policies.
    pub policies: Policies,
    /// This node.
    pub me: Side,
    /// The peer.
    pub peer: Side,
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

/// What the policies come to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resolution {
    /// They do not decide.
    Undecided,
    /// This node would lose, but cannot be demoted: the handler `pri-lost-after-sb` is called.
    PrimaryLost,
    /// This one loses.
    Loses(Loser),
    /// This node loses. It is demoted before it becomes target.
    Demoted,
}

impl Resolution {
    /// Who loses.
    #[must_use]
    pub const fn loser(self) -> Option<Loser> {
        match self {
            Self::Undecided | Self::PrimaryLost => None,
            Self::Loses(loser) => Some(loser),
            Self::Demoted => Some(Loser::Me),
        }
    }
}

/// Applies the after-sb policy for the present number of Primaries, and says why it is so.
#[must_use]
pub fn resolve(input: &Input) -> (Resolution, Reason) {
    let (me, peer) = (input.me.is_primary(), input.peer.is_primary());
    let primaries = usize::from(me) + usize::from(peer);
    let Policies { none, one, two } = input.policies;
    hit("after-sb", || format!("{primaries}pri {}", [none, one, two][primaries].name()));
    match (me, peer) {
        (false, false) => plain(no_primary(input)),
        (true, true) => two_primaries(input),
        _ => one_primary(input),
    }
}

/// Who loses and why; no loser = undecided.
type Choice = (Option<Loser>, Reason);

fn plain((loser, reason): Choice) -> (Resolution, Reason) {
    (loser.map_or(Resolution::Undecided, Resolution::Loses), reason)
}

/// after-sb-0pri (spec 6.3).
fn no_primary(input: &Input) -> Choice {
    match input.policies.none {
        AfterSplitBrain::Disconnect => (None, Reason::NoSplitBrainPolicy),
        AfterSplitBrain::DiscardYoungerPrimary => match (input.me.was_primary, input.peer.was_primary) {
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
    match (input.me.was_primary, input.peer.was_primary) {
        (false, true) => (Some(Loser::Peer), Reason::OlderPrimaryLost),
        (true, false) => (Some(Loser::Me), Reason::OlderPrimaryLost),
        _ => zero_changes(input).unwrap_or_else(|| least_changes(input)),
    }
}

fn zero_changes(input: &Input) -> Option<Choice> {
    match (input.me.changes, input.peer.changes) {
        (0, 0) => Some(tie(input)),
        (_, 0) => Some((Some(Loser::Peer), Reason::NoChangesToLose)),
        (0, _) => Some((Some(Loser::Me), Reason::NoChangesToLose)),
        _ => None,
    }
}

fn least_changes(input: &Input) -> Choice {
    match input.me.changes.cmp(&input.peer.changes) {
        std::cmp::Ordering::Less => (Some(Loser::Me), Reason::FewerChangesLost),
        std::cmp::Ordering::Greater => (Some(Loser::Peer), Reason::FewerChangesLost),
        std::cmp::Ordering::Equal => tie(input),
    }
}

fn tie(input: &Input) -> Choice {
    (Some(if input.resolve_conflicts { Loser::Me } else { Loser::Peer }), Reason::TieBroken)
}

/// after-sb-1pri (spec 6.4).
fn one_primary(input: &Input) -> (Resolution, Reason) {
    let primary_loses = |loser| (loser == Loser::Me) == input.me.is_primary();
    match input.policies.one {
        AfterSplitBrain::Disconnect => plain((None, Reason::NoSplitBrainPolicy)),
        AfterSplitBrain::Consensus => plain(match no_primary(input) {
            (Some(loser), _) if primary_loses(loser) => (None, Reason::NoConsensus),
            choice => choice,
        }),
        AfterSplitBrain::ViolentlyAs0pri => plain(no_primary(input)),
        AfterSplitBrain::DiscardSecondary => {
            plain((Some(if input.me.is_primary() { Loser::Peer } else { Loser::Me }), Reason::SecondaryLost))
        }
        AfterSplitBrain::CallPriLost => demote_loser(input),
        _ => plain((None, Reason::PolicyNotValidHere)),
    }
}

/// after-sb-2pri (spec 6.5).
fn two_primaries(input: &Input) -> (Resolution, Reason) {
    match input.policies.two {
        AfterSplitBrain::Disconnect => plain((None, Reason::NoSplitBrainPolicy)),
        AfterSplitBrain::ViolentlyAs0pri => plain(no_primary(input)),
        AfterSplitBrain::CallPriLost => demote_loser(input),
        _ => plain((None, Reason::PolicyNotValidHere)),
    }
}

/// call-pri-lost-after-sb: the zero-Primaries choice, but a Primary only loses if it can be demoted.
fn demote_loser(input: &Input) -> (Resolution, Reason) {
    let choice = no_primary(input);
    match choice.0 {
        Some(Loser::Me) if input.me.is_primary() && input.demotable => (Resolution::Demoted, choice.1),
        Some(Loser::Me) if input.me.is_primary() => (Resolution::PrimaryLost, Reason::CannotDemote),
        _ => plain(choice),
    }
}
