//! Changing state by 8.4's rules: one state word per volume, judged, stored, and its effects carried out
//! (`docs/spec/connection-and-state.md` 2.8).
//!
//! With protocols below 110 a resource has one connection, and the word of a volume is about that connection.

use crate::Resource;
use crate::api::{Effect, Segments, Severity};
use crate::config::{Fencing, OnIoError};
use crate::connection::{Connection, Phase};
use crate::decide::effects84::{self, Facts};
use crate::decide::rules84::{self, Context, Force};
use crate::decide::state::{PairState, Paused, Replication, State};
use crate::decide::uuid84::UuidSet;
use crate::decide::{Handler, StateChange, StateChangeResult as Code};
use crate::dialect84;
use crate::mutant::{Mutant, mutant};
use units::{Generation, NodeId, VolumeNr};
use wire::{ConnState, DiskState, Packet, Role, Socket, StateWord, UuidFlags};

impl Resource {
    /// The peer that the state word of a volume is about. Without peers: this node, which is nobody's peer.
    pub(crate) fn peer(&self) -> NodeId {
        self.connections.ids().next().unwrap_or(self.cfg.node)
    }

    /// The disk takes reads and writes (whatever the quality of its data).
    pub(crate) fn usable(&self, d: VolumeNr) -> bool {
        let disk = self.state.disk(d);
        self.devices[d].backing.is_some() && disk >= DiskState::Inconsistent && disk != DiskState::DUnknown
    }

    /// Connections that are up, past P_PROTOCOL.
    pub(crate) fn connected(&self) -> impl Iterator<Item = (NodeId, &Connection)> {
        self.connections.iter().filter(|(i, _)| self.state.is_connected(*i))
    }

    /// The state of a volume as one word.
    pub(crate) fn word(&self, d: VolumeNr) -> StateWord {
        let word = dialect84::word(&self.state, self.connections.ids().next(), d);
        StateWord { role: self.devices[d].role, ..word }
    }

    /// Has neither node a good copy? The peer, which has told of its own, may not have heard of this one yet: that
    /// travels on the other stream than the acknowledgement, which it would take for one of a good copy.
    pub(crate) fn stands_for_nothing(&self, i: NodeId, d: VolumeNr) -> bool {
        let good = |disk: DiskState| disk == DiskState::UpToDate;
        let none = !good(self.state.disk(d)) && !good(self.state.peer_disk(i, d));
        none && !mutant(Mutant::AckOfNoCopy)
    }

    pub(crate) fn context(&self, d: VolumeNr) -> Context {
        let dev = &self.devices[d];
        let c = self.connections.get(self.peer());
        let others = c.is_some_and(|c| self.state.peers[c.cfg.peer].role() == Role::Primary && self.devices.len() > 1);
        let at_attach = (self.state.disk(d) == DiskState::Negotiating).then(|| {
            let outdated = dev
                .backing
                .as_ref()
                .zip(c)
                .is_some_and(|(b, c)| b.md.peers[self.slot_owner(d, c)].flags.contains(meta::PeerFlags::OUTDATED));
            (dev.attach_state, if outdated { DiskState::Outdated } else { DiskState::DUnknown })
        });
        Context {
            // Below protocol 100 nothing can say that a write is to be repeated, and one that overlaps another in part
            // would be lost where that one wins.
            two_primaries: c.is_some_and(|c| c.cfg.two_primaries && c.version() >= 100),
            fencing: self.fencing_policy(),
            on_no_data: self.cfg.on_no_data,
            other_volume_peer_primary: others,
            open: dev.openers.writers + dev.openers.readers > 0,
            verify_alg: c.is_some_and(|c| c.cfg.verify.is_some()),
            protocol: c.map_or(101, Connection::version),
            state_sent: self.state_sent(),
            peer_undecided: c.is_some_and(|c| {
                let pd = &c.peer_devices[d];
                // Its bitmap says that it has decided, too.
                pd.undecided
                    && matches!(self.state.replication(c.cfg.peer, d), Replication::WFBitMapS | Replication::WFBitMapT)
            }),
            exposed_is_current: dev.backing.as_ref().is_some_and(|b| b.md.current.same(dev.exposed)) && !dev.outrun,
            at_attach,
        }
    }

