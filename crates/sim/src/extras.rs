//! Faults that only ranges of seeds of their own have: each is a switch of its own, and the last range draws them all.
//!
//! What they add to a plan is drawn from a random source of their own: nothing that older seeds draw changes.

use crate::nine::NINE;
use crate::plan::{Setup, Step, node_id, volume_nr};
use crate::ranges::sectors;
use crate::unlike::UNLIKE;
use units::{Duration, Instant, Rng, Sector, SectorRange};
use urbd_core::{Command, Fencing, Protocol, QuorumConfig, Threshold};

/// The first seed of each range; each goes on to the next one.
const CLOCKS: u64 = 100_000;
const ROT: u64 = 110_000;
const HANDLERS: u64 = 120_000;
const TWO_PRIMARIES: u64 = 130_000;
const ALL: u64 = 140_000;
/// In ranges with handlers, so far from their beginning on there is one that a resync waits for.
const SLOW_RESYNCS: u64 = 5000;

/// Sectors of a volume whose disk rots, at most.
const LARGEST_VERIFIED: u64 = 8 << 11;

/// The switches.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Extras {
    /// Clocks jump ahead and run slow and fast; processes are stopped, and machines suspended, for hours.
    pub clocks: bool,
    /// Sectors of a disk change by themselves: verify must find them.
    pub rot: bool,
    /// A fencing policy, and handlers with answers of all kinds, late ones, and none.
    pub handlers: bool,
    /// `before-resync-target` and `before-resync-source` handlers, which a resync waits for.
    pub slow_resyncs: bool,
    /// Both nodes may be Primary.
    pub two_primaries: bool,
    quorum: QuorumConfig,
}

impl Extras {
    /// `quorum` and what belongs to it.
    pub(crate) fn quorum(&self) -> &QuorumConfig {
        &self.quorum
    }

    /// From now on these.
    pub(crate) fn ask_for(&mut self, quorum: QuorumConfig) {
        self.quorum = quorum;
    }

    /// The switches of a seed.
    #[must_use]
    pub(crate) fn of(seed: u64) -> Extras {
        let none = Extras::default();
        match seed {
            CLOCKS..ROT => Extras { clocks: true, ..none },
            ROT..HANDLERS => Extras { rot: true, ..none },
            HANDLERS..TWO_PRIMARIES => Extras { handlers: true, slow_resyncs: seed >= HANDLERS + SLOW_RESYNCS, ..none },
            TWO_PRIMARIES..ALL => Extras { two_primaries: true, ..none },
            NINE.. => {
                let mut rng = Rng::new(seed ^ 0x616c_6c21);
                let mut some = || rng.chance(1, 8);
                // What a verify finds is not copied by connecting anew in 9's dialect (`reconnected`, state 5.8).
                Extras { clocks: some(), handlers: some(), ..none }
            }
            UNLIKE.. => {
                let mut rng = Rng::new(seed ^ 0x616c_6c21);
                let two_primaries = rng.chance(3, 4);
                let mut some = || rng.chance(1, 8);
                Extras { clocks: some(), rot: some(), handlers: some(), two_primaries, ..none }
            }
            ALL.. => {
                let mut rng = Rng::new(seed ^ 0x616c_6c21);
                let mut half = || rng.chance(1, 2);
                let slow_resyncs = seed >= ALL + SLOW_RESYNCS && Rng::new(seed ^ 0x736c_6f77).chance(1, 2);
                let extras = Extras { clocks: half(), rot: half(), handlers: half(), two_primaries: half(), ..none };
                Extras { slow_resyncs: slow_resyncs && extras.handlers, ..extras }
            }
            _ => none,
        }
    }

    /// Is any of them on?
    #[must_use]
    pub(crate) fn any(self) -> bool {
        self != Extras::default()
    }
}

impl Setup {
    /// What the switches ask of the cluster. Verifying large volumes takes long, and finds what small ones show.
    pub(crate) fn suit_extras(&mut self) {
        if self.extras.two_primaries {
            // Nothing else is a valid configuration: the others acknowledge before conflicts are resolved.
            self.protocol = Protocol::C;
        }
        if self.extras.rot {
            self.digests = true;
            // Older ones cannot verify.
            self.versions.iter_mut().for_each(|version| *version = (*version).max(89));
            for volume in &mut self.volumes {
                volume.sectors.iter_mut().for_each(|sectors| *sectors = (*sectors).min(LARGEST_VERIFIED));
            }
        }
    }
}

