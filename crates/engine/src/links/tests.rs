mod shared;

use super::*;
use crate::buffers::ClassPlan;
use crate::stream::STAGING;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use wire::{BlockId, ConnectionFeatures, DpFlags, Version};

/// One node: its links, its own ring, and what happened.
struct Node {
    links: Links,
    ring: Ring<Token>,
    pool: &'static Pool,
    peer: NodeId,
    seen: Vec<LinkEvent>,
}

fn node_id(n: u8) -> NodeId {
    NodeId::new(n).unwrap()
}

fn free_address() -> std::net::SocketAddr {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap()
}

fn settings(local: std::net::SocketAddr, remote: std::net::SocketAddr) -> LinkSettings {
    let connector = Settings {
        local,
        peer: remote,
        connect_int: Duration::from_millis(50),
        ping_timeout: Duration::from_millis(50),
        sock_check_timeout: Duration(0),
    };
    LinkSettings { connector, marked: None, send_buffer: 0, receive_buffer: 0, timeout: Duration::from_secs(6) }
}

impl Node {
    fn new(local: std::net::SocketAddr, remote: std::net::SocketAddr, peer: u8) -> Node {
        let peer = node_id(peer);
        Node::with(BTreeMap::from([(peer, settings(local, remote))]), u64::from(local.port()))
    }

    fn with(links: BTreeMap<NodeId, LinkSettings>, seed: u64) -> Node {
        let pool = Pool::leak(&[ClassPlan { size: 4096, count: 64 }, ClassPlan { size: STAGING, count: 16 }]);
        let peer = *links.keys().next().unwrap();
        let links = Links::new(pool, links, seed);
        Node { links, ring: Ring::new(64).unwrap(), pool, peer, seen: Vec::new() }
    }

    fn turn(&mut self) {
        self.links.pump(&mut self.ring, sys::now(), false, |_| false);
        let wake = sys::now() + Duration::from_millis(1);
        let mut done = Vec::new();
        self.ring.turn(Some(wake), &mut done).unwrap();
        let now = sys::now();
        for d in done {
            match d.token {
                Token::Listen(name) => self.links.on_accept(&mut self.ring, name, d, now),
                Token::Open(peer, socket) => self.links.on_open(&mut self.ring, peer, socket, d, now),
                Token::Link(peer, socket) => self.links.on_socket(&mut self.ring, peer, socket, d, now),
                other => panic!("{other:?}"),
            }
        }
        self.links.on_timer(&mut self.ring, now);
        while let Some(event) = self.links.next_event() {
            self.seen.push(event);
        }
    }

    fn send(&mut self, socket: Socket, packet: Packet, payload: &Segments) {
        self.links.send(self.peer, Instant(0), socket, VolumeNr(0), packet, payload);
    }

    fn is_up(&self) -> bool {
        self.seen.iter().any(|e| matches!(e, LinkEvent::Up { .. }))
    }

    fn is_down(&self) -> bool {
        self.seen.iter().any(|e| matches!(e, LinkEvent::Down { .. }))
    }

    fn packets(&self) -> Vec<(Socket, &Packet, &Segments)> {
        let packet = |e| match e {
            &LinkEvent::Packet { stream, ref packet, ref payload, .. } => Some((stream, packet, payload)),
            _ => None,
        };
        self.seen.iter().filter_map(packet).collect()
    }
}

fn turn_until(a: &mut Node, b: &mut Node, what: &str, is_so: impl Fn(&Node, &Node) -> bool) {
    let limit = sys::now() + Duration::from_secs(30);
    while !is_so(a, b) {
        assert!(sys::now() < limit, "waited in vain until {what}; {:?} {:?}", a.seen, b.seen);
        a.turn();
        b.turn();
    }
}

