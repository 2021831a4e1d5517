//! A disk and a link in virtual time, driven by a controller: what the regression tests of the controllers run on.
//!
//! The plant is one bottleneck that serves resync requests and applications' requests in order of arrival, at a
//! bandwidth that may change, with noise, between two fixed delays.

use super::{BLOCK, Controller, MAX_REQUEST, Serving, SourceBrake, Work};
use crate::config::{ResyncConfig, ResyncController};
use std::collections::VecDeque;
use units::{Duration, Instant, Rng};

const MS: u64 = 1_000_000;
const SECOND: u64 = 1000 * MS;

/// An application's load.
#[derive(Clone, Copy)]
enum Load {
    /// So many requests per second of so many bytes, whatever becomes of them.
    Rate(u64, u64),
    /// So many requests of so many bytes always under way: whatever the bottleneck gives.
    Depth(usize, u64),
}

struct Plant {
    /// Bytes per second from that time (ns) on; ascending.
    bandwidth: Vec<(u64, u64)>,
    /// There and back, without service, in ns, from that time on.
    delay: Vec<(u64, u64)>,
    /// Relative spread of service times.
    noise: f64,
    /// From that time on.
    load: Vec<(u64, Option<Load>)>,
    cap: u64,
    left: u64,
    rng: Rng,
}

#[derive(Default)]
struct Trace {
    /// Bytes done per 100 ms.
    done: Vec<u64>,
    /// Longest wait in the bottleneck's queue per 100 ms, in ns.
    queue: Vec<u64>,
    /// Applications' latencies: when, ns.
    latencies: Vec<(u64, u64)>,
    finished: Option<u64>,
}

fn at<T: Copy>(steps: &[(u64, T)], t: u64) -> Option<T> {
    steps.iter().rev().find(|(from, _)| *from <= t).map(|(_, v)| *v)
}

impl Plant {
    fn new(bandwidth: u64, delay: u64) -> Plant {
        Plant {
            bandwidth: vec![(0, bandwidth)],
            delay: vec![(0, delay)],
            noise: 0.1,
            load: Vec::new(),
            cap: 64 << 20,
            left: 1 << 50,
            rng: Rng::new(7),
        }
    }

    fn service(&mut self, t: u64, bytes: u64) -> u64 {
        let rate = at(&self.bandwidth, t).expect("a bandwidth from the start");
        let spread = 1.0 + self.noise * (self.rng.next_u64() as f64 / u64::MAX as f64 * 2.0 - 1.0);
        // Every request costs something, however small.
        5_000 + (bytes as f64 * 1e9 / rate as f64 * spread) as u64
    }

    fn run(&mut self, controller: &mut Controller, until: u64) -> Trace {
        let slots = (until / (100 * MS)) as usize + 1;
        let mut trace = Trace { done: vec![0; slots], queue: vec![0; slots], ..Trace::default() };
        // (answered at, bytes, sent)
        let mut flying: VecDeque<(u64, u64, u64)> = VecDeque::new();
        let mut applications: VecDeque<(u64, u64, u64)> = VecDeque::new();
        // (arrives at the bottleneck at, bytes, sent)
        let mut travelling: VecDeque<(u64, u64, u64)> = VecDeque::new();
        let (mut now, mut free, mut in_flight, mut next_application) = (0, 0, 0, 0);
        while now < until && trace.finished.is_none() {
            while let Some(&(end, bytes, started)) = applications.front().filter(|a| a.0 <= now) {
                applications.pop_front();
                controller.application(Instant(end), Duration(end - started), bytes);
                trace.latencies.push((end, end - started));
            }
            while let Some(&(end, bytes, sent)) = flying.front().filter(|f| f.0 <= now) {
                flying.pop_front();
                in_flight -= bytes;
                self.left -= bytes;
                trace.done[(end / (100 * MS)) as usize] += bytes;
                controller.answered(bytes);
                controller.completed(Instant(end), Instant(sent));
            }
            if self.left == 0 {
                trace.finished = Some(now);
            }
            loop {
                let allowed = controller
                    .allowance(Instant(now), Work { in_flight, left: self.left, busy: !applications.is_empty() });
                let bytes = (allowed.min(MAX_REQUEST) / BLOCK * BLOCK).min(self.left - in_flight.min(self.left));
                if bytes == 0 {
                    break;
                }
                controller.asked(bytes);
                let delay = at(&self.delay, now).expect("a delay from the start");
                travelling.push_back((now + delay / 2, bytes, now));
                in_flight += bytes;
            }
            while let Some(&(arrives, bytes, sent)) = travelling.front().filter(|t| t.0 <= now) {
                travelling.pop_front();
                let start = arrives.max(free);
                let slot = (now / (100 * MS)) as usize;
                trace.queue[slot] = trace.queue[slot].max(start - arrives);
                free = start + self.service(start, bytes);
                let delay = at(&self.delay, now).expect("a delay from the start");
                flying.push_back((free + delay / 2, bytes, sent));
            }
            let (due, bytes) = match at(&self.load, now).flatten() {
                Some(Load::Rate(rate, bytes)) if now >= next_application => {
                    // Poisson-like arrivals.
                    let u = (self.rng.next_u64() >> 11) as f64 / (1u64 << 53) as f64;
                    next_application = now + (-(1.0 - u).ln() * SECOND as f64 / rate as f64) as u64 + 1;
                    (1, bytes)
                }
                Some(Load::Depth(depth, bytes)) => (depth - applications.len(), bytes),
                _ => (0, 0),
            };
            for _ in 0..due {
                let start = now.max(free);
                free = start + self.service(start, bytes);
                applications.push_back((free, bytes, now));
            }
            let mut next = now + 5 * MS;
            let arrival = travelling.front().map(|t| t.0);
            for t in [
                arrival,
                flying.front().map(|f| f.0),
                applications.front().map(|a| a.0),
                controller.wake().map(|w| w.0),
            ] {
                next = next.min(t.filter(|t| *t > now).unwrap_or(next));
            }
            if matches!(at(&self.load, now), Some(Some(Load::Rate(..)))) {
                next = next.min(next_application.max(now + 1));
            }
            now = next;
        }
        trace
    }
}

