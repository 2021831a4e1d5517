//! Stepping aside for applications: how much of a resync may be on its way without making their requests slow.
//!
//! The level is the mean number of bytes on their way. It says how much work of the resync lies before a request of an
//! application in sockets, disks and the loop. Above one piece it is a window; below, each piece is followed by a rest
//! as many times as long as it took. The first request after a time without any counts at once: then only little is on
//! its way, and first nothing, to see how long requests take without the resync. Every tenth of a second the level
//! follows the ratio of what requests may take and what they took.

use super::PIECE;
use crate::config::ResyncConfig;
use units::{Duration, Instant};

/// Latencies are judged in windows of this length, or longer while there are too few.
const WINDOW: Duration = Duration::from_millis(100);
/// So many requests say something; after [`PATIENCE`] any number does.
const ENOUGH: usize = 8;
const PATIENCE: Duration = Duration::from_secs(1);
/// So many say enough before the window has passed.
const PLENTY: usize = 400;
/// Without a request for so long, no application is active.
const IDLE: Duration = Duration::from_millis(500);
/// After so long nothing is known about applications any more.
const FORGET: Duration = Duration::from_secs(60);
/// How often the resync holds still, to see how long requests take without it.
const PROBE: Duration = Duration::from_secs(3);
/// How often if even the lowest level seems to be harmful: the applications may have changed.
const DOUBT: Duration = Duration::from_millis(500);
/// Holding still takes at least and at most this long, and as long at most until nothing is on its way any more.
const PROBE_LEAST: Duration = Duration::from_millis(50);
const PROBE_MOST: Duration = Duration::from_millis(300);
/// Where applications wait for less than [`SEEK`] without a resync, a piece's own length is felt: several are on their
/// way, down to this size. Where they wait for longer, it is a disk's seeks that are, and as many small pieces would be
/// no better.
const SMALL_PIECE: u64 = PIECE / 4;
const SEEK: f64 = 2e6;
/// The level when applications begin.
const BEGIN: f64 = PIECE as f64 / 2.0;
/// No level is lower: a resync always goes on.
const LEAST: f64 = 1024.0;
/// The level grows at most by this factor per window, and in the beginning by the other.
const STEP: f64 = 1.05;
const FIRST_STEP: f64 = 1.4;
/// Fewer pieces than these are few.
const FEW: u64 = 4;
/// A rest is at most so many times as long as a piece takes.
const LONGEST_REST: f64 = 64.0;
/// A wish to change the level by less than this part is noise, and following it would be unrest.
const NOISE: f64 = 0.05;
/// This much (ns) is always tolerated on top: the noise of schedulers and disks.
const TOLERANCE: f64 = 20_000.0;
/// Requests of this length (ns) are long beside the time until one is received.
const LONG: f64 = 1e6;
/// Few requests per second vary by themselves: below this their number says nothing.
const STEADY: f64 = 500.0;

/// What a guard must know each time it is asked.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Scene {
    /// Bytes of the resync on their way.
    pub(crate) in_flight: u64,
    /// An application's request is being worked on.
    pub(crate) busy: bool,
}

/// Follows applications' latencies, and says how many bytes on their way are harmless.
#[derive(Debug)]
pub(crate) struct Guard {
    /// Allowed latency, relative to that without a resync.
    budget: f64,
    level: f64,
    /// Was more wanted than the level in this window?
    limiting: bool,
    /// It has never been too much since applications began: it may grow fast.
    beginning: bool,
    window: Window,
    /// An application's request was last seen then.
    last_work: Option<Instant>,
    /// Without the resync, the last ones first.
    alone: [Option<Manner>; 3],
    /// With it, smoothed.
    recent: Option<Manner>,
    probe: Probe,
    next_probe: Instant,
    rest_until: Instant,
    /// What a piece takes, smoothed, in ns.
    trip: f64,
}

/// How applications' requests went in a window.
#[derive(Clone, Copy, Debug)]
struct Manner {
    /// 99th percentile of the latencies in ns; of fewer requests than [`PLENTY`] the 98th.
    slow: f64,
    /// Requests per second: who waits for one answer before asking again shows harm by that.
    rate: f64,
}

