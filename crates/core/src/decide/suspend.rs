//! What thaws frozen requests, 8.4 (`docs/spec/connection-and-state.md` 10.1, 10.5).

use super::DiskState as D;
use crate::decide::state::SuspendReason;
use crate::decide::view::View;

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
}

/// What `resume-io` does. `generation_pending`: a new generation was put off because I/O was frozen. A peer with data
/// that is back gets what is written from now on: then it is not due any more, and a resync that runs would miss it.
#[must_use]
pub fn resume_io(s: &View, generation_pending: bool) -> Vec<ResumeStep> {
    if s.frozen.because_of(SuspendReason::Quorum) {
        // That is not lifted by a command: what waits goes on waiting.
        return vec![ResumeStep::ClearReasons];
    }
    let mut steps = Vec::new();
    let together = s.is_together() && s.peer_disk >= D::Inconsistent;
    if generation_pending && !together {
        let has_disk = s.disk >= D::Inconsistent;
        steps.push(if has_disk { ResumeStep::CreatePendingGeneration } else { ResumeStep::ExposeRandomGeneration });
    }
    steps.push(ResumeStep::ClearReasons);
    if !s.is_together() {
        steps.push(ResumeStep::CompleteWithoutPeer);
    }
    steps
}
