//! Three cores that talk to each other: what no recording of kernels shows, as urbd is narrower there.

use crate::node::{Node, Start, Together};
use crate::{VOLUME, disk};
use units::{ByteLen, Generation, Instant, NodeId, NodeMask, Sector, VolumeNr};
use urbd_core::{Command, RequestKind};
use wire::{ConnState, DiskState, Packet, PeersInSync, Role, Socket, UuidFlags, Uuids110};

pub(crate) fn fresh(node: NodeId) -> Vec<(VolumeNr, Start)> {
    let mut starts = disk(&[], node, true, Sector(8192));
    starts[0].1.slots = 2;
    starts
}

/// All have the same, node 0 is Primary.
pub(crate) fn three() -> Together {
    three_that_speak(124)
}

pub(crate) fn three_that_speak(version: u32) -> Together {
    let mut nodes = Together::of(3, Instant(1_000_000_000), fresh, &|c| c.max_version = version);
    nodes.command(0, Command::NewCurrentUuid { volume: VOLUME, clear_bitmap: true });
    nodes.command(0, Command::Primary { force: false });
    nodes
}

pub(crate) fn write(nodes: &mut Together, at: u64) {
    nodes.act(0, |node, now| node.write(now, VOLUME, RequestKind::Write { fua: false }, Sector(at), 4096));
}

/// With `allow-two-primaries` two of three are connected, and each third one is apart: it is not known what that does.
#[test]
fn nobody_is_promoted_while_two_primaries_keep_a_peer_apart() {
    for force in [false, true] {
        let start = |node| {
            let mut starts = disk(&[], node, false, Sector(8192));
            starts[0].1.slots = 2;
            starts
        };
        let mut nodes = Together::of(3, Instant(1_000_000_000), start, &|c| c.two_primaries = true);
        nodes.forgive();
        nodes.pass(2_000);
        let connected = [[0, 1], [0, 2], [1, 2]].into_iter().filter(|[one, other]| nodes.is_connected(*one, *other));
        assert_eq!(connected.count(), 1);
        for n in [0, 1, 2] {
            nodes.command(n, Command::Primary { force });
            nodes.pass(3_000);
            let refused = nodes.result(n).expect("it has ended").expect_err("a peer is apart");
            assert!(refused.contains("allow-two-primaries") && refused.contains("urbd adjust r0"), "{refused}");
            assert_eq!(nodes.role(n), Role::Secondary);
        }
    }
}

#[test]
fn a_primary_is_asked_that_is_out_of_reach() {
    let mut nodes = three();
    write(&mut nodes, 0);
    nodes.forgive();
    nodes.cut(0, 2);
    nodes.command(2, Command::Primary { force: false });
    nodes.pass(200);
    assert_eq!(nodes.role(2), Role::Secondary);
    // Nor when the Primary goes on without it, which it hears from the third one.
    write(&mut nodes, 8);
    nodes.pass(200);
    assert_eq!([0, 1, 2].map(|n| nodes.disk(n)), [DiskState::UpToDate, DiskState::UpToDate, DiskState::Outdated]);
    nodes.command(2, Command::Primary { force: false });
    nodes.pass(200);
    assert_eq!(nodes.role(2), Role::Secondary);
    // It is brought up to date by the Primary, and the third one knows.
    nodes.join(0, 2);
    nodes.pass(500);
    assert_eq!([0, 1, 2].map(|n| nodes.disk(n)), [DiskState::UpToDate; 3]);
    assert_eq!(nodes.marked(), 0);
}

/// Node 2 does not get the last write of the Primary, which is lost; node 1 has it. They tell each other.
#[test]
fn what_a_lost_primary_wrote_last_comes_to_both() {
    for [first, second] in [[1, 2], [2, 1]] {
        let mut nodes = three();
        write(&mut nodes, 0);
        nodes.pass(500);
        nodes.lose(0, 2);
        write(&mut nodes, 16);
        nodes.forgive();
        nodes.lose(0, 1);
        nodes.cut(0, first);
        nodes.pass(5);
        nodes.cut(0, second);
        nodes.pass(500);
        assert!(nodes.said(2, "resync-done: resync done: 4 KiB"), "node 2 gets it: {}", nodes.notes(2));
        assert!(!nodes.said(1, "reconcile: "), "without connecting anew: {}", nodes.notes(1));
        assert_eq!([1, 2].map(|n| nodes.disk(n)), [DiskState::UpToDate; 2]);
        assert_eq!(nodes.marked_between(1, 2), 0);
        // Who has as much by now is no target again.
        nodes.cut(1, 2);
        nodes.join(1, 2);
        nodes.pass(500);
        assert!(nodes.is_connected(1, 2));
        assert_eq!(nodes.marked_between(1, 2), 0);
    }
}

