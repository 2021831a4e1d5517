//! How a link begins.

use crate::rig::{Pair, Shape, VOLUME};
use std::cell::Cell;
use units::Duration;
use urbd_core::decide::Handler;
use urbd_core::{Command, Fencing, ResourceConfig, Segments};
use wire::{BlockAck, ConnState, DiskState, Packet, Socket};

/// A ping before the ping-timeout's fourfold, by which a handshake must have ended, is due.
fn pings_early(cfg: &mut ResourceConfig) {
    cfg.connections[0].ping_int = Duration::from_secs(1);
    cfg.connections[0].ping_timeout = Duration::from_millis(500);
}

/// Of what the peer says only what is not `lost` comes. No ping is sent, and the handshake ends by its time-out.
fn no_ping_without(lost: fn(&Packet) -> bool) {
    let mut pair = Pair::with(true, pings_early);
    pair.unlink();
    pair.run(5);
    pair.nodes[0].notes.clear();
    pair.nodes[0].lost = |packet| {
        assert!(!matches!(packet, Packet::Ping), "a ping before the handshake has ended");
        false
    };
    pair.nodes[1].lost = lost;
    pair.link();
    pair.until(Duration::from_secs(5), |p| p.nodes[0].notes.contains(&"handshake-timeout"));
}

#[test]
fn no_ping_before_the_peers_features() {
    no_ping_without(|_| true);
}

/// 8.4.11 and 9.3.3 may take no notice of a disk that is attached beside them.
#[test]
fn an_attach_that_the_peer_does_not_answer_is_settled_by_a_new_connection() {
    let mut pair = Pair::new(true);
    pair.command(1, Command::Detach { volume: VOLUME, force: false });
    pair.until(Duration::from_secs(5), |p| p.nodes[1].core.snapshot().devices[0].disk == DiskState::Diskless);
    pair.nodes[0].lost = |packet| matches!(packet, Packet::State(_));
    pair.command(1, Command::Attach { volume: VOLUME });
    pair.until(Duration::from_secs(5), |p| p.nodes[1].core.snapshot().devices[0].disk == DiskState::Negotiating);
    pair.until(Duration::from_secs(60), |p| p.nodes[1].notes.contains(&"attach-unanswered"));
}

/// A Primary keeps the connection to the only good copy, and lets go of the disk.
#[test]
fn an_unanswered_attach_of_a_primary_takes_no_copy_away() {
    let mut pair = Pair::new(true);
    pair.command(0, Command::Detach { volume: VOLUME, force: false });
    pair.until(Duration::from_secs(5), |p| p.nodes[0].core.snapshot().devices[0].disk == DiskState::Diskless);
    pair.nodes[1].lost = |packet| matches!(packet, Packet::State(_));
    pair.command(0, Command::Attach { volume: VOLUME });
    pair.until(Duration::from_secs(60), |p| p.nodes[0].notes.contains(&"attach-unanswered"));
    pair.run(100);
    assert_eq!(pair.nodes[0].core.snapshot().devices[0].disk, DiskState::Diskless);
    assert_eq!(pair.states(), [ConnState::Connected; 2]);
}

/// The kernel has not begun to read the control stream by then.
#[test]
fn no_ping_before_the_peers_parameters() {
    no_ping_without(|packet| !matches!(packet, Packet::ConnectionFeatures(_)));
}

/// DRBD 9 says that to an 8.4 node, too. The link stays.
#[test]
fn what_9_says_of_replication_is_ignored() {
    let mut pair = Pair::new(true);
    let (now, peer) = (pair.now, pair.nodes[0].peer);
    for packet in [Packet::EnableReplicationNext(false), Packet::EnableReplication(true)] {
        pair.nodes[0].core.on_packet(now, peer, Socket::Data, VOLUME, packet, Segments::None);
    }
    pair.run(100);
    assert!(pair.states() == [ConnState::Connected; 2] && !pair.nodes[0].notes.contains(&"link closed"));
}

