//! The right to run a resource: the lock that one process at a time has, and what the last one has left with the
//! keeper.

use crate::error::Error;
use crate::exclusive::{self, Locked};
use crate::fuse_server::{PRIMARY, PROMOTED};
use crate::log::log;
use crate::sys;
use control::Successor;
use frontends::fuse;
use frontends::keeper::{Keeper, Kind, Place, TOLD, read_text};
use frontends::loopdev::LoopDevice;
use std::ffi::OsString;
use std::fmt;
use std::fs::{File, Permissions};
use std::io::{self, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};
use units::{NodeId, NodeMask, VolumeNr};

/// Makes the run directory, or looks whether the one that exists can be trusted.
///
/// # Errors
/// If it cannot be made, or somebody else than this user and root could put into it what this process then uses.
pub fn prepare_run_dir(run_dir: &Path) -> io::Result<()> {
    std::fs::create_dir_all(run_dir)?;
    let is = std::fs::metadata(run_dir)?;
    let denied = |what: String| {
        let next = "make it this user's and writable by nobody else, or set URBD_RUN_DIR to another directory";
        io::Error::new(io::ErrorKind::PermissionDenied, format!("{} {what}: {next}", run_dir.display()))
    };
    if is.uid() != 0 && is.uid() != sys::user_and_group().0 {
        return Err(denied(format!("belongs to user {}", is.uid())));
    }
    if is.mode() & 0o002 != 0 {
        return Err(denied("can be written by everybody".into()));
    }
    Ok(())
}

/// How the keeper's process is started: it must come to [`keep`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeeperCommand {
    /// The program.
    pub program: PathBuf,
    /// Its arguments.
    pub arguments: Vec<OsString>,
}

/// The resource is this process's. Nobody else gets it until the process has ended, by whatever: the lock goes only
/// when every descriptor of its file is closed, and so after the last thread that works on the resource.
pub struct Claim {
    pub(crate) lock: File,
    pub(crate) keeper: Keeper,
    pub(crate) left: Vec<(Place, OwnedFd)>,
    /// Until this process listens on the control socket.
    pub(crate) successor: Option<Successor>,
}

/// A process that has been asked to leave.
#[derive(Debug)]
pub struct Leaving {
    /// Its number.
    pub pid: u32,
    /// How long at most its end is waited for.
    pub at_most: Duration,
    /// Says to clients that another one takes over.
    pub successor: Option<Successor>,
}

/// What a process that leaves says to the next one: it had no peer.
const ALONE: Place = Place { kind: Kind::Note, number: 1 };

/// It was connected with a peer: the node's id on top of this.
const BESIDE: u32 = 1 << 18;

/// What it says of the peers that it was connected with.
pub(crate) fn beside(peers: NodeMask) -> Vec<Place> {
    let note = |i: NodeId| Place { kind: Kind::Note, number: BESIDE + i.index() as u32 };
    if peers.is_empty() { vec![ALONE] } else { peers.into_iter().map(note).collect() }
}

/// What the last process has said of them, if anything.
pub(crate) fn was_beside(left: &[(Place, OwnedFd)]) -> Option<NodeMask> {
    let mut peers = NodeMask::default();
    let notes = || left.iter().map(|(place, _)| place).filter(|place| place.kind == Kind::Note);
    let ids = notes().filter_map(|place| place.number.checked_sub(BESIDE)).filter_map(|n| u8::try_from(n).ok());
    ids.filter_map(NodeId::new).for_each(|i| peers.insert(i));
    (!peers.is_empty() || notes().any(|place| *place == ALONE)).then_some(peers)
}

/// How often the lock is tried while another process is ending.
const PAUSE: Duration = Duration::from_millis(1);

