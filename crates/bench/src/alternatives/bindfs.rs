//! A directory passed through FUSE by bindfs: the same way to a block device without replication.

use super::{PATIENCE, program};
use crate::error::Result;
use crate::process::Process;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A directory with the files of another one.
pub struct Bindfs {
    process: Process,
    mount: PathBuf,
}

impl Bindfs {
    /// Shows the files of `from` in `DIR/bindfs`.
    ///
    /// # Errors
    /// If it is not installed or may not mount.
    pub fn start(dir: &Path, from: &Path) -> Result<Bindfs> {
        let mount = dir.join("bindfs");
        std::fs::create_dir_all(&mount).map_err(crate::error::Error::io(mount.display()))?;
        let probe = from.join("probe");
        let _ = std::fs::write(&probe, "");
        let mut command = Command::new(program("bindfs", "bindfs")?);
        command.args(["-f", "--multithreaded", "--no-allow-other", "-o", "direct_io"]).arg(from).arg(&mount);
        let mut process = Process::start("bindfs", dir, command)?;
        process.wait_until("mounts", PATIENCE, || mount.join("probe").exists())?;
        Ok(Bindfs { process, mount })
    }

    /// Where the files are.
    #[must_use]
    pub fn mount(&self) -> &Path {
        &self.mount
    }

    /// Its process id.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.process.pid()
    }
}

impl Drop for Bindfs {
    fn drop(&mut self) {
        // A mount whose process ends is left behind dead otherwise.
        let _ = frontends::fuse::unmount(&self.mount);
    }
}
