//! The process of a resource, started by a verb: what the caller has, and where it runs, must not matter to it.

use std::env;
use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf, absolute};
use std::process::{Child, Command as Process, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use config::LocalResource;
use control::client::ClientError;

use crate::config_link;
use crate::context::Context;
use crate::problem::{Problem, exit};
use crate::verbs::lifecycle::{PAUSE, prepare_run_dir};
use crate::verbs::metadata;

/// How long a started process may take until it answers.
const START_TIMEOUT: Duration = Duration::from_secs(120);
/// Between two looks whether it answers, at first; later [`PAUSE`].
const SHORTEST_PAUSE: Duration = Duration::from_millis(2);

/// How a process begins.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum How {
    /// As `up` does.
    Begin,
    /// It goes on where another one leaves.
    TakeOver,
    /// The disks stay detached.
    WithoutDisks,
}

/// Starts `run` in the background and waits until the resource is there. Its process is not one of the caller's: where
/// systemd runs it is in a control group of its own, as the unit of the resource if that can be, else in a scope.
pub(super) fn start(context: &Context, local: &LocalResource, how: How) -> Result<u8, Problem> {
    prepare_run_dir(&context.run_dir)?;
    if !context.of_running && !context.is_running(&local.name) {
        let failed = |e| Problem::new(exit::BROKEN, format!("{}: the keeper does not answer: {e}", local.name));
        engine::let_file_count(&context.run_dir, &local.name).map_err(failed)?;
    }
    let unit = Systemd::find().and_then(|systemd| systemd.unit_for(context, &local.name));
    if let Some(unit) = unit.filter(|_| how == How::Begin) {
        // The service would wait for it.
        check_disks(local)?;
        start_unit(&local.name, &unit)?;
    } else if context.of_running {
        spawn(context, &local.name, how, "")?;
    } else {
        config_link::note(context, &local.name);
        spawn(context, &local.name, how, &local.told())?;
    }
    let mut client = context.client(&local.name)?;
    client.set_timeout(Some(START_TIMEOUT)).map_err(|e| Problem::client(&local.name, &e))?;
    match client.ask(&control::Request::Started) {
        Ok(_) => Ok(0),
        Err(ClientError::Refused(failure)) => Err(attach_failed(&local.name, &failure)),
        Err(e) => Err(Problem::client(&local.name, &e)),
    }
}

/// Starts the next process of a resource, in its own unit if that can be.
///
/// # Errors
/// As [`start`].
pub(super) fn go_on(context: &Context, local: &LocalResource) -> Result<u8, Problem> {
    match Systemd::find().and_then(|systemd| systemd.unit_for(context, &local.name)) {
        Some(unit) => start_unit(&local.name, &unit).map(|()| 0),
        None => start(context, local, How::TakeOver),
    }
}

/// Starts the process of a resource that is in no file, and waits until it is there.
///
/// # Errors
/// What keeps it from running, with its exit status.
pub(super) fn start_told(context: &Context, local: &LocalResource) -> Result<u8, Problem> {
    prepare_run_dir(&context.run_dir)?;
    spawn(context, &local.name, How::Begin, &local.told()).map(|()| 0)
}

/// What its process would say that does not wait for disks.
fn check_disks(local: &LocalResource) -> Result<(), Problem> {
    let Some(missing) = metadata::missing(local) else { return Ok(()) };
    let not_there = std::io::Error::from_raw_os_error(libc::ENOENT);
    let text = format!("cannot open {}: {}", missing.display(), control::plain(&not_there.to_string()));
    Err(Problem::new(exit::BROKEN, text).hint(format!("make the disk available, then: urbd up {}", local.name)))
}

