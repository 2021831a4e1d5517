//! `sim`: a command line for the simulator of whole clusters (`docs/testing.md`).

use std::collections::BTreeSet;
use std::num::NonZeroUsize;
use std::time::Duration;

use sim::{Campaign, FAILED, Options, Plan, parse_place};

use crate::cli::Call;
use crate::problem::{Problem, exit};

/// `sim …`: 0 if nothing failed, else 10.
///
/// # Errors
/// Exit 1: a bad call. Exit 20: the ledger cannot be read or written.
pub(crate) fn run(call: &Call) -> Result<u8, Problem> {
    let campaign = campaign(call)?;
    let failed = campaign.run().map_err(|text| Problem::new(exit::BROKEN, text))?;
    Ok(if failed { FAILED } else { 0 })
}

fn campaign(call: &Call) -> Result<Campaign, Problem> {
    let plan = call.value("seed").map(|text| {
        Plan::parse(text)
            .ok_or_else(|| Problem::usage(format!("--seed={text}: must be N[+LUCK] or N[+LUCK]:STEP,STEP,…")))
    });
    let watch = call
        .value("watch")
        .map(|text| parse_place(text).ok_or_else(|| Problem::usage(format!("--watch={text}: must be VOLUME:SECTOR"))));
    let (plan, watch) = (plan.transpose()?, watch.transpose()?);
    let trace = call.flag("trace") || watch.is_some();
    let shrink = call.number("shrink")?.map(Duration::from_secs);
    let jobs = match call.number("jobs")? {
        Some(jobs) => NonZeroUsize::new(jobs as usize).ok_or_else(|| Problem::usage("--jobs=0: at least 1"))?,
        None => Campaign::all_processors(),
    };
    if let Some(text) = call.value("hours") {
        let hours = text.parse::<f64>().ok().filter(|hours| (0.0..1e6).contains(hours));
        let hours = hours.ok_or_else(|| Problem::usage(format!("--hours={text}: must be a number from 0 on")))?;
        let needs = || Problem::usage("--hours goes on from a ledger").hint("name a file with --ledger; it is made");
        return Ok(Campaign::Hours { hours, ledger: call.value("ledger").ok_or_else(needs)?.into(), jobs });
    }
    if let Some(name) = call.value("scenario") {
        return Ok(Campaign::Scenarios { name: name.to_owned(), seed: plan.map(|plan| plan.seed), trace });
    }
    if let Some(plan) = plan {
        let options = Options { trace, watch };
        return Ok(Campaign::One { plan: Box::new(plan), options, shrink });
    }
    if trace || shrink.is_some() || call.value("ledger").is_some() {
        return Err(Problem::usage("--trace, --watch and --shrink need --seed; --ledger needs --hours"));
    }
    let number = |name, default| Ok(call.number(name)?.unwrap_or(default));
    let (first, count) = (number("first", 1)?, number("seeds", 1000)?);
    Ok(Campaign::Many {
        first,
        count,
        events: number("events", 0)?,
        each: number("each", 0)?,
        known: BTreeSet::new(),
        jobs,
    })
}
