//! One replication core against a peer that lies.
//!
//! A case's bytes choose a configuration, the state of the disk, and then a sequence of moves: what the peer sends
//! (right, slightly wrong, nonsense), what the disk does, what applications and the administrator ask. [`Rig`] plays
//! the engine and checks the contract of `urbd_core` at every effect; the end of a run checks that nothing leaked.
//! With `TRACE` in the environment a run prints what happens.

mod disk;
mod ledger;
mod moves;
mod packets;
mod rig;

pub use rig::Rig;

use crate::input::Input;
use std::collections::BTreeSet;
use wire::{ConnState, Role};

/// A core that is promoted before the peer comes.
pub fn primary(bytes: &[u8]) {
    play(bytes, Role::Primary);
}

/// A core that stays Secondary unless the case promotes it.
pub fn secondary(bytes: &[u8]) {
    play(bytes, Role::Secondary);
}

/// Runs a case; returns the replication states that were seen and the reasons that connections ended with.
pub fn play(bytes: &[u8], role: Role) -> Seen {
    let mut input = Input::new(bytes);
    let mut rig = Rig::new(&mut input, role);
    moves::prepare(&mut rig, &mut input, role);
    while !input.is_empty() {
        moves::one(&mut rig, &mut input);
    }
    rig.finish();
    rig.seen
}

/// The same kind of packet again and again, faster than any disk: what is done and kept for the peer stays within
/// `max-buffers`. Returns how many packets were taken before the core asked for a pause (or ended the connection).
pub fn flood(kind: usize, packets: u32) -> u32 {
    // By these choices nothing is spoilt.
    let mut input = Input::new(&[4; 400]);
    let mut rig = Rig::new(&mut input, Role::Secondary);
    moves::prepare(&mut rig, &mut input, Role::Secondary);
    rig.settle();
    assert!(rig.link, "the flood needs a connection");
    let mut taken = 0;
    for n in 0..packets {
        let (stream, packet) = packets::flood(&rig, kind, n.into());
        if !rig.takes(stream) {
            break;
        }
        rig.receive(stream, rig.cfg.volumes[0].volume, &packet);
        taken += 1;
    }
    rig.finish();
    taken
}

/// How many kinds of floods there are.
pub const FLOODS: usize = packets::FLOODS;

/// What a run came across, so that a test can tell that the runs are worth something.
#[derive(Clone, Debug, Default)]
pub struct Seen {
    /// Replication states, in 8.4's numbering.
    pub states: BTreeSet<ConnState>,
    /// Names of the reasons in the log.
    pub reasons: BTreeSet<&'static str>,
}
