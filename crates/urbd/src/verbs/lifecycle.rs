//! Starting, stopping and adjusting resources (`docs/spec/config-and-cli.md` 5).

use std::env;
use std::fs::{self, File, OpenOptions};
use std::io::{Read, Seek, SeekFrom};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command as Process, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use config::{AdjustScope, LocalResource, Plan};
use control::Command;
use control::client::{Client, ClientError};
use units::VolumeNr;

use crate::cli::Call;
use crate::context::{Context, LONG_TIMEOUT};
use crate::objects::{Takes, Target, targets};
use crate::offline;
use crate::problem::{Problem, exit};
use crate::verbs::{adjust, metadata};

/// How long a started process may take until it answers.
const START_TIMEOUT: Duration = Duration::from_secs(120);
/// How long a process may take to end after it said yes to `down`.
const END_TIMEOUT: Duration = Duration::from_secs(60);
const PAUSE: Duration = Duration::from_millis(20);

/// `run RES`: in the foreground, until `down`.
pub(crate) fn run(call: &Call) -> Result<u8, Problem> {
    let (found, worst) = targets(call.context, &call.objects(), Takes::Resource)?;
    let [target] = found.as_slice() else {
        return match worst {
            0 => Err(Problem::usage("run takes exactly one resource").hint("start several with: urbd up all")),
            worst => Ok(worst),
        };
    };
    start(call.context, target.local()?, None)
}

/// As `run`, with an application inside the process.
pub(crate) fn run_inside(
    context: &Context,
    resource: &str,
    application: Box<dyn engine::Application>,
) -> Result<u8, Problem> {
    start(context, &context.resource(resource)?, Some(application))
}

fn start(
    context: &Context,
    local: &LocalResource,
    application: Option<Box<dyn engine::Application>>,
) -> Result<u8, Problem> {
    check_startable(context, local)?;
    if context.is_running(&local.name) {
        return Err(runs_already(&local.name));
    }
    prepare_run_dir(&context.run_dir)?;
    make_clean(local, |_| true)?;
    serve(context, local, application)
}

/// Hands the resource to the engine; comes back when it was taken down.
fn serve(
    context: &Context,
    local: &LocalResource,
    application: Option<Box<dyn engine::Application>>,
) -> Result<u8, Problem> {
    let options = engine::Options {
        resource: local.clone(),
        config_file: context.config_file.clone(),
        run_dir: context.run_dir.clone(),
        bring_up: true,
        show: context.config()?.dump(&context.this_host(), false, &[&local.name]),
    };
    engine::run_with(options, application).map(|()| 0).map_err(|e| Problem::usage(format!("{}: {e}", local.name)))
}

pub(crate) fn check_startable(context: &Context, local: &LocalResource) -> Result<(), Problem> {
    let invalid = |e: config::Errors| Problem::new(exit::FAILURE, e.to_string());
    local.check_startable().map_err(invalid)?;
    context.config()?.check_addresses(local, &context.this_host()).map_err(invalid)
}

fn runs_already(resource: &str) -> Problem {
    Problem::usage(format!("{resource}: runs already"))
        .hint(format!("to take over a changed configuration: urbd adjust {resource}"))
}

fn prepare_run_dir(run_dir: &Path) -> Result<(), Problem> {
    fs::create_dir_all(run_dir).map_err(|e| {
        Problem::new(exit::BROKEN, format!("cannot create the run directory {}: {e}", run_dir.display()))
            .hint("set URBD_RUN_DIR to a directory that this user may write")
    })
}

/// After a crash the activity log must be applied before a disk of one of these volumes is attached. A disk without
/// metadata ends the start.
pub(crate) fn make_clean(local: &LocalResource, volumes: impl Fn(VolumeNr) -> bool) -> Result<(), Problem> {
    for place in local.volumes.iter().filter(|v| volumes(v.nr)).filter_map(|v| metadata::place(local, v)) {
        offline::apply_al(&place).map_err(|problem| match problem.exit {
            // What `up` gives for a disk without metadata.
            offline::NO_METADATA => Problem { exit: exit::USAGE, ..problem },
            _ => problem,
        })?;
    }
    Ok(())
}

