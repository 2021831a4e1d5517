//! The kernel's FUSE ABI (`<linux/fuse.h>`, version 7): numbers, and structures to and from bytes in native order.

use std::ops::Range;

use super::WRITE_HEADER;
use crate::{Errno, Kind, Request};

pub(super) const MAJOR: u32 = 7;
/// What this crate speaks.
pub(super) const MINOR: u32 = 36;
/// The oldest that has everything this crate relies on (`MAX_PAGES`; Linux 4.20).
pub(super) const MINOR_OLDEST: u32 = 28;

pub(super) const ROOT: u64 = 1;

pub(super) const IN_HEADER: usize = 40;
pub(super) const WRITE_IN: usize = 40;
pub(super) const OUT_HEADER: usize = 16;

pub(super) mod opcode {
    pub(crate) const LOOKUP: u32 = 1;
    pub(crate) const FORGET: u32 = 2;
    pub(crate) const GETATTR: u32 = 3;
    pub(crate) const SETATTR: u32 = 4;
    pub(crate) const MKNOD: u32 = 8;
    pub(crate) const MKDIR: u32 = 9;
    pub(crate) const UNLINK: u32 = 10;
    pub(crate) const RMDIR: u32 = 11;
    pub(crate) const RENAME: u32 = 12;
    pub(crate) const LINK: u32 = 13;
    pub(crate) const SYMLINK: u32 = 6;
    pub(crate) const OPEN: u32 = 14;
    pub(crate) const READ: u32 = 15;
    pub(crate) const WRITE: u32 = 16;
    pub(crate) const STATFS: u32 = 17;
    pub(crate) const RELEASE: u32 = 18;
    pub(crate) const FSYNC: u32 = 20;
    pub(crate) const INIT: u32 = 26;
    pub(crate) const OPENDIR: u32 = 27;
    pub(crate) const READDIR: u32 = 28;
    pub(crate) const RELEASEDIR: u32 = 29;
    pub(crate) const CREATE: u32 = 35;
    pub(crate) const INTERRUPT: u32 = 36;
    pub(crate) const DESTROY: u32 = 38;
    pub(crate) const IOCTL: u32 = 39;
    pub(crate) const NOTIFY_REPLY: u32 = 41;
    pub(crate) const BATCH_FORGET: u32 = 42;
    pub(crate) const FALLOCATE: u32 = 43;
    pub(crate) const RENAME2: u32 = 45;
    pub(crate) const LSEEK: u32 = 46;
}

const ASYNC_READ: u32 = 1;
const BIG_WRITES: u32 = 1 << 5;
const ASYNC_DIO: u32 = 1 << 15;
const PARALLEL_DIROPS: u32 = 1 << 18;
pub(super) const MAX_PAGES: u32 = 1 << 22;
/// There are more flags than fit into 32 bits.
pub(super) const INIT_EXT: u32 = 1 << 30;
/// What was read and not answered can be asked for once more (Linux 6.9). Of the second word of flags.
pub(super) const HAS_RESEND: u32 = 1 << (39 - 32);
/// The notification that asks for them; notifications go where answers have an error, and have no request's number.
pub(super) const NOTIFY_RESEND: u32 = 7;
/// Requests may travel through an io_uring (Linux 6.14). Of the second word of flags.
pub(super) const OVER_IO_URING: u32 = 1 << (41 - 32);
/// What we accept if the kernel offers it. Without `WRITEBACK_CACHE`: no data may sit where we do not see it.
pub(super) const WANTED: u32 = ASYNC_READ | BIG_WRITES | ASYNC_DIO | PARALLEL_DIROPS | MAX_PAGES;

pub(super) const FATTR_MODE: u32 = 1;
pub(super) const FATTR_UID: u32 = 1 << 1;
pub(super) const FATTR_GID: u32 = 1 << 2;
pub(super) const FATTR_SIZE: u32 = 1 << 3;

/// No page cache, no `FLUSH` at close, and writes to one file do not wait for each other.
pub(super) const OPEN_FLAGS: u32 = FOPEN_DIRECT_IO | FOPEN_NOFLUSH | FOPEN_PARALLEL_DIRECT_WRITES;
const FOPEN_DIRECT_IO: u32 = 1;
const FOPEN_NOFLUSH: u32 = 1 << 5;
const FOPEN_PARALLEL_DIRECT_WRITES: u32 = 1 << 6;

