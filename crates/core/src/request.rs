//! Application requests: admission, merging, conflicts, registration, completion
//! (`docs/spec/data-path-and-resync.md` 1).

pub(crate) mod admission;
pub(crate) mod legs;
pub(crate) mod read;
pub(crate) mod under_way;
pub(crate) mod write;

use crate::Resource;
use crate::api::{BlockRequest, DiskOp, Effect, IoError, RequestKind, Segments};
use crate::config::OnNoQuorum;
use crate::connection::Connection;
use crate::decide::io_error::Failure;
use crate::decide::quorum::Standing;
use crate::decide::routing;
use crate::decide::routing::ToPeer;
use crate::decide::state::{PairState, Replication};
use crate::device::Device;
use crate::dialect9::first_write::due::FirstWrite;
use crate::latency::Stage;
use crate::merging::Waiting;
use crate::node::Node;
use crate::op::Op;
use crate::peer_device::WhenBad;
use crate::request::legs::Legs;
use crate::request::read::Tried;
use crate::request::under_way::{Request, extents};
use crate::request::write::{Local, NewWrite, Owner, Owners, Write, WriteKind};
use std::collections::VecDeque;
use units::{NodeId, NodeMask, SectorRange, VolumeNr};
use wire::DiskState;
use write::{Open, Submitted};

impl Resource {
    /// Also one that waits for the activity log or for another one.
    pub(crate) fn requests_under_way(&self) -> bool {
        !self.requests.is_empty() || self.node.devices.values().any(|dev| dev.disk.upper_pending > 0)
    }

    /// Takes a request of a front end; it ends with [`Effect::Complete`].
    pub(crate) fn accept(&mut self, req: BlockRequest) {
        let volume = req.volume;
        let Some(dev) = self.node.devices.get_mut(volume) else {
            return self.out.emit(Effect::Complete { tag: req.tag, result: Err(IoError::OutOfRange) });
        };
        dev.disk.upper_pending += 1;
        if let Err(e) = self.check(volume, &req) {
            return self.end_owner(volume, Owner::Tag(req.tag), Err(e));
        }
        self.node.devices[volume].queue.incoming.push_back(Waiting { came: self.node.now, request: req });
    }

    /// Moves what can go on: called once a turn, and whenever something was released.
    pub(crate) fn pump_requests(&mut self, volume: VolumeNr) {
        if !self.node.state.is_primary() {
            return self.serve_readers(volume);
        }
        self.begin_first_write(volume);
        let dev = &self.node.devices[volume];
        if dev.queue.is_idle() && !dev.al_is_due() || !self.may_start_io(volume) {
            return;
        }
        if std::mem::take(&mut self.node.devices[volume].queue.recheck) {
            // Who must go on waiting is queued again behind the others.
            for _ in 0..self.node.devices[volume].queue.blocked.len() {
                let Some(write) = self.node.devices[volume].queue.blocked.pop_front() else { break };
                self.admit(volume, write);
            }
        }
        for part in std::mem::take(&mut self.node.devices[volume].queue.parts_waiting) {
            self.start_read(volume, part.range, part.data, part.owner, (part.came, Tried::default()));
        }
        let dev = &mut self.node.devices[volume];
        dev.queue.merging.bring_neighbours_together(&mut dev.queue.incoming);
        while let Some(next) = self.node.devices[volume].queue.incoming.pop_front() {
            match next.request.kind {
                RequestKind::Read => self.start_reads(volume, next),
                RequestKind::Flush => self.start_flush(volume, next.request.tag, next.came),
                _ => self.start_write(volume, next),
            }
            if !self.may_start_io(volume) {
                break;
            }
        }
        self.pump_al(volume);
    }

    /// A Secondary's readers. That I/O is frozen does not hold them up: they change nothing.
    fn serve_readers(&mut self, volume: VolumeNr) {
        if self.node.devices[volume].queue.is_idle() {
            return;
        }
        let may = self.may_be_read(volume);
        let incoming = std::mem::take(&mut self.node.devices[volume].queue.incoming);
        let (reads, others): (VecDeque<_>, _) =
            incoming.into_iter().partition(|waiting| may && waiting.request.kind == RequestKind::Read);
        self.node.devices[volume].queue.incoming = others;
        self.refuse_waiting(volume);
        reads.into_iter().for_each(|read| self.start_reads(volume, read));
    }

