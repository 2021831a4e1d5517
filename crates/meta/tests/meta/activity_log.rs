//! The activity log against a ring that is crashed at every moment, and against damaged rings.

use crate::golden::image;
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};
use urbd_meta::activity_log::replay::{Replay, ReplayError, replay};
use urbd_meta::activity_log::{Acquire, Busy, Ticket, block};
use urbd_meta::{ActivityLog, AlShape, BLOCK_LEN, Block, ExtentRange, Format};

/// A ring on a disk that can tear a write.
#[derive(Clone)]
struct Disk {
    shape: AlShape,
    ring: Vec<u8>,
}

impl Disk {
    fn new(shape: AlShape) -> Disk {
        let ring = (0..shape.blocks()).flat_map(|_| block::initialized().to_vec()).collect();
        Disk { shape, ring }
    }

    /// Writes the first `sectors` of 8 sectors of a block.
    fn write(&mut self, index: u32, block: &Block, sectors: usize) {
        let at = index as usize * BLOCK_LEN;
        self.ring[at..at + sectors * 512].copy_from_slice(&block[..sectors * 512]);
    }

    fn replay(&self) -> Replay {
        replay(&self.ring, self.shape, Format::V08InUse, 0).unwrap()
    }
}

/// Requests that hold extents, and those that wait for a ticket.
struct Load {
    log: ActivityLog,
    disk: Disk,
    active: Vec<ExtentRange>,
    waiting: BTreeMap<Ticket, Vec<ExtentRange>>,
    bitmap_written: BTreeSet<u32>,
}

impl Load {
    fn new(extents: u16, shape: AlShape, first_tr: u32) -> Load {
        Load {
            log: ActivityLog::new(extents, shape, first_tr),
            disk: Disk::new(shape),
            active: vec![],
            waiting: BTreeMap::new(),
            bitmap_written: BTreeSet::new(),
        }
    }

    fn acquire(&mut self, range: ExtentRange) -> Acquire {
        let got = self.log.acquire(range);
        match got {
            Acquire::Active => self.active.push(range),
            Acquire::Pending(t) => self.waiting.entry(t).or_default().push(range),
            Acquire::Busy(_) => {}
        }
        got
    }

    /// One transaction, with every way that its write can tear.
    fn transact(&mut self) {
        let Some(t) = self.log.start_transaction() else { return };
        let held: BTreeSet<u32> = self.active.iter().flat_map(|r| r.iter()).collect();
        for evicted in self.log.evicted() {
            assert!(!held.contains(&evicted), "extent {evicted} is evicted while in use");
            self.bitmap_written.insert(evicted);
        }
        let mut block = [0; BLOCK_LEN];
        self.log.emit_block(&mut block);
        for sectors in 0..=8 {
            let mut torn = self.disk.clone();
            torn.write(t.block_index, &block, sectors);
            let hot = torn.replay().hot;
            assert!(held.is_subset(&hot), "torn after {sectors} sectors of transaction {}", t.tr_number);
        }
        self.disk.write(t.block_index, &block, 8);
        let done = self.log.commit();
        assert_eq!(done, t.ticket);
        let later = self.waiting.split_off(&Ticket(done.0 + 1));
        for (_, ranges) in std::mem::replace(&mut self.waiting, later) {
            self.active.extend(ranges);
        }
        let held: BTreeSet<u32> = self.active.iter().flat_map(|r| r.iter()).collect();
        assert!(held.is_subset(&self.disk.replay().hot), "after transaction {}", t.tr_number);
    }
}

#[derive(Clone, Debug)]
enum Op {
    Acquire(u32, u32),
    Prefetch(u32),
    Release(usize),
    Transact,
}

fn op(span: u32) -> impl Strategy<Value = Op> {
    prop_oneof![
        4 => (0..span, 1u32..=4).prop_map(|(e, n)| Op::Acquire(e, n)),
        1 => (0..span).prop_map(Op::Prefetch),
        3 => any::<usize>().prop_map(Op::Release),
        2 => Just(Op::Transact),
    ]
}

