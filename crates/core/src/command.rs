//! What an administrator asks for, and the changes that both nodes must agree to
//! (`docs/spec/connection-and-state.md` 3.1, 8.2, 8.4, 12).

pub(crate) mod again;
pub(crate) mod agreement;
pub(crate) mod caller;
mod connections;
pub(crate) mod disks;
mod objects;
pub(crate) mod pending;
mod resize;
mod roles;
pub(crate) mod transaction;
pub(crate) mod two_phase;

use crate::Resource;
use crate::api::{Command, CommandError, ConnectionState, Effect, HandlerCall, Severity, SuspendReason, failure};
use crate::command::caller::Caller;
use crate::command::objects::Step;
use crate::command::objects::wanted::Wanted;
use crate::command::pending::{AfterParting, Demotion, GiveUp, Leave, Pending, Progress, SOON, Stage, Waiting};
use crate::decide::Handler;
use crate::decide::change::{Change, Set};
use crate::decide::roles::Promotion;
use crate::decide::rules::DisconnectStep;
use crate::decide::state::Replication;
use crate::decide::suspend::ResumeStep;
use crate::decide::topic::Topic;
use crate::decide::view::{Kind, Refusal};
use crate::decide::{StateChangeResult as Code, suspend};
use crate::device::Leaving;
use crate::node::Node;
use crate::pings::PingedPeers;
use crate::resync::verify::run::VerifyRange;
use units::{Instant, NodeId, VolumeNr};
use wire::{DiskState, Role};

/// What is to be over, of what freezes I/O.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Thaw {
    All,
    /// What `suspend-io` began. Alone it ends as `All` does.
    OwnFreeze,
}

impl Resource {
    pub(crate) fn end(&mut self, id: Option<Caller>, result: Result<(), CommandError>) {
        if let Some(caller) = id
            && let Some(id) = caller.owner()
            && self.promoted_again(caller, &result)
        {
            self.out.emit(Effect::CommandDone { id, result });
        }
    }

