//! A process: hands inputs to its core and carries out the effects, as the engine does.

use crate::cluster::{Cluster, Event, Flight, Input, Work};
use crate::help::may_pass;
use crate::net::Wish;
use crate::packets::{Answers, check_packet};
use crate::payload::{ContentId, Owner, Payload};
use crate::plan::node_id;
use units::{Duration, SectorRange};
use urbd_core::decide::handshake84::Decision;
use urbd_core::{
    DiskDone, DiskError, DiskOp, Effect, MetaDone, MetaOp, OpId, OpenedDisk, Resource, Segments, Severity,
};
use wire::Packet;

/// A process that has still something to do after so many rounds of one turn will never be done.
const MOST_ROUNDS: u32 = 10_000;

/// So many timers in a row that have expired when they are set are a busy loop.
const MOST_HASTY_TIMERS: u32 = 1000;

/// Reasons of what did not happen by which an operator sees what to do.
const NOTED: [&str; 2] = ["just-created-both", "attach-failed"];

/// What some disks hold where they were told to discard.
const GARBAGE: ContentId = 3;

/// What became of a round of effects.
enum Round {
    Quiet,
    Busy,
    Died,
}

impl Cluster {
    /// One turn of a process: inputs, time, effects.
    pub(crate) fn turn(&mut self, n: usize) {
        self.nodes[n].turn_scheduled = false;
        if self.nodes[n].paused {
            return;
        }
        let Some(mut core) = self.nodes[n].core.take() else { return };
        let alive = self.run_turn(n, &mut core);
        if alive {
            self.observe(n, &core);
            self.schedule_timer(n, &core);
            self.nodes[n].core = Some(core);
            self.go_on_leaving(n);
        } else {
            let (_, power) = self.nodes[n].dies_after.take().unwrap_or_default();
            self.trace.note(self.now, || format!("n{n} dies in the middle of a turn (power: {power})"));
            self.nodes[n].core = Some(core);
            self.die(n, power);
        }
    }

    fn run_turn(&mut self, n: usize, core: &mut Resource) -> bool {
        let now = self.clock(n);
        for rounds in 0.. {
            if rounds > MOST_ROUNDS {
                self.fail(format!("node {n} never finishes its turn"));
                return true;
            }
            while let Some(input) = self.nodes[n].inbox.pop_front() {
                if !self.feed(n, core, input) {
                    return false;
                }
            }
            if core.poll_timeout().is_some_and(|at| at <= now) && rounds < 3 {
                core.on_time(now);
            }
            core.on_turn_end(now);
            match self.carry_out(n, core) {
                Round::Died => return false,
                Round::Quiet if self.nodes[n].inbox.is_empty() => return true,
                _ => {}
            }
        }
        true
    }

    fn feed(&mut self, n: usize, core: &mut Resource, input: Input) -> bool {
        let now = self.clock(n);
        self.trace.note(self.now, || format!("n{n} <- {}", brief(&input)));
        match input {
            Input::LinkUp(peer, number, link) => {
                if self.net.wishes[n][peer] == Wish::Connected(number) {
                    core.on_link_up(now, node_id(peer), link);
                }
            }
            Input::LinkDown(peer, number, why) => {
                if self.net.wishes[n][peer] == Wish::Connected(number) {
                    self.net.wishes[n][peer] = Wish::Nothing;
                    self.parted(n, peer, number);
                    core.on_link_down(now, node_id(peer), why);
                }
            }
            Input::Packet(peer, number, stream, volume, packet, payload) => {
                if self.net.wishes[n][peer] != Wish::Connected(number) {
                    return true;
                }
                let features = matches!(packet, Packet::ConnectionFeatures(_));
                self.note_heard(n, peer, &packet);
                let data = self.nodes[n].buffers.add(Owner::Core, payload);
                core.on_packet(now, node_id(peer), stream, volume, packet, data);
                if features {
                    core.on_turn_end(now);
                    return !matches!(self.carry_out(n, core), Round::Died);
                }
            }
            Input::Disk(done) => core.on_disk_done(now, done),
            Input::Meta(done) => {
                core.on_meta_done(now, done);
                self.note_generations(n, core);
            }
            Input::Opened(volume, disk) => core.on_disk_opened(now, volume, Ok(disk)),
            Input::Handler(id, status) => {
                self.handlers.ended(n, id);
                core.on_handler_exit(now, id, status);
            }
            Input::Command(id, command) => core.on_command(now, id, command),
            Input::Request(request) => core.on_request(now, request),
            Input::Openers(volume, openers) => core.on_openers(now, volume, openers),
        }
        true
    }

