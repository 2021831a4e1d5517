//! A core with disks that answer at once.

use crate::copying::Contents;
use std::collections::VecDeque;
use std::net::SocketAddr;
use units::{ByteLen, Duration, Instant, NodeId, Sector, SectorRange, VolumeNr};
use urbd_core::{
    BlockRequest, BufRef, Command, ConnectionConfig, ConnectionState, DiskConfig, DiskDone, DiskError, DiskOp, Effect,
    LinkDown, LinkUp, MetaDone, MetaOp, OnIoError, OpenedDisk, Openers, RequestKind, Resource, ResourceConfig,
    ResyncConfig, Segments, VolumeConfig,
};
use wire::{Packet, ResizeFlags, Socket, UuidFlags, Uuids110};

/// The metadata devices of the recordings.
const META_DEVICE: ByteLen = ByteLen(1 << 20);

/// How long a disk takes.
const DISK: Duration = Duration(30_000);

/// What a node sends.
#[derive(Clone, Debug)]
pub(crate) struct Sent {
    pub(crate) peer: NodeId,
    pub(crate) stream: Socket,
    pub(crate) volume: VolumeNr,
    pub(crate) packet: Packet,
}

/// A disk and its metadata, as a node has them when a recording begins.
#[derive(Clone, Debug)]
pub(crate) struct Start {
    /// For this many bitmaps is there room.
    pub(crate) slots: u32,
    pub(crate) size: Sector,
    /// The disk has room for this.
    pub(crate) room: Sector,
    pub(crate) uuids: Uuids110,
    /// The blocks that are marked, if they are known; else the first ones, as many as the generations say.
    pub(crate) marked: Option<Vec<(u64, u64)>>,
    pub(crate) good: bool,
    pub(crate) discard: bool,
    pub(crate) resync: ResyncConfig,
    pub(crate) on_io_error: OnIoError,
}

struct Disk {
    size: Sector,
    discard: bool,
    metadata: Vec<u8>,
}

pub(crate) struct Node {
    pub(crate) core: Resource,
    cfg: ResourceConfig,
    pub(crate) id: NodeId,
    /// The first one, which is the only one of most nodes.
    pub(crate) peer: NodeId,
    disks: Vec<(VolumeNr, Disk)>,
    pub(crate) sent: VecDeque<Sent>,
    pub(crate) notes: Vec<String>,
    tag: u64,
    /// Commands may fail, and digests are unknown.
    pub(crate) forgive: bool,
    /// What became of the last command.
    pub(crate) result: Option<Result<(), String>>,
    /// Disks take their time to open: those that are being opened.
    pub(crate) opening: Option<Vec<VolumeNr>>,
    /// Since when a link is sought.
    link_wanted: Option<Instant>,
    /// What the disks do, and until when.
    working: VecDeque<(Instant, DiskDone)>,
    /// What its disks hold.
    pub(crate) contents: Contents,
    /// Answers to challenges: what is hashed, and to what.
    pub(crate) hashes: Vec<(Vec<u8>, Vec<u8>)>,
    /// Where reads and writes of its disks fail.
    pub(crate) failing: Option<SectorRange>,
    /// Its cable is unplugged: nobody hears what it says.
    pub(crate) unplugged: bool,
}

