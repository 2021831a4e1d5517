//! Named scenarios (`scenarios.txt`), each with several latencies.

use urbd_sim::{Options, parse_scenarios, run_scenario};

const FILE: &str = include_str!("../scenarios.txt");
/// How often each scenario runs.
const TIMES: u64 = 6;

#[test]
fn every_scenario_ends_as_it_should() {
    let scenarios = parse_scenarios(FILE);
    assert!(scenarios.len() > 30, "only {} scenarios", scenarios.len());
    let mut failures = Vec::new();
    for scenario in &scenarios {
        let failed = (0..TIMES).find_map(|seed| {
            let text = run_scenario(scenario, seed, Options::default()).failure?;
            Some(format!("{} (seed {seed}): {text}", scenario.name))
        });
        failures.extend(failed);
    }
    assert!(failures.is_empty(), "{} of {} scenarios:\n{}", failures.len(), scenarios.len(), failures.join("\n"));
}
