//! A volume gets another size (`docs/spec/connection-and-state.md` 12.6, `docs/spec/wire-protocol.md` 8.1, 8.2).

use crate::Resource;
use crate::api::{CommandError, failure};
use crate::command::caller::Caller;
use crate::command::two_phase::new_size::{Asked, BOUNDLESS, NewSize};
use crate::command::two_phase::slot::{Answer, Masks, Matter, Origin, Part, TwoPhase};
use crate::decide::state::Replication;
use crate::decide::topic::Topic;
use crate::decide::{Reason, Role};
use crate::node::Node;
use meta::PeerFlags;
use units::{NodeId, NodeMask, Sector, SectorRange, VolumeNr};
use wire::{Decision, DiskState, Packet, PrepareResize, ResizeFlags, Socket, WireMask};

impl Resource {
    // -- the initiator -----------------------------------------------------------------------------------------------

    /// Asks all. `Some`: that is done, as nobody has to be asked. `None`: the answer will come, unless another
    /// transaction is under way.
    pub(in crate::command) fn ask_for_size(
        &mut self,
        id: Caller,
        volume: VolumeNr,
        flags: ResizeFlags,
    ) -> Option<Result<(), CommandError>> {
        let user = self.size_limits(volume).user;
        let asked = self.new_size(volume, user, flags);
        if self.changes_in_two_phases() {
            self.begin_two_phase(Origin::Resize(id), None, volume, Matter::Size(asked));
            return None;
        }
        let agreed = self.size_agreed(volume, &asked);
        let by = Asked::by(self.node.cfg.node);
        Some(agreed.map(|size| self.give_size(volume, &asked, size, NodeMask::default(), by)))
    }

    /// Were all asked for this command?
    pub(in crate::command) fn asks_for_size(&self, id: Caller) -> bool {
        let origin =
            |two: &TwoPhase| matches!(two.part, Part::Initiator { origin: Origin::Resize(of), .. } if of == id);
        self.transaction.two_phase().is_some_and(origin)
    }

    /// Nodes that have, or had, a disk and have not said what it has room for.
    pub(in crate::command) fn away_with_disk(&self, volume: VolumeNr, asked: &NewSize) -> NodeMask {
        let Some(b) = &self.node.devices[volume].backing else { return NodeMask::default() };
        let seen = |node: &NodeId| b.md.peers[node.index()].flags.contains(PeerFlags::DEVICE_SEEN);
        let all = NodeId::all();
        let reached = match self.transaction.two_phase() {
            Some(two) if asked.smallest.is_some() => two.masks.reachable,
            _ => NodeMask::default(),
        };
        all.filter(|node| *node != self.node.cfg.node).filter(seen).collect::<NodeMask>().without(reached)
    }

    /// All have said what they have room for.
    pub(super) fn commit_size(&mut self) {
        let Some(two) = self.transaction.two_phase() else { return };
        let (Matter::Size(asked), volume) = (&two.matter, two.volume) else { return };
        let &Part::Initiator { origin: Origin::Resize(id), .. } = &two.part else { return };
        let asked = asked.clone();
        let agreed =
            if self.usable(volume) { self.size_agreed(volume, &asked) } else { Err(failure(138, "the disk is gone")) };
        let size = match agreed {
            Ok(size) if size != self.node.devices[volume].size => size,
            other => {
                self.call_off();
                return self.resize_answered(id, other.map(drop));
            }
        };
        let Some(two) = self.transaction.take_two_phase() else { return };
        let all = self.neighbours9();
        let nodes_to_reach = WireMask::all_but(all.with(self.node.cfg.node));
        let head = wire::Transaction { nodes_to_reach, ..two.head };
        let decision = Decision::of_resize(head, two.masks.primary.into(), size);
        for peer in all {
            self.send(peer, Socket::Data, volume, Packet::TwopcCommit(Box::new(decision)));
        }
        self.give_size(volume, &asked, size, two.masks.primary, Asked::by(self.node.cfg.node));
        self.resize_answered(id, Ok(()));
    }

    // -- a participant -----------------------------------------------------------------------------------------------

