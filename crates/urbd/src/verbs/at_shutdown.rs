//! What the service unit does for file systems on its devices when the machine goes down.
//!
//! A mount that nobody has declared to need the network is unmounted when the network, and with it this service, has
//! already stopped. So the service unmounts it first, as blkdeactivate(8) does for what is on LVM.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use crate::context::Context;

/// Services that use a file system are stopped at the same time; so long they may take. The unit's limit is longer.
const PATIENCE: Duration = Duration::from_secs(60);
const PAUSE: Duration = Duration::from_millis(200);

/// Unmounts what is mounted from the devices of `resource`, if this machine is going down. What stays in use keeps the
/// resource from being stopped, which then is said.
pub(super) fn unmount(context: &Context, resource: &str) {
    let state = Command::new("systemctl").arg("is-system-running").stdin(Stdio::null()).output();
    if !state.is_ok_and(|output| output.stdout.starts_with(b"stopping")) {
        return;
    }
    let devices = devices(context, resource);
    let deadline = Instant::now() + PATIENCE;
    loop {
        let table = fs::read_to_string("/proc/1/mountinfo").unwrap_or_default();
        let mounted = mount_points(&table, &devices);
        // What was mounted last may stand on another.
        for point in mounted.iter().rev() {
            eprintln!("urbd: {resource}: the machine goes down: unmounting {point}");
            // Not where this service mounts, but where everybody does.
            let _ = Command::new("nsenter")
                .args(["--target=1", "--mount", "--", "umount", "--", point])
                .stdin(Stdio::null())
                .status();
        }
        if mounted.is_empty() || Instant::now() > deadline {
            return;
        }
        thread::sleep(PAUSE);
    }
}

/// Major and minor numbers of its devices, as mountinfo writes them.
fn devices(context: &Context, resource: &str) -> BTreeSet<String> {
    let status = context.client(resource).ok().and_then(|mut client| client.status().ok());
    let paths = status.iter().flat_map(|status| &status.devices).filter_map(|device| device.device_path.as_ref());
    let blocks = paths.filter_map(|path| fs::metadata(path).ok()).filter(|is| is.file_type().is_block_device());
    blocks.map(|is| format!("{}:{}", libc::major(is.rdev()), libc::minor(is.rdev()))).collect()
}

/// Where they are mounted, in the order in which that was done.
fn mount_points(table: &str, devices: &BTreeSet<String>) -> Vec<String> {
    let of_line = |line: &str| {
        let mut fields = line.split(' ');
        let (device, point) = (fields.nth(2)?, fields.nth(1)?);
        devices.contains(device).then(|| point.replace("\\040", " ").replace("\\134", "\\"))
    };
    table.lines().filter_map(of_line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mounts_of_a_device() {
        let table = "36 25 7:1 / /data rw - ext4 /dev/loop1 rw\n37 25 7:2 / /other rw - ext4 /dev/loop2 rw\n\
                     38 36 7:1 /sub /data/a\\040b rw - ext4 /dev/loop1 rw\n";
        assert_eq!(mount_points(table, &BTreeSet::from(["7:1".to_owned()])), ["/data", "/data/a b"]);
    }
}
