//! What a verify compares (`docs/spec/data-path-and-resync.md` 9), and who clears what it has found.

use crate::rig::{Pair, Shape, VOLUME};
use units::{ByteLen, Duration, Sector, SectorRange};
use urbd_core::{BufRef, Command, ResourceConfig, Segments};
use wire::{BlockId, ConnState, Digest, DpFlags, Packet, Socket, Write};

const MINUTE: Duration = Duration::from_secs(60);
/// 64 blocks and three sectors.
const SIZE: ByteLen = ByteLen(64 * 4096 + 3 * 512);
const BLOCK: u64 = 7;

fn with_verify(cfg: &mut ResourceConfig) {
    cfg.connections[0].verify = Some("crc32c".to_owned());
}

fn small() -> Pair {
    let shape = Shape { kind: meta::MetaDisk::FlexExternal, size: SIZE, ..Shape::DEFAULT };
    Pair::on(shape, true, with_verify)
}

/// Node 1 asks for the digests of all blocks.
fn verify(pair: &mut Pair) {
    pair.command(1, Command::Verify { volume: VOLUME, peer: None, start: None, stop: None, repair: false });
}

fn all_compared(pair: &mut Pair) {
    let said = |p: &Pair, reason| p.nodes[1].notes.contains(&reason);
    pair.until(MINUTE, |p| said(p, "verify-done") || said(p, "link closed"));
    pair.run(100);
    assert_eq!(pair.states(), [ConnState::Connected; 2], "{:?}", pair.nodes[1].notes);
}

/// Blocks that each node knows to differ.
fn marked(pair: &Pair) -> [u64; 2] {
    let whole = SectorRange { start: Sector(0), end: Sector(SIZE.0 / 512) };
    [0, 1].map(|n| pair.nodes[n].core.known_different(VOLUME, pair.nodes[n].peer, whole))
}

#[test]
pub(crate) fn the_last_block_is_compared_though_it_is_short() {
    let mut pair = small();
    pair.nodes[0].digest = 1;
    verify(&mut pair);
    all_compared(&mut pair);
    assert_eq!(marked(&pair), [65; 2]);
}

/// A write that is confirmed as one of a mirror clears nothing: the peer has not cleared it either, and may not.
#[test]
pub(crate) fn both_know_the_same_of_a_block_that_was_different_and_is_written() {
    let mut pair = small();
    pair.nodes[0].digest = 1;
    verify(&mut pair);
    all_compared(&mut pair);
    pair.writes(1, 1, || BLOCK);
    pair.run(2000);
    assert_eq!(marked(&pair), [65; 2]);
}

/// Node 0 writes a block, which has come to node 1.
fn write(pair: &mut Pair) {
    let (sector, size) = (Sector(BLOCK * 8), ByteLen(4096));
    let (block_id, flags, digest) = (BlockId(1 << 40), DpFlags::SEND_WRITE_ACK, Digest::EMPTY);
    let packet = Packet::Data(Write { sector, block_id, seq: 1, flags, digest, size });
    let data = Segments::One(BufRef { id: 99, offset: 0, len: 4096 });
    pair.nodes[1].inbox.push_back((Socket::Data, VOLUME, packet, data));
}

/// Node 1 has asked for all digests, and its disk answers no more.
fn asked() -> Pair {
    let mut pair = small();
    pair.nodes[1].hangs = true;
    verify(&mut pair);
    pair.until(MINUTE, |p| p.nodes[1].counts.comparisons > BLOCK);
    pair
}

#[test]
pub(crate) fn a_digest_is_taken_when_the_peers_older_writes_are_down() {
    let mut pair = asked();
    assert_eq!(pair.nodes[1].counts.disk_reads, 0, "no digest has come");
    write(&mut pair);
    pair.run(100);
    assert_eq!((pair.nodes[1].counts.disk_writes, pair.nodes[1].counts.disk_reads), (1, 0));
}

#[test]
pub(crate) fn a_write_waits_for_the_digest_of_its_block() {
    let mut pair = asked();
    pair.run(100);
    let before = pair.nodes[1].counts;
    assert!(before.disk_reads > 0, "it is being read");
    write(&mut pair);
    pair.run(100);
    assert_eq!(pair.nodes[1].counts.disk_writes, before.disk_writes);
}
