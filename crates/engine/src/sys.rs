//! The system calls that the standard library does not have. Results of reading, writing and the like are as the
//! kernel's: negative errno on failure.
#![allow(unsafe_code)]

pub(crate) use frontends::fuse::{read_parts, write_message};
pub use frontends::sys::keep_descriptors_from_children;
pub(crate) use frontends::sys::{leave_descriptors, user_and_group};

use std::fs::File;
use std::io::{self, IoSlice, IoSliceMut};
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, IntoRawFd, OwnedFd};

use frontends::sys::bytes_or_errno;
use rustix::event::EventfdFlags;
use rustix::fs::{AtFlags, FallocateFlags, Mode, OFlags, StatxFlags};
use rustix::io::{Errno, ReadWriteFlags};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketAddrAny, SocketFlags, SocketType, sockopt};
use rustix::process::{Pid, PidfdFlags};
use units::Instant;

/// Monotonic time.
pub(crate) fn now() -> Instant {
    let mut t = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `t` is a valid place for the result; this clock always exists.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut t) };
    Instant(t.tv_sec as u64 * 1_000_000_000 + t.tv_nsec as u64)
}

/// Lets other processes of this processor run, if any waits to.
pub(crate) fn let_others_run() {
    rustix::thread::sched_yield();
}

pub(crate) fn pread(fd: impl AsFd, to: &mut [u8], offset: u64) -> i32 {
    bytes_or_errno(rustix::io::pread(fd, to, offset))
}

pub(crate) fn pwrite(fd: impl AsFd, from: &[u8], offset: u64) -> i32 {
    bytes_or_errno(rustix::io::pwrite(fd, from, offset))
}

/// An offset of `u64::MAX` means the file has none.
pub(crate) fn pwritev(fd: impl AsFd, parts: &[IoSlice<'_>], offset: u64, durable: bool) -> i32 {
    let flags = ReadWriteFlags::from_bits_retain(write_flags(durable) as u32);
    bytes_or_errno(rustix::io::pwritev2(fd, parts, offset, flags))
}

/// Flags of a write (`pwritev2`); `durable`: on stable storage when it completes.
pub(crate) fn write_flags(durable: bool) -> i32 {
    if durable { libc::RWF_DSYNC } else { 0 }
}

/// Can this file be read without blocking (RWF_NOWAIT)? Files that cannot are served by io_uring's worker threads.
pub(crate) fn supports_nowait(fd: impl AsFd) -> bool {
    let mut page = AlignedPage([0; 4096]);
    let read = rustix::io::preadv2(fd, &mut [IoSliceMut::new(&mut page.0)], 0, ReadWriteFlags::NOWAIT);
    read != Err(Errno::OPNOTSUPP)
}

/// What is behind a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FileHome {
    /// Memory only (tmpfs, ramfs).
    Memory,
    /// A device of this machine, as far as the kernel tells.
    Device,
    /// Another process (FUSE) or machine (network file systems).
    Elsewhere,
}

/// Where the file lives.
pub(crate) fn file_home(fd: impl AsFd) -> FileHome {
    const TMPFS: i128 = libc::TMPFS_MAGIC as i128;
    const FUSE: i128 = libc::FUSE_SUPER_MAGIC as i128;
    const NFS: i128 = libc::NFS_SUPER_MAGIC as i128;
    const RAMFS: i128 = 0x8584_58f6;
    const CIFS: i128 = 0xff53_4d42;
    const SMB2: i128 = 0xfe53_4d42;
    const CEPH: i128 = 0x00c3_6400;
    const NINE_P: i128 = 0x0102_1997;
    let Ok(stat) = rustix::fs::fstatfs(fd) else { return FileHome::Device };
    // Signed or not, as the kernel has it.
    match i128::from(stat.f_type) {
        TMPFS | RAMFS => FileHome::Memory,
        FUSE | NFS | CIFS | SMB2 | CEPH | NINE_P => FileHome::Elsewhere,
        _ => FileHome::Device,
    }
}

/// The file offset alignment that direct I/O needs, in bytes (STATX_DIOALIGN); 512 where the kernel does not tell,
/// `u32::MAX` if the file has no direct I/O.
pub(crate) fn direct_alignment(fd: impl AsFd) -> u32 {
    let stat = rustix::fs::statx(fd, c"", AtFlags::EMPTY_PATH, StatxFlags::DIOALIGN);
    match stat.map(|stat| (stat.stx_mask & StatxFlags::DIOALIGN.bits() != 0, stat.stx_dio_offset_align)) {
        Ok((true, 0)) => u32::MAX,
        Ok((true, align)) => align,
        _ => 512,
    }
}

