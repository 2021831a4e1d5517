//! `bench`: a command line for the crate `bench`, which does the measuring.

use std::cell::{Cell, RefCell};
use std::fs;
use std::io::{self, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use bench::cases::{self, CASES, Case, Scale, Set, Setting};
use bench::in_process::Inside;
use bench::modelled_disk::{self, Model};
use bench::report;
use bench::results::Report;
use bench::scratch::{Scratch, sweep};
use clap::{Arg, ArgAction, ArgMatches, Command};

use crate::{bench_run, programs, text};
use urbd::problem::{Problem, exit};

/// The parser of `bench` and everything below it.
pub(crate) fn command() -> Command {
    let set = |name, about| Command::new(name).about(about).args(case_options());
    let node = Command::new("node")
        .about("Run one resource with the load inside; standard input is a socket")
        .hide(true)
        .arg(Arg::new("object").value_name("RESOURCE").required(true));
    let argument = |name: &'static str| Arg::new(name).required(true);
    let stored = Arg::new("file").value_name("FILE").required(true).help("What --json stored");
    let show = Command::new("show").about("Show stored figures again").arg(stored).args(outputs());
    let disk = Command::new("disk")
        .about("Serve a file as a disk of known speed, until standard input ends")
        .hide(true)
        .args(["mount", "file", "rate", "seek"].map(argument));
    Command::new("bench")
        .about("Measure urbd and its alternatives on this machine")
        .subcommand_required(true)
        .arg_required_else_help(true)
        .subcommand(bench_run::command())
        .subcommand(set("seeds", "The measurements of DRBD that urbd starts from, on this machine"))
        .subcommand(set("bars", "What urbd asks of itself: beside the bare work, and beside its alternatives"))
        .subcommand(set("all", "Both"))
        .subcommand(show)
        .subcommand(node)
        .subcommand(disk)
}

fn case_options() -> Vec<Arg> {
    let flag = |name: &'static str, help| Arg::new(name).long(name).help(help).action(ArgAction::SetTrue);
    let value = |name: &'static str, value, help| Arg::new(name).long(name).value_name(value).help(help);
    vec![
        flag("quick", "A first impression, in minutes (the default)").conflicts_with("full"),
        flag("full", "What may be quoted: longer jobs, at least 5 rounds"),
        flag("tiny", "Only whether it works at all: figures mean nothing").hide(true),
        value("only", "NAME", "Only this case; may be repeated").action(ArgAction::Append),
        value("rounds", "N", "Rounds; every contender has one turn per job in each"),
        value("dir", "DIR", "Where files are made; default: in memory (/dev/shm) if there is room"),
        flag("list", "Print the names of the cases"),
    ]
    .into_iter()
    .chain(outputs())
    .collect()
}

/// What becomes of the figures, besides their being printed.
fn outputs() -> Vec<Arg> {
    let value = |name: &'static str, help| Arg::new(name).long(name).value_name("FILE").help(help);
    vec![
        value("json", "Store the figures"),
        value("html", "Store a page with plots"),
        value("markdown", "Renew what stands between the markers of this file"),
    ]
}

/// Prints and stores figures of an earlier call.
fn show(args: &ArgMatches) -> Result<u8, Problem> {
    let file = text(args, "file");
    let text = fs::read_to_string(file).map_err(|e| Problem::new(exit::BROKEN, format!("{file}: {e}")))?;
    let report = Report::from_json(&text).map_err(|e| Problem::usage(format!("{file}: {e}")))?;
    print!("{}", report::text(&report));
    store(args, &report).map(|()| 0)
}

/// `bench …`; gives the exit status.
///
/// # Errors
/// A bad call, or nothing could be measured.
pub(crate) fn run(args: &ArgMatches) -> Result<u8, Problem> {
    match args.subcommand() {
        Some(("node", args)) => node(args),
        Some(("show", args)) => show(args),
        Some(("disk", args)) => disk(args),
        Some(("run", args)) => bench_run::run(args),
        Some((set, args)) => {
            let set = [("seeds", Set::Seeds), ("bars", Set::Bars)].into_iter().find(|(name, _)| *name == set);
            measure(args, set.map(|(_, set)| set))
        }
        None => Err(Problem::usage("bench: what?").hint("urbd bench --help")),
    }
}

/// The hidden half of a measurement in process: a node whose application is the load.
fn node(args: &ArgMatches) -> Result<u8, Problem> {
    use std::os::fd::AsFd;
    let stdin = io::stdin().as_fd().try_clone_to_owned();
    let socket = stdin.map_err(|e| Problem::new(exit::BROKEN, format!("standard input: {e}")))?;
    urbd::run_with(text(args, "object"), Box::new(Inside::new(socket)))
}

/// A disk of known speed, for a measurement.
fn disk(args: &ArgMatches) -> Result<u8, Problem> {
    let model = Model {
        rate: number(args, "rate")?.filter(|rate| *rate > 0).ok_or_else(|| Problem::usage("a rate above 0"))?,
        seek: Duration::from_micros(number(args, "seek")?.unwrap_or_default()),
    };
    let served =
        modelled_disk::serve(Path::new(text(args, "mount")), Path::new(text(args, "file")), model, io::stdin());
    served.map(|()| 0).map_err(|e| Problem::new(exit::BROKEN, e.to_string()))
}

fn measure(args: &ArgMatches, set: Option<Set>) -> Result<u8, Problem> {
    let of_set = |case: &&Case| set.is_none_or(|set| case.set == set);
    let wanted: Vec<&String> = args.get_many("only").into_iter().flatten().collect();
    let all: Vec<&Case> = CASES.iter().filter(of_set).collect();
    if args.get_flag("list") {
        all.iter().for_each(|case| println!("{:20} {}", case.name, case.title));
        return Ok(0);
    }
    if let Some(unknown) = wanted.iter().find(|name| all.iter().all(|case| case.name != name.as_str())) {
        let names: Vec<&str> = all.iter().map(|case| case.name).collect();
        return Err(Problem::usage(format!("no case `{unknown}`")).hint(format!("cases: {}", names.join(", "))));
    }
    let chosen: Vec<&Case> =
        all.into_iter().filter(|case| wanted.is_empty() || wanted.iter().any(|name| *name == case.name)).collect();
    let scale = match (args.get_flag("full"), args.get_flag("tiny")) {
        (true, _) => Scale::Full,
        (_, true) => Scale::Tiny,
        _ => Scale::Quick,
    };
    let rounds = number(args, "rounds")?.unwrap_or(if scale == Scale::Full { 5 } else { 3 });
    bench::keep_mounts_apart();
    bench::note_signals();
    let place = scratch(args.get_one::<String>("dir").map(Path::new))?;
    let programs = programs()?;
    let bar = Bar::default();
    let setting = Setting {
        programs: &programs,
        dir: place.path(),
        scale,
        rounds,
        progress: &|what, part| bar.draw(what, part),
        next: Cell::new(0),
    };
    let report = cases::run(&setting, &chosen);
    bar.clear();
    print!("{}", report::text(&report));
    store(args, &report)?;
    let measured = report.cases.iter().any(|case| !case.rows.is_empty());
    if measured { Ok(0) } else { Err(Problem::new(exit::FAILURE, "nothing could be measured; reasons are above")) }
}

fn store(args: &ArgMatches, report: &Report) -> Result<(), Problem> {
    let failed = |file: &str, e: &dyn std::fmt::Display| Problem::new(exit::BROKEN, format!("{file}: {e}"));
    let write = |file: &String, text: String| fs::write(file, text).map_err(|e| failed(file, &e));
    if let Some(file) = args.get_one::<String>("json") {
        write(file, report::json(report))?;
    }
    if let Some(file) = args.get_one::<String>("html") {
        write(file, report::html(report))?;
    }
    if let Some(file) = args.get_one::<String>("markdown") {
        let old = fs::read_to_string(file).map_err(|e| failed(file, &e))?;
        write(file, report::renew(&old, report).map_err(|e| failed(file, &e))?)?;
    }
    Ok(())
}

/// A number that an option gives.
///
/// # Errors
/// Exit 1: it is none.
pub(crate) fn number<T: FromStr>(args: &ArgMatches, name: &str) -> Result<Option<T>, Problem> {
    let Some(text) = args.get_one::<String>(name) else { return Ok(None) };
    text.parse().map(Some).map_err(|_| Problem::usage(format!("--{name}={text}: must be a number")))
}

/// A folder in `parent` that goes away with the value; by default in memory if there is room, else where temporary
/// files are. What runs that were killed have left there is removed first, or named if it is in use.
///
/// # Errors
/// Exit 20: it cannot be made.
pub(crate) fn scratch(parent: Option<&Path>) -> Result<Scratch, Problem> {
    let memory = Path::new("/dev/shm");
    let places = parent.map_or_else(|| vec![memory.to_owned(), std::env::temp_dir()], |parent| vec![parent.to_owned()]);
    for left in places.iter().flat_map(|place| sweep(place)) {
        let folder = left.folder.display();
        eprintln!("{folder}: left by a run that is dead, and stays: {}; end that, then remove it", left.why);
    }
    let default = || if bench::process::has_room(memory, 4 << 30) { memory.into() } else { std::env::temp_dir() };
    let parent: PathBuf = parent.map_or_else(default, Path::to_owned);
    Scratch::new(&parent).map_err(|e| Problem::new(exit::BROKEN, e.to_string()).hint("name another with --dir"))
}

/// What is being done, on a terminal.
#[derive(Default)]
pub(crate) struct Bar {
    drawn: Cell<bool>,
    last: RefCell<String>,
}

impl Bar {
    /// Draws it, if there is a terminal and something has changed.
    pub(crate) fn draw(&self, what: &str, part: f64) {
        const WIDTH: usize = 30;
        if !io::stderr().is_terminal() {
            return;
        }
        let full = ((part.clamp(0.0, 1.0) * WIDTH as f64).round() as usize).min(WIDTH);
        let line = format!("[{}{}] {:3.0} % {what}", "#".repeat(full), ".".repeat(WIDTH - full), part * 100.0);
        if *self.last.borrow() != line {
            eprint!("\r\x1b[K{line}");
            let _ = io::stderr().flush();
            self.drawn.set(true);
            self.last.replace(line);
        }
    }

    /// Takes it away.
    pub(crate) fn clear(&self) {
        if self.drawn.replace(false) {
            eprint!("\r\x1b[K");
        }
    }
}
