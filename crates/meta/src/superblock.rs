//! The superblock: one in-memory model for both on-disk formats (`docs/spec/on-disk-format.md` 2).
//!
//! The model is v09's. A v08 superblock knows one peer; it is held in [`Superblock::V08_PEER`], with the three v08
//! device flags that speak of the peer (0x04, 0x08, 0x20) as flags of that peer, just as the reference converts them.

mod flags;
mod v08;
mod v09;

pub use flags::{DeviceFlags, PeerFlags};

use crate::Block;
use crate::bytes::be32;
use crate::layout::{Geometry, Layout, LayoutError};
use std::fmt;
use units::{Generation, NodeId, NodeMask, Sector};

const MAGIC_AT: usize = 60;

/// An on-disk format.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Version {
    /// DRBD 8.0 to 8.4.
    V08,
    /// DRBD 9.
    V09,
}

/// The format as its magic number tells it (`docs/spec/on-disk-format.md` 1.8).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Format {
    /// v08 as the offline tools leave it.
    V08,
    /// v08 in use by an 8.4 kernel (or by us): the activity log must be applied before the next attach.
    V08InUse,
    /// v09.
    V09,
}

/// What the superblock knows about one peer, found by its node id.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct PeerRecord {
    /// The generation that the bitmap of this peer is relative to; 0 is none.
    pub bitmap_uuid: Generation,
    /// Write sequence position (sectors) at which `bitmap_uuid` was set. Always 0 in v08.
    pub bitmap_dagtag: u64,
    /// Flags of the peer.
    pub flags: PeerFlags,
    /// Bitmap slot, 0 to 31. In v08 the one peer has slot 0.
    pub slot: Option<u8>,
}

impl PeerRecord {
    /// Is there such a node, as far as these metadata know: has it a bitmap, a disk that was seen, or is it noted to
    /// exist?
    #[must_use]
    pub fn is_known(&self) -> bool {
        let exists = PeerFlags::NODE_EXISTS | PeerFlags::DEVICE_SEEN;
        self.slot.is_some() || self.flags.0 & exists.0 != 0
    }
}

/// Positions as they are stored, in sectors from the superblock. Only a [`Layout`] makes them true.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Placement {
    /// First sector of the activity log.
    pub al_offset: i32,
    /// First sector of the bitmap.
    pub bm_offset: i32,
    /// Sectors of all metadata.
    pub md_size_sect: u32,
}

/// A superblock of either format.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Superblock {
    /// On-disk format.
    pub format: Format,
    /// Last agreed device size, 0 if never agreed.
    pub effective_size: Sector,
    /// Current data generation; bit 0 is unreliable on disk.
    pub current: Generation,
    /// Nodes that were members at the last state change (v09; 0 is unknown).
    pub members: NodeMask,
    /// Random id of this metadata, for tools only; 0 is none.
    pub device_uuid: u64,
    /// Device flags. For v08 without the three that are in `peers[0].flags`.
    pub flags: DeviceFlags,
    /// Activity log extents of the last user (information only).
    pub al_extents: u32,
    /// Largest request size that the peer (v08) or we (v09) support, in bytes; 0 is unknown.
    pub max_bio: u32,
    /// Own node id (v09), `None` until the first attach.
    pub node_id: Option<NodeId>,
    /// Bitmap slots, granularity, ring.
    pub geometry: Geometry,
    /// Stored positions.
    pub placement: Placement,
    /// By node id. In v08 only [`Superblock::V08_PEER`] is used.
    pub peers: [PeerRecord; NodeId::COUNT],
    /// Past generations, youngest first. v08 stores the first two.
    pub history: [Generation; 32],
}

/// Why 4096 bytes are not a superblock.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum SuperblockError {
    /// No magic number of a metadata format.
    NoMagic(u32),
    /// DRBD 0.6 or 0.7 metadata, which only their own tools can convert.
    TooOld(u32),
    /// A field that decides about positions is impossible.
    Geometry(LayoutError),
    /// The node id is not -1 to 31.
    NodeId(i32),
    /// A peer's bitmap slot is not -1 to 31.
    Slot {
        /// Node id of the peer.
        peer: u8,
        /// The stored value.
        slot: i32,
    },
}

impl Superblock {
    /// Where the one peer of a v08 superblock is held.
    pub const V08_PEER: usize = 0;

    /// Where a peer's record is.
    #[must_use]
    pub fn owner(&self, peer: NodeId) -> usize {
        if self.version() == Version::V09 { peer.index() } else { Self::V08_PEER }
    }

    /// A peer's record.
    #[must_use]
    pub fn peer(&self, peer: NodeId) -> &PeerRecord {
        &self.peers[self.owner(peer)]
    }

    /// The same, to be changed.
    pub fn peer_mut(&mut self, peer: NodeId) -> &mut PeerRecord {
        &mut self.peers[self.owner(peer)]
    }

