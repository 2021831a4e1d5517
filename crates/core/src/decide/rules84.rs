//! Which states and state changes of a volume are legal, 8.4 (`docs/spec/connection-and-state.md` 2.3 and 2.8).

use super::{ConnState as C, DiskState as D, Role, StateChange, StateChangeResult as Code, StateWord};
use crate::config::{Fencing, OnNoData};
use crate::mutant::{Mutant, mutant};
use crate::rows::hit;

/// What the rules look at besides the state word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Context {
    /// allow-two-primaries.
    pub two_primaries: bool,
    /// The effective fencing policy of the resource.
    pub fencing: Fencing,
    /// on-no-data-accessible.
    pub on_no_data: OnNoData,
    /// The peer is Primary on another volume of the resource.
    pub other_volume_peer_primary: bool,
    /// The device is held open.
    pub open: bool,
    /// verify-alg is configured.
    pub verify_alg: bool,
    /// The agreed protocol (meaningless while not connected).
    pub protocol: u32,
    /// This node's parameters were sent and the handshake has not ended: the "state sent" mark.
    pub state_sent: bool,
    /// The peer has not come to the verdict yet on which a resync is about to begin here.
    pub peer_undecided: bool,
    /// The generation that users have seen is that of the attached disk.
    pub exposed_is_current: bool,
    /// While Negotiating: own and the peer's disk state as decided at attach.
    pub at_attach: Option<(D, D)>,
}

/// How a change is meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Force {
    /// A wish: every rule applies.
    Soft,
    /// A wish; to outdate a disk that is worse than Outdated already is dropped silently.
    SoftIgnoreOutdate,
    /// A fact: only the hard rules apply.
    Hard,
}

/// Judges a change: the state that follows, or why not.
///
/// # Errors
/// The result code of the rule that refuses it; `NothingToDo` if the state would stay the same.
pub fn judge(old: &StateWord, change: &StateChange, force: Force, ctx: &Context) -> Result<StateWord, Code> {
    let mut wanted = applied(old, change);
    if force == Force::SoftIgnoreOutdate && old.disk < D::Outdated && wanted.disk == D::Outdated {
        wanted.disk = old.disk;
    }
    if force == Force::Soft && change.disk == Some(D::Outdated) && refuses_outdated(wanted.conn) {
        return Err(Code::ConnectedOutdates);
    }
    let new = sanitise(old, &wanted, ctx);
    if new == *old {
        return Err(Code::NothingToDo);
    }
    hard_rules(old, &new)?;
    if force == Force::Hard {
        return Ok(new);
    }
    // Without disks sanitising makes Connected of it: no wish ends a handshake that is not over.
    let wished = verifies(wanted.conn) || starts_sync(wanted.conn);
    if wished && old.conn < C::Connected && new.conn == C::Connected && !mutant(Mutant::WishConnects) {
        return Err(Code::NeedConnection);
    }
    match valid(&new, ctx) {
        Err(code) if valid(old, ctx) != Err(code) => Err(code),
        _ => soft_rules(old, &new, ctx).map(|()| new),
    }
}

/// `old` with the fields that `change` names replaced.
#[must_use]
pub fn applied(old: &StateWord, change: &StateChange) -> StateWord {
    StateWord {
        role: change.role.unwrap_or(old.role),
        peer: change.peer.unwrap_or(old.peer),
        conn: change.conn.unwrap_or(old.conn),
        disk: change.disk.unwrap_or(old.disk),
        pdsk: change.pdsk.unwrap_or(old.pdsk),
        susp: change.susp.unwrap_or(old.susp),
        aftr_isp: change.aftr_isp.unwrap_or(old.aftr_isp),
        peer_isp: change.peer_isp.unwrap_or(old.peer_isp),
        user_isp: change.user_isp.unwrap_or(old.user_isp),
        susp_nod: change.susp_nod.unwrap_or(old.susp_nod),
        susp_fen: change.susp_fen.unwrap_or(old.susp_fen),
        quorum: old.quorum,
    }
}

