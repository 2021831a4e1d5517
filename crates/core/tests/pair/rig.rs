//! Two cores that talk to each other in memory, and what that costs in things that can be counted: allocations,
//! packets, disk operations, metadata writes. A turn of one is everything that waits for it at that time.

use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use units::{ByteLen, Duration, Generation, Instant, NodeId, Sector, VolumeNr};
use urbd_core::{
    BlockRequest, BufRef, Command, CommandError, ConnectionConfig, DiskConfig, DiskDone, DiskOp, Effect, LinkUp,
    MetaDone, MetaOp, OpenedDisk, RequestKind, Resource, ResourceConfig, Segments, VolumeConfig,
};
use wire::{Packet, Socket};

use crate::counting::allocations;
use crate::crash::journal::{Event, Pace};

pub(crate) const VOLUME: VolumeNr = VolumeNr(0);
/// The number of a command that changes a configuration.
const RECONFIGURED: u64 = 77;
/// Of the backing disks, by default.
const SIZE: ByteLen = ByteLen(4 << 30);

/// A struct of numbers, and the difference of two of it.
macro_rules! counts {
    ($($(#[$doc:meta])* $field:ident,)*) => {
        #[derive(Clone, Copy, Default, Debug, PartialEq, Eq)]
        pub(crate) struct Counts {
            $($(#[$doc])* pub(crate) $field: u64,)*
        }

        impl std::ops::Sub for Counts {
            type Output = Counts;

            fn sub(self, o: Counts) -> Counts {
                Counts { $($field: self.$field - o.$field,)* }
            }
        }
    };
}

counts! {
    data_packets,
    barriers,
    acks,
    disk_writes,
    /// Of those, with FUA.
    durable_writes,
    flushes,
    meta_writes,
    meta_bytes,
    completed,
    /// Resync requests, by checksum or not.
    requests,
    /// Verify requests.
    comparisons,
    disk_reads,
    discards,
    /// Made inside the core.
    allocations,
}

pub(crate) struct Node {
    pub(crate) core: Resource,
    pub(crate) cfg: ResourceConfig,
    pub(crate) peer: NodeId,
    pub(crate) layout: meta::Layout,
    /// From the first byte of the metadata on.
    pub(crate) metadata: Vec<u8>,
    /// The same of volumes beside [`VOLUME`], each on a disk like its one, with metadata as fresh.
    beside: BTreeMap<VolumeNr, Vec<u8>>,
    fresh: Vec<u8>,
    /// Of the backing disk.
    size: ByteLen,
    write_through: bool,
    disk_done: Vec<DiskDone>,
    meta_done: Vec<MetaDone>,
    pub(crate) inbox: VecDeque<(Socket, VolumeNr, Packet, Segments)>,
    /// What was sent to a third node, which is not here.
    pub(crate) to_third: Vec<Packet>,
    pub(crate) link_wanted: bool,
    pub(crate) counts: Counts,
    /// What this node sends and is lost.
    pub(crate) lost: fn(&Packet) -> bool,
    /// The disk does not answer any more.
    pub(crate) hangs: bool,
    /// The disk ends one operation in a turn, the latest one first.
    pub(crate) slow: bool,
    /// Operations that a slow disk had, in each turn in which it had any.
    pub(crate) queued: Vec<usize>,
    /// All that is read is zeroes.
    pub(crate) empty: bool,
    /// The first byte of every digest that is computed here.
    pub(crate) digest: u8,
    /// Reasons of what was decided.
    pub(crate) notes: Vec<&'static str>,
    /// Everything that a crash may undo, if it is kept.
    pub(crate) journal: Option<Vec<Event>>,
    /// How commands ended, if any may fail.
    pub(crate) answers: Option<Vec<(u64, Result<(), CommandError>)>>,
    /// Requests that have failed, if any may.
    pub(crate) failed: Option<Vec<u64>>,
    pub(crate) stopped: bool,
    /// Something has come in since the last turn's end.
    pub(crate) told: bool,
    /// How long disk operations take; by default until the next turn.
    pub(crate) pace: Pace,
}

/// Where metadata lie, and in which format.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    pub(crate) kind: meta::MetaDisk,
    pub(crate) version: meta::Version,
    pub(crate) al: meta::AlShape,
    /// Bitmap slots: of the peer, and of nodes that are not configured (or of none).
    pub(crate) slots: u32,
    /// Of the backing disk.
    pub(crate) size: ByteLen,
}

impl Shape {
    pub(crate) const DEFAULT: Shape = Shape {
        kind: meta::MetaDisk::Internal,
        version: meta::Version::V08,
        al: meta::AlShape::DEFAULT,
        slots: 1,
        size: SIZE,
    };
}

pub(crate) struct Pair {
    pub(crate) now: Instant,
    pub(crate) nodes: [Node; 2],
    /// How long a turn takes; by default a microsecond.
    pub(crate) turn: Duration,
    in_flight: u64,
    next_tag: u64,
}

/// Where the metadata begin on their device.
pub(crate) fn metadata_at(layout: &meta::Layout) -> u64 {
    layout.superblock_at().0.min(layout.al_at().0).min(layout.bitmap_at().0)
}

fn node(n: u8, shape: Shape, write_through: bool, change: &dyn Fn(&mut ResourceConfig)) -> Node {
    let (own, peer) = (NodeId::new(n).unwrap(), NodeId::new(1 - n).unwrap());
    let geometry = meta::Geometry::new(shape.slots, 4096, shape.al).unwrap();
    let layout = meta::Layout::new(shape.kind, geometry, shape.size).unwrap();
    let mut sb = meta::Superblock::fresh(shape.version, &layout);
    match shape.version {
        meta::Version::V08 => sb.peers[meta::Superblock::V08_PEER].slot = Some(0),
        meta::Version::V09 => sb.peers[peer.index()].slot = Some(0),
    }
    sb.current = Generation(0x1000);
    sb.flags.put(meta::DeviceFlags::CONSISTENT, true);
    sb.flags.put(meta::DeviceFlags::WAS_UP_TO_DATE, true);
    sb.effective_size = layout.capacity().min(shape.size.to_sectors_floor());
    let from = metadata_at(&layout);
    let bitmap_end = layout.bitmap_at().0 + geometry.bitmap_bytes(sb.effective_size);
    let end = bitmap_end.max(layout.superblock_at().0 + 4096).max(layout.al_at().0 + shape.al.bytes().0);
    let mut metadata = vec![0; (end - from) as usize];
    let mut put = |at: u64, block: &[u8]| metadata[(at - from) as usize..][..block.len()].copy_from_slice(block);
    put(layout.superblock_at().0, &sb.emit()[..]);
    (0..shape.al.blocks()).for_each(|i| put(layout.al_block_at(i).0, &meta::activity_log::block::initialized()[..]));
    let address = |port| SocketAddr::from(([127, 0, 0, 1], port));
    let mut cfg = ResourceConfig {
        name: "r0".to_owned(),
        node: own,
        on_no_data: urbd_core::OnNoData::IoError,
        on_suspended_outdated: urbd_core::OnSuspendedOutdated::default(),
        quorum: urbd_core::QuorumConfig::default(),
        handlers: Vec::new(),
        volumes: vec![VolumeConfig {
            volume: VOLUME,
            disk: Some(DiskConfig { meta: shape.kind, ..DiskConfig::default() }),
        }],
        connections: vec![ConnectionConfig::new(peer, "other", (address(7788), address(7789)))],
    };
    change(&mut cfg);
    Node {
        core: Resource::new(cfg.clone(), u64::from(n) + 7),
        cfg,
        peer,
        layout,
        fresh: metadata.clone(),
        beside: BTreeMap::new(),
        metadata,
        size: shape.size,
        write_through,
        disk_done: Vec::new(),
        meta_done: Vec::new(),
        inbox: VecDeque::new(),
        to_third: Vec::new(),
        link_wanted: false,
        counts: Counts::default(),
        lost: |_| false,
        hangs: false,
        slow: false,
        queued: Vec::new(),
        empty: false,
        digest: 0,
        notes: Vec::new(),
        journal: None,
        answers: None,
        failed: None,
        stopped: false,
        told: false,
        pace: Pace::default(),
    }
}

impl Node {
    /// Runs a part of the core and counts what it allocates.
    pub(crate) fn count<R>(&mut self, f: impl FnOnce(&mut Resource) -> R) -> R {
        let before = allocations();
        let result = f(&mut self.core);
        self.counts.allocations += allocations() - before;
        result
    }

    /// One turn; what is sent goes to `to`.
    fn turn(&mut self, now: Instant, to: &mut VecDeque<(Socket, VolumeNr, Packet, Segments)>) {
        let peer = self.peer;
        if self.stopped {
            return self.inbox.clear();
        }
        let (mut disk, mut meta) = (std::mem::take(&mut self.disk_done), std::mem::take(&mut self.meta_done));
        if self.slow {
            self.queued.extend(Some(disk.len()).filter(|n| *n > 0));
            self.disk_done.extend(disk.drain(..disk.len().saturating_sub(1)));
        }
        let left = std::mem::take(&mut self.disk_done);
        for done in disk.drain(..self.pace.ready(disk.len())) {
            self.note_event(|| Event::DiskDone(done.op));
            self.told = true;
            self.count(|core| core.on_disk_done(now, done));
        }
        for done in meta.drain(..self.pace.ready(meta.len())) {
            self.note_event(|| Event::MetaDone);
            self.told = true;
            self.count(|core| core.on_meta_done(now, done));
        }
        (self.disk_done, self.meta_done) = (disk, meta);
        self.disk_done.extend(left);
        while let Some((stream, volume, packet, payload)) = self.inbox.pop_front() {
            match &packet {
                Packet::RsWriteAck(ack) => self.note_event(|| Event::PeerHas(ack.sector, ack.size)),
                Packet::BarrierAck(ack) => self.note_event(|| Event::BarrierAcked(ack.barrier)),
                _ => {}
            }
            self.told = true;
            self.count(|core| core.on_packet(now, peer, stream, volume, packet, payload));
        }
        if self.core.poll_timeout().is_some_and(|at| at <= now) {
            self.told = true;
            self.count(|core| core.on_time(now));
        }
        // As in the engine: who gets nothing has no turn.
        if std::mem::take(&mut self.told) {
            self.count(|core| core.on_turn_end(now));
        }
        while let Some(effect) = self.count(Resource::poll_effect) {
            self.carry_out(now, effect, to);
        }
    }

    pub(crate) fn link_down(&mut self, now: Instant, why: urbd_core::LinkDown) {
        self.told = true;
        self.core.on_link_down(now, self.peer, why);
    }

    /// What happened, if a journal of it is kept.
    pub(crate) fn note_event(&mut self, event: impl FnOnce() -> Event) {
        if let Some(journal) = &mut self.journal {
            journal.push(event());
        }
    }

    fn carry_out(&mut self, now: Instant, effect: Effect, to: &mut VecDeque<(Socket, VolumeNr, Packet, Segments)>) {
        match effect {
            Effect::Send { peer, packet, .. } if peer != self.peer => self.to_third.push(packet),
            Effect::Send { stream, volume, packet, payload, .. } => {
                match &packet {
                    Packet::Data(_) => self.counts.data_packets += 1,
                    Packet::Barrier(_) => self.counts.barriers += 1,
                    Packet::WriteAck(_) => self.counts.acks += 1,
                    Packet::RsDataRequest(_) | Packet::RsThinReq(_) | Packet::CsumRsRequest(_) => {
                        self.counts.requests += 1;
                    }
                    Packet::OvRequest(_) => self.counts.comparisons += 1,
                    _ => {}
                }
                match &packet {
                    Packet::RsWriteAck(ack) => self.note_event(|| Event::Confirmed(ack.sector, ack.size)),
                    Packet::Barrier(nr) => self.note_event(|| Event::Barrier(*nr)),
                    Packet::Data(data) => self.note_event(|| Event::Sent(data.sector, ByteLen(payload.len()))),
                    _ => {}
                }
                if !(self.lost)(&packet) {
                    to.push_back((stream, volume, packet, payload));
                }
            }
            Effect::Connect { .. } => self.link_wanted = true,
            Effect::OpenDisk { volume } => {
                self.core.on_disk_opened(now, volume, Ok(self.opened()));
                self.core.on_turn_end(now);
            }
            Effect::Disk { op, action, .. } => {
                let mut data = Segments::None;
                match action {
                    DiskOp::Write { sector, data, fua } => {
                        self.counts.disk_writes += 1;
                        self.counts.durable_writes += u64::from(fua);
                        let generation = self.core.generations(VOLUME).map(|g| g[0]).unwrap_or_default();
                        let len = ByteLen(data.len());
                        self.note_event(|| Event::Write { op, from: sector, len, generation });
                    }
                    DiskOp::Flush => {
                        self.counts.flushes += 1;
                        self.note_event(|| Event::Flush(op));
                    }
                    DiskOp::Read { .. } => self.counts.disk_reads += 1,
                    DiskOp::ReadNew { len, .. } => {
                        self.counts.disk_reads += 1;
                        data = Segments::One(BufRef { id: 0, offset: 0, len: len.0 as u32 });
                    }
                    DiskOp::Discard { .. } => self.counts.discards += 1,
                    other => panic!("{other:?} is not expected"),
                }
                if !self.hangs {
                    self.disk_done.push(DiskDone { op, result: Ok(()), data, zeroes: self.empty });
                }
            }
            Effect::Digest { op, data, piece, .. } => {
                let digest = wire::Digest::new(&[self.digest; 4]).expect("short");
                self.core.on_digests(now, op, &vec![digest; data.len().div_ceil(piece) as usize]);
                self.core.on_turn_end(now);
            }
            Effect::Log(notice) => self.notes.push(notice.reason),
            Effect::Meta { op, action, volume } => {
                self.note_event(|| Event::Meta(action.clone()));
                let result = Ok(self.metadata(volume, action));
                self.meta_done.push(MetaDone { op, result });
            }
            Effect::Complete { tag, result, .. } => match &mut self.failed {
                Some(failed) if result.is_err() => failed.push(tag),
                _ => {
                    result.expect("writes succeed");
                    self.note_event(|| Event::Complete(tag));
                    self.counts.completed += 1;
                }
            },
            Effect::CommandDone { id, result } => match &mut self.answers {
                Some(answers) => answers.push((id, result)),
                None => result.expect("commands succeed"),
            },
            Effect::CloseLink { .. } => {
                self.notes.push("link closed");
                self.link_wanted = false;
            }
            Effect::Stopped => self.stopped = true,
            _ => {}
        }
    }

    fn opened(&self) -> OpenedDisk {
        OpenedDisk {
            backing: self.size,
            meta_device: self.size,
            can_discard: true,
            discard_zeroes: true,
            write_through: self.write_through,
            block_size: 512,
        }
    }

    /// What stands at the end of its disk, if that is metadata of a disk of this size.
    pub(crate) fn found(&self) -> Result<meta::find::Found, meta::find::FindError> {
        let at = (self.layout.superblock_at().0 - metadata_at(&self.layout)) as usize;
        let block = self.metadata[at..].first_chunk().expect("a superblock");
        meta::find::check(meta::MetaDisk::Internal, self.size, block)
    }

    /// Its disk becomes larger, and the metadata are moved to the new end.
    pub(crate) fn grow(&mut self, by: ByteLen) -> OpenedDisk {
        let (old, found) = (metadata_at(&self.layout), self.found().expect("metadata"));
        self.size.0 += by.0;
        let planned = meta::resize::plan_move(&found, self.size, meta::create::InitialBitmap::Zero);
        let (_, layout, steps) = planned.expect("they move");
        let mut image = vec![0; (layout.superblock_at().0 + 4096 - old) as usize];
        image[..self.metadata.len()].copy_from_slice(&self.metadata);
        steps.iter().for_each(|step| step.apply_to(old, &mut image));
        self.metadata = image.split_off((metadata_at(&layout) - old) as usize);
        self.layout = layout;
        self.opened()
    }

    /// As it is on disk.
    pub(crate) fn superblock(&self) -> meta::Superblock {
        let at = (self.layout.superblock_at().0 - metadata_at(&self.layout)) as usize;
        let block = self.metadata[at..].first_chunk().expect("a superblock");
        meta::Superblock::parse(block).expect("a superblock")
    }

    fn metadata(&mut self, volume: VolumeNr, action: MetaOp) -> Box<[u8]> {
        if let MetaOp::Write { bytes, .. } = &action {
            self.counts.meta_writes += 1;
            self.counts.meta_bytes += bytes.len() as u64;
        }
        let metadata = match volume {
            VOLUME => &mut self.metadata,
            other => self.beside.entry(other).or_insert_with(|| self.fresh.clone()),
        };
        act(&self.layout, metadata, action)
    }
}

/// Does to the bytes of some metadata what a core asks for.
pub(crate) fn act(layout: &meta::Layout, metadata: &mut [u8], action: MetaOp) -> Box<[u8]> {
    let from = metadata_at(layout);
    match action {
        MetaOp::Write { offset, bytes, .. } => {
            let at = (offset - from) as usize;
            metadata[at..at + bytes.len()].copy_from_slice(&bytes);
            Box::default()
        }
        MetaOp::Read { offset, len } => metadata[(offset - from) as usize..][..len as usize].into(),
    }
}

impl Pair {
    /// Connected, both UpToDate, the first one Primary.
    pub(crate) fn new(write_through: bool) -> Pair {
        Pair::with(write_through, |_| {})
    }

    /// The same with other options.
    pub(crate) fn with(write_through: bool, change: impl Fn(&mut ResourceConfig)) -> Pair {
        Pair::on(Shape::DEFAULT, write_through, change)
    }

    /// The same on other metadata.
    pub(crate) fn on(shape: Shape, write_through: bool, change: impl Fn(&mut ResourceConfig)) -> Pair {
        Pair::of([shape; 2], write_through, change)
    }

    /// Each node on metadata of its own shape.
    pub(crate) fn of(shapes: [Shape; 2], write_through: bool, change: impl Fn(&mut ResourceConfig)) -> Pair {
        let mut pair = Pair {
            now: Instant(1_000_000_000),
            nodes: [0, 1].map(|n| node(n, shapes[usize::from(n)], write_through, &change)),
            turn: Duration(1000),
            in_flight: 0,
            next_tag: 0,
        };
        let now = pair.now;
        for n in &mut pair.nodes {
            n.told = true;
            n.core.on_command(now, 1, Command::Attach { volume: VOLUME });
            let (peer, discard_my_data, tentative) = (n.peer, false, false);
            n.core.on_command(now, 2, Command::Connect { peer, discard_my_data, tentative });
        }
        pair.run(20);
        assert!(pair.nodes.iter().all(|n| n.link_wanted));
        pair.link();
        pair.run(100);
        let primary = Command::Primary { force: false };
        pair.command(0, primary);
        pair.run(100);
        pair
    }

    /// Both streams are there.
    pub(crate) fn link(&mut self) {
        for (i, n) in self.nodes.iter_mut().enumerate() {
            let link = LinkUp { resolve_conflicts: i == 0, challenge: [i as u8; 64] };
            n.note_event(|| Event::Link(true));
            (n.told, n.link_wanted) = (true, false);
            n.core.on_link_up(self.now, n.peer, link);
        }
    }

    /// The link breaks; what was on its way is lost.
    pub(crate) fn unlink(&mut self) {
        for n in &mut self.nodes {
            n.inbox.clear();
            n.note_event(|| Event::Link(false));
            n.link_down(self.now, urbd_core::LinkDown::Closed);
        }
    }

    /// Is nothing under way, on a disk or between the nodes?
    pub(crate) fn is_idle(&self) -> bool {
        self.nodes
            .iter()
            .all(|n| n.stopped || (!n.told && n.inbox.is_empty() && n.disk_done.is_empty() && n.meta_done.is_empty()))
    }

    /// Turns of both nodes.
    pub(crate) fn run(&mut self, turns: usize) {
        for _ in 0..turns {
            self.now = self.now + self.turn;
            let [a, b] = &mut self.nodes;
            a.turn(self.now, &mut b.inbox);
            b.turn(self.now, &mut a.inbox);
        }
    }

    /// Until `there`, with the time that the cores' timers want to pass; virtual seconds until then.
    pub(crate) fn until(&mut self, limit: Duration, there: impl Fn(&Pair) -> bool) -> f64 {
        self.until_beside(limit, there, |_| {})
    }

    /// The same, with something before each turn.
    pub(crate) fn until_beside(
        &mut self,
        limit: Duration,
        there: impl Fn(&Pair) -> bool,
        mut beside: impl FnMut(&mut Pair),
    ) -> f64 {
        let start = self.now;
        while !there(self) {
            assert!(self.now.since(start) < limit, "not within {limit:?}: {:?}", self.nodes[1].notes);
            beside(self);
            self.run(1);
            if self.is_idle() {
                let timer = self.nodes.iter().filter_map(|n| n.core.poll_timeout()).min();
                self.now = self.now.max(timer.unwrap_or(self.now));
            }
        }
        self.now.since(start).0 as f64 / 1e9
    }

    /// So much time, and what happens in it.
    pub(crate) fn pass(&mut self, time: Duration) {
        let end = self.now + time;
        self.until(time + time, |p| p.now >= end || p.states() == [wire::ConnState::Connected; 2]);
    }

    /// The configuration of a node becomes another one. How that ended, if it has.
    pub(crate) fn reconfigure(
        &mut self,
        node: usize,
        change: impl Fn(&mut ResourceConfig),
    ) -> Option<Result<(), CommandError>> {
        let mut cfg = self.nodes[node].cfg.clone();
        change(&mut cfg);
        self.nodes[node].answers = Some(Vec::new());
        self.command_with_id(node, RECONFIGURED, Command::ChangeOptions(Box::new(cfg.clone())));
        self.run(20);
        let ended = self.answer_to(node, RECONFIGURED);
        if ended == Some(Ok(())) {
            self.nodes[node].cfg = cfg;
        }
        ended
    }

    /// How a command of a node has ended, if it has.
    pub(crate) fn answer_to(&self, node: usize, id: u64) -> Option<Result<(), CommandError>> {
        let answers = self.nodes[node].answers.as_ref()?;
        answers.iter().find(|(of, _)| *of == id).map(|(_, result)| result.clone())
    }

    pub(crate) fn command(&mut self, node: usize, command: Command) {
        self.command_with_id(node, 9, command);
    }

    pub(crate) fn command_with_id(&mut self, node: usize, id: u64, command: Command) {
        let n = &mut self.nodes[node];
        n.told = true;
        n.core.on_command(self.now, id, command);
    }

    /// What both nodes say of their volume.
    pub(crate) fn states(&self) -> [wire::ConnState; 2] {
        [0, 1].map(|i| self.nodes[i].core.snapshot().connections[0].peer_devices[0].replication)
    }

    pub(crate) fn write(&mut self, block: u64) {
        self.write_on(0, block);
    }

    pub(crate) fn write_on(&mut self, node: usize, block: u64) {
        let tag = self.next_tag;
        self.nodes[node].note_event(|| Event::Request(tag, Sector(block * 8), ByteLen(4096)));
        self.request_on(node, block, RequestKind::Write { fua: false });
    }

    /// A request for a block of 4 KiB, or a flush.
    pub(crate) fn request_on(&mut self, node: usize, block: u64, kind: RequestKind) {
        self.request_to(VOLUME, node, block, kind);
    }

    /// The same, to any volume.
    pub(crate) fn request_to(&mut self, volume: VolumeNr, node: usize, block: u64, kind: RequestKind) {
        let data = match kind {
            RequestKind::Write { .. } | RequestKind::Read => {
                Segments::One(BufRef { id: self.next_tag as u32, offset: 0, len: 4096 })
            }
            _ => Segments::None,
        };
        let (sector, len) = if kind == RequestKind::Flush { (0, 0) } else { (block * 8, 4096) };
        let (sector, len) = (Sector(sector), ByteLen(len));
        let request = BlockRequest { tag: self.next_tag, volume, kind, sector, len, data };
        self.next_tag += 1;
        self.in_flight += 1;
        let now = self.now;
        self.nodes[node].told = true;
        self.nodes[node].count(|core| core.on_request(now, request));
    }

    /// `n` writes of 4 KiB, `depth` in flight, to the blocks that `next` names. What they cost both nodes.
    pub(crate) fn writes(&mut self, n: u64, depth: u64, mut next: impl FnMut() -> u64) -> [Counts; 2] {
        let before = [self.nodes[0].counts, self.nodes[1].counts];
        let first = self.nodes[0].counts.completed;
        let (mut asked, mut turns) = (0, 0);
        while self.nodes[0].counts.completed - first < n {
            while asked < n && asked - (self.nodes[0].counts.completed - first) < depth {
                self.write(next());
                asked += 1;
            }
            self.run(1);
            turns += 1;
            assert!(turns < 20 * n + 1000, "writes do not complete: {:?}", self.nodes[0].counts);
        }
        [0, 1].map(|i| self.nodes[i].counts - before[i])
    }
}
