//! When a wait looks for completions for a while before it sleeps.
//!
//! Waking an idle processor, above all a virtual one, costs more than the whole work on a small write. Where
//! completions come at short intervals it pays to stay awake for the next one. Other processes of this processor are
//! let run at every look; if one of them has real work to do, the processor is left to it.
//!
//! Where so much is under way that bigger batches serve better, a wait lets others run once before it sleeps: whoever
//! shares the processor, a client or the peer, then has more for us when we are woken.

use units::{Duration, Instant};

/// Decides for each wait how long it stays awake, from what the last waits were like.
#[derive(Debug)]
pub struct BusyPoll {
    /// Longest time that a wait stays awake; 0 = never.
    most: Duration,
    /// How long the next wait stays awake.
    window: Duration,
    /// When the present wait began.
    began: Instant,
    /// Others need the processor until then, and for how long they were left it.
    crowded_until: Instant,
    penalty: Duration,
    /// Completions found since others needed the processor.
    found: u32,
    /// Looks that others made long, and the short ones after the last of them.
    long_looks: u32,
    short_looks: u32,
    allowed: bool,
}

/// What a wait stays awake for at first.
const FIRST: Duration = Duration(10_000);
/// Who runs for so long when we let others run is not one of those that we exchange messages with.
const WORK: Duration = Duration(250_000);
/// So many short looks after a long one say that it was by chance: a hypervisor that took the processor away for a
/// while, say. Who has real work to do is there at the next look as well.
const CHANCE: u32 = 100;
/// For how long the processor is left to others, at first and at most.
const PENALTY: (Duration, Duration) = (Duration::from_millis(4), Duration::from_millis(250));
/// So many completions without anybody else at work forgive the past.
const FORGIVEN: u32 = 500;

impl Default for BusyPoll {
    /// Never.
    fn default() -> BusyPoll {
        BusyPoll::at_most(Duration(0))
    }
}

impl BusyPoll {
    /// Waits stay awake for `most` at the longest.
    #[must_use]
    pub fn at_most(most: Duration) -> BusyPoll {
        BusyPoll {
            most,
            window: Duration(0),
            began: Instant(0),
            crowded_until: Instant(0),
            penalty: Duration(0),
            found: 0,
            long_looks: 0,
            short_looks: 0,
            allowed: true,
        }
    }

    /// Whether the next waits may stay awake at all: not when so much is under way that sleeping makes for bigger
    /// batches.
    pub fn allow(&mut self, allowed: bool) {
        self.allowed = allowed;
    }

    /// A wait begins: until when it stays awake, if at all.
    pub(super) fn begin(&mut self, now: Instant) -> Option<Instant> {
        self.began = now;
        let awake = self.allowed && self.window > Duration(0) && now >= self.crowded_until;
        awake.then(|| now + self.window)
    }

    /// A wait that does not stay awake begins: may others run first, so that more comes at a time?
    pub(super) fn gathers(&self, now: Instant) -> bool {
        self.most > Duration(0) && !self.allowed && now >= self.crowded_until
    }

    /// Others were let run from `before` to `after`. True: they need the processor.
    pub(super) fn others_ran(&mut self, before: Instant, after: Instant) -> bool {
        // Whom a deep queue keeps busy works longer.
        let work = if self.allowed { WORK } else { Duration(4 * WORK.0) };
        if after.since(before) < work {
            self.short_looks += 1;
            if self.short_looks >= CHANCE {
                (self.long_looks, self.short_looks) = (0, 0);
            }
            return false;
        }
        (self.long_looks, self.short_looks) = (self.long_looks.saturating_add(1), 0);
        if self.long_looks < 2 {
            return false;
        }
        self.penalty = Duration(self.penalty.0 * 2).clamp(PENALTY.0, PENALTY.1);
        self.crowded_until = after + self.penalty;
        self.found = 0;
        true
    }

    /// A completion came while the wait was awake.
    pub(super) fn found(&mut self) {
        self.found += 1;
        if self.found > FORGIVEN {
            self.penalty = Duration(0);
        }
    }

