//! What an administrator asks for, and the changes that both nodes must agree to
//! (`docs/spec/connection-and-state.md` 3.1, 8.2, 8.4, 12).

mod again;
mod connections;
mod disks;
mod roles;

pub(crate) use again::Again;

use crate::Resource;
use crate::api::{Command, CommandError, ConnectionState, Effect, HandlerCall, Severity};
use crate::decide::roles::Promotion;
use crate::decide::rules84::{self, DisconnectStep, Force};
use crate::decide::state::{Replication, VolumeState};
use crate::decide::suspend::{self, ResumeStep};
use crate::decide::{StateChange, StateChangeResult as Code};
use crate::liveness::failure;
use crate::mutant::{Mutant, mutant};
use crate::resync::VerifyRange;
use units::{Duration, Instant, NodeId, VolumeNr};
use wire::{ConnState, DiskState, Packet, Role, Socket};

/// A command that waits for something.
#[derive(Debug)]
pub(crate) struct Pending {
    id: u64,
    what: Waiting,
}

#[derive(Debug)]
enum Waiting {
    /// Promotion of volume after volume.
    Promote {
        promotion: Promotion,
        force: bool,
        volume: VolumeNr,
        stage: Stage,
    },
    /// Demotion: until no request is on its way.
    Demote {
        force: bool,
    },
    Disconnect {
        peer: NodeId,
        step: DisconnectStep,
        sent: bool,
    },
    /// The same, and connect again.
    Reconnect {
        peer: NodeId,
        step: DisconnectStep,
        sent: bool,
    },
    Detach {
        volume: VolumeNr,
        step: GiveUp,
    },
    Verify {
        volume: VolumeNr,
        sent: bool,
    },
    Invalidate {
        volume: VolumeNr,
        remote: bool,
        step: GiveUp,
    },
    /// Until requests on their way have ended.
    Suspend {
        volume: VolumeNr,
    },
    /// The end: Secondary, disconnected, detached.
    Down {
        force: bool,
        leave: Leave,
    },
}

/// How far a node is that leaves a peer because it goes down.
#[derive(Clone, Copy, Debug)]
struct Leave {
    step: DisconnectStep,
    /// Since when the peer owes an answer.
    asked: Option<Instant>,
}

impl Leave {
    const WISH: Leave = Leave { step: DisconnectStep::Plain, asked: None };
    /// A peer that has not answered by then has to live with it, unless it would lose its only good copy.
    const PATIENCE: Duration = Duration::from_secs(2);
}

#[derive(Clone, Copy, Debug)]
enum Stage {
    Ask,
    Answer,
    Fence(Code),
    Later(Instant),
}

/// How far a command is that gives up a copy.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum GiveUp {
    /// Nothing has been done.
    Wish,
    /// It is possible, and waits until the other copy is as good ([`Resource::peer_has_all`]).
    Draining,
    /// The peer was asked.
    Sent,
}

/// What goes on waiting, or the result.
type Progress = (Option<Waiting>, Option<Result<(), CommandError>>);

impl Waiting {
    /// Does it give up the volume's own copy, which no write must rely on any more?
    fn gives_up(&self, d: VolumeNr) -> bool {
        match *self {
            Waiting::Detach { volume, step } | Waiting::Invalidate { volume, step, remote: false } => {
                volume == d && step != GiveUp::Wish
            }
            _ => false,
        }
    }

    /// Was the peer asked?
    fn awaits_answer(&self) -> bool {
        matches!(
            self,
            Waiting::Promote { stage: Stage::Answer, .. }
                | Waiting::Disconnect { sent: true, .. }
                | Waiting::Reconnect { sent: true, .. }
                | Waiting::Detach { step: GiveUp::Sent, .. }
                | Waiting::Invalidate { step: GiveUp::Sent, .. }
                | Waiting::Verify { sent: true, .. }
                | Waiting::Down { leave: Leave { asked: Some(_), .. }, .. }
        )
    }
}

