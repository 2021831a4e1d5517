//! Loop devices: a block device node on top of a file of the [`fuse`](crate::fuse) file system.
//!
//! **Never call these from the thread that serves the file.** Attaching, resizing and detaching open, look at or close
//! the file, so the kernel sends messages to the file system and waits for the answers: the serving thread would wait
//! for itself. [`in_background`] runs the call on a helper thread and wakes the event loop through an eventfd.
//!
//! A loop device of [`attach`] outlives the process; one of [`keep`] does not, unless a
//! [`keeper`](crate::keeper) holds it, too. [`backed_by`] finds those left over;
//! detach them *before* the dead file system is unmounted, because afterwards the kernel no longer knows the file's
//! full path.
//!
//! The device does direct I/O on the file: nothing is cached twice, and a flush of the device is an `fsync` of the
//! file.

#![allow(unsafe_code)] // ioctl; a thread owns by number what its own table of descriptors has.

mod holder;
pub mod leftover;
mod node;

pub use holder::{Kept, Second, keep, keep_again, keep_through, take_over};

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, TryRecvError, channel};

use rustix::event::EventfdFlags;

use crate::sys;

/// Between asking for a free device and taking it, somebody else may take it: so many times we ask again.
const ATTEMPTS: u32 = 64;

/// Between two tries to have a device back that is being detached, and how many there are.
const BACK: (std::time::Duration, u32) = (std::time::Duration::from_millis(1), 200);

const BLKROSET: libc::c_ulong = 0x125D;
const LOOP_CLR_FD: libc::c_ulong = 0x4C01;
const LOOP_SET_CAPACITY: libc::c_ulong = 0x4C07;
const LOOP_CONFIGURE: libc::c_ulong = 0x4C0A;
const LOOP_CTL_GET_FREE: libc::c_ulong = 0x4C82;
const LO_FLAGS_READ_ONLY: u32 = 1;
const LO_FLAGS_AUTOCLEAR: u32 = 4;
const LO_FLAGS_DIRECT_IO: u32 = 16;

/// How to attach a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// Refuse writes at the device.
    pub read_only: bool,
    /// Logical block size of the device in bytes: 512 or 4096.
    pub block_size: u32,
    /// Does the kernel hold back writeback of its page cache for the sake of reads (`wbt`)? Where a device says that it
    /// has a cache, it then lets what it has sent run dry before it sends more: a disk below pauses each time.
    pub paced: bool,
}

impl Default for Options {
    fn default() -> Self {
        Options { read_only: false, block_size: 512, paced: true }
    }
}

/// An attached loop device. Dropping this leaves it attached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LoopDevice {
    number: u32,
}

/// Attaches `file` to a free loop device. Needs root. See the module about threads.
pub fn attach(file: &Path, options: Options) -> io::Result<LoopDevice> {
    let backing = OpenOptions::new().read(true).write(!options.read_only).open(file)?;
    attach_open(&backing, file, options, false, None).map(|(device, _)| device)
}

/// With `autoclear` the device goes away when the last user closes it, of whom the returned file is the first. `wanted`
/// is taken if nobody else has it.
fn attach_open(
    backing: &File,
    file: &Path,
    options: Options,
    autoclear: bool,
    wanted: Option<LoopDevice>,
) -> io::Result<(LoopDevice, File)> {
    let control = OpenOptions::new().read(true).write(true).open("/dev/loop-control").map_err(|error| {
        io::Error::new(error.kind(), format!("cannot open /dev/loop-control (is the loop module loaded?): {error}"))
    })?;
    let mut config = Config::new(backing, file, options);
    config.info.flags |= if autoclear { LO_FLAGS_AUTOCLEAR } else { 0 };
    if let Some(device) = wanted {
        for _ in 0..BACK.1 {
            match configure(device, &config, options) {
                // Somebody has it open for himself, or it is not quite gone.
                Err(error) if matches!(error.raw_os_error(), Some(libc::EBUSY | libc::ENXIO)) => {
                    if device.backing_file()?.is_some() {
                        break;
                    }
                    std::thread::sleep(BACK.0);
                }
                // The device itself is gone.
                Err(error) if error.kind() == io::ErrorKind::NotFound => break,
                result => return result.map(|node| (device, node)),
            }
        }
    }
    for _ in 0..ATTEMPTS {
        let number = request(&control, LOOP_CTL_GET_FREE, std::ptr::null())?;
        let device = LoopDevice { number: number as u32 };
        match configure(device, &config, options) {
            Err(error) if error.raw_os_error() == Some(libc::EBUSY) => continue,
            Ok(node) if !options.read_only => {
                // Whoever had this number before may have left it read-only.
                set_read_only(&node, false)?;
                return Ok((device, node));
            }
            result => return result.map(|node| (device, node)),
        }
    }
    Err(io::Error::new(io::ErrorKind::ResourceBusy, "every free loop device was taken by somebody else first"))
}

