//! What no seed below 5,900,000 has: volumes that come and go on a running resource, as `adjust` does it, and
//! applications that wait for the next process.
//!
//! A process has the volumes that it was started with. A Secondary is stopped and started anew. A Primary's process
//! leaves: it answers what it was asked, becomes Secondary and goes down, and the next one wishes to be Primary again;
//! so does who follows a Primary's process that was killed. Of a volume that is not configured the disk lies there as
//! it is.

use crate::cluster::{Cluster, Event, Input};
use crate::drawing::numbered;
use crate::further::source;
use crate::oracle::{Moment, View};
use crate::payload::Payload;
use crate::plan::{Plan, Planned, Setup, Step, node_id, pick, volume_nr};
use crate::ranges::sectors;
use std::collections::BTreeSet;
use units::{Duration, Instant, NodeMask, Rng, VolumeNr};
use urbd_core::{Command, CommandError, Inherited, Openers, RequestKind, Resource};
use wire::{ConnState, DiskState, Role, StateWord};

/// The first seed of the range: two nodes, each other seed of 8.4's dialect and of 9's.
pub(crate) const COMING: u64 = 5_900_000;
/// Seeds from here on have three nodes.
const THREE: u64 = 5_950_000;
/// Whose plans are added to.
const PLANS: [u64; 4] = [10_000, 4_000_000, 5_000_000, 5_800_000];

/// How long a process that leaves may take.
const LIMIT: Duration = Duration::from_secs(3);
/// How long it is until the next one is there.
const START: Duration = Duration::from_millis(300);

/// What only this range has.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Coming {
    /// Applications wait for the next process.
    pub keeps: bool,
    /// Nodes in whose configuration something is not.
    pub absent: BTreeSet<(usize, Absent)>,
}

/// What is not in the configuration of a node.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Absent {
    /// A volume.
    Volume(usize),
    /// A peer.
    Peer(usize),
}

/// A process that leaves.
#[derive(Debug)]
pub(crate) struct Leaving {
    until: Instant,
    stage: Stage,
    /// What its applications leave to the next one, if they wait.
    left: Option<Inheritance>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Stage {
    /// Requests are being answered.
    Answering,
    /// It becomes Secondary, by this command.
    Demoting(u64),
    Demoted,
    GoingDown,
    /// It goes down, by this command, if it may.
    Stopping(u64),
    Refused,
    AtOnce,
    Stopped,
}

/// What a Primary's process leaves to the next one.
#[derive(Clone, Debug)]
pub(crate) struct Inheritance {
    /// The peers that it was connected with, if it has said so.
    beside: Option<NodeMask>,
    /// Volumes that it used without their disk.
    detached: Vec<VolumeNr>,
    /// By volume: what its applications may have seen, if it had that.
    seen: Vec<Option<View>>,
    since: Moment,
}

/// The plan of a seed of this range.
pub(crate) fn draw(seed: u64) -> Plan {
    let three = seed >= THREE;
    let number = seed - if three { THREE } else { COMING };
    let base = PLANS[usize::from(three) * 2 + (number % 2) as usize] + number / 2;
    let Plan { mut setup, steps, .. } = Plan::draw(base);
    let mut rng = source(seed, *b"come");
    if setup.volumes.len() == 1 {
        setup.volumes.push(setup.volumes[0].clone());
        setup.versions.iter_mut().for_each(|version| *version = (*version).max(100));
    }
    setup.drawn.coming.keeps = true;
    let steps: Vec<_> = steps.into_iter().map(|Planned { at, step, .. }| (at, step)).collect();
    let began = Instant(3_600_000_000);
    let span = steps.last().map_or(began, |(at, _)| (*at).max(began)).since(began).0.max(1_000_000_000);
    let mut adding = Adding { rng: &mut rng, began, span, setup: &mut setup, steps };
    for volume in 1..adding.setup.volumes.len() {
        adding.volume(volume);
    }
    let mut steps = adding.steps;
    steps.sort_by_key(|(at, _)| *at);
    Plan { seed, luck: 0, setup, steps: numbered(steps), least_events: 0 }
}

struct Adding<'a> {
    rng: &'a mut Rng,
    began: Instant,
    span: u64,
    setup: &'a mut Setup,
    steps: Vec<(Instant, Step)>,
}

