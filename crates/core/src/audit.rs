//! What always holds at the end of a turn, with debug assertions: sums agree with what they are sums of, and nothing
//! waits for what is not there. Written independently of the rules that bring it about.

use crate::Resource;
use crate::connection::Connection;
use crate::decide::state::Replication;
use crate::dialect9::mesh::unsettled::InLog;
use crate::dialect9::nine::Nine;
use crate::node::Node;
use crate::op::Op;
use crate::peer_write::write::PACKET_COST;
use crate::request::under_way::Request;
use crate::request::write::{Local, Write};
use units::{NodeId, NodeMask, VolumeNr};
use wire::DiskState;

/// With more than this in flight only some turns would be worth what it takes.
const MOST: usize = 256;

impl Resource {
    /// Panics if something does not add up.
    pub(crate) fn audit(&self) {
        if self.requests.len() + self.peer_writes.len() + self.ops.len() > MOST {
            return;
        }
        assert!(self.to_settle.is_empty(), "a change is not finished");
        assert!(self.out.endings.is_empty(), "a link that must end has not ended");
        for (peer, c) in self.node.connections.iter() {
            self.audit_connection(peer, c);
            for volume in self.node.devices.ids() {
                self.audit_pair(peer, volume);
            }
        }
        for volume in self.node.devices.ids() {
            self.audit_device(volume);
            self.audit_unlogged(volume);
        }
        for (key, request) in self.requests.iter() {
            if let Request::Write(write) = request {
                self.audit_write(key, write);
            }
        }
    }

    fn audit_connection(&self, peer: NodeId, c: &Connection) {
        assert!(c.held.adds_up(), "bytes held for peer {peer}: {:?}", c.held);
        let of_peer = self.peer_writes.iter().filter(|(_, w)| w.connection == peer);
        let writes: u64 = of_peer.map(|(_, w)| w.cost()).sum();
        let reads = self.ops.iter().filter_map(|(_, op)| match op {
            Op::PeerRead { connection, request, .. } if *connection == peer => Some(request.size.0 + PACKET_COST),
            _ => None,
        });
        assert_eq!(c.working, writes + reads.sum::<u64>(), "what the disks do for peer {peer}");
        if c.link.is_none() {
            assert!(!self.node.state.is_connected(peer), "peer {peer} is connected without a link");
            assert!(c.held.is_empty() && c.log.is_at_rest(), "peer {peer}: left from a link");
            assert!(c.epochs.is_empty(), "peer {peer}: epochs of no link");
        }
        for key in c.log.kept() {
            let kept = self.requests.get(key).is_none_or(|r| matches!(r, Request::Write(w) if w.legs.is_kept(peer)));
            assert!(kept, "peer {peer}: {key:#x} is not kept for its return");
        }
        let epochs = c.log.unconfirmed().zip(c.log.unconfirmed().skip(1));
        for (one, next) in epochs {
            assert!(
                next.epoch.wrapping_sub(one.epoch) < 1 << 31,
                "peer {peer}: epochs {} and {}",
                one.epoch,
                next.epoch
            );
        }
        for sent in c.log.unconfirmed() {
            if let Some(Request::Write(w)) = self.requests.get(sent.request) {
                assert!(
                    w.legs.is_on_link(peer) && w.submitted.epoch == sent.epoch,
                    "peer {peer}: a write in the log: {w:?}"
                );
            }
        }
    }

    fn audit_pair(&self, peer: NodeId, volume: VolumeNr) {
        let replication = self.node.state.replication(peer, volume);
        assert!(
            replication == Replication::Off || self.node.state.is_connected(peer),
            "volume {volume} is {replication} with peer {peer}, who is not connected"
        );
        let pd = &self.node.connections[peer].peer_devices[volume];
        let flushes = |n: NodeId| self.node.connections[n].nine().map(Nine::flushes);
        let lost = pd.resync.last_pass.asks_beyond(flushes);
        assert_eq!(lost, None, "volume {volume}: it was asked on a link that has ended");
        // Those wait for the peer to come back.
        let pending = self.requests.iter().filter(|(_, request)| match request {
            Request::Write(w) => w.device == volume && w.legs.awaits(peer) && !w.legs.is_kept(peer),
            Request::Read(r) => r.device == volume && r.remote == Some(peer),
            Request::Flush(_) => false,
        });
        if self.node.connections[peer].link.is_some() {
            assert_eq!(
                pd.link.io.pending as usize,
                pending.count(),
                "answers of peer {peer} that volume {volume} waits for"
            );
        }
        let session = self.node.connections[peer].session;
        let unacked =
            self.peer_writes.iter().filter(|(_, w)| (w.connection, w.device, w.session) == (peer, volume, session));
        if self.node.connections[peer].link.is_some() {
            assert_eq!(pd.link.io.unacked as usize, unacked.count(), "writes of peer {peer} to volume {volume}");
        }
    }

