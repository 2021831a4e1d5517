//! Named scenarios: a script of steps and expectations for two nodes, A and B, or up to five. `scenarios.txt` has them
//! and says what its words mean.

use crate::cluster::Cluster;
use crate::coming::Absent;
use crate::disk::DiskFaults;
use crate::plan::{Plan, Setup, Step, VolumeSetup, node_id, plain_connect, volume_nr};
use crate::ranges::sectors;
use crate::{Options, Outcome};
use std::ops::RangeInclusive;
use units::Duration;
use urbd_core::decide::private::Decides;
use urbd_core::{Command, Copied, Fencing, OnIoError, OnNoData, Protocol, Replaced, RequestKind, RrConflict};
use wire::{ConnState, DiskState, Role, StateWord};

/// What one step has to take effect, unless its line ends with `&`.
const STEP: Duration = Duration::from_secs(2);
/// Blocks of 4 KiB in an extent of the activity log.
const BLOCKS_OF_EXTENT: u64 = 1024;
/// What a packet is on its way, with `set in-step`.
const WAY: Duration = Duration::from_millis(10);
/// When the copies must be equal at the end.
const PATIENCE: Duration = Duration::from_secs(60);

/// A script with its name.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Scenario {
    /// Its name, with the section of the specification's appendix A that it comes from.
    pub name: String,
    /// Lines with their numbers in the file.
    lines: Vec<(usize, String)>,
}

/// The scenarios of a file.
#[must_use]
pub fn parse(text: &str) -> Vec<Scenario> {
    let mut all: Vec<Scenario> = Vec::new();
    for (number, line) in text.lines().enumerate() {
        let line = line.split('#').next().unwrap_or_default().trim();
        if let Some(name) = line.strip_prefix("scenario ") {
            all.push(Scenario { name: name.to_owned(), lines: Vec::new() });
        } else if let (false, Some(last)) = (line.is_empty(), all.last_mut()) {
            last.lines.push((number + 1, line.to_owned()));
        }
    }
    all
}

/// Runs a script; `seed` decides how long everything takes.
#[must_use]
pub fn run_scenario(scenario: &Scenario, seed: u64, options: Options) -> Outcome {
    let mut setup = Setup::plain(seed);
    let mut lines = scenario.lines.iter().peekable();
    let mut failure = None;
    while let Some((number, line)) = lines.next_if(|(_, line)| line.starts_with("set ")) {
        failure = failure.or(set(&mut setup, line).err().map(|e| format!("line {number}: {e}")));
    }
    let plan = Plan { seed, luck: 0, setup, steps: Vec::new(), least_events: 0 };
    crate::observed(&plan, options, |cluster| {
        if let Some(text) = failure {
            return cluster.fail(text);
        }
        let fresh = lines.next_if(|(_, line)| line == "fresh").is_some();
        cluster.come_up(fresh);
        let mut stays = false;
        for (number, line) in lines {
            stays = line == "stays";
            if let Err(text) = cluster.play(line) {
                let states = cluster.describe();
                cluster.fail(format!("line {number}, \"{line}\": {text}; {states}"));
            }
            if cluster.failure.is_some() {
                return;
            }
        }
        if !stays {
            cluster.must_settle();
        }
    })
}

impl Setup {
    /// One small volume, protocol C, everything as it is by default; times depend on the seed.
    pub(crate) fn plain(seed: u64) -> Setup {
        let slow = Duration(20_000 << (seed % 8));
        Setup {
            volumes: vec![VolumeSetup { sectors: vec![16 * 2048; 2], external: false, log: (1, 8), slots: vec![0; 2] }],
            protocol: Protocol::C,
            on_no_data: OnNoData::IoError,
            on_io_error: OnIoError::Detach,
            fencing: Fencing::DontCare,
            fence_exit: 0,
            before_target: Vec::new(),
            before_source: Vec::new(),
            after_split_brain: crate::plan::AFTER_SPLIT_BRAIN[0],
            max_epoch_size: 2048,
            ko_count: 7,
            disk_timeout: Duration(0),
            digests: false,
            same_content: true,
            write_through: false,
            versions: vec![101; 2],
            extras: crate::extras::Extras::default(),
            drawn: crate::drawn::Drawn::plain(2),
            latency: (slow, Duration(slow.0 * 2), Duration(10_000)),
        }
    }
}

