//! Transactions that came to nothing.

use std::collections::VecDeque;
use units::NodeId;

/// So many are remembered that have come to nothing.
const REMEMBERED: usize = 16;

/// The last transactions that came to nothing: who is asked to take part over a longer path hears of the end first.
#[derive(Debug, Default)]
pub(crate) struct CalledOff(VecDeque<(u32, NodeId)>);

impl CalledOff {
    pub(super) fn note(&mut self, head: &wire::Transaction) {
        self.0.truncate(REMEMBERED - 1);
        self.0.push_front((head.tid, head.initiator));
    }

    pub(super) fn contains(&self, head: &wire::Transaction) -> bool {
        self.0.contains(&(head.tid, head.initiator))
    }
}