fn range(first: u32, count: u32) -> ExtentRange {
    use units::{ByteLen, Sector, SectorRange};
    let start = Sector(u64::from(first) * 8192);
    ExtentRange::of(SectorRange::new(start, ByteLen(u64::from(count) * (4 << 20))).unwrap()).unwrap()
}

fn run(extents: u16, shape: AlShape, first_tr: u32, ops: Vec<Op>) {
    let mut load = Load::new(extents, shape, first_tr);
    for op in ops {
        match op {
            Op::Acquire(e, n) => {
                let want = range(e, n);
                let was_hot = load.log.is_hot(want);
                let got = load.acquire(want);
                assert!(!was_hot || got == Acquire::Active || got == Acquire::Busy(Busy::NoFreeSlot));
                assert!(was_hot || got != Acquire::Active);
            }
            Op::Prefetch(e) => {
                let hot = load.log.is_hot(ExtentRange::single(e));
                assert!(!(load.log.prefetch(e) && hot));
            }
            Op::Release(i) if !load.active.is_empty() => {
                let r = load.active.swap_remove(i % load.active.len());
                load.log.release(r);
            }
            Op::Release(_) => {}
            Op::Transact => load.transact(),
        }
        assert!(load.log.hot_count() <= usize::from(load.log.capacity()));
    }
    // Everything ends: all that waits becomes active, all is given back.
    while !load.waiting.is_empty() {
        load.transact();
    }
    for r in std::mem::take(&mut load.active) {
        load.log.release(r);
    }
    load.transact();
    assert_eq!(load.log.used_count(), 0);
    load.log.forget_waiters();
    assert!(load.log.reconfigure(extents, shape));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn no_crash_loses_an_active_extent(
        extents in 67u16..90, first_tr in prop_oneof![Just(0u32), Just(u32::MAX - 23)],
        ops in proptest::collection::vec(op(200), 0..400),
    ) {
        run(extents, AlShape::DEFAULT, first_tr, ops);
    }

    #[test]
    fn nor_on_a_striped_ring_with_many_slots(ops in proptest::collection::vec(op(6000), 0..300)) {
        run(4000, AlShape::new(4, 2).unwrap(), 0, ops);
    }
}

/// Slots in use for longer than the ring is: only the context windows keep them.
#[test]
fn context_windows_keep_old_extents() {
    let mut load = Load::new(6433, AlShape::DEFAULT, 0);
    for e in 0..6433 {
        while load.acquire(ExtentRange::single(e)) == Acquire::Busy(Busy::BatchFull) {
            load.transact();
        }
    }
    load.transact();
    assert_eq!(load.active.len(), 6433);
    assert_eq!(load.log.next_tr_number(), 6433u32.div_ceil(64));
    assert_eq!(load.acquire(ExtentRange::single(9999)), Acquire::Busy(Busy::NoFreeSlot));
}

#[test]
fn starving_requests_stop_hits_until_there_is_room() {
    let mut load = Load::new(67, AlShape::DEFAULT, 0);
    for e in 0..67 {
        if load.acquire(ExtentRange::single(e)) == Acquire::Busy(Busy::BatchFull) {
            load.transact();
            load.acquire(ExtentRange::single(e));
        }
    }
    load.transact();
    assert_eq!(load.acquire(range(100, 2)), Acquire::Busy(Busy::NoFreeSlot));
    assert_eq!(load.acquire(ExtentRange::single(5)), Acquire::Busy(Busy::NoFreeSlot), "a hit waits too");
    assert!(!load.log.prefetch(7000));
    assert!(load.log.release(ExtentRange::single(5)));
    assert_eq!(load.acquire(ExtentRange::single(6)), Acquire::Busy(Busy::NoFreeSlot), "two slots are needed");
    assert!(load.log.release(ExtentRange::single(6)));
    assert!(matches!(load.acquire(range(100, 2)), Acquire::Pending(_)));
    assert_eq!(load.acquire(ExtentRange::single(7)), Acquire::Active);
    let recycled = load.log.start_transaction().map(|_| load.log.evicted().collect::<BTreeSet<_>>());
    assert_eq!(recycled, Some(BTreeSet::from([5, 6])));
}

