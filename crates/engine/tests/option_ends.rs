//! Every option at both ends of its documented range, and at each of its words: from the text of a configuration to two
//! cores beside each other, which resync, verify and serve an application by it.

use config::{Group, Kind, LoadOptions, Memory, OptionSpec, ThisHost, load_from};
use rig::{Pair, Shape};
use std::collections::BTreeMap;
use units::{ByteLen, Duration};
use urbd_core::{Command, RequestKind, ResourceConfig};
use wire::{ConnState, DiskState};

#[path = "../../units/tests/counting/allocations.rs"]
mod counting;
#[path = "../../core/tests/pair/crash/journal.rs"]
#[allow(dead_code, reason = "the rig names all of it")]
mod journal;
#[path = "../../core/tests/pair/rig.rs"]
#[allow(dead_code, reason = "most of it serves other tests")]
mod rig;
mod crash {
    pub(crate) use crate::journal;
}

/// A disk that is resynced in 32 s at the default `resync-rate`.
const SHAPE: Shape = Shape { size: ByteLen(8 << 20), ..Shape::DEFAULT };
/// A turn of both nodes: a request and its answer take two.
const TURN: Duration = Duration::from_millis(1);
/// A resync or a verify at 1 KiB/s takes 8192 s.
const LIMIT: Duration = Duration::from_secs(10_000);
/// Of an application beside each of them.
const REQUESTS: u64 = 300;

/// Options that cannot be tried here, and why.
const NOT_HERE: &[(&str, &str)] = &[
    ("diskless", "yes: a node without a disk has nothing to resync; tests/test_operator.py has such nodes"),
    ("cram-hmac-alg", "the engine computes it; tests/test_two_nodes.py has it"),
    ("shared-secret", "as cram-hmac-alg"),
    ("data-integrity-alg", "the engine computes it; tests/test_two_nodes.py has it"),
    ("usermode-helper", "the engine calls it; tests/test_handlers.py has it"),
    ("status-group", "who may look at the status; tests/test_mistakes.py has it"),
    ("protocol-version-max", "118 on: needs metadata of format v09; tests/test_dialect9.py has it"),
    ("_name", "a name"),
    ("resync-after", "names another volume; the simulator has it"),
];

/// What the other options are set to: each option is tried in each of these.
const SETTINGS: &[(&str, &[(&str, &str)])] = &[
    ("adaptive", &[]),
    ("drbd", &[("resync-controller", "drbd")]),
    ("fixed", &[("c-plan-ahead", "0")]),
    ("checksums", &[("csums-alg", "sha1")]),
    ("ahead", &[("protocol", "A"), ("on-congestion", "pull-ahead"), ("congestion-fill", "8")]),
];

/// Options by name. Where two of one name exist they are one in the language, too.
type Given = BTreeMap<&'static str, String>;

/// What acts on a resource that runs.
fn tried() -> Vec<&'static OptionSpec> {
    let running = [Group::Resource, Group::Net, Group::Disk, Group::PeerDevice, Group::Urbd, Group::ResyncGoal];
    let here = |o: &&OptionSpec| NOT_HERE.iter().all(|(name, _)| *name != o.name);
    config::options().filter(|o| o.honoured && running.contains(&o.group)).filter(here).collect()
}

/// Its ends, or all its words. Where 0 is a word of its own ("off", "all"), 1 is an end, too.
fn ends(spec: &OptionSpec) -> Vec<String> {
    let all = |words: &[&str]| words.iter().map(|w| (*w).to_owned()).collect();
    match spec.kind {
        // A device of one sector has no room for the application's blocks.
        Kind::Number { max, .. } if spec.name == "size" => [0, max].map(|n| n.to_string()).into(),
        Kind::Number { min: 0, max, .. } => [0, 1, max].map(|n| n.to_string()).into(),
        Kind::Number { min, max, .. } => [min, max].map(|n| n.to_string()).into(),
        Kind::NumberOrWord { words, min, max, .. } => [all(words), vec![min.to_string(), max.to_string()]].concat(),
        Kind::Choice { words, .. } => all(words),
        Kind::Bool { .. } => all(&["yes", "no"]),
        Kind::Text { .. } if spec.name.ends_with("-alg") => all(&["crc32c", "sha512"]),
        other => panic!("{}: no ends are known of {other:?}: name it in NOT_HERE", spec.name),
    }
}

