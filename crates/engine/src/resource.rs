//! The loop's owner: one core with its disks, links, clients and clock.

mod commands;
mod effects;
mod gate;
mod generations;
mod handover;
mod told;
mod what_if;

use crate::application::{Application, Inside};
use crate::buffers::Pool;
use crate::buffers::growth::Growth;
use crate::claim::{Claim, KeeperCommand, is_at, lock_file, open_lock};
use crate::control_server::ControlServer;
use crate::dependencies::Dependencies;
use crate::error::Error;
use crate::exclusive::{self, Locked};
use crate::files;
use crate::fuse_server::{self, FuseServer, Inherited, PRIMARY};
use crate::handlers::Handlers;
use crate::links::{LinkEvent, Links, check_ports};
pub(crate) use crate::log::log;
use crate::nbd_server::{FrontEvent, MAX_REQUEST, NbdServer, nbd_path};
use crate::requests::Requests;
use crate::ring::{BusyPoll, Done, Fd, Op, Ring};
use crate::setup::{self, Setup};
use crate::token::Token;
use crate::volumes::{Outcome, Volumes};
use crate::{digests, memory, sys};
use config::{FrontEnd, LocalResource, Standing};
use control::client::socket_path;
use frontends::device_link::DeviceLinks;
use frontends::keeper::Keeper;
use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use units::{ByteLen, Duration, Instant, NodeId, VolumeNr, sooner};
use urbd_core::{Access, Command, LinkDown, LinkUp, Openers, Resource};

/// What to run and where.
#[derive(Clone, Debug)]
pub struct Options {
    /// The resource as this node sees it.
    pub resource: LocalResource,
    /// The program that is called at events, if the resource names no other one; `None`: none is.
    pub helper: Option<PathBuf>,
    /// Where the sockets are made; created if it does not exist.
    pub run_dir: PathBuf,
    /// Which peers are connected to at the start, and which disks stay detached.
    pub standing: Standing,
    /// Starts the process that holds the block devices when this one is gone. `None`: they go with it.
    pub keeper: Option<KeeperCommand>,
}

/// Runs the resource until it is taken down or a signal asks to stop. Blocks.
///
/// # Errors
/// If it cannot be started, or the kernel interface fails.
pub fn run(options: Options) -> Result<(), Error> {
    let claim = Claim::take(&options.run_dir, &options.resource.name, None)?;
    run_with(options, claim, None)
}

/// As [`run`], with an application inside the process. `claim` is of this resource and run directory.
///
/// # Errors
/// As [`run`].
pub fn run_with(options: Options, claim: Claim, application: Option<Box<dyn Application>>) -> Result<(), Error> {
    let standing = options.standing.clone();
    let begins = !claim.is_waited_for();
    let mut runner = Runner::start(options, claim)?;
    if begins {
        let status = runner.status();
        runner.control.begin(runner.now, status);
    }
    runner.inside = application
        .map(|application| Inside::start(&mut runner.ring, runner.pool, application))
        .transpose()
        .map_err(|error| Error::Io { what: "starting the application inside".into(), error })?;
    runner.bring_up(&standing);
    while !runner.finished() {
        runner.turn()?;
    }
    runner.stop();
    Ok(())
}

