//! A virtual disk: data and metadata behind one volatile cache.

use crate::payload::{Content, Payload, ZEROES};
use crate::ranges::{Changed, Ranges, sectors};
use meta::Step;
use units::{Rng, Sector, SectorRange};

/// What a disk does wrong at present.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct DiskFaults {
    /// Reads of data fail.
    pub reads: bool,
    /// Writes of data fail; what they should have written is undefined then.
    pub writes: bool,
    /// Flushes fail.
    pub flushes: bool,
    /// Everything about metadata fails.
    pub metadata: bool,
    /// Discards and write-zeroes fail; what they cover is undefined then.
    pub discards: bool,
    /// Nothing completes.
    pub stalled: bool,
    /// Nothing that changes data or metadata completes.
    pub stalled_writes: bool,
}

impl DiskFaults {
    pub(crate) fn any(self) -> bool {
        self != DiskFaults::default()
    }
}

/// A write that is complete but not durable.
#[derive(Clone, Debug)]
enum Cached {
    Data(SectorRange, Content),
    Meta(u64, Box<[u8]>),
}

/// The state of a disk's data and metadata: what reads return, and what a power loss leaves.
#[derive(Clone, Debug)]
pub(crate) struct Disk {
    pub(crate) faults: DiskFaults,
    current: Image,
    durable: Image,
    /// In the order of completion, each with its number.
    cache: Vec<(u64, Cached)>,
    written: u64,
    meta_writes: u64,
}

#[derive(Clone, Debug)]
struct Image {
    data: Ranges<Content>,
    /// The metadata, from this byte of the metadata device on.
    base: u64,
    meta: Vec<u8>,
}

impl Image {
    fn apply(&mut self, write: &Cached) {
        match write {
            Cached::Data(range, content) => self.data.set(*range, *content),
            Cached::Meta(at, bytes) => {
                let from = (at - self.base) as usize;
                self.meta[from..from + bytes.len()].copy_from_slice(bytes);
            }
        }
    }
}

impl Disk {
    /// A disk of `len` sectors of unknown content with the metadata that `create` plans, at `base..end` of its device.
    pub(crate) fn new(len: u64, garbage: u32, base: u64, end: u64, create: &[Step]) -> Disk {
        let mut meta = vec![0xa5; (end - base) as usize];
        create.iter().for_each(|step| step.apply_to(base, &mut meta));
        let image = Image { data: Ranges::new(len, Content::of(garbage)), base, meta };
        let (faults, cache) = (DiskFaults::default(), Vec::new());
        Disk { faults, durable: image.clone(), current: image, cache, written: 0, meta_writes: 1 }
    }

    /// Where data may read otherwise since this was asked last.
    pub(crate) fn take_changed(&mut self) -> Changed {
        self.current.data.take_changed()
    }

    /// What reads return.
    pub(crate) fn data(&self) -> &Ranges<Content> {
        &self.current.data
    }

    /// What is left after a power loss, at least.
    pub(crate) fn durable(&self) -> &Ranges<Content> {
        &self.durable.data
    }

    /// Counts changes of the metadata as reads return them; from 1 on.
    pub(crate) fn meta_writes(&self) -> u64 {
        self.meta_writes
    }

    /// Metadata as reads return them. `None` outside of the area.
    pub(crate) fn read_meta(&self, at: u64, len: u64) -> Option<Box<[u8]>> {
        let from = usize::try_from(at.checked_sub(self.current.base)?).ok()?;
        self.current.meta.get(from..from + len as usize).map(Into::into)
    }

    /// Offline, and durable: a tool writes fresh metadata.
    pub(crate) fn create_meta(&mut self, steps: &[Step]) {
        let mark = self.mark();
        self.flush(mark);
        self.meta_writes += 1;
        for image in [&mut self.current, &mut self.durable] {
            steps.iter().for_each(|step| step.apply_to(image.base, &mut image.meta));
        }
    }

    /// Does the range lie in the metadata?
    pub(crate) fn holds_meta(&self, at: u64, len: u64) -> bool {
        at >= self.current.base && at + len <= self.current.base + self.current.meta.len() as u64
    }

    pub(crate) fn write(&mut self, at: Sector, content: &Payload, fua: bool) {
        for (range, content) in content.placed(at) {
            self.write_one(Cached::Data(range, content), fua);
        }
    }

    pub(crate) fn zero(&mut self, range: SectorRange, fua: bool) {
        self.write_one(Cached::Data(range, Content::of(ZEROES)), fua);
    }

    pub(crate) fn write_meta(&mut self, at: u64, bytes: &[u8], fua: bool) {
        self.write_one(Cached::Meta(at, bytes.into()), fua);
    }

    /// Data that change by themselves: the medium has lost them.
    pub(crate) fn rot(&mut self, range: SectorRange, id: u32) {
        let end = sectors(0, self.current.data.all().last().map_or(0, |(r, _)| r.end.0));
        let range = SectorRange { start: range.start.min(end.end), end: range.end.min(end.end) };
        if !range.is_empty() {
            let content = Payload::of_write(id, range);
            self.write(range.start, &content, true);
        }
    }