/// Makes the fields of a wanted state fit each other (spec 2.8, "Sanitising").
#[must_use]
pub fn sanitise(old: &StateWord, wanted: &StateWord, ctx: &Context) -> StateWord {
    let mut new = *wanted;
    let mut before = new;
    // A rule counts if it changed anything.
    let mut passed = |rule: u8, now: &StateWord| {
        if *now != std::mem::replace(&mut before, *now) {
            hit("sanitising", || rule.to_string());
        }
    };
    if new.conn < C::Connected {
        new.peer_isp = false;
        new.peer = Role::Unknown;
        if new.pdsk > D::DUnknown || new.pdsk < D::Inconsistent {
            new.pdsk = D::DUnknown;
        }
    }
    passed(1, &new);
    if new.conn == C::StandAlone && new.disk == D::Diskless && new.role == Role::Secondary {
        new.aftr_isp = false;
    }
    passed(2, &new);
    if new.conn > C::Connected && (new.disk <= D::Failed || new.pdsk <= D::Failed) {
        let (own, peers) = disk_ranges(new.conn);
        let target = own == (D::Inconsistent, D::Outdated);
        let source = peers == (D::Inconsistent, D::Consistent) && !mutant(Mutant::TargetOutlivesSource);
        if source && matches!(new.pdsk, D::Consistent | D::Outdated) {
            // The same seen from the source: the peer's copy is no better for its loss.
            new.pdsk = D::Inconsistent;
        }
        if target && matches!(new.disk, D::Consistent | D::Outdated) {
            // The source's disk is gone before the resync began. The reference calls this copy UpToDate then, although
            // it lacks what the source had written alone.
            new.disk = D::Inconsistent;
        }
        new.conn = C::Connected;
    }
    if verifies(old.conn) && verifies(new.conn) && (new.disk < D::UpToDate || new.pdsk < D::UpToDate) {
        // A disk that went bad ends it. The reference goes on, and calls the disk UpToDate.
        new.conn = C::Connected;
    }
    passed(3, &new);
    if new.conn < C::Connected && new.disk == D::Negotiating {
        (new.disk, new.pdsk) = ctx.at_attach.filter(|_| ctx.exposed_is_current).unwrap_or((D::Diskless, D::DUnknown));
    }
    passed(4, &new);
    if new.conn >= C::Connected && new.conn < C::Ahead {
        let (own, peers) = (new.disk, new.pdsk);
        for (disk, other) in [(&mut new.disk, peers), (&mut new.pdsk, own)] {
            // That an Outdated disk is as good as the other one only a comparison can tell: there must be another one.
            let alone = new.conn == C::Connected && other < D::Inconsistent;
            if *disk == D::Consistent || (*disk == D::Outdated && !alone) {
                *disk = D::UpToDate;
            }
        }
    }
    passed(5, &new);
    let ((disk_min, disk_max), (pdsk_min, pdsk_max)) = disk_ranges(new.conn);
    if new.conn != C::SyncTarget || !mutant(Mutant::SourceStaysUpToDate) {
        new.disk = new.disk.clamp(disk_min, disk_max);
    }
    new.pdsk = new.pdsk.clamp(pdsk_min, pdsk_max);
    passed(6, &new);
    let before_suspend = new;
    suspend(old, &mut new, ctx);
    passed(if new.susp_fen == before_suspend.susp_fen { 8 } else { 7 }, &new);
    pause(&mut new);
    passed(9, &new);
    new
}

const fn verifies(conn: C) -> bool {
    matches!(conn, C::VerifyS | C::VerifyT)
}

/// An agreed full resync is about to begin.
const fn starts_sync(conn: C) -> bool {
    matches!(conn, C::StartingSyncS | C::StartingSyncT)
}

/// The disk states that a connection state allows: own, then the peer's, each from worst to best.
const fn disk_ranges(conn: C) -> ((D, D), (D, D)) {
    let good = (D::UpToDate, D::UpToDate);
    match conn {
        C::WFBitMapT | C::PausedSyncT | C::StartingSyncT | C::WFSyncUUID | C::Behind => {
            ((D::Inconsistent, D::Outdated), good)
        }
        C::VerifyS | C::VerifyT => (good, good),
        C::Connected => ((D::Diskless, D::UpToDate), (D::Diskless, D::UpToDate)),
        C::WFBitMapS | C::PausedSyncS | C::StartingSyncS | C::Ahead => (good, (D::Inconsistent, D::Consistent)),
        C::SyncTarget => ((D::Inconsistent, D::Inconsistent), good),
        C::SyncSource => (good, (D::Inconsistent, D::Inconsistent)),
        _ => ((D::Diskless, D::UpToDate), (D::Inconsistent, D::DUnknown)),
    }
}

