//! Decoders as they are after the handshake with a peer.

use units::{NodeId, VolumeNr};
use urbd_wire::{
    AfterSplitBrain, AlgName, ConnectionFeatures, Dialect, Features, Packet, Protocol, ReplicationProtocol, Socket,
    Step, StreamDecoder, Version,
};

/// The dialect of a version and features.
pub(crate) fn dialect(version: u32, features: Features) -> Dialect {
    Dialect { version: Version::new(version).unwrap(), features }
}

/// A P_PROTOCOL with defaults.
pub(crate) fn protocol(integrity_alg: &str) -> Protocol {
    Protocol {
        protocol: ReplicationProtocol::C,
        after_sb_0pri: AfterSplitBrain::Disconnect,
        after_sb_1pri: AfterSplitBrain::Disconnect,
        after_sb_2pri: AfterSplitBrain::Disconnect,
        discard_my_data: false,
        dry_run: false,
        two_primaries: false,
        integrity_alg: AlgName::new(integrity_alg).unwrap(),
    }
}

/// A decoder that has agreed on `dialect` and, on the data stream, has read the peer's P_PROTOCOL.
pub(crate) fn decoder(socket: Socket, dialect: Dialect, integrity_alg: &str) -> StreamDecoder {
    if socket == Socket::Control {
        return StreamDecoder::control(dialect);
    }
    let node = |n| NodeId::new(n).unwrap();
    let own =
        if dialect.version.is_9() { ConnectionFeatures::of_9(node(0), node(1)) } else { ConnectionFeatures::OFFER };
    let mut decoder = StreamDecoder::data(own);
    let (protocol_max, features) = (dialect.version.number(), dialect.features);
    let offer = ConnectionFeatures { protocol_max, features, ..ConnectionFeatures::OFFER };
    feed(&mut decoder, &Packet::ConnectionFeatures(offer), &Dialect::HANDSHAKE);
    assert_eq!(decoder.dialect(), Some(dialect));
    feed(&mut decoder, &Packet::Protocol(Box::new(protocol(integrity_alg))), &dialect);
    decoder
}

fn feed(decoder: &mut StreamDecoder, packet: &Packet, dialect: &Dialect) {
    let mut bytes = Vec::new();
    packet.emit(VolumeNr(0), dialect, &mut bytes).unwrap();
    assert!(matches!(decoder.step(&bytes), Ok(Step::Packet(d)) if d.packet == *packet && d.consumed == bytes.len()));
}
