//! The volumes' loop devices: attached from the start of the resource to its end, whatever the role.
//!
//! A device that nobody uses is *held*: a thread of ours (and the keeper) has it open. Before somebody is let in
//! through the door it is held, and as soon as they have it open we *let go*. The kernel then detaches the device when
//! its last user closes it (`LO_FLAGS_AUTOCLEAR`), writing back what is dirty, and closes the file, which we are told
//! (`RELEASE`): that is how we know the last close, whoever the users were. The device is attached again at once, under
//! the same number, and held. Whether a device is in use that nobody came to through the door (by `/dev/loopN`) is
//! found out in the same way: by letting go.
//!
//! No page of the cache outlives a change of role: a device that nobody uses is let go of and attached anew then, as
//! the last close empties the cache. Who uses it as a reader while a peer writes is left behind: all that it asks
//! fails.
//!
//! While a Primary's I/O is frozen no device is attached: the kernel tells everybody of a new one, and who then reads
//! it would wait.
//!
//! While this node is Secondary and nobody uses a device, the kernel refuses writes to it (`BLKROSET`): that guards the
//! side doors. A `blockdev --setro` by the administrator is told from it, and kept.

use super::doors::Doors;
use super::{FuseServer, Io, VolumeNr, log};
use crate::ring::{Fd, Ring};
use crate::sys;
use crate::token::Token;
use frontends::fuse::Door;
use frontends::fuse::facts::Facts;
use frontends::loopdev::{self, Background, Kept, LoopDevice, in_background, leftover};
use frontends::users::{self, User};
use std::io;
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::rc::Rc;
use units::{ByteLen, Duration, Instant};
use urbd_core::Access;

/// A volume's block device.
#[derive(Default)]
pub(super) struct Node {
    /// Bytes that it is to have.
    pub(super) size: u64,
    /// May it be written to?
    pub(super) primary: bool,
    pub(super) device: Option<Device>,
    /// Which device it was last.
    pub(super) last: Option<LoopDevice>,
    pub(super) work: Option<Work>,
    /// Why there is no device, or one of another size. Not tried again until something changes.
    pub(super) problem: Option<String>,
    /// Changes that the kernel has asked for, and how many of them the last flush covered.
    pub(super) changes: u64,
    pub(super) flushed: u64,
    /// The role was taken away from those who use it, or the data from its readers: all that they ask fails until the
    /// last of them is gone.
    pub(super) failing: bool,
    /// The administrator has forbidden to write to it. Not up to date while the device is not guarded.
    pub(super) read_only: bool,
    pub(super) guarded: bool,
    /// What the keeper knows of that.
    pub(super) noted: bool,
    /// The device is to go for good.
    pub(super) goes: bool,
    /// Its place among the volumes, in the order of their numbers.
    pub(super) place: usize,
}

pub(super) struct Device {
    pub(super) device: LoopDevice,
    /// The name of the file behind it.
    pub(super) name: String,
    pub(super) size: u64,
    pub(super) hold: Hold,
}

/// Who has a device open.
pub(super) enum Hold {
    /// We. Somebody else, too, if one was let in, or perhaps.
    Ours {
        kept: Kept,
        let_in: bool,
        /// Let go, to see who has it open, and to have its pages written back and dropped.
        probe: bool,
    },
    /// We are about to let go.
    LettingGo { let_in: bool },
    /// Others.
    Users,
}

/// What is being done about a device, and the size that it is to have then.
pub(super) enum Work {
    /// When nobody had written anything yet but what is counted here.
    Attach(Background<Kept>, u64, u64),
    Resize(Background<u64>, u64),
    Hold(Background<Option<Kept>>),
    LetGo(Background<()>),
    Detach(Background<()>),
}

/// What is to be done about a device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Task {
    Attach,
    Resize,
    Hold,
    LetGo,
    Detach,
}

/// All devices are looked at: who of them is in use?
pub(super) struct Probe {
    /// Not before then.
    from: Option<Instant>,
    until: Instant,
    grace: Instant,
}

/// No pauses of writeback by the kernel: how much is under way is bounded by our buffers.
const DEVICE: loopdev::Options = loopdev::Options { read_only: false, block_size: 512, paced: false };

/// How long a device may be in use after its last user let go of it.
const GRACE: Duration = Duration::from_millis(300);
/// How long it may take to find out who is: what is dirty is written back.
const PROBE: Duration = Duration::from_secs(2);

