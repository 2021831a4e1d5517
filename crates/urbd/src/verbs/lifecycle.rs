//! Starting, stopping and adjusting resources (`docs/spec/config-and-cli.md` 5).

use std::env;
use std::fs;
use std::io::Read;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use config::{LocalResource, Standing};
use control::client::ClientError;
use control::{Command, ConnectionStatus, DiskState, ReplicationState, ResourceStatus, Role};
use rustix::process::{Pid, Signal};
use units::VolumeNr;

use crate::cli::Call;
use crate::config_link;
use crate::context::{Context, LONG_TIMEOUT};
use crate::objects::{Name, Takes, Target};
use crate::offline;
use crate::problem::{Problem, exit};
use crate::verbs::background::How;
use crate::verbs::status::Stops;
use crate::verbs::told::{self, Wanted};
use crate::verbs::{at_shutdown, background, metadata, stand_in, status};

/// How long a process may take to end after it said yes to `down`.
const END_TIMEOUT: Duration = Duration::from_secs(60);
/// A process that the kernel keeps for so long waits for a disk that hangs.
const KEPT: Duration = Duration::from_secs(4);
/// How long the disks may be busy after the process that used them was killed.
const RELEASE_TIMEOUT: Duration = Duration::from_secs(30);
pub(super) const PAUSE: Duration = Duration::from_millis(20);
/// Between two looks for a disk that is to come.
const DISK_PAUSE: Duration = Duration::from_millis(200);

/// `run RES`: in the foreground, until `down`.
pub(crate) fn run(call: &Call) -> Result<u8, Problem> {
    if call.flag("told") {
        return run_told(call);
    }
    let name = only_name(call)?.resource;
    let failed = |e: std::io::Error| Problem::new(exit::BROKEN, format!("{name}: the log: {e}"));
    engine::log::begin(&name, call.value("log").map(Path::new)).map_err(failed)?;
    let begin = Begin { wanted: to_run(call, &name)?, take_over: call.flag("take-over"), application: None };
    let wait = call.number("wait-for-disks")?.unwrap_or(0);
    let there = wait_for_disks(call.context, &begin.wanted.local, Duration::from_secs(wait));
    there.and_then(|()| start(call.context, begin)).inspect_err(background::tell_manager)
}

/// What `run RES` is to run: what the last process was told, if that has died, or if no file has the resource; else
/// what the file says.
fn to_run(call: &Call, name: &str) -> Result<Wanted, Problem> {
    let context = call.context;
    let by_file = || Ok(Wanted::up(only_resource(call)?.local()?.clone()));
    let (runs, is_in_no_file) = (context.is_running(name), context.is_in_no_file(name));
    if runs && !is_in_no_file {
        return by_file();
    }
    let Some(told) = engine::what_was_told(&context.run_dir, name) else { return by_file() };
    match told::kept(name, &told) {
        Ok(kept) if is_in_no_file || !kept.standing.behind_file => Ok(kept),
        Err(problem) if is_in_no_file => Err(problem),
        _ => by_file(),
    }
}

/// `run RES --told`: what it is to be comes on its standard input, or is what the last process was told where that is
/// empty; no file is read.
fn run_told(call: &Call) -> Result<u8, Problem> {
    let name = only_name(call)?.resource;
    let mut text = String::new();
    std::io::stdin()
        .read_to_string(&mut text)
        .map_err(|e| Problem::new(exit::BROKEN, format!("what was told cannot be read: {e}")))?;
    let mut wanted = match engine::what_was_told(&call.context.run_dir, &name).filter(|_| text.is_empty()) {
        Some(kept) => told::kept(&name, &kept)?,
        None => Wanted::up(LocalResource::from_told(&text).map_err(|e| Problem::usage(e.text))?),
    };
    if wanted.local.name != name {
        return Err(Problem::usage(format!("run --told takes the resource that it is told of: {}", wanted.local.name)));
    }
    if call.flag("without-disks") {
        wanted.standing = wanted.standing.without_disks(&wanted.local);
    }
    let failed = |e: std::io::Error| Problem::new(exit::BROKEN, format!("{name}: the log: {e}"));
    engine::log::begin(&name, call.value("log").map(Path::new)).map_err(failed)?;
    start(call.context, Begin { wanted, take_over: call.flag("take-over"), application: None })
}

