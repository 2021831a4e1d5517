//! A node with several configured peers: DRBD 8.4's protocol lets one of them be connected.

use crate::rig::{Pair, Shape, VOLUME};
use meta::Version;
use std::net::SocketAddr;
use units::{Duration, Generation, NodeId, VolumeNr};
use urbd_core::{Command, ConnectionConfig, ConnectionState, Effect, LinkDown, LinkUp, Resource, Segments};
use wire::{ConnState, Packet, Role, Socket};

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
    third_answers(&mut pair, 0, Role::Secondary, (Generation::NONE, 0));
    assert_eq!(connection_to(&pair.nodes[0].core, third()), ConnectionState::Connected);
    // Now it is the first that is refused.
    pair.until(Duration::from_secs(60), |p| p.nodes[0].link_wanted);
    pair.link();
    pair.run(20);
    assert!(pair.nodes[0].notes.contains(&"not-the-only-peer"), "{:?}", pair.nodes[0].notes);
    assert_eq!(pair.states()[0], ConnState::StandAlone);
    assert_eq!(connection_to(&pair.nodes[0].core, third()), ConnectionState::Connected);
}

/// A handshake may fail. Who comes meanwhile comes again, and is not refused for good.
#[test]
fn beside_one_that_is_only_being_connected_another_waits() {
    let mut pair = pair(SHAPE);
    pair.unlink();
    pair.run(20);
    third_comes(&mut pair);
    pair.until(Duration::from_secs(60), |p| p.nodes[0].link_wanted);
    pair.link();
    pair.run(20);
    assert!(pair.nodes[0].notes.contains(&"another-came-first"), "{:?}", pair.nodes[0].notes);
    assert_ne!(pair.states()[0], ConnState::StandAlone);
    // The third one says nothing more.
    pair.until(Duration::from_secs(60), |p| connection_to(&p.nodes[0].core, third()) != ConnectionState::Connected);
    pair.until(Duration::from_secs(60), |p| p.nodes.iter().all(|n| n.link_wanted));
    pair.link();
    pair.run(200);
    assert_eq!(pair.states(), [ConnState::Connected; 2]);
}

/// What the superblock of a node says of a peer.
fn counts_from(pair: &Pair, n: usize, peer: usize) -> units::Generation {
    pair.nodes[n].superblock().peers[peer].bitmap_uuid
}

/// Both nodes write without the third one, in a generation that it has, too: 8.4 cannot be told of a new one.
fn written_without_third() -> (Pair, Generation) {
    let mut pair = pair(SHAPE);
    let before = generation(&pair, 0);
    let mut blocks = (0..20).map(|n| n * 2048 + 3);
    pair.writes(20, 4, || blocks.next().expect("20 writes"));
    pair.run(200);
    pair.command(0, Command::Secondary { force: false });
    pair.run(200);
    (pair, before)
}

fn generation(pair: &Pair, n: usize) -> Generation {
    pair.nodes[n].core.generations(VOLUME).expect("a disk")[0].base()
}

/// The third node says what node `n` has said to it, but for its role, and with its own bitmap.
fn third_answers(pair: &mut Pair, n: usize, role: Role, (bitmap, changed): (Generation, u64)) {
    pair.run(2);
    let now = pair.now;
    let node = &mut pair.nodes[n];
    for mut packet in std::mem::take(&mut node.to_third) {
        match &mut packet {
            Packet::ConnectionFeatures(_) => continue,
            Packet::Uuids(uuids) => (uuids.bitmap, uuids.dirty_bits) = (bitmap, changed),
            Packet::State(state) => state.role = role,
            _ => {}
        }
        node.core.on_packet(now, third(), Socket::Data, VOLUME, packet, Segments::None);
    }
    node.told = true;
    pair.run(200);
}