impl Setup {
    /// So many nodes, all like the first one.
    pub(crate) fn have_nodes(&mut self, nodes: usize) {
        self.versions = vec![self.versions[0]; nodes];
        self.drawn = crate::drawn::Drawn::plain(nodes);
        for volume in &mut self.volumes {
            volume.sectors = vec![volume.sectors[0]; nodes];
            volume.slots = vec![volume.slots[0]; nodes];
        }
    }
}

fn set(setup: &mut Setup, line: &str) -> Result<(), String> {
    let words: Vec<&str> = line.split_whitespace().skip(1).collect();
    match *words.as_slice() {
        // The first setting of all that are about nodes.
        ["nodes", n] => setup.have_nodes(usize::try_from(number(n)?).map_err(|e| e.to_string())?),
        ["protocol", "A"] => setup.protocol = Protocol::A,
        ["protocol", "B"] => setup.protocol = Protocol::B,
        ["on-no-data", "suspend-io"] => setup.on_no_data = OnNoData::SuspendIo,
        ["on-io-error", "pass_on"] => setup.on_io_error = OnIoError::PassOn,
        ["disk-timeout", n] => setup.disk_timeout = Duration::from_secs(number(n)?),
        ["mib", n] => setup.volumes[0].sectors.fill(number(n)? * 2048),
        ["mib", a, b] => setup.volumes[0].sectors = vec![number(a)? * 2048, number(b)? * 2048],
        // The steps are about the first one, unless `volume N` says another.
        ["volumes", n] => {
            setup.volumes = vec![setup.volumes[0].clone(); usize::try_from(number(n)?).map_err(|e| e.to_string())?]
        }
        ["after-sb-0pri", word] => setup.after_split_brain.none = policy(word)?,
        ["after-sb-1pri", word] => setup.after_split_brain.one = policy(word)?,
        ["checksums"] => setup.digests = true,
        ["after-sb-2pri", word] => setup.after_split_brain.two = policy(word)?,
        ["rr-conflict", word] => setup.drawn.rr_conflict = rr_conflict(word)?,
        ["decides", n, "as-drbd-9.3"] => setup.drawn.decides[node(n)?] = Decides::AsDrbd93,
        ["decides", n, "as-later-drbd"] => setup.drawn.decides[node(n)?] = Decides::AsLaterDrbd,
        ["two-primaries"] => setup.extras.two_primaries = true,
        ["older-protocol", n] => setup.versions[1] = u32::try_from(number(n)?).map_err(|e| e.to_string())?,
        ["dialect", n] => {
            setup.versions.fill(u32::try_from(number(n)?).map_err(|e| e.to_string())?);
            let peers = setup.nodes() as u32 - 1;
            setup.volumes.iter_mut().for_each(|volume| volume.slots.fill(peers));
        }
        ["slots", n] => {
            let slots = u32::try_from(number(n)?).map_err(|e| e.to_string())?;
            setup.volumes.iter_mut().for_each(|volume| volume.slots.fill(slots));
        }
        ["fencing"] => setup.fencing = Fencing::ResourceAndStonith,
        ["fence-exit", n] => {
            setup.fencing = Fencing::ResourceAndStonith;
            setup.fence_exit = i32::try_from(number(n)?).map_err(|e| e.to_string())?;
        }
        ["on-congestion", "pull-ahead"] => setup.drawn.on_congestion = urbd_core::OnCongestion::PullAhead,
        ["congestion-fill", n] => {
            let sectors = number(n)?;
            setup.drawn.nodes.iter_mut().for_each(|node| node.congestion_fill = sectors);
        }
        ["bandwidth", n] => setup.drawn.bandwidth = number(n)?,
        ["al-updates", "no"] => setup.drawn.nodes.iter_mut().for_each(|node| node.al_updates = false),
        ["integrity"] => setup.drawn.integrity = true,
        ["write-through"] => setup.write_through = true,
        ["unequal"] => setup.same_content = false,
        ["before-resync-target", ref ends @ ..] => setup.before_target = handler_ends(ends)?,
        ["before-resync-source", ref ends @ ..] => setup.before_source = handler_ends(ends)?,
        ["in-step"] => {
            setup.drawn.in_step = true;
            setup.latency = (Duration(10_000), WAY, Duration(1_000));
        }
        ["far", a, b, ms] => setup.drawn.far[node(a)?][node(b)?] = Duration::from_millis(number(ms)?),
        ["slow-disks"] => setup.latency.0 = Duration(setup.latency.0.0 * 20),
        _ => return Err("an unknown setting".to_owned()),
    }
    Ok(())
}

