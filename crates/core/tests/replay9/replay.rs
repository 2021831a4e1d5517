//! Plays a recording to the core in the place of one of its nodes, and compares what both say.

use crate::bind::Bound;
use crate::copying::{Contents, Copying};
use crate::coverage::Played;
use crate::in_sync::InSync;
use crate::node::{Node, Start, Together};
use crate::recording::{Said, conversation};
use crate::starts::{first_bitmap, others_of, start_of};
use crate::tolerance::{
    answers_stability, is_hint, offers_comparison, request, says_the_same_again, tolerated, without_hints,
};
use std::collections::{BTreeSet, VecDeque};
use units::{Duration, Generation, Instant, NodeId, Sector, VolumeNr};
use urbd_core::{Command, ConnectionConfig, Copied, LinkDown, LinkUp, Replaced, RequestKind, ResourceConfig};
use wire::{ConnState, DpFlags, Features, Packet, PeerAck, Role, Socket, UuidFlags};

/// From a node to where the recording was made: what passes there crosses what comes the other way.
const ON_ITS_WAY: u64 = 25_000;

/// A recording, and which of its nodes is replaced.
pub(crate) struct Replay {
    said: VecDeque<Said>,
    pub(crate) node: Node,
    bound: Bound,
    /// What the recorded node says on each stream and has not been said by the core; that to the second peer behind
    /// that to the first.
    pub(crate) expected: [VecDeque<Said>; 2 * LANES],
    /// The first one that is marked when it begins.
    marked: Option<Sector>,
    /// What the core has said last, of each kind.
    last: Vec<(NodeId, VolumeNr, Packet)>,
    /// As the target of a resync.
    copying: Copying,
    pub(crate) now: Instant,
    /// The recorded nodes had been connected before, and say so; the core was not there.
    pub(crate) came_back: bool,
    pub(crate) in_sync: InSync,
    played: Played,
    /// Who has which writes, if the core says so in its own time.
    acks: VecDeque<Said>,
    acks_in_own_time: bool,
    /// How far the core's clock is ahead of the recording's.
    ahead: Duration,
    script: VecDeque<(Instant, Act)>,
    /// Who opens the device is promoted (`auto-promote`), and demoted when it is closed.
    pub(crate) auto: bool,
    /// What is to be written there waits since then for leave to begin.
    pub(crate) waits: Option<(Sector, Instant)>,
}

type Act = Box<dyn FnOnce(&mut Node, Instant)>;

/// So many are there towards a peer.
const LANES: usize = 7;

/// What is said in order. A ping comes on the other stream than most that is answered, and where a stream of writes is
/// that has not begun, or a bitmap, may be said before or after a state. Who passes a decision on says what follows
/// from it here before or after that. And when no Primary is there any more, the offer to compare comes before or after
/// what else has changed.
fn lane(own: NodeId, stream: Socket, packet: &Packet) -> usize {
    match (stream, packet) {
        (_, Packet::TwopcCommit(d) | Packet::TwopcAbort(d)) if d.transaction.initiator != own => 5,
        (_, packet) if offers_comparison(packet) => 6,
        (Socket::Control, Packet::PingAck) => 2,
        (Socket::Data, Packet::Dagtag(_)) => 3,
        (Socket::Data, Packet::Bitmap(_) | Packet::CompressedBitmap(_)) => 4,
        (Socket::Control, _) => 1,
        (Socket::Data, _) => 0,
    }
}

/// What is said from each connect on.
pub(crate) fn conversations(number: &str) -> Vec<Vec<Said>> {
    let mut all: Vec<Vec<Said>> = Vec::new();
    let mut begun = 0;
    for said in conversation(number) {
        // Both say that first.
        if matches!(said.packet, Packet::ConnectionFeatures(_)) {
            begun += 1;
            if begun % 2 == 1 {
                all.push(Vec::new());
            }
        }
        all.last_mut().expect("it begins with a connect").push(said);
    }
    all
}

impl Replay {
    /// A recording that begins with the connect.
    pub(crate) fn connect(number: &str, node: u8, change: impl Fn(&mut ConnectionConfig)) -> Replay {
        Replay::whole(conversation(number), node, change)
    }

    pub(crate) fn whole(said: Vec<Said>, node: u8, change: impl Fn(&mut ConnectionConfig)) -> Replay {
        Replay::with_disks(said, node, change, |_| {})
    }

