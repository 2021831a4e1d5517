//! Links that come and go: giving up, cleaning up, pings and time-outs
//! (`docs/spec/connection-and-state.md` 4.4 to 4.7, `docs/spec/data-path-and-resync.md` 10).

use crate::Resource;
use crate::api::{CommandError, ConnectionState, Effect, LinkDown, Severity};
use crate::connection::{Connection, Phase};
use crate::decide::rules84::Force;
use crate::decide::{StateChange, fencing};
use units::{Duration, Instant};
use wire::{ConnState, DiskState, Packet, Role, Socket};

/// After a failed handshake the next try waits this long.
const RETRY: Duration = Duration::from_secs(1);

impl Resource {
    /// The transport lost the streams.
    pub(crate) fn link_down(&mut self, i: usize, why: LinkDown) {
        let (conn, text) = match why {
            LinkDown::Closed => (ConnState::BrokenPipe, "the peer closed the connection"),
            LinkDown::Timeout => (ConnState::Timeout, "nothing could be sent for too long"),
            LinkDown::Violation => (ConnState::ProtocolError, "the peer sent what cannot be understood"),
        };
        if self.connections[i].link.is_some() {
            self.drop_link(i, conn, "link-lost", text.to_owned());
        }
    }

    /// The peer broke the protocol: drop the link and try again.
    pub(crate) fn protocol_error(&mut self, i: usize, reason: &'static str, text: String) {
        self.drop_link(i, ConnState::ProtocolError, reason, text);
    }

    /// Ends the link for `conn` (a state between Timeout and TearDown) and tries again.
    pub(crate) fn drop_link(&mut self, i: usize, conn: ConnState, reason: &'static str, text: String) {
        if self.connections[i].link.is_none() {
            return;
        }
        let established = self.connections[i].is_connected();
        self.note(Severity::Warning, None, Some(i), reason, text);
        let change = StateChange { conn: Some(conn), ..StateChange::default() };
        let _ = self.change_all(&change, Force::Hard);
        self.clean_up(i);
        let change = StateChange { conn: Some(ConnState::Unconnected), ..StateChange::default() };
        let _ = self.change_all(&change, Force::Hard);
        let wait = if established && conn != ConnState::ProtocolError { Duration(0) } else { RETRY };
        self.start_connecting(i, wait);
    }

    /// The peer is not acceptable: StandAlone until the administrator says otherwise.
    pub(crate) fn give_up(&mut self, i: usize, reason: &'static str, text: String) {
        if self.connections[i].state == ConnectionState::StandAlone {
            return;
        }
        self.note(Severity::Error, None, Some(i), reason, format!("{text}; not connecting any more"));
        self.stand_alone(i);
    }

    /// Disconnecting, cleaned up, StandAlone.
    pub(crate) fn stand_alone(&mut self, i: usize) {
        let change = StateChange { conn: Some(ConnState::Disconnecting), ..StateChange::default() };
        let _ = self.change_all(&change, Force::Hard);
        self.clean_up(i);
        let peer = self.connections[i].cfg.peer;
        self.emit(Effect::CloseLink { peer });
        let change = StateChange { conn: Some(ConnState::StandAlone), ..StateChange::default() };
        let _ = self.change_all(&change, Force::Hard);
        self.connections[i].discard_my_data = false;
        self.connections[i].tentative = false;
    }

    pub(crate) fn start_connecting(&mut self, i: usize, wait: Duration) {
        let change = StateChange { conn: Some(ConnState::WFConnection), ..StateChange::default() };
        let _ = self.change_all(&change, Force::Hard);
        let peer = self.connections[i].cfg.peer;
        let not_before = self.now + wait;
        self.emit(Effect::Connect { peer, not_before });
    }

    /// What is left of a link: requests, peer writes, resync, bitmaps (spec 4.7).
    fn clean_up(&mut self, i: usize) {
        let had_link = self.connections[i].link.take().is_some();
        if !had_link {
            return;
        }
        let peer = self.connections[i].cfg.peer;
        self.emit(Effect::CloseLink { peer });
        self.connections[i].session += 1;
        self.connections[i].ping_sent = None;
        self.connections[i].pings_out = 0;
        for d in 0..self.devices.len() {
            self.abandon_resync(i, d);
            let pd = &mut self.connections[i].peer_devices[d];
            pd.uuids = None;
            pd.sizes = None;
            pd.answers_may_come = false;
            pd.refused_writes = false;
            pd.forget_resync_to_come();
            self.write_bitmap(d);
        }
        self.drop_peer_work(i);
        self.requests_lost_peer(i);
        self.close_epoch();
        self.barriers_due = None;
        self.connections[i].asked = None;
        self.connections[i].asked_later = None;
        self.peer_gone_for_commands(i);
        self.fence_if_due(i);
    }