impl Disk {
    fn new(node: NodeId, peers: &[NodeId], start: &Start) -> Disk {
        let al = meta::AlShape::DEFAULT;
        let geometry = meta::Geometry::new(start.slots, 4096, al).unwrap();
        let layout = meta::Layout::new(meta::MetaDisk::FlexExternal, geometry, META_DEVICE).unwrap();
        let mut sb = meta::Superblock::fresh(meta::Version::V09, &layout);
        sb.node_id = Some(node);
        (0..start.slots as u8).zip(peers).for_each(|(slot, peer)| sb.peers[peer.index()].slot = Some(slot));
        sb.current = start.uuids.current;
        sb.effective_size = start.size;
        for (n, generation) in start.uuids.tracked.into_iter().zip(&start.uuids.bitmaps) {
            sb.peers[n.index()].bitmap_uuid = *generation;
            sb.peers[n.index()].flags.put(meta::PeerFlags::NODE_EXISTS, !peers.contains(&n));
        }
        for (slot, generation) in sb.history.iter_mut().zip(&start.uuids.history) {
            *slot = *generation;
        }
        let good = !start.uuids.flags.contains(UuidFlags::INCONSISTENT);
        sb.flags.put(meta::DeviceFlags::CONSISTENT, good);
        sb.flags.put(meta::DeviceFlags::WAS_UP_TO_DATE, start.good);
        let crashed = start.uuids.flags.contains(UuidFlags::CRASHED_PRIMARY);
        sb.flags.put(meta::DeviceFlags::CRASHED_PRIMARY, crashed);
        let mut metadata = vec![0; META_DEVICE.0 as usize];
        let mut put = |at: u64, block: &[u8]| metadata[at as usize..][..block.len()].copy_from_slice(block);
        put(layout.superblock_at().0, &sb.emit()[..]);
        (0..al.blocks()).for_each(|i| put(layout.al_block_at(i).0, &meta::activity_log::block::initialized()[..]));
        let area = meta::BitmapArea::new(geometry, start.size);
        let mut bits = vec![units::BitSet::new(area.bits()); start.slots as usize];
        for slot in &mut bits {
            let first = vec![(0, start.uuids.dirty_bits)];
            start
                .marked
                .as_ref()
                .unwrap_or(&first)
                .iter()
                .for_each(|(from, to)| assert_eq!(slot.set_range(*from, *to), to - from));
        }
        for page in 0..area.pages() {
            let mut block = [0; meta::BLOCK_LEN];
            area.store(page, &bits, &mut block);
            put(layout.bitmap_page_at(page).0, &block);
        }
        Disk { size: start.room, discard: start.discard, metadata }
    }

    fn act(&mut self, action: MetaOp) -> Box<[u8]> {
        match action {
            MetaOp::Write { offset, bytes, .. } => {
                self.metadata[offset as usize..][..bytes.len()].copy_from_slice(&bytes);
                Box::default()
            }
            MetaOp::Read { offset, len } => self.metadata[offset as usize..][..len as usize].into(),
        }
    }
}

/// Does it read or write there?
fn touches(action: &DiskOp, failing: SectorRange) -> bool {
    let (sector, len) = match action {
        DiskOp::Read { sector, data } | DiskOp::Write { sector, data, .. } => (*sector, ByteLen(data.len())),
        DiskOp::ReadNew { sector, len, .. } | DiskOp::Discard { sector, len, .. } => (*sector, *len),
        DiskOp::WriteZeroes { sector, len, .. } => (*sector, *len),
        DiskOp::Flush => return false,
    };
    sector.0 < failing.end.0 && failing.start.0 < sector.0 + len.0.div_ceil(512)
}

impl Node {
    /// A node of two, in DRBD 9's dialect, with these disks, attached and waiting for its peer.
    pub(crate) fn new(
        node: NodeId,
        starts: &[(VolumeNr, Start)],
        now: Instant,
        change: impl Fn(&mut ConnectionConfig),
    ) -> Node {
        Node::among(&[NodeId::new(1 - node.index() as u8).unwrap()], node, starts, now, change)
    }

    /// The same with these peers.
    pub(crate) fn among(
        peers: &[NodeId],
        node: NodeId,
        starts: &[(VolumeNr, Start)],
        now: Instant,
        change: impl Fn(&mut ConnectionConfig),
    ) -> Node {
        Node::configured(peers, node, starts, now, |cfg| cfg.connections.iter_mut().for_each(&change))
    }

