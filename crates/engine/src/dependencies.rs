//! `resync-after` across resources: each resource is a process of its own, so whoever waits for another one's volume
//! follows that one's state through its control socket (`docs/spec/data-path-and-resync.md` 7.9).
//!
//! A helper thread per dependency reads the events; the loop only hears of changes. A resource that does not run, does
//! not answer, or has no disk there holds nobody up, as with DRBD a device that does not exist.

use crate::ring::{Fd, Op, Ring};
use crate::token::Token;
use config::LocalResource;
use control::client::{Client, ClientError, socket_path};
use control::{DiskState, Event, ReplicationState, ResourceStatus};
use std::io::{self, PipeReader, PipeWriter, Read, Write};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use units::VolumeNr;

/// How long an answer may take, and how often a thread looks whether it is still wanted.
const PATIENCE: Duration = Duration::from_secs(5);
/// How often a resource that does not run is looked for.
const RETRY: Duration = Duration::from_secs(1);
/// A thread needs no more; with locked memory all of it is taken.
const STACK: usize = 256 << 10;

/// What one of our volumes waits for.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Dependency {
    ours: VolumeNr,
    resource: String,
    /// `None`: its lowest volume.
    volume: Option<u16>,
}

/// The dependencies on other resources that this one has.
pub(crate) struct Dependencies {
    run_dir: PathBuf,
    followed: Vec<Followed>,
    changed: Rc<OwnedFd>,
    pipe: (PipeReader, PipeWriter),
}

struct Followed {
    dependency: Dependency,
    shared: Arc<Shared>,
    /// What was told to the core.
    told: bool,
}

#[derive(Default)]
struct Shared {
    /// Our resync has to wait.
    waits: AtomicBool,
    unwanted: AtomicBool,
}

impl Dependencies {
    /// # Errors
    /// If there are no descriptors left.
    pub(crate) fn new(ring: &mut Ring<Token>, run_dir: &Path) -> io::Result<Dependencies> {
        let pipe = io::pipe()?;
        let changed = Rc::new(OwnedFd::from(pipe.0.try_clone()?));
        let mut new = Dependencies { run_dir: run_dir.to_owned(), followed: Vec::new(), changed, pipe };
        new.listen(ring);
        Ok(new)
    }

    /// Follows what `local` names, and nothing else any more. Returns the volumes that wait for nothing now.
    pub(crate) fn follow(&mut self, local: &LocalResource) -> Vec<VolumeNr> {
        let wanted = dependencies(local);
        let (kept, gone): (Vec<_>, Vec<_>) =
            self.followed.drain(..).partition(|followed| wanted.contains(&followed.dependency));
        self.followed = kept;
        gone.iter().for_each(|f| f.shared.unwanted.store(true, Ordering::Relaxed));
        for dependency in wanted {
            if !self.followed.iter().any(|f| f.dependency == dependency) {
                self.start(dependency);
            }
        }
        gone.into_iter().filter(|f| f.told).map(|f| f.dependency.ours).collect()
    }

    /// Something changed: volumes of ours, and whether their resync has to wait now.
    pub(crate) fn on_changed(&mut self, ring: &mut Ring<Token>) -> Vec<(VolumeNr, bool)> {
        // Readable, so it does not block; what is left makes it readable again.
        let _ = self.pipe.0.read(&mut [0; 64]);
        self.listen(ring);
        let mut changes = Vec::new();
        for followed in &mut self.followed {
            let waits = followed.shared.waits.load(Ordering::Acquire);
            if waits != followed.told {
                followed.told = waits;
                changes.push((followed.dependency.ours, waits));
            }
        }
        changes
    }

    fn listen(&mut self, ring: &mut Ring<Token>) {
        let fd: Fd = self.changed.clone();
        ring.push(Op::Readable { fd }, Token::Dependency);
    }

