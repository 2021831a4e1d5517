//! What is said over a resource's control socket, and how its answers look to people and programs.
//!
//! Purpose: the versioned messages between `urbd run` (one process per resource) and the command line, a blocking
//! client, the status model, and pure renderers that turn a status into the texts of `drbdsetup status`, `status
//! --json` and `events2` (`docs/spec/config-and-cli.md` 4.1-4.4, 4.7).
//!
//! Invariants: every message is one line of JSON; a line longer than [`frame::MAX_LINE`] is refused before it is
//! parsed; unknown fields are ignored so that a newer peer may add some; renderers depend on nothing but their
//! arguments.
//!
//! Must never: decide anything about replication, read a clock, or know how a resource is run.
#![forbid(unsafe_code)]

mod asker;
pub mod client;
pub mod discard;
pub mod events;
mod fields;
pub mod frame;
pub mod human;
pub mod json;
mod latency;
mod losses;
pub mod matter;
pub mod message;
pub mod metrics;
mod paint;
mod plain;
pub mod query;
mod rates;
mod states;
mod status;
mod successor;
pub mod what_if;

pub use asker::Asker;
pub use client::Client;
pub use latency::StageLatency;
pub use losses::{Losses, Seen};
pub use message::{
    Command, ErrorCode, Event, Failure, GenerationIdentifiers, HelperCall, Listens, Reply, Request, VERSION, WhyEntry,
};
pub use plain::plain;
pub use states::{ConnectionState, DiskState, ReplicationState, Role, UnknownWord, WriteOrdering};
pub use status::{
    Attempt, Cause, ConnectionStatistics, ConnectionStatus, DeviceStatistics, DeviceStatus, IntentionalClient,
    LinkLosses, MemoryStatus, Opening, PathAddress, PathStatus, PeerDeviceStatistics, PeerDeviceStatus, ResourceStatus,
    ResyncSuspended, SlowedBy, Suspended, SyncDetails, VerifyDetails,
};
pub use successor::Successor;
