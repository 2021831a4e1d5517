//! What a write costs the core, in things that can be counted: allocations, packets, disk operations, metadata
//! writes. Two cores talk to each other in memory; a turn of one is everything that waits for it at that time.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::collections::VecDeque;
use std::net::SocketAddr;
use units::{ByteLen, Duration, Generation, Instant, NodeId, Rng, Sector, VolumeNr};
use urbd_core::{
    BlockRequest, BufRef, Command, ConnectionConfig, DiskConfig, DiskDone, DiskOp, Effect, LinkUp, MetaDone, MetaOp,
    OpenedDisk, RequestKind, Resource, ResourceConfig, Segments, VolumeConfig,
};
use wire::{Packet, Socket};

struct Counting;

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

// SAFETY: all work is the system allocator's; the counter is a plain cell of this thread that does not allocate.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.with(|n| n.set(n.get() + 1));
        // SAFETY: as the caller promises.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: as the caller promises.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

const VOLUME: VolumeNr = VolumeNr(0);
/// Of the backing disks.
const SIZE: ByteLen = ByteLen(4 << 30);

#[derive(Clone, Copy, Default, Debug, PartialEq, Eq)]
struct Counts {
    data_packets: u64,
    barriers: u64,
    acks: u64,
    disk_writes: u64,
    flushes: u64,
    meta_writes: u64,
    meta_bytes: u64,
    completed: u64,
    /// Made inside the core.
    allocations: u64,
}

struct Node {
    core: Resource,
    peer: NodeId,
    layout: meta::Layout,
    /// From the first byte of the bitmap on.
    metadata: Vec<u8>,
    write_through: bool,
    disk_done: Vec<DiskDone>,
    meta_done: Vec<MetaDone>,
    inbox: VecDeque<(Socket, VolumeNr, Packet, Segments)>,
    link_wanted: bool,
    counts: Counts,
}

struct Pair {
    now: Instant,
    nodes: [Node; 2],
    in_flight: u64,
    next_tag: u64,
}

fn node(n: u8, write_through: bool) -> Node {
    let (own, peer) = (NodeId::new(n).unwrap(), NodeId::new(1 - n).unwrap());
    let geometry = meta::Geometry::new(1, 4096, meta::AlShape::DEFAULT).unwrap();
    let layout = meta::Layout::new(meta::MetaDisk::Internal, geometry, SIZE).unwrap();
    let mut sb = meta::Superblock::fresh(meta::Version::V08, &layout);
    sb.peers[meta::Superblock::V08_PEER].slot = Some(0);
    sb.current = Generation(0x1000);
    sb.flags.put(meta::DeviceFlags::CONSISTENT, true);
    sb.flags.put(meta::DeviceFlags::WAS_UP_TO_DATE, true);
    sb.effective_size = layout.capacity();
    let from = layout.bitmap_at().0;
    let mut metadata = vec![0; (SIZE.0 - from) as usize];
    let at = (layout.superblock_at().0 - from) as usize;
    metadata[at..at + meta::BLOCK_LEN].copy_from_slice(&sb.emit()[..]);
    let address = |port| SocketAddr::from(([127, 0, 0, 1], port));
    let cfg = ResourceConfig {
        name: "r0".to_owned(),
        node: own,
        on_no_data: urbd_core::OnNoData::IoError,
        fence_handler: false,
        volumes: vec![VolumeConfig { volume: VOLUME, disk: Some(DiskConfig::default()) }],
        connections: vec![ConnectionConfig::new(peer, "other", (address(7788), address(7789)))],
    };
    Node {
        core: Resource::new(cfg, u64::from(n) + 7),
        peer,
        layout,
        metadata,
        write_through,
        disk_done: Vec::new(),
        meta_done: Vec::new(),
        inbox: VecDeque::new(),
        link_wanted: false,
        counts: Counts::default(),
    }
}

impl Node {
    /// Runs a part of the core and counts what it allocates.
    fn count<R>(&mut self, f: impl FnOnce(&mut Resource) -> R) -> R {
        let before = ALLOCATIONS.with(Cell::get);
        let result = f(&mut self.core);
        self.counts.allocations += ALLOCATIONS.with(Cell::get) - before;
        result
    }

