//! Exclusive use of a file, by flock, which a stranger cannot take away.
//!
//! Whoever may read a file may lock it. The lock of somebody who can only read is no use of the disk or of the resource
//! behind it: it is passed over, and its end awaited by a thread.

use std::fs::{self, File, TryLockError};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// How a try to lock a file ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Locked {
    /// It is ours for as long as the file is open.
    Yes,
    /// It is ours all the same; this says who holds the lock and could not use the file.
    Despite(String),
    /// Somebody uses it.
    No,
}

/// Takes a file, which is open for writing, for exclusive use.
///
/// # Errors
/// What the kernel says, but for "locked already".
pub fn lock(file: &File) -> io::Result<Locked> {
    match file.try_lock() {
        Ok(()) => return Ok(Locked::Yes),
        Err(TryLockError::WouldBlock) => {}
        Err(TryLockError::Error(e)) => return Err(e),
    }
    let Some(strangers) = only_strangers(file) else { return Ok(Locked::No) };
    let waiting = file.try_clone()?;
    // The lock belongs to what both descriptors have open; when the thread has it, so has the caller.
    std::thread::Builder::new().name("urbd-lock".into()).spawn(move || drop(waiting.lock()))?;
    Ok(Locked::Despite(strangers))
}

/// Those who hold the lock, if each is another user's process that can only read the file, and nobody uses it.
fn only_strangers(file: &File) -> Option<String> {
    let is = file.metadata().ok()?;
    let locks = fs::read_to_string("/proc/locks").ok()?;
    // Locks of processes that we cannot see are not listed; what belongs to nobody is no stranger's.
    let holders: Vec<u32> = locks.lines().filter_map(|line| holder(line, &is)).collect();
    if holders.is_empty() || !holders.iter().all(|pid| is_stranger(*pid, &is)) || has_other_user(&is) {
        return None;
    }
    let named = holders.iter().map(|pid| {
        let name = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
        format!("{} (pid {pid})", name.trim_end())
    });
    Some(named.collect::<Vec<_>>().join(", "))
}

/// The process that a line of `/proc/locks` names as a holder of an flock of this file:
/// `1: FLOCK  ADVISORY  WRITE 4392 fe:00:10315859 0 EOF`. Lines with `->` are of those who wait.
fn holder(line: &str, is: &fs::Metadata) -> Option<u32> {
    let words: Vec<&str> = line.split_whitespace().collect();
    let [_, "FLOCK", _, _, pid, place, ..] = words.as_slice() else { return None };
    let device = is.dev();
    let wanted = format!("{:02x}:{:02x}:{}", libc::major(device), libc::minor(device), is.ino());
    (*place == wanted).then(|| pid.parse().ok())?
}

/// Another user's, neither root's nor the owner's, and without the right to write.
fn is_stranger(pid: u32, is: &fs::Metadata) -> bool {
    let Some(user) = user_of(pid) else { return false };
    let is_friend = user == 0 || Some(user) == user_of(std::process::id()) || user == is.uid();
    let may_write = is.mode() & 0o022 != 0;
    !is_friend && writes(pid, is).map_or(!may_write, |writes| !writes)
}

/// The effective user of a process.
fn user_of(pid: u32) -> Option<u32> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("Uid:"))?;
    line.split_whitespace().nth(1)?.parse().ok()
}

/// Has any process but this one the file open for writing?
fn has_other_user(is: &fs::Metadata) -> bool {
    let Ok(processes) = fs::read_dir("/proc") else { return true };
    let pids = processes.flatten().filter_map(|p| p.file_name().to_str()?.parse::<u32>().ok());
    pids.filter(|pid| *pid != std::process::id()).any(|pid| writes(pid, is) == Some(true))
}

/// Has a process the file open for writing? `None`: we may not know.
fn writes(pid: u32, is: &fs::Metadata) -> Option<bool> {
    let descriptors = fs::read_dir(format!("/proc/{pid}/fd")).ok()?;
    let is_it = |path: &Path| fs::metadata(path).is_ok_and(|other| (other.dev(), other.ino()) == (is.dev(), is.ino()));
    let writes = |number: &str| {
        let info = fs::read_to_string(format!("/proc/{pid}/fdinfo/{number}")).unwrap_or_default();
        let flags = info.lines().find_map(|line| line.strip_prefix("flags:"));
        let flags = flags.and_then(|flags| i32::from_str_radix(flags.trim(), 8).ok());
        flags.is_none_or(|flags| flags & libc::O_ACCMODE != libc::O_RDONLY)
    };
    // In this order: to look at what is not open for writing may mean to ask this very process, which serves the file
    // system whose root directory its keeper has open.
    let mut found = descriptors.flatten().filter(|fd| fd.file_name().to_str().is_none_or(writes));
    Some(found.any(|fd| is_it(&fd.path())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_friends_lock_is_kept_to() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let reader = File::open(file.path()).unwrap();
        reader.lock().unwrap();
        let user = File::options().write(true).open(file.path()).unwrap();
        assert_eq!(lock(&user).unwrap(), Locked::No);
        drop(reader);
        assert_eq!(lock(&user).unwrap(), Locked::Yes);
    }

    #[test]
    fn holders_are_read_from_the_kernels_list() {
        let file = tempfile::tempfile().unwrap();
        let is = file.metadata().unwrap();
        let place = format!("{:02x}:{:02x}:{}", libc::major(is.dev()), libc::minor(is.dev()), is.ino());
        assert_eq!(holder(&format!("1: FLOCK  ADVISORY  WRITE 4392 {place} 0 EOF"), &is), Some(4392));
        assert_eq!(holder(&format!("2: FLOCK  ADVISORY  READ 7 {place} 0 EOF"), &is), Some(7));
        for other in [
            format!("1: -> FLOCK  ADVISORY  WRITE 4392 {place} 0 EOF"),
            format!("1: POSIX  ADVISORY  WRITE 4392 {place} 0 EOF"),
            format!("1: FLOCK  ADVISORY  WRITE 4392 {place}1 0 EOF"),
            "1: FLOCK".into(),
            String::new(),
        ] {
            assert_eq!(holder(&other, &is), None, "{other}");
        }
        let mine = std::process::id();
        assert_eq!(writes(mine, &is), Some(true));
        assert!(user_of(mine).is_some());
    }
}