    pub(crate) fn command(&mut self, id: Caller, command: Command) {
        let volume = |r: &Self, v: VolumeNr| {
            let there = r.devices.contains(v).then_some(v);
            there.ok_or_else(|| failure(127, format!("there is no volume {v} in resource {}", r.cfg.name)))
        };
        let peer = |r: &Self, p| {
            let there = r.connections.contains(p).then_some(p);
            there.ok_or_else(|| failure(158, format!("there is no peer {p}")))
        };
        let started = match command {
            Command::Attach { volume: v } => volume(self, v).map(|v| self.attach(v, Some(id))),
            Command::Detach { volume: v, force } => volume(self, v).map(|v| self.detach(id, v, force)),
            Command::Connect { peer: p, discard_my_data, tentative } => {
                peer(self, p).map(|p| self.connect(id, p, discard_my_data, tentative))
            }
            Command::Disconnect { peer: p, force } => peer(self, p).map(|p| self.disconnect(id, p, force)),
            Command::Primary { force } => {
                self.wait_for(id, Waiting::Promote { promotion: Promotion::new(force), stage: Stage::Ask });
                Ok(())
            }
            Command::PrimaryAgain(inherited) => {
                self.primary_again(id, inherited);
                Ok(())
            }
            Command::Secondary { force } => {
                let how = if force { Demotion::ByForce } else { Demotion::Unused };
                self.wait_for(id, Waiting::Demote { how, asked: false });
                Ok(())
            }
            Command::Replace(v, replaced, copied) => {
                let there = replaced.peer().map(|p| peer(self, p)).transpose();
                there.and_then(|_| volume(self, v)).map(|v| self.replace(id, v, replaced, copied))
            }
            Command::PauseSync { volume: v } => volume(self, v).map(|v| self.pause(id, v, true)),
            Command::ResumeSync { volume: v } => volume(self, v).map(|v| self.pause(id, v, false)),
            Command::SuspendIo { volume: v } => volume(self, v).map(|v| self.suspend_io(id, v)),
            Command::ResumeIo { volume: v } => volume(self, v).map(|v| self.resume_io(id, v, Thaw::All)),
            Command::EndFreeze { volume: v } => volume(self, v).map(|v| self.resume_io(id, v, Thaw::OwnFreeze)),
            Command::Outdate { volume: v } => volume(self, v).map(|v| self.outdate(id, v)),
            Command::ForceResync(v) => volume(self, v).map(|v| self.force_resync(id, v)),
            Command::NewCurrentUuid { volume: v, clear_bitmap } => {
                volume(self, v).map(|v| self.new_current_uuid(id, v, clear_bitmap))
            }
            Command::Resize { volume: v, flags } => volume(self, v).map(|v| self.resize(id, v, flags)),
            Command::Grew(v, opened) => volume(self, v).map(|v| {
                self.node.devices[v].backing.iter_mut().for_each(|b| b.grew(opened.clone()));
                self.end(Some(id), Ok(()));
            }),
            Command::Verify { volume: v, peer: p, start, stop, repair } => {
                let wish = VerifyRange { start, stop, repair };
                let with = p.map(|p| peer(self, p)).transpose();
                with.and_then(|p| Ok((p, volume(self, v)?))).and_then(|(p, v)| self.verify(id, p, v, wish))
            }
            Command::Ping => {
                // Who was asked already has its time, which is not to begin anew.
                let (asked, asks): (Vec<_>, Vec<_>) = self
                    .node
                    .connected()
                    .map(|(peer, c)| (peer, c.pings.latest()))
                    .partition(|(peer, _)| self.node.connections[*peer].pings.urgent().is_some());
                let mut pinged = self.ping_all(asks.into_iter().map(|(peer, _)| peer).collect());
                asked.into_iter().for_each(|(peer, ping)| pinged.add(peer, ping));
                self.wait_for(id, Waiting::Pinged(pinged));
                Ok(())
            }
            Command::ForgetPeer(peer) => match self.node.connections.contains(peer) {
                true => Err(objects::why_not_forgotten(peer)),
                false => {
                    for volume in self.node.devices.ids() {
                        if self.node.devices[volume].forgets(peer) {
                            self.write_bitmap(volume);
                            self.generation_changed(volume);
                        }
                    }
                    self.end(Some(id), Ok(()));
                    Ok(())
                }
            },
            Command::ChangeOptions(cfg) => {
                self.wait_for(id, Waiting::reconfigure(cfg));
                Ok(())
            }
            Command::Down(force) => {
                self.again = None;
                self.wait_for(id, Waiting::Down { force, leave: Leave::WISH });
                Ok(())
            }
        };
        if let Err(e) = started {
            self.end(Some(id), Err(e));
        }
        self.pump_begun();
    }

    /// A command has begun. It is looked at for the first time when what it came from is over.
    fn wait_for(&mut self, id: Caller, what: Waiting) {
        self.begun.push(Pending::new(id, what));
        self.out.chores.mark();
    }

    /// Looks at commands that have begun, and at all others with them.
    pub(crate) fn pump_begun(&mut self) {
        if !self.begun.is_empty() {
            self.pump_commands();
        }
    }

    /// Looks at every waiting command again.
    pub(crate) fn pump_commands(&mut self) {
        for peer in self.node.connections.ids() {
            if let Some((volume, change)) = self.node.connections[peer].asked_later.take() {
                self.peer_asks_change(peer, Some(volume), &change);
                self.end_links();
            }
        }
        loop {
            self.step_commands();
            self.end_unanswerable();
            self.end_links();
            let had_disk = self.node.devices.values().filter(|dev| dev.backing.is_some()).count();
            for volume in self.node.devices.ids() {
                self.pump_detach(volume);
                self.end_links();
            }
            // What waits for a disk to be closed goes on now: nothing else may ever come in.
            let closed = self.node.devices.values().filter(|dev| dev.backing.is_some()).count() != had_disk;
            if !closed && self.begun.is_empty() {
                return;
            }
        }
    }

    fn step_commands(&mut self) {
        self.pending.append(&mut self.begun);
        for pending in std::mem::take(&mut self.pending) {
            if pending.rests(self.node.now, &self.node.state) {
                self.pending.push(pending);
                continue;
            }
            let id = pending.id;
            let mut next = Some(pending.what);
            while let Some(what) = next {
                let progress = self.step_command(id, what);
                let parts = matches!(progress, Progress::Waits(Waiting::Parting { .. }));
                self.goes_on_or_ends(self.pending.len(), id, progress);
                self.end_links();
                // Who goes down leaves the next peer at once: nothing else may ever come in.
                let at = self.pending.iter().position(|p| parts && p.id == id);
                next = at.map(|at| self.pending.remove(at).what);
            }
        }
    }