    /// P_TWOPC_PREP_RSZ.
    pub(crate) fn resize_prepared(&mut self, peer: NodeId, volume: VolumeNr, prepare: &PrepareResize) {
        let head = prepare.transaction;
        if !self.can_take_part(peer, volume, head) {
            return;
        }
        if !self.node.devices.contains(volume) {
            return self.refuse_size(peer, volume, prepare, "there is no such volume here");
        }
        let shrinks = prepare.user_size.0 > 0 && prepare.user_size < self.node.devices[volume].size;
        if shrinks && self.node.devices[volume].in_use() {
            return self.refuse_size(peer, volume, prepare, "the device would shrink, and is in use");
        }
        // A resync's bitmap has the size that the device had when it began.
        let settled = !self.node.state.copies(volume)
            && self.node.state.disk(volume) != DiskState::Negotiating
            && !self.node.devices[volume].is_opening();
        let answer = if settled { Answer::Yes } else { Answer::Retry };
        let matter = Matter::Size(self.new_size(volume, prepare.user_size, prepare.flags));
        let masks = self.masks_of_size(volume);
        self.take_part(peer, head, (volume, matter), (answer, masks), None);
    }

    fn refuse_size(&mut self, peer: NodeId, volume: VolumeNr, prepare: &PrepareResize, why: &str) {
        let text = format!("a peer asks for another size: {why}");
        let about = Some(volume).filter(|volume| self.node.devices.contains(*volume));
        self.out.note(crate::Severity::Warning, about, Some(peer), Topic::ResizeRefused, text);
        let nowhere = Sector(0);
        let asked =
            NewSize { user: prepare.user_size, flags: prepare.flags, own: nowhere, smallest: None, before: nowhere };
        let masks = Masks { reachable: self.neighbours9().with(self.node.cfg.node), ..Masks::default() };
        self.take_part(peer, prepare.transaction, (volume, Matter::Size(asked)), (Answer::No, masks), None);
    }

    /// P_TWOPC_COMMIT of it.
    pub(super) fn size_decided(&mut self, volume: VolumeNr, asked: &NewSize, two: &TwoPhase, decision: &Decision) {
        let (Some(size), Part::Participant { parents, children, answered: Some(Answer::Yes) }) =
            (decision.size(), &two.part)
        else {
            return;
        };
        let (initiator, parents, children) = (two.head.initiator, *parents, children.without(*parents));
        if self.node.devices[volume].size == size && asked.before != size {
            // A Primary has said so before.
            return;
        }
        self.give_size(volume, asked, size, decision.primary_nodes.nodes(), Asked { initiator, parents, children });
    }

    /// A peer has the size already that this one was asked for, and is going to have: the decision is on its way over
    /// another connection.
    pub(crate) fn is_size_asked_for(&mut self, volume: VolumeNr, peer: NodeId, theirs: Sector) -> bool {
        let Some(two) = self.transaction.two_phase().filter(|two| two.volume == volume && !two.is_ours()) else {
            return false;
        };
        let (Matter::Size(asked), Part::Participant { parents, children, answered: Some(Answer::Yes) }) =
            (&two.matter, &two.part)
        else {
            return false;
        };
        let primary = self.node.state.peers[peer].role() == Role::Primary;
        if !primary || theirs == self.node.devices[volume].size {
            return false;
        }
        let (asked, parents, children) = (asked.clone(), *parents, children.without(*parents));
        let by = Asked { initiator: two.head.initiator, parents, children };
        // What a Primary without a disk has grown by is copied as if there were none.
        let has_disk = self.node.state.peer_disk(peer, volume) >= DiskState::Inconsistent;
        let primaries = if has_disk { NodeMask::of(peer) } else { NodeMask::default() };
        self.give_size(volume, &asked, theirs, primaries, by);
        true
    }

    // -- all ---------------------------------------------------------------------------------------------------------

    /// The device gets the size that was agreed on; what has grown is copied from a Primary, or from where the request
    /// came from.
    fn give_size(&mut self, volume: VolumeNr, asked: &NewSize, size: Sector, primaries: NodeMask, by: Asked) {
        let before = self.node.devices[volume].size;
        if size > self.node.devices[volume].capacity() && self.usable(volume) {
            let text = format!("a size of {} KiB was agreed on, for which there is no room here", size.0 / 2);
            return self.leave_for_size(volume, Reason::OwnDiskTooSmall, &text);
        }
        if size < before && self.node.devices[volume].in_use() {
            return self.leave_for_size(
                volume,
                Reason::PrimaryWouldShrink,
                "the device is in use, and would have shrunk",
            );
        }
        if let Some(cfg) = &mut self.node.devices[volume].cfg {
            cfg.size = Some(asked.user.to_bytes()).filter(|size| size.0 > 0);
        }
        let differs = size > before && before.0 > 0 && !asked.flags.assume_clean;
        self.adopt_size(volume, size, differs);
        // Who takes part has room for that: a node without a disk goes by what others have.
        let connected: NodeMask = self.node.connected().map(|(peer, _)| peer).collect();
        for peer in connected {
            if let Some(told) = &mut self.node.connections[peer].peer_devices[volume].link.told.sizes
                && told.disk_size.0 > 0
            {
                told.disk_size = told.disk_size.max(size);
            }
        }
        if size == before {
            return;
        }
        if self.node.state.is_primary() && by.initiator != self.node.cfg.node {
            // Who gets the decision from another node must know before it gets what is written there.
            self.neighbours9().without(by.parents).into_iter().for_each(|peer| self.send_sizes(peer, volume));
        }
        if differs {
            self.copy_grown_area(volume, SectorRange { start: before, end: size }, primaries, by);
        }
    }

