//! A front end without sockets: an application that lives in this process and makes its requests from the loop itself.
//!
//! Its requests go the way that those of NBD go from `requests` on. It never keeps the loop from its other work: after
//! [`BATCH`] requests in one turn everybody else has a turn.

use crate::buffers::{Buf, Pool};
use crate::requests::{Asker, Requests};
use crate::ring::{Fd, Op, Ring};
use crate::token::Token;
use frontends::{Errno, Kind, Request};
use std::io;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use units::{ByteLen, Instant, VolumeNr};
use urbd_core::{BufRef, MAX_DATA, Segments};

/// What makes block requests inside the process. All calls come from the loop: none may block.
pub trait Application {
    /// A descriptor that is readable when [`Application::on_readable`] is to be called. Asked for once.
    ///
    /// # Errors
    /// What the system says; the resource then does not start.
    fn descriptor(&self) -> io::Result<OwnedFd>;

    /// The descriptor is readable.
    fn on_readable(&mut self);

    /// A turn of the loop begins, at this time of the monotonic clock. All that is asked and told in it counts as
    /// happening then: to read a clock for each request costs as much as a good part of the work on it.
    fn on_turn(&mut self, now: Instant) {
        let _ = now;
    }

    /// A volume has this size in bytes from now on; 0: it cannot be used.
    fn on_device(&mut self, volume: VolumeNr, size: u64);

    /// The next request that it wants to make now, inside the volume, of whole sectors, reads and writes of at most
    /// [`MAX_DATA`] bytes. Asked again at least after each [`Application::on_done`] and [`Application::on_readable`].
    fn next(&mut self) -> Option<(VolumeNr, Request)>;

    /// Fills in the payload of a write that it has just made.
    fn fill(&mut self, request: &Request, payload: &mut [u8]);

    /// A request ended; a successful read brought `data`.
    fn on_done(&mut self, request: &Request, result: Result<(), Errno>, data: &[u8]);
}

/// The application with what it needs of the loop.
pub(crate) struct Inside {
    application: Box<dyn Application>,
    pool: &'static Pool,
    fd: Fd,
    /// A write for which the pool has had no buffer.
    starved: Option<(VolumeNr, Request)>,
    /// Requests that it may still make in this turn.
    left: u32,
    hungry: bool,
}

/// Requests in one turn, after which the others have theirs.
const BATCH: u32 = 1024;

impl Inside {
    pub(crate) fn start(
        ring: &mut Ring<Token>,
        pool: &'static Pool,
        application: Box<dyn Application>,
    ) -> io::Result<Inside> {
        let fd: Fd = Rc::new(application.descriptor()?);
        ring.push(Op::Readable { fd: fd.clone() }, Token::Application);
        Ok(Inside { application, pool, fd, starved: None, left: BATCH, hungry: false })
    }

    pub(crate) fn on_readable(&mut self, ring: &mut Ring<Token>) {
        self.application.on_readable();
        ring.push(Op::Readable { fd: self.fd.clone() }, Token::Application);
    }

    pub(crate) fn set_device(&mut self, volume: VolumeNr, size: ByteLen, usable: bool) {
        self.application.on_device(volume, if usable { size.0 } else { 0 });
    }

    /// A new turn of the loop begins.
    pub(crate) fn begin_turn(&mut self, now: Instant) {
        self.application.on_turn(now);
        self.left = BATCH;
        self.hungry = false;
    }

    /// Does it want more than it may in this turn? Then the loop must not sleep.
    pub(crate) fn is_hungry(&self) -> bool {
        self.hungry
    }

    /// Takes its requests in.
    pub(crate) fn pump(&mut self, requests: &mut Requests) {
        loop {
            if self.left == 0 {
                self.hungry = true;
                return;
            }
            let Some((volume, request)) = self.starved.take().or_else(|| self.application.next()) else { return };
            debug_assert!(request.payload_in().max(request.payload_out()) <= MAX_DATA as u32);
            let payload = match request.kind {
                Kind::Write => {
                    let Some(mut buf) = self.pool.take(request.len as usize) else {
                        self.starved = Some((volume, request));
                        return;
                    };
                    self.application.fill(&request, &mut buf.bytes_mut()[..request.len as usize]);
                    Segments::One(BufRef { id: buf.into_id().0, offset: 0, len: request.len })
                }
                _ => Segments::None,
            };
            self.left -= 1;
            requests.admit(Asker::Application, volume, request, payload);
        }
    }

    /// A request ended; `data` is what a read brought.
    pub(crate) fn answer(&mut self, request: &Request, result: Result<(), Errno>, data: &[(Buf, u32)]) {
        let bytes = data.first().map_or(&[][..], |(buf, len)| &buf.bytes()[..*len as usize]);
        self.application.on_done(request, result, bytes);
    }
}