    /// One turn; what is sent goes to `to`.
    fn turn(&mut self, now: Instant, to: &mut VecDeque<(Socket, VolumeNr, Packet, Segments)>) {
        let peer = self.peer;
        let (mut disk, mut meta) = (std::mem::take(&mut self.disk_done), std::mem::take(&mut self.meta_done));
        disk.drain(..).for_each(|done| self.count(|core| core.on_disk_done(now, done)));
        meta.drain(..).for_each(|done| self.count(|core| core.on_meta_done(now, done)));
        (self.disk_done, self.meta_done) = (disk, meta);
        while let Some((stream, volume, packet, payload)) = self.inbox.pop_front() {
            self.count(|core| core.on_packet(now, peer, stream, volume, packet, payload));
        }
        if self.core.poll_timeout().is_some_and(|at| at <= now) {
            self.count(|core| core.on_time(now));
        }
        self.count(|core| core.on_turn_end(now));
        while let Some(effect) = self.count(Resource::poll_effect) {
            self.carry_out(now, effect, to);
        }
    }

    fn carry_out(&mut self, now: Instant, effect: Effect, to: &mut VecDeque<(Socket, VolumeNr, Packet, Segments)>) {
        match effect {
            Effect::Send { stream, volume, packet, payload, .. } => {
                match &packet {
                    Packet::Data(_) => self.counts.data_packets += 1,
                    Packet::Barrier(_) => self.counts.barriers += 1,
                    Packet::WriteAck(_) => self.counts.acks += 1,
                    _ => {}
                }
                to.push_back((stream, volume, packet, payload));
            }
            Effect::Connect { .. } => self.link_wanted = true,
            Effect::OpenDisk { volume } => {
                let opened = OpenedDisk {
                    backing: SIZE,
                    meta_device: SIZE,
                    can_discard: true,
                    discard_zeroes: true,
                    write_through: self.write_through,
                    block_size: 512,
                };
                self.core.on_disk_opened(now, volume, Ok(opened));
                self.core.on_turn_end(now);
            }
            Effect::Disk { op, action, .. } => {
                match action {
                    DiskOp::Write { .. } => self.counts.disk_writes += 1,
                    DiskOp::Flush => self.counts.flushes += 1,
                    other => panic!("{other:?} in a run of writes"),
                }
                self.disk_done.push(DiskDone { op, result: Ok(()), data: Segments::None, zeroes: false });
            }
            Effect::Meta { op, action, .. } => {
                let result = Ok(self.metadata(action));
                self.meta_done.push(MetaDone { op, result });
            }
            Effect::Complete { result, .. } => {
                result.expect("writes succeed");
                self.counts.completed += 1;
            }
            Effect::CommandDone { result, .. } => {
                result.expect("commands succeed");
            }
            _ => {}
        }
    }

    fn metadata(&mut self, action: MetaOp) -> Box<[u8]> {
        let from = self.layout.bitmap_at().0;
        match action {
            MetaOp::Write { offset, bytes, .. } => {
                self.counts.meta_writes += 1;
                self.counts.meta_bytes += bytes.len() as u64;
                let at = (offset - from) as usize;
                self.metadata[at..at + bytes.len()].copy_from_slice(&bytes);
                Box::default()
            }
            MetaOp::Read { offset, len } => self.metadata[(offset - from) as usize..][..len as usize].into(),
        }
    }
}

impl Pair {
    /// Connected, both UpToDate, the first one Primary.
    fn new(write_through: bool) -> Pair {
        let mut pair = Pair {
            now: Instant(1_000_000_000),
            nodes: [node(0, write_through), node(1, write_through)],
            in_flight: 0,
            next_tag: 0,
        };
        let now = pair.now;
        for n in &mut pair.nodes {
            n.core.on_command(now, 1, Command::Attach { volume: VOLUME });
            let (peer, discard_my_data, tentative) = (n.peer, false, false);
            n.core.on_command(now, 2, Command::Connect { peer, discard_my_data, tentative });
        }
        pair.run(20);
        assert!(pair.nodes.iter().all(|n| n.link_wanted));
        for (i, n) in pair.nodes.iter_mut().enumerate() {
            let link = LinkUp { resolve_conflicts: i == 0, challenge: [i as u8; 64] };
            n.core.on_link_up(pair.now, n.peer, link);
        }
        pair.run(100);
        let primary = Command::Primary { force: false };
        pair.nodes[0].core.on_command(pair.now, 3, primary);
        pair.run(100);
        pair
    }

    /// Turns of both nodes, one microsecond each.
    fn run(&mut self, turns: usize) {
        for _ in 0..turns {
            self.now = self.now + Duration(1000);
            let [a, b] = &mut self.nodes;
            a.turn(self.now, &mut b.inbox);
            b.turn(self.now, &mut a.inbox);
        }
    }