impl Claim {
    /// Takes the lock, and fetches what the keeper has.
    ///
    /// # Errors
    /// If another process runs the resource, or the run directory cannot be used.
    pub fn take(run_dir: &Path, resource: &str, leaving: Option<Leaving>) -> Result<Claim, Error> {
        let io = |what: &str| {
            let what = what.to_owned();
            move |error| Error::Io { what, error }
        };
        prepare_run_dir(run_dir).map_err(io("the run directory"))?;
        let lock = lock(run_dir, resource, leaving.as_ref().map(|leaving| (leaving.pid, leaving.at_most)))?;
        let keeper = Keeper::of(run_dir, resource);
        let left = if keeper.is_there() { keeper.fetch().map_err(io("asking the keeper"))? } else { Vec::new() };
        understand(resource, &left)?;
        Ok(Claim { lock, keeper, left, successor: leaving.and_then(|leaving| leaving.successor) })
    }

    /// Are there devices that applications may be using?
    #[must_use]
    pub fn inherits_devices(&self) -> bool {
        self.left.iter().any(|(place, _)| matches!(place.kind, Kind::Device | Kind::Tag))
    }

    /// May applications be waiting for this process?
    #[must_use]
    pub fn is_waited_for(&self) -> bool {
        !self.devices().is_empty()
    }

    /// Has the volume's device a size? Without one nobody can have read or written it.
    pub(crate) fn has_size(&self, volume: VolumeNr) -> bool {
        let mut tags = self.left.iter().filter(|(place, _)| place.kind == Kind::Tag);
        let tag = tags.find(|(place, _)| place.number == u32::from(volume.0));
        tag.is_none_or(|(_, tag)| LoopDevice::of_descriptor(tag.as_fd()).is_ok_and(|device| device.size() > 0))
    }

    /// What the last process was told, if the keeper has that.
    #[must_use]
    pub fn told(&self) -> Option<String> {
        told(&self.left)
    }

    /// The volumes whose devices applications may be using.
    pub(crate) fn devices(&self) -> Vec<VolumeNr> {
        used(&self.left)
    }
}

/// What the process of a resource was told, or the last one, if there is a keeper that has it: for
/// `LocalResource::from_kept`.
#[must_use]
pub fn what_was_told(run_dir: &Path, resource: &str) -> Option<String> {
    let keeper = Keeper::of(run_dir, resource);
    keeper.is_there().then(|| keeper.fetch().ok())?.and_then(|left| told(&left))
}

fn told(left: &[(Place, OwnedFd)]) -> Option<String> {
    let (_, kept) = left.iter().find(|(place, _)| *place == TOLD)?;
    read_text(kept.as_fd()).ok()
}

/// The next process is what the file says, if that has the resource. To be called where none runs.
///
/// # Errors
/// If the keeper does not take that.
pub fn let_file_count(run_dir: &Path, resource: &str) -> io::Result<()> {
    let put = |told: String| Keeper::of(run_dir, resource).put_text(TOLD, &config::behind_file(&told));
    what_was_told(run_dir, resource).map_or(Ok(()), put)
}

/// Of what a process has left: the volumes that applications may be using. All, if it was Primary: what is in the page
/// cache is theirs. Else those that are not held.
fn used(left: &[(Place, OwnedFd)]) -> Vec<VolumeNr> {
    let volume = |place: &Place| VolumeNr(u16::try_from(place.number).unwrap_or(u16::MAX));
    let of = |kind: Kind| left.iter().filter(move |(place, _)| place.kind == kind);
    let primary = left.iter().any(|(place, _)| matches!(*place, PRIMARY | PROMOTED));
    let held = |place: &Place| of(Kind::Device).any(|(other, _)| other.number == place.number);
    let attached = |tag: &OwnedFd| {
        LoopDevice::of_descriptor(tag.as_fd()).is_ok_and(|device| device.backing_file().is_ok_and(|f| f.is_some()))
    };
    let tags = of(Kind::Tag).filter(|(place, tag)| if held(place) { primary } else { attached(tag) });
    tags.map(|(place, _)| volume(place)).collect()
}

impl fmt::Debug for Claim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Claim({:?}, {} descriptors)", self.keeper, self.left.len())
    }
}

