//! The manual: a page for each verb and one for the configuration, made from the tables that parsing and help use.

use std::fmt::Write as _;

use config::{Group, Kind};

use crate::cli;
use crate::explain;
use crate::objects::Takes;
use crate::verbs::{self, Opt, Verb, options};

/// A page in the form of man(7).
pub struct Page {
    /// Name of its file: `urbd-up.8`.
    pub file: String,
    /// Its text.
    pub text: String,
}

/// All pages.
#[must_use]
pub fn pages() -> Vec<Page> {
    let shown = verbs::all().filter(|verb| !verb.hidden);
    [program(), configuration()].into_iter().chain(shown.map(verb)).collect()
}

/// The parser's table of options, for tests that try each of them: a line each, in columns that are separated by tabs:
/// section, name, kind, default, least and greatest number, words.
#[must_use]
pub fn table_of_options() -> String {
    let mut out = String::new();
    for spec in config::options() {
        let section = match spec.group {
            Group::Device | Group::PeerDevice => "disk",
            group => explain::section(group).0,
        };
        let (kind, default, numbers, words): (&str, String, Option<(u64, u64)>, &[&str]) = match spec.kind {
            Kind::Number { default, min, max, .. } => ("number", default.to_string(), Some((min, max)), &[]),
            Kind::NumberOrWord { words, default, min, max } => ("number", default.to_owned(), Some((min, max)), words),
            Kind::Choice { words, default } => ("choice", default.to_owned(), None, words),
            Kind::Bool { default: true } => ("choice", "yes".to_owned(), None, &["yes", "no"]),
            Kind::Bool { default: false } => ("choice", "no".to_owned(), None, &["yes", "no"]),
            Kind::Flag => ("flag", String::new(), None, &[]),
            Kind::Text { default, .. } => ("text", default.to_owned(), None, &[]),
            Kind::ResyncAfter { .. } => ("resync-after", String::new(), None, &[]),
            Kind::Command => ("command", String::new(), None, &[]),
        };
        let (least, most) = numbers.map_or_else(Default::default, |(a, b)| (a.to_string(), b.to_string()));
        let columns = [section, spec.name, kind, &default, &least, &most, &words.join(" ")];
        out += &format!("{}\n", columns.join("\t"));
    }
    out
}

/// When this version was made: the first title of the change log that has a date.
fn date() -> &'static str {
    let log = include_str!("../../../CHANGELOG.md");
    let title = log.lines().find(|line| line.starts_with("## ") && line.contains('(')).unwrap_or_default();
    title.split(['(', ')']).nth(1).unwrap_or_default()
}

/// Text as man(7) wants it.
fn plain(text: &str) -> String {
    let text = text.replace('\\', "\\e").replace('-', "\\-");
    let guarded = |line: &str| if line.starts_with(['.', '\'']) { format!("\\&{line}") } else { line.to_owned() };
    text.lines().map(guarded).collect::<Vec<_>>().join("\n")
}

/// Running text: a line for each sentence, and none too long for who reads the source.
fn prose(text: &str) -> String {
    const WIDTH: usize = 72;
    let mut lines = Vec::new();
    for sentence in text.replace(". ", ".\n").lines() {
        let mut line = String::new();
        for word in sentence.split_whitespace() {
            if !line.is_empty() && line.len() + word.len() >= WIDTH {
                lines.push(std::mem::take(&mut line));
            }
            if !line.is_empty() {
                line.push(' ');
            }
            line += word;
        }
        lines.push(line);
    }
    plain(&lines.join("\n"))
}

fn bold(text: &str) -> String {
    format!("\\fB{}\\fR", plain(text))
}

fn slanted(text: &str) -> String {
    format!("\\fI{}\\fR", plain(text))
}

/// A page that grows.
struct Writer(Page);

impl Writer {
    fn new(name: &str, section: u8, about: &str) -> Writer {
        let version = env!("CARGO_PKG_VERSION");
        let mut text = format!(".TH {} {section} \"{}\" \"urbd {version}\"\n", plain(&name.to_uppercase()), date());
        text += &format!(".SH NAME\n{} \\- {}\n", plain(name), plain(about));
        Writer(Page { file: format!("{name}.{section}"), text })
    }

    fn title(&mut self, title: &str) {
        let _ = writeln!(self.0.text, ".SH {}", title.to_uppercase());
    }

    fn subtitle(&mut self, title: &str) {
        let _ = writeln!(self.0.text, ".SS {title}");
    }

