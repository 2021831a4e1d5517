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
    /// The same, and there is one, which was frozen until now: for the peers it still is.
    Thawing,
    /// There is one. These peers have not said that they are there.
    Pinging(PingedPeers),
    /// It is on its way to the disk, and peers have been told. Is a further one to begin with the write that follows,
    /// as a peer was lost since?
    Writing { due: bool },
    /// The same, and what was frozen goes on behind it.
    WritingForFrozen,
}

impl FirstWrite {
    /// Is one to begin, and has nobody been asked whether he is there?
    pub(crate) fn may_begin(&self) -> bool {
        matches!(self, FirstWrite::Due | FirstWrite::Thawing)
    }

    /// Does what was frozen wait for it?
    pub(crate) fn keeps_frozen(&self) -> bool {
        matches!(self, FirstWrite::Thawing | FirstWrite::WritingForFrozen)
    }

    /// May a write begin?
    pub(crate) fn lets_writes_begin(&self) -> bool {
        matches!(self, FirstWrite::Nothing | FirstWrite::Due | FirstWrite::Thawing)
    }

    /// Is one to begin with a write to come?
    pub(crate) fn is_due(&self) -> bool {
        matches!(self, FirstWrite::Due | FirstWrite::Thawing | FirstWrite::Writing { due: true })
    }

    /// Is one to begin before any write ends that a peer may lack?
    pub(crate) fn comes_first(&self) -> bool {
        matches!(self, FirstWrite::Due | FirstWrite::Thawing | FirstWrite::Pinging(_))
    }

    /// From now on one is to begin with the next write, or is not. One that is on its way goes on.
    pub(crate) fn put_due(&mut self, due: bool) {
        *self = match (&*self, due) {
            (FirstWrite::WritingForFrozen, false) => FirstWrite::WritingForFrozen,
            (FirstWrite::WritingForFrozen | FirstWrite::Writing { .. }, due) => FirstWrite::Writing { due },
            (FirstWrite::Thawing, true) => FirstWrite::Thawing,
            (_, true) => FirstWrite::Due,
            (_, false) => FirstWrite::Nothing,
        };
    }
}
