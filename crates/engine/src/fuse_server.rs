//! Block devices by FUSE and loop: a file system with one file per volume, and a loop device on each while this node is
//! Primary.
//!
//! The file system is taken out of the directory tree at once and lives on an open descriptor of its root. Nothing of
//! this outlives the process (the loop devices have holders, [`loopdev::keep`]) but what a keeper holds as well: then
//! the next process takes over (`handover`).
//!
//! Requests come in one of two ways. Where the kernel has FUSE over io_uring and it is switched on, in *slots* that are
//! part of the loop's ring: no system call of their own. Else as messages, read and answered with plain calls that do
//! not block: io_uring would hand them to worker threads, as `/dev/fuse` has no way to be tried. What touches the
//! files (attaching, resizing and detaching loop devices) runs on helper threads, because this thread serves the files.

mod handover;
mod ledger;

pub(crate) use handover::Inherited;

use crate::buffers::{Buf, Pool};
use crate::requests::{Asker, Requests};
use crate::resource::log;
use crate::ring::{Done, Fd, FuseSlot, Interface, Op, Ring};
use crate::sys;
use crate::token::Token;
use frontends::device_link::DeviceLinks;
use frontends::fuse::{self, Event, MESSAGE_MAX, PAYLOAD_MAX, Session, WRITE_HEADER};
use frontends::keeper::Keeper;
use frontends::loopdev::{self, Background, Kept, in_background};
use frontends::{Errno, Export, Kind, Request};
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::io::{self, IoSlice, IoSliceMut};
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;
use units::{ByteLen, Instant, VolumeNr};
use urbd_core::{Access, BufRef, Segments};

/// The file system and the loop devices on its files.
pub(crate) struct FuseServer {
    pool: &'static Pool,
    fd: Fd,
    root: OwnedFd,
    session: Session,
    links: DeviceLinks,
    resource: String,
    volumes: BTreeMap<VolumeNr, Node>,
    message: Vec<u8>,
    /// Slots whose requests are being worked on, by the kernel's number of the request.
    slots: HashMap<u64, Box<FuseSlot>>,
    /// Writes for whose payload the pool has no buffer, oldest first.
    starved: VecDeque<Received>,
    /// Changes of any volume that have no answer yet.
    changing: u32,
    /// Flushes that began when every change had its answer, and how many there were; by the kernel's number.
    flushing: HashMap<u64, (VolumeNr, u64)>,
    /// Flushes of which it is known that they have nothing to do.
    idle_flushes: Vec<Request>,
    out: Vec<u8>,
    armed: bool,
    gone: bool,
    stage: Stage,
    /// Who holds what outlives this process.
    keeper: Option<Keeper>,
    /// What was read and not answered, if the kernel does not hand it out again.
    ledger: Option<ledger::Ledger>,
    /// Of it, what waits for a buffer or has not been looked at, oldest first.
    unread: VecDeque<usize>,
}

/// Whether requests are taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Stage {
    /// Not yet: they were made to another process, and this one must be Primary first.
    Waiting,
    Serving,
    /// Not any more: they wait for the next process.
    Leaving,
}

/// A request, and where its payload is.
struct Received {
    volume: VolumeNr,
    request: Request,
    payload: Range<usize>,
    /// `None`: it came as a message. Nothing more is read before that is admitted.
    slot: Option<Box<FuseSlot>>,
}

/// A volume's block device.
#[derive(Default)]
struct Node {
    /// Bytes that it is to have; 0: there is to be no device.
    wanted: u64,
    device: Option<(Kept, u64)>,
    link: Option<PathBuf>,
    work: Option<Work>,
    used: bool,
    /// Why there is no device, or one of another size. Not tried again until something changes.
    problem: Option<String>,
    /// Changes that the kernel has asked for, and how many of them the last flush covered.
    changes: u64,
    flushed: u64,
}

/// What is being done about a device, and the size that it is to have then.
enum Work {
    Attach(Background<Kept>, u64),
    Resize(Background<u64>, u64),
    Detach(Background<()>),
}

/// No pauses of writeback by the kernel: how much is under way is bounded by our buffers.
const DEVICE: loopdev::Options = loopdev::Options { read_only: false, block_size: 512, paced: false };

/// How long a device may be in use after its last user let go of it.
const RELEASE_ATTEMPTS: u32 = 40;
const RELEASE_PAUSE: Duration = Duration::from_millis(50);

/// Messages taken before others get their turn.
const BATCH: usize = 128;

