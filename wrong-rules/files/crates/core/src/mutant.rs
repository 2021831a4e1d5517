//! What is broken, where this crate asks (`crates/units/src/mutant.rs`).

pub use units::mutant::{Layer, Mutant, accepts_damage, choose_mutant};
pub(crate) use units::mutant::mutant;
