//! From the command line to a verb: the clap parser is built from the table of verbs.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::num::NonZero;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::thread;

use clap::error::ErrorKind;
use clap::{Arg, ArgAction, ArgMatches, Command};
use config::{Kind, OptionSpec};

use crate::context::Context;
use crate::explain;
use crate::objects::{self, Takes, Target};
use crate::problem::{Problem, exit};
use crate::verbs::{self, Action, Opt, Verb, options, programs};
use crate::words;

/// One call of a verb.
pub(crate) struct Call<'a> {
    /// Configuration, node, run directory.
    pub(crate) context: &'a Context,
    /// Its name.
    pub(crate) verb: &'a str,
    /// The whole command line, in the order that the parser wants.
    pub(crate) line: &'a [OsString],
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

    /// The value of an option that is a number of units of `unit` bytes; its suffix may be `s`, `k`, `M` or `G`.
    ///
    /// # Errors
    /// Exit 1: it is none.
    pub(crate) fn amount(&self, name: &str, unit: u64) -> Result<Option<u64>, Problem> {
        let parse = |text: &str| {
            config::parse_number(text, unit).ok_or_else(|| {
                Problem::usage(format!("--{name}={text}: must be a number"))
                    .hint("its suffix may be: s (512 bytes), k, M, G")
            })
        };
        self.value(name).map(parse).transpose()
    }

    /// The objects as written.
    pub(crate) fn objects(&self) -> Vec<String> {
        objects_in(self.args).cloned().collect()
    }
}

fn objects_in(args: &ArgMatches) -> impl Iterator<Item = &String> {
    args.try_get_many::<String>("object").ok().flatten().into_iter().flatten()
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
        _ => run_verb(&rearrange(argv), false),
    }
}

/// Runs a command line of one of the verbs that `urbd-watch` serves, which is that program.
pub(crate) fn run_watching(argv: &[OsString], show: impl Fn(&Call) -> Result<u8, Problem>) -> u8 {
    let matches = match parser().try_get_matches_from(argv) {
        Ok(matches) => matches,
        Err(error) => return complain(&error),
    };
    match matches.subcommand() {
        Some((verb, args)) if programs::OF_WATCH.contains(&verb) => {
            settle(show(&Call { context: &Context::new(args), verb, line: argv, args }))
        }
        _ => settle(Err(Problem::usage("this program is for top and web").hint("of other verbs: urbd help"))),
    }
}

/// The same for what runs, whether there is a configuration or not.
pub(crate) fn run_on_running(argv: impl IntoIterator<Item = OsString>) -> u8 {
    run_verb(&rearrange(argv.into_iter().collect()), true)
}

fn run_verb(argv: &[OsString], of_running: bool) -> u8 {
    let argv = &without_help_of_help(argv);
    if asks_for_version(argv) {
        verbs::status::print(&verbs::completion::version_words());
        return 0;
    }
    let matches = match parser().try_get_matches_from(argv) {
        Ok(matches) => matches,
        Err(error) => {
            if let Some(problem) = verb_behind_its_object(argv).filter(|_| error.kind() == ErrorKind::InvalidSubcommand)
            {
                return settle(Err(problem));
            }
            return complain(&error);
        }
    };
    let Some((name, args)) = matches.subcommand() else { return exit::USAGE };
    if programs::OF_LAB.contains(&name) {
        return settle(programs::lab(&Context::new(args), name, args));
    }
    let Some(verb) = verbs::find(name) else { return exit::USAGE };
    let mut context = Context::new(args);
    context.warns = verbs::warns(name);
    if verbs::handlers::is_one(name) && context.is_of_usual_file(args) {
        context.find_file(objects_in(args).next());
    }
    context.of_running = of_running || matches!(args.try_get_one::<bool>("told"), Ok(Some(true)));
    if context.tests_files && !["sh-nop", "dump", "dump-xml"].contains(&name) {
        return settle(Err(Problem::usage(format!("{name} acts on the configuration as it is"))
            .hint("--config-to-test and --config-to-exclude are for: sh-nop, dump, dump-xml")));
    }
    let call = Call { context: &context, verb: name, line: argv, args };
    match verb.action {
        Action::Once(_) if context.dry_run => settle(verbs::dry_run::once(verb, &call).map(say)),
        Action::Once(act) | Action::Look(act) => settle(act(&call)),
        Action::Each(_) | Action::SideBySide(_) if context.dry_run => {
            for_each(&call, verb, |target| verbs::dry_run::lines(verb, &call, target).map(say))
        }
        Action::Each(act) | Action::LookAt(act) => for_each(&call, verb, |target| act(&call, target)),
        Action::SideBySide(_) if verb.name == "down" && verbs::lifecycle::is_not_of_its_unit(&call) => 0,
        Action::SideBySide(act) => side_by_side(&call, verb, |target| act(&call, target)),
    }
}

