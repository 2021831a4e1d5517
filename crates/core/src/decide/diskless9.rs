//! A node without a disk meets a node with one, 9 (`docs/spec/connection-and-state.md` 5.10).

use super::{DiskState as D, Reason, Role};
use units::Generation;
use wire::Uuids110;

/// What a node without a disk knows when a peer has told of its copy.
#[derive(Clone, Copy, Debug)]
pub struct Meets<'a> {
    /// The own role.
    pub role: Role,
    /// The generation that the users of this node have seen; [`Generation::NONE`]: none yet (7.9).
    pub exposed: Generation,
    /// The one that `exposed` has followed, if nothing that was written since is completed (7.8).
    pub predecessor: Option<Generation>,
    /// The other copies.
    pub elsewhere: Elsewhere,
    /// What the peer has told of its generations.
    pub peer: &'a Uuids110,
    /// Its disk, as it counts.
    pub peer_disk: D,
}

/// What is within reach besides the peer's copy.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Elsewhere {
    /// Nothing good.
    Nothing,
    /// A good copy.
    Good,
    /// One that has followed the peer's generation: its node has a slot that counts from that, or has it in its
    /// history.
    Newer,
}

/// What the peer's copy is to this node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Meeting {
    /// It is what the peer says it is.
    AsItSays,
    /// So it is, and what users here see from now on is its generation.
    Exposes,
    /// It counts as Outdated.
    Behind,
    /// Its generation is the one before that of this node, which nobody has: this node goes back to it.
    Predecessor,
}

/// Judges a peer's copy.
///
/// # Errors
/// The reason why the nodes are not connected at present.
pub fn meet(s: &Meets<'_>) -> Result<Meeting, Reason> {
    let theirs = s.peer.current;
    if s.peer_disk != D::UpToDate || theirs.is_fresh() {
        return Ok(Meeting::AsItSays);
    }
    let mut past = s.peer.bitmaps.iter().chain(&s.peer.history);
    let newer = past.any(|g| g.same(s.exposed));
    let users = s.role == Role::Primary;
    if s.exposed.is_none() {
        Ok(Meeting::Exposes)
    } else if theirs.same(s.exposed) {
        Ok(Meeting::AsItSays)
    } else if s.elsewhere == Elsewhere::Newer {
        Ok(Meeting::Behind)
    } else if s.predecessor.is_some_and(|before| theirs.same(before)) {
        Ok(Meeting::Predecessor)
    } else if !users && (newer || s.elsewhere == Elsewhere::Nothing) {
        Ok(Meeting::Exposes)
    } else {
        Err(Reason::ExposedDataDiffers)
    }
}