impl Adding<'_> {
    fn when(&mut self) -> Instant {
        self.began + Duration(self.rng.below(self.span))
    }

    /// Up to `most` later, short times as likely as long ones.
    fn later(&mut self, at: Instant, most: Duration) -> Instant {
        let magnitude = self.rng.below(16);
        at + Duration(1 + self.rng.below((most.0 >> magnitude).max(1)))
    }

    fn node(&mut self) -> usize {
        self.rng.below(self.setup.nodes() as u64) as usize
    }

    /// All nodes, beginning with any.
    fn all_nodes(&mut self) -> Vec<usize> {
        let (first, nodes) = (self.node(), self.setup.nodes());
        (0..nodes).map(|n| (n + first) % nodes).collect()
    }

    /// A volume comes to nodes that never had it, or all have it; then it goes and comes.
    fn volume(&mut self, volume: usize) {
        if self.rng.chance(1, 2) {
            let (mut at, all) = (self.when(), self.all_nodes());
            self.setup.drawn.coming.absent.extend(all.iter().map(|n| (*n, Absent::Volume(volume))));
            for n in all {
                self.adjust(at, n, volume, true);
                at = self.later(at, Duration::from_secs(10));
            }
            self.declare_good(at, volume);
        }
        for _ in 0..1 + self.rng.below(3) {
            let (mut at, mut who) = (self.when(), self.all_nodes());
            if self.rng.chance(1, 2) {
                who.truncate(1);
            }
            for n in who.iter().copied() {
                self.adjust(at, n, volume, false);
                at = self.later(at, Duration::from_secs(5));
            }
            for n in who {
                self.adjust(at, n, volume, true);
                at = self.later(at, Duration::from_secs(5));
            }
        }
        self.requests(volume);
    }

    /// `adjust` on a node, perhaps while something else goes on.
    fn adjust(&mut self, at: Instant, node: usize, volume: usize, there: bool) {
        let other = (node + 1) % self.setup.nodes();
        match self.rng.below(12) {
            0 => self.steps.push((at, Step::Command(node, Command::invalidate(volume_nr(0))))),
            1 => self.steps.push((at, Step::Command(other, Command::invalidate(volume_nr(0))))),
            2 => {
                self.steps.push((at, Step::Kill(other)));
                let back = self.later(at, Duration::from_secs(20));
                self.steps.push((back, Step::Start(other)));
            }
            3 => {
                self.steps.push((at, Step::Cut(node)));
                let back = self.later(at, Duration::from_secs(30));
                self.steps.push((back, Step::Heal(node)));
            }
            4 => self.steps.push((at, Step::Open(node, true))),
            _ => {}
        }
        let at = self.later(at, Duration::from_millis(20));
        self.steps.push((at, Step::Volume { node, volume, there }));
        if self.rng.chance(1, 3) {
            let (dies, effects) = (self.later(at, Duration::from_secs(1)), self.rng.below(60) as u32);
            let power = self.rng.chance(1, 4);
            self.steps.push((dies, Step::DieAfter { node, effects, power }));
            let back = self.later(dies, Duration::from_secs(10));
            self.steps.push((back, Step::Start(node)));
        }
    }

    fn declare_good(&mut self, at: Instant, volume: usize) {
        let (at, node) = (self.later(at, Duration::from_secs(2)), self.node());
        let equal = self.setup.same_content && self.rng.chance(1, 2);
        let command = match equal {
            true => Command::NewCurrentUuid { volume: volume_nr(volume), clear_bitmap: true },
            false => Command::Primary { force: true },
        };
        self.steps.push((at, Step::Command(node, command)));
    }

    fn requests(&mut self, volume: usize) {
        let size = self.setup.volumes[volume].smallest();
        for _ in 0..self.steps.len() / 2 {
            let spread = if self.rng.chance(1, 2) { 64 } else { size };
            let start = self.rng.below(spread) / 8 * 8;
            let range = sectors(start, (start + 8 * (1 + self.rng.below(4))).min(size));
            let kind = *pick(
                self.rng,
                &[
                    RequestKind::Write { fua: false },
                    RequestKind::Write { fua: false },
                    RequestKind::Write { fua: true },
                    RequestKind::Read,
                    RequestKind::Flush,
                    RequestKind::Discard,
                ],
            );
            let (at, node) = (self.when(), self.node());
            self.steps.push((at, Step::Io { volume, kind, range, node }));
        }
    }
}

