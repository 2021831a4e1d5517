//! From a long plan that fails to a short one.

use crate::plan::LUCKS;
use crate::{Options, Plan, Step, run_plan};
use std::collections::BTreeSet;

/// Removes steps for as long as the run still fails in the same way, and `go_on` says that there is time for another
/// run. Returns the plan unchanged if it does not fail.
///
/// Every step that goes changes all random times after it, so that most plans that could fail do not at once: each is
/// tried with several lucks.
#[must_use]
pub fn shrink(plan: &Plan, go_on: impl FnMut() -> bool) -> Plan {
    let Some(kind) = run_plan(plan, Options::default()).failure.map(kind) else { return plan.clone() };
    let mut hunt = Hunt { kind, best: plan.clone(), go_on };
    hunt.end_early();
    hunt.without_whole_sorts();
    let mut size = hunt.best.steps.len().div_ceil(2);
    while size > 0 {
        // What a pass over small pieces has removed may have been what held others.
        let removed = hunt.without_pieces(size);
        if !removed || size > 4 {
            size /= 2;
        }
    }
    hunt.best
}

struct Hunt<G> {
    kind: String,
    best: Plan,
    go_on: G,
}

impl<G: FnMut() -> bool> Hunt<G> {
    /// Takes the candidate if it fails in the same way, with any luck.
    fn take(&mut self, candidate: &Plan) -> bool {
        let lucks = std::iter::once(self.best.luck).chain((0..LUCKS).filter(|l| *l != self.best.luck));
        for luck in lucks.collect::<Vec<_>>() {
            if !(self.go_on)() {
                return false;
            }
            let candidate = Plan { luck, ..candidate.clone() };
            if run_plan(&candidate, Options::default()).failure.map(kind).as_ref() == Some(&self.kind) {
                self.best = candidate;
                return true;
            }
        }
        false
    }

    /// Without the applications that go on after the last step, and without steps after the failure.
    fn end_early(&mut self) {
        let plan = self.best.clone();
        let end = units::Instant(run_plan(&plan, Options::default()).time.0);
        let steps: Vec<_> = plan.steps.iter().filter(|(at, _)| *at <= end).cloned().collect();
        let shorter = Plan { steps, least_events: 0, ..plan.clone() };
        if !self.take(&shorter) {
            self.take(&Plan { least_events: 0, ..plan });
        }
    }

    /// Without all steps of a sort.
    fn without_whole_sorts(&mut self) {
        let sort = |step: &Step| format!("{step:?}").split(", range").next().unwrap_or_default().to_owned();
        let sorts: BTreeSet<String> = self.best.steps.iter().map(|(_, step)| sort(step)).collect();
        for gone in sorts {
            let mut candidate = self.best.clone();
            candidate.steps.retain(|(_, step)| sort(step) != gone);
            self.take(&candidate);
        }
    }

    /// Without pieces of `size` steps, the last ones first. Could any go?
    fn without_pieces(&mut self, size: usize) -> bool {
        let mut removed = false;
        let mut end = self.best.steps.len();
        while end > 0 {
            let start = end.saturating_sub(size);
            let mut candidate = self.best.clone();
            candidate.steps.drain(start..end);
            removed |= self.take(&candidate);
            end = start;
        }
        removed
    }
}

/// What kind of failure it is: its words, without numbers and what a sector holds.
fn kind(text: String) -> String {
    let end = [" holds write", "differ in ", "Entry"].into_iter().filter_map(|words| text.find(words)).min();
    text[..end.unwrap_or(text.len())].chars().filter(|c| !c.is_ascii_digit()).take(130).collect()
}
