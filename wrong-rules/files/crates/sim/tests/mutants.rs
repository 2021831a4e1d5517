//! The tests of the simulator: every wrong version of a rule must be noticed, by a scenario, by a plan that failed once
//! (`seeds.txt`), or within a bound of seeds.
//!
//! A run counts only if it passes without the mutant.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use units::Instant;
use urbd_core::{Layer, Mutant, choose_mutant};
use urbd_sim::{
    Options, Outcome, Plan, Planned, Scenario, Step, parse_scenarios, run_plan, run_scenario, run_seed, shrink,
};

/// Latencies that each scenario is tried with.
const LATENCIES: u64 = 6;
/// Seeds that a mutant may survive after that.
const SEEDS: u64 = 2000;
/// Of those with options drawn.
const DRAWN: std::ops::Range<u64> = 1_000_000..1_000_400;
/// Of those whose network damages payload, and whose Primaries write to the same places.
const UNLIKE: std::ops::Range<u64> = 3_000_000..3_000_100;

/// With further faults, and of three and more nodes: as `make test` runs them.
const FURTHER: [std::ops::Range<u64>; 13] = [
    100_000..100_120,
    110_000..110_060,
    120_000..120_120,
    125_000..125_100,
    130_000..130_120,
    140_000..140_100,
    2_000_000..2_000_190,
    4_000_000..4_000_100,
    5_000_000..5_000_080,
    5_400_000..5_400_060,
    5_800_000..5_800_040,
    5_900_000..5_900_060,
    5_950_000..5_950_060,
];

/// By which run each was noticed when all were last tried (`make wrong-rules` writes it anew): tried first.
const NOTICED: &str = include_str!("noticed.txt");

/// A run, by which a mutant may be noticed.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Trial {
    /// Number of the scenario, and its seed.
    Scenario(usize, u64),
    /// Number of the plan that failed once.
    Saved(usize),
    /// A whole plan.
    Seed(u64),
}

/// How a mutant was noticed.
struct Caught {
    /// The name of the run.
    by: String,
    runs: usize,
    events: u64,
    text: String,
}

/// The runs, and which of them pass without a mutant; shared by all threads.
struct Trials {
    scenarios: Vec<Scenario>,
    saved: Vec<Plan>,
    /// Of fewer than [`SEEDS`] all kinds have less: `SEEDS=200` takes a tenth.
    seeds: u64,
    passes: Mutex<BTreeMap<Trial, bool>>,
}

impl Trials {
    fn all(&self) -> impl Iterator<Item = Trial> {
        let numbers = 0..self.scenarios.len();
        let part = |all: std::ops::Range<u64>| all.start..all.start + (all.end - all.start) * self.seeds / SEEDS;
        let latencies = (LATENCIES * self.seeds / SEEDS).max(1);
        let scenarios = (0..latencies).flat_map(move |seed| numbers.clone().map(move |n| Trial::Scenario(n, seed)));
        scenarios
            .chain((0..self.saved.len()).map(Trial::Saved))
            .chain((1..=self.seeds).map(Trial::Seed))
            .chain(part(DRAWN).map(Trial::Seed))
            .chain(part(UNLIKE).map(Trial::Seed))
            .chain(FURTHER.into_iter().flat_map(part).map(Trial::Seed))
    }

    fn run(&self, trial: Trial, mutant: Option<Mutant>) -> Outcome {
        choose_mutant(mutant);
        let outcome = match trial {
            Trial::Scenario(n, seed) => run_scenario(&self.scenarios[n], seed, Options::default()),
            Trial::Saved(n) => run_plan(&self.saved[n], Options::default()),
            Trial::Seed(seed) => run_seed(seed, Options::default()),
        };
        choose_mutant(None);
        outcome
    }

    fn passes(&self, trial: Trial) -> bool {
        let known = self.passes.lock().expect("no thread dies holding it").get(&trial).copied();
        known.unwrap_or_else(|| {
            let passes = self.run(trial, None).failure.is_none();
            self.passes.lock().expect("no thread dies holding it").insert(trial, passes);
            passes
        })
    }

    fn name(&self, trial: Trial) -> String {
        match trial {
            Trial::Scenario(n, seed) => format!("{} with {seed}", self.scenarios[n].name),
            Trial::Saved(n) => format!("saved plan {}", self.saved[n].name()),
            Trial::Seed(seed) => format!("seed {seed}"),
        }
    }

