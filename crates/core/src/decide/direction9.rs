//! Which way data goes after the comparison of 9's dialect, by what people want: after a split brain, and of a node
//! that was told to discard its data (`docs/spec/connection-and-state.md` 5.8.1, steps 7 to 10).

use super::split_brain::{self, Loser, Policies};
use super::uuid9::{Direction, Strategy};
use super::{DiskState, Reason};

/// One side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Side {
    /// It is Primary.
    pub primary: bool,
    /// Its disk.
    pub disk: DiskState,
    /// It was told to discard its data.
    pub discard_my_data: bool,
    /// Bit 0 of its bitmap UUID: it was Primary already when the generations parted.
    pub was_primary: bool,
    /// Bits set in its bitmap.
    pub changes: u64,
}

/// What else is looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Input {
    /// What the comparison came to.
    pub found: Strategy,
    /// The rule that led to it.
    pub rule: Reason,
    /// The agreed protocol.
    pub protocol: u32,
    /// This node.
    pub me: Side,
    /// The peer.
    pub peer: Side,
    /// after-sb-*.
    pub policies: Policies,
    /// always-asbp.
    pub always_asbp: bool,
    /// This node has the RESOLVE-CONFLICTS role.
    pub resolve_conflicts: bool,
}

/// The strategy after that, and why.
#[must_use]
pub fn wanted(input: &Input) -> (Strategy, Reason) {
    match input.found {
        Strategy::SplitBrainAutoRecover | Strategy::SplitBrainDisconnect => after_split_brain(input),
        Strategy::NoSync => (input.found, input.rule),
        found if input.protocol >= 121 => reverted(input, found),
        found => (found, input.rule),
    }
}

fn after_split_brain(input: &Input) -> (Strategy, Reason) {
    let by_bitmap = input.found == Strategy::SplitBrainAutoRecover;
    let towards = |loser| match (loser, by_bitmap) {
        (Loser::Me, true) => Strategy::TargetUseBitmap,
        (Loser::Me, false) => Strategy::TargetSetBitmap,
        (Loser::Peer, true) => Strategy::SourceUseBitmap,
        (Loser::Peer, false) => Strategy::SourceSetBitmap,
    };
    let mut undecided = input.rule;
    if by_bitmap || input.always_asbp {
        // A Primary that would have to be demoted first is left to people.
        let resolution = split_brain::resolve(&split_brain::Input {
            policies: input.policies,
            me_primary: input.me.primary,
            peer_primary: input.peer.primary,
            me_was_primary: input.me.was_primary,
            peer_was_primary: input.peer.was_primary,
            me_changes: input.me.changes,
            peer_changes: input.peer.changes,
            resolve_conflicts: input.resolve_conflicts,
            demotable: false,
        });
        match resolution.loser {
            Some(loser) if worse_disk_wins(input, loser) => undecided = Reason::OutdatedWouldWin,
            Some(loser) => return (towards(loser), resolution.reason),
            None => {}
        }
    }
    match (input.me.discard_my_data, input.peer.discard_my_data) {
        (true, false) => (towards(Loser::Me), Reason::DiscardMyData),
        (false, true) => (towards(Loser::Peer), Reason::DiscardMyData),
        _ => (Strategy::SplitBrainDisconnect, undecided),
    }
}

/// A policy knows who changed more, or was Primary first, not what a disk is worth. One that is known to lack something
/// does not overwrite a better one, unless a person says so; a kernel's does.
fn worse_disk_wins(input: &Input, loser: Loser) -> bool {
    let (winner, loser) = match loser {
        Loser::Me => (input.peer.disk, input.me.disk),
        Loser::Peer => (input.me.disk, input.peer.disk),
    };
    winner <= DiskState::Outdated && winner < loser
}

/// Only one side was to discard its data, and it is not the one that would lose it.
fn reverted(input: &Input, found: Strategy) -> (Strategy, Reason) {
    let (me, peer) = (input.me, input.peer);
    let against = match found.direction() {
        Some(Direction::Source) if me.discard_my_data && !peer.discard_my_data => peer.disk,
        Some(Direction::Target) if peer.discard_my_data && !me.discard_my_data => me.disk,
        _ => return (found, input.rule),
    };
    match found.reverse().filter(|_| against > DiskState::Inconsistent) {
        Some(other) => (other, Reason::DiscardMyData),
        None => (found, input.rule),
    }
}