#[test]
fn a_batch_is_one_transaction_and_the_next_collects_meanwhile() {
    let mut log = ActivityLog::new(1237, AlShape::DEFAULT, 0);
    let tickets: BTreeSet<_> = (0..64)
        .map(|e| match log.acquire(ExtentRange::single(e)) {
            Acquire::Pending(t) => t,
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(tickets.len(), 1);
    assert_eq!(log.acquire(ExtentRange::single(64)), Acquire::Busy(Busy::BatchFull));
    let first = log.start_transaction().unwrap();
    assert!(!log.wants_transaction());
    let Acquire::Pending(next) = log.acquire(ExtentRange::single(64)) else { panic!("the next batch is open") };
    assert!(next > first.ticket);
    assert_eq!(log.acquire(ExtentRange::single(3)), Acquire::Pending(first.ticket));
    assert!(log.start_transaction().is_none(), "one at a time");
    assert_eq!(log.commit(), first.ticket);
    assert_eq!(log.acquire(ExtentRange::single(3)), Acquire::Active);
    assert_eq!(log.start_transaction().unwrap().ticket, next);
    // Released before its transaction is done.
    log.release(ExtentRange::single(64));
    log.commit();
    assert_eq!(log.acquire(ExtentRange::single(64)), Acquire::Active);
}

/// A changed ring is filled with context transactions, which carry every extent.
#[test]
fn a_rewritten_ring_stands_for_itself() {
    let mut load = Load::new(2000, AlShape::DEFAULT, 0);
    for e in 0..1500 {
        while load.acquire(ExtentRange::single(e)) == Acquire::Busy(Busy::BatchFull) {
            load.transact();
        }
    }
    load.transact();
    let shape = AlShape::new(2, 8).unwrap();
    assert!(load.log.change_ring(shape));
    assert!(!load.log.reconfigure(67, shape), "extents are in use");
    let mut disk = Disk { shape, ring: vec![0x55; shape.bytes().0 as usize] };
    let mut block = [0; BLOCK_LEN];
    for _ in 0..shape.blocks() {
        let index = load.log.emit_context_block(&mut block);
        disk.write(index, &block, 8);
    }
    let replay = disk.replay();
    assert_eq!((replay.corrupt, replay.gap), (0, false));
    assert_eq!(replay.hot, (0..1500).collect());
}

/// The transaction of `docs/spec/on-disk-format.md` 3.2: what an 8.4.11 kernel wrote, read field by field.
#[test]
fn kernel_transactions_are_read() {
    let image = image("60-kernel-8.4.11-crashed-primary-before.bin.xz");
    let ring = image.ring(&image.found().layout);
    let newest = ring.chunks_exact(BLOCK_LEN).filter_map(|b| match block::parse(b.try_into().unwrap()) {
        Ok(block::View::Update(u)) => Some(u),
        _ => None,
    });
    let update = newest.into_iter().find(|u| u.tr_number() == 0x50).unwrap();
    assert_eq!(update.context_size(), 67);
    assert_eq!(update.updates().collect::<Vec<_>>(), [(56, 85)]);
    assert_eq!(update.assignments().take(2).collect::<Vec<_>>(), [(0, 0x4a), (1, 0x49)]);
    assert_eq!(update.assignments().count(), 68);
}

/// Each block of a full ring damaged in turn: the newest ends history earlier, others are a gap.
#[test]
fn every_torn_block() {
    let image = image("41-al-v08-wrapped-before.bin.xz");
    let found = image.found();
    let ring = image.ring(&found.layout);
    let whole = read(&ring).unwrap();
    assert_eq!((whole.corrupt, whole.gap), (0, false));
    let number = |b: &[u8]| u32::from_be_bytes(b[4..8].try_into().unwrap());
    let numbers: Vec<u32> = ring.chunks_exact(BLOCK_LEN).map(number).collect();
    let (oldest, newest) = (*numbers.iter().min().unwrap(), *numbers.iter().max().unwrap());
    for (i, n) in numbers.iter().enumerate() {
        for sector in 0..8 {
            for byte in [0, 300, 511] {
                let mut torn = ring.clone();
                torn[i * BLOCK_LEN + sector * 512 + byte] ^= 0x60;
                let replay = read(&torn).unwrap();
                assert_eq!((replay.corrupt, replay.damaged), (1, 1));
                assert!(replay.complaint().unwrap().contains(if replay.gap { "hole" } else { "newest" }));
                assert_eq!(replay.gap, *n != oldest && *n != newest, "block {i}");
            }
        }
    }
}

/// A disk that damages data by itself must not make the log forget what was hot: one bit of any block is corrected.
#[test]
fn every_flipped_bit_is_corrected() {
    let image = image("41-al-v08-wrapped-before.bin.xz");
    let found = image.found();
    let ring = image.ring(&found.layout);
    let whole = read(&ring).unwrap();
    let number = |b: &[u8]| u32::from_be_bytes(b[4..8].try_into().unwrap());
    let oldest = ring.chunks_exact(BLOCK_LEN).map(number).min().unwrap();
    for (i, block) in ring.chunks_exact(BLOCK_LEN).enumerate() {
        // All of the header, where the format looks first, and some of the rest.
        for bit in (0..36 * 8).chain((36 * 8..BLOCK_LEN * 8).step_by(1009)) {
            let mut flipped = ring.clone();
            flipped[i * BLOCK_LEN + bit / 8] ^= 1 << (bit % 8);
            let replay = read(&flipped).unwrap();
            assert_eq!((&replay.hot, replay.gap), (&whole.hot, false), "bit {bit} of block {i}");
            let corrected = number(block) != oldest;
            assert_eq!(replay.complaint().unwrap().contains("corrected"), corrected, "bit {bit} of block {i}");
        }
    }
    let mut first = Load::new(7, AlShape::DEFAULT, 0);
    first.acquire(range(5, 2));
    first.transact();
    first.disk.ring[100] ^= 1;
    assert_eq!(first.disk.replay().hot, [5, 6].into());
}

#[test]
fn rings_without_transactions() {
    let init = block::initialized();
    let ring = |bad: &[usize]| {
        let blocks = (0..8).flat_map(|i| if bad.contains(&i) { [0x11; BLOCK_LEN] } else { *init });
        blocks.collect::<Vec<u8>>()
    };
    assert_eq!(read(&ring(&[])), Ok(Replay::default()));
    // The very first transaction was torn: nothing was written under it.
    assert_eq!(read(&ring(&[0])), Ok(Replay { corrupt: 1, damaged: 1, ..Replay::default() }));
    assert_eq!(read(&ring(&[3])), Err(ReplayError::Mixed));
    assert_eq!(read(&ring(&[0, 1])), Err(ReplayError::Mixed));
    assert_eq!(read(&ring(&[0, 1, 2, 3, 4, 5, 6, 7])), Err(ReplayError::NoUsableLog));
    assert_eq!(read(&[]), Err(ReplayError::WrongLength));
}

fn read(ring: &[u8]) -> Result<Replay, ReplayError> {
    replay(ring, AlShape::DEFAULT, Format::V08InUse, 257)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    /// Nothing in a ring can make replay panic, whatever format it is taken for.
    #[test]
    fn replay_never_panics(seed in any::<u64>(), al_extents in any::<u32>(), head in any::<[u8; 16]>()) {
        let mut rng = units::Rng::new(seed);
        let mut ring: Vec<u8> = (0..8 * BLOCK_LEN / 8).flat_map(|_| rng.next_u64().to_le_bytes()).collect();
        for format in [Format::V08, Format::V08InUse, Format::V09] {
            let _ = replay(&ring, AlShape::DEFAULT, format, al_extents);
        }
        ring[..16].copy_from_slice(&head);
        ring[..4].copy_from_slice(&0x6AA6_67A6u32.to_be_bytes());
        let _ = replay(&ring, AlShape::DEFAULT, Format::V09, al_extents);
        for record in ring.chunks_exact_mut(512) {
            record[..4].copy_from_slice(&0x8374_0267u32.to_be_bytes());
            let sum = (0..62).fold([0; 4], |s: [u8; 4], i| std::array::from_fn(|k| s[k] ^ record[12 + 8 * i + k]));
            record[504..508].copy_from_slice(&sum);
        }
        let _ = replay(&ring, AlShape::DEFAULT, Format::V08, al_extents);
    }
}
