//! A handshake of two nodes of which one at least has no disk (`docs/spec/connection-and-state.md` 5.10). No bitmap is
//! exchanged, and nothing is copied: what matters is whether the users of a node without a disk find what they have
//! seen.

use crate::Resource;
use crate::api::Severity;
use crate::decide::change::{Change, Set};
use crate::decide::diskless9::{self, Elsewhere, Meeting, Meets};
use crate::decide::state::Replication;
use crate::decide::topic::Topic;
use crate::decide::{DiskState, Reason, handshake84};
use crate::dialect9::handshake::attempt::{Outcome, Part, Preparation, Verdict, WithoutDisk};
use crate::node::Node;
use units::{Generation, NodeId, VolumeNr};
use wire::{CurrentUuid, Packet, Role, Socket, StateWord, UuidFlags, Uuids110};

impl Resource {
    /// P_CURRENT_UUID in the place of P_UUIDS110, both within a handshake and, of a new volume, while connected.
    pub(crate) fn send_exposed9(&mut self, peer: NodeId, volume: VolumeNr) {
        let exposed = self.node.devices[volume].seen.exposed;
        let current = if exposed.is_none() { exposed } else { exposed.with_primary_bit(self.node.state.is_primary()) };
        let packet = CurrentUuid { current, weak_nodes: self.node.weak_nodes(volume) };
        self.send(peer, Socket::Data, volume, Packet::CurrentUuid(packet));
    }

    /// What a volume becomes of which one of the nodes has no disk.
    pub(super) fn conclude_without_disk(
        &mut self,
        peer: NodeId,
        volume: VolumeNr,
        part: &Part,
        theirs: &StateWord,
    ) -> Result<Outcome, Verdict> {
        let retry = |reason| Err(Verdict::Retry(reason));
        let changed = match (&part.sent, &part.uuids) {
            (Some((sent, _)), _) => self.node.has_changed_since(peer, volume, sent),
            (None, _) => self.node.uuids110(peer, volume, UuidFlags::NONE).is_some(),
        };
        let peer_has = theirs.disk >= DiskState::Negotiating;
        if changed || self.node.state.disk(volume) == DiskState::Attaching || peer_has != part.uuids.is_some() {
            return retry(Reason::HandshakeChanged);
        }
        self.judge_two_primaries(peer, theirs.role)?;
        let returns = self.node.in_mesh9() && theirs.disk >= DiskState::Outdated;
        if part.uuids.as_ref().is_some_and(|u| returns && self.goes_back9(volume, u.current)) {
            return retry(Reason::HandshakeChanged);
        }
        let judged = self.judge_without_disk(peer, volume, part, theirs);
        if let Err(Verdict::Retry(reason)) = judged
            && reason != Reason::HandshakeChanged
        {
            self.out.retry_later(peer, reason, reason.to_string());
        }
        let (disk, without_disk) = judged?;
        let (bitmap, replication) = (Preparation::AsIs, Replication::Established);
        Ok(Outcome { bitmap, replication, disk, word: *theirs, without_disk })
    }

    fn judge_without_disk(
        &self,
        peer: NodeId,
        volume: VolumeNr,
        part: &Part,
        theirs: &StateWord,
    ) -> Result<(DiskState, WithoutDisk), Verdict> {
        match (&part.sent, &part.uuids, part.exposed[1]) {
            (Some((sent, own)), _, Some(exposed)) => {
                let own = self.node.beside_users_of(peer, volume, (sent, *own), exposed, theirs.role)?;
                Ok((theirs.disk, own))
            }
            (None, Some(uuids), _) => self.node.finds_copy(peer, volume, uuids, theirs),
            (None, None, Some(_)) => Ok((theirs.disk, WithoutDisk::Nothing)),
            _ => Err(Verdict::Retry(Reason::HandshakeChanged)),
        }
    }

