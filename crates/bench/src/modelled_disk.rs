//! A disk whose speed is known: a file in memory behind FUSE, served at the pace of a head that moves.
//!
//! What a write costs on a disk that seeks, or how much is lost when the disk is the limit, cannot be measured on a
//! disk that others use at the same time, nor in memory. This one transfers at a fixed rate, pays for every jump, and
//! has no write cache: a write is done when it is on the platter. Its time is counted, not waited for request by
//! request, so a queue that is never empty is served at the modelled rate however late this process is woken.

use crate::error::{Error, Result};
use crate::pair::{Programs, filled_file};
use crate::process::Process;
use crate::sys;
use frontends::fuse::{self, Event, MESSAGE_MAX, Session};
use frontends::loopdev::{self, Kept};
use frontends::{Errno, Export, Kind, Request};
use std::collections::VecDeque;
use std::fs::{File, OpenOptions};
use std::io::{IoSlice, Read, Write};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How fast a disk is.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Model {
    /// Bytes per second at the platter.
    pub rate: u64,
    /// For a jump, rotation included.
    pub seek: Duration,
}

/// A jump forward over no more than this only waits until the platter has turned so far.
const NEAR: u64 = 512 << 10;
/// What has waited for so long is next, wherever the head is.
const OLD: Duration = Duration::from_millis(30);
const PATIENCE: Duration = Duration::from_secs(15);

/// A modelled disk as a block device. Gone when this is dropped.
pub struct ModelledDisk {
    device: Kept,
    counts: PathBuf,
    mount: PathBuf,
    _server: Process,
}

impl ModelledDisk {
    /// A disk of `size` bytes; Needs FUSE and loop devices, so mostly root.
    ///
    /// # Errors
    /// If this host has none; with the reason.
    pub fn start(programs: &Programs, dir: &Path, name: &str, size: u64, model: Model) -> Result<ModelledDisk> {
        let (mount, backing) = (dir.join(name), dir.join(format!("{name}.platter")));
        std::fs::create_dir_all(&mount).map_err(Error::io(mount.display()))?;
        // It has all its memory: to find some is much more work than to write to it, and would take the processors from
        // those who are measured.
        filled_file(&backing, size)?;
        let mut command = Command::new(&programs.lab);
        command.args(["bench", "disk"]).arg(&mount).arg(&backing);
        command.arg(model.rate.to_string()).arg(model.seek.as_micros().to_string());
        let mut server = Process::start_with(&format!("{name}-disk"), dir, command, Stdio::piped())?;
        let file = mount.join("0");
        server.wait_until("serves", PATIENCE, || file.metadata().is_ok_and(|m| m.len() == size))?;
        let device = loopdev::keep(file, loopdev::Options::default()).and_then(|attaching| attaching.wait());
        let device = device.map_err(Error::io("a loop device for a modelled disk"))?;
        let disk = ModelledDisk { device, counts: counts_file(&backing), mount, _server: server };
        // A loop device says that it has a volatile cache, whatever it is made of.
        disk.device
            .device()
            .set_write_through(true)
            .map_err(Error::io("a modelled disk that says that it has no cache"))?;
        Ok(disk)
    }

    /// What it has done so far.
    ///
    /// # Errors
    /// If the process that serves it does not say.
    pub fn counts(&self) -> Result<Counts> {
        let bytes = std::fs::read(&self.counts).map_err(Error::io(self.counts.display()))?;
        Counts::from_bytes(&bytes).ok_or_else(|| Error::new(format!("{}: no counts", self.counts.display())))
    }

    /// Its block device.
    #[must_use]
    pub fn path(&self) -> PathBuf {
        self.device.device().path()
    }
}

impl Drop for ModelledDisk {
    fn drop(&mut self) {
        // Who has this loop device next is to be heard when he flushes.
        let _ = self.device.device().set_write_through(false);
        let _ = self.device.detach();
        // The server ends with its mount.
        let _ = fuse::unmount(&self.mount);
    }
}

/// What a modelled disk has done.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Counts {
    /// Reads and writes.
    pub requests: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Times that the head jumped.
    pub jumps: u64,
    /// Modelled time that all of it took.
    pub busy: Duration,
}

impl Counts {
    fn to_bytes(self) -> [u8; 32] {
        let words = [self.requests, self.bytes, self.jumps, self.busy.as_nanos() as u64];
        let mut bytes = [0; 32];
        bytes.chunks_exact_mut(8).zip(words).for_each(|(to, word)| to.copy_from_slice(&word.to_le_bytes()));
        bytes
    }

    fn from_bytes(bytes: &[u8]) -> Option<Counts> {
        let word = |n: usize| Some(u64::from_le_bytes(bytes.get(n * 8..n * 8 + 8)?.try_into().ok()?));
        let busy = Duration::from_nanos(word(3)?);
        Some(Counts { requests: word(0)?, bytes: word(1)?, jumps: word(2)?, busy })
    }

