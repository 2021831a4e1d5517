//! One connection: which phase it is in, and the transmission phase.

use super::negotiation::Negotiation;
use super::proto::*;
use super::reply::{self, Extent, ReplyHeader};
use super::{Exports, options};
use crate::{Errno, Export, Kind, Request};

/// A refused write's payload is skipped up to this many bytes; beyond it the connection is closed.
const SKIP_MAX: u32 = 64 << 20;

/// What [`Session::parse`] made of the input. `n` is always the number of input bytes to drop.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Nothing was consumed: call again when at least this many bytes of input are there (at most
    /// [`PARSE_MAX`](super::PARSE_MAX)).
    NeedMore {
        /// Bytes, counted from the start of the input.
        at_least: usize,
    },
    /// Done with these bytes; the answer, if any, has been appended to `out`. Call again with the rest.
    Consumed {
        /// Bytes to drop.
        n: usize,
    },
    /// A request to execute and then answer with [`Session::reply`].
    Request {
        /// Bytes to drop.
        n: usize,
        /// Admitted by the export.
        request: Request,
        /// Bytes of payload that follow in the stream. The owner takes them (into whatever buffer it likes); the next
        /// input given to `parse` starts behind them.
        payload_len: u32,
    },
    /// Only with [`Session::with_owner_extents`]: answer with [`Session::block_status_reply`].
    BlockStatus {
        /// Bytes to drop.
        n: usize,
        /// What the client asks.
        query: BlockStatus,
    },
    /// Send what is in `out`, let requests in flight finish, and close. Every further call answers the same.
    Close {
        /// Bytes to drop.
        n: usize,
        /// `None`: the client said goodbye. Otherwise what the client did wrong, for the log.
        violation: Option<&'static str>,
    },
}

/// A question which parts of a range are allocated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockStatus {
    /// The client's cookie.
    pub tag: u64,
    /// First byte, aligned as a request's.
    pub offset: u64,
    /// Bytes, not 0.
    pub len: u32,
    /// The client wants exactly one extent.
    pub one: bool,
}

/// The server's side of one connection.
#[derive(Debug)]
pub struct Session {
    phase: Phase,
    skip: Skip,
    owner_extents: bool,
    /// Outlives the transmission phase: requests in flight are still answered after the client's goodbye.
    structured: bool,
}

#[derive(Debug)]
enum Phase {
    Negotiation(Negotiation),
    Transmission(Transmission),
    Closed(Option<&'static str>),
}

/// What the client chose.
#[derive(Debug)]
pub(super) struct Transmission {
    pub(super) export: Export,
    pub(super) structured: bool,
    pub(super) base_allocation: bool,
}

/// Input to throw away before anything else is parsed, and the answer that waits for its end.
#[derive(Debug, Default)]
struct Skip {
    left: u32,
    then: Option<ReplyHeader>,
}

/// How one option of the negotiation ended.
pub(super) enum Progress {
    Consumed(usize),
    Skip { n: usize, payload: u32 },
    NeedMore(usize),
    Transmission(usize, Transmission),
    Close(usize, Option<&'static str>),
}

impl Session {
    /// Starts a session for a client that has just connected, appending the greeting to `out`.
    pub fn start(out: &mut Vec<u8>) -> Session {
        options::greeting(out);
        Session {
            phase: Phase::Negotiation(Negotiation::default()),
            skip: Skip::default(),
            owner_extents: false,
            structured: false,
        }
    }

    /// Block status requests become [`Step::BlockStatus`] instead of being answered "all data".
    pub fn with_owner_extents(mut self) -> Session {
        self.owner_extents = true;
        self
    }

    /// The export that the client chose; `None` until the transmission phase has begun.
    pub fn export(&self) -> Option<&Export> {
        match &self.phase {
            Phase::Transmission(transmission) => Some(&transmission.export),
            _ => None,
        }
    }

    /// The volume's size changed: requests are checked against `size` (bytes, rounded down to whole minimum blocks)
    /// from now on. NBD cannot tell the client; it sees the new size when it connects again.
    pub fn resize(&mut self, size: u64) {
        if let Phase::Transmission(transmission) = &mut self.phase {
            transmission.export.size = size - size % u64::from(transmission.export.block.min);
        }
    }

    /// Takes one step on `input`. Answers are appended to `out`, whose capacity is reused in steady state. `exports` is
    /// consulted only while the client chooses.
    pub fn parse(&mut self, input: &[u8], exports: &dyn Exports, out: &mut Vec<u8>) -> Step {
        if self.skip.left > 0 {
            return self.skip(input, out);
        }
        let owner_extents = self.owner_extents;
        let step = match &mut self.phase {
            Phase::Negotiation(negotiation) => {
                let progress = negotiation.advance(input, exports, out);
                self.follow(progress)
            }
            Phase::Transmission(transmission) => transmission.command(input, owner_extents, &mut self.skip, out),
            Phase::Closed(violation) => Step::Close { n: 0, violation: *violation },
        };
        if let Step::Close { violation, .. } = step {
            self.phase = Phase::Closed(violation);
        }
        step
    }

    /// The header that answers `request`. After a successful read, [`Request::payload_out`] bytes follow it.
    pub fn reply(&self, request: &Request, result: Result<(), Errno>) -> ReplyHeader {
        reply::header(request, result, self.structured)
    }

