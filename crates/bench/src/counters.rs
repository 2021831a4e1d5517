//! Counters of the kernel about running processes.

use crate::error::{Error, Result};
use crate::process::{Process, find_program, output};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// Counts the system calls of a process, with `perf stat`.
pub struct Syscalls {
    perf: Process,
    out: PathBuf,
}

impl Syscalls {
    /// From now on.
    ///
    /// # Errors
    /// If there is no perf, or we may not count.
    pub fn start(dir: &Path, name: &str, pid: u32) -> Result<Syscalls> {
        let program = find_program("perf");
        let program = program.ok_or_else(|| Error::new("perf is not installed (Debian's package linux-perf)"))?;
        let out = dir.join(format!("{name}.syscalls"));
        let _ = fs::remove_file(&out);
        let mut command = Command::new(program);
        command.args(["stat", "-x", ";", "-e", EVENTS, "-p"]);
        command.arg(pid.to_string()).arg("-o").arg(&out);
        let mut perf = Process::start(&format!("{name}-perf"), dir, command)?;
        // The file is made when the counter is.
        perf.wait_until("counts", Duration::from_secs(5), || out.exists())?;
        std::thread::sleep(Duration::from_millis(50));
        Ok(Syscalls { perf, out })
    }

    /// How many there were, and how many of these wrote to files: `pwrite64` and `pwritev2`.
    ///
    /// # Errors
    /// If perf did not count.
    pub fn finish(self) -> Result<(u64, u64)> {
        let Syscalls { perf, out } = self;
        perf.interrupt();
        let text = fs::read_to_string(&out).map_err(Error::io(out.display()))?;
        parse_perf(&text).ok_or_else(|| Error::new(format!("perf did not count: {}", text.trim())))
    }
}

const EVENTS: &str = "raw_syscalls:sys_enter,syscalls:sys_enter_pwritev2,syscalls:sys_enter_pwrite64";

/// The first fields of the lines about the events.
fn parse_perf(text: &str) -> Option<(u64, u64)> {
    let count = |event: &str| {
        let line = text.lines().find(|line| line.contains(event))?;
        line.split(';').next()?.trim().parse().ok()
    };
    let to_files = count("sys_enter_pwritev2")? + count("sys_enter_pwrite64")?;
    Some((count("raw_syscalls:sys_enter")?, to_files))
}

/// Bytes that a process has sent over TCP so far, by `ss`.
///
/// # Errors
/// If there is no `ss`, or the process has no connection.
pub fn sent_bytes(pid: u32) -> Result<u64> {
    let program = find_program("ss").ok_or_else(|| Error::new("ss is not installed (Debian's package iproute2)"))?;
    let text = output(Command::new(program).args(["-tinpOH", "state", "established"]))?;
    parse_ss(&text, pid).ok_or_else(|| Error::new("the node has no TCP connection that ss knows"))
}

/// One line for each connection, with the process and `bytes_sent:N`.
fn parse_ss(text: &str, pid: u32) -> Option<u64> {
    let mark = format!("pid={pid},");
    let own = text.lines().filter(|line| line.contains(&mark));
    let mut sent = own.filter_map(|line| {
        line.split_whitespace().find_map(|word| word.strip_prefix("bytes_sent:")?.parse::<u64>().ok())
    });
    let first = sent.next()?;
    Some(first + sent.sum::<u64>())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn perf_is_understood() {
        let text = "# started on Sat Nov 21 20:00:00 2026\n\n109;;raw_syscalls:sys_enter;5;100.00;;\n\
                    70;;syscalls:sys_enter_pwritev2;5;100.00;;\n30;;syscalls:sys_enter_pwrite64;5;100.00;;\n";
        assert_eq!(parse_perf(text), Some((109, 100)));
        assert_eq!(parse_perf("<not supported>;;raw_syscalls:sys_enter;0;100.00;;"), None);
        assert_eq!(parse_perf(""), None);
    }

    #[test]
    fn ss_is_understood() {
        let text = "0 0 127.0.0.1:1 127.0.0.1:2 users:((\"urbd\",pid=17,fd=9)) cubic bytes_sent:100 bytes_acked:90\n\
                    0 0 127.0.0.1:2 127.0.0.1:1 users:((\"urbd\",pid=170,fd=9)) cubic bytes_sent:7\n\
                    0 0 127.0.0.1:3 127.0.0.1:4 users:((\"urbd\",pid=17,fd=10)) cubic bytes_sent:11\n";
        assert_eq!(parse_ss(text, 17), Some(111));
        assert_eq!(parse_ss(text, 1), None);
    }
}
