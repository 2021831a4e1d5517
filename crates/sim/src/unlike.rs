//! What no seed below 3,000,000 has, beside what those from 2,000,000 on draw: payload that is damaged on its way
//! (`damage.rs`), and two Primaries whose disks and links are unlike, which write to the same places.
//!
//! A conflicting write arrives at every stage of the other one (`docs/spec/data-path-and-resync.md` 3): before that is
//! submitted, while it is on its disk, while its answer is on the way, and at parts of one that was split.
//!
//! Each is drawn from a random source of its own: what another one draws stays as it is.

use crate::disk::DiskFaults;
use crate::further::source;
use crate::nine::NINE;
use crate::plan::{Setup, Step, all_comes_back, all_faults_end, pick, volume_nr};
use crate::ranges::sectors;
use units::{Duration, Instant, Rng, SectorRange};
use urbd_core::{Command, RequestKind};

/// The first seed of the range.
pub(crate) const UNLIKE: u64 = 3_000_000;

/// Sectors of a volume of two Primaries: it is copied soon.
const LARGEST: u64 = 8 << 11;

/// Longer requests are split for the peer.
const LONG: [u64; 3] = [2040, 2056, 4096];

/// How much slower than others a disk, or what a node sends, may be.
const SLOWER: [Duration; 6] = [
    Duration(0),
    Duration(0),
    Duration(200_000),
    Duration::from_millis(2),
    Duration::from_millis(20),
    Duration::from_millis(60),
];

/// Makes the cluster of this seed have what it draws.
pub(crate) fn draw(seed: u64, setup: &mut Setup) {
    if !(UNLIKE..NINE).contains(&seed) {
        return;
    }
    damage(&mut source(seed, *b"bits"), setup);
    if setup.extras.two_primaries {
        unlike(&mut source(seed, *b"slow"), setup);
    }
}

/// `data-integrity-alg`, and a network that makes it needed.
fn damage(rng: &mut Rng, setup: &mut Setup) {
    if !setup.drawn.integrity && rng.chance(1, 2) {
        setup.drawn.integrity = true;
        setup.versions.iter_mut().for_each(|version| *version = (*version).max(87));
    }
    if setup.drawn.integrity {
        setup.drawn.damage = *pick(rng, &[0, 30, 300, 3000]);
    }
}

/// Two nodes of which one is slower here, the other one there.
fn unlike(rng: &mut Rng, setup: &mut Setup) {
    setup.drawn.slower.fill_with(|| (*pick(rng, &SLOWER), *pick(rng, &SLOWER)));
    // Older ones cannot have a write repeated, and do not have two Primaries here.
    setup.versions.iter_mut().for_each(|version| *version = (*version).max(100));
    for volume in &mut setup.volumes {
        volume.sectors.iter_mut().for_each(|sectors| *sectors = (*sectors).min(LARGEST));
    }
}

/// Chapters in which both nodes are Primary and write to the same places: one before all faults, some behind them.
pub(crate) fn add_meetings(seed: u64, setup: &Setup, steps: &mut Vec<(Instant, Step)>) {
    if !(UNLIKE..NINE).contains(&seed) || !setup.extras.two_primaries {
        return;
    }
    let began = Instant(2_400_000_000);
    let mut adding = Adding { rng: source(seed, *b"meet"), setup, steps: Vec::new(), at: began };
    adding.chapter();
    let (mut first, end) = (std::mem::take(&mut adding.steps), adding.at);
    let later = |at: Instant| if at > began { end + at.since(began) } else { at };
    steps.iter_mut().for_each(|(at, _)| *at = later(*at));
    adding.at = steps.last().map_or(end, |(at, _)| (*at).max(end));
    for _ in 0..adding.rng.below(4) {
        adding.mend();
        adding.chapter();
    }
    steps.append(&mut first);
    steps.append(&mut adding.steps);
    steps.sort_by_key(|(at, _)| *at);
}

struct Adding<'a> {
    setup: &'a Setup,
    steps: Vec<(Instant, Step)>,
    rng: Rng,
    at: Instant,
}

