//! A fixed rate: a bucket that fills with `resync-rate`. Exact over any second, whatever the timer does.

use super::{BLOCK, MAX_REQUEST, Work};
use crate::config::ResyncConfig;
use units::Instant;

/// Lets through bytes at a fixed rate, in pieces that may overdraw it by one.
#[derive(Debug)]
pub(crate) struct Bucket {
    /// Bytes per second.
    rate: u64,
    credit: i64,
    /// What was earned until here is in `credit`.
    at: Instant,
}

/// The controller for `c-plan-ahead` 0.
#[derive(Debug)]
pub(crate) struct Fixed {
    bucket: Bucket,
    cap: u64,
}

impl Bucket {
    pub(crate) fn new(rate: u64, now: Instant) -> Bucket {
        Bucket { rate: rate.max(1), credit: 0, at: now }
    }

    /// Another rate from `now` on; what was earned stays.
    pub(crate) fn set_rate(&mut self, rate: u64, now: Instant) {
        self.refill(now);
        self.rate = rate.max(1);
    }

    /// Bytes that may go now: 0, or at least one piece.
    pub(crate) fn available(&mut self, now: Instant) -> u64 {
        self.refill(now);
        if self.credit <= 0 { 0 } else { (self.credit as u64).max(self.piece()) }
    }

    pub(crate) fn take(&mut self, bytes: u64) {
        self.credit -= bytes as i64;
    }

    /// When something is available again; `None` if it is now.
    pub(crate) fn ready_at(&self) -> Option<Instant> {
        let missing = 1 - self.credit;
        let nanos = (missing.max(0) as u128 * 1_000_000_000).div_ceil(u128::from(self.rate));
        (missing > 0).then(|| Instant(self.at.0 + nanos as u64))
    }

    /// A tenth of a second's worth, or the largest request.
    fn piece(&self) -> u64 {
        (self.rate / 10 / BLOCK * BLOCK).clamp(BLOCK, MAX_REQUEST)
    }

    fn refill(&mut self, now: Instant) {
        let elapsed = u128::from(now.since(self.at).0);
        let earned = elapsed * u128::from(self.rate) / 1_000_000_000;
        // Only the time of whole bytes is used up, so that nothing is lost by looking often.
        self.at = Instant(self.at.0 + (earned * 1_000_000_000 / u128::from(self.rate)) as u64);
        let most = (self.rate / 5).max(2 * MAX_REQUEST) as i64;
        self.credit = (self.credit + i64::try_from(earned).unwrap_or(most)).min(most);
    }
}

impl Fixed {
    pub(crate) fn new(cfg: &ResyncConfig, cap: u64, now: Instant) -> Fixed {
        Fixed { bucket: Bucket::new(u64::from(cfg.rate) * 1024, now), cap }
    }

    pub(crate) fn configure(&mut self, cfg: &ResyncConfig, cap: u64, now: Instant) {
        self.bucket.set_rate(u64::from(cfg.rate) * 1024, now);
        self.cap = cap;
    }

    pub(crate) fn allowance(&mut self, now: Instant, work: Work) -> u64 {
        self.bucket.available(now).min(self.cap.saturating_sub(work.in_flight))
    }

    pub(crate) fn asked(&mut self, bytes: u64) {
        self.bucket.take(bytes);
    }

    pub(crate) fn wake(&self) -> Option<Instant> {
        self.bucket.ready_at()
    }
}
