//! Taking a disk into service and letting go of it (`docs/spec/connection-and-state.md` 11.3, 11.4,
//! `docs/spec/on-disk-format.md` 1.10, 2.9, 3.9, 3.10).

pub(crate) mod attaching;
mod consent;

use crate::Resource;
use crate::api::{CommandError, DiskError, Effect, IoError, MetaOp, OpenedDisk, Segments, Severity};
use crate::attach::attaching::{Attaching, Step};
use crate::command::caller::Caller;
use crate::connection::Connection;
use crate::decide::attach84::{ActivityLog as AlAction, Bitmap};
use crate::decide::change::{Change, Set};
use crate::decide::quorum::Part;
use crate::decide::topic::Topic;
use crate::decide::view::{Kind, Refusal};
use crate::decide::{Reason, StateChangeResult, attach84, io_error};
use crate::device::{Backing, Device, Flushing, Leaving};
use crate::metadata::writer::MdWriter;
use crate::node::Node;
use crate::op::Op;
use crate::request::under_way::Request;
use meta::{BitmapArea, DeviceFlags, DirtyPages, Layout, PeerFlags, Superblock};
use std::collections::BTreeSet;
use units::{BitSet, ByteLen, NodeId, NodeMask, SectorRange, VolumeNr};
use wire::DiskState;

/// Bytes of the bitmap area that are read at a time.
const BITMAP_PIECE: u64 = 1 << 20;

impl Resource {
    /// Begins to attach. The command ends when the disk has its state, or cannot be used.
    pub(crate) fn attach(&mut self, volume: VolumeNr, command: Option<Caller>) {
        let dev = &mut self.node.devices[volume];
        if dev.cfg.is_none() {
            return self.end(command, Err(error(105, "this node has no disk configured for the volume".to_owned())));
        }
        if dev.backing.is_some() || dev.disk.attaching.is_some() {
            return self.end(command, Err(error(124, "the volume is attached already; detach it first".to_owned())));
        }
        dev.disk.attaching =
            Some(Attaching { command, opened: None, step: Step::Opening, outdated_peers: NodeMask::default() });
        dev.disk.disks_seen += 1;
        self.store_disk(volume, DiskState::Attaching);
        self.out.emit(Effect::OpenDisk { volume });
    }

    pub(crate) fn attach_failed(&mut self, volume: VolumeNr, code: i32, text: String) {
        let Some(attaching) = self.node.devices[volume].disk.attaching.take() else { return };
        // It may have failed by a write of its metadata, and was to be closed when nothing uses it: that is now. The
        // next one has nothing to do with that.
        if self.node.devices[volume].disk.leaving.take().is_some() {
            self.took_place(Set::Disk(volume, DiskState::Diskless));
        }
        self.store_disk(volume, DiskState::Diskless);
        let dev = &mut self.node.devices[volume];
        dev.backing = None;
        dev.queue.recheck = true;
        let detaching = std::mem::take(&mut dev.disk.detach_commands);
        if attaching.opened.is_some() {
            self.out.emit(Effect::CloseDisk { volume });
        }
        self.abort_local_io(volume);
        self.abandon_al(volume);
        for command in detaching {
            self.end(Some(command), Ok(()));
        }
        self.out.note(Severity::Error, Some(volume), None, Topic::AttachFailed, text.clone());
        self.out.status_changed = true;
        if self.node.state.replicates_anywhere(volume) {
            // The handshake, or a later word, may have said that it is being attached.
            self.tell_state(volume);
        }
        self.end(attaching.command, Err(error(code, text)));
    }

    pub(crate) fn disk_opened(&mut self, volume: VolumeNr, disk: Result<OpenedDisk, (i32, String)>) {
        let opened = match disk {
            Ok(opened) => opened,
            Err((code, text)) => return self.attach_failed(volume, code, text),
        };
        let dev = &mut self.node.devices[volume];
        // An attach that was given up before its disk was open has another one follow: of the two answers one counts.
        let Some(attaching) = dev.disk.attaching.as_mut().filter(|attaching| attaching.opened.is_none()) else {
            return;
        };
        let kind = dev.cfg.as_ref().expect("attaching needs a configuration").meta;
        let Some(at) = meta::layout::superblock_at(kind, opened.meta_device) else {
            attaching.opened = Some(opened);
            return self.attach_failed(volume, 112, "the metadata device is too small".to_owned());
        };
        attaching.opened = Some(opened);
        attaching.step = Step::Superblock { at: at.0 };
        self.meta(volume, Op::Attach(volume), MetaOp::Read { offset: at.0, len: meta::BLOCK_LEN as u64 });
    }

