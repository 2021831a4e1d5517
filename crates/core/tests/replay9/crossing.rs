//! What no recording shows: answers that come in another order, or not at all, and what is said while a disk is on its
//! way out.

use crate::node::{Node, Together};
use crate::recording::conversation;
use crate::replay::Replay;
use crate::{SMALL, VOLUME, disk};
use units::{ByteLen, Duration, Generation, Instant, NodeId, NodeMask, Sector, VolumeNr};
use urbd_core::{Command, LinkDown};
use wire::{
    BlockId, ConnState, Digest, DiskState, DpFlags, Packet, Prepare, Socket, StateChange, Transaction, UuidFlags,
    Uuids110, Vote, WireMask, Write,
};

const NONE: VolumeNr = VolumeNr::NONE;

fn id(node: u8) -> NodeId {
    NodeId::new(node).unwrap()
}

/// Node 1 of two that are connected; node 0 is Primary. What it said so far is forgotten.
fn secondary(prologue: impl Fn(&mut Together)) -> (Node, Instant) {
    let said = conversation("19");
    let mut pair = Together::new(said[0].at, |node| disk(&said, node, false, SMALL), &|_| {});
    pair.command(0, Command::Primary { force: false });
    prologue(&mut pair);
    let mut node = pair.leave(1);
    node.sent.clear();
    node.forgive = true;
    (node, said[0].at + Duration::from_secs(1))
}

/// The transaction that the node has just asked for.
fn asked(node: &Node, disk: DiskState) -> Transaction {
    let of_disk = |p: &Prepare| p.change == StateChange { disk: Some(disk), ..StateChange::default() };
    let found = node.sent.iter().find_map(|sent| match &sent.packet {
        Packet::TwopcPrepare(p) if of_disk(p) => Some(p.transaction),
        _ => None,
    });
    found.unwrap_or_else(|| panic!("not asked: {:#?}", node.notes))
}

fn vote(head: &Transaction) -> Box<Vote> {
    Box::new(Vote::on_change(head, WireMask(3), WireMask(1), WireMask(0)))
}

fn begin_attach(node: &mut Node, now: Instant) -> Transaction {
    node.command(now, Command::Attach { volume: VOLUME });
    node.turn(now);
    asked(node, DiskState::Negotiating)
}

fn says(node: &Node, what: fn(&Packet) -> bool) -> bool {
    node.sent.iter().any(|sent| what(&sent.packet))
}

#[test]
fn a_peer_refuses_an_attach() {
    let (mut node, now) = secondary(|pair| pair.command(1, Command::Detach { volume: VOLUME, force: false }));
    let head = begin_attach(&mut node, now);
    assert!(!says(&node, |p| matches!(p, Packet::Sizes(_))), "before it was agreed on");
    node.hear(now, Socket::Control, VOLUME, Packet::TwopcNo(vote(&head)));
    assert!(says(&node, |p| matches!(p, Packet::TwopcAbort(_))));
    assert_eq!(node.state(), "Connected Secondary/Primary Connected Diskless/UpToDate");
    assert!(node.notes.iter().any(|note| note.starts_with("attach-failed: the peer refuses")), "{:#?}", node.notes);
}

#[test]
fn an_attach_waits_for_another_transaction() {
    let (mut node, now) = secondary(|pair| pair.command(1, Command::Detach { volume: VOLUME, force: false }));
    let first = begin_attach(&mut node, now);
    node.hear(now, Socket::Control, VOLUME, Packet::TwopcRetry(vote(&first)));
    assert!(says(&node, |p| matches!(p, Packet::TwopcAbort(_))));
    node.sent.clear();
    let later = now + Duration::from_millis(100);
    node.pass(later);
    let second = asked(&node, DiskState::Negotiating);
    assert_ne!(first.tid, second.tid);
    node.hear(later, Socket::Control, VOLUME, Packet::TwopcYes(vote(&second)));
    assert!(says(&node, |p| matches!(p, Packet::TwopcCommit(_))) && says(&node, |p| matches!(p, Packet::Sizes(_))));
}

/// By force it is let go of at once, and what was asked is withdrawn when the answer comes.
#[test]
fn a_disk_is_let_go_of_while_it_is_asked_for() {
    let (mut node, now) = secondary(|pair| pair.command(1, Command::Detach { volume: VOLUME, force: false }));
    let head = begin_attach(&mut node, now);
    node.command(now, Command::Detach { volume: VOLUME, force: true });
    node.turn(now);
    node.hear(now, Socket::Control, VOLUME, Packet::TwopcYes(vote(&head)));
    assert!(says(&node, |p| matches!(p, Packet::TwopcAbort(_))));
    assert!(!says(&node, |p| matches!(p, Packet::TwopcCommit(_) | Packet::Sizes(_))));
    assert_eq!(node.state(), "Connected Secondary/Primary Connected Diskless/UpToDate");
}

