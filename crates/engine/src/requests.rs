//! Block requests of front ends that the core works on, whatever front end they came from.

use crate::buffers::{Buf, BufId, Pool};
use crate::token::ClientId;
use frontends::{Errno, Kind, Request};
use std::collections::VecDeque;
use units::{ByteLen, VolumeNr};
use urbd_core::{BlockRequest, BufRef, IoError, MAX_DATA, MAX_DISCARD, RequestKind, Segments};

/// Who is to be answered.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Asker {
    Nbd(ClientId),
    /// A piece of one of the client's long writes.
    NbdPiece(ClientId, LongWrite),
    Fuse,
    /// The application inside the process.
    Application,
}

/// A client's write that is longer than any buffer: its pieces are requests of their own. Counted per client.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct LongWrite(pub(crate) u64);

/// A request that is done.
pub(crate) struct Answer {
    pub(crate) asker: Asker,
    pub(crate) request: Request,
    pub(crate) result: Result<(), Errno>,
    /// What a read brought, in order, with the length of each piece.
    pub(crate) data: Vec<(Buf, u32)>,
}

/// All requests in flight.
pub(crate) struct Requests {
    pool: &'static Pool,
    table: Vec<Option<Front>>,
    free: Vec<u32>,
    /// Reads for which the pool has had no buffers, oldest first.
    starved: VecDeque<(Asker, VolumeNr, Request)>,
    ready: VecDeque<BlockRequest>,
}

/// A request, maybe in several parts.
struct Front {
    asker: Asker,
    request: Request,
    parts_left: u32,
    error: Option<Errno>,
    buffers: Segments,
}

impl Requests {
    pub(crate) fn new(pool: &'static Pool) -> Requests {
        Requests { pool, table: Vec::new(), free: Vec::new(), starved: VecDeque::new(), ready: VecDeque::new() }
    }

    /// Takes a request in, with a write's payload (at most [`MAX_DATA`]); it is cut into parts that the core takes.
    /// Reads that wait for buffers keep their order.
    pub(crate) fn admit(&mut self, asker: Asker, volume: VolumeNr, request: Request, payload: Segments) {
        if request.kind == Kind::Read && !self.starved.is_empty() {
            return self.starved.push_back((asker, volume, request));
        }
        if !self.try_admit(asker, volume, request, payload) {
            self.starved.push_back((asker, volume, request));
        }
    }

    /// False: a read for which there are no buffers.
    fn try_admit(&mut self, asker: Asker, volume: VolumeNr, request: Request, payload: Segments) -> bool {
        let limit = match request.kind {
            Kind::Read | Kind::Write => MAX_DATA,
            _ => MAX_DISCARD,
        };
        let parts = u64::from(request.len).div_ceil(limit).max(1);
        let part_len = |part: u64| (u64::from(request.len) - part * limit).min(limit);
        let buffers = match request.kind {
            Kind::Read => match self.take_buffers(parts, part_len) {
                Some(buffers) => buffers,
                None => return false,
            },
            _ => payload,
        };
        let kind = request_kind(&request);
        let slot = self.free.pop().unwrap_or_else(|| {
            self.table.push(None);
            self.table.len() as u32 - 1
        });
        for part in 0..parts {
            let (at, len) = (part * limit, part_len(part));
            let data = match (request.kind, buffers.as_slice()) {
                (Kind::Read, all) => Segments::One(all[part as usize]),
                (Kind::Write, [whole]) => Segments::One(*whole),
                _ => Segments::None,
            };
            let (sector, len) = (ByteLen(request.offset + at).to_sectors_floor(), ByteLen(len));
            let tag = part << 32 | u64::from(slot);
            self.ready.push_back(BlockRequest { tag, volume, kind, sector, len, data });
        }
        self.table[slot as usize] = Some(Front { asker, request, parts_left: parts as u32, error: None, buffers });
        true
    }

    /// The next part for the core.
    pub(crate) fn next(&mut self) -> Option<BlockRequest> {
        self.ready.pop_front()
    }

    /// Is there a part for the core?
    pub(crate) fn has_ready(&self) -> bool {
        !self.ready.is_empty()
    }

    /// Requests that the core works on.
    pub(crate) fn in_flight(&self) -> usize {
        self.table.len() - self.free.len()
    }

    /// The core has done a part. `Some`: with it the whole request is done.
    pub(crate) fn complete(&mut self, tag: u64, result: Result<(), IoError>) -> Option<Answer> {
        let slot = tag as u32;
        let place = self.table.get_mut(slot as usize)?;
        let front = place.as_mut()?;
        front.parts_left -= 1;
        if let Err(e) = result {
            front.error.get_or_insert(errno(e, front.request.kind));
        }
        if front.parts_left > 0 {
            return None;
        }
        let front = place.take()?;
        self.free.push(slot);
        let result = front.error.map_or(Ok(()), Err);
        let brought = front.request.kind == Kind::Read && result.is_ok();
        let buffers = front.buffers.as_slice().iter().map(|b| (self.pool.reclaim(BufId(b.id)), b.len));
        let data = if brought {
            buffers.collect()
        } else {
            buffers.for_each(drop);
            Vec::new()
        };
        Some(Answer { asker: front.asker, request: front.request, result, data })
    }

