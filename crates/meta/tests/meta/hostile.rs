//! Bytes and texts that nobody wrote on purpose: never a panic, and nothing illegal accepted.

use crate::golden::text;
use proptest::prelude::*;
use units::{ByteLen, NodeId, Sector};
use urbd_meta::existing::{self, Signature, Verdict};
use urbd_meta::find::{self, AttachError, FindError};
use urbd_meta::lkbd::LastKnown;
use urbd_meta::superblock::SuperblockError;
use urbd_meta::{AlShape, BLOCK_LEN, Block, Geometry, Layout, MetaDisk, Superblock, Version, dump, gi};

fn fresh(version: Version, kind: MetaDisk, device: u64) -> (Superblock, Layout) {
    let geometry = Geometry::new(if version == Version::V08 { 1 } else { 3 }, 4096, AlShape::DEFAULT).unwrap();
    let layout = Layout::new(kind, geometry, ByteLen(device)).unwrap();
    (Superblock::fresh(version, &layout), layout)
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    /// A legal superblock with random bytes at random places.
    #[test]
    fn damaged_superblocks(
        v09 in any::<bool>(), damage in proptest::collection::vec((0usize..1400, any::<u8>()), 1..12),
    ) {
        let version = if v09 { Version::V09 } else { Version::V08 };
        let (sb, layout) = fresh(version, MetaDisk::Internal, 64 << 20);
        let mut block = sb.emit();
        for (at, value) in damage {
            block[at] = value;
        }
        if let Ok(parsed) = Superblock::parse(&block) {
            // What was accepted is legal: it round-trips in the model.
            prop_assert_eq!(Superblock::parse(&parsed.emit()).unwrap(), parsed.clone());
            let _ = gi::legend(&parsed, NodeId::new(31).unwrap());
        }
        if let Ok(found) = find::check(MetaDisk::Internal, layout.device(), &block) {
            prop_assert!(found.superblock.effective_size <= found.layout.capacity());
            let _ = find::check_attach(&found, NodeId::new(0));
        }
    }

    #[test]
    fn random_blocks(bytes in proptest::collection::vec(any::<u8>(), BLOCK_LEN), magic in 0x8374_0267u32..0x8374_026F) {
        let mut block: Box<Block> = bytes.try_into().unwrap();
        let _ = Superblock::parse(&block);
        block[60..64].copy_from_slice(&magic.to_be_bytes());
        let _ = Superblock::parse(&block);
        let _ = existing::detect(&block[..]);
    }

    /// A dump with a piece cut out, doubled or replaced.
    #[test]
    fn damaged_dumps(at in 0usize..3000, len in 0usize..40, with in "[ -~\n]{0,12}") {
        let golden = text("30-v08-restore-input.txt");
        let at = at.min(golden.len());
        let end = (at + len).min(golden.len());
        let damaged = format!("{}{with}{}", &golden[..at], &golden[end..]);
        if let Ok(d) = dump::parse(&damaged) {
            let _ = dump::restore(&d, Version::V08, MetaDisk::Internal, ByteLen(1 << 30), None, true);
        }
    }

    #[test]
    fn any_text(t in "\\PC{0,200}") {
        let _ = dump::parse(&t);
        let _ = dump::parse(&format!("version \"v09\"; {t}"));
        let _ = LastKnown::parse(&t);
        let (sb, _) = fresh(Version::V09, MetaDisk::Internal, 64 << 20);
        let _ = gi::set(&sb, NodeId::new(1).unwrap(), &t);
    }

    /// Whatever the parameters: positions are ordered, aligned, inside the device, and the bitmap suffices.
    #[test]
    fn layouts_are_sound(
        device in prop_oneof![69632u64..1 << 24, 1u64 << 24..1 << 44, any::<u64>()],
        slots in 1u32..=31, shift in 12u32..=20, stripes in 1u32..8, blocks in 8u32..80, kind in 0u8..4,
    ) {
        let geometry = Geometry::new(slots, 1 << shift, AlShape::new(stripes, blocks).unwrap()).unwrap();
        let kind = match kind {
            0 | 1 => MetaDisk::Internal,
            2 => MetaDisk::FlexExternal,
            _ => MetaDisk::Indexed(2),
        };
        if let Ok(l) = Layout::new(kind, geometry, ByteLen(device)) {
            let (sb, al, bm) = (l.superblock_at().0, l.al_at().0, l.bitmap_at().0);
            prop_assert!(sb + 4096 <= device && sb % 4096 == 0 && al % 4096 == 0 && bm % 4096 == 0);
            prop_assert!(geometry.bitmap_bytes(l.capacity()) <= l.bitmap_area().0);
            prop_assert!(l.capacity() <= urbd_meta::layout::MAX_CAPACITY);
            match kind {
                MetaDisk::Internal => {
                    prop_assert!(l.capacity().0 * 512 <= bm && bm < al && al < sb);
                    prop_assert_eq!(bm + l.bitmap_area().0, al);
                }
                _ => prop_assert!(sb < al && al < bm),
            }
        }
    }
}

