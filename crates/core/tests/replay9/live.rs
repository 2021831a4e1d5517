//! An urbd beside live 9.3.3 kernels (`vectors/wire9live/`): the kernels say what they said, and the core is in the
//! place of the urbd that was recorded. It must come to the same conclusion as each of them.

use crate::VOLUME;
use crate::node::{Node, Sent, Start};
use crate::recording::{Said, live_conversation};
use crate::starts::{others_of, start_of};
use units::{Duration, Generation, Instant, NodeId, NodeMask, Sector};
use urbd_core::{Command, LinkUp, RequestKind};
use wire::{ConnState, Packet, Socket};

/// The urbd of the recordings.
const URBD: NodeId = NodeId::new(0).unwrap();

/// The core, and what kernels say to it.
struct Live {
    said: Vec<Said>,
    node: Node,
    now: Instant,
    /// Transactions that others have agreed to.
    voted: Vec<u32>,
}

impl Live {
    fn of(number: &str, peers: &[u8]) -> Live {
        let said = live_conversation(number);
        let start = start_of(&said, URBD, VOLUME);
        let peers: Vec<_> = peers.iter().filter_map(|n| NodeId::new(*n)).collect();
        assert!(others_of(&said, URBD).iter().all(|n| peers.contains(n)));
        let start = Start { slots: peers.len() as u32, ..start };
        let now = Instant(said[0].at.0 - 10_000_000);
        let csums = said.iter().find_map(|s| match &s.packet {
            Packet::SyncParam(p) if s.from == URBD => Some(p.csums_alg.as_str().to_owned()),
            _ => None,
        });
        let csums = csums.filter(|name| !name.is_empty());
        let mut node = Node::among(&peers, URBD, &[(VOLUME, start)], now, |c| c.csums.clone_from(&csums));
        node.forgive = true;
        Live { said, node, now, voted: Vec::new() }
    }

    /// A millisecond passes. Who is connected answers pings, and agrees to what is asked about others.
    fn pass(&mut self) {
        self.now = self.now + Duration::from_millis(1);
        self.node.pass(self.now);
        let said: Vec<_> = self.node.sent.iter().map(|s| (s.peer, s.packet.clone())).collect();
        self.node.sent.retain(|s| s.packet != Packet::Ping);
        let agrees = |peer: NodeId, packet: &Packet| match packet {
            Packet::Ping => Some(Packet::PingAck),
            Packet::TwopcPrepare(p)
                if p.transaction.target != Some(peer) && !self.voted.contains(&p.transaction.tid) =>
            {
                let yes = |s: &Said| matches!(s.packet, Packet::TwopcYes(_)) && s.from == peer;
                let mut yes = self.said.iter().find(|s| yes(s)).expect("it agrees to something").packet.clone();
                if let Packet::TwopcYes(vote) = &mut yes {
                    vote.tid = p.transaction.tid;
                }
                Some(yes)
            }
            _ => None,
        };
        let answers: Vec<_> = said.iter().filter_map(|(peer, packet)| Some((*peer, agrees(*peer, packet)?))).collect();
        for (peer, answer) in answers {
            if let Packet::TwopcYes(vote) = &answer {
                self.voted.push(vote.tid);
            }
            self.node.hear_from(peer, self.now, Socket::Control, VOLUME, answer);
        }
    }

    /// The transaction that is to connect the core with this peer.
    fn asked(&self, peer: NodeId) -> Option<u32> {
        self.node.sent.iter().rev().find_map(|s| match &s.packet {
            Packet::TwopcPrepare(p) if p.transaction.target == Some(peer) => Some(p.transaction.tid),
            _ => None,
        })
    }

