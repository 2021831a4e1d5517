//! A target and its sources (`docs/spec/connection-and-state.md` 7.6).

use crate::Resource;
use crate::api::ConnectionState;
use crate::decide::DiskState;
use crate::decide::state::Replication;
use units::{Duration, Instant, NodeId, VolumeNr};
use wire::UuidFlags;

/// So long a bad copy waits for a resync before its node connects anew.
const PATIENCE: Duration = Duration::from_secs(2);

impl Resource {
    /// Nobody brings this node up to date although its copy is bad, as its source was lost, and a good one is within
    /// reach that depends on nothing: after a while they connect anew, and compare.
    pub(crate) fn check_lagging(&mut self) {
        for d in self.devices.ids() {
            let good = self.good_source_at_rest(d);
            let since = good.map(|_| self.devices[d].lags_since.unwrap_or(self.now));
            self.devices[d].lags_since = since;
            if let Some(i) = good.filter(|_| since.is_some_and(|since| since + PATIENCE <= self.now)) {
                self.devices[d].lags_since = None;
                let text = "this copy is bad, and no resync goes on: connecting anew".to_owned();
                self.drop_link(i, ConnectionState::NetworkFailure, "lags-behind", text);
            }
        }
    }

    /// When that is due.
    pub(crate) fn lagging_timer(&self) -> Option<Instant> {
        self.devices.values().filter_map(|dev| dev.lags_since).min().map(|since| since + PATIENCE)
    }

    fn good_source_at_rest(&self, d: VolumeNr) -> Option<NodeId> {
        let bad = matches!(self.state.disk(d), DiskState::Inconsistent | DiskState::Outdated);
        if !bad || !self.in_mesh9() || self.state.pairs(d).any(|(_, p)| p.replication > Replication::Established) {
            return None;
        }
        let told = |i: NodeId| self.connections[i].peer_devices[d].uuids110.as_ref();
        let stable = |i: NodeId| told(i).is_some_and(|u| u.flags.contains(UuidFlags::STABLE));
        // Who could not read some blocks would not read them now.
        let serves = |i: &NodeId| {
            let pair = self.state.pair(*i, d);
            let good = pair.replication == Replication::Established && pair.disk == DiskState::UpToDate;
            good && stable(*i) && self.bits_failed(*i, d) == 0
        };
        self.connections.ids().find(serves)
    }
}
