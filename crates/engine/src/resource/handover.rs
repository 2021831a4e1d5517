//! Leaving the block devices to the next process, and going on with those of the last one.
//!
//! A process leaves in four steps: it takes no requests any more, answers those that it has, becomes Secondary and
//! disconnects as for `down` (so that nothing has to be resynchronised), and ends. If that takes too long it just ends:
//! what it leaves then is what a killed process leaves. The next one attaches, connects, and wishes to be Primary again
//! (`Command::PrimaryAgain`); as soon as it is, requests go on.

mod renaming;

use super::{Error, LocalResource, NbdServer, Runner, log};
use crate::claim::{self, Claim, KeeperCommand};
use crate::fuse_server::{FuseServer, PRIMARY, PROMOTED};
use crate::ring::{Fd, Op};
use crate::token::Token;
use config::{FrontEnd, Standing};
use control::{Command as Asked, ErrorCode, Failure};
use frontends::device_link::DeviceLinks;
use frontends::keeper::{self, Keeper, Kind, Place, TOLD};
use std::collections::BTreeSet;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::rc::Rc;
use units::{Duration, Instant, NodeMask, VolumeNr};
use urbd_core::{Command, CommandError, ConnectionState, Inherited, Openers, Snapshot};
use wire::DiskState;

/// How long a process that leaves may take to answer what it has, and to tell its peers.
const LIMIT: Duration = Duration::from_secs(3);

/// How soon to try again to have a keeper, and the longest pause: each is twice the one before.
const RETRY: (Duration, Duration) = (Duration::from_millis(10), Duration::from_secs(10));

/// What a process says to the next one about a volume: its number on top of this.
const DETACHED: u32 = 1 << 17;

/// What this process has to do with its successor and its predecessor.
pub(super) struct Handover {
    keeper: Keeper,
    command: Option<KeeperCommand>,
    /// Readable when the keeper ends.
    watched: Option<Fd>,
    /// No keeper has the devices, although one is to have them: when to try once more, and the pause after that.
    retry: Option<(Instant, Duration)>,
    /// The peers that the last process was connected with, if it has said so.
    beside: Option<NodeMask>,
    /// Volumes that this Primary, or the last process, uses without their disk: the next one must not attach it, as the
    /// peer's data is newer by what was written since.
    detached: BTreeSet<VolumeNr>,
    /// Volumes that the last process did not have.
    came: Vec<VolumeNr>,
    /// The core's name for the wish to be Primary again.
    wish: Option<u64>,
    leaving: Option<Leaving>,
    /// What the next process would find about the role.
    noted: Option<Place>,
    /// The peers that it would connect to, and the disks that it would leave alone.
    standing: Standing,
    /// The same as the keeper has it, beside what this process was told; `None`: it was told more.
    kept: Option<Standing>,
}

/// A process that leaves.
struct Leaving {
    until: Instant,
    stage: Stage,
    /// The peers that it was connected with when it began to, if the next one is to be told.
    beside: Option<NodeMask>,
}

