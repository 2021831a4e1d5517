use super::proto::*;
use super::*;
use crate::{Errno, Kind};

struct Client {
    session: Session,
    exports: Vec<Export>,
    out: Vec<u8>,
}

impl Client {
    fn connect(exports: Vec<Export>) -> Client {
        let mut out = Vec::new();
        let session = Session::start(&mut out);
        assert_eq!(&out[..16], b"NBDMAGICIHAVEOPT");
        assert_eq!(be16(&out, 16), 3);
        let mut client = Client { session, exports, out };
        client.out.clear();
        assert_eq!(client.feed(&3u32.to_be_bytes()), Step::Consumed { n: 4 });
        client
    }

    fn with(mut self, number: u32, data: &[u8]) -> Client {
        self.option(number, data);
        self.out.clear();
        self
    }

    fn feed(&mut self, bytes: &[u8]) -> Step {
        self.session.parse(bytes, &self.exports, &mut self.out)
    }

    /// The kinds and data of the replies to one option.
    fn option(&mut self, number: u32, data: &[u8]) -> Vec<(u32, Vec<u8>)> {
        self.out.clear();
        let mut bytes = IHAVEOPT.to_be_bytes().to_vec();
        bytes.extend_from_slice(&number.to_be_bytes());
        bytes.extend_from_slice(&(data.len() as u32).to_be_bytes());
        bytes.extend_from_slice(data);
        assert_eq!(self.feed(&bytes), Step::Consumed { n: bytes.len() });
        let mut replies = Vec::new();
        let mut rest = &self.out[..];
        while !rest.is_empty() {
            assert_eq!((be64(rest, 0), be32(rest, 8)), (REP_MAGIC, number));
            let end = 20 + be32(rest, 16) as usize;
            replies.push((be32(rest, 12), rest[20..end].to_vec()));
            rest = &rest[end..];
        }
        replies
    }

    fn command(&mut self, flags: u16, number: u16, offset: u64, len: u32) -> Step {
        self.out.clear();
        let bytes = command(flags, number, offset, len);
        self.feed(&bytes)
    }
}

fn command(flags: u16, number: u16, offset: u64, len: u32) -> Vec<u8> {
    let mut bytes = REQUEST_MAGIC.to_be_bytes().to_vec();
    bytes.extend_from_slice(&flags.to_be_bytes());
    bytes.extend_from_slice(&number.to_be_bytes());
    bytes.extend_from_slice(&0xc00c1eu64.to_be_bytes());
    bytes.extend_from_slice(&offset.to_be_bytes());
    bytes.extend_from_slice(&len.to_be_bytes());
    bytes
}

fn one() -> Vec<Export> {
    vec![Export::new(0, "r0/0", 128 << 20)]
}

fn go(name: &str) -> Vec<u8> {
    let mut data = (name.len() as u32).to_be_bytes().to_vec();
    data.extend_from_slice(name.as_bytes());
    data.extend_from_slice(&[0, 1, 0, 3]);
    data
}

fn queries(name: &str, queries: &[&[u8]]) -> Vec<u8> {
    let mut data = (name.len() as u32).to_be_bytes().to_vec();
    data.extend_from_slice(name.as_bytes());
    data.extend_from_slice(&(queries.len() as u32).to_be_bytes());
    for query in queries {
        data.extend_from_slice(&(query.len() as u32).to_be_bytes());
        data.extend_from_slice(query);
    }
    data
}

fn structured() -> Client {
    Client::connect(one())
        .with(OPT_STRUCTURED_REPLY, b"")
        .with(OPT_SET_META_CONTEXT, &queries("r0/0", &[BASE_ALLOCATION]))
        .with(OPT_GO, &go("r0/0"))
}

fn simple() -> Client {
    Client::connect(one()).with(OPT_GO, &go("r0/0"))
}