/// Prints what the parser says, which may be help; gives the exit status.
fn complain(error: &clap::Error) -> u8 {
    let _ = error.print();
    if error.use_stderr() { exit::USAGE } else { 0 }
}

/// `urbd r0 up`: what was meant.
fn verb_behind_its_object(argv: &[OsString]) -> Option<Problem> {
    let words: Vec<&str> = argv.iter().skip(1).map(|word| word.to_str()).collect::<Option<_>>()?;
    let at = words.iter().position(|word| verbs::find(word).is_some())?;
    let (before, verb) = (words[..at].join(" "), words[at]);
    let meant = [&[verb], &words[..at], &words[at + 1..]].concat().join(" ");
    Some(Problem::usage(format!("{before} {verb}: the verb comes first")).hint(format!("urbd {meant}")))
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
    in_order(&targets, act, |result| worst = worst.max(settle(result)));
    worst
}

/// What `ask` says of each, in their order; several are asked at a time, and each of those may wait.
pub(crate) fn of_each<T: Sync, R: Send>(all: &[T], ask: impl Fn(&T) -> R + Sync) -> Vec<R> {
    let mut answers = Vec::new();
    in_order(all, ask, |answer| answers.push(answer));
    answers
}

/// Several at a time. `take` gets what came of them in their order, each as soon as those before it have ended.
fn in_order<T: Sync, R: Send>(all: &[T], act: impl Fn(&T) -> R + Sync, mut take: impl FnMut(R)) {
    let next = AtomicUsize::new(0);
    let (tell, told) = mpsc::channel();
    thread::scope(|scope| {
        for _ in 0..at_a_time().min(all.len()) {
            let (next, act, tell) = (&next, &act, tell.clone());
            scope.spawn(move || {
                loop {
                    let nr = next.fetch_add(1, Ordering::Relaxed);
                    let Some(one) = all.get(nr) else { return };
                    let _ = tell.send((nr, act(one)));
                }
            });
        }
        drop(tell);
        let (mut ended, mut waiting) = (BTreeMap::new(), 0);
        for (nr, result) in told {
            ended.insert(nr, result);
            while let Some(result) = ended.remove(&waiting) {
                take(result);
                waiting += 1;
            }
        }
    });
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
    root.subcommands(verbs::all().map(subcommand)).subcommands(programs::OF_LAB.map(programs::command))
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

/// The general options, their letters, and whether they take a value.
pub(crate) const GENERAL: [(&str, Option<char>, bool); 7] = [
    ("config", Some('c'), true),
    ("node", None, true),
    ("dry-run", Some('d'), false),
    ("stacked", Some('S'), false),
    ("verbose", Some('v'), false),
    ("config-to-test", Some('t'), true),
    ("config-to-exclude", Some('E'), true),
];

pub(crate) fn general_options() -> Vec<Arg> {
    let option = |name: &'static str, short: Option<char>, value, help| {
        Arg::new(name).long(name).short(short).value_name(value).help(help).global(true).action(ArgAction::Set)
    };
    let flag = |name: &'static str, short, help| {
        Arg::new(name).long(name).short(short).help(help).global(true).action(ArgAction::SetTrue)
    };
    vec![
        option("config", Some('c'), "FILE", "Configuration file [env: URBD_CONF; else /etc/urbd.conf, /etc/drbd.conf]")
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
        // Its letter is t, but not with verbs that have another option of that letter.
        option("config-to-test", None, "FILE", "Read this file behind the others: sh-nop, dump and dump-xml only")
            .action(ArgAction::Append),
        option("config-to-exclude", Some('E'), "FILE", "Read as if no file included this one: as --config-to-test")
            .action(ArgAction::Append),
    ]
}

