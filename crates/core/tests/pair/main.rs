//! Two cores beside each other: what writes cost, what a resync and a verify cost, and what they do when a disk or the
//! peer does not answer.

#[path = "../../../units/tests/counting/allocations.rs"]
mod counting;
mod crash;
mod resync;
mod rig;
mod writes;
