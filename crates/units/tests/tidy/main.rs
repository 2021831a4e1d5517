//! Rules of the whole repository that no compiler checks: sizes, names, arrows between crates, heads, links.
//!
//! They live with the lowest crate, because they need none of the others.
#![forbid(unsafe_code)]

mod arrows;
mod calls;
mod code;
mod linked;
mod rooms;
mod texts;

use std::fs;
use std::path::{Path, PathBuf};

/// A file of the repository.
struct File {
    /// Relative to the root, with `/`.
    path: String,
    text: String,
}

impl File {
    fn has_ending(&self, endings: &[&str]) -> bool {
        self.path.rsplit('.').next().is_some_and(|ending| endings.contains(&ending))
    }

    fn line(&self, number: usize) -> &str {
        self.text.lines().nth(number - 1).unwrap_or_default()
    }

    /// Lines with their numbers, which begin at 1.
    fn lines(&self) -> impl Iterator<Item = (usize, &str)> {
        self.text.lines().enumerate().map(|(i, line)| (i + 1, line))
    }
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

/// Every text file that people write: code, tests, documents; not what was recorded (`vectors/`).
fn files() -> Vec<File> {
    let mut files = Vec::new();
    let root = root();
    for room in ["crates", "tests", "docs", "demo", ".ci"] {
        collect(&root, &root.join(room), &mut files);
    }
    for name in ["README.md", "ARCHITECTURE.md", "Makefile", "Cargo.toml"] {
        files.push(File { path: name.into(), text: fs::read_to_string(root.join(name)).unwrap() });
    }
    assert!(files.len() > 200, "only {} files were found", files.len());
    files
}

fn collect(root: &Path, folder: &Path, files: &mut Vec<File>) {
    let mut entries: Vec<PathBuf> = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    entries.sort();
    for path in entries {
        if path.is_dir() {
            collect(root, &path, files);
        } else if let Ok(text) = fs::read_to_string(&path) {
            let path = path.strip_prefix(root).unwrap().to_str().unwrap().to_owned();
            files.push(File { path, text });
        }
    }
}

/// The files of the Rust crates.
fn rust_files() -> Vec<File> {
    files().into_iter().filter(|file| file.has_ending(&["rs"])).collect()
}

/// Fails with all complaints at once.
fn expect_none(complaints: Vec<String>) {
    assert!(complaints.is_empty(), "{} found:\n{}", complaints.len(), complaints.join("\n"));
}
