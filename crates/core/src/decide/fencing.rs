//! When to fence the peer, and what the handler's answer means (`docs/spec/connection-and-state.md` 8.5, 8.4 part).

use super::{DiskState as D, Reason};
use crate::config::Fencing;

/// What [`before_call`] looks at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Situation {
    /// The effective policy: [`effective`].
    pub policy: Fencing,
    /// The connection is established.
    pub connected: bool,
    /// The best own disk of the resource.
    pub best_disk: D,
    /// A handler program is configured.
    pub handler: bool,
}

/// Whether the handler `fence-peer` is called.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Call {
    /// Call it and hand its exit code to [`after_call`].
    Handler,
    /// Do not call it; the peer counts as fenced.
    Fenced(Reason),
    /// Do not call it; the peer does not count as fenced. `lift`: I/O frozen for fencing goes on.
    NotFenced {
        /// Clear susp_fen.
        lift: bool,
        /// Why.
        reason: Reason,
    },
}

/// The policy of a resource: the strictest of its volumes whose disk is at least Consistent.
#[must_use]
pub fn effective(volumes: impl IntoIterator<Item = (Fencing, D)>) -> Fencing {
    volumes.into_iter().filter(|(_, disk)| *disk >= D::Consistent).map(|(f, _)| f).max().unwrap_or_default()
}

/// Should the handler be called?
#[must_use]
pub fn before_call(s: &Situation) -> Call {
    if s.connected {
        Call::NotFenced { lift: false, reason: Reason::FencingWhileConnected }
    } else if s.best_disk < D::Consistent {
        Call::NotFenced { lift: true, reason: Reason::FencingWithoutGoodDisk }
    } else if s.policy == Fencing::DontCare {
        Call::Fenced(Reason::FencingNotConfigured)
    } else if !s.handler {
        Call::Fenced(Reason::FencingHandlerDisabled)
    } else {
        Call::Handler
    }
}

/// Is fencing due after a connection was lost (spec 4.7, step 8)? `worst_known` is the highest peer disk state.
#[must_use]
pub fn due_after_loss(policy: Fencing, any_volume_primary: bool, worst_known: D) -> bool {
    policy != Fencing::DontCare && any_volume_primary && worst_known >= D::DUnknown
}

/// What the handler's exit code means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answer {
    /// Peer disks better than this become this.
    pub peer_at_most: Option<D>,
    /// Own disks better than this become this.
    pub own_at_most: Option<D>,
    /// The peer counts as fenced.
    pub fenced: bool,
    /// Why.
    pub reason: Reason,
}

/// Interprets the handler's exit code. `overtaken`: meanwhile the connection is (being) established, or was established
/// and lost again. `best_peer_disk`: of all volumes, as known now.
#[must_use]
pub fn after_call(exit_code: i32, s: &Situation, best_peer_disk: D, overtaken: bool) -> Answer {
    let answer = |peer_at_most: Option<D>, own_at_most, reason| Answer {
        peer_at_most,
        own_at_most,
        fenced: peer_at_most.map_or(best_peer_disk, |most| best_peer_disk.min(most)) <= D::Outdated,
        reason,
    };
    if overtaken {
        return Answer { fenced: false, ..answer(None, None, Reason::FencingOvertaken) };
    }
    let outdated = Some(D::Outdated);
    match exit_code {
        3 => answer(Some(D::Inconsistent), None, Reason::PeerIsInconsistent),
        4 => answer(outdated, None, Reason::PeerWasOutdated),
        5 if s.best_disk == D::UpToDate => answer(outdated, None, Reason::PeerAssumedDead),
        5 => answer(None, None, Reason::PeerUnreachable),
        6 => Answer { fenced: false, ..answer(None, outdated, Reason::PeerIsPrimary) },
        7 if s.policy == Fencing::ResourceAndStonith => answer(outdated, None, Reason::PeerWasShot),
        7 => answer(outdated, None, Reason::PeerWasShotUnexpectedly),
        _ => answer(None, None, Reason::FencingHandlerBroken),
    }
}

/// A resync as source has ended. Is `unfence-peer` to be called: is every volume UpToDate on both sides by now?
#[must_use]
pub fn unfence(policy: Fencing, all_volumes_up_to_date: bool) -> bool {
    policy != Fencing::DontCare && all_volumes_up_to_date
}