fn with_third(pair: &Pair, n: usize) -> ConnState {
    let snapshot = pair.nodes[n].core.snapshot();
    snapshot.connections.iter().find(|c| c.peer == third()).expect("a peer").peer_devices[0].replication
}

/// When one of them has lost the other and the third one comes, that gets what is new, and no more.
#[test]
fn who_was_absent_gets_what_it_lacks() {
    for n in [0, 1] {
        let (mut pair, before) = written_without_third();
        assert!(counts_from(&pair, n, 2).same(before), "node {n}");
        assert!(counts_from(&pair, n, 1 - n).is_none(), "node {n}");
        pair.unlink();
        pair.run(20);
        comes_to(&mut pair, n);
        third_answers(&mut pair, n, Role::Secondary, (Generation::NONE, 0));
        assert_eq!(with_third(&pair, n), ConnState::WFBitMapS, "node {n}");
        assert!(generation(&pair, n).same(before), "node {n}: nothing that the other one could miss has been written");
        let core = &pair.nodes[n].core;
        let range = units::SectorRange { start: units::Sector(0), end: units::Sector(20 * 2048 * 8) };
        let marked = [third(), pair.nodes[n].peer].map(|peer| core.known_different(VOLUME, peer, range));
        assert_eq!(marked, [20, 0], "node {n}");
    }
}

/// The third one has been with yet another node in the same generation. Who has changed nothing meanwhile is behind.
#[test]
fn two_that_wrote_with_others_in_one_generation_are_not_the_same() {
    for (changed, want) in [(0, ConnState::WFBitMapS), (3, ConnState::StandAlone)] {
        let (mut pair, _) = written_without_third();
        pair.unlink();
        pair.run(20);
        comes_to(&mut pair, 0);
        third_answers(&mut pair, 0, Role::Secondary, (Generation(0x770), changed));
        assert_eq!(with_third(&pair, 0), want, "{changed} blocks");
    }
}

/// A node that is connected to a Primary counts for who is absent, whichever of its peers that Primary is.
#[test]
fn the_first_peer_may_be_the_absent_one() {
    let mut pair = pair(SHAPE);
    pair.command(0, Command::Secondary { force: false });
    pair.run(200);
    pair.unlink();
    pair.run(20);
    let before = generation(&pair, 0);
    comes_to(&mut pair, 0);
    third_answers(&mut pair, 0, Role::Primary, (before, 0));
    assert_eq!(with_third(&pair, 0), ConnState::Connected);
    assert!(counts_from(&pair, 0, 1).same(before));
}

/// Who gets a whole copy does not learn who lacks a part of it. So it gets a generation that nobody has who does.
#[test]
fn a_target_does_not_get_a_generation_that_somebody_has_with_less_in_it() {
    let (mut pair, before) = written_without_third();
    pair.command(1, Command::invalidate(VOLUME));
    pair.until(Duration::from_secs(600), |p| p.nodes[1].notes.contains(&"resync-done"));
    pair.run(200);
    assert_eq!(generation(&pair, 0), generation(&pair, 1));
    assert!(!generation(&pair, 0).same(before));
    assert!(counts_from(&pair, 0, 2).same(before));
}

