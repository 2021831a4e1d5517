//! A loop device that goes away with its process, however that ends.
//!
//! The kernel detaches such a device (`LO_FLAGS_AUTOCLEAR`) when nobody has it open any more, so somebody of ours must
//! have it open. It must not be the thread that serves the file: a killed process closes its descriptors one after the
//! other, closing a loop device writes back what is dirty, and that would wait for a server which is dying itself. The
//! keeper is a thread with a descriptor table of its own, in which nothing but the loop device is open: it may wait
//! while the other threads close the file system, which then answers everything with an error.
//!
//! As the keeper has the device open, it is never the last user of an application that closes the device: dirty pages
//! are written back by `fsync` and before detaching.

use super::{Background, LoopDevice, Options, check, eventfd};
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, RawFd};
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, Sender, channel};

/// A device with its keeper. Dropping this detaches the device soon; [`Kept::detach`] waits for it.
#[derive(Debug)]
pub struct Kept {
    device: LoopDevice,
    orders: Sender<Sender<io::Result<()>>>,
}

/// Attaches `file` as [`attach`](super::attach) does, on a new keeper's thread.
///
/// # Errors
/// If the thread cannot be started; the result of attaching comes with the [`Background`].
pub fn keep(file: PathBuf, options: Options) -> io::Result<Background<Kept>> {
    let event = eventfd()?;
    let bell = event.as_raw_fd();
    let (ready, is_ready) = channel();
    let (sender, receiver) = channel();
    // What it locks into memory is small: it does next to nothing.
    let thread = std::thread::Builder::new().name("urbd-keeper".into()).stack_size(128 << 10);
    thread.spawn(move || {
        let own_table = own_descriptors();
        let failed = own_table.as_ref().err().and_then(io::Error::raw_os_error);
        // From here on `bell` is a number of this thread's own table.
        let _ = ready.send(failed);
        if own_table.is_ok() {
            run(&file, options, bell, &sender);
        }
    })?;
    match is_ready.recv() {
        Ok(None) => Ok(Background { event, receiver }),
        Ok(Some(errno)) => Err(io::Error::from_raw_os_error(errno)),
        Err(_) => Err(io::Error::other("the keeper of the loop device did not start")),
    }
}

impl Kept {
    /// The device.
    pub fn device(&self) -> LoopDevice {
        self.device
    }

    /// Once: writes back what is dirty, and detaches the device; if somebody still has it open, the kernel does it when
    /// they close it. See the module about threads.
    ///
    /// # Errors
    /// If dirty data could not be written.
    pub fn detach(&self) -> io::Result<()> {
        let (reply, replied) = channel();
        let _ = self.orders.send(reply);
        replied.recv().unwrap_or_else(|_| Err(io::Error::other("the keeper of the loop device has died")))
    }
}

/// Gives this thread a descriptor table of its own.
fn own_descriptors() -> io::Result<()> {
    // SAFETY: the call takes a number.
    check(unsafe { libc::unshare(libc::CLONE_FILES) }).map(drop)
}

fn run(file: &std::path::Path, options: Options, bell: RawFd, sender: &Sender<io::Result<Kept>>) {
    let backing = OpenOptions::new().read(true).write(!options.read_only).open(file);
    let opened = backing.as_ref().map_or(bell, AsRawFd::as_raw_fd);
    let alone = close_all_but(bell, opened);
    let attached = backing.and_then(|backing| alone.and_then(|()| super::attach_open(&backing, file, options, true)));
    let (orders, received) = channel();
    let (result, node) = match attached {
        Ok((device, node)) => (Ok(Kept { device, orders }), Some((device, node))),
        Err(e) => (Err(e), None),
    };
    let _ = sender.send(result);
    ring(bell);
    if let Some((device, node)) = node {
        wait(device, node, &received);
    }
}

/// Has the device open until it is to be detached, or nobody can say so any more.
fn wait(device: LoopDevice, node: File, orders: &Receiver<Sender<io::Result<()>>>) {
    let order = orders.recv();
    let flushed = node.sync_all();
    // For whoever has it next.
    let _ = device.set_paced(true);
    drop(node);
    if let Ok(reply) = order {
        let _ = reply.send(flushed);
    }
}

/// Closes every descriptor of this thread's table but the standard ones and two more.
fn close_all_but(a: RawFd, b: RawFd) -> io::Result<()> {
    let (low, high) = (a.min(b) as libc::c_uint, a.max(b) as libc::c_uint);
    for (first, last) in [(3, low.saturating_sub(1)), (low + 1, high.saturating_sub(1)), (high + 1, libc::c_uint::MAX)]
    {
        if first <= last {
            // SAFETY: the thread has a table of its own, and owns nothing in it but `a` and `b`.
            let closed = unsafe { libc::syscall(libc::SYS_close_range, first, last, 0) };
            if closed != 0 {
                return Err(io::Error::last_os_error());
            }
        }
    }
    Ok(())
}

/// Wakes the owner, and closes this thread's copy of its descriptor.
fn ring(bell: RawFd) {
    // SAFETY: the number is open in this thread's own table, and nothing else owns it there.
    let mut bell = unsafe { File::from_raw_fd(bell) };
    let _ = io::Write::write_all(&mut bell, &1u64.to_ne_bytes());
}
