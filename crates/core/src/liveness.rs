//! Links that live or do not: fencing, pings and time-outs
//! (`docs/spec/connection-and-state.md` 4.4 to 4.7, `docs/spec/data-path-and-resync.md` 10).

use crate::Resource;
use crate::api::{ConnectionState, ConnectionState as Lost, Effect, LinkDown, Severity};
use crate::command::pending::Pending;
use crate::connection::{Connection, Phase};
use crate::decide::Handler;
use crate::decide::change::{Change, Set};
use crate::decide::fencing;
use crate::decide::state::Replication;
use crate::decide::topic::Topic;
use crate::link_end::endings::LinkEnd;
use crate::node::Node;
use crate::pings::{PingNr, PingedPeers};
use crate::request::under_way::Request;
use units::{Duration, Instant, NodeId, NodeMask, VolumeNr};
use wire::{DiskState, Packet, Socket};

impl Resource {
    /// The transport lost the streams.
    pub(crate) fn link_down(&mut self, peer: NodeId, why: LinkDown) {
        let (lost, text) = match why {
            LinkDown::Closed => (Lost::BrokenPipe, "the peer closed the connection"),
            LinkDown::Timeout => (Lost::Timeout, "nothing could be sent for too long"),
            LinkDown::Violation => (Lost::ProtocolError, "the peer sent what cannot be understood"),
        };
        let Some(link) = &self.node.connections[peer].link else { return };
        if lost == Lost::BrokenPipe && link.phase == Phase::Challenge && link.answered {
            let text = "the peer ended the connection when it had our answer to its challenge: make shared-secret equal on \
                        both nodes";
            return self.out.refuse(peer, Topic::AuthenticationRefused, text);
        }
        if lost == Lost::BrokenPipe && self.has_agreed_to_part(peer) {
            // That all have agreed comes on the one stream, and may come after the end of the other.
            return self.out.peer_has_parted(peer);
        }
        self.out.drop_link(peer, lost, Topic::LinkLost, text.to_owned());
    }

    /// The peer has proved who it is. Is it refused as there is another one already? DRBD 8.4 takes a resource for one
    /// of two nodes (`docs/spec/connection-and-state.md` 4.2): beside a peer that speaks its dialect there is no other.
    /// Who came first stays. As long as nothing was agreed with that one it may yet fail, so this one comes again.
    pub(crate) fn refuse_beside_other(&mut self, peer: NodeId) -> bool {
        let others = self.node.connections.ids().filter(|other| *other != peer && self.node.state.is_connected(*other));
        let refused = { others }.find_map(|other| Some((other, self.why_not_beside(peer, other)?)));
        let Some((other, (why, may_change))) = refused else { return false };
        let met = self.node.devices.ids().any(|volume| self.node.state.replication(other, volume) != Replication::Off);
        let name = |peer: NodeId| &self.node.connections[peer].cfg.peer_name;
        let (name, other) = (name(peer), name(other));
        if met && may_change {
            // A node that is told of the other one comes again, in DRBD 9's dialect.
            let text = format!("{name} is let in later: {other} is connected, and {why}, as yet");
            self.out.end_link(peer, LinkEnd::RetryLater, Topic::AnotherCameFirst, text);
        } else if met {
            let text = format!(
                "{name} is refused beside {other}, which is connected: {why}; disconnect {other}, then connect {name}"
            );
            self.out.give_up(peer, Topic::NotTheOnlyPeer, text);
        } else {
            let text = format!("{name} is let in later: {other} came first, and is being connected");
            self.out.end_link(peer, LinkEnd::AnotherFirst, Topic::AnotherCameFirst, text);
        }
        true
    }

    /// The wait of a refused connection is over: something has changed that may make the next try succeed.
    pub(crate) fn forget_refusals(&mut self, peer: NodeId) {
        let c = &mut self.node.connections[peer];
        let waits = std::mem::take(&mut c.refusals) > 0;
        if waits && self.node.state.connection(peer) == ConnectionState::Connecting && c.link.is_none() {
            self.out.emit(Effect::CloseLink { peer });
            self.out.emit(Effect::Connect { peer, not_before: self.node.now, accept_before: false });
        }
    }

