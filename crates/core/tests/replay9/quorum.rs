//! Who has quorum among nodes that count each other's votes: each thing that the count goes by, in a whole cluster
//! (`docs/spec/connection-and-state.md` 9).

use crate::mesh;
use crate::node::{Start, Together};
use crate::{VOLUME, majority};
use units::{Instant, NodeId, VolumeNr};
use urbd_core::{Command, OnNoQuorum, Part, QuorumConfig, ResourceConfig, Threshold};
use wire::{DiskState, Role};

fn id(node: usize) -> NodeId {
    NodeId::new(node as u8).expect("a node id")
}

fn asks(cfg: &mut ResourceConfig, nodes: Threshold, up_to_date: Threshold) {
    cfg.quorum = QuorumConfig::new(nodes, up_to_date, OnNoQuorum::SuspendIo);
}

/// Fresh disks, with room for so many bitmaps.
fn fresh(slots: u32) -> impl Fn(NodeId) -> Vec<(VolumeNr, Start)> {
    move |node| {
        let mut starts = mesh::fresh(node);
        starts[0].1.slots = slots;
        starts
    }
}

/// These nodes have no disk, and are so counted by all.
fn without_disks(own: NodeId, cfg: &mut ResourceConfig, nodes: &[usize], part: Part) {
    let of = |node: NodeId| nodes.contains(&node.index());
    cfg.volumes.iter_mut().filter(|_| of(own)).for_each(|volume| volume.disk = None);
    cfg.connections.iter_mut().filter(|c| of(c.peer)).for_each(|c| c.part = part);
}

/// The first `disks` of so many nodes have disks, whose data is equal. All but these are connected.
fn cluster(count: u8, disks: u32, away: &[usize], change: impl Fn(NodeId, &mut ResourceConfig)) -> Together {
    let mut nodes = Together::apart(count, Instant(1_000_000_000), fresh(disks - 1), change);
    let here: Vec<usize> = (0..usize::from(count)).filter(|n| !away.contains(n)).collect();
    for (n, low) in here.iter().enumerate() {
        for high in &here[n + 1..] {
            nodes.join(*low, *high);
            nodes.pass(1_000);
            assert!(nodes.is_connected(*low, *high), "{low} {high}: {}", nodes.notes(*high));
        }
    }
    nodes.command(0, Command::NewCurrentUuid { volume: VOLUME, clear_bitmap: true });
    nodes.pass(500);
    nodes.forgive();
    nodes
}

/// Of so many with disks a majority is asked for.
fn most(count: u8) -> Together {
    cluster(count, count.into(), &[], |_, cfg| majority(cfg))
}

/// Two with disks, and nodes without.
fn two_and(count: u8, away: &[usize], part: Part) -> Together {
    let without: Vec<usize> = (2..usize::from(count)).collect();
    cluster(count, 2, away, |own, cfg| {
        majority(cfg);
        without_disks(own, cfg, &without, part);
    })
}

/// The power of a node fails.
fn dies(nodes: &mut Together, count: usize, node: usize) {
    nodes.act(node, |n, _| n.lose_power());
    (0..count).filter(|other| *other != node).for_each(|other| nodes.cut(node, other));
    nodes.pass(1_000);
}

/// A node takes leave of these, of which the first one is Primary: its copy is Outdated from then on.
fn leaves(nodes: &mut Together, node: usize, others: &[usize]) {
    nodes.command(others[0], Command::Primary { force: false });
    nodes.pass(1_000);
    assert_eq!(nodes.role(others[0]), Role::Primary, "{}", nodes.notes(others[0]));
    for other in others {
        nodes.command(node, Command::Disconnect { peer: id(*other), force: false });
        nodes.pass(1_000);
        assert!(!nodes.is_connected(*other, node), "{}", nodes.notes(node));
    }
}

