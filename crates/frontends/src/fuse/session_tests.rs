use super::abi::*;
use super::*;
use crate::{Errno, Export, Kind, Request};

const UNIQUE: u64 = 0xfeed;
const VOLUME_0: u64 = ROOT + 1 + 7;
const READ_ONLY: u64 = ROOT + 1 + 9;

fn session() -> Session {
    let exports = vec![Export::new(7, "r0/0", 1 << 20), Export::new(9, "r0/1", 1 << 20).read_only()];
    Session::new(exports, (1000, 100))
}

fn message(opcode: u32, node: u64, body: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    Body(&mut bytes).u32(&[(IN_HEADER + body.len()) as u32, opcode]).u64(&[UNIQUE, node]).u32(&[0; 4]);
    bytes.extend_from_slice(body);
    bytes
}

fn words(values: &[u64]) -> Vec<u8> {
    let mut bytes = Vec::new();
    Body(&mut bytes).u64(values);
    bytes
}

/// Two 32-bit fields as they lie next to each other.
fn pair(first: u32, second: u32) -> u64 {
    let mut bytes = [0; 8];
    bytes[..4].copy_from_slice(&first.to_ne_bytes());
    bytes[4..].copy_from_slice(&second.to_ne_bytes());
    u64::from_ne_bytes(bytes)
}

/// The body of a successful answer, or its error.
fn ask(session: &mut Session, opcode: u32, node: u64, body: &[u8]) -> Result<Vec<u8>, Errno> {
    let mut out = Vec::new();
    let event = session.parse(&message(opcode, node, body), &mut out);
    assert!(matches!(event, Event::Reply | Event::Destroyed), "{event:?}");
    let field = |at: usize| i32::from_ne_bytes(*out[at..].first_chunk().unwrap());
    assert_eq!(field(0) as usize, out.len());
    assert_eq!(out[8..16], UNIQUE.to_ne_bytes());
    match field(4) {
        0 => Ok(out[16..].to_vec()),
        error => Err(Errno::from_raw(-error)),
    }
}

fn request(session: &mut Session, opcode: u32, node: u64, body: &[u8]) -> (u32, Request, std::ops::Range<usize>) {
    let mut out = Vec::new();
    match session.parse(&message(opcode, node, body), &mut out) {
        Event::Request { volume, request, payload } if out.is_empty() => (volume, request, payload),
        event => panic!("{event:?} {out:?}"),
    }
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_ne_bytes(*bytes[at..].first_chunk().unwrap())
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_ne_bytes(*bytes[at..].first_chunk().unwrap())
}

#[test]
fn init_negotiates() {
    let mut session = session();
    let body = |major, minor, flags| words(&[pair(major, minor), pair(131072, flags), 0, 0, 0, 0, 0, 0]);
    let answer = ask(&mut session, opcode::INIT, 0, &body(7, 45, u32::MAX)).unwrap();
    assert_eq!(answer.len(), 64);
    assert_eq!((u32_at(&answer, 0), u32_at(&answer, 4), u32_at(&answer, 8)), (7, 36, 131072));
    assert_eq!(u32_at(&answer, 12), WANTED);
    assert_eq!((u32_at(&answer, 20), u32_at(&answer, 28) & 0xffff), (1 << 20, 256));
    assert_eq!(u32_at(&ask(&mut session, opcode::INIT, 0, &body(8, 0, u32::MAX)).unwrap(), 0), 7);
    for (major, minor, flags) in [(6, 99, u32::MAX), (7, 27, u32::MAX), (7, 36, 0)] {
        let error = ask(&mut session, opcode::INIT, 0, &body(major, minor, flags)).unwrap_err();
        assert_eq!(error.raw(), libc::EPROTO);
    }
}

