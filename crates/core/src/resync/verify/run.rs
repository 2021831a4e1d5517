//! A verify under way.

use std::collections::VecDeque;
use units::Sector;
use wire::Digest;

/// What to verify.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct VerifyRange {
    pub(crate) start: Option<Sector>,
    pub(crate) stop: Option<Sector>,
    pub(crate) repair: bool,
}

/// A run of blocks that the asking side compares in one go: each is a request on the wire, as the protocol wants it,
/// but the disk is read once.
#[derive(Debug)]
pub(crate) struct Chunk {
    /// The peer's digest of each block: not here yet, refused, or here.
    pub(super) theirs: Vec<Option<Result<Digest, ()>>>,
    pub(super) missing: usize,
}

impl Chunk {
    pub(super) fn new(blocks: usize) -> Chunk {
        Chunk { theirs: vec![None; blocks], missing: blocks }
    }

    /// Notes the answer for block number `n`; `false` if there was one already, or no such block.
    pub(super) fn answered(&mut self, n: usize, answer: Result<Digest, ()>) -> bool {
        match self.theirs.get_mut(n) {
            Some(place @ None) => *place = Some(answer),
            _ => return false,
        }
        self.missing -= 1;
        true
    }
}

/// This node's part in a verify.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Side {
    /// It asks and compares.
    Asks,
    /// It answers. No request has come yet.
    Waits,
    /// It answers.
    Answers,
}

/// A running verify. Positions and amounts are bits of the bitmap.
#[derive(Debug)]
pub(crate) struct Verify {
    pub(super) side: Side,
    pub(super) position: u64,
    pub(super) end: u64,
    pub(super) left: u64,
    pub(super) found: u64,
    pub(super) skipped: u64,
    pub(super) repair: bool,
    /// Busy blocks, with how often they were tried.
    pub(super) later: VecDeque<(u64, u32)>,
}

/// What the request for block number `n` of a run is called.
pub(super) fn name_of_piece(id: u64, n: usize) -> u64 {
    id | (n as u64) << 48
}

impl Verify {
    pub(in crate::resync) fn left(&self) -> u64 {
        self.left
    }

    /// Is only the rest of the answers awaited?
    pub(in crate::resync) fn all_asked(&self) -> bool {
        self.position >= self.end && self.later.is_empty()
    }
}
