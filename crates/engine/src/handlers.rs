//! Handler scripts: started without waiting, their end awaited through the ring.
//!
//! `docs/spec/config-and-cli.md` 6.

use crate::ring::{Fd, Op, Ring};
use crate::sys;
use crate::token::Token;
use std::collections::BTreeMap;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, Stdio};
use std::rc::Rc;

/// A raw wait status: exit code × 256.
pub(crate) type WaitStatus = i32;

/// The handler processes that run.
#[derive(Default)]
pub(crate) struct Handlers {
    running: BTreeMap<u64, Child>,
}

/// Exit code 127 as a wait status: the shell's "not found".
const NOT_STARTED: WaitStatus = 127 << 8;

impl Handlers {
    /// Starts `/bin/sh -c command` with just the given environment added to the documented one. `Some`: it ended at
    /// once, because it could not be started.
    pub(crate) fn start(
        &mut self,
        ring: &mut Ring<Token>,
        id: u64,
        command: &str,
        environment: &[(String, String)],
    ) -> Option<WaitStatus> {
        let outside = std::env::var_os("URBD_HANDLERS").is_some_and(|how| how == "systemd-run");
        let mut shell = if outside { in_unit(environment) } else { in_process(environment) };
        let spawned = shell.arg("-c").arg(command).stdin(Stdio::null()).spawn();
        let Ok(child) = spawned else { return Some(NOT_STARTED) };
        let Ok(pidfd) = sys::pidfd(child.id()) else {
            // Without a descriptor its end cannot be awaited, only waited for.
            return Some(wait(child));
        };
        let fd: Fd = Rc::new(pidfd);
        ring.push(Op::Readable { fd }, Token::Handler(id));
        self.running.insert(id, child);
        None
    }

    /// The process of handler `id` has ended.
    pub(crate) fn on_end(&mut self, id: u64) -> Option<WaitStatus> {
        self.running.remove(&id).map(wait)
    }
}

fn wait(mut child: Child) -> WaitStatus {
    child.wait().map_or(NOT_STARTED, |status| status.into_raw())
}

/// What every handler finds in its environment.
const ALWAYS: [(&str, &str); 3] = [
    ("HOME", "/"),
    ("TERM", "linux"),
    ("PATH", "/sbin:/usr/sbin:/bin:/usr/bin:/usr/local/sbin:/usr/local/bin:/lib/drbd"),
];

/// A shell with just this environment.
fn in_process(environment: &[(String, String)]) -> Command {
    let mut command = Command::new("/bin/sh");
    command.env_clear().envs(ALWAYS).envs(environment.iter().map(|(k, v)| (k, v)));
    command
}

/// A shell in a unit of its own, outside of this service's sandbox and control group. `systemd-run` ends with the
/// handler's exit status, and passes on what it prints.
fn in_unit(environment: &[(String, String)]) -> Command {
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
    command.args(["--", "/bin/sh"]);
    command
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exit_codes_and_environment_arrive() {
        let mut ring = Ring::new(8).unwrap();
        let mut handlers = Handlers::default();
        let env = [("DRBD_RESOURCE".to_owned(), "r0".to_owned())];
        let command = r#"test "$DRBD_RESOURCE" = r0 && test "$HOME" = / && test -z "$CARGO" && exit 4"#;
        assert_eq!(handlers.start(&mut ring, 1, command, &env), None);
        assert_eq!(handlers.start(&mut ring, 2, "kill -9 $$", &env), None);
        let (mut done, mut ended) = (Vec::new(), BTreeMap::new());
        while ended.len() < 2 {
            ring.turn(None, &mut done).unwrap();
            for d in done.drain(..) {
                let Token::Handler(id) = d.token else { panic!("{:?}", d.token) };
                ended.insert(id, handlers.on_end(id).unwrap());
            }
        }
        assert_eq!(ended, BTreeMap::from([(1, 4 << 8), (2, 9)]));
    }
}
