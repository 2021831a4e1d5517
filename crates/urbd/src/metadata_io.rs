//! Reading and writing metadata areas of backing devices and files, offline. Which bytes mean what is the `meta`
//! crate's business; this is only files, sizes and locks.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use engine::exclusive;
use meta::plan::Step;
use meta::{BLOCK_LEN, Block};

use crate::problem::{Problem, exit};
use crate::progress::Progress;

/// How much is copied or filled at once, in bytes.
const PIECE: u64 = 1 << 20;

/// An open backing or metadata device.
#[derive(Debug)]
pub(crate) struct Store {
    file: File,
    path: PathBuf,
    len: u64,
    writable: bool,
}

/// What an open is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Access {
    /// Only looking; works while the device is in use.
    Read,
    /// Changing; refused while anybody else uses the device.
    Exclusive,
    /// Changing a device on which several resources have their slots.
    Shared,
}

impl Store {
    /// Opens a block device or regular file.
    ///
    /// # Errors
    /// Exit 20: it cannot be opened, is no disk, or is in use.
    pub(crate) fn open(path: &Path, access: Access) -> Result<Store, Problem> {
        let failed = |e: io::Error| Problem::new(exit::BROKEN, format!("cannot open {}: {e}", path.display()));
        let kind = fs::metadata(path).map_err(failed)?.file_type();
        if !kind.is_block_device() && !kind.is_file() {
            let message = format!("{} is neither a block device nor a regular file", path.display());
            return Err(Problem::new(exit::BROKEN, message).hint("correct the `disk` statement in the configuration"));
        }
        let writable = access != Access::Read;
        let mut options = OpenOptions::new();
        options.read(true).write(writable);
        if writable {
            let exclusive = kind.is_block_device() && access == Access::Exclusive;
            options.custom_flags(libc::O_DSYNC | if exclusive { libc::O_EXCL } else { 0 });
        }
        let file = options.open(path).map_err(|e| match e.raw_os_error() {
            Some(libc::EBUSY) => in_use(path),
            _ => failed(e),
        })?;
        if access == Access::Exclusive && kind.is_file() && !try_lock(&file).map_err(failed)? {
            return Err(in_use(path));
        }
        let len = end_of(&file).map_err(failed)? & !511;
        Ok(Store { file, path: path.to_owned(), len, writable })
    }

    /// What is read from now on is what the device has, whatever was read of it before.
    pub(crate) fn read_anew(&self) {
        engine::read_anew(&self.file);
    }

    /// Who else has it open, as far as this user may see: `urbd (pid 123)`, or a file system.
    pub(crate) fn holder(&self) -> Option<String> {
        holder_of(&self.path)
    }

    /// Length in bytes, whole sectors.
    pub(crate) fn len(&self) -> u64 {
        self.len
    }

    /// Reads `buffer.len()` bytes at `offset`.
    ///
    /// # Errors
    /// Exit 10: the device failed or is too short.
    pub(crate) fn read_into(&self, offset: u64, buffer: &mut [u8]) -> Result<(), Problem> {
        self.file.read_exact_at(buffer, offset).map_err(|e| self.io_failed("read", offset, &e))
    }

    /// Reads `len` bytes at `offset`; `len` is our own computation, never a number from the disk.
    ///
    /// # Errors
    /// Exit 10: the device failed or is too short.
    pub(crate) fn read(&self, offset: u64, len: usize) -> Result<Vec<u8>, Problem> {
        let mut bytes = vec![0; len];
        self.read_into(offset, &mut bytes)?;
        Ok(bytes)
    }

    /// Reads one metadata block.
    ///
    /// # Errors
    /// Exit 10: the device failed or is too short.
    pub(crate) fn read_block(&self, offset: u64) -> Result<Box<Block>, Problem> {
        let mut block = Box::new([0; BLOCK_LEN]);
        self.read_into(offset, &mut block[..])?;
        Ok(block)
    }

    /// Where the next byte is, from `offset` on, that is not in a hole of a sparse file; `None`: nowhere.
    pub(crate) fn next_data(&self, offset: u64) -> Option<u64> {
        engine::next_data(&self.file, offset)
    }

    /// Writes durably.
    ///
    /// # Errors
    /// Exit 10: the device failed.
    pub(crate) fn write(&self, offset: u64, bytes: &[u8]) -> Result<(), Problem> {
        debug_assert!(self.writable, "{} is open for reading only", self.path.display());
        self.file.write_all_at(bytes, offset).map_err(|e| self.io_failed("write", offset, &e))
    }

    /// Everything written so far is on stable storage after this.
    ///
    /// # Errors
    /// Exit 10: the device failed.
    pub(crate) fn sync(&self) -> Result<(), Problem> {
        self.file.sync_data().map_err(|e| self.io_failed("flush", 0, &e))
    }

    /// Carries out a plan, in order.
    ///
    /// # Errors
    /// Exit 10: the device failed; the steps after that are not carried out.
    pub(crate) fn carry_out(&self, steps: &[Step]) -> Result<(), Problem> {
        let mut work = Work::new(&self.path, steps);
        for step in steps {
            match step {
                Step::Write { at, bytes } => self.write(at.0, bytes)?,
                Step::Fill { at, len, byte } => self.fill(at.0, len.0, *byte, &mut work)?,
                Step::Repeat { at, block, count } => self.repeat(at.0, block, u64::from(*count))?,
                Step::Copy { from, to, len } => self.copy(from.0, to.0, len.0, &mut work)?,
                Step::Flush => self.sync()?,
            }
        }
        work.progress.end();
        Ok(())
    }

