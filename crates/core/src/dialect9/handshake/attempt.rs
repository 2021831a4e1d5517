//! What one transaction that is to connect the nodes has brought.

use crate::decide::state::Replication;
use crate::decide::uuid9::Strategy;
use crate::decide::{DiskState, Reason};
use crate::dialect9::mesh::unsettled::LostPrimary;
use crate::members::Volumes;
use units::{Generation, Instant, VolumeNr};
use wire::{Role, StateWord, Uuids110};

/// What one transaction that is to connect the nodes has brought. Nothing of it outlives the transaction.
#[derive(Debug)]
pub(crate) struct Attempt {
    pub(super) volumes: Volumes<Part>,
    pub(super) verdict: Verdict,
    /// The lost Primaries that this node and the peer have named.
    pub(super) lost: [Option<LostPrimary>; 2],
    /// Since when the peer speaks of its volumes, until it is known which it has.
    pub(super) speaks: Option<Instant>,
}

/// One volume's part in it.
#[derive(Clone, Debug, Default)]
pub(super) struct Part {
    /// What this node has said.
    pub(super) sent: Option<(Uuids110, DiskState)>,
    /// What the peer has said of its generations.
    pub(super) uuids: Option<Uuids110>,
    /// The generations that this node's users and the peer's have seen, where there is no disk (5.10).
    pub(super) exposed: [Option<Generation>; 2],
    /// What follows, when the peer's state has come.
    pub(super) outcome: Option<Outcome>,
    /// Nothing has come: the peer has no such volume.
    pub(super) missing: bool,
}

/// What a node has told of a volume.
#[derive(Clone, Copy, Debug)]
pub(in crate::dialect9) struct Told<'a> {
    pub(in crate::dialect9) uuids: &'a Uuids110,
    pub(in crate::dialect9) disk: DiskState,
    pub(in crate::dialect9) role: Role,
    /// Has it quorum?
    pub(in crate::dialect9) quorate: bool,
}

/// What a volume becomes when the nodes are connected.
#[derive(Clone, Copy, Debug)]
pub(super) struct Outcome {
    pub(super) bitmap: Preparation,
    pub(super) replication: Replication,
    pub(super) disk: DiskState,
    /// What the peer has said of itself.
    pub(super) word: StateWord,
    pub(super) without_disk: WithoutDisk,
}

/// What becomes of a volume of which one of the nodes has no disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum WithoutDisk {
    /// Nothing, or both have one.
    #[default]
    Nothing,
    /// Users here see the peer's generation from now on.
    Exposes(Generation),
    /// What the peer's users have seen was written without this disk, which is Outdated.
    OwnIsBehind,
    /// The users of the peer, a Primary, see what this disk has.
    OwnIsGood,
}

/// How a resync, or that there is none, begins.
#[derive(Clone, Copy, Debug)]
pub(super) struct Begins {
    pub(super) replication: Replication,
    pub(super) bitmap: Preparation,
}

/// What becomes of the slot before bitmaps are exchanged (5.8.1, step 15).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Preparation {
    AsIs,
    /// Everything is to come from the peer.
    Set,
    /// Everything goes to the peer.
    SetForTarget,
}

impl Preparation {
    pub(super) fn of(strategy: Strategy) -> Preparation {
        match strategy {
            // What another node lacks is not known to be what the peer lacks: all of it is copied.
            Strategy::SourceSetBitmap | Strategy::SourceCopyOtherBitmap(_) => Preparation::SetForTarget,
            Strategy::TargetSetBitmap => Preparation::Set,
            // Nor is what this node has marked cleared before the peer's bitmap is here: the peer may refuse, or be
            // lost, and what a third node has brought since is marked here alone.
            _ => Preparation::AsIs,
        }
    }
}

/// May the nodes be connected, as far as is known?
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// Some volume's state has not come.
    Open,
    /// Yes.
    Connect,
    /// Not now.
    Retry(Reason),
    /// No.
    Disconnect(Reason),
}

impl Attempt {
    /// There is no such volume any more.
    pub(crate) fn forget_volume(&mut self, volume: VolumeNr) {
        self.volumes.remove(volume);
    }
}
