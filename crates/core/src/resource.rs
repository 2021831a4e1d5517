//! The resource: owner of devices and connections, dispatcher of inputs, queue of effects. It does nothing by itself;
//! the crate's head has the order of calls.

use crate::api::{
    BlockRequest, Command, DiskDone, DiskError, DiskOp, Effect, IoError, LinkDown, LinkUp, MetaDone, MetaOp, OpId,
    OpenedDisk, Openers, Segments,
};
use crate::command::again::wish::Again;
use crate::command::caller::Caller;
use crate::command::pending::Pending;
use crate::command::transaction::TransactionSlot;
use crate::command::two_phase::called_off::CalledOff;
use crate::config::ResourceConfig;
use crate::device::Device;
use crate::dialect9::in_sync::unsaid::Unsaid;
use crate::dialect9::positions::record::Positions;
use crate::dialect9::settle::settling::Settling;
use crate::node::Node;
use crate::op::Op;
use crate::outbox::Outbox;
use crate::peer_write::write::PeerWrite;
use crate::request::under_way::Request;
use crate::slab::Slab;
use crate::splitting::split::Split;
use crate::state::to_settle::ToSettle;
use crate::transfer_log::OwnEpoch;
use std::collections::VecDeque;
use std::ops::Deref;
use units::{Generation, Instant, NodeId, Rng, VolumeNr};
use wire::{Packet, Socket};

/// One resource on one node. See the crate's head for how to drive it.
#[derive(Debug)]
pub struct Resource {
    pub(crate) node: Node,
    pub(crate) out: Outbox,
    pub(crate) rng: Rng,
    /// What changes have brought with them.
    pub(crate) to_settle: VecDeque<ToSettle>,
    pub(crate) requests: Slab<Request>,
    /// Which of them are flushes.
    pub(crate) flushes: Vec<u64>,
    pub(crate) splits: Slab<Split>,
    pub(crate) peer_writes: Slab<PeerWrite>,
    pub(crate) ops: Slab<Op>,
    /// The present one of own writes (spec 1.9).
    pub(crate) epoch: OwnEpoch,
    pub(crate) starts: Counters,
    pub(crate) pending: Vec<Pending>,
    /// Commands that were not looked at yet.
    pub(crate) begun: Vec<Pending>,
    /// The change that other nodes must agree to, or this one.
    pub(crate) transaction: TransactionSlot,
    /// What survivors of a Primary have not agreed on.
    pub(crate) settling: Settling,
    pub(crate) called_off: CalledOff,
    /// Own writes that peers of 9's dialect wait for word of.
    pub(crate) positions: Positions,
    /// What they may have marked for each other, and need not have.
    pub(crate) unsaid: Unsaid,
    /// The wish to be Primary again, as before this process.
    pub(crate) again: Option<Again>,
    pub(crate) stopped: bool,
}

/// Where counters that wrap begin; for tests, which cannot wait for that.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counters {
    /// The first write epoch is the one behind this one.
    pub epoch: u32,
    /// The sequence numbers of each connection go on from here, on both nodes.
    pub sequence: u32,
    /// So many transactions of each activity log are left before its number is 0 again, in rounds of its ring; 0: it
    /// begins with 0.
    pub log_rounds: u32,
}

impl Deref for Resource {
    type Target = Node;

    fn deref(&self) -> &Node {
        &self.node
    }
}

impl Resource {
    /// A resource in its first state: Secondary, all volumes Diskless, all connections StandAlone. `seed` must come
    /// from a secure random source (data generations are drawn from it) except in simulations.
    #[must_use]
    pub fn new(cfg: ResourceConfig, seed: u64) -> Resource {
        Resource {
            node: Node::new(cfg),
            out: Outbox::new(),
            rng: Rng::new(seed),
            to_settle: VecDeque::new(),
            requests: Slab::default(),
            flushes: Vec::new(),
            splits: Slab::default(),
            peer_writes: Slab::default(),
            ops: Slab::default(),
            epoch: OwnEpoch::new(1),
            starts: Counters::default(),
            pending: Vec::new(),
            begun: Vec::new(),
            transaction: TransactionSlot::default(),
            settling: Settling::default(),
            called_off: CalledOff::default(),
            positions: Positions::default(),
            unsaid: Unsaid::default(),
            again: None,
            stopped: false,
        }
    }

