//! The kernel, its loop driver and real file systems against the reference server. Needs root and `/dev/fuse`.

mod reference;

use std::fs::OpenOptions;
use std::io::{Read, Write};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use reference::disk::Disk;
use reference::fuse_server::Mounted;
use reference::{attempt, describe, installed, run};
use urbd_frontends::loopdev::{self, Kept, LoopDevice, Options};
use urbd_frontends::{Export, Kind, fuse};

const MIB: usize = 1 << 20;

/// Whether this machine lets us; says so if not.
fn possible() -> bool {
    let root = std::fs::metadata("/proc/self").is_ok_and(|process| process.uid() == 0);
    let usable = |path| root && OpenOptions::new().read(true).open(path).is_ok();
    let (fuse, loops) = (usable("/dev/fuse"), usable("/dev/loop-control"));
    if !fuse {
        println!("skipped: fuse: needs root and /dev/fuse");
    } else if !loops {
        println!("skipped: loop: needs root and /dev/loop-control");
    }
    fuse && loops
}

fn mounted(size: usize) -> Mounted {
    let exports = vec![Export::new(0, "r0/0", size as u64), Export::new(1, "r0/1", size as u64).read_only()];
    Mounted::start(Disk::new(size), exports)
}

/// Detaches when dropped.
struct Attached(Kept);

impl Attached {
    fn new(file: PathBuf, options: Options) -> Attached {
        Attached(loopdev::keep(file, options).unwrap().wait().unwrap())
    }

    fn path(&self) -> String {
        self.device().path().to_str().unwrap().to_owned()
    }

    fn device(&self) -> LoopDevice {
        self.0.device()
    }
}

impl Drop for Attached {
    fn drop(&mut self) {
        self.0.detach().unwrap_or_else(|error| println!("detach {}: {error}", self.path()));
    }
}

/// A file system on a device; unmounted when dropped.
struct FileSystem(tempfile::TempDir);

impl FileSystem {
    fn mount(device: &str) -> FileSystem {
        let directory = tempfile::Builder::new().prefix("urbd-mnt-").tempdir().unwrap();
        run("mount", &[device, directory.path().to_str().unwrap()]);
        FileSystem(directory)
    }

    fn path(&self, name: &str) -> String {
        self.0.path().join(name).to_str().unwrap().to_owned()
    }
}

