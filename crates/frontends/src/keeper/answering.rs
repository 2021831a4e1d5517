//! What the keeper answers while no process does, see [`fuse::absent`](crate::fuse::absent).
//!
//! That one is gone is known at once, and nobody but the keeper reads then. That it was stopped, or hangs, is seen by
//! the turns it counts: it has made none for a while although the kernel has something for it. It may work again with
//! the next instruction, and both may read for a moment.

use super::{FACTS, Kind, LEFT, Place, REQUESTS};
use crate::fuse::absent::{Absent, Means};
use crate::fuse::facts::Facts;
use crate::fuse::ledger::Ledger;
use crate::sys;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

/// A process that has made no turn for so long, while the kernel has something for it, does not work. Or it gets no
/// processor: what the keeper cannot answer is handed out once more, which costs some time and nothing else.
const STILL: Duration = Duration::from_millis(250);

#[derive(Default)]
pub(super) struct Answering {
    absent: Absent,
    facts: Option<Facts>,
    ledger: Option<Ledger>,
    /// Where goes what is read beside a process.
    left: Option<Ledger>,
    reader: Reader,
    /// The facts are those of the process that reads the connection, or of who read it last.
    current: bool,
    /// When there was something to read, and how many turns the process had made.
    noticed: Option<(Instant, u64)>,
}

/// Who reads the connection.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum Reader {
    #[default]
    Process,
    /// The keeper, and no process is there.
    Keeper,
    /// The keeper beside a process that has stopped with this turn.
    Beside(u64),
}

impl Answering {
    /// A process has put something there.
    pub(super) fn learn(&mut self, place: Place, descriptor: BorrowedFd<'_>) {
        let copy = || descriptor.try_clone_to_owned();
        if place == FACTS && !self.facts.as_ref().is_some_and(|facts| facts.is(descriptor)) {
            self.forget(place);
            // Without them nothing is answered, as with what another version has put there.
            self.facts = copy().and_then(Facts::inherit).ok();
            // Who says something new reads the connection, whether he has taken it or not.
            self.end();
            self.current = true;
        } else if place == REQUESTS && !self.ledger.as_ref().is_some_and(|ledger| ledger.is(descriptor)) {
            self.forget(place);
            self.ledger = copy().and_then(Ledger::inherit).ok();
        } else if place == LEFT && !self.left.as_ref().is_some_and(|ledger| ledger.is(descriptor)) {
            self.forget(place);
            self.left = copy().and_then(Ledger::inherit).ok();
        }
    }

    /// It has taken it away.
    pub(super) fn forget(&mut self, place: Place) {
        if place == FACTS {
            self.facts.take().into_iter().for_each(Facts::unmap);
        } else if place == REQUESTS {
            self.ledger.take().into_iter().for_each(Ledger::unmap);
        } else if place == LEFT {
            self.left.take().into_iter().for_each(Ledger::unmap);
        }
    }

    /// The process is gone.
    pub(super) fn begin(&mut self, held: &[(Place, OwnedFd)]) {
        self.reader = Reader::Keeper;
        self.with(held, |absent, means, left| absent.begin(means, left).is_ok());
    }

    /// There is one that reads the connection. What it says of its files is still to come.
    pub(super) fn end(&mut self) {
        (self.reader, self.current, self.noticed) = (Reader::Process, false, None);
    }

    /// What becomes readable when there is something to answer, or for a process that is watched for its answers.
    pub(super) fn awaits<'a>(&self, held: &'a [(Place, OwnedFd)], watched: bool) -> Option<BorrowedFd<'a>> {
        let has_room = |ledger: &Option<Ledger>| match &self.facts {
            Some(facts) if facts.uses_ledger() => ledger.as_ref().is_some_and(|ledger| !ledger.is_full()),
            facts => facts.is_some(),
        };
        let awaits = match self.reader {
            Reader::Process => watched && self.noticed.is_none() && self.turns().is_some(),
            Reader::Keeper => has_room(&self.ledger),
            Reader::Beside(_) => has_room(&self.left),
        };
        connection(held).filter(|_| awaits)
    }

    /// How soon there is something to do in any case.
    pub(super) fn look_in(&self) -> Option<Duration> {
        match self.reader {
            // Waiting is counted in whole milliseconds.
            Reader::Process => {
                self.noticed.map(|(since, _)| (STILL + Duration::from_millis(1)).saturating_sub(since.elapsed()))
            }
            Reader::Keeper | Reader::Beside(_) => self.absent.look_in(),
        }
    }

    /// Answers what there is. True: the process, which is `watched`, has to know that something was put aside.
    pub(super) fn go_on(&mut self, held: &[(Place, OwnedFd)], watched: bool) -> bool {
        match self.reader {
            Reader::Beside(turn) if self.turns() != Some(turn) => {
                self.absent.end_beside();
                self.reader = Reader::Process;
            }
            Reader::Process if !watched || self.turns().is_none() => self.noticed = None,
            Reader::Process => self.watch_turns(held),
            Reader::Keeper | Reader::Beside(_) => {}
        }
        let aside = |facts: &Option<Facts>| facts.as_ref().map(Facts::aside);
        let before = aside(&self.facts);
        self.with(held, |absent, means, _| {
            absent.look(means);
            absent.pump(means)
        });
        before != aside(&self.facts)
    }

    /// How many turns the process has made, if it is one beside which something may be read: it asks for what was put
    /// aside, and the kernel hands that out, or there is a place for it.
    fn turns(&self) -> Option<u64> {
        let has_place = |facts: &&Facts| !facts.uses_ledger() || self.ledger.is_some() && self.left.is_some();
        let facts = self.facts.as_ref().filter(|_| self.current).filter(has_place)?;
        Some(facts.turns()).filter(|turns| *turns > 0)
    }

    /// The kernel may have something for the process: does it work?
    fn watch_turns(&mut self, held: &[(Place, OwnedFd)]) {
        let (Some(connection), Some(turns)) = (connection(held), self.turns()) else { return };
        if self.noticed.is_some_and(|(since, _)| since.elapsed() < STILL) {
            return;
        }
        let noticed = self.noticed.take();
        if !sys::wait_for(connection, Duration::ZERO) {
            return;
        }
        match noticed {
            Some((_, before)) if before == turns => {
                self.reader = Reader::Beside(turns);
                self.with(held, |absent, means, _| absent.begin_beside(means).is_ok());
            }
            _ => self.noticed = Some((Instant::now(), turns)),
        }
    }

    /// Nothing is answered any more if `act` says false.
    fn with(
        &mut self,
        held: &[(Place, OwnedFd)],
        act: impl FnOnce(&mut Absent, &mut Means<'_>, Option<&Ledger>) -> bool,
    ) {
        let (Some(connection), Some(facts)) = (connection(held), &self.facts) else { return };
        let beside = match self.reader {
            Reader::Process => return,
            Reader::Keeper => None,
            Reader::Beside(turn) => Some(turn),
        };
        let (ledger, left) = match beside {
            Some(_) => (self.left.as_mut(), None),
            None => (self.ledger.as_mut(), self.left.as_ref()),
        };
        let ledger = ledger.filter(|_| facts.uses_ledger());
        if facts.uses_ledger() && ledger.is_none() {
            return;
        }
        if !act(&mut self.absent, &mut Means { connection, facts, ledger, beside }, left) {
            self.end();
        }
    }
}

fn connection(held: &[(Place, OwnedFd)]) -> Option<BorrowedFd<'_>> {
    let found = held.iter().find(|(place, _)| place.kind == Kind::Connection);
    found.map(|(_, descriptor)| descriptor.as_fd())
}
