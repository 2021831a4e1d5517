//! Recordings of three nodes of which one comes back while another one is Primary: both others are its sources.

use crate::joining::from_the_start;
use crate::node::Together;
use crate::recording::{Said, conversation};
use crate::replay::Replay;
use crate::{SMALL, VOLUME, disk};
use units::{Duration, Instant, NodeId, Sector, VolumeNr};
use urbd_core::{Command, RequestKind};
use wire::{ConnState, DiskState, Packet, UuidFlags, Uuids110};

pub(crate) const END: u64 = 1_000_000;

pub(crate) fn id(node: u8) -> NodeId {
    NodeId::new(node).unwrap()
}

fn small(said: &[Said], node: NodeId) -> Vec<(VolumeNr, crate::node::Start)> {
    disk(said, node, true, SMALL)
}

pub(crate) fn declare(nodes: &mut Together) {
    nodes.command(0, Command::NewCurrentUuid { volume: VOLUME, clear_bitmap: true });
}

/// What the one tells the other one of its generations.
pub(crate) fn generations(said: &mut [Said], ends: [usize; 2]) -> impl Iterator<Item = &mut Uuids110> {
    let told = said.iter_mut().filter(move |s| [s.from.index(), s.to.index()] == ends);
    told.filter_map(|s| if let Packet::Uuids110(u) = &mut s.packet { Some(&mut **u) } else { None })
}

/// A kernel marks for a node that is not there what it writes when the epoch is over, the core at once: when the two
/// connect it has marked more blocks.
fn as_if_marked_at_once(said: &mut [Said], node: u8, late: u64, at_once: u64) {
    generations(said, [node.into(), 2]).filter(|u| u.dirty_bits == late).for_each(|u| u.dirty_bits = at_once);
}

/// A kernel makes its bitmap a while after the nodes are connected, the core at once: what the kernel wrote in
/// between it writes before they begin.
fn to_before_the_connect(said: &mut [Said], written: impl Fn(&Packet) -> bool) {
    let asks = |s: &&Said| [s.from.index(), s.to.index()] == [0, 2] && matches!(s.packet, Packet::TwopcPrepare(_));
    let at = Instant(said.iter().rfind(asks).expect("they connect").at.0 - 400_000);
    said.iter_mut().filter(|s| written(&s.packet)).for_each(|s| s.at = s.at.min(at));
    said.sort_by_key(|s| s.at);
}

/// A kernel that has a source's bitmap takes some milliseconds before it is a target: it gets the bitmap, and what its
/// source says of blocks, later.
pub(crate) fn begin_late(said: &mut [Said], target: usize, source: usize) {
    let begins = |s: &Said| matches!(&s.packet, Packet::State(word) if word.conn == ConnState::SyncTarget);
    let begun = said.iter().find(|s| [s.from.index(), s.to.index()] == [target, source] && begins(s));
    let at = Instant(begun.expect("it is a target").at.0 - 100_000);
    let early = |p: &Packet| matches!(p, Packet::Bitmap(_) | Packet::CompressedBitmap(_) | Packet::OutOfSync(_));
    let of_source = said.iter_mut().filter(|s| s.from.index() == source && early(&s.packet));
    of_source.for_each(|s| s.at = s.at.max(at));
    said.sort_by_key(|s| s.at);
}

/// A kernel that one source has brought up to date tells the other one its state before its generations, the core the
/// generations first.
pub(crate) fn generations_first(said: &mut Vec<Said>, ends: [usize; 2]) -> &mut Uuids110 {
    let (mut bad, mut at, mut uuids) = (false, None, None);
    for (n, s) in said.iter().enumerate().filter(|(_, s)| [s.from.index(), s.to.index()] == ends) {
        match &s.packet {
            Packet::State(word) if word.disk == DiskState::UpToDate && word.conn == ConnState::Connected && bad => {
                at = at.or(Some(n));
            }
            Packet::State(word) => bad |= word.disk == DiskState::Inconsistent,
            Packet::Uuids110(_) if at.is_some() && uuids.is_none() => uuids = Some(n),
            _ => {}
        }
    }
    let (Some(at), Some(uuids)) = (at, uuids) else { panic!("a resync ends") };
    let mut told = said.remove(uuids);
    told.at = said[at].at;
    said.insert(at, told);
    if let Packet::Uuids110(u) = &mut said[at].packet { u } else { unreachable!() }
}

/// And it forgets what it has marked for that one when it hears who is in sync; the core tells that nothing is marked.
pub(crate) fn equal_at_once(said: &mut Vec<Said>, other: usize) {
    generations_first(said, [2, other]).dirty_bits = 0;
}

/// The core cuts what it asks for into one request more: what it acknowledges later has another number.
fn asked_once_more(said: &mut [Said]) {
    let acks = said.iter_mut().filter(|s| s.from.index() == 2);
    acks.for_each(|s| {
        if let Packet::WriteAck(ack) = &mut s.packet {
            ack.seq += 1
        }
    });
}