/// Sanitising rules 7 and 8: I/O freezes when the condition begins, not as long as it lasts.
fn suspend(old: &StateWord, new: &mut StateWord, ctx: &Context) {
    let unfenced = |s: &StateWord| s.role == Role::Primary && s.conn < C::Connected && s.pdsk > D::Outdated;
    let freezes = ctx.fencing == Fencing::ResourceAndStonith && !mutant(Mutant::NoFreezeForFencing);
    if freezes && unfenced(new) && !unfenced(old) {
        new.susp_fen = true;
    }
    if ctx.on_no_data == OnNoData::SuspendIo && lacks_data(new) && !lacks_data(old) {
        new.susp_nod = true;
    }
}

/// Primary without access to an UpToDate disk.
pub(crate) fn lacks_data(s: &StateWord) -> bool {
    s.role == Role::Primary && s.disk < D::UpToDate && s.pdsk < D::UpToDate
}

fn pause(new: &mut StateWord) {
    let paused = new.aftr_isp || new.peer_isp || new.user_isp;
    new.conn = match (new.conn, paused) {
        (C::SyncSource, true) => C::PausedSyncS,
        (C::SyncTarget, true) => C::PausedSyncT,
        (C::PausedSyncS, false) => C::SyncSource,
        (C::PausedSyncT, false) => C::SyncTarget,
        (conn, _) => conn,
    };
    if new.conn == C::SyncTarget && !mutant(Mutant::SourceStaysUpToDate) {
        new.disk = D::Inconsistent;
    }
    if new.conn == C::SyncSource {
        new.pdsk = D::Inconsistent;
    }
}

/// What not even a fact may do (spec 2.3).
///
/// # Errors
/// The code of the rule.
pub fn hard_rules(old: &StateWord, new: &StateWord) -> Result<(), Code> {
    let lost = |conn| (C::Timeout..=C::TearDown).contains(&conn);
    if old.conn != new.conn {
        match (old.conn, new.conn) {
            (C::StandAlone, C::Unconnected) => {}
            (C::StandAlone, C::Disconnecting) => return Err(Code::AlreadyStandAlone),
            (C::StandAlone, _) => return Err(Code::NeedConnection),
            (C::Disconnecting, C::StandAlone) => {}
            (C::Disconnecting, _) => return Err(Code::InTransientState),
            (from, C::Unconnected | C::Disconnecting) if lost(from) => {}
            (from, _) if lost(from) => return Err(Code::InTransientState),
            (from, to) if from < C::WFReportParams && to >= C::Connected => return Err(Code::NeedConnection),
            _ => {}
        }
    }
    if old.disk == D::Diskless && matches!(new.disk, D::Failed | D::Detaching) {
        return Err(Code::IsDiskless);
    }
    let let_go_of = matches!(new.disk, D::Failed | D::Diskless);
    // Its log and its marks are being made empty: it cannot become a disk again (not in the specification).
    if old.disk == D::Failed && !let_go_of && !mutant(Mutant::FailedDiskReturns) {
        return Err(Code::InTransientState);
    }
    Ok(())
}

/// Connected to a peer whose data is not better: sanitising would make an outdated disk UpToDate at once, and end a
/// verify on this node only.
fn refuses_outdated(conn: C) -> bool {
    matches!(conn, C::Connected | C::WFBitMapS | C::SyncSource | C::PausedSyncS)
        || (verifies(conn) && !mutant(Mutant::OutdateEndsVerify))
}

