//! Two cores that speak DRBD 9's dialect with each other.

use crate::rig::{Pair, Shape};
use units::{Duration, Generation};
use urbd_core::ConnectionState::{Connected, Connecting, StandAlone};
use urbd_core::{Command, ResourceConfig};
use wire::Packet;

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
    [0, 1].map(|i| pair.nodes[i].core.generations(crate::rig::VOLUME).expect("attached")[0].base())
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

/// Both have written while they were apart: a resync would be needed, and this dialect does none yet.
#[test]
fn who_would_need_a_resync_is_told_so() {
    let mut pair = pair();
    pair.unlink();
    pair.run(5);
    pair.write(1);
    pair.run(30);
    pair.link();
    pair.run(50);
    assert_eq!(connections(&pair), [StandAlone; 2]);
    for node in &pair.nodes {
        assert!(
            node.notes.contains(&"resync-unspoken") || node.notes.contains(&"handshake-refused"),
            "{:?}",
            node.notes
        );
    }
}
