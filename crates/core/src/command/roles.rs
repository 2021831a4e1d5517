//! Promotion and demotion (`docs/spec/connection-and-state.md` 8.2, 8.4).

use super::{Pending, Progress, Stage, Waiting};
use crate::Resource;
use crate::decide::roles::{self, Promotion, Step};
use crate::decide::rules84::{self, Force};
use crate::decide::{StateChange, StateChangeResult as Code};
use crate::liveness::failure;
use crate::mutant::{Mutant, mutant};
use units::{Duration, Generation, NodeId, VolumeNr};
use wire::{DiskState, Role, UuidFlags};

impl Resource {
    pub(super) fn step_promotion(
        &mut self,
        id: u64,
        promotion: Promotion,
        force: bool,
        volume: VolumeNr,
        stage: Stage,
    ) -> Progress {
        match stage {
            Stage::Answer | Stage::Fence(_) => (Some(Waiting::Promote { promotion, force, volume, stage }), None),
            Stage::Later(at) if self.now < at => (Some(Waiting::Promote { promotion, force, volume, stage }), None),
            Stage::Ask | Stage::Later(_) => {
                // What a lost peer wrote and is still on its way to a disk would change under the applications.
                if self.devices.values().any(|d| d.attaching.is_some()) || self.peers_work_lingers() {
                    return (Some(Waiting::Promote { promotion, force, volume, stage: Stage::Ask }), None);
                }
                if volume == self.devices.first()
                    && let Some((other, code)) = self.promotion_hopeless(promotion)
                {
                    return (None, Some(Err(self.refusal(other, code))));
                }
                let dev = &self.devices[volume];
                if dev.role == Role::Primary && (!force || self.state.disk(volume) == DiskState::UpToDate) {
                    // Another command has done it while this one waited: no generation begins.
                    let next = self.next_promotion(force, volume);
                    return self.go_on_promoting(id, next);
                }
                let conn = self.word(volume).conn;
                let promotion = if mutant(Mutant::LatePeerOutdated) { promotion } else { promotion.beside(conn) };
                let promotion = promotion.with_disk(self.state.disk(volume));
                match self.agree(id, self.peer(), volume, &promotion.request()) {
                    Ok(true) => {
                        let next = self.promotion_result(promotion, force, volume, Ok(()));
                        self.go_on_promoting(id, next)
                    }
                    Ok(false) => (Some(Waiting::Promote { promotion, force, volume, stage: Stage::Answer }), None),
                    Err(Code::InTransientState) => {
                        let at = self.now + Duration::from_millis(100);
                        (Some(Waiting::Promote { promotion, force, volume, stage: Stage::Later(at) }), None)
                    }
                    Err(code) => self.promotion_result(promotion, force, volume, Err(code)),
                }
            }
        }
    }

    /// At once: another command in between could make it hopeless half-way.
    fn go_on_promoting(&mut self, id: u64, next: Progress) -> Progress {
        match next {
            (Some(Waiting::Promote { promotion, force, volume, stage: stage @ Stage::Ask }), None) => {
                self.step_promotion(id, promotion, force, volume, stage)
            }
            other => other,
        }
    }

    /// A volume is Primary: the next one, or the end. Those before may have been demoted while this one waited for a
    /// handler: then they are promoted once more, but not by force. That was said of what they held before, and they
    /// may have been invalidated since.
    fn next_promotion(&self, force: bool, volume: VolumeNr) -> Progress {
        let next = self.devices.after(volume).map(|next| (next, force));
        let demoted = || self.devices.ids().find(|d| self.devices[*d].role != Role::Primary);
        let again = || Some((demoted()?, force && mutant(Mutant::ForcedTwice)));
        let Some((volume, force)) = next.or_else(again) else { return (None, Some(Ok(()))) };
        (Some(Waiting::Promote { promotion: Promotion::new(force), force, volume, stage: Stage::Ask }), None)
    }

    /// A volume that cannot be promoted, whatever is tried. Looked at before the first one is: a promotion that is
    /// taken back would leave a generation of its own behind, and a split brain that nobody wanted.
    fn promotion_hopeless(&self, promotion: Promotion) -> Option<(VolumeNr, Code)> {
        self.devices.ids().find_map(|d| {
            let judged = rules84::judge(&self.word(d), &promotion.request(), Force::Soft, &self.context(d));
            let code = judged.err().filter(|code| !matches!(code, Code::NothingToDo | Code::InTransientState))?;
            match promotion.clone().next(code, self.state.disk(d)) {
                Step::Failed(code) => Some((d, code)),
                _ => None,
            }
        })
    }

    pub(super) fn promotion_result(
        &mut self,
        mut promotion: Promotion,
        force: bool,
        volume: VolumeNr,
        outcome: Result<(), Code>,
    ) -> Progress {
        let code = outcome.err().unwrap_or(Code::Success);
        let disk = self.state.disk(volume);
        match promotion.next(code, disk) {
            Step::Done { forced } => {
                self.promoted(volume, forced);
                self.next_promotion(force, volume)
            }
            Step::Request(_) => (Some(Waiting::Promote { promotion, force, volume, stage: Stage::Ask }), None),
            Step::FencePeer => {
                // What an earlier one said, which nobody waited for, is about another time.
                let i = self.peer();
                self.connections[i].fence_result = None;
                self.fence(i);
                // Without a handler the answer is there already.
                match self.connections[i].fence_result.take() {
                    Some(fenced) => self.promotion_fenced(promotion, force, volume, fenced, code),
                    None => (Some(Waiting::Promote { promotion, force, volume, stage: Stage::Fence(code) }), None),
                }
            }
            Step::WaitThenRequest(_) => {
                let at = self.now + self.connections[self.peer()].cfg.ping_timeout + Duration::from_millis(100);
                (Some(Waiting::Promote { promotion, force, volume, stage: Stage::Later(at) }), None)
            }
            Step::Failed(code) => self.promotion_failed(volume, code),
        }
    }

