//! From a journal to every state that a loss of power can leave on the metadata, and what each must still say.

use super::journal::Event;
use crate::rig::{Node, VOLUME, metadata_at};
use meta::activity_log::replay::{Replay, replay};
use meta::{BitmapArea, Layout, Superblock};
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use units::{BitSet, ByteLen, Generation, Rng, Sector};
use urbd_core::{Command, Effect, MetaDone, MetaOp, OpId, OpenedDisk, Resource, ResourceConfig};

const SECTOR: usize = 512;
/// Up to so many pieces all subsets are tried.
const ALL_SUBSETS: u32 = 9;
/// Of more pieces so many random ones, beside none, all, so many alone and all but so many.
const RANDOM_SUBSETS: usize = 40;
/// The same for a second crash, which comes after many different first ones.
const FEW_SUBSETS: usize = 5;
/// Every so many states one is attached by a core.
const ATTACH_EVERY: u64 = 60;
/// Every so many of these attaches crash once more, everywhere.
const CRASH_AGAIN_EVERY: u64 = 4;

/// A write to metadata that is not known to be durable.
struct Pending {
    /// Byte in the image.
    at: usize,
    bytes: Box<[u8]>,
    flush_before: bool,
    fua: bool,
    began: usize,
    done: Option<usize>,
}

/// What must be found after a crash.
#[derive(Default)]
struct Needed {
    /// Requests under way: their blocks.
    requests: BTreeMap<u64, (u64, u64)>,
    /// Sent, and not known to be durable on the peer; with the number of their epoch when it has ended.
    unconfirmed: Vec<((u64, u64), Option<u32>)>,
    /// Blocks that the peer does not have.
    different: BTreeSet<u64>,
    /// Confirmed blocks of a resync that are in this disk's cache only.
    volatile: BTreeSet<u64>,
    generation: Option<Generation>,
}

/// One node's disk, as a crash would find it.
pub(super) struct Disk {
    layout: Layout,
    cfg: ResourceConfig,
    /// A disk that writes this much or nothing.
    unit: usize,
    /// What is durable for sure.
    image: Vec<u8>,
    pending: Vec<Pending>,
    outstanding: VecDeque<bool>,
    /// Data writes that are not durable: blocks, and when they were complete.
    writes: BTreeMap<OpId, ((u64, u64), Option<usize>)>,
    flushes: BTreeMap<OpId, usize>,
    needed: Needed,
    linked: bool,
    /// Generations in the order in which superblocks named them.
    generations: Vec<Generation>,
    /// A flush that is over, before the metadata that it is for are there: data that were complete then are durable.
    flushed: Option<usize>,
    /// The activity log that was read last, and what is in it: most states differ elsewhere.
    log: RefCell<(Vec<u8>, Replay)>,
    rng: Rng,
    /// A core is putting metadata in order.
    attaching: bool,
    pub(super) states: u64,
    pub(super) attached: u64,
}

/// The blocks of 4 KiB of a range.
fn blocks(from: Sector, len: ByteLen) -> (u64, u64) {
    (from.0 / 8, (from.0 + len.0 / 512).div_ceil(8))
}

impl Disk {
    /// As it is now, with all of it durable.
    pub(super) fn new(node: &Node, unit: usize) -> Disk {
        Disk {
            layout: node.layout,
            cfg: node.cfg.clone(),
            unit,
            image: node.metadata.clone(),
            pending: Vec::new(),
            outstanding: VecDeque::new(),
            writes: BTreeMap::new(),
            flushes: BTreeMap::new(),
            needed: Needed::default(),
            linked: true,
            generations: vec![superblock(&node.metadata, &node.layout).expect("it is in use").current],
            flushed: None,
            log: RefCell::default(),
            rng: Rng::new(3),
            attaching: false,
            states: 0,
            attached: 0,
        }
    }

