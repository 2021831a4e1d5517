//! How two nodes find the two TCP connections of a DRBD connection: a state machine without sockets.
//!
//! Implements `docs/spec/wire-protocol.md` 1.6 (the procedure that works with kernels of both generations), with the
//! rules of 1.4 and 1.5 for which node declares which stream. The owner does the system calls: it performs each
//! [`Action`] and reports what happened.
//!
//! A kernel waits (`sock-check-timeo`) when it has both, as they may have crossed others. Here nobody waits in vain:
//! the node with the greater address never changes a socket that it has, and the peer adopts it, so it is done at once.
//! The other one is done when the first packet of the connection shows that its peer is.

use std::net::{IpAddr, SocketAddr};
use units::{Duration, Instant, Rng};

/// The owner's name for a socket.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct SocketId(pub u32);

/// What a TCP connection is declared to be by its opener's first packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum StreamKind {
    /// P_INITIAL_DATA.
    Data,
    /// P_INITIAL_META.
    Meta,
}

/// Times and addresses of a connection.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Our configured address.
    pub local: SocketAddr,
    /// The peer's.
    pub peer: SocketAddr,
    /// `connect-int`.
    pub connect_int: Duration,
    /// `ping-timeout`.
    pub ping_timeout: Duration,
    /// `sock-check-timeo`; zero means `ping_timeout`.
    pub sock_check_timeout: Duration,
}

/// What the owner shall do. Perform them in order.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Action {
    /// Open a TCP connection from our address (any port) to the peer's; report with [`Connector::on_connected`].
    Open,
    /// Give up the attempt to open one; do not report it.
    AbandonOpen,
    /// Send the first packet that declares the stream.
    Declare(SocketId, StreamKind),
    /// Read exactly the first packet (8 bytes); report with [`Connector::on_first_packet`].
    ReadFirst(SocketId),
    /// Close this socket.
    Close(SocketId),
    /// Report with [`Connector::on_readable`] when this socket has something to read.
    Watch(SocketId),
    /// Look whether both sockets are alive (data to read counts as alive); report with [`Connector::on_checked`].
    Check(SocketId, SocketId),
    /// Done: the machine is at its end.
    Established(Pair),
}

/// The two sockets of a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Pair {
    /// The data stream.
    pub data: SocketId,
    /// The meta stream.
    pub meta: SocketId,
    /// The RESOLVE-CONFLICTS flag: the meta stream was opened by the peer.
    pub resolve_conflicts: bool,
}

/// What settles which two of several sockets the nodes use.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Arbitration {
    /// The addresses, as both nodes find the same one the greater.
    #[default]
    Addresses,
    /// A wait, after which all sockets that the peer has closed are known.
    Waiting,
}

/// The machine; begin with [`Connector::start`].
#[derive(Debug)]
pub struct Connector {
    settings: Settings,
    arbitration: Arbitration,
    data: Option<Slot>,
    meta: Option<Slot>,
    /// Accepted sockets whose first packet has not come, with the time at which they are given up.
    undeclared: Vec<(SocketId, Instant)>,
    opening: Option<Instant>,
    next_open: Instant,
    check_at: Option<Instant>,
    /// On this socket the peer has begun to talk: it has both.
    ready: Option<SocketId>,
    resolve_conflicts: bool,
    rng: Rng,
    actions: Vec<Action>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Slot {
    socket: SocketId,
    ours: bool,
}

/// At most so many accepted sockets wait for their first packet; one more takes the place of the oldest. A peer's first
/// packet comes at once: who keeps silent must not shut it out.
const MAX_UNDECLARED: usize = 8;

impl Connector {
    /// Accepts from now on what the peer opens, and opens connections itself from `open` on. `seed` spreads the retries
    /// of different nodes.
    #[must_use]
    pub fn start(settings: Settings, seed: u64, now: Instant, open: Instant) -> Connector {
        let mut connector = Connector {
            settings,
            arbitration: Arbitration::default(),
            data: None,
            meta: None,
            undeclared: Vec::new(),
            opening: None,
            next_open: open,
            check_at: None,
            ready: None,
            resolve_conflicts: false,
            rng: Rng::new(seed),
            actions: Vec::new(),
        };
        connector.on_timer(now);
        connector
    }