    /// The kernel says what it said when it was connected, of several attempts in the last one, until it has said what
    /// it has made of it.
    fn connect(&mut self, peer: u8) {
        let peer = NodeId::new(peer).unwrap();
        let begins = |s: &&Said| matches!(&s.packet, Packet::TwopcPrepare(p) if p.transaction.target == Some(peer));
        let own = |s: &&Said| s.from == URBD && s.to == peer;
        let first = self.said.iter().filter(own).find(begins).expect("an attempt").at;
        let last = self.said.iter().filter(own).rfind(begins).expect("an attempt").at;
        let skipped = |s: &Said| s.at > first && s.at < last || matches!(s.packet, Packet::Ping | Packet::PingAck);
        let theirs = self.said.iter().filter(|s| s.from == peer && s.to == URBD && !skipped(s));
        let concludes = |s: &Said| matches!(&s.packet, Packet::State(word) if word.conn >= ConnState::Connected);
        let until = theirs.clone().position(concludes).expect("it is connected");
        let theirs: Vec<_> = theirs.take(until + 1).cloned().collect();
        self.node.link_up_to(self.now, peer, LinkUp { resolve_conflicts: false, challenge: [7; 64] });
        for said in theirs {
            self.pass();
            // It may be another node's turn first.
            let mut wait = 0..2000;
            while said.at > last && self.asked(peer).is_none() && wait.next().is_some() {
                self.pass();
            }
            let mut packet = said.packet;
            if let Packet::TwopcYes(vote) | Packet::TwopcNo(vote) | Packet::TwopcRetry(vote) = &mut packet {
                vote.tid = self.asked(peer).unwrap_or_else(|| panic!("it was not asked: {:#?}", self.node.notes));
            }
            self.node.hear_from(peer, self.now, said.stream, said.volume, packet);
        }
    }

    /// The kernel has said that it is Established, and UpToDate: so is the core within a second, on the same link, and
    /// nothing is marked for a peer that was told of nothing.
    fn is_as_the_kernel_says(&mut self, peer: u8) {
        (0..1000).for_each(|_| self.pass());
        let snapshot = self.node.core.snapshot();
        let towards = snapshot.connections.iter().find(|c| c.peer.index() == usize::from(peer)).expect("a peer");
        let pair = &towards.peer_devices[0];
        let state = (towards.state, pair.replication, pair.peer_disk, snapshot.devices[0].disk);
        let wanted = (
            urbd_core::ConnectionState::Connected,
            wire::ConnState::Connected,
            wire::DiskState::UpToDate,
            wire::DiskState::UpToDate,
        );
        assert_eq!(state, wanted, "{:#?}", self.node.notes);
        assert_eq!(pair.out_of_sync.0, 0, "{:#?}", self.node.notes);
        assert!(!self.node.notes.iter().any(|note| note == "link closed"), "{:#?}", self.node.notes);
    }

    /// What the core writes now comes to this peer, or that it lacks it.
    fn next_write_comes_to(&mut self, peer: u8) {
        // Nobody confirms it: the next one must not overlap it.
        let at = Sector(64 * u64::from(peer));
        self.node.sent.clear();
        self.node.write(self.now, VOLUME, RequestKind::Write { fua: false }, at, 4096);
        self.node.turn(self.now);
        (0..20).for_each(|_| self.pass());
        let of_write = |s: &&crate::node::Sent| match &s.packet {
            Packet::Data(w) => w.sector == at,
            Packet::OutOfSync(told) => told.sector == at,
            _ => false,
        };
        let told = self.node.sent.iter().filter(of_write).any(|s| s.peer.index() == usize::from(peer));
        assert!(told, "node {peer} gets neither the write nor word of it: {:#?}", self.node.sent);
    }

    /// The peer has written all that it has asked for, without delay.
    fn confirm_copied(&mut self, peer: NodeId) {
        let mut quiet = 0;
        while quiet < 2 {
            self.pass();
            let reply = |s: &Sent| match &s.packet {
                Packet::RsDataReply(b) if s.peer == peer => Some((b.sector, b.block_id, b.size)),
                _ => None,
            };
            let copied: Vec<_> = self.node.sent.iter().filter_map(reply).collect();
            self.node.sent.retain(|s| reply(s).is_none());
            quiet = if copied.is_empty() { quiet + 1 } else { 0 };
            for (sector, block_id, size) in copied {
                let ack = wire::BlockAck { sector, block_id, size, seq: 0 };
                self.node.hear_from(peer, self.now, Socket::Control, VOLUME, Packet::RsWriteAck(ack));
            }
        }
    }

