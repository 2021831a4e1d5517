//! The activity log at work: who waits for which transaction, and what must be on disk before it
//! (`docs/spec/data-path-and-resync.md` 1.2, `docs/spec/on-disk-format.md` 3.7).

pub(crate) mod queue;
mod streams;

use crate::Resource;
use crate::al::queue::{AlJob, InFlight};
use crate::api::{DiskError, MetaOp};
use crate::device::Device;
use crate::op::Op;
use crate::peer_write::write::PeerWrite;
use crate::repetition::place::Repetition;
use crate::request::under_way::{EXTENT_SECTORS, Request, extents};
use crate::request::write::NewWrite;
use meta::ExtentRange;
use meta::activity_log::Acquire;
use std::collections::VecDeque;
use units::{SectorRange, VolumeNr};

impl Resource {
    /// Takes the extents of an application write; it goes on to registration when they are hot.
    pub(crate) fn take_al(&mut self, volume: VolumeNr, mut write: NewWrite) {
        let acquired = self.acquire_al(volume, write.range);
        if acquired.is_some() {
            self.node.devices[volume].prefetch_al(write.range);
        }
        match acquired {
            None => self.submit_write(write),
            Some(Acquire::Active) => {
                write.al_held = true;
                self.submit_write(write);
            }
            // Only who must wait is worth an allocation.
            Some(waits) => self.node.devices[volume].wait_for_al(waits, AlJob::Local(Box::new(write))),
        }
    }

    /// The same for one that has waited, or is a peer's.
    pub(crate) fn take_al_for(&mut self, volume: VolumeNr, job: AlJob) {
        match self.acquire_al(volume, job.range()) {
            None => self.al_granted(job, false),
            Some(Acquire::Active) => self.al_granted(job, true),
            Some(waits) => self.node.devices[volume].wait_for_al(waits, job),
        }
    }

    /// `None`: this disk keeps no activity log, or there is none.
    fn acquire_al(&mut self, volume: VolumeNr, range: SectorRange) -> Option<Acquire> {
        let disk = self.node.state.disk(volume);
        let dev = &mut self.node.devices[volume];
        if !dev.is_usable(disk) {
            return None;
        }
        let wanted = dev.cfg.as_ref().is_some_and(|c| c.al_updates);
        // Without it a crash is followed by a full resync, if the superblock says so: until it does, all is logged.
        let backing = dev.backing.as_mut().filter(|b| wanted || !b.is_unlogged_on_disk())?;
        let extents = ExtentRange::of(range).expect("requests are not empty and lie in the device");
        Some(backing.al.acquire(extents))
    }

    fn al_granted(&mut self, job: AlJob, held: bool) {
        match job {
            AlJob::Local(mut write) => {
                write.al_held = held;
                self.submit_write(*write);
            }
            AlJob::Peer(key, _) => self.peer_write_granted(key, held),
        }
    }

    /// Retries the refused, then starts the next transaction if one is due. Called once a turn and after each commit.
    #[inline]
    pub(crate) fn pump_al(&mut self, volume: VolumeNr) {
        let dev = &mut self.node.devices[volume];
        if dev.al_is_due() {
            self.work_on_al(volume);
        } else {
            // Nobody was refused.
            dev.al_queue.recheck = false;
        }
    }

    fn work_on_al(&mut self, volume: VolumeNr) {
        if self.node.devices[volume].al_queue.is_starved() {
            self.repetitions_leave_al(volume);
            self.unsettled_leave_log(volume);
        }
        let dev = &mut self.node.devices[volume];
        if std::mem::take(&mut dev.al_queue.recheck) && dev.al_queue.is_starved() {
            for job in std::mem::take(&mut dev.al_queue.refused) {
                self.take_al_for(volume, job);
            }
        }
        self.start_transaction(volume);
    }

    fn start_transaction(&mut self, volume: VolumeNr) {
        let dev = &mut self.node.devices[volume];
        if dev.al_queue.transaction.is_some() {
            return;
        }
        let Some(backing) = &mut dev.backing else { return };
        // The superblock must say "in use" before the first transaction (on-disk-format 2.9).
        if !backing.al.wants_transaction() || backing.writer.busy_until_in_use() {
            return;
        }
        let transaction = backing.al.start_transaction().expect("it wants one");
        dev.al_queue.transaction = Some(InFlight { transaction, block_written: false });
        self.advance_transaction(volume);
    }

