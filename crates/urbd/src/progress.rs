//! How far something long is, on standard error: one line that is drawn again and again on a terminal, else a line
//! every ten seconds.

use std::io::{self, IsTerminal, Write};
use std::time::{Duration, Instant};

use control::query;

/// Distance of lines without a terminal; what ends before that says nothing.
const LINE: Duration = Duration::from_secs(10);
/// Distance of drawings on a terminal, and how long something takes at least to be drawn at all.
const DRAW: Duration = Duration::from_millis(200);

/// Who tells how far it is.
#[derive(Debug)]
pub(crate) struct Progress {
    label: String,
    terminal: bool,
    since: Instant,
    told: Instant,
    drawn: bool,
}

impl Progress {
    /// Of the work on `label`.
    pub(crate) fn new(label: &str) -> Progress {
        let now = Instant::now();
        Progress { label: label.to_owned(), terminal: io::stderr().is_terminal(), since: now, told: now, drawn: false }
    }

    /// Tells, if it is time to.
    pub(crate) fn tell(&mut self, now: Instant, done: Done) {
        if !self.is_due(now) {
            return;
        }
        let mut out = io::stderr().lock();
        let _ = match self.terminal {
            true => write!(out, "\r{}", bar(&self.label, done)).and_then(|()| out.flush()),
            false => writeln!(out, "{}", line(&self.label, done)),
        };
        self.drawn = self.terminal;
    }

    fn is_due(&mut self, now: Instant) -> bool {
        let step = if self.terminal { DRAW } else { LINE };
        let due = now.duration_since(self.told) >= step;
        if due {
            self.told = now;
        }
        due
    }

    /// Tells how many of so many bytes are done.
    pub(crate) fn bytes(&mut self, done: u64, total: u64) {
        let now = Instant::now();
        let seconds = now.duration_since(self.since).as_secs_f64();
        let rate = done as f64 / seconds.max(1e-9);
        let percent = if total == 0 { 100.0 } else { done as f64 * 100.0 / total as f64 };
        let left = (done > 0).then(|| ((total - done) as f64 / rate).round() as u64);
        self.tell(now, Done { percent, mib_per_s: rate / 1_048_576.0, left, note: "" });
    }

    /// Ends the line that was drawn.
    pub(crate) fn end(&mut self) {
        if std::mem::take(&mut self.drawn) {
            eprintln!();
        }
    }
}

/// How far it is.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Done {
    /// 0 to 100.
    pub(crate) percent: f64,
    /// 0 if not known.
    pub(crate) mib_per_s: f64,
    /// Seconds until its end, if that can be told.
    pub(crate) left: Option<u64>,
    /// What it waits for, or nothing.
    pub(crate) note: &'static str,
}

fn left(done: Done) -> String {
    done.left.map_or("--:--:--".to_owned(), query::clock)
}

/// Without a terminal.
fn line(label: &str, done: Done) -> String {
    let comma = if done.note.is_empty() { "" } else { ", " };
    format!("{label}: {:.1} % done, {:.1} MiB/s, {} left{comma}{}", done.percent, done.mib_per_s, left(done), done.note)
}

/// For a terminal of 80 columns.
fn bar(label: &str, done: Done) -> String {
    let cells = 24;
    let full = ((done.percent / 100.0 * f64::from(cells)) as usize).min(cells as usize);
    let rest = cells as usize - full;
    let (percent, rate) = (done.percent, done.mib_per_s);
    // Blanks wipe out the rest of a longer line.
    format!("{label} [{}{}] {percent:6.2} % {rate:7.1} MiB/s {} left  ", "=".repeat(full), ".".repeat(rest), left(done))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bar_is_full_at_100_percent() {
        let at = |percent, left| Done { percent, mib_per_s: 1.5, left, note: "" };
        assert_eq!(bar("r0", at(0.0, None)), format!("r0 [{}]   0.00 %     1.5 MiB/s --:--:-- left  ", ".".repeat(24)));
        let full = format!("r0 [{}] 100.00 %     1.5 MiB/s 1:02:05 left  ", "=".repeat(24));
        assert_eq!(bar("r0", at(100.0, Some(3725))), full);
        assert!(full.len() < 80);
    }

    #[test]
    fn without_a_terminal_there_is_a_line_every_ten_seconds() {
        let begin = Instant::now();
        let lines = |terminal| {
            let mut progress = Progress { terminal, told: begin, ..Progress::new("r0") };
            (1..=350u32).filter(|tenths| progress.is_due(begin + DRAW / 2 * *tenths)).count()
        };
        assert_eq!((lines(false), lines(true)), (3, 175));
    }

    #[test]
    fn a_line_says_what_it_waits_for() {
        let done = Done { percent: 12.34, mib_per_s: 45.0, left: Some(61), note: "limited by the configured rate" };
        assert_eq!(line("r0", done), "r0: 12.3 % done, 45.0 MiB/s, 0:01:01 left, limited by the configured rate");
    }
}
