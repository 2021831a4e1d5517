//! Plays a recording to the core in the place of one of its nodes, and compares what both say.

use crate::bind::Bound;
use crate::node::{Node, Sent, Start};
use crate::recording::{Said, conversation};
use std::collections::VecDeque;
use units::{Duration, Instant, NodeId, VolumeNr};
use urbd_core::{ConnectionConfig, LinkUp};
use wire::{Packet, QueueLimits, Socket};

/// A recording, and which of its nodes is replaced.
pub(crate) struct Replay {
    said: VecDeque<Said>,
    pub(crate) node: Node,
    bound: Bound,
    /// What the recorded node says on each stream and has not been said by the core.
    expected: [VecDeque<Said>; 2],
    pub(crate) now: Instant,
}

fn lane(stream: Socket) -> usize {
    usize::from(stream == Socket::Control)
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

    fn of(said: Vec<Said>, node: Node, now: Instant) -> Replay {
        let own = NodeId::new(1 - node.peer.index() as u8).unwrap();
        let (ours, theirs): (Vec<_>, Vec<_>) = said.into_iter().partition(|s| s.from == own);
        let mut expected = [VecDeque::new(), VecDeque::new()];
        for said in without_hints(ours) {
            expected[lane(said.stream)].push_back(said);
        }
        Replay { said: theirs.into(), node, bound: Bound::default(), expected, now }
    }

    /// Who has accepted the control stream resolves conflicts.
    pub(crate) fn link_up(&mut self, resolve_conflicts: bool) {
        self.node.link_up(self.now, LinkUp { resolve_conflicts, challenge: [7; 64] });
        self.compare();
    }

    /// Until the end.
    pub(crate) fn play(&mut self) {
        while let Some(said) = self.said.pop_front() {
            self.node.pass(said.at);
            self.now = said.at;
            self.compare();
            self.bound.learn(&said.packet);
            let packet = self.bound.translate(&said.packet);
            self.node.hear(said.at, said.stream, said.volume, packet);
            self.compare();
        }
        self.now = self.now + Duration::from_millis(1);
        self.node.pass(self.now);
        self.compare();
        let left: Vec<_> = self.expected.iter().flatten().map(|s| &s.packet).collect();
        assert!(left.is_empty(), "not said: {left:#?}\n{:#?}", self.node.notes);
    }

    /// What the core has said is what the recorded node said.
    fn compare(&mut self) {
        while let Some(sent) = self.node.sent.pop_front() {
            if is_hint(&sent.packet) {
                continue;
            }
            let Some(said) = self.expected[lane(sent.stream)].pop_front() else {
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
    let mut last: Option<Packet> = None;
    said.into_iter().filter(move |said| {
        // A kernel that comes to depend on a Primary says so twice.
        let again = matches!(said.packet, Packet::Uuids110(_)) && last.as_ref() == Some(&said.packet);
        last = Some(said.packet.clone());
        !again && !is_hint(&said.packet)
    })
}

/// What may differ, taken from the recording:
/// the limits of the disk and of the block layer, which are those of another machine.
fn tolerated(recorded: Packet, mut ours: Sent) -> (Packet, Sent) {
    match (&recorded, &mut ours.packet) {
        (Packet::Sizes(theirs), Packet::Sizes(own)) => {
            own.max_bio_size = theirs.max_bio_size;
            if let (Some(theirs), Some(own)) = (&theirs.limits, &mut own.limits) {
                let QueueLimits { physical_block_size, logical_block_size, io_min, io_opt, .. } = *theirs;
                *own = QueueLimits { physical_block_size, logical_block_size, io_min, io_opt, ..*own };
            }
        }
        (Packet::Ping | Packet::PingAck, _) => {}
        // No connection level packet has a volume; the core says 0 then.
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
