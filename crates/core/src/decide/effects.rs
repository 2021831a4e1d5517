//! What a state change brings with it, in order (`docs/spec/connection-and-state.md` 2.8, "Deferred effects").

use super::state::{PairState, Paused, PeerState, Replication as R, State, SuspendReason};
use super::{DiskState as D, Handler, Role};
use crate::decide::view::{Facts, PairFacts, View, VolumeFacts, lacks_data, towards};
use crate::rows::hit;
use units::{NodeId, VolumeNr};

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
    /// A peer is back, and I/O stays frozen for want of quorum: what was kept for lost peers begins anew when that is
    /// over. Until then it is in nobody's way, lest a resync wait for it that would bring quorum back.
    Requeue,
    /// There is quorum again, and nothing else keeps I/O frozen: it goes on.
    Thaw,
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
}

/// An effect, and what it is about: a volume towards a peer, or a volume without any.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Caused {
    /// The peer.
    pub peer: Option<NodeId>,
    /// The volume.
    pub volume: VolumeNr,
    /// What to do.
    pub effect: Effect,
}

/// Facts about a volume and a peer, out of the state and what else is known.
struct About<'a> {
    /// All of the new state, and the peer in it.
    state: &'a State,
    peer: Option<&'a PeerState>,
    old: View,
    new: View,
    protocol: u32,
    own: VolumeFacts,
    pair: Option<PairFacts>,
    /// This node is Primary without an UpToDate disk within reach of some volume.
    lacks_data: (bool, bool),
    out: Vec<Effect>,
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
pub fn effects(old: &State, new: &State, facts: &Facts) -> Vec<Caused> {
    let mut all: Vec<Caused> = Vec::new();
    for volume in old.volumes.ids() {
        for peer in towards(old) {
            let (before, after) = (View::of(old, peer, volume), View::of(new, peer, volume));
            if before == after {
                continue;
            }
            for effect in About::of(old, new, facts, (peer, volume)).effects() {
                // What is about the volume alone is done once, whichever peers it concerns.
                let again = |c: &Caused| c.volume == volume && c.effect == effect && effect.is_about_volume();
                if !all.iter().any(again) {
                    hit("effects", || format!("{effect:?}"));
                    all.push(Caused { peer, volume, effect });
                }
            }
        }
    }
    all
}

impl Effect {
    /// Does it concern the volume, whatever the peer?
    fn is_about_volume(self) -> bool {
        !matches!(
            self,
            Effect::SendSyncUuid
                | Effect::SendUuids
                | Effect::SendSizes
                | Effect::SendState
                | Effect::SendBitmap
                | Effect::ResendRequests
                | Effect::LiftFencing
                | Effect::CompleteWithoutPeer
                | Effect::SetAllBitsThenResync
        )
    }
}

