//! Bytes that nobody would write: whatever is on a disk or in a dump, reading it ends, and says something.

use std::fs::{self, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;

use meta::create::{self, CreateOptions};
use meta::dump::{self, Dialect, Header};
use meta::{AlShape, DeviceFlags, Found, Geometry, Layout, MetaDisk, PeerFlags, Version, find};
use units::{ByteLen, Generation, NodeId, Rng, Sector};

use super::{find as inspect_find, json, together, words};

const LEN: u64 = 1 << 20;

/// A disk that has been used: with peers, generations, marks, and a log that is not clean.
fn used(kind: MetaDisk, version: Version, slots: u32, node: u8) -> Vec<u8> {
    let geometry = Geometry::new(slots, 4096, AlShape::DEFAULT).unwrap();
    let layout = Layout::new(kind, geometry, ByteLen(LEN)).unwrap();
    let options = CreateOptions { effective_size: Sector(1000), ..CreateOptions::default() };
    let (mut sb, steps) = create::plan(version, &layout, &options).unwrap();
    let mut disk = vec![0; LEN as usize];
    steps.iter().for_each(|step| step.apply_to(0, &mut disk));
    sb.current = Generation(0x1234_5678_9ABC_DEF0);
    sb.flags = DeviceFlags(0x053);
    if version == Version::V09 {
        sb.node_id = NodeId::new(node);
    }
    let peers = (0..=slots as usize).filter(|peer| version == Version::V08 || *peer != usize::from(node));
    for (slot, peer) in peers.take(slots as usize).enumerate() {
        sb.peers[peer].slot = Some(slot as u8);
        sb.peers[peer].flags = PeerFlags(0x13);
        sb.peers[peer].bitmap_uuid = Generation(0x1111 * (peer as u64 + 2));
    }
    let at = layout.superblock_at().0 as usize;
    disk[at..at + 4096].copy_from_slice(&sb.emit()[..]);
    let bitmap = layout.bitmap_at().0 as usize;
    disk[bitmap..bitmap + 64].fill(0x5A);
    disk
}

fn tell(path: &Path, kind: Option<MetaDisk>, partner: &inspect_find::Inspected) -> bool {
    match inspect_find::read(None, path, kind) {
        Ok(one) => {
            let all = [one, partner.clone()];
            let together = together::compare(&all, "r0");
            let alone = together::compare(&all[..1], "r0");
            assert!(!words::text(&all, &together).is_empty() && !words::text(&all[..1], &alone).is_empty());
            let document: serde_json::Value = serde_json::from_str(&json::text(&all, &together)).unwrap();
            assert_eq!(document["disks"].as_array().map(Vec::len), Some(2));
            true
        }
        Err(problem) => {
            assert!(matches!(problem.exit, 1 | 10 | 20 | 255), "{problem}");
            assert!(!problem.message.is_empty());
            false
        }
    }
}

#[test]
fn whatever_is_on_a_disk_reading_it_ends() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("disk");
    let mut random = Rng::new(1);
    let mut told = [0u32; 2];
    for (kind, version, slots) in [
        (MetaDisk::Internal, Version::V08, 1),
        (MetaDisk::Internal, Version::V09, 3),
        (MetaDisk::FlexExternal, Version::V09, 31),
        (MetaDisk::FlexExternal, Version::V08, 1),
    ] {
        fs::write(&path, used(kind, version, slots, 1)).unwrap();
        let partner = inspect_find::read(Some("bravo"), &path, None).unwrap();
        let whole = used(kind, version, slots, 0);
        fs::write(&path, &whole).unwrap();
        assert!(tell(&path, None, &partner), "{kind} {version}");
        let all = [inspect_find::read(None, &path, None).unwrap(), partner.clone()];
        assert!(together::compare(&all, "r0").pairs[0].meeting.is_ok(), "else nothing is compared here");
        let file = OpenOptions::new().write(true).open(&path).unwrap();
        let superblock = if kind == MetaDisk::Internal { LEN - 4096 } else { 0 };
        for _ in 0..1500 {
            let (from, len) = match random.below(4) {
                // The fields before the peers, and all of them; then the log and the bitmap, wherever they are.
                0 | 1 => (superblock, 200),
                2 => (superblock, 4096),
                _ => (if kind == MetaDisk::Internal { LEN - (40 << 10) } else { 4096 }, 36 << 10),
            };
            let places: Vec<u64> = (0..=random.below(5)).map(|_| from + random.below(len)).collect();
            for at in &places {
                let byte = match random.below(4) {
                    0 => 0xFF,
                    1 => 0,
                    2 => random.below(256) as u8,
                    _ => whole[*at as usize] ^ (1 << random.below(8)),
                };
                file.write_all_at(&[byte], *at).unwrap();
            }
            let cut = random.below(20) == 0;
            if cut {
                file.set_len(random.below(LEN)).unwrap();
            }
            told[usize::from(tell(&path, None, &partner))] += 1;
            tell(&path, Some(kind), &partner);
            if cut {
                fs::write(&path, &whole).unwrap();
            }
            places.iter().for_each(|at| file.write_all_at(&whole[*at as usize..][..1], *at).unwrap());
        }
    }
    assert!(told.iter().all(|count| *count > 1000), "of both kinds: {told:?}");
}

