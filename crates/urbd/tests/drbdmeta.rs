//! Our drbdmeta and the real one on the same files: both must write the same bytes, and each must read the other's.
//! Needs the package drbd-utils.

use std::fs::{self, File};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use tempfile::TempDir;

/// A minor number that no kernel device has. The real tool locks it on the whole machine, and notes sizes under it,
/// which [`Disks`] removes again: each test of each run has its own.
fn minor() -> String {
    static TESTS: AtomicU32 = AtomicU32::new(0);
    thread_local!(static TEST: u32 = TESTS.fetch_add(1, Ordering::Relaxed));
    (1_000_000 + (std::process::id() * 16 + TEST.with(|test| *test)) % 48_000).to_string()
}

const MIB: u64 = 1 << 20;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Tool {
    Ours,
    Real,
}

/// Runs a drbdmeta; `--force` because the disks are files.
fn drbdmeta(tool: Tool, format: &str, disk: &Path, index: &str, command: &[&str]) -> Output {
    let mut process = match tool {
        Tool::Ours => {
            let mut process = Command::new(env!("CARGO_BIN_EXE_urbd"));
            process.arg0("drbdmeta");
            process
        }
        Tool::Real => Command::new("/usr/sbin/drbdmeta"),
    };
    process.args(["--force", &minor(), format]).arg(disk).arg(index).args(command).stdin(Stdio::null());
    process.output().unwrap_or_else(|e| panic!("{tool:?} drbdmeta does not start (is drbd-utils installed?): {e}"))
}

