//! Every golden image and text of `vectors/metadata`, byte for byte.

use crate::golden::{Image, image, images, text, unpack};
use units::{BitSet, ByteLen, Generation, NodeId, NodeMask, Sector};
use urbd_meta::activity_log::block;
use urbd_meta::create::{CreateOptions, InitialBitmap};
use urbd_meta::dump::{self, Dialect, Header};
use urbd_meta::generations::{PeerDisk, Rotation, SourceGenerations};
use urbd_meta::{
    AlShape, BLOCK_LEN, BitmapArea, Block, DeviceFlags, Found, Geometry, Layout, MetaDisk, PeerFlags, Step, Superblock,
    Version, apply_al, convert, create, gi, resize,
};

/// Carries `steps` out on a zeroed copy of the image's region.
fn from_zero(like: &Image, steps: &[Step]) -> Vec<u8> {
    let mut bytes = vec![0; like.bytes.len()];
    for step in steps {
        step.apply_to(like.base, &mut bytes);
    }
    bytes
}

#[test]
fn superblocks_round_trip() {
    for image in images(|n| n.ends_with(".bin.xz")) {
        let bytes = image.superblock_bytes();
        let sb = Superblock::parse(&bytes).unwrap_or_else(|e| panic!("{}: {e}", image.name));
        assert_eq!(sb.emit(), bytes, "{}", image.name);
        image.found();
    }
}

#[test]
fn kernel_traces_round_trip() {
    for name in ["90-kernel-9.3.3-trace-superblocks", "91-kernel-8.4.11-trace-superblocks"]
        .into_iter()
        .chain(["92-kernel-9.3.3-trace-2node-p1-superblocks"])
    {
        let trace = trace(name);
        assert!(trace.len() > 20, "{name}");
        for (step, bytes) in trace {
            let sb = Superblock::parse(&bytes).unwrap_or_else(|e| panic!("{name} {step}: {e}"));
            assert_eq!(sb.emit(), bytes, "{name} {step}");
        }
    }
}

/// The superblocks of a trace, by `STEP.NODE`.
fn trace(name: &str) -> std::collections::BTreeMap<String, Box<Block>> {
    let tar = unpack(&format!("{name}.tar.xz"));
    let mut out = std::collections::BTreeMap::new();
    let mut at = 0;
    while at + 512 <= tar.len() && tar[at] != 0 {
        let file = tar[at..at + 100].split(|&b| b == 0).next().unwrap();
        let file = String::from_utf8(file.to_vec()).unwrap();
        let size = std::str::from_utf8(&tar[at + 124..at + 135]).unwrap().trim_matches(['\0', ' ']);
        let size = usize::from_str_radix(size, 8).unwrap();
        at += 512;
        if let Some(step) = file.rsplit('/').next().unwrap().strip_suffix(".sb") {
            out.insert(step.to_owned(), Box::new(tar[at..at + BLOCK_LEN].try_into().unwrap()));
        }
        at += size.next_multiple_of(512);
    }
    out
}

/// The options that a `create-md` command line of the manifest asks for.
fn create_like(image: &Image) -> (Version, Layout, CreateOptions) {
    let words: Vec<&str> = image.made_by.split(' ').collect();
    let option = |name: &str| words.iter().position(|w| *w == name).map(|i| words[i + 1].parse::<u32>().unwrap());
    let version = if words.contains(&"v08") { Version::V08 } else { Version::V09 };
    let after = words.iter().position(|w| *w == "create-md").unwrap() + 1;
    let peers = words[after..].last().and_then(|w| w.parse().ok()).filter(|_| version == Version::V09).unwrap_or(1);
    let al = AlShape::new(option("--al-stripes").unwrap_or(1), option("--al-stripe-size-kB").map_or(8, |k| k / 4));
    let geometry = Geometry::new(peers, option("--bitmap-block-size").unwrap_or(4096), al.unwrap()).unwrap();
    let layout = Layout::new(image.kind, geometry, image.device).unwrap();
    (version, layout, CreateOptions { max_bio: option("--peer-max-bio-size").unwrap_or(0), ..Default::default() })
}