    fn write_one(&mut self, write: Cached, fua: bool) {
        self.current.apply(&write);
        self.written += 1;
        self.meta_writes += u64::from(matches!(write, Cached::Meta(..)));
        if !fua {
            return self.cache.push((self.written, write));
        }
        // No older write may come to rest over a newer one.
        let Disk { cache, durable, .. } = self;
        let covered = cache.iter().rposition(|(_, old)| overlap(old, &write)).map_or(0, |last| last + 1);
        cache.drain(..covered).for_each(|(_, old)| durable.apply(&old));
        durable.apply(&write);
    }

    /// What has completed until now: for [`flush`](Self::flush).
    pub(crate) fn mark(&self) -> u64 {
        self.written
    }

    /// Makes everything durable that had completed at this mark.
    pub(crate) fn flush(&mut self, mark: u64) {
        let Disk { cache, durable, .. } = self;
        cache.retain(|(number, write)| {
            let covered = *number <= mark;
            if covered {
                durable.apply(write);
            }
            !covered
        });
    }

    /// A write that was in flight when its process or the machine died: it may have been done in part.
    pub(crate) fn write_maybe(&mut self, at: Sector, content: &Payload, rng: &mut Rng) {
        for (range, content) in content.placed(at) {
            self.tear(&Cached::Data(range, content), rng, |disk, part| disk.write_one(part, false));
        }
    }

    /// The same for metadata.
    pub(crate) fn write_meta_maybe(&mut self, at: u64, bytes: &[u8], rng: &mut Rng) {
        self.tear(&Cached::Meta(at, bytes.into()), rng, |disk, part| disk.write_one(part, false));
    }

    /// The power goes: of what was not durable some is lost, in any order and in parts. Returns where data may have
    /// changed.
    pub(crate) fn lose_power(&mut self, rng: &mut Rng) -> Vec<SectorRange> {
        let mut cache = std::mem::take(&mut self.cache);
        let places = cache.iter().filter_map(|(_, write)| match write {
            Cached::Data(range, _) => Some(*range),
            Cached::Meta(..) => None,
        });
        let places = places.collect();
        let (keep, of) = *[(0, 1), (1, 4), (1, 2), (3, 4), (1, 1)].get(rng.below(5) as usize).expect("five");
        if rng.chance(1, 3) {
            for i in (1..cache.len()).rev() {
                cache.swap(i, rng.below(i as u64 + 1) as usize);
            }
        }
        for (_, write) in cache {
            if keep == of {
                self.durable.apply(&write);
            } else if rng.chance(keep, of) {
                self.tear(&write, rng, |disk, part| disk.durable.apply(&part));
            }
        }
        self.current = self.durable.clone();
        self.meta_writes += 1;
        places
    }

    fn tear(&mut self, write: &Cached, rng: &mut Rng, mut keep: impl FnMut(&mut Disk, Cached)) {
        let unit: u64 = match rng.below(4) {
            0 => return,
            1 => return keep(self, write.clone()),
            2 => 512,
            _ => 4096,
        };
        match write {
            Cached::Data(range, content) => {
                let step = unit / 512;
                let mut at = range.start.0;
                while at < range.end.0 {
                    // Long runs are torn in large pieces: there are few places that matter.
                    let len = step.max((range.end.0 - range.start.0) / 16);
                    let end = (at / step * step + len).min(range.end.0);
                    if rng.chance(1, 2) {
                        keep(self, Cached::Data(sectors(at, end), *content));
                    }
                    at = end;
                }
            }
            Cached::Meta(at, bytes) => {
                for (n, part) in bytes.chunks(unit as usize).enumerate() {
                    if rng.chance(1, 2) {
                        keep(self, Cached::Meta(at + n as u64 * unit, part.into()));
                    }
                }
            }
        }
    }
}

fn overlap(a: &Cached, b: &Cached) -> bool {
    match (a, b) {
        (Cached::Data(a, _), Cached::Data(b, _)) => a.overlaps(*b),
        (Cached::Meta(a, x), Cached::Meta(b, y)) => *a < b + y.len() as u64 && *b < a + x.len() as u64,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn disk() -> Disk {
        Disk::new(64, 1, 0, 4096, &[])
    }

    fn at(d: &Ranges<Content>, s: u64) -> u32 {
        d.runs(sectors(s, s + 1)).next().unwrap().1.id
    }

    #[test]
    fn only_flushed_or_fua_writes_survive_for_sure() {
        let write = |d: &mut Disk, id, s: u64, fua| d.write(Sector(s), &Payload::of_write(id, sectors(s, s + 8)), fua);
        let mut lost = 0;
        for seed in 0..64 {
            let mut d = disk();
            write(&mut d, 2, 0, false);
            d.flush(d.mark());
            write(&mut d, 3, 8, false);
            write(&mut d, 4, 8, true);
            write(&mut d, 5, 16, false);
            assert_eq!(at(d.data(), 16), 5);
            d.lose_power(&mut Rng::new(seed));
            assert_eq!((at(d.data(), 0), at(d.data(), 8)), (2, 4));
            lost += u32::from(at(d.data(), 16) == 1);
        }
        assert!(lost > 10 && lost < 60, "{lost}");
    }

    #[test]
    fn a_torn_write_leaves_parts() {
        let mut partly = 0;
        for seed in 0..64 {
            let mut d = disk();
            d.write_maybe(Sector(0), &Payload::of_write(9, sectors(0, 8)), &mut Rng::new(seed));
            let n = (0..8).filter(|s| at(d.data(), *s) == 9).count();
            partly += u32::from(n != 0 && n != 8);
        }
        assert!(partly > 5);
    }
}
