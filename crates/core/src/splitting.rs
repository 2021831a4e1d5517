//! Requests that are longer than a peer, or one disk operation, takes at a time (`docs/spec/data-path-and-resync.md`
//! 1.1).

pub(crate) mod split;

use crate::Resource;
use crate::api::{IoError, MAX_DATA, MAX_DISCARD};
use crate::node::Node;
use crate::request::write::{NewWrite, Owner, Owners, WriteKind};
use crate::splitting::split::{Split, slice};
use std::collections::VecDeque;
use units::{ByteLen, Sector, SectorRange, VolumeNr};

/// In bytes: what every peer takes at a time.
const BLOCK: u64 = 4096;

impl Resource {
    /// Parts of what has these owners are going to be made.
    pub(crate) fn begin_split(&mut self, owners: Owners, parts: u32) -> u64 {
        self.splits.insert(Split { owners, left: parts, result: Ok(()) })
    }

    /// A part has ended; with the last one the whole has.
    pub(crate) fn end_part(&mut self, volume: VolumeNr, key: u64, result: Result<(), IoError>) {
        let split = self.splits.get_mut(key).expect("a part's split lives as long as its parts");
        split.left -= 1;
        split.result = split.result.and(result);
        if split.left == 0 {
            let split = self.splits.remove(key).expect("just seen");
            split.owners.into_iter().for_each(|owner| self.end_owner(volume, owner, split.result));
        }
    }

    /// Cuts a write that a peer cannot be told at once.
    pub(crate) fn split_write(&mut self, volume: VolumeNr, mut write: NewWrite, limit: u64) {
        self.give_up_repetition(&mut write);
        let mut pieces = VecDeque::new();
        let step = limit / 512;
        let mut at = write.range.start.0;
        while at < write.range.end.0 {
            let end = (at + step).min(write.range.end.0);
            pieces.push_back(SectorRange { start: Sector(at), end: Sector(end) });
            at = end;
        }
        let owners = std::mem::replace(&mut write.owners, Owners::Many(Vec::new()));
        let key = self.begin_split(owners, pieces.len() as u32);
        for range in pieces {
            let from = (range.start.0 - write.range.start.0) * 512;
            let data = slice(&write.data, from, range.len().0);
            let mut part = self.new_write(volume, write.kind, write.fua, range, data, Owners::One(Owner::Part(key)));
            part.came = write.came;
            self.admit(volume, part);
        }
    }
}

impl Node {
    /// The longest write of a kind that the peers can be told at once, in bytes.
    pub(crate) fn longest(&self, volume: VolumeNr, kind: WriteKind) -> u64 {
        if kind == WriteKind::Data { self.max_data(volume) } else { self.max_discard() }
    }

    /// That, if a write of this length is longer.
    pub(crate) fn longer_than(&self, volume: VolumeNr, kind: WriteKind, len: ByteLen) -> Option<u64> {
        // A block can always be told, which spares most writes the question.
        let limit = (len.0 > BLOCK).then(|| self.longest(volume, kind))?;
        (len.0 > limit).then_some(limit)
    }

    fn max_data(&self, volume: VolumeNr) -> u64 {
        let peers = self.connected().map(|(_, c)| c);
        peers.map(|c| c.max_data(volume)).min().unwrap_or(MAX_DATA).clamp(BLOCK, MAX_DATA)
    }

    fn max_discard(&self) -> u64 {
        let peers = self.connected().map(|(_, c)| c);
        peers.map(|c| c.max_discard()).min().unwrap_or(MAX_DISCARD)
    }
}