    pub(crate) fn attach_step_done(&mut self, volume: VolumeNr, result: Result<Box<[u8]>, DiskError>) {
        let Ok(bytes) = result else {
            return self.attach_failed(volume, 118, "reading or writing the metadata failed".to_owned());
        };
        let Some(attaching) = &mut self.node.devices[volume].disk.attaching else { return };
        match std::mem::replace(&mut attaching.step, Step::Opening) {
            Step::Opening | Step::Handshake | Step::Consent(_) => {}
            Step::Superblock { at } => self.superblock_read(volume, at, &bytes),
            Step::Log { layout, md } => {
                let area = BitmapArea::new(md.geometry, md.effective_size);
                let bitmaps = (0..area.slots()).map(|_| BitSet::new(area.bits())).collect();
                self.read_bitmap(volume, Step::Bitmap { layout, md, log: bytes, bitmaps, page: 0 });
            }
            Step::Bitmap { layout, md, log, mut bitmaps, page } => {
                let area = BitmapArea::new(md.geometry, md.effective_size);
                let pages = bytes.chunks_exact(meta::BLOCK_LEN);
                let next = page + pages.len() as u64;
                for (page, bytes) in (page..).zip(pages) {
                    // No bit is set yet.
                    area.load_or(page, bytes.first_chunk().expect("a whole page"), &mut bitmaps);
                }
                self.read_bitmap(volume, Step::Bitmap { layout, md, log, bitmaps, page: next });
            }
            Step::Settling { writes, then } if writes > 1 => {
                attaching.step = Step::Settling { writes: writes - 1, then };
            }
            Step::Settling { then: Some(op), .. } => {
                attaching.step = Step::Settling { writes: 1, then: None };
                self.meta(volume, Op::Attach(volume), op);
            }
            Step::Settling { .. } => self.attach_settled(volume),
        }
    }

    /// Reads the next piece of the bitmap: memory is for the bits, and not for the area as well.
    fn read_bitmap(&mut self, volume: VolumeNr, step: Step) {
        let Step::Bitmap { layout, md, page, .. } = &step else { return };
        let area = BitmapArea::new(md.geometry, md.effective_size);
        let done = page * meta::BLOCK_LEN as u64;
        let (offset, len) = (layout.bitmap_at().0 + done, (area.bytes() - done).min(BITMAP_PIECE));
        match step {
            Step::Bitmap { layout, md, log, bitmaps, .. } if len == 0 => {
                self.metadata_read(volume, layout, *md, &log, bitmaps);
            }
            step => {
                let Some(attaching) = &mut self.node.devices[volume].disk.attaching else { return };
                attaching.step = step;
                self.meta(volume, Op::Attach(volume), MetaOp::Read { offset, len });
            }
        }
    }

    fn superblock_read(&mut self, volume: VolumeNr, at: u64, bytes: &[u8]) {
        let Some(block) = bytes.first_chunk() else {
            return self.attach_failed(volume, 118, "the superblock could not be read whole".to_owned());
        };
        let md = match Superblock::parse(block) {
            Ok(md) => md,
            Err(e) => return self.attach_failed(volume, 119, format!("no usable metadata at byte {at}: {e}")),
        };
        let dev = &self.node.devices[volume];
        let opened = dev.disk.attaching.as_ref().and_then(|a| a.opened.as_ref()).expect("it was opened");
        let kind = dev.cfg.as_ref().expect("attaching needs a configuration").meta;
        let layout = match Layout::new(kind, md.geometry, opened.meta_device) {
            Ok(layout) => layout,
            Err(e) => return self.attach_failed(volume, 119, format!("the metadata does not fit its device: {e}")),
        };
        if let Err((code, text)) = self.check_metadata(volume, &md, &layout, opened) {
            return self.attach_failed(volume, code, text);
        }
        let len = layout.geometry().al().bytes().0;
        let offset = layout.al_at().0;
        let attaching = self.node.devices[volume].disk.attaching.as_mut().expect("checked");
        attaching.step = Step::Log { layout, md: Box::new(md) };
        self.meta(volume, Op::Attach(volume), MetaOp::Read { offset, len });
    }

