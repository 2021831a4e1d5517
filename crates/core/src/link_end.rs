//! How a link ends (`docs/spec/connection-and-state.md` 4.4 to 4.7).
//!
//! Whoever finds that a link must end reports it, with its reason: nothing else happens then, but that nothing more is
//! sent to that peer. The end is carried out by [`Resource::end_links`] alone, which inputs, chores and commands call
//! when what they were about is over, and before the next packet of that peer. So no rule has to expect that a
//! connection vanishes while it works on it.
//!
//! Reports are made to the [`Outbox`](crate::outbox::Outbox), and kept in [`endings::Endings`].

pub(crate) mod endings;

use crate::Resource;
use crate::api::{ConnectionState, ConnectionState as Lost, Effect, Event, Severity};
use crate::connection::Phase;
use crate::decide::change::Set;
use crate::decide::topic::Named;
use crate::dialect9::survivors::loss::Survivor;
use crate::link_end::endings::{Ending, LinkEnd};
use units::{Duration, NodeId};

/// After a failed handshake the next try waits this long.
const RETRY: Duration = Duration::from_secs(1);

/// After a failed authentication the next try waits `connect-int`, twice as long each time, up to this.
const LONGEST_WAIT: Duration = Duration::from_secs(60);

impl Resource {
    /// Carries out what was reported, in that order.
    #[inline(always)]
    pub(crate) fn end_links(&mut self) {
        // It is asked after every input, and mostly nothing was reported.
        if !self.to_settle.is_empty() || !self.out.endings.is_empty() {
            self.carry_out_ends();
        }
    }

    fn carry_out_ends(&mut self) {
        self.settle();
        while let Some(ending) = self.out.endings.take() {
            let Ending { peer, end, reason, text } = ending;
            match end {
                LinkEnd::Lost(lost) => self.link_lost(peer, lost, reason, text),
                LinkEnd::RetryLater => {
                    let wait = self.node.connections[peer].cfg.connect_int;
                    self.begin_anew(peer, Lost::NetworkFailure, reason, text, (wait, false));
                }
                LinkEnd::AnotherFirst => {
                    self.begin_anew(peer, Lost::NetworkFailure, reason, text, (RETRY, false));
                }
                LinkEnd::Refused => self.link_refused(peer, reason, text),
                LinkEnd::GiveUp => self.link_given_up(peer, reason, text),
                LinkEnd::SurvivorInsists => {
                    self.link_given_up(peer, reason, text);
                    self.node.connections[peer].survivor_insists = true;
                }
                LinkEnd::CompareAnew => {
                    self.link_lost(peer, Lost::NetworkFailure, reason, text);
                    self.node.connections[peer].left_until =
                        Some(self.node.now + self.node.connections[peer].cfg.timeout);
                }
                LinkEnd::Parted => {
                    self.stand_alone(peer);
                    self.has_parted(peer);
                }
            }
            self.settle();
        }
    }

    fn link_lost(&mut self, peer: NodeId, lost: Lost, reason: Named, text: String) {
        let established = self.node.state.is_connected(peer);
        let wait = if established && lost != Lost::ProtocolError { Duration(0) } else { RETRY };
        self.begin_anew(peer, lost, reason, text, (wait, false));
    }

    fn link_refused(&mut self, peer: NodeId, reason: Named, text: String) {
        let c = &mut self.node.connections[peer];
        let is_known = c.cfg.cram_hmac.is_none() || c.link.as_ref().is_some_and(|link| link.phase >= Phase::Parameters);
        if is_known {
            return self.link_given_up(peer, reason, text);
        }
        c.refusals = c.refusals.saturating_add(1);
        let doubled = c.cfg.connect_int.times(1 << (c.refusals - 1).min(31));
        let wait = doubled.min(LONGEST_WAIT);
        let text = format!("{text}; the next try is in {} s", wait.0 / 1_000_000_000);
        self.begin_anew(peer, Lost::ProtocolError, reason, text, (wait, true));
    }

    fn link_given_up(&mut self, peer: NodeId, reason: Named, text: String) {
        if self.node.state.connection(peer) == ConnectionState::StandAlone {
            return;
        }
        let text = format!("{text}; not connecting any more");
        self.out.tell(Severity::Error, None, Some(peer), reason, Event::GaveUp, text);
        self.stand_alone(peer);
    }

    /// Ends the link, and tries again after a time; the flag says if what the peer opens is accepted meanwhile.
    fn begin_anew(&mut self, peer: NodeId, lost: Lost, reason: Named, text: String, (wait, accept): (Duration, bool)) {
        if self.node.connections[peer].link.is_none() {
            return;
        }
        self.out.note(Severity::Warning, None, Some(peer), reason, text);
        self.took_place(Set::Connection(peer, lost));
        self.clean_up(peer);
        self.took_place(Set::Connection(peer, ConnectionState::Unconnected));
        self.begin_to_connect(peer, wait, accept);
    }

    /// Disconnecting, cleaned up, StandAlone.
    fn stand_alone(&mut self, peer: NodeId) {
        self.took_place(Set::Connection(peer, ConnectionState::Disconnecting));
        self.clean_up(peer);
        self.out.emit(Effect::CloseLink { peer });
        self.took_place(Set::Connection(peer, ConnectionState::StandAlone));
        self.node.connections[peer].survivor_insists = false;
    }

    pub(crate) fn begin_to_connect(&mut self, peer: NodeId, wait: Duration, accept_before: bool) {
        self.took_place(Set::Connection(peer, ConnectionState::Connecting));
        let not_before = self.node.now + wait;
        self.out.emit(Effect::Connect { peer, not_before, accept_before });
    }

    /// What is left of a link: requests, peer writes, resync, bitmaps (spec 4.7).
    fn clean_up(&mut self, peer: NodeId) {
        let had_link = self.node.connections[peer].link.take().is_some();
        if !had_link {
            return;
        }
        self.out.emit(Effect::CloseLink { peer });
        self.node.connections[peer].session += 1;
        self.node.connections[peer].pings.lost();
        let all = self.node.connections.values_mut().flat_map(|c| c.peer_devices.values_mut());
        all.for_each(|pd| pd.resync.last_pass.link_ended(peer));
        for volume in self.node.devices.ids() {
            self.abandon_resync(peer, volume);
            let pd = &mut self.node.connections[peer].peer_devices[volume];
            pd.end_link();
            self.write_bitmap(volume);
        }
        self.drop_peer_work(peer);
        self.note_lost_writes(peer);
        self.requests_lost_peer(peer);
        // What the peer has said of another one is of the past.
        self.node.connections[peer].survivor = Survivor::default();
        self.node.connections[peer].left_until = None;
        self.close_epoch();
        if !self.node.connections.values().any(|c| c.log.owes_barrier()) {
            self.epoch.barriers_done();
        }
        self.node.connections[peer].asked_later = None;
        self.peer_gone_for_commands(peer);
        self.positions.forget(peer);
        self.answered_for_first_write(peer);
        self.fence_if_due(peer);
    }
}
