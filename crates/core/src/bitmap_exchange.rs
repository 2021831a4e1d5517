//! The bits of a peer, which say what blocks may differ from its copy. The bitmaps of both sides become one before a
//! resync, and the resync's generation is agreed (`docs/spec/wire-protocol.md` 9,
//! `docs/spec/connection-and-state.md` 7.4, 12.2).

use crate::Resource;
use crate::api::{ConnectionState, Event, Severity};
use crate::decide::Handler;
use crate::decide::change::{Change, Set};
use crate::decide::state::Replication;
use crate::decide::topic::Topic;
use crate::decide::uuid84::UuidSet;
use crate::device::Device;
use crate::node::Node;
use crate::peer_device::exchange::PeersBitmap;
use crate::peer_device::{Keeps, PeerDevice};
use units::{Generation, NodeId, SectorRange, VolumeNr};
use wire::{BitmapReceiver, BitmapSender, ConnState, DiskState, Packet, Socket, StateWord};

impl Resource {
    /// We are WFBitMapS: our bitmap goes first. The target may lack what others have written, and not yet said who has
    /// it (`docs/spec/connection-and-state.md` 2.6, row 28); also a node that has just ceased to be Primary.
    pub(crate) fn bitmap_exchange_as_source(&mut self, peer: NodeId, volume: VolumeNr) {
        self.mark_unsettled_for(peer, volume);
        self.send_bitmap(peer, volume);
    }

    fn send_bitmap(&mut self, peer: NodeId, volume: VolumeNr) {
        self.account_for_sent(peer, volume);
        let (Some(dialect), Some(slot)) = (self.node.connections[peer].dialect(), self.node.devices[volume].slot(peer))
        else {
            return;
        };
        let mut sender = BitmapSender::new(&dialect, self.node.connections[peer].cfg.use_rle);
        let Some(b) = self.node.devices[volume].backing.as_mut() else { return };
        let bits = std::mem::replace(&mut b.bitmaps[slot], units::BitSet::new(0));
        while let Some(packet) = sender.next_packet(&bits) {
            self.send(peer, Socket::Data, volume, packet);
        }
        let b = self.node.devices[volume].backing.as_mut().expect("sending does not detach");
        b.bitmaps[slot] = bits;
    }

    /// A piece of the peer's bitmap.
    pub(crate) fn bitmap_received(&mut self, peer: NodeId, volume: VolumeNr, packet: &Packet) {
        let Some(dialect) = self.node.connections[peer].dialect() else { return };
        let Some(slot) = self.node.devices[volume].slot(peer) else {
            return self.out.protocol_error(
                peer,
                Topic::BitmapWithoutDisk,
                "a bitmap for a volume without a disk".to_owned(),
            );
        };
        let dev = &mut self.node.devices[volume];
        let Some(b) = dev.backing.as_mut() else { return };
        let bits = b.bitmaps[slot].len();
        let mut receiver = match self.node.connections[peer].peer_devices[volume].link.exchange.take_bitmap() {
            PeersBitmap::Arriving(receiver) => receiver,
            PeersBitmap::Awaited | PeersBitmap::Early => BitmapReceiver::new(&dialect, bits),
        };
        let area = b.area();
        let mut set = |from: u64, to: u64| {
            if b.bitmaps[slot].set_range(from, to) > 0 {
                b.dirty.note_set(area.pages_of(from..to));
            }
        };
        let end = match packet {
            Packet::Bitmap(words) => receiver.plain(words, &mut set),
            Packet::CompressedBitmap(code) => receiver.compressed(code, &mut set),
            _ => unreachable!("only bitmap packets come here"),
        };
        match end {
            Err(violation) => self.out.protocol_error(peer, Topic::BadBitmap, violation.to_string()),
            Ok(false) => self.node.connections[peer].peer_devices[volume]
                .link
                .exchange
                .put_bitmap(PeersBitmap::Arriving(receiver)),
            Ok(true) => self.bitmap_complete(peer, volume),
        }
    }