/// A block device's logical block size in bytes.
pub(crate) fn logical_block_size(fd: impl AsFd) -> io::Result<u32> {
    Ok(rustix::fs::ioctl_blksszget(fd)?)
}

/// The length of a file or block device in bytes. The file position is used by nobody.
pub(crate) fn end_of(fd: impl AsFd) -> io::Result<u64> {
    Ok(rustix::fs::seek(fd, rustix::fs::SeekFrom::End(0))?)
}

/// Where the next byte of a file is that is no hole, from `from` on; `None`: only holes follow. What knows of no holes,
/// as block devices, has none.
#[must_use]
pub fn next_data(file: &File, from: u64) -> Option<u64> {
    match rustix::fs::seek(file, rustix::fs::SeekFrom::Data(from)) {
        Ok(data) => Some(data),
        Err(Errno::NXIO) => None,
        Err(_) => Some(from),
    }
}

/// Has what is read from a block device from now on come from the device: what the page cache has of it may be older
/// than what its user has written past the cache.
pub fn read_anew(file: &File) {
    // It is a wish, and whether it is granted is no matter.
    let _ = rustix::fs::fadvise(file, 0, None, rustix::fs::Advice::DontNeed);
}

#[repr(align(4096))]
struct AlignedPage([u8; 4096]);

pub(crate) fn fdatasync(fd: impl AsFd) -> i32 {
    zero_or_errno(rustix::fs::fdatasync(fd))
}

pub(crate) fn fallocate(fd: impl AsFd, mode: i32, offset: u64, len: u64) -> i32 {
    zero_or_errno(rustix::fs::fallocate(fd, FallocateFlags::from_bits_retain(mode as u32), offset, len))
}

pub(crate) fn recv(fd: impl AsFd, to: &mut [u8]) -> i32 {
    bytes_or_errno(rustix::net::recv(fd, to, RecvFlags::DONTWAIT).map(|(n, _)| n))
}

/// As [`recv`], but leaves on the socket what it gives.
pub(crate) fn peek(fd: impl AsFd, to: &mut [u8]) -> i32 {
    bytes_or_errno(rustix::net::recv(fd, to, RecvFlags::DONTWAIT | RecvFlags::PEEK).map(|(n, _)| n))
}

/// Drops at most `len` bytes that a TCP socket has received: how many, or a negative errno.
pub(crate) fn discard(fd: impl AsFd, len: usize) -> i32 {
    let (fd, flags) = (fd.as_fd().as_raw_fd(), libc::MSG_DONTWAIT | libc::MSG_TRUNC);
    // SAFETY: with MSG_TRUNC nothing is copied from a TCP socket. rustix has no way to name no memory.
    let n = unsafe { libc::recv(fd, std::ptr::null_mut(), len, flags) };
    if n < 0 { -io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO) } else { n as i32 }
}