    /// The same with options of the resource.
    pub(crate) fn configured(
        peers: &[NodeId],
        node: NodeId,
        starts: &[(VolumeNr, Start)],
        now: Instant,
        change: impl FnOnce(&mut ResourceConfig),
    ) -> Node {
        let address = |port| SocketAddr::from(([127, 0, 0, 1], port));
        let connection = |peer: &NodeId| {
            let port = 7788 + 2 * peer.index() as u16;
            let mut connection = ConnectionConfig::new(*peer, "other", (address(port), address(port + 1)));
            connection.max_version = wire::Version::MAX.number();
            connection
        };
        let disk = |start: &Start| {
            let (resync, on_io_error) = (start.resync.clone(), start.on_io_error);
            DiskConfig { meta: meta::MetaDisk::FlexExternal, resync, on_io_error, ..DiskConfig::default() }
        };
        let mut cfg = ResourceConfig {
            name: "r0".to_owned(),
            node,
            on_no_data: urbd_core::OnNoData::IoError,
            on_suspended_outdated: urbd_core::OnSuspendedOutdated::default(),
            quorum: urbd_core::QuorumConfig::default(),
            handlers: Vec::new(),
            volumes: starts
                .iter()
                .map(|(volume, start)| VolumeConfig { volume: *volume, disk: Some(disk(start)) })
                .collect(),
            connections: peers.iter().map(connection).collect(),
        };
        change(&mut cfg);
        let disks = starts.iter().map(|(volume, start)| (*volume, Disk::new(node, peers, start))).collect();
        let core = Resource::new(cfg.clone(), 2 * node.index() as u64 + 8);
        let mut out = Node {
            core,
            cfg,
            id: node,
            peer: peers[0],
            disks,
            sent: VecDeque::new(),
            notes: Vec::new(),
            tag: 0,
            forgive: false,
            result: None,
            opening: None,
            link_wanted: None,
            working: VecDeque::new(),
            hashes: Vec::new(),
            contents: Contents::default(),
            failing: None,
            unplugged: false,
        };
        let discard_my_data = starts.iter().any(|(_, s)| s.uuids.flags.contains(UuidFlags::DISCARD_MY_DATA));
        out.up(now, discard_my_data);
        out
    }

    /// Takes its disks into use, and waits for its peers.
    fn up(&mut self, now: Instant, discard_my_data: bool) {
        for (n, VolumeConfig { volume, .. }) in self.cfg.volumes.iter().filter(|v| v.disk.is_some()).enumerate() {
            self.core.on_command(now, 100 + n as u64, Command::Attach { volume: *volume });
        }
        let tentative = false;
        for peer in self.cfg.connections.iter().map(|c| c.peer).collect::<Vec<_>>() {
            self.core.on_command(now, 99, Command::Connect { peer, discard_my_data, tentative });
        }
        self.turn(now);
    }

    /// `down`: nothing is left of it but what is on its disks.
    pub(crate) fn down(&mut self, now: Instant) {
        self.command(now, Command::Down(false));
        self.turn(now);
    }

    /// Its power fails: nobody hears anything from it.
    pub(crate) fn lose_power(&mut self) {
        self.core = Resource::new(self.cfg.clone(), 2 * self.id.index() as u64 + 209);
        self.working.clear();
        self.sent.clear();
    }

    /// Its options are changed while it runs.
    pub(crate) fn reconfigure(&mut self, now: Instant, change: impl FnOnce(&mut ResourceConfig)) {
        change(&mut self.cfg);
        self.command(now, Command::ChangeOptions(Box::new(self.cfg.clone())));
        self.turn(now);
    }

    /// Its configuration does not have this peer any more.
    pub(crate) fn without(&mut self, peer: NodeId) {
        self.cfg.connections.retain(|c| c.peer != peer);
    }

    /// It comes up anew.
    pub(crate) fn come_up(&mut self, now: Instant) {
        self.core = Resource::new(self.cfg.clone(), 2 * self.id.index() as u64 + 109);
        self.working.clear();
        self.up(now, false);
    }

    /// Does it seek a link by now?
    pub(crate) fn wants_link(&self, now: Instant) -> bool {
        self.link_wanted.is_some_and(|at| at <= now)
    }

    /// Somebody has told the node to connect with that peer again, if it does not seek it any more.
    pub(crate) fn connect_if_alone(&mut self, now: Instant, peer: NodeId) {
        let snapshot = self.core.snapshot();
        let towards = snapshot.connections.iter().find(|c| c.peer == peer).expect("a peer");
        if towards.state == ConnectionState::StandAlone {
            self.command(now, Command::Connect { peer, discard_my_data: false, tentative: false });
            self.turn(now);
        }
    }

    pub(crate) fn link_up(&mut self, now: Instant, link: LinkUp) {
        self.link_up_to(now, self.peer, link);
    }

    pub(crate) fn link_up_to(&mut self, now: Instant, peer: NodeId, link: LinkUp) {
        self.link_wanted = None;
        self.core.on_link_up(now, peer, link);
        self.turn(now);
    }

