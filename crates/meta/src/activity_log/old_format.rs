//! The activity log of DRBD 0.7 to 8.3: records of 512 bytes (`docs/spec/on-disk-format.md` 3.13). Only ever read.

use super::NO_EXTENT;
use super::replay::{Replay, Slots};
use crate::bytes::be32;

const MAGIC: u32 = 0x8374_0267;
const RECORD_LEN: usize = 512;
const MAX_RECORDS: usize = 64;
const PAIRS: usize = 62;
/// Context slots in a record: all pairs but the update.
const CONTEXT_SLOTS: u32 = 61;

/// Reads the records. No valid record is not an error: the ring was never written.
pub(super) fn replay(ring: &[u8], al_extents: u32) -> Replay {
    let used = 1 + al_extents.div_ceil(CONTEXT_SLOTS);
    let records: Vec<&[u8]> = ring.chunks_exact(RECORD_LEN).take(MAX_RECORDS.min(used as usize)).collect();
    let valid: Vec<bool> = records.iter().map(|r| is_valid(r)).collect();
    let numbers = || (0..records.len()).filter(|&i| valid[i]).map(|i| (i, be32(records[i], 4)));
    let older = |a: u32, b: u32| (a.wrapping_sub(b) as i32) < 0;
    let mut result = Replay { must_reinitialize: true, ..Replay::default() };
    result.corrupt = valid.iter().filter(|v| !**v).count() as u32;
    let Some(oldest) = numbers().reduce(|a, b| if older(b.1, a.1) { b } else { a }) else {
        return result;
    };
    let newest = numbers().reduce(|a, b| if older(a.1, b.1) { b } else { a }).unwrap_or(oldest);
    result.has_records = true;
    let steps = (newest.0 + records.len() - oldest.0) % records.len();
    let mut slots = Slots::default();
    for i in (0..=steps).map(|k| (oldest.0 + k) % records.len()) {
        if valid[i] {
            apply(records[i], &mut slots);
        } else {
            result.gap = true;
        }
    }
    result.hot = slots.hot();
    result
}

fn is_valid(record: &[u8]) -> bool {
    let sum = (0..PAIRS).fold(0, |x, i| x ^ be32(record, 12 + 8 * i));
    be32(record, 0) == MAGIC && be32(record, 504) == sum
}

/// Context first, then the update, which is the first pair.
fn apply(record: &[u8], slots: &mut Slots) {
    for i in (0..PAIRS).rev() {
        let (slot, extent) = (be32(record, 8 + 8 * i), be32(record, 12 + 8 * i));
        if let Ok(slot @ 0..65534) = u16::try_from(slot)
            && extent != NO_EXTENT
        {
            slots.put(slot, extent);
        }
    }
}
