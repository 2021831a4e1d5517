//! Payload that the network damages: with `data-integrity-alg` a receiver must find it (`docs/spec/wire-protocol.md`
//! 10.1). TCP's checksum lets about one damaged segment in 65,536 through, and some adapters damage what they have
//! checked.
//!
//! Nothing else is touched: headers, and payload without a digest, are what nobody promises to check.
//!
//! Not drawn: an application that changes its buffer while the write is under way. In DRBD that is the usual cause of a
//! mismatch, as its disk, its digest and its packet are made of the application's own pages, one after the other. A
//! front end here copies the bytes into a buffer of the pool before the core hears of the request, and disk, digest and
//! packet are made of that copy: such an application gets one content or the other, and the same one everywhere. Where
//! DRBD is the sender, the receiver sees what it sees here, a payload that is not its digest's.

use crate::cluster::{Cluster, Input};
use crate::codec::digest_of;
use crate::net::{End, Wish};
use crate::payload::{ContentId, Payload, Piece};
use units::Rng;
use urbd_core::LinkDown;
use wire::Packet;

/// What a sector holds of which a bit was flipped.
pub(crate) const DAMAGED: ContentId = 5;

/// How often a payload was damaged, and how often a receiver has found one, are counted by these names.
const BEFALLEN: &str = "payload-damaged";
const FOUND: &str = "damage-found";

/// Flips a bit in the payload, if the packet has a digest of it.
fn damage(packet: &Packet, payload: &mut Payload, rng: &mut Rng) -> bool {
    let covered = digest_of(packet).is_some_and(|digest| !digest.as_slice().is_empty());
    if !covered || payload.sectors() == 0 {
        return false;
    }
    let (sectors, at) = (payload.sectors(), rng.below(payload.sectors()));
    let origin = payload.slice(at, 1).0.first().map_or(0, |piece| piece.origin);
    let mut damaged = payload.slice(0, at);
    damaged.append(Payload(vec![Piece { sectors: 1, id: DAMAGED, origin }]));
    damaged.append(payload.slice(at + 1, sectors - at - 1));
    *payload = damaged;
    true
}

/// Is this what the sender has made the digest of?
fn fits(packet: &Packet, payload: &Payload) -> bool {
    let unlike = |digest: &wire::Digest| !digest.as_slice().is_empty() && *digest != payload.digest();
    !digest_of(packet).is_some_and(unlike)
}

impl Cluster {
    /// The network may damage what it carries.
    pub(crate) fn damage_now_and_then(&mut self, packet: &Packet, payload: &mut Payload) {
        let one_in = self.setup.drawn.damage;
        if one_in > 0 && self.rng.chance(1, one_in) && damage(packet, payload, &mut self.rng) {
            *self.reached.entry(BEFALLEN).or_default() += 1;
            self.trace.note(self.now, || format!("* damaged: {packet:?}"));
        }
    }

    /// The receiver compares payload and digest, as the engine does before its core hears of a packet. If they do not
    /// fit it ends the connection.
    pub(crate) fn is_refused(&mut self, number: u64, to: usize, packet: &Packet, payload: &Payload) -> bool {
        // Where nothing ever was, there is no need to look.
        if !self.reached.contains_key(BEFALLEN) || fits(packet, payload) {
            return false;
        }
        *self.reached.entry(FOUND).or_default() += 1;
        let Some(connection) = self.net.get(number) else { return true };
        let (side, from) = (connection.side(to), connection.other(to));
        if connection.ends[side] != End::Up || self.net.wishes[to][from] != Wish::Connected(number) {
            return true;
        }
        self.net.get(number).expect("just seen").ends[side] = End::Closed;
        self.end_streams(number, to);
        self.nodes[to].inbox.push_back(Input::LinkDown(from, number, LinkDown::Violation));
        self.wake(to);
        true
    }

    /// What was damaged on the way must not get to a disk.
    pub(crate) fn check_undamaged(&self, n: usize, content: &Payload) -> Result<(), String> {
        match content.0.iter().find(|piece| piece.id == DAMAGED) {
            Some(piece) => {
                Err(format!("node {n} writes what was damaged on the way, meant for sector {}", piece.origin))
            }
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ranges::sectors;
    use units::{ByteLen, Sector};
    use wire::{BlockData, BlockId, Digest, DpFlags, Write, WriteRange};

    fn payload() -> Payload {
        let mut payload = Payload::of_write(20, sectors(8, 12));
        payload.append(Payload::of_write(crate::payload::ZEROES, sectors(0, 4)));
        payload
    }

    fn data(digest: Digest) -> [Packet; 3] {
        let (sector, block_id, size) = (Sector(8), BlockId(7), ByteLen(4096));
        let reply = BlockData { sector, block_id, digest: digest.clone(), size };
        let write = Write { sector, block_id, seq: 1, flags: DpFlags::NONE, digest, size };
        [Packet::Data(write), Packet::DataReply(reply.clone()), Packet::RsDataReply(reply)]
    }

    #[test]
    fn one_sector_that_the_digest_covers_is_damaged_and_found() {
        let mut places = std::collections::BTreeSet::new();
        for seed in 0..100 {
            for packet in data(payload().digest()) {
                let (mut damaged, whole) = (payload(), payload());
                assert!(fits(&packet, &whole));
                assert!(damage(&packet, &mut damaged, &mut Rng::new(seed)));
                assert!(!fits(&packet, &damaged), "{damaged:?}");
                let unlike = |at: &u64| damaged.slice(*at, 1) != whole.slice(*at, 1);
                let places_now: Vec<u64> = (0..8).filter(unlike).collect();
                assert_eq!((damaged.sectors(), places_now.len()), (8, 1), "{damaged:?}");
                places.extend(places_now);
            }
        }
        assert_eq!(places.len(), 8, "any sector");
    }

    #[test]
    fn what_has_no_digest_is_never_touched() {
        let range =
            WriteRange { sector: Sector(8), block_id: BlockId(7), seq: 1, flags: DpFlags::NONE, size: ByteLen(4096) };
        let uncovered = [Packet::Ping, Packet::UnplugRemote, Packet::Trim(range), Packet::Zeroes(range)];
        for packet in data(Digest::EMPTY).into_iter().chain(uncovered) {
            for seed in 0..20 {
                let mut whole = payload();
                assert!(!damage(&packet, &mut whole, &mut Rng::new(seed)), "{packet:?}");
                assert_eq!(whole, payload(), "{packet:?}");
            }
        }
        let [covered, ..] = data(payload().digest());
        let mut none = Payload::default();
        assert!(!damage(&covered, &mut none, &mut Rng::new(1)));
        assert_eq!(none, Payload::default());
    }
}
