//! The clock of each node: it never goes back, but it may jump ahead, be slow or fast, or stand still.

use crate::cluster::Cluster;
use units::{Duration, Instant};

/// From the simulator's time to a node's.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock {
    /// Since when it runs so.
    since: Instant,
    /// What it showed then.
    shown: Instant,
    /// Its speed.
    percent: u64,
}

impl Default for Clock {
    fn default() -> Clock {
        Clock { since: Instant(0), shown: Instant(0), percent: 100 }
    }
}

impl Clock {
    /// What it shows.
    pub(crate) fn show(&self, now: Instant) -> Instant {
        let passed = u128::from(now.since(self.since).0) * u128::from(self.percent) / 100;
        Instant(self.shown.0 + passed as u64)
    }

    /// When it will show `at`. A clock that stands still does so a day later: by then it has been set going.
    pub(crate) fn when(&self, at: Instant, now: Instant) -> Instant {
        let wait = u128::from(at.since(self.show(now)).0) * 100;
        let wait = wait.checked_div(u128::from(self.percent)).map_or(86_400_000_000_000, |w| w as u64);
        // Rounded up: at that time it does show it.
        now + Duration(if self.percent == 100 { wait } else { wait + 1 + 100 / self.percent.max(1) })
    }

    pub(crate) fn run_at(&mut self, now: Instant, percent: u64) {
        *self = Clock { since: now, shown: self.show(now), percent };
    }

    pub(crate) fn jump(&mut self, now: Instant, ahead: Duration) {
        *self = Clock { since: now, shown: self.show(now) + ahead, percent: self.percent };
    }
}

impl Cluster {
    /// What this node believes the time to be.
    pub(crate) fn clock(&self, n: usize) -> Instant {
        self.nodes[n].clock.show(self.now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_awaited_is_shown_then() {
        let second = Duration::from_secs(1);
        let mut clock = Clock::default();
        let mut now = Instant(0);
        for percent in [100, 10, 1000, 90, 110, 7] {
            clock.run_at(now, percent);
            for wait in [1, 99, 1_000_000_007] {
                let (at, before) = (clock.show(now) + Duration(wait), now);
                now = clock.when(at, now);
                assert!(clock.show(now) >= at && now > before, "{percent} {wait}");
            }
        }
        clock.run_at(now, 0);
        let stands = clock.show(now);
        clock.jump(now + second, second);
        assert_eq!(clock.show(now + second + second), stands + second);
    }
}