impl Device {
    /// One that others have open.
    pub(super) fn used(device: LoopDevice, name: String) -> Device {
        Device { device, name, size: device.size(), hold: Hold::Users }
    }

    /// Does it still stand on its file?
    fn is_there(&self) -> bool {
        self.device.stands_on(&self.name)
    }

    /// Has the kernel been told to refuse writes to it? `None`: it is gone, and somebody else has its number.
    fn forbids_writes(&self) -> Option<bool> {
        self.device.forbids_writes(&self.name)
    }
}

impl Node {
    fn used(&self) -> bool {
        match self.device.as_ref().map(|device| &device.hold) {
            Some(Hold::Ours { let_in, .. } | Hold::LettingGo { let_in }) => *let_in,
            Some(Hold::Users) => true,
            None => false,
        }
    }

    /// Nobody may write to it: guards the side doors, and remembers what the administrator wants.
    fn guard(&mut self) {
        let Some(device @ Device { hold: Hold::Ours { kept, let_in: false, .. }, .. }) = &self.device else { return };
        if self.guarded || self.primary {
            return;
        }
        self.read_only = device.forbids_writes().unwrap_or(self.read_only);
        let set = if self.read_only { Ok(()) } else { kept.set_read_only(true) };
        self.guarded = set.is_ok();
    }

    /// The device is as the administrator wants it.
    pub(super) fn unguard(&mut self) {
        if let Some(Device { hold: Hold::Ours { kept, .. }, .. }) = &self.device
            && self.guarded
        {
            self.guarded = kept.set_read_only(self.read_only).is_err();
        }
    }

    /// Has the administrator forbidden to write to it?
    pub(super) fn is_read_only(&self) -> bool {
        match &self.device {
            Some(device) if !self.guarded => device.forbids_writes().unwrap_or(self.read_only),
            _ => self.read_only,
        }
    }

    /// Says what the keeper has to know of it if this process is gone with the next instruction.
    pub(super) fn tell(&self, facts: Option<&Facts>) {
        if let Some(facts) = facts {
            facts.set_clean(self.place, self.flushed == self.changes || self.is_being_attached());
        }
    }

    /// Is it on its way, so that nobody has been able to write to it?
    pub(super) fn is_being_attached(&self) -> bool {
        matches!(self.work, Some(Work::Attach(.., changes)) if changes == self.changes)
    }

    /// Is it there, held, and as large as it should be?
    pub(super) fn is_ready(&self) -> bool {
        let fits = |d: &Device| matches!(d.hold, Hold::Ours { probe: false, .. }) && d.size == self.size;
        self.work.is_none() && self.device.as_ref().is_some_and(fits)
    }

    /// Somebody is let in.
    pub(super) fn let_in(&mut self) {
        self.unguard();
        if let Some(Device { hold: Hold::Ours { let_in, .. }, .. }) = &mut self.device {
            *let_in = true;
        }
    }

    /// The last user is gone, and with it the device.
    fn gone(&mut self) {
        let Some(device) = self.device.take() else { return };
        if !self.guarded {
            self.read_only = device.forbids_writes().unwrap_or(self.read_only);
        }
        self.last = Some(device.device);
        (self.guarded, self.failing) = (false, false);
    }

    /// Is the device to come when I/O goes on?
    fn waits_for_io(&self, io: Io) -> bool {
        io.is_frozen() && self.primary && self.device.is_none() && self.work.is_none()
    }

    fn task(&self, volume: VolumeNr, doors: &Doors, io: Io, ending: bool) -> Option<Task> {
        let ending = ending || self.goes;
        if self.work.is_some() || self.problem.is_some() {
            return None;
        }
        let attach = !ending && !self.waits_for_io(io);
        let Some(device) = &self.device else { return attach.then_some(Task::Attach) };
        match &device.hold {
            Hold::Ours { .. } if ending => Some(Task::Detach),
            Hold::LettingGo { .. } => None,
            _ if ending => None,
            _ if device.size != self.size => Some(Task::Resize),
            Hold::Ours { let_in: false, probe: true, .. } => Some(Task::LetGo),
            Hold::Ours { let_in: true, .. } if !doors.need(volume) => Some(Task::LetGo),
            Hold::Users if doors.need(volume) => Some(Task::Hold),
            _ => None,
        }
    }
}

