//! Links that must end, as was found: what [`Resource::end_links`](crate::Resource::end_links) carries out.

use crate::api::ConnectionState;
use crate::decide::topic::Named;
use std::collections::VecDeque;
use units::NodeId;

/// How a link ends, and what follows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum LinkEnd {
    /// Lost for this (a state from Timeout to TearDown): connecting again, at once if the nodes were connected and the
    /// peer has kept to the protocol.
    Lost(ConnectionState),
    /// The nodes cannot agree at present: connecting again after `connect-int`.
    RetryLater,
    /// Another peer comes first: connecting again a second later.
    AnotherFirst,
    /// What is at the other end is not acceptable: StandAlone, if it has shown that it is the peer; else connecting
    /// again.
    Refused,
    /// The peer is not acceptable: StandAlone.
    GiveUp,
    /// The same, as the peer, which has not crashed, takes itself for the source: the next try knows that.
    SurvivorInsists,
    /// The nodes compare their data in a handshake: connecting again at once, and this node waits for the peer.
    CompareAnew,
    /// By leave of the peer, or by the administrator: StandAlone. Nothing is said about it, and commands that wait for
    /// it go on.
    Parted,
}

/// The end of a link that was reported.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Ending {
    pub(crate) peer: NodeId,
    pub(crate) end: LinkEnd,
    pub(crate) reason: Named,
    pub(crate) text: String,
}

/// All that were reported and not carried out, in that order.
#[derive(Debug, Default)]
pub(crate) struct Endings(VecDeque<Ending>);

impl Endings {
    pub(crate) fn report(&mut self, ending: Ending) {
        self.0.push_back(ending);
    }

    pub(crate) fn take(&mut self) -> Option<Ending> {
        self.0.pop_front()
    }

    /// Must the link to this peer end?
    pub(crate) fn concern(&self, peer: NodeId) -> bool {
        self.0.iter().any(|ending| ending.peer == peer)
    }

    /// Is nothing left to be carried out?
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}
