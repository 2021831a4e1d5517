//! urbd's own controller: a window of unanswered requests, kept just large enough to keep the bottleneck busy
//! (`docs/spec/data-path-and-resync.md` 8.9).
//!
//! The window is what the bottleneck delivers within the shortest round trip seen plus a small queueing delay:
//! `window <- window * (base + target delay) / round trip`. Below the bottleneck's speed the round trip is the base,
//! and the window grows; above it the round trip grows with the window, and it settles where the queue takes the target
//! delay. The base is measured anew from time to time with a nearly empty queue. Beside applications much less is on
//! its way, in small requests: as much as their latencies permit ([`Guard`]).

use super::fixed::Bucket;
use super::floor::Floor;
use super::guard::{Guard, Scene};
use super::{BLOCK, MAX_REQUEST, PIECE, SlowedBy, Work};
use crate::config::ResyncConfig;
use units::{Duration, Instant};

/// Default of `c-max-rate`: it is no wish of the administrator's, and does not limit this controller.
const DEFAULT_MAX_RATE: u32 = 102_400;
/// The window is looked at so often at least, and not more often than a third of it.
const LOOK: Duration = Duration::from_millis(20);
/// The base is measured anew after this time.
const REMEASURE: Duration = Duration::from_secs(10);
/// Measuring the base takes at most this long.
const MEASURE: Duration = Duration::from_millis(300);
/// A short window of requests, while measuring and at the start.
const SMALL: u64 = 2 * MAX_REQUEST;
/// No window is smaller.
const LEAST: u64 = SMALL / 8;
/// A window as small as that has no queue of its own: if round trips are long all the same, they are longer than they
/// were. The base is measured anew then after this time already.
const DOUBT: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub(crate) struct Adaptive {
    cap: u64,
    window: f64,
    /// Shortest round trip in ns; infinite while unknown.
    base: f64,
    starting: bool,
    measured: Instant,
    /// Measuring the base since, and the best so far.
    measuring: Option<(Instant, f64, u32)>,
    /// This look: sum of round trips, their number, since when.
    trips: f64,
    count: u32,
    since: Instant,
    /// Was the window the limit in this look?
    limited: bool,
    guard: Guard,
    floor: Floor,
    /// `c-max-rate`.
    ceiling: Option<Bucket>,
    now: Instant,
}

impl Adaptive {
    pub(crate) fn new(cfg: &ResyncConfig, cap: u64, now: Instant) -> Adaptive {
        let mut new = Adaptive {
            cap,
            window: SMALL as f64,
            base: f64::INFINITY,
            starting: true,
            measured: now,
            measuring: None,
            trips: 0.0,
            count: 0,
            since: now,
            limited: false,
            guard: Guard::new(cfg, now),
            floor: Floor::new(cfg, now),
            ceiling: None,
            now,
        };
        new.configure(cfg, cap, now);
        new
    }

    pub(crate) fn configure(&mut self, cfg: &ResyncConfig, cap: u64, now: Instant) {
        self.guard.configure(cfg);
        self.floor.configure(cfg);
        let limited = cfg.max_rate != 0 && cfg.max_rate != DEFAULT_MAX_RATE;
        self.ceiling = limited.then(|| Bucket::new(u64::from(cfg.max_rate) * 1024, now));
        self.cap = cap;
    }

    pub(crate) fn allowance(&mut self, now: Instant, work: Work) -> u64 {
        self.now = now;
        self.guard.see(now, Scene { in_flight: work.in_flight, busy: work.busy });
        self.remeasure(now);
        let beside = self.guard.active(now);
        let room = match self.floor.room(now, work.left) {
            // The deadline is near: applications do not count any more.
            u64::MAX => self.room(work.in_flight, None),
            _ if beside && self.guard.holds() => 0,
            floor if beside => {
                self.room(work.in_flight, Some(self.guard.piece())).min(self.guard.room(now, work.in_flight)).max(floor)
            }
            _ => self.room(work.in_flight, None),
        };
        // What the floor demands is bounded all the same.
        let room = room.min(self.cap.saturating_sub(work.in_flight));
        match &mut self.ceiling {
            Some(bucket) => room.min(bucket.available(now)),
            None => room,
        }
    }

