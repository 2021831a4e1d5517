//! `resync-after`: one volume's resync waits for another's (spec 7.9).

use crate::Resource;
use crate::decide::change::Set;
use crate::node::Node;
use units::VolumeNr;
use wire::DiskState;

impl Resource {
    /// Pauses and resumes by the chains of `resync-after`, until nothing changes any more.
    pub(crate) fn follow_dependencies(&mut self) {
        if self.node.connections.is_empty() {
            return;
        }
        for _ in 0..=self.node.devices.len() {
            let mut wanted = Vec::new();
            for volume in self.node.devices.ids() {
                let waits = self.waits_for_another(volume);
                let others = self.node.state.pairs(volume).filter(|(_, pair)| pair.paused.by_dependency != waits);
                wanted.extend(others.map(|(peer, _)| Set::PausedByDependency(peer, volume, waits)));
            }
            if wanted.is_empty() {
                return;
            }
            wanted.into_iter().for_each(|set| self.took_place(set));
        }
    }
}

impl Node {
    /// Is anything in the chain before this volume syncing, or paused by something else than the chain's own order?
    fn waits_for_another(&self, volume: VolumeNr) -> bool {
        let mut at = volume;
        for _ in self.devices.ids() {
            if self.devices[at].waits_elsewhere {
                return true;
            }
            let Some(next) = self.devices[at].cfg.as_ref().and_then(|c| c.resync.after) else { return false };
            if next == volume || !self.devices.contains(next) || self.state.disk(next) == DiskState::Diskless {
                return false;
            }
            if self.state.pairs(next).any(|(_, pair)| pair.replication.is_working() || pair.paused.any()) {
                return true;
            }
            at = next;
        }
        false
    }
}
