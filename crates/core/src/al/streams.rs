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
    /// Extents to prepare in one go.
    window: u32,
    /// All extents before this one are prepared.
    prepared: u32,
}

/// What is prepared first: little, as it may be no stream. Then four times as much each time.
const FIRST: u32 = 4;
/// One transaction takes 64 changes; one is left for whoever needs it at once.
const LARGEST: u32 = 63;

impl Streams {
    /// A write touches `extent`. Returns the extents to make hot now, if the write is part of a stream, which is one
    /// from its second extent on, that has used up three quarters of what was prepared for it: each transaction costs a
    /// disk two seeks, so it is to be as large as it can. `limit`: as many as may be prepared and not used.
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

    #[test]
    fn a_stream_is_never_caught_up_with() {
        let (mut streams, mut hot, mut transactions) = (Streams::default(), 0, 0);
        for extent in 0..1000 {
            let wanted = streams.note(extent, 100);
            assert!(wanted.end <= extent + 100);
            if extent > 1 {
                assert!(extent < hot, "extent {extent} was not prepared");
            }
            if !wanted.is_empty() {
                transactions += 1;
                hot = wanted.end;
            }
            assert!(streams.note(extent, 100).is_empty(), "nothing new within an extent");
        }
        assert!(transactions <= 18, "{transactions}");
    }

    #[test]
    fn four_streams_do_not_disturb_each_other() {
        let mut streams = Streams::default();
        for step in 0..100 {
            for start in [0, 1000, 2000, 3000] {
                streams.note(start + step, 100);
            }
        }
        assert!(streams.seen.iter().all(|s| s.at % 1000 == 99 && s.window == LARGEST), "{streams:?}");
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
