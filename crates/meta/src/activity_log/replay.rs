//! Reading a ring back: which extents were hot (`docs/spec/on-disk-format.md` 3.9, 3.12, 3.13).

use super::block::{self, Invalid, UpdateView, View};
use super::{NO_EXTENT, old_format};
use crate::bytes::be32;
use crate::layout::AlShape;
use crate::{BLOCK_LEN, Block, Format};
use std::collections::BTreeSet;

const PMEM_MAGIC: u32 = 0x6AA6_67A6;

/// What a ring says.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Replay {
    /// Hot extents.
    pub hot: BTreeSet<u32>,
    /// Were there records at all? Without, the ring need not be re-initialised.
    pub has_records: bool,
    /// Blocks that are not valid.
    pub corrupt: u32,
    /// Those among them that were written, if not wholly, or damaged since: not empty.
    pub damaged: u32,
    /// Those among them of which one bit had flipped, and that count as if it had not.
    pub repaired: u32,
    /// Is one of them strictly between the oldest and the newest record, so that a transaction is missing? Then only
    /// treating the whole device as out of sync is strictly safe (the reference skips the block).
    pub gap: bool,
    /// Must the ring be re-initialised in any case (it has the format of DRBD 8.3)?
    pub must_reinitialize: bool,
}

/// Why a ring says nothing. Harmless if the node was not Primary.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ReplayError {
    /// Not one valid block.
    NoUsableLog,
    /// Initialised blocks, damaged blocks, and no transaction.
    Mixed,
    /// The bytes given are not the ring's size.
    WrongLength,
}

/// Which of the formats a ring has (`docs/spec/on-disk-format.md` 3.10 step 2).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RingFormat {
    /// 4096-byte transactions (8.4 and later).
    Transactions,
    /// One word per slot in persistent memory (9.0.18 and later).
    Pmem,
    /// 512-byte records (0.7 to 8.3).
    Old,
}

/// Recognises the format of a ring.
#[must_use]
pub fn recognise(ring: &[u8], shape: AlShape, format: Format) -> RingFormat {
    let word_at = |at: usize| ring.get(at..at + 4).map(|b| be32(b, 0));
    if word_at(0) == Some(PMEM_MAGIC) {
        return RingFormat::Pmem;
    }
    let has_magic = [0, BLOCK_LEN].iter().any(|&at| word_at(at) == Some(block::MAGIC));
    if format != Format::V08 || shape != AlShape::DEFAULT || has_magic {
        RingFormat::Transactions
    } else {
        RingFormat::Old
    }
}

/// Reads the whole activity log area of a superblock with this `format` and `al_extents` field. `ring` must have
/// [`AlShape::bytes`] bytes.
pub fn replay(ring: &[u8], shape: AlShape, format: Format, al_extents: u32) -> Result<Replay, ReplayError> {
    if ring.len() as u64 != shape.bytes().0 {
        return Err(ReplayError::WrongLength);
    }
    match recognise(ring, shape, format) {
        RingFormat::Transactions => replay_transactions(ring, shape),
        RingFormat::Pmem => Ok(replay_pmem(ring, al_extents)),
        RingFormat::Old => Ok(old_format::replay(ring, al_extents)),
    }
}

fn replay_transactions(ring: &[u8], shape: AlShape) -> Result<Replay, ReplayError> {
    let n = shape.blocks();
    let mut replay = Replay::default();
    let mut invalid = Vec::new();
    let mut initialized = 0;
    // Oldest and newest as (position t in the ring, transaction number).
    let mut ends: Option<((u32, u32), (u32, u32))> = None;
    for t in 0..n {
        match read(ring, shape, t) {
            Err(_) => {
                invalid.push(t);
                replay.damaged += u32::from(bytes(ring, shape, t).iter().any(|&b| b != 0));
            }
            Ok(View::Initialized) => initialized += 1,
            Ok(View::Update(u)) => {
                let me = (t, u.tr_number());
                let (oldest, newest) = ends.unwrap_or((me, me));
                ends = Some((
                    if is_before(me.1, oldest.1) { me } else { oldest },
                    if is_before(newest.1, me.1) { me } else { newest },
                ));
            }
        }
    }
    replay.corrupt = invalid.len() as u32;
    let Some((oldest, newest)) = ends else {
        return match (initialized, invalid.as_slice()) {
            (0, _) => Err(ReplayError::NoUsableLog),
            (_, []) => Ok(replay),
            // The very first transaction is torn, or was damaged.
            (_, [0]) => {
                let mut slots = Slots::default();
                if let Some(block) = repaired(ring, shape, 0) {
                    replay.apply_repaired(&mut slots, &block);
                }
                (replay.has_records, replay.hot) = (replay.repaired > 0, slots.hot());
                Ok(replay)
            }
            _ => Err(ReplayError::Mixed),
        };
    };
    replay.has_records = true;
    let steps = (newest.0 + n - oldest.0) % n;
    let mut slots = Slots::default();
    for t in (0..=steps).map(|k| (oldest.0 + k) % n) {
        match read(ring, shape, t) {
            Ok(View::Update(u)) => slots.apply(u),
            Ok(View::Initialized) => {}
            Err(_) => match repaired(ring, shape, t) {
                Some(block) => replay.apply_repaired(&mut slots, &block),
                None => replay.gap = true,
            },
        }
    }
    // Behind the newest that is valid: a torn one was never relied on, but a disk may have damaged one that was.
    let next = repaired(ring, shape, (newest.0 + 1) % n).filter(|block| follows(block, newest.1));
    if let Some(block) = next {
        replay.apply_repaired(&mut slots, &block);
    }
    replay.hot = slots.hot();
    Ok(replay)
}

