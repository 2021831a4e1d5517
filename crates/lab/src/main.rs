//! `urbd-lab`: the simulator and the benchmark. `urbd sim` and `urbd bench` start it.
//!
//! Purpose: command lines for the crates `sim` and `bench`, in a program that a node does not need.
//!
//! Invariants: what is measured is the program urbd itself, not this one; only a load inside a node, and disks of known
//! speed, are processes of this program.
//!
//! Must never: be needed for serving a resource.
#![deny(unsafe_code)]

mod bench_run;
mod bench_sets;
mod simulate;

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use bench::pair::Programs;
use bench::process::find_program;
use clap::{Arg, ArgMatches, Command};
use urbd::problem::{Problem, exit};

/// Set by urbd, which started this: its own file.
const CALLER: &str = "URBD_PROGRAM";

fn main() -> ExitCode {
    let matches = match parser().try_get_matches() {
        Ok(matches) => matches,
        Err(error) => {
            let _ = error.print();
            return ExitCode::from(if error.use_stderr() { exit::USAGE } else { 0 });
        }
    };
    let result = match matches.subcommand() {
        Some(("manual", args)) => manual(Path::new(text(args, "folder"))),
        Some(("options", _)) => {
            print!("{}", urbd::manual::table_of_options());
            Ok(0)
        }
        Some(("sim", args)) => simulate::run(args),
        Some((_, args)) => bench_sets::run(args),
        None => Err(Problem::usage("bench or sim?")),
    };
    ExitCode::from(result.unwrap_or_else(|problem| {
        problem.report();
        problem.exit
    }))
}

fn parser() -> Command {
    Command::new("urbd-lab")
        .about("The simulator and the benchmark of urbd")
        .version(env!("CARGO_PKG_VERSION"))
        .bin_name(if env::var_os(CALLER).is_some() { "urbd" } else { "urbd-lab" })
        .subcommand_required(true)
        .arg_required_else_help(true)
        .subcommands([bench_sets::command(), simulate::command()])
        .subcommand(
            Command::new("manual")
                .about("Write the pages of urbd's manual; for packages")
                .hide(true)
                .arg(Arg::new("folder").value_name("DIR").required(true)),
        )
        .subcommand(Command::new("options").about("Print the parser's table of options; for tests").hide(true))
}

/// What nodes are started from: the program that has called us, else the one beside us, else the installed one.
///
/// # Errors
/// Exit 20: there is none.
fn programs() -> Result<Programs, Problem> {
    let lab = env::current_exe().map_err(|e| Problem::new(exit::BROKEN, format!("where is this program? {e}")))?;
    let beside = lab.parent().map(|folder| folder.join("urbd")).filter(|file| file.exists());
    let urbd = env::var_os(CALLER).map(PathBuf::from).or(beside).or_else(|| find_program("urbd"));
    let absent = || {
        let folder = lab.parent().unwrap_or(Path::new("/")).display();
        Problem::new(exit::BROKEN, format!("the program urbd is not in {folder}, nor where programs are looked for"))
            .hint("install it, or put its folder into PATH")
    };
    let urbd = urbd.ok_or_else(absent)?;
    Ok(Programs { urbd, lab })
}

/// Writes the manual into `folder`.
///
/// # Errors
/// Exit 20: that is not possible.
fn manual(folder: &Path) -> Result<u8, Problem> {
    for page in urbd::manual::pages() {
        let file = folder.join(page.file);
        fs::write(&file, page.text).map_err(|e| Problem::new(exit::BROKEN, format!("{}: {e}", file.display())))?;
    }
    Ok(0)
}

/// The text of an option or argument.
fn text<'a>(args: &'a ArgMatches, name: &str) -> &'a str {
    args.get_one::<String>(name).map_or("", String::as_str)
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_parser_is_consistent() {
        super::parser().debug_assert();
    }
}
