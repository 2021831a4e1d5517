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
//! A program that embeds it is a loop around these calls:
//!
//! ```
//! use units::{Instant, NodeId, VolumeNr};
//! use urbd_core::{Command, ConnectionConfig, DiskConfig, Effect, OnNoData, OnSuspendedOutdated, QuorumConfig};
//! use urbd_core::{Resource, ResourceConfig, VolumeConfig};
//!
//! let (node, peer, volume) = (NodeId::new(0).unwrap(), NodeId::new(1).unwrap(), VolumeNr(0));
//! let address = |port| std::net::SocketAddr::from(([127, 0, 0, 1], port));
//! let config = ResourceConfig {
//!     name: "r0".to_owned(),
//!     node,
//!     on_no_data: OnNoData::IoError,
//!     on_suspended_outdated: OnSuspendedOutdated::Disconnect,
//!     quorum: QuorumConfig::default(),
//!     handlers: Vec::new(),
//!     volumes: vec![VolumeConfig { volume, disk: Some(DiskConfig::default()) }],
//!     connections: vec![ConnectionConfig::new(peer, "bravo", (address(7788), address(7789)))],
//! };
//! // The seed is all the randomness there is: the same inputs lead to the same effects.
//! let mut core = Resource::new(config, 42);
//!
//! // One turn: what happened goes in …
//! let now = Instant(0);
//! core.on_command(now, 1, Command::Attach { volume });
//! core.on_command(now, 2, Command::Connect { peer, discard_my_data: false, tentative: false });
//! core.on_turn_end(now);
//! // … and what is to be done comes out. A real program opens disks and sockets here, and reports as they answer.
//! let (mut connecting, mut failed) = (false, None);
//! while let Some(effect) = core.poll_effect() {
//!     match effect {
//!         Effect::OpenDisk { volume } => {
//!             core.on_disk_opened(now, volume, Err((2, "no such disk".to_owned())));
//!             core.on_turn_end(now);
//!         }
//!         Effect::Connect { .. } => connecting = true,
//!         Effect::CommandDone { id: 1, result } => failed = Some(result.is_err()),
//!         Effect::Log(notice) => println!("{} [{}]", notice.text, notice.reason),
//!         _ => {}
//!     }
//! }
//! assert!(connecting && failed == Some(true));
//! // Then it sleeps until something happens, or until this time.
//! let _ = core.poll_timeout();
//! ```
//!
//! Invariants: same inputs, same outputs; a write is completed only when it is in the activity log and where its
//! protocol demands; bits of the bitmap are set before the activity log lets go of an extent.
//!
//! Must never: see a clock, a thread, a socket, an OS random source, or payload bytes.
#![forbid(unsafe_code)]

mod al;
mod announce;
mod api;
mod attach;
mod audit;
mod bitmap_exchange;
mod command;
mod config;
mod congestion;
mod connection;
pub mod decide;
mod device;
mod device_size;
pub mod dialect84;
mod dialect9;
mod dispatch;
mod flush;
mod generations;
mod handshake;
mod housekeeping;
mod latency;
mod link_end;
mod liveness;
mod merging;
mod metadata;
mod node;
mod notice;
mod op;
mod outbox;
mod peer_device;
mod peer_epochs;
mod peer_read;
mod peer_write;
mod pings;
mod read;
mod received_log;
mod repetition;
mod replaced;
mod replicate;
mod request;
mod resource;
mod resync;
mod rows;
mod slab;
mod snapshot;
mod splitting;
mod state;
mod timers;
mod transfer_log;

pub use api::*;
pub use config::*;
pub use latency::Stage;
pub use node::Node;
pub use replaced::{Copied, Replaced};
pub use resource::{Counters, Resource};
pub use resync::marks::SlowedBy;
pub use rows::TABLES;
#[cfg(feature = "rows")]
pub use rows::take_rows;
pub use units::members;
