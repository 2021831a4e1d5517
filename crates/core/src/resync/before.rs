//! The handlers that a resync waits for, `before-resync-target` and `before-resync-source`
//! (`docs/spec/connection-and-state.md` 8.6): nothing is overwritten before they end.
//!
//! One call at a time per peer device. A call that outlives what it was for, as its connection is gone, has no say in
//! what comes later: the next resync waits for its end, and then for that of a call of its own.

pub(crate) mod asked;

use crate::Resource;
use crate::decide::Handler;
use crate::decide::change::{Change, Set};
use crate::decide::state::Replication;
use crate::decide::topic::Topic;
use crate::resync::before::asked::Beginning;
use crate::state::to_settle::ToSettle;
use units::{Generation, NodeId, VolumeNr};
use wire::DiskState;

impl Resource {
    /// A resync as source is to begin, from whatever state we are in.
    pub(crate) fn begin_as_source(&mut self, peer: NodeId, volume: VolumeNr) {
        let waits_in = self.node.state.replication(peer, volume);
        self.begin_resync(peer, volume, Beginning::Source(waits_in));
    }

    /// A resync as target is to begin.
    pub(crate) fn begin_as_target(&mut self, peer: NodeId, volume: VolumeNr, sync: Generation) {
        self.begin_resync(peer, volume, Beginning::Target(sync));
    }

    /// The same in 9's dialect.
    pub(crate) fn begin_as_target9(&mut self, peer: NodeId, volume: VolumeNr) {
        let waits_in = self.node.state.replication(peer, volume);
        self.begin_resync(peer, volume, Beginning::Target9(waits_in));
    }

    fn begin_resync(&mut self, peer: NodeId, volume: VolumeNr, beginning: Beginning) {
        if self.cfg.handlers.contains(&beginning.handler()) {
            self.wait_for_handler(peer, volume, beginning);
        } else {
            self.begin_now(peer, volume, beginning);
        }
    }

    fn wait_for_handler(&mut self, peer: NodeId, volume: VolumeNr, due: Beginning) {
        let before = &mut self.node.connections[peer].peer_devices[volume].before_resync;
        before.due = Some(due);
        if before.call.is_none() {
            let call = self.out.handler(due.handler(), Some(volume), Some(peer));
            self.node.connections[peer].peer_devices[volume].before_resync.call = Some(call);
        }
    }

    /// A handler that nothing waits for is called when the resync has begun: there is none, or nobody has configured it
    /// when this resync was to begin.
    pub(crate) fn resync_began(&mut self, peer: NodeId, volume: VolumeNr, source: bool) {
        let handler = if source { Handler::BeforeResyncSource } else { Handler::BeforeResyncTarget };
        if !self.cfg.handlers.contains(&handler) {
            self.out.handler(handler, Some(volume), Some(peer));
        }
    }

    /// A handler has ended. If a resync was waiting for it, that begins, or its connection ends.
    pub(crate) fn before_resync_ended(&mut self, peer: NodeId, volume: VolumeNr, id: u64, status: i32) {
        let before = &mut self.node.connections[peer].peer_devices[volume].before_resync;
        if before.call != Some(id) {
            return;
        }
        before.call = None;
        let outlived = std::mem::take(&mut before.outlived);
        let Some(due) = before.due else { return };
        if outlived {
            return self.wait_for_handler(peer, volume, due);
        }
        before.due = None;
        let handler = due.handler();
        if handler.drops_connection(status) {
            return self.out.give_up(peer, Topic::HandlerRefused, format!("{} ended with {status}", handler.name()));
        }
        self.begin_now(peer, volume, due);
    }

    fn begin_now(&mut self, peer: NodeId, volume: VolumeNr, beginning: Beginning) {
        match beginning {
            Beginning::Source(_) => self.become_sync_source(peer, volume),
            Beginning::Target(sync) => self.become_sync_target(peer, volume, sync),
            Beginning::Target9(_) => {
                self.begin_target9(peer, volume);
                self.enter_sync_target(peer, volume);
            }
        }
    }

    fn become_sync_source(&mut self, peer: NodeId, volume: VolumeNr) {
        self.send_sync_uuid_first(peer, volume);
        self.enter_resync(peer, Set::Replication(peer, volume, Replication::SyncSource).into());
    }

    fn become_sync_target(&mut self, peer: NodeId, volume: VolumeNr, sync: Generation) {
        let mut set = self.node.devices[volume].uuids(peer);
        set.start_sync_target(sync.with_primary_bit(self.node.state.is_primary()));
        self.put_uuids(peer, volume, &set);
        self.enter_sync_target(peer, volume);
    }

    fn enter_sync_target(&mut self, peer: NodeId, volume: VolumeNr) {
        // With what the source said to be out of sync after the bitmaps had become one: a block is confirmed while it
        // may still be lost here, and then nothing but this bitmap knows of it.
        self.write_bitmap(volume);
        if let Some(u) = &self.node.connections[peer].peer_devices[volume].link.told.uuids {
            self.node.devices[volume].seen.exposed = u.current;
        }
        let change = Change::from(Set::Replication(peer, volume, Replication::SyncTarget));
        self.enter_resync(peer, change.and(Set::Disk(volume, DiskState::Inconsistent)));
    }

    /// A state of a resync, or on the way to one, is to be entered when what other changes have brought with them is
    /// settled; the connection ends if that cannot be.
    pub(crate) fn enter_resync(&mut self, peer: NodeId, change: Change) {
        self.to_settle.push_back(ToSettle::EnterResync(peer, change));
    }
}