/// `keep RES`: is the process that holds a resource's devices when nobody serves it.
pub(crate) fn keep(call: &Call) -> Result<u8, Problem> {
    let resource = match call.objects().as_slice() {
        [name] if name != "all" => name.clone(),
        _ => return Err(Problem::usage("keep takes exactly one resource")),
    };
    let failed = |e| Problem::new(exit::BROKEN, format!("{resource}: the keeper: {e}"));
    engine::keep(&call.context.run_dir, &resource).map(|()| 0).map_err(failed)
}

/// At boot a disk may come later than this process: one of a network, or of a volume group that is not complete yet.
/// What is not there in time is said by who opens it. Where applications wait, nothing else does.
fn wait_for_disks(context: &Context, local: &LocalResource, at_most: Duration) -> Result<(), Problem> {
    let deadline = Instant::now().checked_add(at_most);
    let mut said = None;
    while let Some(missing) = metadata::missing(local) {
        let waited_for = || engine::is_waited_for(&context.run_dir, &local.name) || context.is_running(&local.name);
        if deadline.is_some_and(|at| Instant::now() >= at) || waited_for() {
            return Ok(());
        }
        if said.as_ref() != Some(&missing) {
            let text = format!("{}: waiting for {}, which is not there", local.name, missing.display());
            eprintln!("urbd: {text}");
            // The journal has it in any case.
            let _ = engine::tell_service_manager(&format!("STATUS={text}"));
            said = Some(missing);
        }
        thread::sleep(DISK_PAUSE);
    }
    Ok(())
}

/// The resource that `run` is called with.
///
/// # Errors
/// Exit 1: it is unknown, or not exactly one; exit 10: the configuration is not valid.
pub(crate) fn only_resource(call: &Call) -> Result<Target, Problem> {
    only_name(call)?;
    Target::find(call.context, &call.objects()[0], Takes::Resource)
}

fn only_name(call: &Call) -> Result<Name, Problem> {
    match call.objects().as_slice() {
        [name] if name != "all" => Name::parse(name, Takes::Resource),
        _ => Err(Problem::usage("run takes exactly one resource").hint("start several with: urbd up all")),
    }
}

/// As `run`, with an application inside the process.
pub(crate) fn run_inside(
    context: &Context,
    resource: &str,
    application: Box<dyn engine::Application>,
) -> Result<u8, Problem> {
    let wanted = Wanted::up(context.resource(resource)?);
    start(context, Begin { wanted, take_over: false, application: Some(application) })
}

/// How a process begins.
struct Begin {
    wanted: Wanted,
    /// The process that runs is asked to leave.
    take_over: bool,
    application: Option<Box<dyn engine::Application>>,
}

fn start(context: &Context, begin: Begin) -> Result<u8, Problem> {
    let Begin { mut wanted, take_over, application } = begin;
    let without_file = context.without_file();
    let context = if wanted.is_kept { &without_file } else { context };
    let local = &wanted.local;
    // Handlers and the keeper get none of ours. An old kernel cannot, and is not worth failing for.
    let _ = engine::keep_descriptors_from_children();
    let name = local.name.clone();
    let failed = |e: engine::Error| Problem::usage(format!("{name}: {e}"));
    let runs = context.is_running(&local.name);
    let takes_over = || {
        stand_in::serves(context, &name)
            || is_of_service_manager(std::process::id(), &name) && is_of_another(context, &name)
    };
    let leaving = match (runs, take_over || runs && takes_over()) {
        (true, false) => return Err(runs_already(&local.name)),
        (true, true) => {
            check_servable(context, local)?;
            engine::check_version(&context.run_dir, &local.name).map_err(failed)?;
            // As late as possible: from here on applications wait.
            Some(ask_to_leave(context, &local.name)?)
        }
        (false, _) => None,
    };
    prepare_run_dir(&context.run_dir)?;
    let claim = engine::Claim::take(&context.run_dir, &local.name, leaving).map_err(failed)?;
    // Who has left may have been told more until then.
    if let Some(told) = claim.told().filter(|_| wanted.is_kept) {
        wanted = told::kept(&name, &told)?;
    }
    if !wanted.is_kept && !context.of_running {
        config_link::note(context, &name);
    }
    let Wanted { local, standing, .. } = &wanted;
    if !claim.is_waited_for() {
        check_servable(context, local)?;
    }
    let at_most = if claim.inherits_devices() { RELEASE_TIMEOUT } else { Duration::ZERO };
    make_clean_when_free(local, |volume| !standing.detached.contains(&volume), at_most)?;
    engine::run_with(options(context, wanted, application.is_none()), claim, application).map(|()| 0).map_err(failed)
}