#[derive(Debug)]
struct Window {
    since: Instant,
    /// Nanoseconds.
    samples: Vec<u64>,
    /// Requests that ended.
    ended: u32,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Probe {
    No,
    /// Until nothing is on its way; since then.
    Draining(Instant),
    Measuring,
}

impl Guard {
    pub(crate) fn new(cfg: &ResyncConfig, now: Instant) -> Guard {
        Guard {
            budget: budget(cfg),
            level: BEGIN,
            limiting: false,
            beginning: true,
            window: Window { since: now, samples: Vec::new(), ended: 0 },
            last_work: None,
            alone: [None; 3],
            recent: None,
            probe: Probe::No,
            next_probe: now,
            rest_until: now,
            trip: 0.0,
        }
    }

    pub(crate) fn configure(&mut self, cfg: &ResyncConfig) {
        self.budget = budget(cfg);
    }

    /// An application's request ended.
    pub(crate) fn sample(&mut self, now: Instant, latency: Duration) {
        self.at_work(now);
        // What began before nothing was on its way any more tells nothing of the time without resync.
        let old = self.probe == Probe::Measuring && now.since(self.window.since) < latency;
        if self.window.samples.len() < 4096 && !old {
            self.window.samples.push(latency.0);
        }
        self.window.ended += 1;
    }

    /// To be called each turn, before [`Guard::room`].
    pub(crate) fn see(&mut self, now: Instant, scene: Scene) {
        if scene.busy {
            self.at_work(now);
        }
        if !self.active(now) {
            self.probe = Probe::No;
            return;
        }
        match self.probe {
            Probe::No if now >= self.next_probe => self.probe = Probe::Draining(now),
            Probe::Draining(since) if scene.in_flight > 0 && now.since(since) >= PROBE_MOST => self.end_probe(now),
            _ => {}
        }
        if matches!(self.probe, Probe::Draining(_)) && scene.in_flight == 0 {
            self.probe = Probe::Measuring;
            self.window.begin(now);
        }
        self.judge(now);
    }

    /// Are applications active, so that there is a level?
    pub(crate) fn active(&self, now: Instant) -> bool {
        self.last_work.is_some_and(|t| now.since(t) < IDLE)
    }

    /// Does the resync hold still, to see how long requests take without it?
    pub(crate) fn holds(&self) -> bool {
        self.probe != Probe::No
    }

    /// Bytes that may be added to those on their way: without active applications as many as one likes.
    pub(crate) fn room(&mut self, now: Instant, in_flight: u64) -> u64 {
        if !self.active(now) {
            return u64::MAX;
        }
        if self.holds() {
            return 0;
        }
        let piece = self.piece();
        let window = if self.paces() { (self.level as u64).next_multiple_of(piece) } else { self.level as u64 };
        let room = window.saturating_sub(in_flight);
        if now < self.rest_until || room < piece {
            self.limiting = true;
            return 0;
        }
        room
    }

    /// Bytes of a request beside applications.
    pub(crate) fn piece(&self) -> u64 {
        let felt = self.usual().is_none_or(|u| u.slow < SEEK);
        if felt { (self.level as u64 / 4).next_power_of_two().clamp(SMALL_PIECE, PIECE) } else { PIECE }
    }

    /// Is what is on its way a matter of a few pieces? As a window it would go in steps, on which the level would
    /// swing.
    fn paces(&self) -> bool {
        self.level < (FEW * self.piece()) as f64
    }

    /// So many bytes go on their way.
    pub(crate) fn sent(&mut self, now: Instant, bytes: u64) {
        if self.paces() {
            let trips = (bytes.max(self.piece()) as f64 / self.level).min(LONGEST_REST);
            self.rest_until = now + Duration((self.trip * trips) as u64);
        }
    }

    /// Something arrived after `trip`.
    pub(crate) fn completed(&mut self, trip: Duration) {
        let new = trip.0 as f64;
        self.trip = if self.trip == 0.0 { new } else { self.trip + (new - self.trip) / 8.0 };
    }

    /// When something changes by itself.
    pub(crate) fn wake(&self, now: Instant) -> Option<Instant> {
        if !self.active(now) {
            return None;
        }
        match self.probe {
            Probe::No => (self.rest_until > now).then_some(self.rest_until),
            Probe::Draining(since) => Some(since + PROBE_MOST),
            Probe::Measuring => Some(now + PROBE_LEAST),
        }
    }

    fn at_work(&mut self, now: Instant) {
        let away = self.last_work.map(|t| now.since(t));
        if away.is_none_or(|t| t >= FORGET) {
            (self.level, self.alone, self.next_probe) = (BEGIN, [None; 3], now);
        }
        if away.is_none_or(|t| t >= IDLE) {
            self.window.begin(now);
            (self.recent, self.beginning) = (None, true);
        }
        self.last_work = Some(now);
    }

