//! The block devices outlive the process: a keeper holds what they hang on, and the next process goes on with it.
//!
//! What makes that safe, each of it measured: the keeper has the same open file of `/dev/fuse` that is read here; all
//! memory that the kernel copies requests to and answers from is present and locked; what the last process has read and
//! not answered is asked for once, before the first read, when that process is gone and its I/O over (the lock of the
//! resource and those of its disks say so); every request may be carried out twice; and no thread of ours that has the
//! resource's descriptors touches the files or the devices.

use super::devices::{Device, Hold, Node};
use super::keeping::{Keeping, Left};
use super::{FuseServer, Mounted, Stage, VolumeNr, export};
use crate::buffers::BufId;
use crate::buffers::Pool;
use crate::claim::contract;
use crate::log::log;
use crate::requests::{Asker, Requests};
use crate::ring::{Fd, Ring};
use crate::sys;
use crate::token::Token;
use config::LocalResource;
use frontends::device_link::DeviceLinks;
use frontends::fuse::facts::Facts;
use frontends::fuse::ledger::Ledger;
use frontends::fuse::{self, Door, Event, WRITE_HEADER};
use frontends::keeper::{Keeper, Kind, LEFT, Place, REQUESTS};
use frontends::loopdev::{self, LoopDevice};
use std::collections::btree_map::Entry;
use std::io::{self, IoSlice};
use std::os::fd::{AsFd, OwnedFd};
use std::rc::Rc;
use urbd_core::{BufRef, Segments};

/// What another process has left.
pub(crate) struct Inherited {
    connection: OwnedFd,
    root: OwnedFd,
    /// Devices that were held, and the names of all.
    devices: Vec<(VolumeNr, OwnedFd)>,
    left: Left,
    tags: Vec<(VolumeNr, OwnedFd)>,
    /// Those that must not be written to.
    read_only: Vec<VolumeNr>,
    /// The last process was Primary.
    primary: bool,
}

/// The last process was Primary: by command, or because somebody had opened a device.
pub(crate) const PRIMARY: Place = Place { kind: Kind::Note, number: 2 };
pub(crate) const PROMOTED: Place = Place { kind: Kind::Note, number: 3 };

/// The administrator has forbidden to write to the volume's device.
fn read_only(volume: VolumeNr) -> Place {
    Place { kind: Kind::Note, number: 1 << 16 | u32::from(volume.0) }
}

/// Environment variable for tests: `no` does without the kernel's `FUSE_NOTIFY_RESEND`, as before Linux 6.9.
const RESEND: &str = "URBD_FUSE_RESEND";

const ROOT: Place = Place { kind: Kind::Root, number: 0 };

impl Inherited {
    /// Takes it out of what the keeper has. `None`: there is no file system to go on with.
    pub(crate) fn from(left: &mut Vec<(Place, OwnedFd)>) -> Option<Inherited> {
        let mut take = |place: Place| {
            let at = left.iter().position(|(other, _)| *other == place)?;
            Some(left.swap_remove(at).1)
        };
        let (connection, root) = (take(connection()), take(ROOT));
        let left_over = Left::from(&mut take);
        let (connection, root) = (connection?, root?);
        let (mut devices, mut tags) = (Vec::new(), Vec::new());
        let primary = left.iter().any(|(place, _)| matches!(*place, PRIMARY | PROMOTED));
        let mut forbidden = Vec::new();
        for (place, descriptor) in std::mem::take(left) {
            let volume = VolumeNr(place.number as u16);
            forbidden.extend((place == read_only(volume)).then_some(volume));
            match (place.kind, u16::try_from(place.number)) {
                (Kind::Device, Ok(number)) => devices.push((VolumeNr(number), descriptor)),
                (Kind::Tag, Ok(number)) => tags.push((VolumeNr(number), descriptor)),
                _ => left.push((place, descriptor)),
            }
        }
        Some(Inherited { connection, root, devices, left: left_over, tags, read_only: forbidden, primary })
    }
}