/// Could this version go on with the devices of the process that runs a resource? To be asked before that is asked to
/// leave: if not, it goes on.
///
/// # Errors
/// If it could not.
pub fn check_version(run_dir: &Path, resource: &str) -> Result<(), Error> {
    let keeper = Keeper::of(run_dir, resource);
    let left = if keeper.is_there() { keeper.fetch() } else { Ok(Vec::new()) };
    match left {
        Ok(left) => understand(resource, &left),
        Err(e) if e.kind() == io::ErrorKind::InvalidData => Err(Error::Config(format!(
            "{resource}: the program that serves it keeps something that this version does not know: go on with that one, \
             or a newer one"
        ))),
        // One that does not answer is followed by another.
        Err(_) => Ok(()),
    }
}

fn understand(resource: &str, left: &[(Place, OwnedFd)]) -> Result<(), Error> {
    let understood = |place: Place| place.kind != Kind::Connection || place.number == contract();
    let other = left.iter().map(|(place, _)| *place).find(|place| !understood(*place));
    other.map_or(Ok(()), |other| {
        Err(Error::Config(format!(
            "{resource}: the device was made by a version of urbd that promises the kernel something else \
             ({}, this one {}); go on with that version, or give the device up: urbd down --force {resource}",
            other.number,
            contract()
        )))
    })
}

/// What this version promises the kernel ([`fuse::CONTRACT`]). A program that is built for tests can be told to be
/// another version.
pub(crate) fn contract() -> u32 {
    let told = if cfg!(debug_assertions) { std::env::var("URBD_TEST_CONTRACT").ok() } else { None };
    told.and_then(|number| number.parse().ok()).unwrap_or(fuse::CONTRACT)
}

/// The process that has the resource, whether it answers or not.
#[must_use]
pub fn holder(run_dir: &Path, resource: &str) -> Option<u32> {
    let path = lock_file(run_dir, resource);
    let file = open_lock(&path, false).ok()?;
    let held = matches!(exclusive::lock(&file), Ok(Locked::No));
    std::fs::read_to_string(&path).ok().filter(|_| held)?.trim().parse().ok()
}

/// What a resource without a process has left with its keeper: true if there are devices that applications may be
/// using. Without devices the keeper is ended, as with them if it is to be by `force`.
///
/// # Errors
/// If there is a keeper that does not answer.
pub fn end_keeper(run_dir: &Path, resource: &str, force: bool) -> io::Result<bool> {
    let keeper = Keeper::of(run_dir, resource);
    if !keeper.is_there() {
        return Ok(false);
    }
    let in_use = !force && !used(&keeper.fetch()?).is_empty();
    if !in_use {
        keeper.end()?;
    }
    Ok(in_use)
}

/// May applications be waiting for a process of this resource? To be asked where none runs; a keeper that does not
/// answer says nothing.
#[must_use]
pub fn is_waited_for(run_dir: &Path, resource: &str) -> bool {
    let keeper = Keeper::of(run_dir, resource);
    keeper.is_there() && keeper.fetch().is_ok_and(|left| !used(&left).is_empty())
}

/// Is the keeper's process of a resource. Its standard input may be its socket; else it makes one.
///
/// # Errors
/// If the socket cannot be made. That there is a keeper already is none.
pub fn keep(run_dir: &Path, resource: &str) -> io::Result<()> {
    let input = File::from(io::stdin().as_fd().try_clone_to_owned()?);
    let listener = match input.metadata()?.file_type().is_socket() {
        true => UnixListener::from(OwnedFd::from(input)),
        false => {
            prepare_run_dir(run_dir)?;
            match Keeper::of(run_dir, resource).bind() {
                Err(e) if e.kind() == io::ErrorKind::AddrInUse => return crate::notify::ready(),
                bound => bound?,
            }
        }
    };
    // Whoever is started after it finds it, and makes none of its own. It holds devices also if that cannot be told.
    let _ = crate::notify::ready();
    // It must be there when everything else has been killed for memory. Who may not say so is a process like others.
    let _ = std::fs::write("/proc/self/oom_score_adj", "-1000");
    crate::memory::harden_memory();
    frontends::keeper::serve(&listener)
}