    /// Superblock, log and bitmap are here: decide what the disk is worth, and put the metadata in order.
    fn metadata_read(
        &mut self,
        volume: VolumeNr,
        layout: Layout,
        mut md: Superblock,
        log: &[u8],
        mut bitmaps: Vec<BitSet>,
    ) {
        match self.node.out_of_place(md.version()) {
            Ok(peers) => peers.into_iter().for_each(|peer| self.out.offer_again(peer, volume)),
            Err(text) => return self.attach_failed(volume, 162, text),
        }
        if !self.node.devices[volume].lacks_writes() && !self.node.state.replicates_anywhere(volume) {
            self.goes_back9(volume, md.current);
        }
        let input = self.attach_input(volume, &md);
        let attach = match attach84::decide(&input) {
            Ok(attach) => attach,
            Err(reason) => return self.attach_failed(volume, 150, format!("{reason}")),
        };
        let area = BitmapArea::new(md.geometry, md.effective_size);
        let mut dirty = DirtyPages::new(area.pages());
        let hot = match attach.activity_log {
            AlAction::Apply => self.hot_extents(volume, &layout, &md, log),
            _ => Some(BTreeSet::new()),
        };
        let mut applied = 0;
        for bits in hot.iter().flatten().map(|extent| area.extent_bits(*extent)).filter(|bits| !bits.is_empty()) {
            applied += bitmaps.iter_mut().map(|slot| slot.set_range(bits.start, bits.end)).sum::<u64>();
            dirty.note_set(area.pages_of(bits));
        }
        if hot.is_none() || attach.bitmap == Bitmap::SetAll {
            bitmaps.iter_mut().for_each(BitSet::set_all);
            dirty.note_all();
        }
        if attach.activity_log == AlAction::Discard && bitmaps.len() > 1 {
            // The peer knows what it sent to this Secondary before that crashed. Nobody else does.
            let unlogged = input.flags.contains(DeviceFlags::AL_DISABLED);
            let hot = if unlogged { None } else { self.hot_extents(volume, &layout, &md, log) };
            // Of several peers each knows only what came from itself.
            let several = self.in_mesh9();
            let was_here = |p: &&meta::PeerRecord| p.flags.contains(PeerFlags::CONNECTED) && !several;
            let peers: Vec<usize> = md.peers.iter().filter(was_here).filter_map(|p| p.slot.map(usize::from)).collect();
            let strangers = bitmaps.iter_mut().enumerate().filter(|(slot, _)| !peers.contains(slot));
            mark_hot(strangers.map(|(_, bits)| bits), hot.as_ref(), &area);
            dirty.note_all();
        }
        let noted = md.take_note();
        if md.version() == meta::Version::V09 {
            self.assign_slots(&mut md);
        }
        if applied > 0 {
            let text = format!("the activity log marked {} KiB more as different", applied * 4);
            self.out.note(Severity::Info, Some(volume), None, Topic::ActivityLogApplied, text);
        }
        let full_sync = attach.bitmap == Bitmap::SetAll;
        let outdated_peers = attach.peer_disk.map(|_| self.flagged_peers(&md, PeerFlags::OUTDATED)).unwrap_or_default();
        let was_primary = input.flags.contains(DeviceFlags::PRIMARY_IND);
        let left_beside = was_primary.then(|| self.flagged_peers(&md, PeerFlags::CONNECTED));
        let dev = &mut self.node.devices[volume];
        let cfg = dev.cfg.as_ref().expect("attaching needs a configuration");
        let al_extents = u16::try_from(cfg.al_extents).unwrap_or(u16::MAX);
        let opened = dev.disk.attaching.as_ref().and_then(|a| a.opened.clone()).expect("it was opened");
        let first = layout.geometry().al().blocks().wrapping_mul(self.starts.log_rounds).wrapping_neg();
        dev.disk.crashed_primary = attach.crashed_primary;
        dev.disk.attach_state = attach.disk;
        dev.disk.left_beside = left_beside;
        dev.disk.attaching.as_mut().expect("it was opened").outdated_peers = outdated_peers;
        dev.backing = Some(Backing {
            opened,
            al: meta::ActivityLog::new(al_extents, layout.geometry().al(), first),
            layout,
            bitmap_size: md.effective_size,
            md,
            bitmaps,
            dirty,
            writer: MdWriter::with_note(noted),
            flushing: Flushing::unknown(),
            closing_clean: false,
            full_sync,
        });
        let text = format!("disk is {}: {}", attach.disk, attach.reason);
        self.out.note(Severity::Info, Some(volume), None, attach.reason, text);
        self.settle_metadata(volume, attach.activity_log != AlAction::Keep);
    }

