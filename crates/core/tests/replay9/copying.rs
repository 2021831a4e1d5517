//! A target may cut what it asks for into other requests than the recorded node did: compared is which blocks it asks
//! for and confirms, each once, and what else its requests say. The source's answers are made for them.

use crate::recording::Said;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::mem::{Discriminant, discriminant};
use units::{ByteLen, NodeId, Sector};
use wire::{BlockAck, BlockData, BlockId, BlockRequest, Dagtag, DagtagRequest, Digest, Packet, VerifyOutcome};

/// What a disk holds, as far as a recording shows it.
#[derive(Default, Debug)]
pub(crate) struct Contents {
    /// By where it is that this is the digest of.
    digests: BTreeMap<u64, Digest>,
    /// Blocks of 4 KiB that are all zeroes.
    zeroes: BTreeSet<u64>,
}

impl Contents {
    /// What a node's disk holds, and another one has asked for.
    pub(crate) fn of(ours: &[Said], theirs: &[Said]) -> Contents {
        let mut contents = Contents::default();
        for said in ours {
            match &said.packet {
                Packet::RsDeallocatedId(a) => contents.zeroes.extend(blocks(a.sector, a.size)),
                Packet::OvDagtagReply(r) => {
                    contents.digests.insert(r.block.sector.0, r.digest.clone());
                }
                Packet::OvResultId(result) if result.outcome == VerifyOutcome::InSync => {
                    let block = result.block;
                    let told = |s: &Said| match &s.packet {
                        Packet::OvDagtagReply(r) if s.from == said.to && r.block.sector == block.sector => {
                            Some(r.digest.clone())
                        }
                        _ => None,
                    };
                    contents.digests.extend(theirs.iter().find_map(told).map(|digest| (block.sector.0, digest)));
                }
                Packet::RsIsInSync(a) => {
                    let asked = theirs.iter().find_map(|s| request(&s.packet).filter(|r| r.block.sector == a.sector));
                    contents.digests.extend(asked.map(|r| (a.sector.0, r.digest.clone())));
                }
                _ => {}
            }
        }
        contents
    }

    /// Of what is not known it is one that nothing else has.
    pub(crate) fn digest(&self, sector: u64) -> Digest {
        let unknown = || Digest::new(&[0xee; 32]).expect("it fits");
        self.digests.get(&sector).cloned().unwrap_or_else(unknown)
    }

    pub(crate) fn is_zeroes(&self, sector: Sector, len: ByteLen) -> bool {
        blocks(sector, len).all(|block| self.zeroes.contains(&block))
    }
}

/// How the recorded source answered.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Answer {
    /// Of a verify.
    Digest(Digest),
    Data,
    Equal,
    Zeroes,
    Failed,
    Cancelled,
}

/// What a request says besides where: whom it asks, which packet it is, and on which position it depends.
type Wanted = (NodeId, Discriminant<Packet>, u32, Dagtag);

/// What a target has asked for, and is still to ask for.
#[derive(Default, Debug)]
pub(crate) struct Copying {
    /// Blocks of 4 KiB, with each time that they are asked for.
    wanted: BTreeMap<u64, VecDeque<Wanted>>,
    /// From whom, of which block.
    recorded: BTreeMap<(NodeId, u64), Answer>,
    /// Asked for and not answered.
    asked: VecDeque<(NodeId, BlockRequest)>,
    /// Answered and not confirmed.
    answered: Vec<(Sector, BlockId, ByteLen)>,
    /// The recorded source answers by now.
    answers: bool,
    /// The copy was interrupted: a target that is faster asks for more, which nobody answers.
    interrupted: bool,
    /// A target that is faster asks for what it would have been told to have.
    pub(crate) asks_more: bool,
    /// The source answers what is recorded as answered by now, and nothing before.
    in_time: bool,
    refused: VecDeque<(NodeId, BlockRequest)>,
    /// What came of comparing a block.
    outcomes: BTreeMap<(NodeId, u64), VecDeque<VerifyOutcome>>,
    /// The core's node, and what is to be added to its positions.
    own: u32,
    positions: Option<u64>,
}

