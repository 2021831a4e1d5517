//! A peer device: what is known of one peer's copy of one volume, cut by how long it is true.
//!
//! [`Lasting`] is kept from one link to the next, [`OnLink`] is made anew with each. The three machines (a resync or
//! verify, the handler that is asked before one, a repair that is due) say themselves what of them outlives a
//! link.

use crate::decide::state::Replication;
use crate::peer_device::exchange::Exchange;
use crate::resync::before::asked::BeforeResync;
use crate::resync::repair::due::Repair;
use crate::resync::session::Resync;
use crate::resync::stragglers::Stragglers;
use units::{Instant, Sector, is_after};
use wire::DiskState;

pub(crate) mod exchange;

/// One peer's copy of one volume.
#[derive(Debug, Default)]
pub(crate) struct PeerDevice {
    pub(crate) lasting: Lasting,
    pub(crate) link: OnLink,
    /// Blocks that are still being written for an older link keep their places.
    pub(crate) resync: Resync,
    pub(crate) before_resync: BeforeResync,
    pub(crate) repair: Repair,
}

/// What is true on one link. It stays as it was when the link ends, and begins anew with the next one.
#[derive(Debug, Default)]
pub(crate) struct OnLink {
    pub(crate) told: Told,
    pub(crate) compared: Compared,
    pub(crate) exchange: Exchange,
    pub(crate) io: PairIo,
    /// Answers to a resync or verify that was given up.
    pub(crate) stragglers: Stragglers,
}

impl OnLink {
    /// `sequence` is the number from which both nodes count what they send (`docs/spec/wire-protocol.md` 3.3).
    pub(crate) fn new(sequence: u32) -> OnLink {
        OnLink { io: PairIo::new(sequence), ..OnLink::default() }
    }
}

impl PeerDevice {
    /// A link begins.
    pub(crate) fn begin_link(&mut self, sequence: u32) {
        self.link = OnLink::new(sequence);
        self.repair.link_begins();
    }

    /// The link has ended: what was said of sizes, of refusals and of answers to come is not about the next one.
    pub(crate) fn end_link(&mut self) {
        self.link.told.sizes = None;
        self.link.io.refused_writes = false;
        self.link.told.uuids = None;
        self.link.exchange.forget();
        self.link.stragglers = Stragglers::default();
    }
}

/// What is kept from one link to the next.
#[derive(Debug, Default)]
pub(crate) struct Lasting {
    /// This volume was Established with the peer, and that was lost or ended (9's RECONNECT).
    pub(crate) was_established: bool,
    /// Why what is marked stays when both are equal by their generations (9).
    pub(crate) keeps: Keeps,
    /// The peer, which is not here, cannot have come to this node's generation without this one having heard of it (9).
    pub(crate) end_heard: bool,
    /// The peer's capacity; 0 = it never had a disk.
    pub(crate) peer_capacity: Sector,
    /// What the users of the peer, which has no disk, have seen, as it told last (9).
    pub(crate) exposed_before: Option<units::Generation>,
    /// The next verify goes on from this bit.
    pub(crate) verify_from: u64,
    /// A write has failed here that the peer may have, and no resync has ended since.
    pub(crate) write_failed: bool,
}

/// Why what is marked between two nodes stays when both are equal by their generations.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Keeps {
    /// It does not.
    #[default]
    Nothing,
    /// The peer, which may decide otherwise, has not said yet what it has come to.
    Unheard,
    /// They are equal by what a third node is to each of them, and it is to say itself who has what.
    Doubted,
    /// One of them was brought up to date by a third node. Which is to say until then that all three have the same; if
    /// it does not, the two compare as with `LostWrites`.
    Awaited(Instant),
    /// Among it is what a Primary wrote that was lost before it had said who has it.
    LostWrites,
}

/// What the peer has told of its copy.
#[derive(Debug, Default)]
pub(crate) struct Told {
    /// P_SIZES.
    pub(crate) sizes: Option<wire::Sizes>,
    /// P_UUIDS, and what has become of the peer's generations since.
    pub(crate) uuids: Option<wire::Uuids>,
    /// The peer's generations are those from before it knew of the disk that is being attached here.
    pub(crate) uuids_stale: bool,
    /// Its generations, as it told of them last (9).
    pub(crate) uuids110: Option<Box<wire::Uuids110>>,
    /// Marked blocks, as the peer was told last: both nodes decide about a split brain by the same numbers.
    pub(crate) changes_told: u64,
    /// The peer said last that its disk is being attached.
    pub(crate) attaching: bool,
    /// What the peer said last of what goes on (9). A source whose bitmap is awaited need not have said so.
    pub(crate) says: Replication,
    /// What it said last of its disk since the nodes were connected (9).
    pub(crate) says_disk: Option<DiskState>,
    /// The peer has said last that it has marked something for this node's copy, which is good, and since then that
    /// nothing is marked up to here (9).
    pub(crate) marked_by_peer: Option<Sector>,
    /// One of the two was brought up to date by a third node, and has another generation than the other one by now (9).
    pub(crate) parted: bool,
    /// What the peer wants to be sent while its disk is Inconsistent (9).
    pub(crate) when_bad: WhenBad,
    /// The same, from the next time on that it becomes Inconsistent.
    pub(crate) when_bad_next: WhenBad,
}

