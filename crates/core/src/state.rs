//! Changing the state: a change is judged, the state that follows is stored as one value, and then what it brings with
//! it is carried out, in order (`docs/spec/connection-and-state.md` 2.1 #12 and 2.8).
//!
//! Owns `Node::state`; nobody else writes it. No change takes place within the carrying out of another one: what
//! follows from that waits in `Resource::to_settle`, and [`Resource::settle`] drains it.

pub(crate) mod to_settle;

use crate::api::{Event, Severity, SuspendReasons};
use crate::config::{Fencing, OnIoError};
use crate::connection::{Connection, Phase};
use crate::decide::change::{Change, Set};
use crate::decide::effects::Effect as E;
use crate::decide::state::{Replication, State};
use crate::decide::topic::Topic;
use crate::decide::view::{Facts, Kind, PairFacts, PeerFacts, Refusal, View, VolumeFacts};
use crate::decide::{DiskState, Handler, Role, StateChangeResult as Code, fencing, rules};
use crate::device::Leaving;
use crate::node::Node;
use crate::state::to_settle::{Stored, ToSettle};
use crate::{Resource, dialect84};
use units::{Generation, NodeId, VolumeNr};
use wire::UuidFlags;

impl Resource {
    // -- what is asked often -----------------------------------------------------------------------------------------

