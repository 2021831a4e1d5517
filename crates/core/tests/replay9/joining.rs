//! Three nodes come up, one of them perhaps later than the others.

use crate::VOLUME;
use crate::recording::{Said, conversation};
use crate::replay::Replay;
use crate::sources::{assert_is_whole, equal_at_once, generations, id};
use units::{Duration, Generation, Instant, Sector};
use urbd_core::RequestKind;
use wire::{DiskState, Packet, UuidFlags, Uuids110};

/// The last answer comes just before the target says that all is copied: a kernel needs some time to see that, and is
/// connected with a second source meanwhile. What it had got by then it has marked for that one.
fn see_the_end_late(said: &mut [Said]) {
    let over = |s: &&Said| s.from.index() == 2 && matches!(s.packet, Packet::EnableReplication(_));
    let at = Instant(said.iter().find(over).expect("all is copied").at.0 - 100_000);
    let answers = said.iter_mut().filter(|s| s.to.index() == 2 && matches!(s.packet, Packet::RsDataReply(_)));
    answers.for_each(|s| s.at = at);
    said.sort_by_key(|s| s.at);
    let target = generations(said, [2, 1]).filter(|u| u.flags.contains(UuidFlags::SYNC_TARGET));
    target.for_each(|u| u.dirty_bits = 0);
}

/// A kernel puts what it takes over from its source's history into its own one from the newest to the oldest, so that
/// the oldest comes first; the core keeps the order.
fn newest_first(said: &mut [Said]) {
    let ended = [0, 1].map(|peer| generations(said, [2, peer]).filter(|u| !u.history[1].is_none()).count());
    assert!(ended.iter().all(|told| *told > 0), "a resync ends");
    for peer in [0, 1] {
        generations(said, [2, peer]).for_each(|u| u.history[..2].reverse());
    }
}

/// Nodes 0 and 1 are declared equal, and node 0 writes, later without node 1, which is down and comes up again. Node 2
/// has a copy of the first day.
fn day_0(node: u8) -> Replay {
    let mut said = conversation("61");
    match node {
        // Node 2 was not there when node 1 had asked that, and had its answer.
        0 => {
            said.retain(|s| s.to.index() != 2 || !matches!(&s.packet, Packet::FlushForward(f) if f.node.index() == 1));
        }
        2 => {
            see_the_end_late(&mut said);
            equal_at_once(&mut said, 1);
            newest_first(&mut said);
        }
        _ => {}
    }
    let mut replay = Replay::whole(said, node, |_| {});
    let at = Duration::from_millis;
    match node {
        0 => {
            for sector in [320, 328] {
                let write = RequestKind::Write { fua: false };
                replay.act_at(at(6_000), move |node, now| node.write(now, VOLUME, write, Sector(sector), 4096));
            }
        }
        1 => {
            replay.act_at(at(6_000), |node, now| node.down(now));
            replay.act_at(at(8_000), |node, now| node.come_up(now));
            replay.in_sync.fewer_of = Some(id(2));
        }
        _ => {
            replay.in_sync.fewer_of = Some(id(1));
            replay.answer_in_time();
        }
    }
    replay
}

#[test]
fn a_copy_of_the_first_day_gets_what_was_written_since() {
    for node in [0, 1, 2] {
        let mut replay = day_0(node);
        replay.follow();
        replay.links_up();
        replay.play();
        assert_is_whole(&replay, node);
    }
}

/// A recording whose three nodes come up with fresh disks, and node 0 declares them equal.
pub(crate) fn from_the_start(number: &str, node: u8) -> Vec<Said> {
    let mut said = conversation(number);
    declared_at_once(&mut said);
    hear_late(&mut said, node);
    said
}

/// A kernel clears what it counts from for one peer after the other, and tells the first one in between.
pub(crate) fn declared_at_once(said: &mut [Said]) {
    for s in said {
        if let Packet::Uuids110(u) = &mut s.packet
            && u.flags.contains(UuidFlags::SKIP_INITIAL_SYNC)
        {
            u.bitmaps.fill(Generation::NONE);
        }
    }
}

/// A kernel takes some milliseconds until it has adopted that, and hears meanwhile that the third node has done so.
pub(crate) fn hear_late(said: &mut [Said], node: u8) {
    let own = usize::from(node);
    let good = |s: &&Said| {
        s.from.index() == own && matches!(&s.packet, Packet::State(word) if word.disk == DiskState::UpToDate)
    };
    let knows = |s: &Said| matches!(&s.packet, Packet::State(word) if word.pdsk == DiskState::UpToDate);
    let at = Instant(said.iter().find(good).expect("all are declared equal").at.0 - 60_000);
    let late = said.iter().filter(|s| s.to.index() != 0).find(good).is_some_and(knows);
    let told = said.iter_mut().find(|s| {
        let skips = |u: &Uuids110| u.flags.contains(UuidFlags::SKIP_INITIAL_SYNC);
        s.to.index() == own && matches!(&s.packet, Packet::Uuids110(u) if skips(u))
    });
    if let (Some(told), true) = (told, late) {
        told.at = told.at.max(at);
        said.sort_by_key(|s| s.at);
    }
}
