//! Who owns which buffer, and what the core has asked of the peer and not been answered.

use std::collections::{BTreeMap, VecDeque};
use units::VolumeNr;
use urbd_core::{BufRef, IoError, RequestKind, Segments};
use wire::{BarrierNr, BlockAck, BlockData, BlockId, BlockRequest, Packet};

/// Where a buffer came from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Source {
    /// An application's request with this tag.
    Application(u64),
    /// The payload of a packet, or what the disk read for a peer: the core's until it releases it.
    Lent,
}

/// Every buffer that is in use.
#[derive(Debug, Default)]
pub(super) struct Buffers {
    live: BTreeMap<u32, (u32, Source)>,
    next: u32,
    /// Bytes lent to the core.
    pub(super) lent: u64,
}

impl Buffers {
    pub(super) fn take(&mut self, len: u64, source: Source) -> Segments {
        if len == 0 {
            return Segments::None;
        }
        self.next += 1;
        let len = u32::try_from(len).expect("buffers are small");
        self.live.insert(self.next, (len, source));
        if source == Source::Lent {
            self.lent += u64::from(len);
        }
        Segments::One(BufRef { id: self.next, offset: 0, len })
    }

    /// The core may name only buffers that are alive, within their bounds.
    pub(super) fn check(&self, data: &Segments) {
        for piece in data.as_slice() {
            let (len, _) = self.live.get(&piece.id).unwrap_or_else(|| panic!("{piece:?} is not alive"));
            assert!(piece.offset.checked_add(piece.len).is_some_and(|end| end <= *len), "{piece:?} of {len} bytes");
        }
    }

    /// The core gives back a whole buffer that it was lent.
    pub(super) fn release(&mut self, data: &Segments) {
        for piece in data.as_slice() {
            let found = self.live.remove(&piece.id);
            assert_eq!(found, Some((piece.len, Source::Lent)), "released: {piece:?}");
            self.lent -= u64::from(piece.len);
        }
    }

    pub(super) fn owners(&self, data: &Segments) -> Vec<u64> {
        let source = |piece: &BufRef| self.live.get(&piece.id).map(|(_, s)| *s);
        let tags = data.as_slice().iter().filter_map(source).filter_map(|s| match s {
            Source::Application(tag) => Some(tag),
            Source::Lent => None,
        });
        tags.collect()
    }

    fn give_back(&mut self, tag: u64) {
        self.live.retain(|_, (_, source)| *source != Source::Application(tag));
    }
}

/// An application's request in flight.
#[derive(Debug)]
pub(super) struct Open {
    kind: RequestKind,
    len: u64,
    /// Bytes that the local disk has written.
    local: u64,
    /// The peer has said, truly or not, that it has the write.
    answered: bool,
}

#[derive(Debug, Default)]
pub(super) struct Applications {
    pub(super) open: BTreeMap<u64, Open>,
    next: u64,
}

impl Applications {
    pub(super) fn start(&mut self, kind: RequestKind, len: u64) -> u64 {
        self.next += 1;
        self.open.insert(self.next, Open { kind, len, local: 0, answered: false });
        self.next
    }

    pub(super) fn written(&mut self, buffers: &Buffers, data: &Segments) {
        for piece in data.as_slice() {
            for tag in buffers.owners(&Segments::One(*piece)) {
                if let Some(open) = self.open.get_mut(&tag) {
                    open.local += u64::from(piece.len);
                }
            }
        }
    }

    pub(super) fn answered(&mut self, tags: &[u64]) {
        for tag in tags {
            if let Some(open) = self.open.get_mut(tag) {
                open.answered = true;
            }
        }
    }

    /// A request ends once, and a write that ends well is somewhere.
    pub(super) fn end(&mut self, buffers: &mut Buffers, tag: u64, result: Result<(), IoError>, asynchronous: bool) {
        let open = self.open.remove(&tag).unwrap_or_else(|| panic!("request {tag} ended twice"));
        if result.is_ok() && matches!(open.kind, RequestKind::Write { .. }) && !asynchronous {
            assert!(open.local >= open.len || open.answered, "write {tag} is said to be done, but nobody has it");
        }
        buffers.give_back(tag);
    }
}

/// A write on its way to the peer.
#[derive(Clone, Debug)]
pub(super) struct Sent {
    pub(super) volume: VolumeNr,
    pub(super) ack: BlockAck,
    pub(super) tags: Vec<u64>,
}

/// What the core waits for.
#[derive(Debug, Default)]
pub(super) struct Asked {
    pub(super) writes: VecDeque<Sent>,
    in_epoch: u32,
    pub(super) barriers: VecDeque<(BarrierNr, u32)>,
    pub(super) reads: VecDeque<(VolumeNr, BlockRequest)>,
    pub(super) resync_requests: VecDeque<(VolumeNr, BlockRequest)>,
    pub(super) resync_data: VecDeque<(VolumeNr, BlockData)>,
    pub(super) state_changes: VecDeque<(VolumeNr, bool)>,
    pub(super) pings: u32,
    /// Bitmaps that began, per volume.
    pub(super) bitmaps: u32,
}

impl Asked {
    pub(super) fn note(&mut self, volume: VolumeNr, packet: &Packet, tags: Vec<u64>) {
        let mut write = |sector, block_id: BlockId, size, seq| {
            self.in_epoch += 1;
            self.writes.push_back(Sent { volume, ack: BlockAck { sector, block_id, size, seq }, tags: tags.clone() });
        };
        match packet {
            Packet::Data(w) => write(w.sector, w.block_id, w.size, w.seq),
            Packet::Trim(w) | Packet::Zeroes(w) => write(w.sector, w.block_id, w.size, w.seq),
            Packet::Barrier(nr) => {
                self.barriers.push_back((*nr, self.in_epoch));
                self.in_epoch = 0;
            }
            Packet::DataRequest(r) => self.reads.push_back((volume, *r)),
            Packet::RsDataRequest(r) | Packet::RsThinReq(r) => self.resync_requests.push_back((volume, *r)),
            Packet::CsumRsRequest(r) => self.resync_requests.push_back((volume, r.block)),
            Packet::RsDataReply(r) => self.resync_data.push_back((volume, r.clone())),
            Packet::StateChgReq(_) => self.state_changes.push_back((volume, false)),
            Packet::ConnStChgReq(_) => self.state_changes.push_back((volume, true)),
            Packet::Ping => self.pings += 1,
            Packet::Bitmap(_) | Packet::CompressedBitmap(_) => self.bitmaps += 1,
            _ => {}
        }
    }
}
