//! The bitmaps of both sides become one before a resync, and the resync's generation is agreed
//! (`docs/spec/wire-protocol.md` 9, `docs/spec/connection-and-state.md` 7.4, 12.2).

use crate::Resource;
use crate::api::{ConnectionState, Event, Severity};
use crate::decide::Handler;
use crate::decide::change::{Change, Set};
use crate::decide::state::Replication;
use crate::decide::topic::Topic;
use crate::decide::uuid84::UuidSet;
use crate::node::Node;
use crate::peer_device::PeerDevice;
use crate::peer_device::exchange::PeersBitmap;
use units::{Generation, NodeId, VolumeNr};
use wire::{BitmapReceiver, BitmapSender, ConnState, DiskState, Packet, Socket, StateWord};

impl Resource {
    /// We are WFBitMapS: our bitmap goes first. The target may lack what others have written, and not yet said who has
    /// it (`docs/spec/connection-and-state.md` 2.6, row 28); also a node that has just ceased to be Primary.
    pub(crate) fn bitmap_exchange_as_source(&mut self, i: NodeId, d: VolumeNr) {
        self.mark_unsettled_for(i, d);
        self.send_bitmap(i, d);
    }

    fn send_bitmap(&mut self, i: NodeId, d: VolumeNr) {
        self.account_for_sent(i, d);
        let (Some(dialect), Some(slot)) = (self.node.connections[i].dialect(), self.node.devices[d].slot(i)) else {
            return;
        };
        let mut sender = BitmapSender::new(&dialect, self.node.connections[i].cfg.use_rle);
        let Some(b) = self.node.devices[d].backing.as_mut() else { return };
        let bits = std::mem::replace(&mut b.bitmaps[slot], units::BitSet::new(0));
        while let Some(packet) = sender.next_packet(&bits) {
            self.send(i, Socket::Data, d, packet);
        }
        let b = self.node.devices[d].backing.as_mut().expect("sending does not detach");
        b.bitmaps[slot] = bits;
    }

    /// A piece of the peer's bitmap.
    pub(crate) fn bitmap_received(&mut self, i: NodeId, d: VolumeNr, packet: &Packet) {
        let Some(dialect) = self.node.connections[i].dialect() else { return };
        let Some(slot) = self.node.devices[d].slot(i) else {
            return self.out.protocol_error(
                i,
                Topic::BitmapWithoutDisk,
                "a bitmap for a volume without a disk".to_owned(),
            );
        };
        let dev = &mut self.node.devices[d];
        let Some(b) = dev.backing.as_mut() else { return };
        let bits = b.bitmaps[slot].len();
        let mut receiver = match self.node.connections[i].peer_devices[d].link.exchange.take_bitmap() {
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
            Err(violation) => self.out.protocol_error(i, Topic::BadBitmap, violation.to_string()),
            Ok(false) => {
                self.node.connections[i].peer_devices[d].link.exchange.put_bitmap(PeersBitmap::Arriving(receiver))
            }
            Ok(true) => self.bitmap_complete(i, d),
        }
    }

    pub(crate) fn bitmap_complete(&mut self, i: NodeId, d: VolumeNr) {
        self.write_bitmap(d);
        let next = match self.node.state.replication(i, d) {
            Replication::WFBitMapT => {
                self.send_bitmap(i, d);
                if self.node.connections[i].speaks9() {
                    return self.begin_as_target9(i, d);
                }
                Replication::WFSyncUUID
            }
            Replication::WFBitMapS => return self.begin_as_source(i, d),
            other => {
                if other == Replication::Established {
                    // A source sends its bitmap as soon as it has decided; our own decision may still be on its way.
                    self.node.connections[i].peer_devices[d].link.exchange.put_bitmap(PeersBitmap::Early);
                }
                return self.out.note(
                    Severity::Info,
                    Some(d),
                    Some(i),
                    Topic::LateBitmap,
                    format!("bitmap received in {other}"),
                );
            }
        };
        self.enter_resync(i, Set::Replication(i, d, next).into());
    }

    // -- generations of a resync --------------------------------------------------------------------------------------

