//! Why a measurement could not be made.

use std::fmt;
use std::io;

/// One sentence that says what and why.
#[derive(Debug)]
pub struct Error(String);

/// What comes of a measurement.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    /// With that sentence.
    pub fn new(text: impl Into<String>) -> Error {
        Error(text.into())
    }

    /// For `map_err`: what was tried, with the system's reason.
    pub fn io(what: impl fmt::Display) -> impl FnOnce(io::Error) -> Error {
        move |e| Error(format!("{what}: {e}"))
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Error {}

impl From<String> for Error {
    fn from(text: String) -> Error {
        Error(text)
    }
}
