//! Front ends: block requests in, completions out.
//!
//! **Purpose.** Turn what applications speak (NBD over a socket, FUSE messages from the kernel, a loop device on top of
//! a FUSE file) into [`Request`]s, and [`Request`]s that have finished back into bytes. Protocol code is sans-IO: it
//! works on byte slices and never owns a descriptor, so one event loop can own all of them. The few modules that make
//! system calls ([`fuse::mount`], [`loopdev`], [`device_link`], [`keeper`], [`users`]) set devices up, keep them, look
//! at them and take them down; they are never on the data path.
//!
//! **Invariants.**
//! - A [`Request`] that leaves this crate is inside its [`Export`], aligned to its minimum block size, no longer than
//!   its limits, and allowed by its permissions: [`Export::admit`] is the only place that decides.
//! - Payload is never copied and never allocated for: a session says how many bytes follow, the owner reads them.
//! - In steady state no request allocates.
//! - Whatever bytes a client sends, a session answers with an error or closes; it never panics.
//!
//! **It must never** know that replication exists.

#![deny(unsafe_code)]

pub mod device_link;
pub mod fuse;
pub mod keeper;
pub mod loopdev;
pub mod nbd;
pub mod request;
pub mod shared;
pub mod sys;
pub mod users;

pub use request::{BlockSizes, Completion, Errno, Export, Kind, Request};
