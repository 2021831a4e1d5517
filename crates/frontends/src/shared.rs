//! Memory that several processes have, one after the other.
#![allow(unsafe_code)] // It is made and mapped with system calls, and used by address.

use std::fs::{File, Permissions};
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::sync::atomic::AtomicU64;

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, fcntl_get_seals, memfd_create};
use rustix::mm::{self, Advice, MapFlags, ProtFlags};

/// Memory with a descriptor: who is given that can map it, too, when this process is gone. Present, locked if this
/// process may lock it, and there for the rest of the process's life, as the kernel may be writing into it.
#[derive(Debug)]
pub struct Shared {
    fd: OwnedFd,
    base: *mut u8,
    len: usize,
}

impl Shared {
    /// Memory of `len` bytes, all zeroes.
    ///
    /// # Errors
    /// If there is not so much.
    pub fn create(len: usize) -> io::Result<Shared> {
        let file = File::from(memfd_create("urbd", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?);
        file.set_len(len as u64)?;
        file.set_permissions(Permissions::from_mode(0o600))?;
        // A file that becomes shorter would take pages away from under us.
        fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
        Shared::map(file.into(), len)
    }

    /// What another process has made.
    ///
    /// # Errors
    /// If it is of another length, or may become shorter.
    pub fn map(fd: OwnedFd, len: usize) -> io::Result<Shared> {
        let shrinks = fcntl_get_seals(&fd).map_or(true, |seals| !seals.contains(SealFlags::SHRINK));
        let file = File::from(fd);
        if shrinks || file.metadata()?.len() != len as u64 {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "not the memory of a process of this version"));
        }
        let (access, fd) = (ProtFlags::READ | ProtFlags::WRITE, OwnedFd::from(file));
        // SAFETY: a new mapping at a place of the kernel's choice. The rest are hints: without them pages come when
        // they are touched.
        let base = unsafe {
            let base = mm::mmap(std::ptr::null_mut(), len, access, MapFlags::SHARED, &fd, 0)?;
            let _ = mm::madvise(base, len, Advice::LinuxPopulateWrite);
            let _ = mm::mlock(base, len);
            base
        };
        Ok(Shared { fd, base: base.cast(), len })
    }

    /// What another process can be given.
    #[must_use]
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// A part of it. Panics if it is not all inside.
    #[must_use]
    pub fn bytes(&self, range: Range<usize>) -> &[u8] {
        assert!(range.start <= range.end && range.end <= self.len, "{range:?} is outside");
        // SAFETY: inside the mapping, which is undone only by who gives it away. Nobody else writes: one process at a
        // time does, and the others only hold the descriptor. `&mut self` is needed to write here.
        unsafe { std::slice::from_raw_parts(self.base.add(range.start), range.len()) }
    }

    /// A part of it, to write. Panics if it is not all inside.
    pub fn bytes_mut(&mut self, range: Range<usize>) -> &mut [u8] {
        assert!(range.start <= range.end && range.end <= self.len, "{range:?} is outside");
        // SAFETY: as in `bytes`.
        unsafe { std::slice::from_raw_parts_mut(self.base.add(range.start), range.len()) }
    }

    /// The `n`th of its words, which several threads, and the next process, may use.
    ///
    /// Panics if it is not inside. What is reached by [`Shared::bytes_mut`] must be something else.
    #[must_use]
    pub fn word(&self, n: usize) -> &AtomicU64 {
        assert!((n + 1) * size_of::<AtomicU64>() <= self.len, "word {n} is outside");
        // SAFETY: inside the mapping, which begins with a page and so is aligned.
        unsafe { &*self.base.cast::<AtomicU64>().add(n) }
    }

    /// Is it the memory that this descriptor stands for?
    #[must_use]
    pub fn is(&self, fd: BorrowedFd<'_>) -> bool {
        let inode =
            |fd: BorrowedFd<'_>| File::from(fd.try_clone_to_owned().ok()?).metadata().ok().map(|m| (m.dev(), m.ino()));
        inode(fd).is_some_and(|other| inode(self.descriptor()) == Some(other))
    }

    /// Gives the address space back. The memory is there for others as long as they have it.
    pub fn unmap(self) {
        // SAFETY: the whole mapping, to which nothing of ours refers any more, as it is moved here.
        let _ = unsafe { mm::munmap(self.base.cast(), self.len) };
    }

    /// Two parts of it, to write. Panics if they overlap, or are not all inside.
    pub fn two_mut(&mut self, first: Range<usize>, second: Range<usize>) -> (&mut [u8], &mut [u8]) {
        assert!(first.end <= second.start, "{first:?} overlaps {second:?}");
        let (start, split, len) = (first.start, second.start - first.start, first.len());
        let (a, b) = self.bytes_mut(start..second.end).split_at_mut(split);
        (&mut a[..len], b)
    }
}

// SAFETY: the mapping belongs to the value, whatever thread has it.
unsafe impl Send for Shared {}