#[test]
fn go_describes_the_export() {
    let mut client = Client::connect(one());
    let replies = client.option(OPT_GO, &go("r0/0"));
    assert_eq!(replies.iter().map(|(kind, _)| *kind).collect::<Vec<_>>(), [REP_INFO, REP_INFO, REP_ACK]);
    assert_eq!(be64(&replies[0].1, 2), 128 << 20);
    assert_eq!(be16(&replies[0].1, 10), 0b1001_0110_1101);
    let sizes = &replies[1].1;
    assert_eq!((be16(sizes, 0), be32(sizes, 2), be32(sizes, 6), be32(sizes, 10)), (3, 512, 4096, 32 << 20));
    assert_eq!(client.session.export().unwrap().name, "r0/0");
}

#[test]
fn the_empty_name_is_the_only_export() {
    let mut client = Client::connect(one());
    assert_eq!(client.option(OPT_GO, &go("")).last().unwrap().0, REP_ACK);
    assert_eq!(client.session.export().unwrap().name, "r0/0");
    let mut two = one();
    two.push(Export::new(1, "r0/1", 1 << 20));
    let mut client = Client::connect(two);
    assert_eq!(client.option(OPT_GO, &go(""))[0].0, REP_ERR_UNKNOWN);
    assert_eq!(client.option(OPT_GO, &go("r0/2"))[0].0, REP_ERR_UNKNOWN);
    let listed = client.option(OPT_LIST, b"");
    assert_eq!(listed[0], (REP_SERVER, b"\0\0\0\x04r0/0".to_vec()));
    assert_eq!(listed[1], (REP_SERVER, b"\0\0\0\x04r0/1".to_vec()));
    assert_eq!(listed[2], (REP_ACK, vec![]));
    assert_eq!(client.option(OPT_GO, &go("r0/1")).last().unwrap().0, REP_ACK);
    assert_eq!(client.session.export().unwrap().id, 1);
}

#[test]
fn options_that_are_refused() {
    const EXTENDED_HEADERS: u32 = 11;
    let mut client = Client::connect(one());
    let table: &[(u32, &[u8], u32)] = &[
        (OPT_STARTTLS, b"", REP_ERR_POLICY),
        (EXTENDED_HEADERS, b"", REP_ERR_UNSUP),
        (0xffff_ffff, b"x", REP_ERR_UNSUP),
        (OPT_LIST, b"x", REP_ERR_INVALID),
        (OPT_STRUCTURED_REPLY, b"x", REP_ERR_INVALID),
        (OPT_SET_META_CONTEXT, &queries("r0/0", &[]), REP_ERR_INVALID),
        (OPT_GO, b"", REP_ERR_INVALID),
        (OPT_GO, b"\xff\xff\xff\xff", REP_ERR_INVALID),
        (OPT_GO, b"\0\0\0\x04r0/0\0\x09\0\0", REP_ERR_INVALID),
        (OPT_INFO, b"\0\0\0\x02\xff\xfe\0\0", REP_ERR_UNKNOWN),
    ];
    for (option, data, expected) in table {
        assert_eq!(client.option(*option, data)[0].0, *expected, "{option} {data:?}");
    }
    assert_eq!(client.option(OPT_STRUCTURED_REPLY, b"")[0].0, REP_ACK);
    assert_eq!(client.option(OPT_STRUCTURED_REPLY, b"")[0].0, REP_ERR_INVALID);
    let lying = b"\0\0\0\x04r0/0\xff\xff\xff\xff\0\0\0\0";
    assert_eq!(client.option(OPT_LIST_META_CONTEXT, lying)[0].0, REP_ERR_INVALID);
}

#[test]
fn metadata_contexts() {
    let mut client = Client::connect(one()).with(OPT_STRUCTURED_REPLY, b"");
    for (list, found) in [(&[][..], true), (&[&b"base:"[..]], true), (&[&b"qemu:"[..]], false)] {
        let replies = client.option(OPT_LIST_META_CONTEXT, &queries("", list));
        assert_eq!(replies.len(), 1 + usize::from(found), "{list:?}");
    }
    assert_eq!(client.option(OPT_SET_META_CONTEXT, &queries("", &[b"base:"])), [(REP_ACK, vec![])]);
    let set = client.option(OPT_SET_META_CONTEXT, &queries("", &[b"x:y", BASE_ALLOCATION]));
    assert_eq!(set[0], (REP_META_CONTEXT, b"\0\0\0\x01base:allocation".to_vec()));
    assert_eq!(client.option(OPT_SET_META_CONTEXT, &queries("nope", &[]))[0].0, REP_ERR_UNKNOWN);
    client.option(OPT_GO, &go(""));
    client.command(0, CMD_BLOCK_STATUS, 0, 512);
    assert_eq!(be16(&client.out, 6), REPLY_ERROR, "a failed selection drops the earlier one");
}

