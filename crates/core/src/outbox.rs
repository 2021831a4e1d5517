//! What is to be said and done: effects, notices, handlers, and links that must end.
//!
//! Whoever acts adds to it. Nobody reads it back but `resource.rs`, which hands the effects out, and who ends links and
//! does chores.

use crate::api::{ConnectionState as Lost, Effect, HandlerCall, Notice, Segments};
use crate::decide::topic::{Named, Topic};
use crate::decide::{Handler, Reason};
use crate::housekeeping::chores::Chores;
use crate::link_end::endings::{Ending, Endings, LinkEnd};
use crate::notice::{Event, Severity};
use std::collections::{BTreeMap, VecDeque};
use units::{Instant, NodeId, VolumeNr};

/// How many decisions `why` remembers.
const REMEMBERED: usize = 64;

/// What a resource wants said and done.
#[derive(Debug)]
pub(crate) struct Outbox {
    /// When that is, as [`crate::node::Node`] has it.
    pub(crate) now: Instant,
    /// In the order in which they are to be carried out.
    pub(crate) effects: VecDeque<Effect>,
    /// Links that must end.
    pub(crate) endings: Endings,
    pub(crate) status_changed: bool,
    pub(crate) chores: Chores,
    /// The last ones, for `why`.
    pub(crate) decisions: VecDeque<(Instant, Notice)>,
    /// Those that run.
    pub(crate) handlers: BTreeMap<u64, HandlerCall>,
    next_handler: u64,
}

impl Outbox {
    pub(crate) fn new() -> Outbox {
        Outbox {
            now: Instant(0),
            effects: VecDeque::new(),
            endings: Endings::default(),
            status_changed: true,
            chores: Chores::default(),
            decisions: VecDeque::new(),
            handlers: BTreeMap::new(),
            next_handler: 0,
        }
    }

    pub(crate) fn emit(&mut self, effect: Effect) {
        self.effects.push_back(effect);
    }

    pub(crate) fn release(&mut self, data: Segments) {
        if data != Segments::None {
            self.emit(Effect::Release(data));
        }
    }

    /// Has a handler called; returns the number that its end will have.
    pub(crate) fn handler(&mut self, event: Handler, volume: Option<VolumeNr>, peer: Option<NodeId>) -> u64 {
        self.next_handler += 1;
        let call = HandlerCall { event, volume, peer };
        self.handlers.insert(self.next_handler, call.clone());
        self.emit(Effect::RunHandler { id: self.next_handler, call });
        self.next_handler
    }

    /// Tells people something that its reason names.
    pub(crate) fn note(
        &mut self,
        severity: Severity,
        volume: Option<VolumeNr>,
        peer: Option<NodeId>,
        reason: impl Into<Named>,
        text: impl Into<String>,
    ) {
        self.tell(severity, volume, peer, reason, Event::Other, text.into());
    }

    /// Tells people and programs.
    pub(crate) fn tell(
        &mut self,
        severity: Severity,
        volume: Option<VolumeNr>,
        peer: Option<NodeId>,
        reason: impl Into<Named>,
        event: Event,
        text: String,
    ) {
        self.chores.mark();
        let notice = Notice { severity, volume, peer, reason: reason.into().name(), text, event };
        if self.decisions.len() == REMEMBERED {
            self.decisions.pop_front();
        }
        self.decisions.push_back((self.now, notice.clone()));
        self.emit(Effect::Log(Box::new(notice)));
    }

    // -- links that must end -----------------------------------------------------------------------------------------

    /// Reports that the link to a peer must end.
    pub(crate) fn end_link(&mut self, peer: NodeId, end: LinkEnd, reason: impl Into<Named>, text: String) {
        self.endings.report(Ending { peer, end, reason: reason.into(), text });
    }

    /// The peer broke the protocol: drop the link and try again.
    pub(crate) fn protocol_error(&mut self, peer: NodeId, reason: impl Into<Named>, text: String) {
        self.drop_link(peer, Lost::ProtocolError, reason, text);
    }

    /// Ends the link for `lost` (a state between Timeout and TearDown) and tries again.
    pub(crate) fn drop_link(&mut self, peer: NodeId, lost: Lost, reason: impl Into<Named>, text: String) {
        self.end_link(peer, LinkEnd::Lost(lost), reason, text);
    }

    /// The nodes cannot agree at present (`rr-conflict retry-connect`): they try again after `connect-int`. Each try
    /// calls handlers.
    pub(crate) fn retry_later(&mut self, peer: NodeId, reason: impl Into<Named>, text: String) {
        self.end_link(peer, LinkEnd::RetryLater, reason, text);
    }

    /// What is at the other end is not acceptable. If it has shown that it is the peer: StandAlone until the
    /// administrator says otherwise. If it has not, it may be anybody who can reach our port: only this link ends. The
    /// peer itself is let in at any time, and sought again after `connect-int`, then after twice that, and so on.
    pub(crate) fn refuse(&mut self, peer: NodeId, reason: impl Into<Named>, text: &str) {
        self.end_link(peer, LinkEnd::Refused, reason, text.to_owned());
    }

    /// The peer is not acceptable: StandAlone until the administrator says otherwise.
    pub(crate) fn give_up(&mut self, peer: NodeId, reason: impl Into<Named>, text: String) {
        self.end_link(peer, LinkEnd::GiveUp, reason, text);
    }

    /// The nodes cannot be connected for this reason: they go on trying if it may pass, else StandAlone.
    pub(crate) fn refuse_peer(&mut self, peer: NodeId, reason: Reason) {
        let end = if reason.may_pass() { LinkEnd::RetryLater } else { LinkEnd::GiveUp };
        self.end_link(peer, end, reason, reason.to_string());
    }

    /// This node ends the connection, and the two compare in a handshake. It has not lost the peer by that.
    pub(crate) fn compare_anew(&mut self, peer: NodeId, reason: impl Into<Named>, text: String) {
        self.end_link(peer, LinkEnd::CompareAnew, reason, text);
    }

    /// The two part by leave, or by the administrator's word: StandAlone.
    pub(crate) fn part(&mut self, peer: NodeId) {
        self.end_link(peer, LinkEnd::Parted, Topic::Parted, String::new());
    }

    /// The peer has disconnected, and this node has agreed to that.
    pub(crate) fn peer_has_parted(&mut self, peer: NodeId) {
        self.drop_link(peer, Lost::TearDown, Topic::PeerDisconnected, "the peer disconnected".to_owned());
    }

    /// When the peer connects again, it knows what was refused.
    pub(crate) fn connect_for_peers_writes(&mut self, peer: NodeId) {
        let text = "this disk lacks writes of the peer: connecting again".to_owned();
        self.drop_link(peer, Lost::NetworkFailure, Topic::DiskLacksPeersWrites, text);
    }

    /// The peer has decided otherwise than this node.
    pub(crate) fn decides_otherwise(&mut self, peer: NodeId) {
        let text = "the peer has come to another conclusion than this node: connecting anew".to_owned();
        self.compare_anew(peer, Topic::PeerDecidesOtherwise, text);
    }
}
