//! Mounting and unmounting.

use super::host;
use crate::sys::user_and_group;
use rustix::mount::{MountFlags, UnmountFlags};
use std::ffi::CString;
use std::fs::OpenOptions;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// As it appears in `/proc/mounts`.
const FS_TYPE: &str = "fuse.urbd";

/// Mounts a file system on the directory `path` and returns the descriptor to serve it on. The first message on it is
/// `INIT`; whoever looks at the directory waits until that has been answered.
///
/// With the needed rights this is `mount(2)`, otherwise the set-user-id program `fusermount3`. Fails if `path` is not a
/// directory, if there is no `/dev/fuse`, or with what `fusermount3` said.
pub fn mount(path: &Path) -> io::Result<OwnedFd> {
    let path = path.canonicalize()?;
    match mount_directly(&path, MountFlags::NODEV) {
        Err(error) if matches!(error.raw_os_error(), Some(libc::EPERM | libc::EACCES)) => mount_by_helper(&path),
        result => result,
    }
}

/// As [`mount`], with `mount(2)` only, and so that device nodes in it can be opened.
pub fn mount_with_devices(path: &Path) -> io::Result<OwnedFd> {
    mount_directly(&path.canonicalize()?, MountFlags::empty())
}

/// Takes the file system away from `path`, at once even when files on it are open. Unmounting what is not mounted is an
/// error (`EINVAL`).
pub fn unmount(path: &Path) -> io::Result<()> {
    let flags = UnmountFlags::DETACH | UnmountFlags::NOFOLLOW;
    let result = || Ok(rustix::mount::unmount(path, flags)?);
    let Err(error) = host::within(result) else { return Ok(()) };
    if error.raw_os_error() != Some(libc::EPERM) {
        return Err(error);
    }
    let output = Command::new("fusermount3").args(["-u", "-z", "--"]).arg(path).stdin(Stdio::null()).output()?;
    if output.status.success() { Ok(()) } else { Err(refused("fusermount3 -u", &output.stderr)) }
}

/// Whether a file system of ours is mounted on `path`, alive or left over from a process that was killed. Does not
/// touch the file system.
pub fn is_mounted(path: &Path) -> io::Result<bool> {
    // Not `canonicalize`: that would ask the file system, and a dead one answers with an error.
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let path = parent.canonicalize()?.join(path.file_name().unwrap_or_default());
    let table = std::fs::read_to_string("/proc/self/mountinfo")?;
    Ok(table.lines().filter_map(mount_point).any(|point| point == path))
}

/// The mount point of a line of `mountinfo`, if it is one of ours.
fn mount_point(line: &str) -> Option<PathBuf> {
    let (left, right) = line.split_once(" - ")?;
    if right.split(' ').next() != Some(FS_TYPE) {
        return None;
    }
    let escaped = left.split(' ').nth(4)?;
    let mut bytes = Vec::new();
    let mut rest = escaped.as_bytes();
    while let [first, behind @ ..] = rest {
        let octal = behind.get(..3).and_then(|digits| std::str::from_utf8(digits).ok());
        match octal.and_then(|digits| u8::from_str_radix(digits, 8).ok()).filter(|_| *first == b'\\') {
            Some(byte) => {
                bytes.push(byte);
                rest = &behind[3..];
            }
            None => {
                bytes.push(*first);
                rest = behind;
            }
        }
    }
    Some(PathBuf::from(std::ffi::OsString::from(std::ffi::OsStr::from_bytes(&bytes))))
}

/// `and`: flags of the mount, besides that set-user-id programs have no effect there.
fn mount_directly(path: &Path, and: MountFlags) -> io::Result<OwnedFd> {
    let device = OpenOptions::new().read(true).write(true).custom_flags(libc::O_CLOEXEC).open("/dev/fuse")?;
    let (fd, (uid, gid)) = (device.as_raw_fd(), user_and_group());
    let options = format!("fd={fd},rootmode=40000,user_id={uid},group_id={gid},allow_other,default_permissions");
    let options = CString::new(options)?;
    let flags = MountFlags::NOSUID | and;
    host::within(|| Ok(rustix::mount::mount("urbd", path, FS_TYPE, flags, options.as_c_str())?))?;
    Ok(device.into())
}

fn mount_by_helper(path: &Path) -> io::Result<OwnedFd> {
    let (ours, theirs) = UnixStream::pair()?;
    let output = Command::new("fusermount3")
        .args(["-o", "fsname=urbd,subtype=urbd,default_permissions", "--"])
        .arg(path)
        // Its end of the socket is its standard input.
        .env("_FUSE_COMMFD", "0")
        .stdin(OwnedFd::from(theirs))
        .output()
        .map_err(|error| io::Error::new(error.kind(), format!("cannot run fusermount3 (package fuse3): {error}")))?;
    if !output.status.success() {
        return Err(refused("fusermount3", &output.stderr));
    }
    receive_descriptor(&ours)
}

fn refused(who: &str, stderr: &[u8]) -> io::Error {
    io::Error::new(io::ErrorKind::PermissionDenied, format!("{who}: {}", String::from_utf8_lossy(stderr).trim()))
}

/// Receives one descriptor that was sent with `SCM_RIGHTS`.
fn receive_descriptor(socket: &UnixStream) -> io::Result<OwnedFd> {
    let (_, descriptor) = crate::sys::receive(socket, &mut [0])?;
    descriptor.ok_or_else(|| io::Error::other("fusermount3 did not hand over a descriptor"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn our_mount_points_are_recognised() {
        let line = |kind: &str| format!("36 35 98:0 / /mnt/a\\040b rw,noatime shared:1 - {kind} urbd rw");
        assert_eq!(mount_point(&line("fuse.urbd")), Some(PathBuf::from("/mnt/a b")));
        assert_eq!(mount_point(&line("ext4")), None);
        assert_eq!(mount_point("nonsense"), None);
        assert!(!is_mounted(Path::new("/")).unwrap());
    }

    #[test]
    fn a_closed_socket_has_no_descriptor() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        drop(theirs);
        assert!(receive_descriptor(&ours).is_err());
    }

    #[test]
    fn the_helper_mounts_and_unmounts() {
        const INIT: u32 = 26;
        let usable = OpenOptions::new().read(true).write(true).open("/dev/fuse").is_ok();
        let installed = Command::new("fusermount3").arg("--version").output().is_ok();
        if !usable {
            return println!("skipped: fuse: needs a /dev/fuse that we may open");
        }
        if !installed {
            return println!("skipped: fusermount3 is not installed");
        }
        let directory = tempfile::tempdir().unwrap();
        let mut device = std::fs::File::from(mount_by_helper(directory.path()).unwrap());
        assert!(is_mounted(directory.path()).unwrap());
        let mut message = vec![0; crate::fuse::MESSAGE_MAX];
        let n = std::io::Read::read(&mut device, &mut message).unwrap();
        unmount(directory.path()).unwrap();
        assert!(n > 40 && message[4..8] == INIT.to_ne_bytes());
        assert!(!is_mounted(directory.path()).unwrap());
        let gone = mount_by_helper(&directory.path().join("nowhere")).unwrap_err();
        assert!(gone.to_string().starts_with("fusermount3: "), "{gone}");
    }
}
