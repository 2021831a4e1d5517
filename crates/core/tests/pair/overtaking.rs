//! What a resync writes is overtaken by nothing newer (`docs/spec/data-path-and-resync.md` 7.4).

use crate::rig::{Pair, VOLUME};
use units::{ByteLen, Duration, Sector};
use urbd_core::{BufRef, Segments};
use wire::{BlockId, ConnState, Digest, DpFlags, Packet, Socket, Write};

const MINUTE: Duration = Duration::from_secs(60);
const BLOCK: u64 = 7;

/// Node 0 wrote a block while they were parted. It has come, and node 1's disk is still to write it.
fn being_written() -> Pair {
    let mut pair = Pair::new(true);
    pair.unlink();
    pair.run(20);
    pair.writes(1, 1, || BLOCK);
    pair.nodes[1].hangs = true;
    let before = pair.nodes[1].counts.disk_writes;
    pair.link();
    pair.until(MINUTE, |p| p.nodes[1].counts.disk_writes > before);
    pair
}

/// Node 0, which is no urbd, writes the block once more, and waits for nothing.
fn write_at_once(pair: &mut Pair) {
    let (sector, size) = (Sector(BLOCK * 8), ByteLen(4096));
    let (block_id, flags, digest) = (BlockId(1 << 40), DpFlags::SEND_WRITE_ACK, Digest::EMPTY);
    let packet = Packet::Data(Write { sector, block_id, seq: 1, flags, digest, size });
    let data = Segments::One(BufRef { id: 99, offset: 0, len: 4096 });
    pair.nodes[1].inbox.push_back((Socket::Data, VOLUME, packet, data));
    pair.run(100);
}

#[test]
pub(crate) fn a_write_waits_for_the_resync_of_its_block() {
    let mut pair = being_written();
    let before = pair.nodes[1].counts.disk_writes;
    write_at_once(&mut pair);
    assert_eq!(pair.nodes[1].counts.disk_writes, before, "{:?}", pair.nodes[1].notes);
}

#[test]
pub(crate) fn a_write_waits_for_what_an_ended_resync_still_writes() {
    let mut pair = being_written();
    let before = pair.nodes[1].counts.disk_writes;
    pair.unlink();
    pair.run(20);
    pair.link();
    pair.until(MINUTE, |p| p.states() == [ConnState::SyncSource, ConnState::SyncTarget]);
    write_at_once(&mut pair);
    assert_eq!(pair.nodes[1].counts.disk_writes, before, "{:?}", pair.nodes[1].notes);
}
