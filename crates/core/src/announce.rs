//! What this node says of itself: to its peers, in 8.4's packets (`docs/spec/wire-protocol.md` 5.10, 5.13, 5.14), and
//! to the front ends.

use crate::Resource;
use crate::api::Effect;
use crate::decide::sizes::Grown;
use crate::dialect9;
use crate::dialect84;
use units::{Generation, NodeId, Sector, VolumeNr};
use wire::{DiskState, Packet, Socket, UuidFlags};

impl Resource {
    /// Behind its options, all that the peer must know of a volume.
    pub(crate) fn introduce(&mut self, peer: NodeId, volume: VolumeNr) {
        let Some(_) = self.node.connections[peer].nine() else {
            self.send_sizes(peer, volume);
            self.send_uuids(peer, volume, UuidFlags::NONE);
            return self.send_state(peer, volume);
        };
        if self.node.connections[peer].has(wire::Features::RESYNC_WITHOUT_REPLICATION) {
            self.send(peer, Socket::Data, volume, Packet::EnableReplicationNext(false));
        }
        self.send_sizes(peer, volume);
        if self.uuids110(peer, volume, UuidFlags::NONE).is_some() {
            self.send_uuids110(peer, volume, UuidFlags::NONE);
        } else {
            self.send_exposed9(peer, volume);
        }
        let word = dialect9::word(&self.node.state, peer, volume, false);
        self.send(peer, Socket::Data, volume, Packet::State(word));
    }

    pub(crate) fn send_sync_param(&mut self, peer: NodeId, volume: VolumeNr) {
        let cfg = &self.node.connections[peer].cfg;
        let name = |a: &Option<String>| a.as_deref().and_then(wire::AlgName::new).unwrap_or_default();
        let resync = self.node.devices[volume].cfg.as_ref().map(|c| c.resync.clone()).unwrap_or_default();
        let packet = wire::SyncParam {
            resync_rate: resync.rate,
            verify_alg: name(&cfg.verify),
            csums_alg: name(&cfg.csums),
            controller: wire::ResyncController {
                plan_ahead: resync.plan_ahead,
                delay_target: resync.delay_target,
                fill_target: resync.fill_target,
                max_rate: resync.max_rate,
            },
        };
        self.send(peer, Socket::Data, volume, Packet::SyncParam(Box::new(packet)));
    }

    pub(crate) fn send_state(&mut self, peer: NodeId, volume: VolumeNr) {
        let word = match self.node.connections[peer].nine() {
            // Before the nodes are connected it is said within the handshake only.
            Some(_) if !self.node.state.is_connected(peer) => return,
            Some(_) => {
                let word = dialect9::word(&self.node.state, peer, volume, self.detaches_by_command(volume));
                wire::StateWord { susp: word.susp || self.node.thaws_behind_generation(), ..word }
            }
            None => dialect84::word(&self.node.state, Some(peer), volume),
        };
        self.send(peer, Socket::Data, volume, Packet::State(word));
    }

    /// Tells every peer of the volume's state.
    pub(crate) fn tell_state(&mut self, volume: VolumeNr) {
        self.node.connections.ids().for_each(|peer| self.send_state(peer, volume));
    }

    /// Tells every peer of the volume's generations.
    pub(crate) fn tell_uuids(&mut self, volume: VolumeNr, extra: UuidFlags) {
        self.node.connections.ids().for_each(|peer| self.send_uuids(peer, volume, extra));
    }

