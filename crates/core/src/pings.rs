//! P_PING and P_PING_ACK of one connection, by number (`docs/spec/connection-and-state.md` 10).
//!
//! A peer answers pings in their order. The answer to one shows what the peer has seen up to it, and nothing of what
//! came later: who waits, waits for the answer to its own ping.

use units::{Instant, NodeId};

/// A ping of this node to one peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct PingNr(u64);

/// Those that were sent to one peer, and how many of them it has answered.
#[derive(Debug, Default)]
pub(crate) struct Pings {
    sent: u64,
    answered: u64,
    /// When the ping was sent that the peer is to answer within ping-timeout.
    urgent: Option<Instant>,
}

impl Pings {
    /// One more is sent.
    pub(crate) fn send(&mut self, now: Instant) -> PingNr {
        self.sent += 1;
        self.urgent = Some(now);
        PingNr(self.sent)
    }

    /// The peer has answered the oldest one. Answers to none count for nothing.
    pub(crate) fn answer(&mut self) {
        self.urgent = None;
        self.answered = self.sent.min(self.answered + 1);
    }

    pub(crate) fn latest(&self) -> PingNr {
        PingNr(self.sent)
    }

    pub(crate) fn has_answered(&self, ping: PingNr) -> bool {
        self.answered >= ping.0
    }

    /// The link is gone: no answer can come any more.
    pub(crate) fn lost(&mut self) {
        self.urgent = None;
        self.answered = self.sent;
    }

    /// When the ping was sent that is to be answered in time, if one is.
    pub(crate) fn urgent(&self) -> Option<Instant> {
        self.urgent
    }

    /// Something else was heard of the peer: it is alive.
    pub(crate) fn heard(&mut self) {
        self.urgent = None;
    }
}

/// One ping to each of several peers.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(crate) struct PingedPeers(Vec<(NodeId, PingNr)>);

impl PingedPeers {
    pub(crate) fn add(&mut self, peer: NodeId, ping: PingNr) {
        self.0.push((peer, ping));
    }

    /// The peer has answered one, or is gone.
    pub(crate) fn settle(&mut self, peer: NodeId, answered: impl Fn(PingNr) -> bool) {
        self.0.retain(|(to, ping)| *to != peer || !answered(*ping));
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_answer_to_an_earlier_ping_is_not_the_answer_to_a_later_one() {
        let mut pings = Pings::default();
        let (first, second) = (pings.send(Instant(1)), pings.send(Instant(2)));
        pings.answer();
        assert!(pings.has_answered(first) && !pings.has_answered(second));
        pings.answer();
        assert!(pings.has_answered(second));
    }

    #[test]
    fn answers_that_nothing_asked_for_count_for_nothing() {
        let mut pings = Pings::default();
        pings.answer();
        let ping = pings.send(Instant(1));
        assert!(!pings.has_answered(ping));
    }

    #[test]
    fn the_next_link_answers_none_of_the_last_one() {
        let mut pings = Pings::default();
        let old = pings.send(Instant(1));
        pings.lost();
        let ping = pings.send(Instant(2));
        assert!(pings.has_answered(old) && !pings.has_answered(ping));
        assert_eq!(pings.urgent(), Some(Instant(2)));
    }
}