    /// The runs by which these mutants were noticed last.
    fn noticed(&self) -> BTreeMap<&'static str, Trial> {
        let named: BTreeMap<String, Trial> = self.all().map(|trial| (self.name(trial), trial)).collect();
        let lines = NOTICED.lines().filter_map(|line| line.split_once(": "));
        lines.filter_map(|(mutant, run)| Some((mutant, *named.get(run)?))).collect()
    }

    fn hunt(&self, mutant: Mutant, first: Option<Trial>) -> Option<Caught> {
        let mut events = 0;
        for (n, trial) in first.into_iter().chain(self.all()).enumerate() {
            let outcome = self.run(trial, Some(mutant));
            events += outcome.events;
            if let Some(text) = outcome.failure.filter(|_| self.passes(trial)) {
                return Some(Caught { by: self.name(trial), runs: n + 1, events, text });
            }
        }
        None
    }
}

/// A line on what came of a hunt.
fn verdict(name: &str, caught: Option<&Caught>) -> String {
    let Some(Caught { by, runs, events, text }) = caught else { return format!("{name:26} by nothing") };
    let (by, text): (String, String) = (by.chars().take(40).collect(), text.chars().take(70).collect());
    format!("{name:26} {by:40} run {runs:3} {events:8} events  {}", text.replace('\n', " "))
}

#[test]
fn every_wrong_rule_is_caught() {
    std::panic::set_hook(Box::new(|_| {}));
    let mutants: Vec<Mutant> = Mutant::tried().filter(|m| m.layer() == Layer::Cluster).collect();
    let scenarios = parse_scenarios(include_str!("../scenarios.txt"));
    let saved = Plan::parse_all(include_str!("../seeds.txt")).expect("seeds.rs reads it, too");
    let seeds = std::env::var("SEEDS").map_or(SEEDS, |seeds| seeds.parse().expect("a number of seeds"));
    let trials = Trials { scenarios, saved, seeds, passes: Mutex::default() };
    let anew = std::env::var_os("WRITE_NOTICED");
    let noticed = if anew.is_some() { BTreeMap::new() } else { trials.noticed() };
    let (next, found) = (AtomicUsize::new(0), Mutex::new(BTreeMap::new()));
    let hunter = || {
        while let Some(mutant) = mutants.get(next.fetch_add(1, Ordering::Relaxed)) {
            let caught = trials.hunt(*mutant, noticed.get(mutant.name()).copied());
            println!("{}", verdict(mutant.name(), caught.as_ref()));
            found.lock().expect("no hunter dies holding it").insert(mutant.name(), (mutant.rule(), caught));
        }
    };
    thread::scope(|scope| (0..2).for_each(|_| drop(scope.spawn(hunter))));
    let (mut survivors, mut by_what) = (Vec::new(), String::new());
    for (name, (rule, caught)) in found.into_inner().expect("no hunter died") {
        match caught {
            Some(Caught { by, .. }) => by_what += &format!("{name}: {by}\n"),
            None => survivors.push(format!("{name}: {rule}")),
        }
    }
    let _ = std::panic::take_hook();
    if let Some(path) = anew {
        std::fs::write(path, by_what).expect("the list can be written");
    }
    assert!(survivors.is_empty(), "nothing has noticed: {survivors:#?}");
}

/// DRBD 9.3.3 at protocol 101 begins no generation when its peer, a Primary without a disk, writes. Who lacks those
/// writes on its disk has noted that, and fetches them. (A peer that is urbd would copy them by itself, later.)
#[test]
fn own_writes_are_fetched_from_a_peer_that_keeps_its_generation() {
    let lines = "scenario own-writes-are-fetched\nprimary A\nwrite A 0 4\ndetach A\nwrite A 8 16\nsecondary A\n\
                 disconnect A\nattach A\nA is Secondary StandAlone Outdated/-\nconnect\nwait 30\n\
                 A says lacks-own-writes\nA says resync as target begins\nsettled\n";
    let scenario = &parse_scenarios(lines)[0];
    for seed in 0..LATENCIES {
        choose_mutant(Some(Mutant::KeepGeneration));
        let outcome = run_scenario(scenario, seed, Options::default());
        choose_mutant(None);
        assert_eq!(outcome.failure, None);
    }
}

