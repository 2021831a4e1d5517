//! Detach, invalidate, generations and size on command (`docs/spec/connection-and-state.md` 11.4, 12).

use crate::Resource;
use crate::api::{CommandError, ConnectionState, failure};
use crate::command::caller::Caller;
use crate::command::pending::{GiveUp, Progress, Waiting};
use crate::connection::Connection;
use crate::decide::StateChangeResult as Code;
use crate::decide::change::{Change, Set};
use crate::decide::state::{PairState, Replication};
use crate::decide::view::{Kind, Refusal};
use crate::device::{Device, Leaving};
use crate::node::Node;
use crate::replaced::{Copied, Replaced};
use crate::request::under_way::Request;
use units::{Generation, NodeId, VolumeNr};
use wire::{DiskState, UuidFlags};

/// From this version on bitmaps are exchanged by command.
pub(crate) const KEEPS_BITMAP: u32 = 120;

impl Resource {
    pub(super) fn detach(&mut self, id: Caller, volume: VolumeNr, force: bool) {
        if self.node.devices[volume].backing.is_none() {
            return self.end(Some(id), Ok(()));
        }
        if self.node.devices[volume].disk.attaching.is_some() {
            if !force {
                let text = "the disk is just being attached: try again when that has ended";
                return self.end(Some(id), Err(failure(Code::InTransientState.code(), text)));
            }
            self.attach_failed(volume, 0, "detached before the attach had ended".to_owned());
            return self.end(Some(id), Ok(()));
        }
        if force {
            self.node.devices[volume].lets_go(Leaving::AtOnce);
            self.node.devices[volume].disk.detach_commands.push(id);
            self.took_place(Set::Disk(volume, DiskState::Failed));
            return self.pump_detach(volume);
        }
        self.wait_for(id, Waiting::Detach { volume, step: GiveUp::Wish });
    }

    /// Does somebody wait for this disk to be let go of?
    pub(crate) fn detaches_by_command(&self, volume: VolumeNr) -> bool {
        let wants = |what: &Waiting| matches!(what, Waiting::Detach { volume: of, .. } if *of == volume);
        let disk = &self.node.devices[volume].disk;
        disk.leaving == Some(Leaving::Asked)
            || !disk.detach_commands.is_empty()
            || self.pending.iter().chain(&self.begun).any(|p| wants(&p.what))
    }

    pub(super) fn step_detach(&mut self, id: Caller, volume: VolumeNr, step: GiveUp) -> Progress {
        let at = |step| Progress::Waits(Waiting::Detach { volume, step });
        if step == GiveUp::Sent {
            return at(step);
        }
        if !self.node.devices[volume].can_detach() {
            return Progress::Ended(Ok(()));
        }
        let change = Change::from(Set::Disk(volume, DiskState::Failed));
        if self.would_be(&change, Kind::Wish).is_ok() && !self.peer_has_all(volume) {
            return at(GiveUp::Draining);
        }
        // Where nobody has to agree the state is stored here, and says that a command gives the disk up.
        self.node.devices[volume].disk.detach_commands.push(id);
        let agreed = self.agree(id, &change);
        if !matches!(agreed, Ok(true)) {
            self.node.devices[volume].disk.detach_commands.pop();
        }
        match agreed {
            Ok(true) => Progress::Left,
            Ok(false) => at(GiveUp::Sent),
            Err(Refusal { code: Code::InTransientState, .. }) => at(GiveUp::Wish),
            Err(refusal) => Progress::Ended(Err(self.refusal(volume, refusal.code))),
        }
    }

    pub(crate) fn replace(&mut self, id: Caller, volume: VolumeNr, replaced: Replaced, copied: Copied) {
        self.wait_for(id, Waiting::Invalidate { volume, replaced, copied, step: GiveUp::Wish });
    }