    /// A forced demotion fails what has not begun: a Secondary's disk is not written to for applications.
    pub(crate) fn refuse_waiting(&mut self, volume: VolumeNr) {
        for waiting in std::mem::take(&mut self.node.devices[volume].queue.incoming) {
            self.end_owner(volume, Owner::Tag(waiting.request.tag), Err(IoError::NotPrimary));
        }
        for part in std::mem::take(&mut self.node.devices[volume].queue.parts_waiting) {
            self.end_owner(volume, part.owner, Err(IoError::NotPrimary));
        }
        for mut write in std::mem::take(&mut self.node.devices[volume].queue.blocked) {
            self.give_up_repetition(&mut write);
            for owner in write.owners.into_iter() {
                self.end_owner(volume, owner, Err(IoError::NotPrimary));
            }
        }
    }

    /// Admission (`docs/spec/data-path-and-resync.md` 1.1 step 3).
    pub(crate) fn may_start_io(&self, volume: VolumeNr) -> bool {
        let dev = &self.node.devices[volume];
        let generation =
            dev.generation_in_flight() || self.generation_undecided(volume) || !dev.due.first_write.lets_writes_begin();
        if generation || dev.disk.leaving.is_some() || self.waits_for_bitmaps(volume) || self.gives_up_copy(volume) {
            return false;
        }
        let state = &self.node.state;
        !state.is_primary() || routing::why_wait(state.is_frozen(), state.disk(volume)).is_none()
    }

    // -- writes ------------------------------------------------------------------------------------------------------

    fn start_write(&mut self, volume: VolumeNr, Waiting { came, request: req }: Waiting) {
        let (kind, fua) = match req.kind {
            RequestKind::Write { fua } => (WriteKind::Data, fua),
            RequestKind::Discard => (WriteKind::Discard, false),
            RequestKind::WriteZeroes { unmap, fua } => (WriteKind::Zeroes { unmap }, fua),
            RequestKind::Read | RequestKind::Flush => unreachable!("not a write"),
        };
        let range = SectorRange::new(req.sector, req.len).expect("checked in accept");
        let mut write = self.new_write(volume, kind, fua, range, req.data, Owners::One(Owner::Tag(req.tag)));
        write.came = came;
        if let Some(limit) = self.longer_than(volume, kind, range.len()) {
            return self.split_write(volume, write, limit);
        }
        if kind == WriteKind::Data && self.node.devices[volume].queue.is_followed(range) {
            let limit = self.longest(volume, kind);
            self.node.devices[volume].merge_followers(&mut write, limit);
        }
        self.admit(volume, write);
    }

    /// Lets a write in if nothing overlaps it, then takes its activity-log extents.
    pub(crate) fn admit(&mut self, volume: VolumeNr, mut write: NewWrite) {
        let dev = &self.node.devices[volume];
        let own = dev.queue.writing.overlaps(write.range);
        let resync = dev.queue.resyncing.overlaps(write.range);
        if own
            || resync
            || self.is_to_come(volume, &write)
            || dev.queue.peer_writing.overlaps(write.range)
            || self.follows_waiting(volume, write.range)
        {
            self.node.devices[volume].queue.blocked.push_back(write);
            return;
        }
        let dev = &mut self.node.devices[volume];
        write.admitted = self.node.now;
        write.interval = dev.queue.interval_id();
        dev.queue.writing.insert(write.range, write.interval, ());
        self.take_al(volume, write);
    }