/// Memory for all slots, and how many a queue has. There is a queue for each processor.
const SLOT_MEMORY: usize = 32 << 20;
const SLOTS_PER_QUEUE: std::ops::RangeInclusive<usize> = 2..=64;

impl FuseServer {
    /// Mounts on `RUN_DIR/RES.fuse`, for a moment. What a dead process left there is cleared away. Requests come
    /// through the ring if `slots` and the kernel agrees. What else the ring completes meanwhile is appended to `done`.
    ///
    /// # Errors
    /// If the host has no FUSE or no loop devices, or we may not use them.
    pub(crate) fn start(
        ring: &mut Ring<Token>,
        done: &mut Vec<Done<Token>>,
        pool: &'static Pool,
        resource: &str,
        volumes: &[VolumeNr],
        run_dir: &Path,
        slots: bool,
    ) -> io::Result<FuseServer> {
        let mut server = FuseServer::mount(pool, resource, volumes, run_dir)?;
        if slots && ring.interface() == Interface::IoUring {
            server.session = server.session.wanting_slots();
        }
        server.greet()?;
        if server.session.has_slots() {
            server.give_slots(ring, done)?;
        }
        server.arm(ring);
        Ok(server)
    }

    /// Do requests come through the ring?
    pub(crate) fn has_slots(&self) -> bool {
        self.session.has_slots()
    }

    fn mount(pool: &'static Pool, resource: &str, volumes: &[VolumeNr], run_dir: &Path) -> io::Result<FuseServer> {
        std::fs::File::options().read(true).write(true).open("/dev/loop-control")?;
        let mount = run_dir.join(format!("{resource}.fuse"));
        let (fd, root) = mount_aside(&mount)?;
        sys::set_nonblocking(fd.as_raw_fd());
        let server = FuseServer::on(pool, (resource, run_dir), volumes, fd, root);
        for volume in volumes {
            // A dead process's; it would lead nowhere, or to somebody else's loop device.
            let _ = server.links.remove(resource, u32::from(volume.0));
        }
        Ok(server)
    }

    fn on(
        pool: &'static Pool,
        (resource, run_dir): (&str, &Path),
        volumes: &[VolumeNr],
        fd: Fd,
        root: OwnedFd,
    ) -> FuseServer {
        let export = |v: &VolumeNr| Export::new(u32::from(v.0), format!("{resource}/{}", v.0), 0).read_only();
        FuseServer {
            pool,
            fd,
            root,
            session: Session::new(volumes.iter().map(export).collect(), sys::user_and_group()),
            links: DeviceLinks::from_env(run_dir),
            resource: resource.to_owned(),
            volumes: volumes.iter().map(|v| (*v, Node::default())).collect(),
            // Not zeroes, which would be memory that comes when it is touched: a process that is killed while the
            // kernel copies a message takes the message with it if a page is missing.
            message: vec![u8::MAX; MESSAGE_MAX],
            slots: HashMap::new(),
            starved: VecDeque::new(),
            changing: 0,
            flushing: HashMap::new(),
            idle_flushes: Vec::new(),
            out: Vec::with_capacity(4096),
            armed: false,
            gone: false,
            stage: Stage::Serving,
            keeper: None,
            ledger: None,
            unread: VecDeque::new(),
        }
    }

    /// Answers the kernel's first message, which is there as soon as it has mounted.
    fn greet(&mut self) -> io::Result<()> {
        let n = sys::read_into(self.fd.as_raw_fd(), &mut self.message);
        let message = usize::try_from(n).map_err(|_| io::Error::from_raw_os_error(-n))?;
        self.out.clear();
        self.session.parse(&self.message[..message], &mut self.out);
        sys::write_message(self.fd.as_raw_fd(), &[IoSlice::new(&self.out)]);
        self.open_ledger()
    }

    /// Registers slots, the same number for each queue.
    fn give_slots(&mut self, ring: &mut Ring<Token>, done: &mut Vec<Done<Token>>) -> io::Result<()> {
        let queues = sys::possible_processors()?;
        let each = SLOT_MEMORY / FuseSlot::SIZE / usize::from(queues);
        let each = each.clamp(*SLOTS_PER_QUEUE.start(), *SLOTS_PER_QUEUE.end());
        self.slots.reserve(each * usize::from(queues));
        for queue in (0..queues).flat_map(|queue| std::iter::repeat_n(queue, each)) {
            let slot = Box::new(FuseSlot::new(queue));
            ring.push(Op::FuseFetch { fd: self.fd.clone(), slot }, Token::FuseSlot);
        }
        ring.turn(Some(Instant(0)), done)?;
        let refused = done.iter().filter(|d| d.token == Token::FuseSlot).find_map(|d| d.result().err());
        refused.map_or(Ok(()), Err)
    }

