//! `bench run`: one workload on one target.

use std::path::Path;
use std::time::{Duration, Instant};

use bench::file::FileTarget;
use bench::nbd::NbdTarget;
use bench::pair::{Front, Pair, Plan, filled_file};
use bench::target::Target;
use bench::workload::{Outcome, Pattern, Until, Workload};
use clap::{Arg, ArgAction, ArgMatches, Command};

use crate::bench_sets::{Bar, number, scratch};
use crate::programs;
use urbd::problem::{Problem, exit};

/// The parser of `bench run`.
pub(crate) fn command() -> Command {
    let value = |name: &'static str, value, default, help| {
        Arg::new(name).long(name).value_name(value).help(help).default_value(default)
    };
    let optional = |name: &'static str, value, help| Arg::new(name).long(name).value_name(value).help(help);
    let flag = |name: &'static str, help| Arg::new(name).long(name).help(help).action(ArgAction::SetTrue);
    Command::new("run").about("One workload on one target").args([
        optional(
            "target",
            "WHERE",
            "`pair` (default): two nodes made for it, load inside; an NBD URI; a file or device",
        ),
        value("pattern", "P", "random", "random or sequential"),
        value("bs", "BYTES", "4k", "Bytes per request, 512 to 1M"),
        value("depth", "N", "1", "Requests in flight"),
        value("reads", "PERCENT", "0", "How many of 100 requests are reads"),
        value("flush", "N", "0", "Flush after so many writes; 0: never"),
        flag("flush-at-end", "Flush at the end, inside the measured time"),
        value("seconds", "S", "5", "How long"),
        optional("requests", "N", "So many requests instead of a time"),
        optional("size", "BYTES", "Use so much of the target; for a pair the size of its disks (256M)"),
        value("seed", "N", "1", "Same seed, same blocks"),
        value("protocol", "A|B|C", "C", "Of a pair"),
        flag("verify", "Read everything back and compare; for a pair also both disks with each other"),
        flag("overwrite", "The data on the NBD export, file or device may be destroyed"),
        flag("buffered", "A file through the page cache"),
        flag("json", "The outcome as JSON"),
        optional("dir", "DIR", "Where a pair's files are made"),
    ])
}

/// `bench run …`
///
/// # Errors
/// A bad call; requests failed; what was read back is not what was written.
pub(crate) fn run(args: &ArgMatches) -> Result<u8, Problem> {
    let workload = workload(args)?;
    // Whether it fits the target is known later.
    workload.check(u64::MAX / 2).map_err(Problem::usage)?;
    let target = args.get_one::<String>("target").map_or("pair", String::as_str);
    let overwrite = args.get_flag("overwrite");
    if target != "pair" && workload.read_percent < 100 && !overwrite {
        return Err(Problem::usage(format!("{target}: its data would be destroyed"))
            .hint("add --overwrite if that is meant, or --reads 100"));
    }
    let outcome = match target {
        "pair" => on_pair(args, &workload)?,
        uri if uri.starts_with("nbd") && uri.contains("://") => {
            let mut target = NbdTarget::new(uri).map_err(failed)?;
            watched(&workload, |workload| target.run(workload))?
        }
        file => {
            let write = workload.read_percent < 100;
            let mut target = FileTarget::open(Path::new(file), write, args.get_flag("buffered")).map_err(failed)?;
            watched(&workload, |workload| target.run(workload))?
        }
    };
    if args.get_flag("json") {
        println!("{}", serde_json::json!({ "workload": workload, "outcome": outcome }));
    } else {
        print(&workload, &outcome);
    }
    match &outcome.first_error {
        None => Ok(0),
        Some(what) => Err(Problem::new(exit::FAILURE, format!("{} errors, the first: {what}", outcome.errors))),
    }
}

fn workload(args: &ArgMatches) -> Result<Workload, Problem> {
    let must = |name: &str| number(args, name).map(Option::unwrap_or_default);
    let pattern = match args.get_one::<String>("pattern").map(String::as_str) {
        Some("sequential") => Pattern::Sequential,
        Some("random") => Pattern::Random,
        other => return Err(Problem::usage(format!("--pattern={}: random or sequential", other.unwrap_or_default()))),
    };
    let until = match number(args, "requests")? {
        Some(n) => Until::Requests(n),
        None => {
            let seconds: f64 = number(args, "seconds")?.unwrap_or(5.0);
            if !(0.001..=1e6).contains(&seconds) {
                return Err(Problem::usage(format!("--seconds={seconds}: must be 0.001 to 1000000")));
            }
            Until::Millis((seconds * 1000.0) as u64)
        }
    };
    let percent: u32 = number(args, "reads")?.unwrap_or_default();
    let pair = args.get_one::<String>("target").is_none_or(|t| t == "pair");
    Ok(Workload {
        block: u32::try_from(bytes(args, "bs")?.unwrap_or(4096)).unwrap_or(u32::MAX),
        depth: number(args, "depth")?.unwrap_or(1),
        read_percent: u8::try_from(percent).unwrap_or(u8::MAX),
        flush_every: number(args, "flush")?.unwrap_or_default(),
        flush_at_end: args.get_flag("flush-at-end"),
        span: if pair { 0 } else { bytes(args, "size")?.unwrap_or_default() },
        seed: must("seed")?,
        verify: args.get_flag("verify"),
        until,
        ..Workload::writes(pattern, 4096, 1)
    })
}