    fn audit_device(&self, volume: VolumeNr) {
        let dev = &self.node.devices[volume];
        let of =
            |wanted: fn(&Op) -> Option<VolumeNr>| self.ops.iter().filter(|(_, op)| wanted(op) == Some(volume)).count();
        let local = self.ops.iter().filter(|(_, op)| match op {
            Op::LocalWrite(key) | Op::LocalRead(key) | Op::LocalFlush(key) => {
                self.requests.get(*key).is_some_and(|request| request.device() == volume)
            }
            _ => false,
        });
        assert_eq!(dev.disk.local_pending as usize, local.count(), "volume {volume}: disk operations");
        assert!(
            dev.disk.upper_pending > 0 || dev.repetitions.is_empty(),
            "volume {volume}: nothing is there to be done again"
        );
        let meta = of(|op| match op {
            Op::AlBlock(volume)
            | Op::BitmapPage(volume, _)
            | Op::Superblock(volume)
            | Op::Attach(volume)
            | Op::LogReset(volume) => Some(*volume),
            _ => None,
        });
        assert_eq!(dev.disk.meta_pending as usize, meta, "volume {volume}: metadata operations");
    }

    fn audit_write(&self, key: u64, w: &Write) {
        assert!(w.legs.adds_up(), "{w:?} is not what its legs say");
        assert!(w.is_open() || !w.legs.awaits_any(), "{w:?} is completed and waits");
        if w.local() == Local::Pending {
            let under_way = self.ops.iter().any(|(_, op)| matches!(op, Op::LocalWrite(k) if *k == key));
            assert!(under_way, "{w:?} waits for a disk that has nothing to do");
        }
    }
}

impl Node {
    /// A write is about to be submitted, to these peers: it never is complete without having come to one that is
    /// connected and calls its copy good, nor, beside one that may decide otherwise, before it is known whether that
    /// lets itself be brought up to date.
    pub(crate) fn audit_routes(&self, volume: VolumeNr, data_to: NodeMask) {
        if !cfg!(debug_assertions) {
            return;
        }
        for (peer, c) in self.connections.iter().filter(|(peer, c)| c.speaks9() && !data_to.contains(*peer)) {
            let (own, pd) = (self.state.replication(peer, volume), &c.peer_devices[volume]);
            let says_good =
                pd.link.told.says_disk == Some(DiskState::UpToDate) && pd.link.told.says == Replication::Established;
            // Its word may have crossed the decision to bring it up to date, to which it has agreed.
            let begins = matches!(own, Replication::Off | Replication::StartingSyncS | Replication::WFBitMapS);
            // Or that it gives up its disk, or a node without a disk does not trust it (2.2, C19).
            let theirs = self.state.peer_disk(peer, volume);
            let doubted = theirs == DiskState::Consistent && self.state.disk(volume) < DiskState::Inconsistent;
            let gone = theirs < DiskState::Inconsistent || doubted;
            let agreed = gone || begins && !self.awaits_target(volume);
            assert!(
                !says_good || agreed,
                "volume {volume}: peer {peer} calls its copy good, and would not get a write: {own}"
            );
        }
    }

    /// What has left the log, and of which nobody has said who has it, is marked for all but its writer.
    fn audit_unlogged(&self, volume: VolumeNr) {
        let Some(b) = &self.devices[volume].backing else { return };
        for (peer, c) in self.connections.iter() {
            for write in c.unsettled.iter().filter(|write| write.volume == volume && write.log == InLog::Left) {
                let blocks = b.area().touched(write.range);
                for other in
                    self.connections.ids().filter(|other| *other != peer && self.devices[volume].slot(*other).is_some())
                {
                    let marked = self.known_different(volume, other, write.range);
                    assert_eq!(marked, blocks.end - blocks.start, "peer {other} may lack {write:?} of peer {peer}");
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::peer_write::write::Told;
    use crate::{ConnectionConfig, OnNoData, Resource, ResourceConfig, VolumeConfig};
    use std::net::SocketAddr;
    use units::{NodeId, VolumeNr};

    const PEER: NodeId = NodeId::new(1).expect("a node id");
    const VOLUME: VolumeNr = VolumeNr(0);

    fn resource() -> Resource {
        let address = |port| SocketAddr::from(([127, 0, 0, 1], port));
        let volumes = vec![VolumeConfig { volume: VOLUME, disk: None }];
        let connections = vec![ConnectionConfig::new(PEER, "bravo", (address(7788), address(7789)))];
        let (node, on_no_data) = (NodeId::new(0).expect("a node id"), OnNoData::IoError);
        let quorum = crate::QuorumConfig::default();
        let name = "r0".to_owned();
        let on_suspended_outdated = crate::OnSuspendedOutdated::default();
        let handlers = Vec::new();
        let cfg =
            ResourceConfig { name, node, on_no_data, quorum, on_suspended_outdated, handlers, volumes, connections };
        Resource::new(cfg, 1)
    }

    /// Everything that is counted is looked at.
    #[test]
    fn a_count_that_does_not_add_up_is_noticed() {
        let wrong: [fn(&mut Resource); 7] = [
            |r| r.node.devices[VOLUME].disk.local_pending += 1,
            |r| r.node.devices[VOLUME].disk.meta_pending += 1,
            |r| _ = r.node.connections[PEER].epochs.join(Told::Early),
            |r| r.queue_data(PEER, VOLUME, wire::Packet::Ping, crate::Segments::None),
            |r| r.node.connections[PEER].working += 1,
            |r| r.node.connections[PEER].log.sent(1, units::Instant(0)),
            |r| r.happened(crate::decide::change::Set::Frozen(crate::SuspendReason::User, true)),
        ];
        resource().audit();
        for (n, spoil) in wrong.into_iter().enumerate() {
            let mut resource = resource();
            spoil(&mut resource);
            let audited = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| resource.audit()));
            assert!(audited.is_err(), "wrong {n}");
        }
    }
}