/// Other options that a value needs beside itself.
fn needs(name: &str, value: &str) -> &'static [(&'static str, &'static str)] {
    match (name, value) {
        // It must end before the next ping, and before the next attempt to connect.
        ("timeout", "600") => &[("ping-int", "120"), ("connect-int", "120")],
        ("ping-int" | "connect-int", "1") => &[("timeout", "9")],
        ("protocol", "B" | "C") => &[("on-congestion", "block")],
        ("allow-two-primaries", "yes") | ("fencing", "resource-and-stonith") => {
            &[("protocol", "C"), ("on-congestion", "block")]
        }
        ("on-congestion", "pull-ahead") => &[("protocol", "A")],
        // In this rig nobody would connect again.
        ("on-congestion", "disconnect") => &[("protocol", "A"), ("congestion-fill", "0")],
        _ => &[],
    }
}

fn configuration(given: &Given) -> String {
    let mut sections: BTreeMap<&str, String> = BTreeMap::new();
    for spec in tried() {
        let Some(value) = given.get(spec.name) else { continue };
        let section = match spec.group {
            Group::Resource => "options",
            Group::Net => "net",
            Group::Urbd => "urbd",
            Group::ResyncGoal => "urbd resync-goal",
            _ => "disk",
        };
        *sections.entry(section).or_default() += &format!("{} {value}; ", spec.name);
    }
    let goal = sections.remove("urbd resync-goal").unwrap_or_default();
    *sections.entry("urbd").or_default() += &format!("resync-goal {{ {goal}}} ");
    let sections: String = sections.iter().map(|(name, options)| format!("{name} {{ {options}}}\n")).collect();
    format!(
        "resource r0 {{
            {sections}
            volume 0 {{ device minor 10; disk /dev/vg0/r0; meta-disk internal; }}
            on alpha {{ node-id 0; address 10.1.1.1:7789; }}
            on bravo {{ node-id 1; address 10.1.1.2:7789; }}
        }}"
    )
}

/// What the configuration means for the core of that host.
fn core_config(text: &str, host: &str) -> ResourceConfig {
    let mut files = Memory::default();
    files.insert("/etc/drbd.conf", text);
    let config = load_from(&files, "/etc/drbd.conf".as_ref(), &LoadOptions::default());
    let config = config.unwrap_or_else(|e| panic!("{e}\n{text}"));
    let local = config.resource_as_seen_by("r0", &ThisHost::named(host)).expect("r0");
    urbd_engine::resource_config(&local).unwrap_or_else(|e| panic!("{e}\n{text}"))
}

fn at_rest(pair: &Pair) -> bool {
    let copies = |n: &rig::Node| n.core.snapshot().devices[0].disk == DiskState::UpToDate;
    pair.states() == [ConnState::Connected; 2] && pair.nodes.iter().all(copies)
}

/// An application with one request at a time until the nodes are at rest again, and all of its requests then.
fn load_until_rest(pair: &mut Pair) {
    let first = pair.nodes[0].counts.completed;
    let mut asked = 0;
    pair.until_beside(
        LIMIT,
        |p| at_rest(p) && p.nodes[0].counts.completed == first + REQUESTS,
        |p| {
            if asked < REQUESTS && p.nodes[0].counts.completed == first + asked {
                let kind = match asked % 16 {
                    15 => RequestKind::Flush,
                    14 => RequestKind::Discard,
                    13 => RequestKind::Write { fua: true },
                    _ => RequestKind::Write { fua: false },
                };
                // Here and there on the device.
                p.request_on(0, asked * 37 % 1900, kind);
                asked += 1;
            }
        },
    );
}