/// Removes what a killed process of the resource left: its sockets, and its devices' names, which may lead to somebody
/// else's device by now. Does nothing, and says false, while a process holds the resource.
#[must_use]
pub fn clear_leftovers(run_dir: &Path, resource: &str, volumes: &[VolumeNr]) -> bool {
    // Where there is no lock no process has been.
    let path = lock_file(run_dir, resource);
    let Ok(lock) = open_lock(&path, false) else { return true };
    if !matches!(exclusive::lock(&lock), Ok(Locked::Yes | Locked::Despite(_))) || !is_at(&lock, &path) {
        return false;
    }
    let kept = Keeper::of(run_dir, resource).is_there();
    for files in files::names_of(run_dir, resource) {
        let links = DeviceLinks::from_env(run_dir, true).with_files(&files);
        let of_loops = files::volumes(run_dir, &files, ".loop");
        for volume in volumes.iter().chain(&of_loops).map(|volume| u32::from(volume.0)) {
            if !kept {
                // What cannot be cleared the next start says.
                let _ = links.clear_loop(resource, volume);
            }
            let _ = links.remove(resource, volume);
        }
        if let Ok(doors) = links.doors(resource)
            && fuse_server::clear_mount(&doors).is_ok()
        {
            let _ = std::fs::remove_dir(doors);
        }
        let _ = files::forget(run_dir, &files);
    }
    if !kept {
        let _ = std::fs::remove_file(Keeper::of(run_dir, resource).path());
    }
    let sockets = files::volumes(run_dir, resource, ".nbd").into_iter();
    let sockets = sockets.map(|volume| nbd_path(run_dir, resource, volume)).chain([socket_path(run_dir, resource)]);
    // What cannot be removed is replaced by the next start, which says why it cannot.
    sockets.for_each(|path| drop(std::fs::remove_file(path)));
    control::Successor::clear(run_dir, resource);
    let _ = std::fs::remove_file(path);
    true
}

/// The name that a volume's block device has.
///
/// # Errors
/// For a resource whose name is not one component of a path.
pub fn device_name(run_dir: &Path, resource: &str, volume: VolumeNr) -> io::Result<PathBuf> {
    DeviceLinks::from_env(run_dir, false).path(resource, u32::from(volume.0))
}

/// The resource and volume whose block device stands on this file, as the kernel tells it of a loop device, if that is
/// one of a process of `run_dir`.
pub fn device_of_file(run_dir: &Path, file: &str) -> Option<(String, VolumeNr)> {
    let (files, volume) = DeviceLinks::from_env(run_dir, false).of_file(file)?;
    Some((files::resource_of(run_dir, files).unwrap_or_else(|| files.to_owned()), VolumeNr(volume)))
}

/// Requests in flight up to which staying awake for the next event serves better than a bigger batch later.
const SHALLOW: usize = 8;
/// Requests and packets in one turn up to which the same is true of a node that does not know the depth.
const SMALL_BATCH: usize = 4;

/// Bytes that are written so soon that answers of the same turn wait for them, to leave in one message.
const SOON_WRITTEN: usize = 128 << 10;

/// Submissions that fit one turn; more are handed over in between.
const RING_DEPTH: u32 = 1024;

/// How long a client may take to read what it was told before the process ends.
const LAST_WORD: Duration = Duration::from_secs(2);

/// How often it is said that nobody can be let in.
const SAID_AGAIN: Duration = Duration::from_secs(60);

/// How often clients that wait for an answer are looked at.
const LOOK_AT_WAITING: Duration = Duration::from_millis(250);

