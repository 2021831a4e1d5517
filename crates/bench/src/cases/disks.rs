//! What is lost when the disk is the limit: disks of known speed, so that a percent can be told from noise.

use super::{Case, Contender, Job, Set, Setting};
use crate::error::Result;
use crate::file::FileTarget;
use crate::modelled_disk::{Model, ModelledDisk};
use crate::mounted::Mounted;
use crate::pair::{Front, Pair, Plan, SECONDARY};
use crate::results::{CaseReport, MIB_S, Relation::*, cpu_per_gib, ratios};
use crate::target::{Behind, Target};
use crate::workload::{Outcome, Pattern, Workload};
use std::path::Path;
use std::time::Duration;

pub(super) const MIRRORING: Case = Case {
    name: "mirroring",
    set: Set::Seeds,
    title: "One large file (measured with DRBD 0.7.5: protocol C cost 3.4 %, disconnected 0 %)",
    about: "A new file on ext4 in writes of 1 MiB, synced at the end. The disks are modelled: 200 MiB/s, 8 ms for a \
            jump, no write cache. The same disk bare, under urbd without its peer, and with protocol C.",
    run: mirroring,
};

pub(super) const PROTOCOLS: Case = Case {
    name: "protocols",
    set: Set::Seeds,
    title: "Protocols A, B and C (measured with DRBD 8.2.1: writes 41, 46 and 48 % of the bare disk, 71 % standalone)",
    about: "Sequential writes and reads of 1 MiB, 4 in flight, on modelled disks (200 MiB/s, 8 ms for a jump, no write \
            cache), bare and by urbd's NBD socket: without its peer, and with protocol A, B and C.",
    run: protocols,
};

pub(super) const ACTIVITY_LOG: Case = Case {
    name: "activity-log",
    set: Set::Seeds,
    title: "Internal metadata on a disk that seeks (measured with DRBD in 2011: 250 MB/s became 70)",
    about: "A sequential stream over extents that are not in the activity log, which is at the other end of the same \
            disk: 250 MiB/s, 8 ms for a jump, no write cache.",
    run: activity_log,
};

const BARE: &str = "bare disk";
const ALONE: &str = "urbd, no peer";
const CONNECTED: &str = "urbd, protocol C";
const DISK: Model = Model { rate: 200 << 20, seek: Duration::from_millis(8) };

/// Disks that each have a node: one bare, one of a node that has lost its peer, two of a pair.
struct Disks {
    bare: ModelledDisk,
    alone: Pair,
    pair: Pair,
    // Dropped after the nodes that use them.
    one: ModelledDisk,
    first: ModelledDisk,
    second: ModelledDisk,
}

/// A target, and the disks under it: what they did is part of the outcome.
struct OnDisks<'a, T> {
    target: T,
    disks: Vec<(&'static str, &'a ModelledDisk)>,
}

impl<T: Target> Target for OnDisks<'_, T> {
    fn run(&mut self, workload: &Workload) -> Result<Outcome> {
        let counts = || self.disks.iter().map(|(_, disk)| disk.counts()).collect::<Result<Vec<_>>>();
        let before = counts()?;
        let mut outcome = self.target.run(workload)?;
        let after = counts()?;
        for ((name, _), (before, after)) in self.disks.iter().zip(before.into_iter().zip(after)) {
            let new = after.since(before);
            let per_gib = f64::from(1 << 30) / outcome.bytes.max(1) as f64;
            let mut count = |what: &str, value: f64| outcome.counts.push((format!("{name}: {what}"), value));
            count("requests/GiB", new.requests as f64 * per_gib);
            count("jumps/GiB", new.jumps as f64 * per_gib);
            count("busy %", 100.0 * new.busy.as_secs_f64() / outcome.seconds.max(1e-9));
        }
        Ok(outcome)
    }
}

