//! The backing disks of a resource's volumes: the core's disk operations as ring operations and back.
//!
//! Most operations are one ring operation. Some are several, one after the other: a metadata write that must come
//! after a flush, zeroes on disks that cannot make them, and whatever the kernel did only in part.

pub(crate) mod growing;

use crate::buffers::{Buf, BufId, Pool};
use crate::disk::{Disk, OpenError};
use crate::ring::{Done, Message, Op, Ring};
use crate::token::Token;
use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::path::PathBuf;
use std::rc::Rc;
use units::{ByteLen, Duration, Instant, VolumeNr};
use urbd_core::{BufRef, DiskDone, DiskError, DiskOp, MetaDone, MetaOp, OpId, OpenedDisk, Segments};

/// Where a volume's data and metadata lie.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Paths {
    /// The backing device.
    pub data: PathBuf,
    /// The metadata device, if it is not the backing device.
    pub meta: Option<PathBuf>,
}

/// What became of an operation, for the core.
#[derive(Debug)]
pub(crate) enum Outcome {
    Disk(DiskDone),
    Meta(MetaDone),
    Opened(VolumeNr, Result<OpenedDisk, (i32, String)>),
}

/// All volumes of a resource.
pub(crate) struct Volumes {
    pool: &'static Pool,
    paths: BTreeMap<VolumeNr, Paths>,
    open: BTreeMap<VolumeNr, OpenVolume>,
    jobs: Vec<Option<Job>>,
    free: Vec<u32>,
    /// Jobs that wait for a buffer, oldest first: those on metadata, which others may wait for, and the others.
    starved: [VecDeque<u32>; 2],
    /// Volumes to open as soon as the operations of their former disks have ended.
    reopening: Vec<VolumeNr>,
    now: Instant,
    /// For metadata when there is no other buffer: requests that hold them all may wait for just that.
    reserve: Vec<Buf>,
    zeroes: Buf,
    /// Messages of writes of several pieces that are done; boxed as the ring holds them.
    #[allow(clippy::vec_box)]
    spare: Vec<Box<Message>>,
    waiting: growing::Waiting,
}

#[derive(Clone)]
struct OpenVolume {
    data: Rc<Disk>,
    meta: Rc<Disk>,
}

impl OpenVolume {
    fn described(&self) -> OpenedDisk {
        let (data, meta) = (&self.data.traits, &self.meta.traits);
        OpenedDisk {
            backing: ByteLen(data.size),
            meta_device: ByteLen(meta.size),
            can_discard: data.discard,
            discard_zeroes: true,
            write_through: data.write_through && meta.write_through,
            block_size: data.block_size,
        }
    }
}

struct Job {
    volume: VolumeNr,
    disks: OpenVolume,
    /// Its disk was closed: nobody wants to know how it ends.
    orphan: bool,
    since: Instant,
    op: OpId,
    work: Work,
}

