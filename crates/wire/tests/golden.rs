//! Every recording of two real kernels decodes, says the same as its independent decode, and encodes to the same bytes.

mod capture;

use capture::{Connection, Flow, connections, recordings_in};
use std::net::Ipv4Addr;
use std::path::Path;
use units::{BitSet, VolumeNr};
use urbd_wire::{
    AlgName, BitmapReceiver, BitmapSender, Command, ConnectionFeatures, Decoded, Dialect, Digest, FIRST_PACKET_LEN,
    Header, Packet, Socket, Step, StreamDecoder, first_packet,
};

/// One direction of one connection, decoded.
struct Stream {
    decoded: Vec<Decoded>,
    lines: Vec<String>,
}

#[test]
fn recordings_decode_as_their_texts_say_and_encode_to_the_same_bytes() {
    let files = recordings_in("wire84");
    assert!(files.len() >= 75, "the vectors are missing: {} files", files.len());
    let mut packets = 0;
    for file in &files {
        let streams = decode_file(file);
        let mut ours: Vec<String> = streams.iter().flatten().flat_map(|s| s.lines.clone()).collect();
        let mut theirs = lines_of_text(file);
        ours.sort();
        theirs.sort();
        assert!(!ours.is_empty());
        assert_eq!(ours, theirs, "{}", file.display());
        packets += ours.len();
    }
    assert!(packets > 5000, "{packets} packets in all recordings");
}

#[test]
fn recorded_bitmaps_encode_as_the_kernel_encoded_them() {
    let mut bitmaps = 0;
    for file in &recordings_in("wire84") {
        let run_lengths = !file.to_string_lossy().contains("plain");
        for [one, other] in decode_file(file) {
            let dialect = dialect_of([&one, &other]);
            for stream in [&one, &other] {
                bitmaps += check_bitmaps(file, dialect, run_lengths, stream, [&one, &other]);
            }
        }
    }
    assert!(bitmaps > 100, "{bitmaps} bitmaps in all recordings");
}

/// Both directions of every connection of a file.
fn decode_file(file: &Path) -> Vec<[Stream; 2]> {
    let connections = connections(file);
    let dialect = connections.iter().find_map(agreed).expect("a recording holds a handshake");
    connections.iter().map(|c| decode_connection(file, c, dialect)).collect()
}

/// What the two ends of a data connection agreed on.
fn agreed(c: &Connection) -> Option<Dialect> {
    let own = offer(&c.opener.bytes, FIRST_PACKET_LEN)?;
    own.agree(&offer(&c.acceptor.bytes, 0)?).ok()
}

fn offer(bytes: &[u8], skip: usize) -> Option<ConnectionFeatures> {
    match StreamDecoder::data(ConnectionFeatures::OFFER).step(bytes.get(skip..)?) {
        Ok(Step::Packet(Decoded { packet: Packet::ConnectionFeatures(f), .. })) => Some(f),
        _ => None,
    }
}

fn decode_connection(file: &Path, c: &Connection, dialect: Dialect) -> [Stream; 2] {
    let Some(socket) = first_packet(&c.opener.bytes).unwrap() else { return [Stream::none(), Stream::none()] };
    let first = match socket {
        Socket::Data => Packet::InitialData,
        Socket::Control => Packet::InitialMeta,
    };
    let mut bytes = Vec::new();
    first.emit(VolumeNr(0), &Dialect::HANDSHAKE, &mut bytes).unwrap();
    assert_eq!(bytes, c.opener.bytes[..FIRST_PACKET_LEN]);
    let decoder = |other: &Flow, skip| match socket {
        Socket::Data => StreamDecoder::data(offer(&other.bytes, skip).unwrap_or(ConnectionFeatures::OFFER)),
        Socket::Control => StreamDecoder::control(dialect),
    };
    let mut opener = decode_flow(file, &c.opener, socket, decoder(&c.acceptor, 0), FIRST_PACKET_LEN);
    let name = if socket == Socket::Data { "data" } else { "meta" };
    opener.lines.push(format!("{} {name} h80 vol=0 {} len=0", who(&c.opener), &first.command(&dialect).name()[2..]));
    [opener, decode_flow(file, &c.acceptor, socket, decoder(&c.opener, FIRST_PACKET_LEN), 0)]
}

