//! The backend for systems that forbid io_uring: files synchronously, sockets when `poll(2)` says so.

use super::{Fd, Finished, Message, Op, OpId, Operations};
use crate::sys;
use std::io::{self, IoSlice};
use std::os::fd::{AsRawFd, RawFd};
use units::Instant;

#[derive(Default)]
pub(super) struct Poller {
    /// Operations that wait for their file to become ready, oldest first.
    waiting: Vec<OpId>,
    finished: Vec<Finished>,
    /// Kept to reuse its memory.
    fds: Vec<libc::pollfd>,
}

impl Poller {
    pub(super) fn push(&mut self, id: OpId, op: &mut Op) {
        match perform_file(op).or_else(|| perform_socket(op, Attempt::First)) {
            Some(result) => self.finished.push(Finished { id, result, more: false }),
            None => self.waiting.push(id),
        }
    }

    pub(super) fn cancel(&mut self, id: OpId) {
        self.waiting.retain(|w| *w != id);
        self.finished.retain(|f| f.id != id);
        self.finished.push(Finished { id, result: -libc::ECANCELED, more: false });
    }

    pub(super) fn turn(
        &mut self,
        deadline: Option<Instant>,
        operations: &mut dyn Operations,
        finished: &mut Vec<Finished>,
    ) -> io::Result<()> {
        let timeout = match deadline {
            _ if !self.finished.is_empty() => 0,
            None => -1,
            // Rounded up, so that a deadline has come when the wait for it ends.
            Some(at) => i32::try_from(at.since(sys::now()).0.div_ceil(1_000_000)).unwrap_or(i32::MAX),
        };
        super::count(|calls| calls.turns += 1);
        look(&self.waiting, operations, &mut self.fds, timeout)?;
        finished.append(&mut self.finished);
        let mut ready = self.fds.iter();
        self.waiting.retain(|&id| {
            if ready.next().is_none_or(|p| p.revents == 0) {
                return true;
            }
            let op = operations.operation(id).expect("a waiting operation is in flight");
            let Some(result) = perform_socket(op, Attempt::Ready) else { return true };
            let more = matches!(op, Op::Accept { .. }) && result >= 0;
            finished.push(Finished { id, result, more });
            more
        });
        Ok(())
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Attempt {
    First,
    Ready,
}

/// Fills `fds` with what `waiting` waits for, in that order, and waits for some of it: `timeout` in milliseconds, -1 =
/// for as long as it takes.
pub(super) fn look(
    waiting: &[OpId],
    operations: &mut dyn Operations,
    fds: &mut Vec<libc::pollfd>,
    timeout: i32,
) -> io::Result<()> {
    fds.clear();
    for id in waiting {
        let (fd, events) = interest(operations.operation(*id).expect("a waiting operation is in flight"));
        fds.push(libc::pollfd { fd, events, revents: 0 });
    }
    sys::poll(fds, timeout)
}

/// Does a file operation; `None` if `op` is not one.
pub(super) fn perform_file(op: &mut Op) -> Option<i32> {
    super::count(|calls| calls.files += 1);
    Some(match op {
        Op::Read { fd, offset, into } if *offset != super::NO_OFFSET => sys::pread(fd, into.bytes_mut(), *offset),
        Op::Write { fd, offset, from, durable: false } if *offset != super::NO_OFFSET => {
            sys::pwrite(fd, from.bytes(), *offset)
        }
        Op::Write { fd, offset, from, durable } if *offset != super::NO_OFFSET => {
            sys::pwritev(fd, &[IoSlice::new(from.bytes())], *offset, *durable)
        }
        // NO_OFFSET means "no offset" here too.
        Op::WriteParts { fd, offset, parts, durable } => sys::pwritev(fd, parts.parts(), *offset, *durable),
        Op::Flush { fd } => sys::fdatasync(fd),
        Op::Fallocate { fd, offset, len, mode } => sys::fallocate(fd, mode.flags(), *offset, *len),
        _ => return None,
    })
}

/// Tries a socket operation without blocking; `None` if it must wait.
pub(super) fn perform_socket(op: &mut Op, attempt: Attempt) -> Option<i32> {
    super::count(|calls| calls.sockets += 1);
    let result = match op {
        Op::Recv { fd, into, .. } => sys::recv(fd, into.bytes_mut()),
        Op::Send { fd, message, .. } => try_send(fd, message),
        Op::Connect { fd, to } if attempt == Attempt::First => match sys::connect_nonblocking(fd, &to.storage) {
            result if result == -libc::EINPROGRESS => return None,
            result => result,
        },
        Op::Connect { fd, .. } => sys::socket_error(fd),
        // What is accepted at once would be lost with a completion that a cancel takes back.
        Op::Accept { .. } | Op::Readable { .. } if attempt == Attempt::First => return None,
        Op::Accept { fd } => sys::accept_nonblocking(fd),
        Op::Readable { .. } => i32::from(libc::POLLIN),
        Op::FuseFetch { .. } => -libc::EOPNOTSUPP,
        Op::Read { .. } if attempt == Attempt::First => return None,
        Op::Read { fd, into, .. } => sys::read(fd, into.bytes_mut()),
        Op::Write { fd, from, .. } => sys::write(fd, from.bytes()),
        Op::WriteParts { .. } | Op::Flush { .. } | Op::Fallocate { .. } => return None,
    };
    (result != -libc::EAGAIN).then_some(result)
}

/// Sends what the socket takes at once: bytes, or a negative errno.
pub(super) fn try_send(fd: &Fd, message: &mut Message) -> i32 {
    sys::sendmsg(fd, message.parts())
}

fn interest(op: &Op) -> (RawFd, i16) {
    match op {
        Op::Read { fd, .. }
        | Op::Recv { fd, .. }
        | Op::Accept { fd }
        | Op::Readable { fd }
        | Op::FuseFetch { fd, .. } => (fd.as_raw_fd(), libc::POLLIN),
        Op::Write { fd, .. }
        | Op::WriteParts { fd, .. }
        | Op::Flush { fd }
        | Op::Fallocate { fd, .. }
        | Op::Connect { fd, .. }
        | Op::Send { fd, .. } => (fd.as_raw_fd(), libc::POLLOUT),
    }
}
