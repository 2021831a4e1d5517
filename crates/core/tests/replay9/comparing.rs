//! A Primary has the disks of two others compared with its own, and copies what differs when they connect again.

use crate::joining::from_the_start;
use crate::node::Together;
use crate::recording::Said;
use crate::replay::Replay;
use crate::sources::{assert_is_whole, behind, equal_at_once, generations_first, id};
use crate::{VOLUME, disk};
use units::{Duration, Generation, Instant, Sector};
use urbd_core::{Command, ConnectionConfig, RequestKind};
use wire::{DiskState, Packet, UuidFlags};

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

/// Node 0 is told of algorithms that it cannot compute: it connects, as the names are the same.
#[test]
fn what_cannot_be_computed_is_not_compared() {
    let verify = || Command::Verify { volume: VOLUME, peer: None, start: None, stop: None, repair: false };
    let unknown = |c: &mut ConnectionConfig| {
        (c.verify, c.csums) = (Some("xxhash64".to_owned()), Some("xxhash64".to_owned()));
        let own = c.peer.index() == 1;
        (c.computes_verify, c.computes_csums) = (!own, !own);
    };
    let begin = Instant(1_000_000_000);
    let mut nodes = Together::new(begin, |node| disk(&[], node, true, Sector(8192)), &unknown);
    nodes.forgive();
    nodes.command(0, Command::NewCurrentUuid { volume: VOLUME, clear_bitmap: true });
    assert!(nodes.is_connected(0, 1), "{}", nodes.notes(0));
    for (node, why) in [(0, "which this node cannot compute"), (1, "refused by peer")] {
        nodes.command(node, verify());
        nodes.pass(200);
        let refused = nodes.result(node).expect("it has ended").expect_err("node 0 cannot");
        assert!(refused.contains(why), "{refused}");
        assert!(!nodes.said(0, "verify-start") && !nodes.said(1, "verify-start"));
        assert!(nodes.is_connected(0, 1));
    }
    // It asks for what differs without digests, and sends what it is asked for by one.
    for (source, digests) in [(1, false), (0, true)] {
        nodes.cut(0, 1);
        nodes.command(source, Command::Primary { force: true });
        nodes.act(source, |node, now| node.write(now, VOLUME, RequestKind::Write { fua: false }, Sector(0), 4096));
        nodes.act(source, |node, now| node.close(now, VOLUME));
        nodes.pass(200);
        nodes.command(source, Command::Secondary { force: false });
        nodes.overheard = Some(Vec::new());
        nodes.join(0, 1);
        nodes.pass(2_000);
        let said = nodes.overheard.take().expect("listened");
        let asked = |f: fn(&Packet) -> bool| said.iter().any(f);
        assert_eq!(asked(|p| matches!(p, Packet::RsCsumDagtagReq(_))), digests, "{said:#?}");
        assert!(asked(|p| matches!(p, Packet::RsDataReply(_))), "{said:#?}");
        assert_eq!([0, 1].map(|n| nodes.disk(n)), [DiskState::UpToDate; 2]);
        assert_eq!((nodes.marks(0, 1), nodes.marks(1, 0)), (0, 0));
    }
}