/// Two nodes with both streams up, past the exchange of features.
fn connected() -> (Node, Node) {
    let (x, y) = (free_address(), free_address());
    let (mut a, mut b) = (Node::new(x, y, 1), Node::new(y, x, 0));
    a.links.connect(node_id(1), Instant(0), false);
    b.links.connect(node_id(0), Instant(0), false);
    turn_until(&mut a, &mut b, "both are up", |a, b| a.is_up() && b.is_up());
    for node in [&mut a, &mut b] {
        node.send(Socket::Data, Packet::ConnectionFeatures(ConnectionFeatures::OFFER), &Segments::None);
    }
    turn_until(&mut a, &mut b, "features came", |a, b| a.packets().len() == 1 && b.packets().len() == 1);
    let dialect = Dialect { version: Version::MAX_84, features: wire::Features::OF_84 };
    a.links.set_dialect(node_id(1), dialect, Some("sha1"));
    b.links.set_dialect(node_id(0), dialect, Some("sha1"));
    (a, b)
}

fn protocol(integrity: &str) -> Packet {
    Packet::Protocol(Box::new(wire::Protocol {
        protocol: wire::ReplicationProtocol::C,
        after_sb_0pri: wire::AfterSplitBrain::Disconnect,
        after_sb_1pri: wire::AfterSplitBrain::Disconnect,
        after_sb_2pri: wire::AfterSplitBrain::Disconnect,
        discard_my_data: false,
        dry_run: false,
        two_primaries: false,
        integrity_alg: wire::AlgName::new(integrity).unwrap(),
    }))
}

fn write(len: u32) -> Packet {
    let digest = wire::Digest::default();
    let (sector, size) = (units::Sector(8), units::ByteLen(len.into()));
    Packet::Data(wire::Write { sector, block_id: BlockId(7), seq: 1, flags: DpFlags::default(), digest, size })
}

fn payload(pool: &'static Pool, byte: u8, len: u32) -> Segments {
    let mut buf = pool.take(len as usize).unwrap();
    buf.bytes_mut().fill(byte);
    Segments::One(BufRef { id: buf.into_id().0, offset: 0, len })
}

#[test]
fn packets_and_payload_cross_in_order() {
    let (mut a, mut b) = connected();
    a.send(Socket::Data, protocol("sha1"), &Segments::None);
    let sizes = [512, 4096, 1024, STAGING as u32, 512];
    for (i, len) in sizes.into_iter().enumerate() {
        let data = payload(a.pool, i as u8, len);
        a.send(Socket::Data, write(len), &data);
        // The link has its own reference until it is sent.
        data.as_slice().iter().for_each(|p| drop(a.pool.reclaim(BufId(p.id))));
        b.send(Socket::Control, Packet::Ping, &Segments::None);
    }
    turn_until(&mut a, &mut b, "all came", |a, b| a.packets().len() == 1 + sizes.len() && b.packets().len() == 7);
    for (i, (socket, packet, payload)) in b.packets().into_iter().skip(2).enumerate() {
        let Packet::Data(write) = packet else { panic!("{packet:?}") };
        assert_eq!((socket, write.size.0, payload.len()), (Socket::Data, sizes[i].into(), sizes[i].into()));
        let buf = b.pool.share(BufId(payload.as_slice()[0].id));
        assert!(buf.bytes()[..sizes[i] as usize].iter().all(|byte| *byte == i as u8));
    }
    assert!(a.packets()[1..].iter().all(|p| (p.0, p.1) == (Socket::Control, &Packet::Ping)));
    turn_until(&mut a, &mut b, "the sender has its buffers back", |a, _| a.pool.in_use() == 2);
}

