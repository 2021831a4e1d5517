//! Every configuration of `vectors/config/good`: what the real drbdadm printed for it.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;
use urbd_config::{AdjustScope, Config, LoadOptions, Plan, ThisHost, in_order, load_from, shell_line};

mod installed;

/// The real `dump -v` of a stacked resource does not parse (`docs/spec/config-and-cli.md` 1.10); ours does.
const STACKED: &[&str] = &["09-stacked", "10-stacked-multivol"];

/// 9.22 printed `bitmap` with the peer-device options; since 9.33 it stands with those of the disk.
const BITMAP_MOVED: &str = "30-all-options";

fn samples() -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../vectors/config/good");
    let mut found: Vec<PathBuf> = fs::read_dir(folder).unwrap().map(|e| e.unwrap().path()).collect();
    found.sort();
    assert_eq!(found.len(), 38);
    found
}

fn name(sample: &Path) -> &str {
    sample.file_name().unwrap().to_str().unwrap()
}

fn load(sample: &Path) -> Config {
    let loaded = load_from(&installed::files(sample), Path::new("/etc/drbd.conf"), &LoadOptions::default());
    loaded.unwrap_or_else(|errors| panic!("{}: {errors}", name(sample)))
}

/// Host names of the samples and their addresses.
fn host(name: &str) -> ThisHost {
    let n = 1 + ["alpha", "bravo", "charlie", "delta"].iter().position(|h| *h == name).unwrap();
    let addresses = [format!("10.1.1.{n}"), format!("10.2.1.{n}"), format!("fd00:1::{n}"), format!("fd00:2::{n}")];
    ThisHost::named(name).with_addresses(addresses.map(|a| a.parse().unwrap()))
}

fn runs(sample: &Path) -> Vec<Value> {
    serde_json::from_str(&fs::read_to_string(sample.join("expected.json")).unwrap()).unwrap()
}

fn argv(run: &Value) -> Vec<&str> {
    run["argv"].as_array().unwrap().iter().map(|a| a.as_str().unwrap()).collect()
}

/// Without the line whose place changed between versions.
fn comparable(sample: &Path, text: &str) -> String {
    let moved = |line: &&str| name(sample) == BITMAP_MOVED && line.trim() == "bitmap           yes;";
    text.lines().filter(|line| !moved(line)).map(|line| format!("{line}\n")).collect()
}

/// The real tools go through the volumes of this sample in another order; nothing depends on it.
const OTHER_ORDER: &str = "08-connections-paths";

fn difference(what: &str, want: &str, got: &str) -> String {
    let at = want.lines().zip(got.lines()).position(|(w, g)| w != g);
    let at = at.unwrap_or(want.lines().count().min(got.lines().count()));
    let line = |text: &str| text.lines().nth(at).unwrap_or("(end)").to_owned();
    format!("{what}: line {}\n  want |{}|\n  got  |{}|", at + 1, line(want), line(got))
}

#[test]
fn dump_is_identical() {
    let mut different = Vec::new();
    for sample in samples() {
        let want = comparable(&sample, &fs::read_to_string(sample.join("dump.txt")).unwrap());
        let got = comparable(&sample, &load(&sample).dump(&host("alpha"), false, &[]));
        if want != got {
            different.push(difference(name(&sample), &want, &got));
        }
    }
    assert!(different.is_empty(), "{} differ\n{}", different.len(), different.join("\n"));
}

#[test]
fn expanded_dump_is_identical() {
    let mut different = Vec::new();
    let mut compared = 0;
    for sample in samples().iter().filter(|s| !STACKED.contains(&name(s)) && name(s) != BITMAP_MOVED) {
        for run in runs(sample).iter().filter(|r| argv(r)[1..] == ["-v", "dump", "all"]) {
            let Some(lines) = run["stdout"].as_array() else { continue };
            let want: String = lines.iter().map(|l| format!("{}\n", l.as_str().unwrap())).collect();
            let got = load(sample).dump(&host(run["host"].as_str().unwrap()), true, &[]);
            compared += 1;
            if want != got {
                different.push(difference(name(sample), &want, &got));
            }
        }
    }
    assert!(compared >= 30, "only {compared} samples have an expanded dump");
    assert!(different.is_empty(), "{} differ\n{}", different.len(), different.join("\n"));
}