/// A process that was killed is gone before its last writes have reached the disk, which nobody else may use so long.
fn make_clean_when_free(
    local: &LocalResource,
    volumes: impl Fn(VolumeNr) -> bool,
    at_most: Duration,
) -> Result<(), Problem> {
    let deadline = Instant::now() + at_most;
    loop {
        match make_clean(local, &volumes) {
            Err(problem) if problem.is_in_use() && Instant::now() < deadline => thread::sleep(PAUSE),
            result => return result,
        }
    }
}

/// The process that runs the resource shall leave its devices to us. It is gone for sure after the time given.
fn ask_to_leave(context: &Context, resource: &str) -> Result<engine::Leaving, Problem> {
    // Without it clients may be told, for a moment, that the resource does not run.
    let successor = control::Successor::announce(&context.run_dir, resource).ok();
    let mut client = context.client(resource)?;
    client.set_timeout(Some(LONG_TIMEOUT)).map_err(|e| Problem::client(resource, &e))?;
    let pid = client.pid;
    client.command(Command::HandOver).map_err(|e| Problem::client(resource, &e))?;
    Ok(engine::Leaving { pid, at_most: END_TIMEOUT, successor })
}

fn options(context: &Context, wanted: Wanted, kept: bool) -> engine::Options {
    let Wanted { local, standing, .. } = wanted;
    let arguments = ["keep", &local.name].map(Into::into).into();
    let program = env::current_exe().ok().filter(|_| kept);
    engine::Options {
        resource: local,
        helper: program.clone(),
        standing: Standing { behind_file: false, ..standing },
        run_dir: context.run_dir.clone(),
        keeper: program.map(|program| engine::KeeperCommand { program, arguments }),
    }
}

/// May a verb make it run so?
pub(crate) fn check_startable(context: &Context, local: &LocalResource) -> Result<(), Problem> {
    check_servable(context, local)?;
    if context.of_running { Ok(()) } else { local.check_wanted().map_err(invalid) }
}

/// Can a process run it, whoever starts it? Not asked where applications wait for it: the process serves what it can.
pub(crate) fn check_servable(context: &Context, local: &LocalResource) -> Result<(), Problem> {
    local.check_startable().map_err(invalid)?;
    // What has run may be half made.
    if context.of_running {
        return Ok(());
    }
    // As sh-nop says of the same file.
    let unusable = |why: String| Problem::new(exit::FAILURE, format!("{}: {why}", local.name));
    engine::resource_config(local).map_err(unusable)?;
    context.config()?.check_addresses(local, &context.this_host()).map_err(invalid)
}

/// Says what of the configuration has no effect.
pub(crate) fn warn(local: &LocalResource) {
    engine::warnings(local).iter().for_each(|warning| eprintln!("urbd: warning: {}: {warning}", local.name));
}

fn invalid(e: config::Errors) -> Problem {
    Problem::new(exit::FAILURE, e.to_string())
}

fn runs_already(resource: &str) -> Problem {
    Problem::usage(format!("{resource}: runs already"))
        .hint(format!("to take over a changed configuration: urbd adjust {resource}"))
}

pub(super) fn prepare_run_dir(run_dir: &Path) -> Result<(), Problem> {
    engine::prepare_run_dir(run_dir).map_err(|e| {
        Problem::new(exit::BROKEN, format!("cannot use the run directory {}: {e}", run_dir.display()))
            .hint("set URBD_RUN_DIR to a directory that only this user may write")
    })
}

/// After a crash the activity log must be applied before a disk of one of these volumes is attached. A disk without
/// metadata ends the start. A Secondary's with several bitmaps is left to who attaches it, and knows its peers.
pub(crate) fn make_clean(local: &LocalResource, volumes: impl Fn(VolumeNr) -> bool) -> Result<(), Problem> {
    for place in local.volumes.iter().filter(|v| volumes(v.nr)).filter_map(|v| metadata::place(local, v)) {
        offline::make_clean(&place).map_err(|problem| match problem.exit {
            // What `up` gives for a disk without metadata.
            offline::NO_METADATA => Problem { exit: exit::USAGE, ..problem },
            _ => problem,
        })?;
    }
    Ok(())
}

