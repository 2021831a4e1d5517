//! Writing a dump, byte for byte as the reference does (`docs/spec/on-disk-format.md` 6.3, 6.4).

use crate::find::Found;
use crate::layout::Layout;
use crate::superblock::{PeerFlags, Superblock, Version};
use std::fmt::{self, Write};

/// Which drbd-utils to write like.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Dialect {
    /// With flags of v08 and members of v09 (drbd-utils 9.27 and later).
    #[default]
    Current,
    /// As drbd-utils 9.22 reads it: no `members` line. Unlike that tool the flags of v08 are told as they are.
    WithoutMembers,
    /// As drbd-utils 9.22 writes it: no `members` line, and flags 0 for v08, which loses state. For comparisons only.
    V922,
}

/// The comment at the head of a dump.
#[derive(Clone, Copy, Debug)]
pub struct Header<'a> {
    /// Local time as `%F %T %z [epoch]`.
    pub time: &'a str,
    /// Name of the host.
    pub host: &'a str,
    /// The command that dumps.
    pub command: &'a str,
}

/// Metadata that was found at the last known place, not at the end of the device: what the comment says about it.
#[derive(Clone, Copy, Debug)]
pub struct Moved<'a> {
    /// Path of the device.
    pub path: &'a str,
    /// Where the metadata would be for the size that the device has now.
    pub expected: Layout,
}

/// Writes the dump of `found`, whose bitmap area starts with `bitmap` (at least the bytes that the last agreed size
/// needs; missing bytes count as zero). Unclean metadata is marked so that it cannot be restored by mistake.
pub fn write(
    out: &mut impl Write,
    header: Header<'_>,
    found: &Found,
    moved: Option<Moved<'_>>,
    bitmap: &[u8],
    dialect: Dialect,
) -> fmt::Result {
    let sb = &found.superblock;
    if let Some(was) = found.truncated_from {
        writeln!(out, "# la-size-sect was too big ({}), truncated ({})!", was.0, sb.effective_size.0)?;
    }
    write!(out, "# DRBD meta data dump\n# {}\n# {}> {}\n#\n\n", header.time, header.host, header.command)?;
    write!(out, "version \"{}\";\n\n", sb.version())?;
    if !sb.is_clean() {
        out.write_str("This_is_an_unclean_meta_data_dump._Don't_trust_the_bitmap.\n")?;
        out.write_str("# You should \"apply-al\" first, if you plan to restore this.\n\n")?;
    }
    if sb.version() == Version::V09 {
        writeln!(out, "max-peers {};", sb.geometry.slots())?;
    }
    positions(out, found, moved)?;
    match sb.version() {
        Version::V08 => body_v08(out, sb, dialect)?,
        Version::V09 => body_v09(out, sb, dialect)?,
    }
    tail(out, sb, bitmap)
}

fn positions(out: &mut impl Write, found: &Found, moved: Option<Moved<'_>>) -> fmt::Result {
    let layout = &found.layout;
    writeln!(out, "# md_size_sect {}", layout.stored().2)?;
    if let Some(moved) = moved {
        let (path, expected) = (moved.path, moved.expected);
        writeln!(out, "#\n### Device seems to have been resized!\n### dumping meta data from the last known position")?;
        writeln!(out, "### current size of {path}: {} byte", expected.device().0)?;
        writeln!(out, "### expected position of meta data:\n## md_offset {}", expected.superblock_at().0)?;
        writeln!(out, "## al_offset {}\n## bm_offset {}", expected.al_at().0, expected.bitmap_at().0)?;
        writeln!(out, "### last known size of {path}: {} byte", layout.device().0)?;
        writeln!(out, "### adjusted position of meta data:")?;
    }
    writeln!(out, "# md_offset {}", layout.superblock_at().0)?;
    writeln!(out, "# al_offset {}", layout.al_at().0)?;
    write!(out, "# bm_offset {}\n\n", layout.bitmap_at().0)
}

fn body_v08(out: &mut impl Write, sb: &Superblock, dialect: Dialect) -> fmt::Result {
    let flags = if dialect == Dialect::V922 { 0 } else { sb.v08_flags() };
    let uuids = [sb.current, sb.v08_peer().bitmap_uuid, sb.history[0], sb.history[1]].map(|g| g.0);
    let [c, b, h1, h2] = uuids;
    write!(out, "uuid {{\n    0x{c:016X}; 0x{b:016X}; 0x{h1:016X}; 0x{h2:016X};\n    flags 0x{flags:08X};\n}}\n")
}

