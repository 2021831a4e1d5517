//! Reads a table, runs every row, compares or rewrites.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::str::FromStr;

/// The `key=value` words of a row. A bare word is a flag.
pub(crate) struct Args {
    row: String,
    words: RefCell<BTreeMap<String, String>>,
}

impl Args {
    fn parse(row: &str) -> Args {
        let mut words = BTreeMap::new();
        for word in row.split_whitespace().skip(1) {
            let (key, value) = word.split_once('=').unwrap_or((word, "yes"));
            assert!(words.insert(key.to_string(), value.to_string()).is_none(), "{key} twice in: {row}");
        }
        Args { row: row.to_string(), words: RefCell::new(words) }
    }

    /// The value of `key`, if the row has it.
    pub(crate) fn word(&self, key: &str) -> Option<String> {
        self.words.borrow_mut().remove(key)
    }

    /// Is the flag `key` there?
    pub(crate) fn flag(&self, key: &str) -> bool {
        self.word(key).is_some_and(|v| v == "yes")
    }

    /// The number of `key`, else `default`.
    pub(crate) fn number<T: FromStr>(&self, key: &str, default: T) -> T {
        self.word(key).map_or(default, |v| v.parse().unwrap_or_else(|_| panic!("{key}={v} in: {}", self.row)))
    }

    /// The value of `key` chosen by name from `all`, else `default`.
    pub(crate) fn pick<T: Copy>(&self, key: &str, all: &[(&str, T)], default: T) -> T {
        self.word(key).map_or(default, |v| {
            all.iter().find(|(n, _)| *n == v).unwrap_or_else(|| panic!("{key}={v} in: {}", self.row)).1
        })
    }
}

/// Runs every row of `tests/tables/NAME.txt` through `run(command, args)`.
pub(crate) fn check(name: &str, run: impl Fn(&str, &Args) -> String) {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/tables").join(format!("{name}.txt"));
    let text = std::fs::read_to_string(&path).expect("the table exists");
    let (mut out, mut wrong, mut rows) = (String::new(), Vec::new(), 0);
    for line in text.lines() {
        let Some((row, want)) = line.split_once("=>").filter(|_| !line.starts_with('#')) else {
            assert!(line.is_empty() || line.starts_with('#'), "neither row nor comment: {line}");
            out += &format!("{line}\n");
            continue;
        };
        rows += 1;
        let args = Args::parse(row);
        let got = run(row.split_whitespace().next().expect("a row has a command"), &args);
        assert!(args.words.borrow().is_empty(), "unknown words {:?} in: {line}", args.words.borrow().keys());
        if got != want.trim() {
            wrong.push(format!("{}\n   got: {got}", line.trim()));
        }
        out += &format!("{} => {got}\n", row.trim_end());
    }
    assert!(rows > 0, "{name} has rows");
    if std::env::var_os("REWRITE").is_some() {
        std::fs::write(&path, out).expect("the table is writable");
    } else {
        assert!(wrong.is_empty(), "{} of {rows} rows of {name}:\n{}", wrong.len(), wrong.join("\n"));
    }
}
