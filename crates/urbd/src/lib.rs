//! The program urbd as a library: runs resources, and speaks the verbs of drbdadm, drbdsetup and drbdmeta.
//!
//! Purpose: turn a command line into calls of the other crates; what needs no process is tested there.
//!
//! Invariants: exit statuses are those of `docs/spec/config-and-cli.md`; problems go to stderr, never to stdout; one
//! object that fails does not keep the others from being served.
//!
//! Must never: decide anything about replication.
#![deny(unsafe_code)]

mod cli;
mod config_link;
mod context;
mod explain;
mod last_known;
pub mod manual;
mod metadata_io;
mod objects;
mod offline;
pub mod problem;
mod progress;
mod verbs;
pub mod watching;
mod words;

use std::ffi::OsString;

use engine::Application;

/// Runs a command line, its first word the name that the program was called by; gives the exit status.
pub fn run(argv: impl IntoIterator<Item = OsString>) -> u8 {
    cli::run(argv)
}

/// `urbd run RESOURCE` with an application inside the process. Configuration and own name are those of the environment
/// (`URBD_CONF`, `URBD_NODE`, `URBD_RUN_DIR`).
///
/// # Errors
/// As the verb `run`.
pub fn run_with(resource: &str, application: Box<dyn Application>) -> Result<u8, problem::Problem> {
    verbs::lifecycle::run_inside(&context::Context::of_environment(), resource, application)
}