    /// What came to them since `earlier`.
    #[must_use]
    pub fn since(self, earlier: Counts) -> Counts {
        Counts {
            requests: self.requests - earlier.requests,
            bytes: self.bytes - earlier.bytes,
            jumps: self.jumps - earlier.jumps,
            busy: self.busy - earlier.busy,
        }
    }
}

/// Where the serving process keeps them.
fn counts_file(backing: &Path) -> PathBuf {
    backing.with_extension("counts")
}

/// A request with a write's payload, and when it came.
struct Job {
    request: Request,
    payload: Vec<u8>,
    came: Instant,
}

/// The serving process: mounts `backing` as the file `0` in `mount`, until it is unmounted or `alive` ends.
///
/// # Errors
/// If it may not mount, or the file cannot be opened.
pub fn serve(mount: &Path, backing: &Path, model: Model, alive: impl Read + Send + 'static) -> Result<()> {
    // A disk does not wait for a processor. Whoever may mount a file system mostly may do this, too; if not, replies
    // are late.
    let _ = sys::run_first();
    let platter = OpenOptions::new().read(true).write(true).open(backing).map_err(Error::io(backing.display()))?;
    let counts = counts_file(backing);
    let counts = File::create(&counts).map_err(Error::io(counts.display()))?;
    let metadata = platter.metadata().map_err(Error::io(backing.display()))?;
    let device = File::from(fuse::mount(mount).map_err(Error::io(format!("mounting on {}", mount.display())))?);
    let place = mount.to_owned();
    std::thread::spawn(move || {
        let mut alive = alive;
        let _ = std::io::copy(&mut alive, &mut std::io::sink());
        // Whoever started us is gone.
        let _ = fuse::unmount(&place);
    });
    let mut export = Export::new(0, "disk/0", metadata.len());
    export.can_trim = false;
    export.can_zero = false;
    let session = Session::new(vec![export], (metadata.uid(), metadata.gid()));
    let queue = Queue::default();
    std::thread::scope(|scope| {
        scope.spawn(|| Head::new(model).work(&queue, &platter, &device, &counts));
        take_messages(&device, session, &queue);
        queue.close();
    });
    Ok(())
}

/// Reads the kernel's messages until it unmounts.
fn take_messages(device: &File, mut session: Session, queue: &Queue) {
    let mut message = vec![0; MESSAGE_MAX];
    let mut out = Vec::new();
    loop {
        let n = match (&*device).read(&mut message) {
            Ok(n) => n,
            // Taken back by an interrupt while it was read.
            Err(e) if matches!(e.raw_os_error(), Some(libc::ENOENT | libc::EINTR)) => continue,
            Err(_) => return,
        };
        out.clear();
        match session.parse(&message[..n], &mut out) {
            Event::None | Event::Knock(_) | Event::Interrupted(_) => {}
            Event::Reply | Event::Released(_) | Event::Destroyed => drop((&*device).write(&out)),
            Event::Request { request, payload, .. } => {
                queue.push(Job { request, payload: message[payload].to_vec(), came: Instant::now() });
            }
        }
    }
}

/// What waits for the head.
#[derive(Default)]
struct Queue {
    jobs: Mutex<(VecDeque<Job>, bool)>,
    changed: Condvar,
}

impl Queue {
    fn push(&self, job: Job) {
        self.jobs.lock().unwrap_or_else(PoisonError::into_inner).0.push_back(job);
        self.changed.notify_one();
    }

    fn close(&self) {
        self.jobs.lock().unwrap_or_else(PoisonError::into_inner).1 = true;
        self.changed.notify_one();
    }

