//! A deterministic simulator of whole clusters of the unmodified [`urbd_core::Resource`].
//!
//! Purpose: to find what the replication core does wrong when disks, networks, nodes and operators do. [`run_seed`]
//! draws a cluster and a plan of everything that happens to it from a number, runs it in virtual time, and checks after
//! every event and at the end what applications may see and what copies must hold. [`shrink`] makes the plan of a
//! failing seed short.
//!
//! Two phases: in the first there are faults, and safety is checked; then everything is mended, and within a bound the
//! copies must become UpToDate and identical, all requests and commands must end, and the network must fall silent.
//!
//! Faults: a disk fails reads, writes, discards, flushes or metadata, hangs, loses and tears its cache with the power;
//! a stream is cut, stands still or ends; a process dies in the middle of a turn, or is stopped for a while; a machine
//! dies; operators detach, disconnect, force, invalidate, outdate, freeze and verify at any time. Ranges of seeds of
//! their own have further faults, options, dialects and numbers of nodes: `crates/sim/README.md` lists them.
//!
//! Invariants: same plan, same run (the hash of the trace tells). Payload is never bytes: sectors hold the number of
//! the write that they come from.
//!
//! Must never: be needed by the product but for its verb `sim`; know more of the core than its public interface.
#![forbid(unsafe_code)]

mod apps;
mod campaign;
mod checks;
mod clocks;
mod cluster;
mod codec;
mod coming;
mod damage;
mod disk;
mod drawing;
mod drawn;
mod epochs;
mod errors;
mod extras;
mod faults;
pub mod foretelling;
mod further;
mod handlers;
mod help;
mod in_sync;
mod kernels;
mod ledger;
mod links;
mod many;
mod metadata;
mod net;
mod nine;
mod on_disk;
mod options;
mod oracle;
mod packets;
mod payload;
mod plan;
mod process;
mod promises;
mod ranges;
mod restless;
mod reunion;
mod saved;
mod scenario;
mod settle;
mod shrink;
mod trace;
mod unlike;
mod widest;
mod worlds;

pub use campaign::{BAD_CALL, BROKEN, Campaign, Coverage, FAILED};
pub use coming::{Absent, Coming};
pub use disk::DiskFaults;
pub use drawn::{Drawn, NodeOptions};
pub use extras::Extras;
pub use options::{OPTIONS, Opt};
pub use plan::{Plan, Planned, Setup, Step, VolumeSetup};
pub use scenario::{Scenario, parse as parse_scenarios, run_scenario};
pub use shrink::shrink;
pub use widest::Widest;
pub use worlds::{WORLDS, count as count_worlds};

use checks::Watch;
use cluster::Cluster;
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use trace::Trace;
use units::{Duration, Instant};

/// How to run a plan.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Options {
    /// Keep a line for everything that happens.
    pub trace: bool,
    /// In the trace: what this sector of this volume holds, and may hold, whenever that changes.
    pub watch: Option<(usize, u64)>,
    /// Hash all effects ([`Outcome::effects`]).
    pub effects: bool,
}

/// What became of a run.
#[derive(Clone, PartialEq, Debug)]
pub struct Outcome {
    /// What was wrong.
    pub failure: Option<String>,
    /// Hash of everything that happened.
    pub hash: u64,
    /// Hash of the texts of all effects, if it was asked for.
    pub effects: Option<u64>,
    /// Events.
    pub events: u64,
    /// Virtual time that passed.
    pub time: Duration,
    /// What happened, if it was asked for.
    pub trace: Vec<String>,
    /// How often each reason was given for a decision, by its stable name.
    pub reached: BTreeMap<&'static str, u64>,
    /// How often each row of a decision table was decisive, by `TABLE ROW`; empty without the feature `rows`.
    pub rows: BTreeMap<String, u64>,
}

/// Runs the plan of a seed.
#[must_use]
pub fn run_seed(seed: u64, options: Options) -> Outcome {
    run_plan(&Plan::draw(seed), options)
}

/// Runs a plan. A panic of the core is a failure (where panics unwind).
#[must_use]
pub fn run_plan(plan: &Plan, options: Options) -> Outcome {
    observed(plan, options, |cluster| {
        let end = plan.steps.last().map_or(Instant(0), |last| last.at);
        cluster.run_with_checks(end);
        cluster.go_on(plan.least_events);
        if cluster.failure.is_none() {
            cluster.recover();
        }
    })
}

/// Lets something happen to the cluster of a plan, and tells what became of it.
fn observed(plan: &Plan, options: Options, what: impl FnOnce(&mut Cluster)) -> Outcome {
    let mut cluster = Cluster::new(plan, Trace::new(options.trace, options.effects));
    cluster.watch = options.watch.map(|(volume, sector)| Watch { volume, sector, seen: String::new() });
    let ran = catch_unwind(AssertUnwindSafe(|| what(&mut cluster)));
    if let Err(panic) = ran {
        let text = panic.downcast_ref::<String>().cloned();
        let text = text.or_else(|| panic.downcast_ref::<&str>().map(|s| (*s).to_owned()));
        cluster.fail(format!("panic: {}", text.unwrap_or_default()));
    }
    Outcome {
        failure: cluster.failure,
        hash: cluster.trace.hash(),
        effects: cluster.trace.effects(),
        events: cluster.events,
        time: cluster.now.since(Instant(0)),
        trace: cluster.trace.into_lines(),
        reached: cluster.reached,
        #[cfg(feature = "rows")]
        rows: urbd_core::take_rows(),
        #[cfg(not(feature = "rows"))]
        rows: BTreeMap::new(),
    }
}

impl Cluster {
    /// Runs until `end`, and compares copies now and then.
    pub(crate) fn run_with_checks(&mut self, end: Instant) {
        const EVERY: Duration = Duration::from_millis(500);
        let mut before = 0;
        while self.now < end && self.failure.is_none() {
            self.run_until(end.min(self.now + EVERY));
            // Hours in which a node is stopped are mostly quiet.
            if self.failure.is_none() && (self.events > before || !self.setup.extras.clocks) {
                before = self.events;
                self.check_settled();
            }
        }
    }
}