pub(crate) fn sendmsg(fd: impl AsFd, parts: &[IoSlice<'_>]) -> i32 {
    let mut nothing = rustix::net::SendAncillaryBuffer::default();
    bytes_or_errno(rustix::net::sendmsg(fd, parts, &mut nothing, SendFlags::DONTWAIT | SendFlags::NOSIGNAL))
}

/// Reads what is there into `to`; negative errno, EAGAIN if there is nothing and the file does not block.
pub(crate) fn read(fd: impl AsFd, to: &mut [u8]) -> i32 {
    bytes_or_errno(rustix::io::read(fd, to))
}

pub(crate) fn write(fd: impl AsFd, from: &[u8]) -> i32 {
    bytes_or_errno(rustix::io::write(fd, from))
}

pub(crate) fn connect_nonblocking(fd: impl AsFd, to: &SocketAddrAny) -> i32 {
    set_nonblocking(&fd);
    zero_or_errno(rustix::net::connect(fd, to))
}

/// Negative SO_ERROR, which also clears it.
pub(crate) fn socket_error(fd: impl AsFd) -> i32 {
    zero_or_errno(sockopt::socket_error(fd).and_then(|error| error))
}

pub(crate) fn accept_nonblocking(fd: impl AsFd) -> i32 {
    set_nonblocking(&fd);
    let accepted = rustix::net::accept_with(fd, SocketFlags::CLOEXEC);
    accepted.map_or_else(|e| -e.raw_os_error(), IntoRawFd::into_raw_fd)
}

/// Waits for one of `fds` for at most `timeout` ms (-1: forever). A signal ends the wait like a timeout.
pub(crate) fn poll(fds: &mut [libc::pollfd], timeout: i32) -> io::Result<()> {
    // SAFETY: the slice is valid for its length.
    if unsafe { libc::poll(fds.as_mut_ptr(), fds.len() as libc::nfds_t, timeout) } < 0 {
        let e = io::Error::last_os_error();
        if e.kind() != io::ErrorKind::Interrupted {
            return Err(e);
        }
        fds.iter_mut().for_each(|f| f.revents = 0);
    }
    Ok(())
}

/// A TCP socket, bound to `local` with SO_REUSEADDR.
pub(crate) fn tcp_socket(local: &SocketAddr, configure: impl FnOnce(BorrowedFd<'_>)) -> io::Result<OwnedFd> {
    let socket = unbound_socket(local)?;
    sockopt::set_socket_reuseaddr(&socket, true)?;
    configure(socket.as_fd());
    rustix::net::bind(&socket, local)?;
    Ok(socket)
}

/// The same, but no other socket has this port, not even one of a connection that is over. Others may have it later.
pub(crate) fn tcp_socket_alone(local: &SocketAddr, configure: impl FnOnce(BorrowedFd<'_>)) -> io::Result<OwnedFd> {
    let socket = unbound_socket(local)?;
    configure(socket.as_fd());
    rustix::net::bind(&socket, local)?;
    sockopt::set_socket_reuseaddr(&socket, true)?;
    Ok(socket)
}

fn unbound_socket(local: &SocketAddr) -> io::Result<OwnedFd> {
    let family = if local.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    Ok(rustix::net::socket_with(family, SocketType::STREAM, SocketFlags::CLOEXEC, None)?)
}

pub(crate) fn listen(socket: &OwnedFd, backlog: i32) -> io::Result<()> {
    Ok(rustix::net::listen(socket, backlog)?)
}

/// A descriptor of a process that becomes readable when it ends.
pub(crate) fn pidfd(pid: u32) -> io::Result<OwnedFd> {
    let pid = Pid::from_raw(pid.cast_signed()).ok_or(io::ErrorKind::InvalidInput)?;
    Ok(rustix::process::pidfd_open(pid, PidfdFlags::empty())?)
}

/// A descriptor that becomes readable when the process is asked to stop (SIGTERM, SIGINT, SIGHUP), which it then no
/// longer dies of.
pub(crate) fn stop_signals() -> io::Result<OwnedFd> {
    // SAFETY: sigset_t is plain data, initialised by sigemptyset; the mask pointers are valid or null. The kernel makes
    // the descriptor for us. rustix leaves signals to the C library.
    unsafe {
        let mut set: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&raw mut set);
        for signal in [libc::SIGTERM, libc::SIGINT, libc::SIGHUP] {
            libc::sigaddset(&raw mut set, signal);
        }
        check(libc::sigprocmask(libc::SIG_BLOCK, &raw const set, std::ptr::null_mut()))?;
        let fd = check(libc::signalfd(-1, &raw const set, libc::SFD_CLOEXEC))?;
        Ok(OwnedFd::from_raw_fd(fd))
    }
}

/// A descriptor that is readable after [`ring_event`].
pub(crate) fn event() -> io::Result<OwnedFd> {
    Ok(rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?)
}

/// Makes a descriptor of [`event`] readable.
pub(crate) fn ring_event(event: &OwnedFd) {
    let _ = rustix::io::write(event, &1u64.to_ne_bytes());
}

/// Makes it unreadable again.
pub(crate) fn take_event(event: &OwnedFd) {
    let _ = rustix::io::read(event, &mut [0u8; 8]);
}

/// Takes one signal off the descriptor of [`stop_signals`], which is readable.
pub(crate) fn take_signal(signals: &OwnedFd) {
    let _ = rustix::io::read(signals, &mut [0u8; size_of::<libc::signalfd_siginfo>()]);
}

/// How many processors the machine may ever have.
///
/// # Errors
/// If the kernel does not say.
pub(crate) fn possible_processors() -> io::Result<u16> {
    let text = std::fs::read_to_string("/sys/devices/system/cpu/possible")?;
    count_of_ranges(text.trim()).ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, text))
}

/// How many numbers a list such as `0-3,8` has.
fn count_of_ranges(list: &str) -> Option<u16> {
    let range = |part: &str| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        last.parse::<u16>().ok()?.checked_sub(first.parse().ok()?)?.checked_add(1)
    };
    list.split(',').try_fold(0u16, |sum, part| sum.checked_add(range(part)?))
}

/// Ends both directions of a socket, so that operations in flight on it complete. Failure means that it is not
/// connected any more.
pub(crate) fn shutdown(fd: impl AsFd) {
    let _ = rustix::net::shutdown(fd, rustix::net::Shutdown::Both);
}