    /// With this in place of the addresses; before the first input.
    #[must_use]
    pub fn settled_by(self, arbitration: Arbitration) -> Connector {
        Connector { arbitration, ..self }
    }

    /// What to do next; drain it after every input.
    pub fn take_actions(&mut self) -> Vec<Action> {
        std::mem::take(&mut self.actions)
    }

    /// When [`Connector::on_timer`] is due.
    #[must_use]
    pub fn deadline(&self) -> Instant {
        let open = self.opening.unwrap_or(if self.is_complete() { Instant(u64::MAX) } else { self.next_open });
        let undeclared = self.undeclared.iter().map(|(_, at)| *at);
        undeclared.chain(self.check_at).fold(open, Instant::min)
    }

    /// A deadline may have come.
    pub fn on_timer(&mut self, now: Instant) {
        let (late, waiting) = self.undeclared.iter().partition(|(_, at)| *at <= now);
        self.undeclared = waiting;
        let late: Vec<(SocketId, Instant)> = late;
        self.actions.extend(late.iter().map(|(s, _)| Action::Close(*s)));
        if self.opening.is_some_and(|at| at <= now) {
            self.opening = None;
            self.actions.push(Action::AbandonOpen);
            self.schedule_open(now);
        }
        if self.check_at.is_some_and(|at| at <= now) {
            self.check_at = None;
            if let (Some(data), Some(meta)) = (self.data, self.meta) {
                self.actions.push(Action::Check(data.socket, meta.socket));
            }
        } else if self.opening.is_none() && !self.is_complete() && self.next_open <= now {
            self.open(now);
        }
    }

    /// An [`Action::Open`] ended; `None`: it failed.
    pub fn on_connected(&mut self, socket: Option<SocketId>, now: Instant) {
        self.opening = None;
        let Some(socket) = socket else { return self.schedule_open(now) };
        let kind = match (self.data, self.meta) {
            (None, None) if self.is_greater() => StreamKind::Data,
            (None, Some(_)) => StreamKind::Data,
            (None | Some(_), None) => StreamKind::Meta,
            // The peer opened what was missing meanwhile.
            (Some(_), Some(_)) => return self.actions.push(Action::Close(socket)),
        };
        if kind == StreamKind::Meta {
            self.resolve_conflicts = false;
        }
        self.actions.push(Action::Declare(socket, kind));
        *self.slot(kind) = Some(Slot { socket, ours: true });
        self.proceed(now);
    }

    /// A TCP connection from `from` was accepted. Only the configured peer's address is let in.
    pub fn on_accepted(&mut self, socket: SocketId, from: IpAddr, now: Instant) {
        if from.to_canonical() != self.settings.peer.ip().to_canonical() {
            return self.actions.push(Action::Close(socket));
        }
        if self.undeclared.len() >= MAX_UNDECLARED {
            let (silent, _) = self.undeclared.remove(0);
            self.actions.push(Action::Close(silent));
        }
        let give_up = now + Duration(self.settings.ping_timeout.0.saturating_mul(4));
        self.undeclared.push((socket, give_up));
        self.actions.push(Action::ReadFirst(socket));
    }

    /// The peer is there: what is missing is opened now.
    pub fn dial_at_once(&mut self, now: Instant) {
        self.next_open = now;
    }

    /// The first packet of an accepted socket came; `None`: it was none, or the socket ended.
    pub fn on_first_packet(&mut self, socket: SocketId, kind: Option<StreamKind>, now: Instant) {
        let Some(at) = self.undeclared.iter().position(|(s, _)| *s == socket) else { return };
        self.undeclared.remove(at);
        let Some(kind) = kind else { return self.actions.push(Action::Close(socket)) };
        let greater = self.is_greater();
        if let Some(old) = *self.slot(kind) {
            // Crossed. A kernel adopts what comes in and closes its own; if both did that, both sockets would die. So
            // the node with the greater address keeps its own, which a kernel then adopts.
            let dropped = if old.ours && greater { socket } else { old.socket };
            self.actions.push(Action::Close(dropped));
            if dropped == socket {
                return;
            }
        }
        if kind == StreamKind::Meta {
            self.resolve_conflicts = true;
        }
        *self.slot(kind) = Some(Slot { socket, ours: false });
        self.next_open = now;
        self.proceed(now);
    }