/// The connection that this version can go on with.
fn connection() -> Place {
    Place { kind: Kind::Connection, number: contract() }
}

impl FuseServer {
    /// Goes on where another process has ended. If that one was Primary, requests wait until [`FuseServer::go_on`].
    ///
    /// # Errors
    /// If what was left is not what it should be.
    pub(crate) fn take_over(
        ring: &mut Ring<Token>,
        pool: &'static Pool,
        local: &LocalResource,
        links: DeviceLinks,
        inherited: Inherited,
        keeper: &Keeper,
    ) -> io::Result<FuseServer> {
        let Inherited { connection, root, devices, left, tags, read_only, primary } = inherited;
        let fd: Fd = Rc::new(connection);
        let mounted = Mounted(links.doors(&local.name)?);
        let mut server = FuseServer::on(pool, local, links, fd, root);
        server.mounted = Some(mounted);
        server.stage = Stage::Waiting;
        // A connection is kept only if nothing that is unanswered gets lost with a process.
        server.session = server.session.inherited(left.comes_again());
        server.keeping = Keeping::inherited(keeper.clone(), left);
        for (volume, tag) in tags {
            // One that was removed goes as soon as its device does.
            if let Entry::Vacant(place) = server.volumes.entry(volume) {
                place.insert(Node::default());
                server.session.add_export(export(&local.name, volume));
            }
            let device = LoopDevice::of_descriptor(tag.as_fd())?;
            // The last process may have written what was not flushed.
            let forbidden = read_only.contains(&volume);
            let place = server.volumes.get(&volume).map_or(0, |node| node.place);
            let mut node = Node { last: Some(device), changes: 1, place, ..Node::default() };
            (node.read_only, node.noted) = (forbidden, forbidden);
            let name = server.session.file(u32::from(volume.0)).unwrap_or_default();
            if device.stands_on(&name) {
                (node.size, node.device) = (device.size(), Some(Device::used(device, name)));
                if let Some(export) = server.session.export_mut(u32::from(volume.0)) {
                    export.size = node.size;
                }
            }
            let door = Door { device: device.device_number(), owner: (0, server.group) };
            server.session.set_door(u32::from(volume.0), Some(door));
            server.volumes.insert(volume, node);
        }
        for (volume, descriptor) in devices {
            let kept = loopdev::take_over(descriptor, (keeper.clone(), place(volume)))?;
            let Some(node) = server.volumes.get_mut(&volume) else { continue };
            let Some(device) = &mut node.device else { continue };
            // Somebody may have come in since the last process looked.
            device.hold = Hold::Ours { kept, let_in: true, probe: false };
            node.guarded = !primary;
        }
        server.set_volumes(local);
        if !primary {
            server.go_on(ring)?;
        }
        Ok(server)
    }

    /// Puts what it all hangs on where the next process finds it. First what it has to know of it: who finds a
    /// Primary's devices and not that it was one lets applications' I/O fail.
    ///
    /// # Errors
    /// If there is no keeper.
    pub(crate) fn keep_with(&mut self, keeper: Keeper, role: Option<Place>) -> io::Result<()> {
        self.keeping.set_keeper(Some(keeper.clone()));
        self.note_role(role).and_then(|()| self.say_all()).inspect_err(|_| self.keeping.set_keeper(None))?;
        self.volumes.values_mut().for_each(|node| node.noted = false);
        let volumes: Vec<VolumeNr> = self.volumes.keys().copied().collect();
        volumes.iter().for_each(|volume| self.note_read_only(*volume));
        let kept = keeper.put(ROOT, self.root.as_fd()).and_then(|()| keeper.put(connection(), self.fd.as_fd()));
        let ledger = self.ledger.as_ref();
        let own = [(REQUESTS, ledger), (LEFT, ledger.and_then(Ledger::keepers))].into_iter();
        let own = own.filter_map(|(place, ledger)| Some((place, ledger?.descriptor())));
        let kept = kept.and_then(|()| {
            own.chain(self.keeping.requests()).try_for_each(|(place, descriptor)| keeper.put(place, descriptor))
        });
        let kept = kept.and_then(|()| volumes.iter().try_for_each(|volume| self.share(*volume)));
        kept.inspect_err(|_| self.keeping.set_keeper(None))
    }

