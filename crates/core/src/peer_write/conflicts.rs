//! Two Primaries write to the same blocks: what waits for what, and which write counts as the later one
//! (`docs/spec/data-path-and-resync.md` 3).

use crate::Resource;
use crate::connection::Connection;
use crate::decide::topic::Topic;
use crate::node::Node;
use crate::peer_write::held::change_of;
use crate::peer_write::write::PeerAction;
use crate::request::under_way::Request;
use crate::request::write::{Local, Write};
use crate::rows::hit;
use units::{NodeId, SectorRange, VolumeNr};
use wire::{BlockAck, DpFlags, Packet};

impl Resource {
    /// That number has not come for too long (`docs/spec/wire-protocol.md` 3.3).
    pub(crate) fn number_overdue(&mut self, peer: NodeId) {
        let next = self.node.connections[peer].held.waiting_for_number();
        if next.is_none_or(|(volume, packet)| !self.number_is_missing(peer, volume, packet)) {
            return; // it has come in this turn
        }
        let text = "a sequence number before that of a write did not come within ping-timeout".to_owned();
        self.out.protocol_error(peer, Topic::MissingNumber, text);
    }

    /// With two Primaries, the node that resolves conflicts first sees all that the peer sent before this write (an
    /// acknowledgement on the other stream may say that one of ours is settled), and lets its own disk have what it
    /// will say is the later write; the other node lets its own write settle
    /// (`docs/spec/data-path-and-resync.md` 3.1, 3.2).
    pub(super) fn must_wait_for_local(
        &self,
        peer: NodeId,
        volume: VolumeNr,
        range: Option<SectorRange>,
        seq: u32,
    ) -> bool {
        let c = &self.node.connections[peer];
        let both = c.cfg.two_primaries && self.node.state.is_primary();
        if !both || c.resolve_conflicts() {
            // Also what was begun before a demotion, and hangs: the disk may carry out the two in any order.
            let unwritten = |w: &Write| w.local() == Local::Pending;
            let lacks_number =
                both && self.node.connections[peer].peer_devices[volume].link.io.lacks_number_before(seq);
            let unwritten = range.is_some_and(|r| self.own_writes(volume, r).any(unwritten));
            if both && (lacks_number || unwritten) {
                hit("conflicts", || (if unwritten { "waits: own disk" } else { "waits: number" }).to_owned());
            }
            return lacks_number || unwritten;
        }
        let unsettled = range.is_some_and(|r| self.node.devices[volume].queue.writing.overlaps(r));
        if unsettled {
            hit("conflicts", || "waits: own writes".to_owned());
        }
        unsettled
    }

    /// Own writes to this range that have begun and are not complete.
    fn own_writes(&self, volume: VolumeNr, range: SectorRange) -> impl Iterator<Item = &Write> {
        let some = self.node.devices[volume].queue.writing.overlaps(range).then(|| self.requests.iter());
        some.into_iter().flatten().filter_map(move |(_, r)| match r {
            Request::Write(w) if w.device == volume && w.is_open() && w.range.overlaps(range) => Some(w),
            _ => None,
        })
    }

    /// A write of the other Primary that overlaps one of ours which is not settled: ours counts as the later one. A
    /// contained write is dropped, any other is to be repeated after ours. One that has not begun follows the peer's.
    /// A durable one is repeated unless ours is durable as well, and any if our own disk has refused ours.
    pub(super) fn lost_conflict(
        &self,
        peer: NodeId,
        volume: VolumeNr,
        action: PeerAction,
        range: SectorRange,
        flags: DpFlags,
    ) -> Option<fn(BlockAck) -> Packet> {
        if !self.resolves_conflicts(peer) {
            return None;
        }
        // What the peer has answered is older than what it has sent since, and may be waiting for a barrier only.
        // What is frozen is sent again when that ends, on this connection for the first time.
        let mut ours = self.own_writes(volume, range).filter(|w| w.legs.is_unanswered(peer)).peekable();
        ours.peek()?;
        let durable = flags.contains(DpFlags::FUA);
        let refused = |w: &Write| matches!(w.local(), Local::Failed(_));
        let contained = ours.any(|w| w.range.contains(range) && (w.fua || !durable) && !refused(w));
        self.note_conflict(volume, action, range, contained);
        Some(if contained { Packet::Superseded } else { Packet::RetryWrite })
    }

    /// Counts what was decided, and why.
    fn note_conflict(&self, volume: VolumeNr, action: PeerAction, range: SectorRange, superseded: bool) {
        let verdict = if superseded { "superseded" } else { "repeat" };
        hit("conflicts", || {
            let kind = format!("{action:?}");
            format!("{verdict} {}", kind.split(' ').next().unwrap_or_default())
        });
        if superseded {
            return;
        }
        hit("conflicts", || {
            let refused = |w: &Write| matches!(w.local(), Local::Failed(_));
            let why = match self.own_writes(volume, range).filter(|w| w.range.contains(range)).map(refused).min() {
                None => "in part",
                Some(false) => "durable",
                Some(true) => "refused",
            };
            format!("repeat: {why}")
        });
    }
}

impl Node {
    /// Two Primaries, and this node resolves conflicts: is a number before this write's missing?
    pub(super) fn number_is_missing(&self, peer: NodeId, volume: VolumeNr, packet: &Packet) -> bool {
        let Some((_, seq)) = change_of(packet) else { return false };
        let pd = self.connections[peer].peer_devices.get(volume);
        pd.is_some_and(|pd| self.resolves_conflicts(peer) && pd.link.io.lacks_number_before(seq))
    }

    /// Two Primaries, and this node resolves conflicts.
    fn resolves_conflicts(&self, peer: NodeId) -> bool {
        let c = &self.connections[peer];
        c.cfg.two_primaries && self.state.is_primary() && c.resolve_conflicts()
    }

    /// The other Primary's next write waits until ours to the same blocks are settled here. Ours that have not begun
    /// follow it: else it would wait for as long as there is something to write here.
    pub(crate) fn follows_waiting(&self, volume: VolumeNr, range: SectorRange) -> bool {
        let waits = |c: &Connection| {
            if !c.cfg.two_primaries || c.resolve_conflicts() {
                return false;
            }
            let theirs = c.held.first_about(volume).and_then(|next| change_of(next)?.0);
            theirs.is_some_and(|r| r.overlaps(range))
        };
        let follows = self.connections.values().any(waits);
        if follows {
            hit("conflicts", || "waits: the other's".to_owned());
        }
        follows
    }
}
