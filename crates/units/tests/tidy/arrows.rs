//! Which crate may use which.

use crate::{expect_none, root, rust_files};
use std::collections::BTreeMap;
use std::fs;

/// Every crate with all the crates of this workspace that it may use. `ARCHITECTURE.md` draws it.
const ARROWS: &[(&str, &[&str])] = &[
    ("units", &[]),
    ("control", &[]),
    ("frontends", &[]),
    ("wire", &["units"]),
    ("meta", &["units"]),
    ("config", &["units"]),
    ("core", &["units", "wire", "meta", "config"]),
    ("sim", &["units", "wire", "meta", "core"]),
    ("hostile", &["units", "wire", "meta", "config", "core", "frontends", "control"]),
    ("engine", &["units", "wire", "meta", "config", "core", "frontends", "control"]),
    ("bench", &["units", "frontends", "control", "engine"]),
    ("urbd", &["units", "meta", "config", "core", "control", "engine"]),
    ("watch", &["control", "urbd"]),
    ("lab", &["urbd", "sim", "bench"]),
];

#[test]
fn crates_use_only_what_they_may() {
    let allowed: BTreeMap<&str, &[&str]> = ARROWS.iter().copied().collect();
    let mut complaints = Vec::new();
    for entry in fs::read_dir(root().join("crates")).unwrap() {
        let folder = entry.unwrap().path();
        let name = folder.file_name().unwrap().to_str().unwrap().to_owned();
        let manifest = fs::read_to_string(folder.join("Cargo.toml")).unwrap();
        let Some(may) = allowed.get(name.as_str()) else {
            complaints.push(format!("{name}: a new crate: say here and in ARCHITECTURE.md what it may use"));
            continue;
        };
        let uses = workspace_crates(section(&manifest, "[dependencies]"));
        let wrong = uses.into_iter().filter(|used| !may.contains(&used.as_str()));
        complaints.extend(wrong.map(|used| format!("{name} must not use {used}")));
    }
    expect_none(complaints);
}

/// The lines of one section of a manifest.
fn section<'a>(manifest: &'a str, title: &str) -> Vec<&'a str> {
    let after = manifest.lines().skip_while(|line| *line != title).skip(1);
    after.take_while(|line| !line.starts_with('[')).collect()
}

fn workspace_crates(dependencies: Vec<&str>) -> Vec<String> {
    let names = dependencies.iter().filter_map(|line| line.split(['.', ' ', '=']).next());
    let names = names.map(|name| name.strip_prefix("urbd-").unwrap_or(name).to_owned());
    names.filter(|name| ARROWS.iter().any(|(own, _)| own == name)).collect()
}

#[test]
fn every_crate_says_what_it_is_for_and_what_it_must_never_do() {
    let mut complaints = Vec::new();
    for (name, _) in ARROWS {
        let source = root().join("crates").join(name).join("src");
        let head = fs::read_to_string(source.join("lib.rs")).or_else(|_| fs::read_to_string(source.join("main.rs")));
        let head: String = head.unwrap().lines().take_while(|line| line.starts_with("//!")).collect();
        let missing = ["purpose", "invariants", "must never"].into_iter().filter(|w| !head.to_lowercase().contains(w));
        complaints.extend(missing.map(|word| format!("{name}: its head lacks \"{word}\"")));
    }
    expect_none(complaints);
}

/// Rules are broken on purpose in a copy only (`wrong-rules/`): the product's sources have no switch for it.
#[test]
fn rules_are_broken_in_a_copy_only() {
    let mut complaints = Vec::new();
    for (name, _) in ARROWS {
        let manifest = fs::read_to_string(root().join("crates").join(name).join("Cargo.toml")).unwrap();
        complaints.extend(manifest.contains("default =").then(|| format!("{name} has features by default")));
    }
    for file in rust_files().iter().filter(|file| !file.path.ends_with("tidy/arrows.rs")) {
        let switch = file.lines().find(|(_, line)| line.contains("Mutant") || line.contains("mutant("));
        complaints.extend(switch.map(|(number, _)| format!("{}:{number}: a switch of wrong-rules/", file.path)));
    }
    expect_none(complaints);
}