    /// Registers a write that holds its activity-log extents, sends it and submits it (spec 1.4, 1.5).
    pub(crate) fn submit_write(&mut self, mut write: NewWrite) {
        let volume = write.device;
        let frozen = self.node.state.is_frozen();
        if !frozen {
            // It may begin a generation.
            self.node.connections.ids().for_each(|peer| self.check_congestion(peer, volume));
        }
        if frozen
            || self.gives_up_copy(volume)
            || self.node.devices[volume].generation_in_flight()
            || self.node.devices[volume].due.first_write != FirstWrite::Nothing
            || self.node.devices[volume].queue.peer_writing.overlaps(write.range)
        {
            // It waited for the activity log, and meanwhile I/O was frozen (spec 1.13), this copy is to be given up, a
            // generation began or is due, or the other Primary wrote there.
            return self.put_back(write);
        }
        if self.node.fails_without_quorum(volume) {
            return self.fail_write(write, IoError::Io);
        }
        if !self.node.state.is_primary() {
            // I/O was frozen when the node was demoted: what had not begun does not begin any more.
            return self.fail_write(write, IoError::NotPrimary);
        }
        if let Some(limit) = self.longer_than(volume, write.kind, write.range.len()) {
            // It waited, and meanwhile a peer came that takes less at a time.
            self.leave(&mut write);
            return self.split_write(volume, write, limit);
        }
        let (local, (data_to, notice_to)) = (self.usable(volume), self.routes(volume));
        let good = self.node.state.disk(volume) == DiskState::UpToDate;
        let any_good = good && local
            || (good || self.node.state.good_peers(volume).next().is_some()) && !self.lacks_own_copy9(volume);
        // The device may have shrunk while the write waited: what lies behind it is metadata.
        if !self.node.devices[volume].holds(write.range) || !any_good || (!local && data_to.is_empty()) {
            return self.fail_write(write, IoError::Io);
        }
        let untold = |peer: NodeId| !self.node.connections[peer].takes_discards();
        if write.kind != WriteKind::Data && data_to.into_iter().any(untold) {
            // It waited for another peer, or for another software there, and this one cannot be told: a good copy would
            // lack it. Whoever asks writes zeroes instead.
            return self.fail_write(write, IoError::NotSupported);
        }
        let (range, sole, fua, kind) = (write.range, !local || !good, write.fua, write.kind);
        let position = self.positions.next(range.len());
        let submitted = Submitted { at: self.node.now, epoch: self.epoch.number(), position, sole };
        self.node.note_waits(&write);
        let max_epoch = self.smallest_max_epoch();
        if !data_to.is_empty() {
            self.epoch.note_write();
        }
        self.audit_routes(volume, data_to);
        self.supersede_unconfirmed(volume, range, data_to);
        let unsent = self.node.connections.members().without(data_to);
        let key = self.requests.insert(Request::Write(write.submit(submitted, unsent)));
        for peer in self.node.connections.ids() {
            if data_to.contains(peer) {
                self.send_write(peer, volume, key);
            } else if notice_to.contains(peer) {
                self.send_out_of_sync(peer, volume, key);
            } else {
                // At once: bitmaps may be exchanged before the disk has answered.
                self.mark_out_of_sync(peer, volume, range);
            }
        }
        // With protocol A before 100 nothing but the barrier ack says that the peer has it, and before 95, or of a
        // discard, nothing else that it is durable there.
        let data = kind == WriteKind::Data;
        let trim = || !data && self.connected().any(|(_, c)| !c.has(wire::Features::WRITE_ZEROES));
        let older_than = |version| self.node.smallest_version() < version;
        let mute = (sole && (!data || older_than(100))) || (fua && (older_than(95) || trim()));
        if self.epoch.writes() >= max_epoch || mute {
            self.close_epoch();
        }
        if local {
            // Which is waited for.
            self.submit_local(volume, key);
        } else {
            self.try_finish(key);
        }
    }

    fn fail_write(&mut self, mut write: NewWrite, error: IoError) {
        let volume = write.device;
        self.give_up_repetition(&mut write);
        self.leave(&mut write);
        for owner in write.owners.into_iter() {
            self.end_owner(volume, owner, Err(error));
        }
    }

    /// Back to those that wait for admission.
    fn put_back(&mut self, mut write: NewWrite) {
        self.leave(&mut write);
        self.node.devices[write.device].queue.blocked.push_back(write);
    }