impl Leaving {
    /// Of its disks, too, as whoever goes down.
    fn lets_go(&self) -> bool {
        matches!(self.stage, Stage::GoingDown | Stage::AtOnce)
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// A device is being attached, detached or resized, which needs this process.
    Settling,
    /// Requests are being answered.
    Answering,
    /// The core becomes Secondary, by a command of this name.
    Demoting(u64),
    /// The core goes down.
    GoingDown,
    /// The process ends, whatever is left to do.
    AtOnce,
}

/// Is it what the last process was told? That may be half made.
pub(super) fn is_kept(claim: &Claim, local: &LocalResource) -> bool {
    kept(claim, local).is_some_and(|(kept, _)| kept.is_same(local))
}

/// What the last process was told, and how it stood.
pub(super) fn kept(claim: &Claim, local: &LocalResource) -> Option<(LocalResource, Standing)> {
    claim.told().and_then(|told| LocalResource::from_keeper_of(&local.name, &told).ok())
}

/// What was left must have a place in this configuration. If that is what the last process was told, a device without
/// one is of a volume that nobody used any more, and that was being removed.
///
/// # Errors
/// If it has none: applications wait for it, so nothing is thrown away.
pub(super) fn check(claim: Claim, local: &LocalResource) -> Result<Claim, Error> {
    let name = &local.name;
    if is_kept(&claim, local) {
        return Ok(claim);
    }
    let unknown = claim.devices().into_iter().find(|volume| !local.volumes.iter().any(|v| v.nr == *volume));
    if let Some(volume) = unknown {
        return Err(Error::Config(format!(
            "applications use the device of {name}/{volume}, which is not in the configuration any more: put it back, or \
             give the device up: urbd down --force {name}"
        )));
    }
    if !claim.devices().is_empty() && !matches!(local.urbd.front_end, FrontEnd::Auto | FrontEnd::Fuse) {
        return Err(Error::Config(format!(
            "applications use devices of {name}, and the configuration asks for another front-end: put it back, or give \
             the devices up: urbd down --force {name}"
        )));
    }
    Ok(claim)
}

/// The volumes that have come to the resource since applications use its devices: those without a device, or with one
/// that never had a size.
pub(super) fn came(claim: &Claim, local: &LocalResource) -> Vec<VolumeNr> {
    let used = claim.devices();
    let is_used = |volume: &VolumeNr| used.contains(volume) && claim.has_size(*volume);
    let came = local.volumes.iter().map(|v| v.nr).filter(|volume| !is_used(volume));
    if used.is_empty() { Vec::new() } else { came.collect() }
}

/// The socket for a volume's NBD clients, if one was left.
pub(super) fn take_listener(left: &mut Vec<(Place, OwnedFd)>, volume: VolumeNr) -> Option<OwnedFd> {
    let place = listener(volume);
    let at = left.iter().position(|(other, _)| *other == place)?;
    Some(left.swap_remove(at).1)
}

fn listener(volume: VolumeNr) -> Place {
    Place { kind: Kind::Listener, number: u32::from(volume.0) }
}

impl Handover {
    /// `left`: what the last process left besides devices and sockets. `came`: volumes that it did not have.
    pub(super) fn new(
        keeper: Keeper,
        command: Option<KeeperCommand>,
        left: &[(Place, OwnedFd)],
        came: Vec<VolumeNr>,
        standing: Standing,
    ) -> Handover {
        let has = |place: Place| left.iter().any(|(other, _)| *other == place);
        let noted = [PRIMARY, PROMOTED].into_iter().find(|place| has(*place));
        let beside = claim::was_beside(left);
        let volumes = left.iter().filter_map(|(place, _)| place.number.checked_sub(DETACHED).map(|n| (place.kind, n)));
        let notes = volumes.filter(|(kind, number)| *kind == Kind::Note && *number <= u32::from(u16::MAX));
        let detached = notes.map(|(_, number)| VolumeNr(number as u16)).filter(|nr| !came.contains(nr)).collect();
        let (watched, retry, wish, leaving) = (None, None, None, None);
        let kept = None;
        Handover { noted, keeper, command, watched, retry, beside, detached, came, wish, leaving, standing, kept }
    }

    /// This process was told something that the keeper does not have.
    pub(super) fn told_more(&mut self) {
        self.kept = None;
    }

    /// Has the last process used the volume without its disk?
    pub(super) fn was_detached(&self, volume: VolumeNr) -> bool {
        self.detached.contains(&volume)
    }

    /// A keeper that has all that outlives this process, started if there is none.
    fn begin(
        &mut self,
        local: &LocalResource,
        fuse: Option<&mut FuseServer>,
        nbd: &NbdServer,
        role: Option<Place>,
    ) -> io::Result<()> {
        let named = |what: &str, e: io::Error| io::Error::new(e.kind(), format!("{what}: {e}"));
        if !self.keeper.is_there() {
            let Some(command) = &self.command else { return Ok(()) };
            self.keeper.start(command.command()).map_err(|e| named("starting it", e))?;
        }
        self.tell(local).map_err(|e| named("telling it what this process was told", e))?;
        match fuse {
            Some(fuse) => {
                fuse.keep_with(self.keeper.clone(), role).map_err(|e| named("handing it the devices", e))?;
                self.noted = role;
                let mut sockets = nbd.listeners();
                let put = sockets.try_for_each(|(volume, socket)| self.keeper.put(listener(volume), socket.as_fd()));
                put.map_err(|e| named("handing it the sockets", e))?;
            }
            None => self.keep_nothing_else().map_err(|e| named("taking back what is of no use", e))?,
        }
        self.watched = Some(Rc::new(self.keeper.watch()?));
        Ok(())
    }

