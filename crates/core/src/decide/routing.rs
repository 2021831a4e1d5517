//! Where a request goes, 8.4 (`docs/spec/connection-and-state.md` 10.2 to 10.4, `docs/spec/data-path-and-resync.md`
//! 1.1, 1.4, 4.1).

use super::state::Replication as R;
use super::{DiskState as D, Reason, Role};
use crate::decide::view::View;
use units::Sector;

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
pub fn admit(s: &View, protocol: u32) -> Admission {
    let no_data = s.disk != D::UpToDate && !s.good_elsewhere;
    if s.role != Role::Primary {
        Admission::Fail(Reason::NotPrimary)
    } else if s.is_frozen() {
        Admission::Wait(Reason::IoSuspended)
    } else if matches!(s.disk, D::Attaching | D::Negotiating) {
        Admission::Wait(Reason::DiskNotReady)
    } else if matches!(s.replication, R::WFBitMapT | R::WFSyncUUID) || (s.replication == R::WFBitMapS && protocol < 96)
    {
        Admission::Wait(Reason::ResyncStarting)
    } else if no_data {
        Admission::Fail(Reason::NoGoodData)
    } else {
        Admission::Go
    }
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
pub fn write(s: &View, protocol: u32) -> ToPeer {
    let from = if protocol < 96 { R::Established } else { R::WFBitMapT };
    if !s.is_together() {
        ToPeer::Nothing
    } else if s.peer_disk == D::UpToDate
        || (s.peer_disk >= D::Inconsistent && (from..R::Ahead).contains(&s.replication))
    {
        ToPeer::Data
    } else if s.replication == R::Ahead || (s.replication == R::WFBitMapS && protocol >= 96) {
        ToPeer::OutOfSync
    } else {
        ToPeer::Nothing
    }
}

/// `read-balancing`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum Balancing {
    /// prefer-local.
    #[default]
    PreferLocal,
    /// prefer-remote.
    PreferRemote,
    /// round-robin.
    RoundRobin,
    /// least-pending.
    LeastPending,
    /// when-congested-remote: like prefer-local, there is no congestion signal.
    WhenCongestedRemote,
    /// N-striping: log2 of the stripe in bytes, 15 (32K) to 20 (1M).
    Striping(u8),
}

/// What a read's route depends on besides the state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadContext {
    /// No bit is set in the range.
    pub range_clean: bool,
    /// First sector.
    pub sector: Sector,
    /// The policy.
    pub balancing: Balancing,
    /// Round robin: the last such read went to the own disk.
    pub last_was_local: bool,
    /// Requests in flight on the own disk.
    pub local_pending: u64,
    /// Application and resync requests that wait for the peer.
    pub peer_pending: u64,
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

/// Routes an admitted read, as far as one peer is concerned.
#[must_use]
pub fn read(s: &View, context: &ReadContext) -> ReadRoute {
    // Clear bits of an Inconsistent disk mean something once both bitmaps have become one, and while that resync lasts.
    let syncing = s.replication.is_target();
    let clean = syncing && context.range_clean;
    let local = s.disk == D::UpToDate || (s.disk == D::Inconsistent && clean);
    let remote = s.peer_disk == D::UpToDate && s.is_together();
    match (local, remote) {
        (true, true) if prefers_remote(context) => ReadRoute::Remote,
        (true, _) => ReadRoute::Local,
        (false, true) => ReadRoute::Remote,
        (false, false) => ReadRoute::Nowhere,
    }
}

fn prefers_remote(context: &ReadContext) -> bool {
    match context.balancing {
        Balancing::PreferLocal | Balancing::WhenCongestedRemote => false,
        Balancing::PreferRemote => true,
        Balancing::RoundRobin => context.last_was_local,
        Balancing::LeastPending => context.local_pending > context.peer_pending,
        Balancing::Striping(log2) => context.sector.0 >> u32::from(log2.saturating_sub(9)).min(63) & 1 == 1,
    }
}
