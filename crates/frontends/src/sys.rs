//! The system calls of a [`keeper`](crate::keeper) and its clients, and of [`users`](crate::users), that have no safe
//! wrapper: passing open descriptors to another process (`SCM_RIGHTS`), waiting, starting a process that is nobody's
//! child, and looking at a file without asking its server.
#![allow(unsafe_code)]

use std::ffi::CString;
use std::fs::File;
use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

/// Room for the control message of one descriptor, aligned as `cmsghdr` wants it.
type Control = [u64; 8];

/// Sends `bytes` (at least one) as one piece, with a descriptor if there is one.
pub(crate) fn send(socket: &UnixStream, bytes: &[u8], descriptor: Option<BorrowedFd<'_>>) -> io::Result<()> {
    let mut part = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
    let mut control: Control = [0; 8];
    // SAFETY: a `msghdr` of zeroes is a valid empty one.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = &raw mut part;
    message.msg_iovlen = 1;
    if let Some(descriptor) = descriptor {
        let len = size_of::<libc::c_int>() as u32;
        message.msg_control = control.as_mut_ptr().cast();
        // SAFETY: these only compute.
        let (space, header_len) = unsafe { (libc::CMSG_SPACE(len), libc::CMSG_LEN(len)) };
        message.msg_controllen = space as _;
        // SAFETY: `message` points to `control`, which has room for one header and a descriptor.
        unsafe {
            let header = libc::CMSG_FIRSTHDR(&raw const message);
            (*header).cmsg_level = libc::SOL_SOCKET;
            (*header).cmsg_type = libc::SCM_RIGHTS;
            (*header).cmsg_len = header_len as _;
            libc::CMSG_DATA(header).cast::<libc::c_int>().write_unaligned(descriptor.as_raw_fd());
        }
    }
    // SAFETY: `message` points to `part` and `control`, which live to the end of this function; nothing is written.
    let n = unsafe { libc::sendmsg(socket.as_raw_fd(), &raw const message, libc::MSG_NOSIGNAL) };
    match usize::try_from(n) {
        Err(_) => Err(io::Error::last_os_error()),
        Ok(n) if n < bytes.len() => Err(io::Error::new(io::ErrorKind::WriteZero, "a message was sent in part")),
        Ok(_) => Ok(()),
    }
}

/// Receives at most `into.len()` bytes, and the descriptor that came with them. 0 bytes: the other end is gone.
pub(crate) fn receive(socket: &UnixStream, into: &mut [u8]) -> io::Result<(usize, Option<OwnedFd>)> {
    let mut part = libc::iovec { iov_base: into.as_mut_ptr().cast(), iov_len: into.len() };
    let mut control: Control = [0; 8];
    // SAFETY: a `msghdr` of zeroes is a valid empty one.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = &raw mut part;
    message.msg_iovlen = 1;
    message.msg_control = control.as_mut_ptr().cast();
    // SAFETY: this only computes.
    message.msg_controllen = unsafe { libc::CMSG_SPACE(size_of::<libc::c_int>() as u32) } as _;
    // SAFETY: `message` points to `part` and `control`, which live to the end of this function.
    let n = unsafe { libc::recvmsg(socket.as_raw_fd(), &raw mut message, libc::MSG_CMSG_CLOEXEC) };
    let n = usize::try_from(n).map_err(|_| io::Error::last_os_error())?;
    // SAFETY: `recvmsg` has filled `message`; CMSG_FIRSTHDR answers null or a header inside `control`.
    let header = unsafe { libc::CMSG_FIRSTHDR(&raw const message).as_ref() };
    let header = header.filter(|header| {
        // SAFETY: CMSG_LEN only computes.
        let needed = unsafe { libc::CMSG_LEN(size_of::<libc::c_int>() as u32) } as _;
        header.cmsg_level == libc::SOL_SOCKET && header.cmsg_type == libc::SCM_RIGHTS && header.cmsg_len >= needed
    });
    let descriptor = header.map(|header| {
        // SAFETY: the header is inside `control` and its length covers one descriptor, which is now ours alone.
        unsafe { OwnedFd::from_raw_fd(libc::CMSG_DATA(header).cast::<libc::c_int>().read_unaligned()) }
    });
    Ok((n, descriptor))
}

/// Makes `onto` the same open file as `from`.
pub(crate) fn duplicate_onto(from: BorrowedFd<'_>, onto: OwnedFd) -> io::Result<OwnedFd> {
    // SAFETY: both are open; what `onto` was is closed, and nobody else knows its number.
    let n = unsafe { libc::dup3(from.as_raw_fd(), onto.as_raw_fd(), libc::O_CLOEXEC) };
    if n < 0 { Err(io::Error::last_os_error()) } else { Ok(onto) }
}

