//! The control socket: clients' requests in, replies and events out (`crates/control` has the messages).

use crate::buffers::{GrowingPlan, Pool};
use crate::log::log;
use crate::nbd_server::bind;
use crate::ring::{Done, Fd, Op, OpId, Ring};
use crate::stream::{Inbox, Outbox, STAGING};
use crate::sys;
use crate::token::{ClientId, Token};
use control::frame::{Decoder, FrameError, encode};
use control::{Asker, ErrorCode, Event, Failure, Listens, Reply, Request, ResourceStatus, VERSION};
use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use units::{Duration, Instant};

/// All control clients of a resource.
pub(crate) struct ControlServer {
    pool: &'static Pool,
    path: PathBuf,
    resource: String,
    listener: Option<(Fd, OpId)>,
    /// No clients yet, as there is no buffer; oldest first.
    accepted: VecDeque<Fd>,
    clients: BTreeMap<ClientId, Client>,
    next_client: u64,
    heard: u64,
    requests: VecDeque<(ClientId, Request)>,
    joining: Vec<(ClientId, Listens)>,
    /// Answers to commands that are not held yet, and those that are.
    ended: Vec<(ClientId, Vec<u8>)>,
    held: Vec<Held>,
    /// The last number that listeners were asked to confirm.
    asked: u64,
    /// What listeners were told since the start, and until when it is kept.
    since_start: Option<(Instant, Vec<u8>)>,
}

struct Client {
    fd: Fd,
    /// Root, or the user whose process this is; others may only look.
    may_command: bool,
    /// The process, and its user.
    who: Option<(i32, u32)>,
    decoder: Decoder,
    inbox: Inbox,
    outbox: Outbox,
    greeted: bool,
    /// What is being worked on; the next is taken after its reply.
    busy: Option<Work>,
    /// It was seen waiting for its answer.
    waits: bool,
    subscribed: bool,
    /// The last of what it was asked to confirm, if it does that.
    confirmed: Option<u64>,
    closing: bool,
    /// Rises with each sign of life of any client.
    heard: u64,
}

/// What a client has asked for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Work {
    Question,
    Command,
}

/// The answer to a command, while listeners pass on what it has led to.
struct Held {
    client: ClientId,
    reply: Vec<u8>,
    /// Who is to confirm that, by what number, and until when it is waited for.
    by: Vec<ClientId>,
    number: u64,
    until: Instant,
}

/// Lets the members of a group connect.
fn admit(path: &Path, group: &str) -> io::Result<()> {
    let no_such = || io::Error::new(io::ErrorKind::NotFound, "there is no such group");
    let group = sys::group_number(group).ok_or_else(no_such)?;
    std::os::unix::fs::chown(path, None, Some(group))?;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o660))
}

/// With so many clients the next one takes the place of one that says nothing.
const MAX_CLIENTS: usize = 32;
/// Buffers of clients that have gone, while the kernel still has them.
const SPARE: usize = 8;
/// Clients for which there is always a buffer.
const CLIENTS: usize = 4;
/// Of these, so many may listen to events: there is always a place for a command.
const MAX_SUBSCRIBERS: usize = 24;
/// For so long a command's answer waits for listeners to pass on what it has led to.
const CONFIRMED_WITHIN: Duration = Duration::from_secs(1);
/// A subscriber that lets so many bytes wait is cut off.
const MAX_BACKLOG: usize = 8 << 20;
/// For so long, and up to so many bytes, what has happened since the start is kept.
const KEPT: (Duration, usize) = (Duration::from_secs(10), 1 << 20);

impl ControlServer {
    /// Listens on `path`; a socket that a dead process left there is replaced. Members of `group` may connect, too, and
    /// only look.
    ///
    /// # Errors
    /// If the socket cannot be made.
    pub(crate) fn listen(
        ring: &mut Ring<Token>,
        resource: &str,
        path: &Path,
        group: Option<&str>,
    ) -> io::Result<ControlServer> {
        let fd = bind(path)?;
        if let Some(group) = group
            && let Err(why) = admit(path, group)
        {
            log("warning", &format!("status-group {group}: {why}: only root may look at the resource"));
        }
        // Of its own: whoever holds all buffers of the others can still be ended by a command.
        let pool = Pool::leak_growing(&[GrowingPlan { size: STAGING, least: CLIENTS, most: MAX_CLIENTS + SPARE }]);
        let accept = ring.push(Op::Accept { fd: fd.clone() }, Token::ControlListen);
        Ok(ControlServer {
            pool,
            path: path.to_owned(),
            resource: resource.to_owned(),
            listener: Some((fd, accept)),
            accepted: VecDeque::new(),
            clients: BTreeMap::new(),
            next_client: 0,
            heard: 0,
            requests: VecDeque::new(),
            joining: Vec::new(),
            ended: Vec::new(),
            held: Vec::new(),
            asked: 0,
            since_start: None,
        })
    }

