//! `sim`: a command line for the simulator of whole clusters (`crates/sim/README.md`).

use clap::{Arg, ArgAction, ArgMatches, Command};
use sim::{Campaign, FAILED};

use urbd::problem::{Problem, exit};

/// The parser of `sim`.
pub(crate) fn command() -> Command {
    let options = sim::OPTIONS.iter().map(|option| {
        let arg = Arg::new(option.name).long(option.name).help(option.help);
        match option.value {
            Some(value) => arg.value_name(value).action(ArgAction::Set),
            None => arg.action(ArgAction::SetTrue),
        }
    });
    Command::new("sim").about("Simulate whole clusters with this program's core, and check every promise").args(options)
}

/// `sim …`: 0 if nothing failed, else 10.
///
/// # Errors
/// Exit 1: a bad call. Exit 20: the ledger cannot be read or written.
pub(crate) fn run(args: &ArgMatches) -> Result<u8, Problem> {
    // The simulator also asks for options that it was built without.
    let given = |name: &str| match args.try_get_one::<bool>(name) {
        Ok(flag) => flag.is_some_and(|given| *given).then_some(""),
        Err(_) => args.try_get_one::<String>(name).ok().flatten().map(String::as_str),
    };
    let campaign = Campaign::from_options(&given).map_err(Problem::usage)?;
    let failed = campaign.run().map_err(|text| Problem::new(exit::BROKEN, text))?;
    Ok(if failed { FAILED } else { 0 })
}
