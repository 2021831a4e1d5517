//! Readers of bytes: packets, metadata, texts, front ends. Each function says what must hold for any input.

use crate::input::Input;
use std::path::Path;
use units::{BitSet, ByteLen, NodeId, VolumeNr};
use wire::{BitmapReceiver, ConnectionFeatures, Dialect, Features, Packet, Step, StreamDecoder, Version};

/// Bytes after the features packet of a data stream in some dialect: every packet that is cut out re-emits, and parses
/// to the same.
pub fn wire_data_stream(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let Dialect { version, features } = any_dialect(&mut input);
    let own = if version.is_9() { ConnectionFeatures { features, ..OFFER_9 } } else { ConnectionFeatures::OFFER };
    let offer = ConnectionFeatures { features, ..own };
    let theirs = ConnectionFeatures { protocol_max: version.number(), ..offer };
    let mut decoder = StreamDecoder::data(offer);
    if input.one_in(8) {
        return cut_packets(decoder, Dialect::HANDSHAKE, input.bytes(usize::MAX));
    }
    let mut hello = Vec::new();
    let packet = Packet::ConnectionFeatures(theirs);
    packet.emit(VolumeNr(0), &Dialect::HANDSHAKE, &mut hello).expect("a features packet can always be sent");
    decoder.step(&hello).expect("both speak 86");
    let dialect = decoder.dialect().expect("agreed");
    cut_packets(decoder, dialect, input.bytes(usize::MAX));
}

/// The same for a control stream.
pub fn wire_control_stream(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let dialect = any_dialect(&mut input);
    cut_packets(StreamDecoder::control(dialect), dialect, input.bytes(usize::MAX));
}

const OFFER_9: ConnectionFeatures = ConnectionFeatures::of_9(NodeId::new(0).unwrap(), NodeId::new(1).unwrap());

/// 8.4's or 9's, with any of its features.
fn any_dialect(input: &mut Input<'_>) -> Dialect {
    let (features, n) = (Features(input.u16().into()), input.u8());
    let number = if n & 0x80 == 0 { 86 + u32::from(n % 16) } else { 118 + u32::from(n % 7) };
    let version = Version::new(number).expect("86 to 101 or 118 to 124");
    // Nodes that mix version 121 with this feature are refused.
    let early = if number == 121 { Features::RESYNC_DAGTAG } else { Features::NONE };
    let all = if version.is_9() { Features::ALL } else { Features::OF_84 };
    Dialect { version, features: features.and(all).without(early) }
}

fn cut_packets(mut decoder: StreamDecoder, mut dialect: Dialect, bytes: &[u8]) {
    let mut rest = bytes;
    loop {
        match decoder.step(rest) {
            Ok(Step::NeedMore(n)) => {
                assert!(n > rest.len() && n <= wire::MAX_PACKET, "{n} bytes wanted, {} are there", rest.len());
                return;
            }
            Ok(Step::Packet(found)) => {
                assert!(
                    found.consumed > 0 && found.consumed <= wire::MAX_PACKET && found.payload_len <= wire::MAX_BLOCK
                );
                assert_eq!(u64::from(found.payload_len), found.packet.payload_len());
                emits_again(&found.packet, found.volume, &dialect);
                dialect = decoder.dialect().unwrap_or(dialect);
                rest = &rest[found.consumed..];
                rest = rest.get(found.payload_len as usize..).unwrap_or_default();
            }
            Err(violation) => {
                assert!(!violation.to_string().is_empty());
                let _ = violation.reaction();
                return;
            }
        }
    }
}

/// What was received can be sent, unless it is only for reading.
fn emits_again(packet: &Packet, volume: VolumeNr, dialect: &Dialect) {
    let mut out = Vec::new();
    if packet.emit(volume, dialect, &mut out).is_ok() {
        assert!(out.len() <= wire::MAX_PACKET);
    }
}

/// The first bytes of an accepted connection.
pub fn wire_first_packet(bytes: &[u8]) {
    match wire::first_packet(bytes) {
        Ok(None) => assert!(bytes.len() < wire::FIRST_PACKET_LEN),
        Ok(Some(_)) => assert!(bytes.len() >= wire::FIRST_PACKET_LEN),
        Err(violation) => assert!(!violation.to_string().is_empty()),
    }
}

