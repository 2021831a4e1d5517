//! Two cores that speak DRBD 9's dialect with each other.

use crate::rig::{Pair, Shape, VOLUME};
use std::collections::VecDeque;
use units::{Duration, Generation, Rng};
use urbd_core::ConnectionState::{Connected, Connecting, StandAlone};
use urbd_core::{Command, Copied, Effect, LinkUp, Replaced, ResourceConfig, Segments};
use wire::{Packet, Socket};

const V09: Shape = Shape { version: meta::Version::V09, ..Shape::DEFAULT };

fn newest(cfg: &mut ResourceConfig) {
    cfg.connections[0].max_version = wire::Version::MAX.number();
}

/// Connected, both UpToDate, the first one Primary.
fn pair() -> Pair {
    Pair::on(V09, true, newest)
}

fn connections(pair: &Pair) -> [urbd_core::ConnectionState; 2] {
    [0, 1].map(|i| pair.nodes[i].core.snapshot().connections[0].state)
}

fn roles(pair: &Pair) -> [wire::Role; 2] {
    [0, 1].map(|i| pair.nodes[i].core.snapshot().role)
}

fn generations(pair: &Pair) -> [Generation; 2] {
    [0, 1].map(|i| pair.nodes[i].core.generations(VOLUME).expect("attached")[0].base())
}

fn disconnect(pair: &mut Pair, node: usize) {
    let peer = pair.nodes[node].peer;
    pair.command(node, Command::Disconnect { peer, force: false });
    pair.run(20);
}

fn connect(pair: &mut Pair, node: usize) {
    let peer = pair.nodes[node].peer;
    pair.command(node, Command::Connect { peer, discard_my_data: false, tentative: false });
    pair.run(5);
}

#[test]
fn two_cores_connect_and_promote() {
    let pair = pair();
    let versions = [0, 1].map(|i| pair.nodes[i].core.snapshot().connections[0].version);
    assert_eq!(versions, [Some(124); 2], "{:?}", pair.nodes[0].notes);
    assert_eq!(pair.states(), [wire::ConnState::Connected; 2]);
    assert_eq!(roles(&pair), [wire::Role::Primary, wire::Role::Secondary]);
    assert_eq!(pair.nodes[1].core.snapshot().connections[0].role, wire::Role::Primary);
}

#[test]
fn what_speaks_the_old_dialect_is_met_in_it() {
    for newer in [0, 1] {
        let pair = Pair::on(V09, true, |cfg| {
            if cfg.node.index() == newer {
                newest(cfg);
            }
        });
        let versions = [0, 1].map(|i| pair.nodes[i].core.snapshot().connections[0].version);
        assert_eq!(versions, [Some(101); 2]);
        assert_eq!(pair.states(), [wire::ConnState::Connected; 2]);
    }
}

/// What is configured and lies on the disk, at each of both nodes, and what they speak.
#[test]
fn metadata_of_format_v08_speak_the_old_dialect() {
    let (v08, v09) = (meta::Version::V08, meta::Version::V09);
    let pair = |nodes: [(u32, meta::Version); 2]| {
        let shapes = nodes.map(|(_, version)| Shape { version, ..Shape::DEFAULT });
        Pair::of(shapes, true, |cfg| cfg.connections[0].max_version = nodes[cfg.node.index()].0)
    };
    for (one, other, want) in [
        ((124, v09), (124, v09), 124),
        ((124, v09), (124, v08), 101),
        ((124, v08), (124, v08), 101),
        ((124, v08), (101, v08), 101),
        ((124, v08), (101, v09), 101),
        ((124, v08), (118, v09), 101),
        ((124, v09), (101, v09), 101),
        ((124, v09), (101, v08), 101),
        ((124, v09), (118, v09), 118),
        ((124, v09), (90, v08), 90),
        ((95, v08), (124, v08), 95),
        ((101, v08), (101, v08), 101),
    ] {
        for nodes in [[one, other], [other, one]] {
            let mut pair = pair(nodes);
            let versions = [0, 1].map(|i| pair.nodes[i].core.snapshot().connections[0].version);
            assert_eq!(versions, [Some(want); 2], "{nodes:?}: {:?}", pair.nodes[0].notes);
            assert_eq!(pair.states(), [wire::ConnState::Connected; 2], "{nodes:?}");
            // What was written without the other one gets there when it is back.
            pair.unlink();
            pair.run(20);
            pair.write_on(0, 7);
            pair.run(50);
            pair.link();
            pair.until(Duration::from_secs(60), |pair| pair.states() == [wire::ConnState::Connected; 2]);
            pair.run(200);
            assert_eq!(generations(&pair)[0], generations(&pair)[1], "{nodes:?}: {:?}", pair.nodes[1].notes);
        }
    }
}

