//! Doors: block device nodes in the directory, each leading to a device that stands on one of the files.
//!
//! The kernel does not tell the server of a device that it is being opened. It does ask a file system for a name: who
//! opens a node in our directory waits for our answer, and gets any error that we like. What they are about to do with
//! it is not in the question; it stands in `/proc/TID/syscall` of the thread that asks ([`Caller::intent`]).

use super::abi::{Attr, ROOT};
use crate::sys;
use std::io;

/// Doors' nodes have numbers from here on, so that a device's number can be part of them: the kernel takes the device
/// of a node for constant.
const FIRST: u64 = 1 << 40;

/// The device that a volume's door leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Door {
    /// Major and minor number, the latter below 2^20.
    pub device: (u32, u32),
    /// User and group that the node belongs to; both may read and write.
    pub owner: (u32, u32),
}

/// Which question an opener waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Question {
    /// Is there such a name?
    Name,
    /// What is it?
    Attributes,
}

/// Somebody asks for a door: perhaps to open it, perhaps to look at it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Knock {
    /// The volume.
    pub volume: u32,
    /// The kernel's number of the question; the answer goes by it.
    pub unique: u64,
    /// What is asked.
    pub question: Question,
    /// Who asks.
    pub caller: Caller,
}

/// The thread that asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Caller(pub u32);

/// What a thread has had of the processors so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ran {
    /// How long, in nanoseconds; what it has had of its present turn may be missing.
    pub time: u64,
    /// How many times it was its turn.
    pub turns: u64,
}

/// What a thread is about to do with a door.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Intent {
    /// Nothing that opens the device.
    Look,
    /// Open it for reading.
    Read {
        /// It does not want to wait.
        nonblocking: bool,
    },
    /// Open it for writing, or what cannot be told from that.
    Write {
        /// It does not want to wait.
        nonblocking: bool,
    },
}

/// A system call in progress, as the kernel describes it. Two calls that look the same are the same to us.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Call(String);

/// `io_uring_enter`, which has this number everywhere.
const IO_URING_ENTER: &str = "426 ";
/// Room for what the kernel says of a call: nine numbers.
const SYSCALL: usize = 256;
/// The call of a thread that is in none.
const WORKER: &str = "-1";

pub(super) fn door_node(volume: u32, door: Door) -> u64 {
    FIRST | u64::from(door.device.1) << 16 | u64::from(volume)
}

/// The volume and the minor number that a node stands for; `None`: it is no door.
pub(super) fn door_of(node: u64) -> Option<(u32, u32)> {
    (node >= FIRST).then_some(((node & 0xffff) as u32, (node >> 16 & 0xf_ffff) as u32))
}

impl Door {
    pub(super) fn attr(self, volume: u32) -> Attr {
        let (major, minor) = self.device;
        // `new_encode_dev` of the kernel.
        let device = minor & 0xff | major << 8 | (minor & !0xff) << 12;
        let mode = libc::S_IFBLK | 0o660;
        let node = door_node(volume, self);
        debug_assert!(node > ROOT);
        Attr { node, size: 0, mode, links: 1, owner: self.owner, block: 4096, device }
    }
}

impl Caller {
    /// The call that the thread is in. `Ok(None)`: it runs, which is so for a moment before it begins to wait.
    ///
    /// # Errors
    /// If it is gone, or is not to be seen from here.
    pub fn call(self) -> io::Result<Option<Call>> {
        let mut room = [0; SYSCALL];
        Ok(self.call_as_text(&mut room)?.map(Call::from))
    }

    /// The same, without allocating.
    fn call_as_text(self, room: &mut [u8; SYSCALL]) -> io::Result<Option<&str>> {
        let text = sys::read_proc(self.0, "syscall", room)?.trim_end();
        // Where the kernel has given its thread the registers of whom it works for (Linux 6.1).
        let text = if text.starts_with(IO_URING_ENTER) && self.works_for_another() { WORKER } else { text };
        Ok((text != "running").then_some(text))
    }

