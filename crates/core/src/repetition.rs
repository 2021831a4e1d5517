//! A write that is done again, as it gave way to one of the other Primary, or was frozen
//! (`docs/spec/data-path-and-resync.md` 1.13, 3.2): until it has been, the copies may differ in its blocks.

pub(crate) mod place;

use crate::Resource;
use crate::device::Device;
use crate::node::Node;
use crate::repetition::place::{Behind, Repetition};
use crate::request::under_way::Request;
use crate::request::write::NewWrite;
use crate::rows::hit;
use units::{Instant, NodeId, SectorRange, VolumeNr, is_after};

impl Resource {
    /// A write that is done once more: from the top, behind that which it gave way to.
    pub(crate) fn start_again(&mut self, key: u64) {
        let Some(Request::Write(w)) = self.requests.get_mut(key) else { return };
        let volume = w.device;
        let (kind, fua, range, came, epoch) = (w.kind, w.fua, w.range, w.came, w.submitted.epoch);
        let Some(open) = w.close() else { return };
        let behind = open.repeat.unwrap_or(Behind::Nothing);
        let repetition = match open.again {
            Some(repetition) => {
                self.node.devices[volume].repetitions.get_mut(repetition).into_iter().for_each(|r| r.behind = behind);
                repetition
            }
            None => {
                let al_held = w.leave_al();
                self.node.devices[volume].repetitions.insert(Repetition { range, al_held, behind })
            }
        };
        self.node.devices[volume].queue.writing.remove(range.start, open.interval);
        self.node.devices[volume].queue.recheck = true;
        let mut again = self.new_write(volume, kind, fua, range, open.data, open.owners);
        (again.came, again.again) = (came, Some(repetition));
        self.node.devices[volume].queue.blocked.push_back(again);
        // The peer may write what is of one epoch in any order, and it may end here, with an error.
        if epoch == self.epoch.number() {
            self.close_epoch();
        }
        self.try_finish(key);
    }

    /// A write is over. If it was done again it is known now which copies have it.
    pub(crate) fn end_repetition(&mut self, volume: VolumeNr, repetition: Option<u64>) {
        let ended = repetition.and_then(|key| self.node.devices[volume].repetitions.remove(key));
        if let Some(Repetition { range, al_held: true, .. }) = ended {
            self.node.devices[volume].release_al(range);
        }
    }

    /// A write that the peer has asked to repeat is not done again: its blocks may be on this disk alone, and are to be
    /// copied.
    pub(crate) fn give_up_repetition(&mut self, write: &mut NewWrite) {
        let Some(repetition) = write.again.take() else { return };
        let volume = write.device;
        hit("conflicts", || "lost: given up".to_owned());
        for peer in self.node.connections.ids() {
            self.copy_by_resync(peer, volume, write.range);
        }
        self.end_repetition(volume, Some(repetition));
    }

    fn copy_by_resync(&mut self, peer: NodeId, volume: VolumeNr, range: SectorRange) {
        if self.mark_out_of_sync(peer, volume, range) > 0 {
            self.node.connections[peer].peer_devices[volume].repair.wanted(self.node.now);
            self.out.chores.mark();
        }
    }

    /// The link goes, or the own disk: what is to be done again may never be.
    pub(crate) fn mark_repetitions(&mut self, peer: NodeId, volume: VolumeNr) {
        let ranges: Vec<SectorRange> = self.node.devices[volume].repetitions.iter().map(|(_, r)| r.range).collect();
        for range in ranges {
            hit("conflicts", || "lost: marked".to_owned());
            self.mark_out_of_sync(peer, volume, range);
        }
    }

    /// The link goes, and nothing more comes by it.
    pub(crate) fn repetitions_lost_peer(&mut self, peer: NodeId, volume: VolumeNr) {
        self.mark_repetitions(peer, volume);
        for repetition in self.node.devices[volume].repetitions.values_mut() {
            if matches!(repetition.behind, Behind::Writes { peer: of, .. } if of == peer) {
                repetition.behind = Behind::Nothing;
            }
        }
        self.node.devices[volume].queue.recheck |= !self.node.devices[volume].repetitions.is_empty();
    }

    /// Others need room in the activity log, perhaps those that what is done again waits for.
    pub(crate) fn repetitions_leave_al(&mut self, volume: VolumeNr) {
        let held = |r: &mut Repetition| std::mem::take(&mut r.al_held).then_some(r.range);
        let ranges: Vec<SectorRange> = self.node.devices[volume].repetitions.values_mut().filter_map(held).collect();
        for range in ranges {
            for peer in self.node.connections.ids() {
                self.copy_by_resync(peer, volume, range);
            }
            self.node.devices[volume].release_al(range);
        }
    }
}

impl Device {
    /// A write of a peer has come: it may be what one that is done again is behind.
    pub(crate) fn note_peers_write(&mut self) {
        self.queue.recheck |= !self.repetitions.is_empty();
    }
}

impl Node {
    /// The peer's write that its answer `seq` (P_RETRY_WRITE) is about: of its numbers up to this one, all that were no
    /// answer's were a write's.
    pub(crate) fn writes_before(&self, peer: NodeId, volume: VolumeNr, seq: u32) -> Behind {
        Behind::Writes {
            peer,
            count: seq.wrapping_sub(self.connections[peer].peer_devices[volume].link.io.peer_answers),
        }
    }

    /// Is something still to come before a write that is done again? What it gave way to may be on its way, behind much
    /// else. Until that has come the peer would answer the same, as often as it is asked.
    pub(crate) fn is_to_come(&self, volume: VolumeNr, write: &NewWrite) -> bool {
        let Some(Behind::Writes { peer, count }) = self.is_behind(volume, write) else { return false };
        let pd = self.connections.get(peer).and_then(|c| c.peer_devices.get(volume));
        let to_come = pd.is_some_and(|pd| is_after(count, pd.link.io.peer_writes));
        if to_come {
            hit("conflicts", || "waits: what it gave way to".to_owned());
        }
        to_come
    }

    fn is_behind(&self, volume: VolumeNr, write: &NewWrite) -> Option<Behind> {
        write.again.and_then(|key| self.devices[volume].repetitions.get(key)).map(|repetition| repetition.behind)
    }

    /// Since when does a write wait for what this peer says to come first?
    pub(crate) fn repetitions_since(&self, peer: NodeId) -> Option<Instant> {
        let devices = self.devices.iter().filter(|_| self.connections[peer].cfg.two_primaries);
        let waits = |volume: VolumeNr, w: &NewWrite| {
            matches!(self.is_behind(volume, w), Some(Behind::Writes { peer: of, .. }) if of == peer)
                && self.is_to_come(volume, w)
        };
        devices
            .flat_map(|(volume, dev)| dev.queue.blocked.iter().filter(move |w| waits(volume, w)).map(|w| w.admitted))
            .min()
    }
}
