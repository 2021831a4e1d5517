//! How a link begins.

use crate::rig::{Pair, VOLUME};
use units::Duration;
use urbd_core::{Command, ResourceConfig, Segments};
use wire::{ConnState, DiskState, Packet, Socket};

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
