//! Why a resource could not be run.

use std::fmt;
use std::io;
use std::path::PathBuf;

/// Why a resource could not be run.
#[derive(Debug)]
pub enum Error {
    /// Another process runs it.
    AlreadyRunning {
        /// The resource.
        resource: String,
        /// Its lock file.
        lock: PathBuf,
    },
    /// The configuration asks for what cannot be done.
    Config(String),
    /// Something of the operating system failed.
    Io {
        /// What was tried.
        what: String,
        /// What the system said.
        error: io::Error,
    },
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::AlreadyRunning { resource, lock } => {
                write!(
                    f,
                    "{resource} is running already ({} is locked); `urbd down {resource}` ends it",
                    lock.display()
                )
            }
            Error::Config(what) => f.write_str(what),
            Error::Io { what, error } => write!(f, "{what}: {error}"),
        }
    }
}

impl std::error::Error for Error {}