/// A cluster-wide change that was asked of the peer.
#[derive(Debug)]
pub(crate) struct Asked {
    pub(crate) command: u64,
    /// When.
    pub(crate) at: Instant,
    pub(crate) volume: Option<VolumeNr>,
    /// Counts the disks that the volume has had: the answer is about this one.
    pub(crate) disk: u64,
    pub(crate) change: StateChange,
    /// Why it is off, whatever the peer answers: this node has agreed to something else meanwhile.
    pub(crate) contradicted: Option<Code>,
}

impl Resource {
    pub(crate) fn end(&mut self, id: Option<u64>, result: Result<(), CommandError>) {
        if let Some(id) = id.filter(|id| self.promoted_again(*id, &result)) {
            self.emit(Effect::CommandDone { id, result });
        }
    }

    pub(crate) fn command(&mut self, id: u64, command: Command) {
        let volume = |r: &Self, v: VolumeNr| {
            r.device_index(v).ok_or_else(|| failure(127, format!("there is no volume {v} in resource {}", r.cfg.name)))
        };
        let peer = |r: &Self, p| r.connection_index(p).ok_or_else(|| failure(158, format!("there is no peer {p}")));
        let started = match command {
            Command::Attach { volume: v } => volume(self, v).map(|d| self.attach(d, Some(id))),
            Command::Detach { volume: v, force } => volume(self, v).map(|d| self.detach(id, d, force)),
            Command::Connect { peer: p, discard_my_data, tentative } => {
                peer(self, p).map(|i| self.connect(id, i, discard_my_data, tentative))
            }
            Command::Disconnect { peer: p, force } => peer(self, p).map(|i| self.disconnect(id, i, force)),
            Command::Primary { force } => {
                let good = |v: &VolumeState| v.disk == DiskState::UpToDate;
                let primary = |d: &crate::device::Device| d.role == Role::Primary;
                if self.devices.values().all(primary) && (!force || self.state.volumes.values().all(good)) {
                    // A promotion begins a new generation; nothing begins here.
                    self.end(Some(id), Ok(()));
                    return;
                }
                self.wait_for(
                    id,
                    Waiting::Promote {
                        promotion: Promotion::new(force),
                        force,
                        volume: self.devices.first(),
                        stage: Stage::Ask,
                    },
                );
                Ok(())
            }
            Command::PrimaryAgain(alone) => {
                self.primary_again(id, alone);
                Ok(())
            }
            Command::Secondary { force } => {
                self.wait_for(id, Waiting::Demote { force });
                Ok(())
            }
            Command::Invalidate { volume: v } => volume(self, v).map(|d| self.invalidate(id, d, false)),
            Command::InvalidateRemote { volume: v, peer: p } => {
                peer(self, p).and_then(|_| volume(self, v)).map(|d| self.invalidate(id, d, true))
            }
            Command::PauseSync { volume: v } => volume(self, v).map(|d| self.pause(id, d, true)),
            Command::ResumeSync { volume: v } => volume(self, v).map(|d| self.pause(id, d, false)),
            Command::SuspendIo { volume: v } => volume(self, v).map(|d| self.suspend_io(id, d)),
            Command::ResumeIo { volume: v } => volume(self, v).map(|d| self.resume_io(id, d)),
            Command::Outdate { volume: v } => volume(self, v).map(|d| self.outdate(id, d)),
            Command::NewCurrentUuid { volume: v, clear_bitmap } => {
                volume(self, v).map(|d| self.new_current_uuid(id, d, clear_bitmap))
            }
            Command::Resize { volume: v, assume_clean } => volume(self, v).map(|d| self.resize(id, d, assume_clean)),
            Command::Verify { volume: v, start, stop, repair } => {
                let wish = VerifyRange { start, stop, repair };
                volume(self, v).and_then(|d| self.verify(id, d, wish))
            }
            Command::ChangeOptions(cfg) => {
                self.change_options(*cfg);
                self.end(Some(id), Ok(()));
                Ok(())
            }
            Command::Down(force) => {
                self.forget_again();
                self.wait_for(id, Waiting::Down { force, leave: Leave::WISH });
                Ok(())
            }
        };
        if let Err(e) = started {
            self.end(Some(id), Err(e));
        }
    }

