//! A large request, done in parts.

use crate::api::{IoError, Segments};
use crate::request::write::Owners;

/// Something that was split: it ends when all parts have.
#[derive(Debug)]
pub(crate) struct Split {
    pub(super) owners: Owners,
    pub(super) left: u32,
    pub(super) result: Result<(), IoError>,
}

/// The pieces of `data` that hold bytes `from..from + len`.
pub(crate) fn slice(data: &Segments, from: u64, len: u64) -> Segments {
    let mut out = Segments::None;
    let (mut skip, mut want) = (from, len);
    for piece in data.as_slice() {
        let size = u64::from(piece.len);
        if skip >= size {
            skip -= size;
            continue;
        }
        let take = (size - skip).min(want);
        if take == 0 {
            break;
        }
        let mut part = *piece;
        part.offset += skip as u32;
        part.len = take as u32;
        out.append(Segments::One(part));
        skip = 0;
        want -= take;
    }
    out
}
