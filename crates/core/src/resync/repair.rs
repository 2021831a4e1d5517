//! Blocks that are marked as different between two good copies, and that no resync copies by itself: after a verify, a
//! crash in the middle of clearing marks, or a write that was given up (`docs/spec/connection-and-state.md` B.3 #3).
//!
//! Owns [`Repair`].

pub(crate) mod due;

use crate::Resource;
use crate::api::{ConnectionState, Severity};
use crate::command::caller::Caller;
use crate::command::disks::KEEPS_BITMAP;
use crate::decide::state::Replication;
use crate::decide::topic::Topic;
use crate::decide::view::View;
use crate::node::Node;
use crate::replaced::{Copied, Replaced};
use units::{Duration, Instant, NodeId, VolumeNr};
use wire::{DiskState, Role};

/// So long after a reconnect it is clear that no resync follows from it.
const CALM: Duration = Duration::from_secs(1);

const COPYING: &str = "copying blocks that are marked as different";

impl Resource {
    /// Copies the blocks that a verify found different: from the Primary, or else from here.
    fn repair_now(&mut self, peer: NodeId, volume: VolumeNr) {
        if self.both_primary(peer, volume) {
            return self.repair_when_one_is_demoted(peer, volume);
        }
        // Of this volume: another one may have another role, as long as a promotion is not over, or was not taken back.
        let peer_role = self.node.state.pair(peer, volume).role;
        if self.node.connections[peer].speaks9() {
            return self.repair9(peer, volume, peer_role);
        }
        if peer_role == Role::Primary || self.node.connections[peer].version() < 96 {
            let left = self.node.devices[volume].bits_left(peer);
            if !self.node.connections[peer].peer_devices[volume].repair.is_worth_trying(left) {
                // DRBD 9 begins no generation for that, and would be left and met again for ever.
                let text = format!(
                    "{} KiB are marked as different, and connecting again has not made the peer copy them: `invalidate` \
                     this node, or demote the peer",
                    left * 4
                );
                return self.out.note(Severity::Error, Some(volume), Some(peer), Topic::RepairInVain, text);
            }
            let text = "verify found differences and shall repair them: reconnecting".to_owned();
            let nobody = peer_role != Role::Primary && !self.node.state.is_primary();
            if nobody {
                // A Secondary begins no generation without need: but otherwise the marked blocks would never be copied.
                self.new_generation(volume);
            }
            if nobody {
                return self.out.drop_link(peer, ConnectionState::NetworkFailure, Topic::VerifyRepair, text);
            }
            // A Primary whose peer takes leave begins a generation, and copies the marked blocks when it is back. A
            // link that is only dropped looks like a failure: with fencing it would freeze, begin none, and shoot the
            // peer.
            self.out.note(Severity::Warning, None, Some(peer), Topic::VerifyRepair, text);
            return self.reconnect(peer);
        }
        // As after congestion: the peer learns what is marked, and no bitmap needs to be exchanged.
        self.out.note(Severity::Info, Some(volume), Some(peer), Topic::VerifyRepair, COPYING);
        self.node.connections[peer].peer_devices[volume].repair.copies();
        self.run_ahead(peer, volume);
    }

    /// Of two Primaries' copies nobody can say which one counts, and reconnecting would not copy anything.
    pub(crate) fn repair_when_one_is_demoted(&mut self, peer: NodeId, volume: VolumeNr) {
        let text = "two Primaries: blocks are marked as different, and copied when one is demoted";
        self.node.connections[peer].peer_devices[volume].repair.waits_for_one_primary();
        self.out.note(Severity::Warning, Some(volume), Some(peer), Topic::VerifyRepair, text.to_owned());
    }

    /// In 9's dialect bitmaps can be exchanged at any time.
    fn repair9(&mut self, peer: NodeId, volume: VolumeNr, peer_role: Role) {
        self.node.connections[peer].peer_devices[volume].repair.copies();
        let (replaced, begins) = match peer_role {
            Role::Primary => (Replaced::Own { source: None }, Replication::StartingSyncT),
            _ => (Replaced::Peer(peer), Replication::StartingSyncS),
        };
        if !self.may_copy(peer, volume, begins) {
            let left = self.node.devices[volume].bits_left(peer) * 4;
            let text = format!("{left} KiB are marked as different: nothing copies them while another node is Primary");
            return self.out.note(Severity::Info, Some(volume), Some(peer), Topic::MarkedBesidePrimary, text);
        }
        let old = self.node.connections[peer].version() < KEEPS_BITMAP;
        if old && self.node.connections[peer].peer_devices[volume].lasting.write_failed {
            let text = "a write failed that the peer may have: copying all of the volume";
            self.out.note(Severity::Warning, Some(volume), Some(peer), Topic::WriteRepair, text);
            return self.replace(Caller::Copying(volume), volume, replaced, Copied::All);
        }
        if old {
            let text = format!(
                "{} KiB are marked as different, and below protocol version {KEEPS_BITMAP} only all of the volume can be \
                 copied: `invalidate` on the node with the worse copy",
                self.node.devices[volume].bits_left(peer) * 4
            );
            return self.out.note(Severity::Error, Some(volume), Some(peer), Topic::RepairInVain, text);
        }
        self.out.note(Severity::Info, Some(volume), Some(peer), Topic::VerifyRepair, COPYING);
        self.replace(Caller::Copying(volume), volume, replaced, Copied::Marked);
    }

