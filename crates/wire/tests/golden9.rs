//! Every recording of real DRBD 9 kernels decodes, holds the packets that its description counts, and encodes to the
//! same bytes.

mod capture;

use capture::{Connection, Flow, connections_joined, recordings_in};
use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::path::Path;
use units::{NodeId, VolumeNr};
use urbd_wire::{
    AfterSplitBrain, AlgName, ConnectionFeatures, Decoded, Dialect, FIRST_PACKET_LEN, Features, Packet, Protocol,
    ReplicationProtocol, Socket, Step, StreamDecoder, Version, first_packet,
};

/// How often each packet is in a recording, by its name.
type Counts = BTreeMap<String, usize>;

/// What the nodes of a recording agreed on, by the lower of both addresses and the higher.
type Dialects = BTreeMap<(Ipv4Addr, Ipv4Addr), Dialect>;

/// A section of the descriptions: its packets, and the configured data-integrity-alg.
#[derive(Default)]
struct Described {
    counts: Counts,
    integrity: String,
}

/// What two 9.3.3 agree on, where the recording begins later.
const OF_9_3: Dialect = Dialect { version: Version::MAX, features: Features::ALL };

#[test]
fn recordings_decode_as_they_are_described_and_encode_to_the_same_bytes() {
    let (described, files) = (descriptions(), recordings_in("wire9"));
    assert_eq!(files.len(), described.len(), "recordings, and descriptions of recordings");
    let mut all = Counts::new();
    for file in &files {
        let name = file.file_name().unwrap().to_string_lossy().replace(".pcapng.xz", "");
        let counts = decode_file(file, &described[&name].integrity);
        assert_eq!(counts, described[&name].counts, "{name}");
        counts.into_iter().for_each(|(packet, n)| *all.entry(packet).or_default() += n);
    }
    assert!(all.values().sum::<usize>() > 10_000, "{all:?}");
    for packet in ["P_TWOPC_PREP_RSZ", "P_TWOPC_ABORT", "P_TWOPC_RETRY", "P_FLUSH_FORWARD", "P_PEER_DAGTAG"] {
        assert!(all.contains_key(packet), "{packet} is in no recording");
    }
}

/// The line "Packets: P_BARRIER 3, …" of each section of the descriptions, and what its configuration says.
fn descriptions() -> BTreeMap<String, Described> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../vectors/wire9");
    let (mut out, mut section) = (BTreeMap::<String, Described>::new(), String::new());
    for name in ["README.md", "README-47-75.md"] {
        for line in std::fs::read_to_string(folder.join(name)).unwrap().lines() {
            if let Some(title) = line.strip_prefix("## ") {
                section = title.to_owned();
            }
            if let Some(list) = line.strip_prefix("Packets: ") {
                let counts = list.split(", ").map(|item| item.rsplit_once(' ').unwrap());
                let counts = counts.map(|(packet, n)| (packet.to_owned(), n.parse().unwrap())).collect();
                let described = Described { counts, integrity: String::new() };
                assert!(out.insert(section.clone(), described).is_none(), "{section} is described twice");
            }
            if let Some((_, rest)) = line.split_once("; data-integrity-alg ") {
                out.get_mut(&section).unwrap().integrity = rest.split(';').next().unwrap().to_owned();
            }
        }
    }
    out
}

fn decode_file(file: &Path, integrity: &str) -> Counts {
    let connections = connections_joined(file);
    let dialects: Dialects = connections.iter().filter_map(|c| Some((pair(&c.opener), agreed(c)?))).collect();
    let mut counts = Counts::new();
    for c in &connections {
        let dialect = dialects.get(&pair(&c.opener)).copied().unwrap_or(OF_9_3);
        decode_connection(file, c, (dialect, integrity), &mut counts);
    }
    counts
}

fn pair(flow: &Flow) -> (Ipv4Addr, Ipv4Addr) {
    (flow.from.min(flow.to), flow.from.max(flow.to))
}

/// What the two ends of a data connection agreed on.
fn agreed(c: &Connection) -> Option<Dialect> {
    let first = |bytes: &[u8]| match StreamDecoder::data(any_offer()).step(bytes) {
        Ok(Step::Packet(Decoded { packet: Packet::ConnectionFeatures(f), .. })) => Some(f),
        _ => None,
    };
    let opener = first(c.opener.bytes.get(FIRST_PACKET_LEN..)?)?;
    opener.agree(&first(&c.acceptor.bytes)?).ok()
}

fn any_offer() -> ConnectionFeatures {
    ConnectionFeatures::of_9(NodeId::new(0).unwrap(), NodeId::new(1).unwrap())
}

fn offer_of(dialect: Dialect) -> ConnectionFeatures {
    ConnectionFeatures { protocol_max: dialect.version.number(), features: dialect.features, ..any_offer() }
}

