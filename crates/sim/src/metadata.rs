//! What must be on a disk before something else goes there (`docs/spec/on-disk-format.md` 2.8, 2.9, 3.7, 4.3).

use crate::cluster::{Cluster, Volume};
use crate::disk::Disk;
use crate::plan::{node_id, others, volume_nr};
use crate::ranges::sectors;
use meta::activity_log::replay::replay;

use meta::{BLOCK_LEN, BitmapArea, DeviceFlags, PeerRecord, Superblock, Version};
use std::collections::BTreeSet;
use std::rc::Rc;
use units::{BitSet, Generation, SectorRange};
use urbd_core::Resource;
use wire::DiskState;

/// Sectors of an activity-log extent: 4 MiB.
const EXTENT: u64 = 1 << 13;

/// What was read from a disk's metadata and is still there.
#[derive(Debug, Default)]
pub(crate) struct Known {
    /// [`Disk::meta_writes`](crate::disk::Disk::meta_writes) when it was read.
    as_of: u64,
    superblock: Option<Rc<Superblock>>,
    hot: Option<Rc<BTreeSet<u32>>>,
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
        let at = self.setup.volumes[v].layout(n).superblock_at().0;
        let (disk, known) = self.nodes[n].volumes[v].metadata();
        let superblock = known.superblock.take().map(Ok).unwrap_or_else(|| {
            let bytes = disk.read_meta(at, BLOCK_LEN as u64).ok_or("there is no superblock")?;
            let parsed = Superblock::parse(bytes.first_chunk().ok_or("half a superblock")?);
            parsed.map(Rc::new).map_err(|e| format!("superblock: {e}"))
        });
        known.superblock = superblock.clone().ok();
        superblock
    }

    /// The extents in the activity log as reads of the disk return it.
    pub(crate) fn hot_extents(&mut self, n: usize, v: usize) -> Result<Rc<BTreeSet<u32>>, String> {
        let layout = self.setup.volumes[v].layout(n);
        let shape = layout.geometry().al();
        let format = self.superblock(n, v)?.format;
        let (disk, known) = self.nodes[n].volumes[v].metadata();
        let hot = known.hot.take().map(Ok).unwrap_or_else(|| {
            let ring = disk.read_meta(layout.al_at().0, shape.bytes().0).expect("the ring is in the metadata");
            let replayed = replay(&ring, shape, format, 67).map(|r| Rc::new(r.hot));
            replayed.map_err(|e| format!("the activity log cannot be replayed: {e:?}"))
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
        if !superblock.flags.contains(DeviceFlags::PRIMARY_IND) {
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
        let stored = peer_record(&*self.superblock(n, v)?, peer).bitmap_uuid;
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
        let layout = self.setup.volumes[v].layout(n);
        let shape = layout.geometry().al();
        let Some(from) = at.checked_sub(layout.al_at().0).filter(|from| *from < shape.bytes().0) else { return Ok(()) };
        let before = self.hot_extents(n, v).unwrap_or_default();
        let format = self.superblock(n, v)?.format;
        let disk = self.nodes[n].volumes[v].meta_disk();
        let mut ring = disk.read_meta(layout.al_at().0, shape.bytes().0).expect("the ring is in the metadata");
        ring[from as usize..from as usize + bytes.len()].copy_from_slice(bytes);
        let after = replay(&ring, shape, format, 67).map(|r| r.hot).unwrap_or_default();
        let forgotten: BTreeSet<u32> = before.difference(&after).copied().collect();
        let peers = self.peers(n);
        let mut all = forgotten.into_iter().flat_map(|extent| peers.clone().map(move |peer| (extent, peer)));
        all.try_for_each(|(extent, peer)| self.check_forgotten((n, peer), v, core, extent))
    }

    fn check_forgotten(
        &mut self,
        (n, peer): (usize, usize),
        v: usize,
        core: &Resource,
        extent: u32,
    ) -> Result<(), String> {
        let start = u64::from(extent) * EXTENT;
        let range = sectors(start, start + EXTENT);
        // What was sent while there was no disk here is not on the one that is being attached.
        let attaching = core.state_word(volume_nr(v)).is_some_and(|w| w.disk == DiskState::Attaching);
        let unconfirmed = if attaching { Vec::new() } else { self.unconfirmed(n, peer, v, range) };
        let size = self.superblock(n, v)?.effective_size;
        let known = self.nodes[n].volumes[v].size;
        if known != 0 && known != size.0 {
            // It is just being resized.
            return Ok(());
        }
        let in_memory = core.known_different(volume_nr(v), node_id(peer), sectors(start, range.end.0.min(size.0)));
        let (area, bits) = self.bitmap_on_disk((n, peer), v, extent)?;
        let on_disk = area.extent_bits(extent).filter(|bit| bits.contains(*bit)).count() as u64;
        if on_disk < in_memory {
            return Err(format!(
                "extent {extent} leaves the activity log with {in_memory} blocks marked, of which {on_disk} on the disk"
            ));
        }
        let marked = |r: &SectorRange| area.touched(*r).all(|bit| bits.contains(bit) || bit >= area.bits());
        match unconfirmed.into_iter().find(|r| !marked(r)) {
            Some(r) => Err(format!("{r:?} leaves the activity log before the peer has confirmed the write there")),
            None => Ok(()),
        }
    }

    /// What the bitmap on the disk that is about this peer says of an extent.
    fn bitmap_on_disk(
        &mut self,
        (n, peer): (usize, usize),
        v: usize,
        extent: u32,
    ) -> Result<(BitmapArea, BitSet), String> {
        let superblock = self.superblock(n, v)?;
        let layout = self.setup.volumes[v].layout(n);
        let area = BitmapArea::new(superblock.geometry, superblock.effective_size);
        let bits = area.extent_bits(extent);
        let mut slots: Vec<BitSet> = (0..area.slots()).map(|_| BitSet::new(area.bits())).collect();
        let disk = self.nodes[n].volumes[v].meta_disk();
        for page in area.pages_of(bits) {
            let at = layout.bitmap_page_at(page).0;
            let bytes = disk.read_meta(at, BLOCK_LEN as u64).expect("the bitmap is in the metadata");
            area.load(page, bytes.first_chunk().expect("a page"), &mut slots);
        }
        let slot = peer_record(&superblock, peer).slot.map_or(0, usize::from);
        Ok((area, slots.swap_remove(slot)))
    }

    /// All is well and quiet: all disks say so (S2 and S12 of `docs/spec/connection-and-state.md` B.1).
    pub(crate) fn check_settled_metadata(&mut self) {
        for v in 0..self.setup.volumes.len() {
            let nodes = 0..self.nodes.len();
            let judged = nodes.map(|n| self.superblock(n, v)).collect::<Result<Vec<_>, _>>().and_then(|s| agree(&s));
            if let Err(text) = judged {
                self.fail(format!("volume {v} is UpToDate on all nodes and idle, but {text}"));
            }
        }
    }
}

/// What the superblock of a node says of another one.
fn peer_record(superblock: &Superblock, peer: usize) -> &PeerRecord {
    match superblock.version() {
        Version::V08 => superblock.v08_peer(),
        Version::V09 => &superblock.peers[node_id(peer).index()],
    }
}

/// Is this what the metadata of equal copies look like?
fn agree(superblocks: &[Rc<Superblock>]) -> Result<(), String> {
    let generations: Vec<_> = superblocks.iter().map(|s| s.current).collect();
    if let Some(other) = generations.iter().find(|g| !g.same(generations[0])) {
        return Err(format!("their generations are {} and {other}", generations[0]));
    }
    for (n, s) in superblocks.iter().enumerate() {
        let good = DeviceFlags::CONSISTENT | DeviceFlags::WAS_UP_TO_DATE;
        if !s.flags.contains(good) || s.flags.contains(DeviceFlags::CRASHED_PRIMARY) {
            return Err(format!("a superblock has the flags {:?}", s.flags));
        }
        let counting = others(n, superblocks.len()).map(|peer| peer_record(s, peer).bitmap_uuid);
        if let Some(from) = counting.into_iter().find(|uuid| !uuid.is_none()) {
            return Err(format!("a bitmap counts from {from}"));
        }
    }
    Ok(())
}