    pub(crate) fn bitmap_complete(&mut self, peer: NodeId, volume: VolumeNr) {
        self.write_bitmap(volume);
        let next = match self.node.state.replication(peer, volume) {
            Replication::WFBitMapT => {
                self.send_bitmap(peer, volume);
                if self.node.connections[peer].speaks9() {
                    return self.begin_as_target9(peer, volume);
                }
                Replication::WFSyncUUID
            }
            Replication::WFBitMapS => return self.begin_as_source(peer, volume),
            other => {
                if other == Replication::Established {
                    // A source sends its bitmap as soon as it has decided; our own decision may still be on its way.
                    self.node.connections[peer].peer_devices[volume].link.exchange.put_bitmap(PeersBitmap::Early);
                }
                return self.out.note(
                    Severity::Info,
                    Some(volume),
                    Some(peer),
                    Topic::LateBitmap,
                    format!("bitmap received in {other}"),
                );
            }
        };
        self.enter_resync(peer, Set::Replication(peer, volume, next).into());
    }

    // -- generations of a resync --------------------------------------------------------------------------------------

    /// Begins the generation of a resync. The target learns of it when it is on disk here: a source that has forgotten
    /// it after a crash would not recognise the target's data.
    pub(crate) fn send_sync_uuid(&mut self, peer: NodeId, volume: VolumeNr) {
        self.begin_first_generation(peer, volume);
        let mut set = self.node.devices[volume].uuids(peer);
        let random = self.draw_generation();
        let sync = set.start_sync_source(random);
        self.put_uuids(peer, volume, &set);
        self.node.connections[peer].peer_devices[volume].link.exchange.owe_sync_uuid(sync);
    }

    /// A source has good data, also if nobody was ever promoted here, but a resync was asked for. "Just created" is no
    /// generation: of two such nodes none sees that the other missed a resync's end, or crashed as Primary.
    ///
    /// Nor does the target get a generation that a third node may have with less in it: the target does not know of
    /// that.
    fn begin_first_generation(&mut self, peer: NodeId, volume: VolumeNr) {
        let first = self.node.devices[volume].uuids(peer).current.same(Generation::JUST_CREATED);
        if first || self.absent_lacks_something(peer, volume) {
            self.new_generation_beside_target(peer, volume);
        }
    }

    /// Below protocol 96 the source says the generation before it becomes SyncSource; from then on the change of the
    /// state brings it (`docs/spec/wire-protocol.md` 9.2).
    pub(crate) fn send_sync_uuid_first(&mut self, peer: NodeId, volume: VolumeNr) {
        if self.node.connections[peer].version() < 96 {
            self.send_sync_uuid(peer, volume);
        }
    }

    /// The present generations are on disk.
    pub(crate) fn send_due_sync_uuid(&mut self, volume: VolumeNr) {
        for peer in self.node.connections.ids() {
            if let Some(sync) = self.node.connections[peer].peer_devices[volume].link.exchange.take_owed_sync_uuid() {
                self.send(peer, Socket::Data, volume, Packet::SyncUuid(sync));
            }
        }
    }

    /// P_SYNC_UUID: from now on our data is that of the resync.
    pub(crate) fn sync_uuid_received(&mut self, peer: NodeId, volume: VolumeNr, sync: Generation) {
        match self.node.state.replication(peer, volume) {
            Replication::WFSyncUUID | Replication::Behind => {}
            _ => {
                // The answer to a request for a resync travels on the other stream and may come later: it waits for its
                // state (`docs/spec/wire-protocol.md` 5.16). But not one for a disk that is gone.
                if self.node.devices[volume].backing.is_some() {
                    self.node.connections[peer].peer_devices[volume].link.exchange.sync_uuid_is_early(sync);
                }
                return;
            }
        }
        self.begin_as_target(peer, volume, sync);
    }

