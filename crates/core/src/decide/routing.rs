//! Where a request goes, 8.4 (`docs/spec/connection-and-state.md` 10.2 to 10.4, `docs/spec/data-path-and-resync.md`
//! 1.1, 1.4, 4.1).

use super::state::Replication as R;
use super::{DiskState as D, Reason, Role};
use crate::decide::view::View;

/// May a new request proceed?
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Admission {
    /// Yes.
    Go,
    /// Not yet.
    Wait(Reason),
    /// Never: fail it.
    Fail(Reason),
}

/// Admits a new request, as far as one peer is concerned (spec: data path 1.1 steps 1 and 3; 10.2, 10.3).
#[must_use]
#[inline]
pub fn admit(s: &View, protocol: u32) -> Admission {
    let no_data = s.disk != D::UpToDate && !s.good_elsewhere;
    if s.role != Role::Primary {
        Admission::Fail(Reason::NotPrimary)
    } else if let Some(reason) = why_wait(s.is_frozen(), s.disk).or_else(|| why_wait_for(s.replication, || protocol)) {
        Admission::Wait(reason)
    } else if no_data {
        Admission::Fail(Reason::NoGoodData)
    } else {
        Admission::Go
    }
}

/// Why a Primary's requests wait, whoever its peers are.
pub(crate) fn why_wait(is_frozen: bool, disk: D) -> Option<Reason> {
    if is_frozen {
        Some(Reason::IoSuspended)
    } else {
        matches!(disk, D::Attaching | D::Negotiating).then_some(Reason::DiskNotReady)
    }
}

/// Why they wait for this peer.
pub(crate) fn why_wait_for(replication: R, protocol: impl FnOnce() -> u32) -> Option<Reason> {
    let starts = match replication {
        R::WFBitMapT | R::WFSyncUUID => true,
        R::WFBitMapS => protocol() < 96,
        _ => false,
    };
    starts.then_some(Reason::ResyncStarting)
}

/// What the peer is told of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ToPeer {
    /// The data.
    Data,
    /// Only that it is out of sync there.
    OutOfSync,
    /// Nothing; the bitmap records it.
    Nothing,
}

/// What one peer is told of an admitted write. The own disk gets it if it takes writes at all.
#[must_use]
#[inline]
pub fn write(replication: R, peer_disk: D, protocol: u32) -> ToPeer {
    let from = if protocol < 96 { R::Established } else { R::WFBitMapT };
    if replication < R::Established {
        ToPeer::Nothing
    } else if peer_disk == D::UpToDate || (peer_disk >= D::Inconsistent && (from..R::Ahead).contains(&replication)) {
        ToPeer::Data
    } else if replication == R::Ahead || (replication == R::WFBitMapS && protocol >= 96) {
        ToPeer::OutOfSync
    } else {
        ToPeer::Nothing
    }
}

/// Where a read goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ReadRoute {
    /// The own disk.
    Local,
    /// The peer.
    Remote,
    /// Neither has the data: fail it, or wait with on-no-data-accessible suspend-io.
    Nowhere,
}

/// Routes an admitted read, as far as one peer is concerned; `range_clean`: no bit is set in the range.
#[must_use]
pub fn read(s: &View, range_clean: bool) -> ReadRoute {
    // Clear bits of an Inconsistent disk mean something once both bitmaps have become one, and while that resync lasts.
    let syncing = s.replication.is_target();
    let clean = syncing && range_clean;
    let local = s.disk == D::UpToDate || (s.disk == D::Inconsistent && clean);
    let remote = s.peer_disk == D::UpToDate && s.is_together();
    match (local, remote) {
        (true, _) => ReadRoute::Local,
        (false, true) => ReadRoute::Remote,
        (false, false) => ReadRoute::Nowhere,
    }
}
