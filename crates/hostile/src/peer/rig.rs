//! The engine's part: carries out effects in memory and checks the core's contract at each.

use super::Seen;
use super::disk::{Before, Disk, Job, Pending};
use super::ledger::{Applications, Asked, Buffers, Source};
use crate::input::Input;
use std::collections::{BTreeSet, VecDeque};
use std::net::SocketAddr;
use units::{ByteLen, Duration, Generation, Instant, NodeId, Sector, VolumeNr};
use urbd_core::decide::Handler;
use urbd_core::{
    BlockRequest, Command, ConnectionConfig, DiskConfig, DiskDone, DiskError, DiskOp, Effect, Fencing, LinkDown,
    LinkUp, MetaDone, OnIoError, OnNoData, OpId, OpenedDisk, Policies, Protocol, RequestKind, Resource, ResourceConfig,
    Segments, Snapshot, VolumeConfig,
};
use wire::{AfterSplitBrain, ConnState, Dialect, Packet, Role, Socket, Step, StreamDecoder};

/// Pages of `max-buffers`: small, so that its limit is met.
const MAX_BUFFERS: u32 = 64;
/// What the engine lets wait in the core before it stops reading the data stream.
const HELD_MOST: u64 = MAX_BUFFERS as u64 * 4096;
/// More jobs than the peer can cause at once.
const JOBS_MOST: usize = 12_000;
/// More effects in one turn than any input can cause.
const TURN_MOST: u32 = 20_000;

/// What is answered in the next turn.
enum Answer {
    Hmac(u32),
    Opened(VolumeNr, OpenedDisk),
    Digest(OpId, usize),
}

/// An engine in memory around one core.
pub struct Rig {
    pub(super) core: Resource,
    pub(super) cfg: ResourceConfig,
    pub(super) now: Instant,
    disks: Vec<Option<Disk>>,
    pub(super) jobs: VecDeque<Pending>,
    buffers: Buffers,
    applications: Applications,
    pub(super) asked: Asked,
    pub(super) peer: NodeId,
    pub(super) link: bool,
    pub(super) wants_link: bool,
    pub(super) dialect: Option<Dialect>,
    pub(super) digest_len: usize,
    data: Option<StreamDecoder>,
    control: Option<StreamDecoder>,
    answers: Vec<Answer>,
    pub(super) handlers: Vec<u64>,
    pub(super) commands: BTreeSet<u64>,
    next_command: u64,
    pub(super) snapshot: Snapshot,
    stopped: bool,
    trace: bool,
    /// What the run came across.
    pub(super) seen: Seen,
}

impl Rig {
    /// A core as the case wants it, not attached yet.
    pub(super) fn new(input: &mut Input<'_>, role: Role) -> Rig {
        let peer = NodeId::new(1).expect("a node id");
        let volumes: u16 = if input.one_in(4) { 2 } else { 1 };
        let before = Before {
            version: if input.flag() { meta::Version::V09 } else { meta::Version::V08 },
            up_to_date: !input.one_in(3),
            current: if input.one_in(4) { Generation::JUST_CREATED } else { Generation(0x1000) },
            bitmap: if input.one_in(4) { Generation(0x2000) } else { Generation::NONE },
            peer,
        };
        let cfg = config(input, peer, volumes, role);
        let disks = (cfg.volumes.iter())
            .map(|v| v.disk.as_ref().map(|_| Disk::new(ByteLen((2 << 20) + 512 * input.below(100)), &before)))
            .collect();
        let core = Resource::new(cfg.clone(), 7);
        let snapshot = core.snapshot();
        Rig {
            core,
            cfg,
            now: Instant(1_000_000_000),
            disks,
            jobs: VecDeque::new(),
            buffers: Buffers::default(),
            applications: Applications::default(),
            asked: Asked::default(),
            peer,
            link: false,
            wants_link: false,
            dialect: None,
            digest_len: 0,
            data: None,
            control: None,
            answers: Vec::new(),
            handlers: Vec::new(),
            commands: BTreeSet::new(),
            next_command: 0,
            snapshot,
            stopped: false,
            trace: std::env::var_os("TRACE").is_some(),
            seen: Seen::default(),
        }
    }

