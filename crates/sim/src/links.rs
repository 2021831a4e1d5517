//! Packets and connections on their way through the network.

use crate::cluster::{Cluster, Event, Input};
use crate::net::{Connection, End, Item, Stream, Wish, pair};
use crate::payload::Payload;
use crate::plan::others;
use units::{Duration, Instant, VolumeNr};
use urbd_core::{LinkDown, LinkUp};
use wire::{Packet, Socket};

/// How long after the end of one stream the other one is listened to.
const LAST_WORDS: Duration = Duration::from_millis(100);
/// Opening a connection takes up to this long.
const OPENING: Duration = Duration::from_millis(30);

impl Cluster {
    pub(crate) fn send(
        &mut self,
        n: usize,
        peer: usize,
        stream: Socket,
        volume: VolumeNr,
        packet: Packet,
        mut payload: Payload,
    ) -> Result<(), String> {
        let Wish::Connected(number) = self.net.wishes[n][peer] else { return Ok(()) };
        self.packets += u64::from(!matches!(packet, Packet::Ping | Packet::PingAck));
        let range = match &packet {
            Packet::Data(w) => units::SectorRange::new(w.sector, w.size),
            Packet::Trim(w) | Packet::Zeroes(w) => units::SectorRange::new(w.sector, w.size),
            _ => None,
        };
        self.note_sent((n, peer), usize::from(volume.0), &packet, &payload, number)?;
        if let Packet::OutOfSync(told) = &packet
            && let Some(range) = told.range()
        {
            let about =
                |r: &&mut crate::cluster::Request| r.volume == usize::from(volume.0) && r.written.range.overlaps(range);
            self.nodes[n].requests.values_mut().filter(about).for_each(|r| r.told[peer] = true);
        }
        if let Some(range) = range {
            self.mirrored((n, peer), usize::from(volume.0), range, &payload, number);
        }
        let which = usize::from(stream == Socket::Control);
        let (volume, packet) = self.encoded((n, peer), stream, volume, packet, &payload)?;
        self.damage_now_and_then(&packet, &mut payload);
        self.enqueue(number, n, which, Item::Packet(volume, packet, payload));
        Ok(())
    }

    fn enqueue(&mut self, number: u64, from: usize, which: usize, item: Item) {
        let drawn = &self.setup.drawn;
        let far = self.net.get(number).map_or(Duration(0), |c| drawn.far[from][c.other(from)]);
        let delay = self.delay(Duration(self.setup.latency.1.0 + drawn.slower[from].1.0 + far.0));
        let (now, bandwidth) = (self.now, self.setup.drawn.bandwidth);
        let Some(connection) = self.net.get(number) else { return };
        let side = connection.side(from);
        let stream = &mut connection.streams[side][which];
        let at = match (&item, stream.items.back()) {
            // It leaves when all before it has left.
            (Item::Packet(_, packet, payload), last) if bandwidth > 0 => {
                let bytes = 16 + payload.sectors() * 512 + 16 * u64::from(matches!(packet, Packet::Data(_)));
                last.map_or(now + delay, |(last, _)| (*last).max(now)) + Duration(bytes * 1_000_000_000 / bandwidth)
            }
            (_, last) => last.map_or(now + delay, |(last, _)| (now + delay).max(*last)),
        };
        stream.items.push_back((at, item));
        self.schedule_stream(number, from, which);
    }

    fn schedule_stream(&mut self, number: u64, from: usize, which: usize) {
        let now = self.now;
        let Some((from_side, to)) = self.net.get(number).map(|c| (c.side(from), c.other(from))) else { return };
        let cut = self.net.cut[from][to];
        let stream = &mut self.net.get(number).expect("just seen").streams[from_side][which];
        if stream.scheduled || cut || stream.stalled {
            return;
        }
        if let Some((at, _)) = stream.items.front() {
            let at = (*at).max(now);
            stream.scheduled = true;
            self.at(at, Event::Stream(number, from, which));
        }
    }

    /// A stream's first item arrives.
    pub(crate) fn deliver(&mut self, number: u64, from: usize, which: usize) {
        let Some((side, to)) = self.net.get(number).map(|c| (c.side(from), c.other(from))) else { return };
        let cut = self.net.cut[from][to];
        let connection = self.net.get(number).expect("just seen");
        let open = connection.ends[1 - side];
        let stream = &mut connection.streams[side][which];
        stream.scheduled = false;
        if cut || stream.stalled {
            return;
        }
        if open == End::Coming {
            // The other end is not told yet: nothing is read from its sockets.
            stream.scheduled = true;
            return self.at(self.now + Duration(1_000_000), Event::Stream(number, from, which));
        }
        let Some((_, item)) = stream.items.pop_front() else { return };
        match item {
            _ if open == End::Closed => {}
            Item::Packet(volume, packet, payload) => {
                let socket = if which == 0 { Socket::Data } else { Socket::Control };
                if !self.is_refused(number, to, &packet, &payload) {
                    self.nodes[to].inbox.push_back(Input::Packet(from, number, socket, volume, packet, payload));
                    self.wake(to);
                }
            }
            Item::End => {
                stream.ended = true;
                let both = connection.streams[side].iter().all(|s| s.ended);
                let wait = if both { Duration(0) } else { LAST_WORDS };
                self.at(self.now + wait, Event::LastWords(number, to));
            }
        }
        self.schedule_stream(number, from, which);
        self.net.forget_closed();
    }

