//! The chores that are due at the end of the turn.

use wire::Packet;

/// In the order in which they are done.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Chore {
    /// Which resync waits for which.
    Dependencies,
    /// What three nodes must know of each other.
    Mesh,
    /// Resyncs, verifies, repairs.
    Copying,
    Attach,
    /// To be Primary as before this process.
    Again,
    Commands,
    /// Metadata, and what front ends are told of the devices.
    Disks,
}

impl Chore {
    pub(super) const ALL: [Chore; 7] = {
        use Chore::*;
        [Dependencies, Mesh, Copying, Attach, Again, Commands, Disks]
    };
}

/// Those that are due at the end of the turn.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Chores(u8);

impl Default for Chores {
    fn default() -> Chores {
        Chores::NONE.with(Chore::ALL.into_iter())
    }
}

impl Chores {
    pub(super) const NONE: Chores = Chores(0);

    /// Something has happened that any of them may have to do with.
    pub(crate) fn mark(&mut self) {
        *self = Chores::default();
    }

    pub(crate) fn mark_unless(&mut self, is_routine: bool) {
        if !is_routine {
            self.mark();
        }
    }

    pub(super) fn with(self, chores: impl Iterator<Item = Chore>) -> Chores {
        Chores(chores.fold(self.0, |all, chore| all | 1 << chore as u8))
    }

    pub(super) fn has(self, chore: Chore) -> bool {
        self.0 & 1 << chore as u8 != 0
    }

    pub(super) fn take(&mut self, chore: Chore) -> bool {
        let due = self.has(chore);
        self.0 &= !(1 << chore as u8);
        due
    }

    pub(super) fn each(self) -> impl Iterator<Item = Chore> {
        Chore::ALL.into_iter().filter(move |chore| self.has(*chore))
    }
}

/// Is it a packet that concerns nobody but reads and writes?
pub(crate) fn is_routine(packet: &Packet) -> bool {
    matches!(
        packet,
        Packet::Data(_)
            | Packet::DataRequest(_)
            | Packet::DataReply(_)
            | Packet::Barrier(_)
            | Packet::UnplugRemote
            | Packet::RecvAck(_)
            | Packet::WriteAck(_)
            | Packet::BarrierAck(_)
    )
}
