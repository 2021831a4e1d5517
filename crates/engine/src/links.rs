//! The TCP streams to the peers: opening them, packets in, packets out.

mod integrity;
mod listeners;
mod marks;
mod opening;

use crate::buffers::{Buf, BufId, Pool};
use crate::connector::{Arbitration, Pair, Settings, SocketId};
use crate::links::integrity::Integrity;
use crate::ring::{Done, Fd, Op, Ring};
use crate::stream::{Inbox, Outbox, STAGING};
use crate::sys;
use crate::token::Token;
use control::Attempt;
use listeners::Listeners;
use opening::{Opening, peer_address};
use rustix::net::sockopt;
use std::collections::{BTreeMap, VecDeque};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsFd;
use units::{Duration, Histogram, Instant, NodeId, VolumeNr};
use urbd_core::{BufRef, LinkDown, Segments};
use wire::{Dialect, Packet, Socket, Step, StreamDecoder};

/// How to reach a peer.
#[derive(Clone, Debug)]
pub(crate) struct LinkSettings {
    /// Addresses and times.
    pub connector: Settings,
    /// This node's id, which the ports tell from which it dials; `None`: they tell nothing, as in 8.4's dialect.
    pub marked: Option<NodeId>,
    /// `sndbuf-size` in bytes; 0 = automatic.
    pub send_buffer: u32,
    /// `rcvbuf-size` in bytes; 0 = automatic.
    pub receive_buffer: u32,
    /// `timeout`: a send on the control stream that makes no progress for so long ends the connection.
    pub timeout: Duration,
}

/// What happened on the links.
#[derive(Debug)]
pub(crate) enum LinkEvent {
    Up { peer: NodeId, resolve_conflicts: bool },
    Packet { peer: NodeId, stream: Socket, volume: VolumeNr, packet: Packet, payload: Segments },
    Down { peer: NodeId, why: LinkDown, detail: String },
    Log { peer: NodeId, text: String },
}

/// Whether we could listen on all our addresses. One that this machine does not have yet may come later; one on which
/// somebody listens does not become free by itself.
///
/// # Errors
/// Which port is taken, in words.
pub(crate) fn check_ports<'a>(settings: impl Iterator<Item = &'a LinkSettings>) -> Result<(), String> {
    for local in settings.map(|s| s.connector.local) {
        let taken = |e: &std::io::Error| e.raw_os_error() == Some(libc::EADDRINUSE);
        let listens = || sys::tcp_socket(&local, |_| ()).and_then(|socket| sys::listen(&socket, 1));
        // The kernel closes the sockets of a process that was here before us some moments after its end.
        let deadline = std::time::Instant::now() + std::time::Duration::from_secs(3);
        while listens().as_ref().is_err_and(taken) && std::time::Instant::now() < deadline {
            std::thread::sleep(std::time::Duration::from_millis(50));
        }
        if listens().as_ref().is_err_and(taken) {
            return Err(format!(
                "port {} of {} is in use by another program: find it with `ss -ltnp`, and end it or give the resource \
                 another port",
                local.port(),
                local.ip()
            ));
        }
    }
    Ok(())
}

/// All peers.
pub(crate) struct Links {
    pool: &'static Pool,
    /// Staging buffers for the streams of links that are not up, two each: applications whose I/O is frozen may hold
    /// all others until the peer is there.
    kept: Vec<Buf>,
    /// Few, and looked at in every turn.
    links: Vec<Link>,
    listeners: Listeners,
    /// Streams that still have something to send before they close.
    closing: Vec<Closing>,
    next_socket: u32,
    /// How long writes of a volume waited until the socket had taken them.
    sent: BTreeMap<VolumeNr, Histogram>,
    seed: u64,
    events: Vec<LinkEvent>,
    /// A stream's decoder was set: what came before can be understood now.
    understood: bool,
}

