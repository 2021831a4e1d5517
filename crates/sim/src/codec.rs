//! Every packet goes through the wire's codec: what a core sends is what the other one can read.

use crate::cluster::Cluster;
use crate::payload::Payload;
use units::VolumeNr;
use wire::{ConnectionFeatures, Dialect, Digest, Packet, Socket, Step, StreamDecoder};

/// What a node writes and its peer reads, in the dialect that was agreed.
#[derive(Clone, Debug)]
pub(crate) struct Codec {
    dialect: Dialect,
    data: StreamDecoder,
    control: StreamDecoder,
    bytes: Vec<u8>,
    /// Data packets have a digest of their payload.
    integrity: bool,
}

impl Codec {
    pub(crate) fn new(dialect: Dialect, integrity: bool) -> Codec {
        let agreed = ConnectionFeatures {
            protocol_max: dialect.version.number(),
            features: dialect.features,
            ..ConnectionFeatures::OFFER
        };
        let mut data = StreamDecoder::data(agreed);
        let mut bytes = Vec::new();
        let sent = Packet::ConnectionFeatures(agreed).emit(VolumeNr(0), &Dialect::HANDSHAKE, &mut bytes);
        sent.expect("features can always be sent");
        data.step(&bytes).expect("features can always be read");
        Codec { dialect, data, control: StreamDecoder::control(dialect), bytes, integrity }
    }

    /// The packet as it arrives.
    fn pass(
        &mut self,
        stream: Socket,
        volume: VolumeNr,
        mut packet: Packet,
        payload: &Payload,
    ) -> Result<(VolumeNr, Packet), String> {
        self.bytes.clear();
        if self.integrity
            && let Some(digest) = place_for_digest(&mut packet)
        {
            *digest = payload.digest();
        }
        let emitted = packet.emit(volume, &self.dialect, &mut self.bytes);
        emitted.map_err(|e| format!("sent what {:?} cannot say: {packet:?}: {e:?}", self.dialect))?;
        let decoder = if stream == Socket::Data { &mut self.data } else { &mut self.control };
        match decoder.step(&self.bytes) {
            Ok(Step::Packet(found)) if found.consumed == self.bytes.len() => match digest_of(&found.packet) {
                Some(digest) if self.integrity && *digest != payload.digest() => {
                    Err(format!("a data packet arrives without its digest: {packet:?}"))
                }
                _ => Ok((found.volume, found.packet)),
            },
            other => Err(format!("sent what cannot be read: {packet:?}: {other:?}")),
        }
    }
}

/// The digest of a data packet's payload.
pub(crate) fn digest_of(packet: &Packet) -> Option<&Digest> {
    match packet {
        Packet::Data(w) => Some(&w.digest),
        Packet::DataReply(reply) | Packet::RsDataReply(reply) => Some(&reply.digest),
        _ => None,
    }
}

/// The place for it.
fn place_for_digest(packet: &mut Packet) -> Option<&mut Digest> {
    match packet {
        Packet::Data(w) => Some(&mut w.digest),
        Packet::DataReply(reply) | Packet::RsDataReply(reply) => Some(&mut reply.digest),
        _ => None,
    }
}

impl Cluster {
    /// What becomes of a packet of this node on the wire.
    pub(crate) fn encoded(
        &mut self,
        (n, peer): (usize, usize),
        stream: Socket,
        volume: VolumeNr,
        packet: Packet,
        payload: &Payload,
    ) -> Result<(VolumeNr, Packet), String> {
        match (&packet, &mut self.nodes[n].codecs[peer]) {
            (Packet::ConnectionFeatures(_), _) => Ok((volume, packet)),
            (_, Some(codec)) => codec.pass(stream, volume, packet, payload),
            (_, None) => Err(format!("sent before the dialect was agreed: {packet:?}")),
        }
    }
}
