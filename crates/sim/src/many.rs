//! What no seed below 5,000,000 has: more than two nodes, which speak DRBD 9's dialect and are all connected to each
//! other (`docs/compatibility.md`, "DRBD 9's dialect").
//!
//! The plans are drawn by themselves: what a plan for two nodes says of "the other one" is said of a pair here, and
//! links fail one by one, in one direction or both.

use crate::disk::DiskFaults;
use crate::drawn::Drawn;
use crate::extras::Extras;
use crate::plan::{
    AFTER_SPLIT_BRAIN, Plan, Planned, Setup, Step, VolumeSetup, all_comes_back, all_faults_end, node_id, others, pick,
    plain_connect, volume_nr,
};
use crate::ranges::sectors;
use units::{Duration, Instant, Rng};
use urbd_core::{Command, Fencing, OnIoError, OnNoData, Protocol, RequestKind};
use wire::Version;

/// The first seed of the range.
pub(crate) const MANY: u64 = 5_000_000;
/// Seeds from here on have four nodes, or five.
const MORE: u64 = 5_500_000;
/// The oldest version of the dialect.
const OLDEST: u32 = 118;

/// How likely each kind of step is in a run.
struct Mix {
    io: u64,
    crash: u64,
    power: u64,
    pause: u64,
    cut: u64,
    reset: u64,
    disk: u64,
    roles: u64,
    links: u64,
    disks: u64,
    forced: u64,
    calm: u64,
}

impl Mix {
    fn draw(rng: &mut Rng) -> Mix {
        let mut some = |most: u64| if rng.chance(1, 2) { 1 + rng.below(most) } else { 0 };
        Mix {
            io: 40 + some(400),
            crash: some(6),
            power: some(4),
            pause: some(3),
            cut: some(8),
            reset: some(8),
            disk: some(3),
            roles: some(10),
            links: some(8),
            disks: some(6),
            forced: some(1),
            calm: 1,
        }
    }
}

/// The plan of a seed of this range.
pub(crate) fn draw(seed: u64) -> Plan {
    let mut rng = Rng::new(seed ^ 0x6d61_6e79);
    let nodes = if seed < MORE { 3 } else { 4 + rng.below(2) as usize };
    let setup = setup(&mut rng, nodes);
    let mix = Mix::draw(&mut rng);
    let mut drawing = Drawing { mix, rng, setup, steps: Vec::new(), now: Instant(0) };
    drawing.prologue();
    drawing.body();
    let Drawing { setup, mut steps, .. } = drawing;
    steps.sort_by_key(|(at, _)| *at);
    let number = |(number, (at, step))| Planned { number, at, step };
    let steps = steps.into_iter().enumerate().map(number).collect();
    Plan { seed, luck: 0, setup, steps, least_events: 0 }
}

fn setup(rng: &mut Rng, nodes: usize) -> Setup {
    let us = |rng: &mut Rng, choices: &[u64]| Duration(*pick(rng, choices) * 1000);
    let slots = (*pick(rng, &[2, 4, 7, 31])).max(nodes as u32 - 1);
    let volume = |rng: &mut Rng| VolumeSetup {
        sectors: vec![*pick(rng, &[1, 2, 4, 8, 16]) * 2048; nodes],
        external: rng.chance(1, 3),
        log: (1, 8),
        slots: vec![slots; nodes],
    };
    let volumes = (0..*pick(rng, &[1, 1, 2])).map(|_| volume(rng)).collect();
    let newest = Version::MAX.number();
    let version = |rng: &mut Rng| newest - rng.below(u64::from(newest - OLDEST + 1)) as u32;
    Setup {
        volumes,
        protocol: *pick(rng, &[Protocol::C, Protocol::C, Protocol::C, Protocol::B, Protocol::A]),
        on_no_data: *pick(rng, &[OnNoData::IoError, OnNoData::SuspendIo]),
        on_io_error: OnIoError::Detach,
        fencing: Fencing::DontCare,
        fence_exit: 0,
        before_target: Vec::new(),
        before_source: Vec::new(),
        after_split_brain: *pick(rng, &AFTER_SPLIT_BRAIN),
        max_epoch_size: *pick(rng, &[2048, 2048, 20, 1]),
        ko_count: *pick(rng, &[7, 7, 1, 0]),
        disk_timeout: Duration(0),
        digests: rng.chance(1, 3),
        same_content: rng.chance(1, 2),
        write_through: rng.chance(1, 6),
        versions: (0..nodes).map(|_| if rng.chance(1, 2) { newest } else { version(rng) }).collect(),
        extras: Extras::default(),
        drawn: Drawn::plain(nodes),
        latency: (us(rng, &[20, 100, 1000, 20_000]), us(rng, &[20, 100, 1000, 30_000]), us(rng, &[0, 10, 200])),
    }
}

