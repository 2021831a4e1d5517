//! Carrying out what the core wants.

use super::{Runner, log};
use crate::buffers::BufId;
use crate::digests::Algorithm;
use crate::fuse_server::FuseServer;
use crate::handlers;
use crate::log::log_with;
use crate::requests::Asker;
use crate::status::Happened;
use crate::volumes::growing::Growth;
use control::{Event, HelperCall};
use units::NodeId;
use urbd_core::{Command, Effect, HandlerCall, IoError, Notice, Segments, Severity};
use wire::DiskState;

impl Runner {
    /// Carries out all effects, in order. Was there any?
    pub(super) fn carry_out(&mut self) -> bool {
        let mut any = false;
        while let Some(effect) = self.core.poll_effect() {
            any = true;
            self.effect(effect);
        }
        any
    }

    fn effect(&mut self, effect: Effect) {
        let (ring, now) = (&mut self.ring, self.now);
        match effect {
            Effect::Send { peer, stream, volume, packet, payload } => {
                self.links.send(peer, now, stream, volume, packet, &payload);
            }
            Effect::Connect { peer, not_before, accept_before } => self.links.connect(peer, not_before, accept_before),
            Effect::Dialect { peer, dialect, integrity } => {
                self.links.set_dialect(peer, dialect, integrity.as_deref());
                let who = format!("{} {}", self.local.name, self.peer_name(peer));
                let nine = config::is_nine(dialect.version.number());
                let news = self.gate.note_dialect(nine);
                let why = if self.local.offers_nine() && !nine { why_older(&self.core.snapshot()) } else { "" };
                log("info", &format!("{who}: agreed on protocol version {}{news}{why}", dialect.version));
            }
            Effect::Hmac { peer, token, algorithm, message } => {
                let mac = self.hmac(peer, &algorithm, &message);
                self.tell(|core, now| core.on_hmac(now, peer, token, mac));
            }
            Effect::CloseLink { peer } => self.links.close(ring, peer, now),
            Effect::Digest { op, algorithm, data, piece } => {
                let digests = self.digests(&algorithm, &data, piece as usize);
                self.tell(|core, now| core.on_digests(now, op, &digests));
            }
            Effect::OpenDisk { volume } => self.outcomes.extend(self.volumes.open(volume)),
            Effect::CloseDisk { volume } => self.volumes.close(volume),
            Effect::Disk { op, volume, action } => self.outcomes.extend(self.volumes.disk(ring, op, volume, action)),
            Effect::Meta { op, volume, action } => self.outcomes.extend(self.volumes.meta(ring, op, volume, action)),
            Effect::Deliver { from, to } => {
                self.volumes.copy(&from, &to);
                self.release(&from);
            }
            Effect::Complete { tag, result } => self.complete(tag, result),
            Effect::Release(buffers) => self.release(&buffers),
            Effect::RunHandler { id, call } => self.run_handler(id, &call),
            Effect::CommandDone { id, result } if self.is_wish(id) => self.on_wish_done(result),
            Effect::CommandDone { id, result } if self.is_demotion(id) => self.on_demoted(result),
            Effect::CommandDone { id, result } if self.is_of_gate(id) => self.on_gate_done(id, result),
            Effect::CommandDone { id, result } => {
                self.gate.news();
                self.on_command_done(id, result);
            }
            Effect::Device { volume, size, access, discard } => {
                self.nbd.set_device(volume, size, access, discard);
                if let Some(inside) = &mut self.inside {
                    inside.set_device(volume, size, access == urbd_core::Access::ReadWrite);
                }
                self.announced.insert(volume, (size, access, discard));
                if let Some(fuse) = &mut self.fuse {
                    fuse.set_device(volume, size, access, discard);
                }
                self.gate.news();
                self.untold.touch(true);
            }
            Effect::StateStored(state) => self.untold.note(Happened::State(state)),
            Effect::StatusChanged => {
                self.untold.touch(true);
                if self.has_readers() {
                    self.gate.news();
                }
            }
            Effect::Log(notice) => self.log_notice(&notice),
            Effect::Stopped => {
                self.stopped = Some(now);
                if !self.is_leaving() {
                    self.fuse.iter_mut().for_each(FuseServer::take_away);
                }
            }
        }
    }