    /// Writes the evicted extents' dirty bitmap pages, and when they are down, the transaction's block.
    pub(crate) fn advance_transaction(&mut self, volume: VolumeNr) {
        let dev = &mut self.node.devices[volume];
        let Some(tx) = &mut dev.al_queue.transaction else { return };
        let Some(backing) = &mut dev.backing else { return };
        if tx.block_written {
            return;
        }
        let area = backing.area();
        let mut clean = true;
        let mut pages = Vec::new();
        for extent in backing.al.evicted() {
            for page in area.pages_of_extent(extent) {
                let busy = backing.writer.page_busy(page);
                if !busy && backing.dirty.is_set(page) {
                    pages.push(page);
                }
                clean &= !busy && !backing.dirty.is_set(page);
            }
        }
        pages.sort_unstable();
        pages.dedup();
        if !clean {
            for page in pages {
                self.write_bitmap_page(volume, page);
            }
            return;
        }
        tx.block_written = true;
        let offset = backing.layout.al_block_at(tx.transaction.block_index).0;
        let mut block = Box::new([0; meta::BLOCK_LEN]);
        backing.al.emit_block(&mut block);
        let flush = dev.cfg.as_ref().is_some_and(|c| c.md_flushes);
        dev.stats.al_writes += 1;
        let action = MetaOp::Write { offset, bytes: block, flush_before: flush, fua: flush };
        self.meta(volume, Op::AlBlock(volume), action);
    }

    pub(crate) fn al_block_done(&mut self, volume: VolumeNr, result: Result<(), DiskError>) {
        let dev = &mut self.node.devices[volume];
        dev.al_queue.transaction = None;
        if result.is_err() {
            return self.meta_error(volume, "activity log");
        }
        let Some(backing) = &mut dev.backing else { return };
        let committed = backing.al.commit();
        // The next transaction goes before the writes that have waited for this one: a disk that seeks is still there.
        self.start_transaction(volume);
        let dev = &mut self.node.devices[volume];
        let (go, stay): (VecDeque<_>, VecDeque<_>) =
            std::mem::take(&mut dev.al_queue.taken).into_iter().partition(|(t, _)| *t <= committed);
        dev.al_queue.taken = stay;
        dev.al_queue.recheck = true;
        for (_, job) in go {
            self.al_granted(job, true);
        }
        self.pump_al(volume);
    }

    /// The disk is gone, and its log with it: nobody holds anything of it, and whoever waits goes on without it.
    pub(crate) fn abandon_al(&mut self, volume: VolumeNr) {
        self.forget_al(volume);
        let queue = std::mem::take(&mut self.node.devices[volume].al_queue);
        for job in queue.taken.into_iter().map(|(_, job)| job).chain(queue.refused) {
            self.al_granted(job, false);
        }
    }

    /// The disk's log is gone: nobody holds extents of it, and none shall be given back to the next one.
    pub(crate) fn forget_al(&mut self, volume: VolumeNr) {
        for request in self.requests.values_mut() {
            if let Request::Write(w) = request
                && w.device == volume
            {
                w.leave_al();
            }
        }
        self.peer_writes.values_mut().filter(|w| w.device == volume).for_each(PeerWrite::forget_al);
        self.node.devices[volume].repetitions.values_mut().for_each(Repetition::forget_al);
        self.node.unsettled_forget_log(volume);
    }
}

impl Device {
    /// Has the activity log something to do at the end of a turn?
    pub(crate) fn al_is_due(&self) -> bool {
        let wants = || self.backing.as_ref().is_some_and(|b| b.al.wants_transaction());
        self.al_queue.is_starved() || self.al_queue.transaction.is_none() && wants()
    }

    /// Does any write wait for the activity log?
    pub(crate) fn al_waiting(&self) -> bool {
        let q = &self.al_queue;
        !q.refused.is_empty() || !q.taken.is_empty() || q.transaction.is_some()
    }

    /// Makes the next extents of a sequential stream hot before it reaches them.
    fn prefetch_al(&mut self, range: SectorRange) {
        let Some(backing) = &mut self.backing else { return };
        let (_, last) = extents(range);
        let wanted = self.al_queue.streams.note(last, u32::from(backing.al.capacity()) / 8);
        let end = wanted.end.min(self.size.0.div_ceil(EXTENT_SECTORS) as u32);
        for extent in wanted.start..end {
            if !backing.al.prefetch(extent) && !backing.al.is_known(extent) {
                break;
            }
        }
    }
}

impl Device {
    fn wait_for_al(&mut self, how: Acquire, job: AlJob) {
        let queue = &mut self.al_queue;
        match how {
            Acquire::Active => unreachable!("it need not wait"),
            Acquire::Pending(ticket) => queue.taken.push_back((ticket, job)),
            Acquire::Busy(_) => queue.refused.push_back(job),
        }
    }

    pub(crate) fn release_al(&mut self, range: SectorRange) {
        let Some(backing) = &mut self.backing else { return };
        let extents = ExtentRange::of(range).expect("it was acquired");
        if backing.al.release(extents) {
            self.al_queue.recheck = true;
        }
    }
}
