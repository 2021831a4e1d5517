//! Runs one replication core on io_uring: disks, TCP streams, timers, buffer pools, front-end and control sockets.
//!
//! Purpose: do the input and output that the sans-IO core asks for, with one kernel entry per loop turn, and report
//! what happened. One process and one loop own one resource; there is no lock on the data path.
//!
//! Invariants: memory that the kernel may touch stays allocated and unshared until the kernel is done with it; all
//! memory of the write path is set aside at start ([`buffers::Pool`]) and running out is back-pressure; a failed disk
//! flush is reported as a failed disk and never retried.
//!
//! What a process has below `RUN_DIR`, and who else uses it:
//!
//! * `RES.sock`: control, one line of JSON per message (`crates/control/src/message.rs`)
//! * `RES-VOL.nbd`: NBD; the export `RES/VOL` is there while the node is Primary
//! * `RES.dev`: FUSE mount with a door per volume, which is what applications open, and a hidden file per volume, on
//!   which a loop device stands (`fuse_server`); `/dev/urbd/by-res/RES/VOL` and `/dev/drbd…` are links to the door
//! * `RES.keeper`: descriptors, and what was told, in and out of `urbd keep RES` (`crates/frontends/src/keeper.rs`)
//! * `RES.pid`: the process's id, and the lock that keeps a second one out (`exclusive`)
//! * `NAME.files`: the resource whose devices were made when it was called NAME (`files`)
//! * `RES.next`: a process that takes over says so as long as nobody listens (`crates/control/src/successor.rs`)
//! * `RES.log`: what a process says that `urbd up` has started; a service writes to the journal (`log`)
//!
//! Must never: decide anything about replication. The only `unsafe` code is in `buffers`, `memory`, `ring` and `sys`.
#![deny(unsafe_code)]

mod application;
pub mod buffers;
mod claim;
pub mod connector;
mod control_server;
mod dependencies;
pub mod digests;

pub mod disk;
mod error;
pub mod exclusive;
mod files;
mod fuse_server;
mod handlers;
mod links;
pub mod log;
mod memory;
mod nbd_server;
mod notify;
mod requests;
mod resource;
pub mod ring;
mod setup;
mod status;
pub mod stream;
mod sys;
mod token;
mod volumes;

pub use application::Application;
pub use claim::{
    Claim, KeeperCommand, Leaving, check_version, end_keeper, holder, is_waited_for, keep, let_file_count,
    prepare_run_dir, what_was_told,
};
pub use error::Error;
pub use frontends::device_link::kernel_has_minor;
pub use frontends::{Errno, Kind, Request};
pub use notify::tell_service_manager;
pub use resource::{Options, clear_leftovers, device_name, device_of_file, run, run_with};
pub use setup::{resource_config, warnings};
pub use sys::{keep_descriptors_from_children, next_data, read_anew};
