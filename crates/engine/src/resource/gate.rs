//! Who may open a block device, and the promotions and demotions that come of it (`docs/spec/connection-and-state.md`
//! 8.3 and 8.8).
//!
//! Whoever opens a device waits at its door (`fuse_server::doors`) until it is decided here. To open for writing makes
//! this node Primary, if `auto-promote` is in effect; when the last user of all volumes is gone it is Secondary again,
//! unless an administrator made it Primary.

use super::{FuseServer, Runner, log};
use crate::token::ClientId;
use control::{Command as Asked, Opening};
use frontends::Errno;
use frontends::fuse::Intent;
use frontends::loopdev::Background;
use frontends::users::User;
use units::{Duration, Instant, VolumeNr};
use urbd_core::{Command, CommandError, ConnectionState, Openers, Snapshot};

/// How soon what could not be done is tried again.
const PAUSE: Duration = Duration::from_millis(100);

/// Whoever probes this node's device right after the last close on the Primary must find it. In the kernel's DRBD that
/// node is Secondary when the close is over, and this one knows it; here it may not have heard of the close yet. So who
/// does not want to wait is refused when the peers have answered so often, with this pause in between: by then whoever
/// had heard of it has become Secondary.
const ANSWERS: u32 = 5;
const MOMENT: Duration = Duration::from_millis(20);

/// What openers have to do with the role.
#[derive(Default)]
pub(super) struct Gate {
    /// An administrator wants this node to be Primary.
    explicit: bool,
    /// The last demotion was an administrator's, by force.
    by_force: bool,
    /// The core's name for the promotion that openers wait for, and for the demotion after the last of them.
    promotion: Option<(u64, Instant)>,
    demotion: Option<u64>,
    /// How the last promotion failed.
    failure: Option<CommandError>,
    /// Not before.
    again_at: Option<Instant>,
    /// When peers were asked last whether they are there, as somebody wants to read beside a Primary.
    pinged: Option<Instant>,
    /// The core's name for a question to all peers, and how many such have been answered.
    question: Option<u64>,
    answers: u32,
    /// When they are asked again for whoever does not want to wait.
    ask_at: Option<Instant>,
    /// Something has happened that this is about.
    news: bool,
    /// When the process started. A new one lets its peers be heard before it takes its data for the last.
    started: Instant,
    agreed: Agreed,
}

/// The dialect that was agreed on last with a peer, since the process started.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
enum Agreed {
    #[default]
    Nothing,
    On84,
    On9,
    On9After84,
}

/// What becomes of an opener.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Verdict {
    Wait,
    Promote,
    LetIn,
    Refuse(i32),
}

/// What a decision about one opener depends on.
#[derive(Clone, Copy, Debug)]
struct Circumstances {
    primary: bool,
    auto_promote: bool,
    changing: Changing,
    /// The resource is being taken down.
    ending: bool,
    /// Writes are forbidden by the administrator.
    read_only: bool,
    /// Users from before a forced demotion are left.
    failing: bool,
    readable: Readable,
    /// The process has just started, and a peer that may be Primary has not been heard of yet.
    early: bool,
    /// What there was to try was tried, and it is no use to try again.
    hopeless: bool,
    /// No promotion before some moment.
    pausing: bool,
    expired: bool,
    tried: bool,
    /// A peer that is Primary would have said by now if it were not any more.
    settled: bool,
}

/// Whether the role is being changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Changing {
    No,
    /// This node becomes Secondary after its last user. In the kernel's DRBD that is over when the close is.
    AfterClose,
    /// By whomever.
    Yes,
}

/// Whether a Secondary's device can be read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Readable {
    Yes,
    /// Another node is Primary.
    PrimaryElsewhere,
    /// A connection may bring data.
    MaybeSoon,
    No,
}

