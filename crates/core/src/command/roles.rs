//! Promotion and demotion (`docs/spec/connection-and-state.md` 8.2, 8.4): of all volumes, in one change.

use crate::Resource;
use crate::api::failure;
use crate::command::caller::Caller;
use crate::command::pending::{Demotion, Pending, Progress, SOON, Stage, Waiting};
use crate::decide::change::{Change, Set};
use crate::decide::roles::{Promotion, Step};
use crate::decide::state::Replication;
use crate::decide::view::{Kind, Refusal};
use crate::decide::{DiskState, StateChangeResult as Code, roles};
use crate::node::Node;
use units::{Duration, Generation, NodeId, NodeMask, VolumeNr};
use wire::{Role, UuidFlags};

impl Resource {
    pub(super) fn step_promotion(&mut self, id: Caller, promotion: Promotion, stage: Stage) -> Progress {
        let at = |stage| Progress::Waits(Waiting::Promote { promotion, stage });
        let soon = self.node.now + SOON;
        let later = || Progress::Later(Waiting::Promote { promotion, stage: Stage::Ask }, soon);
        if !matches!(stage, Stage::Ask | Stage::OnceSecondary(_)) {
            return at(stage);
        }
        if self.node.state.is_primary() && !promotion.changes(self.node.state.volumes.values().map(|v| v.disk)) {
            // Another command has done it, maybe while this one waited: no generation begins.
            return Progress::Ended(Ok(()));
        }
        if let Some(text) = self.apart_with_two_primaries().filter(|_| !self.asks_again(id)) {
            return Progress::Ended(Err(failure(Code::TwoPrimaries.code(), text)));
        }
        // What a lost peer wrote and is still on its way to a disk would change under the applications.
        if self.node.devices.values().any(|dev| dev.disk.attaching.is_some()) || self.peers_work_lingers() {
            return at(Stage::Ask);
        }
        if self.is_target9() {
            let refusal = Refusal { code: Code::ResyncRunning, volume: None };
            return self.promotion_result(promotion, Err(refusal));
        }
        let bad = |disk: DiskState| disk <= DiskState::Outdated && !promotion.forces(disk);
        let lacks = |volume: &VolumeNr| {
            self.lacks_own_copy9(*volume) && bad(self.node.state.disk(*volume)) && !self.is_untouched(*volume)
        };
        if let Some(volume) = self.node.devices.ids().find(lacks) {
            let refusal = Refusal { code: Code::NoUpToDateDisk, volume: Some(volume) };
            return self.promotion_result(promotion, Err(refusal));
        }
        if self.reconciles() || self.awaits_who_was_left() || self.is_unsettled() {
            return later();
        }
        let change = self.rise(&promotion);
        let forced = self.forced_volumes(&promotion);
        match self.agree(id, &change) {
            Ok(true) => {
                self.promoted(&forced);
                self.promotion_result(promotion, Ok(()))
            }
            Ok(false) => at(Stage::Answer),
            Err(Refusal { code: Code::InTransientState, .. }) => later(),
            Err(refusal) => self.promotion_result(promotion, Err(refusal)),
        }
    }

    /// What a promotion asks for as things are.
    fn rise(&self, promotion: &Promotion) -> Change {
        let mut change = Change::from(Set::Role(Role::Primary));
        for volume in self.node.devices.ids() {
            let rise = promotion.request(self.node.state.disk(volume));
            if self.is_untouched(volume) {
                change.push(Set::Unused(volume));
            }
            rise.disk.into_iter().for_each(|disk| change.push(Set::Disk(volume, disk)));
            for (peer, pair) in self.node.state.pairs(volume) {
                // A peer that is there says itself what its disk is.
                let away = pair.replication == Replication::Off;
                rise.peer_disk
                    .filter(|_| away)
                    .into_iter()
                    .for_each(|disk| change.push(Set::PeerDisk(peer, volume, disk)));
            }
        }
        change
    }

    /// The peer has agreed to a promotion: before it takes place, what is not needed any more is left out.
    /// Returns that, and the volumes that are promoted by force.
    pub(super) fn promotion_agreed(&self, command: Caller) -> Option<(Change, Vec<VolumeNr>)> {
        match self.pending.iter().find(|p| p.id == command)? {
            Pending { what: Waiting::Promote { promotion, .. }, .. } => {
                Some((self.rise(promotion), self.forced_volumes(promotion)))
            }
            _ => None,
        }
    }

