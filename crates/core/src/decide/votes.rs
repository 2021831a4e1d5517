//! The votes of a volume, out of the state and what else is known (`docs/spec/connection-and-state.md` 9.1, 9.3).

use super::DiskState as D;
use super::quorum::{Class, Count, Known, Part, Seen, Tally, Voter, class_of, tally};
use super::state::{PairState, Replication, State};
use super::view::Facts;
use units::{NodeId, VolumeNr};

/// Counts them in `new`, which follows `old`.
#[must_use]
pub fn count_votes(old: &State, new: &State, volume: VolumeNr, facts: &Facts) -> Tally {
    let own = new.disk(volume);
    let with_disk = own > D::Attaching;
    let known = &facts.volumes[volume];
    let mut count = Count::default();
    count.note(match (own, known.part) {
        (D::UpToDate, _) => Class::UpToDate,
        _ if with_disk => Class::Present,
        (D::Attaching, _) => Class::Nobody,
        (_, Part::Disk) => Class::Unknown,
        _ => Class::Diskless,
    });
    let before = old.volumes[volume].standing;
    let left = |peer: NodeId| before.is_quorate() && !new.members.contains(peer);
    for (peer, pair) in new.pairs(volume) {
        let seen = if pair.replication == Replication::Off { Seen::Away(pair.disk) } else { Seen::Here(pair.disk) };
        count.note(class_of(&facts.peers[peer].volumes[volume].voter, seen, with_disk, left(peer)));
    }
    for node in known.unconfigured.into_iter().filter(|_| with_disk) {
        let outdated = known.unconfigured_outdated.contains(node);
        let voter = Voter { known: if outdated { Known::Outdated } else { Known::Yes }, part: Part::Disk };
        count.note(class_of(&voter, Seen::Away(D::DUnknown), with_disk, left(node)));
    }
    let quorate = |(_, pair): (NodeId, &PairState)| pair.disk == D::UpToDate && pair.quorate;
    let source = !with_disk && own != D::Attaching && new.pairs(volume).any(quorate);
    tally(&count, &facts.quorum, before.is_by_votes(), source)
}