/// The resource runs, as after a stage of drbdadm's `up` has failed; without that disk it can serve its peer's data.
fn attach_failed(resource: &str, failure: &control::Failure) -> Problem {
    let problem = Problem::refused(resource, failure);
    let next = format!("the resource runs without that disk; repair it, then: urbd attach {resource} (or: urbd down)");
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
        let opened =
            OpenOptions::new().create(true).append(true).mode(0o600).custom_flags(libc::O_NOFOLLOW).open(&path);
        let file = opened.map_err(|e| {
            let why = match e.raw_os_error() {
                Some(libc::ELOOP) => "it is a symbolic link: remove it".to_owned(),
                _ => e.to_string(),
            };
            Problem::new(exit::BROKEN, format!("cannot write {}: {why}", path.display()))
        })?;
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

/// Starts the process outside of any service, and waits until it is there. It reads no file: it is what it is told, or
/// what the last process was told where that is empty.
fn spawn(context: &Context, resource: &str, how: How, told: &str) -> Result<(), Problem> {
    let failed = |e| Problem::new(exit::BROKEN, format!("{resource}: cannot start `urbd run`: {e}"));
    let run_dir = absolute(&context.run_dir).map_err(failed)?;
    let log = Log::open(run_dir.join(format!("{resource}.log")))?;
    let program = env::current_exe().map_err(failed)?;
    let systemd = Systemd::find();
    let mut command = match &systemd {
        Some(systemd) => systemd.scope(resource, &program, &[]),
        None => Process::new(&program),
    };
    if systemd.is_none() {
        command.arg0("urbd");
    }
    let config_file = absolute(&context.config_file).map_err(failed)?;
    command.arg("--config").arg(config_file).arg("--node").arg(&context.node).args(["run", resource]);
    command.args(match how {
        How::Begin => None,
        How::TakeOver => Some("--take-over"),
        How::WithoutDisks => Some("--without-disks"),
    });
    command.arg("--told").arg("--log").arg(&log.path);
    // The caller's directory must not be kept in use, nor what it has open.
    command.env("URBD_RUN_DIR", run_dir).current_dir("/");
    command.stdin(Stdio::piped()).stdout(log.writer()).stderr(log.writer());
    detach_from_session(&mut command);
    let mut child = command.spawn().map_err(failed)?;
    let mut stdin = child.stdin.take().expect("it is a pipe");
    // Who has ended before it has read says why in its log.
    let _ = stdin.write_all(told.as_bytes());
    drop(stdin);
    wait_until_it_answers(context, resource, &mut child, &log)
}

/// A session of its own, so that it outlives the terminal, and none of the caller's descriptors but its log.
#[allow(unsafe_code)]
pub(super) fn detach_from_session(command: &mut Process) {
    let new_session = || {
        rustix::process::setsid()?;
        // Only kernels that are too old for us refuse.
        engine::keep_descriptors_from_children()
    };
    // SAFETY: the closure allocates nothing and takes no lock, as is required between fork and exec.
    unsafe { command.pre_exec(new_session) };
}

fn wait_until_it_answers(context: &Context, resource: &str, child: &mut Child, log: &Log) -> Result<(), Problem> {
    let deadline = Instant::now() + START_TIMEOUT;
    let mut pause = SHORTEST_PAUSE;
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
            return Ok(());
        }
        if Instant::now() > deadline {
            let seconds = START_TIMEOUT.as_secs();
            return Err(Problem::new(exit::BROKEN, format!("{resource}: no answer within {seconds} s")).hint(format!(
                "process {} still runs; look at {}",
                child.id(),
                log.path.display()
            )));
        }
        thread::sleep(pause);
        pause = PAUSE.min(2 * pause);
    }
}

/// The service manager of this machine.
pub(super) struct Systemd;

impl Systemd {
    /// Is it there, and may this user ask it for something (sd_booted(3))?
    pub(super) fn find() -> Option<Systemd> {
        let root = std::fs::metadata("/proc/self").is_ok_and(|m| std::os::unix::fs::MetadataExt::uid(&m) == 0);
        (root && Path::new("/run/systemd/system").is_dir()).then_some(Systemd)
    }

    /// The resource's unit, if it is installed and would find the same configuration.
    fn unit_for(&self, context: &Context, resource: &str) -> Option<String> {
        let folders = ["/etc/systemd/system", "/run/systemd/system", "/usr/lib/systemd/system", "/lib/systemd/system"];
        let installed = || folders.iter().any(|folder| Path::new(folder).join("urbd@.service").exists());
        unit(resource).filter(|_| context.is_default() && installed())
    }

    /// What starts `program` in a scope of its own: a control group that nobody else's end takes along. `more`: options
    /// of systemd-run.
    pub(super) fn scope(&self, resource: &str, program: &Path, more: &[&str]) -> Process {
        let mut command = Process::new("systemd-run");
        command.args(["--scope", "--quiet", "--collect", "--slice=system.slice"]);
        command.arg(format!("--description=urbd resource {resource}"));
        // File systems on its devices are unmounted before it ends.
        command.args(["--property=Before=remote-fs-pre.target", "--property=After=network.target"]);
        command.args(more).arg("--").arg(program);
        command
    }
}

/// Starts the unit of the resource, which is ready when the disks are attached.
///
/// # Errors
/// What its process has said of its failure, with its exit status.
fn start_unit(resource: &str, unit: &str) -> Result<(), Problem> {
    ask_systemd(resource, unit, &["start"])
}

/// Restarts the unit of the resource, when the manager has reloaded it: a service that is stopped while it is reloaded
/// is killed without being asked (`ExecStop`).
///
/// # Errors
/// As [`start_unit`].
pub(super) fn restart_unit(resource: &str) -> Result<(), Problem> {
    let unit = unit(resource).expect("a process of it runs");
    let deadline = Instant::now() + START_TIMEOUT;
    while is_reloading(&unit) && Instant::now() < deadline {
        thread::sleep(PAUSE);
    }
    ask_systemd(resource, &unit, &["restart"])
}

