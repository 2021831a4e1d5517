//! From which port a node dials. Where several nodes have one address that does not tell whose a connection is, and of
//! the control stream nothing else does: its first packet is the same for all. So a node dials in 9's dialect from
//! ports that tell its id, which costs no byte of the protocol. A kernel's port tells nothing.

use crate::connector::Settings;
use crate::sys;
use std::io;
use std::net::{SocketAddr, TcpStream};
use std::os::fd::{BorrowedFd, OwnedFd};
use units::{Duration, Instant, NodeId};

/// As many as there are node ids.
const MARKS: u16 = 32;
/// So often another port is tried where one is taken.
const TRIES: u32 = 16;

/// Is it from such a port that this node dials? Not the lowest bit tells, as the kernel gives odd ports first.
pub(super) fn tells(port: u16, node: NodeId) -> bool {
    usize::from(port / 2 % MARKS) == node.index()
}

/// The port next to this one that tells that it is `node` who dials.
fn telling(port: u16, node: NodeId) -> u16 {
    port - port / 2 % MARKS * 2 + node.index() as u16 * 2
}

/// A socket to dial with, bound to a port of the address `own` that tells who dials. It is next to one that the kernel
/// hands out. Where no such port is free it tells nothing.
pub(super) fn dialing_socket(
    own: SocketAddr,
    node: Option<NodeId>,
    configure: impl Fn(BorrowedFd<'_>),
) -> io::Result<OwnedFd> {
    let at = |port| {
        let mut address = own;
        address.set_port(port);
        address
    };
    let Some(node) = node else { return sys::tcp_socket(&at(0), configure) };
    let bound = |port| sys::tcp_socket_alone(&at(port), &configure).map(TcpStream::from);
    let mut socket = bound(0)?;
    for _ in 0..TRIES {
        let drawn = socket.local_addr()?.port();
        if tells(drawn, node) {
            break;
        }
        match bound(telling(drawn, node)) {
            Ok(telling) => return Ok(telling.into()),
            Err(_) => socket = bound(0)?,
        }
    }
    Ok(socket.into())
}

/// Connections that may be a peer's, of which nothing tells whose they are.
#[derive(Default)]
pub(super) struct Untold {
    first_and_latest: Option<(Instant, Instant)>,
}

impl Untold {
    /// One came. Is it better left, as this node dials itself now? Only for some moments: the peer may not take what
    /// this node dials either. When for long none has come the next one is new.
    pub(super) fn is_left(&mut self, settings: &Settings, now: Instant) -> bool {
        let [moments, long] = [settings.ping_timeout, settings.connect_int].map(|d| Duration(d.0.saturating_mul(4)));
        let goes_on = self.first_and_latest.filter(|(_, latest)| now.since(*latest) < long);
        let first = goes_on.map_or(now, |(first, _)| first);
        self.first_and_latest = Some((first, now));
        now.since(first) < moments
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_tells_nothing_is_left_for_some_moments_and_again_after_long() {
        let settings = Settings {
            local: "10.0.0.1:7789".parse().unwrap(),
            peer: "10.0.0.2:7789".parse().unwrap(),
            connect_int: Duration::from_secs(10),
            ping_timeout: Duration::from_millis(500),
            sock_check_timeout: Duration(0),
        };
        let mut untold = Untold::default();
        let seconds = [(1, true), (2, true), (3, false), (20, false), (50, false), (90, true), (91, true), (92, false)];
        for (at, left) in seconds {
            assert_eq!(untold.is_left(&settings, Instant(at * 1_000_000_000)), left, "after {at} s");
        }
    }

    #[test]
    fn a_port_tells_one_node() {
        for (port, node) in [32768, 32769, 60999, 65535].into_iter().flat_map(|p| (0..32).map(move |n| (p, n))) {
            let node = NodeId::new(node).unwrap();
            let port = telling(port, node);
            assert!(
                (0..32).all(|n| tells(port, NodeId::new(n).unwrap()) == (usize::from(n) == node.index())),
                "{port}"
            );
        }
    }

    /// Also if ports that tell it are taken, by whomever.
    #[test]
    fn a_node_dials_from_ports_that_tell_its_id() {
        let (own, node) = (SocketAddr::from(([127, 0, 0, 9], 7788)), NodeId::new(31).unwrap());
        let dial = || TcpStream::from(dialing_socket(own, Some(node), |_| ()).unwrap());
        let sockets: Vec<TcpStream> = (0..100).map(|_| dial()).collect();
        let mut ports: Vec<u16> = sockets.iter().map(|s| s.local_addr().unwrap().port()).collect();
        assert!(ports.iter().all(|port| tells(*port, node)), "{ports:?}");
        ports.sort_unstable();
        ports.dedup();
        assert_eq!(ports.len(), 100);
    }
}