    /// What the window leaves room for; beside applications in pieces of that many bytes.
    fn room(&mut self, in_flight: u64, piece: Option<u64>) -> u64 {
        let window = match self.measuring {
            Some(_) if self.window <= SMALL as f64 => PIECE as f64,
            Some(_) => SMALL as f64,
            None => self.window,
        };
        let room = (window as u64).min(self.cap).saturating_sub(in_flight);
        // Several requests in the window, so that disk and link work at the same time; small ones beside applications,
        // whose requests wait for whatever was begun.
        let piece = piece.unwrap_or_else(|| (window as u64 / 4).clamp(PIECE, MAX_REQUEST));
        if room < piece / 2 && in_flight > 0 {
            self.limited = true;
            return 0;
        }
        room.min(piece / BLOCK * BLOCK)
    }

    pub(crate) fn asked(&mut self, bytes: u64) {
        self.floor.take(bytes);
        self.guard.sent(self.now, bytes);
        if let Some(bucket) = &mut self.ceiling {
            bucket.take(bytes);
        }
    }

    pub(crate) fn completed(&mut self, now: Instant, sent: Instant) {
        let trip = now.since(sent);
        self.guard.completed(trip);
        let trip = trip.0.max(1) as f64;
        if let Some((since, best, n)) = &mut self.measuring {
            if sent >= *since {
                *best = best.min(trip);
                *n += 1;
            }
        } else if self.starting {
            self.base = self.base.min(trip);
        }
        self.trips += trip;
        self.count += 1;
        let elapsed = now.since(self.since);
        let mean = self.trips / f64::from(self.count);
        if elapsed >= LOOK && elapsed.0 as f64 >= mean / 3.0 && self.count >= 2 {
            self.look(now, mean);
        }
    }

    pub(crate) fn application(&mut self, now: Instant, latency: Duration) {
        self.guard.sample(now, latency);
    }

    pub(crate) fn wake(&self) -> Option<Instant> {
        let ceiling = self.ceiling.as_ref().and_then(Bucket::ready_at);
        let floor = if self.guard.active(self.now) { self.floor.wake() } else { None };
        ceiling.into_iter().chain(floor).chain(self.guard.wake(self.now)).min()
    }

    pub(crate) fn slowed_by(&self, now: Instant) -> Option<SlowedBy> {
        let limited = self.ceiling.as_ref().is_some_and(|bucket| bucket.ready_at().is_some());
        let beside = self.guard.active(now).then_some(SlowedBy::Application);
        limited.then_some(SlowedBy::Limit).or(beside)
    }

    /// The queueing delay to aim at, in ns: enough to bridge the gaps, too short to be felt.
    fn target_delay(&self) -> f64 {
        self.base.clamp(4e6, 50e6)
    }

    fn look(&mut self, now: Instant, trip: f64) {
        if self.measuring.is_none() {
            let wanted = (self.base + self.target_delay()) / trip;
            if self.starting && wanted < 1.2 {
                self.starting = false;
                self.measured = now;
            }
            let (least, most) = if self.starting { (1.0, 2.0) } else { (0.7, 1.3) };
            let factor = (1.0 + if self.starting { 1.0 } else { 0.5 } * (wanted - 1.0)).clamp(least, most);
            if factor < 1.0 || self.limited {
                // `max-buffers` may grant less than the least.
                self.window = (self.window * factor).max(LEAST as f64).min(self.cap as f64);
            }
        }
        (self.trips, self.count, self.since, self.limited) = (0.0, 0, now, false);
    }

    /// Every now and then the queue runs nearly empty, so that the base is that of today's disk and link.
    fn remeasure(&mut self, now: Instant) {
        match self.measuring {
            Some((since, best, n)) if n >= 4 || now.since(since) >= MEASURE => {
                if n > 0 {
                    self.base = best;
                }
                self.measuring = None;
                self.measured = now;
            }
            None if !self.starting => {
                let doubtful = self.window as u64 <= LEAST && now.since(self.measured) >= DOUBT;
                let due = self.window as u64 > SMALL && now.since(self.measured) >= REMEASURE;
                if doubtful || due {
                    self.measuring = Some((now, f64::INFINITY, 0));
                }
            }
            _ => {}
        }
    }
}