/// Bitmap packets of any content for a bitmap of any size: runs come in ascending order and stay inside.
pub fn bitmap_code(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let version = Version::new(if input.flag() { 101 } else { 95 }).expect("known versions");
    let dialect = Dialect { version, features: Features::OF_84 };
    let bits = input.odd().min(1 << 20);
    let mut receiver = BitmapReceiver::new(&dialect, bits);
    let mut decoder = StreamDecoder::control(dialect);
    let _ = decoder.step(&[]);
    let mut set = BitSet::new(bits);
    let mut before = 0;
    for _ in 0..64 {
        if input.is_empty() {
            return;
        }
        let mut run = |from: u64, to: u64| {
            // A plain packet begins with the word that a coded one ended in.
            assert!(from < to && from >= before / 64 * 64 && to <= bits, "run {from}..{to} of {bits} after {before}");
            before = to;
            set.set_range(from, to);
        };
        let result = if input.flag() {
            let Some(code) = compressed(&mut input, &dialect) else { return };
            receiver.compressed(&code, &mut run)
        } else {
            let n = input.below(520) as usize;
            let words: Vec<u64> = (0..n).map(|_| input.u64()).collect();
            receiver.plain(&words, &mut run)
        };
        match result {
            Ok(true) => break,
            Ok(false) => {}
            Err(violation) => return assert!(!violation.to_string().is_empty()),
        }
    }
    // What was understood can be said again.
    let mut sender = wire::BitmapSender::new(&dialect, true);
    let mut other = BitmapReceiver::new(&dialect, bits);
    let mut copy = BitSet::new(bits);
    while let Some(packet) = sender.next_packet(&set) {
        let mut put = |from, to| {
            copy.set_range(from, to);
        };
        let done = match &packet {
            Packet::Bitmap(words) => other.plain(words, &mut put),
            Packet::CompressedBitmap(code) => other.compressed(code, &mut put),
            _ => panic!("not a bitmap packet: {packet:?}"),
        };
        done.expect("our own bitmap is understood");
    }
    assert_eq!(copy, set);
}

/// A run-length packet from raw bytes, by way of the stream decoder as no other way is public.
fn compressed(input: &mut Input<'_>, dialect: &Dialect) -> Option<wire::CompressedBitmap> {
    let mut decoder = StreamDecoder::data(ConnectionFeatures::OFFER);
    let mut hello = Vec::new();
    let theirs = ConnectionFeatures { protocol_max: dialect.version.number(), ..ConnectionFeatures::OFFER };
    Packet::ConnectionFeatures(theirs).emit(VolumeNr(0), &Dialect::HANDSHAKE, &mut hello).ok()?;
    decoder.step(&hello).ok()?;
    let n = input.below(600) as usize;
    let code = input.bytes(n);
    let header = wire::Header {
        volume: VolumeNr(0),
        command: wire::Command::CompressedBitmap.number(),
        length: 1 + code.len() as u32,
    };
    let format = wire::HeaderFormat::choose(dialect.version, header.length);
    let mut bytes = header.emit(format)?[..format.size()].to_vec();
    bytes.push(input.u8() & 0xf0 | 2);
    bytes.extend_from_slice(code);
    match decoder.step(&bytes) {
        Ok(Step::Packet(found)) => match found.packet {
            Packet::CompressedBitmap(code) => Some(code),
            other => panic!("sent a compressed bitmap, got {other:?}"),
        },
        _ => None,
    }
}

/// 4096 bytes that may be a superblock: what is accepted is legal, fits its device and round-trips.
pub fn superblock(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let kind = match input.u8() % 4 {
        0 => meta::MetaDisk::Internal,
        1 => meta::MetaDisk::FlexExternal,
        n => meta::MetaDisk::Indexed(n),
    };
    let version = if input.flag() { meta::Version::V09 } else { meta::Version::V08 };
    let device = ByteLen(1 << (20 + input.u8() % 20));
    let mut block = fresh_superblock(version, kind, device);
    if input.one_in(4) {
        for byte in block.iter_mut() {
            *byte = input.u8();
        }
    } else {
        for _ in 0..12 {
            let at = input.below(1400) as usize;
            let n = usize::from(input.u8() % 9);
            block[at..at + n].copy_from_slice(&input.u64().to_be_bytes().repeat(2)[..n]);
            if input.is_empty() {
                break;
            }
        }
    }
    if let Ok(parsed) = meta::Superblock::parse(&block) {
        assert_eq!(meta::Superblock::parse(&parsed.emit()).as_ref(), Ok(&parsed));
        let _ = meta::gi::legend(&parsed, NodeId::new(31).expect("a node id"));
    }
    if let Ok(found) = meta::find::check(kind, device, &block) {
        assert!(found.superblock.effective_size <= found.layout.capacity());
        assert!(found.layout.superblock_at().0 + 4096 <= device.0);
        let _ = meta::find::check_attach(&found, NodeId::new(0));
    }
    let _ = meta::existing::detect(&block[..]);
}