    /// Counters begin here. Right after [`new`](Self::new).
    #[doc(hidden)]
    pub fn start_counters(&mut self, starts: Counters) {
        self.epoch = OwnEpoch::new(starts.epoch.wrapping_add(1));
        self.starts = starts;
    }

    // -- inputs ------------------------------------------------------------------------------------------------------

    /// A front end's request; it ends with [`Effect::Complete`].
    pub fn on_request(&mut self, now: Instant, request: BlockRequest) {
        self.at(now);
        self.accept(request);
        self.end_links();
    }

    /// Who has a volume's device open changed.
    pub fn on_openers(&mut self, now: Instant, volume: VolumeNr, openers: Openers) {
        self.begin(now);
        if self.node.devices.contains(volume) {
            self.node.devices[volume].openers = openers;
            if openers.writers == 0 {
                self.say_who_has_what();
            }
        }
        self.end_links();
    }

    /// Another resource's volume, which comes before `volume` by `resync-after`, began or ceased to hold its resync up:
    /// to sync, or to be paused itself.
    pub fn on_dependency(&mut self, now: Instant, volume: VolumeNr, waits: bool) {
        self.begin(now);
        if self.node.devices.contains(volume) {
            self.node.devices[volume].waits_elsewhere = waits;
        }
    }

    /// Both streams to `peer` are up.
    pub fn on_link_up(&mut self, now: Instant, peer: NodeId, link: LinkUp) {
        self.begin(now);
        if self.node.connections.contains(peer) {
            self.link_up(peer, link);
        }
        self.end_links();
    }

    /// The streams to `peer` are gone. Not called after [`Effect::CloseLink`].
    pub fn on_link_down(&mut self, now: Instant, peer: NodeId, why: LinkDown) {
        self.begin(now);
        if self.node.connections.contains(peer) {
            self.link_down(peer, why);
        }
        self.end_links();
    }

    /// A packet arrived, with its payload if it has one (which the core then owns).
    pub fn on_packet(
        &mut self,
        now: Instant,
        peer: NodeId,
        stream: Socket,
        volume: VolumeNr,
        packet: Packet,
        payload: Segments,
    ) {
        self.at(now);
        match self.node.connections.get_mut(peer).and_then(|c| c.hears(now)) {
            Some(phase) => self.packet(peer, (stream, phase), volume, packet, payload),
            None => self.out.release(payload),
        }
        self.end_links();
    }

    /// The answer to [`Effect::Hmac`]; `None` if the algorithm is not known or there is no secret.
    pub fn on_hmac(&mut self, now: Instant, peer: NodeId, token: u32, mac: Option<Vec<u8>>) {
        self.begin(now);
        if self.node.connections.contains(peer) {
            self.hmac_done(peer, token, mac);
        }
        self.end_links();
    }

    /// The answer to [`Effect::Digest`]: as many as there are pieces.
    pub fn on_digests(&mut self, now: Instant, op: OpId, digests: &[wire::Digest]) {
        self.begin(now);
        if let Some(Op::ResyncDigest { connection, device, key }) = self.ops.remove(op.0) {
            self.resync_digested(connection, device, key, digests);
        }
        self.end_links();
    }

    /// The answer to [`Effect::OpenDisk`]; the text says why it failed and what to do.
    pub fn on_disk_opened(&mut self, now: Instant, volume: VolumeNr, disk: Result<OpenedDisk, (i32, String)>) {
        self.begin(now);
        if self.node.devices.contains(volume) {
            self.disk_opened(volume, disk);
        }
        self.end_links();
    }