struct Link {
    peer: NodeId,
    settings: LinkSettings,
    phase: Phase,
    /// What settles the next connection.
    arbitration: Arbitration,
    /// Bytes that the peer had not taken when the last link ended.
    left_at_end: usize,
}

impl Link {
    fn new(peer: NodeId, settings: LinkSettings) -> Link {
        Link { peer, settings, phase: Phase::Idle, arbitration: Arbitration::default(), left_at_end: 0 }
    }
}

enum Phase {
    Idle,
    /// Listening begins at the first time, attempts to open a connection at the second.
    Waiting {
        listen: Instant,
        open: Instant,
    },
    Opening(Box<Opening>),
    Up(Box<Up>),
}

struct Up {
    data: Stream,
    control: Stream,
    dialect: Dialect,
    integrity: Integrity,
    /// A stream has ended; the other one is listened to until then, as it may hold the reason.
    down_at: Option<Instant>,
}

struct Stream {
    id: SocketId,
    fd: Fd,
    inbox: Inbox,
    outbox: Outbox,
    decoder: Option<StreamDecoder>,
    /// A packet whose payload has not all come.
    pending: Option<(VolumeNr, Packet)>,
    /// Writes that the socket has not taken, oldest first.
    unsent: VecDeque<Unsent>,
    /// When a send last began or made progress.
    progress: Instant,
    /// It has ended: why.
    ended: Option<String>,
}

/// Writes of one turn that are queued on a stream.
struct Unsent {
    /// Bytes of the stream up to the end of the last of them.
    end: u64,
    since: Instant,
    volume: VolumeNr,
    writes: u64,
}

/// Both streams of a link that was closed. They end together: who sees the end of the control stream first must not
/// miss what is still on the data stream.
struct Closing {
    peer: NodeId,
    streams: [(SocketId, Fd, Outbox); 2],
    until: Instant,
}

/// What is queued when a link is closed has this long to leave.
const LINGER: Duration = Duration::from_secs(2);
/// Bytes of answers that may wait for a peer to take them.
const MOST_ANSWERS: usize = 1 << 20;
/// Bytes that wait for the socket to take them, beyond what is under way with them at any time.
const BACKED_UP: usize = 256 << 10;
/// How long after the end of one stream the other one is listened to.
const LAST_WORDS: Duration = Duration::from_millis(100);

impl Links {
    pub(crate) fn new(pool: &'static Pool, settings: BTreeMap<NodeId, LinkSettings>, seed: u64) -> Links {
        let links = settings.into_iter().map(|(peer, settings)| Link::new(peer, settings)).collect();
        let (kept, closing, events) = (Vec::new(), Vec::new(), Vec::new());
        let (listeners, sent) = (Listeners::default(), BTreeMap::new());
        let mut links =
            Links { pool, kept, links, listeners, closing, next_socket: 0, sent, seed, events, understood: false };
        links.keep_buffers();
        links
    }

    /// Called where buffers of streams may have come back, before anybody else can have them.
    fn keep_buffers(&mut self) {
        let wanted = 2 * self.links.iter().filter(|link| !matches!(link.phase, Phase::Up(_))).count();
        self.kept.extend((self.kept.len()..wanted).map_while(|_| self.pool.take(STAGING)));
    }

    /// Replaces the settings of the peers (`adjust`); links that are up keep theirs until they are opened anew.
    pub(crate) fn reconfigure(&mut self, settings: BTreeMap<NodeId, LinkSettings>) {
        for (peer, settings) in settings {
            match self.link(peer) {
                Some(link) => {
                    link.settings = settings;
                    if let Phase::Up(up) = &link.phase {
                        [&up.data, &up.control].iter().for_each(|s| opening::configure(s.fd.as_fd(), &link.settings));
                    }
                }
                None => self.links.push(Link::new(peer, settings)),
            }
        }
        self.keep_buffers();
    }

