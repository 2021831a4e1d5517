//! v09 bytes (`docs/spec/on-disk-format.md` 2.2).

use super::{DeviceFlags, Format, PeerFlags, PeerRecord, Placement, Superblock, SuperblockError};
use crate::Block;
use crate::bytes::{be32, be64, put32, put64};
use crate::layout::{AlShape, Geometry};
use units::{Generation, NodeId, NodeMask, Sector};

pub(super) const MAGIC: u32 = 0x8374_026D;

const PEERS_AT: usize = 112;
const PEER_LEN: usize = 32;
const HISTORY_AT: usize = 1136;

pub(super) fn parse(b: &Block) -> Result<Superblock, SuperblockError> {
    let al = AlShape::new(be32(b, 96), be32(b, 100))?;
    let geometry = Geometry::new(be32(b, 88), be32(b, 80), al)?;
    let node_id = be32(b, 92) as i32;
    let mut peers = [PeerRecord::default(); NodeId::COUNT];
    for (i, peer) in peers.iter_mut().enumerate() {
        *peer = parse_peer(&b[PEERS_AT + i * PEER_LEN..][..PEER_LEN], i as u8)?;
    }
    Ok(Superblock {
        format: Format::V09,
        effective_size: Sector(be64(b, 0)),
        current: Generation(be64(b, 8)),
        members: NodeMask(be64(b, 16) as u32),
        device_uuid: be64(b, 48),
        flags: DeviceFlags(be32(b, 56)),
        al_extents: be32(b, 72),
        max_bio: be32(b, 84),
        node_id: match node_id {
            -1 => None,
            n => Some(u8::try_from(n).ok().and_then(NodeId::new).ok_or(SuperblockError::NodeId(n))?),
        },
        geometry,
        placement: Placement {
            al_offset: be32(b, 68) as i32,
            bm_offset: be32(b, 76) as i32,
            md_size_sect: be32(b, 64),
        },
        peers,
        history: std::array::from_fn(|i| Generation(be64(b, HISTORY_AT + 8 * i))),
    })
}

fn parse_peer(b: &[u8], peer: u8) -> Result<PeerRecord, SuperblockError> {
    let slot = match be32(b, 20) as i32 {
        -1 => None,
        n @ 0..=31 => Some(n as u8),
        slot => return Err(SuperblockError::Slot { peer, slot }),
    };
    Ok(PeerRecord {
        bitmap_uuid: Generation(be64(b, 0)),
        bitmap_dagtag: be64(b, 8),
        flags: PeerFlags(be32(b, 16) & !PeerFlags::HAVE_BITMAP.0),
        slot,
    })
}

pub(super) fn emit(sb: &Superblock, b: &mut Block) {
    put64(b, 0, sb.effective_size.0);
    put64(b, 8, sb.current.0);
    put64(b, 16, u64::from(sb.members.0));
    put64(b, 48, sb.device_uuid);
    put32(b, 56, sb.flags.0);
    put32(b, 60, MAGIC);
    put32(b, 64, sb.placement.md_size_sect);
    put32(b, 68, sb.placement.al_offset as u32);
    put32(b, 72, sb.al_extents);
    put32(b, 76, sb.placement.bm_offset as u32);
    put32(b, 80, sb.geometry.bytes_per_bit());
    put32(b, 84, sb.max_bio);
    put32(b, 88, sb.geometry.slots());
    put32(b, 92, sb.node_id.map_or(u32::MAX, |n| n.index() as u32));
    put32(b, 96, sb.geometry.al().stripes());
    put32(b, 100, sb.geometry.al().stripe_blocks());
    for (i, peer) in sb.peers.iter().enumerate() {
        let b = &mut b[PEERS_AT + i * PEER_LEN..][..PEER_LEN];
        put64(b, 0, peer.bitmap_uuid.0);
        put64(b, 8, peer.bitmap_dagtag);
        put32(b, 16, peer.flags.0 & !PeerFlags::HAVE_BITMAP.0);
        put32(b, 20, peer.slot.map_or(u32::MAX, u32::from));
    }
    for (i, g) in sb.history.iter().enumerate() {
        put64(b, HISTORY_AT + 8 * i, g.0);
    }
}