impl Setup {
    /// Is a volume in the configuration of a node?
    pub(crate) fn has(&self, n: usize, volume: usize) -> bool {
        !self.drawn.coming.absent.contains(&(n, Absent::Volume(volume)))
    }

    /// Is a peer in the configuration of a node?
    pub(crate) fn knows(&self, n: usize, peer: usize) -> bool {
        !self.drawn.coming.absent.contains(&(n, Absent::Peer(peer)))
    }
}

impl Inheritance {
    fn note_detached(&mut self, core: &Resource, commands: impl Iterator<Item = VolumeNr>) {
        let gone = core.snapshot().devices.into_iter().filter(|d| d.disk <= DiskState::Negotiating).map(|d| d.volume);
        self.detached = gone.chain(commands).collect();
    }
}

impl Cluster {
    /// A volume comes into the configuration of a node, or goes out of it, and `adjust` is called if it runs.
    pub(crate) fn configure_volume(&mut self, node: usize, volume: usize, there: bool) {
        let absent = &mut self.setup.drawn.coming.absent;
        let what = (node, Absent::Volume(volume));
        let _ = if there { absent.remove(&what) } else { absent.insert(what) };
        self.adjust_volumes(node);
    }

    /// Does a node's process have other volumes than its configuration?
    pub(crate) fn has_other_volumes(&self, n: usize) -> bool {
        let Some(core) = &self.nodes[n].core else { return false };
        let differs = |v: usize| core.state_word(volume_nr(v)).is_some() != self.setup.has(n, v);
        (0..self.setup.volumes.len()).any(differs)
    }

    /// `adjust` of a node that may have other volumes.
    pub(crate) fn adjust_volumes(&mut self, n: usize) {
        let busy = self.nodes[n].leaving.is_some() || self.waits_to_be_primary(n);
        if busy || !self.has_other_volumes(n) {
            return;
        }
        self.note_wish();
        let core = self.nodes[n].core.as_ref().expect("just seen");
        let snapshot = core.snapshot();
        let until = self.now + LIMIT;
        if snapshot.role == Role::Primary {
            let connected = |c: &&urbd_core::ConnectionSnapshot| c.state == urbd_core::ConnectionState::Connected;
            let mut beside = NodeMask::default();
            snapshot.connections.iter().filter(connected).for_each(|c| beside.insert(c.peer));
            let left = self.left_by(n, Some(beside));
            self.nodes[n].leaving = Some(Leaving { until, stage: Stage::Answering, left: Some(left) });
            let life = self.nodes[n].life;
            self.at(until, Event::Leave(n, life));
        } else {
            let id = self.command_id(n, Command::Down(false));
            self.nodes[n].leaving = Some(Leaving { until, stage: Stage::Stopping(id), left: None });
        }
        self.go_on_leaving(n);
    }

    /// What the applications of a Primary leave to the next process.
    fn left_by(&self, n: usize, beside: Option<NodeMask>) -> Inheritance {
        let mut left = Inheritance { beside, detached: Vec::new(), seen: Vec::new(), since: 0 };
        if let Some(core) = &self.nodes[n].core {
            left.note_detached(core, self.detaching(n));
        }
        left
    }