#[test]
fn unanswered_requests_come_again_where_the_kernel_says_so() {
    let greeted = |flags: u32, more: u32| {
        let mut session = session();
        let body = words(&[pair(7, 45), pair(131072, flags), pair(more, 0), 0, 0, 0, 0, 0]);
        ask(&mut session, opcode::INIT, 0, &body).unwrap();
        session.can_resend()
    };
    assert!(greeted(u32::MAX, HAS_RESEND) && !greeted(u32::MAX, !HAS_RESEND) && !greeted(!INIT_EXT, HAS_RESEND));
    let message = crate::fuse::resend();
    assert_eq!((u32_at(&message, 0), u32_at(&message, 4), u64_at(&message, 8)), (16, 7, 0));
}

#[test]
fn a_volume_keeps_its_node_whatever_others_there_are() {
    let mut alone = Session::new(vec![Export::new(9, "r0/1", 1 << 20)], (0, 0));
    let found = ask(&mut alone, opcode::LOOKUP, ROOT, b"1\0").unwrap();
    let among_others = ask(&mut session(), opcode::LOOKUP, ROOT, b"1\0").unwrap();
    assert_eq!((u64_at(&found, 0), u64_at(&among_others, 0)), (READ_ONLY, READ_ONLY));
}

#[test]
fn the_directory_lists_the_volumes() {
    let mut session = session();
    let answer = ask(&mut session, opcode::READDIR, ROOT, &words(&[0, 0, pair(4096, 0), 0, 0])).unwrap();
    assert_eq!(answer.len(), 4 * 32);
    let names: Vec<u8> = (0..4).map(|i| answer[32 * i + 24]).collect();
    assert_eq!(names, b"..01");
    assert_eq!((u64_at(&answer, 64), u64_at(&answer, 72), u32_at(&answer, 84)), (VOLUME_0, 3, 8));
    let rest = ask(&mut session, opcode::READDIR, ROOT, &words(&[0, 3, pair(4096, 0), 0, 0])).unwrap();
    assert_eq!(rest, answer[96..]);
    let short = ask(&mut session, opcode::READDIR, ROOT, &words(&[0, 0, pair(40, 0), 0, 0])).unwrap();
    assert_eq!(short, answer[..32]);
}

#[test]
fn lookup_and_attributes() {
    let mut session = session();
    let found = ask(&mut session, opcode::LOOKUP, ROOT, b"0\0").unwrap();
    assert_eq!((found.len(), u64_at(&found, 0), u64_at(&found, 48)), (128, VOLUME_0, 1 << 20));
    assert_eq!(ask(&mut session, opcode::LOOKUP, ROOT, b"2\0"), Err(Errno::ENOENT));
    assert_eq!(ask(&mut session, opcode::LOOKUP, VOLUME_0, b"0\0").unwrap_err().raw(), libc::ENOTDIR);
    let attr = ask(&mut session, opcode::GETATTR, VOLUME_0, &words(&[0, 0])).unwrap();
    assert_eq!(attr[16..], found[40..]);
    assert_eq!((u32_at(&attr, 76), u32_at(&attr, 84), u32_at(&attr, 88)), (libc::S_IFREG | 0o600, 1000, 100));
    session.export_mut(7).unwrap().size = 2 << 20;
    let attr = ask(&mut session, opcode::GETATTR, VOLUME_0, &words(&[0, 0])).unwrap();
    assert_eq!((u64_at(&attr, 24), u64_at(&attr, 32)), (2 << 20, 4096));
    assert_eq!(ask(&mut session, opcode::GETATTR, 77, &words(&[0, 0])), Err(Errno::ENOENT));
}

#[test]
fn sizes_and_owners_stay() {
    let mut session = session();
    let mut set = |valid: u32, size: u64| {
        let mut body = words(&[pair(valid, 0), 0, size]);
        body.resize(88, 0);
        ask(&mut session, opcode::SETATTR, VOLUME_0, &body).map(|attr| u64_at(&attr, 24))
    };
    assert_eq!(set(FATTR_SIZE, 0), Err(Errno::EPERM));
    assert_eq!(set(FATTR_SIZE, 1 << 20), Ok(1 << 20));
    assert_eq!(set(FATTR_MODE, 0), Err(Errno::EPERM));
    assert_eq!(set(1 << 5, 0), Ok(1 << 20), "times may be set");
}