    fn step_command(&mut self, id: Caller, what: Waiting) -> Progress {
        if let Some(gone) = self.node.lacks_object_of(&what) {
            return Progress::Ended(Err(gone));
        }
        match what {
            Waiting::Promote { promotion, stage } => self.step_promotion(id, promotion, stage),
            Waiting::Demote { how, asked } => self.step_demotion(id, how, asked),
            Waiting::Disconnect { peer, step, sent } => self.step_disconnect(id, peer, step, sent),
            Waiting::Reconnect { peer, step, sent } => self.step_reconnect(id, peer, step, sent),
            Waiting::Detach { volume, step } => self.step_detach(id, volume, step),
            Waiting::Invalidate { volume, replaced, copied, step } => {
                self.step_replace(id, volume, (replaced, copied), step)
            }
            Waiting::Verify { peer, volume, sent } => self.step_verify(id, peer, volume, sent),
            Waiting::Resize(resizing) => self.step_resize(id, resizing),
            Waiting::Suspend { volume } => self.step_suspend(volume),
            Waiting::Pinged(pinged) => self.node.step_pinged(pinged),
            Waiting::Down { force, leave } => self.step_down(id, force, leave),
            Waiting::Reconfigure(wanted) => self.step_reconfigure(id, wanted),
            parting @ Waiting::Parting { .. } => Progress::Waits(parting),
        }
    }

    fn answered(&mut self, from: NodeId, command: Caller, outcome: Result<(), Refusal>) {
        let Some(at) = self.pending.iter().position(|p| p.id == command) else { return };
        let Pending { id, what, .. } = self.pending.remove(at);
        if let Some(gone) = self.node.lacks_object_of(&what) {
            return self.end(Some(id), Err(gone));
        }
        let busy = |r: &Refusal| r.code == Code::ConcurrentStateChange;
        if what.awaits_answer() && outcome.as_ref().is_err_and(busy) {
            let later = Progress::Later(what.unasked(), self.node.now + SOON);
            return self.goes_on_or_ends(at, id, later);
        }
        let progress = match what {
            Waiting::Promote { promotion, stage: Stage::Answer } => self.promotion_result(promotion, outcome),
            Waiting::Disconnect { peer, step, sent: true } if peer == from => {
                self.disconnect_result(peer, step, outcome.map_err(|r| r.code))
            }
            Waiting::Reconnect { peer, step, sent: true } if peer == from => {
                let again = self.disconnect_result(peer, step, outcome.map_err(|r| r.code));
                self.come_back(peer, again)
            }
            Waiting::Demote { how, asked: true } => self.demotion_result(&how, outcome),
            Waiting::Down { force, leave: Leave { step, asked: Some(_), .. } } => {
                let next = self.disconnect_result(from, step, outcome.map_err(|r| r.code));
                self.leave_peer_result(from, force, next)
            }
            Waiting::Detach { volume, step: GiveUp::Sent } => match outcome {
                Ok(()) if self.node.devices[volume].disk.leaving.is_none() => Progress::Ended(Ok(())),
                Ok(()) => {
                    self.node.devices[volume].disk.detach_commands.push(id);
                    Progress::Left
                }
                Err(refusal) => Progress::Ended(Err(self.refusal(volume, refusal.code))),
            },
            Waiting::Invalidate { volume, step: GiveUp::Sent, .. } => {
                Progress::Ended(outcome.map_err(|r| self.refusal(volume, r.code)))
            }
            Waiting::Verify { volume, sent: true, .. } => {
                Progress::Ended(outcome.map_err(|r| self.refusal(volume, r.code)))
            }
            Waiting::Reconfigure(mut wanted) if wanted.is_asking() => {
                let refusal = |r: Refusal| self.refusal(self.node.devices.first(), r.code);
                wanted.let_go_by_peer(&self.node.state, outcome.map_err(refusal));
                Progress::Waits(Waiting::Reconfigure(wanted))
            }
            other => Progress::Waits(other),
        };
        self.goes_on_or_ends(at, id, progress);
    }

    /// What a command has come to: it waits on, at this place among the others, or has its result.
    fn goes_on_or_ends(&mut self, at: usize, id: Caller, progress: Progress) {
        match progress {
            Progress::Waits(what) => self.pending.insert(at, Pending::new(id, what)),
            Progress::Later(what, time) => self.pending.insert(at, Pending { id, what, later: Some(time) }),
            Progress::Ended(result) => self.end(Some(id), result),
            Progress::Left => {}
        }
    }

