//! Rules of the code.

use crate::{File, expect_none, files, root, rust_files};
use std::fs;

const LONGEST_FILE: usize = 800;
const LONGEST_LINE: usize = 120;

/// Crates without any unsafe code.
const SAFE: &[&str] = &["config", "control", "core", "hostile", "meta", "sim", "units", "wire"];
/// How many blocks of it there are. The number falls, and never rises; who lowers it lowers this limit.
///
/// What is left, and why: memory that the kernel writes into while nobody here may look (`ring/`, `buffers.rs`), is
/// mapped (`memory.rs`, `shared.rs`), or is the allocator's own (`counting/`); requests of ioctl; a fork, and what is
/// done between fork and exec; signals, the names of groups, and the few calls that rustix does not have or tells
/// otherwise. The reason is at each.
const UNSAFE_BLOCKS: usize = 43;
/// The only files where it may be.
const UNSAFE_FILES: &[&str] = &[
    "crates/bench/src/sys.rs",
    "crates/engine/src/buffers.rs",
    "crates/engine/src/memory.rs",
    "crates/engine/src/ring/mod.rs",
    "crates/engine/src/ring/message.rs",
    "crates/engine/src/ring/slot.rs",
    "crates/engine/src/ring/uring.rs",
    "crates/engine/src/sys.rs",
    "crates/frontends/src/loopdev.rs",
    "crates/frontends/src/shared.rs",
    "crates/frontends/src/sys.rs",
    "crates/units/tests/counting/allocations.rs",
    "crates/urbd/src/verbs/background.rs",
];

#[test]
fn files_are_short() {
    let long = files()
        .into_iter()
        .filter(|file| file.has_ending(&["rs"]))
        .map(|file| (file.text.lines().count(), file.path))
        .filter(|(lines, _)| *lines > LONGEST_FILE);
    expect_none(long.map(|(lines, path)| format!("{path}: {lines} lines, {LONGEST_FILE} are enough")).collect());
}

#[test]
fn lines_are_short() {
    let mut complaints = Vec::new();
    for file in rust_files() {
        // A text that people read is not broken.
        let long = file.lines().filter(|(_, line)| line.chars().count() > LONGEST_LINE && !line.contains('"'));
        complaints.extend(long.map(|(number, _)| format!("{}:{number}: longer than {LONGEST_LINE}", file.path)));
    }
    expect_none(complaints);
}

#[test]
fn nothing_is_left_open() {
    let signs = [
        concat!("todo", "!("),
        concat!("unimplemented", "!("),
        concat!("FIX", "ME"),
        concat!("X", "XX"),
        concat!("TO", "DO"),
        concat!("#[ign", "ore"),
        concat!("dbg", "!("),
    ];
    let mut complaints = Vec::new();
    for file in files().iter().filter(|file| file.has_ending(&["rs", "py"])) {
        for (number, line) in file.lines() {
            let found = signs.iter().filter(|sign| line.contains(*sign));
            complaints.extend(found.map(|sign| format!("{}:{number}: {sign}", file.path)));
        }
    }
    expect_none(complaints);
}

#[test]
fn rooms_are_named_by_what_is_in_them() {
    let vague = ["util", "utils", "common", "helper", "helpers", "manager", "misc"];
    let is_vague = |file: &File| file.path.split(['/', '.']).any(|part| vague.contains(&part));
    expect_none(rust_files().into_iter().filter(is_vague).map(|file| file.path).collect());
}

#[test]
fn unsafe_code_is_only_where_it_must_be() {
    let mut complaints = Vec::new();
    for name in SAFE {
        let head = fs::read_to_string(root().join("crates").join(name).join("src/lib.rs")).unwrap();
        if !head.contains("#![forbid(unsafe_code)]") {
            complaints.push(format!("crates/{name}: its head does not forbid unsafe code"));
        }
    }
    for file in rust_files() {
        let uses = unsafe_lines(&file);
        if UNSAFE_FILES.contains(&file.path.as_str()) {
            let bare = uses.iter().filter(|number| !has_reason(&file, **number));
            complaints.extend(bare.map(|number| format!("{}:{number}: why is this safe?", file.path)));
        } else {
            complaints.extend(uses.iter().map(|number| format!("{}:{number}: unsafe code here", file.path)));
        }
    }
    for path in UNSAFE_FILES {
        if !root().join(path).exists() {
            complaints.push(format!("{path}: is gone; take it off the list"));
        }
    }
    expect_none(complaints);
}

#[test]
fn unsafe_blocks_do_not_become_more() {
    let block = concat!("uns", "afe {");
    let of = |file: &File| unsafe_lines(file).into_iter().filter(|n| file.line(*n).contains(block)).count();
    let found: Vec<(String, usize)> = rust_files().iter().map(|file| (file.path.clone(), of(file))).collect();
    let sum: usize = found.iter().map(|(_, n)| n).sum();
    let most: Vec<_> = found.into_iter().filter(|(_, n)| *n > 0).collect();
    assert_eq!(sum, UNSAFE_BLOCKS, "blocks of unsafe code; the limit is {UNSAFE_BLOCKS}: {most:#?}");
}

/// The lines with blocks, functions and implementations that the compiler does not check.
fn unsafe_lines(file: &File) -> Vec<usize> {
    let word = concat!("uns", "afe");
    let forms = [" {", " fn ", " impl ", " extern "].map(|next| format!("{word}{next}"));
    let code = file.lines().map(|(number, line)| (number, line.split("//").next().unwrap_or_default()));
    code.filter(|(_, line)| forms.iter().any(|form| line.contains(form))).map(|(number, _)| number).collect()
}

/// Does a comment before that line say why it is right, or which duty the caller has? A function of a trait has the
/// duties of the trait.
fn has_reason(file: &File, number: usize) -> bool {
    let lines: Vec<&str> = file.text.lines().collect();
    let method = lines[number - 1].starts_with("    ") && lines[number - 1].contains(concat!("uns", "afe fn"));
    let before = lines[..number].iter().rev().take(8);
    method || before.take_while(|line| !line.is_empty()).any(|line| line.to_lowercase().contains("safety"))
}