#[test]
fn opening_obeys_the_role() {
    let mut session = session();
    let mut open = |node, flags: i32| ask(&mut session, opcode::OPEN, node, &words(&[pair(flags as u32, 0)]));
    assert_eq!(u32_at(&open(VOLUME_0, libc::O_RDWR).unwrap(), 8), 1 | 1 << 5 | 1 << 6);
    assert_eq!(open(READ_ONLY, libc::O_RDWR), Err(Errno::EROFS));
    assert_eq!(open(READ_ONLY, libc::O_WRONLY), Err(Errno::EROFS));
    assert!(open(READ_ONLY, libc::O_RDONLY).is_ok());
    assert_eq!(open(ROOT, libc::O_RDONLY).unwrap_err().raw(), libc::EISDIR);
}

#[test]
fn reads_end_where_the_volume_ends() {
    let mut session = session();
    let read = |offset: u64, len: u32| words(&[0, offset, pair(len, 0), 0, 0]);
    let (volume, request, payload) = request(&mut session, opcode::READ, VOLUME_0, &read((1 << 20) - 4096, 65536));
    assert_eq!((volume, payload), (7, 0..0));
    let expected = Request { tag: UNIQUE, kind: Kind::Read, offset: (1 << 20) - 4096, len: 4096, fua: false };
    assert_eq!(request, expected);
    assert_eq!(ask(&mut session, opcode::READ, VOLUME_0, &read(1 << 20, 4096)), Ok(vec![]));
    assert_eq!(ask(&mut session, opcode::READ, VOLUME_0, &read(u64::MAX, 4096)), Ok(vec![]));
    assert_eq!(ask(&mut session, opcode::READ, VOLUME_0, &read(0, 100)), Err(Errno::EINVAL));
    let header = Session::reply(&request, Ok(()));
    assert_eq!((header.len(), u32_at(&header, 0), u32_at(&header, 4)), (16, 16 + 4096, 0));
    let header = Session::reply(&request, Err(Errno::EIO));
    assert_eq!((header.len(), u32_at(&header, 0), u32_at(&header, 4)), (16, 16, -5i32 as u32));
}

#[test]
fn writes_point_at_their_payload() {
    let mut session = session();
    let write = |offset: u64, len: u32, flags: i32, payload: usize| {
        let mut body = words(&[0, offset, pair(len, 0), 0, pair(flags as u32, 0)]);
        body.resize(WRITE_IN + payload, 0xaa);
        body
    };
    let (volume, plain, payload) = request(&mut session, opcode::WRITE, VOLUME_0, &write(512, 1024, 0, 1024));
    assert_eq!((volume, payload), (7, 80..1104));
    assert_eq!(plain, Request { tag: UNIQUE, kind: Kind::Write, offset: 512, len: 1024, fua: false });
    let header = Session::reply(&plain, Ok(()));
    assert_eq!((header.len(), u32_at(&header, 0), u32_at(&header, 16)), (24, 24, 1024));
    assert_eq!(Session::reply(&plain, Err(Errno::ENOSPC)).len(), 16);
    let (_, durable, _) = request(&mut session, opcode::WRITE, VOLUME_0, &write(0, 512, libc::O_DSYNC, 512));
    assert!(durable.fua);
    assert_eq!(ask(&mut session, opcode::WRITE, READ_ONLY, &write(0, 512, 0, 512)), Err(Errno::EPERM));
    assert_eq!(ask(&mut session, opcode::WRITE, VOLUME_0, &write(1 << 20, 512, 0, 512)), Err(Errno::ENOSPC));
    assert_eq!(ask(&mut session, opcode::WRITE, VOLUME_0, &write(0, 1024, 0, 512)), Err(Errno::EIO));
    assert_eq!(ask(&mut session, opcode::WRITE, VOLUME_0, &write(0, u32::MAX, 0, 0)), Err(Errno::EIO));
}