    /// Appends the answer to a block status question: `extents` from its offset on. What exceeds the question is cut
    /// off, and no extents at all mean that everything is data.
    pub fn block_status_reply(&self, query: &BlockStatus, extents: &[Extent], out: &mut Vec<u8>) {
        let all = [Extent { len: query.len, hole: false, zero: false }];
        let extents = if extents.first().is_none_or(|first| first.len == 0) { &all } else { extents };
        reply::block_status(query.tag, extents, query.len, query.one, out);
    }

    /// Appends the answer to a block status question that could not be answered.
    pub fn block_status_error(&self, query: &BlockStatus, errno: Errno, out: &mut Vec<u8>) {
        out.extend_from_slice(&reply::error(query.tag, errno, self.structured));
    }

    fn skip(&mut self, input: &[u8], out: &mut Vec<u8>) -> Step {
        let n = input.len().min(self.skip.left as usize);
        if n == 0 {
            return Step::NeedMore { at_least: 1 };
        }
        self.skip.left -= n as u32;
        if self.skip.left == 0
            && let Some(answer) = self.skip.then.take()
        {
            out.extend_from_slice(&answer);
        }
        Step::Consumed { n }
    }

    fn follow(&mut self, progress: Progress) -> Step {
        match progress {
            Progress::Consumed(n) => Step::Consumed { n },
            Progress::NeedMore(at_least) => Step::NeedMore { at_least },
            Progress::Close(n, violation) => Step::Close { n, violation },
            Progress::Skip { n, payload } => {
                self.skip = Skip { left: payload, then: None };
                Step::Consumed { n }
            }
            Progress::Transmission(n, transmission) => {
                self.structured = transmission.structured;
                self.phase = Phase::Transmission(transmission);
                Step::Consumed { n }
            }
        }
    }
}

/// A command's fixed header, before anything about it has been checked.
struct Command {
    flags: u16,
    number: u16,
    cookie: u64,
    offset: u64,
    len: u32,
}

impl Transmission {
    fn command(&self, input: &[u8], owner_extents: bool, skip: &mut Skip, out: &mut Vec<u8>) -> Step {
        const N: usize = REQUEST_LEN;
        if input.len() < N {
            return Step::NeedMore { at_least: N };
        }
        if be32(input, 0) != REQUEST_MAGIC {
            return Step::Close { n: 0, violation: Some("a request does not start with the request magic") };
        }
        let command = Command {
            flags: be16(input, 4),
            number: be16(input, 6),
            cookie: be64(input, 8),
            offset: be64(input, 16),
            len: be32(input, 24),
        };
        match command.number {
            CMD_DISC => Step::Close { n: N, violation: None },
            CMD_BLOCK_STATUS => self.block_status(&command, owner_extents, out),
            _ => match self.admit(&command) {
                Ok(request) => Step::Request { n: N, request, payload_len: request.payload_in() },
                Err(errno) => self.refuse(&command, errno, skip, out),
            },
        }
    }

    fn admit(&self, command: &Command) -> Result<Request, Errno> {
        let flag = |bit: u16| command.flags & bit != 0;
        let (kind, allowed) = match command.number {
            CMD_READ => (Kind::Read, if self.structured { CMD_FLAG_DF } else { 0 }),
            CMD_WRITE => (Kind::Write, 0),
            CMD_FLUSH => (Kind::Flush, 0),
            CMD_TRIM => (Kind::Discard, 0),
            CMD_WRITE_ZEROES => {
                let kind = Kind::WriteZeroes { may_unmap: !flag(CMD_FLAG_NO_HOLE), fast: flag(CMD_FLAG_FAST_ZERO) };
                (kind, CMD_FLAG_NO_HOLE | CMD_FLAG_FAST_ZERO)
            }
            _ => return Err(Errno::EINVAL),
        };
        if command.flags & !(allowed | CMD_FLAG_FUA) != 0 {
            return Err(Errno::EINVAL);
        }
        self.export.admit(command.cookie, kind, command.offset, u64::from(command.len), flag(CMD_FLAG_FUA))
    }

    fn refuse(&self, command: &Command, errno: Errno, skip: &mut Skip, out: &mut Vec<u8>) -> Step {
        let answer = reply::error(command.cookie, errno, self.structured);
        if command.number != CMD_WRITE || command.len == 0 {
            out.extend_from_slice(&answer);
        } else if command.len <= SKIP_MAX {
            *skip = Skip { left: command.len, then: Some(answer) };
        } else {
            return Step::Close { n: REQUEST_LEN, violation: Some("a write is longer than any payload we would skip") };
        }
        Step::Consumed { n: REQUEST_LEN }
    }

    fn block_status(&self, command: &Command, owner_extents: bool, out: &mut Vec<u8>) -> Step {
        let n = REQUEST_LEN;
        let allowed = command.flags & !(CMD_FLAG_REQ_ONE | CMD_FLAG_FUA) == 0;
        let covered = self.export.covers(command.offset, u64::from(command.len)).is_ok();
        if !self.base_allocation || !allowed || !covered {
            out.extend_from_slice(&reply::error(command.cookie, Errno::EINVAL, self.structured));
            return Step::Consumed { n };
        }
        let one = command.flags & CMD_FLAG_REQ_ONE != 0;
        if owner_extents {
            let query = BlockStatus { tag: command.cookie, offset: command.offset, len: command.len, one };
            return Step::BlockStatus { n, query };
        }
        let all = [Extent { len: command.len, hole: false, zero: false }];
        reply::block_status(command.cookie, &all, command.len, one, out);
        Step::Consumed { n }
    }
}
