//! Plays a recording to the core in the place of one of its nodes, and compares what both say.

use crate::bind::Bound;
use crate::node::{Node, Sent, Start, Together};
use crate::recording::{Said, conversation};
use std::collections::{BTreeSet, VecDeque};
use units::{Duration, Instant, NodeId, VolumeNr};
use urbd_core::{ConnectionConfig, LinkUp};
use wire::{DpFlags, Packet, QueueLimits, Socket};

/// A recording, and which of its nodes is replaced.
pub(crate) struct Replay {
    said: VecDeque<Said>,
    pub(crate) node: Node,
    bound: Bound,
    /// What the recorded node says on each stream and has not been said by the core.
    expected: [VecDeque<Said>; 4],
    pub(crate) now: Instant,
    /// How far the core's clock is ahead of the recording's.
    ahead: Duration,
    script: VecDeque<(Instant, Act)>,
}

type Act = Box<dyn FnOnce(&mut Node, Instant)>;

/// What is said in order. A ping comes on the other stream than most that is answered, and where a stream of writes is
/// that has not begun may be said before or after a state.
fn lane(stream: Socket, packet: &Packet) -> usize {
    match (stream, packet) {
        (Socket::Control, Packet::PingAck) => 2,
        (Socket::Data, Packet::Dagtag(_)) => 3,
        (Socket::Control, _) => 1,
        (Socket::Data, _) => 0,
    }
}

/// What the metadata of a node must have said at the start of a recording that shows how it connects.
pub(crate) fn start_of(said: &[Said], node: NodeId, volume: VolumeNr) -> Start {
    let mut own = said.iter().filter(|s| s.from == node && s.volume == volume).map(|s| &s.packet);
    let sizes = own.clone().find_map(|p| if let Packet::Sizes(s) = p { Some(**s) } else { None }).expect("P_SIZES");
    let uuids = own.clone().find_map(|p| if let Packet::Uuids110(u) = p { Some(u) } else { None }).expect("P_UUIDS110");
    let state = own.find_map(|p| if let Packet::State(s) = p { Some(*s) } else { None }).expect("P_STATE");
    Start {
        size: sizes.current_size,
        uuids: (**uuids).clone(),
        good: state.disk == wire::DiskState::UpToDate,
        discard: sizes.limits.is_some_and(|l| l.discard_enabled),
    }
}

impl Replay {
    /// A recording that begins with the connect.
    pub(crate) fn connect(number: &str, node: u8, change: impl Fn(&mut ConnectionConfig)) -> Replay {
        let said = conversation(number);
        let own = NodeId::new(node).unwrap();
        let mut volumes: Vec<VolumeNr> =
            said.iter().filter_map(|s| matches!(s.packet, Packet::Sizes(_)).then_some(s.volume)).collect();
        volumes.sort();
        volumes.dedup();
        let starts: Vec<_> = volumes.into_iter().map(|v| (v, start_of(&said, own, v))).collect();
        let begin = Instant(said[0].at.0 - 1_000_000);
        let node = Node::new(own, &starts, begin, change);
        Replay::of(said, node, begin)
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
        let said = conversation(number);
        let begin = Instant(said[0].at.0 - 2_000_000_000);
        let mut pair = Together::new(begin, |node| start(&said, node), &change);
        prologue(&mut pair);
        let mut own = pair.leave(node);
        own.sent.clear();
        Replay::of(said, own, begin)
    }

    /// When the recorded node says the n-th packet of this kind, and a bit before, when it is told to do what leads to
    /// that.
    pub(crate) fn before(&self, n: usize, kind: fn(&Packet) -> bool) -> Instant {
        let mut own: Vec<_> = self.expected.iter().flatten().filter(|s| kind(&s.packet)).collect();
        own.sort_by_key(|s| s.at);
        Instant(own[n].at.0 - 600_000)
    }

    /// The node does this at that time.
    pub(crate) fn at(&mut self, time: Instant, act: impl FnOnce(&mut Node, Instant) + 'static) {
        self.script.push_back((time, Box::new(act)));
    }

