//! A transaction block of 4096 bytes (`docs/spec/on-disk-format.md` 3.2, 3.3).

use super::{CONTEXT_LEN, MAX_UPDATES, NO_EXTENT};
use crate::Block;
use crate::bytes::{be16, be32, put16, put32};

/// The first word of a transaction block.
pub const MAGIC: u32 = 0x69CB_65A2;

const TYPE_UPDATE: u16 = 0;
const TYPE_INITIALIZED: u16 = 0xFFFF;
const NO_SLOT: u16 = 0xFFFF;
/// Turns the usual CRC-32C of a 4096-byte block into one with initial value 0 and no final inversion.
const CRC_OF_4096_BYTES: u32 = 0x98F9_4189;

const CRC_AT: usize = 8;
const SLOTS_AT: usize = 36;
const EXTENTS_AT: usize = 164;
const CONTEXT_AT: usize = 420;

/// A valid block, read in place.
#[derive(Clone, Copy)]
pub enum View<'a> {
    /// Written by create-md and apply-al; carries nothing.
    Initialized,
    /// A transaction.
    Update(UpdateView<'a>),
}

/// A transaction, read in place.
#[derive(Clone, Copy)]
pub struct UpdateView<'a>(&'a Block);

/// Why a block is not valid.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Invalid {
    /// Never written, or something else.
    Magic,
    /// Torn or damaged.
    Checksum,
}

/// Reads a block: valid are magic and checksum.
pub fn parse(b: &Block) -> Result<View<'_>, Invalid> {
    if be32(b, 0) != MAGIC {
        return Err(Invalid::Magic);
    }
    if be32(b, CRC_AT) != checksum(b) {
        return Err(Invalid::Checksum);
    }
    // The reference treats every type but "initialized" as an update.
    Ok(if be16(b, 12) == TYPE_INITIALIZED { View::Initialized } else { View::Update(UpdateView(b)) })
}

/// Every block of a fresh ring.
#[must_use]
pub fn initialized() -> Box<Block> {
    let mut b = Box::new([0; crate::BLOCK_LEN]);
    put32(&mut *b, 0, MAGIC);
    put16(&mut *b, 12, TYPE_INITIALIZED);
    seal(&mut b);
    b
}

impl UpdateView<'_> {
    /// Sequence number; wraps.
    #[must_use]
    pub fn tr_number(&self) -> u32 {
        be32(self.0, 4)
    }

    /// Number of slots of the cache that wrote it.
    #[must_use]
    pub fn context_size(&self) -> u16 {
        be16(self.0, 16)
    }

    /// Slot and extent pairs in the order in which replay applies them: context first, then updates. The extent
    /// [`NO_EXTENT`] empties the slot.
    pub fn assignments(&self) -> impl Iterator<Item = (u16, u32)> + '_ {
        self.context().chain(self.updates())
    }

    fn context(&self) -> impl Iterator<Item = (u16, u32)> + '_ {
        let (start, size) = (u32::from(be16(self.0, 18)), u32::from(self.context_size()));
        (0..CONTEXT_LEN as u32).filter_map(move |i| {
            let extent = be32(self.0, CONTEXT_AT + 4 * i as usize);
            let slot = start + i;
            if extent == NO_EXTENT && slot >= size {
                return None;
            }
            usable_slot(slot).map(|slot| (slot, extent))
        })
    }

    /// The slots that this transaction changed.
    pub fn updates(&self) -> impl Iterator<Item = (u16, u32)> + '_ {
        let n = usize::from(be16(self.0, 14));
        (0..MAX_UPDATES).filter_map(move |i| {
            let slot = be16(self.0, SLOTS_AT + 2 * i);
            if i >= n && slot == NO_SLOT {
                return None;
            }
            usable_slot(u32::from(slot)).map(|slot| (slot, be32(self.0, EXTENTS_AT + 4 * i)))
        })
    }
}

/// The valid block that this one, which is not, would be without one flipped bit.
#[must_use]
pub fn repaired(b: &Block) -> Option<Box<Block>> {
    // What a bit changes in the checksum does not depend on the others: that of the last bit of the block, and for each
    // one before it the same once more divided.
    const POLYNOMIAL: u32 = 0x82F6_3B78;
    let wrong = be32(b, CRC_AT) ^ checksum(b);
    let bit = if wrong.is_power_of_two() {
        let bit = 31 - wrong.trailing_zeros() as usize;
        Some((CRC_AT + bit / 8) * 8 + 7 - bit % 8)
    } else {
        let mut change = POLYNOMIAL;
        (0..b.len() * 8).rev().find(|_| {
            let found = change == wrong;
            change = change >> 1 ^ if change & 1 == 1 { POLYNOMIAL } else { 0 };
            found
        })
    }?;
    let mut good = Box::new(*b);
    good[bit / 8] ^= 1 << (bit % 8);
    parse(&good).is_ok().then_some(good)
}

fn usable_slot(slot: u32) -> Option<u16> {
    u16::try_from(slot).ok().filter(|&s| s < 65534)
}

/// Fills a block, field by field, then seals it with the checksum.
pub(super) struct Builder<'a> {
    block: &'a mut Block,
    updates: usize,
}

impl<'a> Builder<'a> {
    pub(super) fn new(block: &'a mut Block, tr_number: u32, context_size: u16, context_start: u16) -> Builder<'a> {
        block[..SLOTS_AT].fill(0);
        block[SLOTS_AT..].fill(0xFF);
        put32(block, 0, MAGIC);
        put32(block, 4, tr_number);
        put16(block, 12, TYPE_UPDATE);
        put16(block, 16, context_size);
        put16(block, 18, context_start);
        Builder { block, updates: 0 }
    }

    pub(super) fn update(&mut self, slot: u16, extent: u32) {
        put16(self.block, SLOTS_AT + 2 * self.updates, slot);
        put32(self.block, EXTENTS_AT + 4 * self.updates, extent);
        self.updates += 1;
    }

    pub(super) fn context(&mut self, index: usize, extent: u32) {
        put32(self.block, CONTEXT_AT + 4 * index, extent);
    }

    pub(super) fn seal(self) {
        put16(self.block, 14, self.updates as u16);
        seal(self.block);
    }
}

fn seal(b: &mut Block) {
    let crc = checksum(b);
    put32(b, CRC_AT, crc);
}

/// CRC-32C with initial value 0 and no final inversion, over the block with its checksum field as 0.
fn checksum(b: &Block) -> u32 {
    let head = crc32c::crc32c(&b[..CRC_AT]);
    let gap = crc32c::crc32c_append(head, &[0; 4]);
    crc32c::crc32c_append(gap, &b[CRC_AT + 4..]) ^ CRC_OF_4096_BYTES
}
