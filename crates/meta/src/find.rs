//! Recognising metadata on a device, and whether it may be attached (`docs/spec/on-disk-format.md` 1.8 to 1.10).

use crate::layout::{AlShape, Layout, LayoutError, MetaDisk, superblock_at};
use crate::superblock::{Superblock, SuperblockError, Version};
use crate::{BLOCK_LEN, Block};
use std::fmt;
use units::{ByteLen, NodeId, Sector};

/// A valid superblock and the layout that it belongs to.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Found {
    /// The superblock, with a size that fits.
    pub superblock: Superblock,
    /// Where everything is.
    pub layout: Layout,
    /// The stored size, if it was too large for the layout and therefore reduced.
    pub truncated_from: Option<Sector>,
}

/// Why there is no valid metadata at a place.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum FindError {
    /// The device does not even hold the block.
    DeviceTooSmall,
    /// Not a superblock.
    Superblock(SuperblockError),
    /// A superblock, but none that can be on this device.
    Layout(LayoutError),
    /// The stored positions are not those of this device: it was resized, or the superblock is not at home here.
    Misplaced,
}

/// Why a device must not be attached.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum AttachError {
    /// The activity log must be applied first.
    Unclean,
    /// Indexed metadata with a ring or granularity of its own.
    IndexedGeometry,
    /// The bitmap area is too small for the last agreed size.
    BitmapTooSmall,
    /// The metadata belongs to another node.
    NodeId {
        /// Node id in the superblock.
        stored: NodeId,
        /// Node id in the configuration.
        configured: NodeId,
    },
    /// The own node has a bitmap slot.
    OwnSlot,
    /// A peer has a slot that does not exist, or two peers have the same.
    Slot {
        /// Node id of the peer.
        peer: u8,
        /// The slot.
        slot: u8,
    },
}

/// Checks the block read from [`superblock_at`]: valid metadata for a device of this size and kind?
pub fn check(kind: MetaDisk, device: ByteLen, block: &Block) -> Result<Found, FindError> {
    superblock_at(kind, device).ok_or(FindError::DeviceTooSmall)?;
    let mut superblock = Superblock::parse(block).map_err(FindError::Superblock)?;
    let layout = Layout::new(kind, superblock.geometry, device).map_err(FindError::Layout)?;
    let (al_offset, bm_offset, md_size_sect) = layout.stored();
    let stored = superblock.placement;
    let size_ok = kind != MetaDisk::Internal || stored.md_size_sect == md_size_sect;
    if stored.al_offset != al_offset || stored.bm_offset != bm_offset || !size_ok {
        return Err(FindError::Misplaced);
    }
    let too_large = superblock.effective_size > layout.capacity();
    let truncated_from = too_large.then_some(superblock.effective_size);
    superblock.effective_size = superblock.effective_size.min(layout.capacity());
    Ok(Found { superblock, layout, truncated_from })
}

/// The position of internal metadata for the size that the device had when last seen, if it is worth looking there.
#[must_use]
pub fn last_known_at(kind: MetaDisk, device: ByteLen, last_known: ByteLen) -> Option<ByteLen> {
    let at = superblock_at(kind, last_known)?;
    let inside = at.0.checked_add(BLOCK_LEN as u64)? <= device.0;
    (kind == MetaDisk::Internal && last_known != device && inside).then_some(at)
}

/// Checks what a kernel checks before it attaches (`docs/spec/on-disk-format.md` 1.10). `own` is the configured node
/// id; `None` for a v08 peer-to-peer resource without node ids.
pub fn check_attach(found: &Found, own: Option<NodeId>) -> Result<(), AttachError> {
    let (sb, layout) = (&found.superblock, &found.layout);
    if !sb.is_clean() {
        return Err(AttachError::Unclean);
    }
    let plain = sb.geometry.al() == AlShape::DEFAULT && sb.geometry.bytes_per_bit() == 4096;
    if matches!(layout.kind(), MetaDisk::Indexed(_)) && !plain {
        return Err(AttachError::IndexedGeometry);
    }
    if sb.geometry.bitmap_bytes(sb.effective_size) > layout.bitmap_area().0 {
        return Err(AttachError::BitmapTooSmall);
    }
    if sb.version() == Version::V08 {
        return Ok(());
    }
    if let (Some(stored), Some(configured)) = (sb.node_id, own)
        && stored != configured
    {
        return Err(AttachError::NodeId { stored, configured });
    }
    if own.is_some_and(|own| sb.peers[own.index()].slot.is_some()) {
        return Err(AttachError::OwnSlot);
    }
    let mut taken = 0u32;
    for (peer, record) in sb.peers.iter().enumerate() {
        let Some(slot) = record.slot else { continue };
        if u32::from(slot) >= sb.geometry.slots() || taken >> slot & 1 == 1 {
            return Err(AttachError::Slot { peer: peer as u8, slot });
        }
        taken |= 1 << slot;
    }
    Ok(())
}

impl fmt::Display for FindError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FindError::DeviceTooSmall => f.write_str("the metadata device is too small to hold metadata"),
            FindError::Superblock(e) => e.fmt(f),
            FindError::Layout(e) => write!(f, "the superblock does not belong on this device: {e}"),
            FindError::Misplaced => f.write_str(
                "the superblock's positions are not those of this device: if the device was resized, run check-resize",
            ),
        }
    }
}

impl std::error::Error for FindError {}

impl fmt::Display for AttachError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            AttachError::Unclean => f.write_str("the metadata is unclean: run apply-al before attaching"),
            AttachError::IndexedGeometry => f.write_str(
                "indexed metadata must have the default activity log and 4096 bytes per bitmap bit: recreate it",
            ),
            AttachError::BitmapTooSmall => f.write_str(
                "the bitmap area is too small for the last agreed size: recreate the metadata on a larger device",
            ),
            AttachError::NodeId { stored, configured } => write!(
                f,
                "the metadata belongs to node {stored}, the configuration says node {configured}: check node-id and disk"
            ),
            AttachError::OwnSlot => {
                f.write_str("the node has a bitmap slot for itself: wrong node-id, or damaged metadata")
            }
            AttachError::Slot { peer, slot } => {
                write!(f, "bitmap slot {slot} of node {peer} does not exist or is taken twice: recreate the metadata")
            }
        }
    }
}

impl std::error::Error for AttachError {}
