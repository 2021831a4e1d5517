//! What stands for bytes: which write a sector's content comes from, and which sector it was meant for.

use crate::ranges::{Ranges, sectors};
use units::{Sector, SectorRange};
use urbd_core::Segments;

/// Names the write that a content comes from. [`ZEROES`] is no write: all bytes zero.
pub(crate) type ContentId = u32;

/// The content of a sector that reads as zeroes.
pub(crate) const ZEROES: ContentId = 0;

/// What one sector holds. `shift` is 0 unless the content lies where it does not belong.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Content {
    pub(crate) id: ContentId,
    pub(crate) shift: i64,
}

impl Content {
    pub(crate) const fn of(id: ContentId) -> Content {
        Content { id, shift: 0 }
    }
}

/// Consecutive sectors of one write's data.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Piece {
    pub(crate) sectors: u64,
    pub(crate) id: ContentId,
    /// The sector that the first one was written for.
    pub(crate) origin: u64,
}

/// The content of a buffer or packet.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Payload(pub(crate) Vec<Piece>);

impl Payload {
    /// An application's data for `range`.
    pub(crate) fn of_write(id: ContentId, range: SectorRange) -> Payload {
        Payload(vec![Piece { sectors: range.end.0 - range.start.0, id, origin: range.start.0 }])
    }

    pub(crate) fn sectors(&self) -> u64 {
        self.0.iter().map(|p| p.sectors).sum()
    }

    /// What lies on a disk.
    pub(crate) fn read(disk: &Ranges<Content>, range: SectorRange) -> Payload {
        let piece = |(r, c): (SectorRange, &Content)| Piece {
            sectors: r.end.0 - r.start.0,
            id: c.id,
            origin: if c.id == ZEROES { 0 } else { r.start.0.wrapping_add_signed(c.shift) },
        };
        Payload(disk.runs(range).map(piece).collect())
    }

    /// The content of each run when this is written at `at`.
    pub(crate) fn placed(&self, at: Sector) -> impl Iterator<Item = (SectorRange, Content)> {
        let mut next = at.0;
        self.0.iter().map(move |p| {
            let range = sectors(next, next + p.sectors);
            let shift = if p.id == ZEROES { 0 } else { p.origin.wrapping_sub(next) as i64 };
            next = range.end.0;
            (range, Content { id: p.id, shift })
        })
    }

    /// `len` sectors from sector `from` on.
    pub(crate) fn slice(&self, from: u64, len: u64) -> Payload {
        let (mut skip, mut left) = (from, len);
        let mut pieces = Vec::new();
        for p in &self.0 {
            if skip >= p.sectors {
                skip -= p.sectors;
                continue;
            }
            let sectors = (p.sectors - skip).min(left);
            if sectors > 0 {
                let origin = if p.id == ZEROES { 0 } else { p.origin.wrapping_add(skip) };
                pieces.push(Piece { sectors, id: p.id, origin });
            }
            left -= sectors;
            skip = 0;
        }
        Payload(pieces)
    }

    pub(crate) fn is_zeroes(&self) -> bool {
        self.0.iter().all(|p| p.id == ZEROES)
    }

    /// Differs where the content does.
    pub(crate) fn digest(&self) -> wire::Digest {
        let (mut bytes, mut hash) = ([0; 20], 1u64);
        for (range, content) in self.placed(Sector(self.0.first().map_or(0, |p| p.origin))) {
            for sector in range.start.0..range.end.0 {
                let number = u64::from(content.id) << 32 ^ sector.wrapping_add_signed(content.shift);
                hash = (hash ^ if content.id == ZEROES { 7 } else { number }).wrapping_mul(0x9e37_79b9_7f4a_7c15);
                hash ^= hash >> 31;
            }
        }
        bytes[..8].copy_from_slice(&hash.to_be_bytes());
        wire::Digest::new(&bytes).expect("20 bytes fit")
    }

    pub(crate) fn append(&mut self, more: Payload) {
        self.0.extend(more.0);
    }
}

/// Who gets a buffer back.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Owner {
    /// The core, until it releases it.
    Core,
    /// An application's request, until it is completed.
    Application,
}

#[derive(Clone, Debug)]
struct Buffer {
    owner: Owner,
    content: Payload,
}

/// A process's payload buffers.
#[derive(Clone, Debug, Default)]
pub(crate) struct Buffers {
    next: u32,
    live: std::collections::BTreeMap<u32, Buffer>,
}

impl Buffers {
    /// A buffer that holds `content`.
    pub(crate) fn add(&mut self, owner: Owner, content: Payload) -> Segments {
        let len = u32::try_from(content.sectors() * 512).expect("payloads are small");
        if len == 0 {
            return Segments::None;
        }
        self.next += 1;
        self.live.insert(self.next, Buffer { owner, content });
        Segments::One(urbd_core::BufRef { id: self.next, offset: 0, len })
    }

    /// What the named pieces hold. Names that do not exist are an error of the core's.
    pub(crate) fn content(&self, data: &Segments) -> Result<Payload, String> {
        let mut all = Payload::default();
        for piece in data.as_slice() {
            let buffer = self.live.get(&piece.id).ok_or_else(|| format!("buffer {piece:?} does not exist any more"))?;
            let slice = buffer.content.slice(u64::from(piece.offset) / 512, u64::from(piece.len) / 512);
            if slice.sectors() * 512 != u64::from(piece.len) {
                return Err(format!("{piece:?} is not inside its buffer"));
            }
            all.append(slice);
        }
        Ok(all)
    }

    /// Overwrites the named pieces.
    pub(crate) fn fill(&mut self, data: &Segments, content: &Payload) -> Result<(), String> {
        if data.len() != content.sectors() * 512 {
            return Err(format!("{} bytes do not fit {data:?}", content.sectors() * 512));
        }
        let mut at = 0;
        for piece in data.as_slice() {
            let (offset, len) = (u64::from(piece.offset) / 512, u64::from(piece.len) / 512);
            let buffer =
                self.live.get_mut(&piece.id).ok_or_else(|| format!("buffer {piece:?} does not exist any more"))?;
            let total = buffer.content.sectors();
            let mut merged = buffer.content.slice(0, offset);
            merged.append(content.slice(at, len));
            merged.append(buffer.content.slice(offset + len, total - offset - len));
            buffer.content = merged;
            at += len;
        }
        Ok(())
    }

    /// Gives buffers of this owner back: each exactly once.
    pub(crate) fn release(&mut self, data: &Segments, owner: Owner) -> Result<(), String> {
        for piece in data.as_slice() {
            match self.live.remove(&piece.id) {
                Some(b) if b.owner == owner => {}
                Some(b) => return Err(format!("{piece:?} is given back as {owner:?}'s but is {:?}'s", b.owner)),
                None => return Err(format!("{piece:?} is given back twice")),
            }
        }
        Ok(())
    }

    /// Is the first of these an application's?
    pub(crate) fn is_applications(&self, data: &Segments) -> bool {
        let first = data.as_slice().first();
        first.and_then(|p| self.live.get(&p.id)).is_some_and(|b| b.owner == Owner::Application)
    }

    /// How many buffers this owner has.
    pub(crate) fn count(&self, owner: Owner) -> usize {
        self.live.values().filter(|b| b.owner == owner).count()
    }
}