#[test]
fn fallocate_promises_zeroes() {
    let mut session = session();
    let keep = libc::FALLOC_FL_KEEP_SIZE;
    let body = |len: u64, mode: i32| words(&[0, 4096, len, pair(mode as u32, 0)]);
    for (mode, may_unmap) in [(libc::FALLOC_FL_PUNCH_HOLE | keep, true), (libc::FALLOC_FL_ZERO_RANGE | keep, false)] {
        let (_, zeroes, _) = request(&mut session, opcode::FALLOCATE, VOLUME_0, &body(8192, mode));
        let kind = Kind::WriteZeroes { may_unmap, fast: false };
        assert_eq!(zeroes, Request { tag: UNIQUE, kind, offset: 4096, len: 8192, fua: false });
    }
    assert_eq!(ask(&mut session, opcode::FALLOCATE, VOLUME_0, &body(8192, 0)), Err(Errno::ENOTSUP));
    let beyond = body(1 << 20, libc::FALLOC_FL_PUNCH_HOLE | keep);
    assert_eq!(ask(&mut session, opcode::FALLOCATE, VOLUME_0, &beyond), Err(Errno::ENOSPC));
    assert_eq!(ask(&mut session, opcode::FALLOCATE, READ_ONLY, &beyond), Err(Errno::EPERM));
}

#[test]
fn the_rest() {
    let mut session = session();
    let (_, flush, _) = request(&mut session, opcode::FSYNC, VOLUME_0, &words(&[0, 0]));
    assert_eq!((flush.kind, flush.len), (Kind::Flush, 0));
    let seek = |offset: u64, whence: i32| words(&[0, offset, pair(whence as u32, 0)]);
    assert_eq!(ask(&mut session, opcode::LSEEK, VOLUME_0, &seek(99, libc::SEEK_DATA)), Ok(words(&[99])));
    assert_eq!(ask(&mut session, opcode::LSEEK, VOLUME_0, &seek(99, libc::SEEK_HOLE)), Ok(words(&[1 << 20])));
    let past = ask(&mut session, opcode::LSEEK, VOLUME_0, &seek(1 << 20, libc::SEEK_DATA));
    assert_eq!(past.unwrap_err().raw(), libc::ENXIO);
    assert_eq!(ask(&mut session, opcode::IOCTL, VOLUME_0, &[0; 32]).unwrap_err().raw(), libc::ENOTTY);
    assert_eq!(ask(&mut session, opcode::UNLINK, ROOT, b"0\0"), Err(Errno::EPERM));
    assert_eq!(ask(&mut session, 9999, ROOT, b"").unwrap_err().raw(), libc::ENOSYS);
    assert_eq!(ask(&mut session, opcode::STATFS, ROOT, b"").unwrap().len(), 80);
    let mut out = Vec::new();
    for silent in [opcode::FORGET, opcode::BATCH_FORGET, opcode::INTERRUPT] {
        assert_eq!(session.parse(&message(silent, ROOT, &[0; 16]), &mut out), Event::None);
    }
    assert!(out.is_empty());
    assert_eq!(session.parse(&message(opcode::DESTROY, 0, b""), &mut out), Event::Destroyed);
}

proptest::proptest! {
    /// Whatever arrives: no panic, an answer that names its own length, and payload inside the message.
    #[test]
    fn any_bytes_are_survived(
        opcode in 0u32..54, node in 0u64..12, body in proptest::collection::vec(0u8..=255, 0..120),
    ) {
        let mut session = session();
        let mut out = Vec::new();
        let bytes = message(opcode, node, &body);
        match session.parse(&bytes, &mut out) {
            Event::Reply | Event::Destroyed => assert_eq!(u32_at(&out, 0) as usize, out.len()),
            Event::Request { payload, .. } => assert!(payload.end <= bytes.len() && out.is_empty()),
            Event::None | Event::Knock(_) | Event::Interrupted(_) => assert!(out.is_empty()),
            Event::Released(_) => panic!("only of a session with doors"),
        }
        assert_eq!(session.parse(&bytes[..bytes.len() - 1], &mut Vec::new()), Event::None);
    }
}

