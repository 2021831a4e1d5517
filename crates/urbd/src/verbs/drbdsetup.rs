//! Called as `drbdsetup`: the commands on running resources that need no configuration
//! (`docs/spec/config-and-cli.md` 3.4).

mod building;
mod help;

use std::ffi::OsString;

use crate::cli;
use crate::context::Context;
use crate::problem::{Problem, exit};
use crate::verbs;
use crate::words::{self, Given, Known, Name, Value};

/// `drbdsetup` commands, the verbs that do the same for a resource, and how many of resource, peer (by its node id) and
/// volume they take. Those become the object. All must be there; [`WITHOUT_RESOURCE`] do without any.
const COMMANDS: [(&str, &str, usize); 26] = [
    ("status", "status", 1),
    ("events2", "events2", 1),
    ("show", "show", 1),
    ("role", "role", 1),
    ("cstate", "cstate", 2),
    ("peer-role", "peer-role", 2),
    ("primary", "primary", 1),
    ("secondary", "secondary", 1),
    ("down", "down", 1),
    ("connect", "connect", 2),
    ("disconnect", "disconnect", 2),
    ("invalidate-remote", "invalidate-remote", 3),
    ("verify", "verify", 3),
    ("pause-sync", "pause-sync", 3),
    ("resume-sync", "resume-sync", 3),
    ("resource-options", "resource-options", 1),
    ("net-options", "net-options", 2),
    ("peer-device-options", "peer-device-options", 3),
    ("get-gi", "get-gi", 3),
    ("show-gi", "show-gi", 3),
    ("wait-connect-resource", "wait-connect", 1),
    ("wait-connect-connection", "wait-connect", 2),
    ("wait-connect-volume", "wait-connect", 3),
    ("wait-sync-resource", "wait-sync", 1),
    ("wait-sync-connection", "wait-sync", 2),
    ("wait-sync-volume", "wait-sync", 3),
];
/// Without a resource: all that run.
const WITHOUT_RESOURCE: [&str; 3] = ["status", "events2", "show"];
/// Commands whose only argument is a minor number or a device.
const ON_A_MINOR: [&str; 12] = [
    "disk-options",
    "dstate",
    "attach",
    "detach",
    "invalidate",
    "suspend-io",
    "resume-io",
    "outdate",
    "resize",
    "check-resize",
    "new-current-uuid",
    "udev",
];

/// Runs it; gives the exit status.
pub(crate) fn run(arguments: &[OsString]) -> u8 {
    let words: Vec<String> = arguments.iter().map(|a| a.to_string_lossy().into_owned()).collect();
    if let Some(status) = help::answer(&words) {
        return status;
    }
    if words.first().is_some_and(|first| first == "--version" || first == "-V") {
        verbs::status::print(&verbs::completion::version_words());
        return 0;
    }
    if building::is_one(&words) {
        let mut context = Context::of_environment();
        context.of_running = true;
        return cli::settle(building::run(&context, &words));
    }
    match as_verb(&words) {
        Ok(argv) => match cli::run_on_running(argv.into_iter().map(OsString::from)) {
            // What is a bad call of drbdadm is 20 here.
            exit::USAGE => exit::BROKEN,
            status => status,
        },
        Err(problem) => cli::settle(Err(problem)),
    }
}

/// All commands, sorted.
pub(crate) fn commands() -> Vec<String> {
    let verbs = COMMANDS.iter().map(|(name, ..)| *name).chain(ON_A_MINOR);
    let mut names: Vec<String> = verbs.chain(help::building()).map(str::to_owned).collect();
    names.sort_unstable();
    names
}

/// Is its object a minor?
pub(crate) fn takes_a_minor(command: &str) -> bool {
    ON_A_MINOR.contains(&command)
}

/// The verb that does the same.
pub(crate) fn verb_of(command: &str) -> &str {
    let known = COMMANDS.iter().find(|(name, ..)| *name == command).map(|(_, verb, _)| *verb);
    known.unwrap_or(if command == "udev" { "sh-udev" } else { command })
}

/// The command line of the verb that does the same.
fn as_verb(words: &[String]) -> Result<Vec<String>, Problem> {
    let all = words::of_all();
    let command = words::read(words, &[], &all).operands.into_iter().next().unwrap_or_default();
    let mut own = verbs::find(verb_of(&command)).map(words::of).unwrap_or_default();
    // A time limit here, not a dry run.
    if command.starts_with("wait-") {
        own.insert(0, Known { long: "degr-wfc-timeout", short: Some('d'), value: Value::Required });
    }
    let line = words::read(words, &own, &all);
    let positional: Vec<&String> = line.operands.iter().collect();
    let called = format!("drbdsetup {}", words.join(" "));
    let bad = |why: &str| Problem::new(exit::BROKEN, format!("{called}: {why}"));
    let [command, arguments @ ..] = positional.as_slice() else { return Err(bad("no command")) };
    let Some(usage) = help::usage(command) else {
        return Err(bad("this command is not known or not needed by urbd"));
    };
    let bad = |why: &str| bad(why).hint(format!("usage: drbdsetup {command} {usage}"));
    let object = match ON_A_MINOR.contains(&command.as_str()) {
        true => on_minor(command, arguments).map_err(|why| bad(&why))?,
        false => on_resource(command, arguments).map_err(|why| bad(&why))?,
    };
    let mut argv = vec!["urbd".to_owned(), verb_of(command).to_owned()];
    argv.extend(object);
    // A peer keeps its name, which drbdadm says again.
    let is_name = |option: &Given| matches!(&option.name, Name::Long(name) if name == "_name");
    let options = line.options.into_iter().filter(|option| !(*command == "net-options" && is_name(option)));
    argv.extend(options.map(|option| as_option(command, option)));
    Ok(argv)
}

