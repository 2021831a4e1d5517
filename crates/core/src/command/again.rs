//! Becoming Primary again: a node whose process ended while its devices were in use, and whose applications wait.
//!
//! Nobody may have gone on in between. So each peer that was connected is asked first, and waited for as long as a
//! Primary waits for a silent peer (`timeout`). This node went on without the others before, too. Then:
//!
//! * what was good here is to be overwritten by another generation of the peer, or the peer is Primary: it was promoted
//!   meanwhile. What the applications hold in their caches is about data that is gone, so the command fails, and their
//!   I/O with it;
//! * the promotion succeeds as any other, with `fence-peer` where that is configured; alone, a generation begins;
//! * the promotion is refused for now (the peer could not be fenced, no good copy can be reached): the I/O waits, until
//!   the peer is reached or its state changes, or the administrator lets it go on (`resume-io`, `primary`).

pub(crate) mod wish;

use super::Promotion;
use crate::Resource;
use crate::api::{CommandError, ConnectionState, Inherited, Severity, failure};
use crate::command::again::wish::{Again, Found, Look, Progress};
use crate::command::caller::Caller;
use crate::command::pending::{Stage, Waiting};
use crate::decide::StateChangeResult as Code;
use crate::decide::topic::Topic;
use crate::node::Node;
use units::{Duration, Generation, Instant, NodeId, NodeMask, VolumeNr};
use wire::{DiskState, Role};

/// How soon a peer that has refused is asked once more.
const RETRY: Duration = Duration::from_secs(1);

impl Resource {
    pub(super) fn primary_again(&mut self, id: Caller, inherited: Inherited) {
        for d in inherited.without_disk.iter().copied() {
            if self.node.devices.contains(d) {
                self.node.devices[d].seen.outrun |= self.node.state.disk(d) < DiskState::Inconsistent;
            }
        }
        let (since, stage) = (self.node.now, Progress::Waiting { resumed: false });
        let found = self.node.devices.ids().map(|d| (d, None)).collect();
        self.again = Some(Again { id, inherited, since, stage, found, told: None });
    }

    /// Does what is due about it.
    pub(crate) fn pump_again(&mut self) {
        self.note_found();
        let Some(again) = &self.again else { return };
        let (id, asking) = (again.id, again.is_asking());
        if self.node.state.is_primary() && !asking {
            // An administrator has made it so.
            self.again = None;
            return self.end(Some(id), Ok(()));
        }
        if let Some(d) = self.being_replaced().filter(|_| !asking) {
            return self.has_been_replaced(id, d);
        }
        let due = self.again.as_ref().and_then(|again| again.stage.is_due(&self.look_of_all(), self.node.now));
        due.into_iter().for_each(|resumed| self.try_again(id, resumed));
    }

    /// When there is something to do about it only because time passes.
    pub(crate) fn again_timer(&self) -> Option<Instant> {
        let again = self.again.as_ref()?;
        again.stage.timer(again.since + self.patience_with_peers()).filter(|at| *at > self.node.now)
    }

    /// Is this command the one that makes it Primary again?
    pub(super) fn asks_again(&self, id: Caller) -> bool {
        self.again.as_ref().is_some_and(|again| again.id == id)
    }

    /// `resume-io` while it waits: goes on without the peer, if the own copy allows.
    pub(super) fn resume_again(&mut self) {
        if let Some(again) = self.again.as_mut().filter(|again| !again.is_asking()) {
            again.stage = Progress::Waiting { resumed: true };
        }
    }

    /// Has nobody used this volume yet? It was added to the resource, and has no data, or what it holds was not in use
    /// here. Nothing waits for it.
    pub(super) fn is_untouched(&self, d: VolumeNr) -> bool {
        let Some(again) = &self.again else { return false };
        let current = self.node.devices[d].backing.as_ref().map(|b| b.md.current);
        again.inherited.came.contains(&d) || current.is_some_and(|current| current.same(Generation::JUST_CREATED))
    }