/// What is left to do, and with what.
enum Work {
    /// A read into these buffers of the core's; a single one is read into directly.
    Read { offset: u64, data: Segments, bounce: bool },
    /// A read into a new buffer.
    ReadNew { offset: u64, len: usize, detect_zeroes: bool },
    /// A write, flush or deallocation: nothing to do at the end.
    Plain,
    /// Make a range read as zeroes: allocation call first, then writing what is left, then maybe a flush.
    Zeroes { next: u64, end: u64, attempt: ZeroAttempt, fallback: bool, durable: bool },
    /// Flushes, then writes metadata.
    MetaWrite { flushes: u8, offset: u64, bytes: Box<[u8]>, done: usize, piece: usize, fua: bool },
    /// Reads metadata piece by piece.
    MetaRead { offset: u64, bytes: Vec<u8>, len: usize, piece: usize },
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum ZeroAttempt {
    PunchHole,
    ZeroRange,
    Writing,
    Flushing,
}

/// A disk that has not answered for so long hangs. One that is only slow is seldom that slow.
const HANGS: Duration = Duration::from_secs(3);

/// Metadata moves in pieces of at most so many bytes.
const META_PIECE: usize = 1 << 20;

/// So many buffers are kept for metadata, and pieces of so many bytes fit: what has to be written at once does.
const RESERVE: usize = 2;
const RESERVED: usize = 4096;

impl Volumes {
    /// Panics if `pool` has no buffer of 64 KiB.
    pub(crate) fn new(pool: &'static Pool, paths: BTreeMap<VolumeNr, Paths>) -> Volumes {
        let mut zeroes = pool.take(64 << 10).expect("a fresh pool has buffers");
        zeroes.bytes_mut().fill(0);
        Volumes {
            pool,
            paths,
            open: BTreeMap::new(),
            jobs: Vec::new(),
            free: Vec::new(),
            starved: Default::default(),
            reopening: Vec::new(),
            now: Instant(0),
            reserve: (0..RESERVE).filter_map(|_| pool.take(RESERVED)).collect(),
            zeroes,
            spare: Vec::new(),
            waiting: growing::Waiting::default(),
        }
    }

    /// Who waits for disks that have grown to be measured.
    pub(crate) fn waiting(&mut self) -> &mut growing::Waiting {
        &mut self.waiting
    }

    /// What is begun from now on is begun at this time.
    pub(crate) fn begin_turn(&mut self, now: Instant) {
        self.now = now;
    }

    /// For how long a disk in use has not answered, if that is long enough to say that it hangs.
    pub(crate) fn hangs(&self, volume: VolumeNr) -> Option<Duration> {
        let jobs = self.jobs.iter().flatten().filter(|j| j.volume == volume && !j.orphan);
        let oldest = jobs.map(|j| j.since).min()?;
        Some(self.now.since(oldest)).filter(|time| *time >= HANGS)
    }

    /// Other paths (`adjust`); disks that are open stay as they are until they are opened anew.
    pub(crate) fn reconfigure(&mut self, paths: BTreeMap<VolumeNr, Paths>) {
        self.paths = paths;
    }

    /// The path of a volume's backing device.
    pub(crate) fn path(&self, volume: VolumeNr) -> Option<&Paths> {
        self.paths.get(&volume)
    }

    /// Opens a volume's disks, at once or when its former disks' operations have ended.
    pub(crate) fn open(&mut self, volume: VolumeNr) -> Option<Outcome> {
        if self.jobs.iter().flatten().any(|j| j.volume == volume) {
            self.reopening.push(volume);
            return None;
        }
        Some(Outcome::Opened(volume, self.open_now(volume)))
    }

    /// The size of a volume's backing device when it was opened and now, if it has grown since then.
    pub(crate) fn grown(&self, volume: VolumeNr) -> Option<(ByteLen, ByteLen)> {
        let disk = &self.open.get(&volume)?.data;
        let now = disk.current_size().ok()?;
        (now > disk.traits.size).then_some((ByteLen(disk.traits.size), ByteLen(now)))
    }

    /// Closes a volume's disks; completions that still come are swallowed. Buffers of the core's that a disk reads into
    /// are the core's again, on other memory: the disk may write into the old one whenever it likes.
    pub(crate) fn close(&mut self, volume: VolumeNr) {
        self.open.remove(&volume);
        self.reopening.retain(|v| *v != volume);
        for job in self.jobs.iter_mut().flatten().filter(|j| j.volume == volume && !j.orphan) {
            job.orphan = true;
            if let Work::Read { data: Segments::One(lent), bounce: false, .. } = &job.work {
                self.pool.part(BufId(lent.id));
            }
        }
    }

