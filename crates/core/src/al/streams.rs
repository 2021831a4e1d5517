//! Sequential streams of writes, whose next extents are made hot before they are reached
//! (`docs/spec/data-path-and-resync.md` 12.4 #3).

use std::ops::Range;

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
    /// Extents in a row that it has walked through.
    run: u32,
    /// Extents to prepare in one go.
    window: u32,
    /// All extents before this one are prepared.
    prepared: u32,
}

/// A stream is one after so many extents in a row.
const RUN: u32 = 2;
/// One transaction takes 64 changes; one is left for whoever needs it at once.
const LARGEST: u32 = 63;

impl Streams {
    /// A write touches `extent`. Returns the extents to make hot now, if the write is part of a stream that is at half
    /// of what was prepared for it. `limit`: as many extents as may be prepared.
    pub(crate) fn note(&mut self, extent: u32, limit: u32) -> Range<u32> {
        let none = 0..0;
        let Some(stream) = self.seen.iter_mut().find(|s| s.at == extent || s.at + 1 == extent) else {
            self.seen[self.oldest] = Stream { at: extent, prepared: extent + 1, ..Stream::default() };
            self.oldest = (self.oldest + 1) % self.seen.len();
            return none;
        };
        if stream.at == extent {
            return none;
        }
        stream.at = extent;
        stream.run += 1;
        stream.prepared = stream.prepared.max(extent + 1);
        let left = stream.prepared - (extent + 1);
        if stream.run < RUN || left > stream.window / 2 {
            return none;
        }
        stream.window = (stream.window * 2).clamp(1, LARGEST.min(limit).max(1));
        let end = (extent + 1).saturating_add(stream.window);
        let from = stream.prepared;
        stream.prepared = end.max(from);
        from..stream.prepared
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stream_is_never_caught_up_with() {
        let (mut streams, mut hot, mut transactions) = (Streams::default(), 0, 0);
        for extent in 0..1000 {
            let wanted = streams.note(extent, 100);
            if extent > 3 {
                assert!(extent < hot, "extent {extent} was not prepared");
            }
            if !wanted.is_empty() {
                transactions += 1;
                hot = wanted.end;
            }
            assert!(streams.note(extent, 100).is_empty(), "nothing new within an extent");
        }
        assert!(transactions < 40, "{transactions}");
    }

    #[test]
    fn four_streams_do_not_disturb_each_other() {
        let mut streams = Streams::default();
        for step in 0..100 {
            for start in [0, 1000, 2000, 3000] {
                streams.note(start + step, 100);
            }
        }
        assert!(streams.seen.iter().all(|s| s.run == 99 && s.window == LARGEST), "{streams:?}");
    }

    #[test]
    fn random_writes_prepare_nothing() {
        let mut streams = Streams::default();
        let mut rng = units::Rng::new(3);
        for _ in 0..1000 {
            assert!(streams.note((rng.next_u64() % 100_000) as u32 * 2, 100).is_empty());
        }
    }
}