#[test]
fn whatever_is_in_a_dump_reading_it_ends() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("dump");
    let mut random = Rng::new(2);
    let mut told = [0u32; 2];
    for (version, slots) in [(Version::V08, 1), (Version::V09, 3)] {
        fs::write(&path, used(MetaDisk::FlexExternal, version, slots, 1)).unwrap();
        let partner = inspect_find::read(Some("bravo"), &path, None).unwrap();
        let disk = used(MetaDisk::FlexExternal, version, slots, 0);
        let found: Found = find::check(MetaDisk::FlexExternal, ByteLen(LEN), disk[..4096].try_into().unwrap()).unwrap();
        let header = Header { time: "now", host: "alpha", command: "dump-md" };
        let mut text = String::new();
        let bitmap = &disk[found.layout.bitmap_at().0 as usize..];
        dump::write(&mut text, header, &found, None, bitmap, Dialect::Current).unwrap();
        fs::write(&path, &text).unwrap();
        assert!(tell(&path, None, &partner), "{version}");
        for _ in 0..2000 {
            let mut bytes = text.clone().into_bytes();
            for _ in 0..=random.below(3) {
                let at = random.below(bytes.len() as u64) as usize;
                match random.below(4) {
                    0 => bytes.truncate(at.max(1)),
                    1 => bytes[at] = b"0123456789ABCDEFx{};#\n"[random.below(22) as usize],
                    2 => bytes[at] = random.below(256) as u8,
                    _ => _ = bytes.splice(at..at, b"99999999999999999 times 0x".iter().copied()),
                }
            }
            fs::write(&path, &bytes).unwrap();
            told[usize::from(tell(&path, None, &partner))] += 1;
        }
    }
    assert!(told.iter().all(|count| *count > 100), "of both kinds: {told:?}");
}

/// A run in a dump may claim to be as long as it likes, and the size to be any.
#[test]
fn what_a_dump_claims_costs_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("dump");
    let sizes = [0, 1, 1 << 41, i64::MAX as u64];
    for size in sizes {
        let uuid = "0x1111111111111110;";
        fs::write(
            &path,
            format!(
                "version \"v08\";\nuuid {{ {uuid} {uuid} {uuid} {uuid} flags 0x00000011; }}\nla-size-sect {size};\n\
                 bm-byte-per-bit 4096;\ndevice-uuid {uuid}\nla-peer-max-bio-size 0;\nal-stripes 1;\n\
                 al-stripe-size-4k 8;\nbm {{ 9223372036854775807 times 0xFFFFFFFFFFFFFFFF; }}\n"
            ),
        )
        .unwrap();
        let one = inspect_find::read(None, &path, None).unwrap();
        assert_eq!(one.marked, [size.div_ceil(8)]);
        assert!(tell(&path, None, &one));
    }
}
