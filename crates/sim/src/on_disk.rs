//! The oracle's own reading of metadata (`docs/spec/on-disk-format.md` 1.4, 1.5, 2.1, 2.2, 3.2 to 3.9, 4.1). It shares
//! nothing with `crates/meta`, by which nodes read and write: a mistake there would else be one here, too.

use std::collections::BTreeSet;
use units::{BitSet, Generation, SectorRange};

/// Bytes of a superblock, of a block of the activity log, and of what a bit of the bitmap stands for.
const BLOCK: u64 = 4096;
/// Sectors that a bit of the bitmap stands for.
const BIT: u64 = 8;
/// Sectors of an extent of the activity log.
const EXTENT: u64 = 8192;
/// Bits of an extent.
const BITS: u64 = EXTENT / BIT;
/// Entries of a block of the activity log that say which extents were hot before it.
const CONTEXT: u16 = 919;
/// How a block of the activity log begins.
const MAGIC: u32 = 0x69CB_65A2;
/// No extent.
const NONE: u32 = u32::MAX;

/// Flags of the device.
const CLEAN: u32 = 0x080;
pub(crate) const CONSISTENT: u32 = 0x001;
pub(crate) const PRIMARY: u32 = 0x002;
pub(crate) const WAS_UP_TO_DATE: u32 = 0x010;
pub(crate) const CRASHED_PRIMARY: u32 = 0x040;
pub(crate) const UNLOGGED: u32 = 0x100;

/// What a superblock says.
#[derive(Clone, Debug)]
pub(crate) struct Superblock {
    /// Sectors.
    pub(crate) size: u64,
    pub(crate) current: Generation,
    pub(crate) flags: u32,
    /// It says that the activity log may have to be replayed.
    pub(crate) in_use: bool,
    /// Bytes of the metadata device at which the activity log and the bitmap begin.
    log_at: u64,
    bitmap_at: u64,
    slots: u64,
    stripes: u64,
    stripe_blocks: u64,
    peers: Peers,
}

#[derive(Clone, Debug)]
enum Peers {
    /// There is one, and it has the only slot.
    V08(Generation),
    /// By node id: what its slot counts from, and the slot.
    V09(Vec<(Generation, Option<u64>)>),
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([bytes[at], bytes[at + 1]])
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from(u16_at(bytes, at)) << 16 | u32::from(u16_at(bytes, at + 2))
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from(u32_at(bytes, at)) << 32 | u64::from(u32_at(bytes, at + 4))
}

/// Where the superblock of a device is, which has so many bytes with internal metadata.
pub(crate) fn superblock_at(internal: Option<u64>) -> u64 {
    internal.map_or(0, |bytes| (bytes - BLOCK) / BLOCK * BLOCK)
}

/// The extents that a range touches.
pub(crate) fn extents_of(range: SectorRange) -> std::ops::Range<u64> {
    range.start.0 / EXTENT..range.end.0.div_ceil(EXTENT)
}

/// The blocks that a range touches.
pub(crate) fn bits_of(range: SectorRange) -> std::ops::Range<u64> {
    range.start.0 / BIT..range.end.0.div_ceil(BIT)
}

impl Superblock {
    /// `bytes` are at `at` of the metadata device.
    pub(crate) fn read(at: u64, bytes: &[u8]) -> Result<Superblock, String> {
        let (v09, more, in_use) = match u32_at(bytes, 60) {
            0x8374_026B => (false, 88, false),
            0x8374_026C => (false, 88, true),
            0x8374_026D => (true, 96, u32_at(bytes, 56) & CLEAN == 0),
            magic => return Err(format!("a superblock with the magic {magic:#x}")),
        };
        let relative = |field| at.wrapping_add_signed(i64::from(u32_at(bytes, field) as i32) * 512);
        let slot = |at| u64::try_from(u32_at(bytes, at) as i32).ok();
        let peer = |n: usize| (Generation(u64_at(bytes, 112 + 32 * n)), slot(112 + 32 * n + 20));
        Ok(Superblock {
            size: u64_at(bytes, 0),
            current: Generation(u64_at(bytes, 8)),
            flags: u32_at(bytes, 56),
            in_use,
            log_at: relative(68),
            bitmap_at: relative(76),
            slots: if v09 { u64::from(u32_at(bytes, 88)) } else { 1 },
            stripes: u64::from(u32_at(bytes, more)),
            stripe_blocks: u64::from(u32_at(bytes, more + 4)),
            peers: if v09 {
                Peers::V09((0..32).map(peer).collect())
            } else {
                Peers::V08(Generation(u64_at(bytes, 16)))
            },
        })
    }

    pub(crate) fn has(&self, flags: u32) -> bool {
        self.flags & flags == flags
    }

    /// What the bits about the node with this id count from.
    pub(crate) fn counts_from(&self, node: usize) -> Generation {
        match &self.peers {
            Peers::V08(generation) => *generation,
            Peers::V09(peers) => peers[node].0,
        }
    }

    // -- the activity log --------------------------------------------------------------------------------------------

    /// The bytes of the activity log.
    pub(crate) fn log(&self) -> std::ops::Range<u64> {
        self.log_at..self.log_at + self.stripes * self.stripe_blocks * BLOCK
    }

