//! Seeds of the simulator: those that failed once, and fresh ones within a bound.

use std::fs;
use urbd_sim::{Options, Plan, Step, run_plan, run_seed};

/// How many fresh seeds these tests take, without optimisation; `tests/run` takes many more (`crates/sim/README.md`).
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
fn numbers_of_steps_are_the_steps_as_drawn() {
    let text = fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/seeds.txt")).expect("read before");
    let entries = text.lines().map(|line| line.split('#').next().unwrap_or_default().trim());
    let mut some = 0;
    for entry in entries.filter(|entry| !entry.is_empty() && !entry.contains(['@', '/'])) {
        let plan = Plan::parse(entry).expect(entry);
        assert_eq!(plan.name(), entry);
        let whole = Plan::draw(plan.seed);
        let Some((_, numbers)) = entry.split_once(':') else {
            assert_eq!(plan.steps, whole.steps, "{entry}");
            continue;
        };
        let numbers = numbers.split(',').map(|number| number.parse::<usize>().expect("a number"));
        let drawn: Vec<_> = numbers.map(|number| whole.steps[number].clone()).collect();
        assert_eq!((plan.steps, plan.least_events), (drawn, 0), "{entry}");
        some += 1;
    }
    assert!(some > 50, "only {some} entries have numbers of steps");
}

#[test]
fn tokens_change_times_and_values() {
    let whole = Plan::draw(20718);
    let first = |fits: fn(&Step) -> bool| whole.steps.iter().position(|planned| fits(&planned.step)).expect("one");
    let (dies, io) =
        (first(|step| matches!(step, Step::DieAfter { .. })), first(|step| matches!(step, Step::Io { .. })));
    // In the order of the text, which need not be that of the drawn steps.
    let text = format!("20718+3:0,1@0.000000001,{dies}@1/7,{io}@1,{io}@2.5/16-20,2@2.5");
    let plan = Plan::parse(&text).expect("tokens");
    assert_eq!(plan.name(), text);
    let times: Vec<u64> = plan.steps.iter().map(|planned| planned.at.0).collect();
    assert_eq!(times, [0, 1, 1_000_000_000, 1_000_000_000, 2_500_000_000, 2_500_000_000]);
    for (place, number) in [(0, 0), (1, 1), (3, io), (5, 2)] {
        assert_eq!(plan.steps[place].step, whole.steps[number].step, "only its time is another one");
    }
    let Step::DieAfter { effects, .. } = plan.steps[2].step else { panic!("{:?}", plan.steps[2]) };
    let Step::Io { range, .. } = plan.steps[4].step else { panic!("{:?}", plan.steps[4]) };
    assert_eq!((effects, range.start.0, range.end.0), (7, 16, 20));
}

#[test]
fn tokens_that_say_nothing_are_refused() {
    let wrong = [
        "9:1000000",
        "9:0/8",
        "9:0/0-8",
        "9:0@x",
        "9:0@",
        "9:0@1.+5",
        "9:0@1.0000000001",
        "9:0@99999999999",
        "9:2,1",
        "9:0@1,1@0.5",
        "9:",
        "9:0,",
        "9:-1",
    ];
    for text in wrong {
        assert_eq!(Plan::parse(text), None, "{text}");
    }
    let io = Plan::draw(9).steps.iter().position(|planned| matches!(planned.step, Step::Io { .. })).expect("one");
    assert!(Plan::parse(&format!("9:{io}/0-8")).is_some());
    for value in ["7", "8-8", "8-0", "0-8-9", "-8"] {
        assert_eq!(Plan::parse(&format!("9:{io}/{value}")), None, "{value}");
    }
}

#[test]
fn fresh_seeds_pass() {
    let failure = |seed| run_seed(seed, Options::default()).failure.map(|text| format!("seed {seed}: {text}"));
    let failed: Vec<String> = (1..=FRESH).filter_map(failure).collect();
    assert!(failed.is_empty(), "{} of {FRESH} seeds fail: {failed:#?}", failed.len());
}

/// Clocks, rot, handlers, two Primaries, and all of them (`src/extras.rs`), and damaged payload (`src/unlike.rs`):
/// their seeds begin here.
const EXTRAS: [u64; 6] = [100_010, 110_010, 120_010, 130_010, 140_010, 3_000_010];

#[test]
fn faults_with_seeds_of_their_own_pass() {
    let seeds = EXTRAS.into_iter().flat_map(|first| first..first + 8);
    let failure = |seed| run_seed(seed, Options::default()).failure.map(|text| format!("seed {seed}: {text}"));
    let failed: Vec<String> = seeds.filter_map(failure).collect();
    assert!(failed.is_empty(), "{failed:#?}");
}

#[test]
fn the_same_seed_is_the_same_run() {
    for seed in [3, 17, 64, 101, 100_011, 110_011, 120_011, 130_011, 3_000_011] {
        let first = run_seed(seed, Options::default());
        let second = run_seed(seed, Options { trace: true, ..Options::default() });
        assert_eq!(
            (first.hash, first.events, first.failure),
            (second.hash, second.events, second.failure),
            "seed {seed}"
        );
    }
}
