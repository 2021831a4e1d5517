//! When a keeper reads the connection: only while no process does.

use std::cell::Cell;
use std::os::fd::AsFd;
use std::os::unix::net::{UnixDatagram, UnixStream};
use std::time::Duration;
use urbd_frontends::fuse::facts::Facts;
use urbd_frontends::keeper::{FACTS, Keeper, Kind, Place, serve};

const CONNECTION: Place = Place { kind: Kind::Connection, number: 2 };

/// The kernel's end of a connection that a keeper has.
struct Asking {
    keeper: Keeper,
    kernel: UnixDatagram,
    asked: Cell<u8>,
    _directory: tempfile::TempDir,
}

impl Asking {
    fn new() -> Asking {
        let directory = tempfile::tempdir().unwrap();
        let keeper = Keeper::of(directory.path(), "r0");
        let listener = keeper.bind().unwrap();
        std::thread::spawn(move || serve(&listener));
        let (kernel, connection) = UnixDatagram::pair().unwrap();
        connection.set_nonblocking(true).unwrap();
        kernel.set_nonblocking(true).unwrap();
        keeper.put(CONNECTION, connection.as_fd()).unwrap();
        Asking { keeper, kernel, asked: Cell::new(0), _directory: directory }
    }

    fn says(&self) -> Facts {
        let facts = Facts::new(&[0], (0, 0), "r0-1", false).unwrap();
        self.keeper.put(FACTS, facts.descriptor()).unwrap();
        facts
    }

    /// Asks for the directory's attributes. Is it answered? If so that may be soon; if not it is never.
    fn is_answered(&self, soon: bool) -> bool {
        let mut question = [0u8; 56];
        question[..4].copy_from_slice(&56u32.to_ne_bytes());
        question[4..8].copy_from_slice(&3u32.to_ne_bytes());
        // What has no number asks the kernel for what was not answered.
        let number = self.asked.get() + 1;
        self.asked.set(number);
        question[8] = number;
        question[16] = 1;
        self.kernel.send(&question).unwrap();
        let mut answer = [0; 256];
        for _ in 0..if soon { 5000 } else { 100 } {
            while self.kernel.recv(&mut answer).is_ok() {
                if answer[8] == number {
                    return true;
                }
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        false
    }
}

#[test]
fn a_keeper_answers_while_no_process_is_there() {
    let asking = Asking::new();
    let _facts = asking.says();
    let watch = asking.keeper.watch().unwrap();
    assert!(!asking.is_answered(false), "a process is there");
    drop(watch);
    assert!(asking.is_answered(true));
    // The next one looks, watches, and waits for its turn.
    let found: Vec<Place> = asking.keeper.fetch().unwrap().into_iter().map(|(place, _)| place).collect();
    assert_eq!(found, [CONNECTION, FACTS]);
    let watch = asking.keeper.watch().unwrap();
    assert!(asking.is_answered(true));
    let taken = asking.keeper.take().unwrap();
    assert!(!asking.is_answered(false));
    drop(watch);
    assert!(!asking.is_answered(false), "it is still there");
    drop(taken);
    assert!(asking.is_answered(true));
    asking.keeper.end().unwrap();
}

#[test]
fn nor_beside_one_that_does_not_know_of_it() {
    let asking = Asking::new();
    let _facts = asking.says();
    drop(asking.keeper.watch().unwrap());
    assert!(asking.is_answered(true));
    // A process of an older version fetches, and reads.
    let mut fetch = [0u8; 8];
    (fetch[0], fetch[1]) = (1, 2);
    let socket = UnixStream::connect(asking.keeper.path()).unwrap();
    std::io::Write::write_all(&mut &socket, &fetch).unwrap();
    std::io::Read::read_exact(&mut &socket, &mut [0; 8]).unwrap();
    let watch = asking.keeper.watch().unwrap();
    assert!(!asking.is_answered(false));
    // What it has changed was not told.
    drop(watch);
    assert!(!asking.is_answered(false));
    // One of this version follows it. It says what is so now, and reads from then on.
    let _facts = asking.says();
    assert!(!asking.is_answered(false));
    drop(asking.keeper.take().unwrap());
    assert!(asking.is_answered(true));
    asking.keeper.end().unwrap();
}