    /// Size of a volume's device in sectors, never 0.
    pub(super) fn sectors(&self, volume: VolumeNr) -> u64 {
        let size = self.snapshot.devices.iter().find(|d| d.volume == volume).map_or(0, |d| d.size.0 / 512);
        if size == 0 { 4096 } else { size }
    }

    /// Ends the inputs of a turn and carries out what the core wants.
    pub(super) fn turn(&mut self) {
        for _ in 0..50 {
            self.core.on_turn_end(self.now);
            let mut changed = false;
            let mut effects = 0;
            while let Some(effect) = self.core.poll_effect() {
                effects += 1;
                assert!(effects < TURN_MOST, "no end of effects in one turn: {effect:?}");
                changed |= effect == Effect::StatusChanged;
                self.carry_out(effect);
            }
            if changed {
                self.look();
            }
            if self.answers.is_empty() {
                let _ = self.core.poll_timeout();
                return;
            }
            for answer in std::mem::take(&mut self.answers) {
                match answer {
                    Answer::Hmac(token) => self.core.on_hmac(self.now, self.peer, token, Some(vec![7; 16])),
                    Answer::Digest(op, n) => {
                        // Every other block is what the peer says it is.
                        let digest = wire::Digest::new(&[if op.0 % 2 == 0 { 9 } else { 8 }; 20]).expect("20 bytes");
                        self.core.on_digests(self.now, op, &vec![digest; n]);
                    }
                    Answer::Opened(volume, disk) => self.core.on_disk_opened(self.now, volume, Ok(disk)),
                }
            }
        }
        panic!("the core and its engine talk to each other for ever");
    }

    /// With `TRACE` in the environment a run tells what happens.
    fn say(&self, what: &str, detail: &dyn std::fmt::Debug) {
        if self.trace {
            eprintln!("{what} {detail:?}");
        }
    }

    fn look(&mut self) {
        self.snapshot = self.core.snapshot();
        for c in &self.snapshot.connections {
            for pd in &c.peer_devices {
                self.seen.states.insert(pd.replication);
                if pd.replication > ConnState::Connected {
                    assert!(self.link, "{} without a link", pd.replication);
                }
            }
        }
    }

    fn index(&self, volume: VolumeNr) -> usize {
        self.cfg.volumes.iter().position(|v| v.volume == volume).expect("the core names its own volumes")
    }

    fn carry_out(&mut self, effect: Effect) {
        self.say("  ->", &effect);
        match effect {
            Effect::Send { peer, stream, volume, packet, payload } => {
                assert!(peer == self.peer && self.link, "{packet:?} without a link");
                self.sent(stream, volume, &packet, &payload);
            }
            Effect::Connect { .. } => self.wants_link = true,
            Effect::Dialect { dialect, .. } => {
                self.dialect = Some(dialect);
                self.control.get_or_insert_with(|| StreamDecoder::control(dialect));
            }
            Effect::Hmac { token, .. } => self.answers.push(Answer::Hmac(token)),
            Effect::CloseLink { .. } => {
                self.wants_link = false;
                self.cut();
            }
            Effect::Digest { op, data, piece, .. } => {
                self.buffers.check(&data);
                self.answers.push(Answer::Digest(op, data.len().div_ceil(piece.max(1)) as usize));
            }
            Effect::OpenDisk { volume } => {
                let disk = &mut self.disks[self.cfg.volumes.iter().position(|v| v.volume == volume).expect("known")];
                let disk = disk.as_mut().expect("only volumes with a disk are attached");
                assert!(!disk.open, "a disk is opened twice");
                disk.open = true;
                self.answers.push(Answer::Opened(volume, disk.opened.clone()));
            }
            Effect::CloseDisk { volume } => {
                let d = self.index(volume);
                let disk = self.disks[d].as_mut().expect("it was opened");
                assert!(disk.open, "a closed disk is closed");
                disk.open = false;
                self.jobs.retain(|j| j.disk != d);
            }
            Effect::Disk { op, volume, action } => {
                if let DiskOp::Read { data, .. } | DiskOp::Write { data, .. } = &action {
                    self.buffers.check(data);
                }
                self.start(Pending { op, disk: self.index(volume), job: Job::Data(action) });
            }
            Effect::Meta { op, volume, action } => {
                self.start(Pending { op, disk: self.index(volume), job: Job::Meta(action) });
            }
            Effect::Deliver { from, to } => {
                self.buffers.check(&to);
                assert_eq!(from.len(), to.len(), "an answer of another length is delivered");
                self.buffers.release(&from);
            }
            Effect::Complete { tag, result } => {
                let asynchronous = self.cfg.connections[0].protocol == Protocol::A;
                self.applications.end(&mut self.buffers, tag, result, asynchronous);
            }
            Effect::Release(data) => self.buffers.release(&data),
            Effect::RunHandler { id, .. } => self.handlers.push(id),
            Effect::CommandDone { id, .. } => assert!(self.commands.remove(&id), "command {id} ended twice"),
            Effect::Device { .. } | Effect::StatusChanged | Effect::StateStored(_) => {}
            Effect::Log(notice) => {
                assert!(!notice.text.is_empty());
                self.seen.reasons.insert(notice.reason);
            }
            Effect::Stopped => self.stopped = true,
        }
    }