/// Is this a state to be in (spec 2.8, "State validity")? The first matching row decides.
///
/// # Errors
/// The row's code.
pub fn valid(s: &StateWord, ctx: &Context) -> Result<(), Code> {
    let primary = s.role == Role::Primary;
    let needs_data = primary && !mutant(Mutant::PrimaryWithoutData);
    let two_primaries = ctx.two_primaries || mutant(Mutant::TwoPrimaries);
    let connected = s.conn >= C::Connected;
    let beyond = s.conn > C::Connected;
    let no_good_disk = s.disk < D::UpToDate && s.pdsk < D::UpToDate;
    let verify = verifies(s.conn);
    let rows = [
        (!two_primaries && primary && s.peer == Role::Primary, Code::TwoPrimaries),
        (!two_primaries && primary && ctx.other_volume_peer_primary, Code::OtherVolumePeerPrimary),
        (s.role == Role::Secondary && ctx.open && !mutant(Mutant::DemoteInUse), Code::DeviceInUse),
        (needs_data && !connected && s.disk < D::UpToDate, Code::NoUpToDateDisk),
        (ctx.fencing >= Fencing::ResourceOnly && primary && !connected && s.pdsk >= D::DUnknown, Code::PrimaryNop),
        (needs_data && s.disk <= D::Inconsistent && s.pdsk <= D::Inconsistent, Code::NoUpToDateDisk),
        (beyond && s.disk < D::Inconsistent, Code::NoLocalDisk),
        (beyond && s.pdsk < D::Inconsistent, Code::NoRemoteDisk),
        (beyond && no_good_disk, Code::NoUpToDateDisk),
        (refuses_outdated(s.conn) && s.disk == D::Outdated && s.pdsk >= D::Inconsistent, Code::ConnectedOutdates),
        (verify && !ctx.verify_alg, Code::NoVerifyAlg),
        (verify && ctx.protocol < 88, Code::NotSupported),
        (needs_data && no_good_disk, Code::NoUpToDateDisk),
        (starts_sync(s.conn) && s.pdsk == D::DUnknown, Code::NeedConnection),
        (connected && s.pdsk == D::DUnknown, Code::ConnectedOutdates),
    ];
    decided("validity", rows.iter().position(|(matches, _)| *matches), &rows)
}

/// Is this change allowed as a wish (spec 2.8, "Soft transitions")? The last matching row decides.
///
/// # Errors
/// The row's code.
pub fn soft_rules(old: &StateWord, new: &StateWord, ctx: &Context) -> Result<(), Code> {
    let to = |conn| new.conn == conn && old.conn != conn;
    let shaking_hands = (old.conn == C::WFConnection && new.conn == C::WFReportParams)
        || (old.conn == C::WFReportParams && new.conn >= C::Connected);
    let rising_half_synced = new.role == Role::Primary
        && old.role != Role::Primary
        && new.pdsk == D::UpToDate
        && !matches!(new.disk, D::UpToDate | D::Diskless)
        && (new.conn <= C::WFSyncUUID || new.conn != old.conn);
    let below_outdated = old.disk < D::Outdated && old.disk != D::Attaching;
    let becomes_starting = starts_sync(new.conn) && new.conn != old.conn;
    let becomes_verifying = verifies(new.conn) && new.conn != old.conn;
    let becomes_syncing = matches!(new.conn, C::SyncTarget | C::SyncSource);
    // Sanitising makes both disks UpToDate for a verify, and the source's for a resync: not one that has no good data.
    let bad = |disk: D, other: D| disk <= D::Inconsistent && other == D::UpToDate;
    let worthless = old.disk == D::Inconsistent && old.pdsk == D::Inconsistent;
    let spoils = (becomes_verifying && (worthless || bad(old.disk, old.pdsk) || bad(old.pdsk, old.disk)))
        || (to(C::StartingSyncS) && bad(old.disk, old.pdsk))
        || (to(C::StartingSyncT) && bad(old.pdsk, old.disk));
    let outdates_absent =
        new.conn == C::Disconnecting && new.pdsk == D::Outdated && old.conn < C::Connected && old.pdsk > D::Outdated;
    // With its role it would begin a generation, and compare by that one. The reference lets it.
    let peer_rises = new.peer == Role::Primary && old.peer != Role::Primary;
    let rows = [
        (becomes_starting && old.conn > C::Connected, Code::ResyncRunning),
        (old.conn == C::StandAlone && new.conn == C::Disconnecting, Code::AlreadyStandAlone),
        (old.disk == D::Diskless && new.disk > D::Attaching, Code::IsDiskless),
        (to(C::WFConnection) && old.conn < C::Unconnected, Code::NoNetConfig),
        (new.disk == D::Outdated && below_outdated, Code::LowerThanOutdated),
        (old.conn == C::Unconnected && new.conn == C::Disconnecting, Code::InTransientState),
        (ctx.state_sent && !shaking_hands, Code::InTransientState),
        (rising_half_synced, Code::InTransientState),
        (becomes_verifying && old.conn < C::Connected, Code::NeedConnection),
        (becomes_verifying && old.conn > C::Connected, Code::ResyncRunning),
        (becomes_starting && old.conn < C::Connected, Code::NeedConnection),
        (becomes_syncing && old.conn < C::WFReportParams, Code::NeedConnection),
        (spoils && old.conn == C::Connected, Code::NoUpToDateDisk),
        (outdates_absent, Code::OutdateWithoutConnection),
        (ctx.peer_undecided && peer_rises && !mutant(Mutant::RisesUndecided), Code::InTransientState),
    ];
    decided("soft", rows.iter().rposition(|(matches, _)| *matches), &rows)
}

