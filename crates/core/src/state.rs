//! Changing the state: a change is judged, the state that follows is stored as one value, and then what it brings with
//! it is carried out, in order (`docs/spec/connection-and-state.md` 2.1 #12 and 2.8).
//!
//! Owns `Node::state`; nobody else writes it. No change takes place within the carrying out of another one: what
//! follows from that waits in `Resource::to_settle`, and [`Resource::settle`] drains it.

pub(crate) mod to_settle;

use crate::api::{ConnectionState, Effect, Event, Severity, SuspendReason};
use crate::config::{Fencing, OnIoError};
use crate::connection::{Connection, Phase};
use crate::decide::change::{Change, Set};
use crate::decide::effects::Effect as E;
use crate::decide::quorum::{Known, Part, Tally, Voter};
use crate::decide::state::{Replication, State};
use crate::decide::topic::Topic;
use crate::decide::view::{Facts, Kind, PairFacts, PeerFacts, Refusal, View, VolumeFacts};
use crate::decide::votes::count_votes;
use crate::decide::{DiskState, Handler, Role, StateChangeResult as Code, fencing, rules};
use crate::device::Leaving;
use crate::node::Node;
use crate::request::under_way::Request;
use crate::state::to_settle::{Stored, ToSettle};
use crate::{Resource, dialect9, dialect84};
use meta::PeerFlags;
use units::{NodeId, NodeMask, VolumeNr};
use wire::UuidFlags;

impl Resource {
    // -- changes -----------------------------------------------------------------------------------------------------

    /// Judges a change, and stores the state that follows. What that brings with it waits for [`Self::settle`].
    ///
    /// # Errors
    /// The rule that refuses it. Nothing has changed then.
    pub(crate) fn change(&mut self, change: impl Into<Change>, kind: Kind) -> Result<(), Refusal> {
        if let Some(stored) = self.judge_and_store(&change.into(), kind)? {
            self.to_settle.push_back(ToSettle::Stored(stored));
        }
        Ok(())
    }

    /// Something has happened; if the rules do not let it count, it is without consequences.
    pub(crate) fn happened(&mut self, change: impl Into<Change>) {
        let _ = self.change(change, Kind::Fact);
    }

    /// A change, and at once all that it brings with it: for whoever goes on with what follows.
    ///
    /// # Errors
    /// As [`Self::change`].
    pub(crate) fn make(&mut self, change: impl Into<Change>, kind: Kind) -> Result<(), Refusal> {
        self.change(change, kind)?;
        self.settle();
        Ok(())
    }

    /// As [`Self::happened`], and at once all that it brings with it.
    pub(crate) fn took_place(&mut self, change: impl Into<Change>) {
        self.happened(change);
        self.settle();
    }

    fn judge_and_store(&mut self, change: &Change, kind: Kind) -> Result<Option<Box<Stored>>, Refusal> {
        let judged = match rules::judge(&self.node.state, change, kind, &self.facts()) {
            Err(Refusal { code: Code::NothingToDo, .. }) => return Ok(None),
            other => other?,
        };
        let old = self.store(judged.new.clone());
        Ok(Some(Box::new(Stored { old, judged })))
    }

    /// Carries out what changes have brought with them, in their order.
    pub(crate) fn settle(&mut self) {
        while let Some(next) = self.to_settle.pop_front() {
            match next {
                ToSettle::Stored(stored) => self.follow(&stored),
                ToSettle::EnterResync(peer, change) => match self.judge_and_store(&change, Kind::Fact) {
                    Ok(stored) => stored.iter().for_each(|stored| self.follow(stored)),
                    Err(refusal) => {
                        let text = format!("the resync cannot begin: {}", refusal.code);
                        self.out.protocol_error(peer, Topic::ResyncRefused, text);
                    }
                },
                ToSettle::BeginWithoutDisk(peer, volume) => self.begin_without_disk9(peer, volume),
                ToSettle::PeerIsGood(peer, volume) => self.peer_is_good9(peer, volume),
                ToSettle::PeerIsBehind(peer, volume) => self.peer_is_behind9(peer, volume),
            }
        }
    }

