//! What a workload is done to.

use crate::error::Result;
use crate::sys;
use crate::workload::{Outcome, Workload};

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
}

impl Watched {
    /// The process `pid` as `role`.
    #[must_use]
    pub fn new(role: &str, pid: u32) -> Watched {
        Watched { role: role.into(), pid }
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
        let before = cpu();
        let mut outcome = self.target.run(workload)?;
        for ((watched, before), after) in self.watched.iter().zip(before).zip(cpu()) {
            if let (Some(before), Some(after)) = (before, after) {
                outcome.cpu.push((watched.role.clone(), after - before));
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
