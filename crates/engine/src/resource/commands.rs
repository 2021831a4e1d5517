//! The control socket's requests: questions are answered here, commands go to the core.

use super::gate::{CLOSING, LEAVING, LOOKS_AGAIN, UseCheck};
use super::told::{self, Now, Told, idle_at_source};
use super::{Runner, log};
use crate::buffers::Pool;
use crate::fuse_server::FuseServer;
use crate::nbd_server::nbd_path;
use crate::ring::BusyPoll;
use crate::setup::{self, Setup};
use crate::status::{self, Surroundings};
use crate::token::{ClientId, Token};
use crate::{memory, notify};
use config::LocalResource;
use control::{Command as Asked, ErrorCode, Failure, Listens, Reply, Request};
use control::{MemoryStatus, Opening, ResourceStatus};
use frontends::users::User;
use std::collections::{BTreeMap, BTreeSet};
use units::{ByteLen, Duration, Instant, NodeId, Sector, VolumeNr, same_host};
use urbd_core::{Command, CommandError, Copied, Replaced, ResourceConfig, SuspendReason};

/// Commands that the core works on.
#[derive(Default)]
pub(super) struct Commands {
    next: u64,
    /// Which question each of the core's commands belongs to.
    running: BTreeMap<u64, u64>,
    asked: BTreeMap<u64, Question>,
    replies: Vec<(ClientId, Reply, Promotion)>,
    /// For the next question.
    notes: Vec<String>,
    /// Commands of clients that were refused as a device is in use, and are asked once more.
    again: Vec<(ClientId, (Asked, Instant))>,
    start: Start,
}

/// Was a command one to become Primary?
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum Promotion {
    #[default]
    No,
    /// A Secondary was asked.
    Begun,
    /// A Primary was asked.
    Again,
}

/// Attaching the disks with which the process starts.
#[derive(Default)]
struct Start {
    question: Option<u64>,
    reply: Option<Reply>,
    waiting: Vec<ClientId>,
}

/// One client's command; it may be several for the core (all volumes, all peers).
#[derive(Default)]
struct Question {
    client: Option<ClientId>,
    left: usize,
    failure: Option<Failure>,
    /// What the client is told when it has succeeded.
    notes: Vec<String>,
    promotion: Promotion,
    /// A command that has failed already, and is undone by this one.
    undone: Option<Failure>,
    kind: Changes,
    /// Volumes whose disk is being given up.
    gives_up: Vec<VolumeNr>,
    /// Who uses the devices, for a refusal.
    users: Vec<(VolumeNr, User)>,
    /// To be asked once more if a device is in use, and since when it has been.
    again: Option<(Asked, Instant)>,
    /// What the resource was before it was told something else.
    before: Option<Box<LocalResource>>,
}

/// What a command changes that openers of devices wait for.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum Changes {
    #[default]
    Nothing,
    Role,
    /// The resource is taken down.
    Everything,
}

impl Changes {
    fn of(asked: &Asked) -> Changes {
        match asked {
            Asked::Primary { .. } | Asked::Secondary { .. } => Changes::Role,
            Asked::Down { .. } => Changes::Everything,
            _ => Changes::Nothing,
        }
    }
}

impl Commands {
    /// The id for a command that nobody waits for.
    pub(super) fn unattended(&mut self) -> u64 {
        self.ask(None, 1)[0]
    }

    /// An id for a command whose end is no client's business.
    pub(super) fn name(&mut self) -> u64 {
        self.next += 1;
        self.next - 1
    }

    /// Ids for the `n` commands that the process starts with.
    pub(super) fn start_with(&mut self, n: usize) -> Vec<u64> {
        match n {
            0 => {
                ready();
                self.start.reply = Some(Reply::Ok { info: Vec::new() });
            }
            _ => self.start.question = Some(self.next),
        }
        if n == 0 { Vec::new() } else { self.ask(None, n) }
    }

    /// Tells the client how the start went, as soon as that is known.
    fn await_start(&mut self, client: ClientId) {
        match &self.start.reply {
            Some(reply) => self.replies.push((client, reply.clone(), Promotion::No)),
            None => self.start.waiting.push(client),
        }
    }

