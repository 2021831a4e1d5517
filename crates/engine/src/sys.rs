//! The system calls that have no safe wrapper elsewhere. Results are as the kernel's: negative errno on failure.
#![allow(unsafe_code)]

pub(crate) use frontends::fuse::{read_parts, write_message};
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
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
    // SAFETY: no memory involved; it cannot fail.
    unsafe { libc::sched_yield() };
}

/// # Safety
/// `to` must be valid for `len` bytes of writes and not be in use elsewhere.
pub(crate) unsafe fn pread(fd: RawFd, to: *mut u8, len: usize, offset: u64) -> i32 {
    // SAFETY: the caller vouches for the memory.
    negative_errno(unsafe { libc::pread64(fd, to.cast(), len, offset as i64) } as i64)
}

/// # Safety
/// `from` must be valid for `len` bytes of reads.
pub(crate) unsafe fn pwrite(fd: RawFd, from: *const u8, len: usize, offset: u64) -> i32 {
    // SAFETY: the caller vouches for the memory. The C library's own function prepares for being cancelled.
    negative_errno(unsafe { libc::syscall(libc::SYS_pwrite64, fd, from, len, offset) } as i64)
}

/// # Safety
/// `iovecs` must point at `n` vectors of readable memory. An offset of `u64::MAX` means the file has none.
pub(crate) unsafe fn pwritev(fd: RawFd, iovecs: *const libc::iovec, n: u32, offset: u64, durable: bool) -> i32 {
    let flags = write_flags(durable);
    // SAFETY: the caller vouches for the vectors.
    negative_errno(unsafe { libc::pwritev2(fd, iovecs, n as i32, offset as i64, flags) } as i64)
}

/// Flags of a write (`pwritev2`); `durable`: on stable storage when it completes.
pub(crate) fn write_flags(durable: bool) -> i32 {
    if durable { libc::RWF_DSYNC } else { 0 }
}