    pub(super) fn step_replace(
        &mut self,
        id: Caller,
        volume: VolumeNr,
        (replaced, copied): (Replaced, Copied),
        step: GiveUp,
    ) -> Progress {
        let at = |step| Progress::Waits(Waiting::Invalidate { volume, replaced, copied, step });
        if step == GiveUp::Sent {
            return at(step);
        }
        if let Err(refusal) = self.has_disk(volume) {
            return Progress::Ended(Err(refusal));
        }
        let own = matches!(replaced, Replaced::Own { .. });
        let partner = replaced.peer().or_else(|| self.source_to_copy_from(volume));
        if copied == Copied::Marked
            && let Err(refusal) = self.copies_marked(partner)
        {
            return Progress::Ended(Err(refusal));
        }
        let alone =
            self.node.connections.ids().all(|peer| self.node.state.connection(peer) == ConnectionState::StandAlone);
        // Who is connected to nobody copies nothing now: that copy counts as bad, and is replaced at the next connect.
        let bad = match (replaced, self.node.state.is_primary()) {
            (Replaced::Own { source: None }, false) => Some(Set::Disk(volume, DiskState::Inconsistent)),
            (Replaced::Peer(peer), true) => Some(Set::PeerDisk(peer, volume, DiskState::Inconsistent)),
            _ => None,
        };
        if let Some(bad) = bad.filter(|_| alone) {
            partner.into_iter().for_each(|peer| self.mark_all(peer, volume));
            return Progress::Ended(self.make(bad, Kind::Fact).map_err(|r| self.refusal(volume, r.code)));
        }
        let Some(peer) = partner else {
            return Progress::Ended(Err(self.refusal(volume, Code::NeedConnection)));
        };
        let starting = match (copied, replaced) {
            (Copied::All, Replaced::Peer(_)) => Replication::StartingSyncS,
            (Copied::All, Replaced::Own { .. }) => Replication::StartingSyncT,
            (Copied::Marked, Replaced::Peer(_)) => Replication::WFBitMapS,
            (Copied::Marked, Replaced::Own { .. }) => Replication::WFBitMapT,
        };
        let change = Change::from(Set::Replication(peer, volume, starting));
        if own && self.in_mesh9() && self.node.state.is_primary() {
            let text = "among several peers a Primary is not brought up to date: make it Secondary first";
            return Progress::Ended(Err(failure(Code::NotSupported.code(), text)));
        }
        if own && self.would_be(&change, Kind::Wish).is_ok() && !self.peer_has_all(volume) {
            return at(GiveUp::Draining);
        }
        match self.agree(id, &change) {
            Ok(true) => Progress::Ended(Ok(())),
            Ok(false) => at(GiveUp::Sent),
            Err(Refusal { code: Code::InTransientState, .. }) => at(GiveUp::Wish),
            Err(refusal) => Progress::Ended(Err(self.refusal(volume, refusal.code))),
        }
    }

    /// Is this volume's own copy about to be given up, by a command here or of the peer? Then no write begins: it would
    /// rely on two copies.
    pub(crate) fn gives_up_copy(&self, volume: VolumeNr) -> bool {
        let for_peer = |c: &Connection| c.asked_later.is_some_and(|(of, _)| of == volume);
        self.pending.iter().any(|p| p.what.gives_up(volume)) || self.node.connections.values().any(for_peer)
    }

    /// Has the peer all that was sent to it, for good? If not, it is asked to say so, by a barrier.
    ///
    /// What is acknowledged is on the own disk and, with protocol C, in the cache of the peer's. Who gives up the own
    /// copy gives up the only one that survives the loss of the peer's power: first the other one must be as good. One
    /// that is not good itself stands for nothing.
    pub(super) fn peer_has_all(&mut self, volume: VolumeNr) -> bool {
        let of_volume = |key| matches!(self.requests.get(key), Some(Request::Write(w)) if w.device == volume);
        let lacks = self.node.connections.values().any(|c| c.log.unconfirmed().any(|sent| of_volume(sent.request)));
        let good = self.node.state.disk(volume) == DiskState::UpToDate;
        if !lacks || !good {
            return true;
        }
        self.close_epoch();
        self.send_due_barriers();
        false
    }

    /// StartingSyncS or StartingSyncT: everything differs, so that no bitmaps are exchanged; the target waits for the
    /// generation (spec 12.7).
    pub(crate) fn starting_sync(&mut self, peer: NodeId, volume: VolumeNr) {
        if self.node.connections[peer].speaks9() {
            return self.starting_sync9(peer, volume);
        }
        self.mark_all(peer, volume);
        match self.node.state.replication(peer, volume) {
            Replication::StartingSyncS => self.begin_as_source(peer, volume),
            Replication::StartingSyncT => {
                self.enter_resync(peer, Set::Replication(peer, volume, Replication::WFSyncUUID).into());
            }
            _ => {}
        }
    }

