//! Carries out what the [`Connector`] of one peer wants.

use super::marks::{self, Untold};
use super::{Link, LinkSettings};
use crate::buffers::Pool;
use crate::connector::{Action, Connector, Pair, SocketId, StreamKind};
use crate::ring::{Done, Fd, Op, OpId, Ring, Take};
use crate::stream::Outbox;
use crate::sys;
use crate::token::Token;
use control::Attempt;
use rustix::net::sockopt;
use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::rc::Rc;
use units::{Duration, Instant, NodeId, VolumeNr};
use wire::{Dialect, FIRST_PACKET_LEN, Packet, first_packet};

/// The sockets of a peer while the connection is being made.
pub(super) struct Opening {
    peer: NodeId,
    connector: Connector,
    attempt: Option<(SocketId, Fd, OpId)>,
    sockets: BTreeMap<SocketId, Half>,
    /// Accepted, not yet named: names come from the owner of all links.
    accepted: Vec<(Fd, IpAddr)>,
    /// Sockets of whose first packet only a part came.
    incomplete: Vec<SocketId>,
    log: Vec<String>,
    /// Why nothing can come in, why the latest connection of ours was none, and who came instead of the peer.
    listening: Option<Attempt>,
    opening: Option<Attempt>,
    stranger: Option<(IpAddr, Instant)>,
    /// Connections that may have been another peer's.
    untold: Untold,
}

/// So long a stranger is shown.
const REMEMBERED: Duration = Duration::from_secs(60);

struct Half {
    fd: Fd,
    outbox: Outbox,
    first: Vec<u8>,
}

impl Opening {
    pub(super) fn start(link: &Link, seed: u64, now: Instant, open: Instant) -> Opening {
        let connector = Connector::start(link.settings.connector.clone(), seed, now, open);
        Opening {
            peer: link.peer,
            connector: connector.settled_by(link.arbitration),
            attempt: None,
            sockets: BTreeMap::new(),
            accepted: Vec::new(),
            incomplete: Vec::new(),
            log: Vec::new(),
            listening: None,
            opening: None,
            stranger: None,
            untold: Untold::default(),
        }
    }

    pub(super) fn deadline(&self) -> Instant {
        self.connector.deadline()
    }

    pub(super) fn on_timer(&mut self, now: Instant) {
        self.connector.on_timer(now);
    }

    pub(super) fn owns(&self, socket: SocketId) -> bool {
        self.sockets.contains_key(&socket)
    }

    pub(super) fn take_log(&mut self) -> Vec<String> {
        std::mem::take(&mut self.log)
    }

    /// How the latest try ended; `None` before the first one has.
    pub(super) fn attempt(&self) -> Option<&Attempt> {
        self.listening.as_ref().or(self.opening.as_ref())
    }

    /// Who has come instead of the peer not long ago.
    pub(super) fn stranger(&self, now: Instant) -> Option<IpAddr> {
        self.stranger.filter(|(_, at)| now.since(*at) < REMEMBERED).map(|(from, _)| from)
    }

    pub(super) fn take_socket(&mut self, id: SocketId) -> Option<(Fd, Outbox)> {
        self.sockets.remove(&id).map(|half| (half.fd, half.outbox))
    }

    /// A connection came from the peer's address.
    pub(super) fn on_accepted(&mut self, fd: Fd, from: IpAddr) {
        self.accepted.push((fd, from));
    }

    /// A connection came that may be this peer's or another's. Is it better left, as this node dials both streams? Then
    /// each knows whose they are, and a kernel takes what comes in. Not where the peer cannot be dialed.
    pub(super) fn prefers_own(&mut self, settings: &LinkSettings, now: Instant) -> bool {
        let reached = matches!(self.opening, None | Some(Attempt::Refused | Attempt::Ended));
        let prefers = reached && self.untold.is_left(&settings.connector, now);
        if prefers {
            self.connector.dial_at_once(now);
        }
        prefers
    }

    /// Whether the peer can come in at `local`. If not, that is tried again with the next attempt, and said once.
    pub(super) fn on_listen(&mut self, listens: io::Result<()>, local: SocketAddr) {
        let Err(e) = listens else { return self.listening = None };
        let text = format!("cannot listen on {local}: {e}");
        let attempt = match e.raw_os_error() {
            Some(libc::EADDRINUSE) => Attempt::PortTaken,
            Some(libc::EADDRNOTAVAIL) => Attempt::NoSuchAddress,
            _ => Attempt::Failed(text.clone()),
        };
        if self.listening.as_ref() != Some(&attempt) {
            self.log.push(text);
            self.listening = Some(attempt);
        }
    }