/// Whether the kernel refuses writes to the device. It keeps that beyond the device's end.
fn set_read_only(node: &File, read_only: bool) -> io::Result<()> {
    let value = libc::c_int::from(read_only);
    request(node, BLKROSET, (&raw const value).cast()).map(drop)
}

/// One of the requests above, with what it reads: `BLKROSET` an integer, `LOOP_CONFIGURE` a `struct loop_config`, the
/// others nothing.
fn request(file: &File, request: libc::c_ulong, argument: *const libc::c_void) -> io::Result<libc::c_int> {
    // SAFETY: the argument is what the request reads, and lives through the call.
    let result = unsafe { libc::ioctl(file.as_raw_fd(), request as _, argument) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

fn configure(device: LoopDevice, config: &Config, options: Options) -> io::Result<File> {
    let node = device.open(!options.read_only)?;
    request(&node, LOOP_CONFIGURE, (&raw const *config).cast())?;
    if !options.read_only {
        device.set_write_through(false).inspect_err(|_| drop(device.detach()))?;
        // It only makes a difference in speed.
        let _ = device.set_paced(options.paced);
    }
    Ok(node)
}

/// The loop devices whose backing file is `file` (compared as the kernel prints it: absolute, without symbolic links).
/// Reads `/sys` only: works for a file system that no longer answers.
pub fn backed_by(file: &Path) -> io::Result<Vec<LoopDevice>> {
    let mut found = Vec::new();
    for device in all()? {
        if device.backing_file()?.is_some_and(|backing| backing == file) {
            found.push(device);
        }
    }
    found.sort_by_key(|device| device.number);
    Ok(found)
}

/// All loop devices, attached or not.
fn all() -> io::Result<Vec<LoopDevice>> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/sys/block")? {
        let name = entry?.file_name();
        let number = name.to_str().and_then(|name| name.strip_prefix("loop")).and_then(|digits| digits.parse().ok());
        found.extend(number.map(|number| LoopDevice { number }));
    }
    Ok(found)
}

impl LoopDevice {
    /// The device that is open as `node`.
    fn of(node: &File) -> io::Result<LoopDevice> {
        let found = node.metadata()?;
        let number = || {
            let id = found.rdev();
            let named = std::fs::read_link(format!("/sys/dev/block/{}:{}", libc::major(id), libc::minor(id))).ok()?;
            named.file_name()?.to_str()?.strip_prefix("loop")?.parse().ok()
        };
        let number = Some(found.file_type().is_block_device()).filter(|is| *is).and_then(|_| number());
        let refusal = || io::Error::new(io::ErrorKind::InvalidInput, "this is no loop device");
        number.map(|number| LoopDevice { number }).ok_or_else(refusal)
    }

    /// The device that an open file is, also one that was opened with `O_PATH`, which is no use of the device.
    ///
    /// # Errors
    /// If it is none.
    pub fn of_descriptor(descriptor: BorrowedFd<'_>) -> io::Result<LoopDevice> {
        LoopDevice::of(&File::from(descriptor.try_clone_to_owned()?))
    }

    /// A descriptor by which another process knows the device ([`LoopDevice::of_descriptor`]); it does not use it.
    ///
    /// # Errors
    /// If there is no node for it, and none may be made.
    pub fn name_tag(&self) -> io::Result<OwnedFd> {
        Ok(node::open(*self, false, libc::O_PATH)?.into())
    }

    /// Its major and minor number.
    pub fn device_number(&self) -> (u32, u32) {
        const LOOP_MAJOR: u32 = 7;
        (LOOP_MAJOR, self.number)
    }