    /// Lets everything happen, and the power fail after each event.
    ///
    /// # Errors
    /// What one of the states has lost, and after which event.
    pub(super) fn crash_everywhere(&mut self, journal: &[Event]) -> Result<(), String> {
        for (now, event) in journal.iter().enumerate() {
            self.happen(now, event);
            let matters = matches!(
                event,
                Event::Meta(MetaOp::Write { .. }) | Event::MetaDone | Event::Write { .. } | Event::Confirmed(..)
            );
            if matters {
                self.crash().map_err(|text| format!("after event {now}, {}: {text}", brief(event)))?;
            }
        }
        Ok(())
    }

    fn happen(&mut self, now: usize, event: &Event) {
        let needed = &mut self.needed;
        match event {
            Event::Meta(MetaOp::Read { .. }) => self.outstanding.push_back(false),
            Event::Meta(MetaOp::Write { offset, bytes, flush_before, fua }) => {
                let at = (offset - metadata_at(&self.layout)) as usize;
                if *offset == self.layout.superblock_at().0 {
                    let current = parse(bytes).expect("a core writes good superblocks").current;
                    if !self.generations.iter().any(|g| g.same(current)) {
                        self.generations.push(current);
                    }
                }
                let (bytes, flush_before, fua) = (bytes.clone(), *flush_before, *fua);
                self.pending.push(Pending { at, bytes, flush_before, fua, began: now, done: None });
                self.outstanding.push_back(true);
            }
            Event::MetaDone => self.metadata_done(now),
            Event::Write { op, from, len, generation } => {
                needed.generation = Some(*generation);
                self.writes.insert(*op, (blocks(*from, *len), None));
            }
            Event::Flush(op) => drop(self.flushes.insert(*op, now)),
            Event::DiskDone(op) => match self.flushes.remove(op) {
                Some(began) => self.data_durable(began),
                None => {
                    if let Some((_, done)) = self.writes.get_mut(op) {
                        *done = Some(now);
                    }
                }
            },
            Event::Request(tag, from, len) => drop(needed.requests.insert(*tag, blocks(*from, *len))),
            Event::Complete(tag) => {
                let range = needed.requests.remove(tag).expect("it was asked for");
                for block in range.0..range.1 {
                    if self.linked {
                        needed.different.remove(&block)
                    } else {
                        needed.different.insert(block)
                    };
                }
            }
            Event::Sent(from, len) => needed.unconfirmed.push((blocks(*from, *len), None)),
            Event::Barrier(nr) => {
                needed.unconfirmed.iter_mut().filter(|(_, of)| of.is_none()).for_each(|(_, of)| *of = Some(nr.0));
            }
            Event::BarrierAcked(nr) => needed.unconfirmed.retain(|(_, of)| *of != Some(nr.0)),
            Event::PeerHas(from, len) => {
                let (first, end) = blocks(*from, *len);
                needed.different.retain(|block| !(first..end).contains(block));
            }
            Event::Confirmed(from, len) => {
                let (first, end) = blocks(*from, *len);
                let volatile = |block: &u64| self.writes.values().any(|((a, b), _)| (*a..*b).contains(block));
                needed.volatile.extend((first..end).filter(volatile));
            }
            Event::Link(up) => {
                self.linked = *up;
                if !up {
                    let lost = std::mem::take(&mut needed.unconfirmed);
                    needed.different.extend(lost.into_iter().flat_map(|((a, b), _)| a..b));
                }
            }
        }
    }

    /// Data that were complete then are durable now.
    fn data_durable(&mut self, then: usize) {
        self.writes.retain(|_, (_, done)| done.is_none_or(|done| done > then));
        let volatile = |block: &u64| self.writes.values().any(|((a, b), _)| (*a..*b).contains(block));
        self.needed.volatile.retain(volatile);
    }