    /// Both sides have changed data while they were apart, and no policy decides: says how much. `theirs`: blocks that
    /// the peer has changed.
    pub(crate) fn note_split_brain(&mut self, peer: NodeId, volume: VolumeNr, theirs: u64) {
        let text = format!(
            "split brain: since the nodes parted, this node has changed {} KiB of its data, the peer {} KiB",
            self.node.devices[volume].bits_left(peer).saturating_mul(4),
            theirs.saturating_mul(4)
        );
        self.out.note(Severity::Error, Some(volume), Some(peer), Topic::SplitBrain, text);
    }

    // -- fencing ------------------------------------------------------------------------------------------------------

    pub(crate) fn fence_if_due(&mut self, peer: NodeId) {
        let best = self.node.state.peers[peer].best_disk();
        if fencing::due_after_loss(self.fencing_policy(), self.node.state.is_primary(), best) {
            self.fence(peer);
        }
    }

    /// Runs `fence-peer` unless it is running already. Without a handler the result is there at once: does the peer
    /// count as fenced?
    pub(crate) fn fence(&mut self, peer: NodeId) -> Option<bool> {
        if self.node.connections[peer].fencing.is_some() {
            return None;
        }
        match fencing::before_call(&self.situation(peer)) {
            fencing::Call::Handler => {
                self.node.connections[peer].fencing = Some(self.node.connections[peer].session);
                self.out.handler(Handler::FencePeer, None, Some(peer));
                None
            }
            fencing::Call::Fenced(reason) => {
                self.out.note(Severity::Info, None, Some(peer), reason, reason.to_string());
                Some(true)
            }
            fencing::Call::NotFenced { lift, reason } => {
                self.out.note(Severity::Warning, None, Some(peer), reason, reason.to_string());
                if lift {
                    self.lift(Set::Unfenced(peer, false));
                    self.settle();
                }
                Some(false)
            }
        }
    }

    /// The handler's answer (spec 8.5).
    pub(crate) fn fence_answered(&mut self, peer: NodeId, status: i32) {
        let begun = self.node.connections[peer].fencing.take();
        let overtaken = begun != Some(self.node.connections[peer].session) || self.node.state.is_connected(peer);
        let answer =
            fencing::after_call(status, &self.situation(peer), self.node.state.peers[peer].best_disk(), overtaken);
        self.out.note(
            Severity::Info,
            None,
            Some(peer),
            answer.reason,
            format!("fence-peer exit {status}: {}", answer.reason),
        );
        for volume in self.node.devices.ids() {
            let mut change = Change::default();
            if let Some(most) = answer.peer_at_most {
                change.push(Set::PeerDisk(peer, volume, self.node.state.peer_disk(peer, volume).min(most)));
            }
            if let Some(most) = answer.own_at_most
                && self.node.state.disk(volume) > most
            {
                change.push(Set::Disk(volume, most));
            }
            self.took_place(change);
        }
        self.fencing_ended(peer, answer.fenced);
    }

    // -- pings and time-outs ------------------------------------------------------------------------------------------

    /// Sends a ping behind all that was sent on the control stream. `None`: there is no link.
    pub(crate) fn send_ping(&mut self, peer: NodeId) -> Option<PingNr> {
        self.node.connections[peer].link.as_ref()?;
        self.send_connection(peer, Socket::Control, Packet::Ping);
        Some(self.node.connections[peer].pings.send(self.node.now))
    }

    /// The same to several peers: those who are to answer.
    pub(crate) fn ping_all(&mut self, peers: NodeMask) -> PingedPeers {
        let mut pinged = PingedPeers::default();
        for peer in peers {
            self.send_ping(peer).into_iter().for_each(|ping| pinged.add(peer, ping));
        }
        pinged
    }

    pub(crate) fn ping_acked(&mut self, peer: NodeId) {
        self.node.connections[peer].pings.answer();
        self.answered_for_transaction(peer);
        self.answered_for_first_write(peer);
        self.answered_for_resync(peer);
        if self.pending.iter().any(Pending::awaits_pings) {
            self.pump_commands();
        }
    }

