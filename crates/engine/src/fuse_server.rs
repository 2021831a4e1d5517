//! Block devices by FUSE and loop: a file system with one file per volume, a loop device on each (`devices`), and a
//! door to each device, which is what applications open (`doors`).
//!
//! The file system is mounted on `RUN_DIR/RES.dev`. Nothing of this outlives the process (the loop devices have
//! holders, [`frontends::loopdev::keep`]) but what a keeper holds as well: then the next process takes over
//! (`handover`).
//!
//! Requests come in one of two ways. Where the kernel has FUSE over io_uring and it is switched on, in *slots* that are
//! part of the loop's ring: no system call of their own. Else as messages, read and answered with plain calls that do
//! not block: io_uring would hand them to worker threads, as `/dev/fuse` has no way to be tried. What touches the
//! files (attaching, resizing and detaching loop devices) runs on helper threads, because this thread serves the files.

mod devices;
mod doors;
mod handover;
mod keeping;

pub(crate) use doors::Opening;
pub(crate) use handover::{Inherited, PRIMARY, PROMOTED};

use crate::buffers::{Buf, BufId, Pool};
use crate::log::log;
use crate::requests::{Asker, Requests};
use crate::ring::{Done, Fd, FuseSlot, Interface, Op, Ring};
use crate::sys;
use crate::token::Token;
use config::LocalResource;
use devices::{Node, Probe};
use doors::Doors;
use frontends::device_link::{DeviceLinks, Names};
use frontends::fuse::ledger::Ledger;
use frontends::fuse::{self, Event, MESSAGE_MAX, PAYLOAD_MAX, Session, WRITE_HEADER};
use frontends::{Errno, Export, Kind, Request};
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::io::{self, IoSlice, IoSliceMut};
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use units::{Instant, VolumeNr};
use urbd_core::{BufRef, Segments};

/// The file system and the loop devices on its files.
pub(crate) struct FuseServer {
    pool: &'static Pool,
    fd: Fd,
    root: OwnedFd,
    session: Session,
    /// `None`: it is left to the next process, or goes with this one.
    mounted: Option<Mounted>,
    links: DeviceLinks,
    names: Vec<Names>,
    resource: String,
    /// The group that doors belong to.
    group: u32,
    volumes: BTreeMap<VolumeNr, Node>,
    doors: Doors,
    /// Volumes whose last user has gone.
    closed: Vec<VolumeNr>,
    probe: Option<Probe>,
    /// The devices are being taken away.
    ending: bool,
    io: Io,
    message: Vec<u8>,
    /// Slots whose requests are being worked on, by the kernel's number of the request.
    slots: HashMap<u64, Box<FuseSlot>>,
    /// Writes for whose payload the pool has no buffer, oldest first.
    starved: VecDeque<Received>,
    /// Changes of any volume that have no answer yet.
    changing: u32,
    /// Flushes that began when every change had its answer, and how many there were; by the kernel's number.
    flushing: HashMap<u64, (VolumeNr, u64)>,
    /// Requests of which it is known how they end: flushes that have nothing to do, and what nobody may ask for any
    /// more.
    decided: Vec<(Request, Result<(), Errno>)>,
    out: Vec<u8>,
    armed: bool,
    gone: bool,
    stage: Stage,
    keeping: keeping::Keeping,
    /// What was read and not answered, if the kernel does not hand it out again.
    ledger: Option<Ledger>,
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

/// Whether what applications ask of a Primary is carried out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Io {
    Goes,
    Frozen,
    /// And writes have been read that there was no room for, or the keeper has put something aside.
    FrozenLacking,
    /// The kernel is to hand those out once more, as soon as what was read is answered.
    Lacking,
}

impl Io {
    fn is_frozen(self) -> bool {
        matches!(self, Io::Frozen | Io::FrozenLacking)
    }

    fn lacking(self) -> Io {
        if self.is_frozen() { Io::FrozenLacking } else { Io::Lacking }
    }
}

/// A request, and where its payload is.
struct Received {
    volume: VolumeNr,
    request: Request,
    payload: Range<usize>,
    /// `None`: it came as a message. Nothing more is read before that is admitted.
    slot: Option<Box<FuseSlot>>,
}

/// Messages taken before others get their turn.
const BATCH: usize = 128;

/// Memory for all slots, and how many a queue has. There is a queue for each processor.
const SLOT_MEMORY: usize = 32 << 20;
const SLOTS_PER_QUEUE: std::ops::RangeInclusive<usize> = 2..=64;

