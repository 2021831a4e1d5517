//! Who is in sync: what a target says of the blocks that it has, and what others conclude from that
//! (`docs/spec/data-path-and-resync.md` 6.3, `docs/spec/wire-protocol.md` 13.3).
//!
//! P_PEERS_IN_SYNC says that all nodes that it lists, who gets it among them, have the same as its sender.

pub(crate) mod unsaid;

use crate::Resource;
use crate::connection::Connection;
use crate::decide::DiskState;
use crate::decide::private::Private;
use crate::decide::state::{PairState, Replication};
use crate::device::Device;
use crate::node::Node;
use crate::peer_device::Keeps;
use crate::peer_device::PeerDevice;
use crate::request::under_way::Request;
use std::iter;
use units::{Duration, Instant, NodeId, NodeMask, Sector, SectorRange, VolumeNr};
use wire::{Packet, PeersInSync, Socket};

/// It is said of so much at a time during a resync.
const EXTENT: u64 = (4 << 20) / 512;

/// It is said of no more at a time.
const MOST: u64 = (1 << 30) / 512;

/// What was being written to when a Primary said who has what, it says it of again after so much time.
const AGAIN: Duration = Duration::from_secs(1);

/// Of what it is said at a time.
fn pieces(all: SectorRange) -> impl Iterator<Item = SectorRange> {
    let from = move |start: Sector| SectorRange { start, end: Sector(start.0.saturating_add(MOST)).min(all.end) };
    iter::successors(Some(from(all.start)), move |piece| Some(from(piece.end)))
        .take_while(|piece| piece.start < piece.end)
}

impl Resource {
    /// A block of a resync is on the target's disk.
    pub(crate) fn note_in_sync(&mut self, peer: NodeId, volume: VolumeNr, range: SectorRange) {
        if !self.node.connections[peer].speaks9() {
            return;
        }
        let at = range.start.0 / EXTENT;
        let untold = &mut self.node.connections[peer].peer_devices[volume].resync.untold;
        untold.insert(at);
        let past: Vec<_> = untold.range(..at).copied().collect();
        untold.retain(|extent| *extent >= at);
        self.copied_up_to(peer, volume, past);
    }

    /// All is copied: who has the rest is told, too.
    pub(crate) fn tell_last_copied(&mut self, peer: NodeId, volume: VolumeNr) {
        let rest = std::mem::take(&mut self.node.connections[peer].peer_devices[volume].resync.untold);
        if self.is_unstable(peer, volume) && self.depends_on_client(peer, volume) {
            // What the source got since from a Primary without a disk this node may lack.
            return;
        }
        self.copied_up_to(peer, volume, rest);
    }

    /// All of these extents that a resync from this peer is about is copied.
    fn copied_up_to(&mut self, peer: NodeId, volume: VolumeNr, extents: impl IntoIterator<Item = u64>) {
        for at in extents {
            let range = self.extent(volume, at);
            if self.is_clean(peer, volume, range) {
                self.tell_who_is_in_sync(volume, range);
            }
        }
    }

    /// Tells all that have the same here as this node who they are.
    fn tell_who_is_in_sync(&mut self, volume: VolumeNr, range: SectorRange) {
        // The device may have become smaller since this was to be said.
        let range = SectorRange { end: range.end.min(self.node.devices[volume].size), ..range };
        if range.start >= range.end || self.is_written_to(volume, range) {
            return;
        }
        let mut nodes = NodeMask::default();
        for peer in self
            .node
            .connections
            .ids()
            .filter(|peer| self.node.connections[*peer].speaks9() && self.node.state.is_connected(*peer))
        {
            let replication = self.node.state.replication(peer, volume);
            // What has got lost with a peer's disk nobody has marked here, if it is marked on that disk.
            let has_disk = self.node.state.peer_disk(peer, volume) >= DiskState::Inconsistent;
            let counts = replication == Replication::Established || replication.is_source() || replication.is_target();
            // Of what it has got since from others it has marks, and this node none.
            let marked = self.node.connections[peer].peer_devices[volume].link.told.marked_by_peer.is_some();
            // One of another generation lacks what nobody has marked here: they are still to be compared.
            // A target has its source's generation soon.
            let of_source = self
                .active_source(volume, peer)
                .and_then(|source| self.node.connections[source].peer_devices[volume].told_current());
            let own = of_source.or(self.node.devices[volume].backing.as_ref().map(|b| b.md.current));
            let other = self.node.connections[peer].peer_devices[volume]
                .told_current()
                .zip(own)
                .is_some_and(|(theirs, own)| !theirs.same(own));
            // Nor is it known of a survivor of a Primary before the two have compared what they have of that one's.
            let doubted = other || self.awaits_survivor(peer);
            // Nor of one that a third node brings up to date, or that does not know itself what it has.
            let bad = self.node.state.peer_disk(peer, volume) < DiskState::UpToDate;
            let apart = (marked || (doubted || bad) && self.in_mesh9()) && replication == Replication::Established;
            if has_disk && counts && !apart && self.is_clean(peer, volume, range) {
                nodes.insert(peer);
            }
        }
        let packet = PeersInSync { sector: range.start, nodes: nodes.into(), size: range.len() };
        for peer in nodes {
            self.send(peer, Socket::Control, volume, Packet::PeersInSync(packet));
        }
    }