impl Replay {
    fn apply_repaired(&mut self, slots: &mut Slots, block: &Block) {
        if let Ok(View::Update(u)) = block::parse(block) {
            self.repaired += 1;
            slots.apply(u);
        }
    }

    /// What there is to say about damage, for a log; `None` if there is none.
    #[must_use]
    pub fn complaint(&self) -> Option<String> {
        match (self.gap, self.damaged - self.repaired) {
            (false, 0) if self.repaired > 0 => Some(format!(
                "the activity log had {} blocks with a flipped bit, which was found and corrected. The disk damages data by \
                 itself: compare the copies with verify",
                self.repaired
            )),
            (true, n) => Some(format!(
                "the activity log has a hole ({n} damaged blocks): which blocks were being written is not known"
            )),
            (false, 0) => None,
            (false, n) => Some(format!(
                "the activity log has {n} damaged blocks outside its transactions: the newest is taken for one that \
                 was being written when the node crashed, and that no write depended on. If the disk damages data by \
                 itself, that may be wrong: compare the copies with verify"
            )),
        }
    }
}

fn is_before(a: u32, b: u32) -> bool {
    (a.wrapping_sub(b) as i32) < 0
}

/// The transaction in a block of which one bit has flipped.
fn repaired(ring: &[u8], shape: AlShape, t: u32) -> Option<Box<Block>> {
    let block: &Block = bytes(ring, shape, t).try_into().ok()?;
    block::parse(block).err().and_then(|_| block::repaired(block))
}

/// Is it the transaction after the one with this number?
fn follows(block: &Block, newest: u32) -> bool {
    matches!(block::parse(block), Ok(View::Update(u)) if u.tr_number() == newest.wrapping_add(1))
}

fn read(ring: &[u8], shape: AlShape, t: u32) -> Result<View<'_>, Invalid> {
    let block: &Block = bytes(ring, shape, t).try_into().map_err(|_| Invalid::Magic)?;
    block::parse(block)
}

fn bytes(ring: &[u8], shape: AlShape, t: u32) -> &[u8] {
    let at = shape.block_of(t) as usize * BLOCK_LEN;
    &ring[at..at + BLOCK_LEN]
}

fn replay_pmem(ring: &[u8], al_extents: u32) -> Replay {
    // The field is not trustworthy: never more slots than the area has.
    let words = ring.chunks_exact(4).skip(1).take(al_extents as usize);
    let hot: BTreeSet<u32> = words.map(|w| be32(w, 0)).filter(|&e| e != NO_EXTENT).collect();
    Replay { hot, has_records: true, ..Replay::default() }
}

/// The cache's slots while replaying.
#[derive(Default)]
pub(super) struct Slots(Vec<u32>);

impl Slots {
    fn apply(&mut self, update: UpdateView<'_>) {
        for (slot, extent) in update.assignments() {
            self.put(slot, extent);
        }
    }

    pub(super) fn put(&mut self, slot: u16, extent: u32) {
        let slot = usize::from(slot);
        if slot >= self.0.len() {
            self.0.resize(slot + 1, NO_EXTENT);
        }
        self.0[slot] = extent;
    }

    pub(super) fn hot(self) -> BTreeSet<u32> {
        self.0.into_iter().filter(|&e| e != NO_EXTENT).collect()
    }
}

impl std::fmt::Display for ReplayError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            ReplayError::NoUsableLog => "no usable activity log found: treat the whole device as out of sync",
            ReplayError::Mixed => {
                "the activity log is a mixture of initialised and damaged blocks: treat the whole device as out of sync"
            }
            ReplayError::WrongLength => "the activity log has another size than the superblock says",
        })
    }
}

impl std::error::Error for ReplayError {}