impl<'a> About<'a> {
    fn of(old: &State, new: &'a State, facts: &Facts, (peer, volume): (Option<NodeId>, VolumeNr)) -> About<'a> {
        let known = peer.and_then(|peer| facts.peers.get(peer));
        About {
            state: new,
            peer: peer.and_then(|peer| new.peers.get(peer)),
            old: View::of(old, peer, volume),
            new: View::of(new, peer, volume),
            protocol: known.map_or(101, |p| p.protocol),
            own: facts.volumes[volume],
            pair: known.map(|p| p.volumes[volume]),
            lacks_data: (lacks_data(old, volume), lacks_data(new, volume)),
            out: Vec::new(),
        }
    }

    /// Is I/O frozen until the peer is fenced, and does this hold for its part in every volume?
    fn is_unfenced_and_all(&self, hold: impl Fn(&PairState) -> bool) -> bool {
        self.peer.is_some_and(|peer| peer.unfenced && peer.volumes.values().all(hold))
    }

    fn any_lacks_data(&self) -> bool {
        self.state.volumes.ids().any(|volume| lacks_data(self.state, volume))
    }

    fn effects(mut self) -> Vec<Effect> {
        self.before_packets();
        self.packets_and_generations();
        self.disk_and_resync();
        self.connection();
        self.out
    }

    fn before_packets(&mut self) {
        let (old, new) = (self.old, self.new);
        let both_good = |s: &View| s.disk == D::UpToDate && s.peer_disk == D::UpToDate;
        if old.disk < D::Consistent && new.disk >= D::Consistent {
            self.out.push(Effect::ExposeCurrent);
        }
        if both_good(&new) && !both_good(&old) {
            self.out.push(Effect::ClearCrashedPrimary);
        }
        if self.lacks_data == (false, true) {
            self.out.push(Effect::Call(Handler::PriOnInconDegr));
        }
        let came_back = !old.is_together() && new.is_together();
        let settles = new.replication == R::Established && both_good(&new) && (came_back || !both_good(&old));
        if settles && !new.frozen.because_of(SuspendReason::Fencing) {
            // Nothing was written meanwhile: both still have the same generation.
            self.out.push(Effect::DropPendingGeneration);
        }
        if new.frozen.because_of(SuspendReason::NoData) {
            if came_back && !self.any_lacks_data() {
                self.out.extend([Effect::ResendRequests, Effect::LiftNoData]);
            } else if attached(&old, &new) && self.state.volumes.values().all(|v| v.disk == D::UpToDate) {
                self.out.extend([Effect::RestartLocalIo, Effect::LiftNoData]);
            } else if self.protocol >= 110 && self.lacks_data == (true, false) && !self.any_lacks_data() {
                // A connected peer's disk has become good (spec 2.2, E1). 8.4's dialect goes on waiting.
                self.out.extend([Effect::ResendRequests, Effect::LiftNoData]);
            } else if new.role == Role::Secondary && old.role == Role::Primary {
                // Nobody waits for data here any more; what does is failed.
                self.out.push(Effect::LiftNoData);
            }
        }
        if came_back && new.frozen.because_of(SuspendReason::Quorum) {
            self.out.push(Effect::Requeue);
        }
        if old.frozen.because_of(SuspendReason::Quorum) && !new.is_frozen() {
            self.out.push(Effect::Thaw);
        }
        if old.standing.is_quorate() && !new.standing.is_quorate() && new.role == Role::Primary {
            self.out.push(Effect::Call(Handler::QuorumLost));
        }
        if came_back && self.is_unfenced_and_all(|pair| pair.replication >= R::Established) {
            // Who is to become a target does not get what is written from now on before that begins: the copies part.
            let parts = new.replication == R::WFBitMapS;
            if !parts {
                self.out.push(Effect::DropPendingGeneration);
            }
            self.out.extend([Effect::ResendRequests, Effect::LiftFencing]);
        }
    }

    fn packets_and_generations(&mut self) {
        let (old, new) = (self.old, self.new);
        if new.replication.is_source() && !old.replication.is_source() && (96..110).contains(&self.protocol) {
            self.out.push(Effect::SendSyncUuid);
        }
        if old.peer_disk == D::Diskless && new.peer_disk > D::Diskless && new.peer_disk != D::DUnknown {
            self.out.extend([Effect::SendUuids, Effect::SendState]);
        }
        if new.replication == R::WFBitMapS && old.replication != R::WFBitMapS {
            self.out.push(Effect::SendBitmap);
        }
        if !self.needs_generation() {
            return;
        }
        // Frozen is what applications of this node do: a Primary peer without a disk goes on writing to this one.
        let peer_writes = new.is_together() && new.peer == Role::Primary;
        let frozen = new.is_frozen() && new.role == Role::Primary && !peer_writes;
        // A Primary without a disk may yet refuse this copy as too old. Nothing has changed before it writes.
        let comes = !old.is_together() || attached(&old, &new);
        let may_refuse = comes && new.peer_disk < D::Inconsistent && new.role == Role::Secondary;
        if frozen {
            self.out.push(Effect::MarkGenerationPending);
        } else if may_refuse {
            self.out.push(Effect::GenerationWithFirstWrite);
        } else {
            self.out.push(Effect::NewGeneration);
            // In 9's dialect it is told when it begins.
            if new.is_together() && self.protocol < 110 {
                self.out.push(Effect::SendUuids);
            }
        }
    }

    /// Did one node lose sight of data that the other goes on changing (spec 2.8, "lost contact to peer data")?
    fn needs_generation(&self) -> bool {
        let (old, new) = (&self.old, &self.new);
        let had_data = matches!(old.peer_disk, D::Inconsistent | D::Consistent | D::UpToDate);
        let now_lost = new.peer_disk < D::Inconsistent || matches!(new.peer_disk, D::DUnknown | D::Outdated);
        let returned_empty = old.peer_disk == D::DUnknown
            && matches!(new.peer_disk, D::Diskless | D::Failed | D::Detaching | D::Outdated);
        let written = new.role == Role::Primary || new.peer == Role::Primary;
        let diskless_peer_rises =
            new.peer_disk < D::Inconsistent && new.peer == Role::Primary && old.peer != Role::Primary;
        let lost = (had_data && now_lost) || returned_empty;
        // A target may have finished without this node's knowledge: then it has the current generation.
        let cut = !new.is_together() && new.role == Role::Primary;
        let source = |s: &View| s.replication.is_source();
        let target_gone = !source(new) && new.peer_disk <= D::Failed && written;
        let interrupted = source(old) && (cut || target_gone);
        // What a Primary without a disk writes here its own disk lacks, which may have the current generation as well.
        let unrecorded = self.pair.is_none_or(|pair| pair.bitmap_uuid_zero);
        let due = (lost && written && unrecorded) || diskless_peer_rises;
        // While there was no disk here the peer may have been lost, or it has no disk itself. Nobody began a
        // generation: what is written from now on the peer's disk lacks, which may have the same one.
        let writer_alone = (old.role == Role::Primary && new.role == Role::Primary) || new.peer == Role::Primary;
        let returned = attached(old, new) && now_lost && writer_alone;
        (due || interrupted || returned) && new.disk == D::UpToDate
    }

    fn disk_and_resync(&mut self) {
        let (old, new) = (self.old, self.new);
        let nine = self.protocol >= 110;
        let connected = new.is_together();
        let has_disk = new.disk >= D::Inconsistent;
        let peer_demoted = old.peer == Role::Primary && new.peer == Role::Secondary && new.peer_disk == D::Diskless;
        let demoted = old.role == Role::Primary && new.role == Role::Secondary && !new.is_beyond();
        if (peer_demoted || demoted) && has_disk {
            self.out.push(Effect::WriteBitmap);
        }
        if old.disk == D::Attaching && new.disk >= D::Negotiating && connected {
            self.out.extend([Effect::SendSizes, Effect::SendUuids, Effect::SendState]);
        }
        let (was, is) = (old.paused, new.paused);
        let here = |p: Paused| (p.by_dependency, p.by_user, p.by_other);
        let pause_changed = here(was) != here(is);
        let handshake_over = !old.is_together() && connected;
        let becomes = |replication| new.replication == replication && old.replication != replication;
        // In 9's dialect each change of a disk that stays one is told.
        let disk_changed = nine && old.is_together() && old.disk != new.disk;
        // A promotion by force says it itself, after its generation.
        let by_force = old.role != Role::Primary && new.role == Role::Primary;
        let disk_changed = disk_changed && old.disk.min(new.disk) >= D::Inconsistent && !by_force;
        // So is the beginning of a resync or verify.
        let goes_on = |s: &View| s.replication.is_syncing() || s.replication.is_verifying();
        let started = nine && goes_on(&new) && !goes_on(&old);
        let other = old.standing.is_quorate() != new.standing.is_quorate();
        let votes_changed = nine && other && has_disk;
        let told = pause_changed || handshake_over || disk_changed || started || votes_changed || becomes(R::Ahead);
        if connected && told {
            self.out.push(Effect::SendState);
        }
        if becomes(R::StartingSyncS) || becomes(R::StartingSyncT) {
            self.out.push(Effect::SetAllBitsThenResync);
        }
        self.disk_lost();
        if old.is_beyond() && !new.is_beyond() {
            // A target that has not begun, and whose source lost its disk, has become worse: nothing else would say so.
            let spoiled = old.disk != D::Inconsistent && new.disk == D::Inconsistent;
            let told = old.replication >= R::SyncSource || spoiled;
            // In 9's dialect nor that a verify ended with the peer's disk.
            let cut = nine && old.replication.is_verifying() && new.peer_disk < D::Inconsistent;
            let told = (told && old.disk < D::UpToDate) || cut;
            if new.replication == R::Established && told && !disk_changed {
                self.out.push(Effect::SendState);
            }
            if has_disk {
                self.out.push(Effect::WriteBitmap);
            }
        }
    }

    fn disk_lost(&mut self) {
        let (old, new) = (self.old, self.new);
        let failed = new.disk == D::Failed && old.disk != D::Failed;
        if failed && self.own.call_local_io_error {
            self.out.push(Effect::Call(Handler::LocalIoError));
        }
        let gone = new.disk == D::Diskless && old.disk != D::Diskless;
        // The reference does not tell of one that was Outdated: the peer goes on believing that it is.
        let at_rest = old.replication == R::Established && new.replication == R::Established;
        let was_whole = old.disk == D::UpToDate || (at_rest && matches!(old.disk, D::Outdated | D::Consistent));
        let spoiled = was_whole && new.disk == D::Inconsistent;
        if (failed || gone || spoiled) && new.is_together() {
            self.out.push(Effect::SendState);
        }
    }

    fn connection(&mut self) {
        let new = self.new;
        if !new.is_together() && self.is_unfenced_and_all(|pair| pair.disk <= D::Outdated) {
            let generation = Effect::CreatePendingGeneration;
            self.out.extend([generation, Effect::CompleteWithoutPeer, Effect::LiftFencing]);
        }
    }
}

/// Has a disk been taken into service?
fn attached(old: &View, new: &View) -> bool {
    matches!(old.disk, D::Attaching | D::Negotiating) && new.disk == D::UpToDate
}
