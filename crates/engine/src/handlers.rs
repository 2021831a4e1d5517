//! The program that is called at events, as the kernel's DRBD calls its usermode helper: `drbdadm HANDLER RES`. It is
//! started without waiting, and its end awaited through the ring.
//!
//! `docs/spec/config-and-cli.md` 6.1, `docs/spec/connection-and-state.md` 8.6.

use crate::log::log;
use crate::ring::{Fd, Op, Ring};
use crate::sys;
use crate::token::Token;
use config::LocalResource;
use std::collections::BTreeMap;
use std::io;
use std::ops::RangeInclusive;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::rc::Rc;
use units::VolumeNr;
use urbd_core::decide::Handler;
use urbd_core::{ConnectionSnapshot, DeviceSnapshot, HandlerCall, Snapshot};
use wire::DiskState;

/// A raw wait status: exit code × 256.
pub(crate) type WaitStatus = i32;

/// An environment.
pub(crate) type Words = Vec<(String, String)>;

/// What `usermode-helper` is where none is called.
const DISABLED: &str = "disabled";

/// What counts as its answer then: who would have been fenced counts as outdated.
pub(crate) fn answer_of_none(event: Handler) -> i32 {
    if event == Handler::FencePeer { 4 } else { 0 }
}

/// The program that is called, and with what in its environment beside what the kernel says: the configured one, else
/// our own, which is to find this process, and the names of its nodes.
pub(crate) fn chosen_helper(local: &LocalResource, own: Option<&Path>, run_dir: &Path) -> Option<(PathBuf, Words)> {
    match local.urbd.usermode_helper.as_deref() {
        Some(DISABLED) => None,
        Some(program) => Some((program.into(), Vec::new())),
        None => {
            let run_dir = ("URBD_RUN_DIR".into(), run_dir.display().to_string());
            Some((own?.to_owned(), vec![run_dir, ("URBD_NODE".into(), local.host.clone())]))
        }
    }
}

/// The processes of helpers that run.
#[derive(Default)]
pub(crate) struct Handlers {
    running: BTreeMap<u64, Running>,
}

struct Running {
    child: Child,
    /// Who starts it for us can fail to do so: how it is asked again, and how often.
    in_unit: Option<(Command, u32)>,
}

/// How systemd ends a unit whose program it could not start (systemd.exec, "Process exit codes"). No answer of a
/// handler is one of these.
const OF_SYSTEMD: RangeInclusive<i32> = 200..=245;

/// So often systemd is asked to start a helper that it has failed to start: it cannot put a process into a control
/// group that is just being removed.
const ASKS_AGAIN: u32 = 3;

/// What it counts for that there is no such program, or no process for it.
pub(crate) const NOT_STARTED: WaitStatus = 0;

impl Handlers {
    /// Calls the helper with these words and just the given environment added to the documented one. `Some`: it has
    /// ended.
    ///
    /// # Errors
    /// There is no such program, or no process for it.
    pub(crate) fn start(
        &mut self,
        ring: &mut Ring<Token>,
        id: u64,
        program: &Path,
        words: [&str; 2],
        environment: &[(String, String)],
    ) -> io::Result<Option<WaitStatus>> {
        let outside = std::env::var_os("URBD_HANDLERS").is_some_and(|how| how == "systemd-run");
        let mut command = if outside { in_unit(program, environment) } else { in_process(program, environment) };
        command.args(words).stdin(Stdio::null());
        self.run(ring, id, command, outside.then_some(ASKS_AGAIN))
    }

    fn run(
        &mut self,
        ring: &mut Ring<Token>,
        id: u64,
        mut command: Command,
        again: Option<u32>,
    ) -> io::Result<Option<WaitStatus>> {
        let child = command.spawn()?;
        let Ok(pidfd) = sys::pidfd(child.id()) else {
            // Without a descriptor its end cannot be awaited, only waited for.
            return Ok(Some(wait(child)));
        };
        let fd: Fd = Rc::new(pidfd);
        ring.push(Op::Readable { fd }, Token::Handler(id));
        self.running.insert(id, Running { child, in_unit: again.map(|times| (command, times)) });
        Ok(None)
    }

