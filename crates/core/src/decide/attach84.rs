//! What a disk is worth when it is attached, 8.4 (`docs/spec/connection-and-state.md` 11.3,
//! `docs/spec/on-disk-format.md` 2.10 and 3.10).

use super::{DiskState as D, Reason};
use crate::config::Fencing;
use crate::decide::view::MetadataFlags;
use crate::rows::hit;
use units::Generation;

/// What the decision looks at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Input {
    /// The superblock's flags.
    pub flags: MetadataFlags,
    /// FULL_SYNC.
    pub full_sync: bool,
    /// AL_DISABLED.
    pub al_disabled: bool,
    /// AL_CLEAN.
    pub al_clean: bool,
    /// The superblock's current generation.
    pub current: Generation,
    /// The generation that users of this node have seen; 0 = none.
    pub exposed: Generation,
    /// Users of this node had writes completed that the disk does not have.
    pub outrun: bool,
    /// This node is Primary.
    pub primary: bool,
    /// The peer is Primary.
    pub peer_primary: bool,
    /// The volume is Connected.
    pub connected: bool,
    /// The peer's disk as known now.
    pub peer_disk: D,
    /// The disk's fencing policy.
    pub fencing: Fencing,
}

/// What to do with the activity log before anything else.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ActivityLog {
    /// Nothing: it is clean.
    Keep,
    /// Start a new one: what is in it does not matter.
    Discard,
    /// Mark its extents in the bitmap, write the bitmap, then start a new one.
    Apply,
}

/// What to do with the bitmap.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Bitmap {
    /// Read it.
    Load,
    /// Set all bits and write them.
    SetAll,
}

/// How to attach.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attach {
    /// First: the activity log.
    pub activity_log: ActivityLog,
    /// Then: the bitmap.
    pub bitmap: Bitmap,
    /// The CRASHED_PRIMARY mark in memory.
    pub crashed_primary: bool,
    /// The state to remember. It is the disk's, unless the volume is connected: that goes to Negotiating, and the
    /// handshake decides what becomes of it.
    pub disk: D,
    /// The peer's disk becomes this (not connected only).
    pub peer_disk: Option<D>,
    /// Why the disk is in that state.
    pub reason: Reason,
}

/// Have the users of a device seen another generation than a disk's `current`, or writes that the disk lacks?
#[must_use]
pub fn lags_behind_users(current: Generation, exposed: Generation, outrun: bool) -> bool {
    outrun || (!exposed.is_none() && !exposed.same(current))
}

/// Judges a superblock.
///
/// # Errors
/// `Reason::DataNotCurrent` (administrative code 150): the disk holds another generation than the users have seen, or
/// lacks writes that were completed.
pub fn decide(input: &Input) -> Result<Attach, Reason> {
    let others = lags_behind_users(input.current, input.exposed, input.outrun);
    if input.peer_disk != D::UpToDate && (input.primary || input.peer_primary) && others {
        hit("attach", || "refused".to_owned());
        return Err(Reason::DataNotCurrent);
    }
    // A Primary that runs has not crashed: it works on its peer's data, and this older disk wins no comparison. Nor did
    // one crash on this disk that was Outdated by then: it worked on its peer's data, too.
    let outdated = input.flags.consistent && !input.flags.was_up_to_date;
    let was_primary = input.flags.primary_ind && !input.primary;
    let crashed_primary = input.flags.crashed_primary || (was_primary && !outdated);
    // A Primary whose disk failed under it knows no more than one that crashed.
    let interrupted = input.flags.primary_ind && !input.al_clean;
    let unlogged_crash = (crashed_primary || was_primary || interrupted) && input.al_disabled;
    let peer_outdated = input.flags.peer_outdated && !input.connected;
    let (disk, reason) = disk_state(input);
    let attach = Attach {
        activity_log: match (input.al_clean, input.flags.primary_ind) {
            (true, _) => ActivityLog::Keep,
            (false, false) => ActivityLog::Discard,
            (false, true) => ActivityLog::Apply,
        },
        bitmap: if input.full_sync || unlogged_crash { Bitmap::SetAll } else { Bitmap::Load },
        crashed_primary,
        disk,
        peer_disk: peer_outdated.then_some(D::Outdated),
        reason,
    };
    hit("attach", || format!("log {:?}", attach.activity_log));
    hit("attach", || format!("bitmap {:?}", attach.bitmap));
    Ok(attach)
}

fn disk_state(input: &Input) -> (D, Reason) {
    if !input.flags.consistent {
        (D::Inconsistent, Reason::WasInconsistent)
    } else if input.outrun {
        // Not even a later demotion makes it current again.
        (D::Outdated, Reason::LacksOwnWrites)
    } else if !input.flags.was_up_to_date {
        (D::Outdated, Reason::WasOutdated)
    } else if input.flags.peer_outdated {
        (D::UpToDate, Reason::PeerWasOutdatedBefore)
    } else if input.fencing == Fencing::DontCare {
        (D::UpToDate, Reason::NoFencingToWaitFor)
    } else {
        (D::Consistent, Reason::PeerMayBeNewer)
    }
}
