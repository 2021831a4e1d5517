//! From the command line to a verb: the clap parser is built from the table of verbs.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::num::NonZero;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::thread;

use clap::{Arg, ArgAction, ArgMatches, Command};
use config::{Kind, OptionSpec};

use crate::context::Context;
use crate::explain;
use crate::objects::{self, Takes, Target};
use crate::problem::{Problem, exit};
use crate::verbs::{self, Action, Opt, Verb, options};

/// One call of a verb.
pub(crate) struct Call<'a> {
    /// Configuration, node, run directory.
    pub(crate) context: &'a Context,
    /// Its options.
    args: &'a ArgMatches,
}

impl Call<'_> {
    /// Whether a flag was given.
    pub(crate) fn flag(&self, name: &str) -> bool {
        matches!(self.args.try_get_one::<bool>(name), Ok(Some(true)))
    }

    /// The value of an option.
    pub(crate) fn value(&self, name: &str) -> Option<&str> {
        self.args.try_get_one::<String>(name).ok().flatten().map(String::as_str)
    }

    /// The value of an option that must be a number.
    ///
    /// # Errors
    /// Exit 1: it is none.
    pub(crate) fn number(&self, name: &str) -> Result<Option<u64>, Problem> {
        let parse = |text: &str| {
            text.parse().map_err(|_| Problem::usage(format!("--{name}={text}: must be a number without a unit")))
        };
        self.value(name).map(parse).transpose()
    }

    /// The objects as written.
    pub(crate) fn objects(&self) -> Vec<String> {
        self.args.try_get_many::<String>("object").ok().flatten().into_iter().flatten().cloned().collect()
    }
}

/// Runs the program; gives its exit status.
pub(crate) fn run(argv: impl IntoIterator<Item = OsString>) -> u8 {
    let argv: Vec<OsString> = argv.into_iter().collect();
    let called_as = argv.first().and_then(|p| Path::new(p).file_name()?.to_str()).unwrap_or("urbd").to_owned();
    if argv.get(1).is_some_and(|first| first == verbs::completion::ASKED) {
        return verbs::completion::answer(&argv[2..]);
    }
    match called_as.as_str() {
        "drbdmeta" => verbs::drbdmeta::run(&argv[1..]),
        "drbdsetup" => verbs::drbdsetup::run(&argv[1..]),
        _ => run_verb(&rearrange(argv)),
    }
}

fn run_verb(argv: &[OsString]) -> u8 {
    let argv = &without_help_of_help(argv);
    if asks_for_version(argv) {
        verbs::status::print(&verbs::completion::version_words());
        return 0;
    }
    let matches = match parser().try_get_matches_from(argv) {
        Ok(matches) => matches,
        Err(error) => {
            let _ = error.print();
            return if error.use_stderr() { exit::USAGE } else { 0 };
        }
    };
    let Some((name, args)) = matches.subcommand() else { return exit::USAGE };
    if verbs::lab::NAMES.contains(&name) {
        return settle(verbs::lab::run(&Context::new(args), name, args));
    }
    let Some(verb) = verbs::find(name) else { return exit::USAGE };
    let context = Context::new(args);
    let call = Call { context: &context, args };
    match verb.action {
        Action::Once(_) if context.dry_run => settle(verbs::dry_run::once(verb, &call).map(say)),
        Action::Once(act) | Action::Look(act) => settle(act(&call)),
        Action::Each(_) | Action::SideBySide(_) if context.dry_run => {
            for_each(&call, verb, |target| verbs::dry_run::lines(verb, &call, target).map(say))
        }
        Action::Each(act) | Action::LookAt(act) => for_each(&call, verb, |target| act(&call, target)),
        Action::SideBySide(act) => side_by_side(&call, verb, |target| act(&call, target)),
    }
}

/// `help --help` is `help`.
fn without_help_of_help(argv: &[OsString]) -> Vec<OsString> {
    let first = argv.iter().find(|a| *a == "help" || a.to_str().is_some_and(|name| verbs::find(name).is_some()));
    let of_help = first.is_some_and(|verb| verb == "help");
    argv.iter().filter(|a| !(of_help && (*a == "--help" || *a == "-h"))).cloned().collect()
}

/// `--version` or `-V`, alone or behind general options.
fn asks_for_version(argv: &[OsString]) -> bool {
    let before_verb = argv.iter().skip(1).take_while(|a| a.to_str().is_none_or(|name| verbs::find(name).is_none()));
    before_verb.into_iter().any(|a| a == "--version" || a == "-V")
}

/// Prints the lines of a dry run.
fn say(lines: Vec<String>) -> u8 {
    verbs::status::print(&lines.into_iter().map(|line| line + "\n").collect::<String>());
    0
}