struct Runner {
    core: Resource,
    ring: Ring<Token>,
    pool: &'static Pool,
    growth: Growth,
    volumes: Volumes,
    links: Links,
    nbd: NbdServer,
    fuse: Option<FuseServer>,
    /// Why there are none of the block devices that the configured front end promises.
    no_devices: Option<String>,
    inside: Option<Inside>,
    requests: Requests,
    control: ControlServer,
    dependencies: Dependencies,
    handlers: Handlers,
    pending_handlers: BTreeMap<u64, control::HelperCall>,
    commands: commands::Commands,
    local: LocalResource,
    helper: Option<PathBuf>,
    run_dir: PathBuf,
    minors: BTreeMap<VolumeNr, u32>,
    /// Kept to reuse their memory.
    done: Vec<Done<Token>>,
    outcomes: Vec<Outcome>,
    now: Instant,
    /// When the core and the links want to be told the time, and whether that is of the turn before.
    due: (Option<Instant>, Option<Instant>),
    due_known: bool,
    /// Answers to peers were held back in the last turn.
    answers_wait: bool,
    /// The core was given inputs since its turn ended.
    told: bool,
    /// Requests and packets since the last wait.
    taken_in: usize,
    /// The same of the last turns, the older the less.
    batch: usize,
    untold: crate::status::Untold,
    causes: crate::status::Causes,
    /// Peers that are left alone, as they are configured in a way that cannot be used, and why.
    unusable: BTreeMap<NodeId, String>,
    /// Since when the core has nothing more to do.
    stopped: Option<Instant>,
    /// When to look again at clients that wait for an answer.
    look_at_waiting: Option<Instant>,
    /// When it was last said that nobody can be let in.
    accept_failed: Option<Instant>,
    signals: Fd,
    /// Commands that wait until it is known who uses the devices.
    checking: Option<gate::UseCheck>,
    asked_to_stop: bool,
    handover: handover::Handover,
    gate: gate::Gate,
    /// What the core knows about who has which device open.
    told_openers: BTreeMap<VolumeNr, Openers>,
    /// What the core has said last about each device.
    announced: BTreeMap<VolumeNr, (ByteLen, Access, bool)>,
    _lock: File,
}

impl Runner {
    fn start(options: Options, claim: Claim) -> Result<Runner, Error> {
        let Options { resource: local, helper, run_dir, keeper: keeper_command, standing } = options;
        let io = |what: &str| {
            let what = what.to_owned();
            move |error| Error::Io { what, error }
        };
        let kept = handover::kept(&claim, &local);
        let (in_use, is_kept) = (claim.is_waited_for(), handover::is_kept(&claim, &local));
        let Setup { core: core_config, links, unusable } =
            if in_use || is_kept { Setup::of(&local) } else { setup::runnable(&local) }.map_err(Error::Config)?;
        match local.check_startable() {
            Err(errors) if in_use => {
                log("error", &format!("the devices are in use, and are served all the same: {errors}"))
            }
            _ => {}
        }
        setup::warnings(&local).iter().for_each(|warning| log("warning", warning));
        if !in_use {
            // Applications do not wait for a port: who is in use listens as soon as it is free.
            check_ports(links.values()).map_err(Error::Config)?;
        }
        let claim = handover::check(claim, &local)?;
        let came = handover::came(&claim, &local);
        let Claim { lock, keeper, mut left, successor } = claim;
        for refused in memory::harden_memory() {
            log("warning", &format!("not granted: {refused}; the process may stall when memory is short"));
        }
        let max_buffers = core_config.connections.iter().map(|c| c.max_buffers as usize).max().unwrap_or(2048);
        let pool = Pool::leak_growing(&Pool::plan(max_buffers, links.len(), MAX_REQUEST as usize));
        let mut ring = Ring::new(RING_DEPTH).map_err(io("setting up io_uring or poll"))?;
        *ring.busy_poll() = BusyPoll::at_most(local.urbd.busy_poll);
        let (least, most) = (pool.least() >> 10, pool.most() >> 10);
        log("info", &format!("{least} KiB of buffers, up to {most} KiB under load; {}", ring.interface()));
        let signals: Fd = Rc::new(sys::stop_signals().map_err(io("blocking signals"))?);
        ring.push(Op::Readable { fd: signals.clone() }, Token::Signal);
        let inherited = Inherited::from(&mut left);
        let files = match &inherited {
            Some(_) => kept.and_then(|(_, standing)| standing.files).unwrap_or_else(|| local.name.clone()),
            None => files::choose(&run_dir, &local.name).map_err(io("naming the files of the devices"))?,
        };
        let device_links = DeviceLinks::from_env(&run_dir, local.urbd.drbd_names).with_files(&files);
        let standing = Standing { files: Some(files), ..standing };
        let mut nbd = NbdServer::new(pool, &local.name);
        for volume in &local.volumes {
            let path = nbd_path(&run_dir, &local.name, volume.nr);
            let left = handover::take_listener(&mut left, volume.nr);
            nbd.listen(&mut ring, volume.nr, &path, left).map_err(io(&format!("listening on {}", path.display())))?;
        }
        let mut done = Vec::new();
        let started = match inherited {
            Some(inherited) => {
                let server = FuseServer::take_over(&mut ring, pool, &local, device_links, inherited, &keeper);
                Ok(Some(server.map_err(io("taking over the block devices"))?))
            }
            None => start_fuse(&mut ring, &mut done, pool, &local, device_links),
        };
        let (fuse, no_devices) = match started {
            Ok(fuse) => (fuse, None),
            Err(why) => (None, Some(why)),
        };
        let gate = gate::Gate::new(sys::now(), left.iter().any(|(place, _)| *place == PRIMARY));
        let handover =
            handover::Handover::new(keeper, keeper_command.filter(|_| local.urbd.hand_over), &left, came, standing);
        let path = socket_path(&run_dir, &local.name);
        let control = ControlServer::listen(&mut ring, &local.name, &path, local.urbd.status_group.as_deref())
            .map_err(io(&format!("listening on {}", path.display())))?;
        drop(successor);
        let growth = Growth::start(&[pool, control.pool()]).map_err(io("starting a thread"))?;
        ring.push(Op::Readable { fd: growth.event() }, Token::Memory);
        let mut dependencies = Dependencies::new(&mut ring, &run_dir).map_err(io("making a pipe for resync-after"))?;
        dependencies.follow(&local);
        let seed = random_seed().map_err(io("reading /dev/urandom"))?;
        Ok(Runner {
            core: Resource::new(core_config, seed),
            volumes: Volumes::new(pool, setup::disk_paths(&local)),
            links: Links::new(pool, links, seed),
            unusable,
            minors: local.volumes.iter().map(|v| (v.nr, v.minor)).collect(),
            ring,
            pool,
            growth,
            nbd,
            fuse,
            no_devices,
            inside: None,
            requests: Requests::new(pool),
            checking: None,
            control,
            dependencies,
            handlers: Handlers::default(),
            pending_handlers: BTreeMap::new(),
            commands: commands::Commands::default(),
            local,
            helper,
            run_dir,
            done,
            outcomes: Vec::new(),
            now: sys::now(),
            due: (None, None),
            due_known: false,
            answers_wait: false,
            told: false,
            taken_in: 0,
            batch: 0,
            untold: crate::status::Untold::default(),
            causes: crate::status::Causes::default(),
            stopped: None,
            look_at_waiting: None,
            accept_failed: None,
            signals,
            asked_to_stop: false,
            handover,
            gate,
            told_openers: BTreeMap::new(),
            announced: BTreeMap::new(),
            _lock: lock,
        }
        .kept())
    }