    fn leave_for_size(&mut self, volume: VolumeNr, reason: Reason, text: &str) {
        self.out.note(crate::Severity::Error, Some(volume), None, reason, text);
        for peer in self.neighbours9() {
            self.out.refuse_peer(peer, reason);
        }
    }

    fn copy_grown_area(&mut self, volume: VolumeNr, grown: SectorRange, primaries: NodeMask, by: Asked) {
        let own = self.node.cfg.node;
        let mut begun = false;
        for peer in self.neighbours9() {
            let at_rest = self.node.state.replication(peer, volume) == Replication::Established;
            let source = match (primaries.contains(own), primaries.contains(peer)) {
                (true, true) => Some(own < peer),
                (true, false) => Some(true),
                (false, true) => Some(false),
                _ if primaries.is_empty() => self.copies_among_secondaries(peer, volume, grown, by),
                _ => None,
            };
            let Some(source) = source.filter(|_| at_rest) else { continue };
            self.begin_grown_area9(peer, volume, source);
            self.settle();
            begun |= source;
        }
        if begun && self.node.state.is_primary() {
            self.begin_among_peers9(volume);
        }
    }

    /// Nobody is Primary: the initiator is the source of those that it has asked itself. They are that of those behind
    /// them when they have it: they alone have marked it then, and connect anew.
    fn copies_among_secondaries(
        &mut self,
        peer: NodeId,
        volume: VolumeNr,
        grown: SectorRange,
        by: Asked,
    ) -> Option<bool> {
        if by.initiator == self.node.cfg.node {
            return Some(true);
        }
        if by.parents.contains(peer) {
            if by.initiator == peer {
                return Some(false);
            }
            self.node.devices[volume].clear_out_of_sync(peer, grown);
        } else if by.children.contains(peer) {
            self.node.connections[peer].peer_devices[volume].lasting.keeps = crate::peer_device::Keeps::LostWrites;
        }
        None
    }

    /// What has grown is copied, without comparing bitmaps: both know what that is. Of a bad copy nothing is.
    pub(crate) fn begin_grown_area9(&mut self, peer: NodeId, volume: VolumeNr, source: bool) {
        let (own, theirs) = (self.node.state.disk(volume), self.node.state.peer_disk(peer, volume));
        let (from, to) = if source { (own, theirs) } else { (theirs, own) };
        let bad = |disk| disk < DiskState::Outdated || disk == DiskState::DUnknown;
        if bad(from) || to < DiskState::Inconsistent || to == DiskState::DUnknown {
            return;
        }
        if source {
            return self.begin_as_source(peer, volume);
        }
        if own.min(theirs) == DiskState::UpToDate {
            self.node.peer_has_this_generation9(peer, volume);
        }
        self.begin_as_target9(peer, volume);
    }
}

impl Node {
    /// Two good copies that replicate have the same generation: what the peer said of its own may be of a time before.
    fn peer_has_this_generation9(&mut self, peer: NodeId, volume: VolumeNr) {
        let Some(b) = &self.devices[volume].backing else { return };
        let (current, history) = (b.md.current, b.md.history.to_vec());
        let pd = &mut self.connections[peer].peer_devices[volume];
        if let Some(told) = pd.link.told.uuids110.as_mut().filter(|told| !told.current.same(current)) {
            (told.current, told.history) = (current, history);
        }
        pd.link.told.uuids.iter_mut().for_each(|told| told.current = current);
    }
}

impl Node {
    fn new_size(&self, volume: VolumeNr, user: Sector, flags: ResizeFlags) -> NewSize {
        let own = if self.usable(volume) { self.devices[volume].capacity() } else { BOUNDLESS };
        NewSize { user, flags, own, smallest: None, before: self.devices[volume].size }
    }

    /// What this node says of itself.
    pub(super) fn masks_of_size(&self, volume: VolumeNr) -> Masks {
        let reachable = self.neighbours9().with(self.cfg.node);
        let diskful = self.state.is_primary() && self.usable(volume);
        let primary = if diskful { NodeMask::of(self.cfg.node) } else { NodeMask::default() };
        Masks { reachable, primary, ..Masks::default() }
    }
}
