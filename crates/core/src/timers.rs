//! What time brings: the table of timers, each with when it is due and what is done then.
//!
//! When one is due follows from the state as it is, so that none has to be set or stopped. Those of chores are in
//! [`crate::housekeeping`]: the end of the turn does what is due.

use crate::Resource;
use crate::connection::{Connection, Phase};
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
            /// The first of them. Each is asked for by its name, and not in a loop: every turn asks for all, of which
            /// mostly one is set.
            fn first_of_link(&self, i: NodeId, c: &Connection) -> Instant {
                NEVER$(.min(self.link_timer(i, c, OfLink::$name).unwrap_or(NEVER)))*
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
    #[inline(always)]
    fn link_timer(&self, i: NodeId, c: &Connection, timer: OfLink) -> Option<Instant> {
        let running = c.link.as_ref()?.phase == Phase::Running;
        match timer {
            OfLink::Handshake => c.handshake_timer(),
            _ if !running => None,
            OfLink::Attempt9 => c.nine()?.again,
            OfLink::Handshake9 => self.handshake9_timer(i),
            OfLink::Volumes => self.volumes_timer(i),
            OfLink::Number => c.held.number_missing().map(|since| since + c.cfg.ping_timeout),
            OfLink::Ping => Some(c.ping_timer()),
            OfLink::Attach => self.attach_deadline(i).map(|(limit, _)| limit),
            OfLink::Change => self.change_deadline(i),
            OfLink::Refusal => self.refusal_deadline(i),
        }
    }

    fn link_timer_ended(&mut self, i: NodeId, timer: OfLink) {
        match timer {
            OfLink::Handshake => self.handshake_overdue(i),
            OfLink::Attempt9 => self.connect_again(i),
            OfLink::Handshake9 => self.handshake9_overdue(i),
            OfLink::Volumes => self.volumes_are_known(i),
            OfLink::Number => self.number_overdue(i),
            OfLink::Ping => self.ping_due(i),
            OfLink::Attach => self.attach_unanswered(i),
            OfLink::Change => self.change_unanswered(i),
            OfLink::Refusal => self.refusal_unexplained(i),
        }
    }

    /// Time has passed.
    pub(crate) fn check_timers(&mut self) {
        for i in self.node.connections.ids() {
            for timer in OfLink::ALL.iter().copied() {
                if self.link_timer(i, &self.node.connections[i], timer).is_some_and(|at| at <= self.node.now) {
                    self.link_timer_ended(i, timer);
                    self.end_links();
                }
            }
            self.check_overdue(i);
            self.end_links();
        }
        for d in self.node.devices.ids() {
            self.check_disk_timeout(d);
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
        for (i, c) in self.node.connections.iter() {
            note(Some(self.first_of_link(i, c)));
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

impl Node {
    /// Coarse, as is [`Self::overdue_timer`]: it is looked at twice per limit, and whenever time passes.
    fn disk_timer(&self, dev: &Device) -> Option<Instant> {
        let limit = dev.disk_timeout().filter(|_| dev.is_busy())?;
        Some(self.now + Duration(limit.0 / 2 + 1))
    }
}
