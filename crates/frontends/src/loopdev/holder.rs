//! A loop device that goes away with who holds it, however that ends.
//!
//! The kernel detaches such a device (`LO_FLAGS_AUTOCLEAR`) when nobody has it open any more, so somebody of ours must
//! have it open. It must not be the thread that serves the file: a killed process closes its descriptors one after the
//! other, closing a loop device writes back what is dirty, and that would wait for a server which is dying itself. The
//! holder is a thread with a descriptor table of its own, in which nothing but the loop device is open: it may wait
//! while the other threads close the file system, which then answers everything with an error.
//!
//! With a [`Keeper`] the same open file is there, too, and outlives this process ([`Kept::abandon`]); another process
//! goes on with it ([`take_over`]).
//!
//! While the holder has the device open an application that closes it is not its last user: dirty pages are written
//! back by `fsync` and before detaching. When the holder has let go ([`Kept::let_go`]) the device is the applications'
//! alone, and gone with the last of them; until then it can be held again ([`keep_again`]).

use super::{Background, Bell, LoopDevice, Options, eventfd, set_read_only};
use crate::keeper::{Keeper, Place};
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, Sender, channel};

/// A device with its holder. Dropping this detaches the device soon, unless a keeper has it as well; [`Kept::detach`]
/// waits for it.
#[derive(Debug)]
pub struct Kept {
    device: LoopDevice,
    orders: Sender<Order>,
}

/// Who holds a device, too, and as what.
pub type Second = (Keeper, Place);

#[derive(Debug)]
enum Order {
    Detach(Sender<io::Result<()>>),
    LetGo { flush: bool, reply: Sender<io::Result<()>> },
    ReadOnly(bool, Sender<io::Result<()>>),
    Share(Second, Sender<io::Result<()>>),
}

/// Attaches `file` as [`attach`](super::attach) does, on a new holder's thread.
///
/// # Errors
/// If the thread cannot be started; the result of attaching comes with the [`Background`].
pub fn keep(file: PathBuf, options: Options) -> io::Result<Background<Kept>> {
    keep_through(file, &[], options, None)
}

