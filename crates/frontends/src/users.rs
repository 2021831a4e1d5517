//! Who has a block device open, as far as the system tells: open files, mounts in any mount namespace, swap, and other
//! devices on top. For people: the kernel does not say everything (mapped memory, files on their way through sockets).
//!
//! Nothing here asks a server: neither that of the device, nor that of any other file system.

use crate::sys::device_of;
use std::collections::BTreeSet;
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

/// One user of a device.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum User {
    /// A process has it open.
    Process {
        /// Its number.
        pid: u32,
        /// Its name, at most 15 bytes.
        program: String,
    },
    /// It is mounted.
    Mount {
        /// Where, as those see it who are in that mount namespace.
        place: String,
        /// A process of another mount namespace than ours, if it is mounted there only.
        pid: Option<u32>,
    },
    /// It is swapped to.
    Swap,
    /// Another device stands on it.
    Device {
        /// The kernel's name of that.
        name: String,
    },
}

impl fmt::Display for User {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            User::Process { pid, program } => write!(f, "opened by {program} (pid {pid})"),
            User::Mount { place, pid: None } => write!(f, "mounted on {place}"),
            User::Mount { place, pid: Some(pid) } => write!(f, "mounted on {place} as process {pid} sees it"),
            User::Swap => f.write_str("used as swap"),
            User::Device { name } => write!(f, "used by the device {name}"),
        }
    }
}

/// The users of the device with these numbers, whose kernel name is `name` (`loop3`); `door` is the path that
/// applications open. In order, each once.
pub fn of(device: (u32, u32), name: &str, door: &Path) -> Vec<User> {
    let mut found = BTreeSet::new();
    let paths = [door.to_owned(), PathBuf::from(format!("/dev/{name}"))];
    let own_mounts = fs::read_link("/proc/self/ns/mnt").ok();
    let mut namespaces = BTreeSet::new();
    found.extend(mounts("self", device, &paths).map(|place| User::Mount { place, pid: None }));
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    for pid in processes.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok()) {
        if has_open(pid, device, door) {
            let program = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
            found.insert(User::Process { pid, program: program.trim_end().to_owned() });
        }
        let namespace = fs::read_link(format!("/proc/{pid}/ns/mnt")).ok();
        let Some(namespace) = namespace.filter(|n| Some(n) != own_mounts.as_ref()) else { continue };
        if namespaces.insert(namespace) {
            for place in mounts(&pid.to_string(), device, &paths) {
                if !found.contains(&User::Mount { place: place.clone(), pid: None }) {
                    found.insert(User::Mount { place, pid: Some(pid) });
                }
            }
        }
    }
    if found.is_empty() {
        found.extend(threads_with_files_of_their_own(device, door));
    }
    let swaps = fs::read_to_string("/proc/swaps").unwrap_or_default();
    if swaps.lines().skip(1).filter_map(|line| line.split_whitespace().next()).any(|used| is_one_of(used, &paths)) {
        found.insert(User::Swap);
    }
    found.extend(stacked(name, &paths).map(|name| User::Device { name }));
    found.into_iter().collect()
}

/// Is a file system of the device mounted where this process sees it? Cheap enough for a status.
pub fn is_mounted(device: (u32, u32), name: &str, door: &Path) -> bool {
    mounts("self", device, &[door.to_owned(), PathBuf::from(format!("/dev/{name}"))]).next().is_some()
}

/// Where a process sees the device mounted: by its number, or, for file systems that have numbers of their own, by its
/// name.
fn mounts(pid: &str, (major, minor): (u32, u32), paths: &[PathBuf]) -> impl Iterator<Item = String> {
    let table = fs::read_to_string(format!("/proc/{pid}/mountinfo")).unwrap_or_default();
    let number = format!("{major}:{minor}");
    let place = |line: &str| {
        let (left, right) = line.split_once(" - ")?;
        let mut left = left.split(' ').skip(2);
        let is = left.next()? == number || is_one_of(right.split(' ').nth(1)?, paths);
        is.then(|| left.nth(1).map(str::to_owned)).flatten()
    };
    table.lines().filter_map(place).collect::<Vec<_>>().into_iter()
}

fn is_one_of(text: &str, paths: &[PathBuf]) -> bool {
    paths.iter().any(|path| path.as_os_str() == text)
}

fn has_open(pid: u32, device: (u32, u32), door: &Path) -> bool {
    task_has_open(Path::new(&format!("/proc/{pid}")), device, door)
}

/// A thread need not share the open files of its process. Our own threads are no users.
fn threads_with_files_of_their_own(device: (u32, u32), door: &Path) -> Vec<User> {
    let numbers = |dir: String| {
        let entries = fs::read_dir(dir).into_iter().flatten().flatten();
        entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok())
    };
    let mut found = Vec::new();
    for pid in numbers("/proc".into()).filter(|pid| *pid != std::process::id()) {
        for thread in numbers(format!("/proc/{pid}/task")).filter(|thread| *thread != pid) {
            let task = PathBuf::from(format!("/proc/{pid}/task/{thread}"));
            if task_has_open(&task, device, door) {
                let program = fs::read_to_string(task.join("comm")).unwrap_or_default();
                found.push(User::Process { pid, program: program.trim_end().to_owned() });
            }
        }
    }
    found
}

