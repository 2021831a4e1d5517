//! Small worlds of three nodes, all of them: who was Primary, who was away, how the Primary ended and who had got its
//! last write, who followed it, and in which order all meet again. Each is a plan with a seed of its own
//! (`crates/sim/README.md`), so that what fails is looked at like any other seed.

use crate::drawn::Drawn;
use crate::plan::{Plan, Planned, Setup, Step, VolumeSetup, others};
use crate::ranges::sectors;
use units::{Duration, Instant};
use urbd_core::{Command, Protocol, RequestKind};
use wire::Version;

/// The first seed of the range.
pub const WORLDS: u64 = 5_700_000;
/// And the first one behind it.
pub(crate) const END: u64 = 5_800_000;
/// Those of the first protocol come first, then those of the next one.
const PROTOCOLS: [Protocol; 3] = [Protocol::C, Protocol::B, Protocol::A];
const NODES: usize = 3;
/// So long a silent link is noticed at the latest.
const NOTICED: Duration = Duration::from_secs(20);
/// Two that may meet do so within this.
const MET: Duration = Duration::from_secs(5);

/// What becomes of a node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum End {
    /// It goes on.
    Lives,
    /// It becomes Secondary.
    Demoted,
    /// Its process ends in the middle of a write, or its power; these nodes of those that it reached have got that.
    Killed { power: bool, got: u8 },
}

/// What becomes of another node while one is Primary.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Away {
    /// Nothing.
    Nobody,
    /// It is cut off from all, or from the Primary alone.
    Cut { node: usize, all: bool },
    /// It ends.
    Killed { node: usize, power: bool },
}

/// A history.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct World {
    primary: usize,
    away: Away,
    end: End,
    /// Do those that have got a killed Primary's last write end as well, and do offline tools run before they start?
    fallen: Option<bool>,
    /// Who is Primary then, if anybody, and how that one ends.
    next: Option<(usize, End)>,
    /// Which order of the pairs that are to meet.
    order: usize,
}

/// How many there are of each protocol.
#[must_use]
pub fn count() -> u64 {
    all().len() as u64
}

/// The plan of a seed of this range.
pub(crate) fn draw(seed: u64) -> Plan {
    let worlds = all();
    let number = (seed - WORLDS) as usize;
    let protocol = PROTOCOLS[number / worlds.len() % PROTOCOLS.len()];
    let world = worlds[number % worlds.len()];
    let told = world.told();
    let number = |(number, (at, step))| Planned { number, at, step };
    let steps = told.steps.into_iter().enumerate().map(number).collect();
    let mut setup = setup(protocol);
    setup.drawn.widest.offline_tools = if world.fallen == Some(true) { 2 } else { 0 };
    Plan { seed, luck: 0, setup, steps, least_events: 0 }
}

/// All of them, those left out that cannot be told apart.
fn all() -> Vec<World> {
    let mut all = Vec::new();
    for primary in 0..NODES {
        for away in aways(primary) {
            for end in ends(primary, away) {
                let lives = nexts(primary, away, end).into_iter().map(|next| (None, next));
                let got = matches!(end, End::Killed { got, .. } if got > 0);
                let falls = [true, false].into_iter().filter(|_| got).map(|tools| (Some(tools), None));
                for (fallen, next) in lives.chain(falls) {
                    let world = World { primary, away, end, fallen, next, order: 0 };
                    let broken = world.apart().broken.len();
                    all.extend((0..(1..=broken).product()).map(|order| World { order, ..world }));
                }
            }
        }
    }
    all
}

fn aways(primary: usize) -> Vec<Away> {
    let of = |node| {
        let cut = [true, false].map(|all| Away::Cut { node, all });
        cut.into_iter().chain([false, true].map(|power| Away::Killed { node, power }))
    };
    std::iter::once(Away::Nobody).chain(others(primary, NODES).flat_map(of)).collect()
}

impl Away {
    /// Does the node hear of the Primary no more?
    fn is_of(self, n: usize) -> bool {
        matches!(self, Away::Cut { node, .. } | Away::Killed { node, .. } if node == n)
    }
}

fn ends(primary: usize, away: Away) -> Vec<End> {
    let hears: u8 = others(primary, NODES).filter(|n| !away.is_of(*n)).map(|n| 1 << n).sum();
    let parts = (0..1 << NODES).filter(|got| got & hears == *got);
    let killed = parts.flat_map(|got| [false, true].map(|power| End::Killed { power, got }));
    [End::Lives, End::Demoted].into_iter().chain(killed).collect()
}