    pub(crate) fn hear(&mut self, now: Instant, stream: Socket, volume: VolumeNr, packet: Packet) {
        self.hear_from(self.peer, now, stream, volume, packet);
    }

    pub(crate) fn hear_from(&mut self, peer: NodeId, now: Instant, stream: Socket, volume: VolumeNr, packet: Packet) {
        let payload = match packet.payload_len() as u32 {
            0 => Segments::None,
            len => Segments::One(BufRef { id: 1, offset: 0, len }),
        };
        self.core.on_packet(now, peer, stream, volume, packet, payload);
        self.turn(now);
    }

    pub(crate) fn command(&mut self, now: Instant, command: Command) {
        self.core.on_command(now, 1, command);
    }

    /// `resize --size`: the recorded node told nobody of its limit before.
    pub(crate) fn resize(&mut self, now: Instant, volume: VolumeNr, limit: Sector, flags: ResizeFlags) {
        if limit.0 > 0 {
            let of_volume = self.cfg.volumes.iter_mut().filter(|v| v.volume == volume);
            of_volume.filter_map(|v| v.disk.as_mut()).for_each(|disk| disk.size = Some(limit.to_bytes()));
            self.command(now, Command::ChangeOptions(Box::new(self.cfg.clone())));
            self.turn(now);
            self.sent.retain(|sent| !matches!(sent.packet, Packet::SyncParam(_)));
        }
        self.command(now, Command::Resize { volume, flags });
    }

    /// A client opens the volume, and changes something there.
    pub(crate) fn write(&mut self, now: Instant, volume: VolumeNr, kind: RequestKind, sector: Sector, len: u32) {
        self.tag += 1;
        let data = match kind {
            RequestKind::Write { .. } | RequestKind::Read => Segments::One(BufRef { id: 2, offset: 0, len }),
            _ => Segments::None,
        };
        let len = ByteLen(len.into());
        self.core.on_openers(now, volume, Openers { writers: 1, readers: 0 });
        self.core.on_request(now, BlockRequest { tag: self.tag, volume, kind, sector, len, data });
    }

    pub(crate) fn close(&mut self, now: Instant, volume: VolumeNr) {
        self.core.on_openers(now, volume, Openers::default());
    }

    /// When something happens by itself, at the earliest.
    pub(crate) fn next(&self) -> Option<Instant> {
        self.core.poll_timeout().into_iter().chain(self.working.front().map(|(at, _)| *at)).min()
    }

    /// What happens by itself up to this time.
    pub(crate) fn pass(&mut self, until: Instant) {
        while let Some(at) = self.next().filter(|at| *at <= until) {
            match self.working.front().filter(|(done, _)| *done <= at).cloned() {
                Some((_, done)) => {
                    self.working.pop_front();
                    self.core.on_disk_done(at, done);
                }
                None => self.core.on_time(at),
            }
            self.turn(at);
        }
    }

    /// Ends the turn, and does what is to be done, until nothing follows any more.
    pub(crate) fn turn(&mut self, now: Instant) {
        self.core.on_turn_end(now);
        while let Some(effect) = self.core.poll_effect() {
            if self.carry_out(now, effect) {
                self.core.on_turn_end(now);
            }
        }
    }

    fn disk(&mut self, volume: VolumeNr) -> &mut Disk {
        &mut self.disks.iter_mut().find(|(nr, _)| *nr == volume).expect("a volume of the recording").1
    }

    fn opened(&mut self, now: Instant, volume: VolumeNr) {
        let disk = self.disk(volume);
        let opened = OpenedDisk {
            backing: disk.size.to_bytes(),
            meta_device: META_DEVICE,
            can_discard: disk.discard,
            discard_zeroes: true,
            write_through: false,
            block_size: 512,
        };
        self.core.on_disk_opened(now, volume, Ok(opened));
    }

    /// The disks that took their time are open.
    pub(crate) fn open_all(&mut self, now: Instant) {
        for volume in self.opening.take().into_iter().flatten() {
            self.opened(now, volume);
        }
    }

