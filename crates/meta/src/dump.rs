//! The text form of metadata: `dump-md` and `restore-md` (`docs/spec/on-disk-format.md` 6).

mod lexer;
mod parse;
mod restore;
mod write;

pub use parse::{Dump, ParseError, Run, is_one, parse, parse_to_look};
pub use restore::{RestoreError, Restored, restore};
pub use write::{Dialect, Header, Moved, write};