    fn write(&mut self, block: u64) {
        let data = Segments::One(BufRef { id: self.next_tag as u32, offset: 0, len: 4096 });
        let (sector, len) = (Sector(block * 8), ByteLen(4096));
        let kind = RequestKind::Write { fua: false };
        let request = BlockRequest { tag: self.next_tag, volume: VOLUME, kind, sector, len, data };
        self.next_tag += 1;
        self.in_flight += 1;
        let now = self.now;
        self.nodes[0].count(|core| core.on_request(now, request));
    }

    /// `n` writes of 4 KiB, `depth` in flight, to the blocks that `next` names. What they cost both nodes.
    fn writes(&mut self, n: u64, depth: u64, mut next: impl FnMut() -> u64) -> [Counts; 2] {
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

impl std::ops::Sub for Counts {
    type Output = Counts;

    fn sub(self, o: Counts) -> Counts {
        Counts {
            data_packets: self.data_packets - o.data_packets,
            barriers: self.barriers - o.barriers,
            acks: self.acks - o.acks,
            disk_writes: self.disk_writes - o.disk_writes,
            flushes: self.flushes - o.flushes,
            meta_writes: self.meta_writes - o.meta_writes,
            meta_bytes: self.meta_bytes - o.meta_bytes,
            completed: self.completed - o.completed,
            allocations: self.allocations - o.allocations,
        }
    }
}

/// Random blocks in 64 extents, never neighbours.
fn random_blocks() -> impl FnMut() -> u64 {
    let mut rng = Rng::new(5);
    move || rng.next_u64() % (32 * 1024) * 2
}

#[test]
fn a_random_write_allocates_nothing() {
    for depth in [1, 64] {
        let mut pair = Pair::new(true);
        // Extents become hot and containers grow to their size.
        pair.writes(20_000, 2 * depth, random_blocks());
        let [a, b] = pair.writes(5_000, depth, random_blocks());
        assert_eq!((a.allocations, b.allocations), (0, 0), "at depth {depth}: {a:?} {b:?}");
        assert_eq!((a.meta_writes, b.meta_writes), (0, 0), "hot extents need no metadata");
        assert_eq!((a.disk_writes, b.disk_writes), (a.data_packets, a.data_packets));
    }
}

#[test]
fn at_depth_one_barriers_travel_with_writes() {
    let mut pair = Pair::new(true);
    pair.writes(100, 1, random_blocks());
    let [a, b] = pair.writes(1_000, 1, random_blocks());
    assert!((999..=1_001).contains(&a.barriers) && b.acks == 1_000, "{a:?} {b:?}");
    assert_eq!((a.flushes, b.flushes), (0, 0), "no volatile cache, no flush");
    // The last barrier leaves by itself when nothing follows.
    let before = pair.nodes[0].counts.barriers;
    pair.run(1_100);
    assert_eq!(pair.nodes[0].counts.barriers, before + 1);
}

#[test]
fn deep_queues_share_epochs() {
    let mut pair = Pair::new(false);
    pair.writes(1_000, 64, random_blocks());
    let [a, b] = pair.writes(6_400, 64, random_blocks());
    assert!(a.barriers <= 200 && b.flushes <= 200, "{a:?} {b:?}");
}

#[test]
fn sequential_writes_are_merged() {
    let mut pair = Pair::new(true);
    let mut block = 0..;
    let [a, b] = pair.writes(16_384, 64, || block.next().unwrap());
    assert!(a.data_packets * 10 < 3 * a.completed, "packets per write: {a:?}");
    assert_eq!((a.disk_writes, b.disk_writes, b.acks), (a.data_packets, a.data_packets, a.data_packets));
}

#[test]
fn interleaved_streams_are_merged() {
    let mut pair = Pair::new(true);
    // Four writers of one sequential stream each, their requests mixed.
    let mut n = 0;
    let [a, _] = pair.writes(16_384, 64, || {
        n += 1;
        (n % 4) * (1 << 16) + n / 4
    });
    assert!(a.data_packets * 10 < 3 * a.completed, "packets per write: {a:?}");
}

#[test]
fn a_sequential_stream_needs_few_metadata_writes() {
    let mut pair = Pair::new(true);
    let mut block = 0..;
    let [a, b] = pair.writes(1 << 18, 64, || block.next().unwrap());
    assert!(a.meta_writes <= 24, "for one GiB: {a:?}");
    assert_eq!(b.meta_writes, 0, "{b:?}");
}