fn blocks(sector: Sector, len: ByteLen) -> impl Iterator<Item = u64> + use<> {
    let first = sector.0 / 8;
    first..first + len.0.div_ceil(4096)
}

fn request(packet: &Packet) -> Option<&DagtagRequest> {
    match packet {
        Packet::RsDagtagReq(r) | Packet::RsCsumDagtagReq(r) | Packet::RsThinDagtagReq(r) => Some(r),
        Packet::OvDagtagReq(r) => Some(r),
        _ => None,
    }
}

fn answer(packet: &Packet) -> Option<(Sector, ByteLen, Answer)> {
    match packet {
        Packet::OvDagtagReply(r) => Some((r.block.sector, r.block.size, Answer::Digest(r.digest.clone()))),
        Packet::RsDataReply(r) => Some((r.sector, r.size, Answer::Data)),
        Packet::RsIsInSync(a) => Some((a.sector, a.size, Answer::Equal)),
        Packet::RsDeallocatedId(a) => Some((a.sector, a.size, Answer::Zeroes)),
        Packet::NegRsDreply(a) => Some((a.sector, a.size, Answer::Failed)),
        Packet::RsCancel(a) => Some((a.sector, a.size, Answer::Cancelled)),
        _ => None,
    }
}

impl Copying {
    /// Takes the recorded target's requests and confirmations out of what it says.
    pub(crate) fn of(ours: &mut Vec<Said>, theirs: &[Said], own: NodeId) -> Copying {
        let mut copying = Copying { own: own.index() as u32, ..Copying::default() };
        ours.retain(|said| match request(&said.packet) {
            Some(r) => {
                let wanted = (said.to, discriminant(&said.packet), r.node, r.dagtag);
                let all = blocks(r.block.sector, r.block.size);
                all.for_each(|block| copying.wanted.entry(block).or_default().push_back(wanted));
                false
            }
            None => match &said.packet {
                Packet::RsWriteAck(_) => false,
                Packet::OvResultId(result) => {
                    let block = (said.to, result.block.sector.0 / 8);
                    copying.outcomes.entry(block).or_default().push_back(result.outcome);
                    false
                }
                _ => true,
            },
        });
        for (from, (sector, len, answer)) in theirs.iter().filter_map(|s| Some(s.from).zip(answer(&s.packet))) {
            copying.interrupted |= matches!(answer, Answer::Failed | Answer::Cancelled);
            copying.recorded.extend(blocks(sector, len).map(|block| ((from, block), answer.clone())));
        }
        copying
    }

    /// Is that an answer of the recorded source? Those are not heard.
    pub(crate) fn is_answer(&mut self, from: NodeId, packet: &Packet) -> bool {
        let Some((sector, len, answer)) = answer(packet) else { return false };
        if self.in_time {
            if answer == Answer::Failed {
                // So are all others.
                self.refused.extend(self.asked.drain(..));
            } else {
                self.recorded.extend(blocks(sector, len).map(|block| ((from, block), answer.clone())));
            }
        }
        self.answers = true;
        true
    }

    /// And who answers.
    pub(crate) fn next_answer(&mut self) -> Option<(NodeId, Packet)> {
        if let Some((source, BlockRequest { sector, block_id, size })) = self.refused.pop_front() {
            return Some((source, Packet::NegRsDreply(BlockAck { sector, block_id, size, seq: 0 })));
        }
        let (source, request) = self.asked.pop_front().filter(|_| self.answers)?;
        let known = |block| self.recorded_of(source, block).is_some();
        if self.in_time && !blocks(request.sector, request.size).all(known) {
            self.asked.push_front((source, request));
            return None;
        }
        Some((source, self.answer_to(source, request)))
    }

    /// Another source would have answered the same; not so a node that data is compared with.
    fn recorded_of(&self, source: NodeId, block: u64) -> Option<&Answer> {
        let others = || self.recorded.iter().find(|((_, b), a)| *b == block && !matches!(a, Answer::Digest(_)));
        self.recorded.get(&(source, block)).or_else(|| others().map(|(_, answer)| answer))
    }

