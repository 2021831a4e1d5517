//! A vectored message: small pieces copied into an arena, large ones by reference to pool buffers.

use crate::buffers::Span;
use std::io::IoSlice;

/// Pieces that go out with one system call, in order. Reusable: [`Message::clear`] keeps its memory.
#[derive(Default)]
pub struct Message {
    pieces: Vec<Piece>,
    arena: Vec<u8>,
    /// Bytes of the whole message that were sent.
    sent: usize,
    len: usize,
    /// For the kernel; rebuilt by `prepare`.
    iovecs: Vec<libc::iovec>,
    header: Option<Box<libc::msghdr>>,
}

enum Piece {
    Copied { at: usize, len: usize },
    Shared(Span),
}

/// Pieces per message: the kernel's IOV_MAX.
const MAX_PIECES: usize = 1024;

impl Message {
    /// An empty message.
    #[must_use]
    pub fn new() -> Message {
        Message::default()
    }

    /// Appends a copy of `bytes`.
    pub fn copy(&mut self, bytes: &[u8]) {
        let at = self.arena.len();
        self.arena.extend_from_slice(bytes);
        self.len += bytes.len();
        match self.pieces.last_mut() {
            Some(Piece::Copied { len, .. }) => *len += bytes.len(),
            _ => self.pieces.push(Piece::Copied { at, len: bytes.len() }),
        }
    }

    /// Appends bytes that `write` puts at the end of the given vector (which it must only extend).
    pub fn copy_with(&mut self, write: impl FnOnce(&mut Vec<u8>)) {
        let at = self.arena.len();
        write(&mut self.arena);
        let added = self.arena.len().checked_sub(at).expect("the writer only appends");
        self.len += added;
        match self.pieces.last_mut() {
            Some(Piece::Copied { len, .. }) => *len += added,
            _ => self.pieces.push(Piece::Copied { at, len: added }),
        }
    }

    /// Appends a part of a pool buffer without copying.
    pub fn share(&mut self, span: Span) {
        self.len += span.len();
        self.pieces.push(Piece::Shared(span));
    }

    /// Bytes that are not yet sent.
    #[must_use]
    pub fn remaining(&self) -> usize {
        self.len - self.sent
    }

    /// Has everything been sent?
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.remaining() == 0
    }

    /// Should no more be added? (What exceeds the kernel's limit per call goes with the next one.)
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.pieces.len() + 2 > MAX_PIECES / 2
    }

    /// Notes that the first `n` unsent bytes are sent. Panics if there are fewer.
    pub fn advance(&mut self, n: usize) {
        assert!(n <= self.remaining(), "{n} bytes sent of {}", self.remaining());
        self.sent += n;
    }

    /// Forgets all pieces and keeps the memory.
    pub fn clear(&mut self) {
        self.pieces.clear();
        self.arena.clear();
        (self.sent, self.len) = (0, 0);
    }

    /// The header that sendmsg wants, pointing at what is not yet sent. Valid until the message changes or moves out
    /// of its box's owner.
    pub(super) fn prepare(&mut self) -> *const libc::msghdr {
        self.build_iovecs();
        let header = self.header.get_or_insert_with(|| {
            // SAFETY: msghdr is plain data for which all zeroes is a valid value (no name, no control data).
            Box::new(unsafe { std::mem::zeroed() })
        });
        header.msg_iov = self.iovecs.as_mut_ptr();
        header.msg_iovlen = self.iovecs.len() as _;
        &raw const **header
    }

    /// The vector that writev wants, likewise.
    pub(super) fn prepare_iovecs(&mut self) -> (*const libc::iovec, u32) {
        self.build_iovecs();
        (self.iovecs.as_ptr(), self.iovecs.len() as u32)
    }

    /// The pieces that are not yet sent.
    pub(super) fn parts(&mut self) -> &[IoSlice<'_>] {
        self.build_iovecs();
        // SAFETY: IoSlice is guaranteed to have the layout of iovec. Each was just built from a piece that the message
        // owns, which does not change as long as the message is borrowed.
        unsafe { std::slice::from_raw_parts(self.iovecs.as_ptr().cast(), self.iovecs.len()) }
    }

    fn build_iovecs(&mut self) {
        self.iovecs.clear();
        let mut skip = self.sent;
        for piece in &self.pieces {
            if self.iovecs.len() == MAX_PIECES {
                break;
            }
            let (base, len) = match piece {
                Piece::Copied { at, len } => (self.arena[*at..].as_ptr().cast_mut(), *len),
                Piece::Shared(span) => (span.address(), span.len()),
            };
            if skip >= len {
                skip -= len;
                continue;
            }
            let iov_base = base.wrapping_add(skip).cast();
            self.iovecs.push(libc::iovec { iov_base, iov_len: len - skip });
            skip = 0;
        }
    }
}

impl std::fmt::Debug for Message {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Message({} pieces, {} of {} bytes sent)", self.pieces.len(), self.sent, self.len)
    }
}
