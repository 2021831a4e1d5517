//! Where superblock, activity log and bitmap lie (`docs/spec/on-disk-format.md` 1).

use std::fmt;
use units::{ByteLen, SECTOR_SIZE, Sector};

/// Bytes of an indexed external metadata slot: 128 MiB.
pub const INDEXED_SLOT_BYTES: u64 = 128 << 20;
/// Sectors of an indexed external metadata slot.
const INDEXED_SLOT_SECTORS: u64 = INDEXED_SLOT_BYTES / SECTOR_SIZE;
/// The smallest metadata device that the reference tool accepts, in bytes.
pub const MIN_DEVICE_BYTES: u64 = 69632;
/// The largest replicated device: 1 PiB (`docs/spec/on-disk-format.md` 1.7).
pub const MAX_CAPACITY: Sector = Sector(1 << 41);
/// The largest number of bitmap slots that tools accept.
pub const MAX_SLOTS: u8 = 31;

const BLOCK_BYTES: u64 = 4096;
const BLOCK_SECTORS: u64 = 8;

/// The kind of `meta-disk` (`docs/spec/on-disk-format.md` 1.1).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MetaDisk {
    /// At the end of the data device; `internal` and `flex-internal` are the same.
    Internal,
    /// A whole device of its own (`flex-external`, `meta-disk DEV;`).
    FlexExternal,
    /// Slot `n` of 128 MiB on a shared device (`meta-disk DEV[n];`).
    Indexed(u8),
}

/// The shape of the activity log ring: `stripes` stripes of `stripe_blocks` blocks of 4096 bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AlShape {
    stripes: u32,
    stripe_blocks: u32,
}

/// The parameters that, with the device size, determine the layout (`docs/spec/on-disk-format.md` 1.2).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Geometry {
    slots: u8,
    bytes_per_bit: u32,
    al: AlShape,
}

/// Positions of the three areas on a metadata device of a given size. Always consistent: it can only be computed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Layout {
    kind: MetaDisk,
    geometry: Geometry,
    device: ByteLen,
    superblock: u64,
    al_offset: i32,
    bm_offset: i32,
    md_sectors: u32,
}

/// Why there is no layout.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum LayoutError {
    /// Bitmap slots must be 1 to 31.
    Slots(u32),
    /// Bytes per bitmap bit must be a power of two from 4096 to 1048576.
    BytesPerBit(u32),
    /// The ring must have 8 to 4194304 blocks (32 KiB to 16 GiB).
    AlShape {
        /// Stripes given.
        stripes: u32,
        /// Blocks per stripe given.
        stripe_blocks: u32,
    },
    /// The device does not hold the metadata.
    DeviceTooSmall {
        /// Size of the metadata device.
        device: ByteLen,
        /// Size it needs at least.
        needed: ByteLen,
    },
    /// The metadata would be so large that offsets no longer fit their 32-bit fields.
    DeviceTooLarge(ByteLen),
}

impl AlShape {
    /// One stripe of 8 blocks, 32 KiB.
    pub const DEFAULT: AlShape = AlShape { stripes: 1, stripe_blocks: 8 };

    /// A ring of `stripes` times `stripe_blocks` blocks; the product must be 8 to 4194304.
    pub fn new(stripes: u32, stripe_blocks: u32) -> Result<AlShape, LayoutError> {
        match u64::from(stripes) * u64::from(stripe_blocks) {
            8..=4_194_304 => Ok(AlShape { stripes, stripe_blocks }),
            _ => Err(LayoutError::AlShape { stripes, stripe_blocks }),
        }
    }

    /// Stripes, at least 1.
    #[must_use]
    pub const fn stripes(self) -> u32 {
        self.stripes
    }

    /// Blocks per stripe, at least 1.
    #[must_use]
    pub const fn stripe_blocks(self) -> u32 {
        self.stripe_blocks
    }

    /// Blocks of 4096 bytes in the ring.
    #[must_use]
    pub const fn blocks(self) -> u32 {
        self.stripes * self.stripe_blocks
    }