    /// What it is about to do, without allocating. `None`: not to be told yet. What is not to be told at all opens the
    /// door.
    pub(super) fn glance(self) -> Option<Intent> {
        const UNKNOWN: Intent = Intent::Write { nonblocking: false };
        match self.call_as_text(&mut [0; SYSCALL]) {
            Ok(text) => text.map(|text| intent(text, |_| None)),
            // Who is gone waits for no answer, and looks the same as who is not to be seen.
            Err(_) => Some(UNKNOWN),
        }
    }

    /// Is it a thread of the kernel that works for somebody's io_uring?
    fn works_for_another(self) -> bool {
        const PF_IO_WORKER: u64 = 0x10;
        let mut room = [0; 512];
        let text = sys::read_proc(self.0, "stat", &mut room).unwrap_or_default();
        let flags = text.rsplit_once(") ").and_then(|(_, rest)| rest.split(' ').nth(6)?.parse::<u64>().ok());
        flags.is_some_and(|flags| flags & PF_IO_WORKER != 0)
    }

    /// What it has had of the processors. `None`: this kernel does not count, or the thread is not to be seen.
    pub fn ran(self) -> Option<Ran> {
        let text = std::fs::read_to_string(format!("/proc/{}/schedstat", self.0)).ok()?;
        let mut words = text.split_whitespace().map(str::parse);
        let (time, _waited, turns) = (words.next()?.ok()?, words.next()?.ok()?, words.next()?.ok()?);
        Some(Ran { time, turns })
    }

    /// What it is about to do in `call`.
    pub fn intent(self, call: &Call) -> Intent {
        let how = |at: u64| {
            let memory = std::fs::File::open(format!("/proc/{}/mem", self.0)).ok()?;
            let mut flags = [0; 8];
            std::os::unix::fs::FileExt::read_exact_at(&memory, &mut flags, at).ok()?;
            Some(u64::from_ne_bytes(flags))
        };
        intent(&call.0, how)
    }

    /// Is it about to die?
    pub fn is_killed(self) -> bool {
        const KILL: u64 = 1 << (libc::SIGKILL - 1);
        let mut room = [0; 4096];
        let status = sys::read_proc(self.0, "status", &mut room).unwrap_or_default();
        let pending = status.lines().filter_map(|line| line.strip_prefix("SigPnd:").or(line.strip_prefix("ShdPnd:")));
        pending.filter_map(|mask| u64::from_str_radix(mask.trim(), 16).ok()).any(|mask| mask & KILL != 0)
    }

    /// Is it a thread of this process?
    pub fn is_own(self) -> bool {
        std::path::Path::new(&format!("/proc/self/task/{}", self.0)).exists()
    }
}

impl From<&str> for Call {
    /// As it stands in `/proc/TID/syscall`.
    fn from(text: &str) -> Call {
        Call(text.to_owned())
    }
}

impl Call {
    /// Can it not be told when this call ends? A thread of the kernel works for somebody's io_uring.
    pub fn is_opaque(&self) -> bool {
        self.0.starts_with('-')
    }
}

/// Number, arguments and stack pointer.
fn numbers(call: &str) -> Option<(i64, [u64; 6], u64)> {
    let mut words = call.split(' ');
    let number = words.next()?.parse().ok()?;
    let mut rest = words.map_while(|word| u64::from_str_radix(word.strip_prefix("0x")?, 16).ok());
    let mut arguments = [0; 6];
    for argument in &mut arguments {
        *argument = rest.next()?;
    }
    Some((number, arguments, rest.next()?))
}