#[test]
fn create_md() {
    let fresh = images(|n| n.starts_with('0') || (n.starts_with('1') && n.ends_with(".bin.xz")));
    assert_eq!(fresh.len(), 18);
    for image in fresh {
        let (version, layout, options) = create_like(&image);
        let (superblock, steps) = create::plan(version, &layout, &options).unwrap();
        image.assert_bytes(&from_zero(&image, &steps));
        assert_eq!(image.found().superblock, superblock, "{}", image.name);
    }
}

#[test]
fn fresh_log_block() {
    assert_eq!(&block::initialized()[..], unpack("95-al-initialized-block.bin.xz"));
}

/// Dumps `image` with the comment head of the golden `file` (time, host and command are not ours).
fn dump_like(found: &Found, bitmap: &[u8], golden: &str, dialect: Dialect) -> String {
    let mut lines = golden.lines().skip(1);
    let time = lines.next().unwrap().strip_prefix("# ").unwrap();
    let (host, command) = lines.next().unwrap().strip_prefix("# ").unwrap().split_once("> ").unwrap();
    let mut out = String::new();
    dump::write(&mut out, Header { time, host, command }, found, None, bitmap, dialect).unwrap();
    out
}

#[test]
fn dump_md() {
    let mut compared = 0;
    for image in images(|n| n.ends_with(".bin.xz")) {
        let stem = image.name.strip_suffix(".bin.xz").unwrap();
        let candidates = [format!("{stem}.dump.txt"), format!("{}-unclean.dump.txt", stem.trim_end_matches("-before"))];
        let Some(file) = candidates.iter().find(|f| crate::golden::path(f).exists()) else { continue };
        if stem.ends_with("-after") {
            continue;
        }
        let golden = text(file);
        let v08 = golden.contains("version \"v08\"");
        let old = golden.lines().nth(2).unwrap().contains("drbdmeta ");
        let dialect = match (v08, old) {
            (_, false) => Dialect::Current,
            (true, true) => Dialect::V922,
            (false, true) => Dialect::WithoutMembers,
        };
        let found = image.found();
        let ours = dump_like(&found, &image.bitmap(&found), &golden, dialect);
        let differs = ours.lines().zip(golden.lines()).position(|(a, b)| a != b);
        assert_eq!(differs.map(|i| (ours.lines().nth(i), golden.lines().nth(i))), None, "{file}");
        assert_eq!(ours.len(), golden.len(), "{file}");
        compared += 1;
    }
    assert_eq!(compared, 21);
}

#[test]
fn restore_md() {
    let inputs = [
        ("30-v08-restore-input.txt", "30-v08-restored-1G-9.22.0.bin.xz"),
        ("30-v08-restore-input.txt", "31-v08-restored-1G-9.34.0.bin.xz"),
        ("32-v09-restore-input-p3.txt", "32-v09-restored-1G-p3-9.22.0.bin.xz"),
        ("33-v09-restore-input-p3.txt", "33-v09-restored-1G-p3-9.34.0.bin.xz"),
        ("34-v09-restore-input-p5.txt", "34-v09-restored-1G-p5-9.34.0.bin.xz"),
    ];
    for (input, restored) in inputs {
        let image = image(restored);
        let dump = dump::parse(&text(input)).unwrap_or_else(|e| panic!("{input}: {e}"));
        let version = dump.superblock.version();
        let plan = dump::restore(&dump, version, image.kind, image.device, None, false).unwrap();
        image.assert_bytes(&from_zero(&image, &plan.steps));
        assert_eq!((plan.bitmap_truncated, plan.is_unclean, plan.lost_flags), (false, false, false), "{input}");
        // What the reference dumps from the restored device restores to the same device.
        let again = text(&restored.replace(".bin.xz", ".dump.txt"));
        let again =
            dump::restore(&dump::parse(&again).unwrap(), version, image.kind, image.device, None, false).unwrap();
        if restored.starts_with("30") {
            assert!(again.lost_flags && again.is_unclean, "the 9.22 dump has lost the flags");
        } else {
            image.assert_bytes(&from_zero(&image, &again.steps));
        }
    }
}