    // -- fencing ------------------------------------------------------------------------------------------------------

    fn situation(&self, i: usize) -> fencing::Situation {
        fencing::Situation {
            policy: self.fencing_policy(),
            connected: self.connections[i].is_connected(),
            best_disk: self.devices.iter().map(|d| d.disk).max().unwrap_or(DiskState::Diskless),
            handler: self.cfg.fence_handler,
        }
    }

    fn fence_if_due(&mut self, i: usize) {
        let worst = self.connections[i].peer_devices.iter().map(|p| p.pdsk).max().unwrap_or(DiskState::DUnknown);
        if fencing::due_after_loss(self.fencing_policy(), self.role == Role::Primary, worst) {
            self.fence(i);
        }
    }

    /// Runs `fence-peer` unless it is running already.
    pub(crate) fn fence(&mut self, i: usize) {
        if self.connections[i].fencing {
            return;
        }
        match fencing::before_call(&self.situation(i)) {
            fencing::Call::Handler => {
                self.connections[i].fencing = true;
                self.connections[i].fencing_session = self.connections[i].session;
                self.handler("fence-peer", None, Some(i));
            }
            fencing::Call::Fenced(reason) => {
                self.note(Severity::Info, None, Some(i), reason.name(), reason.to_string());
                self.fencing_ended(i, true);
            }
            fencing::Call::NotFenced { lift, reason } => {
                self.note(Severity::Warning, None, Some(i), reason.name(), reason.to_string());
                if lift {
                    self.lift(|s| s.fencing = false);
                }
                self.fencing_ended(i, false);
            }
        }
    }

    /// The handler's answer (spec 8.5).
    pub(crate) fn fence_answered(&mut self, i: usize, status: i32) {
        self.connections[i].fencing = false;
        let overtaken =
            self.connections[i].session != self.connections[i].fencing_session || self.connections[i].is_connected();
        let best_peer = self.connections[i].peer_devices.iter().map(|p| p.pdsk).max().unwrap_or(DiskState::DUnknown);
        let answer = fencing::after_call(status, &self.situation(i), best_peer, overtaken);
        self.note(
            Severity::Info,
            None,
            Some(i),
            answer.reason.name(),
            format!("fence-peer exit {status}: {}", answer.reason),
        );
        for d in 0..self.devices.len() {
            let mut change = StateChange::default();
            if let Some(most) = answer.peer_at_most {
                change.pdsk = Some(self.connections[i].peer_devices[d].pdsk.min(most));
            }
            if let Some(most) = answer.own_at_most
                && self.devices[d].disk > most
            {
                change.disk = Some(most);
            }
            let _ = self.change(d, &change, Force::Hard);
        }
        self.fencing_ended(i, answer.fenced);
    }

    // -- pings and time-outs ------------------------------------------------------------------------------------------

    pub(crate) fn send_ping(&mut self, i: usize) {
        if self.connections[i].link.is_some() {
            self.send_connection(i, Socket::Control, Packet::Ping);
            self.connections[i].ping_sent = Some(self.now);
            self.connections[i].pings_out += 1;
        }
    }

    pub(crate) fn ping_acked(&mut self, i: usize) {
        self.connections[i].ping_sent = None;
        self.connections[i].pings_out = self.connections[i].pings_out.saturating_sub(1);
        self.ping_answered(i);
        self.ping_answered_for_commands(i);
    }

    pub(crate) fn check_timers(&mut self) {
        for i in 0..self.connections.len() {
            self.check_link(i);
        }
        for d in 0..self.devices.len() {
            self.check_disk_timeout(d);
        }
    }

    fn check_link(&mut self, i: usize) {
        let now = self.now;
        let c = &self.connections[i];
        let Some(link) = &c.link else { return };
        if link.phase < Phase::Parameters && now >= link.phase_since + times(c.cfg.ping_timeout, 4) {
            let text = "the peer did not answer the handshake in time".to_owned();
            return self.drop_link(i, ConnState::Timeout, "handshake-timeout", text);
        }
        if self.number_is_overdue(i) {
            let text = "a sequence number before that of a write did not come within ping-timeout".to_owned();
            return self.protocol_error(i, "missing-number", text);
        }
        if let Some(sent) = c.ping_sent {
            if now >= sent + c.cfg.ping_timeout && c.last_heard <= sent {
                let text = "no answer to a ping within ping-timeout".to_owned();
                return self.drop_link(i, ConnState::NetworkFailure, "ping-timeout", text);
            }
            if c.last_heard > sent && now >= sent + c.cfg.ping_timeout {
                // Something else was heard: alive (but the answer is still awaited by whoever asked).
                self.connections[i].ping_sent = None;
            }
        } else if now >= c.last_heard + c.cfg.ping_int {
            self.send_ping(i);
        }
        self.check_overdue(i);
    }

