//! The activity log: which 4 MiB extents of the data may differ from a peer after a crash
//! (`docs/spec/on-disk-format.md` 3).
//!
//! [`ActivityLog`] is the cache in memory that decides which extents are hot and makes the transactions;
//! [`block`] is their format on disk; [`replay`] reads a ring back.

pub mod block;
mod cache;
mod old_format;
pub mod replay;

pub use cache::{Acquire, ActivityLog, Busy, Ticket, Transaction};

use units::SectorRange;

/// Bytes of data that one extent covers: 4 MiB.
pub const EXTENT_BYTES: u64 = 4 << 20;
/// Sectors of data that one extent covers.
pub const EXTENT_SECTORS: u64 = EXTENT_BYTES / units::SECTOR_SIZE;
/// Most slot changes in a transaction.
pub const MAX_UPDATES: usize = 64;
/// Slots described by a transaction's context.
pub const CONTEXT_LEN: usize = 919;
/// The stored value for "no extent".
pub const NO_EXTENT: u32 = u32::MAX;
/// The smallest number of active extents (`al-extents`).
pub const MIN_EXTENTS: u16 = 67;
/// The default number of active extents.
pub const DEFAULT_EXTENTS: u16 = 1237;

/// A non-empty range of extents `first..=last`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ExtentRange {
    first: u32,
    last: u32,
}

impl ExtentRange {
    /// The extents that a write to `sectors` touches; `None` for an empty range (a flush) or one beyond the 16 PiB
    /// that extent numbers reach.
    #[must_use]
    pub fn of(sectors: SectorRange) -> Option<ExtentRange> {
        if sectors.is_empty() {
            return None;
        }
        let first = u32::try_from(sectors.start.0 / EXTENT_SECTORS).ok()?;
        let last = u32::try_from((sectors.end.0 - 1) / EXTENT_SECTORS).ok()?;
        (last < NO_EXTENT).then_some(ExtentRange { first, last })
    }

    /// One extent. Panics for the number that means "none".
    #[must_use]
    pub fn single(extent: u32) -> ExtentRange {
        assert!(extent < NO_EXTENT, "extent number {extent:#x} means none");
        ExtentRange { first: extent, last: extent }
    }

    /// First extent.
    #[must_use]
    pub const fn first(self) -> u32 {
        self.first
    }

    /// Last extent, included.
    #[must_use]
    pub const fn last(self) -> u32 {
        self.last
    }

    /// How many extents, at least 1.
    #[must_use]
    pub const fn count(self) -> u64 {
        (self.last - self.first) as u64 + 1
    }

    /// The extents in ascending order.
    pub fn iter(self) -> impl Iterator<Item = u32> {
        self.first..=self.last
    }
}