    fn follow(&mut self, stored: &Stored) {
        let Stored { old, judged } = stored;
        self.follow_change9(old);
        for volume in self.node.devices.ids() {
            self.count_for_absent(volume);
            for (n, peer) in self.peers_or_none().enumerate() {
                let (before, after) = (View::of(old, peer, volume), View::of(&judged.new, peer, volume));
                if before != after {
                    let effects =
                        judged.effects.iter().filter(|c| c.peer == peer && c.volume == volume).map(|c| c.effect);
                    self.after_change(peer, volume, [&before, &after], n == 0, effects);
                }
            }
        }
    }

    /// The one place that a state is stored. Returns what it was. Listeners are told of each one.
    pub(crate) fn store(&mut self, new: State) -> State {
        self.out.chores.mark();
        self.out.status_changed = true;
        let mut told = new.clone();
        for volume in self.node.devices.ids() {
            told.volumes[volume].disk = dialect9::told(told.disk(volume), self.detaches_by_command(volume));
        }
        self.out.emit(Effect::StateStored(Box::new(told)));
        std::mem::replace(&mut self.node.state, new)
    }

    /// A disk is just being opened, or could not be: nobody but this node is concerned.
    pub(crate) fn store_disk(&mut self, volume: VolumeNr, disk: DiskState) {
        let mut new = self.node.state.clone();
        new.volumes[volume].disk = disk;
        self.store(new);
    }

    /// What a volume's change brings with it, towards one peer; `first`: what concerns the volume alone, too.
    fn after_change(
        &mut self,
        peer: Option<NodeId>,
        volume: VolumeNr,
        [old, new]: [&View; 2],
        first: bool,
        effects: impl Iterator<Item = E>,
    ) {
        self.note_change(peer, volume, old, new);
        if let Some(peer) = peer
            && new.peer_disk < DiskState::Negotiating
            && old.peer_disk >= DiskState::Negotiating
        {
            // Also if the peer has asked for it: its words from before are still under way, and call the disk good.
            self.node.connections[peer].peer_devices[volume].link.compared.done = false;
        }
        if let Some(peer) = peer
            && old.is_together()
            && !new.is_together()
            && new.connection == ConnectionState::Connected
        {
            // The peer has removed it. Should it make it anew, that is as on a link that begins.
            self.node.connections[peer].peer_devices[volume].begin_link(self.starts.sequence);
        }
        if first {
            self.users_see_another_copy(volume, old, new);
        }
        // The peer was forced to be Primary: its next state packet decides about a resync (spec 2.6, row 12).
        let worthless = |v: &View| v.disk == DiskState::Inconsistent && v.peer_disk == DiskState::Inconsistent;
        let rises = old.peer != Role::Primary && new.peer == Role::Primary;
        if let Some(peer) = peer
            && worthless(old)
            && new.peer_disk == DiskState::UpToDate
            && rises
        {
            self.node.connections[peer].peer_devices[volume].link.compared.again = true;
        }
        let writes_here = new.is_together() && new.peer == Role::Primary;
        if !writes_here || new.peer_disk >= DiskState::Inconsistent || new.disk != DiskState::UpToDate {
            self.node.devices[volume].due.generation_with_first_write = false;
        }
        for effect in effects {
            self.carry_out(peer, volume, effect);
        }
        if let Some(peer) = peer {
            // What became of an attach is decided on both sides; to say it rules out that they differ.
            let decided = old.disk == DiskState::Negotiating && new.disk >= DiskState::Inconsistent;
            if decided && new.is_together() {
                self.send_state(peer, volume);
            }
            self.follow_resync_states(peer, volume, old, new);
            self.node.connections[peer].peer_devices[volume].note_begun([old.replication, new.replication]);
            self.heard_why_refused(peer, volume);
        }
        let failed = new.disk == DiskState::Failed && old.disk != DiskState::Failed;
        // Without the peer there is nothing that says what this disk is worth: it is let go of.
        let of_no_use = new.disk == DiskState::Diskless && old.disk == DiskState::Negotiating;
        if failed || of_no_use {
            self.node.devices[volume].lets_go(Leaving::InOrder);
        }
        if self.node.devices[volume].due.new_generation_pending && !self.node.state.is_frozen() {
            self.settle_pending_generations();
            self.finish_held();
        }
        self.refresh_flags(volume);
        self.node.devices[volume].queue.recheck = true;
    }