impl Trace {
    /// Bytes per second between two times in ms.
    fn rate(&self, from: usize, to: usize) -> f64 {
        self.done[from / 100..to / 100].iter().sum::<u64>() as f64 * 1000.0 / (to - from) as f64
    }

    /// Longest wait in the queue between two times in ms, in ms.
    fn queue(&self, from: usize, to: usize) -> f64 {
        *self.queue[from / 100..to / 100].iter().max().expect("not empty") as f64 / MS as f64
    }

    /// A percentile of applications' latencies between two times in ms, in microseconds.
    fn latency(&self, percent: usize, from: u64, to: u64) -> f64 {
        let mut all: Vec<u64> =
            self.latencies.iter().filter(|l| (from * MS..to * MS).contains(&l.0)).map(|l| l.1).collect();
        all.sort_unstable();
        all[(all.len() * percent / 100).min(all.len() - 1)] as f64 / 1000.0
    }

    /// Standard deviation over mean of the 100 ms throughputs.
    fn unrest(&self, from: usize, to: usize) -> f64 {
        let slots = &self.done[from / 100..to / 100];
        let mean = slots.iter().sum::<u64>() as f64 / slots.len() as f64;
        let variance = slots.iter().map(|s| (*s as f64 - mean).powi(2)).sum::<f64>() / slots.len() as f64;
        variance.sqrt() / mean
    }
}

fn cfg(controller: ResyncController) -> ResyncConfig {
    ResyncConfig { controller, ..ResyncConfig::default() }
}

fn run(plant: &mut Plant, cfg: &ResyncConfig, seconds: u64) -> Trace {
    let mut c = Controller::new(cfg, plant.cap, Instant(0));
    plant.run(&mut c, seconds * SECOND)
}

#[test]
fn fixed_is_exact() {
    for mib in [1, 10, 40, 400] {
        let cfg = ResyncConfig { plan_ahead: 0, rate: mib * 1024, ..ResyncConfig::default() };
        let trace = run(&mut Plant::new(1 << 30, 200_000), &cfg, 10);
        let wanted = f64::from(mib) * 1048576.0;
        let error = trace.rate(1000, 10_000) / wanted - 1.0;
        assert!(error.abs() < 0.01, "{mib} MiB/s is off by {:.2} %", error * 100.0);
    }
}

#[test]
fn fixed_rate_follows_its_option() {
    let slow = ResyncConfig { plan_ahead: 0, rate: 1024, ..ResyncConfig::default() };
    let mut c = Controller::new(&slow, 8 << 20, Instant(0));
    let mut plant = Plant::new(1 << 30, 200_000);
    plant.run(&mut c, SECOND);
    c.configure(&ResyncConfig { rate: 100 * 1024, ..slow }, 8 << 20, Instant(SECOND));
    let mut bytes = 0;
    for ms in 1000..2000 {
        let n = c.allowance(Instant(ms * MS), Work { in_flight: 0, left: 1 << 40, busy: false });
        c.asked(n);
        bytes += n;
    }
    assert!((bytes as f64 / (100 << 20) as f64 - 1.0).abs() < 0.03, "{bytes}");
}