/// Adds what the switches of this seed ask for.
pub(crate) fn add_extras(seed: u64, setup: &mut Setup, steps: &mut Vec<(Instant, Step)>) {
    let extras = setup.extras;
    let mut rng = Rng::new(seed ^ 0x6578_7472);
    let began = Instant(2_400_000_000);
    let end = steps.last().map_or(began, |(at, _)| (*at).max(began));
    let mut adding = Adding { span: end.since(began).0.max(1_000_000), began, rng: &mut rng, setup, steps };
    if extras.clocks {
        adding.clocks();
    }
    if extras.rot {
        adding.rot();
    }
    if extras.handlers {
        adding.setup.fencing =
            if adding.rng.chance(1, 2) { Fencing::ResourceOnly } else { Fencing::ResourceAndStonith };
    }
    if extras.two_primaries {
        adding.two_primaries();
    }
    steps.sort_by_key(|(at, _)| *at);
}

struct Adding<'a> {
    setup: &'a mut Setup,
    steps: &'a mut Vec<(Instant, Step)>,
    rng: &'a mut Rng,
    began: Instant,
    span: u64,
}

impl Adding<'_> {
    fn some_time(&mut self) -> Instant {
        self.began + Duration(self.rng.below(self.span))
    }

    fn push(&mut self, at: Instant, step: Step) {
        self.steps.push((at, step));
    }

    fn node(&mut self) -> usize {
        self.rng.below(2) as usize
    }

    fn clocks(&mut self) {
        for _ in 0..2 + self.rng.below(6) {
            let (at, node) = (self.some_time(), self.node());
            match self.rng.below(4) {
                0 => {
                    let ahead = Duration::from_secs([1, 20, 3600, 86_400][self.rng.below(4) as usize]);
                    self.push(at, Step::ClockJump(node, ahead));
                }
                1 => {
                    let percent = [10, 50, 90, 110, 200, 1000][self.rng.below(6) as usize];
                    self.push(at, Step::ClockRate(node, percent));
                }
                // Stopped for long: the clock goes on (SIGSTOP), or stands still as well (a suspended machine).
                stopped => {
                    let seconds = [120, 3600, 7200][self.rng.below(3) as usize];
                    self.push(at, if stopped == 2 { Step::Pause(node) } else { Step::Suspend(node) });
                    self.push(at + Duration::from_secs(seconds), Step::Resume(node));
                }
            }
        }
    }

    fn rot(&mut self) {
        for _ in 0..1 + self.rng.below(8) {
            let (at, node) = (self.some_time(), self.node());
            let volume = self.rng.below(self.setup.volumes.len() as u64) as usize;
            let size = self.setup.volumes[volume].smallest();
            let len = [1, 8, 64][self.rng.below(3) as usize];
            let spread = if self.rng.chance(1, 2) { 64 } else { size - len };
            let start = self.rng.below(spread);
            self.push(at, Step::Rot { node, volume, range: sectors(start, start + len) });
        }
    }

    fn two_primaries(&mut self) {
        for _ in 0..1 + self.rng.below(6) {
            let at = self.some_time();
            for node in 0..2 {
                self.push(at, Step::Command(node, Command::Primary { force: false }));
                self.push(at + Duration::from_millis(200), Step::Open(node, true));
            }
        }
    }
}

/// The command that an operator gives to see whether what is on the disks differs: all of it, not only from where an
/// earlier one was interrupted.
pub(crate) fn verify(volume: usize) -> Command {
    Command::Verify { volume: volume_nr(volume), peer: None, start: Some(Sector(0)), stop: None, repair: false }
}

/// Those by which what differs is copied.
pub(crate) fn renewal(n: usize) -> [Command; 2] {
    let peer = node_id(1 - n);
    [Command::Disconnect { peer, force: false }, Command::Connect { peer, discard_my_data: false, tentative: false }]
}

/// What of `range` is in none of `parts`?
pub(crate) fn outside(range: SectorRange, parts: &[SectorRange]) -> bool {
    let mut at = range.start;
    let mut parts: Vec<_> = parts.iter().filter(|p| p.overlaps(range)).collect();
    parts.sort_unstable_by_key(|p| p.start);
    for part in parts {
        if part.start > at {
            return true;
        }
        at = at.max(part.end);
    }
    at < range.end
}

impl Setup {
    /// May no acknowledged write ever be given up? A majority has each, on good copies, and whoever goes on has one of
    /// them (`docs/contract.md`, "Quorum").
    pub(crate) fn keeps_all_by_quorum(&self) -> bool {
        self.is_most(self.extras.quorum().nodes()) && self.is_most(self.extras.quorum().up_to_date())
    }

    /// Does quorum ask for nodes, and not for good copies? Then one whose copy is being written, or that has lost it,
    /// counts as well as another: whoever goes on with its help may lack what was acknowledged.
    pub(crate) fn counts_nodes_alone(&self) -> bool {
        self.extras.quorum().is_on() && !self.is_most(self.extras.quorum().up_to_date())
    }

    fn is_most(&self, threshold: Threshold) -> bool {
        let all = u32::try_from(self.nodes()).unwrap_or(u32::MAX);
        threshold.of(all) > all / 2
    }
}