    pub(crate) fn ping_due(&mut self, peer: NodeId) {
        let c = &mut self.node.connections[peer];
        match c.pings.urgent() {
            None => drop(self.send_ping(peer)),
            // Something else was heard: alive (but the answer is still awaited by whoever asked).
            Some(sent) if c.last_heard > sent => c.pings.heard(),
            Some(_) => {
                let text = "no answer to a ping within ping-timeout".to_owned();
                self.out.drop_link(peer, Lost::NetworkFailure, Topic::PingTimeout, text);
            }
        }
    }

    pub(crate) fn handshake_overdue(&mut self, peer: NodeId, missing: &str) {
        let text = format!("the peer did not {missing} the handshake in time");
        self.out.drop_link(peer, Lost::Timeout, Topic::HandshakeTimeout, text);
    }

    /// The peer does not answer an attach: 8.4.11 and 9.3.3 may take no notice of one. A new handshake compares the
    /// disks anew. But not if that took away the only copy that users have.
    pub(crate) fn attach_unanswered(&mut self, peer: NodeId) {
        let Some((_, volume)) = self.attach_deadline(peer) else { return };
        if self.node.state.is_primary() {
            let text = "the peer has not said what the disk that is being attached is good for: it is detached";
            self.out.note(Severity::Error, Some(volume), Some(peer), Topic::AttachUnanswered, text.to_owned());
            return self.took_place(Set::Disk(volume, DiskState::Failed));
        }
        let text = "the peer has not said what the disk that is being attached is good for: connecting again";
        self.out.drop_link(peer, Lost::NetworkFailure, Topic::AttachUnanswered, text.to_owned());
    }

    /// Until when the peer must have answered a change that it was asked to agree to.
    pub(crate) fn change_deadline(&self, peer: NodeId) -> Option<Instant> {
        Some(self.asked_since(peer)? + self.node.connections[peer].patience_with_answers())
    }

    /// The peer answers pings, but not what it is asked to agree to. Commands wait for that, and nothing would tell a
    /// late answer from that to the next question.
    pub(crate) fn change_unanswered(&mut self, peer: NodeId) {
        let limit = self.node.connections[peer].patience_with_answers();
        let text = format!("a state change that the peer must agree to, unanswered for {} s", limit.0 / 1_000_000_000);
        self.out.drop_link(peer, Lost::Timeout, Topic::ChangeUnanswered, text);
    }

    /// A write waits for that word, and with it all that an application wants done behind it. Without the connection
    /// another generation begins, which the peer's disk does not have.
    pub(crate) fn refusal_unexplained(&mut self, peer: NodeId) {
        let limit = self.node.connections[peer].patience_with_answers().0 / 1_000_000_000;
        let text = format!("the peer has refused a write, and has not said for {limit} s that its disk is bad");
        self.out.drop_link(peer, Lost::Timeout, Topic::RefusalUnexplained, text);
    }

    /// The oldest unanswered request is too old (`ko-count` times `timeout`).
    pub(crate) fn check_overdue(&mut self, peer: NodeId) {
        let running = self.node.connections[peer].link.as_ref().is_some_and(|link| link.phase == Phase::Running);
        let Some(limit) = self.node.connections[peer].patience().filter(|_| running) else { return };
        let now = self.node.now;
        self.node.connections[peer].overdue_checked = now;
        let c = &self.node.connections[peer];
        let write_overdue = self.oldest_pending(peer).is_some_and(|at| now >= at + limit);
        let barrier_overdue = c.log.barrier_since().is_some_and(|at| now >= at + limit);
        if self.node.connections[peer].resync_deadline(limit).is_some_and(|t| now >= t) {
            let text = format!("resync requests unanswered for {} s (timeout x ko-count)", limit.0 / 1_000_000_000);
            return self.out.drop_link(peer, Lost::Timeout, Topic::ResyncTimeout, text);
        }
        if write_overdue || barrier_overdue {
            let text = format!("requests unanswered for {} s (timeout x ko-count)", limit.0 / 1_000_000_000);
            self.out.drop_link(peer, Lost::Timeout, Topic::RequestTimeout, text);
        }
    }

    fn oldest_pending(&self, peer: NodeId) -> Option<Instant> {
        let awaits = |key| matches!(self.requests.get(key), Some(Request::Write(w)) if w.legs.awaits(peer));
        let oldest = self.node.connections[peer].log.unconfirmed().find(|s| awaits(s.request));
        oldest.map(|s| s.at).into_iter().chain(self.repetitions_since(peer)).min()
    }
}