    /// A write that was admitted goes no further.
    pub(crate) fn leave(&mut self, write: &mut NewWrite) {
        let volume = write.device;
        if std::mem::take(&mut write.al_held) {
            self.node.devices[volume].release_al(write.range);
        }
        self.node.devices[volume].queue.writing.remove(write.range.start, write.interval);
        self.node.devices[volume].queue.recheck = true;
    }

    fn submit_local(&mut self, volume: VolumeNr, key: u64) {
        let Some(Request::Write(w)) = self.requests.get_mut(key) else { return };
        w.disk_begins();
        let (sector, len) = (w.range.start, w.range.len());
        let garbage = self.node.devices[volume].backing.as_ref().is_some_and(|b| !b.opened.discard_zeroes);
        let action = match w.kind {
            WriteKind::Data => DiskOp::Write { sector, data: w.data(), fua: w.fua },
            // Both copies must read the same afterwards, also where the disk does not promise zeroes.
            WriteKind::Discard => DiskOp::Discard { sector, len, zeroes: garbage },
            WriteKind::Zeroes { unmap } => DiskOp::WriteZeroes { sector, len, unmap, fua: w.fua },
        };
        let dev = &mut self.node.devices[volume];
        dev.stats.written_bytes += len.0;
        self.disk(volume, Op::LocalWrite(key), action);
    }

    pub(crate) fn local_write_done(&mut self, key: u64, result: Result<(), IoError>) {
        let Some(Request::Write(w)) = self.requests.get_mut(key) else { return };
        let (volume, kind, range) = (w.device, w.kind, w.range);
        let (took, n) = (self.node.now.since(w.submitted.at), w.owners());
        if result.is_err() && kind == WriteKind::Discard && self.node.usable(volume) {
            // Both copies must read the same afterwards: what cannot be given back is overwritten.
            w.kind = WriteKind::Zeroes { unmap: false };
            return self.submit_local(volume, key);
        }
        self.node.devices[volume].stats.latencies.note(Stage::WriteDisk, took, n);
        w.disk_ends(result);
        if let Err(e) = result {
            for peer in self.node.connections.ids() {
                self.mark_out_of_sync(peer, volume, range);
            }
            self.data_error(volume, Failure::Write, "write", range, e);
        }
        self.try_finish(key);
    }

    /// A peer answered, or will never: completes and retires what can be.
    pub(crate) fn try_finish(&mut self, key: u64) {
        let Some(Request::Write(w)) = self.requests.get(key) else { return };
        let here = w.local() != Local::Pending;
        let there = !w.legs.awaits_any();
        if w.is_open() {
            if !here || !there {
                return;
            }
            let (volume, alone, repeat) = (w.device, !w.legs.anybody_has(), w.is_to_repeat());
            let lacked = matches!(w.local(), Local::Failed(_));
            // Or a peer was lost that may lack it, and has the generation that the others have, too.
            let missing = w.legs.somebody_lacks();
            let undecided = alone && self.generation_undecided(volume);
            let unheard = missing && self.awaits_why_refused(volume);
            let begins = missing && !repeat && self.node.devices[volume].due.first_write.comes_first();
            if (alone || lacked || missing) && self.node.devices[volume].awaits_generation()
                || undecided
                || unheard
                || begins
            {
                // Nobody else has it: nobody else may count as having this generation (S4 of the invariants). It ends
                // when the new one is on disk. Or this disk lacks it, and must not count as good after a crash.
                return;
            }
            if repeat || self.node.overtaken_by_disk_loss(w) {
                return self.start_again(key);
            }
            self.complete_write(key);
        }
        let Some(Request::Write(w)) = self.requests.get(key) else { return };
        if w.is_over() {
            self.retire_write(key);
        }
    }

    /// What kept writes from being completed is gone.
    pub(crate) fn finish_held(&mut self) {
        let open = |r: &Request| matches!(r, Request::Write(w) if w.is_open());
        let held: Vec<u64> = self.requests.iter().filter(|(_, r)| open(r)).map(|(k, _)| k).collect();
        for key in held {
            self.try_finish(key);
        }
    }

