//! Recovery needs no help: whatever the patient operator does beyond connecting, attaching and thawing has a reason
//! that was recorded when the nodes gave up, or that an operator made by hand. Who comes to nothing without help fails
//! the run.

use crate::cluster::Cluster;
use urbd_core::Command;
use urbd_core::decide::Reason;
use wire::Role;

/// The nodes have parted, or one refuses the other's data, and say so: a person chooses whose are lost.
const A_PERSON_CHOOSES: [&str; 21] = [
    "peer-state-refused",
    "no-split-brain-policy",
    "policy-not-valid-here",
    "both-changed",
    "no-consensus",
    "cannot-demote",
    "outdated-would-win",
    "empty-history-not-automatic",
    "bitmap-both",
    "history-both",
    "bitmap-in-history",
    "empty-history-both",
    "circular-generations",
    "crashed-primary-beside-primary",
    "primary-is-outdated",
    "primary-would-be-target",
    "exposed-data-differs",
    "peer-lacks-own-writes",
    "lacks-own-writes",
    "source-is-inconsistent",
    "both-discard-my-data",
];

/// Nothing but new metadata, or a larger disk, helps. What was missed of a resync's beginning or end is made good from
/// protocol 91 on: before, the nodes part with that reason.
const NEW_METADATA: [&str; 7] = [
    "unrelated-data",
    "peer-disk-too-small",
    "requires-newer-peer",
    "sync-source-missed-start",
    "sync-target-missed-start",
    "sync-source-peer-missed-finish",
    "sync-target-missed-finish",
];

/// What is known of why the nodes do not come together by themselves.
#[derive(Clone, Debug)]
pub(crate) struct Reasons {
    /// `[node][peer]`: why it gave up its connection last.
    refused: Vec<Vec<Option<&'static str>>>,
    /// An operator has declared a copy old, or good, or has given one up.
    by_hand: bool,
}

/// What the operator does beyond connecting, attaching and thawing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Help {
    /// One side discards its data.
    Discard,
    /// One side gets new metadata.
    NewMetadata,
    /// A copy that nobody knows to be good is declared good.
    DeclareGood,
    /// One of two Primaries with differences is demoted.
    DemoteOne,
    /// The nodes connect anew.
    Renew,
    /// A Primary without a disk whose users have seen what no other node has is demoted: then its disk is taken into
    /// use again.
    DemoteDiskless,
    /// One of two Primaries that are not to be, and do not connect, is demoted.
    PartPrimaries,
    /// A node whose disk the peer does not accept is disconnected.
    Leave,
}

/// Do nodes go on trying after a refusal for this reason?
pub(crate) fn may_pass(name: &str) -> bool {
    Reason::ALL.iter().any(|reason| reason.may_pass() && reason.name() == name)
}

impl Reasons {
    pub(crate) fn new(nodes: usize) -> Reasons {
        Reasons { refused: vec![vec![None; nodes]; nodes], by_hand: false }
    }

    /// Has one of the two refused the other for what a node has at present?
    pub(crate) fn tries_in_vain(&self, a: usize, b: usize) -> bool {
        [(a, b), (b, a)].iter().any(|(n, peer)| self.refused[*n][*peer].is_some_and(may_pass))
    }
}

impl Cluster {
    /// A node has given up its connection to a peer, or the disk that it attaches, for this reason; or there are no
    /// data.
    pub(crate) fn note_refusal(&mut self, n: usize, peer: Option<usize>, reason: &'static str) {
        for of in self.peers(n).filter(|of| peer.is_none_or(|peer| peer == *of)) {
            self.reasons.refused[n][of] = Some(reason);
        }
    }

    /// An operator's command: does it make copies count otherwise than they would?
    pub(crate) fn note_by_hand(&mut self, command: &Command) {
        let forced = matches!(command, Command::Primary { force: true } | Command::Detach { force: true, .. });
        let equal = matches!(command, Command::NewCurrentUuid { clear_bitmap: true, .. });
        self.reasons.by_hand |= forced
            || equal
            || matches!(command, Command::Outdate { .. } | Command::Replace(..) | Command::ForceResync(_));
    }

    /// From here on only what is refused now is a reason: what the plan did before may have been resolved.
    pub(crate) fn forget_refusals(&mut self) {
        self.reasons.refused.iter_mut().for_each(|of| of.fill(None));
    }

    /// Who says that it has to give way, and is Primary. With several volumes both may have said so, each of another
    /// one (`docs/spec/connection-and-state.md` 6.3 decides for each by itself), and one may have done it.
    pub(crate) fn has_to_give_way(&self) -> Option<usize> {
        let gives_way = |reason: &Option<_>| matches!(reason, Some("primary-would-be-target" | "cannot-demote"));
        let says = |n: &usize| self.reasons.refused[*n].iter().any(gives_way);
        let is_primary =
            |n: &usize| self.nodes[*n].volumes.iter().filter_map(|v| v.word).any(|w| w.role == Role::Primary);
        (0..self.nodes.len()).filter(says).find(is_primary)
    }

    /// Does this node say that it has to give way to that peer, and is Primary?
    pub(crate) fn gives_way_to(&self, n: usize, peer: usize) -> bool {
        let is_primary = self.nodes[n].volumes.iter().filter_map(|v| v.word).any(|w| w.role == Role::Primary);
        is_primary && matches!(self.reasons.refused[n][peer], Some("primary-would-be-target" | "cannot-demote"))
    }

    /// Why these two do not connect: is there a reason to choose whose data are lost, and one for new metadata?
    pub(crate) fn reasons_between(&self, a: usize, b: usize) -> (bool, bool) {
        let any = |of: &[&str]| {
            [(a, b), (b, a)]
                .iter()
                .any(|(n, peer)| self.reasons.refused[*n][*peer].is_some_and(|reason| of.contains(&reason)))
        };
        (any(&A_PERSON_CHOOSES), any(&NEW_METADATA))
    }

    /// Has the operator a recorded reason to help in this way?
    pub(crate) fn may_help(&self, help: Help) -> bool {
        let any = |of: &[&str]| self.reasons.refused.iter().flatten().flatten().any(|reason| of.contains(reason));
        // Such a disk stays as it is, and nothing is copied to it, until the nodes connect anew.
        let passed_on = self.reached.contains_key("error-passed-on");
        match help {
            Help::Discard => any(&A_PERSON_CHOOSES) || any(&NEW_METADATA),
            Help::NewMetadata => any(&NEW_METADATA),
            Help::DeclareGood => self.reasons.by_hand || passed_on || any(&["just-created-both"]),
            Help::Renew => passed_on || self.only_marks_are_left(),
            Help::Leave => any(&A_PERSON_CHOOSES) || self.reasons.by_hand,
            Help::DemoteDiskless => any(&["exposed-data-differs", "peer-lacks-own-writes", "attach-failed"]),
            Help::PartPrimaries => any(&["two-primaries"]),
            Help::DemoteOne => self.setup.extras.two_primaries,
        }
    }
}