/// Exit status and seconds of each call.
fn handler_ends(words: &[&str]) -> Result<Vec<(i32, Duration)>, String> {
    let end = |pair: &[&str]| match *pair {
        [exit, seconds] => {
            let exit = i32::try_from(number(exit)?).map_err(|e| e.to_string())?;
            Ok((exit, Duration::from_secs(number(seconds)?)))
        }
        _ => Err("a status without its time".to_owned()),
    };
    words.chunks(2).map(end).collect()
}

fn rr_conflict(word: &str) -> Result<RrConflict, String> {
    Ok(match word {
        "disconnect" => RrConflict::Disconnect,
        "call-pri-lost" => RrConflict::CallPriLost,
        "violently" => RrConflict::Violently,
        "retry-connect" => RrConflict::RetryConnect,
        "auto-discard" => RrConflict::AutoDiscard,
        _ => return Err(format!("{word} is no policy")),
    })
}

fn policy(word: &str) -> Result<wire::AfterSplitBrain, String> {
    let all = wire::AfterSplitBrain::ALL.iter().copied();
    all.into_iter().find(|p| p.name() == word).ok_or_else(|| format!("{word} is no policy"))
}

fn number(word: &str) -> Result<u64, String> {
    word.parse().map_err(|_| format!("{word} is no number"))
}

fn node(word: &str) -> Result<usize, String> {
    match word {
        "A" => Ok(0),
        "B" => Ok(1),
        "C" => Ok(2),
        "D" => Ok(3),
        "E" => Ok(4),
        _ => Err(format!("{word} is no node")),
    }
}

fn stream_number(word: &str) -> Result<usize, String> {
    match word {
        "data" => Ok(0),
        "control" => Ok(1),
        _ => Err(format!("{word} is no stream")),
    }
}

impl Cluster {
    /// Both nodes run and are connected; without `fresh` both hold the same, and A's applications may open its device.
    fn come_up(&mut self, fresh: bool) {
        (0..self.nodes.len()).for_each(|n| self.start(n));
        self.run_until(self.now + STEP);
        if !fresh {
            for v in 0..self.setup.volumes.len() {
                self.command(0, Command::NewCurrentUuid { volume: volume_nr(v), clear_bitmap: true });
            }
            self.run_until(self.now + STEP);
        }
        self.notices = Some(Vec::new());
    }

