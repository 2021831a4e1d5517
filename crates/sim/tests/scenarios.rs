//! Named scenarios (`scenarios.txt`), each with several latencies.

use std::collections::BTreeSet;
use urbd_core::decide::Reason;
use urbd_sim::{Options, parse_scenarios, run_scenario};

const FILE: &str = include_str!("../scenarios.txt");
/// So many of the reasons that decisions have must be given in some scenario. It only ever goes up.
const REASONS: usize = 42;
/// How often each scenario runs.
const TIMES: u64 = 6;

#[test]
fn every_scenario_ends_as_it_should() {
    let scenarios = parse_scenarios(FILE);
    assert!(scenarios.len() > 30, "only {} scenarios", scenarios.len());
    let (mut failures, mut reached) = (Vec::new(), BTreeSet::new());
    for scenario in &scenarios {
        let failed = (0..TIMES).find_map(|seed| {
            let outcome = run_scenario(scenario, seed, Options::default());
            reached.extend(outcome.reached.into_keys());
            let text = outcome.failure?;
            Some(format!("{} (seed {seed}): {text}", scenario.name))
        });
        failures.extend(failed);
    }
    assert!(failures.is_empty(), "{} of {} scenarios:\n{}", failures.len(), scenarios.len(), failures.join("\n"));
    let never: Vec<&str> = Reason::ALL.iter().map(|r| r.name()).filter(|name| !reached.contains(name)).collect();
    let given = Reason::ALL.len() - never.len();
    println!("{given} of {} reasons were given; never: {}", Reason::ALL.len(), never.join(" "));
    assert!(given >= REASONS, "only {given} reasons of decisions were given; never: {never:?}");
}

/// It has more events than may pass in which nobody wants anything and nothing gets on. Once, as it takes its time.
#[test]
fn a_long_verify_is_no_standstill() {
    let text = "scenario a-verify-of-two-GiB (A.7 verify)\nset checksums\nset mib 2048\nverify A\nwait 60\n\
                A says verify done: 0 KiB differ\n";
    let [scenario] = &parse_scenarios(text)[..] else { panic!("one scenario") };
    assert_eq!(run_scenario(scenario, 1, Options::default()).failure, None);
}
