use super::*;
use std::collections::{BTreeMap, VecDeque};

const GREATER: &str = "10.0.0.2:7789";
const LESSER: &str = "10.0.0.1:7789";
const T0: Instant = Instant(1_000_000_000);

fn settings(local: &str, peer: &str) -> Settings {
    Settings {
        local: local.parse().unwrap(),
        peer: peer.parse().unwrap(),
        connect_int: Duration::from_secs(10),
        ping_timeout: Duration::from_millis(500),
        sock_check_timeout: Duration(0),
    }
}

fn ip(address: &str) -> IpAddr {
    address.parse::<SocketAddr>().unwrap().ip()
}

fn socket(n: u32) -> SocketId {
    SocketId(n)
}

#[test]
fn greater_address_declares_data_and_then_answers_with_meta() {
    let mut c = Connector::start(settings(GREATER, LESSER), 1, T0, T0);
    assert_eq!(c.take_actions(), [Action::Open]);
    c.on_connected(Some(socket(1)), T0);
    assert_eq!(c.take_actions(), [Action::Declare(socket(1), StreamKind::Data), Action::Open]);
    c.on_accepted(socket(2), ip(LESSER), T0);
    assert_eq!(c.take_actions(), [Action::ReadFirst(socket(2))]);
    c.on_first_packet(socket(2), Some(StreamKind::Meta), T0);
    assert_eq!(c.take_actions(), [Action::Check(socket(1), socket(2))], "nothing that comes later changes it");
    // Our second attempt comes too late.
    c.on_connected(Some(socket(3)), T0);
    assert_eq!(c.take_actions(), [Action::Close(socket(3))]);
    c.on_checked(true, true, T0);
    let pair = Pair { data: socket(1), meta: socket(2), resolve_conflicts: true };
    assert_eq!(c.take_actions(), [Action::Established(pair)]);
}

#[test]
fn a_kernel_that_declares_data_first_gets_meta_at_once() {
    let mut c = Connector::start(settings(LESSER, GREATER), 1, T0, T0);
    c.take_actions();
    c.on_connected(None, T0);
    assert!(c.take_actions().is_empty() && c.deadline() > T0);
    c.on_accepted(socket(1), ip(GREATER), T0);
    c.on_first_packet(socket(1), Some(StreamKind::Data), T0);
    assert_eq!(c.take_actions(), [Action::ReadFirst(socket(1)), Action::Open]);
    c.on_connected(Some(socket(2)), T0);
    let declared = Action::Declare(socket(2), StreamKind::Meta);
    assert_eq!(c.take_actions(), [declared, Action::Watch(socket(1))]);
    assert_eq!(c.deadline(), T0 + Duration::from_millis(500));
    let mut kernel = c.take_actions();
    c.on_timer(c.deadline());
    kernel.extend(c.take_actions());
    assert_eq!(kernel, [Action::Check(socket(1), socket(2))]);
    c.on_checked(true, true, T0);
    let pair = Pair { data: socket(1), meta: socket(2), resolve_conflicts: false };
    assert_eq!(c.take_actions().last(), Some(&Action::Established(pair)));
}

#[test]
fn crossed_sockets_greater_keeps_lesser_adopts() {
    for (local, peer, kept) in [(GREATER, LESSER, true), (LESSER, GREATER, false)] {
        let kind = if kept { StreamKind::Data } else { StreamKind::Meta };
        let mut c = Connector::start(settings(local, peer), 1, T0, T0);
        c.on_connected(Some(socket(1)), T0);
        c.on_accepted(socket(2), ip(peer), T0);
        c.take_actions();
        c.on_first_packet(socket(2), Some(kind), T0);
        let closed = if kept { socket(2) } else { socket(1) };
        assert_eq!(c.take_actions()[0], Action::Close(closed));
    }
}

#[test]
fn strangers_and_silent_sockets_are_closed() {
    let mut c = Connector::start(settings(LESSER, GREATER), 1, T0, T0);
    c.on_connected(None, T0);
    c.take_actions();
    c.on_accepted(socket(1), "10.9.9.9".parse().unwrap(), T0);
    assert_eq!(c.take_actions(), [Action::Close(socket(1))]);
    c.on_accepted(socket(2), ip(GREATER), T0);
    c.on_accepted(socket(3), ip(GREATER), T0);
    c.on_first_packet(socket(3), None, T0);
    assert!(c.take_actions().contains(&Action::Close(socket(3))));
    c.on_timer(T0 + Duration::from_secs(2));
    assert!(c.take_actions().contains(&Action::Close(socket(2))));
    c.on_first_packet(socket(2), Some(StreamKind::Data), T0);
    assert!(c.data.is_none());
}

