//! What must be on a disk before something else goes there (`docs/spec/on-disk-format.md` 2.8, 2.9, 3.7, 4.3).

use crate::cluster::{Cluster, Flight, Volume, Work};
use crate::disk::Disk;
use crate::on_disk::{self, Superblock, bits_of, superblock_at};
use crate::plan::{node_id, volume_nr};
use crate::ranges::sectors;
use std::collections::BTreeSet;
use std::rc::Rc;
use units::{BitSet, Generation, SectorRange};
use urbd_core::Resource;
use wire::DiskState;

/// Sectors of an activity-log extent: 4 MiB.
const EXTENT: u64 = 1 << 13;
/// Bytes of a superblock.
const BLOCK: u64 = 4096;

/// What was read from a disk's metadata and is still there.
#[derive(Debug, Default)]
pub(crate) struct Known {
    /// [`Disk::meta_writes`](crate::disk::Disk::meta_writes) when it was read.
    as_of: u64,
    superblock: Option<Rc<Superblock>>,
    hot: Option<Rc<BTreeSet<u64>>>,
}

impl Volume {
    /// The disk with the metadata, and what is known of them.
    fn metadata(&mut self) -> (&Disk, &mut Known) {
        let disk = self.meta.as_ref().unwrap_or(&self.data);
        if self.known.as_of != disk.meta_writes() {
            self.known = Known { as_of: disk.meta_writes(), ..Known::default() };
        }
        (disk, &mut self.known)
    }
}

impl Cluster {
    /// The superblock as reads of the disk return it.
    pub(crate) fn superblock(&mut self, n: usize, v: usize) -> Result<Rc<Superblock>, String> {
        let setup = &self.setup.volumes[v];
        let at = superblock_at((!setup.external).then_some(setup.sectors[n] * 512));
        let (disk, known) = self.nodes[n].volumes[v].metadata();
        let superblock = known.superblock.take().map(Ok).unwrap_or_else(|| {
            let bytes = disk.read_meta(at, BLOCK).ok_or("there is no superblock")?;
            Superblock::read(at, &bytes).map(Rc::new)
        });
        known.superblock = superblock.clone().ok();
        superblock
    }

    /// The extents in the activity log as reads of the disk return it.
    pub(crate) fn hot_extents(&mut self, n: usize, v: usize) -> Result<Rc<BTreeSet<u64>>, String> {
        let superblock = self.superblock(n, v)?;
        let (disk, known) = self.nodes[n].volumes[v].metadata();
        let hot = known.hot.take().map(Ok).unwrap_or_else(|| {
            let log = superblock.log();
            let ring = disk.read_meta(log.start, log.end - log.start).expect("the ring is in the metadata");
            let hot = superblock.hot(&ring).map(Rc::new);
            hot.map_err(|e| format!("the activity log cannot be replayed: {e}"))
        });
        known.hot = hot.clone().ok();
        hot
    }

    /// An application's write goes to the disk: its generation and the Primary mark must be there (spec 2.9 and
    /// `docs/spec/connection-and-state.md` 7.11).
    pub(crate) fn check_generation(&mut self, n: usize, v: usize, core: &Resource) -> Result<(), String> {
        let superblock = self.superblock(n, v)?;
        if self.nodes[n].volumes[v].generation_began {
            // Only now: effects of the same turn from before it began are about the old one.
            let current = core.generations(volume_nr(v)).map_or(superblock.current, |g| g[0]);
            if !superblock.current.same(current) {
                return Err(format!("a write of generation {current}, but the disk says {}", superblock.current));
            }
        }
        if !superblock.has(on_disk::PRIMARY) {
            return Err("a write of a Primary, but its disk does not say that it is one".to_owned());
        }
        Ok(())
    }

    /// The target of a resync is told its generation: a source that crashes must still know it
    /// (`docs/spec/connection-and-state.md` 7.4).
    pub(crate) fn check_sync_generation(
        &mut self,
        (n, peer): (usize, usize),
        v: usize,
        sync: Generation,
    ) -> Result<(), String> {
        let stored = self.superblock(n, v)?.counts_from(node_id(peer).index());
        if stored.same(sync) { Ok(()) } else { Err(format!("P_SYNC_UUID {sync}, but the disk says {stored}")) }
    }

    /// A metadata operation has ended: is the new generation on the disk?
    pub(crate) fn note_generations(&mut self, n: usize, core: &Resource) {
        for v in 0..self.nodes[n].volumes.len() {
            if self.nodes[n].volumes[v].generation_began {
                let stored = self.superblock(n, v).map(|s| s.current).unwrap_or_default();
                let there = core.generations(volume_nr(v)).is_none_or(|g| g[0].same(stored));
                self.nodes[n].volumes[v].generation_began = !there;
            }
        }
    }