    /// A peer was connected: if this node is Primary, the others may have marked what that one gets by a resync.
    pub(super) fn note_let_in(&mut self) {
        if self.in_mesh9() && self.node.state.is_primary() {
            self.unsaid.late = true;
            self.all_is_unsaid();
        }
    }

    fn all_is_unsaid(&mut self) {
        let all = |(volume, dev): (VolumeNr, &Device)| (volume, SectorRange { start: Sector(0), end: dev.size });
        self.unsaid.left = self.node.devices.iter().map(all).collect();
        self.out.chores.mark();
    }

    /// The peers that were away have all that this node has: the others learn of it. A node that is connected to both,
    /// and has marked something for one of them, hears from nobody else that it may forget that.
    pub(crate) fn say_what_is_unsaid(&mut self) {
        if self.unsaid.left.is_empty() || self.unsaid.again > self.node.now || !self.is_at_rest() {
            return;
        }
        match self.node.state.is_primary() {
            true => self.say_who_has_all(),
            false => self.unsaid.left.clear(),
        }
    }

    /// Before this node ceases to be Primary, and when nothing is being written any more. Who was being written to when
    /// it heard this last has not heeded it, and would compare again as soon as nobody is Primary.
    pub(crate) fn settle_marks_of_others(&mut self) {
        if std::mem::take(&mut self.unsaid.late) {
            self.all_is_unsaid();
            self.say_who_has_all();
        }
        self.unsaid.left.clear();
    }

    /// This node, which is not Primary, has brought the peer up to date: others that have the same learn that they and
    /// the peer are equal. What they have marked for it they cannot know to be there from the peer alone.
    pub(super) fn tell_of_target(&mut self, peer: NodeId, volume: VolumeNr) {
        let good = |peer| self.node.state.worst_disk(peer, volume) == DiskState::UpToDate;
        let heeds = |c: &Connection| c.decides_by(Private::SaysWhoHasAll);
        let told = self.node.connections.iter().any(|(n, c)| n != peer && good(n) && heeds(c));
        if good(peer) && told && !self.node.state.is_primary() {
            let all = SectorRange { start: Sector(0), end: self.node.devices[volume].size };
            pieces(all).for_each(|piece| self.tell_who_is_in_sync(volume, piece));
        }
    }

    pub(crate) fn has_unsaid(&self) -> bool {
        !self.unsaid.left.is_empty()
    }

    pub(crate) fn unsaid_timer(&self) -> Option<Instant> {
        Some(self.unsaid.again).filter(|at| *at > self.node.now && self.has_unsaid() && self.is_at_rest())
    }

    /// Tells all who has the same, of all that is left; what is being written to stays.
    fn say_who_has_all(&mut self) {
        self.say_who_has_what();
        for (volume, all) in std::mem::take(&mut self.unsaid.left) {
            let mut at = all.start;
            while at < all.end {
                let written = self.first_written_to(volume, SectorRange { start: at, end: all.end });
                let rest = written.map_or(all.end, |write| Sector(write.start.0 / EXTENT * EXTENT).max(at));
                pieces(SectorRange { start: at, end: rest }).for_each(|piece| self.tell_who_is_in_sync(volume, piece));
                at = rest;
                if let Some(write) = written {
                    let end = Sector(write.end.0.next_multiple_of(EXTENT)).min(all.end);
                    self.unsaid.left.push((volume, SectorRange { start: at, end }));
                    at = end;
                }
            }
        }
        self.unsaid.again = self.node.now + AGAIN;
    }

    /// Is a write to the range under way, or is it not known who has it?
    fn is_written_to(&self, volume: VolumeNr, range: SectorRange) -> bool {
        self.first_written_to(volume, range).is_some()
    }

    /// The first such write.
    fn first_written_to(&self, volume: VolumeNr, range: SectorRange) -> Option<SectorRange> {
        let own = |r: &Request| match r {
            Request::Write(w) if w.device == volume => Some(w.range),
            _ => None,
        };
        let of_peers = self.node.devices[volume].queue.peer_writing.overlapping(range).map(|(range, ..)| range);
        let open = self.node.connections.values().flat_map(|c| c.unsettled.iter());
        let open = open.filter(|write| write.volume == volume).map(|write| write.range);
        let all = self.requests.iter().filter_map(|(_, r)| own(r)).chain(of_peers).chain(open);
        all.filter(|write| write.overlaps(range)).min_by_key(|write| write.start)
    }

