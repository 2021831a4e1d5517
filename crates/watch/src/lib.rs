//! `urbd top` and `urbd web`: all resources of this node at a glance, in a terminal and in a browser.
//!
//! Purpose: ask each running process for its status once a second, and show it with what changed since: throughput,
//! latency by stage, resync. Pure functions draw; [`look`] asks, [`top`] and [`web`] own the terminal and the sockets.
//!
//! Invariants: nothing is ever changed, neither by a key nor by a request from a browser; the page is served on
//! loopback addresses only, and loads nothing from elsewhere; what a process answers is shown escaped.
//!
//! Must never: decide anything about replication, send a command, or be a part of the process that holds the data.
#![forbid(unsafe_code)]

pub mod look;
pub mod rates;
pub mod top;
pub mod web;

pub use look::{Looker, Seen, Unseen};
