//! The system calls of a [`keeper`](crate::keeper) and its clients, of [`users`](crate::users) and of
//! [`loopdev`](crate::loopdev): passing open descriptors to another process (`SCM_RIGHTS`), waiting, starting a process
//! that is nobody's child, looking at a file without asking its server, mounting nowhere, and a thread's own table of
//! descriptors.
#![allow(unsafe_code)]

use std::ffi::{CStr, CString};
use std::fs::File;
use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, StatxFlags};
use rustix::io::{DupFlags, Errno};
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags};
use rustix::net::{RecvAncillaryMessage, RecvFlags, SendAncillaryMessage, SendFlags};
use rustix::thread::UnshareFlags;

/// Sends `bytes` (at least one) as one piece, with a descriptor if there is one.
pub(crate) fn send(socket: &UnixStream, bytes: &[u8], descriptor: Option<BorrowedFd<'_>>) -> io::Result<()> {
    let mut room = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = rustix::net::SendAncillaryBuffer::new(&mut room);
    let descriptors = descriptor.as_slice();
    if !descriptors.is_empty() {
        control.push(SendAncillaryMessage::ScmRights(descriptors));
    }
    let sent = rustix::net::sendmsg(socket, &[IoSlice::new(bytes)], &mut control, SendFlags::NOSIGNAL)?;
    match sent < bytes.len() {
        true => Err(io::Error::new(io::ErrorKind::WriteZero, "a message was sent in part")),
        false => Ok(()),
    }
}

/// Receives at most `into.len()` bytes, and the descriptor that came with them. 0 bytes: the other end is gone.
pub(crate) fn receive(socket: &UnixStream, into: &mut [u8]) -> io::Result<(usize, Option<OwnedFd>)> {
    let mut room = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = rustix::net::RecvAncillaryBuffer::new(&mut room);
    let mut parts = [IoSliceMut::new(into)];
    let received = rustix::net::recvmsg(socket, &mut parts, &mut control, RecvFlags::CMSG_CLOEXEC)?;
    let descriptor = control.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut descriptors) => descriptors.next(),
        _ => None,
    });
    Ok((received.bytes, descriptor))
}

