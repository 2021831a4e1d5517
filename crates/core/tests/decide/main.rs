//! The decision tables in `tests/tables/`, checked row by row, and properties over whole input spaces.
//!
//! A row is `command key=value … => verdict`. `REWRITE=1 cargo test -p urbd-core --test decide` writes what the code
//! says into the files; review the difference before committing it.

mod direction9;
mod disks;
mod handshake84;
mod kernel_trace;
mod life;
mod pairwise;
mod protocol;
mod quorum;
mod requests;
mod rules;
mod sizes;
mod table;
mod uuid84;
mod uuid9;
mod words;
mod worlds;