    /// The keeper is to have what this process was told.
    fn tell(&mut self, local: &LocalResource) -> io::Result<()> {
        let put = self.keeper.put_text(TOLD, &local.kept(&self.standing));
        put.inspect(|()| self.kept = Some(self.standing.clone()))
    }

    /// The keeper is to know it before who told it has an answer.
    pub(super) fn note_told(&mut self, local: &LocalResource, standing: Standing, now: Instant) {
        let is_kept = self.watched.is_some() && self.retry.is_none() && self.leaving.is_none();
        if !is_kept || self.kept.as_ref() == Some(&standing) {
            return;
        }
        self.standing = standing;
        if let Err(e) = self.tell(local) {
            log("warning", &format!("the keeper does not know what this process was told: {e}"));
            self.retry = Some((now + RETRY.0, RETRY.0));
        }
    }

    /// Without devices of this process what the last one has left is of no use.
    fn keep_nothing_else(&self) -> io::Result<()> {
        let places = self.keeper.fetch()?.into_iter().map(|(place, _)| place);
        places.filter(|place| *place != TOLD).try_for_each(|place| self.keeper.release(place))
    }
}

/// How the resource stands by what was commanded. Who goes down lets its peers go, and is to connect to them again.
pub(super) fn standing(runner: &Runner, snapshot: &Snapshot) -> Standing {
    let before = &runner.handover.standing;
    if runner.stopped.is_some() || runner.commands.takes_down() {
        return before.clone();
    }
    let sought = snapshot.connections.iter().filter(|c| c.state != ConnectionState::StandAlone).map(|c| c.peer);
    // Those that cannot be connected to as they are configured are meant to be.
    let unusable = runner.unusable.keys().copied().filter(|id| before.connects.contains(*id));
    // By a command, and not as it has failed: that may be tried again.
    let is_off = |volume| snapshot.devices.iter().any(|d| d.volume == volume && d.disk == DiskState::Diskless);
    let given_up = |nr: &VolumeNr| runner.commands.gives_up(*nr) || before.detached.contains(nr) && is_off(*nr);
    let connects = sought.chain(unusable).collect();
    let detached = runner.volumes_with_disk().filter(given_up).collect();
    Standing { connects, detached, behind_file: false, files: before.files.clone() }
}

impl Runner {
    /// The same, with its devices kept for the next process, if they can be.
    pub(super) fn kept(mut self) -> Runner {
        self.keep();
        self
    }

    fn keep(&mut self) {
        // Only a try that fails is followed by another one.
        let before = self.handover.retry.take();
        if self.handover.command.is_none() && !self.fuse.as_ref().is_some_and(FuseServer::is_kept) {
            return self.end_keeper();
        }
        let keeps = self.fuse.as_ref().is_some_and(|fuse| fuse.is_kept() || fuse.can_be_kept());
        if self.fuse.is_some() && !keeps {
            log("info", "the block devices go with this process: the kernel hands unanswered requests out once only");
        }
        let fuse = self.fuse.as_mut().filter(|_| keeps);
        // Who waits to be Primary again has been noted as that, and may be killed once more.
        let waits = fuse.as_ref().filter(|fuse| fuse.is_waiting()).and(self.handover.noted);
        let role = if self.gate.by_openers() { PROMOTED } else { PRIMARY };
        let role = waits.or(fuse.as_ref().filter(|fuse| fuse.is_primary()).map(|_| role));
        match self.handover.begin(&self.local, fuse, &self.nbd, role) {
            Ok(()) => {
                if let Some(fd) = &self.handover.watched {
                    self.ring.push(Op::Readable { fd: fd.clone() }, Token::Keeper);
                }
            }
            // One that is dying may take connections and no orders: its descriptors are closed in any order.
            Err(e) => {
                let pause = before.map_or(RETRY.0, |(_, pause)| RETRY.1.min(pause + pause));
                if before.is_none() {
                    log("warning", &format!("the block devices go with this process until there is a keeper: {e}"));
                }
                self.handover.retry = Some((self.now + pause, pause));
            }
        }
    }