    fn wait_for(&mut self, id: u64, what: Waiting) {
        self.pending.push(Pending { id, what });
        self.pump_commands();
    }

    /// Looks at every waiting command again.
    pub(crate) fn pump_commands(&mut self) {
        for i in self.connections.ids() {
            if let Some((d, change)) = self.connections[i].asked_later.take() {
                self.peer_asks_change(i, Some(d), &change);
            }
        }
        loop {
            self.step_commands();
            self.end_unanswerable();
            let had_disk = self.devices.values().filter(|d| d.backing.is_some()).count();
            for d in self.devices.ids() {
                self.pump_detach(d);
            }
            // What waits for a disk to be closed goes on now: nothing else may ever come in.
            if self.devices.values().filter(|d| d.backing.is_some()).count() == had_disk {
                return;
            }
        }
    }

    fn step_commands(&mut self) {
        for pending in std::mem::take(&mut self.pending) {
            let Pending { id, what } = pending;
            let (again, result) = match what {
                Waiting::Promote { promotion, force, volume, stage } => {
                    self.step_promotion(id, promotion, force, volume, stage)
                }
                Waiting::Demote { force } => self.step_demotion(force),
                Waiting::Disconnect { peer, step, sent } => self.step_disconnect(id, peer, step, sent),
                Waiting::Reconnect { peer, step, sent } => (self.step_reconnect(id, peer, step, sent), None),
                Waiting::Detach { volume, step } => self.step_detach(id, volume, step),
                Waiting::Invalidate { volume, remote, step } => self.step_invalidate(id, volume, remote, step),
                Waiting::Verify { volume, sent } => self.step_verify(id, volume, sent),
                Waiting::Suspend { volume } => self.step_suspend(volume),
                Waiting::Down { force, leave } => self.step_down(id, force, leave),
            };
            match (again, result) {
                (Some(what), _) => self.pending.push(Pending { id, what }),
                (None, Some(result)) => self.end(Some(id), result),
                (None, None) => {}
            }
        }
    }

    /// A command may have dropped the link that another one waits for an answer on.
    fn end_unanswerable(&mut self) {
        let asked = self.connections.get(self.peer()).and_then(|c| c.asked.as_ref()).map(|a| a.command);
        let lost = self.pending.iter().filter(|p| p.what.awaits_answer() && asked != Some(p.id));
        for id in lost.map(|p| p.id).collect::<Vec<_>>() {
            self.answered(self.peer(), id, Err(Code::FailedByPeer));
        }
    }

    // -- asking the peer ----------------------------------------------------------------------------------------------

    /// Judges a change here; if it concerns the peer, asks it first. `Ok(true)`: done. `Ok(false)`: the answer will
    /// come.
    fn agree(&mut self, id: u64, i: NodeId, d: VolumeNr, change: &StateChange) -> Result<bool, Code> {
        let old = self.word(d);
        let new = match rules84::judge(&old, change, Force::Soft, &self.context(d)) {
            Err(Code::NothingToDo) => return Ok(true),
            other => other?,
        };
        if !rules84::is_cluster_wide(&old, &new) {
            return self.change(d, change, Force::Soft).map(|()| true);
        }
        if self.connections[i].asked.is_some() {
            return Err(Code::InTransientState);
        }
        let disk = self.devices[d].disks_seen;
        self.connections[i].asked =
            Some(Asked { command: id, at: self.now, volume: Some(d), disk, change: *change, contradicted: None });
        self.send(i, Socket::Data, d, Packet::StateChgReq(*change), crate::Segments::None);
        Ok(false)
    }

