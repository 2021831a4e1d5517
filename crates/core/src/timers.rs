//! What time brings: the table of timers, each with when it is due and what is done then.
//!
//! When one is due follows from the state as it is, so that none has to be set or stopped. Those of chores are in
//! [`crate::housekeeping`]: the end of the turn does what is due.

use crate::Resource;
use crate::connection::Phase;
use crate::node::Node;
use units::{Duration, Instant, NodeId, VolumeNr};

/// Of a link.
#[derive(Clone, Copy, Debug)]
enum OfLink {
    Handshake,
    /// The next attempt of 9's handshake.
    Attempt9,
    Handshake9,
    /// Which volumes the peer has.
    Volumes,
    /// A sequence number before that of a write.
    Number,
    Ping,
    /// The peer's word on a disk that is attached here.
    Attach,
    /// The peer's word on a change.
    Change,
    /// The peer's word on its disk, which has refused a write.
    Refusal,
}

impl OfLink {
    const ALL: [OfLink; 9] = {
        use OfLink::*;
        [Handshake, Attempt9, Handshake9, Volumes, Number, Ping, Attach, Change, Refusal]
    };
}

impl Resource {
    fn link_timer(&self, peer: NodeId, timer: OfLink) -> Option<Instant> {
        let c = &self.node.connections[peer];
        let running = c.link.as_ref()?.phase == Phase::Running;
        match timer {
            OfLink::Handshake => self.node.connections[peer].handshake_timer(),
            _ if !running => None,
            OfLink::Attempt9 => c.nine()?.again,
            OfLink::Handshake9 => self.handshake9_timer(peer),
            OfLink::Volumes => self.volumes_timer(peer),
            OfLink::Number => c.held.number_missing().map(|since| since + c.cfg.ping_timeout),
            OfLink::Ping => Some(self.node.connections[peer].ping_timer()),
            OfLink::Attach => self.attach_deadline(peer).map(|(limit, _)| limit),
            OfLink::Change => self.change_deadline(peer),
            OfLink::Refusal => self.refusal_deadline(peer),
        }
    }

    fn link_timer_ended(&mut self, peer: NodeId, timer: OfLink) {
        match timer {
            OfLink::Handshake => self.handshake_overdue(peer, "answer"),
            OfLink::Attempt9 => self.connect_again(peer),
            OfLink::Handshake9 => self.handshake_overdue(peer, "go on with"),
            OfLink::Volumes => self.volumes_are_known(peer),
            OfLink::Number => self.number_overdue(peer),
            OfLink::Ping => self.ping_due(peer),
            OfLink::Attach => self.attach_unanswered(peer),
            OfLink::Change => self.change_unanswered(peer),
            OfLink::Refusal => self.refusal_unexplained(peer),
        }
    }

    /// Time has passed.
    pub(crate) fn check_timers(&mut self) {
        for peer in self.node.connections.ids() {
            for timer in OfLink::ALL {
                if self.link_timer(peer, timer).is_some_and(|at| at <= self.node.now) {
                    self.link_timer_ended(peer, timer);
                    self.end_links();
                }
            }
            self.check_overdue(peer);
            self.end_links();
        }
        for volume in self.node.devices.ids() {
            self.check_disk_timeout(volume);
            self.end_links();
        }
        self.check_transaction();
        self.end_links();
        self.check_positions();
        self.end_links();
    }

    pub(crate) fn next_timer(&self) -> Option<Instant> {
        let of_link = |peer| OfLink::ALL.into_iter().filter_map(move |timer| self.link_timer(peer, timer));
        let links = self
            .node
            .connections
            .ids()
            .flat_map(|peer| of_link(peer).chain(self.node.connections[peer].overdue_timer()));
        let disks = self.node.devices.ids().filter_map(|volume| self.disk_timer(volume));
        let others = [self.epoch.barriers_due(), self.transaction_timer(), self.positions.timer(), self.next_chore()];
        links.chain(disks).chain(others.into_iter().flatten()).min()
    }
}

impl Node {
    /// Coarse, as is [`Self::overdue_timer`]: it is looked at twice per limit, and whenever time passes.
    fn disk_timer(&self, volume: VolumeNr) -> Option<Instant> {
        let dev = &self.devices[volume];
        let limit = dev.disk_timeout().filter(|_| dev.is_busy())?;
        Some(self.now + Duration(limit.0 / 2 + 1))
    }
}
