//! The NBD sockets of a resource's volumes: clients' requests to the core and back.

use crate::buffers::{Buf, Pool};
use crate::requests::{Asker, LongWrite};
use crate::ring::{Done, Fd, Op, OpId, Ring};
use crate::stream::{Inbox, Outbox};
use crate::sys;
use crate::token::{ClientId, Token};
use frontends::nbd::{Exports, Session, Step};
use frontends::{BlockSizes, Errno, Export, Kind, Request};
use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use units::{ByteLen, Duration, Instant, VolumeNr};
use urbd_core::{Access, BufRef, MAX_DATA, Openers, Segments};

/// What clients did.
#[derive(Debug)]
pub(crate) enum FrontEvent {
    Request(Asker, VolumeNr, Request, Segments),
    Openers(VolumeNr),
    Log(String),
}

/// All NBD clients of a resource.
pub(crate) struct NbdServer {
    pool: &'static Pool,
    resource: String,
    volumes: BTreeMap<VolumeNr, Offer>,
    /// Clients for whom there has been no buffer, oldest first.
    accepted: VecDeque<(VolumeNr, OwnedFd)>,
    clients: BTreeMap<ClientId, Client>,
    next_client: u64,
    events: VecDeque<FrontEvent>,
    now: Instant,
    /// How long a client may take nothing while others lack buffers.
    pause: Duration,
}

/// A volume as it is offered.
struct Offer {
    path: PathBuf,
    listener: Option<(Fd, OpId)>,
    /// None while the volume may not be opened.
    export: Vec<Export>,
    openers: Openers,
}

struct Client {
    volume: VolumeNr,
    fd: Fd,
    session: Session,
    inbox: Inbox,
    outbox: Outbox,
    /// A write whose payload has not all come.
    pending: Option<Pending>,
    long: BTreeMap<LongWrite, Long>,
    next_long: u64,
    open: bool,
    in_flight: u32,
    /// Bytes of its reads that are under way.
    reading: u64,
    /// A read that waits until the client has taken more of its answers; nothing behind it is looked at.
    parked: Option<Request>,
    /// When the client has last taken anything, or had nothing to take.
    took_at: Instant,
    /// When something of it has come last.
    heard_at: Instant,
    /// No more requests are taken.
    closing: bool,
    dead: bool,
    /// That it is dead was told.
    mourned: bool,
}

/// A write of which `taken` bytes of payload have come, and the next piece is awaited.
struct Pending {
    request: Request,
    taken: u32,
    /// It is longer than any buffer, so every piece goes to the core as soon as it is here: a client that waits for
    /// more buffers never holds some.
    long: Option<LongWrite>,
}

/// A long write whose pieces have not all been written.
struct Long {
    request: Request,
    pieces_left: u32,
    error: Option<Errno>,
}

/// Longest read or write that is offered, in bytes.
pub(crate) const MAX_REQUEST: u32 = 32 << 20;
/// Clients that wait until there are buffers for them.
const MAX_WAITING: usize = 8;
/// A client's reads and answers hold at most one of so many parts of the buffers that serve reads of such a length.
const SHARES: usize = 8;
/// Who has taken nothing, or sent nothing more of a write's data, for so long while others lack buffers is closed.
const LONGEST_PAUSE: Duration = Duration::from_secs(10);
/// The same while that does not help.
const SHORTEST_PAUSE: Duration = Duration::from_secs(1);
/// Longest payload that is received in one piece.
const MAX_PIECE: u32 = MAX_DATA as u32;

impl NbdServer {
    pub(crate) fn new(pool: &'static Pool, resource: &str) -> NbdServer {
        NbdServer {
            pool,
            resource: resource.to_owned(),
            volumes: BTreeMap::new(),
            clients: BTreeMap::new(),
            accepted: VecDeque::new(),
            next_client: 0,
            events: VecDeque::new(),
            now: Instant(0),
            pause: LONGEST_PAUSE,
        }
    }

    /// What happens from now on happens at this time.
    pub(crate) fn begin_turn(&mut self, now: Instant) {
        self.now = now;
    }