    /// The same with disks that are in part other ones.
    pub(crate) fn with_disks(
        said: Vec<Said>,
        node: u8,
        change: impl Fn(&mut ConnectionConfig),
        disks: impl Fn(&mut Start),
    ) -> Replay {
        Replay::configured(said, node, |cfg| cfg.connections.iter_mut().for_each(&change), disks)
    }

    /// The same with options of the resource.
    pub(crate) fn configured(
        said: Vec<Said>,
        node: u8,
        change: impl FnOnce(&mut ResourceConfig),
        disks: impl Fn(&mut Start),
    ) -> Replay {
        let own = NodeId::new(node).unwrap();
        let mut volumes: Vec<VolumeNr> =
            said.iter().filter_map(|s| matches!(s.packet, Packet::Sizes(_)).then_some(s.volume)).collect();
        volumes.sort();
        volumes.dedup();
        let mut starts: Vec<_> = volumes.into_iter().map(|v| (v, start_of(&said, own, v))).collect();
        if starts.is_empty() {
            starts = crate::disk(&said, own, true, Sector(512));
        }
        starts.iter_mut().for_each(|(_, start)| disks(start));
        let begin = Instant(said[0].at.0 - 10_000_000);
        let node = Node::configured(&others_of(&said, own), own, &starts, begin, change);
        let marked = starts[0].1.marked.as_ref().and_then(|runs| runs.first());
        Replay { marked: marked.map(|(first, _)| Sector(first * 8)), ..Replay::of(said, node, begin) }
    }

    /// A recording of nodes that are connected already: they are brought there by two cores, of which one goes on with
    /// the recording. `prologue` is what both do before it begins.
    pub(crate) fn joined(
        number: &str,
        node: u8,
        start: impl Fn(&[Said], NodeId) -> Vec<(VolumeNr, Start)>,
        change: impl Fn(&mut ConnectionConfig),
        prologue: impl Fn(&mut Together),
    ) -> Replay {
        Replay::of_joined(conversation(number), node, start, change, prologue)
    }

    /// The same, of what a conversation begins with.
    pub(crate) fn of_joined(
        said: Vec<Said>,
        node: u8,
        start: impl Fn(&[Said], NodeId) -> Vec<(VolumeNr, Start)>,
        change: impl Fn(&mut ConnectionConfig),
        prologue: impl Fn(&mut Together),
    ) -> Replay {
        let begin = Instant(said[0].at.0 - 2_000_000_000);
        let nodes = said.iter().map(|s| s.from).max().expect("somebody says something").index() as u8 + 1;
        let mut pair = Together::of(nodes, begin, |node| start(&said, node), &change);
        prologue(&mut pair);
        let mut own = pair.leave(node);
        own.sent.clear();
        Replay::of(said, own, begin)
    }

    /// The client closes a bit after that, and not when the last write is known to be everywhere.
    pub(crate) fn close_early(&mut self) {
        let written = self.expected[0].iter().rfind(|s| request(&s.packet).is_some()).expect("there is a write");
        let (at, volume) = (written.at + Duration::from_millis(2), written.volume);
        self.script.push_back((at, Box::new(move |node, now| node.close(now, volume))));
        self.script.make_contiguous().sort_by_key(|(at, _)| *at);
    }

    fn of(said: Vec<Said>, node: Node, now: Instant) -> Replay {
        let mut node = node;
        let played = Played::of(&said, node.id);
        let (said, copying, expected, in_sync) = roles(said, &mut node);
        Replay {
            said,
            node,
            bound: Bound::default(),
            expected,
            marked: None,
            last: Vec::new(),
            copying,
            now,
            came_back: false,
            in_sync,
            played,
            acks: VecDeque::new(),
            acks_in_own_time: false,
            ahead: Duration(0),
            script: VecDeque::new(),
            auto: false,
            waits: None,
        }
    }

    /// What is played is this, of which some is said at other times.
    pub(crate) fn in_other_time(&mut self, said: &[Said]) {
        self.played = Played::of(said, self.node.id);
    }

    /// They have parted, and connect again: what they say then is `said`.
    pub(crate) fn again(&mut self, said: Vec<Said>) {
        let peer = self.node.peer;
        self.now = Instant(said[0].at.0 - 10_000_000) + self.ahead;
        self.node.pass(self.now);
        self.node.core.on_link_down(self.now, peer, LinkDown::Closed);
        self.node.turn(self.now);
        if !self.node.wants_link(self.now + Duration::from_secs(60)) {
            self.node.command(self.now, Command::Connect { peer, discard_my_data: false, tentative: false });
            self.node.turn(self.now);
        }
        self.compare();
        self.last.clear();
        self.in_sync.assert_same();
        self.played.go_on(&said);
        (self.said, self.copying, self.expected, self.in_sync) = roles(said, &mut self.node);
    }

