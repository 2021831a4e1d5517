//! How far a resync or verify is, and how fast (spec 7.12).

use crate::Resource;
use crate::node::Node;
use crate::resync::Replication;
use crate::resync::marks::{Progress, SlowedBy};
use crate::resync::session::Block;
use units::{Duration, NodeId, VolumeNr};

impl Resource {
    pub(super) fn note_progress(&mut self, peer: NodeId, volume: VolumeNr) {
        let left = self.work_left(peer, volume);
        let now = self.node.now;
        if self.node.connections[peer].peer_devices[volume].resync.marks.note(now, left) {
            self.out.status_changed = true;
        }
        if now.since(self.node.devices[volume].disk.last_lazy_bitmap) >= Duration::from_secs(2) {
            self.node.devices[volume].disk.last_lazy_bitmap = now;
            self.write_bitmap(volume);
        }
    }

    pub(crate) fn resync_paused(&mut self, peer: NodeId, volume: VolumeNr, on: bool) {
        let (now, left) = (self.node.now, self.work_left(peer, volume));
        self.node.connections[peer].peer_devices[volume].resync.marks.pause(now, left, on);
    }
}

impl Node {
    fn work_left(&self, peer: NodeId, volume: VolumeNr) -> u64 {
        self.work(peer, volume).left / 4096
    }

    /// What most of what is on its way waits for. `None`: nothing is on its way, and this node is the one to ask.
    pub(crate) fn slowed_by(&self, peer: NodeId, volume: VolumeNr) -> Option<SlowedBy> {
        let rs = &self.connections[peer].peer_devices[volume].resync;
        let replication = self.state.pair(peer, volume).replication;
        let held = rs.controller.as_ref().and_then(|c| c.slowed_by(self.now));
        let held = held.or_else(|| rs.brake.as_ref().and_then(|b| b.slowed_by(self.now)));
        let bytes = |counts: fn(&Block) -> bool| -> u64 {
            rs.blocks.values().filter(|b| counts(b)).map(|b| b.range.len().0).sum()
        };
        let (disk, awaited) = (bytes(|b| b.on_disk.is_some()), bytes(Block::is_awaited));
        held.or(match (disk, awaited) {
            (0, 0) => {
                matches!(replication, Replication::SyncSource | Replication::VerifyT).then_some(SlowedBy::Requests)
            }
            _ if disk >= awaited => Some(SlowedBy::Disk),
            _ => Some(SlowedBy::Peer),
        })
    }

    pub(crate) fn progress(&self, peer: NodeId, volume: VolumeNr) -> Progress {
        let left = self.work_left(peer, volume);
        let own = &self.connections[peer].peer_devices[volume].resync.marks;
        let marks = own.since(self.now, left);
        let (time, bits) = marks[0];
        let rate = if time.as_millis() == 0 { 0 } else { bits * 4 * 1000 / time.as_millis() };
        Progress { left, paused: own.paused_until(self.now), marks, rate }
    }
}