    fn complete_write(&mut self, key: u64) {
        let Some(Request::Write(w)) = self.requests.get_mut(key) else { return };
        // The application may now send a write that depends on this one: it must be in a later epoch (spec 1.7).
        if w.submitted.epoch == self.epoch.number() {
            self.epoch.close(self.node.now);
        }
        let (Some(open), volume, range, local) = (w.close(), w.device, w.range, w.local()) else { return };
        let (came, began) = (w.came, w.submitted.at);
        // Only a good copy counts: a resync overwrites what an Inconsistent one got alone.
        let own_good = self.node.state.disk(volume) == DiskState::UpToDate;
        let peer_has = self.node.state.good_peers(volume).any(|peer| w.legs.has(peer));
        let result = match local {
            Local::Ok if own_good => Ok(()),
            // The disk goes on as a good copy (on-io-error pass-on): what it lacks is not complete.
            Local::Failed(e) if own_good => Err(e),
            _ if peer_has => Ok(()),
            Local::Failed(e) => Err(e),
            Local::Ok | Local::None | Local::Pending => Err(IoError::Io),
        };
        let elsewhere = result.is_ok() && local != Local::Ok;
        // The own disk has it, and so have the peers that have cleared their bits. Later a newer write may have marked
        // these blocks again.
        let cleared = match (local, &open.again) {
            (Local::Ok, None) => w.legs.in_sync(),
            (Local::Ok, Some(_)) => self.node.have_it_again(volume, &w.legs),
            _ => NodeMask::default(),
        };
        if result.is_err() {
            self.node.connections.values_mut().for_each(|c| c.peer_devices[volume].lasting.write_failed = true);
        }
        let Open { data, owners, interval, again, .. } = open;
        let took = self.node.now.since(came);
        self.node.application_done(volume, began, range.len());
        let dev = &mut self.node.devices[volume];
        dev.stats.latencies.note(Stage::WriteTotal, took, owners.count());
        dev.queue.merging.keep_pieces(data);
        if elsewhere && self.node.state.disk(volume) < DiskState::Inconsistent {
            (dev.seen.outrun, dev.seen.predecessor) = (true, None);
        }
        for peer in cleared.and(self.node.connections.members()) {
            dev.clear_out_of_sync(peer, range);
        }
        dev.queue.writing.remove(range.start, interval);
        dev.queue.recheck = true;
        self.end_repetition(volume, again);
        match owners {
            Owners::One(owner) => self.end_owner(volume, owner, result),
            Owners::Many(mut all) => {
                all.drain(..).for_each(|owner| self.end_owner(volume, owner, result));
                self.node.devices[volume].queue.merging.keep_owners(all);
            }
        }
    }

    /// Done: the bitmap learns the truth, then the activity log lets go (spec 1.8).
    fn retire_write(&mut self, key: u64) {
        let Some(Request::Write(w)) = self.requests.get_mut(key) else { return };
        let (volume, range, here, position) = (w.device, w.range, w.local() == Local::Ok, w.submitted.position);
        // Among several a write may be complete, and copied to who did not get it, long before all have confirmed it.
        let in_mesh = self.node.in_mesh9();
        let mut lacking = NodeMask::default();
        for peer in self.node.connections.ids() {
            let known = w.legs.has(peer) || in_mesh && w.legs.is_marked(peer);
            // What the own disk did not get it may have got from the peer since.
            if !known || !here && !w.legs.is_accounted(peer) {
                lacking.insert(peer);
            }
        }
        let (was_sent, mut holders, al_held) = (w.legs.was_sent(), w.legs.holders(), w.leave_al());
        self.requests.forget(key);
        for peer in lacking {
            self.mark_out_of_sync(peer, volume, range);
        }
        if al_held {
            self.node.devices[volume].release_al(range);
        }
        if was_sent {
            if here {
                holders.insert(self.node.cfg.node);
            }
            self.write_is_settled(position, holders);
        }
    }

    /// Ends the current epoch; the barrier goes out before the next write, or by itself if none comes soon.
    pub(crate) fn close_epoch(&mut self) {
        self.epoch.close(self.node.now);
    }

    // -- the end of requests ------------------------------------------------------------------------------------------

