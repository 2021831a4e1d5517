//! Stepping aside for applications: how much of the bandwidth a resync may take without making their requests slow.

use crate::config::ResyncConfig;
use units::{Duration, Instant};

/// Latencies are judged in windows of this length.
const WINDOW: Duration = Duration::from_millis(100);
/// Without a request for so long, no application is active.
const IDLE: Duration = Duration::from_millis(400);
/// How often the resync holds still for a window, to see how long requests take without it.
const PROBE: Duration = Duration::from_secs(3);
/// No share is smaller: a resync always goes on.
const LEAST: f64 = 1.0 / 64.0;
/// This much (ns) is always tolerated on top: the noise of schedulers and disks.
const TOLERANCE: f64 = 100_000.0;

/// Follows applications' latencies, and says what share of the bandwidth is harmless.
#[derive(Debug)]
pub(crate) struct Guard {
    /// Allowed latency, relative to that without a resync.
    budget: f64,
    window: Instant,
    /// Nanoseconds, of this window.
    samples: Vec<u64>,
    last_sample: Option<Instant>,
    /// 98th percentile without resync, in ns.
    baseline: Option<f64>,
    /// Smoothed 98th percentile now.
    recent: Option<f64>,
    /// Requests that ended in this window.
    ended: u32,
    /// Requests per second without resync, and now: who waits for one answer before asking again shows harm by that.
    usual_rate: Option<f64>,
    recent_rate: Option<f64>,
    share: f64,
    /// Holding still since.
    probing: Option<Instant>,
    next_probe: Instant,
}

impl Guard {
    pub(crate) fn new(cfg: &ResyncConfig, now: Instant) -> Guard {
        Guard {
            budget: budget(cfg),
            window: now,
            samples: Vec::new(),
            last_sample: None,
            baseline: None,
            recent: None,
            ended: 0,
            usual_rate: None,
            recent_rate: None,
            share: 1.0,
            probing: None,
            next_probe: now,
        }
    }

    pub(crate) fn configure(&mut self, cfg: &ResyncConfig) {
        self.budget = budget(cfg);
    }

    /// An application's request ended.
    pub(crate) fn sample(&mut self, now: Instant, latency: Duration) {
        self.advance(now);
        // What was in the queue when holding still began tells nothing of the time without resync.
        let old = self.probing.is_some_and(|since| now.since(since) < latency + Duration(WINDOW.0 / 4));
        if self.samples.len() < 4096 && !old {
            self.samples.push(latency.0);
        }
        self.ended += 1;
        self.last_sample = Some(now);
    }

    /// The share of the bandwidth that a resync may take: above 0, at most 1. 1 without active applications.
    pub(crate) fn share(&mut self, now: Instant) -> f64 {
        self.advance(now);
        self.share
    }

    /// Shall the resync hold still for a moment?
    pub(crate) fn holds(&self) -> bool {
        self.probing.is_some()
    }

    pub(crate) fn active(&self, now: Instant) -> bool {
        self.last_sample.is_some_and(|t| now.since(t) < IDLE)
    }

    /// When something changes by itself.
    pub(crate) fn wake(&self) -> Option<Instant> {
        (self.probing.is_some() || self.share < 1.0).then(|| self.window + WINDOW)
    }

    fn advance(&mut self, now: Instant) {
        if now.since(self.window) < WINDOW {
            return;
        }
        let elapsed = now.since(self.window).0;
        let windows = elapsed / WINDOW.0;
        self.window = now;
        let rate = f64::from(self.ended) * 1e9 / elapsed as f64;
        self.judge(now, windows, rate);
        self.samples.clear();
        self.ended = 0;
        if !self.active(now) {
            self.probing = None;
            self.share = (self.share * 2.2f64.powi(windows.min(64) as i32)).min(1.0);
        } else if now >= self.next_probe {
            self.probing = Some(now);
            self.next_probe = now + PROBE;
        } else {
            self.probing = None;
        }
    }

    fn judge(&mut self, now: Instant, windows: u64, rate: f64) {
        if self.samples.len() < 4 || windows > 4 {
            return;
        }
        self.samples.sort_unstable();
        let slow = self.samples[self.samples.len() * 98 / 100] as f64;
        if self.probing.is_some_and(|since| now.since(since) >= WINDOW) {
            self.baseline = Some(self.baseline.map_or(slow, |b| 0.6 * b + 0.4 * slow));
            self.usual_rate = Some(self.usual_rate.map_or(rate, |u| 0.5 * u + 0.5 * rate));
            return;
        }
        let Some(baseline) = self.baseline else { return };
        let recent = self.recent.map_or(slow, |r| 0.5 * r + 0.5 * slow);
        self.recent = Some(recent);
        let limit = baseline * self.budget + TOLERANCE;
        let rate = self.recent_rate.map_or(rate, |r| 0.5 * r + 0.5 * rate);
        self.recent_rate = Some(rate);
        // Few requests vary by themselves.
        let usual = self.usual_rate.filter(|u| *u >= 500.0);
        let pace = usual.map_or(f64::INFINITY, |usual| rate * self.budget / usual);
        self.share = (self.share * (limit / recent).min(pace).clamp(0.6, 1.08)).clamp(LEAST, 1.0);
    }
}

fn budget(cfg: &ResyncConfig) -> f64 {
    1.0 + f64::from(cfg.latency_budget) / 100.0
}