    /// Tells new devices what the core has said about the old ones.
    pub(super) fn tell_devices(&mut self) {
        for (volume, (size, access, discard)) in &self.announced {
            if let Some(fuse) = &mut self.fuse {
                fuse.set_device(*volume, *size, *access, *discard);
            }
        }
    }

    fn complete(&mut self, tag: u64, result: Result<(), IoError>) {
        let Some(answer) = self.requests.complete(tag, result) else { return };
        match (answer.asker, &mut self.fuse) {
            (Asker::Nbd(client), _) => self.nbd.answer(client, &answer.request, answer.result, answer.data),
            (Asker::NbdPiece(client, long), _) => self.nbd.piece_done(client, long, answer.result),
            (Asker::Fuse, Some(fuse)) => fuse.answer(&mut self.ring, &answer.request, answer.result, answer.data),
            (Asker::Fuse, None) => {}
            (Asker::Application, _) => {
                if let Some(inside) = &mut self.inside {
                    inside.answer(&answer.request, answer.result, &answer.data);
                }
            }
        }
    }

    fn release(&self, buffers: &Segments) {
        for piece in buffers.as_slice() {
            drop(self.pool.reclaim(BufId(piece.id)));
        }
    }

    fn hmac(&self, peer: NodeId, algorithm: &str, message: &[u8]) -> Option<Vec<u8>> {
        let connection = self.local.peers.iter().find(|p| p.peer_node_id == peer)?;
        let secret = connection.net.shared_secret.as_deref()?;
        let mac = Algorithm::parse(algorithm)?.hmac(secret.as_bytes(), message)?;
        Some(mac.as_bytes().to_vec())
    }

    /// Digests are only asked for with algorithms that both nodes know; an unknown one gives an empty digest, which
    /// equals no other.
    fn digests(&self, algorithm: &str, data: &Segments, piece: usize) -> Vec<wire::Digest> {
        let algorithm = Algorithm::parse(algorithm);
        let digest = |bytes: &[u8]| {
            let value = algorithm.map(|a| a.digest(bytes));
            value.and_then(|v| wire::Digest::new(v.as_bytes())).unwrap_or_default()
        };
        let each = |bytes: &[u8]| bytes.chunks(piece.max(1)).map(digest).collect();
        match data.as_slice() {
            [one] => each(&self.pool.share(BufId(one.id)).bytes()[one.offset as usize..][..one.len as usize]),
            _ => {
                let mut all = Vec::with_capacity(data.len() as usize);
                self.volumes.each_piece(data, |bytes| all.extend_from_slice(bytes));
                each(&all)
            }
        }
    }

    fn run_handler(&mut self, id: u64, call: &HandlerCall) {
        let name = call.event.name();
        let helper = handlers::chosen_helper(&self.local, self.helper.as_deref(), &self.run_dir);
        let Some((program, mut environment)) = helper else {
            let answer = handlers::answer_of_none(call.event);
            return self.tell(|core, now| core.on_handler_exit(now, id, answer));
        };
        let described = HelperCall {
            helper: name.to_owned(),
            peer: call.peer.map(|peer| (peer.index() as u8, self.peer_name(peer).to_owned())),
            volume: call.volume.map(|v| v.0),
            minor: call.volume.and_then(|v| self.minors.get(&v).copied()),
        };
        self.untold.note(Happened::Event(Box::new(Event::HelperCalled(described.clone()))));
        self.pending_handlers.insert(id, described);
        environment.extend(handlers::kernel_says(&self.local, &self.core.snapshot(), call));
        let words = [name, self.local.name.as_str()];
        let started = self.handlers.start(&mut self.ring, id, &program, words, &environment).unwrap_or_else(|e| {
            log("error", &format!("{}, which is to be called for {name}: {e}", program.display()));
            Some(handlers::NOT_STARTED)
        });
        started.into_iter().for_each(|status| self.report_handler(id, status));
    }

    /// The process of a handler has ended.
    pub(super) fn on_handler_end(&mut self, id: u64) {
        if let Some(status) = self.handlers.on_end(&mut self.ring, id) {
            self.report_handler(id, status);
        }
    }

    fn report_handler(&mut self, id: u64, status: i32) {
        if let Some(call) = self.pending_handlers.remove(&id) {
            if status != 0 {
                log("info", &format!("handler {} ended with wait status {status:#x}", call.helper));
            }
            self.untold.note(Happened::Event(Box::new(Event::HelperReturned { call, status })));
        }
        // A handler that a signal ended has not agreed to anything.
        let exit_code = if status & 0x7f == 0 { status >> 8 & 0xff } else { 255 };
        self.tell(|core, now| core.on_handler_exit(now, id, exit_code));
    }