    pub(crate) fn peer_answered_change(&mut self, i: NodeId, result: Code) {
        let Some(asked) = self.connections[i].asked.take() else { return };
        let outcome = if result.is_success() {
            match asked.volume {
                // By force meanwhile; what is being attached now is another matter.
                Some(d) if asked.change.disk == Some(DiskState::Failed) && !self.can_detach(d) => Ok(()),
                Some(d) if asked.disk != self.devices[d].disks_seen => {
                    self.peer_went_ahead(i, d, &asked.change);
                    Err(Code::InTransientState)
                }
                // Meanwhile something else may have been agreed that this would contradict (a second Primary).
                Some(d) => {
                    self.promotion_agreed(d, asked.command);
                    let still = asked.contradicted.map_or(Ok(()), Err);
                    let outcome = still.and_then(|()| self.change_as_agreed(d, &asked.change));
                    outcome.inspect_err(|_| self.peer_went_ahead(i, d, &asked.change))
                }
                None => self.change_all(&asked.change, Force::Hard),
            }
        } else {
            Err(Code::FailedByPeer)
        };
        self.answered(i, asked.command, outcome);
    }

    /// What this node has just agreed to may be at odds with what it has asked for itself: then that is off. By the
    /// state alone it may look possible again when the answer comes: the peer's word from before it knew of the
    /// agreement may come in between, and two nodes would each be Primary by leave of the other.
    fn withdraw_contradicted(&mut self, i: NodeId) {
        let asked = self.connections[i].asked.as_ref().and_then(|asked| Some((asked.volume?, asked.change)));
        let Some((d, change)) = asked.filter(|_| !mutant(Mutant::AgreementForgotten)) else { return };
        let judged = rules84::judge(&self.word(d), &change, Force::Soft, &self.context(d));
        let contradiction = judged.err().filter(|code| *code != Code::NothingToDo);
        if let Some(asked) = &mut self.connections[i].asked {
            asked.contradicted = asked.contradicted.or(contradiction);
        }
    }

    /// A change to which the peer has agreed.
    ///
    /// # Errors
    /// The code of the rule that refuses it, or that a resync comes to nothing: the peer has lost its disk meanwhile.
    fn change_as_agreed(&mut self, d: VolumeNr, change: &StateChange) -> Result<(), Code> {
        self.change(d, change, Force::Soft)?;
        let begins = matches!(change.conn, Some(ConnState::StartingSyncS | ConnState::StartingSyncT));
        if begins && self.word(d).conn == ConnState::Connected { Err(Code::NoRemoteDisk) } else { Ok(()) }
    }

    /// The peer has made a change that cannot be made here any more: it is told so. Until it answers, a copy that it
    /// has given up to become a target is not one to rely on.
    fn peer_went_ahead(&mut self, i: NodeId, d: VolumeNr, change: &StateChange) {
        let pdsk = self.word(d).pdsk;
        if change.conn == Some(ConnState::StartingSyncS) && pdsk > DiskState::Inconsistent {
            let worthless = StateChange { pdsk: Some(DiskState::Inconsistent), ..StateChange::default() };
            let _ = self.change(d, &worthless, Force::Hard);
        }
        if change.disk == Some(DiskState::Failed) && self.word(d).conn > ConnState::Connected {
            // It has ended the resync, which goes on here: only a comparison brings them together again.
            let text = "the peer ended the resync for a detach that is not possible any more".to_owned();
            return self.drop_link(i, ConnState::NetworkFailure, "detach-withdrawn", text);
        }
        self.send_state(i, d);
    }

    /// The link went down before the answer.
    pub(crate) fn peer_gone_for_commands(&mut self, i: NodeId) {
        if let Some(asked) = self.connections[i].asked.take() {
            self.answered(i, asked.command, Err(Code::FailedByPeer));
        }
    }

