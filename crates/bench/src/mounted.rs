//! ext4 on a block device, made anew for each run: the same file lies in the same place each time, whatever was there.

use crate::error::{Error, Result};
use crate::file::FileTarget;
use crate::process::{find_program, output};
use crate::target::Target;
use crate::workload::{Outcome, Workload};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A block device, and where its file system is mounted.
pub struct Mounted {
    device: PathBuf,
    mount: PathBuf,
    mkfs: PathBuf,
    mounter: PathBuf,
}

/// Unmounts when it is dropped.
struct Mount<'a>(&'a Path);

impl Mounted {
    /// File systems on `device`, to be mounted on `DIR/NAME`.
    ///
    /// # Errors
    /// If the tools are missing.
    pub fn new(device: &Path, dir: &Path, name: &str) -> Result<Mounted> {
        let tool = |name: &str| find_program(name).ok_or_else(|| Error::new(format!("{name} is not installed")));
        let (mkfs, mounter) = (tool("mkfs.ext4")?, tool("mount")?);
        let mount = dir.join(name);
        std::fs::create_dir_all(&mount).map_err(Error::io(mount.display()))?;
        Ok(Mounted { device: device.to_owned(), mount, mkfs, mounter })
    }

    fn mount(&self) -> Result<Mount<'_>> {
        let options = "lazy_itable_init=0,lazy_journal_init=0,nodiscard";
        output(Command::new(&self.mkfs).args(["-q", "-F", "-E", options]).arg(&self.device))?;
        output(Command::new(&self.mounter).args(["-t", "ext4"]).arg(&self.device).arg(&self.mount))?;
        Ok(Mount(&self.mount))
    }
}

impl Drop for Mount<'_> {
    fn drop(&mut self) {
        let Some(umount) = find_program("umount") else { return };
        // What an io_uring had open the kernel closes a little after the ring is gone: until then the mount is busy.
        let busy = || output(Command::new(&umount).arg(self.0)).is_err();
        for _ in 0..50 {
            if !busy() {
                return;
            }
            std::thread::sleep(std::time::Duration::from_millis(100));
        }
    }
}

/// A new file, through the page cache: what `dd conv=fsync` does. The workload names the file's size.
impl Target for Mounted {
    fn run(&mut self, workload: &Workload) -> Result<Outcome> {
        let _mount = self.mount()?;
        let path = self.mount.join("file");
        let file = File::create(&path).and_then(|f| f.set_len(workload.span));
        file.map_err(Error::io(path.display()))?;
        FileTarget::open(&path, true, true)?.run(workload)
    }
}
