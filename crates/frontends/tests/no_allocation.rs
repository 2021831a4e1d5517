//! In steady state, no request allocates: not while it is parsed, not while it is answered, nor does a keeper that
//! answers for a process that is gone.

use std::os::fd::AsFd;
use std::os::unix::net::UnixDatagram;
use urbd_frontends::fuse::absent::{Absent, Means};
use urbd_frontends::fuse::facts::Facts;
use urbd_frontends::fuse::ledger::Ledger;
use urbd_frontends::{Export, fuse, nbd};

#[path = "../../units/tests/counting/allocations.rs"]
mod counting;

fn allocations(work: impl FnOnce()) -> u64 {
    let before = counting::allocations();
    work();
    counting::allocations() - before
}

/// One NBD command with its payload left out; the cookie is arbitrary.
fn command(number: u16, len: u32) -> [u8; 28] {
    let mut bytes = [0; 28];
    bytes[..4].copy_from_slice(&0x2560_9513u32.to_be_bytes());
    bytes[6..8].copy_from_slice(&number.to_be_bytes());
    bytes[8..16].copy_from_slice(&77u64.to_be_bytes());
    bytes[24..].copy_from_slice(&len.to_be_bytes());
    bytes
}

#[test]
fn the_counter_counts() {
    assert_eq!(allocations(|| drop(std::hint::black_box(Box::new(7)))), 1);
}

#[test]
fn nbd_requests_do_not_allocate() {
    let exports = [Export::new(0, "r0/0", 1 << 20)];
    let mut out = Vec::new();
    let mut session = nbd::Session::start(&mut out);
    session.parse(&[0, 0, 0, 3], &exports, &mut out);
    session.parse(b"IHAVEOPT\0\0\0\x08\0\0\0\0", &exports, &mut out);
    session.parse(b"IHAVEOPT\0\0\0\x07\0\0\0\x06\0\0\0\0\0\0", &exports, &mut out);
    assert!(session.export().is_some());
    let count = allocations(|| {
        for (number, len) in [(0, 4096), (1, 4096), (3, 0), (4, 4096), (6, 4096), (0, 1), (99, 512)] {
            out.clear();
            match session.parse(&command(number, len), &exports, &mut out) {
                nbd::Step::Request { request, .. } => out.extend_from_slice(&session.reply(&request, Ok(()))),
                step => assert_eq!(step, nbd::Step::Consumed { n: 28 }),
            }
            assert!(!out.is_empty());
        }
    });
    assert_eq!(count, 0);
}

#[test]
fn fuse_requests_do_not_allocate() {
    const VOLUME: u64 = 2;
    let mut session = fuse::Session::new(vec![Export::new(0, "r0/0", 1 << 20)], (0, 0));
    let message = |opcode: u32, payload: usize| {
        let mut bytes = vec![0; 80 + payload];
        let len = bytes.len() as u32;
        bytes[..4].copy_from_slice(&len.to_ne_bytes());
        bytes[4..8].copy_from_slice(&opcode.to_ne_bytes());
        bytes[16..24].copy_from_slice(&VOLUME.to_ne_bytes());
        bytes[56..60].copy_from_slice(&4096u32.to_ne_bytes());
        bytes
    };
    let messages = [message(15, 0), message(16, 4096), message(20, 0)];
    let mut out = Vec::with_capacity(64);
    let count = allocations(|| {
        for message in &messages {
            let fuse::Event::Request { request, .. } = session.parse(message, &mut out) else { panic!("no request") };
            assert_eq!(fuse::Session::reply(&request, Ok(()))[8..16], [0; 8]);
        }
    });
    assert_eq!(count, 0);
}

/// A message as the kernel's, with a body of zeroes but for what is at its start.
fn message(opcode: u32, unique: u64, node: u64, start: &[u8], len: usize) -> Vec<u8> {
    let mut bytes = vec![0; 40 + len];
    let whole = bytes.len() as u32;
    bytes[..4].copy_from_slice(&whole.to_ne_bytes());
    bytes[4..8].copy_from_slice(&opcode.to_ne_bytes());
    bytes[8..16].copy_from_slice(&unique.to_ne_bytes());
    bytes[16..24].copy_from_slice(&node.to_ne_bytes());
    // The thread that asks: this test's process, which is in no call that opens anything.
    bytes[32..36].copy_from_slice(&std::process::id().to_ne_bytes());
    bytes[40..40 + start.len()].copy_from_slice(start);
    bytes
}

