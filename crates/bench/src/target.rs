//! What a workload is done to.

use crate::error::Result;
use crate::sys;
use crate::workload::{Outcome, StageTime, Workload};
use control::{Client, StageLatency};
use std::path::PathBuf;
use std::time::Duration;

/// How long a node may take to answer.
const ANSWER: Duration = Duration::from_secs(10);

/// Something that takes requests, whatever is between it and its disks.
pub trait Target {
    /// Does the workload; blocks until it is over.
    ///
    /// # Errors
    /// If it could not be done at all. Requests that failed are counted in the outcome.
    fn run(&mut self, workload: &Workload) -> Result<Outcome>;
}

/// A process whose CPU time belongs to the result, with its role there.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Watched {
    /// E.g. `primary`.
    pub role: String,
    /// Its id.
    pub pid: u32,
    /// The control socket of a node, which knows where its requests' time goes.
    pub control: Option<PathBuf>,
}

impl Watched {
    /// The process `pid` as `role`.
    #[must_use]
    pub fn new(role: &str, pid: u32) -> Watched {
        Watched { role: role.into(), pid, control: None }
    }

    /// How long requests were in each stage on a node since it began; nothing of others.
    fn stages(&self) -> Vec<StageLatency> {
        let Some(socket) = &self.control else { return Vec::new() };
        let status = Client::connect(socket, Some(ANSWER)).and_then(|mut client| client.status());
        // A node that does not answer now has told everything that matters before.
        status.map(|s| s.devices.into_iter().flat_map(|d| d.latencies).collect()).unwrap_or_default()
    }
}

/// A target, and the processes behind it that work for it.
pub struct Behind<T> {
    /// The target.
    pub target: T,
    /// The processes.
    pub watched: Vec<Watched>,
}

impl<T: Target> Target for Behind<T> {
    fn run(&mut self, workload: &Workload) -> Result<Outcome> {
        let cpu = || self.watched.iter().map(|w| sys::cpu_seconds(w.pid)).collect::<Vec<_>>();
        let stages = || self.watched.iter().map(Watched::stages).collect::<Vec<_>>();
        let (stages_before, before) = (stages(), cpu());
        let mut outcome = self.target.run(workload)?;
        for ((watched, before), after) in self.watched.iter().zip(before).zip(cpu()) {
            if let (Some(before), Some(after)) = (before, after) {
                outcome.cpu.push((watched.role.clone(), after - before));
            }
        }
        for (watched, (before, after)) in self.watched.iter().zip(stages_before.into_iter().zip(stages())) {
            let is_same = |a: &StageLatency, b: &StageLatency| (&a.request, &a.stage) == (&b.request, &b.stage);
            for after in after {
                let new = before.iter().find(|b| is_same(b, &after)).map(|b| after.since(b)).unwrap_or(after);
                if new.count() > 0 {
                    outcome.stages.push(StageTime { role: watched.role.clone(), latency: new });
                }
            }
        }
        Ok(outcome)
    }
}

impl<T: Target + ?Sized> Target for &mut T {
    fn run(&mut self, workload: &Workload) -> Result<Outcome> {
        (**self).run(workload)
    }
}

impl<T: Target + ?Sized> Target for Box<T> {
    fn run(&mut self, workload: &Workload) -> Result<Outcome> {
        (**self).run(workload)
    }
}
