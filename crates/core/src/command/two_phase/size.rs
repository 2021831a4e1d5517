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
        d: VolumeNr,
        flags: ResizeFlags,
    ) -> Option<Result<(), CommandError>> {
        let user = self.size_limits(d).user;
        let asked = self.new_size(d, user, flags);
        if self.changes_in_two_phases() {
            self.begin_two_phase(Origin::Resize(id), None, d, Matter::Size(asked));
            return None;
        }
        let agreed = self.size_agreed(d, &asked);
        let by = Asked::by(self.node.cfg.node);
        Some(agreed.map(|size| self.give_size(d, &asked, size, NodeMask::default(), by)))
    }

    /// Were all asked for this command?
    pub(in crate::command) fn asks_for_size(&self, id: Caller) -> bool {
        let origin =
            |two: &TwoPhase| matches!(two.part, Part::Initiator { origin: Origin::Resize(of), .. } if of == id);
        self.transaction.two_phase().is_some_and(origin)
    }

    /// Nodes that have, or had, a disk and have not said what it has room for.
    pub(in crate::command) fn away_with_disk(&self, d: VolumeNr, asked: &NewSize) -> NodeMask {
        let Some(b) = &self.node.devices[d].backing else { return NodeMask::default() };
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
        let (Matter::Size(asked), d) = (&two.matter, two.volume) else { return };
        let &Part::Initiator { origin: Origin::Resize(id), .. } = &two.part else { return };
        let asked = asked.clone();
        let agreed = if self.usable(d) { self.size_agreed(d, &asked) } else { Err(failure(138, "the disk is gone")) };
        let size = match agreed {
            Ok(size) if size != self.node.devices[d].size => size,
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
        for i in all {
            self.send(i, Socket::Data, d, Packet::TwopcCommit(Box::new(decision)));
        }
        self.give_size(d, &asked, size, two.masks.primary, Asked::by(self.node.cfg.node));
        self.resize_answered(id, Ok(()));
    }

    // -- a participant -----------------------------------------------------------------------------------------------

    /// P_TWOPC_PREP_RSZ.
    pub(crate) fn resize_prepared(&mut self, i: NodeId, d: VolumeNr, prepare: &PrepareResize) {
        let head = prepare.transaction;
        if !self.can_take_part(i, d, head) {
            return;
        }
        if !self.node.devices.contains(d) {
            return self.refuse_size(i, d, prepare, "there is no such volume here");
        }
        let shrinks = prepare.user_size.0 > 0 && prepare.user_size < self.node.devices[d].size;
        if shrinks && self.node.devices[d].in_use() {
            return self.refuse_size(i, d, prepare, "the device would shrink, and is in use");
        }
        // A resync's bitmap has the size that the device had when it began.
        let settled = !self.node.state.copies(d)
            && self.node.state.disk(d) != DiskState::Negotiating
            && !self.node.devices[d].is_opening();
        let answer = if settled { Answer::Yes } else { Answer::Retry };
        let matter = Matter::Size(self.new_size(d, prepare.user_size, prepare.flags));
        let masks = self.masks_of_size(d);
        self.take_part(i, head, (d, matter), (answer, masks), None);
    }

    fn refuse_size(&mut self, i: NodeId, volume: VolumeNr, prepare: &PrepareResize, why: &str) {
        let text = format!("a peer asks for another size: {why}");
        let about = Some(volume).filter(|d| self.node.devices.contains(*d));
        self.out.note(crate::Severity::Warning, about, Some(i), Topic::ResizeRefused, text);
        let nowhere = Sector(0);
        let asked =
            NewSize { user: prepare.user_size, flags: prepare.flags, own: nowhere, smallest: None, before: nowhere };
        let masks = Masks { reachable: self.neighbours9().with(self.node.cfg.node), ..Masks::default() };
        self.take_part(i, prepare.transaction, (volume, Matter::Size(asked)), (Answer::No, masks), None);
    }

    /// P_TWOPC_COMMIT of it.
    pub(super) fn size_decided(&mut self, d: VolumeNr, asked: &NewSize, two: &TwoPhase, decision: &Decision) {
        let (Some(size), Part::Participant { parents, children, answered: Some(Answer::Yes) }) =
            (decision.size(), &two.part)
        else {
            return;
        };
        let (initiator, parents, children) = (two.head.initiator, *parents, children.without(*parents));
        if self.node.devices[d].size == size && asked.before != size {
            // A Primary has said so before.
            return;
        }
        self.give_size(d, asked, size, decision.primary_nodes.nodes(), Asked { initiator, parents, children });
    }

    /// A peer has the size already that this one was asked for, and is going to have: the decision is on its way over
    /// another connection.
    pub(crate) fn is_size_asked_for(&mut self, d: VolumeNr, i: NodeId, theirs: Sector) -> bool {
        let Some(two) = self.transaction.two_phase().filter(|two| two.volume == d && !two.is_ours()) else {
            return false;
        };
        let (Matter::Size(asked), Part::Participant { parents, children, answered: Some(Answer::Yes) }) =
            (&two.matter, &two.part)
        else {
            return false;
        };
        let primary = self.node.state.peers[i].role() == Role::Primary;
        if !primary || theirs == self.node.devices[d].size {
            return false;
        }
        let (asked, parents, children) = (asked.clone(), *parents, children.without(*parents));
        let by = Asked { initiator: two.head.initiator, parents, children };
        // What a Primary without a disk has grown by is copied as if there were none.
        let has_disk = self.node.state.peer_disk(i, d) >= DiskState::Inconsistent;
        let primaries = if has_disk { NodeMask::of(i) } else { NodeMask::default() };
        self.give_size(d, &asked, theirs, primaries, by);
        true
    }

    // -- all ---------------------------------------------------------------------------------------------------------

    /// The device gets the size that was agreed on; what has grown is copied from a Primary, or from where the request
    /// came from.
    fn give_size(&mut self, d: VolumeNr, asked: &NewSize, size: Sector, primaries: NodeMask, by: Asked) {
        let before = self.node.devices[d].size;
        if size > self.node.devices[d].capacity() && self.usable(d) {
            let text = format!("a size of {} KiB was agreed on, for which there is no room here", size.0 / 2);
            return self.leave_for_size(d, Reason::OwnDiskTooSmall, &text);
        }
        if size < before && self.node.devices[d].in_use() {
            return self.leave_for_size(d, Reason::PrimaryWouldShrink, "the device is in use, and would have shrunk");
        }
        if let Some(cfg) = &mut self.node.devices[d].cfg {
            cfg.size = Some(asked.user.to_bytes()).filter(|size| size.0 > 0);
        }
        let differs = size > before && before.0 > 0 && !asked.flags.assume_clean;
        self.adopt_size(d, size, differs);
        if size == before {
            return;
        }
        if self.node.state.is_primary() && by.initiator != self.node.cfg.node {
            // Who gets the decision from another node must know before it gets what is written there.
            self.neighbours9().without(by.parents).into_iter().for_each(|i| self.send_sizes(i, d));
        }
        if differs {
            self.copy_grown_area(d, SectorRange { start: before, end: size }, primaries, by);
        }
    }

    fn leave_for_size(&mut self, d: VolumeNr, reason: Reason, text: &str) {
        self.out.note(crate::Severity::Error, Some(d), None, reason, text);
        for i in self.neighbours9() {
            self.out.give_up(i, reason, reason.to_string());
        }
    }

    fn copy_grown_area(&mut self, d: VolumeNr, grown: SectorRange, primaries: NodeMask, by: Asked) {
        let own = self.node.cfg.node;
        let mut begun = false;
        for i in self.neighbours9() {
            let at_rest = self.node.state.replication(i, d) == Replication::Established;
            let source = match (primaries.contains(own), primaries.contains(i)) {
                (true, true) => Some(own < i),
                (true, false) => Some(true),
                (false, true) => Some(false),
                _ if primaries.is_empty() => self.copies_among_secondaries(i, d, grown, by),
                _ => None,
            };
            let Some(source) = source.filter(|_| at_rest) else { continue };
            self.begin_grown_area9(i, d, source);
            self.settle();
            begun |= source;
        }
        if begun && self.node.state.is_primary() {
            self.begin_among_peers9(d);
        }
    }

    /// Nobody is Primary: the initiator is the source of those that it has asked itself. They are that of those behind
    /// them when they have it: they alone have marked it then, and connect anew.
    fn copies_among_secondaries(&mut self, i: NodeId, d: VolumeNr, grown: SectorRange, by: Asked) -> Option<bool> {
        if by.initiator == self.node.cfg.node {
            return Some(true);
        }
        if by.parents.contains(i) {
            if by.initiator == i {
                return Some(false);
            }
            self.node.devices[d].clear_out_of_sync(i, grown);
        } else if by.children.contains(i) {
            self.node.connections[i].peer_devices[d].lasting.keeps = crate::peer_device::Keeps::LostWrites;
        }
        None
    }

    /// What has grown is copied, without comparing bitmaps: both know what that is. Of a bad copy nothing is.
    pub(crate) fn begin_grown_area9(&mut self, i: NodeId, d: VolumeNr, source: bool) {
        let (own, peer) = (self.node.state.disk(d), self.node.state.peer_disk(i, d));
        let (from, to) = if source { (own, peer) } else { (peer, own) };
        let bad = |disk| disk < DiskState::Outdated || disk == DiskState::DUnknown;
        if bad(from) || to < DiskState::Inconsistent || to == DiskState::DUnknown {
            return;
        }
        if source {
            return self.begin_as_source(i, d);
        }
        if own.min(peer) == DiskState::UpToDate {
            self.node.peer_has_this_generation9(i, d);
        }
        self.begin_as_target9(i, d);
    }
}

