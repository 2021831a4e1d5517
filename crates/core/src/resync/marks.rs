//! How fast a resync or verify goes, and what it waits for.

use std::collections::VecDeque;
use units::{Duration, Instant};

/// Distance between two marks, and their number: speeds are over the last seconds, not since the start.
pub(super) const STEP: Duration = Duration::from_secs(1);

pub(super) const MOST: usize = 16;

/// The status is told to whoever watches so often.
pub(super) const REPORT: Duration = Duration::from_millis(500);

/// (time, bits left), newest last.
#[derive(Debug, Default)]
pub(super) struct Marks {
    marks: VecDeque<(Instant, u64)>,
    reported: Instant,
    paused_since: Option<Instant>,
    /// Time spent paused.
    pub(super) paused: Duration,
}

impl Marks {
    pub(super) fn new(now: Instant, left: u64) -> Marks {
        Marks { marks: VecDeque::from([(now, left)]), reported: now, ..Marks::default() }
    }

    /// A pause begins or ends; speeds are measured anew after it.
    pub(super) fn pause(&mut self, now: Instant, left: u64, on: bool) {
        match (on, self.paused_since) {
            (true, None) => self.paused_since = Some(now),
            (false, Some(since)) => {
                self.paused = self.paused + now.since(since);
                self.paused_since = None;
                self.marks = VecDeque::from([(now, left)]);
            }
            _ => {}
        }
    }

    pub(super) fn paused_until(&self, now: Instant) -> Duration {
        self.paused + self.paused_since.map_or(Duration(0), |t| now.since(t))
    }

    /// Is it time to tell?
    pub(super) fn note(&mut self, now: Instant, left: u64) -> bool {
        if self.marks.back().is_none_or(|(t, _)| now.since(*t) >= STEP) {
            self.marks.push_back((now, left));
            if self.marks.len() > MOST {
                self.marks.pop_front();
            }
        }
        let due = now.since(self.reported) >= REPORT;
        if due {
            self.reported = now;
        }
        due
    }

    /// Time and bits since the newest mark but one, and since the oldest.
    pub(super) fn since(&self, now: Instant, left: u64) -> [(Duration, u64); 2] {
        let from = |mark: Option<&(Instant, u64)>| {
            mark.map_or((Duration(0), 0), |(t, then)| (now.since(*t), then.saturating_sub(left)))
        };
        let newest = self.marks.len().saturating_sub(2);
        [from(self.marks.get(newest)), from(self.marks.front())]
    }
}

/// What a running resync or verify waits for most, as far as this node can tell.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SlowedBy {
    /// A configured rate: `c-max-rate`, or `resync-rate` of the fixed controller.
    Limit,
    /// Applications' I/O, which it makes way for.
    Application,
    /// This node's disk.
    Disk,
    /// The peer's answers: the network or the peer's disk.
    Peer,
    /// The peer's next request: it asks for no more at present.
    Requests,
}

/// What the status shows of a running resync or verify; amounts are bits.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Progress {
    pub(crate) left: u64,
    pub(crate) paused: Duration,
    pub(crate) marks: [(Duration, u64); 2],
    /// KiB/s over the last seconds.
    pub(crate) rate: u64,
}
