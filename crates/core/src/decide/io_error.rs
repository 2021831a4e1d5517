//! What an error of the own disk leads to (`docs/spec/connection-and-state.md` 11.5,
//! `docs/spec/data-path-and-resync.md` 1.12).

use super::{DiskState as D, Reason};
use crate::config::OnIoError;

/// What failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Failure {
    /// A read of data.
    Read,
    /// A read-ahead.
    ReadAhead,
    /// A write of data.
    Write,
    /// A discard or write-zeroes.
    Discard,
    /// A flush: what was written may be lost.
    Flush,
    /// Superblock, activity log or bitmap.
    Metadata,
    /// disk-timeout, or a detach by force.
    Forced,
}

/// What follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// The disk's new state.
    pub disk: Option<D>,
    /// Call `local-io-error` before telling anybody.
    pub call_handler: bool,
    /// Mark the range out of sync.
    pub mark_out_of_sync: bool,
    /// Try the peer.
    pub retry_on_peer: bool,
    /// Complete all other outstanding local requests with an error.
    pub abort_outstanding: bool,
    /// Why.
    pub reason: Reason,
}

/// Judges a failure. `disk` is the disk's state now; `peer_good`: the peer is connected and its disk is UpToDate.
///
/// Differs from DRBD 8.4 (`docs/compatibility.md`): with pass-on the only good copy stays what it is. Were it
/// Inconsistent, a peer with older data would overwrite it.
#[must_use]
pub fn decide(failure: Failure, policy: OnIoError, disk: D, peer_good: bool) -> Outcome {
    let nothing = Outcome {
        disk: None,
        call_handler: false,
        mark_out_of_sync: false,
        retry_on_peer: failure == Failure::Read,
        abort_outstanding: failure == Failure::Forced,
        reason: Reason::ErrorReported,
    };
    if matches!(failure, Failure::ReadAhead | Failure::Discard) {
        return Outcome { mark_out_of_sync: failure == Failure::Discard, ..nothing };
    }
    let data = matches!(failure, Failure::Read | Failure::Write);
    let marked = Outcome { mark_out_of_sync: data, ..nothing };
    if data && policy == OnIoError::PassOn && disk != D::Attaching {
        let spoiled = disk > D::Inconsistent && peer_good;
        return Outcome { disk: spoiled.then_some(D::Inconsistent), reason: Reason::ErrorPassedOn, ..marked };
    }
    let gone = disk <= D::Failed && disk != D::Attaching;
    Outcome {
        disk: (!gone).then_some(D::Failed),
        call_handler: policy == OnIoError::CallHandler && !gone && failure != Failure::Forced,
        reason: if failure == Failure::Forced { Reason::DetachForced } else { Reason::DiskGivenUp },
        ..marked
    }
}