    /// The resource has another name, and its socket that path. Who is connected stays it.
    ///
    /// # Errors
    /// If it cannot be moved there.
    pub(crate) fn rename(&mut self, resource: &str, path: &Path) -> io::Result<()> {
        std::fs::rename(&self.path, path)?;
        (self.resource, self.path) = (resource.to_owned(), path.to_owned());
        Ok(())
    }

    /// The buffers of its clients.
    pub(crate) fn pool(&self) -> &'static Pool {
        self.pool
    }

    /// The listener accepted, or ended.
    pub(crate) fn on_accept(&mut self, mut done: Done<Token>) {
        let Ok(fd) = done.accepted() else { return };
        self.accepted.push_back(Rc::new(fd));
        if self.accepted.len() > MAX_CLIENTS {
            self.accepted.pop_front();
        }
        self.admit();
    }

    /// Takes in who was accepted. Buffers of clients that had to go come back with the kernel's next answers.
    fn admit(&mut self) {
        while let Some(fd) = self.accepted.pop_front() {
            if self.clients.len() >= MAX_CLIENTS && !self.make_room() {
                continue;
            }
            let Some(inbox) = Inbox::new(self.pool) else { return self.accepted.push_front(fd) };
            self.add(fd, inbox);
        }
    }

    fn add(&mut self, fd: Fd, inbox: Inbox) {
        let id = ClientId(self.next_client);
        self.next_client += 1;
        self.heard += 1;
        let who = sys::peer_credentials(&fd).ok();
        let client = Client {
            may_command: who.is_some_and(|who| who.uid == 0 || who.uid == sys::user_and_group().0),
            who: who.map(|who| (who.pid, who.uid)),
            fd,
            decoder: Decoder::default(),
            inbox,
            outbox: Outbox::default(),
            greeted: false,
            busy: None,
            waits: false,
            subscribed: false,
            confirmed: None,
            closing: false,
            heard: self.heard,
        };
        self.clients.insert(id, client);
    }

    /// Ends the client that has said nothing for longest; one that has not even greeted before all others. False if
    /// each has a request that is being worked on, or listens.
    fn make_room(&mut self) -> bool {
        let silent = self.clients.iter().filter(|(_, c)| c.busy.is_none() && !c.subscribed);
        let Some((&id, _)) = silent.min_by_key(|(_, c)| (c.greeted, c.heard)) else { return false };
        if let Some(client) = self.clients.remove(&id) {
            // The receive that waits for it holds its descriptor.
            sys::shutdown(&client.fd);
        }
        true
    }

    /// A send or receive of a client ended.
    pub(crate) fn on_done(&mut self, id: ClientId, done: Done<Token>) {
        let Some(client) = self.clients.get_mut(&id) else { return };
        match (done.result(), done.op) {
            (Ok(n), Some(Op::Send { message, .. })) => client.outbox.sent(message, n as usize),
            (Ok(n), Some(Op::Recv { into, .. })) if n > 0 => {
                self.heard += 1;
                client.heard = self.heard;
                client.inbox.received(into, n as usize);
                client.decoder.push(client.inbox.bytes());
                client.inbox.consume(client.inbox.bytes().len());
                self.parse(id);
            }
            _ => drop(self.clients.remove(&id)),
        }
    }

    /// The next request to answer with [`ControlServer::reply`]. Greetings are answered here.
    pub(crate) fn next_request(&mut self) -> Option<(ClientId, Request)> {
        self.requests.pop_front()
    }

    /// Answers the request of a client; a command's answer waits for [`ControlServer::answer`].
    pub(crate) fn reply(&mut self, id: ClientId, reply: &Reply) {
        match self.clients.get(&id).and_then(|client| client.busy) {
            Some(Work::Question) => self.send(id, &encode(reply)),
            Some(Work::Command) => self.ended.push((id, encode(reply))),
            None => {}
        }
    }

    fn send(&mut self, id: ClientId, reply: &[u8]) {
        let Some(client) = self.clients.get_mut(&id).filter(|c| c.busy.is_some()) else { return };
        client.outbox.message().copy(reply);
        (client.busy, client.waits) = (None, false);
        self.parse(id);
    }

    /// Answers the commands that have ended, each when the listeners who confirm have passed on what was published
    /// until now. One that has not in time is not waited for until it has caught up.
    pub(crate) fn answer(&mut self, now: Instant) {
        let ended = std::mem::take(&mut self.ended);
        if !ended.is_empty() {
            let by = self.ask_to_confirm();
            let (number, until) = (self.asked, now + CONFIRMED_WITHIN);
            self.held.extend(ended.into_iter().map(|(client, reply)| Held {
                client,
                reply,
                by: by.clone(),
                number,
                until,
            }));
        }
        let clients = &self.clients;
        let lacks = |id: &ClientId, number| clients.get(id).is_some_and(|c| c.confirmed < Some(number));
        let over = |held: &mut Held| now >= held.until || !held.by.iter().any(|id| lacks(id, held.number));
        let answers: Vec<Held> = self.held.extract_if(.., over).collect();
        answers.into_iter().for_each(|held| self.send(held.client, &held.reply));
    }

    /// Those that had confirmed all before. Only who may command can keep a command waiting.
    fn ask_to_confirm(&mut self) -> Vec<ClientId> {
        let last = self.asked;
        self.asked += 1;
        let ask = encode(&Reply::Event(Event::Confirm { number: self.asked }));
        let listen = self.clients.iter_mut().filter(|(_, c)| c.subscribed && c.may_command && c.confirmed.is_some());
        let mut by = Vec::new();
        for (id, client) in listen {
            client.outbox.message().copy(&ask);
            by.extend((client.confirmed == Some(last)).then_some(*id));
        }
        by
    }

    /// When an answer is not to wait any longer.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.held.iter().map(|held| held.until).min()
    }

    /// Who a client is: its process, those that have started it, its user.
    pub(crate) fn who(&self, id: ClientId) -> Option<Asker> {
        self.clients.get(&id)?.who.map(|(pid, user)| Asker::of(pid, user))
    }

    /// Does anyone wait for an answer?
    pub(crate) fn anyone_waits(&self) -> bool {
        self.clients.values().any(|c| c.busy.is_some())
    }

    /// Who waits now, and did so when this was called before.
    pub(crate) fn wait_longer(&mut self) -> Vec<ClientId> {
        let mut longer = Vec::new();
        for (id, client) in &mut self.clients {
            let waited = std::mem::replace(&mut client.waits, client.busy.is_some());
            longer.extend((waited && client.busy.is_some()).then_some(*id));
        }
        longer
    }

    /// The last answer to this client: that of its request, when it comes, concerns nobody any more.
    pub(crate) fn dismiss(&mut self, id: ClientId, reply: &Reply) {
        let Some(client) = self.clients.get_mut(&id) else { return };
        client.outbox.message().copy(&encode(reply));
        (client.busy, client.closing) = (None, true);
    }

    /// It begins to listen when the others have been told what has happened until now.
    pub(crate) fn join(&mut self, id: ClientId, how: Listens, confirms: bool) {
        self.clients.entry(id).and_modify(|client| client.confirmed = confirms.then_some(0));
        self.joining.push((id, how));
    }

    /// Who wants to listen.
    pub(crate) fn take_joining(&mut self) -> Vec<(ClientId, Listens)> {
        std::mem::take(&mut self.joining)
    }

    /// Begins an event stream with the present state; it ends there if `now`. Too many listeners are refused.
    /// Who asks for that hears first what has happened since the start, if that is not long ago.
    pub(crate) fn subscribe(&mut self, id: ClientId, status: &ResourceStatus, how: Listens) {
        if how != Listens::Once && self.clients.values().filter(|c| c.subscribed).count() >= MAX_SUBSCRIBERS {
            let what = format!("{MAX_SUBSCRIBERS} programs follow the events of {} already", self.resource);
            let failure = Failure::new(ErrorCode::INVALID_REQUEST, what)
                .with_hint("end one of them, or ask now and then: urbd events2 --now");
            return self.reply(id, &Reply::Error(failure));
        }
        let Some(client) = self.clients.get_mut(&id) else { return };
        if let Some((_, told)) = self.since_start.as_ref().filter(|_| how == Listens::SinceStart) {
            client.outbox.message().copy(told);
        }
        for event in [Event::Status(status.clone()), Event::Ready] {
            client.outbox.message().copy(&encode(&Reply::Event(event)));
        }
        client.busy = None;
        client.confirmed = client.confirmed.map(|_| self.asked);
        client.closing = how == Listens::Once;
        client.subscribed = how != Listens::Once;
    }

    /// Is there a next request?
    pub(crate) fn has_requests(&self) -> bool {
        !self.requests.is_empty()
    }

    /// From here on what happens is kept for a while, for who follows all resources and is only about to find this one.
    pub(crate) fn begin(&mut self, now: Instant, status: ResourceStatus) {
        self.since_start = Some((now + KEPT.0, encode(&Reply::Event(Event::Status(status)))));
    }

    /// Does anyone listen to events, or may soon want to hear of what happens now?
    pub(crate) fn has_listeners(&mut self, now: Instant) -> bool {
        self.since_start.take_if(|(until, told)| now >= *until || told.len() > KEPT.1);
        self.since_start.is_some() || self.clients.values().any(|c| c.subscribed)
    }

    /// Tells all subscribers.
    pub(crate) fn publish(&mut self, event: Event) {
        let bytes = encode(&Reply::Event(event));
        if let Some((_, told)) = &mut self.since_start {
            told.extend_from_slice(&bytes);
        }
        for client in self.clients.values_mut().filter(|c| c.subscribed) {
            client.outbox.message().copy(&bytes);
            client.closing |= client.outbox.queued_bytes() > MAX_BACKLOG;
        }
    }

    /// Sends what is queued and receives more.
    pub(crate) fn pump(&mut self, ring: &mut Ring<Token>) {
        self.admit();
        self.clients.retain(|id, client| {
            client.outbox.flush(ring, &client.fd, Token::Control(*id));
            if client.closing && client.outbox.is_idle() {
                sys::shutdown(&client.fd);
                return false;
            }
            client.inbox.receive(ring, &client.fd, Token::Control(*id));
            true
        });
    }

    /// Has everything been sent?
    pub(crate) fn is_idle(&self) -> bool {
        self.held.is_empty() && self.clients.values().all(|c| c.outbox.is_idle())
    }

    /// Stops listening and removes the socket.
    pub(crate) fn stop(&mut self, ring: &mut Ring<Token>) {
        if let Some((_, accept)) = self.listener.take() {
            ring.cancel(accept);
        }
        let _ = std::fs::remove_file(&self.path);
    }

    fn parse(&mut self, id: ClientId) {
        let Some(client) = self.clients.get_mut(&id) else { return };
        while client.busy.is_none() && !client.closing {
            let failure = match client.decoder.message::<Request>() {
                Ok(None) => return,
                Ok(Some(Request::Hello { version: VERSION })) => {
                    client.greeted = true;
                    let hello = Reply::Hello {
                        version: VERSION,
                        program: env!("CARGO_PKG_VERSION").to_owned(),
                        pid: std::process::id(),
                        resource: self.resource.clone(),
                    };
                    client.outbox.message().copy(&encode(&hello));
                    continue;
                }
                Ok(Some(request)) if client.greeted && !client.may_command && !request.only_looks() => {
                    let what = "members of the status group may look at the resource, but not change it";
                    let failure = Failure::new(ErrorCode::PERMISSION, what).with_hint("do it as root: sudo urbd ...");
                    client.outbox.message().copy(&encode(&Reply::Error(failure)));
                    continue;
                }
                Ok(Some(Request::Confirmed { number })) => {
                    client.confirmed = client.confirmed.max(Some(number));
                    continue;
                }
                Ok(Some(request)) if client.greeted => {
                    client.busy =
                        Some(if matches!(request, Request::Command(_)) { Work::Command } else { Work::Question });
                    self.requests.push_back((id, request));
                    return;
                }
                Ok(Some(_)) => {
                    let what = format!("this process speaks version {VERSION} of the control protocol");
                    Failure::new(ErrorCode::UNKNOWN_COMMAND, what)
                }
                Err(e @ FrameError::Malformed(_)) if client.greeted => {
                    let failure = Failure::new(ErrorCode::UNKNOWN_COMMAND, e.to_string());
                    client.outbox.message().copy(&encode(&Reply::Error(failure)));
                    continue;
                }
                Err(e) => Failure::new(ErrorCode::UNKNOWN_COMMAND, e.to_string()),
            };
            client.outbox.message().copy(&encode(&Reply::Error(failure)));
            client.closing = true;
        }
    }
}