/// The peer's new algorithm counts from the packet on that names it; what is sent to the peer is not concerned.
#[test]
fn a_peer_may_change_its_integrity_algorithm() {
    let (mut a, mut b) = connected();
    a.send(Socket::Data, protocol("sha1"), &Segments::None);
    b.send(Socket::Data, protocol("sha1"), &Segments::None);
    let dialect = Dialect { version: Version::MAX_84, features: wire::Features::OF_84 };
    let changes = ["crc32c", "", "sha1"];
    a.send(Socket::Data, write(512), &payload(a.pool, 1, 512));
    for name in changes {
        let Packet::Protocol(changed) = protocol(name) else { panic!("parameters") };
        a.send(Socket::Data, Packet::ProtocolUpdate(changed), &Segments::None);
        a.links.set_dialect(node_id(1), dialect, Some(name));
        a.send(Socket::Data, write(512), &payload(a.pool, 1, 512));
        // What comes from the other side is checked as before.
        let Packet::Protocol(theirs) = protocol("sha1") else { panic!("parameters") };
        a.links.up(node_id(1)).unwrap().integrity.hears(&Packet::ProtocolUpdate(theirs));
    }
    b.send(Socket::Data, write(512), &payload(b.pool, 2, 512));
    let writes = |node: &Node| node.packets().iter().filter(|p| matches!(p.1, Packet::Data(_))).count();
    turn_until(&mut a, &mut b, "all came", |a, b| writes(b) == 1 + changes.len() && writes(a) == 1);
    assert!(!a.is_down() && !b.is_down());
}

#[test]
fn a_wrong_integrity_digest_ends_the_link() {
    let (mut a, mut b) = connected();
    a.send(Socket::Data, protocol("sha1"), &Segments::None);
    // The sender takes another algorithm of the same length for granted: none is, so the digest stays empty bytes.
    let dialect = Dialect { version: Version::MAX_84, features: wire::Features::OF_84 };
    a.links.set_dialect(node_id(1), dialect, None);
    let Packet::Data(mut forged) = write(512) else { panic!("a write") };
    forged.digest = wire::Digest::new(&[0x55; 20]).unwrap();
    a.send(Socket::Data, Packet::Data(forged), &payload(a.pool, 1, 512));
    turn_until(&mut a, &mut b, "the link is down", |_, b| b.is_down());
    let violation = |e: &LinkEvent| matches!(e, LinkEvent::Down { why: LinkDown::Violation, detail, .. } if detail.contains("digest"));
    assert!(b.seen.iter().any(violation), "{:?}", b.seen);
    turn_until(&mut a, &mut b, "the other side notices", |a, _| a.is_down());
}

#[test]
fn what_is_queued_leaves_before_the_link_closes() {
    let (mut a, mut b) = connected();
    a.send(Socket::Data, protocol(""), &Segments::None);
    a.links.close(&mut a.ring, node_id(1), sys::now());
    turn_until(&mut a, &mut b, "the last packet came", |_, b| b.packets().len() == 2);
    turn_until(&mut a, &mut b, "the end came", |_, b| b.is_down());
    assert!(!a.is_down(), "who closes is not told");
}

#[test]
fn garbage_instead_of_features_is_a_violation() {
    let (mut a, mut b) = connected();
    let garbage = a.links.up(node_id(1)).unwrap();
    garbage.data.outbox.message().copy(&[0xff; 64]);
    turn_until(&mut a, &mut b, "the link is down", |_, b| b.is_down());
    assert!(b.seen.iter().any(|e| matches!(e, LinkEvent::Down { why: LinkDown::Violation, .. })));
}

/// A kernel takes a connection that is still open for one that this node uses: it would drop what this node has chosen.
#[test]
fn what_comes_in_beside_the_last_first_packet_is_closed() {
    // Nobody is at the peer's port. This node has the greater one, and is done as soon as it has both.
    let here = free_address();
    let mut a = Node::new(here, std::net::SocketAddr::from(([127, 0, 0, 1], 1)), 1);
    a.links.connect(node_id(1), Instant(0), true);
    a.turn();
    let open = |declared: &[u8]| {
        let mut stream = TcpStream::connect(here).unwrap();
        stream.write_all(declared).unwrap();
        stream
    };
    let declaration = |low| [0x83, 0x74, 0x02, 0x67, 0xff, low, 0, 0];
    let _data = open(&declaration(0xf2));
    let mut meta = open(&[]);
    (0..4).for_each(|_| a.turn());
    meta.write_all(&declaration(0xf1)).unwrap();
    let mut late = open(&declaration(0xf1));
    (0..4).for_each(|_| a.turn());
    assert!(a.is_up());
    late.set_read_timeout(Some(std::time::Duration::from_secs(10))).unwrap();
    let end = late.read(&mut [0]);
    assert!(end.as_ref().is_ok_and(|n| *n == 0) || end.is_err_and(|e| e.kind() == std::io::ErrorKind::ConnectionReset));
}