#[test]
fn a_keeper_that_answers_does_not_allocate() {
    const ROOT: u64 = 1;
    let (kernel, connection) = UnixDatagram::pair().unwrap();
    kernel.set_nonblocking(true).unwrap();
    connection.set_nonblocking(true).unwrap();
    let facts = Facts::new(&[0, 7], (0, 0), "r0-1", false).unwrap();
    facts.set_door(0, Some(fuse::Door { device: (7, 3), owner: (0, 6) }));
    facts.set_size(0, 1 << 20);
    facts.set_clean(0, true);
    let mut readdir = [0; 24];
    readdir[16..20].copy_from_slice(&4096u32.to_ne_bytes());
    // Attributes of the directory, of files, of what is none; names; the file system; a flush of what is clean.
    let answered = [
        message(3, 1, ROOT, &[], 16),
        message(3, 2, ROOT + 1, &[], 16),
        message(3, 3, ROOT + 9, &[], 16),
        message(1, 4, ROOT, b"7\0", 2),
        message(1, 5, ROOT, b".7-r0-1\0", 8),
        message(1, 6, ROOT, b"nothing\0", 8),
        message(27, 7, ROOT, &[], 8),
        message(28, 8, ROOT, &readdir, 40),
        message(17, 9, ROOT, &[], 0),
        message(20, 10, ROOT + 1, &[], 16),
        message(18, 11, ROOT + 1, &[], 24),
        message(22, 12, ROOT + 1, &[], 8),
    ];
    // A read, a write, an allocation, a flush of what is not clean.
    let held = [
        message(15, 21, ROOT + 1, &[], 40),
        message(16, 22, ROOT + 1, &[], 40 + 4096),
        message(43, 23, ROOT + 1, &[], 32),
        message(20, 24, ROOT + 8, &[], 16),
    ];
    let ledger = || Ledger::new().unwrap();
    for (ledger, beside) in [(None, None), (None, Some(0)), (Some(ledger()), None), (Some(ledger()), Some(0))] {
        let mut ledger = ledger;
        let before = facts.aside();
        let mut absent = Absent::default();
        let mut began = allocations(|| {
            let mut means = Means { connection: connection.as_fd(), facts: &facts, ledger: ledger.as_mut(), beside };
            match beside {
                Some(_) => absent.begin_beside(&mut means).unwrap(),
                None => absent.begin(&mut means, None).unwrap(),
            }
        });
        let mut answers = Vec::new();
        for bytes in held.iter().chain(&answered) {
            kernel.send(bytes).unwrap();
            began += allocations(|| {
                let mut means =
                    Means { connection: connection.as_fd(), facts: &facts, ledger: ledger.as_mut(), beside };
                assert!(absent.pump(&mut means));
                absent.look(&mut means);
            });
            let mut answer = [0; 8192];
            while let Ok(n) = kernel.recv(&mut answer) {
                answers.push((u64::from_ne_bytes(*answer[8..].first_chunk().unwrap()), answer[..n].to_vec()));
            }
        }
        assert_eq!(began, 0);
        // Whoever asks for a name without a device behind it waits for one.
        let uniques: Vec<u64> = answers.iter().map(|(unique, _)| *unique).filter(|unique| *unique != 0).collect();
        assert_eq!(uniques, [1, 2, 3, 5, 6, 7, 8, 9, 10, 11, 12]);
        let names = &answers.iter().find(|(unique, _)| *unique == 8).unwrap().1;
        assert_eq!(names.len(), 16 + 3 * 32, "itself, its parent, and the one door that there is");
        // And the last close.
        assert_eq!(facts.aside() - before, if beside.is_some() { held.len() as u64 + 2 } else { 0 });
        if let Some(ledger) = &mut ledger {
            let mut unanswered = Vec::new();
            ledger.unanswered(&mut unanswered).unwrap();
            assert_eq!(unanswered.len(), held.len() + 1, "what waits is there for the next process");
        }
    }
}