    fn schedule_timer(&mut self, n: usize, core: &Resource) {
        let Some(at) = core.poll_timeout() else { return };
        let at = self.nodes[n].clock.when(at, self.now);
        if at.since(self.now) > Duration(1) {
            self.nodes[n].hasty_timers = 0;
        } else {
            self.nodes[n].hasty_timers += 1;
            if self.nodes[n].hasty_timers > MOST_HASTY_TIMERS {
                return self.fail(format!("node {n} wants to be woken at once again and again, and does nothing then"));
            }
        }
        let at = at.max(self.now + Duration(1));
        if self.nodes[n].timer.is_none_or(|t| t != at) {
            self.nodes[n].timer = Some(at);
            let life = self.nodes[n].life;
            self.at(at, Event::Timer(n, life, at));
        }
    }

    fn carry_out(&mut self, n: usize, core: &mut Resource) -> Round {
        let mut round = Round::Quiet;
        let mut answers = Answers::default();
        while let Some(effect) = core.poll_effect() {
            // It is for listeners, of which there are none.
            if matches!(effect, Effect::StateStored(_)) {
                continue;
            }
            if let Some((left, _)) = &mut self.nodes[n].dies_after {
                if *left == 0 {
                    return Round::Died;
                }
                *left -= 1;
            }
            if !matches!(effect, Effect::StatusChanged) {
                round = Round::Busy;
            }
            self.trace.note_effect(self.now, n, &effect);
            let answered = answers.note(&effect);
            if let Err(text) = answered.and_then(|()| self.effect(n, core, effect)) {
                self.fail(format!("node {n}: {text}"));
                return Round::Busy;
            }
        }
        round
    }

    fn effect(&mut self, n: usize, core: &mut Resource, effect: Effect) -> Result<(), String> {
        let (now, clock) = (self.now, self.clock(n));
        let node = &mut self.nodes[n];
        match effect {
            Effect::Send { peer, stream, volume, packet, payload } => {
                let content = node.buffers.content(&payload)?;
                check_packet(&packet)?;
                self.check_in_sync([n, peer.index()], usize::from(volume.0), &packet)?;
                self.note_progress(&packet, content.sectors());
                self.send(n, peer.index(), stream, volume, packet, content)?;
            }
            Effect::Connect { peer, not_before, .. } => {
                let not_before = node.clock.when(not_before, now);
                self.wish_to_connect(n, peer.index(), not_before);
            }
            Effect::CloseLink { peer, .. } => self.close_link(n, peer.index(), true),
            Effect::Dialect { peer, dialect, integrity, .. } => {
                node.codecs[peer.index()] = Some(crate::codec::Codec::new(dialect, integrity.is_some()));
            }
            Effect::StatusChanged | Effect::StateStored(_) => {}
            Effect::Hmac { peer, token, message, .. } => core.on_hmac(clock, peer, token, Some(message)),
            Effect::Digest { op, data, piece, .. } => {
                let (content, sectors) = (node.buffers.content(&data)?, (piece / 512).max(1));
                let starts = (0..content.sectors()).step_by(sectors as usize);
                let digest = |at: u64| content.slice(at, sectors.min(content.sectors() - at)).digest();
                core.on_digests(clock, op, &starts.map(digest).collect::<Vec<_>>());
            }
            Effect::OpenDisk { volume } => {
                let v = usize::from(volume.0);
                node.volumes[v].opening = true;
                self.open_if_free(n, v);
            }
            Effect::CloseDisk { volume } => {
                let v = usize::from(volume.0);
                node.volumes[v].opening = false;
                node.volumes[v].arrived.closed = true;
                node.flights.values_mut().filter(|f| f.volume == v).for_each(|f| f.orphan = true);
            }
            Effect::Disk { op, volume, action } => self.disk_effect(n, core, op, usize::from(volume.0), action)?,
            Effect::Meta { op, volume, action } => self.meta_effect(n, core, op, usize::from(volume.0), action)?,
            Effect::Deliver { from, to } => {
                let content = node.buffers.content(&from)?;
                node.buffers.fill(&to, &content)?;
                node.buffers.release(&from, Owner::Core)?;
            }
            Effect::Complete { tag, result } => self.completed(n, core, tag, result)?,
            Effect::Release(data) => node.buffers.release(&data, Owner::Core)?,
            Effect::RunHandler { id, call } => self.run_handler(n, id, &call),
            Effect::CommandDone { id, result } => {
                let command = node.commands.remove(&id);
                let command = command.ok_or_else(|| format!("command {id} ended twice or was never given"))?;
                let done = result.is_ok();
                self.note_command_done(n, id, &result);
                self.nodes[n].last_result = Some((self.now, result));
                if matches!(command, urbd_core::Command::PrimaryAgain(..)) {
                    self.note_primary_again(n, done);
                }
                if done {
                    self.has_done(n, &command);
                }
            }
            Effect::Device { volume, size, access, .. } => self.device_changed(n, usize::from(volume.0), size, access),
            Effect::Log(notice) => {
                if notice.severity == Severity::Error {
                    self.trace.mix(1);
                }
                *self.reached.entry(notice.reason).or_default() += 1;
                if let Some(notices) = &mut self.notices {
                    notices.push((n, format!("{}: {}", notice.reason, notice.text)));
                }
                let refused = matches!(
                    notice.event,
                    urbd_core::Event::GaveUp | urbd_core::Event::Compared(Decision::FailOwnDisk)
                );
                if refused || may_pass(notice.reason) || NOTED.contains(&notice.reason) {
                    self.note_refusal(n, notice.peer.map(|peer| peer.index()), notice.reason);
                }
                if notice.reason == "twopc-timeout" {
                    self.check_answered(n, &notice.text);
                }
                if let Some(volume) = notice.volume {
                    self.noticed(n, usize::from(volume.0), &notice);
                }
            }
            Effect::Stopped => {
                self.nodes[n].paused = false;
                self.note_stopped(n);
            }
        }
        Ok(())
    }

