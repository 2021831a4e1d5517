//! Byte streams over sockets: cutting what comes in, batching what goes out.
//!
//! Incoming small packets arrive many at a time in a staging buffer. A payload is copied once from there into its own
//! aligned buffer; what of it has not arrived yet is then received straight into that buffer. Outgoing packets of a
//! loop turn leave with one vectored send, payload by reference.

use crate::buffers::{Buf, Pool, Span};
use crate::ring::{Fd, Message, Op, OpId, Ring, Take};
use std::collections::VecDeque;

/// The receiving side of a stream. At most one receive is in flight, and it owns the memory that it fills.
#[derive(Debug)]
pub struct Inbox {
    staging: Option<Buf>,
    start: usize,
    end: usize,
    payload: Option<Payload>,
    receiving: Option<Target>,
    answers_first: bool,
}

#[derive(Debug)]
struct Payload {
    buf: Option<Buf>,
    filled: usize,
    len: usize,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Target {
    Staging,
    Payload,
}

/// The sending side of a stream.
#[derive(Debug, Default)]
pub struct Outbox {
    queue: VecDeque<Box<Message>>,
    /// Bytes of the queue's messages but the last one.
    before_last: usize,
    /// Boxed as the ring holds them: the kernel is given addresses inside.
    #[allow(clippy::vec_box)]
    spare: Vec<Box<Message>>,
    in_flight: bool,
    in_flight_bytes: usize,
    sent: u64,
}

/// Bytes of a staging buffer. It must hold the largest packet (4 KiB) plus what arrives in one go.
pub const STAGING: usize = 128 << 10;

impl Inbox {
    /// An inbox with a staging buffer from `pool`; `None` if the pool has none.
    #[must_use]
    pub fn new(pool: &'static Pool) -> Option<Inbox> {
        Some(Inbox::staged(pool.take(STAGING)?))
    }

    /// The same with a staging buffer that is there, of [`STAGING`] bytes or more.
    #[must_use]
    pub fn staged(staging: Buf) -> Inbox {
        let staging = Some(staging);
        Inbox { staging, start: 0, end: 0, payload: None, receiving: None, answers_first: false }
    }

    /// The same for a TCP socket: what is answered to a few bytes leaves before TCP's acknowledgement of them.
    #[must_use]
    pub fn answering_first(self) -> Inbox {
        Inbox { answers_first: true, ..self }
    }

    /// The bytes that are there and not consumed. Empty while a receive into the staging buffer is in flight.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        match &self.staging {
            Some(buf) => &buf.bytes()[self.start..self.end],
            None => &[],
        }
    }

    /// Drops the first `n` of [`Inbox::bytes`].
    pub fn consume(&mut self, n: usize) {
        assert!(n <= self.end - self.start, "consumed {n} of {} bytes", self.end - self.start);
        self.start += n;
    }

    /// The next `len` bytes are a payload, which [`Inbox::take_payload`] will give. Panics if one is awaited already.
    pub fn expect_payload(&mut self, len: usize) {
        assert!(self.payload.is_none(), "a payload is awaited already");
        self.payload = Some(Payload { buf: None, filled: 0, len });
    }

    /// Is a payload awaited?
    #[must_use]
    pub fn awaits_payload(&self) -> bool {
        self.payload.is_some()
    }

    /// Is a payload awaited for which the pool has had no buffer?
    #[must_use]
    pub fn is_starved(&self) -> bool {
        // One that is being received into is not here, but it is there.
        self.receiving.is_none() && self.payload.as_ref().is_some_and(|p| p.buf.is_none())
    }

    /// The awaited payload if all of it is there. `None` also if the pool has no buffer for it now: call again when
    /// one has come back; nothing is received meanwhile.
    pub fn take_payload(&mut self, pool: &'static Pool) -> Option<Span> {
        if self.receiving.is_some() {
            return None;
        }
        let payload = self.payload.as_mut()?;
        if payload.buf.is_none() {
            payload.buf = Some(pool.take(payload.len)?);
        }
        let (target, staging) = (payload.buf.as_mut()?, self.staging.as_ref()?);
        let n = (self.end - self.start).min(payload.len - payload.filled);
        let from = &staging.bytes()[self.start..self.start + n];
        target.bytes_mut()[payload.filled..payload.filled + n].copy_from_slice(from);
        self.start += n;
        payload.filled += n;
        if payload.filled < payload.len {
            return None;
        }
        let Payload { buf, len, .. } = self.payload.take()?;
        Some(buf?.span(0, len))
    }

    /// Receives more, unless a receive is in flight or a payload waits for a buffer.
    pub fn receive<T: Copy>(&mut self, ring: &mut Ring<T>, fd: &Fd, token: T) -> Option<OpId> {
        if self.receiving.is_some() || self.is_starved() {
            return None;
        }
        let into = match &mut self.payload {
            Some(payload) => {
                self.receiving = Some(Target::Payload);
                payload.buf.take()?.span(payload.filled, payload.len - payload.filled)
            }
            None => {
                self.receiving = Some(Target::Staging);
                self.compact();
                self.staging.take()?.span(self.end, STAGING - self.end)
            }
        };
        let take = match self.receiving {
            Some(Target::Payload) => Take::Whole,
            _ if self.answers_first => Take::AnswerFirst,
            _ => Take::Some,
        };
        Some(ring.push(Op::Recv { fd: fd.clone(), into, take }, token))
    }

    /// A receive has completed with `n` bytes.
    pub fn received(&mut self, into: Span, n: usize) {
        match (self.receiving.take(), &mut self.payload) {
            (Some(Target::Payload), Some(payload)) => {
                payload.buf = Some(into.into_buf());
                payload.filled += n;
            }
            _ => {
                self.staging = Some(into.into_buf());
                self.end += n;
            }
        }
    }

    fn compact(&mut self) {
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
        } else if self.start > STAGING / 2
            && let Some(buf) = &mut self.staging
        {
            buf.bytes_mut().copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
        }
    }
}

