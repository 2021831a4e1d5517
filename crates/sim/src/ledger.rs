//! The ledger of long runs: what was run so far, what failed, and which reasons of decisions were ever reached.
//!
//! Text, one fact a line: `seeds N`, `events N`, `virtual-seconds N`, `seconds N`, `reached NAME COUNT`,
//! `row COUNT TABLE ROW`, `failed SEED TEXT`.
//! A run goes on behind the last seed of its ledger.

use crate::Outcome;
use crate::campaign::Coverage;
use std::collections::BTreeMap;
use std::path::Path;
use urbd_core::TABLES;
use urbd_core::decide::Reason;

#[derive(Default)]
pub(crate) struct Ledger {
    pub(crate) seeds: u64,
    pub(crate) events: u64,
    pub(crate) virtual_seconds: f64,
    pub(crate) seconds: f64,
    /// Events of the shortest run of this process.
    pub(crate) fewest: Option<u64>,
    /// The hashes of all effects of this process's seeds, if they were asked for.
    pub(crate) effects: BTreeMap<u64, u64>,
    reached: BTreeMap<String, u64>,
    rows: BTreeMap<String, u64>,
    pub(crate) failed: BTreeMap<u64, String>,
}

impl Ledger {
    /// Reads a ledger; an empty one if there is no such file.
    pub(crate) fn load(path: &Path) -> Result<Ledger, String> {
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
    pub(crate) fn save(&self, path: &Path) -> std::io::Result<()> {
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
        if outcome.failure.is_none() {
            self.fewest = Some(self.fewest.map_or(outcome.events, |fewest| fewest.min(outcome.events)));
        }
        self.effects.extend(outcome.effects.map(|hash| (seed, hash)));
        self.virtual_seconds += outcome.time.as_secs_f64();
        self.note_coverage(&outcome);
        if let Some(text) = outcome.failure {
            println!("seed {seed}: {text}");
            self.failed.insert(seed, text);
        }
    }

    /// A run that had no end.
    pub(crate) fn note_failure(&mut self, seed: u64, text: String) {
        self.seeds += 1;
        self.failed.insert(seed, text);
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

    /// Was at least so much reached? Says what is missing.
    pub(crate) fn covers(&self, least: Coverage) -> bool {
        let known = |row: &str| TABLES.iter().any(|(table, rows)| rows.iter().any(|r| format!("{table} {r}") == row));
        let reasons = Reason::ALL.iter().filter(|r| self.reached.contains_key(r.name())).count();
        let rows = self.rows.keys().filter(|row| known(row)).count();
        let enough = [("reasons of decisions", reasons, least.reasons), ("rows of decision tables", rows, least.rows)]
            .into_iter()
            .filter(|(_, reached, least)| reached < least)
            .inspect(|(what, reached, least)| println!("only {reached} {what} were reached: {least} are wanted"));
        enough.count() == 0
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
        for (table, rows) in TABLES {
            let (reached, never): (Vec<&str>, Vec<&str>) =
                rows.iter().copied().partition(|row| self.rows.contains_key(&format!("{table} {row}")));
            (all, found) = (all + rows.len(), found + reached.len());
            let never: Vec<_> = never.iter().map(|row| format!("\"{row}\"")).collect();
            println!("{table}: {} of {} rows; never: {}", reached.len(), rows.len(), never.join(" "));
        }
        println!("rows of decision tables that were decisive: {found} of {all} ({} %)", 100 * found / all);
    }
}
