//! What happened: a hash always, and lines for people if wanted.

use std::fmt::Write;
use units::Instant;

/// The record of a run.
#[derive(Clone, Debug, Default)]
pub(crate) struct Trace {
    hash: u64,
    lines: Option<Vec<String>>,
    effects: Option<EffectsHash>,
}

/// A hash of the texts of all effects of all cores, in order: two versions of the core that agree on it for many seeds
/// do the same.
#[derive(Clone, Debug)]
pub(crate) struct EffectsHash(u64);

impl Write for EffectsHash {
    fn write_str(&mut self, text: &str) -> std::fmt::Result {
        self.0 = text.bytes().fold(self.0, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3));
        Ok(())
    }
}

impl Trace {
    /// Keeps lines if `verbose`, and hashes effects if `effects`.
    pub(crate) fn new(verbose: bool, effects: bool) -> Trace {
        let effects = effects.then_some(EffectsHash(0xcbf2_9ce4_8422_2325));
        Trace { hash: 0xcbf2_9ce4_8422_2325, lines: verbose.then(Vec::new), effects }
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

    /// An effect of node `n`.
    pub(crate) fn note_effect(&mut self, now: Instant, n: usize, effect: &urbd_core::Effect) {
        if let Some(hash) = &mut self.effects {
            let _ = write!(hash, "{now:?} n{n} {effect:?}");
        }
        self.note(now, || format!("n{n} -> {effect:?}"));
    }

    /// The hash of all effects, if that was asked for.
    pub(crate) fn effects(&self) -> Option<u64> {
        self.effects.as_ref().map(|hash| hash.0)
    }

    pub(crate) fn hash(&self) -> u64 {
        self.hash
    }

    pub(crate) fn into_lines(self) -> Vec<String> {
        self.lines.unwrap_or_default()
    }
}