#[test]
fn a_write_may_be_read_in_parts() {
    let mut session = session();
    let mut body = words(&[0, 512, pair(1024, 0), 0, 0]);
    body.resize(WRITE_IN + 1024, 0xaa);
    let whole = message(opcode::WRITE, VOLUME_0, &body);
    let (header, payload) = whole.split_first_chunk().unwrap();
    let mut out = Vec::new();
    let Some(Event::Request { volume: 7, request, payload: at }) = session.parse_write(header, payload, &mut out)
    else {
        panic!("a request")
    };
    assert_eq!((request.offset, request.len, at), (512, 1024, 0..1024));
    assert_eq!(session.parse_write(header, &payload[1..], &mut out), Some(Event::None), "it lies about its length");
    let other = message(opcode::GETATTR, VOLUME_0, &[0; 64]);
    let (header, rest) = other.split_first_chunk().unwrap();
    assert_eq!(session.parse_write(header, rest, &mut out), None);
    assert!(out.is_empty());
}

/// A slot as the kernel fills it: the message's header says nothing of its length.
fn slot(opcode: u32, node: u64, operation: &[u8], payload: &[u8]) -> ([u8; SLOT_HEADER], Vec<u8>) {
    let mut header = [0; SLOT_HEADER];
    header[4..8].copy_from_slice(&opcode.to_ne_bytes());
    header[8..24].copy_from_slice(&words(&[UNIQUE, node]));
    header[128..128 + operation.len()].copy_from_slice(operation);
    header[264..280].copy_from_slice(&words(&[UNIQUE, pair(payload.len() as u32, 0)]));
    let mut buffer = payload.to_vec();
    buffer.resize(SLOT_PAYLOAD_MAX, 0);
    (header, buffer)
}

fn session_with_slots() -> Session {
    let mut session = session().wanting_slots();
    let flags = u32::MAX;
    let body = words(&[pair(7, 45), pair(131072, flags), pair(flags, 0), 0, 0, 0, 0, 0]);
    let answer = ask(&mut session, opcode::INIT, 0, &body).unwrap();
    assert_eq!((u32_at(&answer, 12), u32_at(&answer, 32)), (WANTED | INIT_EXT, OVER_IO_URING));
    assert_eq!((u32_at(&answer, 20), u32_at(&answer, 28) & 0xffff), (SLOT_PAYLOAD_MAX as u32, 32));
    assert!(session.has_slots());
    session
}

#[test]
fn slots_only_where_both_sides_have_them() {
    let offered = words(&[pair(7, 45), pair(0, u32::MAX), pair(u32::MAX, 0), 0, 0, 0, 0, 0]);
    for (wanted, flags, more) in
        [(false, u32::MAX, u32::MAX), (true, u32::MAX, !OVER_IO_URING), (true, !INIT_EXT, u32::MAX)]
    {
        let mut session = if wanted { session().wanting_slots() } else { session() };
        let mut body = offered.clone();
        body[12..16].copy_from_slice(&flags.to_ne_bytes());
        body[16..20].copy_from_slice(&more.to_ne_bytes());
        let answer = ask(&mut session, opcode::INIT, 0, &body).unwrap();
        assert_eq!((u32_at(&answer, 12) & INIT_EXT, u32_at(&answer, 32), session.has_slots()), (0, 0, false));
    }
}