    /// Starts an operation on the data area. `Some`: it ended at once.
    pub(crate) fn disk(
        &mut self,
        ring: &mut Ring<Token>,
        op: OpId,
        volume: VolumeNr,
        action: DiskOp,
    ) -> Option<Outcome> {
        let Some(disks) = self.open.get(&volume).cloned() else {
            return Some(Outcome::Disk(DiskDone {
                op,
                result: Err(DiskError::Io),
                data: Segments::None,
                zeroes: false,
            }));
        };
        let disk = disks.data.clone();
        let since = self.now;
        let job = |work| Job { volume, disks, orphan: false, since, op, work };
        match action {
            DiskOp::Read { sector, data } => {
                let bounce = !matches!(data, Segments::One(_));
                self.start(ring, job(Work::Read { offset: sector.to_bytes().0, data, bounce }));
            }
            DiskOp::ReadNew { sector, len, detect_zeroes } => {
                let (offset, len) = (sector.to_bytes().0, len.0 as usize);
                self.start(ring, job(Work::ReadNew { offset, len, detect_zeroes }));
            }
            DiskOp::Write { sector, data, fua } => {
                let write = self.write_op(&disk, sector.to_bytes().0, &data, fua);
                self.submit(ring, job(Work::Plain), write, &disk);
            }
            DiskOp::Flush => self.submit(ring, job(Work::Plain), disk.flush(), &disk),
            DiskOp::Discard { sector, len, zeroes } => {
                let (next, attempt) = (sector.to_bytes().0, ZeroAttempt::PunchHole);
                let end = next + len.0;
                self.start(ring, job(Work::Zeroes { next, end, attempt, fallback: zeroes, durable: false }));
            }
            DiskOp::WriteZeroes { sector, len, unmap, fua } => {
                let next = sector.to_bytes().0;
                let attempt = if unmap { ZeroAttempt::PunchHole } else { ZeroAttempt::ZeroRange };
                let end = next + len.0;
                self.start(ring, job(Work::Zeroes { next, end, attempt, fallback: true, durable: fua }));
            }
        }
        None
    }

    /// Starts an operation on metadata. `Some`: it ended at once.
    pub(crate) fn meta(
        &mut self,
        ring: &mut Ring<Token>,
        op: OpId,
        volume: VolumeNr,
        action: MetaOp,
    ) -> Option<Outcome> {
        let Some(disks) = self.open.get(&volume).cloned() else {
            return Some(Outcome::Meta(MetaDone { op, result: Err(DiskError::Io) }));
        };
        let work = match action {
            MetaOp::Write { offset, bytes, flush_before, fua } => {
                let external = !Rc::ptr_eq(&disks.data, &disks.meta);
                let flushes = if flush_before { 1 + u8::from(external) } else { 0 };
                Work::MetaWrite { flushes, offset, bytes, done: 0, piece: 0, fua }
            }
            MetaOp::Read { offset, len } => {
                let len = len as usize;
                Work::MetaRead { offset, bytes: Vec::with_capacity(len), len, piece: 0 }
            }
        };
        let since = self.now;
        self.start(ring, Job { volume, disks, orphan: false, since, op, work });
        None
    }

    /// A ring operation of job `slot` completed; `outcomes` gets what the core must know.
    pub(crate) fn on_done(
        &mut self,
        ring: &mut Ring<Token>,
        slot: u32,
        done: Done<Token>,
        outcomes: &mut Vec<Outcome>,
    ) {
        let Some(job) = self.jobs[slot as usize].take() else { return };
        let result = done.result();
        let op = done.op.expect("disk operations complete once");
        let spent = job.is_on_metadata();
        if job.orphan {
            return self.bury(slot, job, buffer_of(op), outcomes);
        }
        match finish_part(op, result, &mut self.spare) {
            Part::Again(op) => {
                let disk = job.disk_of(&op);
                self.jobs[slot as usize] = Some(job);
                disk.submit(ring, op, Token::Disk(slot));
            }
            Part::Ended(result, buf) => {
                self.advance(ring, slot, job, result, buf, outcomes);
                if spent && self.reserve.len() < RESERVE {
                    // Before somebody else gets it.
                    self.reserve.extend(self.pool.take(RESERVED));
                }
            }
        }
    }