    pub(super) fn on_open(&mut self, socket: SocketId, done: Done<Token>, now: Instant) {
        match self.attempt.take() {
            Some((id, fd, _)) if id == socket => {
                let connected = done.result().is_ok();
                if let Err(error) = done.result() {
                    self.failed(&error);
                }
                if connected {
                    self.sockets.insert(id, Half { fd, outbox: Outbox::default(), first: Vec::new() });
                }
                self.connector.on_connected(connected.then_some(id), now);
            }
            other => self.attempt = other,
        }
    }

    pub(super) fn on_socket(&mut self, socket: SocketId, done: Done<Token>, now: Instant) {
        let Some(half) = self.sockets.get_mut(&socket) else { return };
        match (done.result(), done.op) {
            (Ok(n), Some(Op::Send { message, .. })) => half.outbox.sent(message, n as usize),
            (Ok(n), Some(Op::Recv { into, .. })) if n > 0 => {
                half.first.extend_from_slice(&into.bytes()[..n as usize]);
                match first_packet(&half.first) {
                    Ok(None) => self.incomplete.push(socket),
                    Ok(Some(wire::Socket::Data)) => {
                        self.connector.on_first_packet(socket, Some(StreamKind::Data), now);
                    }
                    Ok(Some(wire::Socket::Control)) => {
                        self.connector.on_first_packet(socket, Some(StreamKind::Meta), now);
                    }
                    Err(_) => self.connector.on_first_packet(socket, None, now),
                }
            }
            (_, Some(Op::Readable { .. })) => self.connector.on_readable(socket, now),
            // Failed sends show at the liveness check.
            (_, Some(Op::Recv { .. })) => self.connector.on_first_packet(socket, None, now),
            _ => {}
        }
    }

    /// Performs all actions; the pair of sockets when the connection is made.
    pub(super) fn perform(
        &mut self,
        ring: &mut Ring<Token>,
        pool: &'static Pool,
        settings: &LinkSettings,
        next_socket: &mut u32,
        now: Instant,
    ) -> Option<Pair> {
        let mut name = || {
            *next_socket += 1;
            SocketId(*next_socket)
        };
        for id in std::mem::take(&mut self.incomplete) {
            self.read_first(ring, pool, id);
        }
        for (fd, from) in std::mem::take(&mut self.accepted) {
            let id = name();
            configure(fd.as_fd(), settings);
            self.sockets.insert(id, Half { fd, outbox: Outbox::default(), first: Vec::new() });
            self.connector.on_accepted(id, from, now);
        }
        loop {
            let actions = self.connector.take_actions();
            if actions.is_empty() {
                return None;
            }
            for action in actions {
                match action {
                    Action::Open => {
                        if let Err(error) = self.open(ring, settings, name()) {
                            self.failed(&error);
                            self.connector.on_connected(None, now);
                        }
                    }
                    Action::AbandonOpen => {
                        self.note(Attempt::TimedOut);
                        self.abandon(ring);
                    }
                    Action::Declare(id, kind) => self.declare(ring, id, kind),
                    Action::ReadFirst(id) => self.read_first(ring, pool, id),
                    Action::Close(id) => drop(self.sockets.remove(&id).map(|h| sys::shutdown(&h.fd))),
                    Action::Watch(id) => {
                        if let Some(half) = self.sockets.get(&id) {
                            ring.push(Op::Readable { fd: half.fd.clone() }, Token::Link(self.peer, id));
                        }
                    }
                    Action::Check(data, meta) => {
                        let alive = |id| self.sockets.get(&id).is_some_and(|h| sys::is_alive(&h.fd));
                        let (data, meta) = (alive(data), alive(meta));
                        if !data || !meta {
                            self.note(Attempt::Ended);
                        }
                        self.connector.on_checked(data, meta, now);
                    }
                    Action::Established(pair) => return Some(pair),
                }
            }
        }
    }

    /// Closes everything.
    pub(super) fn stop(&mut self, ring: &mut Ring<Token>) {
        self.abandon(ring);
        self.sockets.values().for_each(|h| sys::shutdown(&h.fd));
        self.sockets.clear();
    }

