//! Reads of applications: from where, and what if that fails (`docs/spec/data-path-and-resync.md` 4).

use crate::Resource;
use crate::api::{BlockRequest, DiskOp, IoError, MAX_DATA, RequestKind, Segments};
use crate::decide::io_error::Failure;
use crate::decide::routing;
use crate::decide::routing::ReadRoute;
use crate::decide::view::View;
use crate::latency::Stage;
use crate::merging::Waiting;
use crate::node::Node;
use crate::op::Op;
use crate::request::read::{PartWaiting, Read, Tried};
use crate::request::under_way::Request;
use crate::request::write::{Owner, Owners};
use crate::splitting::split::slice;
use units::{ByteLen, Instant, NodeId, NodeMask, Sector, SectorRange, VolumeNr};
use wire::DiskState;

/// How often a read is tried after the first time.
const RETRIES: u32 = 3;

impl Resource {
    pub(crate) fn start_reads(&mut self, volume: VolumeNr, Waiting { came, request: req }: Waiting) {
        let range = SectorRange::new(req.sector, req.len).expect("checked in accept");
        let (owner, tries) = (Owner::Tag(req.tag), (came, Tried::default()));
        if req.len.0 <= MAX_DATA {
            return self.start_read(volume, range, req.data, owner, tries);
        }
        self.start_in_parts(volume, range, &req.data, owner, tries, MAX_DATA);
    }

    /// Reads so many bytes at a time.
    fn start_in_parts(
        &mut self,
        volume: VolumeNr,
        range: SectorRange,
        data: &Segments,
        owner: Owner,
        tries: (Instant, Tried),
        most: u64,
    ) {
        let whole = range.len().0;
        let parts = whole.div_ceil(most);
        let key = self.begin_split(Owners::One(owner), parts as u32);
        for n in 0..parts {
            let from = n * most;
            let len = most.min(whole - from);
            let start = Sector(range.start.0 + from / 512);
            let part = SectorRange::new(start, ByteLen(len)).expect("within the request");
            self.start_read(volume, part, slice(data, from, len), Owner::Part(key), tries);
        }
    }

    /// Reads from wherever is best; with when it came, and what came of it before.
    pub(crate) fn start_read(
        &mut self,
        volume: VolumeNr,
        range: SectorRange,
        data: Segments,
        tag: Owner,
        (came, tried): (Instant, Tried),
    ) {
        if !self.node.devices[volume].holds(range) {
            return self.end_owner(volume, tag, Err(IoError::OutOfRange));
        }
        if self.node.fails_without_quorum(volume) {
            return self.end_owner(volume, tag, Err(IoError::Io));
        }
        let remote = match self.read_route(volume, range, tried.refused) {
            (ReadRoute::Local, _) => None,
            (ReadRoute::Remote, Some(peer)) => Some(peer),
            _ => return self.read_nowhere(volume, range, data, tag, came),
        };
        // Old peers take less at a time than a disk does.
        let most = remote.map_or(MAX_DATA, |peer| self.node.connections[peer].max_data(volume));
        if range.len().0 > most {
            return self.start_in_parts(volume, range, &data, tag, (came, tried), most);
        }
        let read = Read {
            device: volume,
            range,
            data: data.clone(),
            tag,
            came,
            started: self.node.now,
            remote,
            tried,
            outlived: false,
        };
        let key = self.requests.insert(Request::Read(read));
        match remote {
            None => {
                self.node.devices[volume].stats.read_bytes += range.len().0;
                self.disk(volume, Op::LocalRead(key), DiskOp::Read { sector: range.start, data });
            }
            Some(peer) => self.send_read_request(peer, volume, key, range),
        }
    }

    /// No good copy is within reach: fail, or wait for one if I/O is frozen.
    fn read_nowhere(&mut self, volume: VolumeNr, range: SectorRange, data: Segments, tag: Owner, came: Instant) {
        match tag {
            Owner::Tag(tag) if self.node.state.is_frozen() => {
                let (sector, len) = (range.start, range.len());
                let request = BlockRequest { tag, volume, kind: RequestKind::Read, sector, len, data };
                self.node.devices[volume].queue.incoming.push_front(Waiting { came, request });
            }
            Owner::Part(_) if self.node.state.is_frozen() => {
                self.node.devices[volume].queue.parts_waiting.push(PartWaiting { range, data, owner: tag, came });
            }
            _ => self.end_owner(volume, tag, Err(IoError::Io)),
        }
    }

    pub(crate) fn local_read_done(&mut self, key: u64, result: Result<(), IoError>) {
        let Some(Request::Read(r)) = self.requests.remove(key) else { return };
        match result {
            Ok(()) => {
                self.node.application_done(r.device, r.started, r.range.len());
                self.end_read(r.device, r.tag, (r.came, r.started), Stage::ReadDisk);
            }
            Err(e) => {
                for peer in self.node.connections.ids() {
                    self.mark_out_of_sync(peer, r.device, r.range);
                }
                self.data_error(r.device, Failure::Read, "read", r.range, e);
                let tried = Tried { times: r.tried.times + 1, ..r.tried };
                self.retry_read(tried, r);
            }
        }
    }

    /// A read that came and was submitted then has what it wanted.
    pub(crate) fn end_read(
        &mut self,
        volume: VolumeNr,
        owner: Owner,
        (came, started): (Instant, Instant),
        stage: Stage,
    ) {
        let latencies = &mut self.node.devices[volume].stats.latencies;
        latencies.note(stage, self.node.now.since(started), 1);
        latencies.note(Stage::ReadTotal, self.node.now.since(came), 1);
        self.end_owner(volume, owner, Ok(()));
    }

    /// A read that failed in one place is tried in another; a disk that went bad is not eligible any more. Nor is
    /// anything after a demotion, which has found I/O frozen: the peer may have been made Primary by force since, with
    /// data that those who asked have never seen (`docs/spec/data-path-and-resync.md` 4.3).
    pub(crate) fn retry_read(&mut self, tried: Tried, r: Read) {
        if tried.times > RETRIES || r.outlived {
            return self.end_owner(r.device, r.tag, Err(IoError::Io));
        }
        self.start_read(r.device, r.range, r.data, r.tag, (r.came, tried));
    }

    /// This device was demoted.
    pub(crate) fn reads_outlive_role(&mut self, volume: VolumeNr) {
        for request in self.requests.values_mut() {
            if let Request::Read(r) = request {
                r.outlived |= r.device == volume;
            }
        }
    }
}

impl Node {
    /// The own disk if it will do for any peer, else the first peer that will, preferably one that has not refused.
    fn read_route(&self, volume: VolumeNr, range: SectorRange, refused: NodeMask) -> (ReadRoute, Option<NodeId>) {
        let dev = &self.devices[volume];
        let range_clean = dev.backing.as_ref().is_some_and(|b| (0..b.bitmaps.len()).all(|s| b.in_sync(s, range)));
        let usable = self.usable(volume);
        let route = |peer: Option<NodeId>| {
            let mut view = View::of(&self.state, peer, volume);
            view.disk = if usable { view.disk } else { DiskState::Diskless };
            (routing::read(&view, range_clean), peer)
        };
        let rank = |(route, peer): &(ReadRoute, Option<NodeId>)| match route {
            ReadRoute::Local => 0,
            ReadRoute::Remote if peer.is_none_or(|peer| !refused.contains(peer)) => 1,
            ReadRoute::Remote => 2,
            ReadRoute::Nowhere => 3,
        };
        self.peers_or_none().map(route).min_by_key(rank).unwrap_or((ReadRoute::Nowhere, None))
    }
}
