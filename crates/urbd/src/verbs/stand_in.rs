//! Who serves a resource while its service is restarted.
//!
//! The service manager ends the old process before it prepares the new one, which takes it longer than all that urbd
//! does then. So when a service is restarted under applications, a process outside of it takes over first, and the
//! service's next process takes over from that one. Applications wait twice, for a moment each.

use std::env;
use std::fs;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use config::LocalResource;
use control::Role;

use crate::context::Context;
use crate::problem::{Problem, exit};
use crate::verbs::background::{self, Systemd};

/// How long the stand-in may take. The service manager's own limit is longer.
const PATIENCE: Duration = Duration::from_secs(30);
const PAUSE: Duration = Duration::from_millis(5);

/// Its scope is named by the resource, and by a number that no other scope has.
const PREFIX: &str = "urbd-restart-";
const SUFFIX: &str = ".scope";

/// Where the service of `local` is being restarted, and this node is Primary: lets another process take over. True if
/// that serves the resource now; else the service stops as always.
pub(super) fn take_over(context: &Context, local: &LocalResource) -> bool {
    let name = &local.name;
    let Some(systemd) = Systemd::find().filter(|_| context.is_default()) else { return false };
    if !is_primary(context, name) || !is_being_restarted(name) {
        return false;
    }
    let began = begin(&systemd, name).and_then(|child| wait_until_it_serves(context, name, child));
    match began {
        Ok(pid) => {
            eprintln!("urbd: {name}: process {pid} stands in while the service restarts");
            true
        }
        Err(problem) => {
            eprintln!("urbd: {name}: nobody stands in while the service restarts: {problem}");
            false
        }
    }
}

/// Does a stand-in serve the resource? Its service may take over from that one.
pub(super) fn serves(context: &Context, resource: &str) -> bool {
    let pid = context.client(resource).map(|client| client.pid);
    let groups = pid.map(|pid| fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap_or_default());
    groups.is_ok_and(|groups| groups.lines().any(|line| stands_in_for(line) == Some(resource)))
}

/// The resource of the stand-in whose control group this is.
fn stands_in_for(line: &str) -> Option<&str> {
    let scope = line.rsplit('/').next()?.strip_prefix(PREFIX)?.strip_suffix(SUFFIX)?;
    let (resource, number) = scope.rsplit_once('-')?;
    number.bytes().all(|byte| byte.is_ascii_digit()).then_some(resource)
}

fn is_primary(context: &Context, resource: &str) -> bool {
    let status = context.client(resource).ok().and_then(|mut client| client.status().ok());
    status.is_some_and(|status| status.role == Role::Primary)
}

/// The manager first stops the service, by us, and then starts it again: that is one job.
fn is_being_restarted(resource: &str) -> bool {
    let jobs = Command::new("systemctl").args(["list-jobs", "--plain", "--no-legend"]).stdin(Stdio::null()).output();
    jobs.is_ok_and(|jobs| has_restart(&String::from_utf8_lossy(&jobs.stdout), resource))
}

/// A line for each job: its number, unit, type and state.
fn has_restart(jobs: &str, resource: &str) -> bool {
    let unit = background::unit(resource);
    jobs.lines().any(|line| {
        let words: Vec<&str> = line.split_whitespace().collect();
        matches!(words.as_slice(), [_, name, "restart", ..] if Some(*name) == unit.as_deref())
    })
}

/// What it says goes where the service's processes say it.
fn begin(systemd: &Systemd, resource: &str) -> Result<Child, Problem> {
    let failed = |e| Problem::new(exit::BROKEN, format!("cannot start `urbd run`: {e}"));
    let program = env::current_exe().map_err(failed)?;
    let scope = format!("--unit={PREFIX}{resource}-{}{SUFFIX}", std::process::id());
    let mut command = systemd.scope(resource, &program, &[&scope]);
    command.args(["run", resource, "--take-over"]).stdin(Stdio::null()).current_dir("/");
    // The service's readiness is not its own.
    command.env_remove("NOTIFY_SOCKET");
    background::detach_from_session(&mut command);
    command.spawn().map_err(failed)
}

/// It has taken over, and is Primary again: what applications ask is answered.
fn wait_until_it_serves(context: &Context, resource: &str, mut child: Child) -> Result<u32, Problem> {
    let deadline = Instant::now() + PATIENCE;
    let is_it = |pid: u32| context.client(resource).is_ok_and(|client| client.pid == pid);
    while !(is_it(child.id()) && is_primary(context, resource)) {
        if let Ok(Some(status)) = child.try_wait() {
            return Err(Problem::new(exit::BROKEN, format!("its process has ended: {status}")));
        }
        if Instant::now() > deadline {
            return Err(Problem::new(exit::BROKEN, format!("its process {} is not there in time", child.id())));
        }
        thread::sleep(PAUSE);
    }
    Ok(child.id())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jobs_of_the_service() {
        let jobs = "  41 urbd@a.service    restart running\n  7 urbd@b.service stop    running\n";
        assert!(has_restart(jobs, "a"));
        assert!(!has_restart(jobs, "b") && !has_restart(jobs, "c") && !has_restart("No jobs running.\n", "a"));
    }

    #[test]
    fn groups_of_stand_ins() {
        assert_eq!(stands_in_for("0::/system.slice/urbd-restart-my-db-417.scope"), Some("my-db"));
        for other in ["0::/system.slice/system-urbd.slice/urbd@r0.service", "0::/urbd-restart-r0-x.scope", "0::/", ""] {
            assert_eq!(stands_in_for(other), None, "{other}");
        }
    }
}
