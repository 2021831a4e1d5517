//! What an error of the own disk leads to (`docs/spec/connection-and-state.md` 11.5,
//! `docs/spec/data-path-and-resync.md` 1.12).

use super::{DiskState as D, Reason};
use crate::config::OnIoError;

/// What failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Failure {
    /// A read of data.
    Read,
    /// A write of data.
    Write,
    /// A flush: what was written may be lost.
    Flush,
    /// Superblock, activity log or bitmap.
    Metadata,
    /// disk-timeout, or a detach by force.
    Forced,
}

/// What becomes of the disk, if anything does, and why. `disk` is its state now; `peer_good`: the peer is connected and
/// its disk is UpToDate.
///
/// Differs from DRBD 8.4 (`docs/compatibility.md`): with pass-on the only good copy stays what it is. Were it
/// Inconsistent, a peer with older data would overwrite it.
#[must_use]
pub fn decide(failure: Failure, policy: OnIoError, disk: D, peer_good: bool) -> (Option<D>, Reason) {
    let data = matches!(failure, Failure::Read | Failure::Write);
    if data && policy == OnIoError::PassOn && disk != D::Attaching {
        let spoiled = disk > D::Inconsistent && peer_good;
        return (spoiled.then_some(D::Inconsistent), Reason::ErrorPassedOn);
    }
    let gone = disk <= D::Failed && disk != D::Attaching;
    let reason = if failure == Failure::Forced { Reason::DetachForced } else { Reason::DiskGivenUp };
    ((!gone).then_some(D::Failed), reason)
}