/// `up`: starts `run` in the background and waits until it answers.
pub(crate) fn up(call: &Call, target: &Target) -> Result<u8, Problem> {
    let (without_file, local) = told::wanted(call.context, target)?;
    let context = without_file.as_ref().unwrap_or(call.context);
    let runs = context.is_running(&local.name);
    if runs || !engine::is_waited_for(&context.run_dir, &local.name) {
        check_startable(context, &local)?;
    }
    if runs {
        return Err(runs_already(&local.name));
    }
    warn(&local);
    background::start(context, &local, How::Begin)
}

/// `adjust --skip-disk` of what does not run: as `up`, and the disks stay detached until they are attached.
pub(crate) fn up_without_disks(call: &Call, target: &Target) -> Result<u8, Problem> {
    let local = target.local()?;
    if engine::is_waited_for(&call.context.run_dir, &local.name) {
        let text = format!("{target}: applications wait for its devices, and need its disk");
        return Err(Problem::new(exit::FAILURE, text).hint(format!("go on: urbd up {}", local.name)));
    }
    check_startable(call.context, local)?;
    warn(local);
    background::start(call.context, local, How::WithoutDisks)
}

/// `restart`: another process takes over; what applications ask of the devices waits meanwhile. One that does not run
/// is started. A service's process is followed by another one of the service, whose manager would take the end of its
/// process for the end of the service.
pub(crate) fn restart(call: &Call, target: &Target) -> Result<u8, Problem> {
    let (without_file, local) = told::wanted(call.context, target)?;
    let context = without_file.as_ref().unwrap_or(call.context);
    let name = &local.name;
    let runs = context.is_running(name);
    if runs || !engine::is_waited_for(&context.run_dir, name) {
        check_startable(context, &local)?;
    }
    if runs {
        metadata::check_room(&local)?;
        check_not_needed(&status::one(context, name)?)?;
    }
    if !runs || !is_of_service_manager(context.client(name)?.pid, name) {
        return background::start(context, &local, How::TakeOver);
    }
    if !context.is_default() {
        return Err(Problem::usage(format!("{name}: systemd runs it, with the configuration of this machine"))
            .hint(format!("without -c, and without variables for another one: urbd restart {name}")));
    }
    // The manager does not ask: its process leaves, whether this version can go on with the devices or not.
    engine::check_version(&context.run_dir, name).map_err(|e| Problem::usage(format!("{name}: {e}")))?;
    match is_of_service_manager(std::process::id(), name) {
        true => background::restart_from_outside(name),
        false => background::restart_unit(name),
    }
    .map(|()| 0)
}

/// A Primary whose users have no other good data than this node's would lose it for a moment, and their I/O would fail:
/// refused, as `down` is.
fn check_not_needed(status: &ResourceStatus) -> Result<(), Problem> {
    let good = |volume: u16| {
        let peers = status.connections.iter().flat_map(|c| &c.peer_devices);
        peers.filter(|p| p.volume == volume && p.peer_disk == DiskState::UpToDate).count()
    };
    let own = |volume: u16| status.devices.iter().any(|d| d.volume == volume && d.disk == DiskState::UpToDate);
    let primaries = status.connections.iter().filter(|c| c.peer_role == Role::Primary);
    // A volume that the peer does not have is not replicated.
    let needs = |c: &&ConnectionStatus| {
        let mut shared = c.peer_devices.iter().filter(|p| p.replication != ReplicationState::Off);
        shared.any(|p| own(p.volume) && good(p.volume) == 0)
    };
    let Some(peer) = primaries.into_iter().find(needs) else { return Ok(()) };
    let name = &status.name;
    let text = format!("{name}: {} is Primary without a good disk of its own: its users need this node", peer.name);
    Err(Problem::new(exit::IN_USE, text).hint(format!(
        "wait for the end of the resync, or repair its disk; or take their data away: urbd down --force {name}; urbd up \
         {name}"
    )))
}

/// Is the process that serves it one of another's service unit, as the resource was called when it began?
fn is_of_another(context: &Context, resource: &str) -> bool {
    unit_of_server(context, resource).is_some_and(|of| background::unit(resource) != Some(of))
}

/// Does a unit end whose resource is called otherwise by now, and was in no file? There is nothing to stop.
pub(crate) fn is_not_of_its_unit(call: &Call) -> bool {
    let is_gone = |name: &String| {
        !call.context.is_running(name) && call.context.is_in_no_file(name) && !told::is_left(call.context, name)
    };
    call.flag("at-shutdown") && call.objects().iter().all(is_gone)
}