    /// Listens for clients of a volume on `path`: on the socket that another process `left`, or else on a new one,
    /// which replaces what is there.
    ///
    /// # Errors
    /// If the socket cannot be made.
    pub(crate) fn listen(
        &mut self,
        ring: &mut Ring<Token>,
        volume: VolumeNr,
        path: &Path,
        left: Option<OwnedFd>,
    ) -> io::Result<()> {
        let fd = match left.filter(|_| path.exists()) {
            Some(left) => Rc::new(left),
            None => bind(path)?,
        };
        let accept = ring.push(Op::Accept { fd: fd.clone() }, Token::NbdListen(volume));
        let offer = Offer {
            path: path.to_owned(),
            listener: Some((fd, accept)),
            export: Vec::new(),
            openers: Openers::default(),
        };
        self.volumes.insert(volume, offer);
        Ok(())
    }

    /// The volume is gone: nobody connects to it any more. Nobody has it open.
    pub(crate) fn stop_offering(&mut self, ring: &mut Ring<Token>, volume: VolumeNr) {
        let Some(offer) = self.volumes.remove(&volume) else { return };
        if let Some((_, accept)) = offer.listener {
            ring.cancel(accept);
        }
        let _ = std::fs::remove_file(&offer.path);
        self.clients.values().filter(|c| c.volume == volume).for_each(|c| sys::shutdown(&c.fd));
    }

    /// Where the clients of a volume connect.
    /// The resource has another name, and so the volumes, whose sockets move to these paths. Gives those that do not.
    pub(crate) fn rename(&mut self, resource: &str, path: impl Fn(VolumeNr) -> PathBuf) -> Vec<(VolumeNr, io::Error)> {
        self.resource = resource.to_owned();
        let mut stay = Vec::new();
        for (nr, offer) in &mut self.volumes {
            match std::fs::rename(&offer.path, path(*nr)) {
                Ok(()) => offer.path = path(*nr),
                Err(e) => stay.push((*nr, e)),
            }
        }
        stay
    }

    pub(crate) fn path(&self, volume: VolumeNr) -> Option<&Path> {
        self.volumes.get(&volume).map(|offer| offer.path.as_path())
    }

    /// Clients that have the volume open.
    pub(crate) fn openers(&self, volume: VolumeNr) -> Openers {
        self.volumes.get(&volume).map(|o| o.openers).unwrap_or_default()
    }

    /// Has a client the volume open?
    pub(crate) fn is_open(&self, volume: VolumeNr) -> bool {
        self.volumes.get(&volume).is_some_and(|o| o.openers != Openers::default())
    }

    /// What clients are offered from now on. Clients that have the volume open keep it, with its new size.
    pub(crate) fn set_device(&mut self, volume: VolumeNr, size: ByteLen, access: Access, discard: bool) {
        let Some(offer) = self.volumes.get_mut(&volume) else { return };
        offer.export.clear();
        if access == Access::ReadWrite && size.0 > 0 {
            let mut export = Export::new(u32::from(volume.0), format!("{}/{}", self.resource, volume.0), size.0);
            export.block = BlockSizes { max: MAX_REQUEST, ..BlockSizes::DEFAULT };
            export.can_trim = discard;
            export.can_fast_zero = false;
            offer.export.push(export);
        }
        for client in self.clients.values_mut().filter(|c| c.volume == volume) {
            client.session.resize(size.0);
        }
    }

    /// The listener of a volume accepted, or ended.
    pub(crate) fn on_accept(&mut self, ring: &mut Ring<Token>, volume: VolumeNr, mut done: Done<Token>) {
        let Ok(fd) = done.accepted() else { return };
        self.accepted.push_back((volume, fd));
        if self.accepted.len() > MAX_WAITING {
            self.accepted.pop_front();
            // Closing it is the only way to say that there is no memory for one more client.
            self.log(format!("an NBD client of volume {volume} was turned away: all buffers are in use"));
        }
        self.pump(ring);
    }

    /// Takes in who was accepted, as far as there are buffers.
    fn admit(&mut self) {
        while let Some((volume, fd)) = self.accepted.pop_front() {
            let Some(inbox) = Inbox::new(self.pool) else { return self.accepted.push_front((volume, fd)) };
            self.add(volume, fd, inbox);
        }
    }

    fn add(&mut self, volume: VolumeNr, fd: OwnedFd, inbox: Inbox) {
        let mut outbox = Outbox::default();
        let mut session = None;
        outbox.message().copy_with(|bytes| session = Some(Session::start(bytes)));
        let Some(session) = session else { return };
        let id = ClientId(self.next_client);
        self.next_client += 1;
        let client = Client {
            volume,
            fd: Rc::new(fd),
            session,
            inbox,
            outbox,
            pending: None,
            long: BTreeMap::new(),
            next_long: 0,
            open: false,
            in_flight: 0,
            reading: 0,
            parked: None,
            took_at: self.now,
            heard_at: self.now,
            closing: false,
            dead: false,
            mourned: false,
        };
        self.clients.insert(id, client);
    }