/// `up`: starts `run` in the background and waits until it answers.
pub(crate) fn up(call: &Call, target: &Target) -> Result<u8, Problem> {
    let local = target.local()?;
    check_startable(call.context, local)?;
    if call.context.dry_run {
        adjust::print_plan(&Plan::up(local, &AdjustScope::default()));
        return Ok(0);
    }
    if call.context.is_running(&local.name) {
        return Err(runs_already(&local.name));
    }
    prepare_run_dir(&call.context.run_dir)?;
    let log = Log::open(call.context.run_dir.join(format!("{}.log", local.name)))?;
    let mut child = spawn(call.context, &local.name, &log)?;
    let mut client = wait_until_it_answers(call.context, &local.name, &mut child, &log)?;
    client.set_timeout(Some(START_TIMEOUT)).map_err(|e| Problem::client(&local.name, &e))?;
    match client.ask(&control::Request::Started) {
        Ok(_) => Ok(0),
        Err(ClientError::Refused(failure)) => Err(attach_failed(&local.name, &failure)),
        Err(e) => Err(Problem::client(&local.name, &e)),
    }
}

/// The resource runs, as after a stage of drbdadm's `up` has failed; without that disk it can serve its peer's data.
fn attach_failed(resource: &str, failure: &control::Failure) -> Problem {
    let problem = Problem::refused(resource, failure);
    let next = format!("the resource runs without that disk; mend it, then: urbd attach {resource} (or: urbd down)");
    let hint = problem.hint.as_ref().map_or_else(|| next.clone(), |hint| format!("{hint}; {next}"));
    Problem { exit: exit::USAGE, ..problem }.hint(hint)
}

/// The log of a background process, and where this start's part begins.
struct Log {
    path: PathBuf,
    file: File,
    start: u64,
}

impl Log {
    fn open(path: PathBuf) -> Result<Log, Problem> {
        let opened = OpenOptions::new().create(true).append(true).open(&path);
        let file = opened.map_err(|e| Problem::new(exit::BROKEN, format!("cannot write {}: {e}", path.display())))?;
        let start = file.metadata().map_or(0, |m| m.len());
        Ok(Log { path, file, start })
    }

    fn writer(&self) -> Stdio {
        self.file.try_clone().map_or_else(|_| Stdio::null(), Stdio::from)
    }

    /// What was written since the start, without empty lines at its end.
    fn text(&self) -> String {
        let mut text = String::new();
        if let Ok(mut file) = File::open(&self.path) {
            let _ = file.seek(SeekFrom::Start(self.start)).and_then(|_| file.read_to_string(&mut text));
        }
        text.trim_end().to_owned()
    }
}

fn spawn(context: &Context, resource: &str, log: &Log) -> Result<Child, Problem> {
    let failed = |e| Problem::new(exit::BROKEN, format!("{resource}: cannot start `urbd run`: {e}"));
    let program = env::current_exe().map_err(failed)?;
    let mut command = Process::new(program);
    command.arg0("urbd").arg("--config").arg(&context.config_file).arg("--node").arg(&context.node);
    command.args(context.stacked.then_some("--stacked")).args(["run", resource]);
    command.env("URBD_RUN_DIR", &context.run_dir);
    command.stdin(Stdio::null()).stdout(log.writer()).stderr(log.writer());
    detach_from_session(&mut command);
    command.spawn().map_err(failed)
}

/// A session of its own: it outlives the terminal.
#[allow(unsafe_code)]
fn detach_from_session(command: &mut Process) {
    let new_session = || {
        // SAFETY: setsid takes no arguments and touches no memory; it may be called between fork and exec.
        match unsafe { libc::setsid() } {
            -1 => Err(std::io::Error::last_os_error()),
            _ => Ok(()),
        }
    };
    // SAFETY: the closure allocates nothing and takes no lock, as is required between fork and exec.
    unsafe { command.pre_exec(new_session) };
}

