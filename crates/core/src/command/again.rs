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
        for volume in inherited.without_disk.iter().copied() {
            if self.node.devices.contains(volume) {
                self.node.devices[volume].seen.outrun |= self.node.state.disk(volume) < DiskState::Inconsistent;
            }
        }
        let (since, stage) = (self.node.now, Progress::Waiting { resumed: false });
        let found = self.node.devices.ids().map(|volume| (volume, None)).collect();
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
        if let Some(volume) = self.being_replaced().filter(|_| !asking) {
            return self.has_been_replaced(id, volume);
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
    pub(super) fn is_untouched(&self, volume: VolumeNr) -> bool {
        let Some(again) = &self.again else { return false };
        let current = self.node.devices[volume].backing.as_ref().map(|b| b.md.current);
        again.inherited.came.contains(&volume) || current.is_some_and(|current| current.same(Generation::JUST_CREATED))
    }

    fn note_found(&mut self) {
        let Some(again) = &mut self.again else { return };
        for volume in again.found.ids().filter(|volume| self.node.devices[*volume].disk.attaching.is_none()) {
            let (dev, disk) = (&self.node.devices[volume], self.node.state.disk(volume));
            let disk = if disk == DiskState::Negotiating { dev.disk.attach_state } else { disk };
            let generation = dev.backing.as_ref().map(|b| b.md.current);
            again.found[volume].get_or_insert(Found { disk, generation });
        }
    }

    /// The volume whose copy was in use here, and is being replaced by other data. Among several peers that may be over
    /// before all of them have been heard of.
    fn being_replaced(&self) -> Option<VolumeNr> {
        self.node
            .devices
            .ids()
            .find(|volume| self.node.state.replaced_by(*volume).is_some() && self.was_replaced(*volume))
    }

    fn has_been_replaced(&mut self, id: Caller, volume: VolumeNr) {
        let text = "the peer went on as Primary while this node's process was away: its data is newer than what \
                    applications here have seen; their I/O fails. Unmount, and use the peer";
        self.out.note(Severity::Error, Some(volume), None, Topic::ReplacedMeanwhile, text);
        self.again = None;
        self.end(Some(id), Err(failure(Code::TwoPrimaries.code(), text)));
    }

    /// `resumed`: without waiting for a peer, and by force.
    fn try_again(&mut self, id: Caller, resumed: bool) {
        if self.node.devices.values().any(|dev| dev.disk.attaching.is_some()) {
            return;
        }
        let (noted, patience) = (self.left_beside(), self.patience_with_peers());
        let Some(again) = &self.again else { return };
        let beside = again.inherited.beside.or(noted);
        let over = resumed || self.node.now >= again.since + patience;
        if self.peer_is_awaited(|peer| !over && beside.is_none_or(|beside| beside.contains(peer))) {
            return;
        }
        if let Some(volume) = self.node.devices.ids().find(|volume| self.was_replaced(*volume)) {
            return self.has_been_replaced(id, volume);
        }
        if let Some(again) = &mut self.again {
            again.stage = Progress::Asking { resumed };
        }
        let good = |volume: VolumeNr| {
            self.found(volume).is_some_and(|found| found.disk >= DiskState::Consistent) || self.is_untouched(volume)
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

    fn found(&self, volume: VolumeNr) -> Option<Found> {
        self.again.as_ref().and_then(|again| again.found.get(volume).copied().flatten())
    }

    /// Has another node's data taken the place of what was in use here? Users of a copy that was not good have seen
    /// the peer's, which goes on from it. One that is Outdated was good while they used it, unless they did without it.
    fn was_replaced(&self, volume: VolumeNr) -> bool {
        let Some((again, found)) = self.again.as_ref().zip(self.found(volume)) else { return false };
        if again.inherited.came.contains(&volume) {
            return false;
        }
        let good = found.disk >= DiskState::Consistent;
        let used = good || found.disk == DiskState::Outdated && !again.inherited.without_disk.contains(&volume);
        match (self.node.state.replaced_by(volume), self.node.state.disk(volume)) {
            (Some(peer), _) if used => !self.peer_has_generation(peer, volume, found),
            (Some(peer), _) => !self.peer_follows(peer, volume),
            (None, DiskState::Inconsistent | DiskState::Outdated) => good,
            // It was given up: users would go on with a peer's.
            (None, DiskState::Diskless | DiskState::Failed | DiskState::Detaching) => {
                used && self.node.state.good_peers(volume).any(|peer| !self.peer_has_generation(peer, volume, found))
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
        self.connections.iter().any(|(peer, c)| match (&c.link, self.state.connection(peer)) {
            (_, ConnectionState::StandAlone) => false,
            (None, _) => awaited(peer),
            (Some(_), _) => self.devices.ids().any(|volume| self.will_be_compared(peer, volume)),
        }) || self.state.volumes.values().any(|v| v.disk == DiskState::Negotiating)
    }

    fn patience_with_peers(&self) -> Duration {
        self.connections.values().map(|c| c.cfg.timeout).max().unwrap_or(Duration(0))
    }

    /// Is this node's generation one that the peer's data comes from?
    fn peer_follows(&self, peer: NodeId, volume: VolumeNr) -> bool {
        let Some(own) = self.devices[volume].backing.as_ref().map(|b| b.md.current) else { return true };
        let pd = &self.connections[peer].peer_devices[volume];
        let of84 =
            pd.link.told.uuids.iter().flat_map(|told| told.history.into_iter().chain([told.current, told.bitmap]));
        let of9 = pd.link.told.uuids110.iter().flat_map(|told| told.history.iter().chain(&told.bitmaps).copied());
        own.same(Generation::JUST_CREATED) || of84.chain(of9).any(|generation| generation.same(own))
    }

    /// Does the peer have this node's generation? Then nobody has gone on alone: what a crash has left different is
    /// copied from who has not crashed, as 9's dialect does it (5.8, A10), and what waits here is written again.
    fn peer_has_generation(&self, peer: NodeId, volume: VolumeNr, found: Found) -> bool {
        let theirs = self.connections[peer].peer_devices[volume].link.told.uuids.map(|told| told.current);
        let own = self.devices[volume].backing.as_ref().map(|b| b.md.current).or(found.generation);
        own.zip(theirs).is_some_and(|(own, theirs)| own.same(theirs))
    }

    fn look_of_all(&self) -> Vec<Look> {
        let alone = |volume: VolumeNr| (false, self.state.disk(volume), DiskState::DUnknown, Role::Unknown);
        let beside = |volume: VolumeNr, peer: NodeId| {
            let state = &self.state.peers[peer];
            (self.state.replicates(peer, volume), self.state.disk(volume), state.volumes[volume].disk, state.role())
        };
        let of_volume = |volume: VolumeNr| -> Vec<Look> {
            if self.connections.is_empty() {
                vec![alone(volume)]
            } else {
                self.connections.ids().map(|peer| beside(volume, peer)).collect()
            }
        };
        self.devices.ids().flat_map(of_volume).collect()
    }
}
