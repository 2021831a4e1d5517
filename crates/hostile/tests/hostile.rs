//! Every target over its saved inputs and over random ones. A failing random input is shrunk and printed; save it as
//! `corpus/TARGET/NAME` to have it run for ever. `PROPTEST_CASES=20000` tries harder.

use proptest::prelude::*;
use proptest::test_runner::{RngAlgorithm, TestRng, TestRunner};
use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use units::Rng;
use urbd_hostile::{TARGETS, Target, peer};
use wire::{ConnState, Role};

fn target(name: &str) -> Target {
    TARGETS.iter().find(|(n, _)| *n == name).unwrap_or_else(|| panic!("no target {name}")).1
}

#[test]
fn saved_inputs() {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus");
    for (name, run) in TARGETS {
        let mut files: Vec<_> =
            fs::read_dir(corpus.join(name)).map(|d| d.map(|e| e.unwrap().path()).collect()).unwrap_or_default();
        files.sort();
        for file in files {
            println!("{}", file.display());
            run(&fs::read(&file).unwrap());
        }
    }
}

fn try_out(name: &str, cases: u32, most: usize) {
    // The same cases in every run, unless somebody asks for more.
    let harder = std::env::var_os("PROPTEST_CASES").is_some();
    let config = ProptestConfig { failure_persistence: None, ..ProptestConfig::default() };
    let mut runner = match harder {
        true => TestRunner::new(config),
        false => TestRunner::new_with_rng(
            ProptestConfig { cases, ..config },
            TestRng::deterministic_rng(RngAlgorithm::ChaCha),
        ),
    };
    let run = target(name);
    let result = runner.run(&proptest::collection::vec(any::<u8>(), 0..most), |bytes| {
        run(&bytes);
        Ok(())
    });
    if let Err(e) = result {
        panic!("{name}: {e}");
    }
}

#[test]
fn readers_of_packets() {
    for name in ["wire_data_stream", "wire_control_stream", "wire_first_packet", "bitmap_code"] {
        try_out(name, 500, 600);
    }
}

#[test]
fn readers_of_metadata() {
    for name in ["superblock", "activity_log", "dump_text"] {
        try_out(name, 200, 300);
    }
}

#[test]
fn readers_of_texts_and_messages() {
    for name in ["drbd_conf", "control_messages", "nbd", "fuse"] {
        try_out(name, 200, 400);
    }
}

#[test]
fn a_core_with_a_lying_peer() {
    try_out("core_primary", 400, 1500);
    try_out("core_secondary", 400, 1500);
}

/// The runs are worth something: between them they come through every state of a resync and most refusals.
#[test]
fn the_runs_go_everywhere() {
    let mut rng = Rng::new(11);
    let (mut states, mut reasons) = (BTreeSet::new(), BTreeSet::new());
    for n in 0..400 {
        let bytes: Vec<u8> = (0..1500).map(|_| rng.next_u64() as u8).collect();
        let seen = peer::play(&bytes, if n % 2 == 0 { Role::Primary } else { Role::Secondary });
        states.extend(seen.states);
        reasons.extend(seen.reasons);
    }
    println!("{states:?}\n{reasons:?}");
    use ConnState::*;
    for state in [Connected, WFBitMapS, WFBitMapT, WFSyncUUID, SyncSource, SyncTarget, PausedSyncS, PausedSyncT] {
        assert!(states.contains(&state), "no run came to {state}: {states:?}");
    }
    for reason in [
        "resync-done",
        "unknown-answer",
        "barrier-ack-mismatch",
        "write-out-of-place",
        "read-out-of-place",
        "out-of-phase",
        "wrong-stream",
        "peer-disconnected",
    ] {
        assert!(reasons.contains(reason), "no run ended with {reason}: {reasons:?}");
    }
}

/// Disks that never finish, and a peer that never stops: writes, reads and discards are taken up to `max-buffers`.
#[test]
fn floods_are_bounded() {
    for kind in 0..peer::FLOODS {
        let taken = peer::flood(kind, 3000);
        println!("flood {kind}: {taken} packets taken");
        assert!(taken > 0);
        if matches!(kind, 0..=2) {
            assert!(taken < 2500, "flood {kind}: {taken} packets and no end");
        }
    }
}