    /// Our parameters are on their way and some volume's handshake is not over.
    fn state_sent(&self) -> bool {
        self.connected().any(|(i, c)| {
            let waiting = self.devices.ids().any(|d| !self.state.replicates(i, d));
            waiting && c.link.as_ref().is_some_and(|l| l.phase >= Phase::Parameters)
        })
    }

    /// The highest policy of the volumes whose data is worth something (spec 8.5).
    pub(crate) fn fencing_policy(&self) -> Fencing {
        let good = self.devices.iter().filter(|(d, _)| self.state.disk(*d) >= DiskState::Consistent);
        good.filter_map(|(_, dev)| dev.cfg.as_ref()).map(|c| c.fencing).max().unwrap_or_default()
    }

    /// Judges and carries out a change of one volume.
    ///
    /// # Errors
    /// The code of the rule that refuses it.
    pub(crate) fn change(&mut self, d: VolumeNr, change: &StateChange, force: Force) -> Result<(), Code> {
        let old = self.word(d);
        let new = match rules84::judge(&old, change, force, &self.context(d)) {
            Err(Code::NothingToDo) => return Ok(()),
            other => other?,
        };
        self.store(d, &new);
        self.after_change(self.peer(), d, &old, &new);
        Ok(())
    }

    /// Judges a change of all volumes together, then carries it out.
    ///
    /// # Errors
    /// The code of the first rule that refuses it for any volume; nothing is changed then.
    pub(crate) fn change_all(&mut self, change: &StateChange, force: Force) -> Result<(), Code> {
        let mut words = Vec::new();
        for d in self.devices.ids() {
            let old = self.word(d);
            match rules84::judge(&old, change, force, &self.context(d)) {
                Ok(new) => words.push((d, old, new)),
                Err(Code::NothingToDo) => words.push((d, old, old)),
                Err(code) => return Err(code),
            }
        }
        suspend_together(&mut words);
        for (d, _, new) in &words {
            self.store(*d, new);
        }
        for (d, old, new) in words {
            self.after_change(self.peer(), d, &old, &new);
        }
        Ok(())
    }

    fn store(&mut self, d: VolumeNr, new: &StateWord) {
        self.calm = false;
        self.status_changed = true;
        self.devices[d].role = new.role;
        let primary = self.devices.values().any(|d| d.role == Role::Primary);
        let i = self.peer();
        let state = &mut self.state;
        state.role = if primary { Role::Primary } else { Role::Secondary };
        (state.frozen_by_user, state.frozen_without_data) = (new.susp, new.susp_nod);
        state.volumes[d].disk = new.disk;
        let Some(peer) = state.peers.get_mut(i) else { return };
        peer.unfenced = new.susp_fen;
        let (connection, replication) = dialect84::connection_and_replication(new.conn);
        peer.connection = connection;
        let paused = Paused { by_user: new.user_isp, by_peer: new.peer_isp, by_dependency: new.aftr_isp };
        peer.volumes[d] = PairState { replication, disk: new.pdsk, role: new.peer, paused };
    }

    fn facts(&self, d: VolumeNr) -> Facts {
        let dev = &self.devices[d];
        let pds =
            |f: fn(&PairState) -> bool| self.state.peers.get(self.peer()).is_some_and(|p| p.volumes.values().all(f));
        Facts {
            protocol: self.connections.get(self.peer()).map_or(101, Connection::version),
            bitmap_uuid_zero: dev.backing.is_none() || self.uuids(d).bitmap.is_none(),
            all_volumes_connected: pds(|p| p.replication >= Replication::Established),
            all_peer_disks_outdated: pds(|p| p.disk <= DiskState::Outdated),
            all_disks_up_to_date: self.state.volumes.values().all(|v| v.disk == DiskState::UpToDate),
            others_lack_data: self.devices.ids().any(|o| o != d && rules84::lacks_data(&self.word(o))),
            call_local_io_error: dev.cfg.as_ref().is_some_and(|c| c.on_io_error == OnIoError::CallHandler),
            forced_detach: dev.forced_detach,
            grown: false,
        }
    }

