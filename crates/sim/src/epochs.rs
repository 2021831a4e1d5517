//! What a node has sent to its peer and knows nothing of yet: the order of epochs, and which extents must stay in the
//! activity log (`docs/spec/data-path-and-resync.md` 1.7 to 1.9).

use crate::apps::FIRST_WRITE;
use crate::cluster::{Cluster, Volume};
use crate::net::Wish;
use crate::oracle::{Moment, Written};
use crate::payload::{ContentId, Payload, ZEROES};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Range;
use units::SectorRange;
use wire::{BlockAck, BlockId, ConnState, DiskState, Packet};

/// The epochs of one node's present connection, as its data stream shows them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Epochs {
    connection: u64,
    /// Barriers sent, and answered.
    sent: u64,
    confirmed: u64,
    /// Writes that no barrier acknowledgement has confirmed.
    open: VecDeque<Open>,
    /// Writes of the present epoch.
    in_epoch: u32,
    /// When the first write of the present epoch was completed to its application.
    completed: Option<Moment>,
    /// Writes that were completed to their applications and that no barrier acknowledgement has confirmed.
    early: Vec<Early>,
    /// Volumes whose writes the peer is only told of: its copy is none to go by, whatever part of a write it has.
    ahead: BTreeSet<usize>,
}

/// A write that is sent, and not confirmed.
#[derive(Clone, Debug)]
struct Open {
    epoch: u64,
    volume: usize,
    range: SectorRange,
    /// By which the peer names it in its answer.
    block_id: BlockId,
    /// Empty where nobody asks.
    content: Payload,
}

/// A write that is complete, and not confirmed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Early {
    pub(crate) completed: Moment,
    epoch: u64,
    pub(crate) volume: usize,
    pub(crate) write: Written,
    /// How many were acknowledged on its node by then.
    pub(crate) count: u64,
}

/// Writes of the peer that have reached a disk.
#[derive(Clone, Debug, Default)]
pub(crate) struct Arrived {
    /// By the content: which of its sectors, and the disk's mark when the last of them came; 0 = durable at once.
    writes: BTreeMap<ContentId, (Vec<Range<u64>>, u64)>,
    /// What is covered by a flush.
    flushed: u64,
    /// What was not, when the power was lost.
    lost: std::collections::BTreeSet<ContentId>,
    /// The disk failed or was let go of in this turn, perhaps for one that is being attached: what is missing on it is
    /// marked.
    pub(crate) closed: bool,
}

impl Arrived {
    /// So many are remembered at least: far more than can be unconfirmed.
    const MOST: usize = 1 << 15;

    /// A disk has written this; `mark`: its mark then, 0 if it needs no flush.
    pub(crate) fn note_written(&mut self, content: &Payload, mark: u64) {
        for piece in content.0.iter().filter(|piece| piece.id != ZEROES) {
            let (sectors, last) = self.writes.entry(piece.id).or_default();
            join(sectors, piece.origin..piece.origin + piece.sectors);
            *last = mark.max(*last);
        }
        if self.writes.len() > 2 * Self::MOST {
            let middle = self.writes.keys().nth(Self::MOST).copied().expect("so many");
            self.writes = self.writes.split_off(&middle);
        }
    }

    /// All that was written before this mark is durable.
    pub(crate) fn note_flushed(&mut self, mark: u64) {
        self.flushed = mark.max(self.flushed);
    }

    /// The power was lost: what no flush has covered may be gone.
    pub(crate) fn lose_power(&mut self) {
        let flushed = self.flushed;
        let lost = self.writes.iter().filter(|(_, (_, mark))| *mark > flushed).map(|(id, _)| *id);
        self.lost.extend(lost);
        self.writes.retain(|_, (_, mark)| *mark <= flushed);
    }

    /// Was it in the disk's cache when the power was lost?
    pub(crate) fn is_lost(&self, write: &Written) -> bool {
        self.lost.contains(&write.content)
    }

    /// Is all of it on the disk, or in its cache? Of zeroes that is not known.
    pub(crate) fn is_whole(&self, write: &Written) -> bool {
        self.writes.get(&write.content).is_some_and(|(sectors, _)| covers(sectors, write.range))
    }

