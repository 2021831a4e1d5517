//! The quantities and small containers that every other urbd crate speaks in.
//!
//! Purpose: one type per unit, so that a sector is never taken for a byte, and a handful of containers (bit sets,
//! interval sets, histograms, one thing per peer or per volume) that the metadata, the wire code and the replication
//! core need.
//!
//! Invariants: all arithmetic that can overflow is checked (also in release builds); containers are deterministic:
//! the same calls give the same iteration order.
//!
//! Must never: do I/O, read a clock, use an OS random source.
#![forbid(unsafe_code)]

mod bitset;
mod histogram;
mod host;
mod ids;
mod intervals;
pub mod members;
mod rng;
mod serial;
mod size;
mod time;

pub use bitset::BitSet;
pub use histogram::Histogram;
pub use host::same_host;
pub use ids::{Generation, NodeId, NodeMask, VolumeNr};
pub use intervals::IntervalSet;
pub use rng::Rng;
pub use serial::is_after;
pub use size::{ByteLen, SECTOR_SIZE, Sector, SectorRange};
pub use time::{Duration, Instant, sooner};