    /// Begins the generation of a resync. The target learns of it when it is on disk here: a source that has forgotten
    /// it after a crash would not recognise the target's data.
    pub(crate) fn send_sync_uuid(&mut self, i: NodeId, d: VolumeNr) {
        self.begin_first_generation(i, d);
        let mut set = self.node.devices[d].uuids(i);
        let random = self.draw_generation();
        let sync = set.start_sync_source(random);
        self.put_uuids(i, d, &set);
        self.node.connections[i].peer_devices[d].link.exchange.owe_sync_uuid(sync);
    }

    /// A source has good data, also if nobody was ever promoted here, but a resync was asked for. "Just created" is no
    /// generation: of two such nodes none sees that the other missed a resync's end, or crashed as Primary.
    ///
    /// Nor does the target get a generation that a third node may have with less in it: the target does not know of
    /// that.
    fn begin_first_generation(&mut self, i: NodeId, d: VolumeNr) {
        let first = self.node.devices[d].uuids(i).current.same(Generation::JUST_CREATED);
        if first || self.absent_lacks_something(i, d) {
            self.new_generation_beside_target(i, d);
        }
    }

    /// Below protocol 96 the source says the generation before it becomes SyncSource; from then on the change of the
    /// state brings it (`docs/spec/wire-protocol.md` 9.2).
    pub(crate) fn send_sync_uuid_first(&mut self, i: NodeId, d: VolumeNr) {
        if self.node.connections[i].version() < 96 {
            self.send_sync_uuid(i, d);
        }
    }

    /// The present generations are on disk.
    pub(crate) fn send_due_sync_uuid(&mut self, d: VolumeNr) {
        for i in self.node.connections.ids() {
            if let Some(sync) = self.node.connections[i].peer_devices[d].link.exchange.take_owed_sync_uuid() {
                self.send(i, Socket::Data, d, Packet::SyncUuid(sync));
            }
        }
    }

    /// P_SYNC_UUID: from now on our data is that of the resync.
    pub(crate) fn sync_uuid_received(&mut self, i: NodeId, d: VolumeNr, sync: Generation) {
        match self.node.state.replication(i, d) {
            Replication::WFSyncUUID | Replication::Behind => {}
            _ => {
                // The answer to a request for a resync travels on the other stream and may come later: it waits for its
                // state (`docs/spec/wire-protocol.md` 5.16). But not one for a disk that is gone.
                if self.node.devices[d].backing.is_some() {
                    self.node.connections[i].peer_devices[d].link.exchange.sync_uuid_is_early(sync);
                }
                return;
            }
        }
        self.begin_as_target(i, d, sync);
    }

    /// All blocks are here (but for those that failed).
    pub(crate) fn resync_finished_as_target(&mut self, i: NodeId, d: VolumeNr) {
        if self.node.connections[i].peer_devices[d].source_went_on() {
            let text = "the source has begun a generation without this copy: connecting again".to_owned();
            return self.out.drop_link(i, ConnectionState::NetworkFailure, Topic::SourceWentOn, text);
        }
        let failed = self.bits_failed(i, d);
        if self.node.connections[i].speaks9() {
            return self.resync_finished_as_target9(i, d, failed);
        }
        let mut change = Change::from(Set::Replication(i, d, Replication::Established));
        if failed == 0 {
            if let Some(u) = self.node.connections[i].peer_devices[d].link.told.uuids {
                let source = UuidSet { current: u.current, bitmap: u.bitmap, history: u.history };
                let mut set = self.node.devices[d].uuids(i);
                set.finish_sync_target(&source);
                set.current = if set.current == Generation::JUST_CREATED {
                    set.current
                } else {
                    set.current.with_primary_bit(self.node.state.is_primary())
                };
                self.put_uuids(i, d, &set);
                self.node.peer_has_our_generations(i, d);
            }
            change.push(Set::Disk(d, DiskState::UpToDate));
            change.push(Set::PeerDisk(i, d, DiskState::UpToDate));
        } else {
            change.push(Set::Disk(d, DiskState::Inconsistent));
            change.push(Set::PeerDisk(i, d, DiskState::UpToDate));
        }
        self.report_end(i, d, failed);
        self.took_place(change);
    }

