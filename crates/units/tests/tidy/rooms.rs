//! Which file of the core may use which.

use crate::{File, expect_none, rust_files};
use std::collections::{BTreeMap, BTreeSet};

const CORE: &str = "crates/core/src/";

/// What a sub-machine keeps is a value, in a file of its own; what acts on the resource is above all values. So a value
/// cannot change anything but itself, and can be read, and tested, without the rest.
#[test]
fn values_of_the_core_know_nothing_that_acts() {
    let uses = uses_in_core();
    let acts: BTreeSet<String> = core_files().iter().filter(|file| acts(file)).map(room).collect();
    assert!(acts.len() > 40, "only {} files of the core act on the resource", acts.len());
    let values = uses.iter().filter(|(name, _)| !acts.contains(*name) && !name.is_empty());
    let wrong = values.flat_map(|(name, used)| used.intersection(&acts).map(move |used| (name, used)));
    expect_none(wrong.map(|(name, used)| format!("{name} acts on nothing, and must not use {used}")).collect());
}

#[test]
fn the_core_has_no_circles() {
    let mut uses = uses_in_core();
    assert!(uses.values().map(BTreeSet::len).sum::<usize>() > 200, "imports were not understood");
    // The floors, from the ground up: what uses only what is below.
    loop {
        let below: Vec<String> =
            uses.iter().filter(|(_, used)| used.is_empty()).map(|(name, _)| name.clone()).collect();
        if below.is_empty() {
            break;
        }
        below.iter().for_each(|name| _ = uses.remove(name));
        uses.values_mut().for_each(|used| used.retain(|name| !below.contains(name)));
    }
    let circle = |(name, used)| format!("{name} uses {used:?}, and some of it uses that");
    expect_none(uses.into_iter().map(circle).collect());
}

fn core_files() -> Vec<File> {
    rust_files().into_iter().filter(|file| file.path.starts_with(CORE)).collect()
}

fn acts(file: &File) -> bool {
    file.text.contains("\nimpl Resource {")
}

/// `resync/mod.rs` is `resync`, the crate's head is nothing.
fn room(file: &File) -> String {
    let name = file.path.strip_prefix(CORE).unwrap().strip_suffix(".rs").unwrap();
    let name = name.strip_suffix("/mod").unwrap_or(name);
    if name == "lib" { String::new() } else { name.replace('/', "::") }
}

/// What each file imports from which other ones. What the crate's head hands on counts for where it is from.
fn uses_in_core() -> BTreeMap<String, BTreeSet<String>> {
    let files = core_files();
    let names: BTreeSet<String> = files.iter().map(room).collect();
    let uses = |file: &File| {
        let own = room(file);
        let paths = imports(&file.text).into_iter().filter_map(|path| whole_path(&own, &path));
        let paths = paths.map(|path| if path == "Resource" { "resource::Resource".to_owned() } else { path });
        let rooms = paths.filter_map(|path| names.iter().filter(|name| is_within(&path, name)).max_by_key(|n| n.len()));
        rooms.filter(|used| **used != own && !used.is_empty()).cloned().collect()
    };
    files.iter().map(|file| (room(file), uses(file))).collect()
}

fn is_within(path: &str, room: &str) -> bool {
    path.strip_prefix(room).is_some_and(|rest| rest.is_empty() || rest.starts_with("::"))
}

/// From the crate's head on. `None`: it is another crate's.
fn whole_path(own: &str, path: &str) -> Option<String> {
    if let Some(path) = path.strip_prefix("crate::") {
        return Some(path.to_owned());
    }
    let (mut room, mut path) = (own, path.strip_prefix("self::").unwrap_or(path));
    let mut up = false;
    while let Some(rest) = path.strip_prefix("super::") {
        (room, path, up) = (room.rsplit_once("::").map_or("", |(above, _)| above), rest, true);
    }
    up.then(|| if room.is_empty() { path.to_owned() } else { format!("{room}::{path}") })
}

/// The paths of all `use` lines outside tests, one for each name.
fn imports(text: &str) -> Vec<String> {
    let text = text.split("\n#[cfg(test)]\nmod tests").next().unwrap();
    let lines = text.split("\nuse ").skip(1).filter_map(|after| after.split(';').next());
    let mut paths = Vec::new();
    for tree in lines {
        names_in("", &tree.split_whitespace().collect::<Vec<_>>().join(" "), &mut paths);
    }
    paths
}

/// `a::{b, c::{d, e}}` is `a::b`, `a::c::d` and `a::c::e`.
fn names_in(before: &str, tree: &str, paths: &mut Vec<String>) {
    let Some((head, rest)) = tree.split_once('{') else {
        return paths.push(format!("{before}{}", tree.split(" as ").next().unwrap().trim()));
    };
    let (mut depth, mut begin) = (0, 0);
    let inner = rest.strip_suffix('}').unwrap_or(rest);
    for (at, sign) in inner.char_indices().chain([(inner.len(), ',')]) {
        match sign {
            '{' => depth += 1,
            '}' => depth -= 1,
            ',' if depth == 0 => {
                names_in(&format!("{before}{head}"), inner[begin..at].trim(), paths);
                begin = at + 1;
            }
            _ => {}
        }
    }
}
