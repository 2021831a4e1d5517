//! The data generation that a Primary begins with its first write (`docs/spec/connection-and-state.md` 7.2): are the
//! peers there? Then they are told of it, and it is made durable. When it is durable the write goes out.
//!
//! Nobody may have a generation that no other node has heard of, without a write in it: it would have parted from who
//! is Primary next. Nor may a peer have one that the Primary knows nothing of when it comes back. So it is noted on
//! disk, then told, and becomes the present one on disk when the peers say that they have it on theirs
//! ([decision 22](../../../../docs/adr/0022-a-generation-is-noted-before-it-is-told.md)).

pub(crate) mod due;

use crate::Resource;
use crate::api::{RequestKind, Severity};
use crate::command::caller::Caller;
use crate::command::disks::KEEPS_BITMAP;
use crate::connection::Connection;
use crate::decide::Role;
use crate::decide::private::Private;
use crate::decide::state::{PairState, Replication, State};
use crate::decide::topic::Topic;
use crate::device::Device;
use crate::dialect9::first_write::due::FirstWrite;
use crate::node::Node;
use crate::replaced::{Copied, Replaced};
use crate::request::under_way::Request;
use crate::request::write::Write;
use crate::slab::Slab;
use units::{Generation, NodeId, NodeMask, VolumeNr};
use wire::{DiskState, UuidFlags};

impl Resource {
    /// The role has changed: with peers of 9's dialect a Primary begins a generation when it begins to write. Or what
    /// was frozen may go on behind a generation: until that has begun the peers hear that it is suspended (2.5, E4).
    pub(crate) fn follow_role(&mut self, old: &State) {
        if old.is_frozen() && !self.node.state.is_frozen() {
            for volume in self.node.devices.ids() {
                let dev = &mut self.node.devices[volume];
                if dev.due.first_write.may_begin() && write_waits(dev, volume, &self.requests) {
                    dev.due.first_write = FirstWrite::Thawing;
                }
            }
        }
        let (was, is) = (old.role, self.node.state.role);
        if was == is {
            return;
        }
        let speaks = self.has_peers_of_9();
        let due = is == Role::Primary && speaks;
        for dev in self.node.devices.values_mut() {
            dev.due.first_write.put_due(due);
            dev.seen.unconfirmed = NodeMask::default();
        }
    }

    /// A Primary has its good disk again: what became of the others meanwhile nobody has written there.
    pub(crate) fn follow_own_disks(&mut self, old: &State) {
        for volume in self.node.devices.ids() {
            // What peers have confirmed is of the generation that has begun, and they say so when this disk is gone.
            if self.node.state.disk(volume) < DiskState::Inconsistent && old.disk(volume) >= DiskState::Inconsistent {
                self.tell_noted_generation(volume);
            }
        }
        let good = |s: &State, volume| s.role == Role::Primary && s.disk(volume) == DiskState::UpToDate;
        for volume in self.node.devices.ids() {
            let comes = old.role == Role::Primary && !good(old, volume) && good(&self.node.state, volume);
            if comes && self.in_mesh9() && self.node.devices[volume].due.first_write == FirstWrite::Nothing {
                self.node.devices[volume].due.first_write.put_due(true);
            }
        }
    }

    /// A Primary has lost a peer's data. In 9's dialect it begins a generation with its next write, unless writes are
    /// under way that the peer may lack (7.2.1). Returns whether that is so. Where quorum is asked for these wait, too,
    /// until those who are left have said that they are there: if they are not, and quorum goes with them, nobody else
    /// has heard of the generation, and nobody has written in it.
    pub(crate) fn generation_can_wait(&mut self, peer: NodeId, volume: VolumeNr) -> bool {
        let under_way = |r: &Request| matches!(r, Request::Write(w) if w.device == volume);
        let waits = self.node.is_of_9(&self.node.connections[peer]) && self.node.state.is_primary();
        let waits = waits && (self.node.cfg.quorum.is_on() || !self.requests.iter().any(|(_, r)| under_way(r)));
        if waits {
            self.node.devices[volume].due.first_write.put_due(true);
        }
        waits
    }

    /// A write waits: may it begin, as far as its generation is concerned? While I/O is frozen none is begun: when the
    /// peer is back it has the same as this node.
    pub(crate) fn begin_first_write(&mut self, volume: VolumeNr) {
        // Each turn asks.
        if !self.node.devices[volume].due.first_write.may_begin() || self.node.state.is_frozen() {
            return;
        }
        if !write_waits(&self.node.devices[volume], volume, &self.requests) {
            return;
        }
        self.node.devices[volume].due.first_write = FirstWrite::Pinging(self.ping_all(self.neighbours9()));
        self.go_on_with_first_write(volume);
    }

