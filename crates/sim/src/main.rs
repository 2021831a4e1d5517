//! `urbd-sim`: runs seeds, and shows what went wrong.

use std::io::Write;
use std::time::Instant;
use urbd_sim::{Options, Plan, run_plan, run_seed, shrink};

const USAGE: &str = "usage: urbd-sim [--seeds N] [--first SEED]   run N seeds
       urbd-sim --seed SEED [--trace] [--shrink]   run one, show what happens or a shorter plan";

fn main() {
    let mut args = std::env::args().skip(1);
    let (mut first, mut count, mut single) = (1, 1000, None);
    let (mut trace, mut short) = (false, false);
    while let Some(arg) = args.next() {
        let mut number = || args.next().and_then(|n| n.parse::<u64>().ok()).unwrap_or_else(|| usage());
        match arg.as_str() {
            "--seeds" => count = number(),
            "--first" => first = number(),
            "--seed" => single = Some(number()),
            "--trace" => trace = true,
            "--shrink" => short = true,
            _ => usage(),
        }
    }
    let failed = match single {
        Some(seed) => one(seed, trace, short),
        None => many(first, count),
    };
    std::process::exit(i32::from(failed));
}

fn usage() -> ! {
    eprintln!("{USAGE}");
    std::process::exit(20)
}

fn one(seed: u64, trace: bool, short: bool) -> bool {
    let mut plan = Plan::draw(seed);
    if short {
        plan = shrink(&plan, 400);
        println!("{:#?}", plan.setup);
        plan.steps.iter().for_each(|(at, step)| println!("{at:?} {step:?}"));
        let numbers: Vec<String> = plan.numbers().iter().map(usize::to_string).collect();
        println!("for seeds.txt: {seed}:{}", numbers.join(","));
    }
    let outcome = run_plan(&plan, Options { trace });
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

fn many(first: u64, count: u64) -> bool {
    std::panic::set_hook(Box::new(|_| {}));
    let began = Instant::now();
    let (mut events, mut seconds, mut failed) = (0, 0.0, 0);
    for seed in first..first + count {
        let outcome = run_seed(seed, Options::default());
        events += outcome.events;
        seconds += outcome.time.as_secs_f64();
        if let Some(text) = outcome.failure {
            failed += 1;
            println!("seed {seed}: {text}");
            let _ = std::io::stdout().flush();
        }
    }
    let elapsed = began.elapsed().as_secs_f64();
    println!(
        "{count} seeds, {failed} failed; {events} events in {elapsed:.1} s ({:.0} per second), {:.1} h of virtual time ({:.0} x real time)",
        events as f64 / elapsed,
        seconds / 3600.0,
        seconds / elapsed
    );
    failed > 0
}
