//! The real engine on disks that forget whatever was not made durable: both nodes are killed, both disks lose their
//! power, and what was promised is compared with what is left; then both start again, and their copies must be equal.
//! Needs root and `/dev/fuse`.

mod disks;
mod node;

use control::Command;
use disks::Disks;
use node::{BLOCK, Node, Wish};
use std::fs::File;
use std::net::TcpListener;
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;
use std::time::{Duration, Instant};
use units::{ByteLen, Generation, Rng};

/// Of the data disks: a few extents of the activity log.
const SIZE: u64 = 16 << 20;
const EXTENT_BLOCKS: usize = (4 << 20) / BLOCK;
/// Of metadata on a disk of their own.
const META_SIZE: u64 = 1 << 20;
const PATIENCE: Duration = Duration::from_secs(30);

/// Two machines with a resource, the first one Primary.
struct Lab {
    dir: tempfile::TempDir,
    kind: meta::MetaDisk,
    options: &'static str,
    disks: Arc<Disks>,
    nodes: Vec<Node>,
    /// Bytes of the volume, and where its superblock is.
    capacity: usize,
    superblock: usize,
}

/// Disks per node; the first is that of the data.
fn disks_of(kind: meta::MetaDisk) -> usize {
    if kind == meta::MetaDisk::Internal { 1 } else { 2 }
}

/// Contents of one node's disks: data of `fill` that belong to a generation that both nodes have. Then the volume's
/// bytes, and where its superblock is.
fn contents(kind: meta::MetaDisk, fill: u8) -> (Vec<Vec<u8>>, usize, usize) {
    let device = if kind == meta::MetaDisk::Internal { SIZE } else { META_SIZE };
    let geometry = meta::Geometry::new(1, 4096, meta::AlShape::DEFAULT).unwrap();
    let layout = meta::Layout::new(kind, geometry, ByteLen(device)).unwrap();
    let mut sb = meta::Superblock::fresh(meta::Version::V08, &layout);
    sb.peers[meta::Superblock::V08_PEER].slot = Some(0);
    sb.current = Generation(0x1000);
    sb.flags.put(meta::DeviceFlags::CONSISTENT, true);
    sb.flags.put(meta::DeviceFlags::WAS_UP_TO_DATE, true);
    sb.effective_size = layout.capacity().min(ByteLen(SIZE).to_sectors_floor());
    let capacity = sb.effective_size.to_bytes().0 as usize;
    let mut data = vec![0; SIZE as usize];
    data[..capacity].fill(fill);
    let mut disks = vec![data];
    if disks_of(kind) == 2 {
        disks.push(vec![0; META_SIZE as usize]);
    }
    let metadata = disks.last_mut().unwrap();
    let mut put = |at: u64, block: &[u8]| metadata[at as usize..][..block.len()].copy_from_slice(block);
    put(layout.superblock_at().0, &sb.emit()[..]);
    let unused = meta::activity_log::block::initialized();
    (0..meta::AlShape::DEFAULT.blocks()).for_each(|i| put(layout.al_block_at(i).0, &unused[..]));
    (disks, capacity, layout.superblock_at().0 as usize)
}

impl Lab {
    /// Both run, and are UpToDate, whatever their disks hold.
    fn new(kind: meta::MetaDisk, fills: [u8; 2]) -> Lab {
        Lab::with(kind, "urbd { front-end nbd; busy-poll 0; } net { connect-int 1; }", fills)
    }

