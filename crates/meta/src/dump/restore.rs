//! Restoring a dump to a device (`docs/spec/on-disk-format.md` 6.5).

use super::parse::{Dump, Run};
use crate::apply_al::initialize_al;
use crate::find::Found;
use crate::layout::{AlShape, Layout, LayoutError, MetaDisk};
use crate::plan::Step;
use crate::superblock::Version;
use std::fmt;
use units::{ByteLen, Sector};

/// Most bitmap bytes in one write of a plan.
const CHUNK: u64 = 1 << 20;

/// What restoring a dump does.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Restored {
    /// What is found on the device afterwards.
    pub found: Found,
    /// Did the dump hold more bits than the device has? They are dropped.
    pub bitmap_truncated: bool,
    /// Do the flags lack "clean", so that apply-al is needed before the next attach?
    pub is_unclean: bool,
    /// Does a v08 dump have flags 0 but a real generation, as drbd-utils before 9.34 writes it? Then the restored
    /// device is Inconsistent.
    pub lost_flags: bool,
    /// Bitmap, then (if asked for) activity log, then superblock.
    pub steps: Vec<Step>,
}

/// Why a dump cannot be restored to a device.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum RestoreError {
    /// The metadata does not fit.
    Layout(LayoutError),
    /// The dump has another version than asked for.
    Version(Version),
}

/// Plans restoring `dump` to a metadata device of `device` bytes. Positions are computed for the device; `al` overrides
/// the ring of the dump. The bitmap is written up to what the last agreed size needs, zero where the dump says nothing.
/// The reference leaves the activity log area as it is; with `initialize_log` it is made a fresh one.
pub fn restore(
    dump: &Dump,
    version: Version,
    kind: MetaDisk,
    device: ByteLen,
    al: Option<AlShape>,
    initialize_log: bool,
) -> Result<Restored, RestoreError> {
    let mut superblock = dump.superblock.clone();
    if superblock.version() != version {
        return Err(RestoreError::Version(superblock.version()));
    }
    let geometry = superblock.geometry.with_al(al.unwrap_or(superblock.geometry.al()));
    let layout = Layout::new(kind, geometry, device).map_err(RestoreError::Layout)?;
    superblock.place(&layout);
    let asked = superblock.effective_size;
    superblock.effective_size = asked.min(layout.capacity());
    let writer = BitmapWriter::new(dump, &layout, superblock.effective_size);
    let bitmap_truncated = writer.has_more_than(geometry.bitmap_bytes(superblock.effective_size) / 4);
    let mut steps = writer.steps();
    if initialize_log {
        steps.push(initialize_al(&layout));
    }
    steps.extend([Step::Flush, Step::block(layout.superblock_at(), &superblock.emit()), Step::Flush]);
    let is_unclean = !superblock.is_clean();
    let lost_flags = version == Version::V08 && superblock.v08_flags() == 0 && superblock.current.base().0 > 4;
    let truncated_from = (asked > superblock.effective_size).then_some(asked);
    let found = Found { superblock, layout, truncated_from };
    Ok(Restored { found, bitmap_truncated, is_unclean, lost_flags, steps })
}

/// Interleaves the slots of a dump.
struct BitmapWriter<'a> {
    slots: Vec<Cursor<'a>>,
    at: ByteLen,
    len: u64,
}

/// A position in the 32-bit words of a slot.
#[derive(Clone, Copy)]
struct Cursor<'a> {
    runs: &'a [Run],
    /// 32-bit words of the first run already taken.
    taken: u64,
}

impl<'a> BitmapWriter<'a> {
    fn new(dump: &'a Dump, layout: &Layout, size: Sector) -> BitmapWriter<'a> {
        let slots = dump.slots.iter().map(|runs| Cursor { runs, taken: 0 }).collect();
        BitmapWriter { slots, at: layout.bitmap_at(), len: layout.geometry().bitmap_bytes(size) }
    }

    fn has_more_than(&self, words: u64) -> bool {
        let slots = self.slots.len() as u64;
        self.slots.iter().enumerate().any(|(slot, cursor)| {
            // The dump speaks in pairs of words, of which the last may be cut.
            let own = words.saturating_sub(slot as u64).div_ceil(slots);
            cursor.runs.iter().fold(0u64, |n, r| n.saturating_add(r.count.saturating_mul(2))) > own.next_multiple_of(2)
        })
    }

    fn steps(mut self) -> Vec<Step> {
        let mut steps = Vec::new();
        let mut word = 0u64;
        let mut done = 0;
        while done < self.len {
            let len = CHUNK.min(self.len - done);
            let mut bytes = Vec::with_capacity(len as usize);
            for _ in 0..len / 4 {
                let slot = (word % self.slots.len() as u64) as usize;
                bytes.extend_from_slice(&self.slots[slot].next().to_le_bytes());
                word += 1;
            }
            let at = ByteLen(self.at.0 + done);
            steps.push(if bytes.iter().all(|&b| b == 0) {
                Step::Fill { at, len: ByteLen(len), byte: 0 }
            } else {
                Step::Write { at, bytes }
            });
            done += len;
        }
        steps
    }
}

impl Cursor<'_> {
    /// The next 32-bit word, 0 past the end.
    fn next(&mut self) -> u32 {
        let Some(run) = self.runs.first() else { return 0 };
        let word = if self.taken.is_multiple_of(2) { run.value as u32 } else { (run.value >> 32) as u32 };
        self.taken += 1;
        if self.taken / 2 >= run.count {
            self.runs = &self.runs[1..];
            self.taken = 0;
        }
        word
    }
}

impl fmt::Display for RestoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RestoreError::Layout(e) => e.fmt(f),
            RestoreError::Version(v) => write!(f, "the dump is of {v} metadata: restore it as {v}"),
        }
    }
}

impl std::error::Error for RestoreError {}
