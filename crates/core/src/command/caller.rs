//! On whose behalf a command is carried out.

use units::{NodeId, VolumeNr};

/// Who waits for the end of a command.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Caller {
    /// The owner of the core: it is told of the end, with this number.
    Owner(u64),
    /// Nobody: a command of the owner has ended without this peer's answer, and what it has begun goes on.
    Leaving(NodeId),
    /// Nobody: the core connects to this peer anew.
    Reconnecting(NodeId),
    /// Nobody: this node gives in to one with newer data.
    GivingIn,
    /// Nobody: the core has what is marked of this volume copied.
    Copying(VolumeNr),
}

impl Caller {
    /// The number of the command whose end the owner is told of.
    pub(crate) fn owner(self) -> Option<u64> {
        if let Caller::Owner(id) = self { Some(id) } else { None }
    }
}