    /// Sectors of the ring.
    #[must_use]
    pub const fn sectors(self) -> u64 {
        self.blocks() as u64 * BLOCK_SECTORS
    }

    /// Bytes of the ring.
    #[must_use]
    pub const fn bytes(self) -> ByteLen {
        ByteLen(self.blocks() as u64 * BLOCK_BYTES)
    }

    /// Index of the block inside the activity log area that transaction `tr_number` goes to
    /// (`docs/spec/on-disk-format.md` 3.4).
    #[must_use]
    pub const fn block_of(self, tr_number: u32) -> u32 {
        let t = tr_number % self.blocks();
        (t % self.stripes) * self.stripe_blocks + t / self.stripes
    }

    /// The most extents that may be active with this ring (`docs/spec/on-disk-format.md` 3.1): 67 to 65534.
    #[must_use]
    pub const fn max_extents(self) -> u16 {
        if self.blocks() >= 73 { 65534 } else { ((self.blocks() - 1) * 919) as u16 }
    }
}

impl Geometry {
    /// Checks 1 <= `slots` <= 31 and `bytes_per_bit` a power of two from 4096 to 1048576.
    pub fn new(slots: u32, bytes_per_bit: u32, al: AlShape) -> Result<Geometry, LayoutError> {
        let slots_ok = u8::try_from(slots).ok().filter(|s| (1..=MAX_SLOTS).contains(s));
        let slots = slots_ok.ok_or(LayoutError::Slots(slots))?;
        if !bytes_per_bit.is_power_of_two() || !(4096..=1 << 20).contains(&bytes_per_bit) {
            return Err(LayoutError::BytesPerBit(bytes_per_bit));
        }
        Ok(Geometry { slots, bytes_per_bit, al })
    }

    /// What every v08 device has unless its ring was striped: one slot, 4096 bytes per bit, default ring.
    pub const V08: Geometry = Geometry { slots: 1, bytes_per_bit: 4096, al: AlShape::DEFAULT };

    /// Bitmap slots, 1 to 31.
    #[must_use]
    pub const fn slots(self) -> u32 {
        self.slots as u32
    }

    /// Data bytes covered by one bitmap bit.
    #[must_use]
    pub const fn bytes_per_bit(self) -> u32 {
        self.bytes_per_bit
    }

    /// Data sectors covered by one bitmap bit.
    #[must_use]
    pub const fn sectors_per_bit(self) -> u64 {
        self.bytes_per_bit as u64 / SECTOR_SIZE
    }

    /// Shape of the activity log.
    #[must_use]
    pub const fn al(self) -> AlShape {
        self.al
    }

    /// The same with another ring.
    #[must_use]
    pub const fn with_al(self, al: AlShape) -> Geometry {
        Geometry { al, ..self }
    }

    /// Bits that are valid for a data device of `size`: the last may be partly beyond its end.
    #[must_use]
    pub const fn bits(self, size: Sector) -> u64 {
        size.0.div_ceil(self.sectors_per_bit())
    }

    /// Bytes of bitmap that `size` needs, all slots, rounded to whole pages (`docs/spec/on-disk-format.md` 1.3).
    #[must_use]
    pub const fn bitmap_bytes(self, size: Sector) -> u64 {
        let per_slot = self.bits(size).div_ceil(64) * 8;
        (per_slot * self.slots as u64).div_ceil(BLOCK_BYTES) * BLOCK_BYTES
    }

    /// The same in sectors.
    #[must_use]
    pub const fn bitmap_sectors(self, size: Sector) -> u64 {
        self.bitmap_bytes(size) / SECTOR_SIZE
    }
}

/// Byte position of the superblock on a metadata device of `device` bytes, `None` if the device is too small for it.
/// It depends on nothing else, so that a superblock can be found before it is known.
#[must_use]
pub fn superblock_at(kind: MetaDisk, device: ByteLen) -> Option<ByteLen> {
    let at = match kind {
        MetaDisk::Internal => device.0.checked_sub(BLOCK_BYTES)? / BLOCK_BYTES * BLOCK_BYTES,
        MetaDisk::FlexExternal => 0,
        MetaDisk::Indexed(i) => u64::from(i) * INDEXED_SLOT_BYTES,
    };
    (at + BLOCK_BYTES <= device.0).then_some(ByteLen(at))
}