struct Drawing {
    rng: Rng,
    mix: Mix,
    setup: Setup,
    steps: Vec<(Instant, Step)>,
    now: Instant,
}

impl Drawing {
    fn push(&mut self, step: Step) {
        self.steps.push((self.now, step));
    }

    fn later(&mut self, most: Duration, step: Step) {
        let at = self.now + self.span(most);
        self.steps.push((at, step));
    }

    /// A time up to `most`, short ones as likely as long ones.
    fn span(&mut self, most: Duration) -> Duration {
        let magnitude = self.rng.below(16);
        Duration(1 + self.rng.below((most.0 >> magnitude).max(1)))
    }

    fn node(&mut self) -> usize {
        self.rng.below(self.setup.nodes() as u64) as usize
    }

    /// Another one.
    fn other(&mut self, n: usize) -> usize {
        let all: Vec<usize> = others(n, self.setup.nodes()).collect();
        *pick(&mut self.rng, &all)
    }

    fn volume(&mut self) -> usize {
        self.rng.below(self.setup.volumes.len() as u64) as usize
    }

    /// The cluster comes up in some order, and one node's data is declared good.
    fn prologue(&mut self) {
        let first = self.node();
        for n in 0..self.setup.nodes() {
            let n = (first + n) % self.setup.nodes();
            self.push(Step::Start(n));
            let wait = self.rng.below(2) * self.rng.below(200_000_000);
            self.now = self.now + Duration(wait);
        }
        self.now = Instant(3_000_000_000);
        let first = self.node();
        if self.setup.same_content && self.rng.chance(1, 2) {
            for v in 0..self.setup.volumes.len() {
                self.push(Step::Command(first, Command::NewCurrentUuid { volume: volume_nr(v), clear_bitmap: true }));
            }
            self.now = self.now + Duration::from_millis(500);
            self.push(Step::Command(first, Command::Primary { force: false }));
        } else {
            self.push(Step::Command(first, Command::Primary { force: true }));
        }
        self.now = self.now + Duration::from_millis(500);
        self.push(Step::Open(first, true));
    }

    fn body(&mut self) {
        let count = *pick(&mut self.rng, &[20, 100, 300, 800]);
        let gap = *pick(&mut self.rng, &[Duration(200_000), Duration::from_millis(2), Duration::from_millis(20)]);
        for _ in 0..count {
            let wait = self.rng.below(gap.0 * 2 + 1);
            self.now = self.now + Duration(wait);
            self.step();
        }
    }

    fn step(&mut self) {
        let m = &self.mix;
        let weights =
            [m.io, m.crash, m.power, m.pause, m.cut, m.reset, m.disk, m.roles, m.links, m.disks, m.forced, m.calm];
        let mut ticket = self.rng.below(weights.iter().sum());
        let which = weights.iter().position(|w| match ticket.checked_sub(*w) {
            Some(rest) => {
                ticket = rest;
                false
            }
            None => true,
        });
        match which.expect("the ticket is below the sum") {
            0 => self.io(),
            1 => self.crash(false),
            2 => self.crash(true),
            3 => self.pause(),
            4 => self.cut(),
            5 => self.reset(),
            6 => self.disk(),
            7 => self.role(),
            8 => self.link_command(),
            9 => self.disk_command(),
            10 => self.force(),
            _ => self.calm(),
        }
    }

    fn io(&mut self) {
        let volume = self.volume();
        let size = self.setup.volumes[volume].smallest();
        // Some places are hot, so that requests meet.
        let spread = if self.rng.chance(1, 2) { 64 } else { size };
        let len = match self.rng.below(8) {
            0 => 1 + self.rng.below(16),
            1 => 8 * (1 + self.rng.below(64)),
            _ => 8,
        };
        let start = self.rng.below(spread);
        let start = if len % 8 == 0 { start / 8 * 8 } else { start };
        let range = sectors(start, (start + len).min(size));
        let kind = match self.rng.below(32) {
            0..=17 => RequestKind::Write { fua: false },
            18 => RequestKind::Write { fua: true },
            19..=26 => RequestKind::Read,
            27 | 28 => RequestKind::Flush,
            29 | 30 => RequestKind::Discard,
            _ => RequestKind::WriteZeroes { unmap: self.rng.chance(1, 2), fua: self.rng.chance(1, 2) },
        };
        let node = self.node();
        self.push(Step::Io { volume, kind, range, node });
    }

