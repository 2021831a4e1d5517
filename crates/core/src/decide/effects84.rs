//! What a state change brings with it, 8.4, in order (`docs/spec/connection-and-state.md` 2.8, "Deferred effects").

use super::rules84::lacks_data;
use super::{ConnState as C, DiskState as D, Handler, Role, StateWord};
use crate::mutant::{Mutant, mutant};
use crate::rows::hit;

/// Something to do because the state changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Effect {
    /// The exposed generation becomes the current one (spec 7.9).
    ExposeCurrent,
    /// Clear the CRASHED_PRIMARY mark.
    ClearCrashedPrimary,
    /// Call a handler and wait for it.
    Call(Handler),
    /// Send the held requests to the peer again.
    ResendRequests,
    /// Submit frozen local requests to the new disk.
    RestartLocalIo,
    /// Clear susp_nod.
    LiftNoData,
    /// Clear susp_fen.
    LiftFencing,
    /// Forget that a new generation is pending.
    DropPendingGeneration,
    /// Create the generation that is pending.
    CreatePendingGeneration,
    /// Complete held requests without the peer: their blocks are out of sync.
    CompleteWithoutPeer,
    /// Derive the sync UUID and send it, before any state packet.
    SendSyncUuid,
    /// Send UUIDS.
    SendUuids,
    /// Send SIZES.
    SendSizes,
    /// Send STATE.
    SendState,
    /// Send the bitmap.
    SendBitmap,
    /// A new generation is due, but I/O is suspended: note it.
    MarkGenerationPending,
    /// Start a new generation and persist it before anything of it is acknowledged.
    NewGeneration,
    /// A new generation is due when the peer, a Primary without a disk, begins to write here.
    GenerationWithFirstWrite,
    /// Write changed parts of the bitmap.
    WriteBitmap,
    /// Set all bits, write them, then go on with the resync.
    SetAllBitsThenResync,
    /// Complete all outstanding local requests with an error.
    AbortLocalIo,
    /// Resync what grew while detached.
    ResyncGrownArea,
    /// Look again which resyncs may run (resync-after).
    ReconsiderOtherResyncs,
    /// Write the superblock.
    FlushMetadata,
    /// Start connecting.
    StartReceiver,
    /// Forget the network configuration.
    DropNetworkConfig,
}

/// Facts that are not in the state word.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Facts {
    /// The agreed protocol.
    pub protocol: u32,
    /// The bitmap UUID is 0: no bitmap records the difference to the peer.
    pub bitmap_uuid_zero: bool,
    /// All volumes of the connection are Connected or beyond.
    pub all_volumes_connected: bool,
    /// The peer disks of all volumes are Outdated or worse.
    pub all_peer_disks_outdated: bool,
    /// The disks of all volumes are UpToDate.
    pub all_disks_up_to_date: bool,
    /// This node is Primary of another volume of which no UpToDate disk can be reached.
    pub others_lack_data: bool,
    /// on-io-error is call-local-io-error.
    pub call_local_io_error: bool,
    /// The detach is forced.
    pub forced_detach: bool,
    /// The device grew while its disk was detached or negotiating.
    pub grown: bool,
}

/// The effects of `old` becoming `new`, in the order in which they are to be carried out.
///
/// Differs from DRBD 8.4 in 7 places (`docs/compatibility.md`): susp_nod is lifted by a returning connection only if it
/// brings (or there is by now) an UpToDate disk of each volume; a Primary that loses its sync target starts a
/// generation; so does a node whose peer without a disk becomes Primary, also if a bitmap UUID is set; if that one was
/// Primary when it connected, only with its first write; so does a Primary that attaches while there is no other disk;
/// and a frozen Primary begins one at once if its peer is Primary as well, and when it goes on as the source of its
/// peer.
#[must_use]
pub fn effects(old: &StateWord, new: &StateWord, facts: &Facts) -> Vec<Effect> {
    let mut out = Vec::new();
    before_packets(old, new, facts, &mut out);
    packets_and_generations(old, new, facts, &mut out);
    disk_and_resync(old, new, facts, &mut out);
    out.push(Effect::FlushMetadata);
    connection(old, new, facts, &mut out);
    out.iter().for_each(|effect| hit("effects", || format!("{effect:?}")));
    out
}

