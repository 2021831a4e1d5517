//! What a single loss would do, foretold from what one node knows (`urbd what-if`). Nothing that acts calls it.
//!
//! Purpose: give the rules that a node decides by, [`successor`] with the votes in it, the loss of a node, a
//! link or a disk, and say what the state that follows means: who keeps quorum, what applications get, how many good
//! copies are within reach, who may be promoted. Of another node its state is imagined from what this one was told of
//! it, and the same rules are asked.
//!
//! Must never: have a rule of its own, or say more than this node can know. Whether two others see each other it does
//! not know: both is tried, and where the answers differ that is what is said ([`Answer`]).

use super::quorum::{Known, OnNoQuorum, Part, Standing, Tally, Verdict, Voter};
use super::rules::successor;
use super::state::SuspendReasons;
use super::state::{ConnectionState as N, PairState, Paused, PeerState, Replication, State, VolumeState};
use super::view::{Facts, Kind, PairFacts, PeerFacts, VolumeFacts, lacks_data, speaks9};
use super::votes::count_votes;
use super::{DiskState as D, Role, StateChangeResult as Code};
use crate::config::OnNoData;
use crate::decide::change::{Change, Set};
use units::{NodeId, NodeMask, VolumeNr};

#[cfg(test)]
mod tests;

/// What is lost, one thing at a time.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum Loss {
    /// Nothing: how things are.
    Nothing,
    /// A peer's machine or process: nobody hears of it any more.
    Peer(NodeId),
    /// The link to a peer, which lives on.
    Link(NodeId),
    /// A peer's disk of a volume: the node goes on without it.
    PeerDisk(NodeId),
    /// This node's disk of a volume.
    OwnDisk,
    /// This node, without a word to anybody.
    ThisNode,
    /// This node leaves in order (`down`): the others know that it is not promoted.
    Leaves,
    /// A peer leaves in order, or is left (`disconnect`).
    PeerLeaves(NodeId),
}

/// An answer, as far as this node can know.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum Answer {
    /// Yes.
    Yes,
    /// No.
    No,
    /// If the nodes that are left see each other; else not.
    IfTheyMeet,
    /// This node cannot know.
    NotKnown,
}

impl Answer {
    /// If the others see each other, and if none does.
    fn of(meet: Option<bool>, apart: Option<bool>) -> Answer {
        match (meet, apart) {
            (Some(true), Some(true)) => Answer::Yes,
            (Some(false), Some(false)) => Answer::No,
            (Some(true), Some(false)) => Answer::IfTheyMeet,
            _ => Answer::NotKnown,
        }
    }
}

/// What applications get of a Primary.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Io {
    /// They are served.
    GoesOn,
    /// They wait, for these reasons.
    Freezes(SuspendReasons),
    /// They get errors: there is no quorum, or no data, and the options want that.
    Fails,
    /// They read, and their writes get errors: among several nodes of 9's dialect a Primary does not write to a bad
    /// copy of its own.
    WritesFail,
}

/// A node after the loss.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Outlook {
    /// The votes as it counts them at first; who is known to have no quorum does not count a moment later. `None`:
    /// quorum is not asked for, or who is within reach then is not known.
    pub votes: Option<Tally>,
    /// May it write, as far as quorum is concerned? Yes, where that is not asked for.
    pub quorum: Answer,
    /// Does it serve its applications? Of a Secondary, which has none, whether they would be served.
    pub serves: Answer,
    /// What its applications get. `None`: it is not Primary, or that is not known.
    pub io: Option<Io>,
    /// Good copies that it reaches, its own among them, at least and at most.
    pub good: (u32, u32),
    /// Is it Primary now?
    pub primary: bool,
    /// Is it Primary, or may it be promoted without force?
    pub rises: Answer,
}

/// What a loss does to a volume.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Foretold {
    /// What is lost.
    pub loss: Loss,
    /// The volume.
    pub volume: VolumeNr,
    /// This node. `None`: it is what is lost.
    pub here: Option<Outlook>,
    /// The other nodes that are connected now, and live on.
    pub others: Vec<(NodeId, Outlook)>,
}

/// Every single loss that there can be, node by node, each for every volume that it concerns.
#[must_use]
pub fn every_loss(state: &State, facts: &Facts, own: NodeId) -> Vec<Foretold> {
    let connected = state.peers.ids().filter(|peer| state.is_connected(*peer));
    let of_peers = connected.flat_map(|peer| [Loss::Peer(peer), Loss::Link(peer), Loss::PeerDisk(peer)]);
    let losses = std::iter::once(Loss::Nothing).chain(of_peers).chain([Loss::OwnDisk, Loss::ThisNode]);
    losses.flat_map(|loss| foretold(state, facts, own, loss)).collect()
}