    /// Reconnected without a resync although a verify found differences (no node was Primary, so that no generation
    /// tells of them): one side copies them. With an urbd on both sides the one that accepted the control stream does,
    /// the other only if nothing happens for a while.
    pub(crate) fn repair_after_reconnect(&mut self, peer: NodeId) {
        for volume in self.node.devices.ids() {
            let c = &self.node.connections[peer];
            let wait = self.repair_wait(peer, volume);
            let view = View::of(&self.node.state, Some(peer), volume);
            if self.node.is_unheard(peer, volume) {
                continue;
            }
            if c.peer_devices[volume].repair.due(wait).is_some_and(|at| self.node.now >= at) {
                self.node.connections[peer].peer_devices[volume].repair.forget_when();
                let good = view.disk == DiskState::UpToDate && view.peer_disk == DiskState::UpToDate;
                if view.replication == Replication::Established && good && self.node.devices[volume].bits_left(peer) > 0
                {
                    self.repair_now(peer, volume);
                }
            }
        }
    }
}

impl Node {
    /// The state changed: will a resync copy what is marked as different, or must this node see to it? Marks remain
    /// between equal generations after a verify, and after a crash in the middle of clearing them
    /// (`docs/spec/connection-and-state.md` B.3 #3).
    pub(crate) fn consider_repair(&mut self, peer: NodeId, volume: VolumeNr, old: &View, new: &View) {
        let now = self.now;
        let settled = |v: &View| {
            v.replication == Replication::Established
                && v.disk == DiskState::UpToDate
                && v.peer_disk == DiskState::UpToDate
        };
        let came_together = settled(new) && !settled(old) && !old.is_beyond();
        let theirs = self.connections.get(peer).and_then(|c| c.peer_devices[volume].link.told.uuids);
        let equal = theirs.is_some_and(|u| u.current.same(self.devices[volume].uuids(peer).current));
        let marked = came_together && equal && self.devices[volume].bits_left(peer) > 0;
        // What a Primary has marked its users have seen: until it is copied the peer's copy is not as good.
        let urgent = marked && old.role == Role::Primary && new.role == Role::Primary && new.peer != Role::Primary;
        let two = new.role == Role::Primary && new.peer == Role::Primary;
        let moved = (old.connection, old.replication) != (new.connection, new.replication);
        let (old, new) = (old.replication, new.replication);
        let Some(pd) = self.connections.get_mut(peer).map(|c| &mut c.peer_devices[volume]) else { return };
        let repair = &mut pd.repair;
        if moved {
            repair.forget_when();
        }
        if marked || (moved && new == Replication::Established && old < new && repair.differences_found) {
            repair.wanted(now);
        }
        if (Replication::SyncSource..=Replication::SyncTarget).contains(&new) {
            repair.resync_began();
        }
        if !two {
            repair.one_primary(now);
        }
        repair.hurry(urgent);
    }
}

impl Node {
    pub(crate) fn both_primary(&self, peer: NodeId, volume: VolumeNr) -> bool {
        self.state.is_primary() && self.state.pair(peer, volume).role == Role::Primary
    }

    /// How long the node leaves it to the other one: longest beside a Primary, which need not lose its peer for it.
    fn repair_wait(&self, peer: NodeId, volume: VolumeNr) -> Duration {
        let c = &self.connections[peer];
        let beside = self.state.pair(peer, volume).role == Role::Primary && !self.state.is_primary();
        let times = match (beside, c.resolve_conflicts()) {
            (true, _) => 5,
            (false, true) => 1,
            (false, false) => 3,
        };
        Duration(times * CALM.0)
    }

    pub(crate) fn repair_timer(&self, peer: NodeId) -> Option<Instant> {
        let devices = self.connections[peer].peer_devices.iter().filter(|(volume, _)| !self.is_unheard(peer, *volume));
        devices.filter_map(|(volume, p)| p.repair.wanted_since().map(|t| t + self.repair_wait(peer, volume))).min()
    }
}
