//! Writing superblock and bitmap: what is due, in which order, and who waits for it
//! (`docs/spec/on-disk-format.md` 2.8, 4.3). No write begins before the metadata that it rests on are durable.

pub(crate) mod writer;

use crate::Resource;
use crate::api::{DiskError, DiskOp, MetaOp};
use crate::decide::rules::metadata_flags;
use crate::decide::state::State;
use crate::decide::view::View;
use crate::device::{Backing, Device};
use crate::metadata::writer::Wanted;
use crate::node::Node;
use crate::op::Op;
use crate::request::under_way::Request;
use crate::request::write::Write;
use meta::{BitmapArea, DeviceFlags, PeerFlags, Superblock};
use units::{BitSet, NodeId, NodeMask, Sector, SectorRange, VolumeNr};
use wire::{DiskState, UuidFlags};

/// Pages of a bitmap that are being written at the same time, at most. All of them would be the bitmap once more.
const PAGES_AT_ONCE: usize = 256;

impl Backing {
    /// The mapping of the bitmap at its present size.
    pub(crate) fn area(&self) -> BitmapArea {
        BitmapArea::new(self.md.geometry, self.bitmap_size)
    }

    /// Marks a range as different in a slot. Returns how many bits became set.
    pub(crate) fn set_out_of_sync(&mut self, slot: usize, range: SectorRange) -> u64 {
        let area = self.area();
        let bits = area.touched(range);
        let n = self.bitmaps[slot].set_range(bits.start, bits.end);
        if n > 0 {
            self.dirty.note_set(area.pages_of(bits));
        }
        n
    }

    /// Marks the fully covered blocks of a range as equal in a slot. Returns how many bits became clear.
    pub(crate) fn set_in_sync(&mut self, slot: usize, range: SectorRange) -> u64 {
        let area = self.area();
        let bits = area.covered(range);
        let n = self.bitmaps[slot].clear_range(bits.start, bits.end);
        if n > 0 {
            self.dirty.note_cleared(area.pages_of(bits));
        }
        n
    }

    /// Does the superblock on disk say that the activity log is not kept?
    pub(crate) fn is_unlogged_on_disk(&self) -> bool {
        self.md.flags.contains(DeviceFlags::AL_DISABLED) && self.writer.written >= self.writer.unlogged
    }

    /// Is every block that the range touches equal on the slot's peer?
    pub(crate) fn in_sync(&self, slot: usize, range: SectorRange) -> bool {
        let bits = self.area().touched(range);
        self.bitmaps[slot].next_set(bits).is_none()
    }

    /// Sets or clears a whole slot.
    pub(crate) fn fill(&mut self, slot: usize, different: bool) {
        let bits: &mut BitSet = &mut self.bitmaps[slot];
        if different {
            bits.set_all();
        } else {
            bits.clear_all();
        }
        self.dirty.note_all();
    }

    /// What is marked in one slot is marked in the other one, too.
    pub(crate) fn add_marks(&mut self, to: usize, from: usize) {
        let words = self.bitmaps[from].words().to_vec();
        words.iter().enumerate().for_each(|(w, value)| {
            self.bitmaps[to].or_word(w, *value);
        });
        self.dirty.note_all();
    }

    /// Makes the bitmap fit a new size; blocks of a grown area are `different` or not.
    pub(crate) fn resize_bitmap(&mut self, size: Sector, different: bool) {
        if size == self.bitmap_size {
            return;
        }
        self.bitmap_size = size;
        let area = self.area();
        for bits in &mut self.bitmaps {
            bits.resize(area.bits(), different);
        }
        self.dirty.resize(area.pages());
        self.dirty.note_all();
    }
}

