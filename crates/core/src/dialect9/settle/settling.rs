//! What survivors of a Primary have not agreed on.

use units::Instant;

/// What the other nodes are still to be asked for.
#[derive(Debug, Default)]
pub(crate) struct Settling {
    /// A disk has become Consistent, or, where quorum is asked for, a member is lost.
    pub(super) lost: bool,
    /// A survivor has said how much it has, which was waited for.
    pub(super) heard: bool,
    /// Not before then.
    pub(super) again: Option<Instant>,
}