    fn after_change(&mut self, i: NodeId, d: VolumeNr, old: &StateWord, new: &StateWord) {
        if old == new {
            return;
        }
        self.note_change(i, d, old, new);
        if new.pdsk < DiskState::Negotiating && old.pdsk >= DiskState::Negotiating {
            // Also if the peer has asked for it: its words from before are still under way, and call the disk good.
            self.connections[i].peer_devices[d].compared &= mutant(Mutant::ComparedBeforeLoss);
        }
        let rises = old.role != Role::Primary && new.role == Role::Primary;
        if rises {
            // Its users begin with what there is.
            self.devices[d].peer_outrun = false;
        }
        if old.disk == DiskState::UpToDate && new.disk < DiskState::UpToDate && new.role == Role::Primary {
            self.note_disk_lost(d, new.conn < ConnState::Connected);
        }
        if new.disk < DiskState::Inconsistent && (old.disk >= DiskState::Inconsistent || rises) {
            self.expose_peers(i, d, new);
        }
        // The peer was forced to be Primary: its next state packet decides about a resync (spec 2.6, row 12).
        let worthless = |w: &StateWord| w.disk == DiskState::Inconsistent && w.pdsk == DiskState::Inconsistent;
        if worthless(old) && new.pdsk == DiskState::UpToDate && old.peer != Role::Primary && new.peer == Role::Primary {
            self.connections[i].peer_devices[d].consider_resync = true;
        }
        let writes_here = new.conn >= ConnState::Connected && new.peer == Role::Primary;
        if !writes_here || new.pdsk >= DiskState::Inconsistent || new.disk != DiskState::UpToDate {
            self.devices[d].generation_with_first_write = false;
        }
        for effect in effects84::effects(old, new, &self.facts(d)) {
            self.carry_out(i, d, effect);
        }
        // What became of an attach is decided on both sides; to say it rules out that they differ.
        let decided = old.disk == DiskState::Negotiating && new.disk >= DiskState::Inconsistent;
        if decided && new.conn >= ConnState::Connected {
            self.send_state(i, d);
        }
        self.follow_resync_states(i, d, old, new);
        if self.devices[d].new_generation_pending && !self.state.is_frozen() {
            self.settle_pending_generations();
            self.finish_held();
        }
        self.refresh_flags(d);
        self.devices[d].recheck = true;
    }

    /// The own disk goes, or there are users without one: from now on they see what the peer has (spec 7.9). It may
    /// have told of its generation while there was a disk here, or no users, and that did not matter. The one that it
    /// begins for a Primary without a disk may never be heard of.
    fn expose_peers(&mut self, i: NodeId, d: VolumeNr, word: &StateWord) {
        let serves = word.conn >= ConnState::Connected && word.pdsk == DiskState::UpToDate;
        let theirs = self.connections.get(i).and_then(|c| c.peer_devices[d].uuids).map(|u| u.current);
        let fresh = |g: &Generation| g.is_none() || g.same(Generation::JUST_CREATED);
        if let Some(current) = theirs.filter(|g| serves && !fresh(g) && !mutant(Mutant::OwnGenerationExposed)) {
            self.devices[d].exposed = current;
        }
    }

    fn note_change(&mut self, i: NodeId, d: VolumeNr, old: &StateWord, new: &StateWord) {
        let mut parts = Vec::new();
        let mut part = |name: &str, a: &dyn std::fmt::Display, b: &dyn std::fmt::Display| {
            let (a, b) = (a.to_string(), b.to_string());
            if a != b {
                parts.push(format!("{name}( {a} -> {b} )"));
            }
        };
        part("role", &old.role, &new.role);
        part("peer", &old.peer, &new.peer);
        part("conn", &old.conn, &new.conn);
        part("disk", &old.disk, &new.disk);
        part("pdsk", &old.pdsk, &new.pdsk);
        let susp = |w: &StateWord| format!("{}{}{}", u8::from(w.susp), u8::from(w.susp_nod), u8::from(w.susp_fen));
        part("susp", &susp(old), &susp(new));
        if !parts.is_empty() {
            let peer = (!self.connections.is_empty()).then_some(i);
            self.note(Severity::Info, Some(d), peer, "state-change", parts.join(" "));
        }
    }