/// apply-al as a caller does it. Returns the bits that became set.
fn apply(image: &mut Image) -> u64 {
    let found = image.found();
    let plan = apply_al::decide(&found, &image.ring(&found.layout)).unwrap();
    let mut newly = 0;
    for page in plan.pages() {
        let at = found.layout.bitmap_page_at(page);
        let mut data = image.block(at);
        newly += plan.mark(page, &mut data);
        image.write(at, &data);
    }
    for step in plan.finish() {
        step.apply_to(image.base, &mut image.bytes);
    }
    newly
}

#[test]
fn apply_al_before_and_after() {
    let before = images(|n| n.ends_with("-before.bin.xz") && !n.starts_with("80"));
    assert_eq!(before.len(), 15);
    for mut before in before {
        let after = image(&before.name.replace("-before", "-after"));
        apply(&mut before);
        assert_applied(&before, &after);
        // Twice is harmless.
        assert_eq!(apply(&mut before), 0);
        assert_applied(&before, &after);
    }
}

/// `image` is byte for byte `golden`, but that drbd-utils 9.22, which does not know the field, zeroes the members.
fn assert_applied(image: &Image, golden: &Image) {
    let mut image = image.clone();
    let found = image.found();
    if golden.made_by.contains("9.22") {
        let without = Superblock { members: Default::default(), ..found.superblock };
        image.write(found.layout.superblock_at(), &without.emit());
    }
    golden.assert_bytes(&image.bytes);
}

#[test]
fn hot_extents_and_damage_are_reported() {
    let plan = |name: &str| {
        let image = image(name);
        let found = image.found();
        apply_al::decide(&found, &image.ring(&found.layout)).unwrap()
    };
    let old = plan("51-al-v08-drbd83-style-before.bin.xz");
    assert_eq!(old.hot().iter().copied().collect::<Vec<_>>(), [2, 4, 9]);
    let torn = plan("42-al-v09-p3-newest-torn-before.bin.xz");
    let replay = torn.replay().unwrap();
    assert_eq!((replay.corrupt, replay.gap), (1, false));
    assert!(plan("47-al-v08-secondary-not-applied-before.bin.xz").hot().is_empty());
    assert!(plan("49-al-v08-last-extent-flexext-before.bin.xz").hot().contains(&31));
}

/// The reference goes on without a transaction that is missing in the middle of its log.
#[test]
fn a_hole_in_the_log_marks_everything() {
    let image = image("41-al-v08-wrapped-before.bin.xz");
    let found = image.found();
    let ring = image.ring(&found.layout);
    let number = |b: &[u8]| u32::from_be_bytes(b[4..8].try_into().unwrap());
    let blocks: Vec<&[u8]> = ring.chunks_exact(BLOCK_LEN).collect();
    let newest = blocks.iter().map(|b| number(b)).max().unwrap();
    let middle = blocks.iter().position(|b| number(b) + 5 == newest).unwrap();
    let area = BitmapArea::new(found.layout.geometry(), found.superblock.effective_size);
    for (at, hole) in [(middle, true), (blocks.iter().position(|b| number(b) == newest).unwrap(), false)] {
        let mut damaged = ring.clone();
        damaged[at * BLOCK_LEN + 100] ^= 3;
        let plan = apply_al::decide(&found, &damaged).unwrap();
        assert_eq!(plan.marks_all(), hole);
        if !hole {
            continue;
        }
        assert!(plan.pages().eq(0..area.pages()));
        for page in plan.pages() {
            let mut bits = Box::new([0; BLOCK_LEN]);
            assert!(plan.mark(page, &mut bits) > 0 && bits.iter().all(|&b| b == 0xFF));
        }
    }
}

#[test]
fn gi_texts() {
    let peer = |n| NodeId::new(n).unwrap();
    let v08 = image("20-v08-set-gi-sb.bin.xz").found();
    assert_eq!(gi::text(&v08.superblock, peer(0)), text("20-v08-get-gi.txt").trim_end());
    assert_eq!(gi::legend(&v08.superblock, peer(0)), text("20-v08-show-gi.txt"));
    let v09 = image("21-v09-set-gi-node2-sb.bin.xz").found();
    assert_eq!(gi::text(&v09.superblock, peer(2)), text("21-v09-get-gi-node2.txt").trim_end());
    assert_eq!(gi::legend(&v09.superblock, peer(2)), text("21-v09-show-gi-node2.txt"));
}