    /// Notes the end of a command.
    /// What the resource was before, if it was told something else, and the core has refused that.
    pub(super) fn on_done(&mut self, id: u64, result: Result<(), CommandError>) -> Option<Box<LocalResource>> {
        let question = self.running.remove(&id)?;
        let asked = self.asked.get_mut(&question)?;
        asked.left -= 1;
        if let Err(e) = result {
            asked.failure.get_or_insert(Failure::new(ErrorCode(e.code), e.text));
        }
        if asked.left > 0 {
            return None;
        }
        let Question { client, mut failure, notes, promotion, undone, users, before, again, .. } =
            self.asked.remove(&question)?;
        let in_use = failure.as_ref().is_some_and(|failure| failure.code == ErrorCode::DEVICE_IN_USE);
        if let (Some(again), Some(client), true) = (again, client, in_use) {
            self.again.push((client, again));
            return None;
        }
        let before = before.filter(|_| failure.is_some());
        if let Some(failure) = failure.as_mut().filter(|failure| failure.code == ErrorCode::DEVICE_IN_USE) {
            name_users(failure, &users);
        }
        if let Some(mut undone) = undone {
            undone.message += &match failure {
                None => "; this node is Secondary again".to_owned(),
                Some(failure) => format!("; this node stays Primary: {failure}"),
            };
            failure = Some(undone);
        }
        if self.start.question == Some(question) {
            let reply = failure.clone().map_or(Reply::Ok { info: Vec::new() }, Reply::Error);
            // The resource is there even if a disk is not: it can serve its peer's data.
            ready();
            self.replies.extend(self.start.waiting.drain(..).map(|client| (client, reply.clone(), Promotion::No)));
            self.start.reply = Some(reply);
        }
        match (client, failure) {
            (Some(client), None) => self.replies.push((client, Reply::Ok { info: notes }, promotion)),
            (Some(client), Some(failure)) => self.replies.push((client, Reply::Error(failure), Promotion::No)),
            (None, Some(failure)) => log("error", &failure.to_string()),
            (None, None) => {}
        }
        before
    }

    /// Has the core been told something else that it has not taken over, or refused, yet?
    fn is_changing(&self) -> bool {
        self.asked.values().any(|question| question.before.is_some())
    }

    /// Is the role being changed, at a client's wish?
    pub(super) fn changes_role(&self) -> bool {
        self.asked.values().any(|question| question.kind != Changes::Nothing)
    }

    /// Is the resource being taken down?
    pub(super) fn takes_down(&self) -> bool {
        self.asked.values().any(|question| question.kind == Changes::Everything)
    }

    /// Is a volume's disk being given up, at a client's wish?
    pub(super) fn gives_up(&self, volume: VolumeNr) -> bool {
        self.asked.values().any(|question| question.gives_up.contains(&volume))
    }

    /// Replies that are ready to be sent.
    pub(super) fn take_replies(&mut self) -> Vec<(ClientId, Reply, Promotion)> {
        std::mem::take(&mut self.replies)
    }

    /// Ids for `n` commands that together answer one client.
    fn ask(&mut self, client: Option<ClientId>, n: usize) -> Vec<u64> {
        let question = self.next;
        self.next += 1;
        let notes = std::mem::take(&mut self.notes);
        self.asked.insert(question, Question { client, left: n, notes, ..Question::default() });
        let ids: Vec<u64> = (0..n as u64).map(|i| self.next + i).collect();
        self.next += n as u64;
        self.running.extend(ids.iter().map(|id| (*id, question)));
        ids
    }
}

/// The volume whose disk a command gives up.
fn gives_up(command: &Command) -> Option<VolumeNr> {
    match command {
        Command::Detach { volume, .. } => Some(*volume),
        _ => None,
    }
}

/// Says who they are that a command is refused for.
fn name_users(failure: &mut Failure, users: &[(VolumeNr, User)]) {
    /// More are counted.
    const NAMED: usize = 8;
    if users.is_empty() {
        return;
    }
    let several = users.iter().any(|(volume, _)| *volume != users[0].0);
    let name = |(volume, user): &(VolumeNr, User)| match several {
        true => format!("volume {volume}: {user}"),
        false => user.to_string(),
    };
    let named: Vec<String> = users.iter().take(NAMED).map(name).collect();
    failure.message += &format!("; it is {}", named.join(", "));
    if users.len() > NAMED {
        failure.message += &format!(", and {} more", users.len() - NAMED);
    }
}

