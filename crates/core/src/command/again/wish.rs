//! The wish to be Primary again, as before this process.

use crate::api::Inherited;
use crate::members::Volumes;
use units::{Generation, Instant};
use wire::{DiskState, Role};

/// The wish to be Primary again.
#[derive(Debug)]
pub(crate) struct Again {
    /// The command that ends when it comes true, or cannot.
    pub(super) id: u64,
    pub(super) inherited: Inherited,
    pub(super) since: Instant,
    pub(super) stage: Progress,
    /// What each volume's disk was when it was attached, as far as that is over.
    pub(super) found: Volumes<Option<Found>>,
    /// The administrator does not want to wait for the peer.
    pub(super) resumed: bool,
    /// Why it was refused the last time.
    pub(super) told: Option<i32>,
}

/// What a volume's disk was when it was attached, and of which generation.
#[derive(Clone, Copy, Debug)]
pub(super) struct Found {
    pub(super) disk: DiskState,
    pub(super) generation: Option<Generation>,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Progress {
    /// For disks and peers.
    Waiting,
    /// The promotion is under way.
    Asking,
    /// It was refused while everything looked like this; by a peer, which may know better at this time.
    Refused(Vec<Look>, Option<Instant>),
}

/// What decides over a volume: whether its handshake is over, the disks, the peer's role.
pub(super) type Look = (bool, DiskState, DiskState, Role);
