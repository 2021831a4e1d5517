//! A repair that is due.

use units::{Duration, Instant};

/// What is to be done about blocks that are marked as different.
#[derive(Debug, Default)]
pub(crate) struct Repair {
    when: When,
    /// A verify found differences that no resync has repaired yet.
    pub(super) differences_found: bool,
    /// Blocks that were marked when the node connected anew to have them copied; 0 once a resync has begun since.
    tried: u64,
}

/// When they are copied if nothing else does it.
#[derive(Clone, Copy, Debug, Default)]
pub(super) enum When {
    #[default]
    Never,
    /// After a while, or at once: this node's users have seen them.
    Since { at: Instant, at_once: bool },
    /// When one of two Primaries is demoted.
    OnePrimary,
}

impl Repair {
    /// Whoever was waited for was waited for on the link before.
    pub(crate) fn link_begins(&mut self) {
        self.when = When::Never;
    }

    pub(crate) fn found_differences(&mut self) {
        self.differences_found = true;
    }

    /// From now on it is waited for somebody to copy them. Two Primaries go on waiting for one to be demoted.
    pub(crate) fn wanted(&mut self, now: Instant) {
        if !matches!(self.when, When::OnePrimary) {
            self.when = When::Since { at: now, at_once: false };
        }
    }

    pub(super) fn waits_for_one_primary(&mut self) {
        self.when = When::OnePrimary;
    }

    /// There are not two Primaries any more.
    pub(super) fn one_primary(&mut self, now: Instant) {
        if matches!(self.when, When::OnePrimary) {
            self.when = When::Since { at: now, at_once: false };
        }
    }

    pub(super) fn hurry(&mut self, urgent: bool) {
        if let When::Since { at_once, .. } = &mut self.when {
            *at_once = urgent;
        }
    }

    pub(super) fn forget_when(&mut self) {
        self.when = When::Never;
    }

    /// This node has them copied now.
    pub(super) fn copies(&mut self) {
        self.differences_found = false;
    }

    pub(super) fn resync_began(&mut self) {
        (self.differences_found, self.tried) = (false, 0);
    }

    /// So many are left. False: it was tried already, and has not made them fewer.
    pub(super) fn is_worth_trying(&mut self, left: u64) -> bool {
        left != std::mem::replace(&mut self.tried, left)
    }

    pub(super) fn wanted_since(&self) -> Option<Instant> {
        if let When::Since { at, .. } = self.when { Some(at) } else { None }
    }

    /// When they are copied, if the other node is given so much time for it.
    pub(super) fn due(&self, wait: Duration) -> Option<Instant> {
        match self.when {
            When::Since { at, at_once: true } => Some(at),
            When::Since { at, at_once: false } => Some(at + wait),
            When::Never | When::OnePrimary => None,
        }
    }

    /// Is somebody waited for?
    pub(crate) fn is_wanted(&self) -> bool {
        self.wanted_since().is_some()
    }
}
