//! How many crates of others each program is made of, all that its build takes, with features as `make build` has them.
//!
//! The numbers of [`LIMITS`] may fall, and never rise without a reason that the commit says. Who lowers one lowers its
//! limit with the same commit.

use crate::root;
use std::collections::{BTreeMap, BTreeSet};
use std::env;
use std::process::Command;

/// Each program that is installed, by its package.
const LIMITS: [(&str, usize); 3] = [("urbd", 48), ("urbd-lab", 51), ("urbd-watch", 92)];
/// What draws on terminals and speaks to browsers. The program that holds the data has none of it.
const NOT_IN_URBD: [&str; 4] = ["urbd-watch", "ratatui", "crossterm", "httparse"];

#[test]
fn programs_are_made_of_no_more_crates_of_others() {
    let mut complaints = Vec::new();
    let made_of = made_of();
    for (program, limit) in LIMITS {
        let foreign: Vec<&String> = made_of[program].iter().filter(|name| !name.starts_with("urbd")).collect();
        if foreign.len() != limit {
            complaints
                .push(format!("{program}: {} crates of others, the limit is {limit}: {foreign:?}", foreign.len()));
        }
    }
    crate::expect_none(complaints);
}

#[test]
fn what_holds_the_data_neither_draws_nor_serves_pages() {
    let made_of = made_of();
    let is_in = |program: &str, name: &str| made_of[program].iter().any(|one| one.split(' ').next() == Some(name));
    assert!(NOT_IN_URBD.iter().all(|name| is_in("urbd-watch", name)), "one of these is not used any more");
    assert_eq!(NOT_IN_URBD.iter().filter(|name| is_in("urbd", name)).collect::<Vec<_>>(), Vec::<&&str>::new());
}

/// Of each program the crates, as `NAME vVERSION`: with itself, without what only its tests and build scripts use.
fn made_of() -> BTreeMap<String, BTreeSet<String>> {
    let cargo = env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut tree = Command::new(cargo);
    tree.current_dir(root()).args(["tree", "--edges=normal", "--prefix=depth", "--no-dedupe", "--locked", "--offline"]);
    let output = tree.args(LIMITS.map(|(program, _)| format!("--package={program}"))).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let mut made_of: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    let mut program = String::new();
    // `2bitflags v2.13.2 …`: what stands below a program, up to the next 0, is in it.
    for line in String::from_utf8(output.stdout).unwrap().lines().filter(|line| !line.is_empty()) {
        let name = line.trim_start_matches(|c: char| c.is_ascii_digit());
        let words: Vec<&str> = name.split(' ').take(2).collect();
        if &line[..line.len() - name.len()] == "0" {
            program = words[0].to_owned();
        }
        made_of.entry(program.clone()).or_default().insert(words.join(" "));
    }
    made_of
}
