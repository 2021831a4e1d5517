//! Two cores beside each other, for a profiler that counts instructions: 4 KiB random writes, so many in flight.
//!
//! `write_cost WRITES DEPTH`: all that belongs to the Primary happens within `primary`, the peer's within `secondary`.
//! Links, disks and applications cost next to nothing here, so that the rest is the core. `tests/test_write_cost.py`
//! counts with callgrind.

use std::collections::VecDeque;
use std::net::SocketAddr;
use units::{ByteLen, Duration, Generation, Instant, NodeId, Rng, Sector, VolumeNr};
use urbd_core::{
    BlockRequest, BufRef, Command, ConnectionConfig, DiskConfig, DiskDone, Effect, LinkUp, MetaDone, MetaOp, OnNoData,
    OpenedDisk, RequestKind, Resource, ResourceConfig, Segments, VolumeConfig,
};
use wire::{Packet, Socket};

const VOLUME: VolumeNr = VolumeNr(0);
const SIZE: ByteLen = ByteLen(4 << 30);
const TURN: Duration = Duration(1000);
/// Writes that make extents hot and containers large, before those that are asked for.
const FIRST: u64 = 10_000;

type Stream = VecDeque<(Socket, VolumeNr, Packet, Segments)>;

struct Node {
    core: Resource,
    peer: NodeId,
    layout: meta::Layout,
    /// From the first byte of the metadata on.
    metadata: Vec<u8>,
    disk_done: Vec<DiskDone>,
    meta_done: Vec<MetaDone>,
    inbox: Stream,
    completed: u64,
}

fn metadata_at(layout: &meta::Layout) -> u64 {
    layout.superblock_at().0.min(layout.al_at().0).min(layout.bitmap_at().0)
}

/// With a disk that is UpToDate.
fn node(n: u8) -> Node {
    let [own, peer] = [n, 1 - n].map(|n| NodeId::new(n).expect("a node id"));
    let al = meta::AlShape::DEFAULT;
    let geometry = meta::Geometry::new(1, 4096, al).expect("a geometry");
    let layout = meta::Layout::new(meta::MetaDisk::Internal, geometry, SIZE).expect("a layout");
    let mut sb = meta::Superblock::fresh(meta::Version::V08, &layout);
    sb.peers[meta::Superblock::V08_PEER].slot = Some(0);
    sb.current = Generation(0x1000);
    sb.flags.put(meta::DeviceFlags::CONSISTENT, true);
    sb.flags.put(meta::DeviceFlags::WAS_UP_TO_DATE, true);
    sb.effective_size = layout.capacity();
    let from = metadata_at(&layout);
    let bitmap_end = layout.bitmap_at().0 + geometry.bitmap_bytes(sb.effective_size);
    let end = bitmap_end.max(layout.superblock_at().0 + 4096).max(layout.al_at().0 + al.bytes().0);
    let mut metadata = vec![0; (end - from) as usize];
    let mut put = |at: u64, block: &[u8]| metadata[(at - from) as usize..][..block.len()].copy_from_slice(block);
    put(layout.superblock_at().0, &sb.emit()[..]);
    (0..al.blocks()).for_each(|i| put(layout.al_block_at(i).0, &meta::activity_log::block::initialized()[..]));
    let address = |port| SocketAddr::from(([127, 0, 0, 1], port));
    let cfg = ResourceConfig {
        name: "r0".to_owned(),
        node: own,
        on_no_data: OnNoData::IoError,
        on_suspended_outdated: urbd_core::OnSuspendedOutdated::default(),
        quorum: urbd_core::QuorumConfig::default(),
        handlers: Vec::new(),
        volumes: vec![VolumeConfig { volume: VOLUME, disk: Some(DiskConfig::default()) }],
        connections: vec![ConnectionConfig::new(peer, "other", (address(7788), address(7789)))],
    };
    let core = Resource::new(cfg, u64::from(n) + 7);
    let (disk_done, meta_done, inbox) = (Vec::new(), Vec::new(), VecDeque::new());
    Node { core, peer, layout, metadata, disk_done, meta_done, inbox, completed: 0 }
}

impl Node {
    #[inline(always)]
    fn turn(&mut self, now: Instant, asked: &mut Vec<BlockRequest>, to: &mut Stream) {
        let mut disk_done = std::mem::take(&mut self.disk_done);
        for done in disk_done.drain(..) {
            self.core.on_disk_done(now, done);
        }
        self.disk_done = disk_done;
        for done in std::mem::take(&mut self.meta_done) {
            self.core.on_meta_done(now, done);
        }
        while let Some((stream, volume, packet, payload)) = self.inbox.pop_front() {
            self.core.on_packet(now, self.peer, stream, volume, packet, payload);
        }
        for request in asked.drain(..) {
            self.core.on_request(now, request);
        }
        if self.core.poll_timeout().is_some_and(|at| at <= now) {
            self.core.on_time(now);
        }
        self.core.on_turn_end(now);
        while let Some(effect) = self.core.poll_effect() {
            self.carry_out(now, effect, to);
        }
    }