    pub(super) fn outdate(&mut self, id: Caller, volume: VolumeNr) {
        if self.node.devices[volume].disk.attaching.is_some() {
            let text = "the disk is just being attached: try again when that has ended";
            return self.end(Some(id), Err(failure(Code::InTransientState.code(), text)));
        }
        let outdated = Set::Disk(volume, DiskState::Outdated);
        let result = self.make(outdated, Kind::Wish).map_err(|r| self.refusal(volume, r.code));
        self.end(Some(id), result);
    }

    /// The bitmaps of all nodes count from the present generation, and what they counted from is history.
    fn begin_by_command(&mut self, volume: VolumeNr, partner: Option<NodeId>, (clear, skip): (bool, bool)) {
        let fresh = self.draw_generation();
        self.move_sets(volume, |peer, set| {
            set.retire_bitmap();
            set.start_generation(fresh);
            if skip && peer == partner {
                set.bitmap = Generation::NONE;
            }
        });
        if clear {
            for peer in self.node.connections.ids() {
                if let Some((b, slot)) = self.node.devices[volume].bitmap_mut(peer) {
                    b.fill(slot, false);
                }
            }
            self.write_bitmap(volume);
        }
    }

    /// `new-current-uuid --force-resync` (12.8): this node's copy counts as good, and replaces the peers', which
    /// were just created as it was.
    pub(super) fn force_resync(&mut self, id: Caller, volume: VolumeNr) {
        if let Err(refusal) = self.has_disk(volume).and_then(|()| self.node.can_replace_others(volume)) {
            return self.end(Some(id), Err(refusal));
        }
        self.node.connections.ids().for_each(|peer| self.mark_all(peer, volume));
        self.took_place(Set::Disk(volume, DiskState::UpToDate));
        self.begin_replacing(volume);
        let with_disk: Vec<NodeId> = self.node.replicated_with_disk(volume).collect();
        for peer in with_disk {
            self.replace(Caller::Copying(volume), volume, Replaced::Peer(peer), Copied::All);
        }
        self.tell_state(volume);
        self.end(Some(id), Ok(()));
    }

    pub(super) fn new_current_uuid(&mut self, id: Caller, volume: VolumeNr, clear_bitmap: bool) {
        if let Err(refusal) = self.has_disk(volume) {
            return self.end(Some(id), Err(refusal));
        }
        let (partner, view) = (self.partner(volume), self.view(volume));
        let set = self.node.devices[volume].uuids(partner);
        let skip = clear_bitmap
            && view.replication == Replication::Established
            && partner.is_some_and(|peer| self.node.connections[peer].version() >= 90)
            && set.current == Generation::JUST_CREATED;
        if skip && (is_attaching(view.peer_disk) || view.disk < DiskState::Inconsistent) {
            // What is not there cannot be declared equal, and a disk that is attached later would be taken for good.
            let text = "both nodes need their disks, and one of them is not attached: try again when it is";
            return self.end(Some(id), Err(failure(151, text)));
        }
        let alone =
            self.node.connections.ids().all(|peer| self.node.state.connection(peer) == ConnectionState::StandAlone);
        if !skip && !alone {
            let text = "only on a StandAlone node, or with --clear-bitmap on two connected, just created nodes";
            return self.end(Some(id), Err(failure(151, text)));
        }
        let in_9 = partner.filter(|_| skip).is_some_and(|peer| self.node.connections[peer].speaks9());
        if in_9 {
            self.begin_equal9(volume);
        } else {
            self.begin_by_command(volume, partner, (clear_bitmap, skip));
        }
        self.node.devices[volume].seen.exposed = self.node.devices[volume].uuids(partner).current;
        if let Some(peer) = partner.filter(|_| skip) {
            self.tell_uuids(volume, UuidFlags::SKIP_INITIAL_SYNC);
            self.node.peer_has_our_generations(peer, volume);
            let mut change = Change::from(Set::Disk(volume, DiskState::UpToDate));
            let here = |(_, pair): &(NodeId, &PairState)| {
                pair.replication >= Replication::Established && pair.disk >= DiskState::Inconsistent
            };
            let declared = self.node.state.pairs(volume).filter(here).map(|(peer, _)| peer);
            declared.for_each(|peer| change.push(Set::PeerDisk(peer, volume, DiskState::UpToDate)));
            self.took_place(change);
            if view.peer_disk == DiskState::Diskless {
                // The peer takes no generations, so nothing else tells it of this node's disk.
                self.tell_state(volume);
            }
        }
        self.end(Some(id), Ok(()));
    }
}