    fn judge(&mut self, now: Instant) {
        let (elapsed, samples) = (now.since(self.window.since), self.window.samples.len());
        let measuring = match self.probe {
            // What is still on its way belongs to neither.
            Probe::Draining(_) => return,
            Probe::Measuring => true,
            Probe::No => false,
        };
        let (patience, least) = if measuring { (PROBE_MOST, PROBE_LEAST) } else { (PATIENCE, WINDOW) };
        let told = samples >= PLENTY && elapsed >= least || samples >= ENOUGH && elapsed >= WINDOW;
        if !told && elapsed < patience {
            return;
        }
        let manner = self.window.manner(elapsed);
        if measuring {
            if manner.is_some() {
                self.alone = [manner, self.alone[0], self.alone[1]];
            }
            return self.end_probe(now);
        }
        if let (Some(new), Some(usual)) = (manner, self.usual()) {
            let recent = self.recent.map_or(new, |old| old.and(new));
            self.recent = Some(recent);
            self.follow(now, usual, recent);
        }
        self.window.begin(now);
        self.limiting = false;
    }

    /// How requests go without the resync: the median, so that neither a hiccup nor a lucky moment counts.
    fn usual(&self) -> Option<Manner> {
        Some(match self.alone {
            [Some(a), Some(b), Some(c)] => Manner::median(a, b, c),
            [Some(a), Some(b), None] => Manner { slow: a.slow.min(b.slow), rate: a.rate.max(b.rate) },
            [one, ..] => one?,
        })
    }

    /// By how much the rate differs by itself: from pause to pause.
    fn spread(&self) -> f64 {
        let rates = || self.alone.iter().flatten().map(|m| m.rate);
        match rates().count() {
            0 | 1 => 0.05,
            _ => (rates().fold(0.0, f64::max) / rates().fold(f64::INFINITY, f64::min) - 1.0).min(0.3),
        }
    }

    fn follow(&mut self, now: Instant, usual: Manner, recent: Manner) {
        let latency = (usual.slow * self.budget + TOLERANCE) / recent.slow;
        // The mean, which the rate shows, suffers less than the tail, of which a part is not seen here: how long
        // requests wait until they are received. Among long requests it does not count.
        let share = if usual.slow < LONG { 0.5 } else { 1.0 };
        let mean_budget = 1.0 + (self.budget - 1.0) * share + self.spread();
        let rate = if usual.rate < STEADY { f64::INFINITY } else { recent.rate * mean_budget / usual.rate };
        let fastest = if self.beginning { FIRST_STEP } else { STEP };
        let wanted = latency.min(rate);
        let factor = if (wanted - 1.0).abs() < NOISE { 1.0 } else { wanted.clamp(0.8, fastest) };
        self.beginning &= factor > STEP;
        if factor < 1.0 && self.level <= LEAST {
            // It does not help.
            self.next_probe = self.next_probe.min(now + DOUBT);
        }
        if factor < 1.0 || self.limiting {
            self.level = (self.level * factor).max(LEAST);
        }
    }

    fn end_probe(&mut self, now: Instant) {
        self.probe = Probe::No;
        self.next_probe = now + PROBE;
        self.window.begin(now);
    }
}

impl Window {
    fn begin(&mut self, now: Instant) {
        self.since = now;
        self.samples.clear();
        self.ended = 0;
    }

    fn manner(&mut self, elapsed: Duration) -> Option<Manner> {
        if self.samples.is_empty() {
            return None;
        }
        let percent = if self.samples.len() < PLENTY { 98 } else { 99 };
        let nth = self.samples.len() * percent / 100;
        let slow = *self.samples.select_nth_unstable(nth).1 as f64;
        Some(Manner { slow, rate: f64::from(self.ended) * 1e9 / elapsed.0.max(1) as f64 })
    }
}

impl Manner {
    /// The mean of both.
    fn and(self, new: Manner) -> Manner {
        Manner { slow: 0.5 * (self.slow + new.slow), rate: 0.5 * (self.rate + new.rate) }
    }

    fn median(a: Manner, b: Manner, c: Manner) -> Manner {
        let middle = |a: f64, b: f64, c: f64| a.min(b).max(a.max(b).min(c));
        Manner { slow: middle(a.slow, b.slow, c.slow), rate: middle(a.rate, b.rate, c.rate) }
    }
}

fn budget(cfg: &ResyncConfig) -> f64 {
    1.0 + f64::from(cfg.latency_budget) / 100.0
}