#[test]
fn superblock_refusals() {
    let (sb, _) = fresh(Version::V09, MetaDisk::Internal, 64 << 20);
    let with = |at: usize, value: u32| {
        let mut b = sb.emit();
        b[at..at + 4].copy_from_slice(&value.to_be_bytes());
        Superblock::parse(&b)
    };
    assert!(matches!(with(60, 0), Err(SuperblockError::NoMagic(0))));
    assert!(matches!(with(60, 0x8374_026A), Err(SuperblockError::TooOld(_))));
    assert!(matches!(with(80, 0), Err(SuperblockError::Geometry(_))), "bytes per bit 0");
    assert!(matches!(with(88, 32), Err(SuperblockError::Geometry(_))), "32 slots");
    assert!(matches!(with(92, 32), Err(SuperblockError::NodeId(32))));
    assert!(matches!(with(96, 0), Err(SuperblockError::Geometry(_))), "no stripes");
    assert_eq!(with(112 + 32 * 5 + 20, 40), Err(SuperblockError::Slot { peer: 5, slot: 40 }));
    let (mut v08, _) = fresh(Version::V08, MetaDisk::Internal, 64 << 20);
    v08.max_bio = 7;
    let mut b = v08.emit();
    b[88..96].fill(0);
    assert_eq!(Superblock::parse(&b).unwrap(), v08, "no stripes at all is the default ring in v08");
    b[91] = 1;
    assert!(Superblock::parse(&b).is_err());
}

#[test]
fn misplaced_and_truncated() {
    let (mut sb, layout) = fresh(Version::V08, MetaDisk::Internal, 64 << 20);
    let check = |sb: &Superblock, device: u64| find::check(MetaDisk::Internal, ByteLen(device), &sb.emit());
    assert!(check(&sb, 64 << 20).is_ok());
    assert_eq!(check(&sb, 1 << 30), Err(FindError::Misplaced));
    assert_eq!(check(&sb, 100), Err(FindError::DeviceTooSmall));
    sb.placement.md_size_sect += 8;
    assert_eq!(check(&sb, 64 << 20), Err(FindError::Misplaced));
    sb.place(&layout);
    sb.effective_size = Sector(1 << 30);
    let found = check(&sb, 64 << 20).unwrap();
    assert_eq!((found.truncated_from, found.superblock.effective_size), (Some(Sector(1 << 30)), Sector(130992)));
    let (old, new) = (ByteLen(64 << 20), ByteLen(100 << 20));
    assert_eq!(find::last_known_at(MetaDisk::Internal, new, old), Some(layout.superblock_at()));
    assert_eq!(find::last_known_at(MetaDisk::Internal, old, old), None);
    assert_eq!(find::last_known_at(MetaDisk::Internal, ByteLen(1 << 20), old), None, "device shrunk");
    assert_eq!(find::last_known_at(MetaDisk::FlexExternal, new, old), None);
}

#[test]
fn attach_refusals() {
    let (sb, layout) = fresh(Version::V09, MetaDisk::Internal, 64 << 20);
    let own = NodeId::new(1);
    let check = |change: &dyn Fn(&mut Superblock)| {
        let mut sb = sb.clone();
        change(&mut sb);
        find::check_attach(&urbd_meta::Found { superblock: sb, layout, truncated_from: None }, own)
    };
    assert_eq!(check(&|_| {}), Ok(()));
    assert_eq!(check(&|sb| sb.mark_in_use()), Err(AttachError::Unclean));
    let (stored, configured) = (NodeId::new(2).unwrap(), own.unwrap());
    assert_eq!(check(&|sb| sb.node_id = Some(stored)), Err(AttachError::NodeId { stored, configured }));
    assert_eq!(check(&|sb| sb.peers[1].slot = Some(0)), Err(AttachError::OwnSlot));
    assert_eq!(check(&|sb| sb.peers[7].slot = Some(3)), Err(AttachError::Slot { peer: 7, slot: 3 }));
    let twice = check(&|sb| [2, 4].into_iter().for_each(|i| sb.peers[i].slot = Some(1)));
    assert_eq!(twice, Err(AttachError::Slot { peer: 4, slot: 1 }));
    let striped = Geometry::V08.with_al(AlShape::new(2, 8).unwrap());
    let layout = Layout::new(MetaDisk::Indexed(0), striped, ByteLen(128 << 20)).unwrap();
    let superblock = Superblock::fresh(Version::V08, &layout);
    let found = urbd_meta::Found { superblock, layout, truncated_from: None };
    assert_eq!(find::check_attach(&found, None), Err(AttachError::IndexedGeometry));
}

