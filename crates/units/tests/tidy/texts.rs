//! Rules of the documents: what they point at exists.

use crate::{File, expect_none, files, root};
use std::fs;
use std::path::Path;

#[test]
fn links_lead_somewhere() {
    let mut complaints = Vec::new();
    for file in files().iter().filter(|file| file.has_ending(&["md"])) {
        let folder = root().join(Path::new(&file.path).parent().unwrap());
        for target in links(&file.text) {
            let place = target.split('#').next().unwrap_or_default();
            if !place.is_empty() && !place.contains("://") && !folder.join(place).exists() {
                complaints.push(format!("{}: no {target}", file.path));
            }
        }
    }
    expect_none(complaints);
}

/// What stands between `](` and `)`, outside of code.
fn links(text: &str) -> Vec<&str> {
    let prose = text.split("```").step_by(2).flat_map(|part| part.split('`').step_by(2));
    prose.flat_map(|part| part.split("](").skip(1)).filter_map(|rest| rest.split(')').next()).collect()
}

/// Paths in backquotes are paths from the root, in documents and in comments.
#[test]
fn named_files_exist() {
    let rooms = ["crates/", "docs/", "tests/", "vectors/", "demo/"];
    let mut complaints = Vec::new();
    for file in files().iter().filter(|file| file.has_ending(&["md", "rs"])) {
        let is_path = |word: &&str| {
            rooms.iter().any(|room| word.starts_with(room))
                && !word.contains("...")
                && !word.contains("NAME")
                && !word.contains(['*', '{', '<', '…', ','])
        };
        for word in quoted(file).into_iter().filter(is_path) {
            let path = word.split([':', ' ', '#']).next().unwrap_or_default();
            if !exists(path) && !exists(&format!("{}/{path}", own_crate(file))) {
                complaints.push(format!("{}: no {path}", file.path));
            }
        }
    }
    expect_none(complaints);
}

/// The map names a source as `core/al.rs`, a function in it as `core/al.rs::take_al`, and several at once in braces.
#[test]
fn the_map_names_what_is_there() {
    let map = files().into_iter().find(|file| file.path == "ARCHITECTURE.md").expect("the map");
    let (mut complaints, mut seen) = (Vec::new(), 0);
    for word in quoted(&map) {
        let (path, function) = word.split_once("::").unwrap_or((word, ""));
        let Some((room, rest)) = path.split_once('/') else { continue };
        let sources = root().join("crates").join(room).join("src");
        for name in sources.is_dir().then(|| in_braces(rest)).into_iter().flatten() {
            seen += 1;
            let place = sources.join(name);
            let text = fs::read_to_string(&place).unwrap_or_default();
            let has = |after: &str| text.contains(&format!("fn {function}{after}"));
            if !place.exists() || !function.is_empty() && !has("(") && !has("<") {
                complaints.push(format!("ARCHITECTURE.md: no {word}"));
            }
        }
    }
    assert!(seen > 100, "the map names {seen} sources: are they found?");
    expect_none(complaints);
}

/// `a/{b,c}.rs` is `a/b.rs` and `a/c.rs`.
fn in_braces(path: &str) -> Vec<String> {
    let whole = || vec![path.to_owned()];
    let Some((before, rest)) = path.split_once('{') else { return whole() };
    let Some((names, after)) = rest.split_once('}') else { return whole() };
    names.split(',').map(|name| format!("{before}{name}{after}")).collect()
}

/// A file, a folder, or the common beginning of several files' names.
fn exists(path: &str) -> bool {
    let path = root().join(path);
    let (Some(folder), Some(beginning)) = (path.parent(), path.file_name()) else { return false };
    let mut entries = fs::read_dir(folder).into_iter().flatten().flatten();
    path.exists() || entries.any(|e| e.file_name().to_string_lossy().starts_with(&*beginning.to_string_lossy()))
}

/// The crate that a file is in: its tests may be called by their paths in there.
fn own_crate(file: &File) -> String {
    file.path.split('/').take(2).collect::<Vec<_>>().join("/")
}

/// The words in single backquotes of a document's prose or a source's comments.
fn quoted(file: &File) -> Vec<&str> {
    let is_source = file.has_ending(&["rs"]);
    let lines = file.text.lines().filter(|line| !is_source || line.trim_start().starts_with("//"));
    lines.flat_map(|line| line.split('`').skip(1).step_by(2)).collect()
}

/// `file::test` in backquotes promises a test; both must exist.
#[test]
fn named_tests_exist() {
    let all = files();
    let mut complaints = Vec::new();

    for document in all.iter().filter(|file| file.path.starts_with("docs/") && file.has_ending(&["md"])) {
        for (path, test) in quoted(document).into_iter().filter_map(|word| word.split_once("::")) {
            let Some(source) = all.iter().find(|file| file.path == path) else { continue };
            let name = test.split('[').next().unwrap_or_default();
            if !source.text.contains(&format!("fn {name}(")) && !source.text.contains(&format!("def {name}(")) {
                complaints.push(format!("{}: no test {name} in {path}", document.path));
            }
        }
    }
    expect_none(complaints);
}

/// A promise without a test is none: the last cell of each row of the contract's tables names one.
#[test]
fn promises_have_tests() {
    let contract = fs::read_to_string(root().join("docs/contract.md")).unwrap();
    let rows = contract.lines().filter(|line| line.starts_with("| ") && !line.ends_with("| tested by |"));
    let mut complaints = Vec::new();
    for row in rows {
        let cell = row.trim_end_matches([' ', '|']).rsplit(" | ").next().unwrap_or_default();
        let names_one = cell.split('`').skip(1).step_by(2).any(|word| {
            let test = word.split_once("::").map(|(path, test)| (path.ends_with(".py"), test));
            test.is_some_and(|(python, test)| !python || test.starts_with("test_"))
        });
        if !names_one && cell != "the same" {
            complaints.push(format!("docs/contract.md: no test for {row}"));
        }
    }
    expect_none(complaints);
}

#[test]
fn nothing_depends_on_one_machine() {
    let mut complaints = Vec::new();
    let places = [concat!("/wo", "rk/"), concat!("/ho", "me/"), concat!("/ro", "ot/")];
    for file in files() {
        for (number, line) in file.lines() {
            let found = places.iter().filter(|place| line.contains(*place));
            complaints.extend(found.map(|place| format!("{}:{number}: {place}", file.path)));
        }
    }
    expect_none(complaints);
}

/// Documents and messages say what an operator says: these words have plainer ones.
#[test]
fn words_are_plain() {
    let plainer = [
        ("held by `", "tested by `"),
        ("mended", "fixed"),
        ("mend it", "repair it"),
        ("let go of", "detached, freed, closed"),
        ("lets go of", "detaches, frees, closes"),
    ];
    let mut complaints = Vec::new();
    for file in files() {
        let quotes = file.path.starts_with("docs/spec/");
        let document = file.has_ending(&["md"]) && !quotes;
        let rooms = ["config", "control", "engine", "frontends", "urbd", "watch"];
        let source = rooms.iter().any(|room| file.path.starts_with(&format!("crates/{room}/src/")));
        for (number, line) in file.lines().filter(|_| document || source) {
            // Of a source, what it may print.
            let text = if document { line } else { line.split("//").next().unwrap_or_default() };
            let found = plainer.iter().filter(|(word, _)| text.contains(word));
            complaints.extend(found.map(|(word, better)| format!("{}:{number}: {word}: say {better}", file.path)));
        }
    }
    expect_none(complaints);
}
