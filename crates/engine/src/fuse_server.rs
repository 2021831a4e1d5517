//! Block devices by FUSE and loop: a file system with one file per volume, and a loop device on each while this node is
//! Primary.
//!
//! Nothing of this outlives the process: the file system is taken out of the directory tree at once and lives on an
//! open descriptor of its root; the loop devices have keepers ([`loopdev::keep`]).
//!
//! The kernel's messages are read and answered with plain calls that do not block: io_uring would hand them to worker
//! threads, as `/dev/fuse` has no way to be tried. What touches the files (attaching, resizing and detaching loop
//! devices) runs on helper threads, because this thread serves the files.

use crate::buffers::{Buf, Pool};
use crate::requests::{Asker, Requests};
use crate::ring::{Fd, Op, Ring};
use crate::sys;
use crate::token::Token;
use frontends::device_link::DeviceLinks;
use frontends::fuse::{self, Event, MESSAGE_MAX, Session};
use frontends::loopdev::{self, Background, Kept, in_background};
use frontends::{Errno, Export, Request};
use std::collections::BTreeMap;
use std::io::{self, IoSlice};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;
use units::{ByteLen, VolumeNr};
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
    /// A write for whose payload the pool has no buffer; nothing more is read before it is admitted.
    starved: Option<(VolumeNr, Request, std::ops::Range<usize>)>,
    out: Vec<u8>,
    armed: bool,
    gone: bool,
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
    /// Not tried again until something changes.
    failed: bool,
}

/// What is being done about a device, and the size that it is to have then.
enum Work {
    Attach(Background<Kept>, u64),
    Resize(Background<u64>, u64),
    Detach(Background<()>),
}

/// How long a device may be in use after its last user let go of it.
const RELEASE_ATTEMPTS: u32 = 40;
const RELEASE_PAUSE: Duration = Duration::from_millis(50);

/// Messages taken before others get their turn.
const BATCH: usize = 128;

impl FuseServer {
    /// Mounts on `RUN_DIR/RES.fuse`, for a moment. What a dead process left there is cleared away.
    ///
    /// # Errors
    /// If the host has no FUSE or no loop devices, or we may not use them.
    pub(crate) fn start(
        ring: &mut Ring<Token>,
        pool: &'static Pool,
        resource: &str,
        volumes: &[VolumeNr],
        run_dir: &Path,
    ) -> io::Result<FuseServer> {
        std::fs::File::options().read(true).write(true).open("/dev/loop-control")?;
        let mount = run_dir.join(format!("{resource}.fuse"));
        let (fd, root) = mount_aside(&mount)?;
        sys::set_nonblocking(fd.as_raw_fd());
        let export = |v: &VolumeNr| Export::new(u32::from(v.0), format!("{resource}/{}", v.0), 0).read_only();
        let mut server = FuseServer {
            pool,
            fd,
            root,
            session: Session::new(volumes.iter().map(export).collect(), sys::user_and_group()),
            links: DeviceLinks::from_env(),
            resource: resource.to_owned(),
            volumes: volumes.iter().map(|v| (*v, Node::default())).collect(),
            message: vec![0; MESSAGE_MAX],
            starved: None,
            out: Vec::with_capacity(4096),
            armed: false,
            gone: false,
        };
        for volume in volumes {
            // A dead process's; it would lead nowhere, or to somebody else's loop device.
            let _ = server.links.remove(resource, u32::from(volume.0));
        }
        server.arm(ring);
        Ok(server)
    }

    /// What the volume's device is to be from now on.
    pub(crate) fn set_device(&mut self, volume: VolumeNr, size: ByteLen, access: Access, discard: bool) {
        let Some(node) = self.volumes.get_mut(&volume) else { return };
        node.wanted = if access == Access::ReadWrite { size.0 } else { 0 };
        node.failed = false;
        if let Some(export) = self.session.export_mut(u32::from(volume.0)) {
            export.size = size.0;
            export.read_only = access != Access::ReadWrite;
            export.can_trim = discard;
        }
    }

    /// Is a device being attached, resized or detached?
    pub(crate) fn is_busy(&self) -> bool {
        self.volumes.values().any(|n| n.work.is_some() || n.needs_work())
    }

    /// Is there a device?
    pub(crate) fn has_devices(&self) -> bool {
        self.volumes.values().any(|n| n.device.is_some())
    }

    /// The path that applications open.
    pub(crate) fn device_path(&self, volume: VolumeNr) -> Option<PathBuf> {
        let node = self.volumes.get(&volume)?;
        node.link.clone().or_else(|| node.device.as_ref().map(|(kept, _)| kept.device().path()))
    }

    /// Was the device in use when it was last looked at?
    pub(crate) fn is_used(&self, volume: VolumeNr) -> bool {
        self.volumes.get(&volume).is_some_and(|n| n.used)
    }