    /// The copy that users of this node see may be another one from now on.
    fn users_see_another_copy(&mut self, volume: VolumeNr, old: &View, new: &View) {
        let rises = old.role != Role::Primary && new.role == Role::Primary;
        if rises {
            // Its users begin with what there is.
            self.node.devices[volume].seen.peers_disk.follow_users();
        }
        if old.disk == DiskState::UpToDate && new.disk < DiskState::UpToDate && new.role == Role::Primary {
            self.node.note_disk_lost(volume, !self.node.state.replicates_anywhere(volume));
        }
        if new.disk < DiskState::Inconsistent && (old.disk >= DiskState::Inconsistent || rises) {
            self.node.expose_peers(volume);
            self.node.connections.ids().for_each(|peer| self.mark_repetitions(peer, volume));
        }
    }

    fn note_change(&mut self, peer: Option<NodeId>, volume: VolumeNr, old: &View, new: &View) {
        let mut parts = Vec::new();
        let mut part = |name: &str, a: &dyn std::fmt::Display, b: &dyn std::fmt::Display| {
            let (a, b) = (a.to_string(), b.to_string());
            if a != b {
                parts.push(format!("{name}( {a} -> {b} )"));
            }
        };
        let conn = |v: &View| dialect84::conn_state(v.connection, v.replication);
        part("role", &old.role, &new.role);
        part("peer", &old.peer, &new.peer);
        part("conn", &conn(old), &conn(new));
        part("disk", &old.disk, &new.disk);
        part("pdsk", &old.peer_disk, &new.peer_disk);
        let reasons = [SuspendReason::User, SuspendReason::NoData, SuspendReason::Fencing];
        let bits = |v: &View| reasons.map(|reason| if v.frozen.because_of(reason) { '1' } else { '0' });
        let susp = |v: &View| String::from_iter(bits(v));
        part("susp", &susp(old), &susp(new));
        let quorum = |v: &View| if v.standing.is_quorate() { "yes" } else { "no" };
        part("quorum", &quorum(old), &quorum(new));
        if !parts.is_empty() {
            let event = Event::State { old: *old, new: *new };
            self.out.tell(Severity::Info, Some(volume), peer, Topic::StateChange, event, parts.join(" "));
        }
    }