    fn start(&mut self, pending: Pending) {
        let disk = self.disks[pending.disk].as_ref().expect("a disk");
        assert!(disk.open, "{:?} on a closed disk", pending.job);
        disk.check(&pending.job);
        self.jobs.push_back(pending);
    }

    /// Everything that the core sends can be sent, and is understood as it was meant.
    fn sent(&mut self, stream: Socket, volume: VolumeNr, packet: &Packet, payload: &Segments) {
        self.buffers.check(payload);
        assert_eq!(packet.payload_len(), payload.len(), "{packet:?} and its payload");
        let dialect = match packet {
            Packet::ConnectionFeatures(own) => {
                self.data = Some(StreamDecoder::data(*own));
                Dialect::HANDSHAKE
            }
            _ => self.dialect.expect("a dialect is agreed before anything else is sent"),
        };
        let mut bytes = Vec::new();
        let emitted = packet.emit(volume, &dialect, &mut bytes);
        assert_eq!(emitted, Ok(()), "{packet:?} cannot be sent in {dialect:?}");
        let hello = matches!(packet, Packet::ConnectionFeatures(_));
        assert!(hello || packet.command(&dialect).is_on(stream), "{packet:?} on the {stream:?} stream");
        let tags = self.buffers.owners(payload);
        self.asked.note(volume, packet, tags);
    }

    // -- the link ----------------------------------------------------------------------------------------------------

    pub(super) fn link_up(&mut self, resolve_conflicts: bool) {
        if !self.wants_link || self.link {
            return;
        }
        self.link = true;
        self.core.on_link_up(self.now, self.peer, LinkUp { resolve_conflicts, challenge: [3; 64] });
        self.turn();
    }

    pub(super) fn link_down(&mut self, why: LinkDown) {
        if self.link {
            self.say("link down", &why);
            self.cut();
            self.core.on_link_down(self.now, self.peer, why);
            self.turn();
        }
    }

    fn cut(&mut self) {
        self.link = false;
        self.dialect = None;
        self.data = None;
        self.control = None;
        self.digest_len = 0;
        self.asked = Asked::default();
    }

    /// Would the engine read more of this stream now?
    pub(super) fn takes(&self, stream: Socket) -> bool {
        self.link && (stream == Socket::Control || self.core.held_back(self.peer) <= HELD_MOST)
    }

    /// The peer sends a packet, if the dialect has it.
    pub(super) fn receive(&mut self, stream: Socket, volume: VolumeNr, packet: &Packet) {
        let dialect = match packet {
            Packet::ConnectionFeatures(_) => Some(Dialect::HANDSHAKE),
            _ => self.dialect,
        };
        let mut bytes = Vec::new();
        let Some(dialect) = dialect else { return };
        if packet.emit(volume, &dialect, &mut bytes).is_ok() {
            self.receive_bytes(stream, &bytes);
        }
    }