    /// Tells the keeper which volumes this Primary uses without their disk. It must know before the peer is asked, or
    /// told: the peer then begins a generation that the disk lacks. Of who leaves it counts what it was until then.
    pub(super) fn note_detached(&mut self, snapshot: &Snapshot) {
        let waiting = self.fuse.as_ref().is_none_or(FuseServer::is_waiting);
        let lets_go = self.handover.leaving.as_ref().is_some_and(Leaving::lets_go);
        if waiting || self.handover.watched.is_none() || self.stopped.is_some() || lets_go {
            return;
        }
        let primary =
            if self.is_leaving() { self.handover.noted.is_some() } else { snapshot.role == wire::Role::Primary };
        for device in &snapshot.devices {
            let volume = device.volume;
            let gone = device.disk <= DiskState::Negotiating || self.commands.gives_up(volume);
            let detached = primary && gone;
            if detached == self.handover.detached.contains(&volume) {
                continue;
            }
            let place = Place { kind: Kind::Note, number: DETACHED + u32::from(volume.0) };
            let told = match detached {
                true => self.handover.keeper.put(place, self.signals.as_fd()),
                false => self.handover.keeper.release(place),
            };
            match (told, detached) {
                (Ok(()), true) => _ = self.handover.detached.insert(volume),
                (Ok(()), false) => _ = self.handover.detached.remove(&volume),
                (Err(e), _) => log("warning", &format!("the keeper: {e}")),
            }
        }
    }

    /// When there is something to do about the keeper only because time passes.
    pub(super) fn keeper_deadline(&self) -> Option<Instant> {
        self.handover.retry.filter(|_| !self.is_leaving() && self.stopped.is_none()).map(|(at, _)| at)
    }

    pub(super) fn try_again_to_keep(&mut self) {
        if self.keeper_deadline().is_some_and(|at| at <= self.now) {
            self.keep();
        }
    }

    /// What the next process has to know if this one is killed now.
    pub(super) fn note_role(&mut self) {
        let Some(fuse) = self.fuse.as_ref().filter(|fuse| fuse.is_kept() && !fuse.is_waiting()) else { return };
        let role = if self.gate.by_openers() { PROMOTED } else { PRIMARY };
        let role = fuse.is_primary().then_some(role);
        if self.is_leaving() || self.stopped.is_some() || self.handover.noted == role {
            return;
        }
        match fuse.note_role(role) {
            Ok(()) => self.handover.noted = role,
            // It is dying, or hangs. The next one is told.
            Err(e) => log("warning", &format!("the keeper is not told of this node's role: {e}")),
        }
    }

    /// What it has is of no use.
    fn end_keeper(&self) {
        if self.handover.keeper.is_there()
            && let Err(e) = self.handover.keeper.end()
        {
            log("warning", &format!("the keeper does not end: {e}"));
        }
    }

    /// The keeper has put something aside, which is looked at in this turn; or it has ended, and not by our order:
    /// another one is needed, or a crash takes the devices along.
    pub(super) fn on_keeper(&mut self) {
        if self.is_leaving() || self.stopped.is_some() {
            return;
        }
        if let Some(fd) = self.handover.watched.as_ref().filter(|fd| keeper::is_there_still(fd.as_fd())) {
            self.ring.push(Op::Readable { fd: fd.clone() }, Token::Keeper);
            return;
        }
        self.fuse.iter_mut().for_each(FuseServer::on_keeper_killed);
        log("warning", "the keeper of the block devices has ended: starting another one");
        (self.handover.watched, self.handover.retry) = (None, None);
        self.keep();
    }

    /// If applications wait for what the last process did not answer, this node has to be Primary again.
    pub(super) fn wish_to_be_primary_again(&mut self) {
        if !self.fuse.as_ref().is_some_and(FuseServer::is_waiting) {
            return;
        }
        log(
            "info",
            "applications wait for their I/O since the last process ended: it goes on when this node is Primary",
        );
        let (id, beside) = (self.commands.name(), self.handover.beside);
        let without_disk = self.handover.detached.iter().copied().collect();
        let came = self.handover.came.clone();
        self.handover.wish = Some(id);
        let inherited = Inherited { beside, without_disk, came };
        self.tell(|core, now| core.on_command(now, id, Command::PrimaryAgain(inherited)));
    }

    pub(super) fn is_wish(&self, id: u64) -> bool {
        self.handover.wish == Some(id)
    }