    /// The extents that were hot when the node crashed. `None`: nothing tells which, all may differ.
    fn hot_extents(&mut self, volume: VolumeNr, layout: &Layout, md: &Superblock, log: &[u8]) -> Option<BTreeSet<u32>> {
        let (reason, text) =
            match meta::activity_log::replay::replay(log, layout.geometry().al(), md.format, md.al_extents) {
                Ok(replayed) if !replayed.gap => {
                    if let Some(complaint) = replayed.complaint() {
                        self.out.note(Severity::Warning, Some(volume), None, Topic::ActivityLogDamaged, complaint);
                    }
                    return Some(replayed.hot);
                }
                // A transaction in the middle is missing: its extents are not known.
                Ok(_) => (Topic::ActivityLogHole, "the activity log has a hole".to_owned()),
                Err(e) => (Topic::ActivityLogUnreadable, format!("the activity log cannot be read ({e})")),
            };
        self.out.note(Severity::Error, Some(volume), None, reason, format!("{text}: everything counts as different"));
        None
    }

    /// Writes what the replay found: bitmap first, then an empty log, then the superblock (on-disk-format 3.10).
    fn settle_metadata(&mut self, volume: VolumeNr, reset_log: bool) {
        let dev = &mut self.node.devices[volume];
        let b = dev.backing.as_mut().expect("just made");
        let (area, layout) = (b.area(), b.layout);
        let mut ops = Vec::new();
        let mut from = 0;
        while let Some(page) = b.dirty.take_any(from) {
            from = page + 1;
            let mut bytes = Box::new([0; meta::BLOCK_LEN]);
            area.store(page, &b.bitmaps, &mut bytes);
            let offset = layout.bitmap_page_at(page).0;
            ops.push(MetaOp::Write { offset, bytes, flush_before: false, fua: false });
        }
        let mut then = reset_log.then(|| {
            let bytes = empty_ring(&layout);
            MetaOp::Write { offset: layout.al_at().0, bytes, flush_before: true, fua: true }
        });
        if ops.is_empty() {
            ops.extend(then.take());
        }
        let writes = ops.len() as u32;
        let attaching = dev.disk.attaching.as_mut().expect("attaching");
        if writes == 0 {
            return self.attach_settled(volume);
        }
        attaching.step = Step::Settling { writes, then };
        for op in ops {
            self.meta(volume, Op::Attach(volume), op);
        }
    }

    /// Once a turn: an attach that waits for the end of a handshake, or of another transaction, goes on.
    pub(crate) fn pump_attach(&mut self, volume: VolumeNr) {
        match self.node.devices[volume].disk.attaching {
            Some(Attaching { step: Step::Handshake, .. }) => self.attach_settled(volume),
            Some(Attaching { step: Step::Consent(Some(at)), .. }) if at <= self.node.now => self.attach_settled(volume),
            _ => {}
        }
    }

    fn attach_settled(&mut self, volume: VolumeNr) {
        if self.connected().any(|(peer, _)| self.will_be_compared(peer, volume)) {
            return self.node.devices[volume].step_of_attach(Step::Handshake);
        }
        if !self.fits_into_use(volume) {
            return;
        }
        if self.in_mesh9() && self.attach_needs_consent(volume) {
            if self.node.state.is_primary() {
                let text = "a Primary among several peers takes no disk into use: make it Secondary first".to_owned();
                return self.attach_failed(volume, StateChangeResult::NotSupported.code(), text);
            }
            self.leave_for_attach(volume);
        }
        if !self.attach_needs_consent(volume) {
            return self.take_into_use(volume);
        }
        self.seek_consent(volume);
    }

    /// If not, the attach has failed.
    fn fits_into_use(&mut self, volume: VolumeNr) -> bool {
        let (capacity, size) = (self.node.devices[volume].capacity(), self.node.devices[volume].size);
        let used = self.node.state.is_primary() || self.node.devices[volume].in_use();
        let replicating = self.node.state.replicates_anywhere(volume);
        if capacity < size && (used || replicating) {
            let (has, needs) = (capacity.0 / 2, size.0 / 2);
            let text = format!("the disk holds {has} KiB, but the device has {needs} KiB: use a larger disk");
            self.attach_failed(volume, 111, text);
            return false;
        }
        // Users went on while the metadata were read, and may have got from a peer what this disk lacks.
        let outrun = self.node.devices[volume].disk_lags_behind_users();
        if !self.negotiates(volume) && outrun && self.node.state.is_primary() {
            self.attach_failed(volume, 150, Reason::DataNotCurrent.to_string());
            return false;
        }
        if outrun
            && self.node.devices[volume].lacks_writes()
            && self.node.devices[volume].disk.attach_state > DiskState::Outdated
        {
            self.node.devices[volume].disk.attach_state = DiskState::Outdated;
        }
        true
    }