    fn carry_out(&mut self, i: NodeId, d: VolumeNr, effect: effects84::Effect) {
        use effects84::Effect as E;
        match effect {
            E::ExposeCurrent => {
                if let Some(b) = &self.devices[d].backing {
                    self.devices[d].exposed = b.md.current;
                    self.devices[d].outrun = false;
                    self.devices[d].peer_outrun = false;
                }
            }
            E::ClearCrashedPrimary => self.devices[d].crashed_primary = false,
            E::Call(handler) => {
                self.handler(handler.name(), Some(d), None);
            }
            E::ResendRequests | E::RestartLocalIo => self.restart_frozen(i),
            E::LiftNoData => self.lift(|s| s.frozen_without_data = false),
            E::LiftFencing => self.lift(|s| s.peers[i].unfenced = false),
            E::DropPendingGeneration => self.devices[d].new_generation_pending = false,
            E::CreatePendingGeneration => {
                self.create_pending_generation(d);
                if !mutant(Mutant::GenerationsOneByOne) {
                    self.settle_pending_generations();
                }
            }
            E::CompleteWithoutPeer => self.give_up_frozen(i),
            E::SendSyncUuid => self.send_sync_uuid(i, d),
            E::SendUuids => self.send_uuids(i, d, UuidFlags::NONE),
            E::SendSizes => self.send_sizes(i, d),
            E::SendState => self.send_state(i, d),
            E::SendBitmap => self.bitmap_exchange_as_source(i, d),
            E::MarkGenerationPending => self.devices[d].new_generation_pending = true,
            E::NewGeneration => self.new_generation(d),
            E::GenerationWithFirstWrite => self.devices[d].generation_with_first_write = true,
            E::WriteBitmap => self.write_bitmap(d),
            E::SetAllBitsThenResync => self.starting_sync(i, d),
            E::AbortLocalIo => self.abort_local_io(d),
            E::ResyncGrownArea | E::ReconsiderOtherResyncs => {}
            E::FlushMetadata => {}
            // The connection commands do these themselves, when all volumes have changed.
            E::StartReceiver | E::DropNetworkConfig => {}
        }
    }