    fn crash(&mut self, power: bool) {
        let node = self.node();
        if self.rng.chance(1, 2) {
            let effects = self.rng.below(60) as u32;
            self.push(Step::DieAfter { node, effects, power });
        } else {
            self.push(if power { Step::PowerLoss(node) } else { Step::Kill(node) });
        }
        self.later(Duration::from_secs(20), Step::Start(node));
        if self.rng.chance(1, 2) {
            // Another one takes over.
            let other = self.other(node);
            self.later(Duration::from_secs(5), Step::Command(other, Command::Primary { force: false }));
            self.later(Duration::from_secs(10), Step::Open(other, true));
        }
    }

    fn pause(&mut self) {
        let node = self.node();
        self.push(Step::Pause(node));
        self.later(Duration::from_secs(60), Step::Resume(node));
    }

    /// A node is cut off, or one link fails, in one direction or both.
    fn cut(&mut self) {
        let from = self.node();
        let to = self.other(from);
        match self.rng.below(6) {
            0 => {
                let stream = self.rng.below(2) as usize;
                self.push(Step::Stall(from, stream));
                self.later(Duration::from_secs(30), Step::Heal(from));
            }
            1 => {
                self.push(Step::Cut(from));
                self.later(Duration::from_secs(30), Step::Heal(from));
            }
            2 => {
                self.push(Step::CutLink(from, to));
                self.later(Duration::from_secs(30), Step::HealLink(from, to));
            }
            _ => {
                self.push(Step::CutLink(from, to));
                self.push(Step::CutLink(to, from));
                self.later(Duration::from_secs(30), Step::HealLink(from, to));
                self.later(Duration::from_secs(30), Step::HealLink(to, from));
            }
        }
    }

    fn reset(&mut self) {
        let a = self.node();
        let b = self.other(a);
        let all = self.rng.chance(1, 4);
        self.push(if all { Step::Reset } else { Step::ResetLink(a.min(b), a.max(b)) });
    }

    fn disk(&mut self) {
        let (node, volume) = (self.node(), self.volume());
        let mut faults = DiskFaults::default();
        match self.rng.below(5) {
            0 => faults.reads = true,
            1 => faults.writes = true,
            2 => faults.flushes = true,
            3 => faults.metadata = true,
            _ => faults.stalled = true,
        }
        self.push(Step::Disk { node, volume, faults });
        self.later(Duration::from_secs(10), Step::Disk { node, volume, faults: DiskFaults::default() });
        self.later(Duration::from_secs(20), Step::Command(node, Command::Attach { volume: volume_nr(volume) }));
    }

    /// Roles change hands, mostly as a careful operator would do it.
    fn role(&mut self) {
        let from = self.node();
        let to = self.other(from);
        let secondary = Command::Secondary { force: self.rng.chance(1, 8) };
        match self.rng.below(4) {
            0 => {
                self.push(Step::Open(from, false));
                self.push(Step::Command(from, secondary));
            }
            1 => self.push(Step::Command(from, Command::Primary { force: false })),
            _ => {
                for n in 0..self.setup.nodes() {
                    self.push(Step::Open(n, false));
                    self.push(Step::Command(n, secondary.clone()));
                }
                self.later(Duration::from_millis(500), Step::Command(to, Command::Primary { force: false }));
            }
        }
        self.later(Duration::from_secs(1), Step::Open(to, true));
        self.later(Duration::from_secs(1), Step::Open(from, true));
    }

    /// A pair parts, and connects again, one after the other.
    fn link_command(&mut self) {
        let (node, force) = (self.node(), self.rng.chance(1, 4));
        let peer = self.other(node);
        self.push(Step::Command(node, Command::Disconnect { peer: node_id(peer), force }));
        self.later(Duration::from_secs(5), Step::Command(node, plain_connect(peer)));
        self.later(Duration::from_secs(5), Step::Command(peer, plain_connect(node)));
    }

    fn disk_command(&mut self) {
        let (node, volume) = (self.node(), self.volume());
        let volume = volume_nr(volume);
        let force = self.rng.chance(1, 4);
        self.push(Step::Command(node, Command::Detach { volume, force }));
        self.later(Duration::from_secs(5), Step::Command(node, Command::Attach { volume }));
    }

    /// A promotion by force.
    fn force(&mut self) {
        let node = self.node();
        self.push(Step::Command(node, Command::Primary { force: true }));
        self.later(Duration::from_secs(1), Step::Open(node, true));
    }

    /// Everything is mended, and one node serves its applications.
    fn calm(&mut self) {
        if self.rng.chance(2, 3) {
            return self.io();
        }
        let primary = self.node();
        all_faults_end(&self.setup).into_iter().for_each(|step| self.push(step));
        self.now = self.now + Duration::from_secs(1);
        all_comes_back(&self.setup).into_iter().for_each(|step| self.push(step));
        self.now = self.now + Duration::from_secs(2);
        self.push(Step::Command(primary, Command::Primary { force: false }));
        self.push(Step::Open(primary, true));
        self.now = self.now + Duration::from_millis(200);
    }
}