    fn metadata_done(&mut self, now: usize) {
        if !self.outstanding.pop_front().expect("something was asked") {
            return;
        }
        let i = self.pending.iter().position(|p| p.done.is_none()).expect("it is being written");
        self.pending[i].done = Some(now);
        let (began, flush, fua) = (self.pending[i].began, self.pending[i].flush_before, self.pending[i].fua);
        if flush {
            self.data_durable(began);
        }
        let durable = |p: &Pending| (flush && p.done.is_some_and(|d| d < began)) || (fua && p.began == began);
        let image = &mut self.image;
        self.pending.retain(|p| {
            if durable(p) {
                image[p.at..p.at + p.bytes.len()].copy_from_slice(&p.bytes);
            }
            !durable(p)
        });
        if fua {
            // An older write of the same place does not come to rest over it: one writer, one place at a time.
            assert!(self.pending.iter().all(|p| p.began > began || p.at != self.pending_at(began)));
        }
    }

    fn pending_at(&self, began: usize) -> usize {
        self.pending.iter().find(|p| p.began == began).map_or(usize::MAX, |p| p.at)
    }

    // -- the power fails ----------------------------------------------------------------------------------------------

    fn crash(&mut self) -> Result<(), String> {
        // A write that flushes first is not there in part while the flush is not over; and once it is, what was
        // complete before is.
        let flushing: Vec<usize> =
            self.pending.iter().filter(|p| p.done.is_none() && p.flush_before).map(|p| p.began).collect();
        self.crash_with(|p| !(flushing.contains(&p.began)), &[])?;
        for began in flushing {
            let settled: Vec<usize> =
                self.pending.iter().filter(|p| p.done.is_some_and(|d| d < began)).map(|p| p.began).collect();
            self.flushed = Some(began);
            self.crash_with(|p| !settled.contains(&p.began), &settled)?;
            self.flushed = None;
        }
        Ok(())
    }

    /// All states in which the writes of `settled` are there, and parts of those that are `open` may be.
    fn crash_with(&mut self, open: impl Fn(&Pending) -> bool, settled: &[usize]) -> Result<(), String> {
        let mut image = self.image.clone();
        for p in self.pending.iter().filter(|p| settled.contains(&p.began)) {
            image[p.at..p.at + p.bytes.len()].copy_from_slice(&p.bytes);
        }
        let mut pieces: Vec<(usize, Vec<u8>)> = Vec::new();
        for p in self.pending.iter().filter(|p| open(p) && !settled.contains(&p.began)) {
            for (i, part) in p.bytes.chunks(self.unit).enumerate() {
                let at = p.at + i * self.unit;
                // What is the same before and after makes no difference.
                if image[at..at + part.len()] != *part || pieces.iter().any(|(other, _)| *other == at) {
                    pieces.push((at, part.to_vec()));
                }
            }
        }
        let mut state = image.clone();
        for chosen in subsets(pieces.len(), if self.attaching { FEW_SUBSETS } else { RANDOM_SUBSETS }, &mut self.rng) {
            let there = || pieces.iter().zip(&chosen).filter(|(_, yes)| **yes).map(|((at, part), _)| (*at, part));
            there().for_each(|(at, part)| state[at..at + part.len()].copy_from_slice(part));
            self.states += 1;
            self.check(&state)?;
            if !self.attaching && self.states.is_multiple_of(ATTACH_EVERY) {
                self.attach(&state)?;
            }
            there().for_each(|(at, part)| state[at..at + part.len()].copy_from_slice(&image[at..at + part.len()]));
        }
        Ok(())
    }

    fn needed_blocks(&self) -> impl Iterator<Item = u64> {
        let n = &self.needed;
        // A request that is not on the disk yet need not be found.
        let begun = |block: &u64| self.writes.values().any(|((a, b), _)| (*a..*b).contains(block));
        let requests = n.requests.values().flat_map(|(a, b)| *a..*b).filter(begun);
        let unconfirmed = n.unconfirmed.iter().flat_map(|((a, b), _)| *a..*b).filter(begun);
        requests
            .chain(unconfirmed)
            .chain(n.different.iter().copied())
            .chain(n.volatile.iter().copied().filter(|b| self.in_cache(*b)))
    }

