//! What no seed below 5,000,000 has: more than two nodes, which speak DRBD 9's dialect and are all connected to each
//! other (`docs/compatibility.md`, "DRBD 9's dialect").
//!
//! The plans are drawn by themselves: what a plan for two nodes says of "the other one" is said of a pair here, and
//! links fail one by one, in one direction or both.

use crate::drawing::{Drawing, numbered};
use crate::drawn::{Drawn, add_adjusts};
use crate::extras::Extras;
use crate::kernels::{self, KERNELS};
use crate::plan::{AFTER_SPLIT_BRAIN, Plan, Setup, Step, VolumeSetup, node_id, others, pick, volume_nr};
use crate::ranges::sectors;
use crate::widest::{self, WIDEST};
use units::{Duration, Instant, Rng};
use urbd_core::{
    Command, Fencing, OnIoError, OnNoData, OnNoQuorum, Policies, Protocol, QuorumConfig, RequestKind, Threshold,
};
use wire::Version;

/// The first seed of the range.
pub(crate) const MANY: u64 = 5_000_000;
/// Seeds from here on are also told to copy, compare and pause.
const COPIES: u64 = 5_400_000;
/// Seeds from here on have four nodes, or five.
const MORE: u64 = 5_500_000;
/// Seeds from here on have three nodes again, unlike options, which are changed while all goes on, and copies that go,
/// come and are declared good more often.
const WIDER: u64 = 5_600_000;
/// Seeds from here on have three to five nodes that write only with quorum, are parted from each other, die, and lose
/// disks. Nobody is promoted by force, so that nothing that was acknowledged may ever be given up where good copies
/// were asked for as well.
pub(crate) const VOTES: u64 = 5_980_000;
/// Seeds from here on have four nodes, or five, and any of them are parted from the others.
pub(crate) const PARTITIONS: u64 = 5_990_000;
/// Seeds from here on have links besides of which some are slower than others, resyncs that take their time, and bursts
/// of writes to few places while all that goes on.
const UNEVEN: u64 = 5_995_000;
/// Seeds from here on have three to five nodes of which some have no disk, are Primary all the same, and are parted
/// from the others and die as these are and do.
pub(crate) const CLIENTS: u64 = 7_000_000;
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
    copies: u64,
    partitions: u64,
    bursts: u64,
}

impl Mix {
    fn draw(rng: &mut Rng, seed: u64) -> Mix {
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
            copies: if (COPIES..MORE).contains(&seed) { 1 + rng.below(10) } else { 0 },
            partitions: if seed >= PARTITIONS { 4 + rng.below(20) } else { 0 },
            bursts: if seed >= UNEVEN { 4 + rng.below(40) } else { 0 },
        }
    }

    /// What seeds of the last range have besides.
    fn widen(&mut self, rng: &mut Rng) {
        self.copies = 1 + rng.below(10);
        self.disk += rng.below(6);
        self.disks += rng.below(20);
        self.forced += rng.below(6);
    }
}

/// The plan of a seed of this range.
pub(crate) fn draw(seed: u64) -> Plan {
    if seed >= CLIENTS {
        return with_clients(seed);
    }
    if seed >= KERNELS {
        return kernels::draw(seed);
    }
    if (VOTES..PARTITIONS).contains(&seed) {
        return with_quorum(seed);
    }
    let mut rng = Rng::new(seed ^ 0x6d61_6e79);
    let nodes = if (MORE..WIDER).contains(&seed) || seed >= PARTITIONS { 4 + rng.below(2) as usize } else { 3 };
    let mut setup = setup(&mut rng, nodes);
    let mut mix = Mix::draw(&mut rng, seed);
    let (wider, widest) = ((WIDER..PARTITIONS).contains(&seed), (WIDEST..PARTITIONS).contains(&seed));
    if wider {
        mix.widen(&mut rng);
        Drawn::draw(seed, &mut setup);
    }
    if widest {
        widest::draw(seed, &mut setup);
    }
    if seed >= UNEVEN {
        uneven(&mut rng, &mut setup);
    }
    let mut drawing = Drawing::new(rng, mix, setup);
    drawing.prologue();
    drawing.body();
    let Drawing { setup, mut steps, .. } = drawing;
    if widest {
        widest::add_steps(seed, &setup, &mut steps);
    } else if wider {
        add_adjusts(seed, &setup, &mut steps);
    }
    steps.sort_by_key(|(at, _)| *at);
    Plan { seed, luck: 0, setup, steps: numbered(steps), least_events: 0 }
}

