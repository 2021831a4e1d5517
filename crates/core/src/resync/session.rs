//! A resync or verify under way towards one peer: its blocks and how far it is.

use crate::api::Segments;
use crate::dialect9::positions::record::Position;
use crate::dialect9::resync::pass::LastPass;
use crate::pings::PingNr;
use crate::resync::controller::{Controller, SourceBrake};
use crate::resync::marks::Marks;
use crate::resync::verify::run::{Chunk, Verify, VerifyRange};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use units::{BitSet, ByteLen, Duration, Generation, Instant, Sector, SectorRange};
use wire::{BlockId, BlockRequest, Digest};

/// The resync or verify of one peer device, in either role.
#[derive(Debug, Default)]
pub(crate) struct Resync {
    /// The walk goes on from this bit.
    pub(super) position: u64,
    /// Bits set when it began.
    pub(crate) total: u64,
    /// The target knows of it: its bitmap came for it, or it has asked for a block since, and has it.
    pub(crate) known: bool,
    /// Bits that could not be copied; they stay set and are not tried again.
    pub(super) failed: Option<BitSet>,
    /// Bits whose checksums were equal.
    pub(crate) same: u64,
    pub(crate) started: Option<Instant>,
    /// Target: when it ended, on this link.
    pub(crate) ended: Option<Instant>,
    /// The peer's generation when it began.
    pub(crate) peer_current: Option<Generation>,
    /// Target: the source depended on a Primary meanwhile (9).
    pub(crate) unstable: bool,
    /// This node's generation then.
    pub(crate) own_current: Generation,
    /// By their name in the device's `resyncing` intervals.
    pub(super) blocks: BTreeMap<u64, Block>,
    /// Bytes of blocks on their way.
    pub(super) in_flight: u64,
    /// Data that is here and not yet being written.
    pub(super) arrived: Vec<u64>,
    /// Requests of the peer that wait for local writes on the same blocks, or for their turn.
    pub(super) waiting: VecDeque<Ask>,
    /// A pass over the bitmap ended with blocks left: the next one begins then.
    pub(super) next_pass: Option<Instant>,
    /// Bits that were left when the last pass ended; 0: none has.
    pub(crate) left_by_pass: u64,
    /// Bits of the largest request, as answers were overtaken by writes of a third node; 0: as the rest allows.
    pub(super) largest: u64,
    pub(super) controller: Option<Controller>,
    pub(super) brake: Option<SourceBrake>,
    /// Ask with checksums.
    pub(super) csums: bool,
    /// What this one computes digests with, whatever is configured meanwhile: both nodes began with the same.
    pub(super) algorithm: Option<String>,
    /// A resync ends when this ping is answered, which flushes the acknowledgements on the other stream.
    pub(super) finishing: Option<PingNr>,
    /// The peer answered or acknowledged something last.
    pub(super) heard: Instant,
    /// Target: how far the end is (9).
    pub(crate) last_pass: LastPass,
    /// Target: extents with blocks that were copied, of which no peer has been told that they are in sync (9).
    pub(crate) untold: BTreeSet<u64>,
    pub(super) marks: Marks,
    pub(super) verify: Option<Verify>,
    /// What the administrator wants of the verify that is being agreed on.
    pub(super) wish: VerifyRange,
}

/// A block on its way.
#[derive(Debug)]
pub(super) struct Block {
    pub(super) range: SectorRange,
    /// What packets call it.
    pub(super) name: BlockId,
    pub(super) since: Instant,
    /// When its present disk operation began.
    pub(super) on_disk: Option<Instant>,
    /// Neighbours that the same disk operation is about.
    pub(super) with: Vec<u64>,
    pub(super) overtaken: Overtaken,
    pub(super) step: Step,
}

/// What third nodes have written while a block was on its way.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub(super) struct Overtaken {
    /// The source has these, and the target lacks them, perhaps: they stay marked.
    pub(super) marked: Vec<SectorRange>,
    /// The target has some: what comes from the source is not written any more.
    pub(super) written: bool,
}