    /// Attaches the disks and connects to the peers.
    fn bring_up(&mut self, standing: &Standing) {
        let stays_off = |volume: &VolumeNr| standing.detached.contains(volume) || self.handover.was_detached(*volume);
        let volumes = self.volumes_with_disk().filter(|volume| !stays_off(volume));
        let attach: Vec<_> = volumes.map(|volume| Command::Attach { volume }).collect();
        for (id, command) in self.commands.start_with(attach.len()).into_iter().zip(attach) {
            self.tell(|core, now| core.on_command(now, id, command));
        }
        for (peer, why) in self.unusable.iter().filter(|(peer, _)| standing.connects.contains(**peer)) {
            let next = format!("then: urbd adjust {}", self.local.name);
            log(
                "error",
                &format!(
                    "not connecting, as the devices are in use and this cannot be: {why}; repair the file, {next}"
                ),
            );
            self.causes.cannot_connect(*peer, why);
        }
        let usable = |id: &NodeId| standing.connects.contains(*id) && !self.unusable.contains_key(id);
        let peers = self.local.peers.iter().map(|p| p.peer_node_id).filter(usable);
        let connect = peers.map(|peer| Command::Connect { peer, discard_my_data: false, tentative: false });
        for command in connect.collect::<Vec<_>>() {
            let id = self.commands.unattended();
            self.tell(|core, now| core.on_command(now, id, command));
        }
        self.wish_to_be_primary_again();
        self.settle();
    }

