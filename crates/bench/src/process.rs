//! Programs that a measurement starts, and ends whatever happens.

use crate::error::{Error, Result};
use crate::sys;
use std::ffi::OsStr;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// How long a program may take to end after it was asked.
const END: Duration = Duration::from_secs(10);
const PAUSE: Duration = Duration::from_millis(10);

/// A running program. It ends when this is dropped.
#[derive(Debug)]
pub struct Process {
    child: Child,
    name: String,
    log: PathBuf,
}

impl Process {
    /// Starts `command`; what it says goes to `DIR/NAME.log`.
    ///
    /// # Errors
    /// If it cannot be started.
    pub fn start(name: &str, dir: &Path, command: Command) -> Result<Process> {
        Process::start_with(name, dir, command, Stdio::null())
    }

    /// The same with that standard input.
    ///
    /// # Errors
    /// If it cannot be started.
    pub fn start_with(name: &str, dir: &Path, mut command: Command, input: Stdio) -> Result<Process> {
        let log = dir.join(format!("{name}.log"));
        let out = File::create(&log).map_err(Error::io(log.display()))?;
        let also = out.try_clone().map_err(Error::io(log.display()))?;
        sys::die_with_us(&mut command);
        let child = command.stdin(input).stdout(out).stderr(also).spawn();
        let child = child.map_err(Error::io(format!("starting {}", command.get_program().display())))?;
        Ok(Process { child, name: name.into(), log })
    }

    /// Its id.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Waits until `ready` says yes.
    ///
    /// # Errors
    /// If it takes too long, or the program ended; with the end of what the program said.
    pub fn wait_until(&mut self, what: &str, at_most: Duration, mut ready: impl FnMut() -> bool) -> Result<()> {
        let start = Instant::now();
        while !ready() {
            if let Ok(Some(status)) = self.child.try_wait() {
                return Err(Error::new(format!("{} ended with {status}: {}", self.name, self.last_words())));
            }
            if start.elapsed() > at_most {
                let seconds = at_most.as_secs();
                return Err(Error::new(format!("{}: {what}: not in {seconds} s: {}", self.name, self.last_words())));
            }
            std::thread::sleep(PAUSE);
        }
        Ok(())
    }

    /// The end of what it said.
    #[must_use]
    pub fn last_words(&self) -> String {
        let text = std::fs::read_to_string(&self.log).unwrap_or_default();
        let lines: Vec<&str> = text.lines().collect();
        lines[lines.len().saturating_sub(6)..].join(" | ")
    }

    /// Asks it to end as somebody at a terminal would, and waits for that.
    pub fn interrupt(mut self) {
        sys::interrupt(self.child.id());
        self.wait_for_end();
    }

    fn end(&mut self) {
        sys::terminate(self.child.id());
        self.wait_for_end();
    }

    fn wait_for_end(&mut self) {
        let start = Instant::now();
        while matches!(self.child.try_wait(), Ok(None)) {
            if start.elapsed() > END {
                let _ = self.child.kill();
                let _ = self.child.wait();
                return;
            }
            std::thread::sleep(PAUSE);
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if matches!(self.child.try_wait(), Ok(None)) {
            self.end();
        }
    }
}

/// Runs a program to its end and gives what it printed.
///
/// # Errors
/// If it cannot be started or fails; with what it said.
pub fn output(command: &mut Command) -> Result<String> {
    let name = command.get_program().display().to_string();
    let out = command.stdin(Stdio::null()).output().map_err(Error::io(format!("starting {name}")))?;
    if !out.status.success() {
        let args: Vec<_> = command.get_args().map(OsStr::to_string_lossy).collect();
        let said = String::from_utf8_lossy(&out.stderr);
        return Err(Error::new(format!("{name} {}: {}: {}", args.join(" "), out.status, said.trim())));
    }
    Ok(String::from_utf8_lossy(&out.stdout).into_owned())
}

/// The file of a program, looked for as a shell would, and where administrators' programs are.
#[must_use]
pub fn find_program(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::env::split_paths(&path).chain(["/usr/sbin".into(), "/sbin".into()]);
    folders.map(|folder| folder.join(name)).find(|file| file.is_file())
}

/// Whether the file system at `path` has so many bytes free.
#[must_use]
pub fn has_room(path: &Path, bytes: u64) -> bool {
    sys::free_bytes(path).is_some_and(|free| free >= bytes)
}