fn subcommand(verb: &'static Verb) -> Command {
    let mut command = Command::new(verb.name).about(verb.help).hide(verb.hidden).args(verb.options.iter().map(option));
    command = command.args(options::settable(verb.settings).map(setting));
    let objects = Arg::new("object").value_name(verb.takes.usage()).action(ArgAction::Append);
    command = match verb.takes {
        Takes::Nothing => command,
        Takes::OptionalResource | Takes::Hosts => command.arg(objects.num_args(0..)),
        Takes::Disks => command.arg(objects.num_args(1..).required(true).help("Disks, or texts that dump-md has made")),
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

/// The words in the order that the parser wants. Words that are no text are left to it.
fn rearrange(argv: Vec<OsString>) -> Vec<OsString> {
    let words: Option<Vec<String>> = argv.iter().map(|word| Some(word.to_str()?.to_owned())).collect();
    let Some([program, words @ ..]) = words.as_deref() else { return argv };
    match words::in_order(words) {
        Some(words) => [program.clone()].into_iter().chain(words).map(OsString::from).collect(),
        None => argv,
    }
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

    /// What a line is read as: the verb, its options, its objects.
    fn read(line: &str) -> String {
        let matches = match parse(line) {
            Ok(matches) => matches,
            Err(error) => return format!("{:?}", error.kind()),
        };
        let (verb, args) = matches.subcommand().unwrap();
        let mut words = vec![verb.to_owned()];
        for id in args.ids().map(clap::Id::as_str).filter(|id| *id != "object") {
            if args.value_source(id) != Some(clap::parser::ValueSource::CommandLine) {
                continue;
            }
            match args.try_get_many::<String>(id) {
                Ok(values) => words.extend(values.into_iter().flatten().map(|value| format!("{id}={value}"))),
                Err(_) if id == "verbose" => words.push(format!("verbose={}", args.get_count(id))),
                Err(_) => words.push(id.to_owned()),
            }
        }
        words[1..].sort();
        words.extend(args.try_get_many::<String>("object").ok().flatten().into_iter().flatten().cloned());
        words.join(" ")
    }

    #[test]
    fn command_lines_are_read_as_by_getopt() {
        for (line, expected) in [
            // Options before the verb, with their values behind a blank, and behind a double dash.
            (
                "drbdadm -vvv --max-peers 7 --bitmap-block-size 4096 -- --force create-md r0/0",
                "create-md bitmap-block-size=4096 force max-peers=7 verbose=3 r0/0",
            ),
            ("drbdadm --force primary r0", "primary force r0"),
            ("drbdadm --force create-md r0", "create-md force r0"),
            ("drbdadm --max-peers 7 create-md up", "create-md max-peers=7 up"),
            ("drbdadm -- --assume-clean resize r0/0", "resize assume-clean r0/0"),
            ("drbdadm -- --overwrite-data-of-peer primary all", "primary force all"),
            ("drbdadm --overwrite-data-of-peer primary all", "primary force all"),
            ("drbdadm primary --overwrite-data-of-peer all", "primary force all"),
            ("urbd -c up --node status -v down r0", "down config=up node=status verbose=1 r0"),
            ("urbd -cFILE -Sd up r0", "up config=FILE dry-run stacked r0"),
            // Behind the verb, between the objects.
            ("drbdadm create-md r0/0 --max-peers 7 r1", "create-md max-peers=7 r0/0 r1"),
            ("drbdadm create-md r0 -- --max-peers 7", "create-md max-peers=7 r0"),
            ("drbdadm new-current-uuid --clear-bitmap -- r0/0", "new-current-uuid clear-bitmap r0/0"),
            (
                "drbdadm wait-connect -t 10 -o 5 -w r0",
                "wait-connect outdated-wfc-timeout=5 wait-after-sb wfc-timeout=10 r0",
            ),
            ("drbdadm -t 10 wait-connect r0", "wait-connect wfc-timeout=10 r0"),
            ("drbdadm wait-connect -wt10 r0", "wait-connect wait-after-sb wfc-timeout=10 r0"),
            ("urbd disk-options --al-extents 6007 r0/0", "disk-options al-extents=6007 r0/0"),
            ("urbd disk-options --resync-after -1 r0/0", "disk-options resync-after=-1 r0/0"),
            ("urbd disk-options r0 --disk-flushes --md-flushes=no", "disk-options disk-flushes=yes md-flushes=no r0"),
            // A flag may have yes or no behind it.
            ("drbdadm secondary --force=yes r0", "secondary force r0"),
            ("drbdadm secondary r0 --force=no", "secondary r0"),
            ("drbdadm --wait-after-sb=yes wait-sync r0", "wait-sync wait-after-sb r0"),
            ("drbdadm secondary --force=maybe r0", "TooManyValues"),
            // As much of a name as tells it from the others.
            ("drbdadm --forc primary r0", "primary force r0"),
            ("drbdadm connect --discard r0", "connect discard-my-data r0"),
            ("drbdadm create-md --bitmap 4096 r0", "create-md bitmap-block-size=4096 r0"),
            ("drbdadm create-md --al-stripe 4 r0", "UnknownArgument"),
            // Another file for the configuration to be.
            (
                "drbdadm --config-to-test NEW --config-to-exclude OLD sh-nop",
                "sh-nop config-to-exclude=OLD config-to-test=NEW",
            ),
            ("drbdadm -t NEW -E OLD sh-nop", "sh-nop config-to-exclude=OLD config-to-test=NEW"),
            ("drbdadm sh-nop -t NEW -t MORE", "sh-nop config-to-test=MORE config-to-test=NEW"),
            // What a verb does not know, and what is not there.
            ("drbdadm --max-peers 7 up r0", "UnknownArgument"),
            ("drbdadm up r0 --nonsense", "UnknownArgument"),
            ("drbdadm --force nonsense r0", "UnknownArgument"),
            ("drbdadm --max-peers", "UnknownArgument"),
            ("drbdadm create-md r0 --max-peers", "InvalidValue"),
            ("drbdadm wait-con-int", "wait-con-int"),
            ("drbdadm adjust-with-progress", "adjust-with-progress"),
        ] {
            assert_eq!(read(line), expected, "{line}");
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
