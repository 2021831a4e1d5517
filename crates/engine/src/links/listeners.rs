//! Where the peers' connections come in: one listener for each local address. Peers may share an address, as they do
//! in a `connection-mesh` with one address for each host; whose connection it is says the address that it comes from,
//! and where several peers have that the port (`marks.rs`).

use super::LinkSettings;
use super::opening::configure;
use crate::connector::SocketId;
use crate::ring::{Done, Fd, Op, OpId, Ring};
use crate::sys;
use crate::token::Token;
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;

/// All listeners. No two have the same address.
#[derive(Default)]
pub(super) struct Listeners {
    all: Vec<Listener>,
}

struct Listener {
    name: SocketId,
    local: SocketAddr,
    /// The operation owns the socket.
    accept: OpId,
}

impl Listeners {
    /// Listens on the address of a peer's settings, if nobody does it yet; a new listener has a name of its own.
    ///
    /// # Errors
    /// Why it is not possible.
    pub(super) fn listen(
        &mut self,
        ring: &mut Ring<Token>,
        settings: &LinkSettings,
        next_socket: &mut u32,
    ) -> io::Result<()> {
        let local = settings.connector.local;
        if self.all.iter().any(|listener| listener.local == local) {
            return Ok(());
        }
        let socket = sys::tcp_socket(&local, |fd| configure(fd, settings))?;
        sys::listen(&socket, 64)?;
        *next_socket += 1;
        let name = SocketId(*next_socket);
        let accept = ring.push(Op::Accept { fd: Rc::new(socket) }, Token::Listen(name));
        self.all.push(Listener { name, local, accept });
        Ok(())
    }

    /// Ends those whose address nobody wants any more: who tries to connect there is refused by the kernel.
    pub(super) fn retain(&mut self, ring: &mut Ring<Token>, wanted: impl Fn(SocketAddr) -> bool) {
        self.all.retain(|listener| {
            let stays = wanted(listener.local);
            if !stays {
                ring.cancel(listener.accept);
            }
            stays
        });
    }

    /// What a listener has let in, and on which address. `None`: nothing, perhaps because it has ended.
    pub(super) fn accepted(
        &mut self,
        ring: &mut Ring<Token>,
        name: SocketId,
        mut done: Done<Token>,
    ) -> Option<(SocketAddr, Fd)> {
        let Some(at) = self.all.iter().position(|listener| listener.name == name) else {
            // The kernel may have had this to report when the operation was to be cancelled.
            ring.cancel(done.id);
            return None;
        };
        match done.accepted() {
            Ok(fd) => Some((self.all[at].local, Rc::new(fd))),
            Err(_) => {
                if done.op.is_some() {
                    self.all.remove(at);
                }
                None
            }
        }
    }
}