/// Both have all that the Primary wrote, and it had not said so.
#[test]
fn survivors_that_have_the_same_know_that() {
    let mut nodes = three();
    write(&mut nodes, 0);
    nodes.forgive();
    nodes.lose(0, 1);
    nodes.lose(0, 2);
    nodes.cut(0, 1);
    assert_eq!([1, 2].map(|n| nodes.disk(n)), [DiskState::Consistent, DiskState::UpToDate]);
    // Not before they have agreed.
    nodes.command(1, Command::Primary { force: false });
    nodes.pass(50);
    assert_eq!(nodes.role(1), Role::Secondary);
    nodes.cut(0, 2);
    nodes.pass(500);
    assert_eq!([1, 2].map(|n| nodes.disk(n)), [DiskState::UpToDate; 2]);
    assert_eq!(nodes.marked_between(1, 2), 0, "{}", nodes.notes(1));
    assert!(nodes.is_connected(1, 2));
    assert_eq!(nodes.role(1), Role::Primary, "{}", nodes.notes(1));
}

/// The same, of two that are not connected when it is lost.
#[test]
fn what_a_lost_primary_wrote_last_comes_to_both_when_they_connect() {
    for resumes in [false, true] {
        let mut nodes = three();
        write(&mut nodes, 0);
        nodes.pass(500);
        assert_eq!(nodes.marked(), 0);
        nodes.lose(0, 2);
        write(&mut nodes, 16);
        nodes.forgive();
        nodes.cut(1, 2);
        nodes.cut(0, 1);
        nodes.cut(0, 2);
        nodes.pass(20);
        if resumes {
            // Who writes meanwhile is the source.
            nodes.command(1, Command::Primary { force: false });
            assert_eq!(nodes.role(1), Role::Primary);
        }
        nodes.join(1, 2);
        nodes.pass(500);
        assert!(nodes.said(2, "resync-done: resync done: 4 KiB"), "node 2 gets it: {}", nodes.notes(2));
        assert!(nodes.is_connected(1, 2));
        assert_eq!([1, 2].map(|n| nodes.disk(n)), [DiskState::UpToDate; 2]);
        assert_eq!(nodes.marked_between(1, 2), 0);
    }
}

/// A node is without a disk for the moment in which it opens it, and shakes hands when that is over: as initiator,
/// and as the one that is asked.
#[test]
fn a_disk_that_is_being_opened_is_waited_for() {
    for node in [0, 1] {
        let mut nodes = three();
        nodes.command(0, Command::Secondary { force: false });
        nodes.forgive();
        [0, 1, 2]
            .into_iter()
            .filter(|other| *other != node)
            .for_each(|other| nodes.cut(node.min(other), node.max(other)));
        nodes.command(node, Command::Detach { volume: VOLUME, force: false });
        nodes.pass(100);
        nodes.act(node, |n, now| {
            n.opening = Some(Vec::new());
            n.command(now, Command::Attach { volume: VOLUME });
        });
        assert_eq!(nodes.disk(node), DiskState::Attaching);
        let others = [0, 1, 2].into_iter().filter(|other| *other != node).collect::<Vec<_>>();
        others.iter().for_each(|other| nodes.join(node.min(*other), node.max(*other)));
        nodes.pass(1000);
        assert!(others.iter().all(|other| !nodes.is_connected(node, *other)));
        nodes.act(node, Node::open_all);
        nodes.pass(1000);
        assert!(others.iter().all(|other| nodes.is_connected(node, *other)), "{}", nodes.notes(node));
        assert_eq!([0, 1, 2].map(|n| nodes.disk(n)), [DiskState::UpToDate; 3]);
    }
}

