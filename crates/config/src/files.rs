//! Where configuration text comes from: the only input that this crate reads.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::FileTypeExt;
use std::path::{Component, Path, PathBuf};

/// Reads files and expands patterns.
pub trait Files {
    /// The bytes of a file.
    ///
    /// # Errors
    /// As the file system says.
    fn read(&self, path: &Path) -> io::Result<Vec<u8>>;

    /// The same for a file that another one includes: a pipe is none.
    ///
    /// # Errors
    /// As the file system says.
    fn read_included(&self, path: &Path) -> io::Result<Vec<u8>> {
        self.read(path)
    }

    /// The names in a directory, in any order; empty if it is not a directory.
    fn names_in(&self, directory: &Path) -> Vec<String>;

    /// One name for one file, however it was reached.
    fn identity(&self, path: &Path) -> PathBuf;
}

/// The file system.
#[derive(Clone, Copy, Debug, Default)]
pub struct Disk;

impl Files for Disk {
    /// What a shell puts into a pipe (`<(…)`, `/dev/stdin`) can be the main file.
    fn read(&self, path: &Path) -> io::Result<Vec<u8>> {
        let is = std::fs::metadata(path)?.file_type();
        if is.is_fifo() { at_most(path) } else { self.read_included(path) }
    }

    fn read_included(&self, path: &Path) -> io::Result<Vec<u8>> {
        // Not even opened: that alone may do something, or wait for ever.
        match std::fs::metadata(path)?.is_file() {
            true => at_most(path),
            false => Err(io::Error::new(io::ErrorKind::InvalidInput, "it is not a regular file")),
        }
    }

    fn names_in(&self, directory: &Path) -> Vec<String> {
        let Ok(entries) = std::fs::read_dir(directory) else { return Vec::new() };
        entries.filter_map(|e| e.ok()?.file_name().into_string().ok()).collect()
    }

    fn identity(&self, path: &Path) -> PathBuf {
        std::fs::canonicalize(path).unwrap_or_else(|_| path.to_owned())
    }
}

/// Longest file that is read, in bytes: a hundred thousand resources are less.
const LONGEST: u64 = 64 << 20;