/// Its last write is not on the disk yet when the Primary begins the generation that it has no part in.
#[test]
fn a_disk_on_its_way_out_has_no_part_in_a_generation() {
    let (mut node, now) = secondary(|_| {});
    let old = conversation("19").iter().find_map(|s| match &s.packet {
        Packet::Uuids110(u) => Some(u.current.base()),
        _ => None,
    });
    let old = old.unwrap();
    node.command(now, Command::Detach { volume: VOLUME, force: false });
    node.turn(now);
    let head = asked(&node, DiskState::Detaching);
    let write = Write {
        sector: Sector(0),
        block_id: BlockId(1),
        seq: 1,
        flags: DpFlags(0),
        digest: Digest::EMPTY,
        size: ByteLen(4096),
    };
    node.hear(now, Socket::Data, VOLUME, Packet::Data(write));
    node.hear(now, Socket::Control, VOLUME, Packet::TwopcYes(vote(&head)));
    assert_eq!(node.state(), "Connected Secondary/Primary Connected Detaching/UpToDate");
    let begun = Uuids110 {
        current: Generation(0x0123_4567_89ab_cdef),
        dirty_bits: 0,
        flags: UuidFlags::NEW_DATAGEN,
        nodes: WireMask(!1),
        tracked: NodeMask(3),
        bitmaps: vec![Generation::NONE, old],
        history: Vec::new(),
    };
    node.hear(now, Socket::Data, VOLUME, Packet::Uuids110(Box::new(begun)));
    let later = now + Duration::from_millis(10);
    node.pass(later);
    assert_eq!(node.state(), "Connected Secondary/Primary Connected Diskless/UpToDate");
    node.sent.clear();
    let head = begin_attach(&mut node, later);
    node.hear(later, Socket::Control, VOLUME, Packet::TwopcYes(vote(&head)));
    let told = node.sent.iter().find_map(|s| if let Packet::Uuids110(u) = &s.packet { Some(u.current) } else { None });
    assert!(told.is_some_and(|told| told.same(old)), "{told:?} instead of {old}");
}

/// That all have agreed comes on the data stream; the end of the control stream may come before it is read.
#[test]
fn a_peer_that_parts_by_agreement_is_not_lost() {
    let (mut node, now) = secondary(|_| {});
    let transaction = Transaction {
        tid: 7,
        initiator: id(0),
        target: Some(id(1)),
        nodes_to_reach: WireMask(!3),
        has_reachable: true,
        primary_incapable: false,
    };
    let change = StateChange { conn: Some(ConnState::Disconnecting), ..StateChange::default() };
    node.hear(now, Socket::Data, NONE, Packet::TwopcPrepare(Box::new(Prepare { transaction, change })));
    assert!(says(&node, |p| matches!(p, Packet::TwopcYes(_))));
    node.core.on_link_down(now, id(0), LinkDown::Closed);
    node.turn(now);
    assert!(node.notes.iter().any(|note| note.starts_with("peer-disconnected")), "{:#?}", node.notes);
    assert!(!node.notes.iter().any(|note| note.starts_with("link-lost")), "{:#?}", node.notes);
}

/// The target's no overtakes its states.
#[test]
fn who_asks_sees_a_split_brain_although_the_answer_comes_first() {
    let mut said = conversation("22");
    let is_no = |s: &crate::recording::Said| matches!(s.packet, Packet::TwopcNo(_));
    let at = said.iter().position(is_no).expect("a no");
    let mut no = said.remove(at);
    let states = said.iter().position(|s| s.from == id(1) && matches!(s.packet, Packet::SyncParam(_))).unwrap();
    no.at = said[states].at;
    said.insert(states, no);
    let mut replay = Replay::whole(said, 0, |_| {});
    replay.came_back = true;
    replay.link_up(false);
    replay.play();
    assert_eq!(replay.node.state(), "StandAlone Secondary/Unknown StandAlone UpToDate/DUnknown");
    assert!(replay.node.notes.iter().any(|note| note.starts_with("split-brain")), "{:#?}", replay.node.notes);
}