/// What is still to come from the first source the core marks for the second one as well, when that is connected.
pub(crate) fn marks_what_comes(said: &mut [Said], [target, second]: [usize; 2], bits: u64) {
    let uuids = generations(said, [target, second]);
    let connected = |u: &Uuids110| !u.flags.contains(UuidFlags::STABLE) && u.flags.contains(UuidFlags::SYNC_TARGET);
    uuids.filter(|u| connected(u) && u.dirty_bits < bits).for_each(|u| u.dirty_bits = bits);
}

/// A kernel that has a target's bitmap takes some milliseconds before it is a source, and answers others meanwhile.
fn begins_at_once(said: &mut [Said], source: usize) {
    let bitmap = |s: &&Said| s.to.index() == source && matches!(s.packet, Packet::CompressedBitmap(_));
    let at = said.iter().find(bitmap).expect("a bitmap").at;
    let begins = |s: &&mut Said| {
        let is = matches!(&s.packet, Packet::State(word) if word.conn == ConnState::SyncSource);
        [s.from.index(), s.to.index()] == [source, 2] && is
    };
    said.iter_mut().find(begins).expect("it is a source").at = at;
    said.sort_by_key(|s| s.at);
}

fn is_write(packet: &Packet, at: u64) -> bool {
    matches!(packet, Packet::Data(w) if w.sector.0 == at)
}

/// Node 0 has begun a transaction of its own before it reads that node 1 has begun this one.
fn read_late(said: &mut [Said], transaction: u32) {
    let asks = |s: &&Said| s.from.index() == 0 && matches!(s.packet, Packet::TwopcPrepare(_));
    let at = Instant(said.iter().find(asks).expect("node 0 begins one").at.0 + 100_000);
    let late = |p: &Packet| matches!(p, Packet::TwopcPrepare(p) if p.transaction.tid == transaction);
    said.iter_mut().filter(|s| s.to.index() == 0 && late(&s.packet)).for_each(|s| s.at = at);
    said.sort_by_key(|s| s.at);
}

/// Node 0 is Primary and writes while node 2 is down.
fn writes_without_node_2(nodes: &mut Together) {
    declare(nodes);
    nodes.command(0, Command::Primary { force: false });
    nodes.forgive();
    for peer in [0, 1].map(id) {
        nodes.command(2, Command::Disconnect { peer, force: false });
        nodes.pass(10);
    }
    for at in [0, 8, 16, 24] {
        nodes.act(0, |node, now| node.write(now, VOLUME, RequestKind::Write { fua: false }, Sector(at), 4096));
    }
    nodes.pass(100);
    nodes.act(0, |node, now| node.close(now, VOLUME));
    nodes.pass(1_000);
}

/// A kernel looks now and then whether a resync is over; the core knows at once. Node 2 gets the last block of its
/// first source just before node 0 begins to connect.
fn copied_when_the_primary_comes(said: &mut [Said]) {
    let begins = |s: &&Said| [s.from.index(), s.to.index()] == [0, 2] && matches!(s.packet, Packet::TwopcPrepare(_));
    let at = Instant(said.iter().find(begins).expect("node 0 connects").at.0 - 14_000);
    let last = said.iter_mut().find(|s| s.from.index() == 1 && matches!(s.packet, Packet::RsDataReply(_)));
    last.expect("it is copied").at = at;
    said.sort_by_key(|s| s.at);
}

/// Node 2 was down while node 0, Primary, wrote. It comes up, and both others want to connect to it at the same time. A
/// kernel that has begun waits half a second before it calls that off; the core does so at once, and what follows comes
/// so much earlier.
fn two_meet_it(node: u8) -> Vec<Said> {
    let mut said = conversation("35");
    read_late(&mut said, 1_033_498_832);
    let over = |s: &Said| s.from == id(0) && matches!(s.packet, Packet::TwopcAbort(_));
    let mut late = said.split_off(said.iter().position(over).expect("it is called off"));
    if node == 2 {
        copied_when_the_primary_comes(&mut late);
        equal_at_once(&mut late, 1);
    }
    // Just before the core's next try.
    let earlier = [470_000_000, 311_100_000, 470_000_000][usize::from(node)];
    late.iter_mut().for_each(|s| s.at = Instant(s.at.0 - earlier));
    said.append(&mut late);
    said
}

#[test]
fn two_meet_a_third_node_at_once() {
    for node in [0, 1, 2] {
        let said = two_meet_it(node);
        let mut replay = if node == 2 {
            Replay::whole(said, node, |_| {})
        } else {
            Replay::of_joined(said, node, small, |_| {}, writes_without_node_2)
        };
        if node == 2 {
            replay.answer_in_time();
        }
        replay.in_other_time(&conversation("35"));
        replay.follow();
        replay.links_up();
        replay.play();
    }
}

