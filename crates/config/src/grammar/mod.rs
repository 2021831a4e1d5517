//! Statement tree to [`Document`], following includes (`docs/spec/config-and-cli.md` 1.1 and 1.4).

mod connections;
mod cursor;
mod hosts;
mod sections;

use std::collections::HashSet;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use self::cursor::Cursor;
use self::sections::once;
use crate::document::{Document, ResourceNode, Sections};
use crate::error::{Error, ErrorKind, Findings, Span, nearest};
use crate::files::{self, Files};
use crate::load_options::{LoadOptions, Version};
use crate::options::{Clash, Settings};
use crate::table::Group;
use crate::tree::{self, Body, Statement};

const TOP_WORDS: &[&str] = &["global", "common", "resource", "include", "skip"];
const SECTION_WORDS: &[&str] =
    &["net", "disk", "options", "startup", "handlers", "proxy", "syncer", "urbd", "protocol"];
const RESOURCE_WORDS: &[&str] = &[
    "on",
    "floating",
    "stacked-on-top-of",
    "volume",
    "device",
    "disk",
    "meta-disk",
    "flexible-meta-disk",
    "net",
    "options",
    "startup",
    "handlers",
    "proxy",
    "syncer",
    "urbd",
    "connection",
    "connection-mesh",
    "template-file",
    "protocol",
    "skip",
];
/// Deepest chain of includes.
const MAX_INCLUDES: usize = 16;

/// Reads files into a document; problems go to the findings, and reading goes on behind them.
pub(crate) struct Grammar<'a> {
    files: &'a dyn Files,
    options: &'a LoadOptions,
    pub(crate) findings: Findings,
    pub(crate) document: Document,
    read: HashSet<PathBuf>,
    depth: usize,
    /// The `protocol` statements that stand outside of `net`.
    shorthands: Vec<Span>,
}