/// Makes the other end readable. It is so already if there is no room for another byte.
pub(crate) fn wake(socket: &UnixStream) {
    let _ = rustix::net::send(socket, &[0], SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
}

/// Takes what [`wake`] has sent. False: the other end is gone.
pub(crate) fn is_woken(socket: BorrowedFd<'_>) -> bool {
    let mut bytes = [0u8; 256];
    loop {
        match rustix::net::recv(socket, &mut bytes[..], RecvFlags::DONTWAIT) {
            Ok((0, _)) => return false,
            Ok(_) => {}
            Err(e) => return matches!(e, Errno::AGAIN | Errno::INTR),
        }
    }
}

/// Makes `onto` the same open file as `from`.
pub(crate) fn duplicate_onto(from: BorrowedFd<'_>, mut onto: OwnedFd) -> io::Result<OwnedFd> {
    rustix::io::dup3(from, &mut onto, DupFlags::CLOEXEC)?;
    Ok(onto)
}

/// What block device a path leads to, without asking anybody but the kernel.
pub(crate) fn device_of(path: &Path) -> Option<(u32, u32)> {
    let flags = AtFlags::STATX_DONT_SYNC | AtFlags::NO_AUTOMOUNT;
    let found = rustix::fs::statx(CWD, path, flags, StatxFlags::TYPE).ok()?;
    let is_block = FileType::from_raw_mode(found.stx_mode.into()).is_block_device();
    is_block.then_some((found.stx_rdev_major, found.stx_rdev_minor))
}

/// A file system that is mounted nowhere: its root directory.
pub(crate) fn mount_nowhere<const N: usize>(kind: &CStr, options: [(&CStr, CString); N]) -> io::Result<OwnedFd> {
    let context = rustix::mount::fsopen(kind, FsOpenFlags::FSOPEN_CLOEXEC)?;
    for (name, value) in &options {
        rustix::mount::fsconfig_set_string(context.as_fd(), *name, value)?;
    }
    rustix::mount::fsconfig_create(context.as_fd())?;
    let attributes = MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NOEXEC;
    Ok(rustix::mount::fsmount(context.as_fd(), FsMountFlags::FSMOUNT_CLOEXEC, attributes)?)
}

/// Opens what has this name in a directory, and is no link.
pub(crate) fn open_in(directory: BorrowedFd<'_>, name: &CStr, flags: libc::c_int) -> io::Result<File> {
    let flags = OFlags::from_bits_retain(flags as u32) | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    Ok(rustix::fs::openat(directory, name, flags, Mode::empty())?.into())
}

/// Whose this process is.
pub fn user_and_group() -> (u32, u32) {
    (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw())
}

/// Is there something to read, to accept, or the end? Waits for it.
pub(crate) fn wait_for(fd: impl AsFd, at_most: Duration) -> bool {
    poll(&mut [PollFd::new(&fd, PollFlags::IN)], at_most) > 0
}

/// The most descriptors that can be waited for at once.
const MANY: usize = 16;

/// Waits until one of these can be read, or is at its end. Is it the first one, too?
pub(crate) fn wait_for_any<'a>(
    first: BorrowedFd<'a>,
    others: impl Iterator<Item = BorrowedFd<'a>>,
    at_most: Duration,
) -> bool {
    let mut polled: [PollFd<'a>; MANY] = std::array::from_fn(|_| PollFd::from_borrowed_fd(first, PollFlags::IN));
    let mut n = 1;
    for (poll, fd) in polled[1..].iter_mut().zip(others) {
        *poll = PollFd::from_borrowed_fd(fd, PollFlags::IN);
        n += 1;
    }
    poll(&mut polled[..n], at_most);
    !polled[0].revents().is_empty()
}

/// How many of these are ready; none if a signal came.
fn poll(polled: &mut [PollFd<'_>], at_most: Duration) -> usize {
    let at_most = Timespec::try_from(at_most).ok();
    rustix::event::poll(polled, at_most.as_ref()).unwrap_or(0)
}

/// Reads into one slice after the other: the number of bytes, or a negative errno.
pub fn read_parts(fd: impl AsFd, to: &mut [IoSliceMut<'_>]) -> i32 {
    bytes_or_errno(rustix::io::readv(fd, to))
}

/// Writes all slices with one call, as one message: the number of bytes, or a negative errno.
pub fn write_message(fd: impl AsFd, parts: &[IoSlice<'_>]) -> i32 {
    bytes_or_errno(rustix::io::writev(fd, parts))
}

/// The kernel's way to say how a call went: a number of bytes, or a negative errno.
pub fn bytes_or_errno(result: rustix::io::Result<usize>) -> i32 {
    result.map_or_else(|e| -e.raw_os_error(), |n| n as i32)
}

/// The beginning of a file of `/proc`, in `into`. Nothing is allocated.
pub(crate) fn read_proc<'a>(task: u32, name: &str, into: &'a mut [u8]) -> io::Result<&'a str> {
    let mut path = [0; 64];
    write!(&mut path[..63], "/proc/{task}/{name}")?;
    let path = CStr::from_bytes_until_nul(&path).unwrap_or_default();
    let file = File::from(rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?);
    let n = (&file).read(into)?;
    // What is cut in the middle of a character ends before it.
    let valid = into[..n].utf8_chunks().next().map_or(0, |chunk| chunk.valid().len());
    Ok(std::str::from_utf8(&into[..valid]).unwrap_or_default())
}

/// Makes the process that `command` starts nobody's child and the leader of its own session.
pub(crate) fn orphan(command: &mut Command) {
    let leave = || {
        rustix::process::setsid()?;
        // SAFETY: neither call touches memory; both may be made between fork and exec. The first child ends at once.
        unsafe {
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

/// The calling thread has a table of descriptors of its own from now on. What this process opens is in the table of the
/// thread that opens it.
pub(crate) fn own_descriptors() -> io::Result<()> {
    unshare(UnshareFlags::FILES)
}

/// The calling thread has a root and a working directory of its own from now on.
pub(crate) fn own_directories() -> io::Result<()> {
    unshare(UnshareFlags::FS)
}

/// The calling thread, and those that it starts, have a mount namespace of their own from now on.
///
/// # Errors
/// If that is not allowed.
pub fn own_mounts() -> io::Result<()> {
    unshare(UnshareFlags::NEWNS)
}

fn unshare(what: UnshareFlags) -> io::Result<()> {
    // SAFETY: who has a table of his own uses what it had before by number, and gives nothing of it to other threads.
    Ok(unsafe { rustix::thread::unshare_unsafe(what) }?)
}

/// Closes every descriptor of this thread's own table but the standard ones and `open`.
pub(crate) fn close_all_but(open: &[RawFd]) -> io::Result<()> {
    let mut open: Vec<libc::c_uint> = open.iter().map(|fd| *fd as libc::c_uint).collect();
    open.sort_unstable();
    let mut first = 3;
    for kept in open.into_iter().filter(|kept| *kept >= 3).map(Some).chain([None]) {
        let last = kept.map_or(libc::c_uint::MAX, |kept| kept - 1);
        if first <= last {
            close_range(first, last, 0)?;
        }
        first = kept.map_or(first, |kept| first.max(kept + 1));
    }
    Ok(())
}

/// No program that this process starts from now on gets a descriptor that this one was given, but for the standard
/// three. May be called between fork and exec.
///
/// # Errors
/// If the kernel is older than Linux 5.11.
pub fn keep_descriptors_from_children() -> io::Result<()> {
    close_range(3, libc::c_uint::MAX, libc::CLOSE_RANGE_CLOEXEC)
}

/// The calling thread has a table of descriptors of its own from now on, with none in it but the standard three and
/// `kept`: the kernel counts each use of a descriptor whose table several threads have, which makes every call on one
/// dearer. For the others all stay open, also `kept`. Before Linux 5.9 they share one table all the same.
pub fn leave_descriptors(kept: &OwnedFd) {
    let kept = kept.as_raw_fd() as libc::c_uint;
    for (first, last) in [(kept + 1, libc::c_uint::MAX), (3, kept.saturating_sub(1))] {
        let _ = close_range(first, last, libc::CLOSE_RANGE_UNSHARE);
    }
}

/// rustix does not have this one.
fn close_range(first: libc::c_uint, last: libc::c_uint, flags: libc::c_uint) -> io::Result<()> {
    // SAFETY: three numbers. What is closed is in a table of this thread's own, which owns nothing of it; or it is
    // closed by exec only.
    let done = unsafe { libc::syscall(libc::SYS_close_range, first, last, flags) };
    if done < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Seek;

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
