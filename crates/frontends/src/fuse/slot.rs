//! Answers in slots (FUSE over io_uring).

use super::SLOT_HEADER;
use super::abi::{OUT_HEADER, answer_slot, out_header, slot_entry};
use crate::Errno;

/// Puts an answer into the slot that its request came in: `answer` is what [`Session::parse_slot`] appended, or a
/// [`ReplyHeader`] with the pieces of a read behind it; empty means that nothing was made of the request, which is
/// answered with `EIO`. Returns the name by which the kernel knows the request, for
/// `FUSE_IO_URING_CMD_COMMIT_AND_FETCH`.
///
/// Panics if the payload is longer than the slot's.
///
/// [`Session::parse_slot`]: super::Session::parse_slot
/// [`ReplyHeader`]: super::ReplyHeader
pub fn commit<'a>(
    header: &mut [u8; SLOT_HEADER],
    payload: &mut [u8],
    answer: &'a [u8],
    pieces: impl IntoIterator<Item = &'a [u8]>,
) -> u64 {
    let id = slot_entry(header).0;
    let Some((own, body)) = answer.split_at_checked(OUT_HEADER) else {
        answer_slot(header, &out_header(OUT_HEADER as u32, Some(Errno::EIO), id), 0);
        return id;
    };
    let mut filled = 0;
    for piece in std::iter::once(body).chain(pieces) {
        payload[filled..filled + piece.len()].copy_from_slice(piece);
        filled += piece.len();
    }
    answer_slot(header, own, filled);
    id
}