    pub(super) fn carry_out_without_disk(
        &mut self,
        peer: NodeId,
        volume: VolumeNr,
        (what, told): (WithoutDisk, Option<Generation>),
        change: &mut Change,
    ) {
        if told.is_some() {
            self.node.connections[peer].peer_devices[volume].lasting.exposed_before = told;
        }
        match what {
            WithoutDisk::Nothing => {}
            WithoutDisk::Exposes(theirs) => {
                self.node.devices[volume].seen.exposed = theirs;
                self.node.devices[volume].seen.predecessor = None;
            }
            WithoutDisk::OwnIsBehind => {
                let text = "users of a node without a disk have written without this copy: it is outdated".to_owned();
                self.out.note(Severity::Warning, Some(volume), Some(peer), Topic::LeftOut, text);
                change.push(Set::Disk(volume, DiskState::Outdated));
            }
            WithoutDisk::OwnIsGood => change.push(Set::Disk(volume, DiskState::UpToDate)),
        }
        // A size that was agreed on comes from where the data is.
        let told = self.node.connections[peer].peer_devices[volume].link.told.sizes;
        let adopts = self.node.devices[volume].backing.is_none() || what == WithoutDisk::OwnIsGood;
        if let Some(told) = told.filter(|told| adopts && told.current_size.0 > 0) {
            self.adopt_size(volume, told.current_size, false);
        }
    }
}

impl Node {
    /// This node has a copy, and the peer has users at most.
    fn beside_users_of(
        &self,
        peer: NodeId,
        volume: VolumeNr,
        (sent, own): (&Uuids110, DiskState),
        exposed: Generation,
        role: Role,
    ) -> Result<WithoutDisk, Verdict> {
        if exposed.is_fresh() || own < DiskState::Inconsistent {
            return Ok(WithoutDisk::Nothing);
        }
        let users = role == Role::Primary;
        if exposed.same(sent.current) {
            let good = users && (DiskState::Outdated..DiskState::UpToDate).contains(&own);
            let copies = self.state.pairs(volume).any(|(_, pair)| pair.replication.is_target());
            return Ok(if good && !copies { WithoutDisk::OwnIsGood } else { WithoutDisk::Nothing });
        }
        let past = sent.bitmaps.iter().chain(&sent.history).any(|g| g.same(exposed));
        if past {
            // Users that have not seen what this disk has: they may not go on with it.
            return if users { Err(Verdict::Retry(Reason::ExposedDataDiffers)) } else { Ok(WithoutDisk::Nothing) };
        }
        // Where there is no third node the users' node knows alone whether it goes on with this copy: that may have the
        // generation before theirs, in which nothing is completed.
        if !self.in_mesh9() {
            return Ok(WithoutDisk::Nothing);
        }
        let before = self.connections[peer].peer_devices[volume].lasting.exposed_before;
        let moved_on = users || before.is_some_and(|before| before.same(sent.current));
        let behind = moved_on && !self.state.is_primary() && own > DiskState::Outdated;
        Ok(if behind { WithoutDisk::OwnIsBehind } else { WithoutDisk::Nothing })
    }

    /// This node has users at most, and the peer has a copy.
    fn finds_copy(
        &self,
        peer: NodeId,
        volume: VolumeNr,
        uuids: &Uuids110,
        theirs: &StateWord,
    ) -> Result<(DiskState, WithoutDisk), Verdict> {
        let peer_disk = handshake84::peer_disk_counts_as(theirs.disk, uuids.flags.contains(UuidFlags::INCONSISTENT));
        let seen = &self.devices[volume].seen;
        let good = self.state.good_peers(volume).any(|other| other != peer);
        let elsewhere = match self.is_behind_another(peer, volume, uuids.current) {
            true => Elsewhere::Newer,
            false if good => Elsewhere::Good,
            false => Elsewhere::Nothing,
        };
        let met = diskless9::meet(&Meets {
            role: self.state.role,
            exposed: seen.exposed,
            predecessor: seen.predecessor,
            elsewhere,
            peer: uuids,
            peer_disk,
        });
        match met.map_err(Verdict::Retry)? {
            Meeting::AsItSays | Meeting::Predecessor if self.lacks_writes_of_users(volume, uuids) => {
                Err(Verdict::Retry(Reason::PeerLacksOwnWrites))
            }
            Meeting::AsItSays => Ok((peer_disk, WithoutDisk::Nothing)),
            Meeting::Exposes | Meeting::Predecessor => {
                Ok((peer_disk, WithoutDisk::Exposes(uuids.current.with_primary_bit(false))))
            }
            Meeting::Behind => Ok((DiskState::Outdated, WithoutDisk::Nothing)),
        }
    }

    /// Did users here see writes complete that this copy, of their generation or the one before, may lack?
    fn lacks_writes_of_users(&self, volume: VolumeNr, uuids: &Uuids110) -> bool {
        let seen = &self.devices[volume].seen;
        let stale = seen.peers_disk == crate::device::PeersDisk::Stale;
        let of_users = [Some(seen.exposed), seen.predecessor].into_iter().flatten();
        stale && self.state.is_primary() && { of_users }.any(|seen| uuids.current.same(seen))
    }
}