    /// The peer is gone.
    pub(crate) fn end_for_good(&mut self, ring: &mut Ring<Token>, peer: NodeId, now: Instant) {
        self.close(ring, peer, now);
        self.links.retain(|link| link.peer != peer);
    }

    /// Starts trying to connect, not before `not_before`.
    pub(crate) fn connect(&mut self, peer: NodeId, not_before: Instant, accept_before: bool) {
        if let Some(link) = self.link(peer)
            && matches!(link.phase, Phase::Idle)
        {
            let listen = if accept_before { Instant(0) } else { not_before };
            link.phase = Phase::Waiting { listen, open: not_before };
        }
    }

    /// Stops trying, or sends what is queued and closes.
    pub(crate) fn close(&mut self, ring: &mut Ring<Token>, peer: NodeId, now: Instant) {
        let Some(link) = self.link(peer) else { return };
        match std::mem::replace(&mut link.phase, Phase::Idle) {
            Phase::Up(up) => {
                link.left_at_end = up.data.left();
                let streams = [up.data, up.control].map(|s| (s.id, s.fd, s.outbox));
                self.closing.push(Closing { peer, streams, until: now + LINGER });
                self.keep_buffers();
                self.flush(ring, now);
            }
            Phase::Opening(mut opening) => {
                opening.stop(ring);
                self.stop_listening(ring);
            }
            Phase::Idle | Phase::Waiting { .. } => {}
        }
    }

    /// What the streams speak from the next packet on.
    pub(crate) fn set_dialect(&mut self, peer: NodeId, dialect: Dialect, integrity: Option<&str>) {
        self.understood = true;
        let Some(up) = self.up(peer) else { return };
        up.dialect = dialect;
        up.integrity = Integrity::of(integrity);
        up.control.decoder.get_or_insert_with(|| StreamDecoder::control(dialect));
    }

    /// How the latest try to reach a peer ended, if it is being tried and has failed.
    pub(crate) fn attempt(&self, peer: NodeId) -> Option<&Attempt> {
        match &self.links.iter().find(|link| link.peer == peer)?.phase {
            Phase::Opening(opening) => opening.attempt(),
            _ => None,
        }
    }

    /// Who has connected to us instead of a peer that is being tried.
    pub(crate) fn stranger(&self, peer: NodeId, now: Instant) -> Option<std::net::IpAddr> {
        match &self.links.iter().find(|link| link.peer == peer)?.phase {
            Phase::Opening(opening) => opening.stranger(now),
            _ => None,
        }
    }

    /// Bytes that a peer had not taken when its last link ended.
    pub(crate) fn left_at_end(&self, peer: NodeId) -> usize {
        self.links.iter().find(|link| link.peer == peer).map_or(0, |link| link.left_at_end)
    }

    /// Does so much wait to be sent to a peer that the network is what it waits for?
    pub(crate) fn is_backed_up(&self, peer: NodeId) -> bool {
        let link = self.links.iter().find(|link| link.peer == peer);
        matches!(link, Some(Link { phase: Phase::Up(up), .. }) if up.data.outbox.queued_bytes() > BACKED_UP)
    }

    /// How long a volume's writes waited from their submission until a socket had taken them; `None` if there was none.
    pub(crate) fn send_latency(&self, volume: VolumeNr) -> Option<&Histogram> {
        self.sent.get(&volume)
    }