    pub(crate) fn send_uuids(&mut self, peer: NodeId, volume: VolumeNr, extra: UuidFlags) {
        match self.node.connections[peer].nine() {
            Some(_) if self.node.state.replicates(peer, volume) => return self.send_uuids110(peer, volume, extra),
            Some(_) => return,
            // Which packet says it is not known yet; the handshake will.
            None if self.node.connections[peer].dialect().is_none() => return,
            None => {}
        }
        let dev = &self.node.devices[volume];
        if self.node.state.disk(volume) < DiskState::Negotiating || dev.backing.is_none() {
            return;
        }
        let set = self.node.devices[volume].uuids(peer);
        let mut flags = extra.0;
        if self.node.connections[peer].discard_my_data {
            flags |= UuidFlags::DISCARD_MY_DATA.0;
        }
        if dev.disk.crashed_primary {
            flags |= UuidFlags::CRASHED_PRIMARY.0;
        }
        if self.node.state.disk(volume) == DiskState::Negotiating && dev.disk.attach_state == DiskState::Inconsistent {
            flags |= UuidFlags::INCONSISTENT.0;
        }
        let current = if set.current == Generation::JUST_CREATED {
            set.current
        } else {
            set.current.with_primary_bit(self.node.state.is_primary())
        };
        let changes = self.node.devices[volume].bits_left(peer);
        let packet = wire::Uuids {
            current,
            bitmap: set.bitmap,
            history: set.history,
            dirty_bits: changes,
            flags: UuidFlags(flags),
        };
        self.node.connections[peer].peer_devices[volume].link.told.changes_told = changes;
        self.send(peer, Socket::Data, volume, Packet::Uuids(Box::new(packet)));
    }

    /// What we announce about a device's size (`docs/spec/wire-protocol.md` 5.13).
    pub(crate) fn send_sizes(&mut self, peer: NodeId, volume: VolumeNr) {
        let dev = &self.node.devices[volume];
        let c = &self.node.connections[peer];
        let usable = self.node.state.disk(volume) >= DiskState::Negotiating && dev.backing.is_some();
        let own = if usable { self.node.devices[volume].capacity() } else { units::Sector(0) };
        // A device whose size was never agreed on may be larger than a disk that is within reach by now.
        let disk_size = if c.speaks9() { self.capacity_within_reach(volume, own).max(dev.size.min(own)) } else { own };
        let user = dev.cfg.as_ref().and_then(|c| c.size).filter(|_| usable).unwrap_or_default().to_sectors_floor();
        // In 9's dialect one that is not in force yet, as `resize` is to come, would contradict the size.
        let user_size = if c.speaks9() && user.0 > 0 { user.max(dev.size) } else { user };
        let block = dev.backing.as_ref().map_or(512, |b| b.opened.block_size);
        let discard = dev.backing.as_ref().is_none_or(|b| b.opened.can_discard);
        let limits = wire::QueueLimits {
            physical_block_size: block.max(512),
            logical_block_size: 512,
            alignment_offset: 0,
            io_min: block.max(512),
            io_opt: 0,
            discard_enabled: discard,
            discard_zeroes_data: false,
            write_same_capable: false,
            bitmap_block_shift: 0,
        };
        let link = &c.peer_devices[volume].link;
        let growth = link.exchange.growth();
        let asked = link.told.sizes.filter(|theirs| theirs.current_size == Sector(0));
        // The answer bears the flags of the question.
        let assume_clean = growth == Some(Grown::Equal) || asked.is_some_and(|theirs| theirs.flags.assume_clean);
        let sizes = wire::Sizes {
            disk_size,
            user_size,
            // 0 asks for the peer's sizes in answer (`docs/spec/wire-protocol.md` 5.13).
            current_size: if growth.is_some() { Sector(0) } else { dev.size },
            max_bio_size: c.dialect().map_or(1 << 20, |x| x.version.max_block()),
            queue_order_type: 0,
            flags: wire::ResizeFlags { assume_clean, ..wire::ResizeFlags::default() },
            limits: c.has(wire::Features::WRITE_SAME).then_some(limits),
        };
        self.send(peer, Socket::Data, volume, Packet::Sizes(Box::new(sizes)));
    }

    /// Tells front ends and applications what they may do.
    pub(crate) fn announce_device(&mut self, volume: VolumeNr) {
        let good_peer = self.node.state.good_peers(volume).any(|peer| self.node.state.is_connected(peer));
        let trim = self.connected().all(|(_, c)| c.takes_discards());
        let dev = &mut self.node.devices[volume];
        let access = if self.node.state.is_primary() { crate::Access::ReadWrite } else { crate::Access::None };
        let size = dev.size.to_bytes();
        let can = dev.backing.as_ref().map_or(good_peer, |b| b.opened.can_discard);
        let now = (size, access, can && trim);
        if dev.announced != Some(now) {
            dev.announced = Some(now);
            self.out.emit(Effect::Device { volume, size, access, discard: now.2 });
        }
    }
}