/// One object after the other; a failure does not keep the others from being served.
fn for_each(call: &Call, verb: &Verb, act: impl Fn(&Target) -> Result<u8, Problem>) -> u8 {
    let (targets, mut worst) = match objects::targets(call.context, &call.objects(), verb.takes) {
        Ok(found) => found,
        Err(problem) => return settle(Err(problem)),
    };
    for target in &targets {
        worst = worst.max(settle(act(target)));
    }
    worst
}

/// Several objects at a time. Problems are told in the order of the objects, each as soon as those before it have
/// ended.
fn side_by_side(call: &Call, verb: &Verb, act: impl Fn(&Target) -> Result<u8, Problem> + Sync) -> u8 {
    let (targets, mut worst) = match objects::targets(call.context, &call.objects(), verb.takes) {
        Ok(found) => found,
        Err(problem) => return settle(Err(problem)),
    };
    let next = AtomicUsize::new(0);
    let (tell, told) = mpsc::channel();
    thread::scope(|scope| {
        for _ in 0..at_a_time().min(targets.len()) {
            let (next, targets, act, tell) = (&next, &targets, &act, tell.clone());
            scope.spawn(move || {
                loop {
                    let nr = next.fetch_add(1, Ordering::Relaxed);
                    let Some(target) = targets.get(nr) else { return };
                    let _ = tell.send((nr, act(target)));
                }
            });
        }
        drop(tell);
        let (mut ended, mut waiting) = (BTreeMap::new(), 0);
        for (nr, result) in told {
            ended.insert(nr, result);
            while let Some(result) = ended.remove(&waiting) {
                worst = worst.max(settle(result));
                waiting += 1;
            }
        }
    });
    worst
}

/// How many objects are worked on at a time: starting a process waits for disks and sockets most of the time.
fn at_a_time() -> usize {
    thread::available_parallelism().map_or(1, NonZero::get).saturating_mul(4).clamp(4, 32)
}

/// The exit status of a result; a problem is printed.
pub(crate) fn settle(result: Result<u8, Problem>) -> u8 {
    result.unwrap_or_else(|problem| {
        problem.report();
        problem.exit
    })
}

/// The whole parser, also for completion and help.
pub(crate) fn parser() -> Command {
    let root = Command::new("urbd")
        .about("Userspace Replicated Block Device: network RAID-1 that speaks DRBD's protocol")
        .version(env!("CARGO_PKG_VERSION"))
        .disable_version_flag(true)
        .subcommand_required(true)
        .arg_required_else_help(true)
        .args(general_options())
        .help_template(overview())
        .after_help(
            "Objects: RES, RES/VOL, RES:PEER, RES:PEER/VOL, minor-N, or all.\n\
             `urbd VERB --help` says more of a verb, and so does `man urbd-VERB`; the configuration is in `man urbd.conf`.",
        );
    root.subcommands(verbs::all().map(subcommand)).subcommands(verbs::lab::NAMES.map(verbs::lab::command))
}

/// The verbs in their sections, for the help of the whole program.
fn overview() -> String {
    let mut text = String::from("{about-with-newline}\n{usage-heading} {usage}\n");
    for section in verbs::SECTIONS {
        let shown = section.verbs.iter().filter(|verb| !verb.hidden);
        let lines: String = shown.map(|verb| format!("  {:20} {}\n", verb.name, verb.help)).collect();
        if !lines.is_empty() {
            text += &format!("\n{}:\n{lines}", section.title);
        }
    }
    text + "  help                 Print this, or the help of a verb\n\nGeneral options:\n{options}\n\n{after-help}"
}

/// The general options, and whether they take a value.
pub(crate) const GENERAL: [(&str, bool); 5] =
    [("config", true), ("node", true), ("dry-run", false), ("stacked", false), ("verbose", false)];

pub(crate) fn general_options() -> Vec<Arg> {
    let option = |name: &'static str, short, value, help| {
        Arg::new(name).long(name).short(short).value_name(value).help(help).global(true).action(ArgAction::Set)
    };
    let flag = |name: &'static str, short, help| {
        Arg::new(name).long(name).short(short).help(help).global(true).action(ArgAction::SetTrue)
    };
    vec![
        option("config", 'c', "FILE", "Configuration file [env: URBD_CONF; else /etc/urbd.conf, /etc/drbd.conf]")
            .visible_alias("config-file"),
        Arg::new("node")
            .long("node")
            .value_name("NAME")
            .help("Our name in the configuration [env: URBD_NODE; else uname -n]")
            .global(true),
        flag("dry-run", 'd', "Print what would be done, do nothing"),
        flag("stacked", 'S', "Act on the stacked (upper) resources"),
        Arg::new("verbose")
            .long("verbose")
            .short('v')
            .help("Say more; may be repeated")
            .global(true)
            .action(ArgAction::Count),
    ]
}