/// The code of the row that decides.
fn decided(table: &'static str, row: Option<usize>, rows: &[(bool, Code)]) -> Result<(), Code> {
    let Some(row) = row else { return Ok(()) };
    hit(table, || (row + 1).to_string());
    Err(rows[row].1)
}

/// The metadata flags of a state (spec 2.8, "Metadata flags"); AL_CLEAN is always cleared with them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the fields are the flags of docs/spec/on-disk-format.md 2.3")]
pub struct MetadataFlags {
    pub consistent: bool,
    pub primary_ind: bool,
    pub connected_ind: bool,
    pub was_up_to_date: bool,
    pub peer_outdated: bool,
    pub crashed_primary: bool,
}

/// The flags to write when the state becomes `s`; `crashed_primary` is the mark kept in memory.
#[must_use]
pub fn metadata_flags(s: &StateWord, crashed_primary: bool) -> MetadataFlags {
    MetadataFlags {
        consistent: s.disk > D::Inconsistent,
        primary_ind: s.role == Role::Primary || (s.pdsk < D::Inconsistent && s.peer == Role::Primary),
        connected_ind: s.conn > C::WFReportParams,
        was_up_to_date: s.disk > D::Outdated,
        peer_outdated: (D::Inconsistent..=D::Outdated).contains(&s.pdsk),
        crashed_primary,
    }
}

/// Must the peer be asked before this change (spec 3.1)?
#[must_use]
pub fn is_cluster_wide(old: &StateWord, new: &StateWord) -> bool {
    let to = |conn| new.conn == conn && old.conn != conn;
    old.conn >= C::Connected
        && new.conn >= C::WFReportParams
        && ((new.role == Role::Primary && old.role == Role::Secondary)
            || to(C::StartingSyncT)
            || to(C::StartingSyncS)
            || (new.disk == D::Failed && old.disk != D::Failed)
            || (old.conn == C::Connected && new.conn == C::VerifyS)
            || (old.conn == C::Connected && new.conn == C::WFReportParams))
}

/// What an administrative disconnect does next (spec 3.1, "Disconnect fallbacks").
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DisconnectStep {
    /// Request plain Disconnecting.
    Plain,
    /// Request Disconnecting and the peer's disk Outdated.
    OutdatePeer,
    /// Request Disconnecting and own disk Outdated.
    OutdateSelf,
    /// Hard change.
    Forced,
    /// Over, successfully.
    Done,
    /// Over: report the code.
    Failed,
}

/// The step after `step` ended with `result`.
#[must_use]
pub fn next_disconnect_step(step: DisconnectStep, result: Code, conn: C) -> DisconnectStep {
    use DisconnectStep as S;
    match (step, result) {
        (_, r) if r.is_success() || r == Code::AlreadyStandAlone => S::Done,
        (S::Plain, Code::PrimaryNop) => S::OutdatePeer,
        (S::Plain, Code::FailedByPeer) if conn <= C::WFConnection => S::Plain,
        (S::Plain, Code::FailedByPeer) => S::OutdateSelf,
        (S::OutdatePeer, Code::OutdateWithoutConnection) => S::Plain,
        (S::OutdateSelf, Code::IsDiskless | Code::LowerThanOutdated) => S::Forced,
        _ => S::Failed,
    }
}