    /// Lets go of resync work that the new state does not want, and starts what it does.
    fn follow_resync_states(&mut self, i: NodeId, d: VolumeNr, old: &StateWord, new: &StateWord) {
        let syncing = |c: ConnState| {
            matches!(c, ConnState::SyncSource | ConnState::SyncTarget | ConnState::PausedSyncS | ConnState::PausedSyncT)
        };
        if syncing(old.conn) && !syncing(new.conn) {
            self.abandon_resync(i, d);
            if old.conn == ConnState::SyncTarget || old.conn == ConnState::PausedSyncT {
                self.handler(Handler::AfterResyncTarget.name(), Some(d), Some(i));
            }
        }
        let verifying = |c: ConnState| matches!(c, ConnState::VerifyS | ConnState::VerifyT);
        if verifying(old.conn) && !verifying(new.conn) {
            self.verify_interrupted(i, d);
            self.abandon_resync(i, d);
        }
        if verifying(new.conn) && !verifying(old.conn) {
            self.start_verify(i, d);
        }
        let paused = |c: ConnState| matches!(c, ConnState::PausedSyncS | ConnState::PausedSyncT);
        if syncing(new.conn) && paused(old.conn) != paused(new.conn) {
            self.resync_paused(i, d, paused(new.conn));
        }
        self.consider_repair(i, d, old, new);
        if !syncing(old.conn) && syncing(new.conn) {
            // It brings what was refused, and until its end the target is no good copy.
            self.devices[d].peer_refused = false;
            self.start_resync(i, d);
            self.connections[i].peer_devices[d].resync.known = old.conn == ConnState::WFBitMapS;
            self.resync_began(i, d, matches!(new.conn, ConnState::SyncSource | ConnState::PausedSyncS));
        }
        let wants_bitmap = new.conn == ConnState::WFBitMapT && old.conn != ConnState::WFBitMapT;
        if wants_bitmap && !mutant(Mutant::StaleSyncUuid) {
            // The source says the generation when it has our bitmap.
            self.connections[i].peer_devices[d].early_sync_uuid = None;
        }
        if wants_bitmap && std::mem::take(&mut self.connections[i].peer_devices[d].early_bitmap) {
            self.bitmap_complete(i, d);
        }
        self.connections[i].peer_devices[d].before_resync.follow(dialect84::connection_and_replication(new.conn).1);
        if new.conn == ConnState::WFSyncUUID
            && let Some(generation) = self.connections[i].peer_devices[d].early_sync_uuid.take()
        {
            self.sync_uuid_received(i, d, generation);
        }
        if new.disk == DiskState::Failed && old.disk != DiskState::Failed {
            self.disk_failed(d);
        }
        if new.disk == DiskState::Diskless && old.disk == DiskState::Negotiating {
            // Without the peer there is nothing that says what this disk is worth: it is let go of.
            self.disk_failed(d);
        }
    }

    /// Clears a reason for frozen I/O; what waited goes on.
    pub(crate) fn lift(&mut self, f: impl FnOnce(&mut State)) {
        f(&mut self.state);
        self.calm = false;
        self.status_changed = true;
        for dev in self.devices.values_mut() {
            dev.recheck = true;
        }
        if self.state.is_frozen() {
            return;
        }
        self.settle_pending_generations();
        for i in self.connections.ids() {
            self.restart_frozen(i);
        }
        self.finish_held();
    }

    /// I/O of all volumes goes on together: what was frozen ends when each has begun its generation.
    fn settle_pending_generations(&mut self) {
        self.devices.ids().for_each(|d| self.settle_pending_generation(d));
    }

    /// A generation was put off while I/O was frozen: is it still due? Not if a peer with data came back meanwhile, as
    /// nothing was written without it; but if that is to become a target, what is written from now on is.
    fn settle_pending_generation(&mut self, d: VolumeNr) {
        if self.generation_undecided(d) {
            return;
        }
        let word = self.word(d);
        let together = word.conn >= ConnState::Connected && word.pdsk >= DiskState::Inconsistent;
        let parts = word.conn == ConnState::WFBitMapS && !mutant(Mutant::FencedSourceInOneGeneration);
        if (together && !parts) || word.disk != DiskState::UpToDate {
            self.devices[d].new_generation_pending = false;
        }
        self.create_pending_generation(d);
    }

    /// A generation was put off, and the peer is just told of the present one: whether it is still due shows when the
    /// handshake is over. Until then nothing may be written.
    pub(crate) fn generation_undecided(&self, d: VolumeNr) -> bool {
        let shaking = self.connected().any(|(i, _)| !self.state.replicates(i, d));
        self.devices[d].new_generation_pending && shaking
    }

    // -- data generations ---------------------------------------------------------------------------------------------

    /// The generations of an attached volume, as 8.4 knows them.
    pub(crate) fn uuids(&self, d: VolumeNr) -> UuidSet {
        let Some(b) = &self.devices[d].backing else { return UuidSet::default() };
        let owner = self.connections.get(self.peer()).map_or(meta::Superblock::V08_PEER, |c| self.slot_owner(d, c));
        UuidSet {
            current: b.md.current,
            bitmap: b.md.peers[owner].bitmap_uuid,
            history: [b.md.history[0], b.md.history[1]],
        }
    }