    /// P_PEERS_IN_SYNC. Who learns something from it, or is the source of who says it, says the same of its own peers.
    pub(crate) fn peers_in_sync(&mut self, peer: NodeId, volume: VolumeNr, told: &PeersInSync) {
        let size = self.node.devices[volume].size;
        let end = Sector(told.sector.0.saturating_add(told.size.0 / 512)).min(size);
        let range = SectorRange { start: told.sector.min(end), end };
        if !self.node.state.replicates(peer, volume) {
            return;
        }
        if told.nodes.nodes().contains(self.node.cfg.node) {
            self.node.connections[peer].peer_devices[volume].unmarked_by_peer(range, self.node.devices[volume].size);
        }
        // A Primary's writes overtake what is said by who does not get them.
        let behind = self.in_mesh9()
            && self.node.state.is_primary()
            && self.node.state.peer_disk(peer, volume) != DiskState::UpToDate;
        // What is copied now is not to be known from hearsay.
        let copied = |n: &NodeId| self.node.state.pair(*n, volume).is_being_copied() && self.in_mesh9();
        let heard = told.nodes.nodes().and(self.node.connections.members()).into_iter();
        let listed = heard.filter(|n| !behind && !copied(n)).collect();
        for at in range.start.0 / EXTENT..range.end.0.div_ceil(EXTENT) {
            self.part_in_sync(peer, volume, at, range, listed);
        }
        for n in listed {
            self.ends_doubt(n, volume);
        }
    }

    /// What was marked for a peer of the same generation is gone: nothing else will be compared.
    fn ends_doubt(&mut self, n: NodeId, volume: VolumeNr) {
        let kept = self.node.connections[n].peer_devices[volume].lasting.keeps >= Keeps::Doubted
            && self.node.devices[volume].bits_left(n) == 0;
        let good = self.node.state.worst_disk(n, volume) == DiskState::UpToDate;
        let rests = self.node.state.replication(n, volume) == Replication::Established;
        if kept && good && rests && self.has_this_generation(n, volume) {
            self.count_as_equal(n, volume);
        }
    }

    /// What of the extent is in the range. The peer knows nothing of what this node has got since from others: of that
    /// it has marks towards the peer. What is being written here meanwhile may have been refused by a node after the
    /// peer has said this.
    fn part_in_sync(&mut self, peer: NodeId, volume: VolumeNr, at: u64, range: SectorRange, listed: NodeMask) {
        let all = self.extent(volume, at);
        let part = SectorRange { start: range.start.max(all.start), end: range.end.min(all.end) };
        if !self.is_clean(peer, volume, part) || self.is_written_to(volume, part) {
            return;
        }
        let cleared: u64 = listed.into_iter().map(|n| self.node.devices[volume].clear_out_of_sync(n, part)).sum();
        if cleared > 0 || self.node.state.replication(peer, volume).is_source() {
            self.tell_who_is_in_sync(volume, all);
        }
    }
}

impl Node {
    /// What of the device is in the extent.
    fn extent(&self, volume: VolumeNr, at: u64) -> SectorRange {
        SectorRange { start: Sector(at * EXTENT), end: Sector((at + 1) * EXTENT).min(self.devices[volume].size) }
    }

    /// Is no peer being brought up to date?
    fn is_at_rest(&self) -> bool {
        let good = |disk| !(DiskState::Failed..DiskState::UpToDate).contains(&disk);
        let rests = |(peer, pair): (NodeId, &PairState)| {
            !self.state.is_connected(peer) || pair.replication == Replication::Established && good(pair.disk)
        };
        self.devices
            .ids()
            .all(|volume| self.state.disk(volume) == DiskState::UpToDate && self.state.pairs(volume).all(rests))
    }

    /// Are no blocks of the range marked towards a peer?
    fn is_clean(&self, peer: NodeId, volume: VolumeNr, range: SectorRange) -> bool {
        self.devices[volume].bitmap(peer).is_some_and(|(b, slot)| b.in_sync(slot, range))
    }
}

impl PeerDevice {
    /// The peer has the same there as this node, and so has marked nothing.
    fn unmarked_by_peer(&mut self, range: SectorRange, size: Sector) {
        let marked = &mut self.link.told.marked_by_peer;
        if let Some(up_to) = marked.filter(|up_to| *up_to >= range.start) {
            *marked = Some(up_to.max(range.end)).filter(|up_to| *up_to < size);
        }
    }
}