/// What is said so long after the recording begins is changed.
pub(crate) fn behind(said: &mut Vec<Said>, millis: u64, change: impl FnOnce(&mut Vec<Said>)) {
    let from = said[0].at + Duration::from_millis(millis);
    let first = said.iter().position(|s| s.at >= from).expect("it is longer than that");
    let mut late = said.split_off(first);
    change(&mut late);
    said.append(&mut late);
}

/// The node, which was shut down, comes up again so long after the recording begins.
fn comes_up_again(replay: &mut Replay, millis: u64) {
    replay.act_at(Duration::from_millis(millis), |node, now| {
        node.down(now);
        node.come_up(now);
    });
}

/// Node 2 is shut down, node 0 writes, and goes on writing when node 2 comes up: that is its first source.
fn meets_a_primary_that_writes(node: u8) -> Replay {
    let mut said = from_the_start("73", node);
    match node {
        0 => {
            as_if_marked_at_once(&mut said, node, 15, 17);
            let later = |p: &Packet| matches!(p, Packet::Barrier(n) if n.0 == 15) || is_write(p, 208);
            to_before_the_connect(&mut said, later);
        }
        1 => as_if_marked_at_once(&mut said, node, 17, 18),
        _ => behind(&mut said, 6_000, |said| {
            begin_late(said, 2, 0);
            equal_at_once(said, 1);
            asked_once_more(said);
        }),
    }
    let mut replay = Replay::whole(said, node, |_| {});
    replay.in_sync.fewer_of = [None, Some(id(2)), Some(id(1))][usize::from(node)];
    if node == 2 {
        comes_up_again(&mut replay, 5_000);
    }
    replay
}

#[test]
fn who_comes_up_meets_a_primary_that_writes() {
    for node in [0, 1, 2] {
        let mut replay = meets_a_primary_that_writes(node);
        replay.follow();
        replay.links_up();
        replay.play();
        assert_is_whole(&replay, node);
    }
}

/// The same while the links of both sources are slow: the Secondary comes first, and copies all but for the last
/// blocks.
#[test]
fn the_first_source_is_slow() {
    for node in [0, 1, 2] {
        let mut said = from_the_start("62", node);
        if node == 2 {
            behind(&mut said, 16_500, |said| {
                marks_what_comes(said, [2, 0], 62);
                equal_at_once(said, 1);
            });
        }
        let mut replay = Replay::whole(said, node, |_| {});
        if node == 2 {
            comes_up_again(&mut replay, 6_000);
            replay.answer_in_time();
            replay.ask_more();
        }
        replay.follow();
        replay.links_up();
        replay.play();
        assert_is_whole(&replay, node);
    }
}

/// Node 2 has two sources. It is a target when it has the first one's bitmap; in the recording that takes so long that
/// it asks the Primary twice who has its writes, before and after the second source is ready.
fn asks_once(said: &mut Vec<Said>) {
    said.retain(|s| match &s.packet {
        Packet::FlushRequests(sequence) => *sequence == 1,
        Packet::FlushRequestsAck(answer) => answer.sequence == 2,
        _ => true,
    });
    for s in said.iter_mut() {
        if let Packet::FlushRequestsAck(answer) = &mut s.packet {
            answer.sequence = 1;
        }
    }
    begin_late(said, 2, 0);
    let waits = |s: &&Said| matches!(&s.packet, Packet::State(word) if word.conn == ConnState::PausedSyncT);
    let at = Instant(said.iter().find(waits).expect("the second source waits").at.0 - 60_000);
    let second = said.iter_mut().filter(|s| s.from == id(1) && matches!(s.packet, Packet::CompressedBitmap(_)));
    second.for_each(|s| s.at = at);
    said.sort_by_key(|s| s.at);
}

/// Node 0 is Primary and writes, discards and zeroes, also while node 2 is down, which comes up again.
fn discards(node: u8) -> Replay {
    let mut said = from_the_start("68", node);
    match node {
        0 => {}
        1 => begins_at_once(&mut said, 1),
        _ => behind(&mut said, 7_000, |said| {
            asks_once(said);
            equal_at_once(said, 1);
        }),
    }
    let mut replay = Replay::whole(said, node, |_| {});
    replay.in_sync.fewer_of = [None, Some(id(2)), Some(id(1))][usize::from(node)];
    if node == 2 {
        comes_up_again(&mut replay, 9_000);
        replay.answer_in_time();
    }
    replay
}

#[test]
fn who_comes_up_gets_what_was_discarded() {
    for node in [0, 1, 2] {
        let mut replay = discards(node);
        replay.follow();
        replay.links_up();
        replay.play();
        assert_is_whole(&replay, node);
    }
}

/// The node, which takes the place of `node` among three, is connected with both others, and all are UpToDate.
pub(crate) fn assert_is_whole(replay: &Replay, node: u8) {
    for place in [0, 1] {
        let state = replay.node.state_towards(place);
        assert!(state.ends_with("Connected UpToDate/UpToDate"), "node {node}: {state}");
    }
}