/// The target has a write that the third node has not confirmed: it is marked at the source as long as it is not
/// complete, and the resync is over all the same. From 123 on the target asks before who has what.
#[test]
fn a_resync_ends_beside_a_write_that_waits_for_a_third_node() {
    let mut nodes = three_that_speak(122);
    write(&mut nodes, 0);
    nodes.pass(500);
    nodes.forgive();
    nodes.cut(0, 2);
    write(&mut nodes, 8);
    nodes.command(2, Command::PauseSync { volume: VOLUME });
    nodes.join(0, 2);
    nodes.lose(1, 0);
    write(&mut nodes, 8);
    nodes.command(2, Command::ResumeSync { volume: VOLUME });
    nodes.pass(300);
    assert!(nodes.said(2, "resync-done"), "{}", nodes.notes(2));
    assert!(nodes.is_connected(0, 2), "{}", nodes.notes(0));
    assert!(!nodes.said(0, "resync-incomplete"), "{}", nodes.notes(0));
}

/// Node 1 loses the Primary before that has said who has the last write; the third node has it. It is the target of a
/// resync while the third node has not confirmed all that it gets, and that ends only when that is settled. They know
/// by that, without a word of who has the same.
#[test]
fn who_comes_back_to_a_primary_learns_that_the_third_node_has_all() {
    for (writes, retired) in [(false, false), (true, false), (true, true)] {
        let mut nodes = three();
        nodes.swallowed = |way, packet| way[0] == 0 && matches!(packet, Packet::PeersInSync(_));
        write(&mut nodes, 0);
        nodes.pass(500);
        nodes.forgive();
        write(&mut nodes, 16);
        if retired {
            // All have confirmed it.
            nodes.pass(50);
        }
        nodes.cut(0, 1);
        assert!(nodes.marked_between(1, 2) > 0, "nobody has said that node 2 has the write");
        if writes {
            write(&mut nodes, 24);
        }
        nodes.join(0, 1);
        nodes.pass(500);
        assert_eq!([0, 1, 2].map(|n| nodes.disk(n)), [DiskState::UpToDate; 3]);
        assert_eq!(nodes.marked(), 0, "written meanwhile: {writes}");
        assert!(!nodes.said(0, "resync-incomplete"), "{}", nodes.notes(0));
    }
}

/// Node 1 loses the Primary, node 2 has never seen it: nothing follows from what node 1 says, and both go on.
#[test]
fn who_has_not_lost_it_is_told_of_a_lost_primary() {
    let mut nodes = three();
    write(&mut nodes, 0);
    nodes.pass(500);
    nodes.forgive();
    nodes.cut(0, 2);
    write(&mut nodes, 8);
    nodes.pass(200);
    nodes.cut(1, 2);
    nodes.join(1, 2);
    nodes.pass(50);
    nodes.cut(0, 1);
    nodes.pass(3000);
    nodes.command(1, Command::Primary { force: false });
    assert_eq!(nodes.role(1), Role::Primary, "{}", nodes.notes(1));
}

/// What node 1 says is lost when both have concluded who has more: they do not wait for ever.
#[test]
fn survivors_that_do_not_hear_each_other_connect_anew() {
    let mut nodes = three();
    write(&mut nodes, 0);
    nodes.pass(500);
    nodes.lose(0, 2);
    write(&mut nodes, 16);
    nodes.forgive();
    nodes.lose(0, 1);
    nodes.cut(0, 1);
    nodes.pass(5);
    nodes.lose(1, 2);
    nodes.cut(0, 2);
    nodes.pass(100);
    assert!(nodes.said(1, "reconcile-lost-primary: this node has more"), "{}", nodes.notes(1));
    nodes.pass(2_500);
    assert!(!nodes.is_connected(1, 2), "node 2 has asked whether the other one is there");
    nodes.join(1, 2);
    nodes.pass(500);
    assert!(nodes.said(2, "resync-done: resync done: 4 KiB"), "node 2 gets it: {}", nodes.notes(2));
    assert_eq!(nodes.marked_between(1, 2), 0);
}