    /// Who has accepted the control stream resolves conflicts.
    pub(crate) fn link_up(&mut self, resolve_conflicts: bool) {
        self.node.link_up(self.now, LinkUp { resolve_conflicts, challenge: [7; 64] });
        self.compare();
    }

    /// The recorded source answers in its own time.
    pub(crate) fn answer_in_time(&mut self) {
        self.copying.answer_in_time();
    }

    /// The core asks for more blocks than the recorded target, which hears first that it has them; and it has marked
    /// for a second source what is still to come from the first one.
    pub(crate) fn ask_more(&mut self) {
        self.copying.asks_more = true;
    }

    /// Links come up as in the recording: just before one of both ends says what it speaks.
    pub(crate) fn links_up(&mut self) {
        let own = self.node.id;
        let begins = |s: &&Said| matches!(s.packet, Packet::ConnectionFeatures(_));
        let both = self.expected.iter().flatten().chain(&self.said).filter(begins);
        let mut all: Vec<_> = both.map(|s| (if s.from == own { s.to } else { s.from }, s.at)).collect();
        all.sort();
        for ends in all.chunks(2) {
            let (peer, at) = ends[0];
            let link = LinkUp { resolve_conflicts: own > peer, challenge: [own.index() as u8; 64] };
            let up: Act = Box::new(move |node, now| {
                node.connect_if_alone(now, peer);
                node.link_up_to(now, peer, link);
            });
            self.script.push_back((Instant(at.0 - ON_ITS_WAY), up));
        }
        self.script.make_contiguous().sort_by_key(|(at, _)| *at);
        self.begin_in_time();
    }

    /// A kernel takes some milliseconds before it begins the transaction that is to connect it, and may write
    /// meanwhile; the core begins at once when it has heard what the peer is. It hears that later.
    fn begin_in_time(&mut self) {
        let connects = |s: &&Said| match &s.packet {
            Packet::TwopcPrepare(p) if p.change.conn == Some(ConnState::WFReportParams) => {
                p.transaction.target == Some(s.to) && p.transaction.initiator == s.from
            }
            _ => false,
        };
        let begun: Vec<_> = self.expected.iter().flatten().filter(connects).map(|s| (s.to, s.at)).collect();
        for said in self.said.iter_mut().filter(|s| matches!(s.packet, Packet::Protocol(_))) {
            let answers = begun.iter().filter(|(peer, at)| *peer == said.from && *at > said.at);
            if let Some(first) = answers.map(|(_, at)| *at).min() {
                said.at = said.at.max(Instant(first.0 - 2 * ON_ITS_WAY));
            }
        }
        self.said.make_contiguous().sort_by_key(|s| s.at);
    }

    /// The link to a peer is lost so long after the recording begins.
    pub(crate) fn lose(&mut self, peer: u8, after: Duration) {
        let (peer, at) = (NodeId::new(peer).unwrap(), self.said[0].at + after);
        let lose: Act = Box::new(move |node, now| node.core.on_link_down(now, peer, urbd_core::LinkDown::Closed));
        self.script.push_back((at, lose));
    }

    /// Does something that no packet shows, so long after the recording begins.
    pub(crate) fn act_at(&mut self, after: Duration, act: impl FnOnce(&mut Node, Instant) + 'static) {
        let first = self.expected.iter().flatten().chain(&self.said).map(|s| s.at).min();
        self.act(first.expect("somebody says something") + after, act);
    }

    /// The same at a time of the recording.
    pub(crate) fn act(&mut self, at: Instant, act: impl FnOnce(&mut Node, Instant) + 'static) {
        self.script.push_back((at, Box::new(act)));
        self.script.make_contiguous().sort_by_key(|(at, _)| *at);
    }