    /// A connection of ours was not made.
    fn failed(&mut self, error: &io::Error) {
        self.note(match error.raw_os_error() {
            Some(libc::ECONNREFUSED) => Attempt::Refused,
            Some(libc::ETIMEDOUT) => Attempt::TimedOut,
            Some(libc::ENETUNREACH) => Attempt::Unreachable,
            Some(libc::EHOSTUNREACH) => Attempt::NobodyThere,
            Some(libc::EADDRNOTAVAIL) => Attempt::NoSuchAddress,
            _ => Attempt::Failed(error.to_string()),
        });
    }

    /// The log gets each change once.
    fn note(&mut self, attempt: Attempt) {
        if self.opening.as_ref() != Some(&attempt) {
            self.log.push(format!("not reached: {attempt}"));
            self.opening = Some(attempt);
        }
    }

    /// A connection came from an address that is no peer's.
    pub(super) fn note_stranger(&mut self, from: IpAddr, now: Instant) {
        if self.stranger.is_none_or(|(before, _)| before != from) {
            self.log.push(format!("a connection came from {from}, which is not the peer's address: it is not let in"));
        }
        self.stranger = Some((from, now));
    }

    #[cfg(test)]
    pub(super) fn has_socket_at(&self, local: SocketAddr) -> bool {
        let own = |fd: &Fd| TcpStream::from(fd.try_clone().unwrap()).local_addr().ok();
        let opening = self.attempt.iter().map(|(_, fd, _)| fd);
        self.sockets.values().map(|half| &half.fd).chain(opening).any(|fd| own(fd) == Some(local))
    }

    fn open(&mut self, ring: &mut Ring<Token>, settings: &LinkSettings, id: SocketId) -> io::Result<()> {
        self.abandon(ring);
        let source = settings.connector.local;
        let socket = marks::dialing_socket(source, settings.marked, |fd| configure(fd, settings))?;
        let fd: Fd = Rc::new(socket);
        let to = settings.connector.peer.into();
        let op = ring.push(Op::Connect { fd: fd.clone(), to }, Token::Open(self.peer, id));
        self.attempt = Some((id, fd, op));
        Ok(())
    }

    fn abandon(&mut self, ring: &mut Ring<Token>) {
        if let Some((_, _, op)) = self.attempt.take() {
            ring.cancel(op);
        }
    }

    fn declare(&mut self, ring: &mut Ring<Token>, id: SocketId, kind: StreamKind) {
        let Some(half) = self.sockets.get_mut(&id) else { return };
        let packet = match kind {
            StreamKind::Data => Packet::InitialData,
            StreamKind::Meta => Packet::InitialMeta,
        };
        half.outbox.message().copy_with(|bytes| {
            packet.emit(VolumeNr(0), &Dialect::HANDSHAKE, bytes).expect("initial packets fit every dialect");
        });
        half.outbox.flush(ring, &half.fd, Token::Link(self.peer, id));
    }

    fn read_first(&mut self, ring: &mut Ring<Token>, pool: &'static Pool, id: SocketId) {
        let Some(half) = self.sockets.get(&id) else { return };
        // Never more than the first packet: what follows belongs to the stream.
        let Some(buf) = pool.take(FIRST_PACKET_LEN) else { return };
        let into = buf.span(0, FIRST_PACKET_LEN - half.first.len());
        ring.push(Op::Recv { fd: half.fd.clone(), into, take: Take::Some }, Token::Link(self.peer, id));
    }
}

/// Buffer sizes must be set before connecting or listening, to have an effect on window scaling; on a connected socket
/// they still bound what may be queued.
pub(super) fn configure(fd: BorrowedFd<'_>, settings: &LinkSettings) {
    let bytes = |wanted: u32| Some(wanted as usize).filter(|wanted| *wanted > 0).map(|n| n.min(i32::MAX as usize));
    if let Some(n) = bytes(settings.send_buffer) {
        let forced = sockopt::set_socket_send_buffer_size_force(fd, n);
        let _ = forced.or_else(|_| sockopt::set_socket_send_buffer_size(fd, n));
    }
    if let Some(n) = bytes(settings.receive_buffer) {
        let forced = sockopt::set_socket_recv_buffer_size_force(fd, n);
        let _ = forced.or_else(|_| sockopt::set_socket_recv_buffer_size(fd, n));
    }
}

pub(super) fn peer_address(fd: &Fd) -> Option<SocketAddr> {
    TcpStream::from(fd.try_clone().ok()?).peer_addr().ok()
}