fn task_has_open(task: &Path, device: (u32, u32), door: &Path) -> bool {
    let files = fs::read_dir(task.join("fd")).into_iter().flatten().flatten();
    files.map(|entry| entry.path()).any(|link| {
        // First by its text: to follow the link is to ask about what may be anywhere.
        let likely = fs::read_link(&link).is_ok_and(|to| to.starts_with("/dev") || to.file_name() == door.file_name());
        likely && device_of(&link) == Some(device) && !is_for_its_path_alone(task, &link)
    })
}

/// Was it opened with `O_PATH`, as the keeper's name tag of the device? That is no use of it.
fn is_for_its_path_alone(task: &Path, link: &Path) -> bool {
    let number = link.file_name().unwrap_or_default();
    let info = fs::read_to_string(task.join("fdinfo").join(number)).unwrap_or_default();
    let flags = info.lines().find_map(|line| line.strip_prefix("flags:"));
    flags.and_then(|octal| i32::from_str_radix(octal.trim(), 8).ok()).is_some_and(|flags| flags & libc::O_PATH != 0)
}

/// Devices on top: of the device mapper and the like, and loop devices.
fn stacked(name: &str, paths: &[PathBuf]) -> impl Iterator<Item = String> {
    let names = |entries: fs::ReadDir| entries.flatten().filter_map(|entry| entry.file_name().into_string().ok());
    let holders = fs::read_dir(format!("/sys/block/{name}/holders")).into_iter().flat_map(names);
    let loops = fs::read_dir("/sys/block").into_iter().flat_map(names).filter(|other| {
        let file = fs::read_to_string(format!("/sys/block/{other}/loop/backing_file"));
        file.is_ok_and(|file| is_one_of(file.trim_end(), paths))
    });
    holders.chain(loops).collect::<Vec<_>>().into_iter()
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Ends(crate::loopdev::LoopDevice);

    impl Drop for Ends {
        fn drop(&mut self) {
            self.0.detach().unwrap_or_else(|error| println!("detach {}: {error}", self.0.path().display()));
        }
    }

    #[test]
    fn who_has_a_device_open_is_found() {
        if fs::File::open("/dev/loop-control").is_err() {
            return println!("skipped: loop: needs root and /dev/loop-control");
        }
        // One that nobody else uses: of other users' threads nothing is said where somebody has it open as a process.
        let file = tempfile::NamedTempFile::new().unwrap();
        file.as_file().set_len(1 << 20).unwrap();
        let attached = crate::loopdev::attach(file.path(), crate::loopdev::Options::default()).unwrap();
        let _ends = Ends(attached);
        let node = attached.path();
        let Some(device) = device_of(&node) else { panic!("not a device") };
        assert_eq!(device, attached.device_number());
        let name = node.file_name().unwrap().to_str().unwrap().to_owned();
        let own = || of(device, &name, Path::new("/nowhere/0"));
        let me = |user: &User| matches!(user, User::Process { pid, .. } if *pid == std::process::id());
        assert!(!own().iter().any(me));
        use std::os::unix::fs::OpenOptionsExt;
        let tag = fs::File::options().read(true).custom_flags(libc::O_PATH).open(&node).unwrap();
        assert!(!own().iter().any(me));
        drop(tag);
        let open = fs::File::open(&node).unwrap();
        let found = own();
        assert!(found.iter().any(me), "{found:?}");
        drop(open);
        assert!(!own().iter().any(me));
        // A thread of another process, which has left the files of the process's others.
        let program = "import ctypes, os, sys, threading, time\n\
                       def own():\n ctypes.CDLL(None).unshare(0x400)\n os.open(sys.argv[1], os.O_RDONLY)\n \
                       print(flush=True)\n time.sleep(60)\n\
                       threading.Thread(target=own).start()";
        let mut other = std::process::Command::new("python3")
            .args(["-c", program, node.to_str().unwrap()])
            .stdout(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        std::io::Read::read_exact(other.stdout.as_mut().unwrap(), &mut [0]).unwrap();
        let found = own();
        other.kill().unwrap();
        other.wait().unwrap();
        let is = |user: &User| matches!(user, User::Process { pid, .. } if *pid == other.id());
        assert!(found.iter().any(is), "{found:?}");
        assert_eq!(device_of(Path::new("/proc/self/exe")), None);
    }

    #[test]
    fn users_in_words() {
        let text = |user: User| user.to_string();
        assert_eq!(text(User::Process { pid: 7, program: "dd".into() }), "opened by dd (pid 7)");
        assert_eq!(text(User::Mount { place: "/mnt".into(), pid: None }), "mounted on /mnt");
        assert_eq!(text(User::Mount { place: "/m".into(), pid: Some(9) }), "mounted on /m as process 9 sees it");
    }
}
