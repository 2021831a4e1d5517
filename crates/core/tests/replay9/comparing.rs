//! A Primary has the disks of two others compared with its own, and copies what differs when they connect again.

use crate::VOLUME;
use crate::joining::from_the_start;
use crate::recording::Said;
use crate::replay::Replay;
use crate::sources::{assert_is_whole, behind, equal_at_once, generations_first, id};
use units::{Duration, Generation, Sector};
use urbd_core::RequestKind;
use wire::{Packet, UuidFlags};

/// What is marked for a Primary that it has lost a kernel takes for nothing that a third node should know of; the core
/// says that what that one lacks is not known.
fn not_known(said: &mut [Said], node: u8) {
    let told = said.iter_mut().filter(|s| s.from == id(node) && s.to != id(0));
    let mut told = told.filter_map(|s| if let Packet::Uuids110(u) = &mut s.packet { Some(u) } else { None }).peekable();
    let compared = told.peek().expect("it tells its generation").current;
    let lost = told.skip_while(|u| !u.flags.contains(UuidFlags::STABLE)).filter(|u| u.current.same(compared));
    lost.for_each(|u| u.bitmaps[0] = Generation(u64::MAX));
}

/// Node 0 is Primary and compares with node 2, then with node 1, then with node 2 again; it disconnects from both,
/// writes, and connects with one after the other.
fn compared(node: u8) -> Replay {
    let mut said = from_the_start("67", node);
    match node {
        // Node 1 had its answer before node 2 was connected.
        0 => {
            said.retain(|s| s.to != id(2) || !matches!(&s.packet, Packet::FlushForward(f) if f.node == id(1)));
        }
        1 => behind(&mut said, 2_100, |said| {
            generations_first(said, [1, 2]);
            not_known(said, 1);
        }),
        _ => behind(&mut said, 2_100, |said| {
            equal_at_once(said, 1);
            not_known(said, 2);
        }),
    }
    let mut replay = Replay::whole(said, node, crate::with_crc);
    replay.in_sync.fewer_of = [None, Some(id(2)), Some(id(1))][usize::from(node)];
    if node == 0 {
        replay.answer_in_time();
    }
    replay.follow();
    if node == 0 {
        let write = RequestKind::Write { fua: false };
        replay.act_at(Duration::from_millis(11_880), move |node, now| {
            node.write(now, VOLUME, write, Sector(480), 4096);
        });
    }
    replay.links_up();
    replay
}

#[test]
fn two_others_are_compared_with_a_primary() {
    for node in [0, 1, 2] {
        let mut replay = compared(node);
        replay.play();
        assert_is_whole(&replay, node);
    }
}
