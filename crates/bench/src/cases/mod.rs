//! The cases: which contenders do which jobs, and which bars follow.

mod client;
mod counts;
mod disks;
mod fuse;
mod in_process;
mod nbd;
mod resync;
mod three;

use crate::error::{Error, Result};
use crate::fio::Fio;
use crate::machine::Machine;
use crate::nbd::NbdTarget;
use crate::pair::{Programs, filled_file};
use crate::results::{CaseReport, Report, VERSION};
use crate::scratch::{self, Left};
use crate::sys::{self, Foreign};
use crate::target::Target;
use crate::workload::Workload;
use std::cell::Cell;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// How thoroughly.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Scale {
    /// For tests of the benchmark itself: figures mean nothing.
    Tiny,
    /// A first impression, in minutes.
    Quick,
    /// What may be quoted.
    Full,
}

impl Scale {
    /// Its name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Scale::Tiny => "tiny",
            Scale::Quick => "quick",
            Scale::Full => "full",
        }
    }

    /// One of three values.
    pub(crate) fn choose<T>(self, tiny: T, quick: T, full: T) -> T {
        match self {
            Scale::Tiny => tiny,
            Scale::Quick => quick,
            Scale::Full => full,
        }
    }
}

/// Which set a case belongs to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Set {
    /// The measurements of DRBD that urbd starts from.
    Seeds,
    /// What urbd asks of itself.
    Bars,
}

/// One case of the table.
pub struct Case {
    /// Its name for `--only`.
    pub name: &'static str,
    /// Where it belongs.
    pub set: Set,
    /// A heading.
    pub title: &'static str,
    /// What is compared, on what.
    pub about: &'static str,
    run: fn(&Setting, &mut CaseReport) -> Result<()>,
}

/// All cases, in the order in which they run.
pub const CASES: &[Case] = &[
    disks::MIRRORING,
    disks::PROTOCOLS,
    disks::ACTIVITY_LOG,
    resync::CASE,
    client::CASE,
    in_process::CASE,
    three::CASE,
    counts::CASE,
    nbd::CASE,
    fuse::CASE,
];

/// What every case needs.
pub struct Setting<'a> {
    /// The programs that nodes run.
    pub programs: &'a Programs,
    /// Where files of the measurement are made, e.g. in memory.
    pub dir: &'a Path,
    /// How thoroughly.
    pub scale: Scale,
    /// Rounds; each contender has one turn per job in each.
    pub rounds: u32,
    /// Is told what is done, and which part of the case is done (0 to 1).
    pub progress: &'a dyn Fn(&str, f64),
    /// Numbers for names of files.
    pub next: Cell<u32>,
}

/// A job with what it is called.
pub(crate) type Job = (String, Workload);
/// Someone who takes part.
pub(crate) type Contender<'a> = (&'a str, &'a mut dyn Target);

impl Setting<'_> {
    /// How long one job lasts.
    pub(crate) fn duration(&self) -> Duration {
        Duration::from_millis(self.scale.choose(60, 400, 1200))
    }

    /// Bytes of a backing file.
    pub(crate) fn size(&self) -> u64 {
        self.scale.choose(24 << 20, 128 << 20, 512 << 20)
    }

    /// A job of the usual length.
    pub(crate) fn job(&self, workload: Workload) -> Job {
        (workload.title(), workload.lasting(self.duration()))
    }

    /// A folder that nobody else uses.
    ///
    /// # Errors
    /// If it cannot be made.
    pub(crate) fn folder(&self, name: &str) -> Result<PathBuf> {
        let number = self.next.replace(self.next.get() + 1);
        let path = self.dir.join(format!("{number}-{name}"));
        std::fs::create_dir_all(&path).map_err(Error::io(path.display()))?;
        Ok(path)
    }

    /// Removes what [`Setting::folder`] has made, but for what is still in use.
    fn clear(&self) -> Vec<Left> {
        let entries = std::fs::read_dir(self.dir).into_iter().flatten().flatten();
        let numbered = entries.filter(|e| e.file_name().as_encoded_bytes().first().is_some_and(u8::is_ascii_digit));
        numbered.filter_map(|entry| scratch::remove(entry.path())).collect()
    }

    /// Two backing files of [`Setting::size`] in `folder`.
    ///
    /// # Errors
    /// If there is no room.
    pub(crate) fn two_files(&self, folder: &Path) -> Result<[PathBuf; 2]> {
        let file = |name| filled_file(&folder.join(name), self.size());
        Ok([file("first.disk")?, file("second.disk")?])
    }

    /// Two files for one who competes; its own, so that nobody finds the other's blocks.
    pub(crate) fn rival_files(&self, name: &str) -> Result<[PathBuf; 2]> {
        self.two_files(&self.folder(name)?)
    }

    /// The client program for an NBD server: fio if it is installed, else our own.
    ///
    /// # Errors
    /// If the address is not understood.
    pub(crate) fn client(&self, uri: &str, report: &mut CaseReport) -> Result<Box<dyn Target>> {
        if self.scale == Scale::Tiny {
            return Ok(Box::new(NbdTarget::new(uri)?));
        }
        match Fio::new(uri) {
            Ok(fio) => {
                report.note("client: fio");
                Ok(Box::new(fio))
            }
            Err(e) => {
                report.note(&format!("client: urbd's own, as {e}"));
                Ok(Box::new(NbdTarget::new(uri)?))
            }
        }
    }

    /// The same setting, to change a part of.
    pub(crate) fn again(&self) -> Setting<'_> {
        Setting { next: Cell::new(0), progress: &|_, _| {}, ..*self }
    }

    /// Every contender does every job once per round. Who begins changes from round to round. One that fails takes no
    /// further part, and the report says why; it does not keep the others from being measured.
    ///
    /// # Errors
    /// If it is interrupted.
    pub(crate) fn interleave(
        &self,
        report: &mut CaseReport,
        jobs: &[Job],
        contenders: &mut [Contender<'_>],
    ) -> Result<()> {
        let steps = self.rounds as usize * jobs.len() * contenders.len();
        let mut done = 0;
        let mut failed = vec![false; contenders.len()];
        for round in 0..self.rounds as usize {
            for (job, workload) in jobs {
                let workload = Workload { seed: workload.seed + round as u64, ..workload.clone() };
                for turn in 0..contenders.len() {
                    if sys::is_interrupted() {
                        return Err(Error::new("interrupted"));
                    }
                    done += 1;
                    let who = (turn + round) % contenders.len();
                    if failed[who] {
                        continue;
                    }
                    let (name, target) = &mut contenders[who];
                    (self.progress)(&format!("{job}: {name}"), (done - 1) as f64 / steps as f64);
                    let outcome = target.run(&workload).and_then(|outcome| report.outcome(job, name, &outcome));
                    if let Err(e) = outcome {
                        report.absent(name, format!("{job}: {e}"));
                        failed[who] = true;
                    }
                }
            }
        }
        Ok(())
    }
}