    fn carry_out(&mut self, peer: Option<NodeId>, volume: VolumeNr, effect: E) {
        match (effect, peer) {
            (E::ExposeCurrent, _) => {
                if let Some(b) = &self.node.devices[volume].backing {
                    self.node.devices[volume].seen.exposed = b.md.current;
                    self.node.devices[volume].seen.outrun = false;
                    self.node.devices[volume].seen.lacks_peers_write = false;
                    self.node.devices[volume].seen.peers_disk.follow_users();
                }
            }
            (E::ClearCrashedPrimary, _) if self.has_writes_for_others(volume) => {}
            (E::ClearCrashedPrimary, _) => self.node.devices[volume].disk.crashed_primary = false,
            (E::Call(handler), _) => {
                self.out.handler(handler, Some(volume), None);
            }
            (E::Requeue, _) => {
                self.requests.values_mut().for_each(Request::begins_anew);
                self.node.connections.ids().for_each(|peer| self.restart_frozen(peer));
                self.finish_held();
            }
            (E::RestartLocalIo, _) => self.node.connections.ids().for_each(|peer| self.restart_frozen(peer)),
            (E::Thaw, _) => self.lift(Change::default()),
            (E::LiftNoData, _) => self.lift(Set::Frozen(SuspendReason::NoData, false)),
            (E::DropPendingGeneration, _) if self.in_mesh9() && !self.all_together(volume) => {}
            (E::DropPendingGeneration, _) => self.node.devices[volume].due.new_generation_pending = false,
            // Of several peers the Primary alone begins generations.
            (E::NewGeneration | E::GenerationWithFirstWrite, _) if self.in_mesh9() && !self.node.state.is_primary() => {
            }
            // The Primary does, before it writes.
            (E::NewGeneration | E::GenerationWithFirstWrite, Some(peer)) if self.writer_of_9(peer) => {}
            (E::CreatePendingGeneration, _) => {
                self.create_pending_generation(volume);
                self.settle_pending_generations();
            }
            (E::MarkGenerationPending, _) => self.node.devices[volume].due.new_generation_pending = true,
            (E::NewGeneration, Some(peer)) if self.generation_can_wait(peer, volume) => {}
            (E::NewGeneration, _) if self.in_mesh9() => self.begin_among_peers9(volume),
            (E::NewGeneration, _) => {
                if self.connected().any(|(_, c)| c.speaks9()) {
                    // What is written belongs to the generation before.
                    self.close_epoch();
                    self.send_due_barriers();
                }
                self.new_generation(volume);
                let nine: Vec<_> = self.connected().filter(|(_, c)| c.speaks9()).map(|(peer, _)| peer).collect();
                nine.into_iter().for_each(|peer| self.send_uuids(peer, volume, UuidFlags::NEW_DATAGEN));
            }
            (E::GenerationWithFirstWrite, _) => self.node.devices[volume].due.generation_with_first_write = true,
            (E::WriteBitmap, _) => self.write_bitmap(volume),
            (E::ResendRequests, Some(peer)) => self.restart_frozen(peer),
            (E::LiftFencing, Some(peer)) => self.lift(Set::Unfenced(peer, false)),
            (E::CompleteWithoutPeer, Some(peer)) => self.give_up_frozen(peer),
            (E::SendSyncUuid, Some(peer)) => self.send_sync_uuid(peer, volume),
            (E::SendUuids, Some(peer)) => self.send_uuids(peer, volume, UuidFlags::NONE),
            (E::SendSizes, Some(peer)) => self.send_sizes(peer, volume),
            (E::SendState, Some(peer)) => self.send_state(peer, volume),
            (E::SendBitmap, Some(peer)) => self.bitmap_exchange_as_source(peer, volume),
            (E::SetAllBitsThenResync, Some(peer)) => self.starting_sync(peer, volume),
            (_, None) => debug_assert!(false, "{effect:?} without a peer"),
        }
    }

    /// Lets go of resync work that the new state does not want, and starts what it does.
    fn follow_resync_states(&mut self, peer: NodeId, volume: VolumeNr, old: &View, new: &View) {
        let (was, is) = (old.replication, new.replication);
        if was.is_syncing() && !is.is_syncing() {
            self.abandon_resync(peer, volume);
            if was.is_target() {
                let pd = &mut self.node.connections[peer].peer_devices[volume];
                pd.resync.ended = Some(self.node.now);
                pd.link.told.forget_source();
                self.out.handler(Handler::AfterResyncTarget, Some(volume), Some(peer));
            }
        }
        if was.is_verifying() && !is.is_verifying() {
            self.verify_interrupted(peer, volume);
            self.abandon_resync(peer, volume);
        }
        if is.is_verifying() && !was.is_verifying() {
            self.start_verify(peer, volume);
        }
        let paused = |r: Replication| matches!(r, Replication::PausedSyncS | Replication::PausedSyncT);
        if is.is_syncing() && paused(was) != paused(is) {
            self.resync_paused(peer, volume, paused(is));
        }
        self.node.consider_repair(peer, volume, old, new);
        if !was.is_syncing() && is.is_syncing() {
            // It brings what was refused, and until its end the target is no good copy.
            self.node.devices[volume].seen.peers_disk.gets_what_it_refused();
            self.start_resync(peer, volume);
            self.node.connections[peer].peer_devices[volume].resync.known = was == Replication::WFBitMapS;
            self.resync_began(peer, volume, is.is_source());
        }
        let pd = &mut self.node.connections[peer].peer_devices[volume];
        let wants_bitmap = is == Replication::WFBitMapT && was != Replication::WFBitMapT;
        if wants_bitmap {
            // The source says the generation when it has our bitmap.
            pd.link.exchange.take_early_sync_uuid();
            pd.link.told.says = Replication::WFBitMapS;
        }
        if wants_bitmap && pd.link.exchange.take_early_bitmap() {
            self.bitmap_complete(peer, volume);
        }
        let pd = &mut self.node.connections[peer].peer_devices[volume];
        pd.before_resync.follow(is);
        if is == Replication::WFSyncUUID
            && let Some(generation) = pd.link.exchange.take_early_sync_uuid()
        {
            self.sync_uuid_received(peer, volume, generation);
        }
    }

