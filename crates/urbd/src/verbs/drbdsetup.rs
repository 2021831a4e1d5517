//! Called as `drbdsetup`: the commands on running resources that need no configuration
//! (`docs/spec/config-and-cli.md` 3.4).

use std::ffi::OsString;

use crate::cli;
use crate::problem::{Problem, exit};

/// `drbdsetup` commands and the verbs that do the same for a resource; peers and volumes become part of the object.
const COMMANDS: [(&str, &str, usize); 23] = [
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
    ("wait-sync-resource", "wait-sync", 1),
    ("wait-sync-connection", "wait-sync", 2),
];
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
    match as_verb(&words) {
        Ok(argv) => match cli::run(argv.into_iter().map(OsString::from)) {
            // What is a bad call of drbdadm is 20 here.
            exit::USAGE => exit::BROKEN,
            status => status,
        },
        Err(problem) => cli::settle(Err(problem)),
    }
}

/// The command line of the verb that does the same.
fn as_verb(words: &[String]) -> Result<Vec<String>, Problem> {
    let (options, positional): (Vec<&String>, Vec<&String>) = words.iter().partition(|w| w.starts_with('-'));
    let bad = |why: &str| Problem::new(exit::BROKEN, format!("drbdsetup {}: {why}", words.join(" ")));
    let [command, arguments @ ..] = positional.as_slice() else { return Err(bad("no command")) };
    let mut argv = vec!["urbd".to_owned()];
    if ON_A_MINOR.contains(&command.as_str()) {
        let [device, ..] = arguments else { return Err(bad("a minor number is missing")) };
        let digits = device.strip_prefix("/dev/drbd").map_or(device.as_str(), |d| d.trim_start_matches('/'));
        let minor: u32 = digits.parse().map_err(|_| bad(&format!("'{device}' is no minor or device")))?;
        argv.extend([command.to_string(), format!("minor-{minor}")]);
    } else {
        let known = COMMANDS.iter().find(|(name, ..)| name == command);
        let (_, verb, most) = known.ok_or_else(|| bad("this command is not known or not needed by urbd"))?;
        if arguments.len() > *most {
            return Err(bad("too many arguments"));
        }
        argv.push((*verb).to_owned());
        match arguments {
            [] if matches!(*command, c if c == "status" || c == "events2") => {}
            [] => return Err(bad("a resource is missing")),
            [resource] => argv.push(resource.to_string()),
            [resource, peer] => argv.push(format!("{resource}:{peer}")),
            [resource, peer, volume, ..] => argv.push(format!("{resource}:{peer}/{volume}")),
        }
    }
    // Here `-d` is a time limit; as a verb's option it would be a dry run.
    let spelled_out = |option: &String| match option.strip_prefix("-d") {
        Some(seconds) if command.starts_with("wait-") => format!("--degr-wfc-timeout={seconds}"),
        _ => option.clone(),
    };
    argv.extend(options.into_iter().map(spelled_out));
    Ok(argv)
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
            (
                "disk-options 10 --set-defaults --al-extents=6007",
                "urbd disk-options minor-10 --set-defaults --al-extents=6007",
            ),
            ("peer-device-options r0 1 0 --c-min-rate=4M", "urbd peer-device-options r0:1/0 --c-min-rate=4M"),
            ("wait-connect-resource -d5 -t10 r0", "urbd wait-connect r0 --degr-wfc-timeout=5 -t10"),
            ("nonsense", "20"),
            ("primary", "20"),
            ("dstate drbd10", "20"),
            ("", "20"),
        ] {
            assert_eq!(translated(command), verb, "{command}");
        }
    }
}