    /// What the volume's device is to be from now on.
    pub(crate) fn set_device(&mut self, volume: VolumeNr, size: ByteLen, access: Access, discard: bool) {
        if self.stage == Stage::Leaving {
            return;
        }
        let Some(node) = self.volumes.get_mut(&volume) else { return };
        node.wanted = if access == Access::ReadWrite { size.0 } else { 0 };
        node.problem = None;
        if let Some(export) = self.session.export_mut(u32::from(volume.0)) {
            export.size = size.0;
            export.read_only = access != Access::ReadWrite;
            export.can_trim = discard;
        }
    }

    /// Is a device being attached, resized or detached?
    pub(crate) fn is_busy(&self) -> bool {
        self.volumes.values().any(|n| n.work.is_some() || self.takes_requests() && n.needs_work())
    }

    /// Which device that there should be could not be made, and why.
    pub(crate) fn missing(&self) -> Option<String> {
        let missing = |(_, node): &(&VolumeNr, &Node)| node.wanted > 0 && node.device.is_none();
        let (volume, node) = self.volumes.iter().find(missing)?;
        Some(format!("volume {volume}: {}", node.problem.as_deref()?))
    }

    /// What could not be done is tried once more.
    pub(crate) fn try_again(&mut self) {
        self.volumes.values_mut().for_each(|node| node.problem = None);
    }

    /// Does a write wait for a buffer?
    pub(crate) fn is_starved(&self) -> bool {
        !self.starved.is_empty() || !self.unread.is_empty()
    }

    /// Is there a device?
    pub(crate) fn has_devices(&self) -> bool {
        self.volumes.values().any(|n| n.device.is_some())
    }

    /// The path that applications open.
    pub(crate) fn device_path(&self, volume: VolumeNr) -> Option<PathBuf> {
        let node = self.volumes.get(&volume)?;
        let named = node.link.clone().filter(|_| self.links.is_own(&self.resource, u32::from(volume.0)));
        named.or_else(|| node.device.as_ref().map(|(kept, _)| kept.device().path()))
    }

    /// Was the device in use when it was last looked at?
    pub(crate) fn is_used(&self, volume: VolumeNr) -> bool {
        self.stage == Stage::Serving && self.volumes.get(&volume).is_some_and(|n| n.used)
    }

    /// Looks which devices are in use (mounted, or claimed by another driver); [`Token::UseCheck`] comes when it is
    /// known. What applications left in the page cache is written back before. Opening a device may wait for its
    /// writes, so it is not done here.
    pub(crate) fn check_use(&self, ring: &mut Ring<Token>) -> io::Result<Background<Vec<VolumeNr>>> {
        let devices: Vec<(VolumeNr, PathBuf)> =
            self.volumes.iter().filter_map(|(v, n)| Some((*v, n.device.as_ref()?.0.device().path()))).collect();
        let work = in_background(&[], move || {
            let claimed = |path: &PathBuf| {
                let open = std::fs::File::options().read(true).custom_flags(libc::O_EXCL).open(path);
                let written_back = open.and_then(|device| device.sync_all());
                written_back.is_err_and(|e| e.raw_os_error() == Some(libc::EBUSY))
            };
            // What has just been unmounted may still be let go of.
            let claimed = |path: &PathBuf| {
                (0..RELEASE_ATTEMPTS).all(|attempt| {
                    let pause = if attempt == 0 { Duration::ZERO } else { RELEASE_PAUSE };
                    std::thread::sleep(pause);
                    claimed(path)
                })
            };
            Ok(devices.into_iter().filter(|(_, path)| claimed(path)).map(|(v, _)| v).collect())
        })?;
        watch(ring, &work, Token::UseCheck)?;
        Ok(work)
    }

    /// Notes which volumes' devices are in use.
    pub(crate) fn set_used(&mut self, used: &[VolumeNr]) {
        self.volumes.iter_mut().for_each(|(v, n)| n.used = used.contains(v));
    }

    /// The kernel has messages for us.
    pub(crate) fn on_readable(&mut self, ring: &mut Ring<Token>, requests: &mut Requests) {
        self.armed = false;
        self.pump(ring, requests);
    }

