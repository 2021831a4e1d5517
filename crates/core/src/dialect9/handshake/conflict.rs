//! A Primary with good data that would be the target of who connects (`docs/spec/connection-and-state.md` 5.8.1, steps
//! 11 and 12).

use super::attempt::{Told, Verdict};
use crate::api::Severity;
use crate::config::OnSuspendedOutdated;
use crate::decide::direction9::{self, Conflict};
use crate::decide::handler::Handler;
use crate::decide::private::Private;
use crate::decide::split_brain::RrConflict;
use crate::decide::state::Replication;
use crate::decide::uuid9::{Direction, Strategy};
use crate::decide::{DiskState, Reason, Role};
use crate::node::Node;
use crate::outbox::Outbox;
use units::{NodeId, VolumeNr};

impl Node {
    /// The state that a strategy begins with, unless the nodes must not be connected.
    pub(super) fn begins_by(
        &self,
        peer: NodeId,
        strategy: Strategy,
        reason: Reason,
        (sides, several): ([Told<'_>; 2], bool),
    ) -> Result<Replication, Verdict> {
        let [own, other] = sides;
        let policy = self.connections[peer].cfg.rr_conflict;
        let primary = [own.role, other.role].map(|role| role == Role::Primary);
        match strategy {
            Strategy::NoSync => Ok(Replication::Established),
            // Whose users go on with the one copy has more than who crashed (5.6).
            Strategy::SourceIfBothFailed | Strategy::TargetIfBothFailed if primary != [false; 2] => Ok(match primary {
                [true, true] => Replication::Established,
                [true, false] => Replication::WFBitMapS,
                _ => Replication::WFBitMapT,
            }),
            Strategy::Retry => Err(Verdict::Retry(reason)),
            _ if overwrites_primary(strategy, sides, several) && self.gives_in_when_outdated() => {
                Err(Verdict::Retry(Reason::FrozenGivesIn))
            }
            _ if overwrites_primary(strategy, sides, several) => overwritten(policy, reason, strategy),
            _ if direction9::gives_in(policy, reason, strategy, other.role, other.disk) => Ok(Replication::WFBitMapT),
            strategy => begins(strategy).ok_or_else(|| Verdict::Disconnect(reason_against(strategy, reason))),
        }
    }
}

impl Node {
    /// Does a Primary whose users wait become Secondary rather than stay apart from newer data (9.7)? It decides that
    /// by itself: the peer, whose data is newer, is asked for nothing, and finds a Secondary at the next attempt.
    fn gives_in_when_outdated(&self) -> bool {
        self.cfg.on_suspended_outdated == OnSuspendedOutdated::ForceSecondary && self.state.is_frozen()
    }

    /// Does the peer, of several that are connected, attach a disk? What that is worth it decides by what it hears of
    /// all: this node gives no verdict, and raises no split brain (5.9).
    pub(super) fn looks_on(&self, peer: NodeId, volume: VolumeNr) -> bool {
        let attaches = self.state.peer_disk(peer, volume) < DiskState::Inconsistent;
        self.connections.len() > 1 && self.state.is_connected(peer) && attaches
    }

    /// Would who crashed as Primary overwrite this node, which has been promoted since, and has not written yet? Both
    /// have the generation that the peer has written in. When this node's begins, and not only with its first write,
    /// the peer is behind.
    pub(super) fn begins_before_overwritten(
        &self,
        peer: NodeId,
        volume: VolumeNr,
        (strategy, reason): (Strategy, Reason),
        (sides, several): ([Told<'_>; 2], bool),
    ) -> bool {
        reason == Reason::CrashedPrimary
            && self.devices[volume].due.first_write.comes_first()
            && !self.state.is_connected(peer)
            && self.connections[peer].decides_by(Private::BeginsFirst)
            && overwrites_primary(strategy, sides, several)
    }
}

impl Outbox {
    /// This node has refused to be overwritten.
    pub(super) fn says_primary_is_lost(
        &mut self,
        policy: RrConflict,
        (peer, volume): (NodeId, VolumeNr),
        begins: &Result<Replication, Verdict>,
    ) {
        match begins {
            Err(Verdict::Disconnect(Reason::PrimaryWouldBeTarget)) if policy == RrConflict::CallPriLost => {
                self.handler(Handler::PriLost, Some(volume), Some(peer));
            }
            Err(Verdict::Retry(reason @ Reason::PrimaryWouldBeTarget)) => {
                self.says_it_tries_again(peer, *reason);
            }
            _ => {}
        }
    }

    /// `rr-conflict retry-connect`: the nodes cannot be connected until a person does something, and try each second.
    pub(super) fn says_it_tries_again(&mut self, peer: NodeId, reason: Reason) {
        let text = format!("{reason}; trying again each second (rr-conflict retry-connect)");
        self.note(Severity::Warning, None, Some(peer), reason, text);
    }
}

/// Would the good data of this node, which is Primary, be overwritten, and be lost where anything differs? Of `several`
/// nodes a third one may have marked what differs.
fn overwrites_primary(strategy: Strategy, [own, other]: [Told<'_>; 2], several: bool) -> bool {
    let dirty = own.uuids.dirty_bits.max(other.uuids.dirty_bits) > 0;
    let good = own.role == Role::Primary && own.disk >= DiskState::Consistent;
    strategy.direction() == Some(Direction::Target) && good && (dirty || several)
}

/// What `rr-conflict` makes of it.
fn overwritten(policy: RrConflict, reason: Reason, strategy: Strategy) -> Result<Replication, Verdict> {
    match direction9::conflict(policy, reason, strategy) {
        Conflict::Parted => Err(Verdict::Disconnect(Reason::PrimaryWouldBeTarget)),
        Conflict::TriesAgain => Err(Verdict::Retry(Reason::PrimaryWouldBeTarget)),
        Conflict::Overwritten => Ok(Replication::WFBitMapT),
        Conflict::IsSource => Ok(Replication::WFBitMapS),
    }
}

/// The state in which a resync begins that this node knows how to prepare.
fn begins(strategy: Strategy) -> Option<Replication> {
    strategy.direction().map(|direction| match direction {
        Direction::Source => Replication::WFBitMapS,
        Direction::Target => Replication::WFBitMapT,
    })
}

/// Why the nodes stay apart.
fn reason_against(strategy: Strategy, rule: Reason) -> Reason {
    if strategy == Strategy::Unrelated { Reason::UnrelatedData } else { rule }
}
