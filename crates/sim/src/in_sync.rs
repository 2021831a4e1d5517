//! What a node says of who is in sync is true when it says so (`docs/spec/data-path-and-resync.md` 6.3): whoever hears
//! it forgets what it has marked.

use crate::checks::differences;
use crate::cluster::Cluster;
use crate::payload::Payload;
use crate::plan::{node_id, volume_nr};
use crate::ranges::sectors;
use units::SectorRange;
use wire::{Packet, PeersInSync};

impl Cluster {
    /// A node is about to send this to a peer, which concludes nothing from being listed itself.
    pub(crate) fn check_in_sync(&self, [n, peer]: [usize; 2], v: usize, packet: &Packet) -> Result<(), String> {
        let Packet::PeersInSync(told) = packet else { return Ok(()) };
        let listed = told.nodes.nodes().into_iter().map(|node| node.index());
        listed.filter(|other| *other != n && *other != peer && *other < self.nodes.len()).try_for_each(|other| {
            match self.false_of([n, peer, other], v, told) {
                Some(range) => Err(format!("says that node {other} has the same, which is not so in {range:?}")),
                None => Ok(()),
            }
        })
    }

    /// Where the other node does not have the same, nothing is being written, and that one does not know either: what
    /// it has got from others since it has marked for who hears this.
    fn false_of(&self, [n, peer, other]: [usize; 3], v: usize, told: &PeersInSync) -> Option<SectorRange> {
        let all = [n, other].map(|n| &self.nodes[n].volumes[v]);
        // Who is gone, and is taken for alive, may have another disk by now.
        let core = self.nodes[other].core.as_ref().filter(|_| !self.has_unnoticed_loss())?;
        if self.setup.extras.two_primaries || all.iter().any(|volume| !volume.rotten.is_empty()) {
            return None;
        }
        let size = all.iter().map(|volume| volume.size).min().unwrap_or_default();
        let end = told.sector.0.saturating_add(told.size.0 / 512).min(size);
        let range = sectors(told.sector.0.min(end), end);
        let [own, theirs] = all.map(|volume| Payload::read(volume.data.data(), range));
        let differ = differences(&own, &theirs, range.start);
        let known = |range| core.known_different(volume_nr(v), node_id(peer), range) > 0;
        let fits = |range| known(range) || self.is_changing(v, range) || self.may_differ([n, other], v, range);
        differ.into_iter().find(|range| !fits(*range))
    }

    /// Has some node not noticed yet that a peer is gone? What that one wrote last may be on some only.
    fn has_unnoticed_loss(&self) -> bool {
        (0..self.nodes.len()).any(|n| self.peers(n).any(|peer| self.takes_for_alive(n, peer)))
    }

    /// Is something there on its way to a disk, or not known to be everywhere?
    fn is_changing(&self, v: usize, range: SectorRange) -> bool {
        self.nodes.iter().enumerate().any(|(n, node)| {
            let asked = node.requests.values().any(|r| r.volume == v && r.written.range.overlaps(range));
            let mut flights = node.flights.values().filter(|f| f.volume == v).filter_map(|f| f.changes);
            asked
                || flights.any(|changes| changes.overlaps(range))
                || self.peers(n).any(|peer| !self.unconfirmed(n, peer, v, range).is_empty())
        })
    }
}