    /// Is the block on this disk, and lost if the power fails now?
    fn in_cache(&self, block: u64) -> bool {
        let covered = |done: &Option<usize>| done.zip(self.flushed).is_some_and(|(done, began)| done < began);
        self.writes.values().any(|((a, b), done)| (*a..*b).contains(&block) && !covered(done))
    }

    /// What is written in metadata after a crash, read with the crate that writes them.
    fn check(&self, state: &[u8]) -> Result<(), String> {
        let sb = self.check_superblock(state)?;
        let base = metadata_at(&self.layout);
        let shape = self.layout.geometry().al();
        let from = (self.layout.al_at().0 - base) as usize;
        let ring = &state[from..from + shape.bytes().0 as usize];
        let mut log = self.log.borrow_mut();
        if log.0 != ring {
            let replayed = replay(ring, shape, sb.format, sb.al_extents);
            if replayed.is_err() && self.attaching {
                // The log is being emptied: half a one makes everything count as different. Too much, never too little.
                return Ok(());
            }
            *log = (ring.to_vec(), replayed.map_err(|e| format!("no activity log: {e:?}"))?);
        }
        let replayed = &log.1;
        if replayed.gap && self.attaching {
            return Ok(());
        }
        if !self.attaching && (replayed.gap || replayed.corrupt > 1) {
            return Err(format!("the activity log has a hole: {replayed:?}"));
        }
        let applied = !sb.is_clean() && sb.flags.contains(meta::DeviceFlags::PRIMARY_IND);
        let area = BitmapArea::new(sb.geometry, sb.effective_size);
        let mut pages: BTreeMap<u64, Vec<BitSet>> = BTreeMap::new();
        for block in self.needed_blocks() {
            if applied && replayed.hot.contains(&((block / 1024) as u32)) {
                continue;
            }
            let page = area.pages_of(block..block + 1).start;
            let bits = pages.entry(page).or_insert_with(|| {
                let mut slots: Vec<BitSet> = (0..area.slots()).map(|_| BitSet::new(area.bits())).collect();
                let at = (self.layout.bitmap_page_at(page).0 - base) as usize;
                area.load(page, state[at..].first_chunk().expect("a page"), &mut slots);
                slots
            });
            if !bits[0].contains(block) {
                return Err(format!("block {block} may differ, and nothing says so (log applied: {applied})"));
            }
        }
        Ok(())
    }

    /// It is an old one or a new one, and names the generation of what was written.
    fn check_superblock(&self, state: &[u8]) -> Result<Superblock, String> {
        let sb = superblock(state, &self.layout)?;
        let at = (self.layout.superblock_at().0 - metadata_at(&self.layout)) as usize;
        let found = &state[at..at + meta::BLOCK_LEN];
        let versions: Vec<&[u8]> = std::iter::once(&self.image[at..at + meta::BLOCK_LEN])
            .chain(self.pending.iter().filter(|p| p.at == at).map(|p| &p.bytes[..]))
            .collect();
        let torn = !versions.contains(&found);
        // v09 has more than a sector, and no checksum: what decides about a node's peer is in the first one.
        if torn && (sb.version() == meta::Version::V08 || self.unit > SECTOR) {
            return Err("a superblock of two halves".to_owned());
        }
        if torn && !versions.iter().any(|v| v[..SECTOR] == found[..SECTOR]) {
            return Err("a superblock whose first sector is of two halves".to_owned());
        }
        let place = |g: Generation| self.generations.iter().position(|known| known.same(g));
        let known = place(sb.current).ok_or("a generation that nobody began")?;
        if self.needed.generation.and_then(place).is_some_and(|needed| known < needed) {
            return Err(format!("data of {:?} is there, but the disk says {}", self.needed.generation, sb.current));
        }
        Ok(sb)
    }

