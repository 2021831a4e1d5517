//! The option table against what `drbdsetup xml-help` of 8.4, 9.22 and 9.34 says (`vectors/config/options`).

use std::fs;
use std::path::Path;

use urbd_config::{Group, Kind, OptionSpec, option, options};

/// One line of options.tsv.
struct Row {
    command: String,
    name: String,
    versions: Vec<String>,
    kind: String,
    default: String,
    min: String,
    max: String,
    prefix: String,
    words: Vec<String>,
}

fn rows() -> Vec<Row> {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../vectors/config/options/options.tsv");
    let text = fs::read_to_string(file).unwrap();
    let row = |line: &str| {
        let mut f: Vec<String> = line.split('\t').map(str::to_owned).collect();
        f.resize(10, String::new());
        let split = |s: &str, by: char| s.split(by).filter(|w| !w.is_empty()).map(str::to_owned).collect();
        Row {
            command: f[0].clone(),
            name: f[1].clone(),
            versions: split(&f[2], '+'),
            kind: f[3].clone(),
            default: f[4].clone(),
            min: f[5].clone(),
            max: f[6].clone(),
            prefix: f[7].clone(),
            words: split(&f[9], '|'),
        }
    };
    text.lines().skip(1).map(row).collect()
}

/// The groups of a command's options.
fn groups(command: &str) -> &'static [Group] {
    match command {
        "new-resource" | "resource-options" => &[Group::Resource],
        "new-peer" | "net-options" => &[Group::Net],
        "attach" | "disk-options" => &[Group::Disk, Group::PeerDevice, Group::Net],
        "new-minor" => &[Group::Device],
        "peer-device-options" => &[Group::PeerDevice],
        _ => &[],
    }
}

/// Options of single calls, which no configuration file holds.
const NOT_IN_FILES: &[&str] = &["set-defaults", "discard-my-data", "tentative"];
/// Limits that grew or shrank between versions; the table has the wider ones: (option, version with other limits).
const OLDER_LIMITS: &[(&str, &str)] =
    &[("sndbuf-size", "9.34"), ("rcvbuf-size", "9.34"), ("resync-rate", "9.22"), ("c-max-rate", "9.22")];

fn mismatch(row: &Row, spec: &OptionSpec) -> Option<String> {
    let wrong = |what: &str| Some(format!("{} {}: {what}: {spec:?}", row.command, row.name));
    match (row.kind.as_str(), spec.kind) {
        ("numeric", Kind::Number { unit, default, min, max }) => {
            let prefix = match unit.factor() {
                1024 => "k",
                512 => "s",
                _ => "1",
            };
            let newest = OLDER_LIMITS.iter().find(|(name, _)| *name == row.name).map(|(_, version)| *version);
            let limits_count = newest.is_none_or(|newest| row.versions.iter().any(|v| v == newest));
            let limits = (min.to_string(), max.to_string()) == (row.min.clone(), row.max.clone());
            if default.to_string() != row.default || (limits_count && !limits) || prefix != row.prefix {
                return wrong("number");
            }
        }
        // resync-after: a minor in drbdsetup, a resource in files.
        ("numeric", Kind::ResyncAfter { .. }) | ("string", Kind::Text { .. }) => {}
        ("boolean", Kind::Bool { default }) => {
            if row.default != if default { "yes" } else { "no" } {
                return wrong("default");
            }
        }
        ("handler", Kind::Choice { words, default }) => {
            let unknown = row.words.iter().any(|w| !words.contains(&w.as_str()));
            let complete = row.versions.iter().all(|v| v == "8.4") || row.words == words;
            if unknown || !complete || !words.contains(&default) {
                return wrong("words");
            }
        }
        ("numeric-or-symbol", Kind::NumberOrWord { words, default, min, max }) => {
            if row.words != words || row.default != default || row.min != min.to_string() || row.max != max.to_string()
            {
                return wrong("words or limits");
            }
        }
        _ => return wrong("kind"),
    }
    if spec.since.is_some() && row.versions.iter().any(|v| v != "9.34") && row.command != "new-minor" {
        return wrong("since");
    }
    (row.versions.iter().any(|v| v == "8.4") != spec.in_84 && row.versions.len() == 3)
        .then(|| format!("{} in 8.4", row.name))
}

#[test]
fn every_option_of_the_real_tools_is_in_the_table() {
    let mut wrong = Vec::new();
    let mut checked = 0;
    for row in rows().iter().filter(|r| !groups(&r.command).is_empty() && !NOT_IN_FILES.contains(&r.name.as_str())) {
        checked += 1;
        match option(groups(&row.command), &row.name) {
            None => wrong.push(format!("{} {} is missing", row.command, row.name)),
            Some(spec) => wrong.extend(mismatch(row, spec)),
        }
    }
    assert!(checked > 150, "only {checked} rows checked");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn every_option_of_the_table_is_one_of_the_real_tools() {
    let rows = rows();
    let known = |o: &&OptionSpec| matches!(o.group, Group::Resource | Group::Net | Group::Disk | Group::PeerDevice);
    // 8.4 takes this one in its configuration only under another command's name.
    for spec in options().filter(known) {
        let found = rows.iter().any(|r| r.name == spec.name && groups_of_84(r).contains(&spec.group));
        assert!(found, "{} is no option of drbdsetup", spec.name);
    }
}

/// As `groups`, with 8.4's `connect`, which takes the net options.
fn groups_of_84(row: &Row) -> &'static [Group] {
    if row.command == "connect" { &[Group::Net] } else { groups(&row.command) }
}

/// `docs/compatibility.md` names exactly the options that change nothing. `REWRITE=1` puts the right list there.
#[test]
fn the_documented_list_of_idle_options_is_true() {
    const BEGIN: &str = "<!-- idle options -->\n";
    const END: &str = "<!-- end -->";
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/compatibility.md");
    let text = fs::read_to_string(&file).unwrap();
    let (before, rest) = text.split_once(BEGIN).expect("the list begins");
    let (documented, after) = rest.split_once(END).expect("the list ends");
    let list = idle_options();
    if std::env::var_os("REWRITE").is_some() {
        fs::write(&file, format!("{before}{BEGIN}{list}{END}{after}")).unwrap();
    } else {
        assert_eq!(documented, list, "run again with REWRITE=1 and review docs/compatibility.md");
    }
}

/// A row of a table per section.
fn idle_options() -> String {
    let sections = [
        (Group::Global, "global"),
        (Group::Resource, "options"),
        (Group::Net, "net"),
        (Group::Disk, "disk"),
        (Group::Device, "disk, of the device"),
        (Group::PeerDevice, "disk, towards a peer"),
        (Group::Startup, "startup"),
        (Group::Handlers, "handlers"),
        (Group::Proxy, "proxy"),
        (Group::Urbd, "urbd"),
        (Group::ResyncGoal, "resync-goal"),
    ];
    let mut list = String::from("| section | options |\n|---|---|\n");
    for (group, section) in sections {
        let idle = options().filter(|o| o.group == group && !o.honoured).map(|o| format!("`{}`", o.name));
        let idle: Vec<String> = idle.collect();
        if !idle.is_empty() {
            list += &format!("| {section} | {} |\n", idle.join(", "));
        }
    }
    list
}
