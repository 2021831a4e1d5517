//! A client of NBD that keeps many requests in flight over one connection: fixed newstyle handshake, simple replies.

use crate::error::{Error, Result};
use crate::sys;
use crate::target::Target;
use crate::workload::{Act, Load, Outcome, Request, Workload};
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

const GREETING: u64 = u64::from_be_bytes(*b"NBDMAGIC");
const OPTION: u64 = u64::from_be_bytes(*b"IHAVEOPT");
const OPTION_REPLY: u64 = 0x0003_e889_0455_65a9;
const FIXED_NEWSTYLE: u16 = 1;
const NO_ZEROES: u16 = 2;
const OPT_GO: u32 = 7;
const REP_ACK: u32 = 1;
const REP_INFO: u32 = 3;
const INFO_EXPORT: u16 = 0;
const REQUEST: u32 = 0x2560_9513;
const REPLY: u32 = 0x6744_6698;
const DISCONNECT: u16 = 2;
const FLAG_SEND_FLUSH: u16 = 4;

/// Bytes of a request's header.
const REQUEST_LEN: usize = 28;
/// Bytes of a reply's header.
const REPLY_LEN: usize = 16;
/// A server that says nothing for so long is not waited for.
const PATIENCE: Duration = Duration::from_secs(60);

/// A server's address.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Address {
    place: Place,
    export: String,
}

#[derive(Clone, PartialEq, Eq, Debug)]
enum Place {
    Unix(String),
    Tcp(String),
}

impl Address {
    /// From `nbd+unix:///EXPORT?socket=PATH`, `nbd://HOST[:PORT]/EXPORT`.
    ///
    /// # Errors
    /// If it is neither.
    pub fn parse(uri: &str) -> Result<Address> {
        let wrong = || Error::new(format!("{uri}: not nbd+unix:///EXPORT?socket=PATH nor nbd://HOST[:PORT]/EXPORT"));
        if let Some(rest) = uri.strip_prefix("nbd+unix://") {
            let (export, socket) = rest.split_once("?socket=").ok_or_else(wrong)?;
            let export = export.strip_prefix('/').unwrap_or(export).to_owned();
            return Ok(Address { place: Place::Unix(socket.to_owned()), export });
        }
        let rest = uri.strip_prefix("nbd://").ok_or_else(wrong)?;
        let (host, export) = rest.split_once('/').unwrap_or((rest, ""));
        let has_port = host.rsplit_once(':').is_some_and(|(_, port)| port.parse::<u16>().is_ok());
        let host = if has_port { host.to_owned() } else { format!("{host}:10809") };
        Ok(Address { place: Place::Tcp(host), export: export.to_owned() })
    }
}

/// A connection to a server.
trait Stream: Read + Write + Send {
    fn descriptor(&self) -> BorrowedFd<'_>;
    fn set_blocking(&self, blocking: bool) -> io::Result<()>;
}

impl Stream for UnixStream {
    fn descriptor(&self) -> BorrowedFd<'_> {
        self.as_fd()
    }

    fn set_blocking(&self, blocking: bool) -> io::Result<()> {
        self.set_nonblocking(!blocking)
    }
}

impl Stream for TcpStream {
    fn descriptor(&self) -> BorrowedFd<'_> {
        self.as_fd()
    }

    fn set_blocking(&self, blocking: bool) -> io::Result<()> {
        self.set_nonblocking(!blocking)
    }
}

/// An export as a target: each run is a connection of its own.
pub struct NbdTarget {
    address: Address,
}

impl NbdTarget {
    /// The export with that URI.
    ///
    /// # Errors
    /// If the URI is not understood.
    pub fn new(uri: &str) -> Result<NbdTarget> {
        Ok(NbdTarget { address: Address::parse(uri)? })
    }

    /// Bytes of the export.
    ///
    /// # Errors
    /// If the server cannot be reached or refuses.
    pub fn size(&self) -> Result<u64> {
        Ok(Session::open(&self.address)?.size)
    }
}

impl Target for NbdTarget {
    fn run(&mut self, workload: &Workload) -> Result<Outcome> {
        let first = Session::open(&self.address)?;
        workload.check(first.size)?;
        let mut parts = workload.split(first.size);
        let others = parts.split_off(1).into_iter().map(|part| Ok((Session::open(&self.address)?, part)));
        let others = others.collect::<Result<Vec<_>>>()?;
        std::thread::scope(|scope| {
            let threads = others.into_iter().map(|(session, part)| scope.spawn(|| run_on(session, part)));
            let threads: Vec<_> = threads.collect();
            let mut all = run_on(first, parts.swap_remove(0));
            for thread in threads {
                let other = thread.join().unwrap_or_else(|_| Err(Error::new("a connection's thread failed")));
                all = all.and_then(|mut sum| other.map(|o| sum.add(o)).map(|()| sum));
            }
            all
        })
    }
}

