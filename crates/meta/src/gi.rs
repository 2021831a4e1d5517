//! Generation identifiers as text: `get-gi`, `show-gi`, `set-gi`, and the small commands around them
//! (`docs/spec/on-disk-format.md` 10).

use crate::superblock::{DeviceFlags, PeerFlags, Superblock, Version};
use std::fmt::Write;
use units::{Generation, NodeId};

/// One flag of the text form: the word that it is in, and its legend.
struct Flag {
    place: Place,
    legend: &'static str,
}

enum Place {
    Device(DeviceFlags),
    Peer(PeerFlags),
}

const fn device(flag: DeviceFlags, legend: &'static str) -> Flag {
    Flag { place: Place::Device(flag), legend }
}

const fn peer(flag: PeerFlags, legend: &'static str) -> Flag {
    Flag { place: Place::Peer(flag), legend }
}

const CONSISTENT: Flag = device(DeviceFlags::CONSISTENT, "-<  Data consistency flag  >--+");
const UP_TO_DATE: Flag = device(DeviceFlags::WAS_UP_TO_DATE, "-<  Data was/is currently up-to-date  >--+");
const PRIMARY: Flag = device(DeviceFlags::PRIMARY_IND, "-<  Node was/is currently primary  >--+");
const CONNECTED: Flag = peer(PeerFlags::CONNECTED, "-<  Node was/is currently connected  >--+");
const PEER_OUTDATED: Flag = peer(PeerFlags::OUTDATED, "-<  The peer's disk was out-dated or inconsistent  >--+");

const V08_FLAGS: [Flag; 7] = [
    CONSISTENT,
    UP_TO_DATE,
    PRIMARY,
    CONNECTED,
    peer(PeerFlags::FULL_SYNC, "-<  Node was in the progress of setting all bits in the bitmap  >--+"),
    PEER_OUTDATED,
    device(DeviceFlags::CRASHED_PRIMARY, "-<  This node was a crashed primary, and has not seen its peer since   >--+"),
];

const V09_FLAGS: [Flag; 12] = [
    CONSISTENT,
    UP_TO_DATE,
    PRIMARY,
    device(DeviceFlags::CRASHED_PRIMARY, "-<  This node was a crashed primary, and has not seen its peer since  >--+"),
    device(DeviceFlags::AL_CLEAN, "-<  The activity-log was applied, the disk can be attached  >--+"),
    device(DeviceFlags::AL_DISABLED, "-<  The activity-log was disabled, peer is completely out of sync  >--+"),
    device(DeviceFlags::PRIMARY_LOST_QUORUM, "-<  This node was primary when it lost quorum  >--+"),
    CONNECTED,
    PEER_OUTDATED,
    peer(PeerFlags::FENCING, "-<   A fence policy other the dont-care was used  >--+"),
    peer(PeerFlags::FULL_SYNC, "-<  Node was in the progress of marking all blocks as out of sync  >--+"),
    peer(PeerFlags::DEVICE_SEEN, "-<  At least once we saw this node with a backing device attached >--+"),
];

/// Why a `set-gi` string is refused.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct GiError(String);

/// The state of a disk as the superblock tells it (`dstate`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum StoredDisk {
    /// Inconsistent.
    Inconsistent,
    /// Outdated.
    Outdated,
    /// Consistent.
    Consistent,
    /// Consistent, and the peer is known to be outdated (v08).
    UpToDate,
}

/// The `get-gi` text (no line end): four UUIDs, then flags, towards node `node` (which v08 ignores).
#[must_use]
pub fn text(sb: &Superblock, node: NodeId) -> String {
    let node = record(sb, node);
    let uuids = [sb.current, sb.peers[node].bitmap_uuid, sb.history[0], sb.history[1]];
    let mut out = uuids.map(|g| g.to_string()).join(":");
    for flag in flags(sb) {
        let on = match flag.place {
            Place::Device(f) => sb.flags.contains(f),
            Place::Peer(f) => sb.peers[node].flags.contains(f),
        };
        out += if on { ":1" } else { ":0" };
    }
    out
}

/// The `show-gi` text: [`text`] with its legend and a summary.
#[must_use]
pub fn legend(sb: &Superblock, node: NodeId) -> String {
    let mut out = String::from(
        "
       +--<  Current data generation UUID  >-
       |               +--<  Bitmap's base data generation UUID  >-
       |               |                 +--<  younger history UUID  >-
       |               |                 |         +-<  older history  >-
       V               V                 V         V
",
    );
    let flags = flags(sb);
    out += &text(sb, node);
    let _ = writeln!(out, "\n{:68}{}", "", vec!["^"; flags.len()].join(" "));
    for (i, flag) in flags.iter().enumerate() {
        let _ = writeln!(out, "{:>2$}{}", flag.legend, " |".repeat(flags.len() - 1 - i), 69 + 2 * i);
    }
    out.push('\n');
    if sb.version() == Version::V08 {
        out += &v08_summary(sb);
    }
    if sb.effective_size.0 == 0 {
        out += "zero size device -- never seen peer yet?\n";
    } else {
        let size = size_text(sb.effective_size.0 / 2);
        let _ = writeln!(out, "last agreed size: {size} ({} sectors)", sb.effective_size.0);
        let _ = writeln!(out, "last agreed max bio size: {} Byte", sb.max_bio);
    }
    out
}

