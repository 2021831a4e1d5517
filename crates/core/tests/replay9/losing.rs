//! Recordings of three nodes of which a Primary is lost: the survivors are Consistent until they have agreed.

use crate::joining::{declared_at_once, hear_late};
use crate::node::Node;
use crate::recording::Said;
use crate::replay::Replay;
use crate::sources::{END, assert_is_whole, equal_at_once, id, not_forwarded_to_node_1, without_quorum};
use crate::{VOLUME, between};
use units::{Duration, Instant, Sector};
use urbd_core::{Command, LinkDown, RequestKind};
use wire::{DiskState, Packet, StateChange};

/// The nodes come up with fresh disks, are declared equal, and node 0 becomes Primary. This node loses these peers so
/// many milliseconds after the beginning.
fn from_the_start(mut said: Vec<Said>, node: u8, loses: &[(u8, u64)]) -> Replay {
    declared_at_once(&mut said);
    hear_late(&mut said, node);
    let own = said.iter().find(|s| [s.from, s.to].contains(&id(node))).expect("the node takes part").at;
    let begins = own.since(said[0].at);
    let mut replay = Replay::whole(said, node, |_| {});
    replay.follow();
    replay.links_up();
    for (peer, after) in loses.iter().copied() {
        let lose = move |node: &mut Node, now| node.core.on_link_down(now, id(peer), LinkDown::Closed);
        replay.act_at(Duration(Duration::from_millis(after).0 - begins.0), lose);
    }
    replay
}

/// Nodes 0, Primary, and 1 lose their power, one after the other. Node 2 misses node 0 first, when node 1 has not yet;
/// then it is made Primary by force, and writes, and the others come back.
#[test]
fn survivors_of_a_primary_agree() {
    for (node, until, loses) in [(0, 3_800, [].as_slice()), (1, 6_000, &[(0, 4_833)])] {
        let mut replay = from_the_start(without_quorum(between("71", 0, until)), node, loses);
        replay.play();
        assert_eq!(replay.node.core.snapshot().devices[0].disk, DiskState::UpToDate, "node {node}");
    }
    let mut said = without_quorum(between("71", 0, END));
    not_forwarded_to_node_1(&mut said);
    let mut replay = from_the_start(said, 2, &[(0, 4_320), (1, 6_700)]);
    replay.act_at(Duration::from_secs(10), |node, now| node.command(now, Command::Primary { force: true }));
    for n in [0, 1] {
        let kind = RequestKind::Write { fua: false };
        let write = move |node: &mut Node, now| node.write(now, VOLUME, kind, Sector(64 + 8 * n), 4096);
        replay.act_at(Duration::from_millis(11_000 + n), write);
    }
    replay.play();
    assert_is_whole(&replay, 2);
}

/// A kernel is slow to clean up what a lost node has left: the core tells at once what it has of that.
fn tell_at_once(said: &mut [Said]) {
    let asks = |s: &&Said| matches!(&s.packet, Packet::TwopcPrepare(p) if p.change == StateChange::default());
    let at = Instant(said.iter().find(asks).expect("node 2 asks").at.0 + 100_000);
    let told = said.iter_mut().filter(|s| matches!(s.packet, Packet::CurrentUuid(_) | Packet::PeerDagtag(_)));
    told.for_each(|s| s.at = at);
    said.sort_by_key(|s| s.at);
}

/// Node 0 is Primary, and node 2 does not reach it any more, which hears from node 1 that it is there.
#[test]
fn who_does_not_reach_a_primary_is_outdated() {
    for (node, loses) in [(0, [(2, 7_200)].as_slice()), (1, &[]), (2, &[(0, 7_208)])] {
        let mut said = between("60", 0, END);
        if node == 2 {
            tell_at_once(&mut said);
            let begun = said[0].at;
            let mut later = said.split_off(said.partition_point(|s| s.at.since(begun) < Duration::from_secs(16)));
            equal_at_once(&mut later, 1);
            said.extend(later);
        }
        let mut replay = from_the_start(said, node, loses);
        replay.in_sync.fewer_of = [None, Some(id(2)), Some(id(1))][usize::from(node)];
        replay.play();
        assert_is_whole(&replay, node);
    }
}