/// A message's fixed header, and what follows it.
#[derive(Clone, Copy)]
pub(super) struct Message<'a> {
    pub(super) opcode: u32,
    pub(super) unique: u64,
    pub(super) node: u64,
    /// The thread that waits for the answer; 0: it is not to be seen from here.
    pub(super) caller: u32,
    /// The operation's own header and, unless there is a `payload`, what follows it.
    body: &'a [u8],
    /// What follows the operation's header, of a message in a slot.
    payload: Option<&'a [u8]>,
}

impl<'a> Message<'a> {
    /// `None` if there is no complete header, or if it lies about the length.
    pub(super) fn parse(bytes: &'a [u8]) -> Option<Message<'a>> {
        let (header, body) = bytes.split_at_checked(IN_HEADER)?;
        let message = Message::of_header(header, body, None);
        (u32_at(header, 0) as usize == bytes.len()).then_some(message)
    }

    /// A write whose payload was read to a place of its own. `None` if it is something else; `Some(None)` if it lies
    /// about the length.
    pub(super) fn write_in_parts(header: &'a [u8; WRITE_HEADER], payload: &'a [u8]) -> Option<Option<Message<'a>>> {
        let (own, operation) = header.split_at(IN_HEADER);
        let message = Message::of_header(own, operation, Some(payload));
        let whole = u32_at(own, 0) as usize == header.len() + payload.len();
        (message.opcode == opcode::WRITE).then_some(whole.then_some(message))
    }

    /// A request in a slot: the headers have places of their own there, and the header's length is not to be used.
    pub(super) fn in_slot(header: &'a [u8; SLOT_HEADER], payload: &'a [u8]) -> Message<'a> {
        let (own, operation) = (&header[..IN_HEADER], &header[SLOT_OPERATION..SLOT_ENTRY]);
        Message::of_header(own, operation, Some(payload))
    }

    fn of_header(header: &[u8], body: &'a [u8], payload: Option<&'a [u8]>) -> Message<'a> {
        let (opcode, unique, node) = (u32_at(header, 4), u64_at(header, 8), u64_at(header, 16));
        Message { opcode, unique, node, caller: u32_at(header, 32), body, payload }
    }

    /// The 32-bit field `at` bytes into the body.
    pub(super) fn u32(&self, at: usize) -> Result<u32, Errno> {
        let bytes = self.body.get(at..).and_then(|rest| rest.first_chunk()).ok_or(Errno::EIO)?;
        Ok(u32::from_ne_bytes(*bytes))
    }

    /// The 64-bit field `at` bytes into the body.
    pub(super) fn u64(&self, at: usize) -> Result<u64, Errno> {
        let bytes = self.body.get(at..).and_then(|rest| rest.first_chunk()).ok_or(Errno::EIO)?;
        Ok(u64::from_ne_bytes(*bytes))
    }

    /// The body as a name that ends with a zero byte.
    pub(super) fn name(&self) -> Result<&'a [u8], Errno> {
        self.payload.unwrap_or(self.body).split(|byte| *byte == 0).next().ok_or(Errno::EIO)
    }

    /// Where the data of a write is: in the payload, if there is one, else in the whole message.
    pub(super) fn written(&self) -> Option<Range<usize>> {
        match self.payload {
            Some(payload) => Some(0..payload.len()),
            None => Some(IN_HEADER + WRITE_IN..IN_HEADER + self.body.len()).filter(|r| r.start <= r.end),
        }
    }
}

pub(super) fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_ne_bytes(*bytes[at..].first_chunk().expect("inside a header of fixed size"))
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_ne_bytes(*bytes[at..].first_chunk().expect("inside a header of fixed size"))
}

/// The headers of a slot, `struct fuse_uring_req_header`: the message's, the operation's, and the slot's own.
pub const SLOT_HEADER: usize = SLOT_ENTRY + 32;
const SLOT_OPERATION: usize = 128;
const SLOT_ENTRY: usize = 256;

/// What the kernel says about the request in a slot: its name in a commit, and its payload's length.
pub(super) fn slot_entry(header: &[u8; SLOT_HEADER]) -> (u64, usize) {
    (u64_at(header, SLOT_ENTRY + 8), u32_at(header, SLOT_ENTRY + 16) as usize)
}

/// Puts the header of an answer into a slot, and how many bytes of payload go with it.
pub(super) fn answer_slot(header: &mut [u8; SLOT_HEADER], answer: &[u8], payload: usize) {
    header[..OUT_HEADER].copy_from_slice(answer);
    header[..4].copy_from_slice(&((OUT_HEADER + payload) as u32).to_ne_bytes());
    header[SLOT_ENTRY + 16..SLOT_ENTRY + 20].copy_from_slice(&(payload as u32).to_ne_bytes());
}