impl Node {
    /// Two good copies that replicate have the same generation: what the peer said of its own may be of a time before.
    fn peer_has_this_generation9(&mut self, i: NodeId, d: VolumeNr) {
        let Some(b) = &self.devices[d].backing else { return };
        let (current, history) = (b.md.current, b.md.history.to_vec());
        let pd = &mut self.connections[i].peer_devices[d];
        if let Some(told) = pd.link.told.uuids110.as_mut().filter(|told| !told.current.same(current)) {
            (told.current, told.history) = (current, history);
        }
        pd.link.told.uuids.iter_mut().for_each(|told| told.current = current);
    }
}

impl Node {
    fn new_size(&self, d: VolumeNr, user: Sector, flags: ResizeFlags) -> NewSize {
        let own = if self.usable(d) { self.devices[d].capacity() } else { BOUNDLESS };
        NewSize { user, flags, own, smallest: None, before: self.devices[d].size }
    }

    /// What this node says of itself.
    pub(super) fn masks_of_size(&self, d: VolumeNr) -> Masks {
        let reachable = self.neighbours9().with(self.cfg.node);
        let diskful = self.state.is_primary() && self.usable(d);
        let primary = if diskful { NodeMask::of(self.cfg.node) } else { NodeMask::default() };
        Masks { reachable, primary, ..Masks::default() }
    }
}
