//! A rack loses its power around a data generation (`docs/spec/connection-and-state.md` 7.2): the Primary is killed
//! before, between and after each step in which it notes, tells and owns one, whoever has heard of it or not, and the
//! nodes come back in each order. Nobody has written in that generation: nobody may have parted from anybody.

use urbd_sim::{Options, parse_scenarios, run_scenario};

/// What the Primary does when it begins a generation with its first write ends within so many effects.
const EFFECTS: usize = 14;

/// Who comes back in which order, is promoted, and writes.
const RETURNS: [(&str, &str); 6] = [
    ("the-primary-alone", "start A\nprimary A\nA obeys\nwrite A 7\nstart B\nwait 20\nstart C\n"),
    (
        "the-primary-alone-then-who-was-away",
        "start A\nprimary A\nA obeys\nwrite A 7\nstart C\nwait 20\nwrite A 9\nstart B\n",
    ),
    ("the-primary-and-who-was-away", "start C\nstart A\nwait 10\nprimary A\nA obeys\nwrite A 7\nstart B\n"),
    ("the-other-first", "start B\nwait 10\nprimary! B\nB obeys\nwrite B 7\nstart A\nwait 20\nstart C\n"),
    ("all", "start C\nstart B\nstart A\nwait 20\nprimary A\nA obeys\nwrite A 7\n"),
    ("all-and-the-other-is-promoted", "start A\nstart B\nstart C\nwait 20\nprimary B\nB obeys\nwrite B 7\n"),
];

/// Who decides as DRBD does, without urbd's own rules.
const KERNELS: [(&str, &str); 3] = [
    ("", ""),
    ("-beside-a-kernel", "set decides B as-drbd-9.3\n"),
    ("-while-a-kernel-is-away", "set decides C as-drbd-9.3\n"),
];

#[test]
fn no_copy_parts_from_a_generation_that_nobody_wrote_in() {
    let mut text = String::new();
    for (returns, steps) in RETURNS {
        for (beside, settings) in KERNELS {
            for heard in [true, false] {
                // A kernel does not say when it has the generation on its disk: the Primary goes on when it has told.
                if (returns, beside, heard) == ("the-other-first", "-beside-a-kernel", false) {
                    continue;
                }
                for effects in 0..EFFECTS {
                    let hold = if heard { "" } else { "hold A data B\n" };
                    let end = "wait 1\nkill B &\nkill A &\nwait 2";
                    text += &format!(
                        "scenario {returns}{beside}-{effects}-{heard}\nset nodes 3\nset dialect 124\nset in-step\n{settings}\
                         wait 10\nkill C\nwait 10\nprimary A\n{hold}kill A after {effects} &\nwrite A 0 &\n{end}\n\
                         {steps}wait 20\n"
                    );
                }
            }
        }
    }
    let scenarios = parse_scenarios(&text);
    assert_eq!(scenarios.len(), (RETURNS.len() * KERNELS.len() * 2 - 1) * EFFECTS);
    let failed = |scenario| {
        let failure = run_scenario(scenario, 0, Options::default()).failure?;
        Some(format!("{}: {failure}", scenario.name))
    };
    let failures: Vec<String> = scenarios.iter().filter_map(failed).collect();
    assert!(failures.is_empty(), "{} of {}:\n{}", failures.len(), scenarios.len(), failures.join("\n"));
}