    /// Queues a packet.
    pub(crate) fn send(
        &mut self,
        peer: NodeId,
        now: Instant,
        socket: Socket,
        volume: VolumeNr,
        mut packet: Packet,
        payload: &Segments,
    ) {
        let pool = self.pool;
        self.understood |= matches!(packet, Packet::ConnectionFeatures(_));
        let Some(up) = self.up(peer) else { return };
        up.integrity.sign(&mut packet, pool, payload);
        let dialect = up.dialect;
        if let Packet::ConnectionFeatures(own) = &packet {
            up.data.decoder = Some(StreamDecoder::data(*own));
        }
        let is_write = matches!(packet, Packet::Data(_));
        let stream = up.stream(socket);
        let message = stream.outbox.message();
        let mut emitted = Ok(());
        message.copy_with(|bytes| emitted = packet.emit(volume, &dialect, bytes));
        if let Err(e) = emitted {
            let detail = format!("a packet cannot be sent in protocol version {}: {e}", dialect.version);
            return self.fail(peer, LinkDown::Violation, detail);
        }
        for piece in payload.as_slice() {
            message.share(pool.share(BufId(piece.id)).span(piece.offset as usize, piece.len as usize));
        }
        if is_write {
            stream.note_write(volume, now);
        }
    }

    /// Sends what is queued, answers only if they need not wait for more, and receives more; `paused` says from which
    /// peers no more data shall be taken now.
    pub(crate) fn pump(
        &mut self,
        ring: &mut Ring<Token>,
        now: Instant,
        answers_wait: bool,
        paused: impl Fn(NodeId) -> bool,
    ) {
        for Link { peer, phase, .. } in &mut self.links {
            let Phase::Up(up) = phase else { continue };
            for (stream, waits) in [(&mut up.data, false), (&mut up.control, answers_wait)] {
                let token = Token::Link(*peer, stream.id);
                if !waits && stream.ended.is_none() {
                    if stream.outbox.flush(ring, &stream.fd, token) {
                        stream.progress = now;
                    }
                    stream.note_sent(&mut self.sent, now);
                }
            }
            // Who does not take our answers gets no more questions in.
            let heard = up.control.outbox.queued_bytes() <= MOST_ANSWERS;
            for (stream, wanted) in [(&mut up.data, heard && !paused(*peer)), (&mut up.control, heard)] {
                if wanted && stream.ended.is_none() {
                    stream.inbox.receive(ring, &stream.fd, Token::Link(*peer, stream.id));
                }
            }
        }
        self.flush(ring, now);
    }

    /// The next thing that happened; packets of one stream in order.
    pub(crate) fn next_event(&mut self) -> Option<LinkEvent> {
        if !self.events.is_empty() {
            return Some(self.events.remove(0));
        }
        let mut violation = None;
        for link in &mut self.links {
            match link.next_packet(self.pool) {
                Ok(None) => {}
                Ok(packet) => return packet,
                Err(detail) => violation = Some((link.peer, detail)),
            }
        }
        let (peer, detail) = violation?;
        self.fail(peer, LinkDown::Violation, detail);
        self.events.pop()
    }

    /// May there be something for [`Links::next_event`] that was not there when it gave nothing? `freed`: buffers may
    /// have come back meanwhile.
    pub(crate) fn has_news(&mut self, freed: bool) -> bool {
        let starved = |link: &Link| match &link.phase {
            Phase::Up(up) => up.data.inbox.is_starved() || up.control.inbox.is_starved(),
            _ => false,
        };
        std::mem::take(&mut self.understood) || !self.events.is_empty() || freed && self.links.iter().any(starved)
    }