    /// Metadata are about to be written. If that makes the activity log forget extents, what is known of them must be
    /// in the bitmap on the disk, and nothing in them may be in doubt.
    pub(crate) fn check_forgotten_extents(
        &mut self,
        n: usize,
        v: usize,
        core: &Resource,
        at: u64,
        bytes: &[u8],
    ) -> Result<(), String> {
        let superblock = self.superblock(n, v)?;
        let log = superblock.log();
        if !log.contains(&at) {
            return Ok(());
        }
        if on_disk::is_transaction(bytes) && !superblock.in_use {
            return Err("a transaction of the activity log, but the superblock does not say \"in use\"".to_owned());
        }
        let before = self.hot_extents(n, v).unwrap_or_default();
        let disk = self.nodes[n].volumes[v].meta_disk();
        let mut ring = disk.read_meta(log.start, log.end - log.start).expect("the ring is in the metadata");
        let from = (at - log.start) as usize;
        ring[from..from + bytes.len()].copy_from_slice(bytes);
        let after = superblock.hot(&ring).unwrap_or_default();
        let forgotten: BTreeSet<u64> = before.difference(&after).copied().collect();
        let peers = self.peers(n);
        let mut all = forgotten.into_iter().flat_map(|extent| peers.clone().map(move |peer| (extent, peer)));
        all.try_for_each(|(extent, peer)| {
            self.check_not_being_written(n, v, &superblock.bitmap_of(extent))?;
            self.check_forgotten((n, peer), v, core, extent)
        })
    }

    /// Nothing of these bytes of the metadata may be on its way to the disk: a loss of power may leave the older ones.
    fn check_not_being_written(&self, n: usize, v: usize, place: &std::ops::Range<u64>) -> Result<(), String> {
        let mut flights = self.nodes[n].flights.values().filter(|flight| flight.volume == v && !flight.orphan);
        let touches = |flight: &Flight| match &flight.work {
            Work::MetaWrite { at, bytes, .. } => *at < place.end && place.start < at + bytes.len() as u64,
            _ => false,
        };
        match flights.find(|flight| touches(flight)) {
            Some(_) => {
                Err(format!("an extent leaves the activity log while its bits, at {place:?}, are being written"))
            }
            None => Ok(()),
        }
    }

    fn check_forgotten(
        &mut self,
        (n, peer): (usize, usize),
        v: usize,
        core: &Resource,
        extent: u64,
    ) -> Result<(), String> {
        let start = extent * EXTENT;
        let range = sectors(start, start + EXTENT);
        // What was sent while there was no disk here is not on the one that is being attached.
        let attaching = core.state_word(volume_nr(v)).is_some_and(|w| w.disk == DiskState::Attaching);
        let unconfirmed = if attaching { Vec::new() } else { self.unconfirmed(n, peer, v, range) };
        let superblock = self.superblock(n, v)?;
        let size = superblock.size;
        let known = self.nodes[n].volumes[v].size;
        if known != 0 && known != size {
            // It is just being resized.
            return Ok(());
        }
        let in_memory = core.known_different(volume_nr(v), node_id(peer), sectors(start, range.end.0.min(size)));
        let marks = self.bitmap_on_disk((n, peer), v, extent)?;
        let on_disk = marks.count();
        if on_disk < in_memory {
            return Err(format!(
                "extent {extent} leaves the activity log with {in_memory} blocks marked, of which {on_disk} on the disk"
            ));
        }
        let first = start / 8;
        let here = superblock.bits_in(extent);
        let marked = |r: &SectorRange| {
            let bits = bits_of(*r);
            let within = bits.start.max(first) - first..bits.end.saturating_sub(first).min(here);
            { within }.all(|bit| marks.contains(bit))
        };
        match unconfirmed.into_iter().find(|r| !marked(r)) {
            Some(r) => Err(format!("{r:?} leaves the activity log before the peer has confirmed the write there")),
            None => Ok(()),
        }
    }

    /// What the bitmap on the disk that is about this peer says of an extent: bits from its first one on.
    fn bitmap_on_disk(&mut self, (n, peer): (usize, usize), v: usize, extent: u64) -> Result<BitSet, String> {
        let superblock = self.superblock(n, v)?;
        let place = superblock.bitmap_of(extent);
        let disk = self.nodes[n].volumes[v].meta_disk();
        let bytes = disk.read_meta(place.start, place.end - place.start).ok_or("an extent beyond the bitmap")?;
        Ok(superblock.marked(node_id(peer).index(), extent, &bytes))
    }

    /// All is well and quiet: all disks say so (S2 and S12 of `docs/spec/connection-and-state.md` B.1).
    pub(crate) fn check_settled_metadata(&mut self) {
        for v in 0..self.setup.volumes.len() {
            let nodes: Vec<usize> = self.with_disks().collect();
            let superblocks = nodes.iter().map(|n| self.superblock(*n, v)).collect::<Result<Vec<_>, _>>();
            let judged = superblocks.and_then(|superblocks| agree(&superblocks, &nodes));
            if let Err(text) = judged {
                self.fail(format!("volume {v} is UpToDate on all nodes and idle, but {text}"));
            }
        }
    }
}

/// Is this what the metadata of equal copies look like?
fn agree(superblocks: &[Rc<Superblock>], nodes: &[usize]) -> Result<(), String> {
    let generations: Vec<_> = superblocks.iter().map(|s| s.current).collect();
    if let Some(other) = generations.iter().find(|g| !g.same(generations[0])) {
        return Err(format!("their generations are {} and {other}", generations[0]));
    }
    for (n, s) in nodes.iter().zip(superblocks) {
        if !s.has(on_disk::CONSISTENT | on_disk::WAS_UP_TO_DATE) || s.has(on_disk::CRASHED_PRIMARY) {
            return Err(format!("a superblock has the flags {:#x}", s.flags));
        }
        let others = nodes.iter().filter(|peer| *peer != n);
        let mut counting = others.map(|peer| s.counts_from(node_id(*peer).index()));
        if let Some(from) = counting.find(|uuid| !uuid.is_none()) {
            return Err(format!("a bitmap counts from {from}"));
        }
    }
    Ok(())
}