    pub(super) fn peer_name(&self, peer: NodeId) -> &str {
        let found = self.local.peers.iter().find(|p| p.peer_node_id == peer);
        found.map_or("", |p| p.peer_name.as_str())
    }

    fn log_notice(&mut self, notice: &Notice) {
        let severity = match notice.severity {
            Severity::Error => "error",
            Severity::Warning => "warning",
            Severity::Info => "info",
        };
        let peer = notice.peer.map(|p| self.peer_name(p));
        let volume = notice.volume.map(|v| v.to_string());
        let reason = notice.reason.to_string();
        let of_volume = volume.as_ref().map(|v| format!(" volume {v}")).unwrap_or_default();
        let of_peer = peer.map(|p| format!(" {p}")).unwrap_or_default();
        let text = format!("{}{of_volume}{of_peer}: {} [{reason}]", self.local.name, notice.text);
        let about = [("URBD_PEER", peer), ("URBD_VOLUME", volume.as_deref()), ("URBD_REASON", Some(&*reason))];
        let fields: Vec<_> = about.into_iter().filter_map(|(name, value)| Some((name, value?))).collect();
        log_with(severity, &text, &fields);
        self.causes.note(notice);
        self.untold.touch(true);
    }
}

impl Runner {
    /// Takes in the sizes of backing devices that have grown, if somebody waits for that and it can be done now, and
    /// lets go on who waits.
    pub(super) fn grow(&mut self) {
        if self.volumes.waiting().deadline().is_none() {
            return;
        }
        // What the core has decided is on its way by the old layout.
        self.carry_out();
        let in_service = |disk| {
            matches!(disk, DiskState::Inconsistent | DiskState::Outdated | DiskState::Consistent | DiskState::UpToDate)
        };
        let devices = self.core.snapshot().devices;
        for volume in self.volumes.waiting().take() {
            if !devices.iter().any(|device| device.volume == volume && in_service(device.disk)) {
                continue;
            }
            let disk = format!("{}/{volume}: the backing device has grown", self.local.name);
            match self.volumes.take_in_growth(volume) {
                Growth::Later if self.volumes.waiting().later(self.now, volume) => {}
                Growth::Done(opened) => {
                    log("info", &format!("{disk} to {} KiB", opened.backing.0 / 1024));
                    let id = self.commands.unattended();
                    self.tell(|core, now| core.on_command(now, id, Command::Grew(volume, opened)));
                }
                Growth::Failed(why) => log("warning", &format!("{disk}, and its metadata do not move: {why}")),
                Growth::None | Growth::Later => {}
            }
        }
        if let Some((commands, packet)) = self.volumes.waiting().over() {
            commands.into_iter().for_each(|(client, asked)| self.command(client, asked, Vec::new(), self.now));
            packet.into_iter().for_each(|packet| self.on_link(packet));
        }
    }

    /// Tells whoever waits: listeners of changes, then ended commands. True if that has led to something to do.
    pub(super) fn answer_clients(&mut self) -> bool {
        let untold = std::mem::take(&mut self.untold);
        // What becomes of a process that makes way for the next one is not what becomes of the resource.
        if untold.is_news() && !self.is_leaving() && self.control.has_listeners(self.now) {
            let status = self.status();
            untold.up_to(status).into_iter().for_each(|event| self.control.publish(event));
        }
        for (client, how) in self.control.take_joining() {
            self.control.subscribe(client, &self.status(), how);
        }
        // Who became Primary wants to open the device: it is to be there when the command ends.
        if !self.fuse.as_ref().is_some_and(FuseServer::is_busy) {
            for reply in self.commands.take_replies() {
                self.answer_client(reply);
            }
        }
        self.control.answer(self.now);
        // Who was answered may have asked for the next thing already.
        self.told || self.control.has_requests()
    }
}

/// Why a node that is to offer DRBD 9's dialect has 8.4's spoken, behind a version.
fn why_older(snapshot: &urbd_core::Snapshot) -> &'static str {
    match snapshot.devices.iter().any(|device| device.old_metadata) {
        true => " (this node has metadata of format v08)",
        false => " (the peer offers no more)",
    }
}
