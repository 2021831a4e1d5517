//! The options of `urbd-sim` and of `urbd sim`, and what a set of them asks for.

use crate::campaign::{Campaign, Coverage, parse_place};
use crate::{Options, Plan};
use std::collections::BTreeSet;
use std::num::NonZeroUsize;
use std::time::Duration;

/// An option of the command line, without its dashes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Opt {
    /// Its name.
    pub name: &'static str,
    /// What its value is; `None`: it has none.
    pub value: Option<&'static str>,
    /// One line.
    pub help: &'static str,
}

const fn flag(name: &'static str, help: &'static str) -> Opt {
    Opt { name, value: None, help }
}

const fn value(name: &'static str, value: &'static str, help: &'static str) -> Opt {
    Opt { name, value: Some(value), help }
}

/// All options.
pub const OPTIONS: &[Opt] = &[
    value("seed", "SEED[+LUCK][:STEP[@SECONDS][/VALUE],…]", "Run this one; with numbers, only these steps of its plan"),
    flag("trace", "Show everything that happens"),
    value("watch", "VOLUME:SECTOR", "Show what a sector holds, and may hold, whenever that changes"),
    value("shrink", "SECONDS", "Look so long for a shorter and simpler plan that fails in the same way"),
    value("seeds", "N", "Run so many seeds; default: 1000"),
    value("first", "SEED", "The first of them; default: 1"),
    value("events", "N", "Go on until there were so many events"),
    value("each", "N", "Fail if a seed had fewer events"),
    value("known", "FILE", "Seeds that are known to fail, one in a line: fail if one passes, or another does not"),
    value("effects", "FILE", "Write a hash of all effects of each seed into this file: to compare two versions"),
    value("reasons", "N", "Fail if fewer reasons of decisions were given"),
    #[cfg(feature = "rows")]
    value("rows", "N", "Fail if fewer rows of decision tables were decisive"),
    value("jobs", "N", "So many at a time; default: one for each processor"),
    value("scenario", "NAME", "Run the named scenarios that begin so"),
    value("scenarios", "FILE", "Of this file, instead of those that are built in"),
    value("hours", "H", "Run seeds for so long, from where the ledger ends"),
    value("ledger", "FILE", "Where --hours keeps how far it came, what was reached, and what failed"),
];

impl Campaign {
    /// What a command line asks for. `given` has the value of an option: `None` if it is not there, any text for a
    /// flag.
    ///
    /// # Errors
    /// A value that is none, or options that do not go together: what is wrong with which.
    pub fn from_options<'a>(given: &dyn Fn(&str) -> Option<&'a str>) -> Result<Campaign, String> {
        let plan = parsed(given, "seed", "N[+LUCK] or N[+LUCK]:STEP,STEP,…", Plan::parse)?;
        let watch = parsed(given, "watch", "VOLUME:SECTOR", parse_place)?;
        let shrink = number(given, "shrink")?.map(Duration::from_secs);
        let least = |text: &str| text.parse().ok();
        let jobs = parsed::<NonZeroUsize>(given, "jobs", "a number, at least 1", least)?;
        let jobs = jobs.unwrap_or_else(Campaign::all_processors);
        let trace = given("trace").is_some() || watch.is_some();
        let hours = |text: &str| text.parse::<f64>().ok().filter(|hours| (0.0..1e6).contains(hours));
        if let Some(hours) = parsed(given, "hours", "a number from 0 on", hours)? {
            let needs = "--hours goes on from a ledger: name a file with --ledger; it is made";
            return Ok(Campaign::Hours { hours, ledger: given("ledger").ok_or(needs)?.into(), jobs });
        }
        if let Some(name) = given("scenario") {
            let file = given("scenarios").map(Into::into);
            return Ok(Campaign::Scenarios { name: name.to_owned(), file, seed: plan.map(|plan| plan.seed), trace });
        }
        if let Some(plan) = plan {
            return Ok(Campaign::One {
                plan: Box::new(plan),
                options: Options { trace, watch, effects: false },
                shrink,
            });
        }
        if trace || shrink.is_some() || given("ledger").is_some() {
            return Err("--trace, --watch and --shrink need --seed; --ledger needs --hours".to_owned());
        }
        let number = |name, default| number(given, name).map(|n| n.unwrap_or(default));
        Ok(Campaign::Many {
            first: number("first", 1)?,
            count: number("seeds", 1000)?,
            events: number("events", 0)?,
            each: number("each", 0)?,
            least: Coverage { reasons: number("reasons", 0)? as usize, rows: number("rows", 0)? as usize },
            known: given("known").map_or_else(|| Ok(BTreeSet::new()), seeds_in)?,
            effects: given("effects").map(Into::into),
            jobs,
        })
    }
}

fn parsed<'a, T>(
    given: &dyn Fn(&str) -> Option<&'a str>,
    name: &str,
    what: &str,
    parse: impl Fn(&str) -> Option<T>,
) -> Result<Option<T>, String> {
    let Some(text) = given(name) else { return Ok(None) };
    parse(text).map(Some).ok_or_else(|| format!("--{name}={text}: must be {what}"))
}

fn number<'a>(given: &dyn Fn(&str) -> Option<&'a str>, name: &str) -> Result<Option<u64>, String> {
    parsed(given, name, "a number without a unit", |text| text.parse().ok())
}

/// The seeds in a file: one in a line, then words.
fn seeds_in(file: &str) -> Result<BTreeSet<u64>, String> {
    let text = std::fs::read_to_string(file).map_err(|e| format!("--known={file}: {e}"))?;
    let entries = text.lines().filter_map(|line| line.split('#').next()).map(str::trim);
    let seeds = entries.filter(|entry| !entry.is_empty());
    seeds.map(|entry| entry.parse().map_err(|_| format!("--known={file}: {entry} is no seed"))).collect()
}