impl FuseServer {
    /// What the volume's device is to be from now on.
    pub(crate) fn set_device(&mut self, volume: VolumeNr, size: ByteLen, access: Access, discard: bool) {
        if self.stage == super::Stage::Leaving {
            return;
        }
        let Some(node) = self.volumes.get_mut(&volume) else { return };
        let primary = access == Access::ReadWrite;
        node.failing |= node.primary && !primary && node.used();
        let promoted = primary && !node.primary;
        if let Some(Device { hold: Hold::Ours { probe, let_in: false, .. }, .. }) = &mut node.device {
            *probe |= primary != node.primary;
        }
        (node.primary, node.problem) = (primary, None);
        // Without a disk and a peer it is not known how large it is: as large as it was.
        if size.0 > 0 || node.device.is_none() {
            node.size = size.0;
        }
        if primary {
            node.unguard()
        } else {
            node.guard()
        }
        if let Some(export) = self.session.export_mut(u32::from(volume.0)) {
            export.size = node.size;
            export.read_only = !primary;
            export.can_trim = discard;
        }
        self.say(volume);
        self.note_read_only(volume);
        if promoted && let Err(e) = self.link(volume, true) {
            log("warning", &format!("the names of the device of volume {volume}: {e}"));
        }
    }

    /// Does what applications ask of a Primary wait?
    pub(crate) fn set_frozen(&mut self, frozen: bool) {
        self.io = match (self.io, frozen) {
            (Io::Goes | Io::Frozen, true) => Io::Frozen,
            (Io::Goes | Io::Frozen, false) => Io::Goes,
            (_, true) => Io::FrozenLacking,
            (_, false) => Io::Lacking,
        };
    }

    /// Is a device being made that somebody may be waiting for, or, at the end, taken away?
    pub(crate) fn is_busy(&self) -> bool {
        let matters = |node: &Node, task: Option<Task>| match task {
            Some(Task::LetGo) => !node.used(),
            Some(task) => task != Task::Hold,
            None => false,
        };
        self.volumes.iter().any(|(volume, node)| match &node.work {
            Some(Work::LetGo(_)) => self.ending || !node.used(),
            Some(_) => true,
            None => self.takes_requests() && matters(node, node.task(*volume, &self.doors, self.io, self.ending)),
        })
    }

    /// The devices are taken away, but for those in use.
    pub(crate) fn take_away(&mut self) {
        self.ending = true;
    }

    /// Which device could not be made, and why.
    pub(crate) fn missing(&self) -> Option<String> {
        let missing = |(_, node): &(&VolumeNr, &Node)| node.device.is_none();
        let (volume, node) = self.volumes.iter().find(missing)?;
        Some(format!("volume {volume}: {}", node.problem.as_deref()?))
    }

    /// What could not be done is tried once more.
    pub(crate) fn try_again(&mut self) {
        self.volumes.values_mut().for_each(|node| node.problem = None);
    }

    /// Is there a device?
    pub(crate) fn has_devices(&self) -> bool {
        self.volumes.values().any(|n| n.device.is_some())
    }

    /// Is this node Primary, as far as the devices know? One that is to go hears of no other role.
    pub(crate) fn is_primary(&self) -> bool {
        self.volumes.values().any(|n| n.primary && !n.goes)
    }

    /// Is any device in use, as far as is known?
    pub(crate) fn any_used(&self) -> bool {
        self.volumes.values().any(Node::used)
    }

    /// The path that applications open.
    pub(crate) fn device_path(&self, volume: VolumeNr) -> Option<PathBuf> {
        let node = self.volumes.get(&volume)?;
        node.device.as_ref().map(|d| d.device).or(node.last)?;
        let number = u32::from(volume.0);
        let named = self.links.path(&self.resource, number).ok();
        named.filter(|_| self.links.is_own(&self.resource, number)).or(self.links.door(&self.resource, number).ok())
    }

    /// Is the device in use, as far as is known without letting go of it?
    pub(crate) fn is_used(&self, volume: VolumeNr) -> bool {
        self.volumes.get(&volume).is_some_and(Node::used)
    }

    /// The same, and mounts that were made by another path than the door's.
    pub(crate) fn is_open(&self, volume: VolumeNr) -> bool {
        let mounted = |device: &Device| {
            let (numbers, name, door) = self.named(volume, device.device);
            users::is_mounted(numbers, &name, &door)
        };
        self.volumes.get(&volume).is_some_and(|node| node.used() || node.device.as_ref().is_some_and(mounted))
    }

    /// Has the administrator forbidden to write to it?
    pub(crate) fn is_read_only(&self, volume: VolumeNr) -> bool {
        self.volumes.get(&volume).is_some_and(Node::is_read_only)
    }