/// The decision (8.3).
fn judge(intent: Intent, c: Circumstances) -> Verdict {
    let (Intent::Read { nonblocking } | Intent::Write { nonblocking }) = intent else { return Verdict::LetIn };
    let patient = !c.expired && !nonblocking;
    match intent {
        _ if c.ending => Verdict::Refuse(libc::EAGAIN),
        _ if c.failing => Verdict::Refuse(libc::ENOTRECOVERABLE),
        Intent::Write { .. } if c.read_only => Verdict::Refuse(libc::EACCES),
        // A program that takes an error for an empty device would make a file system, and destroy what is there.
        _ if c.changing == Changing::AfterClose && !c.expired => Verdict::Wait,
        // Who has begun a promotion, which may be just that change, learns how it ends.
        _ if c.changing != Changing::No && (patient || c.tried) => Verdict::Wait,
        _ if c.changing != Changing::No => Verdict::Refuse(libc::EAGAIN),
        _ if c.primary => Verdict::LetIn,
        Intent::Write { .. } if !c.auto_promote => Verdict::Refuse(libc::EROFS),
        Intent::Write { .. } if c.tried && (c.hopeless || !patient) => Verdict::Refuse(match c.readable {
            // As for readers: who tries again for reading only is not to wait once more.
            Readable::PrimaryElsewhere => libc::EMEDIUMTYPE,
            _ => libc::EROFS,
        }),
        Intent::Write { .. } if c.pausing || c.early && patient => Verdict::Wait,
        Intent::Write { .. } => Verdict::Promote,
        _ if !c.auto_promote => Verdict::Refuse(libc::EMEDIUMTYPE),
        _ => match c.readable {
            Readable::Yes => Verdict::LetIn,
            Readable::No => Verdict::Refuse(libc::ENODATA),
            Readable::PrimaryElsewhere | Readable::MaybeSoon if patient => Verdict::Wait,
            Readable::PrimaryElsewhere if !c.settled && !c.expired => Verdict::Wait,
            Readable::PrimaryElsewhere | Readable::MaybeSoon => Verdict::Refuse(libc::EMEDIUMTYPE),
        },
    }
}

/// The read condition (8.3). Two Primaries read what both write, a Secondary beside one does not.
fn readable(s: &Snapshot) -> Readable {
    let peers = || s.connections.iter().filter(|c| c.state == ConnectionState::Connected);
    let good = |volume: usize| {
        let device = &s.devices[volume];
        let at = |c: &urbd_core::ConnectionSnapshot| {
            c.peer_devices.iter().any(|p| p.volume == device.volume && p.peer_disk == wire::DiskState::UpToDate)
        };
        device.disk == wire::DiskState::UpToDate || peers().any(at)
    };
    if peers().any(|c| c.role == wire::Role::Primary) {
        Readable::PrimaryElsewhere
    } else if (0..s.devices.len()).all(good) {
        Readable::Yes
    } else if s.connections.iter().any(is_coming) {
        Readable::MaybeSoon
    } else {
        Readable::No
    }
}

/// May the connection come to be?
fn is_coming(c: &urbd_core::ConnectionSnapshot) -> bool {
    (ConnectionState::Unconnected..=ConnectionState::Connecting).contains(&c.state)
}

/// May the same promotion succeed a little later? Codes of 1.7: two Primaries, no good disk while a connection may
/// bring one, in transient state, refused by the peer, concurrent changes, a peer's reader, timed out.
fn may_succeed_later(code: i32, readable: Readable) -> bool {
    match code {
        -1 | -10 | -18 | -19 | -22 | -23 => true,
        -2 => matches!(readable, Readable::MaybeSoon | Readable::Yes),
        _ => false,
    }
}

impl Gate {
    /// Is this node Primary because somebody has opened a device, and for no other reason?
    pub(super) fn by_openers(&self) -> bool {
        !self.explicit
    }

    /// An administrator's command is about to be carried out.
    pub(super) fn on_command(&mut self, asked: &Asked) {
        self.explicit |= matches!(asked, Asked::Primary { .. });
        self.by_force |= matches!(asked, Asked::Secondary { force: true });
    }

    /// Does I/O fail of those who had a device open at a demotion by force? Until the last of them has closed it.
    pub(super) fn fails_by_force(&self, fuse: Option<&FuseServer>) -> bool {
        self.by_force && fuse.is_some_and(FuseServer::any_failing)
    }

    /// Something has happened to the role, the devices, or who uses them.
    pub(super) fn news(&mut self) {
        self.news = true;
    }