impl Layout {
    /// Lays out `geometry` on a metadata device of `device` bytes. For internal metadata that is the whole data device.
    pub fn new(kind: MetaDisk, geometry: Geometry, device: ByteLen) -> Result<Layout, LayoutError> {
        let al = geometry.al.sectors();
        let too_small = |needed: u64| LayoutError::DeviceTooSmall { device, needed: ByteLen(needed) };
        let too_large = || LayoutError::DeviceTooLarge(device);
        if device.0 < MIN_DEVICE_BYTES {
            return Err(too_small(MIN_DEVICE_BYTES));
        }
        let bitmap_only = geometry.bitmap_sectors(device.to_sectors_floor());
        let (al_offset, bm_offset, md_sectors) = match kind {
            MetaDisk::Internal => {
                let below = i64::try_from(al + bitmap_only).map_err(|_| too_large())?;
                (-(al as i64), -below, al + bitmap_only + BLOCK_SECTORS)
            }
            MetaDisk::FlexExternal => (8, 8 + al as i64, device.to_sectors_floor().0),
            MetaDisk::Indexed(_) => (8, 8 + al as i64, INDEXED_SLOT_SECTORS),
        };
        let needed = match kind {
            MetaDisk::Internal => (md_sectors + BLOCK_SECTORS) * SECTOR_SIZE,
            MetaDisk::FlexExternal => (BLOCK_SECTORS + al + BLOCK_SECTORS) * SECTOR_SIZE,
            MetaDisk::Indexed(i) => (u64::from(i) * INDEXED_SLOT_SECTORS + BLOCK_SECTORS * 2 + al) * SECTOR_SIZE,
        };
        if device.0 < needed {
            return Err(too_small(needed));
        }
        Ok(Layout {
            kind,
            geometry,
            device,
            superblock: superblock_at(kind, device).ok_or_else(|| too_small(needed))?.0,
            al_offset: i32::try_from(al_offset).map_err(|_| too_large())?,
            bm_offset: i32::try_from(bm_offset).map_err(|_| too_large())?,
            md_sectors: u32::try_from(md_sectors).map_err(|_| too_large())?,
        })
    }

    /// The kind of metadata disk.
    #[must_use]
    pub const fn kind(&self) -> MetaDisk {
        self.kind
    }

    /// The parameters.
    #[must_use]
    pub const fn geometry(&self) -> Geometry {
        self.geometry
    }

    /// Size of the metadata device.
    #[must_use]
    pub const fn device(&self) -> ByteLen {
        self.device
    }

    /// Byte position of the superblock.
    #[must_use]
    pub const fn superblock_at(&self) -> ByteLen {
        ByteLen(self.superblock)
    }

    /// Byte position of the activity log.
    #[must_use]
    pub const fn al_at(&self) -> ByteLen {
        ByteLen(self.superblock.wrapping_add_signed(self.al_offset as i64 * SECTOR_SIZE as i64))
    }

    /// Byte position of block `index` (below [`AlShape::blocks`]) of the activity log.
    #[must_use]
    pub fn al_block_at(&self, index: u32) -> ByteLen {
        assert!(index < self.geometry.al.blocks(), "activity log block {index} outside the ring");
        ByteLen(self.al_at().0 + u64::from(index) * BLOCK_BYTES)
    }

    /// Byte position of the bitmap.
    #[must_use]
    pub const fn bitmap_at(&self) -> ByteLen {
        ByteLen(self.superblock.wrapping_add_signed(self.bm_offset as i64 * SECTOR_SIZE as i64))
    }