/// A plan for these nodes with what seeds from 5,000,000 on draw; with `copies`, those from 5,400,000 on.
pub(crate) fn draw_for(rng: Rng, seed: u64, setup: Setup, copies: bool) -> Plan {
    let mut rng = rng;
    let mix = Mix::draw(&mut rng, if copies { COPIES } else { MANY });
    drawn(rng, seed, setup, mix)
}

fn drawn(rng: Rng, seed: u64, setup: Setup, mix: Mix) -> Plan {
    let mut drawing = Drawing::new(rng, mix, setup);
    drawing.prologue();
    drawing.body();
    let Drawing { setup, mut steps, .. } = drawing;
    steps.sort_by_key(|(at, _)| *at);
    Plan { seed, luck: 0, setup, steps: numbered(steps), least_events: 0 }
}

/// A plan for nodes that write only with quorum, any of which are parted from the others, and of which nobody is
/// promoted by force.
fn with_quorum(seed: u64) -> Plan {
    let mut rng = Rng::new(seed ^ 0x766f_7465);
    let nodes = *pick(&mut rng, &[3, 3, 3, 4, 5]);
    let mut setup = setup(&mut rng, nodes);
    setup.protocol = Protocol::C;
    setup.after_split_brain = Policies::default();
    setup.extras.ask_for(quorum(&mut rng));
    setup.same_content |= setup.extras.quorum().up_to_date() != Threshold::Off;
    let mix = Mix { forced: 0, ..Mix::draw(&mut rng, PARTITIONS) };
    drawn(rng, seed, setup, mix)
}

/// A plan for nodes of which one has no disk, or two, with quorum or without.
fn with_clients(seed: u64) -> Plan {
    let mut rng = Rng::new(seed ^ 0x636c_6965);
    let nodes = *pick(&mut rng, &[3, 3, 3, 4, 5]);
    let mut setup = setup(&mut rng, nodes);
    setup.protocol = Protocol::C;
    setup.after_split_brain = Policies::default();
    if rng.chance(1, 2) {
        setup.extras.ask_for(quorum(&mut rng));
        setup.same_content |= setup.extras.quorum().up_to_date() != Threshold::Off;
    }
    let first = rng.below(nodes as u64) as usize;
    setup.drawn.clients[first] = true;
    if nodes > 3 && rng.chance(1, 3) {
        setup.drawn.clients[(first + 1) % nodes] = true;
    }
    let parted = rng.chance(1, 2);
    let mix = Mix { forced: 0, ..Mix::draw(&mut rng, if parted { PARTITIONS } else { COPIES }) };
    drawn(rng, seed, setup, mix)
}

/// What a resource of seeds with quorum asks for.
fn quorum(rng: &mut Rng) -> QuorumConfig {
    let nodes = *pick(rng, &[Threshold::Majority, Threshold::Majority, Threshold::Majority, Threshold::All]);
    let up_to_date = *pick(rng, &[Threshold::Majority, Threshold::Majority, Threshold::Off, Threshold::AtLeast(2)]);
    let without = *pick(rng, &[OnNoQuorum::SuspendIo, OnNoQuorum::SuspendIo, OnNoQuorum::IoError]);
    QuorumConfig::new(nodes, up_to_date, without)
}