    /// When [`Links::on_timer`] is due.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        let phases = self.links.iter().filter_map(|link| match &link.phase {
            Phase::Idle => None,
            Phase::Waiting { listen, .. } => Some(*listen),
            Phase::Opening(opening) => Some(opening.deadline()),
            Phase::Up(up) => {
                let stuck = up.control.outbox.is_sending().then(|| up.control.progress + link.settings.timeout);
                stuck.into_iter().chain(up.down_at).min()
            }
        });
        phases.chain(self.closing.iter().map(|c| c.until)).min()
    }

    /// A deadline may have come.
    pub(crate) fn on_timer(&mut self, ring: &mut Ring<Token>, now: Instant) {
        self.closing.retain(|c| c.until > now || !c.shut());
        let peers: Vec<NodeId> = self.links.iter().map(|link| link.peer).collect();
        for peer in peers {
            let seed = self.seed.wrapping_add(1);
            let Some(link) = self.link(peer) else { continue };
            match link.phase {
                Phase::Waiting { listen, open } if listen <= now => {
                    let opening = Opening::start(link, seed, now, open);
                    link.phase = Phase::Opening(Box::new(opening));
                    self.seed = seed;
                    self.perform(ring, peer, now);
                }
                Phase::Opening(ref mut opening) if opening.deadline() <= now => {
                    opening.on_timer(now);
                    self.perform(ring, peer, now);
                }
                // Not in the turn in which it ended: what came with the end is taken in first.
                Phase::Up(ref up) if up.down_at.is_some_and(|at| at < now) => {
                    let detail = up.last_words();
                    self.fail(peer, LinkDown::Closed, detail);
                }
                Phase::Up(ref up) => {
                    let stuck = up.control.outbox.is_sending() && up.control.progress + link.settings.timeout <= now;
                    if stuck {
                        self.fail(peer, LinkDown::Timeout, "the control stream made no progress".into());
                    }
                }
                _ => {}
            }
        }
    }

    /// A listener accepted, or failed.
    pub(crate) fn on_accept(&mut self, ring: &mut Ring<Token>, name: SocketId, done: Done<Token>, now: Instant) {
        let Some((local, fd)) = self.listeners.accepted(ring, name, done) else { return };
        let Some(from) = peer_address(&fd) else { return };
        let ip = from.ip().to_canonical();
        let mut peers: Vec<&mut Link> = self.links.iter_mut().filter(|link| link.may_be_at(local, ip)).collect();
        if peers.is_empty() {
            return self.on_stranger(local, ip, now);
        }
        if peers.len() > 1 {
            match peers.iter().position(|link| link.dials_from(from.port())) {
                Some(told) => peers = vec![peers.swap_remove(told)],
                None => peers.retain_mut(|link| !link.prefers_own(now)),
            }
        }
        // Where several may have dialed the first that is awaited gets the connection. Who is a peer, and not awaited,
        // is turned away without a word: it comes again.
        for link in peers {
            if let Phase::Opening(opening) = &mut link.phase {
                opening.on_accepted(fd, ip);
                let peer = link.peer;
                return self.perform(ring, peer, now);
            }
        }
    }

    fn on_stranger(&mut self, local: SocketAddr, from: IpAddr, now: Instant) {
        for link in self.links.iter_mut().filter(|link| link.settings.connector.local == local) {
            if let Phase::Opening(opening) = &mut link.phase {
                opening.note_stranger(from, now);
                let peer = link.peer;
                self.events.extend(opening.take_log().into_iter().map(|text| LinkEvent::Log { peer, text }));
            }
        }
    }

    /// An attempt to open a connection ended.
    pub(crate) fn on_open(
        &mut self,
        ring: &mut Ring<Token>,
        peer: NodeId,
        socket: SocketId,
        done: Done<Token>,
        now: Instant,
    ) {
        if let Some(opening) = self.opening(peer) {
            opening.on_open(socket, done, now);
            self.perform(ring, peer, now);
        }
    }

    /// A send or receive on a peer's socket ended.
    pub(crate) fn on_socket(
        &mut self,
        ring: &mut Ring<Token>,
        peer: NodeId,
        socket: SocketId,
        done: Done<Token>,
        now: Instant,
    ) {
        match self.link(peer).map(|l| &mut l.phase) {
            Some(Phase::Up(up)) if up.owns(socket) => {
                up.by_id(socket).on_done(done, now);
                up.notice_end(now);
            }
            Some(Phase::Opening(opening)) if opening.owns(socket) => {
                opening.on_socket(socket, done, now);
                self.perform(ring, peer, now);
            }
            _ => self.on_closing(socket, done),
        }
    }

    fn on_closing(&mut self, socket: SocketId, done: Done<Token>) {
        let result = done.result();
        if let Some(Op::Recv { into, .. }) = done.op {
            drop(into);
            return self.keep_buffers();
        }
        let all = self.closing.iter_mut().flat_map(|c| &mut c.streams);
        let Some((_, _, outbox)) = all.into_iter().find(|(id, ..)| *id == socket) else { return };
        match (result, done.op) {
            (Ok(n), Some(Op::Send { message, .. })) => outbox.sent(message, n as usize),
            (Err(_), Some(Op::Send { .. })) => *outbox = Outbox::default(),
            _ => {}
        }
    }

    /// Does what the connector wants, and moves on when it is at its end.
    fn perform(&mut self, ring: &mut Ring<Token>, peer: NodeId, now: Instant) {
        let link = self.links.iter_mut().find(|link| link.peer == peer);
        let Some(Link { settings, phase: Phase::Opening(opening), .. }) = link else { return };
        let listens = self.listeners.listen(ring, settings, &mut self.next_socket);
        opening.on_listen(listens, settings.connector.local);
        let established = opening.perform(ring, self.pool, settings, &mut self.next_socket, now);
        self.events.extend(opening.take_log().into_iter().map(|text| LinkEvent::Log { peer, text }));
        if let Some(pair) = established {
            self.establish(ring, peer, pair, now);
        }
    }

    fn establish(&mut self, ring: &mut Ring<Token>, peer: NodeId, pair: Pair, now: Instant) {
        let (pool, kept) = (self.pool, &mut self.kept);
        let Some(link) = self.links.iter_mut().find(|link| link.peer == peer) else { return };
        let Phase::Opening(mut opening) = std::mem::replace(&mut link.phase, Phase::Idle) else { return };
        let mut stream = |id, priority| {
            let (fd, outbox) = opening.take_socket(id)?;
            prepare(&fd, priority);
            let inbox = Inbox::staged(kept.pop().or_else(|| pool.take(STAGING))?).answering_first();
            let unsent = VecDeque::new();
            Some(Stream { id, fd, inbox, outbox, decoder: None, pending: None, unsent, progress: now, ended: None })
        };
        // Priorities as kernels set them: bulk and interactive (`docs/spec/wire-protocol.md` 1.7).
        let streams = (stream(pair.data, 4), stream(pair.meta, 6));
        if let (Some(data), Some(control)) = streams {
            link.phase = Phase::Up(Box::new(Up {
                data,
                control,
                dialect: Dialect::HANDSHAKE,
                integrity: Integrity::default(),
                down_at: None,
            }));
            // Until something is heard the peer may have chosen other sockets.
            link.arbitration = Arbitration::Waiting;
            self.events.push(LinkEvent::Up { peer, resolve_conflicts: pair.resolve_conflicts });
        } else {
            // Those of the former streams are with the kernel. The core has not heard of this link: it waits for it.
            link.phase = Phase::Waiting { listen: now, open: now + link.settings.connector.connect_int };
            let text = "no buffers for the streams, which is tried again: raise max-buffers if it goes on".into();
            self.events.push(LinkEvent::Log { peer, text });
        }
        opening.stop(ring);
        self.stop_listening(ring);
        self.keep_buffers();
    }

    /// Where no peer is awaited any more nobody listens.
    fn stop_listening(&mut self, ring: &mut Ring<Token>) {
        let awaited = self.links.iter().filter(|link| matches!(link.phase, Phase::Opening(_)));
        let wanted: Vec<_> = awaited.map(|link| link.settings.connector.local).collect();
        self.listeners.retain(ring, |local| wanted.contains(&local));
    }

    fn fail(&mut self, peer: NodeId, why: LinkDown, detail: String) {
        let Some(link) = self.link(peer) else { return };
        if let Phase::Up(up) = std::mem::replace(&mut link.phase, Phase::Idle) {
            link.left_at_end = up.data.left();
            sys::shutdown(&up.data.fd);
            sys::shutdown(&up.control.fd);
            self.events.push(LinkEvent::Down { peer, why, detail });
        }
        self.keep_buffers();
    }

    fn flush(&mut self, ring: &mut Ring<Token>, now: Instant) {
        self.closing.retain_mut(|c| {
            for (id, fd, outbox) in &mut c.streams {
                outbox.flush(ring, fd, Token::Link(c.peer, *id));
            }
            let finished = c.streams.iter().all(|(_, _, outbox)| outbox.is_idle()) || c.until <= now;
            !finished || !c.shut()
        });
    }

    fn link(&mut self, peer: NodeId) -> Option<&mut Link> {
        self.links.iter_mut().find(|link| link.peer == peer)
    }

    fn up(&mut self, peer: NodeId) -> Option<&mut Up> {
        match &mut self.link(peer)?.phase {
            Phase::Up(up) => Some(up),
            _ => None,
        }
    }

    fn opening(&mut self, peer: NodeId) -> Option<&mut Opening> {
        match &mut self.link(peer)?.phase {
            Phase::Opening(opening) => Some(opening),
            _ => None,
        }
    }
}