/// What this loss does to each volume that it concerns.
#[must_use]
pub fn foretold(state: &State, facts: &Facts, own: NodeId, loss: Loss) -> Vec<Foretold> {
    let concerned = |volume: &VolumeNr| match loss {
        Loss::OwnDisk => state.disk(*volume) > D::Attaching,
        Loss::PeerDisk(peer) => state.replicates(peer, *volume) && state.peer_disk(peer, *volume) > D::Attaching,
        _ => true,
    };
    state
        .volumes
        .ids()
        .filter(concerned)
        .map(|volume| Foreseen { own, state, facts, loss, volume }.foretell())
        .collect()
}

/// What this node does not know of the others.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Guess {
    /// They see each other.
    meet: bool,
    /// What they know of who is away.
    away: Away,
}

/// What others know of who is away.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Away {
    /// The same as this node, and what they have told of their quorum holds.
    AsHere,
    /// Nothing.
    Unknown,
    /// Its copy is old.
    Outdated,
}

impl Guess {
    const MEET: [Guess; 3] =
        [Guess::of(true, Away::AsHere), Guess::of(true, Away::Unknown), Guess::of(true, Away::Outdated)];
    const APART: [Guess; 3] =
        [Guess::of(false, Away::AsHere), Guess::of(false, Away::Unknown), Guess::of(false, Away::Outdated)];

    const fn of(meet: bool, away: Away) -> Guess {
        Guess { meet, away }
    }

    /// Do they know what this node knows?
    fn knows(self) -> bool {
        self.away == Away::AsHere
    }

    /// What a peer knows of a volume.
    fn volume(self, known: VolumeFacts) -> VolumeFacts {
        let outdated = if self.knows() { known.unconfigured_outdated } else { NodeMask::default() };
        VolumeFacts { open: false, unconfigured_outdated: outdated, ..known }
    }

    /// What a peer knows of a third node.
    fn peer(self, known: &PeerFacts) -> PeerFacts {
        let pair = |(v, pair): (VolumeNr, &PairFacts)| match pair.voter.known {
            Known::Outdated if !self.knows() => {
                (v, PairFacts { voter: Voter { known: Known::Yes, ..pair.voter }, ..*pair })
            }
            _ => (v, *pair),
        };
        PeerFacts { volumes: known.volumes.iter().map(pair).collect(), ..known.clone() }
    }
}

/// One node's knowledge, and a loss.
#[derive(Clone, Copy)]
struct Foreseen<'a> {
    own: NodeId,
    state: &'a State,
    facts: &'a Facts,
    loss: Loss,
    volume: VolumeNr,
}

