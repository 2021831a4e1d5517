//! Hostile and defective input for everything that reads bytes from outside.
//!
//! Purpose: one plain function per reader ([`TARGETS`]), each taking any bytes and panicking if the reader breaks a
//! promise: it panics, loops, accepts what is illegal, or what it accepted does not survive a round trip. The same
//! functions run as tests (saved inputs and random ones) and under `cargo fuzz`. [`peer`] is the largest: a whole
//! replication core against a peer that lies.
//!
//! Invariants: same bytes, same run; no clock, no files.
//!
//! Must never: be part of the product.
#![forbid(unsafe_code)]

pub mod input;
pub mod peer;
pub mod readers;

/// A function that tries out a reader with any bytes, and panics if a promise is broken.
pub type Target = fn(&[u8]);

/// Every target by name; the names are those of `fuzz/fuzz_targets/` and `corpus/`.
pub const TARGETS: &[(&str, Target)] = &[
    ("core_primary", peer::primary),
    ("core_secondary", peer::secondary),
    ("wire_data_stream", readers::wire_data_stream),
    ("wire_control_stream", readers::wire_control_stream),
    ("wire_first_packet", readers::wire_first_packet),
    ("bitmap_code", readers::bitmap_code),
    ("superblock", readers::superblock),
    ("activity_log", readers::activity_log),
    ("dump_text", readers::dump_text),
    ("drbd_conf", readers::drbd_conf),
    ("control_messages", readers::control_messages),
    ("nbd", readers::nbd),
    ("fuse", readers::fuse),
];
