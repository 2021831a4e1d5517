//! A resync alone, and beside an application.

use super::{Case, Set, Setting};
use crate::error::Result;
use crate::pair::{Front, Pair, Plan};
use crate::results::{CaseReport, MIB_S, P99, Relation::*, ratios};
use crate::target::Target;
use crate::workload::{Pattern, Workload};
use std::time::Instant;

pub(super) const CASE: Case = Case {
    name: "resync",
    set: Set::Seeds,
    title: "Resync, alone and beside an application (measured with DRBD 9.0.17)",
    about: "Files in memory, all of which is to be copied, with the controller that is the default. Alone, beside a \
            sequential copy of the same bytes by one thread; then while an application writes 1 MiB at a time through \
            NBD. `make bench-resync` measures controllers, links and slow disks.",
    run,
};

const ALONE: &str = "resync, alone";
const COPY: &str = "copy of the file";
const WITHOUT: &str = "no resync";
const DURING: &str = "during a resync";

fn run(setting: &Setting<'_>, report: &mut CaseReport) -> Result<()> {
    let folder = setting.folder("resync")?;
    let [first, second] = setting.two_files(&folder)?;
    let mut pair = Pair::start(setting.programs, &folder, Plan::new(&first, &second, Front::Nbd))?;
    let size = pair.size()?;
    let mib = size as f64 / f64::from(1 << 20);
    let copy = folder.join("copy");
    let title = format!("{mib:.0} MiB");
    let work = setting.job(Workload { span: size, ..Workload::writes(Pattern::Sequential, 1 << 20, 2) });
    let app_job = format!("application: {}", work.0);
    for round in 0..setting.rounds {
        (setting.progress)(&title, f64::from(round) / f64::from(setting.rounds));
        let start = Instant::now();
        std::fs::copy(&first, &copy).map_err(crate::Error::io(copy.display()))?;
        report.record(&title, COPY, MIB_S, mib / start.elapsed().as_secs_f64());
        report.record(&title, ALONE, MIB_S, mib / pair.resync()?.as_secs_f64());
        let mut nbd = pair.nbd()?;
        report.outcome(&app_job, WITHOUT, &nbd.run(&work.1)?)?;
        pair.verb_on_second("invalidate")?;
        report.outcome(&app_job, DURING, &nbd.run(&work.1)?)?;
        pair.wait_synced()?;
    }
    report.bar("resync alone: MiB/s / copy of the file", AtLeast, 0.90, report.ratios(&title, MIB_S, ALONE, COPY));
    let p99 = ratios(report.values(&app_job, DURING, P99), report.values(&app_job, WITHOUT, P99));
    report.bar("application's p99 during a resync / without", AtMost, 1.5, p99);
    Ok(())
}
