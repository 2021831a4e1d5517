//! Own writes: one that has not begun, and one that has. What changes about one is private here, and changes by events.

use crate::api::{IoError, Segments};
use crate::repetition::place::Behind;
use crate::request::legs::Legs;
use units::{Instant, NodeMask, SectorRange, VolumeNr};

/// Who is told when a request ends.
#[derive(Clone, Debug)]
pub(crate) enum Owners {
    One(Owner),
    Many(Vec<Owner>),
}

/// The front end's request, or a part of one that was split.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Owner {
    Tag(u64),
    Part(u64),
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum WriteKind {
    Data,
    Discard,
    Zeroes { unmap: bool },
}

/// A write until it is submitted (`docs/spec/data-path-and-resync.md` 0.2): it waits for others, and for the activity
/// log.
#[derive(Clone, Debug)]
pub(crate) struct NewWrite {
    pub(crate) device: VolumeNr,
    pub(crate) kind: WriteKind,
    pub(crate) fua: bool,
    pub(crate) range: SectorRange,
    pub(crate) data: Segments,
    pub(crate) owners: Owners,
    /// Its name in the device's `writing` intervals, once admitted.
    pub(crate) interval: u64,
    pub(crate) al_held: bool,
    pub(crate) came: Instant,
    pub(crate) admitted: Instant,
    /// It is being done again, as this one of its device: some disk may have it from before.
    pub(crate) again: Option<u64>,
}

/// What the own disk says of a write.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Local {
    None,
    Pending,
    Ok,
    Failed(IoError),
}

/// When and as what a write is submitted.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Submitted {
    pub(crate) at: Instant,
    pub(crate) epoch: u32,
    /// In the stream of all own writes (9's dialect).
    pub(crate) position: u64,
    /// This node has no good copy: the peer's is the only one, so that it must be on its disk, whatever the protocol.
    pub(crate) sole: bool,
}

/// A write from its submission until every peer has confirmed it.
#[derive(Clone, Debug)]
pub(crate) struct Write {
    pub(crate) device: VolumeNr,
    pub(crate) kind: WriteKind,
    pub(crate) fua: bool,
    pub(crate) range: SectorRange,
    pub(crate) came: Instant,
    pub(crate) submitted: Submitted,
    pub(crate) legs: Legs,
    local: Local,
    al_held: bool,
    life: Life,
}

/// How far a write has come for the application.
#[derive(Clone, Debug)]
enum Life {
    Open(Open),
    /// Completed, or to be done again as another one.
    Closed,
    /// The same, and a later write to the same blocks was submitted: their bits are that one's business.
    Superseded,
}

/// What is there of a write until it is completed.
#[derive(Clone, Debug)]
pub(crate) struct Open {
    pub(crate) data: Segments,
    pub(crate) owners: Owners,
    pub(crate) interval: u64,
    pub(crate) again: Option<u64>,
    /// When it is settled here it starts again, behind this (spec 3.2).
    pub(crate) repeat: Option<Behind>,
}

impl Owners {
    pub(crate) fn count(&self) -> usize {
        match self {
            Owners::One(_) => 1,
            Owners::Many(all) => all.len(),
        }
    }

    pub(crate) fn into_iter(self) -> impl Iterator<Item = Owner> {
        let (one, many) = match self {
            Owners::One(o) => (Some(o), Vec::new()),
            Owners::Many(v) => (None, v),
        };
        one.into_iter().chain(many)
    }
}

impl NewWrite {
    /// It begins. It is not sent to `unsent`, whose bits say so.
    #[inline(always)]
    pub(super) fn submit(self, submitted: Submitted, unsent: NodeMask) -> Write {
        let NewWrite { device, kind, fua, range, data, owners, interval, al_held, came, again, .. } = self;
        let life = Life::Open(Open { data, owners, interval, again, repeat: None });
        let legs = Legs::new(unsent);
        Write { device, kind, fua, range, came, submitted, legs, local: Local::None, al_held, life }
    }
}

impl Write {
    /// May the application still wait for it?
    pub(crate) fn is_open(&self) -> bool {
        matches!(self.life, Life::Open(_))
    }

    /// Is it completed, on the own disk, and nothing writes these blocks anew? Then what a peer says of it only now
    /// counts for their bits.
    pub(crate) fn counts_for_bits(&self) -> bool {
        matches!(self.life, Life::Closed) && self.local == Local::Ok
    }

    /// How many requests of applications wait for it.
    pub(crate) fn owners(&self) -> usize {
        if let Life::Open(open) = &self.life { open.owners.count() } else { 0 }
    }

    pub(crate) fn data(&self) -> Segments {
        if let Life::Open(open) = &self.life { open.data.clone() } else { Segments::None }
    }

    pub(crate) fn local(&self) -> Local {
        self.local
    }

    pub(crate) fn holds_al(&self) -> bool {
        self.al_held
    }

    /// Is it to be done again?
    pub(crate) fn is_to_repeat(&self) -> bool {
        matches!(&self.life, Life::Open(open) if open.repeat.is_some())
    }

    /// May it be forgotten?
    pub(crate) fn is_over(&self) -> bool {
        !self.is_open() && !self.legs.is_open() && self.local != Local::Pending
    }

    // -- what happens to it ------------------------------------------------------------------------------------------

    pub(super) fn disk_begins(&mut self) {
        self.local = Local::Pending;
    }

    pub(super) fn disk_ends(&mut self, result: Result<(), IoError>) {
        self.local = result.map_or_else(Local::Failed, |()| Local::Ok);
    }

    /// When it is settled here it is done again.
    pub(crate) fn repeat(&mut self, behind: Behind) {
        if let Life::Open(open) = &mut self.life {
            open.repeat = Some(behind);
        }
    }

    /// The application no longer waits for it, or waits for another one. `None`: it did not.
    pub(crate) fn close(&mut self) -> Option<Open> {
        match std::mem::replace(&mut self.life, Life::Closed) {
            Life::Open(open) => Some(open),
            over => {
                self.life = over;
                None
            }
        }
    }

    /// A later write to the same blocks begins.
    pub(crate) fn supersede(&mut self) {
        if matches!(self.life, Life::Closed) {
            self.life = Life::Superseded;
        }
    }

    /// Its activity-log extents are given back, go to another one, or are gone with the disk. False: it holds none.
    pub(crate) fn leave_al(&mut self) -> bool {
        std::mem::take(&mut self.al_held)
    }
}