    /// Buffers may have come back: admits reads that wait for some.
    pub(crate) fn feed_starved(&mut self) {
        while let Some((asker, volume, request)) = self.starved.front().copied() {
            if !self.try_admit(asker, volume, request, Segments::None) {
                return;
            }
            self.starved.pop_front();
        }
    }

    /// A buffer for each part, or none at all.
    fn take_buffers(&self, parts: u64, part_len: impl Fn(u64) -> u64) -> Option<Segments> {
        let take = |part| self.pool.take(part_len(part) as usize).map(|buf| (buf, part_len(part) as u32));
        let named = |(buf, len): (Buf, u32)| BufRef { id: buf.into_id().0, offset: 0, len };
        if parts == 1 {
            return take(0).map(|one| Segments::One(named(one)));
        }
        let bufs: Option<Vec<_>> = (0..parts).map(take).collect();
        Some(Segments::many(bufs?.into_iter().map(named).collect()))
    }
}

fn request_kind(request: &Request) -> RequestKind {
    match request.kind {
        Kind::Read => RequestKind::Read,
        Kind::Write => RequestKind::Write { fua: request.fua },
        Kind::Flush => RequestKind::Flush,
        Kind::Discard => RequestKind::Discard,
        Kind::WriteZeroes { may_unmap, .. } => RequestKind::WriteZeroes { unmap: may_unmap, fua: request.fua },
    }
}

fn errno(error: IoError, kind: Kind) -> Errno {
    match error {
        IoError::Io => Errno::EIO,
        IoError::NoSpace => Errno::ENOSPC,
        IoError::NotPrimary if kind == Kind::Read => Errno::EACCES,
        IoError::NotPrimary => Errno::EROFS,
        IoError::OutOfRange => Errno::EINVAL,
        IoError::NotSupported => Errno::ENOTSUP,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::buffers::ClassPlan;
    use frontends::Export;

    fn request(kind: Kind, len: u64) -> Request {
        let mut export = Export::new(0, "r0/0", 1 << 40);
        export.block.max = 4 << 20;
        export.admit(9, kind, 4096, len, false).unwrap()
    }

    fn requests() -> (Requests, &'static Pool) {
        let pool = Pool::leak(&[ClassPlan { size: 4096, count: 2 }, ClassPlan { size: 1 << 20, count: 3 }]);
        (Requests::new(pool), pool)
    }

    fn parts(requests: &mut Requests) -> Vec<BlockRequest> {
        std::iter::from_fn(|| requests.next()).collect()
    }

    #[test]
    fn a_long_read_is_answered_once_with_all_its_parts() {
        let (mut requests, pool) = requests();
        requests.admit(Asker::Fuse, VolumeNr(3), request(Kind::Read, (2 << 20) + 512), Segments::None);
        let parts = parts(&mut requests);
        let shape: Vec<(u64, u64)> = parts.iter().map(|p| (p.sector.0, p.len.0)).collect();
        assert_eq!(shape, [(8, 1 << 20), (8 + 2048, 1 << 20), (8 + 4096, 512)]);
        assert!(requests.complete(parts[1].tag, Ok(())).is_none() && requests.complete(parts[0].tag, Ok(())).is_none());
        let answer = requests.complete(parts[2].tag, Ok(())).unwrap();
        assert!(answer.result.is_ok() && answer.asker == Asker::Fuse);
        assert_eq!(answer.data.iter().map(|d| d.1).collect::<Vec<_>>(), [1 << 20, 1 << 20, 512]);
        drop(answer);
        assert_eq!(pool.in_use(), 0);
    }

    #[test]
    fn one_failed_part_fails_the_request() {
        let (mut requests, pool) = requests();
        requests.admit(Asker::Fuse, VolumeNr(0), request(Kind::Discard, 300 << 20), Segments::None);
        let parts = parts(&mut requests);
        assert_eq!(parts.iter().map(|p| p.len.0 >> 20).collect::<Vec<_>>(), [128, 128, 44]);
        requests.complete(parts[0].tag, Err(IoError::NoSpace));
        requests.complete(parts[1].tag, Err(IoError::Io));
        assert_eq!(
            requests.complete(parts[2].tag, Ok(())).unwrap().result,
            Err(Errno::ENOSPC),
            "the first error counts"
        );
        assert_eq!(pool.in_use(), 0);
    }

    #[test]
    fn reads_wait_for_buffers_in_order() {
        let (mut requests, pool) = requests();
        let taken: Vec<Buf> = std::iter::from_fn(|| pool.take(1)).collect();
        for volume in 0..3 {
            requests.admit(Asker::Fuse, VolumeNr(volume), request(Kind::Read, 512), Segments::None);
        }
        requests.feed_starved();
        assert!(!requests.has_ready());
        drop(taken);
        requests.feed_starved();
        assert_eq!(parts(&mut requests).iter().map(|p| p.volume.0).collect::<Vec<_>>(), [0, 1, 2]);
    }
}