    fn carry_out(&mut self, now: Instant, effect: Effect, to: &mut Stream) {
        match effect {
            Effect::Send { stream, volume, packet, payload, .. } => to.push_back((stream, volume, packet, payload)),
            Effect::Disk { op, .. } => {
                self.disk_done.push(DiskDone { op, result: Ok(()), data: Segments::None, zeroes: false });
            }
            Effect::Complete { result, .. } => {
                result.expect("writes succeed");
                self.completed += 1;
            }
            Effect::Meta { op, action, .. } => {
                let result = Ok(self.metadata(action));
                self.meta_done.push(MetaDone { op, result });
            }
            Effect::OpenDisk { volume } => {
                let opened = OpenedDisk {
                    backing: SIZE,
                    meta_device: SIZE,
                    can_discard: true,
                    discard_zeroes: true,
                    write_through: true,
                    block_size: 512,
                };
                self.core.on_disk_opened(now, volume, Ok(opened));
                self.core.on_turn_end(now);
            }
            _ => {}
        }
    }

    fn metadata(&mut self, action: MetaOp) -> Box<[u8]> {
        let from = metadata_at(&self.layout);
        match action {
            MetaOp::Write { offset, bytes, .. } => {
                self.metadata[(offset - from) as usize..][..bytes.len()].copy_from_slice(&bytes);
                Box::default()
            }
            MetaOp::Read { offset, len } => self.metadata[(offset - from) as usize..][..len as usize].into(),
        }
    }
}

#[inline(never)]
fn primary(node: &mut Node, now: Instant, asked: &mut Vec<BlockRequest>, to: &mut Stream) {
    node.turn(now, asked, to);
}

#[inline(never)]
fn secondary(node: &mut Node, now: Instant, to: &mut Stream) {
    node.turn(now, &mut Vec::new(), to);
}

struct Pair {
    now: Instant,
    nodes: [Node; 2],
}

impl Pair {
    fn turn(&mut self, asked: &mut Vec<BlockRequest>) {
        self.now = self.now + TURN;
        let [a, b] = &mut self.nodes;
        primary(a, self.now, asked, &mut b.inbox);
        secondary(b, self.now, &mut a.inbox);
    }

    fn turns(&mut self, n: usize) {
        (0..n).for_each(|_| self.turn(&mut Vec::new()));
    }

    fn writes(&mut self, n: u64, depth: u64, rng: &mut Rng) {
        let mut asked = Vec::new();
        let first = self.nodes[0].completed;
        let mut begun = 0;
        while self.nodes[0].completed < first + n {
            while begun < n && first + begun - self.nodes[0].completed < depth {
                // In 64 extents, never neighbours.
                let sector = Sector(rng.next_u64() % (32 * 1024) * 16);
                let data = Segments::One(BufRef { id: begun as u32, offset: 0, len: 4096 });
                let (kind, len) = (RequestKind::Write { fua: false }, ByteLen(4096));
                asked.push(BlockRequest { tag: begun, volume: VOLUME, kind, sector, len, data });
                begun += 1;
            }
            self.turn(&mut asked);
        }
    }
}

fn main() {
    let numbers: Vec<u64> = std::env::args().skip(1).filter_map(|arg| arg.parse().ok()).collect();
    let [writes, depth] = numbers[..] else { panic!("write_cost WRITES DEPTH") };
    let mut pair = Pair { now: Instant(1_000_000_000), nodes: [node(0), node(1)] };
    for node in &mut pair.nodes {
        node.core.on_command(pair.now, 1, Command::Attach { volume: VOLUME });
        let connect = Command::Connect { peer: node.peer, discard_my_data: false, tentative: false };
        node.core.on_command(pair.now, 2, connect);
    }
    pair.turns(20);
    for (n, node) in pair.nodes.iter_mut().enumerate() {
        node.core.on_link_up(pair.now, node.peer, LinkUp { resolve_conflicts: n == 0, challenge: [n as u8; 64] });
    }
    pair.turns(100);
    pair.nodes[0].core.on_command(pair.now, 3, Command::Primary { force: false });
    pair.turns(100);
    let mut rng = Rng::new(5);
    pair.writes(FIRST, depth, &mut rng);
    pair.writes(writes, depth, &mut rng);
}