    // -- facts -------------------------------------------------------------------------------------------------------

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
                ToSettle::EnterResync(i, change) => match self.judge_and_store(&change, Kind::Fact) {
                    Ok(stored) => stored.iter().for_each(|stored| self.follow(stored)),
                    Err(refusal) => {
                        let text = format!("the resync cannot begin: {}", refusal.code);
                        self.out.protocol_error(i, Topic::ResyncRefused, text);
                    }
                },
                ToSettle::BeginWithoutDisk(i, d) => self.begin_without_disk9(i, d),
            }
        }
    }

    fn follow(&mut self, stored: &Stored) {
        let Stored { old, judged } = stored;
        self.follow_change9(old);
        for d in self.node.devices.ids() {
            self.count_for_absent(d);
            for (n, i) in self.peers_or_none().enumerate() {
                let (before, after) = (View::of(old, i, d), View::of(&judged.new, i, d));
                if before != after {
                    let effects = judged.effects.iter().filter(|c| c.peer == i && c.volume == d).map(|c| c.effect);
                    self.after_change(i, d, [&before, &after], n == 0, effects);
                }
            }
        }
    }

    /// The one place that a state is stored. Returns what it was.
    fn store(&mut self, new: State) -> State {
        self.out.chores.mark();
        self.out.status_changed = true;
        std::mem::replace(&mut self.node.state, new)
    }

    /// A disk is just being opened, or could not be: nobody but this node is concerned.
    pub(crate) fn store_disk(&mut self, d: VolumeNr, disk: DiskState) {
        let mut new = self.node.state.clone();
        new.volumes[d].disk = disk;
        self.store(new);
    }

    /// What a volume's change brings with it, towards one peer; `first`: what concerns the volume alone, too.
    fn after_change(
        &mut self,
        i: Option<NodeId>,
        d: VolumeNr,
        [old, new]: [&View; 2],
        first: bool,
        effects: impl Iterator<Item = E>,
    ) {
        self.note_change(i, d, old, new);
        if let Some(i) = i
            && new.peer_disk < DiskState::Negotiating
            && old.peer_disk >= DiskState::Negotiating
        {
            // Also if the peer has asked for it: its words from before are still under way, and call the disk good.
            self.node.connections[i].peer_devices[d].link.compared.done = false;
        }
        if first {
            self.users_see_another_copy(d, old, new);
        }
        // The peer was forced to be Primary: its next state packet decides about a resync (spec 2.6, row 12).
        let worthless = |v: &View| v.disk == DiskState::Inconsistent && v.peer_disk == DiskState::Inconsistent;
        let rises = old.peer != Role::Primary && new.peer == Role::Primary;
        if let Some(i) = i
            && worthless(old)
            && new.peer_disk == DiskState::UpToDate
            && rises
        {
            self.node.connections[i].peer_devices[d].link.compared.again = true;
        }
        let writes_here = new.is_together() && new.peer == Role::Primary;
        if !writes_here || new.peer_disk >= DiskState::Inconsistent || new.disk != DiskState::UpToDate {
            self.node.devices[d].due.generation_with_first_write = false;
        }
        for effect in effects {
            self.carry_out(i, d, effect);
        }
        if let Some(i) = i {
            // What became of an attach is decided on both sides; to say it rules out that they differ.
            let decided = old.disk == DiskState::Negotiating && new.disk >= DiskState::Inconsistent;
            if decided && new.is_together() {
                self.send_state(i, d);
            }
            self.follow_resync_states(i, d, old, new);
            self.node.connections[i].peer_devices[d].note_begun([old.replication, new.replication]);
            self.heard_why_refused(i, d);
        }
        let failed = new.disk == DiskState::Failed && old.disk != DiskState::Failed;
        // Without the peer there is nothing that says what this disk is worth: it is let go of.
        let of_no_use = new.disk == DiskState::Diskless && old.disk == DiskState::Negotiating;
        if failed || of_no_use {
            self.node.devices[d].lets_go(Leaving::InOrder);
        }
        if self.node.devices[d].due.new_generation_pending && !self.node.state.is_frozen() {
            self.settle_pending_generations();
            self.finish_held();
        }
        self.refresh_flags(d);
        self.node.devices[d].queue.recheck = true;
    }

    /// The copy that users of this node see may be another one from now on.
    fn users_see_another_copy(&mut self, d: VolumeNr, old: &View, new: &View) {
        let rises = old.role != Role::Primary && new.role == Role::Primary;
        if rises {
            // Its users begin with what there is.
            self.node.devices[d].seen.peers_disk.follow_users();
        }
        if old.disk == DiskState::UpToDate && new.disk < DiskState::UpToDate && new.role == Role::Primary {
            self.node.note_disk_lost(d, !self.node.state.replicates_anywhere(d));
        }
        if new.disk < DiskState::Inconsistent && (old.disk >= DiskState::Inconsistent || rises) {
            self.node.expose_peers(d);
            self.node.connections.ids().for_each(|i| self.mark_repetitions(i, d));
        }
    }

    fn note_change(&mut self, i: Option<NodeId>, d: VolumeNr, old: &View, new: &View) {
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
        let bits = |s: SuspendReasons| [s.user, s.no_data, s.fencing].map(|frozen| if frozen { '1' } else { '0' });
        let susp = |v: &View| String::from_iter(bits(v.frozen));
        part("susp", &susp(old), &susp(new));
        if !parts.is_empty() {
            let event = Event::State { old: *old, new: *new };
            self.out.tell(Severity::Info, Some(d), i, Topic::StateChange, event, parts.join(" "));
        }
    }

    fn carry_out(&mut self, i: Option<NodeId>, d: VolumeNr, effect: E) {
        match (effect, i) {
            (E::ExposeCurrent, _) => {
                if let Some(b) = &self.node.devices[d].backing {
                    self.node.devices[d].seen.exposed = b.md.current;
                    self.node.devices[d].seen.outrun = false;
                    self.node.devices[d].seen.lacks_peers_write = false;
                    self.node.devices[d].seen.peers_disk.follow_users();
                }
            }
            (E::ClearCrashedPrimary, _) if self.has_writes_for_others(d) => {}
            (E::ClearCrashedPrimary, _) => self.node.devices[d].disk.crashed_primary = false,
            (E::Call(handler), _) => {
                self.out.handler(handler, Some(d), None);
            }
            (E::RestartLocalIo, _) => self.node.connections.ids().for_each(|i| self.restart_frozen(i)),
            (E::LiftNoData, _) => self.lift(Set::FrozenWithoutData(false)),
            (E::DropPendingGeneration, _) if self.in_mesh9() && !self.all_together(d) => {}
            (E::DropPendingGeneration, _) => self.node.devices[d].due.new_generation_pending = false,
            // Of several peers the Primary alone begins generations.
            (E::NewGeneration | E::GenerationWithFirstWrite, _) if self.in_mesh9() && !self.node.state.is_primary() => {
            }
            // The Primary does, before it writes.
            (E::NewGeneration | E::GenerationWithFirstWrite, Some(i)) if self.writer_of_9(i) => {}
            (E::CreatePendingGeneration, _) => {
                self.create_pending_generation(d);
                self.settle_pending_generations();
            }
            (E::MarkGenerationPending, _) => self.node.devices[d].due.new_generation_pending = true,
            (E::NewGeneration, Some(i)) if self.generation_can_wait(i, d) => {}
            (E::NewGeneration, _) if self.in_mesh9() => self.begin_among_peers9(d),
            (E::NewGeneration, _) => {
                if self.connected().any(|(_, c)| c.speaks9()) {
                    // What is written belongs to the generation before.
                    self.close_epoch();
                    self.send_due_barriers();
                }
                self.new_generation(d);
                let nine: Vec<_> = self.connected().filter(|(_, c)| c.speaks9()).map(|(i, _)| i).collect();
                nine.into_iter().for_each(|i| self.send_uuids(i, d, UuidFlags::NEW_DATAGEN));
            }
            (E::GenerationWithFirstWrite, _) => self.node.devices[d].due.generation_with_first_write = true,
            (E::WriteBitmap, _) => self.write_bitmap(d),
            (E::ResendRequests, Some(i)) => self.restart_frozen(i),
            (E::LiftFencing, Some(i)) => self.lift(Set::Unfenced(i, false)),
            (E::CompleteWithoutPeer, Some(i)) => self.give_up_frozen(i),
            (E::SendSyncUuid, Some(i)) => self.send_sync_uuid(i, d),
            (E::SendUuids, Some(i)) => self.send_uuids(i, d, UuidFlags::NONE),
            (E::SendSizes, Some(i)) => self.send_sizes(i, d),
            (E::SendState, Some(i)) => self.send_state(i, d),
            (E::SendBitmap, Some(i)) => self.bitmap_exchange_as_source(i, d),
            (E::SetAllBitsThenResync, Some(i)) => self.starting_sync(i, d),
            (_, None) => debug_assert!(false, "{effect:?} without a peer"),
        }
    }

    /// Lets go of resync work that the new state does not want, and starts what it does.
    fn follow_resync_states(&mut self, i: NodeId, d: VolumeNr, old: &View, new: &View) {
        let (was, is) = (old.replication, new.replication);
        if was.is_syncing() && !is.is_syncing() {
            self.abandon_resync(i, d);
            if was.is_target() {
                let pd = &mut self.node.connections[i].peer_devices[d];
                pd.resync.ended = Some(self.node.now);
                pd.link.told.forget_source();
                self.out.handler(Handler::AfterResyncTarget, Some(d), Some(i));
            }
        }
        if was.is_verifying() && !is.is_verifying() {
            self.verify_interrupted(i, d);
            self.abandon_resync(i, d);
        }
        if is.is_verifying() && !was.is_verifying() {
            self.start_verify(i, d);
        }
        let paused = |r: Replication| matches!(r, Replication::PausedSyncS | Replication::PausedSyncT);
        if is.is_syncing() && paused(was) != paused(is) {
            self.resync_paused(i, d, paused(is));
        }
        self.node.consider_repair(i, d, old, new);
        if !was.is_syncing() && is.is_syncing() {
            // It brings what was refused, and until its end the target is no good copy.
            self.node.devices[d].seen.peers_disk.gets_what_it_refused();
            self.start_resync(i, d);
            self.node.connections[i].peer_devices[d].resync.known = was == Replication::WFBitMapS;
            self.resync_began(i, d, is.is_source());
        }
        let pd = &mut self.node.connections[i].peer_devices[d];
        let wants_bitmap = is == Replication::WFBitMapT && was != Replication::WFBitMapT;
        if wants_bitmap {
            // The source says the generation when it has our bitmap.
            pd.link.exchange.take_early_sync_uuid();
            pd.link.told.says = Replication::WFBitMapS;
        }
        if wants_bitmap && pd.link.exchange.take_early_bitmap() {
            self.bitmap_complete(i, d);
        }
        let pd = &mut self.node.connections[i].peer_devices[d];
        pd.before_resync.follow(is);
        if is == Replication::WFSyncUUID
            && let Some(generation) = pd.link.exchange.take_early_sync_uuid()
        {
            self.sync_uuid_received(i, d, generation);
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
        self.node.connections.ids().for_each(|i| self.restart_frozen(i));
        self.finish_held();
    }
}

