//! A node without a disk beside iSCSI.

use super::{Case, Contender, Set, Setting};
use crate::alternatives::{Iscsi, Server, Tgt};
use crate::error::Result;
use crate::pair::{Front, Pair, Plan};
use crate::results::{CaseReport, IOPS, Relation::*};
use crate::target::{Behind, Target};
use crate::workload::{Pattern, Workload};

pub(super) const CASE: Case = Case {
    name: "client",
    set: Set::Seeds,
    title: "A client without a disk, beside iSCSI (measured with DRBD 9.2.12: DRBD won random, iSCSI sequential)",
    about: "16 connections with 16 requests each, 4 KiB, and one request at a time. urbd: a Primary without a disk that \
            reaches its peer's file in memory over loopback TCP, with an NBD socket in front. iSCSI: tgt with the same \
            kind of file, and qemu's initiator (libiscsi) with an NBD socket in front. The same client program for both.",
    run,
};

const URBD: &str = "urbd";
const ISCSI: &str = "tgt + libiscsi";

fn run(setting: &Setting<'_>, report: &mut CaseReport) -> Result<()> {
    let folder = setting.folder("client")?;
    let [second, unit] = setting.two_files(&folder)?;
    let plan = Plan { first: None, ..Plan::new(&second, &second, Front::Nbd) };
    let pair = Pair::start(setting.programs, &folder, plan)?;
    let iscsi = Tgt::start(&folder, &unit).and_then(|target| Iscsi::start(&folder, target));
    let span = pair.size()?;
    let mut urbd = Behind { target: setting.client(&pair.nbd_uri()?, report)?, watched: pair.watched() };
    let mut jobs = Vec::new();
    for (depth, connections) in [(256, 16), (1, 1)] {
        let base = Workload { span, connections, ..Workload::writes(Pattern::Random, 4096, depth) };
        jobs.push(setting.job(Workload { pattern: Pattern::Sequential, ..base.clone() }));
        jobs.push(setting.job(base.clone()));
        jobs.push(setting.job(Workload { read_percent: 100, ..base }));
    }
    let mut other = match &iscsi {
        Ok(server) => Some(Behind { target: setting.client(&server.uri(), report)?, watched: server.watched() }),
        Err(e) => {
            report.absent(ISCSI, e);
            None
        }
    };
    let mut contenders: Vec<Contender<'_>> = vec![(URBD, &mut urbd)];
    contenders.extend(other.as_mut().map(|o| (ISCSI, o as &mut dyn Target)));
    setting.interleave(report, &jobs, &mut contenders)?;
    for (job, _) in &jobs {
        let values = report.ratios(job, IOPS, URBD, ISCSI);
        report.bar(format!("{job}: IOPS / tgt + libiscsi"), AtLeast, 1.5, values);
    }
    Ok(())
}