/// As [`keep`], for a `file` whose path leads through descriptors of this process; on the device `wanted` if nobody
/// else has it.
///
/// # Errors
/// As [`keep`].
pub fn keep_through(
    file: PathBuf,
    through: &[BorrowedFd<'_>],
    options: Options,
    wanted: Option<LoopDevice>,
) -> io::Result<Background<Kept>> {
    let event = eventfd()?;
    let (sender, receiver) = channel();
    let open: Vec<BorrowedFd<'_>> = through.iter().copied().chain([event.as_fd()]).collect();
    start(&open, move |mut open| {
        let bell = open.pop().map(|event| Bell(event.into()));
        let attached = attach(&file, open, options, wanted);
        let (orders, received) = channel();
        let (result, node) = match attached {
            Ok((device, node)) => (Ok(Kept { device, orders }), Some((device, node))),
            Err(e) => (Err(e), None),
        };
        let _ = sender.send(result);
        drop(bell);
        if let Some((device, node)) = node {
            wait(device, node, &received, None);
        }
    })?;
    Ok(Background { event, receiver })
}

/// Holds a device again that was let go of, if a file called `name` is still behind it. `None`: it is not.
///
/// # Errors
/// As [`keep`].
pub fn keep_again(device: LoopDevice, name: String) -> io::Result<Background<Option<Kept>>> {
    let event = eventfd()?;
    let (sender, receiver) = channel();
    start(&[event.as_fd()], move |mut open| {
        let bell = open.pop().map(|event| Bell(event.into()));
        let (orders, received) = channel();
        let node = device.open(true).ok().filter(|_| device.stands_on(&name));
        let _ = sender.send(Ok(node.is_some().then_some(Kept { device, orders })));
        drop(bell);
        if let Some(node) = node {
            wait(device, node, &received, None);
        }
    })?;
    Ok(Background { event, receiver })
}

/// Goes on holding a device that another process has attached with [`keep`]; `node` is the same open file.
///
/// # Errors
/// If it is no loop device, or the thread cannot be started.
pub fn take_over(node: OwnedFd, second: Second) -> io::Result<Kept> {
    let node = File::from(node);
    let device = LoopDevice::of(&node)?;
    let (orders, received) = channel();
    start(&[node.as_fd()], move |mut open| {
        if let Some(node) = open.pop() {
            wait(device, node.into(), &received, Some(second));
        }
    })?;
    Ok(Kept { device, orders })
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
    /// If dirty data could not be written, or a second holder does not let go.
    pub fn detach(&self) -> io::Result<()> {
        self.order(Order::Detach)
    }

    /// Leaves the device to those who have it open, and the second holder with it. If it was the last one, what is
    /// dirty is written back, and the device detached, when this returns. Only with `flush` an error of that is told;
    /// then what others have made dirty is written back, too. See the module about threads.
    ///
    /// # Errors
    /// If dirty data could not be written, or a second holder does not let go.
    pub fn let_go(&self, flush: bool) -> io::Result<()> {
        self.order(|reply| Order::LetGo { flush, reply })
    }

    /// Whether writes to the device are refused by the kernel.
    ///
    /// # Errors
    /// If we may not say so.
    pub fn set_read_only(&self, read_only: bool) -> io::Result<()> {
        self.order(|reply| Order::ReadOnly(read_only, reply))
    }

    /// Gives the device to a second holder, too, in place of the one that there was.
    ///
    /// # Errors
    /// If it does not take it.
    pub fn share(&self, second: Second) -> io::Result<()> {
        self.order(|reply| Order::Share(second, reply))
    }

    /// Leaves the device to the second holder. The holder's thread ends with the process and touches nothing before.
    pub fn abandon(self) {
        std::mem::forget(self);
    }

    fn order(&self, order: impl FnOnce(Sender<io::Result<()>>) -> Order) -> io::Result<()> {
        let (reply, replied) = channel();
        let _ = self.orders.send(order(reply));
        replied.recv().unwrap_or_else(|_| Err(io::Error::other("the holder of the loop device has died")))
    }
}

/// Runs `work` on a holder's thread, with these of this process's descriptors.
fn start(open: &[BorrowedFd<'_>], work: impl FnOnce(Vec<OwnedFd>) + Send + 'static) -> io::Result<()> {
    // What it locks into memory is small: it does next to nothing.
    super::start(std::thread::Builder::new().name("urbd-holder".into()).stack_size(128 << 10), open, work)
}

fn attach(
    file: &Path,
    through: Vec<OwnedFd>,
    options: Options,
    wanted: Option<LoopDevice>,
) -> io::Result<(LoopDevice, File)> {
    let backing = OpenOptions::new().read(true).write(!options.read_only).open(file);
    drop(through);
    super::attach_open(&backing?, file, options, true, wanted)
}

/// Has the device open until it is to be detached, or nobody can say so any more.
fn wait(device: LoopDevice, node: File, orders: &Receiver<Order>, mut second: Option<Second>) {
    let mut order = orders.recv();
    loop {
        match order {
            Ok(Order::Share((keeper, place), reply)) => {
                let _ = reply.send(keeper.put(place, node.as_fd()));
                second = Some((keeper, place));
            }
            Ok(Order::ReadOnly(value, reply)) => {
                let _ = reply.send(set_read_only(&node, value));
            }
            _ => break,
        }
        order = orders.recv();
    }
    let stays = matches!(order, Ok(Order::LetGo { .. }));
    let flushed = if let Ok(Order::LetGo { flush: false, .. }) = order { Ok(()) } else { node.sync_all() };
    if !stays {
        // For whoever has it next.
        let _ = device.set_paced(true);
    }
    let released = match (&order, second) {
        // Nobody waits: the process ends, or gives the device up; what becomes of the keeper is decided elsewhere.
        (Ok(_), Some((keeper, place))) if keeper.is_there() => keeper.release(place),
        _ => Ok(()),
    };
    drop(node);
    if let Ok(Order::Detach(reply) | Order::LetGo { reply, .. }) = order {
        let _ = reply.send(flushed.and(released));
    }
}