    fn start(&mut self, dependency: Dependency) {
        let shared = Arc::new(Shared::default());
        let follower = Follower {
            path: socket_path(&self.run_dir, &dependency.resource),
            volume: dependency.volume,
            shared: shared.clone(),
            bell: self.pipe.1.try_clone(),
        };
        let thread = std::thread::Builder::new().name("resync-after".into()).stack_size(STACK);
        if let Err(e) = thread.spawn(move || follower.run()) {
            let Dependency { ours, resource, .. } = &dependency;
            crate::log::log("error", &format!("volume {ours} cannot wait for resyncs of {resource}: {e}"));
        }
        self.followed.push(Followed { dependency, shared, told: false });
    }
}

impl Drop for Dependencies {
    fn drop(&mut self) {
        self.followed.iter().for_each(|f| f.shared.unwanted.store(true, Ordering::Relaxed));
    }
}

/// The dependencies on other resources; those between its own volumes are the core's.
fn dependencies(local: &LocalResource) -> Vec<Dependency> {
    let named = local.volumes.iter().filter_map(|v| Some((v.nr, v.disk.resync_after.as_deref()?)));
    let parsed = named.filter_map(|(ours, text)| {
        let (resource, volume) = config::volume_name(text)?;
        Some(Dependency { ours, resource: resource.to_owned(), volume: volume.map(|nr| nr.0) })
    });
    // -1, the default, is no name.
    parsed.filter(|d| d.resource != local.name && d.resource.parse::<i32>().is_err()).collect()
}

/// What the thread of one dependency has.
struct Follower {
    path: PathBuf,
    volume: Option<u16>,
    shared: Arc<Shared>,
    bell: io::Result<PipeWriter>,
}

impl Follower {
    fn run(mut self) {
        while self.wanted() {
            // Whatever ended it: the resource is down, or is not to be understood.
            let _ = self.follow();
            self.tell(false);
            std::thread::sleep(RETRY);
        }
    }

    fn wanted(&self) -> bool {
        !self.shared.unwanted.load(Ordering::Relaxed)
    }

    fn follow(&mut self) -> Result<(), ClientError> {
        let mut events = Client::connect(&self.path, Some(PATIENCE))?.subscribe(false, false)?;
        while self.wanted() {
            match events.next(Some(PATIENCE)) {
                Ok(Event::Status(status)) => self.tell(holds_up(&status, self.volume)),
                Ok(Event::Renamed { to, .. }) => self.path = self.path.with_file_name(format!("{to}.sock")),
                Ok(Event::Gone) => return Ok(()),
                Ok(_) => {}
                Err(ClientError::Io(e)) if e.kind() == io::ErrorKind::WouldBlock => self.ask_again()?,
                Err(e) => return Err(e),
            }
        }
        Ok(())
    }

    /// A resync tells of its progress more often than that: is it paused, or does the process hang?
    fn ask_again(&mut self) -> Result<(), ClientError> {
        if self.shared.waits.load(Ordering::Acquire) {
            let status = Client::connect(&self.path, Some(PATIENCE))?.status()?;
            self.tell(holds_up(&status, self.volume));
        }
        Ok(())
    }

    fn tell(&mut self, waits: bool) {
        if self.shared.waits.swap(waits, Ordering::AcqRel) != waits
            && let Ok(bell) = &mut self.bell
        {
            // A full pipe rings, too.
            let _ = bell.write(&[1]);
        }
    }
}

/// Does this volume sync, or is it paused, so that who comes after it has to wait?
fn holds_up(status: &ResourceStatus, volume: Option<u16>) -> bool {
    let Some(nr) = volume.or(status.devices.iter().map(|d| d.volume).min()) else { return false };
    let usable = |disk| !matches!(disk, DiskState::Diskless);
    if !status.device(nr).is_some_and(|d| usable(d.disk)) {
        return false;
    }
    let devices = status.connections.iter().flat_map(|c| &c.peer_devices).filter(|p| p.volume == nr);
    devices.into_iter().any(|p| syncs(p.replication) || p.resync_suspended.any())
}

fn syncs(state: ReplicationState) -> bool {
    use ReplicationState::{PausedSyncS, PausedSyncT, SyncSource, SyncTarget, VerifyS, VerifyT};
    matches!(state, SyncSource | SyncTarget | VerifyS | VerifyT | PausedSyncS | PausedSyncT)
}