    /// Byte position of 4096-byte page `page` of the bitmap. Panics outside the reserved area.
    #[must_use]
    pub fn bitmap_page_at(&self, page: u64) -> ByteLen {
        assert!((page + 1) * BLOCK_BYTES <= self.bitmap_area().0, "bitmap page {page} outside its area");
        ByteLen(self.bitmap_at().0 + page * BLOCK_BYTES)
    }

    /// Bytes reserved for the bitmap.
    #[must_use]
    pub const fn bitmap_area(&self) -> ByteLen {
        let sectors = match self.kind {
            MetaDisk::Internal => (self.al_offset as i64 - self.bm_offset as i64) as u64,
            _ => self.md_sectors as u64 - self.bm_offset as u64,
        };
        ByteLen(sectors * SECTOR_SIZE)
    }

    /// The stored fields al_offset and bm_offset (sectors from the superblock) and md_size_sect.
    #[must_use]
    pub const fn stored(&self) -> (i32, i32, u32) {
        (self.al_offset, self.bm_offset, self.md_sectors)
    }

    /// The largest replicated device that this metadata can serve (`docs/spec/on-disk-format.md` 1.7). With internal
    /// metadata everything below the bitmap; with external metadata the data device's own size is a further limit.
    #[must_use]
    pub fn capacity(&self) -> Sector {
        let cap = match self.kind {
            MetaDisk::Internal => self.bitmap_at().0 / SECTOR_SIZE,
            _ => {
                let words = self.bitmap_area().0 / BLOCK_BYTES * BLOCK_BYTES / 8 / self.geometry.slots as u64;
                words * 64 * self.geometry.sectors_per_bit()
            }
        };
        Sector(cap).min(MAX_CAPACITY)
    }
}

impl fmt::Display for MetaDisk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            MetaDisk::Internal => f.write_str("internal"),
            MetaDisk::FlexExternal => f.write_str("flex-external"),
            MetaDisk::Indexed(i) => i.fmt(f),
        }
    }
}

impl fmt::Display for LayoutError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LayoutError::Slots(n) => write!(f, "{n} bitmap slots: must be 1 to {MAX_SLOTS}"),
            LayoutError::BytesPerBit(n) => {
                write!(f, "bitmap block size {n}: must be a power of two from 4096 to 1048576")
            }
            LayoutError::AlShape { stripes, stripe_blocks } => write!(
                f,
                "activity log of {stripes} stripes of {} KiB: must be 32 KiB to 16 GiB in all",
                u64::from(*stripe_blocks) * 4
            ),
            LayoutError::DeviceTooSmall { device, needed } => write!(
                f,
                "metadata device of {} bytes is too small: it needs at least {} bytes; use a larger device",
                device.0, needed.0
            ),
            LayoutError::DeviceTooLarge(d) => write!(
                f,
                "metadata for a device of {} bytes does not fit the format; use a larger bitmap block size or fewer peers",
                d.0
            ),
        }
    }
}

impl std::error::Error for LayoutError {}

#[cfg(test)]
mod tests {
    use super::*;

    /// Device size, slots, bytes per bit, ring; then superblock, stored offsets, size, usable sectors.
    type Row = (u64, u32, u32, (u32, u32), u64, i32, i32, u32, u64);

