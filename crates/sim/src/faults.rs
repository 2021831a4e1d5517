//! Steps of the plan: faults, operators, applications.

use crate::apps::FIRST_WRITE;
use crate::cluster::{Cluster, Event, Input, Work, configuration};
use crate::net::{Connection, End, Wish, pair};
use crate::payload::{Buffers, ContentId};
use crate::plan::{Step, plain_connect, volume_nr};
use units::{Duration, SectorRange};
use urbd_core::{Command, Replaced, Resource};
use wire::{ConnState, DiskState, Role};

impl Cluster {
    pub(crate) fn step(&mut self, step: Step) {
        match step {
            Step::Start(n) => self.start(n),
            Step::Kill(n) => self.die(n, false),
            Step::PowerLoss(n) => self.die(n, true),
            Step::DieAfter { node, effects, power } => {
                if self.nodes[node].core.is_some() {
                    self.nodes[node].dies_after = Some((effects, power));
                }
            }
            Step::Pause(n) => self.nodes[n].paused = self.nodes[n].core.is_some(),
            Step::Suspend(n) => {
                self.nodes[n].paused = self.nodes[n].core.is_some();
                self.nodes[n].clock.run_at(self.now, 0);
            }
            Step::Resume(n) => self.resume(n),
            Step::ClockJump(n, ahead) => {
                self.nodes[n].clock.jump(self.now, ahead);
                self.wake(n);
            }
            Step::ClockRate(n, percent) => {
                self.nodes[n].clock.run_at(self.now, percent);
                self.wake(n);
            }
            Step::Rot { node, volume, range } => self.rot(node, volume, range),
            Step::Cut(n) => self.peers(n).for_each(|to| self.net.cut[n][to] = true),
            Step::Heal(n) => self.heal(n),
            Step::CutLink(from, to) => self.net.cut[from][to] = true,
            Step::HealLink(from, to) => self.heal_link(from, to),
            Step::Stall(n, which) => self.net.stall(n, which, |_| true),
            Step::StallLink(from, to, which) => self.net.stall(from, which, |other| other == to),
            Step::Reset => self.reset_links(|_| true),
            Step::ResetLink(a, b) => self.reset_links(|c| c.joins(pair(a, b))),
            Step::Disk { node, volume, faults } => self.nodes[node].volumes[volume].data.faults = faults,
            Step::Open(n, open) => self.want_open(n, open),
            Step::Io { volume, kind, range, node } => self.io(volume, kind, range, node),
            Step::Command(n, command) => self.command(n, command),
            Step::Adjust(n, options) => self.adjust(n, *options),
            Step::Grow(n) => self.grow(n),
            Step::Volume { node, volume, there } => self.configure_volume(node, volume, there),
        }
    }

    pub(crate) fn command(&mut self, n: usize, command: Command) {
        let Some(core) = &self.nodes[n].core else { return };
        if !self.cluster_manager_allows(n, &command) || self.lacks_volume(n, &command) {
            return;
        }
        let there: Vec<bool> = (0..self.setup.volumes.len()).map(|v| core.state_word(volume_nr(v)).is_some()).collect();
        self.note_wish();
        self.note_by_hand(&command);
        match &command {
            Command::Replace(volume, Replaced::Own { .. }, _) => {
                self.nodes[n].volumes[usize::from(volume.0)].worthless = true;
                for peer in self.peers(n) {
                    self.nodes[peer].volumes[usize::from(volume.0)].declared = true;
                }
            }
            Command::Replace(volume, Replaced::Peer(peer), _) => {
                self.nodes[peer.index()].volumes[usize::from(volume.0)].worthless = true;
                self.nodes[n].volumes[usize::from(volume.0)].declared = true;
            }
            Command::ForceResync(volume) => {
                for (i, node) in self.nodes.iter_mut().enumerate() {
                    let volume = &mut node.volumes[usize::from(volume.0)];
                    if i == n { volume.declared = true } else { volume.worthless = true }
                }
            }
            Command::NewCurrentUuid { volume, clear_bitmap: true } => {
                self.nodes.iter_mut().for_each(|node| node.volumes[usize::from(volume.0)].declared = true);
            }
            Command::Connect { discard_my_data: true, .. } => {
                let volumes = self.nodes[n].volumes.iter_mut().zip(there).filter(|(_, there)| *there);
                volumes.for_each(|(v, _)| v.worthless = true);
            }
            Command::Primary { force: true } => {
                let volumes = self.nodes[n].volumes.iter_mut().zip(there).filter(|(_, there)| *there);
                volumes.for_each(|(v, _)| v.declared = true);
            }
            _ => {}
        }
        self.serial += 1;
        let id = self.serial;
        self.nodes[n].commands.insert(id, command.clone());
        self.nodes[n].inbox.push_back(Input::Command(id, command));
        self.wake(n);
    }