    fn volumes_with_disk(&self) -> impl Iterator<Item = VolumeNr> {
        self.local.volumes.iter().filter(|v| v.backing.is_some()).map(|v| v.nr)
    }

    fn finished(&self) -> bool {
        let Some(at) = self.stopped else { return false };
        let told = self.control.is_idle() || self.now >= at + LAST_WORD;
        told && (self.is_leaving() || !self.fuse.as_ref().is_some_and(FuseServer::is_busy))
    }

    /// One turn of the loop: wait, take in what happened, let the core decide, carry it out.
    fn turn(&mut self) -> Result<(), Error> {
        // What is to be done on this thread does not wait: when the next timer is due can be asked a turn later.
        self.due_known = self.ring.has_inline() && !self.due_known;
        if !self.due_known {
            self.due = (self.core.poll_timeout(), self.links.deadline());
        }
        let (core_due, links_due) = self.due;
        let last_word = self.stopped.map(|at| at + LAST_WORD).filter(|at| *at > self.now);
        let gate_due = self.gate_deadline();
        let own = sooner(last_word, sooner(self.keeper_deadline(), self.growth.deadline()));
        let own = sooner(sooner(self.control.deadline(), self.volumes.waiting().deadline()), own);
        let own = sooner(self.causes.lease(), own);
        let own = sooner(sooner(self.look_at_waiting, gate_due), sooner(self.leaving_deadline(), own));
        let deadline = sooner(sooner(core_due, links_due), own);
        let deadline = if self.inside.as_ref().is_some_and(Inside::is_hungry) { Some(Instant(0)) } else { deadline };
        let taken_in = std::mem::take(&mut self.taken_in);
        // One small turn between large ones does not make a queue shallow.
        self.batch = taken_in.max(self.batch - self.batch.div_ceil(8));
        self.ring.busy_poll().allow(self.requests.in_flight() <= SHALLOW && self.batch <= SMALL_BATCH);
        let turned = self.ring.turn(deadline, &mut self.done);
        turned.map_err(kernel_failed)?;
        self.now = sys::now();
        self.volumes.begin_turn(self.now);
        self.nbd.begin_turn(self.now);
        self.inside.iter_mut().for_each(|inside| inside.begin_turn(self.now));
        self.dispatch_done();
        if links_due.is_some_and(|at| at <= self.now) {
            self.links.on_timer(&mut self.ring, self.now);
        }
        if core_due.is_some_and(|at| at <= self.now) {
            self.tell(|core, now| core.on_time(now));
        }
        if gate_due.is_some_and(|at| at <= self.now) {
            self.look_at_gate();
        }
        if self.look_at_waiting.is_some_and(|at| at <= self.now) {
            self.look_at_waiting = None;
            self.answer_for_hung_disks();
            self.nbd.close_idlers(self.lacks_buffers());
        }
        if self.causes.lease().is_some_and(|at| at <= self.now) {
            self.causes.freezes_until(None);
            log(
                "warning",
                "the time for which I/O was to be frozen (suspend-io --lease) is over: it goes on, but for what else freezes it",
            );
            for volume in self.local.volumes.iter().map(|v| v.nr).collect::<Vec<_>>() {
                let id = self.commands.unattended();
                self.tell(|core, now| core.on_command(now, id, Command::EndFreeze { volume }));
            }
            self.untold.touch(true);
        }
        self.settle();
        if self.look_at_waiting.is_none() && (self.control.anyone_waits() || self.lacks_buffers()) {
            self.look_at_waiting = Some(self.now + LOOK_AT_WAITING);
        }
        self.growth.order(self.now);
        self.growth.look(self.now);
        self.try_again_to_keep();
        if self.is_leaving() {
            self.go_on_leaving();
        }
        Ok(())
    }

