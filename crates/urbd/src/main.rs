//! The one binary of urbd: runs resources, and speaks the verbs of drbdadm, drbdsetup and drbdmeta.
//!
//! Purpose: turn a command line into calls of the other crates; what needs no process is tested there.
//!
//! Invariants: exit statuses are those of `docs/spec/config-and-cli.md`; problems go to stderr, never to stdout; one
//! object that fails does not keep the others from being served.
//!
//! Must never: decide anything about replication.
#![deny(unsafe_code)]

mod cli;
mod context;
mod metadata_io;
mod objects;
mod offline;
mod problem;
mod verbs;

use std::process::ExitCode;

fn main() -> ExitCode {
    ExitCode::from(cli::run(std::env::args_os()))
}