    // -- disks --------------------------------------------------------------------------------------------------------

    fn open_if_free(&mut self, n: usize, v: usize) {
        let node = &mut self.nodes[n];
        if !node.volumes[v].opening || node.flights.values().any(|f| f.volume == v) {
            return;
        }
        node.volumes[v].opening = false;
        let sectors = self.setup.volumes[v].sectors[n];
        let opened = OpenedDisk {
            backing: crate::plan::bytes(sectors),
            meta_device: self.setup.volumes[v].layout(n).device(),
            can_discard: self.setup.drawn.nodes[n].discards.0,
            discard_zeroes: self.setup.drawn.nodes[n].discards.1,
            write_through: self.setup.write_through,
            block_size: 512,
        };
        self.input(n, self.setup.latency.0, Input::Opened(crate::plan::volume_nr(v), opened));
    }

    fn disk_effect(&mut self, n: usize, core: &Resource, op: OpId, v: usize, action: DiskOp) -> Result<(), String> {
        let limit = self.setup.volumes[v].capacity(n);
        let place = |sector: units::Sector, len: units::ByteLen| {
            let range = SectorRange::new(sector, len).filter(|r| r.end.0 <= limit);
            range.ok_or_else(|| format!("disk operation at {sector:?} + {len:?} is beyond the data area"))
        };
        let changes = action.changes();
        if let Some(range) = changes {
            self.check_alone(n, v, range)?;
        }
        let node = &self.nodes[n];
        let application = match &action {
            DiskOp::Write { data, .. } => node.buffers.is_applications(data),
            _ => false,
        };
        let work = match action {
            DiskOp::Read { sector, data } => Work::Read(place(sector, units::ByteLen(data.len()))?, data),
            DiskOp::ReadNew { sector, len, detect_zeroes } => Work::ReadNew(place(sector, len)?, detect_zeroes),
            DiskOp::Write { sector, data, fua } => {
                place(sector, units::ByteLen(data.len()))?;
                let content = node.buffers.content(&data)?;
                self.check_undamaged(n, &content)?;
                Work::Write(sector, content, fua)
            }
            DiskOp::Discard { sector, len, zeroes } => self.discarded(n, place(sector, len)?, zeroes),
            DiskOp::WriteZeroes { sector, len, fua, .. } => Work::Zero(place(sector, len)?, fua),
            DiskOp::Flush => Work::Flush,
        };
        if application && let Work::Write(at, content, _) = &work {
            let range = SectorRange::new(*at, crate::plan::bytes(content.sectors())).expect("checked");
            self.check_activity_log(n, v, range)?;
            self.check_generation(n, v, core)?;
        } else if let Work::Write(_, content, _) = &work {
            self.check_order(n, content)?;
        }
        self.submit(n, v, op, work, changes);
        Ok(())
    }

