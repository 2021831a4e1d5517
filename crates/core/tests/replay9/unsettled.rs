//! Three cores and more that talk to each other: who has which of a Primary's writes, what is marked as long as nobody
//! has said so, and what becomes of that when the Primary is lost (`docs/spec/data-path-and-resync.md` 2.8, 2.10,
//! `docs/spec/connection-and-state.md` 7.7).

use crate::mesh::{fresh, three, two_sources, write};
use crate::node::{Node, Together};
use crate::{VOLUME, disk};
use units::{ByteLen, Duration, Instant, NodeId, NodeMask, Sector, SectorRange};
use urbd_core::{Command, ConnectionConfig, LinkDown, OnIoError};
use wire::{BlockId, Dagtag, Digest, DiskState, DpFlags, Packet, PeerAck, Role, Socket, Write};

fn id(n: u8) -> NodeId {
    NodeId::new(n).expect("a node id")
}

/// All have the same, node 0 is Primary, and nobody lets go of a disk that fails.
pub(crate) fn three_that_pass_on() -> Together {
    three_that_pass_on_with(&|_| {})
}

fn three_that_pass_on_with(change: &impl Fn(&mut ConnectionConfig)) -> Together {
    let start = |node| {
        let mut starts = fresh(node);
        starts[0].1.on_io_error = OnIoError::PassOn;
        starts
    };
    let mut nodes = Together::of(3, Instant(1_000_000_000), start, change);
    nodes.command(0, Command::NewCurrentUuid { volume: VOLUME, clear_bitmap: true });
    nodes.command(0, Command::Primary { force: false });
    nodes
}

/// Node 0 writes a block that node 2 refuses, as its disk fails there.
fn refused_by_2(nodes: &mut Together, at: u64) {
    nodes.act(2, |node, _| node.failing = Some(SectorRange { start: Sector(at), end: Sector(at + 8) }));
    write(nodes, at);
}

/// What is said of writes that all have is not said of one that a node has refused, however soon after them.
#[test]
fn a_write_that_one_has_refused_is_said_to_be_on_the_others_only() {
    let mut nodes = three_that_pass_on();
    write(&mut nodes, 0);
    nodes.pass(500);
    assert_eq!(nodes.marked(), 0);
    write(&mut nodes, 8);
    refused_by_2(&mut nodes, 16);
    nodes.pass(500);
    assert_eq!([0, 1].map(|n| nodes.marked_by(n, 2)), [1, 1], "{}", nodes.notes(1));
}

/// Two nodes have a write, this one has not: what it has marked there stays.
#[test]
fn a_mark_stays_where_the_own_copy_lacks_a_write() {
    for fails in [true, false] {
        let mut nodes = three_that_pass_on();
        write(&mut nodes, 0);
        nodes.pass(500);
        let mut node = nodes.leave(2);
        let mut now = Instant(10_000_000_000);
        let mut written = |node: &mut Node, seq, at: u64, has: NodeMask| {
            let (sector, block_id, size) = (Sector(8), BlockId(u64::from(seq)), ByteLen(4096));
            let write = Write { sector, block_id, seq, flags: DpFlags(0), digest: Digest::EMPTY, size };
            now = now + units::Duration::from_millis(1);
            node.hear_from(id(0), now, Socket::Data, VOLUME, Packet::Data(write));
            now = now + units::Duration::from_millis(1);
            node.pass(now);
            let ack = PeerAck { nodes: has.into(), dagtag: Dagtag(at) };
            node.hear_from(id(0), now, Socket::Control, VOLUME, Packet::PeerAck(ack));
            node.core.known_different(VOLUME, id(1), SectorRange { start: Sector(0), end: Sector(64) })
        };
        // After the first write, of 8 sectors.
        assert_eq!(written(&mut node, 2, 16, NodeMask(0b101)), 1, "node 1 lacks it");
        node.failing = Some(SectorRange { start: Sector(8), end: Sector(16) }).filter(|_| fails);
        let has = NodeMask(if fails { 0b011 } else { 0b111 });
        assert_eq!(written(&mut node, 3, 24, has), u64::from(fails), "{:#?}", node.notes);
    }
}

/// Node 1 has the last write of a Primary, which is none any more, and is the only one that has not heard that all have
/// it: it marks it for node 2 when it loses that one.
#[test]
fn what_a_lost_primary_wrote_is_compared_when_nobody_is_primary() {
    let mut nodes = three();
    write(&mut nodes, 0);
    nodes.pass(500);
    nodes.forgive();
    nodes.swallowed = |way, packet| way == [0, 1] && matches!(packet, Packet::PeerAck(_));
    write(&mut nodes, 16);
    nodes.act(0, |node, now| node.close(now, VOLUME));
    nodes.command(0, Command::Secondary { force: false });
    assert_eq!(nodes.role(0), Role::Secondary, "{}", nodes.notes(0));
    nodes.cut(0, 1);
    assert_eq!([1, 2].map(|n| nodes.disk(n)), [DiskState::UpToDate; 2], "{}", nodes.notes(1));
    assert_eq!(nodes.marked_by(1, 2), 1, "{}", nodes.notes(1));
    nodes.pass(2_500);
    assert!(nodes.said(1, "reconcile: "), "{}", nodes.notes(1));
    // Who was left may know of a Primary by now: before they have met, nobody is promoted.
    nodes.cut(1, 2);
    nodes.command(1, Command::Primary { force: false });
    assert_eq!(nodes.role(1), Role::Secondary, "{}", nodes.notes(1));
    nodes.join(1, 2);
    nodes.pass(1_000);
    assert_eq!(nodes.marked_between(1, 2), 0, "{}", nodes.notes(1));
    assert_eq!([1, 2].map(|n| nodes.disk(n)), [DiskState::UpToDate; 2]);
    assert_eq!(nodes.role(1), Role::Primary, "{}", nodes.notes(1));
}

