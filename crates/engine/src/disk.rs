//! Backing devices: a block device or a file, opened for direct I/O, owned exclusively.
//!
//! A file on a filesystem that refuses O_DIRECT (or wants more than 512-byte alignment) is used through the page cache;
//! that is a disk with a volatile write cache, which [`Op::Flush`] (fdatasync) and durable writes make safe.
//!
//! No disk may keep the loop waiting: what hangs is then seen by `disk-timeout`, and the peer's pings are answered.
//! `Way` says how each kind of file is spoken to.

use crate::buffers::Span;
use crate::exclusive::{self, Locked};
use crate::log::log;
use crate::ring::{FallocateMode, Fd, Message, Op, Ring};
use crate::sys::{self, FileHome};
use std::fmt;
use std::fs::{File, OpenOptions};
use std::io::{self, Seek, SeekFrom};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::rc::Rc;

/// An open backing device. Dropping it releases the lock once its operations in flight have ended.
#[derive(Debug)]
pub struct Disk {
    fd: Fd,
    way: Way,
    /// What was found when it was opened.
    pub traits: Traits,
}

/// How operations reach a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// Through the ring: the kernel takes them without waiting, or hands them to a worker thread by itself.
    Ring,
    /// On the loop's own thread: memory (tmpfs), which the ring would hand to a worker for nothing.
    Inline,
    /// By a worker thread of the ring: a file system that another process or machine serves may wait when an operation
    /// is only handed over (FUSE does, with 12 unanswered ones).
    Worker,
}

/// What a backing device is and can do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Traits {
    /// Length in bytes, rounded down to whole sectors of 512.
    pub size: u64,
    /// Logical block size in bytes: requests must be aligned to it. 512 or 4096.
    pub block_size: u32,
    /// Is the page cache bypassed?
    pub direct: bool,
    /// Can ranges be deallocated, so that they read as zeroes?
    pub discard: bool,
    /// Is there no volatile cache to flush?
    pub write_through: bool,
}

/// Why a backing device could not be opened.
#[derive(Debug)]
pub enum OpenError {
    /// Someone else uses it.
    Busy(PathBuf),
    /// It is neither a regular file nor a block device.
    NotADisk(PathBuf),
    /// The kernel refused.
    Io(PathBuf, io::Error),
}

impl Disk {
    /// Opens `path` for reading and writing and locks it against other users (O_EXCL on block devices, flock on files).
    ///
    /// # Errors
    /// [`OpenError`] names the path and the reason.
    pub fn open(path: &Path) -> Result<Disk, OpenError> {
        let io_error = |e| OpenError::Io(path.to_owned(), e);
        let file_type = std::fs::metadata(path).map_err(io_error)?.file_type();
        if !file_type.is_block_device() && !file_type.is_file() {
            return Err(OpenError::NotADisk(path.to_owned()));
        }
        let exclusive = if file_type.is_block_device() { libc::O_EXCL } else { 0 };
        let open = |flags| OpenOptions::new().read(true).write(true).custom_flags(flags | exclusive).open(path);
        let (mut file, direct) = match open(libc::O_DIRECT) {
            Ok(file) if file_type.is_block_device() || sys::direct_alignment(&file) <= 512 => (file, true),
            Ok(_) => (open(0).map_err(io_error)?, false),
            Err(e) if e.raw_os_error() == Some(libc::EINVAL) => (open(0).map_err(io_error)?, false),
            Err(e) if e.raw_os_error() == Some(libc::EBUSY) => return Err(OpenError::Busy(path.to_owned())),
            Err(e) => return Err(io_error(e)),
        };
        if file_type.is_file() {
            lock(&file, path)?;
        }
        let size = file.seek(SeekFrom::End(0)).map_err(io_error)? & !511;
        let traits = if file_type.is_block_device() {
            block_device_traits(&file, size).map_err(io_error)?
        } else {
            // Every filesystem that punches holes reads them as zeroes; the others report it at the first discard.
            // A file in memory has no cache below it: its fdatasync does nothing.
            let write_through = sys::file_home(&file) == FileHome::Memory;
            Traits { size, block_size: 512, direct, discard: true, write_through }
        };
        let way = match sys::file_home(&file) {
            FileHome::Memory if !sys::supports_nowait(&file) => Way::Inline,
            FileHome::Elsewhere => Way::Worker,
            FileHome::Memory | FileHome::Device => Way::Ring,
        };
        Ok(Disk { fd: Rc::new(file.into()), way, traits })
    }