impl Outbox {
    /// The message to append to. It goes out with the next [`Outbox::flush`].
    pub fn message(&mut self) -> &mut Message {
        // The front one is not in the queue while it is in flight, so the back one may be extended.
        let full = self.queue.back().is_some_and(|m| m.is_full()).then(|| self.last_bytes());
        if self.queue.is_empty() || full.is_some() {
            self.before_last += full.unwrap_or_default();
            self.queue.push_back(self.spare.pop().unwrap_or_default());
        }
        self.queue.back_mut().expect("just filled")
    }

    /// Sends what is queued, unless a send is in flight. True: the socket did not take all of it, and a send of the
    /// rest is in flight now.
    pub fn flush<T: Copy>(&mut self, ring: &mut Ring<T>, fd: &Fd, token: T) -> bool {
        while !self.in_flight
            && let Some(mut message) = self.queue.pop_front()
        {
            self.before_last -= if self.queue.is_empty() { 0 } else { message.remaining() };
            if !message.is_empty() {
                self.sent += ring.send_now(fd, &mut message) as u64;
            }
            if message.is_empty() {
                self.recycle(message);
            } else {
                self.in_flight_bytes = message.remaining();
                ring.push(Op::Send { fd: fd.clone(), message }, token);
                self.in_flight = true;
                return true;
            }
        }
        false
    }

    /// A send has completed with `n` bytes; what is left of its message goes first with the next flush.
    pub fn sent(&mut self, mut message: Box<Message>, n: usize) {
        self.in_flight = false;
        self.in_flight_bytes = 0;
        self.sent += n as u64;
        message.advance(n);
        if message.is_empty() {
            self.recycle(message);
        } else {
            self.before_last += if self.queue.is_empty() { 0 } else { message.remaining() };
            self.queue.push_front(message);
        }
    }

    /// Is there nothing queued and nothing in flight?
    #[must_use]
    pub fn is_idle(&self) -> bool {
        !self.in_flight && self.queue.iter().all(|m| m.is_empty())
    }

    /// Forgets what is not being sent.
    pub fn drop_queue(&mut self) {
        self.queue.clear();
        self.before_last = 0;
    }

    /// Is a send in flight?
    #[must_use]
    pub fn is_sending(&self) -> bool {
        self.in_flight
    }

    /// Bytes sent since the beginning.
    #[must_use]
    pub fn sent_bytes(&self) -> u64 {
        self.sent
    }

    /// Bytes appended since the beginning.
    #[must_use]
    pub fn appended_bytes(&self) -> u64 {
        self.sent + (self.queued_bytes() + self.in_flight_bytes) as u64
    }

    /// Bytes queued, without what is in flight.
    #[must_use]
    pub fn queued_bytes(&self) -> usize {
        self.before_last + self.last_bytes()
    }