    pub(crate) fn end_owner(&mut self, volume: VolumeNr, owner: Owner, result: Result<(), IoError>) {
        match owner {
            Owner::Tag(tag) => {
                self.node.devices[volume].disk.upper_pending -= 1;
                self.out.emit(Effect::Complete { tag, result });
            }
            Owner::Part(key) => self.end_part(volume, key, result),
        }
    }
}

impl Node {
    /// Of a write that was done again: it was marked for those who were lost before they had it, and who has it now has
    /// all of it.
    #[cold]
    fn have_it_again(&self, volume: VolumeNr, legs: &Legs) -> NodeMask {
        let have = self.state.good_peers(volume).filter(|peer| legs.has(*peer));
        have.fold(legs.in_sync(), NodeMask::with)
    }

    /// Must requests wait until it is clear who copies from whom?
    fn waits_for_bitmaps(&self, volume: VolumeNr) -> bool {
        let awaits = |(peer, pair): (NodeId, &PairState)| {
            let reason = routing::why_wait_for(pair.replication, || self.connections[peer].version());
            self.state.is_primary() && reason.is_some()
        };
        let begins = |(_, pair): (NodeId, &PairState)| pair.replication.exchanges_bitmaps();
        self.state.pairs(volume).any(begins) && (self.state.pairs(volume).any(awaits) || self.awaits_target(volume))
    }

    /// A write that the peer has, and the own disk, which has gone meanwhile, may lack: the peer got it before it knew
    /// of that, in the generation of the lost disk, which could come back after a crash and count as equal. It is sent
    /// once more, behind the news, and the peer writes it in a generation of its own.
    fn overtaken_by_disk_loss(&self, w: &Write) -> bool {
        let gone = self.state.disk(w.device) < DiskState::Inconsistent && w.local() != Local::None;
        let sent_before = gone && !w.submitted.sole;
        let mut serving = self.state.serving_peers(w.device);
        sent_before && serving.any(|peer| w.legs.has(peer))
    }

    fn note_waits(&mut self, write: &NewWrite) {
        let now = self.now;
        let (latencies, n) = (&mut self.devices[write.device].stats.latencies, write.owners.count());
        latencies.note(Stage::WriteQueue, write.admitted.since(write.came), n);
        latencies.note(Stage::WriteActivityLog, now.since(write.admitted), n);
    }
}

impl Node {
    /// Does I/O of the volume fail for lack of quorum (`on-no-quorum io-error`)?
    #[inline]
    pub(crate) fn fails_without_quorum(&self, volume: VolumeNr) -> bool {
        self.cfg.quorum.is_on()
            && self.state.standing(volume) == Standing::Lacks(OnNoQuorum::IoError)
            && self.state.is_primary()
    }

    fn check(&self, volume: VolumeNr, req: &BlockRequest) -> Result<(), IoError> {
        let dev = &self.devices[volume];
        let may = self.state.is_primary() || (req.kind == RequestKind::Read && self.may_be_read(volume));
        if !may {
            return Err(IoError::NotPrimary);
        }
        if self.fails_without_quorum(volume) {
            return Err(IoError::Io);
        }
        if req.kind == RequestKind::Flush {
            return Ok(());
        }
        let range = SectorRange::new(req.sector, req.len).ok_or(IoError::OutOfRange)?;
        let data_ok = match req.kind {
            RequestKind::Read | RequestKind::Write { .. } => req.data.len() == req.len.0,
            _ => true,
        };
        let ranged = matches!(req.kind, RequestKind::Discard | RequestKind::WriteZeroes { .. });
        if ranged && !self.connected().all(|(_, c)| c.takes_discards()) {
            // The peer cannot be told: whoever asks writes zeroes instead.
            return Err(IoError::NotSupported);
        }
        if range.is_empty() || !req.len.is_sector_aligned() || !dev.holds(range) || !data_ok {
            return Err(IoError::OutOfRange);
        }
        Ok(())
    }

