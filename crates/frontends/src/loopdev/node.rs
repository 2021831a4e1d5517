//! The device node that a loop device is opened by: the one in `/dev`, or, where there is none, one of our own.
//!
//! A container's `/dev` is often no devtmpfs: it has the nodes that somebody made there, and the kernel may choose a
//! device that came later.

use super::LoopDevice;
use crate::fuse;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;

/// Opens the device, to write as well if `write`; with these flags besides.
///
/// # Errors
/// If there is none, or it may not be opened.
pub(super) fn open(device: LoopDevice, write: bool, flags: libc::c_int) -> io::Result<File> {
    let path = device.path();
    match OpenOptions::new().read(true).write(write).custom_flags(flags).open(&path) {
        Err(none) if none.kind() == io::ErrorKind::NotFound && device.exists() => {
            let access = if write { libc::O_RDWR } else { libc::O_RDONLY };
            fuse::open_device(device.device_number(), access | flags).map_err(|why| {
                let ((major, minor), path) = (device.device_number(), path.display());
                let next = format!("make it: mknod {path} b {major} {minor}");
                io::Error::new(
                    why.kind(),
                    format!("{path} is not there, and a node of our own cannot be made ({why}); {next}"),
                )
            })
        }
        result => {
            result.map_err(|error| io::Error::new(error.kind(), format!("cannot open {}: {error}", path.display())))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_that_is_not_there_is_not_made() {
        let nowhere = LoopDevice { number: 999_999 };
        assert_eq!(open(nowhere, false, 0).unwrap_err().kind(), io::ErrorKind::NotFound);
    }
}