    fn play(&mut self, line: &str) -> Result<(), String> {
        let (line, wait) = match line.strip_suffix('&') {
            Some(rest) => (rest.trim(), Duration(self.rng.below(2_000_000))),
            None => (line, STEP),
        };
        let words: Vec<&str> = line.split_whitespace().collect();
        match *words.as_slice() {
            ["stays"] => return Ok(()),
            ["volume", n] => {
                self.steps_about = usize::try_from(number(n)?).map_err(|e| e.to_string())?;
                return Ok(());
            }
            ["settled"] => {
                self.must_settle();
                return Ok(());
            }
            ["wait", n] => self.run_until(self.now + Duration::from_secs(number(n)?)),
            [n, "to", peer, "is", ref states @ ..] => return self.expect_towards(node(n)?, node(peer)?, states),
            [n, "is", ref states @ ..] => return self.expect_state(node(n)?, states),
            [n, "says", ..] | [n, "never", "says", ..] => return self.expect_words(node(n)?, line),
            [n, "obeys"] => return self.expect_result(node(n)?, true),
            [n, "obeys", "within", ways, "ways"] => return self.expect_within(node(n)?, number(ways)?),
            [n, "refuses"] => return self.expect_result(node(n)?, false),
            [n, "waits"] => return self.expect_waiting(node(n)?, 1..=usize::MAX),
            ["at", "most", packets, "packets"] => return self.expect_packets(number(packets)?),
            [n, "has", "nothing", "waiting"] => return self.expect_waiting(node(n)?, 0..=0),
            [n, "has", some, "waiting"] => {
                let some = usize::try_from(number(some)?).map_err(|e| e.to_string())?;
                return self.expect_waiting(node(n)?, some..=some);
            }
            [n, "has", "nothing", "marked"] => return self.expect_marked(node(n)?, 0),
            [n, "has", blocks, "marked"] => return self.expect_marked(node(n)?, number(blocks)?),
            [n, "has", blocks, "marked", "of", peer] => {
                return self.expect_marked_of(node(n)?, node(peer)?, number(blocks)?);
            }
            _ => {
                // What is said and answered from here on is about this step.
                self.notices = Some(Vec::new());
                (self.packets, self.step_began) = (0, self.now);
                self.perform(&words)?;
            }
        }
        self.run_until(self.now + wait);
        Ok(())
    }

    fn perform(&mut self, words: &[&str]) -> Result<(), String> {
        match *words {
            ["cut-link", a, b] => {
                let [a, b] = [node(a)?, node(b)?];
                self.step(Step::CutLink(a, b));
                self.step(Step::CutLink(b, a));
            }
            ["heal-link", a, b] => {
                let [a, b] = [node(a)?, node(b)?];
                self.step(Step::HealLink(a, b));
                self.step(Step::HealLink(b, a));
            }
            ["disconnect", n, peer] => {
                let peer = node_id(node(peer)?);
                self.command(node(n)?, Command::Disconnect { peer, force: false });
            }
            ["invalidate-from", n, peer] => {
                let own = Replaced::Own { source: Some(node_id(node(peer)?)) };
                self.command(node(n)?, Command::Replace(volume_nr(self.steps_about), own, Copied::All));
            }
            ["connect", n, peer] => {
                let peer = node(peer)?;
                self.command(node(n)?, plain_connect(peer));
            }
            ["al-updates", n, yes] => {
                let n = node(n)?;
                self.change_options(n, |setup| setup.drawn.nodes[n].al_updates = yes == "yes");
            }
            // The process goes on: nothing is attached, and nobody is connected, by that.
            ["remove-volume", n] => {
                let gone = (node(n)?, Absent::Volume(self.steps_about));
                self.change_options(gone.0, |setup| _ = setup.drawn.coming.absent.insert(gone));
            }
            ["add-volume", n] => {
                let new = (node(n)?, Absent::Volume(self.steps_about));
                self.change_options(new.0, |setup| _ = setup.drawn.coming.absent.remove(&new));
            }
            ["remove-peer", n, peer] => {
                let gone = (node(n)?, Absent::Peer(node(peer)?));
                self.change_options(gone.0, |setup| _ = setup.drawn.coming.absent.insert(gone));
            }
            ["add-peer", n, peer] => {
                let new = (node(n)?, Absent::Peer(node(peer)?));
                self.change_options(new.0, |setup| _ = setup.drawn.coming.absent.remove(&new));
            }
            ["damage", n] => self.setup.drawn.damage = number(n)?,
            ["cut"] => (0..self.nodes.len()).for_each(|n| self.step(Step::Cut(n))),
            ["heal"] => (0..self.nodes.len()).for_each(|n| self.heal(n)),
            ["reset"] => self.reset_links(|_| true),
            ["connect"] => (0..self.nodes.len()).for_each(|n| self.connect(n, false)),
            [verb, n] => self.act(verb, node(n)?)?,
            ["write-part", n, block] => {
                let start = number(block)? * 8;
                self.io(self.steps_about, RequestKind::Write { fua: false }, sectors(start, start + 1), node(n)?);
            }
            ["write-durable", n, block] => self.request(node(n)?, RequestKind::Write { fua: true }, number(block)?, 1),
            ["write", n, block] => self.request(node(n)?, RequestKind::Write { fua: false }, number(block)?, 1),
            ["write", n, block, count] => {
                self.request(node(n)?, RequestKind::Write { fua: false }, number(block)?, number(count)?);
            }
            ["read", n, block, count] => self.request(node(n)?, RequestKind::Read, number(block)?, number(count)?),
            ["discard", n, block, count] => {
                self.request(node(n)?, RequestKind::Discard, number(block)?, number(count)?);
            }
            ["rot", n, block, count] => {
                let (start, end) = (number(block)? * 8, (number(block)? + number(count)?) * 8);
                self.step(Step::Rot { node: node(n)?, volume: self.steps_about, range: sectors(start, end) });
            }
            ["hold", n, stream] => self.step(Step::Stall(node(n)?, stream_number(stream)?)),
            ["hold", n, stream, peer] => {
                self.step(Step::StallLink(node(n)?, node(peer)?, stream_number(stream)?));
            }
            ["release", n, stream] => self.let_flow(node(n)?, stream_number(stream)?),
            ["spread", n, from, count] => {
                let (node, from) = (node(n)?, number(from)?);
                let write = RequestKind::Write { fua: false };
                (from..from + number(count)?).for_each(|e| self.request(node, write, e * BLOCKS_OF_EXTENT, 1));
            }
            ["busy", n, count] => self.keep_busy(node(n)?, number(count)?, 8),
            ["busy", n, count, blocks] => self.keep_busy(node(n)?, number(count)?, number(blocks)?),
            ["disk", n, fault] => self.spoil(node(n)?, fault)?,
            ["kill", n, "after", effects] => self.step(die_after(node(n)?, number(effects)?, false)),
            ["power-loss", n, "after", effects] => self.step(die_after(node(n)?, number(effects)?, true)),
            _ => return Err("an unknown step".to_owned()),
        }
        Ok(())
    }