#[test]
fn set_gi_writes_what_the_reference_writes() {
    for name in ["20-v08-set-gi-sb.bin.xz", "21-v09-set-gi-node2-sb.bin.xz"] {
        let image = image(name);
        let found = image.found();
        let string = image.made_by.split("set-gi ").nth(1).unwrap().split(';').next().unwrap();
        let mut sb = Superblock::fresh(found.superblock.version(), &found.layout);
        sb.device_uuid = 0x1234_5678_90AB_CDEF;
        let set = gi::set(&sb, NodeId::new(2).unwrap(), string).unwrap();
        assert_eq!(set.emit(), image.superblock_bytes(), "{name}");
    }
}

#[test]
fn conversion() {
    for tool in ["9.22.0", "9.34.0"] {
        let [a, b, c] = ["a-v08", "b-v09", "c-v08"].map(|x| image(&format!("70-convert-{tool}-{x}-sb.bin.xz")));
        let start = a.found();
        // 9.22 forgets the largest request; otherwise both agree.
        let like_tool = |mut sb: Superblock, golden: &Image| {
            if tool == "9.22.0" {
                sb.max_bio = golden.found().superblock.max_bio;
            }
            golden.assert_bytes(&sb.emit()[..]);
            sb
        };
        let v09 = convert::superblock(&start.superblock, Version::V09, &start.layout).unwrap();
        let v09 = like_tool(v09, &b);
        assert_eq!(v09.geometry.slots(), 1);
        like_tool(convert::superblock(&v09, Version::V08, &start.layout).unwrap(), &c);
    }
    let p3 = image("05-v09-internal-1G-p3.bin.xz").found();
    assert_eq!(convert::superblock(&p3.superblock, Version::V08, &p3.layout), Err(convert::NotConvertible));
}

#[test]
fn grown_device() {
    for v in ["v08", "v09"] {
        let before = image(&format!("80-resize-{v}-before.bin.xz"));
        let after = image(&format!("80-resize-{v}-after.bin.xz"));
        let found = before.found();
        let (sb, layout, steps) = resize::plan_move(&found, after.device, InitialBitmap::Zero).unwrap();
        // The whole device from the old bitmap on.
        let mut bytes = vec![0; (after.device.0 - before.base) as usize];
        bytes[..before.bytes.len()].copy_from_slice(&before.bytes);
        for step in &steps {
            step.apply_to(before.base, &mut bytes);
        }
        let new = (after.base - before.base) as usize;
        after.assert_bytes(&bytes[new..new + after.bytes.len()]);
        assert!(bytes[..new].iter().all(|&b| b == 0), "old region zeroed");
        assert_eq!(after.found(), Found { superblock: sb, layout, truncated_from: None });
        lkbd_follows(v, &before, &after);
    }
}

fn lkbd_follows(v: &str, before: &Image, after: &Image) {
    for (when, image) in [("before", before), ("after", after)] {
        let golden = text(&format!("80-resize-{v}-lkbd-{when}.txt"));
        let known = urbd_meta::lkbd::LastKnown::parse(&golden).unwrap();
        assert_eq!((known.size, known.emit()), (image.device, golden));
        assert!(known.matches(image.found().superblock.device_uuid));
        assert!(!known.matches(1));
    }
}

/// A move whose old and new regions overlap keeps every bit.
#[test]
fn small_growth_overlaps() {
    for grow in [4096, 8192, 40960, 65536, 1 << 20] {
        let before = image("34-v09-restored-1G-p5-9.34.0.bin.xz");
        let found = before.found();
        let device = ByteLen(before.device.0 + grow);
        let (_, layout, steps) = resize::plan_move(&found, device, InitialBitmap::Zero).unwrap();
        let mut bytes = vec![0; (device.0 - before.base) as usize];
        bytes[..before.bytes.len()].copy_from_slice(&before.bytes);
        for step in &steps {
            step.apply_to(before.base, &mut bytes);
        }
        let moved = Image { device, bytes, ..before.clone() };
        let again = moved.found();
        assert_eq!(again.layout, layout);
        assert_eq!(moved.bitmap(&again), before.bitmap(&found), "grown by {grow}");
        assert_eq!(moved.ring(&layout), before.ring(&found.layout), "grown by {grow}");
    }
}