/// The superblock after `set-gi STRING`. Empty and missing fields keep their value; fields beyond the last are ignored,
/// as the reference does.
pub fn set(sb: &Superblock, node: NodeId, string: &str) -> Result<Superblock, GiError> {
    let mut out = sb.clone();
    let node = record(sb, node);
    let mut fields = string.split(':');
    for i in 0..4 {
        let field = fields.next().unwrap_or("");
        if field.is_empty() {
            continue;
        }
        let g = Generation(parse_uuid(field)?);
        match i {
            0 => out.current = g,
            1 => out.peers[node].bitmap_uuid = g,
            _ => out.history[i - 2] = g,
        }
    }
    for (flag, field) in flags(sb).iter().zip(fields) {
        let on = match field {
            "" => continue,
            "0" => false,
            "1" => true,
            other => return Err(GiError(format!("'{other}' is not 0 or 1"))),
        };
        match flag.place {
            Place::Device(f) => out.flags.put(f, on),
            Place::Peer(f) => out.peers[node].flags.put(f, on),
        }
    }
    Ok(out)
}

/// `dstate`.
#[must_use]
pub fn disk_state(sb: &Superblock) -> StoredDisk {
    let peer_outdated = match sb.version() {
        Version::V08 => sb.v08_peer().flags.contains(PeerFlags::OUTDATED),
        Version::V09 => sb.flags.contains(DeviceFlags(0x20)),
    };
    match (sb.flags.contains(DeviceFlags::CONSISTENT), sb.flags.contains(DeviceFlags::WAS_UP_TO_DATE)) {
        (false, _) => StoredDisk::Inconsistent,
        (true, false) => StoredDisk::Outdated,
        (true, true) if peer_outdated => StoredDisk::UpToDate,
        (true, true) => StoredDisk::Consistent,
    }
}

/// `outdate`: false, and nothing changed, if the disk is not consistent.
pub fn outdate(sb: &mut Superblock) -> bool {
    let consistent = sb.flags.contains(DeviceFlags::CONSISTENT);
    if consistent {
        sb.flags.remove(DeviceFlags::WAS_UP_TO_DATE);
    }
    consistent
}

/// `invalidate`: Inconsistent, and a full sync with every peer.
pub fn invalidate(sb: &mut Superblock) {
    sb.flags.remove(DeviceFlags::CONSISTENT | DeviceFlags::WAS_UP_TO_DATE);
    let peers = if sb.version() == Version::V08 { 1 } else { NodeId::COUNT };
    for peer in &mut sb.peers[..peers] {
        peer.flags.insert(PeerFlags::FULL_SYNC);
    }
}

/// A size in KiB as the reference prints it: divided by 1024 while it is 10000 or more.
#[must_use]
pub fn size_text(mut kib: u64) -> String {
    const UNITS: [&str; 6] = ["KB", "MB", "GB", "TB", "PB", "EB"];
    let mut unit = 0;
    while kib >= 10000 && unit + 1 < UNITS.len() {
        kib = (kib >> 10) + (kib >> 9 & 1);
        unit += 1;
    }
    format!("{kib} {}", UNITS[unit])
}

fn flags(sb: &Superblock) -> &'static [Flag] {
    match sb.version() {
        Version::V08 => &V08_FLAGS,
        Version::V09 => &V09_FLAGS,
    }
}

fn record(sb: &Superblock, node: NodeId) -> usize {
    match sb.version() {
        Version::V08 => Superblock::V08_PEER,
        Version::V09 => node.index(),
    }
}

fn parse_uuid(field: &str) -> Result<u64, GiError> {
    let digits = field.strip_prefix("0x").or_else(|| field.strip_prefix("0X")).unwrap_or(field);
    let is_hex = !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_hexdigit());
    let value = is_hex.then(|| u64::from_str_radix(digits, 16).ok()).flatten();
    value.ok_or_else(|| GiError(format!("'{field}' is not a 64-bit hexadecimal number")))
}

fn v08_summary(sb: &Superblock) -> String {
    let peer = sb.v08_peer().flags;
    let word = |on: bool, yes: &'static str, no: &'static str| if on { yes } else { no };
    let disk = match disk_state(sb) {
        StoredDisk::Inconsistent => "Inconsistent",
        StoredDisk::Outdated => "Outdated",
        StoredDisk::Consistent | StoredDisk::UpToDate => "UpToDate",
    };
    format!(
        "flags: {}{}, {}, {disk}{}{}\nmeta-data: {}\n",
        word(sb.flags.contains(DeviceFlags::CRASHED_PRIMARY), "crashed ", ""),
        word(sb.flags.contains(DeviceFlags::PRIMARY_IND), "Primary", "Secondary"),
        word(peer.contains(PeerFlags::CONNECTED), "Connected", "StandAlone"),
        word(peer.contains(PeerFlags::FULL_SYNC), ", need full sync", ""),
        word(peer.contains(PeerFlags::OUTDATED), ", peer Outdated", ""),
        word(sb.flags.contains(DeviceFlags::AL_CLEAN), "clean", "need apply-al"),
    )
}

impl std::fmt::Display for StoredDisk {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{self:?}")
    }
}

impl std::fmt::Display for GiError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for GiError {}
