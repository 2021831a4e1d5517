//! Commands that wait, and for what.

use crate::api::CommandError;
use crate::command::caller::Caller;
use crate::command::objects::wanted::Wanted;
use crate::decide::roles::Promotion;
use crate::decide::rules::DisconnectStep;
use crate::decide::state::{PeerState, State};
use crate::decide::{Role, StateChangeResult as Code};
use crate::pings::PingedPeers;
use crate::replaced::{Copied, Replaced};
use units::{Duration, Instant, NodeId, NodeMask, VolumeNr};
use wire::ResizeFlags;

/// A command that waits for something.
#[derive(Debug)]
pub(crate) struct Pending {
    pub(super) id: Caller,
    pub(super) what: Waiting,
    /// Before then it is not looked at: what is in its way is another matter, and goes by itself.
    pub(super) later: Option<Instant>,
}

impl Pending {
    pub(super) fn new(id: Caller, what: Waiting) -> Pending {
        Pending { id, what, later: None }
    }

    /// Does it go on when a ping is answered?
    pub(crate) fn awaits_pings(&self) -> bool {
        matches!(self.what, Waiting::Pinged(_))
    }

    /// Is it left alone for now?
    pub(super) fn rests(&self, now: Instant, state: &State) -> bool {
        let goes_on = match self.what {
            Waiting::Promote { stage: Stage::OnceSecondary(primaries), .. } => {
                let said =
                    |(peer, there): (NodeId, &PeerState)| !primaries.contains(peer) || there.role() == Role::Secondary;
                !primaries.is_empty() && state.peers.iter().all(said)
            }
            _ => false,
        };
        !goes_on && self.later.is_some_and(|at| now < at)
    }
}

/// So long a command makes way for another transaction, or for another change.
pub(crate) const SOON: Duration = Duration::from_millis(100);

#[derive(Debug)]
pub(super) enum Waiting {
    /// Promotion of all volumes.
    Promote {
        promotion: Promotion,
        stage: Stage,
    },
    /// Demotion: until no request is on its way.
    Demote {
        how: Demotion,
        /// The other nodes were asked.
        asked: bool,
    },
    Disconnect {
        peer: NodeId,
        step: DisconnectStep,
        sent: bool,
    },
    /// Until the link to this peer has ended, as it must.
    Parting {
        peer: NodeId,
        then: AfterParting,
    },
    /// The same as `Disconnect`, and connect again.
    Reconnect {
        peer: NodeId,
        step: DisconnectStep,
        sent: bool,
    },
    Detach {
        volume: VolumeNr,
        step: GiveUp,
    },
    Verify {
        peer: NodeId,
        volume: VolumeNr,
        sent: bool,
    },
    Invalidate {
        volume: VolumeNr,
        replaced: Replaced,
        copied: Copied,
        step: GiveUp,
    },
    Resize(Resizing),
    /// Until these have been answered.
    Pinged(PingedPeers),
    /// Until requests on their way have ended.
    Suspend {
        volume: VolumeNr,
    },
    /// Until what the configuration does not have any more may be removed.
    Reconfigure(Wanted),
    /// The end: Secondary, disconnected, detached.
    Down {
        force: bool,
        leave: Leave,
    },
}

/// What a command goes on with that has reported that a link must end.
#[derive(Clone, Copy, Debug)]
pub(super) enum AfterParting {
    /// Nothing: it was to disconnect.
    End,
    /// It connects again.
    Connect,
    /// It leaves the other peers, and goes down.
    Down { force: bool },
}

/// How far a node is that leaves a peer because it goes down.
#[derive(Clone, Copy, Debug)]
pub(super) struct Leave {
    /// Which peer, once it has begun to leave it.
    pub(super) peer: Option<NodeId>,
    pub(super) step: DisconnectStep,
    /// Since when the peer owes an answer.
    pub(super) asked: Option<Instant>,
}

impl Leave {
    pub(super) const WISH: Leave = Leave { peer: None, step: DisconnectStep::Plain, asked: None };
    /// A peer that has not answered by then has to live with it, unless it would lose its only good copy.
    pub(super) const PATIENCE: Duration = Duration::from_secs(2);
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Stage {
    Ask,
    /// Asks again when each of these has said that it is Secondary, or the time to wait for that is over. Who is out of
    /// reach has said nothing.
    OnceSecondary(NodeMask),
    Answer,
    /// Until these peers are fenced, as the rule of this code about this volume demands; the others are, or not.
    Fence {
        code: Code,
        volume: VolumeNr,
        waits: NodeMask,
        fenced: bool,
    },
}

/// How far a command is that gives up a copy.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum GiveUp {
    /// Nothing has been done.
    Wish,
    /// It is possible, and waits until the other copy is as good ([`Resource::peer_has_all`]).
    Draining,
    /// The peer was asked.
    Sent,
}

