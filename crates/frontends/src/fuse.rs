//! FUSE: a root directory with one regular file per volume, spoken raw over `/dev/fuse`, sans-IO.
//!
//! [`mount`] returns the descriptor; the owner reads one message at a time from it into a buffer of [`MESSAGE_MAX`]
//! bytes and gives it to [`Session::parse`]. Every answer is one message, written in one go: `write` of what `parse`
//! appended, or `writev` of a [`ReplyHeader`] and the payload of a read. `ENODEV` from a read means that the file
//! system has been unmounted. Nothing here depends on that transport.
//!
//! A write's payload starts [`WRITE_HEADER`] bytes into the message, always. An owner that reads (`readv`) so many
//! bytes to one place and the rest to a buffer has every payload in a buffer without copying it
//! ([`Session::parse_write`]).
//!
//! Where the kernel has FUSE over io_uring (Linux 6.14, if its parameter `enable_uring` is set), requests need no read
//! and no write: kernel and server share *slots*, a header of [`SLOT_HEADER`] bytes and a payload buffer each. A
//! session that was made [`Session::wanting_slots`] and whose `INIT` found a kernel that agrees is given each filled
//! slot by [`Session::parse_slot`]; [`commit`] puts the answer there.
//!
//! The files behave like block devices opened with `O_DIRECT`: no page cache, fixed size, several requests at once,
//! whole sectors only, and memory aligned to sectors (else the kernel cuts long requests in the middle of one).
//! `FALLOC_FL_PUNCH_HOLE` becomes [`Kind::WriteZeroes`](crate::Kind::WriteZeroes) that may unmap, and not a discard:
//! the caller is promised zeroes, and the loop driver uses it for the block layer's "write zeroes" too.
//!
//! A session [`Session::with_doors`] has a second kind of entry: *doors*, block device nodes with the volumes' numbers
//! for names, each leading to the device that stands on the volume's file (which is not listed then, and has a name
//! that only its owner knows). Who asks for a door waits until it is answered ([`Event::Knock`]).
//!
//! A thread that serves these files must not touch them, nor a loop device on them, nor wait for one that does; see
//! [`loopdev`](crate::loopdev). Under memory pressure the kernel writes dirty pages back through this process: it
//! should lock its memory and set `PR_SET_IO_FLUSHER`.

mod abi;
pub mod absent;
mod door;
pub mod facts;
mod host;
pub mod ledger;
mod mount;
mod node;
mod session;
#[cfg(test)]
mod session_tests;
mod slot;

pub use crate::sys::{read_parts, write_message};
use abi::{NOTIFY_RESEND, OUT_HEADER};
pub use abi::{ReplyHeader, SLOT_HEADER};
pub use door::{Call, Caller, Door, Intent, Knock, Question, Ran};
pub use mount::{is_mounted, mount, mount_with_devices, unmount};
pub(crate) use node::open as open_device;
pub use session::{Event, Session, file_name};
pub use slot::commit;

/// What a connection promises the kernel for as long as it lasts: the numbers of nodes and handles, the answers to
/// `INIT` and `OPEN`. Who takes a connection over must promise the same; a change of them is another number.
pub const CONTRACT: u32 = 2;

/// The message that makes the kernel hand out once more what was read from the connection and not answered, before
/// anything else. For who takes a connection over, once, before its first read ([`Session::can_resend`]).
#[must_use]
pub fn resend() -> [u8; OUT_HEADER] {
    let mut message = [0; OUT_HEADER];
    message[..4].copy_from_slice(&(OUT_HEADER as u32).to_ne_bytes());
    message[4..8].copy_from_slice(&NOTIFY_RESEND.to_ne_bytes());
    message
}

/// Longest payload of one read or write in bytes.
pub const PAYLOAD_MAX: usize = 1 << 20;
/// The same where requests come in slots: each slot has a payload buffer of this size.
pub const SLOT_PAYLOAD_MAX: usize = 128 << 10;
/// Bytes in front of a write's payload.
pub const WRITE_HEADER: usize = abi::IN_HEADER + abi::WRITE_IN;
/// The read buffer must be this large in bytes; with a smaller one the kernel refuses to deliver a long write.
pub const MESSAGE_MAX: usize = WRITE_HEADER + PAYLOAD_MAX;