fn ready() {
    if let Err(e) = notify::ready() {
        log("warning", &format!("the service manager cannot be told that the resource is ready: {e}"));
    }
}

impl Runner {
    /// Answers a client's request, now or when the core has done it.
    pub(super) fn on_control(&mut self, client: ClientId, request: Request) {
        let ends = matches!(request, Request::Command(Asked::HandOver | Asked::Down { .. }));
        if self.is_leaving() && !ends {
            return self.control.reply(client, &Reply::Leaving);
        }
        let reply = match request {
            Request::Hello { .. } | Request::Confirmed { .. } => return,
            Request::Started => return self.commands.await_start(client),
            Request::Status => Reply::Status(self.status_in_full()),
            Request::Events { now, since_start, confirms, .. } => {
                return self.control.join(client, Listens::of(now, since_start), confirms);
            }
            Request::Show => Reply::Text(self.local.told()),
            Request::Why => Reply::Why(status::why(&self.core.snapshot(), self.now)),
            Request::WhatIf { before } => match self.what_if(before) {
                Ok(all) => Reply::WhatIf(all),
                Err(failure) => Reply::Error(failure),
            },
            Request::Generations { volume, peer } => {
                let of = |peers: Vec<NodeId>| self.generations(VolumeNr(volume), peers.first().copied());
                self.peers(peer).and_then(of).map_or_else(Reply::Error, Reply::Generations)
            }
            Request::Command(Asked::HandOver) => match self.hand_over() {
                Ok(()) => Reply::Ok { info: Vec::new() },
                Err(failure) => Reply::Error(failure),
            },
            Request::Command(asked) => return self.on_asked(Some(client), asked),
        };
        self.control.reply(client, &reply);
    }

    /// Does what an administrator asked for; without a client, the log says how it ended.
    pub(super) fn on_asked(&mut self, client: Option<ClientId>, asked: Asked) {
        if let Some(failure) = self.refused_while_waiting(&asked) {
            return client.into_iter().for_each(|client| self.control.reply(client, &Reply::Error(failure.clone())));
        }
        let grown: BTreeSet<_> = match asked {
            Asked::Resize { volume, .. } => self.grown(volume).map(|(nr, _)| nr).collect(),
            _ => BTreeSet::new(),
        };
        if !grown.is_empty() {
            self.volumes.waiting().command(self.now, grown, client, asked);
            self.told = true;
        } else if self.must_check_use(&asked) {
            self.check_use(client, asked)
        } else {
            self.command(client, asked, Vec::new(), self.now)
        }
    }

    pub(super) fn command(
        &mut self,
        client: Option<ClientId>,
        asked: Asked,
        users: Vec<(VolumeNr, User)>,
        since: Instant,
    ) {
        let promotion = self.promotion(&asked);
        let kind = Changes::of(&asked);
        self.gate.on_command(&asked);
        let freezes = matches!(asked, Asked::SuspendIo { .. } | Asked::SuspendIoFor { .. });
        if freezes && !self.core.snapshot().suspended.because_of(SuspendReason::User) {
            self.causes.freezes(client.and_then(|client| self.control.who(client)), self.now);
        }
        match asked {
            Asked::SuspendIo { .. } | Asked::ResumeIo { .. } => self.causes.freezes_until(None),
            Asked::SuspendIoFor { seconds, .. } => {
                self.causes.freezes_until(Some(self.now + Duration::from_secs(seconds.into())));
            }
            _ => {}
        }
        let tells = matches!(asked, Asked::ChangeOptions { .. } | Asked::Tell { .. });
        let before = tells.then(|| Box::new(self.local.clone()));
        let closing = users.is_empty() && self.now < since + CLOSING && self.must_check_use(&asked);
        let again = closing.then(|| (asked.clone(), since));
        let translated = match (client, asked) {
            // A service manager asks once, and then kills. Who uses the device here is spared; the peer has its say in
            // the log.
            (None, Asked::Down { force: false }) => Ok(vec![Command::Down(true)]),
            (_, asked) => self.translate(asked),
        };
        let reply = match translated {
            Ok(commands) if commands.is_empty() => Reply::Ok { info: Vec::new() },
            Ok(commands) => {
                let ids = self.commands.ask(client, commands.len());
                let question = self.commands.asked.values_mut().next_back().expect("just asked");
                (question.promotion, question.kind, question.users) = (promotion, kind, users);
                question.gives_up = commands.iter().filter_map(gives_up).collect();
                (question.before, question.again) = (before, again);
                self.untold.touch(!question.gives_up.is_empty());
                for (id, command) in ids.into_iter().zip(commands) {
                    self.tell(|core, now| core.on_command(now, id, command));
                }
                return;
            }
            Err(failure) => Reply::Error(failure),
        };
        if let Some(client) = client {
            self.control.reply(client, &reply);
        }
    }

