//! What can be counted and does not depend on how busy the machine is: system calls and packets per write.

use super::{Case, Set, Setting};
use crate::counters::{Syscalls, sent_bytes};
use crate::error::Result;
use crate::pair::{Front, PRIMARY, Pair, Plan};
use crate::results::{CaseReport, Relation::*};
use crate::target::Target;
use crate::workload::{Pattern, Workload};

pub(super) const CASE: Case = Case {
    name: "counts",
    set: Set::Bars,
    title: "Counted: system calls and packets per write",
    about: "Two nodes over loopback TCP, protocol C, files in memory, the load inside the primary's loop. System calls \
            are counted by the kernel (perf). Packets are what the primary sent beyond payload, divided by a P_DATA \
            header of 40 bytes: barriers count too, so it is an upper bound. Files in memory are written with one \
            pwritev2 each; writes to real disks are not system calls of their own.",
    run,
};

const URBD: &str = "urbd";
/// Bytes in front of a write's payload, protocol 100 and above.
const DATA_HEADER: f64 = 40.0;

fn run(setting: &Setting<'_>, report: &mut CaseReport) -> Result<()> {
    let folder = setting.folder("counts")?;
    let [first, second] = setting.two_files(&folder)?;
    let mut pair = Pair::start(setting.programs, &folder, Plan::new(&first, &second, Front::Inside))?;
    let span = pair.size()?;
    let write = |pattern, block, depth| setting.job(Workload { span, ..Workload::writes(pattern, block, depth) });
    let deep = write(Pattern::Random, 4096, 64);
    let stream = write(Pattern::Sequential, 4096, 64);
    let single = write(Pattern::Random, 4096, 1);
    let watched = pair.watched();
    let primary = watched.iter().find(|w| w.role == PRIMARY).map_or(0, |w| w.pid);
    for round in 0..setting.rounds {
        for (i, (job, workload)) in [&deep, &stream, &single].into_iter().enumerate() {
            (setting.progress)(job, (f64::from(round) + i as f64 / 3.0) / f64::from(setting.rounds));
            let counting: Vec<_> = watched.iter().map(|w| (w, Syscalls::start(&folder, &w.role, w.pid))).collect();
            let before = sent_bytes(primary);
            let outcome = pair.inside().run(workload)?;
            report.outcome(job, URBD, &outcome)?;
            for (watched, counter) in counting {
                match counter.and_then(Syscalls::finish) {
                    Ok((calls, to_files)) => {
                        let per_write = |n: u64| n as f64 / outcome.requests.max(1) as f64;
                        report.record(job, URBD, &syscalls(&watched.role), per_write(calls));
                        let others = calls.saturating_sub(to_files);
                        report.record(job, URBD, &besides_files(&watched.role), per_write(others));
                    }
                    Err(e) => report.absent("system calls", e),
                }
            }
            match (before, sent_bytes(primary)) {
                (Ok(before), Ok(after)) => {
                    let beyond = (after - before) as f64 - outcome.bytes as f64;
                    report.record(job, URBD, PACKETS, beyond / DATA_HEADER / outcome.requests.max(1) as f64);
                }
                (Err(e), _) | (_, Err(e)) => report.absent("packets", e),
            }
        }
    }
    for watched in &watched {
        let values = report.values(&deep.0, URBD, &besides_files(&watched.role)).to_vec();
        let what = format!("{}: system calls per write besides writes to memory, {}", deep.0, watched.role);
        report.bar(what, AtMost, 1.0, values);
    }
    let values = report.values(&stream.0, URBD, PACKETS).to_vec();
    report.bar(format!("{}: packets per write", stream.0), AtMost, 0.3, values);
    Ok(())
}

const PACKETS: &str = "packets/write";

fn besides_files(role: &str) -> String {
    format!("syscalls/write besides files, {role}")
}

fn syscalls(role: &str) -> String {
    format!("syscalls/write, {role}")
}
