//! The block device: FUSE with a loop device on it.

use super::{Case, Contender, Set, Setting};
use crate::alternatives::Bindfs;
use crate::error::{Error, Result};
use crate::file::FileTarget;
use crate::pair::{Front, Pair, Plan};
use crate::results::{CaseReport, IOPS, Relation::*};
use crate::target::{Behind, Target, Watched};
use crate::workload::{Pattern, Workload};
use frontends::loopdev::{self, Kept};
use std::path::Path;

pub(super) const CASE: Case = Case {
    name: "fuse",
    set: Set::Bars,
    title: "The block device, beside a loop device on a pass-through FUSE file",
    about: "Direct I/O on a loop device. urbd: two nodes, protocol C, files in memory; bindfs: one file in memory, passed \
            through FUSE unchanged.",
    run,
};

const URBD: &str = "urbd";
const BINDFS: &str = "bindfs, one copy";

fn run(setting: &Setting<'_>, report: &mut CaseReport) -> Result<()> {
    let folder = setting.folder("fuse")?;
    let [first, second] = setting.two_files(&folder)?;
    let pair = Pair::start(setting.programs, &folder, Plan::new(&first, &second, Front::Device))?;
    let span = pair.size()?;
    let device = FileTarget::open(&pair.device()?, true, false)?;
    let mut device = Behind { target: device, watched: pair.watched() };
    let write = |pattern, block, depth| setting.job(Workload { span, ..Workload::writes(pattern, block, depth) });
    let deep = write(Pattern::Random, 4096, 32);
    let read = setting.job(Workload { span, ..Workload::reads(Pattern::Random, 4096, 32) });
    let jobs = [deep.clone(), write(Pattern::Random, 4096, 1), write(Pattern::Sequential, 1 << 20, 4), read];
    let files = setting.rival_files("bindfs")?;
    let through = PassedThrough::start(&folder, &files[0]);
    let mut through = match &through {
        Ok(through) => Some(Behind {
            target: FileTarget::open(&through.device.device().path(), true, false)?,
            watched: vec![Watched::new("server", through.bindfs.pid())],
        }),
        Err(e) => {
            report.absent(BINDFS, e);
            None
        }
    };
    let mut contenders: Vec<Contender<'_>> = vec![(URBD, &mut device)];
    contenders.extend(through.as_mut().map(|t| (BINDFS, t as &mut dyn Target)));
    setting.interleave(report, &jobs, &mut contenders)?;
    for (job, _) in &jobs {
        let values = report.ratios(job, IOPS, URBD, BINDFS);
        report.bar(format!("{job}: block device / pass-through file"), AtLeast, 0.60, values);
    }
    Ok(())
}

/// A loop device on a file that bindfs passes through.
struct PassedThrough {
    bindfs: Bindfs,
    device: Kept,
}

impl PassedThrough {
    fn start(dir: &Path, file: &Path) -> Result<PassedThrough> {
        let from = file.parent().ok_or_else(|| Error::new("the file is in no folder"))?;
        let bindfs = Bindfs::start(dir, from)?;
        let name = file.file_name().unwrap_or_default();
        let device = loopdev::keep(bindfs.mount().join(name), loopdev::Options::default()).and_then(|d| d.wait());
        Ok(PassedThrough { device: device.map_err(Error::io("a loop device on the passed-through file"))?, bindfs })
    }
}

impl Drop for PassedThrough {
    fn drop(&mut self) {
        let _ = self.device.detach();
    }
}