#[test]
fn adaptive_uses_the_whole_bottleneck() {
    // (bytes per second, round trip in ns): a slow link, 1 Gbit/s over a distance, an SSD, NVMe.
    for (bandwidth, delay) in [(4 << 20, 40 * MS), (110 << 20, 20 * MS), (500 << 20, 200_000), (3000 << 20, 100_000)] {
        let trace = run(&mut Plant::new(bandwidth, delay), &cfg(ResyncController::Adaptive), 25);
        let got = trace.rate(1000, 25_000) / bandwidth as f64;
        assert!(got > 0.93, "{bandwidth} B/s, {delay} ns: only {got:.2} of it");
        // The largest request alone takes `one`; two of them are always allowed to wait.
        let one = MAX_REQUEST as f64 * 1000.0 / bandwidth as f64;
        let bound = 60f64.min(4.0 + 1.5 * delay as f64 / MS as f64).max(4.0) * 2.5 + 4.0 * one;
        assert!(trace.queue(1000, 25_000) < bound, "{bandwidth}: queue {:.1} ms", trace.queue(1000, 25_000));
        // At 4 MiB/s a slot of 100 ms is less than one request.
        let tolerated = if one > 50.0 { 1.3 } else { 0.15 };
        assert!(trace.unrest(1000, 9_000) < tolerated, "{bandwidth}: unrest {:.2}", trace.unrest(1000, 9_000));
    }
}

#[test]
fn adaptive_settles_within_a_second_of_a_bandwidth_step() {
    for (before, after) in [(400u64 << 20, 100u64 << 20), (100 << 20, 400 << 20)] {
        let mut plant = Plant::new(before, MS);
        plant.bandwidth.push((5 * SECOND, after));
        let trace = run(&mut plant, &cfg(ResyncController::Adaptive), 9);
        assert!(trace.rate(6000, 9000) > 0.9 * after as f64, "{} of {after}", trace.rate(6000, 9000));
        assert!(trace.queue(5000, 9000) < 80.0, "overshoot {:.1} ms", trace.queue(5000, 9000));
        assert!(trace.queue(6000, 9000) < 40.0, "settled {:.1} ms", trace.queue(6000, 9000));
        assert!(trace.unrest(6000, 9000) < 0.15, "unrest {:.2}", trace.unrest(6000, 9000));
    }
}

#[test]
fn adaptive_finds_a_longer_way() {
    // The link is rerouted: what was a round trip in the queue is now the way itself, and no queue to be avoided.
    let mut plant = Plant::new(500 << 20, 200_000);
    plant.bandwidth.push((5 * SECOND, 100 << 20));
    plant.delay.push((5 * SECOND, 30 * MS));
    let trace = run(&mut plant, &cfg(ResyncController::Adaptive), 20);
    let got = trace.rate(8000, 20_000) / (100 << 20) as f64;
    assert!(got > 0.85, "only {got:.2} of the new link");
    assert!(trace.queue(8000, 20_000) < 120.0, "queue {:.1} ms", trace.queue(8000, 20_000));
}

/// Applications' p99 without a resync, and a run beside one, for a load that begins at 5 s.
fn beside_load(cfg: &ResyncConfig, bandwidth: u64, load: Load) -> (f64, Trace) {
    let loaded = |from| {
        let mut plant = Plant::new(bandwidth, 200_000);
        plant.load.push((from, Some(load)));
        plant
    };
    let mut idle = Controller::new(&ResyncConfig { plan_ahead: 0, rate: 1, ..cfg.clone() }, 8 << 20, Instant(0));
    let without = loaded(0).run(&mut idle, 10 * SECOND).latency(99, 1000, 10_000);
    (without, run(&mut loaded(5 * SECOND), cfg, 20))
}

