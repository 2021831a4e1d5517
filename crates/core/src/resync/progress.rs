//! How far a resync or verify is, and how fast (spec 7.12).

use super::Block;
use crate::Resource;
use crate::resync::Replication;
use std::collections::VecDeque;
use units::{Duration, Instant, NodeId, VolumeNr};

/// Distance between two marks, and their number: speeds are over the last seconds, not since the start.
const STEP: Duration = Duration::from_secs(1);
const MOST: usize = 16;
/// The status is told to whoever watches so often.
const REPORT: Duration = Duration::from_millis(500);

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

    fn paused_until(&self, now: Instant) -> Duration {
        self.paused + self.paused_since.map_or(Duration(0), |t| now.since(t))
    }

    /// Is it time to tell?
    fn note(&mut self, now: Instant, left: u64) -> bool {
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
    fn since(&self, now: Instant, left: u64) -> [(Duration, u64); 2] {
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

impl Resource {
    pub(super) fn note_progress(&mut self, i: NodeId, d: VolumeNr) {
        let left = self.work_left(i, d);
        let now = self.now;
        if self.connections[i].peer_devices[d].resync.marks.note(now, left) {
            self.status_changed = true;
        }
        if now.since(self.devices[d].last_lazy_bitmap) >= Duration::from_secs(2) {
            self.devices[d].last_lazy_bitmap = now;
            self.write_bitmap(d);
        }
    }

    fn work_left(&self, i: NodeId, d: VolumeNr) -> u64 {
        self.work(i, d).left / 4096
    }

    pub(crate) fn resync_paused(&mut self, i: NodeId, d: VolumeNr, on: bool) {
        let (now, left) = (self.now, self.work_left(i, d));
        self.connections[i].peer_devices[d].resync.marks.pause(now, left, on);
    }

    /// What most of what is on its way waits for. `None`: nothing is on its way, and this node is the one to ask.
    pub(crate) fn slowed_by(&self, i: NodeId, d: VolumeNr) -> Option<SlowedBy> {
        let rs = &self.connections[i].peer_devices[d].resync;
        let replication = self.state.pair(i, d).replication;
        let held = rs.controller.as_ref().and_then(|c| c.slowed_by(self.now));
        let held = held.or_else(|| rs.brake.as_ref().and_then(|b| b.slowed_by(self.now)));
        let bytes = |counts: fn(&Block) -> bool| -> u64 {
            rs.blocks.values().filter(|b| counts(b)).map(|b| b.range.len().0).sum()
        };
        let (disk, peer) = (bytes(|b| b.on_disk.is_some()), bytes(Block::is_awaited));
        held.or(match (disk, peer) {
            (0, 0) => {
                matches!(replication, Replication::SyncSource | Replication::VerifyT).then_some(SlowedBy::Requests)
            }
            _ if disk >= peer => Some(SlowedBy::Disk),
            _ => Some(SlowedBy::Peer),
        })
    }

    pub(crate) fn progress(&self, i: NodeId, d: VolumeNr) -> Progress {
        let left = self.work_left(i, d);
        let own = &self.connections[i].peer_devices[d].resync.marks;
        let marks = own.since(self.now, left);
        let (time, bits) = marks[0];
        let rate = if time.as_millis() == 0 { 0 } else { bits * 4 * 1000 / time.as_millis() };
        Progress { left, paused: own.paused_until(self.now), marks, rate }
    }
}
