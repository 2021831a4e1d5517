//! Real NBD clients against the reference server.

mod reference;

use reference::disk::Disk;
use reference::nbd_server::Server;
use reference::{attempt, describe, installed, run};
use urbd_frontends::{Export, Kind};

const SIZE: usize = 48 << 20;

fn server() -> Server {
    Server::start(Disk::new(SIZE), vec![Export::new(0, "r0/0", SIZE as u64)])
}

/// Bytes that differ everywhere, with a hole in the middle.
fn image(server: &Server) -> (String, Vec<u8>) {
    let mut bytes: Vec<u8> =
        (0..SIZE as u64 / 8).flat_map(|i| (i.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1).to_le_bytes()).collect();
    bytes[8 << 20..24 << 20].fill(0);
    let path = server.file("image");
    std::fs::write(&path, &bytes).unwrap();
    (path.to_str().unwrap().to_owned(), bytes)
}

#[test]
fn nbdinfo_describes_the_exports() {
    if !installed("nbdinfo") {
        return;
    }
    let exports = vec![Export::new(0, "r0/0", SIZE as u64), Export::new(1, "r0/1", 1 << 20).read_only()];
    let server = Server::start(Disk::new(SIZE), exports);
    let list = run("nbdinfo", &["--list", "--json", &server.uri("")]);
    for expected in ["\"export-name\": \"r0/0\"", "\"export-name\": \"r0/1\"", "\"protocol\": \"newstyle-fixed\""] {
        assert!(list.contains(expected), "{list}");
    }
    let json = run("nbdinfo", &["--json", &server.uri("r0/0")]);
    let export_size = format!("\"export-size\": {SIZE}");
    for expected in [
        export_size.as_str(),
        "\"structured\": true",
        "\"base:allocation\"",
        "\"is_read_only\": false",
        "\"can_cache\": false",
        "\"can_df\": true",
        "\"can_fast_zero\": true",
        "\"can_flush\": true",
        "\"can_fua\": true",
        "\"can_multi_conn\": true",
        "\"can_trim\": true",
        "\"can_zero\": true",
        "\"block_size_minimum\": 512",
        "\"block_size_preferred\": 4096",
        "\"block_size_maximum\": 33554432",
    ] {
        assert!(json.contains(expected), "{expected} in {json}");
    }
    let json = run("nbdinfo", &["--json", &server.uri("r0/1")]);
    assert!(json.contains("\"is_read_only\": true") && json.contains("\"can_trim\": false"), "{json}");
    assert!(!attempt("nbdinfo", &[&server.uri("r0/2")]).status.success());
    assert!(!attempt("nbdinfo", &[&server.uri("")]).status.success(), "two exports have no default");
}

#[test]
fn nbdcopy_both_ways_and_the_map() {
    if !installed("nbdcopy") {
        return;
    }
    let server = server();
    let (path, bytes) = image(&server);
    run("nbdcopy", &["--destination-is-zero", "--flush", &path, &server.uri("r0/0")]);
    assert!(server.disk.contents() == bytes);
    assert!(server.disk.seen().iter().any(|request| request.kind == Kind::Flush));
    let back = server.file("back");
    run("nbdcopy", &[&server.uri(""), back.to_str().unwrap()]);
    assert!(std::fs::read(&back).unwrap() == bytes);
    let map = run("nbdinfo", &["--map", &server.uri("r0/0")]);
    let rows: Vec<Vec<&str>> = map.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(rows[0], ["0", "8388608", "0", "data"]);
    assert_eq!(rows[1], ["8388608", "16777216", "3", "hole,zero"]);
    assert_eq!(rows[2], ["25165824", "25165824", "0", "data"]);
}