/// A dump is a configuration with the same meaning (but for stacked resources, whose volumes it leaves out).
#[test]
fn dump_parses_again() {
    for sample in samples().iter().filter(|s| !STACKED.contains(&name(s))) {
        let config = load(sample);
        for verbose in [false, true] {
            let text = config.dump(&host("alpha"), verbose, &[]);
            let mut files = installed::files(sample);
            files.insert("/etc/dumped.conf", text.clone());
            let again = load_from(&files, Path::new("/etc/dumped.conf"), &LoadOptions::default())
                .unwrap_or_else(|errors| panic!("{} verbose {verbose}: {errors}", name(sample)));
            for resource in &config.resources {
                let (Ok(one), Ok(two)) = (
                    config.resource_as_seen_by(&resource.name, &host("alpha")),
                    again.resource_as_seen_by(&resource.name, &host("alpha")),
                ) else {
                    continue;
                };
                assert_eq!(one.options, two.options, "{} {verbose}", name(sample));
                assert_eq!(one.node_id, two.node_id);
                for (a, b) in one.peers.iter().zip(&two.peers) {
                    assert_eq!((&a.net, &a.paths, a.peer_node_id), (&b.net, &b.paths, b.peer_node_id));
                }
                for (a, b) in one.volumes.iter().zip(&two.volumes) {
                    assert_eq!((&a.disk, &a.backing, a.minor), (&b.disk, &b.backing, b.minor));
                }
                assert_eq!((one.peers.len(), one.volumes.len()), (two.peers.len(), two.volumes.len()));
            }
        }
    }
}

/// `-d up all` of 9.34 on each host (and with `-S` of 9.22, which differs in repair-md).
#[test]
fn up_runs_the_same_commands() {
    let mut different = Vec::new();
    let mut compared = 0;
    for sample in samples() {
        for run in &runs(&sample) {
            let argv = argv(run);
            let stacked = argv[1..] == ["-S", "-d", "up", "all"];
            let up = argv[1..] == ["-d", "up", "all"] && run["tool"] == "9.34.0";
            let Some(want) = run["stdout"].as_array().filter(|_| (up || stacked) && run["rc"] == 0) else { continue };
            let mut want: Vec<&str> = want.iter().map(|l| l.as_str().unwrap()).collect();
            let name_of_host = run["host"].as_str().unwrap();
            let this = ThisHost { stacked, ..host(name_of_host) };
            let plans: Vec<Plan> = match load(&sample).resources_for(&this) {
                Ok(resources) => resources.iter().map(|r| Plan::up(r, &AdjustScope::default())).collect(),
                Err(errors) => {
                    different.push(format!("{} {name_of_host}: {errors}", name(&sample)));
                    continue;
                }
            };
            let commands = in_order(&plans).into_iter().flat_map(|(name, step)| step.commands(name));
            let mut got: Vec<String> =
                commands.map(|c| shell_line(&c)).filter(|c| up || !c.ends_with("repair-md")).collect();
            compared += 1;
            if name(&sample) == OTHER_ORDER {
                want.sort_unstable();
                got.sort_unstable();
            }
            if want != got {
                let what = format!("{} on {name_of_host}", name(&sample));
                different.push(difference(&what, &want.join("\n"), &got.join("\n")));
            }
        }
    }
    assert!(compared > 80, "only {compared} compared");
    assert!(different.is_empty(), "{} of {compared} differ\n{}", different.len(), different.join("\n"));
}

#[test]
fn xml_is_identical() {
    let mut different = Vec::new();
    let mut compared = 0;
    for sample in samples() {
        for run in runs(&sample).iter().filter(|r| argv(r)[1..] == ["dump-xml", "all"]) {
            // Addresses that are not there: we leave the element out.
            let lines = run["stdout"].as_array().unwrap().iter().map(|l| l.as_str().unwrap());
            let want: String = lines.filter(|l| !l.contains("(null)")).map(|l| format!("{l}\n")).collect();
            let got = load(&sample).dump_xml();
            compared += 1;
            if want != got {
                different.push(difference(name(&sample), &want, &got));
            }
        }
    }
    assert_eq!(compared, 5);
    assert!(different.is_empty(), "{} differ\n{}", different.len(), different.join("\n"));
}
