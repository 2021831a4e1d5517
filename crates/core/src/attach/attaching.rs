//! A disk on its way into service: how far it is (spec section 6.1).

use crate::api::{MetaOp, OpenedDisk};
use crate::command::caller::Caller;
use meta::{Layout, Superblock};
use units::{BitSet, Instant, NodeMask};

/// Where an attach is.
#[derive(Debug)]
pub(crate) struct Attaching {
    pub(super) command: Option<Caller>,
    pub(super) opened: Option<OpenedDisk>,
    pub(super) step: Step,
    /// The peers whose disks are Outdated, as the metadata say.
    pub(super) outdated_peers: NodeMask,
}

#[derive(Debug)]
pub(super) enum Step {
    Opening,
    Superblock {
        at: u64,
    },
    Log {
        layout: Layout,
        md: Box<Superblock>,
    },
    Bitmap {
        layout: Layout,
        md: Box<Superblock>,
        log: Box<[u8]>,
        /// What has been read so far, and the next page.
        bitmaps: Vec<BitSet>,
        page: u64,
    },
    /// The replayed log is being written back as "nothing to replay".
    Settling {
        writes: u32,
        /// What follows when they are all down: the log may forget only what the bitmap knows by then.
        then: Option<MetaOp>,
    },
    /// All is in order, but the volume is shaking hands and has told the peer that there is no disk yet: what that
    /// ends in must be known, as from then on the disk is negotiated.
    Handshake,
    /// 9's dialect: the peers are asked whether the disk may come into use. With a time: once more then.
    Consent(Option<Instant>),
}