    /// Volumes whose disks somebody wants to be let go of.
    fn detaching(&self, n: usize) -> impl Iterator<Item = VolumeNr> + use<'_> {
        let volume = |c: &Command| if let Command::Detach { volume, .. } = c { Some(*volume) } else { None };
        self.nodes[n].commands.values().filter_map(volume)
    }

    /// The next step of a process that leaves, when the one before is done.
    pub(crate) fn go_on_leaving(&mut self, n: usize) {
        if self.nodes[n].paused || self.nodes[n].core.is_none() {
            return;
        }
        let Some(Leaving { until, stage, .. }) = self.nodes[n].leaving else { return };
        let stopping = matches!(stage, Stage::Stopping(_) | Stage::Refused | Stage::Stopped);
        let stage = if self.now >= until && !stopping { Stage::AtOnce } else { stage };
        let next = match stage {
            Stage::Answering if self.nodes[n].requests.is_empty() => {
                for v in 0..self.nodes[n].volumes.len() {
                    self.nodes[n].volumes[v].open = false;
                    self.nodes[n].inbox.push_back(Input::Openers(volume_nr(v), Openers::default()));
                }
                Stage::Demoting(self.command_id(n, Command::Secondary { force: false }))
            }
            Stage::Demoted => {
                let left = self.left_by(n, None);
                if let Some(Leaving { left: Some(before), .. }) = &mut self.nodes[n].leaving {
                    before.detached = left.detached;
                }
                for peer in self.peers(n) {
                    self.command_id(n, Command::Disconnect { peer: node_id(peer), force: true });
                }
                self.command_id(n, Command::Down(true));
                Stage::GoingDown
            }
            Stage::Refused => {
                self.nodes[n].leaving = None;
                return;
            }
            Stage::AtOnce | Stage::Stopped => {
                self.die(n, false);
                return self.after(START, Event::Step(Step::Start(n)));
            }
            stage => stage,
        };
        self.nodes[n].leaving.iter_mut().for_each(|leaving| leaving.stage = next);
    }

    /// A command, by its id.
    fn command_id(&mut self, n: usize, command: Command) -> u64 {
        self.command(n, command);
        self.serial
    }

    /// A command of a process that leaves has ended.
    pub(crate) fn note_command_done(&mut self, n: usize, id: u64, result: &Result<(), CommandError>) {
        let Some(leaving) = &mut self.nodes[n].leaving else { return };
        leaving.stage = match (leaving.stage, result) {
            (Stage::Demoting(of), Ok(())) if of == id => Stage::Demoted,
            (Stage::Demoting(of), Err(_)) if of == id => Stage::AtOnce,
            (Stage::Stopping(of), Err(_)) if of == id => Stage::Refused,
            (stage, _) => stage,
        };
    }

    /// The core is down.
    pub(crate) fn note_stopped(&mut self, n: usize) {
        self.nodes[n].leaving.iter_mut().for_each(|leaving| leaving.stage = Stage::Stopped);
    }

    /// A process ends, or the machine: what the next one finds.
    pub(crate) fn bequeath(&mut self, n: usize, power: bool) {
        let leaving = self.nodes[n].leaving.take();
        if power || !self.setup.drawn.coming.keeps {
            self.nodes[n].inherited = None;
            return;
        }
        let primary = self.nodes[n].core.as_ref().is_some_and(|core| core.snapshot().role == Role::Primary);
        let waits = self.waits_to_be_primary(n);
        self.nodes[n].inherited = match leaving {
            Some(Leaving { stage: Stage::GoingDown | Stage::Stopping(_) | Stage::Stopped, left, .. }) => left,
            // Whoever waits to be Primary again has been noted as that.
            _ if waits => self.nodes[n].inherited.take(),
            _ => primary.then(|| self.left_by(n, None)),
        };
    }

    fn waits_to_be_primary(&self, n: usize) -> bool {
        self.nodes[n].commands.values().any(|c| matches!(c, Command::PrimaryAgain(..)))
    }

    /// A process has started: applications wait for it if they have waited since the last one.
    pub(crate) fn inherit(&mut self, n: usize) {
        let Some(inherited) = self.nodes[n].inherited.clone() else { return };
        if self.cluster_manager_allows(n, &Command::Primary { force: false }) {
            let of = |v: &usize| inherited.seen.get(*v).is_some_and(Option::is_none) && self.setup.has(n, *v);
            let came = (0..self.setup.volumes.len()).filter(of).map(volume_nr).collect();
            let inherited = Inherited { beside: inherited.beside, without_disk: inherited.detached, came };
            self.command(n, Command::PrimaryAgain(inherited));
        } else {
            self.give_up_waiting(n);
        }
    }

    /// What the applications wait for fails.
    fn give_up_waiting(&mut self, n: usize) {
        self.nodes[n].inherited = None;
        self.want_open(n, false);
    }

    /// The wish to be Primary again has come true, or cannot. What the applications see next must follow on what they
    /// have seen.
    pub(crate) fn note_primary_again(&mut self, n: usize, done: bool) {
        let Some(inherited) = self.nodes[n].inherited.take() else { return };
        if !done {
            return self.give_up_waiting(n);
        }
        for (v, seen) in inherited.seen.iter().enumerate() {
            let Some(seen) = seen.as_ref().filter(|_| !self.setup.extras.two_primaries) else { continue };
            let word = |n: usize| self.nodes[n].volumes[v].word;
            let good = |n: &usize| word(*n).is_some_and(|w| w.disk == DiskState::UpToDate);
            // A disk that cannot be read does not tell which generation was in use, nor does one that was not used.
            let without_disk = inherited.detached.contains(&volume_nr(v));
            if without_disk || self.nodes[n].volumes[v].reach.has_erred_since(inherited.since) {
                continue;
            }
            let includes = &self.nodes[n].volumes[v].view.includes;
            let others = self.peers(n).any(|peer| includes[peer] > seen.includes[peer]);
            let used = std::iter::once(n).chain(self.peers(n)).find(good);
            let Some(used) = used.filter(|_| others) else { continue };
            let whole = sectors(0, self.nodes[n].volumes[v].size.min(seen.len()));
            let content = Payload::read(self.nodes[used].volumes[v].data.data(), whole);
            if let Err(text) = seen.allows(whole, &content, self.moment) {
                self.fail(format!(
                    "node {n} is Primary again, and volume {v} is not what its applications have seen: {text}"
                ));
            }
        }
    }

    /// A process has ended: of what it had, its applications may have seen so much.
    pub(crate) fn note_seen(&mut self, n: usize) {
        let node = &mut self.nodes[n];
        let Some(left) = node.inherited.as_mut().filter(|left| left.seen.is_empty()) else { return };
        left.since = self.moment;
        left.seen = node.volumes.iter().map(|v| v.word.map(|_| v.view.clone())).collect();
    }

    /// What an operator does at the end: all nodes have all volumes, and who waits to be Primary for long goes on, or
    /// gives up.
    pub(crate) fn complete_volumes(&mut self, round: u32) {
        self.setup.drawn.coming.absent.clear();
        for n in 0..self.nodes.len() {
            self.adjust_volumes(n);
            let stays_alone = |w: &StateWord| {
                w.role == Role::Primary && w.disk == DiskState::Inconsistent && w.conn < ConnState::Connected
            };
            if self.nodes.len() > 2
                && round >= 6
                && self.nodes[n].volumes.iter().any(|v| v.word.is_some_and(|w| stays_alone(&w)))
            {
                // Among several peers a Primary is brought up to date by nobody (`docs/compatibility.md`).
                self.want_open(n, false);
                self.command(n, Command::Secondary { force: true });
            }
            if !self.waits_to_be_primary(n) {
                continue;
            }
            if round == 8 {
                self.command(n, Command::ResumeIo { volume: volume_nr(0) });
            } else if round >= 12 {
                self.die(n, false);
                self.give_up_waiting(n);
                self.start(n);
            }
        }
    }

    /// Is it about a volume that the process does not have?
    pub(crate) fn lacks_volume(&self, n: usize, command: &Command) -> bool {
        let volume = match command {
            Command::Attach { volume }
            | Command::Detach { volume, .. }
            | Command::Replace(volume, ..)
            | Command::ForceResync(volume)
            | Command::PauseSync { volume }
            | Command::ResumeSync { volume }
            | Command::SuspendIo { volume }
            | Command::ResumeIo { volume }
            | Command::EndFreeze { volume }
            | Command::Outdate { volume }
            | Command::NewCurrentUuid { volume, .. }
            | Command::Resize { volume, .. }
            | Command::Verify { volume, .. } => *volume,
            _ => return false,
        };
        self.nodes[n].core.as_ref().is_some_and(|core| core.state_word(volume).is_none())
    }
}