    /// May a Secondary's device be read (`docs/spec/connection-and-state.md` 8.3)? Only while nobody writes: a copy
    /// that changes under its reader is of no use.
    fn may_be_read(&self, volume: VolumeNr) -> bool {
        let on_peer = self.connections.ids().any(|peer| self.state.peer_disk(peer, volume) == DiskState::UpToDate);
        let good = on_peer || self.state.disk(volume) == DiskState::UpToDate;
        good && self.connections.ids().all(|peer| self.state.pair(peer, volume).role != wire::Role::Primary)
    }

    pub(crate) fn new_write(
        &self,
        volume: VolumeNr,
        kind: WriteKind,
        fua: bool,
        range: SectorRange,
        data: Segments,
        owners: Owners,
    ) -> NewWrite {
        let (came, admitted) = (self.now, self.now);
        NewWrite {
            device: volume,
            kind,
            fua,
            range,
            data,
            owners,
            interval: 0,
            al_held: false,
            came,
            admitted,
            again: None,
        }
    }

    /// Which peers get a write's data, and which are told only that they lack it.
    fn routes(&self, volume: VolumeNr) -> (NodeMask, NodeMask) {
        let (mut data_to, mut notice_to) = (NodeMask::default(), NodeMask::default());
        for (peer, c) in self.connections.iter() {
            let pair = self.state.pair(peer, volume);
            match routing::write(pair.replication, pair.disk, c.version()) {
                ToPeer::Data => data_to.insert(peer),
                ToPeer::OutOfSync => notice_to.insert(peer),
                ToPeer::Nothing => {}
            }
        }
        if self.state.disk(volume) < DiskState::Inconsistent {
            self.add_bad_copies(volume, (&mut data_to, &mut notice_to));
        }
        (data_to, notice_to)
    }

    /// A node without a disk tells also peers whose copies are bad, and which another one brings up to date: that one
    /// does not know of each write in time, and nothing is marked here (10.4).
    #[cold]
    fn add_bad_copies(&self, volume: VolumeNr, (data_to, notice_to): (&mut NodeMask, &mut NodeMask)) {
        for peer in self.connections.ids().filter(|_| self.in_mesh9()) {
            match self.to_bad_copy(peer, volume) {
                Some(ToPeer::Data) => data_to.insert(peer),
                Some(ToPeer::OutOfSync) => notice_to.insert(peer),
                Some(ToPeer::Nothing) | None => {}
            }
        }
    }

    fn to_bad_copy(&self, peer: NodeId, volume: VolumeNr) -> Option<ToPeer> {
        if !self.connections[peer].speaks9() {
            return None;
        }
        let pair = self.state.pair(peer, volume);
        let marks = self.connections[peer].peer_devices[volume].link.told.when_bad == WhenBad::Marks;
        match pair.disk {
            DiskState::Inconsistent | DiskState::Outdated if pair.replication != Replication::Established => None,
            DiskState::Inconsistent if !marks => Some(ToPeer::Data),
            DiskState::Inconsistent | DiskState::Outdated => Some(ToPeer::OutOfSync),
            _ => None,
        }
    }

    fn smallest_version(&self) -> u32 {
        self.connections.values().map(Connection::version).min().unwrap_or(u32::MAX)
    }

    fn smallest_max_epoch(&self) -> u32 {
        self.connections.values().map(|c| c.cfg.max_epoch_size).min().unwrap_or(u32::MAX)
    }
}

impl Device {
    /// Joins the requests that continue `write` and already wait behind it (spec 12.5, method M1).
    fn merge_followers(&mut self, write: &mut NewWrite, limit: u64) {
        while let Some(Waiting { request: next, .. }) = self.queue.incoming.front() {
            let RequestKind::Write { fua } = next.kind else { break };
            let Some(range) = SectorRange::new(next.sector, next.len) else { break };
            let joined = SectorRange { start: write.range.start, end: range.end };
            let (first, last) = extents(joined);
            if range.start != write.range.end || joined.len().0 > limit || first != last {
                break;
            }
            let Waiting { came, request: next } = self.queue.incoming.pop_front().expect("just seen");
            write.range = joined;
            write.came = write.came.min(came);
            write.fua |= fua;
            let lists = (&mut write.data, &mut write.owners);
            self.queue.merging.join(lists, &next.data, Owner::Tag(next.tag));
        }
    }
}
