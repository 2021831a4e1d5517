//! What a device costs because it is large: nothing, but for what is about all of it.

use crate::rig::{Pair, Shape, VOLUME};
use units::{BitSet, ByteLen, Duration};
use urbd_core::{Command, RequestKind, ResourceConfig};
use wire::ConnState;

/// Of a bitmap of a million words.
const LARGE: Shape = Shape { version: meta::Version::V09, size: ByteLen(256 << 30), ..Shape::DEFAULT };
const BLOCKS: u64 = (256 << 30) / 4096;
/// In so many words one step may look for a bit.
const FEW: u64 = 200;

fn fast(cfg: &mut ResourceConfig) {
    let disk = cfg.volumes[0].disk.as_mut().expect("a disk");
    disk.resync.plan_ahead = 0;
    disk.resync.rate = 4 << 20;
    cfg.connections[0].max_buffers = 32_768;
}

/// What `f` has to do with a pair of large devices, in words.
fn looked_at(pair: &mut Pair, f: impl FnOnce(&mut Pair)) -> u64 {
    let before = BitSet::words_looked_at();
    f(pair);
    BitSet::words_looked_at() - before
}

#[test]
fn requests_look_at_their_own_blocks() {
    let mut pair = Pair::on(LARGE, true, fast);
    for block in (0..BLOCKS - 100_000).step_by(BLOCKS as usize / 20) {
        for kind in [RequestKind::Write { fua: false }, RequestKind::Read, RequestKind::Flush] {
            let completed = pair.nodes[0].counts.completed;
            let words = looked_at(&mut pair, |pair| {
                pair.request_on(0, block, kind);
                pair.until(Duration::from_secs(10), |p| p.nodes[0].counts.completed > completed);
            });
            assert!(words < FEW, "{kind:?} of block {block}: {words} words");
        }
    }
    let words = looked_at(&mut pair, |pair| drop(pair.nodes[0].core.snapshot()));
    assert!(words < FEW, "status: {words} words");
}

#[test]
fn a_resync_looks_at_each_block_once() {
    let mut pair = Pair::on(LARGE, true, fast);
    pair.command(1, Command::invalidate(VOLUME));
    pair.until(Duration::from_secs(60), |p| p.states() == [ConnState::SyncSource, ConnState::SyncTarget]);
    let asked = pair.nodes[1].counts.requests;
    let words = looked_at(&mut pair, |pair| {
        pair.until(Duration::from_secs(60), |p| p.nodes[1].counts.requests - asked > 1000);
    });
    let requests = pair.nodes[1].counts.requests - asked;
    assert!(words < requests * FEW, "{requests} requests: {words} words");
}