/// The same peer does not copy what a verify has found different either. A node that connects anew for that does so
/// once.
#[test]
fn who_connects_anew_in_vain_says_so_and_stays() {
    let lines = "scenario repair-in-vain\nset checksums\nset older-protocol 95\nprimary A\nwrite A 0 8\nsettled\nrot B 4 2\nverify-repair B\n\
                 wait 60\nB says repair-in-vain\nread A 0 1\nwait 120\nB never says verify-repair\n\
                 B is Secondary Connected UpToDate/UpToDate\nstays\n";
    let scenario = &parse_scenarios(lines)[0];
    for seed in 0..LATENCIES {
        choose_mutant(Some(Mutant::KeepGeneration));
        let outcome = run_scenario(scenario, seed, Options::default());
        choose_mutant(None);
        assert_eq!(outcome.failure, None);
    }
}

/// DRBD 9.3.3 at protocol 101 takes itself for the source where its peer has crashed as Primary and it has not (A10).
/// With protocols B and C it has all that was acknowledged, and is followed. With A a person has to say who is right.
#[test]
fn who_has_crashed_follows_a_peer_that_takes_itself_for_the_source() {
    let crash = |set: &str, then: &str| {
        format!(
            "scenario the-survivor-is-the-source\n{set}primary A\nwrite A 0 4\nwrite A 8 6&\n\
             kill A\nstart A\n{then}"
        )
    };
    let follows = "A says two-sources\nA says survivor-insists\nA is Secondary Connected UpToDate/UpToDate\nprimary A\nread A 0 40\nsettled\n";
    let asks = "A says survivor-insists\nA is Secondary StandAlone UpToDate/-\n";
    let gives_up = format!("{asks}connect-discarding A\nconnect B\nwait 8\nsettled\n");
    let insists =
        format!("{asks}disconnect B\ninvalidate B\nconnect\nwait 8\nB says resync as target begins\nsettled\n");
    let (a, b) = ("set protocol A\n", "set protocol B\n");
    let texts = [crash(b, follows), crash("", follows), crash(a, &gives_up), crash(a, &insists)];
    for text in texts {
        for seed in 0..LATENCIES {
            choose_mutant(Some(Mutant::SurvivorIsSource));
            let outcome = run_scenario(&parse_scenarios(&text)[0], seed, Options::default());
            choose_mutant(None);
            assert_eq!(outcome.failure, None, "{text}");
        }
    }
}

/// A plan as it was drawn, and what it shrinks to within so many runs.
fn shrunk(mutant: Mutant, seed: u64, runs: usize) -> (Outcome, Plan, Outcome) {
    choose_mutant(Some(mutant));
    let plan = Plan::draw(seed);
    let mut left = runs;
    let short = shrink(&plan, || {
        left = left.saturating_sub(1);
        left > 0
    });
    let before = run_plan(&plan, Options::default());
    let saved = Plan::parse(&short.name()).expect("its own name");
    assert_eq!(saved, short, "{}", short.name());
    let after = run_plan(&saved, Options::default());
    choose_mutant(None);
    (before, saved, after)
}

#[test]
fn shrunk_plans_fail_in_the_same_way_and_are_simple() {
    for (mutant, seed, most_steps, words) in [
        (Mutant::SyncUuidEarly, 8, 6, "P_SYNC_UUID"),
        (Mutant::IgnoreRefusal, 3427, 14, "acknowledged, but not on the disk"),
    ] {
        let (before, plan, after) = shrunk(mutant, seed, 4000);
        let (before, after) = (before.failure.expect("it fails"), after.failure.expect("it fails"));
        assert!(before.contains(words) && after.contains(words), "{before}\n{after}");
        let name = plan.name();
        assert!(plan.steps.len() <= most_steps, "{name}");
        let end = plan.steps.last().expect("some").at;
        assert!(end < Instant(500_000_000), "{name}: times are closer than drawn");
        let is_round = |planned: &Planned| planned.at.0.is_multiple_of(10_000);
        assert!(plan.steps.iter().all(is_round), "{name}: times are round");
        let places = plan.steps.iter().filter_map(|planned| match planned.step {
            Step::Io { range, .. } => Some(range),
            _ => None,
        });
        assert!(places.clone().all(|range| range.end.0 <= 16), "{name}: requests are short");
        assert!(plan.setup == Plan::draw(seed).setup, "the cluster is the same");
    }
}