/// From the first moment on: what lies before the first requests is less than a hundredth of a second's.
#[test]
fn adaptive_steps_aside_for_applications_and_still_goes_on() {
    // A load that a disk bears easily, where 40 us on top are felt and tolerated; and two that use up whatever the
    // processor or the memory gives. (MiB/s, load, tolerated us, the resync's least MiB/s)
    let cases = [
        (500, Load::Rate(8000, 4096), 40.0, 60.0),
        (2000, Load::Depth(16, 4096), 0.0, 90.0),
        (2000, Load::Depth(2, 1 << 20), 0.0, 150.0),
    ];
    for (mib, load, tolerated, least) in cases {
        let (without, trace) = beside_load(&cfg(ResyncController::Adaptive), mib << 20, load);
        let (first, with) = (trace.latency(99, 5000, 6000), trace.latency(99, 5000, 20_000));
        let got = trace.rate(7000, 20_000) / 1048576.0;
        println!("p99 {without:.0} us, {first:.0} in the first second, {with:.0}; the resync got {got:.0} MiB/s");
        assert!(with < 1.5 * without + tolerated, "p99 {with:.0} us instead of {without:.0}");
        assert!(first < 1.5 * without + tolerated, "p99 {first:.0} us instead of {without:.0} in the first second");
        assert!(got > least, "the resync got only {got:.1} MiB/s");
    }
}

#[test]
fn adaptive_takes_everything_again_when_applications_stop() {
    let mut plant = Plant::new(500 << 20, 200_000);
    plant.load.push((2 * SECOND, Some(Load::Rate(8000, 4096))));
    plant.load.push((6 * SECOND, None));
    let trace = run(&mut plant, &cfg(ResyncController::Adaptive), 10);
    assert!(trace.rate(8000, 10_000) > 0.9 * (500 << 20) as f64, "{}", trace.rate(8000, 10_000));
}

#[test]
fn adaptive_keeps_its_deadline_whatever_applications_feel() {
    let mut plant = Plant::new(500 << 20, 200_000);
    plant.load.push((0, Some(Load::Rate(8000, 4096))));
    plant.left = 3 << 30;
    let goal = ResyncConfig { finish_within: Some(Duration::from_secs(10)), ..cfg(ResyncController::Adaptive) };
    let trace = run(&mut plant, &goal, 15);
    let seconds = trace.finished.expect("finishes") as f64 / SECOND as f64;
    assert!(seconds < 11.0, "took {seconds:.1} s");
}

#[test]
fn adaptive_honours_a_ceiling() {
    let cfg = ResyncConfig { max_rate: 50 * 1024, ..cfg(ResyncController::Adaptive) };
    let trace = run(&mut Plant::new(500 << 20, 200_000), &cfg, 6);
    let error = trace.rate(1000, 6000) / (50 << 20) as f64 - 1.0;
    assert!(error.abs() < 0.05, "off by {:.1} %", error * 100.0);
}

#[test]
fn the_planner_is_the_references() {
    // Spec 8.5, first and third row: defaults on a LAN, and over a distance with a delay target.
    let lan = run(&mut Plant::new(2000 << 20, 200_000), &cfg(ResyncController::Drbd), 10);
    let mib = lan.rate(1000, 10_000) / 1048576.0;
    assert!((80.0..210.0).contains(&mib), "{mib:.0} MiB/s");
    let wan = ResyncConfig { fill_target: 0, delay_target: 10, ..cfg(ResyncController::Drbd) };
    let wan = run(&mut Plant::new(110 << 20, 20 * MS), &wan, 20);
    let mib = wan.rate(10_000, 20_000) / 1048576.0;
    assert!((60.0..111.0).contains(&mib), "{mib:.0} MiB/s");
}

#[test]
fn the_planner_brakes_to_the_least_rate_beside_applications() {
    let (_, trace) = beside_load(&cfg(ResyncController::Drbd), 500 << 20, Load::Rate(1000, 4096));
    let kib = trace.rate(12_000, 20_000) / 1024.0;
    assert!(kib < 20_000.0, "{kib:.0} KiB/s beside an application");
    assert!(kib > 0.0, "stands still");
}

/// How a controller takes a step that happens at 5 s.
#[derive(Debug)]
struct Response {
    /// Milliseconds until the throughput stays near what it is in the end.
    settled: usize,
    /// Standard deviation over mean of the throughput afterwards.
    unrest: f64,
    /// Longest wait in the queue after the step, before and after it has settled, in ms.
    queue: (f64, f64),
    /// MiB/s in the end.
    rate: f64,
}

impl Trace {
    /// The response to a step at 5 s of a trace that ends at 15 s.
    fn response(&self) -> Response {
        let last = self.rate(10_000, 15_000);
        // Over 500 ms: beside applications `adaptive` holds still for 100 ms from time to time, to measure.
        let near = |ms: usize| (self.rate(ms, ms + 500) / last - 1.0).abs() < 0.35;
        let restless = (50..145).map(|slot| slot * 100).rfind(|ms| !near(*ms));
        let settled = restless.map_or(0, |ms| ms + 100 - 5000);
        let calm = 5000 + settled.next_multiple_of(100).max(1000);
        let queue = (self.queue(5000, calm), self.queue(calm.min(14_000), 15_000));
        Response { settled, unrest: self.unrest(6000, 15_000), queue, rate: last / 1048576.0 }
    }
}