impl Node {
    /// The own disk goes, or there are users without one: from now on they see what the peer has (spec 7.9). It may
    /// have told of its generation while there was a disk here, or no users, and that did not matter. The one that it
    /// begins for a Primary without a disk may never be heard of.
    fn expose_peers(&mut self, d: VolumeNr) {
        let serving = self.state.good_peers(d).find(|i| self.state.replicates(*i, d));
        let theirs = serving.and_then(|i| self.connections[i].peer_devices[d].link.told.uuids).map(|u| u.current);
        let fresh = |g: &Generation| g.is_none() || g.same(Generation::JUST_CREATED);
        if let Some(current) = theirs.filter(|g| !fresh(g)) {
            self.devices[d].seen.exposed = current;
        }
    }
}

impl Node {
    /// The disk takes reads and writes (whatever the quality of its data).
    #[inline]
    pub(crate) fn usable(&self, d: VolumeNr) -> bool {
        self.devices[d].is_usable(self.state.disk(d))
    }

    /// Connections that are up, past P_PROTOCOL.
    pub(crate) fn connected(&self) -> impl Iterator<Item = (NodeId, &Connection)> {
        self.connections.iter().filter(|(i, _)| self.state.is_connected(*i))
    }

    /// The peer that a command without a peer's name is about: one that the volume replicates to, else the first one.
    pub(crate) fn partner(&self, d: VolumeNr) -> Option<NodeId> {
        let replicates = |i: &NodeId| self.state.replicates(*i, d);
        let writes = |i: &NodeId| replicates(i) && self.state.pair(*i, d).role == Role::Primary;
        let mut ids = self.connections.ids();
        ids.find(writes).or_else(|| self.connections.ids().find(replicates)).or_else(|| self.connections.ids().next())
    }