#[test]
fn export_name_has_no_reply_header() {
    for (flags, expected) in [(1u32, 134), (3, 10), (0, 134)] {
        let mut out = Vec::new();
        let mut session = Session::start(&mut out);
        out.clear();
        session.parse(&flags.to_be_bytes(), &one(), &mut out);
        let option = [&IHAVEOPT.to_be_bytes()[..], &[0, 0, 0, 1, 0, 0, 0, 4], b"r0/0"].concat();
        assert_eq!(session.parse(&option, &one(), &mut out), Step::Consumed { n: 20 });
        assert_eq!(out.len(), expected);
        assert_eq!(be64(&out, 0), 128 << 20);
    }
}

#[test]
fn abort_is_acknowledged() {
    let mut client = Client::connect(one());
    let option = [&IHAVEOPT.to_be_bytes()[..], &[0, 0, 0, 2, 0, 0, 0, 0]].concat();
    assert_eq!(client.feed(&option), Step::Close { n: 16, violation: None });
    assert_eq!(be32(&client.out, 12), REP_ACK);
    assert_eq!(client.feed(&option), Step::Close { n: 0, violation: None });
}

#[test]
fn requests_reach_the_owner() {
    let mut client = structured();
    let zeroes = |may_unmap, fast| Kind::WriteZeroes { may_unmap, fast };
    let table = [
        (CMD_FLAG_DF, CMD_READ, Kind::Read, false),
        (0, CMD_WRITE, Kind::Write, false),
        (CMD_FLAG_FUA, CMD_WRITE, Kind::Write, true),
        (CMD_FLAG_FUA, CMD_TRIM, Kind::Discard, true),
        (0, CMD_WRITE_ZEROES, zeroes(true, false), false),
        (CMD_FLAG_NO_HOLE | CMD_FLAG_FAST_ZERO, CMD_WRITE_ZEROES, zeroes(false, true), false),
    ];
    for (flags, number, kind, fua) in table {
        let expected = crate::Request { tag: 0xc00c1e, kind, offset: 4096, len: 1024, fua };
        let payload_len = if kind == Kind::Write { 1024 } else { 0 };
        let step = client.command(flags, number, 4096, 1024);
        assert_eq!(step, Step::Request { n: 28, request: expected, payload_len }, "{number}");
    }
    let flush = crate::Request { tag: 0xc00c1e, kind: Kind::Flush, offset: 0, len: 0, fua: false };
    assert_eq!(client.command(0, CMD_FLUSH, 0, 0), Step::Request { n: 28, request: flush, payload_len: 0 });
    assert_eq!(client.command(0, CMD_DISC, 0, 0), Step::Close { n: 28, violation: None });
    assert_eq!(be32(&client.session.reply(&flush, Ok(())), 0), SIMPLE_MAGIC, "requests in flight are still answered");
}

#[test]
fn replies_have_the_negotiated_form() {
    let read = crate::Request { tag: 0xc00c1e, kind: Kind::Read, offset: 4096, len: 1024, fua: false };
    let write = crate::Request { kind: Kind::Write, ..read };
    let client = simple();
    let header = client.session.reply(&read, Ok(()));
    assert_eq!((header.len(), be32(&header, 0), be32(&header, 4), be64(&header, 8)), (16, SIMPLE_MAGIC, 0, 0xc00c1e));
    assert_eq!(be32(&client.session.reply(&write, Err(Errno::ENOSPC)), 4), 28);
    assert_eq!(be32(&client.session.reply(&write, Err(Errno::from_raw(libc::EREMOTEIO))), 4), 5);

    let client = structured();
    let header = client.session.reply(&read, Ok(()));
    assert_eq!((header.len(), be32(&header, 0), be16(&header, 4), be16(&header, 6)), (28, STRUCTURED_MAGIC, 1, 1));
    assert_eq!((be64(&header, 8), be32(&header, 16), be64(&header, 20)), (0xc00c1e, 1032, 4096));
    let header = client.session.reply(&write, Ok(()));
    assert_eq!((header.len(), be32(&header, 0), be32(&header, 4)), (16, SIMPLE_MAGIC, 0), "nothing to say");
    let header = client.session.reply(&write, Err(Errno::ENOSPC));
    assert_eq!((header.len(), be16(&header, 6), be32(&header, 20)), (26, REPLY_ERROR, 28));
    let header = client.session.reply(&read, Err(Errno::EIO));
    assert_eq!((header.len(), be16(&header, 6), be32(&header, 16), be32(&header, 20)), (26, REPLY_ERROR, 6, 5));
}