    /// For a process that starts now; the last one was Primary by an administrator's command, if `explicit`.
    /// A dialect was agreed on with a peer. Returns what is said of it where it is not the one before.
    pub(super) fn note_dialect(&mut self, nine: bool) -> &'static str {
        let before = self.agreed;
        self.agreed = match before {
            _ if !nine => Agreed::On84,
            Agreed::On84 => Agreed::On9After84,
            Agreed::Nothing => Agreed::On9,
            Agreed::On9 | Agreed::On9After84 => before,
        };
        match (before, self.agreed) {
            (Agreed::On84, Agreed::On9After84) => ": DRBD 9's dialect, 8.4's before",
            (Agreed::On9 | Agreed::On9After84, Agreed::On84) => ": DRBD 8.4's dialect, 9's before",
            _ => "",
        }
    }

    /// What comes of opening for writing, if it promotes because that is written, or by the dialect alone.
    pub(super) fn opening(&self, written: bool) -> Opening {
        match self.agreed {
            Agreed::On9After84 if !written => Opening::PromotesByDialect,
            _ => Opening::Promotes,
        }
    }

    pub(super) fn new(now: Instant, explicit: bool) -> Gate {
        Gate { explicit, started: now, ..Gate::default() }
    }
}

/// Commands that wait until it is known who uses the block devices.
pub(super) struct UseCheck {
    pub(super) used: Vec<VolumeNr>,
    /// Who the users are is being found out.
    pub(super) users: Option<Background<Vec<(VolumeNr, User)>>>,
    pub(super) waiting: Vec<(Option<ClientId>, Asked)>,
    /// Since when the first of them has been asked.
    pub(super) since: Instant,
}

/// A program that has ended, or unmounted, may be seen nowhere while the kernel still closes its device. So long it may
/// take; who is in a place that this node cannot see (another process namespace) is refused only then.
pub(super) const LEAVING: Duration = Duration::from_secs(10);

/// Who has closed a device, or the socket of one, may be counted a moment longer than it is seen anywhere: so long
/// what is refused for that is asked again, and this often.
pub(super) const CLOSING: Duration = Duration::from_secs(1);
pub(super) const LOOKS_AGAIN: Duration = Duration::from_millis(30);

impl Runner {
    /// Decides on those at the doors, and demotes after the last of them.
    pub(super) fn run_gate(&mut self) {
        let Some(fuse) = &mut self.fuse else { return };
        let closed = fuse.take_closed();
        if !std::mem::take(&mut self.gate.news) && closed.is_empty() && !fuse.has_openings() {
            return;
        }
        self.untold.touch(!closed.is_empty());
        self.follow_role();
        self.note_role();
        self.watch_readers();
        if self.fuse.as_ref().is_some_and(FuseServer::anyone_waits) {
            self.judge_openings();
        }
        for volume in self.local.volumes.iter().map(|v| v.nr).collect::<Vec<_>>() {
            self.tell_openers(volume);
        }
        self.demote_after_last_close();
    }

    /// Who knows the role when nobody changes it: a Secondary is nobody's wish.
    fn follow_role(&mut self) {
        let primary = self.fuse.as_ref().is_some_and(FuseServer::is_primary);
        if self.gate.explicit && !primary && !self.role_changes() && !self.is_leaving() {
            self.gate.explicit = false;
        }
        if self.gate.by_force && !self.role_changes() && !self.gate.fails_by_force(self.fuse.as_ref()) {
            self.gate.by_force = false;
        }
    }

    /// Has this Secondary readers, who must be told when its data change?
    pub(super) fn has_readers(&self) -> bool {
        self.fuse.as_ref().is_some_and(|fuse| !fuse.is_primary() && !fuse.is_waiting() && fuse.any_used())
    }

    /// Where 9's dialect is spoken a reader keeps the peer from being Primary. In 8.4's nothing can say so: then the
    /// reader, and what is in the page cache, must not outlive what the peer writes, or a resync brings.
    fn watch_readers(&mut self) {
        if !self.has_readers() {
            return;
        }
        let s = self.core.snapshot();
        let written = s.connections.iter().any(|c| c.role == wire::Role::Primary);
        let brought =
            |d: &urbd_core::DeviceSnapshot| (wire::DiskState::Failed..wire::DiskState::UpToDate).contains(&d.disk);
        if written || s.devices.iter().any(brought) {
            self.fuse.iter_mut().for_each(FuseServer::leave_readers_behind);
        }
    }

    /// Is the role being changed, or looked at by who is about to change it?
    fn role_changes(&self) -> bool {
        let gate = self.gate.promotion.is_some() || self.gate.demotion.is_some();
        gate || self.checking.is_some() || self.commands.changes_role() || self.is_waiting()
    }

