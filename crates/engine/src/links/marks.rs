//! From which port a node dials. Where several nodes have one address that does not tell whose a connection is, and of
//! the control stream nothing else does: its first packet is the same for all. So a node dials in 9's dialect from
//! ports that tell its id, which costs no byte of the protocol. A kernel's port tells nothing.

use crate::sys;
use std::io;
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::os::fd::{OwnedFd, RawFd};
use units::NodeId;

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

/// A socket to dial with, bound to a port of `ip` that tells who dials. It is next to one that the kernel hands out.
/// Where no such port is free it tells nothing.
pub(super) fn dialing_socket(ip: IpAddr, node: Option<NodeId>, configure: impl Fn(RawFd)) -> io::Result<OwnedFd> {
    let Some(node) = node else { return sys::tcp_socket(&SocketAddr::new(ip, 0), configure) };
    let bound = |port| sys::tcp_socket_alone(&SocketAddr::new(ip, port), &configure).map(TcpStream::from);
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

#[cfg(test)]
mod tests {
    use super::*;

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
        let (ip, node) = (IpAddr::from([127, 0, 0, 9]), NodeId::new(31).unwrap());
        let dial = || TcpStream::from(dialing_socket(ip, Some(node), |_| ()).unwrap());
        let sockets: Vec<TcpStream> = (0..100).map(|_| dial()).collect();
        let mut ports: Vec<u16> = sockets.iter().map(|s| s.local_addr().unwrap().port()).collect();
        assert!(ports.iter().all(|port| tells(*port, node)), "{ports:?}");
        ports.sort_unstable();
        ports.dedup();
        assert_eq!(ports.len(), 100);
    }
}