fn decode_connection(file: &Path, c: &Connection, (dialect, integrity): (Dialect, &str), counts: &mut Counts) {
    if c.opener.bytes.is_empty() && c.acceptor.bytes.is_empty() {
        return; // both nodes dial, and one connection too many is closed
    }
    let (socket, skip) = match c.joined {
        true => (socket_of(file, c, (dialect, integrity)), 0),
        false => {
            let Some(socket) = first_packet(&c.opener.bytes).unwrap() else { return };
            let name = if socket == Socket::Data { "P_INITIAL_DATA" } else { "P_INITIAL_META" };
            *counts.entry(name.to_owned()).or_default() += 1;
            (socket, FIRST_PACKET_LEN)
        }
    };
    let decoder = || match (socket, c.joined) {
        (Socket::Data, false) => StreamDecoder::data(offer_of(dialect)),
        (Socket::Data, true) => running(dialect, integrity),
        (Socket::Control, _) => StreamDecoder::control(dialect),
    };
    decode_flow(file, &c.opener.bytes[skip..], dialect, decoder(), counts);
    decode_flow(file, &c.acceptor.bytes, dialect, decoder(), counts);
}

/// A decoder of a data stream that has agreed on `dialect`, and has read the peer's P_PROTOCOL.
fn running(dialect: Dialect, integrity: &str) -> StreamDecoder {
    let mut decoder = StreamDecoder::data(any_offer());
    let mut bytes = Vec::new();
    Packet::ConnectionFeatures(offer_of(dialect)).emit(VolumeNr(0), &Dialect::HANDSHAKE, &mut bytes).unwrap();
    assert!(matches!(decoder.step(&bytes), Ok(Step::Packet(_))));
    let protocol = Protocol {
        protocol: ReplicationProtocol::C,
        after_sb_0pri: AfterSplitBrain::Disconnect,
        after_sb_1pri: AfterSplitBrain::Disconnect,
        after_sb_2pri: AfterSplitBrain::Disconnect,
        discard_my_data: false,
        dry_run: false,
        two_primaries: false,
        integrity_alg: AlgName::new(integrity).unwrap(),
    };
    bytes.clear();
    Packet::Protocol(Box::new(protocol)).emit(VolumeNr::NONE, &dialect, &mut bytes).unwrap();
    assert!(matches!(decoder.step(&bytes), Ok(Step::Packet(_))));
    decoder
}

/// Which stream a connection is that was there before the recording: what it carries is on one of them only.
fn socket_of(file: &Path, c: &Connection, (dialect, integrity): (Dialect, &str)) -> Socket {
    let fits = |mut decoder: StreamDecoder| {
        [&c.opener, &c.acceptor].into_iter().all(|f| f.bytes.is_empty() || decoder.step(&f.bytes).is_ok())
    };
    match (fits(running(dialect, integrity)), fits(StreamDecoder::control(dialect))) {
        (true, false) => Socket::Data,
        (false, true) => Socket::Control,
        other => panic!("{}: neither stream, or both: {other:?}", file.display()),
    }
}

fn decode_flow(file: &Path, bytes: &[u8], dialect: Dialect, mut decoder: StreamDecoder, counts: &mut Counts) {
    let mut rest = bytes;
    while !rest.is_empty() {
        let step = decoder.step(rest).unwrap_or_else(|v| panic!("{}: {v}", file.display()));
        let Step::Packet(d) = step else { panic!("{}: ends within a packet", file.display()) };
        let (this, after) = rest.split_at(d.consumed + d.payload_len as usize);
        let dialect = decoder.dialect().unwrap_or(dialect);
        check_emit(file, &d, dialect, &this[..d.consumed]);
        *counts.entry(d.packet.command(&dialect).name().to_owned()).or_default() += 1;
        rest = after;
    }
}

fn check_emit(file: &Path, d: &Decoded, dialect: Dialect, recorded: &[u8]) {
    let (mut ours, mut recorded) = (Vec::new(), recorded.to_vec());
    let sender = match d.packet {
        Packet::ConnectionFeatures(_) => Dialect::HANDSHAKE,
        _ => dialect,
    };
    d.packet.emit(d.volume, &sender, &mut ours).unwrap();
    let undefined = match d.packet {
        Packet::DataRequest(_) | Packet::RsDataRequest(_) | Packet::OvRequest(_) | Packet::OvReply(_) => 36..40,
        Packet::OutOfSync(_) => 28..32,
        Packet::TwopcPrepRsz(_) => 46..52,
        _ => 0..0,
    };
    recorded[undefined].fill(0);
    if !dialect.version.is_9() && d.packet.command(&dialect).is_connection_level() && d.volume == VolumeNr::NONE {
        recorded[4..6].fill(0); // 9.3.3 keeps its own way of saying "no volume" beside 8.4; urbd says what 8.4 says
    }
    if !dialect.version.is_9() && matches!(d.packet, Packet::ConnStChgReq(_)) && recorded[22] & 0x1e == 0x12 {
        recorded[22] ^= 0x02; // 9.3.3 says UpToDate by its own number (spec 17.7)
    }
    assert_eq!(ours, recorded, "{}: {:?}", file.display(), d.packet);
}