/// Node 1 has heard of all writes of the Primary what there is to hear, but has not said so yet: the target, which is
/// a good copy by what node 0 says, waits for that.
#[test]
fn a_target_waits_for_each_good_copy() {
    for silent in [true, false] {
        let mut nodes = two_sources();
        if silent {
            nodes.lose(1, 2);
        }
        nodes.command(2, Command::ResumeSync { volume: VOLUME });
        nodes.pass(500);
        let good = if silent { DiskState::Inconsistent } else { DiskState::UpToDate };
        assert_eq!(nodes.disk(2), good, "{}", nodes.notes(2));
    }
}

/// Two that were Primary, one after the other, are lost: how much two nodes have of the first one does not say who has
/// more of the second one.
#[test]
fn of_two_lost_primaries_none_is_named() {
    let of_four = |node| {
        let mut starts = disk(&[], node, true, Sector(8192));
        starts[0].1.slots = 3;
        starts
    };
    let mut nodes = Together::of(4, Instant(1_000_000_000), of_four, &|_| {});
    nodes.command(0, Command::NewCurrentUuid { volume: VOLUME, clear_bitmap: true });
    nodes.command(0, Command::Primary { force: false });
    write(&mut nodes, 0);
    nodes.pass(500);
    nodes.act(0, |node, now| node.close(now, VOLUME));
    nodes.command(0, Command::Secondary { force: false });
    nodes.command(3, Command::Primary { force: false });
    assert_eq!(nodes.role(3), Role::Primary, "{}", nodes.notes(3));
    let writes = |nodes: &mut Together, at| {
        let kind = urbd_core::RequestKind::Write { fua: false };
        nodes.act(3, |node, now| node.write(now, VOLUME, kind, Sector(at), 4096));
    };
    writes(&mut nodes, 8);
    nodes.pass(500);
    assert_eq!(nodes.marked(), 0);
    nodes.forgive();
    nodes.lose(3, 2);
    writes(&mut nodes, 16);
    // From here on it says nothing any more.
    [0, 1].into_iter().for_each(|n| nodes.lose(3, n));
    nodes.cut(1, 2);
    for (lost, left) in [(0, 3), (0, 1), (0, 2), (1, 3), (2, 3)] {
        nodes.cut(lost, left);
    }
    nodes.pass(50);
    nodes.overheard = Some(Vec::new());
    nodes.join(1, 2);
    nodes.pass(3_000);
    let named = nodes.overheard.iter().flatten().filter(|packet| matches!(packet, Packet::PeerDagtag(_))).count();
    assert_eq!(named, 0);
    assert!(nodes.said(2, "resync-done: resync done: 4 KiB"), "node 2 gets it: {}", nodes.notes(2));
    assert_eq!(nodes.marked_between(1, 2), 0);
}

/// The others may forget what they have marked when they hear how much a node has of a lost Primary's writes.
#[test]
fn a_survivor_says_what_it_has_when_that_is_durable() {
    let mut nodes = three();
    write(&mut nodes, 0);
    nodes.pass(500);
    let mut node = nodes.leave(1);
    node.forgive = true;
    let now = Instant(10_000_000_000);
    // The first one of an epoch may be made durable by itself.
    for (seq, sector) in [(2, Sector(8)), (3, Sector(16))] {
        let (block_id, size) = (BlockId(u64::from(seq)), ByteLen(4096));
        let write = Write { sector, block_id, seq, flags: DpFlags(0), digest: Digest::EMPTY, size };
        node.hear_from(id(0), now, Socket::Data, VOLUME, Packet::Data(write));
    }
    node.core.on_link_down(now, id(0), LinkDown::Closed);
    node.turn(now);
    let tells = |node: &Node| node.sent.iter().any(|sent| matches!(sent.packet, Packet::PeerDagtag(_)));
    assert!(!tells(&node), "its disk has not flushed that yet: {:#?}", node.sent);
    node.pass(now + units::Duration::from_millis(1));
    assert!(tells(&node), "{:#?}", node.sent);
}

/// Node 2 refuses a write, and never says that its disk is bad: the write is held for that, but not for ever.
#[test]
fn a_write_does_not_wait_for_ever_for_why_it_was_refused() {
    // `timeout` times `ko-count` is less than a bad copy waits until it connects anew.
    let mut nodes = three_that_pass_on_with(&|c| (c.timeout, c.ko_count) = (Duration::from_millis(500), 2));
    nodes.forgive();
    write(&mut nodes, 0);
    nodes.pass(500);
    nodes.swallowed = |way, packet| way == [2, 0] && matches!(packet, Packet::State(_));
    refused_by_2(&mut nodes, 16);
    nodes.act(0, |node, now| node.close(now, VOLUME));
    nodes.command(0, Command::Secondary { force: false });
    nodes.pass(900);
    assert_eq!(nodes.role(0), Role::Primary, "the write is not complete: {}", nodes.notes(0));
    assert!(nodes.is_connected(0, 2), "{}", nodes.notes(0));
    nodes.pass(200);
    assert!(nodes.said(0, "refusal-unexplained"), "{}", nodes.notes(0));
    nodes.cut(0, 2);
    nodes.pass(100);
    assert_eq!(nodes.role(0), Role::Secondary, "{}", nodes.notes(0));
}