/// `how` reads 8 bytes of the caller's memory, the flags of `openat2`.
fn intent(call: &str, how: impl Fn(u64) -> Option<u64>) -> Intent {
    const UNKNOWN: Intent = Intent::Write { nonblocking: false };
    let Some((number, a, stack)) = numbers(call) else { return UNKNOWN };
    let flagged = |flags: Option<u64>| flags.map_or(UNKNOWN, opening);
    match kind(number, &a, stack) {
        Kind::Look => Intent::Look,
        Kind::Open(at) => flagged(Some(a[at])),
        Kind::OpenHow(at) => flagged(how(a[at])),
        Kind::Mount(at) => mounting(a[at]),
        Kind::Other => UNKNOWN,
    }
}

fn opening(flags: u64) -> Intent {
    let flags = flags as i32;
    let nonblocking = flags & libc::O_NONBLOCK != 0;
    match flags & libc::O_ACCMODE {
        _ if flags & libc::O_PATH != 0 => Intent::Look,
        libc::O_RDONLY => Intent::Read { nonblocking },
        _ => Intent::Write { nonblocking },
    }
}

fn mounting(flags: u64) -> Intent {
    // These have a path for a source, and open nothing.
    const ELSEWHERE: u64 = libc::MS_BIND | libc::MS_MOVE | libc::MS_REMOUNT;
    if flags & ELSEWHERE != 0 {
        Intent::Look
    } else if flags & libc::MS_RDONLY != 0 {
        Intent::Read { nonblocking: false }
    } else {
        Intent::Write { nonblocking: false }
    }
}

/// A system call, with the place of the argument that matters.
enum Kind {
    Look,
    Open(usize),
    OpenHow(usize),
    Mount(usize),
    Other,
}

#[cfg(target_arch = "x86_64")]
fn kind(number: i64, arguments: &[u64; 6], stack: u64) -> Kind {
    // A program of 32 bits has its stack below 4 GiB, and other numbers. One of 64 bits that calls as if it were one
    // (`int 0x80`) is found out where the same number would be `fstat` or `lseek` of a descriptor.
    const DESCRIPTORS: u64 = 1 << 20;
    match number {
        _ if stack >> 32 == 0 => kind_of_32_bits(number),
        5 | 8 if arguments[0] >= DESCRIPTORS => kind_of_32_bits(number),
        libc::SYS_open => Kind::Open(1),
        libc::SYS_stat
        | libc::SYS_lstat
        | libc::SYS_access
        | libc::SYS_readlink
        | libc::SYS_chmod
        | libc::SYS_chown
        | libc::SYS_lchown
        | libc::SYS_utime
        | libc::SYS_utimes
        | libc::SYS_unlink
        | libc::SYS_rename
        | libc::SYS_link
        | libc::SYS_rmdir
        | libc::SYS_mkdir
        | libc::SYS_mknod
        | libc::SYS_symlink => Kind::Look,
        other => common_kind(other),
    }
}

#[cfg(not(target_arch = "x86_64"))]
fn kind(number: i64, _: &[u64; 6], _: u64) -> Kind {
    common_kind(number)
}

/// The calls that every processor has.
fn common_kind(number: i64) -> Kind {
    match number {
        libc::SYS_openat => Kind::Open(2),
        libc::SYS_openat2 => Kind::OpenHow(2),
        libc::SYS_mount => Kind::Mount(3),
        libc::SYS_newfstatat
        | libc::SYS_fstat
        | libc::SYS_statx
        | libc::SYS_statfs
        | libc::SYS_faccessat
        | libc::SYS_faccessat2
        | libc::SYS_readlinkat
        | libc::SYS_getxattr
        | libc::SYS_lgetxattr
        | libc::SYS_listxattr
        | libc::SYS_llistxattr
        | libc::SYS_setxattr
        | libc::SYS_lsetxattr
        | libc::SYS_name_to_handle_at
        | libc::SYS_inotify_add_watch
        | libc::SYS_fanotify_mark
        | libc::SYS_open_tree
        | libc::SYS_move_mount
        | libc::SYS_umount2
        | libc::SYS_swapoff
        | libc::SYS_chdir
        | libc::SYS_truncate
        | libc::SYS_fchmodat
        | libc::SYS_fchownat
        | libc::SYS_fchmod
        | libc::SYS_fchown
        | libc::SYS_utimensat
        | libc::SYS_unlinkat
        | libc::SYS_renameat2
        | libc::SYS_linkat
        | libc::SYS_symlinkat
        | libc::SYS_mkdirat
        | libc::SYS_mknodat
        | libc::SYS_execve
        | libc::SYS_execveat
        | libc::SYS_lseek
        | libc::SYS_quotactl => Kind::Look,
        _ => Kind::Other,
    }
}

