//! Three cores whose device gets another size.

use crate::node::{Node, Sent, Start, Together};
use crate::recording::{Said, conversation_live};
use crate::{VOLUME, disk};
use units::{Duration, Instant, NodeId, Sector, VolumeNr};
use urbd_core::{Command, RequestKind};
use wire::{
    BlockData, BlockRequest, ConnState, Digest, DiskState, FlushAnswer, Packet, ResizeFlags, Socket, Vote, WireMask,
};

const SMALL: Sector = Sector(8192);
const LARGE: Sector = Sector(16384);
const PLAIN: ResizeFlags = ResizeFlags { forced: false, assume_clean: false };
const CLEAN: ResizeFlags = ResizeFlags { forced: false, assume_clean: true };
const FORCED: ResizeFlags = ResizeFlags { forced: true, assume_clean: false };

/// All have the same; there is room for so much on each.
fn with_rooms(rooms: [Sector; 3]) -> Together {
    let start = |node: NodeId| -> Vec<(VolumeNr, Start)> {
        let mut starts = disk(&[], node, true, SMALL);
        (starts[0].1.slots, starts[0].1.room) = (2, rooms[node.index()]);
        starts
    };
    let mut nodes = Together::of(3, Instant(1_000_000_000), start, &|_| {});
    nodes.command(0, Command::NewCurrentUuid { volume: VOLUME, clear_bitmap: true });
    // They connect at the size that they were made with.
    nodes.forgive();
    nodes
}

/// The same, with the device at the size that the disks were made for.
fn three() -> Together {
    with_rooms([LARGE; 3])
}

fn primary(nodes: &mut Together, node: usize) {
    nodes.command(node, Command::Primary { force: false });
    assert_eq!(nodes.result(node), Some(Ok(())));
}

fn resize(nodes: &mut Together, node: usize, flags: ResizeFlags) {
    nodes.act(node, |node, now| node.resize(now, VOLUME, Sector(0), flags));
}

fn write(nodes: &mut Together, node: usize, at: u64) {
    nodes.act(node, |node, now| node.write(now, VOLUME, RequestKind::Write { fua: false }, Sector(at), 4096));
}

/// Those that are not connected try it again and again.
fn meet(nodes: &mut Together) {
    for _ in 0..6 {
        for [one, other] in [[0, 1], [0, 2], [1, 2]] {
            if !nodes.is_connected(one, other) {
                nodes.cut(one, other);
                nodes.join(one, other);
            }
        }
        nodes.pass(2_000);
    }
}

fn sizes(nodes: &Together) -> [Sector; 3] {
    [0, 1, 2].map(|n| nodes.size(n))
}

fn all_good(nodes: &Together) {
    assert_eq!([0, 1, 2].map(|n| nodes.disk(n)), [DiskState::UpToDate; 3]);
    for [one, other] in [[0, 1], [0, 2], [1, 2]] {
        let notes = format!("{}\n{}", nodes.notes(one), nodes.notes(other));
        assert!(nodes.is_connected(one, other), "{one} and {other}: {notes}");
        assert_eq!(nodes.marked_between(one, other), 0, "{one} and {other}: {notes}");
    }
}

/// Whoever is Primary, if anybody, and whoever asks: all have what was added from one of them.
#[test]
fn all_grow_together() {
    for (serves, asks) in [(Some(0), 0), (Some(0), 1), (Some(2), 1), (None, 1)] {
        let mut nodes = three();
        if let Some(node) = serves {
            primary(&mut nodes, node);
            write(&mut nodes, node, 0);
            nodes.pass(500);
        }
        resize(&mut nodes, asks, PLAIN);
        assert_eq!(nodes.result(asks), Some(Ok(())));
        assert_eq!(sizes(&nodes), [LARGE; 3]);
        if let Some(node) = serves {
            write(&mut nodes, node, LARGE.0 - 8);
        }
        nodes.pass(2_000);
        let source = serves.unwrap_or(asks);
        for other in [0, 1, 2].into_iter().filter(|n| *n != source) {
            assert!(
                nodes.said(other, "resync-done: resync done: 4096 KiB"),
                "{serves:?} {asks}: {}",
                nodes.notes(other)
            );
            assert!(serves.is_none() || !nodes.said(other, "link closed"), "{}", nodes.notes(other));
        }
        meet(&mut nodes);
        all_good(&nodes);
        // Again: nothing is left to do.
        resize(&mut nodes, asks, PLAIN);
        assert_eq!(nodes.result(asks), Some(Ok(())));
        nodes.pass(100);
        all_good(&nodes);
    }
}

