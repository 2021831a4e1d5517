//! A volume's local side: its disk state, its metadata in memory, and the application's requests to it.

use crate::al::queue::AlQueue;
use crate::api::{Access, OpenedDisk, Openers};
use crate::command::caller::Caller;
use crate::config::{DiskConfig, VolumeConfig};
use crate::dialect9::first_write::due::FirstWrite;
use crate::latency::Latencies;
use crate::metadata::writer::MdWriter;
use crate::repetition::place::Repetition;
use crate::request::admission::Admission;
use crate::slab::Slab;
use units::{BitSet, ByteLen, Duration, Generation, Instant, NodeMask, Sector, SectorRange};
use wire::DiskState;

/// A volume on this node. What is the disk's alone, from when it is attached until it is let go of, is in [`Backing`].
#[derive(Debug, Default)]
pub(crate) struct Device {
    pub(crate) cfg: Option<DiskConfig>,
    /// The size that applications see, agreed with the peers.
    pub(crate) size: Sector,
    pub(crate) backing: Option<Backing>,
    pub(crate) disk: DiskUse,
    pub(crate) seen: Exposure,
    pub(crate) due: GenerationDue,
    pub(crate) queue: Admission,
    pub(crate) al_queue: AlQueue,
    pub(crate) stats: Stats,
    pub(crate) openers: Openers,
    /// What the front ends were last told.
    pub(crate) announced: Option<(ByteLen, Access, bool)>,
    /// Where the copies may differ until a write has been done again.
    pub(crate) repetitions: Slab<Repetition>,
    /// A volume of another resource, which comes first by `resync-after`, syncs or is paused.
    pub(crate) waits_elsewhere: bool,
    /// Since when nobody brings a bad copy up to date although somebody could (9).
    pub(crate) lags_since: Option<Instant>,
}

/// How the disk is taken into service and let go of, and what goes on there.
#[derive(Debug, Default)]
pub(crate) struct DiskUse {
    /// What the metadata say the disk is, while `disk` is Negotiating or unconnected decisions are open.
    pub(crate) attach_state: DiskState,
    /// The metadata say that this node crashed as a Primary, beside these peers.
    pub(crate) left_beside: Option<NodeMask>,
    pub(crate) crashed_primary: bool,
    pub(crate) attaching: Option<crate::attach::attaching::Attaching>,
    pub(crate) attached_at: Instant,
    /// How often a disk was taken into service or let go of.
    pub(crate) disks_seen: u64,
    /// The disk is being let go of.
    pub(crate) leaving: Option<Leaving>,
    /// Detach commands that wait for the end of it.
    pub(crate) detach_commands: Vec<Caller>,
    /// Disk operations in flight on the data area: all, and those of applications.
    pub(crate) local_pending: u32,
    pub(crate) upper_pending: u32,
    /// Metadata operations in flight, and since when none of them has ended.
    pub(crate) meta_pending: u32,
    pub(crate) meta_since: Instant,
    /// When pages of the bitmap that resyncs have changed were written last.
    pub(crate) last_lazy_bitmap: Instant,
}

/// Which data the users of this device have seen, and who lacks some of it.
#[derive(Debug, Default)]
pub(crate) struct Exposure {
    /// The generation that users of this device have seen (`docs/spec/connection-and-state.md` 7.9).
    pub(crate) exposed: Generation,
    /// The one that `exposed` has followed, as long as nothing that was written since is completed (7.8).
    pub(crate) predecessor: Option<Generation>,
    /// Who has no part in `exposed`, as this node without a disk has begun it (9).
    pub(crate) left_out: NodeMask,
    /// Good copies whose nodes have not said that `exposed`, which this node without a disk has begun, is on their
    /// disks (7.8).
    pub(crate) unconfirmed: NodeMask,
    /// Those that have said so.
    pub(crate) confirmed: NodeMask,
    /// Writes were completed that only a peer has: the own disk is too old for the users of this device, also if no
    /// new generation of the peer was heard of.
    pub(crate) outrun: bool,
    /// The own disk was given up under a write of a peer, which it lacks, and has not been copied to since (9).
    pub(crate) lacks_peers_write: bool,
    pub(crate) peers_disk: PeersDisk,
}

/// A new current generation that is due.
#[derive(Debug, Default)]
pub(crate) struct GenerationDue {
    /// I/O is suspended: it is made when I/O resumes.
    pub(crate) new_generation_pending: bool,
    /// It begins with the first write of the peer, a Primary without a disk.
    pub(crate) generation_with_first_write: bool,
    /// The same with the own first write, in 9's dialect.
    pub(crate) first_write: FirstWrite,
}

