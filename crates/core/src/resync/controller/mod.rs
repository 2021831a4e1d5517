//! How fast a resync or verify may ask: three controllers behind one door
//! (`docs/spec/data-path-and-resync.md` 8).
//!
//! All are pure: they see the time, the bytes asked for and answered, and how long applications' requests take. They
//! act whenever they are asked for an allowance, and name the time at which that is worth while again.

mod adaptive;
mod brake;
mod fixed;
mod floor;
mod guard;
mod planner;
#[cfg(test)]
mod plant;

pub(crate) use adaptive::Adaptive;
pub(crate) use brake::{Serving, SourceBrake};
pub(crate) use fixed::Fixed;
pub(crate) use planner::Planner;

use crate::config::{ResyncConfig, ResyncController};
use crate::resync::marks::SlowedBy;
use units::{Duration, Instant};

/// Largest resync request in bytes (`docs/spec/wire-protocol.md` 5.7).
pub(crate) const MAX_REQUEST: u64 = 1 << 20;
/// Smallest: one block of the bitmap.
pub(crate) const BLOCK: u64 = 4096;
/// A request of which several are on their way, and beside applications the largest.
pub(crate) const PIECE: u64 = 64 << 10;

/// The speed of one resync or verify.
#[derive(Debug)]
pub(crate) enum Controller {
    Fixed(Fixed),
    Drbd(Planner),
    Adaptive(Box<Adaptive>),
}

/// What a controller must know of the work.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Work {
    /// Bytes asked for and not done.
    pub(crate) in_flight: u64,
    /// Bytes still to do.
    pub(crate) left: u64,
    /// An application's request is being worked on.
    pub(crate) busy: bool,
}

impl Controller {
    /// `cap`: most bytes that may be in flight (`max-buffers`).
    pub(crate) fn new(cfg: &ResyncConfig, cap: u64, now: Instant) -> Controller {
        match kind(cfg) {
            ResyncController::Fixed => Controller::Fixed(Fixed::new(cfg, cap, now)),
            ResyncController::Drbd => Controller::Drbd(Planner::new(cfg, cap, now)),
            ResyncController::Adaptive => Controller::Adaptive(Box::new(Adaptive::new(cfg, cap, now))),
        }
    }

    /// Options changed: goes on with them, or begins anew as another controller.
    pub(crate) fn configure(&mut self, cfg: &ResyncConfig, cap: u64, now: Instant) {
        match (self, kind(cfg)) {
            (Controller::Fixed(c), ResyncController::Fixed) => c.configure(cfg, cap, now),
            (Controller::Drbd(c), ResyncController::Drbd) => c.configure(cfg, cap),
            (Controller::Adaptive(c), ResyncController::Adaptive) => c.configure(cfg, cap, now),
            (this, _) => *this = Controller::new(cfg, cap, now),
        }
    }

    /// Bytes that may be asked for now.
    pub(crate) fn allowance(&mut self, now: Instant, work: Work) -> u64 {
        match self {
            Controller::Fixed(c) => c.allowance(now, work),
            Controller::Drbd(c) => c.allowance(now, work),
            Controller::Adaptive(c) => c.allowance(now, work),
        }
    }

    /// So many bytes were asked for.
    pub(crate) fn asked(&mut self, bytes: u64) {
        match self {
            Controller::Fixed(c) => c.asked(bytes),
            Controller::Drbd(c) => c.asked(bytes),
            Controller::Adaptive(c) => c.asked(bytes),
        }
    }

    /// The answer to a request is here.
    pub(crate) fn answered(&mut self, bytes: u64) {
        if let Controller::Drbd(c) = self {
            c.answered(bytes);
        }
    }

    /// A request that was sent at `sent` is done, on disk included.
    pub(crate) fn completed(&mut self, now: Instant, sent: Instant) {
        if let Controller::Adaptive(c) = self {
            c.completed(now, sent);
        }
    }

    /// An application's request of so many bytes took `latency` here.
    pub(crate) fn application(&mut self, now: Instant, latency: Duration, bytes: u64) {
        match self {
            Controller::Fixed(_) => {}
            Controller::Drbd(c) => c.application(bytes),
            Controller::Adaptive(c) => c.application(now, latency),
        }
    }

    /// Why it permits less than disks and network could do, if it does.
    pub(crate) fn slowed_by(&self, now: Instant) -> Option<SlowedBy> {
        match self {
            Controller::Fixed(c) => c.wake().map(|_| SlowedBy::Limit),
            Controller::Drbd(c) => c.slowed_by(),
            Controller::Adaptive(c) => c.slowed_by(now),
        }
    }

    /// When asking for an allowance again may give more, if nothing happens until then.
    pub(crate) fn wake(&self) -> Option<Instant> {
        match self {
            Controller::Fixed(c) => c.wake(),
            Controller::Drbd(c) => Some(c.wake()),
            Controller::Adaptive(c) => c.wake(),
        }
    }
}

fn kind(cfg: &ResyncConfig) -> ResyncController {
    if cfg.plan_ahead == 0 { ResyncController::Fixed } else { cfg.controller }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What slows it after a second in which all that is asked for comes at once.
    fn after(cfg: &ResyncConfig, beside_applications: bool) -> Option<SlowedBy> {
        let mut now = Instant(0);
        let mut c = Controller::new(cfg, 64 << 20, now);
        for _ in 0..40 {
            now = now + Duration::from_millis(25);
            if beside_applications {
                c.application(now, Duration::from_millis(1), 4096);
            }
            let allowed = c.allowance(now, Work { in_flight: 0, left: 1 << 30, busy: beside_applications });
            c.asked(allowed);
            c.answered(allowed);
            c.completed(now, now);
        }
        c.slowed_by(now)
    }

    #[test]
    fn each_controller_says_what_it_makes_way_for() {
        let fixed = ResyncConfig { plan_ahead: 0, rate: 1024, ..ResyncConfig::default() };
        assert_eq!(after(&fixed, false), Some(SlowedBy::Limit));
        let drbd = ResyncConfig { controller: ResyncController::Drbd, max_rate: 1024, ..ResyncConfig::default() };
        assert_eq!(after(&drbd, false), Some(SlowedBy::Limit));
        let adaptive = ResyncConfig { controller: ResyncController::Adaptive, ..ResyncConfig::default() };
        assert_eq!(after(&adaptive, false), None);
        assert_eq!(after(&adaptive, true), Some(SlowedBy::Application));
        let limited = ResyncConfig { max_rate: 1024, ..adaptive };
        assert_eq!(after(&limited, false), Some(SlowedBy::Limit));
    }
}