#[test]
fn qemu_converts_and_compares() {
    if !installed("qemu-img") {
        return;
    }
    let server = server();
    let (path, bytes) = image(&server);
    let uri = server.uri("r0/0");
    assert!(run("qemu-img", &["info", "--output=json", &uri]).contains(&format!("\"virtual-size\": {SIZE}")));
    run("qemu-img", &["convert", "-n", "-f", "raw", "-O", "raw", "-W", "-m", "8", &path, &uri]);
    assert!(server.disk.contents() == bytes);
    run("qemu-img", &["compare", "-f", "raw", "-F", "raw", &path, &uri]);
    let qcow = server.file("qcow2");
    run("qemu-img", &["convert", "-f", "raw", "-O", "qcow2", &uri, qcow.to_str().unwrap()]);
    run("qemu-img", &["compare", "-f", "qcow2", "-F", "raw", qcow.to_str().unwrap(), &path]);
}

#[test]
fn qemu_io_uses_every_command() {
    if !installed("qemu-io") {
        return;
    }
    let server = server();
    let io = |command: &str| {
        let output =
            attempt("qemu-io", &["-f", "raw", "-d", "unmap", "-t", "none", "-c", command, &server.uri("r0/0")]);
        assert!(output.status.success(), "{command}: {}", describe(&output));
        assert!(!describe(&output).contains("failed"), "{command}: {}", describe(&output));
        server.disk.seen()
    };
    io("write -P 0xab 0 1M");
    io("read -P 0xab 0 1M");
    let fua = io("write -f -P 0xcd 64k 64k");
    assert!(fua.iter().any(|request| request.kind == Kind::Write && request.fua), "{fua:?}");
    let discard = io("discard 0 64k");
    assert!(discard.iter().any(|request| request.kind == Kind::Discard && request.len == 65536), "{discard:?}");
    let zeroes = io("write -z -u 128k 64k");
    assert!(zeroes.iter().any(|r| matches!(r.kind, Kind::WriteZeroes { may_unmap: true, .. })), "{zeroes:?}");
    let kept = io("write -z 192k 64k");
    assert!(kept.iter().any(|r| matches!(r.kind, Kind::WriteZeroes { may_unmap: false, .. })), "{kept:?}");
    io("read -P 0 128k 128k");
    let long = io("write -P 0x11 8M 32M");
    assert!(long.iter().any(|request| request.len == 32 << 20), "{long:?}");
    io("read -P 0x11 8M 32M");
    assert!(io("flush").iter().any(|request| request.kind == Kind::Flush));
}

#[test]
fn fio_verifies_over_several_connections() {
    if !installed("fio") || !run("fio", &["--enghelp"]).lines().any(|line| line.trim() == "nbd") {
        println!("skipped: fio has no nbd engine");
        return;
    }
    let server = server();
    let uri = format!("--uri={}", server.uri("r0/0"));
    let shared = ["--ioengine=nbd", &uri, "--rw=randrw", "--bsrange=512-64k", "--blockalign=512", "--iodepth=16"];
    let jobs = ["--name=v", "--numjobs=4", "--size=8M", "--offset_increment=8M", "--verify=crc32c", "--verify_fatal=1"];
    // It would leave them in this folder.
    let no_files = ["--verify_state_save=0"];
    run("fio", &[&shared[..], &jobs[..], &no_files[..]].concat());
}

#[test]
fn libnbd_strict_checks() {
    if !installed("nbdsh") {
        return;
    }
    let server = Server::start(
        Disk::new(SIZE),
        vec![Export::new(0, "r0/0", SIZE as u64), Export::new(1, "r0/ro", SIZE as u64).read_only()],
    );
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/nbd_strict.py");
    let output = std::process::Command::new("timeout")
        // The distribution's libnbd belongs to the distribution's Python.
        .args(["60", "/usr/bin/python3", script])
        .env("URI", server.uri("r0/0"))
        .env("URI_READ_ONLY", server.uri("r0/ro"))
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", describe(&output));
    let seen = server.disk.seen();
    assert!(seen.iter().any(|request| request.kind == Kind::Write && request.fua));
    assert!(seen.iter().any(|request| matches!(request.kind, Kind::WriteZeroes { may_unmap: false, fast: true })));
    assert!(seen.iter().any(|request| request.kind == Kind::Discard));
}
