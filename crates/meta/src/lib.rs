//! DRBD's on-disk metadata, formats v08 and v09: parse it, emit it, and plan changes to it.
//!
//! Purpose: everything that knows what a byte of metadata means. [`Layout`] says where the three areas lie,
//! [`Superblock`] is the one in-memory model of both formats, [`ActivityLog`] is the cache of hot extents that produces
//! transactions, [`BitmapArea`] maps bits to 4096-byte pages. Offline work (create, convert, resize, apply-al, dump,
//! restore) is planned as a list of [`Step`]s that the caller carries out in order. Specification:
//! `docs/spec/on-disk-format.md`.
//!
//! Invariants: what is parsed is legal, or an error names the field; what is emitted is byte for byte what the
//! reference tools write; the same calls give the same bytes.
//!
//! Must never: do I/O, read a clock, use an OS random source, panic on bytes that come from a disk or a file.
#![forbid(unsafe_code)]

pub mod activity_log;
pub mod apply_al;
pub mod bitmap;
mod bytes;
pub mod convert;
pub mod create;
pub mod dump;
pub mod existing;
pub mod find;
pub mod generations;
pub mod gi;
pub mod layout;
pub mod lkbd;
pub mod plan;
pub mod resize;
pub mod superblock;
pub mod tally;

pub use activity_log::{ActivityLog, ExtentRange};
pub use bitmap::{BitmapArea, DirtyPages};
pub use find::Found;
pub use layout::{AlShape, Geometry, Layout, MetaDisk};
pub use plan::Step;
pub use superblock::{DeviceFlags, Format, PeerFlags, PeerRecord, Superblock, Version};

/// The unit in which metadata is read and written: 4096 bytes.
pub const BLOCK_LEN: usize = 4096;

/// One superblock, activity log block or bitmap page.
pub type Block = [u8; BLOCK_LEN];
