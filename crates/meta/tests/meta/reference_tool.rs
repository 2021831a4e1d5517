//! The same work done by `drbdmeta` (drbd-utils) on files. Skipped, with a message, where it is not installed or must
//! not run (it needs root).

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use units::{ByteLen, Generation, NodeId, Rng, Sector};
use urbd_meta::activity_log::Acquire;
use urbd_meta::create::{self, CreateOptions};
use urbd_meta::dump::{self, Dialect, Header};
use urbd_meta::existing::{self, Verdict};
use urbd_meta::{
    ActivityLog, AlShape, BLOCK_LEN, DeviceFlags, ExtentRange, Found, Geometry, Layout, MetaDisk, PeerFlags, Step,
    Superblock, Version, apply_al, find, gi,
};

/// A file as metadata device, and the tool's words for it.
struct Device {
    dir: tempfile::TempDir,
    minor: u32,
    kind: MetaDisk,
    size: u64,
}

impl Drop for Device {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(format!("/var/lib/drbd/drbd-minor-{}.lkbd", self.minor));
    }
}

impl Device {
    /// `None` if the tool cannot be used here. Each test takes a minor number of its own.
    fn new(minor: u32, kind: MetaDisk, size: u64) -> Option<Device> {
        let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let device = Device { dir, minor, kind, size };
        device.clear();
        match device.tool_command(Version::V08, &["dump-md"]).output() {
            // No metadata yet: 1. Usage, lock or open trouble: 20.
            Ok(out) if out.status.code() != Some(20) => Some(device),
            Ok(out) => {
                println!("skipped: drbdmeta must not run here: {}", String::from_utf8_lossy(&out.stderr));
                None
            }
            Err(e) => {
                println!("skipped: drbdmeta is not installed (package drbd-utils): {e}");
                None
            }
        }
    }

    fn path(&self) -> PathBuf {
        self.dir.path().join("disk")
    }

    fn clear(&self) {
        let file = std::fs::File::create(self.path()).unwrap();
        file.set_len(self.size).unwrap();
    }

    fn tool_command(&self, version: Version, args: &[&str]) -> Command {
        let mut command = Command::new("drbdmeta");
        command.arg("--force").arg(self.minor.to_string()).arg(version.to_string()).arg(self.path());
        command.arg(self.kind.to_string()).args(args);
        command
    }

    fn tool(&self, version: Version, args: &[&str]) -> Output {
        self.tool_command(version, args).output().unwrap()
    }

    #[track_caller]
    fn tool_ok(&self, version: Version, args: &[&str]) -> String {
        let out = self.tool(version, args);
        assert!(out.status.success(), "drbdmeta {args:?}: {}", String::from_utf8_lossy(&out.stderr));
        String::from_utf8(out.stdout).unwrap()
    }

    fn bytes(&self) -> Vec<u8> {
        std::fs::read(self.path()).unwrap()
    }

    fn put(&self, bytes: &[u8]) {
        std::fs::write(self.path(), bytes).unwrap();
    }

    fn found(&self, bytes: &[u8]) -> Found {
        let at = urbd_meta::layout::superblock_at(self.kind, ByteLen(self.size)).unwrap().0 as usize;
        find::check(self.kind, ByteLen(self.size), bytes[at..at + BLOCK_LEN].try_into().unwrap()).unwrap()
    }
}

fn carry_out(bytes: &mut [u8], steps: &[Step]) {
    for step in steps {
        step.apply_to(0, bytes);
    }
}

/// Random geometries that both formats, files of a few MiB and drbdmeta 9.22 (4096 bytes per bit) can have.
fn geometry(rng: &mut Rng, version: Version) -> Geometry {
    let shapes = [(1, 8), (4, 16), (3, 5), (1, 64), (2, 8)];
    let (s, z) = shapes[rng.below(shapes.len() as u64) as usize];
    let slots = if version == Version::V08 { 1 } else { 1 + rng.below(31) as u32 };
    Geometry::new(slots, 4096, AlShape::new(s, z).unwrap()).unwrap()
}