#[test]
fn what_is_assumed_to_be_clean_is_not_copied() {
    let mut nodes = three();
    primary(&mut nodes, 0);
    resize(&mut nodes, 0, CLEAN);
    assert_eq!(nodes.result(0), Some(Ok(())));
    assert_eq!(sizes(&nodes), [LARGE; 3]);
    assert!([0, 1, 2].iter().all(|n| !nodes.said(*n, "resync-start")));
    all_good(&nodes);
    write(&mut nodes, 0, LARGE.0 - 8);
    nodes.pass(500);
    all_good(&nodes);
}

/// Node 1 has no more room.
#[test]
fn the_smallest_disk_decides() {
    let mut nodes = with_rooms([LARGE, SMALL, LARGE]);
    for asks in [0, 2] {
        resize(&mut nodes, asks, PLAIN);
        let refused = nodes.result(asks).expect("it has ended").expect_err("there is no room");
        assert!(refused.contains("room for 4096 KiB only"), "{refused}");
        assert_eq!(sizes(&nodes), [SMALL; 3]);
        all_good(&nodes);
    }
    // There is for a part of it.
    let mut nodes = with_rooms([LARGE, Sector(12288), LARGE]);
    resize(&mut nodes, 0, PLAIN);
    assert_eq!(nodes.result(0), Some(Ok(())));
    assert_eq!(sizes(&nodes), [Sector(12288); 3]);
    meet(&mut nodes);
    all_good(&nodes);
}

/// Node 2 is away. It is not known what it has room for; when it is back it follows, and gets what was added.
#[test]
fn who_was_away_follows() {
    for serves in [Some(0), None] {
        let mut nodes = three();
        if let Some(node) = serves {
            primary(&mut nodes, node);
        }
        nodes.cut(0, 2);
        nodes.cut(1, 2);
        resize(&mut nodes, 0, PLAIN);
        let refused = nodes.result(0).expect("it has ended").expect_err("one is away");
        assert!(refused.contains("it is not known what the disk holds of other"), "{refused}");
        assert_eq!(sizes(&nodes), [SMALL; 3]);
        resize(&mut nodes, 0, FORCED);
        assert_eq!(nodes.result(0), Some(Ok(())));
        assert_eq!(sizes(&nodes), [LARGE, LARGE, SMALL]);
        nodes.pass(1_000);
        meet(&mut nodes);
        assert_eq!(sizes(&nodes), [LARGE; 3], "{}", nodes.notes(2));
        assert!(nodes.said(2, "resync-done: resync done: 4096 KiB"), "{}", nodes.notes(2));
        all_good(&nodes);
    }
}

/// Node 2 is away, and has no room for what the others agree on without it.
#[test]
fn who_was_away_and_has_no_room_is_refused() {
    let mut nodes = with_rooms([LARGE, LARGE, SMALL]);
    nodes.cut(0, 2);
    nodes.cut(1, 2);
    resize(&mut nodes, 0, FORCED);
    assert_eq!(nodes.result(0), Some(Ok(())));
    nodes.pass(500);
    nodes.join(0, 2);
    nodes.pass(100);
    assert!(nodes.said(0, "peer-disk-too-small"), "{}", nodes.notes(0));
    assert!(!nodes.is_connected(0, 2));
    assert_eq!(sizes(&nodes), [LARGE, LARGE, SMALL]);
}

/// What does not fit, or is in use, is not given away.
#[test]
fn a_device_shrinks_when_nobody_uses_it() {
    let mut nodes = three();
    primary(&mut nodes, 0);
    write(&mut nodes, 0, 0);
    nodes.pass(500);
    let limit = Sector(4096);
    for asks in [0, 1] {
        nodes.act(asks, |node, now| node.resize(now, VOLUME, limit, PLAIN));
        assert!(nodes.result(asks).expect("it has ended").is_err());
        assert_eq!(sizes(&nodes), [SMALL; 3]);
    }
    nodes.act(0, |node, now| node.close(now, VOLUME));
    nodes.act(1, |node, now| node.resize(now, VOLUME, limit, PLAIN));
    assert_eq!(nodes.result(1), Some(Ok(())));
    assert_eq!(sizes(&nodes), [limit; 3]);
    nodes.pass(100);
    all_good(&nodes);
}