    fn dispatch_done(&mut self) {
        let mut done = std::mem::take(&mut self.done);
        for completion in done.drain(..) {
            self.dispatch(completion);
        }
        self.done = done;
    }

    /// Hands inputs to the core and carries out its effects until nothing is left to do in this turn, then hands over
    /// what is to be sent: one message per stream.
    fn settle(&mut self) {
        loop {
            self.settle_all();
            if !self.answer_clients() {
                break;
            }
        }
        self.control.pump(&mut self.ring);
    }

    fn settle_all(&mut self) {
        loop {
            self.feed();
            if std::mem::take(&mut self.told) {
                self.core.on_turn_end(self.now);
            }
            let changed = self.carry_out();
            if self.untold.is_news() {
                let snapshot = self.core.snapshot();
                self.note_detached(&snapshot);
                let standing = handover::standing(self, &snapshot);
                self.handover.note_told(&self.local, standing, self.now);
                self.causes.look(&snapshot, &self.links, self.now);
                let frozen = snapshot.suspended.any();
                self.fuse.iter_mut().for_each(|fuse| fuse.set_frozen(frozen));
            }
            self.volumes.feed_starved(&mut self.ring, &mut self.outcomes);
            while let Some(client) = self.requests.is_starved().then(|| self.nbd.next_dead()).flatten() {
                (0..self.requests.forget(client)).for_each(|_| self.nbd.not_begun(client));
            }
            self.requests.feed_starved();
            self.nbd.go_on();
            if let Some(fuse) = &mut self.fuse {
                fuse.pump(&mut self.ring, &mut self.requests);
            }
            self.run_gate();
            self.inside.iter_mut().for_each(|inside| inside.pump(&mut self.requests));
            let more = self.told || !self.outcomes.is_empty() || self.nbd.has_events() || self.requests.has_ready();
            if more || self.links.has_news(changed) {
                continue;
            }
            // Answers wait for those that this node's own writes are about to bring, but not for long.
            let soon = self.ring.inline_bytes().is_some_and(|n| n <= SOON_WRITTEN);
            self.answers_wait = soon && !self.answers_wait;
            let (core, pool) = (&self.core, self.pool);
            // Nothing more is received from a peer of which so much waits in the core.
            let paused = |peer| core.held_back(peer) > 0 && core.held_back(peer) > (pool.reachable() / 8) as u64;
            self.links.pump(&mut self.ring, self.now, self.answers_wait, paused);
            self.nbd.pump(&mut self.ring);
            if !self.nbd.has_events() {
                break;
            }
        }
    }

    /// Does somebody wait for a buffer?
    fn lacks_buffers(&self) -> bool {
        let fuse = self.fuse.as_ref().is_some_and(FuseServer::is_starved);
        fuse || self.requests.is_starved() || self.nbd.is_starved()
    }

    /// Gives the core an input.
    fn tell(&mut self, input: impl FnOnce(&mut Resource, Instant)) {
        self.told = true;
        input(&mut self.core, self.now);
    }

    /// Nobody can be let in: the ring tries again until it is possible.
    fn on_accept_failed(&mut self, why: &io::Error) {
        if self.accept_failed.is_none_or(|at| self.now >= at + SAID_AGAIN) {
            self.accept_failed = Some(self.now);
            let next = "if it has too many files open, it needs a greater limit: prlimit --nofile";
            log("warning", &format!("{}: nobody can be let in: {why}; {next}", self.local.name));
        }
    }