/// A file whose end must come: what the kernel makes up while it is read may have none.
fn at_most(path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    File::open(path)?.take(LONGEST + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > LONGEST {
        let what = format!("it is longer than {} MiB, which no configuration is", LONGEST >> 20);
        return Err(io::Error::new(io::ErrorKind::InvalidData, what));
    }
    Ok(bytes)
}

/// Files that exist only in memory, for tests and for text from standard input.
#[derive(Clone, Debug, Default)]
pub struct Memory(BTreeMap<PathBuf, Vec<u8>>);

impl Memory {
    /// Adds or replaces a file.
    pub fn insert(&mut self, path: impl Into<PathBuf>, content: impl Into<Vec<u8>>) {
        self.0.insert(path.into(), content.into());
    }
}

impl Files for Memory {
    fn read(&self, path: &Path) -> io::Result<Vec<u8>> {
        self.0.get(path).cloned().ok_or_else(|| io::Error::from(io::ErrorKind::NotFound))
    }

    fn names_in(&self, directory: &Path) -> Vec<String> {
        let inside = self.0.keys().filter_map(|path| path.strip_prefix(directory).ok());
        let mut names: Vec<String> = inside.filter_map(|rest| Some(rest.iter().next()?.to_str()?.to_owned())).collect();
        names.dedup();
        names
    }

    fn identity(&self, path: &Path) -> PathBuf {
        path.to_owned()
    }
}

/// Has the name wildcard characters?
pub(crate) fn is_pattern(name: &str) -> bool {
    name.contains(['*', '?', '['])
}

/// The existing files that match a pattern, sorted. Wildcards do not match `/`, nor a leading dot.
pub(crate) fn expand(files: &dyn Files, pattern: &Path) -> Vec<PathBuf> {
    let mut found = vec![PathBuf::new()];
    for component in pattern.components() {
        let name = match component {
            Component::Normal(name) => name.to_string_lossy().into_owned(),
            other => {
                found.iter_mut().for_each(|path| path.push(other));
                continue;
            }
        };
        if !is_pattern(&name) {
            found.iter_mut().for_each(|path| path.push(&name));
            continue;
        }
        let wanted: Vec<char> = name.chars().collect();
        let matching = |directory: &PathBuf| {
            let place = if directory.as_os_str().is_empty() { Path::new(".") } else { directory };
            let mut names = files.names_in(place);
            names.retain(|n| (!n.starts_with('.') || name.starts_with('.')) && matches(&wanted, n));
            names.sort();
            names.into_iter().map(|n| directory.join(n)).collect::<Vec<_>>()
        };
        found = found.iter().flat_map(matching).collect();
    }
    // What a wildcard at the end has found is there.
    if pattern.file_name().and_then(|n| n.to_str()).is_some_and(is_pattern) {
        return found;
    }
    let exists = |path: &PathBuf| {
        let (Some(parent), Some(name)) = (path.parent(), path.file_name().and_then(|n| n.to_str())) else {
            return false;
        };
        let place = if parent.as_os_str().is_empty() { Path::new(".") } else { parent };
        files.names_in(place).iter().any(|n| n == name)
    };
    found.retain(exists);
    found
}

/// Shell wildcards: `*`, `?`, `[abc]`, `[a-z]`, `[!a]`. Linear in practice, quadratic at worst: one level of
/// backtracking.
fn matches(pattern: &[char], name: &str) -> bool {
    let name: Vec<char> = name.chars().collect();
    let (mut p, mut n) = (0, 0);
    let mut star: Option<(usize, usize)> = None;
    while n < name.len() {
        let step = match pattern.get(p) {
            Some('*') => {
                star = Some((p, n));
                p += 1;
                continue;
            }
            Some('?') => Some(1),
            Some('[') => bracket(&pattern[p..], name[n]),
            Some(c) => (*c == name[n]).then_some(1),
            None => None,
        };
        match (step, star) {
            (Some(width), _) => {
                p += width;
                n += 1;
            }
            (None, Some((at, from))) => {
                star = Some((at, from + 1));
                (p, n) = (at + 1, from + 1);
            }
            (None, None) => return false,
        }
    }
    pattern[p..].iter().all(|c| *c == '*')
}

/// The width of the bracket expression if it matches `c`. Without a closing bracket, `[` stands for itself.
fn bracket(pattern: &[char], c: char) -> Option<usize> {
    let Some(length) = pattern.iter().skip(2).position(|c| *c == ']').map(|i| i + 2) else {
        return (c == '[').then_some(1);
    };
    let inside = &pattern[1..length];
    let (negated, set) = match inside {
        ['!' | '^', rest @ ..] => (true, rest),
        set => (false, set),
    };
    let mut hit = false;
    let mut i = 0;
    while i < set.len() {
        if i + 2 < set.len() && set[i + 1] == '-' {
            hit |= (set[i]..=set[i + 2]).contains(&c);
            i += 3;
        } else {
            hit |= set[i] == c;
            i += 1;
        }
    }
    (hit != negated).then_some(length + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wildcards() {
        let fits = |pattern: &str, name: &str| matches(&pattern.chars().collect::<Vec<_>>(), name);
        for (pattern, name) in [
            ("*.res", "r0.res"),
            ("r?", "r1"),
            ("*", ""),
            ("a*b*c", "aXbYbc"),
            ("[a-c]x", "bx"),
            ("[!a]", "b"),
            ("a[", "a["),
        ] {
            assert!(fits(pattern, name), "{pattern} {name}");
        }
        for (pattern, name) in [("*.res", "r0.res~"), ("r?", "r"), ("[a-c]x", "dx"), ("[!a]", "a"), ("a*b", "acd")] {
            assert!(!fits(pattern, name), "{pattern} {name}");
        }
    }

    #[test]
    fn expansion_is_sorted_and_skips_hidden_files() {
        let mut files = Memory::default();
        for name in ["/etc/drbd.d/b.res", "/etc/drbd.d/a.res", "/etc/drbd.d/.hidden.res", "/etc/drbd.d/x/c.res"] {
            files.insert(name, "");
        }
        let found = expand(&files, Path::new("/etc/drbd.d/*.res"));
        assert_eq!(found, [Path::new("/etc/drbd.d/a.res"), Path::new("/etc/drbd.d/b.res")]);
        assert_eq!(expand(&files, Path::new("/etc/*.d/x/?.res")), [Path::new("/etc/drbd.d/x/c.res")]);
        assert!(expand(&files, Path::new("/etc/none/*.res")).is_empty());
    }
}