    /// Buffers may have come back: starts what waited for one.
    pub(crate) fn feed_starved(&mut self, ring: &mut Ring<Token>, outcomes: &mut Vec<Outcome>) {
        (0..self.starved.len()).for_each(|kind| self.feed(kind, ring, outcomes));
    }

    fn feed(&mut self, kind: usize, ring: &mut Ring<Token>, outcomes: &mut Vec<Outcome>) {
        for _ in 0..self.starved[kind].len() {
            let Some(slot) = self.starved[kind].pop_front() else { return };
            if let Some(orphan) = self.jobs[slot as usize].take_if(|job| job.orphan) {
                self.bury(slot, orphan, None, outcomes);
                continue;
            }
            self.run(ring, slot);
            if self.starved[kind].back() == Some(&slot) {
                // Still none: keep the order.
                self.starved[kind].rotate_right(1);
                return;
            }
        }
    }

    /// Gives the bytes behind core's buffers to `f`, piece by piece.
    pub(crate) fn each_piece(&self, data: &Segments, mut f: impl FnMut(&[u8])) {
        for piece in data.as_slice() {
            let buf = self.pool.share(BufId(piece.id));
            f(&buf.bytes()[piece.offset as usize..][..piece.len as usize]);
        }
    }

    /// Copies the bytes of `from` to the buffers of `to`.
    pub(crate) fn copy(&self, from: &Segments, to: &Segments) {
        let mut all = Vec::with_capacity(from.len() as usize);
        self.each_piece(from, |bytes| all.extend_from_slice(bytes));
        scatter(self.pool, to, &all);
    }

    fn open_now(&mut self, volume: VolumeNr) -> Result<OpenedDisk, (i32, String)> {
        let paths = self.paths.get(&volume).ok_or_else(|| (138, format!("volume {volume} has no disk configured")))?;
        let fail = |busy, other, e: OpenError| match e {
            OpenError::Busy(_) => (busy, e.to_string()),
            _ => (other, e.to_string()),
        };
        let data = Rc::new(Disk::open(&paths.data).map_err(|e| fail(114, 104, e))?);
        let meta = match &paths.meta {
            Some(path) => Rc::new(Disk::open(path).map_err(|e| fail(115, 105, e))?),
            None => data.clone(),
        };
        let open = OpenVolume { data, meta };
        let opened = open.described();
        self.open.insert(volume, open);
        Ok(opened)
    }

    /// One request for all pieces. They are whole blocks in page-aligned buffers, so the disk takes them as they are.
    fn write_op(&mut self, disk: &Disk, offset: u64, data: &Segments, fua: bool) -> Op {
        let pool = self.pool;
        let span = |b: &BufRef| pool.share(BufId(b.id)).span(b.offset as usize, b.len as usize);
        match data.as_slice() {
            [one] => disk.write(offset, span(one), fua),
            pieces => {
                let mut parts = self.spare.pop().unwrap_or_default();
                pieces.iter().for_each(|piece| parts.share(span(piece)));
                disk.write_parts(offset, parts, fua)
            }
        }
    }

    fn submit(&mut self, ring: &mut Ring<Token>, job: Job, op: Op, disk: &Disk) {
        let slot = self.insert(job);
        disk.submit(ring, op, Token::Disk(slot));
    }

    fn start(&mut self, ring: &mut Ring<Token>, job: Job) {
        let slot = self.insert(job);
        self.run(ring, slot);
    }

    fn insert(&mut self, job: Job) -> u32 {
        if let Some(slot) = self.free.pop() {
            self.jobs[slot as usize] = Some(job);
            return slot;
        }
        self.jobs.push(Some(job));
        self.jobs.len() as u32 - 1
    }