fn succeed(tool: Tool, format: &str, disk: &Path, index: &str, command: &[&str]) -> String {
    let output = drbdmeta(tool, format, disk, index, command);
    assert!(output.status.success(), "{tool:?} {format} {index} {command:?}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}

struct Disks {
    dir: TempDir,
}

impl Disks {
    fn new() -> Disks {
        Disks { dir: tempfile::tempdir().unwrap() }
    }

    fn zeroes(&self, name: &str, size: u64) -> PathBuf {
        let path = self.dir.path().join(name);
        File::create(&path).unwrap().set_len(size).unwrap();
        path
    }
}

impl Drop for Disks {
    fn drop(&mut self) {
        let _ = fs::remove_file(format!("/var/lib/drbd/drbd-minor-{}.lkbd", minor()));
    }
}

/// A dump without the lines that name time, host and command, and without what only one version of the tool prints.
fn body(dump: &str) -> Vec<&str> {
    dump.lines().skip(4).filter(|line| !line.trim().is_empty() && !line.contains("flags 0x")).collect()
}

#[test]
fn created_metadata_is_the_same_to_the_byte() {
    let cases: [(&str, &str, u64, &[&str]); 7] = [
        ("v08", "internal", 64 * MIB, &["create-md"]),
        ("v08", "internal", 64 * MIB + 3584, &["create-md"]),
        ("v08", "flex-external", 4 * MIB, &["create-md"]),
        ("v08", "1", 257 * MIB, &["create-md"]),
        ("v09", "internal", 64 * MIB, &["create-md", "1"]),
        ("v09", "internal", 200 * MIB, &["create-md", "7"]),
        ("v09", "flex-external", 4 * MIB, &["create-md", "3"]),
    ];
    for (format, index, size, command) in cases {
        let disks = Disks::new();
        let (ours, real) = (disks.zeroes("ours", size), disks.zeroes("real", size));
        succeed(Tool::Ours, format, &ours, index, command);
        succeed(Tool::Real, format, &real, index, command);
        // assert_eq would print both disks.
        assert!(fs::read(&ours).unwrap() == fs::read(&real).unwrap(), "{format} {index} {size} {command:?}");
    }
}

#[test]
fn each_reads_what_the_other_wrote() {
    for (writer, reader) in [(Tool::Ours, Tool::Real), (Tool::Real, Tool::Ours)] {
        for (format, command, peer) in
            [("v08", &["create-md"][..], &[][..]), ("v09", &["create-md", "3"], &["--node-id", "2"])]
        {
            let disks = Disks::new();
            let disk = disks.zeroes("disk", 64 * MIB);
            succeed(writer, format, &disk, "internal", command);
            let gi = "123456789ABCDEF0:0:1111111111111110:2222222222222220:1:1";
            succeed(writer, format, &disk, "internal", &[&["set-gi", gi][..], peer].concat());
            for query in [[&["get-gi"][..], peer].concat(), vec!["dstate"]] {
                let ask = |tool| succeed(tool, format, &disk, "internal", &query);
                assert_eq!(ask(reader), ask(writer), "{format} {query:?}");
            }
            let dump = |tool| succeed(tool, format, &disk, "internal", &["dump-md"]);
            let (by_reader, by_writer) = (dump(reader), dump(writer));
            assert_eq!(body(&by_reader), body(&by_writer), "{format}");
            assert!(by_reader.contains("0x123456789ABCDEF0"), "{by_reader}");
        }
    }
}

#[test]
fn each_restores_what_the_other_dumped() {
    for (dumper, restorer) in [(Tool::Ours, Tool::Real), (Tool::Real, Tool::Ours)] {
        for (format, command) in [("v08", &["create-md"][..]), ("v09", &["create-md", "2"])] {
            let disks = Disks::new();
            let (from, to) = (disks.zeroes("from", 64 * MIB), disks.zeroes("to", 64 * MIB));
            succeed(dumper, format, &from, "internal", command);
            let set = ["set-gi", "AAAAAAAAAAAAAAA0:0:0:0:1", "--node-id", "1"];
            succeed(dumper, format, &from, "internal", if format == "v08" { &set[..2] } else { &set });
            let text = succeed(dumper, format, &from, "internal", &["dump-md"]);
            let file = disks.dir.path().join("dump");
            fs::write(&file, &text).unwrap();
            succeed(restorer, format, &to, "internal", command);
            succeed(restorer, format, &to, "internal", &["restore-md", file.to_str().unwrap()]);
            // A v08 dump of the real tool lacks the flags, "clean" among them.
            succeed(restorer, format, &to, "internal", &["apply-al"]);
            let restored = succeed(dumper, format, &to, "internal", &["dump-md"]);
            assert_eq!(body(&restored), body(&text), "{format}: {dumper:?} to {restorer:?}");
        }
    }
}

#[test]
fn a_file_system_is_not_cut_off() {
    let disks = Disks::new();
    for tool in [Tool::Ours, Tool::Real] {
        let disk = disks.zeroes("ext4", 64 * MIB);
        let made = Command::new("/sbin/mkfs.ext4").args(["-q", "-F"]).arg(&disk).output().unwrap();
        assert!(made.status.success(), "{made:?}");
        let before = fs::read(&disk).unwrap();
        assert_eq!(drbdmeta(tool, "v08", &disk, "internal", &["create-md"]).status.code(), Some(40), "{tool:?}");
        assert_eq!(drbdmeta(tool, "v08", &disk, "flex-external", &["create-md"]).status.code(), Some(40), "{tool:?}");
        assert!(fs::read(&disk).unwrap() == before, "{tool:?} changed the disk");
    }
}

#[test]
fn internal_metadata_follows_a_disk_that_grows() {
    for format in ["v08", "v09"] {
        let disks = Disks::new();
        let disk = disks.zeroes("disk", 64 * MIB);
        let create: &[&str] = if format == "v08" { &["create-md"] } else { &["create-md", "1"] };
        succeed(Tool::Ours, format, &disk, "internal", create);
        let peer: &[&str] = if format == "v08" { &[] } else { &["--node-id", "1"] };
        let set = [&["set-gi", "5555555555555550:0:0:0:1:1"][..], peer].concat();
        succeed(Tool::Ours, format, &disk, "internal", &set);
        File::options().write(true).open(&disk).unwrap().set_len(80 * MIB).unwrap();
        assert_eq!(drbdmeta(Tool::Ours, format, &disk, "internal", &["dump-md"]).status.code(), Some(255));
        succeed(Tool::Ours, format, &disk, "internal", &["check-resize"]);
        let gi = succeed(Tool::Real, format, &disk, "internal", &[&["get-gi"][..], peer].concat());
        assert!(gi.starts_with("5555555555555550:"), "{gi}");
    }
}

/// What was there is kept, bitmaps included: there are no more of them afterwards, and both say so.
#[test]
fn a_conversion_makes_no_room_for_further_peers() {
    for tool in [Tool::Ours, Tool::Real] {
        let disks = Disks::new();
        let disk = disks.zeroes("disk", 64 * MIB);
        succeed(tool, "v08", &disk, "internal", &["create-md"]);
        let done = drbdmeta(tool, "v09", &disk, "internal", &["create-md", "--force", "2"]);
        let said = String::from_utf8_lossy(&done.stdout) + String::from_utf8_lossy(&done.stderr);
        assert!(done.status.success(), "{done:?}");
        assert!(said.contains("Warning: setting max_peers to 1 instead of 2"), "{tool:?}: {said}");
        assert!(succeed(tool, "v09", &disk, "internal", &["dump-md"]).contains("max-peers 1;"), "{tool:?}");
    }
}

/// The file that notes the last known size.
fn last_known() -> Option<String> {
    fs::read_to_string(format!("/var/lib/drbd/drbd-minor-{}.lkbd", minor())).ok()
}

#[test]
fn the_last_known_size_is_noted_as_by_the_real_tool() {
    let noted = |tool| {
        let disks = Disks::new();
        let disk = disks.zeroes("disk", 64 * MIB);
        let after = |command: &[&str], index| {
            succeed(tool, "v09", &disk, index, command);
            last_known().map(|text| text.replace(&*disks.dir.path().to_string_lossy(), "DIR"))
        };
        let create = after(&["create-md", "1"], "internal");
        let with_uuid = after(&["write-dev-uuid", "00112233445566AA"], "internal");
        let wiped = after(&["wipe-md"], "internal");
        [create, with_uuid, wiped, after(&["create-md", "1"], "flex-external")]
    };
    let ours = noted(Tool::Ours);
    assert_eq!(ours, noted(Tool::Real));
    assert_eq!(ours[1].as_deref(), Some("67108864\tDIR/disk\nuuid:\t00112233445566AA\n"));
    assert_eq!(ours[2..], [None, None]);
}

#[test]
fn metadata_begins_with_the_generation_that_is_asked_for() {
    let disks = Disks::new();
    let disk = disks.zeroes("disk", 64 * MIB);
    let ours = |command: &[&str]| drbdmeta(Tool::Ours, "v09", &disk, "internal", command);
    let probed = ours(&["create-md", "3", "--initial-current-uuid"]);
    assert!(String::from_utf8(probed.stderr).unwrap().contains("requires an argument"));
    assert!(last_known().is_none(), "a question changes nothing");
    succeed(
        Tool::Ours,
        "v09",
        &disk,
        "internal",
        &["create-md", "3", "--initial-current-uuid", "ABCDEF0123456781", "--uptodate"],
    );
    let words = succeed(Tool::Real, "v09", &disk, "internal", &["--node-id", "1", "get-gi"]);
    assert!(words.starts_with("ABCDEF0123456780:0000000000000000:0000000000000000:0000000000000000:1:1:"), "{words}");
    let text = succeed(Tool::Ours, "v09", &disk, "internal", &["dump-superblock", "--output-format", "json"]);
    assert!(text.contains("\"current_uuid\":\"0xABCDEF0123456780\""), "{text}");
    assert_eq!(text.matches("bitmap_uuid").count(), 32, "{text}");
    let bytes = ours(&["dump-superblock", "--output-format=bin"]).stdout;
    let whole = fs::read(&disk).unwrap();
    assert!(bytes.len() == 4096 && bytes == whole[whole.len() - 4096..]);
    // All peers have had a generation before the present one.
    succeed(Tool::Ours, "v09", &disk, "internal", &["create-md", "3", "--rotate-uuids"]);
    let words = succeed(Tool::Real, "v09", &disk, "internal", &["--node-id", "1", "get-gi"]);
    let uuids: Vec<&str> = words.split(':').collect();
    assert!(uuids[1] == uuids[2] && uuids[0] != uuids[1] && !uuids[..3].contains(&"0000000000000000"), "{words}");
}

#[test]
fn unused_entries_are_made_equal() {
    let disks = Disks::new();
    let disk = disks.zeroes("disk", 64 * MIB);
    let ours = |command: &[&str]| succeed(Tool::Ours, "v09", &disk, "internal", command);
    let of = |node: &str| ours(&["--node-id", node, "get-gi"]).split(':').nth(1).unwrap().to_owned();
    ours(&["create-md", "3", "--initial-current-uuid=10"]);
    assert_eq!(ours(&["repair-md"]), "");
    ours(&["--node-id", "31", "set-gi", ":00000000000000AA"]);
    let told = ours(&["repair-md", "--tentative"]);
    assert!(told.contains("the unused entry 0 would get the bitmap UUID 00000000000000AA"), "{told}");
    assert_eq!(of("5"), "0000000000000000");
    ours(&["repair-md"]);
    assert_eq!([of("0"), of("5"), of("31")], ["00000000000000AA"; 3].map(str::to_owned));
}

#[test]
fn the_superblock_of_a_disk_that_has_grown_is_found() {
    let disks = Disks::new();
    let disk = disks.zeroes("disk", 64 * MIB);
    succeed(Tool::Ours, "v09", &disk, "internal", &["create-md", "1", "--initial-current-uuid=10"]);
    File::options().write(true).open(&disk).unwrap().set_len(96 * MIB).unwrap();
    let found = drbdmeta(Tool::Ours, "v09", &disk, "internal", &["dump-superblock", "--output-format=json"]);
    assert_eq!(found.status.code(), Some(2), "{found:?}");
    assert!(String::from_utf8(found.stdout).unwrap().contains("0x0000000000000010"));
    succeed(Tool::Ours, "v09", &disk, "internal", &["wipe-md"]);
    let empty = disks.zeroes("empty", 64 * MIB);
    let none = drbdmeta(Tool::Ours, "v09", &empty, "internal", &["dump-superblock"]);
    assert_eq!(none.status.code(), Some(3), "{none:?}");
}