    /// True: the core was told something.
    fn carry_out(&mut self, now: Instant, effect: Effect) -> bool {
        match effect {
            Effect::Send { .. } if self.unplugged => {}
            Effect::Send { peer, stream, volume, packet, .. } => {
                self.sent.push_back(Sent { peer, stream, volume, packet });
            }
            Effect::OpenDisk { volume } => {
                let waits = self.opening.as_mut().map(|opening| opening.push(volume)).is_some();
                if !waits {
                    self.opened(now, volume);
                }
                return !waits;
            }
            Effect::Disk { op, action, .. } => {
                let data = match action {
                    DiskOp::ReadNew { sector, len, .. } => {
                        Segments::One(BufRef { id: sector.0 as u32, offset: 0, len: len.0 as u32 })
                    }
                    _ => Segments::None,
                };
                let zeroes = match action {
                    DiskOp::ReadNew { sector, len, detect_zeroes: true } => self.contents.is_zeroes(sector, len),
                    _ => false,
                };
                let fails = self.failing.is_some_and(|failing| touches(&action, failing));
                let result = if fails { Err(DiskError::Io) } else { Ok(()) };
                self.working.push_back((now + DISK, DiskDone { op, result, data, zeroes }));
            }
            Effect::Digest { op, data: Segments::One(read), piece, .. } => {
                let at = |n: u64| u64::from(read.id) + n * piece / 512;
                let digests: Vec<_> =
                    (0..u64::from(read.len).div_ceil(piece)).map(|n| self.contents.digest(at(n))).collect();
                self.core.on_digests(now, op, &digests);
                return true;
            }
            Effect::Meta { op, volume, action } => {
                let result = Ok(self.disk(volume).act(action));
                self.core.on_meta_done(now, MetaDone { op, result });
                return true;
            }
            Effect::Hmac { peer, token, .. } if self.forgive => {
                self.core.on_hmac(now, peer, token, None);
                return true;
            }
            Effect::Hmac { peer, token, message, .. } => {
                let known = self.hashes.iter().find(|(hashed, _)| *hashed == message);
                let mac = known.unwrap_or_else(|| panic!("this is not what is hashed: {message:02x?}")).1.clone();
                self.core.on_hmac(now, peer, token, Some(mac));
                return true;
            }
            Effect::Log(notice) => self.notes.push(format!("{}: {}", notice.reason, notice.text)),
            Effect::CommandDone { result, .. } if self.forgive => self.result = Some(result.map_err(|e| e.text)),
            Effect::Connect { not_before, .. } => self.link_wanted = Some(not_before),
            Effect::CommandDone { id, result } => result.unwrap_or_else(|e| panic!("command {id}: {e}")),
            Effect::CloseLink { .. } => {
                self.link_wanted = None;
                self.notes.push("link closed".to_owned());
            }
            _ => {}
        }
        false
    }

    /// Is a resync with a peer going on?
    pub(crate) fn resyncs(&self, peer: NodeId) -> bool {
        let snapshot = self.core.snapshot();
        let towards = snapshot.connections.iter().find(|c| c.peer == peer).expect("a peer");
        let replication = towards.peer_devices[0].replication;
        (wire::ConnState::SyncSource..=wire::ConnState::PausedSyncT).contains(&replication)
    }

    /// Of the first device.
    pub(crate) fn size(&self) -> Sector {
        self.core.snapshot().devices[0].size.to_sectors_floor()
    }

    /// Says what it was found to be, for messages.
    pub(crate) fn state(&self) -> String {
        self.state_towards(0)
    }

    /// The same towards the peer in this place.
    pub(crate) fn state_towards(&self, place: usize) -> String {
        let snapshot = self.core.snapshot();
        let connection = &snapshot.connections[place];
        let pair = &connection.peer_devices[0];
        let disk = snapshot.devices[0].disk;
        format!(
            "{:?} {}/{} {} {disk}/{}",
            connection.state, snapshot.role, connection.role, pair.replication, pair.peer_disk
        )
    }
}

/// Cores that talk to each other at once.
pub(crate) struct Together {
    nodes: Vec<Node>,
    now: Instant,
    /// What the one says to the other one is lost.
    lost: Vec<[usize; 2]>,
    /// So is this, on its way from the one to the other one.
    pub(crate) swallowed: fn([usize; 2], &Packet) -> bool,
    /// What was said since somebody has begun to listen.
    pub(crate) overheard: Option<Vec<Packet>>,
}

