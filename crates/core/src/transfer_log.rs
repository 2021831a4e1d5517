//! The transfer log: own writes that a peer has not confirmed for good, in the order in which it got them, with the
//! barriers between their epochs (`docs/spec/data-path-and-resync.md` 1.6, 1.9).
//!
//! Owns [`TransferLog`], one per connection, and [`OwnEpoch`], one per resource. Of a write it knows the number of its
//! request only.

use std::collections::VecDeque;
use units::{Duration, Instant};

/// A barrier waits so long for a write to travel with (spec 12.4 #14).
const BARRIER_WAIT: Duration = Duration(1_000_000);

/// The present epoch of own writes. It belongs to the resource: all peers have the same.
#[derive(Debug)]
pub(crate) struct OwnEpoch {
    number: u32,
    /// Sent to peers in it.
    writes: u32,
    /// An epoch was closed: when its barrier goes out if no further write carries it along.
    barriers_due: Option<Instant>,
}

impl OwnEpoch {
    pub(crate) fn new(number: u32) -> OwnEpoch {
        OwnEpoch { number, writes: 0, barriers_due: None }
    }

    pub(crate) fn number(&self) -> u32 {
        self.number
    }

    pub(crate) fn writes(&self) -> u32 {
        self.writes
    }

    /// A write of it goes to peers.
    pub(crate) fn note_write(&mut self) {
        self.writes += 1;
    }

    /// Ends it, if it has a write.
    pub(crate) fn close(&mut self, now: Instant) {
        if self.writes > 0 {
            self.number = self.number.wrapping_add(1);
            self.writes = 0;
            self.barriers_due = Some(now + BARRIER_WAIT);
        }
    }

    /// When barriers go out at the latest.
    pub(crate) fn barriers_due(&self) -> Option<Instant> {
        self.barriers_due
    }

    /// They go out now, or nobody is to get any. False: none is due.
    pub(crate) fn barriers_done(&mut self) -> bool {
        self.barriers_due.take().is_some()
    }
}

/// A write that was sent, and when.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sent {
    pub(crate) request: u64,
    pub(crate) epoch: u32,
    pub(crate) at: Instant,
}

/// What was sent to one peer.
#[derive(Debug, Default)]
pub(crate) struct TransferLog {
    /// Not confirmed by a barrier's acknowledgement.
    unconfirmed: VecDeque<Sent>,
    /// Epoch of the writes sent last, and how many of it.
    epoch: u32,
    in_epoch: u32,
    /// Barriers that are not acknowledged: epoch, since when.
    barriers: VecDeque<(u32, Instant)>,
    /// Writes whose answer was missing when the link went while I/O was frozen, or that it had not confirmed.
    kept: VecDeque<u64>,
}

impl TransferLog {
    // -- what happens ------------------------------------------------------------------------------------------------

    /// What is sent next belongs to this epoch. The barrier that must go before it, if one must.
    pub(crate) fn enter(&mut self, epoch: u32, now: Instant) -> Option<u32> {
        if self.epoch == epoch {
            return None;
        }
        let old = std::mem::replace(&mut self.epoch, epoch);
        let owed = std::mem::take(&mut self.in_epoch) > 0;
        if owed {
            self.barriers.push_back((old, now));
        }
        owed.then_some(old)
    }

    /// A write of the epoch that was entered last.
    pub(crate) fn sent(&mut self, request: u64, now: Instant) {
        self.in_epoch += 1;
        self.unconfirmed.push_back(Sent { request, epoch: self.epoch, at: now });
    }

    /// A barrier is acknowledged, with so many writes before it. How many that are of the oldest, or what was expected.
    pub(crate) fn acknowledged(&mut self, epoch: u32, writes: u32) -> Result<usize, String> {
        let count = self.unconfirmed.iter().take_while(|s| s.epoch == epoch).count();
        match self.barriers.front() {
            Some((oldest, _)) if *oldest == epoch && count as u64 == u64::from(writes) => {
                self.barriers.pop_front();
                Ok(count)
            }
            Some((oldest, _)) => Err(format!("epoch {oldest} with {count}")),
            None => Err("none".to_owned()),
        }
    }

    /// The oldest write is confirmed.
    pub(crate) fn take_oldest(&mut self) -> Option<u64> {
        self.unconfirmed.pop_front().map(|sent| sent.request)
    }

    /// The link is gone: what was sent on it, in order.
    pub(crate) fn link_lost(&mut self) -> VecDeque<Sent> {
        self.barriers.clear();
        self.in_epoch = 0;
        std::mem::take(&mut self.unconfirmed)
    }

    /// One of those is kept for the peer's return.
    pub(crate) fn keep(&mut self, request: u64) {
        self.kept.push_back(request);
    }

    /// I/O goes on, with or without the peer: what was kept, in order.
    pub(crate) fn take_kept(&mut self) -> VecDeque<u64> {
        std::mem::take(&mut self.kept)
    }

    // -- what is known -----------------------------------------------------------------------------------------------

    /// Is a barrier to follow what was sent last?
    pub(crate) fn owes_barrier(&self) -> bool {
        self.in_epoch > 0
    }

    /// Writes on this link that nothing has confirmed, in order.
    pub(crate) fn unconfirmed(&self) -> impl Iterator<Item = &Sent> {
        self.unconfirmed.iter()
    }

    /// Writes that are kept for the peer's return, in order.
    pub(crate) fn kept(&self) -> impl Iterator<Item = u64> {
        self.kept.iter().copied()
    }

    /// Has the peer confirmed all that it was sent on this link?
    pub(crate) fn is_confirmed(&self) -> bool {
        self.unconfirmed.is_empty()
    }

    /// Is nothing left of a link?
    pub(crate) fn is_at_rest(&self) -> bool {
        self.unconfirmed.is_empty() && self.barriers.is_empty()
    }

    /// The newest epoch that has a write the peer has not confirmed.
    pub(crate) fn last_unconfirmed_epoch(&self) -> Option<u32> {
        self.unconfirmed.back().map(|s| s.epoch)
    }

    /// Since when is the oldest unconfirmed write under way?
    pub(crate) fn oldest_since(&self) -> Option<Instant> {
        self.unconfirmed.front().map(|s| s.at)
    }

    /// Since when is the oldest barrier unanswered?
    pub(crate) fn barrier_since(&self) -> Option<Instant> {
        self.barriers.front().map(|(_, at)| *at)
    }
}
