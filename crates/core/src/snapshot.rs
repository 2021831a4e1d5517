//! The state of everything, for whoever asks.

use crate::api::{ConnectionSnapshot, DeviceSnapshot, PeerDeviceSnapshot, Snapshot};
use crate::decide::what_if::{self, Foretold, Loss};
use crate::latency::Stage;
use crate::node::Node;
use crate::resync::session::bytes_of_bits;
use crate::{Resource, dialect9, dialect84};
use units::{ByteLen, Generation, Histogram, NodeId, SectorRange, VolumeNr};
use wire::StateWord;

impl Resource {
    /// The state of everything.
    #[must_use]
    pub fn snapshot(&self) -> Snapshot {
        let device = |volume| self.node.device_snapshot(volume, self.detaches_by_command(volume));
        Snapshot {
            name: self.node.cfg.name.clone(),
            node: self.node.cfg.node,
            role: self.node.state.role,
            suspended: self.node.state.suspended(),
            devices: self.node.devices.ids().map(device).collect(),
            connections: self.node.connections.ids().map(|peer| self.connection_snapshot(peer)).collect(),
            decisions: self.out.decisions.iter().cloned().collect(),
        }
    }
}

impl Node {
    /// A volume's state towards its peer, as one word of 8.4. `None` if there is no such volume.
    #[must_use]
    pub fn state_word(&self, volume: VolumeNr) -> Option<StateWord> {
        self.devices.get(volume).map(|_| dialect84::word(&self.state, self.partner(volume), volume))
    }

    /// A volume's state towards this peer, as one word of 8.4. `None` if there is no such volume or peer.
    #[must_use]
    pub fn state_word_towards(&self, volume: VolumeNr, peer: NodeId) -> Option<StateWord> {
        let there = self.devices.contains(volume) && self.connections.contains(peer);
        there.then(|| dialect84::word(&self.state, Some(peer), volume))
    }

    /// A volume's generations: current, bitmap, history. `None` if there is no such volume, or no disk.
    #[must_use]
    pub fn generations(&self, volume: VolumeNr) -> Option<[Generation; 4]> {
        self.devices.get(volume)?.backing.as_ref()?;
        let set = self.devices[volume].uuids(self.partner(volume));
        Some([set.current, set.bitmap, set.history[0], set.history[1]])
    }

    /// How many blocks of a range are recorded as different from the peer's. 0 without a disk.
    #[must_use]
    pub fn known_different(&self, volume: VolumeNr, peer: NodeId, range: SectorRange) -> u64 {
        if !self.devices.contains(volume) || !self.connections.contains(peer) {
            return 0;
        }
        let Some((b, slot)) = self.devices[volume].bitmap(peer) else { return 0 };
        let bits = b.area().touched(range);
        b.bitmaps[slot].count_range(bits.start, bits.end)
    }

    /// Bytes of memory that the bitmaps of attached disks take.
    #[must_use]
    pub fn bitmap_bytes(&self) -> u64 {
        let bitmaps = self.devices.iter().filter_map(|(_, dev)| dev.backing.as_ref()).flat_map(|b| &b.bitmaps);
        bitmaps.map(|bits| bits.len().div_ceil(64) * 8).sum()
    }

    fn device_snapshot(&self, volume: VolumeNr, detaching: bool) -> DeviceSnapshot {
        let dev = &self.devices[volume];
        let set = self.devices[volume].uuids(self.partner(volume));
        DeviceSnapshot {
            volume,
            disk: dialect9::told(self.state.disk(volume), detaching),
            no_quorum: Some(volume)
                .filter(|v| !self.state.standing(*v).is_quorate())
                .map(|v| self.votes(v).to_string()),
            size: dev.size.to_bytes(),
            old_metadata: dev.backing.as_ref().is_some_and(|b| b.md.format != meta::Format::V09),
            generations: [set.current, set.bitmap, set.history[0], set.history[1]],
            read: ByteLen(dev.stats.read_bytes),
            written: ByteLen(dev.stats.written_bytes),
            al_writes: dev.stats.al_writes,
            bm_writes: dev.stats.bm_writes,
            upper_pending: dev.disk.upper_pending,
            lower_pending: dev.disk.local_pending,
            al_suspended: false,
        }
    }

    fn connection_snapshot(&self, peer: NodeId) -> ConnectionSnapshot {
        let c = &self.connections[peer];
        ConnectionSnapshot {
            peer,
            peer_name: c.cfg.peer_name.clone(),
            state: self.state.connection(peer),
            role: self.state.peers[peer].role(),
            addresses: c.cfg.addresses,
            version: c.dialect().map(|dialect| dialect.version.number()),
            refusals: c.refusals,
            peer_devices: self.devices.ids().map(|volume| self.peer_device_snapshot(peer, volume)).collect(),
        }
    }

    fn peer_device_snapshot(&self, peer: NodeId, volume: VolumeNr) -> PeerDeviceSnapshot {
        let pd = &self.connections[peer].peer_devices[volume];
        let (left, progress) = (self.devices[volume].bits_left(peer), self.progress(peer, volume));
        let pair = self.state.pair(peer, volume);
        let syncing = pair.replication.is_working();
        PeerDeviceSnapshot {
            volume,
            replication: dialect84::conn_state(self.state.connection(peer), pair.replication),
            peer_disk: pair.disk,
            paused: (
                pair.paused.by_user,
                pair.paused.by_peer,
                pair.paused.by_dependency || pair.paused.by_other && syncing,
            ),
            out_of_sync: bytes_of_bits(left),
            sync_total: bytes_of_bits(pd.resync.total),
            sync_left: bytes_of_bits(if syncing { progress.left } else { 0 }),
            sync_failed: bytes_of_bits(self.bits_failed(peer, volume)),
            sync_rate: if syncing { progress.rate } else { 0 },
            sync_started: pd.resync.started.filter(|_| syncing),
            sync_paused: progress.paused,
            sync_same: bytes_of_bits(pd.resync.same),
            sync_slowed: self.slowed_by(peer, volume).filter(|_| syncing),
            sync_marks: progress.marks.map(|(time, bits)| (time, bytes_of_bits(bits))),
            verify: self.connections[peer].peer_devices[volume].verify_position(),
            sent: ByteLen(pd.link.io.sent_bytes),
            received: ByteLen(pd.link.io.received_bytes),
            pending: pd.link.io.pending,
            unacked: pd.link.io.unacked,
        }
    }
}

impl Node {
    /// How long a volume's requests spent in each stage since this was made, in the order of [`Stage::ALL`]. Merged
    /// writes count as the requests that they are made of; a request of several parts counts once per part. `None` if
    /// there is no such volume.
    pub fn latencies(&self, volume: VolumeNr) -> Option<impl Iterator<Item = (Stage, &Histogram)>> {
        Some(Stage::ALL.into_iter().zip(self.devices.get(volume)?.stats.latencies.histograms()))
    }
}

impl Node {
    /// What each single loss would do, by the rules that decide ([`what_if::every_loss`]).
    #[must_use]
    pub fn what_if(&self) -> Vec<Foretold> {
        what_if::every_loss(&self.state, &self.facts(), self.cfg.node)
    }

    /// The same of this one.
    #[must_use]
    pub fn what_if_lost(&self, loss: Loss) -> Vec<Foretold> {
        what_if::foretold(&self.state, &self.facts(), self.cfg.node, loss)
    }
}