    /// A reason for frozen I/O is over. If it was the last one, what waited goes on at once: a generation that was
    /// pending is told before what the change that led to this has still to send (a bitmap).
    pub(crate) fn lift(&mut self, over: impl Into<Change>) {
        self.happened(over);
        if self.node.state.is_frozen() {
            return;
        }
        self.node.devices.values_mut().for_each(|dev| dev.queue.recheck = true);
        self.settle_pending_generations();
        self.node.connections.ids().for_each(|peer| self.restart_frozen(peer));
        self.finish_held();
    }
}

impl Node {
    /// The own disk goes, or there are users without one: from now on they see what the peer has (spec 7.9). It may
    /// have told of its generation while there was a disk here, or no users, and that did not matter. The one that it
    /// begins for a Primary without a disk may never be heard of.
    fn expose_peers(&mut self, volume: VolumeNr) {
        let theirs = self
            .state
            .serving_peers(volume)
            .next()
            .and_then(|peer| self.connections[peer].peer_devices[volume].link.told.uuids)
            .map(|u| u.current);
        if let Some(current) = theirs.filter(|g| !g.is_fresh()) {
            self.devices[volume].seen.exposed = current;
        }
    }
}

impl Node {
    /// The disk takes reads and writes (whatever the quality of its data).
    #[inline]
    pub(crate) fn usable(&self, volume: VolumeNr) -> bool {
        self.devices[volume].is_usable(self.state.disk(volume))
    }

    /// Connections that are up, past P_PROTOCOL.
    pub(crate) fn connected(&self) -> impl Iterator<Item = (NodeId, &Connection)> {
        self.connections.iter().filter(|(peer, _)| self.state.is_connected(*peer))
    }

    /// The peer that a command without a peer's name is about: one that the volume replicates to, else the first one.
    pub(crate) fn partner(&self, volume: VolumeNr) -> Option<NodeId> {
        let replicates = |peer: &NodeId| self.state.replicates(*peer, volume);
        let writes = |peer: &NodeId| replicates(peer) && self.state.pair(*peer, volume).role == Role::Primary;
        let mut ids = self.connections.ids();
        ids.find(writes).or_else(|| self.connections.ids().find(replicates)).or_else(|| self.connections.ids().next())
    }

    /// The volume towards its partner, or alone.
    pub(crate) fn view(&self, volume: VolumeNr) -> View {
        View::of(&self.state, self.partner(volume), volume)
    }

    /// The highest policy of the volumes whose data is worth something (spec 8.5).
    pub(crate) fn fencing_policy(&self) -> Fencing {
        let policy = |dev: &crate::device::Device| dev.cfg.as_ref().map(|c| c.fencing).unwrap_or_default();
        fencing::effective(self.devices.iter().map(|(volume, dev)| (policy(dev), self.state.disk(volume))))
    }