impl Resource {
    /// This node's disk changes: nodes that are not connected, or not configured at all, lack that. Their slots, and
    /// those that are vacant, say so until such a node gets it (`docs/spec/connection-and-state.md` 7.13). Connected
    /// peers have marks of their own, by what they confirm.
    pub(crate) fn mark_for_strangers(&mut self, volume: VolumeNr, action: &DiskOp) {
        if !self.knows_strangers(volume) {
            return;
        }
        let Some(range) = action.changes() else { return };
        for slot in 0..self.node.devices[volume].slots() {
            if !self.is_slot_of_connected(volume, slot)
                && let Some(b) = &mut self.node.devices[volume].backing
            {
                b.set_out_of_sync(slot, range);
            }
        }
    }
}

impl Node {
    /// Are there bitmap slots of others than the connected peers? The writes of a peer go by the activity log then:
    /// after a crash the peer knows what it had sent, but they do not.
    #[inline]
    pub(crate) fn knows_strangers(&self, volume: VolumeNr) -> bool {
        let slots = self.devices[volume].slots();
        // The only slot of a disk is the peer's, unless that was removed (`Node::why_not`).
        (slots > 1 || self.connections.is_empty()) && self.is_any_of_stranger(volume, slots)
    }

    fn is_any_of_stranger(&self, volume: VolumeNr, slots: usize) -> bool {
        (0..slots).any(|slot| !self.is_slot_of_connected(volume, slot))
    }

    pub(crate) fn is_slot_of_connected(&self, volume: VolumeNr, slot: usize) -> bool {
        self.connections
            .ids()
            .any(|peer| self.state.replicates(peer, volume) && self.devices[volume].slot(peer) == Some(slot))
    }
}

impl Device {
    fn has_flag(&self, flag: DeviceFlags) -> bool {
        self.backing.as_ref().is_some_and(|b| b.md.flags.contains(flag))
    }

    /// `al-updates` is `yes`, and the disk says `no`: that goes when all is on disk that the bitmap knows.
    pub(crate) fn will_be_logged(&self) -> bool {
        self.has_flag(DeviceFlags::AL_DISABLED) && self.cfg.as_ref().is_some_and(|c| c.al_updates)
    }

    /// Is a new data generation on its way to the disk?
    pub(crate) fn generation_in_flight(&self) -> bool {
        self.backing.as_ref().is_some_and(|b| b.writer.written < b.writer.generation)
    }

    /// The same, or on its way to the disks of those that serve this node, which has none?
    pub(crate) fn awaits_generation(&self) -> bool {
        self.generation_in_flight() || !self.seen.unconfirmed.is_empty()
    }
}

impl Resource {
    /// The superblock in memory changed: it is written at the end of the turn.
    pub(crate) fn md_changed(&mut self, volume: VolumeNr) {
        self.out.chores.mark();
        if let Some(b) = &mut self.node.devices[volume].backing {
            b.writer.wanted += 1;
        }
    }

    /// The data generation changed: writes wait until it is on disk.
    pub(crate) fn generation_changed(&mut self, volume: VolumeNr) {
        self.md_changed(volume);
        if let Some(b) = &mut self.node.devices[volume].backing {
            b.writer.generation = b.writer.wanted;
        }
    }

    pub(crate) fn md_in_use(&mut self, volume: VolumeNr) {
        if let Some(b) = &mut self.node.devices[volume].backing {
            b.md.mark_in_use();
        }
        self.md_changed(volume);
        self.node.devices[volume].transactions_wait();
    }

    /// All changed bitmap pages shall go to disk.
    pub(crate) fn write_bitmap(&mut self, volume: VolumeNr) {
        self.out.chores.mark();
        if let Some(b) = &mut self.node.devices[volume].backing {
            b.writer.all_pages = true;
        }
    }