impl Together {
    /// Two, connected.
    pub(crate) fn new(
        now: Instant,
        start: impl Fn(NodeId) -> Vec<(VolumeNr, Start)>,
        change: &impl Fn(&mut ConnectionConfig),
    ) -> Together {
        Together::of(2, now, start, change)
    }

    /// So many, each connected with each.
    pub(crate) fn of(
        count: u8,
        now: Instant,
        start: impl Fn(NodeId) -> Vec<(VolumeNr, Start)>,
        change: &impl Fn(&mut ConnectionConfig),
    ) -> Together {
        Together::unlike(count, now, start, &|_, c| change(c))
    }

    /// The same, each with connections of its own.
    pub(crate) fn unlike(
        count: u8,
        now: Instant,
        start: impl Fn(NodeId) -> Vec<(VolumeNr, Start)>,
        change: &impl Fn(NodeId, &mut ConnectionConfig),
    ) -> Together {
        let all = |own: NodeId, cfg: &mut ResourceConfig| cfg.connections.iter_mut().for_each(|c| change(own, c));
        let mut out = Together::apart(count, now, start, all);
        let pairs = (0..usize::from(count)).flat_map(|low| (low + 1..usize::from(count)).map(move |high| (low, high)));
        pairs.for_each(|(low, high)| out.join(low, high));
        out
    }

    /// So many that are not connected, each with options of its own.
    pub(crate) fn apart(
        count: u8,
        now: Instant,
        start: impl Fn(NodeId) -> Vec<(VolumeNr, Start)>,
        change: impl Fn(NodeId, &mut ResourceConfig),
    ) -> Together {
        let ids: Vec<_> = (0..count).filter_map(NodeId::new).collect();
        let others = |n: NodeId| ids.iter().copied().filter(|other| *other != n).collect::<Vec<_>>();
        let node = |n: &NodeId| Node::configured(&others(*n), *n, &start(*n), now, |cfg| change(*n, cfg));
        let nodes = ids.iter().map(node).collect();
        Together { nodes, now, lost: Vec::new(), swallowed: |_, _| false, overheard: None }
    }

    /// The link between two of them comes up.
    pub(crate) fn join(&mut self, low: usize, high: usize) {
        self.lost.retain(|pair| *pair != [low, high]);
        let (a, b) = (self.nodes[low].id, self.nodes[high].id);
        let link = |n: NodeId, resolve_conflicts| LinkUp { resolve_conflicts, challenge: [n.index() as u8; 64] };
        self.nodes[low].link_up_to(self.now, b, link(a, false));
        self.nodes[high].link_up_to(self.now, a, link(b, true));
        self.talk();
    }

    /// The link between two of them goes.
    pub(crate) fn cut(&mut self, one: usize, other: usize) {
        for [n, m] in [[one, other], [other, one]] {
            let peer = self.nodes[m].id;
            self.nodes[n].core.on_link_down(self.now, peer, LinkDown::Closed);
            self.nodes[n].turn(self.now);
            self.nodes[n].sent.retain(|sent| sent.peer != peer);
        }
        self.talk();
    }

    /// Nothing that the one says comes to the other one any more.
    pub(crate) fn lose(&mut self, from: usize, to: usize) {
        self.lost.push([from, to]);
    }

    /// Nothing is lost any more.
    pub(crate) fn hear_again(&mut self) {
        self.lost.clear();
    }

    /// All get other options.
    pub(crate) fn reconfigure(&mut self, change: fn(&mut ResourceConfig)) {
        self.now = self.now + Duration::from_millis(1);
        let now = self.now;
        self.nodes.iter_mut().for_each(|node| node.reconfigure(now, change));
        self.talk();
    }

    /// Commands may fail from now on.
    pub(crate) fn forgive(&mut self) {
        self.nodes.iter_mut().for_each(|node| node.forgive = true);
    }

    pub(crate) fn act(&mut self, node: usize, act: impl FnOnce(&mut Node, Instant)) {
        self.now = self.now + Duration::from_millis(1);
        act(&mut self.nodes[node], self.now);
        self.nodes[node].turn(self.now);
        self.talk();
    }