    /// With what the recorded nodes have hashed: the challenge, and who answers it. `same`: the peer has our secret.
    pub(crate) fn link_up_with_secret(&mut self, resolve_conflicts: bool, same: bool) {
        let (own, peer) = (self.node.id, self.node.peer);
        let ours: Vec<_> = self.expected[0].iter().map(|s| s.packet.clone()).collect();
        let theirs: Vec<_> = self.said.iter().map(|s| s.packet.clone()).collect();
        let bytes = |all: &[Packet], answer: bool| {
            let found = all.iter().find_map(|p| match p {
                Packet::AuthChallenge(bytes) if !answer => Some(bytes.as_slice().to_vec()),
                Packet::AuthResponse(bytes) if answer => Some(bytes.as_slice().to_vec()),
                _ => None,
            });
            found.expect("both authenticate")
        };
        let salted = |challenge: Vec<u8>, node: NodeId| [challenge, vec![0, 0, 0, node.index() as u8]].concat();
        self.node.hashes = vec![
            (salted(bytes(&theirs, false), own), bytes(&ours, true)),
            (salted(bytes(&ours, false), peer), if same { bytes(&theirs, true) } else { vec![0; 20] }),
        ];
        let challenge = bytes(&ours, false).try_into().expect("64 bytes");
        self.node.link_up(self.now, LinkUp { resolve_conflicts, challenge });
        self.compare();
    }

    /// The core does what the recorded node was told to, from the connect on (see [`Replay::link_up`]).
    pub(crate) fn live(&mut self, resolve_conflicts: bool) {
        self.follow();
        self.link_up(resolve_conflicts);
        self.play();
    }

    /// The core is told to do what the recorded node was told to, as its packets show.
    pub(crate) fn follow(&mut self) {
        let mut written = BTreeSet::new();
        let begins = self.generations_begun();
        let (mut paused, mut detaches, mut last_write, mut rises) = (false, false, Instant(0), false);
        // What is said to all is said to the first one, too; some is said to the second one only.
        let first = self.expected[..LANES].iter().flatten().cloned().collect::<Vec<_>>();
        let (mut asked, own) = (BTreeSet::new(), self.node.id);
        let mut asks = |said: &Said| match &said.packet {
            Packet::TwopcPrepare(p) => p.transaction.initiator == own && asked.insert(p.transaction.tid),
            Packet::TwopcPrepRsz(p) => p.transaction.initiator == own && asked.insert(p.transaction.tid),
            Packet::PeerAck(_) => true,
            packet => said.to == self.node.peer || request(packet).is_some() && !self.is_said_to_first(said),
        };
        let all = first.iter().chain(self.expected[LANES..].iter().flatten());
        for said in all.filter(|said| asks(said)).cloned().collect::<Vec<_>>() {
            let command = |c: Command| -> Act { Box::new(move |node, now| node.command(now, c)) };
            match &said.packet {
                Packet::TwopcPrepare(p) => {
                    let peer = self.node.peer;
                    let volume = said.volume;
                    detaches |= p.change.disk == Some(wire::DiskState::Detaching);
                    let wish = match (p.change.role, p.change.conn) {
                        (_, Some(ConnState::Disconnecting)) => {
                            Command::Disconnect { peer: p.transaction.target.unwrap_or(peer), force: false }
                        }
                        (_, Some(ConnState::VerifyS)) => Command::Verify {
                            volume,
                            peer: p.transaction.target,
                            start: None,
                            stop: None,
                            repair: false,
                        },
                        (_, Some(ConnState::StartingSyncT)) => Command::invalidate(volume),
                        (_, Some(ConnState::WFBitMapT)) => {
                            Command::Replace(volume, Replaced::Own { source: None }, Copied::Marked)
                        }
                        (_, Some(ConnState::StartingSyncS)) => Command::invalidate_remote(volume, peer),
                        (None, None) if p.change.disk == Some(wire::DiskState::Detaching) => {
                            Command::Detach { volume, force: false }
                        }
                        (None, None) if p.change.disk == Some(wire::DiskState::Negotiating) => {
                            Command::Attach { volume }
                        }
                        (Some(Role::Primary), None) => {
                            Command::Primary { force: p.change.disk == Some(wire::DiskState::UpToDate) }
                        }
                        (Some(Role::Secondary), None) if self.auto => {
                            let close: Act = Box::new(move |node, now| {
                                node.close(now, crate::VOLUME);
                                node.command(now, Command::Secondary { force: false });
                            });
                            self.script.push_back((Instant(said.at.0 - ON_ITS_WAY), close));
                            continue;
                        }
                        (Some(Role::Secondary), None) => Command::Secondary { force: false },
                        // That it connects goes without saying.
                        _ => continue,
                    };
                    rises |= matches!(wish, Command::Primary { .. });
                    let begins = self.asked_before(said.at).filter(|_| matches!(wish, Command::Primary { .. }));
                    let then = begins.map_or(said.at.0 - 600_000, |asked| asked.0 - ON_ITS_WAY);
                    self.script.push_back((Instant(then), command(wish)));
                }
                Packet::TwopcPrepRsz(p) => {
                    let (volume, limit, flags) = (said.volume, p.user_size, p.flags);
                    let resize: Act = Box::new(move |node, now| node.resize(now, volume, limit, flags));
                    self.script.push_back((Instant(said.at.0 - 600_000), resize));
                }
                Packet::Uuids110(u) if u.flags.contains(UuidFlags::SKIP_INITIAL_SYNC) => {
                    let wish = Command::NewCurrentUuid { volume: said.volume, clear_bitmap: true };
                    self.script.push_back((Instant(said.at.0 - ON_ITS_WAY), command(wish)));
                }
                Packet::State(word) if word.user_isp != paused => {
                    paused = word.user_isp;
                    let volume = said.volume;
                    let wish = if paused { Command::PauseSync { volume } } else { Command::ResumeSync { volume } };
                    self.script.push_back((Instant(said.at.0 - ON_ITS_WAY), command(wish)));
                }
                // By force, without asking anybody.
                Packet::State(word) if word.disk == wire::DiskState::Detaching && !detaches => {
                    detaches = true;
                    let wish = Command::Detach { volume: said.volume, force: true };
                    self.script.push_back((Instant(said.at.0 - ON_ITS_WAY), command(wish)));
                }
                Packet::PeerAck(_) => {
                    let volumes = written.clone();
                    let close: Act = Box::new(move |node, now| volumes.iter().for_each(|v| node.close(now, *v)));
                    self.script.push_back((said.at + Duration(1_500_000), close));
                }
                packet => {
                    let Some((kind, sector, len)) = request(packet) else { continue };
                    // Before the first one, also of a generation or of a time as Primary, the node asks whether the
                    // peer is there.
                    let begins = begins.iter().any(|at| is_just_before(*at, said.at) && *at > last_write);
                    let first = written.insert(said.volume) | begins | std::mem::take(&mut rises);
                    last_write = said.at;
                    let asked = self.asked_before(said.at).filter(|_| first);
                    let then = Instant(asked.unwrap_or(self.first_sent(&said)).0 - ON_ITS_WAY);
                    let then = self.waits.filter(|(at, _)| *at == sector).map_or(then, |(_, since)| since);
                    let volume = said.volume;
                    let write: Act = Box::new(move |node, now| node.write(now, volume, kind, sector, len));
                    self.script.push_back((then, write));
                }
            }
        }
        self.script.make_contiguous().sort_by_key(|(at, _)| *at);
    }

