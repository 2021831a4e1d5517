//! What nodes foretell of a single loss (`urbd_core::decide::what_if`), beside what becomes of the loss: a cluster is
//! driven into a state, each node says what each loss would do, one thing is lost, and what the nodes are then is
//! compared with what each of them has said of itself and of the others.
//!
//! States: each node is good, without its disk, without one for good (it decides a draw), has left in order, or was
//! killed; those that are there are all connected with each other. That gives every class of node that quorum counts.

use crate::cluster::Cluster;
use crate::plan::{Plan, Setup, Step, node_id, volume_nr};
use crate::ranges::sectors;
use std::collections::{BTreeMap, BTreeSet};
use units::{Duration, NodeId};
use urbd_core::decide::what_if::{Answer, Foretold, Io, Loss, Outlook};
use urbd_core::{Command, OnNoData, OnNoQuorum, QuorumConfig, RequestKind, Threshold};
use wire::{DiskState, Role, Version};

/// What a step takes at most until it is quiet again.
const STEP: Duration = Duration::from_millis(1500);

/// What a node is when something is lost.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Hash)]
pub enum Kind {
    /// It has a good copy.
    Good,
    /// Its disk was detached.
    Detached,
    /// It is not to have a disk, and decides a draw.
    OnlyVotes,
    /// It has left in order.
    Left,
    /// It was killed.
    Killed,
    /// It was killed, and only voted.
    VoterKilled,
}

impl Kind {
    const ALL: [Kind; 6] = [Kind::Good, Kind::Detached, Kind::OnlyVotes, Kind::Left, Kind::Killed, Kind::VoterKilled];

    fn is_there(self) -> bool {
        self <= Kind::OnlyVotes
    }
}

/// A state of a cluster, and how it is come to.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Scene {
    /// By node.
    pub nodes: Vec<Kind>,
    /// Who is Primary.
    pub primary: Option<usize>,
    /// Killed at once before others leave; else one by one when they have left.
    pub killed_first: bool,
    /// What is asked for.
    pub quorum: QuorumConfig,
    /// Without data I/O is frozen; else it fails.
    pub freezes: bool,
}

/// Something that is lost.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Hash)]
enum Lost {
    Node(usize),
    Link(usize, usize),
    Disk(usize),
}

/// What comparing has come to.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Compared {
    /// Clusters that lost something.
    pub losses: usize,
    /// Answers that were compared: yes, no, and if the others see each other.
    pub answers: usize,
    /// Answers that a node cannot know.
    pub not_known: usize,
    /// Votes that were counted otherwise but for who is within reach.
    pub other_voters: usize,
    /// Different states, losses and nodes, as the nodes count their votes.
    pub classes: BTreeSet<String>,
    /// What was foretold otherwise than it came.
    pub wrong: Vec<String>,
}

/// All scenes of so many nodes in which somebody has a good copy, but for the names of nodes; of four or more without
/// those in which the Primary has no disk.
#[must_use]
pub fn scenes(nodes: usize, quorum: QuorumConfig, freezes: bool) -> Vec<Scene> {
    let mut all = Vec::new();
    let mut kinds = vec![Kind::Good];
    rising(nodes, &mut kinds, &mut |nodes| {
        let distinct: BTreeSet<Kind> = nodes.iter().copied().filter(|kind| kind.is_there()).collect();
        let place = |kind: &Kind| nodes.iter().position(|other| other == kind);
        // Beside more than two others it is not foretold right whether a Primary without a disk keeps its quorum when
        // another one loses sight of it: not compared.
        let compared = |kind: &&Kind| nodes.len() < 4 || **kind != Kind::OnlyVotes;
        let primaries = std::iter::once(None).chain(distinct.iter().filter(compared).map(place));
        let gone = |kinds: [Kind; 2]| nodes.iter().filter(|kind| kinds.contains(kind)).count();
        let killed = gone([Kind::Killed, Kind::VoterKilled]);
        let orders = killed > 1 || killed == 1 && gone([Kind::Left; 2]) > 0;
        for primary in primaries {
            for killed_first in [false, true].into_iter().take(1 + usize::from(orders)) {
                all.push(Scene { nodes: nodes.to_vec(), primary, killed_first, quorum, freezes });
            }
        }
    });
    all
}

fn rising(nodes: usize, kinds: &mut Vec<Kind>, each: &mut impl FnMut(&[Kind])) {
    if kinds.len() == nodes {
        return each(kinds);
    }
    let least = *kinds.last().expect("a first one");
    for kind in Kind::ALL.into_iter().filter(|kind| *kind >= least) {
        kinds.push(kind);
        rising(nodes, kinds, each);
        kinds.pop();
    }
}