/// It may not, as that one would have no quorum any more.
fn stays(nodes: &mut Together, node: usize, primary: usize) {
    nodes.command(primary, Command::Primary { force: false });
    nodes.pass(1_000);
    assert_eq!(nodes.role(primary), Role::Primary, "{}", nodes.notes(primary));
    nodes.command(node, Command::Disconnect { peer: id(primary), force: false });
    nodes.pass(1_000);
    assert!(nodes.is_connected(primary, node), "{}", nodes.notes(node));
    nodes.result(node).expect("it is answered").expect_err("a Primary would lose its quorum");
}

fn restart(nodes: &mut Together, node: usize) {
    nodes.act(node, |n, now| n.come_up(now));
    nodes.pass(1_000);
}

/// Who has quorum, of these.
#[track_caller]
fn assert_has(nodes: &Together, wanted: &[(usize, bool)]) {
    for (node, has) in wanted.iter().copied() {
        assert_eq!(nodes.has_quorum(node), has, "node {node}: {}", nodes.notes(node));
    }
}

#[test]
fn who_is_not_connected_is_not_in_reach() {
    let mut nodes = most(3);
    assert_has(&nodes, &[(0, true), (1, true), (2, true)]);
    nodes.cut(0, 1);
    nodes.cut(0, 2);
    nodes.pass(1_000);
    assert_has(&nodes, &[(0, false), (1, true), (2, true)]);
    nodes.join(0, 1);
    nodes.pass(1_000);
    assert_has(&nodes, &[(0, true)]);
}

#[test]
fn it_takes_as_many_as_are_asked_for() {
    for (nodes, two, one) in
        [(Threshold::All, false, false), (Threshold::AtLeast(1), true, true), (Threshold::Off, true, true)]
    {
        let mut cluster = cluster(3, 3, &[], |_, cfg| asks(cfg, nodes, Threshold::Off));
        assert_has(&cluster, &[(0, true)]);
        cluster.cut(0, 2);
        cluster.cut(1, 2);
        cluster.pass(1_000);
        assert_has(&cluster, &[(0, two), (2, one)]);
    }
}

/// Who takes leave is Outdated, and cannot be promoted: it is no voter where nobody else could go on.
#[test]
fn who_leaves_in_order_is_no_voter() {
    let mut nodes = most(3);
    leaves(&mut nodes, 2, &[0, 1]);
    leaves(&mut nodes, 1, &[0]);
    assert_has(&nodes, &[(0, true)]);
    // Nor after a restart, when the metadata alone know it.
    restart(&mut nodes, 0);
    assert_has(&nodes, &[(0, true)]);
}

/// Who is away and may be promoted is a voter beside one that cannot.
#[test]
fn one_that_may_go_on_elsewhere_makes_all_voters() {
    let mut nodes = most(3);
    leaves(&mut nodes, 2, &[0, 1]);
    nodes.cut(0, 1);
    nodes.pass(1_000);
    assert_has(&nodes, &[(0, false), (1, false)]);
}

/// Node 3 was lost while the others had quorum, which have agreed on that: it knows that it has none.
#[test]
fn who_was_lost_without_quorum_cannot_go_on() {
    let mut nodes = most(4);
    dies(&mut nodes, 4, 3);
    leaves(&mut nodes, 2, &[0, 1]);
    assert_has(&nodes, &[(0, true), (1, true)]);
}

/// But several that were lost may have found each other, if they are enough.
#[test]
fn lost_nodes_that_are_enough_may_have_found_each_other() {
    let mut nodes = most(5);
    dies(&mut nodes, 5, 4);
    dies(&mut nodes, 5, 3);
    assert_has(&nodes, &[(0, true), (1, true), (2, true)]);
    stays(&mut nodes, 2, 0);
}

