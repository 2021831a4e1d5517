//! Held requests: what releases them and what becomes of them, 8.4 (`docs/spec/connection-and-state.md` 10.1, 10.5).

use super::{ConnState as C, DiskState as D, StateWord};

/// Is application I/O frozen?
#[must_use]
pub const fn is_suspended(s: &StateWord) -> bool {
    s.susp || s.susp_nod || s.susp_fen
}

/// One step of `resume-io`, in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ResumeStep {
    /// Create the pending generation and persist it.
    CreatePendingGeneration,
    /// Diskless: the exposed generation becomes a random one. Nothing will match it any more.
    ExposeRandomGeneration,
    /// Clear susp, susp_nod and susp_fen.
    ClearReasons,
    /// Complete held requests without the peer: their blocks are out of sync.
    CompleteWithoutPeer,
    /// Fail frozen local requests.
    FailFrozen,
}

/// What `resume-io` does. `generation_pending`: a new generation was put off because I/O was frozen. A peer with data
/// that is back gets what is written from now on: then it is not due any more, and a resync that runs would miss it.
#[must_use]
pub fn resume_io(s: &StateWord, generation_pending: bool) -> Vec<ResumeStep> {
    let mut steps = Vec::new();
    let together = s.conn >= C::Connected && s.pdsk >= D::Inconsistent;
    if generation_pending && !together {
        let has_disk = s.disk >= D::Inconsistent;
        steps.push(if has_disk { ResumeStep::CreatePendingGeneration } else { ResumeStep::ExposeRandomGeneration });
    }
    steps.push(ResumeStep::ClearReasons);
    if s.conn < C::Connected {
        steps.push(ResumeStep::CompleteWithoutPeer);
    }
    if matches!(s.disk, D::Diskless | D::Failed | D::Detaching) {
        steps.push(ResumeStep::FailFrozen);
    }
    steps
}

/// What becomes of the requests that wait for a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Held {
    /// They stay queued for it.
    Keep,
    /// They are sent again.
    Resend,
    /// They no longer wait for it; their blocks are out of sync there.
    Cancel,
}

/// The connection is lost (`after.conn` below Connected) or back; `before` is the state until then.
#[must_use]
pub fn held_requests(before: &StateWord, after: &StateWord, protocol_a: bool) -> Held {
    let back = before.conn < C::Connected && after.conn >= C::Connected;
    if !back {
        if is_suspended(after) && !protocol_a { Held::Keep } else { Held::Cancel }
    } else if is_suspended(before) && after.conn == C::Connected {
        Held::Resend
    } else {
        Held::Cancel
    }
}