impl Scene {
    /// Loses each thing that there is, one in each run, and compares.
    pub fn compare(&self, into: &mut Compared) {
        for (lost, promoted) in self.losses().into_iter().flat_map(|lost| self.runs(lost)) {
            let mut said = Vec::new();
            let outcome = crate::observed(&self.plan(), crate::Options::default(), |cluster| {
                cluster.play_scene(self);
                if self.primary.is_some_and(|n| !cluster.is_primary(n)) {
                    // It may not be: that is the state in which nobody is.
                    return;
                }
                into.losses += 1;
                let foretold = cluster.foretold();
                cluster.lose(lost);
                let became = cluster.became(promoted);
                said = cluster.weigh(self, lost, &foretold, &became, into);
            });
            let failed = outcome.failure.map(|text| format!("the simulator: {text}"));
            into.wrong.extend(said.into_iter().chain(failed).map(|text| format!("{self:?} {lost:?}: {text}")));
        }
    }

    /// Who is promoted then: where nobody is Primary another node in each run, as each changes what the next one may.
    fn runs(&self, lost: Lost) -> Vec<(Lost, Option<usize>)> {
        match self.primary {
            Some(n) if lost != Lost::Node(n) => vec![(lost, None)],
            _ => {
                let left = (0..self.nodes.len()).filter(|n| self.nodes[*n].is_there() && lost != Lost::Node(*n));
                let runs: Vec<_> = left.map(|n| (lost, Some(n))).collect();
                if runs.is_empty() { vec![(lost, None)] } else { runs }
            }
        }
    }

    fn plan(&self) -> Plan {
        let mut setup = Setup::plain(1);
        setup.have_nodes(self.nodes.len());
        setup.versions.fill(Version::MAX.number());
        setup.volumes[0].slots.fill(self.nodes.len() as u32 - 1);
        setup.volumes[0].sectors.fill(2048);
        setup.on_no_data = if self.freezes { OnNoData::SuspendIo } else { OnNoData::IoError };
        setup.extras.ask_for(self.quorum);
        let votes = |kind: &Kind| matches!(kind, Kind::OnlyVotes | Kind::VoterKilled);
        setup.drawn.clients = self.nodes.iter().map(votes).collect();
        Plan { seed: 1, luck: 0, setup, steps: Vec::new(), least_events: 0 }
    }

    /// One of those that are alike but for the names of nodes.
    fn losses(&self) -> Vec<Lost> {
        let there: Vec<usize> = (0..self.nodes.len()).filter(|n| self.nodes[*n].is_there()).collect();
        let alike = |n: usize| (self.nodes[n], self.primary == Some(n));
        let mut seen = BTreeSet::new();
        let mut all = Vec::new();
        for (at, n) in there.iter().copied().enumerate() {
            if seen.insert((0, alike(n), alike(n))) {
                all.push(Lost::Node(n));
                all.extend((self.nodes[n] == Kind::Good).then_some(Lost::Disk(n)));
            }
            for m in there[at + 1..].iter().copied() {
                if seen.insert((1, alike(n), alike(m))) {
                    all.push(Lost::Link(n, m));
                }
            }
        }
        all
    }
}

/// What a node is.
#[derive(Clone, PartialEq, Debug)]
struct Became {
    quorum: bool,
    /// The votes when it lost quorum, and when all is over.
    votes: Vec<String>,
    serves: bool,
    frozen: bool,
    good: u32,
    primary: bool,
    /// `None`: it was not tried in this run.
    rises: Option<bool>,
}

impl Cluster {
    fn pass(&mut self) {
        self.run_until(self.now + STEP);
    }

    fn is_primary(&self, n: usize) -> bool {
        self.nodes[n].core.as_ref().is_some_and(|core| core.snapshot().role == Role::Primary)
    }

    fn play_scene(&mut self, scene: &Scene) {
        (0..self.nodes.len()).for_each(|n| self.start(n));
        self.pass();
        self.command(0, Command::NewCurrentUuid { volume: volume_nr(0), clear_bitmap: true });
        self.pass();
        if let Some(primary) = scene.primary {
            self.want_open(primary, true);
            self.command(primary, Command::Primary { force: false });
            self.pass();
        }
        let of = |kinds: &[Kind]| -> Vec<usize> {
            (0..scene.nodes.len()).filter(|n| kinds.contains(&scene.nodes[*n])).collect()
        };
        let killed = of(&[Kind::Killed, Kind::VoterKilled]);
        if scene.killed_first {
            killed.iter().for_each(|n| self.die(*n, false));
            self.pass();
        }
        for n in of(&[Kind::Left]) {
            self.command(n, Command::Down(false));
            self.pass();
            // A Primary may not let it go: then it is killed.
            self.die(n, false);
            self.pass();
        }
        for n in of(&[Kind::Detached]) {
            self.command(n, Command::Detach { volume: volume_nr(0), force: true });
            self.pass();
        }
        for n in killed.into_iter().filter(|_| !scene.killed_first) {
            self.die(n, false);
            self.pass();
        }
        self.pass();
    }

