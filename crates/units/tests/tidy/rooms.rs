//! Which file of a crate may use which.

use crate::{File, expect_none, rust_files};
use std::collections::{BTreeMap, BTreeSet};

/// The crates whose files use only what is below them.
const WITHOUT_CIRCLES: [&str; 6] = ["bench", "config", "control", "core", "engine", "watch"];

/// What a sub-machine keeps is a value, in a file of its own; what acts on the resource is above all values. So a value
/// cannot change anything but itself, and can be read, and tested, without the rest.
#[test]
fn values_of_the_core_know_nothing_that_acts() {
    let uses = uses_in("core");
    let acts: BTreeSet<String> = files_of("core").iter().filter(|file| acts(file)).map(room).collect();
    assert!(acts.len() > 40, "only {} files of the core act on the resource", acts.len());
    let values = uses.iter().filter(|(name, _)| !acts.contains(*name) && !name.is_empty());
    let wrong = values.flat_map(|(name, used)| used.intersection(&acts).map(move |used| (name, used)));
    expect_none(wrong.map(|(name, used)| format!("{name} acts on nothing, and must not use {used}")).collect());
}

#[test]
fn imports_form_no_circles() {
    let mut complaints = Vec::new();
    for name in WITHOUT_CIRCLES {
        let uses = uses_in(name);
        let arrows: usize = uses.values().map(BTreeSet::len).sum();
        assert!(arrows >= uses.len() / 2, "{name}: {arrows} imports of {} files were understood", uses.len());
        let circle = |(room, used)| format!("{name}: {room} uses {used:?}, and some of it uses that");
        complaints.extend(in_circles(uses).into_iter().map(circle));
    }
    expect_none(complaints);
}

#[test]
fn a_circle_is_found() {
    let uses = |of: &[(&str, &[&str])]| {
        let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<BTreeSet<_>>();
        of.iter().map(|(name, used)| ((*name).to_owned(), names(used))).collect::<BTreeMap<_, _>>()
    };
    let rooms = [("a", &["b"][..]), ("b", &["c"]), ("c", &["a", "d"]), ("d", &[]), ("e", &["a"])];
    assert_eq!(in_circles(uses(&rooms)).into_keys().collect::<Vec<_>>(), ["a", "b", "c"]);
    assert!(in_circles(uses(&[("a", &["b"]), ("b", &["c"]), ("c", &[])])).is_empty());
}

/// What is left when the floors are taken away from the ground up (what uses only what is below), and from the roof
/// down (what nobody uses): each with what it uses of the others.
fn in_circles(mut uses: BTreeMap<String, BTreeSet<String>>) -> BTreeMap<String, BTreeSet<String>> {
    loop {
        let used: BTreeSet<String> = uses.values().flatten().cloned().collect();
        let ends = |(name, uses): (&String, &BTreeSet<String>)| uses.is_empty() || !used.contains(name);
        let gone: Vec<String> =
            uses.iter().filter(|(name, used)| ends((name, used))).map(|(name, _)| name.clone()).collect();
        if gone.is_empty() {
            return uses;
        }
        gone.iter().for_each(|name| _ = uses.remove(name));
        uses.values_mut().for_each(|used| used.retain(|name| !gone.contains(name)));
    }
}

fn files_of(name: &str) -> Vec<File> {
    let source = format!("crates/{name}/src/");
    rust_files().into_iter().filter(|file| file.path.starts_with(&source) && !is_test(&file.path)).collect()
}

fn is_test(path: &str) -> bool {
    path.contains("/tests/") || path.ends_with("/tests.rs")
}

fn acts(file: &File) -> bool {
    file.text.contains("\nimpl Resource {")
}

/// `resync/mod.rs` is `resync`, the crate's head is nothing.
fn room(file: &File) -> String {
    let (_, name) = file.path.split_once("/src/").unwrap();
    let name = name.strip_suffix(".rs").unwrap();
    let name = name.strip_suffix("/mod").unwrap_or(name);
    if ["lib", "main"].contains(&name) { String::new() } else { name.replace('/', "::") }
}

/// What each file imports from which other ones. What the crate's head hands on counts for where it is from.
fn uses_in(name: &str) -> BTreeMap<String, BTreeSet<String>> {
    let files = files_of(name);
    let names: BTreeSet<String> = files.iter().map(room).collect();
    let uses = |file: &File| {
        let own = room(file);
        let paths = imports(&file.text).into_iter().filter_map(|path| whole_path(&own, &path));
        let paths =
            paths.map(|path| if name == "core" && path == "Resource" { "resource::Resource".to_owned() } else { path });
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
