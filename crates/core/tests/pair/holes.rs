//! An activity log that a disk has damaged by itself.

use crate::rig::{Pair, VOLUME, metadata_at};
use units::{Sector, SectorRange};
use urbd_core::{Command, Resource};

/// A transaction in the middle of the log is damaged: which blocks were being written is not known.
#[test]
pub(crate) fn after_a_hole_in_the_log_everything_may_differ() {
    let mut pair = Pair::with(true, |cfg| cfg.volumes[0].disk.as_mut().expect("a disk").al_extents = 67);
    // Far from each other, so that each has a transaction of its own.
    let mut block = 0;
    pair.writes(6, 1, || {
        block += 64 * 1024;
        block
    });
    pair.unlink();
    let (now, node) = (pair.now, &mut pair.nodes[0]);
    let at = (node.layout.al_block_at(2).0 - metadata_at(&node.layout)) as usize;
    node.metadata[at..at + 4096].fill(0x55);
    node.core = Resource::new(node.cfg.clone(), 19);
    node.notes.clear();
    node.told = true;
    node.core.on_command(now, 1, Command::Attach { volume: VOLUME });
    pair.run(2000);
    let node = &pair.nodes[0];
    assert!(node.notes.contains(&"activity-log-hole"), "{:?}", node.notes);
    let size = node.core.snapshot().devices[0].size.to_sectors_floor();
    let marked = node.core.known_different(VOLUME, node.peer, SectorRange { start: Sector(0), end: size });
    assert_eq!(marked, size.0.div_ceil(8));
}