    /// Takes in messages, and starts what has to be done about the devices.
    pub(crate) fn pump(&mut self, ring: &mut Ring<Token>, requests: &mut Requests) {
        if !self.takes_requests() {
            return;
        }
        while let Some(received) = self.starved.pop_front() {
            if let Err(received) = self.admit(received, requests) {
                self.starved.push_front(received);
                break;
            }
        }
        self.go_through_ledger(requests);
        for flush in std::mem::take(&mut self.idle_flushes) {
            self.answer(ring, &flush, Ok(()), Vec::new());
        }
        if !self.armed {
            let mut taken = 0;
            while !self.is_blocked() && taken < BATCH && self.take_message(requests) {
                taken += 1;
            }
            if !self.is_blocked() {
                self.arm(ring);
            }
        }
        let volumes: Vec<VolumeNr> =
            self.volumes.iter().filter(|(_, n)| n.work.is_none() && n.needs_work()).map(|(v, _)| *v).collect();
        for volume in volumes {
            self.start_work(ring, volume);
        }
    }

    /// A helper thread has done its work. `Some` says what went wrong.
    pub(crate) fn on_work(&mut self, volume: VolumeNr) -> Option<String> {
        let node = self.volumes.get_mut(&volume)?;
        let ended = match node.work.take()? {
            Work::Attach(mut work, size) => work.take()?.map(|kept| node.device = Some((kept, size))),
            Work::Resize(mut work, size) => {
                node.device.iter_mut().for_each(|device| device.1 = size);
                work.take()?.map(drop)
            }
            Work::Detach(mut work) => work.take()?,
        };
        if let Err(e) = ended {
            node.problem = Some(e.to_string());
            return node.problem.clone();
        }
        // If the keeper has just ended, its successor is given all devices.
        let shared = self.share(volume).map_err(|e| format!("the keeper: {e}"));
        let linked = self.link(volume).map_err(|e| format!("its name in /dev/urbd: {e}"));
        linked.and(shared).err()
    }

    /// The device's name leads to it, or is gone.
    fn link(&mut self, volume: VolumeNr) -> io::Result<()> {
        let Some(node) = self.volumes.get_mut(&volume) else { return Ok(()) };
        let number = u32::from(volume.0);
        node.link = match &node.device {
            Some((kept, _)) => Some(self.links.create(&self.resource, number, &kept.device().path())?),
            None => self.links.remove(&self.resource, number).map(|()| None)?,
        };
        Ok(())
    }

    /// The kernel has put a request into a slot, or the slot is of no use any more.
    pub(crate) fn on_slot(&mut self, done: Done<Token>, ring: &mut Ring<Token>, requests: &mut Requests) {
        let filled = done.result().is_ok();
        let Some(Op::FuseFetch { mut slot, .. }) = done.op.filter(|_| filled) else { return };
        let (header, payload) = slot.contents();
        self.out.clear();
        match self.session.parse_slot(header, payload, &mut self.out) {
            Event::Request { volume, request, payload } => {
                let volume = volume_nr(volume);
                let received = Received { volume, request, payload, slot: Some(slot) };
                if let Err(received) = self.admit(received, requests) {
                    self.starved.push_back(received);
                }
            }
            Event::None | Event::Reply | Event::Destroyed => commit(ring, &self.fd, slot, &self.out, &[]),
        }
    }

    /// Answers a request; `data` is what a read brought.
    pub(crate) fn answer(
        &mut self,
        ring: &mut Ring<Token>,
        request: &Request,
        result: Result<(), Errno>,
        data: Vec<(Buf, u32)>,
    ) {
        match request.kind {
            Kind::Read => {}
            Kind::Flush => self.flushed(request.tag, result),
            Kind::Write | Kind::Discard | Kind::WriteZeroes { .. } => self.changing = self.changing.saturating_sub(1),
        }
        let header = Session::reply(request, result);
        if let Some(slot) = self.slots.remove(&request.tag) {
            return commit(ring, &self.fd, slot, &header, &data);
        }
        let pieces = data.iter().map(|(buf, len)| IoSlice::new(&buf.bytes()[..*len as usize]));
        let parts: Vec<IoSlice<'_>> = std::iter::once(IoSlice::new(&header)).chain(pieces).collect();
        // ENOENT: the caller was interrupted and does not wait any more.
        sys::write_message(self.fd.as_raw_fd(), &parts);
        if let Some(ledger) = &mut self.ledger {
            ledger.answered(request.tag);
        }
    }

    fn arm(&mut self, ring: &mut Ring<Token>) {
        if !self.armed && !self.gone && self.takes_requests() {
            self.armed = true;
            ring.push(Op::Readable { fd: self.fd.clone() }, Token::Fuse);
        }
    }

