//! What may differ between a kernel and the core in its place (`docs/compatibility.md`).

use crate::node::Sent;
use crate::recording::Said;
use units::{NodeId, Sector, VolumeNr};
use urbd_core::RequestKind;
use wire::{DpFlags, Packet, QueueLimits, UuidFlags};

/// Of two that cease to depend on a Primary at the same time that one answers the other which comes to it first. In the
/// recording that may have been the other one.
pub(crate) fn answers_stability(packet: &Packet) -> bool {
    matches!(packet, Packet::Uuids110(u) if u.flags.contains(UuidFlags::RESYNC))
}

/// "The own data depends on no Primary any more, and may be compared."
pub(crate) fn offers_comparison(packet: &Packet) -> bool {
    matches!(packet, Packet::Uuids110(u) if u.flags.contains(UuidFlags::GOT_STABLE))
}

/// Says nothing that changes anything: P_UNPLUG_REMOTE, and P_DELAY_PROBE.
pub(crate) fn is_hint(packet: &Packet) -> bool {
    matches!(packet, Packet::UnplugRemote | Packet::DelayProbe(_))
}

pub(crate) fn without_hints(said: Vec<Said>) -> impl Iterator<Item = Said> {
    let mut last = Vec::new();
    said.into_iter().filter(move |s| !says_the_same_again(&mut last, s.to, s.volume, &s.packet) && !is_hint(&s.packet))
}

/// A kernel that comes to depend on a Primary says so twice, and a change of one volume may make it say once more what
/// the others' states are. The core does so at other times.
pub(crate) fn says_the_same_again(
    last: &mut Vec<(NodeId, VolumeNr, Packet)>,
    to: NodeId,
    volume: VolumeNr,
    packet: &Packet,
) -> bool {
    let again = last.contains(&(to, volume, packet.clone()));
    let kind = std::mem::discriminant(packet);
    last.retain(|(whom, of, packet)| *whom != to || *of != volume || std::mem::discriminant(packet) != kind);
    last.push((to, volume, packet.clone()));
    again && matches!(packet, Packet::Uuids110(_) | Packet::State(_) | Packet::PeersInSync(_))
}

/// What may differ, taken from the recording: the limits of the disk and of the block layer, which are those of another
/// machine, what a write is called that somebody waits for, and what an older release does not offer.
pub(crate) fn tolerated(recorded: Packet, mut ours: Sent) -> (Packet, Sent) {
    match (&recorded, &mut ours.packet) {
        (Packet::Sizes(theirs), Packet::Sizes(own)) => {
            own.max_bio_size = theirs.max_bio_size;
            if let (Some(theirs), Some(own)) = (&theirs.limits, &mut own.limits) {
                let QueueLimits { physical_block_size, logical_block_size, io_min, io_opt, .. } = *theirs;
                *own = QueueLimits { physical_block_size, logical_block_size, io_min, io_opt, ..*own };
            }
        }
        (Packet::ConnectionFeatures(theirs), Packet::ConnectionFeatures(own)) => own.features = theirs.features,
        (Packet::Trim(theirs), Packet::Trim(own)) | (Packet::Zeroes(theirs), Packet::Zeroes(own)) => {
            own.flags |= by_applications(theirs.flags);
        }
        (Packet::Data(theirs), Packet::Data(own)) => {
            // The caller makes the digest.
            own.digest.clone_from(&theirs.digest);
            own.flags |= by_applications(theirs.flags);
        }
        _ => {}
    }
    if ours.packet.command(&crate::recording::OF_9_3).is_connection_level() {
        ours.volume = VolumeNr::NONE;
    }
    if matches!(ours.packet, Packet::ConnectionFeatures(_)) {
        ours.volume = VolumeNr(0);
    }
    (recorded, ours)
}

/// What an application must have asked for when this is sent.
pub(crate) fn request(packet: &Packet) -> Option<(RequestKind, Sector, u32)> {
    match packet {
        Packet::DataRequest(r) => Some((RequestKind::Read, r.sector, r.size.0 as u32)),
        Packet::Data(w) => Some((RequestKind::Write { fua: false }, w.sector, w.size.0 as u32)),
        Packet::Trim(w) => Some((RequestKind::Discard, w.sector, w.size.0 as u32)),
        Packet::Zeroes(w) => {
            let unmap = w.flags.contains(DpFlags::DISCARD);
            Some((RequestKind::WriteZeroes { unmap, fua: false }, w.sector, w.size.0 as u32))
        }
        _ => None,
    }
}

/// DP_RW_SYNC.
pub(crate) fn by_applications(flags: DpFlags) -> DpFlags {
    DpFlags(flags.0 & 0x2)
}