/// A cluster of so many nodes.
pub(crate) fn setup(rng: &mut Rng, nodes: usize) -> Setup {
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

/// Who hears of something first is not the same for all: what a node reads here another one has not written yet.
fn uneven(rng: &mut Rng, setup: &mut Setup) {
    let far = [0, 0, 0, 200, 2000, 20_000, 60_000].map(|us| Duration(us * 1000));
    setup.drawn.far.iter_mut().flatten().for_each(|link| *link = *pick(rng, &far));
    setup.drawn.bandwidth = *pick(rng, &[0, 0, 500_000, 5_000_000, 50_000_000]);
    let extents = *pick(rng, &[67, 67, 1237]);
    setup.drawn.nodes.iter_mut().for_each(|node| node.al_extents = extents);
}

impl Drawing<Mix> {
    /// Another one.
    fn other(&mut self, n: usize) -> usize {
        let all: Vec<usize> = others(n, self.setup.nodes()).collect();
        *pick(&mut self.rng, &all)
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
        let first = (0..self.setup.nodes()).map(|n| (first + n) % self.setup.nodes()).find(|n| self.setup.has_disk(*n));
        let first = first.expect("some have disks");
        self.declare_good(first, Duration::from_millis(500));
    }

    fn body(&mut self) {
        let count = *pick(&mut self.rng, &[20, 100, 300, 800]);
        let gap = self.gap();
        for _ in 0..count {
            self.pass(gap);
            self.step();
        }
    }

    fn step(&mut self) {
        let m = &self.mix;
        let weights = [
            m.io,
            m.crash,
            m.power,
            m.pause,
            m.cut,
            m.reset,
            m.disk,
            m.roles,
            m.links,
            m.disks,
            m.forced,
            m.calm,
            m.copies,
            m.partitions,
            m.bursts,
        ];
        match self.kind(&weights) {
            0 => self.io(false),
            1 => self.crash(false),
            2 => self.crash(true),
            3 => self.pause(),
            4 => self.cut(),
            5 => self.reset(),
            6 => self.disk(false),
            7 => self.role(),
            8 => self.link_command(),
            9 => self.disk_command(),
            10 => self.force(),
            11 => self.calm(),
            12 => self.copies(),
            13 => self.partition(),
            _ => self.burst(),
        }
    }

    fn crash(&mut self, power: bool) {
        let node = self.node();
        self.dies(node, power);
        if self.rng.chance(1, 2) {
            // Another one takes over.
            let other = self.other(node);
            self.takes_over(other);
        }
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

    /// Some nodes are parted from all others, for a while. One may die meanwhile, and be followed on either side.
    fn partition(&mut self) {
        let nodes = self.setup.nodes();
        let here: Vec<bool> = (0..nodes).map(|_| self.rng.chance(1, 2)).collect();
        let wait = Duration::from_millis(100 + self.rng.below(8000));
        for (from, to) in (0..nodes).flat_map(|a| (0..nodes).map(move |b| (a, b))).filter(|(a, b)| here[*a] != here[*b])
        {
            self.push(Step::CutLink(from, to));
            self.steps.push((self.now + wait, Step::HealLink(from, to)));
        }
        if self.rng.chance(1, 3) {
            self.crash(false);
        }
    }

    /// Many writes to few places, parts of blocks among them, while other things go on. One node may hear of them late.
    fn burst(&mut self) {
        if self.rng.chance(1, 2) {
            let from = self.node();
            let (to, wait) = (self.other(from), Duration::from_millis(1 + self.rng.below(1500)));
            self.push(Step::StallLink(from, to, 0));
            self.steps.push((self.now + wait, Step::HealLink(from, to)));
        }
        let (volume, node) = (self.volume(), self.node());
        let first = 8 * self.rng.below(self.setup.volumes[volume].smallest() / 8 - 8);
        let gap = *pick(&mut self.rng, &[100_000, 1_000_000, 5_000_000]);
        let mut at = self.now;
        for _ in 0..20 + self.rng.below(200) {
            let (start, len) = (self.rng.below(56), *pick(&mut self.rng, &[1, 3, 8, 8, 16]));
            let start = first + if len % 8 == 0 { start / 8 * 8 } else { start };
            let range = sectors(start, (start + len).min(first + 64));
            at = at + Duration(self.rng.below(gap));
            self.steps.push((at, Step::Io { volume, kind: RequestKind::Write { fua: false }, range, node }));
        }
    }

    fn reset(&mut self) {
        let a = self.node();
        let b = self.other(a);
        let all = self.rng.chance(1, 4);
        self.push(if all { Step::Reset } else { Step::ResetLink(a.min(b), a.max(b)) });
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
        self.part(node, peer, force);
    }

    /// A promotion by force.
    fn force(&mut self) {
        let node = self.node();
        self.push(Step::Command(node, Command::Primary { force: true }));
        self.later(Duration::from_secs(1), Step::Open(node, true));
    }

    /// A copy is given up, or compared; copying waits for a while.
    fn copies(&mut self) {
        let node = self.node();
        let (peer, volume) = (node_id(self.other(node)), volume_nr(self.volume()));
        match self.rng.below(4) {
            0 => {
                self.push(Step::Command(node, Command::PauseSync { volume }));
                self.later(Duration::from_secs(5), Step::Command(node, Command::ResumeSync { volume }));
            }
            1 => self.push(Step::Command(node, Command::invalidate_remote(volume, peer))),
            2 => {
                let repair = self.rng.chance(1, 2);
                self.push(Step::Command(node, Command::Verify { volume, peer: None, start: None, stop: None, repair }));
            }
            _ => self.push(Step::Command(node, Command::invalidate(volume))),
        }
    }

    /// Everything is mended, and one node serves its applications.
    fn calm(&mut self) {
        if self.rng.chance(2, 3) {
            return self.io(false);
        }
        self.all_is_well();
    }
}