/// Runs cases one after the other. One that fails is reported as absent and does not keep the others from being run.
pub fn run(setting: &Setting<'_>, cases: &[&Case]) -> Report {
    let mut report = Report {
        version: VERSION,
        machine: Machine::this(),
        scale: setting.scale.name().into(),
        rounds: setting.rounds,
        cases: Vec::new(),
    };
    for case in cases.iter().take_while(|_| !sys::is_interrupted()) {
        let (start, foreign) = (Instant::now(), Foreign::start());
        let mut part = CaseReport {
            name: case.name.into(),
            title: case.title.into(),
            about: case.about.into(),
            ..CaseReport::default()
        };
        if let Err(e) = (case.run)(setting, &mut part) {
            part.absent("the whole case", e);
        }
        // The disks of all cases together do not fit into memory.
        for left in setting.clear() {
            part.note(&format!("{} was left: {}", left.folder.display(), left.why));
        }
        part.thin();
        part.foreign_cpus = foreign.cpus();
        part.took = start.elapsed().as_secs_f64();
        report.cases.push(part);
    }
    report
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::results::IOPS;
    use crate::workload::{Outcome, Pattern};

    /// Fails from some turn on.
    struct Failing {
        turns: u32,
    }

    impl Target for Failing {
        fn run(&mut self, _: &Workload) -> Result<Outcome> {
            self.turns = self.turns.checked_sub(1).ok_or_else(|| Error::new("out of order"))?;
            Ok(Outcome { requests: 1, seconds: 0.001, ..Outcome::default() })
        }
    }

    fn tiny(dir: &Path, rounds: u32) -> Setting<'_> {
        let programs = Box::leak(Box::new(Programs { urbd: "urbd".into(), lab: "urbd-lab".into() }));
        Setting { programs, dir, scale: Scale::Tiny, rounds, progress: &|_, _| {}, next: Cell::new(0) }
    }

    #[test]
    fn a_case_leaves_nothing_behind() {
        let dir = tempfile::tempdir().unwrap();
        let setting = tiny(dir.path(), 1);
        let run = |setting: &Setting<'_>, _: &mut CaseReport| setting.rival_files("rival").map(drop);
        let case = Case { name: "x", set: Set::Bars, title: "x", about: "x", run };
        std::fs::write(dir.path().join(".owner"), "").unwrap();
        let report = super::run(&setting, &[&case, &case]);
        assert!(report.cases.iter().all(|c| c.absent.is_empty()), "{:?}", report.cases);
        let left: Vec<_> = std::fs::read_dir(dir.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
        assert_eq!(left, [".owner"]);
    }

    #[test]
    fn who_fails_is_left_out_and_named_and_the_others_go_on() {
        let setting = tiny(Path::new("/nonexistent"), 3);
        let (mut well, mut ill) = (Failing { turns: 99 }, Failing { turns: 3 });
        let mut report = CaseReport::default();
        let jobs = ["a", "b"].map(|name| (name.to_owned(), Workload::writes(Pattern::Random, 4096, 1)));
        let mut contenders: Vec<Contender<'_>> = vec![("well", &mut well), ("ill", &mut ill)];
        setting.interleave(&mut report, &jobs, &mut contenders).unwrap();
        let counts = |who| ["a", "b"].map(|job| report.values(job, who, IOPS).len());
        assert_eq!((counts("well"), counts("ill")), ([3, 3], [2, 1]));
        let [absent] = report.absent.as_slice() else { panic!("{:?}", report.absent) };
        assert_eq!((&*absent.contender, &*absent.why), ("ill", "b: out of order"));
    }
}