fn is_reloading(unit: &str) -> bool {
    let shown = Process::new("systemctl").args(["show", "--property=ActiveState", unit]).stdin(Stdio::null()).output();
    shown.is_ok_and(|shown| shown.stdout.starts_with(b"ActiveState=reloading"))
}

/// Has the resource restarted by a process outside of its unit: this one is what reloads it, and ends before that.
///
/// # Errors
/// Exit 20: the manager does not start that process.
pub(super) fn restart_from_outside(resource: &str) -> Result<(), Problem> {
    let failed = |e| Problem::new(exit::BROKEN, format!("{resource}: cannot start `urbd restart`: {e}"));
    let mut command = Process::new("systemd-run");
    command.args(["--quiet", "--collect", "--no-block", "--description=urbd restarts a reloaded resource", "--"]);
    command.arg(env::current_exe().map_err(failed)?).args(["restart", resource]).stdin(Stdio::null());
    let asked = command.output().map_err(failed)?;
    if asked.status.success() {
        return Ok(());
    }
    Err(Problem::new(exit::BROKEN, format!("{resource}: {}", String::from_utf8_lossy(&asked.stderr).trim_end())))
}

fn ask_systemd(resource: &str, unit: &str, verb: &[&str]) -> Result<(), Problem> {
    let failed = |e| Problem::new(exit::BROKEN, format!("{resource}: cannot start `systemctl`: {e}"));
    // A unit that has failed too often in a short time is only started by somebody who says so.
    let _ = Process::new("systemctl").args(["reset-failed", unit]).stderr(Stdio::null()).status();
    let asked = Process::new("systemctl").args(verb).arg(unit).stdin(Stdio::null()).output();
    let started = asked.map_err(failed)?;
    if started.status.success() {
        return Ok(());
    }
    let show = ["show", "--property=StatusText", "--property=ExecMainStatus", unit];
    let shown = Process::new("systemctl").args(show).output().map_err(failed)?;
    let shown = String::from_utf8_lossy(&shown.stdout).into_owned();
    let field = |name: &str| shown.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix('='));
    let status = field("ExecMainStatus").and_then(|s| s.parse().ok()).filter(|s| *s != 0).unwrap_or(exit::BROKEN);
    let said = field("StatusText").and_then(|text| text.strip_prefix(FAILED));
    match said.map(|text| text.split_once(HINT).unwrap_or((text, ""))) {
        Some((text, "")) => Err(Problem::new(status, text)),
        Some((text, hint)) => Err(Problem::new(status, text).hint(hint)),
        None => Err(Problem::new(status, String::from_utf8_lossy(&started.stderr).trim_end().to_owned())
            .hint(format!("journalctl -u {unit} says more"))),
    }
}

/// What keeps the unit of a resource from running it.
pub(super) enum Unit {
    /// It has ended with an error.
    Failed {
        /// What its process has said of that.
        said: String,
        /// What to do, if it said so.
        hint: Option<String>,
    },
    /// It is not ready yet.
    Starting,
}

/// The state of the unit that would run the resource; `None` if there is none, or nobody wants it to run.
pub(super) fn unit_state(context: &Context, resource: &str) -> Option<Unit> {
    let unit = Systemd::find()?.unit_for(context, resource)?;
    let show = ["show", "--property=StatusText", "--property=ActiveState", &unit];
    let shown = Process::new("systemctl").args(show).stdin(Stdio::null()).output().ok()?;
    let shown = String::from_utf8_lossy(&shown.stdout).into_owned();
    let field = |name: &str| shown.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix('='));
    match field("ActiveState")? {
        "failed" => {
            let said = field("StatusText").and_then(|text| text.strip_prefix(FAILED)).unwrap_or_default();
            let (said, hint) = said.split_once(HINT).unwrap_or((said, ""));
            Some(Unit::Failed { said: said.to_owned(), hint: Some(hint.to_owned()).filter(|hint| !hint.is_empty()) })
        }
        "activating" => Some(Unit::Starting),
        _ => None,
    }
}

/// The unit of a resource; `None` if its name cannot be that of a unit.
pub(super) fn unit(resource: &str) -> Option<String> {
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b':' | b'_' | b'.' | b'-');
    resource.bytes().all(fits).then(|| format!("urbd@{resource}.service"))
}

const FAILED: &str = "failed: ";
const HINT: &str = "; what to do: ";

/// Why this process of a service ends, for who has started the unit (sd_notify(3)). Others are not told.
pub(super) fn tell_manager(problem: &Problem) {
    let one_line = |text: &str| text.replace('\n', " ");
    let hint = problem.hint.as_deref().map(|hint| format!("{HINT}{}", one_line(hint))).unwrap_or_default();
    // The journal has it in any case.
    let _ =
        engine::tell_service_manager(&format!("STATUS={FAILED}{}{hint}", one_line(&control::plain(&problem.message))));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_units() {
        assert_eq!(unit("my-db").as_deref(), Some("urbd@my-db.service"));
        assert_eq!(unit("a b"), None);
    }
}
