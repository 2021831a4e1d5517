//! The drbd.conf language: text to a checked, typed configuration, and the plan that brings a running resource there.
//!
//! Purpose: read drbd.conf files of the 8.4 and 9 dialects (their union), say precisely what is wrong with a file that
//! cannot be used, and give programs the merged options of every object with real types. Implements
//! `docs/spec/config-and-cli.md` sections 1, 2 and 5.
//!
//! Invariants: a [`Config`] that exists has passed every check that does not depend on the machine; every error and
//! warning carries the place in the file; the result depends on nothing but the texts and the [`Files`] they came from.
//!
//! Must never: do I/O beyond reading the named files (through [`Files`]), run programs, look at the host it runs on.
//!
//! ```
//! # use urbd_config::{Memory, ThisHost, load_from};
//! let mut files = Memory::default();
//! files.insert("/etc/drbd.conf", "resource r0 {
//!     device minor 10; disk /dev/vg0/r0; meta-disk internal;
//!     on alpha { node-id 0; address 10.1.1.1:7789; }
//!     on bravo { node-id 1; address 10.1.1.2:7789; }
//! }");
//! let config = load_from(&files, "/etc/drbd.conf".as_ref(), &Default::default())?;
//! let r0 = config.resource_as_seen_by("r0", &ThisHost::named("alpha"))?;
//! assert_eq!(r0.peers[0].peer_name, "bravo");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![forbid(unsafe_code)]

mod address;
mod backing;
mod choices;
mod command;
mod discard;
mod document;
mod dump;
mod error;
mod files;
mod grammar;
mod index;
mod lexer;
mod load;
mod load_options;
mod local;
mod model;
mod options;
mod plan;
mod resolve;
mod running;
mod table;
mod told;
mod tree;
mod value;

pub use address::{Address, Family};
pub use backing::{Backing, MetaDisk};
pub use choices::*;
pub use command::shell_line;
pub use error::{Error, ErrorKind, Errors, Span, Warning};
pub use files::{Disk, Files, Memory};
pub use load::{load, load_from, load_text};
pub use load_options::{LoadOptions, Version};
pub use local::{FixedSinceStart, is_nine};
pub use model::*;
pub use options::*;
pub use plan::{AdjustScope, Plan, Stage, Step, in_order};
pub use running::{Running, RunningConnection, RunningVolume};
pub use table::{Group, Kind, OptionSpec, Unit, option, options};
pub use told::{Refused, Standing, behind_file, check_name};
pub use value::{BadValue, Value, parse_number};