    /// A Secondary's data change under its readers: from now on they get errors. Where it is not known yet whether
    /// there are any (a process has just taken the device over) they do when it is: else those at the door would.
    pub(crate) fn leave_readers_behind(&mut self) {
        for node in self.volumes.values_mut() {
            let known = matches!(&node.device, Some(Device { hold: Hold::Users, .. }));
            node.failing |= known && !node.primary;
        }
    }

    /// Were those who use the device left behind?
    pub(crate) fn is_failing(&self, volume: VolumeNr) -> bool {
        self.volumes.get(&volume).is_some_and(|node| node.failing)
    }

    /// The same of any volume.
    pub(crate) fn any_failing(&self) -> bool {
        self.volumes.values().any(|node| node.failing)
    }

    fn named(&self, volume: VolumeNr, device: LoopDevice) -> ((u32, u32), String, PathBuf) {
        let (major, minor) = device.device_number();
        let door = self.links.door(&self.resource, u32::from(volume.0)).unwrap_or_default();
        ((major, minor), format!("loop{minor}"), door)
    }

    /// Looks which devices are in use; [`FuseServer::probed`] says it.
    pub(crate) fn begin_probe(&mut self, now: Instant) {
        for volume in self.volumes.keys().copied().collect::<Vec<_>>() {
            self.released(volume);
        }
        for node in self.volumes.values_mut() {
            // Where somebody was let in we let go in any case.
            if let Some(Device { hold: Hold::Ours { probe, let_in: false, .. }, .. }) = &mut node.device {
                *probe = true;
            }
        }
        self.probe = Some(Probe { from: Some(now), until: now + PROBE, grace: now + GRACE });
    }

    /// When [`FuseServer::probed`] should be asked again at the latest.
    pub(crate) fn probe_deadline(&self) -> Option<Instant> {
        self.probe.as_ref().map(|probe| probe.from.unwrap_or(probe.grace))
    }

    /// Once, when it is known: the devices in use.
    pub(crate) fn probed(&mut self, now: Instant) -> Option<Vec<VolumeNr>> {
        let probe = self.probe.as_mut().filter(|probe| probe.from.is_none_or(|from| now >= from))?;
        probe.from = None;
        let undecided = self.volumes.values().any(|node| {
            if node.waits_for_io(self.io) {
                return false;
            }
            let hold = node.device.as_ref().map(|device| &device.hold);
            let looking = matches!(hold, Some(Hold::Ours { probe, let_in, .. }) if *probe || *let_in);
            node.work.is_some() || looking || node.device.is_none() && node.problem.is_none()
        });
        // What is being written back for longer than we wait is somebody's.
        let in_use = |node: &Node| node.used() || matches!(node.work, Some(Work::LetGo(_)));
        let used: Vec<VolumeNr> = self.volumes.iter().filter(|(_, node)| in_use(node)).map(|(v, _)| *v).collect();
        let waits = undecided && now < probe.until || !used.is_empty() && now < probe.grace;
        if waits {
            // It is asked again by then.
            if now >= probe.grace {
                probe.grace = now + Duration::from_millis(50);
            }
            return None;
        }
        self.probe = None;
        Some(used)
    }

    /// What is known of a device that is in use, although nobody is seen to use it.
    pub(crate) fn held_by_nobody(&self, volume: VolumeNr) -> String {
        let node = self.volumes.get(&volume);
        let device = node.and_then(|node| node.device.as_ref());
        let name = device.map_or_else(String::new, |device| device.device.path().display().to_string());
        let there = device.is_some_and(Device::is_there);
        let work = node.and_then(|node| node.work.as_ref());
        let closing =
            if matches!(work, Some(Work::LetGo(_))) { ", and is just being closed by the kernel" } else { "" };
        format!(
            "volume {volume}: nobody on this machine is seen to have {name} open, and it {} in use{closing}",
            if there { "is" } else { "was" },
        )
    }

    /// Finds out who uses these devices; `token` comes when it is known.
    pub(crate) fn find_users(
        &self,
        ring: &mut Ring<Token>,
        volumes: &[VolumeNr],
        token: Token,
    ) -> io::Result<Background<Vec<(VolumeNr, User)>>> {
        let device = |volume: &VolumeNr| Some((*volume, self.volumes.get(volume)?.device.as_ref()?.device));
        let named: Vec<_> = volumes.iter().filter_map(device).map(|(v, d)| (v, self.named(v, d))).collect();
        let work = in_background(&[], move || {
            let of = |(volume, (numbers, name, door)): (VolumeNr, ((u32, u32), String, PathBuf))| {
                users::of(numbers, &name, &door).into_iter().map(move |user| (volume, user))
            };
            Ok(named.into_iter().flat_map(of).collect())
        })?;
        watch(ring, &work, token)?;
        Ok(work)
    }

