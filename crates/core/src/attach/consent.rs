//! 9's dialect: whether a disk may come into use is agreed on with all that have one
//! (`docs/spec/connection-and-state.md` 11.2, step 15).

use crate::Resource;
use crate::attach::attaching::{Attaching, Step};
use crate::connection::Connection;
use crate::decide::StateChangeResult;
use crate::device::Device;
use crate::node::Node;
use units::{Duration, Instant, NodeId, VolumeNr};

/// So long is waited for another transaction.
const SOON: Duration = Duration::from_millis(50);

impl Resource {
    /// Asks the peers, or does so when another transaction may be over.
    pub(super) fn seek_consent(&mut self, volume: VolumeNr) {
        match self.ask_to_attach(volume) {
            true => self.node.devices[volume].step_of_attach(Step::Consent(None)),
            false => self.node.devices[volume].ask_again_soon(self.node.now),
        }
    }

    /// All have agreed.
    pub(crate) fn attach_agreed(&mut self, volume: VolumeNr) {
        if self.node.devices[volume].asks_to_attach() && self.fits_into_use(volume) {
            self.take_into_use(volume);
        }
    }

    /// `refused`: a peer does not want it; else something else was under way, or a peer is gone.
    pub(crate) fn attach_not_agreed(&mut self, volume: VolumeNr, refused: bool) {
        if !self.node.devices[volume].asks_to_attach() {
            return;
        }
        if refused {
            let text = "the peer refuses that this disk comes into use; its log says why".to_owned();
            return self.attach_failed(volume, StateChangeResult::FailedByPeer.code(), text);
        }
        self.node.devices[volume].ask_again_soon(self.node.now);
    }
}

impl Node {
    /// Is there a peer that says what this disk is worth? In 9's dialect one without a disk does not.
    pub(super) fn negotiates(&self, volume: VolumeNr) -> bool {
        let of_84 = |(peer, c): (NodeId, &Connection)| !c.speaks9() && self.state.replicates(peer, volume);
        self.connected().any(of_84) || self.attach_needs_consent(volume)
    }

    /// When peers are asked again.
    pub(crate) fn attach_timer(&self) -> Option<Instant> {
        let again = |dev: &crate::device::Device| match dev.disk.attaching {
            Some(Attaching { step: Step::Consent(again), .. }) => again,
            _ => None,
        };
        self.devices.values().filter_map(again).min()
    }
}

impl Device {
    /// Are the peers being asked whether this disk may come into use?
    pub(crate) fn asks_to_attach(&self) -> bool {
        matches!(self.disk.attaching, Some(Attaching { step: Step::Consent(None), .. }))
    }

    /// Is the disk being opened, or its metadata read? A node that shakes hands in 9's dialect meanwhile would be
    /// without a disk.
    pub(crate) fn is_opening(&self) -> bool {
        let step = self.disk.attaching.as_ref().map(|attaching| &attaching.step);
        step.is_some_and(|step| !matches!(step, Step::Handshake | Step::Consent(_)))
    }
}

impl Device {
    fn ask_again_soon(&mut self, now: Instant) {
        let soon = now + SOON;
        self.step_of_attach(Step::Consent(Some(soon)));
    }
}
