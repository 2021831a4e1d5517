//! What the rules look at: a state and the facts beside it.

use crate::config::{Fencing, OnNoData};
use crate::decide::quorum::{Part, QuorumConfig, Standing, Voter};
use crate::decide::state::{ConnectionState as N, PairState, Paused, Replication as R, State, SuspendReasons};
use crate::decide::{DiskState as D, Role, StateChangeResult as Code};
use crate::members::{Peers, Volumes};
use units::{NodeId, NodeMask, VolumeNr};

/// What the rules look at besides the state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Facts {
    /// The effective fencing policy of the resource.
    pub fencing: Fencing,
    /// on-no-data-accessible.
    pub on_no_data: OnNoData,
    /// quorum, quorum-minimum-redundancy, on-no-quorum.
    pub quorum: QuorumConfig,
    /// This node's parameters were sent to some peer, and that handshake has not ended: the "state sent" mark.
    pub state_sent: bool,
    /// A word of what a lost Primary has written is awaited, or owed: what this node's copy is worth follows from that.
    pub holds_back: bool,
    /// Per volume.
    pub volumes: Volumes<VolumeFacts>,
    /// Per peer.
    pub peers: Peers<PeerFacts>,
}

/// Facts about a volume on this node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VolumeFacts {
    /// The device is held open.
    pub open: bool,
    /// The generation that users have seen is that of the attached disk.
    pub exposed_is_current: bool,
    /// What the metadata said of the disk when it was attached.
    pub at_attach: D,
    /// on-io-error is call-local-io-error.
    pub call_local_io_error: bool,
    /// Is this node to have a disk for it?
    pub part: Part,
    /// Other nodes that its metadata know, and that are not configured.
    pub unconfigured: NodeMask,
    /// Those of them whose disks the metadata call Outdated.
    pub unconfigured_outdated: NodeMask,
}

/// Facts about a peer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerFacts {
    /// allow-two-primaries.
    pub two_primaries: bool,
    /// verify-alg is configured.
    pub verify_alg: bool,
    /// The agreed protocol (meaningless while not connected).
    pub protocol: u32,
    /// Per volume.
    pub volumes: Volumes<PairFacts>,
}

/// Facts about a volume between this node and a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PairFacts {
    /// The peer has not come to the verdict yet on which a resync is about to begin here.
    pub undecided: bool,
    /// When the disk was attached its metadata said that the peer's is Outdated.
    pub outdated_at_attach: bool,
    /// The bitmap UUID is 0: no bitmap records the difference to the peer.
    pub bitmap_uuid_zero: bool,
    /// What the peer has depends on no Primary, but perhaps on this node: when it has been copied, this copy is good.
    pub serves: bool,
    /// What the peer counts for quorum.
    pub voter: Voter,
}

/// How a change is meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// A wish: every rule applies.
    Wish,
    /// A wish; to outdate a disk that is worse than Outdated already is dropped silently.
    WishIgnoringOutdate,
    /// A fact: only the hard rules apply.
    Fact,
}

/// Why a change is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The rule's code; `NothingToDo` if the state would stay the same.
    pub code: Code,
    /// The volume that the rule looked at.
    pub volume: Option<VolumeNr>,
}

/// A volume and one peer's part in it: what most rules look at. Without any peer: a volume alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct View {
    /// This node's role.
    pub role: Role,
    /// The peer's.
    pub peer: Role,
    /// The connection.
    pub connection: N,
    /// What goes on.
    pub replication: R,
    /// This node's disk.
    pub disk: D,
    /// The peer's.
    pub peer_disk: D,
    /// Who pauses a resync.
    pub paused: Paused,
    /// Why I/O is frozen.
    pub frozen: SuspendReasons,
    /// Some peer's disk is UpToDate.
    pub good_elsewhere: bool,
    /// May the volume be written to, as far as quorum is concerned?
    pub standing: Standing,
}

impl View {
    /// The volume towards a peer of the state.
    #[must_use]
    #[inline]
    pub fn of(state: &State, peer: Option<NodeId>, volume: VolumeNr) -> View {
        let (connection, pair) = match peer.and_then(|peer| state.peers.get(peer)) {
            Some(peer) => (peer.connection, peer.volumes[volume]),
            None => (N::StandAlone, PairState::UNKNOWN),
        };
        View {
            role: state.role,
            peer: pair.role,
            connection,
            replication: pair.replication,
            disk: state.disk(volume),
            peer_disk: pair.disk,
            paused: pair.paused,
            frozen: state.suspended(),
            good_elsewhere: state.good_peers(volume).next().is_some(),
            standing: state.volumes[volume].standing,
        }
    }

    /// Is the volume's handshake complete?
    #[must_use]
    pub fn is_together(&self) -> bool {
        self.replication >= R::Established
    }

    /// Is a resync, a verify or the like running or about to begin?
    #[must_use]
    pub fn is_beyond(&self) -> bool {
        self.replication > R::Established
    }

    /// Is I/O frozen?
    #[must_use]
    pub fn is_frozen(&self) -> bool {
        self.frozen.any()
    }

    /// Did connection or replication change?
    pub(super) fn moved_from(&self, old: &View) -> bool {
        (old.connection, old.replication) != (self.connection, self.replication)
    }

    pub(super) fn comes_to(&self, old: &View, replication: R) -> bool {
        self.replication == replication && old.replication != replication
    }
}

/// A volume's peers; `None` stands for a volume without any.
pub(super) fn towards(state: &State) -> impl Iterator<Item = Option<NodeId>> + use<> {
    let members = state.peers.members();
    members.into_iter().map(Some).chain(members.is_empty().then_some(None))
}

/// Primary without access to an UpToDate disk.
#[must_use]
pub(crate) fn lacks_data(state: &State, volume: VolumeNr) -> bool {
    let used = state.is_primary() && !state.volumes[volume].unused;
    used && state.disk(volume) < D::UpToDate && state.good_peers(volume).next().is_none()
}

/// Is 9's dialect spoken with the peer?
pub(super) fn speaks9(facts: &Facts, peer: NodeId) -> bool {
    facts.peers.get(peer).is_some_and(|peer| peer.protocol >= 110)
}
