//! What a node draws at random has no meaning but to be the same again: the values of a recording and those of the core
//! in its place are bound to each other when they are first used.

use std::collections::BTreeMap;
use units::Generation;
use wire::{BarrierNr, BlockAck, BlockId, CurrentUuid, Dagtag, Packet, PeerAck, Uuids110};

/// Values of the recording, and what the core has in their place.
#[derive(Default, Debug)]
pub(crate) struct Bound {
    transactions: BTreeMap<u32, u32>,
    generations: BTreeMap<Generation, Generation>,
    /// What a slot counts from, with its lowest bit.
    slots: BTreeMap<Generation, Generation>,
    blocks: BTreeMap<BlockId, BlockId>,
    barriers: BTreeMap<u32, u32>,
    numbers: BTreeMap<u32, u32>,
    /// What is to be added to a position of the recorded node's writes.
    positions: Option<u64>,
}

impl Bound {
    /// The core has said `ours` where the recorded node has said `theirs`: its drawn values are bound, unless they are
    /// already. Returns what the node would have said with the core's values.
    pub(crate) fn unify(&mut self, theirs: &Packet, ours: &Packet) -> Packet {
        match (theirs, ours) {
            (Packet::TwopcPrepare(a), Packet::TwopcPrepare(b)) => {
                self.transactions.entry(a.transaction.tid).or_insert(b.transaction.tid);
            }
            (Packet::TwopcPrepRsz(a), Packet::TwopcPrepRsz(b)) => {
                self.transactions.entry(a.transaction.tid).or_insert(b.transaction.tid);
            }
            (Packet::Uuids110(a), Packet::Uuids110(b)) => {
                self.bind(a.current, b.current);
                for (theirs, ours) in a.bitmaps.iter().zip(&b.bitmaps).filter(|(a, b)| !a.is_none() && !b.is_none()) {
                    self.slots.entry(*theirs).or_insert(*ours);
                }
            }
            (Packet::CurrentUuid(a), Packet::CurrentUuid(b)) => self.bind(a.current, b.current),
            (Packet::Data(a), Packet::Data(b)) => {
                // A kernel uses one again when it is free.
                self.blocks.insert(a.block_id, b.block_id);
                self.numbers.entry(a.seq).or_insert(b.seq);
            }
            (Packet::Trim(a), Packet::Trim(b)) | (Packet::Zeroes(a), Packet::Zeroes(b)) => {
                // A kernel uses one again when it is free.
                self.blocks.insert(a.block_id, b.block_id);
                self.numbers.entry(a.seq).or_insert(b.seq);
            }
            (Packet::DataRequest(a), Packet::DataRequest(b)) => {
                self.blocks.insert(a.block_id, b.block_id);
            }
            (Packet::Dagtag(a), Packet::Dagtag(b)) => {
                self.positions.get_or_insert(b.0.wrapping_sub(a.0));
            }
            (Packet::PeerAck(a), Packet::PeerAck(b)) => {
                self.positions.get_or_insert(b.dagtag.0.wrapping_sub(a.dagtag.0));
            }
            (Packet::Barrier(a), Packet::Barrier(b)) => {
                self.barriers.entry(a.0).or_insert(b.0);
            }
            _ => {}
        }
        self.translate_own(theirs)
    }

    /// A generation that the recorded node has drawn itself is any for the core; one that it was told is that one.
    fn bind(&mut self, theirs: Generation, ours: Generation) {
        let known = self.generations.values().any(|known| known.same(ours));
        if !known && !theirs.same(Generation::JUST_CREATED) {
            self.generations.entry(theirs.base()).or_insert(ours.base());
        }
    }

    /// Both are of this generation at the beginning.
    pub(crate) fn begin_with(&mut self, theirs: Generation, ours: Generation) {
        self.generations.insert(theirs.base(), ours.base());
    }

    /// The peer has drawn this one.
    pub(crate) fn learn(&mut self, packet: &Packet) {
        if let Packet::Uuids110(u) = packet {
            for g in u.bitmaps.iter().chain(&u.history).chain([&u.current]) {
                if self.slots.keys().any(|known| known.same(*g)) {
                    continue;
                }
                self.generations.entry(g.base()).or_insert(g.base());
            }
        }
    }

