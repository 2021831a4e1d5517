//! `sim` and `bench`: a program of their own, `urbd-lab`, so that a node does not carry them.

use std::env;
use std::ffi::OsString;
use std::io::ErrorKind;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command as Process;

use clap::{Arg, ArgAction, ArgMatches, Command, value_parser};

use crate::context::Context;
use crate::problem::{Problem, exit};
use crate::verbs::dry_run;

/// What `urbd-lab` is for.
pub(crate) const NAMES: [&str; 2] = ["sim", "bench"];
/// Its file, beside this program or in [`LIBEXEC`].
const PROGRAM: &str = "urbd-lab";
/// Where a package puts programs that are not called by name.
const LIBEXEC: &str = "/usr/libexec/urbd";
/// Tells it which program its nodes run.
const CALLER: &str = "URBD_PROGRAM";

/// The parser of one of [`NAMES`]: everything behind it is for `urbd-lab`.
pub(crate) fn command(name: &'static str) -> Command {
    let all = Arg::new("arguments").action(ArgAction::Append).num_args(0..).trailing_var_arg(true);
    let all = all.allow_hyphen_values(true).value_parser(value_parser!(OsString));
    Command::new(name).hide(true).disable_help_flag(true).arg(all)
}

/// Becomes `urbd-lab NAME …`.
///
/// # Errors
/// Exit 20: it is not installed, or cannot be started. Exit 1: a dry run was asked for.
pub(crate) fn run(context: &Context, name: &str, args: &ArgMatches) -> Result<u8, Problem> {
    if context.dry_run {
        return Err(dry_run::none(name));
    }
    let own = env::current_exe().map_err(|e| Problem::new(exit::BROKEN, format!("where is this program? {e}")))?;
    let Some(program) = find(&own) else { return Err(absent(name, &own)) };
    let arguments = args.get_many::<OsString>("arguments").into_iter().flatten();
    let mut command = Process::new(&program);
    command.arg(name).args(arguments).env(CALLER, own);
    command.env("URBD_CONF", &context.config_file).env("URBD_NODE", &context.node);
    let failed = command.exec();
    match failed.kind() {
        ErrorKind::NotFound => Err(absent(name, &program)),
        _ => Err(Problem::new(exit::BROKEN, format!("cannot start {}: {failed}", program.display()))),
    }
}

fn find(own: &Path) -> Option<PathBuf> {
    [own.parent()?, Path::new(LIBEXEC)].map(|folder| folder.join(PROGRAM)).into_iter().find(|file| file.exists())
}

fn absent(name: &str, own: &Path) -> Problem {
    let folder = own.parent().unwrap_or(Path::new("/")).display();
    Problem::new(exit::BROKEN, format!("{name} needs the program {PROGRAM}, which is not in {folder} nor in {LIBEXEC}"))
        .hint("install the package urbd-lab; from source: cargo build --release -p urbd-lab")
}
