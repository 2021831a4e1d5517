//! Resizing: moving internal metadata after its device was grown while it was down (`docs/spec/on-disk-format.md` 7.2),
//! and what protects an online resize from a crash (7.1).

use crate::BLOCK_LEN;
use crate::create::InitialBitmap;
use crate::find::Found;
use crate::layout::{Layout, LayoutError, MetaDisk};
use crate::plan::Step;
use crate::superblock::{DeviceFlags, PeerFlags, Superblock, Version};
use std::fmt;
use units::ByteLen;

/// Why metadata cannot be moved.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum MoveError {
    /// Only internal metadata moves.
    NotInternal,
    /// The device is not larger than before.
    NotGrown,
    /// There is no layout for the new size.
    Layout(LayoutError),
}

/// Plans moving metadata `found` at the last known place to the end of a device that is now `device` bytes long. The
/// old bitmap comes to lie at the start of the new area (same bit numbers); the rest of it is filled as asked. The new
/// superblock is written, and everything flushed, before the old region is zeroed.
pub fn plan_move(
    found: &Found,
    device: ByteLen,
    tail: InitialBitmap,
) -> Result<(Superblock, Layout, Vec<Step>), MoveError> {
    let old = &found.layout;
    if old.kind() != MetaDisk::Internal {
        return Err(MoveError::NotInternal);
    }
    if device.0 <= old.device().0
        || old.superblock_at() == crate::layout::superblock_at(old.kind(), device).unwrap_or_default()
    {
        return Err(MoveError::NotGrown);
    }
    let new = Layout::new(MetaDisk::Internal, old.geometry(), device).map_err(MoveError::Layout)?;
    let mut superblock = found.superblock.clone();
    superblock.place(&new);
    // The activity log first: its new place is never below the end of the old bitmap, but the bitmap's new place may
    // overlap the old log.
    let mut steps = vec![
        Step::Copy { from: old.al_at(), to: new.al_at(), len: old.geometry().al().bytes() },
        Step::Copy { from: old.bitmap_at(), to: new.bitmap_at(), len: old.bitmap_area() },
    ];
    let tail_at = new.bitmap_at() + old.bitmap_area();
    let tail_len = new.bitmap_area() - old.bitmap_area();
    let byte = match tail {
        InitialBitmap::Zero => Some(0),
        InitialBitmap::Ones => Some(0xFF),
        InitialBitmap::Skip => None,
    };
    if let Some(byte) = byte.filter(|_| tail_len.0 > 0) {
        steps.push(Step::Fill { at: tail_at, len: tail_len, byte });
    }
    steps.extend([Step::Flush, Step::block(new.superblock_at(), &superblock.emit()), Step::Flush]);
    let old_end = old.superblock_at().0 + BLOCK_LEN as u64;
    let zero_to = old_end.min(new.bitmap_at().0);
    if zero_to > old.bitmap_at().0 {
        let len = ByteLen(zero_to - old.bitmap_at().0);
        steps.extend([Step::Fill { at: old.bitmap_at(), len, byte: 0 }, Step::Flush]);
    }
    Ok((superblock, new, steps))
}

/// The superblock that is on disk, at its new place, while an attached device is resized or its activity log changes
/// shape (`docs/spec/on-disk-format.md` 7.1 steps 3 to 6): a crash before the end leaves a full sync, and no lost
/// block. When log and bitmap are written at their new places, the real flags with the same positions follow.
#[must_use]
pub fn interim(superblock: &Superblock, new: &Layout) -> Superblock {
    let mut sb = superblock.clone();
    sb.place(new);
    sb.flags.insert(DeviceFlags::AL_DISABLED);
    let peers = if sb.version() == Version::V08 { 1 } else { sb.peers.len() };
    for peer in &mut sb.peers[..peers] {
        peer.flags.insert(PeerFlags::FULL_SYNC);
    }
    sb
}

impl fmt::Display for MoveError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            MoveError::NotInternal => f.write_str("only internal metadata moves when its device grows"),
            MoveError::NotGrown => f.write_str("the device has not grown: nothing to move"),
            MoveError::Layout(e) => e.fmt(f),
        }
    }
}

impl std::error::Error for MoveError {}