    /// A step that is about one node.
    fn act(&mut self, verb: &str, n: usize) -> Result<(), String> {
        match verb {
            "start" => self.start(n),
            "kill" => self.die(n, false),
            "power-loss" => self.die(n, true),
            "pause" => self.step(Step::Pause(n)),
            "resume" => self.step(Step::Resume(n)),
            "cut" => self.step(Step::Cut(n)),
            "open" => self.want_open(n, true),
            "close" => self.want_open(n, false),
            "create-md" => self.create_metadata(n),
            "exchange-disks" => self.exchange_disks(n),
            "flush" => self.request(n, RequestKind::Flush, 0, 1),
            "connect" => self.connect(n, false),
            "connect-discarding" => self.connect(n, true),
            _ => {
                let command = command(verb, n, self.steps_about).ok_or("an unknown step")?;
                match command {
                    Command::Primary { .. } => self.want_open(n, true),
                    Command::Secondary { .. } if verb != "demote-in-use" => {
                        self.want_open(n, false);
                        self.run_until(self.now + Duration::from_millis(10));
                    }
                    _ => {}
                }
                self.command(n, command);
            }
        }
        Ok(())
    }

    /// `adjust` of a node with another configuration.
    fn change_options(&mut self, n: usize, change: impl FnOnce(&mut Setup)) {
        change(&mut self.setup);
        let config = crate::cluster::configuration(&self.setup, n);
        self.command(n, Command::ChangeOptions(Box::new(config)));
    }

    fn connect(&mut self, n: usize, discard_my_data: bool) {
        for peer in self.peers(n) {
            self.command(n, Command::Connect { peer: node_id(peer), discard_my_data, tentative: false });
        }
    }

