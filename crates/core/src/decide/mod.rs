//! The decisions of replication as pure functions: what they are given is everything they look at.
//!
//! Purpose: every rule by which a node decides who is right, who syncs from whom, whether a state change is legal,
//! where a request goes and what an error does. Each function returns a verdict and a [`Reason`]; nothing is changed
//! here, no packet is sent. Rule numbers are those of `docs/spec/connection-and-state.md`.
//!
//! Invariants: same input, same output; for a rule that both nodes evaluate, the verdicts of the two mirror each other
//! (one is source exactly if the other is target), or the verdict is a refusal.
//!
//! Must never: hold state, look at a clock, guess a missing input.
//!
//! Where a decision deliberately differs from DRBD's it says so and `docs/compatibility.md` lists it.

pub mod attach84;
pub mod change;
pub mod direction9;
pub mod diskless9;
pub mod effects;
pub mod fencing;
pub mod foretell;
pub mod handler;
pub mod handshake84;
pub mod io_error;
mod lost;
pub mod private;
pub mod protocol;
pub mod quorum;
pub mod reason;
pub mod roles;
pub mod routing;
pub mod rules;
pub mod sizes;
pub mod split_brain;
pub mod state;
pub mod suspend;
pub mod topic;
pub mod uuid84;
pub mod uuid9;
pub mod view;
pub mod votes;
pub mod what_if;

pub use handler::Handler;
pub use reason::Reason;
pub use wire::{ConnState, DiskState, Role, StateChange, StateChangeResult, StateWord};
