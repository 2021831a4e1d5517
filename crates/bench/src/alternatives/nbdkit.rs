//! A file served by nbdkit: the same front end without replication.

use super::{PATIENCE, Server, program, uri_of};
use crate::error::Result;
use crate::process::Process;
use crate::target::Watched;
use std::path::{Path, PathBuf};
use std::process::Command;

/// It serves one file.
pub struct Nbdkit {
    process: Process,
    socket: PathBuf,
}

impl Nbdkit {
    /// Serves `file` on a socket in `dir`.
    ///
    /// # Errors
    /// If it is not installed or does not start.
    pub fn start(dir: &Path, file: &Path) -> Result<Nbdkit> {
        let socket = dir.join("nbdkit.sock");
        let mut command = Command::new(program("nbdkit", "nbdkit")?);
        command.args(["--foreground", "--unix"]).arg(&socket).arg("file").arg(file);
        let mut process = Process::start("nbdkit", dir, command)?;
        process.wait_until("listens", PATIENCE, || socket.exists())?;
        Ok(Nbdkit { process, socket })
    }
}

impl Server for Nbdkit {
    fn uri(&self) -> String {
        uri_of(&self.socket)
    }

    fn watched(&self) -> Vec<Watched> {
        vec![Watched::new("server", self.process.pid())]
    }
}
