//! What a peer's stream of data has brought: its epochs, and what their barriers wait for. A barrier is not
//! acknowledged before what precedes it is written and flushed.

use crate::peer_write::write::Told;
use std::collections::VecDeque;
use wire::{BarrierAck, BarrierNr};

/// A set of the peer's writes between two barriers.
#[derive(Debug)]
pub(super) struct PeerEpoch {
    id: u64,
    /// Writes in it, for the barrier ack.
    size: u32,
    /// Of those, not yet on disk and acknowledged.
    active: u32,
    /// The barrier that closed it.
    barrier: Option<BarrierNr>,
    /// Of the active ones, those that the peer may have completed: it does not wait for our word, or has it.
    trusted: u32,
}

/// The epochs of one peer's writes that are not confirmed, the oldest first.
#[derive(Debug, Default)]
pub(crate) struct PeerEpochs {
    epochs: VecDeque<PeerEpoch>,
    /// Writes in the epoch that was closed last.
    last_size: u32,
    last_id: u64,
    /// Flushes for the oldest one that are still running.
    pub(super) flushes: u32,
}

impl PeerEpochs {
    fn begin(&mut self, barrier: Option<BarrierNr>) {
        self.last_id += 1;
        self.epochs.push_back(PeerEpoch { id: self.last_id, size: 0, active: 0, barrier, trusted: 0 });
    }

    /// A write has come.
    pub(super) fn join(&mut self, told: Told) -> u64 {
        if self.epochs.back().is_none_or(|e| e.barrier.is_some()) {
            self.begin(None);
        }
        let epoch = self.epochs.back_mut().expect("just made");
        epoch.trusted += u32::from(told == Told::Early);
        epoch.size += 1;
        epoch.active += 1;
        epoch.id
    }

    /// One is on disk and acknowledged.
    pub(super) fn leave(&mut self, id: u64, told: Told) {
        if let Some(e) = self.epochs.iter_mut().find(|e| e.id == id) {
            e.active -= 1;
            e.trusted -= u32::from(told == Told::Early);
        }
    }

    /// A barrier has come. What follows belongs to a new epoch; its presence is what holds back the stream.
    pub(super) fn close(&mut self, barrier: BarrierNr) {
        match self.epochs.back_mut() {
            Some(e) if e.barrier.is_none() => {
                e.barrier = Some(barrier);
                self.last_size = e.size;
            }
            // No write since the last barrier: an empty epoch, answered as such.
            _ => self.begin(Some(barrier)),
        }
        self.begin(None);
    }

    /// Is the oldest one closed, and written, and not being flushed?
    pub(super) fn is_ready(&self) -> bool {
        let written = |e: &PeerEpoch| e.active == 0;
        self.flushes == 0 && self.epochs.front().is_some_and(|e| e.barrier.is_some() && written(e))
    }

    /// One of its flushes has ended. True: it was the last one.
    pub(super) fn flush_ended(&mut self) -> bool {
        self.flushes -= 1;
        self.flushes == 0
    }

    /// The oldest one, if it is closed, is on stable storage.
    pub(super) fn confirm(&mut self) -> Option<BarrierAck> {
        let barrier = self.epochs.front()?.barrier?;
        self.epochs.pop_front().map(|first| BarrierAck { barrier, set_size: first.size })
    }

    /// The link is gone, and nothing of it is answered.
    pub(crate) fn link_lost(&mut self) {
        self.epochs.clear();
        self.flushes = 0;
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.epochs.is_empty()
    }

    /// Is there one that is closed, and not confirmed?
    pub(crate) fn holds_back(&self) -> bool {
        self.epochs.len() > 1
    }

    /// Is a write under way that the peer may have completed?
    pub(crate) fn is_trusted(&self) -> bool {
        self.epochs.iter().any(|e| e.trusted > 0)
    }

    /// Was there no more than one write in the last one, and is none under way?
    pub(crate) fn come_singly(&self) -> bool {
        self.last_size <= 1 && self.epochs.iter().all(|e| e.active == 0)
    }

    /// Is what has just come the first write of its epoch, and the last epoch had one?
    pub(super) fn begins_like_a_single(&self) -> bool {
        self.last_size == 1 && self.epochs.back().is_some_and(|e| e.size == 1)
    }

    /// Is there a write of which the peer has not been told that it is for good?
    pub(super) fn has_writes(&self) -> bool {
        self.epochs.iter().any(|e| e.size > 0)
    }
}