/// What block device a path leads to, without asking anybody but the kernel.
pub(crate) fn device_of(path: &Path) -> Option<(u32, u32)> {
    let name = CString::new(path.as_os_str().as_bytes()).ok()?;
    // SAFETY: a `statx` of zeroes is a valid one.
    let mut found: libc::statx = unsafe { std::mem::zeroed() };
    let flags = libc::AT_STATX_DONT_SYNC | libc::AT_NO_AUTOMOUNT;
    // SAFETY: `name` is a C string and `found` a `statx`, both for the length of the call.
    let result = unsafe { libc::statx(libc::AT_FDCWD, name.as_ptr(), flags, libc::STATX_TYPE, &raw mut found) };
    let block = u32::from(found.stx_mode) & libc::S_IFMT == libc::S_IFBLK;
    (result == 0 && block).then_some((found.stx_rdev_major, found.stx_rdev_minor))
}

/// Is there something to read, to accept, or the end? Waits for it.
pub(crate) fn wait_for(fd: RawFd, at_most: Duration) -> bool {
    let mut poll = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
    // SAFETY: one entry, which lives through the call.
    let n = unsafe { libc::poll(&raw mut poll, 1, at_most.as_millis() as libc::c_int) };
    n > 0
}

/// The most descriptors that can be waited for at once.
const MANY: usize = 16;

/// Waits until one of these (a negative one is none) can be read, or is at its end. Is it the first one, too?
pub(crate) fn wait_for_any(fds: &[RawFd], at_most: Duration) -> bool {
    let mut polled = [libc::pollfd { fd: -1, events: libc::POLLIN, revents: 0 }; MANY];
    for (poll, fd) in polled.iter_mut().zip(fds) {
        poll.fd = *fd;
    }
    // SAFETY: so many entries, which live through the call.
    unsafe { libc::poll(polled.as_mut_ptr(), MANY as libc::nfds_t, at_most.as_millis() as libc::c_int) };
    polled[0].revents != 0
}

/// Reads into one slice after the other: the number of bytes, or a negative errno.
pub fn read_parts(fd: RawFd, to: &mut [IoSliceMut<'_>]) -> i32 {
    // SAFETY: IoSliceMut is guaranteed to have the layout of iovec, and borrows what it points at.
    negative_errno(unsafe { libc::readv(fd, to.as_mut_ptr().cast(), to.len() as i32) })
}

/// Writes all slices with one call, as one message: the number of bytes, or a negative errno.
pub fn write_message(fd: RawFd, parts: &[IoSlice<'_>]) -> i32 {
    // SAFETY: IoSlice is guaranteed to have the layout of iovec, and borrows what it points at.
    negative_errno(unsafe { libc::writev(fd, parts.as_ptr().cast(), parts.len() as i32) })
}

fn negative_errno(result: isize) -> i32 {
    if result < 0 { -io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO) } else { result as i32 }
}

/// The beginning of a file of `/proc`, in `into`. Nothing is allocated.
pub(crate) fn read_proc<'a>(task: u32, name: &str, into: &'a mut [u8]) -> io::Result<&'a str> {
    let mut path = [0; 64];
    write!(&mut path[..63], "/proc/{task}/{name}")?;
    // SAFETY: a C string, as the last byte is never written; the descriptor is ours alone.
    let file = unsafe {
        let fd = libc::open(path.as_ptr().cast(), libc::O_RDONLY | libc::O_CLOEXEC);
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        File::from_raw_fd(fd)
    };
    let n = (&file).read(into)?;
    // What is cut in the middle of a character ends before it.
    let valid = into[..n].utf8_chunks().next().map_or(0, |chunk| chunk.valid().len());
    Ok(std::str::from_utf8(&into[..valid]).unwrap_or_default())
}

/// Makes the process that `command` starts nobody's child and the leader of its own session.
pub(crate) fn orphan(command: &mut Command) {
    let leave = || {
        // SAFETY: neither call touches memory; both may be made between fork and exec. The first child ends at once.
        unsafe {
            if libc::setsid() < 0 {
                return Err(io::Error::last_os_error());
            }
            match libc::fork() {
                -1 => Err(io::Error::last_os_error()),
                0 => Ok(()),
                _ => libc::_exit(0),
            }
        }
    };
    // SAFETY: the closure allocates nothing and takes no lock, as is required between fork and exec.
    unsafe { command.pre_exec(leave) };
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Seek;
    use std::os::fd::AsFd;

    #[test]
    fn a_descriptor_is_the_same_open_file_on_the_other_side() {
        let (a, b) = UnixStream::pair().unwrap();
        let mut file = tempfile::tempfile().unwrap();
        send(&a, b"one", Some(file.as_fd())).unwrap();
        send(&a, b"two", None).unwrap();
        let mut bytes = [0; 3];
        let (n, received) = receive(&b, &mut bytes).unwrap();
        assert_eq!((n, &bytes), (3, b"one"));
        let mut other = File::from(received.unwrap());
        other.write_all(b"hello").unwrap();
        assert_eq!(file.stream_position().unwrap(), 5, "one position for both");
        file.rewind().unwrap();
        let mut text = String::new();
        other.read_to_string(&mut text).unwrap();
        assert_eq!(text, "hello");
        assert!(matches!(receive(&b, &mut bytes), Ok((3, None))));
        drop(a);
        assert!(matches!(receive(&b, &mut bytes), Ok((0, None))));
    }
}
