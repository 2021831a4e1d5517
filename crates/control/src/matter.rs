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
use crate::status::{Opening, ResourceStatus};

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

/// What comes next, of which `next!` is the only maker: the tests read its sentences in the sources, and type each.
pub(crate) struct Next(String);

impl Next {
    fn new(_sentence: &'static str, text: String) -> Next {
        #[cfg(test)]
        tests::said(_sentence);
        Next(text)
    }
}

impl fmt::Display for Next {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A sentence with holes for names; what `fetch` and `start` stand for is a sentence of its own.
macro_rules! next {
    ($sentence:literal) => {
        $crate::matter::Next::new($sentence, format!($sentence))
    };
}
use next;

/// What was found so far.
struct List<'a> {
    resource: &'a str,
    found: Vec<Matter>,
}

impl List<'_> {
    fn add(&mut self, object: String, weight: Weight, code: &str, text: impl Into<String>, next: Option<Next>) {
        let next = next.map(|next| next.0);
        self.found.push(Matter { object, code: code.to_owned(), weight, text: crate::plain(&text.into()), next });
    }

    fn resource(&mut self, r: &ResourceStatus) {
        let name = self.resource;
        let object = || name.to_owned();
        if r.suspended.user {
            let text = match &r.frozen_by {
                Some(who) => format!(
                    "Applications' I/O is frozen for {}, because user {} asked for it (suspend-io): {who}.",
                    span(who.seconds),
                    who.user
                ),
                None => "Applications' I/O is frozen, because somebody asked for it (suspend-io).".to_owned(),
            };
            let lease =
                r.frozen_for.map(|left| format!(" It goes on by itself in {} (--lease).", span(left.get().into())));
            let text = text + &lease.unwrap_or_default();
            let next = next!("when whoever needs it has ended: urbd resume-io {name}");
            self.add(object(), Weight::Error, "frozen-user", text, Some(next));
        }
        if r.suspended.no_data {
            let text = "Applications' I/O is frozen, because no UpToDate data is in reach (on-no-data-accessible).";
            let names = r.connections.iter().map(|c| c.name.as_str()).collect::<Vec<_>>().join(" or ");
            let next = match names.is_empty() {
                true => next!("if this node's disk was lost last: urbd attach {name}"),
                false => {
                    next!("on {names}: urbd adjust {name}; or, if this node's disk was lost last: urbd attach {name}")
                }
            };
            self.add(object(), Weight::Error, "frozen-no-data", text, Some(next));
        }
        if r.suspended.fencing {
            let text = "Applications' I/O is frozen until the fence-peer handler has said that the peer cannot write.";
            let next = next!("if it never ends, and the peer is surely off: urbd resume-io {name}");
            self.add(object(), Weight::Error, "frozen-fencing", text, Some(next));
        }
        // A Secondary's applications are not there.
        if r.suspended.quorum && r.role == Role::Primary {
            let text = "Applications' I/O is frozen, because too few nodes are in reach (quorum, on-no-quorum).";
            self.add(object(), Weight::Error, "frozen-quorum", text, device::without_quorum(r));
        }
        if r.force_io_failures {
            let text = "All I/O fails, because somebody asked for it (secondary --force).";
            let next = next!("close the device; then: urbd secondary {name}");
            self.add(object(), Weight::Error, "io-fails-by-force", text, Some(next));
        }
        self.applications_left_behind(r);
        if r.opening == Opening::PromotesByDialect {
            let text = "Whoever opens the device for writing makes its node Primary from now on: DRBD 9's dialect is \
                        spoken, and auto-promote is not written.";
            let next = next!(
                "write into the file on all nodes, to have it as it was: options {{ auto-promote no; }}, or as it is now: \
                 options {{ auto-promote yes; }}; then: urbd adjust {name}"
            );
            self.add(object(), Weight::Warning, "opening-promotes", text, Some(next));
        }
        let primary = |c: &crate::ConnectionStatus| c.peer_role == Role::Primary;
        if r.role == Role::Secondary && !r.connections.iter().any(primary) && !r.devices.is_empty() {
            let text = match r.opening {
                Opening::Refused => "No node that is in reach is Primary, so the device cannot be opened or mounted.",
                _ => "No node that is in reach is Primary; whoever opens the device for writing makes its node that.",
            };
            let away = device::away(r);
            let next = match away.is_empty() {
                // It would be refused.
                _ if !device::can_be_primary(r) => None,
                true => Some(next!("where it is to be used: urbd primary {name}")),
                // Two that write without each other make a split brain.
                false if away.contains(" or ") => {
                    Some(next!("where it is to be used, if surely none of {away} is Primary: urbd primary {name}"))
                }
                false => Some(next!("where it is to be used, if {away} is surely not Primary: urbd primary {name}")),
            };
            self.add(object(), Weight::Note, "nobody-primary", text, next);
        }
        if r.role == Role::Secondary && r.connections.iter().any(primary) {
            let other = r.connections.iter().find(|c| primary(c)).map(|c| c.name.as_str()).unwrap_or_default();
            let text = format!("This node is Secondary: the device can be used on {other} only.");
            let next = next!("to move it here: on {other}, urbd secondary {name}; here, urbd primary {name}");
            self.add(object(), Weight::Note, "primary-elsewhere", text, Some(next));
        }
    }

    /// The process was away, and applications have the device open.
    fn applications_left_behind(&mut self, r: &ResourceStatus) {
        let (name, Some(cause)) = (self.resource, &r.cause) else { return };
        let primary = r.connections.iter().find(|c| c.peer_role == Role::Primary).map(|c| &c.name);
        let names = r.connections.iter().map(|c| c.name.as_str()).collect::<Vec<_>>().join(" or ");
        let next = match (cause.code.as_str(), primary) {
            ("waits-to-be-primary", _) => next!(
                "on {names}, which is to be reached again: urbd adjust {name}; without that, if it is surely not Primary, \
                 here: urbd resume-io {name}"
            ),
            ("replaced-meanwhile", Some(other)) => {
                next!("to have it here again: on {other}, urbd secondary {name}; here, urbd primary {name}")
            }
            ("replaced-meanwhile", None) => next!("unmount it here; where it is to be used: urbd primary {name}"),
            _ => return,
        };
        self.add(name.to_owned(), Weight::Error, &cause.code, sentence(&cause.text), Some(next));
    }
}

/// How long something takes already.
fn span(seconds: u64) -> String {
    match seconds {
        0..120 => format!("{seconds} s"),
        120..7200 => format!("{} minutes", seconds / 60),
        7200..172_800 => format!("{} hours", seconds / 3600),
        _ => format!("{} days", seconds / 86_400),
    }
}

/// With a capital letter and a full stop.
fn sentence(text: &str) -> String {
    let mut chars = text.chars();
    let first: String = chars.next().map(|c| c.to_uppercase().collect()).unwrap_or_default();
    let text = first + chars.as_str();
    if text.ends_with(['.', '!', '?']) { text } else { text + "." }
}