fn fresh_superblock(version: meta::Version, kind: meta::MetaDisk, device: ByteLen) -> Box<meta::Block> {
    let geometry = meta::Geometry::new(1, 4096, meta::AlShape::DEFAULT).expect("the default geometry");
    let device = if meta::Layout::new(kind, geometry, device).is_ok() { device } else { ByteLen(1 << 30) };
    let layout = meta::Layout::new(kind, geometry, device).expect("1 GiB is enough");
    meta::Superblock::fresh(version, &layout).emit()
}

/// A ring of any content: replay names only extents that a 32-bit log can name, and never panics.
pub fn activity_log(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let shape = meta::AlShape::DEFAULT;
    let format = [meta::superblock::Format::V08, meta::superblock::Format::V08InUse, meta::superblock::Format::V09];
    let format = input.pick(&format);
    let al_extents = input.odd() as u32;
    let mut ring = written_ring(&mut input, shape);
    while !input.is_empty() {
        let at = input.below(ring.len() as u64) as usize;
        ring[at] ^= input.u8();
    }
    let mut cut = ring.clone();
    cut.pop();
    assert!(meta::activity_log::replay::replay(&cut, shape, format, al_extents).is_err());
    if let Ok(replayed) = meta::activity_log::replay::replay(&ring, shape, format, al_extents) {
        assert!(replayed.hot.len() <= ring.len() / 4, "more extents than the ring has words");
    }
}

/// What a log that was in use looks like.
fn written_ring(input: &mut Input<'_>, shape: meta::AlShape) -> Vec<u8> {
    let mut ring = vec![0; shape.bytes().0 as usize];
    let mut log = meta::ActivityLog::new(67, shape, input.u32());
    for _ in 0..input.u8() % 40 {
        let extent = meta::ExtentRange::single(input.u32() % 4096);
        let _ = log.acquire(extent);
        let Some(transaction) = log.start_transaction() else { continue };
        let mut block = Box::new([0; meta::BLOCK_LEN]);
        log.emit_block(&mut block);
        let at = transaction.block_index as usize * meta::BLOCK_LEN;
        ring[at..at + meta::BLOCK_LEN].copy_from_slice(&block[..]);
        log.commit();
        log.release(extent);
    }
    ring
}

/// Text that may be a dump of metadata.
pub fn dump_text(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    match meta::dump::parse(&text) {
        Ok(dump) => {
            for version in [meta::Version::V08, meta::Version::V09] {
                let kind = meta::MetaDisk::Internal;
                let _ = meta::dump::restore(&dump, version, kind, ByteLen(64 << 20), None, true);
            }
        }
        Err(e) => assert!(e.line >= 1 && !e.message.is_empty()),
    }
    let _ = meta::lkbd::LastKnown::parse(&text);
}

/// Text that may be a configuration: an error says where and ends with a documented status; what is accepted can be
/// dumped and read again.
pub fn drbd_conf(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    let (files, options) = (config::Memory::default(), config::LoadOptions::default());
    let host = config::ThisHost::named("alpha");
    match config::load_text(&files, Path::new("/etc/drbd.conf"), &text, &options) {
        Err(errors) => {
            assert!(errors.iter().count() > 0 && !errors.to_string().is_empty());
            assert!(matches!(errors.exit_code(), 1 | 10 | 20));
        }
        Ok(loaded) => {
            let dumped = loaded.dump(&host, false, &[]);
            let again = config::load_text(&files, Path::new("/etc/drbd.conf"), &dumped, &options);
            assert!(text.contains("stacked-on-top-of") || again.is_ok(), "{dumped}\n{again:?}");
            let _ = loaded.resources_for(&host);
        }
    }
}