impl Disks {
    fn start(setting: &Setting<'_>, folder: &Path, size: u64, model: Model, front: Front) -> Result<Disks> {
        let disk = |name: &str| ModelledDisk::start(setting.programs, folder, name, size, model);
        let (bare, one, first, second) = (disk("bare")?, disk("alone")?, disk("first")?, disk("second")?);
        let stub = folder.join("peer.disk");
        std::fs::File::create(&stub).and_then(|f| f.set_len(size)).map_err(crate::Error::io(stub.display()))?;
        let alone = Pair::start(setting.programs, &folder.join("alone-nodes"), Plan::new(&one.path(), &stub, front))?;
        let plan = Plan::new(&first.path(), &second.path(), front);
        let pair = Pair::start(setting.programs, &folder.join("pair-nodes"), plan)?;
        alone.verb("disconnect")?;
        Ok(Disks { bare, alone, pair, one, first, second })
    }
}

fn mirroring(setting: &Setting<'_>, report: &mut CaseReport) -> Result<()> {
    let folder = setting.folder("mirroring")?;
    let file = setting.scale.choose(16 << 20, 192 << 20, 768 << 20);
    let mut disks = Disks::start(setting, &folder, file + file / 4 + (64 << 20), DISK, Front::Device)?;
    let bare = Mounted::new(&disks.bare.path(), &folder, "mounted-bare")?;
    let alone = Mounted::new(&disks.alone.device()?, &folder, "mounted-alone")?;
    let connected = Mounted::new(&disks.pair.device()?, &folder, "mounted-connected")?;
    let mut bare = OnDisks { target: bare, disks: vec![("disk", &disks.bare)] };
    let alone = Behind { target: alone, watched: disks.alone.watched() };
    let mut alone = OnDisks { target: alone, disks: vec![("disk", &disks.one)] };
    let connected = Behind { target: connected, watched: disks.pair.watched() };
    let both = vec![("disk", &disks.first), ("peer's disk", &disks.second)];
    let mut connected = OnDisks { target: connected, disks: both };
    let workload = Workload::writes(Pattern::Sequential, 1 << 20, 1).once_over(file);
    let workload = Workload { flush_at_end: true, ..workload };
    let job: Job = (format!("{} MiB in writes of 1 MiB, synced", file >> 20), workload);
    let mut contenders: [Contender<'_>; 3] = [(BARE, &mut bare), (ALONE, &mut alone), (CONNECTED, &mut connected)];
    setting.interleave(report, std::slice::from_ref(&job), &mut contenders)?;
    for who in [ALONE, CONNECTED] {
        let values = report.ratios(&job.0, MIB_S, who, BARE);
        report.bar(format!("{who}: MiB/s / bare disk"), AtLeast, 0.99, values);
    }
    drop((bare, alone, connected));
    disks.pair.wait_synced()?;
    report.note(&format!("CPU seconds per GiB of the receiver: {}", summary(report, &job.0)));
    Ok(())
}

fn summary(report: &CaseReport, job: &str) -> String {
    let values = report.values(job, CONNECTED, &cpu_per_gib(SECONDARY));
    crate::results::median(values).map_or("not measured".into(), |v| format!("{v:.2}"))
}

fn protocols(setting: &Setting<'_>, report: &mut CaseReport) -> Result<()> {
    let folder = setting.folder("protocols")?;
    let span = setting.scale.choose(8 << 20, 96 << 20, 320 << 20);
    let mut disks = Disks::start(setting, &folder, span + (64 << 20), DISK, Front::Nbd)?;
    let write = Workload { flush_at_end: true, ..Workload::writes(Pattern::Sequential, 1 << 20, 4).once_over(span) };
    let read = Workload::reads(Pattern::Sequential, 1 << 20, 4).once_over(span);
    let jobs: [Job; 2] = [(write.title(), write), (read.title(), read)];
    let mut bare = FileTarget::open(&disks.bare.path(), true, false)?;
    let mut alone = disks.alone.nbd()?;
    let mut pair = disks.pair.nbd()?;
    let one_round = Setting { rounds: 1, ..setting.again() };
    for round in 0..setting.rounds {
        (setting.progress)("without replication", f64::from(round) / f64::from(setting.rounds));
        one_round.interleave(report, &jobs, &mut [(BARE, &mut bare), (ALONE, &mut alone)])?;
        // Each protocol goes first in turn: whoever does finds extents that are not in the activity log.
        let mut in_turn = PROTOCOL_NAMES;
        in_turn.rotate_left(round as usize % PROTOCOL_NAMES.len());
        for (letter, name) in in_turn {
            disks.pair.change(|plan| plan.protocol = letter)?;
            one_round.interleave(report, &jobs, &mut [(name, &mut pair)])?;
        }
    }
    let (write, read) = (&jobs[0].0, &jobs[1].0);
    let against = |job: &str, who: &str| report.ratios(job, MIB_S, who, BARE);
    let mut bars = vec![
        (format!("{ALONE}: writes / bare disk"), 0.95, against(write, ALONE)),
        (format!("{ALONE}: reads / bare disk"), 0.98, against(read, ALONE)),
    ];
    for (_, name) in PROTOCOL_NAMES {
        bars.push((format!("{name}: writes / bare disk"), 0.90, against(write, name)));
        bars.push((format!("{name}: reads / bare disk"), 0.98, against(read, name)));
    }
    for (fast, slow) in [(0, 1), (1, 2)] {
        let ([fast, slow], metric) = ([PROTOCOL_NAMES[fast].1, PROTOCOL_NAMES[slow].1], MIB_S);
        let values = ratios(report.values(write, fast, metric), report.values(write, slow, metric));
        bars.push((format!("writes: {fast} / {slow} (1 % is noise)"), 0.99, values));
    }
    bars.into_iter().for_each(|(what, want, values)| report.bar(what, AtLeast, want, values));
    Ok(())
}

const PROTOCOL_NAMES: [(char, &str); 3] =
    [('A', "urbd, protocol A"), ('B', "urbd, protocol B"), ('C', "urbd, protocol C")];

fn activity_log(setting: &Setting<'_>, report: &mut CaseReport) -> Result<()> {
    let folder = setting.folder("activity-log")?;
    let part: u64 = setting.scale.choose(8 << 20, 256 << 20, 384 << 20);
    let model = Model { rate: 250 << 20, ..DISK };
    // Every round has extents of its own, which nobody has written to before.
    let disks = Disks::start(setting, &folder, part * u64::from(setting.rounds) + (64 << 20), model, Front::Nbd)?;
    let bare = FileTarget::open(&disks.bare.path(), true, false)?;
    let mut bare = OnDisks { target: bare, disks: vec![("disk", &disks.bare)] };
    let mut alone = OnDisks { target: disks.alone.nbd()?, disks: vec![("disk", &disks.one)] };
    let both = vec![("disk", &disks.first), ("peer's disk", &disks.second)];
    let mut pair = OnDisks { target: disks.pair.nbd()?, disks: both };
    let stream = Workload { flush_at_end: true, ..Workload::writes(Pattern::Sequential, 1 << 20, 4).once_over(part) };
    let title = format!("{} MiB over cold extents", part >> 20);
    let one_round = Setting { rounds: 1, ..setting.again() };
    for round in 0..setting.rounds {
        (setting.progress)(&title, f64::from(round) / f64::from(setting.rounds));
        let job = (title.clone(), Workload { offset: u64::from(round) * part, ..stream.clone() });
        let before = [disks.alone.metadata_writes()?, disks.pair.metadata_writes()?];
        let mut contenders: [Contender<'_>; 3] = [(BARE, &mut bare), (ALONE, &mut alone), (CONNECTED, &mut pair)];
        one_round.interleave(report, std::slice::from_ref(&job), &mut contenders)?;
        let after = [disks.alone.metadata_writes()?, disks.pair.metadata_writes()?];
        for (who, (before, after)) in [ALONE, CONNECTED].into_iter().zip(before.into_iter().zip(after)) {
            let writes = (after - before) as f64 * f64::from(1 << 30) / part as f64;
            report.record(&title, who, "metadata writes/GiB", writes);
            report.record(&title, who, "metadata KiB/GiB", writes * 4.0);
        }
    }
    for who in [ALONE, CONNECTED] {
        let values = report.ratios(&title, MIB_S, who, BARE);
        report.bar(format!("{who}: MiB/s / bare disk"), AtLeast, 0.97, values);
    }
    Ok(())
}