    pub(super) fn promotion_result(&mut self, mut promotion: Promotion, outcome: Result<(), Refusal>) -> Progress {
        let (code, about) = match outcome {
            Ok(()) => (Code::Success, None),
            Err(refusal) => (refusal.code, refusal.volume),
        };
        let volume = about.unwrap_or(self.node.devices.first());
        // A resource may be without volumes.
        let disk = self.node.state.volumes.get(volume).map_or(DiskState::Diskless, |v| v.disk);
        match promotion.next(code, disk) {
            Step::Done => Progress::Ended(Ok(())),
            Step::Request(_) => Progress::Waits(Waiting::Promote { promotion, stage: Stage::Ask }),
            Step::FencePeer => self.fence_for_promotion(promotion, code, volume),
            Step::WaitThenRequest(_) => {
                let patience = self.node.connections.values().map(|c| c.cfg.ping_timeout).max().unwrap_or(Duration(0));
                let at = self.node.now + patience + Duration::from_millis(100);
                let is_primary = |peer: &NodeId| self.node.state.peers[*peer].role() == Role::Primary;
                let primaries = self.node.connections.ids().filter(is_primary).collect();
                Progress::Later(Waiting::Promote { promotion, stage: Stage::OnceSecondary(primaries) }, at)
            }
            Step::Failed(code) => Progress::Ended(Err(self.refusal(volume, code))),
        }
    }

    /// Has the peers fenced that are out of reach. Without a handler the answer is there already.
    fn fence_for_promotion(&mut self, promotion: Promotion, code: Code, volume: VolumeNr) -> Progress {
        let mut away: Vec<_> =
            self.node.connections.ids().filter(|peer| !self.node.state.is_connected(*peer)).collect();
        if away.is_empty() {
            away.extend(self.node.connections.ids());
        }
        let mut waits = NodeMask::default();
        let mut fenced = true;
        for peer in away {
            match self.fence(peer) {
                Some(result) => fenced &= result,
                None => waits.insert(peer),
            }
        }
        if waits.is_empty() {
            return self.promotion_fenced(promotion, fenced, code, volume);
        }
        Progress::Waits(Waiting::Promote { promotion, stage: Stage::Fence { code, volume, waits, fenced } })
    }

    fn promotion_fenced(&mut self, mut promotion: Promotion, fenced: bool, code: Code, volume: VolumeNr) -> Progress {
        match promotion.fenced(fenced, code, self.node.state.disk(volume)) {
            Step::Failed(code) => Progress::Ended(Err(self.refusal(volume, code))),
            _ => Progress::Waits(Waiting::Promote { promotion, stage: Stage::Ask }),
        }
    }

    /// `fence-peer` has its result.
    pub(crate) fn fencing_ended(&mut self, peer: NodeId, result: bool) {
        let of_peer = |p: &Pending| match p.what {
            Waiting::Promote { stage: Stage::Fence { waits, .. }, .. } => waits.contains(peer),
            _ => false,
        };
        let all = std::mem::take(&mut self.pending);
        let (waiting, others): (Vec<_>, Vec<_>) = all.into_iter().partition(of_peer);
        self.pending = others;
        for Pending { id, what, .. } in waiting {
            let Waiting::Promote { promotion, stage } = what else { continue };
            let Stage::Fence { code, volume, mut waits, fenced } = stage else { continue };
            waits.remove(peer);
            let fenced = fenced && result;
            let next = if waits.is_empty() {
                self.promotion_fenced(promotion, fenced, code, volume)
            } else {
                let stage = Stage::Fence { code, volume, waits, fenced };
                Progress::Waits(Waiting::Promote { promotion, stage })
            };
            self.goes_on_or_ends(self.pending.len(), id, next);
        }
    }

    /// This node has become Primary, with these volumes by force.
    pub(super) fn promoted(&mut self, forced: &[VolumeNr]) {
        self.node.connections.values_mut().for_each(|c| c.discard_my_data = false);
        for volume in self.node.devices.ids() {
            let view = self.view(volume);
            let connected = view.is_together();
            let promoted = roles::promoted(forced.contains(&volume), connected, view.disk, view.peer_disk);
            // With 9's dialect it begins with the first write; of what has no data, with the data.
            let later = self.node.state.volumes[volume].unused
                || self.node.devices[volume].due.first_write.is_due() && !forced.contains(&volume);
            if forced.contains(&volume) && self.has_peers_of_9() {
                self.begin_forced9(volume);
            } else if promoted.new_generation && !later {
                self.new_generation(volume);
            } else {
                self.note_role_in_generation(volume);
            }
            if promoted.send_uuids {
                self.tell_uuids(volume, UuidFlags::NONE);
            }
            if connected {
                self.tell_state(volume);
            }
            self.md_changed(volume);
        }
    }

    fn note_role_in_generation(&mut self, volume: VolumeNr) {
        let primary = self.node.state.is_primary();
        // In 9's dialect the bit says who began the generation, not who is Primary by now.
        if primary && self.has_peers_of_9() {
            return;
        }
        if let Some(b) = &mut self.node.devices[volume].backing
            && b.md.current != Generation::JUST_CREATED
        {
            b.md.current = b.md.current.with_primary_bit(primary);
        }
    }

