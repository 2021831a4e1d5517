//! What no node may send, whatever it is for (`docs/spec/data-path-and-resync.md` 2.5, 7.3, 7.14).

use units::{NodeId, SectorRange, VolumeNr};
use urbd_core::{Effect, Event};
use wire::{BlockId, Packet};

/// Sectors of what no request of a resync may cross: 16 MiB.
const EXTENT: u64 = 1 << 15;

/// A node is about to send this.
pub(crate) fn check_packet(packet: &Packet) -> Result<(), String> {
    let Some(range) = asked_for(packet) else { return Ok(()) };
    let aligned = range.start.0.is_multiple_of((range.end.0 - range.start.0).next_power_of_two());
    if aligned && range.start.0 / EXTENT == (range.end.0 - 1) / EXTENT {
        return Ok(());
    }
    Err(format!("a request for {range:?}, which is not aligned to its size"))
}

/// What a target asks its source for.
fn asked_for(packet: &Packet) -> Option<SectorRange> {
    let block = match packet {
        Packet::RsDataRequest(block) | Packet::RsThinReq(block) => block,
        Packet::CsumRsRequest(request) => &request.block,
        Packet::RsDagtagReq(r) | Packet::RsThinDagtagReq(r) | Packet::RsCsumDagtagReq(r) => &r.block,
        _ => return None,
    };
    block.range().filter(|range| !range.is_empty())
}

/// What one turn says of writes: P_RECV_ACK is no answer to what is refused at the same time. A turn has heard of
/// several things, though: what was received may have lost its disk, by a command behind it.
#[derive(Default)]
pub(crate) struct Answers(Vec<(NodeId, VolumeNr, BlockId)>);

impl Answers {
    /// A node does this within the turn.
    pub(crate) fn note(&mut self, effect: &Effect) -> Result<(), String> {
        let Effect::Send { peer, volume, packet, .. } = effect else {
            if let Effect::Log(notice) = effect
                && matches!(notice.event, Event::State { old, new } if new.disk < old.disk)
            {
                self.0.retain(|(_, volume, _)| Some(*volume) != notice.volume);
            }
            return Ok(());
        };
        match packet {
            Packet::RecvAck(ack) => self.0.push((*peer, *volume, ack.block_id)),
            Packet::NegAck(ack) if self.0.contains(&(*peer, *volume, ack.block_id)) => {
                return Err(format!("the write of {} is received and refused at once", ack.sector));
            }
            _ => {}
        }
        Ok(())
    }
}
