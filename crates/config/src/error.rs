//! What is wrong, where, and what to do about it.

use std::collections::HashSet;
use std::fmt;
use std::sync::Arc;

/// A place in a configuration file. Lines and columns count from 1; line 0 stands for the file as a whole.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Span {
    /// The file's name as it was opened.
    pub file: Arc<str>,
    /// Line number.
    pub line: u32,
    /// Column, in characters.
    pub column: u32,
    /// Length in characters of the text meant, within that line.
    pub length: u32,
}

impl Span {
    /// The place of what stands in no file.
    pub(crate) fn outside() -> Span {
        Span { file: Arc::from("(command line)"), line: 1, column: 1, length: 1 }
    }
}

/// Which rule was broken. The names are those of `vectors/config/bad/expected.json`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ErrorKind {
    /// A word or string that cannot be read.
    Lexer,
    /// A statement at a place where it cannot stand, or not ended properly.
    Syntax,
    /// An option's value.
    Value,
    /// Something that may be there only once.
    Duplicate,
    /// Something that must be there.
    Missing,
    /// A device name or minor.
    Device,
    /// An address, or its absence.
    Address,
    /// Volume numbers that do not fit together.
    Volumes,
    /// A connection, path or mesh.
    Connection,
    /// A file named in `include` or `template-file`, or the main file.
    Include,
    /// A number outside its range.
    Range,
    /// Which host section is this machine's.
    Host,
    /// `stacked-on-top-of`.
    Stacking,
    /// One option with two values from equally near places.
    Inheritance,
    /// A proxy section.
    Proxy,
    /// `require-drbd-module-version-*`.
    Version,
    /// No resource at all.
    Empty,
    /// Understood, but urbd cannot do it.
    Unsupported,
    /// An object (resource, volume, peer) that the configuration does not have.
    Unknown,
    /// The file could not be read.
    File,
}

impl ErrorKind {
    /// The exit status of the verbs for this kind, as `docs/spec/config-and-cli.md` 3.2 lists them.
    #[must_use]
    pub fn exit_code(self, span: Option<&Span>) -> i32 {
        match self {
            ErrorKind::Empty | ErrorKind::Unknown | ErrorKind::Unsupported => 1,
            ErrorKind::Host if span.is_none() => 1,
            ErrorKind::File => 20,
            _ => 10,
        }
    }
}

/// One problem of a configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error {
    /// The rule.
    pub kind: ErrorKind,
    /// Where, if it is about one place.
    pub span: Option<Span>,
    /// What is wrong and why, one line.
    pub message: String,
    /// What to do next, one line.
    pub help: Option<String>,
    /// Other places that belong to the problem, each with a short remark.
    pub related: Vec<(Span, String)>,
}

impl Error {
    pub(crate) fn new(kind: ErrorKind, span: &Span, message: impl Into<String>) -> Error {
        Error { kind, span: Some(span.clone()), message: message.into(), help: None, related: Vec::new() }
    }

    pub(crate) fn without_place(kind: ErrorKind, message: impl Into<String>) -> Error {
        Error { kind, span: None, message: message.into(), help: None, related: Vec::new() }
    }

    pub(crate) fn help(mut self, help: impl Into<String>) -> Error {
        self.help = Some(help.into());
        self
    }

    pub(crate) fn related(mut self, span: &Span, remark: impl Into<String>) -> Error {
        self.related.push((span.clone(), remark.into()));
        self
    }

    /// The exit status that drbdadm gives for this (10 for everything in a file, 1 for "nothing to do here").
    #[must_use]
    pub fn exit_code(&self) -> i32 {
        self.kind.exit_code(self.span.as_ref())
    }
}

/// All problems found in a configuration; never empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Errors(Vec<Error>);

impl Errors {
    /// The problems in the order in which they were found.
    pub fn iter(&self) -> std::slice::Iter<'_, Error> {
        self.0.iter()
    }

    /// The first problem.
    #[must_use]
    pub fn first(&self) -> &Error {
        &self.0[0]
    }

    /// The greatest exit status of the problems.
    #[must_use]
    pub fn exit_code(&self) -> i32 {
        self.0.iter().map(Error::exit_code).max().unwrap_or(10)
    }
}

impl From<Error> for Errors {
    fn from(error: Error) -> Errors {
        Errors(vec![error])
    }
}

/// Problems that are reported in one go; nobody reads more.
const MAX_ERRORS: usize = 100;

/// Collects problems while the work goes on.
#[derive(Default)]
pub(crate) struct Findings {
    pub(crate) errors: Vec<Error>,
    pub(crate) warnings: Vec<Warning>,
    warned: HashSet<Warning>,
}

impl Findings {
    pub(crate) fn error(&mut self, error: Error) {
        if self.errors.len() < MAX_ERRORS && !self.errors.contains(&error) {
            self.errors.push(error);
        }
    }

    pub(crate) fn warn(&mut self, span: &Span, message: impl Into<String>) {
        let warning = Warning { span: span.clone(), message: message.into() };
        if self.warned.insert(warning.clone()) {
            self.warnings.push(warning);
        }
    }

    pub(crate) fn into_result(self) -> Result<Vec<Warning>, Errors> {
        if self.errors.is_empty() { Ok(self.warnings) } else { Err(Errors(self.errors)) }
    }
}

/// Something the user should know although the configuration can be used.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Warning {
    /// Where.
    pub span: Span,
    /// What, and what follows from it.
    pub message: String,
}

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            0 => f.write_str(&self.file),
            line => write!(f, "{}:{line}:{}", self.file, self.column),
        }
    }
}

impl fmt::Debug for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(span) = &self.span {
            write!(f, "{span}: ")?;
        }
        f.write_str(&self.message)?;
        for (span, remark) in &self.related {
            write!(f, "\n    {span}: {remark}")?;
        }
        match &self.help {
            Some(help) => write!(f, "\n    {help}"),
            None => Ok(()),
        }
    }
}

impl std::error::Error for Error {}

impl fmt::Display for Errors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, error) in self.0.iter().enumerate() {
            if i > 0 {
                f.write_str("\n")?;
            }
            fmt::Display::fmt(error, f)?;
        }
        Ok(())
    }
}

impl std::error::Error for Errors {}

impl fmt::Display for Warning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.span, self.message)
    }
}

/// The known word nearest to `word`, if it is near enough to be a slip of the finger.
pub(crate) fn nearest<'a>(word: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let limit = 1 + word.len() / 4;
    let scored = known.into_iter().map(|k| (distance(word, k), k)).filter(|(d, _)| *d <= limit);
    scored.min_by_key(|(d, _)| *d).map(|(_, k)| k)
}

fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, ca) in a.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, cb) in b.iter().enumerate() {
            let cost = diagonal + usize::from(ca != *cb);
            diagonal = row[j + 1];
            row[j + 1] = cost.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::nearest;

    #[test]
    fn slips_are_recognised_and_strangers_are_not() {
        let known = ["protocol", "ping-int", "timeout"];
        assert_eq!(nearest("protcol", known), Some("protocol"));
        assert_eq!(nearest("ping-in", known), Some("ping-int"));
        assert_eq!(nearest("banana", known), None);
    }
}
