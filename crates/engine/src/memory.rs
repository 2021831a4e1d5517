//! Memory as a block device needs it: present and locked, so that a write never waits for a page that reclaim, waiting
//! for that very write, does not give.
#![allow(unsafe_code)]

use rustix::io::Errno;
use rustix::mm::{self, Advice, MapFlags, MlockAllFlags, MprotectFlags, ProtFlags};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::io;

/// What a buffer pool grows and shrinks by, in bytes: a huge page. A buffer in small pages may be of more segments than
/// a disk takes at a time, and the kernel hands such a write to a worker, where others overtake it.
pub(crate) const CHUNK: usize = 2 << 20;

/// Where a chunk of a pool is, for the thread that fetches it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    address: usize,
}

/// Keeps the process's memory resident and lets its writes through when memory is short, as a block device must.
/// Returns what was refused, for the log; the process works without.
pub(crate) fn harden_memory() -> Vec<&'static str> {
    let mut refused = Vec::new();
    one_heap();
    // With a limit that holds for us, locking the future would make later allocations fail, so it is not tried then.
    let unlimited = setrlimit(Resource::Memlock, Rlimit { current: None, maximum: None });
    let all = MlockAllFlags::CURRENT | MlockAllFlags::FUTURE | MlockAllFlags::ONFAULT;
    if !(unlimited.is_ok() || may_lock_memory()) || mm::mlockall(all).is_err() {
        refused.push("locking memory (needs CAP_IPC_LOCK)");
    }
    if rustix::process::configure_io_flusher_behavior(true).is_err() {
        refused.push("PR_SET_IO_FLUSHER (needs CAP_SYS_RESOURCE)");
    }
    refused
}

/// Threads get no heaps of their own, each of which would be 64 MiB of address space that counts as locked.
fn one_heap() {
    #[cfg(target_env = "gnu")]
    // SAFETY: no memory involved.
    unsafe {
        libc::mallopt(libc::M_ARENA_MAX, 1)
    };
}

/// Is the limit for locked memory none for this process (CAP_IPC_LOCK)?
fn may_lock_memory() -> bool {
    const CAP_IPC_LOCK: u32 = 14;
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    effective
        .and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok())
        .is_some_and(|mask| mask >> CAP_IPC_LOCK & 1 == 1)
}

/// Memory of `len` bytes for the rest of the process's life, all zeroes and present from now on, in huge pages where
/// the kernel has them: few entries of the processor's translation cache then cover all of it.
///
/// # Errors
/// If there is not so much.
pub(crate) fn map_memory(len: usize) -> io::Result<*mut u8> {
    map_least(len.next_multiple_of(CHUNK))
}

/// As [`map_memory`], but to the byte: only whole chunks are in huge pages.
///
/// # Errors
/// If there is not so much.
pub(crate) fn map_least(len: usize) -> io::Result<*mut u8> {
    let base = map_aligned(len, ProtFlags::READ | ProtFlags::WRITE)?;
    // SAFETY: the new mapping. Both are hints: without them pages come when they are touched.
    unsafe {
        if len >= CHUNK {
            let _ = mm::madvise(base.cast(), len / CHUNK * CHUNK, Advice::LinuxHugepage);
        }
        let _ = mm::madvise(base.cast(), len, Advice::LinuxPopulateWrite);
    }
    Ok(base)
}

/// Address space of `chunks` chunks for the rest of the process's life, without any memory.
///
/// # Errors
/// If there is not so much.
pub(crate) fn reserve(chunks: usize) -> io::Result<*mut u8> {
    if chunks == 0 {
        return Ok(std::ptr::NonNull::dangling().as_ptr());
    }
    let base = map_aligned(chunks * CHUNK, ProtFlags::empty())?;
    // SAFETY: the new mapping. What is mapped is locked from the start (`harden_memory`), and would count as locked.
    let _ = unsafe { mm::munlock(base.cast(), chunks * CHUNK) };
    Ok(base)
}

impl Place {
    /// Chunk `n` of what [`reserve`] gave.
    pub(crate) fn of(base: *mut u8, n: usize) -> Place {
        Place { address: base as usize + n * CHUNK }
    }

    /// The address of byte `at`.
    pub(crate) fn at(self, at: usize) -> *mut u8 {
        (self.address + at) as *mut u8
    }

