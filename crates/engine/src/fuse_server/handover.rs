//! The block devices outlive the process: a keeper holds what they hang on, and the next process goes on with it.
//!
//! What makes that safe, each of it measured: the keeper has the same open file of `/dev/fuse` that is read here; all
//! memory that the kernel copies requests to and answers from is present and locked; what the last process has read and
//! not answered is asked for once, before the first read, when that process is gone and its I/O over (the lock of the
//! resource and those of its disks say so); every request may be carried out twice; and no thread of ours that has the
//! resource's descriptors touches the files or the devices.

use super::ledger::{Ledger, REQUESTS};
use super::{FuseServer, Node, Stage, VolumeNr};
use crate::buffers::Pool;
use crate::claim::{ALONE, contract};
use crate::requests::{Asker, Requests};
use crate::resource::log;
use crate::ring::{Fd, Ring};
use crate::sys;
use crate::token::Token;
use frontends::fuse::{self, Event, WRITE_HEADER};
use frontends::keeper::{Keeper, Kind, Place};
use frontends::loopdev;
use std::io::{self, IoSlice};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::Path;
use std::rc::Rc;
use urbd_core::{BufRef, Segments};

/// What another process has left.
pub(crate) struct Inherited {
    connection: OwnedFd,
    root: OwnedFd,
    devices: Vec<(VolumeNr, OwnedFd)>,
    /// What it has read and not answered, if the kernel does not hand it out again.
    requests: Option<OwnedFd>,
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
        let (connection, root, requests) = (take(connection()), take(ROOT), take(REQUESTS));
        let (connection, root) = (connection?, root?);
        let mut devices = Vec::new();
        for (place, descriptor) in std::mem::take(left) {
            match (place.kind, u16::try_from(place.number)) {
                (Kind::Device, Ok(number)) => devices.push((VolumeNr(number), descriptor)),
                _ => left.push((place, descriptor)),
            }
        }
        Some(Inherited { connection, root, devices, requests })
    }
}

/// The connection that this version can go on with.
fn connection() -> Place {
    Place { kind: Kind::Connection, number: contract() }
}

impl FuseServer {
    /// Goes on where another process has ended. If there are devices, requests wait until [`FuseServer::go_on`].
    ///
    /// # Errors
    /// If what was left is not what it should be.
    pub(crate) fn take_over(
        ring: &mut Ring<Token>,
        pool: &'static Pool,
        (resource, run_dir): (&str, &Path),
        volumes: &[VolumeNr],
        inherited: Inherited,
        keeper: &Keeper,
    ) -> io::Result<FuseServer> {
        let Inherited { connection, root, devices, requests } = inherited;
        let fd: Fd = Rc::new(connection);
        let mut server = FuseServer::on(pool, (resource, run_dir), volumes, fd, root);
        server.keeper = Some(keeper.clone());
        server.stage = Stage::Waiting;
        if let Some(requests) = requests {
            let (ledger, unanswered) = Ledger::inherit(requests)?;
            (server.ledger, server.unread) = (Some(ledger), unanswered.into());
        }
        let mut found = false;
        for (volume, descriptor) in devices {
            let size = sys::end_of(descriptor.as_raw_fd())?;
            let kept = loopdev::take_over(descriptor, (keeper.clone(), place(volume)))?;
            let link = server.links.path(resource, u32::from(volume.0)).ok().filter(|link| link.is_symlink());
            // The last process may have written what was not flushed.
            let node = Node { device: Some((kept, size)), link, wanted: size, changes: 1, ..Node::default() };
            server.volumes.insert(volume, node);
            found = true;
        }
        for volume in server.volumes.iter().filter(|(_, node)| node.device.is_none()).map(|(volume, _)| volume) {
            // It would lead nowhere, or to somebody else's loop device.
            let _ = server.links.remove(resource, u32::from(volume.0));
        }
        if !found {
            server.go_on(ring)?;
        }
        Ok(server)
    }