/// The resources' service units of which the process is: one, or none.
fn units_of(pid: u32) -> Vec<String> {
    let groups = fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap_or_default();
    let unit = |part: &&str| part.starts_with("urbd@") && part.ends_with(".service");
    groups.lines().flat_map(|line| line.split('/')).filter(unit).map(str::to_owned).collect()
}

/// The service unit of the process that serves the resource.
fn unit_of_server(context: &Context, resource: &str) -> Option<String> {
    units_of(context.client(resource).ok()?.pid).into_iter().next()
}

/// A resource that has another name since its service unit has started it goes on in the unit of its name, or outside
/// of any: the manager would begin it anew with the old one.
///
/// # Errors
/// What keeps the next process from going on. The one that runs does then.
pub(crate) fn leave_other_unit(context: &Context, resource: &str) -> Result<(), Problem> {
    let Some(of) = unit_of_server(context, resource) else { return Ok(()) };
    if background::unit(resource).as_ref() == Some(&of) {
        return Ok(());
    }
    let local = told::in_force(context, resource)?;
    background::go_on(context, &local)?;
    let to = background::unit(resource).unwrap_or_default();
    eprintln!("urbd: {resource}: it is not of {of} any more: systemctl disable {of}; systemctl enable {to}");
    Ok(())
}

/// Is the process one of the resource's service unit?
fn is_of_service_manager(pid: u32, resource: &str) -> bool {
    units_of(pid).contains(&format!("urbd@{resource}.service"))
}

/// `down`: not running is no error.
pub(crate) fn down(call: &Call, target: &Target) -> Result<u8, Problem> {
    let resource = &target.name.resource;
    if call.flag("at-shutdown") {
        at_shutdown::unmount(call.context, resource);
        if target.local().is_ok_and(|local| stand_in::take_over(call.context, local)) {
            return Ok(0);
        }
        // The service manager stops a unit also when its process has ended by itself, and that takes it a moment: who
        // serves the resource now may be another one's, started meanwhile.
        let others = call.context.client(resource).is_ok_and(|client| !is_of_service_manager(client.pid, resource));
        if others && !stand_in::serves(call.context, resource) {
            eprintln!("urbd: {resource}: a process that is not the unit's serves it: it goes on");
            return Ok(0);
        }
    }
    let told = told::wanted(call.context, target).ok().map(|(_, local)| local);
    let stops = Stops::before(call.context, resource, Command::Down { force: call.flag("force") });
    let ended = stop(call.context, resource, call.flag("force")).map_err(|problem| stops.explain(problem))?;
    stops.warn(resource);
    let kept = engine::end_keeper(&call.context.run_dir, resource, call.flag("force"));
    match kept {
        Ok(false) => {}
        Ok(true) => return Err(left_in_use(resource)),
        Err(e) => return Err(Problem::new(exit::BROKEN, format!("{resource}: the keeper does not answer: {e}"))),
    }
    config_link::forget(&call.context.run_dir, resource);
    let volumes: Vec<_> =
        target.local.iter().chain(&told).flat_map(|local| local.volumes.iter().map(|v| v.nr)).collect();
    // A process that is being killed keeps its lock for some moments after its socket has gone.
    let deadline = Instant::now() + END_TIMEOUT;
    let pid = fs::read_to_string(call.context.run_dir.join(format!("{resource}.pid"))).unwrap_or_default();
    let mut kept = Kept::new(pid.trim().parse().ok());
    while !engine::clear_leftovers(&call.context.run_dir, resource, &volumes) {
        kept.check(resource)?;
        if call.context.client(resource).is_ok() {
            return if call.flag("at-shutdown") { Ok(0) } else { Err(taken_over(resource)) };
        }
        if Instant::now() > deadline {
            return Err(Problem::new(exit::BROKEN, format!("{resource}: a process holds it, but does not answer"))
                .hint(format!("its number is in {}/{resource}.pid", call.context.run_dir.display())));
        }
        thread::sleep(PAUSE);
    }
    if call.context.of_running {
        // No configuration needs to know of it any more: nobody would ask why it does not run.
        let _ = fs::remove_file(call.context.run_dir.join(format!("{resource}.log")));
    }
    Ok(ended)
}

/// The process that was asked to end has been followed by another one.
fn taken_over(resource: &str) -> Problem {
    let text = format!("{resource}: another process has taken it over meanwhile (a restart)");
    Problem::new(exit::IN_USE, text).hint(format!("to stop it: urbd down {resource}"))
}