/// LINBIT's tuning for fast disks and links.
fn tuned() -> ResyncConfig {
    let cfg = ResyncConfig {
        rate: 3123 << 10,
        plan_ahead: 20,
        delay_target: 10,
        fill_target: 2048,
        ..cfg(ResyncController::Drbd)
    };
    ResyncConfig { max_rate: 3123 << 10, min_rate: 0, ..cfg }
}

/// No oscillation, settled within a second, bounded queues: the figures in
/// `docs/resync.md`. DRBD's planner runs without its brake here: that one alternates between all and nothing by its
/// nature (spec 8.6).
#[test]
fn every_controller_settles_after_a_step() {
    let fixed = ResyncConfig { plan_ahead: 0, rate: 40 << 10, ..ResyncConfig::default() };
    let planner = ResyncConfig { min_rate: 0, ..cfg(ResyncController::Drbd) };
    // Unrest, and the longest queue in ms in the first second and then. The planner sends a round at once: its fill
    // target, or what `c-max-rate` lets through in a tick.
    let controllers = [
        ("fixed", fixed, 0.05, 1.0, 1.0),
        ("drbd", planner, 0.10, 60.0, 60.0),
        ("drbd, tuned", tuned(), 0.05, 260.0, 180.0),
        ("adaptive", cfg(ResyncController::Adaptive), 0.05, 15.0, 8.0),
    ];
    for (name, cfg, unrest, overshoot, queue) in &controllers {
        for step in ["load begins", "load ends", "slower", "faster"] {
            let mut plant = Plant::new(500 << 20, 200_000);
            let load = Some(Load::Rate(8000, 4096));
            match step {
                "load begins" => plant.load = vec![(5 * SECOND, load)],
                "load ends" => plant.load = vec![(0, load), (5 * SECOND, None)],
                "slower" => plant.bandwidth.push((5 * SECOND, 200 << 20)),
                _ => plant.bandwidth = vec![(0, 200 << 20), (5 * SECOND, 500 << 20)],
            }
            let r = run(&mut plant, cfg, 16).response();
            println!(
                "| {name} | {step} | {:.0} | {} ms | {:.2} | {:.0} ms | {:.0} ms |",
                r.rate, r.settled, r.unrest, r.queue.0, r.queue.1
            );
            // Beside applications the pauses in which `adaptive` measures count as unrest.
            let measuring = *name == "adaptive" && step == "load begins";
            assert!(r.settled <= 1000, "{name}, {step}: {r:?}");
            assert!(r.unrest < if measuring { 0.12 } else { *unrest }, "{name}, {step}: {r:?}");
            assert!(r.queue.0 < *overshoot && r.queue.1 < *queue, "{name}, {step}: {r:?}");
        }
    }
}

/// A source that works by `drbd` lets each request wait for 100 ms while the resync is faster than `c-min-rate` beside
/// applications, unless the target is Primary.
#[test]
fn a_source_brakes_to_the_least_rate() {
    let served = |cfg: &ResyncConfig, load: bool, peer_primary: bool| {
        let mut brake = SourceBrake::new(cfg, Instant(0));
        let (mut left, mut requests) = (1u64 << 40, 0u64);
        for ms in 0..20_000 {
            let now = Instant(ms * MS);
            let Some(brake) = &mut brake else { return u64::MAX };
            if load {
                brake.application(now, Duration(50_000), 8192);
            }
            // A target that always has the next request there.
            for _ in 0..4 {
                if !brake.permits(now, Serving { in_service: 0, left, peer_primary, busy: load }, BLOCK) {
                    break;
                }
                brake.serving(BLOCK);
                brake.acknowledged(now, now);
                (left, requests) = (left - BLOCK, requests + 1);
            }
        }
        requests
    };
    let drbd = cfg(ResyncController::Drbd);
    assert_eq!(served(&drbd, false, false), 80_000, "nothing else goes on");
    assert_eq!(served(&drbd, true, true), 80_000, "its applications' reads come on the same stream");
    let braked = served(&drbd, true, false);
    assert!((100..6_000).contains(&braked), "{braked} requests of 4 KiB in 20 s");
    assert_eq!(served(&ResyncConfig { min_rate: 0, ..drbd.clone() }, true, false), 80_000, "0 is no brake");
    assert_eq!(served(&ResyncConfig { plan_ahead: 0, ..drbd }, true, false), u64::MAX, "a fixed rate has no brake");
}