fn wait_until_it_answers(context: &Context, resource: &str, child: &mut Child, log: &Log) -> Result<Client, Problem> {
    let deadline = Instant::now() + START_TIMEOUT;
    loop {
        let ended = child.try_wait();
        if let Ok(Some(status)) = ended {
            let code = status.code().and_then(|c| u8::try_from(c).ok()).filter(|c| *c != 0).unwrap_or(exit::BROKEN);
            let said = log.text();
            let message = match (said.is_empty(), status.signal()) {
                (false, _) => said.strip_prefix("urbd: ").unwrap_or(&said).to_owned(),
                (true, Some(signal)) => format!("{resource}: the process was killed by signal {signal}"),
                (true, None) => format!("{resource}: the process ended with status {code} and said nothing"),
            };
            return Err(Problem::new(code, message));
        }
        if let Ok(client) = context.client(resource)
            && client.pid == child.id()
        {
            return Ok(client);
        }
        if Instant::now() > deadline {
            let seconds = START_TIMEOUT.as_secs();
            return Err(Problem::new(exit::BROKEN, format!("{resource}: no answer within {seconds} s")).hint(format!(
                "process {} still runs; look at {}",
                child.id(),
                log.path.display()
            )));
        }
        thread::sleep(PAUSE);
    }
}

/// `down`: not running is no error.
pub(crate) fn down(call: &Call, target: &Target) -> Result<u8, Problem> {
    let resource = &target.name.resource;
    let ended = stop(call.context, resource, call.flag("force"))?;
    let volumes: Vec<_> = target.local.iter().flat_map(|local| local.volumes.iter().map(|v| v.nr)).collect();
    // A process that is being killed keeps its lock for some moments after its socket has gone.
    let deadline = Instant::now() + END_TIMEOUT;
    while !engine::clear_leftovers(&call.context.run_dir, resource, &volumes) {
        if Instant::now() > deadline {
            return Err(Problem::new(exit::BROKEN, format!("{resource}: a process holds it, but does not answer"))
                .hint(format!("its number is in {}/{resource}.pid", call.context.run_dir.display())));
        }
        thread::sleep(PAUSE);
    }
    Ok(ended)
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
#[allow(unsafe_code)]
fn kill(context: &Context, resource: &str, problem: Problem) -> Result<u8, Problem> {
    let text = fs::read_to_string(context.run_dir.join(format!("{resource}.pid"))).unwrap_or_default();
    let Ok(pid) = text.trim().parse::<u32>() else { return Err(problem) };
    // The number may belong to somebody else by now.
    let command_line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let words: Vec<&[u8]> = command_line.split(|byte| *byte == 0).collect();
    if !words.windows(2).any(|pair| pair[0] == b"run" && pair[1] == resource.as_bytes()) {
        return Err(problem);
    }
    eprintln!("urbd: {resource}: process {pid} does not answer: killing it");
    // SAFETY: kill takes two numbers and touches no memory of ours.
    unsafe { libc::kill(pid.cast_signed(), libc::SIGKILL) };
    wait_for_end(context, resource, pid)
}

fn wait_for_end(context: &Context, resource: &str, pid: u32) -> Result<u8, Problem> {
    let deadline = Instant::now() + END_TIMEOUT;
    while context.is_running(resource) || is_alive(pid) {
        if Instant::now() > deadline {
            return Err(Problem::new(exit::BROKEN, format!("{resource}: process {pid} does not end"))
                .hint(format!("its disks and connections are closed; end it with: kill -9 {pid}")));
        }
        thread::sleep(PAUSE);
    }
    Ok(0)
}

/// Whether a process exists and has not ended: one that only waits to be collected by its parent has.
fn is_alive(pid: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    // The state stands behind the program's name in parentheses.
    stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with(['Z', 'X']))
}
