//! What time brings: the table of timers, each with when it is due and what is done then.
//!
//! When one is due follows from the state as it is, so that none has to be set or stopped. Those of chores are in
//! [`crate::housekeeping`]: the end of the turn does what is due.

use crate::Resource;
use crate::connection::{Connection, Link, Phase, Spoken};
use crate::device::Device;
use crate::node::Node;
use units::{Duration, Instant, NodeId};

macro_rules! timers_of_links {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// Of a link.
        #[derive(Clone, Copy, Debug)]
        enum OfLink {
            $($(#[$doc])* $name,)*
        }

        impl OfLink {
            const ALL: &'static [OfLink] = &[$(OfLink::$name),*];
        }

        impl Resource {
            /// The first of them, of a link of which something beside the ping is awaited.
            #[cold]
            fn first_of_link(&self, c: &Connection) -> Instant {
                NEVER$(.min(self.link_timer(c.cfg.peer, c, OfLink::$name).unwrap_or(NEVER)))*
            }
        }
    };
}

timers_of_links! {
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

/// No time that comes.
const NEVER: Instant = Instant(u64::MAX);

impl Resource {
    fn link_timer(&self, peer: NodeId, c: &Connection, timer: OfLink) -> Option<Instant> {
        let running = c.link.as_ref()?.phase == Phase::Running;
        match timer {
            OfLink::Handshake => c.handshake_timer(),
            _ if !running => None,
            OfLink::Attempt9 => c.nine()?.again,
            OfLink::Handshake9 => self.handshake9_timer(peer),
            OfLink::Volumes => self.volumes_timer(peer, c),
            OfLink::Number => c.held.number_missing().map(|since| since + c.cfg.ping_timeout),
            OfLink::Ping => Some(c.ping_timer()),
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
            for timer in OfLink::ALL.iter().copied() {
                if self.link_timer(peer, &self.node.connections[peer], timer).is_some_and(|at| at <= self.node.now) {
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
        let mut first = NEVER;
        let mut note = |at: Option<Instant>| first = first.min(at.unwrap_or(NEVER));
        // Each turn asks, and mostly for links of which nothing but the next ping is due.
        let awaited = self.waits_for_comparison() || !self.transaction.is_free() || self.node.is_negotiating();
        for c in self.node.connections.values() {
            let only_ping = !awaited && c.awaits_only_ping();
            note(if only_ping { Some(c.ping_timer()) } else { Some(self.first_of_link(c)) });
            debug_assert!(!only_ping || self.first_of_link(c) == c.ping_timer(), "another timer than the ping is set");
            note(c.overdue_timer());
        }
        for dev in self.node.devices.values() {
            note(self.node.disk_timer(dev));
        }
        note(self.epoch.barriers_due());
        note(self.transaction_timer());
        note(self.positions.timer());
        note(self.next_chore());
        (first != NEVER).then_some(first)
    }
}

impl Connection {
    /// Is the ping the only timer of a link of 8.4's dialect, unless the node itself waits for something?
    fn awaits_only_ping(&self) -> bool {
        let runs84 = |link: &Link| link.phase == Phase::Running && matches!(link.spoken, Spoken::Of84(_));
        self.link.as_ref().is_some_and(runs84)
            && self.held.number_missing().is_none()
            && self.peer_devices.values().all(|pd| pd.link.io.refuses.is_none())
    }
}

impl Node {
    /// Coarse, as is [`Self::overdue_timer`]: it is looked at twice per limit, and whenever time passes.
    fn disk_timer(&self, dev: &Device) -> Option<Instant> {
        let limit = dev.disk_timeout().filter(|_| dev.is_busy())?;
        Some(self.now + Duration(limit.0 / 2 + 1))
    }
}