    /// A core takes the disk into service, and knows all that it must.
    fn attach(&mut self, state: &[u8]) -> Result<(), String> {
        self.attached += 1;
        let mut cfg = self.cfg.clone();
        cfg.connections.truncate(1);
        let mut core = Resource::new(cfg, 77);
        let now = units::Instant(1);
        let mut image = state.to_vec();
        let mut journal = Vec::new();
        core.on_command(now, 1, Command::Attach { volume: VOLUME });
        let device = self.layout.device();
        for _ in 0..50 {
            core.on_turn_end(now);
            while let Some(effect) = core.poll_effect() {
                match effect {
                    Effect::OpenDisk { volume } => {
                        let opened = OpenedDisk {
                            backing: device,
                            meta_device: device,
                            can_discard: true,
                            discard_zeroes: true,
                            write_through: false,
                            block_size: 512,
                        };
                        core.on_disk_opened(now, volume, Ok(opened));
                    }
                    Effect::Meta { op, action, .. } => {
                        journal.extend([Event::Meta(action.clone()), Event::MetaDone]);
                        let result = Ok(crate::rig::act(&self.layout, &mut image, action));
                        core.on_meta_done(now, MetaDone { op, result });
                    }
                    Effect::CommandDone { result, .. } => result.map_err(|e| format!("attach: {e:?}"))?,
                    _ => {}
                }
                core.on_turn_end(now);
            }
        }
        if self.attached.is_multiple_of(CRASH_AGAIN_EVERY) {
            self.crash_again(state, &journal)?;
        }
        let peer = self.cfg.connections[0].peer;
        let range = |block: u64| units::SectorRange { start: Sector(block * 8), end: Sector(block * 8 + 8) };
        match self.needed_blocks().find(|block| core.known_different(VOLUME, peer, range(*block)) == 0) {
            Some(block) => Err(format!("attached, and block {block} counts as equal")),
            None => Ok(()),
        }
    }
}

impl Disk {
    /// The power fails once more, while metadata are put in order.
    fn crash_again(&self, state: &[u8], journal: &[Event]) -> Result<(), String> {
        let mut again = Disk {
            layout: self.layout,
            cfg: self.cfg.clone(),
            unit: self.unit,
            image: state.to_vec(),
            pending: Vec::new(),
            outstanding: VecDeque::new(),
            writes: BTreeMap::new(),
            flushes: BTreeMap::new(),
            needed: Needed { different: self.needed_blocks().collect(), ..Needed::default() },
            linked: false,
            generations: self.generations.clone(),
            flushed: None,
            log: RefCell::default(),
            rng: Rng::new(4),
            attaching: true,
            states: 0,
            attached: 0,
        };
        again.crash_everywhere(journal).map_err(|text| format!("crashed once more during the attach: {text}"))
    }
}

fn brief(event: &Event) -> String {
    match event {
        Event::Meta(MetaOp::Write { offset, bytes, flush_before, fua }) => {
            format!("{} bytes to {offset}, flush {flush_before}, fua {fua}", bytes.len())
        }
        other => format!("{other:?}"),
    }
}

fn parse(bytes: &[u8]) -> Result<Superblock, String> {
    Superblock::parse(bytes.first_chunk().ok_or("half a superblock")?).map_err(|e| e.to_string())
}

fn superblock(image: &[u8], layout: &Layout) -> Result<Superblock, String> {
    parse(&image[(layout.superblock_at().0 - metadata_at(layout)) as usize..])
}

/// Which of `n` pieces are there: every choice if they are few.
fn subsets(n: usize, some: usize, rng: &mut Rng) -> Vec<Vec<bool>> {
    if n as u32 <= ALL_SUBSETS && (some == RANDOM_SUBSETS || n < 4) {
        return (0..1u32 << n).map(|bits| (0..n).map(|i| bits >> i & 1 == 1).collect()).collect();
    }
    let mut all = vec![vec![false; n], vec![true; n]];
    all.extend((0..some).map(|_| (0..n).map(|_| rng.chance(1, 2)).collect()));
    let singles = (0..n).step_by((n / some).max(1));
    all.extend(singles.flat_map(|one| [true, false].map(|yes| (0..n).map(|i| (i == one) == yes).collect())));
    all
}