#[derive(Debug)]
pub(super) enum Step {
    /// Target: our own content is being read for its checksum.
    Comparing,
    /// Target: its checksum is being computed.
    Summing(Segments),
    /// Target: asked for.
    Requested,
    /// Target: here, but an older application write to it is not on disk yet.
    Arrived(Segments),
    /// Target: being written.
    Writing(Segments),
    /// Target: still being written, although its resync is over. Nobody is told how it ends.
    Abandoned(Segments),
    /// Source (of a resync or the answering side of a verify): being read.
    Reading(Ask),
    /// The same: its digests are being computed.
    Digesting(Ask, Segments),
    /// Source: sent, not acknowledged.
    Sent,
    /// Source: the peer was told that it is all zeroes. It occupies no buffer here, and DRBD 9 confirms what it frees
    /// only when it has gathered more of it.
    Freed,
    /// Verify, answering side: its digests were sent; the results of so many bytes are awaited.
    ResultsAwaited(u64),
    /// Verify, asking side: asked for digests.
    Verifying(Chunk),
    /// Verify, asking side: our own content is being read.
    Checking(Chunk),
    /// Verify, asking side: our own digests are being computed.
    CheckSumming(Chunk, Segments),
}

impl Resync {
    /// What could not be copied may be tried again.
    pub(crate) fn forget_failed(&mut self) {
        self.failed = None;
    }

    /// Nothing of it is on its way or waits.
    pub(crate) fn is_idle(&self) -> bool {
        self.blocks.is_empty() && self.waiting.is_empty() && self.brake.is_none()
    }
}

impl Block {
    /// Is the peer to answer?
    pub(super) fn is_awaited(&self) -> bool {
        matches!(self.step, Step::Requested | Step::Sent | Step::Freed | Step::ResultsAwaited(_) | Step::Verifying(_))
    }

    pub(super) fn into_data(self) -> Segments {
        match self.step {
            Step::Arrived(data)
            | Step::Writing(data)
            | Step::Abandoned(data)
            | Step::Summing(data)
            | Step::Digesting(_, data)
            | Step::CheckSumming(_, data) => data,
            _ => Segments::None,
        }
    }
}

/// What the peer wants of a block.
#[derive(Clone, Debug)]
pub(crate) struct Ask {
    pub(crate) block: BlockRequest,
    pub(crate) want: Want,
    /// Bytes of one answer: all, or for a verify what one request asked for.
    pub(super) piece: u64,
    /// What the requests are called, piece by piece.
    pub(super) names: Vec<BlockId>,
    /// The write of a peer that must be here before it is read.
    pub(super) after: Option<Position>,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Want {
    /// Its data.
    Data,
    /// Its data, unless it is all zeroes.
    Thin,
    /// Its data, unless it has this digest.
    Unless(Digest),
    /// Its digest.
    Verify,
}

impl Ask {
    pub(super) fn range(&self) -> SectorRange {
        self.block.range().expect("the decoder checks ranges")
    }
}

/// What could not be done now is tried again after this time.
pub(super) const RETRY: Duration = Duration::from_millis(100);

/// Bytes that `bits` bitmap bits stand for.
pub(crate) fn bytes_of_bits(bits: u64) -> ByteLen {
    ByteLen(bits * 4096)
}

/// A range in pieces of so many bytes; the last one may be shorter.
pub(super) fn pieces(range: SectorRange, piece: u64) -> impl Iterator<Item = SectorRange> {
    let sectors = (piece / 512).max(1);
    let start = move |n: u64| Sector(range.start.0 + n * sectors);
    let count = (range.end.0 - range.start.0).div_ceil(sectors);
    (0..count).map(move |n| SectorRange { start: start(n), end: start(n + 1).min(range.end) })
}

/// How a resync request ended without data.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Answer {
    InSync,
    Failed,
    Cancelled,
}