    fn with(kind: meta::MetaDisk, options: &'static str, fills: [u8; 2]) -> Lab {
        let dir = tempfile::tempdir().unwrap();
        let mut all = Vec::new();
        let (mut capacity, mut superblock) = (0, 0);
        for (name, fill) in ["alpha", "beta"].into_iter().zip(fills) {
            let disks;
            (disks, capacity, superblock) = contents(kind, fill);
            all.extend(disks.into_iter().enumerate().map(|(i, disk)| (format!("{name}{i}"), disk)));
        }
        let disks = Disks::serve(all);
        let ports = [0; 2].map(|_| TcpListener::bind("127.0.0.1:0").unwrap());
        let [a, b] = ports.map(|listener| listener.local_addr().unwrap().port());
        let host = |name: &str, port: u16| {
            let disk = |i: usize| disks.path(&format!("{name}{i}")).display().to_string();
            let meta = if disks_of(kind) == 1 { "internal".to_owned() } else { disk(1) };
            let volume = format!("volume 0 {{ device minor 0; disk {}; meta-disk {meta}; }}", disk(0));
            format!("on {name} {{ address ipv4 127.0.0.1:{port}; {volume} }}")
        };
        let text = format!("resource r0 {{ {options} {} {} }}", host("alpha", a), host("beta", b));
        std::fs::write(dir.path().join("conf"), text).unwrap();
        let mut lab = Lab { dir, kind, options, disks, nodes: Vec::new(), capacity, superblock };
        lab.boot();
        lab.nodes[0].command(Command::Primary { force: false });
        lab
    }

    fn boot(&mut self) {
        assert!(self.nodes.is_empty());
        self.nodes.extend(["alpha", "beta"].map(|name| Node::start(self.dir.path(), name)));
        self.settle();
    }

    /// Waits until both are UpToDate.
    fn settle(&self) {
        let log = |name: &str| std::fs::read_to_string(self.dir.path().join(format!("{name}.log"))).unwrap_or_default();
        self.wait(
            "both nodes are UpToDate",
            || self.nodes.iter().all(Node::is_settled),
            || log("alpha") + &log("beta"),
        );
    }

