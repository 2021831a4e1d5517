//! In which order writes get to a disk, and what a flush of it covers.

use crate::crash::journal::Event;
use crate::rig::{Pair, VOLUME};
use units::{ByteLen, Duration, Sector};
use urbd_core::{BlockRequest, BufRef, Command, DiskDone, RequestKind, Segments};

const MINUTE: Duration = Duration::from_secs(60);

/// Node 1 flushes what node 0 has written. Meanwhile its disk takes a write of its own, which that flush may lack.
#[test]
pub(crate) fn the_flush_of_an_epoch_covers_what_was_written_before_it_began() {
    let mut pair = Pair::with(false, |cfg| cfg.connections[0].two_primaries = true);
    pair.command(1, Command::Primary { force: false });
    pair.run(100);
    let mut next = 0;
    pair.writes(16, 16, || {
        next += 2;
        next
    });
    let node = &mut pair.nodes[1];
    (node.hangs, node.journal) = (true, Some(Vec::new()));
    let flush = |p: &Pair| {
        p.nodes[1].journal.iter().flatten().find_map(|e| if let Event::Flush(op) = e { Some(*op) } else { None })
    };
    pair.until(MINUTE, |p| flush(p).is_some());
    let op = flush(&pair).expect("it has begun");
    pair.nodes[1].hangs = false;
    pair.write_on(1, 1000);
    pair.run(50);
    let (now, node) = (pair.now, &mut pair.nodes[1]);
    assert_eq!(node.counts.completed, 1, "{:?}", node.counts);
    node.core.on_disk_done(now, DiskDone { op, result: Ok(()), data: Segments::None, zeroes: false });
    node.told = true;
    pair.run(50);
    let before = pair.nodes[1].counts;
    pair.request_on(1, 0, RequestKind::Flush);
    pair.run(2000);
    let after = pair.nodes[1].counts;
    assert_eq!((after.flushes - before.flushes, after.completed - before.completed), (1, 1));
}

/// So many sectors from this one on.
fn write(pair: &mut Pair, tag: u64, sector: u64, sectors: u64) {
    let data = Segments::One(BufRef { id: tag as u32, offset: 0, len: sectors as u32 * 512 });
    let (sector, len, kind) = (Sector(sector), ByteLen(sectors * 512), RequestKind::Write { fua: false });
    let now = pair.now;
    pair.nodes[0].told = true;
    pair.nodes[0].core.on_request(now, BlockRequest { tag, volume: VOLUME, kind, sector, len, data });
}

/// All of one turn. Sorted by their places the second would have a neighbour.
#[test]
pub(crate) fn what_overlaps_gets_to_the_disk_as_it_came() {
    let mut pair = Pair::new(true);
    pair.nodes[0].journal = Some(Vec::new());
    for (tag, (sector, sectors)) in (1000..).zip([(8, 16), (0, 16), (24, 8)]) {
        write(&mut pair, tag, sector, sectors);
    }
    pair.run(200);
    let journal = pair.nodes[0].journal.iter().flatten();
    let places = journal.filter_map(|e| if let Event::Write { from, .. } = e { Some(from.0) } else { None });
    let places: Vec<u64> = places.filter(|from| *from < 24).collect();
    assert_eq!(places, [8, 0]);
}