    fn promotion(&mut self, asked: &Asked) -> Promotion {
        if !matches!(asked, Asked::Primary { .. }) {
            return Promotion::No;
        }
        match self.core.snapshot().role {
            wire::Role::Primary => {
                self.fuse.iter_mut().for_each(FuseServer::try_again);
                Promotion::Again
            }
            _ => Promotion::Begun,
        }
    }

    /// Answers a command that has ended. Who became Primary, but without the block device that the configuration
    /// promises, has not: a cluster manager is to try the other node.
    pub(super) fn answer_client(&mut self, (client, reply, promotion): (ClientId, Reply, Promotion)) {
        let missing = || self.no_devices.clone().or_else(|| self.fuse.as_ref().and_then(FuseServer::missing));
        let Some(why) = Some(missing).filter(|_| promotion != Promotion::No).and_then(|missing| missing()) else {
            return self.control.reply(client, &reply);
        };
        let text = format!("there can be no block device ({why})");
        let failure = Failure::new(ErrorCode::INVALID_REQUEST, text).with_hint(format!(
            "repair that (for example: modprobe loop; modprobe fuse), restart {}; or say that its NBD sockets will do: \
             urbd {{ front-end none; }}",
            self.local.name
        ));
        if promotion == Promotion::Again {
            return self.control.reply(client, &Reply::Error(failure));
        }
        let id = self.commands.ask(Some(client), 1)[0];
        self.commands.asked.values_mut().next_back().expect("just asked").undone = Some(failure);
        self.tell(|core, now| core.on_command(now, id, Command::Secondary { force: false }));
    }

    /// Going Secondary is refused while a device is in use, which only the kernel knows.
    fn must_check_use(&self, asked: &Asked) -> bool {
        let ends_use = matches!(asked, Asked::Secondary { force: false } | Asked::Down { force: false })
            || told::removes_volumes(&self.local, asked);
        // Also between the last close of a device and the next one: who had it open may still be counted.
        ends_use && self.fuse.is_some()
    }

    fn check_use(&mut self, client: Option<ClientId>, asked: Asked) {
        if let Some(check) = &mut self.checking {
            return check.waiting.push((client, asked));
        }
        self.check_use_since(client, asked, (self.now, self.now));
    }

    /// The same of a command that has been asked for some time; devices are looked at from then on.
    fn check_use_since(&mut self, client: Option<ClientId>, asked: Asked, (since, from): (Instant, Instant)) {
        self.checking = Some(UseCheck { used: Vec::new(), users: None, waiting: vec![(client, asked)], since });
        if let Some(fuse) = &mut self.fuse {
            fuse.begin_probe(from);
        }
        self.ask_probe();
    }

    /// Is it known by now which devices are in use? Then also by whom is asked for.
    pub(super) fn ask_probe(&mut self) {
        let Some(check) = self.checking.as_mut().filter(|check| check.users.is_none()) else { return };
        let Some(fuse) = &mut self.fuse else { return self.go_on_checked(Vec::new()) };
        let Some(used) = fuse.probed(self.now) else { return };
        if used.is_empty() {
            return self.go_on_checked(Vec::new());
        }
        check.used.clone_from(&used);
        match fuse.find_users(&mut self.ring, &used, Token::UseCheck) {
            Ok(work) => check.users = Some(work),
            Err(_) => self.go_on_checked(Vec::new()),
        }
    }

    /// It is known who uses the devices.
    pub(super) fn on_use_checked(&mut self) {
        let users = self.checking.as_mut().and_then(|check| check.users.as_mut()?.take()?.ok()).unwrap_or_default();
        if let Some(check) = self.checking.as_mut().filter(|_| users.is_empty())
            && let Some(fuse) = &mut self.fuse
            && self.now < check.since + LEAVING
        {
            check.users = None;
            fuse.begin_probe(self.now);
            return self.ask_probe();
        }
        if let (true, Some(check), Some(fuse)) = (users.is_empty(), &self.checking, &self.fuse) {
            check.used.iter().for_each(|volume| log("warning", &fuse.held_by_nobody(*volume)));
        }
        self.go_on_checked(users);
    }

