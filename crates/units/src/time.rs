//! Virtual time: a number that the caller supplies. Nothing here reads a clock.

use std::fmt;
use std::ops::{Add, Sub};

/// A point of time in nanoseconds since an origin of the caller's choice (monotonic).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Instant(pub u64);

/// A span of time in nanoseconds.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Duration(pub u64);

impl Duration {
    /// Milliseconds.
    #[must_use]
    pub const fn from_millis(ms: u64) -> Duration {
        Duration(ms * 1_000_000)
    }

    /// Seconds.
    #[must_use]
    pub const fn from_secs(s: u64) -> Duration {
        Duration(s * 1_000_000_000)
    }

    /// Whole milliseconds, rounded down.
    #[must_use]
    pub const fn as_millis(self) -> u64 {
        self.0 / 1_000_000
    }

    /// So many times as long; the longest there is if that is too much.
    #[must_use]
    pub const fn times(self, n: u64) -> Duration {
        Duration(self.0.saturating_mul(n))
    }

    /// Seconds as a float, for display only.
    #[must_use]
    pub fn as_secs_f64(self) -> f64 {
        self.0 as f64 / 1e9
    }
}

impl Instant {
    /// Time since `earlier`; zero if `earlier` is later.
    #[must_use]
    pub fn since(self, earlier: Instant) -> Duration {
        Duration(self.0.saturating_sub(earlier.0))
    }
}

/// The earlier of two points of time, of which neither need be. The end of time does not come.
#[must_use]
#[inline]
pub fn sooner(a: Option<Instant>, b: Option<Instant>) -> Option<Instant> {
    let never = Instant(u64::MAX);
    let first = a.unwrap_or(never).min(b.unwrap_or(never));
    (first != never).then_some(first)
}

impl Add<Duration> for Instant {
    type Output = Instant;
    fn add(self, d: Duration) -> Instant {
        Instant(self.0.saturating_add(d.0))
    }
}

impl Sub<Instant> for Instant {
    type Output = Duration;
    fn sub(self, o: Instant) -> Duration {
        self.since(o)
    }
}

impl Add for Duration {
    type Output = Duration;
    fn add(self, o: Duration) -> Duration {
        Duration(self.0.saturating_add(o.0))
    }
}

impl fmt::Debug for Instant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "t{}.{:06}", self.0 / 1_000_000_000, self.0 / 1000 % 1_000_000)
    }
}

impl fmt::Debug for Duration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}us", self.0 / 1000)
    }
}

#[cfg(test)]
mod tests {
    use super::{Instant, sooner};

    #[test]
    fn the_sooner_of_what_there_is() {
        let [early, late, never] = [1, 2, u64::MAX].map(|t| Some(Instant(t)));
        assert_eq!([sooner(early, late), sooner(late, early), sooner(None, late)], [early, early, late]);
        assert_eq!([sooner(late, None), sooner(never, None), sooner(never, early)], [late, None, early]);
        assert_eq!(sooner(None, None), None);
    }
}