    /// The last packet of this kind that the peer has said to this node.
    fn last_said(&self, peer: NodeId, wanted: fn(&Packet) -> bool) -> Packet {
        let mut all = self.said.iter().filter(|s| s.from == peer && s.to == URBD && wanted(&s.packet));
        all.next_back().expect("it has said that").packet.clone()
    }

    /// The last state that it has said while they were connected.
    fn last_word(&self, peer: NodeId) -> wire::StateWord {
        let connected = |p: &Packet| matches!(p, Packet::State(w) if w.conn == ConnState::Connected);
        let Packet::State(word) = self.last_said(peer, connected) else { unreachable!() };
        word
    }

    fn promote(&mut self) {
        self.node.command(self.now, Command::Primary { force: false });
        self.node.turn(self.now);
        (0..100).for_each(|_| self.pass());
        assert_eq!(self.node.core.snapshot().role, wire::Role::Primary, "{:#?}", self.node.notes);
    }
}

/// Connected to both kernels; the second one's id.
fn beside_two_kernels() -> (Live, NodeId) {
    let mut live = Live::of("04", &[1, 2]);
    live.connect(2);
    live.connect(1);
    (live, NodeId::new(2).unwrap())
}

/// Connects to both kernels in this order, is as they say, and gets its writes to them as Primary.
fn comes_back_beside_kernels(recording: &str, order: [u8; 2]) {
    let mut live = Live::of(recording, &[1, 2]);
    for peer in order {
        live.connect(peer);
        live.is_as_the_kernel_says(peer);
    }
    live.promote();
    live.next_write_comes_to(1);
    live.next_write_comes_to(2);
}

/// All three have lost their power. The kernels find nothing to copy between them and this node.
#[test]
fn all_come_back_from_a_loss_of_power() {
    comes_back_beside_kernels("03", [1, 2]);
}

/// A Secondary's process is started again, and nobody writes.
#[test]
fn a_secondary_comes_back_to_idle_kernels() {
    comes_back_beside_kernels("04", [2, 1]);
}

/// A Primary's process is started again, and it is promoted before the kernel, node 2, is back.
#[test]
fn a_primary_that_comes_back_replicates_to_a_kernel() {
    let mut live = Live::of("05", &[1, 2]);
    live.promote();
    live.connect(2);
    live.is_as_the_kernel_says(2);
    live.next_write_comes_to(2);
}

/// The generation that a packet names as the present one, if it is one with data.
fn generation_in(packet: &Packet) -> Option<Generation> {
    match packet {
        Packet::Uuids110(u) => Some(u.current).filter(|g| !g.same(Generation::JUST_CREATED)),
        _ => None,
    }
}

