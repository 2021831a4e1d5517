//! The state of a resource as one node knows it: one plain value (`docs/spec/connection-and-state.md` 1).
//!
//! It is replaced as a whole, by what [`rules::judge`](super::rules::judge) makes of it. What else is known of disks
//! and peers (metadata, links, resyncs, requests) belongs to their owners.

use super::quorum::{OnNoQuorum, Standing};
use super::{DiskState, Role};
use crate::members::{Peers, Volumes};
use std::fmt;
use units::{NodeId, NodeMask, VolumeNr};

/// A connection's state (`docs/spec/connection-and-state.md` 1.3).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum ConnectionState {
    /// Not trying.
    StandAlone,
    /// Going to StandAlone.
    Disconnecting,
    /// Between a loss and the next try.
    Unconnected,
    /// Lost: the peer did not answer in time.
    Timeout,
    /// Lost: a stream closed.
    BrokenPipe,
    /// Lost: no ping answer.
    NetworkFailure,
    /// Lost: the peer broke the protocol.
    ProtocolError,
    /// The peer asked for it.
    TearDown,
    /// Trying.
    Connecting,
    /// Up, past authentication and P_PROTOCOL.
    Connected,
}

/// A reason for frozen I/O.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SuspendReason {
    /// `suspend-io`.
    User = 1,
    /// No UpToDate copy, `on-no-data-accessible suspend-io`.
    NoData = 2,
    /// Waiting for fencing.
    Fencing = 4,
    /// Some volume has no quorum, `on-no-quorum suspend-io`.
    Quorum = 8,
}

/// Why I/O is frozen.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct SuspendReasons(u8);

impl SuspendReasons {
    /// Is I/O frozen?
    #[must_use]
    pub fn any(self) -> bool {
        self.0 != 0
    }

    /// Is this one of them?
    #[must_use]
    pub fn because_of(self, reason: SuspendReason) -> bool {
        self.0 & reason as u8 != 0
    }

    /// This one is among them if that is `so`, and else not; the others stay.
    #[must_use]
    pub fn put(self, reason: SuspendReason, so: bool) -> SuspendReasons {
        SuspendReasons(if so { self.0 | reason as u8 } else { self.0 & !(reason as u8) })
    }
}

macro_rules! replication {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// What goes on between this node and a peer about one volume (`docs/spec/connection-and-state.md` 1.4).
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Replication {
            $($(#[$doc])* $name,)*
        }

        impl Replication {
            /// Every state.
            pub const ALL: &'static [Replication] = &[$(Replication::$name),*];

            /// DRBD's name of it.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $(Replication::$name => stringify!($name),)* }
            }
        }
    };
}

replication! {
    /// Nothing: the nodes are not connected, or the volume's handshake is not over.
    #[default]
    Off,
    /// Writes go to both, and no resync is wanted.
    Established,
    /// A full resync is about to start here as source.
    StartingSyncS,
    /// A full resync is about to start here as target.
    StartingSyncT,
    /// Bitmaps are exchanged, this node will be source.
    WFBitMapS,
    /// Bitmaps are exchanged, this node will be target.
    WFBitMapT,
    /// Target, waiting for the source's sync UUID.
    WFSyncUUID,
    /// A resync is running, this node is the source.
    SyncSource,
    /// A resync is running, this node is the target.
    SyncTarget,
    /// A verify is running, this node asks.
    VerifyS,
    /// A verify is running, this node answers.
    VerifyT,
    /// A resync is paused, this node is the source.
    PausedSyncS,
    /// A resync is paused, this node is the target.
    PausedSyncT,
    /// Not replicating, because of congestion; the peer is Behind.
    Ahead,
    /// Not replicated to, because of congestion; the peer is Ahead.
    Behind,
}

impl fmt::Display for Replication {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl Replication {
    /// Is a resync running, or paused?
    #[must_use]
    pub const fn is_syncing(self) -> bool {
        matches!(self, Self::SyncSource | Self::SyncTarget | Self::PausedSyncS | Self::PausedSyncT)
    }

    /// Is this node the source of a resync that is running, or paused?
    #[must_use]
    pub const fn is_source(self) -> bool {
        matches!(self, Self::SyncSource | Self::PausedSyncS)
    }

    /// Is this node the target of a resync that is running, or paused?
    #[must_use]
    pub const fn is_target(self) -> bool {
        matches!(self, Self::SyncTarget | Self::PausedSyncT)
    }