/// Does a peer whose disk is Inconsistent want to be sent what is written (9: P_ENABLE_REPLICATION)?
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum WhenBad {
    /// Also what is not being resynced yet.
    #[default]
    Writes,
    /// Only what was resynced; the rest is marked.
    Marks,
}

impl WhenBad {
    pub(crate) fn new(enabled: bool) -> WhenBad {
        if enabled { WhenBad::Writes } else { WhenBad::Marks }
    }
}

impl Told {
    /// This node is no target any more: what the peer has said of being its source is about a resync that is over here.
    /// Not every source says when it is over for itself.
    pub(crate) fn forget_source(&mut self) {
        if self.says.is_source() {
            self.says = Replication::Off;
        }
    }

    /// Both have agreed at a connect (9): what the peer said before that is of the past.
    pub(crate) fn forget_words_before_connect(&mut self) {
        (self.says, self.says_disk, self.marked_by_peer) = (Replication::Off, None, None);
    }
}

/// How far the comparison of the generations is. It is about the disks that both have now.
#[derive(Debug, Default)]
pub(crate) struct Compared {
    /// The generations of both sides were compared since the peer has its disk, and its data was not refused.
    pub(crate) done: bool,
    /// A resync is about to begin, but the peer has not compared yet what led to it.
    pub(crate) undecided: bool,
    /// The peer was forced to be Primary: its next P_STATE is a reason to compare again.
    pub(crate) again: bool,
}

/// What is sent and received about the volume.
#[derive(Debug, Default)]
pub(crate) struct PairIo {
    /// Next sequence number is this plus one (`docs/spec/wire-protocol.md` 3.3).
    seq: u32,
    /// The highest sequence number seen from the peer.
    peer_seq: u32,
    /// The number that the peer's last answer would have if it had sent nothing but answers.
    pub(crate) peer_answers: u32,
    /// The peer's writes that were taken up, or answered at once; wraps around.
    pub(crate) peer_writes: u32,
    /// Since when the peer has refused a write of this node, and it has not been heard what became of its disk (9).
    pub(crate) refuses: Option<Instant>,
    /// Writes of the peer were refused on this link: a disk that was attached here since lacks them.
    pub(crate) refused_writes: bool,
    /// Application data sent and not confirmed by a barrier ack.
    pub(crate) sectors_in_flight: u64,
    /// Ahead: since when everything that was sent is confirmed.
    pub(crate) caught_up: Option<Instant>,
    /// Bytes of data.
    pub(crate) sent_bytes: u64,
    pub(crate) received_bytes: u64,
    /// Requests that wait for the peer's answer.
    pub(crate) pending: u32,
    /// The peer's writes that are not answered yet.
    pub(crate) unacked: u32,
}

impl PairIo {
    pub(crate) fn new(sequence: u32) -> PairIo {
        PairIo { seq: sequence, peer_seq: sequence, peer_answers: sequence, ..PairIo::default() }
    }

    /// Remembers the highest sequence number of the peer.
    pub(crate) fn saw_seq(&mut self, seq: u32) {
        if is_after(seq, self.peer_seq) {
            self.peer_seq = seq;
        }
    }

    /// Is what the peer has sent before this number not here yet?
    pub(crate) fn lacks_number_before(&self, seq: u32) -> bool {
        is_after(seq.wrapping_sub(1), self.peer_seq)
    }

    pub(crate) fn next_seq(&mut self) -> u32 {
        self.seq = self.seq.wrapping_add(1);
        self.seq
    }

    /// An answer of the peer has come, with this number.
    pub(crate) fn is_answered(&mut self, seq: u32) {
        self.peer_answers = self.peer_answers.wrapping_add(1);
        self.saw_seq(seq);
    }

    /// A write of the peer has come.
    pub(crate) fn count_write(&mut self) {
        self.peer_writes = self.peer_writes.wrapping_add(1);
    }
}