    /// Submits the next ring operation of a job, or lets it wait for a buffer.
    fn run(&mut self, ring: &mut Ring<Token>, slot: u32) {
        let Some(job) = &mut self.jobs[slot as usize] else { return };
        match job.next_op(self.pool, &mut self.reserve, &self.zeroes) {
            Some((disk, op)) => disk.submit(ring, op, Token::Disk(slot)),
            None => {
                let kind = usize::from(!job.is_on_metadata());
                self.starved[kind].push_back(slot);
            }
        }
    }

    /// A ring operation of the job ended: does the next one, or ends the job.
    fn advance(
        &mut self,
        ring: &mut Ring<Token>,
        slot: u32,
        mut job: Job,
        result: Result<(), DiskError>,
        buf: Option<Buf>,
        outcomes: &mut Vec<Outcome>,
    ) {
        match job.on_part(self.pool, result, buf) {
            None => {
                self.jobs[slot as usize] = Some(job);
                self.run(ring, slot);
            }
            Some(outcome) => {
                self.free.push(slot);
                let volume = job.volume;
                outcomes.push(outcome);
                drop(job);
                self.reopen(volume, outcomes);
            }
        }
    }

    /// Ends a job whose disk was closed, wherever it is: neither the core's buffers nor the disk are touched any more.
    fn bury(&mut self, slot: u32, job: Job, buf: Option<Buf>, outcomes: &mut Vec<Outcome>) {
        if let (Work::Read { bounce: false, .. }, Some(buf)) = (&job.work, buf) {
            self.pool.salvage(buf);
        }
        self.free.push(slot);
        let volume = job.volume;
        drop(job);
        self.reopen(volume, outcomes);
    }

    fn reopen(&mut self, volume: VolumeNr, outcomes: &mut Vec<Outcome>) {
        if self.reopening.contains(&volume) && !self.jobs.iter().flatten().any(|j| j.volume == volume) {
            self.reopening.retain(|v| *v != volume);
            let opened = self.open_now(volume);
            outcomes.push(Outcome::Opened(volume, opened));
        }
    }
}

impl Job {
    fn is_on_metadata(&self) -> bool {
        matches!(self.work, Work::MetaWrite { .. } | Work::MetaRead { .. })
    }

    /// The next ring operation; `None` if a buffer is lacking.
    fn next_op(&mut self, pool: &'static Pool, reserve: &mut Vec<Buf>, zeroes: &Buf) -> Option<(Rc<Disk>, Op)> {
        let OpenVolume { data, meta } = &self.disks;
        match &mut self.work {
            Work::Read { offset, data: target, bounce } => {
                let direct = match target {
                    Segments::One(b) if b.offset.is_multiple_of(512) && !*bounce => {
                        pool.reclaim_sole(BufId(b.id)).map(|buf| buf.span(b.offset as usize, b.len as usize))
                    }
                    _ => None,
                };
                *bounce = direct.is_none();
                let into = match direct {
                    Some(span) => span,
                    None => pool.take(target.len() as usize)?.span(0, target.len() as usize),
                };
                Some((data.clone(), data.read(*offset, into)))
            }
            Work::ReadNew { offset, len, .. } => {
                let into = pool.take(*len)?.span(0, *len);
                Some((data.clone(), data.read(*offset, into)))
            }
            Work::Plain => unreachable!("submitted when it was made"),
            Work::Zeroes { next, end, attempt, durable, .. } => {
                let op = match attempt {
                    ZeroAttempt::PunchHole => data.deallocate(*next, *end - *next),
                    ZeroAttempt::ZeroRange => data.zero(*next, *end - *next),
                    ZeroAttempt::Flushing => data.flush(),
                    ZeroAttempt::Writing => {
                        let n = zeroes.capacity().min((*end - *next) as usize);
                        data.write(*next, zeroes.clone().span(0, n), *durable)
                    }
                };
                Some((data.clone(), op))
            }
            Work::MetaWrite { flushes: 2, .. } => Some((data.clone(), data.flush())),
            Work::MetaWrite { flushes: 1, .. } => Some((meta.clone(), meta.flush())),
            Work::MetaWrite { offset, bytes, done, piece, fua, .. } => {
                let mut buf = meta_buffer(pool, reserve, META_PIECE.min(bytes.len() - *done))?;
                *piece = META_PIECE.min(bytes.len() - *done).min(buf.capacity());
                buf.bytes_mut()[..*piece].copy_from_slice(&bytes[*done..*done + *piece]);
                Some((meta.clone(), meta.write(*offset + *done as u64, buf.span(0, *piece), *fua)))
            }
            Work::MetaRead { offset, bytes, len, piece } => {
                let n = META_PIECE.min(*len - bytes.len());
                let buf = meta_buffer(pool, reserve, n)?;
                *piece = n.min(buf.capacity());
                let into = buf.span(0, *piece);
                Some((meta.clone(), meta.read(*offset + bytes.len() as u64, into)))
            }
        }
    }

