//! What people and programs are shown of a report.

mod html;
mod markdown;
mod number;
mod plot;
mod stages;
mod text;

use crate::results::{CaseReport, Report};
use crate::workload::{Outcome, StageTime};

pub use html::html;
pub use markdown::{BEGIN, END, markdown, renew};
pub use text::text;

/// Where the time of one workload's requests went on urbd's nodes: the mean of each stage in microseconds. `None`: it
/// was not done to urbd.
#[must_use]
pub fn stages(outcome: &Outcome) -> Option<String> {
    stages::line(&outcome.stages.iter().collect::<Vec<_>>())
}

/// The stages of a contender's requests at a job.
fn stages_of<'a>(case: &'a CaseReport, job: &str, contender: &str) -> Vec<&'a StageTime> {
    let rows = case.stages.iter().filter(|r| r.job == job && r.contender == contender);
    rows.map(|r| &r.stage).collect()
}

/// For programs, and for [`Report::from_json`].
#[must_use]
pub fn json(report: &Report) -> String {
    serde_json::to_string(report).unwrap_or_default() + "\n"
}
