//! What the peer has of what was acknowledged, by protocol (`docs/spec/data-path-and-resync.md` 1.1): C: all of it, on
//! its disk. B: all of it, as long as its process and machine live; what its disk has not got by then was in the
//! process alone. A: what was acknowledged before the last barrier that it has answered.

use crate::cluster::{Cluster, Request, Volume};
use crate::epochs::Early;
use crate::net::Wish;
use crate::oracle::{Moment, View, Written};
use crate::payload::{Payload, ZEROES};
use urbd_core::Protocol;
use urbd_core::decide::uuid9::Strategy;
use wire::{ConnState, DiskState, StateWord};

/// A write that was acknowledged as the other node had received it, not written.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Received {
    /// How many were acknowledged on its node by then.
    pub(crate) count: u64,
    /// Whose application's.
    pub(crate) by: usize,
    pub(crate) written: Written,
}

/// Is this the reason of a comparison after which a person, or a policy, chooses whose writes are lost? A policy that
/// only lets go of a side without changes loses none.
pub(crate) fn chooses_a_victim(reason: &str) -> bool {
    let reasons = [
        "younger-primary-lost",
        "older-primary-lost",
        "fewer-changes-lost",
        "tie-broken",
        "local-lost",
        "remote-lost",
        "secondary-lost",
        "discard-my-data",
        "primary-overwritten",
    ];
    reasons.contains(&reason)
}

/// Does a notice say that this node crashed as Primary, and that the peer, which has lost only the link, is the source?
/// Before protocol 121 9's dialect decides so with protocols A, B, too (`docs/spec/connection-and-state.md` 5.8, rows
/// A10 and A11): what was completed need not be there.
pub(crate) fn is_outlived(reason: &str, strategy: Strategy) -> bool {
    matches!(reason, "reconnected" | "lost-quorum") && strategy == Strategy::TargetIfBothFailed
}

/// Has it come to this node's disk?
fn has_written(volume: &Volume, written: &Written) -> bool {
    match written.content {
        // Nobody's in particular: what is there shows it.
        ZEROES => Payload::read(volume.data.data(), written.range).is_zeroes(),
        _ => volume.arrived.is_whole(written),
    }
}

impl Volume {
    /// This copy has a write that was completed on `by` only after it had left: it had it by then, too.
    pub(crate) fn had_it_as_it_left(&mut self, by: usize, before: u64, count: u64) {
        if let Some(left) = self.left_at.as_mut().map(|left| &mut left[by]).filter(|left| **left == before) {
            *left = count;
        }
    }
}

impl Cluster {
    /// Does the peer, as this node's word says, have a good copy, and a process that goes on with this connection?
    pub(crate) fn peer_is_equal(&mut self, n: usize, peer: usize, v: usize, word: &StateWord) -> bool {
        self.peer_listens(n, peer)
            && word.conn >= ConnState::Connected
            && word.pdsk == DiskState::UpToDate
            && self.nodes[peer].volumes[v].word.is_some_and(|w| w.disk == DiskState::UpToDate)
    }

    /// This peer has written it and acknowledged that, and its process has died before this was heard. What a target
    /// has is judged when its resync ends.
    pub(crate) fn was_written_by_who_is_gone(&mut self, n: usize, peer: usize, request: &Request) -> bool {
        let sent = self.setup.protocol_between(n, peer) != Protocol::A && request.sent[peer].is_some();
        let volume = &self.nodes[peer].volumes[request.volume];
        let written = has_written(volume, &request.written);
        let receives = volume.word.is_some_and(|w| w.disk == DiskState::Inconsistent);
        // Or it was overwritten since by what a third node has.
        let overwritten = volume.copied.is_some_and(|(from, at)| from != n && at > request.written.issued);
        // Or it went its own way before this was complete.
        let parted = self.nodes.len() > 2 && volume.alone[n];
        sent && written && !receives && !overwritten && !parted && !self.peer_listens(n, peer)
    }

