//! Recordings of three nodes of which a Primary is lost: the survivors are Consistent until they have agreed.

use crate::joining::{declared_at_once, hear_late};
use crate::node::{Node, Together};
use crate::recording::{Said, conversation};
use crate::replay::Replay;
use crate::sources::{
    END, assert_is_whole, declare, equal_at_once, generations, generations_first, id, marks_what_comes,
};
use crate::{SMALL, VOLUME, between, disk, majority};
use units::{Duration, Generation, Instant, Sector};
use urbd_core::{Command, LinkDown, QuorumConfig, RequestKind, ResourceConfig};
use wire::{ConnState, Packet, StateChange, UuidFlags, Uuids110};

/// The nodes come up with fresh disks, are declared equal, and node 0 becomes Primary. This node loses these peers so
/// many milliseconds after the beginning.
fn from_the_start(said: Vec<Said>, node: u8, loses: &[(u8, u64)]) -> Replay {
    with_options(said, node, |_| {}, loses)
}

/// The same with options.
fn with_options(mut said: Vec<Said>, node: u8, options: fn(&mut ResourceConfig), loses: &[(u8, u64)]) -> Replay {
    declared_at_once(&mut said);
    hear_late(&mut said, node);
    let begin = said[0].at;
    let mut replay = Replay::configured(said, node, options, |_| {});
    replay.follow();
    replay.links_up();
    lose(&mut replay, begin, loses);
    replay
}

/// The node loses these peers so many milliseconds after the beginning; those of one time at once.
fn lose(replay: &mut Replay, begin: Instant, loses: &[(u8, u64)]) {
    for together in loses.chunk_by(|a, b| a.1 == b.1) {
        let peers: Vec<_> = together.iter().map(|(peer, _)| id(*peer)).collect();
        let lose = move |node: &mut Node, now| {
            peers.iter().for_each(|peer| node.core.on_link_down(now, *peer, LinkDown::Closed));
        };
        replay.act(begin + Duration::from_millis(together[0].1), lose);
    }
}

/// Node 0 has crashed as Primary. A kernel says so until it is brought up to date, the core until it hears that
/// another one goes on.
fn hears_that_another_goes_on(said: &mut [Said]) {
    let back = said.iter().rposition(|s| s.from == id(0) && matches!(s.packet, Packet::Sizes(_)));
    generations(&mut said[..back.expect("node 1 comes back later")], [0, 2])
        .filter(|u| !u.flags.contains(UuidFlags::STABLE))
        .for_each(|u| u.flags = UuidFlags(u.flags.0 & !UuidFlags::CRASHED_PRIMARY.0));
}

/// Node 1 was not there when node 0 had asked that, and had its answer.
fn not_forwarded_to_node_1(said: &mut Vec<Said>) {
    said.retain(|s| s.to != id(1) || !matches!(&s.packet, Packet::FlushForward(f) if f.node == id(0)));
}

/// Node 1 was a Secondary when its power failed: the core marks for both peers what its activity log had hot then.
fn marks_what_was_hot(said: &mut [Said]) {
    let back = said.iter().rposition(|s| [s.from, s.to] == [id(1), id(0)] && matches!(s.packet, Packet::Sizes(_)));
    let said = &mut said[back.expect("node 1 comes back")..];
    for peer in [0, 2] {
        generations(said, [1, peer]).next().expect("it tells its generations").dirty_bits = 128;
    }
}

/// Node 1 has the Secondary as its first source, and marks at once for node 2 what is to come from there. It tells its
/// state, its generations and its state again: the core not the first one. And it forgets at once what it has marked
/// for node 0.
fn meets_both(said: &mut Vec<Said>) {
    marks_what_comes(said, [1, 2], 128);
    let goes_on = |s: &Said| matches!(&s.packet, Packet::State(word) if word.conn == ConnState::SyncTarget);
    let first = said.iter().position(|s| [s.from, s.to] == [id(1), id(2)] && goes_on(s));
    said.remove(first.expect("the second source goes on"));
    generations(said, [1, 0]).filter(|u| u.dirty_bits == 8).for_each(|u| u.dirty_bits = 0);
}

