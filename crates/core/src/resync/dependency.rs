//! `resync-after`: one volume's resync waits for another's (spec 7.9).

use crate::Resource;
use crate::decide::StateChange;
use crate::decide::rules84::Force;
use units::VolumeNr;
use wire::{ConnState, DiskState};

impl Resource {
    /// Pauses and resumes by the chains of `resync-after`, until nothing changes any more.
    pub(crate) fn follow_dependencies(&mut self) {
        if self.connections.is_empty() {
            return;
        }
        for _ in 0..=self.devices.len() {
            let wanted: Vec<(VolumeNr, bool)> = self
                .devices
                .ids()
                .map(|d| (d, self.waits_for_another(d)))
                .filter(|(d, waits)| self.word(*d).aftr_isp != *waits)
                .collect();
            if wanted.is_empty() {
                return;
            }
            for (d, waits) in wanted {
                let change = StateChange { aftr_isp: Some(waits), ..StateChange::default() };
                let _ = self.change(d, &change, Force::Hard);
            }
        }
    }

    /// Is anything in the chain before this volume syncing, or paused by something else than the chain's own order?
    fn waits_for_another(&self, d: VolumeNr) -> bool {
        let mut at = d;
        for _ in self.devices.ids() {
            if self.devices[at].waits_elsewhere {
                return true;
            }
            let Some(after) = self.devices[at].cfg.as_ref().and_then(|c| c.resync.after) else { return false };
            let Some(next) = self.device_index(after) else { return false };
            if next == d || self.state.disk(next) == DiskState::Diskless {
                return false;
            }
            let word = self.word(next);
            if (ConnState::SyncSource..=ConnState::PausedSyncT).contains(&word.conn)
                || word.aftr_isp
                || word.peer_isp
                || word.user_isp
            {
                return true;
            }
            at = next;
        }
        false
    }
}