/// The bytes in front of an answer's payload; dereferences to them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReplyHeader {
    bytes: [u8; OUT_HEADER + 8],
    len: u8,
}

impl ReplyHeader {
    /// Answers a request. After a successful read, `payload_out` bytes follow in the same `writev`.
    pub(super) fn new(request: &Request, result: Result<(), Errno>) -> ReplyHeader {
        // A successful write is answered with the length that was written.
        let written = if result.is_ok() { request.payload_in() } else { 0 };
        let own = OUT_HEADER + if written > 0 { 8 } else { 0 };
        let payload = if result.is_ok() { request.payload_out() } else { 0 };
        let mut bytes = [0; OUT_HEADER + 8];
        bytes[..OUT_HEADER].copy_from_slice(&out_header(own as u32 + payload, result.err(), request.tag));
        bytes[OUT_HEADER..OUT_HEADER + 4].copy_from_slice(&written.to_ne_bytes());
        ReplyHeader { bytes, len: own as u8 }
    }
}

impl std::ops::Deref for ReplyHeader {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }
}

/// The header of an answer of `len` bytes in all.
pub(super) fn out_header(len: u32, error: Option<Errno>, unique: u64) -> [u8; OUT_HEADER] {
    let mut bytes = [0; OUT_HEADER];
    bytes[..4].copy_from_slice(&len.to_ne_bytes());
    bytes[4..8].copy_from_slice(&error.map_or(0, |errno| -errno.raw()).to_ne_bytes());
    bytes[8..].copy_from_slice(&unique.to_ne_bytes());
    bytes
}

/// Builds the body of an answer, field by field.
pub(super) struct Body<'a>(pub(super) &'a mut Vec<u8>);

impl Body<'_> {
    pub(super) fn u16(&mut self, values: &[u16]) -> &mut Self {
        values.iter().for_each(|value| self.0.extend_from_slice(&value.to_ne_bytes()));
        self
    }

    pub(super) fn u32(&mut self, values: &[u32]) -> &mut Self {
        values.iter().for_each(|value| self.0.extend_from_slice(&value.to_ne_bytes()));
        self
    }

    pub(super) fn u64(&mut self, values: &[u64]) -> &mut Self {
        values.iter().for_each(|value| self.0.extend_from_slice(&value.to_ne_bytes()));
        self
    }
}

/// `struct fuse_attr`.
pub(super) struct Attr {
    pub(super) node: u64,
    pub(super) size: u64,
    pub(super) mode: u32,
    pub(super) links: u32,
    pub(super) owner: (u32, u32),
    pub(super) block: u32,
    /// What a device's node leads to.
    pub(super) device: u32,
}

impl Attr {
    pub(super) fn emit(&self, body: &mut Body<'_>) {
        let (uid, gid) = self.owner;
        body.u64(&[self.node, self.size, self.size / 512]).u64(&[0; 3]).u32(&[0; 3]);
        body.u32(&[self.mode, self.links, uid, gid, self.device, self.block, 0]);
    }
}

/// One `struct fuse_dirent`, padded. False: it does not fit in `room` bytes, and nothing is added.
pub(super) fn emit_entry_of_directory(body: &mut Body<'_>, entry: &DirectoryEntry<'_>, room: usize) -> bool {
    const HEADER: usize = 24;
    let len = (HEADER + entry.name.len()).next_multiple_of(8);
    if len > room {
        return false;
    }
    body.u64(&[entry.node, entry.next]).u32(&[entry.name.len() as u32, u32::from(entry.kind)]);
    body.0.extend_from_slice(entry.name);
    body.0.resize(body.0.len() + len - HEADER - entry.name.len(), 0);
    true
}

pub(super) struct DirectoryEntry<'a> {
    pub(super) node: u64,
    /// Where the next one is found.
    pub(super) next: u64,
    pub(super) kind: u8,
    pub(super) name: &'a [u8],
}

/// What a request of the block layer became here: `fallocate` modes.
pub(super) fn fallocate_kind(mode: u32) -> Option<Kind> {
    let mode = mode as i32 & !libc::FALLOC_FL_KEEP_SIZE;
    match mode {
        libc::FALLOC_FL_PUNCH_HOLE => Some(Kind::WriteZeroes { may_unmap: true, fast: false }),
        libc::FALLOC_FL_ZERO_RANGE => Some(Kind::WriteZeroes { may_unmap: false, fast: false }),
        _ => None,
    }
}
