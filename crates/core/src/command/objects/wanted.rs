//! A configuration that is to be taken over.

use crate::api::CommandError;
use crate::config::ResourceConfig;
use units::{NodeId, VolumeNr};

/// A configuration that is to be taken over.
#[derive(Debug)]
pub(crate) struct Wanted {
    pub(super) cfg: Box<ResourceConfig>,
    /// A peer was asked to let go of a volume that is to be removed.
    pub(super) asked: Option<Parting>,
    /// Those that have done so.
    pub(super) parted: Vec<Parting>,
    /// Why one does not.
    pub(super) refused: Option<CommandError>,
}

/// A peer, in this session of its, and a volume.
pub(crate) type Parting = (NodeId, u64, VolumeNr);