impl Node {
    /// Is there a disk that a command can be about?
    ///
    /// # Errors
    /// One that is being attached is not there yet, one that is being let go of not any more.
    pub(super) fn has_disk(&self, volume: VolumeNr) -> Result<(), CommandError> {
        let dev = &self.devices[volume];
        if dev.disk.attaching.is_some() {
            let text = "the disk is just being attached: try again when that has ended";
            return Err(failure(Code::InTransientState.code(), text));
        }
        if !self.usable(volume) {
            return Err(failure(138, "the volume has no disk here: attach it first"));
        }
        Ok(())
    }

    /// Peers to which the volume is replicated and that have a disk for it.
    fn replicated_with_disk(&self, volume: VolumeNr) -> impl Iterator<Item = NodeId> {
        let here =
            |(_, pair): &(NodeId, &PairState)| pair.replication != Replication::Off && pair.disk > DiskState::Diskless;
        self.state.pairs(volume).filter(here).map(|(peer, _)| peer)
    }

    /// May this node's copy replace those of all others that are here? Only one that nobody has written to yet.
    fn can_replace_others(&self, volume: VolumeNr) -> Result<(), CommandError> {
        let fresh = self.devices[volume].uuids(None).current.same(Generation::JUST_CREATED);
        let here = || self.state.pairs(volume).filter(|(_, pair)| pair.replication != Replication::Off);
        if here().any(|(_, pair)| !fresh || pair.replication != Replication::Established) {
            let text = "with --force-resync only of a volume that was just created on this node and is not being copied, \
                        or without a connection";
            return Err(failure(151, text));
        }
        if self.replicated_with_disk(volume).any(|peer| !self.may_copy(peer, volume, Replication::StartingSyncS)) {
            let text = "among several peers a Primary that has a disk is not brought up to date, nor one that is being \
                        copied to: with --force-resync on the Primary, or later";
            return Err(failure(Code::NotSupported.code(), text));
        }
        if here().any(|(_, pair)| is_attaching(pair.disk)) || self.state.disk(volume) < DiskState::Inconsistent {
            let text = "a disk is just being attached: try again when that has ended";
            return Err(failure(151, text));
        }
        Ok(())
    }

    /// The Primary, or another peer with a good copy.
    fn source_to_copy_from(&self, volume: VolumeNr) -> Option<NodeId> {
        let good = |peer: &NodeId| {
            self.state.replicates(*peer, volume) && self.state.peer_disk(*peer, volume) == DiskState::UpToDate
        };
        let partner = self.partner(volume)?;
        Some(partner).filter(good).or_else(|| self.connections.ids().find(good)).or(Some(partner))
    }

    /// What is marked can be copied without a new handshake in 9's dialect only.
    fn copies_marked(&self, partner: Option<NodeId>) -> Result<(), CommandError> {
        let Some(peer) = partner.filter(|peer| self.state.is_connected(*peer)) else {
            let text = "with --reset-bitmap=no this needs a connection to the peer: connect first";
            return Err(failure(Code::NeedConnection.code(), text));
        };
        if self.connections[peer].version() < KEEPS_BITMAP {
            let text = "this peer can only replace all of a volume: --reset-bitmap=no needs protocol version 120, of DRBD \
                        9's dialect; without it all is copied, and after a verify `disconnect` and `connect` copy what differs";
            return Err(failure(175, text));
        }
        Ok(())
    }
}

/// Is it not known yet what the disk is worth?
fn is_attaching(disk: DiskState) -> bool {
    (DiskState::Attaching..DiskState::Inconsistent).contains(&disk)
}

impl Device {
    /// Is there a disk in use that a detach would let go of?
    pub(super) fn can_detach(&self) -> bool {
        self.backing.is_some() && self.disk.attaching.is_none()
    }
}