    /// A paragraph; each sentence on a line of its own.
    fn paragraph(&mut self, text: &str) {
        let after_title = self.0.text.lines().next_back().is_some_and(|l| l.starts_with(".SH") || l.starts_with(".SS"));
        let _ = writeln!(self.0.text, "{}{}", if after_title { "" } else { ".PP\n" }, prose(text));
    }

    /// A term, marked up already, and what it means.
    fn item(&mut self, term: &str, text: &str) {
        let _ = writeln!(self.0.text, ".TP\n{term}\n{}", prose(text));
    }

    /// Lines as they are typed.
    fn example(&mut self, lines: &str) {
        let _ = writeln!(self.0.text, ".PP\n.EX\n{}\n.EE", plain(lines));
    }

    /// Other pages.
    fn see(mut self, pages: &[(&str, u8)]) -> Page {
        self.title("see also");
        let mut last = pages.len();
        for (name, section) in pages {
            last -= 1;
            let comma = if last > 0 { " ," } else { "" };
            let _ = writeln!(self.0.text, ".BR {} ({section}){comma}", plain(name));
        }
        self.0
    }
}

fn program() -> Page {
    let mut page = Writer::new("urbd", 8, "mirror block devices between machines");
    page.title("synopsis");
    page.0.text += &format!(
        "{} [{}] {} [{}] [{} ...]\n",
        bold("urbd"),
        slanted("options"),
        slanted("verb"),
        slanted("options"),
        slanted("object")
    );
    page.title("description");
    page.paragraph(
        "urbd is network RAID-1 in a normal program: what is written to a device on one machine is on the disks of two. \
         It speaks DRBD's protocol, reads its configuration and keeps its metadata. \
         Each resource is served by a process of its own.",
    );
    page.paragraph("Called as drbdadm, drbdsetup or drbdmeta it takes the verbs of those programs.");
    for section in verbs::SECTIONS {
        page.subtitle(section.title);
        let hidden = section.verbs.iter().filter(|verb| verb.hidden);
        for verb in section.verbs.iter().filter(|verb| !verb.hidden).chain(hidden) {
            page.item(&bold(verb.name), &format!("{}.", verb.help));
        }
    }
    page.title("objects");
    page.paragraph("Most verbs take any number of objects. One that fails does not keep the others from being served.");
    for (object, text) in OBJECTS {
        page.item(&slanted(object), text);
    }
    page.title("options");
    page.paragraph(
        "Options stand before or behind the verb, or behind --, with the value behind = or a blank. A flag may be written \
         --force=yes or --force=no, and a long name may be shortened as long as it is one option's.",
    );
    general_options(&mut page);
    page.title("exit status");
    for (status, text) in EXIT {
        page.item(&bold(status), text);
    }
    page.title("environment");
    for (name, text) in ENVIRONMENT {
        page.item(&bold(name), text);
    }
    page.title("files");
    for (name, text) in FILES {
        page.item(&slanted(name), text);
    }
    page.title("examples");
    page.paragraph("From two empty disks to a mirrored file system:");
    page.example(
        "urbd setup r0 alpha=10.0.0.1:/dev/vg0/data bravo=10.0.0.2:/dev/vg0/data\nurbd create-md r0 && urbd up r0\n\
         urbd primary --force r0\nmkfs.ext4 $(urbd sh-dev r0)",
    );
    page.see(&[("urbd.conf", 5), ("urbd-status", 8), ("urbd-up", 8), ("systemctl", 1)])
}

fn general_options(page: &mut Writer) {
    for arg in cli::general_options() {
        let long = arg.get_long().unwrap_or_default();
        let value = arg.get_value_names().and_then(|names| names.first()).map(|name| format!(" {}", slanted(name)));
        let value = value.filter(|_| arg.get_action().takes_values()).unwrap_or_default();
        let short = arg.get_short().map(|short| format!("{}, ", bold(&format!("-{short}")))).unwrap_or_default();
        let help = arg.get_help().map(ToString::to_string).unwrap_or_default();
        page.item(&format!("{short}{}{value}", bold(&format!("--{long}"))), &format!("{help}."));
    }
}

