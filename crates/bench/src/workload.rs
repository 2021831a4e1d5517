//! What is to be done to a device, and the closed loop that does it: so many requests in flight, always.

use crate::latency::Latencies;
use crate::pattern;
use control::StageLatency;
use serde::{Deserialize, Serialize};
use std::time::Duration;
use units::Rng;

/// In which order blocks are visited.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Pattern {
    /// One block after the other, from the start again at the end.
    Sequential,
    /// Any block, each as likely as the others.
    Random,
}

/// When it is over.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Until {
    /// After so many requests.
    Requests(u64),
    /// After so many milliseconds.
    Millis(u64),
}

/// One workload.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Workload {
    /// Order of blocks.
    pub pattern: Pattern,
    /// Bytes per request: a multiple of 512, at most 1 MiB.
    pub block: u32,
    /// Requests in flight, at least 1.
    pub depth: u32,
    /// Connections that share the requests in flight, where the target knows connections; each has its own part of the
    /// device.
    pub connections: u32,
    /// How many of 100 requests are reads.
    pub read_percent: u8,
    /// A flush after so many writes, waited for before the next; 0: never.
    pub flush_every: u32,
    /// A flush after the last write, inside the measured time.
    pub flush_at_end: bool,
    /// First byte of the device that is used; a multiple of `block`.
    pub offset: u64,
    /// Bytes of the device that are used, from `offset`; 0: all that are left.
    pub span: u64,
    /// When it ends.
    pub until: Until,
    /// Same seed, same blocks.
    pub seed: u64,
    /// Write what can be recognised, and read all of it back at the end (outside the measured time).
    pub verify: bool,
}

impl Workload {
    /// Writes of `block` bytes, `depth` in flight, for a second, on the whole device.
    #[must_use]
    pub fn writes(pattern: Pattern, block: u32, depth: u32) -> Workload {
        Workload {
            pattern,
            block,
            depth,
            connections: 1,
            read_percent: 0,
            flush_every: 0,
            flush_at_end: false,
            offset: 0,
            span: 0,
            until: Until::Millis(1000),
            seed: 1,
            verify: false,
        }
    }

    /// The same with reads.
    #[must_use]
    pub fn reads(pattern: Pattern, block: u32, depth: u32) -> Workload {
        Workload { read_percent: 100, ..Workload::writes(pattern, block, depth) }
    }

    /// The same for that long.
    #[must_use]
    pub fn lasting(self, time: Duration) -> Workload {
        Workload { until: Until::Millis(time.as_millis() as u64), ..self }
    }

    /// The same, once over `bytes` from the start of the device.
    #[must_use]
    pub fn once_over(self, bytes: u64) -> Workload {
        Workload { until: Until::Requests(bytes / u64::from(self.block)), span: bytes, ..self }
    }

    /// As people write it: `4k random write QD64`.
    #[must_use]
    pub fn title(&self) -> String {
        let pattern = match self.pattern {
            Pattern::Sequential => "sequential",
            Pattern::Random => "random",
        };
        let kind = match self.read_percent {
            0 => "write".into(),
            100 => "read".into(),
            n => format!("{n} % read"),
        };
        let flush = match self.flush_every {
            0 => String::new(),
            1 => ", flush each".into(),
            n => format!(", flush every {n}"),
        };
        let depth = match self.connections {
            0 | 1 => self.depth.to_string(),
            n => format!("{n}x{}", self.depth / n),
        };
        format!("{} {pattern} {kind} QD{depth}{flush}", short_bytes(u64::from(self.block)))
    }

    /// What is wrong with it for a device of `size` bytes.
    ///
    /// # Errors
    /// One sentence.
    pub fn check(&self, size: u64) -> Result<(), String> {
        if self.block == 0 || !self.block.is_multiple_of(512) || self.block > 1 << 20 {
            return Err(format!("blocks of {} bytes: must be a multiple of 512 of at most 1 MiB", self.block));
        }
        if self.depth == 0 || self.depth > 4096 {
            return Err(format!("queue depth {}: must be 1 to 4096", self.depth));
        }
        if self.read_percent > 100 {
            return Err(format!("{} % reads: must be 0 to 100", self.read_percent));
        }
        if !self.offset.is_multiple_of(u64::from(self.block)) {
            return Err(format!("the offset {} is not a multiple of the block size {}", self.offset, self.block));
        }
        if self.blocks(size) == 0 {
            return Err(format!("the device of {size} bytes has no room for one block of {} bytes there", self.block));
        }
        Ok(())
    }

