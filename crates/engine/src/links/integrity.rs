//! `data-integrity-alg`: digests of the data that packets carry (`docs/spec/wire-protocol.md` 5.11).

use crate::buffers::{BufId, Pool};
use crate::digests::Algorithm;
use urbd_core::Segments;
use wire::Packet;

/// What is sent carries digests by one algorithm, and what comes is checked by the one that the peer has named last: it
/// may change it while it is connected, and that does not concern what this node sends.
#[derive(Clone, Copy, Default)]
pub(super) struct Integrity {
    sent: Option<Algorithm>,
    received: Option<Algorithm>,
}

impl Integrity {
    /// Both directions by this algorithm, as nodes that connect have agreed; `None`: no digests.
    pub(super) fn of(name: Option<&str>) -> Integrity {
        let both = name.and_then(Algorithm::parse);
        Integrity { sent: both, received: both }
    }

    /// The peer has sent this: if it names an algorithm, what follows has digests by that.
    pub(super) fn hears(&mut self, packet: &Packet) {
        if let Packet::Protocol(says) | Packet::ProtocolUpdate(says) = packet {
            self.received = Algorithm::parse(says.integrity_alg.as_str());
        }
    }

    /// # Errors
    /// The data are not those that the peer has made the digest of.
    pub(super) fn check(self, packet: &Packet, bytes: &[u8]) -> Result<(), String> {
        let digest = match packet {
            Packet::Data(write) => &write.digest,
            Packet::DataReply(data) | Packet::RsDataReply(data) => &data.digest,
            _ => return Ok(()),
        };
        match self.received {
            Some(algorithm) if algorithm.digest(bytes).as_bytes() != digest.as_slice() => {
                Err("the integrity digest of a data packet does not match its payload".into())
            }
            _ => Ok(()),
        }
    }

    /// Puts the digest of its data into a packet that carries some.
    pub(super) fn sign(self, packet: &mut Packet, pool: &'static Pool, payload: &Segments) {
        let Some(algorithm) = self.sent else { return };
        let place = match packet {
            Packet::Data(write) => &mut write.digest,
            Packet::DataReply(data) | Packet::RsDataReply(data) => &mut data.digest,
            _ => return,
        };
        let mut all = Vec::new();
        let buffers: Vec<_> = payload.as_slice().iter().map(|p| (pool.share(BufId(p.id)), p)).collect();
        let pieces = buffers.iter().map(|(buf, p)| &buf.bytes()[p.offset as usize..][..p.len as usize]);
        let digest = match buffers.len() {
            1 => pieces.map(|bytes| algorithm.digest(bytes)).next(),
            _ => {
                pieces.for_each(|bytes| all.extend_from_slice(bytes));
                Some(algorithm.digest(&all))
            }
        };
        *place = digest.and_then(|d| wire::Digest::new(d.as_bytes())).unwrap_or_default();
    }
}
