//! Reply headers of the transmission phase.

use super::proto::*;
use crate::{Errno, Kind, Request};

/// Longest [`ReplyHeader`] in bytes.
pub const HEADER_MAX: usize = 32;

/// The bytes in front of a reply's payload; dereferences to them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReplyHeader {
    bytes: [u8; HEADER_MAX],
    len: u8,
}

/// A run of blocks in the answer to a block status request. Its default state is allocated data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// Bytes, not 0.
    pub len: u32,
    /// The range is not allocated.
    pub hole: bool,
    /// The range reads as zeroes.
    pub zero: bool,
}

/// The header for a finished request. A structured reply is one chunk that is also the last one. Only a read and an
/// error need one; what has nothing to say may be answered simply, which saves clients (libnbd) a system call per
/// request: they read a structured header in two parts.
pub(super) fn header(request: &Request, result: Result<(), Errno>, structured: bool) -> ReplyHeader {
    match (structured, request.kind, result) {
        (true, Kind::Read, Ok(())) => {
            // The length counts the offset field. A read is at most 32 MiB, so the sum cannot overflow.
            chunk(REPLY_OFFSET_DATA, request.tag, request.len + 8).put(&request.offset.to_be_bytes())
        }
        (true, _, Err(errno)) => error_chunk(request.tag, errno),
        (_, _, result) => simple(request.tag, result),
    }
}

pub(super) fn error(cookie: u64, errno: Errno, structured: bool) -> ReplyHeader {
    if structured { error_chunk(cookie, errno) } else { simple(cookie, Err(errno)) }
}

/// Appends a block status reply: the extents that lie in the first `limit` bytes, at most one if `one`.
pub(super) fn block_status(cookie: u64, extents: &[Extent], limit: u32, one: bool, out: &mut Vec<u8>) {
    let mut left = limit;
    let count = extents.iter().take(if one { 1 } else { usize::MAX }).take_while(|extent| {
        let starts_inside = left > 0 && extent.len > 0;
        left = left.saturating_sub(extent.len);
        starts_inside
    });
    let count = count.count();
    // Each extent has at least one byte of the limit, and the callers' extents are whole blocks: far below 2^29.
    out.extend_from_slice(
        &chunk(REPLY_BLOCK_STATUS, cookie, 4 + 8 * count as u32).put(&BASE_ALLOCATION_ID.to_be_bytes()),
    );
    let mut left = limit;
    for extent in &extents[..count] {
        let len = extent.len.min(left);
        left -= len;
        out.extend_from_slice(&len.to_be_bytes());
        out.extend_from_slice(&(u32::from(extent.hole) | u32::from(extent.zero) << 1).to_be_bytes());
    }
}

fn simple(cookie: u64, result: Result<(), Errno>) -> ReplyHeader {
    let errno = result.map_or_else(wire_errno, |()| 0);
    ReplyHeader::EMPTY.put(&SIMPLE_MAGIC.to_be_bytes()).put(&errno.to_be_bytes()).put(&cookie.to_be_bytes())
}

fn error_chunk(cookie: u64, errno: Errno) -> ReplyHeader {
    const MESSAGE_LEN: u16 = 0;
    chunk(REPLY_ERROR, cookie, 6).put(&wire_errno(errno).to_be_bytes()).put(&MESSAGE_LEN.to_be_bytes())
}

fn chunk(kind: u16, cookie: u64, len: u32) -> ReplyHeader {
    ReplyHeader::EMPTY
        .put(&STRUCTURED_MAGIC.to_be_bytes())
        .put(&REPLY_FLAG_DONE.to_be_bytes())
        .put(&kind.to_be_bytes())
        .put(&cookie.to_be_bytes())
        .put(&len.to_be_bytes())
}

impl ReplyHeader {
    const EMPTY: ReplyHeader = ReplyHeader { bytes: [0; HEADER_MAX], len: 0 };

    fn put(mut self, bytes: &[u8]) -> ReplyHeader {
        let at = usize::from(self.len);
        self.bytes[at..at + bytes.len()].copy_from_slice(bytes);
        self.len += bytes.len() as u8;
        self
    }
}

impl std::ops::Deref for ReplyHeader {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }
}