fn version(rng: &mut Rng) -> Version {
    if rng.chance(1, 2) { Version::V08 } else { Version::V09 }
}

fn randomize(sb: &mut Superblock, capacity: Sector, rng: &mut Rng) {
    sb.effective_size = Sector(rng.below(capacity.0 + 1));
    sb.current = Generation(rng.next_u64());
    sb.device_uuid = rng.next_u64();
    sb.max_bio = rng.below(1 << 20) as u32;
    let peers = if sb.version() == Version::V08 { 1 } else { 32 };
    for (i, peer) in sb.peers[..peers].iter_mut().enumerate() {
        peer.bitmap_uuid = Generation(rng.next_u64());
        if peers == 1 {
            peer.flags = PeerFlags(rng.next_u64() as u32 & 0xb);
            continue;
        }
        peer.flags = PeerFlags(rng.next_u64() as u32 & 0x1001f);
        peer.bitmap_dagtag = rng.next_u64();
        peer.slot = (i > 0 && i <= sb.geometry.slots() as usize).then(|| i as u8 - 1);
    }
    let history = if peers == 1 { 2 } else { 32 };
    for g in &mut sb.history[..history] {
        *g = Generation(rng.next_u64());
    }
    if peers == 32 {
        sb.node_id = NodeId::new(0);
        sb.flags = DeviceFlags(rng.next_u64() as u32 & 0x753 | 0x80);
    } else {
        sb.flags = DeviceFlags(rng.next_u64() as u32 & 0x153 | 0x80);
    }
}

/// A bitmap with runs and noise.
fn random_bitmap(len: usize, rng: &mut Rng) -> Vec<u8> {
    let mut out = Vec::with_capacity(len);
    while out.len() < len {
        let run = rng.below(600) as usize;
        let value = [0, 0xFF, 0x55, 0][rng.below(4) as usize];
        out.extend(std::iter::repeat_n(value, run * 4));
        for _ in 0..rng.below(20) {
            out.extend_from_slice(&(rng.next_u64() as u32).to_le_bytes());
        }
    }
    out.truncate(len);
    out
}

#[test]
fn create_md_is_the_same() {
    let mut rng = Rng::new(1);
    for case in 0..10 {
        let kind = [MetaDisk::Internal, MetaDisk::FlexExternal][case % 2];
        let size = (2 << 20) + rng.below(30 << 20) / 512 * 512;
        let Some(device) = Device::new(9101, kind, size) else { return };
        let version = version(&mut rng);
        let geometry = geometry(&mut rng, version);
        let layout = Layout::new(kind, geometry, ByteLen(size)).unwrap();
        let (_, steps) = create::plan(version, &layout, &CreateOptions::default()).unwrap();
        let mut ours = device.bytes();
        carry_out(&mut ours, &steps);
        let [s, z] = [geometry.al().stripes(), geometry.al().stripe_blocks() * 4].map(|n| n.to_string());
        let slots = geometry.slots().to_string();
        let mut args = vec!["create-md", "--al-stripes", &s, "--al-stripe-size-kB", &z];
        if version == Version::V09 {
            args.push(&slots);
        }
        device.tool_ok(version, &args);
        assert!(ours == device.bytes(), "case {case}: {version} {geometry:?} on {size} bytes");
        // And what we wrote, the tool believes.
        device.put(&ours);
        device.tool_ok(version, &["dump-md"]);
    }
}

