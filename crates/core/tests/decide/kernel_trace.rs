//! The generations that the 8.4.11 kernel wrote in a life of two nodes, step by step (`vectors/metadata`,
//! `docs/spec/on-disk-format.md` 5.2).

use meta::Superblock;
use std::path::Path;
use std::process::Command;
use units::Generation;
use urbd_core::decide::uuid84::UuidSet;

/// What the kernel had written on one node (`A`, `B`) when a step was done.
fn kernel(step: &str) -> UuidSet {
    let trace = "../../vectors/metadata/91-kernel-8.4.11-trace-superblocks.tar.xz";
    let trace = Path::new(env!("CARGO_MANIFEST_DIR")).join(trace);
    let member = format!("*{step}.sb");
    let unpacked = Command::new("tar").arg("-xJOf").arg(trace).args(["--wildcards", &member]).output();
    let bytes = unpacked.expect("tar is installed").stdout;
    let block = bytes.as_slice().try_into().unwrap_or_else(|_| panic!("{step}: {} bytes", bytes.len()));
    let sb = Superblock::parse(block).unwrap();
    let bitmap = sb.peers[Superblock::V08_PEER].bitmap_uuid;
    UuidSet { current: sb.current, bitmap, history: [sb.history[0], sb.history[1]] }
}

#[track_caller]
fn same(ours: &UuidSet, step: &str) {
    let base = |set: &UuidSet| [set.current, set.bitmap, set.history[0], set.history[1]].map(Generation::base);
    assert_eq!(base(ours), base(&kernel(step)), "{step}");
}

#[test]
pub(crate) fn rotation_follows_the_kernel() {
    let (mut a, mut b) = (kernel("b_connected_inconsistent.A"), kernel("b_connected_inconsistent.B"));
    // primary --force, then the initial sync.
    let golden = kernel("c_primary_syncing.A");
    a.start_generation(golden.current);
    let at_handshake = a;
    b.start_sync_target(a.start_sync_source(golden.bitmap));
    same(&a, "c_primary_syncing.A");
    same(&b, "c_primary_syncing.B");
    b.finish_sync_target(&at_handshake);
    a.retire_bitmap();
    same(&a, "d_synced.A");
    same(&b, "d_synced.B");
    // The peer is lost, then comes back and is resynced.
    a.start_generation(kernel("g_written_disc.A").current);
    same(&a, "g_written_disc.A");
    let at_handshake = a;
    b.start_sync_target(a.start_sync_source(Generation::NONE));
    b.finish_sync_target(&at_handshake);
    a.retire_bitmap();
    same(&a, "j_resynced.A");
    same(&b, "j_resynced.B");
}
