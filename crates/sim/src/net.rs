//! The network between all nodes: connections of two streams each, whose directions are delivered independently.

use crate::payload::Payload;
use std::collections::{BTreeSet, VecDeque};
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

/// A connection; each pair of nodes has at most one at a time that is not closed on both ends. What a node has of it is
/// at the place that [`Connection::side`] names.
#[derive(Clone, Debug)]
pub(crate) struct Connection {
    pub(crate) number: u64,
    /// Whose it is, the lower one first.
    pub(crate) nodes: [usize; 2],
    pub(crate) ends: [End; 2],
    /// `[from][data = 0, control = 1]`.
    pub(crate) streams: [[Stream; 2]; 2],
    /// Which node has the RESOLVE-CONFLICTS flag.
    pub(crate) resolver: usize,
}

/// What one node wants of another one.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) enum Wish {
    #[default]
    Nothing,
    Connect(Instant),
    Connected(u64),
}

/// The network.
#[derive(Clone, Debug)]
pub(crate) struct Net {
    pub(crate) connections: Vec<Connection>,
    /// `[node][peer]`.
    pub(crate) wishes: Vec<Vec<Wish>>,
    /// `[from][to]`: nothing from this node arrives there.
    pub(crate) cut: Vec<Vec<bool>>,
    pub(crate) last: u64,
    /// Pairs that attempt to connect, the lower one first.
    pub(crate) opening: BTreeSet<[usize; 2]>,
}

/// Two nodes, the lower one first.
pub(crate) fn pair(a: usize, b: usize) -> [usize; 2] {
    [a.min(b), a.max(b)]
}

impl Connection {
    /// Where in `ends` and `streams` this node's are.
    pub(crate) fn side(&self, node: usize) -> usize {
        usize::from(node == self.nodes[1])
    }

    /// The node at the other end.
    pub(crate) fn other(&self, node: usize) -> usize {
        self.nodes[1 - self.side(node)]
    }

    pub(crate) fn joins(&self, pair: [usize; 2]) -> bool {
        self.nodes == pair
    }
}

impl Net {
    pub(crate) fn new(nodes: usize) -> Net {
        Net {
            connections: Vec::new(),
            wishes: vec![vec![Wish::Nothing; nodes]; nodes],
            cut: vec![vec![false; nodes]; nodes],
            last: 0,
            opening: BTreeSet::new(),
        }
    }

    /// Is any direction cut?
    pub(crate) fn is_cut(&self) -> bool {
        self.cut.iter().flatten().any(|cut| *cut)
    }

    /// What a node sends to these peers on that stream stays on its way.
    pub(crate) fn stall(&mut self, n: usize, which: usize, to: impl Fn(usize) -> bool) {
        for c in self.connections.iter_mut().filter(|c| c.nodes.contains(&n) && to(c.other(n))) {
            let side = c.side(n);
            c.streams[side][which].stalled = true;
        }
    }

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

    /// Does this node have its end of a connection?
    pub(crate) fn is_up_at(&self, number: u64, node: usize) -> bool {
        self.connections.iter().any(|c| c.number == number && c.ends[c.side(node)] == End::Up)
    }

    /// Nothing is on its way to a node on this connection.
    pub(crate) fn has_arrived(&self, number: u64, to: usize) -> bool {
        let of = self.connections.iter().filter(|c| c.number == number);
        of.flat_map(|c| &c.streams[1 - c.side(to)]).all(|stream| stream.items.is_empty())
    }

    /// Nothing is on its way.
    pub(crate) fn is_quiet(&self) -> bool {
        self.connections.iter().all(|c| c.streams.iter().flatten().all(|s| s.items.is_empty()))
    }

    /// Forgets connections that nobody has any more.
    pub(crate) fn forget_closed(&mut self) {
        self.connections.retain(|c| {
            c.ends.iter().enumerate().any(|(side, end)| {
                *end != End::Closed
                    || c.streams[side].iter().any(|s| !s.items.is_empty()) && c.ends[1 - side] != End::Closed
            })
        });
    }
}
