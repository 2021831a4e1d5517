//! What else one could use. Each is found if it is installed, else named as absent; each is a file with its start, and
//! ends when it is dropped.

mod bindfs;
mod gluster;
mod nbdkit;
mod qemu;
mod tgt;

pub use bindfs::Bindfs;
pub use gluster::Gluster;
pub use nbdkit::Nbdkit;
pub use qemu::{Exported, Iscsi, Mirror, Quorum};
pub use tgt::Tgt;

use crate::error::{Error, Result};
use crate::process::find_program;
use crate::target::Watched;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// How long one may take until it serves.
pub(crate) const PATIENCE: Duration = Duration::from_secs(15);

/// Something that serves NBD.
pub trait Server {
    /// Its address.
    fn uri(&self) -> String;
    /// The processes that work for it.
    fn watched(&self) -> Vec<Watched>;
}

/// The address of the only export of a server on that socket.
pub(crate) fn uri_of(socket: &Path) -> String {
    format!("nbd+unix:///?socket={}", socket.display())
}

/// The file of a program, or which package would bring it.
fn program(name: &str, package: &str) -> Result<PathBuf> {
    find_program(name).ok_or_else(|| Error::new(format!("{name} is not installed (Debian's package {package})")))
}