fn before_packets(old: &StateWord, new: &StateWord, facts: &Facts, out: &mut Vec<Effect>) {
    let both_good = |s: &StateWord| s.disk == D::UpToDate && s.pdsk == D::UpToDate;
    if old.disk < D::Consistent && new.disk >= D::Consistent {
        out.push(Effect::ExposeCurrent);
    }
    if both_good(new) && !both_good(old) {
        out.push(Effect::ClearCrashedPrimary);
    }
    if lacks_data(new) && !lacks_data(old) {
        out.push(Effect::Call(Handler::PriOnInconDegr));
    }
    let came_back = old.conn < C::Connected && new.conn >= C::Connected;
    if new.conn == C::Connected && both_good(new) && (came_back || !both_good(old)) && !new.susp_fen {
        // Nothing was written meanwhile: both still have the same generation.
        out.push(Effect::DropPendingGeneration);
    }
    if new.susp_nod {
        if came_back && !lacks_data(new) && !facts.others_lack_data {
            out.extend([Effect::ResendRequests, Effect::LiftNoData]);
        } else if attached(old, new) && facts.all_disks_up_to_date {
            out.extend([Effect::RestartLocalIo, Effect::LiftNoData]);
        } else if new.role == Role::Secondary && old.role == Role::Primary {
            // Nobody waits for data here any more; what does is failed.
            out.push(Effect::LiftNoData);
        }
    }
    if new.susp_fen && came_back && facts.all_volumes_connected {
        // Who is to become a target does not get what is written from now on before that begins: the copies part.
        let parts = new.conn == C::WFBitMapS && !mutant(Mutant::FencedSourceInOneGeneration);
        if !parts {
            out.push(Effect::DropPendingGeneration);
        }
        out.extend([Effect::ResendRequests, Effect::LiftFencing]);
    }
}

fn packets_and_generations(old: &StateWord, new: &StateWord, facts: &Facts, out: &mut Vec<Effect>) {
    let to = |conn| new.conn == conn && old.conn != conn;
    if is_source(new) && !is_source(old) && facts.protocol >= 96 {
        out.push(Effect::SendSyncUuid);
    }
    if old.pdsk == D::Diskless && new.pdsk > D::Diskless && new.pdsk != D::DUnknown {
        out.extend([Effect::SendUuids, Effect::SendState]);
    }
    if to(C::WFBitMapS) {
        out.push(Effect::SendBitmap);
    }
    if needs_generation(old, new, facts) {
        // Frozen is what applications of this node do: a Primary peer without a disk goes on writing to this one.
        let peer_writes =
            new.conn >= C::Connected && new.peer == Role::Primary && !mutant(Mutant::GenerationWaitsBesideWriter);
        let frozen = (new.susp || new.susp_nod || new.susp_fen) && new.role == Role::Primary && !peer_writes;
        // A Primary without a disk may yet refuse this copy as too old. Nothing has changed before it writes.
        let comes = old.conn < C::Connected || attached(old, new);
        let may_refuse = comes && new.pdsk < D::Inconsistent && new.role == Role::Secondary;
        if frozen {
            out.push(Effect::MarkGenerationPending);
        } else if may_refuse && !mutant(Mutant::GenerationForRefused) {
            out.push(Effect::GenerationWithFirstWrite);
        } else {
            out.push(Effect::NewGeneration);
            if new.conn >= C::Connected {
                out.push(Effect::SendUuids);
            }
        }
    }
}

fn is_source(s: &StateWord) -> bool {
    matches!(s.conn, C::SyncSource | C::PausedSyncS)
}

/// Did one node lose sight of data that the other goes on changing (spec 2.8, "lost contact to peer data")?
fn needs_generation(old: &StateWord, new: &StateWord, facts: &Facts) -> bool {
    let had_data = matches!(old.pdsk, D::Inconsistent | D::Consistent | D::UpToDate);
    let now_lost = new.pdsk < D::Inconsistent || matches!(new.pdsk, D::DUnknown | D::Outdated);
    let returned_empty =
        old.pdsk == D::DUnknown && matches!(new.pdsk, D::Diskless | D::Failed | D::Detaching | D::Outdated);
    let written = new.role == Role::Primary || new.peer == Role::Primary;
    let diskless_peer_rises = new.pdsk < D::Inconsistent && new.peer == Role::Primary && old.peer != Role::Primary;
    let lost = (had_data && now_lost) || returned_empty;
    // A target may have finished without this node's knowledge: then it has the current generation.
    let cut = new.conn < C::Connected && new.role == Role::Primary;
    let target_gone = !is_source(new) && new.pdsk <= D::Failed && written && !mutant(Mutant::TargetGoneUnnoticed);
    let interrupted = is_source(old) && (cut || target_gone);
    let risen = diskless_peer_rises && (facts.bitmap_uuid_zero || !mutant(Mutant::DisklessRiseUnnoticed));
    // What a Primary without a disk writes here its own disk lacks, which may have the current generation as well.
    let due = (lost && written && facts.bitmap_uuid_zero) || risen;
    // While there was no disk here the peer may have been lost, or it has no disk itself. Nobody began a generation:
    // what is written from now on the peer's disk lacks, which may have the same one.
    let writer_alone = (old.role == Role::Primary && new.role == Role::Primary) || new.peer == Role::Primary;
    let returned = attached(old, new) && now_lost && writer_alone && !mutant(Mutant::KeepGenerationAtAttach);
    (due || interrupted || returned) && new.disk == D::UpToDate && !mutant(Mutant::KeepGeneration)
}