    fn of(said: Vec<Said>, node: Node, now: Instant) -> Replay {
        let own = NodeId::new(1 - node.peer.index() as u8).unwrap();
        let (ours, theirs): (Vec<_>, Vec<_>) = said.into_iter().partition(|s| s.from == own);
        let mut expected = [const { VecDeque::new() }; 4];
        for said in without_hints(ours) {
            expected[lane(said.stream, &said.packet)].push_back(said);
        }
        Replay {
            said: theirs.into(),
            node,
            bound: Bound::default(),
            expected,
            now,
            ahead: Duration(0),
            script: VecDeque::new(),
        }
    }

    /// Who has accepted the control stream resolves conflicts.
    pub(crate) fn link_up(&mut self, resolve_conflicts: bool) {
        self.node.link_up(self.now, LinkUp { resolve_conflicts, challenge: [7; 64] });
        self.compare();
    }

    /// With what the recorded nodes have hashed: the challenge, and who answers it.
    pub(crate) fn link_up_with_secret(&mut self, resolve_conflicts: bool) {
        let (own, peer) = (NodeId::new(1 - self.node.peer.index() as u8).unwrap(), self.node.peer);
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
            (salted(bytes(&ours, false), peer), bytes(&theirs, true)),
        ];
        let challenge = bytes(&ours, false).try_into().expect("64 bytes");
        self.node.link_up(self.now, LinkUp { resolve_conflicts, challenge });
        self.compare();
    }

    /// The core writes when the recorded node did, and closes the device after each burst.
    pub(crate) fn writes(&mut self) {
        let mut told = BTreeSet::new();
        let data: Vec<_> = self.expected[0].iter().filter(|s| matches!(s.packet, Packet::Data(_))).cloned().collect();
        for said in data {
            let Packet::Data(w) = said.packet else { unreachable!("just selected") };
            // Before the first one the node asks whether the peer is there.
            let pings = self.expected[1].iter().filter(|s| s.packet == Packet::Ping && s.at < said.at);
            let asked = pings.last().map(|s| s.at).filter(|_| told.insert(said.volume));
            let then = Instant(asked.unwrap_or(said.at).0 - 1);
            let volume = said.volume;
            self.at(then, move |node, now| node.write(now, volume, w.sector, w.size.0 as u32));
        }
        let acks: Vec<_> = self.expected[1].iter().filter(|s| matches!(s.packet, Packet::PeerAck(_))).collect();
        let closed: Vec<_> = acks.iter().map(|s| s.at + Duration(1_500_000)).collect();
        for at in closed {
            let volumes = told.clone();
            self.at(at, move |node, now| volumes.into_iter().for_each(|volume| node.close(now, volume)));
        }
        self.script.make_contiguous().sort_by_key(|(at, _)| *at);
    }

    /// The peer has said before the recording where its stream of writes is.
    pub(crate) fn hear_position(&mut self) {
        let sizes =
            self.said.iter().filter_map(|s| if let Packet::Data(w) = &s.packet { Some(w.size.0 / 512) } else { None });
        let tags: Vec<u64> = sizes
            .scan(0, |at, n| {
                *at += n;
                Some(*at)
            })
            .collect();
        let acks: Vec<u64> = self
            .said
            .iter()
            .filter_map(|s| if let Packet::PeerAck(a) = &s.packet { Some(a.dagtag.0) } else { None })
            .collect();
        let fits = |start: &u64| acks.iter().all(|ack| tags.contains(&(ack - start)));
        let start = tags.iter().filter_map(|tag| acks[0].checked_sub(*tag)).find(fits).expect("acks are of writes");
        self.node.hear(self.now, Socket::Data, VolumeNr::NONE, Packet::Dagtag(wire::Dagtag(start)));
    }

    /// Until the end.
    pub(crate) fn play(&mut self) {
        while let Some(said) = self.said.pop_front() {
            self.act_until(said.at);
            self.now = said.at + self.ahead;
            self.node.pass(self.now);
            self.compare();
            self.wait_for_question(&said.packet);
            self.bound.learn(&said.packet);
            let packet = self.bound.translate(&said.packet);
            self.node.hear(self.now, said.stream, said.volume, packet);
            self.compare();
        }
        let end = self.script.back().map_or(self.now, |(at, _)| self.now.max(*at)) + Duration::from_millis(1);
        self.act_until(end);
        self.now = end + self.ahead;
        self.node.pass(self.now);
        self.compare();
        let left = self.expected.iter().flatten().filter(|s| s.packet != Packet::Ping);
        let left: Vec<_> = left.map(|s| &s.packet).collect();
        assert!(left.is_empty(), "not said: {left:#?}\n{:#?}", self.node.notes);
    }

    /// The core says that an epoch is over in its own time: the answer does not come before.
    fn wait_for_question(&mut self, answer: &Packet) {
        let Packet::BarrierAck(ack) = answer else { return };
        while self.expected[0].iter().any(|said| said.packet == Packet::Barrier(ack.barrier)) {
            let then = self.node.next().expect("the barrier comes by itself").max(self.now);
            self.ahead = self.ahead + then.since(self.now);
            self.now = then;
            self.node.pass(self.now);
            self.compare();
        }
    }

    fn act_until(&mut self, until: Instant) {
        while let Some((at, act)) = self.script.pop_front_if(|(at, _)| *at <= until) {
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
            if is_hint(&sent.packet) {
                continue;
            }
            let lane = &mut self.expected[lane(sent.stream, &sent.packet)];
            // The recorded node may have asked more often whether the peer is there.
            while sent.packet != Packet::Ping && lane.front().is_some_and(|said| said.packet == Packet::Ping) {
                lane.pop_front();
            }
            let Some(said) = lane.pop_front() else {
                panic!("not recorded: {sent:?}\n{:#?}", self.node.notes);
            };
            let recorded = self.bound.unify(&said.packet, &sent.packet);
            let (recorded, ours) = tolerated(recorded, sent);
            assert_eq!(ours.packet, recorded, "at {:?}\n{:#?}", said.at, self.node.notes);
            assert_eq!(ours.volume, said.volume, "{recorded:?}");
        }
    }
}