#[test]
fn dump_and_restore_are_the_same() {
    let mut rng = Rng::new(2);
    for case in 0..10 {
        let size = (4 << 20) + rng.below(60 << 20) / 4096 * 4096;
        let Some(device) = Device::new(9102, MetaDisk::FlexExternal, size) else { return };
        let version = version(&mut rng);
        let layout = Layout::new(device.kind, geometry(&mut rng, version), ByteLen(size)).unwrap();
        let (mut sb, steps) = create::plan(version, &layout, &CreateOptions::default()).unwrap();
        let mut bytes = device.bytes();
        carry_out(&mut bytes, &steps);
        randomize(&mut sb, Sector(layout.capacity().0.min(8 << 21)), &mut rng);
        let bitmap = random_bitmap(layout.geometry().bitmap_bytes(sb.effective_size) as usize, &mut rng);
        let at = layout.bitmap_at().0 as usize;
        bytes[at..at + bitmap.len()].copy_from_slice(&bitmap);
        bytes[..BLOCK_LEN].copy_from_slice(&sb.emit()[..]);
        device.put(&bytes);
        let golden = device.tool_ok(version, &["dump-md"]);
        let ours = dump_text(&device.found(&bytes), &bitmap, &golden, Dialect::V922);
        assert!(ours == golden, "case {case}: {version} {:?}", layout.geometry());
        restores_alike(&device, version, &dump_text(&device.found(&bytes), &bitmap, &golden, Dialect::WithoutMembers));
    }
}

fn dump_text(found: &Found, bitmap: &[u8], golden: &str, dialect: Dialect) -> String {
    let mut lines = golden.lines().skip(1);
    let time = lines.next().unwrap().strip_prefix("# ").unwrap();
    let (host, command) = lines.next().unwrap().strip_prefix("# ").unwrap().split_once("> ").unwrap();
    let mut out = String::new();
    dump::write(&mut out, Header { time, host, command }, found, None, bitmap, dialect).unwrap();
    out
}

/// Restores `text` to an empty device with the tool and with us.
fn restores_alike(device: &Device, version: Version, text: &str) {
    let file = device.dir.path().join("dump");
    std::fs::write(&file, text).unwrap();
    device.clear();
    let mut ours = device.bytes();
    let plan =
        dump::restore(&dump::parse(text).unwrap(), version, device.kind, ByteLen(device.size), None, false).unwrap();
    carry_out(&mut ours, &plan.steps);
    device.tool_ok(version, &["restore-md", file.to_str().unwrap()]);
    let theirs = device.bytes();
    // The last words are padding that belongs to no slot; the reference drops some of it.
    let (layout, size) = (plan.found.layout, plan.found.superblock.effective_size);
    let slots = layout.geometry().slots() as usize;
    let padding_from = layout.bitmap_at().0 as usize + layout.geometry().bits(size).div_ceil(64) as usize * 8 * slots;
    let padding = padding_from..(layout.bitmap_at().0 + layout.geometry().bitmap_bytes(size)) as usize;
    let differs = (0..ours.len()).filter(|i| !padding.contains(i)).find(|&i| ours[i] != theirs[i]);
    assert_eq!(differs, None, "{version} {layout:?} padding {padding:?}");
}

/// A ring written by our activity log is replayed alike, on every kind of ring.
#[test]
fn our_transactions_are_replayed_alike() {
    let mut rng = Rng::new(3);
    for case in 0..8 {
        let size = 8 << 20;
        let Some(device) = Device::new(9103, MetaDisk::FlexExternal, size) else { return };
        let version = version(&mut rng);
        let layout = Layout::new(device.kind, geometry(&mut rng, version), ByteLen(size)).unwrap();
        let (mut sb, steps) = create::plan(version, &layout, &CreateOptions::default()).unwrap();
        let mut bytes = device.bytes();
        carry_out(&mut bytes, &steps);
        sb.effective_size = Sector(300 * 8192 - rng.below(8192));
        sb.flags.insert(DeviceFlags::PRIMARY_IND);
        sb.mark_in_use();
        let at = layout.superblock_at().0 as usize;
        bytes[at..at + BLOCK_LEN].copy_from_slice(&sb.emit()[..]);
        write_load(&mut bytes, &layout, &mut rng);
        device.put(&bytes);
        device.tool_ok(version, &["apply-al"]);
        let found = device.found(&bytes);
        let ring = layout.al_at().0 as usize;
        let ring = bytes[ring..ring + layout.geometry().al().bytes().0 as usize].to_vec();
        let plan = apply_al::decide(&found, &ring).unwrap();
        assert!(!plan.hot().is_empty());
        for page in plan.pages() {
            let at = layout.bitmap_page_at(page).0 as usize;
            plan.mark(page, (&mut bytes[at..at + BLOCK_LEN]).try_into().unwrap());
        }
        carry_out(&mut bytes, &plan.finish());
        assert!(bytes == device.bytes(), "case {case}: {version} {:?}", layout.geometry());
    }
}