/// Can this file be read without blocking (RWF_NOWAIT)? Files that cannot are served by io_uring's worker threads.
pub(crate) fn supports_nowait(fd: RawFd) -> bool {
    let mut page = AlignedPage([0; 4096]);
    let part = libc::iovec { iov_base: page.0.as_mut_ptr().cast(), iov_len: page.0.len() };
    // SAFETY: one vector that points at `page`.
    let n = unsafe { libc::preadv2(fd, &raw const part, 1, 0, libc::RWF_NOWAIT) };
    n >= 0 || io::Error::last_os_error().raw_os_error() != Some(libc::EOPNOTSUPP)
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
pub(crate) fn file_home(fd: RawFd) -> FileHome {
    const TMPFS: i128 = libc::TMPFS_MAGIC as i128;
    const FUSE: i128 = libc::FUSE_SUPER_MAGIC as i128;
    const NFS: i128 = libc::NFS_SUPER_MAGIC as i128;
    const RAMFS: i128 = 0x8584_58f6;
    const CIFS: i128 = 0xff53_4d42;
    const SMB2: i128 = 0xfe53_4d42;
    const CEPH: i128 = 0x00c3_6400;
    const NINE_P: i128 = 0x0102_1997;
    // SAFETY: statfs is plain data for which all zeroes is valid.
    let mut stat: libc::statfs = unsafe { std::mem::zeroed() };
    // SAFETY: `stat` is a place for the result.
    let r = unsafe { libc::fstatfs(fd, &raw mut stat) };
    // Signed or not, as the C library has it.
    match i128::from(stat.f_type) {
        TMPFS | RAMFS if r == 0 => FileHome::Memory,
        FUSE | NFS | CIFS | SMB2 | CEPH | NINE_P if r == 0 => FileHome::Elsewhere,
        _ => FileHome::Device,
    }
}

/// The file offset alignment that direct I/O needs, in bytes (STATX_DIOALIGN); 512 where the kernel does not tell,
/// `u32::MAX` if the file has no direct I/O.
pub(crate) fn direct_alignment(fd: RawFd) -> u32 {
    // SAFETY: statx is plain data for which all zeroes is valid.
    let mut stat: libc::statx = unsafe { std::mem::zeroed() };
    // SAFETY: the path is an empty C string (the descriptor itself) and `stat` is a place for the result.
    let r = unsafe { libc::statx(fd, c"".as_ptr(), libc::AT_EMPTY_PATH, libc::STATX_DIOALIGN, &raw mut stat) };
    match (r, stat.stx_mask & libc::STATX_DIOALIGN != 0, stat.stx_dio_offset_align) {
        (0, true, 0) => u32::MAX,
        (0, true, align) => align,
        _ => 512,
    }
}

/// A block device's logical block size in bytes.
pub(crate) fn logical_block_size(fd: RawFd) -> io::Result<u32> {
    let mut size = 0i32;
    // SAFETY: BLKSSZGET stores an int.
    check(unsafe { libc::ioctl(fd, libc::BLKSSZGET, &raw mut size) })?;
    Ok(size as u32)
}

/// The length of a file or block device in bytes.
pub(crate) fn end_of(fd: RawFd) -> io::Result<u64> {
    // SAFETY: no memory involved. The file position is used by nobody.
    let end = unsafe { libc::lseek64(fd, 0, libc::SEEK_END) };
    if end < 0 { Err(io::Error::last_os_error()) } else { Ok(end as u64) }
}

#[repr(align(4096))]
struct AlignedPage([u8; 4096]);

pub(crate) fn fdatasync(fd: RawFd) -> i32 {
    // SAFETY: no memory involved.
    negative_errno(i64::from(unsafe { libc::fdatasync(fd) }))
}

pub(crate) fn fallocate(fd: RawFd, mode: i32, offset: u64, len: u64) -> i32 {
    // SAFETY: no memory involved.
    negative_errno(i64::from(unsafe { libc::fallocate64(fd, mode, offset as i64, len as i64) }))
}

/// # Safety
/// `to` must be valid for `len` bytes of writes and not be in use elsewhere.
pub(crate) unsafe fn recv(fd: RawFd, to: *mut u8, len: usize) -> i32 {
    // SAFETY: as for this one.
    unsafe { recv_with(fd, to, len, 0) }
}

/// As [`recv`], but leaves on the socket what it gives.
///
/// # Safety
/// As for [`recv`].
pub(crate) unsafe fn peek(fd: RawFd, to: *mut u8, len: usize) -> i32 {
    // SAFETY: as for this one.
    unsafe { recv_with(fd, to, len, libc::MSG_PEEK) }
}

/// Drops at most `len` bytes that a TCP socket has received: how many, or a negative errno.
pub(crate) fn discard(fd: RawFd, len: usize) -> i32 {
    // SAFETY: with MSG_TRUNC nothing is copied from a TCP socket.
    unsafe { recv_with(fd, std::ptr::null_mut(), len, libc::MSG_TRUNC) }
}

/// # Safety
/// As for [`recv`], unless `flags` say that nothing is written to `to`.
unsafe fn recv_with(fd: RawFd, to: *mut u8, len: usize, flags: libc::c_int) -> i32 {
    // SAFETY: the caller vouches for the memory.
    negative_errno(unsafe { libc::recv(fd, to.cast(), len, libc::MSG_DONTWAIT | flags) } as i64)
}

/// # Safety
/// `header` must point at a valid message header.
pub(crate) unsafe fn sendmsg(fd: RawFd, header: *const libc::msghdr) -> i32 {
    // SAFETY: the caller vouches for the header.
    negative_errno(unsafe { libc::sendmsg(fd, header, libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL) } as i64)
}

/// # Safety
/// `to` must be valid for `len` bytes of writes and not be in use elsewhere.
pub(crate) unsafe fn read(fd: RawFd, to: *mut u8, len: usize) -> i32 {
    // SAFETY: the caller vouches for the memory.
    negative_errno(unsafe { libc::read(fd, to.cast(), len) } as i64)
}

/// # Safety
/// `from` must be valid for `len` bytes of reads.
pub(crate) unsafe fn write(fd: RawFd, from: *const u8, len: usize) -> i32 {
    // SAFETY: the caller vouches for the memory.
    negative_errno(unsafe { libc::write(fd, from.cast(), len) } as i64)
}

/// # Safety
/// `to` must be a valid socket address of `len` bytes.
pub(crate) unsafe fn connect_nonblocking(fd: RawFd, to: *const libc::sockaddr, len: libc::socklen_t) -> i32 {
    set_nonblocking(fd);
    // SAFETY: the caller vouches for the address.
    negative_errno(i64::from(unsafe { libc::connect(fd, to, len) }))
}

/// Negative SO_ERROR, which also clears it.
pub(crate) fn socket_error(fd: RawFd) -> i32 {
    let (mut error, mut len) = (0i32, size_of::<i32>() as libc::socklen_t);
    // SAFETY: `error` is a place of `len` bytes.
    let r = unsafe { libc::getsockopt(fd, libc::SOL_SOCKET, libc::SO_ERROR, (&raw mut error).cast(), &raw mut len) };
    if r < 0 { negative_errno(-1) } else { -error }
}

pub(crate) fn accept_nonblocking(fd: RawFd) -> i32 {
    set_nonblocking(fd);
    // SAFETY: no address is asked for.
    let r = unsafe { libc::accept4(fd, std::ptr::null_mut(), std::ptr::null_mut(), libc::SOCK_CLOEXEC) };
    negative_errno(i64::from(r))
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

/// The kernel's form of an address.
pub(crate) fn sockaddr(address: &SocketAddr) -> (libc::sockaddr_storage, libc::socklen_t) {
    // SAFETY: sockaddr_storage is plain data for which all zeroes is valid.
    let mut storage: libc::sockaddr_storage = unsafe { std::mem::zeroed() };
    let len = match address {
        SocketAddr::V4(a) => {
            let v4 = libc::sockaddr_in {
                sin_family: libc::AF_INET as u16,
                sin_port: a.port().to_be(),
                sin_addr: libc::in_addr { s_addr: u32::from_ne_bytes(a.ip().octets()) },
                sin_zero: [0; 8],
            };
            // SAFETY: sockaddr_storage is large and aligned enough for every address family.
            unsafe { (&raw mut storage).cast::<libc::sockaddr_in>().write(v4) };
            size_of::<libc::sockaddr_in>()
        }
        SocketAddr::V6(a) => {
            let v6 = libc::sockaddr_in6 {
                sin6_family: libc::AF_INET6 as u16,
                sin6_port: a.port().to_be(),
                sin6_flowinfo: a.flowinfo(),
                sin6_addr: libc::in6_addr { s6_addr: a.ip().octets() },
                sin6_scope_id: a.scope_id(),
            };
            // SAFETY: as above.
            unsafe { (&raw mut storage).cast::<libc::sockaddr_in6>().write(v6) };
            size_of::<libc::sockaddr_in6>()
        }
    };
    (storage, len as libc::socklen_t)
}

/// A TCP socket, bound to `local` with SO_REUSEADDR.
pub(crate) fn tcp_socket(local: &SocketAddr, configure: impl FnOnce(RawFd)) -> io::Result<OwnedFd> {
    let socket = unbound_socket(local)?;
    set_option(socket.as_raw_fd(), libc::SOL_SOCKET, libc::SO_REUSEADDR, 1)?;
    bind(&socket, local, configure)?;
    Ok(socket)
}

/// The same, but no other socket has this port, not even one of a connection that is over. Others may have it later.
pub(crate) fn tcp_socket_alone(local: &SocketAddr, configure: impl FnOnce(RawFd)) -> io::Result<OwnedFd> {
    let socket = unbound_socket(local)?;
    bind(&socket, local, configure)?;
    set_option(socket.as_raw_fd(), libc::SOL_SOCKET, libc::SO_REUSEADDR, 1)?;
    Ok(socket)
}

fn unbound_socket(local: &SocketAddr) -> io::Result<OwnedFd> {
    let family = if local.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
    // SAFETY: no memory involved.
    let fd = check(unsafe { libc::socket(family, libc::SOCK_STREAM | libc::SOCK_CLOEXEC, 0) })?;
    // SAFETY: the kernel just made this descriptor for us.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

fn bind(socket: &OwnedFd, local: &SocketAddr, configure: impl FnOnce(RawFd)) -> io::Result<()> {
    configure(socket.as_raw_fd());
    let (address, len) = sockaddr(local);
    // SAFETY: `address` is a valid socket address of `len` bytes.
    check(unsafe { libc::bind(socket.as_raw_fd(), (&raw const address).cast(), len) }).map(drop)
}

pub(crate) fn listen(socket: &OwnedFd, backlog: i32) -> io::Result<()> {
    // SAFETY: no memory involved.
    check(unsafe { libc::listen(socket.as_raw_fd(), backlog) }).map(drop)
}

/// A descriptor of a process that becomes readable when it ends.
pub(crate) fn pidfd(pid: u32) -> io::Result<OwnedFd> {
    // SAFETY: no memory involved.
    let fd = check(unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) } as i32)?;
    // SAFETY: the kernel just made this descriptor for us.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// A descriptor that becomes readable when the process is asked to stop (SIGTERM, SIGINT, SIGHUP), which it then no
/// longer dies of.
pub(crate) fn stop_signals() -> io::Result<OwnedFd> {
    // SAFETY: sigset_t is plain data, initialised by sigemptyset; the mask pointers are valid or null.
    let fd = unsafe {
        let mut set: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&raw mut set);
        for signal in [libc::SIGTERM, libc::SIGINT, libc::SIGHUP] {
            libc::sigaddset(&raw mut set, signal);
        }
        check(libc::sigprocmask(libc::SIG_BLOCK, &raw const set, std::ptr::null_mut()))?;
        check(libc::signalfd(-1, &raw const set, libc::SFD_CLOEXEC))?
    };
    // SAFETY: the kernel just made this descriptor for us.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// A descriptor that is readable after [`ring_event`].
pub(crate) fn event() -> io::Result<OwnedFd> {
    // SAFETY: no memory involved.
    let fd = check(unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) })?;
    // SAFETY: the kernel just made this descriptor for us.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Makes a descriptor of [`event`] readable.
pub(crate) fn ring_event(event: &OwnedFd) {
    let one = 1u64.to_ne_bytes();
    // SAFETY: eight bytes, as the kernel wants.
    unsafe { libc::write(event.as_raw_fd(), one.as_ptr().cast(), one.len()) };
}

/// Makes it unreadable again.
pub(crate) fn take_event(event: &OwnedFd) {
    let mut count = [0u8; 8];
    // SAFETY: eight bytes of room.
    unsafe { libc::read(event.as_raw_fd(), count.as_mut_ptr().cast(), count.len()) };
}

/// Takes one signal off the descriptor of [`stop_signals`], which is readable.
pub(crate) fn take_signal(signals: &OwnedFd) {
    let mut info = [0u8; size_of::<libc::signalfd_siginfo>()];
    // SAFETY: `info` has room for one signal.
    unsafe { libc::read(signals.as_raw_fd(), info.as_mut_ptr().cast(), info.len()) };
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

/// Ends both directions of a socket, so that operations in flight on it complete.
pub(crate) fn shutdown(fd: RawFd) {
    // SAFETY: no memory involved; failure means that it is not connected any more.
    unsafe { libc::shutdown(fd, libc::SHUT_RDWR) };
}

/// Sets an integer socket option.
pub(crate) fn set_option(fd: RawFd, level: i32, name: i32, value: i32) -> io::Result<()> {
    let len = size_of::<i32>() as libc::socklen_t;
    // SAFETY: `value` is a place of `len` bytes.
    check(unsafe { libc::setsockopt(fd, level, name, (&raw const value).cast(), len) }).map(drop)
}

/// Is the socket's other end still there? Data to read counts as alive.
pub(crate) fn is_alive(fd: RawFd) -> bool {
    let mut byte = 0u8;
    // SAFETY: one byte of room.
    let n = unsafe { peek(fd, &raw mut byte, 1) };
    n > 0 || n == -libc::EAGAIN
}

/// Bytes that a socket has received and that nobody has taken.
#[cfg(test)]
pub(crate) fn received_bytes(fd: RawFd) -> i32 {
    let mut n = 0;
    // SAFETY: `n` is the place that the kernel fills.
    assert_eq!(unsafe { libc::ioctl(fd, libc::FIONREAD, &raw mut n) }, 0);
    n
}

/// Reads what is there into `to`; negative errno, EAGAIN if there is nothing and the file does not block.
pub(crate) fn read_into(fd: RawFd, to: &mut [u8]) -> i32 {
    // SAFETY: the slice is valid for its length.
    unsafe { read(fd, to.as_mut_ptr(), to.len()) }
}

pub(crate) fn set_nonblocking(fd: RawFd) {
    // SAFETY: no memory involved; a failure shows in the operation that follows.
    unsafe { libc::fcntl(fd, libc::F_SETFL, libc::fcntl(fd, libc::F_GETFL) | libc::O_NONBLOCK) };
}

fn negative_errno(result: i64) -> i32 {
    if result < 0 { -io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO) } else { result as i32 }
}

fn check(result: i32) -> io::Result<i32> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

/// A directory as a place only (O_PATH): the file system is not asked, so it may be one that this thread serves. The
/// standard library takes that flag away where the C library counts it as a way of access (musl).
pub(crate) fn open_unseen(path: &std::path::Path) -> io::Result<std::fs::File> {
    use std::os::unix::ffi::OsStrExt;
    let path = std::ffi::CString::new(path.as_os_str().as_bytes())?;
    // SAFETY: the path is a valid C string for the length of the call.
    let fd = unsafe { libc::open(path.as_ptr(), libc::O_PATH | libc::O_DIRECTORY | libc::O_CLOEXEC) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor is fresh and nobody else's.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) }.into())
}

/// Makes `file` standard output and standard error.
pub(crate) fn become_output(file: &std::fs::File) -> io::Result<()> {
    for fd in [libc::STDOUT_FILENO, libc::STDERR_FILENO] {
        // SAFETY: both are numbers of descriptors; no memory is involved.
        if unsafe { libc::dup2(file.as_raw_fd(), fd) } < 0 {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(())
}

/// No program that this process starts from now on gets a descriptor that this one was given, but for the standard
/// three. May be called between fork and exec.
///
/// # Errors
/// If the kernel is older than Linux 5.11.
pub fn keep_descriptors_from_children() -> io::Result<()> {
    // SAFETY: three numbers; no memory is involved.
    let done = unsafe { libc::syscall(libc::SYS_close_range, 3, libc::c_uint::MAX, libc::CLOSE_RANGE_CLOEXEC) };
    if done < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// The calling thread has a table of descriptors of its own from now on, with none in it but the standard three and
/// `kept`: the kernel counts each use of a descriptor whose table several threads have, which makes every call on one
/// dearer. For the others all stay open, also `kept`. Before Linux 5.9 they share one table all the same.
pub(crate) fn leave_descriptors(kept: &OwnedFd) {
    let kept = kept.as_raw_fd() as libc::c_uint;
    for (first, last) in [(kept + 1, libc::c_uint::MAX), (3, kept.saturating_sub(1))] {
        // SAFETY: numbers; no memory is involved. Nobody else has what is closed, as the table is its own first.
        unsafe { libc::syscall(libc::SYS_close_range, first, last, libc::CLOSE_RANGE_UNSHARE) };
    }
}

/// The process's effective user and group.
pub(crate) fn user_and_group() -> (u32, u32) {
    // SAFETY: these calls cannot fail and take nothing.
    unsafe { (libc::geteuid(), libc::getegid()) }
}

/// The user at the other end of a Unix socket.
pub(crate) fn peer_user(fd: RawFd) -> io::Result<u32> {
    let mut who = libc::ucred { pid: 0, uid: 0, gid: 0 };
    let mut len = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: SO_PEERCRED stores a ucred of `len` bytes.
    check(unsafe { libc::getsockopt(fd, libc::SOL_SOCKET, libc::SO_PEERCRED, (&raw mut who).cast(), &raw mut len) })?;
    Ok(who.uid)
}

/// The number of a group; `None` if there is none of that name.
pub(crate) fn group_number(name: &str) -> Option<u32> {
    let name = std::ffi::CString::new(name).ok()?;
    let mut group = std::mem::MaybeUninit::<libc::group>::uninit();
    let mut found = std::ptr::null_mut();
    let mut text = vec![0; 65536];
    // SAFETY: all pointers are to live memory of the lengths given; `found` is null or points to `group`.
    let failed =
        unsafe { libc::getgrnam_r(name.as_ptr(), group.as_mut_ptr(), text.as_mut_ptr(), text.len(), &raw mut found) };
    // SAFETY: `found` is not null, so the group was stored.
    (failed == 0 && !found.is_null()).then(|| unsafe { (*found).gr_gid })
}

/// The number of a network interface, by its name or as a number; 0 if there is none.
pub(crate) fn interface_number(name: &str) -> u32 {
    let number = || name.parse().unwrap_or(0);
    // SAFETY: the name is a C string.
    let named = |name: std::ffi::CString| unsafe { libc::if_nametoindex(name.as_ptr()) };
    std::ffi::CString::new(name).map(named).ok().filter(|n| *n > 0).unwrap_or_else(number)
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