    /// The target said that it is done. True if that was what its packet meant.
    pub(crate) fn peer_finished_resync(
        &mut self,
        i: NodeId,
        d: VolumeNr,
        theirs: &StateWord,
        peer_disk: DiskState,
    ) -> bool {
        let source = self.node.state.replication(i, d).is_source();
        if !source || theirs.conn != ConnState::Connected {
            return false;
        }
        // It may have said that before it was told of this resync. That it knows is shown by its bitmap, which came on
        // the same stream, by what it asked for, or by nothing being left. Not by its own writes, though they clear
        // bits: they may be of a verify before this. Nor by confirming ours: that may have overtaken this, on the
        // other stream.
        let rs = &self.node.connections[i].peer_devices[d].resync;
        let left = self.node.devices[d].bits_left(i).saturating_sub(self.bits_confirmed(i, d));
        let unaware = rs.total > 0 && left > 0 && !rs.known;
        let failed = self.bits_failed(i, d);
        // A block that could not be copied was asked for, too; without its disk a target need not have asked.
        let asked = failed > 0 && peer_disk == DiskState::Inconsistent || peer_disk < DiskState::Inconsistent;
        if unaware && !asked {
            return false;
        }
        // A write that has failed here, which the peer may have, is marked here alone. Of two Primaries each would go
        // on without the other one: they stay connected, and it is copied when one is demoted.
        let stays = self.both_primary(i, d) && self.node.connections[i].peer_devices[d].lasting.write_failed;
        if peer_disk == DiskState::UpToDate && left > 0 && !stays {
            // The peer's copy lacks what is marked here, whatever its own bitmap says.
            let text = format!("the peer has ended a resync, and {} KiB are still marked here", left * 4);
            self.out.drop_link(i, ConnectionState::NetworkFailure, Topic::ResyncIncomplete, text);
            return true;
        }
        if peer_disk == DiskState::UpToDate {
            let mut set = self.node.devices[d].uuids(i);
            set.retire_bitmap();
            self.put_uuids(i, d, &set);
            self.node.peer_has_our_generations(i, d);
        }
        if peer_disk < DiskState::Inconsistent {
            let left = self.node.devices[d].bits_left(i) * 4;
            let text = format!("resync given up: the peer's disk is {peer_disk}, {left} KiB are left");
            self.out.note(Severity::Error, Some(d), Some(i), Topic::ResyncGivenUp, text);
        } else {
            self.report_end(i, d, failed);
        }
        let change: Change = [
            Set::Replication(i, d, Replication::Established),
            Set::PeerRole(i, d, theirs.role),
            Set::PeerDisk(i, d, peer_disk),
            Set::PausedByPeer(i, d, theirs.aftr_isp || theirs.user_isp),
        ]
        .into_iter()
        .collect();
        self.took_place(change);
        if peer_disk == DiskState::UpToDate && left > 0 {
            self.repair_when_one_is_demoted(i, d);
        }
        let all = self.node.state.peers[i].volumes.values().all(|p| p.disk == DiskState::UpToDate)
            && self.node.state.volumes.values().all(|v| v.disk == DiskState::UpToDate);
        let asked_elsewhere = self.node.connections[i].speaks9();
        if crate::decide::fencing::unfence(self.fencing_policy(), all) && !asked_elsewhere {
            self.out.handler(Handler::UnfencePeer, None, Some(i));
        }
        true
    }

    pub(crate) fn report_end(&mut self, i: NodeId, d: VolumeNr, failed: u64) {
        self.node.connections[i].peer_devices[d].lasting.write_failed &= failed > 0;
        let rs = &self.node.connections[i].peer_devices[d].resync;
        let seconds = rs.started.map_or(0.0, |t| self.node.now.since(t).as_secs_f64());
        let kib = rs.total * 4;
        let severity = if failed == 0 { Severity::Info } else { Severity::Error };
        let same = if rs.same > 0 { format!(", {} KiB were equal", rs.same * 4) } else { String::new() };
        let text = format!("resync done: {kib} KiB in {seconds:.2} s{same}, {} KiB failed", failed * 4);
        self.out.tell(severity, Some(d), Some(i), Topic::ResyncDone, Event::ResyncEnded { failed }, text);
    }
}

impl Node {
    /// Both sets are equal now: what the handshake said of the peer is history, and no later resync may end by it.
    pub(crate) fn peer_has_our_generations(&mut self, i: NodeId, d: VolumeNr) {
        let set = self.devices[d].uuids(i);
        if let Some(u) = &mut self.connections[i].peer_devices[d].link.told.uuids {
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