    fn dispatch(&mut self, done: Done<Token>) {
        if let (Token::Listen(_) | Token::NbdListen(_) | Token::ControlListen, Err(why), None) =
            (done.token, done.result(), &done.op)
        {
            return self.on_accept_failed(&why);
        }
        let (ring, now) = (&mut self.ring, self.now);
        match done.token {
            Token::Disk(slot) => self.volumes.on_done(ring, slot, done, &mut self.outcomes),
            Token::Listen(name) => self.links.on_accept(ring, name, done, now),
            Token::Open(peer, socket) => self.links.on_open(ring, peer, socket, done, now),
            Token::Link(peer, socket) => self.links.on_socket(ring, peer, socket, done, now),
            Token::NbdListen(volume) => self.nbd.on_accept(ring, volume, done),
            Token::Nbd(client) => self.nbd.on_done(client, done),
            Token::ControlListen => self.control.on_accept(done),
            Token::Control(client) => self.control.on_done(client, done),
            Token::Handler(id) => self.on_handler_end(id),
            Token::Fuse => {
                if let Some(fuse) = &mut self.fuse {
                    fuse.on_readable(ring, &mut self.requests);
                }
            }
            Token::Application => self.inside.iter_mut().for_each(|inside| inside.on_readable(ring)),
            Token::FuseSlot => {
                if let Some(fuse) = &mut self.fuse {
                    fuse.on_slot(done, ring, &mut self.requests);
                }
            }
            Token::FuseWork(volume) => self.on_fuse_work(volume),
            Token::Dependency => {
                for (volume, waits) in self.dependencies.on_changed(ring) {
                    self.tell(|core, now| core.on_dependency(now, volume, waits));
                }
            }
            Token::UseCheck => self.on_use_checked(),
            Token::Signal => self.on_signal(),
            Token::Keeper => self.on_keeper(),
            Token::Memory => {
                self.growth.on_done(now);
                ring.push(Op::Readable { fd: self.growth.event() }, Token::Memory);
            }
        }
    }

    /// The first signal asks to go down. While a device is in use it is left to the keeper; without one, going down is
    /// refused then. The next signal does not ask.
    fn on_signal(&mut self) {
        sys::take_signal(&self.signals);
        self.ring.push(Op::Readable { fd: self.signals.clone() }, Token::Signal);
        let force = std::mem::replace(&mut self.asked_to_stop, true);
        if self.is_leaving() || force && self.can_leave() {
            return self.leave_at_once();
        }
        if self.is_waiting() {
            return self.leave();
        }
        if force {
            log("warning", "asked to stop again: going down although the device is in use");
        } else {
            log("info", "asked to stop: going down");
        }
        self.on_asked(None, control::Command::Down { force });
    }

    /// Hands everything that has come in to the core.
    fn feed(&mut self) {
        self.grow();
        // The core only queues effects: nothing is added meanwhile.
        self.told |= !self.outcomes.is_empty();
        for outcome in self.outcomes.drain(..) {
            match outcome {
                Outcome::Disk(done) => self.core.on_disk_done(self.now, done),
                Outcome::Meta(done) => self.core.on_meta_done(self.now, done),
                Outcome::Opened(volume, opened) => self.core.on_disk_opened(self.now, volume, opened),
            }
        }
        while let Some(event) = self.nbd.next_event() {
            match event {
                FrontEvent::Request(asker, volume, request, payload) => {
                    self.requests.admit(asker, volume, request, payload);
                }
                FrontEvent::Openers(volume) => {
                    self.tell_openers(volume);
                    self.gate.news();
                    self.untold.touch(true);
                }
                FrontEvent::Log(text) => log("warning", &text),
            }
        }
        while let Some(request) = self.requests.next() {
            self.taken_in += 1;
            self.tell(|core, now| core.on_request(now, request));
        }
        while !self.volumes.waiting().holds_packets()
            && let Some(event) = self.links.next_event()
        {
            self.taken_in += 1;
            match &event {
                // A peer asks for which size there is room.
                LinkEvent::Packet { volume, packet: wire::Packet::TwopcPrepRsz(_), .. }
                    if self.volumes.grown(*volume).is_some() =>
                {
                    self.volumes.waiting().packet(self.now, *volume, event);
                    self.told = true;
                }
                _ => self.on_link(event),
            }
        }
        while let Some((client, request)) = self.control.next_request() {
            self.on_control(client, request);
        }
    }

