//! What the peer owes, and until when.

use crate::rig::Pair;
use units::Duration;
use urbd_core::decide::Handler;
use urbd_core::{Command, ConnectionState, Fencing, ResourceConfig};
use wire::{ConnState, DiskState, Packet};

fn impatient(cfg: &mut ResourceConfig) {
    let c = &mut cfg.connections[0];
    (c.timeout, c.ko_count) = (Duration::from_secs(1), 2);
    (c.ping_int, c.ping_timeout) = (Duration::from_secs(1), Duration::from_millis(500));
}

/// The peer answers pings and writes, but no barrier.
#[test]
pub(crate) fn an_unanswered_barrier_is_overdue() {
    let mut pair = Pair::with(true, impatient);
    pair.nodes[1].lost = |packet| matches!(packet, Packet::BarrierAck(_));
    pair.writes(4, 1, || 7);
    let seconds = pair.until(Duration::from_secs(10), |p| p.nodes[0].notes.contains(&"request-timeout"));
    assert!((1.9..4.0).contains(&seconds), "{seconds} s; timeout x ko-count is 2 s");
}

/// It answers writes, but no ping.
#[test]
pub(crate) fn who_sends_anything_is_alive() {
    let mut pair = Pair::with(true, impatient);
    pair.nodes[1].lost = |packet| matches!(packet, Packet::PingAck);
    pair.turn = Duration::from_millis(10);
    for _ in 0..5 {
        // It is pinged after a second of silence.
        pair.run(120);
        pair.writes(1, 1, || 7);
    }
    assert_eq!(pair.states(), [ConnState::Connected; 2], "{:?}", pair.nodes[0].notes);
    assert!(!pair.nodes[0].notes.contains(&"ping-timeout"), "{:?}", pair.nodes[0].notes);
}

/// What it says of a peer that has been here meanwhile is about another time.
#[test]
pub(crate) fn a_handler_of_a_former_connection_does_not_fence() {
    let mut pair = Pair::with(true, |cfg| {
        cfg.handlers.push(Handler::FencePeer);
        cfg.volumes[0].disk.as_mut().unwrap().fencing = Fencing::ResourceAndStonith;
    });
    pair.unlink();
    pair.run(20);
    pair.link();
    pair.run(100);
    assert_eq!(pair.states(), [ConnState::Connected; 2]);
    pair.unlink();
    pair.run(20);
    let (now, node) = (pair.now, &mut pair.nodes[0]);
    let peers_disk = |node: &crate::rig::Node| node.core.snapshot().connections[0].peer_devices[0].peer_disk;
    assert!(peers_disk(node) > DiskState::Outdated);
    // The first call's end: it has outdated the peer, before that came back.
    node.core.on_handler_exit(now, 1, 4);
    node.told = true;
    pair.run(20);
    let node = &pair.nodes[0];
    assert_ne!(node.core.snapshot().connections[0].state, ConnectionState::Connected);
    assert!(peers_disk(node) > DiskState::Outdated, "{:?}", node.notes);
}

/// It was called while the peer was on its way back, and says what it did to that one when it is here.
#[test]
pub(crate) fn a_peer_that_is_back_is_not_fenced() {
    let mut pair = Pair::with(true, |cfg| {
        cfg.handlers.push(Handler::FencePeer);
        cfg.volumes[0].disk.as_mut().unwrap().fencing = Fencing::ResourceAndStonith;
    });
    pair.command(0, Command::Secondary { force: false });
    pair.run(100);
    pair.unlink();
    pair.run(20);
    pair.link();
    pair.nodes[0].notes.clear();
    // The handshake has begun, and nobody knows yet what the peer is.
    pair.nodes[0].answers = Some(Vec::new());
    pair.command(0, Command::Primary { force: false });
    pair.run(100);
    assert_eq!(pair.states(), [ConnState::Connected; 2], "{:?}", pair.nodes[0].notes);
    let (now, node) = (pair.now, &mut pair.nodes[0]);
    node.core.on_handler_exit(now, 1, 4);
    node.told = true;
    pair.run(100);
    let node = &pair.nodes[0];
    assert!(node.notes.contains(&"fencing-overtaken"), "{:?}", node.notes);
    assert_eq!(node.core.snapshot().connections[0].peer_devices[0].peer_disk, DiskState::UpToDate);
}

#[test]
pub(crate) fn an_epoch_has_max_epoch_size_writes_at_most() {
    let mut pair = Pair::with(true, |cfg| cfg.connections[0].max_epoch_size = 10);
    let mut next = 0;
    // All at once, so that none is complete when the last one begins.
    let [a, _] = pair.writes(100, 100, || {
        next += 16;
        next
    });
    pair.run(5000);
    assert!(a.barriers >= 9, "{a:?}");
}
