//! The source's side of the speed of a resync: requests wait here, never the stream that they came on, so that the
//! target sees a slower source and asks less. And `c-min-rate`, which DRBD's planner and its source share.

use super::SlowedBy;
use super::floor::Floor;
use super::guard::{Guard, Scene};
use crate::config::{ResyncConfig, ResyncController};
use std::collections::VecDeque;
use units::{Duration, Instant};

/// Foreign sectors that count as activity.
const ACTIVE: u64 = 64;
/// Distance of the marks that `c-min-rate` measures by.
const MARK: Duration = Duration::from_secs(3);
/// So long a request waits at a source that brakes by `c-min-rate`.
const HOLD: Duration = Duration::from_millis(100);

/// What keeps a source from reading for its target.
#[derive(Debug)]
pub(crate) enum SourceBrake {
    Adaptive(Box<ByLatency>),
    Drbd(ByMinRate),
}

/// What a source's brake must know of the work.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Serving {
    /// Bytes being read, sent or not yet acknowledged.
    pub(crate) in_service: u64,
    /// Bytes still to do.
    pub(crate) left: u64,
    /// The target is Primary: its applications' reads come on the same stream.
    pub(crate) peer_primary: bool,
    /// An application's request is being worked on.
    pub(crate) busy: bool,
}

impl SourceBrake {
    /// The brake for these options; `fixed` has none.
    pub(crate) fn new(cfg: &ResyncConfig, now: Instant) -> Option<SourceBrake> {
        match super::kind(cfg) {
            ResyncController::Fixed => None,
            ResyncController::Drbd => Some(SourceBrake::Drbd(ByMinRate { min: MinRate::new(cfg), until: None })),
            ResyncController::Adaptive => Some(SourceBrake::Adaptive(Box::new(ByLatency::new(cfg, now)))),
        }
    }

    /// Options changed: goes on with them, or with another brake.
    pub(crate) fn configure(this: &mut Option<SourceBrake>, cfg: &ResyncConfig, now: Instant) {
        match (this.as_mut(), super::kind(cfg)) {
            (Some(SourceBrake::Adaptive(b)), ResyncController::Adaptive) => b.configure(cfg),
            (Some(SourceBrake::Drbd(b)), ResyncController::Drbd) => b.min.configure(cfg),
            _ => *this = SourceBrake::new(cfg, now),
        }
    }

    /// An application's request of so many bytes took `latency` here.
    pub(crate) fn application(&mut self, now: Instant, latency: Duration, bytes: u64) {
        match self {
            SourceBrake::Adaptive(b) => b.guard.sample(now, latency),
            SourceBrake::Drbd(b) => b.min.application(bytes),
        }
    }

    /// The target has a block on disk that was begun to be read at `since`.
    pub(crate) fn acknowledged(&mut self, now: Instant, since: Instant) {
        if let SourceBrake::Adaptive(b) = self {
            b.guard.completed(now.since(since));
        }
    }

    /// To be called each turn.
    pub(crate) fn see(&mut self, now: Instant, work: Serving) {
        if let SourceBrake::Adaptive(b) = self {
            b.now = now;
            b.guard.see(now, Scene { in_flight: work.in_service, busy: work.busy });
        }
    }

    /// May the next request, of so many bytes, be read for now?
    pub(crate) fn permits(&mut self, now: Instant, work: Serving, bytes: u64) -> bool {
        match self {
            SourceBrake::Adaptive(b) => b.permits(now, work, bytes),
            SourceBrake::Drbd(b) => b.permits(now, work),
        }
    }

    /// A block of so many bytes is being read.
    pub(crate) fn serving(&mut self, bytes: u64) {
        if let SourceBrake::Adaptive(b) = self {
            b.floor.take(bytes);
            b.guard.sent(b.now, bytes);
        }
    }

    /// Why requests wait here, if they do.
    pub(crate) fn slowed_by(&self, now: Instant) -> Option<SlowedBy> {
        let beside = match self {
            SourceBrake::Adaptive(b) => b.guard.active(now),
            SourceBrake::Drbd(b) => b.until.is_some_and(|until| now < until),
        };
        beside.then_some(SlowedBy::Application)
    }