    /// When the recorded node tells the first peer that it has begun a generation.
    fn generations_begun(&self) -> Vec<Instant> {
        let begins = |s: &&Said| matches!(&s.packet, Packet::Uuids110(u) if u.flags.contains(UuidFlags::NEW_DATAGEN));
        self.expected.iter().flatten().filter(begins).map(|s| s.at).collect()
    }

    /// When the recording begins the recorded nodes are of this generation.
    pub(crate) fn begin_with(&mut self, theirs: Generation) {
        let ours = self.node.core.generations(VolumeNr(0)).expect("a disk")[0];
        self.bound.begin_with(theirs, ours);
    }

    /// The recorded node has not written anything before.
    pub(crate) fn write_from_the_start(&mut self) {
        self.bound.write_from_the_start();
    }

    /// Is what is said to the second peer said to the first one as well?
    fn is_said_to_first(&self, said: &Said) -> bool {
        let near = |s: &Said| s.at.since(said.at).max(said.at.since(s.at)) < Duration::from_millis(20);
        self.expected[..LANES].iter().flatten().any(|s| request(&s.packet) == request(&said.packet) && near(s))
    }

    /// When what is sent to both peers was sent to one.
    fn first_sent(&self, said: &Said) -> Instant {
        let same = |s: &&Said| request(&s.packet) == request(&said.packet);
        let near = |s: &&Said| s.at.since(said.at).max(said.at.since(s.at)) < Duration::from_millis(20);
        let other = self.expected[LANES..].iter().flatten().find(|s| same(s) && near(s));
        other.map_or(said.at, |other| other.at.min(said.at))
    }