    fn generation(&self, g: Generation) -> Generation {
        // The peer may go back to what a slot counts from.
        let slot = || self.slots.iter().find(|(theirs, _)| theirs.same(g)).map(|(_, ours)| ours.base());
        let base = self.generations.get(&g.base()).copied().or_else(slot).unwrap_or(g.base());
        Generation(base.0 | (g.0 & 1))
    }

    fn tid(&self, tid: u32) -> u32 {
        self.transactions.get(&tid).copied().unwrap_or(tid)
    }

    /// What the recording says, with the core's values in the place of those that it draws.
    pub(crate) fn translate(&self, packet: &Packet) -> Packet {
        let mut packet = packet.clone();
        match &mut packet {
            Packet::TwopcPrepare(p) => p.transaction.tid = self.tid(p.transaction.tid),
            Packet::TwopcPrepRsz(p) => p.transaction.tid = self.tid(p.transaction.tid),
            Packet::TwopcCommit(p) | Packet::TwopcAbort(p) => p.transaction.tid = self.tid(p.transaction.tid),
            Packet::TwopcYes(v) | Packet::TwopcNo(v) | Packet::TwopcRetry(v) => v.tid = self.tid(v.tid),
            Packet::Uuids110(u) => self.translate_uuids(u),
            Packet::CurrentUuid(CurrentUuid { current, .. }) => *current = self.generation(*current),
            Packet::Data(w) => (w.block_id, w.seq) = (self.block(w.block_id), self.number(w.seq)),
            Packet::Trim(w) | Packet::Zeroes(w) => {
                (w.block_id, w.seq) = (self.block(w.block_id), self.number(w.seq));
            }
            Packet::DataRequest(r) => r.block_id = self.block(r.block_id),
            Packet::DataReply(r) => r.block_id = self.block(r.block_id),
            Packet::NegDreply(ack) => ack.block_id = self.block(ack.block_id),
            Packet::Barrier(BarrierNr(n)) => *n = self.barriers.get(n).copied().unwrap_or(*n),
            Packet::BarrierAck(ack) => {
                ack.barrier.0 = self.barriers.get(&ack.barrier.0).copied().unwrap_or(ack.barrier.0)
            }
            Packet::RecvAck(ack) | Packet::WriteAck(ack) | Packet::NegAck(ack) | Packet::WriteAckInSync(ack) => {
                let BlockAck { block_id, seq, .. } = ack;
                (*block_id, *seq) = (self.block(*block_id), self.number(*seq));
            }
            _ => {}
        }
        packet
    }

    /// The positions of the recorded node are those of the core.
    pub(crate) fn write_from_the_start(&mut self) {
        self.positions = Some(0);
    }

    /// Does the recorded node say of fewer writes that the same nodes have them?
    pub(crate) fn is_before(&self, theirs: &PeerAck, ours: &PeerAck) -> bool {
        let theirs_at = self.positions.map(|offset| theirs.dagtag.0.wrapping_add(offset));
        theirs.nodes == ours.nodes && theirs_at.is_some_and(|at| at < ours.dagtag.0)
    }

    /// A position of the recorded node.
    pub(crate) fn translated(&self, mut at: Dagtag) -> Dagtag {
        self.position(&mut at);
        at
    }

    fn number(&self, seq: u32) -> u32 {
        self.numbers.get(&seq).copied().unwrap_or(seq)
    }

    /// The core's position for one of the recorded node.
    fn position(&self, at: &mut Dagtag) {
        at.0 = at.0.wrapping_add(self.positions.unwrap_or(0));
    }

    /// What the recorded node says itself.
    fn translate_own(&self, packet: &Packet) -> Packet {
        let mut packet = self.translate(packet);
        match &mut packet {
            Packet::Dagtag(at) => self.position(at),
            Packet::PeerAck(ack) => self.position(&mut ack.dagtag),
            _ => {}
        }
        packet
    }

    fn block(&self, id: BlockId) -> BlockId {
        self.blocks.get(&id).copied().unwrap_or(id)
    }

    fn translate_uuids(&self, u: &mut Uuids110) {
        u.current = self.generation(u.current);
        for g in u.bitmaps.iter_mut() {
            *g = self.slots.get(g).copied().unwrap_or(self.generation(*g));
        }
        for g in u.history.iter_mut() {
            *g = self.generation(*g);
        }
    }
}
