//! Sequential streams of writes, whose next extents are made hot before they are reached
//! (`docs/spec/data-path-and-resync.md` 12.4 #3).

use crate::request::{EXTENT_SECTORS, extents};
use std::ops::Range;
use units::{Sector, SectorRange};

/// The streams that were seen last.
#[derive(Debug, Default)]
pub(crate) struct Streams {
    seen: [Stream; 4],
    oldest: usize,
}

#[derive(Clone, Copy, Debug, Default)]
struct Stream {
    /// The extent that its last write touched.
    at: u32,
    /// Where its last write ended.
    end: Sector,
    /// Sectors up to there that were written one after the other.
    row: u64,
    /// Extents to prepare in one go.
    window: u32,
    /// All extents before this one are prepared.
    prepared: u32,
}

/// What is prepared first. A disk may let a transaction wait until the head comes by, and the stream must not arrive
/// before.
const FIRST: u32 = 16;
/// One transaction takes 64 changes; one is left for whoever needs it at once.
const LARGEST: u32 = 63;
/// Sectors in a row that make a stream before its first extent ends: the transaction for the next ones then follows
/// that for the first one, and a disk seeks once for both.
const ROW: u64 = EXTENT_SECTORS / 2;

impl Streams {
    /// A write touches `range`. Returns the extents to make hot now, if the write is part of a stream (one goes on to
    /// another extent, or has filled half of one in a row) that has used up three quarters of what was prepared for it:
    /// each transaction costs a disk two seeks, so there are to be few. `limit`: as many as may be prepared and not
    /// used.
    pub(crate) fn note(&mut self, range: SectorRange, limit: u32) -> Range<u32> {
        let none = 0..0;
        let (_, extent) = extents(range);
        let Some(stream) = self.seen.iter_mut().find(|s| s.at == extent || s.at + 1 == extent) else {
            let row = range.end.0 - range.start.0;
            self.seen[self.oldest] = Stream { at: extent, end: range.end, row, window: 0, prepared: extent + 1 };
            self.oldest = (self.oldest + 1) % self.seen.len();
            return none;
        };
        let begun = stream.row >= ROW;
        stream.row = range.end.0 - range.start.0 + if stream.end == range.start { stream.row } else { 0 };
        stream.end = range.end;
        if stream.at == extent && (begun || stream.row < ROW) {
            return none;
        }
        stream.at = extent;
        stream.prepared = stream.prepared.max(extent + 1);
        let left = stream.prepared - (extent + 1);
        if left > stream.window / 4 {
            return none;
        }
        stream.window = (stream.window * 4).clamp(FIRST, LARGEST).min(limit - limit / 4).max(1);
        let from = stream.prepared;
        stream.prepared = from.saturating_add(stream.window);
        from..stream.prepared
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(of: u32, from: u64, sectors: u64) -> SectorRange {
        let start = u64::from(of) * EXTENT_SECTORS + from;
        SectorRange { start: Sector(start), end: Sector(start + sectors) }
    }

    #[test]
    fn a_stream_is_never_caught_up_with() {
        for step in [8, 256, 2048] {
            let (mut streams, mut hot, mut transactions) = (Streams::default(), 0, 0);
            for extent in 0..1000 {
                for from in (0..EXTENT_SECTORS).step_by(step) {
                    let wanted = streams.note(part(extent, from, step as u64), 154);
                    assert!(wanted.end <= extent + 154);
                    if !wanted.is_empty() {
                        transactions += 1;
                        hot = wanted.end;
                    }
                }
                assert!(extent < hot, "extent {extent} was not prepared");
            }
            assert!(transactions <= 17, "{transactions}");
        }
    }

    #[test]
    fn a_stream_that_leaves_holes_is_one_from_its_second_extent_on() {
        let mut streams = Streams::default();
        for from in (0..EXTENT_SECTORS).step_by(16) {
            assert!(streams.note(part(5, from, 8), 154).is_empty());
        }
        assert_eq!(streams.note(part(6, 0, 8), 154), 7..7 + FIRST);
        assert!(streams.note(part(6, 16, 8), 154).is_empty(), "nothing new within an extent");
    }

    #[test]
    fn large_writes_at_random_are_no_stream() {
        let mut streams = Streams::default();
        let mut rng = units::Rng::new(5);
        for _ in 0..1000 {
            let at = (rng.next_u64() % 100_000) as u32 * 2;
            for from in [0, 2048] {
                assert!(streams.note(part(at, 1024 + from, 2040), 154).is_empty());
            }
        }
    }

    #[test]
    fn four_streams_do_not_disturb_each_other() {
        let mut streams = Streams::default();
        for step in 0..200 {
            for start in [0, 1000, 2000, 3000] {
                streams.note(part(start + step, 0, 8), 1000);
            }
        }
        assert!(streams.seen.iter().all(|s| s.at % 1000 == 199 && s.window == LARGEST), "{streams:?}");
    }

    #[test]
    fn random_writes_prepare_nothing() {
        let mut streams = Streams::default();
        let mut rng = units::Rng::new(3);
        for _ in 0..1000 {
            let at = (rng.next_u64() % 100_000) as u32 * 2;
            assert!(streams.note(part(at, rng.next_u64() % 1000 * 8, 8), 100).is_empty());
        }
    }
}