    fn last_bytes(&self) -> usize {
        self.queue.back().map_or(0, |m| m.remaining())
    }

    fn recycle(&mut self, mut message: Box<Message>) {
        message.clear();
        if self.spare.len() < 4 {
            self.spare.push(message);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::buffers::ClassPlan;
    use crate::ring::BusyPoll;
    use std::net::{TcpListener, TcpStream};
    use std::rc::Rc;

    fn pool() -> &'static Pool {
        Pool::leak(&[ClassPlan { size: 4096, count: 2 }, ClassPlan { size: 1 << 20, count: 8 }])
    }

    fn pair() -> (Fd, Fd) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let a = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (Rc::new(a.into()), Rc::new(listener.accept().unwrap().0.into()))
    }

    /// Frames of one length byte (units of 1000), then so many bytes of the frame's number.
    fn frames(inbox: &mut Inbox, pool: &'static Pool, out: &mut Vec<(usize, u8)>) {
        loop {
            if inbox.awaits_payload() {
                let Some(span) = inbox.take_payload(pool) else { return };
                assert!(span.bytes().iter().all(|b| *b == span.bytes()[0]));
                out.push((span.len(), span.bytes()[0]));
            } else {
                let Some(&n) = inbox.bytes().first() else { return };
                inbox.consume(1);
                inbox.expect_payload(usize::from(n) * 1000);
            }
        }
    }

    #[test]
    fn frames_of_all_sizes_arrive_in_order() {
        for awake in [false, true] {
            frames_arrive(awake);
        }
    }

    fn frames_arrive(awake: bool) {
        let (pool, mut ring) = (pool(), Ring::new(16).unwrap());
        let (a, b) = pair();
        let (mut outbox, mut inbox) = (Outbox::default(), Inbox::new(pool).unwrap());
        if awake {
            *ring.busy_poll() = BusyPoll::at_most(units::Duration::from_millis(1));
            inbox = inbox.answering_first();
        }
        let sizes: Vec<u8> = (1..=255).collect();
        for (i, n) in sizes.iter().enumerate() {
            let message = outbox.message();
            message.copy(&[*n]);
            message.copy(&vec![i as u8; usize::from(*n) * 1000]);
        }
        let appended = sizes.iter().map(|n| 1 + u64::from(*n) * 1000).sum::<u64>();
        let (mut got, mut done): (Vec<(usize, u8)>, Vec<crate::ring::Done<char>>) = Default::default();
        while got.len() < sizes.len() {
            outbox.flush(&mut ring, &a, 's');
            inbox.receive(&mut ring, &b, 'r');
            assert_eq!(outbox.queued_bytes(), outbox.queue.iter().map(|m| m.remaining()).sum::<usize>());
            assert_eq!(outbox.appended_bytes(), appended);
            ring.turn(None, &mut done).unwrap();
            for done in done.drain(..) {
                let n = done.result().unwrap() as usize;
                match done.op {
                    Some(Op::Send { message, .. }) => outbox.sent(message, n),
                    Some(Op::Recv { into, .. }) => inbox.received(into, n),
                    other => panic!("{other:?}"),
                }
            }
            frames(&mut inbox, pool, &mut got);
        }
        let want: Vec<(usize, u8)> = sizes.iter().enumerate().map(|(i, n)| (usize::from(*n) * 1000, i as u8)).collect();
        assert_eq!(got, want);
        assert!(outbox.is_idle() && outbox.sent_bytes() > 1 << 20);
        drop((inbox, outbox));
        assert_eq!((ring.in_flight(), pool.in_use()), (0, 0));
    }

    #[test]
    fn no_buffer_stops_receiving_until_one_returns() {
        let pool = Pool::leak(&[ClassPlan { size: 4096, count: 1 }, ClassPlan { size: STAGING, count: 1 }]);
        let (mut ring, (_, b)) = (Ring::new(4).unwrap(), pair());
        let mut inbox = Inbox::new(pool).unwrap();
        let taken = pool.take(4096).unwrap();
        inbox.expect_payload(4096);
        assert!(inbox.take_payload(pool).is_none() && inbox.is_starved());
        assert!(inbox.receive(&mut ring, &b, ()).is_none());
        drop(taken);
        assert!(inbox.take_payload(pool).is_none() && !inbox.is_starved());
        assert!(inbox.receive(&mut ring, &b, ()).is_some());
    }
}