/// Extents of a device of 300 extents come and go through a small log; the last transaction may be torn.
fn write_load(bytes: &mut [u8], layout: &Layout, rng: &mut Rng) {
    let shape = layout.geometry().al();
    let mut log = ActivityLog::new(67, shape, 0);
    let transactions = 1 + rng.below(u64::from(shape.blocks()) * 3);
    let mut held = Vec::new();
    for n in 0..transactions {
        for _ in 0..rng.below(12) {
            let range = ExtentRange::single(rng.below(302) as u32);
            if matches!(log.acquire(range), Acquire::Active | Acquire::Pending(_)) {
                held.push(range);
            }
        }
        if let Some(t) = log.start_transaction() {
            let at = layout.al_block_at(t.block_index).0 as usize;
            let mut block = [0; BLOCK_LEN];
            log.emit_block(&mut block);
            let torn = n + 1 == transactions && n > 1 && rng.chance(1, 2);
            let len = if torn { 512 * rng.below(8) as usize } else { BLOCK_LEN };
            bytes[at..at + len].copy_from_slice(&block[..len]);
            log.commit();
        }
        while held.len() > 20 {
            log.release(held.swap_remove(rng.below(held.len() as u64) as usize));
        }
        log.forget_waiters();
    }
}

#[test]
fn generation_texts_are_the_same() {
    let mut rng = Rng::new(4);
    for _ in 0..10 {
        let size = 64 << 20;
        let Some(device) = Device::new(9104, MetaDisk::Internal, size) else { return };
        let version = version(&mut rng);
        let layout = Layout::new(device.kind, geometry(&mut rng, version), ByteLen(size)).unwrap();
        let mut sb = Superblock::fresh(version, &layout);
        randomize(&mut sb, layout.capacity(), &mut rng);
        let mut bytes = device.bytes();
        let at = layout.superblock_at().0 as usize;
        bytes[at..at + BLOCK_LEN].copy_from_slice(&sb.emit()[..]);
        device.put(&bytes);
        let node = NodeId::new(rng.below(32) as u8).unwrap();
        let number = node.to_string();
        let run = |words: &[&str]| {
            let id = ["--node-id", number.as_str()];
            let all: Vec<&str> =
                if version == Version::V09 { id.iter().chain(words).copied().collect() } else { words.to_vec() };
            device.tool_ok(version, &all)
        };
        assert_eq!(run(&["get-gi"]).trim_end(), gi::text(&sb, node));
        assert_eq!(run(&["show-gi"]), gi::legend(&sb, node));
        let states = ["Inconsistent", "Outdated", "Consistent", "UpToDate"];
        let state = device.tool_ok(version, &["dstate"]).trim_end().split('/').next().unwrap().to_owned();
        assert!(states.contains(&state.as_str()));
        assert_eq!(state, gi::disk_state(&sb).to_string());
        let string = format!("{:X}::{:x}:0x7:1:0::1", rng.next_u64(), rng.next_u64());
        run(&["set-gi", &string]);
        let set = gi::set(&sb, node, &string).unwrap();
        assert_eq!(run(&["get-gi"]).trim_end(), gi::text(&set, node));
        let mut invalid = set.clone();
        gi::invalidate(&mut invalid);
        device.tool_ok(version, &["invalidate"]);
        assert!(device.bytes()[at..at + BLOCK_LEN] == invalid.emit()[..], "{version}");
    }
}

