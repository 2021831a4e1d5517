//! A file or block device without anything around it: each request in flight is a thread with one system call.

use crate::error::{Error, Result};
use crate::sys::{self, Aligned};
use crate::target::Target;
use crate::workload::{Act, Load, Outcome, Request, Workload};
use std::fs::{File, OpenOptions};
use std::io::{Seek, SeekFrom};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Condvar, Mutex};

/// The file, opened for direct I/O where its file system has that.
pub struct FileTarget {
    file: File,
    path: PathBuf,
    size: u64,
}

impl FileTarget {
    /// The file or block device at `path`; with `buffered`, through the page cache.
    ///
    /// # Errors
    /// If it cannot be opened.
    pub fn open(path: &Path, write: bool, buffered: bool) -> Result<FileTarget> {
        let open = |flags| OpenOptions::new().read(true).write(write).custom_flags(flags).open(path);
        let direct = if buffered { open(0) } else { open(libc::O_DIRECT).or_else(|_| open(0)) };
        let mut file = direct.map_err(Error::io(path.display()))?;
        let size = file.seek(SeekFrom::End(0)).map_err(Error::io(path.display()))?;
        Ok(FileTarget { file, path: path.to_owned(), size })
    }

    /// Its bytes.
    #[must_use]
    pub fn size(&self) -> u64 {
        self.size
    }
}

struct Shared {
    load: Mutex<Load>,
    /// Something ended: there may be something to do again.
    ended: Condvar,
}

impl Target for FileTarget {
    fn run(&mut self, workload: &Workload) -> Result<Outcome> {
        let load = Load::new(workload.clone(), self.size)?;
        let shared = Shared { load: Mutex::new(load), ended: Condvar::new() };
        std::thread::scope(|scope| {
            for _ in 0..workload.depth {
                scope.spawn(|| self.work(&shared, workload.block));
            }
        });
        let load = shared.load.into_inner();
        Ok(load.map_err(|_| Error::new(format!("{}: a thread failed", self.path.display())))?.into_outcome())
    }
}

impl FileTarget {
    fn work(&self, shared: &Shared, block: u32) {
        let mut memory = Aligned::new(block as usize);
        let Ok(mut load) = shared.load.lock() else { return };
        loop {
            let Some(request) = load.next(sys::now()) else {
                if load.is_over() {
                    shared.ended.notify_all();
                    return;
                }
                match shared.ended.wait(load) {
                    Ok(again) => load = again,
                    Err(_) => return,
                }
                continue;
            };
            if request.act == Act::Write {
                load.fill(&request, memory.bytes_mut());
            }
            drop(load);
            let result = self.perform(&request, memory.bytes_mut());
            match shared.load.lock() {
                Ok(again) => load = again,
                Err(_) => return,
            }
            load.done(sys::now(), request.tag, result, memory.bytes());
            shared.ended.notify_one();
        }
    }

    fn perform(&self, request: &Request, memory: &mut [u8]) -> Result<(), String> {
        let done = match request.act {
            Act::Read => self.file.read_exact_at(memory, request.offset),
            Act::Write => self.file.write_all_at(memory, request.offset),
            Act::Flush => self.file.sync_data(),
        };
        done.map_err(|e| format!("{} at byte {}: {e}", self.path.display(), request.offset))
    }
}
