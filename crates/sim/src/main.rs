//! `urbd-sim`: runs seeds, and shows what went wrong.

mod ledger;

use ledger::Ledger;
use std::io::Write;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;
use urbd_sim::{Options, Plan, parse_scenarios, run_plan, run_scenario, run_seed, shrink};

const USAGE: &str = "usage: urbd-sim [--seeds N] [--first SEED] [--events N] [--jobs N]
                                               run N seeds, and more until there were that many events
       urbd-sim --seed SEED[:STEP,STEP...] [--trace] [--watch VOLUME:SECTOR] [--shrink]
                                               run one, show what happens or a shorter plan
       urbd-sim --scenario NAME [--seed SEED] [--trace]   run those of scenarios.txt whose name begins so
       urbd-sim --hours H --ledger FILE   go on from where the ledger ends";

fn main() {
    let mut args = std::env::args().skip(1);
    let (mut first, mut count, mut single) = (1, 1000, None);
    let (mut least, mut jobs) = (0, std::thread::available_parallelism().map_or(1, usize::from));
    let (mut trace, mut short, mut scenario) = (false, false, None);
    let mut watch = None;
    let (mut hours, mut file) = (None, "target/sim/ledger.txt".to_owned());
    while let Some(arg) = args.next() {
        let mut number = || args.next().and_then(|n| n.parse::<u64>().ok()).unwrap_or_else(|| usage());
        match arg.as_str() {
            "--seeds" => count = number(),
            "--first" => first = number(),
            "--events" => least = number(),
            "--jobs" => jobs = number().max(1) as usize,
            "--seed" => single = Some(args.next().and_then(|n| Plan::parse(&n)).unwrap_or_else(|| usage())),
            "--scenario" => scenario = Some(args.next().unwrap_or_else(|| usage())),
            "--hours" => hours = Some(args.next().and_then(|h| h.parse::<f64>().ok()).unwrap_or_else(|| usage())),
            "--ledger" => file = args.next().unwrap_or_else(|| usage()),
            "--trace" => trace = true,
            "--watch" => watch = Some(args.next().and_then(|w| place(&w)).unwrap_or_else(|| usage())),
            "--shrink" => short = true,
            _ => usage(),
        }
    }
    let failed = match (scenario, single) {
        _ if hours.is_some() => ledger::run_for(hours.unwrap_or_default(), Path::new(&file)),
        (Some(name), plan) => scenarios(&name, plan.map(|p| p.seed), trace),
        (None, Some(plan)) => one(plan, Options { trace: trace || watch.is_some(), watch }, short),
        (None, None) => many(first, count, least, jobs),
    };
    std::process::exit(i32::from(failed));
}

/// `volume:sector`.
fn place(text: &str) -> Option<(usize, u64)> {
    let (volume, sector) = text.split_once(':')?;
    Some((volume.parse().ok()?, sector.parse().ok()?))
}

fn usage() -> ! {
    eprintln!("{USAGE}");
    std::process::exit(20)
}

fn one(mut plan: Plan, options: Options, short: bool) -> bool {
    let seed = plan.seed;
    if short {
        plan = shrink(&plan, 400);
        println!("{:#?}", plan.setup);
        plan.steps.iter().for_each(|(at, step)| println!("{at:?} {step:?}"));
        let numbers: Vec<String> = plan.numbers().iter().map(usize::to_string).collect();
        println!("for seeds.txt: {seed}:{}", numbers.join(","));
    }
    let outcome = run_plan(&plan, options);
    outcome.trace.iter().for_each(|line| println!("{line}"));
    match &outcome.failure {
        Some(text) => println!("seed {seed} failed: {text}"),
        None => println!(
            "seed {seed} passed: {} events in {} s of virtual time",
            outcome.events,
            outcome.time.as_secs_f64()
        ),
    }
    outcome.failure.is_some()
}

fn scenarios(name: &str, seed: Option<u64>, trace: bool) -> bool {
    let mut failed = false;
    let all = parse_scenarios(include_str!("../scenarios.txt"));
    for scenario in all.iter().filter(|s| s.name.starts_with(name)) {
        for seed in seed.map_or(0..8, |seed| seed..seed + 1) {
            let outcome = run_scenario(scenario, seed, Options { trace, ..Options::default() });
            outcome.trace.iter().for_each(|line| println!("{line}"));
            println!("{}, seed {seed}: {}", scenario.name, outcome.failure.as_deref().unwrap_or("passed"));
            failed |= outcome.failure.is_some();
        }
    }
    failed
}

/// Runs seeds from `first` on: at least `count`, and until there were at least `least` events.
fn many(first: u64, count: u64, least: u64, jobs: usize) -> bool {
    std::panic::set_hook(Box::new(|_| {}));
    let began = Instant::now();
    let (next, events, failed) = (AtomicU64::new(first), AtomicU64::new(0), AtomicU64::new(0));
    let (seconds, fewest) = (Mutex::new(0.0), AtomicU64::new(u64::MAX));
    let mut ledger = Ledger::default();
    for scenario in parse_scenarios(include_str!("../scenarios.txt")) {
        ledger.note_coverage(&run_scenario(&scenario, 0, Options::default()));
    }
    let ledger = Mutex::new(ledger);
    let work = || {
        while next.load(Relaxed) < first + count || events.load(Relaxed) < least {
            let seed = next.fetch_add(1, Relaxed);
            let outcome = run_seed(seed, Options::default());
            events.fetch_add(outcome.events, Relaxed);
            fewest.fetch_min(outcome.events, Relaxed);
            *seconds.lock().expect("no thread dies holding it") += outcome.time.as_secs_f64();
            failed.fetch_add(u64::from(outcome.failure.is_some()), Relaxed);
            ledger.lock().expect("no thread dies holding it").add(seed, outcome);
            let _ = std::io::stdout().flush();
        }
    };
    std::thread::scope(|scope| (0..jobs).for_each(|_| drop(scope.spawn(work))));
    ledger.into_inner().expect("no thread died").print_coverage();
    let elapsed = began.elapsed().as_secs_f64();
    let (seeds, events, failed) = (next.load(Relaxed) - first, events.load(Relaxed), failed.load(Relaxed));
    let seconds = seconds.into_inner().expect("no thread died");
    println!(
        "{seeds} seeds, {failed} failed; {events} events, at least {} in each, in {elapsed:.1} s ({:.0} per second), \
         {:.1} h of virtual time ({:.0} x real time)",
        fewest.load(Relaxed),
        events as f64 / elapsed,
        seconds / 3600.0,
        seconds / elapsed
    );
    failed > 0
}