    // -- pausing and freezing -----------------------------------------------------------------------------------------

    /// The administrator's word about a volume's resync, with whatever peer.
    fn pause(&mut self, id: Caller, volume: VolumeNr, on: bool) {
        let differs: Vec<_> =
            self.node.state.pairs(volume).filter(|(_, p)| p.paused.by_user != on).map(|(peer, _)| peer).collect();
        let result = if differs.is_empty() {
            let (code, text) = if on { (134, "resync is paused already") } else { (135, "resync is not paused here") };
            Err(failure(code, text))
        } else {
            let change: Change = differs.into_iter().map(|peer| Set::PausedByUser(peer, volume, on)).collect();
            self.make(change, Kind::Fact).map_err(|r| self.refusal(volume, r.code))
        };
        let result = match result {
            Ok(()) if !on && self.node.state.pairs(volume).any(|(_, p)| p.paused.by_peer) => {
                Err(failure(157, "the peer still pauses the resync"))
            }
            Ok(()) if !on && self.node.state.pairs(volume).any(|(_, p)| p.paused.by_dependency) => {
                Err(failure(156, "a dependency still pauses the resync"))
            }
            other => other,
        };
        self.end(Some(id), result);
    }

    fn suspend_io(&mut self, id: Caller, volume: VolumeNr) {
        if let Err(refusal) = self.make(Set::Frozen(SuspendReason::User, true), Kind::Wish) {
            let error = self.refusal(volume, refusal.code);
            return self.end(Some(id), Err(error));
        }
        self.wait_for(id, Waiting::Suspend { volume });
    }

    fn step_suspend(&mut self, volume: VolumeNr) -> Progress {
        if self.node.devices[volume].disk.local_pending > 0 {
            return Progress::Waits(Waiting::Suspend { volume });
        }
        Progress::Ended(Ok(()))
    }

    fn resume_io(&mut self, id: Caller, volume: VolumeNr, thaw: Thaw) {
        let view = self.view(volume);
        let others = [SuspendReason::NoData, SuspendReason::Fencing, SuspendReason::Quorum];
        let others = self.again.is_some() || others.into_iter().any(|reason| view.frozen.because_of(reason));
        match thaw {
            Thaw::OwnFreeze if !view.frozen.because_of(SuspendReason::User) => return self.end(Some(id), Ok(())),
            Thaw::OwnFreeze if others => {
                self.lift(Set::Frozen(SuspendReason::User, false));
                self.settle();
                return self.end(Some(id), Ok(()));
            }
            Thaw::OwnFreeze => {}
            Thaw::All => self.resume_again(),
        }
        for step in suspend::resume_io(&view, self.node.devices[volume].due.new_generation_pending) {
            match step {
                ResumeStep::CreatePendingGeneration => self.create_pending_generation(volume),
                ResumeStep::ExposeRandomGeneration => {
                    self.node.devices[volume].seen.exposed = self.draw_generation();
                    self.node.devices[volume].due.new_generation_pending = false;
                }
                ResumeStep::ClearReasons => {
                    let fenced = self.node.connections.ids().map(|peer| Set::Unfenced(peer, false)).collect::<Change>();
                    let user = Set::Frozen(SuspendReason::User, false);
                    self.lift(fenced.and(user).and(Set::Frozen(SuspendReason::NoData, false)));
                    self.settle();
                }
                ResumeStep::CompleteWithoutPeer => {
                    for peer in self.node.connections.ids() {
                        self.give_up_frozen(peer);
                    }
                }
            }
        }
        self.end(Some(id), Ok(()));
    }

    // -- the end ------------------------------------------------------------------------------------------------------