    /// Its present size in bytes (it may have grown since it was opened).
    ///
    /// # Errors
    /// What the kernel says.
    pub fn current_size(&self) -> io::Result<u64> {
        sys::end_of(&self.fd).map(|n| n & !511)
    }

    /// The same disk, which is `size` bytes long by now.
    ///
    /// # Errors
    /// What the kernel says.
    pub(crate) fn grown(&self, size: u64) -> io::Result<(Disk, File)> {
        let disk = Disk { fd: self.fd.clone(), way: self.way, traits: Traits { size, ..self.traits.clone() } };
        Ok((disk, File::from(self.fd.try_clone()?)))
    }

    /// A read of `into.len()` bytes at byte `offset`.
    #[must_use]
    pub fn read(&self, offset: u64, into: Span) -> Op {
        Op::Read { fd: self.fd.clone(), offset, into }
    }

    /// A write at byte `offset`; `durable`: on stable storage when it completes.
    #[must_use]
    pub fn write(&self, offset: u64, from: Span, durable: bool) -> Op {
        Op::Write { fd: self.fd.clone(), offset, from, durable }
    }

    /// One write of several pieces, each aligned to [`Traits::block_size`].
    #[must_use]
    pub fn write_parts(&self, offset: u64, parts: Box<Message>, durable: bool) -> Op {
        Op::WriteParts { fd: self.fd.clone(), offset, parts, durable }
    }

    /// Makes all completed writes durable.
    #[must_use]
    pub fn flush(&self) -> Op {
        Op::Flush { fd: self.fd.clone() }
    }

    /// Gives `len` bytes at `offset` back; they read as zeroes.
    #[must_use]
    pub fn deallocate(&self, offset: u64, len: u64) -> Op {
        Op::Fallocate { fd: self.fd.clone(), offset, len, mode: FallocateMode::PunchHole }
    }

    /// Makes `len` bytes at `offset` read as zeroes, keeping them allocated. Not every filesystem can (EOPNOTSUPP).
    #[must_use]
    pub fn zero(&self, offset: u64, len: u64) -> Op {
        Op::Fallocate { fd: self.fd.clone(), offset, len, mode: FallocateMode::ZeroRange }
    }

    /// Is this an operation on this disk?
    #[must_use]
    pub fn owns(&self, op: &Op) -> bool {
        op.fd().as_raw_fd() == self.fd.as_raw_fd()
    }

    /// Queues one of its operations.
    pub fn submit<T: Copy>(&self, ring: &mut Ring<T>, op: Op, token: T) {
        match self.way {
            Way::Ring => {
                ring.push(op, token);
            }
            Way::Worker => {
                ring.push_to_worker(op, token);
            }
            Way::Inline => ring.push_inline(op, token),
        }
    }
}

impl fmt::Display for OpenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            OpenError::Busy(path) => {
                write!(f, "{} is in use: unmount it, or stop the program that holds it", path.display())
            }
            OpenError::NotADisk(path) => write!(f, "{} is neither a block device nor a regular file", path.display()),
            OpenError::Io(path, e) => write!(f, "cannot open {}: {e}", path.display()),
        }
    }
}

impl std::error::Error for OpenError {}

fn lock(file: &File, path: &Path) -> Result<(), OpenError> {
    match exclusive::lock(file) {
        Ok(Locked::Yes) => Ok(()),
        Ok(Locked::Despite(who)) => {
            log("warning", &format!("{} is locked by {who}, who can only read it: used all the same", path.display()));
            Ok(())
        }
        Ok(Locked::No) => Err(OpenError::Busy(path.to_owned())),
        Err(e) => Err(OpenError::Io(path.to_owned(), e)),
    }
}

