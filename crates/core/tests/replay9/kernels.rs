//! urbd among nodes that decide as kernels do (`docs/spec/connection-and-state.md` 5.8.2): no standstill, and no write
//! that a good copy did not hear of.

use crate::VOLUME;
use crate::mesh::{fresh, write};
use crate::node::Together;
use units::{Instant, NodeId, Sector};
use urbd_core::Command;
use urbd_core::decide::private::Decides;
use wire::{ConnState, DiskState, Packet, Role};

const URBD: Decides = Decides::AsUrbd;

/// Three nodes; node 0 has good data and is Primary. Two that decide as kernels do so beside urbd only.
fn three(decides: [Decides; 3]) -> Together {
    let change = |own: NodeId, c: &mut urbd_core::ConnectionConfig| {
        c.max_version = 124;
        c.decides = if decides[c.peer.index()] == URBD { decides[own.index()] } else { URBD };
    };
    let mut nodes = Together::unlike(3, Instant(1_000_000_000), fresh, &change);
    nodes.command(0, Command::NewCurrentUuid { volume: VOLUME, clear_bitmap: true });
    nodes.command(0, Command::Primary { force: false });
    nodes.forgive();
    nodes
}

/// Each way in which one or two of three decide as kernels do, of each kind, or as an older urbd. Node 0 is urbd.
fn ways() -> Vec<[Decides; 3]> {
    let kernels = [Decides::AsDrbd93, Decides::AsLaterDrbd, Decides::AsOlderUrbd];
    kernels.into_iter().flat_map(|kernel| [[URBD, kernel, kernel], [URBD, URBD, kernel]]).collect()
}

/// A node's process is killed, and is there again at once; all others notice.
fn restart(nodes: &mut Together, node: usize) {
    let others = [0, 1, 2].into_iter().filter(|other| *other != node);
    let others: Vec<_> = others.collect();
    nodes.act(node, |n, now| {
        n.come_up(now);
        n.sent.clear();
    });
    others.iter().for_each(|other| nodes.cut(node, *other));
    nodes.pass(300);
    for other in others {
        nodes.join(node.min(other), node.max(other));
        nodes.pass(300);
    }
}

/// All are connected, UpToDate and have nothing marked, ten seconds later, and no two have parted more than once
/// meanwhile.
fn all_is_well(nodes: &mut Together, what: &str) {
    let mut parted = Vec::new();
    for _ in 0..100 {
        nodes.pass(100);
        for [low, high] in [[0, 1], [0, 2], [1, 2]] {
            if !nodes.is_connected(low, high) || !nodes.is_connected(high, low) {
                assert!(!parted.contains(&[low, high]), "{what}: {low} and {high} part again: {}", nodes.notes(low));
                parted.push([low, high]);
                nodes.cut(low, high);
                nodes.join(low, high);
            }
        }
    }
    for (n, m) in [(0, 1), (0, 2), (1, 2), (1, 0), (2, 0), (2, 1)] {
        assert_eq!(nodes.replication(n, m), ConnState::Connected, "{what}: {n} to {m}: {}", nodes.notes(n));
        assert_eq!(nodes.marks(n, m), 0, "{what}: {n} to {m}: {}", nodes.notes(n));
    }
    assert_eq!([0, 1, 2].map(|n| nodes.disk(n)), [DiskState::UpToDate; 3], "{what}");
}

/// What a node writes now comes to both others.
fn write_comes_to_all(nodes: &mut Together, what: &str, node: usize) {
    nodes.command(node, Command::Primary { force: false });
    nodes.pass(1000);
    assert_eq!(nodes.role(node), Role::Primary, "{what}: {}", nodes.notes(node));
    nodes.overheard = Some(Vec::new());
    nodes.act(node, |n, now| {
        n.write(now, VOLUME, urbd_core::RequestKind::Write { fua: false }, Sector(128), 4096);
    });
    nodes.pass(10);
    let all = nodes.overheard.take().unwrap_or_default();
    let sent = all.iter().filter(|packet| matches!(packet, Packet::Data(w) if w.sector == Sector(128))).count();
    assert_eq!(sent, 2, "{what}: {}", nodes.notes(node));
}

#[test]
fn a_primary_that_is_started_again_replicates_to_all() {
    for decides in ways() {
        let what = format!("{decides:?}");
        let mut nodes = three(decides);
        (0..16).for_each(|n| write(&mut nodes, 8 * n));
        nodes.pass(500);
        restart(&mut nodes, 0);
        all_is_well(&mut nodes, &what);
        write_comes_to_all(&mut nodes, &what, 0);
    }
}

/// The Primary is in the middle of a write that only one of the others gets.
#[test]
fn a_primary_that_dies_in_a_write_replicates_to_all_when_it_is_back() {
    for (decides, deaf) in ways().into_iter().flat_map(|decides| [1, 2].map(|deaf| (decides, deaf))) {
        let what = format!("{decides:?}, node {deaf} lacks a write");
        let mut nodes = three(decides);
        write(&mut nodes, 0);
        nodes.pass(500);
        nodes.lose(0, deaf);
        write(&mut nodes, 16);
        restart(&mut nodes, 0);
        all_is_well(&mut nodes, &what);
        write_comes_to_all(&mut nodes, &what, 0);
    }
}

#[test]
fn a_secondary_that_is_started_again_is_connected_to_all() {
    for decides in ways() {
        for idle in [true, false] {
            let what = format!("{decides:?}, nobody writes: {idle}");
            let mut nodes = three(decides);
            nodes.command(0, Command::Secondary { force: false });
            nodes.command(2, Command::Primary { force: false });
            (0..16).for_each(|n| {
                nodes.act(2, |node, now| {
                    node.write(now, VOLUME, urbd_core::RequestKind::Write { fua: false }, Sector(8 * n), 4096);
                });
            });
            nodes.pass(500);
            if idle {
                nodes.act(2, |node, now| node.close(now, VOLUME));
                nodes.command(2, Command::Secondary { force: false });
            }
            restart(&mut nodes, 0);
            all_is_well(&mut nodes, &what);
            if idle {
                write_comes_to_all(&mut nodes, &what, 0);
            }
        }
    }
}

/// All lose their power, the Primary among them.
#[test]
fn all_that_were_started_again_are_connected() {
    for decides in ways() {
        let what = format!("{decides:?}");
        let mut nodes = three(decides);
        (0..16).for_each(|n| write(&mut nodes, 8 * n));
        for node in [0, 1, 2] {
            nodes.act(node, |n, now| {
                n.come_up(now);
                n.sent.clear();
            });
        }
        [[0, 1], [0, 2], [1, 2]].into_iter().for_each(|[low, high]| nodes.cut(low, high));
        nodes.pass(300);
        for [low, high] in [[0, 1], [0, 2], [1, 2]] {
            nodes.join(low, high);
            nodes.pass(300);
        }
        all_is_well(&mut nodes, &what);
        write_comes_to_all(&mut nodes, &what, 0);
    }
}