/// Sets the priority of what a socket sends.
pub(crate) fn set_priority(fd: impl AsFd, priority: i32) -> io::Result<()> {
    let (fd, len) = (fd.as_fd().as_raw_fd(), size_of::<i32>() as libc::socklen_t);
    // SAFETY: `priority` is a place of `len` bytes. rustix does not have this option.
    check(unsafe { libc::setsockopt(fd, libc::SOL_SOCKET, libc::SO_PRIORITY, (&raw const priority).cast(), len) })
        .map(drop)
}

/// Is the socket's other end still there? Data to read counts as alive.
pub(crate) fn is_alive(fd: impl AsFd) -> bool {
    let n = peek(fd, &mut [0]);
    n > 0 || n == -libc::EAGAIN
}

/// Bytes that a socket has received and that nobody has taken.
#[cfg(test)]
pub(crate) fn received_bytes(fd: impl AsFd) -> u64 {
    rustix::io::ioctl_fionread(fd).unwrap()
}

/// Bytes that were sent on a socket and that the other end has not acknowledged.
pub(crate) fn unacknowledged_bytes(fd: impl AsFd) -> usize {
    let mut n: libc::c_int = 0;
    // SAFETY: `n` is the place that the kernel fills; it stays 0 if that fails.
    unsafe { libc::ioctl(fd.as_fd().as_raw_fd(), libc::TIOCOUTQ, &raw mut n) };
    usize::try_from(n).unwrap_or_default()
}

/// A failure shows in the operation that follows.
pub(crate) fn set_nonblocking(fd: impl AsFd) {
    let flags = rustix::fs::fcntl_getfl(&fd).unwrap_or(OFlags::empty());
    let _ = rustix::fs::fcntl_setfl(fd, flags | OFlags::NONBLOCK);
}

fn zero_or_errno(result: rustix::io::Result<()>) -> i32 {
    result.map_or_else(|e| -e.raw_os_error(), |()| 0)
}

fn check(result: i32) -> io::Result<i32> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

/// A directory as a place only (O_PATH): the file system is not asked, so it may be one that this thread serves. The
/// standard library takes that flag away where the C library counts it as a way of access (musl).
pub(crate) fn open_unseen(path: &std::path::Path) -> io::Result<std::fs::File> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    Ok(rustix::fs::open(path, flags, Mode::empty())?.into())
}

/// Makes `file` standard output and standard error.
pub(crate) fn become_output(file: &OwnedFd) -> io::Result<()> {
    rustix::stdio::dup2_stdout(file)?;
    Ok(rustix::stdio::dup2_stderr(file)?)
}

/// Who has opened the other end of a Unix socket.
pub(crate) fn peer_credentials(fd: impl AsFd) -> io::Result<libc::ucred> {
    let (fd, mut who) = (fd.as_fd().as_raw_fd(), libc::ucred { pid: 0, uid: 0, gid: 0 });
    let mut len = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: SO_PEERCRED stores a ucred of `len` bytes. Its pid may be 0 (a process of another namespace), which
    // rustix's type has no room for.
    check(unsafe { libc::getsockopt(fd, libc::SOL_SOCKET, libc::SO_PEERCRED, (&raw mut who).cast(), &raw mut len) })?;
    Ok(who)
}

/// The number of a group; `None` if there is none of that name.
pub(crate) fn group_number(name: &str) -> Option<u32> {
    let name = std::ffi::CString::new(name).ok()?;
    let mut group = std::mem::MaybeUninit::<libc::group>::uninit();
    let mut found = std::ptr::null_mut();
    let mut text = vec![0; 65536];
    let (place, text, len) = (group.as_mut_ptr(), text.as_mut_ptr(), text.len());
    // SAFETY: all pointers are to live memory of the lengths given; `found` is null, or points to `group`, which was
    // stored then. The C library knows where groups are.
    unsafe {
        let failed = libc::getgrnam_r(name.as_ptr(), place, text, len, &raw mut found);
        (failed == 0).then_some(found)?.as_ref().map(|group| group.gr_gid)
    }
}

/// The number of a network interface, by its name or as a number; 0 if there is none.
pub(crate) fn interface_number(name: &str) -> u32 {
    let named = rustix::net::socket(AddressFamily::UNIX, SocketType::DGRAM, None)
        .and_then(|socket| rustix::net::netdevice::name_to_index(socket, name));
    named.ok().filter(|n| *n > 0).unwrap_or_else(|| name.parse().unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processors_are_counted() {
        let counts = ["0", "0-3", "0-3,8", "0,2-3", "", "3-1", "x"].map(count_of_ranges);
        assert_eq!(counts, [Some(1), Some(4), Some(5), Some(3), None, None, None]);
        assert!(possible_processors().unwrap() >= 1);
    }
}
