//! What a disk is worth when it is attached, 8.4 (`docs/spec/connection-and-state.md` 11.3,
//! `docs/spec/on-disk-format.md` 2.10 and 3.10).

use super::{DiskState as D, Reason, Role};
use crate::config::Fencing;
use crate::rows::hit;
use meta::{DeviceFlags, PeerFlags};
use units::Generation;

/// What the decision looks at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Input {
    /// The superblock's flags.
    pub flags: DeviceFlags,
    /// Those of all peers.
    pub peers: PeerFlags,
    /// There is nothing in the activity log that counts: AL_CLEAN, in a format that says so.
    pub al_clean: bool,
    /// The superblock's current generation.
    pub current: Generation,
    /// The generation that users of this node have seen; 0 = none.
    pub exposed: Generation,
    /// Users of this node had writes completed that the disk does not have.
    pub outrun: bool,
    /// This node's role.
    pub role: Role,
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
    if input.peer_disk != D::UpToDate && (input.role == Role::Primary || input.peer_primary) && others {
        hit("attach", || "refused".to_owned());
        return Err(Reason::DataNotCurrent);
    }
    // A Primary that runs has not crashed: it works on its peer's data, and this older disk wins no comparison. Nor did
    // one crash on this disk that was Outdated by then: it worked on its peer's data, too.
    let outdated = input.flags.contains(DeviceFlags::CONSISTENT) && !input.flags.contains(DeviceFlags::WAS_UP_TO_DATE);
    let marked = input.flags.contains(DeviceFlags::PRIMARY_IND);
    let was_primary = marked && input.role != Role::Primary;
    let crashed_primary = input.flags.contains(DeviceFlags::CRASHED_PRIMARY) || (was_primary && !outdated);
    // A Primary whose disk failed under it knows no more than one that crashed.
    let interrupted = marked && !input.al_clean;
    let unlogged = input.flags.contains(DeviceFlags::AL_DISABLED);
    let unlogged_crash = (crashed_primary || was_primary || interrupted) && unlogged;
    let peer_outdated = input.peers.contains(PeerFlags::OUTDATED) && !input.connected;
    let full_sync = input.peers.contains(PeerFlags::FULL_SYNC);
    let (disk, reason) = disk_state(input);
    let attach = Attach {
        activity_log: match (input.al_clean, marked) {
            (true, _) => ActivityLog::Keep,
            (false, false) => ActivityLog::Discard,
            (false, true) => ActivityLog::Apply,
        },
        bitmap: if full_sync || unlogged_crash { Bitmap::SetAll } else { Bitmap::Load },
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
    if !input.flags.contains(DeviceFlags::CONSISTENT) {
        (D::Inconsistent, Reason::WasInconsistent)
    } else if input.outrun {
        // Not even a later demotion makes it current again.
        (D::Outdated, Reason::LacksOwnWrites)
    } else if !input.flags.contains(DeviceFlags::WAS_UP_TO_DATE) {
        (D::Outdated, Reason::WasOutdated)
    } else if input.peers.contains(PeerFlags::OUTDATED) {
        (D::UpToDate, Reason::PeerWasOutdatedBefore)
    } else if input.fencing == Fencing::DontCare {
        (D::UpToDate, Reason::NoFencingToWaitFor)
    } else {
        (D::Consistent, Reason::PeerMayBeNewer)
    }
}