    /// The volumes whose last user has gone since this was asked last.
    pub(crate) fn take_closed(&mut self) -> Vec<VolumeNr> {
        std::mem::take(&mut self.closed)
    }

    /// The kernel has closed a volume's file: the device is gone, unless somebody else had it open as well.
    pub(super) fn released(&mut self, volume: VolumeNr) {
        let Some(node) = self.volumes.get_mut(&volume) else { return };
        if let Some(device @ Device { hold: Hold::Users, .. }) = &node.device
            && !device.is_there()
        {
            node.gone();
            self.closed.push(volume);
        }
    }

    pub(super) fn start_tasks(&mut self, ring: &mut Ring<Token>) {
        let tasks: Vec<(VolumeNr, Task)> = self
            .volumes
            .iter()
            .filter_map(|(volume, node)| Some((*volume, node.task(*volume, &self.doors, self.io, self.ending)?)))
            .collect();
        for (volume, task) in tasks {
            self.start_task(ring, volume, task);
        }
    }

    fn start_task(&mut self, ring: &mut Ring<Token>, volume: VolumeNr, task: Task) {
        let Some(name) = self.session.file(u32::from(volume.0)) else { return };
        let file =
            PathBuf::from(format!("/proc/thread-self/fd/{}/{name}", std::os::fd::AsRawFd::as_raw_fd(&self.root)));
        let root = self.root.as_fd();
        let Some(node) = self.volumes.get_mut(&volume) else { return };
        let token = Token::FuseWork(volume);
        let size = node.size;
        if task == Task::LetGo {
            // What it says from now on is what the administrator wants.
            node.unguard();
            // For the case that its number is somebody else's before it is asked again.
            node.read_only = node.is_read_only();
        }
        let started = match (task, &mut node.device) {
            (Task::Attach, _) => loopdev::keep_through(file, &[root], DEVICE, node.last)
                .and_then(|work| watch(ring, &work, token).map(|()| Work::Attach(work, size, node.changes))),
            (Task::Resize, Some(Device { device, .. })) => {
                let device = *device;
                in_background(&[root], move || device.refresh_size(&file))
                    .and_then(|work| watch(ring, &work, token).map(|()| Work::Resize(work, size)))
            }
            (Task::Hold, Some(Device { device, .. })) => {
                loopdev::keep_again(*device, name).and_then(|work| watch(ring, &work, token).map(|()| Work::Hold(work)))
            }
            (Task::LetGo, Some(device)) => {
                let let_in = matches!(device.hold, Hold::Ours { let_in: true, .. });
                let flush = matches!(device.hold, Hold::Ours { let_in: false, .. });
                match std::mem::replace(&mut device.hold, Hold::LettingGo { let_in }) {
                    Hold::Ours { kept, .. } => in_background(&[], move || kept.let_go(flush))
                        .and_then(|work| watch(ring, &work, token).map(|()| Work::LetGo(work))),
                    other => return device.hold = other,
                }
            }
            (Task::Detach, held) => match held.take() {
                Some(Device { hold: Hold::Ours { kept, .. }, .. }) => {
                    // For whoever has the loop device next.
                    let _ = kept.set_read_only(false);
                    in_background(&[], move || kept.detach())
                        .and_then(|work| watch(ring, &work, token).map(|()| Work::Detach(work)))
                }
                other => return *held = other,
            },
            (_, None) => return,
        };
        match started {
            Ok(work) => {
                node.work = Some(work);
                node.tell(self.keeping.facts());
            }
            Err(e) => {
                log("error", &format!("the block device of volume {volume}: {e}"));
                node.problem = Some(e.to_string());
            }
        }
    }

    /// A helper thread has done its work. `Some` says what went wrong.
    pub(crate) fn on_work(&mut self, volume: VolumeNr) -> Option<String> {
        let problem = self.after_work(volume);
        self.say(volume);
        problem
    }