    fn request(&mut self, n: usize, kind: RequestKind, block: u64, blocks: u64) {
        self.io(self.steps_about, kind, sectors(block * 8, (block + blocks) * 8), n);
    }

    /// Many small requests to few blocks, one shortly after the other.
    fn keep_busy(&mut self, n: usize, count: u64, blocks: u64) {
        for _ in 0..count {
            let (block, len) = (self.rng.below(blocks), 1 + self.rng.below(3));
            let kind = match self.rng.below(8) {
                0 => RequestKind::Read,
                1 => RequestKind::Flush,
                _ => RequestKind::Write { fua: false },
            };
            self.request(n, kind, block, len.min(blocks - block));
            let wait = self.rng.below(200_000);
            self.run_until(self.now + Duration(wait));
        }
    }

    fn spoil(&mut self, n: usize, fault: &str) -> Result<(), String> {
        let mut faults = DiskFaults::default();
        match fault {
            "reads-fail" => faults.reads = true,
            "writes-fail" => faults.writes = true,
            "flushes-fail" => faults.flushes = true,
            "metadata-fails" => faults.metadata = true,
            "hangs" => faults.stalled = true,
            "writes-hang" => faults.stalled_writes = true,
            "good" => {}
            _ => return Err(format!("{fault} is no fault of a disk")),
        }
        self.nodes[n].volumes[self.steps_about].data.faults = faults;
        Ok(())
    }

    // -- expectations -------------------------------------------------------------------------------------------------

    fn expect_state(&self, n: usize, states: &[&str]) -> Result<(), String> {
        let Some(word) = self.nodes[n].volumes[self.steps_about].word else {
            return if states == ["down"] { Ok(()) } else { Err("it is down".to_owned()) };
        };
        states.iter().try_for_each(|state| match fits(&word, state) {
            true => Ok(()),
            false => Err(format!("not {state}")),
        })
    }

    fn expect_towards(&self, n: usize, peer: usize, states: &[&str]) -> Result<(), String> {
        let word = self.nodes[n].volumes[self.steps_about].towards[peer].ok_or("it is down")?;
        states.iter().try_for_each(|state| if fits(&word, state) { Ok(()) } else { Err(format!("not {state}")) })
    }

    fn expect_words(&self, n: usize, line: &str) -> Result<(), String> {
        let wanted = line.split_once(" says ").map_or("", |(_, text)| text);
        let never = line.contains(" never says ");
        let notices = self.notices.iter().flatten().filter(|(of, _)| *of == n);
        match (notices.clone().any(|(_, text)| text.contains(wanted)), never) {
            (true, false) | (false, true) => Ok(()),
            _ => Err(format!("it said {:#?}", notices.map(|(_, text)| text).collect::<Vec<_>>())),
        }
    }

    fn expect_waiting(&self, n: usize, some: RangeInclusive<usize>) -> Result<(), String> {
        let waiting = self.nodes[n].requests.len();
        if some.contains(&waiting) { Ok(()) } else { Err(format!("{waiting} requests wait")) }
    }

    /// It knows of so many blocks that a peer lacks.
    fn expect_marked(&mut self, n: usize, wanted: u64) -> Result<(), String> {
        let blocks: u64 = (0..self.setup.volumes.len()).map(|v| self.unequal_blocks(n, v)).sum();
        if blocks == wanted { Ok(()) } else { Err(format!("{blocks} blocks are marked")) }
    }

    /// So many blocks it knows to be missing on this peer.
    fn expect_marked_of(&self, n: usize, peer: usize, blocks: u64) -> Result<(), String> {
        let v = self.steps_about;
        let whole = sectors(0, self.nodes[n].volumes[v].size);
        let core = self.nodes[n].core.as_ref().ok_or("it is down")?;
        match core.known_different(volume_nr(v), node_id(peer), whole) {
            marked if marked == blocks => Ok(()),
            marked => Err(format!("{marked} blocks are marked")),
        }
    }