    fn judge_openings(&mut self) {
        let snapshot = self.core.snapshot();
        let readable = readable(&snapshot);
        let auto_promote = self.auto_promotes(&snapshot);
        let changing = match self.gate.demotion {
            Some(_) => Changing::AfterClose,
            None if self.role_changes() => Changing::Yes,
            None => Changing::No,
        };
        let ending = self.stopped.is_some() || self.commands.takes_down();
        let hopeless = self.gate.failure.as_ref().is_some_and(|e| !may_succeed_later(e.code, readable));
        let (now, patience) = (self.now, self.local.options.auto_promote_timeout);
        let began = self.gate.promotion.map(|(_, began)| began);
        let pausing = self.gate.again_at.is_some_and(|at| now < at);
        let answers = self.gate.answers;
        let early = now < self.gate.started + patience && snapshot.connections.iter().any(is_coming);
        let Some(fuse) = &mut self.fuse else { return };
        let states: Vec<_> =
            self.local.volumes.iter().map(|v| (v.nr, fuse.is_read_only(v.nr), fuse.is_failing(v.nr))).collect();
        let circumstances = move |opening: &crate::fuse_server::Opening| {
            let state = states.iter().find(|(volume, ..)| *volume == opening.volume);
            let (read_only, failing) = state.map_or((false, false), |(_, read_only, failing)| (*read_only, *failing));
            Circumstances {
                primary: snapshot.role == wire::Role::Primary,
                auto_promote,
                // Who waits for a promotion that is on its way does so however long it takes.
                changing,
                ending,
                read_only,
                failing,
                readable,
                early,
                hopeless,
                pausing,
                expired: now >= opening.came + patience && began.is_none(),
                tried: opening.tried,
                settled: opening.heard.is_some_and(|heard| answers >= heard + ANSWERS),
            }
        };
        let (mut promote, mut asks, mut hurries) = (false, false, false);
        for opening in fuse.waiting_openings() {
            let Some(intent) = opening.intent else { continue };
            match judge(intent, circumstances(opening)) {
                Verdict::LetIn => opening.let_in(),
                Verdict::Promote => {
                    opening.tried = true;
                    promote = true;
                }
                Verdict::Wait if matches!(intent, Intent::Read { nonblocking: true }) => {
                    opening.heard.get_or_insert(answers);
                    hurries = true;
                }
                Verdict::Wait if matches!(intent, Intent::Read { .. }) => asks = readable == Readable::PrimaryElsewhere,
                Verdict::Wait | Verdict::Refuse(_) => {}
            }
        }
        let refusal = |opening: &crate::fuse_server::Opening| match judge(opening.intent?, circumstances(opening)) {
            Verdict::Refuse(errno) => Some(Errno::from_raw(errno)),
            _ => None,
        };
        if !promote {
            fuse.refuse_openings(&mut self.ring, refusal);
        }
        fuse.open_ready(&mut self.ring);
        if promote {
            self.promote_for_openers();
        }
        // The Primary may be gone, and its link not given up yet.
        if asks && self.gate.pinged.is_none_or(|at| now >= at + Duration::from_secs(1)) {
            self.gate.pinged = Some(now);
            let id = self.commands.name();
            self.tell(|core, now| core.on_command(now, id, Command::Ping));
        }
        if hurries && self.gate.question.is_none() && self.gate.ask_at.is_none() {
            let id = self.commands.name();
            self.gate.question = Some(id);
            self.tell(|core, now| core.on_command(now, id, Command::Ping));
        }
        self.untold.touch(true);
    }

    /// Does opening for writing promote? As written; if nothing is written, only among nodes that all speak 9's
    /// dialect, or would as far as is known, and not with metadata of 8.4, whose administrators promote by command.
    /// Of a peer that is away it is known what was agreed on last.
    pub(super) fn auto_promotes(&self, snapshot: &Snapshot) -> bool {
        if let Some(written) = self.local.settings.find("auto-promote") {
            return written.value == config::Value::Bool(true);
        }
        let old = snapshot.devices.iter().any(|device| device.old_metadata);
        let is_old = |version: u32| !config::is_nine(version);
        let of_84 = snapshot.connections.iter().any(|c| c.version.is_some_and(is_old));
        let of_84 = of_84 || self.gate.agreed == Agreed::On84;
        !old && (self.local.peers.is_empty() || self.local.offers_nine() && !of_84)
    }

    fn promote_for_openers(&mut self) {
        let id = self.commands.name();
        self.gate.promotion = Some((id, self.now));
        (self.gate.failure, self.gate.again_at) = (None, None);
        log("info", "a device is opened for writing: this node wants to be Primary");
        self.tell(|core, now| core.on_command(now, id, Command::Primary { force: false }));
    }