    /// The oldest unanswered request is too old (`ko-count` times `timeout`).
    fn check_overdue(&mut self, i: usize) {
        let Some(limit) = self.patience(i) else { return };
        let now = self.now;
        let c = &self.connections[i];
        if now < c.established_at + limit {
            return;
        }
        self.connections[i].overdue_checked = now;
        let c = &self.connections[i];
        let write_overdue = self.oldest_pending(i).is_some_and(|at| now >= at + limit);
        let barrier_overdue = c.barriers.front().is_some_and(|(_, at)| now >= *at + limit);
        if self.resync_deadline(i, limit).is_some_and(|t| now >= t) {
            let text = format!("resync requests unanswered for {} s (timeout x ko-count)", limit.0 / 1_000_000_000);
            return self.drop_link(i, ConnState::Timeout, "resync-timeout", text);
        }
        if write_overdue || barrier_overdue {
            let text = format!("requests unanswered for {} s (timeout x ko-count)", limit.0 / 1_000_000_000);
            self.drop_link(i, ConnState::Timeout, "request-timeout", text);
        }
    }

    fn patience(&self, i: usize) -> Option<Duration> {
        let cfg = &self.connections[i].cfg;
        (cfg.ko_count > 0).then(|| times(cfg.timeout, u64::from(cfg.ko_count)))
    }

    fn oldest_pending(&self, i: usize) -> Option<Instant> {
        let oldest = self.connections[i].log.iter().find(|s| {
            matches!(self.requests.get(s.request), Some(crate::request::Request::Write(w)) if w.pending >> i & 1 == 1)
        });
        oldest.map(|s| s.at)
    }

    /// What is looked after at the end of a turn, and goes on by time.
    fn timers_of_others(&self) -> Option<Instant> {
        let connection = |(i, c): (usize, &Connection)| {
            let limit = self.patience(i).filter(|_| c.link.is_some());
            let deadline =
                limit.and_then(|limit| self.resync_deadline(i, limit).map(|t| t.max(c.established_at + limit)));
            [self.resync_timer(i), self.congestion_timer(i), self.repair_timer(i), deadline].into_iter().flatten().min()
        };
        let connections = self.connections.iter().enumerate().filter_map(connection);
        connections.chain(self.command_timer()).min()
    }

    pub(crate) fn next_timer(&self) -> Option<Instant> {
        let mut next: Option<Instant> = None;
        let mut at = |t: Option<Instant>| {
            if let Some(t) = t {
                next = Some(next.map_or(t, |n| n.min(t)));
            }
        };
        for (i, c) in self.connections.iter().enumerate() {
            let Some(link) = &c.link else { continue };
            if link.phase < Phase::Parameters {
                at(Some(link.phase_since + times(c.cfg.ping_timeout, 4)));
            }
            at(c.number_missing.map(|since| since + c.cfg.ping_timeout));
            at(Some(c.ping_sent.map_or(c.last_heard + c.cfg.ping_int, |s| s + c.cfg.ping_timeout)));
            if let (Some(limit), Some(front)) = (self.patience(i), c.log.front()) {
                // The front may be one that nobody waits for any more: not twice at once.
                let again = c.overdue_checked + Duration(limit.0 / 2);
                at(Some((front.at + limit).max(c.established_at + limit).max(again)));
            }
        }
        for dev in &self.devices {
            if let (Some(limit), true) = (dev.disk_timeout(), dev.is_busy()) {
                // Coarse: looked at twice per limit.
                at(Some(self.now + Duration(limit.0 / 2 + 1)));
            }
        }
        at(self.barriers_due);
        if !self.calm || self.doubts_calm {
            let others = self.timers_of_others();
            debug_assert!(!self.calm || others.is_none(), "a calm resource waits for {others:?}");
            at(others);
        }
        next
    }
}

fn times(d: Duration, n: u64) -> Duration {
    Duration(d.0.saturating_mul(n))
}

pub(crate) fn failure(code: i32, text: impl Into<String>) -> CommandError {
    CommandError { code, text: text.into() }
}
