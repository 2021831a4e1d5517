//! What a write costs a whole node, in things that can be counted: system calls and allocations of its loop. Two nodes,
//! each on a thread of its own, mirror files in memory over loopback TCP; the load is inside the first one's loop.

use config::{LoadOptions, Memory, ThisHost};
use control::client::{Client, socket_path};
use control::{Command, DiskState};
use engine::ring::Calls;
use engine::{Application, Errno, Kind, Request};
use std::fs::File;
use std::io::{self, Read, Write};
use std::net::TcpListener;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::{Duration, Instant};
use units::{ByteLen, Generation, Rng, VolumeNr};
use urbd_engine as engine;

#[path = "../../units/tests/counting/allocations.rs"]
mod counting;

const SIZE: u64 = 64 << 20;
const BLOCK: u64 = 4096;
const PATIENCE: Duration = Duration::from_secs(60);

/// What a node's thread has used since it began.
#[derive(Clone, Copy, Default, Debug)]
struct Counts {
    calls: Calls,
    allocations: u64,
}

impl Counts {
    fn since(self, from: Counts) -> Counts {
        let calls = Calls {
            turns: self.calls.turns - from.calls.turns,
            sockets: self.calls.sockets - from.calls.sockets,
            files: self.calls.files - from.calls.files,
            yields: self.calls.yields - from.calls.yields,
        };
        Counts { calls, allocations: self.allocations - from.allocations }
    }
}

const WORK: &[u8; 1] = b"w";
const TELL: &[u8; 1] = b"t";

/// What a run is made of.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Mix {
    Random,
    Sequential,
    Reads,
    /// Random writes, and a flush after each 16 of them.
    Flushes,
}

/// Makes a run of requests for each [`WORK`] on its socket; tells what was counted then, or at once for [`TELL`].
struct Load {
    socket: UnixStream,
    report: SyncSender<Counts>,
    size: u64,
    depth: u64,
    run: u64,
    left: u64,
    in_flight: u64,
    mix: Mix,
    cursor: u64,
    rng: Rng,
}

impl Load {
    fn tell(&self) {
        self.report.send(Counts { calls: engine::ring::calls(), allocations: counting::allocations() }).unwrap();
    }
}

impl Application for Load {
    fn descriptor(&self) -> io::Result<OwnedFd> {
        self.socket.as_fd().try_clone_to_owned()
    }

    fn on_readable(&mut self) {
        let mut byte = [0];
        assert!(matches!(self.socket.read(&mut byte), Ok(1)), "the test has ended");
        self.left = if byte == *WORK { self.run } else { 0 };
        if self.left == 0 {
            self.tell();
        }
    }

    fn on_device(&mut self, _: VolumeNr, size: u64) {
        self.size = size;
    }

    fn next(&mut self) -> Option<(VolumeNr, Request)> {
        if self.left == 0 || self.size == 0 || self.in_flight == self.depth {
            return None;
        }
        (self.left, self.in_flight) = (self.left - 1, self.in_flight + 1);
        if self.mix == Mix::Flushes && self.left.is_multiple_of(16) {
            return Some((VolumeNr(0), Request { tag: 0, kind: Kind::Flush, offset: 0, len: 0, fua: false }));
        }
        self.cursor += 1;
        let offset = match self.mix {
            Mix::Sequential => self.cursor * BLOCK % (self.size / BLOCK * BLOCK),
            // Every other block, so that nothing is merged.
            _ => self.rng.next_u64() % (self.size / BLOCK / 2) * 2 * BLOCK,
        };
        let kind = if self.mix == Mix::Reads { Kind::Read } else { Kind::Write };
        Some((VolumeNr(0), Request { tag: 0, kind, offset, len: BLOCK as u32, fua: false }))
    }

    fn fill(&mut self, request: &Request, payload: &mut [u8]) {
        payload.fill((request.offset / BLOCK) as u8);
    }

    fn on_done(&mut self, _: &Request, result: Result<(), Errno>, _: &[u8]) {
        result.unwrap();
        self.in_flight -= 1;
        if self.left == 0 && self.in_flight == 0 {
            self.tell();
        }
    }
}