fn verb(verb: &'static Verb) -> Page {
    let mut page = Writer::new(&format!("urbd-{}", verb.name), 8, verb.help);
    page.title("synopsis");
    let has_options = verb.options.iter().any(|o| !o.positional) || !verb.settings.is_empty();
    let options = if has_options { format!(" [{}]", slanted("options")) } else { String::new() };
    let positional = verb.options.iter().filter(|o| o.positional).filter_map(|o| o.value);
    let mut objects: String = positional.map(|value| format!(" {}", slanted(value))).collect();
    objects += &match verb.takes {
        Takes::Nothing => String::new(),
        Takes::OptionalResource => format!(" [{} ...]", slanted("RES")),
        Takes::Hosts => format!(" [{} ...]", slanted(verb.takes.usage())),
        takes => format!(" {} ...", slanted(takes.usage())),
    };
    page.0.text += &format!("{}{options}{objects}\n", bold(&format!("urbd {}", verb.name)));
    page.title("description");
    page.paragraph(&format!("{}.", verb.help));
    if let Some(more) = explain::verb(verb.name) {
        page.paragraph(more);
    }
    page.paragraph(match verb.takes {
        Takes::Nothing => "It takes no object.",
        Takes::Hosts => "The hosts are named as uname -n prints it on each. A disk is a path. Two hosts or three; three are all connected at the same time.",
        Takes::Disks => "A disk is a path, of a block device or a file. A dump is a file that drbdadm dump-md, drbdmeta or urbd dump-md has made. NAME is what its node is called.",
        Takes::OptionalResource => "Objects are resources. None means all of this host.",
        Takes::Resource => "Objects are resources, or \"all\".",
        Takes::Volume => "Objects are resources or volumes, or \"all\".",
        Takes::Peer => "Objects are resources or connections to peers, or \"all\".",
        Takes::PeerDevice => "Objects are resources, volumes, peers, or volumes of peers, or \"all\".",
    });
    let shown: Vec<&Opt> = verb.options.iter().filter(|option| !option.hidden).collect();
    if !shown.is_empty() || !verb.settings.is_empty() {
        page.title("options");
        for option in shown {
            page.item(&term(option), &format!("{}.", option.help));
        }
        for spec in options::settable(verb.settings) {
            let text = format!("{}.\nValues: {}.", explain::option(spec), options::describe(spec));
            page.item(&format!("{}={}", bold(&format!("--{}", spec.name)), slanted("VALUE")), &text);
        }
    }
    page.title("exit status");
    page.paragraph("0 if all of it worked; the others are in urbd(8).");
    page.see(&[("urbd", 8), ("urbd.conf", 5)])
}

fn term(option: &Opt) -> String {
    let value = option.value.map(slanted);
    if option.positional {
        return value.unwrap_or_default();
    }
    let short = option.short.map(|short| format!("{}, ", bold(&format!("-{short}")))).unwrap_or_default();
    let value = value.map(|value| format!("={value}")).unwrap_or_default();
    format!("{short}{}{value}", bold(&format!("--{}", option.name)))
}

fn configuration() -> Page {
    let mut page = Writer::new("urbd.conf", 5, "what is mirrored, and where");
    page.title("description");
    page.paragraph(
        "The language is that of drbd.conf, and both programs may read the same file. \
         urbd reads /etc/urbd.conf; if there is none, /etc/drbd.conf. \
         The file is the same on all hosts.",
    );
    page.example(
        "resource r0 {\n  on alpha {\n    device /dev/drbd0;\n    disk /dev/vg0/data;\n    meta-disk internal;\n    \
         address 10.0.0.1:7789;\n  }\n  on bravo {\n    device /dev/drbd0;\n    disk /dev/vg0/data;\n    \
         meta-disk internal;\n    address 10.0.0.2:7789;\n  }\n}",
    );
    page.title("structure");
    for (part, text) in STRUCTURE {
        page.item(&bold(part), text);
    }
    page.title("options");
    page.paragraph(
        "An option in \"common\" holds for all resources, in a resource for all of it, and further inside for that part. \
         Numbers may have a suffix: k, M, G for sizes, and % or a time where it says so. \
         An option that urbd does not act on is accepted; verbs that check the configuration or put it into effect warn of it.",
    );
    let mut last = None;
    for spec in config::options().filter(|spec| spec.name != "_name") {
        if last != Some(spec.group) {
            let (title, text) = explain::section(spec.group);
            page.subtitle(title);
            page.paragraph(text);
            last = Some(spec.group);
        }
        let mut text = format!("{}.", explain::option(spec));
        if !matches!(spec.kind, Kind::Command | Kind::Flag) {
            text += &format!("\nValues: {}.", options::describe(spec));
        }
        if !spec.honoured && spec.group != Group::Proxy {
            text += "\nurbd does not act on it yet.";
        }
        page.item(&bold(spec.name), &text);
    }
    page.title("files");
    page.item(&slanted("/etc/urbd.conf"), "The configuration.");
    page.item(&slanted("/etc/drbd.conf"), "Read if there is no other.");
    page.see(&[("urbd", 8), ("urbd-adjust", 8), ("urbd-dump", 8)])
}

