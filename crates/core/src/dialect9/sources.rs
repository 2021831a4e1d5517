//! A target and its sources (`docs/spec/connection-and-state.md` 7.6).

use crate::Resource;
use crate::api::Severity;
use crate::connection::Connection;
use crate::decide::change::{Change, Set};
use crate::decide::private::Private;
use crate::decide::state::{PairState, Replication};
use crate::decide::topic::Topic;
use crate::decide::{DiskState, Reason};
use crate::dialect9::handshake::attempt::Told;
use crate::dialect9::resync::pass::{FLUSHES, LastPass};
use crate::node::Node;
use units::{Duration, Instant, NodeId, NodeMask, VolumeNr};
use wire::{Role, UuidFlags};

/// So long a bad copy waits for a resync before its node connects anew.
const PATIENCE: Duration = Duration::from_secs(2);

impl Resource {
    /// A source has said what its data depends on. What it was asked as a Primary before that does not count.
    pub(crate) fn note_unstable(&mut self, peer: NodeId, volume: VolumeNr) {
        if self.node.state.replication(peer, volume).is_target() && !self.depends_on_nobody_else(peer, volume) {
            self.node.connections[peer].peer_devices[volume].resync.unstable = true;
            let passes = self.node.connections.values_mut().map(|c| &mut c.peer_devices[volume].resync.last_pass);
            passes.filter(|pass| pass.asks(peer)).for_each(|pass| *pass = LastPass::Ahead);
        }
        self.out.chores.mark();
    }

    /// Primaries without a disk have come, that were writing to a source: what they wrote before they were here may not
    /// have been heard of.
    pub(super) fn note_unstable_for(&mut self, came: NodeMask, volume: VolumeNr) {
        for peer in self.node.connections.ids() {
            let depends = self.node.connections[peer].peer_devices[volume].told_primaries().and(came);
            if self.node.state.replication(peer, volume).is_target() && !depends.is_empty() {
                self.node.connections[peer].peer_devices[volume].resync.unstable = true;
            }
        }
    }

    /// All of such a source is here, and it depends on nobody by now: this copy is as bad as before until they have
    /// compared. With a Primary that is at once, in a handshake: as long as it is that nothing else compares them, and
    /// no further source, which depends on it, ends its resync before.
    pub(super) fn end_unstable(&mut self, peer: NodeId, volume: VolumeNr) {
        let text = "the source has depended on a Primary meanwhile: comparing once more";
        let primary = self.node.state.peers[peer].role() == Role::Primary;
        if self.in_mesh9() && (primary || self.depends_on_client(peer, volume)) {
            return self.out.compare_anew(peer, Topic::ResyncUnstable, text.to_owned());
        }
        self.out.note(Severity::Info, Some(volume), Some(peer), Topic::ResyncUnstable, text);
        self.took_place(Set::Replication(peer, volume, Replication::Established));
        if !self.sees_primary() {
            self.send_uuids110(peer, volume, UuidFlags::GOT_STABLE);
        }
    }

    /// A peer has said whether its data depends on a Primary: another source may come first now.
    pub(super) fn choose_source_anew(&mut self, volume: VolumeNr) {
        if self.in_mesh9() && self.node.state.pairs(volume).any(|(_, pair)| pair.replication.is_target()) {
            self.took_place(Change::default());
        }
    }

    /// Nobody brings this node up to date although its copy is bad, as its source was lost, and a good one is within
    /// reach that depends on nothing: after a while they connect anew, and compare.
    pub(crate) fn check_lagging(&mut self) {
        for volume in self.node.devices.ids() {
            let good = self.good_source_at_rest(volume);
            let since = good.map(|_| self.node.devices[volume].lags_since.unwrap_or(self.node.now));
            self.node.devices[volume].lags_since = since;
            if let Some(peer) = good.filter(|_| since.is_some_and(|since| since + PATIENCE <= self.node.now)) {
                self.node.devices[volume].lags_since = None;
                let text = "this copy is bad, and no resync goes on: connecting anew".to_owned();
                self.out.compare_anew(peer, Topic::LagsBehind, text);
            }
        }
    }
}

impl Node {
    /// The peer, other than this one, that brings a volume of this node up to date, or is about to. Not one that
    /// waits for another.
    pub(crate) fn source_of_target(&self, peer: NodeId) -> Option<NodeId> {
        self.devices.ids().find_map(|volume| self.state.source_but(volume, peer))
    }

    /// The one of this node's sources that is copied from; not this peer.
    pub(super) fn active_source(&self, volume: VolumeNr, but: NodeId) -> Option<NodeId> {
        let active = |(_, pair): &(NodeId, &PairState)| pair.replication.is_target() && !pair.paused.by_other;
        let mut all = self.state.pairs(volume).filter(active).map(|(peer, _)| peer);
        all.next().filter(|peer| *peer != but && self.in_mesh9())
    }