    pub(crate) fn facts(&self) -> Facts {
        Facts {
            fencing: self.fencing_policy(),
            on_no_data: self.cfg.on_no_data,
            quorum: self.cfg.quorum,
            state_sent: self.state_sent(),
            holds_back: self.holds_back(),
            volumes: self.devices.map(|dev| VolumeFacts {
                part: if dev.cfg.is_some() { Part::Disk } else { Part::Tiebreaker },
                unconfigured: self.unconfigured_voters(dev, PeerFlags::default()),
                unconfigured_outdated: self.unconfigured_voters(dev, PeerFlags::OUTDATED),
                open: dev.openers.writers + dev.openers.readers > 0,
                exposed_is_current: dev.backing.as_ref().is_some_and(|b| b.md.current.same(dev.seen.exposed))
                    && !dev.seen.outrun,
                at_attach: dev.disk.attach_state,
                call_local_io_error: dev.cfg.as_ref().is_some_and(|c| c.on_io_error == OnIoError::CallHandler),
            }),
            peers: self.connections.iter().map(|(peer, c)| (peer, self.peer_facts(peer, c))).collect(),
        }
    }

    fn peer_facts(&self, peer: NodeId, c: &Connection) -> PeerFacts {
        PeerFacts {
            // Below protocol 100 nothing can say that a write is to be repeated, and one that overlaps another in part
            // would be lost where that one wins.
            two_primaries: c.cfg.two_primaries && c.version() >= 100,
            verify_alg: c.cfg.usable_verify().is_some(),
            protocol: c.version(),
            volumes: self.devices.iter().map(|(volume, _)| (volume, self.pair_facts(peer, c, volume))).collect(),
        }
    }

    fn pair_facts(&self, peer: NodeId, c: &Connection, volume: VolumeNr) -> PairFacts {
        let md = self.devices[volume].backing.as_ref().map(|b| &b.md);
        let replication = self.state.replication(peer, volume);
        PairFacts {
            // Its bitmap says that it has decided, too.
            undecided: c.peer_devices[volume].link.compared.undecided
                && matches!(replication, Replication::WFBitMapS | Replication::WFBitMapT),
            outdated_at_attach: md.is_some_and(|md| md.peer(peer).flags.contains(PeerFlags::OUTDATED)),
            bitmap_uuid_zero: md.is_none() || self.devices[volume].uuids(peer).bitmap.is_none(),
            serves: self.depends_on_nobody_else(peer, volume),
            voter: Voter {
                known: match md.map(|md| md.peer(peer)) {
                    Some(record) if !record.is_known() => Known::No,
                    Some(record) if record.flags.contains(PeerFlags::OUTDATED) => Known::Outdated,
                    _ => Known::Yes,
                },
                part: c.cfg.part,
            },
        }
    }

    /// Nodes that a volume's metadata know with these flags, and that are not configured (any more). Only metadata with
    /// a node id know others by theirs.
    fn unconfigured_voters(&self, dev: &crate::device::Device, flags: PeerFlags) -> NodeMask {
        let knows = |b: &&crate::device::Backing| self.cfg.quorum.is_on() && b.md.node_id.is_some();
        let Some(b) = dev.backing.as_ref().filter(knows) else { return NodeMask::default() };
        let configured = self.connections.members().with(self.cfg.node);
        let counts = |node: &NodeId| {
            let record = b.md.peer(*node);
            !configured.contains(*node) && record.is_known() && record.flags.contains(flags)
        };
        NodeId::all().filter(counts).collect()
    }

    /// The votes of a volume as they are now.
    pub(crate) fn votes(&self, volume: VolumeNr) -> Tally {
        count_votes(&self.state, &self.state, volume, &self.facts())
    }

    /// Our parameters are on their way and some volume's handshake is not over.
    fn state_sent(&self) -> bool {
        self.connected().any(|(peer, c)| {
            let waiting = self.devices.ids().any(|volume| self.will_be_compared(peer, volume));
            waiting && c.link.as_ref().is_some_and(|l| l.phase >= Phase::Parameters)
        })
    }

    /// Would this change be made, as things are?
    ///
    /// # Errors
    /// The rule that refuses it.
    pub(crate) fn would_be(&self, change: &Change, kind: Kind) -> Result<State, Refusal> {
        rules::successor(&self.state, change, kind, &self.facts())
    }

    /// All peers, or nobody.
    pub(crate) fn peers_or_none(&self) -> impl Iterator<Item = Option<NodeId>> + use<> {
        let members = self.connections.members();
        members.into_iter().map(Some).chain(members.is_empty().then_some(None))
    }
}
