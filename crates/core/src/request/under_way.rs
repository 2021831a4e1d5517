//! A request of an application under way.

use crate::repetition::place::Behind;
use crate::request::read::Read;
use crate::request::write::{Local, Write};
use units::{Instant, NodeId, SectorRange, VolumeNr};

#[derive(Debug)]
pub(crate) struct Flush {
    pub(crate) device: VolumeNr,
    pub(crate) came: Instant,
    pub(crate) started: Instant,
    pub(crate) tag: u64,
    pub(crate) local: Local,
    /// What the local flush covers.
    pub(crate) mark: u64,
    /// Epochs that must be confirmed: (connection, epoch).
    pub(crate) waiting: Vec<(NodeId, u32)>,
    /// The own disk was good when it began: peers of protocols A and B were not waited for.
    pub(crate) own: bool,
    /// Some copy is known to hold everything.
    pub(crate) covered: bool,
}

#[derive(Debug)]
pub(crate) enum Request {
    Write(Write),
    Read(Read),
    Flush(Flush),
}

impl Request {
    pub(crate) fn device(&self) -> VolumeNr {
        match self {
            Request::Write(w) => w.device,
            Request::Read(r) => r.device,
            Request::Flush(f) => f.device,
        }
    }

    /// A write that is not complete begins anew when it is settled here.
    pub(crate) fn begins_anew(&mut self) {
        if let Request::Write(w) = self
            && !w.is_to_repeat()
        {
            w.repeat(Behind::Nothing);
        }
    }

    pub(crate) fn started(&self) -> Instant {
        match self {
            Request::Write(w) => w.submitted.at,
            Request::Read(r) => r.started,
            Request::Flush(f) => f.started,
        }
    }
}

/// The 4 MiB activity-log extents that a range touches, first and last.
pub(crate) fn extents(range: SectorRange) -> (u32, u32) {
    ((range.start.0 / EXTENT_SECTORS) as u32, ((range.end.0 - 1) / EXTENT_SECTORS) as u32)
}

/// Sectors of an activity-log extent: 4 MiB.
pub(crate) const EXTENT_SECTORS: u64 = 1 << 13;
