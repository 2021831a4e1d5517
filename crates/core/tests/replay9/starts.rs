//! What a node's disks and configuration must have been when a recording begins, as its packets show.

use crate::node::Start;
use crate::recording::Said;
use units::{NodeId, Sector, VolumeNr};
use urbd_core::{OnIoError, ResyncConfig};
use wire::Packet;

/// What the metadata of a node must have said at the start of a recording that shows how it connects.
pub(crate) fn start_of(said: &[Said], node: NodeId, volume: VolumeNr) -> Start {
    let mut own = said.iter().filter(|s| s.from == node && s.volume == volume).map(|s| &s.packet);
    let sizes = own.clone().find_map(|p| if let Packet::Sizes(s) = p { Some(**s) } else { None }).expect("P_SIZES");
    let uuids = own.clone().find_map(|p| if let Packet::Uuids110(u) = p { Some(u) } else { None }).expect("P_UUIDS110");
    let state = own.find_map(|p| if let Packet::State(s) = p { Some(*s) } else { None }).expect("P_STATE");
    let vacant = |s: &Said| matches!(&s.packet, Packet::Uuids110(u) if u.flags.unallocated().is_some());
    Start {
        slots: if said.iter().any(|s| s.from == node && vacant(s)) { 7 } else { others_of(said, node).len() as u32 },
        size: sizes.current_size,
        room: sizes.disk_size.max(sizes.current_size),
        uuids: (**uuids).clone(),
        marked: marked(said, node, volume, sizes.current_size, uuids.dirty_bits)
            .filter(|runs| bits_in(runs) == uuids.dirty_bits),
        good: state.disk == wire::DiskState::UpToDate,
        resync: resync_options(said, node),
        on_io_error: OnIoError::default(),
        discard: sizes.limits.is_some_and(|l| l.discard_enabled),
    }
}

/// Those to which a node says something.
pub(crate) fn peers_of(said: &[Said], node: NodeId) -> Vec<NodeId> {
    let mut peers: Vec<_> = said.iter().filter(|s| s.from == node).map(|s| s.to).collect();
    peers.sort();
    peers.dedup();
    peers
}

/// All others of a recording: those first to which it says something, as what is said to all is said to the first.
pub(crate) fn others_of(said: &[Said], node: NodeId) -> Vec<NodeId> {
    let mut others = peers_of(said, node);
    let mut all: Vec<_> = said.iter().flat_map(|s| [s.from, s.to]).filter(|n| *n != node).collect();
    all.sort();
    all.dedup();
    all.retain(|n| !others.contains(n));
    others.append(&mut all);
    others
}

/// The options that a node was configured with.
pub(crate) fn resync_options(said: &[Said], node: NodeId) -> ResyncConfig {
    let told = |s: &Said| match &s.packet {
        Packet::SyncParam(p) if s.from == node => Some(p.clone()),
        _ => None,
    };
    let Some(p) = said.iter().find_map(told) else { return ResyncConfig::default() };
    let c = p.controller;
    let (plan_ahead, delay_target, fill_target) = (c.plan_ahead, c.delay_target, c.fill_target);
    ResyncConfig {
        rate: p.resync_rate,
        plan_ahead,
        delay_target,
        fill_target,
        max_rate: c.max_rate,
        ..ResyncConfig::default()
    }
}

/// The blocks that a node has marked when a recording begins: what its first bitmap says, without what the source's had
/// before it.
fn marked(said: &[Said], node: NodeId, volume: VolumeNr, size: Sector, dirty: u64) -> Option<Vec<(u64, u64)>> {
    let own = first_bitmap(said, node, volume, size)?;
    let comes_first =
        |s: &&Said| s.volume == volume && matches!(s.packet, Packet::Bitmap(_) | Packet::CompressedBitmap(_));
    if said.iter().find(comes_first).is_some_and(|s| s.from == node) {
        return Some(own);
    }
    let is_own = |s: &&Said| {
        s.from == node && s.volume == volume && matches!(s.packet, Packet::Bitmap(_) | Packet::CompressedBitmap(_))
    };
    let others = first_bitmap(said, said.iter().find(is_own)?.to, volume, size)?;
    // Of those that both may have any will do.
    let both = own.iter().flat_map(|(from, to)| *from..*to);
    let both: Vec<_> = both.filter(|bit| others.iter().any(|(from, to)| (from..to).contains(&bit))).collect();
    let mut bits = units::BitSet::new(size.0.div_ceil(8));
    for (from, to) in own {
        bits.set_range(from, to);
    }
    for (from, to) in others {
        bits.clear_range(from, to);
    }
    let lacking = dirty.saturating_sub(bits.count()) as usize;
    for bit in both.into_iter().take(lacking) {
        bits.set_range(bit, bit + 1);
    }
    Some((0..bits.len()).filter(|bit| bits.contains(*bit)).map(|bit| (bit, bit + 1)).collect())
}

fn bits_in(runs: &[(u64, u64)]) -> u64 {
    runs.iter().map(|(from, to)| to - from).sum()
}

/// What a node's first bitmap says.
pub(crate) fn first_bitmap(said: &[Said], node: NodeId, volume: VolumeNr, size: Sector) -> Option<Vec<(u64, u64)>> {
    let mut receiver = wire::BitmapReceiver::new(&crate::recording::OF_9_3, size.0.div_ceil(8));
    let mut runs = Vec::new();
    for said in said.iter().filter(|s| s.from == node && s.volume == volume) {
        let mut set = |from, to| runs.push((from, to));
        let over = match &said.packet {
            Packet::Bitmap(words) => receiver.plain(words, &mut set),
            Packet::CompressedBitmap(code) => receiver.compressed(code, &mut set),
            _ => continue,
        };
        if over.expect("a bitmap") {
            return Some(runs);
        }
    }
    None
}
