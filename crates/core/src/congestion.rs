//! A link slower than the application: run ahead of the peer and let a resync catch up later
//! (`docs/spec/data-path-and-resync.md` 6.5).

use crate::Resource;
use crate::api::Severity;
use crate::config::{OnCongestion, Protocol};
use crate::decide::change::Set;
use crate::decide::state::Replication;
use crate::decide::topic::Topic;
use crate::node::Node;
use units::{Duration, Instant, NodeId, VolumeNr};
use wire::DiskState;

/// So long after the peer has caught up the resync begins.
const CALM: Duration = Duration::from_secs(1);

impl Resource {
    /// Before a write goes to a peer: is the way there congested? Then acts as `on-congestion` says.
    pub(crate) fn check_congestion(&mut self, peer: NodeId, volume: VolumeNr) {
        let Some(c) = self.node.connections.get(peer) else { return };
        if c.cfg.on_congestion == OnCongestion::Block {
            return;
        }
        let pd = &c.peer_devices[volume];
        let replicating =
            matches!(self.node.state.replication(peer, volume), Replication::Established | Replication::SyncSource);
        // In 9's dialect no node runs ahead as yet: it blocks instead.
        let unspoken = c.cfg.on_congestion == OnCongestion::PullAhead && c.speaks9();
        if unspoken
            || c.cfg.protocol != Protocol::A
            || !replicating
            || c.version() < 96
            || self.node.state.disk(volume) != DiskState::UpToDate
        {
            return;
        }
        let full = c.cfg.congestion_fill != 0 && pd.link.io.sectors_in_flight >= c.cfg.congestion_fill;
        let hot = self.node.devices[volume].backing.as_ref().map_or(0, |b| b.al.used_count());
        if !full && hot < c.cfg.congestion_extents as usize {
            return;
        }
        let text = format!(
            "congestion: {} KiB in flight, {hot} activity-log extents in use",
            pd.link.io.sectors_in_flight / 2
        );
        match c.cfg.on_congestion {
            OnCongestion::PullAhead => {
                self.out.note(
                    Severity::Warning,
                    Some(volume),
                    Some(peer),
                    Topic::PullAhead,
                    format!("{text}: running ahead"),
                );
                self.run_ahead(peer, volume);
            }
            OnCongestion::Disconnect => self.out.give_up(peer, Topic::Congestion, text),
            OnCongestion::Block => {}
        }
    }

    /// From now on the peer is only told which blocks it lacks; a resync follows.
    pub(crate) fn run_ahead(&mut self, peer: NodeId, volume: VolumeNr) {
        // The barrier of what was sent comes before the news (spec 6.5).
        self.close_epoch();
        self.send_due_barriers();
        self.took_place(Set::Replication(peer, volume, Replication::Ahead));
        self.begin_generation_ahead(peer, volume);
        if self.node.state.replication(peer, volume) == Replication::Ahead {
            // A resync that this broke off: what the target has written by then is told anew at the end.
            self.settle_answers(peer, volume);
        }
        self.node.connections[peer].peer_devices[volume].link.io.caught_up = None;
        self.node.note_drained(peer, volume);
    }

    /// What this Primary writes from now on, and what it has marked, the peer's copy lacks: with one generation for
    /// both that would be forgotten if the connection were lost after a demotion, or in a crash beside the next
    /// Primary.
    fn begin_generation_ahead(&mut self, peer: NodeId, volume: VolumeNr) {
        let ahead = self.node.state.replication(peer, volume) == Replication::Ahead;
        // In an interrupted resync the peer's generation is that of the resync already.
        let common = self.node.devices[volume].uuids(peer).bitmap.is_none() && self.node.state.is_primary();
        if ahead && common {
            self.new_generation_beside_target(peer, volume);
        }
    }

    /// The peer has caught up and the line was quiet for a while: copy what it missed.
    pub(crate) fn leave_ahead(&mut self, peer: NodeId) {
        for volume in self.node.devices.ids() {
            if self.leaves_ahead(peer, volume).is_none_or(|at| self.node.now < at) {
                continue;
            }
            self.node.connections[peer].peer_devices[volume].link.io.caught_up = None;
            // No bitmaps are exchanged before this resync: the target copies what it was told of. A resync that was
            // broken off has cleared bits there whose acknowledgements came too late to clear them here, and bits of
            // blocks that have been written again since.
            self.send_marks(peer, volume);
            self.begin_as_source(peer, volume);
            self.settle();
        }
    }
}

impl Node {
    /// Something was confirmed: does the peer have everything that was sent?
    pub(crate) fn note_drained(&mut self, peer: NodeId, volume: VolumeNr) {
        let now = self.now;
        let ahead = self.state.replication(peer, volume) == Replication::Ahead;
        let pd = &mut self.connections[peer].peer_devices[volume];
        if ahead && pd.link.io.sectors_in_flight == 0 && pd.link.io.caught_up.is_none() {
            pd.link.io.caught_up = Some(now);
        }
    }
}

impl Node {
    pub(crate) fn congestion_timer(&self, peer: NodeId) -> Option<Instant> {
        self.devices.ids().filter_map(|volume| self.leaves_ahead(peer, volume)).min()
    }

    /// Ahead: when the resync may begin. Not before the last answer to one that was broken off is here.
    fn leaves_ahead(&self, peer: NodeId, volume: VolumeNr) -> Option<Instant> {
        let pd = &self.connections[peer].peer_devices[volume];
        let ready = self.state.replication(peer, volume) == Replication::Ahead && !pd.link.stragglers.hold_up();
        pd.link.io.caught_up.filter(|_| ready).map(|at| at + CALM)
    }
}
