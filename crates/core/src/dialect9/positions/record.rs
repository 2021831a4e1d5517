//! What the peers know of this node's stream of writes, and this node of theirs.

use std::collections::VecDeque;
use units::{ByteLen, Duration, Instant, NodeId, NodeMask};

/// `peer-ack-delay`: who has the newest writes is said after so much time without a further one.
const DELAY: Duration = Duration::from_millis(100);
/// `peer-ack-window`: or when so many sectors are to be told of.
const WINDOW: u64 = 4096;

/// This node's writes, as far as peers have not been told who has them.
#[derive(Debug, Default)]
pub(crate) struct Positions {
    /// Sectors written as Primary.
    own: u64,
    /// In ascending order. Of the first one it is not known yet who has it.
    open: VecDeque<Open>,
    /// What is to be said next.
    due: Option<Due>,
}

/// A write that was sent to peers.
#[derive(Debug)]
struct Open {
    at: u64,
    to: NodeMask,
    /// Who has it, when nothing can change about that any more.
    has: Option<NodeMask>,
}

/// Writes up to a position that are all on the same nodes.
#[derive(Debug)]
pub(super) struct Due {
    from: u64,
    pub(super) at: u64,
    pub(super) to: NodeMask,
    pub(super) has: NodeMask,
    since: Instant,
}

impl Positions {
    /// The position of this node's last write.
    pub(in crate::dialect9) fn own(&self) -> u64 {
        self.own
    }

    /// Is there a write of this node, up to a position, of which the peer has not been told who has it?
    pub(in crate::dialect9) fn is_untold(&self, peer: NodeId, up_to: u64) -> bool {
        self.open.iter().any(|open| open.at <= up_to && open.to.contains(peer))
    }

    /// When something is to be said.
    pub(crate) fn timer(&self) -> Option<Instant> {
        self.due.as_ref().map(|due| due.since + DELAY)
    }

    /// The position of a write that is sent now.
    pub(crate) fn next(&mut self, len: ByteLen) -> u64 {
        self.own += len.0 / 512;
        self.own
    }

    /// The peer gets the write at this position, which is the last one.
    pub(super) fn sent(&mut self, peer: NodeId, at: u64) {
        match self.open.back_mut().filter(|open| open.at == at) {
            Some(open) => open.to.insert(peer),
            None => self.open.push_back(Open { at, to: NodeMask::of(peer), has: None }),
        }
    }

    /// Nothing changes any more about who has a write. False: nobody was sent it.
    pub(super) fn settle(&mut self, at: u64, has: NodeMask) -> bool {
        let Ok(n) = self.open.binary_search_by_key(&at, |open| open.at) else { return false };
        self.open[n].has = Some(has);
        true
    }

    /// What is to be said at once: other nodes have what follows, or it has become much.
    pub(super) fn next_due(&mut self, now: Instant) -> Option<Due> {
        loop {
            if let Some(much) = self.due.take_if(|due| due.at - due.from >= WINDOW) {
                return Some(much);
            }
            let Open { at, to, has } = *self.open.front()?;
            let has = has?;
            self.open.pop_front();
            let same = self.due.as_mut().filter(|due| (due.to, due.has) == (to, has));
            if let Some(due) = same {
                (due.at, due.since) = (at, now);
            } else if let Some(before) = self.due.replace(Due { from: at, at, to, has, since: now }) {
                return Some(before);
            }
        }
    }

    pub(super) fn take_due(&mut self) -> Option<Due> {
        self.due.take()
    }

    /// A link went down: on the next one the peer knows nothing of what was sent on this.
    pub(crate) fn forget(&mut self, peer: NodeId) {
        self.open.iter_mut().for_each(|open| open.to.remove(peer));
        if let Some(due) = &mut self.due {
            due.to.remove(peer);
        }
    }
}

/// A place in a node's stream of writes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Position {
    pub(crate) node: NodeId,
    pub(crate) at: u64,
}

/// A peer's writes.
#[derive(Debug, Default)]
pub(crate) struct Heard {
    /// The position of the last one.
    pub(super) at: u64,
    /// The peer has said where its writes begin.
    pub(super) begun: bool,
}

impl Heard {
    /// The position of the last one, if the peer has said on this link where they begin.
    pub(in crate::dialect9) fn told(&self) -> Option<u64> {
        self.begun.then_some(self.at)
    }
}
