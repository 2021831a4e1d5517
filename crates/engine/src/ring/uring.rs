//! The io_uring backend.

use super::{Finished, Op, OpId, QUIET_WAIT};
use crate::sys;
use io_uring::types::{Fd as RingFd, FsyncFlags, SubmitArgs, Timespec};
use io_uring::{IoUring, cqueue, opcode, squeue};
use std::io;
use std::os::fd::AsRawFd;
use units::Instant;

/// Long entries: the arguments of FUSE's commands do not fit into short ones.
type Entry = squeue::Entry128;

pub(super) struct Uring {
    ring: IoUring<Entry>,
    /// Quiet sends pushed since the last submission: their completions come at once and shall wake nobody.
    quiet: usize,
}

/// User data of cancel requests, whose own completions nobody waits for.
const CANCEL: u64 = u64::MAX;

impl Uring {
    pub(super) fn new(depth: u32) -> io::Result<Uring> {
        let modern = IoUring::<Entry>::builder()
            .dontfork()
            .setup_cqsize(depth * 4)
            .setup_submit_all()
            .setup_single_issuer()
            .setup_defer_taskrun()
            .setup_taskrun_flag()
            .build(depth);
        // Kernels before 6.1 know fewer flags.
        let ring = modern.or_else(|_| IoUring::<Entry>::builder().dontfork().setup_cqsize(depth * 4).build(depth))?;
        if !ring.params().is_feature_ext_arg() || !ring.params().is_feature_nodrop() {
            return Err(io::Error::new(io::ErrorKind::Unsupported, "this kernel's io_uring is too old (before 5.11)"));
        }
        Ok(Uring { ring, quiet: 0 })
    }

    pub(super) fn push(&mut self, id: OpId, op: &mut Op, by_worker: bool) {
        self.quiet += usize::from(matches!(op, Op::Send { quiet: true, .. }));
        let flags = if by_worker { squeue::Flags::ASYNC } else { squeue::Flags::empty() };
        let entry = match op {
            Op::FuseFetch { fd, slot } => fuse_fetch(fd, slot),
            other => Entry::from(entry(other).flags(flags)),
        };
        let entry = entry.user_data(id.to_user_data());
        self.push_entry(&entry);
    }

    pub(super) fn cancel(&mut self, id: OpId) {
        let entry = opcode::AsyncCancel::new(id.to_user_data()).build().user_data(CANCEL);
        self.push_entry(&entry.into());
    }

    pub(super) fn turn(&mut self, deadline: Option<Instant>, finished: &mut Vec<Finished>) -> io::Result<()> {
        let quiet = std::mem::take(&mut self.quiet);
        let deadline = match (quiet, deadline) {
            (0, deadline) => deadline,
            // A send that cannot leave yet is not to keep other completions waiting.
            (_, deadline) => Some(deadline.unwrap_or(Instant(u64::MAX)).min(sys::now() + QUIET_WAIT)),
        };
        let waiting = match deadline {
            _ if !self.ring.completion().is_empty() => self.ring.submit(),
            None => self.ring.submit_and_wait(1),
            Some(at) => {
                let left = at.since(sys::now()).0;
                if left == 0 {
                    self.ring.submit()
                } else {
                    let time = Timespec::new().sec(left / 1_000_000_000).nsec((left % 1_000_000_000) as u32);
                    self.ring.submitter().submit_with_args(1 + quiet, &SubmitArgs::new().timespec(&time))
                }
            }
        };
        match waiting {
            Ok(_) => {}
            // The deadline has come; a signal arrived; completions must be reaped before more can be submitted.
            Err(e) if matches!(e.raw_os_error(), Some(libc::ETIME | libc::EINTR | libc::EBUSY | libc::EAGAIN)) => {}
            Err(e) => return Err(e),
        }
        finished.extend(self.ring.completion().filter(|c| c.user_data() != CANCEL).map(|c| Finished {
            id: OpId::from_user_data(c.user_data()),
            result: c.result(),
            more: cqueue::more(c.flags()),
        }));
        Ok(())
    }

    pub(super) fn submit(&mut self) -> io::Result<()> {
        self.quiet = 0;
        match self.ring.submit() {
            // What could not be submitted now goes with the next turn.
            Err(e) if !matches!(e.raw_os_error(), Some(libc::EINTR | libc::EBUSY | libc::EAGAIN)) => Err(e),
            _ => Ok(()),
        }
    }

    fn push_entry(&mut self, entry: &Entry) {
        loop {
            // SAFETY: everything an entry points at is owned by the operation, which the slab holds until the kernel
            // has completed it (boxed parts and pool buffers do not move with it).
            if unsafe { self.ring.submission().push(entry) }.is_ok() {
                return;
            }
            // The queue is full: hand it over now. EBUSY cannot last, as the kernel never drops completions (NODROP).
            let _ = self.ring.submit();
        }
    }
}

fn entry(op: &mut Op) -> squeue::Entry {
    let flags = |durable: bool| if durable { libc::RWF_DSYNC } else { 0 };
    match op {
        Op::Read { fd, offset, into } => {
            opcode::Read::new(raw(fd), into.address(), into.len() as u32).offset(*offset).build()
        }
        Op::Write { fd, offset, from, durable } => {
            let write = opcode::Write::new(raw(fd), from.address(), from.len() as u32);
            write.offset(*offset).rw_flags(flags(*durable)).build()
        }
        Op::WriteParts { fd, offset, parts, durable } => {
            let (iovecs, n) = parts.prepare_iovecs();
            opcode::Writev::new(raw(fd), iovecs, n).offset(*offset).rw_flags(flags(*durable)).build()
        }
        Op::Flush { fd } => opcode::Fsync::new(raw(fd)).flags(FsyncFlags::DATASYNC).build(),
        Op::Fallocate { fd, offset, len, mode } => {
            opcode::Fallocate::new(raw(fd), *len).offset(*offset).mode(mode.flags()).build()
        }
        Op::Connect { fd, to } => opcode::Connect::new(raw(fd), (&raw const *to.storage).cast(), to.len).build(),
        Op::Accept { fd } => opcode::AcceptMulti::new(raw(fd)).flags(libc::SOCK_CLOEXEC).build(),
        Op::Recv { fd, into, whole } => {
            let flags = if *whole { libc::MSG_WAITALL } else { 0 };
            opcode::Recv::new(raw(fd), into.address(), into.len() as u32).flags(flags).build()
        }
        Op::Send { fd, message, .. } => {
            opcode::SendMsg::new(raw(fd), message.prepare()).flags(libc::MSG_NOSIGNAL as u32).build()
        }
        Op::Readable { fd } => opcode::PollAdd::new(raw(fd), libc::POLLIN as u32).build(),
        Op::FuseFetch { .. } => unreachable!("needs a long entry"),
    }
}

fn fuse_fetch(fd: &super::Fd, slot: &super::FuseSlot) -> Entry {
    let (command, arguments, parts) = slot.command();
    let entry = opcode::UringCmd80::new(raw(fd), command).cmd(arguments).addr(Some(parts.as_ptr() as u64));
    let mut entry = entry.build();
    // The crate has no word for the number of iovecs, the field `len` of the submission.
    const LEN: usize = 24;
    // SAFETY: an entry is a `struct io_uring_sqe`, 128 plain bytes, and `len` are four of them.
    unsafe { (&raw mut entry).cast::<u8>().add(LEN).cast::<u32>().write(parts.len() as u32) };
    entry
}

fn raw(fd: &super::Fd) -> RingFd {
    RingFd(fd.as_raw_fd())
}