    fn take_into_use(&mut self, volume: VolumeNr) {
        let replicating = self.node.state.replicates_anywhere(volume);
        let Some(attaching) = self.node.devices[volume].disk.attaching.take() else { return };
        self.node.devices[volume].disk.attached_at = self.node.now;
        self.md_in_use(volume);
        let size = crate::decide::sizes::usable(&self.size_limits(volume));
        // A device that other nodes already use keeps its size until they agree to another.
        let size = if self.node.devices[volume].size.0 != 0 && replicating {
            self.node.devices[volume].size.min(size)
        } else {
            size
        };
        // All of a fresh device differs from any peer's: two of them that go their own ways have nothing in common.
        self.adopt_size(volume, size, true);
        let negotiates = self.negotiates(volume);
        let dev = &self.node.devices[volume];
        let connected = self.node.state.replicates_anywhere(volume);
        // In 9's dialect the change itself brings that with it. Who is just connecting hears of it in the handshake.
        let told = |(peer, c): &(NodeId, &Connection)| self.node.state.replicates(*peer, volume) && !c.speaks9();
        let of_84: Vec<_> = self.node.connections.iter().filter(told).map(|(peer, _)| peer).collect();
        let state = if negotiates { DiskState::Negotiating } else { dev.disk.attach_state };
        if negotiates {
            self.node.connections.values_mut().for_each(|c| c.peer_devices[volume].link.told.uuids_stale = true);
        }
        let mut change = Change::default();
        if self.node.was_sole_survivor(volume) {
            change.push(Set::KeepsQuorum(volume));
        }
        change.push(Set::Disk(volume, state));
        if !connected {
            let outdated = self.node.connections.ids().filter(|peer| attaching.outdated_peers.contains(*peer));
            outdated.for_each(|peer| change.push(Set::PeerDisk(peer, volume, DiskState::Outdated)));
        }
        if let Err(Refusal { code, .. }) = self.make(change, Kind::Fact) {
            self.node.devices[volume].disk.attaching = Some(Attaching { command: attaching.command, ..attaching });
            return self.attach_failed(volume, code.code(), format!("the disk cannot be used now: {code}"));
        }
        for peer in of_84 {
            self.send_sizes(peer, volume);
            self.send_uuids(peer, volume, wire::UuidFlags::NONE);
            self.send_state(peer, volume);
        }
        self.node.devices[volume].queue.recheck = true;
        self.end(attaching.command, Ok(()));
    }

    // -- letting go ---------------------------------------------------------------------------------------------------

    /// Once a turn while a disk is being given up.
    pub(crate) fn pump_detach(&mut self, volume: VolumeNr) {
        let dev = &self.node.devices[volume];
        let Some(how) = dev.disk.leaving else { return };
        let busy = self.ops.iter().any(|(_, op)| op_uses_disk(op, volume, &self.requests, &self.peer_writes));
        if busy && how < Leaving::AtOnce {
            return;
        }
        if dev.disk.attaching.is_some() {
            return self.attach_failed(volume, 118, "the disk failed while it was being attached".to_owned());
        }
        if busy {
            self.abort_local_io(volume);
        }
        if how > Leaving::Asked {
            self.disown_open_epochs(volume);
            self.end_links();
        } else if !self.closed_cleanly(volume) {
            return;
        }
        let dev = &mut self.node.devices[volume];
        dev.disk.leaving = None;
        dev.disk.disks_seen += 1;
        dev.backing = None;
        dev.disk.attach_state = DiskState::Diskless;
        self.forget_al(volume);
        self.node.devices[volume].first_write_settled();
        let commands = std::mem::take(&mut self.node.devices[volume].disk.detach_commands);
        self.resync_disk_closed(volume);
        self.out.emit(Effect::CloseDisk { volume });
        self.abandon_al(volume);
        self.finish_held();
        self.node.connections.values_mut().for_each(|c| c.peer_devices[volume].link.exchange.forget());
        self.took_place(Set::Disk(volume, DiskState::Diskless));
        self.store_disk(volume, DiskState::Diskless);
        let gone = !self.node.state.replicates_anywhere(volume);
        if gone && !self.node.state.is_primary() {
            self.node.devices[volume].size = units::Sector(0);
            self.node.devices[volume].seen.exposed = units::Generation::NONE;
            self.node.devices[volume].seen.outrun = false;
        }
        self.node.expose_peers_generation(volume);
        for command in commands {
            self.end(Some(command), Ok(()));
        }
    }

