//! What a node has sent to its peer and knows nothing of yet: the order of epochs, and which extents must stay in the
//! activity log (`docs/spec/data-path-and-resync.md` 1.7 to 1.9).

use crate::cluster::Cluster;
use crate::net::Wish;
use crate::oracle::Moment;
use std::collections::VecDeque;
use units::SectorRange;
use wire::Packet;

/// The epochs of one node's present connection, as its data stream shows them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Epochs {
    connection: u64,
    /// Barriers sent, and answered.
    sent: u64,
    confirmed: u64,
    /// Writes that no barrier acknowledgement has confirmed: epoch, volume, place.
    open: VecDeque<(u64, usize, SectorRange)>,
    /// When the first write of the present epoch was completed to its application.
    completed: Option<Moment>,
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

    /// A write that was sent in this epoch of this connection was completed to its application.
    pub(crate) fn note_completed(&mut self, connection: u64, epoch: u64, now: Moment) {
        if self.connection == connection && self.sent == epoch {
            self.completed.get_or_insert(now);
        }
    }

    fn confirm(&mut self) {
        let epoch = self.confirmed;
        self.open.retain(|(e, ..)| *e != epoch);
        self.confirmed += 1;
    }
}

impl Cluster {
    /// A node hands a packet to its data stream.
    pub(crate) fn note_sent(&mut self, n: usize, v: usize, packet: &Packet, connection: u64) -> Result<(), String> {
        let range = match packet {
            Packet::Barrier(_) => {
                let epochs = self.nodes[n].epochs.sent(connection);
                epochs.sent += 1;
                epochs.completed = None;
                return Ok(());
            }
            Packet::SyncUuid(sync) => return self.check_sync_generation(n, v, *sync),
            Packet::Data(w) => SectorRange::new(w.sector, w.size),
            Packet::Trim(w) | Packet::Zeroes(w) => SectorRange::new(w.sector, w.size),
            _ => None,
        };
        let Some(range) = range.filter(|r| !r.is_empty()) else { return Ok(()) };
        let epochs = self.nodes[n].epochs.sent(connection);
        epochs.open.push_back((epochs.sent, v, range));
        let Some(completed) = epochs.completed else { return Ok(()) };
        let later = |r: &crate::cluster::Request| {
            r.volume == v && crate::apps::is_write(r.kind) && r.written.range.overlaps(range) && r.sent.is_none()
        };
        match self.nodes[n].requests.values().find(|r| later(r) && r.written.issued > completed) {
            Some(r) => Err(format!("{:?} is in the epoch of a write that was completed before it", r.written)),
            None => Ok(()),
        }
    }

    /// A node learns what its peer says on the control stream.
    pub(crate) fn note_heard(&mut self, n: usize, packet: &Packet) {
        if matches!(packet, Packet::BarrierAck(_)) {
            self.nodes[n].epochs.confirm();
        }
    }

    /// Writes to a range that the peer of a node's present connection has not confirmed.
    pub(crate) fn unconfirmed(&self, n: usize, v: usize, range: SectorRange) -> Vec<SectorRange> {
        let node = &self.nodes[n];
        if !node.wish_is(&self.net.wishes[n]) {
            return Vec::new();
        }
        let open = node.epochs.open.iter().filter(|(_, volume, r)| *volume == v && r.overlaps(range));
        open.map(|(.., r)| *r).collect()
    }
}

impl crate::cluster::Node {
    fn wish_is(&self, wish: &Wish) -> bool {
        *wish == Wish::Connected(self.epochs.connection)
    }
}