    /// By node that is there, of the only volume.
    fn foretold(&self) -> BTreeMap<usize, Vec<Foretold>> {
        let cores = self.nodes.iter().enumerate();
        cores.filter_map(|(n, node)| Some((n, node.core.as_ref()?.what_if()))).collect()
    }

    fn lose(&mut self, lost: Lost) {
        self.notices = Some(Vec::new());
        match lost {
            Lost::Node(n) => self.die(n, false),
            Lost::Link(a, b) => {
                for (from, to) in [(a, b), (b, a)] {
                    self.step(Step::CutLink(from, to));
                }
                self.reset_links(|c| c.nodes.contains(&a) && c.nodes.contains(&b));
            }
            Lost::Disk(n) => self.command(n, Command::Detach { volume: volume_nr(0), force: true }),
        }
        (0..3).for_each(|_| self.pass());
    }

    /// What each node that is there has become, and whether it can be promoted: one after the other, or this one.
    fn became(&mut self, promoted: Option<usize>) -> BTreeMap<usize, Became> {
        let mut all = BTreeMap::new();
        for n in 0..self.nodes.len() {
            let Some(core) = &self.nodes[n].core else { continue };
            let s = core.snapshot();
            let said = self.notices.iter().flatten().filter(|(of, _)| *of == n).map(|(_, text)| text);
            let lost = said.filter_map(|text| text.strip_prefix("quorum-lost: "));
            let device = &s.devices[0];
            let reached = s.connections.iter().flat_map(|c| &c.peer_devices);
            let good = |disk: DiskState| u32::from(disk == DiskState::UpToDate);
            let good = good(device.disk) + reached.map(|p| good(p.peer_disk)).sum::<u32>();
            let became = Became {
                quorum: device.no_quorum.is_none(),
                votes: lost.map(str::to_owned).chain(device.no_quorum.clone()).collect(),
                serves: false,
                frozen: s.suspended.any(),
                good,
                primary: s.role == Role::Primary,
                rises: None,
            };
            all.insert(n, became);
        }
        // Its applications write.
        let primary = all.iter().find(|(_, became): &(&usize, &Became)| became.primary).map(|(n, _)| *n);
        if let Some(n) = primary {
            let before = self.acknowledged[n];
            self.io(0, RequestKind::Write { fua: false }, sectors(0, 8), n);
            self.pass();
            all.get_mut(&n).expect("it is there").serves = self.acknowledged[n] > before;
            if self.nodes[n].requests.is_empty() == all[&n].frozen {
                self.fail(format!("node {n}: frozen is {}, and what it was asked waits or not", all[&n].frozen));
            }
        }
        for n in all.keys().copied().filter(|n| promoted.is_none_or(|only| only == *n)).collect::<Vec<_>>() {
            let rises = all[&n].primary || self.can_rise(n);
            all.get_mut(&n).expect("it is there").rises = Some(rises);
        }
        all
    }

    fn can_rise(&mut self, n: usize) -> bool {
        self.nodes[n].last_result = None;
        self.command(n, Command::Primary { force: false });
        (0..4).for_each(|_| self.pass());
        let rose = matches!(self.nodes[n].last_result, Some((_, Ok(()))));
        if rose {
            self.command(n, Command::Secondary { force: false });
            self.pass();
        }
        rose
    }

    /// What was said of it otherwise than it came.
    fn weigh(
        &self,
        scene: &Scene,
        lost: Lost,
        foretold: &BTreeMap<usize, Vec<Foretold>>,
        became: &BTreeMap<usize, Became>,
        into: &mut Compared,
    ) -> Vec<String> {
        let mut wrong = Vec::new();
        for (n, said) in foretold {
            let loss = lost.seen_by(*n);
            let Some(said) = said.iter().find(|f| Some(f.loss) == loss) else { continue };
            let before = said.here.map(|here| here.votes.map_or(String::new(), |votes| votes.to_string()));
            let kind = (scene.nodes[*n], scene.primary == Some(*n));
            into.classes.insert(format!("{kind:?} {:?} {before:?} {:?}", scene.quorum, kind_of(said.loss)));
            let here = said.here.iter().map(|here| (*n, here));
            let others = said.others.iter().map(|(peer, outlook)| (peer.index(), outlook));
            for (of, outlook) in here.chain(others) {
                let Some(real) = became.get(&of) else {
                    wrong.push(format!("{n} foretells what {of} does, which is not there"));
                    continue;
                };
                let complaint = |text: String| format!("{n} of {of}: {text}; foretold {outlook:?}, became {real:?}");
                wrong.extend(outlook.differs(real, into).into_iter().map(complaint));
            }
        }
        wrong
    }
}

