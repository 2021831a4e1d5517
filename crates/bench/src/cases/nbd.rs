//! The same client program against NBD servers: a bare file, urbd, and others that keep two copies.

use super::{Case, Contender, Set, Setting};
use crate::alternatives::{Gluster, Mirror, Nbdkit, Quorum, Server};
use crate::error::Result;
use crate::limit::ServedLimit;
use crate::pair::{Front, Pair, Plan};
use crate::results::{CaseReport, IOPS, Relation::*, ratios};
use crate::target::{Behind, Target};
use crate::workload::{Pattern, Workload};

pub(super) const CASE: Case = Case {
    name: "nbd",
    set: Set::Bars,
    title: "NBD: beside a file without replication, and beside other mirrors",
    about: "The same client over a Unix socket. Files in memory; urbd with two nodes, protocol C, over loopback TCP; \
            nbdkit with one file and no replication; bench/limit.c, the bare work of a mirrored write, with just \
            enough of an NBD server in front; qemu-storage-daemon with two copies, of which one is in a second \
            daemon; GlusterFS with two bricks (replica 2), nbdkit on its mount. qemu works on 16 requests of a \
            connection at once, so it is judged with several connections.",
    run,
};

const URBD: &str = "urbd";
const NBDKIT: &str = "nbdkit, one copy";
const LIMIT: &str = "the bare work";
const MIRROR: &str = "qemu mirror";
const QUORUM: &str = "qemu quorum";
const GLUSTER: &str = "GlusterFS";

type Client = Behind<Box<dyn Target>>;

fn run(setting: &Setting<'_>, report: &mut CaseReport) -> Result<()> {
    let folder = setting.folder("nbd")?;
    let [first, second] = setting.two_files(&folder)?;
    let pair = Pair::start(setting.programs, &folder, Plan::new(&first, &second, Front::Nbd))?;
    let span = pair.size()?;
    let mut servers: Vec<(&str, Box<dyn Server>)> = Vec::new();
    let [bare, _] = setting.two_files(&setting.folder("bare")?)?;
    let started: [(&str, Result<Box<dyn Server>>); 5] = [
        (LIMIT, setting.rival_files("limit").and_then(|f| ServedLimit::start(&folder, &f)).map(|s| Box::new(s) as _)),
        (NBDKIT, Nbdkit::start(&folder, &bare).map(|s| Box::new(s) as _)),
        (MIRROR, setting.rival_files("mirror").and_then(|f| Mirror::start(&folder, &f)).map(|s| Box::new(s) as _)),
        (QUORUM, setting.rival_files("quorum").and_then(|f| Quorum::start(&folder, &f)).map(|s| Box::new(s) as _)),
        (GLUSTER, setting.folder("gluster").and_then(|f| Gluster::start(&f, setting.size())).map(|s| Box::new(s) as _)),
    ];
    for (name, server) in started {
        match server {
            Ok(server) => servers.push((name, server)),
            Err(e) => report.absent(name, e),
        }
    }
    let mut clients: Vec<(&str, Client)> =
        vec![(URBD, Behind { target: setting.client(&pair.nbd_uri()?, report)?, watched: pair.watched() })];
    for (name, server) in &servers {
        clients.push((name, Behind { target: setting.client(&server.uri(), report)?, watched: server.watched() }));
    }
    let write = |pattern, block, depth, connections| {
        setting.job(Workload { span, connections, ..Workload::writes(pattern, block, depth) })
    };
    let deep = write(Pattern::Random, 4096, 64, 1);
    let single = write(Pattern::Random, 4096, 1, 1);
    let several = write(Pattern::Random, 4096, 64, 4);
    let large = write(Pattern::Sequential, 1 << 20, 8, 1);
    let read = setting.job(Workload { span, ..Workload::reads(Pattern::Random, 4096, 64) });
    let mut contenders: Vec<Contender<'_>> = clients.iter_mut().map(|(n, c)| (*n, c as &mut dyn Target)).collect();
    setting.interleave(report, std::slice::from_ref(&deep), &mut contenders)?;
    // It can do nothing else.
    contenders.retain(|(name, _)| *name != LIMIT);
    let jobs = [single.clone(), several.clone(), large, read.clone()];
    setting.interleave(report, &jobs, &mut contenders)?;
    let values = report.ratios(&deep.0, IOPS, URBD, LIMIT);
    report.bar(format!("{}: IOPS / {LIMIT}", deep.0), AtLeast, 0.75, values);
    for (job, least) in [(&deep.0, 0.70), (&single.0, 0.70), (&read.0, 0.90)] {
        let values = report.ratios(job, IOPS, URBD, NBDKIT);
        report.bar(format!("{job}: IOPS / nbdkit with one copy"), AtLeast, least, values);
    }
    for job in [&several.0, &single.0] {
        let best = best_rival(report, job);
        let values = ratios(report.values(job, URBD, IOPS), &best);
        report.bar(format!("{job}: IOPS / fastest other mirror"), AtLeast, 2.0, values);
    }
    Ok(())
}

/// In each round the fastest of those who keep two copies.
fn best_rival(report: &CaseReport, job: &str) -> Vec<f64> {
    let rivals = [MIRROR, QUORUM, GLUSTER].map(|name| report.values(job, name, IOPS));
    let rounds = rivals.iter().map(|values| values.len()).max().unwrap_or_default();
    (0..rounds).map(|i| rivals.iter().filter_map(|v| v.get(i)).copied().fold(0.0, f64::max)).collect()
}