fn body_v09(out: &mut impl Write, sb: &Superblock, dialect: Dialect) -> fmt::Result {
    writeln!(out, "node-id {};", sb.node_id.map_or(-1, |n| n.index() as i32))?;
    writeln!(out, "current-uuid 0x{:016X};", sb.current.0)?;
    writeln!(out, "flags 0x{:08X};", sb.flags.0)?;
    if dialect == Dialect::Current {
        writeln!(out, "members 0x{:016X};", sb.members.0)?;
    }
    for (i, peer) in sb.peers.iter().enumerate() {
        writeln!(out, "peer[{i}] {{\n    bitmap-index {};", peer.slot.map_or(-1, i32::from))?;
        writeln!(out, "    bitmap-uuid 0x{:016X};", peer.bitmap_uuid.0)?;
        writeln!(out, "    bitmap-dagtag 0x{:016X};", peer.bitmap_dagtag)?;
        write!(out, "    flags 0x{:08X};", peer.flags.0)?;
        peer_flag_names(out, peer.flags)?;
        out.write_str("\n}\n")?;
    }
    out.write_str("history-uuids {\n")?;
    for four in sb.history.chunks(4) {
        out.write_str("       ")?;
        for g in four {
            write!(out, " 0x{:016X};", g.0)?;
        }
        out.write_str("\n")?;
    }
    out.write_str("}\n")
}

fn peer_flag_names(out: &mut impl Write, flags: PeerFlags) -> fmt::Result {
    let mut separator = " # ";
    for bit in (0..32).filter(|b| flags.0 >> b & 1 == 1) {
        out.write_str(separator)?;
        separator = " | ";
        match bit {
            0 => out.write_str("connected")?,
            1 => out.write_str("<=outdated")?,
            2 => out.write_str("fencing")?,
            3 => out.write_str("full-sync")?,
            4 => out.write_str("seen")?,
            16 => out.write_str("exists")?,
            _ => write!(out, "0x{:x}=?", 1u32 << bit)?,
        }
    }
    Ok(())
}

fn tail(out: &mut impl Write, sb: &Superblock, bitmap: &[u8]) -> fmt::Result {
    let (al, bm_bytes) = (sb.geometry.al(), sb.geometry.bitmap_bytes(sb.effective_size));
    writeln!(out, "# al-extents {};", sb.al_extents)?;
    writeln!(out, "la-size-sect {};", sb.effective_size.0)?;
    writeln!(out, "bm-byte-per-bit {};", sb.geometry.bytes_per_bit())?;
    writeln!(out, "device-uuid 0x{:016X};", sb.device_uuid)?;
    writeln!(out, "la-peer-max-bio-size {};", sb.max_bio)?;
    writeln!(out, "al-stripes {};\nal-stripe-size-4k {};", al.stripes(), al.stripe_blocks())?;
    writeln!(out, "# bm-bytes {bm_bytes};")?;
    let mut bits = 0;
    for slot in 0..sb.geometry.slots() {
        match sb.version() {
            Version::V08 => out.write_str("bm {")?,
            Version::V09 => write!(out, "bitmap[{slot}] {{")?,
        }
        bits = SlotWords { bitmap, words: bm_bytes / 4, slots: u64::from(sb.geometry.slots()), slot: slot.into() }
            .write(out)?;
        out.write_str("\n}\n")?;
    }
    writeln!(out, "# bits-set {bits};")
}

/// The 32-bit words of one slot in an interleaved bitmap.
struct SlotWords<'a> {
    bitmap: &'a [u8],
    words: u64,
    slots: u64,
    slot: u64,
}

impl SlotWords<'_> {
    fn len(&self) -> u64 {
        self.words.saturating_sub(self.slot).div_ceil(self.slots)
    }

    fn word(&self, k: u64) -> u32 {
        let at = 4 * (self.slot + k * self.slots) as usize;
        self.bitmap.get(at..at + 4).map_or(0, |b| u32::from_le_bytes([b[0], b[1], b[2], b[3]]))
    }

    /// Length of the run of equal words from `k`, in multiples of 8.
    fn run(&self, k: u64) -> u64 {
        let first = self.word(k);
        let n = (k..self.len()).take_while(|&i| self.word(i) == first).count() as u64;
        n / 8 * 8
    }

    /// Writes the text between the braces; returns how many bits are set.
    fn write(&self, out: &mut impl Write) -> Result<u64, fmt::Error> {
        let (mut k, len, mut bits) = (0, self.len(), 0);
        while k < len {
            if k.is_multiple_of(8) {
                out.write_str("\n")?;
                if (k * self.slots).is_multiple_of(64) {
                    writeln!(out, "   # at {}kB", 128 * k * self.slots)?;
                }
                out.write_str("  ")?;
                let run = self.run(k);
                if run > 8 {
                    let w = self.word(k);
                    write!(out, "  {} times 0x{w:08X}{w:08X};", run / 2)?;
                    bits += run * u64::from(w.count_ones());
                    k += run;
                    continue;
                }
                out.write_str(" ")?;
            }
            bits += u64::from(self.word(k).count_ones());
            if k % 2 == 1 {
                write!(out, " 0x{:08X}{:08X};", self.word(k), self.word(k - 1))?;
            }
            k += 1;
        }
        Ok(bits)
    }
}