    /// Is a file of this name behind it?
    pub fn stands_on(&self, name: &str) -> bool {
        let file = self.backing_file().ok().flatten();
        file.is_some_and(|file| file.file_name().is_some_and(|found| found == name))
    }

    /// Has somebody forbidden to write to it (`blockdev --setro`)? `None`: behind it is another file than one called
    /// `name`, and what is said of it concerns that. It can be asked of a device that has just gone, too: the kernel
    /// keeps the flag.
    pub fn forbids_writes(&self, name: &str) -> Option<bool> {
        // Before it is seen whose it is: who gets the number later changes the flag later.
        let forbidden = self.is_read_only();
        let nobodys = || self.backing_file().is_ok_and(|file| file.is_none());
        (self.stands_on(name) || nobodys()).then_some(forbidden)
    }

    fn is_read_only(&self) -> bool {
        self.attribute("ro").ok().flatten().is_some_and(|value| value.starts_with(b"1"))
    }

    /// `/dev/loopN`, where the machine has its node.
    pub fn path(&self) -> PathBuf {
        PathBuf::from(format!("/dev/loop{}", self.number))
    }

    /// The file behind the device; `None` if it is not attached.
    pub fn backing_file(&self) -> io::Result<Option<PathBuf>> {
        let Some(mut bytes) = self.attribute("loop/backing_file")? else { return Ok(None) };
        if bytes.last() == Some(&b'\n') {
            bytes.pop();
        }
        Ok(Some(PathBuf::from(std::ffi::OsStr::from_bytes(&bytes))))
    }

    /// Whether the kernel really does direct I/O on the file.
    pub fn is_direct(&self) -> io::Result<bool> {
        Ok(self.attribute("loop/dio")?.is_some_and(|bytes| bytes.starts_with(b"1")))
    }

    /// Makes the device as large as its file `file` is now, and returns that size in bytes. See the module about
    /// threads.
    pub fn refresh_size(&self, file: &Path) -> io::Result<u64> {
        // Some kernels believe the size that they have cached: make them ask.
        std::fs::metadata(file)?;
        let node = self.open(false)?;
        request(&node, LOOP_SET_CAPACITY, std::ptr::null())?;
        let size = self.size_as_reported();
        size.ok_or_else(|| io::Error::other("the kernel reports no size of the device"))
    }

    /// Its size in bytes; 0 if there is no such device.
    pub fn size(&self) -> u64 {
        self.size_as_reported().unwrap_or_default()
    }

    fn size_as_reported(&self) -> Option<u64> {
        let sectors = self.attribute("size").ok()??;
        Some(std::str::from_utf8(&sectors).ok()?.trim().parse::<u64>().ok()? * 512)
    }

    /// Detaches the device from its file; if somebody still has it open, the kernel does it when they close it. It is
    /// not an error if nothing is attached. See the module about threads.
    pub fn detach(&self) -> io::Result<()> {
        let node = self.open(false)?;
        match request(&node, LOOP_CLR_FD, std::ptr::null()) {
            Err(error) if error.raw_os_error() != Some(libc::ENXIO) => Err(error),
            _ => Ok(()),
        }
    }

    /// Whether the kernel believes that there is no volatile cache behind the device, and so keeps flushes to itself.
    /// It remembers that when another file is attached: who sets it takes it back.
    ///
    /// # Errors
    /// If it has to be changed, and may not.
    pub fn set_write_through(&self, write_through: bool) -> io::Result<()> {
        let name = "queue/write_cache";
        let wanted = if write_through { "write through" } else { "write back" };
        match self.attribute(name)? {
            Some(now) if !now.starts_with(wanted.as_bytes()) => self.set_attribute(name, wanted),
            _ => Ok(()),
        }
    }

    /// Whether writeback is held back, see [`Options::paced`]. The kernel remembers that, too, when another file is
    /// attached.
    ///
    /// # Errors
    /// If it has to be changed, and may not.
    pub fn set_paced(&self, paced: bool) -> io::Result<()> {
        let name = "queue/wbt_lat_usec";
        let Some(now) = self.attribute(name)? else { return Ok(()) };
        match (now.trim_ascii() != b"0", paced) {
            // -1: what the kernel thinks best.
            (false, true) => self.set_attribute(name, "-1"),
            (true, false) => self.set_attribute(name, "0"),
            _ => Ok(()),
        }
    }