/// Node 0, which was Primary, says who is in sync before it ceases to be that. Node 1 had marked something for it, and
/// may have said since that it has the same.
#[test]
fn what_a_peer_had_marked_is_marked_no_more_when_it_says_so() {
    for says in [false, true] {
        let mut nodes = three();
        write(&mut nodes, 0);
        nodes.pass(500);
        nodes.act(0, |node, now| node.close(now, VOLUME));
        nodes.forgive();
        nodes.cut(0, 2);
        nodes.join(0, 2);
        nodes.pass(500);
        let mut node = nodes.leave(0);
        let (one, now) = (NodeId::new(1).unwrap(), Instant(10_000_000_000));
        let [current, ..] = node.core.generations(VOLUME).expect("a disk");
        let marked = Uuids110 {
            current,
            dirty_bits: 1,
            flags: UuidFlags::NONE,
            nodes: NodeMask(1).into(),
            tracked: NodeMask(7),
            bitmaps: vec![Generation::NONE; 3],
            history: Vec::new(),
        };
        node.hear_from(one, now, Socket::Data, VOLUME, Packet::Uuids110(Box::new(marked)));
        if says {
            let all = ByteLen(8192 * 512);
            let same = PeersInSync { sector: Sector(0), nodes: NodeMask(3).into(), size: all };
            node.hear_from(one, now, Socket::Control, VOLUME, Packet::PeersInSync(same));
        }
        node.sent.clear();
        node.command(now, Command::Secondary { force: false });
        node.turn(now);
        let told = |sent: &crate::node::Sent| sent.peer == one && matches!(sent.packet, Packet::PeersInSync(_));
        assert_eq!(node.sent.iter().any(told), says, "{:#?} {:#?}", node.sent, node.notes);
    }
}

/// Its copy is given up, and copied again, while all stay connected: from the Primary, if there is one.
#[test]
fn a_copy_is_given_up_while_all_stay_connected() {
    for primary in [false, true] {
        let mut nodes = three();
        write(&mut nodes, 0);
        nodes.pass(500);
        if !primary {
            nodes.command(0, Command::Secondary { force: true });
        }
        nodes.command(2, Command::PauseSync { volume: VOLUME });
        nodes.command(2, Command::invalidate(VOLUME));
        assert_eq!(nodes.disk(2), DiskState::Inconsistent, "{}", nodes.notes(2));
        assert!([0, 1].iter().all(|n| nodes.is_connected(*n, 2)), "{}", nodes.notes(2));
        nodes.command(2, Command::ResumeSync { volume: VOLUME });
        nodes.pass(1_000);
        assert!(nodes.said(2, "resync-done"), "{}", nodes.notes(2));
        assert_eq!([0, 1, 2].map(|n| nodes.disk(n)), [DiskState::UpToDate; 3]);
        assert!([0, 1].iter().all(|n| nodes.is_connected(*n, 2)), "{}", nodes.notes(2));
        if primary {
            write(&mut nodes, 8);
            nodes.pass(500);
        }
        assert_eq!(nodes.marked(), 0, "{primary}");
    }
}

/// Node 2 is away, and node 0 has written meanwhile.
fn node_2_is_away() -> Together {
    let mut nodes = three();
    write(&mut nodes, 0);
    nodes.pass(500);
    nodes.forgive();
    nodes.cut(0, 2);
    nodes.cut(1, 2);
    write(&mut nodes, 8);
    nodes
}

/// Node 2 was away while node 0 wrote, and is brought up to date by that; node 1 is its source, too, and waits.
pub(crate) fn two_sources() -> Together {
    let mut nodes = node_2_is_away();
    nodes.pass(500);
    nodes.command(2, Command::PauseSync { volume: VOLUME });
    nodes.join(0, 2);
    nodes.pass(50);
    nodes.join(1, 2);
    nodes.pass(50);
    assert_eq!([0, 1].map(|n| nodes.replication(2, n)), [ConnState::PausedSyncT; 2], "{}", nodes.notes(2));
    assert_eq!([0, 1].map(|n| nodes.replication(n, 2)), [ConnState::PausedSyncS; 2], "{}", nodes.notes(1));
    nodes
}

#[test]
fn a_second_source_waits_for_the_first_one() {
    let mut nodes = two_sources();
    write(&mut nodes, 16);
    nodes.command(2, Command::ResumeSync { volume: VOLUME });
    nodes.pass(500);
    assert_eq!([0, 1, 2].map(|n| nodes.disk(n)), [DiskState::UpToDate; 3], "{}", nodes.notes(2));
    assert!([0, 1].iter().all(|n| nodes.is_connected(*n, 2)), "{}", nodes.notes(2));
    assert_eq!(nodes.marked(), 0);
}