    /// When it may permit more.
    pub(crate) fn wake(&self) -> Option<Instant> {
        match self {
            SourceBrake::Adaptive(b) => b.wake(),
            SourceBrake::Drbd(b) => b.until,
        }
    }
}

/// `c-min-rate` (spec 8.6): beside applications only so much. As activity counts this volume's application I/O, not
/// everything on the disk.
#[derive(Debug)]
pub(super) struct MinRate {
    /// KiB/s; 0 = no brake.
    least: u32,
    /// Sectors of applications since activity was last seen.
    foreign: u64,
    marks: VecDeque<(Instant, u64)>,
}

impl MinRate {
    pub(super) fn new(cfg: &ResyncConfig) -> MinRate {
        MinRate { least: cfg.min_rate, foreign: 0, marks: VecDeque::new() }
    }

    pub(super) fn configure(&mut self, cfg: &ResyncConfig) {
        self.least = cfg.min_rate;
    }

    pub(super) fn application(&mut self, bytes: u64) {
        self.foreign += bytes / 512;
    }

    /// Notes how much is left, in bytes.
    pub(super) fn mark(&mut self, now: Instant, left: u64) {
        if self.marks.back().is_none_or(|(t, _)| now.since(*t) >= MARK) {
            self.marks.push_back((now, left));
            if self.marks.len() > 3 {
                self.marks.pop_front();
            }
        }
    }

    /// Is the resync faster than it may be beside the activity there is?
    pub(super) fn brakes(&mut self, now: Instant, left: u64) -> bool {
        if self.least == 0 || self.foreign <= ACTIVE {
            return false;
        }
        self.foreign = 0;
        let Some(&(then, before)) = self.marks.iter().rev().nth(1).or(self.marks.front()) else { return false };
        let seconds = (now.since(then).0 / 1_000_000_000).max(1);
        before.saturating_sub(left) / 1024 / seconds > u64::from(self.least)
    }
}

/// Of `drbd`: each request that comes while `c-min-rate` brakes waits for 100 ms.
#[derive(Debug)]
pub(crate) struct ByMinRate {
    min: MinRate,
    /// The first waiting request is held until then.
    until: Option<Instant>,
}

impl ByMinRate {
    fn permits(&mut self, now: Instant, work: Serving) -> bool {
        self.min.mark(now, work.left);
        if let Some(until) = self.until {
            if now < until {
                return false;
            }
            self.until = None;
            return true;
        }
        if !work.peer_primary && self.min.brakes(now, work.left) {
            self.until = Some(now + HOLD);
        }
        self.until.is_none()
    }
}

/// Of `adaptive`: by what applications feel (spec 8.9, 4).
#[derive(Debug)]
pub(crate) struct ByLatency {
    guard: Guard,
    floor: Floor,
    now: Instant,
}

impl ByLatency {
    fn new(cfg: &ResyncConfig, now: Instant) -> ByLatency {
        ByLatency { guard: Guard::new(cfg, now), floor: Floor::new(cfg, now), now }
    }

    fn configure(&mut self, cfg: &ResyncConfig) {
        self.guard.configure(cfg);
        self.floor.configure(cfg);
    }

    fn permits(&mut self, now: Instant, work: Serving, bytes: u64) -> bool {
        let floor = self.floor.room(now, work.left);
        if self.guard.holds() {
            return floor == u64::MAX;
        }
        let room = self.guard.room(now, work.in_service);
        // A request cannot be cut: one at a time always may go, and is followed by the longer a rest.
        room > 0 && (room >= bytes || work.in_service == 0) || floor > 0
    }

    /// When it may permit more.
    fn wake(&self) -> Option<Instant> {
        let floor = if self.guard.active(self.now) { self.floor.wake() } else { None };
        floor.into_iter().chain(self.guard.wake(self.now)).min()
    }
}
