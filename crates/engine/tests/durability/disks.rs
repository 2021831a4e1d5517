//! Disks with a volatile write cache that are at a test's mercy: files of a FUSE file system that this process serves.
//!
//! What is written is there for whoever reads it, and gone after a loss of power, unless it was written as durable or
//! its file was flushed. No other disk loses as much: what a real one may keep, this one forgets.

use frontends::fuse::{self, Event, MESSAGE_MAX, Session};
use frontends::{Errno, Export, Kind, Request};
use std::fs::File;
use std::io::{IoSlice, Read, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard};

/// A file of the file system.
#[derive(Default)]
pub(crate) struct Disk {
    /// What its readers see.
    pub(crate) now: Vec<u8>,
    /// What a loss of power leaves.
    pub(crate) durable: Vec<u8>,
    /// Changes wait from now on.
    holds: bool,
    held: Vec<(Request, Vec<u8>)>,
    /// Bytes of the longest write so far.
    pub(crate) longest: usize,
}

/// All disks, which lose their power together.
pub(crate) struct Disks {
    names: Vec<String>,
    disks: Mutex<Vec<Disk>>,
    device: File,
    root: OwnedFd,
}

impl Disks {
    /// Serves disks with these names and contents. Nothing of it is in the directory tree.
    pub(crate) fn serve(disks: Vec<(String, Vec<u8>)>) -> Arc<Disks> {
        let place = tempfile::tempdir().unwrap();
        let device = File::from(fuse::mount(place.path()).unwrap());
        let export = |(i, (name, bytes)): (usize, &(String, Vec<u8>))| Export::new(i as u32, name, bytes.len() as u64);
        let session = Session::new(disks.iter().enumerate().map(export).collect(), (0, 0));
        let reader = device.try_clone().unwrap();
        // The root is there without a question to the server.
        let root = File::options().read(true).custom_flags(libc::O_PATH | libc::O_DIRECTORY).open(place.path());
        fuse::unmount(place.path()).unwrap();
        let names = disks.iter().map(|(name, _)| name.clone()).collect();
        let disk = |(_, bytes): (String, Vec<u8>)| Disk { durable: bytes.clone(), now: bytes, ..Disk::default() };
        let disks = Mutex::new(disks.into_iter().map(disk).collect());
        let disks = Arc::new(Disks { names, disks, device, root: root.unwrap().into() });
        let server = disks.clone();
        std::thread::spawn(move || server.run(reader, session));
        disks
    }

    /// Where other processes find a disk while this one lives.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        format!("/proc/{}/fd/{}/{name}", std::process::id(), self.root.as_raw_fd()).into()
    }

    /// All of them; nothing happens to them meanwhile.
    pub(crate) fn all(&self) -> MutexGuard<'_, Vec<Disk>> {
        self.disks.lock().unwrap()
    }

    /// Changes to this one are taken and not carried out, until [`Disks::fail_held`].
    pub(crate) fn hold(&self, disk: usize) {
        self.all()[disk].holds = true;
    }

    /// What waits fails, what comes later does not wait.
    pub(crate) fn fail_held(&self) {
        for disk in self.all().iter_mut() {
            disk.holds = false;
            for (request, _) in disk.held.drain(..) {
                self.answer(&request, Err(Errno::EIO), &[]);
            }
        }
    }

    /// Has nobody locked one of them?
    pub(crate) fn are_free(&self) -> bool {
        self.names.iter().all(|name| File::open(self.path(name)).is_ok_and(|file| file.try_lock().is_ok()))
    }

    /// What was not made durable is forgotten.
    pub(crate) fn lose_power(&self) {
        for disk in self.all().iter_mut() {
            assert!(disk.held.is_empty(), "whoever asked is to be dead");
            disk.now.clone_from(&disk.durable);
            disk.longest = 0;
        }
    }

    fn run(&self, mut device: File, mut session: Session) {
        let (mut message, mut out) = (vec![0; MESSAGE_MAX], Vec::new());
        loop {
            let n = match device.read(&mut message) {
                Ok(n) => n,
                Err(e) if matches!(e.raw_os_error(), Some(libc::EINTR | libc::ENOENT | libc::EAGAIN)) => continue,
                // ENODEV: nobody has it mounted or open any more.
                Err(_) => return,
            };
            out.clear();
            match session.parse(&message[..n], &mut out) {
                Event::None | Event::Knock(_) | Event::Interrupted(_) => {}
                Event::Reply | Event::Released(_) | Event::Destroyed => self.send(&[IoSlice::new(&out)]),
                Event::Request { volume, request, payload } => {
                    self.execute(volume as usize, request, &message[payload]);
                }
            }
        }
    }

    fn execute(&self, disk: usize, request: Request, payload: &[u8]) {
        let disk = &mut self.all()[disk];
        let range = request.offset as usize..request.offset as usize + request.len as usize;
        match request.kind {
            Kind::Read => return self.answer(&request, Ok(()), &disk.now[range]),
            _ if disk.holds => return disk.held.push((request, payload.to_vec())),
            Kind::Write => {
                disk.longest = disk.longest.max(range.len());
                disk.now[range.clone()].copy_from_slice(payload);
            }
            Kind::Discard | Kind::WriteZeroes { .. } => disk.now[range.clone()].fill(0),
            Kind::Flush => disk.durable.clone_from(&disk.now),
        }
        if request.fua {
            disk.durable[range.clone()].copy_from_slice(&disk.now[range]);
        }
        self.answer(&request, Ok(()), &[]);
    }

    fn answer(&self, request: &Request, result: Result<(), Errno>, data: &[u8]) {
        self.send(&[IoSlice::new(&Session::reply(request, result)), IoSlice::new(data)]);
    }

    fn send(&self, parts: &[IoSlice<'_>]) {
        // ENOENT: who asked has died meanwhile.
        if let Err(e) = (&self.device).write_vectored(parts) {
            assert_eq!(e.raw_os_error(), Some(libc::ENOENT), "{e}");
        }
    }
}