    fn note_found(&mut self) {
        let Some(again) = &mut self.again else { return };
        for d in again.found.ids().filter(|d| self.node.devices[*d].disk.attaching.is_none()) {
            let (dev, disk) = (&self.node.devices[d], self.node.state.disk(d));
            let disk = if disk == DiskState::Negotiating { dev.disk.attach_state } else { disk };
            let generation = dev.backing.as_ref().map(|b| b.md.current);
            again.found[d].get_or_insert(Found { disk, generation });
        }
    }

    /// The volume whose copy was in use here, and is being replaced by other data. Among several peers that may be over
    /// before all of them have been heard of.
    fn being_replaced(&self) -> Option<VolumeNr> {
        self.node.devices.ids().find(|d| self.node.state.replaced_by(*d).is_some() && self.was_replaced(*d))
    }

    fn has_been_replaced(&mut self, id: Caller, d: VolumeNr) {
        let text = "the peer went on as Primary while this node's process was away: its data is newer than what \
                    applications here have seen; their I/O fails. Unmount, and use the peer";
        self.out.note(Severity::Error, Some(d), None, Topic::ReplacedMeanwhile, text);
        self.again = None;
        self.end(Some(id), Err(failure(Code::TwoPrimaries.code(), text)));
    }

    /// `resumed`: without waiting for a peer, and by force.
    fn try_again(&mut self, id: Caller, resumed: bool) {
        if self.node.devices.values().any(|d| d.disk.attaching.is_some()) {
            return;
        }
        let (noted, patience) = (self.left_beside(), self.patience_with_peers());
        let Some(again) = &self.again else { return };
        let beside = again.inherited.beside.or(noted);
        let over = resumed || self.node.now >= again.since + patience;
        if self.peer_is_awaited(|i| !over && beside.is_none_or(|beside| beside.contains(i))) {
            return;
        }
        if let Some(d) = self.node.devices.ids().find(|d| self.was_replaced(*d)) {
            return self.has_been_replaced(id, d);
        }
        if let Some(again) = &mut self.again {
            again.stage = Progress::Asking { resumed };
        }
        let good = |d: VolumeNr| {
            self.found(d).is_some_and(|found| found.disk >= DiskState::Consistent) || self.is_untouched(d)
        };
        let force = resumed && self.node.devices.ids().all(good);
        self.wait_for(id, Waiting::Promote { promotion: Promotion::new(force), stage: Stage::Ask });
    }

    /// The promotion has ended: false if that concerns nobody else.
    pub(super) fn promoted_again(&mut self, id: Caller, result: &Result<(), CommandError>) -> bool {
        let look = self.look_of_all();
        let Some(again) = self.again.as_mut().filter(|again| again.id == id) else { return true };
        let Err(error) = result else {
            self.again = None;
            self.out.note(Severity::Info, None, None, Topic::PrimaryAgain, "Primary again: what waited goes on");
            return true;
        };
        if error.code == Code::TwoPrimaries.code() && look.iter().any(|(_, _, _, role)| *role == Role::Primary) {
            let text =
                "the peer became Primary while this node's process was away: I/O here fails. Unmount, and use the peer";
            self.again = None;
            self.out.note(Severity::Error, None, None, Topic::ReplacedMeanwhile, text);
            return true;
        }
        // A peer refuses while it is being connected, too.
        let by_peer = error.code == Code::FailedByPeer.code();
        again.stage = again.stage.refused(look, by_peer.then(|| self.node.now + RETRY));
        if again.told.replace(error.code) == Some(error.code) {
            return false;
        }
        let text = format!(
            "applications' I/O waits, as this node cannot be Primary again: {error}. It goes on when the peer is reached; \
             without it: urbd resume-io {}",
            self.node.cfg.name
        );
        self.out.note(Severity::Error, None, None, Topic::WaitsToBePrimary, text);
        false
    }

    fn found(&self, d: VolumeNr) -> Option<Found> {
        self.again.as_ref().and_then(|again| again.found[d])
    }