/// No process serves the devices that applications use.
fn left_in_use(resource: &str) -> Problem {
    let text =
        format!("{resource}: its process has ended, and its devices are kept for the applications that use them");
    Problem::new(exit::IN_USE, text).hint(format!(
        "go on: urbd up {resource}; to stop, unmount after that, and then: urbd down {resource}; to let the \
         applications' I/O fail: urbd down --force {resource}"
    ))
}

/// Asks the process to end and waits until it is gone.
///
/// # Errors
/// Exit 11: it is in use; exit 20: it does not answer or does not end.
pub(crate) fn stop(context: &Context, resource: &str, force: bool) -> Result<u8, Problem> {
    if !context.is_running(resource) {
        return Ok(0);
    }
    let mut client = match context.client(resource) {
        Err(problem) if force && problem.exit == exit::BROKEN => return kill(context, resource, problem),
        client => client?,
    };
    let pid = client.pid;
    client.set_timeout(Some(LONG_TIMEOUT)).map_err(|e| Problem::client(resource, &e))?;
    match client.command(Command::Down { force }) {
        // It may be gone before its answer has arrived.
        Ok(_) | Err(ClientError::Closed) => {}
        Err(e) => return Err(Problem::client(resource, &e)),
    }
    drop(client);
    wait_for_end(context, resource, pid)
}

/// The last resort for a process that does not answer. Its data is safe: what was not acknowledged may be lost, and the
/// activity log tells the next start what to resynchronise.
fn kill(context: &Context, resource: &str, problem: Problem) -> Result<u8, Problem> {
    let Some(pid) = engine::holder(&context.run_dir, resource) else { return Err(problem) };
    eprintln!("urbd: {resource}: process {pid} does not answer: killing it");
    let _ = Pid::from_raw(pid.cast_signed()).map(|pid| rustix::process::kill_process(pid, Signal::KILL));
    wait_for_end(context, resource, pid)
}

fn wait_for_end(context: &Context, resource: &str, pid: u32) -> Result<u8, Problem> {
    let deadline = Instant::now() + END_TIMEOUT;
    let mut kept = Kept::new(Some(pid));
    while context.is_running(resource) || is_alive(pid) {
        kept.check(resource)?;
        if context.client(resource).is_ok_and(|client| client.pid != pid) {
            return Err(taken_over(resource));
        }
        if Instant::now() > deadline {
            return Err(Problem::new(exit::BROKEN, format!("{resource}: process {pid} does not end"))
                .hint(format!("its disks and connections are closed; end it with: kill -9 {pid}")));
        }
        thread::sleep(PAUSE);
    }
    Ok(0)
}

/// A process that ends, and that the kernel may keep while a disk owes it an answer: not even SIGKILL ends it then.
struct Kept {
    pid: Option<u32>,
    since: Option<Instant>,
}

impl Kept {
    fn new(pid: Option<u32>) -> Kept {
        Kept { pid, since: None }
    }

    /// # Errors
    /// Exit 20: the kernel has kept it for [`KEPT`].
    fn check(&mut self, resource: &str) -> Result<(), Problem> {
        let Some(pid) = self.pid.filter(|pid| waits_for_a_disk(*pid)) else {
            self.since = None;
            return Ok(());
        };
        if self.since.get_or_insert_with(Instant::now).elapsed() < KEPT {
            return Ok(());
        }
        let text =
            format!("{resource}: process {pid} has ended its work, but the kernel keeps it until its disk answers");
        Err(Problem::new(exit::BROKEN, text).hint(format!(
            "when the disk answers, or after a restart of this machine: urbd down {resource}; urbd up {resource}"
        )))
    }
}

/// Whether a thread of that process is in a sleep that no signal ends.
fn waits_for_a_disk(pid: u32) -> bool {
    let Ok(threads) = fs::read_dir(format!("/proc/{pid}/task")) else { return false };
    let stats = threads.flatten().filter_map(|thread| fs::read_to_string(thread.path().join("stat")).ok());
    // The state stands behind the program's name in parentheses.
    stats.into_iter().any(|stat| stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('D')))
}

/// Whether a process exists and has not ended: one that only waits to be collected by its parent has.
fn is_alive(pid: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    // The state stands behind the program's name in parentheses. It is that of the first thread: as long as there is
    // another one, the process has its files open.
    let threads = || fs::read_dir(format!("/proc/{pid}/task")).is_ok_and(|threads| threads.count() > 1);
    stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with(['Z', 'X']) || threads())
}