    /// Does what this peer has depend on no Primary, but perhaps on this node? Who has not urbd's rules copies also
    /// between two that both get what one Primary writes: this node has that from the Primary itself. So it is where
    /// the Primary has no disk, and can be nobody's source.
    pub(crate) fn depends_on_nobody_else(&self, peer: NodeId, volume: VolumeNr) -> bool {
        let primaries = self.connections[peer].peer_devices[volume].told_primaries();
        let without_disk = self.state.writers_without_disk(volume);
        let writes_here = |n: NodeId| self.state.peers[n].role() == Role::Primary && self.state.replicates(n, volume);
        let known = self.state.is_connected(peer) && !self.connections[peer].decides_by(Private::InStep);
        let mut others = primaries.without(NodeMask::of(self.cfg.node)).and(self.connections.members()).into_iter();
        let far = primaries.without(NodeMask::of(self.cfg.node)).without(self.connections.members());
        !self.in_mesh9() || far.is_empty() && others.all(|n| (known || without_disk.contains(n)) && writes_here(n))
    }

    /// Does what this peer has depend on Primaries without disks alone, which write here as well?
    pub(super) fn depends_on_client(&self, peer: NodeId, volume: VolumeNr) -> bool {
        let primaries = self.connections[peer].peer_devices[volume].told_primaries();
        !primaries.is_empty() && primaries.without(self.state.writers_without_disk(volume)).is_empty()
    }

    /// Has a source depended on a Primary while it was copied from? What it has marked of that one's writes when that
    /// one was lost may not have been heard of here: it is compared anew. Who has become Primary itself has said it on
    /// the data stream before it answers what it is asked in the last pass.
    pub(super) fn is_unstable(&self, peer: NodeId, volume: VolumeNr) -> bool {
        let rs = &self.connections[peer].peer_devices[volume].resync;
        rs.unstable && rs.last_pass != LastPass::Begun(Some(peer))
    }

    /// Can such a source, which is Primary by now, be asked what was not heard of?
    pub(super) fn asks_once_more(&self, peer: NodeId, volume: VolumeNr) -> bool {
        let primary = self.state.peers[peer].role() == Role::Primary;
        primary && self.is_unstable(peer, volume) && self.connections[peer].version() >= FLUSHES
    }

    /// A resync from this peer is not to end now: another source is about to be one, or this node has told what it is
    /// as long as this goes on. Or the source depends on a Primary, which does not bring this node up to date: what
    /// it gets of that one follows.
    pub(crate) fn end_must_wait(&self, peer: NodeId, volume: VolumeNr) -> bool {
        let begins = |(n, pair): (NodeId, &PairState)| n != peer && pair.replication == Replication::WFBitMapT;
        let shakes = |c: &Connection| c.nine().is_some_and(|nine| nine.attempt.is_some());
        let depends = !self.depends_on_nobody_else(peer, volume) && !self.lets_primary_end(peer, volume);
        self.in_mesh9() && (depends || self.state.pairs(volume).any(begins) || self.connections.values().any(shakes))
    }

    /// What a handshake with this peer comes to while this node, or the peer, is brought up to date by a third one:
    /// it is a further source of the same, which waits; the resync from the first one may be about to begin. Of a
    /// node that copies another volume it is no target. Anything else is for later.
    pub(super) fn beside_another_source(
        &self,
        (peer, volume): (NodeId, VolumeNr),
        begins: Replication,
        [own, other]: [Told<'_>; 2],
    ) -> Result<(), Reason> {
        if !self.in_mesh9() {
            return Ok(());
        }
        let target = [own, other].map(|told| told.uuids.flags.contains(UuidFlags::SYNC_TARGET));
        // Who has crashed as Primary may have completed what the first source lacks, in the same generation; who is
        // that now is waited for.
        let serves = |told: Told<'_>| {
            let may_have_more = told.uuids.flags.contains(UuidFlags::CRASHED_PRIMARY) && told.role != Role::Primary;
            told.disk == DiskState::UpToDate && !may_have_more
        };
        let fits = match target {
            [false, false] => match self.state.source_but(volume, peer) {
                Some(first) => {
                    let marked = self.state.sources_to_be(volume).contains(first);
                    marked && begins == Replication::WFBitMapT && serves(other)
                }
                None => begins != Replication::WFBitMapS || self.source_of_target(peer).is_none(),
            },
            [true, false] => begins == Replication::WFBitMapT && serves(other),
            [false, true] => begins == Replication::WFBitMapS && serves(own),
            [true, true] => false,
        };
        if fits { Ok(()) } else { Err(Reason::TargetOfAnother) }
    }

    /// When that is due.
    pub(crate) fn lagging_timer(&self) -> Option<Instant> {
        self.devices.values().filter_map(|dev| dev.lags_since).min().map(|since| since + PATIENCE)
    }

    fn good_source_at_rest(&self, volume: VolumeNr) -> Option<NodeId> {
        let bad = matches!(self.state.disk(volume), DiskState::Inconsistent | DiskState::Outdated);
        if !bad || !self.in_mesh9() || self.state.pairs(volume).any(|(_, p)| p.replication > Replication::Established) {
            return None;
        }
        let told = |peer: NodeId| self.connections[peer].peer_devices[volume].link.told.uuids110.as_ref();
        let stable = |peer: NodeId| told(peer).is_some_and(|u| u.flags.contains(UuidFlags::STABLE));
        let stable = |peer: NodeId| stable(peer) || self.depends_on_client(peer, volume);
        // Who could not read some blocks would not read them now.
        let serves = |peer: &NodeId| {
            let pair = self.state.pair(*peer, volume);
            let good = pair.replication == Replication::Established && pair.disk == DiskState::UpToDate;
            good && stable(*peer) && self.bits_failed(*peer, volume) == 0
        };
        self.connections.ids().find(serves)
    }
}