    /// Is something copied from this node by what is marked, or about to be?
    #[must_use]
    pub const fn gives(self) -> bool {
        matches!(self, Self::WFBitMapS) || self.is_source()
    }

    /// Is something copied to this node by what is marked, or about to be?
    #[must_use]
    pub const fn takes(self) -> bool {
        matches!(self, Self::WFBitMapT) || self.is_target()
    }

    /// Is this node about to be the target of a resync?
    #[must_use]
    pub const fn will_be_target(self) -> bool {
        matches!(self, Self::WFBitMapT | Self::StartingSyncT | Self::WFSyncUUID)
    }

    /// Are bitmaps exchanged for a resync, or is its source's word of it awaited?
    #[must_use]
    pub const fn exchanges_bitmaps(self) -> bool {
        matches!(self, Self::WFBitMapS | Self::WFBitMapT | Self::WFSyncUUID)
    }

    /// Is a verify running?
    #[must_use]
    pub const fn is_verifying(self) -> bool {
        matches!(self, Self::VerifyS | Self::VerifyT)
    }

    /// Is a resync or a verify running, or paused?
    #[must_use]
    pub const fn is_working(self) -> bool {
        self.is_syncing() || self.is_verifying()
    }

    /// Is a full resync about to start?
    #[must_use]
    pub const fn is_starting(self) -> bool {
        matches!(self, Self::StartingSyncS | Self::StartingSyncT)
    }
}

/// The state of a resource.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct State {
    /// This node's role.
    pub role: Role,
    /// Of the reasons why I/O is frozen those that stay until something ends them: by the administrator, and as no good
    /// copy of some volume is within reach. The others follow from the rest of the state.
    pub lasting: SuspendReasons,
    /// See [`State::may_be_online`].
    pub(super) members: NodeMask,
    /// This node's disks.
    pub volumes: Volumes<VolumeState>,
    /// The other nodes.
    pub peers: Peers<PeerState>,
}

/// One volume on this node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VolumeState {
    /// Its disk.
    pub disk: DiskState,
    /// This node is Primary, and nobody uses this volume yet: it has been added to the resource, and has no good data.
    /// The others do not wait for it.
    pub unused: bool,
    /// See [`State::standing`].
    pub(super) standing: Standing,
}

impl VolumeState {
    /// Is I/O frozen for want of its quorum?
    #[inline]
    fn freezes(&self) -> bool {
        self.standing == Standing::Lacks(OnNoQuorum::SuspendIo)
    }

    /// A volume without a disk.
    #[must_use]
    pub fn diskless(unused: bool) -> VolumeState {
        VolumeState { disk: DiskState::Diskless, unused, standing: Standing::Unasked }
    }
}

/// One peer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerState {
    /// The connection to it.
    pub connection: ConnectionState,
    /// I/O is frozen until this peer is fenced.
    pub unfenced: bool,
    /// Its part in each volume.
    pub volumes: Volumes<PairState>,
}

/// One volume between this node and one peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PairState {
    /// What goes on.
    pub replication: Replication,
    /// The peer's disk.
    pub disk: DiskState,
    /// The peer's role, as it was told with this volume.
    pub role: Role,
    /// Who pauses a resync.
    pub paused: Paused,
    /// The peer has said that it has quorum.
    pub quorate: bool,
}

/// Who pauses a resync.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Paused {
    /// The administrator of this node.
    pub by_user: bool,
    /// The peer.
    pub by_peer: bool,
    /// A resync that comes first, by `resync-after`.
    pub by_dependency: bool,
    /// Another source of this node, which comes first; or this one has none that it may copy from now.
    pub by_other: bool,
}

impl Paused {
    /// Does anybody?
    #[must_use]
    pub const fn any(self) -> bool {
        self.by_user || self.by_peer || self.by_dependency || self.by_other
    }
}

impl PairState {
    /// Nothing is known of the peer.
    pub const UNKNOWN: PairState = PairState {
        replication: Replication::Off,
        disk: DiskState::DUnknown,
        role: Role::Unknown,
        paused: Paused { by_user: false, by_peer: false, by_dependency: false, by_other: false },
        quorate: false,
    };

    /// Is this node brought up to date from there, or will it be when that is paused no more? Not from one of several
    /// sources that waits for another one: what comes from that one need not come from here.
    #[must_use]
    pub fn is_being_copied(&self) -> bool {
        let paused = self.replication == Replication::PausedSyncT && !self.paused.by_other;
        paused || self.replication == Replication::SyncTarget
    }
}