    /// The wait slept, and ended now.
    pub(super) fn slept(&mut self, now: Instant) {
        // Staying awake longer would have found it: try so next time. After a long wait it would have been a waste.
        self.window = if now.since(self.began).0 <= 2 * self.most.0 {
            Duration((2 * self.window.0).max(FIRST.0)).min(self.most)
        } else {
            Duration(0)
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const US: u64 = 1000;

    /// A wait for something that comes after `takes` ns. True: it stayed awake until then.
    fn wait(poll: &mut BusyPoll, now: &mut Instant, takes: u64) -> bool {
        let end = *now + Duration(takes);
        let awake = poll.begin(*now).is_some_and(|until| until >= end);
        *now = end;
        if awake {
            poll.found()
        } else {
            poll.slept(end)
        }
        awake
    }

    #[test]
    fn only_short_waits_are_spent_awake() {
        let (mut poll, mut now) = (BusyPoll::at_most(Duration(100 * US)), Instant(1));
        let awake: Vec<bool> = (0..6).map(|_| wait(&mut poll, &mut now, 60 * US)).collect();
        assert_eq!(awake, [false, false, false, false, true, true], "the window grows to what is needed");
        assert!(!wait(&mut poll, &mut now, 10_000 * US));
        assert!(poll.begin(now).is_none(), "idle: it sleeps at once");
    }

    #[test]
    fn never_if_not_wanted_or_not_allowed() {
        let (mut never, mut now) = (BusyPoll::default(), Instant(1));
        assert!((0..100).all(|_| !wait(&mut never, &mut now, 5 * US)));
        let mut poll = BusyPoll::at_most(Duration(100 * US));
        assert!(!wait(&mut poll, &mut now, 5 * US) && wait(&mut poll, &mut now, 5 * US));
        poll.allow(false);
        assert!(!wait(&mut poll, &mut now, 5 * US));
    }

    #[test]
    fn the_processor_is_left_to_those_who_need_it() {
        let (mut poll, mut now) = (BusyPoll::at_most(Duration(100 * US)), Instant(1));
        wait(&mut poll, &mut now, 5 * US);
        assert!(!poll.others_ran(now, now + Duration(20 * US)), "who we talk to");
        let mut pauses = Vec::new();
        assert!(!poll.others_ran(now, now + Duration(2_000 * US)), "once is chance");
        for _ in 0..12 {
            let after = now + Duration(2_000 * US);
            assert!(poll.begin(now).is_some() && poll.others_ran(now, after));
            now = after;
            while poll.begin(now).is_none() {
                now = now + Duration(1_000 * US);
            }
            pauses.push(now.since(after).0 / (1_000 * US));
        }
        assert_eq!(pauses[..3], [4, 8, 16], "ms");
        assert_eq!(pauses[11], 250, "at most");
        (0..=FORGIVEN).for_each(|_| poll.found());
        poll.others_ran(now, now + WORK);
        assert_eq!(poll.penalty, PENALTY.0);
    }

    #[test]
    fn a_hypervisor_that_takes_the_processor_now_and_then_changes_nothing() {
        let (mut poll, mut now) = (BusyPoll::at_most(Duration(100 * US)), Instant(1));
        wait(&mut poll, &mut now, 5 * US);
        for _ in 0..50 {
            let after = now + Duration(3_000 * US);
            assert!(!poll.others_ran(now, after), "no one is at the next look");
            now = after;
            (0..CHANCE).for_each(|_| assert!(!poll.others_ran(now, now + Duration(US))));
            assert!(poll.begin(now).is_some());
        }
    }

    #[test]
    fn deep_queues_gather() {
        let (mut poll, now) = (BusyPoll::at_most(Duration(100 * US)), Instant(1));
        assert!(!poll.gathers(now), "a shallow queue stays awake instead");
        poll.allow(false);
        assert!(poll.gathers(now));
        assert!(!poll.others_ran(now, now + WORK), "a busy client");
        let after = now + Duration(4 * WORK.0);
        assert!(!poll.others_ran(now, after) && poll.others_ran(now, after));
        assert!(!poll.gathers(after) && poll.gathers(after + PENALTY.0));
        let mut never = BusyPoll::default();
        never.allow(false);
        assert!(!never.gathers(now));
    }
}
