//! What happens in a run, drawn from its seed: the cluster, the faults, the operators, the applications.

use crate::disk::DiskFaults;
use crate::drawing::{Drawing, numbered};
use crate::drawn::{Drawn, NodeOptions, add_adjusts};
use crate::extras::{Extras, add_extras};
use units::{ByteLen, Duration, Instant, NodeId, Rng, Sector, SectorRange, VolumeNr};
use urbd_core::{Command, Fencing, OnIoError, OnNoData, Policies, Protocol, RequestKind};
use wire::AfterSplitBrain::{
    CallPriLost, Consensus, DiscardLeastChanges, DiscardOlderPrimary, DiscardSecondary, DiscardYoungerPrimary,
    DiscardZeroChanges, Disconnect, ViolentlyAs0pri,
};

/// Policies to choose from.
pub(crate) const AFTER_SPLIT_BRAIN: [Policies; 6] = [
    Policies { none: Disconnect, one: Disconnect, two: Disconnect },
    Policies { none: Disconnect, one: Disconnect, two: Disconnect },
    Policies { none: DiscardZeroChanges, one: Disconnect, two: Disconnect },
    Policies { none: DiscardLeastChanges, one: Consensus, two: Disconnect },
    Policies { none: DiscardYoungerPrimary, one: DiscardSecondary, two: Disconnect },
    Policies { none: DiscardOlderPrimary, one: Consensus, two: Disconnect },
];

/// Seeds from here on also draw what was added later; smaller ones keep the plans with which they failed once.
pub(crate) const WIDE: u64 = 10_000;

/// Seeds from here on have long plans: several chapters, between most of which everything is mended, and applications
/// that go on until the run has had [`LEAST_EVENTS`].
pub(crate) const LONG: u64 = 20_000;
/// So many events a run with a long plan has at least.
pub(crate) const LEAST_EVENTS: u64 = 20_000;

/// Lucks that are tried when a plan is made shorter.
pub(crate) const LUCKS: u64 = 8;

/// A cluster and everything that happens to it, in order of time.
#[derive(Clone, PartialEq, Debug)]
pub struct Plan {
    /// Where it comes from.
    pub seed: u64,
    /// How long disks, links and processes take in this run: 0 is the seed's own luck.
    pub luck: u64,
    /// The cluster.
    pub setup: Setup,
    /// What happens. After the last step faults end, and the cluster must recover.
    pub steps: Vec<Planned>,
    /// After the last step all is mended, and applications go on until there were so many events.
    pub least_events: u64,
}

/// A step, and when it is done.
#[derive(Clone, PartialEq, Debug)]
pub struct Planned {
    /// Its number in the whole plan of the seed.
    pub number: usize,
    /// When.
    pub at: Instant,
    /// What.
    pub step: Step,
}

/// The cluster of a run.
#[derive(Clone, PartialEq, Debug)]
pub struct Setup {
    /// Its volumes.
    pub volumes: Vec<VolumeSetup>,
    /// `protocol`.
    pub protocol: Protocol,
    /// `on-no-data-accessible`.
    pub on_no_data: OnNoData,
    /// `on-io-error`.
    pub on_io_error: OnIoError,
    /// `fencing`.
    pub fencing: Fencing,
    /// How `fence-peer` ends, unless [`Extras::handlers`] says otherwise.
    pub fence_exit: i32,
    /// How `before-resync-target` ends, and how long it takes, the first time, the second time, and so on; the last of
    /// these for ever. Empty: there is none, unless [`Extras::slow_resyncs`] says so.
    pub before_target: Vec<(i32, Duration)>,
    /// The same of `before-resync-source`.
    pub before_source: Vec<(i32, Duration)>,
    /// `after-sb-0pri`, `after-sb-1pri`, `after-sb-2pri`.
    pub after_split_brain: Policies,
    /// `max-epoch-size`.
    pub max_epoch_size: u32,
    /// `ko-count`.
    pub ko_count: u32,
    /// `disk-timeout`, zero = never.
    pub disk_timeout: Duration,
    /// `csums-alg` and `verify-alg` are set.
    pub digests: bool,
    /// Both disks have the same content at the start.
    pub same_content: bool,
    /// The disks have no volatile cache.
    pub write_through: bool,
    /// The newest protocol that each node speaks.
    pub versions: Vec<u32>,
    /// Faults that only ranges of seeds of their own have.
    pub extras: Extras,
    /// Options that only a range of seeds of its own has other than by default.
    pub drawn: Drawn,
    /// Times that things take, each from 0 or nearly 0 to this: a disk operation, a packet, the wait before a turn.
    pub latency: (Duration, Duration, Duration),
}

