//! The ledger of long runs: what was run so far, what failed, and which reasons of decisions were ever reached.
//!
//! Text, one fact a line: `seeds N`, `events N`, `virtual-seconds N`, `seconds N`, `reached NAME COUNT`,
//! `row COUNT TABLE ROW`, `failed SEED TEXT`.
//! A run goes on behind the last seed of its ledger.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use urbd_core::decide::Reason;
use urbd_sim::{Options, Outcome, run_seed};

/// The file is written after so many seeds.
const SAVE_EVERY: u64 = 50;

#[derive(Default)]
pub(crate) struct Ledger {
    seeds: u64,
    events: u64,
    virtual_seconds: f64,
    seconds: f64,
    reached: BTreeMap<String, u64>,
    rows: BTreeMap<String, u64>,
    failed: BTreeMap<u64, String>,
}

impl Ledger {
    /// Reads a ledger; an empty one if there is no such file.
    fn load(path: &Path) -> Result<Ledger, String> {
        let text = match std::fs::read_to_string(path) {
            Ok(text) => text,
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(Ledger::default()),
            Err(e) => return Err(format!("{}: {e}", path.display())),
        };
        let mut ledger = Ledger::default();
        for (number, line) in text.lines().enumerate() {
            let known = ledger.read_line(line);
            known.ok_or_else(|| format!("{}, line {}: not a line of a ledger: {line}", path.display(), number + 1))?;
        }
        Ok(ledger)
    }

    fn read_line(&mut self, line: &str) -> Option<()> {
        let (key, value) = line.split_once(' ')?;
        match key {
            "seeds" => self.seeds = value.parse().ok()?,
            "events" => self.events = value.parse().ok()?,
            "virtual-seconds" => self.virtual_seconds = value.parse().ok()?,
            "seconds" => self.seconds = value.parse().ok()?,
            "reached" => {
                let (name, count) = value.split_once(' ')?;
                self.reached.insert(name.to_owned(), count.parse().ok()?);
            }
            "row" => {
                let (count, row) = value.split_once(' ')?;
                self.rows.insert(row.to_owned(), count.parse().ok()?);
            }
            "failed" => {
                let (seed, text) = value.split_once(' ')?;
                self.failed.insert(seed.parse().ok()?, text.to_owned());
            }
            _ => return None,
        }
        Some(())
    }

    /// Writes it whole, or leaves the old one.
    fn save(&self, path: &Path) -> std::io::Result<()> {
        let mut text = format!(
            "seeds {}\nevents {}\nvirtual-seconds {:.0}\nseconds {:.0}\n",
            self.seeds, self.events, self.virtual_seconds, self.seconds
        );
        self.reached.iter().for_each(|(name, count)| text += &format!("reached {name} {count}\n"));
        self.rows.iter().for_each(|(row, count)| text += &format!("row {count} {row}\n"));
        self.failed.iter().for_each(|(seed, words)| text += &format!("failed {seed} {}\n", words.replace('\n', " ")));
        path.parent().map_or(Ok(()), std::fs::create_dir_all)?;
        let fresh = path.with_extension("new");
        std::fs::write(&fresh, text)?;
        std::fs::rename(fresh, path)
    }

    pub(crate) fn add(&mut self, seed: u64, outcome: Outcome) {
        self.seeds += 1;
        self.events += outcome.events;
        self.virtual_seconds += outcome.time.as_secs_f64();
        self.note_coverage(&outcome);
        if let Some(text) = outcome.failure {
            println!("seed {seed}: {text}");
            self.failed.insert(seed, text);
        }
    }

    /// What a run has reached.
    pub(crate) fn note_coverage(&mut self, outcome: &Outcome) {
        for (name, count) in &outcome.reached {
            *self.reached.entry((*name).to_owned()).or_default() += count;
        }
        for (row, count) in &outcome.rows {
            *self.rows.entry(row.clone()).or_default() += count;
        }
    }

    /// Which of the reasons that decisions have were given, and which never.
    pub(crate) fn print_coverage(&self) {
        let (reached, never): (Vec<_>, Vec<_>) =
            Reason::ALL.iter().map(|r| r.name()).partition(|name| self.reached.contains_key(*name));
        let percent = 100 * reached.len() / Reason::ALL.len();
        println!("reasons of decisions reached: {} of {} ({percent} %)", reached.len(), Reason::ALL.len());
        println!("never reached: {}", never.join(" "));
        if !self.rows.is_empty() {
            self.print_rows();
        }
    }

    /// Which rows of decision tables were decisive.
    fn print_rows(&self) {
        let (mut all, mut found) = (0, 0);
        for (table, rows) in urbd_core::TABLES {
            let (reached, never): (Vec<&str>, Vec<&str>) =
                rows.iter().copied().partition(|row| self.rows.contains_key(&format!("{table} {row}")));
            (all, found) = (all + rows.len(), found + reached.len());
            let never: Vec<_> = never.iter().map(|row| format!("\"{row}\"")).collect();
            println!("{table}: {} of {} rows; never: {}", reached.len(), rows.len(), never.join(" "));
        }
        println!("rows of decision tables that were decisive: {found} of {all} ({} %)", 100 * found / all);
    }
}

/// Runs seeds on both cores for so long, from where the ledger at `path` ends. True if any seed of the ledger failed.
pub(crate) fn run_for(hours: f64, path: &Path) -> bool {
    let ledger = Ledger::load(path).unwrap_or_else(|text| {
        eprintln!("{text}; move it away to begin a new one");
        std::process::exit(20)
    });
    std::panic::set_hook(Box::new(|_| {}));
    let (began, before) = (Instant::now(), ledger.seconds);
    let end = began + Duration::from_secs_f64(hours * 3600.0);
    let next = AtomicU64::new(ledger.seeds + 1);
    let ledger = Mutex::new(ledger);
    let work = || {
        while Instant::now() < end {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            let outcome = run_seed(seed, Options::default());
            let mut ledger = ledger.lock().expect("no worker dies holding it");
            ledger.add(seed, outcome);
            ledger.seconds = before + began.elapsed().as_secs_f64();
            if ledger.seeds.is_multiple_of(SAVE_EVERY) {
                ledger.save(path).unwrap_or_else(|e| eprintln!("{}: {e}", path.display()));
            }
        }
    };
    std::thread::scope(|scope| (0..2).for_each(|_| drop(scope.spawn(work))));
    let ledger = ledger.into_inner().expect("all workers have ended");
    ledger.save(path).unwrap_or_else(|e| eprintln!("{}: {e}", path.display()));
    println!(
        "{}: {} seeds, {} failed; {} events ({:.0} per second), {:.1} h of virtual time",
        path.display(),
        ledger.seeds,
        ledger.failed.len(),
        ledger.events,
        ledger.events as f64 / ledger.seconds.max(0.001),
        ledger.virtual_seconds / 3600.0
    );
    ledger.print_coverage();
    !ledger.failed.is_empty()
}
