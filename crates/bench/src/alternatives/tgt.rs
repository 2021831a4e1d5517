//! tgt, an iSCSI target in userspace.

use super::{PATIENCE, program};
use crate::error::{Error, Result};
use crate::pair::free_port;
use crate::process::{Process, output};
use std::path::Path;
use std::process::Command;

/// A target with one unit, number 1.
pub struct Tgt {
    process: Process,
    portal: String,
}

impl Tgt {
    /// Its iSCSI name.
    pub const NAME: &str = "iqn.2026-01.urbd:bench";

    /// Serves `file`.
    ///
    /// # Errors
    /// If it is not installed, does not start (it needs root), or refuses the file.
    pub fn start(dir: &Path, file: &Path) -> Result<Tgt> {
        let (daemon, admin) = (program("tgtd", "tgt")?, program("tgtadm", "tgt")?);
        let port = free_port()?;
        // Its control port is a number in the name of a socket, below 2^15.
        let control = (port / 2).to_string();
        let portal = format!("127.0.0.1:{port}");
        let sockets = Path::new("/run/tgtd");
        std::fs::create_dir_all(sockets).map_err(Error::io("tgtd's folder /run/tgtd"))?;
        let mut command = Command::new(daemon);
        command.args(["-f", "-C", &control, "--iscsi"]).arg(format!("portal={portal}"));
        let mut process = Process::start("tgtd", dir, command)?;
        let target = ["--lld", "iscsi", "--mode", "target", "--op", "new", "--tid", "1", "-T", Tgt::NAME];
        let tell = |args: &[&str]| output(Command::new(&admin).args(["-C", &control]).args(args));
        process.wait_until("answers", PATIENCE, || tell(&target).is_ok())?;
        let file = file.display().to_string();
        tell(&["--lld", "iscsi", "--mode", "logicalunit", "--op", "new", "--tid", "1", "--lun", "1", "-b", &file])?;
        tell(&["--lld", "iscsi", "--mode", "target", "--op", "bind", "--tid", "1", "-I", "ALL"])?;
        Ok(Tgt { process, portal })
    }

    pub(super) fn portal(&self) -> &str {
        &self.portal
    }

    pub(super) fn pid(&self) -> u32 {
        self.process.pid()
    }
}