    fn wait(&self, what: &str, there: impl Fn() -> bool, why: impl Fn() -> String) {
        let end = Instant::now() + PATIENCE;
        while !there() {
            assert!(Instant::now() < end, "not within {PATIENCE:?}: {what}; {}", why());
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Makes these requests in one turn on the Primary, until all are complete.
    fn work(&mut self, wishes: &[Wish]) {
        self.nodes[0].ask(wishes);
        self.nodes[0].wait(wishes.len());
    }

    /// The number of a node's data disk.
    fn data(&self, node: usize) -> usize {
        node * disks_of(self.kind)
    }

    /// Does a node's superblock say for good that its data are?
    fn is_good(&self, node: usize) -> bool {
        let disks = self.disks.all();
        let block = disks[(node + 1) * disks_of(self.kind) - 1].durable[self.superblock..].first_chunk();
        let sb = meta::Superblock::parse(block.expect("all of it")).unwrap();
        [meta::DeviceFlags::CONSISTENT, meta::DeviceFlags::WAS_UP_TO_DATE].into_iter().all(|f| sb.flags.contains(f))
    }

    /// Both machines lose their power.
    fn crash(&mut self) {
        let durable: Vec<Vec<u8>> = {
            // At one moment, which nobody outlives.
            let disks = self.disks.all();
            self.nodes.iter_mut().for_each(Node::kill);
            disks.iter().map(|disk| disk.durable.clone()).collect()
        };
        self.disks.fail_held();
        self.nodes.iter_mut().for_each(Node::bury);
        self.nodes.clear();
        // The kernel lets go of a dead process's files when their last requests have ended, which may be later.
        self.wait("the disks are free", || self.disks.are_free(), String::new);
        for (disk, durable) in self.disks.all().iter_mut().zip(durable) {
            // A request may have been on its way to the disks.
            disk.durable = durable;
        }
        self.disks.lose_power();
    }

    /// After a crash: what these requests were promised to have done is on both disks.
    fn expect_kept(&self, wishes: &[Wish]) {
        let disks = self.disks.all();
        for (node, wish) in (0..2).flat_map(|n| wishes.iter().map(move |w| (n, w))) {
            let range = wish.block * BLOCK..(wish.block + wish.blocks) * BLOCK;
            let kept = disks[self.data(node)].now[range].iter().all(|byte| *byte == wish.fill);
            assert!(kept, "node {node} has lost {wish:?}");
        }
    }

    /// Both start again. Then their copies are equal.
    fn expect_equal_after_restart(&mut self) {
        self.boot();
        let disks = self.disks.all();
        let [a, b] = [0, 1].map(|node| &disks[self.data(node)].now[..self.capacity]);
        let differs = |i: &usize| a[i * BLOCK..(i + 1) * BLOCK] != b[i * BLOCK..(i + 1) * BLOCK];
        let blocks: Vec<usize> = (0..self.capacity / BLOCK).filter(differs).collect();
        assert!(blocks.is_empty(), "both are UpToDate, and {} blocks differ, the first is {}", blocks.len(), blocks[0]);
    }
}

/// A way to lose something.
type Round = fn(&mut Lab);

const ROUNDS: [(&str, Round); 7] = [
    ("a durable write", |lab| {
        let wishes = [Wish::write(3, 1, 1).durable()];
        lab.work(&wishes);
        lab.crash();
        lab.expect_kept(&wishes);
        lab.expect_equal_after_restart();
    }),
    ("durable writes that are merged", |lab| {
        let wishes: Vec<Wish> = (0..8).map(|i| Wish::write(40 + i, 1, 2).durable()).collect();
        lab.work(&wishes);
        let longest = lab.disks.all()[lab.data(0)].longest;
        assert!(longest > BLOCK, "they are merged");
        lab.crash();
        lab.expect_kept(&wishes);
        lab.expect_equal_after_restart();
    }),
    ("durable zeroes", |lab| zeroes(lab, false)),
    ("durable zeroes by giving space back", |lab| zeroes(lab, true)),
    ("writes and a flush", |lab| {
        let wishes: Vec<Wish> = (0..4).map(|i| Wish::write(i * EXTENT_BLOCKS + 7, 5, 3)).collect();
        lab.work(&wishes);
        lab.work(&[Wish::flush()]);
        lab.crash();
        lab.expect_kept(&wishes);
        lab.expect_equal_after_restart();
    }),
    ("a write that one node has", |lab| {
        let (wish, own, peer) = (Wish::write(2 * EXTENT_BLOCKS, 1, 4).durable(), lab.data(0), lab.data(1));
        lab.disks.hold(peer);
        lab.nodes[0].ask(&[wish]);
        let written = || lab.disks.all()[own].durable[wish.block * BLOCK] == wish.fill;
        lab.wait("the Primary writes", written, String::new);
        lab.crash();
        lab.expect_equal_after_restart();
    }),
    ("a resync that is over", |lab| {
        // They have lied: the second one's data are others.
        *lab = Lab::with(lab.kind, lab.options, [5, 6]);
        lab.nodes[1].command(Command::Invalidate { volume: None, keep_bitmap: false });
        lab.wait("the last block is copied", || lab.disks.all()[lab.data(1)].now[lab.capacity - 1] == 5, String::new);
        lab.wait("the target calls itself UpToDate for good", || lab.is_good(1), String::new);
        lab.crash();
        lab.expect_kept(&[Wish::write(0, lab.capacity / BLOCK, 5)]);
        lab.expect_equal_after_restart();
    }),
];

fn zeroes(lab: &mut Lab, may_unmap: bool) {
    lab.work(&[Wish::write(100, 32, 7)]);
    lab.work(&[Wish::flush()]);
    let wishes = [Wish::zeroes(104, 8, may_unmap).durable()];
    lab.work(&wishes);
    lab.crash();
    lab.expect_kept(&wishes);
    lab.expect_equal_after_restart();
}

/// An application with many requests under way when the power goes.
fn load(lab: &mut Lab, seed: u64) {
    let mut rng = Rng::new(seed);
    let blocks = (lab.capacity / BLOCK) as u64;
    let mut kept = Vec::new();
    // No place twice, so that it is clear what a block must hold.
    let mut places: Vec<usize> = (0..blocks as usize / 4).collect();
    for last in (1..places.len()).rev() {
        places.swap(last, rng.below(last as u64 + 1) as usize);
    }
    let mut places = places.into_iter();
    let mut wish = |rng: &mut Rng| {
        let (place, len) = (places.next().expect("enough") * 4, 1 + rng.below(4) as usize);
        match rng.below(4) {
            0 => Wish::zeroes(place, len, rng.below(2) == 0).durable(),
            _ => Wish::write(place, len, 1 + rng.below(250) as u8).durable(),
        }
    };
    for _ in 0..20 {
        let batch: Vec<Wish> = (0..8).map(|_| wish(&mut rng)).collect();
        lab.work(&batch);
        kept.extend(batch);
    }
    let under_way: Vec<Wish> = (0..32).map(|_| wish(&mut rng)).collect();
    lab.nodes[0].ask(&under_way);
    lab.nodes[0].wait(rng.below(16) as usize);
    lab.crash();
    lab.expect_kept(&kept);
    lab.expect_equal_after_restart();
}

/// Whether this machine lets us; says so if not.
fn possible() -> bool {
    let root = std::fs::metadata("/proc/self").is_ok_and(|process| process.uid() == 0);
    let there = root && File::options().read(true).write(true).open("/dev/fuse").is_ok();
    if !there {
        println!("skipped: fuse: needs root and /dev/fuse");
    }
    there
}

fn all_rounds(kind: meta::MetaDisk) {
    if !possible() {
        return;
    }
    for (name, round) in ROUNDS {
        println!("{name}");
        round(&mut Lab::new(kind, [0; 2]));
    }
    (1..4).for_each(|seed| load(&mut Lab::new(kind, [0; 2]), seed));
}

/// Also what is called to be a node.
#[test]
fn what_was_promised_survives() {
    if let Some(arguments) = node::arguments() {
        return node::be_a_node(&arguments);
    }
    all_rounds(meta::MetaDisk::Internal);
}

#[test]
fn what_was_promised_survives_with_metadata_on_another_disk() {
    all_rounds(meta::MetaDisk::FlexExternal);
}

/// What the engine itself does by options, which two cores without an engine do not show.
#[test]
fn options_of_the_engine_hold_at_their_ends() {
    if !possible() {
        return;
    }
    // Socket buffers of a byte are legal as well: the kernel makes two kilobytes of it, and TCP crawls.
    let least =
        "net { verify-alg crc32c; max-buffers 32; sndbuf-size 0; rcvbuf-size 0; max-epoch-size 1; connect-int 1; }
        disk { al-extents 67; } urbd { front-end nbd; busy-poll 0; }";
    // The most max-buffers, 131072, would set two GiB aside on each node.
    let greatest = "net { verify-alg crc32c; max-buffers 8192; sndbuf-size 134217728; rcvbuf-size 134217728;
        max-epoch-size 20000; connect-int 1; } disk { al-extents 65534; disk-timeout 6000; }
        urbd { front-end nbd; busy-poll 1000; }";
    for options in [least, greatest] {
        let lab = || Lab::with(meta::MetaDisk::Internal, options, [0; 2]);
        let (_, resync) = ROUNDS[ROUNDS.len() - 1];
        resync(&mut lab());
        load(&mut lab(), 1);
        let mut lab = lab();
        let all = lab.capacity / BLOCK;
        // All of it, in the longest requests that there are, many at a time.
        let wishes: Vec<Wish> = (0..all).step_by(256).map(|at| Wish::write(at, 256.min(all - at), 8)).collect();
        lab.work(&wishes);
        lab.nodes[0].command(Command::Verify {
            peer: None,
            volume: None,
            start_sector: None,
            stop_sector: None,
            repair: false,
        });
        lab.settle();
        lab.work(&[Wish::flush()]);
        lab.crash();
        lab.expect_kept(&wishes);
    }
}
