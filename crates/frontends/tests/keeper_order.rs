//! In which order a keeper's descriptors are closed if it is killed: alone in its process, as other tests would take
//! numbers and give them back meanwhile.

use std::fs::File;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use urbd_frontends::keeper::{Keeper, Kind, Place, serve};

fn place(kind: Kind, number: u32) -> Place {
    Place { kind, number }
}

/// The lowest number of another descriptor of that file in this process.
fn held(file: &File) -> i32 {
    let inode = |fd: &Path| std::fs::metadata(fd).map(|m| (m.dev(), m.ino())).ok();
    let own = file.metadata().map(|m| (m.dev(), m.ino())).ok();
    let fds = std::fs::read_dir("/proc/self/fd").unwrap().flatten().map(|entry| entry.path());
    let numbers = fds.filter(|fd| inode(fd) == own).filter_map(|fd| fd.file_name()?.to_str()?.parse::<i32>().ok());
    numbers.filter(|number| *number != file.as_raw_fd()).min().unwrap()
}

#[test]
fn the_connection_is_closed_first() {
    let directory = tempfile::tempdir().unwrap();
    let keeper = Keeper::of(directory.path(), "r0");
    let listener = keeper.bind().unwrap();
    // A thread of this process: what it has open is seen here.
    let thread = std::thread::spawn(move || serve(&listener));
    let [device, connection, later] = [(); 3].map(|()| tempfile::tempfile().unwrap());
    keeper.put(place(Kind::Device, 0), device.as_fd()).unwrap();
    keeper.put(place(Kind::Connection, 2), connection.as_fd()).unwrap();
    keeper.release(place(Kind::Device, 0)).unwrap();
    keeper.put(place(Kind::Device, 0), later.as_fd()).unwrap();
    assert!(held(&connection) < held(&later));
    keeper.end().unwrap();
    thread.join().unwrap().unwrap();
}