    /// Tells the core which devices are in use, and goes on with the commands that waited for that.
    fn go_on_checked(&mut self, users: Vec<(VolumeNr, User)>) {
        let Some(check) = self.checking.take() else { return };
        for volume in self.local.volumes.iter().map(|v| v.nr).collect::<Vec<_>>() {
            self.tell_openers(volume);
        }
        self.gate.news();
        for (client, asked) in check.waiting {
            // Who was asked by a signal does not insist on going down.
            if client.is_none() && !check.used.is_empty() && self.can_leave() {
                self.leave()
            } else {
                self.command(client, asked, users.clone(), check.since)
            }
        }
    }

    /// Whoever waits while a disk does not answer is told so: most commands end when what is under way on it has ended.
    pub(super) fn answer_for_hung_disks(&mut self) {
        let hung = self.local.volumes.iter().filter_map(|v| Some((v.nr, self.volumes.hangs(v.nr)?))).next();
        let waiting = self.control.wait_longer();
        let Some((nr, since)) = hung else { return };
        let object = format!("{}/{nr}", self.local.name);
        let path = self.volumes.path(nr).map(|p| p.data.display().to_string()).unwrap_or_default();
        let seconds = since.0 / 1_000_000_000;
        let text = format!(
            "the disk of {object}, {path}, has not answered for {seconds} s: what was asked goes on when it does"
        );
        let failure = Failure::new(ErrorCode::IN_TRANSIENT_STATE, text).with_hint(format!(
            "to give the disk up: urbd detach --force {object}; to end the process all the same: urbd down --force {}",
            self.local.name
        ));
        for client in waiting {
            self.control.dismiss(client, &Reply::Error(failure.clone()));
        }
    }

    /// A block device was attached or detached.
    pub(super) fn on_fuse_work(&mut self, volume: VolumeNr) {
        if let Some(problem) = self.fuse.as_mut().and_then(|fuse| fuse.on_work(volume)) {
            log("error", &format!("the block device of volume {volume}: {problem}"));
        }
        self.untold.touch(true);
        self.told = true;
        self.gate.news();
        self.ask_probe();
    }

    /// A client's command has ended.
    pub(super) fn on_command_done(&mut self, id: u64, result: Result<(), CommandError>) {
        let refused = self.commands.on_done(id, result);
        for (client, (asked, since)) in std::mem::take(&mut self.commands.again) {
            match &mut self.checking {
                Some(check) => check.waiting.push((Some(client), asked)),
                None => self.check_use_since(Some(client), asked, (since, self.now + LOOKS_AGAIN)),
            }
        }
        if let Some(before) = refused.map(|before| *before)
            && let Err(failure) = self.take_over(before)
        {
            log("error", &format!("what was refused cannot be taken back whole: {failure}"));
        }
        // A volume that is being removed has its minor until then.
        self.minors.retain(|nr, _| self.local.volumes.iter().any(|v| v.nr == *nr));
        self.untold.touch(true);
    }

    /// The present status.
    pub(super) fn status(&self) -> ResourceStatus {
        let snapshot = self.core.snapshot();
        let written = self.local.settings.find("auto-promote").is_some();
        let opening = match self.fuse.is_some() && self.auto_promotes(&snapshot) {
            true => self.gate.opening(written),
            false => Opening::Refused,
        };
        let around = Surroundings {
            local: &self.local,
            opening,
            minors: &self.minors,
            volumes: &self.volumes,
            nbd: &self.nbd,
            fuse: self.fuse.as_ref(),
            links: &self.links,
            causes: &self.causes,
            now: self.now,
        };
        let force_io_failures = self.gate.fails_by_force(self.fuse.as_ref());
        ResourceStatus { force_io_failures, ..status::resource(&snapshot, &around) }
    }

    /// The same with how long requests took, and the memory.
    fn status_in_full(&self) -> ResourceStatus {
        let mut status = self.status();
        status.memory = Some(self.memory());
        for device in &mut status.devices {
            let volume = VolumeNr(device.volume);
            let stages = self.core.latencies(volume).into_iter().flatten();
            device.latencies = stages.map(|(stage, h)| status::latency(stage.names(), h)).collect();
            let sent = self.links.send_latency(volume);
            device.latencies.extend(sent.map(|h| status::latency(("write", "send"), h)));
        }
        status
    }

