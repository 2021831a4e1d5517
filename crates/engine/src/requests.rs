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
    /// Of those, reads that need several buffers at once.
    long_starved: usize,
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
        Requests {
            pool,
            table: Vec::new(),
            free: Vec::new(),
            starved: VecDeque::new(),
            long_starved: 0,
            ready: VecDeque::new(),
        }
    }

    /// Takes a request in, with a write's payload (at most [`MAX_DATA`]); it is cut into parts that the core takes.
    /// An asker's reads that wait for buffers keep their order.
    pub(crate) fn admit(&mut self, asker: Asker, volume: VolumeNr, request: Request, payload: Segments) {
        let behind = request.kind == Kind::Read && self.starved.iter().any(|(other, ..)| *other == asker);
        if behind || !self.try_admit(asker, volume, request, payload) {
            self.long_starved += usize::from(is_long(&request));
            self.starved.push_back((asker, volume, request));
        }
    }

    /// Do reads wait for buffers?
    pub(crate) fn is_starved(&self) -> bool {
        !self.starved.is_empty()
    }

    /// The client is gone: its reads that wait for buffers are not begun. How many were there?
    pub(crate) fn forget(&mut self, client: ClientId) -> usize {
        let before = self.starved.len();
        self.starved.retain(|(asker, ..)| *asker != Asker::Nbd(client));
        self.long_starved = self.starved.iter().filter(|(.., request)| is_long(request)).count();
        before - self.starved.len()
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

    /// Requests of the kernel's that the core works on, or that wait for buffers.
    pub(crate) fn of_devices(&self) -> usize {
        let fronts = self.table.iter().flatten().filter(|front| front.asker == Asker::Fuse);
        fronts.count() + self.starved.iter().filter(|(asker, ..)| *asker == Asker::Fuse).count()
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

    /// Buffers may have come back: admits reads that wait for some. Who waits for what another one does not let go of
    /// keeps nobody else waiting.
    pub(crate) fn feed_starved(&mut self) {
        let mut lacking: Vec<Asker> = Vec::new();
        for _ in 0..self.starved.len() {
            let Some((asker, volume, request)) = self.starved.pop_front() else { return };
            let waits = lacking.contains(&asker);
            let long = usize::from(is_long(&request));
            self.long_starved -= long;
            if waits || !self.try_admit(asker, volume, request, Segments::None) {
                lacking.extend((!waits).then_some(asker));
                self.long_starved += long;
                self.starved.push_back((asker, volume, request));
            }
        }
    }

    /// A buffer for each part, or none at all.
    fn take_buffers(&self, parts: u64, part_len: impl Fn(u64) -> u64) -> Option<Segments> {
        // While a long read waits, the largest buffers are saved for it: they would never all be free at once.
        let spare = parts == 1 && self.long_starved > 0;
        let take = if spare { Pool::take_spared } else { Pool::take };
        let take = |part| take(self.pool, part_len(part) as usize).map(|buf| (buf, part_len(part) as u32));
        let named = |(buf, len): (Buf, u32)| BufRef { id: buf.into_id().0, offset: 0, len };
        if parts == 1 {
            return take(0).map(|one| Segments::One(named(one)));
        }
        let bufs: Option<Vec<_>> = (0..parts).map(take).collect();
        Some(Segments::many(bufs?.into_iter().map(named).collect()))
    }
}

/// Is it a read that needs several buffers?
fn is_long(request: &Request) -> bool {
    request.kind == Kind::Read && u64::from(request.len) > MAX_DATA
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

    #[test]
    fn who_waits_for_large_buffers_keeps_nobody_else_waiting() {
        let (mut requests, pool) = requests();
        let client = |n| Asker::Nbd(ClientId(n));
        let held = pool.take(1 << 20).unwrap();
        let read = |len| request(Kind::Read, len);
        requests.admit(client(1), VolumeNr(1), read(3 << 20), Segments::None);
        requests.admit(client(1), VolumeNr(1), read(512), Segments::None);
        assert!(!requests.has_ready() && requests.is_starved(), "its own order is kept");
        requests.admit(client(2), VolumeNr(2), read(512), Segments::None);
        requests.admit(client(3), VolumeNr(3), read(1 << 20), Segments::None);
        let small = parts(&mut requests);
        assert_eq!(small.iter().map(|p| p.volume.0).collect::<Vec<_>>(), [2], "large buffers are saved");
        drop(held);
        requests.feed_starved();
        let long = parts(&mut requests);
        assert_eq!(long.iter().filter(|p| p.volume.0 == 1 && p.len.0 == 1 << 20).count(), 3);
        for part in long.iter().filter(|p| p.len.0 == 1 << 20) {
            requests.complete(part.tag, Ok(()));
        }
        requests.feed_starved();
        assert_eq!(parts(&mut requests).iter().map(|p| p.volume.0).collect::<Vec<_>>(), [3]);
        assert!(!requests.is_starved());
    }

    #[test]
    fn nothing_is_begun_for_who_is_gone() {
        let (mut requests, pool) = requests();
        let taken: Vec<Buf> = std::iter::from_fn(|| pool.take(1)).collect();
        let large: Vec<Buf> = std::iter::from_fn(|| pool.take(1 << 20)).collect();
        for (n, len) in [(1, 512), (2, 512), (1, 2 << 20), (1, 512)] {
            requests.admit(Asker::Nbd(ClientId(n)), VolumeNr(n as u16), request(Kind::Read, len), Segments::None);
        }
        assert_eq!((requests.forget(ClientId(1)), requests.forget(ClientId(1))), (3, 0));
        drop((taken, large));
        requests.feed_starved();
        assert_eq!(parts(&mut requests).iter().map(|p| p.volume.0).collect::<Vec<_>>(), [2]);
    }
}