    /// A send or receive of a client ended.
    pub(crate) fn on_done(&mut self, id: ClientId, done: Done<Token>) {
        let Some(client) = self.clients.get_mut(&id) else { return };
        match (done.result(), done.op) {
            (Ok(n), Some(Op::Send { message, .. })) => {
                client.outbox.sent(message, n as usize);
                client.took_at = self.now;
            }
            (Ok(n), Some(Op::Recv { into, .. })) if n > 0 => {
                client.inbox.received(into, n as usize);
                client.heard_at = self.now;
                self.parse(id);
            }
            _ => client.die(),
        }
        if let Some(client) = self.clients.get_mut(&id).filter(|c| c.dead) {
            client.outbox.drop_queue();
        }
    }

    /// Clients that are gone since the last call: what they still wait for is wanted by nobody.
    pub(crate) fn next_dead(&mut self) -> Option<ClientId> {
        let (id, client) = self.clients.iter_mut().find(|(_, c)| c.dead && !c.mourned)?;
        client.mourned = true;
        Some(*id)
    }

    /// A read of a dead client that was not begun.
    pub(crate) fn not_begun(&mut self, id: ClientId) {
        if let Some(client) = self.clients.get_mut(&id) {
            client.in_flight -= 1;
        }
    }

    /// If others lack buffers: closes the clients that hold some and have taken nothing, or sent nothing more of a
    /// write's data, for [`LONGEST_PAUSE`]. If that does not help, it was too many of them, and the next ones are given
    /// less time.
    pub(crate) fn close_idlers(&mut self, others_lack: bool) {
        if !others_lack {
            self.pause = LONGEST_PAUSE;
            return;
        }
        let mut closed = Vec::new();
        let pause = self.pause;
        for client in self.clients.values_mut().filter(|c| !c.dead) {
            if let Some(what) = client.keeps_others_waiting(self.now, pause) {
                client.die();
                closed.push((client.volume, what));
            }
        }
        if !closed.is_empty() {
            self.pause = SHORTEST_PAUSE;
        }
        for (volume, what) in closed {
            let seconds = pause.0 / 1_000_000_000;
            self.log(format!(
                "an NBD client of volume {volume} was closed: it has {what} for {seconds} s, and others wait for the \
                 memory that it holds"
            ));
        }
    }

    /// Answers a request of a client; `data` is what a read brought.
    pub(crate) fn answer(&mut self, id: ClientId, request: &Request, result: Result<(), Errno>, data: Vec<(Buf, u32)>) {
        let Some(client) = self.clients.get_mut(&id) else { return };
        client.in_flight -= 1;
        if request.kind == Kind::Read {
            client.reading -= u64::from(request.len);
        }
        if client.dead {
            return;
        }
        if client.outbox.is_idle() {
            client.took_at = self.now;
        }
        let message = client.outbox.message();
        message.copy(&client.session.reply(request, result));
        data.into_iter().for_each(|(buf, len)| message.share(buf.span(0, len as usize)));
    }

    /// A piece of a long write is written; the client is answered after the last one.
    pub(crate) fn piece_done(&mut self, id: ClientId, long: LongWrite, result: Result<(), Errno>) {
        let Some(client) = self.clients.get_mut(&id) else { return };
        client.in_flight -= 1;
        let Some(write) = client.long.get_mut(&long) else { return };
        write.pieces_left -= 1;
        if let Err(e) = result {
            write.error.get_or_insert(e);
        }
        if write.pieces_left == 0
            && let Some(Long { request, error, .. }) = client.long.remove(&long)
        {
            client.outbox.message().copy(&client.session.reply(&request, error.map_or(Ok(()), Err)));
        }
    }

    /// What clients did since the last call, oldest first.
    pub(crate) fn next_event(&mut self) -> Option<FrontEvent> {
        self.events.pop_front()
    }

    /// Is there something for [`NbdServer::next_event`]?
    pub(crate) fn has_events(&self) -> bool {
        !self.events.is_empty()
    }

    /// Does the payload of a write wait for a buffer?
    pub(crate) fn is_starved(&self) -> bool {
        !self.accepted.is_empty() || self.clients.values().any(|c| c.inbox.is_starved())
    }