    /// It has come true, or cannot.
    pub(super) fn on_wish_done(&mut self, result: Result<(), CommandError>) {
        self.handover.wish = None;
        self.forget_last_peers();
        let Some(fuse) = &mut self.fuse else { return };
        let went_on = match result {
            Ok(()) => fuse.go_on(&mut self.ring).map_err(|e| format!("the kernel does not repeat its requests: {e}")),
            Err(e) => Err(e.text),
        };
        match went_on {
            Ok(()) => log("info", "applications' I/O goes on"),
            Err(why) => self.give_up_devices(&why),
        }
        self.untold.touch(true);
    }

    /// What the last process has said of its peers is over: from now on the metadata know who is connected.
    fn forget_last_peers(&mut self) {
        let Some(peers) = self.handover.beside.take() else { return };
        for note in claim::beside(peers) {
            if let Err(e) = self.handover.keeper.release(note) {
                log("warning", &format!("the keeper: {e}"));
            }
        }
    }

    /// Lets what applications wait for fail, and offers new devices.
    fn give_up_devices(&mut self, why: &str) {
        log("error", &format!("the block devices that applications use are given up, their I/O fails: {why}"));
        // In this order: the last descriptor of the connection makes the kernel fail what waits for it.
        self.handover.watched = None;
        self.end_keeper();
        drop(self.fuse.take());
        self.handover.noted = None;
        let links = DeviceLinks::from_env(&self.run_dir, self.local.urbd.drbd_names);
        let links = links.with_files(self.handover.files(&self.local.name));
        match super::start_fuse(&mut self.ring, &mut self.done, self.pool, &self.local, links) {
            Ok(fuse) => {
                self.fuse = fuse;
                self.tell_devices();
            }
            Err(why) => self.no_devices = Some(why),
        }
        self.keep();
    }

    /// While applications wait, this node is Secondary, and yet their devices must not go.
    pub(super) fn refused_while_waiting(&self, asked: &Asked) -> Option<Failure> {
        let leaves = matches!(asked, Asked::Secondary { force: false } | Asked::Down { force: false });
        let waiting = self.fuse.as_ref().is_some_and(FuseServer::is_waiting);
        (leaves && waiting && !self.is_leaving()).then(|| {
            let name = &self.local.name;
            let text = "applications have the device open, and wait for their I/O until this node is Primary again";
            let hint = format!(
                "see why: urbd why {name}; go on without the peer: urbd resume-io {name}; let their I/O \
                                fail: urbd down --force {name}"
            );
            Failure::new(ErrorCode::DEVICE_IN_USE, text.to_owned()).with_hint(hint)
        })
    }

    /// Would the devices outlive this process?
    pub(super) fn can_leave(&self) -> bool {
        let kept = self.handover.watched.is_some();
        let worth = |fuse: &FuseServer| fuse.any_used() || fuse.is_primary() && fuse.has_devices() || fuse.is_waiting();
        self.fuse.as_ref().is_some_and(|fuse| kept && fuse.is_kept() && worth(fuse))
    }

    /// Another process shall go on.
    pub(super) fn hand_over(&mut self) -> Result<(), Failure> {
        let primary = self.core.snapshot().role == wire::Role::Primary;
        if primary && !self.can_leave() {
            let text = "this node is Primary, and has no block device that another process could take over";
            let hint =
                format!("clients of NBD have to reconnect in any case: urbd down {0}; urbd up {0}", self.local.name);
            return Err(Failure::new(ErrorCode::INVALID_REQUEST, text.to_owned()).with_hint(hint));
        }
        self.leave();
        Ok(())
    }

    /// Begins to leave.
    pub(super) fn leave(&mut self) {
        if self.is_leaving() {
            return;
        }
        let name = &self.local.name;
        let path = self.handover.keeper.path();
        let path = path.display();
        let text = format!(
            "the block devices stay with the keeper ({path}); what applications ask of them waits for the next process: \
             urbd up {name}; or let their I/O fail: urbd down --force {name}"
        );
        log("info", &text);
        let standing = Standing { behind_file: true, ..self.handover.standing.clone() };
        self.handover.note_told(&self.local, standing, self.now);
        let beside = match self.fuse.as_ref().is_some_and(FuseServer::is_waiting) {
            true => self.handover.beside,
            false => Some(self.connected_peers()),
        };
        // A Secondary leaves each of its peers in order, also beside one that does not answer; nobody waits for it.
        let peers = if self.handover.noted.is_some() { 1 } else { self.local.peers.len().max(1) as u64 };
        self.handover.leaving = Some(Leaving { until: self.now + LIMIT.times(peers), stage: Stage::Settling, beside });
    }