    /// Secondary, disconnected, detached: in this order (`docs/spec/config-and-cli.md` 5.2).
    fn step_down(&mut self, id: Caller, force: bool, leave: Leave) -> Progress {
        if self.node.state.is_primary() {
            match self.step_demotion(id, Demotion::Unused, false) {
                Progress::Ended(Err(e)) => return Progress::Ended(Err(e)),
                Progress::Waits(_) | Progress::Later(..) => return Progress::Waits(Waiting::Down { force, leave }),
                Progress::Ended(Ok(())) | Progress::Left => {}
            }
        }
        // A Primary is left last: its fencing policy demands that this disk is outdated then, which it cannot be while
        // another node is connected that has the same data.
        let state = &self.node.state;
        let is_left = |peer: NodeId| state.connection(peer) == ConnectionState::StandAlone;
        let still = self.node.connections.ids().filter(|peer| !is_left(*peer));
        let begun = leave.peer.filter(|peer| !is_left(*peer));
        if let Some(peer) = begun.or_else(|| still.min_by_key(|peer| state.peers[*peer].role() == Role::Primary)) {
            return self.leave_peer(id, peer, force, leave);
        }
        let mut attached = false;
        for volume in self.node.devices.ids() {
            if self.node.devices[volume].backing.is_some() {
                attached = true;
                if self.node.devices[volume].disk.leaving.is_none() {
                    self.node.devices[volume].lets_go(Leaving::Asked);
                    self.took_place(Set::Disk(volume, DiskState::Failed));
                }
            }
        }
        if attached || self.node.devices.values().any(|dev| dev.disk.attaching.is_some()) {
            return Progress::Waits(Waiting::Down { force, leave });
        }
        if !std::mem::replace(&mut self.stopped, true) {
            self.out.emit(Effect::Stopped);
        }
        Progress::Ended(Ok(()))
    }

    /// Going down: leaves a peer as `disconnect` does.
    fn leave_peer(&mut self, id: Caller, peer: NodeId, force: bool, leave: Leave) -> Progress {
        let waits = Progress::Waits(Waiting::Down { force, leave });
        match leave.asked {
            Some(at) if self.node.now < at + Leave::PATIENCE => waits,
            // The users of the peer would lose their data with this node.
            Some(_) if !force && self.node.state.peers[peer].is_primary_without_data() => {
                // Should it agree after all, this node is disconnected.
                let goes_on = Waiting::Disconnect { peer, step: leave.step, sent: true };
                self.pending.push(Pending::new(Caller::Leaving(peer), goes_on));
                self.transaction.hand_over_to(Caller::Leaving(peer));
                let text = "the peer is Primary without a good disk of its own, and has not answered for 2 s whether it \
                    can do without this node: try again, or take its data away with --force";
                Progress::Ended(Err(failure(Code::FailedByPeer.code(), text)))
            }
            Some(_) => {
                self.out.part(peer);
                Progress::Waits(Waiting::Parting { peer, then: AfterParting::Down { force } })
            }
            None => {
                let step = if force && self.leaving_would_wait(peer) { DisconnectStep::Forced } else { leave.step };
                let next = self.step_disconnect(id, peer, step, false);
                self.leave_peer_result(peer, force, next)
            }
        }
    }

    /// What became of an attempt to disconnect from a peer: the next one, or the refusal, or the next peer.
    fn leave_peer_result(&mut self, peer: NodeId, force: bool, next: Progress) -> Progress {
        let leave = match next {
            Progress::Waits(Waiting::Disconnect { step, sent, .. }) => {
                Leave { peer: Some(peer), step, asked: sent.then_some(self.node.now) }
            }
            Progress::Ended(Err(e)) if !force => {
                let text = if e.code == Code::FailedByPeer.code() {
                    "its users need this node: wait for the end of the resync, or take their data away with --force"
                        .to_owned()
                } else {
                    e.text
                };
                return Progress::Ended(Err(failure(e.code, text)));
            }
            Progress::Ended(Err(e)) => {
                let text = format!("going down although that was refused: {}", e.text);
                self.out.note(Severity::Warning, None, Some(peer), Topic::LeftByForce, text);
                self.out.part(peer);
                return Progress::Waits(Waiting::Parting { peer, then: AfterParting::Down { force } });
            }
            Progress::Waits(Waiting::Parting { peer, .. }) => {
                return Progress::Waits(Waiting::Parting { peer, then: AfterParting::Down { force } });
            }
            _ => Leave::WISH,
        };
        Progress::Waits(Waiting::Down { force, leave })
    }

    // -- the configuration --------------------------------------------------------------------------------------------