/// Two fresh peers are brought up to date by this node, which is Primary by force, and nobody writes. Node 1 is done
/// before node 2, a kernel, says what it has. For all of that both are told that they have the same: otherwise they
/// keep bits for each other.
#[test]
fn two_that_are_brought_up_to_date_learn_that_they_are_in_sync() {
    let mut live = Live::of("02", &[1, 2]);
    live.connect(1);
    live.connect(2);
    live.node.command(live.now, Command::Primary { force: true });
    live.node.turn(live.now);
    (0..20).for_each(|_| live.pass());
    let begun =
        live.said.iter().find(|s| s.from == URBD && generation_in(&s.packet).is_some()).expect("it begins").clone();
    let recorded = generation_in(&begun.packet);
    let ours = live.node.sent.iter().find_map(|s| generation_in(&s.packet)).expect("a generation begins");
    let skipped = |s: &Said| matches!(s.packet, Packet::Ping | Packet::PingAck | Packet::TwopcYes(_));
    let until = live.said.iter().find(|s| s.packet == Packet::Disconnect).map_or(Instant(u64::MAX), |s| s.at);
    let theirs = live.said.iter().filter(|s| s.to == URBD && s.at > begun.at && s.at < until && !skipped(s));
    for mut said in theirs.cloned().collect::<Vec<_>>() {
        if let Packet::Uuids110(u) = &mut said.packet
            && recorded.is_some_and(|recorded| recorded.same(u.current))
        {
            u.current = ours.with_primary_bit(false);
        }
        // This node sends all as data; the kernel was told what is zeroes. It confirms each before it says more.
        let asks = matches!(said.packet, Packet::RsThinDagtagReq(_) | Packet::RsDagtagReq(_));
        if matches!(said.packet, Packet::RsWriteAck(_)) {
            continue;
        }
        if !asks {
            live.confirm_copied(said.from);
        }
        live.node.hear_from(said.from, live.now, said.stream, said.volume, said.packet);
        live.pass();
    }
    (0..100).for_each(|_| live.pass());
    let both = NodeMask::default().with(NodeId::new(1).unwrap()).with(NodeId::new(2).unwrap());
    for peer in both {
        let told = live.node.sent.iter().filter(|s| s.peer == peer);
        let told = told.filter_map(|s| match &s.packet {
            Packet::PeersInSync(told) if told.nodes.nodes() == both => Some((told.sector, told.size.0 / 512)),
            _ => None,
        });
        let sectors: u64 = told.collect::<std::collections::BTreeMap<_, _>>().values().sum();
        assert_eq!(sectors, live.node.core.snapshot().devices[0].size.0 / 512, "to {peer}: {:#?}", live.node.notes);
    }
}

/// Of three connected nodes one attaches a disk that has parted from the others' data. What becomes of it is between
/// that one and its source: who looks on raises no split brain (state 5.9).
#[test]
fn who_looks_on_while_another_attaches_raises_no_split_brain() {
    let (mut live, two) = beside_two_kernels();
    let word = live.last_word(two);
    let Packet::Uuids110(mut uuids) = live.last_said(two, |p| matches!(p, Packet::Uuids110(_))) else { unreachable!() };
    let data = Socket::Data;
    let gone = wire::StateWord { disk: wire::DiskState::Diskless, ..word };
    live.node.hear_from(two, live.now, data, VOLUME, Packet::State(gone));
    live.pass();
    // It has gone another way from the generation that all had.
    let common = live.node.core.snapshot().devices[0].generations[2];
    (uuids.current, uuids.dirty_bits) = (Generation(0x1234_5678_9abc_def0), 5);
    uuids.bitmaps.iter_mut().for_each(|g| *g = Generation::NONE);
    uuids.history.fill(Generation::NONE);
    uuids.history[0] = common;
    live.node.notes.clear();
    live.node.hear_from(two, live.now, data, VOLUME, Packet::Uuids110(uuids));
    let attaches = wire::StateWord { disk: wire::DiskState::Negotiating, ..word };
    live.node.hear_from(two, live.now, data, VOLUME, Packet::State(attaches));
    (0..100).for_each(|_| live.pass());
    let notes = &live.node.notes;
    assert!(notes.iter().any(|note| note.contains("generations compared")), "{notes:#?}");
    assert!(!notes.iter().any(|note| note.starts_with("split-brain")), "{notes:#?}");
}

/// A kernel whose `on-congestion` is `pull-ahead` says that it is Ahead, which this node does not follow yet. Then they
/// connect anew, and what it has only marked is copied: they are not parted until a person comes.
#[test]
fn a_peer_that_is_ahead_is_connected_anew() {
    let (mut live, two) = beside_two_kernels();
    let word = wire::StateWord { conn: ConnState::Ahead, ..live.last_word(two) };
    live.node.hear_from(two, live.now, Socket::Data, VOLUME, Packet::State(word));
    live.pass();
    let snapshot = live.node.core.snapshot();
    let towards = snapshot.connections.iter().find(|c| c.peer == two).expect("a peer");
    assert_eq!(towards.state, urbd_core::ConnectionState::Connecting, "{:#?}", live.node.notes);
}