/// What a command has come to.
#[derive(Debug)]
pub(super) enum Progress {
    /// It is looked at again whenever anything has changed.
    Waits(Waiting),
    /// It is looked at again at this time, not before.
    Later(Waiting, Instant),
    Ended(Result<(), CommandError>),
    /// It is off this list without a word: another list has it, or nobody waits for it.
    Left,
}

impl Waiting {
    /// Does it give up the volume's own copy, which no write must rely on any more?
    pub(super) fn gives_up(&self, volume: VolumeNr) -> bool {
        match *self {
            Waiting::Detach { volume: of, step }
            | Waiting::Invalidate { volume: of, step, replaced: Replaced::Own { .. }, .. } => {
                of == volume && step != GiveUp::Wish
            }
            _ => false,
        }
    }

    /// As it was before the peer was asked.
    pub(super) fn unasked(self) -> Waiting {
        match self {
            Waiting::Promote { promotion, .. } => Waiting::Promote { promotion, stage: Stage::Ask },
            Waiting::Demote { how, .. } => Waiting::Demote { how, asked: false },
            Waiting::Disconnect { peer, step, .. } => Waiting::Disconnect { peer, step, sent: false },
            Waiting::Reconnect { peer, step, .. } => Waiting::Reconnect { peer, step, sent: false },
            Waiting::Detach { volume, .. } => Waiting::Detach { volume, step: GiveUp::Wish },
            Waiting::Verify { peer, volume, .. } => Waiting::Verify { peer, volume, sent: false },
            Waiting::Invalidate { volume, replaced, copied, .. } => {
                Waiting::Invalidate { volume, replaced, copied, step: GiveUp::Wish }
            }
            Waiting::Down { force, leave } => Waiting::Down { force, leave: Leave { asked: None, ..leave } },
            other @ (Waiting::Resize(_) | Waiting::Suspend { .. } | Waiting::Parting { .. } | Waiting::Pinged(_)) => {
                other
            }
            Waiting::Reconfigure(wanted) => Waiting::Reconfigure(wanted.unasked()),
        }
    }

    /// The peer and the volume without which it cannot be.
    pub(super) fn is_about(&self) -> (Option<NodeId>, Option<VolumeNr>) {
        match *self {
            Waiting::Promote { stage: Stage::Fence { volume, .. }, .. }
            | Waiting::Detach { volume, .. }
            | Waiting::Resize(Resizing { volume, .. })
            | Waiting::Suspend { volume } => (None, Some(volume)),
            Waiting::Disconnect { peer, .. } | Waiting::Parting { peer, .. } | Waiting::Reconnect { peer, .. } => {
                (Some(peer), None)
            }
            Waiting::Verify { peer, volume, .. } => (Some(peer), Some(volume)),
            Waiting::Invalidate { volume, replaced, .. } => (replaced.peer(), Some(volume)),
            Waiting::Promote { .. }
            | Waiting::Demote { .. }
            | Waiting::Reconfigure(_)
            | Waiting::Pinged(_)
            | Waiting::Down { .. } => (None, None),
        }
    }

    /// The volumes that are known to be behind, of a node that gives in.
    pub(super) fn gives_in(&mut self) -> Option<&mut Vec<VolumeNr>> {
        match self {
            Waiting::Demote { how: Demotion::GivingIn(behind), .. } => Some(behind),
            _ => None,
        }
    }

    /// Was the peer asked?
    pub(super) fn awaits_answer(&self) -> bool {
        matches!(
            self,
            Waiting::Promote { stage: Stage::Answer, .. }
                | Waiting::Demote { asked: true, .. }
                | Waiting::Disconnect { sent: true, .. }
                | Waiting::Reconnect { sent: true, .. }
                | Waiting::Detach { step: GiveUp::Sent, .. }
                | Waiting::Invalidate { step: GiveUp::Sent, .. }
                | Waiting::Verify { sent: true, .. }
                | Waiting::Down { leave: Leave { asked: Some(_), .. }, .. }
        ) || matches!(self, Waiting::Reconfigure(wanted) if wanted.is_asking())
    }
}

/// How a node becomes Secondary.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Demotion {
    /// If nobody uses its devices.
    Unused,
    /// Whoever uses them gets errors.
    ByForce,
    /// The same, as the copies of these volumes are older than a peer's: they are Outdated from then on.
    GivingIn(Vec<VolumeNr>),
}

/// A resize in 9's dialect that has not ended.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Resizing {
    pub(super) volume: VolumeNr,
    pub(super) flags: ResizeFlags,
    /// Then it fails, if others are in its way.
    pub(super) until: Instant,
    /// All were asked.
    pub(super) asked: bool,
}
