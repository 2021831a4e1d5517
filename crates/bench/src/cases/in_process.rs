//! The load inside the primary's loop, beside the bare work.

use super::{Case, Set, Setting};
use crate::error::Result;
use crate::limit::Limit;
use crate::pair::{Front, Pair, Plan, SECONDARY};
use crate::results::{CPU, CaseReport, IOPS, LATENCY, MIB_S, Relation::*, cpu_per_gib};
use crate::workload::{Pattern, Workload};

pub(super) const CASE: Case = Case {
    name: "in-process",
    set: Set::Bars,
    title: "Replication alone, beside the bare work",
    about: "Two nodes on this machine over loopback TCP, protocol C, files in memory. The load is made inside the \
            primary's loop, so there is no front end. The limit is a C program that writes each block to two files \
            through one TCP connection and does nothing else.",
    run,
};

const URBD: &str = "urbd";
const LIMIT: &str = "limit";

fn run(setting: &Setting<'_>, report: &mut CaseReport) -> Result<()> {
    let folder = setting.folder("in-process")?;
    let [first, second] = setting.two_files(&folder)?;
    let mut pair = Pair::start(setting.programs, &folder, Plan::new(&first, &second, Front::Inside))?;
    let mut limit = Limit::new(&folder, setting.two_files(&setting.folder("limit")?)?);
    let span = pair.size()?;
    let write = |pattern, block, depth| Workload { span, ..Workload::writes(pattern, block, depth) };
    let deep = setting.job(write(Pattern::Random, 4096, 64));
    let single = setting.job(write(Pattern::Random, 4096, 1));
    let large = setting.job(write(Pattern::Sequential, 1 << 20, 8));
    let stream = setting.job(write(Pattern::Sequential, 4096, 64));
    let jobs = [deep.clone(), single.clone(), large.clone(), stream.clone()];
    let mut inside = pair.inside();
    match &mut limit {
        Ok(limit) => setting.interleave(report, &jobs, &mut [(URBD, &mut inside), (LIMIT, limit)])?,
        Err(e) => {
            report.absent(LIMIT, e);
            setting.interleave(report, &jobs, &mut [(URBD, &mut inside)])?;
        }
    }
    let ratios = |job: &str, metric: &str| report.ratios(job, metric, URBD, LIMIT);
    let bars = [
        (format!("{}: IOPS / limit", deep.0), AtLeast, 0.60, ratios(&deep.0, IOPS)),
        (format!("{}: CPU per write / limit", deep.0), AtMost, 1.8, ratios(&deep.0, CPU)),
        (format!("{}: latency / limit", single.0), AtMost, 1.6, ratios(&single.0, LATENCY)),
        (format!("{}: MiB/s / limit", large.0), AtLeast, 0.85, ratios(&large.0, MIB_S)),
        (
            format!("{}: receiver's CPU per GiB / limit", large.0),
            AtMost,
            1.3,
            ratios(&large.0, &cpu_per_gib(SECONDARY)),
        ),
        (
            "4k QD64: sequential / random IOPS".into(),
            AtLeast,
            1.0,
            crate::results::ratios(report.values(&stream.0, URBD, IOPS), report.values(&deep.0, URBD, IOPS)),
        ),
    ];
    bars.into_iter().for_each(|(what, relation, want, values)| report.bar(what, relation, want, values));
    Ok(())
}