    /// Is it a command of ours?
    pub(super) fn is_of_gate(&self, id: u64) -> bool {
        let promotion = self.gate.promotion.is_some_and(|(own, _)| own == id);
        promotion || self.gate.demotion == Some(id) || self.gate.question == Some(id)
    }

    /// A promotion for openers, or the demotion after the last one, has ended.
    pub(super) fn on_gate_done(&mut self, id: u64, result: Result<(), CommandError>) {
        if self.gate.question.take_if(|own| *own == id).is_some() {
            self.gate.answers = self.gate.answers.saturating_add(1);
            self.gate.ask_at = Some(self.now + MOMENT);
            self.gate.news = true;
            return;
        }
        let promotion = self.gate.promotion.take_if(|(own, _)| *own == id).is_some();
        if !promotion {
            self.gate.demotion = None;
        }
        if let Err(e) = result {
            let what = if promotion { "Primary for who opens its device" } else { "Secondary after its last user" };
            log("info", &format!("this node does not become {what}: {e}"));
            // What is no use is found out by who asks next.
            self.gate.failure = promotion.then_some(e);
            self.gate.again_at = Some(self.now + PAUSE);
        } else {
            (self.gate.failure, self.gate.again_at) = (None, None);
        }
        self.untold.touch(true);
        self.gate.news = true;
    }

    fn demote_after_last_close(&mut self) {
        let Some(fuse) = &self.fuse else { return };
        let anyone = |fuse: &FuseServer| fuse.has_openings() || self.local.volumes.iter().any(|v| fuse.is_used(v.nr));
        let clients = self.local.volumes.iter().any(|v| self.nbd.is_open(v.nr));
        let waits = self.gate.again_at.is_some_and(|at| self.now < at);
        let over = self.stopped.is_some() || self.is_leaving();
        if self.gate.explicit || !fuse.is_primary() || anyone(fuse) || clients || waits || over || self.role_changes() {
            return;
        }
        log("info", "the last user of the devices is gone: this node becomes Secondary");
        let id = self.commands.name();
        self.gate.demotion = Some(id);
        self.tell(|core, now| core.on_command(now, id, Command::Secondary { force: false }));
    }

    /// When something is to be done at the gate only because time passes.
    pub(super) fn gate_deadline(&self) -> Option<Instant> {
        let fuse = self.fuse.as_ref()?;
        let doors = fuse.look_at().into_iter().chain(fuse.probe_deadline());
        doors.chain(self.gate.again_at).chain(self.gate.ask_at).min()
    }

    pub(super) fn look_at_gate(&mut self) {
        let _ = self.gate.again_at.take_if(|at| *at <= self.now);
        let _ = self.gate.ask_at.take_if(|at| *at <= self.now);
        if let Some(fuse) = &mut self.fuse {
            fuse.look(&mut self.ring, self.now);
        }
        self.gate.news = true;
        self.ask_probe();
    }

    /// Do applications wait for what the last process did not answer?
    pub(super) fn is_waiting(&self) -> bool {
        self.fuse.as_ref().is_some_and(FuseServer::is_waiting)
    }

    /// Tells the core who has a volume open. Of a Secondary's readers it is not told: by 8.4's rules nothing could be
    /// changed any more (2.8), and by 9's they may stay.
    pub(super) fn tell_openers(&mut self, volume: units::VolumeNr) {
        let openers = self.openers(volume);
        if self.told_openers.insert(volume, openers) != Some(openers) {
            self.tell(|core, now| core.on_openers(now, volume, openers));
        }
    }

