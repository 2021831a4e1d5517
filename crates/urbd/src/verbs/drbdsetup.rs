//! Called as `drbdsetup`: the commands on running resources that need no configuration
//! (`docs/spec/config-and-cli.md` 3.4).

use std::ffi::OsString;

use crate::cli;
use crate::problem::{Problem, exit};
use crate::verbs;
use crate::words::{self, Given, Known, Name, Value};

/// `drbdsetup` commands, the verbs that do the same for a resource, and how many of resource, peer (by its node id) and
/// volume they take. Those become the object. All must be there; [`WITHOUT_RESOURCE`] do without any.
const COMMANDS: [(&str, &str, usize); 25] = [
    ("status", "status", 1),
    ("events2", "events2", 1),
    ("show", "show", 1),
    ("role", "role", 1),
    ("cstate", "cstate", 2),
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
const ON_A_MINOR: [&str; 11] = [
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
];

/// Runs it; gives the exit status.
pub(crate) fn run(arguments: &[OsString]) -> u8 {
    let words: Vec<String> = arguments.iter().map(|a| a.to_string_lossy().into_owned()).collect();
    if let Some(status) = help(&words) {
        return status;
    }
    match as_verb(&words) {
        Ok(argv) => match cli::run(argv.into_iter().map(OsString::from)) {
            // What is a bad call of drbdadm is 20 here.
            exit::USAGE => exit::BROKEN,
            status => status,
        },
        Err(problem) => cli::settle(Err(problem)),
    }
}

/// `help`, `help COMMAND`, `COMMAND --help` and no command at all, with the exit statuses of drbdsetup: 20 unless there
/// is help for a command. `None`: help is not what was asked for.
fn help(words: &[String]) -> Option<u8> {
    let asks = |w: &String| w == "--help" || w == "-h";
    let about = match words.iter().position(|w| !w.starts_with('-')) {
        None if words.is_empty() || words.iter().any(asks) => None,
        Some(0) if words[0] == "help" => words.get(1).filter(|w| !asks(w)),
        Some(at) if words.iter().any(asks) => words.get(at),
        _ => return None,
    };
    let Some((command, usage)) = about.and_then(|command| Some((command, usage(command)?))) else {
        println!("USAGE: drbdsetup COMMAND [ARGUMENTS] [OPTIONS]\n\nCommands:\n    {}", commands().join("\n    "));
        println!("\nUse 'drbdsetup help COMMAND' for one of them.");
        return Some(exit::BROKEN);
    };
    println!("USAGE: drbdsetup {command} {usage}\n\nIts options are those of `urbd {} --help`.", verb_of(command));
    Some(0)
}

/// The arguments of a command, as the real tool writes them.
fn usage(command: &str) -> Option<String> {
    if ON_A_MINOR.contains(&command) {
        return Some(match command {
            "attach" => "{minor} {lower_dev} {meta_data_dev} {meta_data_index}".to_owned(),
            _ => "{minor}".to_owned(),
        });
    }
    let (.., parts) = COMMANDS.iter().find(|(name, ..)| *name == command)?;
    Some(match command {
        "status" | "events2" | "show" | "down" => "{ {resource} | all }".to_owned(),
        _ => ["{resource}", "{peer_node_id}", "{volume}"][..*parts].join(" "),
    })
}

/// All commands, sorted.
pub(crate) fn commands() -> Vec<String> {
    let mut names: Vec<String> = COMMANDS.iter().map(|(name, ..)| *name).chain(ON_A_MINOR).map(str::to_owned).collect();
    names.sort_unstable();
    names
}

/// Is its object a minor?
pub(crate) fn takes_a_minor(command: &str) -> bool {
    ON_A_MINOR.contains(&command)
}

/// The verb that does the same.
pub(crate) fn verb_of(command: &str) -> &str {
    COMMANDS.iter().find(|(name, ..)| *name == command).map_or(command, |(_, verb, _)| verb)
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
    let Some(usage) = usage(command) else { return Err(bad("this command is not known or not needed by urbd")) };
    let bad = |why: &str| bad(why).hint(format!("usage: drbdsetup {command} {usage}"));
    let object = match ON_A_MINOR.contains(&command.as_str()) {
        true => on_minor(command, arguments).map_err(|why| bad(&why))?,
        false => on_resource(command, arguments).map_err(|why| bad(&why))?,
    };
    let mut argv = vec!["urbd".to_owned(), verb_of(command).to_owned()];
    argv.extend(object);
    argv.extend(line.options.into_iter().map(|option| as_option(command, option)));
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
    let places = match (command, more) {
        (_, []) => Vec::new(),
        // The verb compares them with the configuration.
        ("attach", [disk, meta_disk, index]) => {
            vec![format!("--disk={disk}"), format!("--meta-disk={meta_disk}"), format!("--meta-index={index}")]
        }
        ("attach", [_] | [_, _]) => return Err("too few arguments".to_owned()),
        _ => return Err("too many arguments".to_owned()),
    };
    let digits = minor.strip_prefix("/dev/drbd").map_or(minor.as_str(), |d| d.trim_start_matches('/'));
    let minor: u32 = digits.parse().map_err(|_| format!("'{minor}' is no minor or device"))?;
    Ok([format!("minor-{minor}")].into_iter().chain(places).collect())
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
            ("show", "urbd show"),
            ("detach 10 11", "20"),
            ("attach 10 /dev/sda", "20"),
            (
                "attach 10 /dev/sda /dev/sdb 2",
                "urbd attach minor-10 --disk=/dev/sda --meta-disk=/dev/sdb --meta-index=2",
            ),
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