/// A kernel of DRBD 9 may be told to speak no older dialect.
#[test]
fn a_peer_that_speaks_no_old_dialect_is_told_from_one_that_is_too_old() {
    for (version, says) in [(meta::Version::V08, true), (meta::Version::V09, false)] {
        let mut pair = Pair::of([Shape { version, ..Shape::DEFAULT }, V09], true, newest);
        pair.unlink();
        pair.run(20);
        let (now, node) = (pair.now, &mut pair.nodes[0]);
        node.core.on_link_up(now, node.peer, LinkUp { resolve_conflicts: true, challenge: [0; 64] });
        let (min, max) = if says { (118, 124) } else { (110, 117) };
        let offer =
            wire::ConnectionFeatures { protocol_min: min, protocol_max: max, ..wire::ConnectionFeatures::OFFER };
        node.core.on_packet(now, node.peer, Socket::Data, VOLUME, Packet::ConnectionFeatures(offer), Segments::None);
        node.core.on_turn_end(now);
        let mut said = String::new();
        while let Some(effect) = node.core.poll_effect() {
            if let Effect::Log(notice) = effect {
                said += &notice.text;
            }
        }
        assert!(said.contains(&format!("speaks protocol versions {min} to {max}")), "{said}");
        assert_eq!(said.contains("format v08") && said.contains("convert them"), says, "{said}");
    }
}

/// A disk with such metadata comes while the first packets are exchanged: the offer that was made does not hold. When
/// the nodes are connected, one of them without a disk, it is too late (the next test).
#[test]
fn a_disk_of_format_v08_that_comes_with_the_link_brings_the_old_dialect() {
    for (before, turns) in [(true, 0), (true, 1), (true, 2), (true, 4), (false, 0), (false, 1), (false, 2)] {
        let mut pair = Pair::of([Shape::DEFAULT, V09], true, newest);
        pair.unlink();
        pair.run(20);
        pair.command(0, Command::Secondary { force: false });
        pair.run(20);
        pair.command(0, Command::Detach { volume: VOLUME, force: false });
        pair.run(20);
        if before {
            pair.command(0, Command::Attach { volume: VOLUME });
            pair.run(turns);
            pair.link();
        } else {
            pair.link();
            pair.run(turns);
            pair.command(0, Command::Attach { volume: VOLUME });
        }
        pair.run(50);
        for _ in 0..2 {
            assert!(!connections(&pair).contains(&StandAlone), "{:?}", pair.nodes[0].notes);
            if connections(&pair) != [Connected; 2] {
                pair.until(Duration::from_secs(30), |pair| pair.nodes.iter().all(|n| n.link_wanted));
                pair.link();
                pair.run(200);
            }
        }
        let versions = [0, 1].map(|i| pair.nodes[i].core.snapshot().connections[0].version);
        assert_eq!(versions, [Some(101); 2], "{before} {turns}: {:?}", pair.nodes[0].notes);
        assert_eq!(pair.states(), [wire::ConnState::Connected; 2], "{before} {turns}");
    }
}

/// Between two nodes that speak 9's dialect no disk comes that cannot: what to do is said, and nothing is lost.
#[test]
fn a_disk_of_format_v08_is_not_attached_beside_the_new_dialect() {
    let mut pair = pair();
    pair.command(0, Command::Detach { volume: VOLUME, force: false });
    pair.run(50);
    let other = Pair::new(true).nodes.into_iter().next().expect("two");
    let node = &mut pair.nodes[0];
    (node.layout, node.metadata) = (other.layout, other.metadata);
    node.answers = Some(Vec::new());
    pair.command(0, Command::Attach { volume: VOLUME });
    pair.run(50);
    let answers = pair.nodes[0].answers.take().expect("kept");
    let [(_, Err(refusal))] = &answers[..] else { panic!("{answers:?}") };
    assert!(refusal.text.contains("spoken with other") && refusal.text.contains("convert it"), "{}", refusal.text);
    assert_eq!(connections(&pair), [Connected; 2]);
}

