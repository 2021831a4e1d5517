//! What a resync takes in any case, whatever applications feel: `c-min-rate`, and what `finish-within` needs.

use super::{BLOCK, PIECE};
use crate::config::ResyncConfig;
use units::{Duration, Instant};

/// The least rate of one resync.
#[derive(Debug)]
pub(crate) struct Floor {
    /// `c-min-rate` in bytes per second.
    least: f64,
    /// `finish-within` counts from the start.
    within: Option<Duration>,
    started: Instant,
    /// Bytes per second now, maybe infinite.
    rate: f64,
    /// Bytes that should have gone until `at` and have not. What went beyond the rate is soon forgotten.
    owed: f64,
    at: Instant,
}

impl Floor {
    pub(crate) fn new(cfg: &ResyncConfig, now: Instant) -> Floor {
        let mut floor = Floor { least: 0.0, within: None, started: now, rate: 0.0, owed: 0.0, at: now };
        floor.configure(cfg);
        floor
    }

    pub(crate) fn configure(&mut self, cfg: &ResyncConfig) {
        self.least = f64::from(cfg.min_rate) * 1024.0;
        self.within = cfg.finish_within;
    }

    /// Bytes that may go now in any case, with `left` bytes still to do: 0, or at least a block.
    pub(crate) fn room(&mut self, now: Instant, left: u64) -> u64 {
        self.rate = self.least.max(self.required(now, left));
        if self.rate.is_infinite() {
            return u64::MAX;
        }
        let earned = now.since(self.at).0 as f64 * self.rate / 1e9;
        self.owed = (self.owed + earned).min((self.rate / 50.0).max(self.piece()));
        self.at = now;
        if self.owed < self.piece() { 0 } else { self.owed as u64 }
    }

    /// So many bytes went, by this or otherwise.
    pub(crate) fn take(&mut self, bytes: u64) {
        self.owed = (self.owed - bytes as f64).max(-self.piece());
    }

    /// When there is room again; `None` if there is now, or never will be.
    pub(crate) fn wake(&self) -> Option<Instant> {
        let missing = self.piece() - self.owed;
        let later = missing > 0.0 && self.rate > 0.0 && self.rate.is_finite();
        later.then(|| self.at + Duration((missing * 1e9 / self.rate) as u64 + 1))
    }

    /// What goes at a time.
    fn piece(&self) -> f64 {
        (self.rate / 10.0).clamp(BLOCK as f64, PIECE as f64)
    }

    /// Bytes per second that `finish-within` needs; without that goal 0.
    fn required(&self, now: Instant, left: u64) -> f64 {
        let Some(goal) = self.within else { return 0.0 };
        let until = goal.0.saturating_sub(now.since(self.started).0);
        if until == 0 { f64::INFINITY } else { left as f64 * 1e9 / until as f64 }
    }
}
