//! `drbdsetup help` and `drbdsetup xml-help`: the commands, their arguments and options, in the forms of the real tool
//! (`docs/spec/integrations.md` 1a). Options come from the tables that the parser is made of.

use std::fmt::Write as _;

use config::{Group, Kind, OptionSpec, Unit};

use super::{COMMANDS, ON_A_MINOR, verb_of};
use crate::problem::exit;
use crate::verbs::{self, Action, Opt, options, status};

/// Commands that build a resource and take it apart: summary and arguments.
const BUILDING: [(&str, &str, &[&str]); 10] = [
    ("new-resource", "Create a resource", &["resource", "node_id"]),
    ("new-minor", "Create a device of a resource", &["resource", "minor", "volume"]),
    ("new-peer", "Make a peer known to a resource", &["resource", "peer_node_id"]),
    ("new-path", "Add a pair of addresses to a connection", &["resource", "peer_node_id", "local-addr", "remote-addr"]),
    ("del-path", "Remove a pair of addresses", &["resource", "peer_node_id", "local-addr", "remote-addr"]),
    ("del-peer", "Remove the connection to a peer", &["resource", "peer_node_id"]),
    ("forget-peer", "Remove a peer from the metadata", &["resource", "peer_node_id"]),
    ("del-minor", "Remove a device", &["minor"]),
    ("del-resource", "Remove a resource", &["resource"]),
    ("rename-resource", "Give a resource another name", &["resource", "new_name"]),
];
/// The names of those that build.
pub(super) fn building() -> impl Iterator<Item = &'static str> {
    BUILDING.iter().map(|(name, ..)| *name)
}

/// How the values of an option are written.
enum Form {
    Flag,
    Boolean(bool),
    Text,
    Words(&'static [&'static str]),
    Number { unit: Unit, default: i128, min: i128, max: i128 },
    NumberOrWord { words: &'static [&'static str], default: &'static str, min: u64, max: u64 },
}

/// `help`, `help COMMAND`, `COMMAND --help` and no command at all, with the exit statuses of drbdsetup: 20 unless there
/// is help for a command. `None`: help is not what was asked for.
pub(super) fn answer(words: &[String]) -> Option<u8> {
    let asks = |w: &String| w == "--help" || w == "-h";
    let first = words.iter().position(|w| !w.starts_with('-'));
    let about = match first {
        None if words.is_empty() || words.iter().any(asks) => None,
        Some(0) if matches!(words[0].as_str(), "help" | "xml-help") => words.get(1).filter(|w| !asks(w)),
        Some(at) if words.iter().any(asks) => words.get(at),
        _ => return None,
    };
    let Some(command) = about else {
        status::print(&overview());
        return Some(exit::BROKEN);
    };
    let Some(arguments) = arguments(command) else {
        status::print(&(overview() + "\nunknown command\n"));
        return Some(exit::BROKEN);
    };
    let text = if first == Some(0) && words[0] == "xml-help" { xml } else { plain };
    status::print(&text(command, &arguments));
    Some(0)
}

/// The arguments of a command, as the real tool writes them in its usage.
pub(super) fn usage(command: &str) -> Option<String> {
    let arguments = arguments(command)?;
    if arguments.is_empty() {
        return Some("{ {resource} | all }".to_owned());
    }
    Some(arguments.iter().map(|name| format!("{{{name}}}")).collect::<Vec<_>>().join(" "))
}

/// The names of its arguments; none of those that take a resource or `all`. `None`: there is no such command.
fn arguments(command: &str) -> Option<Vec<&'static str>> {
    if let Some((.., arguments)) = BUILDING.iter().find(|(name, ..)| *name == command) {
        return Some(arguments.to_vec());
    }
    if command == "attach" {
        return Some(vec!["minor", "lower_dev", "meta_data_dev", "meta_data_index"]);
    }
    if ON_A_MINOR.contains(&command) {
        return Some(vec!["minor"]);
    }
    let (.., parts) = COMMANDS.iter().find(|(name, ..)| *name == command)?;
    Some(match command {
        "status" | "events2" | "show" | "down" => Vec::new(),
        _ => ["resource", "peer_node_id", "volume"][..*parts].to_vec(),
    })
}

