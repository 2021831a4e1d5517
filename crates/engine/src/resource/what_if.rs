//! What the core foretells of losses, as the control socket's messages.

use super::Runner;
use control::what_if::{Answer, Io, Loss, Outlook, Votes, WhatIf};
use control::{Command as Asked, Failure};
use units::NodeId;
use urbd_core::decide::quorum::{Tally, Verdict};
use urbd_core::decide::what_if as core;
use urbd_core::{SuspendReason, SuspendReasons};

impl Runner {
    /// What each single loss would do, or what this command would take away.
    pub(super) fn what_if(&self, before: Option<Asked>) -> Result<Vec<WhatIf>, Failure> {
        let foretold = match before {
            None => self.core.what_if(),
            Some(Asked::Down { .. }) => self.core.what_if_lost(core::Loss::Leaves),
            Some(Asked::Disconnect { peer, force }) => {
                let peers = self.peers(peer)?.into_iter();
                peers.flat_map(|peer| self.what_if_parted(peer, force)).collect()
            }
            Some(Asked::Detach { volume, .. }) => {
                let mut lost = self.core.what_if_lost(core::Loss::OwnDisk);
                lost.retain(|foretold| volume.is_none_or(|volume| foretold.volume.0 == volume));
                lost
            }
            Some(_) => Vec::new(),
        };
        let snapshot = self.core.snapshot();
        let name = |peer: NodeId| {
            let named = snapshot.connections.iter().find(|c| c.peer == peer);
            named.map_or_else(|| peer.index().to_string(), |c| c.peer_name.clone())
        };
        Ok(foretold.iter().map(|foretold| told(foretold, name)).collect())
    }

    /// The two part in order, and each of them knows it of the other one; by force neither does.
    fn what_if_parted(&self, peer: NodeId, force: bool) -> Vec<core::Foretold> {
        if force {
            return self.core.what_if_lost(core::Loss::Link(peer));
        }
        let mut parted = self.core.what_if_lost(core::Loss::PeerLeaves(peer));
        for (foretold, leaves) in parted.iter_mut().zip(self.core.what_if_lost(core::Loss::Leaves)) {
            foretold.others = leaves.others.into_iter().filter(|(other, _)| *other == peer).collect();
        }
        parted
    }
}

/// With the names of peers.
fn told(foretold: &core::Foretold, name: impl Fn(NodeId) -> String) -> WhatIf {
    let (loss, peer) = match foretold.loss {
        core::Loss::Nothing => (Loss::Nothing, None),
        core::Loss::Peer(peer) => (Loss::Node, Some(peer)),
        core::Loss::Link(peer) => (Loss::Link, Some(peer)),
        core::Loss::PeerDisk(peer) => (Loss::PeerDisk, Some(peer)),
        core::Loss::OwnDisk => (Loss::OwnDisk, None),
        core::Loss::ThisNode => (Loss::ThisNode, None),
        core::Loss::Leaves => (Loss::Leaves, None),
        core::Loss::PeerLeaves(peer) => (Loss::PeerLeaves, Some(peer)),
    };
    WhatIf {
        loss,
        peer: peer.map(&name),
        volume: foretold.volume.0,
        here: foretold.here.as_ref().map(|here| outlook(String::new(), here)),
        others: foretold.others.iter().map(|(peer, of)| outlook(name(*peer), of)).collect(),
    }
}

fn outlook(node: String, of: &core::Outlook) -> Outlook {
    let frozen = match of.io {
        Some(core::Io::Freezes(why)) => reasons(why),
        _ => Vec::new(),
    };
    Outlook {
        node,
        primary: of.primary,
        votes: of.votes.map(|tally| votes(&tally)),
        quorum: answer(of.quorum),
        serves: answer(of.serves),
        io: of.io.map(|io| match io {
            core::Io::GoesOn => Io::GoesOn,
            core::Io::Freezes(_) => Io::Freezes,
            core::Io::Fails => Io::Fails,
            core::Io::WritesFail => Io::WritesFail,
        }),
        frozen,
        good_at_least: of.good.0,
        good_at_most: of.good.1,
        may_be_primary: answer(of.rises),
    }
}

fn reasons(why: SuspendReasons) -> Vec<String> {
    let all = [
        (SuspendReason::User, "user"),
        (SuspendReason::NoData, "no-data"),
        (SuspendReason::Fencing, "fencing"),
        (SuspendReason::Quorum, "quorum"),
    ];
    all.into_iter().filter(|(reason, _)| why.because_of(*reason)).map(|(_, name)| name.to_owned()).collect()
}

fn votes(tally: &Tally) -> Votes {
    Votes {
        in_reach: tally.seen,
        of: tally.voters,
        needed: tally.needed,
        up_to_date: tally.up_to_date,
        up_to_date_needed: tally.needed_up_to_date,
        tie_breaker: tally.verdict == Verdict::ByTiebreaker,
    }
}

fn answer(of: core::Answer) -> Answer {
    match of {
        core::Answer::Yes => Answer::Yes,
        core::Answer::No => Answer::No,
        core::Answer::IfTheyMeet => Answer::IfTheyMeet,
        core::Answer::NotKnown => Answer::NotKnown,
    }
}