fn run_on(mut session: Session, workload: Workload) -> Result<Outcome> {
    if !session.can_flush && (workload.flush_at_end || workload.flush_every > 0) {
        return Err(Error::new("the server does not offer to flush"));
    }
    let load = Load::new(workload, session.size)?;
    Loop::new(&mut session, load).run()
}

/// A connection after its handshake.
struct Session {
    stream: Box<dyn Stream>,
    size: u64,
    can_flush: bool,
}

impl Session {
    fn open(address: &Address) -> Result<Session> {
        let mut stream: Box<dyn Stream> = match &address.place {
            Place::Unix(path) => Box::new(UnixStream::connect(path).map_err(Error::io(path))?),
            Place::Tcp(host) => {
                let stream = TcpStream::connect(host).map_err(Error::io(host))?;
                stream.set_nodelay(true).map_err(Error::io(host))?;
                Box::new(stream)
            }
        };
        let (size, flags) = handshake(&mut *stream, &address.export)?;
        stream.set_blocking(false).map_err(Error::io("the connection"))?;
        Ok(Session { stream, size, can_flush: flags & FLAG_SEND_FLUSH != 0 })
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        let _ = self.stream.set_blocking(true);
        let _ = self.stream.write_all(&request_header(DISCONNECT, 0, 0, 0));
    }
}

/// Size and transmission flags of the export.
fn handshake(stream: &mut dyn Stream, export: &str) -> Result<(u64, u16)> {
    let io = |e| Error::io("the NBD handshake")(e);
    let mut greeting = [0; 18];
    stream.read_exact(&mut greeting).map_err(io)?;
    let flags = be16(&greeting[16..]);
    if be64(&greeting) != GREETING || be64(&greeting[8..]) != OPTION || flags & FIXED_NEWSTYLE == 0 {
        return Err(Error::new("the server does not speak NBD's fixed newstyle"));
    }
    let mut ask = Vec::new();
    ask.extend_from_slice(&u32::from(flags & (FIXED_NEWSTYLE | NO_ZEROES)).to_be_bytes());
    ask.extend_from_slice(&OPTION.to_be_bytes());
    ask.extend_from_slice(&OPT_GO.to_be_bytes());
    ask.extend_from_slice(&(export.len() as u32 + 6).to_be_bytes());
    ask.extend_from_slice(&(export.len() as u32).to_be_bytes());
    ask.extend_from_slice(export.as_bytes());
    ask.extend_from_slice(&[0, 0]);
    stream.write_all(&ask).map_err(io)?;
    let mut found = None;
    loop {
        let mut header = [0; 20];
        stream.read_exact(&mut header).map_err(io)?;
        let (kind, len) = (be32(&header[12..]), be32(&header[16..]) as usize);
        if be64(&header) != OPTION_REPLY || len > 1 << 16 {
            return Err(Error::new("the server's answer in the NBD handshake is not understood"));
        }
        let mut body = vec![0; len];
        stream.read_exact(&mut body).map_err(io)?;
        match kind {
            REP_INFO if len >= 12 && be16(&body) == INFO_EXPORT => found = Some((be64(&body[2..]), be16(&body[10..]))),
            REP_INFO => {}
            REP_ACK => return found.ok_or_else(|| Error::new("the server does not say how large the export is")),
            _ => {
                let why = String::from_utf8_lossy(&body);
                return Err(Error::new(format!("the server refuses the export `{export}`: {why}")));
            }
        }
    }
}

/// The load on a connection: everything that can be asked goes out with one call, answers are taken many at a time.
struct Loop<'a> {
    session: &'a mut Session,
    load: Load,
    out: Vec<u8>,
    sent: usize,
    input: Vec<u8>,
    filled: usize,
    /// What each tag reads: bytes that follow a good answer.
    reads: Vec<usize>,
}