    /// What the disk of a node makes of a discard. `zeroes`: what it does not promise is written.
    fn discarded(&self, n: usize, range: SectorRange, zeroes: bool) -> Work {
        let options = &self.setup.drawn.nodes[n];
        match options.discards {
            _ if zeroes || !options.true_to_discards => Work::Zero(range, false),
            (false, _) => Work::NotSupported,
            (true, false) => Work::Write(range.start, Payload::of_write(GARBAGE, range), false),
            (true, true) => Work::Zero(range, false),
        }
    }

    fn meta_effect(&mut self, n: usize, core: &Resource, op: OpId, v: usize, action: MetaOp) -> Result<(), String> {
        let (at, len) = match &action {
            MetaOp::Write { offset, bytes, .. } => (*offset, bytes.len() as u64),
            MetaOp::Read { offset, len } => (*offset, *len),
        };
        if !self.nodes[n].volumes[v].meta_disk().holds_meta(at, len) {
            return Err(format!("metadata operation at {at} + {len} is not in the metadata area"));
        }
        if let MetaOp::Write { offset, bytes, .. } = &action {
            self.check_forgotten_extents(n, v, core, *offset, bytes.as_ref())?;
        }
        let work = match action {
            MetaOp::Write { offset, bytes, flush_before, fua } => {
                Work::MetaWrite { at: offset, bytes, flush: flush_before, fua }
            }
            MetaOp::Read { offset, len } => Work::MetaRead { at: offset, len },
        };
        self.submit(n, v, op, work, None);
        Ok(())
    }

    fn submit(&mut self, n: usize, volume: usize, op: OpId, mut work: Work, changes: Option<SectorRange>) {
        let early = self.rng.chance(1, 2);
        let written = match &work {
            Work::Write(_, content, fua) => Some((content.clone(), *fua)),
            _ => None,
        };
        let write_through = self.setup.write_through;
        let vol = &mut self.nodes[n].volumes[volume];
        let marks = (vol.data.mark(), vol.meta.as_ref().map_or(0, crate::disk::Disk::mark));
        if early && !vol.data.faults.any() {
            // It takes effect at once, and its completion comes late.
            match &work {
                Work::Write(at, content, false) => {
                    vol.data.write(*at, content, write_through);
                    work = Work::Done;
                }
                Work::Zero(range, false) => {
                    vol.data.zero(*range, write_through);
                    work = Work::Done;
                }
                _ => {}
            }
        }
        self.serial += 1;
        let serial = self.serial;
        self.nodes[n].flights.insert(serial, Flight { volume, op, work, changes, written, orphan: false, marks });
        let most = Duration(self.setup.latency.0.0 + self.setup.drawn.slower[n].0.0);
        self.after(most, Event::Disk(n, serial));
    }

    pub(crate) fn disk_done(&mut self, n: usize, serial: u64) {
        let Some(flight) = self.nodes[n].flights.get(&serial) else { return };
        let v = flight.volume;
        let faults = self.nodes[n].volumes[v].data.faults;
        if faults.stalled || (faults.stalled_writes && flight.work.changes_something()) {
            return self.at(self.now + Duration::from_millis(100), Event::Disk(n, serial));
        }
        let flight = self.nodes[n].flights.remove(&serial).expect("just seen");
        let input = self.finish(n, &flight);
        let failed = match &input {
            Input::Disk(done) => done.result.is_err_and(|e| e != DiskError::NotSupported),
            Input::Meta(done) => done.result.is_err(),
            _ => false,
        };
        if failed {
            self.note_disk_error(n, v, &flight.work);
        }
        let volume = &mut self.nodes[n].volumes[v];
        if let (Some((content, fua)), Input::Disk(DiskDone { result: Ok(()), .. })) = (&flight.written, &input) {
            let mark = if *fua || self.setup.write_through { 0 } else { volume.data.mark() };
            volume.arrived.note_written(content, mark);
        }
        if flight.orphan {
            if let Input::Disk(DiskDone { data, .. }) = input {
                let released = self.nodes[n].buffers.release(&data, Owner::Core);
                released.expect("it was just made");
            }
        } else {
            self.nodes[n].inbox.push_back(input);
            self.wake(n);
        }
        self.open_if_free(n, v);
    }