/// What the other node must say if this one says so.
fn mirrored(name: &'static str, value: &str) -> String {
    match (name, value) {
        ("after-sb-0pri", "discard-local") => "discard-remote",
        ("after-sb-0pri", "discard-remote") => "discard-local",
        (_, same) => same,
    }
    .to_owned()
}

fn try_out(given: &Given) {
    let other = given.iter().map(|(name, value)| (*name, mirrored(name, value))).collect();
    let own = [core_config(&configuration(given), "alpha"), core_config(&configuration(&other), "bravo")];
    let mut pair = Pair::on(SHAPE, false, |cfg| *cfg = own[cfg.node.index()].clone());
    pair.turn = TURN;
    load_until_rest(&mut pair);
    pair.command(1, Command::invalidate(rig::VOLUME));
    pair.until(LIMIT, |p| p.states()[1] == ConnState::SyncTarget);
    load_until_rest(&mut pair);
    pair.command(0, Command::Verify { volume: rig::VOLUME, peer: None, start: None, stop: None, repair: false });
    pair.until(LIMIT, |p| p.states()[1] == ConnState::VerifyT);
    load_until_rest(&mut pair);
    for node in &pair.nodes {
        let left = node.core.snapshot().connections[0].peer_devices[0].out_of_sync.0;
        assert!(left == 0, "{left} bytes are marked on node {}", node.cfg.node);
        assert!(!node.notes.contains(&"link closed"), "{:?}", node.notes);
    }
}

/// The option at that value and what it needs, in that setting.
fn given(setting: &[(&'static str, &str)], option: &[(&'static str, &str)]) -> Given {
    let mut given: Given = [("verify-alg", "crc32c".to_owned())].into();
    for (name, value) in setting.iter().chain(option) {
        given.insert(name, (*value).to_owned());
    }
    given
}

fn run(what: &str, given: &Given, failed: &mut Vec<String>) {
    let outcome = std::panic::catch_unwind(|| try_out(given)).map_err(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        text.or_else(|| panic.downcast_ref::<&str>().map(|t| (*t).to_owned())).unwrap_or_default()
    });
    // Two nodes are too few for that: nobody is promoted.
    let too_few = given.get("quorum").is_some_and(|nodes| nodes == "32");
    match outcome {
        Err(text) if too_few && text.contains("no quorum: 2 of 2 voters in reach, 32 needed") => {}
        Ok(()) if too_few => failed.push(format!("{what}: a node is promoted")),
        Err(text) => failed.push(format!("{what}: {text}")),
        Ok(()) => {}
    }
}

fn expect_none(failed: &[String]) {
    assert!(failed.is_empty(), "{} fail:\n{}", failed.len(), failed.join("\n"));
}

#[test]
fn each_option_holds_at_its_ends() {
    let mut failed = Vec::new();
    for spec in tried() {
        for value in ends(spec) {
            for (setting, others) in SETTINGS {
                let option = [needs(spec.name, &value), &[(spec.name, value.as_str())]].concat();
                run(&format!("{setting}, {} {value}", spec.name), &given(others, &option), &mut failed);
            }
        }
    }
    expect_none(&failed);
}

/// What is harmless by itself may not be beside another extreme.
#[test]
fn all_numbers_hold_at_the_same_end() {
    let mut failed = Vec::new();
    for last in [false, true] {
        for (setting, others) in SETTINGS {
            let mut all = given(others, &[]);
            for spec in tried().into_iter().filter(|o| matches!(o.kind, Kind::Number { .. })) {
                let ends = ends(spec);
                let end = if last { ends.last() } else { ends.first() };
                all.entry(spec.name).or_insert_with(|| end.expect("two or three").clone());
            }
            run(&format!("{setting}, all at their {}", if last { "greatest" } else { "least" }), &all, &mut failed);
        }
    }
    expect_none(&failed);
}