/// Has a disk been taken into service?
fn attached(old: &StateWord, new: &StateWord) -> bool {
    matches!(old.disk, D::Attaching | D::Negotiating) && new.disk == D::UpToDate
}

fn disk_and_resync(old: &StateWord, new: &StateWord, facts: &Facts, out: &mut Vec<Effect>) {
    let connected = new.conn >= C::Connected;
    let to = |conn| new.conn == conn && old.conn != conn;
    let has_disk = new.disk >= D::Inconsistent;
    let peer_demoted = old.peer == Role::Primary && new.peer == Role::Secondary && new.pdsk == D::Diskless;
    let demoted = old.role == Role::Primary && new.role == Role::Secondary && new.conn <= C::Connected;
    if (peer_demoted || demoted) && has_disk {
        out.push(Effect::WriteBitmap);
    }
    if old.disk == D::Attaching && new.disk >= D::Negotiating && connected {
        out.extend([Effect::SendSizes, Effect::SendUuids, Effect::SendState]);
    }
    let pause_changed = old.aftr_isp != new.aftr_isp || old.user_isp != new.user_isp;
    let handshake_over = old.conn == C::WFReportParams && connected;
    if connected && (pause_changed || handshake_over || to(C::Ahead)) {
        out.push(Effect::SendState);
    }
    if to(C::StartingSyncS) || to(C::StartingSyncT) {
        out.push(Effect::SetAllBitsThenResync);
    }
    disk_lost(old, new, facts, out);
    if facts.grown && new.conn == C::Connected && new.disk > D::Negotiating && new.pdsk > D::Negotiating {
        out.push(Effect::ResyncGrownArea);
    }
    if old.conn > C::Connected && new.conn <= C::Connected {
        out.push(Effect::ReconsiderOtherResyncs);
        // A target that has not begun, and whose source lost its disk, has become worse: nothing else would say so.
        let spoiled = old.disk != D::Inconsistent && new.disk == D::Inconsistent;
        if new.conn == C::Connected && old.disk < D::UpToDate && (old.conn >= C::SyncSource || spoiled) {
            out.push(Effect::SendState);
        }
        if has_disk {
            out.push(Effect::WriteBitmap);
        }
    }
}

fn disk_lost(old: &StateWord, new: &StateWord, facts: &Facts, out: &mut Vec<Effect>) {
    let connected = new.conn >= C::Connected;
    let failed = new.disk == D::Failed && old.disk != D::Failed;
    if failed && facts.call_local_io_error {
        out.push(Effect::Call(Handler::LocalIoError));
    }
    if failed && facts.forced_detach {
        out.push(Effect::AbortLocalIo);
    }
    let gone = new.disk == D::Diskless && old.disk != D::Diskless;
    // The reference does not tell of one that was Outdated: the peer goes on believing that it is.
    let at_rest = old.conn == C::Connected && new.conn == C::Connected;
    let was_whole = old.disk == D::UpToDate || (at_rest && matches!(old.disk, D::Outdated | D::Consistent));
    let spoiled = was_whole && new.disk == D::Inconsistent;
    if (failed || gone || spoiled) && connected && !mutant(Mutant::SilentDiskLoss) {
        out.push(Effect::SendState);
    }
}

fn connection(old: &StateWord, new: &StateWord, facts: &Facts, out: &mut Vec<Effect>) {
    if old.conn == C::StandAlone && new.conn == C::Unconnected {
        out.push(Effect::StartReceiver);
    }
    if old.conn == C::Disconnecting && new.conn == C::StandAlone {
        out.push(Effect::DropNetworkConfig);
    }
    if new.susp_fen && new.conn < C::Connected && facts.all_peer_disks_outdated {
        out.extend([Effect::CreatePendingGeneration, Effect::CompleteWithoutPeer, Effect::LiftFencing]);
    }
}
