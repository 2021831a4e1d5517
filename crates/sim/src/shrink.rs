//! From a long plan that fails to a short one that is easy to read: fewer steps, at round times close together, and
//! requests that are small and in few places.

use crate::plan::{LUCKS, Planned};
use crate::ranges::sectors;
use crate::saved::Value;
use crate::{Options, Plan, Step, run_plan};
use std::collections::BTreeSet;
use std::iter;
use std::ops::Range;
use units::{Duration, Instant, Sector, SectorRange};

/// Removes steps, and makes values of those that are left simpler, for as long as the run still fails in the same way,
/// and `go_on` says that there is time for another run. Returns the plan unchanged if it does not fail.
///
/// Every step that goes changes all random times after it, so that most plans that could fail do not at once: each is
/// tried with several lucks.
#[must_use]
pub fn shrink(plan: &Plan, go_on: impl FnMut() -> bool) -> Plan {
    let Some(kind) = run_plan(plan, Options::default()).failure.map(kind) else { return plan.clone() };
    let mut hunt = Hunt { kind, best: plan.clone(), go_on };
    hunt.end_early();
    hunt.without_whole_sorts();
    hunt.fewer_steps(hunt.best.steps.len().div_ceil(2));
    // Simpler values may be what made other steps dispensable.
    while hunt.simpler_values() && hunt.fewer_steps(4) {}
    hunt.best
}

struct Hunt<G> {
    kind: String,
    best: Plan,
    go_on: G,
}

impl<G: FnMut() -> bool> Hunt<G> {
    /// Takes the candidate if it is another plan and fails in the same way, with any luck.
    fn take(&mut self, candidate: &Plan) -> bool {
        if candidate.steps == self.best.steps && candidate.least_events == self.best.least_events {
            return false;
        }
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
        let end = Instant(run_plan(&plan, Options::default()).time.0);
        let steps: Vec<_> = plan.steps.iter().filter(|planned| planned.at <= end).cloned().collect();
        let shorter = Plan { steps, least_events: 0, ..plan.clone() };
        if !self.take(&shorter) {
            self.take(&Plan { least_events: 0, ..plan });
        }
    }

    /// Without all steps of a sort.
    fn without_whole_sorts(&mut self) {
        let sort = |step: &Step| format!("{step:?}").split(", range").next().unwrap_or_default().to_owned();
        let sorts: BTreeSet<String> = self.best.steps.iter().map(|planned| sort(&planned.step)).collect();
        for gone in sorts {
            let mut candidate = self.best.clone();
            candidate.steps.retain(|planned| sort(&planned.step) != gone);
            self.take(&candidate);
        }
    }

    /// Without pieces of `size` steps, then smaller ones. Could any go?
    fn fewer_steps(&mut self, mut size: usize) -> bool {
        let before = self.best.steps.len();
        while size > 0 {
            // What a pass over small pieces has removed may have been what held others.
            let removed = self.without_pieces(size);
            if !removed || size > 4 {
                size /= 2;
            }
        }
        self.best.steps.len() < before
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

    /// Makes times and other values simpler. Could any be?
    fn simpler_values(&mut self) -> bool {
        let before = self.best.steps.clone();
        self.simpler_waits();
        // All that are the same together: requests go on meeting each other. Then each alone.
        let values: BTreeSet<Value> = self.best.steps.iter().filter_map(|planned| planned.step.value()).collect();
        for value in values {
            self.take_simpler(value, 0..self.best.steps.len());
        }
        for place in 0..self.best.steps.len() {
            if let Some(value) = self.best.steps[place].step.value() {
                self.take_simpler(value, place..place + 1);
            }
        }
        self.best.steps != before
    }

    /// Shorter and rounder waits before steps: first before all at once, then before one after the other.
    fn simpler_waits(&mut self) {
        for simpler in SIMPLER_WAITS {
            let waits: Vec<_> = waits(&self.best.steps).into_iter().map(simpler).collect();
            self.take(&self.best.clone().with_waits(&waits));
        }
        for place in 0..self.best.steps.len() {
            let before = waits(&self.best.steps);
            let _ = SIMPLER_WAITS.iter().any(|simpler| {
                let mut waits = before.clone();
                waits[place] = simpler(waits[place]);
                self.take(&self.best.clone().with_waits(&waits))
            });
        }
    }

    /// Steps at these places that have this value get the simplest one with which the plan still fails.
    fn take_simpler(&mut self, value: Value, places: Range<usize>) {
        let _ = value.simpler().into_iter().any(|simpler| {
            let mut candidate = self.best.clone();
            for planned in &mut candidate.steps[places.clone()] {
                if planned.step.value() == Some(value) {
                    planned.step = planned.step.clone().with(simpler).expect("a value of the same sort");
                }
            }
            self.take(&candidate)
        });
    }
}

/// Sectors of a block, the unit of bitmaps.
const BLOCK: u64 = 8;

/// What a wait is to become, the simplest first. None makes it longer.
const SIMPLER_WAITS: [fn(Duration) -> Duration; 5] = [
    |_| Duration(0),
    |wait| rounded(wait, 100, 1),
    |wait| rounded(wait, 10, 1),
    |wait| rounded(wait, 1, 1),
    |wait| rounded(wait, 1, 2),
];

/// So many digits of a part of a wait, and then zeroes.
fn rounded(wait: Duration, part: u64, digits: u32) -> Duration {
    let short = wait.0 / part;
    let unit = 10_u64.pow((short.checked_ilog10().unwrap_or(0) + 1).saturating_sub(digits));
    Duration(short / unit * unit)
}

/// The time before each step since the one before it.
fn waits(steps: &[Planned]) -> Vec<Duration> {
    let before = iter::once(Instant(0)).chain(steps.iter().map(|planned| planned.at));
    steps.iter().zip(before).map(|(planned, before)| planned.at.since(before)).collect()
}

impl Plan {
    /// The same steps with these times before them.
    fn with_waits(mut self, waits: &[Duration]) -> Plan {
        let mut now = Instant(0);
        for (planned, wait) in self.steps.iter_mut().zip(waits) {
            now = now + *wait;
            planned.at = now;
        }
        self
    }
}

impl Value {
    /// Values that are easier to read, the simplest first: fewer sectors, lower ones, whole blocks; fewer effects.
    fn simpler(self) -> Vec<Value> {
        match self {
            Value::Number(number) => {
                let fewer = [0, 1, 2, number / 4, number / 2].into_iter().filter(|fewer| *fewer < number);
                fewer.map(Value::Number).collect()
            }
            Value::Range(SectorRange { start: Sector(start), end: Sector(end) }) => {
                let len = end - start;
                let simpler = [(0, BLOCK), (BLOCK, BLOCK), (0, len), (start, BLOCK), (start, len / 2), (start, 1)];
                // None is higher up or longer, unless it is a block instead of a part of one.
                let fits = simpler.into_iter().filter(|(at, new)| *at <= start && *new > 0 && *new <= len.max(BLOCK));
                let fits = fits.take_while(|place| *place != (start, len));
                fits.map(|(at, len)| Value::Range(sectors(at, at + len))).collect()
            }
        }
    }
}

/// What kind of failure it is: its words, without numbers and what a sector holds.
fn kind(text: String) -> String {
    let end = [" holds write", "differ in ", "Entry"].into_iter().filter_map(|words| text.find(words)).min();
    text[..end.unwrap_or(text.len())].chars().filter(|c| !c.is_ascii_digit()).take(130).collect()
}
