//! The few system calls that the standard library does not have.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::BorrowedFd;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::mount::MountPropagationFlags;
use rustix::process::{Pid, Signal, kill_process, set_parent_process_death_signal};

/// Nanoseconds since the first call, never 0.
#[must_use]
pub(crate) fn now() -> u64 {
    static START: OnceLock<Instant> = OnceLock::new();
    START.get_or_init(Instant::now).elapsed().as_nanos() as u64 + 1
}

/// CPU seconds that a process with all its threads, ended ones included, has used; `None` if there is no such process.
#[must_use]
pub(crate) fn cpu_seconds(pid: u32) -> Option<f64> {
    let (mut clock, mut t): (libc::clockid_t, _) = (0, libc::timespec { tv_sec: 0, tv_nsec: 0 });
    // SAFETY: `clock` and `t` are places for the results. rustix does not have the clock of another process.
    let known = unsafe {
        libc::clock_getcpuclockid(pid as libc::pid_t, &raw mut clock) == 0
            && libc::clock_gettime(clock, &raw mut t) == 0
    };
    known.then(|| t.tv_sec as f64 + t.tv_nsec as f64 / 1e9)
}

/// Waits until the descriptor can be read (or written, if that is wanted), at most that long; false: time is up.
pub(crate) fn wait(fd: BorrowedFd<'_>, write: bool, at_most: Duration) -> io::Result<bool> {
    let events = PollFlags::IN | if write { PollFlags::OUT } else { PollFlags::empty() };
    let at_most = Timespec::try_from(at_most.min(Duration::from_secs(1 << 20))).map_err(io::Error::other)?;
    match rustix::event::poll(&mut [PollFd::from_borrowed_fd(fd, events)], Some(&at_most)) {
        Err(Errno::INTR) => Ok(true),
        ready => Ok(ready? > 0),
    }
}

/// Runs the calling thread, and those that it starts, before all ordinary ones whenever they have something to do; an
/// error if that is not allowed.
pub(crate) fn run_first() -> io::Result<()> {
    let first = libc::sched_param { sched_priority: 1 };
    // SAFETY: the parameters are only read. rustix does not have this call.
    let r = unsafe { libc::sched_setscheduler(0, libc::SCHED_FIFO, &raw const first) };
    if r == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Bytes that may be written to the file system at `path`.
#[must_use]
pub(crate) fn free_bytes(path: &Path) -> Option<u64> {
    let stat = rustix::fs::statvfs(path).ok()?;
    Some(stat.f_bavail * stat.f_frsize)
}

/// Asks a process that we started to end.
pub(crate) fn terminate(pid: u32) {
    signal(pid, Signal::TERM);
}

/// As somebody at a terminal would.
pub(crate) fn interrupt(pid: u32) {
    signal(pid, Signal::INT);
}

/// The process is our child and not waited for, so the number is still its own.
fn signal(pid: u32, signal: Signal) {
    if let Some(pid) = Pid::from_raw(pid.cast_signed()) {
        let _ = kill_process(pid, signal);
    }
}

/// Gives this process mounts of its own: nobody else's mount namespace, made while one of ours is mounted, keeps the
/// device below it in use after we unmounted it. Without the right to do so everything stays as it was. To be called
/// before there are threads.
pub fn keep_mounts_apart() {
    if frontends::sys::own_mounts().is_ok() {
        let flags = MountPropagationFlags::REC | MountPropagationFlags::PRIVATE;
        let _ = rustix::mount::mount_change("/", flags);
    }
}

static INTERRUPTED: AtomicBool = AtomicBool::new(false);

/// From now on a signal that asks us to end is only noted, so that what was started is ended and what was made removed.
pub fn note_signals() {
    extern "C" fn note(_: libc::c_int) {
        INTERRUPTED.store(true, Ordering::Relaxed);
    }
    for number in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
        // SAFETY: the handler only stores to an atomic, which a handler may do.
        unsafe { libc::signal(number, note as *const () as libc::sighandler_t) };
    }
}

/// Did such a signal come?
#[must_use]
pub(crate) fn is_interrupted() -> bool {
    INTERRUPTED.load(Ordering::Relaxed)
}

/// The program is killed when the thread that starts it ends, even if that is killed itself.
pub(crate) fn die_with_us(command: &mut Command) {
    let ask = || Ok(set_parent_process_death_signal(Some(Signal::KILL))?);
    // SAFETY: the closure allocates nothing and takes no lock, as is required between fork and exec.
    unsafe { command.pre_exec(ask) };
}

/// How much of the machine others use. What we and our ended children used is ours; children that still run are counted
/// as others only until they end, so end them before asking.
pub(crate) struct Foreign {
    start: Instant,
    busy: f64,
    own: f64,
}

impl Foreign {
    pub(crate) fn start() -> Foreign {
        Foreign { start: Instant::now(), busy: busy_seconds(), own: own_seconds() }
    }

    /// CPUs, on average since the start.
    pub(crate) fn cpus(&self) -> f64 {
        let others = (busy_seconds() - self.busy) - (own_seconds() - self.own);
        (others / self.start.elapsed().as_secs_f64().max(1e-3)).max(0.0)
    }
}

/// CPU seconds that all processes have used.
fn busy_seconds() -> f64 {
    let text = std::fs::read_to_string("/proc/stat").unwrap_or_default();
    let words = text.lines().next().unwrap_or_default().split_whitespace().skip(1);
    let ticks: Vec<f64> = words.filter_map(|w| w.parse().ok()).collect();
    // user, nice, system; idle and iowait are no use; irq, softirq, steal.
    let used = [0, 1, 2, 5, 6, 7].iter().filter_map(|i| ticks.get(*i)).sum::<f64>();
    used / TICKS_PER_SECOND
}

/// CPU seconds that we and our ended children have used.
fn own_seconds() -> f64 {
    let text = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let words = text.rsplit(')').next().unwrap_or_default().split_whitespace();
    let fields: Vec<f64> = words.map(|w| w.parse().unwrap_or_default()).collect();
    // utime, stime, cutime, cstime: fields 14 to 17, counted from 1; what is before the name's `)` is two fields.
    fields.get(11..15).map_or(0.0, |f| f.iter().sum::<f64>() / TICKS_PER_SECOND)
}

/// As the kernel tells it to programs: the same on all Linux machines.
const TICKS_PER_SECOND: f64 = 100.0;