/// A volume of the cluster.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct VolumeSetup {
    /// Size of each node's backing device.
    pub sectors: Vec<u64>,
    /// Is the metadata on a device of its own?
    pub external: bool,
    /// The ring of the activity log: stripes, and blocks of one.
    pub log: (u32, u32),
    /// Each node's bitmap slots in v09 metadata; 0: the metadata is v08, which has one.
    pub slots: Vec<u32>,
}

/// Something that happens to the cluster. Nodes are named by their index.
#[derive(Clone, PartialEq, Debug)]
pub enum Step {
    /// The process is started; it attaches its disks and connects.
    Start(usize),
    /// The process dies; the machine lives on.
    Kill(usize),
    /// The machine dies: caches of disks are lost, no stream is closed.
    PowerLoss(usize),
    /// The process or machine dies after so many effects more.
    DieAfter {
        /// Whose.
        node: usize,
        /// In the middle of a turn.
        effects: u32,
        /// The machine.
        power: bool,
    },
    /// The process is stopped for a while (SIGSTOP).
    Pause(usize),
    /// The machine is suspended: its clock stands still, too.
    Suspend(usize),
    /// It goes on.
    Resume(usize),
    /// A node's clock jumps ahead.
    ClockJump(usize, Duration),
    /// A node's clock runs at so many percent of the right speed from now on.
    ClockRate(usize, u64),
    /// Sectors of a disk change by themselves.
    Rot {
        /// Whose.
        node: usize,
        /// Index of the volume.
        volume: usize,
        /// Which.
        range: SectorRange,
    },
    /// Nothing arrives any more from this node.
    Cut(usize),
    /// It does again.
    Heal(usize),
    /// Nothing from the first node arrives at the second any more.
    CutLink(usize, usize),
    /// It does again.
    HealLink(usize, usize),
    /// The TCP connections between two nodes end.
    ResetLink(usize, usize),
    /// One stream from this node stands still: 0 data, 1 control.
    Stall(usize, usize),
    /// One stream between two does, in one direction.
    StallLink(usize, usize, usize),
    /// All TCP connections end.
    Reset,
    /// A disk misbehaves, or does no longer.
    Disk {
        /// Whose.
        node: usize,
        /// Index of the volume.
        volume: usize,
        /// How.
        faults: DiskFaults,
    },
    /// The applications of a node open or close their devices.
    Open(usize, bool),
    /// An application's request, at whichever node can take it.
    Io {
        /// Index of the volume.
        volume: usize,
        /// What.
        kind: RequestKind,
        /// Where.
        range: SectorRange,
        /// Preferred if both nodes can take it.
        node: usize,
    },
    /// An operator's command.
    Command(usize, Command),
    /// The options of a node become these, for good.
    Adjust(usize, Box<NodeOptions>),
    /// `size` is of the past, and this node is told to grow.
    Grow(usize),
    /// A volume comes into a node's configuration, or goes, and it is told to `adjust`.
    Volume {
        /// Whose.
        node: usize,
        /// Its index.
        volume: usize,
        /// It comes.
        there: bool,
    },
}

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
    syncs: u64,
    freezes: u64,
    wild: u64,
    /// Discards alone may fail, too.
    discards: bool,
}