    /// Bitmap, an empty log and a superblock marked clean are on disk: nothing is to be replayed at the next attach.
    fn closed_cleanly(&mut self, volume: VolumeNr) -> bool {
        if !self.node.devices[volume].metadata_idle() {
            return false;
        }
        if self.node.devices[volume].al_waiting() {
            return false;
        }
        self.account_for_unconfirmed(volume);
        let dev = &mut self.node.devices[volume];
        let Some(b) = &mut dev.backing else { return true };
        if !b.dirty.is_clean() {
            self.write_bitmap(volume);
            return false;
        }
        if b.closing_clean {
            return true;
        }
        b.closing_clean = true;
        let layout = b.layout;
        let ring = empty_ring(&layout);
        let offset = layout.al_at().0;
        self.meta(volume, Op::LogReset(volume), MetaOp::Write { offset, bytes: ring, flush_before: true, fua: true });
        false
    }

    /// Writes that the peer has not confirmed count as different: the log that covered them is about to be emptied.
    fn account_for_unconfirmed(&mut self, volume: VolumeNr) {
        self.mark_all_unsettled(volume);
        let open: Vec<SectorRange> = self
            .requests
            .iter()
            .filter_map(|(_, r)| match r {
                Request::Write(w) if w.device == volume => Some(w.range),
                _ => None,
            })
            .collect();
        for range in open {
            for peer in self.node.connections.ids() {
                self.mark_out_of_sync(peer, volume, range);
            }
        }
    }

    /// The empty log is written; the superblock may say so, and not before: it may be written for another reason
    /// meanwhile, and then the log of the next attach would begin beside what is left of this one.
    pub(crate) fn log_reset_done(&mut self, volume: VolumeNr, result: Result<(), DiskError>) {
        if result.is_err() {
            return self.meta_error(volume, "activity log");
        }
        let dev = &mut self.node.devices[volume];
        let Some(b) = &mut dev.backing else { return };
        b.md.flags.remove(DeviceFlags::PRIMARY_IND);
        b.md.flags.put(DeviceFlags::CRASHED_PRIMARY, dev.disk.crashed_primary);
        b.md.mark_clean();
        self.md_changed(volume);
    }

    // -- errors -------------------------------------------------------------------------------------------------------

    pub(crate) fn data_error(
        &mut self,
        volume: VolumeNr,
        failure: io_error::Failure,
        what: &str,
        range: SectorRange,
        error: IoError,
    ) {
        let text = format!("{what} error ({error}) on the local disk at {range}");
        self.disk_error(volume, failure, text);
    }

    pub(crate) fn flush_error(&mut self, volume: VolumeNr) {
        let text = "a flush of the local disk failed: what was written since the last one may be lost".to_owned();
        self.disk_error(volume, io_error::Failure::Flush, text);
    }

    pub(crate) fn meta_error(&mut self, volume: VolumeNr, what: &str) {
        if self.node.devices[volume].backing.is_some() {
            self.node.devices[volume].lets_go(Leaving::AsItIs);
        }
        self.disk_error(volume, io_error::Failure::Metadata, format!("writing the {what} failed"));
        self.abandon_al(volume);
    }

    fn disk_error(&mut self, volume: VolumeNr, failure: io_error::Failure, text: String) {
        let policy = self.node.devices[volume].cfg.as_ref().map(|c| c.on_io_error).unwrap_or_default();
        let peer_good = self.node.state.serving_peers(volume).next().is_some();
        let (disk, reason) = io_error::decide(failure, policy, self.node.state.disk(volume), peer_good);
        self.out.note(Severity::Error, Some(volume), None, reason, format!("{text}: {reason}"));
        if let Some(disk) = disk.filter(|_| self.node.devices[volume].backing.is_some()) {
            self.took_place(Set::Disk(volume, disk));
            if disk == DiskState::Inconsistent {
                // What the disk lacks is complete when the superblock says that it is not good any more: as that of a
                // crashed Primary it would win over the peer's, between equal generations.
                self.generation_changed(volume);
            }
        }
    }

    /// Forced detach: local parts in flight count as failed, whatever the disk says later (spec 11.5).
    pub(crate) fn abort_local_io(&mut self, volume: VolumeNr) {
        // The end of one may begin another (the flush of an epoch that is complete now), which the disk, as good as
        // closed, would never answer.
        let next = |r: &Self| {
            let mut mine = r.ops.iter().filter(|(_, op)| op_uses_disk(op, volume, &r.requests, &r.peer_writes));
            mine.next().map(|(k, _)| k)
        };
        while let Some(key) = next(self) {
            // What is about metadata ends with the disk's backing.
            self.node.devices[volume].disk.meta_pending = 0;
            if let Some(op) = self.ops.remove(key) {
                self.data_op_done(op, Err(IoError::Io), (Segments::None, false));
            }
        }
    }