    /// The worked examples of `docs/spec/on-disk-format.md` 1.4.
    #[test]
    fn internal_examples() {
        let rows: [Row; 17] = [
            (1048576, 1, 4096, (1, 8), 1044480, -64, -72, 80, 1968),
            (67108864, 1, 4096, (1, 8), 67104768, -64, -72, 80, 130992),
            (67112448, 1, 4096, (1, 8), 67104768, -64, -72, 80, 130992),
            (134217728, 1, 4096, (1, 8), 134213632, -64, -72, 80, 262064),
            (134221824, 1, 4096, (1, 8), 134217728, -64, -80, 88, 262064),
            (1 << 30, 1, 4096, (1, 8), 1073737728, -64, -128, 136, 2097016),
            (1 << 30, 3, 4096, (1, 8), 1073737728, -64, -256, 264, 2096888),
            (1 << 30, 7, 4096, (1, 8), 1073737728, -64, -512, 520, 2096632),
            (1 << 30, 31, 4096, (1, 8), 1073737728, -64, -2048, 2056, 2095096),
            (1 << 30, 2, 4096, (4, 16), 1073737728, -512, -640, 648, 2096504),
            (1 << 32, 3, 65536, (1, 8), 4294963200, -64, -112, 120, 8388488),
            (1 << 32, 1, 1048576, (1, 8), 4294963200, -64, -72, 80, 8388528),
            (10737418240, 1, 4096, (1, 8), 10737414144, -64, -704, 712, 20970808),
            (1 << 40, 1, 4096, (1, 8), 1099511623680, -64, -65600, 65608, 2147418040),
            (1 << 40, 3, 4096, (1, 8), 1099511623680, -64, -196672, 196680, 2147286968),
            (16492674416640, 1, 4096, (1, 8), 16492674412544, -64, -983104, 983112, 32211271608),
            (1 << 50, 31, 4096, (1, 8), 1125899906838528, -64, -2080374848, 2080374856, 2196942880696),
        ];
        for (device, p, g, (s, z), sb, al, bm, md, usable) in rows {
            let geometry = Geometry::new(p, g, AlShape::new(s, z).unwrap()).unwrap();
            let l = Layout::new(MetaDisk::Internal, geometry, ByteLen(device)).unwrap();
            assert_eq!(
                (l.superblock_at().0, l.stored(), l.capacity().0),
                (sb, (al, bm, md), usable),
                "device {device}"
            );
        }
    }

    #[test]
    fn external_examples() {
        let ext =
            |kind, p, m| Layout::new(kind, Geometry::new(p, 4096, AlShape::DEFAULT).unwrap(), ByteLen(m)).unwrap();
        assert_eq!(ext(MetaDisk::FlexExternal, 1, 4195840).stored(), (8, 72, 8195));
        assert_eq!(ext(MetaDisk::FlexExternal, 31, 1 << 20).capacity(), Sector(2088448));
        assert_eq!(ext(MetaDisk::FlexExternal, 31, 1053184).capacity(), Sector(2097152));
        let indexed = ext(MetaDisk::Indexed(1), 1, 419430400);
        assert_eq!((indexed.superblock_at().0, indexed.stored()), (134217728, (8, 72, 262144)));
        assert_eq!(indexed.capacity(), Sector(8587575296));
    }

    #[test]
    fn refusals() {
        let l = |kind, bytes| Layout::new(kind, Geometry::V08, ByteLen(bytes));
        assert!(matches!(l(MetaDisk::Internal, 69631), Err(LayoutError::DeviceTooSmall { .. })));
        assert!(matches!(l(MetaDisk::Indexed(3), 3 * INDEXED_SLOT_BYTES), Err(LayoutError::DeviceTooSmall { .. })));
        assert!(matches!(l(MetaDisk::Internal, u64::MAX), Err(LayoutError::DeviceTooLarge(_))));
        assert!(
            AlShape::new(1, 7).is_err() && AlShape::new(0, 8).is_err() && AlShape::new(u32::MAX, u32::MAX).is_err()
        );
        assert!(
            Geometry::new(0, 4096, AlShape::DEFAULT).is_err() && Geometry::new(32, 4096, AlShape::DEFAULT).is_err()
        );
        assert!(Geometry::new(1, 0, AlShape::DEFAULT).is_err() && Geometry::new(1, 6000, AlShape::DEFAULT).is_err());
    }

    #[test]
    fn ring_positions() {
        let striped = AlShape::new(4, 16).unwrap();
        let at: Vec<u32> = [0, 1, 2, 3, 4, 63, 64].iter().map(|&t| striped.block_of(t)).collect();
        assert_eq!(at, [0, 16, 32, 48, 1, 63, 0]);
        assert_eq!(AlShape::DEFAULT.max_extents(), 6433);
        assert_eq!(AlShape::new(1, 72).unwrap().max_extents(), 65249);
        assert_eq!(AlShape::new(1, 73).unwrap().max_extents(), 65534);
    }
}