    /// Goes on where buffers were lacking.
    pub(crate) fn go_on(&mut self) {
        if self.is_starved() {
            let starved = self.clients.iter().filter(|(_, c)| c.inbox.is_starved());
            let starved: Vec<ClientId> = starved.map(|(id, _)| *id).collect();
            starved.into_iter().for_each(|id| self.parse(id));
        }
    }

    /// Sends what is queued, receives more, and forgets clients that are gone. Once a turn, so that all replies of the
    /// turn leave together.
    pub(crate) fn pump(&mut self, ring: &mut Ring<Token>) {
        self.admit();
        let (mut gone, mut parked) = (Vec::new(), Vec::new());
        for (id, client) in &mut self.clients {
            if !client.dead {
                let before = client.outbox.sent_bytes();
                client.outbox.flush(ring, &client.fd, Token::Nbd(*id));
                if client.outbox.sent_bytes() > before {
                    client.took_at = self.now;
                }
                parked.extend(client.parked.is_some().then_some(*id));
            }
            // What has come behind a parked read would not be at hand while more is being received.
            if !client.closing && !client.dead && client.parked.is_none() {
                client.inbox.receive(ring, &client.fd, Token::Nbd(*id));
            }
            if client.in_flight == 0 && (client.dead || client.closing && client.outbox.is_idle()) {
                gone.push(*id);
            }
        }
        // What it has taken just now may be enough.
        parked.into_iter().for_each(|id| self.parse(id));
        for id in gone {
            let Some(client) = self.clients.remove(&id) else { continue };
            sys::shutdown(&client.fd);
            if client.open {
                self.count_openers(client.volume);
            }
        }
    }

    /// The sockets that clients connect to.
    pub(crate) fn listeners(&self) -> impl Iterator<Item = (VolumeNr, &Fd)> {
        self.volumes.iter().filter_map(|(volume, offer)| Some((*volume, &offer.listener.as_ref()?.0)))
    }

    /// Takes no clients any more, and closes those there are: they find the next process on the same sockets.
    pub(crate) fn leave(&mut self, ring: &mut Ring<Token>) {
        for offer in self.volumes.values_mut() {
            if let Some((_, accept)) = offer.listener.take() {
                ring.cancel(accept);
            }
        }
        self.clients.values().for_each(|c| sys::shutdown(&c.fd));
    }

    /// Stops listening and removes the sockets.
    pub(crate) fn stop(&mut self, ring: &mut Ring<Token>) {
        for offer in self.volumes.values_mut() {
            if let Some((_, accept)) = offer.listener.take() {
                ring.cancel(accept);
            }
            let _ = std::fs::remove_file(&offer.path);
        }
        self.clients.values().for_each(|c| sys::shutdown(&c.fd));
    }

    fn parse(&mut self, id: ClientId) {
        while let Some(client) = self.clients.get_mut(&id) {
            let Some(offer) = self.volumes.get(&client.volume) else { return };
            match client.step(&offer.export, self.pool) {
                Parsed::Nothing => return,
                Parsed::Request(r, ..) if r.kind == Kind::Read && client.parks(&r, self.pool) => return,
                Parsed::Progress => {
                    if client.session.export().is_some() && !client.open {
                        client.open = true;
                        let volume = client.volume;
                        self.count_openers(volume);
                    }
                }
                Parsed::Request(request, payload, long) => {
                    client.in_flight += 1;
                    if request.kind == Kind::Read {
                        client.reading += u64::from(request.len);
                    }
                    let asker = long.map_or(Asker::Nbd(id), |long| Asker::NbdPiece(id, long));
                    self.events.push_back(FrontEvent::Request(asker, client.volume, request, payload));
                }
                Parsed::Closed(violation) => {
                    let volume = client.volume;
                    if let Some(what) = violation {
                        self.log(format!("an NBD client of volume {volume} was closed: {what}"));
                    }
                    return;
                }
            }
        }
    }

    fn count_openers(&mut self, volume: VolumeNr) {
        let open = self.clients.values().filter(|c| c.volume == volume && c.open).count() as u32;
        let Some(offer) = self.volumes.get_mut(&volume) else { return };
        offer.openers = Openers { writers: open, readers: 0 };
        self.events.push_back(FrontEvent::Openers(volume));
    }

    fn log(&mut self, text: String) {
        self.events.push_back(FrontEvent::Log(text));
    }
}

/// Where the clients of a volume connect.
pub(crate) fn nbd_path(run_dir: &Path, resource: &str, volume: VolumeNr) -> PathBuf {
    run_dir.join(format!("{resource}-{volume}.nbd"))
}

