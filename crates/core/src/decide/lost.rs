//! What the loss of a Primary makes of a Secondary's copy, 9's dialect (`docs/spec/connection-and-state.md` 2.2 D4).

use super::state::{Replication, State};
use super::{DiskState, Role};
use crate::decide::state::ConnectionState;
use crate::decide::view::{Facts, speaks9};
use units::{NodeId, VolumeNr};

/// D4: a Secondary that has lost the last Primary that it saw does not know whether others go on with that one, or have
/// more of its writes. Its copy is Consistent until they have agreed.
pub(super) fn survives_primary(old: &State, new: &mut State, facts: &Facts) {
    let primary = |state: &State, peer: NodeId| state.is_connected(peer) && state.peers[peer].role() == Role::Primary;
    let lost = |peer: &NodeId| primary(old, *peer) && is_lost(new.connection(*peer)) && speaks9(facts, *peer);
    let lost: Vec<NodeId> = new.peers.members().into_iter().filter(lost).collect();
    let sees_primary = new.peers.members().into_iter().any(|peer| primary(new, peer));
    if new.is_primary() || lost.is_empty() || sees_primary {
        return;
    }
    for volume in old.volumes.ids() {
        let had = lost.iter().any(|peer| old.replication(*peer, volume) >= Replication::Established);
        if new.disk(volume) == DiskState::UpToDate && had && !has_sole_copy(old, new, &lost, volume) {
            new.volumes[volume].disk = DiskState::Consistent;
        }
    }
}

/// Not by an agreement, or an administrator.
fn is_lost(connection: ConnectionState) -> bool {
    (ConnectionState::Timeout..=ConnectionState::ProtocolError).contains(&connection)
}

/// "Sole authority": no lost Primary had a copy of its own that was worth anything, nor has another node that is
/// there: all that was written is here.
fn has_sole_copy(old: &State, new: &State, lost: &[NodeId], volume: VolumeNr) -> bool {
    let without = lost.iter().all(|peer| old.peer_disk(*peer, volume) <= DiskState::Outdated);
    let there = |peer| (DiskState::Consistent..=DiskState::UpToDate).contains(&new.peer_disk(peer, volume));
    without && !new.peers.members().into_iter().any(there)
}