impl Foreseen<'_> {
    fn foretell(&self) -> Foretold {
        let lives_on = |peer: &NodeId| self.state.is_connected(*peer) && self.loss != Loss::Peer(*peer);
        let others = self.state.peers.ids().filter(lives_on).filter_map(|peer| Some((peer, self.of_peer(peer)?)));
        let gone = matches!(self.loss, Loss::ThisNode | Loss::Leaves);
        Foretold { loss: self.loss, volume: self.volume, here: (!gone).then(|| self.here()), others: others.collect() }
    }

    /// This node.
    fn here(&self) -> Outlook {
        let of = |guesses: [Guess; 3]| {
            guesses.iter().flat_map(|guess| self.ends(*guess)).map(|end| self.judge(&end)).collect::<Vec<_>>()
        };
        merged(&of(Guess::MEET), &of(Guess::APART))
    }

    /// A peer, as far as it has told this node of itself. `None`: the loss does not touch it.
    fn of_peer(&self, peer: NodeId) -> Option<Outlook> {
        let loss = match self.loss {
            Loss::Link(to) | Loss::PeerLeaves(to) if to != peer => return None,
            Loss::Link(_) => Loss::Link(self.own),
            Loss::PeerLeaves(_) => Loss::Leaves,
            Loss::PeerDisk(of) if of == peer => Loss::OwnDisk,
            Loss::OwnDisk => Loss::PeerDisk(self.own),
            Loss::ThisNode => Loss::Peer(self.own),
            Loss::Leaves => Loss::PeerLeaves(self.own),
            other => other,
        };
        if matches!(loss, Loss::Nothing | Loss::Leaves) {
            return None;
        }
        let of = |guess: &Guess| {
            let (state, facts) = &self.imagine(peer, *guess);
            let theirs = Foreseen { own: peer, state, facts, loss, volume: self.volume };
            theirs.ends(*guess).iter().map(|end| self.seen_from_here(peer, theirs.judge(end))).collect::<Vec<_>>()
        };
        let all = |guesses: [Guess; 3]| guesses.iter().flat_map(of).collect::<Vec<_>>();
        // Without metadata it may know less of who is away.
        let with_disk = self.state.peer_disk(peer, self.volume) > D::Attaching;
        let outlook = merged(&all(Guess::MEET), &all(Guess::APART));
        Some(Outlook { votes: outlook.votes.filter(|_| with_disk), ..outlook })
    }

    /// A transaction that promotes the peer comes to this node, too, which may know of other Primaries.
    fn seen_from_here(&self, peer: NodeId, judged: Judged) -> Judged {
        let asked = !matches!(self.loss, Loss::ThisNode | Loss::Leaves) && self.loss != Loss::Link(peer);
        let other = |p: NodeId| p != peer && self.loss != Loss::Peer(p);
        let primary = self.state.primary_peers().into_iter().any(other);
        let refused = asked && primary && !self.facts.peers[peer].two_primaries && !judged.primary;
        Judged { rises: if refused { Some(false) } else { judged.rises }, ..judged }
    }

    /// The states that the loss may lead to, as they are at that moment first.
    fn ends(&self, guess: Guess) -> Vec<End> {
        if self.loss == Loss::Nothing {
            return vec![End { lost: self.state.clone(), last: self.state.clone() }];
        }
        let Some(steps) = self.ways() else { return Vec::new() };
        let after =
            |state: &State, steps: &[Change]| steps.iter().fold(state.clone(), |s, step| self.step(&s, step.clone()));
        let lost = after(self.state, &steps);
        let mut ends = vec![self.settled(self.as_others_tell(&lost, guess, None))];
        if let [first, rest @ ..] = &steps[..]
            && !rest.is_empty()
        {
            // What others say of it may come between two steps.
            let early = self.as_others_tell(&after(self.state, std::slice::from_ref(first)), guess, None);
            ends.push(self.settled(self.as_others_tell(&after(&early, rest), guess, None)));
        }
        ends.extend(self.left_behind(&lost, guess));
        ends.extend(self.doubted(&lost, guess));
        let agreed: Vec<End> = ends.iter().filter_map(|end| self.agreed(end, guess)).collect();
        let mut ends: Vec<End> = ends.into_iter().map(|state| End { lost: state.clone(), last: state }).collect();
        match self.loss {
            // Others may reach it still, and count it.
            Loss::Link(_) if lost.peers.ids().any(|peer| lost.is_connected(peer)) => ends.extend(agreed),
            _ if !agreed.is_empty() => ends = agreed,
            _ => {}
        }
        ends
    }

    /// Those that are left agree on who they are, if any of them has quorum or this one is alone.
    fn agreed(&self, lost: &State, guess: Guess) -> Option<End> {
        let (Loss::Peer(gone) | Loss::Link(gone)) = self.loss else { return None };
        let quorate = |v: VolumeNr| lost.standing(v).is_quorate() || lost.pairs(v).any(|(_, pair)| pair.quorate);
        let alone = !lost.peers.ids().any(|peer| lost.is_connected(peer));
        let knows = self.facts.quorum.is_on() && (alone || lost.volumes.ids().all(quorate));
        let members = Set::Members(lost.may_be_online().without(NodeMask::of(gone)));
        let since = Foreseen { state: lost, ..*self };
        let last = |members: Set| since.as_others_tell(&self.step(lost, members.into()), guess, None);
        knows.then(|| End { lost: lost.clone(), last: last(members) })
    }

    /// The loss, step by step.
    fn ways(&self) -> Option<Vec<Change>> {
        let (state, volume) = (self.state, self.volume);
        let cut = |peer, connection| Change::from(Set::Connection(peer, connection));
        Some(match self.loss {
            Loss::Peer(peer) | Loss::Link(peer) => vec![cut(peer, N::NetworkFailure)],
            Loss::PeerLeaves(peer) => {
                let outdated = state.volumes.ids().map(|v| Set::PeerDisk(peer, v, D::Outdated));
                let members = state.may_be_online().without(NodeMask::of(peer));
                vec![outdated.fold(cut(peer, N::TearDown), Change::and).and(Set::Members(members))]
            }
            Loss::PeerDisk(peer) => [D::Failed, D::Diskless].map(|d| Set::PeerDisk(peer, volume, d).into()).to_vec(),
            Loss::OwnDisk => [D::Failed, D::Diskless].map(|disk| Set::Disk(volume, disk).into()).to_vec(),
            Loss::Nothing | Loss::ThisNode | Loss::Leaves => return None,
        })
    }

    /// A survivor of a Primary asks the others whether they see it still, and does not go on waiting.
    fn settled(&self, told: State) -> State {
        let doubts = |v: &VolumeNr| told.disk(*v) == D::Consistent && self.state.disk(*v) == D::UpToDate;
        self.step(&told, told.volumes.ids().filter(doubts).map(|v| Set::Disk(v, D::UpToDate)).collect())
    }

    /// A link to, or of, a Primary is cut, and a third node may see both its ends: the other end's copy is not the
    /// newest one any more.
    fn left_behind(&self, lost: &State, guess: Guess) -> Option<State> {
        let Loss::Link(peer) = self.loss else { return None };
        let of_9 = |peer: NodeId| lost.is_connected(peer) && speaks9(self.facts, peer);
        let primary = self.state.primary_peers().contains(peer);
        if !lost.peers.ids().any(of_9) || primary == lost.is_primary() {
            return None;
        }
        let outdated = |v: VolumeNr, disk: D| match primary {
            true => (disk >= D::Consistent).then_some(Set::Disk(v, D::Outdated)),
            false => Some(Set::PeerDisk(peer, v, D::Outdated)),
        };
        let sets = lost.volumes.ids().filter_map(|v| outdated(v, lost.disk(v))).collect();
        Some(self.as_others_tell(&self.step(lost, sets), guess, (!primary).then_some(peer)))
    }

    /// What becomes a fact; what is one already changes nothing.
    fn step(&self, state: &State, change: Change) -> State {
        successor(state, &change, Kind::Fact, self.facts).unwrap_or_else(|_| state.clone())
    }

    /// Without a disk a node has quorum by the word of those that have good ones: they say anew what they count.
    /// `outdated`: the node at the other end of a link that is cut has no good copy any more.
    fn as_others_tell(&self, lost: &State, guess: Guess, outdated: Option<NodeId>) -> State {
        if lost.disk(self.volume) > D::Attaching || !self.facts.quorum.is_on() {
            return lost.clone();
        }
        let told = lost.good_peers(self.volume).map(|peer| {
            let (mut state, facts) = Foreseen { state: lost, ..*self }.imagine(peer, guess);
            if let Loss::Link(other) = self.loss
                && state.replicates(other, self.volume)
            {
                let known = self.state.peer_disk(other, self.volume);
                state.pair_mut(other, self.volume).disk = outdated.map_or(known, |_| known.min(D::Outdated));
            }
            let before = self.imagine(peer, guess).0;
            let quorate = self.standing_of(&before, &state, &facts).is_quorate();
            Set::PeerQuorate(peer, self.volume, quorate)
        });
        self.step(lost, told.collect())
    }

    /// Those that it has quorum by may lose it for a moment, until they have agreed, and say so: then nothing decides a
    /// draw any more.
    fn doubted(&self, lost: &State, guess: Guess) -> Option<State> {
        let mut doubting = lost.clone();
        doubting.volumes[self.volume].standing = Standing::Lacks(self.facts.quorum.without());
        let without = lost.disk(self.volume) <= D::Attaching && self.facts.quorum.is_on();
        without.then(|| self.as_others_tell(&doubting, guess, None))
    }

    fn standing_of(&self, before: &State, after: &State, facts: &Facts) -> Standing {
        match count_votes(before, after, self.volume, facts).verdict {
            Verdict::Lacks => Standing::Lacks(facts.quorum.without()),
            _ => Standing::Has,
        }
    }

    /// A peer's state, and the facts beside it, as they are by a guess.
    fn imagine(&self, peer: NodeId, guess: Guess) -> (State, Facts) {
        let (state, facts) = (self.state, self.facts);
        let theirs = |v: VolumeNr| &facts.peers[peer].volumes[v].voter;
        let standing = |quorate: bool| match (facts.quorum.is_on(), quorate) {
            (false, _) => Standing::Unasked,
            (_, true) => Standing::Has,
            _ => Standing::Lacks(facts.quorum.without()),
        };
        let volume = |v: VolumeNr| {
            let pair = state.pair(peer, v);
            (v, VolumeState { disk: pair.disk, unused: false, standing: standing(pair.quorate && guess.knows()) })
        };
        let own_pair = |v: VolumeNr| {
            let (disk, quorate) = (state.disk(v), state.standing(v).is_quorate());
            (v, together(disk, state.role, quorate))
        };
        let me = PeerState {
            connection: N::Connected,
            unfenced: false,
            volumes: state.volumes.ids().map(own_pair).collect(),
        };
        let others = state.peers.iter().filter(|(other, _)| *other != peer);
        let others = others.map(|(other, of)| (other, self.imagine_other(other, of, guess)));
        let mut imagined = State {
            role: state.peers[peer].role(),
            lasting: SuspendReasons::default(),
            members: state.members,
            volumes: state.volumes.ids().map(volume).collect(),
            peers: others.chain([(self.own, me)]).collect(),
        };
        let volumes =
            facts.volumes.iter().map(|(v, known)| (v, guess.volume(VolumeFacts { part: theirs(v).part, ..*known })));
        let others =
            facts.peers.iter().filter(|(other, _)| *other != peer).map(|(other, known)| (other, guess.peer(known)));
        let me = PeerFacts {
            volumes: facts.volumes.iter().map(|(v, known)| (v, member(known.part))).collect(),
            ..facts.peers[peer].clone()
        };
        let imagined_facts = Facts {
            state_sent: false,
            holds_back: false,
            volumes: volumes.collect(),
            peers: others.chain([(self.own, me)]).collect(),
            ..facts.clone()
        };
        // What a node has told may be older than what it counts, that of one without a disk always.
        let count = |v: &VolumeNr| !guess.knows() || state.peer_disk(peer, *v) <= D::Attaching;
        for v in state.volumes.ids().filter(|v| facts.quorum.is_on() && count(v)) {
            let counted = count_votes(&imagined, &imagined, v, &imagined_facts).verdict != Verdict::Lacks;
            let told = state.pair(peer, v).quorate && guess.knows();
            imagined.volumes[v].standing = standing(counted || told);
        }
        (imagined, imagined_facts)
    }

    /// A third node, as a peer may see it.
    fn imagine_other(&self, other: NodeId, of: &PeerState, guess: Guess) -> PeerState {
        let reached = of.connection == N::Connected;
        let gone = self.loss == Loss::Peer(other) || self.loss == Loss::PeerLeaves(other);
        // This node does not reach it, and does not know that the others do not.
        let cut = self.loss == Loss::Link(other);
        let may = guess.meet && (cut || guess.away == Away::Unknown);
        let perhaps = may && !reached && !gone && self.state.may_be_online().contains(other);
        let pair = |(v, pair): (VolumeNr, &PairState)| {
            let seen = match (reached, perhaps) {
                (true, _) if guess.meet => together(pair.disk, pair.role, pair.quorate),
                (_, true) => together(D::UpToDate, Role::Unknown, false),
                (true, _) => PairState::UNKNOWN,
                _ if guess.knows() => PairState { replication: Replication::Off, ..*pair },
                _ if guess.away == Away::Outdated => PairState { disk: D::Outdated, ..PairState::UNKNOWN },
                _ => PairState::UNKNOWN,
            };
            (v, seen)
        };
        let connected = guess.meet && reached || perhaps;
        let connection = if connected { N::Connected } else { N::Connecting };
        PeerState { connection, unfenced: false, volumes: of.volumes.iter().map(pair).collect() }
    }

    fn judge(&self, end: &End) -> Judged {
        let End { lost, last: end } = end;
        let count = |of: &State| count_votes(self.state, of, self.volume, self.facts);
        let same = lost.standing(self.volume) == end.standing(self.volume);
        let votes = self
            .facts
            .quorum
            .is_on()
            .then(|| if same { count(lost) } else { count_votes(lost, end, self.volume, self.facts) });
        let quorate = end.standing(self.volume).is_quorate();
        let no_data = end.disk(self.volume) < D::UpToDate && end.good_peers(self.volume).next().is_none();
        let io = self.io(end);
        let own = u32::from(end.disk(self.volume) == D::UpToDate);
        Judged {
            votes,
            quorate,
            serves: quorate && !no_data && io.is_none_or(|io| io == Io::GoesOn),
            io,
            good: own + end.good_peers(self.volume).count() as u32,
            rises: self.rises(end),
            primary: end.is_primary(),
        }
    }

    /// Among several nodes of 9's dialect who is Primary does not write to a bad copy of its own
    /// (`Node::lacks_own_copy9`).
    fn in_mesh9(&self) -> bool {
        let older = |peer: NodeId| self.state.is_connected(peer) && !speaks9(self.facts, peer);
        self.facts.peers.len() > 1 && !self.facts.peers.ids().any(older)
    }

    fn io(&self, end: &State) -> Option<Io> {
        end.is_primary().then(|| {
            let no_quorum = end.standing(self.volume) == Standing::Lacks(OnNoQuorum::IoError);
            let no_data = lacks_data(end, self.volume) && self.facts.on_no_data == OnNoData::IoError;
            match () {
                () if end.is_frozen() => Io::Freezes(end.suspended()),
                () if no_quorum || no_data => Io::Fails,
                () if self.in_mesh9() && bad(end.disk(self.volume)) => Io::WritesFail,
                () => Io::GoesOn,
            }
        })
    }

    /// Would a wish to be Primary be granted? `None`: others decide, or a handler.
    fn rises(&self, end: &State) -> Option<bool> {
        if end.is_primary() {
            return Some(true);
        }
        // `Node::is_target9`
        let copied = |v: VolumeNr| end.pairs(v).any(|(_, pair)| pair.is_being_copied());
        let lacks_copy = |v: VolumeNr| bad(end.disk(v)) || copied(v);
        if self.in_mesh9() && end.volumes.ids().any(lacks_copy) {
            return Some(false);
        }
        // Who has lost the link to a Primary alone is refused by those who see it still, if there are any.
        let primary = |peer: NodeId| self.state.primary_peers().contains(peer);
        let others = end.peers.ids().any(|peer| end.is_connected(peer));
        let doubtful = matches!(self.loss, Loss::Link(peer) if primary(peer) && others);
        match successor(end, &Set::Role(Role::Primary).into(), Kind::Wish, self.facts) {
            Ok(_) if doubtful => None,
            Ok(_) => Some(true),
            Err(refusal) if refusal.code == Code::PrimaryNop => None,
            Err(_) => Some(false),
        }
    }
}

