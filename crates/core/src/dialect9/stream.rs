//! Packets of 9's dialect outside of a handshake: states, roles, positions in the stream of writes
//! (`docs/spec/connection-and-state.md` 5.6.1).

use crate::api::{ConnectionState, Severity};
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
    pub(crate) fn state9_received(&mut self, peer: NodeId, volume: VolumeNr, theirs: &StateWord) {
        if !self.node.state.is_connected(peer) {
            return self.state_of_handshake(peer, volume, theirs);
        }
        let (_, replication) = dialect84::connection_and_replication(theirs.conn);
        if !self.node.state.replicates(peer, volume) {
            return self.volume_came(peer, volume, theirs, replication);
        }
        if replication == Replication::Off {
            // The peer knows of the volume only now, or has made it anew.
            self.send_state(peer, volume);
            let without_disk = Change::from(Set::PeerRole(peer, volume, theirs.role));
            let without_disk = without_disk.and(Set::PeerDisk(peer, volume, theirs.disk));
            if theirs.disk < DiskState::Negotiating {
                self.take_peers_state(peer, volume, without_disk);
            }
            return;
        }
        self.happened(Set::PeerQuorate(peer, volume, theirs.quorum));
        let said = std::mem::replace(&mut self.node.connections[peer].peer_devices[volume].link.told.says, replication);
        self.node.connections[peer].peer_devices[volume].link.told.says_disk =
            Some(theirs.disk).filter(|_| replication != Replication::Off);
        if self.follow_conclusion(peer, volume, [said, replication], theirs) {
            return;
        }
        let own = self.node.state.replication(peer, volume);
        self.node.devices[volume].queue.recheck |= own == Replication::WFBitMapS;
        // What a peer is may pass: the nodes try again, and go on when it has.
        if let Some(reason) = self.why_peers_disk_is_refused(peer, volume, theirs) {
            return self.out.retry_later(peer, reason, reason.to_string());
        }
        if replication > Replication::PausedSyncT {
            let reason = Reason::ResyncUnspoken;
            return self.out.retry_later(peer, reason, reason.to_string());
        }
        if own == Replication::VerifyT
            && replication == Replication::Established
            && self.verify_ended_by_peer(peer, volume)
        {
            return;
        }
        if said.is_target() && replication == Replication::Established && own.is_source() {
            return self.target_is_done(peer, volume, theirs);
        }
        let mut change = Change::from(Set::PeerRole(peer, volume, theirs.role));
        // Of a source that went bad nothing is copied, whether it says so or not (C8).
        let was_good = own == Replication::SyncTarget && self.node.state.peer_disk(peer, volume) == DiskState::UpToDate;
        let bad_source = was_good && theirs.disk == DiskState::Inconsistent;
        change.push(Set::PausedByPeer(peer, volume, theirs.aftr_isp || theirs.user_isp || bad_source));
        if theirs.disk != DiskState::Negotiating {
            let disk = self.node.trusted_without_disk9(peer, volume, theirs.disk);
            change.push(Set::PeerDisk(peer, volume, disk));
        }
        if self.settles_with(peer, volume, theirs.disk) {
            change.push(Set::Disk(volume, DiskState::UpToDate));
        }
        if self.node.state.disk(volume) == DiskState::Negotiating && theirs.disk < DiskState::Negotiating {
            // There is no second disk to compare with any more.
            let stale = self.node.state.is_primary() && self.node.devices[volume].disk_lags_behind_users();
            let worth = if stale { DiskState::Failed } else { self.node.devices[volume].disk.attach_state };
            change.push(Set::Disk(volume, worth));
        }
        if self.source_unawares(peer, volume, theirs) {
            let ended = self.node.connections[peer].peer_devices[volume].resync.ended;
            if ended.is_none_or(|ended| self.node.now.since(ended) > self.node.connections[peer].cfg.timeout) {
                let text = "the peer is the source of a resync that is not known here: connecting anew".to_owned();
                return self.out.compare_anew(peer, Topic::ResyncUnnoticed, text);
            }
            // It has said that before it heard of the end.
            self.node.connections[peer].peer_devices[volume].link.told.forget_source();
        }
        if self.node.attached_beside_outdated(peer, volume, theirs) {
            let text = "the peer has attached a good disk, and this one is Outdated: connecting anew".to_owned();
            return self.out.compare_anew(peer, Topic::AttachReconnects, text);
        }
        if self.node.attached_beside(peer, volume, theirs) {
            let text = "the peer's disk was attached at the same time as this one: connecting anew".to_owned();
            return self.out.compare_anew(peer, Topic::VolumeCame, text);
        }
        if self.node.compares_anew(peer, volume, theirs) {
            return self.resync_considered(peer, volume, theirs, change);
        }
        self.take_peers_state(peer, volume, change);
    }

    /// Connected nodes both have a volume now (4.8). Two disks are compared in a handshake only.
    fn volume_came(&mut self, peer: NodeId, volume: VolumeNr, theirs: &StateWord, replication: Replication) {
        if self.node.state.disk(volume).min(theirs.disk) >= DiskState::Negotiating {
            let text = "the peer has this volume now, too, and both have a disk: connecting anew".to_owned();
            return self.out.drop_link(peer, ConnectionState::NetworkFailure, Topic::VolumeCame, text);
        }
        if replication == Replication::Off {
            self.introduce(peer, volume);
        }
        self.node.connections[peer].peer_devices[volume].link.told.says = replication;
        let change = [
            Set::PeerRole(peer, volume, theirs.role),
            Set::PeerDisk(peer, volume, theirs.disk),
            Set::PausedByPeer(peer, volume, theirs.aftr_isp || theirs.user_isp),
            Set::PeerQuorate(peer, volume, theirs.quorum),
            Set::Replication(peer, volume, Replication::Established),
        ];
        self.take_peers_state(peer, volume, change.into_iter().collect());
    }

    /// What a peer says of itself is a fact, also if this node would not have agreed to it: without a good copy in
    /// reach I/O fails or freezes, as it does when the peer is lost. Only beside another Primary, where one is allowed,
    /// this node does not stay.
    fn take_peers_state(&mut self, peer: NodeId, volume: VolumeNr, change: Change) {
        let Err(refusal) = self.make(change.clone(), Kind::Wish) else { return };
        if refusal.code.is_about_configured_roles() {
            let text = format!("the peer's state is not acceptable: {}", refusal.code);
            return self.out.give_up(peer, Topic::PeerStateRefused, text);
        }
        let text = format!("the peer's state is taken as it is, although: {}", refusal.code);
        self.out.note(Severity::Warning, Some(volume), Some(peer), Topic::PeerStateUnwanted, text);
        self.took_place(change);
    }

    fn resync_considered(&mut self, peer: NodeId, volume: VolumeNr, theirs: &StateWord, mut change: Change) {
        if !self.reconsider9(peer, volume, theirs, &mut change) {
            return;
        }
        if let Err(refusal) = self.make(change, Kind::Fact) {
            let text = format!("a resync cannot begin: {}", refusal.code);
            return self.out.retry_later(peer, Topic::ResyncRefused, text);
        }
        if self.in_mesh9() && self.node.state.replication(peer, volume) > Replication::Established {
            // It may be the target of a third node by now, and not have said so.
            self.node.connections[peer].awaits_bitmap(self.node.now);
        }
        let (_, said) = dialect84::connection_and_replication(theirs.conn);
        let attaches = theirs.disk == DiskState::Negotiating;
        if self.node.state.replication(peer, volume) > Replication::Established
            && said <= Replication::Established
            && !attaches
        {
            // The peer may not know it yet (5.6.1, row 23).
            self.send_uuids(peer, volume, wire::UuidFlags::NONE);
            self.send_state(peer, volume);
        }
    }

    /// P_STATE about no volume: only a demotion is said so.
    pub(crate) fn role_received(&mut self, peer: NodeId, theirs: &StateWord) {
        if theirs.role == Role::Secondary && self.node.state.is_connected(peer) {
            self.took_place(
                self.node.devices.ids().map(|volume| Set::PeerRole(peer, volume, Role::Secondary)).collect::<Change>(),
            );
        }
    }

    /// This node has become Secondary.
    pub(crate) fn tell_demotion(&mut self) {
        let word = dialect9::role_word(Role::Secondary);
        for peer in self.node.connections.ids() {
            if self.node.connections[peer].speaks9() && self.node.state.is_connected(peer) {
                self.send(peer, Socket::Data, VolumeNr::NONE, Packet::State(word));
            }
        }
    }
}