#[test]
fn a_dead_socket_is_forgotten_and_opened_again() {
    let mut c = Connector::start(settings(GREATER, LESSER), 1, T0, T0);
    c.on_connected(Some(socket(1)), T0);
    c.on_connected(Some(socket(2)), T0);
    c.take_actions();
    c.on_timer(T0 + Duration::from_secs(1));
    c.on_checked(true, false, T0 + Duration::from_secs(1));
    assert!(c.take_actions().contains(&Action::Close(socket(2))));
    c.on_timer(T0 + Duration::from_secs(3));
    c.take_actions();
    c.on_connected(Some(socket(4)), T0 + Duration::from_secs(3));
    let again = [Action::Declare(socket(4), StreamKind::Meta), Action::Check(socket(1), socket(4))];
    assert_eq!(c.take_actions(), again);
}

#[test]
fn stop_closes_everything() {
    let mut c = Connector::start(settings(GREATER, LESSER), 1, T0, T0);
    c.on_connected(Some(socket(1)), T0);
    c.on_accepted(socket(2), ip(LESSER), T0);
    c.take_actions();
    c.stop();
    assert_eq!(c.take_actions(), [Action::Close(socket(1)), Action::Close(socket(2)), Action::AbandonOpen]);
}

/// Two machines on a network with random delays, where sockets have two ends and closing one end kills the other.
struct Network {
    nodes: [Connector; 2],
    /// Messages under way: when, to whom, what.
    events: BTreeMap<(Instant, u64), (usize, Event)>,
    order: u64,
    /// (node, its id) of a socket end to the other end.
    other_end: BTreeMap<(usize, SocketId), (usize, SocketId)>,
    closed: Vec<(usize, SocketId)>,
    next_socket: u32,
    established: [Option<Pair>; 2],
    /// Ends of sockets at which something has come.
    talks: Vec<(usize, SocketId)>,
    took: Duration,
    rng: Rng,
}

enum Event {
    Connected(SocketId),
    Accepted(SocketId),
    First(SocketId, Option<StreamKind>),
    Readable(SocketId),
    Timer,
}

impl Network {
    fn new(seed: u64) -> Network {
        Network::of(
            [
                Connector::start(settings(GREATER, LESSER), seed, T0, T0),
                Connector::start(settings(LESSER, GREATER), seed + 1, T0, T0),
            ],
            seed,
        )
    }

    fn of(nodes: [Connector; 2], seed: u64) -> Network {
        Network {
            nodes,
            events: BTreeMap::new(),
            order: 0,
            other_end: BTreeMap::new(),
            closed: Vec::new(),
            next_socket: 0,
            established: [None; 2],
            talks: Vec::new(),
            took: Duration(0),
            rng: Rng::new(seed),
        }
    }

    fn post(&mut self, now: Instant, to: usize, event: Event) {
        let at = now + Duration(self.rng.below(3_000_000));
        self.order += 1;
        self.events.insert((at, self.order), (to, event));
    }

    fn perform(&mut self, node: usize, now: Instant) {
        let mut actions: VecDeque<Action> = self.nodes[node].take_actions().into();
        while let Some(action) = actions.pop_front() {
            match action {
                Action::Open => {
                    let (mine, theirs) = (SocketId(self.next_socket), SocketId(self.next_socket + 1));
                    self.next_socket += 2;
                    self.other_end.insert((node, mine), (1 - node, theirs));
                    self.other_end.insert((1 - node, theirs), (node, mine));
                    self.post(now, node, Event::Connected(mine));
                    self.post(now, 1 - node, Event::Accepted(theirs));
                }
                Action::Declare(socket, kind) => {
                    let (peer, theirs) = self.other_end[&(node, socket)];
                    // Never before the accept of the same socket.
                    self.post(now + Duration(3_000_000), peer, Event::First(theirs, Some(kind)));
                }
                Action::Check(data, meta) => {
                    let alive = |s| {
                        let end = (node, s);
                        !self.closed.contains(&end) && !self.closed.contains(&self.other_end[&end])
                    };
                    let (data, meta) = (alive(data), alive(meta));
                    self.nodes[node].on_checked(data, meta, now);
                    actions.extend(self.nodes[node].take_actions());
                }
                Action::Established(pair) => {
                    self.established[node] = Some(pair);
                    self.took = now.since(T0);
                    // It begins to talk.
                    let (peer, theirs) = self.other_end[&(node, pair.data)];
                    self.talks.push((peer, theirs));
                    self.post(now + Duration(3_000_000), peer, Event::Readable(theirs));
                }
                Action::Watch(socket) => {
                    if self.talks.contains(&(node, socket)) {
                        self.post(now, node, Event::Readable(socket));
                    }
                }
                Action::Close(socket) => {
                    self.closed.push((node, socket));
                    let (peer, theirs) = self.other_end[&(node, socket)];
                    self.post(now + Duration(3_000_000), peer, Event::First(theirs, None));
                }
                Action::ReadFirst(_) | Action::AbandonOpen => {}
            }
        }
        let due = self.nodes[node].deadline();
        if due != Instant(u64::MAX) && self.established[node].is_none() {
            self.order += 1;
            self.events.insert((due.max(now), self.order), (node, Event::Timer));
        }
    }

