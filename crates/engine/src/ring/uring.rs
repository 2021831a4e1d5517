//! The io_uring backend.

use super::busy_poll::BusyPoll;
use super::{Fd, Finished, Op, OpId, Operations, Take};
use crate::buffers::Span;
use crate::sys;
use io_uring::types::{Fd as RingFd, FsyncFlags, SubmitArgs, TimeoutFlags, Timespec};
use io_uring::{IoUring, cqueue, opcode, squeue};
use std::io;
use std::os::fd::AsRawFd;
use units::{Duration, Instant};

/// Long entries: the arguments of FUSE's commands do not fit into short ones.
type Entry = squeue::Entry128;

pub(super) struct Uring {
    ring: IoUring<Entry>,
    timers: Timers,
    /// Receives that the kernel does not have yet: while a wait stays awake they are tried here, which takes less than
    /// handing them over and back.
    receives: Vec<OpId>,
    /// What [`Take::AnswerFirst`] has left on sockets: so many bytes of each are to be dropped before anything is
    /// received again.
    unacknowledged: Vec<(Fd, usize)>,
    /// Kept to reuse its memory.
    looked_at: Vec<libc::pollfd>,
}

/// User data of cancel requests, whose own completions nobody waits for.
const CANCEL: u64 = u64::MAX;
/// User data of the first of our timers, which count down from here. No operation's id is as large.
const TIMER: u64 = u64::MAX - 1;
/// Timers that may run at a time.
const TIMERS: usize = 4;
/// A wait that is to end earlier than this from now uses a timer that outlives it: where waits are short, arming one
/// for each costs more than they do.
const SHORT: Duration = Duration::from_millis(4);

/// What comes after so many looks in vain comes alone: nothing else is to be done, and hardly anything follows before
/// it is answered. With more under way the further call for each receive costs more than it brings.
const LONELY: u32 = 2;

/// At most so many bytes are received that way at a time.
const FEW_BYTES: usize = 16 << 10;

