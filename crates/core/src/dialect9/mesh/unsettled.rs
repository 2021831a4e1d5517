//! Writes of which nobody has said who has them.

use std::collections::VecDeque;
use units::{NodeId, NodeMask, Sector, SectorRange, VolumeNr};

/// A write of a peer, of which it has not said who has it. Until then the activity log keeps its extents: after a crash
/// it counts as missing on all other nodes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Unsettled {
    pub(crate) at: u64,
    pub(crate) volume: VolumeNr,
    pub(crate) range: SectorRange,
    pub(crate) log: InLog,
    /// It was on the disk, and marked, when all of it was read for a resync towards these: they get it by that, or it
    /// stays marked.
    pub(crate) copied_to: NodeMask,
    /// So far it was read for one towards this peer.
    pub(crate) read_for: Option<(NodeId, Sector)>,
}

impl Unsettled {
    /// A resync towards the peer reads the range, from front to back. Returns what of the write is read by that.
    pub(crate) fn is_read_for(&mut self, peer: NodeId, range: SectorRange) -> Option<SectorRange> {
        let start = self.read_for.filter(|(n, _)| *n == peer).map_or(self.range.start, |(_, up_to)| up_to);
        if self.copied_to.contains(peer) || range.start > start || range.end <= start {
            return None;
        }
        let end = range.end.min(self.range.end);
        self.read_for = Some((peer, end)).filter(|_| end < self.range.end);
        if end == self.range.end {
            self.copied_to.insert(peer);
        }
        Some(SectorRange { start, end })
    }
}

/// Who sees to it that it is known after a crash.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum InLog {
    /// The write, as it is not on the disk yet, or nobody: no log is kept.
    OfWrite,
    /// It holds the extents itself.
    Held,
    /// It has left the log to others that were in need, and is marked instead.
    Left,
}

/// Those of one peer, in the order in which they came.
pub(crate) type AllUnsettled = VecDeque<Unsettled>;

/// The last write of a lost Primary that a node has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct LostPrimary {
    pub(crate) node: NodeId,
    pub(crate) at: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(start: u64, end: u64) -> SectorRange {
        SectorRange { start: Sector(start), end: Sector(end) }
    }

    #[test]
    fn a_write_is_copied_when_all_of_it_was_read_from_front_to_back() {
        let (a, b) = (NodeId::new(1).unwrap(), NodeId::new(2).unwrap());
        let volume = VolumeNr(0);
        let log = InLog::Held;
        let mut write =
            Unsettled { at: 1, volume, range: range(8, 24), log, copied_to: NodeMask::default(), read_for: None };
        assert_eq!(write.is_read_for(a, range(16, 32)), None, "its first part was not read");
        assert_eq!(write.is_read_for(a, range(0, 16)), Some(range(8, 16)));
        assert_eq!(write.is_read_for(b, range(0, 8)), None);
        assert!(write.copied_to.is_empty());
        assert_eq!(write.is_read_for(a, range(16, 32)), Some(range(16, 24)));
        assert!(write.copied_to.contains(a) && !write.copied_to.contains(b));
        assert_eq!(write.is_read_for(b, range(0, 64)), Some(range(8, 24)));
        assert!(write.copied_to.contains(b));
    }
}