    /// An operation on the data area ended.
    pub fn on_disk_done(&mut self, now: Instant, done: DiskDone) {
        self.at(now);
        let Some(op) = self.ops.remove(done.op.0) else { return self.out.release(done.data) };
        self.out.chores.mark_unless(done.result.is_ok() && op.is_routine());
        let result = done.result.map_err(|e| match e {
            DiskError::Io => IoError::Io,
            DiskError::NoSpace => IoError::NoSpace,
            DiskError::NotSupported => IoError::NotSupported,
        });
        self.data_op_done(op, result, (done.data, done.zeroes));
        self.end_links();
    }

    /// An operation on the data area ended, or is given up.
    pub(crate) fn data_op_done(&mut self, op: Op, result: Result<(), IoError>, (data, zeroes): (Segments, bool)) {
        if let Some(volume) = self.written_device(&op)
            && let Some(b) = &mut self.node.devices[volume].backing
        {
            b.flushing.note_write();
        }
        match op {
            Op::LocalWrite(key) => {
                if let Some(b) = self.lower_ended(key).and_then(|dev| dev.backing.as_mut()) {
                    b.flushing.note_write();
                }
                self.local_write_done(key, result);
            }
            Op::LocalRead(key) => {
                self.lower_ended(key);
                self.local_read_done(key, result);
            }
            Op::LocalFlush(key) => {
                self.lower_ended(key);
                self.local_flush_done(key, result);
            }
            Op::PeerWrite(key) => self.peer_write_done(key, result),
            Op::PeerRead { connection, device, request, session } => {
                self.peer_read_done(connection, device, request, session, result, data);
            }
            Op::ResyncRead { connection, device, key } => {
                self.resync_read_done(connection, device, key, result, (data, zeroes));
            }
            Op::ResyncWrite { connection, device, key } => self.resync_write_done(connection, device, key, result),
            Op::EpochFlush { connection, device, session, mark } => {
                if let (Ok(()), Some(b)) = (result, &mut self.node.devices[device].backing) {
                    b.flushing.note_flushed(mark);
                }
                self.epoch_flush_done(connection, device, session, result)
            }
            Op::LossFlush { lost, device, since, mark } => {
                if let (Ok(()), Some(b)) = (result, &mut self.node.devices[device].backing) {
                    b.flushing.note_flushed(mark);
                }
                self.lost_writes_flushed(lost, device, since, result);
            }
            Op::ResyncDigest { .. }
            | Op::AlBlock(_)
            | Op::BitmapPage(..)
            | Op::Superblock(_)
            | Op::Attach(_)
            | Op::LogReset(_) => {
                debug_assert!(data.is_empty(), "not an operation on data");
            }
        }
    }

    /// An operation on metadata ended.
    pub fn on_meta_done(&mut self, now: Instant, done: MetaDone) {
        self.begin(now);
        let Some(op) = self.ops.remove(done.op.0) else { return };
        if let Op::AlBlock(volume)
        | Op::BitmapPage(volume, _)
        | Op::Superblock(volume)
        | Op::Attach(volume)
        | Op::LogReset(volume) = op
        {
            self.node.devices[volume].disk.meta_pending -= 1;
            self.node.devices[volume].disk.meta_since = now;
        }
        match op {
            Op::AlBlock(volume) => self.al_block_done(volume, done.result.map(drop)),
            Op::BitmapPage(volume, page) => self.bitmap_page_done(volume, page, done.result.map(drop)),
            Op::Superblock(volume) => self.superblock_done(volume, done.result.map(drop)),
            Op::Attach(volume) => self.attach_step_done(volume, done.result),
            Op::LogReset(volume) => self.log_reset_done(volume, done.result.map(drop)),
            _ => unreachable!("not an operation on metadata"),
        }
        self.end_links();
    }

    /// A handler ended with this exit status (0 also if it could not be run).
    pub fn on_handler_exit(&mut self, now: Instant, id: u64, status: i32) {
        self.begin(now);
        if let Some(call) = self.out.handlers.remove(&id) {
            self.handler_exit(id, &call, status);
        }
        self.end_links();
    }

