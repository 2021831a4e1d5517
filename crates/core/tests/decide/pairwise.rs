//! The rules in the words of 8.4: one volume and one peer, each state one word; beside them, where a row wants it, a
//! second peer and a second volume.

use units::{NodeId, NodeMask, VolumeNr};
use urbd_core::decide::change::Change;
use urbd_core::decide::effects::{self, Effect};
use urbd_core::decide::quorum::{Known, Part, QuorumConfig, Voter};
use urbd_core::decide::rules;
use urbd_core::decide::state::{PairState, Paused, PeerState, State};
use urbd_core::decide::view::{Facts, Kind, PairFacts, PeerFacts, View, VolumeFacts};
use urbd_core::decide::{DiskState, Role, StateChange, StateChangeResult, StateWord};
use urbd_core::members::Peers;
use urbd_core::{Fencing, OnNoData, SuspendReason, dialect84};

pub(crate) const VOLUME: VolumeNr = VolumeNr(0);
const OTHER_VOLUME: VolumeNr = VolumeNr(1);

pub(crate) fn peer() -> NodeId {
    NodeId::new(1).expect("a node id")
}

pub(crate) fn second_peer() -> NodeId {
    NodeId::new(2).expect("a node id")
}

/// What the rules look at besides the state word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Context {
    pub(crate) two_primaries: bool,
    pub(crate) fencing: Fencing,
    pub(crate) on_no_data: OnNoData,
    pub(crate) open: bool,
    pub(crate) verify_alg: bool,
    pub(crate) protocol: u32,
    pub(crate) state_sent: bool,
    pub(crate) holds_back: bool,
    pub(crate) peer_undecided: bool,
    pub(crate) exposed_is_current: bool,
    /// While Negotiating: own and the peer's disk state as decided at attach.
    pub(crate) at_attach: (DiskState, DiskState),
    pub(crate) bitmap_in_use: bool,
    pub(crate) call_local_io_error: bool,
    /// Another volume: own disk, the peer's part in it.
    pub(crate) other_volume: Option<(DiskState, PairState)>,
    /// A second peer, and what it says about the volume.
    pub(crate) second_peer: Option<StateWord>,
}

pub(crate) const PLAIN: Context = Context {
    two_primaries: false,
    fencing: Fencing::DontCare,
    on_no_data: OnNoData::IoError,
    open: false,
    verify_alg: true,
    protocol: 101,
    state_sent: false,
    holds_back: false,
    peer_undecided: false,
    exposed_is_current: true,
    at_attach: (DiskState::UpToDate, DiskState::DUnknown),
    bitmap_in_use: false,
    call_local_io_error: false,
    other_volume: None,
    second_peer: None,
};

impl Context {
    fn volumes(&self) -> Vec<VolumeNr> {
        if self.other_volume.is_some() { vec![VOLUME, OTHER_VOLUME] } else { vec![VOLUME] }
    }

    fn facts(&self) -> Facts {
        let volume = VolumeFacts {
            open: self.open,
            exposed_is_current: self.exposed_is_current,
            at_attach: self.at_attach.0,
            call_local_io_error: self.call_local_io_error,
            part: Part::Disk,
            unconfigured: NodeMask::default(),
            unconfigured_outdated: NodeMask::default(),
        };
        let pair = PairFacts {
            undecided: self.peer_undecided,
            outdated_at_attach: self.at_attach.1 == DiskState::Outdated,
            bitmap_uuid_zero: !self.bitmap_in_use,
            serves: true,
            voter: Voter { known: Known::Yes, part: Part::Disk },
        };
        let peer_facts = || PeerFacts {
            two_primaries: self.two_primaries,
            verify_alg: self.verify_alg,
            protocol: self.protocol,
            volumes: self.volumes().into_iter().map(|v| (v, pair)).collect(),
        };
        let mut peers = Peers::default();
        peers.insert(peer(), peer_facts());
        if self.second_peer.is_some() {
            peers.insert(second_peer(), peer_facts());
        }
        Facts {
            fencing: self.fencing,
            on_no_data: self.on_no_data,
            quorum: QuorumConfig::default(),
            state_sent: self.state_sent,
            holds_back: self.holds_back,
            volumes: self.volumes().into_iter().map(|v| (v, volume)).collect(),
            peers,
        }
    }

    /// The state that this word is of.
    pub(crate) fn state(&self, word: &StateWord) -> State {
        let volumes = self.volumes();
        let peers = [Some(peer()), self.second_peer.map(|_| second_peer())];
        let mut state = State::new(NodeId::new(0).expect("a node id"), peers.into_iter().flatten(), &volumes);
        state.role = word.role;
        state.lasting = state.lasting.put(SuspendReason::User, word.susp).put(SuspendReason::NoData, word.susp_nod);
        state.volumes[VOLUME].disk = word.disk;
        part(&mut state.peers[peer()], word);
        state.peers[peer()].unfenced = word.susp_fen;
        if let Some(second) = &self.second_peer {
            part(&mut state.peers[second_peer()], second);
        }
        if let Some((disk, pair)) = self.other_volume {
            state.volumes[OTHER_VOLUME].disk = disk;
            *state.pair_mut(peer(), OTHER_VOLUME) = pair;
        }
        state
    }
}