#[test]
fn dump_errors_tell_the_line() {
    let line = |text: &str| {
        let e = dump::parse(text).unwrap_err();
        assert_eq!(e.to_string().find(&format!("Parse error in line {}: ", e.line)), Some(0));
        e.line
    };
    let golden = text("32-v09-restore-input-p3.txt");
    assert!(dump::parse(&golden).is_ok());
    assert_eq!(line(""), 1);
    assert_eq!(line("version \"v08\"; xx"), 1);
    assert_eq!(line("  # c\n\n version 12;"), 3);
    assert_eq!(line("version \"v07\";\n"), 1);
    assert_eq!(line("version \"v08\"\n; $"), 2);
    assert_eq!(line("version \"v08\"; uuid {\n 0x1111111111111111;\n 0x1111111111111111 0x1"), 3);
    assert_eq!(line("version \"v09\"; max-peers 1;\nnode-id 77; current-uuid"), 2);
    assert_eq!(
        line(&format!("{golden}\njunk")),
        golden.lines().count() as u32 + 2 - u32::from(!golden.ends_with('\n'))
    );
    assert!(line(&text("60-kernel-8.4.11-crashed-primary-unclean.dump.txt")) > 5);
    assert!(dump::parse(&golden.replace("peer[4]", "peer[5]")).is_err(), "an index twice");
    assert!(dump::parse(&golden.replace("bitmap[1]", "bitmap[2]")).is_err(), "bitmaps out of order");
    assert!(dump::parse(&golden.replace("bm-byte-per-bit 4096", "bm-byte-per-bit 5000")).is_err());
    let v08 = text("30-v08-restore-input.txt");
    assert!(dump::parse(&v08.replace("bm-byte-per-bit 4096", "bm-byte-per-bit 65536")).is_err());
}

/// A dump goes to another kind of metadata disk, and one that says too much is cut.
#[test]
fn restore_elsewhere() {
    let d = dump::parse(&text("30-v08-restore-input.txt")).unwrap();
    let restored = dump::restore(&d, Version::V08, MetaDisk::FlexExternal, ByteLen(4 << 20), None, true).unwrap();
    assert_eq!(restored.found.layout.stored(), (8, 72, 8192));
    assert_eq!(restored.found.superblock.effective_size, d.superblock.effective_size);
    assert!(!restored.bitmap_truncated);
    let small = dump::restore(&d, Version::V08, MetaDisk::Internal, ByteLen(64 << 20), None, false).unwrap();
    assert!(small.bitmap_truncated);
    assert_eq!(small.found.truncated_from, Some(d.superblock.effective_size));
    assert!(dump::restore(&d, Version::V09, MetaDisk::Internal, ByteLen(1 << 30), None, false).is_err());
    assert!(dump::restore(&d, Version::V08, MetaDisk::Internal, ByteLen(4096), None, false).is_err());
    let mut endless = d.clone();
    endless.slots[0] = vec![dump::Run { count: u64::MAX, value: u64::MAX }; 3];
    let cut = dump::restore(&endless, Version::V08, MetaDisk::Internal, ByteLen(1 << 30), None, false).unwrap();
    assert!(cut.bitmap_truncated);
}

#[test]
fn existing_data() {
    let (_, internal) = fresh(Version::V08, MetaDisk::Internal, 1 << 30);
    let (_, external) = fresh(Version::V08, MetaDisk::FlexExternal, 1 << 30);
    let head = |parts: &[(usize, &[u8])]| {
        let mut b = vec![0; existing::PROBE_LEN];
        for (at, bytes) in parts {
            b[*at..*at + bytes.len()].copy_from_slice(bytes);
        }
        b
    };
    assert_eq!(existing::detect(&head(&[])), None);
    assert_eq!(existing::detect(&[]), None);
    let cases: [(Vec<u8>, Signature, Option<u64>, Verdict); 8] = [
        (head(&[(4086, b"SWAPSPACE2")]), Signature::Swap, None, Verdict::Refuse),
        (head(&[(536, b"LVM2")]), Signature::Lvm2, None, Verdict::Refuse),
        (
            head(&[(1080, &[0x53, 0xEF]), (1028, &[0, 0, 3, 0]), (1048, &[2])]),
            Signature::Ext2,
            Some(0x30000 * 4096),
            Verdict::Ask,
        ),
        (
            head(&[(1080, &[0x53, 0xEF]), (1028, &[0, 0, 4, 0]), (1048, &[2]), (1116, &[4])]),
            Signature::Ext3,
            Some(1 << 30),
            Verdict::Refuse,
        ),
        (head(&[(0, b"XFSB\0\0\x10\0\0\0\0\0\0\0\x10\0")]), Signature::Xfs, Some(16 << 20), Verdict::Ask),
        (head(&[(32768, b"JFS1"), (32776, &[9]), (32793, &[2])]), Signature::Jfs, Some(9 * 512), Verdict::Ask),
        (head(&[(65588, b"ReIsErFs"), (65536, &[5]), (65581, &[16])]), Signature::Reiser, Some(5 * 4096), Verdict::Ask),
        (head(&[(69000, b"x")]), Signature::SomeData, None, Verdict::Ask),
    ];
    for (head, signature, size, verdict) in cases {
        let found = existing::detect(&head).unwrap();
        assert_eq!((found.signature, found.size), (signature, size));
        assert_eq!(found.verdict(&internal), verdict, "{signature}");
        let outside = if signature == Signature::SomeData { Verdict::Ask } else { Verdict::Refuse };
        assert_eq!(found.verdict(&external), outside, "{signature}");
    }
}
