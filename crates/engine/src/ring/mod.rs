//! The event loop's kernel interface: typed operations in, typed completions out, one kernel entry per turn.
//!
//! Push any number of operations with [`Ring::push`], then call [`Ring::turn`]: it submits all of them, waits for at
//! least one completion (or the deadline) and appends what completed. An operation owns its file and its memory until
//! its completion is handed out, so neither can go away under the kernel.
//!
//! Two backends: io_uring, and where that is forbidden `poll(2)` with plain system calls.
#![allow(unsafe_code)]

mod busy_poll;
mod message;
mod op;
mod poll;
mod slot;
mod uring;

pub use busy_poll::BusyPoll;
pub use message::Message;
pub use op::{Done, FallocateMode, Fd, NO_OFFSET, Op, OpId, PeerAddress, Take};
pub use slot::FuseSlot;

use crate::sys;
use std::cell::Cell;
use std::collections::VecDeque;
use std::io;
use std::os::fd::{FromRawFd, OwnedFd};
use units::{Duration, Instant};

/// System calls that a thread's rings have made.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Calls {
    /// Entries into io_uring, or calls of `poll`.
    pub turns: u64,
    /// Tries to send or receive at once, besides what io_uring does.
    pub sockets: u64,
    /// Operations on files, besides what io_uring does.
    pub files: u64,
    /// Others of the processor were let run while a wait stayed awake.
    pub yields: u64,
}

thread_local! {
    static CALLS: Cell<Calls> = const { Cell::new(Calls { turns: 0, sockets: 0, files: 0, yields: 0 }) };
}

/// System calls that the rings of this thread have made since it began.
#[must_use]
pub fn calls() -> Calls {
    CALLS.get()
}

fn count(call: impl FnOnce(&mut Calls)) {
    let mut calls = CALLS.get();
    call(&mut calls);
    CALLS.set(calls);
}

/// Operations in flight on the kernel's behalf, each with a token `T` that says to its owner what it was for.
pub struct Ring<T> {
    backend: Backend,
    slab: Slab<T>,
    /// Operations that the next turns do on this thread.
    inline: VecDeque<(Op, T)>,
    /// The last turn did not enter the kernel.
    put_off: bool,
    busy_poll: BusyPoll,
    /// Accepts that lacked a descriptor or memory, and when each is tried again.
    paused: Vec<(OpId, Instant)>,
    /// What is to be handed out. Kept to reuse its memory.
    finished: Vec<Finished>,
}

/// How long an accept that could not be done waits. A connection that waits to be let in would make it fail at once.
const ACCEPT_AGAIN: Duration = Duration::from_millis(250);

/// Bytes that a turn reads and writes on this thread before it looks after the sockets again.
const INLINE_BATCH: usize = 1 << 20;

/// So many inline operations in a turn make it likely that a socket has something by then.
const MANY_INLINE: usize = 8;

/// Set to `1` in the environment, this variable makes [`Ring::new`] do without io_uring.
pub const NO_IO_URING: &str = "URBD_NO_IO_URING";

/// Which kernel interface a ring uses.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Interface {
    /// io_uring.
    IoUring,
    /// `poll(2)` and one system call per operation.
    Poll,
}

impl std::fmt::Display for Interface {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Interface::IoUring => "io_uring",
            Interface::Poll => "poll",
        })
    }
}

#[allow(clippy::large_enum_variant, reason = "there is one of it in a process")]
enum Backend {
    Uring(uring::Uring),
    Poll(poll::Poller),
}

/// What a backend reports: `more` says that the operation stays armed.
struct Finished {
    id: OpId,
    result: i32,
    more: bool,
}

/// Where a backend finds the operations that it was given.
trait Operations {
    fn operation(&mut self, id: OpId) -> Option<&mut Op>;
}

struct Slab<T> {
    entries: Vec<Entry<T>>,
    free: Vec<u32>,
}

struct Entry<T> {
    generation: u32,
    held: Option<(Op, T)>,
}

impl<T: Copy> Ring<T> {
    /// A ring with room for `depth` submissions per turn (more are flushed early): io_uring where it is allowed,
    /// else `poll(2)`.
    ///
    /// # Errors
    /// Only if neither interface can be set up.
    pub fn new(depth: u32) -> io::Result<Ring<T>> {
        if std::env::var_os(NO_IO_URING).is_some_and(|v| v == "1") {
            return Ring::with_interface(depth, Interface::Poll);
        }
        Ring::with_interface(depth, Interface::IoUring).or_else(|_| Ring::with_interface(depth, Interface::Poll))
    }