/// What `status` counts.
#[derive(Debug, Default)]
pub(crate) struct Stats {
    pub(crate) read_bytes: u64,
    pub(crate) written_bytes: u64,
    pub(crate) al_writes: u64,
    pub(crate) bm_writes: u64,
    pub(crate) latencies: Latencies,
}

/// What a peer's disk lacks of what the users of this device have seen.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) enum PeersDisk {
    /// Nothing that is known of.
    #[default]
    Current,
    /// The peer has refused writes that the own disk has, and no resync has brought them to it since.
    Refused,
    /// Writes were completed that the peer may not have, and the own disk that has them is gone: the peer's data is too
    /// old for the users of this device.
    Stale,
}

/// How a disk is let go of.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Leaving {
    /// When nothing uses it, and its metadata say so: nothing is to be replayed at the next attach.
    InOrder,
    /// The same, and it has not failed: the node goes down.
    Asked,
    /// When nothing uses it. Its metadata cannot be written.
    AsItIs,
    /// Whatever uses it.
    AtOnce,
}

/// What exists while a disk is attached.
#[derive(Debug)]
pub(crate) struct Backing {
    pub(crate) opened: OpenedDisk,
    pub(crate) layout: meta::Layout,
    pub(crate) md: meta::Superblock,
    pub(crate) al: meta::ActivityLog,
    /// Per slot of the metadata: which blocks differ from the peer that the slot belongs to.
    pub(crate) bitmaps: Vec<BitSet>,
    /// Pages of the bitmap area that differ from the disk.
    pub(crate) dirty: meta::DirtyPages,
    /// The device size that the bitmap is laid out for.
    pub(crate) bitmap_size: Sector,
    /// The metadata was marked clean for the last time: flags stay as they are.
    pub(crate) closing_clean: bool,
    pub(crate) writer: MdWriter,
    /// All bits were set: the flag that says so goes when they are on disk.
    pub(crate) full_sync: bool,
    pub(crate) flushing: Flushing,
}

/// What a flush of the data must still cover. Only what was complete when a flush began is durable when it ends.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Flushing {
    /// Writes that have completed.
    written: u64,
    /// Of those, durable.
    flushed: u64,
}

impl Flushing {
    /// Nothing is known about what was written before.
    pub(crate) fn unknown() -> Flushing {
        Flushing { written: 1, flushed: 0 }
    }

    pub(crate) fn is_needed(self) -> bool {
        self.written > self.flushed
    }

    pub(crate) fn note_write(&mut self) {
        self.written += 1;
    }

    /// What a flush that begins now will cover.
    pub(crate) fn mark(self) -> u64 {
        self.written
    }

    pub(crate) fn note_flushed(&mut self, mark: u64) {
        self.flushed = self.flushed.max(mark);
    }
}

impl PeersDisk {
    /// The users begin with what there is, or see the own disk.
    pub(crate) fn follow_users(&mut self) {
        if *self == PeersDisk::Stale {
            *self = PeersDisk::Current;
        }
    }

    /// A resync begins.
    pub(crate) fn gets_what_it_refused(&mut self) {
        if *self == PeersDisk::Refused {
            *self = PeersDisk::Current;
        }
    }
}

impl Device {
    pub(crate) fn new(cfg: &VolumeConfig) -> Device {
        Device { cfg: cfg.disk.clone(), ..Device::default() }
    }

    /// Does the disk, in this state of it, take reads and writes?
    pub(crate) fn is_usable(&self, disk: DiskState) -> bool {
        self.backing.is_some() && disk >= DiskState::Inconsistent && disk != DiskState::DUnknown
    }

    /// Its disk is let go of, in this way or a worse one.
    pub(crate) fn lets_go(&mut self, how: Leaving) {
        self.disk.leaving = self.disk.leaving.max(Some(how));
    }

    /// Does the own disk lack writes that users of this device, or of a peer's, have seen?
    pub(crate) fn lacks_writes(&self) -> bool {
        self.seen.outrun || self.seen.lacks_peers_write
    }

    /// Has the disk a volatile cache that epochs are to be flushed from?
    pub(crate) fn needs_flushes(&self) -> bool {
        let wanted = self.cfg.as_ref().is_some_and(|c| c.disk_flushes);
        wanted && self.backing.as_ref().is_some_and(|b| !b.opened.write_through)
    }

    /// Is something under way on the disk that must end within `disk-timeout`?
    pub(crate) fn is_busy(&self) -> bool {
        self.disk.local_pending > 0 || self.disk.meta_pending > 0 || !self.queue.resyncing.is_empty()
    }

    /// Does the range lie in the device?
    pub(crate) fn holds(&self, range: SectorRange) -> bool {
        range.end <= self.size
    }

    pub(crate) fn disk_timeout(&self) -> Option<Duration> {
        self.cfg.as_ref().map(|c| c.disk_timeout).filter(|limit| limit.0 > 0)
    }
}