impl Node {
    /// Is a resync due that was not at the connect: was this node or the peer forced to be Primary, or is a disk being
    /// attached?
    fn compares_anew(&mut self, peer: NodeId, volume: VolumeNr, theirs: &StateWord) -> bool {
        let least = self.state.disk(volume).min(theirs.disk);
        let disks = least >= DiskState::Negotiating;
        let due = self.connections[peer].peer_devices[volume].link.compared.again && disks;
        self.connections[peer].peer_devices[volume].link.compared.again &= !due;
        (due || least == DiskState::Negotiating) && self.state.replication(peer, volume) == Replication::Established
    }
}

impl Node {
    /// Has the peer's disk come without having been compared with this one, as both were being attached and neither
    /// saw the other, and has it another generation?
    fn attached_beside(&self, peer: NodeId, volume: VolumeNr, theirs: &StateWord) -> bool {
        let both = self.state.disk(volume).min(theirs.disk) >= DiskState::Inconsistent;
        let unseen = self.state.peer_disk(peer, volume) < DiskState::Negotiating;
        let rests = self.state.replication(peer, volume) == Replication::Established;
        let own = self.devices[volume].backing.as_ref().map(|b| b.md.current);
        let told = self.connections[peer].peer_devices[volume].told_current();
        let other = own.zip(told).is_some_and(|(own, told)| !own.same(told));
        self.in_mesh9() && both && unseen && rests && other
    }

    /// Has the peer attached a good disk, and nothing is copied from it, while this one, of the same data, is Outdated?
    /// At the comparison the peer did not say yet what its disk is worth. Among several nodes it left for the attach.
    fn attached_beside_outdated(&self, peer: NodeId, volume: VolumeNr, theirs: &StateWord) -> bool {
        let attached =
            self.state.peer_disk(peer, volume) == DiskState::Negotiating && theirs.disk == DiskState::UpToDate;
        let rests = self.state.replication(peer, volume) == Replication::Established;
        attached && rests && self.state.disk(volume) == DiskState::Outdated
    }

    /// Does the peer say that it is the source of a resync which is not going on here? What such a source writes it
    /// marks, and does not send: its state is all that tells of it.
    fn source_unawares(&self, peer: NodeId, volume: VolumeNr, theirs: &StateWord) -> bool {
        let says = theirs.conn == ConnState::SyncSource && theirs.pdsk == DiskState::Inconsistent;
        let rests = self.state.replication(peer, volume) == Replication::Established;
        let begins = self.connections[peer].peer_devices[volume].before_resync.is_due();
        says && rests && !begins && self.state.disk(volume) == DiskState::UpToDate
    }
}