    /// The parts of this that each connection does on a device of `size` bytes.
    #[must_use]
    pub fn split(&self, size: u64) -> Vec<Workload> {
        let n = self.connections.clamp(1, self.depth.max(1));
        let blocks = self.blocks(size) / u64::from(n);
        let span = blocks * u64::from(self.block);
        let part = |i: u32| Workload {
            depth: self.depth / n,
            connections: 1,
            offset: self.offset + u64::from(i) * span,
            span: if n == 1 { self.span } else { span },
            until: match self.until {
                Until::Requests(all) => Until::Requests(all / u64::from(n)),
                time => time,
            },
            seed: self.seed + u64::from(i),
            ..self.clone()
        };
        (0..n).map(part).collect()
    }

    fn blocks(&self, size: u64) -> u64 {
        let left = size.saturating_sub(self.offset);
        let span = if self.span == 0 { left } else { self.span.min(left) };
        span / u64::from(self.block)
    }
}

/// `4k`, `1M`, `512`.
#[must_use]
pub fn short_bytes(n: u64) -> String {
    match n {
        n if n >= 1 << 30 && n.is_multiple_of(1 << 30) => format!("{}G", n >> 30),
        n if n >= 1 << 20 && n.is_multiple_of(1 << 20) => format!("{}M", n >> 20),
        n if n >= 1 << 10 && n.is_multiple_of(1 << 10) => format!("{}k", n >> 10),
        n => n.to_string(),
    }
}

/// What a request does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Act {
    /// Fetch a block.
    Read,
    /// Store a block.
    Write,
    /// Make everything written before durable.
    Flush,
}

/// One request of the loop. `tag` names it until it is done: below [`Workload::depth`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Request {
    /// Its place in the loop.
    pub tag: u32,
    /// What to do.
    pub act: Act,
    /// First byte; 0 for a flush.
    pub offset: u64,
    /// Bytes; 0 for a flush.
    pub len: u32,
}

/// What came out.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct Outcome {
    /// Reads and writes that ended well.
    pub requests: u64,
    /// Their bytes.
    pub bytes: u64,
    /// From the first request to the last answer, in seconds.
    pub seconds: f64,
    /// Requests that failed, blocks that were not what was written.
    pub errors: u64,
    /// The first of these, in words.
    pub first_error: Option<String>,
    /// Blocks that were read back and were right.
    pub verified: u64,
    /// How long requests took.
    pub latencies: Latencies,
    /// CPU seconds of processes, by role.
    pub cpu: Vec<(String, f64)>,
    /// Where requests' time went on urbd's nodes.
    #[serde(default)]
    pub stages: Vec<StageTime>,
    /// What else was counted meanwhile, by name.
    #[serde(default)]
    pub counts: Vec<(String, f64)>,
}

/// The time that requests spent in one stage of their way, on one node.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct StageTime {
    /// The node's role.
    pub role: String,
    /// The stage, and how long.
    pub latency: StageLatency,
}

impl Outcome {
    /// Requests per second.
    #[must_use]
    pub fn iops(&self) -> f64 {
        self.requests as f64 / self.seconds.max(1e-9)
    }

    /// MiB per second.
    #[must_use]
    pub fn mib_per_second(&self) -> f64 {
        self.bytes as f64 / f64::from(1 << 20) / self.seconds.max(1e-9)
    }

    /// Takes in what another connection did at the same time.
    pub fn add(&mut self, other: Outcome) {
        self.requests += other.requests;
        self.bytes += other.bytes;
        self.seconds = self.seconds.max(other.seconds);
        self.errors += other.errors;
        self.verified += other.verified;
        self.first_error = self.first_error.take().or(other.first_error);
        self.latencies.add(&other.latencies);
        self.cpu.extend(other.cpu);
        self.stages.extend(other.stages);
        self.counts.extend(other.counts);
    }

    /// CPU microseconds per request of the process with that role.
    #[must_use]
    pub fn cpu_per_request(&self, role: &str) -> Option<f64> {
        let (_, seconds) = self.cpu.iter().find(|(r, _)| r == role)?;
        Some(seconds * 1e6 / self.requests.max(1) as f64)
    }
}