    fn is_stable(&self, write: &Written) -> bool {
        let stable = |mark: &u64| *mark <= self.flushed;
        self.writes.get(&write.content).is_some_and(|(sectors, mark)| covers(sectors, write.range) && stable(mark))
    }
}

/// Adds a range to those that do not touch each other.
fn join(ranges: &mut Vec<Range<u64>>, mut new: Range<u64>) {
    ranges.retain(|r| {
        let touches = r.start <= new.end && new.start <= r.end;
        if touches {
            new = r.start.min(new.start)..r.end.max(new.end);
        }
        !touches
    });
    ranges.push(new);
}

fn covers(ranges: &[Range<u64>], range: SectorRange) -> bool {
    ranges.iter().any(|r| r.start <= range.start.0 && range.end.0 <= r.end)
}

impl Epochs {
    /// A packet goes out on this connection.
    fn sent(&mut self, connection: u64) -> &mut Epochs {
        if self.connection != connection {
            *self = Epochs { connection, ..Epochs::default() };
        }
        self
    }

    /// The epoch that a write sent now is in.
    pub(crate) fn present(&self) -> u64 {
        self.sent
    }

    /// A write that was sent in this epoch of this connection was completed to its application; `good`: without an
    /// error, on which volume, what it was, and the how many-th that was acknowledged.
    pub(crate) fn note_completed(
        &mut self,
        (connection, epoch): (u64, u64),
        now: Moment,
        good: Option<(usize, Written, u64)>,
    ) {
        if self.connection != connection {
            return;
        }
        if self.sent == epoch {
            self.completed.get_or_insert(now);
        }
        if let Some((volume, write, count)) = good.filter(|(v, ..)| epoch >= self.confirmed && !self.ahead.contains(v))
        {
            self.early.push(Early { completed: now, epoch, volume, write, count });
        }
    }

    /// Writes to a volume that applications know to be complete, and that the peer may not have yet.
    pub(crate) fn early(&self, v: usize) -> impl Iterator<Item = &Written> {
        self.unheard(v).map(|early| &early.write)
    }

    /// The same, in the order in which they were completed.
    pub(crate) fn unheard(&self, v: usize) -> impl Iterator<Item = &Early> {
        self.early.iter().filter(move |early| early.volume == v)
    }

    /// The oldest epoch is confirmed: which of its writes were complete before.
    fn confirm(&mut self) -> Vec<Early> {
        let epoch = self.confirmed;
        self.open.retain(|open| open.epoch != epoch);
        let (confirmed, rest) = std::mem::take(&mut self.early).into_iter().partition(|early| early.epoch <= epoch);
        self.early = rest;
        self.confirmed += 1;
        confirmed
    }

    /// All up to this number that were acknowledged for a volume are confirmed, if `count` is.
    pub(crate) fn confirmed_up_to(&self, v: usize, count: u64) -> u64 {
        let unconfirmed = self.early.iter().filter(|early| early.volume == v).map(|early| early.count - 1);
        unconfirmed.min().map_or(count, |before| before.min(count))
    }
}

impl Cluster {
    /// A node hands a packet to its data stream.
    pub(crate) fn note_sent(
        &mut self,
        (n, peer): (usize, usize),
        v: usize,
        packet: &Packet,
        payload: &Payload,
        connection: u64,
    ) -> Result<(), String> {
        let (range, block_id) = match packet {
            Packet::Barrier(_) => {
                let epochs = self.nodes[n].epochs[peer].sent(connection);
                epochs.sent += 1;
                epochs.in_epoch = 0;
                epochs.completed = None;
                return Ok(());
            }
            Packet::State(word) => {
                let epochs = self.nodes[n].epochs[peer].sent(connection);
                if word.conn == ConnState::Ahead {
                    epochs.ahead.insert(v);
                    epochs.early.retain(|early| early.volume != v);
                } else {
                    epochs.ahead.remove(&v);
                }
                return Ok(());
            }
            Packet::SyncUuid(sync) => return self.check_sync_generation((n, peer), v, *sync),
            Packet::Superseded(ack) => {
                self.note_superseded((n, peer), v, ack);
                return Ok(());
            }
            Packet::Data(w) => (SectorRange::new(w.sector, w.size), w.block_id),
            Packet::Trim(w) | Packet::Zeroes(w) => (SectorRange::new(w.sector, w.size), w.block_id),
            _ => return Ok(()),
        };
        let Some(range) = range.filter(|r| !r.is_empty()) else { return Ok(()) };
        let content = if self.setup.extras.two_primaries { payload.clone() } else { Payload::default() };
        let most = self.setup.max_epoch_size;
        let epochs = self.nodes[n].epochs[peer].sent(connection);
        epochs.in_epoch += 1;
        if epochs.in_epoch > most {
            return Err(format!("an epoch of {} writes; max-epoch-size is {most}", epochs.in_epoch));
        }
        epochs.open.push_back(Open { epoch: epochs.sent, volume: v, range, block_id, content });
        let Some(completed) = epochs.completed else { return Ok(()) };
        let later = |r: &crate::cluster::Request| {
            r.volume == v && crate::apps::is_write(r.kind) && r.written.range.overlaps(range) && r.sent[peer].is_none()
        };
        match self.nodes[n].requests.values().find(|r| later(r) && r.written.issued > completed) {
            Some(r) => Err(format!("{:?} is in the epoch of a write that was completed before it", r.written)),
            None => Ok(()),
        }
    }

