//! What a node says of two others (P_PEERS_IN_SYNC), and what is not to be concluded from it: the streams of different
//! nodes do not wait for each other, so what is heard may have been true when it was said, and is not any more.

use crate::node::Together;
use crate::unsettled::three_that_pass_on;
use crate::{VOLUME, mesh};
use units::{ByteLen, Instant, NodeId, NodeMask, Sector, SectorRange};
use urbd_core::Command;
use wire::{ConnState, DiskState, Packet, PeersInSync, ResizeFlags, Socket};

/// Where a disk fails, of which no other node hears anything else.
const BAD: Sector = Sector(64);
/// Elsewhere in the same extent.
const GOOD: Sector = Sector(128);
const BLOCK: u64 = 8;
/// What is marked of a block that differs, in bytes.
const DIFFERS: u64 = 4096;

fn node(n: u8) -> NodeId {
    NodeId::new(n).expect("a node id")
}

fn block(at: Sector) -> SectorRange {
    SectorRange { start: at, end: Sector(at.0 + BLOCK) }
}

/// Three nodes have the same, node 0 is Primary. A write that a disk refuses is left out there.
fn three() -> Together {
    let mut nodes = three_that_pass_on();
    nodes.forgive();
    // Of this generation all have a write.
    write(&mut nodes, Sector(0));
    nodes.pass(200);
    nodes
}

fn write(nodes: &mut Together, at: Sector) {
    mesh::write(nodes, at.0);
}

/// The disk of a node refuses what is written there.
fn refuses(nodes: &mut Together, n: usize, range: SectorRange) {
    nodes.act(n, |node, _| node.failing = Some(range));
}

/// All of these nodes have the same there.
fn same(nodes: [u8; 2], at: Sector) -> Packet {
    let listed = NodeMask(nodes.iter().map(|n| 1 << n).sum());
    Packet::PeersInSync(PeersInSync { sector: at, nodes: listed.into(), size: ByteLen(BLOCK * 512) })
}

fn hears(nodes: &mut Together, n: usize, from: u8, packet: Packet) {
    nodes.act(n, |own, now| own.hear_from(node(from), now, Socket::Control, VOLUME, packet));
}

/// Node 1 has the write, and what it says it has said before: what comes behind that, its answer, is not there yet.
#[test]
fn what_is_being_written_is_not_in_sync_by_hearsay() {
    let mut nodes = three();
    refuses(&mut nodes, 2, block(BAD));
    nodes.lose(1, 0);
    write(&mut nodes, BAD);
    nodes.pass(5);
    assert_eq!(nodes.marks(0, 2), DIFFERS, "{}", nodes.notes(0));
    hears(&mut nodes, 0, 1, same([0, 2], BAD));
    assert_eq!(nodes.marks(0, 2), DIFFERS, "node 2 has refused it");
}

/// Node 1 lacks the one, too, and so knows nothing of that. It has the other one.
#[test]
fn who_lacks_something_says_nothing_of_others() {
    let mut nodes = three();
    refuses(&mut nodes, 1, block(BAD));
    refuses(&mut nodes, 2, SectorRange { start: BAD, end: block(GOOD).end });
    write(&mut nodes, BAD);
    write(&mut nodes, GOOD);
    nodes.pass(200);
    nodes.command(0, Command::Secondary { force: true });
    assert_eq!([1, 2].map(|n| nodes.marks(0, n)), [DIFFERS, 2 * DIFFERS], "{}", nodes.notes(0));
    hears(&mut nodes, 0, 1, same([0, 2], BAD));
    assert_eq!(nodes.marks(0, 2), 2 * DIFFERS);
    hears(&mut nodes, 0, 1, same([0, 2], GOOD));
    assert_eq!(nodes.marks(0, 2), DIFFERS);
}

