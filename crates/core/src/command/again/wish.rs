//! The wish to be Primary again, as before this process.

use crate::api::Inherited;
use crate::command::caller::Caller;
use crate::members::Volumes;
use units::{Generation, Instant, VolumeNr};
use wire::{DiskState, Role};

/// The wish to be Primary again.
#[derive(Debug)]
pub(crate) struct Again {
    /// The command that ends when it comes true, or cannot.
    pub(super) id: Caller,
    pub(super) inherited: Inherited,
    pub(super) since: Instant,
    pub(super) stage: Progress,
    /// What each volume's disk was when it was attached, as far as that is over.
    pub(super) found: Volumes<Option<Found>>,
    /// Why it was refused the last time.
    pub(super) told: Option<i32>,
}

impl Again {
    pub(super) fn is_asking(&self) -> bool {
        matches!(self.stage, Progress::Asking { .. })
    }

    pub(in crate::command) fn forget_volume(&mut self, volume: VolumeNr) {
        self.found.remove(volume);
        self.inherited.came.retain(|of| *of != volume);
        self.inherited.without_disk.retain(|of| *of != volume);
    }
}

/// What a volume's disk was when it was attached, and of which generation.
#[derive(Clone, Copy, Debug)]
pub(super) struct Found {
    pub(super) disk: DiskState,
    pub(super) generation: Option<Generation>,
}

/// `resumed`: the administrator does not want to wait for the peer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Progress {
    /// For disks and peers.
    Waiting { resumed: bool },
    /// The promotion is under way.
    Asking { resumed: bool },
    /// It was refused while everything looked like this.
    Refused(Vec<Look>, Later),
}

/// When it is tried again though everything looks the same.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Later {
    /// Only another look is a reason to.
    Never,
    /// A peer has refused, which may know better at this time. What the administrator has said counts until then: it
    /// was not that on which the peer has refused.
    At { at: Instant, resumed: bool },
}

impl Progress {
    /// Is it to be tried now, when everything looks like this, and has the administrator said that he does not wait?
    pub(super) fn is_due(&self, look: &[Look], now: Instant) -> Option<bool> {
        match self {
            Progress::Asking { .. } => None,
            Progress::Waiting { resumed } => Some(*resumed),
            // What he has said was about something else.
            Progress::Refused(before, _) if before != look => Some(false),
            Progress::Refused(_, Later::At { at, resumed }) => (now >= *at).then_some(*resumed),
            Progress::Refused(_, Later::Never) => None,
        }
    }

    /// The promotion was refused: by a peer, which is asked again at `at`, or here.
    pub(super) fn refused(&self, look: Vec<Look>, at: Option<Instant>) -> Progress {
        let resumed = *self == Progress::Asking { resumed: true };
        Progress::Refused(look, at.map_or(Later::Never, |at| Later::At { at, resumed }))
    }

    /// When it is to be tried though nothing happens; `over`: so long peers are waited for.
    pub(super) fn timer(&self, over: Instant) -> Option<Instant> {
        match self {
            Progress::Waiting { .. } => Some(over),
            Progress::Asking { .. } | Progress::Refused(_, Later::Never) => None,
            Progress::Refused(_, Later::At { at, .. }) => Some(*at),
        }
    }
}

/// What decides over a volume: whether its handshake is over, the disks, the peer's role.
pub(super) type Look = (bool, DiskState, DiskState, Role);

#[cfg(test)]
mod tests {
    use super::*;

    const LOOK: Look = (true, DiskState::Consistent, DiskState::Consistent, Role::Secondary);
    const OTHER: Look = (false, DiskState::Consistent, DiskState::DUnknown, Role::Unknown);

    /// `resume-io` counts until the peer that was busy has been asked once more, and no longer than all looks the same.
    #[test]
    fn a_busy_peer_does_not_make_void_what_the_administrator_has_said() {
        for resumed in [false, true] {
            let asking = Progress::Asking { resumed };
            let (soon, later) = (Instant(5), Instant(6));
            let busy = asking.refused(vec![LOOK], Some(later));
            assert_eq!(busy.is_due(&[LOOK], soon), None);
            assert_eq!(busy.is_due(&[LOOK], later), Some(resumed));
            assert_eq!(busy.is_due(&[OTHER], soon), Some(false), "it was not about that");
            assert_eq!(busy.timer(soon), Some(later));
            let here = asking.refused(vec![LOOK], None);
            assert_eq!((here.is_due(&[LOOK], later), here.is_due(&[OTHER], later)), (None, Some(false)));
        }
    }
}
