//! A node with several configured peers: DRBD 8.4's protocol lets one of them be connected.

use crate::rig::{Pair, Shape, VOLUME};
use meta::Version;
use std::net::SocketAddr;
use units::{Duration, NodeId};
use urbd_core::{Command, ConnectionConfig, ConnectionState, Effect, LinkUp, Resource, Segments};
use wire::{ConnState, Packet, Socket};

const SHAPE: Shape = Shape { version: Version::V09, slots: 2, ..Shape::DEFAULT };

fn third() -> NodeId {
    NodeId::new(2).expect("a node id")
}

/// Both nodes of the pair have the third one for a peer as well.
fn pair(shape: Shape) -> Pair {
    Pair::on(shape, true, |cfg| {
        let address = |port| SocketAddr::from(([127, 0, 0, 1], port));
        cfg.connections.push(ConnectionConfig::new(third(), "third", (address(7790), address(7791))));
    })
}

fn features() -> Packet {
    Packet::ConnectionFeatures(wire::ConnectionFeatures { protocol_max: 101, ..wire::ConnectionFeatures::OFFER })
}

fn third_comes(pair: &mut Pair) {
    comes_to(pair, 0);
}

fn comes_to(pair: &mut Pair, n: usize) {
    let now = pair.now;
    let n = &mut pair.nodes[n];
    n.core.on_command(now, 3, Command::Connect { peer: third(), discard_my_data: false, tentative: false });
    n.core.on_link_up(now, third(), LinkUp { resolve_conflicts: false, challenge: [7; 64] });
    n.core.on_packet(now, third(), Socket::Data, VOLUME, features(), Segments::None);
    n.told = true;
}

fn connection_to(core: &Resource, peer: NodeId) -> ConnectionState {
    core.snapshot().connections.iter().find(|c| c.peer == peer).expect("a peer").state
}

#[test]
fn a_second_peer_of_8_4_is_refused_by_name_and_the_first_goes_on() {
    let mut pair = pair(SHAPE);
    assert_eq!(pair.states(), [ConnState::Connected; 2]);
    let generations = |n: usize| pair.nodes[n].core.generations(VOLUME).expect("a disk")[0].base();
    assert_eq!(generations(0), generations(1));
    let before = pair.nodes[0].core.snapshot().devices[0].generations;
    third_comes(&mut pair);
    let core = &mut pair.nodes[0].core;
    core.on_turn_end(pair.now);
    let mut said = Vec::new();
    let mut sent = 0;
    while let Some(effect) = core.poll_effect() {
        match effect {
            Effect::Log(notice) => {
                said.extend((notice.reason == "not-the-only-peer").then_some((notice.peer, notice.text)))
            }
            Effect::Send { peer, packet, .. } if peer == third() => {
                sent += usize::from(!matches!(packet, Packet::ConnectionFeatures(_)));
            }
            _ => {}
        }
    }
    let [(Some(peer), text)] = &said[..] else { panic!("{said:?}") };
    assert_eq!((*peer, sent), (third(), 0));
    assert!(text.starts_with("third is refused beside other, which is connected: third speaks DRBD 8.4's"), "{text}");
    assert_eq!(connection_to(core, third()), ConnectionState::StandAlone);
    assert_eq!(pair.states(), [ConnState::Connected; 2]);
    pair.writes(40, 4, || 5);
    assert_eq!(pair.nodes[0].core.snapshot().devices[0].generations, before);
}

#[test]
fn when_the_first_has_gone_the_other_is_let_in() {
    let mut pair = pair(SHAPE);
    pair.unlink();
    pair.run(20);
    third_comes(&mut pair);
    pair.run(20);
    assert_eq!(connection_to(&pair.nodes[0].core, third()), ConnectionState::Connected);
    // Now it is the first that is refused.
    pair.until(Duration::from_secs(60), |p| p.nodes[0].link_wanted);
    pair.link();
    pair.run(20);
    assert!(pair.nodes[0].notes.contains(&"not-the-only-peer"), "{:?}", pair.nodes[0].notes);
    assert_eq!(pair.states()[0], ConnState::StandAlone);
    assert_eq!(connection_to(&pair.nodes[0].core, third()), ConnectionState::Connected);
}

/// What the superblock of a node says of a peer.
fn counts_from(pair: &Pair, n: usize, peer: usize) -> units::Generation {
    pair.nodes[n].superblock().peers[peer].bitmap_uuid
}

/// Both nodes write without the third one, in a generation that it has, too: 8.4 cannot be told of a new one. When one of
/// them has lost the other and the third one comes, that generation is of the past, and its bitmap says what is new.
#[test]
fn who_was_absent_gets_what_it_lacks() {
    for n in [0, 1] {
        let mut pair = pair(SHAPE);
        let before = pair.nodes[n].core.generations(VOLUME).expect("a disk")[0];
        let mut blocks = (0..20).map(|n| n * 2048 + 3);
        pair.writes(20, 4, || blocks.next().expect("20 writes"));
        pair.run(200);
        assert!(counts_from(&pair, n, 2).same(before), "node {n}");
        assert!(counts_from(&pair, n, 1 - n).is_none(), "node {n}");
        pair.command(0, Command::Secondary { force: false });
        pair.run(200);
        pair.unlink();
        pair.run(20);
        let generation = |pair: &Pair| pair.nodes[n].core.generations(VOLUME).expect("a disk")[0];
        assert!(generation(&pair).same(before), "node {n}: nothing is written any more");
        comes_to(&mut pair, n);
        pair.run(20);
        assert!(!generation(&pair).same(before), "node {n}");
        assert!(counts_from(&pair, n, 2).same(before) && counts_from(&pair, n, 1 - n).same(before), "node {n}");
        let core = &pair.nodes[n].core;
        let range = units::SectorRange { start: units::Sector(0), end: units::Sector(20 * 2048 * 8) };
        let marked = [third(), pair.nodes[n].peer].map(|peer| core.known_different(VOLUME, peer, range));
        assert_eq!(marked, [20, 0], "node {n}");
        // Once is enough.
        let begun = generation(&pair);
        pair.nodes[n].core.on_link_down(pair.now, third(), urbd_core::LinkDown::Closed);
        comes_to(&mut pair, n);
        assert!(generation(&pair).same(begun), "node {n}");
    }
}

#[test]
fn metadata_that_know_one_peer_are_refused_where_there_are_two() {
    let mut pair = Pair::on(Shape::DEFAULT, true, |_| {});
    let mut cfg = pair.nodes[0].cfg.clone();
    let address = |port| SocketAddr::from(([127, 0, 0, 1], port));
    cfg.connections.push(ConnectionConfig::new(third(), "third", (address(7790), address(7791))));
    pair.nodes[0].core = Resource::new(cfg, 3);
    pair.nodes[0].answers = Some(Vec::new());
    pair.command(0, Command::Attach { volume: VOLUME });
    pair.run(100);
    let [(_, Err(error))] = &pair.nodes[0].answers.as_ref().expect("kept")[..] else { panic!("one refusal") };
    assert_eq!(error.code, 162);
    assert!(error.text.contains("--max-peers"), "{}", error.text);
}
