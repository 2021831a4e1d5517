//! v08 bytes (`docs/spec/on-disk-format.md` 2.1).

use super::{DeviceFlags, Format, PeerFlags, PeerRecord, Placement, Superblock, SuperblockError};
use crate::Block;
use crate::bytes::{be32, be64, put32, put64};
use crate::layout::{AlShape, Geometry, LayoutError};
use units::{Generation, NodeId, NodeMask, Sector};

pub(super) const MAGIC: u32 = 0x8374_026B;
pub(super) const MAGIC_IN_USE: u32 = 0x8374_026C;

/// Device flag bits that speak of the peer, each with the peer flag that it is in the model.
const PEER_FLAG_PAIRS: [(u32, PeerFlags); 3] =
    [(0x04, PeerFlags::CONNECTED), (0x08, PeerFlags::FULL_SYNC), (0x20, PeerFlags::OUTDATED)];
pub(super) const PEER_BITS: u32 = 0x2c;

pub(super) fn device_to_peer_flags(word: u32) -> PeerFlags {
    let mut flags = PeerFlags::default();
    for (bit, flag) in PEER_FLAG_PAIRS {
        flags.put(flag, word & bit != 0);
    }
    flags
}

pub(super) fn peer_to_device_flags(flags: PeerFlags) -> u32 {
    PEER_FLAG_PAIRS.iter().filter(|(_, f)| flags.contains(*f)).map(|(bit, _)| bit).sum()
}

pub(super) fn parse(b: &Block, format: Format) -> Result<Superblock, SuperblockError> {
    let bytes_per_bit = be32(b, 80);
    if bytes_per_bit != 4096 {
        return Err(LayoutError::BytesPerBit(bytes_per_bit).into());
    }
    let al = match (be32(b, 88), be32(b, 92)) {
        (0, 0) => AlShape::DEFAULT,
        (s, z) => AlShape::new(s, z)?,
    };
    let word = be32(b, 56);
    let mut peers = [PeerRecord::default(); NodeId::COUNT];
    peers[Superblock::V08_PEER] = PeerRecord {
        bitmap_uuid: Generation(be64(b, 16)),
        bitmap_dagtag: 0,
        flags: device_to_peer_flags(word),
        slot: Some(0),
    };
    let mut history = [Generation::NONE; 32];
    history[0] = Generation(be64(b, 24));
    history[1] = Generation(be64(b, 32));
    Ok(Superblock {
        format,
        effective_size: Sector(be64(b, 0)),
        current: Generation(be64(b, 8)),
        members: NodeMask::default(),
        device_uuid: be64(b, 40),
        flags: DeviceFlags(word & !PEER_BITS),
        al_extents: be32(b, 72),
        max_bio: be32(b, 84),
        node_id: None,
        geometry: Geometry::V08.with_al(al),
        placement: Placement {
            al_offset: be32(b, 68) as i32,
            bm_offset: be32(b, 76) as i32,
            md_size_sect: be32(b, 64),
        },
        peers,
        history,
    })
}

pub(super) fn emit(sb: &Superblock, b: &mut Block) {
    let in_use = sb.format == Format::V08InUse;
    put64(b, 0, sb.effective_size.0);
    put64(b, 8, sb.current.0);
    put64(b, 16, sb.v08_peer().bitmap_uuid.0);
    put64(b, 24, sb.history[0].0);
    put64(b, 32, sb.history[1].0);
    put64(b, 40, sb.device_uuid);
    put32(b, 56, sb.v08_flags());
    put32(b, 60, if in_use { MAGIC_IN_USE } else { MAGIC });
    put32(b, 64, sb.placement.md_size_sect);
    put32(b, 68, sb.placement.al_offset as u32);
    put32(b, 72, sb.al_extents);
    put32(b, 76, sb.placement.bm_offset as u32);
    put32(b, 80, 4096);
    put32(b, 84, sb.max_bio);
    put32(b, 88, sb.geometry.al().stripes());
    put32(b, 92, sb.geometry.al().stripe_blocks());
}