impl<'a> Grammar<'a> {
    pub(crate) fn new(files: &'a dyn Files, options: &'a LoadOptions) -> Grammar<'a> {
        let (findings, document) = (Findings::default(), Document::default());
        Grammar { files, options, findings, document, read: HashSet::new(), depth: 0, shorthands: Vec::new() }
    }

    /// Reads one file with everything it includes. `from` is the statement that named it.
    pub(crate) fn file(&mut self, path: &Path, from: Option<&Span>) {
        let identity = self.files.identity(path);
        if self.read.contains(&identity) || self.options.exclude.iter().any(|e| self.files.identity(e) == identity) {
            return;
        }
        self.read.insert(identity);
        match self.read_text(path, from) {
            Ok(text) => self.text(path, &text),
            Err(error) => self.findings.error(error),
        }
    }

    /// Reads text that was got elsewhere, under the name `path`.
    pub(crate) fn text(&mut self, path: &Path, text: &str) {
        match tree::parse(file_name(path), text) {
            Err(error) => self.findings.error(error),
            Ok(statements) => {
                for st in &statements {
                    if let Err(error) = self.top(path, st) {
                        self.findings.error(error);
                    }
                }
            }
        }
    }

    fn read_text(&self, path: &Path, from: Option<&Span>) -> Result<String, Error> {
        let read = if from.is_some() { self.files.read_included(path) } else { self.files.read(path) };
        let bytes = read.map_err(|error| {
            let message = format!("cannot read {}: {error}", path.display());
            match from {
                Some(span) if error.kind() == io::ErrorKind::NotFound => {
                    Error::new(ErrorKind::Include, span, format!("the file {} does not exist", path.display()))
                        .help("a name with wildcards may match nothing, a plain name must exist")
                }
                Some(span) => Error::new(ErrorKind::File, span, message),
                None => Error::without_place(ErrorKind::File, message),
            }
        })?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    fn top(&mut self, path: &Path, st: &Statement) -> Result<(), Error> {
        let mut cursor = Cursor::after_keyword(st);
        match st.keyword() {
            "global" => self.global(st)?,
            "common" => {
                if self.document.common.is_some() {
                    return Err(Error::new(ErrorKind::Duplicate, st.span(), "a second `common` section"));
                }
                let sections = self.common(cursor.body()?);
                self.document.common = Some(sections);
            }
            "resource" => self.resource(path, st)?,
            "include" => {
                let pattern = cursor.word("a file name")?;
                cursor.end()?;
                self.include(path, &pattern.text, &pattern.span)?;
            }
            keyword => match keyword.strip_prefix("require-drbd-module-version-") {
                Some(relation) => self.require(relation, st)?,
                None => return Err(unknown_statement(st, "the top level", TOP_WORDS)),
            },
        }
        Ok(())
    }

    fn include(&mut self, from: &Path, pattern: &str, span: &Span) -> Result<(), Error> {
        let target = from.parent().unwrap_or(Path::new("")).join(pattern);
        if self.depth == MAX_INCLUDES {
            return Err(Error::new(ErrorKind::Include, span, "files include each other too deeply"));
        }
        let targets = if files::is_pattern(pattern) { files::expand(self.files, &target) } else { vec![target] };
        self.depth += 1;
        for target in targets {
            self.file(&target, Some(span));
        }
        self.depth -= 1;
        Ok(())
    }

    fn require(&mut self, relation: &str, st: &Statement) -> Result<(), Error> {
        let mut cursor = Cursor::after_keyword(st);
        let word = cursor.word("a version N.N.N")?;
        cursor.end()?;
        let wanted: Version = word.text.parse().map_err(|()| {
            let message = format!("`{}` is not a version", word.text);
            Error::new(ErrorKind::Syntax, &word.span, message).help("write three numbers, such as 9.2.0")
        })?;
        let have = self.options.module_version;
        let holds = match relation {
            "eq" => have == wanted,
            "ne" => have != wanted,
            "gt" => have > wanted,
            "ge" => have >= wanted,
            "lt" => have < wanted,
            "le" => have <= wanted,
            _ => return Err(unknown_statement(st, "the top level", TOP_WORDS)),
        };
        if holds {
            return Ok(());
        }
        let message = format!("this file wants a DRBD version {relation} {wanted}; urbd stands for {have}");
        Err(Error::new(ErrorKind::Version, st.span(), message).help("remove the statement if it is not needed"))
    }

    fn global(&mut self, st: &Statement) -> Result<(), Error> {
        if self.document.global.is_some() {
            return Err(Error::new(ErrorKind::Duplicate, st.span(), "a second `global` section"));
        }
        if !self.document.resources.is_empty() {
            self.findings.warn(st.span(), "`global` should be the first section of the configuration");
        }
        let mut settings = Settings::default();
        self.settings(&mut settings, &[Group::Global], "global", Cursor::after_keyword(st).body()?);
        self.document.global = Some(settings);
        Ok(())
    }

    fn common(&mut self, body: &Body) -> Sections {
        let mut sections = Sections::default();
        for st in &body.statements {
            match self.section(&mut sections, st) {
                Ok(true) => {}
                Ok(false) => self.findings.error(unknown_statement(st, "`common`", SECTION_WORDS)),
                Err(error) => self.findings.error(error),
            }
        }
        sections
    }

    fn resource(&mut self, path: &Path, st: &Statement) -> Result<(), Error> {
        let mut cursor = Cursor::after_keyword(st);
        let name = cursor.word("a resource name")?;
        let body = cursor.body()?;
        if name.text.is_empty() || name.text.len() > 127 || name.text.contains('/') {
            let message = format!("`{}` cannot be the name of a resource", name.text);
            return Err(Error::new(ErrorKind::Value, &name.span, message).help("use 1 to 127 characters without `/`"));
        }
        if name.text == "all" {
            self.findings
                .warn(&name.span, "verbs take the word `all` for all resources: this one cannot be named alone");
        }
        if let Some(first) = self.document.resource(&name.text) {
            return Err(Error::new(
                ErrorKind::Duplicate,
                &name.span,
                format!("resource `{}` is there twice", name.text),
            )
            .related(&first.name.span, "the first one is here"));
        }
        let mut resource = ResourceNode {
            name,
            open: body.open.clone(),
            sections: Sections::default(),
            template: None,
            volumes: Vec::new(),
            hosts: Vec::new(),
            connections: Vec::new(),
            meshes: Vec::new(),
        };
        for inner in &body.statements {
            if let Err(error) = self.resource_statement(&mut resource, path, inner) {
                self.findings.error(error);
            }
        }
        self.document.add(resource);
        Ok(())
    }

    fn resource_statement(&mut self, resource: &mut ResourceNode, path: &Path, st: &Statement) -> Result<(), Error> {
        if self.section(&mut resource.sections, st)? || self.volume_part(&mut resource.volumes, st)? {
            return Ok(());
        }
        match st.keyword() {
            "on" | "floating" | "stacked-on-top-of" | "_this_host" => {
                let host = self.host(st)?;
                resource.hosts.push(host);
            }
            "connection" => {
                let connection = self.connection(st)?;
                resource.connections.push(connection);
            }
            "connection-mesh" => {
                let mesh = self.mesh(st)?;
                resource.meshes.push(mesh);
            }
            "template-file" => self.template(resource, path, st)?,
            _ => return Err(unknown_statement(st, "a resource", RESOURCE_WORDS)),
        }
        Ok(())
    }

    fn template(&mut self, resource: &mut ResourceNode, from: &Path, st: &Statement) -> Result<(), Error> {
        once(&mut resource.sections.seen, "template-file", st.span())?;
        let mut cursor = Cursor::after_keyword(st);
        let name = cursor.word("a file name")?;
        cursor.end()?;
        let path = from.parent().unwrap_or(Path::new("")).join(&name.text);
        let text = self.read_text(&path, Some(&name.span))?;
        let statements = tree::parse(file_name(&path), &text)?;
        match statements.as_slice() {
            [st] if st.keyword() == "common" => {
                let sections = self.common(Cursor::after_keyword(st).body()?);
                resource.template = Some((file_name(&path), sections));
                Ok(())
            }
            _ => {
                let message = format!("the template file {} must hold exactly one `common` section", path.display());
                Err(Error::new(ErrorKind::Include, &name.span, message))
            }
        }
    }
}

fn file_name(path: &Path) -> Arc<str> {
    Arc::from(path.to_string_lossy().as_ref())
}

/// A statement that cannot stand where it stands.
fn unknown_statement(st: &Statement, place: &str, known: &[&str]) -> Error {
    let word = st.keyword();
    let error = Error::new(ErrorKind::Syntax, st.span(), format!("`{word}` is not a statement of {place}"));
    // An option without its section around it.
    match (sections::home_of(word), nearest(word, known.iter().copied())) {
        (Some(home), _) => error.help(format!("it belongs into a section: {home} {{ {word} …; }}")),
        (None, Some(near)) => error.help(format!("did you mean `{near}`?")),
        (None, None) => error.help(format!("known here: {}", known.join(", "))),
    }
}

/// The error for one option with two values.
pub(crate) fn clash_error(clash: &Clash) -> Error {
    let (one, two) = (&clash.here, &clash.there);
    let message = format!(
        "`{}` is {} and {} for the same object, from equally near places",
        one.spec.name,
        one.shown(),
        two.shown()
    );
    Error::new(ErrorKind::Inheritance, &two.span, message)
        .related(&one.span, "the other value is here")
        .help("remove one of them, or set the option where it is needed: in the host's own volume or the connection's")
}
