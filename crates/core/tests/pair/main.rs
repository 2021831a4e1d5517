//! Two cores beside each other: what writes cost, what a resync and a verify cost, and what they do when a disk or the
//! peer does not answer.

mod resync;
mod rig;
mod writes;