    /// When the first peer, or else the second one, was asked whether it is there, just before that time.
    fn asked_before(&self, then: Instant) -> Option<Instant> {
        let is_before = |s: &&Said| s.packet == Packet::Ping && s.at < then;
        let ping = |lane: usize| self.expected[lane].iter().rfind(is_before);
        let near = |s: &&Said| then.since(s.at) < Duration::from_millis(30);
        let pings = ping(1).filter(near).or_else(|| ping(LANES + 1));
        pings.map(|s| s.at).filter(|at| then.since(*at) < Duration::from_millis(30))
    }

    /// Blocks that are written while no peer gets them: what the first bitmap says, just before a generation begins.
    pub(crate) fn write_alone(&mut self) {
        let own = self.node.id;
        let all: Vec<Said> = self.expected.iter().flatten().cloned().collect();
        let begins = |s: &&Said| matches!(&s.packet, Packet::Uuids110(u) if u.flags.contains(UuidFlags::NEW_DATAGEN));
        let Some(told) = all.iter().find(begins) else { return };
        let runs = first_bitmap(&all, own, told.volume, Sector(256)).expect("a bitmap");
        for (from, to) in runs {
            let volume = told.volume;
            let write: Act = Box::new(move |node, now| {
                let kind = RequestKind::Write { fua: false };
                node.write(now, volume, kind, Sector(from * 8), (to - from) as u32 * 4096);
            });
            self.script.push_back((Instant(told.at.0 - 500_000), write));
        }
        self.script.make_contiguous().sort_by_key(|(at, _)| *at);
    }

    /// The peer has said before the recording where its stream of writes is: a verify asks with that position.
    pub(crate) fn hear_position_of_verify(&mut self) {
        let told = |s: &Said| if let Packet::OvDagtagReq(r) = &s.packet { Some(r.dagtag) } else { None };
        let at = self.said.iter().find_map(told).expect("a verify");
        self.hear_position_at(at);
    }

    /// The peer has said this before the recording.
    pub(crate) fn hear_position_at(&mut self, at: wire::Dagtag) {
        self.node.hear(self.now, Socket::Data, VolumeNr::NONE, Packet::Dagtag(at));
    }

    /// The peer has said before the recording where its stream of writes is.
    pub(crate) fn hear_position(&mut self) {
        let writer = self.said.iter().find(|s| request(&s.packet).is_some()).expect("there is a write").from;
        let of_writer = || self.said.iter().filter(|s| s.from == writer);
        let sizes = of_writer().filter_map(|s| request(&s.packet).map(|(_, _, len)| u64::from(len) / 512));
        let tags: Vec<u64> = sizes
            .scan(0, |at, n| {
                *at += n;
                Some(*at)
            })
            .collect();
        let acks: Vec<u64> = of_writer()
            .filter_map(|s| if let Packet::PeerAck(a) = &s.packet { Some(a.dagtag.0) } else { None })
            .collect();
        let fits = |start: &u64| acks.iter().all(|ack| tags.contains(&(ack - start)));
        let start = tags.iter().filter_map(|tag| acks[0].checked_sub(*tag)).find(fits).expect("acks are of writes");
        let begins = Packet::Dagtag(wire::Dagtag(start));
        self.node.hear_from(writer, self.now, Socket::Data, VolumeNr::NONE, begins);
    }

    /// The core says in its own time who has which writes.
    pub(crate) fn acknowledge_in_own_time(&mut self) {
        self.acks_in_own_time = true;
        for lane in &mut self.expected {
            let (acks, rest): (Vec<_>, Vec<_>) =
                std::mem::take(lane).into_iter().partition(|s| matches!(s.packet, Packet::PeerAck(_)));
            *lane = rest.into();
            self.acks.extend(acks);
        }
    }

    /// It says of writes who has them: what is recorded of those, or of some that follow.
    fn acknowledge(&mut self, ours: &PeerAck) {
        let of = |s: &Said| if let Packet::PeerAck(ack) = &s.packet { *ack } else { panic!("an ack") };
        while self.acks.front().is_some_and(|s| self.bound.is_before(&of(s), ours)) {
            self.acks.pop_front();
        }
        let theirs = self.acks.front().map(of).expect("the recorded node says who has them");
        assert_eq!(theirs.nodes, ours.nodes);
        if self.bound.translated(theirs.dagtag) == ours.dagtag {
            self.acks.pop_front();
        }
    }