    /// Hands due metadata writes to the disk: called at the end of each turn.
    pub(crate) fn pump_metadata(&mut self, volume: VolumeNr) {
        self.refresh_flags(volume);
        self.pump_bitmap_pages(volume);
        self.node.settle_full_sync(volume);
        let confirmed = self.node.have_told_generation(volume);
        let dev = &mut self.node.devices[volume];
        let Some(b) = &mut dev.backing else { return };
        if b.writer.writing.is_some() || b.writer.written >= b.writer.wanted {
            return;
        }
        let flush = dev.cfg.as_ref().is_some_and(|c| c.md_flushes);
        let write = |at: u64, bytes: Box<[u8]>| MetaOp::Write { offset: at, bytes, flush_before: flush, fua: flush };
        let offset = b.layout.superblock_at().0;
        match b.writer.superblock_due(b.md.current, confirmed) {
            Wanted::Present => {}
            Wanted::Nothing => return,
            Wanted::Note(noted) => {
                b.writer.writing = Some(b.writer.written);
                return self.meta(volume, Op::Superblock(volume), write(offset, noted.emit()));
            }
        }
        // A generation names what its bitmap says: that goes first, but for a bitmap that is all set, as a flag says.
        let bitmap_due = b.writer.all_pages || !b.writer.pages.is_empty();
        if bitmap_due && !b.full_sync && b.writer.written < b.writer.generation {
            return;
        }
        b.writer.writing = Some(b.writer.wanted);
        let noted = b.writer.noted.filter(|noted| !noted.same(b.md.current));
        let bytes: Box<[u8]> = noted.map_or_else(|| b.md.emit(), |noted| b.md.with_note(noted).emit());
        self.meta(volume, Op::Superblock(volume), write(offset, bytes));
    }

    fn pump_bitmap_pages(&mut self, volume: VolumeNr) {
        let Some(b) = &mut self.node.devices[volume].backing else { return };
        // The superblock's "all differs" goes first.
        let flagged = b.full_sync && b.writer.written < b.writer.wanted;
        if !b.writer.all_pages || flagged {
            return;
        }
        if let Some(page) = b.dirty.next_cleared().filter(|_| b.flushing.is_needed()) {
            // A bit that is clear on disk says that the data is there, too. One page goes with the flush, the others
            // when that is over.
            if b.writer.flushing.is_none() && !b.writer.pages.contains(&page) {
                b.dirty.take(page);
                self.emit_bitmap_page(volume, page, true);
            }
            return;
        }
        let mut pages = Vec::new();
        let mut from = 0;
        let mut later = Vec::new();
        let room = PAGES_AT_ONCE.saturating_sub(b.writer.pages.len());
        while pages.len() < room
            && let Some(page) = b.dirty.take_any(from)
        {
            from = page + 1;
            if b.writer.pages.contains(&page) {
                later.push(page);
            } else {
                pages.push(page);
            }
        }
        for &page in &later {
            b.dirty.note_set(page..page + 1);
        }
        b.writer.all_pages = pages.len() == room || !later.is_empty();
        for page in pages {
            self.emit_bitmap_page(volume, page, false);
        }
    }

    /// Writes a page that the activity log wants down.
    pub(crate) fn write_bitmap_page(&mut self, volume: VolumeNr, page: u64) {
        let Some(b) = &mut self.node.devices[volume].backing else { return };
        let flush = b.dirty.is_cleared(page) && b.flushing.is_needed();
        if b.dirty.take_set(page, page + 1).is_some() {
            self.emit_bitmap_page(volume, page, flush);
        }
    }

    /// `flush`: the page may call blocks equal whose data is in the disk's cache yet.
    fn emit_bitmap_page(&mut self, volume: VolumeNr, page: u64, flush: bool) {
        self.out.chores.mark();
        let coming = self.slot_of_source(volume);
        let dev = &mut self.node.devices[volume];
        let flush = flush && dev.cfg.as_ref().is_some_and(|c| c.md_flushes);
        let Some(b) = &mut dev.backing else { return };
        if flush {
            b.writer.flushing = Some((page, b.flushing.mark()));
        }
        let mut bytes = Box::new([0; meta::BLOCK_LEN]);
        b.area().store_with(page, &b.bitmaps, coming, &mut bytes);
        b.writer.pages.insert(page);
        dev.stats.bm_writes += 1;
        let offset = b.layout.bitmap_page_at(page).0;
        self.meta(
            volume,
            Op::BitmapPage(volume, page),
            MetaOp::Write { offset, bytes, flush_before: flush, fua: false },
        );
    }