/// A slot of the loop.
#[derive(Clone, Copy, Default)]
struct Slot {
    since: u64,
    block: u64,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Phase {
    Running,
    /// The last requests are in flight, then comes a flush if one is wanted.
    Draining,
    Verify,
    Over,
}

/// The closed loop. Whoever drives it asks for [`Load::next`] until there is none, and reports each [`Load::done`].
/// Times are nanoseconds of any clock.
pub struct Load {
    workload: Workload,
    blocks: u64,
    rng: Rng,
    cursor: u64,
    free: Vec<u32>,
    slots: Vec<Slot>,
    in_flight: u32,
    made: u64,
    since_flush: u32,
    flushing: bool,
    /// The flush at the end is still to be made.
    end_flush: bool,
    started: u64,
    phase: Phase,
    /// How often each block was written, if that is to be verified; and which are in flight.
    versions: Vec<u32>,
    busy: Vec<bool>,
    outcome: Outcome,
}

impl Load {
    /// The loop on a device of `size` bytes.
    ///
    /// # Errors
    /// As [`Workload::check`].
    pub fn new(workload: Workload, size: u64) -> Result<Load, String> {
        workload.check(size)?;
        let blocks = workload.blocks(size);
        let kept = if workload.verify { blocks as usize } else { 0 };
        Ok(Load {
            blocks,
            rng: Rng::new(workload.seed),
            cursor: 0,
            free: (0..workload.depth).rev().collect(),
            slots: vec![Slot::default(); workload.depth as usize],
            in_flight: 0,
            made: 0,
            since_flush: 0,
            flushing: false,
            end_flush: workload.flush_at_end,
            started: 0,
            phase: Phase::Running,
            versions: vec![0; kept],
            busy: vec![false; kept],
            outcome: Outcome::default(),
            workload,
        })
    }

    /// The next request to make now, if any. To be asked after each [`Load::done`], until there is none.
    pub fn next(&mut self, now: u64) -> Option<Request> {
        if self.started == 0 {
            self.started = now.max(1);
        }
        if self.phase == Phase::Running && self.is_time_up(now) {
            self.phase = Phase::Draining;
        }
        if self.phase == Phase::Draining && self.in_flight == 0 {
            if std::mem::take(&mut self.end_flush) {
                return self.flush(now);
            }
            self.outcome.seconds = now.saturating_sub(self.started) as f64 / 1e9;
            self.cursor = 0;
            self.phase = if self.workload.verify { Phase::Verify } else { Phase::Over };
        }
        match self.phase {
            Phase::Running => self.next_running(now),
            Phase::Draining | Phase::Over => None,
            Phase::Verify => self.next_verify(now),
        }
    }

    fn is_time_up(&self, now: u64) -> bool {
        match self.workload.until {
            Until::Requests(n) => self.made >= n,
            Until::Millis(ms) => now.saturating_sub(self.started) >= ms * 1_000_000,
        }
    }

    fn next_running(&mut self, now: u64) -> Option<Request> {
        if self.flushing {
            return None;
        }
        if self.workload.flush_every > 0 && self.since_flush >= self.workload.flush_every {
            return self.flush(now);
        }
        let block = self.choose_block()?;
        let tag = self.free.pop()?;
        let reads = self.workload.read_percent;
        let read = reads == 100 || reads > 0 && self.rng.below(100) < u64::from(reads);
        self.made += 1;
        if !read {
            self.since_flush += 1;
            if let Some(version) = self.versions.get_mut(block as usize) {
                *version += 1;
            }
        }
        Some(self.start(now, tag, if read { Act::Read } else { Act::Write }, block))
    }

    /// A flush stands alone: everything before it has ended, nothing is made before it has.
    fn flush(&mut self, now: u64) -> Option<Request> {
        if self.in_flight > 0 {
            return None;
        }
        let tag = self.free.pop()?;
        self.flushing = true;
        self.since_flush = 0;
        self.in_flight += 1;
        self.slots[tag as usize] = Slot { since: now, block: 0 };
        Some(Request { tag, act: Act::Flush, offset: 0, len: 0 })
    }

    /// While verifying, a block that is in flight is not taken a second time: which write came last would be unknown.
    fn choose_block(&mut self) -> Option<u64> {
        if self.free.is_empty() {
            return None;
        }
        let tries = if self.workload.verify { 16 } else { 1 };
        (0..tries).find_map(|_| {
            let block = match self.workload.pattern {
                Pattern::Sequential => {
                    let block = self.cursor;
                    self.cursor = (self.cursor + 1) % self.blocks;
                    block
                }
                Pattern::Random => self.rng.below(self.blocks),
            };
            let busy = self.busy.get(block as usize).copied().unwrap_or(false);
            (!busy).then_some(block)
        })
    }