    /// The peer sends bytes; a payload that they announce follows.
    pub(super) fn receive_bytes(&mut self, stream: Socket, bytes: &[u8]) {
        if !self.takes(stream) {
            return;
        }
        let decoder = match stream {
            Socket::Data => &mut self.data,
            Socket::Control => &mut self.control,
        };
        let Some(decoder) = decoder else { return };
        match decoder.step(bytes) {
            Ok(Step::NeedMore(_)) => {}
            Err(_) => self.link_down(LinkDown::Violation),
            Ok(Step::Packet(found)) => {
                if let Packet::Protocol(p) | Packet::ProtocolUpdate(p) = &found.packet {
                    self.digest_len = wire::digest_len(p.integrity_alg.as_str()).unwrap_or(0);
                }
                self.say("packet", &(stream, found.volume, &found.packet));
                self.answer_noted(&found.packet);
                let payload = self.buffers.take(u64::from(found.payload_len), Source::Lent);
                self.core.on_packet(self.now, self.peer, stream, found.volume, found.packet, payload);
                self.turn();
                // One block beyond each limit may be under way; a resync has a window of its own.
                let most = 2 * HELD_MOST + (8 << 20);
                assert!(self.buffers.lent <= most, "{} bytes are held for the peer", self.buffers.lent);
                assert!(self.jobs.len() < JOBS_MOST, "{} jobs for the peer", self.jobs.len());
            }
        }
    }

    /// Who says that it has a write is believed.
    fn answer_noted(&mut self, packet: &Packet) {
        let (Packet::RecvAck(a)
        | Packet::WriteAck(a)
        | Packet::RsWriteAck(a)
        | Packet::Superseded(a)
        | Packet::RetryWrite(a)) = packet
        else {
            return;
        };
        for sent in &self.asked.writes {
            if sent.ack.block_id == a.block_id {
                self.applications.answered(&sent.tags);
            }
        }
    }

    // -- disks, applications, administrators --------------------------------------------------------------------------

    /// A job ends.
    pub(super) fn job_done(&mut self, index: usize, result: Result<(), DiskError>) {
        let Some(Pending { op, disk, job }) = self.jobs.remove(index) else { return };
        self.say("job", &(op, &job, result));
        match job {
            Job::Meta(action) => {
                let bytes = self.disks[disk].as_mut().expect("a disk").meta(&action);
                self.core.on_meta_done(self.now, MetaDone { op, result: result.map(|()| bytes) });
            }
            Job::Data(action) => {
                let mut data = Segments::None;
                let detect = matches!(action, DiskOp::ReadNew { detect_zeroes: true, .. });
                let zeroes = detect && result.is_ok() && op.0 % 2 == 0;
                match &action {
                    DiskOp::Write { data, .. } if result.is_ok() => self.applications.written(&self.buffers, data),
                    DiskOp::ReadNew { len, .. } if result.is_ok() => data = self.buffers.take(len.0, Source::Lent),
                    _ => {}
                }
                self.core.on_disk_done(self.now, DiskDone { op, result, data, zeroes });
            }
        }
        self.turn();
    }

    /// All jobs end well, and those that they cause.
    pub(super) fn settle(&mut self) {
        for _ in 0..20_000 {
            if self.jobs.is_empty() {
                return;
            }
            self.job_done(0, Ok(()));
        }
        panic!("the disks never come to rest: {:?}", self.jobs.front());
    }

    pub(super) fn request(&mut self, volume: VolumeNr, kind: RequestKind, sector: u64, len: u64) {
        let carries = matches!(kind, RequestKind::Read | RequestKind::Write { .. });
        let tag = self.applications.start(kind, len);
        let data = self.buffers.take(if carries { len } else { 0 }, Source::Application(tag));
        let len = ByteLen(len);
        self.say("request", &(tag, volume, kind, sector, len));
        self.core.on_request(self.now, BlockRequest { tag, volume, kind, sector: Sector(sector), len, data });
        self.turn();
    }

    pub(super) fn command(&mut self, command: Command) {
        self.next_command += 1;
        self.say("command", &(self.next_command, &command));
        self.commands.insert(self.next_command);
        self.core.on_command(self.now, self.next_command, command);
        self.turn();
    }

    pub(super) fn handlers_exit(&mut self, status: i32) {
        for id in std::mem::take(&mut self.handlers) {
            self.core.on_handler_exit(self.now, id, status);
            self.turn();
        }
    }

