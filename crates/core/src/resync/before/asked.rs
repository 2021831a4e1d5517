//! What a handler is asked before a resync.

use crate::decide::Handler;
use crate::decide::state::Replication;
use units::Generation;

/// What begins when the handler has ended well.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Beginning {
    /// As source; until then this state stays, in which the target waits for P_SYNC_UUID.
    Source(Replication),
    /// As target, with the resync's generation.
    Target(Generation),
    /// As target in 9's dialect, where a resync has none of its own; until then this state stays.
    Target9(Replication),
}

impl Beginning {
    pub(super) fn handler(self) -> Handler {
        match self {
            Beginning::Source(_) => Handler::BeforeResyncSource,
            Beginning::Target(_) | Beginning::Target9(_) => Handler::BeforeResyncTarget,
        }
    }

    /// Is it still to begin in this state?
    fn is_due_in(self, conn: Replication) -> bool {
        match self {
            Beginning::Source(waits_in) | Beginning::Target9(waits_in) => conn == waits_in,
            Beginning::Target(_) => matches!(conn, Replication::WFSyncUUID | Replication::Behind),
        }
    }
}

/// A peer device's handler, and the resync that waits for it.
#[derive(Debug, Default)]
pub(crate) struct BeforeResync {
    /// The call that has not ended.
    pub(super) call: Option<u64>,
    /// It was for a resync that is not due any more.
    pub(super) outlived: bool,
    pub(super) due: Option<Beginning>,
}

impl BeforeResync {
    /// Does a resync wait for a handler?
    pub(crate) fn is_due(&self) -> bool {
        self.due.is_some()
    }

    /// What a handler says of a resync that is not to begin any more counts for nothing.
    pub(crate) fn follow(&mut self, conn: Replication) {
        if self.due.take_if(|due| !due.is_due_in(conn)).is_some() {
            self.outlived = true;
        }
    }
}
