//! What people ask the simulator for: one seed, many, scenarios, hours of them. Results are printed; the answer is
//! whether something failed.

use crate::ledger::Ledger;
use crate::{Options, Plan, parse_scenarios, run_plan, run_scenario, run_seed, shrink};
use std::cell::Cell;
use std::collections::BTreeSet;
use std::io::Write;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

/// The file is written after so many seeds.
const SAVE_EVERY: u64 = 50;

const SCENARIOS: &str = include_str!("../scenarios.txt");

/// Exit status of a program whose run has found something.
pub const FAILED: u8 = 10;
/// Of one that was called wrongly.
pub const BAD_CALL: u8 = 1;
/// Of one whose ledger cannot be read or written.
pub const BROKEN: u8 = 20;

/// How much of what decides is reached.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Coverage {
    /// Reasons of decisions.
    pub reasons: usize,
    /// Rows of decision tables (with the feature `rows`).
    pub rows: usize,
}

/// What to do.
#[derive(Clone, PartialEq, Debug)]
pub enum Campaign {
    /// Runs a plan.
    One {
        /// Which.
        plan: Box<Plan>,
        /// What to show.
        options: Options,
        /// Look so long for a shorter plan that fails in the same way, show it and run it.
        shrink: Option<Duration>,
    },
    /// Runs those scenarios whose names begin so.
    Scenarios {
        /// The beginning of their names.
        name: String,
        /// The file that has them; `None`: those that are built in.
        file: Option<PathBuf>,
        /// With this seed; `None`: with several.
        seed: Option<u64>,
        /// Show everything that happens.
        trace: bool,
    },
    /// Runs seeds from `first` on: at least `count`, and until there were at least `events`.
    Many {
        /// The first seed.
        first: u64,
        /// So many at least.
        count: u64,
        /// So many events at least, of all together.
        events: u64,
        /// A seed with fewer events fails: it has tried too little.
        each: u64,
        /// Seeds that fail, which is known: they are run all the same, and it is a failure if one passes.
        known: BTreeSet<u64>,
        /// It is a failure if fewer reasons of decisions are given, or rows of decision tables decide.
        least: Coverage,
        /// Where a hash of all effects of each seed is written, a line each, in order of seeds.
        effects: Option<PathBuf>,
        /// So many at a time.
        jobs: NonZeroUsize,
    },
    /// Runs seeds for so long, from where a ledger ends.
    Hours {
        /// How long.
        hours: f64,
        /// The ledger; it is made if it is not there.
        ledger: PathBuf,
        /// So many seeds at a time.
        jobs: NonZeroUsize,
    },
}

impl Campaign {
    /// Does it; true if something failed.
    ///
    /// # Errors
    /// The ledger or the scenarios cannot be read or written, or none has such a name: what, and what to do.
    pub fn run(self) -> Result<bool, String> {
        match self {
            Campaign::One { plan, options, shrink } => Ok(one(*plan, options, shrink)),
            Campaign::Scenarios { name, file, seed, trace } => scenarios(&name, file.as_deref(), seed, trace),
            Campaign::Many { first, count, events, each, known, least, effects, jobs } => {
                let more = |ledger: &Ledger, next| next < first + count || ledger.events < events;
                let ledger = many(first, jobs, effects.is_some(), more);
                if let Some(file) = effects {
                    let lines = ledger.effects.iter().map(|(seed, hash)| format!("{seed} {hash:016x}\n"));
                    let written = std::fs::write(&file, lines.collect::<String>());
                    written.map_err(|e| format!("{}: {e}", file.display()))?;
                }
                let covered = ledger.covers(least);
                Ok(judge(&ledger, each, &known) || !covered)
            }
            Campaign::Hours { hours, ledger, jobs } => run_for(hours, &ledger, jobs),
        }
    }

    /// So many seeds at a time as there are processors.
    #[must_use]
    pub fn all_processors() -> NonZeroUsize {
        std::thread::available_parallelism().unwrap_or(NonZeroUsize::MIN)
    }
}

/// `VOLUME:SECTOR`, for [`Options::watch`]. `None`: it is not that.
pub(crate) fn parse_place(text: &str) -> Option<(usize, u64)> {
    let (volume, sector) = text.split_once(':')?;
    Some((volume.parse().ok()?, sector.parse().ok()?))
}

fn one(mut plan: Plan, options: Options, short: Option<Duration>) -> bool {
    let seed = plan.seed;
    RUNNING.set(seed);
    if cfg!(panic = "abort") {
        quiet_panics(None);
    }
    if let Some(most) = short {
        let began = Instant::now();
        plan = shrink(&plan, || began.elapsed() < most);
        println!("{:#?}", plan.setup);
        plan.steps.iter().for_each(|p| println!("{:?} {:?}", p.at, p.step));
        println!("for seeds.txt: {}", plan.name());
    }
    let outcome = run_plan(&plan, options);
    outcome.trace.iter().for_each(|line| println!("{line}"));
    match &outcome.failure {
        Some(text) => println!("seed {seed} failed: {text}"),
        None => println!(
            "seed {seed} passed: {} events in {} s of virtual time",
            outcome.events,
            outcome.time.as_secs_f64()
        ),
    }
    outcome.failure.is_some()
}