/// One sentence.
fn summary(command: &str) -> String {
    let own = BUILDING.iter().find(|(name, ..)| *name == command).map(|(_, summary, _)| *summary);
    let text = own.or_else(|| verbs::find(verb_of(command)).map(|verb| verb.help));
    format!("{}.", text.unwrap_or("Remember the size of the backing disk"))
}

/// The options of a command. Of those that take options of the configuration, only DRBD 9's: who reads them (LINSTOR)
/// writes DRBD 9's files.
fn options_of(command: &str) -> Vec<(&'static str, Form)> {
    let own = || {
        let verb = verbs::find(verb_of(command));
        let looks = verb.is_some_and(|v| matches!(v.action, Action::Look(_) | Action::LookAt(_)));
        let options = verb.into_iter().flat_map(|verb| verb.options).filter(|option| !option.hidden);
        options.map(move |option| (option.name, form_of_own(option, looks))).collect::<Vec<_>>()
    };
    let known = |spec: &&OptionSpec| spec.in_9;
    let settable = |group: Group, groups: &'static [Group]| {
        let settable = options::settable(groups).filter(known).filter(move |spec| spec.group == group);
        own().into_iter().chain(settable.map(|spec| (spec.name, form_of(spec)))).collect()
    };
    let all = |group: Group| {
        let of_group = config::options().filter(known).filter(|spec| spec.group == group);
        of_group.map(|spec| (spec.name, form_of(spec))).collect()
    };
    match command {
        "resource-options" => settable(Group::Resource, options::RESOURCE),
        "net-options" => settable(Group::Net, options::NET),
        "disk-options" => settable(Group::Disk, options::DISK),
        "peer-device-options" => settable(Group::PeerDevice, options::PEER_DEVICE),
        "new-resource" => all(Group::Resource),
        "new-peer" => all(Group::Net),
        "new-minor" => all(Group::Device),
        "attach" => all(Group::Disk),
        "detach" => own().into_iter().chain([("diskless", Form::Boolean(false))]).collect(),
        "del-peer" => vec![("force", Form::Boolean(false))],
        _ => own(),
    }
}

/// Of an option that only a verb has.
fn form_of_own(option: &Opt, looks: bool) -> Form {
    match option.value {
        None if looks || option.name == "set-defaults" => Form::Flag,
        None => Form::Boolean(false),
        Some("yes|no") => Form::Boolean(true),
        Some("SIZE" | "SECTOR") => Form::Number { unit: Unit::Sector, default: 0, min: 0, max: 1 << 41 },
        Some(_) => Form::Text,
    }
}

/// Of an option of the configuration.
fn form_of(spec: &OptionSpec) -> Form {
    match spec.kind {
        Kind::Number { unit, default, min, max } => {
            Form::Number { unit, default: default.into(), min: min.into(), max: max.into() }
        }
        Kind::NumberOrWord { words, default, min, max } => Form::NumberOrWord { words, default, min, max },
        Kind::Choice { words, .. } => Form::Words(words),
        Kind::Bool { default } => Form::Boolean(default),
        Kind::Flag => Form::Flag,
        Kind::Text { .. } | Kind::Command => Form::Text,
        // By minors here; the greatest minor is 2^20 - 1.
        Kind::ResyncAfter { .. } => Form::Number { unit: Unit::One, default: -1, min: -1, max: (1 << 20) - 1 },
    }
}

/// Prefix of the unit of a number without a suffix, and its name; as in the real tool some have none.
fn unit_names(name: &str, unit: Unit) -> (&'static str, &'static str) {
    const PLAIN_BYTES: [&str; 5] =
        ["max-bio-size", "block-size", "discard-granularity", "rdma-ctrl-rcvbuf-size", "rdma-ctrl-sndbuf-size"];
    match unit {
        Unit::Decisecond if name == "socket-check-timeout" => ("1", ""),
        Unit::Byte if PLAIN_BYTES.contains(&name) => ("1", ""),
        Unit::Byte => ("1", "bytes"),
        Unit::Sector => ("s", "bytes"),
        Unit::KibPerSecond => ("k", "bytes/second"),
        Unit::Decisecond => ("1", "1/10 seconds"),
        Unit::Second | Unit::TimeSpan => ("1", "seconds"),
        Unit::Millisecond => ("1", "milliseconds"),
        Unit::Microsecond => ("1", "microseconds"),
        Unit::One | Unit::Percent => ("1", ""),
    }
}

