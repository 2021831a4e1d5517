//! Verbs that programs of their own serve, so that the process that holds the data has none of what they are made of.

use std::env;
use std::ffi::OsString;
use std::io::ErrorKind;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command as Process;

use clap::{Arg, ArgAction, ArgMatches, Command, value_parser};

use crate::cli::Call;
use crate::context::Context;
use crate::problem::{Problem, exit};
use crate::verbs::dry_run;

/// What `urbd-lab` is for.
pub(crate) const OF_LAB: [&str; 2] = ["sim", "bench"];
/// What `urbd-watch` is for.
pub(crate) const OF_WATCH: [&str; 2] = ["top", "web"];
/// The simulator and the benchmark.
const LAB: Program = Program { name: "urbd-lab", package: "urbd-lab" };
/// What shows resources, in a terminal and in a browser.
const WATCH: Program = Program { name: "urbd-watch", package: "urbd" };
/// Where a package puts programs that are not called by name.
const LIBEXEC: &str = "/usr/libexec/urbd";
/// Tells it which program has started it.
const CALLER: &str = "URBD_PROGRAM";

/// A program that this one becomes. Its file is beside ours, or in [`LIBEXEC`].
struct Program {
    name: &'static str,
    package: &'static str,
}

/// The parser of one of [`OF_LAB`]: everything behind it is for `urbd-lab`.
pub(crate) fn command(name: &'static str) -> Command {
    let all = Arg::new("arguments").action(ArgAction::Append).num_args(0..).trailing_var_arg(true);
    let all = all.allow_hyphen_values(true).value_parser(value_parser!(OsString));
    Command::new(name).hide(true).disable_help_flag(true).arg(all)
}

/// Becomes `urbd-lab NAME …`.
///
/// # Errors
/// Exit 20: it is not installed, or cannot be started. Exit 1: a dry run was asked for.
pub(crate) fn lab(context: &Context, name: &str, args: &ArgMatches) -> Result<u8, Problem> {
    if context.dry_run {
        return Err(dry_run::none(name));
    }
    let arguments = args.get_many::<OsString>("arguments").into_iter().flatten();
    LAB.start(name, |program| {
        program.arg(name).args(arguments);
        program.env("URBD_CONF", &context.config_file).env("URBD_NODE", &context.node);
    })
}

/// Becomes `urbd-watch`, with the whole command line, which is known to be one that it understands.
///
/// # Errors
/// Exit 20: it is not installed, or cannot be started.
pub(crate) fn watch(call: &Call) -> Result<u8, Problem> {
    let [own, words @ ..] = call.line else { return Err(Problem::usage("top or web?")) };
    WATCH.start(call.verb, |program| _ = program.arg0(own).args(words))
}

impl Program {
    /// Becomes it; returns only if that fails.
    fn start(&self, verb: &str, prepare: impl FnOnce(&mut Process)) -> Result<u8, Problem> {
        let own = env::current_exe().map_err(|e| Problem::new(exit::BROKEN, format!("where is this program? {e}")))?;
        let Some(file) = self.find(&own) else { return Err(self.absent(verb, &own)) };
        let mut process = Process::new(&file);
        prepare(&mut process);
        let failed = process.env(CALLER, &own).exec();
        match failed.kind() {
            ErrorKind::NotFound => Err(self.absent(verb, &file)),
            _ => Err(Problem::new(exit::BROKEN, format!("cannot start {}: {failed}", file.display()))),
        }
    }

    fn find(&self, own: &Path) -> Option<PathBuf> {
        [own.parent()?, Path::new(LIBEXEC)].map(|folder| folder.join(self.name)).into_iter().find(|file| file.exists())
    }

    fn absent(&self, verb: &str, own: &Path) -> Problem {
        let (Program { name, package }, folder) = (self, own.parent().unwrap_or(Path::new("/")).display());
        let missing = format!("{verb} needs the program {name}, which is not in {folder} nor in {LIBEXEC}");
        Problem::new(exit::BROKEN, missing).hint(format!(
            "install the package {package}, or put it there; from source: cargo build --release -p {name}"
        ))
    }
}
