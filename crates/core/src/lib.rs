//! The replication state machine of one resource on one node, sans-IO.
//!
//! Purpose: everything that decides about replication. A [`Resource`] is told what happened (`on_*`, each with the
//! virtual time), and says what to do ([`Resource::poll_effect`]). It implements `docs/spec/connection-and-state.md`
//! and `docs/spec/data-path-and-resync.md`; the decisions themselves are pure functions in [`decide`].
//!
//! Order of calls, one *turn*: any number of `on_*` inputs; then [`Resource::on_turn_end`] once; then
//! [`Resource::poll_effect`] until it is empty, carrying out each effect in order (those of one stream or one disk
//! strictly in order, independent ones concurrently); then sleep until the next input or
//! [`Resource::poll_timeout`], at which [`Resource::on_time`] is called. After P_CONNECTION_FEATURES was handed in,
//! drain the effects before decoding more of that stream: [`Effect::Dialect`] says how.
//!
//! Payload: the core never sees bytes of application data, only [`Segments`] of buffers that the caller owns. What
//! comes with `on_packet` or [`DiskDone`] belongs to the core until [`Effect::Release`] (or [`Effect::Deliver`]);
//! buffers of a [`BlockRequest`] belong to it until [`Effect::Complete`]. An effect that names a buffer gives the
//! caller a reference of its own until that send or disk operation is over.
//!
//! Invariants: same inputs, same outputs; a write is completed only when it is in the activity log and where its
//! protocol demands; bits of the bitmap are set before the activity log lets go of an extent.
//!
//! Must never: see a clock, a thread, a socket, an OS random source, or payload bytes.
#![forbid(unsafe_code)]

mod al;
mod api;
mod attach;
mod bitmap_exchange;
mod command;
mod config;
mod congestion;
mod connection;
pub mod decide;
mod device;
pub mod dialect84;
mod dispatch;
mod flush;
mod handshake;
mod housekeeping;
mod latency;
mod liveness;
pub mod members;
mod merging;
mod metadata;
mod mutant;
mod peer_write;
mod read;
mod replicate;
mod request;
mod resource;
mod resync;
mod rows;
mod slab;
mod snapshot;
mod splitting;
mod state;

pub use api::*;
pub use config::*;
pub use latency::Stage;
#[cfg(feature = "mutants")]
pub use mutant::{Layer, Mutant, choose_mutant};
pub use resource::Resource;
pub use resync::SlowedBy;
pub use rows::TABLES;
#[cfg(feature = "rows")]
pub use rows::take_rows;
