//! What a core relies on of the activity log: its room, and the order of its transactions
//! (`docs/spec/on-disk-format.md` 3.6, 3.9).

use meta::activity_log::replay::replay;
use meta::activity_log::{Acquire, Busy, block};
use meta::{ActivityLog, AlShape, BLOCK_LEN, ExtentRange, Format};
use units::{Sector, SectorRange};

/// The smallest log.
const EXTENTS: u16 = 67;

/// Takes extents, and commits what that asks for.
fn take(log: &mut ActivityLog, range: ExtentRange) -> Acquire {
    let mut taken = log.acquire(range);
    while taken == Acquire::Busy(Busy::BatchFull) {
        commit(log);
        taken = log.acquire(range);
    }
    taken
}

fn commit(log: &mut ActivityLog) {
    if log.start_transaction().is_some() {
        log.commit();
    }
}

/// Two extents, of which one is in the log, idle, and has the only slot that could be given away.
#[test]
pub(crate) fn what_a_request_needs_itself_is_no_room_for_it() {
    let mut log = ActivityLog::new(EXTENTS, AlShape::DEFAULT, 0);
    for extent in 0..u32::from(EXTENTS) {
        take(&mut log, ExtentRange::single(extent));
    }
    commit(&mut log);
    let last = u32::from(EXTENTS) - 1;
    assert!(log.release(ExtentRange::single(last)));
    let start = u64::from(last) << 13;
    let both = ExtentRange::of(SectorRange { start: Sector(start), end: Sector(start + (2 << 13)) }).expect("some");
    assert_eq!(take(&mut log, both), Acquire::Busy(Busy::NoFreeSlot));
    assert!(log.release(ExtentRange::single(0)));
    assert!(matches!(take(&mut log, both), Acquire::Pending(_)));
}

/// The newest transaction has number 0, and tells what the one before it says otherwise.
#[test]
pub(crate) fn after_the_last_number_comes_the_first() {
    let shape = AlShape::DEFAULT;
    let mut log = ActivityLog::new(EXTENTS, shape, u32::MAX - 2 * shape.blocks() + 1);
    let mut ring: Vec<u8> = (0..shape.blocks()).flat_map(|_| block::initialized().to_vec()).collect();
    // One transaction for each, from the first slot on, until the ring has begun anew, and the slots have, too.
    for extent in 0..3 * u32::from(EXTENTS) {
        take(&mut log, ExtentRange::single(extent));
        let transaction = log.start_transaction().expect("a new extent");
        let mut block = [0; BLOCK_LEN];
        log.emit_block(&mut block);
        ring[transaction.block_index as usize * BLOCK_LEN..][..BLOCK_LEN].copy_from_slice(&block);
        log.commit();
        let hot = replay(&ring, shape, Format::V08InUse, 0).expect("a log").hot;
        assert!(hot.contains(&extent), "transaction {}", transaction.tr_number);
        assert!(log.release(ExtentRange::single(extent)));
    }
}