/// The Primary is lost: who gets its writes from it goes on with the other source, of which nobody else knows more
/// now.
#[test]
fn a_second_source_goes_on_when_the_first_one_is_lost() {
    let mut nodes = two_sources();
    nodes.cut(0, 2);
    nodes.command(2, Command::ResumeSync { volume: VOLUME });
    nodes.pass(200);
    assert_eq!(nodes.disk(2), DiskState::Inconsistent, "node 1 depends on the Primary: {}", nodes.notes(2));
    nodes.cut(0, 1);
    nodes.pass(1_000);
    assert!(nodes.said(2, "resync-done"), "{}", nodes.notes(2));
    assert_eq!([1, 2].map(|n| nodes.disk(n)), [DiskState::UpToDate; 2], "{}", nodes.notes(2));
    assert!(!nodes.said(2, "lags-behind"), "without connecting anew: {}", nodes.notes(2));
    assert_eq!(nodes.marked_between(1, 2), 0);
}

/// Node 2 reaches node 1 only, which is no Primary: it gets from that what the Primary writes, and is no good copy
/// until it reaches the Primary, or nobody is that any more.
#[test]
fn who_reaches_a_secondary_only_is_no_good_copy_by_that() {
    for lost in [false, true] {
        let mut nodes = node_2_is_away();
        nodes.join(1, 2);
        nodes.pass(300);
        write(&mut nodes, 16);
        nodes.pass(500);
        assert_eq!(nodes.replication(2, 1), ConnState::SyncTarget, "{}", nodes.notes(2));
        assert_eq!(nodes.disk(2), DiskState::Inconsistent);
        assert_eq!(nodes.marked_between(1, 2), 0, "it follows: {}", nodes.notes(2));
        if lost {
            nodes.cut(0, 1);
        } else {
            nodes.join(0, 2);
        }
        nodes.pass(1_000);
        assert_eq!(nodes.disk(2), DiskState::UpToDate, "{}", nodes.notes(2));
        assert_eq!(nodes.said(2, "resync-unstable"), lost, "{}", nodes.notes(2));
        assert!(nodes.is_connected(1, 2) && !nodes.said(2, "lags-behind"), "{}", nodes.notes(2));
        assert_eq!(nodes.marked_between(1, 2), 0);
    }
}

/// Nobody is missing, and these are not the first writes of all; but whoever gets a vacant slot lacks them.
#[test]
fn beside_a_vacant_slot_the_first_write_begins_a_generation() {
    for slots in [1, 2] {
        let start = |node| {
            let mut starts = disk(&[], node, false, Sector(8192));
            starts[0].1.slots = slots;
            starts[0].1.uuids.history = vec![Generation(0x7770)];
            starts
        };
        let mut nodes = Together::of(2, Instant(1_000_000_000), start, &|_| {});
        nodes.command(0, Command::Primary { force: false });
        write(&mut nodes, 0);
        assert_eq!([0, 1].map(|n| nodes.said(n, "new-generation")), [slots > 1; 2], "{}", nodes.notes(0));
    }
}

/// Two nodes at one address have come to this one at once, and a stream of each is taken for those of one. Who hears an
/// answer to what another node has asked is the first to know: who has answered would wait for a decision.
#[test]
fn an_answer_that_was_meant_for_another_node_ends_its_link() {
    for initiator in [0, 1, 2] {
        let mut nodes = three();
        nodes.forgive();
        nodes.cut(1, 2);
        nodes.swallowed = |way, packet| way == [1, 2] && matches!(packet, Packet::TwopcPrepare(_));
        nodes.join(1, 2);
        let node = |n| NodeId::new(n).expect("a node id");
        let head = wire::Transaction {
            tid: 77,
            initiator: node(initiator),
            target: None,
            nodes_to_reach: wire::WireMask::NONE,
            has_reachable: false,
            primary_incapable: false,
        };
        let none = wire::WireMask::NONE;
        let vote = Packet::TwopcYes(Box::new(wire::Vote::on_change(&head, none, none, none)));
        nodes.act(2, |own, now| own.hear_from(node(1), now, Socket::Control, VolumeNr::NONE, vote));
        // What it has asked itself, and given up, may be answered late.
        assert_eq!(nodes.said(2, "stream-of-another-node"), initiator != 2, "{}", nodes.notes(2));
    }
}
