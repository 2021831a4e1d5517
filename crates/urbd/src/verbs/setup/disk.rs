//! Is a disk one that may be given away?

use std::fs::{self, File, OpenOptions};
use std::io::Read;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::Path;

use meta::existing;

use crate::problem::{Problem, exit};

/// # Errors
/// Exit 1: it is not there, no disk, in use, too small, or has data and nobody has said that it is to be kept.
pub(super) fn check(path: &Path, keep_data: bool) -> Result<(), Problem> {
    let name = path.display();
    let is = fs::metadata(path).map_err(|e| {
        Problem::usage(format!("{name}: {e}")).hint("lsblk lists the disks of this host; lvcreate makes one")
    })?;
    let block = is.file_type().is_block_device();
    if !block && !is.is_file() {
        return Err(Problem::usage(format!("{name}: neither a block device nor a file")));
    }
    if block {
        let device = format!("{}:{}", libc::major(is.rdev()), libc::minor(is.rdev()));
        if let Some(place) = mounted_on(&device) {
            return Err(Problem::usage(format!("{name}: is mounted on {place}"))
                .hint(format!("unmount it first: umount {place}; then what mounts it has to use urbd's device")));
        }
        let holders = fs::read_dir(format!("/sys/dev/block/{device}/holders")).into_iter().flatten().flatten();
        if let Some(holder) = holders.map(|h| h.file_name().to_string_lossy().into_owned()).next() {
            return Err(Problem::usage(format!("{name}: is used by {holder} (LVM, MD, or device mapper)")));
        }
    }
    let exclusive = if block { libc::O_EXCL } else { 0 };
    let opened = OpenOptions::new().read(true).write(true).custom_flags(exclusive).open(path);
    let mut file = opened.map_err(|e| match e.raw_os_error() {
        Some(libc::EBUSY) => Problem::usage(format!("{name}: is in use (swap, a partition of it, or another program)")),
        _ => Problem::new(exit::BROKEN, format!("{name}: {e}")),
    })?;
    let head = read_head(&mut file).map_err(|e| Problem::new(exit::BROKEN, format!("{name}: {e}")))?;
    match existing::detect(&head).filter(|_| !keep_data) {
        Some(found) => Err(Problem::usage(format!("{name}: carries {}", found.signature)).hint(format!(
            "data that is to be mirrored as it is: --keep-data (create-md then says whether its metadata fits behind it); \
             data that nobody needs: wipefs -a {name}"
        ))),
        None => Ok(()),
    }
}

fn read_head(file: &mut File) -> std::io::Result<Vec<u8>> {
    let mut head = Vec::new();
    file.take(existing::PROBE_LEN as u64).read_to_end(&mut head)?;
    Ok(head)
}

/// Where a device is mounted.
fn mounted_on(device: &str) -> Option<String> {
    let table = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    table.lines().find_map(|line| {
        let mut fields = line.split(' ');
        let (of, point) = (fields.nth(2)?, fields.nth(1)?);
        (of == device).then(|| point.to_owned())
    })
}