impl<'a> Loop<'a> {
    fn new(session: &'a mut Session, load: Load) -> Loop<'a> {
        let room = (256 << 10).max(2 * (load.block() as usize + REPLY_LEN));
        let reads = vec![0; load.depth() as usize];
        Loop { session, load, out: Vec::new(), sent: 0, input: vec![0; room], filled: 0, reads }
    }

    fn run(mut self) -> Result<Outcome> {
        loop {
            self.ask();
            if self.load.is_over() {
                return Ok(self.load.into_outcome());
            }
            let sent = self.send()?;
            let received = self.receive()?;
            if !sent
                && !received
                && !sys::wait(self.session.stream.descriptor(), self.has_output(), PATIENCE)
                    .map_err(Error::io("waiting for the server"))?
            {
                return Err(Error::new(format!("the server did not answer for {} s", PATIENCE.as_secs())));
            }
        }
    }

    fn has_output(&self) -> bool {
        self.sent < self.out.len()
    }

    fn ask(&mut self) {
        while let Some(request) = self.load.next(sys::now()) {
            if self.sent == self.out.len() {
                self.out.clear();
                self.sent = 0;
            }
            self.append(&request);
        }
    }

    fn append(&mut self, request: &Request) {
        let command = match request.act {
            Act::Read => 0,
            Act::Write => 1,
            Act::Flush => 3,
        };
        self.reads[request.tag as usize] = if request.act == Act::Read { request.len as usize } else { 0 };
        self.out.extend_from_slice(&request_header(command, request.tag, request.offset, request.len));
        if request.act == Act::Write {
            let start = self.out.len();
            self.out.resize(start + request.len as usize, 0x5a);
            self.load.fill(request, &mut self.out[start..]);
        }
    }

    /// Sends what the socket takes; true: some of it.
    fn send(&mut self) -> Result<bool> {
        if !self.has_output() {
            return Ok(false);
        }
        match self.session.stream.write(&self.out[self.sent..]) {
            Ok(n) => self.sent += n,
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Ok(false),
            Err(e) => return Err(Error::io("sending to the server")(e)),
        }
        Ok(true)
    }

    /// Takes what the socket has; true: something.
    fn receive(&mut self) -> Result<bool> {
        match self.session.stream.read(&mut self.input[self.filled..]) {
            Ok(0) => return Err(Error::new("the server closed the connection")),
            Ok(n) => self.filled += n,
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Ok(false),
            Err(e) => return Err(Error::io("receiving from the server")(e)),
        }
        let mut at = 0;
        while let Some(used) = self.reply(at)? {
            at += used;
        }
        self.input.copy_within(at..self.filled, 0);
        self.filled -= at;
        Ok(true)
    }

    /// One answer at byte `at`, if all of it is there: how long it is.
    fn reply(&mut self, at: usize) -> Result<Option<usize>> {
        let Some(header) = self.input[at..self.filled].get(..REPLY_LEN) else { return Ok(None) };
        let (error, tag) = (be32(&header[4..]), be64(&header[8..]));
        let payload = usize::try_from(tag).ok().and_then(|tag| self.reads.get(tag).copied());
        let (Some(payload), REPLY) = (payload, be32(header)) else {
            return Err(Error::new("the server's answer is not understood"));
        };
        let end = at + REPLY_LEN + if error == 0 { payload } else { 0 };
        if end > self.filled {
            return Ok(None);
        }
        let result = if error == 0 { Ok(()) } else { Err(io::Error::from_raw_os_error(error as i32).to_string()) };
        self.load.done(sys::now(), tag as u32, result, &self.input[at + REPLY_LEN..end]);
        Ok(Some(end - at))
    }
}

fn request_header(command: u16, tag: u32, offset: u64, len: u32) -> [u8; REQUEST_LEN] {
    let mut header = [0; REQUEST_LEN];
    header[..4].copy_from_slice(&REQUEST.to_be_bytes());
    header[6..8].copy_from_slice(&command.to_be_bytes());
    header[8..16].copy_from_slice(&u64::from(tag).to_be_bytes());
    header[16..24].copy_from_slice(&offset.to_be_bytes());
    header[24..].copy_from_slice(&len.to_be_bytes());
    header
}

fn be16(bytes: &[u8]) -> u16 {
    u16::from_be_bytes([bytes[0], bytes[1]])
}

fn be32(bytes: &[u8]) -> u32 {
    u32::from_be_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])
}

fn be64(bytes: &[u8]) -> u64 {
    u64::from(be32(bytes)) << 32 | u64::from(be32(&bytes[4..]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_parsed() {
        let address = |uri: &str| Address::parse(uri).unwrap();
        assert_eq!(
            address("nbd+unix:///r0/0?socket=/run/urbd/r0-0.nbd"),
            Address { place: Place::Unix("/run/urbd/r0-0.nbd".into()), export: "r0/0".into() }
        );
        assert_eq!(address("nbd+unix://?socket=/s").export, "");
        let tcp = |host: &str, export: &str| Address { place: Place::Tcp(host.into()), export: export.into() };
        assert_eq!(address("nbd://host/x/y"), tcp("host:10809", "x/y"));
        assert_eq!(address("nbd://[::1]:99"), tcp("[::1]:99", ""));
        for wrong in ["", "host", "nbd+unix:///x", "http://x"] {
            assert!(Address::parse(wrong).unwrap_err().to_string().contains("nbd+unix"), "{wrong}");
        }
    }
}
