//! Changes in two phases among three nodes: what no recording shows, as all of them answer in time there.

use crate::VOLUME;
use crate::mesh::{self, write};
use crate::node::{Node, Together};
use units::{Instant, NodeId, VolumeNr};
use urbd_core::Command;
use wire::{ConnState, DiskState, Packet, Role, Socket, Transaction, Vote, WireMask};

fn node(n: u8) -> NodeId {
    NodeId::new(n).expect("a node id")
}

/// All have the same, node 0 is Primary, and has written.
fn three() -> Together {
    let mut nodes = mesh::three();
    write(&mut nodes, 0);
    nodes.pass(500);
    nodes.forgive();
    nodes
}

/// Node 2 is Primary where it reaches nobody, and has the same data. It comes back to node 1, which sees one Primary.
#[test]
fn two_primaries_do_not_come_within_reach_of_each_other() {
    let mut nodes = three();
    nodes.cut(1, 2);
    nodes.cut(0, 2);
    nodes.command(2, Command::Primary { force: false });
    nodes.pass(200);
    assert_eq!([0, 2].map(|n| nodes.role(n)), [Role::Primary; 2], "{}", nodes.notes(2));
    nodes.join(1, 2);
    nodes.pass(200);
    assert!(!nodes.is_connected(1, 2), "{}", nodes.notes(1));
    assert!(nodes.is_connected(0, 1), "{}", nodes.notes(1));
}

/// What this node has asked for last, and of whom.
fn asked(node: &mut Node) -> Vec<(NodeId, Transaction)> {
    let all = std::mem::take(&mut node.sent).into_iter();
    all.filter_map(|sent| match sent.packet {
        Packet::TwopcPrepare(prepare) => Some((sent.peer, prepare.transaction)),
        _ => None,
    })
    .collect()
}

fn committed(node: &Node) -> bool {
    node.sent.iter().any(|sent| matches!(sent.packet, Packet::TwopcCommit(_)))
}

/// Node 2 answers late: the change was called off meanwhile, as node 1 is busy, and is asked for once more.
#[test]
fn a_vote_counts_for_what_was_asked() {
    let mut nodes = three();
    nodes.act(0, |node, now| node.close(now, VOLUME));
    let mut own = nodes.leave(0);
    let mut now = Instant(10_000_000_000);
    own.pass(now);
    own.sent.clear();
    own.command(now, Command::Secondary { force: false });
    own.turn(now);
    let first = asked(&mut own);
    assert_eq!(first.iter().map(|(peer, _)| *peer).collect::<Vec<_>>(), [node(1), node(2)]);
    let vote = |head: &Transaction| Box::new(Vote::on_change(head, WireMask(7), WireMask::NONE, WireMask::NONE));
    own.hear_from(node(1), now, Socket::Control, VolumeNr::NONE, Packet::TwopcRetry(vote(&first[0].1)));
    let second = loop {
        let again = asked(&mut own);
        if !again.is_empty() {
            break again;
        }
        now = own.next().expect("it asks again").max(now);
        own.pass(now);
    };
    assert_ne!(second[0].1.tid, first[0].1.tid);
    own.hear_from(node(2), now, Socket::Control, VolumeNr::NONE, Packet::TwopcYes(vote(&first[1].1)));
    own.hear_from(node(1), now, Socket::Control, VolumeNr::NONE, Packet::TwopcYes(vote(&second[0].1)));
    assert!(!committed(&own), "node 2 has not answered: {:#?}", own.sent);
    own.hear_from(node(2), now, Socket::Control, VolumeNr::NONE, Packet::TwopcYes(vote(&second[1].1)));
    assert!(committed(&own));
}

/// Node 0, which is no Primary any more, brings node 2 up to date: that is to have all that is written, and would not
/// get it from there.
#[test]
fn nobody_rises_beside_a_node_that_another_one_brings_up_to_date() {
    let mut nodes = three();
    nodes.cut(0, 2);
    nodes.cut(1, 2);
    write(&mut nodes, 8);
    nodes.pass(500);
    nodes.act(0, |node, now| node.close(now, VOLUME));
    nodes.command(0, Command::Secondary { force: false });
    nodes.command(2, Command::PauseSync { volume: VOLUME });
    nodes.join(0, 2);
    nodes.join(1, 2);
    nodes.pass(50);
    assert_eq!(nodes.replication(2, 0), ConnState::PausedSyncT, "{}", nodes.notes(2));
    nodes.command(1, Command::Primary { force: false });
    nodes.pass(1_000);
    assert_eq!(nodes.role(1), Role::Secondary);
    nodes.command(2, Command::ResumeSync { volume: VOLUME });
    nodes.pass(1_000);
    assert_eq!(nodes.role(1), Role::Primary, "{}", nodes.notes(1));
    assert_eq!([0, 1, 2].map(|n| nodes.disk(n)), [DiskState::UpToDate; 3]);
}

/// Node 0 wants to be no Primary any more, and is lost before it has heard what the others say to that.
#[test]
fn what_a_lost_node_has_asked_for_is_off() {
    let mut nodes = three();
    nodes.act(0, |node, now| node.close(now, VOLUME));
    nodes.lose(1, 0);
    nodes.command(0, Command::Secondary { force: false });
    assert_eq!(nodes.role(0), Role::Primary, "it waits");
    nodes.lose(0, 1);
    nodes.lose(0, 2);
    nodes.cut(0, 1);
    nodes.cut(0, 2);
    nodes.command(1, Command::Primary { force: false });
    nodes.pass(5_000);
    assert_eq!(nodes.role(1), Role::Primary, "{}", nodes.notes(1));
}