/// What a word says of a peer.
fn part(state: &mut PeerState, word: &StateWord) {
    let (connection, replication) = dialect84::connection_and_replication(word.conn);
    state.connection = connection;
    let paused =
        Paused { by_user: word.user_isp, by_peer: word.peer_isp, by_dependency: word.aftr_isp, by_other: false };
    state.volumes[VOLUME] = PairState { replication, disk: word.pdsk, role: word.peer, paused, quorate: false };
}

/// The word of a state.
pub(crate) fn word(state: &State) -> StateWord {
    dialect84::word(state, Some(peer()), VOLUME)
}

/// A word as the rules see it.
pub(crate) fn view(word: &StateWord) -> View {
    View::of(&PLAIN.state(word), Some(peer()), VOLUME)
}

pub(crate) fn change(change: &StateChange) -> Change {
    use urbd_core::decide::change::Set;
    let (p, v) = (peer(), VOLUME);
    let mut out = Change::default();
    if let Some(conn) = change.conn {
        let (connection, replication) = dialect84::connection_and_replication(conn);
        if connection != urbd_core::ConnectionState::Connected || conn == wire::ConnState::WFReportParams {
            out.push(Set::Connection(p, connection));
        } else {
            out.push(Set::Replication(p, v, replication));
        }
    }
    let sets = [
        change.role.map(Set::Role),
        change.peer.map(|role| Set::PeerRole(p, v, role)),
        change.disk.map(|disk| Set::Disk(v, disk)),
        change.pdsk.map(|disk| Set::PeerDisk(p, v, disk)),
        change.susp.map(|on| Set::Frozen(SuspendReason::User, on)),
        change.aftr_isp.map(|on| Set::PausedByDependency(p, v, on)),
        change.peer_isp.map(|on| Set::PausedByPeer(p, v, on)),
        change.user_isp.map(|on| Set::PausedByUser(p, v, on)),
    ];
    sets.into_iter().flatten().for_each(|set| out.push(set));
    out
}

pub(crate) fn judge_state(
    old: &StateWord,
    wish: &StateChange,
    kind: Kind,
    ctx: &Context,
) -> Result<State, StateChangeResult> {
    rules::successor(&ctx.state(old), &change(wish), kind, &ctx.facts()).map_err(|refusal| refusal.code)
}

/// What follows from a wish of any kind.
pub(crate) fn successor(old: &StateWord, wish: &Change, ctx: &Context) -> Result<State, StateChangeResult> {
    follows(&ctx.state(old), wish, ctx)
}

pub(crate) fn follows(old: &State, wish: &Change, ctx: &Context) -> Result<State, StateChangeResult> {
    rules::successor(old, wish, Kind::Wish, &ctx.facts()).map_err(|refusal| refusal.code)
}

pub(crate) fn judge(
    old: &StateWord,
    wish: &StateChange,
    kind: Kind,
    ctx: &Context,
) -> Result<StateWord, StateChangeResult> {
    judge_state(old, wish, kind, ctx).map(|state| word(&state))
}

pub(crate) fn sanitise(old: &StateWord, wanted: &StateWord, ctx: &Context) -> StateWord {
    word(&rules::sanitise(&ctx.state(old), &ctx.state(wanted), &ctx.facts()))
}

pub(crate) fn valid(s: &StateWord, ctx: &Context) -> Result<(), StateChangeResult> {
    rules::valid(&ctx.state(s), Some(peer()), VOLUME, &ctx.facts())
}

pub(crate) fn is_cluster_wide(old: &StateWord, new: &StateWord) -> bool {
    rules::is_cluster_wide(&view(old), &view(new))
}

/// What becomes of the volume when `old` becomes `new`.
pub(crate) fn effects(old: &StateWord, new: &StateWord, ctx: &Context) -> Vec<Effect> {
    let all = effects::effects(&ctx.state(old), &ctx.state(new), &ctx.facts());
    all.into_iter().filter(|caused| caused.volume == VOLUME).map(|caused| caused.effect).collect()
}

/// Another volume that is in good order.
pub(crate) fn good_volume() -> (DiskState, PairState) {
    let replication = urbd_core::decide::state::Replication::Established;
    let pair = PairState { replication, disk: DiskState::UpToDate, role: Role::Secondary, ..PairState::UNKNOWN };
    (DiskState::UpToDate, pair)
}