impl Node {
    /// Why two peers cannot be connected at the same time, if so; and if that may change without a change of the
    /// configuration: DRBD 9's dialect is offered to both.
    fn why_not_beside(&self, peer: NodeId, other: NodeId) -> Option<(String, bool)> {
        let both = [peer, other].map(|peer| &self.connections[peer]);
        if let Some(old) = both.into_iter().find(|c| !c.speaks9()) {
            let why = format!("{} speaks DRBD 8.4's protocol, which knows one peer", old.cfg.peer_name);
            return Some((why, both.iter().all(|c| c.cfg.max_version >= wire::Version::MIN_9.number())));
        }
        let two = both.iter().any(|c| c.cfg.two_primaries);
        two.then(|| ("with allow-two-primaries urbd speaks with one peer as yet".to_owned(), false))
    }

    fn situation(&self, peer: NodeId) -> fencing::Situation {
        fencing::Situation {
            policy: self.fencing_policy(),
            connected: self.state.is_connected(peer),
            best_disk: self.state.volumes.values().map(|v| v.disk).max().unwrap_or(DiskState::Diskless),
            handler: self.cfg.handlers.contains(&Handler::FencePeer),
        }
    }

    /// Until when the peer must have said what a disk that is attached beside it is good for: `ko-count` times
    /// `timeout`, as for a request; without `ko-count` seven times.
    pub(crate) fn attach_deadline(&self, peer: NodeId) -> Option<(Instant, VolumeNr)> {
        let mut first = None;
        for (volume, state) in self.state.volumes.iter() {
            if state.disk == DiskState::Negotiating && self.state.replicates(peer, volume) {
                let limit = self.devices[volume].disk.attached_at + self.connections[peer].patience_with_answers();
                first = [first, Some((limit, volume))].into_iter().flatten().min();
            }
        }
        first
    }

    /// Is the peer's word on a disk that is attached here awaited, for any volume?
    pub(crate) fn is_negotiating(&self) -> bool {
        self.state.volumes.values().any(|volume| volume.disk == DiskState::Negotiating)
    }

    /// Until when a peer that has refused a write must have said what its disk is worth.
    pub(crate) fn refusal_deadline(&self, peer: NodeId) -> Option<Instant> {
        let since = self.connections[peer].peer_devices.values().filter_map(|p| p.link.io.refuses).min()?;
        Some(since + self.connections[peer].patience_with_answers())
    }
}

impl Connection {
    /// Until when the peer must have taken the next step of the handshake; `None` when that is over. A kernel reads the
    /// control stream only from then on, and would take the header of an earlier ping for one of the agreed version.
    pub(crate) fn handshake_timer(&self) -> Option<Instant> {
        let link = self.link.as_ref().filter(|link| link.phase < Phase::Running)?;
        Some(link.phase_since + self.cfg.ping_timeout.times(4))
    }

    /// When a request of a resync is too old.
    pub(crate) fn resync_overdue(&self) -> Option<Instant> {
        self.resync_deadline(self.patience().filter(|_| self.link.is_some())?)
    }

    /// When it is worth looking for requests that are too old.
    pub(crate) fn overdue_timer(&self) -> Option<Instant> {
        let (limit, oldest) = self.patience().zip(self.log.oldest_since())?;
        // The front may be one that nobody waits for any more: not twice at once.
        Some((oldest + limit).max(self.overdue_checked + Duration(limit.0 / 2)))
    }

    /// How long an answer may take that no `ko-count` is about.
    fn patience_with_answers(&self) -> Duration {
        self.patience().unwrap_or(self.cfg.timeout.times(7))
    }

    fn patience(&self) -> Option<Duration> {
        let cfg = &self.cfg;
        (cfg.ko_count > 0).then(|| cfg.timeout.times(u64::from(cfg.ko_count)))
    }

    /// When the peer is to be asked whether it lives, or must have answered that.
    pub(crate) fn ping_timer(&self) -> Instant {
        self.pings.urgent().map_or(self.last_heard + self.cfg.ping_int, |sent| sent + self.cfg.ping_timeout)
    }
}