    /// Stores them; writes wait until they are on disk.
    pub(crate) fn put_uuids(&mut self, d: VolumeNr, set: &UuidSet) {
        let owner = self.connections.get(self.peer()).map_or(meta::Superblock::V08_PEER, |c| self.slot_owner(d, c));
        let Some(b) = &mut self.devices[d].backing else { return };
        b.md.current = set.current;
        b.md.peers[owner].bitmap_uuid = set.bitmap;
        let moved = b.md.history[0] != set.history[0];
        if moved && b.md.version() == meta::Version::V09 {
            b.md.history.rotate_right(1);
        }
        let stored = |g: Generation| if b.md.version() == meta::Version::V09 { g.base() } else { g };
        (b.md.history[0], b.md.history[1]) = (stored(set.history[0]), stored(set.history[1]));
        self.generation_changed(d);
        self.status_changed = true;
    }

    /// A new current generation: the old one becomes what the bitmap is about.
    pub(crate) fn new_generation(&mut self, d: VolumeNr) {
        let fresh = self.draw_generation(d);
        let mut set = self.uuids(d);
        set.start_generation(fresh);
        self.put_uuids(d, &set);
        self.devices[d].exposed = fresh;
        self.devices[d].new_generation_pending = false;
        self.devices[d].generation_with_first_write = false;
        // A peer that attaches a disk meanwhile is told of the generation before: what was compared is of the past.
        for c in self.connections.values_mut() {
            c.peer_devices[d].compared &= mutant(Mutant::ComparedBeforeGeneration);
        }
        let text = format!("new data generation {fresh}, the bitmap counts from {}", set.bitmap);
        self.note(Severity::Info, Some(d), None, "new-generation", text);
    }

    /// The peer is, or will be, the target of a resync, and gets the generation with that: what was compared stays so.
    pub(crate) fn new_generation_beside_target(&mut self, i: NodeId, d: VolumeNr) {
        let compared = self.connections[i].peer_devices[d].compared;
        self.new_generation(d);
        self.connections[i].peer_devices[d].compared = compared;
        self.send_uuids(i, d, UuidFlags::NONE);
    }

    pub(crate) fn create_pending_generation(&mut self, d: VolumeNr) {
        if !self.generation_undecided(d) && std::mem::take(&mut self.devices[d].new_generation_pending) {
            self.new_generation(d);
            for i in self.connections.ids().filter(|i| self.state.replicates(*i, d)).collect::<Vec<_>>() {
                // The peer may be behind, and will catch up with this generation.
                self.send_uuids(i, d, UuidFlags::NONE);
            }
        }
    }

    /// Index of a connection's record in the superblock.
    pub(crate) fn slot_owner(&self, d: VolumeNr, c: &Connection) -> usize {
        match self.devices[d].backing.as_ref().map(|b| b.md.version()) {
            Some(meta::Version::V09) => c.cfg.peer.index(),
            _ => meta::Superblock::V08_PEER,
        }
    }

    /// A connection's bitmap slot.
    pub(crate) fn slot(&self, i: NodeId, d: VolumeNr) -> Option<usize> {
        let b = self.devices[d].backing.as_ref()?;
        let owner = self.slot_owner(d, self.connections.get(i)?);
        b.md.peers[owner].slot.map(usize::from).filter(|s| *s < b.bitmaps.len())
    }

    // -- packets about state ------------------------------------------------------------------------------------------

    pub(crate) fn send_state(&mut self, i: NodeId, d: VolumeNr) {
        let word = self.word(d);
        self.send(i, Socket::Data, d, Packet::State(word), Segments::None);
    }

    /// Tells every peer of the volume's state.
    pub(crate) fn tell_state(&mut self, d: VolumeNr) {
        self.connections.ids().for_each(|i| self.send_state(i, d));
    }

    /// Tells every peer of the volume's generations.
    pub(crate) fn tell_uuids(&mut self, d: VolumeNr, extra: UuidFlags) {
        self.connections.ids().for_each(|i| self.send_uuids(i, d, extra));
    }