    /// Takes note of a ring operation's end. `None`: there is more to do.
    fn on_part(&mut self, pool: &'static Pool, result: Result<(), DiskError>, buf: Option<Buf>) -> Option<Outcome> {
        let op = self.op;
        let disk = |result, data| Some(Outcome::Disk(DiskDone { op, result, data, zeroes: false }));
        match &mut self.work {
            Work::Plain => disk(result, Segments::None),
            Work::Read { data, bounce, .. } => {
                let buf = buf.expect("a read has a buffer");
                if !*bounce {
                    // The core's reference, which was lent to the kernel.
                    let _ = buf.into_id();
                } else if result.is_ok() {
                    scatter(pool, data, &buf.bytes()[..data.len() as usize]);
                }
                disk(result, Segments::None)
            }
            Work::ReadNew { len, detect_zeroes, .. } => {
                let (data, zeroes) = match (result, buf) {
                    (Ok(()), Some(buf)) => {
                        let zeroes = *detect_zeroes && all_zero(&buf.bytes()[..*len]);
                        (Segments::One(BufRef { id: buf.into_id().0, offset: 0, len: *len as u32 }), zeroes)
                    }
                    _ => (Segments::None, false),
                };
                Some(Outcome::Disk(DiskDone { op, result, data, zeroes }))
            }
            Work::Zeroes { next, end, attempt, fallback, durable } => {
                match (*attempt, result) {
                    (ZeroAttempt::Writing, Ok(())) => {
                        *next = *end.min(&mut (*next + (64 << 10)));
                        if *next < *end {
                            return None;
                        }
                    }
                    (ZeroAttempt::PunchHole | ZeroAttempt::ZeroRange, Ok(())) if *durable => {
                        *attempt = ZeroAttempt::Flushing;
                        return None;
                    }
                    (ZeroAttempt::PunchHole | ZeroAttempt::ZeroRange, Err(DiskError::NotSupported)) if *fallback => {
                        *attempt = ZeroAttempt::Writing;
                        return None;
                    }
                    _ => {}
                }
                disk(result, Segments::None)
            }
            Work::MetaWrite { flushes, bytes, done, piece, .. } => {
                if result.is_ok() {
                    if *flushes > 0 {
                        *flushes -= 1;
                        return None;
                    }
                    *done += *piece;
                    if *done < bytes.len() {
                        return None;
                    }
                }
                Some(Outcome::Meta(MetaDone { op, result: result.map(|()| Box::default()) }))
            }
            Work::MetaRead { bytes, len, piece, .. } => {
                if let (Ok(()), Some(buf)) = (result, buf) {
                    bytes.extend_from_slice(&buf.bytes()[..*piece]);
                    if bytes.len() < *len {
                        return None;
                    }
                }
                let bytes = std::mem::take(bytes);
                Some(Outcome::Meta(MetaDone { op, result: result.map(|()| bytes.into_boxed_slice()) }))
            }
        }
    }