/// `4k`, `1M`, `2G`, `512`.
fn bytes(args: &ArgMatches, name: &str) -> Result<Option<u64>, Problem> {
    let Some(text) = args.get_one::<String>(name) else { return Ok(None) };
    let wrong = || Problem::usage(format!("--{name}={text}: must be a number of bytes, or with k, M or G"));
    let digits = text.trim_end_matches(['k', 'K', 'M', 'G', 'T']);
    let shift = match &text[digits.len()..] {
        "" => 0,
        "k" | "K" => 10,
        "M" => 20,
        "G" => 30,
        "T" => 40,
        _ => return Err(wrong()),
    };
    let number: u64 = digits.parse().map_err(|_| wrong())?;
    number.checked_mul(1 << shift).map(Some).ok_or_else(wrong)
}

fn on_pair(args: &ArgMatches, workload: &Workload) -> Result<Outcome, Problem> {
    bench::keep_mounts_apart();
    bench::note_signals();
    let place = scratch(args.get_one::<String>("dir").map(Path::new))?;
    let size = bytes(args, "size")?.unwrap_or(256 << 20);
    let dir = place.path();
    let file = |name: &str| filled_file(&dir.join(name), size).map_err(failed);
    let disks = [file("first.disk")?, file("second.disk")?];
    let mut plan = Plan::new(&disks[0], &disks[1], Front::Inside);
    plan.protocol = match args.get_one::<String>("protocol").map(String::as_str) {
        Some("A") => 'A',
        Some("B") => 'B',
        Some("C") => 'C',
        other => return Err(Problem::usage(format!("--protocol={}: A, B or C", other.unwrap_or_default()))),
    };
    let mut pair = Pair::start(&programs()?, dir, plan).map_err(failed)?;
    let mut outcome = watched(workload, |workload| pair.inside().run(workload))?;
    if workload.verify {
        let size = pair.size().map_err(failed)?;
        drop(pair);
        bench::pair::compare(&disks, size).unwrap_or_else(|e| {
            outcome.errors += 1;
            outcome.first_error.get_or_insert(e.to_string());
        });
    }
    Ok(outcome)
}

/// Runs it, with a bar on a terminal.
fn watched(workload: &Workload, run: impl FnOnce(&Workload) -> bench::Result<Outcome>) -> Result<Outcome, Problem> {
    let bar = Bar::default();
    let Until::Millis(ms) = workload.until else { return run(workload).map_err(failed) };
    let (title, whole) = (workload.title(), Duration::from_millis(ms));
    let over = std::sync::atomic::AtomicBool::new(false);
    let outcome = std::thread::scope(|scope| {
        scope.spawn(|| {
            let (bar, start) = (Bar::default(), Instant::now());
            while !over.load(std::sync::atomic::Ordering::Relaxed) {
                bar.draw(&title, start.elapsed().as_secs_f64() / whole.as_secs_f64());
                std::thread::park_timeout(Duration::from_millis(100));
            }
            bar.clear();
        });
        let outcome = run(workload);
        over.store(true, std::sync::atomic::Ordering::Relaxed);
        outcome
    });
    bar.clear();
    outcome.map_err(failed)
}

fn print(workload: &Workload, outcome: &Outcome) {
    let latency = |percent| outcome.latencies.percentile(percent);
    println!("{}", workload.title());
    println!(
        "  {:.0} IOPS, {:.1} MiB/s, {} requests in {:.2} s",
        outcome.iops(),
        outcome.mib_per_second(),
        outcome.requests,
        outcome.seconds
    );
    println!(
        "  latency us: mean {:.1}, p50 {:.1}, p90 {:.1}, p99 {:.1}, p99.9 {:.1}, max {:.1}",
        outcome.latencies.mean(),
        latency(50.0),
        latency(90.0),
        latency(99.0),
        latency(99.9),
        latency(100.0)
    );
    for (role, seconds) in &outcome.cpu {
        println!("  CPU of the {role}: {:.2} us per request", seconds * 1e6 / outcome.requests.max(1) as f64);
    }
    if let Some(line) = bench::report::stages(outcome) {
        println!("  mean us: {line}");
    }
    if workload.verify {
        println!("  {} blocks read back and compared", outcome.verified);
    }
}

fn failed(e: bench::Error) -> Problem {
    Problem::new(exit::FAILURE, e.to_string())
}