/// Good copies are counted: one that is given up, here or there, is none.
#[test]
fn copies_that_are_not_good_do_not_count_as_such() {
    let two = |_, cfg: &mut ResourceConfig| asks(cfg, Threshold::Majority, Threshold::AtLeast(2));
    let mut nodes = cluster(3, 3, &[], two);
    dies(&mut nodes, 3, 2);
    assert_has(&nodes, &[(0, true), (1, true)]);
    nodes.command(0, Command::PauseSync { volume: VOLUME });
    nodes.command(1, Command::invalidate(VOLUME));
    nodes.pass(1_000);
    assert_eq!(nodes.disk(1), DiskState::Inconsistent, "{}", nodes.notes(1));
    assert_has(&nodes, &[(0, false), (1, false)]);
    nodes.command(0, Command::ResumeSync { volume: VOLUME });
    nodes.pass(3_000);
    assert_has(&nodes, &[(0, true), (1, true)]);
}

/// Without quorum before, as after a restart, a node without a disk decides nothing.
#[test]
fn a_draw_is_decided_for_who_had_quorum() {
    let mut nodes = two_and(3, &[], Part::Tiebreaker);
    dies(&mut nodes, 3, 1);
    assert_has(&nodes, &[(0, true)]);
    dies(&mut nodes, 3, 0);
    restart(&mut nodes, 0);
    nodes.join(0, 2);
    nodes.pass(1_000);
    assert!(nodes.is_connected(0, 2), "{}", nodes.notes(0));
    assert_has(&nodes, &[(0, false)]);
}

/// One of four is less than a half, whoever is there without a disk.
#[test]
fn less_than_a_half_is_no_draw() {
    let mut nodes = cluster(5, 4, &[], |own, cfg| {
        majority(cfg);
        without_disks(own, cfg, &[4], Part::Tiebreaker);
    });
    nodes.cut(0, 1);
    nodes.cut(0, 2);
    assert_has(&nodes, &[(0, true)]);
    nodes.cut(0, 3);
    nodes.pass(1_000);
    assert_has(&nodes, &[(0, false)]);
}

/// Of two without disks that were seen both must be within reach; one that is no tie-breaker is none.
#[test]
fn most_nodes_without_disks_decide_a_draw() {
    let mut nodes = two_and(4, &[], Part::Tiebreaker);
    dies(&mut nodes, 4, 3);
    assert_has(&nodes, &[(0, true), (1, true)]);
    nodes.cut(0, 1);
    nodes.cut(1, 2);
    nodes.pass(1_000);
    assert_has(&nodes, &[(0, false), (1, false)]);

    let mut nodes = two_and(3, &[], Part::Client);
    dies(&mut nodes, 3, 1);
    assert_has(&nodes, &[(0, false)]);
}

/// One that is configured, and was never seen, does not count; nor does it decide.
#[test]
fn a_node_without_a_disk_that_was_never_seen_does_not_count() {
    let mut nodes = two_and(4, &[3], Part::Tiebreaker);
    dies(&mut nodes, 4, 1);
    assert_has(&nodes, &[(0, true)]);
}

/// That it exists is noted when it is heard first, which is no reason to call the connect off.
#[test]
fn a_node_without_a_disk_is_connected_at_the_first_try() {
    let without = |own, cfg: &mut ResourceConfig| without_disks(own, cfg, &[2], Part::Tiebreaker);
    let mut nodes = Together::apart(3, Instant(1_000_000_000), fresh(1), without);
    nodes.join(0, 1);
    nodes.join(0, 2);
    assert!(nodes.is_connected(0, 2) && nodes.is_connected(2, 0), "{}", nodes.notes(0));
}

/// One that is away is no voter: it has no copy with which somebody goes on.
#[test]
fn a_lost_tie_breaker_is_no_voter() {
    let mut nodes = two_and(3, &[], Part::Tiebreaker);
    dies(&mut nodes, 3, 2);
    leaves(&mut nodes, 1, &[0]);
    assert_has(&nodes, &[(0, true)]);
}