#[test]
fn requests_in_slots() {
    let (mut session, mut out) = (session_with_slots(), Vec::new());
    let data = [7; 1024];
    let operation = words(&[0, 4096, pair(1024, 0), 0, 0]);
    let (mut header, mut payload) = slot(opcode::WRITE, VOLUME_0, &operation, &data);
    let event = session.parse_slot(&header, &payload, &mut out);
    let Event::Request { volume: 7, request, payload: at } = event else { panic!("{event:?}") };
    assert_eq!((request.kind, request.offset, request.len, at.clone()), (Kind::Write, 4096, 1024, 0..1024));
    assert_eq!(payload[at], data);
    assert_eq!(commit(&mut header, &mut payload, &Session::reply(&request, Ok(())), []), UNIQUE);
    assert_eq!((u32_at(&header, 0), u32_at(&header, 4), u64_at(&header, 8)), (24, 0, UNIQUE));
    assert_eq!((u32_at(&header, 272), u32_at(&payload, 0)), (8, 1024));

    // The name of a lookup is its payload, and so is the answer to it.
    let (mut header, mut payload) = slot(opcode::LOOKUP, ROOT, &[], b"0\0");
    assert_eq!(session.parse_slot(&header, &payload, &mut out), Event::Reply);
    assert_eq!(commit(&mut header, &mut payload, &out, []), UNIQUE);
    assert_eq!((u32_at(&header, 4), u32_at(&header, 272), u64_at(&payload, 0)), (0, 128, VOLUME_0));
}

#[test]
fn a_read_in_a_slot_brings_its_data() {
    let (mut session, mut out) = (session_with_slots(), Vec::new());
    let operation = words(&[0, 0, pair(1024, 0), 0, 0]);
    let (mut header, mut payload) = slot(opcode::READ, VOLUME_0, &operation, &[]);
    let event = session.parse_slot(&header, &payload, &mut out);
    let Event::Request { request, .. } = event else { panic!("{event:?}") };
    commit(&mut header, &mut payload, &Session::reply(&request, Ok(())), [&[1; 512][..], &[2; 512]]);
    assert_eq!((u32_at(&header, 0), u32_at(&header, 272)), (16 + 1024, 1024));
    assert_eq!((payload[..512] == [1; 512], payload[512..1024] == [2; 512]), (true, true));
    commit(&mut header, &mut payload, &Session::reply(&request, Err(Errno::EIO)), []);
    assert_eq!((u32_at(&header, 4) as i32, u32_at(&header, 272)), (-libc::EIO, 0));
}

#[test]
fn a_slot_that_lies_is_answered_with_an_error() {
    let (mut session, mut out) = (session_with_slots(), Vec::new());
    let (mut header, mut payload) = slot(opcode::WRITE, VOLUME_0, &words(&[0, 0, pair(1024, 0), 0, 0]), &[0; 512]);
    assert_eq!(session.parse_slot(&header, &payload, &mut out), Event::Reply);
    assert_eq!(u32_at(&out, 4) as i32, -libc::EIO);
    header[272..276].copy_from_slice(&u32::MAX.to_ne_bytes());
    out.clear();
    assert_eq!(session.parse_slot(&header, &payload, &mut out), Event::None);
    assert_eq!(commit(&mut header, &mut payload, &out, []), UNIQUE);
    assert_eq!((u32_at(&header, 4) as i32, u32_at(&header, 272)), (-libc::EIO, 0));
}

