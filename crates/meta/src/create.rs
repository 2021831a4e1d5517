//! `create-md` and `wipe-md` (`docs/spec/on-disk-format.md` 1.11, 1.14).

use crate::BLOCK_LEN;
use crate::apply_al::initialize_al;
use crate::layout::Layout;
use crate::plan::Step;
use crate::superblock::{DeviceFlags, PeerFlags, Superblock, Version};
use std::fmt;
use units::{ByteLen, Generation, Sector};

/// Bitmap content at creation.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum InitialBitmap {
    /// All clear.
    #[default]
    Zero,
    /// All set.
    Ones,
    /// Whatever is there.
    Skip,
}

/// Options of `create-md`; the default is what it does without any.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct CreateOptions {
    /// Last agreed size to start with.
    pub effective_size: Sector,
    /// Largest request of the peer in bytes, 0 to 1048576.
    pub max_bio: u32,
    /// Bitmap content.
    pub bitmap: InitialBitmap,
    /// Random id of the metadata; 0 is none.
    pub device_uuid: u64,
    /// Current generation instead of "just created" (v09); bit 0 is cleared.
    pub current: Option<Generation>,
    /// Declare the data consistent (v09).
    pub consistent: bool,
    /// Declare the data consistent and up to date (v09).
    pub up_to_date: bool,
    /// Declare all peers outdated (v09).
    pub peers_outdated: bool,
    /// An earlier generation that all peers are known to have had, which goes into all bitmap UUIDs and the history
    /// (v09).
    pub day0: Option<Generation>,
    /// Nodes whose peer device counts as seen (v09), bit n for node n.
    pub diskful_peers: u32,
}

/// Why metadata cannot be created as asked.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum CreateError {
    /// The activity log exceeds the tools' limit of 32 MiB.
    AlTooLarge(u32),
    /// v08 has one slot and 4096 bytes per bit.
    NotV08,
    /// The option is for v09 only.
    V09Only(&'static str),
    /// The size exceeds what the layout can serve.
    SizeTooLarge {
        /// Size asked for.
        asked: Sector,
        /// Largest possible.
        capacity: Sector,
    },
    /// The largest request exceeds 1 MiB.
    MaxBio(u32),
    /// Data that is declared consistent needs a real generation (not 0 or "just created").
    NoGeneration,
}

/// Plans fresh metadata: activity log, bitmap, superblock, in this order. The check for existing data
/// ([`existing`](crate::existing)) comes before.
pub fn plan(
    version: Version,
    layout: &Layout,
    options: &CreateOptions,
) -> Result<(Superblock, Vec<Step>), CreateError> {
    let superblock = superblock(version, layout, options)?;
    let mut steps = vec![initialize_al(layout)];
    let area = Step::Fill { at: layout.bitmap_at(), len: bitmap_len(layout), byte: 0 };
    match options.bitmap {
        InitialBitmap::Zero => steps.push(area),
        InitialBitmap::Ones => {
            steps.push(Step::Fill { at: layout.bitmap_at(), len: bitmap_len(layout), byte: 0xFF });
        }
        InitialBitmap::Skip => {}
    }
    steps.extend([Step::Flush, Step::block(layout.superblock_at(), &superblock.emit()), Step::Flush]);
    Ok((superblock, steps))
}

/// Overwrites the superblock, and only it.
#[must_use]
pub fn wipe(layout: &Layout) -> Vec<Step> {
    vec![Step::Fill { at: layout.superblock_at(), len: ByteLen(BLOCK_LEN as u64), byte: 0 }, Step::Flush]
}

/// The bitmap area, as far as the device has it (an indexed slot may be cut off by the end of the device).
fn bitmap_len(layout: &Layout) -> ByteLen {
    let to_end = layout.device().0.saturating_sub(layout.bitmap_at().0) / 512 * 512;
    ByteLen(layout.bitmap_area().0.min(to_end))
}

fn superblock(version: Version, layout: &Layout, o: &CreateOptions) -> Result<Superblock, CreateError> {
    let geometry = layout.geometry();
    if geometry.al().blocks() > 8192 {
        return Err(CreateError::AlTooLarge(geometry.al().blocks()));
    }
    if o.max_bio > 1 << 20 {
        return Err(CreateError::MaxBio(o.max_bio));
    }
    if o.effective_size > layout.capacity() {
        return Err(CreateError::SizeTooLarge { asked: o.effective_size, capacity: layout.capacity() });
    }
    if version == Version::V08 {
        if geometry.slots() != 1 || geometry.bytes_per_bit() != 4096 {
            return Err(CreateError::NotV08);
        }
        reject_v09_options(o)?;
    }
    let mut sb = Superblock::fresh(version, layout);
    sb.effective_size = o.effective_size;
    sb.max_bio = o.max_bio;
    sb.device_uuid = o.device_uuid;
    if let Some(current) = o.current {
        sb.current = current.base();
    }
    let real = !sb.current.is_none() && sb.current != Generation::JUST_CREATED;
    let needs_real = o.consistent || o.up_to_date || o.day0.is_some() || o.current.is_some();
    if needs_real && !real {
        return Err(CreateError::NoGeneration);
    }
    sb.flags.put(DeviceFlags::CONSISTENT, o.consistent || o.up_to_date);
    sb.flags.put(DeviceFlags::WAS_UP_TO_DATE, o.up_to_date);
    if version == Version::V09 {
        for (i, peer) in sb.peers.iter_mut().enumerate() {
            peer.flags.put(PeerFlags::OUTDATED, o.peers_outdated);
            peer.flags.put(PeerFlags::DEVICE_SEEN, o.diskful_peers >> i & 1 == 1);
            peer.bitmap_uuid = o.day0.unwrap_or_default();
        }
        sb.history[0] = o.day0.unwrap_or_default();
    }
    Ok(sb)
}

fn reject_v09_options(o: &CreateOptions) -> Result<(), CreateError> {
    let used = [
        (o.current.is_some(), "initial-current-uuid"),
        (o.consistent, "consistent"),
        (o.up_to_date, "uptodate"),
        (o.peers_outdated, "peers-outdated"),
        (o.day0.is_some(), "rotate-uuids"),
        (o.diskful_peers != 0, "diskful-peers"),
    ];
    match used.into_iter().find(|(used, _)| *used) {
        Some((_, name)) => Err(CreateError::V09Only(name)),
        None => Ok(()),
    }
}

impl fmt::Display for CreateError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CreateError::AlTooLarge(blocks) => {
                write!(f, "activity log of {} KiB: the limit is 32 MiB; use fewer or smaller stripes", blocks * 4)
            }
            CreateError::NotV08 => f.write_str("v08 metadata has one peer and 4096 bytes per bitmap bit; use v09"),
            CreateError::V09Only(option) => write!(f, "--{option} is for v09 metadata only"),
            CreateError::SizeTooLarge { asked, capacity } => write!(
                f,
                "effective size of {} sectors: this metadata can serve at most {} sectors",
                asked.0, capacity.0
            ),
            CreateError::MaxBio(n) => write!(f, "peer-max-bio-size {n}: must be 0 to 1048576"),
            CreateError::NoGeneration => {
                f.write_str("data declared consistent needs a current UUID other than 0 and 4")
            }
        }
    }
}

impl std::error::Error for CreateError {}
