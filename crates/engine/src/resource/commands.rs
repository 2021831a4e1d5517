//! The control socket's requests: questions are answered here, commands go to the core.

use super::{Runner, log};
use crate::fuse_server::FuseServer;
use crate::ring::BusyPoll;
use crate::status::{self, Surroundings};
use crate::token::ClientId;
use crate::{metrics, notify, setup};
use config::{Disk, LoadOptions, ThisHost};
use control::{Command as Asked, ErrorCode, Failure, GenerationIdentifiers, Reply, Request, ResourceStatus};
use frontends::loopdev::Background;
use std::collections::BTreeMap;
use units::{NodeId, Sector, VolumeNr};
use urbd_core::{Command, CommandError, ConnectionState, Openers};

/// Commands that the core works on.
#[derive(Default)]
pub(super) struct Commands {
    next: u64,
    /// Which question each of the core's commands belongs to.
    running: BTreeMap<u64, u64>,
    asked: BTreeMap<u64, Question>,
    replies: Vec<(ClientId, Reply)>,
    start: Start,
}

/// Attaching the disks with which the process starts.
#[derive(Default)]
struct Start {
    question: Option<u64>,
    reply: Option<Reply>,
    waiting: Vec<ClientId>,
}

/// Commands that wait until it is known who uses the block devices.
pub(super) struct UseCheck {
    work: Background<Vec<VolumeNr>>,
    waiting: Vec<(Option<ClientId>, Asked)>,
}

/// One client's command; it may be several for the core (all volumes, all peers).
struct Question {
    client: Option<ClientId>,
    left: usize,
    failure: Option<Failure>,
}