/// 121 too, with which one feature does not go.
#[test]
fn each_version_is_spoken() {
    for version in 118..=124 {
        let pair = Pair::on(V09, true, |cfg| cfg.connections[0].max_version = version);
        let versions = [0, 1].map(|i| pair.nodes[i].core.snapshot().connections[0].version);
        assert_eq!(versions, [Some(version); 2], "{:?}", pair.nodes[0].notes);
        assert_eq!(pair.states(), [wire::ConnState::Connected; 2]);
    }
}

#[test]
fn writes_reach_both_in_one_generation() {
    let mut pair = pair();
    let before = generations(&pair);
    let costs = pair.writes(100, 8, {
        let mut block = 0;
        move || {
            block += 7;
            block
        }
    });
    assert_eq!((costs[0].disk_writes, costs[1].disk_writes), (100, 100));
    // The metadata tell of one generation only: the first write begins another.
    let after = generations(&pair);
    assert_ne!(after[0], before[0]);
    assert_eq!(after[0], after[1], "{:?}", pair.nodes[1].notes);
    assert_eq!(connections(&pair), [Connected; 2], "{:?} {:?}", pair.nodes[0].notes, pair.nodes[1].notes);
}

#[test]
fn the_role_moves_while_nothing_is_lost() {
    let mut pair = pair();
    for round in 0..20 {
        let (old, new) = (round % 2, (round + 1) % 2);
        pair.write_on(old, round as u64);
        pair.run(30);
        pair.command(old, Command::Secondary { force: false });
        pair.run(30);
        pair.command(new, Command::Primary { force: false });
        pair.run(30);
        let primary = roles(&pair).map(|role| role == wire::Role::Primary);
        assert_eq!(primary, [new == 0, new == 1], "round {round}: {:?}", pair.nodes[new].notes);
        let [a, b] = generations(&pair);
        assert_eq!(a, b, "round {round}");
    }
}

/// Both ask at the same time: one gives way, and is refused as the other is Primary by then.
#[test]
fn two_promotions_at_once_make_one_primary() {
    let mut pair = pair();
    pair.command(0, Command::Secondary { force: false });
    pair.run(20);
    pair.nodes.iter_mut().for_each(|n| n.answers = Some(Vec::new()));
    pair.command(0, Command::Primary { force: false });
    pair.command(1, Command::Primary { force: false });
    pair.until(Duration::from_secs(30), |p| p.nodes.iter().all(|n| n.answers.as_ref().is_some_and(|a| a.len() == 1)));
    let won = [0, 1].map(|i| pair.nodes[i].answers.as_ref().is_some_and(|a| a[0].1.is_ok()));
    assert_eq!(won.iter().filter(|won| **won).count(), 1, "{won:?}");
    assert_eq!(roles(&pair).map(|role| role == wire::Role::Primary), won);
}

/// Whatever both nodes ask for at the same time: one makes way, and asks again.
#[test]
fn no_command_fails_as_the_other_node_asks_for_something_too() {
    let commands: [fn(units::NodeId) -> Command; 8] = [
        |_| Command::Primary { force: false },
        |_| Command::Secondary { force: false },
        |_| Command::Detach { volume: VOLUME, force: false },
        |_| Command::invalidate(VOLUME),
        |peer| Command::invalidate_remote(VOLUME, peer),
        |_| Command::Replace(VOLUME, Replaced::Own { source: None }, Copied::Marked),
        |_| Command::Verify { volume: VOLUME, peer: None, start: None, stop: None, repair: false },
        |peer| Command::Disconnect { peer, force: false },
    ];
    for (primary, first, second) in (0..2).flat_map(|p| (0..64).map(move |n| (p == 1, n / 8, n % 8))) {
        let mut pair = Pair::on(V09, true, |cfg| {
            newest(cfg);
            cfg.connections[0].verify = Some("crc32c".to_owned());
        });
        if !primary {
            pair.command(0, Command::Secondary { force: false });
            pair.run(20);
        }
        pair.nodes.iter_mut().for_each(|n| n.answers = Some(Vec::new()));
        pair.turn = Duration::from_millis(1);
        for (node, what) in [(0, first), (1, second)] {
            let peer = pair.nodes[node].peer;
            pair.command(node, commands[what](peer));
        }
        let answered = |p: &Pair| p.nodes.iter().all(|n| n.answers.as_ref().is_some_and(|a| a.len() == 1));
        pair.until(Duration::from_secs(60), answered);
        for node in &pair.nodes {
            let result = node.answers.as_ref().and_then(|a| a[0].1.as_ref().err());
            assert!(result.is_none_or(|e| e.code != -19), "{first} {second} {primary}: {result:?}");
        }
    }
}

