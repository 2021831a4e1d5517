//! Survivors of a Primary agree on what their copies are worth (`docs/spec/connection-and-state.md` 3.2.8, 7.7).
//!
//! A disk that has become Consistent by such a loss is UpToDate again when a transaction without content has shown that
//! no node sees a Primary that this one does not, and when all that are connected have said how much of the lost one's
//! writes they have. If some node does see one, the disk is Outdated.

pub(crate) mod settling;

use crate::Resource;
use crate::api::Severity;
use crate::decide::DiskState;
use crate::decide::change::{Change, Set};
use crate::decide::state::{PairState, Replication, State};
use crate::decide::topic::Topic;
use crate::dialect9::settle::settling::Settling;
use crate::node::Node;
use units::{Duration, Instant, NodeId, NodeMask, VolumeNr};

/// A transaction that came in another one's way is tried again after this, or a few times that.
const SOON: Duration = Duration::from_millis(50);
const MOST_TIMES: u64 = 5;

impl Resource {
    /// Has a disk become Consistent with this change, as a Primary was lost, or is it known again what it is worth?
    /// Where quorum is asked for, what has become of that is said as well; and when a member is lost, those who are
    /// left agree on who that is.
    pub(super) fn note_survival(&mut self, old: &State) {
        for (volume, severity, topic) in self.standings_changed(old) {
            let tally = self.votes(volume);
            self.out.note(severity, Some(volume), None, topic, tally.to_string());
        }
        let asked = self.node.cfg.quorum.is_on();
        self.settling.lost |= asked && self.node.connections.ids().any(|peer| self.has_lost_member(old, peer));
        for volume in self.node.devices.ids() {
            let (reason, text) = match (old.disk(volume), self.node.state.disk(volume)) {
                (DiskState::UpToDate, DiskState::Consistent) => {
                    self.settling.lost = true;
                    (Topic::PrimaryLost, "a Primary is lost: perhaps others go on with it, or have more of its writes")
                }
                (DiskState::Consistent, DiskState::UpToDate) if self.has_peers_of_9() => {
                    (Topic::SurvivorsAgree, "no other node goes on with a lost Primary, or has more of its writes")
                }
                _ => continue,
            };
            self.out.note(Severity::Info, Some(volume), None, reason, text);
        }
    }

    /// What was waited for of a survivor is there: the others are asked once more.
    pub(super) fn heard_survivor(&mut self) {
        self.settling.heard |= self.node.state.has_consistent_disk();
    }

    /// Are the others to be asked whether somebody sees a Primary?
    pub(crate) fn is_to_settle(&self) -> bool {
        let waits =
            || self.node.devices.ids().any(|volume| self.is_consistent_in_company(volume)) && !self.holds_back();
        self.settling.lost || self.settling.heard || waits()
    }

    /// May it yet turn out that this node's copy, or that of a peer, is not the newest one? A promotion waits for that.
    pub(crate) fn is_unsettled(&self) -> bool {
        let doubtful =
            |pair: &PairState| pair.replication == Replication::Established && pair.disk == DiskState::Consistent;
        let doubtful = |volume| {
            self.node.state.pairs(volume).any(|(peer, pair)| doubtful(pair) && self.node.connections[peer].speaks9())
        };
        let own = self.node.state.has_consistent_disk() && self.is_to_settle();
        self.holds_back() || own || self.node.devices.ids().any(doubtful)
    }

    /// Once a turn: begins the transaction. Alone there is nobody to ask.
    pub(crate) fn settle_survivors(&mut self) {
        let waits = self.settling.again.is_some_and(|at| self.node.now < at);
        if waits || !self.transaction.is_free() || !self.is_to_settle() {
            return;
        }
        self.settling.again = None;
        if !self.neighbours9().is_empty() {
            self.ask_who_is_primary();
            // One for each of what it is to be asked for.
            let Settling { lost, heard, .. } = &mut self.settling;
            *(if *lost { lost } else { heard }) = false;
        } else if !self.holds_back() {
            self.settling = Settling::default();
            self.took_place(Set::Members(NodeMask::of(self.node.cfg.node)));
            self.has_settled();
        }
    }