    /// What the head at byte `at` does next; waits until there is something. `None`: the end.
    fn take(&self, at: u64) -> Option<Job> {
        let mut jobs = self.jobs.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            let (waiting, closed) = &mut *jobs;
            if let Some(next) = choose(waiting, at) {
                return waiting.remove(next);
            }
            if *closed {
                return None;
            }
            jobs = self.changed.wait(jobs).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// The next one behind the head if there is one nearby, but never at the cost of one that has waited for long.
fn choose(waiting: &VecDeque<Job>, at: u64) -> Option<usize> {
    let oldest = waiting.front()?;
    if oldest.came.elapsed() > OLD || oldest.request.kind == Kind::Flush {
        return Some(0);
    }
    let until_flush = waiting.iter().take_while(|job| job.request.kind != Kind::Flush);
    let ahead = until_flush.enumerate().filter(|(_, job)| (at..=at + NEAR).contains(&job.request.offset));
    Some(ahead.min_by_key(|(_, job)| job.request.offset).map_or(0, |(i, _)| i))
}

/// The head: where it is, and until when it is busy.
struct Head {
    model: Model,
    at: u64,
    busy_until: Instant,
    counts: Counts,
}

impl Head {
    fn new(model: Model) -> Head {
        Head { model, at: 0, busy_until: Instant::now(), counts: Counts::default() }
    }

    fn work(mut self, queue: &Queue, platter: &File, device: &File, counts: &File) {
        let _ = counts.write_all_at(&self.counts.to_bytes(), 0);
        while let Some(mut job) = queue.take(self.at) {
            let busy = self.cost(&job.request);
            self.busy_until = self.busy_until.max(job.came) + busy;
            let result = perform(&mut job, platter);
            // Only figures are lacking if this fails, which is reported where they are read.
            let _ = counts.write_all_at(&self.counts.to_bytes(), 0);
            std::thread::sleep(self.busy_until.saturating_duration_since(Instant::now()));
            let header = Session::reply(&job.request, result);
            let data: &[u8] = if job.request.kind == Kind::Read && result.is_ok() { &job.payload } else { &[] };
            // Nobody waits for it any more if this fails.
            let _ = (&*device).write_vectored(&[IoSlice::new(&header), IoSlice::new(data)]);
        }
    }

    /// How long the request takes; the head is behind it then.
    fn cost(&mut self, request: &Request) -> Duration {
        if request.kind == Kind::Flush {
            return Duration::ZERO;
        }
        let transfer = |bytes: u64| Duration::from_nanos(bytes * 1_000_000_000 / self.model.rate);
        let way = match request.offset.checked_sub(self.at) {
            Some(gap) if gap <= NEAR => transfer(gap),
            _ => {
                self.counts.jumps += 1;
                self.model.seek
            }
        };
        let cost = way + transfer(u64::from(request.len));
        self.counts.requests += 1;
        self.counts.bytes += u64::from(request.len);
        self.counts.busy += cost;
        self.at = request.offset + u64::from(request.len);
        cost
    }
}

fn perform(job: &mut Job, platter: &File) -> Result<(), Errno> {
    let done = match job.request.kind {
        Kind::Read => {
            job.payload.resize(job.request.len as usize, 0);
            platter.read_exact_at(&mut job.payload, job.request.offset)
        }
        Kind::Write => platter.write_all_at(&job.payload, job.request.offset),
        Kind::Flush => Ok(()),
        Kind::Discard | Kind::WriteZeroes { .. } => return Err(Errno::ENOTSUP),
    };
    done.map_err(|e| Errno::from(&e))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MODEL: Model = Model { rate: 100 << 20, seek: Duration::from_millis(8) };

    fn job(kind: Kind, offset: u64, len: u32) -> Job {
        let request = Request { tag: offset, kind, offset, len, fua: false };
        Job { request, payload: Vec::new(), came: Instant::now() }
    }

    #[test]
    fn streams_pay_for_the_transfer_and_jumps_for_the_seek() {
        let mut head = Head::new(MODEL);
        let mut cost = |offset, len| head.cost(&job(Kind::Write, offset, len).request).as_micros();
        assert_eq!(cost(0, 1 << 20), 10_000);
        assert_eq!(cost(1 << 20, 1 << 20), 10_000);
        assert_eq!(cost(1 << 30, 1 << 20), 18_000);
        assert_eq!(cost(0, 0), 8_000);
        assert_eq!(cost(256 << 10, 256 << 10), 5_000, "the platter turns on over the gap");
    }

    #[test]
    fn what_was_done_is_counted() {
        let mut head = Head::new(MODEL);
        for (offset, len) in [(0, 1 << 20), (1 << 20, 1 << 20), (1 << 30, 4096)] {
            head.cost(&job(Kind::Write, offset, len).request);
        }
        let counts = Counts::from_bytes(&head.counts.to_bytes()).unwrap();
        assert_eq!((counts.requests, counts.bytes, counts.jumps), (3, (2 << 20) + 4096, 1));
        assert_eq!(counts.busy.as_millis(), 28);
        assert_eq!(counts.since(counts), Counts::default());
        assert_eq!(Counts::from_bytes(&[0; 31]), None);
    }

    #[test]
    fn the_head_goes_on_before_it_jumps() {
        let mut queue: VecDeque<Job> =
            [900 << 20, 3 << 20, 2 << 20].map(|offset| job(Kind::Write, offset, 1 << 20)).into();
        assert_eq!(choose(&queue, 2 << 20), Some(2));
        assert_eq!(choose(&queue, 400 << 20), Some(0));
        queue.push_front(job(Kind::Flush, 0, 0));
        assert_eq!(choose(&queue, 2 << 20), Some(0), "what came after a flush waits");
        queue.pop_front();
        queue[0].came = Instant::now().checked_sub(OLD * 2).unwrap();
        assert_eq!(choose(&queue, 2 << 20), Some(0), "it has waited for too long");
        assert_eq!(choose(&VecDeque::new(), 0), None);
    }
}