#[test]
fn nothing_grows_during_a_resync() {
    let mut nodes = three();
    primary(&mut nodes, 0);
    nodes.cut(0, 2);
    write(&mut nodes, 0, 0);
    nodes.command(2, Command::PauseSync { volume: VOLUME });
    nodes.join(0, 2);
    resize(&mut nodes, 0, PLAIN);
    assert!(nodes.result(0).expect("it has ended").expect_err("a resync is going on").contains("resync"));
    // Who does not know of it is told to wait.
    resize(&mut nodes, 1, PLAIN);
    nodes.pass(1_000);
    assert_eq!((nodes.result(1), sizes(&nodes)), (None, [SMALL; 3]));
    nodes.command(2, Command::ResumeSync { volume: VOLUME });
    nodes.pass(3_000);
    assert_eq!((nodes.result(1), sizes(&nodes)), (Some(Ok(())), [LARGE; 3]));
    meet(&mut nodes);
    all_good(&nodes);
}

/// Nodes 1 and 2 reach each other over node 0 only.
#[test]
fn a_chain_grows() {
    for (serves, asks) in [(Some(1), 1), (Some(1), 2), (Some(0), 1), (None, 0), (None, 1)] {
        let mut nodes = three();
        nodes.cut(1, 2);
        if let Some(node) = serves {
            primary(&mut nodes, node);
        }
        resize(&mut nodes, asks, PLAIN);
        assert_eq!(nodes.result(asks), Some(Ok(())));
        assert_eq!(sizes(&nodes), [LARGE; 3]);
        nodes.pass(3_000);
        if let Some(node) = serves {
            nodes.command(node, Command::Secondary { force: false });
        }
        meet(&mut nodes);
        // Once at least: who is demoted after that may get it again.
        let source = serves.unwrap_or(asks);
        for other in [0, 1, 2].into_iter().filter(|n| *n != source) {
            let copied = nodes.said(other, "resync-done: resync done: 4096 KiB");
            assert!(copied, "{serves:?} {asks}: {}", nodes.notes(other));
        }
        all_good(&nodes);
    }
}

/// A link goes while all are asked: it is tried again without that node, which must be known to have room.
#[test]
fn a_transaction_breaks_off() {
    let mut nodes = three();
    nodes.lose(0, 2);
    resize(&mut nodes, 0, PLAIN);
    nodes.pass(100);
    assert_eq!((nodes.result(0), sizes(&nodes)), (None, [SMALL; 3]));
    nodes.cut(0, 2);
    nodes.cut(1, 2);
    nodes.pass(1_000);
    let refused = nodes.result(0).expect("it has ended").expect_err("one is away");
    assert!(refused.contains("it is not known"), "{refused}");
    nodes.hear_again();
    meet(&mut nodes);
    resize(&mut nodes, 2, PLAIN);
    nodes.pass(1_000);
    assert_eq!((nodes.result(2), sizes(&nodes)), (Some(Ok(())), [LARGE; 3]));
    meet(&mut nodes);
    all_good(&nodes);
}

/// Nobody answers, or somebody says no: nothing changes, and the command ends.
#[test]
fn a_transaction_is_not_answered_or_refused() {
    let mut nodes = three();
    nodes.cut(1, 2);
    nodes.lose(1, 0);
    resize(&mut nodes, 0, PLAIN);
    // Pings are not answered either.
    nodes.pass(40_000);
    assert!(nodes.result(0).expect("it has ended").is_err());
    assert_eq!(sizes(&nodes), [SMALL; 3]);

    let mut nodes = three();
    nodes.lose(1, 0);
    nodes.act(0, |node, now| {
        node.resize(now, VOLUME, Sector(0), PLAIN);
        node.turn(now);
        let asks = node.sent.iter().find_map(|sent| match &sent.packet {
            Packet::TwopcPrepRsz(p) => Some(p.transaction),
            _ => None,
        });
        let no = Vote::on_resize(&asks.expect("it asks"), WireMask::NONE, WireMask::NONE, LARGE);
        let from = NodeId::new(1).unwrap();
        node.hear_from(from, now, Socket::Control, VOLUME, Packet::TwopcNo(Box::new(no)));
    });
    nodes.pass(10);
    let refused = nodes.result(0).expect("it has ended").expect_err("it is refused");
    assert!(refused.contains("refuses"), "{refused}");
    assert_eq!(sizes(&nodes), [SMALL; 3]);
}

/// Two ask at the same time: the one comes first.
#[test]
fn two_ask_at_once() {
    let mut nodes = three();
    primary(&mut nodes, 2);
    nodes.act(0, |node: &mut Node, now| {
        node.resize(now, VOLUME, Sector(0), PLAIN);
    });
    resize(&mut nodes, 1, PLAIN);
    nodes.pass(3_000);
    assert_eq!(nodes.result(0), Some(Ok(())));
    let late = nodes.result(1).expect("it has ended").expect_err("what was added is being copied");
    assert!(late.contains("resync"), "{late}");
    assert_eq!(sizes(&nodes), [LARGE; 3]);
    all_good(&nodes);
}