    /// A peer has answered a ping, or is gone.
    pub(crate) fn answered_for_first_write(&mut self, peer: NodeId) {
        for volume in self.node.devices.ids() {
            if let FirstWrite::Pinging(waits) = &mut self.node.devices[volume].due.first_write {
                waits.settle(peer, |ping| self.node.connections[peer].pings.has_answered(ping));
                self.go_on_with_first_write(volume);
            }
        }
    }

    /// An attempt to connect is over.
    pub(crate) fn go_on_with_first_writes(&mut self) {
        self.node.devices.ids().for_each(|volume| self.go_on_with_first_write(volume));
    }

    /// Not between what a peer is told of this node's generations and the connection that follows from it: it would
    /// count as equal to a node that has begun another one.
    fn go_on_with_first_write(&mut self, volume: VolumeNr) {
        match &self.node.devices[volume].due.first_write {
            FirstWrite::Pinging(waits) if waits.is_empty() && !self.is_about_to_connect() => {}
            _ => return,
        }
        if self.node.state.is_frozen() {
            // A peer that was asked is gone.
            self.node.devices[volume].due.first_write = FirstWrite::Due;
            return;
        }
        self.node.devices[volume].first_write_begins();
        self.begin_among_peers9(volume);
    }

    /// Begins a generation, if some node could otherwise be taken for equal that is not. Returns whether it did.
    /// `by_force`: a copy that was not good counts as good from now on. What is written to it must not be said to be of
    /// the generation that it lacked something of. These nodes do not have the new one although they are connected.
    fn begin_generation9(&mut self, volume: VolumeNr, by_force: Option<NodeMask>) -> bool {
        if self.node.state.disk(volume) != DiskState::UpToDate {
            return false;
        }
        let day0 = self.node.devices[volume].backing.as_ref().is_some_and(|b| b.md.is_day0());
        let needed = by_force.is_some() || day0 || self.may_have_caught_up(volume);
        let rotated = self.rotate_slots(volume, by_force.unwrap_or_default());
        let (fresh, primary) = (self.draw_generation(), self.node.state.is_primary());
        let Some(b) = &mut self.node.devices[volume].backing else { return false };
        let old = b.md.current;
        b.writer.past_note(&mut b.md);
        if !b.md.new_current(fresh.0, primary, rotated, needed) {
            return false;
        }
        if needed {
            b.md.push_history(old, None);
        }
        let fresh = b.md.current;
        self.node.devices[volume].seen.exposed = fresh;
        self.node.crash_is_past(volume);
        self.generation_changed(volume);
        self.out.status_changed = true;
        self.close_epoch();
        let text = format!("new data generation {fresh}");
        self.out.note(Severity::Info, Some(volume), None, Topic::NewGeneration, text);
        true
    }

    /// A peer of several is lost while writes are under way that it may lack: they end in a generation that the others
    /// have, too.
    pub(crate) fn begin_among_peers9(&mut self, volume: VolumeNr) {
        if self.node.state.disk(volume) < DiskState::Inconsistent {
            return self.begin_among_without_disk9(volume);
        }
        let before = self.node.devices[volume].backing.as_ref().map(|b| b.writer.superblock_before(&b.md));
        let thaws = self.node.devices[volume].due.first_write == FirstWrite::Thawing;
        if !self.begin_generation9(volume, None) {
            return;
        }
        let written = if thaws { FirstWrite::WritingForFrozen } else { FirstWrite::Writing { due: false } };
        self.node.devices[volume].due.first_write = written;
        let heard = self.node.state.replicates_anywhere(volume);
        match (&mut self.node.devices[volume].backing, before) {
            (Some(b), Some(before)) if heard => b.writer.begin_noted(before),
            (Some(b), _) => b.writer.begin_unnoted(),
            _ => {}
        }
    }

    /// A node is Primary by force: a generation begins at once, and peers whose disks are bad do not have it (7.2). It
    /// is compared again who has what.
    pub(crate) fn begin_forced9(&mut self, volume: VolumeNr) {
        self.node.devices[volume].due.first_write = FirstWrite::Nothing;
        let inconsistent = |(_, p): &(NodeId, &PairState)| p.disk == DiskState::Inconsistent;
        let bad = self.node.state.pairs(volume).filter(inconsistent).map(|(peer, _)| peer).collect();
        let unmarked = self.unmarked_peers(volume);
        self.begin_generation9(volume, Some(bad));
        for peer in self.node.connections.ids() {
            if self.node.connections[peer].speaks9() && self.node.state.replicates(peer, volume) {
                self.send_forced_uuids(peer, volume);
                let all = self.node.connections[peer].version() < KEEPS_BITMAP || unmarked.contains(peer);
                match self.node.state.peer_disk(peer, volume) {
                    // It says nothing of its own accord.
                    DiskState::Outdated => {
                        let copied = if all { Copied::All } else { Copied::Marked };
                        self.replace(Caller::Copying(volume), volume, Replaced::Peer(peer), copied);
                    }
                    _ => self.node.connections[peer].peer_devices[volume].link.compared.again = true,
                }
            }
        }
    }

