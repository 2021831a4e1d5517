//! The operations that a ring knows, and how they come back.

use super::{FuseSlot, Message};
use crate::buffers::Span;
use rustix::net::SocketAddrAny;
use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::rc::Rc;

/// A file that operations share; it closes when its last user is gone.
pub type Fd = Rc<OwnedFd>;

/// The offset for files that have none (sockets, `/dev/fuse`, eventfds).
pub const NO_OFFSET: u64 = u64::MAX;

/// One operation with everything it needs. Offsets and lengths are in bytes.
#[allow(missing_docs)]
#[derive(Debug)]
pub enum Op {
    /// Read into a buffer that nobody else refers to, at a byte offset.
    Read { fd: Fd, offset: u64, into: Span },
    /// Write at a byte offset; `durable`: the data is on stable storage when it completes (RWF_DSYNC).
    Write { fd: Fd, offset: u64, from: Span, durable: bool },
    /// Write several pieces with one request.
    WriteParts { fd: Fd, offset: u64, parts: Box<Message>, durable: bool },
    /// fdatasync.
    Flush { fd: Fd },
    /// Change the allocation of a byte range.
    Fallocate { fd: Fd, offset: u64, len: u64, mode: FallocateMode },
    /// Connect a socket.
    Connect { fd: Fd, to: PeerAddress },
    /// Accept connections until cancelled; [`Done::accepted`] gives each, or why nobody could be let in for the moment.
    Accept { fd: Fd },
    /// Receive at most the span's length; completes with 0 at the end of the stream.
    Recv { fd: Fd, into: Span, take: Take },
    /// Send the message; completes with the number of bytes sent, maybe fewer than all.
    Send { fd: Fd, message: Box<Message> },
    /// Wait until the file is readable (one shot).
    Readable { fd: Fd },
    /// Give a slot to a FUSE connection, with the answer to the request that it holds, if any; completes when the
    /// kernel has put a request there. Needs io_uring.
    FuseFetch { fd: Fd, slot: Box<FuseSlot> },
}

/// What an [`Op::Recv`] takes off its socket.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Take {
    /// What is there.
    Some,
    /// The same; but while waits stay awake a little that comes alone is only looked at, and taken off when the next
    /// wait begins. So the answer to it leaves before TCP's acknowledgement does. For TCP sockets.
    AnswerFirst,
    /// It need not complete before the span is full or the stream ends.
    Whole,
}

/// What [`Op::Fallocate`] does to the range; the file's length never changes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FallocateMode {
    /// Allocate blocks; contents stay.
    Reserve,
    /// Give the blocks back; reads as zeroes.
    PunchHole,
    /// Keep or make the range allocated; reads as zeroes.
    ZeroRange,
}

/// The name of an operation in flight, unique until its slot has been used 2^32 times.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct OpId {
    pub(super) slot: u32,
    pub(super) generation: u32,
}

/// A completion.
#[derive(Debug)]
pub struct Done<T> {
    /// Which operation.
    pub id: OpId,
    /// What the owner said it was for.
    pub token: T,
    pub(super) result: i32,
    /// What an [`Op::Accept`] brought: closed with the completion if nobody takes it.
    pub(super) socket: Option<OwnedFd>,
    /// The operation with its file and buffers; `None` if it stays armed and will complete again.
    pub op: Option<Op>,
}

/// A socket address in the kernel's form.
#[derive(Clone)]
pub struct PeerAddress {
    /// An operation that the kernel has points into it.
    pub(super) storage: Box<SocketAddrAny>,
}

impl<T> Done<T> {
    /// The operation's result: bytes, or 0.
    ///
    /// # Errors
    /// What the kernel reported.
    pub fn result(&self) -> io::Result<u32> {
        u32::try_from(self.result).map_err(|_| io::Error::from_raw_os_error(-self.result))
    }

    /// The socket that an [`Op::Accept`] brought. It can be taken once.
    ///
    /// # Errors
    /// What the kernel reported.
    pub fn accepted(&mut self) -> io::Result<OwnedFd> {
        self.result()?;
        self.socket.take().ok_or_else(|| io::Error::from_raw_os_error(libc::EBADF))
    }

    /// Was it cancelled?
    #[must_use]
    pub fn cancelled(&self) -> bool {
        self.result == -libc::ECANCELED
    }
}

impl Op {
    /// The file it is on.
    #[must_use]
    pub fn fd(&self) -> &Fd {
        match self {
            Op::Read { fd, .. }
            | Op::Write { fd, .. }
            | Op::WriteParts { fd, .. }
            | Op::Flush { fd }
            | Op::Fallocate { fd, .. }
            | Op::Connect { fd, .. }
            | Op::Accept { fd }
            | Op::Recv { fd, .. }
            | Op::Send { fd, .. }
            | Op::Readable { fd }
            | Op::FuseFetch { fd, .. } => fd,
        }
    }

    /// Payload bytes that it moves to or from a file.
    pub(super) fn moved_bytes(&self) -> usize {
        match self {
            Op::Read { into, .. } => into.len(),
            Op::Write { from, .. } => from.len(),
            Op::WriteParts { parts, .. } => parts.remaining(),
            _ => 0,
        }
    }

    /// The kernel must not write into memory that someone else may be reading.
    pub(super) fn assert_exclusive(&self) {
        if let Op::Read { into, .. } | Op::Recv { into, .. } = self {
            assert!(into.buf().is_sole(), "{:?} is shared and must not be read into", into.buf());
        }
    }
}

impl OpId {
    pub(super) const INLINE: OpId = OpId { slot: u32::MAX, generation: u32::MAX };

    pub(super) fn to_user_data(self) -> u64 {
        u64::from(self.generation) << 32 | u64::from(self.slot)
    }

    pub(super) fn from_user_data(data: u64) -> OpId {
        OpId { slot: data as u32, generation: (data >> 32) as u32 }
    }
}

impl FallocateMode {
    pub(super) fn flags(self) -> i32 {
        libc::FALLOC_FL_KEEP_SIZE
            | match self {
                FallocateMode::Reserve => 0,
                FallocateMode::PunchHole => libc::FALLOC_FL_PUNCH_HOLE,
                FallocateMode::ZeroRange => libc::FALLOC_FL_ZERO_RANGE,
            }
    }
}

impl From<SocketAddr> for PeerAddress {
    fn from(address: SocketAddr) -> PeerAddress {
        PeerAddress { storage: Box::new(address.into()) }
    }
}

impl std::fmt::Debug for PeerAddress {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "PeerAddress(family {})", self.storage.address_family().as_raw())
    }
}