    /// Reads and handles one message; false if there was none.
    fn take_message(&mut self, requests: &mut Requests) -> bool {
        if self.ledger.is_some() {
            return self.take_into_ledger(requests);
        }
        // What follows the headers of a write goes where the write can leave it.
        let mut landing = self.pool.take(PAYLOAD_MAX);
        let n = self.read_message(landing.as_mut());
        if n <= 0 {
            self.gone = n == -libc::ENODEV;
            // ENOENT: the message was taken back by an interrupt while it was read.
            return n == -libc::ENOENT || n == -libc::EINTR;
        }
        match self.parse_message(n as usize, &mut landing) {
            Event::None => {}
            Event::Reply | Event::Destroyed => {
                sys::write_message(self.fd.as_raw_fd(), &[IoSlice::new(&self.out)]);
            }
            Event::Request { volume, request, payload } => {
                let volume = volume_nr(volume);
                if let Some(landed) = landing.filter(|_| !payload.is_empty()) {
                    self.note(volume, request);
                    let data = Segments::One(self.fitting(landed, payload.len()));
                    requests.admit(Asker::Fuse, volume, request, data);
                } else if let Err(received) = self.admit(Received { volume, request, payload, slot: None }, requests) {
                    self.starved.push_back(received);
                }
            }
        }
        true
    }

    /// Reads a message: into `message`, or, what follows the headers of a write, into `landing`.
    fn read_message(&mut self, landing: Option<&mut Buf>) -> i32 {
        let (header, rest) = self.message.split_at_mut(WRITE_HEADER);
        let rest = landing.map_or(rest, |buf| &mut buf.bytes_mut()[..PAYLOAD_MAX]);
        sys::read_parts(self.fd.as_raw_fd(), &mut [IoSliceMut::new(header), IoSliceMut::new(rest)])
    }

    /// Parses a message of `n` bytes. If its payload is not in `landing`, that is `None` afterwards.
    fn parse_message(&mut self, n: usize, landing: &mut Option<Buf>) -> Event {
        self.out.clear();
        if let Some(buf) = landing.take() {
            let (header, rest) = self.message.split_first_chunk_mut().expect("it holds the longest message");
            let landed = &buf.bytes()[..n.saturating_sub(WRITE_HEADER)];
            if let Some(event) = self.session.parse_write(header, landed, &mut self.out) {
                *landing = Some(buf);
                return event;
            }
            rest[..landed.len()].copy_from_slice(landed);
        }
        self.session.parse(&self.message[..n], &mut self.out)
    }

    /// Where a payload of `len` bytes that was read into `landed` stays: there, or in a smaller buffer if one will do.
    fn fitting(&self, landed: Buf, len: usize) -> BufRef {
        let smaller = self.pool.take(len).filter(|buf| buf.capacity() < landed.capacity());
        let buf = smaller.map(|mut buf| {
            buf.bytes_mut()[..len].copy_from_slice(&landed.bytes()[..len]);
            buf
        });
        BufRef { id: buf.unwrap_or(landed).into_id().0, offset: 0, len: len as u32 }
    }

    /// Does a message wait that the next one would overwrite?
    fn is_blocked(&self) -> bool {
        self.starved.iter().any(|received| received.slot.is_none())
            || !self.unread.is_empty()
            || self.ledger.as_ref().is_some_and(ledger::Ledger::is_full)
    }

    /// Gives it back if there is no buffer for its payload.
    fn admit(&mut self, mut received: Received, requests: &mut Requests) -> Result<(), Received> {
        let mut data = Segments::None;
        let payload = received.payload.clone();
        if !payload.is_empty() {
            let Some(mut buf) = self.pool.take(payload.len()) else { return Err(received) };
            let bytes = match &mut received.slot {
                Some(slot) => &slot.contents().1[payload.clone()],
                None => &self.message[payload.clone()],
            };
            buf.bytes_mut()[..payload.len()].copy_from_slice(bytes);
            data = Segments::One(BufRef { id: buf.into_id().0, offset: 0, len: payload.len() as u32 });
        }
        if let Some(slot) = received.slot {
            self.slots.insert(received.request.tag, slot);
        }
        if self.note(received.volume, received.request) {
            self.idle_flushes.push(received.request);
            return Ok(());
        }
        requests.admit(Asker::Fuse, received.volume, received.request, data);
        Ok(())
    }

