//! Flushes of applications: what fsync says is true on both machines (`docs/spec/data-path-and-resync.md` 1.10).
//!
//! A flush closes the epoch. It completes when the own disk has flushed and, with protocol C or without an own disk,
//! the peers have acknowledged the barrier.

use crate::Resource;
use crate::api::{BlockRequest, DiskOp, IoError, RequestKind, Segments};
use crate::latency::Stage;
use crate::merging::Waiting;
use crate::op::Op;
use crate::request::under_way::{Flush, Request};
use crate::request::write::{Local, Owner};
use units::{ByteLen, Instant, NodeId, Sector, VolumeNr, is_after};
use wire::DiskState;

impl Resource {
    /// A strict flush (spec 1.10): done when the local disk has flushed and every epoch with a completed write is
    /// confirmed by the peers that count. A disk that is not UpToDate is flushed, too, but is no copy to rely on: what
    /// it got alone a resync overwrites.
    pub(crate) fn start_flush(&mut self, volume: VolumeNr, tag: u64, came: Instant) {
        self.close_epoch();
        self.send_due_barriers();
        let local = self.usable(volume);
        let good = local && self.node.state.disk(volume) == DiskState::UpToDate;
        let mut waiting = Vec::new();
        for (peer, c) in self.node.connections.iter() {
            let counts = !good || c.cfg.protocol == crate::config::Protocol::C;
            if let (true, Some(last)) = (counts, c.log.last_unconfirmed_epoch()) {
                waiting.push((peer, last));
            }
        }
        let peer_good = self.node.state.good_peers(volume).next().is_some();
        if !local && !peer_good || self.node.fails_without_quorum(volume) {
            return self.end_owner(volume, Owner::Tag(tag), Err(IoError::Io));
        }
        let clean = self.node.devices[volume].backing.as_ref().is_none_or(|b| !b.flushing.is_needed());
        let started = self.node.now;
        let mark = self.node.devices[volume].backing.as_ref().map_or(0, |b| b.flushing.mark());
        let begins = local && !clean;
        let local = if begins { Local::Pending } else { Local::None };
        let flush = Flush { device: volume, came, started, tag, local, mark, waiting, own: good, covered: good };
        let key = self.requests.insert(Request::Flush(flush));
        self.flushes.push(key);
        if begins {
            self.disk(volume, Op::LocalFlush(key), DiskOp::Flush);
        }
        self.try_finish_flush(key);
    }

    pub(crate) fn local_flush_done(&mut self, key: u64, result: Result<(), IoError>) {
        let Some(Request::Flush(f)) = self.requests.get_mut(key) else { return };
        f.local = result.map_or_else(Local::Failed, |()| Local::Ok);
        f.covered &= result.is_ok();
        let (volume, mark) = (f.device, f.mark);
        if let (Ok(()), Some(b)) = (result, &mut self.node.devices[volume].backing) {
            b.flushing.note_flushed(mark);
        }
        if result.is_err() {
            // A disk that failed to flush may have lost anything: it is never trusted again (fsync semantics).
            self.flush_error(volume);
        }
        self.try_finish_flush(key);
    }

    /// `epoch` and all before it are confirmed by this peer (or it is gone: `lost`).
    pub(crate) fn flushes_confirmed(&mut self, peer: NodeId, epoch: Option<u32>) {
        for key in self.flushes.clone() {
            let Some(Request::Flush(f)) = self.requests.get_mut(key) else { continue };
            let before = f.waiting.len();
            f.waiting.retain(|&(c, e)| c != peer || epoch.is_some_and(|done| is_after(e, done)));
            if f.waiting.len() != before && epoch.is_some() {
                f.covered = true;
            }
            self.try_finish_flush(key);
        }
    }

    fn try_finish_flush(&mut self, key: u64) {
        let Some(Request::Flush(f)) = self.requests.get(key) else { return };
        if f.local == Local::Pending || !f.waiting.is_empty() {
            return;
        }
        let own_lost = f.own && self.node.state.disk(f.device) != DiskState::UpToDate;
        let Some(Request::Flush(f)) = self.requests.remove(key) else { return };
        self.flushes.retain(|k| *k != key);
        let unasked = |peer| self.node.connections[peer].cfg.protocol != crate::config::Protocol::C;
        if own_lost && self.node.state.good_peers(f.device).any(unasked) {
            // The copy that it relied on is gone: the others have what they were sent, perhaps in a volatile cache.
            return self.start_flush(f.device, f.tag, f.came);
        }
        let connected_good = self.node.state.good_peers(f.device).next().is_some();
        let failed = matches!(f.local, Local::Failed(_));
        let result = if f.covered || (connected_good && !failed) { Ok(()) } else { Err(IoError::Io) };
        if result.is_err() && !failed && self.node.state.is_frozen() {
            // The peer that had everything is gone, and applications wait for it to come back.
            let (tag, volume) = (f.tag, f.device);
            let (sector, len) = (Sector(0), ByteLen(0));
            let request = BlockRequest { tag, volume, kind: RequestKind::Flush, sector, len, data: Segments::None };
            return self.node.devices[f.device].queue.incoming.push_front(Waiting { came: f.came, request });
        }
        self.node.devices[f.device].stats.latencies.note(Stage::FlushTotal, self.node.now.since(f.came), 1);
        self.end_owner(f.device, Owner::Tag(f.tag), result);
    }
}