/// Node 2 is no good copy, and does not hear of all that the Primary writes.
#[test]
fn a_primarys_writes_overtake_what_is_said_by_who_does_not_get_them() {
    let mut nodes = three();
    refuses(&mut nodes, 1, block(BAD));
    refuses(&mut nodes, 2, block(GOOD));
    write(&mut nodes, BAD);
    write(&mut nodes, GOOD);
    nodes.pass(200);
    assert_eq!([1, 2].map(|n| nodes.marks(0, n)), [DIFFERS; 2], "{}", nodes.notes(0));
    hears(&mut nodes, 0, 2, same([0, 1], BAD));
    assert_eq!(nodes.marks(0, 1), DIFFERS);
}

/// Node 1 learns that node 2 has by now what it had refused, and passes that on: of the whole extent, unless something
/// there is being written, which node 2 may refuse.
#[test]
fn nothing_is_said_of_what_is_being_written() {
    for written in [false, true] {
        let mut nodes = three();
        refuses(&mut nodes, 2, block(BAD));
        write(&mut nodes, BAD);
        nodes.pass(200);
        assert_eq!(nodes.marks(1, 2), DIFFERS, "the Primary has said so: {}", nodes.notes(1));
        if written {
            nodes.lose(1, 0);
            write(&mut nodes, GOOD);
        }
        let mut own = nodes.leave(1);
        own.sent.clear();
        own.hear_from(node(0), Instant(10_000_000_000), Socket::Control, VOLUME, same([1, 2], BAD));
        assert_eq!(own.core.known_different(VOLUME, node(2), block(BAD)), 0, "it is heeded");
        let says = own.sent.iter().any(|sent| matches!(sent.packet, Packet::PeersInSync(_)));
        assert_eq!(says, !written, "{:#?}", own.sent);
    }
}

/// Node 0 has written while it reached nobody, and brings node 2 up to date. What node 1 says is older than that.
#[test]
fn what_is_being_copied_is_not_known_from_hearsay() {
    for paused in [false, true] {
        let mut nodes = three();
        nodes.cut(0, 1);
        nodes.cut(0, 2);
        write(&mut nodes, BAD);
        nodes.command(2, Command::PauseSync { volume: VOLUME });
        nodes.join(0, 2);
        nodes.pass(50);
        nodes.lose(0, 2);
        if !paused {
            nodes.command(2, Command::ResumeSync { volume: VOLUME });
        }
        let copies = if paused { ConnState::PausedSyncT } else { ConnState::SyncTarget };
        assert_eq!((nodes.replication(2, 0), nodes.disk(2)), (copies, DiskState::Inconsistent));
        assert_eq!((nodes.marks(2, 0), nodes.marks(2, 1)), (DIFFERS, 0), "{}", nodes.notes(2));
        hears(&mut nodes, 2, 1, same([0, 2], BAD));
        assert_eq!(nodes.marks(2, 0), DIFFERS, "node 2 does not have it");
    }
}

/// A word that a Primary has still to say, as a peer was connected twice within a second, is of the device as it was.
#[test]
fn nothing_is_said_of_what_the_device_has_no_more() {
    let mut nodes = three();
    for _ in 0..2 {
        nodes.cut(0, 2);
        nodes.join(0, 2);
        nodes.pass(20);
    }
    assert!(nodes.is_connected(0, 2), "{}", nodes.notes(0));
    let smaller = Sector(4096);
    nodes.act(0, |own, now| own.close(now, VOLUME));
    nodes.act(0, |own, now| own.resize(now, VOLUME, smaller, ResizeFlags::default()));
    assert_eq!(nodes.size(0), smaller, "{}", nodes.notes(0));
    nodes.overheard = Some(Vec::new());
    nodes.pass(1_500);
    let said = nodes.overheard.iter().flatten();
    let said: Vec<_> =
        said.filter_map(|packet| if let Packet::PeersInSync(told) = packet { Some(told) } else { None }).collect();
    assert!(!said.is_empty(), "{}", nodes.notes(0));
    assert!(said.iter().all(|told| told.sector.0 + told.size.0 / 512 <= smaller.0), "{said:?}");
}