/// Timers that run, in the kernel's hands. The places are boxed, as the kernel reads them when a timer is submitted.
struct Timers {
    places: Box<[Timespec; TIMERS]>,
    running: [Option<Instant>; TIMERS],
}

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
        let unacknowledged = Vec::with_capacity(8);
        Ok(Uring { ring, timers: Timers::default(), receives: Vec::new(), unacknowledged, looked_at: Vec::new() })
    }

    pub(super) fn push(&mut self, id: OpId, op: &mut Op, by_worker: bool) {
        let flags = if by_worker { squeue::Flags::ASYNC } else { squeue::Flags::empty() };
        let entry = match op {
            Op::Recv { .. } => return self.receives.push(id),
            Op::FuseFetch { fd, slot } => fuse_fetch(fd, slot),
            other => Entry::from(entry(other).flags(flags)),
        };
        self.push_entry(&entry.user_data(id.to_user_data()));
    }

    pub(super) fn cancel(&mut self, id: OpId, operations: &mut dyn Operations) {
        self.hand_over_receives(operations);
        let entry = opcode::AsyncCancel::new(id.to_user_data()).build().user_data(CANCEL);
        self.push_entry(&entry.into());
    }

    /// Submits, and waits for a completion until `deadline`, the first part of that awake for as long as `poll` says.
    pub(super) fn turn(
        &mut self,
        deadline: Option<Instant>,
        poll: &mut BusyPoll,
        operations: &mut dyn Operations,
        finished: &mut Vec<Finished>,
    ) -> io::Result<()> {
        let now = sys::now();
        let at_once = !self.ring.completion().is_empty() || deadline.is_some_and(|at| at <= now);
        if !at_once && let Some(until) = poll.begin(now) {
            let until = deadline.map_or(until, |at| at.min(until));
            self.poll(until, poll, operations, finished)?;
        } else if !at_once && poll.gathers(now) {
            let_others_run(now, poll);
        }
        if at_once || finished.is_empty() && self.ring.completion().is_empty() {
            self.hand_over_receives(operations);
            tolerate(if at_once { self.submit() } else { self.wait(deadline, poll) })?;
        }
        for c in self.ring.completion() {
            match c.user_data() {
                CANCEL => {}
                data if data > TIMER - TIMERS as u64 => self.timers.running[(TIMER - data) as usize] = None,
                data => finished.push(Finished {
                    id: OpId::from_user_data(data),
                    result: c.result(),
                    more: cqueue::more(c.flags()),
                }),
            }
        }
        Ok(())
    }

    /// Looks for something to do until `until`, without sleeping.
    fn poll(
        &mut self,
        until: Instant,
        poll: &mut BusyPoll,
        operations: &mut dyn Operations,
        finished: &mut Vec<Finished>,
    ) -> io::Result<()> {
        self.acknowledge();
        let mut looks = 0u32;
        loop {
            if self.must_enter() {
                tolerate(self.submit())?;
            }
            self.try_ready(looks >= LONELY, operations, finished)?;
            if !finished.is_empty() || !self.ring.completion().is_empty() {
                poll.found();
                return Ok(());
            }
            looks += 1;
            let before = sys::now();
            if before >= until {
                return Ok(());
            }
            if let_others_run(before, poll) {
                return Ok(());
            }
        }
    }

    /// As [`Uring::try_receives`], but asks first which sockets have something: several cost one call. What comes
    /// `alone` is answered before it is acknowledged where that is wanted.
    fn try_ready(
        &mut self,
        alone: bool,
        operations: &mut dyn Operations,
        finished: &mut Vec<Finished>,
    ) -> io::Result<()> {
        let several = self.receives.len() >= 2;
        if several {
            super::count(|calls| calls.sockets += 1);
            super::poll::look(&self.receives, operations, &mut self.looked_at, 0)?;
        }
        let (mut ready, mut left) = (self.looked_at.iter(), alone.then_some(&mut self.unacknowledged));
        self.receives.retain(|&id| {
            let nothing = several && ready.next().is_none_or(|p| p.revents == 0);
            nothing || !try_receive(id, left.as_deref_mut(), operations, finished)
        });
        Ok(())
    }

    /// Does the receives that the kernel does not have yet, as far as there is something to receive.
    pub(super) fn try_receives(&mut self, operations: &mut dyn Operations, finished: &mut Vec<Finished>) {
        self.acknowledge();
        self.receives.retain(|&id| !try_receive(id, None, operations, finished));
    }

    /// Takes off the sockets what was only looked at, upon which TCP acknowledges it.
    fn acknowledge(&mut self) {
        for (fd, mut len) in self.unacknowledged.drain(..) {
            // All of it is there, unless the peer plays with urgent data or the connection broke: then what comes next
            // is nothing that anybody could use anyway.
            while len > 0 {
                super::count(|calls| calls.sockets += 1);
                match usize::try_from(sys::discard(&fd, len)) {
                    Ok(n) if n > 0 => len -= n.min(len),
                    _ => break,
                }
            }
        }
    }

    /// Is there something for the kernel to take, or something that it only gives to who enters it?
    fn must_enter(&mut self) -> bool {
        let submission = self.ring.submission();
        !submission.is_empty() || submission.taskrun()
    }

    fn hand_over_receives(&mut self, operations: &mut dyn Operations) {
        self.acknowledge();
        let mut receives = std::mem::take(&mut self.receives);
        for id in receives.drain(..) {
            let op = operations.operation(id).expect("a receive is in flight");
            self.push_entry(&entry(op).user_data(id.to_user_data()).into());
        }
        self.receives = receives;
    }

    fn submit(&mut self) -> io::Result<usize> {
        super::count(|calls| calls.turns += 1);
        self.ring.submit()
    }

    fn wait(&mut self, deadline: Option<Instant>, poll: &mut BusyPoll) -> io::Result<usize> {
        super::count(|calls| calls.turns += 1);
        let left = deadline.map(|at| (at, at.since(sys::now())));
        let result = match left {
            Some((at, left)) if left > SHORT || !self.run_timer(at) => {
                let time = Timespec::new().sec(left.0 / 1_000_000_000).nsec((left.0 % 1_000_000_000) as u32);
                self.ring.submitter().submit_with_args(1, &SubmitArgs::new().timespec(&time))
            }
            _ => self.ring.submit_and_wait(1),
        };
        poll.slept(sys::now());
        result
    }

    /// Makes sure that a timer ends the wait at `at` at the latest. False if there are too many.
    fn run_timer(&mut self, at: Instant) -> bool {
        if self.timers.running.iter().flatten().any(|t| *t <= at) {
            return true;
        }
        let Some(place) = self.timers.running.iter().position(Option::is_none) else { return false };
        self.timers.running[place] = Some(at);
        self.timers.places[place] = Timespec::new().sec(at.0 / 1_000_000_000).nsec((at.0 % 1_000_000_000) as u32);
        let time = &raw const self.timers.places[place];
        let timer = opcode::Timeout::new(time).flags(TimeoutFlags::ABS).build().user_data(TIMER - place as u64);
        self.push_entry(&timer.into());
        true
    }

    fn push_entry(&mut self, entry: &Entry) {
        loop {
            // SAFETY: everything an entry points at is owned by the operation, which the slab holds until the kernel
            // has completed it (boxed parts and pool buffers do not move with it).
            if unsafe { self.ring.submission().push(entry) }.is_ok() {
                return;
            }
            // The queue is full: hand it over now. EBUSY cannot last, as the kernel never drops completions (NODROP).
            let _ = self.submit();
        }
    }
}

