//! Conversations that two kernels had in DRBD 9's dialect, with one of both replaced by the core: it gets that node's
//! configuration and metadata and what the other node said, and must say what that node said.

mod bind;
#[path = "../../../wire/tests/capture/mod.rs"]
mod capture;
mod node;
mod recording;
mod replay;

use replay::Replay;

/// Two nodes with fresh metadata connect.
fn connects(node: u8) {
    let mut replay = Replay::connect("01", node, |_| {});
    replay.link_up(node == 1);
    replay.play();
    let state = replay.node.state();
    assert_eq!(state, "Connected Secondary/Secondary Connected Inconsistent/Inconsistent");
}

#[test]
fn the_lower_node_connects() {
    connects(0);
}

#[test]
fn the_higher_node_connects() {
    connects(1);
}
