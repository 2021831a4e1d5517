//! What the plans of all ranges of seeds are drawn with: when a step happens, and the steps that are the same for two
//! nodes and for more.

use crate::disk::DiskFaults;
use crate::plan::{Planned, Setup, Step, all_comes_back, all_faults_end, node_id, pick, plain_connect, volume_nr};
use crate::ranges::sectors;
use units::{Duration, Instant, Rng};
use urbd_core::{Command, RequestKind, Threshold};

/// A plan as far as it is drawn. `M` says how likely each kind of step is.
pub(crate) struct Drawing<M> {
    pub(crate) rng: Rng,
    pub(crate) mix: M,
    pub(crate) setup: Setup,
    pub(crate) steps: Vec<(Instant, Step)>,
    pub(crate) now: Instant,
}

impl<M> Drawing<M> {
    /// Nothing is drawn yet but who takes part.
    pub(crate) fn new(rng: Rng, mix: M, setup: Setup) -> Drawing<M> {
        Drawing { rng, mix, setup, steps: Vec::new(), now: Instant(0) }
    }

    pub(crate) fn push(&mut self, step: Step) {
        self.steps.push((self.now, step));
    }

    /// Within so long from now.
    pub(crate) fn later(&mut self, most: Duration, step: Step) {
        let at = self.now + self.span(most);
        self.steps.push((at, step));
    }

    /// A time up to `most`, short ones as likely as long ones.
    fn span(&mut self, most: Duration) -> Duration {
        let magnitude = self.rng.below(16);
        Duration(1 + self.rng.below((most.0 >> magnitude).max(1)))
    }

    /// How long it is from one step to the next.
    pub(crate) fn gap(&mut self) -> Duration {
        *pick(&mut self.rng, &[Duration(200_000), Duration::from_millis(2), Duration::from_millis(20)])
    }

    /// Up to two gaps pass.
    pub(crate) fn pass(&mut self, gap: Duration) {
        let wait = self.rng.below(gap.0 * 2 + 1);
        self.now = self.now + Duration(wait);
    }

    /// Which of the kinds that are so likely.
    pub(crate) fn kind(&mut self, weights: &[u64]) -> usize {
        let mut ticket = self.rng.below(weights.iter().sum());
        let which = weights.iter().position(|w| match ticket.checked_sub(*w) {
            Some(rest) => {
                ticket = rest;
                false
            }
            None => true,
        });
        which.expect("the ticket is below the sum")
    }

    pub(crate) fn node(&mut self) -> usize {
        self.rng.below(self.setup.nodes() as u64) as usize
    }

    pub(crate) fn volume(&mut self) -> usize {
        self.rng.below(self.setup.volumes.len() as u64) as usize
    }

    /// One node's data is declared good, and it serves its applications. It takes so long for the others to hear of it.
    pub(crate) fn declare_good(&mut self, first: usize, wait: Duration) {
        // By force one copy would be good, and more may be asked for.
        let several = self.setup.extras.quorum().up_to_date() != Threshold::Off;
        if self.setup.same_content && (several || self.rng.chance(1, 2)) {
            for v in 0..self.setup.volumes.len() {
                self.push(Step::Command(first, Command::NewCurrentUuid { volume: volume_nr(v), clear_bitmap: true }));
            }
            self.now = self.now + wait;
            self.push(Step::Command(first, Command::Primary { force: false }));
        } else {
            self.push(Step::Command(first, Command::Primary { force: true }));
        }
        self.now = self.now + wait;
        self.push(Step::Open(first, true));
    }

    /// A request of an application; some are `long`.
    pub(crate) fn io(&mut self, long: bool) {
        let volume = self.volume();
        let size = self.setup.volumes[volume].smallest();
        // Some places are hot, so that requests meet.
        let spread = if self.rng.chance(1, 2) { 64 } else { size };
        let len = match self.rng.below(8) {
            0 => 1 + self.rng.below(16),
            1 => 8 * (1 + self.rng.below(64)),
            2 if long && self.rng.chance(1, 8) => 8 * (1 + self.rng.below(512)),
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

    /// A node dies, now or in the middle of a turn, and comes back.
    pub(crate) fn dies(&mut self, node: usize, power: bool) {
        if self.rng.chance(1, 2) {
            let effects = self.rng.below(60) as u32;
            self.push(Step::DieAfter { node, effects, power });
        } else {
            self.push(if power { Step::PowerLoss(node) } else { Step::Kill(node) });
        }
        self.later(Duration::from_secs(20), Step::Start(node));
    }

    /// In the place of one that has died.
    pub(crate) fn takes_over(&mut self, node: usize) {
        self.later(Duration::from_secs(5), Step::Command(node, Command::Primary { force: false }));
        self.later(Duration::from_secs(10), Step::Open(node, true));
    }

    pub(crate) fn pause(&mut self) {
        let node = self.node();
        self.push(Step::Pause(node));
        self.later(Duration::from_secs(60), Step::Resume(node));
    }

    /// A disk fails in one way, is good again, and attached; with `discards` that is a way of its own.
    pub(crate) fn disk(&mut self, discards: bool) {
        let (node, volume) = (self.node(), self.volume());
        let mut faults = DiskFaults::default();
        match self.rng.below(5) {
            0 if discards && self.rng.chance(1, 2) => faults.discards = true,
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

    /// Two nodes part, and connect again, one after the other.
    pub(crate) fn part(&mut self, node: usize, peer: usize, force: bool) {
        self.push(Step::Command(node, Command::Disconnect { peer: node_id(peer), force }));
        self.later(Duration::from_secs(5), Step::Command(node, plain_connect(peer)));
        self.later(Duration::from_secs(5), Step::Command(peer, plain_connect(node)));
    }

    pub(crate) fn disk_command(&mut self) {
        let (node, volume) = (self.node(), self.volume());
        let volume = volume_nr(volume);
        let force = self.rng.chance(1, 4);
        self.push(Step::Command(node, Command::Detach { volume, force }));
        self.later(Duration::from_secs(5), Step::Command(node, Command::Attach { volume }));
    }

    /// Everything is mended, and one node serves its applications.
    pub(crate) fn all_is_well(&mut self) {
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

/// Each with its number.
pub(crate) fn numbered(steps: Vec<(Instant, Step)>) -> Vec<Planned> {
    let number = |(number, (at, step))| Planned { number, at, step };
    steps.into_iter().enumerate().map(number).collect()
}
