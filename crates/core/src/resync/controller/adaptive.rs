//! urbd's own controller: a window of unanswered requests, kept just large enough to keep the bottleneck busy
//! (`docs/spec/data-path-and-resync.md` 8.9).
//!
//! The window is what the bottleneck delivers within the shortest round trip seen plus a small queueing delay:
//! `window <- window * (base + target delay) / round trip`. Below the bottleneck's speed the round trip is the base,
//! and the window grows; above it the round trip grows with the window, and it settles where the queue takes the target
//! delay. The base is measured anew from time to time with a nearly empty queue. Applications' latencies decide what
//! share of that is taken ([`Guard`]).

use super::fixed::Bucket;
use super::guard::Guard;
use super::{BLOCK, MAX_REQUEST, Work};
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
/// Smallest request of which several are on their way.
const PIECE: u64 = 64 << 10;

#[derive(Debug)]
pub(crate) struct Adaptive {
    cfg: ResyncConfig,
    cap: u64,
    window: f64,
    /// Shortest round trip in ns; infinite while unknown.
    base: f64,
    starting: bool,
    measured: Instant,
    /// Measuring the base since, and the best so far.
    measuring: Option<(Instant, f64, u32)>,
    /// This look: bytes done, sum of round trips, their number, since when.
    done: u64,
    trips: f64,
    count: u32,
    since: Instant,
    /// Was the window the limit in this look?
    limited: bool,
    /// The best delivery rate seen lately, bytes per second.
    best: f64,
    guard: Guard,
    pace: Bucket,
    paced: bool,
    /// The part of what the bottleneck delivers that is taken.
    part: f64,
    /// `finish-within` counts from here.
    started: Instant,
}

impl Adaptive {
    pub(crate) fn new(cfg: &ResyncConfig, cap: u64, now: Instant) -> Adaptive {
        Adaptive {
            cfg: cfg.clone(),
            cap,
            window: SMALL as f64,
            base: f64::INFINITY,
            starting: true,
            measured: now,
            measuring: None,
            done: 0,
            trips: 0.0,
            count: 0,
            since: now,
            limited: false,
            best: 0.0,
            guard: Guard::new(cfg, now),
            pace: Bucket::new(u64::MAX >> 20, now),
            paced: false,
            part: 1.0,
            started: now,
        }
    }

    pub(crate) fn configure(&mut self, cfg: &ResyncConfig, cap: u64) {
        self.guard.configure(cfg);
        self.cfg = cfg.clone();
        self.cap = cap;
    }

    pub(crate) fn allowance(&mut self, now: Instant, work: Work) -> u64 {
        let share = self.guard.share(now);
        if self.guard.holds() {
            return 0;
        }
        self.remeasure(now);
        self.set_pace(now, share, work.left);
        let mut window = match self.measuring {
            Some(_) if self.window <= SMALL as f64 => PIECE as f64,
            Some(_) => SMALL as f64,
            None => self.window,
        };
        if self.paced {
            window = (window * self.part).max(PIECE as f64);
        }
        let room = (window as u64).min(self.cap).saturating_sub(work.in_flight);
        // Several requests in the window, so that disk and link work at the same time; small ones beside applications.
        let piece = if share < 1.0 { PIECE } else { (window as u64 / 4).clamp(PIECE, MAX_REQUEST) };
        if room < piece / 2 && work.in_flight > 0 {
            // Beside applications the whole window is not in use: nothing is known about a larger one.
            self.limited = !self.paced;
            return 0;
        }
        let room = room.min(piece / BLOCK * BLOCK);
        if self.paced { room.min(self.pace.available(now)) } else { room }
    }

    pub(crate) fn asked(&mut self, bytes: u64) {
        if self.paced {
            self.pace.take(bytes);
        }
    }

    pub(crate) fn completed(&mut self, now: Instant, bytes: u64, sent: Instant) {
        let trip = now.since(sent).0.max(1) as f64;
        if let Some((since, best, n)) = &mut self.measuring {
            if sent >= *since {
                *best = best.min(trip);
                *n += 1;
            }
        } else if self.starting {
            self.base = self.base.min(trip);
        }
        self.done += bytes;
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
        let paced = if self.paced { self.pace.ready_at() } else { None };
        paced.into_iter().chain(self.guard.wake()).min()
    }

    /// The queueing delay to aim at, in ns: enough to bridge the gaps, too short to be felt.
    fn target_delay(&self) -> f64 {
        self.base.clamp(4e6, 50e6)
    }

    fn look(&mut self, now: Instant, trip: f64) {
        let rate = self.done as f64 * 1e9 / now.since(self.since).0.max(1) as f64;
        // While paced, what is delivered says nothing about what could be.
        self.best = if self.paced { self.best.max(rate) } else { (self.best * 0.995).max(rate) };
        if self.measuring.is_none() {
            let wanted = (self.base + self.target_delay()) / trip;
            if self.starting && wanted < 1.2 {
                self.starting = false;
                self.measured = now;
            }
            let (least, most) = if self.starting { (1.0, 2.0) } else { (0.7, 1.3) };
            let factor = (1.0 + if self.starting { 1.0 } else { 0.5 } * (wanted - 1.0)).clamp(least, most);
            if factor < 1.0 || self.limited {
                self.window = (self.window * factor).clamp(LEAST as f64, self.cap as f64);
            }
        }
        (self.done, self.trips, self.count, self.since, self.limited) = (0, 0.0, 0, now, false);
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

    fn set_pace(&mut self, now: Instant, share: f64, left: u64) {
        let mut rate = if share < 1.0 && self.best > 0.0 { share * self.best } else { f64::INFINITY };
        rate = rate.max(f64::from(self.cfg.min_rate) * 1024.0).max(self.required(now, left));
        if self.cfg.max_rate != 0 && self.cfg.max_rate != DEFAULT_MAX_RATE {
            rate = rate.min(f64::from(self.cfg.max_rate) * 1024.0);
        }
        self.paced = rate.is_finite();
        self.part = if share < 1.0 && self.best > 0.0 { (rate / self.best).clamp(share, 1.0) } else { 1.0 };
        if self.paced {
            self.pace.set_rate(rate as u64, now);
        }
    }

    /// Bytes per second that `finish-within` needs; without that goal 0.
    fn required(&self, now: Instant, left: u64) -> f64 {
        let Some(goal) = self.cfg.finish_within else { return 0.0 };
        let until = goal.0.saturating_sub(now.since(self.started).0);
        if until == 0 { f64::INFINITY } else { left as f64 * 1e9 / until as f64 }
    }
}
