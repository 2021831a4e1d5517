//! `urbd-sim`: the simulator without the product around it; `urbd sim` is the same for people who have only that.

use std::collections::BTreeSet;
use std::num::NonZeroUsize;
use std::time::Duration;
use urbd_sim::{Campaign, FAILED, Options, Plan, parse_place};

const USAGE: &str = "usage: urbd-sim [--seeds N] [--first SEED] [--events N] [--each N] [--known FILE] [--jobs N]
                                               run N seeds, and more until so many events, so many in each
       urbd-sim --seed SEED[+LUCK][:STEP,STEP...] [--trace] [--watch VOLUME:SECTOR] [--shrink SECONDS]
                                               run one, show what happens or a shorter plan
       urbd-sim --scenario NAME [--seed SEED] [--trace]   run those of scenarios.txt whose name begins so
       urbd-sim --hours H --ledger FILE [--jobs N]        go on from where the ledger ends";

fn main() {
    let failed = campaign().run().unwrap_or_else(|text| {
        eprintln!("{text}");
        std::process::exit(20)
    });
    std::process::exit(if failed { FAILED.into() } else { 0 });
}

fn campaign() -> Campaign {
    let mut args = std::env::args().skip(1);
    let (mut first, mut count, mut single) = (1, 1000, None);
    let (mut least, mut each, mut jobs) = (0, 0, Campaign::all_processors());
    let (mut trace, mut short, mut scenario, mut watch) = (false, None, None, None);
    let mut known = BTreeSet::new();
    let (mut hours, mut file) = (None, "target/sim/ledger.txt".to_owned());
    while let Some(arg) = args.next() {
        let mut number = || args.next().and_then(|n| n.parse::<u64>().ok()).unwrap_or_else(|| usage());
        match arg.as_str() {
            "--seeds" => count = number(),
            "--first" => first = number(),
            "--events" => least = number(),
            "--each" => each = number(),
            "--known" => known = args.next().and_then(|file| seeds_in(&file)).unwrap_or_else(|| usage()),
            "--jobs" => jobs = NonZeroUsize::new(number() as usize).unwrap_or_else(|| usage()),
            "--seed" => single = Some(args.next().and_then(|n| Plan::parse(&n)).unwrap_or_else(|| usage())),
            "--scenario" => scenario = Some(args.next().unwrap_or_else(|| usage())),
            "--hours" => hours = Some(args.next().and_then(|h| h.parse::<f64>().ok()).unwrap_or_else(|| usage())),
            "--ledger" => file = args.next().unwrap_or_else(|| usage()),
            "--trace" => trace = true,
            "--watch" => watch = Some(args.next().and_then(|w| parse_place(&w)).unwrap_or_else(|| usage())),
            "--shrink" => short = Some(Duration::from_secs(number())),
            _ => usage(),
        }
    }
    match (hours, scenario, single) {
        (Some(hours), ..) => Campaign::Hours { hours, ledger: file.into(), jobs },
        (_, Some(name), plan) => Campaign::Scenarios { name, seed: plan.map(|p| p.seed), trace },
        (_, None, Some(plan)) => {
            let options = Options { trace: trace || watch.is_some(), watch };
            Campaign::One { plan: Box::new(plan), options, shrink: short }
        }
        (_, None, None) => Campaign::Many { first, count, events: least, each, known, jobs },
    }
}

/// The seeds in a file: one in a line, then words.
fn seeds_in(file: &str) -> Option<BTreeSet<u64>> {
    let text = std::fs::read_to_string(file).inspect_err(|e| eprintln!("{file}: {e}")).ok()?;
    let entries = text.lines().filter_map(|line| line.split('#').next()).map(str::trim);
    entries.filter(|entry| !entry.is_empty()).map(|entry| entry.parse().ok()).collect()
}

fn usage() -> ! {
    eprintln!("{USAGE}");
    std::process::exit(20)
}