impl KeeperCommand {
    pub(crate) fn command(&self) -> Command {
        let mut command = Command::new(&self.program);
        command.args(&self.arguments);
        command
    }
}

pub(crate) fn lock_file(run_dir: &Path, resource: &str) -> PathBuf {
    run_dir.join(format!("{resource}.pid"))
}

/// Takes the lock that says which process runs the resource, and writes the process id into it.
fn lock(run_dir: &Path, resource: &str, leaving: Option<(u32, Duration)>) -> Result<File, Error> {
    let path = lock_file(run_dir, resource);
    let failed = |error| Error::Io { what: format!("locking {}", path.display()), error };
    let mut file = open_lock(&path, true).map_err(failed)?;
    let awaited = leaving.map(|(pid, at_most)| (pid, Instant::now() + at_most));
    // One that was quicker does not leave.
    let still_its = |pid: u32| std::fs::read_to_string(&path).is_ok_and(|text| text.trim() == pid.to_string());
    loop {
        let locked = exclusive::lock(&file).map_err(failed)?;
        if !is_at(&file, &path) {
            file = open_lock(&path, true).map_err(failed)?;
            continue;
        }
        match locked {
            Locked::Yes => break,
            Locked::Despite(who) => {
                let path = path.display();
                let text = format!("{path} is locked by {who}, who can only read it: the resource starts all the same");
                log("warning", &text);
                break;
            }
            Locked::No if awaited.is_some_and(|(pid, until)| Instant::now() < until && still_its(pid)) => {
                std::thread::sleep(PAUSE);
            }
            Locked::No => return Err(Error::AlreadyRunning { resource: resource.to_owned(), lock: path }),
        }
    }
    // Who cannot open it cannot lock it.
    file.set_permissions(Permissions::from_mode(0o600)).map_err(failed)?;
    file.set_len(0).and_then(|()| writeln!(file, "{}", std::process::id())).map_err(failed)?;
    Ok(file)
}

/// The lock of a name that a resource is about to get; gone when this is dropped.
pub(crate) struct Moving {
    path: Option<PathBuf>,
    _lock: File,
}

impl Drop for Moving {
    fn drop(&mut self) {
        self.path.iter().for_each(|path| drop(std::fs::remove_file(path)));
    }
}

impl Moving {
    /// Nobody else begins with that name until this is dropped. `None`: somebody has it.
    pub(crate) fn begin(run_dir: &Path, resource: &str) -> io::Result<Option<Moving>> {
        let path = lock_file(run_dir, resource);
        loop {
            let file = open_lock(&path, true)?;
            match exclusive::lock(&file)? {
                Locked::No => return Ok(None),
                _ if is_at(&file, &path) => return Ok(Some(Moving { path: Some(path), _lock: file })),
                _ => {}
            }
        }
    }

    /// The lock at `from`, which is held, is that of the name.
    pub(crate) fn end(mut self, from: &Path) -> io::Result<()> {
        self.path.take().map_or(Ok(()), |path| std::fs::rename(from, path))
    }
}

/// Whether it is that file still: `down` removes it, and its lock keeps nobody out then.
pub(crate) fn is_at(file: &File, path: &Path) -> bool {
    let number = |is: std::fs::Metadata| (is.dev(), is.ino());
    let there = std::fs::symlink_metadata(path).map(number);
    file.metadata().map(number).is_ok_and(|ours| there.is_ok_and(|there| there == ours))
}

/// A link of that name would lead to a file that has nothing to do with the resource.
pub(crate) fn open_lock(path: &Path, create: bool) -> io::Result<File> {
    let mut options = File::options();
    options.read(true).write(true).create(create).truncate(false).mode(0o600).custom_flags(libc::O_NOFOLLOW);
    options.open(path).map_err(|error| match error.raw_os_error() {
        Some(libc::ELOOP) => io::Error::new(error.kind(), "it is a symbolic link: remove it"),
        _ => error,
    })
}