/// Says nothing that changes anything: P_UNPLUG_REMOTE, and P_DELAY_PROBE.
fn is_hint(packet: &Packet) -> bool {
    matches!(packet, Packet::UnplugRemote | Packet::DelayProbe(_))
}

fn without_hints(said: Vec<Said>) -> impl Iterator<Item = Said> {
    let mut last = Vec::new();
    said.into_iter().filter(move |said| {
        // A kernel that comes to depend on a Primary says so twice, and a change of one volume may make it say once more
        // what the others' states are.
        let kept = matches!(said.packet, Packet::Uuids110(_) | Packet::State(_));
        let again = kept && last.contains(&(said.volume, said.packet.clone()));
        let kind = std::mem::discriminant(&said.packet);
        last.retain(|(volume, packet)| *volume != said.volume || std::mem::discriminant(packet) != kind);
        last.push((said.volume, said.packet.clone()));
        !again && !is_hint(&said.packet)
    })
}

/// What may differ, taken from the recording: the limits of the disk and of the block layer, which are those of another
/// machine, and what a write is called that somebody waits for.
fn tolerated(recorded: Packet, mut ours: Sent) -> (Packet, Sent) {
    match (&recorded, &mut ours.packet) {
        (Packet::Sizes(theirs), Packet::Sizes(own)) => {
            own.max_bio_size = theirs.max_bio_size;
            if let (Some(theirs), Some(own)) = (&theirs.limits, &mut own.limits) {
                let QueueLimits { physical_block_size, logical_block_size, io_min, io_opt, .. } = *theirs;
                *own = QueueLimits { physical_block_size, logical_block_size, io_min, io_opt, ..*own };
            }
        }
        (Packet::Data(theirs), Packet::Data(own)) => own.flags = own.flags | by_applications(theirs.flags),
        _ => {}
    }
    if ours.packet.command(&crate::recording::OF_9_3).is_connection_level() {
        ours.volume = VolumeNr::NONE;
    }
    if matches!(ours.packet, Packet::ConnectionFeatures(_)) {
        ours.volume = VolumeNr(0);
    }
    (recorded, ours)
}

/// DP_RW_SYNC.
fn by_applications(flags: DpFlags) -> DpFlags {
    DpFlags(flags.0 & 0x2)
}
