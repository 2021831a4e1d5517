//! What is read, and for which version and host.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use crate::model::ThisHost;

/// A version of the DRBD kernel module.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Version(pub u16, pub u16, pub u16);

impl Version {
    /// The kernel module that urbd stands for: the release that brought the newest protocol that is spoken here.
    pub const MODULE: Version = Version(9, 3, 1);
}

/// What to read besides the main file.
#[derive(Clone, Debug)]
pub struct LoadOptions {
    /// The version that `require-drbd-module-version-*` is compared with.
    pub module_version: Version,
    /// Files that are skipped when they are included (`--config-to-exclude`).
    pub exclude: Vec<PathBuf>,
    /// Files that are read behind the main file (`--config-to-test`).
    pub additional: Vec<PathBuf>,
    /// Whose disks may not be used twice; `None`: every host's. What writes the configuration of one host (LINSTOR) has
    /// placeholders for the disks of the others.
    pub this_host: Option<ThisHost>,
}

impl Default for LoadOptions {
    fn default() -> LoadOptions {
        LoadOptions { module_version: Version::MODULE, exclude: Vec::new(), additional: Vec::new(), this_host: None }
    }
}

impl FromStr for Version {
    type Err = ();

    fn from_str(text: &str) -> Result<Version, ()> {
        let numbers: Vec<u16> = text.split('.').map(str::parse).collect::<Result<_, _>>().map_err(|_| ())?;
        match numbers.as_slice() {
            [a, b, c] => Ok(Version(*a, *b, *c)),
            _ => Err(()),
        }
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.0, self.1, self.2)
    }
}