fn subcommand(verb: &'static Verb) -> Command {
    let mut command = Command::new(verb.name).about(verb.help).hide(verb.hidden).args(verb.options.iter().map(option));
    command = command.args(options::settable(verb.settings).map(setting));
    let objects = Arg::new("object").value_name(verb.takes.usage()).action(ArgAction::Append);
    command = match verb.takes {
        Takes::Nothing => command,
        Takes::OptionalResource | Takes::Hosts => command.arg(objects.num_args(0..)),
        _ => command.arg(objects.num_args(1..).required(true).help("Objects, or `all`")),
    };
    command
}

fn option(option: &'static Opt) -> Arg {
    let arg = Arg::new(option.name).help(option.help).hide(option.hidden);
    let arg = match option.short {
        Some(short) => arg.short(short),
        None => arg,
    };
    match option.value {
        Some(value) if option.positional => arg.value_name(value).required(true),
        Some(value) => arg.long(option.name).value_name(value).action(ArgAction::Set),
        None => arg.long(option.name).action(ArgAction::SetTrue),
    }
}

/// An option of the configuration; a boolean one without a value means yes.
fn setting(spec: &'static OptionSpec) -> Arg {
    let arg = Arg::new(spec.name).long(spec.name).value_name("VALUE").help(format!(
        "{}: {}",
        explain::option(spec),
        options::describe(spec)
    ));
    match spec.kind {
        Kind::Bool { .. } => arg.num_args(0..=1).require_equals(true).default_missing_value("yes"),
        _ => arg.allow_hyphen_values(matches!(spec.kind, Kind::ResyncAfter { .. })),
    }
}

/// `-- OPTIONS VERB …` and `VERB … -- OPTIONS`: options for the backend. We have none, so they become options of the
/// verb; `--overwrite-data-of-peer` is the old name of `--force`.
fn rearrange(argv: Vec<OsString>) -> Vec<OsString> {
    let Some(separator) = argv.iter().position(|a| a == "--") else { return argv };
    let (front, behind) = (&argv[..separator], &argv[separator + 1..]);
    let is_verb = |a: &&OsString| a.to_str().is_some_and(|name| verbs::find(name).is_some());
    let mut arranged = front.to_vec();
    if front.iter().skip(1).any(|a| is_verb(&a)) {
        arranged.extend_from_slice(behind);
    } else if let Some(verb) = behind.iter().position(|a| is_verb(&a)) {
        arranged.extend_from_slice(&behind[verb..=verb]);
        arranged.extend_from_slice(&behind[..verb]);
        arranged.extend_from_slice(&behind[verb + 1..]);
    } else {
        return argv;
    }
    for argument in &mut arranged {
        if argument == "--overwrite-data-of-peer" {
            *argument = "--force".into();
        }
    }
    arranged
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<ArgMatches, clap::Error> {
        let argv = rearrange(line.split(' ').map(OsString::from).collect());
        parser().try_get_matches_from(argv)
    }

    #[test]
    fn the_parser_is_consistent() {
        parser().debug_assert();
    }

    #[test]
    fn general_options_stand_before_or_behind_the_verb() {
        for line in ["urbd -c FILE --node a up r0", "urbd up -c FILE --node a r0", "urbd up r0 --config=FILE --node a"]
        {
            let matches = parse(line).unwrap();
            let (verb, args) = matches.subcommand().unwrap();
            assert_eq!(verb, "up");
            assert_eq!(args.get_one::<String>("config").unwrap(), "FILE", "{line}");
            assert_eq!(args.get_one::<String>("object").unwrap(), "r0");
        }
    }

    #[test]
    fn backend_options_behind_a_double_dash() {
        for line in [
            "urbd -- --force create-md r0",
            "urbd create-md r0 -- --force",
            "urbd -- --overwrite-data-of-peer primary r0",
            "drbdadm -v -- --force primary r0",
        ] {
            let matches = parse(line).unwrap();
            let (_, args) = matches.subcommand().unwrap();
            assert!(args.get_flag("force"), "{line}");
            assert_eq!(args.get_one::<String>("object").unwrap(), "r0");
        }
    }

    #[test]
    fn help_and_version_may_stand_with_other_options() {
        let argv = |line: &str| line.split(' ').map(OsString::from).collect::<Vec<_>>();
        for line in
            ["urbd help", "urbd help --help", "urbd help -h", "urbd --help", "urbd help up", "urbd -v help --help"]
        {
            assert_eq!(run(argv(line)), 0, "{line}");
        }
        for (line, expected) in
            [("urbd -V", true), ("urbd -c FILE --version", true), ("urbd up -V", false), ("urbd up", false)]
        {
            assert_eq!(asks_for_version(&argv(line)), expected, "{line}");
        }
    }

    #[test]
    fn bad_calls_exit_with_1() {
        for line in ["urbd nonsense", "urbd up", "urbd primary --nonsense r0", "urbd"] {
            assert_eq!(run(line.split(' ').map(OsString::from)), 1, "{line}");
        }
    }
}
