//! The tests of the simulator: every wrong version of a rule must be noticed, within a bound of seeds.
//!
//! A seed counts only if it passes without the mutant.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use urbd_core::{Layer, Mutant, choose_mutant};
use urbd_sim::{Options, Outcome, run_seed};

/// Seeds that a mutant may survive.
const SEEDS: u64 = 400;

/// How a mutant was noticed.
struct Caught {
    seed: u64,
    events: u64,
    text: String,
}

/// Which seeds pass without a mutant; shared by all threads.
#[derive(Default)]
struct Baseline(Mutex<BTreeMap<u64, bool>>);

impl Baseline {
    fn passes(&self, seed: u64) -> bool {
        if let Some(known) = self.0.lock().expect("no thread dies holding it").get(&seed) {
            return *known;
        }
        let passes = run(seed, None).failure.is_none();
        self.0.lock().expect("no thread dies holding it").insert(seed, passes);
        passes
    }
}

fn run(seed: u64, mutant: Option<Mutant>) -> Outcome {
    choose_mutant(mutant);
    let outcome = run_seed(seed, Options::default());
    choose_mutant(None);
    outcome
}

fn hunt(mutant: Mutant, baseline: &Baseline) -> Option<Caught> {
    let mut events = 0;
    for seed in 1..=SEEDS {
        let outcome = run(seed, Some(mutant));
        events += outcome.events;
        if let Some(text) = outcome.failure.filter(|_| baseline.passes(seed)) {
            return Some(Caught { seed, events, text });
        }
    }
    None
}

#[test]
fn every_wrong_rule_is_caught() {
    std::panic::set_hook(Box::new(|_| {}));
    let mutants: Vec<Mutant> = Mutant::ALL.iter().copied().filter(|m| m.layer() == Layer::Cluster).collect();
    let (next, baseline) = (AtomicUsize::new(0), Baseline::default());
    let found = Mutex::new(BTreeMap::new());
    let hunter = || {
        while let Some(mutant) = mutants.get(next.fetch_add(1, Ordering::Relaxed)) {
            let caught = hunt(*mutant, &baseline);
            found.lock().expect("no hunter dies holding it").insert(mutant.name(), (mutant.rule(), caught));
        }
    };
    thread::scope(|scope| (0..2).for_each(|_| drop(scope.spawn(hunter))));
    let mut survivors = Vec::new();
    for (name, (rule, caught)) in found.into_inner().expect("no hunter died") {
        match caught {
            Some(Caught { seed, events, text }) => {
                let text: String = text.chars().take(90).collect();
                println!("{name:26} seed {seed:3} {events:9} events  {text}");
            }
            None => survivors.push(format!("{name}: {rule}")),
        }
    }
    let _ = std::panic::take_hook();
    assert!(survivors.is_empty(), "after {SEEDS} seeds nothing has noticed: {survivors:#?}");
}
