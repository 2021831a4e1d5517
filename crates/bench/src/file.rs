//! A file or block device without anything around it, on the engine's own ring: requests are handed to the kernel in
//! the order in which they are made.

use crate::error::{Error, Result};
use crate::sys;
use crate::target::Target;
use crate::workload::{Act, Load, Outcome, Request, Workload};
use engine::buffers::{ALIGNMENT, ClassPlan, Pool};
use engine::ring::{Done, Fd, Op, Ring};
use std::fs::OpenOptions;
use std::io::{Seek, SeekFrom};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::rc::Rc;

/// The file, opened for direct I/O where its file system has that.
pub struct FileTarget {
    fd: Fd,
    path: PathBuf,
    size: u64,
    /// The memory of all runs with the same block size and depth, as pools live as long as the process.
    pool: Option<(ClassPlan, &'static Pool)>,
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
        Ok(FileTarget { fd: Rc::new(file.into()), path: path.to_owned(), size, pool: None })
    }

    /// Its bytes.
    #[must_use]
    pub fn size(&self) -> u64 {
        self.size
    }

    fn pool(&mut self, workload: &Workload) -> &'static Pool {
        let plan =
            ClassPlan { size: (workload.block as usize).next_multiple_of(ALIGNMENT), count: workload.depth as usize };
        match self.pool {
            Some((has, pool)) if has == plan => pool,
            _ => self.pool.insert((plan, Pool::leak(&[plan]))).1,
        }
    }

    fn operation(&self, pool: &'static Pool, load: &Load, request: &Request) -> Option<Op> {
        let (fd, offset, len) = (self.fd.clone(), request.offset, request.len as usize);
        Some(match request.act {
            Act::Flush => Op::Flush { fd },
            Act::Read => Op::Read { fd, offset, into: pool.take(len)?.span(0, len) },
            Act::Write => {
                let mut buf = pool.take(len)?;
                load.fill(request, &mut buf.bytes_mut()[..len]);
                Op::Write { fd, offset, from: buf.span(0, len), durable: false }
            }
        })
    }

    fn take_in(&self, load: &mut Load, done: Done<(u32, u32)>) {
        let (tag, len) = done.token;
        let result = match done.result() {
            Ok(n) if n == len => Ok(()),
            Ok(n) => Err(format!("{}: {n} bytes instead of {len}", self.path.display())),
            Err(e) => Err(format!("{}: {e}", self.path.display())),
        };
        let data = match &done.op {
            Some(Op::Read { into, .. }) => into.bytes(),
            _ => &[],
        };
        load.done(sys::now(), tag, result, data);
    }
}

impl Target for FileTarget {
    fn run(&mut self, workload: &Workload) -> Result<Outcome> {
        let mut load = Load::new(workload.clone(), self.size)?;
        let pool = self.pool(workload);
        let mut ring = Ring::new(workload.depth.next_power_of_two().max(8)).map_err(Error::io("io_uring"))?;
        let mut done = Vec::new();
        loop {
            while let Some(request) = load.next(sys::now()) {
                let operation = self.operation(pool, &load, &request);
                let operation = operation.ok_or_else(|| Error::new("more requests than buffers"))?;
                ring.push(operation, (request.tag, request.len));
            }
            if load.is_over() {
                return Ok(load.into_outcome());
            }
            ring.turn(None, &mut done).map_err(Error::io("io_uring"))?;
            done.drain(..).for_each(|completion| self.take_in(&mut load, completion));
        }
    }
}