    /// The process of handler `id` has ended. `None`: it goes on in another one, as systemd did not start it.
    pub(crate) fn on_end(&mut self, ring: &mut Ring<Token>, id: u64) -> Option<WaitStatus> {
        let Running { child, in_unit } = self.running.remove(&id)?;
        let status = wait(child);
        let Some((command, again)) = in_unit.filter(|_| OF_SYSTEMD.contains(&(status >> 8))) else {
            return Some(status);
        };
        log("warning", &format!("systemd did not start a handler ({})", status >> 8));
        if again == 0 {
            return Some(NOT_STARTED);
        }
        self.run(ring, id, command, Some(again - 1)).unwrap_or(Some(NOT_STARTED))
    }
}

fn wait(mut child: Child) -> WaitStatus {
    child.wait().map_or(NOT_STARTED, |status| status.into_raw())
}

/// What the kernel gives each of its helpers.
const ALWAYS: [(&str, &str); 3] = [("HOME", "/"), ("TERM", "linux"), ("PATH", "/sbin:/usr/sbin:/bin:/usr/bin")];

/// The program with just this environment.
fn in_process(program: &Path, environment: &[(String, String)]) -> Command {
    let mut command = Command::new(program);
    command.arg0("drbdadm").env_clear().envs(ALWAYS).envs(environment.iter().map(|(k, v)| (k, v)));
    command
}

/// It in a unit of its own, outside of this service's sandbox and control group. `systemd-run` ends with its exit
/// status, and passes on what it prints.
fn in_unit(program: &Path, environment: &[(String, String)]) -> Command {
    let mut command = Command::new("systemd-run");
    // What it has left running goes on, as when it is a process of ours.
    command.args([
        "--quiet",
        "--collect",
        "--wait",
        "--pipe",
        "--property=KillMode=process",
        "--description=urbd handler",
    ]);
    let of_handler = environment.iter().map(|(k, v)| (k.as_str(), v.as_str()));
    command.args(ALWAYS.into_iter().chain(of_handler).map(|(k, v)| format!("--setenv={k}={v}")));
    command.arg("--").arg(program);
    command
}

/// What the kernel says; the helper adds what the configuration says.
pub(crate) fn kernel_says(local: &LocalResource, snapshot: &Snapshot, call: &HandlerCall) -> Words {
    let mut env = words_on_volumes(local, call.volume);
    if matches!(call.event, Handler::FencePeer | Handler::UnfencePeer) {
        env.push(("UP_TO_DATE_NODES".into(), format!("0x{:08X}", up_to_date_nodes(snapshot, call.event))));
    }
    let only = if let [only] = local.peers.as_slice() { Some(only) } else { None };
    let Some(peer) = local.peers.iter().find(|p| Some(p.peer_node_id) == call.peer).or(only) else { return env };
    env.push(("DRBD_PEER_NODE_ID".into(), peer.peer_node_id.to_string()));
    let connection = snapshot.connections.iter().find(|c| c.peer == peer.peer_node_id);
    env.extend(connection.map(|c| ("DRBD_CSTATE".into(), format!("{:?}", c.state))));
    for (who, address) in peer.paths.first().into_iter().flat_map(|p| [("PEER", &p.remote), ("MY", &p.local)]) {
        let family = if address.ip.is_ipv4() { "ipv4" } else { "ipv6" };
        env.push((format!("DRBD_{who}_AF"), family.into()));
        env.push((format!("DRBD_{who}_ADDRESS"), address.ip.to_string()));
    }
    env
}

fn words_on_volumes(local: &LocalResource, volume: Option<VolumeNr>) -> Words {
    let (mut env, mut minors, mut disks) = (Vec::new(), Vec::new(), Vec::new());
    for v in local.volumes.iter().filter(|v| volume.is_none_or(|nr| v.nr == nr)) {
        let disk = v.backing.as_ref().map_or("", |b| b.path.as_str());
        env.push((format!("DRBD_MINOR_{}", v.nr), v.minor.to_string()));
        env.push((format!("DRBD_BACKING_DEV_{}", v.nr), disk.to_owned()));
        minors.push(v.minor.to_string());
        disks.push(disk);
    }
    env.push(("DRBD_MINOR".into(), minors.join(" ")));
    env.push(("DRBD_BACKING_DEV".into(), disks.join(" ")));
    env.extend(volume.map(|volume| ("DRBD_VOLUME".into(), volume.to_string())));
    env
}

