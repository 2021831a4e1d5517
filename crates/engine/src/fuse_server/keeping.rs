//! What a process has to do with its keeper: who it is, what it answers with, and from when on it reads nothing.

use frontends::fuse::facts::Facts;
use frontends::keeper::{FACTS, Keeper, Place, REQUESTS};
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
    /// While this is open the keeper reads nothing.
    taken: Option<OwnedFd>,
}

/// What the keeper works with, until it is taken over.
#[derive(Debug)]
pub(super) struct Left {
    /// What the process has read and not answered, if the kernel does not hand it out again.
    requests: Option<OwnedFd>,
    /// What it has said of its files. `None`: it was of a version whose keeper reads nothing.
    facts: Option<OwnedFd>,
}

/// Between two tries to have the connection from a keeper that does not answer, and how many there are.
const PAUSE: Duration = Duration::from_millis(10);
const TRIES: u32 = 3000;

impl Left {
    /// `take` takes out of what the keeper has.
    pub(super) fn from(mut take: impl FnMut(Place) -> Option<OwnedFd>) -> Left {
        Left { requests: take(REQUESTS), facts: take(FACTS) }
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

    /// What the last process has read and not answered, as long as this one has not gone on.
    pub(super) fn requests(&self) -> Option<BorrowedFd<'_>> {
        self.left.as_ref().and_then(|(_, left)| left.requests.as_ref()).map(AsFd::as_fd)
    }

    /// Has the last process left something that this one has not gone on with?
    pub(super) fn has_left(&self) -> bool {
        self.left.is_some()
    }

    /// From here on this process reads the connection, and the keeper does not. What the last process has not answered
    /// is returned, if the kernel does not hand it out again.
    ///
    /// # Errors
    /// If the keeper does not answer: it may be reading.
    pub(super) fn take(&mut self) -> io::Result<Option<OwnedFd>> {
        let Some((keeper, left)) = &self.left else { return Ok(None) };
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
        Ok(self.left.take().and_then(|(_, left)| left.requests))
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
        keeper.put(FACTS, self.facts.insert(facts).descriptor())
    }
}