    pub(super) fn wait(&mut self, time: Duration) {
        self.now = self.now + time;
        self.core.on_time(self.now);
        self.turn();
    }

    /// The peer goes away, the disks come to rest: nothing of the peer's may be left, and `down` must end.
    pub(super) fn finish(&mut self) {
        self.settle();
        self.handlers_exit(0);
        self.link_down(LinkDown::Closed);
        self.settle();
        self.handlers_exit(0);
        self.command(Command::Disconnect { peer: self.peer, force: true });
        for v in self.cfg.volumes.clone() {
            self.command(Command::ResumeIo { volume: v.volume });
        }
        for _ in 0..40 {
            self.settle();
            self.handlers_exit(0);
            self.wait(Duration::from_secs(1));
        }
        assert_eq!(self.buffers.lent, 0, "buffers of the peer leaked");
        assert_eq!(self.core.held_back(self.peer), 0);
        self.look();
        if self.snapshot.suspended.any() {
            return;
        }
        let open = &self.applications.open;
        assert!(open.is_empty(), "requests never end: {open:?} in {:?}", self.snapshot);
        self.command(Command::Down(false));
        for _ in 0..20 {
            self.settle();
            self.handlers_exit(0);
            self.wait(Duration::from_secs(1));
        }
        assert!(self.stopped, "down never ends: {:?}, commands {:?}", self.snapshot, self.commands);
        assert!(self.commands.is_empty(), "commands never end: {:?}", self.commands);
    }
}

fn config(input: &mut Input<'_>, peer: NodeId, volumes: u16, role: Role) -> ResourceConfig {
    let address = |port| SocketAddr::from(([127, 0, 0, 1], port));
    let mut c = ConnectionConfig::new(peer, "other", (address(7788), address(7789)));
    c.protocol = input.pick(&[Protocol::C, Protocol::A, Protocol::B, Protocol::C]);
    c.max_version = if input.one_in(3) { 86 + u32::from(input.u8() % 16) } else { 101 };
    c.cram_hmac = input.one_in(8).then(|| "sha1".to_owned());
    c.integrity = (c.max_version > 86 && input.one_in(8)).then(|| "crc32c".to_owned());
    c.two_primaries = c.protocol == Protocol::C && input.one_in(4);
    c.max_buffers = MAX_BUFFERS;
    c.max_epoch_size = 20;
    c.use_rle = !input.one_in(3);
    let (none, one, two) = match input.u8() % 4 {
        0 => (AfterSplitBrain::DiscardOlderPrimary, AfterSplitBrain::DiscardLeastChanges, AfterSplitBrain::Disconnect),
        1 => (AfterSplitBrain::DiscardZeroChanges, AfterSplitBrain::DiscardOlderPrimary, AfterSplitBrain::DiscardLocal),
        _ => Default::default(),
    };
    c.after_sb = Policies { none, one, two };
    let disk = |input: &mut Input<'_>| DiskConfig {
        on_io_error: input.pick(&[OnIoError::Detach, OnIoError::PassOn, OnIoError::CallHandler]),
        fencing: input.pick(&[
            Fencing::DontCare,
            Fencing::DontCare,
            Fencing::ResourceOnly,
            Fencing::ResourceAndStonith,
        ]),
        disk_flushes: input.flag(),
        al_extents: 67,
        al_updates: !input.one_in(4),
        ..DiskConfig::default()
    };
    let volumes = (0..volumes)
        .map(|v| VolumeConfig {
            volume: VolumeNr(v * 3),
            disk: (role == Role::Secondary || !input.one_in(4)).then(|| disk(input)),
        })
        .collect();
    ResourceConfig {
        name: "r0".to_owned(),
        node: NodeId::new(0).expect("a node id"),
        on_no_data: if input.one_in(4) { OnNoData::SuspendIo } else { OnNoData::IoError },
        on_suspended_outdated: urbd_core::OnSuspendedOutdated::ForceSecondary,
        quorum: urbd_core::QuorumConfig::default(),
        handlers: if input.flag() { vec![Handler::FencePeer] } else { Vec::new() },
        volumes,
        connections: vec![c],
    }
}
