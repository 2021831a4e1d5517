//! What nodes said to each other in a recording of `vectors/wire9/` or `vectors/wire9live/`, packet by packet, in the
//! order of their times.

use crate::capture::{Connection, Flow, connections_joined, recordings_in};
use std::net::Ipv4Addr;
use units::{Instant, NodeId, VolumeNr};
use wire::{
    AfterSplitBrain, AlgName, ConnectionFeatures, Dialect, FIRST_PACKET_LEN, Features, Packet, Protocol,
    ReplicationProtocol, Socket, Step, StreamDecoder, Version, first_packet,
};

/// What two 9.3.3 agree on.
pub(crate) const OF_9_3: Dialect = Dialect { version: Version::MAX, features: Features::ALL };

/// A packet of a recording.
#[derive(Clone, Debug)]
pub(crate) struct Said {
    /// The number of the recording.
    pub(crate) recording: u8,
    /// When its last byte passed the bridge between the nodes.
    pub(crate) at: Instant,
    pub(crate) from: NodeId,
    pub(crate) to: NodeId,
    pub(crate) stream: Socket,
    pub(crate) volume: VolumeNr,
    pub(crate) packet: Packet,
}

/// Everything that the nodes say in the recording whose name begins with `number`.
pub(crate) fn conversation(number: &str) -> Vec<Said> {
    let of_number = |name: &str| name.starts_with(&format!("{number}-"));
    let named = |p: &std::path::PathBuf| of_number(&p.file_name().unwrap().to_string_lossy());
    let file = recordings_in("wire9").into_iter().find(named).expect("a recording of this number");
    // Configured to send digests of data.
    let integrity = if number == "24" { "crc32c" } else { "" };
    let mut all = said_in(&connections_joined(&file), integrity, &node);
    let recording = number.parse().expect("a number");
    all.iter_mut().for_each(|said| said.recording = recording);
    crate::coverage::note_recording(recording, &all);
    all
}

/// Everything that an urbd and live kernels say to each other in the recording whose name begins with `number`. They
/// name their node ids when a connection begins.
pub(crate) fn live_conversation(number: &str) -> Vec<Said> {
    let connections = connections_joined(&live(number));
    let mut ids: Vec<(Ipv4Addr, NodeId)> = Vec::new();
    for flow in connections.iter().flat_map(|c| [&c.opener, &c.acceptor]) {
        // The first packet of the data stream, behind the one that tells the streams apart.
        let offers = [0, FIRST_PACKET_LEN].into_iter().filter_map(|skip| flow.bytes.get(skip..));
        for bytes in offers.filter(|bytes| bytes.starts_with(&[0x83, 0x74, 0x02, 0x67, 0xff, 0xfe])) {
            let word = bytes[20..24].try_into().expect("72 bytes");
            ids.push((flow.from, NodeId::new(u32::from_be_bytes(word) as u8).expect("a node id")));
        }
    }
    let node = |address| ids.iter().find(|(of, _)| *of == address).expect("it says who it is").1;
    said_in(&connections, "", &node)
}

/// The same where they do not, as the recording begins on an established connection. `nodes`: by their node ids, the
/// last numbers of their addresses.
pub(crate) fn conversation_live(number: &str, nodes: &[u8]) -> Vec<Said> {
    let node = |address: Ipv4Addr| {
        let place = nodes.iter().position(|last| *last == address.octets()[3]).expect("a node of the recording");
        NodeId::new(place as u8).expect("a node id")
    };
    said_in(&connections_joined(&live(number)), "", &node)
}

/// What is said on these connections, in the order of times.
fn said_in(connections: &[Connection], integrity: &str, node: &impl Fn(Ipv4Addr) -> NodeId) -> Vec<Said> {
    let mut all: Vec<Said> = connections.iter().flat_map(|c| said_on(c, integrity, node)).collect();
    all.sort_by_key(|said| said.at);
    all
}

fn live(number: &str) -> std::path::PathBuf {
    let named = |p: &std::path::PathBuf| p.file_name().unwrap().to_string_lossy().starts_with(&format!("{number}-"));
    recordings_in("wire9live").into_iter().find(named).expect("a recording of this number")
}

fn said_on(c: &Connection, integrity: &str, node: &impl Fn(Ipv4Addr) -> NodeId) -> Vec<Said> {
    if c.opener.bytes.is_empty() && c.acceptor.bytes.is_empty() {
        return Vec::new();
    }
    let (socket, skip) = match c.joined {
        true if [&c.opener, &c.acceptor].iter().all(|f| flow(f, Socket::Control, 0, "", node).is_some()) => {
            (Socket::Control, 0)
        }
        true => (Socket::Data, 0),
        // One too many: both nodes dial.
        false => match first_packet(&c.opener.bytes).unwrap() {
            Some(socket) => (socket, FIRST_PACKET_LEN),
            None => return Vec::new(),
        },
    };
    let both = [flow(&c.opener, socket, skip, integrity, node), flow(&c.acceptor, socket, 0, integrity, node)];
    both.into_iter().flat_map(|flow| flow.expect("packets of 9's dialect")).collect()
}

fn node(address: Ipv4Addr) -> NodeId {
    NodeId::new(address.octets()[3] - 11).expect("a node of the recordings")
}

/// What was said of the options before a recording of connected nodes began.
fn protocol(integrity: &str) -> Protocol {
    Protocol {
        protocol: ReplicationProtocol::C,
        after_sb_0pri: AfterSplitBrain::Disconnect,
        after_sb_1pri: AfterSplitBrain::Disconnect,
        after_sb_2pri: AfterSplitBrain::Disconnect,
        discard_my_data: false,
        dry_run: false,
        two_primaries: false,
        integrity_alg: AlgName::new(integrity).unwrap(),
    }
}

/// The packets that one end sent; `None` if these are not those of such a stream.
fn flow(
    flow: &Flow,
    stream: Socket,
    skip: usize,
    integrity: &str,
    node: &impl Fn(Ipv4Addr) -> NodeId,
) -> Option<Vec<Said>> {
    let offer = ConnectionFeatures::of_9(NodeId::new(0).unwrap(), NodeId::new(1).unwrap());
    let mut decoder = match stream {
        Socket::Data => StreamDecoder::data(offer),
        Socket::Control => StreamDecoder::control(OF_9_3),
    };
    let (mut at, mut out) = (skip, Vec::new());
    let mut introduced = flow.bytes.get(skip..).is_some_and(|bytes| bytes.starts_with(&[0x83, 0x74, 0x02, 0x67]));
    if stream == Socket::Data && !introduced {
        let mut bytes = Vec::new();
        Packet::ConnectionFeatures(offer).emit(VolumeNr(0), &Dialect::HANDSHAKE, &mut bytes).unwrap();
        decoder.step(&bytes).unwrap();
        bytes.clear();
        Packet::Protocol(Box::new(protocol(integrity))).emit(VolumeNr::NONE, &OF_9_3, &mut bytes).unwrap();
        decoder.step(&bytes).unwrap();
        introduced = true;
    }
    while at < flow.bytes.len() {
        let Ok(Step::Packet(found)) = decoder.step(&flow.bytes[at..]) else { return None };
        at += found.consumed + found.payload_len as usize;
        let time = flow.times.iter().find(|(bytes, _)| *bytes >= at)?.1;
        let (volume, packet) = (found.volume, found.packet);
        let recording = 0;
        out.push(Said {
            recording,
            at: Instant(time),
            from: node(flow.from),
            to: node(flow.to),
            stream,
            volume,
            packet,
        });
    }
    debug_assert!(introduced || stream == Socket::Control);
    Some(out)
}