    fn on_link(&mut self, event: LinkEvent) {
        match event {
            LinkEvent::Up { peer, resolve_conflicts } => {
                let mut challenge = [0; digests::CHALLENGE_LEN];
                if let Err(e) = digests::os_random(&mut challenge) {
                    log("error", &format!("no random numbers for the authentication of peer {peer}: {e}"));
                    self.links.close(&mut self.ring, peer, self.now);
                    return self.tell(|core, now| core.on_link_down(now, peer, LinkDown::Closed));
                }
                self.tell(|core, now| core.on_link_up(now, peer, LinkUp { resolve_conflicts, challenge }));
            }
            LinkEvent::Packet { peer, stream, volume, packet, payload } => {
                let features = matches!(packet, wire::Packet::ConnectionFeatures(_));
                self.tell(|core, now| core.on_packet(now, peer, stream, volume, packet, payload));
                if features {
                    // What follows can only be decoded after the core has said how.
                    self.core.on_turn_end(self.now);
                    self.carry_out();
                }
            }
            LinkEvent::Down { peer, why, detail } => {
                log("info", &format!("{}: the link to {} is down: {detail}", self.local.name, self.peer_name(peer)));
                self.tell(|core, now| core.on_link_down(now, peer, why));
                self.carry_out();
                self.causes.explain(peer, &detail);
            }
            LinkEvent::Log { peer, text } => {
                let text = format!("{} {}: {text}", self.local.name, self.peer_name(peer));
                log("warning", &text);
            }
        }
    }

    fn stop(&mut self) {
        // Whoever follows the events of one that leaves goes on with those of the next one.
        let leaves = self.is_leaving();
        self.stop_front_ends();
        if !leaves {
            self.control.publish(control::Event::Gone);
        }
        self.control.pump(&mut self.ring);
        self.control.stop(&mut self.ring);
        // Hands the last sends over; their buffers live on whatever becomes of them.
        let _ = self.ring.turn(Some(Instant(0)), &mut self.done);
        log("info", "stopped");
    }
}

fn kernel_failed(error: io::Error) -> Error {
    Error::Io { what: "waiting for the kernel".into(), error }
}

/// The kernel's front end, if it is wanted and this host offers it; the NBD sockets are there in any case. Fails if it
/// was to be expected.
fn start_fuse(
    ring: &mut Ring<Token>,
    done: &mut Vec<Done<Token>>,
    pool: &'static Pool,
    local: &LocalResource,
    links: DeviceLinks,
) -> Result<Option<FuseServer>, String> {
    let wanted = local.urbd.front_end;
    if !matches!(wanted, FrontEnd::Auto | FrontEnd::Fuse) {
        return Ok(None);
    }
    let mut start = |slots| FuseServer::start(ring, done, pool, local, links.clone(), slots);
    let started = start(local.urbd.fuse_io_uring).or_else(|e| {
        // The kernel offers it and then refuses: slots beyond some limit of its, perhaps.
        log("info", &format!("FUSE over io_uring is not to be had: {e}"));
        start(false)
    });
    match started {
        Ok(fuse) => {
            let way = if fuse.has_slots() { "over io_uring" } else { "with messages" };
            log("info", &format!("block devices by loop and FUSE {way}"));
            Ok(Some(fuse))
        }
        Err(e) => {
            let severity = if wanted == FrontEnd::Fuse { "error" } else { "info" };
            log(severity, &format!("no block devices on this host (FUSE with loop: {e}); use the NBD sockets"));
            // Who is not root cannot have any, and does not expect them.
            if sys::user_and_group().0 == 0 { Err(format!("FUSE with loop: {e}")) } else { Ok(None) }
        }
    }
}

fn random_seed() -> io::Result<u64> {
    let mut bytes = [0; 8];
    digests::os_random(&mut bytes)?;
    Ok(u64::from_ne_bytes(bytes))
}