impl Link {
    /// Does what this peer opens come in at `local`, from `ip`?
    fn may_be_at(&self, local: SocketAddr, ip: IpAddr) -> bool {
        let connector = &self.settings.connector;
        connector.local == local && connector.peer.ip().to_canonical() == ip
    }

    /// Does this port tell that the peer has dialed?
    fn dials_from(&self, port: u16) -> bool {
        self.settings.marked.is_some() && marks::tells(port, self.peer)
    }

    /// Had this peer rather what this node dials than a connection that may be another's?
    fn prefers_own(&mut self, now: Instant) -> bool {
        match &mut self.phase {
            Phase::Opening(opening) => self.settings.marked.is_some() && opening.prefers_own(&self.settings, now),
            _ => false,
        }
    }

    /// The next packet of either stream; what a peer acknowledges comes before what it asks for.
    fn next_packet(&mut self, pool: &'static Pool) -> Result<Option<LinkEvent>, String> {
        let peer = self.peer;
        let Phase::Up(up) = &mut self.phase else { return Ok(None) };
        for (socket, stream) in [(Socket::Control, &mut up.control), (Socket::Data, &mut up.data)] {
            if let Some((volume, packet, payload)) = stream.next_packet(pool, up.integrity)? {
                up.integrity.hears(&packet);
                self.arbitration = Arbitration::Addresses;
                return Ok(Some(LinkEvent::Packet { peer, stream: socket, volume, packet, payload }));
            }
        }
        Ok(None)
    }
}