    /// This node's copy replaces all others: a generation begins that none of them has (12.8).
    pub(crate) fn begin_replacing(&mut self, volume: VolumeNr) {
        self.node.devices[volume].due.first_write = FirstWrite::Nothing;
        if self.node.has_peers_of_9() {
            self.begin_generation9(volume, Some(self.node.connections.ids().collect()));
        } else {
            self.new_generation(volume);
        }
        self.tell_uuids(volume, UuidFlags::NONE);
    }
}

/// Does a write wait that a generation begins with?
fn write_waits(dev: &Device, volume: VolumeNr, requests: &Slab<Request>) -> bool {
    let writes = |w: &crate::merging::Waiting| !matches!(w.request.kind, RequestKind::Read | RequestKind::Flush);
    let lacked = |w: &Write| w.device == volume && w.is_open() && w.legs.somebody_lacks();
    let ends = |r: &Request| matches!(r, Request::Write(w) if lacked(w));
    let held = || requests.iter().any(|(_, r)| ends(r));
    dev.queue.incoming.iter().any(writes) || !dev.queue.blocked.is_empty() || held()
}

impl Node {
    /// Is a generation to begin before what was frozen goes on?
    pub(crate) fn thaws_behind_generation(&self) -> bool {
        self.devices.values().any(|dev| dev.due.first_write.keeps_frozen())
    }

    /// Is there a peer that speaks 9's dialect, or would?
    pub(crate) fn has_peers_of_9(&self) -> bool {
        self.connections.values().any(|c| self.is_of_9(c))
    }

    /// Is 9's dialect spoken with the peer, or would be if it were there?
    fn is_of_9(&self, c: &Connection) -> bool {
        match c.dialect() {
            Some(dialect) => dialect.version.is_9(),
            None => self.newest_offered(c) >= wire::Version::MIN_9.number(),
        }
    }

    /// Have all that have heard of the generation that has begun said that it is on their disks? A kernel says nothing
    /// of its disk: it counts as having it.
    pub(crate) fn have_told_generation(&self, volume: VolumeNr) -> bool {
        let Some(b) = self.devices[volume].backing.as_ref().filter(|b| b.writer.is_told()) else { return true };
        let says_so = |peer: &NodeId| {
            let c = &self.connections[*peer];
            let pair = self.state.pair(*peer, volume);
            let part = pair.replication == Replication::Established && pair.disk == DiskState::UpToDate;
            part && c.decides_by(Private::SaysWhenDurable)
        };
        let has = |peer: NodeId| {
            self.connections[peer].peer_devices[volume].told_current().is_some_and(|theirs| theirs.same(b.md.current))
        };
        self.connections.ids().filter(says_so).all(has)
    }

    /// Has a peer, which is not here, a slot that counts from an older generation than it may have by now: a resync
    /// from here may have ended unheard? What is written now must not be said to be of the generation that it has.
    fn may_have_caught_up(&self, volume: VolumeNr) -> bool {
        let Some(b) = self.devices[volume].backing.as_ref().filter(|_| self.in_mesh9()) else { return false };
        let away = self.connections.ids().filter(|peer| !self.state.replicates(*peer, volume));
        let mut unheard = away.filter(|peer| !self.connections[*peer].peer_devices[volume].lasting.end_heard);
        unheard.any(|peer| {
            let record = b.md.peer(peer);
            record.slot.is_some() && !record.bitmap_uuid.is_none() && !record.bitmap_uuid.same(b.md.current)
        })
    }

    /// Who has another generation than this node, which this node's slot for it does not count from: it went another
    /// way while they were connected, with a third node's data, and what differs is marked nowhere.
    fn unmarked_peers(&self, volume: VolumeNr) -> NodeMask {
        let Some(b) = &self.devices[volume].backing else { return NodeMask::default() };
        let unmarked = |peer: &NodeId| {
            let counted = b.md.peer(*peer).bitmap_uuid;
            let known = |theirs: Generation| theirs.same(b.md.current) || theirs.same(counted);
            self.connections[*peer].peer_devices[volume]
                .told_current()
                .is_some_and(|theirs| !theirs.is_none() && !known(theirs))
        };
        self.connections.ids().filter(unmarked).collect()
    }
}

impl Device {
    /// The generation that is due with the first write begins now.
    pub(crate) fn first_write_begins(&mut self) {
        self.queue.recheck = true;
        self.due.first_write = FirstWrite::Nothing;
    }

    /// The generation is on disk, or there is no disk any more: no write waits for it.
    pub(crate) fn first_write_settled(&mut self) {
        self.due.first_write = match self.due.first_write {
            FirstWrite::Writing { due: true } => FirstWrite::Due,
            FirstWrite::Writing { due: false } | FirstWrite::WritingForFrozen => FirstWrite::Nothing,
            _ => return,
        };
        self.queue.recheck = true;
    }
}