    /// Makes the chunk usable: all of it is there, and locked if this process may lock it. Waits for memory.
    ///
    /// # Errors
    /// If there is none.
    pub(crate) fn fetch(self) -> io::Result<()> {
        let start = self.at(0).cast();
        // SAFETY: a whole chunk of a reservation, which nobody uses before this has succeeded.
        unsafe {
            mm::mprotect(start, CHUNK, MprotectFlags::READ | MprotectFlags::WRITE)?;
            let _ = mm::madvise(start, CHUNK, Advice::LinuxHugepage);
            match mm::madvise(start, CHUNK, Advice::LinuxPopulateWrite) {
                // A kernel before 5.14, which does not know it: pages come when they are locked or touched.
                Err(Errno::INVAL) => {}
                populated => populated.inspect_err(|_| _ = self.give_back())?,
            }
            // Pages that are there already do not have to be waited for.
            let _ = mm::mlock(start, CHUNK);
        }
        Ok(())
    }

    /// Gives the chunk's memory back to the kernel.
    pub(crate) fn give_back(self) -> bool {
        let start = self.at(0).cast();
        // SAFETY: a whole chunk of a reservation, which nobody uses any more.
        unsafe {
            let _ = mm::munlock(start, CHUNK);
            let _ = mm::madvise(start, CHUNK, Advice::LinuxDontNeed);
            mm::mprotect(start, CHUNK, MprotectFlags::empty()).is_ok()
        }
    }
}

/// A new private mapping of `len` bytes, which are whole pages, that begins where a huge page may.
fn map_aligned(len: usize, access: ProtFlags) -> io::Result<*mut u8> {
    // SAFETY: a new mapping at a place of the kernel's choice, and what is left over of it on both sides.
    unsafe {
        let mapped = mm::mmap_anonymous(std::ptr::null_mut(), len + CHUNK, access, MapFlags::PRIVATE)?;
        let before = mapped.cast::<u8>().align_offset(CHUNK);
        let base = mapped.cast::<u8>().wrapping_add(before);
        if before > 0 {
            mm::munmap(mapped, before)?;
        }
        mm::munmap(base.wrapping_add(len).cast(), CHUNK - before)?;
        Ok(base)
    }
}

/// How much of this process's memory is locked, and how much may be, in bytes (`None`: all that there is).
pub(crate) fn locked() -> (u64, Option<u64>) {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let kib = status.lines().find_map(|line| line.strip_prefix("VmLck:")?.trim().strip_suffix(" kB")?.parse().ok());
    let limit = getrlimit(Resource::Memlock).current.filter(|_| !may_lock_memory());
    (kib.unwrap_or(0) * 1024, limit)
}

#[cfg(test)]
mod tests {
    use super::*;
    /// May the kernel use a huge page there?
    fn wants_huge_page(address: usize) -> bool {
        let maps = std::fs::read_to_string("/proc/self/smaps").unwrap();
        let number = |text: &str| usize::from_str_radix(text, 16).ok();
        let begins = |line: &str| {
            let (start, end) = line.split_once(' ')?.0.split_once('-')?;
            Some((number(start)?..number(end)?).contains(&address))
        };
        let mut mapping = maps.lines().skip_while(|line| begins(line) != Some(true));
        mapping.find(|line| line.starts_with("VmFlags")).unwrap().contains(" hg")
    }

    #[test]
    fn the_last_buffer_is_in_a_huge_page_as_well() {
        let base = map_memory(CHUNK + 4096).unwrap() as usize;
        if std::path::Path::new("/sys/kernel/mm/transparent_hugepage").exists() {
            assert!(wants_huge_page(base) && wants_huge_page(base + 2 * CHUNK - 1));
        } else {
            println!("skipped: huge-pages: this kernel has none");
        }
    }

    #[test]
    fn a_chunk_comes_and_goes() {
        let base = reserve(2).unwrap();
        let second = Place::of(base, 1);
        for _ in 0..2 {
            second.fetch().unwrap();
            let (first, last) = (second.at(0), second.at(CHUNK - 1));
            // SAFETY: both are inside the chunk, which has just been made usable.
            unsafe {
                assert_eq!((first.read(), last.read()), (0, 0), "fresh memory");
                first.write(1);
                last.write(1);
            }
            second.give_back();
        }
        assert_eq!(base as usize % CHUNK, 0);
    }
}
