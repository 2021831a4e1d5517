//! From file names to a checked [`Config`].

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;

use crate::error::Errors;
use crate::files::{Disk, Files};
use crate::grammar::Grammar;
use crate::model::Config;
use crate::resolve;

/// A version of the DRBD kernel module.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Version(pub u16, pub u16, pub u16);

/// What to read besides the main file.
#[derive(Clone, Debug)]
pub struct LoadOptions {
    /// The version that `require-drbd-module-version-*` is compared with.
    pub module_version: Version,
    /// Files that are skipped when they are included (`--config-to-exclude`).
    pub exclude: Vec<PathBuf>,
    /// Files that are read behind the main file (`--config-to-test`).
    pub additional: Vec<PathBuf>,
}

impl Default for LoadOptions {
    fn default() -> LoadOptions {
        LoadOptions { module_version: Version(9, 2, 14), exclude: Vec::new(), additional: Vec::new() }
    }
}

/// Reads and checks a configuration from the file system.
///
/// # Errors
/// All problems that were found.
pub fn load(path: &Path) -> Result<Config, Errors> {
    load_from(&Disk, path, &LoadOptions::default())
}

/// Reads and checks a configuration from `files`.
///
/// # Errors
/// All problems that were found.
pub fn load_from(files: &dyn Files, path: &Path, options: &LoadOptions) -> Result<Config, Errors> {
    let mut grammar = Grammar::new(files, options);
    grammar.file(path, None);
    finish(grammar, path, options)
}

/// Checks a configuration whose main text comes from elsewhere (standard input). `path` names it in messages and is
/// where relative includes start.
///
/// # Errors
/// All problems that were found.
pub fn load_text(files: &dyn Files, path: &Path, text: &str, options: &LoadOptions) -> Result<Config, Errors> {
    let mut grammar = Grammar::new(files, options);
    grammar.text(path, text);
    finish(grammar, path, options)
}

fn finish(mut grammar: Grammar<'_>, path: &Path, options: &LoadOptions) -> Result<Config, Errors> {
    for additional in &options.additional {
        grammar.file(additional, None);
    }
    let file: Arc<str> = Arc::from(path.to_string_lossy().as_ref());
    let (document, findings) = (grammar.document, grammar.findings);
    // A statement that could not be read would only cause more messages, about things it was to define.
    if !findings.errors.is_empty() {
        findings.into_result()?;
        unreachable!("there are errors");
    }
    resolve::resolve(file, document, findings)
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