/// All bits are cleared by command: then nobody's bitmap may say that it counts from what that node has.
#[test]
fn cleared_bitmaps_count_from_the_present_generation() {
    let (mut pair, before) = written_without_third();
    let peer = pair.nodes[0].peer;
    pair.command(0, Command::Disconnect { peer, force: true });
    pair.run(200);
    pair.command(0, Command::NewCurrentUuid { volume: VOLUME, clear_bitmap: true });
    pair.run(200);
    let first = generation(&pair, 0);
    pair.command(0, Command::NewCurrentUuid { volume: VOLUME, clear_bitmap: true });
    pair.run(200);
    for peer in [1, 2] {
        assert!(counts_from(&pair, 0, peer).same(first), "peer {peer}");
    }
    assert!(pair.nodes[0].superblock().history.iter().any(|g| g.same(before)));
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

/// The second node goes on with a volume that the first one does not have.
fn with_one_volume_more(dialect: u32) -> Pair {
    let mut pair = Pair::on(SHAPE, true, |cfg| cfg.connections[0].max_version = dialect);
    pair.unlink();
    let (now, n) = (pair.now, &mut pair.nodes[1]);
    let more = urbd_core::VolumeConfig { volume: VolumeNr(1), disk: None };
    n.cfg.volumes.push(more);
    n.core = Resource::new(n.cfg.clone(), 23);
    let (peer, discard_my_data, tentative) = (n.peer, false, false);
    n.core.on_command(now, 1, Command::Attach { volume: VOLUME });
    n.core.on_command(now, 2, Command::Connect { peer, discard_my_data, tentative });
    n.told = true;
    pair.run(20);
    pair.link();
    pair
}

#[test]
fn a_volume_that_only_one_node_has_keeps_nobody_from_connecting_and_promoting() {
    for dialect in [101, wire::Version::MAX.number()] {
        let mut pair = with_one_volume_more(dialect);
        let good = |pair: &Pair| {
            let snapshots = pair.nodes.each_ref().map(|n| n.core.snapshot());
            snapshots.iter().all(|s| s.connections[0].state == ConnectionState::Connected)
                && snapshots.iter().all(|s| s.connections[0].peer_devices[0].peer_disk == wire::DiskState::UpToDate)
        };
        let seconds = pair.until(Duration::from_secs(10), good);
        assert!(seconds < 2.0, "dialect {dialect}: {seconds} s");
        let known = pair.now + Duration::from_secs(3);
        pair.until(Duration::from_secs(10), |pair| pair.now >= known);
        pair.command(0, Command::Secondary { force: false });
        pair.run(50);
        pair.command(0, Command::Primary { force: false });
        pair.until(Duration::from_secs(5), |pair| pair.nodes[0].core.snapshot().role == Role::Primary);
        assert!(good(&pair), "dialect {dialect}: {:?}", pair.nodes[1].notes);
    }
}

/// Where a handshake goes on, or what the peer has is not known yet, a node waits with it, as with other changes.
#[test]
fn who_leaves_a_peer_waits_for_the_end_of_the_handshake() {
    let (peer, force) = (NodeId::new(0).unwrap(), false);
    for (command, at_once) in [
        (Command::Disconnect { peer, force }, false),
        (Command::Down(force), false),
        (Command::Disconnect { peer, force: true }, true),
        (Command::Down(true), true),
    ] {
        let mut pair = with_one_volume_more(101);
        pair.until(Duration::from_secs(2), |pair| pair.states()[1] == ConnState::Connected);
        pair.nodes[1].answers = Some(Vec::new());
        pair.command(1, command.clone());
        let answers = |pair: &Pair| pair.nodes[1].answers.clone().expect("kept");
        pair.run(50);
        assert_eq!(!answers(&pair).is_empty(), at_once, "{command:?}");
        pair.until(Duration::from_secs(5), |pair| !answers(pair).is_empty());
        assert!(matches!(answers(&pair)[..], [(_, Ok(()))]), "{command:?}: {:?}", answers(&pair));
        assert_eq!(pair.nodes[1].core.snapshot().connections[0].state, ConnectionState::StandAlone, "{command:?}");
    }
}

/// Who is not there any more is not named as the one who has refused.
#[test]
fn a_peer_that_is_lost_before_it_answers_has_not_refused() {
    let mut pair = Pair::new(true);
    pair.command(0, Command::Secondary { force: false });
    pair.run(50);
    pair.nodes[1].answers = Some(Vec::new());
    pair.command(1, Command::Primary { force: false });
    pair.nodes[1].link_down(pair.now, LinkDown::Closed);
    pair.run(50);
    let answers = pair.nodes[1].answers.take().expect("kept");
    let [(_, Err(refusal))] = &answers[..] else { panic!("{answers:?}") };
    assert_eq!(refusal.text, "the peer was lost before it had answered: try again");
}

/// A node whose peer has not been told of a third one yet, and speaks 8.4's dialect until then.
#[test]
fn where_both_may_speak_dialect_9_the_third_is_let_in_later() {
    let mut pair = Pair::on(SHAPE, true, |cfg| {
        let address = |port| SocketAddr::from(([127, 0, 0, 1], port));
        let third = ConnectionConfig::new(third(), "third", (address(7790), address(7791)));
        cfg.connections.push(ConnectionConfig { max_version: 124, ..third });
    });
    assert_eq!(pair.states(), [ConnState::Connected; 2]);
    let told = pair.reconfigure(0, |cfg| cfg.connections.iter_mut().for_each(|c| c.max_version = 124));
    assert_eq!(told, Some(Ok(())));
    third_comes(&mut pair);
    pair.run(20);
    assert!(pair.nodes[0].notes.contains(&"another-came-first"), "{:?}", pair.nodes[0].notes);
    assert_eq!(connection_to(&pair.nodes[0].core, third()), ConnectionState::Connecting);
    assert_eq!(pair.states(), [ConnState::Connected; 2]);
}

/// Comes to the first node as far as both have been asked for a proof. `mac`: what that node computes.
fn third_asks_for_proof(pair: &mut Pair, mac: Option<Vec<u8>>) {
    let now = pair.now;
    let n = &mut pair.nodes[0];
    n.core.on_link_up(now, third(), LinkUp { resolve_conflicts: false, challenge: [7; 64] });
    let challenge = Packet::AuthChallenge(Box::new(wire::AuthBytes::new(&[9; 64]).expect("64 bytes")));
    for packet in [features(), challenge] {
        n.core.on_packet(now, third(), Socket::Data, VOLUME, packet, Segments::None);
    }
    for token in [1, 2] {
        n.core.on_hmac(now, third(), token, mac.clone());
    }
    n.told = true;
    pair.run(20);
}

/// A command that changes the secret waits for what is under way, and the engine has the new one already: nothing is
/// computed with it. That ends when the command is carried out, as when somebody makes the secrets equal.
#[test]
fn a_secret_that_is_just_being_changed_is_tried_again_when_it_is_there() {
    let mut pair = pair(SHAPE);
    pair.unlink();
    pair.run(20);
    let secret = |cfg: &mut urbd_core::ResourceConfig| {
        cfg.connections.iter_mut().for_each(|c| c.cram_hmac = Some("sha1".to_owned()));
    };
    assert_eq!(pair.reconfigure(0, secret), Some(Ok(())));
    let connect = Command::Connect { peer: third(), discard_my_data: false, tentative: false };
    pair.command(0, connect);
    pair.run(20);
    third_asks_for_proof(&mut pair, None);
    assert!(pair.nodes[0].notes.contains(&"no-hmac"), "{:?}", pair.nodes[0].notes);
    assert_eq!(connection_to(&pair.nodes[0].core, third()), ConnectionState::Connecting);
    pair.nodes[0].link_wanted = false;
    assert_eq!(pair.reconfigure(0, secret), Some(Ok(())));
    assert!(pair.nodes[0].link_wanted, "it is tried at once");
    pair.nodes[0].to_third.clear();
    third_asks_for_proof(&mut pair, Some(vec![5; 20]));
    let proof = Packet::AuthResponse(Box::new(wire::AuthBytes::new(&[5; 20]).expect("20 bytes")));
    let now = pair.now;
    pair.nodes[0].core.on_packet(now, third(), Socket::Data, VOLUME, proof, Segments::None);
    pair.nodes[0].told = true;
    pair.run(20);
    assert!(pair.nodes[0].to_third.iter().any(|packet| matches!(packet, Packet::Protocol(_))));
}