/// The nodes whose data is good as far as this one knows: who has every volume UpToDate, and this node, if it has them
/// in use, or is about to.
fn up_to_date_nodes(snapshot: &Snapshot, event: Handler) -> u32 {
    let claims = event == Handler::FencePeer || snapshot.role == wire::Role::Primary;
    let of_volume = |device: &DeviceSnapshot| {
        if !claims && device.disk != DiskState::UpToDate {
            return 0;
        }
        let is_good = |c: &&ConnectionSnapshot| {
            c.peer_devices.iter().any(|p| p.volume == device.volume && p.peer_disk == DiskState::UpToDate)
        };
        let good = snapshot.connections.iter().filter(is_good).map(|c| c.peer);
        good.chain([snapshot.node]).fold(0, |mask, node| mask | 1 << node.index())
    };
    snapshot.devices.iter().map(of_volume).reduce(|all, one| all & one).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exit_codes_and_environment_arrive() {
        let mut ring = Ring::new(8).unwrap();
        let mut handlers = Handlers::default();
        let env = [("DRBD_MINOR".to_owned(), "7".to_owned())];
        let shell = Path::new("/bin/sh");
        let command = r#"test "$DRBD_MINOR" = 7 && test "$HOME" = / && test -z "$CARGO" && exit 4"#;
        assert_eq!(handlers.start(&mut ring, 1, shell, ["-c", command], &env).unwrap(), None);
        assert_eq!(handlers.start(&mut ring, 2, shell, ["-c", "kill -9 $$"], &env).unwrap(), None);
        assert!(handlers.start(&mut ring, 3, Path::new("/no/such/program"), ["fence-peer", "r0"], &env).is_err());
        assert_eq!(all_ended(&mut ring, &mut handlers), BTreeMap::from([(1, 4 << 8), (2, 9)]));
    }

    fn all_ended(ring: &mut Ring<Token>, handlers: &mut Handlers) -> BTreeMap<u64, WaitStatus> {
        let (mut done, mut ended) = (Vec::new(), BTreeMap::new());
        while !handlers.running.is_empty() {
            ring.turn(None, &mut done).unwrap();
            for d in done.drain(..) {
                let Token::Handler(id) = d.token else { panic!("{:?}", d.token) };
                ended.extend(handlers.on_end(ring, id).map(|status| (id, status)));
            }
        }
        ended
    }

    #[test]
    fn what_systemd_does_not_start_is_started_again_and_is_no_answer() {
        let mut ring = Ring::new(8).unwrap();
        let mut handlers = Handlers::default();
        let folder = std::env::temp_dir().join(format!("urbd-handlers-{}", std::process::id()));
        std::fs::create_dir(&folder).unwrap();
        // Counts how often it was called, and answers with 4 at the n-th time; before, as systemd.
        let called = |name: &str, n: u32| {
            let mut command = Command::new("/bin/sh");
            let file = folder.join(name);
            let count = format!(r#"echo x >>"$0"; test $(wc -l <"$0") -ge {n} || exit 219; exit 4"#);
            command.args(["-c", &count]).arg(file);
            command
        };
        for (id, name, nth, again) in [(1, "at once", 1, Some(3)), (2, "third", 3, Some(3)), (3, "never", 9, Some(3))] {
            assert_eq!(handlers.run(&mut ring, id, called(name, nth), again).unwrap(), None);
        }
        // Who is a process of ours can end as it likes.
        assert_eq!(handlers.run(&mut ring, 4, called("ours", 2), None).unwrap(), None);
        let ended = all_ended(&mut ring, &mut handlers);
        assert_eq!(ended, BTreeMap::from([(1, 4 << 8), (2, 4 << 8), (3, NOT_STARTED), (4, 219 << 8)]));
        let times = |name| std::fs::read(folder.join(name)).unwrap().len() / 2;
        assert_eq!(["at once", "third", "never", "ours"].map(times), [1, 3, 4, 1]);
        std::fs::remove_dir_all(folder).unwrap();
    }
}
