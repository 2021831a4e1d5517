//! What to do to a metadata device, as data. The caller carries the steps out in order.

use crate::{BLOCK_LEN, Block};
use units::ByteLen;

/// One step of a plan. Positions are bytes on the metadata device; all are multiples of 512.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Step {
    /// Write `bytes` at `at`.
    Write {
        /// Where.
        at: ByteLen,
        /// What.
        bytes: Vec<u8>,
    },
    /// Write `len` bytes of value `byte`: zeroing may use what the device offers for that.
    Fill {
        /// Where.
        at: ByteLen,
        /// How many bytes.
        len: ByteLen,
        /// 0x00 or 0xFF.
        byte: u8,
    },
    /// Write the same block `count` times in a row.
    Repeat {
        /// Where the first goes.
        at: ByteLen,
        /// The block.
        block: Box<Block>,
        /// How often.
        count: u32,
    },
    /// Copy `len` bytes; the ranges may overlap (as `memmove`: from the end when moving up).
    Copy {
        /// From here.
        from: ByteLen,
        /// To here.
        to: ByteLen,
        /// How many bytes.
        len: ByteLen,
    },
    /// Everything before must be on stable storage before anything after is written.
    Flush,
}

impl Step {
    pub(crate) fn block(at: ByteLen, block: &Block) -> Step {
        Step::Write { at, bytes: block.to_vec() }
    }

    /// Carries the step out on a device in memory that starts at byte `base` of the real one; parts outside are ignored
    /// when writing and read as zero.
    pub fn apply_to(&self, base: u64, image: &mut [u8]) {
        match self {
            Step::Write { at, bytes } => put(base, image, at.0, bytes),
            Step::Fill { at, len, byte } => {
                let from = at.0.saturating_sub(base).min(image.len() as u64) as usize;
                let to = (at.0 + len.0).saturating_sub(base).min(image.len() as u64) as usize;
                image[from..to].fill(*byte);
            }
            Step::Repeat { at, block, count } => {
                for i in 0..u64::from(*count) {
                    put(base, image, at.0 + i * BLOCK_LEN as u64, &block[..]);
                }
            }
            Step::Copy { from, to, len } => {
                let byte_at = |at: u64| at.checked_sub(base).and_then(|i| image.get(i as usize)).copied().unwrap_or(0);
                let copy: Vec<u8> = (from.0..from.0 + len.0).map(byte_at).collect();
                put(base, image, to.0, &copy);
            }
            Step::Flush => {}
        }
    }
}

fn put(base: u64, image: &mut [u8], at: u64, bytes: &[u8]) {
    for (i, &b) in bytes.iter().enumerate() {
        let slot = (at + i as u64).checked_sub(base).and_then(|i| image.get_mut(i as usize));
        if let Some(slot) = slot {
            *slot = b;
        }
    }
}