    /// The superblock that create-md writes: generation "just created", clean, everything else 0 or unassigned
    /// (`docs/spec/on-disk-format.md` 1.11). The geometry of v08 must have one slot and 4096 bytes per bit.
    #[must_use]
    pub fn fresh(version: Version, layout: &Layout) -> Superblock {
        let mut peers = [PeerRecord::default(); NodeId::COUNT];
        if version == Version::V08 {
            peers[Self::V08_PEER].slot = Some(0);
        }
        let mut sb = Superblock {
            format: match version {
                Version::V08 => Format::V08,
                Version::V09 => Format::V09,
            },
            effective_size: Sector(0),
            current: Generation::JUST_CREATED,
            members: NodeMask::default(),
            device_uuid: 0,
            flags: DeviceFlags::AL_CLEAN,
            al_extents: 257,
            max_bio: 0,
            node_id: None,
            geometry: layout.geometry(),
            placement: Placement::default(),
            peers,
            history: [Generation::NONE; 32],
        };
        sb.place(layout);
        sb
    }

    /// Reads a superblock of either format. Reserved bytes are ignored. Positions are not checked: see
    /// [`find`](crate::find).
    pub fn parse(b: &Block) -> Result<Superblock, SuperblockError> {
        match be32(b, MAGIC_AT) {
            v08::MAGIC => v08::parse(b, Format::V08),
            v08::MAGIC_IN_USE => v08::parse(b, Format::V08InUse),
            v09::MAGIC => v09::parse(b),
            m @ (0x8374_0269 | 0x8374_026A) => Err(SuperblockError::TooOld(m)),
            m => Err(SuperblockError::NoMagic(m)),
        }
    }

    /// The 4096 bytes to write at [`Layout::superblock_at`].
    #[must_use]
    pub fn emit(&self) -> Box<Block> {
        let mut b = Box::new([0; crate::BLOCK_LEN]);
        self.emit_into(&mut b);
        b
    }

    /// As [`emit`](Self::emit), into a buffer of the caller; all of it is overwritten.
    pub fn emit_into(&self, b: &mut Block) {
        b.fill(0);
        match self.version() {
            Version::V08 => v08::emit(self, b),
            Version::V09 => v09::emit(self, b),
        }
    }

    /// The format without its "in use" mark.
    #[must_use]
    pub fn version(&self) -> Version {
        match self.format {
            Format::V08 | Format::V08InUse => Version::V08,
            Format::V09 => Version::V09,
        }
    }

    /// Takes geometry and stored positions from `layout`.
    pub fn place(&mut self, layout: &Layout) {
        let (al_offset, bm_offset, md_size_sect) = layout.stored();
        self.geometry = layout.geometry();
        self.placement = Placement { al_offset, bm_offset, md_size_sect };
    }

    /// Has the activity log been applied and re-initialised, so that a kernel would attach?
    #[must_use]
    pub fn is_clean(&self) -> bool {
        self.format != Format::V08InUse && self.flags.contains(DeviceFlags::AL_CLEAN)
    }

    /// Marks the metadata clean. Only with a re-initialised activity log on disk and while no transaction may follow.
    pub fn mark_clean(&mut self) {
        self.flags.insert(DeviceFlags::AL_CLEAN);
        if self.format == Format::V08InUse {
            self.format = Format::V08;
        }
    }

    /// Marks the metadata as in use. Must be durable before the first activity log transaction.
    pub fn mark_in_use(&mut self) {
        self.flags.remove(DeviceFlags::AL_CLEAN);
        if self.format == Format::V08 {
            self.format = Format::V08InUse;
        }
    }

    /// The one peer of v08.
    #[must_use]
    pub fn v08_peer(&self) -> &PeerRecord {
        &self.peers[Self::V08_PEER]
    }

    /// The v08 flags word: device flags with those of the one peer folded in (`docs/spec/on-disk-format.md` 2.3).
    #[must_use]
    pub fn v08_flags(&self) -> u32 {
        self.flags.0 | v08::peer_to_device_flags(self.v08_peer().flags)
    }

    /// Sets device flags and those of the one peer from a v08 flags word.
    pub fn put_v08_flags(&mut self, word: u32) {
        self.flags = DeviceFlags(word & !v08::PEER_BITS);
        self.peers[Self::V08_PEER].flags = v08::device_to_peer_flags(word);
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Version::V08 => "v08",
            Version::V09 => "v09",
        })
    }
}

impl fmt::Display for SuperblockError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SuperblockError::NoMagic(m) => {
                write!(f, "no metadata here (magic number {m:#010x})")
            }
            SuperblockError::TooOld(m) => {
                write!(f, "metadata of DRBD 0.6 or 0.7 (magic number {m:#010x}); convert it with drbdmeta of DRBD 8.4")
            }
            SuperblockError::Geometry(e) => write!(f, "the superblock is damaged: {e}"),
            SuperblockError::NodeId(n) => {
                write!(f, "the superblock is damaged: node id {n} is not -1 to 31")
            }
            SuperblockError::Slot { peer, slot } => {
                write!(f, "the superblock is damaged: bitmap slot {slot} of peer {peer} is not -1 to 31")
            }
        }
    }
}

impl std::error::Error for SuperblockError {}

impl From<LayoutError> for SuperblockError {
    fn from(e: LayoutError) -> Self {
        SuperblockError::Geometry(e)
    }
}