    fn answer_to(&mut self, source: NodeId, BlockRequest { sector, block_id, size }: BlockRequest) -> Packet {
        let recorded: Vec<_> =
            blocks(sector, size).filter_map(|block| self.recorded_of(source, block).cloned()).collect();
        let all = |answer: Answer| recorded.iter().all(|recorded| *recorded == answer);
        let ack = BlockAck { sector, block_id, size, seq: 0 };
        if all(Answer::Equal) {
            return Packet::RsIsInSync(ack);
        }
        // What of it could be read is not said.
        let any = |answer: Answer| recorded.contains(&answer);
        if any(Answer::Failed) {
            return Packet::NegRsDreply(ack);
        }
        if any(Answer::Cancelled) {
            return Packet::RsCancel(ack);
        }
        self.answered.push((sector, block_id, size));
        if let [Answer::Digest(digest)] = &recorded[..] {
            let block = BlockRequest { sector, block_id, size };
            let reply = DagtagRequest { block, node: 0, dagtag: Dagtag(0), digest: digest.clone() };
            return Packet::OvDagtagReply(Box::new(reply));
        }
        if all(Answer::Zeroes) {
            return Packet::RsDeallocatedId(ack);
        }
        Packet::RsDataReply(BlockData { sector, block_id, digest: Digest::EMPTY, size })
    }

    /// From now on the source answers as slowly as it was recorded.
    pub(crate) fn answer_in_time(&mut self) {
        (self.in_time, self.recorded) = (true, BTreeMap::new());
    }

    pub(crate) fn answers_now(&self) -> bool {
        self.answers && !(self.asked.is_empty() && self.refused.is_empty())
    }

    /// Is that a request of the core, or a confirmation? It must be one that was recorded.
    pub(crate) fn takes(&mut self, peer: NodeId, packet: &Packet) -> bool {
        match (request(packet), packet) {
            (Some(r), _) => self.asks(peer, discriminant(packet), r),
            (None, Packet::RsWriteAck(ack)) => self.confirms(ack),
            (None, Packet::OvResultId(result)) => {
                let block = (peer, result.block.sector.0 / 8);
                let recorded = self.outcomes.get_mut(&block).and_then(VecDeque::pop_front);
                assert_eq!(recorded, Some(result.outcome), "{result:?}");
                self.confirms(&result.block);
            }
            _ => return false,
        }
        true
    }

    fn asks(&mut self, peer: NodeId, kind: Discriminant<Packet>, r: &DagtagRequest) {
        let never = |block: u64| !self.wanted.contains_key(&block);
        if self.interrupted && blocks(r.block.sector, r.block.size).all(never) {
            return;
        }
        for block in blocks(r.block.sector, r.block.size) {
            let recorded = self.wanted.get_mut(&block).and_then(VecDeque::pop_front);
            if recorded.is_none() && (self.interrupted || self.asks_more) {
                continue;
            }
            let mut at = r.dagtag;
            if let Some((_, _, _, Dagtag(theirs))) = recorded.filter(|_| r.node == self.own) {
                at.0 = at.0.wrapping_add(*self.positions.get_or_insert(theirs.wrapping_sub(at.0)));
            }
            assert_eq!(recorded, Some((peer, kind, r.node, at)), "block {block} in {r:?}");
        }
        self.asked.push_back((peer, r.block));
    }

    fn confirms(&mut self, ack: &BlockAck) {
        let known = self.answered.iter().position(|answered| *answered == (ack.sector, ack.block_id, ack.size));
        self.answered.remove(known.unwrap_or_else(|| panic!("confirms what it has not got: {ack:?}")));
    }

    pub(crate) fn assert_over(&self) {
        let left: Vec<_> = self.wanted.iter().filter(|(_, times)| !times.is_empty()).collect();
        assert!(left.is_empty(), "not asked for: {left:?}");
        let compared = self.outcomes.values().all(VecDeque::is_empty);
        assert!(compared || self.interrupted, "not compared: {:?}", self.outcomes);
        let all = self.answered.is_empty() && self.asked.is_empty();
        assert!(all || self.interrupted, "not confirmed: {self:?}");
    }
}