    /// A node tells the other Primary that it need not write this: what it has there itself counts as the later write,
    /// and stands for both when that is durable.
    fn note_superseded(&mut self, (n, peer): (usize, usize), v: usize, ack: &BlockAck) {
        let Some(range) = SectorRange::new(ack.sector, ack.size) else { return };
        let theirs = self.nodes[peer].epochs[n].open.iter().rev();
        let theirs = theirs.filter(|open| (open.volume, open.block_id, open.range) == (v, ack.block_id, range));
        let Some(content) = theirs.map(|open| open.content.clone()).next() else { return };
        let Volume { data, arrived, .. } = &mut self.nodes[n].volumes[v];
        let durable = Payload::read(data.data(), range) == Payload::read(data.durable(), range);
        let mark = if durable { 0 } else { data.mark() };
        arrived.note_written(&content, mark);
    }

    /// A node learns what its peer says on the control stream.
    pub(crate) fn note_heard(&mut self, n: usize, peer: usize, packet: &Packet) {
        if matches!(packet, Packet::BarrierAck(_)) {
            let confirmed = self.nodes[n].epochs[peer].confirm();
            self.keep_promises(n, peer, &confirmed);
        }
    }

    /// A node writes what its peer has sent: all that applications knew to be complete when they asked for this must
    /// be on stable storage here, or a loss of power could leave this without that (2.6).
    pub(crate) fn check_order(&self, n: usize, content: &Payload) -> Result<(), String> {
        self.peers(n).try_for_each(|peer| self.check_order_of(n, peer, content))
    }

    fn check_order_of(&self, n: usize, peer: usize, content: &Payload) -> Result<(), String> {
        let epochs = &self.nodes[peer].epochs[n];
        if epochs.early.is_empty() || self.net.wishes[n][peer] != Wish::Connected(epochs.connection) {
            return Ok(());
        }
        let newest = content.0.iter().map(|piece| piece.id).max().unwrap_or_default();
        let Some(issued) = u64::from(newest).checked_sub(FIRST_WRITE) else { return Ok(()) };
        let lost = epochs.early.iter().find(|Early { completed, volume, write, .. }| {
            let volume = &self.nodes[n].volumes[*volume];
            // The state word is that of the turn before: a disk may be lost in this one.
            let good = volume.word.is_some_and(|w| w.disk == DiskState::UpToDate) && !volume.arrived.closed;
            let good = good && !volume.data.faults.any();
            *completed < issued && good && write.content != ZEROES && !volume.arrived.is_stable(write)
        });
        match lost {
            Some(Early { write, .. }) => {
                Err(format!("write {issued} goes to the disk, and {write:?}, complete before it, may still be lost"))
            }
            None => Ok(()),
        }
    }

    /// Writes to a range that this peer has not confirmed on a node's present connection to it.
    pub(crate) fn unconfirmed(&self, n: usize, peer: usize, v: usize, range: SectorRange) -> Vec<SectorRange> {
        let epochs = &self.nodes[n].epochs[peer];
        if self.net.wishes[n][peer] != Wish::Connected(epochs.connection) {
            return Vec::new();
        }
        let open = epochs.open.iter().filter(|open| open.volume == v && open.range.overlaps(range));
        open.map(|open| open.range).collect()
    }
}
