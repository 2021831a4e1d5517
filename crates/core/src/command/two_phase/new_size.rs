//! What the nodes say of a new size.

use units::{NodeId, NodeMask, Sector};
use wire::{PrepareResize, ResizeFlags};

/// What a node without a disk has room for.
pub(super) const BOUNDLESS: Sector = Sector(1 << 41);

/// The size that is asked for.
#[derive(Clone, Debug)]
pub(crate) struct NewSize {
    /// The administrator's limit; 0: none.
    pub(super) user: Sector,
    pub(super) flags: ResizeFlags,
    /// What this node has room for.
    pub(super) own: Sector,
    /// The smallest of what those have that were asked by this one, and whose it is.
    pub(super) smallest: Option<(NodeId, Sector)>,
    /// What the device had when this node was asked.
    pub(super) before: Sector,
}

impl NewSize {
    pub(super) fn request(&self, transaction: wire::Transaction) -> PrepareResize {
        PrepareResize { transaction, user_size: self.user, flags: self.flags }
    }

    /// What all that were reached over this node have room for.
    pub(super) fn most(&self) -> Sector {
        self.smallest.map_or(self.own, |(_, most)| most.min(self.own))
    }

    pub(super) fn note_most(&mut self, node: NodeId, most: Sector) {
        if self.smallest.is_none_or(|(_, smallest)| most < smallest) {
            self.smallest = Some((node, most));
        }
    }

    pub(in crate::command) fn user(&self) -> Sector {
        self.user
    }

    pub(in crate::command) fn flags(&self) -> ResizeFlags {
        self.flags
    }

    pub(in crate::command) fn smallest(&self) -> Option<(NodeId, Sector)> {
        self.smallest
    }

    /// 0: no peer has a disk.
    pub(in crate::command) fn most_of_peers(&self) -> Sector {
        self.smallest.map(|(_, most)| most).filter(|most| *most < BOUNDLESS).unwrap_or_default()
    }
}

/// By whom this node was asked, and whom it has asked.
#[derive(Clone, Copy, Debug)]
pub(super) struct Asked {
    pub(super) initiator: NodeId,
    pub(super) parents: NodeMask,
    pub(super) children: NodeMask,
}

impl Asked {
    /// Only this node knows of it.
    pub(super) const fn by(initiator: NodeId) -> Asked {
        Asked { initiator, parents: NodeMask(0), children: NodeMask(0) }
    }
}