impl Adding<'_> {
    fn push(&mut self, step: Step) {
        self.steps.push((self.at, step));
    }

    fn wait(&mut self, time: Duration) {
        self.at = self.at + time;
    }

    fn node(&mut self) -> usize {
        self.rng.below(2) as usize
    }

    /// All faults end.
    fn mend(&mut self) {
        all_faults_end(self.setup).into_iter().for_each(|step| self.push(step));
        self.wait(Duration::from_secs(1));
        all_comes_back(self.setup).into_iter().for_each(|step| self.push(step));
        self.wait(Duration::from_secs(5));
    }

    /// Both are Primary, and write where the other one does; half of the times something happens meanwhile.
    fn chapter(&mut self) {
        for node in 0..2 {
            self.push(Step::Command(node, Command::Primary { force: false }));
        }
        self.wait(Duration::from_millis(1500));
        (0..2).for_each(|node| self.push(Step::Open(node, true)));
        self.wait(Duration::from_millis(100));
        let count = 10 + self.rng.below(60);
        let fault = self.rng.below(2 * count);
        for n in 0..count {
            if n == fault {
                self.fault();
            }
            self.meeting();
            let wait = self.moment();
            self.wait(wait);
        }
        self.wait(Duration::from_secs(2));
    }

    /// About as long as a write takes on these disks and links, or a part of that.
    fn moment(&mut self) -> Duration {
        let (disk, link, _) = self.setup.latency;
        let slowest = self.setup.drawn.slower.iter().map(|(disk, link)| disk.0.max(link.0)).max().unwrap_or(0);
        let long = 2 * (disk.0 + link.0 + slowest);
        let magnitude = self.rng.below(8);
        Duration(self.rng.below((long >> magnitude).max(1)))
    }

    /// Two or three requests to the same place, by both nodes.
    fn meeting(&mut self) {
        let volume = self.rng.below(self.setup.volumes.len() as u64) as usize;
        let len = if self.rng.chance(1, 16) {
            *pick(&mut self.rng, &LONG)
        } else {
            *pick(&mut self.rng, &[2, 8, 8, 16, 64, 256])
        };
        let start = self.rng.below(64) / *pick(&mut self.rng, &[1, 8]) * 8;
        let range = sectors(start, start + len);
        let first = self.node();
        self.request(volume, range, first);
        let behind = self.moment();
        let began = self.at;
        self.wait(behind);
        let other = self.overlapping(range);
        self.request(volume, other, 1 - first);
        if self.rng.chance(1, 3) {
            let (again, node) = (self.overlapping(range), self.node());
            self.request(volume, again, node);
        }
        self.at = began + behind;
    }

    /// The same sectors, some of them, more, or partly others.
    fn overlapping(&mut self, range: SectorRange) -> SectorRange {
        let (start, len) = (range.start.0, range.end.0 - range.start.0);
        let part = 1 + self.rng.below(len);
        match self.rng.below(4) {
            0 => range,
            1 => {
                let start = start + self.rng.below(len - part + 1);
                sectors(start, start + part)
            }
            2 => sectors(start.saturating_sub(self.rng.below(9)), start + len + self.rng.below(9)),
            _ if self.rng.chance(1, 2) => sectors(start + len - part, start + 2 * len - part),
            _ => sectors(start.saturating_sub(len - part), start + part),
        }
    }

    fn request(&mut self, volume: usize, range: SectorRange, node: usize) {
        let kind = match self.rng.below(16) {
            0..=7 => RequestKind::Write { fua: false },
            8 | 9 => RequestKind::Write { fua: true },
            10 | 11 => RequestKind::Discard,
            12 | 13 => RequestKind::WriteZeroes { unmap: self.rng.chance(1, 2), fua: self.rng.chance(1, 2) },
            14 => RequestKind::Flush,
            _ => RequestKind::Read,
        };
        self.push(Step::Io { volume, kind, range, node });
    }

    /// One, and what ends it.
    fn fault(&mut self) {
        let (node, at, soon) = (self.node(), self.at, self.moment());
        let volume = self.rng.below(self.setup.volumes.len() as u64) as usize;
        let disk = |faults| Step::Disk { node, volume, faults };
        let attach = Step::Command(node, Command::Attach { volume: volume_nr(volume) });
        let (step, ends) = match self.rng.below(7) {
            0 => (Step::Reset, Vec::new()),
            1 => (Step::Kill(node), vec![Step::Start(node)]),
            2 => (Step::PowerLoss(node), vec![Step::Start(node)]),
            3 => (Step::Pause(node), vec![Step::Resume(node)]),
            4 => (Step::Stall(node, self.rng.below(2) as usize), vec![Step::Heal(node)]),
            5 => {
                let faults = DiskFaults { writes: true, ..DiskFaults::default() };
                (disk(faults), vec![disk(DiskFaults::default()), attach])
            }
            _ => {
                let faults = DiskFaults { stalled_writes: true, ..DiskFaults::default() };
                (disk(faults), vec![disk(DiskFaults::default())])
            }
        };
        self.push(step);
        self.wait(Duration(soon.0 * 4));
        ends.into_iter().for_each(|end| self.push(end));
        self.at = at;
    }
}