    pub(super) fn step_demotion(&mut self, id: Caller, how: Demotion, asked: bool) -> Progress {
        if asked {
            return Progress::Waits(Waiting::Demote { how, asked });
        }
        if !self.node.state.is_primary() {
            return self.demotion_result(&how, Ok(()));
        }
        if how != Demotion::Unused {
            self.node.devices.values_mut().for_each(|dev| dev.openers = crate::Openers::default());
        }
        if self.node.devices.values().any(|dev| dev.openers.writers + dev.openers.readers > 0) {
            let text = "the device is in use: close it (umount, stop the VM, disconnect NBD clients) and try again";
            return Progress::Ended(Err(failure(Code::DeviceInUse.code(), text)));
        }
        // Everything on its way must be settled on both sides (spec 8.2).
        self.close_epoch();
        self.send_due_barriers();
        let busy = self.requests_under_way() && !self.node.state.is_frozen();
        let unconfirmed = self.connected().any(|(_, c)| !c.log.is_confirmed());
        if busy || unconfirmed {
            return Progress::Waits(Waiting::Demote { how, asked: false });
        }
        if self.changes_in_two_phases() {
            self.settle_marks_of_others();
            return match self.agree_in_two_phases(id, &Set::Role(Role::Secondary).into()) {
                Ok(_) => Progress::Waits(Waiting::Demote { how, asked: true }),
                Err(Refusal { code: Code::InTransientState, .. }) => {
                    Progress::Waits(Waiting::Demote { how, asked: false })
                }
                Err(refusal) => self.demotion_result(&how, Err(refusal)),
            };
        }
        if let Err(refusal) = self.make(Set::Role(Role::Secondary), Kind::Wish) {
            return self.demotion_result(&how, Err(refusal));
        }
        self.has_become_secondary();
        self.demotion_result(&how, Ok(()))
    }

    pub(super) fn demotion_result(&mut self, how: &Demotion, outcome: Result<(), Refusal>) -> Progress {
        match (outcome, how) {
            (Ok(()), Demotion::GivingIn(behind)) => {
                let good =
                    |v: &&VolumeNr| matches!(self.node.state.disk(**v), DiskState::Consistent | DiskState::UpToDate);
                let outdated = behind.iter().filter(good).map(|volume| Set::Disk(*volume, DiskState::Outdated));
                self.took_place(outdated.collect::<Change>());
                Progress::Ended(Ok(()))
            }
            (Ok(()), _) => Progress::Ended(Ok(())),
            (Err(refusal), _) => {
                let volume = refusal.volume.unwrap_or(self.node.devices.first());
                Progress::Ended(Err(self.refusal(volume, refusal.code)))
            }
        }
    }

    /// `on-suspended-primary-outdated force-secondary`: this volume is older than a peer's, and its users wait (9.7).
    pub(crate) fn gives_in(&mut self, volume: VolumeNr) {
        let waiting = self.pending.iter_mut().chain(&mut self.begun);
        let under_way = waiting.filter_map(|p| p.what.gives_in()).next();
        match under_way {
            Some(behind) if behind.contains(&volume) => {}
            Some(behind) => behind.push(volume),
            None => {
                let how = Demotion::GivingIn(vec![volume]);
                self.wait_for(Caller::GivingIn, Waiting::Demote { how, asked: false });
            }
        }
    }

    /// The change has taken place.
    pub(super) fn has_become_secondary(&mut self) {
        self.say_who_has_what();
        self.tell_demotion();
        self.node.devices.ids().for_each(|volume| self.demoted(volume));
    }

    fn demoted(&mut self, volume: VolumeNr) {
        self.reads_outlive_role(volume);
        self.refuse_waiting(volume);
        self.note_role_in_generation(volume);
        if self.node.state.replicates_anywhere(volume) {
            self.tell_state(volume);
        }
        self.md_changed(volume);
    }
}

impl Node {
    /// With `allow-two-primaries` one of several peers is connected at a time (`refuse_beside_other`). Is there one
    /// that is not, perhaps for that reason alone? It may be Primary, or be promoted, without meeting this node.
    fn apart_with_two_primaries(&self) -> Option<String> {
        let two = self.connections.members().len() > 1 && self.connections.values().any(|c| c.cfg.two_primaries);
        let (_, apart) = self.connections.iter().find(|(peer, _)| two && !self.state.is_connected(*peer))?;
        let (name, resource) = (&apart.cfg.peer_name, &self.cfg.name);
        Some(format!(
            "{name} is not connected: with allow-two-primaries one of several peers is at a time as yet, and {name} \
             may be Primary as well; set allow-two-primaries to no: urbd adjust {resource}"
        ))
    }

    /// Volumes whose users are going to see data that was not known to be good.
    fn forced_volumes(&self, promotion: &Promotion) -> Vec<VolumeNr> {
        self.devices.ids().filter(|volume| promotion.forces(self.state.disk(*volume))).collect()
    }
}
