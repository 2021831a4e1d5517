//! From a long plan that fails to a short one.

use crate::{Options, Plan, run_plan};

/// Removes steps for as long as the run still fails in the same way; `attempts` bounds how many runs that takes.
/// Returns the plan unchanged if it does not fail.
#[must_use]
pub fn shrink(plan: &Plan, attempts: u32) -> Plan {
    let mut best = plan.clone();
    let mut left = attempts;
    let Some(kind) = run_plan(&best, Options::default()).failure.map(kind) else { return best };
    let fails = |candidate: &Plan, left: &mut u32| {
        *left = left.saturating_sub(1);
        run_plan(candidate, Options::default()).failure.map(self::kind).as_ref() == Some(&kind)
    };
    let ended = Plan { least_events: 0, ..best.clone() };
    if fails(&ended, &mut left) {
        best = ended;
    }
    let mut size = best.steps.len().div_ceil(2);
    while size > 0 && left > 0 {
        let mut at = 0;
        let mut removed = false;
        while at < best.steps.len() && left > 0 {
            let mut candidate = best.clone();
            candidate.steps.drain(at..(at + size).min(best.steps.len()));
            if fails(&candidate, &mut left) {
                best = candidate;
                removed = true;
            } else {
                at += size;
            }
        }
        if !removed || size > 1 {
            size = if size == 1 { 0 } else { size / 2 };
        }
    }
    best
}

/// What kind of failure it is: its words, without numbers.
fn kind(text: String) -> String {
    text.chars().filter(|c| !c.is_ascii_digit()).take(130).collect()
}