impl Plan {
    /// The plan of a seed.
    #[must_use]
    pub fn draw(seed: u64) -> Plan {
        if (crate::worlds::WORLDS..crate::worlds::END).contains(&seed) {
            return crate::worlds::draw(seed);
        }
        if (crate::coming::COMING..crate::many::VOTES).contains(&seed) {
            return crate::coming::draw(seed);
        }
        if seed >= crate::many::MANY {
            return crate::many::draw(seed);
        }
        let mut rng = Rng::new(seed ^ 0x7572_6264);
        let mut setup = Setup::draw(&mut rng);
        let wide = seed >= WIDE;
        if wide {
            setup.widen(&mut Rng::new(seed ^ 0x7769_6465));
        }
        setup.extras = Extras::of(seed);
        setup.suit_extras();
        Drawn::draw(seed, &mut setup);
        crate::further::draw(seed, &mut setup);
        crate::unlike::draw(seed, &mut setup);
        crate::nine::draw(seed, &mut setup);
        let mix = Mix::draw(&mut rng, wide);
        let mut drawing = Drawing::new(rng, mix, setup);
        drawing.prologue();
        let long = seed >= LONG && !drawing.setup.extras.any();
        if long {
            drawing.chapters();
        } else {
            drawing.body();
        }
        let Drawing { mut setup, mut steps, .. } = drawing;
        steps.sort_by_key(|(at, _)| *at);
        add_extras(seed, &mut setup, &mut steps);
        crate::unlike::add_meetings(seed, &setup, &mut steps);
        add_adjusts(seed, &setup, &mut steps);
        let steps = numbered(steps);
        Plan { seed, luck: 0, setup, steps, least_events: if long { LEAST_EVENTS } else { 0 } }
    }
}

impl VolumeSetup {
    /// Sectors of the smallest backing device.
    pub(crate) fn smallest(&self) -> u64 {
        self.sectors.iter().copied().min().expect("several nodes")
    }
}

impl Setup {
    /// Is the node to have disks?
    pub(crate) fn has_disk(&self, n: usize) -> bool {
        !self.drawn.clients[n]
    }

    /// How many nodes there are.
    pub(crate) fn nodes(&self) -> usize {
        self.versions.len()
    }

    fn draw(rng: &mut Rng) -> Setup {
        let volume = |rng: &mut Rng| {
            let mib = *pick(rng, &[1, 2, 4, 8, 8, 16, 40, 320]);
            let other = if rng.chance(1, 8) { mib + 1 } else { mib };
            let sectors = vec![mib * 2048, other * 2048];
            VolumeSetup { sectors, external: rng.chance(1, 3), log: (1, 8), slots: vec![0; 2] }
        };
        let volumes = (0..*pick(rng, &[1, 1, 1, 2, 3])).map(|_| volume(rng)).collect();
        let us = |rng: &mut Rng, choices: &[u64]| Duration(*pick(rng, choices) * 1000);
        Setup {
            volumes,
            protocol: *pick(rng, &[Protocol::C, Protocol::C, Protocol::C, Protocol::B, Protocol::A]),
            on_no_data: *pick(rng, &[OnNoData::IoError, OnNoData::SuspendIo]),
            on_io_error: *pick(rng, &[OnIoError::Detach, OnIoError::Detach, OnIoError::PassOn, OnIoError::CallHandler]),
            fencing: Fencing::DontCare,
            fence_exit: 0,
            before_target: Vec::new(),
            before_source: Vec::new(),
            after_split_brain: *pick(rng, &AFTER_SPLIT_BRAIN),
            max_epoch_size: *pick(rng, &[2048, 2048, 20, 1]),
            ko_count: *pick(rng, &[7, 7, 1, 0]),
            disk_timeout: *pick(rng, &[Duration(0), Duration(0), Duration::from_secs(3)]),
            digests: rng.chance(1, 3),
            same_content: rng.chance(1, 2),
            write_through: rng.chance(1, 6),
            versions: vec![101; 2],
            extras: Extras::default(),
            drawn: Drawn::plain(2),
            latency: (us(rng, &[20, 100, 1000, 20_000]), us(rng, &[20, 100, 1000, 30_000]), us(rng, &[0, 10, 200])),
        }
    }
}