    pub(crate) fn bitmap_page_done(&mut self, volume: VolumeNr, page: u64, result: Result<(), DiskError>) {
        let Some(b) = &mut self.node.devices[volume].backing else { return };
        b.writer.pages.remove(&page);
        if result.is_err() {
            b.dirty.note_set(page..page + 1);
            return self.meta_error(volume, "bitmap");
        }
        if let Some((_, mark)) = b.writer.flushing.take_if(|(with, _)| *with == page) {
            b.flushing.note_flushed(mark);
        }
        self.advance_transaction(volume);
    }

    pub(crate) fn superblock_done(&mut self, volume: VolumeNr, result: Result<(), DiskError>) {
        let Some(b) = &mut self.node.devices[volume].backing else { return };
        let version = b.writer.writing.take().expect("a superblock was being written");
        if b.writer.has_noted() {
            self.tell_noted_generation(volume);
        }
        let Some(b) = &mut self.node.devices[volume].backing else { return };
        if result.is_err() {
            return self.meta_error(volume, "superblock");
        }
        let generation_was_due = b.writer.written < b.writer.generation;
        b.writer.written = version;
        let generation_written = b.writer.written >= b.writer.generation;
        let heard = b.writer.heard.take_if(|heard| *heard <= version).is_some();
        self.node.devices[volume].al_queue.ask_again();
        if heard {
            self.tell_uuids(volume, UuidFlags::NONE);
        }
        if generation_written {
            self.send_due_sync_uuid(volume);
            self.node.devices[volume].first_write_settled();
        }
        if generation_written && generation_was_due {
            self.finish_held();
        }
    }

    /// Peers hear of the generation that has begun, which is noted on disk, or the disk is lost.
    pub(crate) fn tell_noted_generation(&mut self, volume: VolumeNr) {
        if !self.node.devices[volume].backing.as_ref().is_some_and(|b| b.writer.is_untold()) {
            return;
        }
        self.out.chores.mark();
        self.tell_uuids(volume, UuidFlags::NEW_DATAGEN);
        if let Some(b) = &mut self.node.devices[volume].backing {
            b.writer.put_told();
        }
    }

    /// A node that is no longer Primary counts as one until every write of that time is accounted for: after a crash
    /// the activity log of a Secondary is not looked at.
    fn keeps_primary_mark(&mut self, volume: VolumeNr) -> bool {
        let unlogged = self.node.devices[volume].has_flag(DeviceFlags::AL_DISABLED);
        let counts = |w: &Write| w.device == volume && (w.holds_al() || unlogged);
        self.node.devices[volume].has_flag(DeviceFlags::PRIMARY_IND)
            && (self.node.devices[volume].saves_marks()
                || self.requests.iter().any(|(_, r)| matches!(r, Request::Write(w) if counts(w))))
    }

    /// `al-updates` is `yes` again: what was written without the activity log is known to nobody but the bitmap in
    /// memory, until that is on disk (`docs/spec/on-disk-format.md` 3.11).
    fn keeps_unlogged_mark(&mut self, volume: VolumeNr) -> bool {
        self.node.devices[volume].has_flag(DeviceFlags::AL_DISABLED)
            && (self.node.devices[volume].saves_marks()
                || self
                    .requests
                    .iter()
                    .any(|(_, r)| matches!(r, Request::Write(w) if w.device == volume && !w.holds_al()))
                || self.node.devices[volume].repetitions.iter().any(|(_, r)| !r.al_held())
                || self.peer_writes.iter().any(|(_, w)| w.device == volume && !w.holds_al()))
    }