struct Node {
    run_dir: PathBuf,
    poke: UnixStream,
    reports: Receiver<Counts>,
}

impl Node {
    fn start(dir: &Path, name: &str, text: &str, (depth, run, mix): (u64, u64, Mix)) -> Node {
        let run_dir = dir.join(name);
        let config = config::load_text(&Memory::default(), Path::new("test"), text, &LoadOptions::default()).unwrap();
        let resource = config.resource_as_seen_by("r0", &ThisHost::named(name)).unwrap();
        let options = engine::Options {
            standing: config::Standing::up(&resource),
            resource,
            helper: None,
            run_dir: run_dir.clone(),
            keeper: None,
        };
        let ((poke, socket), (report, reports)) = (UnixStream::pair().unwrap(), sync_channel(4));
        let rng = Rng::new(5);
        let load = Load { socket, report, size: 0, depth, run, left: 0, in_flight: 0, mix, cursor: 0, rng };
        std::thread::spawn(move || {
            let claim = engine::Claim::take(&options.run_dir, "r0", None).unwrap();
            engine::run_with(options, claim, Some(Box::new(load))).unwrap();
        });
        Node { run_dir, poke, reports }
    }

    fn client(&self) -> Client {
        let path = socket_path(&self.run_dir, "r0");
        let end = Instant::now() + PATIENCE;
        loop {
            match Client::connect(&path, Some(PATIENCE)) {
                Ok(client) => return client,
                Err(e) => assert!(Instant::now() < end, "{e}"),
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    fn wait_for_peer(&self) {
        let end = Instant::now() + PATIENCE;
        let synced = || {
            let status = self.client().status().unwrap();
            status.connections.iter().flat_map(|c| &c.peer_devices).any(|d| d.peer_disk == DiskState::UpToDate)
        };
        while !synced() {
            assert!(Instant::now() < end, "the nodes do not connect");
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Asks it to work, or not to, and gives what was counted until that was done.
    fn counts(&mut self, request: &[u8; 1]) -> Counts {
        self.poke.write_all(request).unwrap();
        self.reports.recv_timeout(PATIENCE).unwrap()
    }
}

/// A disk with UpToDate data of a certain generation.
fn disk(path: &Path) {
    let geometry = meta::Geometry::new(1, 4096, meta::AlShape::DEFAULT).unwrap();
    let layout = meta::Layout::new(meta::MetaDisk::Internal, geometry, ByteLen(SIZE)).unwrap();
    let mut sb = meta::Superblock::fresh(meta::Version::V08, &layout);
    sb.peers[meta::Superblock::V08_PEER].slot = Some(0);
    sb.current = Generation(0x1000);
    sb.flags.put(meta::DeviceFlags::CONSISTENT, true);
    sb.flags.put(meta::DeviceFlags::WAS_UP_TO_DATE, true);
    sb.effective_size = layout.capacity();
    let file = File::create(path).unwrap();
    file.write_all_at(&vec![0; SIZE as usize], 0).unwrap();
    file.write_all_at(&sb.emit()[..], layout.superblock_at().0).unwrap();
}

/// Two connected nodes with UpToDate disks in memory, the first Primary; each makes so many writes when it is asked to.
fn pair((depth, requests, mix): (u64, u64, Mix), options: &str) -> (tempfile::TempDir, [Node; 2]) {
    let memory = Path::new("/dev/shm");
    let dir = if memory.is_dir() { tempfile::tempdir_in(memory) } else { tempfile::tempdir() }.unwrap();
    let ports = [0; 2].map(|_| TcpListener::bind("127.0.0.1:0").unwrap());
    let [a, b] = ports.map(|listener| listener.local_addr().unwrap().port());
    let host = |name: &str, port: u16| {
        let path = dir.path().join(format!("disk-{name}"));
        disk(&path);
        let volume = format!("volume 0 {{ device minor 0; disk {}; meta-disk internal; }}", path.display());
        format!("on {name} {{ address ipv4 127.0.0.1:{port}; {volume} }}")
    };
    let text = format!("resource r0 {{ {options} {} {} }}", host("alpha", a), host("beta", b));
    let primary = Node::start(dir.path(), "alpha", &text, (depth, requests, mix));
    let secondary = Node::start(dir.path(), "beta", &text, (depth, 0, mix));
    primary.wait_for_peer();
    primary.client().command(Command::Primary { force: false }).unwrap();
    (dir, [primary, secondary])
}

/// What each node used for one run, after a run that made its extents hot and its containers large.
fn cost(depth: u64, requests: u64, mix: Mix, busy_poll: &str) -> [Counts; 2] {
    let options = format!("urbd {{ front-end nbd; busy-poll {busy_poll}; }}");
    let (_dir, [mut primary, mut secondary]) = pair((depth, requests, mix), &options);
    let before = [primary.counts(WORK), secondary.counts(TELL)];
    let after = [primary.counts(WORK), secondary.counts(TELL)];
    [0, 1].map(|i| after[i].since(before[i]))
}

/// A few are allowed for pings, reports and lists that still grow: none per write.
const FEW: u64 = 100;

#[test]
fn a_deep_queue_needs_few_calls_and_no_memory() {
    let writes = 20_000;
    let [a, b] = cost(64, writes, Mix::Random, "0");
    for used in [a, b] {
        assert_eq!(used.calls.yields, 0, "without busy-poll it sleeps: {used:?}");
        assert!(used.calls.turns + used.calls.sockets < writes / 4, "few per write: {used:?}");
        assert!(used.allocations < FEW, "{used:?}");
    }
}

#[test]
fn a_single_write_needs_one_send_each_way_and_no_memory() {
    let writes = 2_000;
    let [a, b] = cost(1, writes, Mix::Random, "0");
    for used in [a, b] {
        assert!(used.calls.sockets < writes + FEW, "one send per write: {used:?}");
        assert!(used.calls.turns < writes + writes / 4, "one wait per write: {used:?}");
        assert!(used.allocations < FEW, "{used:?}");
    }
}

#[test]
fn staying_awake_needs_no_memory() {
    let [a, b] = cost(1, 2_000, Mix::Random, "100us");
    assert!(a.allocations < FEW && b.allocations < FEW, "{a:?} {b:?}");
}

#[test]
fn streams_and_flushes_need_no_memory() {
    for mix in [Mix::Sequential, Mix::Flushes] {
        let [a, b] = cost(32, 10_000, mix, "0");
        // Lists of merged writes may still grow when more of them meet than before; a flush has its own.
        let most = if mix == Mix::Flushes { 3 * 10_000 / 16 + FEW } else { 2 * FEW };
        assert!(a.allocations < most && b.allocations < most, "{mix:?}: {a:?} {b:?}");
    }
}

#[test]
fn a_read_needs_one_list() {
    let [a, b] = cost(32, 10_000, Mix::Reads, "0");
    assert!(a.allocations < 10_000 + FEW, "what it brings: {a:?}");
    assert!(b.allocations < FEW && b.calls.sockets < FEW, "the peer has nothing to do with it: {b:?}");
}

/// Nothing ticks: no clock of a controller, no poll, no timer that is set and not needed, also right after a load.
#[test]
fn an_idle_pair_wakes_for_nothing_but_pings() {
    let (_dir, mut nodes) = pair((16, 2_000, Mix::Random), "urbd { front-end nbd; } net { ping-int 120; }");
    nodes[0].counts(WORK);
    std::thread::sleep(Duration::from_secs(1)); // the last epoch's barrier, metadata that waits a moment
    let before = nodes.each_mut().map(|node| node.counts(TELL).calls.turns);
    std::thread::sleep(Duration::from_secs(3));
    let after = nodes.each_mut().map(|node| node.counts(TELL).calls.turns);
    for (before, after) in before.iter().zip(after) {
        assert!(after - before <= 2, "{} turns in 3 s: only the question itself may wake it", after - before);
    }
}