/// What a loss may lead to: at that moment, and when those that are left have agreed on who they are.
#[derive(Clone, PartialEq, Eq, Debug)]
struct End {
    lost: State,
    last: State,
}

/// One of the states that a loss may lead to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Judged {
    votes: Option<Tally>,
    quorate: bool,
    serves: bool,
    io: Option<Io>,
    good: u32,
    rises: Option<bool>,
    primary: bool,
}

/// What is the same in all of them; at least one of each.
fn merged(meet: &[Judged], apart: &[Judged]) -> Outlook {
    let all = || meet.iter().chain(apart);
    let first = meet[0];
    fn same<T: PartialEq + Copy>(mut of: impl Iterator<Item = T>) -> Option<T> {
        let first = of.next()?;
        of.all(|other| other == first).then_some(first)
    }
    let answer = |f: fn(&Judged) -> Option<bool>| {
        let [meet, apart] = [meet, apart].map(|ends| same(ends.iter().map(f)).flatten());
        Answer::of(meet, apart)
    };
    let quorum = answer(|j| Some(j.quorate));
    let seen = same(all().map(|j| j.votes.map(|votes| (votes.seen, votes.up_to_date)))).is_some();
    let known = matches!(quorum, Answer::Yes | Answer::No) && seen;
    Outlook {
        votes: first.votes.filter(|_| known),
        quorum,
        serves: answer(|j| Some(j.serves)),
        io: same(all().map(|j| j.io)).flatten(),
        good: all().fold((first.good, first.good), |(least, most), j| (least.min(j.good), most.max(j.good))),
        primary: first.primary,
        rises: answer(|j| j.rises),
    }
}

/// A volume of two that are connected, and between which nothing is copied.
fn together(disk: D, role: Role, quorate: bool) -> PairState {
    PairState { replication: Replication::Established, disk, role, paused: Paused::default(), quorate }
}

/// Is there a disk, and not a good copy on it?
fn bad(disk: D) -> bool {
    (D::Inconsistent..D::UpToDate).contains(&disk)
}

/// What is known of a node that is there.
fn member(part: Part) -> PairFacts {
    PairFacts {
        undecided: false,
        outdated_at_attach: false,
        bitmap_uuid_zero: false,
        serves: false,
        voter: Voter { known: Known::Yes, part },
    }
}
