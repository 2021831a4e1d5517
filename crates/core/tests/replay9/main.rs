//! Conversations that two kernels had in DRBD 9's dialect, with one of both replaced by the core: it gets that node's
//! configuration and metadata and what the other node said, and must say what that node said.

mod bind;
#[path = "../../../wire/tests/capture/mod.rs"]
mod capture;
mod node;
mod recording;
mod replay;

use node::Start;
use recording::Said;
use replay::Replay;
use units::{Duration, Generation, NodeId, NodeMask, Sector, VolumeNr};
use urbd_core::{Command, Protocol};
use wire::{Packet, UuidFlags, Uuids110, WireMask};

const VOLUME: VolumeNr = VolumeNr(0);

/// Two nodes with fresh metadata connect.
fn connects(node: u8) {
    let mut replay = Replay::connect("01", node, |_| {});
    replay.link_up(node == 1);
    replay.play();
    let state = replay.node.state();
    assert_eq!(state, "Connected Secondary/Secondary Connected Inconsistent/Inconsistent");
}

#[test]
fn the_lower_node_connects() {
    connects(0);
}

#[test]
fn the_higher_node_connects() {
    connects(1);
}

/// A disk of the recordings of connected nodes that have the same data.
fn good(said: &[Said], node: NodeId) -> Vec<(VolumeNr, Start)> {
    let told = |s: &Said| if let Packet::Uuids110(u) = &s.packet { Some(u.current.base()) } else { None };
    let current = said.iter().find_map(told).unwrap_or(Generation(0x1234_5678_9abc_def0));
    let tracked = NodeMask(3);
    let uuids = Uuids110 {
        current,
        dirty_bits: 0,
        flags: UuidFlags::NONE,
        nodes: WireMask::NONE,
        tracked,
        bitmaps: vec![Generation::NONE; 2],
        history: Vec::new(),
    };
    let _ = node;
    vec![(VOLUME, Start { size: Sector(512), uuids, good: true, discard: true })]
}

fn prepares(packet: &Packet) -> bool {
    matches!(packet, Packet::TwopcPrepare(_))
}

fn writes(packet: &Packet) -> bool {
    matches!(packet, Packet::Data(_))
}

/// Both become Primary and Secondary, one after the other; the second one writes.
fn changes_roles(node: u8) {
    let mut replay = Replay::joined("15", node, good, |_| {}, |_| {});
    let (up, down) = (replay.before(0, prepares), replay.before(1, prepares));
    replay.at(up, |node, now| node.command(now, Command::Primary { force: false }));
    if node == 1 {
        let write = replay.before(0, writes);
        replay.at(write, |node, now| node.write(now, VOLUME, Sector(0), 4096));
        replay.at(write + Duration::from_millis(2), |node, now| node.close(now, VOLUME));
    }
    replay.at(down, |node, now| node.command(now, Command::Secondary { force: false }));
    replay.play();
    assert_eq!(replay.node.state(), "Connected Secondary/Secondary Connected UpToDate/UpToDate");
}

#[test]
fn roles_are_changed_in_two_phases() {
    changes_roles(0);
}

#[test]
fn a_first_write_begins_a_generation() {
    changes_roles(1);
}

#[test]
fn a_disconnect_is_agreed_on() {
    for node in [0, 1] {
        let mut replay = Replay::joined("09", node, good, |_| {}, |_| {});
        if node == 1 {
            let then = replay.before(0, prepares);
            let peer = replay.node.peer;
            replay.at(then, move |node, now| node.command(now, Command::Disconnect { peer, force: false }));
        }
        replay.play();
    }
}

/// A disk with fresh metadata.
fn fresh(said: &[Said], node: NodeId) -> Vec<(VolumeNr, Start)> {
    let (volume, mut start) = good(said, node).remove(0);
    start.uuids.current = Generation::JUST_CREATED;
    start.uuids.dirty_bits = 64;
    start.uuids.flags = UuidFlags::INCONSISTENT;
    start.uuids.tracked = NodeMask::of(NodeId::new(1 - node.index() as u8).unwrap());
    start.uuids.bitmaps = vec![Generation::NONE];
    start.good = false;
    vec![(volume, start)]
}

const SKIP: fn(VolumeNr) -> Command = |volume| Command::NewCurrentUuid { volume, clear_bitmap: true };

fn generations(packet: &Packet) -> bool {
    matches!(packet, Packet::Uuids110(_))
}

#[test]
fn fresh_disks_are_declared_equal() {
    for node in [0, 1] {
        let mut replay = Replay::joined("03", node, fresh, |_| {}, |_| {});
        if node == 0 {
            let then = replay.before(0, generations);
            replay.at(then, |node, now| node.command(now, SKIP(VOLUME)));
        }
        replay.play();
        assert_eq!(replay.node.state(), "Connected Secondary/Secondary Connected UpToDate/UpToDate");
    }
}

#[test]
fn two_volumes() {
    for node in [0, 1] {
        let mut replay = Replay::connect("31", node, |_| {});
        if node == 0 {
            let second = VolumeNr(5);
            for (n, volume) in [(2, VOLUME), (3, second)] {
                let then = replay.before(n, generations);
                replay.at(then, move |node, now| node.command(now, SKIP(volume)));
            }
            let up = replay.before(1, prepares);
            replay.at(up, |node, now| node.command(now, Command::Primary { force: false }));
            replay.writes();
            let down = replay.before(2, prepares);
            replay.at(down, |node, now| node.command(now, Command::Secondary { force: false }));
        }
        replay.link_up(node == 1);
        replay.play();
        assert_eq!(replay.node.state(), "Connected Secondary/Secondary Connected UpToDate/UpToDate");
    }
}

/// Writes of several sizes, alone and together.
fn writes_in(number: &str, protocol: Protocol) {
    for node in [0, 1] {
        let change = |c: &mut urbd_core::ConnectionConfig| c.protocol = protocol;
        let mut replay = Replay::joined(number, node, fresh, change, |pair| {
            pair.command(0, SKIP(VOLUME));
            pair.command(0, Command::Primary { force: false });
        });
        if node == 0 {
            replay.writes();
        } else {
            replay.hear_position();
        }
        replay.play();
    }
}

#[test]
fn writes_in_protocol_c() {
    writes_in("04", Protocol::C);
}

#[test]
fn writes_in_protocol_b() {
    writes_in("05", Protocol::B);
}

#[test]
fn writes_in_protocol_a() {
    writes_in("06", Protocol::A);
}

#[test]
fn a_challenge_is_answered_with_the_own_node_id() {
    for node in [0, 1] {
        let mut replay = Replay::connect("17", node, |c| c.cram_hmac = Some("sha256".to_owned()));
        replay.link_up_with_secret(node == 1);
        replay.play();
        assert_eq!(replay.node.state(), "Connected Secondary/Secondary Connected Inconsistent/Inconsistent");
    }
}