    /// When a transaction that came to nothing is tried again.
    pub(crate) fn settle_timer(&self) -> Option<Instant> {
        // Behind another transaction it is looked at when that is over.
        self.settling.again.filter(|at| self.node.now < *at && self.is_to_settle())
    }

    /// It came to nothing.
    pub(crate) fn settle_again(&mut self) {
        let times = 1 + self.rng.next_u64() % MOST_TIMES;
        self.settling.again = Some(self.node.now + Duration(SOON.0 * times));
        let lost_members = self.node.cfg.quorum.is_on() && !self.node.members_out_of_reach().is_empty();
        self.settling.lost |= self.node.state.has_consistent_disk() || lost_members;
    }

    /// All have agreed, and these are Primary. Beside one that this node does not reach its copy is not the newest one:
    /// that is said after the decision.
    pub(crate) fn settle_agreed(&mut self, primaries_out_of_reach: NodeMask) {
        if primaries_out_of_reach.is_empty() && !self.holds_back() {
            self.has_settled();
        }
    }

    fn has_settled(&mut self) {
        let disks = self.node.devices.ids().filter(|volume| self.node.state.disk(*volume) == DiskState::Consistent);
        let change: Change = disks.map(|volume| Set::Disk(volume, DiskState::UpToDate)).collect();
        self.took_place(change);
    }
}

impl Node {
    /// Volumes that have lost quorum since, or have it again.
    fn standings_changed(&self, old: &State) -> Vec<(VolumeNr, Severity, Topic)> {
        let changed = |volume: VolumeNr| {
            let before = !old.volumes.contains(volume) || old.standing(volume).is_quorate();
            match (before, self.state.standing(volume).is_quorate()) {
                (true, false) => Some((volume, Severity::Warning, Topic::QuorumLost)),
                (false, true) => Some((volume, Severity::Info, Topic::QuorumThere)),
                _ => None,
            }
        };
        self.devices.ids().filter_map(changed).collect()
    }

    fn has_lost_member(&self, old: &State, peer: NodeId) -> bool {
        old.is_connected(peer) && !self.state.is_connected(peer) && self.state.may_be_online().contains(peer)
    }

    /// Members that are not connected to this node: perhaps they have died.
    fn members_out_of_reach(&self) -> NodeMask {
        let reached = self.connections.ids().filter(|peer| self.state.is_connected(*peer)).collect();
        self.state.may_be_online().without(reached).without(NodeMask::of(self.cfg.node))
    }

    /// Does this node, or a neighbour, have quorum in all volumes? Then those who agree on something are the members
    /// (`docs/spec/connection-and-state.md` 3.2.6, 9.6).
    pub(crate) fn knows_members(&self) -> bool {
        let quorate = |peer| self.devices.ids().all(|volume| self.state.pair(peer, volume).quorate);
        self.devices.ids().all(|volume| self.state.standing(volume).is_quorate()) || self.connections.ids().any(quorate)
    }

    /// Is a volume's copy Consistent beside one of another node? Alone it may be that for fencing as well.
    fn is_consistent_in_company(&self, volume: VolumeNr) -> bool {
        let beside = |(peer, pair): (NodeId, &PairState)| {
            pair.replication >= Replication::Established && self.connections[peer].speaks9()
        };
        self.state.disk(volume) == DiskState::Consistent && self.state.pairs(volume).any(beside)
    }

    /// A peer says that it has settled, and knows this node's word: so has this one (2.2 C16).
    pub(super) fn settles_with(&self, peer: NodeId, volume: VolumeNr, theirs: DiskState) -> bool {
        let both = [self.state.disk(volume), self.state.peer_disk(peer, volume)] == [DiskState::Consistent; 2];
        let at_rest = self.state.replication(peer, volume) == Replication::Established;
        let stable = || self.depends_on_nobody_else(peer, volume) && !self.sees_primary();
        both && at_rest && theirs == DiskState::UpToDate && stable() && !self.holds_back()
    }
}