#[test]
fn they_part_by_agreement_and_meet_again() {
    for node in [0, 1] {
        let mut pair = pair();
        pair.command(0, Command::Secondary { force: false });
        pair.run(20);
        disconnect(&mut pair, node);
        let left = connections(&pair);
        assert_eq!((left[node], left[1 - node]), (StandAlone, Connecting), "{:?}", pair.nodes[node].notes);
        connect(&mut pair, node);
        pair.link();
        pair.run(50);
        assert_eq!(connections(&pair), [Connected; 2]);
        assert_eq!(pair.states(), [wire::ConnState::Connected; 2]);
    }
}

/// Whatever the packet after which the link breaks: afterwards the nodes connect.
#[test]
fn a_link_that_breaks_anywhere_in_the_handshake_is_followed_by_another() {
    for turns in 1..30 {
        let mut pair = pair();
        pair.command(0, Command::Secondary { force: false });
        pair.run(20);
        pair.unlink();
        pair.run(5);
        pair.link();
        pair.run(turns);
        pair.unlink();
        pair.until(Duration::from_secs(10), |p| p.nodes.iter().all(|n| n.link_wanted));
        pair.link();
        pair.run(50);
        assert_eq!(pair.states(), [wire::ConnState::Connected; 2], "after {turns} turns: {:?}", pair.nodes[0].notes);
    }
}

/// A transaction whose answer is lost is given up, and what was wished for is asked for again.
#[test]
fn what_is_never_answered_does_not_wait_for_ever() {
    let mut pair = pair();
    pair.nodes[1].lost = |packet| matches!(packet, Packet::TwopcYes(_));
    pair.command(0, Command::Secondary { force: false });
    let end = pair.now + Duration::from_secs(31);
    pair.until(Duration::from_secs(60), |p| p.now >= end);
    assert_eq!(roles(&pair)[0], wire::Role::Primary);
    pair.nodes[1].lost = |_| false;
    pair.until(Duration::from_secs(40), |p| roles(p)[0] == wire::Role::Secondary);
    assert_eq!(connections(&pair), [Connected; 2]);
}

/// What was written while they were apart is copied, also when the copying is broken off anywhere, or the Primary goes
/// on writing.
#[test]
fn what_was_missed_is_copied() {
    for turns in 5..60 {
        let mut pair = pair();
        pair.unlink();
        pair.run(5);
        (0..9).for_each(|block| pair.write(block * 3));
        pair.run(30);
        pair.link();
        pair.run(turns);
        pair.unlink();
        pair.until(Duration::from_secs(10), |p| p.nodes.iter().all(|n| n.link_wanted));
        pair.link();
        pair.run(turns);
        pair.write(1);
        let good = |p: &Pair, i: usize| p.nodes[i].core.snapshot().devices[0].disk == wire::DiskState::UpToDate;
        pair.until(Duration::from_secs(30), |p| good(p, 0) && good(p, 1) && p.is_idle());
        assert_eq!(pair.states(), [wire::ConnState::Connected; 2], "after {turns} turns: {:?}", last_notes(&pair));
        let [a, b] = generations(&pair);
        assert_eq!(a, b, "after {turns} turns: {:?}", last_notes(&pair));
        let marked = [0, 1].map(|i| pair.nodes[i].core.snapshot().connections[0].peer_devices[0].out_of_sync);
        assert_eq!(marked.map(|m| m.0), [0; 2], "after {turns} turns: {:?}", last_notes(&pair));
    }
}

/// Packets of either stream that are on their way for longer.
#[derive(Default)]
struct Delayed([VecDeque<(Socket, units::VolumeNr, Packet, urbd_core::Segments)>; 4]);