/// Bytes on the control socket, in pieces, read as requests and as replies.
pub fn control_messages(bytes: &[u8]) {
    let (mut requests, mut replies) = (control::frame::Decoder::default(), control::frame::Decoder::default());
    let mut input = Input::new(bytes);
    while !input.is_empty() {
        let n = usize::from(input.u8()) + 1;
        let piece = input.bytes(n);
        requests.push(piece);
        replies.push(piece);
        while let Some(found) = requests.message::<control::Request>().transpose() {
            let Ok(request) = found else { continue };
            let mut again = control::frame::Decoder::default();
            again.push(&control::frame::encode(&request));
            assert_eq!(again.message::<control::Request>(), Ok(Some(request)));
        }
        while let Some(found) = replies.message::<control::Reply>().transpose() {
            let _ = found;
        }
    }
}

/// Bytes of an NBD client, from the negotiation on: every request that comes out is inside its export.
pub fn nbd(bytes: &[u8]) {
    use frontends::nbd::{PARSE_MAX, Session, Step};
    let exports = [frontends::Export::new(0, "r0/0", 1 << 20), frontends::Export::new(1, "r0/1", 4096).read_only()];
    let mut input = Input::new(bytes);
    let mut out = Vec::new();
    let mut session = Session::start(&mut out);
    let mut received = Vec::new();
    if input.flag() {
        received.extend_from_slice(&nbd_hello());
    }
    received.extend_from_slice(input.bytes(usize::MAX));
    let mut rest = &received[..];
    for _ in 0..=received.len() + 8 {
        let consumed = match session.parse(rest, &exports, &mut out) {
            Step::NeedMore { at_least } => {
                assert!(at_least > rest.len() && at_least <= PARSE_MAX);
                return;
            }
            Step::Consumed { n } => n,
            Step::Request { n, request, payload_len } => {
                let export = session.export().expect("transmission has an export");
                assert!(request.offset.checked_add(u64::from(request.len)).is_some_and(|end| end <= export.size));
                let _ = session.reply(&request, Ok(()));
                (n + payload_len as usize).min(rest.len())
            }
            Step::BlockStatus { n, .. } => n,
            Step::Close { n, .. } => {
                assert!(n <= rest.len());
                return;
            }
        };
        assert!(consumed <= rest.len());
        rest = &rest[consumed..];
        assert!(out.len() <= 1 << 20 || received.len() > 1 << 16, "the answers are longer than the questions");
    }
    panic!("the session does not come to an end with {} bytes of input", received.len());
}

/// Client flags and NBD_OPT_EXPORT_NAME: straight to the transmission phase.
fn nbd_hello() -> Vec<u8> {
    let mut hello = 1u32.to_be_bytes().to_vec();
    hello.extend_from_slice(b"IHAVEOPT");
    hello.extend_from_slice(&1u32.to_be_bytes());
    hello.extend_from_slice(&4u32.to_be_bytes());
    hello.extend_from_slice(b"r0/0");
    hello
}

/// Messages as from the kernel's FUSE device.
pub fn fuse(bytes: &[u8]) {
    use frontends::fuse::{Event, Session};
    let exports = vec![frontends::Export::new(0, "r0/0", 1 << 20)];
    let mut session = Session::new(exports, (0, 0));
    let mut input = Input::new(bytes);
    let mut out = Vec::new();
    while !input.is_empty() {
        let n = usize::from(input.u16() % 600);
        let mut message = input.bytes(n).to_vec();
        if message.len() >= 40 && input.flag() {
            // A length that is right lets the rest be looked at.
            let len = message.len() as u32;
            message[..4].copy_from_slice(&len.to_ne_bytes());
            message[4] = input.u8() % 64;
            message[5..8].fill(0);
        }
        if let Event::Request { request, payload, .. } = session.parse(&message, &mut out) {
            assert!(payload.end <= message.len());
            assert!(request.offset.checked_add(u64::from(request.len)).is_some_and(|end| end <= 1 << 20));
            let _ = Session::reply(&request, Ok(()));
        }
        assert!(out.len() <= 1 << 20);
        out.clear();
    }
}