    /// Counts what the kernel asks for. True: a flush of a device that is being taken away, and all that was written
    /// has been flushed before. The core refuses it as it does every request on a Secondary, but there is nothing to
    /// lose.
    fn note(&mut self, volume: VolumeNr, request: Request) -> bool {
        let Some(node) = self.volumes.get_mut(&volume) else { return false };
        match request.kind {
            Kind::Read => {}
            Kind::Flush if node.wanted == 0 && node.flushed == node.changes => return true,
            Kind::Flush if self.changing == 0 => {
                self.flushing.insert(request.tag, (volume, node.changes));
            }
            Kind::Flush => {}
            Kind::Write | Kind::Discard | Kind::WriteZeroes { .. } => {
                self.changing += 1;
                node.changes += 1;
            }
        }
        false
    }

    fn flushed(&mut self, tag: u64, result: Result<(), Errno>) {
        let Some((volume, changes)) = self.flushing.remove(&tag) else { return };
        if let Some(node) = self.volumes.get_mut(&volume).filter(|_| result.is_ok()) {
            node.flushed = node.flushed.max(changes);
        }
    }

    fn start_work(&mut self, ring: &mut Ring<Token>, volume: VolumeNr) {
        let file = PathBuf::from(format!("/proc/thread-self/fd/{}/{volume}", self.root.as_raw_fd()));
        let Some(node) = self.volumes.get_mut(&volume) else { return };
        let token = Token::FuseWork(volume);
        let started = match (node.device.take(), node.wanted) {
            (None, size) => loopdev::keep_through(file, &[self.root.as_fd()], DEVICE)
                .and_then(|work| watch(ring, &work, token).map(|()| Work::Attach(work, size))),
            (Some((kept, _)), 0) => in_background(&[], move || kept.detach())
                .and_then(|work| watch(ring, &work, token).map(|()| Work::Detach(work))),
            (Some((kept, old)), size) => {
                let device = kept.device();
                node.device = Some((kept, old));
                in_background(&[self.root.as_fd()], move || device.refresh_size(&file))
                    .and_then(|work| watch(ring, &work, token).map(|()| Work::Resize(work, size)))
            }
        };
        match started {
            Ok(work) => node.work = Some(work),
            Err(e) => {
                log("error", &format!("the block device of volume {volume}: {e}"));
                node.problem = Some(e.to_string());
            }
        }
    }
}

/// Gives a slot back to the kernel, with the answer to the request that came in it.
fn commit(ring: &mut Ring<Token>, fd: &Fd, mut slot: Box<FuseSlot>, answer: &[u8], data: &[(Buf, u32)]) {
    let (header, payload) = slot.contents();
    let pieces = data.iter().map(|(buf, len)| &buf.bytes()[..*len as usize]);
    let id = fuse::commit(header, payload, answer, pieces);
    slot.set_answers(id);
    ring.push(Op::FuseFetch { fd: fd.clone(), slot }, Token::FuseSlot);
}

fn volume_nr(id: u32) -> VolumeNr {
    VolumeNr(u16::try_from(id).unwrap_or(u16::MAX))
}

impl Node {
    /// Is there something to be done about the device?
    fn needs_work(&self) -> bool {
        self.problem.is_none() && self.wanted != self.device.as_ref().map_or(0, |(_, size)| *size)
    }
}

/// Lets the end of background work complete with `token`.
fn watch<T>(ring: &mut Ring<Token>, work: &Background<T>, token: Token) -> io::Result<()> {
    let fd: Fd = Rc::new(work.as_fd().try_clone_to_owned()?);
    ring.push(Op::Readable { fd }, token);
    Ok(())
}

/// Mounts on `place`, opens the root directory, and unmounts again: nobody but us can reach the files, and they are
/// gone when we are. A mount that a process left there which died in between is cleared away.
fn mount_aside(place: &Path) -> io::Result<(Fd, OwnedFd)> {
    // Mounting and unmounting follow links.
    if place.is_symlink() {
        let what = format!("{} is a symbolic link: remove it", place.display());
        return Err(io::Error::new(io::ErrorKind::AlreadyExists, what));
    }
    if fuse::is_mounted(place)? {
        fuse::unmount(place)?;
    }
    std::fs::create_dir_all(place)?;
    let fd: Fd = Rc::new(fuse::mount(place)?);
    let root = std::fs::File::options().read(true).custom_flags(libc::O_PATH | libc::O_DIRECTORY).open(place);
    fuse::unmount(place)?;
    std::fs::remove_dir(place)?;
    Ok((fd, root?.into()))
}