    /// Had this peer written it, and has gone its own way since, or is detaching its disk, or lost it with its power,
    /// which may take what was not flushed? It goes on with it, if it has what was complete before.
    pub(crate) fn went_on_with(
        &self,
        n: usize,
        (peer, word): (usize, &StateWord),
        v: usize,
        written: &Written,
    ) -> bool {
        let volume = &self.nodes[peer].volumes[v];
        let parted = volume.alone[n] && has_written(volume, written);
        let detaches = matches!(word.pdsk, DiskState::Detaching | DiskState::Failed) && has_written(volume, written);
        self.nodes.len() > 2 && (parted || detaches || volume.arrived.is_lost(written))
    }

    /// A barrier was answered: this peer has these writes. With protocol A nothing was known of them before.
    pub(crate) fn keep_promises(&mut self, n: usize, peer: usize, confirmed: &[Early]) {
        if self.setup.protocol_between(n, peer) != Protocol::A
            || !matches!(self.net.wishes[n][peer], Wish::Connected(_))
        {
            return;
        }
        for early in confirmed {
            let v = early.volume;
            // As it was at the end of the last turn.
            let Some(word) = self.nodes[n].volumes[v].towards[peer] else { continue };
            if !self.peer_is_equal(n, peer, v, &word) {
                continue;
            }
            let now = self.tick();
            let reading = self.oldest_read(peer, now);
            let up_to = self.nodes[n].epochs[peer].confirmed_up_to(v, early.count);
            let volume = &mut self.nodes[peer].volumes[v];
            volume.view.confirmed(&early.write, early.completed, now, reading);
            volume.view.includes[n] = volume.view.includes[n].max(up_to);
        }
    }

    /// With protocol A a source may have more of what a third node completed than that one had heard of when it was
    /// lost.
    pub(crate) fn count_unheard(&self, source: &mut View, [target, peer]: [usize; 2], v: usize) {
        let wanted = &self.nodes[target].volumes[v].view.includes;
        let volume = &self.nodes[peer].volumes[v];
        for by in self.peers(peer).filter(|by| *by != target) {
            if self.setup.protocol_between(by, peer) != Protocol::A {
                continue;
            }
            let unheard = self.nodes[by].epochs[peer].unheard(v).take_while(|early| has_written(volume, &early.write));
            for early in unheard.filter(|early| early.count <= wanted[by]) {
                source.includes[by] = source.includes[by].max(early.count);
            }
        }
    }

    /// Does a target lack with this source nothing but what is on the disk of who completed it with protocol A, and is
    /// down, or has met neither of them yet? Nobody else had to have it. As a crashed Primary that one is the source of
    /// all when it is back.
    pub(crate) fn is_with_its_writer(&self, source: &View, [target, peer]: [usize; 2], v: usize) -> bool {
        let had = &self.nodes[target].volumes[v].view.includes;
        let mut lacking = (0..had.len()).filter(|by| had[*by] > source.includes[*by]);
        self.nodes.len() > 2
            && lacking.all(|by| {
                let others = by != target && by != peer && self.setup.protocol_between(by, peer) == Protocol::A;
                let node = &self.nodes[by];
                let away = node.core.is_none() || ![target, peer].into_iter().any(|n| self.peer_listens(n, by));
                others && away && node.volumes[v].view.includes[by] >= had[by]
            })
    }

    /// A process is gone, and with it what it had received and not written.
    pub(crate) fn forget_what_was_only_received(&mut self, n: usize, now: Moment) {
        for volume in &mut self.nodes[n].volumes {
            let arrived = &volume.arrived;
            let gone: Vec<Received> = volume.received.drain(..).filter(|r| !arrived.is_whole(&r.written)).collect();
            for Received { count, by, written } in gone {
                let held: Vec<_> = volume.data.data().runs(written.range).map(|(r, c)| (r, c.id)).collect();
                held.into_iter().for_each(|(range, content)| volume.view.may_hold(range, content, now));
                let includes = &mut volume.view.includes[by];
                *includes = (*includes).min(count - 1);
            }
        }
    }
}