impl Setup {
    /// What came later: older protocols, and all policies that need no person.
    fn widen(&mut self, rng: &mut Rng) {
        if rng.chance(1, 3) {
            let old: &[u32] =
                if self.volumes.len() > 1 { &[100] } else { &[100, 97, 96, 95, 94, 93, 91, 90, 89, 88, 87, 86] };
            self.versions[rng.below(2) as usize] = *pick(rng, old);
        }
        if rng.chance(1, 3) {
            self.after_split_brain = Policies {
                none: *pick(
                    rng,
                    &[DiscardYoungerPrimary, DiscardOlderPrimary, DiscardZeroChanges, DiscardLeastChanges],
                ),
                one: *pick(rng, &[Disconnect, Consensus, ViolentlyAs0pri, DiscardSecondary, CallPriLost]),
                two: *pick(rng, &[Disconnect, ViolentlyAs0pri, CallPriLost]),
            };
        }
    }
}

impl Mix {
    fn draw(rng: &mut Rng, discards: bool) -> Mix {
        let mut some = |most: u64| if rng.chance(1, 2) { 1 + rng.below(most) } else { 0 };
        Mix {
            io: 20 + some(400),
            crash: some(6),
            power: some(6),
            pause: some(4),
            cut: some(8),
            reset: some(8),
            disk: some(4),
            roles: some(10),
            links: some(8),
            disks: some(6),
            syncs: some(6),
            freezes: some(4),
            wild: some(2),
            discards,
        }
    }
}

impl Drawing<Mix> {
    /// The cluster comes up, and one node's data is declared good.
    fn prologue(&mut self) {
        self.push(Step::Start(0));
        self.push(Step::Start(1));
        self.now = Instant(2_000_000_000);
        self.declare_good(0, Duration::from_millis(200));
    }

    fn body(&mut self) {
        let count = *pick(&mut self.rng, &[20, 100, 300, 800, 1500]);
        let gap = self.gap();
        for _ in 0..count {
            self.pass(gap);
            self.step();
        }
    }

    /// A long plan: each chapter has its own mix of what happens.
    fn chapters(&mut self) {
        for _ in 0..2 + self.rng.below(4) {
            self.mix = Mix::draw(&mut self.rng, self.mix.discards);
            let gap = self.gap();
            for _ in 0..200 + self.rng.below(800) {
                self.pass(gap);
                self.step();
            }
            if self.rng.chance(3, 4) {
                self.all_is_well();
            }
        }
    }

    fn step(&mut self) {
        let m = &self.mix;
        let weights = [
            m.io, m.crash, m.power, m.pause, m.cut, m.reset, m.disk, m.roles, m.links, m.disks, m.syncs, m.freezes,
            m.wild,
        ];
        match self.kind(&weights) {
            0 => self.io(true),
            1 => self.crash(false),
            2 => self.crash(true),
            3 => self.pause(),
            4 => self.cut(),
            5 => self.push(Step::Reset),
            6 => self.disk(self.mix.discards),
            7 => self.role(),
            8 => self.link_command(),
            9 => self.disk_command(),
            10 => self.sync_command(),
            11 => self.freeze(),
            _ => self.wild_command(),
        }
    }

    fn crash(&mut self, power: bool) {
        let node = self.node();
        self.dies(node, power);
        if self.rng.chance(1, 3) {
            // The other one takes over.
            self.takes_over(1 - node);
        }
    }

    fn cut(&mut self) {
        let from = self.node();
        match self.rng.below(4) {
            0 => {
                let stream = self.rng.below(2) as usize;
                self.push(Step::Stall(from, stream));
            }
            1 => {
                self.push(Step::Cut(1 - from));
                self.push(Step::Cut(from));
                self.later(Duration::from_secs(30), Step::Heal(1 - from));
            }
            _ => self.push(Step::Cut(from)),
        }
        self.later(Duration::from_secs(30), Step::Heal(from));
    }

    /// Roles change hands, mostly as a careful operator would do it.
    fn role(&mut self) {
        let from = self.node();
        let secondary = Command::Secondary { force: self.rng.chance(1, 8) };
        match self.rng.below(4) {
            0 => {
                self.push(Step::Open(from, false));
                self.push(Step::Command(from, secondary));
            }
            1 => self.push(Step::Command(from, Command::Primary { force: false })),
            _ => {
                self.push(Step::Open(from, false));
                self.push(Step::Command(from, secondary));
                self.later(Duration::from_millis(500), Step::Command(1 - from, Command::Primary { force: false }));
            }
        }
        self.later(Duration::from_secs(1), Step::Open(1 - from, true));
        self.later(Duration::from_secs(1), Step::Open(from, true));
    }