#[test]
fn a_refused_write_loses_its_payload_before_the_answer() {
    let mut client = simple();
    assert_eq!(client.command(0, CMD_WRITE, 128 << 20, 1024), Step::Consumed { n: 28 });
    assert!(client.out.is_empty());
    assert_eq!(client.feed(&[]), Step::NeedMore { at_least: 1 });
    assert_eq!(client.feed(&[1; 1000]), Step::Consumed { n: 1000 });
    assert!(client.out.is_empty());
    assert_eq!(client.feed(&[1; 1000]), Step::Consumed { n: 24 });
    assert_eq!((client.out.len(), be32(&client.out, 4)), (16, 28));
    assert!(matches!(client.command(0, CMD_READ, 0, 512), Step::Request { .. }));
    assert!(matches!(client.command(0, CMD_WRITE, 0, 65 << 20), Step::Close { violation: Some(_), .. }));
}

#[test]
fn bad_requests_are_answered() {
    let mut client = simple();
    const CMD_CACHE: u16 = 5;
    let table = [
        (0, CMD_CACHE, 0, 512),
        (0, 99, 0, 512),
        (1 << 15, CMD_READ, 0, 512),
        (CMD_FLAG_DF, CMD_READ, 0, 512),
        (CMD_FLAG_NO_HOLE, CMD_TRIM, 0, 512),
        (0, CMD_READ, 1, 512),
        (0, CMD_READ, 0, 0),
        (0, CMD_BLOCK_STATUS, 0, 512),
        (0, CMD_FLUSH, 0, 1),
        (0, CMD_WRITE, 0, 0),
    ];
    for (flags, number, offset, len) in table {
        assert_eq!(client.command(flags, number, offset, len), Step::Consumed { n: 28 }, "{number}");
        assert_eq!((client.out.len(), be32(&client.out, 4), be64(&client.out, 8)), (16, 22, 0xc00c1e), "{number}");
    }
}

#[test]
fn block_status_is_all_data_by_default() {
    let mut client = structured();
    assert_eq!(client.command(CMD_FLAG_REQ_ONE, CMD_BLOCK_STATUS, 512, 4096), Step::Consumed { n: 28 });
    let out = &client.out;
    assert_eq!((out.len(), be16(out, 6), be32(out, 16)), (32, REPLY_BLOCK_STATUS, 12));
    assert_eq!((be32(out, 20), be32(out, 24), be32(out, 28)), (1, 4096, 0));
}

#[test]
fn the_owner_can_supply_extents() {
    let mut client = structured();
    client.session = client.session.with_owner_extents();
    let Step::BlockStatus { n: 28, query } = client.command(0, CMD_BLOCK_STATUS, 512, 4096) else { panic!("no query") };
    assert_eq!(query, BlockStatus { tag: 0xc00c1e, offset: 512, len: 4096, one: false });
    let extents = [(512, false), (8192, true), (512, false)].map(|(len, hole)| Extent { len, hole, zero: hole });
    client.session.block_status_reply(&query, &extents, &mut client.out);
    let words: Vec<u32> = (20..client.out.len()).step_by(4).map(|at| be32(&client.out, at)).collect();
    assert_eq!(words, [1, 512, 0, 3584, 3]);
    client.out.clear();
    client.session.block_status_reply(&BlockStatus { one: true, ..query }, &extents, &mut client.out);
    assert_eq!((client.out.len(), be32(&client.out, 24)), (32, 512));
    client.out.clear();
    client.session.block_status_reply(&query, &[], &mut client.out);
    assert_eq!((client.out.len(), be32(&client.out, 24)), (32, 4096));
}