    /// All blocks are here (but for those that failed).
    pub(crate) fn resync_finished_as_target(&mut self, peer: NodeId, volume: VolumeNr) {
        if self.node.connections[peer].peer_devices[volume].source_went_on() {
            let text = "the source has begun a generation without this copy: connecting again".to_owned();
            return self.out.drop_link(peer, ConnectionState::NetworkFailure, Topic::SourceWentOn, text);
        }
        let failed = self.bits_failed(peer, volume);
        if self.node.connections[peer].speaks9() {
            return self.resync_finished_as_target9(peer, volume, failed);
        }
        let mut change = Change::from(Set::Replication(peer, volume, Replication::Established));
        if failed == 0 {
            if let Some(u) = self.node.connections[peer].peer_devices[volume].link.told.uuids {
                let source = UuidSet { current: u.current, bitmap: u.bitmap, history: u.history };
                let mut set = self.node.devices[volume].uuids(peer);
                set.finish_sync_target(&source);
                set.current = if set.current == Generation::JUST_CREATED {
                    set.current
                } else {
                    set.current.with_primary_bit(self.node.state.is_primary())
                };
                self.put_uuids(peer, volume, &set);
                self.node.peer_has_our_generations(peer, volume);
            }
            change.push(Set::Disk(volume, DiskState::UpToDate));
            change.push(Set::PeerDisk(peer, volume, DiskState::UpToDate));
        } else {
            change.push(Set::Disk(volume, DiskState::Inconsistent));
            change.push(Set::PeerDisk(peer, volume, DiskState::UpToDate));
        }
        self.report_end(peer, volume, failed);
        self.took_place(change);
    }

    /// The target said that it is done. True if that was what its packet meant.
    pub(crate) fn peer_finished_resync(
        &mut self,
        peer: NodeId,
        volume: VolumeNr,
        theirs: &StateWord,
        peer_disk: DiskState,
    ) -> bool {
        let source = self.node.state.replication(peer, volume).is_source();
        if !source || theirs.conn != ConnState::Connected {
            return false;
        }
        // It may have said that before it was told of this resync. That it knows is shown by its bitmap, which came on
        // the same stream, by what it asked for, or by nothing being left. Not by its own writes, though they clear
        // bits: they may be of a verify before this. Nor by confirming ours: that may have overtaken this, on the
        // other stream.
        let rs = &self.node.connections[peer].peer_devices[volume].resync;
        let left = self.node.devices[volume].bits_left(peer).saturating_sub(self.bits_confirmed(peer, volume));
        let unaware = rs.total > 0 && left > 0 && !rs.known;
        let failed = self.bits_failed(peer, volume);
        // A block that could not be copied was asked for, too; without its disk a target need not have asked.
        let asked = failed > 0 && peer_disk == DiskState::Inconsistent || peer_disk < DiskState::Inconsistent;
        if unaware && !asked {
            return false;
        }
        // A write that has failed here, which the peer may have, is marked here alone. Of two Primaries each would go
        // on without the other one: they stay connected, and it is copied when one is demoted.
        let stays =
            self.both_primary(peer, volume) && self.node.connections[peer].peer_devices[volume].lasting.write_failed;
        if peer_disk == DiskState::UpToDate && left > 0 && !stays {
            // The peer's copy lacks what is marked here, whatever its own bitmap says.
            let text = format!("the peer has ended a resync, and {} KiB are still marked here", left * 4);
            self.out.drop_link(peer, ConnectionState::NetworkFailure, Topic::ResyncIncomplete, text);
            return true;
        }
        if peer_disk == DiskState::UpToDate {
            let mut set = self.node.devices[volume].uuids(peer);
            set.retire_bitmap();
            self.put_uuids(peer, volume, &set);
            self.node.peer_has_our_generations(peer, volume);
        }
        if peer_disk < DiskState::Inconsistent {
            let left = self.node.devices[volume].bits_left(peer) * 4;
            let text = format!("resync given up: the peer's disk is {peer_disk}, {left} KiB are left");
            self.out.note(Severity::Error, Some(volume), Some(peer), Topic::ResyncGivenUp, text);
        } else {
            self.report_end(peer, volume, failed);
        }
        let change: Change = [
            Set::Replication(peer, volume, Replication::Established),
            Set::PeerRole(peer, volume, theirs.role),
            Set::PeerDisk(peer, volume, peer_disk),
            Set::PausedByPeer(peer, volume, theirs.aftr_isp || theirs.user_isp),
        ]
        .into_iter()
        .collect();
        self.took_place(change);
        if peer_disk == DiskState::UpToDate && left > 0 {
            self.repair_when_one_is_demoted(peer, volume);
        }
        let all = self.node.state.peers[peer].volumes.values().all(|p| p.disk == DiskState::UpToDate)
            && self.node.state.volumes.values().all(|v| v.disk == DiskState::UpToDate);
        let asked_elsewhere = self.node.connections[peer].speaks9();
        if crate::decide::fencing::unfence(self.fencing_policy(), all) && !asked_elsewhere {
            self.out.handler(Handler::UnfencePeer, None, Some(peer));
        }
        true
    }