    fn start(&mut self, now: u64, tag: u32, act: Act, block: u64) -> Request {
        if let Some(busy) = self.busy.get_mut(block as usize) {
            *busy = true;
        }
        self.in_flight += 1;
        self.slots[tag as usize] = Slot { since: now, block };
        let len = self.workload.block;
        Request { tag, act, offset: self.workload.offset + block * u64::from(len), len }
    }

    fn next_verify(&mut self, now: u64) -> Option<Request> {
        if self.free.is_empty() {
            return None;
        }
        let left = self.versions[self.cursor as usize..].iter().position(|v| *v > 0);
        let Some(skip) = left else {
            if self.in_flight == 0 {
                self.phase = Phase::Over;
            }
            return None;
        };
        let block = self.cursor + skip as u64;
        self.cursor = block + 1;
        let tag = self.free.pop()?;
        Some(self.start(now, tag, Act::Read, block))
    }

    /// Fills in the payload of a write that [`Load::next`] has just given.
    pub fn fill(&self, request: &Request, payload: &mut [u8]) {
        let block = self.slots[request.tag as usize].block;
        match self.versions.get(block as usize) {
            Some(version) => pattern::fill(payload, self.workload.seed, request.offset, *version),
            // Enough to tell blocks apart; the rest is what the memory held before.
            None => pattern::stamp(payload, request.offset, self.made),
        }
    }

    /// A request ended; a read that ended well brought `data`.
    pub fn done(&mut self, now: u64, tag: u32, result: Result<(), String>, data: &[u8]) {
        let Some(slot) = self.slots.get(tag as usize).copied() else { return };
        self.free.push(tag);
        self.in_flight -= 1;
        if let Some(busy) = self.busy.get_mut(slot.block as usize) {
            *busy = false;
        }
        let was_flush = std::mem::take(&mut self.flushing);
        match (result, self.phase) {
            (Err(what), _) => self.error(what),
            (Ok(()), Phase::Verify) => self.check_block(slot.block, data),
            (Ok(()), _) if was_flush => {}
            (Ok(()), _) => {
                self.outcome.requests += 1;
                self.outcome.bytes += u64::from(self.workload.block);
                self.outcome.latencies.record(now.saturating_sub(slot.since));
            }
        }
    }

    fn check_block(&mut self, block: u64, data: &[u8]) {
        let offset = self.workload.offset + block * u64::from(self.workload.block);
        let version = self.versions[block as usize];
        match pattern::check(data, self.workload.seed, offset, version) {
            Ok(()) => self.outcome.verified += 1,
            Err(at) => self.error(format!("byte {} is not what was written last", offset + at as u64)),
        }
    }

    fn error(&mut self, what: String) {
        self.outcome.errors += 1;
        self.outcome.first_error.get_or_insert(what);
    }

    /// Is everything done?
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.phase == Phase::Over && self.in_flight == 0
    }

    /// Is the measured part over? Verifying may still go on.
    #[must_use]
    pub fn is_measured(&self) -> bool {
        matches!(self.phase, Phase::Verify | Phase::Over)
    }

    /// Number of requests in flight.
    #[must_use]
    pub fn in_flight(&self) -> u32 {
        self.in_flight
    }

    /// Most requests in flight: tags are below this.
    #[must_use]
    pub fn depth(&self) -> u32 {
        self.workload.depth
    }

    /// Bytes of one request.
    #[must_use]
    pub fn block(&self) -> u32 {
        self.workload.block
    }