    /// A ring on the given kernel interface.
    ///
    /// # Errors
    /// What the kernel says when it does not offer that interface, e.g. EPERM or ENOSYS for io_uring.
    pub fn with_interface(depth: u32, interface: Interface) -> io::Result<Ring<T>> {
        let backend = match interface {
            Interface::IoUring => Backend::Uring(uring::Uring::new(depth)?),
            Interface::Poll => Backend::Poll(poll::Poller::default()),
        };
        let slab = Slab::with_capacity(depth as usize);
        Ok(Ring {
            backend,
            slab,
            inline: VecDeque::new(),
            put_off: false,
            busy_poll: BusyPoll::default(),
            paused: Vec::new(),
            finished: Vec::new(),
        })
    }

    /// Which kernel interface it uses.
    #[must_use]
    pub fn interface(&self) -> Interface {
        match self.backend {
            Backend::Uring(_) => Interface::IoUring,
            Backend::Poll(_) => Interface::Poll,
        }
    }

    /// Queues `op` for the next turn. Its completion carries `token`. Panics if `op` reads into a shared buffer.
    pub fn push(&mut self, op: Op, token: T) -> OpId {
        self.enqueue(op, token, false)
    }

    /// The same for a file whose operations may wait already when they are handed over: a worker thread of the kernel
    /// does that. Without io_uring it is [`Ring::push`].
    pub fn push_to_worker(&mut self, op: Op, token: T) -> OpId {
        self.enqueue(op, token, true)
    }

    fn enqueue(&mut self, op: Op, token: T, by_worker: bool) -> OpId {
        op.assert_exclusive();
        let id = self.slab.insert(op, token);
        let op = self.slab.operation(id).expect("just inserted");
        match &mut self.backend {
            Backend::Uring(uring) => uring.push(id, op, by_worker),
            Backend::Poll(poller) => poller.push(id, op),
        }
        id
    }

    /// Queues `op` for the next turn to do on this thread: for files on which io_uring would only hand it to a worker
    /// thread.
    pub fn push_inline(&mut self, op: Op, token: T) {
        op.assert_exclusive();
        self.inline.push_back((op, token));
    }

    /// Sends what the socket takes of `message` at once, and advances it by that. What is left goes with an
    /// [`Op::Send`], which also reports what is wrong with the socket.
    pub fn send_now(&mut self, fd: &Fd, message: &mut Message) -> usize {
        count(|calls| calls.sockets += 1);
        let sent = usize::try_from(poll::try_send(fd, message)).unwrap_or(0);
        message.advance(sent);
        sent
    }

    /// Decides how long a wait looks for completions before it sleeps.
    pub fn busy_poll(&mut self) -> &mut BusyPoll {
        &mut self.busy_poll
    }

    /// Are inline operations queued?
    #[must_use]
    pub fn has_inline(&self) -> bool {
        !self.inline.is_empty()
    }

    /// Bytes that the queued inline operations read and write; `None` if none is queued.
    #[must_use]
    pub fn inline_bytes(&self) -> Option<usize> {
        self.has_inline().then(|| self.inline.iter().map(|(op, _)| op.moved_bytes()).sum())
    }

    /// Does queued inline operations on this thread, oldest first, until `most` bytes are moved (at least one), and
    /// appends their completions to `done`. Panics if one is not a file operation.
    fn perform_inline(&mut self, most: usize, done: &mut Vec<Done<T>>) {
        let mut moved = 0;
        while moved < most
            && let Some((mut op, token)) = self.inline.pop_front()
        {
            moved += op.moved_bytes();
            let result = poll::perform_file(&mut op).expect("only file operations run inline");
            done.push(Done { id: OpId::INLINE, token, result, socket: None, op: Some(op) });
        }
    }

    /// Asks the kernel to give up the operation; it still completes, with ECANCELED if it was caught in time.
    pub fn cancel(&mut self, id: OpId) {
        if self.slab.operation(id).is_none() {
            return;
        }
        if let Some(at) = self.paused.iter().position(|(paused, _)| *paused == id) {
            self.paused.swap_remove(at);
            return self.finished.push(Finished { id, result: -libc::ECANCELED, more: false });
        }
        match &mut self.backend {
            Backend::Uring(uring) => uring.cancel(id, &mut self.slab),
            Backend::Poll(poller) => poller.cancel(id),
        }
    }

    /// Submits what was pushed, waits until something completes or `deadline` has come, and appends all completions
    /// to `done`. A deadline in the past means not to wait; `None` means to wait as long as it takes. It may also
    /// return with nothing (a signal came).
    ///
    /// # Errors
    /// Only if the kernel interface itself fails.
    pub fn turn(&mut self, deadline: Option<Instant>, done: &mut Vec<Done<T>>) -> io::Result<()> {
        self.perform_inline(INLINE_BATCH, done);
        // What was done here leads to more to hand over: the kernel is entered with all of that, but not put off twice.
        self.put_off = !done.is_empty() && self.inline.is_empty() && !self.put_off;
        if self.put_off {
            // Sockets that are busy have more by now, which then shares the answers of what was done here.
            if let (true, Backend::Uring(uring)) = (done.len() >= MANY_INLINE, &mut self.backend) {
                uring.try_receives(&mut self.slab, &mut self.finished);
                self.hand_out(done);
            }
            return Ok(());
        }
        let deadline = self.accept_again(deadline);
        let deadline = if done.is_empty() && self.finished.is_empty() { deadline } else { Some(Instant(0)) };
        match &mut self.backend {
            Backend::Uring(uring) => {
                uring.turn(deadline, &mut self.busy_poll, &mut self.slab, &mut self.finished)?;
            }
            Backend::Poll(poller) => poller.turn(deadline, &mut self.slab, &mut self.finished)?,
        }
        self.hand_out(done);
        Ok(())
    }

