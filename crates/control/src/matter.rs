//! What is the matter: one plain sentence, and the next command, for every state that is not good.
//!
//! A pure function of the status, so that `urbd status`, `urbd why`, `urbd top`, the page and the metrics say the same.
//! The outputs that programs parse (drbdadm's and drbdsetup's status and JSON, `events2`) never contain these.

mod connection;
mod device;
#[cfg(test)]
mod tests;

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::states::Role;
use crate::status::ResourceStatus;

pub use connection::{progress_words, slowed_words};

/// How much it matters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Weight {
    /// Data is out of reach, or one more failure makes it so.
    Error,
    /// Redundancy is missing, or something waits for a person.
    Warning,
    /// It goes on by itself.
    Running,
    /// Nothing is wrong; good to know.
    Note,
}

/// One thing that is the matter.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Matter {
    /// What it is about: `r0`, `r0/0`, `r0:bravo`, `r0:bravo/0`.
    pub object: String,
    /// A stable name, for programs.
    pub code: String,
    /// How much it matters.
    pub weight: Weight,
    /// One sentence.
    pub text: String,
    /// The next command, or what to do.
    pub next: Option<String>,
}

/// The sentence, then what to do.
impl fmt::Display for Matter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)?;
        match &self.next {
            Some(next) => write!(f, " Next: {next}"),
            None => Ok(()),
        }
    }
}

/// Everything that is the matter with a resource, what matters most first.
pub fn matters(resource: &ResourceStatus) -> Vec<Matter> {
    let mut list = List { resource: &resource.name, found: Vec::new() };
    list.resource(resource);
    for device in &resource.devices {
        list.device(resource, device);
    }
    for connection in &resource.connections {
        list.connection(resource, connection);
    }
    let mut found = list.found;
    found.sort_by_key(|m| m.weight);
    say_once(&mut found);
    found
}

/// What goes on by itself, of several volumes or peers, is waited for by one command.
fn say_once(found: &mut [Matter]) {
    for at in 1..found.len() {
        let (before, this) = found.split_at_mut(at);
        let same = |m: &&mut Matter| m.weight == Weight::Running && m.code == this[0].code && m.next == this[0].next;
        if before.iter_mut().any(|m| same(&m)) {
            this[0].next = None;
        }
    }
}

/// The part of a terminal's `status` that says what is the matter with a resource: each line indented, wrapped at
/// `width` columns. Empty if nothing is.
pub fn lines(resource: &ResourceStatus, width: usize) -> String {
    let found = matters(resource);
    let worth = found.iter().filter(|m| m.weight < Weight::Note);
    worth.map(|m| wrapped(&format!("! {}: {m}", m.object), 2, 4, width)).collect()
}

/// Words in lines of at most `width` columns, each ended by a newline.
pub fn wrapped(text: &str, first_indent: usize, indent: usize, width: usize) -> String {
    let mut out = String::new();
    let mut line = " ".repeat(first_indent);
    let mut empty = true;
    for word in text.split(' ') {
        if !empty && line.chars().count() + 1 + word.chars().count() > width {
            out += &line;
            out.push('\n');
            (line, empty) = (" ".repeat(indent), true);
        }
        if !empty {
            line.push(' ');
        }
        line += word;
        empty = false;
    }
    out + &line + "\n"
}

/// What was found so far.
struct List<'a> {
    resource: &'a str,
    found: Vec<Matter>,
}

impl List<'_> {
    fn add(&mut self, object: String, weight: Weight, code: &str, text: impl Into<String>, next: impl Into<String>) {
        let next: String = next.into();
        let next = Some(next).filter(|n| !n.is_empty());
        self.found.push(Matter { object, code: code.to_owned(), weight, text: crate::plain(&text.into()), next });
    }

    fn resource(&mut self, r: &ResourceStatus) {
        let name = self.resource;
        let object = || name.to_owned();
        if r.suspended.user {
            let text = "Applications' I/O is frozen, because somebody asked for it (suspend-io).";
            self.add(object(), Weight::Error, "frozen-user", text, format!("urbd resume-io {name}"));
        }
        if r.suspended.no_data {
            let text = "Applications' I/O is frozen, because no UpToDate data is in reach (on-no-data-accessible).";
            let next = format!("bring the disk or the peer back: urbd attach {name}; urbd connect {name}");
            self.add(object(), Weight::Error, "frozen-no-data", text, next);
        }
        if r.suspended.fencing {
            let text = "Applications' I/O is frozen until the fence-peer handler has said that the peer cannot write.";
            let next = format!("if it never ends, and the peer is surely off: urbd resume-io {name}");
            self.add(object(), Weight::Error, "frozen-fencing", text, next);
        }
        if r.suspended.quorum {
            let text = "Applications' I/O is frozen, because too few nodes are in reach (quorum, on-no-quorum).";
            self.add(object(), Weight::Error, "frozen-quorum", text, "bring the other nodes back");
        }
        if r.force_io_failures {
            let text = "All I/O fails, because somebody asked for it (secondary --force).";
            let next = format!("close the device; then: urbd secondary {name}");
            self.add(object(), Weight::Error, "io-fails-by-force", text, next);
        }
        if let Some(cause) =
            r.cause.as_ref().filter(|c| c.code == "waits-to-be-primary" || c.code == "replaced-meanwhile")
        {
            self.add(object(), Weight::Error, &cause.code, sentence(&cause.text), format!("urbd primary {name}"));
        }
        let primary = |c: &crate::ConnectionStatus| c.peer_role == Role::Primary;
        if r.role == Role::Secondary && !r.connections.iter().any(primary) && !r.devices.is_empty() {
            let text = "No node that is in reach is Primary, so the device cannot be opened or mounted.";
            let away = device::away(r);
            let next = match away.is_empty() {
                true => format!("where it is to be used: urbd primary {name}"),
                // Two that write without each other make a split brain.
                false if away.contains(" or ") => {
                    format!("where it is to be used, if surely none of {away} is Primary: urbd primary {name}")
                }
                false => format!("where it is to be used, if {away} is surely not Primary: urbd primary {name}"),
            };
            self.add(object(), Weight::Note, "nobody-primary", text, next);
        }
        if r.role == Role::Secondary && r.connections.iter().any(primary) {
            let other = r.connections.iter().find(|c| primary(c)).map(|c| c.name.as_str()).unwrap_or_default();
            let text = format!("This node is Secondary: the device can be used on {other} only.");
            let next = format!("to move it here: on {other}, urbd secondary {name}; here, urbd primary {name}");
            self.add(object(), Weight::Note, "primary-elsewhere", text, next);
        }
    }
}

/// With a capital letter and a full stop.
fn sentence(text: &str) -> String {
    let mut chars = text.chars();
    let first: String = chars.next().map(|c| c.to_uppercase().collect()).unwrap_or_default();
    let text = first + chars.as_str();
    if text.ends_with(['.', '!', '?']) { text } else { text + "." }
}