/// Nodes 0, Primary, and 1 lose their power, one after the other. Node 2 misses node 0 first, when node 1 has not yet;
/// then it is alone, and no Primary until quorum is not asked for any more; it writes. The others come back: node 0
/// meets node 2, and later node 1 meets both, the Secondary first.
#[test]
fn a_majority_is_lost_and_comes_back() {
    for node in [0, 1, 2] {
        let mut said = between("71", 0, END);
        let begin = said[0].at;
        let dead = |s: &Said| {
            let after = |from: u64, to: u64| {
                (Duration::from_millis(from)..Duration::from_millis(to)).contains(&s.at.since(begin))
            };
            [s.from, s.to].contains(&id(node)) && after([3_640, 5_200, END][usize::from(node)], 22_000)
        };
        said.retain(|s| !dead(s));
        match node {
            0 => hears_that_another_goes_on(&mut said),
            1 => {
                marks_what_was_hot(&mut said);
                meets_both(&mut said);
            }
            _ => not_forwarded_to_node_1(&mut said),
        }
        let loses: &[(u8, u64)] = [[].as_slice(), &[(0, 4_833)], &[(0, 4_320), (1, 6_700)]][usize::from(node)];
        let mut replay = with_options(said, node, majority, loses);
        let at = Duration::from_millis;
        if node == 2 {
            replay.node.forgive = true;
            replay.act_at(at(8_000), |node, now| node.command(now, Command::Primary { force: false }));
            replay.act_at(at(9_000), |node, now| {
                let refused = node.result.take().expect("it is answered").expect_err("there is no quorum");
                assert!(refused.contains("quorum"), "{refused}");
                node.reconfigure(now, |cfg| cfg.quorum = QuorumConfig::default());
            });
            replay.act_at(at(10_000), |node, now| node.command(now, Command::Primary { force: false }));
            for n in [0, 1] {
                let kind = RequestKind::Write { fua: false };
                let write = move |node: &mut Node, now| node.write(now, VOLUME, kind, Sector(64 + 8 * n), 4096);
                replay.act_at(at(11_000 + n), write);
            }
        } else {
            replay.act_at(at([3_700, 5_300][usize::from(node)]), |node, _| node.lose_power());
            replay.act_at(at(22_200), |node, now| node.come_up(now));
        }
        if node == 1 {
            replay.answer_in_time();
            replay.ask_more();
        }
        replay.play();
        assert_is_whole(&replay, node);
    }
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

/// A kernel may ask whether others go on with a lost Primary just before it says what it is itself without that one.
fn asks_when_it_has_told(said: &mut [Said], node: u8) {
    let own = |s: &Said| s.from == id(node);
    let asks = |s: &Said| own(s) && matches!(&s.packet, Packet::TwopcPrepare(p) if p.change == StateChange::default());
    let asked = said.iter().position(asks).expect("it asks");
    let told = |s: &Said| own(s) && matches!(&s.packet, Packet::Uuids110(u) if u.flags.contains(UuidFlags::GOT_STABLE));
    let told = said.iter().position(told).expect("it depends on nobody");
    said[asked].at = said[asked].at.max(said[told].at + Duration(1));
    said.sort_by_key(|s| s.at);
}

/// A kernel goes back to where what waits for quorum is among its writes; to the core it is the next one, and is marked
/// for node 2 until that has acknowledged it.
fn sends_again(said: &mut Vec<Said>) {
    let begins = |u: &&mut Uuids110| u.flags.contains(UuidFlags::NEW_DATAGEN);
    generations(said, [0, 2]).find(begins).expect("a generation begins").dirty_bits = 1;
    let forward = |s: &Said| s.from == id(0) && matches!(s.packet, Packet::Dagtag(_));
    said.remove(said.iter().position(forward).expect("it says where its writes are"));
}

/// Node 0, Primary, loses both others, which agree that it is gone and keep quorum; what it writes waits until it has
/// met node 2 again. That, and what follows, is news to node 1, which it meets last.
#[test]
fn writes_wait_for_quorum() {
    for node in [0, 1, 2] {
        let mut said = conversation("45");
        let begin = said[0].at;
        // Its link is cut when the recording begins.
        said.retain(|s| node != 0 || s.at.since(begin) > Duration::from_secs(3));
        match node {
            0 => sends_again(&mut said),
            1 => {
                asks_when_it_has_told(&mut said, node);
                generations_first(&mut said, [1, 2]).dirty_bits = 0;
                // Its question has met that of node 2. The core takes some more time before it asks again.
                let again = Duration::from_millis(1_090)..Duration::from_millis(1_110);
                let again = said.iter_mut().filter(|s| again.contains(&s.at.since(begin)));
                again.for_each(|s| s.at = s.at + Duration::from_millis(300));
            }
            _ => {}
        }
        let primary = |nodes: &mut Together| {
            nodes.reconfigure(majority);
            declare(nodes);
            nodes.command(0, Command::Primary { force: false });
            let write = RequestKind::Write { fua: false };
            nodes.act(0, |node, now| node.write(now, VOLUME, write, Sector(0), 4096));
            nodes.act(0, |node, now| node.close(now, VOLUME));
            nodes.pass(500);
            nodes.forgive();
        };
        let start = |said: &[Said], node| disk(said, node, true, SMALL);
        let mut replay = Replay::of_joined(said, node, start, |_| {}, primary);
        let loses: &[(u8, u64)] = [[(1, 600), (2, 600)].as_slice(), &[(0, 505)], &[(0, 1_008)]][usize::from(node)];
        replay.in_other_time(&conversation("45"));
        replay.begin_with(Generation(0x0d6c_8643_8287_7b94));
        replay.in_sync.fewer_of = [None, Some(id(2)), Some(id(1))][usize::from(node)];
        lose(&mut replay, begin, loses);
        if node == 0 {
            // Nobody hears it, and it does not know yet.
            replay.node.unplugged = true;
            replay.waits = Some((Sector(24), begin + Duration::from_millis(300)));
            replay.act(begin + Duration::from_millis(700), |node, _| node.unplugged = false);
        }
        replay.follow();
        if node == 0 {
            replay.acknowledge_in_own_time();
        }
        replay.links_up();
        replay.play();
        assert_is_whole(&replay, node);
    }
}