    /// A disk that does not answer in `disk-timeout` is given up.
    pub(crate) fn check_disk_timeout(&mut self, volume: VolumeNr) {
        let Some(limit) = self.node.devices[volume].disk_timeout() else { return };
        let now = self.node.now;
        let stuck = self.ops.iter().any(|(_, op)| match op {
            Op::LocalWrite(k) | Op::LocalRead(k) => {
                self.requests.get(*k).is_some_and(|r| r.device() == volume && now.since(r.started()) >= limit)
            }
            _ => false,
        });
        let dev = &self.node.devices[volume];
        let stuck =
            stuck || (self.usable(volume) && dev.disk.meta_pending > 0 && now.since(dev.disk.meta_since) >= limit);
        let at_once = self.node.devices[volume].disk.leaving == Some(Leaving::AtOnce);
        if (stuck || self.resync_stuck_on_disk(volume, limit)) && !at_once {
            self.node.devices[volume].lets_go(Leaving::AtOnce);
            self.disk_error(
                volume,
                io_error::Failure::Forced,
                "the local disk did not answer within disk-timeout".to_owned(),
            );
            if self.node.state.disk(volume) == DiskState::Failed {
                self.abort_local_io(volume);
            }
        }
    }
}

impl Node {
    /// From now on users see the peer's data. Its generation for that may have come while our disk was still there.
    fn expose_peers_generation(&mut self, volume: VolumeNr) {
        let serving = self.state.serving_peers(volume).next();
        if let Some(uuids) =
            serving.and_then(|peer| self.connections[peer].peer_devices[volume].link.told.uuids.as_ref())
            && self.state.is_primary()
        {
            self.devices[volume].seen.exposed = uuids.current;
        }
    }
}

impl Node {
    fn check_metadata(
        &self,
        volume: VolumeNr,
        md: &Superblock,
        layout: &Layout,
        opened: &OpenedDisk,
    ) -> Result<(), (i32, String)> {
        let stored = (md.placement.al_offset, md.placement.bm_offset, md.placement.md_size_sect);
        if stored != layout.stored() {
            let text = "the metadata was made for a device of another size or another kind of meta-disk; \
                        restore it with dump-md and restore-md, or create it anew"
                .to_owned();
            return Err((119, text));
        }
        if BitmapArea::new(md.geometry, md.effective_size).bytes() > layout.bitmap_area().0 {
            let text = format!(
                "the metadata says that {} KiB were in use, more than its own bitmap can describe: it is damaged, or belongs \
                 to a larger device; restore it with restore-md, or create it anew",
                md.effective_size.0 / 2
            );
            return Err((111, text));
        }
        if md.geometry.bytes_per_bit() != 4096 {
            let text =
                "the bitmap has a granularity other than 4 KiB, which peers below protocol 118 cannot use".to_owned();
            return Err((119, text));
        }
        let data = match layout.kind() {
            meta::MetaDisk::Internal => layout.capacity(),
            _ => layout.capacity().min(opened.backing.to_sectors_floor()),
        };
        let consistent = md.flags.contains(DeviceFlags::CONSISTENT);
        let configured = self.devices[volume].cfg.as_ref().and_then(|c| c.size).map(ByteLen::to_sectors_floor);
        if data < md.effective_size && (consistent || configured.is_some()) && configured != Some(data) {
            let text = format!(
                "the device shrank: it holds {} KiB, but {} KiB were in use; give it back its size",
                data.0 / 2,
                md.effective_size.0 / 2
            );
            return Err((if consistent { 170 } else { 111 }, text));
        }
        let node = self.cfg.node;
        if md.version() == meta::Version::V08 && self.connections.members().len() > 1 {
            let text = "metadata of format v08 knows one peer, and more are configured: convert it, or create it with \
                        --format v09 and --max-peers";
            return Err((162, text.to_owned()));
        }
        if md.version() == meta::Version::V09 {
            if let Some(other) = md.node_id.filter(|n| *n != node) {
                let text = format!(
                    "the metadata belongs to node id {other}, this node is {node}: set node-id right, or, if all of it may \
                     be copied again, make new metadata"
                );
                return Err((119, text));
            }
            if self.peers_with_disks().any(|peer| md.peers[peer.index()].slot.is_none())
                && md.peers.iter().filter(|p| p.slot.is_some()).count() >= md.geometry.slots() as usize
            {
                let text = "no bitmap slot is left for a peer: give it the node-id of one that has left, or use more \
                            --max-peers";
                return Err((162, text.to_owned()));
            }
        }
        Ok(())
    }

