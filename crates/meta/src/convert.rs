//! Conversion between v08 and v09 in place (`docs/spec/on-disk-format.md` 1.13). Activity log and bitmap keep their
//! place and bytes, so it is only possible where the v09 metadata has one slot of 4096 bytes per bit.

use crate::layout::Layout;
use crate::superblock::{Format, Superblock, Version};
use units::{Generation, NodeMask};

/// The v09 bitmap is not one that v08 can have: dump, recreate and restore instead.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NotConvertible;

/// The superblock in the other `version`; unchanged if it has that version already. `layout` is that of the superblock.
///
/// To v09 the bitmap UUID is dropped, no peer has a slot, and there is one slot. To v08 what was known about node 0
/// becomes what is known about the peer.
pub fn superblock(sb: &Superblock, version: Version, layout: &Layout) -> Result<Superblock, NotConvertible> {
    let mut out = sb.clone();
    match (sb.version(), version) {
        (Version::V08, Version::V09) => to_v09(&mut out),
        (Version::V09, Version::V08) => {
            if sb.geometry.slots() != 1 || sb.geometry.bytes_per_bit() != 4096 {
                return Err(NotConvertible);
            }
            to_v08(&mut out);
        }
        _ => {}
    }
    out.place(layout);
    Ok(out)
}

fn to_v09(sb: &mut Superblock) {
    sb.format = Format::V09;
    sb.members = NodeMask::default();
    sb.node_id = None;
    let peer = &mut sb.peers[Superblock::V08_PEER];
    peer.bitmap_uuid = Generation::NONE;
    peer.slot = None;
}

fn to_v08(sb: &mut Superblock) {
    let word = sb.v08_flags();
    sb.format = Format::V08;
    sb.put_v08_flags(word);
    sb.members = NodeMask::default();
    sb.node_id = None;
    sb.history[2..].fill(Generation::NONE);
    for peer in sb.peers.iter_mut().skip(1) {
        *peer = Default::default();
    }
    let peer = &mut sb.peers[Superblock::V08_PEER];
    peer.slot = Some(0);
    peer.bitmap_dagtag = 0;
}

impl std::fmt::Display for NotConvertible {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(
            "the bitmap has several slots or a coarser granularity: use dump-md, create-md and restore-md instead",
        )
    }
}

impl std::error::Error for NotConvertible {}