impl PeerState {
    /// A peer that is not sought, of whose parts in these volumes nothing is known.
    #[must_use]
    pub fn stand_alone(volumes: impl IntoIterator<Item = VolumeNr>) -> PeerState {
        let volumes = volumes.into_iter().map(|volume| (volume, PairState::UNKNOWN)).collect();
        PeerState { connection: ConnectionState::StandAlone, unfenced: false, volumes }
    }

    /// Is it Primary, and is some copy of its own not good?
    #[must_use]
    pub fn is_primary_without_data(&self) -> bool {
        self.role() == Role::Primary && self.volumes.values().any(|pair| pair.disk < DiskState::UpToDate)
    }

    /// Its best disk.
    #[must_use]
    pub fn best_disk(&self) -> DiskState {
        self.volumes.values().map(|pair| pair.disk).max().unwrap_or(DiskState::DUnknown)
    }

    /// Its role: Primary if it has told so with any volume.
    #[must_use]
    pub fn role(&self) -> Role {
        let mut roles = self.volumes.values().map(|pair| pair.role);
        let first = roles.clone().next().unwrap_or(Role::Unknown);
        roles.find(|role| *role == Role::Primary).unwrap_or(first)
    }
}

impl State {
    /// `own`, Secondary, without disks, with these peers and volumes.
    #[must_use]
    pub fn new(own: NodeId, peers: impl IntoIterator<Item = NodeId>, volumes: &[VolumeNr]) -> State {
        let peer = |peer| (peer, PeerState::stand_alone(volumes.iter().copied()));
        State {
            role: Role::Secondary,
            lasting: SuspendReasons::default(),
            members: NodeMask::of(own),
            volumes: volumes.iter().map(|nr| (*nr, VolumeState::diskless(false))).collect(),
            peers: peers.into_iter().map(peer).collect(),
        }
    }

    /// Why I/O is frozen.
    #[must_use]
    #[inline]
    pub fn suspended(&self) -> SuspendReasons {
        self.lasting
            .put(SuspendReason::Fencing, self.peers.values().any(|peer| peer.unfenced))
            .put(SuspendReason::Quorum, self.volumes.values().any(VolumeState::freezes))
    }

    /// What the volume may do, as far as quorum is concerned.
    #[must_use]
    #[inline]
    pub fn standing(&self, volume: VolumeNr) -> Standing {
        self.volumes[volume].standing
    }

    /// Nodes that may be online, this one among them: some may just have died, none that is online is missing
    /// (`docs/spec/connection-and-state.md` 9.6).
    #[must_use]
    pub fn may_be_online(&self) -> NodeMask {
        self.members
    }

    /// Is I/O frozen?
    #[must_use]
    #[inline]
    pub fn is_frozen(&self) -> bool {
        self.lasting.any()
            || self.peers.values().any(|peer| peer.unfenced)
            || self.volumes.values().any(VolumeState::freezes)
    }

    /// Is this node Primary?
    #[must_use]
    #[inline]
    pub fn is_primary(&self) -> bool {
        self.role == Role::Primary
    }

    /// The volume's disk on this node.
    #[must_use]
    #[inline]
    pub fn disk(&self, volume: VolumeNr) -> DiskState {
        self.volumes[volume].disk
    }

    /// The volume between this node and the peer.
    #[must_use]
    #[inline]
    pub fn pair(&self, peer: NodeId, volume: VolumeNr) -> &PairState {
        &self.peers[peer].volumes[volume]
    }

    /// The same, to be changed.
    pub fn pair_mut(&mut self, peer: NodeId, volume: VolumeNr) -> &mut PairState {
        &mut self.peers[peer].volumes[volume]
    }

    /// The volume's disk on the peer.
    #[must_use]
    #[inline]
    pub fn peer_disk(&self, peer: NodeId, volume: VolumeNr) -> DiskState {
        self.pair(peer, volume).disk
    }

    /// What goes on between this node and the peer about the volume.
    #[must_use]
    #[inline]
    pub fn replication(&self, peer: NodeId, volume: VolumeNr) -> Replication {
        self.pair(peer, volume).replication
    }

    /// The volume on all peers.
    pub fn pairs(&self, volume: VolumeNr) -> impl Iterator<Item = (NodeId, &PairState)> {
        self.peers.iter().map(move |(peer, state)| (peer, &state.volumes[volume]))
    }

    /// The state of the connection to the peer; StandAlone if there is no such peer.
    #[must_use]
    #[inline]
    pub fn connection(&self, peer: NodeId) -> ConnectionState {
        self.peers.get(peer).map_or(ConnectionState::StandAlone, |state| state.connection)
    }