    fn attach_input(&self, volume: VolumeNr, md: &Superblock) -> attach84::Input {
        let dev = &self.devices[volume];
        let peer_disk = self.state.pairs(volume).map(|(_, pair)| pair.disk).max().unwrap_or(DiskState::DUnknown);
        attach84::Input {
            flags: md.flags,
            peers: self.flags_of_peers(md),
            al_clean: md.is_clean(),
            current: md.current,
            exposed: dev.seen.exposed,
            outrun: dev.lacks_writes(),
            role: self.state.role,
            peer_primary: self.state.peers.values().any(|p| p.role() == wire::Role::Primary),
            connected: self.state.replicates_anywhere(volume),
            peer_disk,
            fencing: dev.cfg.as_ref().map(|c| c.fencing).unwrap_or_default(),
        }
    }

    /// What the metadata say of all peers: one that was connected counts, that one is Outdated only if all are.
    fn flags_of_peers(&self, md: &Superblock) -> PeerFlags {
        let mut all = self.connections.ids().map(|peer| md.peer(peer).flags);
        let first = all.next().unwrap_or(md.peers[Superblock::V08_PEER].flags);
        all.fold(first, |mut flags, other| {
            flags.put(PeerFlags::OUTDATED, flags.contains(PeerFlags::OUTDATED) && other.contains(PeerFlags::OUTDATED));
            for either in [PeerFlags::CONNECTED, PeerFlags::FULL_SYNC] {
                flags.put(either, flags.contains(either) || other.contains(either));
            }
            flags
        })
    }

    /// Peers that have a bitmap (`bitmap no`: none).
    fn peers_with_disks(&self) -> impl Iterator<Item = NodeId> {
        self.connections.iter().filter(|(_, c)| c.cfg.part == Part::Disk).map(|(peer, _)| peer)
    }

    /// v09: every peer gets a bitmap slot; one that is not to have a disk, if there is one left.
    fn assign_slots(&self, md: &mut Superblock) {
        md.node_id = Some(self.cfg.node);
        for peer in self.peers_with_disks().chain(self.connections.ids()) {
            if md.peers[peer.index()].slot.is_none() {
                md.peers[peer.index()].slot = md.vacant_slot();
            }
        }
    }
}

impl Device {
    /// Have users of this node seen another generation than the attached disk's, or writes that it lacks?
    pub(crate) fn disk_lags_behind_users(&self) -> bool {
        // Where there is no disk none holds another generation.
        let current = self.backing.as_ref().map_or(self.seen.exposed, |b| b.md.current);
        attach84::lags_behind_users(current, self.seen.exposed, self.lacks_writes())
    }

    fn step_of_attach(&mut self, step: Step) {
        self.disk.attaching.as_mut().expect("attaching").step = step;
    }
}

/// Is this operation one that must end before the disk of the volume is closed?
fn op_uses_disk(
    op: &Op,
    volume: VolumeNr,
    requests: &crate::slab::Slab<Request>,
    peer_writes: &crate::slab::Slab<crate::peer_write::write::PeerWrite>,
) -> bool {
    match op {
        Op::LocalWrite(k) | Op::LocalRead(k) | Op::LocalFlush(k) => {
            requests.get(*k).is_some_and(|r| r.device() == volume)
        }
        Op::PeerWrite(k) => peer_writes.get(*k).is_some_and(|w| w.device == volume),
        Op::PeerRead { device, .. }
        | Op::ResyncRead { device, .. }
        | Op::ResyncWrite { device, .. }
        | Op::ResyncDigest { device, .. }
        | Op::EpochFlush { device, .. }
        | Op::LossFlush { device, .. } => *device == volume,
        Op::AlBlock(x) | Op::BitmapPage(x, _) | Op::Superblock(x) | Op::Attach(x) | Op::LogReset(x) => *x == volume,
    }
}

fn error(code: i32, text: String) -> CommandError {
    CommandError { code, text }
}

/// An activity log with nothing in it.
fn empty_ring(layout: &Layout) -> Box<[u8]> {
    let blocks = layout.geometry().al().blocks() as usize;
    meta::activity_log::block::initialized().repeat(blocks).into_boxed_slice()
}

/// Marks hot extents as different; without knowing them, everything.
fn mark_hot<'a>(slots: impl Iterator<Item = &'a mut BitSet>, hot: Option<&BTreeSet<u32>>, area: &BitmapArea) {
    for slot in slots {
        match hot {
            Some(hot) => hot.iter().map(|extent| area.extent_bits(*extent)).for_each(|bits| {
                slot.set_range(bits.start, bits.end);
            }),
            None => slot.set_all(),
        }
    }
}