    /// What came out.
    #[must_use]
    pub fn into_outcome(self) -> Outcome {
        self.outcome
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZE: u64 = 64 * 4096;

    /// A device in memory that answers the oldest request first; each answer takes a microsecond.
    struct Device {
        bytes: Vec<u8>,
        queue: std::collections::VecDeque<(Request, Vec<u8>)>,
        most: usize,
        acts: Vec<(Act, u64)>,
        now: u64,
    }

    impl Device {
        fn run(workload: Workload, damage: Option<usize>) -> (Outcome, Device) {
            let mut load = Load::new(workload, SIZE).unwrap();
            let (bytes, queue) = (vec![0; SIZE as usize], Default::default());
            let mut device = Device { bytes, queue, most: 0, acts: Vec::new(), now: 1 };
            loop {
                while let Some(request) = load.next(device.now) {
                    let mut data = vec![0; request.len as usize];
                    if request.act == Act::Write {
                        load.fill(&request, &mut data);
                    }
                    device.acts.push((request.act, request.offset));
                    device.queue.push_back((request, data));
                }
                device.most = device.most.max(device.queue.len());
                if load.is_over() {
                    return (load.into_outcome(), device);
                }
                let (request, mut data) =
                    device.queue.pop_front().expect("a loop that is not over waits for something");
                device.now += 1000;
                let place = request.offset as usize..request.offset as usize + data.len();
                match request.act {
                    Act::Write => device.bytes[place].copy_from_slice(&data),
                    _ => data.copy_from_slice(&device.bytes[place]),
                }
                if let Some(at) = damage.filter(|_| load.is_measured()) {
                    data[at] ^= 1;
                }
                load.done(device.now, request.tag, Ok(()), &data);
            }
        }
    }

    #[test]
    fn it_keeps_its_depth_and_counts() {
        let workload = Workload { until: Until::Requests(100), ..Workload::writes(Pattern::Random, 4096, 8) };
        let (outcome, device) = Device::run(workload, None);
        assert_eq!((outcome.requests, outcome.bytes, outcome.errors, device.most), (100, 409_600, 0, 8));
        assert!((outcome.seconds - 100e-6).abs() < 1e-9, "{}", outcome.seconds);
        assert_eq!(outcome.latencies.count(), 100);
        assert!(
            (outcome.latencies.percentile(50.0) - 8.0).abs() < 0.1,
            "eight in flight, one answered each microsecond"
        );
        assert!(device.acts.iter().any(|(_, offset)| *offset > SIZE / 2));
    }

    #[test]
    fn sequential_starts_again_at_the_end_of_its_span() {
        let base = Workload::reads(Pattern::Sequential, 8192, 2);
        let workload = Workload { until: Until::Requests(5), offset: 8192, span: 3 * 8192, ..base };
        let (_, device) = Device::run(workload, None);
        let offsets: Vec<u64> = device.acts.iter().map(|(_, offset)| offset / 8192).collect();
        assert_eq!(offsets, [1, 2, 3, 1, 2]);
    }

    #[test]
    fn a_flush_stands_alone() {
        let base = Workload::writes(Pattern::Sequential, 4096, 4);
        let workload = Workload { until: Until::Requests(6), flush_every: 3, flush_at_end: true, ..base };
        let (outcome, device) = Device::run(workload, None);
        let acts: String = device.acts.iter().map(|(act, _)| if *act == Act::Flush { 'F' } else { 'w' }).collect();
        assert_eq!(acts, "wwwFwwwF");
        assert_eq!(outcome.requests, 6);
    }

    #[test]
    fn what_was_written_is_read_back() {
        for pattern in [Pattern::Sequential, Pattern::Random] {
            let base = Workload::writes(pattern, 4096, 8);
            let workload = Workload { until: Until::Requests(500), verify: true, read_percent: 30, ..base };
            let (outcome, _) = Device::run(workload.clone(), None);
            assert_eq!((outcome.errors, outcome.verified), (0, 64), "{pattern:?}");
            let (damaged, _) = Device::run(workload, Some(4095));
            assert_eq!((damaged.errors, damaged.verified), (64, 0));
            assert!(damaged.first_error.unwrap().contains("byte 4095 is not what was written last"));
        }
    }

    #[test]
    fn nonsense_is_refused() {
        let good = Workload::writes(Pattern::Random, 4096, 1);
        assert_eq!(good.check(SIZE), Ok(()));
        let bad = [
            Workload { block: 0, ..good.clone() },
            Workload { block: 1000, ..good.clone() },
            Workload { block: 2 << 20, ..good.clone() },
            Workload { depth: 0, ..good.clone() },
            Workload { depth: 5000, ..good.clone() },
            Workload { read_percent: 101, ..good.clone() },
            Workload { offset: 512, ..good.clone() },
            Workload { offset: SIZE, ..good.clone() },
        ];
        bad.iter().for_each(|w| assert!(w.check(SIZE).is_err(), "{w:?}"));
        assert!(Load::new(good, 100).is_err());
    }

    #[test]
    fn titles_are_short() {
        let workload = Workload { flush_every: 1, ..Workload::writes(Pattern::Random, 4096, 64) };
        assert_eq!(workload.title(), "4k random write QD64, flush each");
        assert_eq!(Workload::reads(Pattern::Sequential, 1 << 20, 8).title(), "1M sequential read QD8");
        assert_eq!([512, 1 << 10, 3 << 20, 1 << 30].map(short_bytes), ["512", "1k", "3M", "1G"]);
    }
}