/// Who is not in the configuration any more, and was not forgotten, counts by what is noted of it.
#[test]
fn who_was_removed_from_the_configuration_counts() {
    for in_order in [false, true] {
        let mut nodes = most(3);
        if in_order {
            leaves(&mut nodes, 2, &[0, 1]);
        } else {
            dies(&mut nodes, 3, 2);
        }
        nodes.act(0, |node, now| {
            node.without(id(2));
            node.come_up(now);
        });
        nodes.cut(0, 1);
        nodes.join(0, 1);
        nodes.pass(1_000);
        assert_has(&nodes, &[(0, true)]);
        if in_order {
            leaves(&mut nodes, 1, &[0]);
            assert_has(&nodes, &[(0, true)]);
        } else {
            stays(&mut nodes, 1, 0);
        }
    }
}

/// Node 3 has no disk, and reaches one that has quorum only: that is enough. If all have given up their disks nothing
/// is.
#[test]
fn a_node_without_a_disk_has_the_quorum_of_good_copies() {
    let without = |own, cfg: &mut ResourceConfig| {
        majority(cfg);
        without_disks(own, cfg, &[3], Part::Tiebreaker);
    };
    let mut nodes = cluster(4, 3, &[], without);
    nodes.cut(1, 3);
    nodes.cut(2, 3);
    nodes.pass(1_000);
    assert_has(&nodes, &[(0, true), (3, true)]);
    nodes.cut(0, 1);
    nodes.cut(0, 2);
    nodes.pass(1_000);
    assert_has(&nodes, &[(0, false), (3, false)]);

    let mut nodes = two_and(3, &[], Part::Tiebreaker);
    assert_has(&nodes, &[(2, true)]);
    for node in [0, 1] {
        nodes.command(node, Command::Detach { volume: VOLUME, force: true });
        nodes.pass(1_000);
    }
    assert_eq!([0, 1].map(|n| nodes.disk(n)), [DiskState::Diskless; 2]);
    assert_has(&nodes, &[(2, false)]);
}

/// Who is to have a disk, and has none, is a voter to itself: perhaps its copy is the one with which to go on. Not so
/// while it takes the disk into use.
#[test]
fn a_missing_disk_of_ones_own_is_a_voter() {
    let mut nodes = Together::apart(2, Instant(1_000_000_000), fresh(1), |_, cfg| majority(cfg));
    nodes.join(0, 1);
    nodes.pass(1_000);
    nodes.command(0, Command::Detach { volume: VOLUME, force: true });
    nodes.pass(1_000);
    assert_eq!([0, 1].map(|n| nodes.disk(n)), [DiskState::Diskless, DiskState::Inconsistent]);
    assert_has(&nodes, &[(0, false), (1, true)]);
    nodes.act(0, |node, _| node.opening = Some(Vec::new()));
    nodes.command(0, Command::Attach { volume: VOLUME });
    nodes.command(0, Command::PauseSync { volume: VOLUME });
    assert_eq!(nodes.disk(0), DiskState::Attaching, "{}", nodes.notes(0));
    assert_has(&nodes, &[(0, true), (1, true)]);
}

/// Node 1 was lost, and node 2, which had decided, has left: node 0 is the only one with quorum, and has it when it is
/// started again.
#[test]
fn the_last_one_with_quorum_keeps_it_over_a_restart() {
    let mut nodes = two_and(3, &[], Part::Tiebreaker);
    dies(&mut nodes, 3, 1);
    leaves(&mut nodes, 2, &[0]);
    assert_has(&nodes, &[(0, true)]);
    restart(&mut nodes, 0);
    assert_has(&nodes, &[(0, true)]);

    // Who had none has none.
    let mut nodes = most(2);
    dies(&mut nodes, 2, 1);
    restart(&mut nodes, 0);
    assert_has(&nodes, &[(0, false)]);

    // Beside another one it is not the only one.
    let mut nodes = two_and(3, &[], Part::Tiebreaker);
    dies(&mut nodes, 3, 1);
    dies(&mut nodes, 3, 0);
    restart(&mut nodes, 0);
    assert_has(&nodes, &[(0, false)]);
}