impl FuseServer {
    /// Mounts on the directory of the doors. What a dead process left there is cleared away. Requests come through the
    /// ring if `slots` and the kernel agrees. What else the ring completes meanwhile is appended to `done`.
    ///
    /// # Errors
    /// If the host has no FUSE or no loop devices, or we may not use them.
    pub(crate) fn start(
        ring: &mut Ring<Token>,
        done: &mut Vec<Done<Token>>,
        pool: &'static Pool,
        local: &LocalResource,
        links: DeviceLinks,
        slots: bool,
    ) -> io::Result<FuseServer> {
        let mut server = FuseServer::mount(pool, local, links)?;
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

    /// Volumes have come, others are gone, and what they are called changes with their disks.
    pub(crate) fn set_volumes(&mut self, local: &LocalResource) {
        let is_there = |nr: VolumeNr| local.volumes.iter().any(|v| v.nr == nr);
        let before = self.volumes.len();
        for nr in local.volumes.iter().map(|v| v.nr) {
            match self.volumes.get_mut(&nr) {
                Some(node) => node.goes = false,
                None => {
                    self.volumes.insert(nr, Node::default());
                    self.session.add_export(export(&self.resource, nr));
                }
            }
        }
        let came = self.volumes.len() > before;
        self.volumes.iter_mut().filter(|(nr, _)| !is_there(**nr)).for_each(|(_, node)| node.goes = true);
        let resource = std::mem::replace(&mut self.resource, local.name.clone());
        self.rename(&resource, local);
        if !self.forget_gone() && came {
            self.places();
        }
    }

    /// Volumes that are gone, as soon as their devices are. Were there any?
    fn forget_gone(&mut self) -> bool {
        let is_gone = |node: &Node| node.goes && node.device.is_none() && node.work.is_none();
        let gone: Vec<VolumeNr> = self.volumes.iter().filter(|(_, node)| is_gone(node)).map(|(nr, _)| *nr).collect();
        for nr in &gone {
            self.volumes.remove(nr);
            self.session.remove_export(u32::from(nr.0));
            if let Err(e) = self.links.remove(&self.resource, u32::from(nr.0)) {
                log("warning", &format!("the names of the device of volume {nr}: {e}"));
            }
        }
        if !gone.is_empty() {
            self.places();
        }
        !gone.is_empty()
    }

    /// Each volume has its place in what the keeper knows of them, and that is told anew.
    fn places(&mut self) {
        self.volumes.values_mut().enumerate().for_each(|(place, node)| node.place = place);
        self.keeping.forget_facts();
        if let Err(e) = self.say_all() {
            log("warning", &format!("the keeper: {e}"));
        }
    }

    fn rename(&mut self, resource: &str, local: &LocalResource) {
        let before = std::mem::replace(&mut self.names, names(local));
        for names in self.names.iter().filter(|names| !before.contains(names)) {
            let volume = VolumeNr(u16::try_from(names.volume).unwrap_or(u16::MAX));
            let primary = self.volumes.get(&volume).is_some_and(|node| node.primary);
            if self.volumes.get(&volume).is_some_and(|node| node.device.is_some())
                && let Err(e) = self.links.rename(resource, names, primary)
            {
                log("warning", &format!("the names of the device of volume {volume}: {e}"));
            }
        }
    }

    /// Do requests come through the ring?
    pub(crate) fn has_slots(&self) -> bool {
        self.session.has_slots()
    }

    fn mount(pool: &'static Pool, local: &LocalResource, links: DeviceLinks) -> io::Result<FuseServer> {
        std::fs::File::options().read(true).write(true).open("/dev/loop-control")?;
        for volume in local.volumes.iter().map(|v| v.nr) {
            if let Err(e) = links.clear_loop(&local.name, u32::from(volume.0)) {
                log("warning", &format!("what was left of the device of volume {volume}: {e}"));
            }
        }
        let (fd, mounted, root) = Mounted::new(links.doors(&local.name)?)?;
        sys::set_nonblocking(&fd);
        let mut server = FuseServer::on(pool, local, links, fd, root);
        server.mounted = Some(mounted);
        Ok(server)
    }

    fn on(pool: &'static Pool, local: &LocalResource, links: DeviceLinks, fd: Fd, root: OwnedFd) -> FuseServer {
        let resource = &local.name;
        let volumes = || local.volumes.iter().map(|v| v.nr);
        let mut nodes: BTreeMap<VolumeNr, Node> = volumes().map(|v| (v, Node::default())).collect();
        nodes.values_mut().enumerate().for_each(|(place, node)| node.place = place);
        let secret = links.secret(resource);
        let exports = volumes().map(|nr| export(resource, nr)).collect();
        let session = Session::new(exports, sys::user_and_group()).with_doors(secret);
        FuseServer {
            pool,
            fd,
            root,
            session,
            mounted: None,
            links,
            names: names(local),
            resource: resource.clone(),
            group: devices::device_group(),
            volumes: nodes,
            doors: Doors::default(),
            closed: Vec::new(),
            probe: None,
            ending: false,
            io: Io::Goes,
            // Not zeroes, which would be memory that comes when it is touched: a process that is killed while the
            // kernel copies a message takes the message with it if a page is missing.
            message: vec![u8::MAX; MESSAGE_MAX],
            slots: HashMap::new(),
            starved: VecDeque::new(),
            changing: 0,
            flushing: HashMap::new(),
            decided: Vec::new(),
            out: Vec::with_capacity(4096),
            armed: false,
            gone: false,
            stage: Stage::Serving,
            keeping: keeping::Keeping::default(),
            ledger: None,
            unread: VecDeque::new(),
        }
    }

    /// Answers the kernel's first message, which is there as soon as it has mounted.
    fn greet(&mut self) -> io::Result<()> {
        let n = sys::read(&self.fd, &mut self.message);
        let message = usize::try_from(n).map_err(|_| io::Error::from_raw_os_error(-n))?;
        self.out.clear();
        self.session.parse(&self.message[..message], &mut self.out);
        sys::write_message(&self.fd, &[IoSlice::new(&self.out)]);
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

    /// Does a write wait for a buffer?
    pub(crate) fn is_starved(&self) -> bool {
        !self.starved.is_empty() || !self.unread.is_empty()
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
        self.look_at_keeper();
        self.go_through_ledger(ring, requests);
        self.ask_for_lacking(requests);
        for (request, result) in std::mem::take(&mut self.decided) {
            self.answer(ring, &request, result, Vec::new());
        }
        if !self.armed {
            let mut taken = 0;
            while !self.is_blocked() && taken < BATCH && self.take_message(ring, requests) {
                taken += 1;
            }
            if !self.is_blocked() {
                self.arm(ring);
            }
        }
        self.open_doors(ring);
        self.start_tasks(ring);
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
            Event::Knock(knock) => self.on_knock(ring, knock, Some(slot)),
            Event::Released(volume) => {
                commit(ring, &self.fd, slot, &self.out, &[]);
                self.released(volume_nr(volume));
            }
            Event::Interrupted(unique) => {
                self.on_interrupt(ring, unique);
                commit(ring, &self.fd, slot, &[], &[]);
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
        sys::write_message(&self.fd, &parts);
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
    fn take_message(&mut self, ring: &mut Ring<Token>, requests: &mut Requests) -> bool {
        if self.ledger.is_some() {
            return self.take_into_ledger(ring, requests);
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
                sys::write_message(&self.fd, &[IoSlice::new(&self.out)]);
            }
            Event::Released(volume) => {
                sys::write_message(&self.fd, &[IoSlice::new(&self.out)]);
                self.released(volume_nr(volume));
            }
            Event::Knock(knock) => self.on_knock(ring, knock, None),
            Event::Interrupted(unique) => self.on_interrupt(ring, unique),
            // It comes once more. Who looks is behind it, and is answered.
            Event::Request { .. } if self.io == Io::Lacking => {}
            Event::Request { volume, request, payload } => {
                let volume = volume_nr(volume);
                if let Some(landed) = landing.filter(|_| !payload.is_empty()) {
                    if let Some(result) = self.note(volume, request) {
                        self.decided.push((request, result));
                        return true;
                    }
                    let data = Segments::One(self.fitting(landed, payload.len()));
                    requests.admit(Asker::Fuse, volume, request, data);
                } else if let Err(received) = self.admit(Received { volume, request, payload, slot: None }, requests) {
                    // Buffers come back when I/O goes on. Who asks for something else is behind it, and is answered.
                    match self.io.is_frozen() && self.session.can_resend() {
                        true => self.io = Io::FrozenLacking,
                        false => self.starved.push_back(received),
                    }
                }
            }
        }
        true
    }

    /// Reads a message: into `message`, or, what follows the headers of a write, into `landing`.
    fn read_message(&mut self, landing: Option<&mut Buf>) -> i32 {
        let (header, rest) = self.message.split_at_mut(WRITE_HEADER);
        let rest = landing.map_or(rest, |buf| &mut buf.bytes_mut()[..PAYLOAD_MAX]);
        sys::read_parts(&self.fd, &mut [IoSliceMut::new(header), IoSliceMut::new(rest)])
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

    /// I/O goes on, and what was under way is answered: what there was no room for comes again, and nothing else.
    fn ask_for_lacking(&mut self, requests: &Requests) {
        let answered = self.starved.is_empty() && self.decided.is_empty() && requests.of_devices() == 0;
        if self.io != Io::Lacking || !answered {
            return;
        }
        self.forget_openings();
        // What the keeper reads from here on is more than what comes again.
        self.look_at_keeper();
        match sys::write_message(&self.fd, &[IoSlice::new(&fuse::resend())]) {
            n if n < 0 => log("error", &format!("the kernel does not repeat its requests: {}", Errno::from_raw(-n))),
            _ => self.io = Io::Goes,
        }
    }

    /// Does a message wait that the next one would overwrite?
    fn is_blocked(&self) -> bool {
        self.starved.iter().any(|received| received.slot.is_none())
            || !self.unread.is_empty()
            || self.ledger.as_ref().is_some_and(Ledger::is_full)
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
        if let Some(result) = self.note(received.volume, received.request) {
            for piece in data.as_slice() {
                drop(self.pool.reclaim(BufId(piece.id)));
            }
            self.decided.push((received.request, result));
            return Ok(());
        }
        requests.admit(Asker::Fuse, received.volume, received.request, data);
        Ok(())
    }

    /// Counts what the kernel asks for. `Some`: it is known how it ends. A flush on a Secondary, or while I/O is
    /// frozen, and all that was written has been flushed before: the core refuses it, or keeps it waiting, as it does
    /// every request then, but there is nothing to lose. Nor is there with the flush that the kernel asks for then when
    /// it attaches the device, until somebody writes: it concerns nobody's data, and while it waits, so does every
    /// program that wants a loop device. A Primary's makes what its last user has written durable before it is demoted.
    fn note(&mut self, volume: VolumeNr, request: Request) -> Option<Result<(), Errno>> {
        let node = self.volumes.get_mut(&volume)?;
        match request.kind {
            Kind::Read if node.failing => return Some(Err(Errno::EIO)),
            Kind::Read => {}
            Kind::Flush
                if (self.io.is_frozen() || !node.primary)
                    && (node.flushed == node.changes || node.is_being_attached()) =>
            {
                return Some(Ok(()));
            }
            Kind::Flush if node.failing => return Some(Err(Errno::EIO)),
            Kind::Flush if self.changing == 0 => {
                self.flushing.insert(request.tag, (volume, node.changes));
            }
            Kind::Flush => {}
            Kind::Write | Kind::Discard | Kind::WriteZeroes { .. } => {
                self.changing += 1;
                node.changes += 1;
                node.tell(self.keeping.facts());
                if node.failing {
                    return Some(Err(Errno::EIO));
                }
            }
        }
        None
    }

    fn flushed(&mut self, tag: u64, result: Result<(), Errno>) {
        let Some((volume, changes)) = self.flushing.remove(&tag) else { return };
        if let Some(node) = self.volumes.get_mut(&volume).filter(|_| result.is_ok()) {
            node.flushed = node.flushed.max(changes);
            node.tell(self.keeping.facts());
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

/// A volume's file, empty as long as there is no disk and no peer.
fn export(resource: &str, nr: VolumeNr) -> Export {
    Export::new(u32::from(nr.0), format!("{resource}/{nr}"), 0).read_only()
}

/// What the volumes' devices are called.
fn names(local: &LocalResource) -> Vec<Names> {
    let of = |volume: &config::LocalVolume| Names {
        resource: local.name.clone(),
        volume: u32::from(volume.nr.0),
        implicit: volume.implicit,
        minor: volume.minor,
        name: volume.name.clone(),
        disk: volume.backing.as_ref().map(|backing| backing.path.clone()),
    };
    local.volumes.iter().map(of).collect()
}

/// The mounted directory; taken out of the tree when this is dropped.
struct Mounted(PathBuf);

impl Mounted {
    /// Mounts on `place`, and opens the root directory. A mount that a process left there is cleared away.
    fn new(place: PathBuf) -> io::Result<(Fd, Mounted, OwnedFd)> {
        // Mounting and unmounting follow links.
        if place.is_symlink() {
            let what = format!("{} is a symbolic link: remove it", place.display());
            return Err(io::Error::new(io::ErrorKind::AlreadyExists, what));
        }
        clear_mount(&place)?;
        std::fs::create_dir_all(&place)?;
        let fd: Fd = Rc::new(fuse::mount_with_devices(&place)?);
        let mounted = Mounted(place);
        let root = crate::sys::open_unseen(&mounted.0);
        Ok((fd, mounted, root?.into()))
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        // What stays is cleared away by the next one.
        if fuse::unmount(&self.0).is_ok() {
            let _ = std::fs::remove_dir(&self.0);
        }
    }
}

/// Unmounts what a process has left on `place`. Nobody is asked: the file system may not answer any more.
pub(crate) fn clear_mount(place: &Path) -> io::Result<()> {
    if fuse::is_mounted(place)? { fuse::unmount(place) } else { Ok(()) }
}