    fn memory(&self) -> MemoryStatus {
        let pools = [self.pool, self.control.pool()];
        let sum = |bytes: fn(&Pool) -> usize| pools.iter().map(|pool| bytes(pool) as u64).sum();
        let (locked, lockable) = memory::locked();
        MemoryStatus {
            buffers: sum(Pool::bytes),
            buffers_least: sum(Pool::least),
            buffers_most: sum(Pool::most),
            bitmaps: self.core.bitmap_bytes(),
            locked,
            lockable,
        }
    }

    /// The core's commands for an administrator's.
    fn translate(&mut self, asked: Asked) -> Result<Vec<Command>, Failure> {
        Ok(match asked {
            Asked::Attach { volume: None } => {
                self.volumes_with_disk().map(|volume| Command::Attach { volume }).collect()
            }
            Asked::Attach { volume } => self.each_volume(volume, |volume| Command::Attach { volume })?,
            Asked::Detach { volume, force } => {
                self.causes.forget_disks(volume.map(VolumeNr));
                match volume {
                    None => self.volumes_with_disk().map(|volume| Command::Detach { volume, force }).collect(),
                    volume => self.each_volume(volume, |volume| Command::Detach { volume, force })?,
                }
            }
            Asked::Connect { peer, discard_my_data } => {
                for named in self.peers(peer.clone())? {
                    if let Some(why) = self.unusable.get(&named) {
                        let hint = format!("mend the configuration, then: urbd adjust {}", self.local.name);
                        return Err(Failure::new(ErrorCode::INVALID_REQUEST, why.clone()).with_hint(hint));
                    }
                }
                self.forget_causes(peer.clone())?;
                self.each_peer(peer, |peer| Command::Connect { peer, discard_my_data, tentative: false })?
            }
            Asked::Disconnect { peer, force } => {
                self.forget_causes(peer.clone())?;
                self.each_peer(peer, |peer| Command::Disconnect { peer, force })?
            }
            Asked::Primary { force } => vec![Command::Primary { force }],
            Asked::Secondary { force } => vec![Command::Secondary { force }],
            Asked::Invalidate { volume, keep_bitmap } => {
                let own = Replaced::Own { source: None };
                self.each_volume(volume, |volume| Command::Replace(volume, own, copied(keep_bitmap)))?
            }
            Asked::InvalidateFrom { volume, keep_bitmap, source } => {
                let what = || Failure::new(ErrorCode::NO_SUCH_PEER, format!("{source} is no node id"));
                let own = Replaced::Own { source: Some(NodeId::new(source).ok_or_else(what)?) };
                self.each_volume(volume, |volume| Command::Replace(volume, own, copied(keep_bitmap)))?
            }
            Asked::InvalidateRemote { peer, volume, keep_bitmap } => {
                let mut all = Vec::new();
                for peer in self.peers(peer)? {
                    let replace = |volume| Command::Replace(volume, Replaced::Peer(peer), copied(keep_bitmap));
                    all.extend(self.each_volume(volume, replace)?);
                }
                all
            }
            Asked::PauseSync { volume, .. } => self.each_volume(volume, |volume| Command::PauseSync { volume })?,
            Asked::ResumeSync { volume, .. } => self.each_volume(volume, |volume| Command::ResumeSync { volume })?,
            Asked::Verify { peer, volume, start_sector, stop_sector, repair } => {
                let (start, stop) = (start_sector.map(Sector), stop_sector.map(Sector));
                let mut all = Vec::new();
                for peer in self.peers_to_compare_with(peer)? {
                    all.extend(self.each_volume(volume, |volume| Command::Verify {
                        volume,
                        peer,
                        start,
                        stop,
                        repair,
                    })?);
                }
                all
            }
            Asked::SuspendIo { volume } | Asked::SuspendIoFor { volume, .. } => {
                self.each_volume(volume, |volume| Command::SuspendIo { volume })?
            }
            Asked::ResumeIo { volume } => self.each_volume(volume, |volume| Command::ResumeIo { volume })?,
            Asked::Outdate { volume } => self.each_volume(volume, |volume| Command::Outdate { volume })?,
            Asked::ForceResync { volume } => self.each_volume(volume, Command::ForceResync)?,
            Asked::NewCurrentUuid { volume, clear_bitmap } => {
                self.each_volume(volume, |volume| Command::NewCurrentUuid { volume, clear_bitmap })?
            }
            Asked::ForgetPeer { peer } => {
                let what = || Failure::new(ErrorCode::NO_SUCH_PEER, format!("{peer} is no node id"));
                vec![Command::ForgetPeer(NodeId::new(peer).ok_or_else(what)?)]
            }
            Asked::Resize { volume, assume_clean, assume_peer_has_space } => {
                // What could not be taken in is measured when it is attached.
                let object = &self.local.name;
                if let Some((nr, (old, new))) = self.grown(volume).next() {
                    let object = format!("{object}/{nr}");
                    let text = format!(
                        "the backing device of {object} has grown from {} to {} KiB since it was attached",
                        old.0 / 1024,
                        new.0 / 1024
                    );
                    return Err(Failure::new(ErrorCode::INVALID_REQUEST, text).with_hint(format!(
                        "on one node after the other: urbd detach {object}; urbd check-resize {object}; urbd attach \
                         {object}; urbd wait-sync {object}; then once: urbd resize {object}"
                    )));
                }
                let flags = wire::ResizeFlags { forced: assume_peer_has_space, assume_clean };
                self.each_volume(volume, |volume| Command::Resize { volume, flags })?
            }
            Asked::ChangeOptions { config } => vec![self.reconfigure(&Told::Text(&config))?],
            Asked::Tell { calls } => vec![self.reconfigure(&Told::Calls(&calls))?],
            // Not for the core.
            Asked::HandOver => Vec::new(),
            Asked::Down { force: false } => vec![Command::Down(false)],
            Asked::Down { force: true } => {
                let hung = self.volumes_with_disk().filter(|nr| self.volumes.hangs(*nr).is_some());
                let mut all: Vec<_> = hung.map(|volume| Command::Detach { volume, force: true }).collect();
                all.extend([Command::Secondary { force: true }, Command::Down(true)]);
                all
            }
        })
    }