    /// `count` times the same block. An activity log may have 16 GiB.
    fn repeat(&self, offset: u64, block: &Block, count: u64) -> Result<(), Problem> {
        let len = BLOCK_LEN as u64;
        let piece = block.repeat(count.min(PIECE / len) as usize);
        let mut done = 0;
        while done < count * len {
            let now = (count * len - done).min(PIECE);
            self.write(offset + done, &piece[..now as usize])?;
            done += now;
        }
        Ok(())
    }

    fn fill(&self, offset: u64, len: u64, byte: u8, work: &mut Work) -> Result<(), Problem> {
        let piece = vec![byte; len.min(PIECE) as usize];
        let mut done = 0;
        while done < len {
            let now = (len - done).min(PIECE);
            self.write(offset + done, &piece[..now as usize])?;
            done += now;
            work.did(now);
        }
        Ok(())
    }

    /// As `memmove`: from the end when moving up, so that overlapping ranges are copied whole.
    fn copy(&self, from: u64, to: u64, len: u64, work: &mut Work) -> Result<(), Problem> {
        let pieces = len.div_ceil(PIECE);
        for n in 0..pieces {
            let start = if to > from { pieces - 1 - n } else { n } * PIECE;
            let bytes = self.read(from + start, (len - start).min(PIECE) as usize)?;
            self.write(to + start, &bytes)?;
            work.did(bytes.len() as u64);
        }
        Ok(())
    }

    fn io_failed(&self, what: &str, offset: u64, error: &io::Error) -> Problem {
        Problem::new(exit::FAILURE, format!("{what} of {} at byte {offset} failed: {error}", self.path.display()))
    }
}

/// How far the long steps are.
struct Work {
    progress: Progress,
    done: u64,
    total: u64,
}

impl Work {
    fn new(path: &Path, steps: &[Step]) -> Work {
        let long = steps.iter().map(|step| match step {
            Step::Fill { len, .. } | Step::Copy { len, .. } => len.0,
            _ => 0,
        });
        Work { progress: Progress::new(&path.display().to_string()), done: 0, total: long.sum() }
    }

    fn did(&mut self, bytes: u64) {
        self.done += bytes;
        self.progress.bytes(self.done, self.total);
    }
}

fn in_use(path: &Path) -> Problem {
    let mut message = format!("{} is in use", path.display());
    if let Some(holder) = holder_of(path) {
        message += &format!(" by {holder}");
    }
    Problem::new(exit::BROKEN, message)
        .hint("stop the resource (urbd down) or detach the volume (urbd detach), or unmount the device, and try again")
}

/// Who has `path` open, as far as /proc tells: `urbd (pid 123)` or a mount point.
fn holder_of(path: &Path) -> Option<String> {
    let target = fs::canonicalize(path).ok()?;
    let mounts = fs::read_to_string("/proc/mounts").unwrap_or_default();
    for line in mounts.lines() {
        let mut words = line.split(' ');
        if let (Some(device), Some(place)) = (words.next(), words.next())
            && fs::canonicalize(device).is_ok_and(|d| d == target)
        {
            return Some(format!("the file system mounted on {place}"));
        }
    }
    for process in fs::read_dir("/proc").ok()?.flatten() {
        let Some(pid) = process.file_name().to_str().and_then(|name| name.parse::<u32>().ok()) else { continue };
        if pid == std::process::id() {
            continue;
        }
        let Ok(descriptors) = fs::read_dir(process.path().join("fd")) else { continue };
        if descriptors.flatten().any(|fd| fs::read_link(fd.path()).is_ok_and(|l| l == target)) {
            let name = fs::read_to_string(process.path().join("comm")).unwrap_or_default();
            return Some(format!("{} (pid {pid})", name.trim_end()));
        }
    }
    None
}

fn try_lock(file: &File) -> io::Result<bool> {
    Ok(exclusive::lock(file)? != exclusive::Locked::No)
}

fn end_of(file: &File) -> io::Result<u64> {
    use std::io::{Seek, SeekFrom};
    let mut file = file;
    file.seek(SeekFrom::End(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_is_locked_is_refused_and_its_holder_named() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("disk");
        fs::write(&path, vec![0; 10_000]).unwrap();
        let first = Store::open(&path, Access::Exclusive).unwrap();
        assert_eq!(first.len(), 9728);
        let refusal = Store::open(&path, Access::Exclusive).unwrap_err();
        assert_eq!(refusal.exit, 20);
        assert!(refusal.message.contains("is in use"), "{refusal}");
        assert!(Store::open(&path, Access::Read).is_ok());
        assert!(Store::open(&path, Access::Shared).is_ok());
        drop(first);
        assert!(Store::open(&path, Access::Exclusive).is_ok());
    }

    #[test]
    fn a_directory_is_no_disk() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(Store::open(dir.path(), Access::Read).unwrap_err().exit, 20);
        assert_eq!(Store::open(&dir.path().join("none"), Access::Read).unwrap_err().exit, 20);
    }
}