    /// Looks which devices are in use (mounted, or claimed by another driver); [`Token::UseCheck`] comes when it is
    /// known. What applications left in the page cache is written back before. Opening a device may wait for its
    /// writes, so it is not done here.
    pub(crate) fn check_use(&self, ring: &mut Ring<Token>) -> io::Result<Background<Vec<VolumeNr>>> {
        let devices: Vec<(VolumeNr, PathBuf)> =
            self.volumes.iter().filter_map(|(v, n)| Some((*v, n.device.as_ref()?.0.device().path()))).collect();
        let work = in_background(move || {
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
        if let Some((volume, request, payload)) = self.starved.take() {
            self.admit(volume, request, payload, requests);
        }
        if !self.armed {
            let mut taken = 0;
            while self.starved.is_none() && taken < BATCH && self.take_message(requests) {
                taken += 1;
            }
            if self.starved.is_none() {
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
        let number = u32::from(volume.0);
        match ended {
            Ok(()) => {
                let linked = match &node.device {
                    Some((kept, _)) => self.links.create(&self.resource, number, &kept.device().path()).map(Some),
                    None => self.links.remove(&self.resource, number).map(|()| None),
                };
                match linked {
                    Ok(link) => node.link = link,
                    Err(e) => return Some(format!("its name in /dev/urbd: {e}")),
                }
                None
            }
            Err(e) => {
                node.failed = true;
                Some(e.to_string())
            }
        }
    }

    /// Answers a request; `data` is what a read brought.
    pub(crate) fn answer(&mut self, request: &Request, result: Result<(), Errno>, data: Vec<(Buf, u32)>) {
        let header = Session::reply(request, result);
        let pieces = data.iter().map(|(buf, len)| IoSlice::new(&buf.bytes()[..*len as usize]));
        let parts: Vec<IoSlice<'_>> = std::iter::once(IoSlice::new(&header)).chain(pieces).collect();
        // ENOENT: the caller was interrupted and does not wait any more.
        sys::write_message(self.fd.as_raw_fd(), &parts);
    }

    fn arm(&mut self, ring: &mut Ring<Token>) {
        if !self.armed && !self.gone {
            self.armed = true;
            ring.push(Op::Readable { fd: self.fd.clone() }, Token::Fuse);
        }
    }

    /// Reads and handles one message; false if there was none.
    fn take_message(&mut self, requests: &mut Requests) -> bool {
        let n = sys::read_into(self.fd.as_raw_fd(), &mut self.message);
        if n <= 0 {
            self.gone = n == -libc::ENODEV;
            // ENOENT: the message was taken back by an interrupt while it was read.
            return n == -libc::ENOENT || n == -libc::EINTR;
        }
        self.out.clear();
        match self.session.parse(&self.message[..n as usize], &mut self.out) {
            Event::None => {}
            Event::Reply | Event::Destroyed => {
                sys::write_message(self.fd.as_raw_fd(), &[IoSlice::new(&self.out)]);
            }
            Event::Request { volume, request, payload } => {
                let volume = VolumeNr(u16::try_from(volume).unwrap_or(u16::MAX));
                self.admit(volume, request, payload, requests);
            }
        }
        true
    }

    fn admit(&mut self, volume: VolumeNr, request: Request, payload: std::ops::Range<usize>, requests: &mut Requests) {
        let mut data = Segments::None;
        if !payload.is_empty() {
            let Some(mut buf) = self.pool.take(payload.len()) else {
                self.starved = Some((volume, request, payload));
                return;
            };
            buf.bytes_mut()[..payload.len()].copy_from_slice(&self.message[payload.clone()]);
            data = Segments::One(BufRef { id: buf.into_id().0, offset: 0, len: payload.len() as u32 });
        }
        requests.admit(Asker::Fuse, volume, request, data);
    }

    fn start_work(&mut self, ring: &mut Ring<Token>, volume: VolumeNr) {
        let file = PathBuf::from(format!("/proc/thread-self/fd/{}/{volume}", self.root.as_raw_fd()));
        let Some(node) = self.volumes.get_mut(&volume) else { return };
        let token = Token::FuseWork(volume);
        let started = match (node.device.take(), node.wanted) {
            (None, size) => loopdev::keep(file, loopdev::Options::default())
                .and_then(|work| watch(ring, &work, token).map(|()| Work::Attach(work, size))),
            (Some((kept, _)), 0) => in_background(move || kept.detach())
                .and_then(|work| watch(ring, &work, token).map(|()| Work::Detach(work))),
            (Some((kept, old)), size) => {
                let device = kept.device();
                node.device = Some((kept, old));
                in_background(move || device.refresh_size(&file))
                    .and_then(|work| watch(ring, &work, token).map(|()| Work::Resize(work, size)))
            }
        };
        match started {
            Ok(work) => node.work = Some(work),
            Err(_) => node.failed = true,
        }
    }
}

impl Node {
    fn needs_work(&self) -> bool {
        !self.failed && self.wanted != self.device.as_ref().map_or(0, |(_, size)| *size)
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