/// A Unix socket that listens on `path`.
///
/// Only this user may connect.
///
/// # Errors
/// What the kernel says.
pub(crate) fn bind(path: &Path) -> io::Result<Fd> {
    match std::fs::remove_file(path) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
        _ => {}
    }
    let listener = UnixListener::bind(path)?;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600))?;
    Ok(Rc::new(listener.into()))
}

enum Parsed {
    Nothing,
    Progress,
    Request(Request, Segments, Option<LongWrite>),
    Closed(Option<&'static str>),
}

impl Client {
    fn expect_write(&mut self, request: Request) {
        let long = (request.len > MAX_PIECE).then(|| {
            let long = LongWrite(self.next_long);
            self.next_long += 1;
            let pieces_left = request.len.div_ceil(MAX_PIECE);
            self.long.insert(long, Long { request, pieces_left, error: None });
            long
        });
        self.inbox.expect_payload(request.len.min(MAX_PIECE) as usize);
        self.pending = Some(Pending { request, taken: 0, long });
    }

    fn take_piece(&mut self, pool: &'static Pool) -> Parsed {
        let Some(span) = self.inbox.take_payload(pool) else { return Parsed::Nothing };
        let Some(Pending { request, taken, long }) = self.pending.take() else { return Parsed::Nothing };
        debug_assert_eq!(request.kind, Kind::Write);
        let len = span.len() as u32;
        let left = request.len - taken - len;
        if left > 0 {
            self.inbox.expect_payload(left.min(MAX_PIECE) as usize);
            self.pending = Some(Pending { request, taken: taken + len, long });
        }
        let piece = Request { offset: request.offset + u64::from(taken), len, ..request };
        let data = Segments::One(BufRef { id: span.into_buf().into_id().0, offset: 0, len });
        Parsed::Request(piece, data, long)
    }

    /// What it has failed to do for so long, while it held buffers.
    fn keeps_others_waiting(&self, now: Instant, pause: Duration) -> Option<&'static str> {
        if !self.outbox.is_idle() && now.since(self.took_at) >= pause {
            return Some("taken none of its answers");
        }
        // One that waits for a buffer itself cannot send.
        let stopped = self.pending.is_some() && !self.inbox.is_starved();
        (stopped && now.since(self.heard_at) >= pause).then_some("sent nothing more of a write's data")
    }

    /// Nothing is sent to it any more, and no answer kept for it.
    fn die(&mut self) {
        self.dead = true;
        self.parked = None;
        self.outbox.drop_queue();
        // A send that is under way ends.
        sys::shutdown(&self.fd);
    }

    /// Must this read wait until the client has taken more of what it has asked for? One read is always possible.
    fn parks(&mut self, request: &Request, pool: &'static Pool) -> bool {
        let held = self.reading + self.outbox.appended_bytes() - self.outbox.sent_bytes();
        let share = (pool.bytes_for(request.len as usize) / SHARES) as u64;
        let parks = held > 0 && held + u64::from(request.len) > share;
        self.parked = parks.then_some(*request);
        parks
    }

    fn step(&mut self, exports: &dyn Exports, pool: &'static Pool) -> Parsed {
        if self.dead {
            return Parsed::Nothing;
        }
        if let Some(read) = self.parked.take() {
            return Parsed::Request(read, Segments::None, None);
        }
        if self.pending.is_some() {
            return self.take_piece(pool);
        }
        if self.closing || self.inbox.bytes().is_empty() {
            return Parsed::Nothing;
        }
        let (session, input) = (&mut self.session, self.inbox.bytes());
        let mut step = Step::NeedMore { at_least: 0 };
        self.outbox.message().copy_with(|out| step = session.parse(input, exports, out));
        match step {
            Step::NeedMore { .. } => Parsed::Nothing,
            Step::Consumed { n } => {
                self.inbox.consume(n);
                Parsed::Progress
            }
            Step::Request { n, request, payload_len } => {
                self.inbox.consume(n);
                if payload_len == 0 {
                    return Parsed::Request(request, Segments::None, None);
                }
                self.expect_write(request);
                Parsed::Progress
            }
            Step::BlockStatus { n, .. } => {
                self.inbox.consume(n);
                Parsed::Progress
            }
            Step::Close { violation, .. } => {
                self.closing = true;
                Parsed::Closed(violation)
            }
        }
    }
}
