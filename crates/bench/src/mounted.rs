//! ext4 on a block device, mounted as long as this lives.

use crate::error::{Error, Result};
use crate::file::FileTarget;
use crate::process::{find_program, output};
use crate::target::Target;
use crate::workload::{Outcome, Workload};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A mounted file system with one file on it.
pub struct Mounted {
    mount: PathBuf,
}

impl Mounted {
    /// Makes a file system on `device` and mounts it on `DIR/NAME`.
    ///
    /// # Errors
    /// If the tools are missing, or we may not.
    pub fn new(device: &Path, dir: &Path, name: &str) -> Result<Mounted> {
        let tool = |name: &str| find_program(name).ok_or_else(|| Error::new(format!("{name} is not installed")));
        let (mkfs, mounter) = (tool("mkfs.ext4")?, tool("mount")?);
        output(
            Command::new(mkfs).args(["-q", "-F", "-E", "lazy_itable_init=0,lazy_journal_init=0,nodiscard"]).arg(device),
        )?;
        let mount = dir.join(name);
        std::fs::create_dir_all(&mount).map_err(Error::io(mount.display()))?;
        output(Command::new(mounter).args(["-t", "ext4"]).arg(device).arg(&mount))?;
        Ok(Mounted { mount })
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        if let Some(umount) = find_program("umount") {
            let _ = output(Command::new(umount).arg(&self.mount));
        }
    }
}

/// A new file each time, through the page cache: what `dd conv=fsync` does. The workload names the file's size.
impl Target for Mounted {
    fn run(&mut self, workload: &Workload) -> Result<Outcome> {
        let path = self.mount.join("file");
        let file = File::create(&path).and_then(|f| f.set_len(workload.span));
        file.map_err(Error::io(path.display()))?;
        let outcome = FileTarget::open(&path, true, true)?.run(workload);
        std::fs::remove_file(&path).map_err(Error::io(path.display()))?;
        outcome
    }
}