    /// Until the end.
    pub(crate) fn play(&mut self) {
        while let Some(said) = self.said.pop_front() {
            self.act_until(said.at);
            self.now = said.at + self.ahead;
            self.node.pass(self.now);
            self.compare();
            self.wait_for_question(said.from, &said.packet);
            let answers = self.copying.is_answer(said.from, &said.packet);
            self.answer();
            if answers {
                continue;
            }
            self.bound.learn(&said.packet);
            let packet = self.bound.translate(&said.packet);
            self.node.hear_from(said.from, self.now, said.stream, said.volume, packet);
            self.compare();
        }
        let end = self.script.back().map_or(self.now, |(at, _)| self.now.max(*at)) + Duration::from_millis(1);
        self.act_until(end);
        self.now = end + self.ahead;
        self.node.pass(self.now);
        self.compare();
        self.copying.assert_over();
        self.in_sync.assert_same();
        let may_stay = |p: &Packet| *p == Packet::Ping || answers_stability(p);
        let left: Vec<_> =
            self.expected.iter().flatten().chain(&self.acks).map(|s| &s.packet).filter(|p| !may_stay(p)).collect();
        assert!(left.is_empty(), "not said: {left:#?}\n{:#?}", self.node.notes);
        self.played.over = true;
    }

    /// The core says that an epoch is over, and answers a target, in its own time: the answer does not come before.
    fn wait_for_question(&mut self, peer: NodeId, answer: &Packet) {
        let question = |said: &Packet| match (answer, said) {
            (Packet::BarrierAck(ack), Packet::Barrier(epoch)) => ack.barrier == *epoch,
            (Packet::FlushRequestsAck(ack), Packet::FlushRequests(sequence)) => ack.sequence == *sequence,
            (Packet::RsWriteAck(ack), Packet::RsDataReply(data)) => {
                [(ack.sector, ack.block_id)] == [(data.sector, data.block_id)]
            }
            _ => false,
        };
        let patience = self.now + Duration::from_secs(60);
        let lane = behind(&self.node, peer);
        while self.expected[lane].iter().any(|said| question(&said.packet)) {
            assert!(self.now < patience, "nothing that {answer:?} answers: {:#?}", self.node.notes);
            let then = self
                .node
                .next()
                .unwrap_or_else(|| panic!("nothing that {answer:?} answers: {:#?}", self.node.notes))
                .max(self.now);
            self.ahead = self.ahead + then.since(self.now);
            self.now = then;
            self.node.pass(self.now);
            self.compare();
            self.answer();
        }
    }

    /// The source answers a target.
    fn answer(&mut self) {
        while self.copying.answers_now() {
            let Some((source, packet)) = self.copying.next_answer() else { break };
            let told = matches!(packet, Packet::RsIsInSync(_) | Packet::NegRsDreply(_) | Packet::RsCancel(_));
            let stream = if told { Socket::Control } else { Socket::Data };
            self.node.hear_from(source, self.now, stream, VolumeNr(0), packet);
            self.compare();
        }
    }

    /// A node is Primary when the recording begins, and has written what is marked.
    pub(crate) fn primary(&mut self, node: u8) {
        if self.node.peer.index() == usize::from(node) {
            return;
        }
        self.node.command(self.now, Command::Primary { force: false });
        self.node.turn(self.now);
        let Some(sector) = self.marked else { return };
        self.node.write(self.now, VolumeNr(0), RequestKind::Write { fua: false }, sector, 4096);
        self.node.turn(self.now);
        self.now = self.now + Duration::from_millis(1);
        self.node.pass(self.now);
    }

    fn act_until(&mut self, until: Instant) {
        while self.script.front().is_some_and(|(at, _)| *at <= until) {
            let Some((at, act)) = self.script.pop_front() else { break };
            let at = at + self.ahead;
            self.now = at;
            self.node.pass(at);
            self.compare();
            act(&mut self.node, at);
            self.node.turn(at);
            self.compare();
        }
    }

