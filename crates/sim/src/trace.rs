//! What happened: a hash always, and lines for people if wanted.

use units::Instant;

/// The record of a run.
#[derive(Clone, Debug, Default)]
pub(crate) struct Trace {
    hash: u64,
    lines: Option<Vec<String>>,
}

impl Trace {
    /// Keeps lines if `verbose`.
    pub(crate) fn new(verbose: bool) -> Trace {
        Trace { hash: 0xcbf2_9ce4_8422_2325, lines: verbose.then(Vec::new) }
    }

    /// Adds a number to the hash.
    pub(crate) fn mix(&mut self, n: u64) {
        let h = (self.hash ^ n).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.hash = h ^ (h >> 29);
    }

    pub(crate) fn note(&mut self, now: Instant, line: impl FnOnce() -> String) {
        if let Some(lines) = &mut self.lines {
            lines.push(format!("{now:?} {}", line()));
        }
    }

    pub(crate) fn hash(&self) -> u64 {
        self.hash
    }

    pub(crate) fn into_lines(self) -> Vec<String> {
        self.lines.unwrap_or_default()
    }
}