    /// Does a process that is killed lose no request?
    pub(crate) fn can_be_kept(&self) -> bool {
        (self.session.can_resend() || self.ledger.is_some() || self.keeping.has_left()) && !self.session.has_slots()
    }

    /// Keeps unanswered requests by itself if the kernel does not hand them out again.
    pub(super) fn open_ledger(&mut self) -> io::Result<()> {
        let resends = self.session.can_resend() && std::env::var_os(RESEND).is_none_or(|value| value != "no");
        if !resends && !self.session.has_slots() {
            self.ledger = Some(Ledger::new()?.with_keepers(Ledger::new()?));
            log("info", "the kernel hands requests out once only: what is not answered is kept in memory");
        }
        Ok(())
    }

    /// Reads and handles one message; false if there was none, or no room for one.
    pub(super) fn take_into_ledger(&mut self, ring: &mut Ring<Token>, requests: &mut Requests) -> bool {
        let Some(read) = self.ledger.as_mut().and_then(|ledger| ledger.read(self.fd.as_fd())) else { return false };
        match read {
            Ok(entry) => {
                self.unread.push_back(entry);
                self.go_through_ledger(ring, requests);
                true
            }
            Err(e) => {
                self.gone = e == -libc::ENODEV;
                e == -libc::ENOENT || e == -libc::EINTR
            }
        }
    }

    /// Handles what was read, or left by another process, in its order, as far as there are buffers.
    pub(super) fn go_through_ledger(&mut self, ring: &mut Ring<Token>, requests: &mut Requests) {
        while let Some(entry) = self.unread.front().copied() {
            if !self.handle_entry(entry, ring, requests) {
                return;
            }
            self.unread.pop_front();
        }
    }

    /// False: there is no buffer for its payload.
    fn handle_entry(&mut self, entry: usize, ring: &mut Ring<Token>, requests: &mut Requests) -> bool {
        let Some(ledger) = &mut self.ledger else { return true };
        let (header, rest) = ledger.message(entry);
        self.out.clear();
        let event = self.session.parse_write(header, rest, &mut self.out);
        let in_parts = event.is_some();
        let event = event.unwrap_or_else(|| {
            let len = u32::from_ne_bytes([header[0], header[1], header[2], header[3]]) as usize;
            let (start, end) = self.message.split_at_mut(WRITE_HEADER);
            start.copy_from_slice(header);
            end[..rest.len()].copy_from_slice(rest);
            self.session.parse(&self.message[..len.min(WRITE_HEADER + rest.len())], &mut self.out)
        });
        match event {
            Event::None => ledger.forget(entry),
            Event::Reply | Event::Destroyed => {
                sys::write_message(&self.fd, &[IoSlice::new(&self.out)]);
                ledger.forget(entry);
            }
            Event::Released(volume) => {
                sys::write_message(&self.fd, &[IoSlice::new(&self.out)]);
                ledger.forget(entry);
                self.released(super::volume_nr(volume));
            }
            Event::Interrupted(unique) => {
                ledger.forget(entry);
                self.on_interrupt(ring, unique);
            }
            Event::Knock(knock) => {
                // Who waits at a door when this process dies asks the next one.
                ledger.name(entry, knock.unique);
                self.on_knock(ring, knock, None);
            }
            Event::Request { volume, request, payload } => {
                let mut data = Segments::None;
                if !payload.is_empty() {
                    let Some(mut buf) = self.pool.take(payload.len()) else { return false };
                    let bytes = if in_parts { &rest[payload.clone()] } else { &self.message[payload.clone()] };
                    buf.bytes_mut()[..payload.len()].copy_from_slice(bytes);
                    data = Segments::One(BufRef { id: buf.into_id().0, offset: 0, len: payload.len() as u32 });
                }
                ledger.name(entry, request.tag);
                let volume = super::volume_nr(volume);
                if let Some(result) = self.note(volume, request) {
                    for piece in data.as_slice() {
                        drop(self.pool.reclaim(BufId(piece.id)));
                    }
                    self.decided.push((request, result));
                } else {
                    requests.admit(Asker::Fuse, volume, request, data);
                }
            }
        }
        true
    }