/// A peer's options are its own affair: nothing is compared on a live connection. What cannot be checked ends it.
#[test]
fn a_peer_that_changes_its_options_stays_connected() {
    for (name, stays) in [("crc32c", true), ("", true), ("rot13", false)] {
        let mut pair = Pair::new(true);
        let (now, peer) = (pair.now, pair.nodes[0].peer);
        let changed = wire::Protocol {
            protocol: wire::ReplicationProtocol::A,
            after_sb_0pri: wire::AfterSplitBrain::DiscardYoungerPrimary,
            after_sb_1pri: wire::AfterSplitBrain::Disconnect,
            after_sb_2pri: wire::AfterSplitBrain::Disconnect,
            discard_my_data: false,
            dry_run: false,
            two_primaries: false,
            integrity_alg: wire::AlgName::new(name).expect("a name"),
        };
        let packet = Packet::ProtocolUpdate(Box::new(changed));
        pair.nodes[0].core.on_packet(now, peer, Socket::Data, VOLUME, packet, Segments::None);
        pair.nodes[0].told = true;
        pair.run(100);
        assert_eq!(pair.states()[0] == ConnState::Connected, stays, "{name}: {:?}", pair.nodes[0].notes);
        assert_eq!(pair.nodes[0].notes.contains(&"integrity-alg-differs"), !name.is_empty());
    }
}

thread_local! {
    /// The answer to a write, which is lost.
    static ANSWER: Cell<Option<BlockAck>> = const { Cell::new(None) };
}

/// A write is frozen, as its answer was lost with the link, and the peer comes back and answers it at once.
fn answered_on_the_next_link(answer: fn(BlockAck) -> Packet) -> Pair {
    let mut pair = Pair::with(true, |cfg| {
        cfg.handlers.push(Handler::FencePeer);
        for volume in &mut cfg.volumes {
            volume.disk.as_mut().expect("a disk").fencing = Fencing::ResourceAndStonith;
        }
    });
    pair.nodes[1].lost = |packet| match packet {
        Packet::WriteAck(ack) => ANSWER.replace(Some(*ack)).is_none(),
        _ => false,
    };
    pair.write(3);
    pair.run(20);
    let ack = ANSWER.take().expect("the peer has answered");
    pair.unlink();
    pair.run(20);
    assert!(
        pair.nodes[0].core.snapshot().suspended.because_of(urbd_core::SuspendReason::Fencing),
        "{:?}",
        pair.nodes[0].notes
    );
    pair.nodes[1].lost = |_| false;
    pair.nodes[0].notes.clear();
    pair.link();
    let (now, peer) = (pair.now, pair.nodes[0].peer);
    pair.nodes[0].told = true;
    pair.nodes[0].core.on_packet(now, peer, Socket::Control, VOLUME, answer(ack), Segments::None);
    pair
}

#[test]
fn an_answer_to_a_write_of_the_link_before_is_nobodys() {
    for answer in [Packet::WriteAck, Packet::RsWriteAck] {
        let mut pair = answered_on_the_next_link(answer);
        pair.run(20);
        assert!(pair.nodes[0].notes.contains(&"unknown-answer"), "{:?}", pair.nodes[0].notes);
    }
}

#[test]
fn a_refusal_of_a_write_of_the_link_before_leaves_it_to_be_sent_again() {
    let mut pair = answered_on_the_next_link(Packet::NegAck);
    let before = pair.nodes[0].counts.data_packets;
    pair.until(Duration::from_secs(10), |p| p.states() == [ConnState::Connected; 2] && p.is_idle());
    assert_eq!(pair.nodes[0].counts.data_packets, before + 1);
    assert!(!pair.nodes[0].core.snapshot().suspended.because_of(urbd_core::SuspendReason::Fencing));
}

/// A hand-over: the other node has become Secondary, and says so at this moment. No time-out is waited for.
#[test]
fn who_is_promoted_while_the_others_word_is_on_its_way_goes_on_when_it_comes() {
    for shape in [Shape::DEFAULT, Shape { version: meta::Version::V09, ..Shape::DEFAULT }] {
        let patience = Duration::from_secs(3);
        let mut pair = Pair::on(shape, true, |cfg| cfg.connections[0].ping_timeout = patience);
        pair.nodes[1].answers = Some(Vec::new());
        // In turns of 20 ms each packet is on its way so long.
        pair.turn = Duration::from_millis(20);
        pair.command_with_id(1, 60, Command::Primary { force: false });
        pair.run(1);
        assert_eq!(pair.answer_to(1, 60), None, "the other one is Primary");
        pair.command(0, Command::Secondary { force: false });
        let took = pair.until(patience, |p| p.answer_to(1, 60).is_some());
        assert_eq!(pair.answer_to(1, 60), Some(Ok(())));
        assert!(took < 1.0, "{took} s");
    }
}
