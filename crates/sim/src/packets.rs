//! What no node may send, whatever it is for (`docs/spec/data-path-and-resync.md` 7.3, 7.14).

use units::SectorRange;
use wire::Packet;

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