    pub(crate) fn send_uuids(&mut self, i: NodeId, d: VolumeNr, extra: UuidFlags) {
        let dev = &self.devices[d];
        if self.state.disk(d) < DiskState::Negotiating || dev.backing.is_none() {
            return;
        }
        let set = self.uuids(d);
        let mut flags = extra.0;
        if self.connections[i].discard_my_data {
            flags |= UuidFlags::DISCARD_MY_DATA.0;
        }
        if dev.crashed_primary {
            flags |= UuidFlags::CRASHED_PRIMARY.0;
        }
        if self.state.disk(d) == DiskState::Negotiating && dev.attach_state == DiskState::Inconsistent {
            flags |= UuidFlags::INCONSISTENT.0;
        }
        let current = if set.current == Generation::JUST_CREATED {
            set.current
        } else {
            set.current.with_primary_bit(dev.role == Role::Primary)
        };
        let changes = self.bits_left(i, d);
        let packet = wire::Uuids {
            current,
            bitmap: set.bitmap,
            history: set.history,
            dirty_bits: changes,
            flags: UuidFlags(flags),
        };
        self.connections[i].peer_devices[d].changes_told = changes;
        self.send(i, Socket::Data, d, Packet::Uuids(Box::new(packet)), Segments::None);
    }

    /// What we announce about a device's size (`docs/spec/wire-protocol.md` 5.13).
    pub(crate) fn send_sizes(&mut self, i: NodeId, d: VolumeNr) {
        let dev = &self.devices[d];
        let c = &self.connections[i];
        let usable = self.state.disk(d) >= DiskState::Negotiating && dev.backing.is_some();
        let disk_size = if usable { self.capacity(d) } else { units::Sector(0) };
        let user_size = dev.cfg.as_ref().and_then(|c| c.size).filter(|_| usable).unwrap_or_default().to_sectors_floor();
        let block = dev.backing.as_ref().map_or(512, |b| b.opened.block_size);
        let discard = dev.backing.as_ref().is_none_or(|b| b.opened.can_discard);
        let limits = wire::QueueLimits {
            physical_block_size: block.max(512),
            logical_block_size: 512,
            alignment_offset: 0,
            io_min: block.max(512),
            io_opt: 0,
            discard_enabled: discard,
            discard_zeroes_data: false,
            write_same_capable: false,
            bitmap_block_shift: 0,
        };
        let sizes = wire::Sizes {
            disk_size,
            user_size,
            current_size: dev.size,
            max_bio_size: c.dialect().map_or(1 << 20, |x| x.version.max_block()),
            queue_order_type: 0,
            flags: wire::ResizeFlags::default(),
            limits: c.has(wire::Features::WRITE_SAME).then_some(limits),
        };
        self.send(i, Socket::Data, d, Packet::Sizes(Box::new(sizes)), Segments::None);
    }

    /// Tells front ends and applications what they may do.
    pub(crate) fn announce_device(&mut self, d: VolumeNr) {
        let good_peer = self.state.good_peers(d).any(|i| self.state.is_connected(i));
        let trim = self.connected().all(|(_, c)| c.takes_discards());
        let dev = &mut self.devices[d];
        let access = if self.state.role == Role::Primary { crate::Access::ReadWrite } else { crate::Access::None };
        let size = dev.size.to_bytes();
        let can = dev.backing.as_ref().map_or(good_peer, |b| b.opened.can_discard);
        let now = (size, access, can && trim);
        if dev.announced != Some(now) {
            dev.announced = Some(now);
            let volume = dev.volume;
            self.emit(Effect::Device { volume, size, access, discard: now.2 });
        }
    }
}

/// I/O of the resource is frozen if any volume has a reason for it.
fn suspend_together(words: &mut [(VolumeNr, StateWord, StateWord)]) {
    let any = |reason: fn(&StateWord) -> bool| words.iter().any(|(_, _, new)| reason(new));
    let (susp, susp_nod, susp_fen) = (any(|w| w.susp), any(|w| w.susp_nod), any(|w| w.susp_fen));
    for (_, _, new) in words {
        (new.susp, new.susp_nod, new.susp_fen) = (susp, susp_nod, susp_fen);
    }
}