    fn answered(&mut self, i: NodeId, command: u64, outcome: Result<(), Code>) {
        let Some(at) = self.pending.iter().position(|p| p.id == command) else { return };
        let Pending { id, what } = self.pending.remove(at);
        let (again, result) = match what {
            Waiting::Promote { promotion, force, volume, stage: Stage::Answer } => {
                self.promotion_result(promotion, force, volume, outcome)
            }
            Waiting::Disconnect { peer, step, sent: true } if peer == i => self.disconnect_result(peer, step, outcome),
            Waiting::Reconnect { peer, step, sent: true } if peer == i => {
                let (again, _) = self.disconnect_result(peer, step, outcome);
                (self.come_back(peer, again), None)
            }
            Waiting::Down { force, leave: Leave { step, asked: Some(_) } } => {
                let next = self.disconnect_result(i, step, outcome);
                self.leave_peer_result(i, force, next)
            }
            Waiting::Detach { volume, step: GiveUp::Sent } => match outcome {
                Ok(()) if !self.devices[volume].closing => (None, Some(Ok(()))),
                Ok(()) => {
                    self.devices[volume].detach_commands.push(id);
                    (None, None)
                }
                Err(code) => (None, Some(Err(self.refusal(volume, code)))),
            },
            Waiting::Invalidate { volume, step: GiveUp::Sent, .. } | Waiting::Verify { volume, sent: true } => {
                (None, Some(outcome.map_err(|code| self.refusal(volume, code))))
            }
            other => (Some(other), None),
        };
        match (again, result) {
            (Some(what), _) => self.pending.insert(at, Pending { id, what }),
            (None, Some(result)) => self.end(Some(id), result),
            (None, None) => {}
        }
    }

    /// The peer wants to change the state of both nodes.
    pub(crate) fn peer_asks_change(&mut self, i: NodeId, d: Option<VolumeNr>, asked: &StateChange) {
        if self.connections[i].asked.is_some() && self.connections[i].resolve_conflicts() {
            return self.refuse_change(i, d, Code::ConcurrentStateChange);
        }
        let change = asked.from_peers_view();
        if !may_ask(&change) {
            let text = "the peer asked for a change that only this node can make";
            self.note(Severity::Warning, d, Some(i), "change-refused", text);
            return self.refuse_change(i, d, Code::NotSupported);
        }
        if change.pdsk == Some(DiskState::UpToDate) && d.is_some_and(|d| self.serves_without_data(d)) {
            // That copy was not good: by force it counts for those who have seen no better one.
            let text = "the peer's copy shall count by force, but users here have seen another: make this node Secondary first";
            self.note(Severity::Warning, d, Some(i), "change-refused", text.to_owned());
            return self.refuse_change(i, d, Code::NoUpToDateDisk);
        }
        let becomes_target = change.conn == Some(ConnState::StartingSyncT);
        if let Some(d) = d.filter(|d| becomes_target && !self.peer_has_all(*d)) {
            self.connections[i].asked_later = Some((d, *asked));
            return;
        }
        // What a disk that is being attached is worth, and the peer's beside it, comes out when they were compared.
        let judges = change.disk.is_some() || (change.pdsk.is_some() && !mutant(Mutant::ForcedWhileCompared));
        let undecided =
            |d: VolumeNr| self.devices[d].attaching.is_some() || self.state.disk(d) == DiskState::Negotiating;
        let result = match d {
            Some(d) if judges && undecided(d) => Err(Code::InTransientState),
            None if judges && self.devices.ids().any(undecided) => Err(Code::InTransientState),
            Some(d) => self.change(d, &change, Force::Soft),
            None => self.change_all(&change, Force::SoftIgnoreOutdate),
        };
        // Its disk may be gone since it asked: then no resync has begun.
        let begun = d.is_none_or(|d| !becomes_target || self.state.replication(i, d) > Replication::Established);
        let code = match result {
            Ok(()) if !begun => Code::NoUpToDateDisk,
            Ok(()) => {
                self.withdraw_contradicted(i);
                Code::Success
            }
            Err(code) => code,
        };
        self.refuse_change(i, d, code);
        if change.conn == Some(ConnState::TearDown) && code.is_success() {
            let text = "the peer disconnected".to_owned();
            self.drop_link(i, ConnState::TearDown, "peer-disconnected", text);
        }
    }

    /// A Primary without a good copy of its own.
    fn serves_without_data(&self, d: VolumeNr) -> bool {
        let dev = &self.devices[d];
        dev.role == Role::Primary && self.state.disk(d) < DiskState::UpToDate && !mutant(Mutant::ForcedBesideUsers)
    }