    /// A command was obeyed.
    pub(crate) fn has_done(&mut self, n: usize, command: &Command) {
        if let Command::NewCurrentUuid { volume, clear_bitmap } = command {
            // On a StandAlone node: this copy is of a generation of its own, and the split brain is the operator's.
            let volume = &mut self.nodes[n].volumes[usize::from(volume.0)];
            for (alone, word) in volume.alone.iter_mut().zip(&volume.towards) {
                *alone |= !clear_bitmap || word.is_some_and(|w| w.conn < ConnState::Connected);
            }
        }
    }

    /// The process is started, as `up` does it.
    pub(crate) fn start(&mut self, n: usize) {
        if self.nodes[n].core.is_some() {
            return;
        }
        // The peer may still hold a connection to the dead machine: its packets are answered with a reset now.
        let half = |c: &&Connection| c.ends[c.side(n)] == End::Closed && c.ends[1 - c.side(n)] != End::Closed;
        let stale = self.net.connections.iter().filter(|c| c.nodes.contains(&n)).filter(half);
        let stale: Vec<u64> = stale.map(|c| c.number).collect();
        for number in stale {
            self.end_streams(number, n);
        }
        if self.setup.extras.clocks {
            self.nodes[n].clock.run_at(self.now, 100);
        }
        let tools = self.setup.drawn.widest.offline_tools;
        if tools > 0 && self.rng.chance(tools, 2) {
            self.apply_al(n);
        }
        let seed = self.rng.next_u64();
        let mut core = Resource::new(configuration(&self.setup, n), seed);
        core.start_counters(self.setup.drawn.nodes[n].counters);
        self.nodes[n].core = Some(core);
        let disks = if self.setup.has_disk(n) { self.nodes[n].volumes.len() } else { 0 };
        for v in 0..disks {
            self.command(n, Command::Attach { volume: volume_nr(v) });
        }
        for peer in self.peers(n) {
            self.command(n, plain_connect(peer));
        }
        self.inherit(n);
    }

    /// The process dies, or the whole machine.
    pub(crate) fn die(&mut self, n: usize, power: bool) {
        let now = self.tick();
        self.bequeath(n, power);
        let node = &mut self.nodes[n];
        let was_running = node.core.take().is_some();
        if !was_running && !power {
            return;
        }
        node.life += 1;
        self.handlers.died(n);
        node.paused = false;
        node.turn_scheduled = false;
        node.timer = None;
        node.dies_after = None;
        node.inbox.clear();
        node.commands.clear();
        node.buffers = Buffers::default();
        for (_, request) in std::mem::take(&mut node.requests) {
            if crate::apps::is_write(request.kind) {
                node.volumes[request.volume].view.lost(&request.written, now);
            }
        }
        self.end_flights(n, power);
        self.forget_what_was_only_received(n, now);
        if power {
            self.lose_power(n);
        }
        if self.setup.extras.two_primaries {
            self.doubt_what_only_it_had(n);
        }
        // What it had sent its peer is not what its disk will show.
        for peer in self.peers(n) {
            if self.net.wishes[n][peer] != Wish::Nothing {
                self.close_link(n, peer, !power);
            }
        }
        self.note_seen(n);
        for volume in &mut self.nodes[n].volumes {
            if let Some(includes) = volume.left_at.take() {
                // The process had gone on without this disk, and only it knew: what comes up next is what the disk was.
                let data = volume.data.data();
                volume.view.accept(data, now);
                volume.view.includes = includes;
            }
            volume.word = None;
            volume.towards.fill(None);
            volume.generation_began = false;
            (volume.size, volume.writable, volume.open, volume.opening) = (0, false, false, false);
        }
    }