#[test]
fn a_door_is_asked_for_and_its_file_is_hidden() {
    let mut session = session().with_doors("secret".into());
    assert_eq!(session.file(7).as_deref(), Some(".0-secret"));
    let door = Door { device: (7, 300), owner: (0, 6) };
    let knock = |session: &mut Session, opcode, node, body: &[u8]| {
        let mut out = Vec::new();
        match session.parse(&message(opcode, node, body), &mut out) {
            Event::Knock(knock) if out.is_empty() => knock,
            event => panic!("{event:?}"),
        }
    };
    // Asked for before it is there.
    let asked = knock(&mut session, opcode::LOOKUP, ROOT, b"0\0");
    assert_eq!((asked.volume, asked.unique, asked.question, asked.caller), (7, UNIQUE, Question::Name, Caller(0)));
    let mut out = Vec::new();
    session.let_in(&asked, &mut out);
    assert_eq!((out.len(), u32_at(&out, 4)), (OUT_HEADER, -libc::ENOENT as u32));
    session.set_door(7, Some(door));
    out.clear();
    session.let_in(&asked, &mut out);
    // The entry, never remembered, then the attributes: a block device 7:300 of root's and group 6's.
    let node = u64_at(&out, 16);
    assert_eq!((out.len(), u32_at(&out, 4)), (16 + 40 + 88, 0));
    assert_eq!((u64_at(&out, 32), u64_at(&out, 40), u64_at(&out, 48)), (0, 0, 0));
    let attr = &out[56..];
    assert_eq!((u32_at(attr, 60), u32_at(attr, 68), u32_at(attr, 72)), (libc::S_IFBLK | 0o660, 0, 6));
    assert_eq!(u32_at(attr, 76), 0x10_0700 | 44);
    let asked = knock(&mut session, opcode::GETATTR, node, &[0; 16]);
    assert_eq!((asked.volume, asked.question), (7, Question::Attributes));
    out.clear();
    session.let_in(&asked, &mut out);
    assert_eq!((out.len(), u32_at(&out[32..], 76)), (16 + 16 + 88, 0x10_0700 | 44));
    out.clear();
    Session::refuse(UNIQUE, Errno::from_raw(libc::EMEDIUMTYPE), &mut out);
    assert_eq!((out.len(), u32_at(&out, 4)), (OUT_HEADER, -libc::EMEDIUMTYPE as u32));
    // Only doors are listed, and only those that there are; files have other names, and are found by these.
    let listing = ask(&mut session, opcode::READDIR, ROOT, &words(&[0, 0, 4096, 0, 0])).unwrap();
    assert_eq!(listing.len(), 3 * 32);
    assert_eq!(u32_at(&listing[64..], 20), u32::from(libc::DT_BLK));
    assert_eq!(ask(&mut session, opcode::LOOKUP, ROOT, b".0-secreT\0"), Err(Errno::ENOENT));
    let file = ask(&mut session, opcode::LOOKUP, ROOT, b".0-secret\0").unwrap();
    assert_eq!(u64_at(&file, 0), VOLUME_0);
    // A device stands on the file of a volume that may not be written to at present.
    ask(&mut session, opcode::OPEN, READ_ONLY, &words(&[pair(libc::O_RDWR as u32, 0)])).unwrap();
    // Nobody changes a door; its device is another one by now: an old node leads nowhere.
    assert_eq!(ask(&mut session, opcode::SETATTR, node, &words(&[pair(FATTR_MODE, 0); 11])), Err(Errno::EPERM));
    ask(&mut session, opcode::SETATTR, node, &words(&[pair(1 << 5, 0); 11])).unwrap();
    session.set_door(7, Some(Door { device: (7, 301), ..door }));
    assert_eq!(ask(&mut session, opcode::GETATTR, node, &[0; 16]), Err(Errno::from_raw(libc::ESTALE)));
}

#[test]
fn the_end_of_a_use_is_told() {
    let mut session = session().with_doors("secret".into());
    let mut out = Vec::new();
    assert_eq!(session.parse(&message(opcode::RELEASE, VOLUME_0, &[0; 24]), &mut out), Event::Released(7));
    assert_eq!((out.len(), u32_at(&out, 0), u32_at(&out, 4)), (OUT_HEADER, OUT_HEADER as u32, 0));
    out.clear();
    let interrupt = message(opcode::INTERRUPT, 0, &words(&[4711]));
    assert_eq!(session.parse(&interrupt, &mut out), Event::Interrupted(4711));
    assert!(out.is_empty());
}