/// Node 0 is a Secondary, node 1 is Primary: they have the same data, and room for what the recorded nodes grew by.
fn before_the_kernel_grows() -> (Node, Vec<Said>, Instant) {
    let said = conversation_live("01", &[1, 11]);
    let (small, large) = (Sector(2048), Sector(2176));
    let grown = |node| {
        let mut starts = disk(&said, node, false, small);
        starts[0].1.room = large;
        starts
    };
    let begin = said[0].at;
    let mut nodes = Together::of(2, begin, grown, &|_| {});
    nodes.forgive();
    primary(&mut nodes, 1);
    write(&mut nodes, 1, 0);
    nodes.pass(500);
    let now = begin + Duration::from_secs(1);
    let mut node = nodes.leave(0);
    node.pass(now);
    node.sent.clear();
    (node, said, now)
}

fn is_request(packet: &Packet) -> bool {
    matches!(packet, Packet::RsDagtagReq(_) | Packet::EnableReplication(_) | Packet::FlushRequests(_))
}

/// The kernel, Primary, is told to resize, and takes 0.8 s until it is the source of what is new. It would answer
/// before, and then begin a resync that is over here, in which it does not replicate.
#[test]
fn nothing_is_asked_of_a_source_that_has_not_begun() {
    let (mut node, said, begin) = before_the_kernel_grows();
    let kernel = NodeId::new(1).expect("a node id");
    let first = said[0].at;
    let starts = |s: &Said| matches!(&s.packet, Packet::State(word) if word.conn == ConnState::SyncSource);
    let (mut asked, mut now) = (Vec::new(), begin);
    let (mut begun, mut told) = (false, 0);
    // What it says until then, but for what it answers.
    let until = said.iter().position(starts).expect("it begins") + 2;
    for s in said[..until].iter().filter(|s| s.from == kernel) {
        if matches!(s.packet, Packet::RsDataReply(_) | Packet::FlushRequestsAck(_)) {
            continue;
        }
        now = begin + s.at.since(first);
        node.pass(now);
        begun |= starts(s);
        node.hear_from(kernel, now, s.stream, s.volume, s.packet.clone());
        told += 1;
        asked.extend(node.sent.drain(..).filter(|sent| is_request(&sent.packet)));
        assert!(begun || asked.is_empty(), "{asked:#?}\n{:#?}", node.notes);
    }
    assert!(begun && told > 5);
    // It asks now, and the kernel answers.
    for _ in 0..2_000 {
        now = now + Duration::from_millis(1);
        node.pass(now);
        asked.extend(node.sent.drain(..));
        for Sent { stream, volume, packet, .. } in std::mem::take(&mut asked) {
            let answer = match packet {
                Packet::RsDagtagReq(r) => {
                    let BlockRequest { sector, block_id, size } = r.block;
                    Packet::RsDataReply(BlockData { sector, block_id, digest: Digest::EMPTY, size })
                }
                Packet::FlushRequests(sequence) => Packet::FlushRequestsAck(FlushAnswer { sequence, node: kernel }),
                Packet::Ping => Packet::PingAck,
                _ => continue,
            };
            node.hear_from(kernel, now, stream, volume, answer);
        }
    }
    assert!(node.notes.iter().any(|n| n.starts_with("resync-done: resync done: 64 KiB")), "{:#?}", node.notes);
    assert_eq!(node.state(), "Connected Secondary/Primary Connected UpToDate/UpToDate", "{:#?}", node.notes);
    assert!(node.notes.iter().all(|n| n != "link closed"), "{:#?}", node.notes);
}

/// A kernel says that it is the source of a resync of which nothing is known here: it does not replicate any more, and
/// only another connect tells what is missing.
#[test]
fn a_resync_that_went_unnoticed_ends_the_link() {
    let (mut node, said, now) = before_the_kernel_grows();
    let kernel = NodeId::new(1).expect("a node id");
    let starts = |s: &&Said| matches!(&s.packet, Packet::State(word) if word.conn == ConnState::SyncSource);
    let s = said.iter().find(starts).expect("it begins");
    assert_eq!(node.state(), "Connected Secondary/Primary Connected UpToDate/UpToDate");
    node.hear_from(kernel, now, s.stream, s.volume, s.packet.clone());
    assert!(node.notes.iter().any(|n| n.starts_with("resync-unnoticed: ")), "{:#?}", node.notes);
    assert!(node.wants_link(now + Duration::from_secs(60)), "{:#?}", node.notes);
    assert_eq!(node.state(), "Connecting Secondary/Unknown WFConnection UpToDate/DUnknown");
}