fn nexts(primary: usize, away: Away, end: End) -> Vec<Option<(usize, End)>> {
    let dead = |n: usize| matches!(away, Away::Killed { node, .. } if node == n);
    // Who is connected to a Primary is not promoted.
    let may = |n: &usize| !dead(*n) && (end != End::Lives || away.is_of(*n));
    let killed = [false, true].map(|power| End::Killed { power, got: 0 });
    let ends = || [End::Lives, killed[0], killed[1]].into_iter();
    let others = others(primary, NODES).filter(may).flat_map(|n| ends().map(move |end| Some((n, end))));
    std::iter::once(None).chain(others).collect()
}

/// A history as far as it is told.
struct Told {
    steps: Vec<(Instant, Step)>,
    now: Instant,
    down: Vec<usize>,
    /// Pairs that are cut.
    broken: Vec<[usize; 2]>,
    writes: u64,
}

impl World {
    fn told(self) -> Told {
        let mut told = self.apart();
        told.meet(self.order);
        told
    }

    /// Until they meet.
    fn apart(self) -> Told {
        let mut told = Told { steps: Vec::new(), now: Instant(0), down: Vec::new(), broken: Vec::new(), writes: 0 };
        (0..NODES).for_each(|n| told.push(Step::Start(n)));
        told.pass(Duration::from_secs(2));
        told.push(Step::Command(self.primary, Command::Primary { force: true }));
        told.push(Step::Open(self.primary, true));
        told.pass(Duration::from_secs(2));
        told.write(self.primary);
        match self.away {
            Away::Nobody => {}
            Away::Cut { node, all } => {
                others(node, NODES).filter(|n| all || *n == self.primary).for_each(|n| told.cut(node, n));
            }
            Away::Killed { node, power } => told.kill(node, power),
        }
        told.write(self.primary);
        told.pass(NOTICED);
        told.write(self.primary);
        told.ends(self.primary, self.end);
        if let (End::Killed { got, .. }, Some(_)) = (self.end, self.fallen) {
            others(self.primary, NODES).filter(|n| got & 1 << n > 0).for_each(|n| told.kill(n, false));
        }
        if let Some((next, end)) = self.next {
            told.pass(NOTICED);
            told.push(Step::Command(next, Command::Primary { force: false }));
            told.push(Step::Open(next, true));
            told.pass(Duration::from_secs(1));
            told.write(next);
            told.ends(next, end);
        }
        told.pass(NOTICED);
        told
    }
}

impl Told {
    fn push(&mut self, step: Step) {
        self.steps.push((self.now, step));
    }

    fn pass(&mut self, time: Duration) {
        self.now = self.now + time;
    }

    /// A write that is complete if it can be, here and there to the same place as an earlier one.
    fn write(&mut self, node: usize) {
        self.writes += 1;
        let start = self.writes % 4 * 64;
        let kind = RequestKind::Write { fua: false };
        self.push(Step::Io { volume: 0, kind, range: sectors(start, start + 16), node });
        self.pass(Duration::from_millis(100));
    }

    fn cut(&mut self, a: usize, b: usize) {
        let pair = [a.min(b), a.max(b)];
        if !self.broken.contains(&pair) {
            self.broken.push(pair);
            self.push(Step::CutLink(a, b));
            self.push(Step::CutLink(b, a));
        }
    }

    /// It does not meet anybody before its turn.
    fn kill(&mut self, node: usize, power: bool) {
        self.push(if power { Step::PowerLoss(node) } else { Step::Kill(node) });
        self.down.push(node);
        others(node, NODES).for_each(|n| self.cut(node, n));
    }

    fn ends(&mut self, node: usize, end: End) {
        match end {
            End::Lives => {}
            End::Demoted => {
                self.push(Step::Open(node, false));
                self.push(Step::Command(node, Command::Secondary { force: false }));
            }
            End::Killed { power, got } => {
                others(node, NODES).filter(|n| got & 1 << n == 0).for_each(|n| self.cut(node, n));
                self.write(node);
                self.kill(node, power);
            }
        }
    }

    /// One pair after the other; `order` is the number of a permutation.
    fn meet(&mut self, mut order: usize) {
        let mut left = std::mem::take(&mut self.broken);
        left.sort_unstable();
        while !left.is_empty() {
            let [a, b] = left.remove(order % left.len());
            order /= left.len() + 1;
            for n in [a, b] {
                if let Some(at) = self.down.iter().position(|down| *down == n) {
                    self.down.remove(at);
                    self.push(Step::Start(n));
                }
            }
            self.push(Step::HealLink(a, b));
            self.push(Step::HealLink(b, a));
            self.pass(MET);
        }
    }
}

fn setup(protocol: Protocol) -> Setup {
    let volume = VolumeSetup { sectors: vec![2048; NODES], external: false, log: (1, 8), slots: vec![2; NODES] };
    Setup {
        volumes: vec![volume],
        protocol,
        same_content: false,
        versions: vec![Version::MAX.number(); NODES],
        drawn: Drawn::plain(NODES),
        latency: (Duration(20_000), Duration(20_000), Duration(10_000)),
        ..Setup::plain(0)
    }
}