    /// Tries accepts again whose pause is over. When the next one is, or `deadline` if that is earlier.
    fn accept_again(&mut self, deadline: Option<Instant>) -> Option<Instant> {
        if self.paused.is_empty() {
            return deadline;
        }
        let now = sys::now();
        let (due, later): (Vec<_>, _) = std::mem::take(&mut self.paused).into_iter().partition(|(_, at)| *at <= now);
        self.paused = later;
        due.into_iter().for_each(|(id, _)| self.go_on(id));
        self.paused.iter().map(|(_, at)| *at).chain(deadline).min()
    }

    /// Hands an operation that is in flight to the kernel once more.
    fn go_on(&mut self, id: OpId) {
        let Some(op) = self.slab.operation(id) else { return };
        match &mut self.backend {
            Backend::Uring(uring) => uring.push(id, op, false),
            Backend::Poll(poller) => poller.push(id, op),
        }
    }

    fn hand_out(&mut self, done: &mut Vec<Done<T>>) {
        let mut finished = std::mem::take(&mut self.finished);
        for mut f in finished.drain(..) {
            // io_uring ends an accept that brings more than it has room to report, and one that fails: it goes on as
            // the same operation.
            if !f.more && matches!(self.slab.operation(f.id), Some(Op::Accept { .. })) {
                f.more = !ends_accept(f.result);
                match f.result {
                    0.. => self.go_on(f.id),
                    _ if f.more => self.paused.push((f.id, sys::now() + ACCEPT_AGAIN)),
                    _ => {}
                }
            }
            done.extend(self.slab.complete(f));
        }
        self.finished = finished;
    }

    /// Operations that have not completed.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.slab.entries.len() - self.slab.free.len()
    }
}

impl<T> Drop for Ring<T> {
    fn drop(&mut self) {
        // The kernel may still use what operations in flight own (message headers, addresses): let them live on.
        // Pool buffers live forever anyway.
        std::mem::forget(std::mem::take(&mut self.slab.entries));
    }
}

/// Is that the end of an accept? All else passes: descriptors are closed, memory comes back, and the kernel reports
/// what happened to a connection before it was let in.
fn ends_accept(result: i32) -> bool {
    matches!(-result, libc::ECANCELED | libc::EBADF | libc::EINVAL | libc::ENOTSOCK | libc::EOPNOTSUPP)
}

impl<T: Copy> Slab<T> {
    fn with_capacity(n: usize) -> Slab<T> {
        Slab { entries: Vec::with_capacity(n), free: Vec::with_capacity(n) }
    }

    fn insert(&mut self, op: Op, token: T) -> OpId {
        let slot = self.free.pop().unwrap_or_else(|| {
            self.entries.push(Entry { generation: 0, held: None });
            self.entries.len() as u32 - 1
        });
        let entry = &mut self.entries[slot as usize];
        entry.held = Some((op, token));
        OpId { slot, generation: entry.generation }
    }

    fn complete(&mut self, f: Finished) -> Option<Done<T>> {
        let entry = self.entries.get_mut(f.id.slot as usize).filter(|e| e.generation == f.id.generation)?;
        let accepts = matches!(entry.held.as_ref()?.0, Op::Accept { .. }) && f.result >= 0;
        // SAFETY: the kernel made this descriptor for us with this completion, and nobody else learns its number.
        let socket = accepts.then(|| unsafe { OwnedFd::from_raw_fd(f.result) });
        let result = if accepts { 0 } else { f.result };
        if f.more {
            let token = entry.held.as_ref()?.1;
            return Some(Done { id: f.id, token, result, socket, op: None });
        }
        let (op, token) = entry.held.take()?;
        entry.generation = entry.generation.wrapping_add(1);
        self.free.push(f.id.slot);
        Some(Done { id: f.id, token, result, socket, op: Some(op) })
    }
}

impl<T> Operations for Slab<T> {
    fn operation(&mut self, id: OpId) -> Option<&mut Op> {
        let entry = self.entries.get_mut(id.slot as usize).filter(|e| e.generation == id.generation)?;
        entry.held.as_mut().map(|(op, _)| op)
    }
}

#[cfg(test)]
mod tests;