    /// An administrator's command; it ends with [`Effect::CommandDone`].
    pub fn on_command(&mut self, now: Instant, id: u64, command: Command) {
        self.begin(now);
        self.command(Caller::Owner(id), command);
        self.end_links();
    }

    /// Time passed: at least whatever [`poll_timeout`](Self::poll_timeout) named.
    pub fn on_time(&mut self, now: Instant) {
        self.at(now);
        self.check_timers();
    }

    /// All inputs of this turn are in: starts what can be batched. Call once a turn, before draining effects.
    pub fn on_turn_end(&mut self, now: Instant) {
        self.at(now);
        for peer in self.node.connections.ids() {
            if !self.node.connections[peer].held.is_empty() {
                self.pump_peer(peer);
            }
        }
        for volume in self.node.devices.ids() {
            self.pump_requests(volume);
            self.end_links();
        }
        self.send_late_barriers();
        self.end_links();
        self.pump_begun();
        self.keep_house();
        if cfg!(debug_assertions) {
            self.audit();
        }
    }

    // -- outputs -----------------------------------------------------------------------------------------------------

    /// The next thing to do, in order.
    pub fn poll_effect(&mut self) -> Option<Effect> {
        self.out.effects.pop_front()
    }

    /// When [`on_time`](Self::on_time) wants to be called at the latest.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.next_timer()
    }

    // -- inside ------------------------------------------------------------------------------------------------------

    /// Time has come so far.
    fn at(&mut self, now: Instant) {
        (self.node.now, self.out.now) = (now, now);
    }

    /// Takes in something that is no routine.
    fn begin(&mut self, now: Instant) {
        self.at(now);
        self.out.chores.mark();
    }

    pub(crate) fn disk(&mut self, volume: VolumeNr, op: Op, action: DiskOp) {
        self.mark_for_strangers(volume, &action);
        if matches!(op, Op::LocalRead(_) | Op::LocalWrite(_) | Op::LocalFlush(_)) {
            self.node.devices[volume].disk.local_pending += 1;
        }
        let op = OpId(self.ops.insert(op));
        self.out.emit(Effect::Disk { op, volume, action });
    }

    pub(crate) fn meta(&mut self, volume: VolumeNr, op: Op, action: MetaOp) {
        let dev = &mut self.node.devices[volume];
        if dev.disk.meta_pending == 0 {
            dev.disk.meta_since = self.node.now;
        }
        dev.disk.meta_pending += 1;
        let op = OpId(self.ops.insert(op));
        self.out.emit(Effect::Meta { op, volume, action });
    }

    /// The device that a write of another node was for.
    fn written_device(&self, op: &Op) -> Option<VolumeNr> {
        match op {
            // What is durable at once needs no flush.
            Op::PeerWrite(key) => self.peer_writes.get(*key).filter(|w| !w.is_durable()).map(|w| w.device),
            Op::ResyncWrite { device, .. } => Some(*device),
            _ => None,
        }
    }

    /// The own disk is done with a request of this device.
    fn lower_ended(&mut self, key: u64) -> Option<&mut Device> {
        let dev = &mut self.node.devices[self.requests.get(key)?.device()];
        dev.disk.local_pending -= 1;
        Some(dev)
    }

    /// A fresh generation, never one of the reserved values.
    pub(crate) fn draw_generation(&mut self) -> Generation {
        loop {
            let g = Generation(self.rng.next_u64()).with_primary_bit(self.node.state.is_primary());
            if g.base().0 > 4 {
                return g;
            }
        }
    }
}

impl Node {
    /// How many payload bytes of `peer` wait here to be processed: the caller stops reading the data stream while this
    /// is above what it is willing to hold.
    #[must_use]
    pub fn held_back(&self, peer: NodeId) -> u64 {
        self.connections.get(peer).map_or(0, |c| c.held.bytes())
    }
}
