//! The network between two nodes: connections of two streams each, whose directions are delivered independently.

use crate::payload::Payload;
use std::collections::VecDeque;
use units::{Instant, VolumeNr};
use wire::Packet;

/// Something on a stream.
#[derive(Clone, Debug)]
pub(crate) enum Item {
    Packet(VolumeNr, Packet, Payload),
    End,
}

/// One direction of one stream.
#[derive(Clone, Debug, Default)]
pub(crate) struct Stream {
    pub(crate) items: VecDeque<(Instant, Item)>,
    /// A delivery is scheduled.
    pub(crate) scheduled: bool,
    pub(crate) stalled: bool,
    /// The end of the stream has arrived.
    pub(crate) ended: bool,
}

/// One end of a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum End {
    /// The node will learn of it.
    Coming,
    Up,
    /// Closed by this node.
    Closed,
}

/// A connection; there is at most one at a time that is not closed on both ends.
#[derive(Clone, Debug)]
pub(crate) struct Connection {
    pub(crate) number: u64,
    pub(crate) ends: [End; 2],
    /// `[from][data = 0, control = 1]`.
    pub(crate) streams: [[Stream; 2]; 2],
    /// Which end has the RESOLVE-CONFLICTS flag.
    pub(crate) resolver: usize,
}

/// What one node wants of the other.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) enum Wish {
    #[default]
    Nothing,
    Connect(Instant),
    Connected(u64),
}

/// The network.
#[derive(Clone, Debug, Default)]
pub(crate) struct Net {
    pub(crate) connections: Vec<Connection>,
    pub(crate) wishes: [Wish; 2],
    /// `[from]`: nothing arrives from this node.
    pub(crate) cut: [bool; 2],
    pub(crate) last: u64,
    /// An attempt to connect is under way.
    pub(crate) opening: bool,
}

impl Net {
    /// What is on its way behind a narrow place has passed it.
    pub(crate) fn hurry(&mut self, now: Instant) {
        let streams = self.connections.iter_mut().flat_map(|connection| connection.streams.iter_mut().flatten());
        for (at, _) in streams.flat_map(|stream| stream.items.iter_mut()) {
            *at = (*at).min(now);
        }
    }

    pub(crate) fn get(&mut self, number: u64) -> Option<&mut Connection> {
        self.connections.iter_mut().find(|c| c.number == number)
    }

    /// Nothing is on its way.
    pub(crate) fn is_quiet(&self) -> bool {
        self.connections.iter().all(|c| c.streams.iter().flatten().all(|s| s.items.is_empty()))
    }

    /// Forgets connections that nobody has any more.
    pub(crate) fn forget_closed(&mut self) {
        self.connections.retain(|c| {
            c.ends.iter().enumerate().any(|(node, end)| {
                *end != End::Closed
                    || c.streams[node].iter().any(|s| !s.items.is_empty()) && c.ends[1 - node] != End::Closed
            })
        });
    }
}