    fn open(&self, write: bool) -> io::Result<File> {
        node::open(*self, write, 0)
    }

    /// Does the kernel have such a device?
    fn exists(&self) -> bool {
        Path::new(&format!("/sys/block/loop{}", self.number)).exists()
    }

    fn set_attribute(&self, name: &str, value: &str) -> io::Result<()> {
        let path = format!("/sys/block/loop{}/{name}", self.number);
        std::fs::write(&path, value)
            .map_err(|error| io::Error::new(error.kind(), format!("cannot write \"{value}\" to {path}: {error}")))
    }

    /// A file of the device's directory in `/sys`; `None` if it is not there.
    fn attribute(&self, name: &str) -> io::Result<Option<Vec<u8>>> {
        match std::fs::read(format!("/sys/block/loop{}/{name}", self.number)) {
            Ok(bytes) => Ok(Some(bytes)),
            // A device that is being detached answers with ENXIO, one that is being removed with ENODEV.
            Err(error) if matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ENXIO | libc::ENODEV)) => Ok(None),
            Err(error) => Err(error),
        }
    }
}

/// `struct loop_config` of `<linux/loop.h>`.
#[repr(C)]
struct Config {
    fd: u32,
    block_size: u32,
    info: Info,
    reserved: [u64; 8],
}

/// `struct loop_info64`.
#[repr(C)]
struct Info {
    device: u64,
    inode: u64,
    rdevice: u64,
    offset: u64,
    size_limit: u64,
    number: u32,
    encrypt_type: u32,
    encrypt_key_size: u32,
    flags: u32,
    file_name: [u8; 64],
    crypt_name: [u8; 64],
    encrypt_key: [u8; 32],
    init: [u64; 2],
}

const _: () = assert!(size_of::<Info>() == 232 && size_of::<Config>() == 304);

impl Config {
    fn new(backing: &File, file: &Path, options: Options) -> Config {
        let mut file_name = [0; 64];
        // For display only; it ends with a zero byte.
        let name = file.as_os_str().as_bytes();
        let len = name.len().min(file_name.len() - 1);
        file_name[..len].copy_from_slice(&name[..len]);
        let info = Info {
            device: 0,
            inode: 0,
            rdevice: 0,
            offset: 0,
            size_limit: 0,
            number: 0,
            encrypt_type: 0,
            encrypt_key_size: 0,
            flags: LO_FLAGS_DIRECT_IO | if options.read_only { LO_FLAGS_READ_ONLY } else { 0 },
            file_name,
            crypt_name: [0; 64],
            encrypt_key: [0; 32],
            init: [0; 2],
        };
        Config { fd: backing.as_raw_fd() as u32, block_size: options.block_size, info, reserved: [0; 8] }
    }
}

