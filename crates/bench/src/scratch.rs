//! A folder for as long as this process lives. One that was killed leaves its folder; the next one removes it.
//!
//! Whoever makes such a folder holds a lock on its file `.owner`, which nobody can hold any longer than he lives. A
//! folder whose lock is free is removed, unless something still uses it: then it is left, and said. Folders without
//! that file are not touched. The tests of whole programs do the same with theirs (`tests/kernel-peer/scratch.py`).

use crate::error::{Error, Result};
use std::collections::BTreeSet;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::time::Duration;
use tempfile::{NamedTempFile, TempDir};

const LOCK: &str = ".owner";
/// How the names of folders begin that are swept: those of benchmarks and of tests.
const OURS: &str = "urbd-";

/// How often, and at which distance, it is tried to remove a folder that somebody still uses.
const PATIENCE: (u32, Duration) = (50, Duration::from_millis(100));

/// A folder of this process. It goes away with this value.
pub struct Scratch {
    folder: TempDir,
    _lock: File,
}

impl Scratch {
    /// A new folder in `parent`.
    ///
    /// # Errors
    /// It cannot be made.
    pub fn new(parent: &Path) -> Result<Scratch> {
        let failed = || format!("cannot make a folder in {}", parent.display());
        let folder = tempfile::Builder::new().prefix("urbd-bench-").tempdir_in(parent).map_err(Error::io(failed()))?;
        // Locked before it has its name: a lock file that is free belongs to nobody.
        let file = NamedTempFile::new_in(&folder).map_err(Error::io(failed()))?;
        file.as_file().lock().map_err(Error::io(failed()))?;
        let lock = file.persist(folder.path().join(LOCK)).map_err(|e| Error::io(failed())(e.error))?;
        Ok(Scratch { folder, _lock: lock })
    }

    /// Where it is.
    #[must_use]
    pub fn path(&self) -> &Path {
        self.folder.path()
    }
}

impl Drop for Scratch {
    /// Who was told to end may still be about it: the folder is removed when nobody uses it any more. A node leaves its
    /// device's mount behind if somebody, who may only look at all disks, has the device open when it ends.
    fn drop(&mut self) {
        for _ in 0..PATIENCE.0 {
            mounts(Path::new("/proc/self"), self.folder.path()).for_each(|at| drop(frontends::fuse::unmount(&at)));
            if remove(self.folder.path().to_owned()).is_none() {
                return;
            }
            std::thread::sleep(PATIENCE.1);
        }
    }
}

/// A folder that nobody needs any more, and that could not be removed.
#[derive(Debug)]
pub struct Left {
    /// The folder.
    pub folder: PathBuf,
    /// What uses it, for a person; or why it cannot be removed.
    pub why: String,
}

/// Removes the folders in `parent` whose owners are dead, and gives those that have to stay.
pub fn sweep(parent: &Path) -> Vec<Left> {
    let entries = fs::read_dir(parent).into_iter().flatten().flatten();
    let ours = entries.filter(|entry| entry.file_name().as_encoded_bytes().starts_with(OURS.as_bytes()));
    ours.filter_map(|entry| remove_if_dead(entry.path())).collect()
}

fn remove_if_dead(folder: PathBuf) -> Option<Left> {
    let lock = File::options().read(true).write(true).open(folder.join(LOCK)).ok()?;
    lock.try_lock().ok()?;
    remove(folder)
}

/// Removes a folder, unless something still uses it: then it stays, and who does is said.
pub fn remove(folder: PathBuf) -> Option<Left> {
    let users = users(&folder.canonicalize().ok()?);
    if users.is_empty() {
        let why = fs::remove_dir_all(&folder).err()?.to_string();
        return folder.exists().then_some(Left { folder, why });
    }
    let why = format!("still in use by {}", users.into_iter().collect::<Vec<_>>().join(", "));
    Some(Left { folder, why })
}

/// What uses files in a folder: loop devices, mounts in any namespace, other processes.
fn users(folder: &Path) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for device in names("/sys/block".as_ref()) {
        let file = format!("/sys/block/{device}/loop/backing_file");
        if fs::read_to_string(file).is_ok_and(|path| Path::new(path.trim_end()).starts_with(folder)) {
            found.insert(format!("/dev/{device}"));
        }
    }
    let (me, mut namespaces) = (std::process::id().to_string(), BTreeSet::new());
    for pid in names("/proc".as_ref()).into_iter().filter(|name| name.bytes().all(|b| b.is_ascii_digit())) {
        let process = Path::new("/proc").join(&pid);
        if pid != me && has_open(&process, folder) {
            found.insert(format!("process {pid}"));
        }
        if fs::read_link(process.join("ns/mnt")).is_ok_and(|namespace| namespaces.insert(namespace)) {
            found.extend(mounts(&process, folder).map(|at| format!("a mount on {}", at.display())));
        }
    }
    found
}

/// Where something is mounted below a folder, as that process sees it.
fn mounts(process: &Path, folder: &Path) -> impl Iterator<Item = PathBuf> {
    let all = fs::read_to_string(process.join("mountinfo")).unwrap_or_default();
    let points = all.lines().filter_map(|line| Some(PathBuf::from(line.split(' ').nth(4)?)));
    points.filter(|at| at.starts_with(folder)).collect::<Vec<_>>().into_iter()
}

fn has_open(process: &Path, folder: &Path) -> bool {
    let below = |link: PathBuf| fs::read_link(link).is_ok_and(|path| path.starts_with(folder));
    let descriptors = process.join("fd");
    names(&descriptors).into_iter().any(|fd| below(descriptors.join(fd))) || below(process.join("cwd"))
}

fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().into_string().ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::{LOCK, Scratch, sweep};
    use std::fs::{self, File};
    use std::process::{Command, Stdio};

    /// What a process that was killed leaves: a folder with a disk and a lock that nobody holds.
    fn leave(parent: &std::path::Path, name: &str) -> std::path::PathBuf {
        let folder = parent.join(name);
        fs::create_dir(&folder).unwrap();
        fs::write(folder.join("first.disk"), [0; 4096]).unwrap();
        File::create(folder.join(LOCK)).unwrap();
        folder
    }

    #[test]
    fn only_what_dead_owners_left_is_removed() {
        let parent = tempfile::tempdir().unwrap();
        let alive = Scratch::new(parent.path()).unwrap();
        let dead = [leave(parent.path(), "urbd-bench-1"), leave(parent.path(), "urbd-test-1")];
        let foreign = leave(parent.path(), "other-1");
        let unknown = leave(parent.path(), "urbd-bench-2");
        fs::remove_file(unknown.join(LOCK)).unwrap();
        assert!(sweep(parent.path()).is_empty());
        assert!(dead.iter().all(|folder| !folder.exists()));
        assert!(alive.path().exists() && foreign.exists() && unknown.exists());
    }

    #[test]
    fn what_is_in_use_is_left_and_named() {
        let parent = tempfile::tempdir().unwrap();
        let dead = leave(parent.path(), "urbd-bench-1");
        let disk = File::open(dead.join("first.disk")).unwrap();
        let mut user = Command::new("sleep").arg("60").stdin(Stdio::from(disk)).spawn().unwrap();
        let left = sweep(parent.path());
        user.kill().and_then(|()| user.wait()).unwrap();
        assert_eq!(left.len(), 1);
        assert_eq!(left[0].folder, dead);
        assert!(left[0].why.contains(&format!("process {}", user.id())), "{left:?}");
        assert!(sweep(parent.path()).is_empty() && !dead.exists());
    }
}