impl Delayed {
    /// Lets each stream of each node go on, or not.
    fn turn(&mut self, pair: &mut Pair, rng: &mut Rng) {
        for (n, node) in pair.nodes.iter_mut().enumerate() {
            for packet in std::mem::take(&mut node.inbox) {
                self.0[2 * n + usize::from(packet.0 == Socket::Control)].push_back(packet);
            }
            for stream in &mut self.0[2 * n..2 * n + 2] {
                let some = (rng.next_u64() % 3) as usize;
                node.inbox.extend(stream.drain(..some.min(stream.len())));
            }
        }
        pair.run(1);
    }

    fn lost(&mut self) {
        self.0.iter_mut().for_each(VecDeque::clear);
    }
}

/// The streams of a connection run at any pace, roles change, the link breaks at any time, or a node leaves: whenever
/// it is quiet the nodes are connected, see each other's roles, and have the same generation.
#[test]
fn whatever_the_pace_of_the_streams_both_end_up_with_the_same() {
    let mut rng = Rng::new(9);
    let mut pair = pair();
    pair.nodes.iter_mut().for_each(|n| n.answers = Some(Vec::new()));
    pair.command(0, Command::Secondary { force: false });
    pair.run(20);
    let mut delayed = Delayed::default();
    for round in 0..1000 {
        let node = (rng.next_u64() % 2) as usize;
        match rng.next_u64() % 4 {
            0 => {
                let peer = pair.nodes[node].peer;
                pair.command(node, Command::Disconnect { peer, force: false });
            }
            1 => {
                pair.command(node, Command::Primary { force: false });
                pair.command(node, Command::Secondary { force: false });
            }
            _ => {}
        }
        let turns = rng.next_u64() % 40;
        (0..turns).for_each(|_| delayed.turn(&mut pair, &mut rng));
        if rng.next_u64().is_multiple_of(2) {
            pair.unlink();
            delayed.lost();
        }
        settle(&mut pair, &mut delayed, &mut rng);
        assert_eq!(pair.states(), [wire::ConnState::Connected; 2], "round {round}: {:?}", last_notes(&pair));
        let snapshots = [0, 1].map(|i| pair.nodes[i].core.snapshot());
        let seen = [0, 1].map(|i| snapshots[i].connections[0].role);
        assert_eq!([seen[1], seen[0]], roles(&pair), "round {round}");
        let [a, b] = generations(&pair);
        assert_eq!(a, b, "round {round}");
    }
}

fn last_notes(pair: &Pair) -> [Vec<&'static str>; 2] {
    [0, 1].map(|i| pair.nodes[i].notes.iter().rev().take(12).copied().collect())
}

/// Connects who is apart, until nothing is under way.
fn settle(pair: &mut Pair, delayed: &mut Delayed, rng: &mut Rng) {
    let start = pair.now;
    let mut turns = 0;
    while pair.states() != [wire::ConnState::Connected; 2] || !pair.is_idle() || delayed.0.iter().any(|s| !s.is_empty())
    {
        turns += 1;
        assert!(turns < 5000 && pair.now.since(start) < Duration::from_secs(120), "{:?}", last_notes(pair));
        let states = connections(pair);
        if states == [StandAlone; 2] && roles(pair) == [wire::Role::Primary; 2] {
            // Both were promoted while they did not see each other: a person chooses.
            pair.command(1, Command::Secondary { force: false });
        }
        for node in [0, 1] {
            if states[node] == StandAlone {
                connect(pair, node);
            }
        }
        if pair.nodes.iter().all(|n| n.link_wanted) {
            delayed.lost();
            pair.link();
        }
        // Who has closed its end is noticed at the other one.
        let gone = [0, 1].map(|n| pair.nodes[n].link_wanted || states[n] == StandAlone);
        for node in [0, 1] {
            if gone[1 - node] && !gone[node] && turns % 16 == 0 {
                let now = pair.now;
                pair.nodes[node].link_down(now, urbd_core::LinkDown::Closed);
            }
        }
        delayed.turn(pair, rng);
        if pair.is_idle() && delayed.0.iter().all(VecDeque::is_empty) {
            let timer = pair.nodes.iter().filter_map(|n| n.core.poll_timeout()).min();
            pair.now = pair.now.max(timer.unwrap_or(pair.now));
        }
    }
}