    /// The extents that the log's bytes name.
    pub(crate) fn hot(&self, ring: &[u8]) -> Result<BTreeSet<u64>, String> {
        let blocks = self.stripes * self.stripe_blocks;
        let place = |t: u64| (t % self.stripes * self.stripe_blocks + t / self.stripes) * BLOCK;
        let block = |t: u64| &ring[place(t) as usize..][..BLOCK as usize];
        let valid: Vec<u64> = (0..blocks).filter(|t| is_whole(block(*t))).collect();
        let updates = valid.iter().copied().filter(|t| u16_at(block(*t), 12) == 0);
        let number = |t: &u64| u32_at(block(*t), 4);
        let is_older = |a: u64, b: u64| number(&a).wrapping_sub(number(&b)) > u32::MAX / 2;
        let Some(oldest) = updates.clone().reduce(|a, b| if is_older(b, a) { b } else { a }) else {
            let unused = valid.len() as u64 == blocks || (1..blocks).all(|t| valid.contains(&t));
            return if unused { Ok(BTreeSet::new()) } else { Err("no block is whole".to_owned()) };
        };
        let mut in_order: Vec<u64> = updates.collect();
        in_order.sort_by_key(|t| number(t).wrapping_sub(number(&oldest)));
        let mut slots = vec![NONE; usize::from(u16::MAX)];
        for t in in_order {
            play(block(t), &mut slots);
        }
        Ok(slots.into_iter().filter(|extent| *extent != NONE).map(u64::from).collect())
    }

    // -- the bitmap --------------------------------------------------------------------------------------------------

    /// Which bytes of the metadata device have the bits of an extent.
    pub(crate) fn bitmap_of(&self, extent: u64) -> std::ops::Range<u64> {
        let word = |bit: u64| self.bitmap_at + bit.div_ceil(32) * self.slots * 4;
        word(extent * BITS)..word(extent * BITS + self.bits_in(extent))
    }

    /// How many blocks of an extent are in the device.
    pub(crate) fn bits_in(&self, extent: u64) -> u64 {
        self.size.div_ceil(BIT).saturating_sub(extent * BITS).min(BITS)
    }

    /// The bits that are set, numbered within the extent, in those bytes for the node with this id.
    pub(crate) fn marked(&self, node: usize, extent: u64, bytes: &[u8]) -> BitSet {
        let slot = match &self.peers {
            Peers::V08(_) => 0,
            Peers::V09(peers) => peers[node].1.unwrap_or(0),
        };
        let mut marked = BitSet::new(BITS);
        for bit in 0..self.bits_in(extent) {
            let byte = ((bit / 32 * self.slots + slot) * 4 + bit % 32 / 8) as usize;
            if bytes[byte] >> (bit % 8) & 1 == 1 {
                marked.set_range(bit, bit + 1);
            }
        }
        marked
    }
}

/// Is this a transaction of the log, and not a block that was never used?
pub(crate) fn is_transaction(block: &[u8]) -> bool {
    block.len() as u64 == BLOCK && u32_at(block, 0) == MAGIC && u16_at(block, 12) == 0
}

/// What a block of the log says of the slots.
fn play(block: &[u8], slots: &mut [u32]) {
    let (updates, first) = (u16_at(block, 14), u16_at(block, 18));
    let size = u16_at(block, 16);
    for n in 0..CONTEXT.min(size.saturating_sub(first)) {
        slots[usize::from(first + n)] = u32_at(block, 420 + 4 * usize::from(n));
    }
    for n in 0..usize::from(updates) {
        slots[usize::from(u16_at(block, 36 + 2 * n))] = u32_at(block, 164 + 4 * n);
    }
}

/// Has a block of the log the magic, and the checksum of its bytes?
fn is_whole(block: &[u8]) -> bool {
    u32_at(block, 0) == MAGIC && u32_at(block, 8) == checksum(block)
}

/// CRC-32C that begins with 0 and is not inverted at the end, with zeroes in the place of itself.
fn checksum(block: &[u8]) -> u32 {
    [&block[..8], &[0; 4], &block[12..]].into_iter().fold(0, crc32c)
}

fn crc32c(before: u32, bytes: &[u8]) -> u32 {
    bytes.iter().fold(before, |crc, byte| TABLE[usize::from(crc as u8 ^ byte)] ^ crc >> 8)
}

const TABLE: [u32; 256] = {
    let mut table = [0; 256];
    let mut n = 0;
    while n < 256 {
        let (mut crc, mut bit) = (n as u32, 0);
        while bit < 8 {
            crc = if crc & 1 == 1 { crc >> 1 ^ 0x82F6_3B78 } else { crc >> 1 };
            bit += 1;
        }
        table[n] = crc;
        n += 1;
    }
    table
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_checksum_is_that_of_the_specification() {
        assert_eq!(crc32c(0, b"123456789"), 0x58E3_FA20);
    }

    /// Vector 60: what DRBD 8.4.11 has written.
    #[test]
    fn a_block_says_which_extents_were_hot() {
        let mut slots = vec![NONE; 67];
        let mut block = vec![0xff; 4096];
        block[..16].copy_from_slice(&[0x69, 0xcb, 0x65, 0xa2, 0, 0, 0, 0x50, 0, 0, 0, 0, 0, 0, 0, 1]);
        block[16..20].copy_from_slice(&[0, 0x43, 0, 0]);
        block[36..38].copy_from_slice(&[0, 0x38]);
        block[164..168].copy_from_slice(&[0, 0, 0, 0x55]);
        block[420..428].copy_from_slice(&[0, 0, 0, 0x4a, 0, 0, 0, 0x49]);
        play(&block, &mut slots);
        assert_eq!((slots[0], slots[1], slots[2], slots[56]), (0x4a, 0x49, NONE, 0x55));
        assert!(!is_whole(&block));
        let crc = checksum(&block).to_be_bytes();
        block[8..12].copy_from_slice(&crc);
        assert!(is_whole(&block));
    }
}