    fn disk_of(&self, op: &Op) -> Rc<Disk> {
        if self.disks.meta.owns(op) { self.disks.meta.clone() } else { self.disks.data.clone() }
    }
}

/// A buffer for `len` bytes of metadata, or for as many as the reserve has.
fn meta_buffer(pool: &'static Pool, reserve: &mut Vec<Buf>, len: usize) -> Option<Buf> {
    pool.take(len).or_else(|| reserve.pop())
}

enum Part {
    /// The kernel did only a part: the rest of it.
    Again(Op),
    Ended(Result<(), DiskError>, Option<Buf>),
}

/// So many messages are kept to be used again.
const SPARE: usize = 256;

#[allow(clippy::vec_box)]
fn finish_part(op: Op, result: io::Result<u32>, spare: &mut Vec<Box<Message>>) -> Part {
    let n = match &result {
        Ok(n) => *n as usize,
        Err(e) => {
            let error = match e.raw_os_error() {
                Some(libc::EINTR | libc::EAGAIN) => return Part::Again(op),
                Some(libc::ENOSPC | libc::EDQUOT) => DiskError::NoSpace,
                Some(libc::EOPNOTSUPP | libc::ENOSYS) => DiskError::NotSupported,
                _ => DiskError::Io,
            };
            return Part::Ended(Err(error), buffer_of(op));
        }
    };
    match op {
        // The device ended before the read did.
        Op::Read { into, .. } if n == 0 => Part::Ended(Err(DiskError::Io), Some(into.into_buf())),
        Op::Read { fd, offset, mut into } if n < into.len() => {
            into.advance(n);
            Part::Again(Op::Read { fd, offset: offset + n as u64, into })
        }
        Op::Write { from, .. } if n == 0 => Part::Ended(Err(DiskError::Io), Some(from.into_buf())),
        Op::Write { fd, offset, mut from, durable } if n < from.len() => {
            from.advance(n);
            Part::Again(Op::Write { fd, offset: offset + n as u64, from, durable })
        }
        Op::WriteParts { .. } if n == 0 => Part::Ended(Err(DiskError::Io), None),
        Op::WriteParts { fd, offset, mut parts, durable } => {
            parts.advance(n);
            if parts.is_empty() {
                if spare.len() < SPARE {
                    parts.clear();
                    spare.push(parts);
                }
                return Part::Ended(Ok(()), None);
            }
            Part::Again(Op::WriteParts { fd, offset: offset + n as u64, parts, durable })
        }
        op => Part::Ended(Ok(()), buffer_of(op)),
    }
}

fn buffer_of(op: Op) -> Option<Buf> {
    match op {
        Op::Read { into, .. } => Some(into.into_buf()),
        _ => None,
    }
}

/// Is every byte zero? Most data says no within its first bytes.
fn all_zero(bytes: &[u8]) -> bool {
    // Whole words, so that the compiler can use wide registers.
    let (head, words, tail) = (bytes.len() % 64, bytes.chunks_exact(64), bytes.chunks_exact(64).remainder());
    debug_assert_eq!(head, tail.len());
    let zero = |chunk: &[u8]| chunk.iter().fold(0, |a, b| a | b) == 0;
    words.into_iter().all(zero) && zero(tail)
}

/// Copies `bytes` to the core's buffers of the same total length.
fn scatter(pool: &'static Pool, to: &Segments, mut bytes: &[u8]) {
    for piece in to.as_slice() {
        let n = (piece.len as usize).min(bytes.len());
        // What a reader gets is not to be silently something else.
        let mut buf = pool.reclaim_sole(BufId(piece.id)).expect("a read's buffer is the core's alone");
        buf.bytes_mut()[piece.offset as usize..][..n].copy_from_slice(&bytes[..n]);
        let _ = buf.into_id();
        bytes = &bytes[n..];
    }
}

#[cfg(test)]
mod tests;