    /// The volume towards its partner, or alone.
    pub(crate) fn view(&self, d: VolumeNr) -> View {
        View::of(&self.state, self.partner(d), d)
    }

    /// The highest policy of the volumes whose data is worth something (spec 8.5).
    pub(crate) fn fencing_policy(&self) -> Fencing {
        let policy = |dev: &crate::device::Device| dev.cfg.as_ref().map(|c| c.fencing).unwrap_or_default();
        fencing::effective(self.devices.iter().map(|(d, dev)| (policy(dev), self.state.disk(d))))
    }

    pub(crate) fn facts(&self) -> Facts {
        Facts {
            fencing: self.fencing_policy(),
            on_no_data: self.cfg.on_no_data,
            state_sent: self.state_sent(),
            holds_back: self.holds_back(),
            volumes: self.devices.map(|dev| VolumeFacts {
                open: dev.openers.writers + dev.openers.readers > 0,
                exposed_is_current: dev.backing.as_ref().is_some_and(|b| b.md.current.same(dev.seen.exposed))
                    && !dev.seen.outrun,
                at_attach: dev.disk.attach_state,
                call_local_io_error: dev.cfg.as_ref().is_some_and(|c| c.on_io_error == OnIoError::CallHandler),
            }),
            peers: self.connections.iter().map(|(i, c)| (i, self.peer_facts(i, c))).collect(),
        }
    }

    fn peer_facts(&self, i: NodeId, c: &Connection) -> PeerFacts {
        PeerFacts {
            // Below protocol 100 nothing can say that a write is to be repeated, and one that overlaps another in part
            // would be lost where that one wins.
            two_primaries: c.cfg.two_primaries && c.version() >= 100,
            verify_alg: c.cfg.usable_verify().is_some(),
            protocol: c.version(),
            volumes: self.devices.iter().map(|(d, _)| (d, self.pair_facts(i, c, d))).collect(),
        }
    }

    fn pair_facts(&self, i: NodeId, c: &Connection, d: VolumeNr) -> PairFacts {
        let md = self.devices[d].backing.as_ref().map(|b| &b.md);
        let replication = self.state.replication(i, d);
        PairFacts {
            // Its bitmap says that it has decided, too.
            undecided: c.peer_devices[d].link.compared.undecided
                && matches!(replication, Replication::WFBitMapS | Replication::WFBitMapT),
            outdated_at_attach: md.is_some_and(|md| md.peer(i).flags.contains(meta::PeerFlags::OUTDATED)),
            bitmap_uuid_zero: md.is_none() || self.devices[d].uuids(i).bitmap.is_none(),
            serves: self.depends_on_nobody_else(i, d),
        }
    }

    /// Our parameters are on their way and some volume's handshake is not over.
    fn state_sent(&self) -> bool {
        self.connected().any(|(i, c)| {
            let waiting = self.devices.ids().any(|d| self.will_be_compared(i, d));
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