    /// Of two Primaries that both crash in one generation either may be the source. If this one outlived its peer, but
    /// not until its new generation was on its disk, what no flush has covered may be on the wrong disk alone.
    fn doubt_what_only_it_had(&mut self, n: usize) {
        let deaf =
            self.peers(n).any(|p| matches!(self.net.wishes[n][p], Wish::Connected(_)) && !self.peer_listens(n, p));
        for volume in &mut self.nodes[n].volumes {
            let primary = volume.word.is_some_and(|w| w.role == Role::Primary);
            if primary && (deaf || volume.generation_began) {
                volume.doubt_unflushed();
            }
        }
    }

    /// Operations in flight may have been done, or not, or (if the machine died) in part.
    fn end_flights(&mut self, n: usize, power: bool) {
        for (_, flight) in std::mem::take(&mut self.nodes[n].flights) {
            let rng = &mut self.rng;
            let vol = &mut self.nodes[n].volumes[flight.volume];
            let whole = !power && rng.chance(1, 2);
            match flight.work {
                Work::Write(at, content, _) if whole => vol.data.write(at, &content, false),
                Work::Write(at, content, _) => vol.data.write_maybe(at, &content, rng),
                Work::Zero(range, _) if rng.chance(1, 2) => vol.data.zero(range, false),
                Work::Flush if rng.chance(1, 2) => vol.data.flush(flight.marks.0),
                Work::MetaWrite { at, bytes, flush, .. } => {
                    if flush && rng.chance(1, 2) {
                        continue;
                    }
                    vol.write_meta(at, &[], flush.then_some(flight.marks), false);
                    vol.meta_disk().write_meta_maybe(at, &bytes, rng);
                }
                _ => {}
            }
        }
    }

    fn lose_power(&mut self, n: usize) {
        let now = self.tick();
        let mut left_behind = Vec::new();
        for (v, volume) in self.nodes[n].volumes.iter_mut().enumerate() {
            if let Some(meta) = &mut volume.meta {
                meta.lose_power(&mut self.rng);
            }
            volume.doubt_unflushed();
            volume.arrived.lose_power();
            for place in volume.data.lose_power(&mut self.rng) {
                let left: Vec<_> = volume.data.data().runs(place).map(|(r, c)| (r, c.id)).collect();
                for (range, content) in left {
                    volume.view.may_hold(range, content, now);
                    left_behind.push((v, range, content));
                }
            }
        }
        // Of two Primaries the other one may have no good copy, and this was the only one: like those of any disk that
        // loses its power, what users of both have not made durable by a flush may be gone for both.
        for (v, range, content) in left_behind {
            for peer in self.peers(n).filter(|_| self.setup.extras.two_primaries) {
                let other = &mut self.nodes[peer].volumes[v];
                if other.word.is_some_and(|w| w.role == Role::Primary && w.disk < DiskState::UpToDate) {
                    other.view.may_hold(range, content, now);
                }
            }
        }
    }

    /// Sectors of a disk change by themselves. Nobody promises anything of them until they are written again. Not while
    /// they are written: the other Primary's later write may give way to one that has rotten since.
    fn rot(&mut self, n: usize, v: usize, range: SectorRange) {
        let writing = |c: &Cluster, n: usize| c.under_way(n, v).iter().any(|w| w.range.overlaps(range));
        if self.setup.extras.two_primaries && (writing(self, 0) || writing(self, 1)) {
            return;
        }
        let now = self.tick();
        let id = (FIRST_WRITE + now) as ContentId;
        // A copy that is not good yet may count as it is a moment later. What it had from its peer comes back when a
        // verify repairs the rotten blocks.
        let volume = &mut self.nodes[n].volumes[v];
        let before: Vec<_> = volume.data.data().runs(range).map(|(piece, content)| (piece, content.id)).collect();
        before.into_iter().for_each(|(piece, content)| volume.view.may_hold(piece, content, now));
        volume.data.rot(range, id);
        for node in &mut self.nodes {
            node.volumes[v].view.may_hold(range, id, now);
            node.volumes[v].rotten.push(range);
        }
    }

    fn resume(&mut self, n: usize) {
        if self.setup.extras.clocks {
            self.nodes[n].clock.run_at(self.now, 100);
        }
        if std::mem::take(&mut self.nodes[n].paused) {
            self.wake(n);
            for peer in self.peers(n) {
                self.seek(pair(n, peer), self.now);
                self.after(Duration::from_millis(1), Event::Meet(pair(n, peer)));
            }
        }
    }
}
