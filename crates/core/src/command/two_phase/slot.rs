//! A two-phase commit that this node takes part in: what it is about, and how far it is.

use crate::command::caller::Caller;
use crate::command::two_phase::new_size::NewSize;
use crate::decide::change::Change;
use crate::pings::PingedPeers;
use units::{Instant, NodeId, NodeMask, VolumeNr};
use wire::{ConnState, Packet, Prepare, StateChange, WireMask};

/// A change in two phases.
#[derive(Debug)]
pub(crate) struct TwoPhase {
    pub(super) head: wire::Transaction,
    /// What the header says: the volume, if it is about one.
    pub(super) volume: VolumeNr,
    pub(super) matter: Matter,
    pub(super) part: Part,
    /// The peer that it is to connect this node with.
    pub(super) connects: Option<NodeId>,
    /// Nodes that were asked by this one and have not answered.
    pub(super) waits_for: NodeMask,
    /// The worst answer of those.
    pub(super) answer: Answer,
    pub(super) masks: Masks,
    pub(crate) until: Instant,
}

/// What it is about.
#[derive(Debug)]
pub(super) enum Matter {
    /// A state.
    State {
        /// As it was asked, in the initiator's view.
        asked: StateChange,
        /// The same in this node's view.
        change: Change,
    },
    /// The size of a volume.
    Size(NewSize),
}

impl Matter {
    /// What is asked for of the state, in the initiator's view.
    pub(super) fn asked(&self) -> StateChange {
        match self {
            Matter::State { asked, .. } => *asked,
            Matter::Size(_) => StateChange::default(),
        }
    }
}

/// What a node answers.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Answer {
    Yes,
    No,
    Retry,
}

#[derive(Debug)]
pub(super) enum Part {
    /// This node began it.
    Initiator { origin: Origin, stage: Stage },
    /// These nodes have asked this one, it has asked those, and this is what it has answered.
    Participant { parents: NodeMask, children: NodeMask, answered: Option<Answer> },
}

/// What this node has begun it for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Origin {
    Connect,
    Command(Caller),
    /// A disk is to come into use.
    Attach(VolumeNr),
    /// A device is to have another size; the command that wants it.
    Resize(Caller),
    /// Who is Primary, by now that this node has lost one?
    Settle,
}

#[derive(Debug)]
pub(super) enum Stage {
    /// Before a promotion: who is there? These have not said so.
    Pinging(PingedPeers),
    Asking,
}

/// Nodes that come out in the course of it (3.2.3).
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Masks {
    pub(super) reachable: NodeMask,
    /// On the target's side.
    pub(super) target_reachable: NodeMask,
    pub(super) primary: NodeMask,
    /// A complement, with bits of nodes that do not exist.
    pub(super) weak: WireMask,
}

impl TwoPhase {
    pub(super) fn asked(&self) -> StateChange {
        self.matter.asked()
    }

    /// What is asked for of the state, in this node's view.
    pub(super) fn change(&self) -> Change {
        match &self.matter {
            Matter::State { change, .. } => change.clone(),
            Matter::Size(_) => Change::default(),
        }
    }

    pub(super) fn is_disconnect(&self) -> bool {
        self.asked().conn == Some(ConnState::Disconnecting)
    }

    /// Is nothing asked for but who is there, and who is Primary (3.2.8)?
    pub(super) fn is_empty(&self) -> bool {
        matches!(&self.matter, Matter::State { asked, .. } if *asked == StateChange::default())
    }

    /// Who begins a resync as target, or has a good copy again, says so before the others hear that all have agreed
    /// (3.2.1).
    pub(super) fn happens_before_commit(&self) -> bool {
        if self.is_empty() {
            return true;
        }
        let early = [ConnState::StartingSyncS, ConnState::StartingSyncT, ConnState::WFBitMapT];
        self.asked().conn.is_some_and(|conn| early.contains(&conn))
    }

    /// What asks others.
    pub(super) fn request(&self) -> Packet {
        let transaction = self.head;
        match &self.matter {
            Matter::State { asked, .. } => Packet::TwopcPrepare(Box::new(Prepare { transaction, change: *asked })),
            Matter::Size(size) => Packet::TwopcPrepRsz(Box::new(size.request(transaction))),
        }
    }

    pub(super) fn is(&self, tid: u32, initiator: NodeId) -> bool {
        (self.head.tid, self.head.initiator) == (tid, initiator)
    }

    /// The command that waits for it.
    pub(crate) fn command(&self) -> Option<Caller> {
        match self.part {
            Part::Initiator { origin: Origin::Command(id) | Origin::Resize(id), .. } => Some(id),
            _ => None,
        }
    }

    pub(crate) fn set_command(&mut self, id: Caller) {
        if let Part::Initiator { origin: Origin::Command(command) | Origin::Resize(command), .. } = &mut self.part {
            *command = id;
        }
    }

    pub(super) fn is_ours(&self) -> bool {
        matches!(self.part, Part::Initiator { .. })
    }
}