    /// The peer has agreed to a promotion: before it takes place, what is not needed any more is left out.
    pub(super) fn promotion_agreed(&mut self, d: VolumeNr, command: u64) {
        let disk = self.state.disk(d);
        let pending = self.pending.iter_mut().find(|p| p.id == command);
        if let Some(Pending { what: Waiting::Promote { promotion, .. }, .. }) = pending
            && !mutant(Mutant::ForcedAfterResync)
        {
            *promotion = promotion.with_disk(disk);
        }
    }

    /// Volumes that were promoted before this one go back, those after it, too, if this one is tried once more.
    fn promotion_failed(&mut self, volume: VolumeNr, code: Code) -> Progress {
        let error = self.refusal(volume, code);
        let others = |d: &VolumeNr| *d != volume;
        for d in self.devices.ids().filter(others) {
            let change = StateChange { role: Some(Role::Secondary), ..StateChange::default() };
            if self.change(d, &change, Force::Soft).is_ok() {
                self.demoted(d);
            }
        }
        (None, Some(Err(error)))
    }

    pub(super) fn promotion_fenced(
        &mut self,
        mut promotion: Promotion,
        force: bool,
        volume: VolumeNr,
        fenced: bool,
        code: Code,
    ) -> Progress {
        let disk = self.state.disk(volume);
        match promotion.fenced(fenced, code, disk) {
            Step::Failed(code) => self.promotion_failed(volume, code),
            _ => (Some(Waiting::Promote { promotion, force, volume, stage: Stage::Ask }), None),
        }
    }

    /// `fence-peer` has its result.
    pub(crate) fn fencing_ended(&mut self, i: NodeId, fenced: bool) {
        let (waiting, others): (Vec<_>, Vec<_>) = std::mem::take(&mut self.pending)
            .into_iter()
            .partition(|p| matches!(p.what, Waiting::Promote { stage: Stage::Fence(_), .. }));
        self.pending = others;
        // Without a handler the answer comes before anyone waits for it.
        self.connections[i].fence_result = waiting.is_empty().then_some(fenced);
        for Pending { id, what } in waiting {
            let Waiting::Promote { promotion, force, volume, stage: Stage::Fence(code) } = what else { continue };
            match self.promotion_fenced(promotion, force, volume, fenced, code) {
                (Some(what), _) => self.pending.push(Pending { id, what }),
                (None, Some(result)) => self.end(Some(id), result),
                (None, None) => {}
            }
        }
    }

    pub(super) fn promoted(&mut self, d: VolumeNr, forced: bool) {
        let word = self.word(d);
        let effects = roles::promoted(forced, word.conn, word.disk, word.pdsk);
        if effects.drop_discard_my_data {
            self.connections.values_mut().for_each(|c| c.discard_my_data = false);
        }
        if effects.new_generation {
            self.new_generation(d);
        } else if let Some(b) = &mut self.devices[d].backing
            && b.md.current != Generation::JUST_CREATED
        {
            b.md.current = b.md.current.with_primary_bit(true);
        }
        if effects.send_uuids {
            self.tell_uuids(d, UuidFlags::NONE);
        }
        if effects.send_state {
            self.tell_state(d);
        }
        self.md_changed(d);
    }

    pub(super) fn step_demotion(&mut self, force: bool) -> Progress {
        if self.state.role != Role::Primary {
            return (None, Some(Ok(())));
        }
        if force {
            self.devices.values_mut().for_each(|d| d.openers = crate::Openers::default());
        }
        if self.devices.values().any(|d| d.openers.writers + d.openers.readers > 0) {
            let text = "the device is in use: close it (umount, stop the VM, disconnect NBD clients) and try again";
            return (None, Some(Err(failure(Code::DeviceInUse.code(), text))));
        }
        // Everything on its way must be settled on both sides (spec 8.2).
        self.close_epoch();
        self.send_due_barriers();
        let busy = self.requests_under_way() && !self.state.is_frozen();
        let unconfirmed = self.connected().any(|(_, c)| !c.log.is_empty());
        if busy || unconfirmed {
            return (Some(Waiting::Demote { force }), None);
        }
        let change = StateChange { role: Some(Role::Secondary), ..StateChange::default() };
        if let Err(code) = self.change_all(&change, Force::Soft) {
            return (None, Some(Err(self.refusal(self.devices.first(), code))));
        }
        self.devices.ids().for_each(|d| self.demoted(d));
        (None, Some(Ok(())))
    }

    fn demoted(&mut self, d: VolumeNr) {
        self.reads_outlive_role(d);
        self.refuse_waiting(d);
        if let Some(b) = &mut self.devices[d].backing
            && b.md.current != Generation::JUST_CREATED
        {
            b.md.current = b.md.current.with_primary_bit(false);
        }
        let conn = self.word(d).conn;
        if roles::demoted(conn).send_state {
            self.tell_state(d);
        }
        self.md_changed(d);
    }
}
