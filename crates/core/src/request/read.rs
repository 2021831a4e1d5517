//! An application's read under way.

use crate::api::Segments;
use crate::request::write::Owner;
use units::{Instant, NodeId, NodeMask, SectorRange, VolumeNr};

/// What came of a read so far.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Tried {
    /// How often it was tried before.
    pub(crate) times: u32,
    /// By these: others come first.
    pub(crate) refused: NodeMask,
}

#[derive(Debug)]
pub(crate) struct Read {
    pub(crate) device: VolumeNr,
    pub(crate) range: SectorRange,
    pub(crate) data: Segments,
    pub(crate) tag: Owner,
    pub(crate) came: Instant,
    /// Submitted.
    pub(crate) started: Instant,
    /// Waits for this connection's answer; `None` = local.
    pub(crate) remote: Option<NodeId>,
    pub(crate) tried: Tried,
    /// The node was demoted while this was under way.
    pub(crate) outlived: bool,
}

/// A part of a read that waits, frozen, for a good copy.
#[derive(Debug)]
pub(crate) struct PartWaiting {
    pub(crate) range: SectorRange,
    pub(crate) data: Segments,
    pub(crate) owner: Owner,
    pub(crate) came: Instant,
}
