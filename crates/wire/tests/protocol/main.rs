//! The protocol's rules without recordings: the specification's vectors, properties, violations, limits on sending.

mod peer;
mod properties;
mod spec_vectors;
mod unsendable;
mod violations;