/// Damaged dumps are refused by both, in the same line.
#[test]
fn dump_errors_are_in_the_same_line() {
    let Some(device) = Device::new(9105, MetaDisk::Internal, 1 << 30) else { return };
    let vectors = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../vectors/metadata");
    let golden = std::fs::read_to_string(vectors.join("30-v08-restore-input.txt")).unwrap();
    let file = device.dir.path().join("dump");
    let mut rng = Rng::new(5);
    let junk = [
        "",
        "{",
        "}",
        ";",
        " bm ",
        " 12 ",
        " 0x12 ",
        " 0x11111111 ",
        "\n\n#c\n",
        " \"x\" ",
        "$",
        " -3 ",
        " junk ",
        "\"",
    ];
    for case in 0..40 {
        let at = rng.below(golden.len() as u64) as usize;
        let end = (at + rng.below(6) as usize).min(golden.len());
        let text = format!("{}{}{}", &golden[..at], junk[rng.below(junk.len() as u64) as usize], &golden[end..]);
        std::fs::write(&file, &text).unwrap();
        let out = device.tool(Version::V08, &["verify-dump", file.to_str().unwrap()]);
        let messages = [out.stdout, out.stderr].map(|b| String::from_utf8_lossy(&b).into_owned()).concat();
        let line = messages.split("Parse error in line ").nth(1).and_then(|m| m.split(':').next()?.parse::<u32>().ok());
        let theirs = if out.status.success() { Ok(()) } else { Err(line) };
        let ours = dump::parse(&text).map(|_| ()).map_err(|e| Some(e.line));
        assert_eq!(ours, theirs, "case {case}: {messages}\n{:?}", dump::parse(&text).map(|_| ()));
    }
}

/// create-md says the same about what is on the device, and refuses the same.
#[test]
fn existing_data_is_judged_alike() {
    let heads: [&[(usize, &[u8])]; 7] = [
        &[(4086, b"SWAPSPACE2")],
        &[(1080, &[0x53, 0xEF]), (1028, &[0, 1, 0, 0]), (1048, &[2]), (1116, &[4])],
        &[(1080, &[0x53, 0xEF]), (1028, &[0, 0, 1, 0]), (1048, &[0])],
        &[(0, b"XFSB\0\0\x10\0\0\0\0\0\0\0\x40\0")],
        &[(32768, b"JFS1"), (32776, &[0, 9]), (32793, &[2])],
        &[(65588, b"ReIsErFs"), (65536, &[5]), (65581, &[16])],
        &[(69000, b"x")],
    ];
    for (kind, head) in [MetaDisk::Internal, MetaDisk::FlexExternal].into_iter().flat_map(|k| heads.map(|h| (k, h))) {
        let Some(device) = Device::new(9106, kind, 64 << 20) else { return };
        let mut bytes = device.bytes();
        for (at, part) in head {
            bytes[*at..*at + part.len()].copy_from_slice(part);
        }
        device.put(&bytes);
        let layout = Layout::new(kind, Geometry::V08, ByteLen(device.size)).unwrap();
        let found = existing::detect(&bytes[..existing::PROBE_LEN]).unwrap();
        let out = device.tool(Version::V08, &["create-md"]);
        let said = String::from_utf8(out.stdout).unwrap();
        let report = found.report(&layout);
        assert!(said.trim_start().starts_with(report.trim_end()), "{kind}\n{said}\nours:\n{report}");
        let refused = found.verdict(&layout) == Verdict::Refuse;
        assert_eq!(out.status.code(), Some(if refused { 40 } else { 0 }), "{kind} {}", found.signature);
    }
}