fn decode_flow(file: &Path, flow: &Flow, socket: Socket, mut decoder: StreamDecoder, skip: usize) -> Stream {
    let (mut rest, mut stream) = (&flow.bytes[skip..], Stream::none());
    let mut integrity = AlgName::NONE;
    loop {
        let before = decoder.clone();
        let step = decoder.step(rest).unwrap_or_else(|v| panic!("{}: {}: {v}", file.display(), who(flow)));
        let Step::Packet(d) = step else { return stream };
        let whole = d.consumed + d.payload_len as usize;
        let Some((this, after)) = rest.split_at_checked(whole) else { return stream };
        check_prefixes(&before, this, d.consumed);
        check_emit(file, &d, decoder.dialect().unwrap(), this);
        if let Packet::Protocol(p) | Packet::ProtocolUpdate(p) = &d.packet {
            integrity = p.integrity_alg;
        }
        check_integrity(&integrity, &d.packet, &this[d.consumed..]);
        stream.lines.push(line(flow, socket, &d, this));
        stream.decoded.push(d);
        rest = after;
    }
}

/// A packet that is cut off anywhere asks for more than there is and at most for all of it.
fn check_prefixes(decoder: &StreamDecoder, packet: &[u8], consumed: usize) {
    for n in 0..consumed {
        match decoder.clone().step(&packet[..n]) {
            Ok(Step::NeedMore(need)) => assert!(n < need && need <= consumed, "{n} {need} {consumed}"),
            other => panic!("{n} of {consumed} bytes gave {other:?}"),
        }
    }
}

fn check_emit(file: &Path, d: &Decoded, dialect: Dialect, recorded: &[u8]) {
    let mut ours = Vec::new();
    let sender = match d.packet {
        Packet::ConnectionFeatures(_) => Dialect::HANDSHAKE,
        // This kernel sends P_TRIM from version 95 on without having agreed on it; urbd does not.
        Packet::Trim(_) => Dialect { features: urbd_wire::Features::OF_84, ..dialect },
        _ => dialect,
    };
    d.packet.emit(d.volume, &sender, &mut ours).unwrap();
    let mut recorded = recorded[..d.consumed].to_vec();
    if matches!(
        d.packet,
        Packet::DataRequest(_) | Packet::RsDataRequest(_) | Packet::RsThinReq(_) | Packet::OvRequest(_)
    ) || matches!(d.packet, Packet::CsumRsRequest(_) | Packet::OvReply(_))
    {
        let pad = dialect.version.header_len() + 20;
        recorded[pad..pad + 4].fill(0); // kernels leave arbitrary bytes here
    }
    assert_eq!(ours, recorded, "{}: {:?}", file.display(), d.packet);
}

fn check_integrity(algorithm: &AlgName, packet: &Packet, payload: &[u8]) {
    let (Packet::Data(urbd_wire::Write { digest, .. })
    | Packet::DataReply(urbd_wire::BlockData { digest, .. })
    | Packet::RsDataReply(urbd_wire::BlockData { digest, .. })) = packet
    else {
        return;
    };
    assert_eq!(Some(digest.len()), urbd_wire::digest_len(algorithm.as_str()));
    if algorithm.as_str() == "crc32c" {
        assert_eq!(Digest::new(&crc32c::crc32c(payload).to_le_bytes()), Some(digest.clone()));
    }
}

fn line(flow: &Flow, socket: Socket, d: &Decoded, bytes: &[u8]) -> String {
    let (format, size) = match bytes[..2] {
        [0x83, 0x74] => ("h80", 8),
        [0x83, 0x5a] => ("h95", 8),
        _ => ("h100", 16),
    };
    let header = Header::parse(size == 16, bytes).unwrap().unwrap();
    let name = Command::from_number(header.command).unwrap().name();
    let stream = if socket == Socket::Data { "data" } else { "meta" };
    format!("{} {stream} {format} vol={} {} len={}", who(flow), d.volume, &name[2..], bytes.len() - size)
}