    /// The flags follow the state (`docs/spec/connection-and-state.md` 2.8, metadata flags).
    pub(crate) fn refresh_flags(&mut self, volume: VolumeNr) {
        let crashed = self.node.devices[volume].disk.crashed_primary;
        let flags_towards = |r: &Self, peer| metadata_flags(&View::of(&r.state, peer, volume), crashed);
        let mark = DeviceFlags::PRIMARY_IND;
        let primary = self.peers_or_none().any(|peer| flags_towards(self, peer).0.contains(mark))
            || self.keeps_primary_mark(volume);
        let (own, _) = flags_towards(self, self.partner(volume));
        let logged = self.node.devices[volume].cfg.as_ref().is_none_or(|c| c.al_updates);
        let unlogged = !logged || self.keeps_unlogged_mark(volume);
        let asked = self.node.cfg.quorum.is_on();
        let dev = &mut self.node.devices[volume];
        let Some(b) = &mut dev.backing else { return };
        if self.node.state.disk(volume) < DiskState::Inconsistent || b.closing_clean {
            return;
        }
        let before = b.md.flags;
        let follows = DeviceFlags::CONSISTENT | DeviceFlags::WAS_UP_TO_DATE | DeviceFlags::CRASHED_PRIMARY;
        b.md.flags.follow(follows, own);
        b.md.flags.put(mark, primary);
        b.md.flags.put(DeviceFlags::AL_DISABLED, unlogged);
        let mut changed = before != b.md.flags;
        if asked && b.md.node_id.is_some() {
            changed |= note_votes(&self.node.state, volume, &mut b.md);
        }
        let becomes_unlogged = unlogged && !before.contains(DeviceFlags::AL_DISABLED);
        let becomes_primary = b.md.flags.contains(mark) && !before.contains(mark);
        let mut other_connected = false;
        let (nine, seen) = (self.sizes_by_9(), DiskState::Inconsistent..=DiskState::UpToDate);
        for peer in self.node.connections.ids() {
            let (_, said) = flags_towards(self, Some(peer));
            let disk = self.node.state.peer_disk(peer, volume);
            let has_disk = seen.contains(&disk) && disk != DiskState::DUnknown;
            let Some(b) = &mut self.node.devices[volume].backing else { return };
            let flags = &mut b.md.peer_mut(peer).flags;
            if nine && has_disk {
                // It comes to the disk with what else changes.
                flags.insert(PeerFlags::DEVICE_SEEN);
            }
            let before = *flags;
            flags.follow(PeerFlags::CONNECTED | PeerFlags::OUTDATED, said);
            changed |= before != *flags;
            other_connected |= before.contains(PeerFlags::CONNECTED) != said.contains(PeerFlags::CONNECTED);
        }
        if becomes_primary {
            // Without the mark on disk a crash would throw the activity log away, and with it the knowledge of which
            // writes may be on one side only: writes and transactions wait for it.
            self.generation_changed(volume);
            self.node.devices[volume].transactions_wait();
        } else if other_connected && self.node.connections.members().len() > 1 {
            // After a crash the log is thrown away for who was connected: it must not be somebody who had gone before.
            self.generation_changed(volume);
        } else if changed {
            self.md_changed(volume);
        }
        if becomes_unlogged && let Some(b) = &mut self.node.devices[volume].backing {
            b.writer.unlogged = b.writer.wanted;
        }
    }
}

/// The metadata of a volume follow the votes, where quorum is asked for: who has asked for none has the right to write
/// alone by that, and not by what was agreed with others. Returns whether that changes them
/// (`docs/spec/connection-and-state.md` 2.6, 9.6).
fn note_votes(state: &State, volume: VolumeNr, md: &mut Superblock) -> bool {
    let before = (md.flags, md.members);
    let has = state.standing(volume).is_quorate();
    md.members = state.may_be_online();
    md.flags.put(DeviceFlags::HAVE_QUORUM, has);
    if has || state.is_primary() {
        md.flags.put(DeviceFlags::PRIMARY_LOST_QUORUM, !has);
    }
    before != (md.flags, md.members)
}