/// Bitmap pages into bit sets and back.
#[test]
fn bitmaps_load_and_store() {
    for image in images(|n| n.starts_with('3') || n.contains("-after")) {
        let found = image.found();
        let area = BitmapArea::new(found.layout.geometry(), found.superblock.effective_size);
        let mut sets = vec![BitSet::new(area.bits()); area.slots() as usize];
        let golden = image.bitmap(&found);
        let pages = || golden.chunks_exact(BLOCK_LEN).map(|c| <&Block>::try_from(c).unwrap()).zip(0..);
        for (data, page) in pages() {
            area.load(page, data, &mut sets);
        }
        for (slot, set) in sets.iter().enumerate() {
            for bit in (0..area.bits()).step_by(37) {
                let at = (bit & !31) * u64::from(area.slots()) + 32 * slot as u64 + (bit & 31);
                assert_eq!(set.contains(bit), golden[(at / 8) as usize] >> (at % 8) & 1 == 1, "{} {bit}", image.name);
            }
        }
        let mut stored = vec![];
        for (_, page) in pages() {
            let mut out = [0xAA; BLOCK_LEN];
            area.store(page, &sets, &mut out);
            stored.extend_from_slice(&out);
        }
        // Bits past the device are dropped; everything else is the same.
        let mut again = vec![BitSet::new(area.bits()); area.slots() as usize];
        for (chunk, page) in stored.chunks_exact(BLOCK_LEN).zip(0..) {
            area.load(page, chunk.try_into().unwrap(), &mut again);
        }
        assert!(again == sets, "{}", image.name);
        assert!(stored.iter().zip(&golden).all(|(s, g)| s & !g == 0), "{}", image.name);
    }
}

/// The rotation rules reproduce what a Primary of the 9.3.3 kernel wrote (`docs/spec/on-disk-format.md` 5.3).
#[test]
pub(crate) fn v09_rotation_follows_the_kernel() {
    let trace = trace("90-kernel-9.3.3-trace-superblocks");
    let at = |step: &str| Superblock::parse(&trace[step]).unwrap();
    let node = |n| NodeId::new(n).unwrap();
    let same = |ours: &Superblock, golden: &Superblock, step: &str| {
        let base = |sb: &Superblock| {
            let bitmaps = sb.peers.map(|p| p.bitmap_uuid.base());
            (sb.current.base(), bitmaps, sb.history)
        };
        assert_eq!(base(ours), base(golden), "{step}");
    };
    let peers = |b, c| [(node(1), b), (node(2), c)];
    let mut a = at("b_connected.A");
    // primary --force: the peers' disks are Inconsistent, and every node is given the day-0 generation.
    let golden = at("c_primary.A");
    let day0 = golden.peers[1].bitmap_uuid;
    let none = Default::default();
    let not = PeerDisk::NotAccessible;
    let rotated = a.rotate_current(node(0), &peers(not, not), none, none, day0, 0);
    assert!(rotated.contains(node(1)) && rotated.contains(node(2)) && !rotated.contains(node(3)));
    assert!(a.new_current(golden.current.0, true, rotated, false));
    same(&a, &golden, "c");
    a.set_bitmap_uuid(node(1), Generation::NONE, 0);
    a.set_bitmap_uuid(node(2), Generation::NONE, 0);
    same(&a, &at("d_synced.A"), "d");
    // Node 2 is lost; the first write after that makes a new generation.
    let golden = at("g_written_c_gone.A");
    let up = PeerDisk::Accessible;
    let rotated = a.rotate_current(node(0), &peers(up, up), none, none, Generation::NONE, 24);
    assert!(!a.new_current(1, true, rotated, a.is_day0()), "nobody is missing: no new generation");
    let rotated = a.rotate_current(node(0), &peers(up, not), none, none, Generation::NONE, 24);
    assert!(a.new_current(golden.current.0, true, rotated, false));
    same(&a, &golden, "g");
    assert_eq!(a.peers[2].bitmap_dagtag, golden.peers[2].bitmap_dagtag);
    a.set_bitmap_uuid(node(2), Generation::NONE, 0);
    same(&a, &at("j_c_resynced.A"), "j");
    // Slots as the kernel gave them; a forgotten node is like one that never was.
    assert_eq!(a.free_slot(), (0..3).find(|s| a.peers.iter().all(|p| p.slot != Some(*s))));
    a.forget_peer(node(2));
    assert_eq!(a.peers[2], a.peers[31]);
}