fn block_device_traits(file: &File, size: u64) -> io::Result<Traits> {
    let queue = QueueAttributes::of(file.metadata()?.rdev());
    Ok(Traits {
        size,
        block_size: sys::logical_block_size(file)?,
        direct: true,
        // Deallocation goes through fallocate, which uses the device's write-zeroes operation.
        discard: queue.number("discard_max_bytes") > 0 && queue.number("write_zeroes_max_bytes") > 0,
        write_through: queue.text("write_cache") == "write through",
    })
}

/// A block device's queue in sysfs.
struct QueueAttributes(PathBuf);

impl QueueAttributes {
    fn of(device: u64) -> QueueAttributes {
        let (major, minor) = (libc::major(device), libc::minor(device));
        let device = PathBuf::from(format!("/sys/dev/block/{major}:{minor}"));
        // A partition has no queue of its own.
        let own = device.join("queue");
        QueueAttributes(if own.exists() { own } else { device.join("../queue") })
    }

    fn text(&self, name: &str) -> String {
        std::fs::read_to_string(self.0.join(name)).map(|s| s.trim().to_owned()).unwrap_or_default()
    }

    fn number(&self, name: &str) -> u64 {
        self.text(name).parse().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::buffers::{ClassPlan, Pool};

    /// Files on whatever the temporary directory and /dev/shm (tmpfs) are.
    fn places() -> Vec<PathBuf> {
        [std::env::temp_dir(), PathBuf::from("/dev/shm")].into_iter().filter(|p| p.is_dir()).collect()
    }

    fn run(ring: &mut Ring<()>, disk: &Disk, op: Op) -> (io::Result<u32>, Op) {
        disk.submit(ring, op, ());
        let mut done = Vec::new();
        while done.is_empty() {
            ring.turn(None, &mut done).unwrap();
        }
        let done = done.remove(0);
        (done.result(), done.op.unwrap())
    }

    #[test]
    fn writes_flushes_and_deallocates() {
        for place in places() {
            let file = tempfile::NamedTempFile::new_in(place).unwrap();
            file.as_file().set_len(1 << 20).unwrap();
            let disk = Disk::open(file.path()).unwrap();
            assert_eq!((disk.traits.size, disk.traits.block_size), (1 << 20, 512));
            assert_eq!(disk.current_size().unwrap(), 1 << 20);
            let pool = Pool::leak(&[ClassPlan { size: 8192, count: 4 }]);
            let mut ring = Ring::new(8).unwrap();
            for (offset, durable) in [(512, false), (8192, true)] {
                let mut buf = pool.take(4096).unwrap();
                buf.bytes_mut().fill(0x5a);
                let op = disk.write(offset, buf.span(0, 4096), durable);
                assert_eq!(run(&mut ring, &disk, op).0.unwrap(), 4096);
            }
            run(&mut ring, &disk, disk.flush()).0.unwrap();
            run(&mut ring, &disk, disk.deallocate(8192, 4096)).0.unwrap();
            for (offset, byte) in [(512, 0x5a), (8192, 0)] {
                let op = disk.read(offset, pool.take(4096).unwrap().span(0, 4096));
                let (result, Op::Read { into, .. }) = run(&mut ring, &disk, op) else { panic!("a read") };
                assert_eq!(result.unwrap(), 4096);
                assert!(into.bytes().iter().all(|b| *b == byte), "offset {offset}");
            }
        }
    }

    #[test]
    fn a_second_user_is_refused() {
        for place in places() {
            let file = tempfile::NamedTempFile::new_in(place).unwrap();
            let disk = Disk::open(file.path()).unwrap();
            assert!(matches!(Disk::open(file.path()), Err(OpenError::Busy(_))));
            drop(disk);
            Disk::open(file.path()).unwrap();
        }
    }

    #[test]
    fn what_is_no_disk_is_refused() {
        assert!(matches!(Disk::open(Path::new("/dev/null")), Err(OpenError::NotADisk(_))));
        let error = Disk::open(Path::new("/nonexistent/disk")).unwrap_err();
        assert!(error.to_string().starts_with("cannot open /nonexistent/disk"), "{error}");
    }
}