    /// Does somebody hold the devices for the next process?
    pub(crate) fn is_kept(&self) -> bool {
        self.keeping.keeper().is_some()
    }

    /// Do applications wait for requests that another process was given?
    pub(crate) fn is_waiting(&self) -> bool {
        self.stage == Stage::Waiting
    }

    pub(super) fn takes_requests(&self) -> bool {
        self.stage == Stage::Serving
    }

    /// This node may serve the devices: takes requests, at first those that were read and not answered.
    ///
    /// # Errors
    /// If the kernel does not hand them out: they would wait for ever.
    pub(crate) fn go_on(&mut self, ring: &mut Ring<Token>) -> io::Result<()> {
        self.take_from_keeper()?;
        if self.ledger.is_none() {
            let written = sys::write_message(&self.fd, &[IoSlice::new(&fuse::resend())]);
            if written < 0 {
                return Err(io::Error::from_raw_os_error(-written));
            }
        }
        self.stage = Stage::Serving;
        // The keeper has been told of the last close, if there was one since.
        let volumes: Vec<VolumeNr> = self.volumes.keys().copied().collect();
        volumes.into_iter().for_each(|volume| self.released(volume));
        self.arm(ring);
        Ok(())
    }

    /// Says that this process works. What the keeper has read while it did not, and could not answer, is to come again
    /// ([`FuseServer::ask_for_lacking`]); of what it has answered a last close concerns this process.
    pub(super) fn look_at_keeper(&mut self) {
        self.keeping.count_turn();
        let Some(left) = self.keeping.left() else { return };
        let volumes: Vec<VolumeNr> = self.volumes.keys().copied().collect();
        volumes.into_iter().for_each(|volume| self.released(volume));
        let lacked = self.io == self.io.lacking();
        let Some(ledger) = &mut self.ledger else {
            self.io = self.io.lacking();
            return self.has_looked(left, lacked);
        };
        // The rest when others are answered.
        if ledger.adopt_left(|entry| self.unread.push_back(entry)) {
            self.has_looked(left, lacked);
        }
    }

    fn has_looked(&mut self, left: u64, lacked: bool) {
        if self.keeping.has_dealt_with(left) && !lacked {
            log("info", "the keeper has answered for this process, which was stopped or had no processor");
        }
    }

    /// The keeper may have read something that it could not say any more.
    pub(crate) fn on_keeper_killed(&mut self) {
        if self.takes_requests() {
            self.look_again();
        }
    }

    /// No keeper reads: what it has read may be there, whether it has said so or not.
    fn look_again(&mut self) {
        self.ledger.iter().filter_map(Ledger::keepers).for_each(Ledger::leave_all);
        self.keeping.look_again();
    }

    /// From here on this process reads the connection, and the keeper does not.
    fn take_from_keeper(&mut self) -> io::Result<()> {
        if let (Some(requests), left) = self.keeping.take()? {
            let (mut ledger, mut unanswered) = (Ledger::inherit(requests)?, Vec::new());
            ledger.unanswered(&mut unanswered)?;
            // A keeper of an older version has none.
            let left = left.map_or_else(Ledger::new, Ledger::inherit)?;
            (self.ledger, self.unread) = (Some(ledger.with_keepers(left)), unanswered.into());
            self.look_again();
        }
        // A keeper that cannot be told is followed by another one, which is.
        let left = self.ledger.as_ref().and_then(Ledger::keepers).zip(self.keeping.keeper());
        let told = left.map_or(Ok(()), |(left, keeper)| keeper.put(LEFT, left.descriptor()));
        if let Err(e) = self.say_all().and(told) {
            log("warning", &format!("the keeper: {e}"));
        }
        Ok(())
    }