    /// Puts what it all hangs on where the next process finds it.
    ///
    /// # Errors
    /// If there is no keeper.
    pub(crate) fn keep_with(&mut self, keeper: Keeper) -> io::Result<()> {
        keeper.put(connection(), self.fd.as_fd())?;
        keeper.put(ROOT, self.root.as_fd())?;
        if let Some(ledger) = &self.ledger {
            keeper.put(REQUESTS, ledger.descriptor())?;
        }
        self.keeper = Some(keeper);
        self.volumes.keys().try_for_each(|volume| self.share(*volume))
    }

    /// Does a process that is killed lose no request?
    pub(crate) fn can_be_kept(&self) -> bool {
        (self.session.can_resend() || self.ledger.is_some()) && !self.session.has_slots()
    }

    /// Keeps unanswered requests by itself if the kernel does not hand them out again.
    pub(super) fn open_ledger(&mut self) -> io::Result<()> {
        let resends = self.session.can_resend() && std::env::var_os(RESEND).is_none_or(|value| value != "no");
        if !resends && !self.session.has_slots() {
            self.ledger = Some(Ledger::new()?);
            log("info", "the kernel hands requests out once only: what is not answered is kept in memory");
        }
        Ok(())
    }

    /// Reads and handles one message; false if there was none, or no room for one.
    pub(super) fn take_into_ledger(&mut self, requests: &mut Requests) -> bool {
        let Some(read) = self.ledger.as_mut().and_then(|ledger| ledger.read(self.fd.as_raw_fd())) else { return false };
        match read {
            Ok(entry) => {
                self.unread.push_back(entry);
                self.go_through_ledger(requests);
                true
            }
            Err(e) => {
                self.gone = e == -libc::ENODEV;
                e == -libc::ENOENT || e == -libc::EINTR
            }
        }
    }

    /// Handles what was read, or left by another process, in its order, as far as there are buffers.
    pub(super) fn go_through_ledger(&mut self, requests: &mut Requests) {
        while let Some(entry) = self.unread.front().copied() {
            if !self.handle_entry(entry, requests) {
                return;
            }
            self.unread.pop_front();
        }
    }

    /// False: there is no buffer for its payload.
    fn handle_entry(&mut self, entry: usize, requests: &mut Requests) -> bool {
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
                sys::write_message(self.fd.as_raw_fd(), &[IoSlice::new(&self.out)]);
                ledger.forget(entry);
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
                if self.note(volume, request) {
                    self.idle_flushes.push(request);
                } else {
                    requests.admit(Asker::Fuse, volume, request, data);
                }
            }
        }
        true
    }

    /// Does somebody hold the devices for the next process?
    pub(crate) fn is_kept(&self) -> bool {
        self.keeper.is_some()
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
        if self.ledger.is_none() {
            let written = sys::write_message(self.fd.as_raw_fd(), &[IoSlice::new(&fuse::resend())]);
            if written < 0 {
                return Err(io::Error::from_raw_os_error(-written));
            }
        }
        self.stage = Stage::Serving;
        self.arm(ring);
        Ok(())
    }

    /// No request is taken any more; those that come wait for the next process.
    pub(crate) fn leave(&mut self) {
        self.stage = Stage::Leaving;
    }

    /// Leaves everything to the keeper, with what the next process should know. Nothing is touched.
    pub(crate) fn abandon(mut self, alone: bool) {
        for (kept, _) in self.volumes.values_mut().filter_map(|node| node.device.take()) {
            kept.abandon();
        }
        if let Some(keeper) = self.keeper.take() {
            let told = if alone { keeper.put(ALONE, self.root.as_fd()) } else { keeper.release(ALONE) };
            // Then the next one waits for the peer, or finds out from the metadata.
            drop(told);
        }
    }

    /// Gives the volume's device to the keeper, if there are both.
    pub(super) fn share(&self, volume: VolumeNr) -> io::Result<()> {
        let device = self.volumes.get(&volume).and_then(|node| node.device.as_ref());
        let both = device.zip(self.keeper.clone());
        both.map_or(Ok(()), |((kept, _), keeper)| kept.share((keeper, place(volume))))
    }
}

fn place(volume: VolumeNr) -> Place {
    Place { kind: Kind::Device, number: u32::from(volume.0) }
}
