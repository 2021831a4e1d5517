//! Writes that wait for the activity log of one device.

use crate::al::streams::Streams;
use crate::request::write::NewWrite;
use meta::activity_log::{Ticket, Transaction};
use std::collections::VecDeque;
use units::SectorRange;

/// Writes that wait for the activity log of one device.
#[derive(Debug, Default)]
pub(crate) struct AlQueue {
    /// Refused for now, oldest first.
    pub(super) refused: VecDeque<AlJob>,
    /// Hold their extents, wait for the commit of their ticket.
    pub(super) taken: VecDeque<(Ticket, AlJob)>,
    pub(super) transaction: Option<InFlight>,
    pub(super) streams: Streams,
    /// The log has released or committed something: ask again for the refused.
    pub(super) recheck: bool,
}

/// What goes on when its extents are hot.
#[derive(Debug)]
pub(crate) enum AlJob {
    Local(Box<NewWrite>),
    Peer(u64, SectorRange),
}

#[derive(Debug)]
pub(super) struct InFlight {
    pub(super) transaction: Transaction,
    /// The block itself has been handed to the disk; before that, evicted extents' bitmap pages are written.
    pub(super) block_written: bool,
}

impl AlQueue {
    /// The log has room again, perhaps.
    pub(crate) fn ask_again(&mut self) {
        self.recheck = true;
    }

    /// Does something wait until others release their extents?
    pub(crate) fn is_starved(&self) -> bool {
        !self.refused.is_empty()
    }
}

impl AlJob {
    pub(super) fn range(&self) -> SectorRange {
        match self {
            AlJob::Local(w) => w.range,
            AlJob::Peer(_, range) => *range,
        }
    }
}
