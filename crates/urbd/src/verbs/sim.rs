//! `sim`: a command line for the simulator of whole clusters (`docs/testing.md`).

use sim::{Campaign, FAILED};

use crate::cli::Call;
use crate::problem::{Problem, exit};

/// `sim …`: 0 if nothing failed, else 10.
///
/// # Errors
/// Exit 1: a bad call. Exit 20: the ledger cannot be read or written.
pub(crate) fn run(call: &Call) -> Result<u8, Problem> {
    let is_flag = |name: &str| sim::OPTIONS.iter().any(|o| o.name == name && o.value.is_none());
    let given = |name: &str| if is_flag(name) { call.flag(name).then_some("") } else { call.value(name) };
    let campaign = Campaign::from_options(&given).map_err(Problem::usage)?;
    let failed = campaign.run().map_err(|text| Problem::new(exit::BROKEN, text))?;
    Ok(if failed { FAILED } else { 0 })
}
