//! How long requests spend in which stage. Times are those of the inputs: no clock is read for it, and what happens
//! within one turn of the caller took no time.

use units::{Duration, Histogram};

/// A part of a request's way. Stages of one request may overlap: a write is on its way to the disk and to the peer at
/// the same time.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Stage {
    /// A write, from its arrival until nothing overlapping or frozen holds it back.
    WriteQueue,
    /// A write, from there until its extents are in the activity log.
    WriteActivityLog,
    /// A write, from there until this node's disk has it.
    WriteDisk,
    /// A write, over the same time until the peer has acknowledged it as the protocol demands; not with protocol A.
    WritePeer,
    /// A write, from its arrival until it is completed.
    WriteTotal,
    /// A read from this node's disk.
    ReadDisk,
    /// A read from the peer.
    ReadPeer,
    /// A read, from its arrival until it is completed.
    ReadTotal,
    /// A flush, from its arrival until it is completed.
    FlushTotal,
    /// A peer's write, from its arrival until what must come first is done: earlier epochs, overlapping writes, the
    /// activity log.
    PeerWriteQueue,
    /// A peer's write, from there until this node's disk has it.
    PeerWriteDisk,
    /// A peer's write, from its arrival until it is acknowledged.
    PeerWriteTotal,
}

impl Stage {
    /// All stages, requests of a kind together.
    pub const ALL: [Stage; 12] = [
        Stage::WriteQueue,
        Stage::WriteActivityLog,
        Stage::WriteDisk,
        Stage::WritePeer,
        Stage::WriteTotal,
        Stage::ReadDisk,
        Stage::ReadPeer,
        Stage::ReadTotal,
        Stage::FlushTotal,
        Stage::PeerWriteQueue,
        Stage::PeerWriteDisk,
        Stage::PeerWriteTotal,
    ];

    /// The kind of request, and the stage of it, as shown outside.
    #[must_use]
    pub fn names(self) -> (&'static str, &'static str) {
        match self {
            Stage::WriteQueue => ("write", "queue"),
            Stage::WriteActivityLog => ("write", "activity-log"),
            Stage::WriteDisk => ("write", "disk"),
            Stage::WritePeer => ("write", "peer"),
            Stage::WriteTotal => ("write", "total"),
            Stage::ReadDisk => ("read", "disk"),
            Stage::ReadPeer => ("read", "peer"),
            Stage::ReadTotal => ("read", "total"),
            Stage::FlushTotal => ("flush", "total"),
            Stage::PeerWriteQueue => ("peer-write", "queue"),
            Stage::PeerWriteDisk => ("peer-write", "disk"),
            Stage::PeerWriteTotal => ("peer-write", "total"),
        }
    }
}

/// A histogram per stage, of one volume.
#[derive(Debug)]
pub(crate) struct Latencies(Box<[Histogram; Stage::ALL.len()]>);

impl Default for Latencies {
    fn default() -> Latencies {
        Latencies(Box::new(std::array::from_fn(|_| Histogram::default())))
    }
}

impl Latencies {
    /// `requests` more have spent that long there.
    pub(crate) fn note(&mut self, stage: Stage, took: Duration, requests: usize) {
        self.0[stage as usize].record(took, requests as u64);
    }

    /// One per stage, in the order of [`Stage::ALL`].
    pub(crate) fn histograms(&self) -> impl Iterator<Item = &Histogram> {
        self.0.iter()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_stage_has_its_place_and_name() {
        for (place, stage) in Stage::ALL.into_iter().enumerate() {
            assert_eq!(stage as usize, place);
            assert!(Stage::ALL.iter().all(|other| *other == stage || other.names() != stage.names()));
        }
    }
}