    /// All of a configuration is taken over, at once if nothing has to end before that.
    fn step_reconfigure(&mut self, id: Caller, mut wanted: Wanted) -> Progress {
        // One that was given before comes first.
        if wanted.is_asking() || self.pending.iter().any(|p| matches!(p.what, Waiting::Reconfigure(_))) {
            return Progress::Waits(Waiting::Reconfigure(wanted));
        }
        let refused = wanted.refused().map_or(Ok(()), Err);
        let steps = self.node.steps_to(wanted.cfg());
        if let Err(refusal) = refused.and_then(|()| self.node.why_not(&steps, wanted.cfg(), &self.requests)) {
            for (peer, volume) in self.node.parted(&wanted) {
                self.introduce(peer, volume);
            }
            return Progress::Ended(Err(refusal));
        }
        // What follows from a change is about those who are there.
        let agrees = steps.iter().any(Step::removes) && !self.transaction.is_free();
        let unsettled = !steps.is_empty() && !self.to_settle.is_empty();
        if agrees
            || unsettled
            || steps.iter().any(|step| step.has_left_overs(&self.requests, &self.peer_writes, &self.ops))
        {
            return Progress::Waits(Waiting::Reconfigure(wanted));
        }
        if let Some(parting @ (peer, _, volume)) = self.node.still_has(&steps, &wanted) {
            if self.ask(id, peer, None, Set::Removes(peer, volume).into()) {
                wanted.asks(parting);
            }
            return Progress::Waits(Waiting::Reconfigure(wanted));
        }
        let made: Vec<_> = steps.iter().filter_map(Step::volume_made).collect();
        for step in steps {
            let mut state = self.node.state.clone();
            step.take(&mut state, &mut self.node.devices, &mut self.node.connections);
            match step {
                Step::RemovePeer(peer) => {
                    self.positions.forget(peer);
                    self.out.handlers.retain(|_, call| call.peer != Some(peer));
                }
                Step::RemoveVolume(volume) => {
                    self.unsaid.forget_volume(volume);
                    self.again.iter_mut().for_each(|again| again.forget_volume(volume));
                    self.out.handlers.retain(|_, call| call.volume != Some(volume));
                }
                Step::MakeVolume(_) | Step::MakePeer(_) => {}
            }
            self.store(state);
        }
        let cfg = wanted.into_cfg();
        for new in &cfg.connections {
            self.node.connections[new.peer].cfg = new.clone();
        }
        for new in &cfg.volumes {
            self.node.devices[new.volume].cfg.clone_from(&new.disk);
            self.node.devices[new.volume].queue.recheck = true;
        }
        self.node.cfg = cfg;
        // Quorum may be asked for now, or not any more.
        self.took_place(Change::default());
        for peer in self.node.connections.ids() {
            self.forget_refusals(peer);
            let several = self.node.connections[peer].names(None, VolumeNr(0)).is_none();
            if self.node.state.is_connected(peer) {
                for volume in self.node.devices.ids() {
                    let new = made.contains(&volume);
                    if !new || several {
                        self.send_sync_param(peer, volume);
                    }
                    if new && several {
                        self.node.connections[peer].peer_devices[volume].begin_link(self.starts.sequence);
                        self.introduce(peer, volume);
                    }
                }
            }
        }
        self.reconfigure_resyncs();
        self.out.status_changed = true;
        Progress::Ended(Ok(()))
    }

    // -- verify -------------------------------------------------------------------------------------------------------

    fn verify(
        &mut self,
        id: Caller,
        with: Option<NodeId>,
        volume: VolumeNr,
        wish: VerifyRange,
    ) -> Result<(), CommandError> {
        let Some(peer) = with.or_else(|| self.partner(volume)) else {
            return Err(failure(Code::NeedConnection.code(), "there is no peer to compare with"));
        };
        self.node.wish_verify(peer, volume, wish)?;
        self.wait_for(id, Waiting::Verify { peer, volume, sent: false });
        Ok(())
    }

    fn step_verify(&mut self, id: Caller, peer: NodeId, volume: VolumeNr, sent: bool) -> Progress {
        let at = |sent| Progress::Waits(Waiting::Verify { peer, volume, sent });
        if sent {
            return at(sent);
        }
        match self.agree(id, &Set::Replication(peer, volume, Replication::VerifyS).into()) {
            Ok(true) => Progress::Ended(Ok(())),
            Ok(false) => at(true),
            Err(Refusal { code: Code::InTransientState, .. }) => at(false),
            Err(refusal) => Progress::Ended(Err(self.refusal(volume, refusal.code))),
        }
    }