impl Commands {
    /// The id for a command that nobody waits for.
    pub(super) fn unattended(&mut self) -> u64 {
        self.ask(None, 1)[0]
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
            Some(reply) => self.replies.push((client, reply.clone())),
            None => self.start.waiting.push(client),
        }
    }

    /// Notes the end of a command.
    pub(super) fn on_done(&mut self, id: u64, result: Result<(), CommandError>) {
        let Some(question) = self.running.remove(&id) else { return };
        let Some(asked) = self.asked.get_mut(&question) else { return };
        asked.left -= 1;
        if let Err(e) = result {
            asked.failure.get_or_insert(Failure::new(ErrorCode(e.code), e.text));
        }
        if asked.left > 0 {
            return;
        }
        let Some(Question { client, failure, .. }) = self.asked.remove(&question) else { return };
        if self.start.question == Some(question) {
            let reply = failure.clone().map_or(Reply::Ok { info: Vec::new() }, Reply::Error);
            // The resource is there even if a disk is not: it can serve its peer's data.
            ready();
            self.replies.extend(self.start.waiting.drain(..).map(|client| (client, reply.clone())));
            self.start.reply = Some(reply);
        }
        match (client, failure) {
            (Some(client), None) => self.replies.push((client, Reply::Ok { info: Vec::new() })),
            (Some(client), Some(failure)) => self.replies.push((client, Reply::Error(failure))),
            (None, Some(failure)) => log("error", &failure.to_string()),
            (None, None) => {}
        }
    }

    /// Replies that are ready to be sent.
    pub(super) fn take_replies(&mut self) -> Vec<(ClientId, Reply)> {
        std::mem::take(&mut self.replies)
    }

    /// Ids for `n` commands that together answer one client.
    fn ask(&mut self, client: Option<ClientId>, n: usize) -> Vec<u64> {
        let question = self.next;
        self.next += 1;
        self.asked.insert(question, Question { client, left: n, failure: None });
        let ids: Vec<u64> = (0..n as u64).map(|i| self.next + i).collect();
        self.next += n as u64;
        self.running.extend(ids.iter().map(|id| (*id, question)));
        ids
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
        let reply = match request {
            Request::Hello { .. } => return,
            Request::Started => return self.commands.await_start(client),
            Request::Status => Reply::Status(self.status_with_latencies()),
            Request::Events { now, .. } => {
                let status = self.status();
                return self.control.subscribe(client, &status, now);
            }
            Request::Show => Reply::Text(self.show.clone()),
            Request::Metrics => Reply::Text(metrics::text(&self.status_with_latencies())),
            Request::Why => Reply::Why(status::why(&self.core.snapshot())),
            Request::Generations { volume, peer } => match self.generations(VolumeNr(volume), peer.as_deref()) {
                Ok(generations) => Reply::Generations(generations),
                Err(failure) => Reply::Error(failure),
            },
            Request::Command(asked) => return self.on_asked(Some(client), asked),
        };
        self.control.reply(client, &reply);
    }

    /// Does what an administrator asked for; without a client, the log says how it ended.
    pub(super) fn on_asked(&mut self, client: Option<ClientId>, asked: Asked) {
        if self.must_check_use(&asked) { self.check_use(client, asked) } else { self.command(client, asked) }
    }

    fn command(&mut self, client: Option<ClientId>, asked: Asked) {
        let reply = match self.translate(asked) {
            Ok(commands) if commands.is_empty() => Reply::Ok { info: Vec::new() },
            Ok(commands) => {
                let ids = self.commands.ask(client, commands.len());
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

    /// Going Secondary is refused while a device is in use, which only the kernel knows.
    fn must_check_use(&self, asked: &Asked) -> bool {
        matches!(asked, Asked::Secondary { force: false } | Asked::Down { force: false })
            && self.fuse.as_ref().is_some_and(FuseServer::has_devices)
    }

    fn check_use(&mut self, client: Option<ClientId>, asked: Asked) {
        if let Some(check) = &mut self.checking {
            return check.waiting.push((client, asked));
        }
        let started = self.fuse.as_ref().map(|fuse| fuse.check_use(&mut self.ring));
        match started {
            Some(Ok(work)) => self.checking = Some(UseCheck { work, waiting: vec![(client, asked)] }),
            _ => self.command(client, asked),
        }
    }

    /// It is known which devices are in use: tells the core, and goes on with the commands that waited for it.
    pub(super) fn on_use_checked(&mut self) {
        let Some(mut check) = self.checking.take() else { return };
        let used = check.work.take().and_then(Result::ok).unwrap_or_default();
        if let Some(fuse) = &mut self.fuse {
            fuse.set_used(&used);
        }
        for volume in self.local.volumes.iter().map(|v| v.nr) {
            let openers = self.openers(volume);
            self.core.on_openers(self.now, volume, openers);
        }
        self.told = true;
        for (client, asked) in check.waiting {
            self.command(client, asked);
        }
    }

    /// Who has a volume open, over all front ends.
    pub(super) fn openers(&self, volume: VolumeNr) -> Openers {
        let mut openers = self.nbd.openers(volume);
        openers.writers += u32::from(self.fuse.as_ref().is_some_and(|f| f.is_used(volume)));
        openers
    }

    /// A block device was attached or detached.
    pub(super) fn on_fuse_work(&mut self, volume: VolumeNr) {
        if let Some(problem) = self.fuse.as_mut().and_then(|fuse| fuse.on_work(volume)) {
            log("error", &format!("the block device of volume {volume}: {problem}"));
        }
        self.status_changed = true;
    }

    /// The present status.
    pub(super) fn status(&self) -> ResourceStatus {
        let around = Surroundings {
            local: &self.local,
            minors: &self.minors,
            volumes: &self.volumes,
            nbd: &self.nbd,
            fuse: self.fuse.as_ref(),
            now: self.now,
        };
        status::resource(&self.core.snapshot(), &around)
    }

    /// The same with how long requests took.
    fn status_with_latencies(&self) -> ResourceStatus {
        let mut status = self.status();
        for device in &mut status.devices {
            let volume = VolumeNr(device.volume);
            let stages = self.core.latencies(volume).into_iter().flatten();
            device.latencies = stages.map(|(stage, h)| status::latency(stage.names(), h)).collect();
            let sent = self.links.send_latency(volume);
            device.latencies.extend(sent.map(|h| status::latency(("write", "send"), h)));
        }
        status
    }

    /// The core's commands for an administrator's.
    fn translate(&mut self, asked: Asked) -> Result<Vec<Command>, Failure> {
        Ok(match asked {
            Asked::Attach { volume: None } => {
                self.volumes_with_disk().map(|volume| Command::Attach { volume }).collect()
            }
            Asked::Attach { volume } => self.each_volume(volume, |volume| Command::Attach { volume })?,
            Asked::Detach { volume: None, force } => {
                self.volumes_with_disk().map(|volume| Command::Detach { volume, force }).collect()
            }
            Asked::Detach { volume, force } => self.each_volume(volume, |volume| Command::Detach { volume, force })?,
            Asked::Connect { peer, discard_my_data } => {
                self.each_peer(peer, |peer| Command::Connect { peer, discard_my_data, tentative: false })?
            }
            Asked::Disconnect { peer, force } => self.each_peer(peer, |peer| Command::Disconnect { peer, force })?,
            Asked::Primary { force } => vec![Command::Primary { force }],
            Asked::Secondary { force } => vec![Command::Secondary { force }],
            Asked::Invalidate { volume } => self.each_volume(volume, |volume| Command::Invalidate { volume })?,
            Asked::InvalidateRemote { peer, volume } => {
                let mut all = Vec::new();
                for peer in self.peers(peer)? {
                    all.extend(self.each_volume(volume, |volume| Command::InvalidateRemote { volume, peer })?);
                }
                all
            }
            Asked::PauseSync { volume, .. } => self.each_volume(volume, |volume| Command::PauseSync { volume })?,
            Asked::ResumeSync { volume, .. } => self.each_volume(volume, |volume| Command::ResumeSync { volume })?,
            Asked::Verify { volume, start_sector, stop_sector, repair, .. } => {
                let (start, stop) = (start_sector.map(Sector), stop_sector.map(Sector));
                self.each_volume(volume, |volume| Command::Verify { volume, start, stop, repair })?
            }
            Asked::SuspendIo { volume } => self.each_volume(volume, |volume| Command::SuspendIo { volume })?,
            Asked::ResumeIo { volume } => self.each_volume(volume, |volume| Command::ResumeIo { volume })?,
            Asked::Outdate { volume } => self.each_volume(volume, |volume| Command::Outdate { volume })?,
            Asked::NewCurrentUuid { volume, clear_bitmap, .. } => {
                self.each_volume(volume, |volume| Command::NewCurrentUuid { volume, clear_bitmap })?
            }
            Asked::Resize { volume, assume_clean, .. } => {
                self.check_grown(volume)?;
                self.each_volume(volume, |volume| Command::Resize { volume, assume_clean })?
            }
            Asked::ChangeOptions { config, .. } => vec![self.change_options(&config)?],
            Asked::Down { force: false } => vec![Command::Down],
            Asked::Down { force: true } => vec![Command::Secondary { force: true }, Command::Down],
        })
    }

    /// A backing device that has grown is measured, and internal metadata moved to its end, when it is attached.
    fn check_grown(&self, volume: Option<u16>) -> Result<(), Failure> {
        let asked = self.local.volumes.iter().map(|v| v.nr).filter(|nr| volume.is_none_or(|v| v == nr.0));
        let Some((nr, (old, new))) = asked.filter_map(|nr| Some((nr, self.volumes.grown(nr)?))).next() else {
            return Ok(());
        };
        let object = format!("{}/{nr}", self.local.name);
        let text = format!(
            "the backing device of {object} has grown from {} to {} KiB since it was attached",
            old.0 / 1024,
            new.0 / 1024
        );
        Err(Failure::new(ErrorCode::INVALID_REQUEST, text).with_hint(format!(
            "on one node after the other: urbd detach {object}; urbd check-resize {object}; urbd attach {object}; \
             urbd wait-sync {object}; then once: urbd resize {object}"
        )))
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

    fn peers(&self, peer: Option<String>) -> Result<Vec<NodeId>, Failure> {
        let all = self.local.peers.iter();
        let Some(wanted) = peer else { return Ok(all.map(|p| p.peer_node_id).collect()) };
        let is = |p: &&config::LocalConnection| p.peer_name == wanted || p.peer_node_id.to_string() == wanted;
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

    /// Takes over another configuration: the engine's part at once, the core's with the command that this gives.
    fn change_options(&mut self, text: &str) -> Result<Command, Failure> {
        let invalid = |what: String| Failure::new(ErrorCode::INVALID_REQUEST, what);
        let config = config::load_text(&Disk, &self.config_file, text, &LoadOptions::default())
            .map_err(|e| invalid(e.to_string()))?;
        let host = ThisHost::named(self.local.host.clone());
        let local = config.resource_as_seen_by(&self.local.name, &host).map_err(|e| invalid(e.to_string()))?;
        self.check_same_objects(&local)?;
        let core_config = setup::resource_config(&local).map_err(invalid)?;
        self.links.reconfigure(setup::link_settings(&local).map_err(invalid)?);
        self.volumes.reconfigure(setup::disk_paths(&local));
        *self.ring.busy_poll() = BusyPoll::at_most(local.urbd.busy_poll);
        self.minors = local.volumes.iter().map(|v| (v.nr, v.minor)).collect();
        for free in self.dependencies.follow(&local) {
            self.tell(|core, now| core.on_dependency(now, free, false));
        }
        self.local = local;
        self.show = text.to_owned();
        Ok(Command::ChangeOptions(Box::new(core_config)))
    }

    /// The volumes and peers of a resource are made when it starts.
    fn check_same_objects(&self, new: &config::LocalResource) -> Result<(), Failure> {
        let volumes = |r: &config::LocalResource| r.volumes.iter().map(|v| v.nr).collect::<Vec<_>>();
        let peers = |r: &config::LocalResource| r.peers.iter().map(|p| p.peer_node_id).collect::<Vec<_>>();
        let what = match (volumes(&self.local) == volumes(new), peers(&self.local) == peers(new)) {
            (true, true) => return Ok(()),
            (false, _) => "volumes",
            (true, false) => "peers",
        };
        let name = &self.local.name;
        let text =
            format!("the configuration has other {what} than the running resource, which has them from its start");
        Err(Failure::new(ErrorCode::INVALID_REQUEST, text)
            .with_hint(format!("restart it (the other node keeps serving): urbd down {name}; urbd up {name}")))
    }

    fn generations(&self, volume: VolumeNr, peer: Option<&str>) -> Result<GenerationIdentifiers, Failure> {
        let snapshot = self.core.snapshot();
        let device = snapshot.devices.iter().find(|d| d.volume == volume).ok_or_else(|| {
            Failure::new(ErrorCode::NO_SUCH_MINOR, format!("{} has no volume {volume}", self.local.name))
        })?;
        let connection = match self.peers(peer.map(str::to_owned))?.as_slice() {
            [] => None,
            [first, ..] => snapshot.connections.iter().find(|c| c.peer == *first),
        };
        let peer_device = connection.and_then(|c| c.peer_devices.iter().find(|p| p.volume == volume));
        let [current, bitmap, older, oldest] = device.generations.map(|g| g.0);
        Ok(GenerationIdentifiers {
            current,
            bitmap,
            history: [older, oldest],
            consistent: device.disk >= wire::DiskState::Outdated && device.disk != wire::DiskState::DUnknown,
            was_up_to_date: device.disk == wire::DiskState::UpToDate,
            primary: snapshot.role == wire::Role::Primary,
            crashed_primary: false,
            connected: connection.is_some_and(|c| c.state == ConnectionState::Connected),
            full_sync: false,
            peer_outdated: peer_device.is_some_and(|p| p.peer_disk <= wire::DiskState::Outdated),
        })
    }
}
