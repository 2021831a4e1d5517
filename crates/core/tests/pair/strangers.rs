//! Bitmap slots of nodes that are not configured here, and vacant ones: whatever changes on this disk they lack
//! (`docs/spec/connection-and-state.md` 7.13).

use crate::rig::{Pair, Shape, VOLUME, metadata_at};
use meta::{BitmapArea, Version};
use units::{BitSet, Duration};
use urbd_core::{Command, Resource};
use wire::ConnState;

/// Slot 0 is the peer's, slot 1 that of a node of a former cluster, slot 2 vacant.
const SLOTS: u32 = 3;
const MINUTE: Duration = Duration::from_secs(60);

fn pair() -> Pair {
    let shape = Shape { version: Version::V09, slots: SLOTS, ..Shape::DEFAULT };
    Pair::on(shape, true, |cfg| {
        let disk = cfg.volumes[0].disk.as_mut().expect("a disk");
        disk.al_extents = 67;
        disk.resync.plan_ahead = 0;
        disk.resync.rate = 4 << 20;
    })
}

/// Which blocks are marked on disk, by slot.
fn marked(pair: &Pair, n: usize) -> Vec<Vec<u64>> {
    let node = &pair.nodes[n];
    let area = BitmapArea::new(node.layout.geometry(), node.core.snapshot().devices[0].size.to_sectors_floor());
    let mut slots: Vec<BitSet> = (0..SLOTS).map(|_| BitSet::new(area.bits())).collect();
    for page in 0..area.pages() {
        let at = (node.layout.bitmap_page_at(page).0 - metadata_at(&node.layout)) as usize;
        area.load(page, node.metadata[at..].first_chunk().expect("a page"), &mut slots);
    }
    let blocks = |bits: &BitSet| (0..bits.len()).filter(|bit| bits.contains(*bit)).collect();
    slots.iter().map(blocks).collect()
}

/// Both nodes let go of their disks, and have written down what they know.
fn let_go(pair: &mut Pair) {
    pair.command(0, Command::Secondary { force: false });
    pair.run(200);
    for n in [0, 1] {
        pair.command(n, Command::Detach { volume: VOLUME, force: false });
        pair.run(200);
    }
}

#[test]
pub(crate) fn writes_are_marked_for_everybody_but_the_peer() {
    let mut pair = pair();
    let mut blocks = (0..40).map(|n| n * 1024 + 3).collect::<Vec<u64>>().into_iter();
    pair.writes(40, 4, || blocks.next().expect("40 writes"));
    pair.run(2_000);
    let_go(&mut pair);
    let all: Vec<u64> = (0..40).map(|n| n * 1024 + 3).collect();
    for n in [0, 1] {
        assert_eq!(marked(&pair, n), [vec![], all.clone(), all.clone()], "node {n}");
    }
}

/// A resync changes the target's disk, too.
#[test]
fn what_a_resync_brings_is_marked_for_everybody_but_its_source() {
    let mut pair = pair();
    pair.unlink();
    pair.run(20);
    let mut blocks = (0..40).map(|n| n * 1024 + 3).collect::<Vec<u64>>().into_iter();
    pair.writes(40, 4, || blocks.next().expect("40 writes"));
    pair.link();
    pair.until(MINUTE, |p| p.states() == [ConnState::Connected; 2]);
    pair.run(2_000);
    let_go(&mut pair);
    let all: Vec<u64> = (0..40).map(|n| n * 1024 + 3).collect();
    assert_eq!(marked(&pair, 1), [vec![], all.clone(), all]);
}

/// The log of a Secondary that crashed is thrown away for its peer, which knows what it had sent. Others do not.
#[test]
fn a_secondary_that_crashes_has_its_log_marked_for_strangers() {
    let mut pair = pair();
    let mut blocks = (0..40).map(|n| n * 1024 + 3).collect::<Vec<u64>>().into_iter();
    pair.writes(40, 4, || blocks.next().expect("40 writes"));
    pair.unlink();
    let now = pair.now;
    let node = &mut pair.nodes[1];
    node.core = Resource::new(node.cfg.clone(), 9);
    node.core.on_command(now, 1, Command::Attach { volume: VOLUME });
    pair.run(200);
    let after = marked(&pair, 1);
    for block in (0..40).map(|n| n * 1024 + 3) {
        assert!(after[1].contains(&block) && after[2].contains(&block), "block {block}");
    }
    assert!(after[0].is_empty());
}
