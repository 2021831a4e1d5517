//! Two cores beside each other: what writes cost, what a resync and a verify cost, and what they do when a disk or the
//! peer does not answer.

mod again;
mod comparing;
#[path = "../../../units/tests/counting/allocations.rs"]
mod counting;
mod crash;
mod dialect9;
mod holes;
mod large;
mod links;
mod log_room;
mod objects;
mod order;
mod overdue;
mod overtaking;
mod peers;
mod resync;
mod rig;
mod sizes;
mod strangers;
mod verbs;
mod votes;
mod writes;
