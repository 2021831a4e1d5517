//! Recordings of three nodes of which a Primary is lost: the survivors are Consistent until they have agreed.

use crate::joining::{declared_at_once, hear_late};
use crate::node::Node;
use crate::recording::Said;
use crate::replay::Replay;
use crate::sources::{END, assert_is_whole, equal_at_once, generations, id, marks_what_comes};
use crate::{VOLUME, between};
use units::{Duration, Instant, Sector};
use urbd_core::{Command, LinkDown, OnNoQuorum, QuorumConfig, RequestKind, ResourceConfig, Threshold};
use wire::{ConnState, Packet, StateChange, UuidFlags};

/// The nodes come up with fresh disks, are declared equal, and node 0 becomes Primary. This node loses these peers so
/// many milliseconds after the beginning.
fn from_the_start(said: Vec<Said>, node: u8, loses: &[(u8, u64)]) -> Replay {
    with_options(said, node, |_| {}, loses)
}

/// The same with options.
fn with_options(mut said: Vec<Said>, node: u8, options: fn(&mut ResourceConfig), loses: &[(u8, u64)]) -> Replay {
    declared_at_once(&mut said);
    hear_late(&mut said, node);
    let own = said.iter().find(|s| [s.from, s.to].contains(&id(node))).expect("the node takes part").at;
    let begins = own.since(said[0].at);
    let mut replay = Replay::configured(said, node, options, |_| {});
    replay.follow();
    replay.links_up();
    for (peer, after) in loses.iter().copied() {
        let lose = move |node: &mut Node, now| node.core.on_link_down(now, id(peer), LinkDown::Closed);
        replay.act_at(Duration(Duration::from_millis(after).0 - begins.0), lose);
    }
    replay
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

fn majority(cfg: &mut ResourceConfig) {
    cfg.quorum = QuorumConfig::new(Threshold::Majority, Threshold::Off, OnNoQuorum::SuspendIo);
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
