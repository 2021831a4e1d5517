//! NBD server side: fixed newstyle handshake and transmission, sans-IO.
//!
//! One [`Session`] per connection. The owner appends what it receives to a buffer and calls [`Session::parse`] until it
//! answers [`Step::NeedMore`]; bytes that the session appends to `out` are to be sent before anything else. A
//! [`Step::Request`] is the owner's to execute; it answers in any order with [`Session::reply`], sending the header
//! and, for a successful read, the payload behind it.
//!
//! ```
//! use urbd_frontends::nbd::{Session, Step};
//! use urbd_frontends::Export;
//!
//! let exports = [Export::new(0, "r0/0", 1 << 20)];
//! let mut out = Vec::new();
//! let mut session = Session::start(&mut out); // `out` now holds the greeting
//! assert_eq!(out.len(), 18);
//! assert_eq!(session.parse(&[], &exports, &mut out), Step::NeedMore { at_least: 4 });
//! ```

mod negotiation;
mod options;
mod proto;
mod reply;
mod session;
#[cfg(test)]
mod session_tests;

pub use reply::{Extent, HEADER_MAX, ReplyHeader};
pub use session::{BlockStatus, Session, Step};

use crate::Export;

/// [`Session::parse`] never asks for more input than this many bytes at once.
pub const PARSE_MAX: usize = options::OPTION_MAX + proto::OPTION_HEADER;

/// Which exports a connection may choose from.
pub trait Exports {
    /// The export of that exact name.
    fn find(&self, name: &str) -> Option<&Export>;

    /// What a client that names no export gets: by default nothing.
    fn default_export(&self) -> Option<&Export> {
        None
    }

    /// Calls `each` for every export, in the order in which they are to be listed.
    fn for_each(&self, each: &mut dyn FnMut(&Export));
}

/// A slice of exports; the empty name stands for the only one if there is just one.
impl Exports for [Export] {
    fn find(&self, name: &str) -> Option<&Export> {
        self.iter().find(|export| export.name == name)
    }

    fn default_export(&self) -> Option<&Export> {
        if let [only] = self { Some(only) } else { None }
    }

    fn for_each(&self, each: &mut dyn FnMut(&Export)) {
        self.iter().for_each(each);
    }
}

impl<const N: usize> Exports for [Export; N] {
    fn find(&self, name: &str) -> Option<&Export> {
        self.as_slice().find(name)
    }

    fn default_export(&self) -> Option<&Export> {
        self.as_slice().default_export()
    }

    fn for_each(&self, each: &mut dyn FnMut(&Export)) {
        self.as_slice().for_each(each);
    }
}

impl Exports for Vec<Export> {
    fn find(&self, name: &str) -> Option<&Export> {
        self.as_slice().find(name)
    }

    fn default_export(&self) -> Option<&Export> {
        self.as_slice().default_export()
    }

    fn for_each(&self, each: &mut dyn FnMut(&Export)) {
        self.as_slice().for_each(each);
    }
}