    // -- help ---------------------------------------------------------------------------------------------------------

    pub(crate) fn handler_exit(&mut self, id: u64, call: &HandlerCall, status: i32) {
        let peer = call.peer.filter(|peer| self.node.connections.contains(*peer));
        match (call.event, peer) {
            (Handler::FencePeer, Some(peer)) => self.fence_answered(peer, status),
            (Handler::BeforeResyncTarget | Handler::BeforeResyncSource, Some(peer)) => {
                let volume = call.volume.filter(|volume| self.node.devices.contains(*volume));
                volume.into_iter().for_each(|volume| self.before_resync_ended(peer, volume, id, status));
            }
            _ if status != 0 => {
                let text = format!("handler {} ended with {status}", call.event);
                self.out.note(Severity::Warning, None, peer, Topic::HandlerFailed, text);
            }
            _ => {}
        }
    }

    pub(crate) fn command_timer(&self) -> Option<Instant> {
        let times = self.pending.iter().filter_map(|p| match p.what {
            Waiting::Down { leave: Leave { asked: Some(at), .. }, .. } => Some(at + Leave::PATIENCE),
            _ => None,
        });
        let later = self.pending.iter().filter_map(|p| p.later);
        times.chain(later).min()
    }
}

impl Node {
    /// Until all have answered, or are gone.
    fn step_pinged(&self, mut pinged: PingedPeers) -> Progress {
        for (peer, c) in self.connections.iter() {
            pinged.settle(peer, |ping| c.pings.has_answered(ping));
        }
        if pinged.is_empty() { Progress::Ended(Ok(())) } else { Progress::Waits(Waiting::Pinged(pinged)) }
    }

    /// A refused state change in words.
    fn refusal(&self, volume: VolumeNr, code: Code) -> CommandError {
        // A resource may be without volumes.
        if !self.devices.contains(volume) {
            return failure(code.code(), code.to_string());
        }
        let view = self.view(volume);
        let text = match code {
            Code::TwoPrimaries => {
                let primary = self.connected().find(|(peer, _)| self.state.peers[*peer].role() == Role::Primary);
                let name = primary.map_or("the peer", |(_, c)| &c.cfg.peer_name);
                if self.connections.values().any(|c| c.cfg.two_primaries) {
                    format!(
                        "{name} is Primary, and below protocol 100 there can be one only: make it Secondary first, or upgrade it"
                    )
                } else {
                    format!("{name} is Primary: make it Secondary first, or set allow-two-primaries")
                }
            }
            Code::NoUpToDateDisk if self.in_mesh9() && view.disk == DiskState::Diskless => {
                "no disk is attached here, and no peer with good data is in reach: bring one back first".to_owned()
            }
            Code::NoUpToDateDisk => {
                format!(
                    "no UpToDate data would be accessible (disk {}, peer disk {}): connect or sync first; --force only if this copy is the one to keep",
                    view.disk, view.peer_disk
                )
            }
            Code::NoQuorum if !self.state.standing(volume).is_quorate() => {
                format!("{}: bring the other nodes back", self.votes(volume))
            }
            Code::NoQuorum => "this Primary would be without quorum: bring the other nodes back first".to_owned(),
            Code::PrimaryNop => "the peer could not be fenced (outdated); see the fence-peer handler".to_owned(),
            Code::DeviceInUse => "the device is in use: close it and try again".to_owned(),
            Code::FailedByPeer => {
                let peers: Vec<&str> = self.connected().map(|(_, c)| c.cfg.peer_name.as_str()).collect();
                let name = &self.cfg.name;
                match peers.join(" or ") {
                    none if none.is_empty() => "the peer was lost before it had answered: try again".to_owned(),
                    peers => {
                        format!("refused by peer {peers}, or it was lost meanwhile; `urbd why {name}` there says more")
                    }
                }
            }
            Code::NeedConnection => "this needs a connection to the peer".to_owned(),
            Code::ResyncRunning => "a resync or verify is running: wait for its end".to_owned(),
            Code::IsDiskless | Code::NoLocalDisk => "the volume has no disk here: attach it first".to_owned(),
            Code::InTransientState => "another change is going on: try again".to_owned(),
            Code::ConcurrentStateChange => "another change among the nodes comes first: try again".to_owned(),
            other => other.to_string(),
        };
        failure(code.code(), text)
    }
}