    fn reconfigure(&mut self, told: &Told<'_>) -> Result<Command, Failure> {
        if self.commands.is_changing() {
            let text = "volumes or peers are just being made or removed: try again when that has ended";
            return Err(Failure::new(ErrorCode::IN_TRANSIENT_STATE, text));
        }
        let is_open = |nr: &VolumeNr| self.nbd.is_open(*nr) || self.fuse.as_ref().is_some_and(|fuse| fuse.is_open(*nr));
        let open = self.local.volumes.iter().map(|v| v.nr).filter(is_open).collect();
        let now = Now { local: &self.local, snapshot: self.core.snapshot(), open, unusable: &self.unusable };
        let local = now.by(told)?;
        now.check_gone(&local)?;
        let notes = idle_at_source(&self.local, &local, &self.status());
        let core_config = self.take_over(local)?;
        self.commands.notes = notes;
        Ok(Command::ChangeOptions(Box::new(core_config)))
    }

    /// Becomes something else, as far as that is the engine's part; gives the core's.
    fn take_over(&mut self, local: LocalResource) -> Result<ResourceConfig, Failure> {
        let invalid = |what| Failure::new(ErrorCode::INVALID_REQUEST, what);
        let Setup { core: core_config, links, unusable } = Setup::of(&local).map_err(invalid)?;
        let parts = (&mut self.control, &mut self.nbd);
        self.handover.rename(&self.run_dir, (&self.local.name, &local.name), parts)?;
        let came = |nr: &VolumeNr| self.nbd.path(*nr).is_none();
        for nr in local.volumes.iter().map(|v| v.nr).filter(came).collect::<Vec<_>>() {
            let path = nbd_path(&self.run_dir, &local.name, nr);
            let listens = self.nbd.listen(&mut self.ring, nr, &path, None);
            listens.map_err(|e| invalid(format!("listening on {}: {e}", path.display())))?;
        }
        setup::warnings(&local).iter().for_each(|warning| log("warning", warning));
        let old = std::mem::replace(&mut self.local, local);
        self.handover.told_more();
        for nr in old.volumes.iter().map(|v| v.nr).filter(|nr| self.local.volumes.iter().all(|v| v.nr != *nr)) {
            self.nbd.stop_offering(&mut self.ring, nr);
            self.told_openers.remove(&nr);
            self.announced.remove(&nr);
        }
        let is_gone = |id: &NodeId| self.local.peers.iter().all(|p| p.peer_node_id != *id);
        for peer in old.peers.iter().map(|p| p.peer_node_id).filter(is_gone) {
            self.links.end_for_good(&mut self.ring, peer, self.now);
        }
        self.links.reconfigure(links);
        self.unusable = unusable;
        self.volumes.reconfigure(setup::disk_paths(&self.local));
        *self.ring.busy_poll() = BusyPoll::at_most(self.local.urbd.busy_poll);
        self.minors.extend(self.local.volumes.iter().map(|v| (v.nr, v.minor)));
        self.fuse.iter_mut().for_each(|fuse| fuse.set_volumes(&self.local));
        for volume in self.dependencies.follow(&self.local) {
            self.tell(|core, now| core.on_dependency(now, volume, false));
        }
        Ok(core_config)
    }