    /// So many milliseconds pass.
    pub(crate) fn pass(&mut self, millis: u64) {
        for _ in 0..millis {
            self.now = self.now + Duration::from_millis(1);
            let now = self.now;
            self.nodes.iter_mut().for_each(|node| node.pass(now));
            self.talk();
        }
    }

    pub(crate) fn role(&self, node: usize) -> wire::Role {
        self.nodes[node].core.snapshot().role
    }

    pub(crate) fn disk(&self, node: usize) -> wire::DiskState {
        self.nodes[node].core.snapshot().devices[0].disk
    }

    pub(crate) fn is_connected(&self, node: usize, peer: usize) -> bool {
        let snapshot = self.nodes[node].core.snapshot();
        let towards = snapshot.connections.iter().find(|c| c.peer == self.nodes[peer].id);
        towards.expect("a peer").state == urbd_core::ConnectionState::Connected
    }

    pub(crate) fn has_quorum(&self, node: usize) -> bool {
        self.nodes[node].core.snapshot().devices[0].no_quorum.is_none()
    }

    pub(crate) fn replication(&self, node: usize, peer: usize) -> wire::ConnState {
        let snapshot = self.nodes[node].core.snapshot();
        let towards = snapshot.connections.iter().find(|c| c.peer == self.nodes[peer].id);
        towards.expect("a peer").peer_devices[0].replication
    }

    /// Has the node said why it did something, in these words?
    pub(crate) fn said(&self, node: usize, note: &str) -> bool {
        self.nodes[node].notes.iter().any(|said| said.starts_with(note))
    }

    pub(crate) fn size(&self, node: usize) -> Sector {
        self.nodes[node].size()
    }

    /// What became of a node's last command, if it has ended.
    pub(crate) fn result(&mut self, node: usize) -> Option<Result<(), String>> {
        self.nodes[node].result.take()
    }

    /// What it has said, for messages.
    pub(crate) fn notes(&self, node: usize) -> String {
        format!("{:#?}", self.nodes[node].notes)
    }

    /// What is marked anywhere.
    pub(crate) fn marked(&self) -> u64 {
        [[0, 1], [0, 2], [1, 2]].iter().map(|[one, other]| self.marked_between(*one, *other)).sum()
    }

    pub(crate) fn marked_between(&self, one: usize, other: usize) -> u64 {
        self.marks(one, other) + self.marks(other, one)
    }

    /// What the one has marked for the other one, in bytes.
    pub(crate) fn marks(&self, one: usize, other: usize) -> u64 {
        let snapshot = self.nodes[one].core.snapshot();
        let towards = snapshot.connections.iter().find(|c| c.peer == self.nodes[other].id).expect("a peer");
        towards.peer_devices[0].out_of_sync.0
    }

    pub(crate) fn command(&mut self, node: usize, command: Command) {
        self.now = self.now + Duration::from_millis(1);
        self.nodes[node].command(self.now, command);
        self.nodes[node].turn(self.now);
        self.talk();
    }

    /// What all say is heard, until nobody says anything more.
    fn talk(&mut self) {
        loop {
            let take = |node: &mut Node| (node.id, std::mem::take(&mut node.sent));
            let said: Vec<_> = self.nodes.iter_mut().map(take).collect();
            if said.iter().all(|(_, said)| said.is_empty()) {
                return;
            }
            self.now = self.now + DISK;
            self.nodes.iter_mut().for_each(|node| node.pass(self.now));
            for (from, said) in said {
                for Sent { peer, stream, volume, packet } in said {
                    self.overheard.iter_mut().for_each(|all| all.push(packet.clone()));
                    let way = [from.index(), peer.index()];
                    if self.lost.contains(&way) || (self.swallowed)(way, &packet) {
                        continue;
                    }
                    self.nodes[peer.index()].hear_from(from, self.now, stream, volume, packet);
                }
            }
        }
    }

    /// Blocks that the one has marked for the other one.
    pub(crate) fn marked_by(&self, node: usize, peer: usize) -> u64 {
        self.marks(node, peer) / 4096
    }

    /// One of them goes on alone.
    pub(crate) fn leave(mut self, node: u8) -> Node {
        self.nodes.remove(usize::from(node))
    }
}
