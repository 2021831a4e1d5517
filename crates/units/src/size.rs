//! Positions and lengths on a block device.

use std::fmt;
use std::ops::{Add, Sub};

/// Bytes in a sector: 512, whatever the device's logical block size (the unit of DRBD's wire and disk format).
pub const SECTOR_SIZE: u64 = 512;

/// A position on a device, or a device size, in sectors of 512 bytes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Sector(pub u64);

/// A length in bytes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct ByteLen(pub u64);

/// A non-empty or empty half-open range of sectors `start..end`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct SectorRange {
    /// First sector.
    pub start: Sector,
    /// First sector after the range; never below `start`.
    pub end: Sector,
}

impl Sector {
    /// The byte offset of this sector. Panics above 2^55 sectors (16 EiB), which no checked size reaches.
    #[must_use]
    #[inline]
    pub fn to_bytes(self) -> ByteLen {
        ByteLen(self.0.checked_mul(SECTOR_SIZE).expect("sector offset fits 64 bits of bytes"))
    }

    /// `self + n` sectors, `None` on overflow.
    #[must_use]
    pub fn checked_add(self, n: u64) -> Option<Sector> {
        self.0.checked_add(n).map(Sector)
    }
}

impl ByteLen {
    /// Whole sectors in this length, rounded down.
    #[must_use]
    pub fn to_sectors_floor(self) -> Sector {
        Sector(self.0 / SECTOR_SIZE)
    }

    /// Whole sectors that hold this length, rounded up.
    #[must_use]
    pub fn to_sectors_ceil(self) -> Sector {
        Sector(self.0.div_ceil(SECTOR_SIZE))
    }

    /// Is this a whole number of sectors?
    #[must_use]
    pub fn is_sector_aligned(self) -> bool {
        self.0.is_multiple_of(SECTOR_SIZE)
    }
}

impl SectorRange {
    /// The range of `bytes` (rounded up to sectors) from `start`; `None` if its end overflows.
    #[must_use]
    pub fn new(start: Sector, bytes: ByteLen) -> Option<SectorRange> {
        let end = start.checked_add(bytes.to_sectors_ceil().0)?;
        Some(SectorRange { start, end })
    }

    /// Length in bytes.
    #[must_use]
    #[inline]
    pub fn len(self) -> ByteLen {
        Sector(self.end.0 - self.start.0).to_bytes()
    }

    /// Does it hold no sector?
    #[must_use]
    pub fn is_empty(self) -> bool {
        self.start >= self.end
    }

    /// Do the two share a sector?
    #[must_use]
    pub fn overlaps(self, other: SectorRange) -> bool {
        self.start < other.end && other.start < self.end
    }

    /// Does `self` hold all of `other`?
    #[must_use]
    pub fn contains(self, other: SectorRange) -> bool {
        self.start <= other.start && other.end <= self.end
    }
}

impl Add for ByteLen {
    type Output = ByteLen;
    fn add(self, o: ByteLen) -> ByteLen {
        ByteLen(self.0.checked_add(o.0).expect("byte length overflow"))
    }
}

impl Sub for ByteLen {
    type Output = ByteLen;
    fn sub(self, o: ByteLen) -> ByteLen {
        ByteLen(self.0.checked_sub(o.0).expect("byte length underflow"))
    }
}

impl fmt::Debug for Sector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}s", self.0)
    }
}

impl fmt::Display for Sector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}s", self.0)
    }
}

impl fmt::Debug for ByteLen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}B", self.0)
    }
}

/// For messages: `sectors 8 to 15`.
impl fmt::Display for SectorRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "sectors {} to {}", self.start.0, self.end.0.saturating_sub(1))
    }
}

impl fmt::Debug for SectorRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}..{}s", self.start.0, self.end.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges() {
        let a = SectorRange::new(Sector(8), ByteLen(4096)).unwrap();
        assert_eq!(a.end, Sector(16));
        assert_eq!(a.len(), ByteLen(4096));
        let b = SectorRange::new(Sector(15), ByteLen(1)).unwrap();
        assert!(a.overlaps(b) && a.contains(b) && !b.contains(a));
        assert!(!a.overlaps(SectorRange::new(Sector(16), ByteLen(512)).unwrap()));
        assert!(SectorRange::new(Sector(u64::MAX), ByteLen(512)).is_none());
    }
}