    // -- pausing and freezing -----------------------------------------------------------------------------------------

    fn pause(&mut self, id: u64, d: VolumeNr, on: bool) {
        let word = self.word(d);
        let result = if word.user_isp == on {
            let (code, text) = if on { (134, "resync is paused already") } else { (135, "resync is not paused here") };
            Err(failure(code, text))
        } else {
            let change = StateChange { user_isp: Some(on), ..StateChange::default() };
            self.change(d, &change, Force::Hard).map_err(|code| self.refusal(d, code))
        };
        let still = self.word(d);
        let result = match result {
            Ok(()) if !on && still.peer_isp => Err(failure(157, "the peer still pauses the resync")),
            Ok(()) if !on && still.aftr_isp => Err(failure(156, "a dependency still pauses the resync")),
            other => other,
        };
        self.end(Some(id), result);
    }

    fn suspend_io(&mut self, id: u64, d: VolumeNr) {
        let change = StateChange { susp: Some(true), ..StateChange::default() };
        if let Err(code) = self.change(d, &change, Force::Soft) {
            let error = self.refusal(d, code);
            return self.end(Some(id), Err(error));
        }
        self.wait_for(id, Waiting::Suspend { volume: d });
    }

    fn step_suspend(&mut self, volume: VolumeNr) -> (Option<Waiting>, Option<Result<(), CommandError>>) {
        if self.devices[volume].local_pending > 0 {
            return (Some(Waiting::Suspend { volume }), None);
        }
        (None, Some(Ok(())))
    }

    fn resume_io(&mut self, id: u64, d: VolumeNr) {
        self.resume_again();
        let word = self.word(d);
        for step in suspend::resume_io(&word, self.devices[d].new_generation_pending) {
            match step {
                ResumeStep::CreatePendingGeneration => self.create_pending_generation(d),
                ResumeStep::ExposeRandomGeneration => {
                    self.devices[d].exposed = self.draw_generation(d);
                    self.devices[d].new_generation_pending = false;
                }
                ResumeStep::ClearReasons => self.lift(|s| {
                    (s.frozen_by_user, s.frozen_without_data) = (false, false);
                    s.peers.values_mut().for_each(|peer| peer.unfenced = false);
                }),
                ResumeStep::CompleteWithoutPeer => {
                    for i in self.connections.ids() {
                        self.give_up_frozen(i);
                    }
                }
                ResumeStep::FailFrozen => {}
            }
        }
        self.end(Some(id), Ok(()));
    }

    // -- the end ------------------------------------------------------------------------------------------------------

    /// Secondary, disconnected, detached: in this order (`docs/spec/config-and-cli.md` 5.2).
    fn step_down(&mut self, id: u64, force: bool, leave: Leave) -> Progress {
        if self.state.role == Role::Primary {
            match self.step_demotion(false) {
                (_, Some(Err(e))) => return (None, Some(Err(e))),
                (Some(_), _) => return (Some(Waiting::Down { force, leave }), None),
                _ => {}
            }
        }
        if let Some(i) = self.connections.ids().find(|i| self.state.connection(*i) != ConnectionState::StandAlone) {
            return self.leave_peer(id, i, force, leave);
        }
        let mut attached = false;
        for d in self.devices.ids() {
            if self.devices[d].backing.is_some() {
                attached = true;
                if !self.devices[d].closing {
                    let change = StateChange { disk: Some(DiskState::Failed), ..StateChange::default() };
                    let _ = self.change(d, &change, Force::Hard);
                    self.devices[d].closing = true;
                }
            }
        }
        if attached || self.devices.values().any(|d| d.attaching.is_some()) {
            return (Some(Waiting::Down { force, leave }), None);
        }
        if !std::mem::replace(&mut self.stopped, true) {
            self.emit(Effect::Stopped);
        }
        (None, Some(Ok(())))
    }

