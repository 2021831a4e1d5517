//! From file names to a checked [`Config`].

use std::path::Path;
use std::sync::Arc;

use crate::error::Errors;
use crate::files::{Disk, Files};
use crate::grammar::Grammar;
use crate::load_options::LoadOptions;
use crate::model::Config;
use crate::resolve;

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
    resolve::resolve(file, document, options.this_host.as_ref(), findings)
}