fn scenarios(name: &str, file: Option<&Path>, seed: Option<u64>, trace: bool) -> Result<bool, String> {
    let mut failed = false;
    let read = |file: &Path| std::fs::read_to_string(file).map_err(|e| format!("{}: {e}", file.display()));
    let all = match file {
        Some(file) => parse_scenarios(&read(file)?),
        None => parse_scenarios(SCENARIOS),
    };
    let chosen: Vec<_> = all.iter().filter(|s| s.name.starts_with(name)).collect();
    if chosen.is_empty() {
        return Err(format!("no scenario's name begins with `{name}`; crates/sim/scenarios.txt has them"));
    }
    for scenario in chosen {
        for seed in seed.map_or(0..8, |seed| seed..seed + 1) {
            let outcome = run_scenario(scenario, seed, Options { trace, ..Options::default() });
            outcome.trace.iter().for_each(|line| println!("{line}"));
            println!("{}, seed {seed}: {}", scenario.name, outcome.failure.as_deref().unwrap_or("passed"));
            failed |= outcome.failure.is_some();
        }
    }
    Ok(failed)
}

thread_local! {
    /// What this thread is running.
    static RUNNING: Cell<u64> = const { Cell::new(0) };
}

/// A panic of the core is told as a failure of its seed. Where panics do not unwind, in the program as it is built for
/// use, the run ends with it; the ledger has it, so that the next run goes on behind it.
fn quiet_panics(ledger: Option<(Arc<Mutex<Ledger>>, PathBuf)>) {
    std::panic::set_hook(Box::new(move |panic| {
        if cfg!(panic = "abort") {
            let text = format!("panic: {}", panic.to_string().replace('\n', " "));
            println!("seed {}: {text}", RUNNING.get());
            if let Some((ledger, path)) = &ledger {
                let mut ledger = lock(ledger);
                ledger.note_failure(RUNNING.get(), text);
                save(&ledger, path);
            }
            std::process::exit(FAILED.into());
        }
    }));
}

/// Runs seeds from `next` on, for as long as `more` says so.
fn run_seeds(
    next: &AtomicU64,
    jobs: NonZeroUsize,
    options: Options,
    more: impl Fn(u64) -> bool + Sync,
    ledger: &Mutex<Ledger>,
) {
    let work = || {
        while more(next.load(Relaxed)) {
            let seed = next.fetch_add(1, Relaxed);
            RUNNING.set(seed);
            let outcome = run_seed(seed, options);
            lock(ledger).add(seed, outcome);
            let _ = std::io::stdout().flush();
        }
    };
    std::thread::scope(|scope| (0..jobs.get()).for_each(|_| drop(scope.spawn(work))));
}

fn many(first: u64, jobs: NonZeroUsize, effects: bool, more: impl Fn(&Ledger, u64) -> bool + Sync) -> Ledger {
    quiet_panics(None);
    let (next, began) = (AtomicU64::new(first), Instant::now());
    let mut ledger = Ledger::default();
    for scenario in parse_scenarios(SCENARIOS) {
        ledger.note_coverage(&run_scenario(&scenario, 0, Options::default()));
    }
    let ledger = Mutex::new(ledger);
    let options = Options { effects, ..Options::default() };
    run_seeds(&next, jobs, options, |next| more(&lock(&ledger), next), &ledger);
    let ledger = ledger.into_inner().expect("no worker died");
    ledger.print_coverage();
    let elapsed = began.elapsed().as_secs_f64();
    println!(
        "{} seeds, {} failed; {} events, at least {} in each, in {elapsed:.1} s ({:.0} per second), \
         {:.1} h of virtual time ({:.0} x real time)",
        ledger.seeds,
        ledger.failed.len(),
        ledger.events,
        ledger.fewest.unwrap_or_default(),
        ledger.events as f64 / elapsed,
        ledger.virtual_seconds / 3600.0,
        ledger.virtual_seconds / elapsed
    );
    ledger
}

/// Is this a failure?
fn judge(ledger: &Ledger, each: u64, known: &BTreeSet<u64>) -> bool {
    let fewest = ledger.fewest.unwrap_or_default();
    if fewest < each {
        println!("a seed had {fewest} events only: {each} are wanted of each");
    }
    let failed: BTreeSet<u64> = ledger.failed.keys().copied().collect();
    let mended: Vec<u64> = known.difference(&failed).copied().collect();
    if !mended.is_empty() {
        println!("known to fail, but they pass: {mended:?}; take them off the list");
    }
    let fresh = failed.difference(known).count();
    if !known.is_empty() {
        println!("{} that were known to fail did, and {fresh} others", failed.len() - fresh);
    }
    fewest < each || !mended.is_empty() || fresh > 0
}

fn run_for(hours: f64, path: &Path, jobs: NonZeroUsize) -> Result<bool, String> {
    let ledger = Ledger::load(path).map_err(|text| format!("{text}; move it away to begin a new one"))?;
    ledger.save(path).map_err(|e| format!("{}: {e}", path.display()))?;
    let (began, before) = (Instant::now(), ledger.seconds);
    let end = began + Duration::try_from_secs_f64(hours * 3600.0).map_err(|e| format!("{hours} hours: {e}"))?;
    let next = AtomicU64::new(ledger.seeds + 1);
    let ledger = Arc::new(Mutex::new(ledger));
    quiet_panics(Some((ledger.clone(), path.to_owned())));
    let saved = AtomicU64::new(next.load(Relaxed));
    let go_on = |_| {
        let mut ledger = lock(&ledger);
        ledger.seconds = before + began.elapsed().as_secs_f64();
        if ledger.seeds >= saved.load(Relaxed) + SAVE_EVERY {
            saved.store(ledger.seeds, Relaxed);
            save(&ledger, path);
        }
        Instant::now() < end
    };
    run_seeds(&next, jobs, Options::default(), go_on, &ledger);
    let ledger = lock(&ledger);
    save(&ledger, path);
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
    Ok(!ledger.failed.is_empty())
}

fn lock(ledger: &Mutex<Ledger>) -> MutexGuard<'_, Ledger> {
    ledger.lock().expect("no worker dies holding it")
}

fn save(ledger: &Ledger, path: &Path) {
    ledger.save(path).unwrap_or_else(|e| eprintln!("{}: {e}", path.display()));
}
