//! Three replicas beside two.

use super::{Case, Set, Setting};
use crate::error::Result;
use crate::pair::{Front, PRIMARY, Pair, Plan, filled_file};
use crate::results::{CaseReport, Relation::AtLeast, cpu_per_gib};
use crate::workload::{Pattern, Workload};

pub(super) const CASE: Case = Case {
    name: "three",
    set: Set::Bars,
    title: "Three replicas beside two",
    about: "Nodes on this machine over loopback TCP in DRBD 9's dialect, protocol C, files in memory, the load inside \
            the primary's loop. What the primary spends on a third replica is sending each write once more, and taking \
            in one more answer.",
    run,
};

const TWO: &str = "two replicas";
const THREE: &str = "three replicas";

fn run(setting: &Setting<'_>, report: &mut CaseReport) -> Result<()> {
    let start = |name: &str, third: bool| -> Result<Pair> {
        let folder = setting.folder(name)?;
        let [first, second] = setting.two_files(&folder)?;
        let third = third.then(|| filled_file(&folder.join("third.disk"), setting.size())).transpose()?;
        Pair::start(setting.programs, &folder, Plan { third, nine: true, ..Plan::new(&first, &second, Front::Inside) })
    };
    let (mut two, mut three) = (start("two", false)?, start("three", true)?);
    let span = two.size()?.min(three.size()?);
    let deep = setting.job(Workload { span, ..Workload::writes(Pattern::Random, 4096, 64) });
    let (mut of_two, mut of_three) = (two.inside(), three.inside());
    setting.interleave(report, std::slice::from_ref(&deep), &mut [(TWO, &mut of_two), (THREE, &mut of_three)])?;
    // What a write costs is the inverse of how many there are in a second of the processor.
    let ratios = report.ratios(&deep.0, &cpu_per_gib(PRIMARY), TWO, THREE);
    report.bar(format!("{}: IOPS per CPU second of the primary, three / two", deep.0), AtLeast, 0.75, ratios);
    Ok(())
}