    fn expect_packets(&self, most: u64) -> Result<(), String> {
        if self.packets <= most { Ok(()) } else { Err(format!("{} were sent", self.packets)) }
    }

    /// With `set in-step`: it has done what it was told after so many ways of packets, of which one followed from
    /// another. Disks and turns take far less than a way in all.
    fn expect_within(&self, n: usize, most: u64) -> Result<(), String> {
        self.expect_result(n, true)?;
        let ended = self.nodes[n].last_result.as_ref().map(|(at, _)| *at).filter(|at| *at >= self.step_began);
        let ways = (ended.ok_or("it has not ended")? - self.step_began).0 / WAY.0;
        if ways <= most { Ok(()) } else { Err(format!("it took {ways} ways")) }
    }

    fn expect_result(&self, n: usize, good: bool) -> Result<(), String> {
        match &self.nodes[n].last_result {
            Some((_, result)) if result.is_ok() == good => Ok(()),
            other => Err(format!("the last command's result: {other:?}")),
        }
    }

    /// Both copies become UpToDate, equal, and quiet, without anybody's help.
    fn must_settle(&mut self) {
        let until = self.now + PATIENCE;
        while self.now < until && self.failure.is_none() {
            self.run_until(self.now + STEP);
            if self.is_settled(0) {
                self.check_settled();
                return self.check_settled_metadata();
            }
        }
        let states = self.describe();
        self.fail(format!("not settled: {states}"));
    }
}

/// The administrator's command of this name; with an exclamation mark it is forced.
fn command(verb: &str, n: usize, v: usize) -> Option<Command> {
    // Of several the first other one, unless the step names another.
    let (volume, peer) = (volume_nr(v), node_id(usize::from(n == 0)));
    let (name, force) = verb.strip_suffix('!').map_or((verb, false), |name| (name, true));
    Some(match name {
        "primary" => Command::Primary { force },
        "secondary" | "demote-in-use" => Command::Secondary { force },
        "disconnect" => Command::Disconnect { peer, force },
        "attach" => Command::Attach { volume },
        "detach" => Command::Detach { volume, force },
        "invalidate" => Command::invalidate(volume),
        "force-resync" => Command::ForceResync(volume),
        "invalidate-remote" => Command::invalidate_remote(volume, peer),
        "outdate" => Command::Outdate { volume },
        "down" => Command::Down(force),
        "pause-sync" => Command::PauseSync { volume },
        "resume-sync" => Command::ResumeSync { volume },
        "suspend-io" => Command::SuspendIo { volume },
        "resume-io" => Command::ResumeIo { volume },
        "end-freeze" => Command::EndFreeze { volume },
        "new-current-uuid" => Command::NewCurrentUuid { volume, clear_bitmap: false },
        "skip-initial-sync" => Command::NewCurrentUuid { volume, clear_bitmap: true },
        "resize" => Command::Resize { volume, flags: wire::ResizeFlags::default() },
        "connect-tentative" => Command::Connect { peer, discard_my_data: false, tentative: true },
        "verify" => Command::Verify { volume, peer: None, start: None, stop: None, repair: false },
        "verify-repair" => Command::Verify { volume, peer: None, start: None, stop: None, repair: true },
        _ => return None,
    })
}

fn die_after(node: usize, effects: u64, power: bool) -> Step {
    Step::DieAfter { node, effects: effects as u32, power }
}

/// Is this a word for the state, a disk as `own/peer`?
fn fits(word: &StateWord, state: &str) -> bool {
    let disk = |name: &str, disk: DiskState| name == "-" || disk.name() == name;
    match state.split_once('/') {
        Some((own, peer)) => disk(own, word.disk) && disk(peer, word.pdsk),
        None if Role::ALL.iter().any(|r| r.name() == state) => word.role.name() == state,
        None if ConnState::ALL.iter().any(|c| c.name() == state) => word.conn.name() == state,
        None => state == "frozen" && (word.susp || word.susp_nod || word.susp_fen),
    }
}
