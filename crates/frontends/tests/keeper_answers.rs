//! When a keeper reads the connection: only while no process does, or the one that is there does not work.

use std::cell::Cell;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::{UnixDatagram, UnixStream};
use std::time::{Duration, Instant};
use urbd_frontends::fuse::facts::Facts;
use urbd_frontends::fuse::ledger::Ledger;
use urbd_frontends::keeper::{FACTS, Keeper, Kind, LEFT, Place, REQUESTS, is_there_still, serve};

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

    /// Of a process that counts its turns; this is the first.
    fn works(&self) -> Facts {
        let facts = Facts::new(&[0], (0, 0), "r0-1", false).unwrap();
        facts.count_turn();
        self.keeper.put(FACTS, facts.descriptor()).unwrap();
        facts
    }

    /// Asks as the kernel does; what has a body has zeroes there.
    fn ask(&self, opcode: u32, node: u8) -> u8 {
        let mut question = [0u8; 64];
        question[..4].copy_from_slice(&64u32.to_ne_bytes());
        question[4..8].copy_from_slice(&opcode.to_ne_bytes());
        // What has no number asks the kernel for what was not answered.
        let number = self.asked.get() + 1;
        self.asked.set(number);
        question[8] = number;
        question[16] = node;
        self.kernel.send(&question).unwrap();
        number
    }

    /// Asks for the directory's attributes. Is it answered? If so that may be soon; if not it is never.
    fn is_answered(&self, soon: bool) -> bool {
        self.is_answered_while(soon, || ())
    }

    /// The same, of one who does something meanwhile.
    fn is_answered_while(&self, soon: bool, mut meanwhile: impl FnMut()) -> bool {
        let number = self.ask(3, 1);
        let mut answer = [0; 256];
        for _ in 0..if soon { 5000 } else { 100 } {
            while self.kernel.recv(&mut answer).is_ok() {
                if answer[8] == number {
                    return true;
                }
            }
            meanwhile();
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

/// Is it so within some seconds?
fn soon(mut is_so: impl FnMut() -> bool) -> bool {
    (0..5000).any(|_| {
        std::thread::sleep(Duration::from_millis(2));
        is_so()
    })
}

/// Bytes that came with nothing to say but that something was put aside.
fn is_woken(watch: &OwnedFd) -> bool {
    let mut poll = [0; 64];
    let socket = UnixStream::from(watch.try_clone().unwrap());
    socket.set_nonblocking(true).unwrap();
    let woken = matches!(std::io::Read::read(&mut &socket, &mut poll), Ok(n) if n > 0);
    assert!(is_there_still(watch.as_fd()));
    woken
}

#[test]
fn a_keeper_answers_beside_a_process_that_does_not_work() {
    let asking = Asking::new();
    let facts = asking.works();
    let watch = asking.keeper.watch().unwrap();
    assert!(asking.is_answered(true), "it makes no other turn");
    assert!(asking.is_answered(true));
    assert_eq!((facts.aside(), is_woken(&watch)), (0, false));
    // A flush of what is not clean, which the process has to do; and a last close, of which it has to know.
    for (opcode, left) in [(20u32, 1), (18, 2)] {
        asking.ask(opcode, 2);
        assert!(soon(|| facts.aside() == left));
        assert!(soon(|| is_woken(&watch)));
    }
    // It works, which the keeper sees by its next turns: what comes is for it alone. A try in which it had no processor
    // for some time says nothing.
    let answered = (0..20).find_map(|_| {
        for _ in 0..100 {
            facts.count_turn();
            std::thread::sleep(Duration::from_millis(2));
        }
        let (mut last, mut longest) = (Instant::now(), Duration::ZERO);
        let answered = asking.is_answered_while(false, || {
            facts.count_turn();
            longest = longest.max(last.elapsed());
            last = Instant::now();
        });
        // The last pause ends with the answer, if there is one.
        (longest.max(last.elapsed()) < Duration::from_millis(100)).then_some(answered)
    });
    assert_ne!(answered, Some(true));
    // The next one takes the connection, and has not said anything: what the last one has said is not its own.
    let taken = asking.keeper.take().unwrap();
    drop(watch);
    assert!(!asking.is_answered(false));
    let _next = asking.works();
    let watch = asking.keeper.watch().unwrap();
    assert!(asking.is_answered(true));
    drop((taken, watch));
    assert!(asking.is_answered(true));
    asking.keeper.end().unwrap();
}

#[test]
fn where_nothing_is_handed_out_again_it_needs_a_place_for_what_it_leaves() {
    let asking = Asking::new();
    let facts = Facts::new(&[0], (0, 0), "r0-1", true).unwrap();
    facts.count_turn();
    asking.keeper.put(FACTS, facts.descriptor()).unwrap();
    let [mut requests, left] = [(); 2].map(|()| Ledger::new().unwrap());
    asking.keeper.put(REQUESTS, requests.descriptor()).unwrap();
    let watch = asking.keeper.watch().unwrap();
    assert!(!asking.is_answered(false));
    asking.keeper.put(LEFT, left.descriptor()).unwrap();
    assert!(asking.is_answered(true));
    let mut found = |left: &Ledger| {
        let mut found = 0;
        requests.adopt(left, |_| found += 1);
        found
    };
    found(&left);
    for _ in 0..3 {
        asking.ask(20, 2);
        assert!(soon(|| facts.aside() > 0 && found(&left) == 1) && soon(|| is_woken(&watch)));
    }
    // The process is gone with what it has taken, and what it has not.
    asking.ask(20, 2);
    assert!(soon(|| is_woken(&watch)));
    drop(watch);
    assert!(asking.is_answered(true));
    let mut next = Ledger::inherit(requests.descriptor().try_clone_to_owned().unwrap()).unwrap();
    let mut unanswered = Vec::new();
    next.unanswered(&mut unanswered).unwrap();
    assert!(unanswered.len() >= 4, "{unanswered:?}");
    assert!(next.adopt(&left, |_| panic!("the keeper has moved it to where any version finds it")));
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