/// Lets others of this processor run. True: they need it.
fn let_others_run(now: Instant, poll: &mut BusyPoll) -> bool {
    super::count(|calls| calls.yields += 1);
    sys::let_others_run();
    poll.others_ran(now, sys::now())
}

/// Does a receive if there is something to receive. False: there is not. A little that is to be answered first is left
/// on its socket, and noted in `left`.
fn try_receive(
    id: OpId,
    left: Option<&mut Vec<(Fd, usize)>>,
    operations: &mut dyn Operations,
    finished: &mut Vec<Finished>,
) -> bool {
    let op = operations.operation(id).expect("a receive is in flight");
    let result = match (op, left) {
        (Op::Recv { fd, into, take: Take::AnswerFirst }, Some(left)) => look_at(fd, into, left),
        (op, _) => super::poll::perform_socket(op, super::poll::Attempt::First),
    };
    finished.extend(result.map(|result| Finished { id, result, more: false }));
    result.is_some()
}

/// Copies the first bytes that a socket has received, and leaves them there. `None`: there is nothing.
fn look_at(fd: &Fd, into: &mut Span, left: &mut Vec<(Fd, usize)>) -> Option<i32> {
    super::count(|calls| calls.sockets += 1);
    let few = into.len().min(FEW_BYTES);
    let result = sys::peek(fd, &mut into.bytes_mut()[..few]);
    left.extend(usize::try_from(result).ok().filter(|n| *n > 0).map(|n| (fd.clone(), n)));
    (result != -libc::EAGAIN).then_some(result)
}

impl Default for Timers {
    fn default() -> Timers {
        Timers { places: Box::new([Timespec::new(); TIMERS]), running: [None; TIMERS] }
    }
}

/// The deadline has come; a signal arrived; completions must be reaped before more can be submitted: all of that is in
/// order.
fn tolerate(result: io::Result<usize>) -> io::Result<()> {
    match result {
        Err(e) if !matches!(e.raw_os_error(), Some(libc::ETIME | libc::EINTR | libc::EBUSY | libc::EAGAIN)) => Err(e),
        _ => Ok(()),
    }
}

fn entry(op: &mut Op) -> squeue::Entry {
    match op {
        Op::Read { fd, offset, into } => {
            opcode::Read::new(raw(fd), into.address(), into.len() as u32).offset(*offset).build()
        }
        Op::Write { fd, offset, from, durable } => {
            let write = opcode::Write::new(raw(fd), from.address(), from.len() as u32);
            write.offset(*offset).rw_flags(sys::write_flags(*durable)).build()
        }
        Op::WriteParts { fd, offset, parts, durable } => {
            let (iovecs, n) = parts.prepare_iovecs();
            opcode::Writev::new(raw(fd), iovecs, n).offset(*offset).rw_flags(sys::write_flags(*durable)).build()
        }
        Op::Flush { fd } => opcode::Fsync::new(raw(fd)).flags(FsyncFlags::DATASYNC).build(),
        Op::Fallocate { fd, offset, len, mode } => {
            opcode::Fallocate::new(raw(fd), *len).offset(*offset).mode(mode.flags()).build()
        }
        Op::Connect { fd, to } => {
            opcode::Connect::new(raw(fd), to.storage.as_ptr().cast(), to.storage.addr_len()).build()
        }
        Op::Accept { fd } => opcode::AcceptMulti::new(raw(fd)).flags(libc::SOCK_CLOEXEC).build(),
        Op::Recv { fd, into, take } => {
            let flags = if *take == Take::Whole { libc::MSG_WAITALL } else { 0 };
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