    fn run(&mut self) {
        (0..2).for_each(|n| self.perform(n, T0));
        while let Some(((now, _), (node, event))) = self.events.pop_first() {
            assert!(now < T0 + Duration::from_secs(60), "no agreement within a minute");
            if self.established[node].is_some() {
                continue;
            }
            let machine = &mut self.nodes[node];
            let from = machine.settings.peer.ip();
            match event {
                Event::Connected(s) => machine.on_connected(Some(s), now),
                Event::Accepted(s) => machine.on_accepted(s, from, now),
                Event::First(s, kind) => machine.on_first_packet(s, kind, now),
                Event::Readable(s) => machine.on_readable(s, now),
                Event::Timer => machine.on_timer(now),
            }
            self.perform(node, now);
        }
    }
}

#[test]
fn two_nodes_always_agree_on_the_same_two_sockets() {
    let mut slow = 0;
    for seed in 0..2000 {
        let mut net = Network::new(seed);
        net.run();
        slow += u32::from(net.took >= Duration::from_millis(50));
        let [Some(a), Some(b)] = net.established else { panic!("seed {seed}: not established") };
        assert_eq!(net.other_end[&(0, a.data)], (1, b.data), "seed {seed}");
        assert_eq!(net.other_end[&(0, a.meta)], (1, b.meta), "seed {seed}");
        assert_ne!(a.resolve_conflicts, b.resolve_conflicts, "seed {seed}: both or none resolve conflicts");
    }
    assert!(slow < 150, "{slow} times somebody waited in vain");
}

/// The addresses are translated: each node finds its own the greater one, or the lesser one.
#[test]
fn two_nodes_behind_a_translator_agree_by_waiting() {
    for (own, translated) in [(GREATER, LESSER), (LESSER, GREATER)] {
        for seed in 0..500 {
            let node =
                |n| Connector::start(settings(own, translated), seed + n, T0, T0).settled_by(Arbitration::Waiting);
            let mut net = Network::of([node(0), node(1)], seed);
            net.run();
            let [Some(a), Some(b)] = net.established else { panic!("seed {seed}: not established") };
            assert_eq!(net.other_end[&(0, a.data)], (1, b.data), "seed {seed}");
            assert_eq!(net.other_end[&(0, a.meta)], (1, b.meta), "seed {seed}");
        }
    }
}

#[test]
fn before_it_opens_connections_it_accepts_them() {
    let open = T0 + Duration::from_secs(60);
    let mut c = Connector::start(settings(GREATER, LESSER), 1, T0, open);
    assert_eq!((c.take_actions(), c.deadline()), (vec![], open));
    for (n, kind) in [(1, StreamKind::Data), (2, StreamKind::Meta)] {
        c.on_accepted(socket(n), ip(LESSER), T0);
        assert_eq!(c.take_actions(), [Action::ReadFirst(socket(n))]);
        c.on_first_packet(socket(n), Some(kind), T0);
        let done = Action::Check(socket(1), socket(2));
        let tries = vec![if kind == StreamKind::Data { Action::Open } else { done }];
        assert_eq!(c.take_actions(), tries);
    }
    let mut c = Connector::start(settings(GREATER, LESSER), 1, T0, open);
    c.on_timer(open);
    assert_eq!(c.take_actions(), [Action::Open]);
}

#[test]
fn silent_sockets_do_not_shut_the_peer_out() {
    let mut c = Connector::start(settings(GREATER, LESSER), 1, T0, T0 + Duration::from_secs(60));
    for n in 1..=8 {
        c.on_accepted(socket(n), ip(LESSER), T0);
        assert_eq!(c.take_actions(), [Action::ReadFirst(socket(n))]);
    }
    for (n, silent) in [(9, 1), (10, 2)] {
        c.on_accepted(socket(n), ip(LESSER), T0);
        assert_eq!(c.take_actions(), [Action::Close(socket(silent)), Action::ReadFirst(socket(n))]);
    }
    for (n, kind) in [(9, StreamKind::Data), (10, StreamKind::Meta)] {
        c.on_first_packet(socket(n), Some(kind), T0);
    }
    assert!(c.take_actions().contains(&Action::Check(socket(9), socket(10))));
}