fn who(flow: &Flow) -> String {
    let name = |ip: Ipv4Addr| match ip.octets() {
        [10, 77, 0, 11] => "a",
        [10, 77, 0, 12] => "b",
        _ => "p",
    };
    format!("{}>{}", name(flow.from), name(flow.to))
}

/// The packets in the text beside a recording, without time and fields.
fn lines_of_text(file: &Path) -> Vec<String> {
    let name = file.to_string_lossy().replace(".xz", "").replace(".pcapng", ".txt");
    let text = std::fs::read_to_string(name).unwrap();
    let packets = text.lines().filter(|l| !l.starts_with('#') && l.contains(" len="));
    packets.map(|l| l.split_whitespace().skip(1).take(6).collect::<Vec<_>>().join(" ")).collect()
}

fn dialect_of(streams: [&Stream; 2]) -> Dialect {
    let offers: Vec<_> = streams
        .iter()
        .flat_map(|s| &s.decoded)
        .filter_map(|d| if let Packet::ConnectionFeatures(f) = &d.packet { Some(f) } else { None })
        .collect();
    match offers[..] {
        [a, b] => a.agree(b).unwrap(),
        _ => Dialect::HANDSHAKE, // a control connection: no bitmaps
    }
}

/// Receives every bitmap of a stream and sends what was received. Returns how many there were.
fn check_bitmaps(file: &Path, dialect: Dialect, use_rle: bool, stream: &Stream, both: [&Stream; 2]) -> usize {
    let (mut count, mut open) = (0, Vec::<&Decoded>::new());
    for d in &stream.decoded {
        if !matches!(d.packet, Packet::Bitmap(_) | Packet::CompressedBitmap(_)) {
            assert!(open.is_empty(), "{}: {:?} within a bitmap", file.display(), d.packet);
            continue;
        }
        open.push(d);
        let bits = device_bits(d.volume, both);
        if let Some(bitmap) = receive(dialect, bits, &open) {
            let mut sender = BitmapSender::new(&dialect, use_rle);
            let sent: Vec<Packet> = std::iter::from_fn(|| sender.next_packet(&bitmap)).collect();
            let recorded: Vec<Packet> = open.drain(..).map(|d| d.packet.clone()).collect();
            assert_eq!(sent, recorded, "{}: bitmap of {bits} bits", file.display());
            count += 1;
        }
    }
    assert!(open.is_empty(), "{}: a bitmap without end", file.display());
    count
}

fn receive(dialect: Dialect, bits: u64, packets: &[&Decoded]) -> Option<BitSet> {
    let (mut receiver, mut bitmap, mut done) = (BitmapReceiver::new(&dialect, bits), BitSet::new(bits), false);
    for d in packets {
        assert!(!done);
        let set = |from, to| {
            bitmap.set_range(from, to);
        };
        done = match &d.packet {
            Packet::Bitmap(words) => receiver.plain(words, set).unwrap(),
            Packet::CompressedBitmap(c) => receiver.compressed(c, set).unwrap(),
            other => panic!("{other:?}"),
        };
    }
    done.then_some(bitmap)
}

/// The smaller of both nodes' disks, in bitmap bits.
fn device_bits(volume: VolumeNr, streams: [&Stream; 2]) -> u64 {
    let disks = streams.iter().flat_map(|s| &s.decoded).filter(|d| d.volume == volume);
    let sizes = disks.filter_map(|d| if let Packet::Sizes(s) = &d.packet { Some(s.disk_size.0) } else { None });
    sizes.filter(|&s| s > 0).min().unwrap().div_ceil(8)
}

impl Stream {
    fn none() -> Stream {
        Stream { decoded: Vec::new(), lines: Vec::new() }
    }
}