impl Up {
    fn stream(&mut self, socket: Socket) -> &mut Stream {
        match socket {
            Socket::Data => &mut self.data,
            Socket::Control => &mut self.control,
        }
    }

    fn owns(&self, id: SocketId) -> bool {
        self.data.id == id || self.control.id == id
    }

    fn by_id(&mut self, id: SocketId) -> &mut Stream {
        if self.data.id == id { &mut self.data } else { &mut self.control }
    }

    /// When one stream has ended, the other one gets a moment; when both have, what came is taken in first.
    fn notice_end(&mut self, now: Instant) {
        match (&self.data.ended, &self.control.ended) {
            (None, None) => {}
            (Some(_), Some(_)) => self.down_at = Some(now),
            _ => {
                self.down_at.get_or_insert(now + LAST_WORDS);
            }
        }
    }

    fn last_words(&self) -> String {
        self.data.ended.iter().chain(&self.control.ended).next().cloned().unwrap_or_default()
    }
}

impl Stream {
    /// Bytes that the peer's kernel has not acknowledged.
    fn left(&self) -> usize {
        self.outbox.queued_bytes() + sys::unacknowledged_bytes(&self.fd)
    }

    fn on_done(&mut self, done: Done<Token>, now: Instant) {
        match (done.result(), done.op) {
            (Ok(n), Some(Op::Send { message, .. })) => {
                self.progress = now;
                self.outbox.sent(message, n as usize);
            }
            (Ok(n), Some(Op::Recv { into, .. })) if n > 0 => self.inbox.received(into, n as usize),
            // It was watched while the connection was made.
            (_, Some(Op::Readable { .. })) => {}
            (Ok(_), _) => self.ended = Some("the peer closed the stream".into()),
            (Err(e), Some(Op::Send { .. })) => self.ended = Some(format!("cannot send: {e}")),
            (Err(e), _) => self.ended = Some(format!("cannot receive: {e}")),
        }
    }