    pub(crate) fn wish_to_connect(&mut self, n: usize, peer: usize, not_before: Instant) {
        self.net.wishes[n][peer] = Wish::Connect(not_before);
        self.seek(pair(n, peer), not_before);
    }

    /// These nodes may find each other soon.
    pub(crate) fn seek(&mut self, nodes: [usize; 2], not_before: Instant) {
        if self.net.opening.insert(nodes) {
            let wait = self.delay(OPENING);
            self.at(not_before.max(self.now) + wait, Event::Meet(nodes));
        }
    }

    pub(crate) fn meet(&mut self, nodes: [usize; 2]) {
        self.net.opening.remove(&nodes);
        let mut latest = self.now;
        let [a, b] = nodes;
        for (n, peer) in [(a, b), (b, a)] {
            match self.net.wishes[n][peer] {
                Wish::Connect(at) => latest = latest.max(at),
                _ => return,
            }
        }
        let reachable = !self.net.cut[a][b] && !self.net.cut[b][a] && !self.nodes[a].paused && !self.nodes[b].paused;
        if !reachable {
            // Whoever mends it makes them seek again.
            return;
        }
        if latest > self.now {
            return self.seek(nodes, latest);
        }
        self.net.last += 1;
        let number = self.net.last;
        let resolver = nodes[self.rng.below(2) as usize];
        let streams = [[Stream::default(), Stream::default()], [Stream::default(), Stream::default()]];
        self.net.connections.push(Connection { number, nodes, ends: [End::Coming; 2], streams, resolver });
        for (n, peer) in [(a, b), (b, a)] {
            self.net.wishes[n][peer] = Wish::Connected(number);
            self.after(OPENING, Event::Established(number, n));
        }
    }

    pub(crate) fn established(&mut self, number: u64, n: usize) {
        let Some(connection) = self.net.get(number) else { return };
        let (side, peer) = (connection.side(n), connection.other(n));
        if connection.ends[side] != End::Coming {
            return;
        }
        connection.ends[side] = End::Up;
        let resolve_conflicts = connection.resolver == n;
        let mut challenge = [0; 64];
        challenge.fill_with(|| self.rng.below(256) as u8);
        self.nodes[n].inbox.push_back(Input::LinkUp(peer, number, LinkUp { resolve_conflicts, challenge }));
        self.wake(n);
    }

    /// A node closes its end: what it sent still arrives, and then (unless the machine is dead) the end.
    pub(crate) fn close_link(&mut self, n: usize, peer: usize, told: bool) {
        let wish = std::mem::take(&mut self.net.wishes[n][peer]);
        let Wish::Connected(number) = wish else { return };
        self.parted(n, peer, number);
        if let Some(connection) = self.net.get(number) {
            let side = connection.side(n);
            connection.ends[side] = End::Closed;
        }
        if told {
            self.end_streams(number, n);
        }
        self.net.forget_closed();
    }

    pub(crate) fn end_streams(&mut self, number: u64, from: usize) {
        for which in 0..2 {
            self.enqueue(number, from, which, Item::End);
        }
    }

    /// The link is down for this end, unless it is another one already.
    pub(crate) fn link_ended(&mut self, number: u64, n: usize) {
        let Some(connection) = self.net.get(number) else { return };
        let (side, peer) = (connection.side(n), connection.other(n));
        if connection.ends[side] != End::Up || self.net.wishes[n][peer] != Wish::Connected(number) {
            return;
        }
        let connection = self.net.get(number).expect("just seen");
        connection.ends[side] = End::Closed;
        self.nodes[n].inbox.push_back(Input::LinkDown(peer, number, LinkDown::Closed));
        self.wake(n);
        self.net.forget_closed();
    }

    /// The TCP connections end for both.
    pub(crate) fn reset_links(&mut self, which: impl Fn(&Connection) -> bool) {
        let reset = self.net.connections.iter().filter(|c| which(c)).map(|c| (c.number, c.nodes));
        for (number, nodes) in reset.collect::<Vec<_>>() {
            for n in nodes {
                let wait = self.delay(Duration::from_millis(20));
                self.at(self.now + wait, Event::LastWords(number, n));
            }
        }
    }

    /// What a node sends arrives everywhere again.
    pub(crate) fn heal(&mut self, from: usize) {
        self.net.cut[from].fill(false);
        (0..2).for_each(|which| self.let_flow(from, which));
        others(from, self.nodes.len()).for_each(|to| self.seek(pair(from, to), self.now));
    }

    /// What a node sends arrives at this one again.
    pub(crate) fn heal_link(&mut self, from: usize, to: usize) {
        self.net.cut[from][to] = false;
        (0..2).for_each(|which| self.let_flow(from, which));
        self.seek(pair(from, to), self.now);
    }

    /// A stream of a node goes on.
    pub(crate) fn let_flow(&mut self, from: usize, which: usize) {
        let flowing = |c: &mut Connection| {
            let side = c.side(from);
            c.streams[side][which].stalled = false;
            c.number
        };
        let of_node = self.net.connections.iter_mut().filter(|c| c.nodes.contains(&from));
        let numbers: Vec<u64> = of_node.map(flowing).collect();
        numbers.into_iter().for_each(|number| self.schedule_stream(number, from, which));
    }
}
