//! In steady state, no request allocates: not while it is parsed, not while it is answered.

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