impl Node {
    /// Was the disk that is being taken into use the only one with quorum when this node went
    /// (`docs/spec/connection-and-state.md` 9.5)?
    pub(crate) fn was_sole_survivor(&self, volume: VolumeNr) -> bool {
        let Some(b) = self.devices[volume].backing.as_ref().filter(|_| self.cfg.quorum.is_on()) else { return false };
        let flags = DeviceFlags::HAVE_QUORUM | DeviceFlags::WAS_UP_TO_DATE;
        b.md.flags.contains(flags) && b.md.members == NodeMask::of(self.cfg.node)
    }
}

impl Node {
    /// The flag "all differs" has done its work when all pages are down.
    fn settle_full_sync(&mut self, volume: VolumeNr) {
        let Some(b) = &self.devices[volume].backing else { return };
        if !b.full_sync || b.writer.all_pages || !b.writer.pages.is_empty() {
            return;
        }
        if let Some(b) = &mut self.devices[volume].backing {
            b.full_sync = false;
            self.connections.ids().for_each(|peer| b.md.peer_mut(peer).flags.remove(PeerFlags::FULL_SYNC));
            b.writer.wanted += 1;
        }
    }
}

impl Node {
    /// Peers of which the metadata say this.
    pub(crate) fn flagged_peers(&self, md: &Superblock, flag: PeerFlags) -> NodeMask {
        self.connections.ids().filter(|peer| md.peer(*peer).flags.contains(flag)).collect()
    }
}

impl Device {
    /// Has its disk no bitmap for a peer, and no slot for one?
    pub(crate) fn lacks_room_for(&self, peer: NodeId) -> bool {
        self.backing
            .as_ref()
            .map(|b| &b.md)
            .is_some_and(|md| md.peer(peer).slot.is_none() && md.vacant_slot().is_none())
    }

    /// A peer gets a slot, if it has none: true if that is new. What is set there is what has changed since ever.
    pub(crate) fn gives_slot_to(&mut self, peer: NodeId) -> bool {
        let Some(b) = self.backing.as_mut() else { return false };
        let slot = b.md.vacant_slot().filter(|_| b.md.peer(peer).slot.is_none());
        b.md.peer_mut(peer).slot = b.md.peer(peer).slot.or(slot);
        slot.is_some()
    }

    /// A node's record is that of an unused one, and its slot vacant: true if something has changed. A vacant slot says
    /// what has changed since ever, which no other one may know: then it is all of the disk.
    pub(crate) fn forgets(&mut self, peer: NodeId) -> bool {
        let Some(b) = self.backing.as_mut().filter(|b| b.md.format == meta::Format::V09) else { return false };
        let (before, vacant) = (b.md.clone(), b.md.vacant_slot());
        b.md.forget_peer(peer);
        match (before.peer(peer).slot.map(usize::from), vacant.map(usize::from)) {
            (Some(slot), Some(vacant)) => {
                b.fill(slot, false);
                b.add_marks(slot, vacant);
            }
            (Some(slot), None) => b.fill(slot, true),
            (None, _) => {}
        }
        before != b.md
    }

    fn slots(&self) -> usize {
        self.backing.as_ref().map_or(0, |b| b.bitmaps.len())
    }

    /// No activity-log transaction before the superblock as it is now.
    fn transactions_wait(&mut self) {
        if let Some(b) = &mut self.backing {
            b.writer.in_use = b.writer.wanted;
        }
    }

    /// Is everything about this device's metadata on disk?
    pub(crate) fn metadata_idle(&self) -> bool {
        self.backing.as_ref().is_none_or(|b| b.writer.idle())
    }

    /// Sees to it that the marked blocks are marked on disk, too. False: they are.
    fn saves_marks(&mut self) -> bool {
        let Some(b) = &mut self.backing else { return false };
        let dirty = b.dirty.any_set();
        b.writer.all_pages |= dirty;
        dirty || !b.writer.pages.is_empty()
    }
}