    /// Going down: leaves a peer as `disconnect` does.
    fn leave_peer(&mut self, id: u64, i: NodeId, force: bool, leave: Leave) -> Progress {
        let waits = (Some(Waiting::Down { force, leave }), None);
        match leave.asked {
            Some(at) if self.now < at + Leave::PATIENCE => waits,
            Some(_) if !force && self.peer_lives_on_this_node(i) => {
                // Should it agree after all, this node is disconnected.
                let unattended = u64::MAX - i.index() as u64;
                self.pending.push(Pending {
                    id: unattended,
                    what: Waiting::Disconnect { peer: i, step: leave.step, sent: true },
                });
                self.connections[i].asked.iter_mut().for_each(|asked| asked.command = unattended);
                let text = "the peer is Primary without a good disk of its own, and has not answered for 2 s whether it \
                    can do without this node: try again, or take its data away with --force";
                (None, Some(Err(failure(Code::FailedByPeer.code(), text))))
            }
            Some(_) => {
                self.stand_alone(i);
                self.step_down(id, force, Leave::WISH)
            }
            None => {
                let next = self.step_disconnect(id, i, leave.step, false);
                match self.leave_peer_result(i, force, next) {
                    // At once: nothing else may ever come in.
                    (Some(_), None) if self.state.connection(i) == ConnectionState::StandAlone => {
                        self.step_down(id, force, Leave::WISH)
                    }
                    next => next,
                }
            }
        }
    }

    /// What became of an attempt to disconnect from a peer: the next one, or the refusal, or the next peer.
    fn leave_peer_result(&mut self, i: NodeId, force: bool, next: Progress) -> Progress {
        let leave = match next {
            (Some(Waiting::Disconnect { step, sent, .. }), _) => Leave { step, asked: sent.then_some(self.now) },
            (_, Some(Err(e))) if !force => {
                let text = if e.code == Code::FailedByPeer.code() {
                    "its users need this node: wait for the end of the resync, or take their data away with --force"
                        .to_owned()
                } else {
                    e.text
                };
                return (None, Some(Err(failure(e.code, text))));
            }
            (_, Some(Err(e))) => {
                let text = format!("going down although that was refused: {}", e.text);
                self.note(Severity::Warning, None, Some(i), "left-by-force", text);
                self.stand_alone(i);
                Leave::WISH
            }
            _ => Leave::WISH,
        };
        (Some(Waiting::Down { force, leave }), None)
    }

    /// Would the users of the peer lose their data with this node?
    fn peer_lives_on_this_node(&self, i: NodeId) -> bool {
        let primary = self.state.peers[i].role() == Role::Primary;
        primary && self.state.peers[i].volumes.values().any(|p| p.disk < DiskState::UpToDate)
    }

    fn change_options(&mut self, cfg: crate::ResourceConfig) {
        for new in &cfg.connections {
            if let Some(c) = self.connections.values_mut().find(|c| c.cfg.peer == new.peer) {
                c.cfg = new.clone();
            }
        }
        for new in &cfg.volumes {
            if let Some(dev) = self.devices.values_mut().find(|d| d.volume == new.volume) {
                dev.cfg.clone_from(&new.disk);
            }
        }
        self.cfg = cfg;
        for i in self.connections.ids() {
            self.forget_refusals(i);
            if self.state.is_connected(i) {
                for d in self.devices.ids() {
                    self.send_sync_param(i, d);
                }
            }
        }
        self.reconfigure_resyncs();
        self.status_changed = true;
    }

    // -- verify -------------------------------------------------------------------------------------------------------

    fn verify(&mut self, id: u64, d: VolumeNr, wish: VerifyRange) -> Result<(), CommandError> {
        if self.connections.is_empty() {
            return Err(failure(Code::NeedConnection.code(), "there is no peer to compare with"));
        }
        self.wish_verify(self.peer(), d, wish)?;
        self.wait_for(id, Waiting::Verify { volume: d, sent: false });
        Ok(())
    }

