//! Seeds of the simulator: those that failed once, and fresh ones within a bound.

use std::fs;
use urbd_sim::{Options, Plan, run_plan, run_seed};

/// How many fresh seeds these tests take, without optimisation; `tests/run` takes many more (`docs/testing.md`).
const FRESH: u64 = 40;

#[test]
fn what_failed_once_passes() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/seeds.txt");
    let text = fs::read_to_string(path).unwrap_or_else(|e| panic!("{path}: {e}"));
    let plans = Plan::parse_all(&text).unwrap_or_else(|e| panic!("{path}: {e}"));
    assert!(!plans.is_empty());
    let failure = |plan: &Plan| {
        let outcome = run_plan(plan, Options::default());
        outcome.failure.map(|text| format!("{}: {text}", plan.name()))
    };
    let failed: Vec<String> = plans.iter().filter_map(failure).collect();
    assert!(failed.is_empty(), "{failed:#?}");
}

#[test]
fn fresh_seeds_pass() {
    let failure = |seed| run_seed(seed, Options::default()).failure.map(|text| format!("seed {seed}: {text}"));
    let failed: Vec<String> = (1..=FRESH).filter_map(failure).collect();
    assert!(failed.is_empty(), "{} of {FRESH} seeds fail: {failed:#?}", failed.len());
}

/// Clocks, rot, handlers, two Primaries, and all of them: their seeds begin here (`src/extras.rs`).
const EXTRAS: [u64; 5] = [100_010, 110_010, 120_010, 130_010, 140_010];

#[test]
fn faults_with_seeds_of_their_own_pass() {
    let seeds = EXTRAS.into_iter().flat_map(|first| first..first + 8);
    let failure = |seed| run_seed(seed, Options::default()).failure.map(|text| format!("seed {seed}: {text}"));
    let failed: Vec<String> = seeds.filter_map(failure).collect();
    assert!(failed.is_empty(), "{failed:#?}");
}

#[test]
fn the_same_seed_is_the_same_run() {
    for seed in [3, 17, 64, 101, 100_011, 110_011, 120_011, 130_011] {
        let first = run_seed(seed, Options::default());
        let second = run_seed(seed, Options { trace: true, ..Options::default() });
        assert_eq!(
            (first.hash, first.events, first.failure),
            (second.hash, second.events, second.failure),
            "seed {seed}"
        );
    }
}