/// One address for all peers, as in a mesh. The first peer is dead, and the second one only waits to be let in.
#[test]
fn peers_that_share_an_address_come_in_by_one_listener() {
    let at = |ip: [u8; 4]| std::net::SocketAddr::from((ip, free_address().port()));
    let (here, dead, there) = (at([127, 0, 0, 1]), at([127, 0, 0, 2]), at([127, 0, 0, 3]));
    let mut a = Node::new(here, dead, 1);
    let mut second = a.links.link(node_id(1)).unwrap().settings.clone();
    second.connector.peer = there;
    a.links.links.push(Link::new(node_id(2), second));
    let mut c = Node::new(there, here, 0);
    // Nothing comes to c: its own attempts have to get through.
    c.links.link(node_id(0)).unwrap().settings.connector.local = at([127, 0, 0, 3]);
    a.links.connect(node_id(1), sys::now(), true);
    a.links.connect(node_id(2), sys::now(), true);
    c.links.connect(node_id(0), sys::now(), true);
    for _ in 0..2000 {
        a.turn();
        c.turn();
        if a.is_up() && c.is_up() {
            break;
        }
    }
    assert!(matches!(a.seen[..], [.., LinkEvent::Up { peer, .. }] if peer == node_id(2)), "{:?}", a.seen);
    assert!(c.is_up());
    // The first one is still awaited.
    assert!(TcpStream::connect(here).is_ok());
    a.links.close(&mut a.ring, node_id(1), sys::now());
    a.turn();
    a.turn();
    assert!(TcpStream::connect(here).is_err(), "nobody is awaited");
}

/// All buffers that `node` can have.
fn all_buffers(node: &Node) -> Vec<crate::buffers::Buf> {
    std::iter::from_fn(|| node.pool.take(STAGING)).collect()
}

/// Those of the former streams may be with the kernel yet. The core knows of no link, and would wait for it for ever.
#[test]
fn a_node_without_buffers_for_the_streams_goes_on_trying() {
    let (x, y) = (free_address(), free_address());
    let (mut a, mut b) = (Node::new(x, y, 1), Node::new(y, x, 0));
    let taken = (all_buffers(&a), std::mem::take(&mut a.links.kept));
    a.links.connect(node_id(1), Instant(0), false);
    b.links.connect(node_id(0), Instant(0), false);
    let has_said = |e: &LinkEvent| matches!(e, LinkEvent::Log { text, .. } if text.contains("max-buffers"));
    turn_until(&mut a, &mut b, "there are none", |a, _| a.seen.iter().any(has_said));
    drop(taken);
    while !a.is_up() || !matches!(b.seen.last(), Some(LinkEvent::Up { .. })) {
        // As the core does when its link has gone down.
        b.links.connect(node_id(0), Instant(0), false);
        a.turn();
        b.turn();
    }
    assert!(!a.is_down(), "{:?}", a.seen);
}

/// Frozen requests are answered when the peer is there.
#[test]
fn applications_cannot_hold_all_buffers() {
    let (mut a, mut b) = connected();
    let taken = all_buffers(&a);
    for round in 1..4 {
        b.links.fail(node_id(0), LinkDown::Violation, "as a test".into());
        turn_until(&mut a, &mut b, "a notices", |a, _| a.is_down());
        a.seen.clear();
        b.seen.clear();
        a.links.connect(node_id(1), Instant(0), false);
        b.links.connect(node_id(0), Instant(0), false);
        turn_until(&mut a, &mut b, "both are up again", |a, b| a.is_up() && b.is_up());
        assert!(all_buffers(&a).is_empty() && !a.is_down(), "round {round}: {:?}", a.seen);
    }
    drop(taken);
}
