//! What the keeper answers while no process is there, see [`fuse::absent`](crate::fuse::absent).

use super::{FACTS, Kind, Place, REQUESTS};
use crate::fuse::absent::{Absent, Means};
use crate::fuse::facts::Facts;
use crate::fuse::ledger::Ledger;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::time::Duration;

#[derive(Default)]
pub(super) struct Answering {
    absent: Absent,
    facts: Option<Facts>,
    ledger: Option<Ledger>,
    /// No process is there.
    alone: bool,
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
        } else if place == REQUESTS && !self.ledger.as_ref().is_some_and(|ledger| ledger.is(descriptor)) {
            self.forget(place);
            self.ledger = copy().and_then(Ledger::inherit).ok();
        }
    }

    /// It has taken it away.
    pub(super) fn forget(&mut self, place: Place) {
        if place == FACTS {
            self.facts.take().into_iter().for_each(Facts::unmap);
        } else if place == REQUESTS {
            self.ledger.take().into_iter().for_each(Ledger::unmap);
        }
    }

    /// The process is gone.
    pub(super) fn begin(&mut self, held: &[(Place, OwnedFd)]) {
        self.alone = true;
        self.with(held, |absent, mut means| absent.begin(&mut means).is_ok());
    }

    /// There is one that reads the connection.
    pub(super) fn end(&mut self) {
        self.alone = false;
    }

    /// What becomes readable when there is something to answer.
    pub(super) fn awaits(&self, held: &[(Place, OwnedFd)]) -> Option<RawFd> {
        let has_room = match &self.facts {
            Some(facts) if facts.uses_ledger() => self.ledger.as_ref().is_some_and(|ledger| !ledger.is_full()),
            facts => facts.is_some(),
        };
        connection(held).filter(|_| self.alone && has_room)
    }

    /// How soon there is something to do in any case.
    pub(super) fn look_in(&self) -> Option<Duration> {
        self.absent.look_in().filter(|_| self.alone)
    }

    /// Answers what there is.
    pub(super) fn go_on(&mut self, held: &[(Place, OwnedFd)]) {
        self.with(held, |absent, mut means| {
            absent.look(&mut means);
            absent.pump(&mut means)
        });
    }

    /// Nothing is answered any more if `act` says false.
    fn with(&mut self, held: &[(Place, OwnedFd)], act: impl FnOnce(&mut Absent, Means<'_>) -> bool) {
        let (Some(connection), Some(facts)) = (connection(held).filter(|_| self.alone), &self.facts) else { return };
        let ledger = self.ledger.as_mut().filter(|_| facts.uses_ledger());
        if facts.uses_ledger() && ledger.is_none() {
            return;
        }
        self.alone = act(&mut self.absent, Means { connection, facts, ledger });
    }
}

fn connection(held: &[(Place, OwnedFd)]) -> Option<RawFd> {
    let found = held.iter().find(|(place, _)| place.kind == Kind::Connection);
    found.map(|(_, descriptor)| descriptor.as_raw_fd())
}