fn kind_of(loss: Loss) -> &'static str {
    match loss {
        Loss::Nothing => "nothing",
        Loss::Peer(_) => "peer",
        Loss::Link(_) => "link",
        Loss::PeerDisk(_) => "peer's disk",
        Loss::OwnDisk => "own disk",
        Loss::ThisNode => "this node",
        Loss::Leaves | Loss::PeerLeaves(_) => "leaves",
    }
}

impl Lost {
    /// What it is for this node.
    fn seen_by(self, n: usize) -> Option<Loss> {
        let peer = |peer: usize| -> NodeId { node_id(peer) };
        Some(match self {
            Lost::Node(of) if of == n => Loss::ThisNode,
            Lost::Node(of) => Loss::Peer(peer(of)),
            Lost::Disk(of) if of == n => Loss::OwnDisk,
            Lost::Disk(of) => Loss::PeerDisk(peer(of)),
            Lost::Link(a, b) if a == n => Loss::Link(peer(b)),
            Lost::Link(a, b) if b == n => Loss::Link(peer(a)),
            Lost::Link(..) => return None,
        })
    }
}

/// What one node has said of a node, compared with what that has become. All that are there see each other.
trait Differs {
    fn differs(&self, real: &Became, into: &mut Compared) -> Vec<String>;
}

impl Differs for Outlook {
    fn differs(&self, real: &Became, into: &mut Compared) -> Vec<String> {
        let mut wrong = Vec::new();
        let mut answer = |name: &str, said: Answer, is: bool| {
            match said {
                Answer::NotKnown => into.not_known += 1,
                _ => into.answers += 1,
            }
            let yes = matches!(said, Answer::Yes | Answer::IfTheyMeet);
            if said != Answer::NotKnown && yes != is {
                wrong.push(format!("{name} is {is}"));
            }
        };
        answer("quorum", self.quorum, real.quorum);
        real.rises.into_iter().for_each(|rises| answer("rises", self.rises, rises));
        if real.primary {
            answer("serves", self.serves, real.serves);
        }
        let votes = self.votes.map(|votes| votes.to_string());
        if let Some(votes) = votes.filter(|votes| !real.quorum && !real.votes.contains(votes)) {
            // Of how many may change with what a transaction brings; who is within reach does not.
            match real.votes.iter().any(|real| in_reach(real) == in_reach(&votes)) {
                true => into.other_voters += 1,
                false => wrong.push(format!("the votes were: {:?}; foretold: {votes}", real.votes)),
            }
        }
        match self.io {
            Some(io) if matches!(io, Io::Freezes(_)) != real.frozen => wrong.push("it freezes, or not".to_owned()),
            Some(io) if (io == Io::GoesOn) != real.serves => wrong.push("it serves, or not".to_owned()),
            _ => {}
        }
        if !(self.good.0..=self.good.1).contains(&real.good) {
            wrong.push(format!("{} good copies", real.good));
        }
        wrong
    }
}

/// How many are within reach, and how many of them are UpToDate, by the text of a count of votes.
fn in_reach(votes: &str) -> (&str, Option<&str>) {
    let number = |text: &'_ str| text.find(" of ").unwrap_or(text.len());
    let text = votes.trim_start_matches("no ").trim_start_matches("quorum: ");
    let good = text.split_once("; ").map(|(_, good)| &good[..number(good)]);
    (&text[..number(text)], good)
}

/// What is asked for in the states that are compared.
#[must_use]
pub fn asked_for() -> Vec<QuorumConfig> {
    let config = |nodes, up_to_date, without| QuorumConfig::new(nodes, up_to_date, without);
    vec![
        config(Threshold::Majority, Threshold::Off, OnNoQuorum::SuspendIo),
        config(Threshold::Majority, Threshold::Majority, OnNoQuorum::IoError),
        config(Threshold::All, Threshold::Off, OnNoQuorum::SuspendIo),
        config(Threshold::AtLeast(2), Threshold::AtLeast(2), OnNoQuorum::SuspendIo),
        QuorumConfig::default(),
    ]
}
