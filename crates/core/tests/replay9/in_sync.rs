//! Who is said to be in sync (P_PEERS_IN_SYNC). In which packets, and how often, depends on when a node knows that
//! nothing of an extent is left. Compared is what is said of each extent in all, from the beginning of one resync to
//! that of the next one.

use crate::recording::Said;
use std::collections::BTreeSet;
use units::{NodeId, VolumeNr};
use wire::{ConnState, Packet};

/// The extents that are spoken of, in sectors.
const EXTENT: u64 = (4 << 20) / 512;

/// Behind the beginning of so many resyncs, of an extent of a volume, this peer is told that that node has the same.
type Told = (u32, VolumeNr, u64, NodeId, NodeId);

/// What one node says.
#[derive(Default)]
struct Teller {
    begun: u32,
    /// Towards whom it has said last that it waits for a bitmap.
    begins: BTreeSet<(NodeId, VolumeNr)>,
    told: BTreeSet<Told>,
    /// Of that, what a packet says that is sent to this node, or lists it.
    about: BTreeSet<(NodeId, Told)>,
}

#[derive(Default)]
pub(crate) struct InSync {
    recorded: Teller,
    ours: Teller,
    /// Of this node the core says nothing, nor to it, and does not pass on what it hears of it. It has taken it for
    /// equal by its generation at once, so that no marks go by what others say; or it has heard that it has marks.
    pub(crate) fewer_of: Option<NodeId>,
    /// The core is a Primary that has let a peer in, and then says who has the same as it has. A kernel says that of
    /// what a resync has copied only.
    pub(crate) more: bool,
}

impl Teller {
    /// True: the packet says who is in sync.
    fn says(&mut self, to: NodeId, volume: VolumeNr, packet: &Packet) -> bool {
        match packet {
            Packet::State(word) if matches!(word.conn, ConnState::WFBitMapS | ConnState::WFBitMapT) => {
                // It may say so twice.
                self.begun += u32::from(self.begins.insert((to, volume)));
            }
            Packet::State(_) => drop(self.begins.remove(&(to, volume))),
            Packet::PeersInSync(p) => {
                let begun = self.begun;
                for at in p.sector.0 / EXTENT..(p.sector.0 + p.size.0 / 512).div_ceil(EXTENT) {
                    for told in p.nodes.nodes().into_iter().map(|node| (begun, volume, at, to, node)) {
                        self.told.insert(told);
                        let named = p.nodes.nodes().into_iter().chain([to]);
                        self.about.extend(named.map(|node| (node, told)));
                    }
                }
                return true;
            }
            _ => {}
        }
        false
    }
}

impl InSync {
    /// The recorded node says something. True: it says who is in sync.
    pub(crate) fn record(&mut self, said: &Said) -> bool {
        self.recorded.says(said.to, said.volume, &said.packet)
    }

    /// The core says something. True: it says who is in sync.
    pub(crate) fn says(&mut self, to: NodeId, volume: VolumeNr, packet: &Packet) -> bool {
        self.ours.says(to, volume, packet)
    }

    /// All has been said.
    pub(crate) fn assert_same(&self) {
        let named = |told: &Told| self.fewer_of.filter(|n| [told.3, told.4].contains(n));
        let may: BTreeSet<_> = self.recorded.told.iter().filter(|told| named(told).is_none()).copied().collect();
        let passed_on = |told: &&Told| self.fewer_of.is_some_and(|n| self.recorded.about.contains(&(n, **told)));
        let must: BTreeSet<_> = may.iter().filter(|told| !passed_on(told)).copied().collect();
        let more = self.more || self.ours.told.is_subset(&may);
        assert!(must.is_subset(&self.ours.told) && more, "{must:#?} {:#?}", self.ours.told);
    }
}