/// Runs `work` on a thread of its own and returns at once.
///
/// The thread has a descriptor table of its own, in which only `open` (numbers as here) and the standard ones are open;
/// `work` must own no others. It may wait for the file that this process serves: if the process is killed then, what it
/// has open is closed nevertheless, and another one can serve the file, by which this thread ends, too.
pub fn in_background<T: Send + 'static>(
    open: &[BorrowedFd<'_>],
    work: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> io::Result<Background<T>> {
    let event = eventfd()?;
    let (sender, receiver) = channel();
    let open: Vec<BorrowedFd<'_>> = open.iter().copied().chain([event.as_fd()]).collect();
    // What it locks into memory is small: it does next to nothing.
    let thread = std::thread::Builder::new().name("urbd-loop".into()).stack_size(256 << 10);
    start(thread, &open, move |mut open| {
        // Dropped last, also by a panic: the owner is woken in any case.
        let _bell = open.pop().map(|event| Bell(event.into()));
        let _open = open;
        let sender = sender;
        // Nobody may be listening any more.
        let _ = sender.send(work());
    })?;
    Ok(Background { event, receiver })
}

/// Runs `work` on a thread with a descriptor table of its own, in which only `open` and the standard ones are open, and
/// gives it the former.
fn start(
    thread: std::thread::Builder,
    open: &[BorrowedFd<'_>],
    work: impl FnOnce(Vec<OwnedFd>) + Send + 'static,
) -> io::Result<()> {
    let numbers: Vec<RawFd> = open.iter().map(AsRawFd::as_raw_fd).collect();
    let (ready, is_ready) = channel();
    thread.spawn(move || {
        let own_table = sys::own_descriptors().and_then(|()| sys::close_all_but(&numbers));
        let failed = own_table.as_ref().err().and_then(io::Error::raw_os_error);
        // SAFETY: the numbers are open in this thread's own table, and nothing else owns them there.
        let owned = own_table.map(|()| numbers.into_iter().map(|n| unsafe { OwnedFd::from_raw_fd(n) }).collect());
        // From here on the numbers are those of this thread's own table.
        let _ = ready.send(failed);
        if let Ok(owned) = owned {
            work(owned);
        }
    })?;
    match is_ready.recv() {
        Ok(None) => Ok(()),
        Ok(Some(errno)) => Err(io::Error::from_raw_os_error(errno)),
        Err(_) => Err(io::Error::other("the helper thread of a loop device did not start")),
    }
}

/// Work on a helper thread. Its descriptor becomes readable (once, 8 bytes) when the work has ended.
#[derive(Debug)]
pub struct Background<T> {
    event: File,
    receiver: Receiver<io::Result<T>>,
}

impl<T> Background<T> {
    /// The result, once; `None` while the work goes on.
    pub fn take(&mut self) -> Option<io::Result<T>> {
        match self.receiver.try_recv() {
            Ok(result) => Some(result),
            Err(TryRecvError::Empty) => None,
            Err(TryRecvError::Disconnected) => Some(Err(io::Error::other("the helper thread ended without a result"))),
        }
    }

    /// Waits for the result. Not for the thread that serves the file.
    pub fn wait(mut self) -> io::Result<T> {
        self.event.read_exact(&mut [0; 8])?;
        self.take().unwrap_or_else(|| Err(io::Error::other("the helper thread ended without a result")))
    }
}

impl<T> AsFd for Background<T> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }
}

/// Rings when it is dropped.
struct Bell(File);

impl Drop for Bell {
    fn drop(&mut self) {
        // An eventfd that has room for one more cannot fail.
        let _ = self.0.write_all(&1u64.to_ne_bytes());
    }
}

fn eventfd() -> io::Result<File> {
    Ok(File::from(rustix::event::eventfd(0, EventfdFlags::CLOEXEC)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn background_work_rings_the_bell() {
        let mut work = in_background(&[], || Ok(7)).unwrap();
        work.event.read_exact(&mut [0; 8]).unwrap();
        assert_eq!(work.take().unwrap().unwrap(), 7);
        assert!(in_background(&[], || Err::<(), _>(io::Error::other("no"))).unwrap().wait().is_err());
    }

    #[test]
    fn background_work_that_dies_is_an_error() {
        let work = in_background::<()>(&[], || std::panic::resume_unwind(Box::new("dead"))).unwrap();
        assert!(work.wait().is_err());
    }

    #[test]
    fn a_helper_has_only_what_it_is_given() {
        let (given, other) = (tempfile::tempfile().unwrap(), tempfile::tempfile().unwrap());
        let (a, b) = (given.as_raw_fd(), other.as_raw_fd());
        let is_open = |fd: RawFd| std::fs::read_link(format!("/proc/thread-self/fd/{fd}")).is_ok();
        let work = in_background(&[given.as_fd()], move || Ok((is_open(a), is_open(b)))).unwrap();
        assert_eq!(work.wait().unwrap(), (true, false));
        assert!(is_open(b));
    }

    #[test]
    fn work_that_goes_on_has_no_result() {
        let (release, wait) = channel::<()>();
        let mut work = in_background(&[], move || wait.recv().map_err(io::Error::other)).unwrap();
        assert!(work.take().is_none());
        release.send(()).unwrap();
        work.wait().unwrap();
    }

    #[test]
    fn a_long_name_is_cut() {
        let file = tempfile::tempfile().unwrap();
        let name = "x".repeat(100);
        let options = Options { read_only: true, block_size: 4096, paced: true };
        let config = Config::new(&file, Path::new(&name), options);
        assert_eq!((config.info.file_name[62], config.info.file_name[63]), (b'x', 0));
        assert_eq!((config.info.flags, config.block_size), (17, 4096));
    }

    #[test]
    fn nothing_is_backed_by_nowhere() {
        assert_eq!(backed_by(Path::new("/nowhere/0")).unwrap(), []);
    }
}
