//! DRBD's dynamic controller: plans the amount in flight some ticks ahead
//! (`docs/spec/data-path-and-resync.md` 8.2 to 8.6).
//!
//! Its brake, `c-min-rate`, is that of the source, too ([`MinRate`]).

use super::brake::MinRate;
use super::{BLOCK, MAX_REQUEST, SlowedBy, Work};
use crate::config::ResyncConfig;
use std::collections::VecDeque;
use units::{Duration, Instant};

/// One step of the plan.
const TICK: Duration = Duration::from_millis(100);

/// The planner of one resync. Amounts are sectors of 512 bytes.
#[derive(Debug)]
pub(crate) struct Planner {
    cfg: ResyncConfig,
    /// Bytes in flight at most.
    cap: u64,
    in_sect: i64,
    in_flight: i64,
    plan: VecDeque<i64>,
    planned: i64,
    last_round: Option<Instant>,
    next_round: Instant,
    /// Bytes that this round may still ask for.
    quota: u64,
    /// Bytes that rounds with nothing on its way were short of a block.
    earned: u64,
    min: MinRate,
    /// What made the latest round ask for less than the plan.
    slowed: Option<SlowedBy>,
}

impl Planner {
    pub(crate) fn new(cfg: &ResyncConfig, cap: u64, now: Instant) -> Planner {
        Planner {
            cfg: cfg.clone(),
            cap,
            in_sect: 0,
            in_flight: 0,
            plan: VecDeque::from(vec![0; cfg.plan_ahead as usize]),
            planned: 0,
            last_round: None,
            next_round: now,
            quota: 0,
            earned: 0,
            min: MinRate::new(cfg),
            slowed: None,
        }
    }

    pub(crate) fn configure(&mut self, cfg: &ResyncConfig, cap: u64) {
        if self.plan.len() != cfg.plan_ahead as usize {
            self.plan = VecDeque::from(vec![0; cfg.plan_ahead as usize]);
            self.planned = 0;
        }
        self.min.configure(cfg);
        self.cfg = cfg.clone();
        self.cap = cap;
    }

    pub(crate) fn allowance(&mut self, now: Instant, work: Work) -> u64 {
        self.min.mark(now, work.left);
        if now >= self.next_round || self.all_back_early(now) {
            self.round(now);
        }
        if self.quota > 0 && self.min.brakes(now, work.left) {
            self.quota = 0;
            self.slowed = Some(SlowedBy::Application);
        }
        self.quota.min(self.cap.saturating_sub(work.in_flight))
    }

    pub(crate) fn asked(&mut self, bytes: u64) {
        self.quota = self.quota.saturating_sub(bytes);
        self.in_flight += (bytes / 512) as i64;
    }

    pub(crate) fn answered(&mut self, bytes: u64) {
        self.in_sect += (bytes / 512) as i64;
    }

    pub(crate) fn application(&mut self, bytes: u64) {
        self.min.application(bytes);
    }

    pub(crate) fn wake(&self) -> Instant {
        self.next_round
    }

    pub(crate) fn slowed_by(&self) -> Option<SlowedBy> {
        self.slowed
    }

    /// The formula (spec 8.3).
    fn round(&mut self, now: Instant) {
        let elapsed = self.last_round.map_or(TICK, |t| now.since(t)).0.min(1_000_000_000) as i64;
        let scaled =
            |amount: i64| if elapsed < TICK.0 as i64 { amount * TICK.0 as i64 / elapsed.max(1) } else { amount };
        let incoming = scaled(self.in_sect);
        self.in_flight -= self.in_sect;
        self.in_sect = 0;
        let steps = self.plan.len().max(1) as i64;
        let want = if self.in_flight + incoming == 0 {
            i64::from(self.cfg.rate) * steps / 5
        } else if self.cfg.fill_target != 0 {
            i64::from(self.cfg.fill_target)
        } else {
            incoming * i64::from(self.cfg.delay_target)
        };
        let correction = (want - self.in_flight - self.planned) / steps;
        for slot in &mut self.plan {
            *slot += correction;
        }
        self.planned += correction * steps;
        let due = self.plan.pop_front().unwrap_or(0);
        self.plan.push_back(0);
        self.planned -= due;
        let most = if self.cfg.max_rate == 0 { i64::MAX } else { i64::from(self.cfg.max_rate) / 5 };
        let request = (incoming + due).clamp(0, most);
        self.slowed = (incoming + due > most).then_some(SlowedBy::Limit);
        self.quota = (request as u64 * 512 / BLOCK) * BLOCK;
        self.creep(elapsed as u64, self.in_flight + incoming == 0);
        self.last_round = Some(now);
        self.next_round = now + TICK;
    }

    /// A rate of less than a block per tick comes to nothing in each round, and with nothing on its way nothing would
    /// ever change that: such a round saves up, until it is a block. `elapsed`: ns since the last one.
    fn creep(&mut self, elapsed: u64, idle: bool) {
        if self.quota > 0 || !idle {
            self.earned = 0;
            return;
        }
        let most = if self.cfg.max_rate == 0 { u32::MAX } else { self.cfg.max_rate };
        self.earned += u64::from(self.cfg.rate.min(most)) * 1024 * elapsed / 1_000_000_000;
        self.quota = self.earned / BLOCK * BLOCK;
        self.earned -= self.quota;
    }

    /// Everything came back before the tick (spec 8.4).
    fn all_back_early(&mut self, now: Instant) -> bool {
        let Some(last) = self.last_round else { return true };
        if self.in_flight == 0 || self.in_sect < self.in_flight {
            return false;
        }
        let latency = now.since(last);
        if latency.0 == 0 {
            return false;
        }
        let kib = (self.in_sect as u64 / 2).max(1);
        let rate = u64::from(self.cfg.max_rate);
        if rate == 0 || (kib < rate / 20 && latency < Duration::from_millis(50)) {
            return true;
        }
        let pace = Duration(kib * (MAX_REQUEST / 1024 / kib).max(1) * 1_000_000_000 / rate);
        if latency < pace {
            self.next_round = self.next_round.min(last + pace);
        }
        latency >= pace
    }
}
