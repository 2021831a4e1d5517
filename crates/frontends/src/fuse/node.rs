//! A node for a block device where there is none: the one file of a file system of ours that is mounted nowhere.
//!
//! Nobody else finds it, and nothing is left of it however this process ends. It takes the rights that this process
//! has in any case, to mount and to open the device: `mknod` takes another one, which containers often do not give, and
//! a directory that is not mounted `nodev`, as `/run` often is.

use super::abi::{Attr, Body, Message, OUT_HEADER, ROOT, opcode, out_header};
use super::{MESSAGE_MAX, Session, write_message};
use crate::sys;
use std::ffi::CString;
use std::fs::{File, OpenOptions};
use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::OpenOptionsExt;
use std::time::Duration;

/// How soon it is seen that the device is open: nothing says so.
const SOON: Duration = Duration::from_millis(5);
/// Its attributes are never asked for again: nobody answers when it is open.
const FOR_EVER: u64 = u32::MAX as u64;

/// Opens the device.
///
/// # Errors
/// If it may not be opened, or nothing may be mounted.
pub(crate) fn open(device: (u32, u32), flags: libc::c_int) -> io::Result<File> {
    let connection = OpenOptions::new().read(true).write(true).custom_flags(libc::O_NONBLOCK).open("/dev/fuse")?;
    let owner = sys::user_and_group();
    let options = [
        (c"source", "urbd".to_owned()),
        (c"fd", connection.as_raw_fd().to_string()),
        (c"rootmode", "40000".to_owned()),
        (c"user_id", owner.0.to_string()),
        (c"group_id", owner.1.to_string()),
    ];
    let root =
        sys::mount_nowhere(c"fuse", options.map(|(name, value)| (name, CString::new(value).unwrap_or_default())))?;
    // It waits for the answers that are given here.
    let opening = std::thread::Builder::new().name("urbd-node".into()).stack_size(128 << 10);
    let opening = opening.spawn(move || {
        let node = sys::open_in(root.as_fd(), c"device", flags)?;
        // What this kernel asks besides is asked now, and not again.
        node.metadata().map(|_| node)
    })?;
    let mut session = Session::new(Vec::new(), owner);
    let (mut message, mut out) = (vec![0; MESSAGE_MAX], Vec::new());
    while !opening.is_finished() {
        sys::wait_for(&connection, SOON);
        let n = sys::read_parts(&connection, &mut [IoSliceMut::new(&mut message)]);
        let Some(message) = message.get(..usize::try_from(n).unwrap_or_default()).filter(|part| !part.is_empty())
        else {
            continue;
        };
        out.clear();
        match Message::parse(message) {
            Some(asked) if asked.opcode == opcode::LOOKUP || asked.opcode == opcode::GETATTR && asked.node != ROOT => {
                show(device, owner, &asked, &mut out);
            }
            _ => _ = session.parse(message, &mut out),
        }
        if !out.is_empty() {
            write_message(&connection, &[IoSlice::new(&out)]);
        }
    }
    opening.join().unwrap_or_else(|_| Err(io::Error::other("the thread that opens it has ended")))
}

/// Whatever the name: it is the device.
fn show((major, minor): (u32, u32), owner: (u32, u32), asked: &Message<'_>, out: &mut Vec<u8>) {
    out.extend_from_slice(&[0; OUT_HEADER]);
    let mut body = Body(out);
    let device = minor & 0xff | major << 8 | (minor & !0xff) << 12;
    let attr = Attr { node: ROOT + 1, size: 0, mode: libc::S_IFBLK | 0o600, links: 1, owner, block: 4096, device };
    match asked.opcode {
        opcode::LOOKUP => _ = body.u64(&[attr.node, 0, FOR_EVER, FOR_EVER]).u32(&[0, 0]),
        _ => _ = body.u64(&[FOR_EVER]).u32(&[0, 0]),
    }
    attr.emit(&mut body);
    let header = out_header(out.len() as u32, None, asked.unique);
    out[..OUT_HEADER].copy_from_slice(&header);
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{FileTypeExt, MetadataExt};

    #[test]
    fn it_is_the_device() {
        // To name it, which needs no such device.
        match open((7, 999_998), libc::O_PATH) {
            Ok(node) => {
                let found = node.metadata().unwrap();
                assert!(found.file_type().is_block_device());
                assert_eq!(found.rdev(), libc::makedev(7, 999_998));
                assert_eq!((found.mode() & 0o777, found.uid()), (0o600, sys::user_and_group().0));
            }
            // Who may not mount.
            Err(e) => assert!(sys::user_and_group().0 != 0, "{e}"),
        }
    }

    #[test]
    fn who_opens_what_is_not_there_is_told_so() {
        // A number that no driver has.
        let error = open((4000, 7), libc::O_RDWR).map(drop).unwrap_err();
        let wanted = [libc::ENXIO, libc::ENODEV];
        let told = error.raw_os_error().is_some_and(|errno| wanted.contains(&errno));
        assert!(told || sys::user_and_group().0 != 0, "{error}");
    }
}