/// The object of a command on a minor.
fn on_minor(command: &str, arguments: &[&String]) -> Result<Vec<String>, String> {
    // drbdadm calls `outdate RES MINOR`, see appendix B of the specification.
    let arguments = match (command, arguments) {
        ("outdate", [_, minor]) => std::slice::from_ref(minor),
        _ => arguments,
    };
    let (minor, more) = arguments.split_first().ok_or("a minor number is missing")?;
    if !more.is_empty() {
        return Err("too many arguments".to_owned());
    }
    let minor: u32 = building::number_of(minor).parse().map_err(|_| format!("'{minor}' is no minor or device"))?;
    Ok(vec![format!("minor-{minor}")])
}

/// The object of a command on a resource, its connection or peer device.
fn on_resource(command: &str, arguments: &[&String]) -> Result<Vec<String>, String> {
    let parts = COMMANDS.iter().find(|(name, ..)| *name == command).map_or(0, |(.., parts)| *parts);
    if arguments.is_empty() && WITHOUT_RESOURCE.contains(&command) {
        return Ok(Vec::new());
    }
    if arguments.len() > parts {
        return Err("too many arguments".to_owned());
    }
    if arguments.len() < parts {
        let missing = ["a resource is missing", "the node id of the peer is missing", "the volume is missing"];
        return Err(missing[arguments.len()].to_owned());
    }
    let object = match arguments {
        [resource, peer] => format!("{resource}:{peer}"),
        [resource, peer, volume] => format!("{resource}:{peer}/{volume}"),
        _ => arguments[0].to_string(),
    };
    Ok(vec![object])
}

/// The same option of the verb.
fn as_option(command: &str, option: Given) -> String {
    let long = match option.name {
        Name::Short('d') if command.starts_with("wait-") => "degr-wfc-timeout",
        Name::Long(ref name) if command == "primary" && name == words::OVERWRITE => "force",
        _ => return option.spelled(),
    };
    Given { name: Name::Long(long.to_owned()), ..option }.spelled()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn translated(line: &str) -> String {
        let words: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
        as_verb(&words).map_or_else(|p| p.exit.to_string(), |argv| argv.join(" "))
    }

    #[test]
    fn commands_become_verbs() {
        for (command, verb) in [
            ("status --json", "urbd status --json"),
            ("events2 all --now", "urbd events2 all --now"),
            ("--force primary r0", "urbd primary r0 --force"),
            ("cstate r0 1", "urbd cstate r0:1"),
            ("get-gi r0 1 0", "urbd get-gi r0:1/0"),
            ("dstate 10", "urbd dstate minor-10"),
            ("detach /dev/drbd/10 --force", "urbd detach minor-10 --force"),
            ("invalidate 10 --reset-bitmap=no", "urbd invalidate minor-10 --reset-bitmap=no"),
            ("invalidate-remote r0 1 0 --reset-bitmap=no", "urbd invalidate-remote r0:1/0 --reset-bitmap=no"),
            (
                "disk-options 10 --set-defaults --al-extents=6007",
                "urbd disk-options minor-10 --set-defaults --al-extents=6007",
            ),
            ("peer-device-options r0 1 0 --c-min-rate=4M", "urbd peer-device-options r0:1/0 --c-min-rate=4M"),
            ("wait-connect-resource -d5 -t10 r0", "urbd wait-connect r0 --degr-wfc-timeout=5 -t10"),
            ("wait-sync-volume r0 1 0", "urbd wait-sync r0:1/0"),
            ("outdate r0 10", "urbd outdate minor-10"),
            ("primary r0 --force=yes", "urbd primary r0 --force"),
            ("primary r0 --force=no", "urbd primary r0"),
            ("-- --force primary r0", "urbd primary r0 --force"),
            ("--forc primary r0", "urbd primary r0 --force"),
            ("primary --overwrite-data-of-peer r0", "urbd primary r0 --force"),
            ("wait-connect-resource --wfc-timeout 10 r0", "urbd wait-connect r0 --wfc-timeout=10"),
            ("wait-connect-resource -d 5 -t 10 r0", "urbd wait-connect r0 --degr-wfc-timeout=5 -t10"),
            (
                "wait-connect-resource --wait-after-sb=yes --wfc-timeout=10 r0",
                "urbd wait-connect r0 --wait-after-sb --wfc-timeout=10",
            ),
            ("--al-extents 6007 disk-options 10", "urbd disk-options minor-10 --al-extents=6007"),
            ("peer-device-options --c-min-rate 4M r0 1 0", "urbd peer-device-options r0:1/0 --c-min-rate=4M"),
            ("verify --start 8 r0 1 0 --stop 16s", "urbd verify r0:1/0 --start=8 --stop=16s"),
            (
                "net-options r0 1 --set-defaults --_name=b --timeout=50",
                "urbd net-options r0:1 --set-defaults --timeout=50",
            ),
            ("show", "urbd show"),
            ("udev 10", "urbd sh-udev minor-10"),
            ("peer-role r0 1", "urbd peer-role r0:1"),
            ("detach 10 11", "20"),
            ("attach 10 /dev/sda", "20"),
            ("role r0 1", "20"),
            ("cstate r0", "20"),
            ("verify r0 1", "20"),
            ("nonsense", "20"),
            ("primary", "20"),
            ("dstate drbd10", "20"),
            ("", "20"),
        ] {
            assert_eq!(translated(command), verb, "{command}");
        }
    }
}