    /// Those whose backing devices have grown, from how much to how much.
    fn grown(&self, volume: Option<u16>) -> impl Iterator<Item = (VolumeNr, (ByteLen, ByteLen))> {
        let asked = self.local.volumes.iter().map(|v| v.nr).filter(move |nr| volume.is_none_or(|v| v == nr.0));
        asked.filter_map(|nr| Some((nr, self.volumes.grown(nr)?)))
    }

    fn each_volume(&self, volume: Option<u16>, make: impl Fn(VolumeNr) -> Command) -> Result<Vec<Command>, Failure> {
        let wanted = volume.map(VolumeNr);
        let all = self.local.volumes.iter().map(|v| v.nr);
        let found: Vec<Command> = all.filter(|nr| wanted.is_none_or(|w| w == *nr)).map(make).collect();
        if found.is_empty() && volume.is_some() {
            let what = format!("{} has no volume {}", self.local.name, volume.unwrap_or_default());
            return Err(Failure::new(ErrorCode::NO_SUCH_MINOR, what));
        }
        Ok(found)
    }

    fn each_peer(&self, peer: Option<String>, make: impl Fn(NodeId) -> Command) -> Result<Vec<Command>, Failure> {
        Ok(self.peers(peer)?.into_iter().map(make).collect())
    }

    /// Who was named, else the Primary, else all who are connected: beside a Primary two others are not compared.
    fn peers_to_compare_with(&self, peer: Option<String>) -> Result<Vec<Option<NodeId>>, Failure> {
        if peer.is_some() {
            return Ok(self.peers(peer)?.into_iter().map(Some).collect());
        }
        let connections = self.core.snapshot().connections;
        let connected = connections.iter().filter(|c| c.state == urbd_core::ConnectionState::Connected);
        let primary = connected.clone().find(|c| c.role == wire::Role::Primary).map(|c| Some(c.peer));
        let all = primary.map_or_else(|| connected.map(|c| Some(c.peer)).collect(), |primary| vec![primary]);
        // Nobody: it is refused, with the reason.
        Ok(if all.is_empty() { vec![None] } else { all })
    }

    fn forget_causes(&mut self, peer: Option<String>) -> Result<(), Failure> {
        self.peers(peer)?.into_iter().for_each(|peer| self.causes.forget_peer(peer));
        Ok(())
    }

    pub(super) fn peers(&self, peer: Option<String>) -> Result<Vec<NodeId>, Failure> {
        let all = self.local.peers.iter();
        let Some(wanted) = peer else { return Ok(all.map(|p| p.peer_node_id).collect()) };
        let is =
            |p: &&config::LocalConnection| same_host(&p.peer_name, &wanted) || p.peer_node_id.to_string() == wanted;
        match self.local.peers.iter().find(is) {
            Some(found) => Ok(vec![found.peer_node_id]),
            None => {
                let known: Vec<&str> = all.map(|p| p.peer_name.as_str()).collect();
                let failure =
                    Failure::new(ErrorCode::NO_SUCH_PEER, format!("{} has no peer {wanted}", self.local.name));
                Err(failure.with_hint(format!("its peers are: {}", known.join(", "))))
            }
        }
    }
}

/// How much a command replaces of a copy.
fn copied(keep_bitmap: bool) -> Copied {
    if keep_bitmap { Copied::Marked } else { Copied::All }
}