const OBJECTS: &[(&str, &str)] = &[
    ("RES", "A resource."),
    ("RES/VOL", "A volume of it, by its number."),
    ("RES:PEER", "Its connection to a peer, by the name of the peer's host or by its node id."),
    ("RES:PEER/VOL", "A volume at that peer."),
    ("minor-N", "The volume with that minor number."),
    ("all", "All resources of this host."),
];

const EXIT: &[(&str, &str)] = &[
    ("0", "All of it worked."),
    ("1", "A bad call, an unknown object, or a question answered with no."),
    ("4", "verify --wait: the copies differ."),
    ("5", "The time of a verb that waits is over, or the data is worse than outdated."),
    ("10", "The configuration is not valid, or the running process refuses."),
    ("11", "A device is in use, or the nodes do not agree to a change of their state."),
    ("16", "There is no local disk."),
    ("17", "No data that is up to date can be reached."),
    ("20", "A program could not be started, or there was no answer in time."),
    ("40", "create-md would destroy a file system."),
    ("255", "There are no valid metadata."),
];

const ENVIRONMENT: &[(&str, &str)] = &[
    ("URBD_CONF", "The configuration file."),
    ("URBD_NODE", "The name of this host in the configuration; else that of uname -n."),
    ("URBD_RUN_DIR", "Where sockets, logs and process ids are; else /run/urbd."),
    ("URBD_DEV_DIR", "Where names of devices are made; else /dev/urbd."),
    ("NO_COLOR", "Set and not empty: no colours."),
];

const FILES: &[(&str, &str)] = &[
    ("/etc/urbd.conf, /etc/drbd.conf", "The configuration: the first that is there."),
    ("/run/urbd/RES.sock", "The control socket of a resource."),
    ("/run/urbd/RES.log", "What a process has to say that systemd does not run; `drbdsetup down` removes it."),
    ("/dev/urbd/by-res/RES/VOL", "The device of a volume."),
    ("/var/lib/drbd/drbd-minor-N.lkbd", "The last known size of a disk with internal metadata, for when it has grown."),
];

const STRUCTURE: &[(&str, &str)] = &[
    ("include \"FILE\";", "Reads other files here; patterns are allowed."),
    ("global { ... }", "Options of the whole configuration."),
    ("common { ... }", "Options of all resources."),
    ("resource NAME { ... }", "What is mirrored as one: its volumes, hosts, and options."),
    ("on HOST { ... }", "In a resource: one of its hosts. The name is that of uname -n."),
    ("address [ipv4|ipv6] ADDRESS:PORT;", "In \"on\": where that host listens."),
    ("node-id N;", "In \"on\": its number, 0 to 31."),
    ("volume N { ... }", "In a resource or in \"on\": a volume. With only one it may be left out."),
    ("device [/dev/drbdN] [minor N];", "In a volume: its device, by name or by minor number."),
    ("disk PATH|none;", "In a volume: the backing disk."),
    ("meta-disk internal|PATH;", "In a volume: where the metadata is; internal: at the end of the disk."),
    ("connection { host A; host B; ... }", "In a resource: options of one pair of hosts."),
    ("net, disk, options, startup, handlers, urbd { ... }", "Options; see below."),
];

#[cfg(test)]
mod tests {
    use super::*;

    /// Every verb and every option that help shows stands in the manual, and every option of the configuration.
    #[test]
    fn everything_has_its_entry() {
        let pages = pages();
        let find = |file: &str| &pages.iter().find(|page| page.file == file).expect(file).text;
        for verb in verbs::all() {
            assert!(find("urbd.8").contains(&format!(".TP\n{}\n", bold(verb.name))), "{}", verb.name);
            if verb.hidden {
                continue;
            }
            let page = find(&format!("urbd-{}.8", verb.name));
            for option in verb.options.iter().filter(|option| !option.hidden) {
                assert!(page.contains(&format!(".TP\n{}\n", term(option))), "{} {}", verb.name, option.name);
            }
            for spec in options::settable(verb.settings) {
                assert!(page.contains(&bold(&format!("--{}", spec.name))), "{} {}", verb.name, spec.name);
            }
        }
        for spec in config::options().filter(|spec| spec.name != "_name") {
            assert!(find("urbd.conf.5").contains(&format!(".TP\n{}\n", bold(spec.name))), "{}", spec.name);
        }
        for (general, ..) in cli::GENERAL {
            assert!(find("urbd.8").contains(&bold(&format!("--{general}"))), "{general}");
        }
        assert_eq!(date().len(), "2026-01-31".len());
    }

    #[test]
    fn text_is_not_taken_for_a_request() {
        assert_eq!(plain(".x\n'y\\-"), "\\&.x\n\\&'y\\e\\-");
    }
}