#[test]
fn wrong_magics_close() {
    let mut client = simple();
    assert!(matches!(client.feed(&[0; 28]), Step::Close { violation: Some(_), .. }));
    let mut client = Client::connect(one());
    assert!(matches!(client.feed(&[0; 16]), Step::Close { violation: Some(_), .. }));
    let mut session = Session::start(&mut Vec::new());
    assert!(matches!(session.parse(&[0, 0, 1, 0], &one(), &mut Vec::new()), Step::Close { violation: Some(_), .. }));
}

#[test]
fn long_options_are_skipped_or_closed() {
    let mut client = Client::connect(one());
    let header = |len: u32| [&IHAVEOPT.to_be_bytes()[..], &77u32.to_be_bytes(), &len.to_be_bytes()].concat();
    assert_eq!(client.feed(&header(20 << 10)), Step::Consumed { n: 16 });
    assert_eq!(be32(&client.out, 12), REP_ERR_TOO_BIG);
    assert_eq!(client.feed(&vec![0; 20 << 10]), Step::Consumed { n: 20 << 10 });
    assert_eq!(client.feed(&header(16 << 10)), Step::NeedMore { at_least: PARSE_MAX });
    assert!(matches!(client.feed(&header(u32::MAX)), Step::Close { violation: Some(_), .. }));
}

#[test]
fn haggling_has_an_end() {
    let mut client = Client::connect(one());
    let list = [&IHAVEOPT.to_be_bytes()[..], &OPT_LIST.to_be_bytes(), &[0; 4]].concat();
    let answered = (0..2000).take_while(|_| client.feed(&list) == Step::Consumed { n: 16 }).count();
    assert_eq!(answered, 1024);
    assert!(matches!(client.feed(&list), Step::Close { violation: Some(_), .. }));
}

#[test]
fn resizing_moves_the_end() {
    let mut client = simple();
    client.session.resize((256 << 20) + 1);
    assert!(matches!(client.command(0, CMD_READ, 200 << 20, 512), Step::Request { .. }));
    client.session.resize(1 << 20);
    assert_eq!(client.command(0, CMD_READ, 200 << 20, 512), Step::Consumed { n: 28 });
}

proptest::proptest! {
    /// Whatever arrives, in whatever pieces: no panic, no step that consumes more than there is, and no standstill.
    #[test]
    fn any_bytes_are_survived(
        start in 0usize..3,
        chunks in proptest::collection::vec((0u32..14, proptest::collection::vec(0u8..=255, 0..80)), 0..12),
    ) {
        let mut client = match start {
            0 => Client::connect(one()),
            1 => simple(),
            _ => structured(),
        };
        let mut input = Vec::new();
        for (number, bytes) in chunks {
            match number % 3 {
                0 => input.extend(bytes),
                1 => {
                    input.extend(IHAVEOPT.to_be_bytes());
                    input.extend(number.to_be_bytes());
                    input.extend((bytes.len() as u32).to_be_bytes());
                    input.extend(bytes);
                }
                _ => {
                    let flags = u16::from(bytes.len() as u8 & 15);
                    input.extend(command(flags, number as u16, bytes.len() as u64 * 512, 512));
                }
            }
            let mut steps = 0;
            loop {
                steps += 1;
                assert!(steps < 1000);
                match client.feed(&input) {
                    Step::NeedMore { at_least } => {
                        assert!(at_least > input.len() && at_least <= PARSE_MAX);
                        break;
                    }
                    Step::Consumed { n } | Step::BlockStatus { n, .. } => drop(input.drain(..n)),
                    Step::Request { n, payload_len, .. } => {
                        input.drain(..n);
                        let payload = (payload_len as usize).min(input.len());
                        input.drain(..payload);
                    }
                    Step::Close { n, .. } => {
                        input.drain(..n);
                        break;
                    }
                }
            }
        }
    }
}
