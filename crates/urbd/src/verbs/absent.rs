//! Resources that are configured for this node, and that no process runs: `status` has a line for each.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};

use crate::context::{Context, WARNING};
use crate::problem::{Problem, exit};
use crate::verbs::background::{self, Unit};

/// How much of a log's end is looked at, in bytes.
const END: u64 = 4096;
const OURS: &str = "urbd: ";
const HINT: &str = "urbd: hint: ";

/// One of them.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Absent {
    /// Its name.
    pub(crate) name: String,
    why: String,
    next: Option<String>,
}

impl Absent {
    /// `RES not running: WHY. Next: COMMAND`
    pub(crate) fn line(&self) -> String {
        format!("{} not running: {}", self.name, self.reason())
    }

    /// What `why` says.
    pub(crate) fn problem(&self) -> Problem {
        Problem::new(exit::FAILURE, format!("{}: does not run: {}", self.name, self.reason()))
    }

    /// What a verb says that wants it to run: the words that other programs match, why, and what to do.
    pub(crate) fn refusal(&self) -> Problem {
        let refusal = Problem::not_running(&self.name);
        let message = format!("{}: {}", refusal.message, self.why);
        Problem { message, ..refusal }.hint(format!("next: {}", self.next()))
    }

    /// `WHY. Next: COMMAND`
    pub(crate) fn reason(&self) -> String {
        format!("{}. Next: {}", self.why, self.next())
    }

    fn next(&self) -> String {
        let start = format!("urbd up {}", self.name);
        self.next.as_ref().map_or(start.clone(), |next| format!("{next}; then: {start}"))
    }
}

/// Those that are configured, and not among `running`. A configuration that cannot be read has none: what runs does not
/// depend on it.
pub(crate) fn absent(context: &Context, running: &[String]) -> Vec<Absent> {
    let names = context.configured_here().into_iter().filter(|name| !running.contains(name));
    names.map(|name| explained(context, name)).collect()
}

/// Why a resource does not run that is configured.
pub(crate) fn explained(context: &Context, name: String) -> Absent {
    let (why, next) = match background::unit_state(context, &name) {
        Some(Unit::Failed { said, hint }) if said.is_empty() => ("its unit failed".to_owned(), hint),
        Some(Unit::Failed { said, hint }) => (format!("its unit failed: {said}"), hint),
        Some(Unit::Starting) => ("its unit is being started".to_owned(), None),
        None => match last_words(&end_of_log(context, &name)) {
            Some((said, hint)) => (format!("its process ended: {said}"), hint),
            None if context.socket(&name).exists() => ("its process was killed".to_owned(), None),
            None => ("it was not started, or it was stopped".to_owned(), None),
        },
    };
    Absent { name, why, next }
}

fn end_of_log(context: &Context, name: &str) -> String {
    let mut text = Vec::new();
    // Who may not read it is not told.
    if let Ok(mut file) = File::open(context.run_dir.join(format!("{name}.log"))) {
        let from = file.metadata().map_or(0, |m| m.len().saturating_sub(END));
        let _ = file.seek(SeekFrom::Start(from)).and_then(|_| file.take(END).read_to_end(&mut text));
    }
    String::from_utf8_lossy(&text).into_owned()
}

/// Why a process ended, and its hint, if that is the last that it said.
fn last_words(log: &str) -> Option<(String, Option<String>)> {
    let mut lines = log.lines().rev().filter(|line| !line.trim().is_empty());
    let mut last = lines.next()?;
    let hint = last.strip_prefix(HINT);
    if hint.is_some() {
        last = lines.next()?;
    }
    let said = Some(last).filter(|line| !line.starts_with(WARNING))?.strip_prefix(OURS)?;
    Some((said.to_owned(), hint.map(str::to_owned)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_words_of_a_process_say_why_it_ended() {
        let words = |log: &str| last_words(log).map(|(said, hint)| format!("{said}|{}", hint.unwrap_or_default()));
        for (log, expected) in [
            ("urbd: cannot open /dev/sda: gone\n", Some("cannot open /dev/sda: gone|")),
            ("urbd: no metadata\nurbd: hint: urbd create-md r0\n\n", Some("no metadata|urbd create-md r0")),
            ("urbd: an older one\n2026-11-27T15:11:56.472Z info: r0: stopped\n", None),
            ("urbd: warning: x\n", None),
            ("", None),
        ] {
            assert_eq!(words(log).as_deref(), expected, "{log}");
        }
    }
}