/// As `drbdsetup xml-help`.
fn xml(command: &str, arguments: &[&str]) -> String {
    let mut text = format!("<command name=\"{command}\">\n\t<summary>{}</summary>\n", summary(command));
    match arguments {
        [] => text += "\t<group>\n\t\t<argument>resource</argument>\n\t\t<argument>all</argument>\n\t</group>\n",
        _ => text.extend(arguments.iter().map(|name| format!("\t<argument>{name}</argument>\n"))),
    }
    for (name, form) in options_of(command) {
        text += &xml_of_option(name, &form);
    }
    text + "</command>\n"
}

fn xml_of_option(name: &str, form: &Form) -> String {
    let mut lines = Vec::new();
    let mut line = |tag: &str, text: String| lines.push(format!("\t\t<{tag}>{text}</{tag}>\n"));
    let kind = match form {
        Form::Flag => "flag",
        Form::Text => "string",
        Form::Boolean(default) => {
            line("default", if *default { "yes" } else { "no" }.to_owned());
            "boolean"
        }
        Form::Words(words) => {
            words.iter().for_each(|word| line("handler", (*word).to_owned()));
            "handler"
        }
        Form::Number { unit, default, min, max } => {
            let (prefix, unit) = unit_names(name, *unit);
            line("min", min.to_string());
            line("max", max.to_string());
            line("default", default.to_string());
            line("unit_prefix", prefix.to_owned());
            if !unit.is_empty() {
                line("unit", unit.to_owned());
            }
            "numeric"
        }
        Form::NumberOrWord { words, default, min, max } => {
            line("min", min.to_string());
            line("max", max.to_string());
            line("default", (*default).to_owned());
            words.iter().for_each(|word| line("symbol", (*word).to_owned()));
            "numeric-or-symbol"
        }
    };
    format!("\t<option name=\"{name}\" type=\"{kind}\">\n{}\t</option>\n", lines.concat())
}

/// As `drbdsetup help COMMAND`.
fn plain(command: &str, _: &[&str]) -> String {
    let usage = usage(command).unwrap_or_default();
    let mut text = format!("drbdsetup {command} - {}\n\nUSAGE: drbdsetup {command} {usage}\n", summary(command));
    let mut line = String::new();
    for (name, form) in options_of(command) {
        let values = match form {
            Form::Flag => String::new(),
            Form::Text => "=<str>".to_owned(),
            Form::Boolean(_) => "={yes|no}".to_owned(),
            Form::Words(words) => format!("={{{}}}", words.join("|")),
            Form::Number { min, max, .. } => format!("=({min} ... {max})"),
            Form::NumberOrWord { words, min, max, .. } => format!("={{{}}}|({min} ... {max})", words.join("|")),
        };
        let option = format!("[--{name}{values}]");
        if !line.is_empty() && line.len() + option.len() > 74 {
            text += &format!("   {line}\n");
            line.clear();
        }
        // Writing to a string cannot fail.
        let _ = write!(line, " {option}");
    }
    if !line.is_empty() {
        text += &format!("   {line}\n");
    }
    text
}

/// All commands.
fn overview() -> String {
    let lines =
        |names: &[String]| names.iter().map(|name| format!("    {name} - {}\n", summary(name))).collect::<String>();
    format!(
        "USAGE: drbdsetup COMMAND [ARGUMENTS] [OPTIONS]\n\nCommands:\n{}\n\
         Use 'drbdsetup help COMMAND' for one of them; 'drbdsetup xml-help COMMAND' says the same to programs.\n",
        lines(&super::commands())
    )
}
