//! Measures urbd on this machine, beside its alternatives and beside the bare work.
//!
//! Purpose: workloads, what they are done to (a node's own loop, NBD, files), the alternatives, the cases that put them
//! side by side, and what is printed of it. `urbd bench` (crate `lab`) is a command line for this.
//!
//! Invariants: contenders take turns within every round, and only ratios within a round are judged; whatever was
//! started is ended, also after an error; nothing is written to but files made for the purpose, or what the user named.
//!
//! Must never: be on the data path of a node that was not started to be measured; judge where nothing was measured.
#![deny(unsafe_code)]

pub mod alternatives;
pub mod cases;
pub mod counters;
pub mod error;
pub mod file;
pub mod fio;
pub mod in_process;
pub mod latency;
pub mod limit;
pub mod machine;
pub mod modelled_disk;
pub mod mounted;
pub mod nbd;
pub mod pair;
pub mod pattern;
pub mod process;
pub mod report;
pub mod results;
pub mod scratch;
mod sys;
pub mod target;
pub mod workload;

pub use error::{Error, Result};
pub use sys::{keep_mounts_apart, note_signals};