/// The Secondary and the target of a resync in the same trace.
#[test]
pub(crate) fn v09_rotation_on_the_other_nodes() {
    let trace = trace("90-kernel-9.3.3-trace-superblocks");
    let at = |step: &str| Superblock::parse(&trace[step]).unwrap();
    let node = |n| NodeId::new(n).unwrap();
    let base = |sb: &Superblock| (sb.current.base(), sb.peers.map(|p| p.bitmap_uuid.base()), sb.history);
    // Node 1 hears of the new generation while node 2 is away.
    let (mut b, golden) = (at("f_c_gone.B"), at("g_written_c_gone.B"));
    let peers = [(node(0), PeerDisk::Accessible), (node(2), PeerDisk::NotAccessible)];
    let rotate = Some(Rotation { configured: &peers, day0_shared: Default::default(), dagtag: 24 });
    b.receive_new_current(node(1), golden.current, NodeMask::of(node(2)), rotate);
    assert_eq!(base(&b), base(&golden));
    // Node 2 comes back and is the target of a resync from node 0.
    let (mut c, source, golden) = (at("g_written_c_gone.C"), at("g_written_c_gone.A"), at("j_c_resynced.C"));
    let mut bitmaps = source.peers.map(|p| p.bitmap_uuid);
    bitmaps[2] = Generation::NONE;
    let source = SourceGenerations { current: source.current, bitmaps, history: source.history };
    let at_start = c.current;
    c.finish_as_target(node(2), &source, NodeMask::of(node(1)), at_start, false, 24);
    assert_eq!((c.current.base(), c.history), (golden.current.base(), golden.history));
    assert_eq!(c.peers[0].bitmap_uuid, golden.peers[0].bitmap_uuid);
    assert_eq!(c.peers[1].bitmap_uuid, golden.peers[1].bitmap_uuid);
}

/// What a target is still to get is marked on its disk for all, and in memory for its source alone.
#[test]
pub(crate) fn what_is_to_come_is_stored_for_all() {
    let geometry = Geometry::new(3, 4096, AlShape::DEFAULT).unwrap();
    let area = BitmapArea::new(geometry, Sector(8192));
    let mut sets = vec![BitSet::new(area.bits()); 3];
    sets[0].set_range(3, 4);
    sets[1].set_range(70, 72);
    let mut out = [0xAA; BLOCK_LEN];
    area.store_with(0, &sets, Some(1), &mut out);
    let mut stored = vec![BitSet::new(area.bits()); 3];
    area.load(0, &out, &mut stored);
    assert_eq!(stored.iter().map(BitSet::count).collect::<Vec<_>>(), [3, 2, 2]);
    assert!(stored[2].contains(70) && stored[0].contains(3));
}

/// While positions change, a crash means a full sync.
#[test]
fn online_resize_is_protected() {
    for name in ["80-resize-v08-before.bin.xz", "80-resize-v09-before.bin.xz"] {
        let found = image(name).found();
        let new = Layout::new(MetaDisk::Internal, found.layout.geometry(), ByteLen(200 << 20)).unwrap();
        let interim = resize::interim(&found.superblock, &new);
        let again = Superblock::parse(&interim.emit()).unwrap();
        assert_eq!(again, interim);
        assert!(again.flags.contains(DeviceFlags::AL_DISABLED) && again.peers[0].flags.contains(PeerFlags::FULL_SYNC));
        let block = interim.emit();
        assert_eq!(urbd_meta::find::check(MetaDisk::Internal, ByteLen(200 << 20), &block).unwrap().layout, new);
    }
}