    /// Who has a volume open, over all front ends.
    pub(super) fn openers(&self, volume: units::VolumeNr) -> Openers {
        let mut openers = self.nbd.openers(volume);
        let used = |fuse: &FuseServer| fuse.is_primary() && !fuse.is_waiting() && fuse.is_used(volume);
        openers.writers += u32::from(self.fuse.as_ref().is_some_and(used));
        openers
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const READ: Intent = Intent::Read { nonblocking: false };
    const WRITE: Intent = Intent::Write { nonblocking: false };
    const SECONDARY: Circumstances = Circumstances {
        primary: false,
        auto_promote: true,
        changing: Changing::No,
        ending: false,
        read_only: false,
        failing: false,
        readable: Readable::Yes,
        early: false,
        hopeless: false,
        pausing: false,
        expired: false,
        tried: false,
        settled: false,
    };

    #[test]
    fn who_is_let_in() {
        use Verdict::*;
        let s = SECONDARY;
        let primary = Circumstances { primary: true, ..s };
        let old = Circumstances { auto_promote: false, ..s };
        let elsewhere = Circumstances { readable: Readable::PrimaryElsewhere, ..s };
        let settled = |c| Circumstances { settled: true, ..c };
        let soon = Circumstances { readable: Readable::MaybeSoon, ..s };
        let tried = Circumstances { tried: true, ..s };
        let late = |c: Circumstances| Circumstances { expired: true, ..c };
        let table = [
            (Intent::Look, old, LetIn),
            (READ, primary, LetIn),
            (WRITE, primary, LetIn),
            (READ, s, LetIn),
            (WRITE, s, Promote),
            // As before 9.
            (READ, old, Refuse(libc::EMEDIUMTYPE)),
            (WRITE, old, Refuse(libc::EROFS)),
            (WRITE, Circumstances { read_only: true, ..s }, Refuse(libc::EACCES)),
            (READ, Circumstances { read_only: true, ..s }, LetIn),
            (WRITE, Circumstances { read_only: true, ..primary }, Refuse(libc::EACCES)),
            (READ, elsewhere, Wait),
            (READ, late(elsewhere), Refuse(libc::EMEDIUMTYPE)),
            (READ, soon, Wait),
            (READ, late(soon), Refuse(libc::EMEDIUMTYPE)),
            (READ, Circumstances { readable: Readable::No, ..s }, Refuse(libc::ENODATA)),
            (Intent::Read { nonblocking: true }, elsewhere, Wait),
            (Intent::Read { nonblocking: true }, settled(elsewhere), Refuse(libc::EMEDIUMTYPE)),
            (Intent::Read { nonblocking: true }, late(elsewhere), Refuse(libc::EMEDIUMTYPE)),
            // Each is tried once, however late it is.
            (WRITE, late(elsewhere), Promote),
            (WRITE, tried, Promote),
            (WRITE, Circumstances { pausing: true, ..tried }, Wait),
            (WRITE, Circumstances { hopeless: true, ..tried }, Refuse(libc::EROFS)),
            (WRITE, late(tried), Refuse(libc::EROFS)),
            (WRITE, late(Circumstances { tried: true, ..elsewhere }), Refuse(libc::EMEDIUMTYPE)),
            (WRITE, Circumstances { early: true, ..s }, Wait),
            (WRITE, late(Circumstances { early: true, ..s }), Promote),
            (Intent::Write { nonblocking: true }, s, Promote),
            (Intent::Write { nonblocking: true }, tried, Refuse(libc::EROFS)),
            (Intent::Write { nonblocking: true }, Circumstances { changing: Changing::Yes, ..tried }, Wait),
            (Intent::Write { nonblocking: true }, Circumstances { changing: Changing::Yes, ..s }, Refuse(libc::EAGAIN)),
            // While the role changes.
            (Intent::Read { nonblocking: true }, Circumstances { changing: Changing::AfterClose, ..primary }, Wait),
            (WRITE, late(Circumstances { changing: Changing::AfterClose, ..primary }), Refuse(libc::EAGAIN)),
            (READ, Circumstances { changing: Changing::Yes, ..primary }, Wait),
            (WRITE, late(Circumstances { changing: Changing::Yes, ..primary }), Refuse(libc::EAGAIN)),
            (Intent::Read { nonblocking: true }, Circumstances { changing: Changing::Yes, ..s }, Refuse(libc::EAGAIN)),
            (WRITE, Circumstances { ending: true, ..primary }, Refuse(libc::EAGAIN)),
            (READ, Circumstances { failing: true, ..s }, Refuse(libc::ENOTRECOVERABLE)),
        ];
        for (intent, circumstances, wanted) in table {
            assert_eq!(judge(intent, circumstances), wanted, "{intent:?} {circumstances:?}");
        }
    }

    #[test]
    fn what_may_succeed_later() {
        assert!(may_succeed_later(-10, Readable::No) && may_succeed_later(-1, Readable::PrimaryElsewhere));
        assert!(may_succeed_later(-2, Readable::MaybeSoon) && !may_succeed_later(-2, Readable::No));
        assert!(!may_succeed_later(-7, Readable::Yes));
    }
}