impl Drop for FileSystem {
    fn drop(&mut self) {
        let output = attempt("umount", &[self.0.path().to_str().unwrap()]);
        if !output.status.success() {
            println!("{}", describe(&output));
            attempt("umount", &["-l", self.0.path().to_str().unwrap()]);
        }
    }
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

#[test]
fn the_files_are_volumes() {
    if !possible() {
        return;
    }
    let fs = mounted(8 * MIB);
    assert!(fuse::is_mounted(fs.path()).unwrap());
    let mut names: Vec<_> = std::fs::read_dir(fs.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
    names.sort();
    assert_eq!(names, ["0", "1"]);
    let status = std::fs::metadata(fs.file("0")).unwrap();
    assert_eq!((status.len(), status.mode(), status.blocks()), (8 << 20, libc::S_IFREG | 0o600, 8 << 11));
    let error = |result: std::io::Result<()>| result.unwrap_err().raw_os_error().unwrap();
    assert_eq!(error(std::fs::metadata(fs.file("2")).map(drop)), libc::ENOENT);
    assert_eq!(error(std::fs::write(fs.file("1"), "x")), libc::EROFS);
    assert_eq!(error(std::fs::write(fs.file("new"), "x")), libc::EPERM);
    assert_eq!(error(std::fs::remove_file(fs.file("0"))), libc::EPERM);
    let file = OpenOptions::new().write(true).open(fs.file("0")).unwrap();
    assert_eq!(error(file.set_len(0)), libc::EPERM);
    assert_eq!(error(file.write_all_at(&[1; 100], 0)), libc::EINVAL);
    assert_eq!(error(file.write_all_at(&[1; 512], 8 << 20)), libc::ENOSPC);
    assert_eq!(std::fs::metadata(fs.file("0")).unwrap().len(), 8 << 20);
}

#[test]
fn reads_writes_and_flushes_reach_the_disk() {
    if !possible() {
        return;
    }
    let fs = mounted(8 * MIB);
    let image: Vec<u8> =
        (0..8 * MIB as u64 / 8).flat_map(|i| i.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes()).collect();
    let source = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(source.path(), &image).unwrap();
    let (from, to) = (format!("if={}", text(source.path())), format!("of={}", text(&fs.file("0"))));
    run("dd", &[&from, &to, "bs=2M", "oflag=direct", "conv=notrunc,fsync"]);
    assert!(fs.disk.contents() == image);
    let seen = fs.disk.seen();
    assert!(seen.iter().any(|r| r.kind == Kind::Write && r.len == 1 << 20), "negotiated 1 MiB: {seen:?}");
    assert!(seen.iter().any(|r| r.kind == Kind::Flush), "{seen:?}");
    run("cmp", &[text(source.path()), text(&fs.file("0"))]);
    let mut options = OpenOptions::new();
    let file = options.write(true).custom_flags(libc::O_DSYNC).open(fs.file("0")).unwrap();
    fs.disk.seen();
    file.write_all_at(&[7; 512], 512).unwrap();
    assert!(fs.disk.seen().iter().any(|r| r.kind == Kind::Write && r.fua));
}

#[test]
fn holes_become_zeroes() {
    if !possible() || !installed("fallocate") {
        return;
    }
    let fs = mounted(MIB);
    let path = fs.file("0");
    std::fs::OpenOptions::new().write(true).open(&path).unwrap().write_all_at(&[9; MIB / 2], 0).unwrap();
    fs.disk.seen();
    run("fallocate", &["-p", "-o", "4096", "-l", "8192", text(&path)]);
    run("fallocate", &["-z", "-n", "-o", "65536", "-l", "4096", text(&path)]);
    let seen = fs.disk.seen();
    // The program also makes each change durable.
    let seen: Vec<_> = seen.iter().filter(|r| r.kind != Kind::Flush).map(|r| (r.kind, r.offset, r.len)).collect();
    let zeroes = |may_unmap| Kind::WriteZeroes { may_unmap, fast: false };
    assert_eq!(seen, [(zeroes(true), 4096, 8192), (zeroes(false), 65536, 4096)]);
    let contents = fs.disk.contents();
    assert_eq!(contents.iter().filter(|byte| **byte == 9).count(), MIB / 2 - 8192 - 4096);
    let refused = attempt("fallocate", &["-l", "2M", text(&path)]);
    assert!(!refused.status.success());
}

#[test]
fn ext4_on_a_loop_device() {
    if !possible() || !installed("mkfs.ext4") {
        return;
    }
    let fs = mounted(96 * MIB);
    let device = Attached::new(fs.file("0"), Options::default());
    assert!(device.device().is_direct().unwrap());
    assert_eq!(device.device().backing_file().unwrap().unwrap(), fs.file("0"));
    assert_eq!(loopdev::backed_by(&fs.file("0")).unwrap(), [device.device()]);
    run("mkfs.ext4", &["-q", &device.path()]);
    fs.disk.seen();
    {
        let ext4 = FileSystem::mount(&device.path());
        let (out, copy) = (format!("of={}", ext4.path("a")), ext4.path("b"));
        run("dd", &["if=/dev/urandom", &out, "bs=1M", "count=24", "conv=fsync"]);
        run("cp", &[&ext4.path("a"), &copy]);
        run("sync", &["-f", &copy]);
        run("rm", &[&ext4.path("a")]);
        run("fstrim", &["-v", &ext4.path("")]);
        let seen = fs.disk.seen();
        let unmapped: u64 =
            seen.iter().filter(|r| matches!(r.kind, Kind::WriteZeroes { .. })).map(|r| u64::from(r.len)).sum();
        assert!(unmapped > 24 << 20, "{unmapped}");
        assert!(seen.iter().any(|r| r.kind == Kind::Flush));
    }
    run("fsck.ext4", &["-fn", &device.path()]);
    let (path, file) = (device.path(), fs.file("0"));
    drop(device);
    assert_eq!(loopdev::backed_by(&file).unwrap(), [], "{path} is detached");
}

/// The kernel keeps "there is no cache" for the next file on the same device, and flushes to itself.
#[test]
fn a_loop_device_hears_flushes_whatever_it_was_told_before() {
    if !possible() {
        return;
    }
    let fs = mounted(8 * MIB);
    for told in [true, false] {
        let device = Attached::new(fs.file("0"), Options::default());
        fs.disk.seen();
        let out = format!("of={}", device.path());
        run("dd", &["if=/dev/zero", &out, "bs=4k", "count=1", "oflag=direct", "conv=fsync"]);
        assert!(fs.disk.seen().iter().any(|r| r.kind == Kind::Flush), "{}", device.path());
        device.device().set_write_through(told).unwrap();
    }
}

/// The kernel keeps that as well for the next file on the same device.
#[test]
fn writeback_of_a_loop_device_is_paced_unless_told_otherwise() {
    if !possible() {
        return;
    }
    let fs = mounted(8 * MIB);
    let pace = |device: LoopDevice| {
        let name = device.path().file_name().unwrap().to_str().unwrap().to_owned();
        std::fs::read_to_string(format!("/sys/block/{name}/queue/wbt_lat_usec")).ok()
    };
    for paced in [false, true] {
        let device = Attached::new(fs.file("0"), Options { paced, ..Options::default() });
        let Some(now) = pace(device.device()) else {
            return println!("skipped: writeback-pacing: this kernel has none");
        };
        assert_eq!(now.trim() != "0", paced, "{now}");
    }
    let kept = loopdev::keep(fs.file("0"), Options { paced: false, ..Options::default() }).unwrap().wait().unwrap();
    let device = kept.device();
    assert_eq!(pace(device).unwrap().trim(), "0");
    kept.detach().unwrap();
    assert_ne!(pace(device).unwrap().trim(), "0", "what the next file finds");
}

#[test]
fn fio_verifies_on_a_loop_device() {
    if !possible() || !installed("fio") {
        return;
    }
    let fs = mounted(64 * MIB);
    let device = Attached::new(fs.file("0"), Options::default());
    let file = format!("--filename={}", device.path());
    let shared = ["--ioengine=libaio", "--direct=1", "--iodepth=32", "--rw=randrw", &file];
    let sizes = ["--bsrange=512-256k", "--blockalign=512", "--size=16M", "--numjobs=4", "--offset_increment=16M"];
    run(
        "fio",
        &[&shared[..], &sizes[..], &["--name=v", "--verify=crc32c", "--verify_fatal=1", "--verify_state_save=0"]]
            .concat(),
    );
}

#[test]
fn xfs_on_a_loop_device() {
    if !possible() || !installed("mkfs.xfs") {
        return;
    }
    let fs = mounted(320 * MIB);
    let device = Attached::new(fs.file("0"), Options { block_size: 4096, ..Options::default() });
    run("mkfs.xfs", &["-q", "-f", "-s", "size=4096", &device.path()]);
    let known = std::fs::read_to_string("/proc/filesystems").unwrap();
    if known.lines().any(|line| line.trim() == "xfs") {
        let xfs = FileSystem::mount(&device.path());
        run("dd", &["if=/dev/urandom", &format!("of={}", xfs.path("a")), "bs=1M", "count=16", "oflag=direct"]);
    } else {
        println!("skipped: xfs: this kernel cannot mount it, which is only checked then");
    }
    run("xfs_repair", &["-n", &device.path()]);
}

#[test]
fn a_read_only_volume_makes_a_read_only_device() {
    if !possible() {
        return;
    }
    let fs = mounted(MIB);
    let file = fs.file("1");
    let refused = loopdev::in_background(&[], move || loopdev::attach(&file, Options::default())).unwrap().wait();
    assert_eq!(refused.unwrap_err().raw_os_error(), Some(libc::EROFS));
    let device = Attached::new(fs.file("1"), Options { read_only: true, ..Options::default() });
    assert_eq!(run("blockdev", &["--getro", &device.path()]).trim(), "1");
}

#[test]
fn a_loop_device_grows() {
    if !possible() {
        return;
    }
    let fs = mounted(2 * MIB);
    fs.session.lock().unwrap().export_mut(0).unwrap().size = MIB as u64;
    let device = Attached::new(fs.file("0"), Options::default());
    assert_eq!(run("blockdev", &["--getsize64", &device.path()]).trim(), "1048576");
    fs.session.lock().unwrap().export_mut(0).unwrap().size = 2 * MIB as u64;
    assert_eq!(device.device().refresh_size(&fs.file("0")).unwrap(), 2 * MIB as u64);
    assert_eq!(run("blockdev", &["--getsize64", &device.path()]).trim(), "2097152");
}

/// A kept device goes with its keeper: detached on demand, or when the handle is dropped.
#[test]
fn a_kept_device_goes_away() {
    if !possible() {
        return;
    }
    let fs = mounted(2 * MIB);
    for on_demand in [true, false] {
        let kept = loopdev::keep(fs.file("0"), Options::default()).unwrap().wait().unwrap();
        let device = kept.device();
        assert_eq!(device.backing_file().unwrap().unwrap(), fs.file("0"));
        // Closing the device leaves the data in the page cache, as the keeper has it open too.
        std::fs::write(device.path(), vec![7; MIB]).unwrap();
        if on_demand {
            kept.detach().unwrap()
        } else {
            drop(kept)
        }
        let until = std::time::Instant::now() + std::time::Duration::from_secs(10);
        while !loopdev::backed_by(&fs.file("0")).unwrap().is_empty() {
            assert!(std::time::Instant::now() < until, "{} is still there", text(&device.path()));
            std::thread::yield_now();
        }
        assert_eq!(fs.disk.contents()[..MIB], vec![7; MIB]);
    }
    let refused = loopdev::keep(fs.file("1"), Options::default()).unwrap().wait();
    assert_eq!(refused.unwrap_err().raw_os_error(), Some(libc::EROFS));
}

/// Clears away what the test below leaves behind if it fails.
struct Leftovers(tempfile::TempDir);

impl Leftovers {
    fn file(&self) -> PathBuf {
        self.0.path().join("0")
    }
}

impl Drop for Leftovers {
    fn drop(&mut self) {
        for device in loopdev::backed_by(&self.file()).unwrap_or_default() {
            drop(device.detach());
        }
        drop(fuse::unmount(self.0.path()));
    }
}

/// Serves until the first read, then dies without unmounting.
fn serve_until_read(device: std::fs::File) {
    let mut session = fuse::Session::new(vec![Export::new(0, "r0/0", MIB as u64)], (0, 0));
    let (mut buffer, mut out) = (vec![0; fuse::MESSAGE_MAX], Vec::new());
    loop {
        let n = (&device).read(&mut buffer).unwrap();
        match session.parse(&buffer[..n], &mut out) {
            fuse::Event::Request { request, .. } if request.kind == Kind::Read => return,
            fuse::Event::Request { request, .. } => out.extend_from_slice(&fuse::Session::reply(&request, Ok(()))),
            _ => (),
        }
        if !out.is_empty() {
            (&device).write_all(&out).unwrap();
            out.clear();
        }
    }
}

/// What a killed process leaves behind can be found and cleared away without the file system answering.
#[test]
fn leftovers_are_found_and_cleared() {
    if !possible() {
        return;
    }
    let left = Leftovers(tempfile::tempdir().unwrap());
    let (directory, file) = (left.0.path(), left.file());
    let device = std::fs::File::from(fuse::mount(directory).unwrap());
    let server = std::thread::spawn(move || serve_until_read(device));
    let attached = loopdev::attach(&file, Options::default()).unwrap();
    let read = attempt("dd", &[&format!("if={}", text(&attached.path())), "of=/dev/null", "bs=4k", "iflag=direct"]);
    assert!(!read.status.success());
    server.join().unwrap();
    assert!(fuse::is_mounted(directory).unwrap());
    assert_eq!(loopdev::backed_by(&file).unwrap(), [attached]);
    attached.detach().unwrap();
    assert_eq!(loopdev::backed_by(&file).unwrap(), []);
    fuse::unmount(directory).unwrap();
    assert!(!fuse::is_mounted(directory).unwrap());
}