    fn after_work(&mut self, volume: VolumeNr) -> Option<String> {
        let node = self.volumes.get_mut(&volume)?;
        let ended = match node.work.take()? {
            Work::Attach(mut work, size, _) => match work.take()? {
                Ok(kept) => return self.attached(volume, kept, size).err().map(|e| e.to_string()),
                Err(e) => Err(e),
            },
            Work::Resize(mut work, size) => {
                node.device.iter_mut().for_each(|device| device.size = size);
                work.take()?.map(drop)
            }
            Work::Hold(mut work) => match work.take()? {
                Ok(Some(kept)) => {
                    let hold = Hold::Ours { kept, let_in: true, probe: false };
                    node.device.iter_mut().for_each(|device| device.hold = Hold::Users);
                    if let Some(device) = &mut node.device {
                        device.hold = hold;
                    }
                    return self.share(volume).err().map(|e| format!("the keeper: {e}"));
                }
                Ok(None) => {
                    node.gone();
                    self.closed.push(volume);
                    Ok(())
                }
                Err(e) => Err(e),
            },
            Work::LetGo(mut work) => {
                let result = work.take()?;
                let let_in = node.used();
                match &mut node.device {
                    Some(device) if device.is_there() => device.hold = Hold::Users,
                    _ => {
                        node.gone();
                        self.closed.extend(let_in.then_some(volume));
                    }
                }
                // What was dirty could not be written back, or the keeper does not let go.
                return result.err().map(|e| e.to_string());
            }
            Work::Detach(mut work) => {
                self.session.set_door(u32::from(volume.0), None);
                let note = self.links.loop_note(&self.resource, u32::from(volume.0));
                let goes = node.goes;
                let detached = work.take()?.and_then(|()| leftover::forget(&note?));
                if goes && detached.is_ok() {
                    self.forget_gone();
                    return None;
                }
                detached
            }
        };
        if let Err(e) = ended {
            node.problem = Some(e.to_string());
            return node.problem.clone();
        }
        None
    }

    /// A device stands on the volume's file again, or for the first time.
    fn attached(&mut self, volume: VolumeNr, kept: Kept, size: u64) -> io::Result<()> {
        let device = kept.device();
        let Some(name) = self.session.file(u32::from(volume.0)) else { return Ok(()) };
        let Some(node) = self.volumes.get_mut(&volume) else { return Ok(()) };
        let same = node.last == Some(device);
        // Before anybody is kept from writing to it, which outlives it.
        let note = || leftover::note(&self.links.loop_note(&self.resource, u32::from(volume.0))?, device);
        let noted = if same { Ok(()) } else { note() };
        // Whoever had the number before may have left something else there.
        kept.set_read_only(node.read_only)?;
        node.last = Some(device);
        let hold = Hold::Ours { kept, let_in: false, probe: false };
        node.device = Some(Device { device, name, size, hold });
        node.guarded = false;
        if node.primary {
            node.unguard()
        } else {
            node.guard()
        }
        let primary = node.primary;
        self.note_read_only(volume);
        let door = Door { device: device.device_number(), owner: (0, self.group) };
        self.session.set_door(u32::from(volume.0), Some(door));
        // If the keeper has just ended, its successor is given all devices.
        let shared = self.share(volume).map_err(|e| io::Error::new(e.kind(), format!("the keeper: {e}")));
        let linked = if same { Ok(()) } else { self.link(volume, primary) };
        linked.map_err(|e| io::Error::new(e.kind(), format!("its names: {e}"))).and(noted).and(shared)
    }

    /// The device's names lead to its door, if they are to be `taken` also those of another node.
    pub(super) fn link(&self, volume: VolumeNr, taken: bool) -> io::Result<()> {
        let Some(names) = self.names.iter().find(|names| names.volume == u32::from(volume.0)) else { return Ok(()) };
        if self.links.leaves_to_kernel(names) {
            let (minor, path) = (names.minor, self.links.path(&names.resource, names.volume)?.display().to_string());
            let text = format!(
                "the kernel's DRBD has minor {minor}: /dev/drbd{minor} and the names below /dev/drbd are its own; \
                 volume {volume} of {} is {path}, or has them with another minor",
                names.resource
            );
            log("warning", &text);
        }
        self.links.create(names, taken)
    }
}

/// Lets the end of background work complete with `token`.
pub(super) fn watch<T>(ring: &mut Ring<Token>, work: &Background<T>, token: Token) -> io::Result<()> {
    let fd: Fd = Rc::new(work.as_fd().try_clone_to_owned()?);
    ring.push(crate::ring::Op::Readable { fd }, token);
    Ok(())
}

/// The group that block devices of this kind belong to, which the doors have, too.
pub(super) fn device_group() -> u32 {
    use std::os::unix::fs::MetadataExt;
    std::fs::metadata("/dev/loop-control").map_or(sys::user_and_group().1, |control| control.gid())
}