    /// Is there a connection to the peer, past P_PROTOCOL?
    #[must_use]
    #[inline]
    pub fn is_connected(&self, peer: NodeId) -> bool {
        self.connection(peer) == ConnectionState::Connected
    }

    /// Connected peers that are Primary.
    #[must_use]
    pub fn primary_peers(&self) -> NodeMask {
        let primary = |(peer, state): &(NodeId, &PeerState)| self.is_connected(*peer) && state.role() == Role::Primary;
        self.peers.iter().filter(primary).map(|(peer, _)| peer).collect()
    }

    /// Is one of the two nodes Primary, as far as this volume says?
    #[must_use]
    pub fn has_primary(&self, peer: NodeId, volume: VolumeNr) -> bool {
        self.is_primary() || self.pair(peer, volume).role == Role::Primary
    }

    /// The worse one of both copies.
    #[must_use]
    pub fn worst_disk(&self, peer: NodeId, volume: VolumeNr) -> DiskState {
        self.disk(volume).min(self.peer_disk(peer, volume))
    }

    /// Is some disk of this node Consistent?
    #[must_use]
    pub fn has_consistent_disk(&self) -> bool {
        self.volumes.values().any(|v| v.disk == DiskState::Consistent)
    }

    /// Is a resync or verify of the volume going on, or about to?
    #[must_use]
    pub fn copies(&self, volume: VolumeNr) -> bool {
        self.pairs(volume).any(|(_, pair)| pair.replication > Replication::Established)
    }

    /// Is the peer brought up to date from here by what is marked, or about to be?
    #[must_use]
    pub fn is_source_of(&self, peer: NodeId, volume: VolumeNr) -> bool {
        self.replication(peer, volume).gives()
    }

    /// Peers that bring the volume up to date by what is marked, or are about to.
    #[must_use]
    pub fn sources_to_be(&self, volume: VolumeNr) -> NodeMask {
        let receives = |pair: &PairState| pair.replication.takes();
        self.pairs(volume).filter(|(_, pair)| receives(pair)).map(|(peer, _)| peer).collect()
    }

    /// From whom the volume's copy on this node is being replaced, or is about to be.
    #[must_use]
    pub fn replaced_by(&self, volume: VolumeNr) -> Option<NodeId> {
        let receives = |pair: &PairState| pair.replication.will_be_target() || pair.replication.is_target();
        self.pairs(volume).find(|(_, pair)| receives(pair)).map(|(peer, _)| peer)
    }

    /// The same, other than this peer, and none that waits for another.
    #[must_use]
    pub fn source_but(&self, volume: VolumeNr, but: NodeId) -> Option<NodeId> {
        let receives = |pair: &PairState| {
            pair.replication.will_be_target() || pair.replication.is_target() && !pair.paused.by_other
        };
        self.pairs(volume).find(|(peer, pair)| *peer != but && receives(pair)).map(|(peer, _)| peer)
    }

    /// Is the volume's handshake with the peer complete?
    #[must_use]
    #[inline]
    pub fn replicates(&self, peer: NodeId, volume: VolumeNr) -> bool {
        self.peers.get(peer).is_some_and(|state| state.volumes[volume].replication >= Replication::Established)
    }

    /// Is the volume's handshake complete with any peer?
    #[must_use]
    pub fn replicates_anywhere(&self, volume: VolumeNr) -> bool {
        self.pairs(volume).any(|(_, pair)| pair.replication >= Replication::Established)
    }

    /// Peers that are Primary without a disk of the volume's, and write here.
    pub(crate) fn writers_without_disk(&self, volume: VolumeNr) -> NodeMask {
        let writes = |(peer, pair): &(NodeId, &PairState)| {
            let primary = self.peers[*peer].role() == Role::Primary && pair.replication >= Replication::Established;
            primary && pair.disk < DiskState::Inconsistent
        };
        self.pairs(volume).filter(writes).map(|(peer, _)| peer).collect()
    }

    /// Peers with a good copy of the volume that are connected, and get what is written.
    pub(crate) fn serving_peers(&self, volume: VolumeNr) -> impl Iterator<Item = NodeId> {
        self.good_peers(volume).filter(move |peer| self.replicates(*peer, volume))
    }

    /// Peers with a good copy of the volume.
    pub fn good_peers(&self, volume: VolumeNr) -> impl Iterator<Item = NodeId> {
        self.pairs(volume).filter(|(_, pair)| pair.disk == DiskState::UpToDate).map(|(peer, _)| peer)
    }
}