    /// A socket of [`Action::Watch`] has something to read, or has ended.
    pub fn on_readable(&mut self, socket: SocketId, now: Instant) {
        self.ready = Some(socket);
        if self.is_complete() {
            self.proceed(now);
        }
    }

    /// The answer to [`Action::Check`].
    pub fn on_checked(&mut self, data_alive: bool, meta_alive: bool, now: Instant) {
        let (Some(data), Some(meta)) = (self.data, self.meta) else { return };
        if data_alive && meta_alive {
            let (data, meta) = (data.socket, meta.socket);
            self.actions.extend(self.undeclared.drain(..).map(|(s, _)| Action::Close(s)));
            let pair = Pair { data, meta, resolve_conflicts: self.resolve_conflicts };
            return self.actions.push(Action::Established(pair));
        }
        for (kind, slot, alive) in [(StreamKind::Data, data, data_alive), (StreamKind::Meta, meta, meta_alive)] {
            if !alive {
                self.actions.push(Action::Close(slot.socket));
                *self.slot(kind) = None;
            }
        }
        // A coin decides who waits, or two nodes could go on crossing each other. Who has not waited before does now.
        let at_once = !self.decides() && self.rng.chance(1, 2);
        self.next_open = if at_once { now } else { now + self.settings.ping_timeout };
        self.proceed(now);
    }

    /// Gives everything up.
    pub fn stop(&mut self) {
        let slots = [self.data.take(), self.meta.take()].into_iter().flatten().map(|s| s.socket);
        self.actions.extend(slots.chain(self.undeclared.drain(..).map(|(s, _)| s)).map(Action::Close));
        if self.opening.take().is_some() {
            self.actions.push(Action::AbandonOpen);
        }
    }

    fn proceed(&mut self, now: Instant) {
        let (Some(data), Some(meta)) = (self.data, self.meta) else {
            self.check_at = None;
            return self.on_timer(now);
        };
        let decided = self.decides() || self.ready == Some(data.socket) && self.undeclared.is_empty();
        if decided {
            self.check_at = None;
            return self.actions.push(Action::Check(data.socket, meta.socket));
        }
        let wait = match self.settings.sock_check_timeout {
            Duration(0) => self.settings.ping_timeout,
            configured => configured,
        };
        self.check_at = Some(now + wait);
        self.actions.push(Action::Watch(data.socket));
    }

    fn open(&mut self, now: Instant) {
        self.opening = Some(now + self.settings.connect_int);
        self.actions.push(Action::Open);
    }

    /// A failed attempt is repeated after about a second, or `connect-int` if that is less, give or take a seventh.
    fn schedule_open(&mut self, now: Instant) {
        let base = self.settings.connect_int.min(Duration::from_secs(1)).0;
        let jitter = self.rng.below(base / 7 * 2 + 1);
        self.next_open = now + Duration(base - base / 7 + jitter);
    }

    fn is_complete(&self) -> bool {
        self.data.is_some() && self.meta.is_some()
    }

    fn slot(&mut self, kind: StreamKind) -> &mut Option<Slot> {
        match kind {
            StreamKind::Data => &mut self.data,
            StreamKind::Meta => &mut self.meta,
        }
    }

    /// Do the sockets that this node has stay, whatever the peer does?
    fn decides(&self) -> bool {
        self.arbitration == Arbitration::Addresses && self.is_greater()
    }

    /// Is our address the greater one, as kernels compare them (`docs/spec/wire-protocol.md` 1.5): port first?
    fn is_greater(&self) -> bool {
        let key = |a: &SocketAddr| match a {
            SocketAddr::V4(a) => (a.port(), 0, a.ip().octets().to_vec(), 0),
            // Flow info lies in memory in network order, the scope id in host order.
            SocketAddr::V6(a) => (a.port(), a.flowinfo().to_be(), a.ip().octets().to_vec(), a.scope_id().swap_bytes()),
        };
        key(&self.settings.local) > key(&self.settings.peer)
    }
}

#[cfg(test)]
mod tests;