    /// Says what the keeper answers with when this process is gone.
    pub(super) fn say_all(&mut self) -> io::Result<()> {
        let volumes: Vec<VolumeNr> = self.volumes.keys().copied().collect();
        let (owner, secret, ledger) = (sys::user_and_group(), self.links.secret(&self.resource), self.ledger.is_some());
        self.keeping.say(|| {
            let numbers: Vec<u32> = volumes.iter().map(|volume| u32::from(volume.0)).collect();
            Facts::new(&numbers, owner, &secret, ledger)
        })?;
        volumes.into_iter().for_each(|volume| self.say(volume));
        Ok(())
    }

    /// The same of one volume, which has changed.
    pub(super) fn say(&self, volume: VolumeNr) {
        let (Some(facts), Some(node)) = (self.keeping.facts(), self.volumes.get(&volume)) else { return };
        facts.set_size(node.place, node.size);
        facts.set_door(node.place, self.session.door(u32::from(volume.0)));
        node.tell(Some(facts));
    }

    /// Tells the next process what this one is.
    ///
    /// # Errors
    /// If there is no keeper.
    pub(crate) fn note_role(&self, primary: Option<Place>) -> io::Result<()> {
        let Some(keeper) = self.keeping.keeper() else { return Ok(()) };
        // First what is true: whoever comes in between finds a Primary, and not a Secondary whose users wait.
        primary.map_or(Ok(()), |place| keeper.put(place, self.root.as_fd()))?;
        [PRIMARY, PROMOTED]
            .into_iter()
            .filter(|place| Some(*place) != primary)
            .try_for_each(|other| keeper.release(other))
    }

    /// Tells the next process whether the volume's device must not be written to.
    pub(super) fn note_read_only(&mut self, volume: VolumeNr) {
        let (Some(keeper), Some(node)) = (self.keeping.keeper(), self.volumes.get_mut(&volume)) else { return };
        if node.noted != node.read_only {
            let place = read_only(volume);
            let told = if node.read_only { keeper.put(place, self.root.as_fd()) } else { keeper.release(place) };
            node.noted = if told.is_ok() { node.read_only } else { node.noted };
        }
    }

    /// No request is taken any more; those that come wait for the next process.
    pub(crate) fn leave(&mut self) {
        self.stage = Stage::Leaving;
        self.leave_doors();
    }

    /// Leaves everything to the keeper, with what the next process should know. Nothing is touched.
    pub(crate) fn abandon(mut self, notes: &[Place]) {
        std::mem::forget(self.mounted.take());
        for device in self.volumes.values_mut().filter_map(|node| node.device.take()) {
            if let Hold::Ours { kept, .. } = device.hold {
                kept.abandon();
            }
        }
        if let Some(keeper) = self.keeping.keeper() {
            // Without them the next one waits for all peers, or finds out from the metadata.
            let _ = notes.iter().try_for_each(|note| keeper.put(*note, self.root.as_fd()));
        }
    }

    /// Gives the volume's device to the keeper, if there are both: its name, and itself while it is held.
    pub(super) fn share(&self, volume: VolumeNr) -> io::Result<()> {
        let Some(keeper) = self.keeping.keeper() else { return Ok(()) };
        let Some(device) = self.volumes.get(&volume).and_then(|node| node.device.as_ref()) else { return Ok(()) };
        let tag = Place { kind: Kind::Tag, number: u32::from(volume.0) };
        keeper.put(tag, device.device.name_tag()?.as_fd())?;
        match &device.hold {
            Hold::Ours { kept, .. } => kept.share((keeper.clone(), place(volume))),
            Hold::LettingGo { .. } | Hold::Users => Ok(()),
        }
    }
}

fn place(volume: VolumeNr) -> Place {
    Place { kind: Kind::Device, number: u32::from(volume.0) }
}