    fn link_command(&mut self) {
        let (node, force) = (self.node(), self.rng.chance(1, 4));
        self.part(node, 1 - node, force);
    }

    fn sync_command(&mut self) {
        let (node, volume) = (self.node(), self.volume());
        let volume = volume_nr(volume);
        let peer = node_id(1 - node);
        match self.rng.below(4) {
            0 => {
                self.push(Step::Command(node, Command::PauseSync { volume }));
                self.later(Duration::from_secs(5), Step::Command(node, Command::ResumeSync { volume }));
            }
            1 => self.push(Step::Command(node, Command::invalidate(volume))),
            2 => self.push(Step::Command(node, Command::invalidate_remote(volume, peer))),
            _ => {
                let repair = self.rng.chance(1, 2);
                self.push(Step::Command(node, Command::Verify { volume, peer: None, start: None, stop: None, repair }));
            }
        }
    }

    fn freeze(&mut self) {
        let (node, volume) = (self.node(), self.volume());
        let volume = volume_nr(volume);
        self.push(Step::Command(node, Command::SuspendIo { volume }));
        self.later(Duration::from_secs(5), Step::Command(node, Command::ResumeIo { volume }));
    }

    fn wild_command(&mut self) {
        let (node, volume) = (self.node(), self.volume());
        let volume = volume_nr(volume);
        let peer = node_id(1 - node);
        let command = match self.rng.below(6) {
            0 => Command::Primary { force: true },
            1 => Command::Outdate { volume },
            2 => Command::NewCurrentUuid { volume, clear_bitmap: false },
            3 => Command::Connect { peer, discard_my_data: true, tentative: false },
            4 => Command::Resize { volume, flags: wire::ResizeFlags::default() },
            _ => Command::Connect { peer, discard_my_data: false, tentative: true },
        };
        self.push(Step::Command(node, command));
    }
}

/// The id of the node with this index.
pub(crate) fn node_id(index: usize) -> NodeId {
    NodeId::new(index as u8).expect("few nodes")
}

/// All nodes but this one, of so many.
pub(crate) fn others(n: usize, nodes: usize) -> impl Iterator<Item = usize> + Clone {
    (0..nodes).filter(move |other| *other != n)
}

/// Machines, links and disks are good again, and all nodes run.
pub(crate) fn all_faults_end(setup: &Setup) -> Vec<Step> {
    let volumes = setup.volumes.len();
    let good = |node, volume| Step::Disk { node, volume, faults: DiskFaults::default() };
    let of = |node| {
        let disks = (0..volumes).map(move |volume| good(node, volume));
        [Step::Resume(node), Step::Heal(node)].into_iter().chain(disks).chain([Step::Start(node)])
    };
    (0..setup.nodes()).flat_map(of).collect()
}

/// What an operator does then.
pub(crate) fn all_comes_back(setup: &Setup) -> Vec<Step> {
    let of = |node: usize| {
        let disks = (0..setup.volumes.len()).map(volume_nr);
        let disks = disks.flat_map(|volume| [Command::Attach { volume }, Command::ResumeIo { volume }]);
        let connect = others(node, setup.nodes()).map(plain_connect);
        disks.chain(connect).map(move |command| Step::Command(node, command))
    };
    (0..setup.nodes()).flat_map(of).collect()
}

/// The command to connect to the node with this index.
pub(crate) fn plain_connect(peer: usize) -> Command {
    Command::Connect { peer: node_id(peer), discard_my_data: false, tentative: false }
}

/// The number of the volume with this index.
pub(crate) fn volume_nr(index: usize) -> VolumeNr {
    VolumeNr(index as u16)
}

/// Bytes of so many sectors.
pub(crate) fn bytes(sectors: u64) -> ByteLen {
    Sector(sectors).to_bytes()
}

/// One of these.
pub(crate) fn pick<'a, T>(rng: &mut Rng, choices: &'a [T]) -> &'a T {
    &choices[rng.below(choices.len() as u64) as usize]
}