/// The numbers of i386.
#[cfg(target_arch = "x86_64")]
fn kind_of_32_bits(number: i64) -> Kind {
    match number {
        5 => Kind::Open(1),
        295 => Kind::Open(2),
        437 => Kind::OpenHow(2),
        21 => Kind::Mount(3),
        // stat, lstat, fstat and their 64-bit kin, statx, statfs; access and readlink; lseek; umount; swapoff; chdir,
        // chmod, chown, utimes, unlink, rename, link, xattrs, inotify.
        18
        | 28
        | 84
        | 106
        | 107
        | 108
        | 195..=197
        | 300
        | 383
        | 99
        | 268
        | 33
        | 307
        | 439
        | 85
        | 305
        | 19
        | 140
        | 22
        | 52
        | 115
        | 12
        | 15
        | 16
        | 30
        | 182
        | 198
        | 212
        | 271
        | 320
        | 412
        | 10
        | 38
        | 9
        | 226
        | 227
        | 229
        | 230
        | 232
        | 233
        | 292
        | 301
        | 306
        | 298 => Kind::Look,
        _ => Kind::Other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STACK: &str = "0x7ffc3b1f0c38 0x7f1c2a0b1d2e";

    fn judged(number: i64, arguments: [u64; 6], stack: &str) -> Intent {
        let arguments: Vec<String> = arguments.iter().map(|a| format!("{a:#x}")).collect();
        intent(&format!("{number} {} {stack}", arguments.join(" ")), |at| (at == 0x5000).then_some(at - 0x5000))
    }

    const READ: Intent = Intent::Read { nonblocking: false };
    const WRITE: Intent = Intent::Write { nonblocking: false };

    #[test]
    fn what_a_call_is_about_to_do() {
        let path = 0x5581_2000_u64;
        let table = [
            (libc::SYS_openat, [!99, path, 0, 0, 0, 0], READ),
            (libc::SYS_openat, [!99, path, libc::O_RDWR as u64, 0, 0, 0], WRITE),
            (libc::SYS_openat, [!99, path, libc::O_WRONLY as u64, 0, 0, 0], WRITE),
            (libc::SYS_openat, [!99, path, 3, 0, 0, 0], WRITE),
            (libc::SYS_openat, [!99, path, libc::O_PATH as u64, 0, 0, 0], Intent::Look),
            (libc::SYS_openat, [!99, path, libc::O_NONBLOCK as u64, 0, 0, 0], Intent::Read { nonblocking: true }),
            (libc::SYS_openat2, [!99, path, 0x5000, 24, 0, 0], READ),
            (libc::SYS_openat2, [!99, path, 0x6000, 24, 0, 0], WRITE),
            (libc::SYS_mount, [path, path, path, 0, 0, 0], WRITE),
            (libc::SYS_mount, [path, path, path, libc::MS_RDONLY | libc::MS_NOSUID, 0, 0], READ),
            (libc::SYS_mount, [path, path, path, libc::MS_BIND, 0, 0], Intent::Look),
            (libc::SYS_swapon, [path, 0, 0, 0, 0, 0], WRITE),
            (libc::SYS_swapoff, [path, 0, 0, 0, 0, 0], Intent::Look),
            (libc::SYS_fsconfig, [3, 6, 0, 0, 0, 0], WRITE),
            (libc::SYS_io_uring_enter, [3, 1, 1, 0, 0, 0], WRITE),
            (libc::SYS_ioctl, [3, 0xc138_fd00, path, 0, 0, 0], WRITE),
            (libc::SYS_statx, [!99, path, 0, 0, 0, 0], Intent::Look),
            (libc::SYS_newfstatat, [!99, path, 0, 0, 0, 0], Intent::Look),
        ];
        for (number, arguments, wanted) in table {
            assert_eq!(judged(number, arguments, STACK), wanted, "{number} {arguments:x?}");
        }
        // A thread of the kernel, and what nobody understands.
        for text in ["-1 0x0 0x0", "", "nonsense", "257 0x1"] {
            assert_eq!(intent(text, |_| None), WRITE, "{text}");
        }
        assert!(Call("-1 0x0 0x0".into()).is_opaque() && !Call(format!("257 {STACK}")).is_opaque());
    }

    #[cfg(target_arch = "x86_64")]
    #[test]
    fn programs_of_32_bits_have_other_numbers() {
        let (path, low) = (0x0805_2000, "0xffd1c2b0 0xf7ed1549");
        assert_eq!(judged(5, [path, 0, 0, 0, 0, 0], low), READ);
        assert_eq!(judged(5, [path, 2, 0, 0, 0, 0], low), WRITE);
        assert_eq!(judged(8, [path, 0o644, 0, 0, 0, 0], low), WRITE);
        assert_eq!(judged(295, [0xffff_ff9c, path, 2, 0, 0, 0], low), WRITE);
        assert_eq!(judged(21, [path, path, path, 1, 0, 0], low), READ);
        assert_eq!(judged(195, [path, path, 0, 0, 0, 0], low), Intent::Look);
        // A 64-bit program: `fstat` of a descriptor, or `open` by int 0x80.
        assert_eq!(judged(5, [3, 0x7ffc_0000_0000, 0, 0, 0, 0], STACK), Intent::Look);
        assert_eq!(judged(5, [path, 2, 0, 0, 0, 0], STACK), WRITE);
        assert_eq!(judged(8, [3, 0, 0, 0, 0, 0], STACK), Intent::Look);
    }

    #[test]
    fn a_thread_is_seen_in_its_call() {
        // Waits in a read of a pipe that nobody writes to, until it is closed.
        let (reader, writer) = std::io::pipe().unwrap();
        let (sender, receiver) = std::sync::mpsc::channel();
        let thread = std::thread::spawn(move || {
            let task = std::fs::read_link("/proc/thread-self").unwrap();
            sender.send(task.file_name().unwrap().to_str().unwrap().parse().unwrap()).unwrap();
            let _ = std::io::Read::read(&mut &reader, &mut [0]);
        });
        let caller = Caller(receiver.recv().unwrap());
        assert!(caller.is_own() && !Caller(1).is_own() && !caller.is_killed());
        let call = loop {
            match caller.call() {
                // Who may not look at other threads in general may look at those of its own process.
                Ok(Some(call)) if numbers(&call.0).is_some_and(|(number, ..)| number == libc::SYS_read) => break call,
                Ok(_) => std::thread::yield_now(),
                Err(e) => panic!("{e}"),
            }
        };
        assert_eq!(numbers(&call.0).unwrap().1[2], 1);
        // It does not run while it waits.
        let ran = caller.ran();
        assert!(ran.is_none_or(|ran| ran.turns > 0) && caller.ran() == ran);
        drop(writer);
        thread.join().unwrap();
        assert!(caller.call().is_err());
    }

    #[test]
    fn nodes_carry_volume_and_device() {
        let door = Door { device: (7, 300), owner: (0, 6) };
        assert_eq!(door_of(door_node(65535, door)), Some((65535, 300)));
        assert_eq!(door_of(ROOT + 1 + 65535), None);
        assert_eq!(door.attr(1).device, 300 & 0xff | 7 << 8 | 256 << 12);
    }
}