    /// A write was appended to the outbox.
    fn note_write(&mut self, volume: VolumeNr, now: Instant) {
        let end = self.outbox.appended_bytes();
        match self.unsent.back_mut() {
            Some(last) if last.since == now && last.volume == volume => {
                last.end = end;
                last.writes += 1;
            }
            _ => self.unsent.push_back(Unsent { end, since: now, volume, writes: 1 }),
        }
    }

    /// Notes how long it took of those writes that the socket has taken by now.
    fn note_sent(&mut self, sent: &mut BTreeMap<VolumeNr, Histogram>, now: Instant) {
        let taken = self.outbox.sent_bytes();
        while self.unsent.front().is_some_and(|w| w.end <= taken)
            && let Some(writes) = self.unsent.pop_front()
        {
            sent.entry(writes.volume).or_default().record(now.since(writes.since), writes.writes);
        }
    }

    /// The next whole packet. Errors say how the peer broke the protocol.
    fn next_packet(
        &mut self,
        pool: &'static Pool,
        integrity: Integrity,
    ) -> Result<Option<(VolumeNr, Packet, Segments)>, String> {
        if self.pending.is_none() {
            let Some(decoder) = &mut self.decoder else { return Ok(None) };
            if self.inbox.bytes().is_empty() {
                return Ok(None);
            }
            match decoder.step(self.inbox.bytes()).map_err(|v| v.to_string())? {
                Step::NeedMore(_) => return Ok(None),
                Step::Packet(decoded) => {
                    self.inbox.consume(decoded.consumed);
                    if decoded.payload_len == 0 {
                        return Ok(Some((decoded.volume, decoded.packet, Segments::None)));
                    }
                    self.inbox.expect_payload(decoded.payload_len as usize);
                    self.pending = Some((decoded.volume, decoded.packet));
                }
            }
        }
        let Some(span) = self.inbox.take_payload(pool) else { return Ok(None) };
        let Some((volume, packet)) = self.pending.take() else { return Ok(None) };
        integrity.check(&packet, span.bytes())?;
        let len = span.len() as u32;
        let payload = Segments::One(BufRef { id: span.into_buf().into_id().0, offset: 0, len });
        Ok(Some((volume, packet, payload)))
    }
}

impl Closing {
    /// Ends the streams; always true.
    fn shut(&self) -> bool {
        self.streams.iter().for_each(|(_, fd, _)| sys::shutdown(fd));
        true
    }
}

/// Options of an established stream (`docs/spec/wire-protocol.md` 1.7). All but NODELAY are only hints.
fn prepare(fd: &Fd, priority: i32) {
    const KEEP: std::time::Duration = std::time::Duration::from_secs(23);
    let _ = sockopt::set_tcp_nodelay(fd, true);
    let _ = sys::set_priority(fd, priority);
    let _ = sockopt::set_socket_keepalive(fd, true);
    let _ = sockopt::set_tcp_keepidle(fd, KEEP);
    let _ = sockopt::set_tcp_keepintvl(fd, KEEP);
    let _ = sockopt::set_tcp_keepcnt(fd, 9);
}

#[cfg(test)]
mod tests;
