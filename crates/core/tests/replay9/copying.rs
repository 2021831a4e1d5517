//! A target may cut what it asks for into other requests than the recorded node did: compared is which blocks it asks
//! for and confirms, each once, and what else its requests say. The source's answers are made for them.

use crate::recording::Said;
use std::collections::{BTreeMap, VecDeque};
use units::{ByteLen, Sector};
use wire::{BlockAck, BlockData, BlockId, BlockRequest, Dagtag, DagtagRequest, Digest, Packet};

/// What a target has asked for, and is still to ask for.
#[derive(Default, Debug)]
pub(crate) struct Copying {
    /// Blocks of 4 KiB, and on which position the recorded request depends.
    wanted: BTreeMap<u64, (u32, Dagtag)>,
    /// Asked for and not answered.
    asked: VecDeque<BlockRequest>,
    /// Answered and not confirmed.
    answered: Vec<(Sector, BlockId, ByteLen)>,
    /// The recorded source answers by now.
    answers: bool,
}

fn blocks(block: &BlockRequest) -> impl Iterator<Item = u64> + use<> {
    let first = block.sector.0 / 8;
    first..first + block.size.0.div_ceil(4096)
}

impl Copying {
    /// Takes the recorded target's requests and confirmations out of what it says.
    pub(crate) fn of(ours: &mut Vec<Said>) -> Copying {
        let mut copying = Copying::default();
        ours.retain(|said| match &said.packet {
            Packet::RsDagtagReq(r) => {
                copying.wanted.extend(blocks(&r.block).map(|block| (block, (r.node, r.dagtag))));
                false
            }
            Packet::RsWriteAck(_) => false,
            _ => true,
        });
        copying
    }

    /// Is that an answer of the recorded source? Those are not heard.
    pub(crate) fn is_answer(&mut self, packet: &Packet) -> bool {
        let answer = matches!(packet, Packet::RsDataReply(_));
        self.answers |= answer;
        answer
    }

    pub(crate) fn next_answer(&mut self) -> Option<Packet> {
        let BlockRequest { sector, block_id, size } = self.asked.pop_front().filter(|_| self.answers)?;
        self.answered.push((sector, block_id, size));
        Some(Packet::RsDataReply(BlockData { sector, block_id, digest: Digest::EMPTY, size }))
    }

    pub(crate) fn answers_now(&self) -> bool {
        self.answers && !self.asked.is_empty()
    }

    pub(crate) fn asks(&mut self, r: &DagtagRequest) {
        for block in blocks(&r.block) {
            let recorded = self.wanted.remove(&block);
            assert_eq!(recorded, Some((r.node, r.dagtag)), "block {block} in {r:?}");
        }
        self.asked.push_back(r.block.clone());
    }

    pub(crate) fn confirms(&mut self, ack: &BlockAck) {
        let known = self.answered.iter().position(|answered| *answered == (ack.sector, ack.block_id, ack.size));
        self.answered.remove(known.unwrap_or_else(|| panic!("confirms what it has not got: {ack:?}")));
    }

    pub(crate) fn assert_over(&self) {
        assert!(self.wanted.is_empty(), "not asked for: {:?}", self.wanted);
        assert!(self.answered.is_empty() && self.asked.is_empty(), "not confirmed: {self:?}");
    }
}
