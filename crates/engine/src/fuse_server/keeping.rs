//! What a process has to do with its keeper: who it is, what it answers with, and from when on it reads nothing.

use frontends::fuse::facts::Facts;
use frontends::keeper::{FACTS, Keeper, LEFT, Place, REQUESTS};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

#[derive(Default)]
pub(super) struct Keeping {
    /// Who holds what outlives this process.
    keeper: Option<Keeper>,
    /// What it answers with when this process is gone. `None`: what the last one has said is true.
    facts: Option<Facts>,
    /// As long as this process waits to be Primary again: what the last one has left for it to go on with.
    left: Option<(Keeper, Left)>,
    /// While this is open the keeper reads nothing, unless this process does not work.
    taken: Option<OwnedFd>,
    /// How much of what the keeper has left to this process it has dealt with.
    dealt_with: u64,
}

/// What the keeper works with, until it is taken over.
#[derive(Debug)]
pub(super) struct Left {
    /// What the process has read and not answered, if the kernel does not hand it out again.
    requests: Option<OwnedFd>,
    /// What the keeper has read beside it.
    beside: Option<OwnedFd>,
    /// What it has said of its files. `None`: it was of a version whose keeper reads nothing.
    facts: Option<OwnedFd>,
}

/// The keeper cannot have said so often that it has left something.
const UNKNOWN: u64 = u64::MAX;

/// Between two tries to have the connection from a keeper that does not answer, and how many there are.
const PAUSE: Duration = Duration::from_millis(10);
const TRIES: u32 = 3000;

impl Left {
    /// `take` takes out of what the keeper has.
    pub(super) fn from(mut take: impl FnMut(Place) -> Option<OwnedFd>) -> Left {
        Left { requests: take(REQUESTS), beside: take(LEFT), facts: take(FACTS) }
    }

    /// Does the kernel hand out again what it has not answered?
    pub(super) fn comes_again(&self) -> bool {
        self.requests.is_none()
    }
}

impl Keeping {
    pub(super) fn inherited(keeper: Keeper, left: Left) -> Keeping {
        Keeping { keeper: Some(keeper.clone()), left: Some((keeper, left)), ..Keeping::default() }
    }

    pub(super) fn keeper(&self) -> Option<&Keeper> {
        self.keeper.as_ref()
    }

    pub(super) fn set_keeper(&mut self, keeper: Option<Keeper>) {
        self.keeper = keeper;
    }

    pub(super) fn facts(&self) -> Option<&Facts> {
        self.facts.as_ref()
    }

    /// They are of other volumes by now, and are made anew when they are said next. What the keeper has put aside since
    /// they were looked at is looked for.
    pub(super) fn forget_facts(&mut self) {
        if let Some(facts) = self.facts.take() {
            facts.unmap();
            self.look_again();
        }
    }

    /// This process is at work, and asks for what the keeper puts aside meanwhile.
    pub(super) fn count_turn(&self) {
        if let Some(facts) = &self.facts {
            facts.count_turn();
        }
    }

    /// How much the keeper has read beside this process that concerns this process, if not all of it was dealt with.
    pub(super) fn left(&self) -> Option<u64> {
        Some(self.facts.as_ref().map_or(0, Facts::aside)).filter(|left| *left != self.dealt_with)
    }

    /// With so much of it. Has the keeper said that there was something?
    pub(super) fn has_dealt_with(&mut self, left: u64) -> bool {
        std::mem::replace(&mut self.dealt_with, left) != UNKNOWN
    }

    /// There may be something whatever the keeper has said.
    pub(super) fn look_again(&mut self) {
        self.dealt_with = UNKNOWN;
    }

    /// What the last process has read and not answered, as long as this one has not gone on.
    pub(super) fn requests(&self) -> impl Iterator<Item = (Place, BorrowedFd<'_>)> {
        let left = self.left.iter().flat_map(|(_, left)| [(REQUESTS, &left.requests), (LEFT, &left.beside)]);
        left.filter_map(|(place, fd)| Some((place, fd.as_ref()?.as_fd())))
    }

    /// Has the last process left something that this one has not gone on with?
    pub(super) fn has_left(&self) -> bool {
        self.left.is_some()
    }

    /// From here on this process reads the connection, and the keeper does not. What the last process has not answered
    /// is returned, and what the keeper has read beside it, if the kernel does not hand it out again.
    ///
    /// # Errors
    /// If the keeper does not answer: it may be reading.
    pub(super) fn take(&mut self) -> io::Result<(Option<OwnedFd>, Option<OwnedFd>)> {
        let Some((keeper, left)) = &self.left else { return Ok((None, None)) };
        // One of an older version knows nothing of this, and reads nothing.
        let may_read = left.facts.is_some();
        let mut tries = TRIES;
        while tries > 0 {
            tries -= 1;
            match keeper.take() {
                Ok(taken) => {
                    self.taken = Some(taken);
                    break;
                }
                // One that does not answer may be dying, and reads until it is dead.
                Err(_) if !may_read || !keeper.is_there() => break,
                Err(e) if tries == 0 => return Err(io::Error::new(e.kind(), format!("the keeper: {e}"))),
                Err(_) => std::thread::sleep(PAUSE),
            }
        }
        Ok(self.left.take().map(|(_, left)| (left.requests, left.beside)).unwrap_or_default())
    }

    /// Gives the keeper what it answers with when this process is gone: as long as this process waits to be Primary
    /// again, what the last one has said; else what is `made` the first time.
    ///
    /// # Errors
    /// If it cannot be made, or the keeper does not take it.
    pub(super) fn say(&mut self, made: impl FnOnce() -> io::Result<Facts>) -> io::Result<()> {
        let Some(keeper) = &self.keeper else { return Ok(()) };
        if let Some((_, left)) = &self.left {
            return left.facts.as_ref().map_or(Ok(()), |facts| keeper.put(FACTS, facts.as_fd()));
        }
        let facts = match self.facts.take() {
            Some(facts) => facts,
            None => made()?,
        };
        // Before the keeper sees them: it does not look again for what it may do.
        facts.count_turn();
        keeper.put(FACTS, self.facts.insert(facts).descriptor())
    }
}