    pub(crate) fn report_end(&mut self, peer: NodeId, volume: VolumeNr, failed: u64) {
        self.node.connections[peer].peer_devices[volume].lasting.write_failed &= failed > 0;
        let rs = &self.node.connections[peer].peer_devices[volume].resync;
        let seconds = rs.started.map_or(0.0, |t| self.node.now.since(t).as_secs_f64());
        let kib = rs.total * 4;
        let severity = if failed == 0 { Severity::Info } else { Severity::Error };
        let same = if rs.same > 0 { format!(", {} KiB were equal", rs.same * 4) } else { String::new() };
        let text = format!("resync done: {kib} KiB in {seconds:.2} s{same}, {} KiB failed", failed * 4);
        self.out.tell(severity, Some(volume), Some(peer), Topic::ResyncDone, Event::ResyncEnded { failed }, text);
    }
}

impl Node {
    /// Both sets are equal now: what the handshake said of the peer is history, and no later resync may end by it.
    pub(crate) fn peer_has_our_generations(&mut self, peer: NodeId, volume: VolumeNr) {
        let set = self.devices[volume].uuids(peer);
        if let Some(u) = &mut self.connections[peer].peer_devices[volume].link.told.uuids {
            (u.current, u.bitmap, u.history) = (set.current, set.bitmap, set.history);
        }
    }
}

impl PeerDevice {
    /// Does the source have another generation than when the resync began? It takes the target's disk for gone (the
    /// target has asked to detach it), and what it writes now is only its own. Its word travels on the other stream
    /// than what ends a resync.
    fn source_went_on(&self) -> bool {
        let now = self.link.told.uuids.as_ref().map(|u| u.current);
        self.resync.peer_current.zip(now).is_some_and(|(then, now)| !now.same(then))
    }
}

impl Resource {
    /// The peer wrote what it did not send.
    pub(crate) fn peer_out_of_sync(&mut self, peer: NodeId, volume: VolumeNr, r: wire::BlockRange) {
        let Some(range) = r.range() else { return };
        let size = self.node.devices[volume].size;
        if range.start >= size {
            return;
        }
        let clipped = SectorRange { start: range.start, end: range.end.min(size) };
        let client = self.in_mesh9() && self.node.state.peer_disk(peer, volume) < DiskState::Inconsistent;
        if client && !self.node.state.is_primary() {
            if self.node.state.disk(volume) == DiskState::UpToDate {
                // It has come to be that before the peer heard of it.
                self.took_place(Set::Disk(volume, DiskState::Outdated));
            }
            // What it has written this copy gets from who has it.
            for other in self.node.connections.ids().filter(|other| *other != peer) {
                self.mark_out_of_sync(other, volume, clipped);
                self.mark_overtaken(other, volume, clipped);
            }
            return;
        }
        self.mark_out_of_sync(peer, volume, clipped);
        self.mark_overtaken(peer, volume, clipped);
    }

    /// Bits for this peer: something of the range may differ.
    pub(crate) fn mark_out_of_sync(&mut self, peer: NodeId, volume: VolumeNr, range: SectorRange) -> u64 {
        let n = self.node.devices[volume].bitmap_mut(peer).map_or(0, |(b, slot)| b.set_out_of_sync(slot, range));
        self.out.status_changed |= n > 0;
        if n > 0 && self.node.connections[peer].peer_devices[volume].lasting.keeps == Keeps::Unheard {
            // The peer will not have meant this.
            self.node.connections[peer].peer_devices[volume].lasting.keeps = Keeps::Doubted;
        }
        n
    }
}

impl Device {
    /// Bits for this peer: the fully covered blocks of the range are equal.
    pub(crate) fn clear_out_of_sync(&mut self, peer: NodeId, range: SectorRange) -> u64 {
        self.bitmap_mut(peer).map_or(0, |(b, slot)| b.set_in_sync(slot, range))
    }
}
