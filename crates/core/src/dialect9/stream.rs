//! Packets of 9's dialect outside of a handshake: states, roles, positions in the stream of writes
//! (`docs/spec/connection-and-state.md` 5.6.1).

use crate::api::ConnectionState;
use crate::decide::change::{Change, Set};
use crate::decide::state::Replication;
use crate::decide::topic::Topic;
use crate::decide::view::Kind;
use crate::decide::{DiskState, Reason, Role};
use crate::node::Node;
use crate::{Resource, dialect9, dialect84};
use units::{NodeId, VolumeNr};
use wire::{ConnState, Packet, Socket, StateWord};

impl Resource {
    /// P_STATE about a volume.
    pub(crate) fn state9_received(&mut self, i: NodeId, d: VolumeNr, theirs: &StateWord) {
        if !self.node.state.is_connected(i) {
            return self.state_of_handshake(i, d, theirs);
        }
        if !self.node.state.replicates(i, d) {
            let text = "the peer has this volume now, too: connecting anew".to_owned();
            return self.out.drop_link(i, ConnectionState::NetworkFailure, Topic::VolumeCame, text);
        }
        let (_, replication) = dialect84::connection_and_replication(theirs.conn);
        let said = std::mem::replace(&mut self.node.connections[i].peer_devices[d].link.told.says, replication);
        self.node.connections[i].peer_devices[d].link.told.says_disk =
            Some(theirs.disk).filter(|_| replication != Replication::Off);
        if self.follow_conclusion(i, d, [said, replication], theirs) {
            return;
        }
        let own = self.node.state.replication(i, d);
        self.node.devices[d].queue.recheck |= own == Replication::WFBitMapS;
        if let Some(reason) = self.why_peers_disk_is_refused(i, d, theirs) {
            return self.out.give_up(i, reason, reason.to_string());
        }
        if replication > Replication::PausedSyncT {
            let reason = Reason::ResyncUnspoken;
            return self.out.give_up(i, reason, reason.to_string());
        }
        if own == Replication::VerifyT && replication == Replication::Established && self.verify_ended_by_peer(i, d) {
            return;
        }
        if said.is_target() && replication == Replication::Established && own.is_source() {
            return self.target_is_done(i, d, theirs);
        }
        let mut change = Change::from(Set::PeerRole(i, d, theirs.role));
        // Of a source that went bad nothing is copied, whether it says so or not (C8).
        let was_good = own == Replication::SyncTarget && self.node.state.peer_disk(i, d) == DiskState::UpToDate;
        let bad_source = was_good && theirs.disk == DiskState::Inconsistent;
        change.push(Set::PausedByPeer(i, d, theirs.aftr_isp || theirs.user_isp || bad_source));
        if theirs.disk != DiskState::Negotiating {
            change.push(Set::PeerDisk(i, d, theirs.disk));
        }
        if self.settles_with(i, d, theirs.disk) {
            change.push(Set::Disk(d, DiskState::UpToDate));
        }
        if self.node.state.disk(d) == DiskState::Negotiating && theirs.disk < DiskState::Negotiating {
            // There is no second disk to compare with any more.
            let stale = self.node.state.is_primary() && self.node.devices[d].disk_lags_behind_users();
            let worth = if stale { DiskState::Failed } else { self.node.devices[d].disk.attach_state };
            change.push(Set::Disk(d, worth));
        }
        if self.source_unawares(i, d, theirs) {
            let ended = self.node.connections[i].peer_devices[d].resync.ended;
            if ended.is_none_or(|ended| self.node.now.since(ended) > self.node.connections[i].cfg.timeout) {
                let text = "the peer is the source of a resync that is not known here: connecting anew".to_owned();
                return self.out.compare_anew(i, Topic::ResyncUnnoticed, text);
            }
            // It has said that before it heard of the end.
            self.node.connections[i].peer_devices[d].link.told.forget_source();
        }
        if self.node.compares_anew(i, d, theirs) {
            return self.resync_considered(i, d, theirs, change);
        }
        if let Err(refusal) = self.make(change, Kind::Wish) {
            let text = format!("the peer's state is not acceptable: {}", refusal.code);
            self.out.give_up(i, Topic::PeerStateRefused, text);
        }
    }

    fn resync_considered(&mut self, i: NodeId, d: VolumeNr, theirs: &StateWord, mut change: Change) {
        if !self.reconsider9(i, d, theirs, &mut change) {
            return;
        }
        if let Err(refusal) = self.make(change, Kind::Fact) {
            let text = format!("a resync cannot begin: {}", refusal.code);
            return self.out.give_up(i, Topic::ResyncRefused, text);
        }
        if self.in_mesh9() && self.node.state.replication(i, d) > Replication::Established {
            // It may be the target of a third node by now, and not have said so.
            self.node.connections[i].awaits_bitmap(self.node.now);
        }
        let (_, said) = dialect84::connection_and_replication(theirs.conn);
        let attaches = theirs.disk == DiskState::Negotiating;
        if self.node.state.replication(i, d) > Replication::Established && said <= Replication::Established && !attaches
        {
            // The peer may not know it yet (5.6.1, row 23).
            self.send_uuids(i, d, wire::UuidFlags::NONE);
            self.send_state(i, d);
        }
    }

    /// P_STATE about no volume: only a demotion is said so.
    pub(crate) fn role_received(&mut self, i: NodeId, theirs: &StateWord) {
        if theirs.role == Role::Secondary && self.node.state.is_connected(i) {
            self.took_place(self.node.devices.ids().map(|d| Set::PeerRole(i, d, Role::Secondary)).collect::<Change>());
        }
    }

    /// This node has become Secondary.
    pub(crate) fn tell_demotion(&mut self) {
        let word = dialect9::role_word(Role::Secondary);
        for i in self.node.connections.ids() {
            if self.node.connections[i].speaks9() && self.node.state.is_connected(i) {
                self.send(i, Socket::Data, VolumeNr::NONE, Packet::State(word));
            }
        }
    }
}

impl Node {
    /// Is a resync due that was not at the connect: was this node or the peer forced to be Primary, or is a disk being
    /// attached?
    fn compares_anew(&mut self, i: NodeId, d: VolumeNr, theirs: &StateWord) -> bool {
        let least = self.state.disk(d).min(theirs.disk);
        let disks = least >= DiskState::Negotiating;
        let due = self.connections[i].peer_devices[d].link.compared.again && disks;
        self.connections[i].peer_devices[d].link.compared.again &= !due;
        (due || least == DiskState::Negotiating) && self.state.replication(i, d) == Replication::Established
    }
}

impl Node {
    /// Does the peer say that it is the source of a resync which is not going on here? What such a source writes it
    /// marks, and does not send: its state is all that tells of it.
    fn source_unawares(&self, i: NodeId, d: VolumeNr, theirs: &StateWord) -> bool {
        let says = theirs.conn == ConnState::SyncSource && theirs.pdsk == DiskState::Inconsistent;
        let rests = self.state.replication(i, d) == Replication::Established;
        let begins = self.connections[i].peer_devices[d].before_resync.is_due();
        says && rests && !begins && self.state.disk(d) == DiskState::UpToDate
    }
}
