//! Two cores that speak DRBD 9's dialect with each other.

use crate::rig::{Pair, Shape};
use urbd_core::Command;
use urbd_core::ConnectionState::{Connecting, StandAlone};

const V09: Shape = Shape { version: meta::Version::V09, ..Shape::DEFAULT };

/// Connected, both UpToDate, the first one Primary.
fn pair() -> Pair {
    Pair::on(V09, true, |cfg| cfg.connections[0].max_version = wire::Version::MAX.number())
}

fn protocols(pair: &Pair) -> [Option<u32>; 2] {
    [0, 1].map(|i| pair.nodes[i].core.snapshot().connections[0].version)
}

#[test]
fn two_cores_connect_and_promote() {
    let pair = pair();
    assert_eq!(protocols(&pair), [Some(124); 2], "{:?}", pair.nodes[0].notes);
    assert_eq!(pair.states(), [wire::ConnState::Connected; 2]);
    let seen = [0, 1].map(|i| pair.nodes[i].core.snapshot());
    assert_eq!(seen[0].role, wire::Role::Primary);
    assert_eq!(seen[1].connections[0].role, wire::Role::Primary);
}

#[test]
fn they_part_by_agreement() {
    let mut pair = pair();
    let disconnect = Command::Disconnect { peer: pair.nodes[1].peer, force: false };
    pair.command(1, disconnect);
    pair.run(20);
    let states = [0, 1].map(|i| pair.nodes[i].core.snapshot().connections[0].state);
    assert_eq!(states, [Connecting, StandAlone]);
}