    /// What the core has said is what the recorded node said.
    fn compare(&mut self) {
        while let Some(sent) = self.node.sent.pop_front() {
            if is_hint(&sent.packet) || says_the_same_again(&mut self.last, sent.peer, sent.volume, &sent.packet) {
                continue;
            }
            if let (Packet::PeerAck(ours), true) = (&sent.packet, self.acks_in_own_time) {
                self.acknowledge(ours);
                continue;
            }
            if self.copying.takes(sent.peer, &sent.packet) || self.in_sync.says(sent.peer, sent.volume, &sent.packet) {
                continue;
            }
            let lane =
                &mut self.expected[behind(&self.node, sent.peer) + lane(self.node.id, sent.stream, &sent.packet)];
            if answers_stability(&sent.packet) && !lane.front().is_some_and(|said| answers_stability(&said.packet)) {
                continue;
            }
            if !answers_stability(&sent.packet) && lane.front().is_some_and(|said| answers_stability(&said.packet)) {
                lane.pop_front();
            }
            // The recorded node may have asked more often whether the peer is there.
            while sent.packet != Packet::Ping && lane.front().is_some_and(|said| said.packet == Packet::Ping) {
                lane.pop_front();
            }
            // Or told at two times who has what.
            while let (Packet::PeerAck(ours), Some(Packet::PeerAck(theirs))) =
                (&sent.packet, lane.front().map(|s| &s.packet))
            {
                if !self.bound.is_before(theirs, ours) {
                    break;
                }
                lane.pop_front();
            }
            // Or later. A disk answers requests in any order. And an epoch may be over before or after what is no
            // write.
            let fits = |said: &Said| match &sent.packet {
                Packet::Ping => said.packet == Packet::Ping,
                Packet::Barrier(_) => matches!(said.packet, Packet::Barrier(_)) || request(&said.packet).is_some(),
                Packet::RsDataReply(ours) => match &said.packet {
                    Packet::RsDataReply(theirs) => theirs.block_id == ours.block_id && theirs.sector == ours.sector,
                    _ => false,
                },
                _ => true,
            };
            let next = lane.iter().position(fits);
            if sent.packet == Packet::Ping && next.is_none() {
                continue;
            }
            let Some(said) = next.and_then(|n| lane.remove(n)) else {
                panic!("not recorded: {sent:?}\n{:#?}", self.node.notes);
            };
            let mut recorded = self.bound.unify(&said.packet, &sent.packet);
            if let (Packet::Uuids110(u), true) = (&mut recorded, self.came_back) {
                u.flags = UuidFlags(u.flags.0 & !UuidFlags::RECONNECT.0);
            }
            if let Packet::Data(w) = &mut recorded
                && !self.node.resyncs(sent.peer)
            {
                // A kernel needs a moment to see that a resync is over.
                w.flags = DpFlags(w.flags.0 & !DpFlags::MAY_SET_IN_SYNC.0);
            }
            let (recorded, mut ours) = tolerated(recorded, sent);
            if let (Packet::CompressedBitmap(less), Packet::CompressedBitmap(more), true) =
                (&recorded, &mut ours.packet, self.copying.asks_more)
            {
                more.clone_from(less);
            }
            assert_eq!(ours.packet, recorded, "at {:?}\n{:#?}", said.at, self.node.notes);
            assert_eq!(ours.volume, said.volume, "{recorded:?}");
        }
    }
}

fn is_just_before(then: Instant, at: Instant) -> bool {
    then <= at && at.since(then) < Duration::from_millis(2)
}

/// What the others say, what the node asks a source for, and what it says else.
fn roles(said: Vec<Said>, node: &mut Node) -> (VecDeque<Said>, Copying, [VecDeque<Said>; 2 * LANES], InSync) {
    let own = node.id;
    node.peer = others_of(&said, own)[0];
    let (mut ours, mut theirs): (Vec<_>, Vec<_>) =
        said.into_iter().filter(|s| s.from == own || s.to == own).partition(|s| s.from == own);
    agree_on_what_was_offered(&ours, &mut theirs);
    node.contents = Contents::of(&ours, &theirs);
    let copying = Copying::of(&mut ours, &theirs, own);
    let mut in_sync = InSync::default();
    ours.retain(|said| !in_sync.record(said));
    let mut expected = [const { VecDeque::new() }; 2 * LANES];
    for said in without_hints(ours) {
        expected[behind(node, said.to) + lane(own, said.stream, &said.packet)].push_back(said);
    }
    (theirs.into(), copying, expected, in_sync)
}

/// An older release does not offer what the core does: its peer offers no more than that, so that they agree on as
/// much.
fn agree_on_what_was_offered(ours: &[Said], theirs: &mut [Said]) {
    let offer = |s: &Said| if let Packet::ConnectionFeatures(f) = &s.packet { Some(f.features) } else { None };
    let Some(offered) = ours.iter().find_map(offer) else { return };
    for said in theirs {
        if let Packet::ConnectionFeatures(f) = &mut said.packet {
            f.features = Features(f.features.0 & offered.0);
        }
    }
}

/// Where the lanes towards a peer begin.
fn behind(node: &Node, peer: NodeId) -> usize {
    if peer == node.peer { 0 } else { LANES }
}