    /// Carries an operation out.
    fn finish(&mut self, n: usize, flight: &Flight) -> Input {
        let write_through = self.setup.write_through;
        let Flight { op, .. } = *flight;
        let node = &mut self.nodes[n];
        let vol = &mut node.volumes[flight.volume];
        let faults = vol.data.faults;
        let disk = |failed: bool, data: Segments| {
            let result = if failed { Err(DiskError::Io) } else { Ok(()) };
            Input::Disk(DiskDone { op, result, data, zeroes: false })
        };
        match &flight.work {
            Work::Read(range, into) => {
                let content = Payload::read(vol.data.data(), *range);
                // An operation may outlive the request whose buffers it reads into (a disk that was given up).
                if !faults.reads && node.buffers.content(into).is_ok() {
                    node.buffers.fill(into, &content).expect("as long as it is");
                }
                disk(faults.reads, Segments::None)
            }
            Work::ReadNew(range, detect) => {
                if faults.reads {
                    return disk(true, Segments::None);
                }
                let content = Payload::read(vol.data.data(), *range);
                let zeroes = *detect && content.is_zeroes();
                let data = node.buffers.add(Owner::Core, content);
                Input::Disk(DiskDone { op, result: Ok(()), data, zeroes })
            }
            Work::Write(at, content, fua) => {
                if faults.writes {
                    vol.data.write_maybe(*at, content, &mut self.rng);
                } else {
                    vol.data.write(*at, content, *fua || write_through);
                }
                disk(faults.writes, Segments::None)
            }
            Work::Zero(range, fua) => {
                if !faults.discards {
                    vol.data.zero(*range, *fua || write_through);
                } else if self.rng.chance(1, 2) {
                    let half = SectorRange { end: units::Sector((range.start.0 + range.end.0) / 2), ..*range };
                    vol.data.zero(half, false);
                }
                disk(faults.discards, Segments::None)
            }
            Work::Flush => {
                if !faults.flushes {
                    vol.data.flush(flight.marks.0);
                    vol.arrived.note_flushed(flight.marks.0);
                }
                disk(faults.flushes, Segments::None)
            }
            Work::Done => disk(false, Segments::None),
            Work::NotSupported => {
                let result = Err(DiskError::NotSupported);
                Input::Disk(DiskDone { op, result, data: Segments::None, zeroes: false })
            }
            Work::MetaWrite { at, bytes, flush, fua } => {
                let failed = faults.metadata || (*flush && faults.flushes);
                if !failed {
                    vol.write_meta(*at, bytes, flush.then_some(flight.marks), *fua || write_through);
                }
                let result = if failed { Err(DiskError::Io) } else { Ok(Box::default()) };
                Input::Meta(MetaDone { op, result })
            }
            Work::MetaRead { at, len } => {
                let bytes = vol.meta_disk().read_meta(*at, *len).expect("checked when it was asked for");
                Input::Meta(MetaDone { op, result: if faults.metadata { Err(DiskError::Io) } else { Ok(bytes) } })
            }
        }
    }
}

impl Work {
    fn changes_something(&self) -> bool {
        !matches!(self, Work::Read(..) | Work::ReadNew(..) | Work::MetaRead { .. } | Work::Flush | Work::NotSupported)
    }
}

/// A line about an input.
fn brief(input: &Input) -> String {
    match input {
        Input::Packet(from, _, stream, volume, packet, payload) if payload.0.is_empty() => {
            format!("n{from} {stream:?} volume {volume} {packet:?}")
        }
        Input::Packet(from, _, stream, volume, packet, payload) => {
            format!("n{from} {stream:?} volume {volume} {packet:?} + {:?}", payload.0)
        }
        Input::Meta(MetaDone { op, result }) => {
            format!("Meta {op:?} {:?}", result.as_ref().map(|b| b.len()))
        }
        other => format!("{other:?}"),
    }
}
