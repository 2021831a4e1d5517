//! Generations that come with a Primary's first write.

use crate::pings::PingedPeers;

/// Is a generation to begin with the next write of a volume?
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) enum FirstWrite {
    /// No.
    #[default]
    Nothing,
    /// Yes, when there is one.
    Due,
    /// There is one. These peers have not said that they are there.
    Pinging(PingedPeers),
    /// It is on its way to the disk, and peers have been told. Is a further one to begin with the write that follows,
    /// as a peer was lost since?
    Writing { due: bool },
}

impl FirstWrite {
    /// May a write begin?
    pub(crate) fn lets_writes_begin(&self) -> bool {
        matches!(self, FirstWrite::Nothing | FirstWrite::Due)
    }

    /// Is one to begin with a write to come?
    pub(crate) fn is_due(&self) -> bool {
        matches!(self, FirstWrite::Due | FirstWrite::Writing { due: true })
    }

    /// Is one to begin before any write ends that a peer may lack?
    pub(crate) fn comes_first(&self) -> bool {
        matches!(self, FirstWrite::Due | FirstWrite::Pinging(_))
    }

    /// From now on one is to begin with the next write, or is not. One that is on its way goes on.
    pub(crate) fn put_due(&mut self, due: bool) {
        *self = match (&*self, due) {
            (FirstWrite::Writing { .. }, due) => FirstWrite::Writing { due },
            (_, true) => FirstWrite::Due,
            (_, false) => FirstWrite::Nothing,
        };
    }
}