    fn connected_peers(&self) -> NodeMask {
        let mut peers = NodeMask::default();
        let snapshot = self.core.snapshot();
        let connected = snapshot.connections.iter().filter(|c| c.state == ConnectionState::Connected);
        connected.for_each(|c| peers.insert(c.peer));
        peers
    }

    /// Ends without tidying up: what is left is what a killed process leaves.
    pub(super) fn leave_at_once(&mut self) {
        log("warning", "ending at once: the next process has to find out what is missing on the peer");
        let leaving = Leaving { until: self.now, stage: Stage::AtOnce, beside: None };
        self.handover.leaving = Some(leaving);
        self.stopped = Some(self.now);
    }

    pub(super) fn is_leaving(&self) -> bool {
        self.handover.leaving.is_some()
    }

    pub(super) fn leaving_deadline(&self) -> Option<Instant> {
        self.handover.leaving.as_ref().filter(|_| self.stopped.is_none()).map(|leaving| leaving.until)
    }

    /// The next step of leaving, when the one before is done.
    pub(super) fn go_on_leaving(&mut self) {
        let Some(Leaving { until, stage, .. }) = self.handover.leaving else { return };
        if self.stopped.is_some() {
            return;
        }
        if self.now >= until {
            return self.leave_at_once();
        }
        let next = match stage {
            Stage::Settling if !self.fuse.as_ref().is_some_and(FuseServer::is_busy) => {
                self.fuse.iter_mut().for_each(FuseServer::leave);
                self.nbd.leave(&mut self.ring);
                Stage::Answering
            }
            Stage::Answering if self.requests.of_devices() == 0 => {
                for volume in self.local.volumes.iter().map(|v| v.nr).collect::<Vec<_>>() {
                    self.tell(|core, now| core.on_openers(now, volume, Openers::default()));
                }
                let id = self.commands.name();
                self.tell(|core, now| core.on_command(now, id, Command::Secondary { force: false }));
                Stage::Demoting(id)
            }
            stage => stage,
        };
        if next != stage {
            self.handover.leaving.iter_mut().for_each(|leaving| leaving.stage = next);
            self.settle();
            self.go_on_leaving();
        }
    }

    /// Is it the demotion of a process that leaves?
    pub(super) fn is_demotion(&self, id: u64) -> bool {
        self.handover.leaving.as_ref().is_some_and(|leaving| leaving.stage == Stage::Demoting(id))
    }

    /// Secondary. Peers of one that was Primary are not told that it disconnects: they would wait before they connect
    /// again. Else a peer may be Primary, which would freeze its I/O and fence this node if it were not told.
    pub(super) fn on_demoted(&mut self, result: Result<(), CommandError>) {
        if let Err(e) = result {
            log("error", &format!("this node does not become Secondary: {e}"));
            return self.leave_at_once();
        }
        self.handover.leaving.iter_mut().for_each(|leaving| leaving.stage = Stage::GoingDown);
        let silent = self.local.peers.iter().filter(|_| self.handover.noted.is_some());
        for peer in silent.map(|p| p.peer_node_id).collect::<Vec<_>>() {
            let id = self.commands.name();
            self.tell(|core, now| core.on_command(now, id, Command::Disconnect { peer, force: true }));
        }
        let id = self.commands.name();
        self.tell(|core, now| core.on_command(now, id, Command::Down(true)));
    }

    /// Ends the front ends, or leaves them to the next process.
    pub(super) fn stop_front_ends(&mut self) {
        match self.handover.leaving.take() {
            Some(leaving) => {
                self.nbd.leave(&mut self.ring);
                if let Some(fuse) = self.fuse.take() {
                    let notes = leaving.beside.map(claim::beside).unwrap_or_default();
                    fuse.abandon(&notes);
                }
            }
            None => {
                self.nbd.stop(&mut self.ring);
                drop(self.fuse.take());
                self.end_keeper();
            }
        }
    }
}
