//! An error needs a reason: a request may fail only if since it came its node reached no good copy for a moment, its
//! own flush failed, or the node was no Primary (S11 of `docs/spec/connection-and-state.md` B).

use crate::apps::is_durable;
use crate::cluster::{Cluster, Request, Work};
use crate::oracle::Moment;
use urbd_core::decide::quorum::Standing;
use urbd_core::decide::view::View;
use urbd_core::{IoError, OnNoQuorum, RequestKind};
use wire::{ConnState, DiskState, Role, StateWord};

/// Discards and writes of zeroes can be sent from this protocol on.
const DISCARDS: u32 = 95;

/// When something last was a reason for errors of a volume's requests on a node; 0: never.
#[derive(Clone, Debug, Default)]
pub(crate) struct Reach {
    /// What the node last said of its role, its disk, and by peer, of the connection and the peer's disk.
    primary: bool,
    own: bool,
    connected: Vec<bool>,
    peers: Vec<bool>,
    /// And what it may do by its votes.
    standing: Standing,
    /// No copy was good.
    none: Moment,
    /// This node's copy was not good.
    no_own: Moment,
    /// No peer's was, or was in reach.
    no_peers: Moment,
    /// This node's disk has failed an operation.
    erred: Moment,
    /// It has failed a flush.
    unflushed: Moment,
    /// It has failed a discard, or a write of zeroes: that is told, and no reason to give it up.
    undiscarded: Moment,
    /// The node was no Primary.
    secondary: Moment,
    /// It had no quorum.
    quorumless: Moment,
}

impl Reach {
    pub(crate) fn new(nodes: usize) -> Reach {
        Reach { connected: vec![false; nodes], peers: vec![false; nodes], ..Reach::default() }
    }

    /// Has this node's disk failed an operation since then?
    pub(crate) fn has_erred_since(&self, moment: Moment) -> bool {
        self.erred >= moment
    }

    /// The node is in this state now, and towards each of these peers.
    pub(crate) fn note_words(&mut self, words: impl Iterator<Item = (usize, StateWord)>, now: Moment) {
        for (peer, word) in words {
            self.primary = word.role == Role::Primary;
            self.own = word.disk == DiskState::UpToDate;
            self.connected[peer] = word.conn >= ConnState::Connected;
            self.peers[peer] = word.pdsk == DiskState::UpToDate;
        }
        self.note(now);
    }

    /// The node says that its state changes, perhaps for a part of a turn: its own, or towards this peer.
    pub(crate) fn note_change(&mut self, peer: Option<usize>, old: &View, new: &View, now: Moment) {
        if new.role != old.role {
            self.primary = new.role == Role::Primary;
        }
        self.standing = new.standing;
        if new.disk != old.disk {
            self.own = new.disk == DiskState::UpToDate;
        }
        for of in (0..self.peers.len()).filter(|of| peer.is_none_or(|peer| peer == *of)) {
            if new.peer_disk != old.peer_disk {
                self.peers[of] = new.peer_disk == DiskState::UpToDate;
            }
            if (new.connection, new.replication) != (old.connection, old.replication) {
                self.connected[of] = new.is_together();
            }
        }
        self.note(now);
    }

    /// It is so at this moment.
    pub(crate) fn note(&mut self, now: Moment) {
        let note = |last: &mut Moment, is: bool| {
            if is {
                *last = now;
            }
        };
        let peers = self.connected.iter().zip(&self.peers).any(|(connected, good)| *connected && *good);
        note(&mut self.none, !self.own && !peers);
        note(&mut self.no_own, !self.own);
        note(&mut self.no_peers, !peers);
        note(&mut self.secondary, !self.primary);
        note(&mut self.quorumless, !self.standing.is_quorate());
    }
}

impl Cluster {
    /// A disk operation has failed.
    pub(crate) fn note_disk_error(&mut self, n: usize, v: usize, work: &Work) {
        let reach = &mut self.nodes[n].volumes[v].reach;
        reach.erred = self.moment;
        match work {
            Work::Flush | Work::MetaWrite { flush: true, .. } => reach.unflushed = self.moment,
            Work::Zero(..) => reach.undiscarded = self.moment,
            _ => {}
        }
    }

    /// A request has failed: why?
    pub(crate) fn check_reason(
        &mut self,
        n: usize,
        request: &Request,
        words: &[(usize, StateWord)],
        error: IoError,
    ) -> Result<(), String> {
        let (v, came) = (request.volume, request.written.issued);
        self.nodes[n].volumes[v].reach.note_words(words.iter().copied(), self.moment);
        let own = &self.nodes[n].volumes[v].reach;
        // A peer that has left, which this node has not noticed yet, is as good as none.
        let of = |peer: usize| {
            let reach = &self.nodes[peer].volumes[v].reach;
            let left = self.nodes.len() > 2 && !self.peer_listens(n, peer);
            if left { self.moment } else { reach.no_own.max(reach.erred) }
        };
        let peers = self.peers(n).map(of).min().unwrap_or_default();
        let zeroes = matches!(request.kind, RequestKind::Discard | RequestKind::WriteZeroes { .. });
        // An older peer cannot be told of them: whoever asks writes zeroes instead.
        let too_old = self.setup.versions.iter().any(|version| *version < DISCARDS);
        if zeroes && too_old && error == IoError::NotSupported {
            return Ok(());
        }
        let is_write = crate::apps::is_write(request.kind);
        let flushed = request.kind == RequestKind::Flush || is_durable(request.kind);
        let reasons = [
            own.none,
            own.secondary,
            if self.setup.extras.quorum().without() == OnNoQuorum::IoError { own.quorumless } else { 0 },
            // A disk that fails an operation may stay in service (`on-io-error pass_on`), and a refusal may overtake
            // the peer's word that it has given up its disk.
            own.erred.min(own.no_peers),
            own.no_own.max(own.erred).min(peers),
            if flushed { own.unflushed.max(own.no_own) } else { 0 },
            // It was sent to the copy that was good then, and the other one has become good as that was lost.
            if is_write { own.no_own.min(own.no_peers) } else { 0 },
            if zeroes { own.undiscarded } else { 0 },
            // Among several peers a Primary without a disk reads theirs, and does not write (`docs/compatibility.md`).
            if self.nodes.len() > 2 && is_write { own.no_own } else { 0 },
        ];
        if reasons.iter().any(|at| *at >= came) {
            return Ok(());
        }
        Err(format!(
            "{:?} of volume {v} failed ({error:?}) although a good copy was in reach all the time: {words:?}",
            request.kind
        ))
    }
}