    /// Has another node's data taken the place of what was in use here? Users of a copy that was not good have seen
    /// the peer's, which goes on from it. One that is Outdated was good while they used it, unless they did without it.
    fn was_replaced(&self, d: VolumeNr) -> bool {
        let Some((again, found)) = self.again.as_ref().zip(self.found(d)) else { return false };
        if again.inherited.came.contains(&d) {
            return false;
        }
        let good = found.disk >= DiskState::Consistent;
        let used = good || found.disk == DiskState::Outdated && !again.inherited.without_disk.contains(&d);
        match (self.node.state.replaced_by(d), self.node.state.disk(d)) {
            (Some(i), _) if used => !self.peer_has_generation(i, d, found),
            (Some(i), _) => !self.peer_follows(i, d),
            (None, DiskState::Inconsistent | DiskState::Outdated) => good,
            // It was given up: users would go on with a peer's.
            (None, DiskState::Diskless | DiskState::Failed | DiskState::Detaching) => {
                used && self.node.state.good_peers(d).any(|i| !self.peer_has_generation(i, d, found))
            }
            _ => false,
        }
    }
}

impl Node {
    /// The peers that this node was connected with when it crashed, as the metadata of all volumes say.
    fn left_beside(&self) -> Option<NodeMask> {
        self.devices.values().try_fold(NodeMask::default(), |all, dev| Some(all.or(dev.disk.left_beside?)))
    }

    /// May a peer still say what it has? `awaited`: is one waited for that has not been heard of?
    fn peer_is_awaited(&self, awaited: impl Fn(NodeId) -> bool) -> bool {
        self.connections.iter().any(|(i, c)| match (&c.link, self.state.connection(i)) {
            (_, ConnectionState::StandAlone) => false,
            (None, _) => awaited(i),
            (Some(_), _) => self.devices.ids().any(|d| self.will_be_compared(i, d)),
        }) || self.state.volumes.values().any(|v| v.disk == DiskState::Negotiating)
    }

    fn patience_with_peers(&self) -> Duration {
        self.connections.values().map(|c| c.cfg.timeout).max().unwrap_or(Duration(0))
    }

    /// Is this node's generation one that the peer's data comes from?
    fn peer_follows(&self, i: NodeId, d: VolumeNr) -> bool {
        let Some(own) = self.devices[d].backing.as_ref().map(|b| b.md.current) else { return true };
        let pd = &self.connections[i].peer_devices[d];
        let of84 =
            pd.link.told.uuids.iter().flat_map(|told| told.history.into_iter().chain([told.current, told.bitmap]));
        let of9 = pd.link.told.uuids110.iter().flat_map(|told| told.history.iter().chain(&told.bitmaps).copied());
        own.same(Generation::JUST_CREATED) || of84.chain(of9).any(|generation| generation.same(own))
    }

    /// Does the peer have this node's generation? Then nobody has gone on alone: what a crash has left different is
    /// copied from who has not crashed, as 9's dialect does it (5.8, A10), and what waits here is written again.
    fn peer_has_generation(&self, i: NodeId, d: VolumeNr, found: Found) -> bool {
        let theirs = self.connections[i].peer_devices[d].link.told.uuids.map(|told| told.current);
        let own = self.devices[d].backing.as_ref().map(|b| b.md.current).or(found.generation);
        own.zip(theirs).is_some_and(|(own, theirs)| own.same(theirs))
    }

    fn look_of_all(&self) -> Vec<Look> {
        let alone = |d: VolumeNr| (false, self.state.disk(d), DiskState::DUnknown, Role::Unknown);
        let beside = |d: VolumeNr, i: NodeId| {
            let peer = &self.state.peers[i];
            (self.state.replicates(i, d), self.state.disk(d), peer.volumes[d].disk, peer.role())
        };
        let of_volume = |d: VolumeNr| -> Vec<Look> {
            if self.connections.is_empty() {
                vec![alone(d)]
            } else {
                self.connections.ids().map(|i| beside(d, i)).collect()
            }
        };
        self.devices.ids().flat_map(of_volume).collect()
    }
}