    fn step_verify(&mut self, id: u64, d: VolumeNr, sent: bool) -> (Option<Waiting>, Option<Result<(), CommandError>>) {
        if sent {
            return (Some(Waiting::Verify { volume: d, sent }), None);
        }
        let change = StateChange { conn: Some(ConnState::VerifyS), ..StateChange::default() };
        match self.agree(id, self.peer(), d, &change) {
            Ok(true) => (None, Some(Ok(()))),
            Ok(false) => (Some(Waiting::Verify { volume: d, sent: true }), None),
            Err(Code::InTransientState) => (Some(Waiting::Verify { volume: d, sent: false }), None),
            Err(code) => (None, Some(Err(self.refusal(d, code)))),
        }
    }

    // -- help ---------------------------------------------------------------------------------------------------------

    /// A refused state change in words.
    fn refusal(&self, d: VolumeNr, code: Code) -> CommandError {
        let word = self.word(d);
        let text = match code {
            Code::TwoPrimaries if self.connections.values().any(|c| c.cfg.two_primaries) => {
                "the peer is Primary, and below protocol 100 there can be one only: make it Secondary first, or upgrade it"
                    .to_owned()
            }
            Code::TwoPrimaries => "the peer is Primary: make it Secondary first, or set allow-two-primaries".to_owned(),
            Code::NoUpToDateDisk => {
                format!(
                    "no UpToDate data would be accessible (disk {}, peer disk {}): connect or sync first; --force only if this copy is the one to keep",
                    word.disk, word.pdsk
                )
            }
            Code::PrimaryNop => "the peer could not be fenced (outdated); see the fence-peer handler".to_owned(),
            Code::DeviceInUse => "the device is in use: close it and try again".to_owned(),
            Code::FailedByPeer => "the change was refused by peer node".to_owned(),
            Code::NeedConnection => "this needs a connection to the peer".to_owned(),
            Code::ResyncRunning => "a resync or verify is running: wait for its end".to_owned(),
            Code::IsDiskless | Code::NoLocalDisk => "the volume has no disk here: attach it first".to_owned(),
            Code::InTransientState => "another change is going on: try again".to_owned(),
            other => other.to_string(),
        };
        failure(code.code(), text)
    }

    pub(crate) fn handler_exit(&mut self, id: u64, call: &HandlerCall, status: i32) {
        let i = call.peer.and_then(|p| self.connection_index(p));
        match (call.event, i) {
            ("fence-peer", Some(i)) => self.fence_answered(i, status),
            ("before-resync-target" | "before-resync-source", Some(i)) => {
                let d = call.volume.and_then(|v| self.device_index(v));
                d.into_iter().for_each(|d| self.before_resync_ended(i, d, id, status));
            }
            _ if status != 0 => {
                let text = format!("handler {} ended with {status}", call.event);
                self.note(Severity::Warning, None, i, "handler-failed", text);
            }
            _ => {}
        }
    }

    pub(crate) fn ping_answered_for_commands(&mut self, _i: NodeId) {}

    pub(crate) fn command_timer(&self) -> Option<Instant> {
        let times = self.pending.iter().filter_map(|p| match p.what {
            Waiting::Promote { stage: Stage::Later(at), .. } => Some(at),
            Waiting::Down { leave: Leave { asked: Some(at), .. }, .. } => Some(at + Leave::PATIENCE),
            _ => None,
        });
        times.chain(self.again_timer()).min()
    }
}

/// Is this (in our view) something that a peer may ask for? It speaks of its own role and disk; of ours it can only say
/// that the data is outdated (`docs/spec/connection-and-state.md` 3.1).
fn may_ask(change: &StateChange) -> bool {
    use ConnState::{StartingSyncS, StartingSyncT, TearDown, VerifyS, VerifyT, WFReportParams};
    let conn = matches!(
        change.conn,
        None | Some(TearDown | StartingSyncS | StartingSyncT | VerifyS | VerifyT | WFReportParams)
    );
    let disk = matches!(change.disk, None | Some(DiskState::Outdated));
    let ours = [change.susp, change.susp_nod, change.susp_fen, change.aftr_isp, change.user_isp];
    conn && disk && change.role.is_none() && ours.iter().all(Option::is_none)
}
