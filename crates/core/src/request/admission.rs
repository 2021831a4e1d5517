//! What waits of a device's requests, and what holds it back.

use crate::merging::{Merging, Waiting};
use crate::request::read::PartWaiting;
use crate::request::write::NewWrite;
use std::collections::VecDeque;
use units::{IntervalSet, SectorRange};

/// Requests that wait, and ranges that hold others back.
#[derive(Debug, Default)]
pub(crate) struct Admission {
    /// Requests not looked at yet, in order of arrival.
    pub(crate) incoming: VecDeque<Waiting>,
    /// The same for parts of reads that had begun when I/O froze.
    pub(crate) parts_waiting: Vec<PartWaiting>,
    pub(super) merging: Merging,
    /// Writes that wait for an overlapping one.
    pub(crate) blocked: VecDeque<NewWrite>,
    /// Ranges of application writes from admission to completion; the value is the request's key.
    pub(crate) writing: IntervalSet<()>,
    /// Ranges of peer writes between their arrival and the end of their disk write.
    pub(crate) peer_writing: IntervalSet<()>,
    /// Ranges that a resync holds: requested (target) or being served (source).
    pub(crate) resyncing: IntervalSet<()>,
    next_interval: u64,
    /// Something left one of the interval sets: look at `blocked` and its like again.
    pub(crate) recheck: bool,
}

impl Admission {
    /// Is there no request that has not begun?
    pub(super) fn is_idle(&self) -> bool {
        self.incoming.is_empty() && self.parts_waiting.is_empty() && self.blocked.is_empty()
    }

    /// Does the next request continue one of this range?
    pub(super) fn is_followed(&self, range: SectorRange) -> bool {
        self.incoming.front().is_some_and(|next| next.request.sector == range.end)
    }

    /// A name for a range that is put into one of the sets.
    pub(crate) fn interval_id(&mut self) -> u64 {
        self.next_interval += 1;
        self.next_interval
    }
}
